//! Mounts a tree in mounts of this process's own ([`own_mounts`](crate::sys::own_mounts)).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::mount::MountFlags;

/// Mounts at a folder; the result is for [`Server::new`](super::TreeServer::new), also in another process. Every user
/// may use the tree: the mounts of a process are seen by those alone that it starts.
///
/// # Errors
/// The system's error: this kernel has no FUSE, or this process may not mount.
pub fn mount(at: &Path) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},allow_other",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    let options = CString::new(options).expect("numbers have no NUL");
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount("farbus", at, "fuse.farbus", flags, options.as_c_str())?;
    Ok(device.into())
}
