//! The folder at which a disk is mounted: created if missing, and removed afterwards.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::mark::{MountMark, MountTableEntry};
use super::mounter::{FuseMount, FuseMounter, MountKeeper, MountRemoval};
use super::{MountError, mounting};

/// A folder at which a disk is, or is to be, mounted. Removed at the end if it was created for that.
#[derive(Debug)]
pub(super) struct Mountpoint {
    /// Absolute, without symbolic links: the process may change its working folder, and a link its target.
    at: PathBuf,
    /// The folder itself, until something is mounted there: a user who may rename folders on the path cannot substitute
    /// another one.
    folder: Option<OwnedFd>,
    made: bool,
    /// Identifies our mount, so that one which is later made at the same place is left alone.
    mount: Option<MountTableEntry>,
}

/// Mounts with the rights of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnMounter;

impl FuseMounter for OwnMounter {
    fn mount(&self, at: &Path, read_only: bool) -> Result<FuseMount, MountError> {
        let mut point = Mountpoint::prepare(at)?;
        let device = point.mount(read_only)?;
        let (at, abort) = (point.at.clone(), point.abort());
        Ok(FuseMount { at, device, keeper: Arc::new(OwnKeeper { abort, point: Mutex::new(point) }) })
    }

    fn owner(&self) -> (u32, u32) {
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    }
}

impl OwnMounter {
    /// Keeps a mount that another process kept.
    ///
    /// # Errors
    /// The mount is not there any more.
    pub fn keep(mark: MountMark) -> io::Result<Arc<dyn MountKeeper>> {
        let MountMark { at, made, mount } = mark;
        if mount.is_none() || find_mount(&at) != mount {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not mounted any more", at.display())));
        }
        let point = Mountpoint { at, folder: None, made, mount };
        Ok(Arc::new(OwnKeeper { abort: point.abort(), point: Mutex::new(point) }))
    }
}

/// A mount of this process.
#[derive(Debug)]
struct OwnKeeper {
    /// Separate, for a thread that cannot wait until another has finished.
    abort: MountAbort,
    point: Mutex<Mountpoint>,
}

impl MountKeeper for OwnKeeper {
    fn set_read_ahead(&self, bytes: usize) {
        self.point.lock().unwrap_or_else(PoisonError::into_inner).set_read_ahead(bytes);
    }

    fn leave(&self) -> io::Result<MountRemoval> {
        self.point.lock().unwrap_or_else(PoisonError::into_inner).leave()
    }

    fn mark(&self) -> Option<MountMark> {
        let point = self.point.lock().unwrap_or_else(PoisonError::into_inner);
        Some(MountMark { at: point.at.clone(), made: point.made, mount: point.mount.clone() })
    }

    fn abort(&self) {
        self.abort.now();
    }
}

impl Mountpoint {
    /// Makes sure there is an empty folder `at`.
    pub(super) fn prepare(at: &Path) -> Result<Self, MountError> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotConnected => MountError::DeadMount { at: at.to_owned() },
            _ => MountError::CannotReadFolder { at: at.to_owned(), error },
        };
        let made = match fs::metadata(at) {
            Ok(metadata) if !metadata.is_dir() => return Err(MountError::NotAFolder { at: at.to_owned() }),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::create_dir(at) {
                Ok(()) => true,
                Err(error) => return Err(MountError::CannotMakeFolder { at: at.to_owned(), error }),
            },
            Err(error) => return Err(unreadable(error)),
        };
        let mut point = Self { at: at.to_owned(), folder: None, made, mount: None };
        point.at = fs::canonicalize(at).map_err(unreadable)?;
        let folder = rustix::fs::open(
            &point.at,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let folder = folder.map_err(|errno| unreadable(errno.into()))?;
        check_way(at, &point.at, &folder).map_err(|error| MountError::Refused { at: at.to_owned(), error })?;
        let entries = fs::read_dir(path_of(&folder)).map_err(unreadable)?.next();
        point.folder = Some(folder);
        match entries {
            None => Ok(point),
            Some(_) => Err(MountError::NotEmpty { at: at.to_owned() }),
        }
    }

    /// Mounts here; returns the descriptor on which the kernel sends requests.
    pub(super) fn mount(&mut self, read_only: bool) -> Result<OwnedFd, MountError> {
        let folder = self.folder.take();
        let device = mounting::mount(&self.at, folder.as_ref().map(path_of).as_deref(), read_only)?;
        self.mount = find_mount(&self.at);
        Ok(device)
    }

    /// How far the kernel reads ahead of a program that reads the mounted file in order; it requests no more than this
    /// at once. The kernel's own 128 KiB make a slow link slower: with 2 ms a request, 42 MB/s became 176 with 1 MiB.
    /// Best effort: only root may set it.
    pub(super) fn set_read_ahead(&self, bytes: usize) {
        if let Some(mount) = &self.mount {
            let _ = fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", mount.device), (bytes >> 10).to_string());
        }
    }

    /// What ends this mount from another thread.
    pub(super) fn abort(&self) -> MountAbort {
        MountAbort { at: self.at.clone(), mount: self.mount.clone() }
    }

    /// Takes the mount out of the file tree, even if it is in use, and tidies up.
    pub(super) fn leave(&mut self) -> io::Result<MountRemoval> {
        let left = self.unmount()?;
        self.tidy();
        Ok(left)
    }

    fn unmount(&self) -> io::Result<MountRemoval> {
        if self.mount.is_some() && find_mount(&self.at) != self.mount {
            return Ok(MountRemoval::Already);
        }
        match rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(MountRemoval::Idle),
            Err(Errno::INVAL | Errno::NOENT) => Ok(MountRemoval::Already),
            Err(Errno::BUSY) => {
                rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                Ok(MountRemoval::Busy)
            }
            // Without privilege FUSE's own helper does it.
            Err(Errno::PERM) if self.fusermount("-u") => Ok(MountRemoval::Idle),
            Err(Errno::PERM) if self.fusermount("-uz") => Ok(MountRemoval::Busy),
            Err(errno) => Err(errno.into()),
        }
    }

    fn fusermount(&self, how: &str) -> bool {
        ["fusermount3", "fusermount"].iter().any(|program| {
            let mut command = Command::new(program);
            command.arg(how).arg("--").arg(&self.at).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
    }

    /// Removes the folder if it was created here.
    fn tidy(&mut self) {
        if self.made {
            // Refused, so the folder stays, while something is mounted there or has been put in.
            self.made = fs::remove_dir(&self.at).is_err();
        }
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        self.tidy();
    }
}

/// A path to the open folder, whatever its name has become (proc_pid_fd(5)).
fn path_of(folder: &OwnedFd) -> PathBuf {
    format!("/proc/thread-self/fd/{}", folder.as_raw_fd()).into()
}

/// Checks that `folder` is what `at` means: that the resolved path leads to it, and, if root resolves the path, that
/// the links in it belong to root or to the folder's owner.
fn check_way(at: &Path, really: &Path, folder: &OwnedFd) -> io::Result<()> {
    let changed = || io::Error::other("the way to it changes while it is looked for");
    if fs::read_link(path_of(folder))? != really {
        return Err(changed());
    }
    let at = std::path::absolute(at)?;
    if !rustix::process::geteuid().is_root() || at == really {
        return Ok(());
    }
    let owner = rustix::fs::fstat(folder)?.st_uid;
    let mut has_link = at.components().any(|part| part == Component::ParentDir);
    for part in at.ancestors() {
        let about = fs::symlink_metadata(part)?;
        if about.is_symlink() {
            has_link = true;
            if ![0, owner].contains(&about.uid()) {
                let (part, user) = (part.display(), about.uid());
                return Err(io::Error::other(format!("{part} is a link of user {user}'s; name the folder itself")));
            }
        }
    }
    if has_link { Ok(()) } else { Err(changed()) }
}

/// Ends a mount at once, whatever its server is doing.
#[derive(Clone, Debug)]
pub(super) struct MountAbort {
    at: PathBuf,
    mount: Option<MountTableEntry>,
}

impl MountAbort {
    /// Makes the kernel answer every request itself, with an error, from now on.
    pub(super) fn now(&self) {
        let Some(mount) = &self.mount else { return };
        // FUSE interprets "by force" as exactly this; root may do it while the mount is in the tree.
        let forced = find_mount(&self.at) == self.mount
            && rustix::mount::unmount(&self.at, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                .is_ok();
        if !forced && let Some((_, connection)) = mount.device.split_once(':') {
            // The owner may do it if fusectl is mounted.
            let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
        }
    }
}

fn find_mount(at: &Path) -> Option<MountTableEntry> {
    topmost_mount(&fs::read("/proc/thread-self/mountinfo").ok()?, at)
}

/// The last, hence uppermost, mount at `at` in a mountinfo table (proc_pid_mountinfo(5)).
fn topmost_mount(mountinfo: &[u8], at: &Path) -> Option<MountTableEntry> {
    mountinfo.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&b| b == b' ');
        let id = fields.next()?;
        let device = fields.nth(1)?;
        let mounted_at = fields.nth(1)?;
        (unescape(mounted_at) == at.as_os_str().as_bytes()).then_some(())?;
        Some(MountTableEntry {
            id: str::from_utf8(id).ok()?.parse().ok()?,
            device: OsStr::from_bytes(device).to_str()?.to_owned(),
        })
    })
}

/// Replaces the kernel's `\040` for spaces and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let octal = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok();
        match tail.get(..3).filter(|_| *first == b'\\').and_then(octal) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => plain.push(*first),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
97 28 0:45 / /mnt/my\\040disk rw,nosuid,nodev shared:50 - fuse farbus rw,user_id=0
98 28 7:0 / /mnt/a rw - ext4 /dev/loop0 rw
99 97 0:46 / /mnt/my\\040disk rw - fuse farbus rw
";

    #[test]
    fn the_uppermost_mount_at_a_place_is_found_whatever_its_name() {
        let found = topmost_mount(TABLE, Path::new("/mnt/my disk"));
        assert_eq!(found, Some(MountTableEntry { id: 99, device: "0:46".into() }));
        assert_eq!(topmost_mount(TABLE, Path::new("/mnt/a")).unwrap().device, "7:0");
        assert_eq!(topmost_mount(TABLE, Path::new("/mnt")), None);
        assert_eq!(unescape(br"a\134b\04"), br"a\b\04");
    }

    #[test]
    fn created_mountpoint_is_removed_and_an_existing_one_stays() {
        let at = std::env::temp_dir().join(format!("farbus-mountpoint-{}", std::process::id()));
        let mut point = Mountpoint::prepare(&at).unwrap();
        assert!(at.is_dir());
        let same = Mountpoint::prepare(&at).unwrap();
        drop(same);
        assert!(at.is_dir());
        fs::write(at.join("mine"), "").unwrap();
        assert!(matches!(Mountpoint::prepare(&at), Err(MountError::NotEmpty { .. })));
        assert!(matches!(Mountpoint::prepare(&at.join("mine")), Err(MountError::NotAFolder { .. })));
        assert!(matches!(Mountpoint::prepare(&at.join("a/b")), Err(MountError::CannotMakeFolder { .. })));
        assert_eq!(point.leave().unwrap(), MountRemoval::Already);
        assert!(at.is_dir(), "somebody's file is in it");
        fs::remove_file(at.join("mine")).unwrap();
        drop(point);
        assert!(!at.exists());
    }

    #[test]
    fn link_of_another_user_does_not_lead_roots_mount_elsewhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = std::env::temp_dir().join(format!("farbus-mountpoint-link-{}", std::process::id()));
        fs::create_dir_all(scratch.join("roots")).unwrap();
        let (link, own) = (scratch.join("link"), scratch.join("own"));
        for link in [&link, &own] {
            std::os::unix::fs::symlink(scratch.join("roots"), link).unwrap();
        }
        std::os::unix::fs::lchown(&link, Some(1600), None).unwrap();
        assert!(matches!(Mountpoint::prepare(&link), Err(MountError::Refused { .. })));
        assert_eq!(Mountpoint::prepare(&own).unwrap().at, scratch.join("roots"));
        // If another folder is put in its place before mounting, that one is not mounted at.
        let point = Mountpoint::prepare(&scratch.join("roots")).unwrap();
        fs::rename(scratch.join("roots"), scratch.join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", scratch.join("roots")).unwrap();
        assert_eq!(fs::read_link(path_of(point.folder.as_ref().unwrap())).unwrap(), scratch.join("moved"));
        fs::remove_dir_all(scratch).unwrap();
    }
}
