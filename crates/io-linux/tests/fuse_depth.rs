//! A mounted disk whose device answers late: how many requests reach it at once, in which order they may end, and how
//! they end when it is lost.
//!
//! Needs root and FUSE. Without them every test says so and passes; with `FARBUS_REQUIRE_RIG=1` it fails instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farbus_io_linux::frontend::fuse::{DiskMount, MountHealth, UnmountOutcome};
use farbus_io_net::link::{DeviceWaitSource, ThreadWaker};
use farbus_model::block::MemoryStore;
use farbus_model::limits::FUSE_REQUESTS_MAX;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, CompletionQueue, Instant, ReadinessSource,
    StoreDevice, StoreError,
};
use rustix::io::Errno;

const MIB: usize = 1 << 20;

/// Answers each request after a delay, or when told to; of those that are due together, the last one first.
struct Late {
    device: StoreDevice<MemoryStore>,
    delay: Duration,
    held: BTreeMap<(Instant, u64), BlockInFlight>,
    next: u64,
    readiness: ReadinessSource,
    strings: Arc<Strings>,
}

/// How a test controls the device, and what it observes.
struct Strings {
    wake: Arc<ThreadWaker>,
    /// Whether answers are held back.
    is_holding: AtomicBool,
    /// Whether the device is gone and everything fails.
    is_gone: AtomicBool,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    flushes: AtomicU32,
    /// How many changes were answered when a flush was requested, and how many in all.
    answered: AtomicU32,
    flushed: Mutex<Vec<u32>>,
}

impl Strings {
    fn set(&self, which: &AtomicBool, value: bool) {
        which.store(value, Ordering::Release);
        self.wake.wake();
    }
}

impl Late {
    fn new(bytes: usize, delay: Duration) -> (Self, Arc<Strings>) {
        let wake = Arc::new(ThreadWaker::new().unwrap());
        let strings = Arc::new(Strings {
            wake: Arc::clone(&wake),
            is_holding: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
            flushes: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            flushed: Mutex::default(),
        });
        let device = StoreDevice::new(MemoryStore::new(vec![0; bytes]));
        let readiness = DeviceWaitSource::woken(wake);
        let late =
            Self { device, delay, held: BTreeMap::new(), next: u64::MAX, readiness, strings: Arc::clone(&strings) };
        (late, strings)
    }

    fn answer(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.strings.is_gone.load(Ordering::Acquire) {
            while let Some((_, request)) = self.held.pop_first() {
                done.push(request.fail(StoreError::Lost));
            }
        }
        while let Some(entry) = self.held.first_entry().filter(|entry| entry.key().0 <= now)
            && !self.strings.is_holding.load(Ordering::Acquire)
        {
            let request = entry.remove();
            if request.op == BlockOp::Flush {
                self.strings.flushes.fetch_add(1, Ordering::Relaxed);
            } else if request.op != BlockOp::Read {
                self.strings.answered.fetch_add(1, Ordering::Relaxed);
            }
            self.device.submit(now, request, done);
        }
        self.strings.in_flight.store(self.held.len(), Ordering::Release);
    }
}

impl BlockDevice for Late {
    fn info(&self) -> &BlockInfo {
        self.device.info()
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        // Like a device behind a link: written data stays where it is.
        request.share_payload();
        if request.op == BlockOp::Flush {
            self.strings.flushed.lock().unwrap().push(self.strings.answered.load(Ordering::Relaxed));
        }
        self.next -= 1;
        self.held.insert((now + self.delay, self.next), request);
        self.strings.in_flight.store(self.held.len(), Ordering::Release);
        self.strings.in_flight_max.fetch_max(self.held.len(), Ordering::AcqRel);
        if self.strings.is_gone.load(Ordering::Acquire) {
            self.answer(now, done);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let is_held = self.strings.is_holding.load(Ordering::Acquire);
        self.held.first_key_value().map(|(key, _)| key.0).filter(|_| !is_held)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.answer(now, done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.strings.wake.clear();
        self.answer(now, done);
    }

    fn is_gone(&self) -> bool {
        self.strings.is_gone.load(Ordering::Acquire) && self.held.is_empty()
    }
}

#[test]
fn concurrent_requests_of_programs_reach_the_device_concurrently() {
    let Some(scratch) = rig(&["fio"]) else { return };
    let (late, strings) = Late::new(64 * MIB, Duration::from_millis(2));
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    // One direct read of 8 MiB is eight requests, whose answers come in reverse order.
    let pattern: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096 + at / 7) as u8).collect();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    file.write_all_at(&pattern, 0).unwrap();
    file.sync_all().unwrap();
    let file_name = disk.file().to_str().unwrap().to_owned();
    strings.set(&strings.is_holding, true);
    thread::scope(|s| {
        s.spawn(|| run("dd", &[&format!("if={file_name}"), "of=/dev/null", "bs=8M", "count=1", "iflag=direct"]));
        wait_until("eight requests", || strings.in_flight.load(Ordering::Acquire) == 8);
        strings.set(&strings.is_holding, false);
    });
    let mut back = vec![0; 8 * MIB];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == pattern);
    drop(file);

    // Asynchronous direct I/O of 32 requests, checking every byte.
    strings.in_flight_max.store(0, Ordering::Release);
    let filename = format!("--filename={file_name}");
    let work = "--name=deep --rw=randrw --bsrange=512-256k --blockalign=512 --size=32m --verify=crc32c --verify_fatal=1 \
                --ioengine=libaio --direct=1 --iodepth=32 --verify_state_save=0 --minimal";
    let args: Vec<&str> = std::iter::once(&*filename).chain(work.split_whitespace()).collect();
    run("fio", &args);
    let depth = strings.in_flight_max.load(Ordering::Acquire);
    assert!((16..=FUSE_REQUESTS_MAX).contains(&depth), "{depth} at once");
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Ok(()) });
}

#[test]
fn requests_in_flight_keep_to_the_limit() {
    let Some(scratch) = rig(&["fio"]) else { return };
    let (late, strings) = Late::new(64 * MIB, Duration::from_millis(1));
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    let filename = format!("--filename={}", disk.file().display());
    // From several programs, each with more under way than the device accepts.
    let work = "--name=flood --rw=randread --bs=4k --size=32m --number_ios=2000 --numjobs=4 --ioengine=libaio --direct=1 \
                --iodepth=64 --minimal";
    let args: Vec<&str> = std::iter::once(&*filename).chain(work.split_whitespace()).collect();
    run("fio", &args);
    assert_eq!(strings.in_flight_max.load(Ordering::Acquire), FUSE_REQUESTS_MAX);
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Ok(()) });
}

#[test]
fn a_flush_comes_after_what_was_answered_and_covers_it() {
    let Some(scratch) = rig(&[]) else { return };
    let (late, strings) = Late::new(MIB, Duration::from_millis(1));
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    for round in 1..=3u32 {
        file.write_all_at(&[1; 4096], u64::from(round) * 4096).unwrap();
        file.sync_all().unwrap();
        assert_eq!(strings.flushed.lock().unwrap().last(), Some(&round), "what was written had been answered");
    }
    // No writes since: closing and unmounting have nothing to flush.
    drop(file);
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Ok(()) });
    assert_eq!(strings.flushes.load(Ordering::Relaxed), 3);
}

#[test]
fn requests_to_a_lost_device_fail_and_it_is_dropped() {
    let Some(scratch) = rig(&[]) else { return };
    let (late, strings) = Late::new(16 * MIB, Duration::ZERO);
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    strings.set(&strings.is_holding, true);
    thread::scope(|s| {
        let reader = s.spawn(|| file.read_at(&mut [0; 4096], 0));
        let writer = s.spawn(|| file.write_at(&[1; 4096], 8 * MIB as u64));
        wait_until("two requests", || strings.in_flight.load(Ordering::Acquire) >= 2);
        strings.set(&strings.is_gone, true);
        assert_eq!(errno(writer.join().unwrap()), Errno::NOLINK, "the way to it was lost");
        // The kernel may have read ahead, and then asks once more for what its program needs.
        let error = errno(reader.join().unwrap());
        assert!([Errno::NOLINK, Errno::NODEV].contains(&error), "{error}");
    });
    assert_eq!(disk.wait_for(MountHealth::Lost, Some(Duration::from_secs(5))), MountHealth::Lost);
    assert_eq!(errno(file.read_at(&mut [0; 512], 0)), Errno::NODEV);
    drop(file);
    // `Lost` if the device failed a flush before it was known to be gone, else `Gone`.
    let flushed = disk.unmount().unwrap().flushed;
    assert!(matches!(flushed, Err(StoreError::Gone | StoreError::Lost)), "what was written may be lost: {flushed:?}");
    assert_eq!(Arc::strong_count(&strings), 1, "the device went with its last answer");
}

#[test]
fn cut_disk_fails_its_users_at_once_and_drops_its_device_after_its_answers() {
    let Some(scratch) = rig(&[]) else { return };
    let (late, strings) = Late::new(16 * MIB, Duration::ZERO);
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    strings.set(&strings.is_holding, true);
    thread::scope(|s| {
        let writer = s.spawn(|| file.write_at(&[1; 4096], 0));
        wait_until("a request", || strings.in_flight.load(Ordering::Acquire) == 1);
        disk.cutter().cut();
        let error = errno(writer.join().unwrap());
        assert!(matches!(error, Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN), "{error}");
    });
    assert_eq!(strings.in_flight.load(Ordering::Acquire), 1, "the device still has it");
    strings.set(&strings.is_holding, false);
    assert_eq!(disk.wait_for(MountHealth::Ended, Some(Duration::from_secs(5))), MountHealth::Ended);
    assert_eq!(disk.unmount().unwrap().flushed, Err(StoreError::Gone), "what was written may be lost");
    assert_eq!(Arc::strong_count(&strings), 1);
}

#[test]
fn a_disk_that_is_unmounted_waits_for_its_last_answers() {
    let Some(scratch) = rig(&[]) else { return };
    let (late, strings) = Late::new(16 * MIB, Duration::from_millis(20));
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", late).unwrap();
    let mut file = File::options().write(true).open(disk.file()).unwrap();
    file.write_all(&[7; 3 * MIB]).unwrap();
    drop(file);
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Ok(()) });
    assert_eq!((disk.health(), Arc::strong_count(&strings)), (MountHealth::Ended, 1));
    assert_eq!(strings.in_flight.load(Ordering::Acquire), 0);
    assert!(strings.flushes.load(Ordering::Relaxed) >= 1);
}

#[test]
fn requests_keep_to_the_devices_size_limit() {
    /// Refuses requests that are longer than its limit.
    struct Small(StoreDevice<MemoryStore>, BlockInfo);

    impl BlockDevice for Small {
        fn info(&self) -> &BlockInfo {
            &self.1
        }

        fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
            match self.1.check(&request) {
                Ok(()) => self.0.submit(now, request, done),
                Err(error) => done.push(request.fail(error)),
            }
        }
    }

    let Some(scratch) = rig(&[]) else { return };
    let store = StoreDevice::new(MemoryStore::new(vec![0; 4 * MIB]));
    let info = BlockInfo { request_bytes_max: 64 << 10, ..*store.info() };
    let mut disk = DiskMount::mount(&scratch.path("at"), "disk", Small(store, info)).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    let pattern: Vec<u8> = (0..MIB).map(|at| (at / 3) as u8).collect();
    file.write_all_at(&pattern, 12345).unwrap();
    file.sync_all().unwrap();
    run("dd", &[&format!("if={}", disk.file().display()), "of=/dev/null", "bs=1M", "iflag=direct"]);
    let mut back = vec![0; MIB];
    file.read_exact_at(&mut back, 12345).unwrap();
    assert!(back == pattern);
    drop(file);
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Ok(()) });
}

// ---- the tests' tools ----

/// A folder that is removed with its test.
struct Scratch(PathBuf);

/// Checks what the test needs of this machine; prints why it cannot run.
fn rig(programs: &[&str]) -> Option<Scratch> {
    let missing = |program: &&&str| !matches!(Command::new("which").arg(program).output(), Ok(o) if o.status.success());
    let lacks = if !rustix::process::geteuid().is_root() {
        Some("it is not run by root".to_owned())
    } else if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse; try `modprobe fuse`".to_owned())
    } else {
        programs.iter().find(missing).map(|program| format!("the program {program} is not installed"))
    };
    let Some(lacks) = lacks else {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farbus-depth-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let scratch = Scratch(std::env::temp_dir().join(name));
        std::fs::create_dir(&scratch.0).unwrap();
        return Some(scratch);
    };
    assert!(std::env::var_os("FARBUS_REQUIRE_RIG").is_none_or(|v| v != "1"), "cannot run here: {lacks}");
    // Bypasses the test harness, which would capture it.
    let thread = thread::current();
    let _ = writeln!(std::io::stderr(), "SKIP {}: {lacks}", thread.name().unwrap_or("?"));
    None
}

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a program to its end, at most a minute.
fn run(program: &str, args: &[&str]) {
    let output = Command::new("timeout").args(["-k", "5", "60", program]).args(args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {}\n{stdout}{stderr}", output.status);
}

fn errno<T>(result: std::io::Result<T>) -> Errno {
    let error = result.err().expect("an error");
    Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error} comes from the kernel"))
}
