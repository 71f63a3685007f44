//! One of the two programs that are compared, as two paired hosts, and a device in use between them.

use std::{
    fs::{self, File},
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;

use super::rows::{DeviceLoad, DiskLoad, StartGauge, WayOfUse};
use crate::{
    benchmarks::{
        database::{LineProcess, ScratchFolder},
        hosts::BenchmarkHost,
        storage::{DISK_BYTES, TmpfsImage},
    },
    lab::BenchmarkEnvironment,
    late::{DatagramPath, late, late_datagrams},
    load::{LoadTally, one_at_a_time},
    peers::{
        inside::{UsbfsProgram, UsbfsWorkload},
        nbdkit::{BlockVerb, NbdLoadClient},
    },
    probe::family_kib,
};

const FILL: u8 = 0xa5;
/// For requests that pass the kernel's cache.
const ALIGNMENT: usize = 4096;
/// What [`StartGauge::BusyMemory`] is measured after.
const BUSY_LOADS: [DiskLoad; 3] = [
    DiskLoad { verb: BlockVerb::Read, bytes: 128 << 10, depth: 32, is_random: false },
    DiskLoad { verb: BlockVerb::Write, bytes: 128 << 10, depth: 32, is_random: false },
    DiskLoad { verb: BlockVerb::Read, bytes: 4096, depth: 32, is_random: true },
];
/// How long the kernel may take to find a disk.
const KERNEL_TIME_MAX: Duration = Duration::from_secs(30);
/// When a session counts as idle: what its start needed, a program may keep for its first requests.
const IDLE_AFTER: Duration = Duration::from_millis(1500);
const BUSY_TIME: Duration = Duration::from_millis(100);
/// What is read before a slice of reads in order and not counted: an importer reads up to 16 MiB ahead, which one
/// program has done while the other one was measured, and the other one does now. And how much of it at a time.
const LEAD_IN_BYTES: u64 = 32 << 20;
const LEAD_IN_TIME: Duration = Duration::from_millis(10);

/// A program, as the hosts `exporter` and `importer`.
pub struct ComparedProgram<'a> {
    exporter: BenchmarkHost<'a>,
    importer: BenchmarkHost<'a>,
    folder: &'a ScratchFolder,
    pub image: TmpfsImage,
}

/// The way of a link, and how a device is attached over it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DistantUse<'a> {
    /// How long every byte is under way.
    pub each_way: Duration,
    /// The way of QUIC's datagrams, which has a delay of its own.
    pub datagrams: Option<DatagramPath>,
    /// Further words of `farbus attach`.
    pub words: &'a [&'a str],
}

/// A device that one host of a side shares and the other one uses.
pub struct DeviceInUse {
    share: Option<LineProcess>,
    /// The process of `farbus attach`.
    attach: Option<LineProcess>,
    user: Option<DeviceUser>,
    share_pid: u32,
    user_pid: u32,
    attach_time: Duration,
    attached_at: Instant,
    shared_kib: u64,
}

impl Drop for DeviceInUse {
    fn drop(&mut self) {
        // The user lets go first, then the importer: a mount and the kernel's ports are given back.
        drop(self.user.take());
        for process in [self.attach.take(), self.share.take()].into_iter().flatten() {
            process.interrupt();
            // Whatever its exit code is; if it does not end, it is killed.
            let _ = process.end();
        }
    }
}

enum DeviceUser {
    Nbd(NbdLoadClient<UnixStream>),
    File(DiskFile),
    Program(UsbfsProgram),
}

impl<'a> ComparedProgram<'a> {
    /// Pairs two hosts that run the program of `lab`; their files are in `folder`, which nobody else uses.
    pub fn new(lab: &'a BenchmarkEnvironment, folder: &'a ScratchFolder, name: &str) -> Result<Self> {
        Self::with_disk(lab, folder, TmpfsImage::named(name)?)
    }

    /// Shares this disk instead of one of its own.
    pub fn with_disk(lab: &'a BenchmarkEnvironment, folder: &'a ScratchFolder, image: TmpfsImage) -> Result<Self> {
        let exporter = BenchmarkHost::new(lab, folder, "exporter")?.with_own_program(folder)?;
        let importer = BenchmarkHost::new(lab, folder, "importer")?.with_own_program(folder)?;
        exporter.pair(&importer)?;
        exporter.ok(&["allow", "importer", "all"])?;
        Ok(Self { exporter, importer, folder, image })
    }

    /// Shares a device and has it used in this way.
    pub fn begin(&self, way: WayOfUse) -> Result<DeviceInUse> {
        self.begin_at(way, DistantUse::default())
    }

    /// Shares a device and has it used in this way, from this far away.
    pub fn begin_at(&self, way: WayOfUse, distant: DistantUse<'_>) -> Result<DeviceInUse> {
        let (what, device) = match way {
            // Names that every version gives by itself.
            WayOfUse::Run => ("zero".to_owned(), "exporter/zero"),
            _ => (format!("block:{}", self.image.0.display()), "exporter/block"),
        };
        let mut share = self.exporter.start(&["share", &what, "--listen", "none", "--secure", "127.0.0.1:0"])?;
        let line = share.wait_for("for paired hosts")?;
        let mut address = line.split_whitespace().nth(2).context("a share says where it listens")?.to_owned();
        if !distant.each_way.is_zero() {
            address = late(address.parse()?, distant.each_way)?.to_string();
        }
        if let Some(path) = distant.datagrams {
            address = late_datagrams(address.parse()?, path)?.to_string();
        }
        let share_pid = share.id();
        let shared_kib = family_kib(share_pid)?;
        let began = Instant::now();
        let (user, attach) = self.use_device(way, device, &address, distant.words)?;
        let attached_at = Instant::now();
        let attach_time = attached_at - began;
        let user_pid = match (&user, &attach) {
            (DeviceUser::Program(inside), _) => inside.pid(),
            (_, Some(attach)) => attach.id(),
            _ => unreachable!("whatever is not a program's has been attached"),
        };
        let (share, user) = (Some(share), Some(user));
        Ok(DeviceInUse { share, attach, user, share_pid, user_pid, attach_time, attached_at, shared_kib })
    }

    fn use_device(
        &self,
        way: WayOfUse,
        device: &str,
        address: &str,
        more: &[&str],
    ) -> Result<(DeviceUser, Option<LineProcess>)> {
        let via = match way {
            WayOfUse::Nbd | WayOfUse::Quic => "nbd",
            WayOfUse::Fuse => "fuse",
            WayOfUse::Uas => "uas",
            WayOfUse::Run => {
                let run = self.importer.command(&["run", device, "--address", address, "--"])?;
                let mut inside = UsbfsProgram::over(run)?;
                inside.run(UsbfsWorkload::Ask, Duration::ZERO)?;
                return Ok((DeviceUser::Program(inside), None));
            }
        };
        let path = self.folder.path_of(via);
        let at = path.to_str().context("a plain path")?;
        let mut words = vec!["attach", device, "--address", address, "--via", via];
        words.extend(match way {
            WayOfUse::Fuse => vec!["--at", at],
            WayOfUse::Uas => vec![],
            WayOfUse::Quic => vec!["--socket", at, "--over", "quic"],
            WayOfUse::Nbd | WayOfUse::Run => vec!["--socket", at],
        });
        words.extend(more);
        let known = kernel_disks();
        let mut attach = self.importer.start(&words)?;
        if way == WayOfUse::Uas {
            return Ok((DeviceUser::File(DiskFile::open(&new_kernel_disk(&known)?)?), Some(attach)));
        }
        if matches!(way, WayOfUse::Nbd | WayOfUse::Quic) {
            attach.wait_for(at)?;
            return Ok((DeviceUser::Nbd(NbdLoadClient::negotiate(UnixStream::connect(&path)?)?), Some(attach)));
        }
        attach.wait_for("attached")?;
        // Every version says in other words where the disk is.
        let mut files = fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = files.next().context("'farbus attach' shows no disk")??.path();
        Ok((DeviceUser::File(DiskFile::open(&file)?), Some(attach)))
    }
}

impl DeviceInUse {
    /// Keeps the device busy for this long.
    pub fn run(&mut self, load: DeviceLoad, slice: Duration) -> Result<LoadTally> {
        match (load, self.user.as_mut().context("it is in use")?) {
            (DeviceLoad::Program(work), DeviceUser::Program(inside)) => inside.run(work, slice),
            (DeviceLoad::Disk(DiskLoad { verb, bytes, depth, is_random }), DeviceUser::Nbd(nbd)) => {
                nbd.run(verb, bytes, depth, is_random, slice)
            }
            (DeviceLoad::Disk(DiskLoad { verb, bytes, depth: 1, is_random }), DeviceUser::File(file)) => {
                file.run(verb, bytes, is_random, slice)
            }
            _ => bail!("this device is not used so: {load:?}"),
        }
    }

    /// Keeps the device busy for this long, once an importer reads ahead for this load and not for the one before.
    pub fn run_past_lead_in(&mut self, load: DeviceLoad, slice: Duration) -> Result<LoadTally> {
        let mut left_bytes = if load.is_read_ahead() { LEAD_IN_BYTES } else { 0 };
        while left_bytes > 0 {
            left_bytes = left_bytes.saturating_sub(self.run(load, LEAD_IN_TIME)?.bytes);
        }
        self.run(load, slice)
    }

    /// The gauge's value, ms or MiB.
    pub fn value(&mut self, gauge: StartGauge) -> Result<f64> {
        let mib = |kib: u64| kib as f64 / 1024.0;
        Ok(match gauge {
            StartGauge::AttachTime => self.attach_time.as_secs_f64() * 1e3,
            StartGauge::SharedMemory => mib(self.shared_kib),
            StartGauge::AttachedMemory(end) => {
                thread::sleep(IDLE_AFTER.saturating_sub(self.attached_at.elapsed()));
                mib(family_kib(self.pids()[end as usize])?)
            }
            StartGauge::BusyMemory(end) => {
                for load in BUSY_LOADS {
                    self.run(DeviceLoad::Disk(load), BUSY_TIME)?;
                }
                mib(family_kib(self.pids()[end as usize])?)
            }
        })
    }

    /// The processes of both ends, by `MeasuredEnd`.
    pub fn pids(&self) -> [u32; 2] {
        [self.share_pid, self.user_pid]
    }
}

/// A disk as a file or a block device, used past the kernel's cache.
struct DiskFile {
    file: File,
    bytes: u64,
    /// Counts the requests: where the next one goes.
    next: u64,
}

impl DiskFile {
    fn open(path: &Path) -> Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let file = options.open(path).with_context(|| format!("cannot open {} past the cache", path.display()))?;
        Ok(Self { file, bytes: DISK_BYTES, next: 0 })
    }

    fn run(&mut self, verb: BlockVerb, bytes: usize, is_random: bool, limit: Duration) -> Result<LoadTally> {
        let mut room = vec![FILL; bytes + ALIGNMENT];
        let from = room.as_ptr().align_offset(ALIGNMENT);
        let block = &mut room[from..from + bytes];
        let blocks = self.bytes / bytes as u64;
        one_at_a_time(limit, bytes, |_| {
            self.next += 1;
            // A multiplier without a factor of two visits all blocks before it comes to one again.
            let position = if is_random { self.next.wrapping_mul(0x9e37_79b1) } else { self.next };
            let offset = position % blocks * bytes as u64;
            match verb {
                BlockVerb::Read => self.file.read_exact_at(block, offset)?,
                BlockVerb::Write => self.file.write_all_at(block, offset)?,
            }
            Ok(())
        })
    }
}

/// The disks that the kernel has by way of vhci.
fn kernel_disks() -> Vec<PathBuf> {
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_attached = |block: &PathBuf| {
        fs::canonicalize(block).is_ok_and(|path| path.components().any(|part| part.as_os_str() == "vhci_hcd.0"))
    };
    blocks.filter(is_attached).filter_map(|block| Some(Path::new("/dev").join(block.file_name()?))).collect()
}

/// The disk that the kernel has besides the known ones, once it has read its partitions.
fn new_kernel_disk(known: &[PathBuf]) -> Result<PathBuf> {
    let until = Instant::now() + KERNEL_TIME_MAX;
    loop {
        if let Some(disk) = kernel_disks().into_iter().find(|disk| !known.contains(disk) && disk.exists()) {
            return Ok(disk);
        }
        ensure!(Instant::now() < until, "the kernel has no new disk after {KERNEL_TIME_MAX:?}");
        // sysfs tells nobody that a disk has come.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Why this machine cannot use a disk in this way, and what to type; `None` if it can.
pub fn lacks(way: WayOfUse) -> Option<String> {
    let is_there = |path: &str| Path::new(path).exists();
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    match way {
        WayOfUse::Uas if !is_there("/sys/devices/platform/vhci_hcd.0") => {
            Some("the kernel has no vhci-hcd; as root: modprobe vhci-hcd".to_owned())
        }
        WayOfUse::Fuse if !is_there("/dev/fuse") => Some("the kernel has no FUSE; as root: modprobe fuse".to_owned()),
        WayOfUse::Fuse if !rustix::process::geteuid().is_root() && !has("fusermount3") => {
            Some("there is no fusermount3; as root: apt-get install fuse3".to_owned())
        }
        _ => None,
    }
}
