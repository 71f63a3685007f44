//! A view of the file tree of one's own: what is mounted in it is seen by this process and those that it starts.
#![allow(unsafe_code, reason = "a call that is safe for some of its flags alone")]

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind_recursive, mount_change,
    move_mount, open_tree,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// What the table of mounts shows as the source.
const SOURCE: &str = "farbus";

/// Gives this process mounts of its own. Without root, also a user namespace, in which it may mount; it has one user
/// and one group there, its own, and its files and processes stay its own; the process has one thread then. As root, a
/// process with several threads gives this one mounts of its own, and those that it starts.
///
/// # Errors
/// The system's error: this kernel, or a rule of this machine, allows no user namespaces.
pub fn enter() -> io::Result<()> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let is_root = rustix::process::geteuid().is_root();
    let flags = if is_root { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    // SAFETY: mounts and users are unshared; memory, descriptors and threads stay as they are.
    unsafe { rustix::thread::unshare_unsafe(flags)? };
    if !is_root {
        // The kernel maps a group for those alone who give up changing groups (user_namespaces(7)).
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // What is unmounted outside is unmounted here, too: it would be in use otherwise as long as this process runs.
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?)
}

/// Moves this process, which has one thread, to the mounts of another process, and to its user namespace if it has
/// another one. The working folder becomes the root.
///
/// # Errors
/// The system's error: they are another user's.
pub fn join(users: Option<BorrowedFd<'_>>, mounts: BorrowedFd<'_>) -> io::Result<()> {
    if let Some(users) = users {
        move_into_link_name_space(users, Some(LinkNameSpaceType::User))?;
    }
    Ok(move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))?)
}

/// A folder that is covered.
#[derive(Debug)]
pub struct CoveredFolder {
    old: OwnedFd,
    /// A copy of its mounts, without the one that covers it.
    mounts: OwnedFd,
}

impl CoveredFolder {
    /// What is called so in it.
    fn path(&self, name: &OsStr) -> PathBuf {
        Path::new("/proc/thread-self/fd").join(self.old.as_raw_fd().to_string()).join(name)
    }

    /// Whether it has a device node of this name.
    ///
    /// # Errors
    /// The system's error.
    pub fn has_device(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.old, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Shows all of it, and what is mounted in it, at another folder.
    ///
    /// # Errors
    /// The system's error.
    pub fn show_at(self, folder: &Path) -> io::Result<()> {
        Ok(move_mount(&self.mounts, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

/// Covers a folder by one in memory that shows the same, except what is named: that is left out.
///
/// # Errors
/// The system's error.
pub fn cover(folder: &Path, left_out: &[&str]) -> io::Result<CoveredFolder> {
    let old = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_RECURSIVE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let old = CoveredFolder { old, mounts: open_tree(CWD, folder, clone)? };
    mount(SOURCE, folder, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    for entry in fs::read_dir(old.path(OsStr::new("")))? {
        let name = entry?.file_name();
        if left_out.iter().all(|other| name != **other) {
            show(&old.path(&name), &folder.join(&name))?;
        }
    }
    Ok(old)
}

/// Makes `to` show what is at `from`.
fn show(from: &Path, to: &Path) -> io::Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    match kind {
        FileType::Symlink => return std::os::unix::fs::symlink(fs::read_link(from)?, to),
        FileType::Directory => fs::create_dir(to)?,
        _ => drop(fs::File::create_new(to)?),
    }
    Ok(mount_bind_recursive(from, to)?)
}

/// A folder as it is now, also when something is mounted over it.
#[derive(Debug)]
pub struct PinnedFolder(OwnedFd);

impl PinnedFolder {
    /// Keeps a folder; `None` if there is none.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(folder: &Path) -> io::Result<Option<Self>> {
        match rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(kept) => Ok(Some(Self(kept))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Shows each folder in it at the folder of that name in `to`, if there is one.
    ///
    /// # Errors
    /// The system's error.
    pub fn show_folders_in(&self, to: &Path) -> io::Result<()> {
        let from = Path::new("/proc/thread-self/fd").join(self.0.as_raw_fd().to_string());
        for entry in fs::read_dir(&from)? {
            let name = entry?.file_name();
            let at = to.join(&name);
            if from.join(&name).is_dir() && at.is_dir() {
                mount_bind_recursive(from.join(&name), at)?;
            }
        }
        Ok(())
    }
}

/// Makes a folder show another one, and what is mounted in it.
///
/// # Errors
/// The system's error.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount_bind_recursive(from, to)?)
}
