//! Two hosts, their disks and their processes, and what can be done to them.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::super::cuts::{Cutter, attach_through};
use super::super::disk_clients::{Client, HANGS, is_answer, is_hang, open_soon};
use super::super::harness::{Harness, PATIENCE, Running, wait_until};
use super::super::trust::Host;
use super::model::{SECTOR, Sectors, Wrong};
use super::random::Random;
use super::store::{Disk, while_no_loop_device_is_made};

/// The sessions' grace period, in seconds: longer than any fault.
const GRACE_S: &str = "170";
/// Sectors of one writer.
pub const SECTORS: usize = 512;
/// Programs that write one disk.
pub const WRITERS: usize = 2;
pub const DISK_BYTES: usize = SECTORS * WRITERS * SECTOR;
/// Sectors of one write at most.
const RUN_MAX: u64 = 64;
/// Writes of the longest burst without a flush. Those of both writers are not quite what an importer keeps to write
/// again (8 MiB).
const BURST: u64 = 100;

/// The exporter's processes.
pub struct Exporter<'h> {
    pub host: Host<'h>,
    config: PathBuf,
    program: PathBuf,
    /// How often its machine was started.
    boot: u32,
    /// By how many seconds its clocks are ahead of this machine's.
    ahead_s: u32,
    /// Where it listens.
    address: String,
    running: Option<Running>,
}

impl<'h> Exporter<'h> {
    /// Starts it with this program; returns its address too.
    pub fn new(host: Host<'h>, first: &Path, shares: &[String]) -> (Self, String) {
        let config = host.harness.path("lab3").join("farbus.toml");
        let program = host.harness.path("program");
        let mut exporter = Self { host, config, program, boot: 1, ahead_s: 0, address: String::new(), running: None };
        exporter.install(first);
        // Every later process listens at the same port. The kernel gives it to no connection while none does: not even
        // to an importer that dials it. Another campaign, which looks for a free one meanwhile, begins elsewhere.
        let begin = 20_000 + (std::process::id() % 10_000) as u16;
        let free = (begin..=30_000).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).expect("a free port");
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        exporter.address.clone_from(&address);
        exporter.configure(&address, shares);
        assert_eq!(exporter.start(), address);
        (exporter, address)
    }

    fn configure(&self, listen: &str, shares: &[String]) {
        let mut text = format!("[plain]\nlisten = []\n[secure]\nlisten = ['{listen}']\nannounce = false\n");
        for (number, what) in shares.iter().enumerate() {
            text += &format!("[[share]]\nwhat = '{what}'\nname = 'd{number}'\n");
        }
        fs::write(&self.config, text).unwrap();
    }

    /// Makes this the program that starts next.
    pub fn install(&self, program: &Path) {
        let new = self.program.with_extension("new");
        super::super::harness::copy_program(program, &new);
        fs::rename(new, &self.program).unwrap();
    }

    /// Starts it and waits until it serves; returns its address.
    pub fn start(&mut self) -> String {
        let boot = self.host.harness.path("boot_id");
        fs::write(&boot, format!("{:08}-0000-4000-8000-000000000000\n", self.boot)).unwrap();
        let script = format!(
            "mount --bind {} /proc/sys/kernel/random/boot_id && exec {} daemon --config {}",
            boot.display(),
            self.program.display(),
            self.config.display()
        );
        let ahead = format!("--monotonic={0} --boottime={0} --time --fork", self.ahead_s);
        let clocks = ahead.split_whitespace().filter(|_| self.ahead_s > 0);
        let words: Vec<&str> = clocks.chain(["--mount", "sh", "-c", &script]).collect();
        let command = self.host.harness.command_of(Path::new("unshare"), &words);
        let running = Running::start(self.host.equip(command));
        let address = running.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned();
        self.running = Some(running);
        address
    }

    /// All its processes, those of earlier restarts too.
    pub fn processes(&self) -> Vec<Pid> {
        let mark = format!("FARBUS_STATE={}", self.host.harness.path(self.host.name).display());
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let is_ours = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            is_ours.then_some(Pid::from_raw(number)).flatten()
        });
        processes.collect()
    }

    pub fn signal(&self, signal: Signal) {
        for process in self.processes() {
            let _ = kill_process(process, signal);
        }
    }

    /// Kills all its processes, and waits until none is left.
    pub fn kill(&mut self) {
        let mut killed = BTreeSet::new();
        wait_until(PATIENCE, "all processes of the exporter end", || {
            killed.extend(self.processes().into_iter().map(Pid::as_raw_nonzero));
            self.signal(Signal::KILL);
            // A process that ends has no environment any more while its sockets are still open.
            killed.retain(|process| is_running(*process));
            killed.is_empty()
        });
        // One that was ending by itself was never seen, and its sockets may still be open.
        wait_until(PATIENCE, "the exporter's port is free", || TcpListener::bind(&self.address).is_ok());
        self.running = None;
    }

    pub fn kill_and_start(&mut self) {
        self.kill();
        self.start();
    }

    /// The power of its machine and its disks fails, and comes back. Processes are stopped first: nothing that they
    /// do after the power failed reaches anybody.
    pub fn cut_power(&mut self, disks: &mut [Disk], meanwhile: impl FnOnce()) {
        let _nobody = while_no_loop_device_is_made();
        self.signal(Signal::STOP);
        disks.iter().for_each(Disk::power_off);
        meanwhile();
        self.kill();
        disks.iter_mut().for_each(Disk::take_down);
        disks.iter().for_each(Disk::power_on);
        disks.iter_mut().for_each(Disk::bring_up);
        self.boot += 1;
        self.start();
    }

    /// Starts it again with clocks that are days ahead.
    pub fn jump_clocks(&mut self) {
        self.ahead_s = if self.ahead_s > 0 { 0 } else { 100 * 24 * 3600 };
        self.kill_and_start();
    }

    /// `farbus daemon restart`.
    pub fn restart(&mut self) {
        let outcome = self.host.run(&["daemon", "restart", "--json"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}\n{}", self.log());
    }

    /// Limits a resource of all its processes to what `limit` says of each, for this time. Returns whether one of them
    /// ended.
    pub fn limit(&self, resource: Resource, limit: impl Fn(Pid) -> Option<u64>, hold: impl FnOnce()) -> bool {
        let before = self.processes();
        let usual = getrlimit(resource);
        for process in &before {
            let Some(current) = limit(*process) else { continue };
            let _ = prlimit(Some(*process), resource, Rlimit { current: Some(current), ..usual });
        }
        hold();
        for process in &before {
            let _ = prlimit(Some(*process), resource, usual);
        }
        let after = self.processes();
        before.iter().any(|process| !after.contains(process))
    }

    pub fn log(&self) -> String {
        self.running.as_ref().map(Running::log).unwrap_or_default()
    }
}

impl Drop for Exporter<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the exporter had said:\n{}", self.log());
        }
        self.signal(Signal::KILL);
    }
}

/// Whether a process has not ended: an ended one that nobody has waited for has closed everything.
fn is_running(process: NonZero<i32>) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// How many descriptors a process has.
pub fn descriptors(process: Pid) -> Option<u64> {
    let entries = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).ok()?;
    Some(entries.count() as u64)
}

/// How much address space a process has, in bytes.
pub fn address_space(process: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// A disk that is attached, and attached again after its importer was killed.
pub struct FrontEnd<'h> {
    pub via: &'static str,
    /// The device's name on its exporter.
    pub device: String,
    harness: &'h Harness,
    state: Mutex<Attached>,
    changed: Condvar,
}

#[derive(Default)]
struct Attached {
    importer: Option<Running>,
    /// How often it was attached.
    times: u64,
}

impl<'h> FrontEnd<'h> {
    pub fn new(harness: &'h Harness, via: &'static str, device: String) -> Self {
        Self { via, device, harness, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Where the disk appears.
    pub fn location(&self) -> PathBuf {
        match self.via {
            "fuse" => self.harness.path(&format!("{}-mnt", self.device)),
            _ => self.harness.path(&format!("{}.sock", self.device)),
        }
    }

    pub fn attach(&self, desk: &Host<'_>, cutter: &Cutter) {
        let (at, option) = (self.location(), if self.via == "fuse" { "--at" } else { "--socket" });
        let words = ["--via", self.via, option, at.to_str().unwrap(), "--wait=100"];
        let importer = attach_through(desk, &self.device, cutter, &words, GRACE_S);
        let mut state = self.state.lock().unwrap();
        (state.importer, state.times) = (Some(importer), state.times + 1);
        self.changed.notify_all();
    }

    pub fn kill(&self) {
        self.take().kill();
    }

    pub fn take(&self) -> Running {
        self.state.lock().unwrap().importer.take().expect("it is attached")
    }

    /// Whether its importer has ended by itself.
    pub fn has_ended(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.importer.as_ref().is_some_and(|importer| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", importer.id())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
    }

    pub fn signal(&self, signal: Signal) {
        self.state.lock().unwrap().importer.as_ref().expect("it is attached").signal(signal);
    }

    pub fn log(&self) -> String {
        self.state.lock().unwrap().importer.as_ref().map(Running::log).unwrap_or_default()
    }

    /// Waits until it was attached more than so many times; returns how many times.
    fn wait_for_more_than(&self, times: u64, is_over: &AtomicBool) -> u64 {
        let mut state = self.state.lock().unwrap();
        while state.times <= times && !is_over.load(Ordering::Acquire) {
            state = self.changed.wait_timeout(state, Duration::from_millis(50)).unwrap().0;
        }
        state.times
    }
}

/// What a writer has to say while it works.
#[derive(Default)]
pub struct WriterCounters {
    /// The latest number of [`Said::turn`] that a successful flush began with.
    pub settled: AtomicU64,
    /// Errors that it was told.
    pub errors: AtomicU64,
    pub hangs: AtomicU64,
    pub requests: AtomicU64,
    pub wrong: Mutex<Wrong>,
    pub first: Mutex<Option<String>>,
}

/// A program that writes and reads its part of a disk, and what it knows of it.
pub struct Writer<'h, 's> {
    pub front: &'s FrontEnd<'h>,
    pub client: Box<dyn Client>,
    pub first_byte: u64,
    pub sectors: Sectors,
    pub random: Random,
    pub counters: &'s WriterCounters,
    /// The number of faults that are over.
    pub turn: &'s AtomicU64,
}

impl Writer<'_, '_> {
    /// Works until told to stop. Returns what it knows.
    pub fn work(mut self, is_over: &AtomicBool) -> Sectors {
        let mut times = 0;
        while !is_over.load(Ordering::Acquire) {
            times = self.front.wait_for_more_than(times, is_over);
            open_soon(&mut *self.client, || is_over.load(Ordering::Acquire));
            // Its attachment continues until it is told otherwise.
            while !is_over.load(Ordering::Acquire) && self.one_round(is_over) {}
            self.sectors.note_loss_report();
        }
        self.sectors
    }

    /// Some writes and reads, and a flush. Returns whether the front end is still there.
    fn one_round(&mut self, is_over: &AtomicBool) -> bool {
        let is_burst = self.random.below(60) == 0;
        let count = if is_burst { BURST } else { 1 + self.random.below(12) };
        for _ in 0..count {
            let length = if is_burst { RUN_MAX } else { 1 + self.random.below(RUN_MAX) };
            let first = self.random.below(self.sectors.count() - length + 1);
            if !self.write(first, length) {
                return false;
            }
            if self.random.below(3) == 0 && !self.read(first, length) {
                return false;
            }
            if is_over.load(Ordering::Acquire) {
                break;
            }
        }
        let length = 1 + self.random.below(RUN_MAX);
        let first = self.random.below(self.sectors.count() - length + 1);
        self.read(first, length) && self.flush()
    }

    fn write(&mut self, first: u64, length: u64) -> bool {
        let bytes = self.sectors.next_write(first, length);
        let result = self.client.write(self.first_byte + first * SECTOR as u64, &bytes);
        self.sectors.written(first, length, result.is_ok());
        self.heard(result.map(drop)).is_none_or(|is_there| is_there)
    }

    fn read(&mut self, first: u64, length: u64) -> bool {
        let result = self.client.read(self.first_byte + first * SECTOR as u64, length as usize * SECTOR);
        if let Ok(found) = &result {
            self.sectors.read(first, found);
            self.tell();
        }
        self.heard(result.map(drop)).is_none_or(|is_there| is_there)
    }

    fn flush(&mut self) -> bool {
        let turn = self.turn.load(Ordering::Acquire);
        let result = self.client.flush();
        let heard = self.heard(result);
        match heard {
            None => {
                self.sectors.flushed();
                self.tell();
                self.counters.settled.fetch_max(turn, Ordering::AcqRel);
                true
            }
            Some(is_there) => {
                self.sectors.note_loss_report();
                is_there
            }
        }
    }

    fn tell(&self) {
        *self.counters.wrong.lock().unwrap() = self.sectors.wrong;
        if let Some(first) = &self.sectors.first {
            self.counters.first.lock().unwrap().get_or_insert_with(|| first.clone());
        }
    }

    /// Counts a request's answer: `None` for success, or whether the front end is still there.
    fn heard(&self, result: std::io::Result<()>) -> Option<bool> {
        self.counters.requests.fetch_add(1, Ordering::AcqRel);
        let error = result.err()?;
        self.counters.errors.fetch_add(1, Ordering::AcqRel);
        if is_hang(&error) {
            self.counters.hangs.fetch_add(1, Ordering::AcqRel);
            let text = format!("{}: no answer within {HANGS:?}", self.front.device);
            self.counters.first.lock().unwrap().get_or_insert(text);
        }
        Some(is_answer(&error))
    }
}

/// Waits until each writer has made a flush that began after the faults so far; returns how long it took, or which
/// writers did not.
pub fn wait_until_settled(all: &[WriterCounters], turn: u64, within: Duration) -> Result<Duration, Vec<usize>> {
    let began = Instant::now();
    let late = || -> Vec<usize> {
        let is_late = |counters: &WriterCounters| counters.settled.load(Ordering::Acquire) < turn;
        (0..all.len()).filter(|&writer| is_late(&all[writer])).collect()
    };
    loop {
        match late() {
            late if late.is_empty() => return Ok(began.elapsed()),
            late if began.elapsed() > within => return Err(late),
            // waits: between two looks for an event
            _ => thread::sleep(Duration::from_millis(2)),
        }
    }
}
