//! Who else on this machine uses a disk image or block device: two that write one destroy what is on it.
//!
//! A loop device, a file system, swap, a device mapper and another program are looked for. What decides is the kernel's
//! word: locks, `/proc` and `/sys`, where files are compared by device and inode. Who it is in the case of a lock is
//! for the message: a process of another user, or in another process namespace, has no name here.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, major, minor};

use crate::mounts::{entries, mounts_in, numbers_below, processes, program_of, unescape};
use crate::sys::{file_locks, loop_device};

/// What QEMU locks of a file that it writes, or that others must not write (`block/file-posix.c`): bytes from 100 on
/// for what it does, bytes from 200 on for what it lets nobody else do. Both have 1 for writing and 3 for resizing; 200
/// is for reading.
const QEMU_LOCKS: [u64; 4] = [101, 103, 200, 201];

/// A user of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// A block device: a loop device over the file, or the device itself or a partition of it.
    Device {
        /// The node, such as `/dev/loop0`.
        node: PathBuf,
        /// Where its file systems are mounted, as far as this process sees them.
        mounts: Vec<PathBuf>,
        /// Block devices over it, such as `dm-0`.
        holders: Vec<String>,
    },
    /// This machine swaps to it.
    Swap,
    /// Another program has locked it.
    Program(Option<(u32, String)>),
}

impl fmt::Display for ImageUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageUser::Device { node, mounts, holders } => {
                write!(f, "{}", node.display())?;
                holders.iter().try_for_each(|holder| write!(f, ", below {holder}"))?;
                mounts.iter().try_for_each(|mount| write!(f, ", mounted at {}", mount.display()))
            }
            ImageUser::Swap => f.write_str("this machine's swap"),
            ImageUser::Program(Some((pid, name))) => write!(f, "process {pid} ({name})"),
            ImageUser::Program(None) => f.write_str("a program that cannot be seen from here"),
        }
    }
}

/// The user of an image that is open here, if there is one. Locks by `flock` are the caller's.
pub fn user_of(file: &File) -> Option<ImageUser> {
    let known = file.metadata().ok()?;
    let id = (known.dev(), known.ino());
    if swaps_to(id, known.rdev()) {
        return Some(ImageUser::Swap);
    }
    let device = match FileType::from_raw_mode(known.mode()) {
        FileType::BlockDevice => user_of_device(known.rdev()),
        _ => loops().find(|name| is_over(name, id)).map(|name| device_named(&name)),
    };
    device.or_else(|| {
        let is_locked = QEMU_LOCKS.iter().any(|byte| file_locks::conflicts(file.as_fd(), *byte));
        is_locked.then(|| ImageUser::Program(holder_of(id, "OFDLCK").or_else(|| holder_of(id, "POSIX"))))
    })
}

/// Who has locked an image by `flock`, which is open here.
pub fn locked_by(file: &File) -> ImageUser {
    ImageUser::Program(file.metadata().ok().and_then(|known| holder_of((known.dev(), known.ino()), "FLOCK")))
}

/// Who has a block device that the kernel gives to nobody else.
pub fn exclusive_user_of(path: &Path) -> Option<ImageUser> {
    let known = fs::metadata(path).ok()?;
    if swaps_to((known.dev(), known.ino()), known.rdev()) {
        return Some(ImageUser::Swap);
    }
    let found = user_of_device(known.rdev());
    found.or_else(|| holder_of((known.dev(), known.ino()), "FLOCK").map(|found| ImageUser::Program(Some(found))))
}

/// The use that the kernel makes of a block device or its partitions.
fn user_of_device(number: u64) -> Option<ImageUser> {
    let folder = fs::canonicalize(format!("/sys/dev/block/{}:{}", major(number), minor(number))).ok()?;
    let name = folder.file_name()?.to_str()?.to_owned();
    match device_named_in(&folder, &name) {
        ImageUser::Device { mounts, holders, .. } if mounts.is_empty() && holders.is_empty() => None,
        user => Some(user),
    }
}

fn device_named(name: &str) -> ImageUser {
    device_named_in(&Path::new("/sys/block").join(name), name)
}

fn device_named_in(folder: &Path, name: &str) -> ImageUser {
    let seen = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let parts = entries(folder).into_iter().filter(|part| part.starts_with(name)).map(|part| folder.join(part));
    let holders = [folder.to_owned()].into_iter().chain(parts).flat_map(|part| entries(&part.join("holders")));
    ImageUser::Device {
        node: Path::new("/dev").join(name),
        mounts: mounts_in(&seen, &numbers_below(folder, name)),
        holders: holders.collect(),
    }
}

fn loops() -> impl Iterator<Item = String> {
    entries(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop"))
}

/// Whether a loop device is over this file.
fn is_over(name: &str, id: (u64, u64)) -> bool {
    let Ok(bytes) = fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")) else { return false };
    // The kernel knows the file also where its path means another one: it is deleted, or another program mounted it.
    let node =
        rustix::fs::open(Path::new("/dev").join(name), OFlags::RDONLY | OFlags::CLOEXEC, rustix::fs::Mode::empty());
    if let Some(backing) = node.ok().and_then(|node| loop_device::backing_file(node).ok()) {
        return backing == id;
    }
    let path = std::ffi::OsString::from_vec(bytes.strip_suffix(b"\n").unwrap_or(&bytes).to_vec());
    fs::metadata(path).is_ok_and(|known| (known.dev(), known.ino()) == id)
}

/// Whether this machine swaps to a file, or to a block device with this number.
fn swaps_to(id: (u64, u64), number: u64) -> bool {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.any(|path| {
        fs::metadata(unescape(path))
            .is_ok_and(|known| (known.dev(), known.ino()) == id || (number != 0 && known.rdev() == number))
    })
}

/// A process that has a file open with a lock of this kind, and its program.
fn holder_of(id: (u64, u64), kind: &str) -> Option<(u32, String)> {
    let has = |pid: &u32| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        entries(&folder.join("fd")).iter().any(|fd| {
            let is_it = fs::metadata(folder.join("fd").join(fd)).is_ok_and(|known| (known.dev(), known.ino()) == id);
            // The locks that were made by this descriptor, as in `/proc/locks`.
            let locks = || fs::read_to_string(folder.join("fdinfo").join(fd)).unwrap_or_default();
            is_it && locks().lines().any(|line| line.starts_with("lock:") && line.contains(kind))
        })
    };
    processes().find(|pid| *pid != std::process::id() && has(pid)).map(|pid| (pid, program_of(pid)))
}
