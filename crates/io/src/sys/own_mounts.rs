//! A view of the file tree of one's own: what is mounted in it is seen by this process and those that it starts.
#![allow(unsafe_code, reason = "a call that is safe for some of its flags alone")]

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::thread::UnshareFlags;

/// What the table of mounts shows as the source.
const SOURCE: &str = "farbus";

/// Gives this process mounts of its own. Without root, also a user namespace, in which it may mount; it has one user
/// and one group there, its own, and its files and processes stay its own. The process has one thread.
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
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

/// Covers a folder by one in memory that shows the same, except what is named: that is left out.
///
/// # Errors
/// The system's error.
pub fn cover(folder: &Path, left_out: &[&str]) -> io::Result<()> {
    // The old folder, which is reached by its descriptor once it is covered.
    let old = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let through = Path::new("/proc/self/fd").join(old.as_raw_fd().to_string());
    mount(SOURCE, folder, "tmpfs", MountFlags::NOSUID, c"mode=755,size=1m")?;
    for entry in fs::read_dir(&through)? {
        let entry = entry?;
        let name = entry.file_name();
        if left_out.iter().any(|other| name == **other) {
            continue;
        }
        let (from, to) = (through.join(&name), folder.join(&name));
        show(&from, &to)?;
    }
    Ok(())
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

/// Makes a folder show another one, and what is mounted in it.
///
/// # Errors
/// The system's error.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount_bind_recursive(from, to)?)
}
