//! What holds a disk of this machine: programs that have its file open, loop devices over it, file systems mounted from
//! those.
//!
//! The information comes from `/proc` and `/sys`, for messages and to unmount on request; it does not decide whether a
//! disk is in use. A program in another process namespace, or of another user, may hold a disk without being found.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::mounts::{entries, mounts_in, numbers_below, processes, program_of};
use crate::sys::loop_device;

/// A holder of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskHolder {
    /// A program that has its file open.
    Process {
        /// The process id.
        pid: u32,
        /// The program's name.
        name: String,
    },
    /// A block device over it: a loop device, or a disk of the kernel.
    Device {
        /// The device's node, such as `/dev/loop0`.
        device: PathBuf,
        /// Where its file systems, those of its partitions included, are mounted, in the order of mounting.
        mounts: Vec<PathBuf>,
    },
    /// A mount that this process does not see and that stays when others are unmounted: a program with mounts of its
    /// own keeps it (mount_namespaces(7)).
    MountElsewhere {
        /// The device's node.
        device: PathBuf,
        /// Where that program sees it.
        mount: PathBuf,
        /// One of the processes that see it.
        pid: u32,
        /// That process's program.
        name: String,
    },
}

impl fmt::Display for DiskHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskHolder::Process { pid, name } => write!(f, "process {pid} ({name}) has its file open"),
            DiskHolder::Device { device, mounts } => {
                write!(f, "{}", device.display())?;
                mounts.iter().try_for_each(|mount| write!(f, ", mounted at {}", mount.display()))
            }
            DiskHolder::MountElsewhere { device, mount, pid, name } => {
                let (device, mount) = (device.display(), mount.display());
                write!(f, "{device}, mounted at {mount} for process {pid} ({name}) and others that share its mounts")
            }
        }
    }
}

/// Why a disk could not be freed of its holders.
#[derive(Debug)]
pub enum ReleaseError {
    /// Data of the file system that is mounted there could not be written to the disk.
    Sync(PathBuf, io::Error),
    /// The file system that is mounted there could not be unmounted.
    Unmount(PathBuf, io::Error),
    /// This block device could not be released.
    Device(PathBuf, io::Error),
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::Sync(mount, error) => {
                write!(f, "what was written at {} could not be made durable: {error}", mount.display())
            }
            ReleaseError::Unmount(mount, error) if error.kind() == io::ErrorKind::ResourceBusy => {
                write!(f, "{0} is in use\n  who uses it: fuser -vm {0}", mount.display())
            }
            ReleaseError::Unmount(mount, error) => write!(f, "{} stays mounted: {error}", mount.display()),
            ReleaseError::Device(device, error) => write!(f, "{} is not released: {error}", device.display()),
        }
    }
}

impl std::error::Error for ReleaseError {}

/// The holders of the disk that is this file.
pub fn of_file(file: &Path) -> Vec<DiskHolder> {
    loops_over(file).iter().flat_map(|name| of_device(name)).chain(processes_with(file)).collect()
}

/// The holders of the disks of the device on this port of `vhci-hcd`.
pub fn of_port(port: u32) -> Vec<DiskHolder> {
    let is_empty = |holder: &DiskHolder| matches!(holder, DiskHolder::Device { mounts, .. } if mounts.is_empty());
    disks_on_port(port).iter().flat_map(|name| of_device(name)).filter(|holder| !is_empty(holder)).collect()
}

/// A block device, and the mounts of it that are not seen here.
fn of_device(name: &str) -> Vec<DiskHolder> {
    let (device, numbers) = (node(name), numbers_below(&Path::new("/sys/block").join(name), name));
    let elsewhere = mounts_elsewhere(&numbers).into_iter().map(|(mount, pid)| DiskHolder::MountElsewhere {
        device: device.clone(),
        mount,
        pid,
        name: program_of(pid),
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    let seen = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    [DiskHolder::Device { mounts: mounts_in(&seen, &numbers), device }].into_iter().chain(elsewhere).collect()
}

/// Writes out and unmounts every file system on these block devices, and detaches loop devices from their files. Leaves
/// programs alone. Needs the rights to unmount.
///
/// # Errors
/// [`ReleaseError`]: what was done before the error stays done.
pub fn release(holders: &[DiskHolder]) -> Result<(), ReleaseError> {
    for holder in holders {
        let DiskHolder::Device { device, mounts } = holder else { continue };
        // Mounts that were made later may lie in earlier ones.
        for mount in mounts.iter().rev() {
            let opened = rustix::fs::open(mount, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let synced = opened.and_then(|folder| rustix::fs::syncfs(&folder));
            synced.map_err(|errno| ReleaseError::Sync(mount.clone(), errno.into()))?;
            let unmounted = rustix::mount::unmount(mount, UnmountFlags::NOFOLLOW);
            unmounted.map_err(|errno| ReleaseError::Unmount(mount.clone(), errno.into()))?;
        }
        let failed = |error: io::Error| ReleaseError::Device(device.clone(), error);
        let opened = fs::File::open(device).map_err(failed)?;
        opened.sync_all().map_err(failed)?;
        if name_of(device).starts_with("loop") {
            loop_device::release(&opened).map_err(failed)?;
        }
    }
    Ok(())
}

fn node(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

fn name_of(device: &Path) -> &str {
    device.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The names of the loop devices over a file.
fn loops_over(file: &Path) -> Vec<String> {
    let is_over = |name: &String| {
        let bytes = fs::read(Path::new("/sys/block").join(name).join("loop/backing_file")).unwrap_or_default();
        let path = String::from_utf8_lossy(&bytes);
        Path::new(path.trim_end_matches('\n')) == file
    };
    entries(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop")).filter(is_over).collect()
}

/// The first mount of devices with these numbers in each mount namespace but this thread's, with a process in it. Those
/// that are unmounted with the mount they were copied from are left out.
fn mounts_elsewhere(numbers: &[String]) -> Vec<(PathBuf, u32)> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut known: Vec<PathBuf> = namespace("thread-self").into_iter().collect();
    let mut found = Vec::new();
    for pid in processes() {
        // Of another user's process it is not told.
        let Some(its) = namespace(&pid.to_string()).filter(|its| !known.contains(its)) else { continue };
        let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let staying = text.lines().filter(|line| !follows(line)).fold(String::new(), |text, line| text + line + "\n");
        found.extend(mounts_in(&staying, numbers).into_iter().next().map(|mount| (mount, pid)));
        known.push(its);
    }
    found
}

/// Whether the mount of this line of `mountinfo` is unmounted when another one is.
fn follows(line: &str) -> bool {
    let fields = line.split(' ').skip(6).take_while(|field| *field != "-");
    fields.into_iter().any(|field| field.starts_with("shared:") || field.starts_with("master:"))
}

fn processes_with(file: &Path) -> Vec<DiskHolder> {
    let mut found = Vec::new();
    for pid in processes() {
        let folder = PathBuf::from(format!("/proc/{pid}/fd"));
        let has = |fd: &String| fs::read_link(folder.join(fd)).is_ok_and(|to| to == file);
        if entries(&folder).iter().any(has) {
            found.push(DiskHolder::Process { pid, name: program_of(pid) });
        }
    }
    found
}

/// The names of the block devices of what is plugged into this port of any of `vhci-hcd`'s controllers.
fn disks_on_port(port: u32) -> Vec<String> {
    let platform = Path::new("/sys/devices/platform");
    let controllers = entries(platform).into_iter().filter(|name| name.starts_with("vhci_hcd"));
    let status = controllers.flat_map(|name| {
        let folder = platform.join(name);
        let files = entries(&folder).into_iter().filter(|file| file.starts_with("status"));
        files.map(move |file| fs::read_to_string(folder.join(file)).unwrap_or_default()).collect::<Vec<_>>()
    });
    let Some(bus_id) = status.collect::<Vec<_>>().iter().find_map(|text| bus_id_in(text, port)) else {
        return Vec::new();
    };
    let is_its = |name: &String| {
        let path = fs::canonicalize(Path::new("/sys/block").join(name)).unwrap_or_default();
        path.iter().any(|part| part.to_str() == Some(&bus_id))
    };
    entries(Path::new("/sys/block")).into_iter().filter(is_its).collect()
}

/// The last column of this port's line in vhci-hcd's `status`, if something is plugged in there.
fn bus_id_in(text: &str, port: u32) -> Option<String> {
    text.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.parse::<u32>() == Ok(port);
        fields.last().filter(|bus_id| is_it && **bus_id != "0-0").map(|bus_id| (*bus_id).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_device_are_found_by_its_number_and_paths_are_unescaped() {
        let text = "36 35 7:3 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw\n\
                    37 35 7:30 / /mnt/other rw - ext4 /dev/loop30 rw\n\
                    38 36 7:3 /sub /mnt/a\\040b/sub rw - ext4 /dev/loop3 rw\n\nshort\n";
        let mounts = mounts_in(text, &["7:3".into()]);
        assert_eq!(mounts, [PathBuf::from("/mnt/a b"), PathBuf::from("/mnt/a b/sub")]);
        assert!(mounts_in(text, &["7:4".into()]).is_empty());
        assert_eq!(crate::mounts::unescape("a\\1"), "a\\1");
        let followers: Vec<bool> = text.lines().map(follows).collect();
        assert_eq!(followers, [true, false, false, false, false]);
    }

    #[test]
    fn the_bus_id_on_a_port_is_read_from_vhci_status() {
        let text = "hub port sta spd dev      sockfd local_busid\nhs  0000 004 000 00000000 000000 0-0\n\
                    hs  0001 006 003 00010002 000005 3-2\n";
        assert_eq!((bus_id_in(text, 1), bus_id_in(text, 0), bus_id_in(text, 7)), (Some("3-2".into()), None, None));
    }

    #[test]
    fn a_program_that_has_the_file_open_is_named() {
        let path = std::env::temp_dir().join(format!("farbus-holders-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let is_us =
            |holder: &DiskHolder| matches!(holder, DiskHolder::Process { pid, .. } if *pid == std::process::id());
        assert!(of_file(&path).iter().any(is_us));
        drop(file);
        assert_eq!(of_file(&path), []);
        fs::remove_file(path).unwrap();
    }
}
