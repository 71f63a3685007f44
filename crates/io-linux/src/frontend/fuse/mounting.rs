//! Asks the kernel for a FUSE mount: directly as root, otherwise through FUSE's own setuid helper.
//!
//! This is not left to fuser: when a session of fuser 0.18 ends because a user typed `umount`, it unmounts once more
//! whatever is at that place by then. A session over a descriptor that was passed in leaves mounts alone.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::error::MountError;

/// What the table of mounts shows as the source.
const SOURCE: &str = "farbus";

/// Mounts at `at`; returns the descriptor on which the kernel sends requests. `open` is the path of the folder's
/// descriptor, if it is open: then the kernel need not resolve `at`.
pub(super) fn mount(at: &Path, open: Option<&Path>, read_only: bool) -> Result<OwnedFd, MountError> {
    match mount_directly(at, open, read_only) {
        Err(MountError::Refused { error, .. }) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
            mount_by_helper(at, read_only)
        }
        result => result,
    }
}

fn mount_directly(at: &Path, open: Option<&Path>, read_only: bool) -> Result<OwnedFd, MountError> {
    let device =
        File::options().read(true).write(true).open("/dev/fuse").map_err(|error| MountError::NoFuse { error })?;
    // rootmode: a directory. The permissions are checked by the kernel against what getattr says.
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    let options = CString::new(options).expect("numbers have no NUL");
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    match rustix::mount::mount(SOURCE, open.unwrap_or(at), "fuse", flags, options.as_c_str()) {
        Ok(()) => Ok(device.into()),
        Err(Errno::NODEV) => Err(MountError::NoFuse { error: Errno::NODEV.into() }),
        Err(errno) => Err(MountError::Refused { at: at.to_owned(), error: errno.into() }),
    }
}

/// `fusermount3` mounts for any user who owns the folder, and sends the descriptor over the socket whose number is in
/// its environment. Here that is its standard input, the one descriptor a child gets without any other thread's
/// children getting it too.
fn mount_by_helper(at: &Path, read_only: bool) -> Result<OwnedFd, MountError> {
    let refused = |error| MountError::Refused { at: at.to_owned(), error };
    let (ours, theirs) = UnixStream::pair().map_err(refused)?;
    let access = if read_only { "ro" } else { "rw" };
    let mut helper = Command::new("fusermount3")
        .arg("-o")
        .arg(format!("{access},fsname={SOURCE},default_permissions,nodev,nosuid,noexec,noatime"))
        .arg("--")
        .arg(at)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MountError::NoHelper,
            _ => refused(error),
        })?;
    // Ends when the helper does: no other process has its end of the socket.
    let device = receive_descriptor(&ours);
    let mut words = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        let _ = stderr.read_to_string(&mut words);
    }
    let _ = helper.wait();
    match device {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(refused(io::Error::other(words.trim().to_owned()))),
        Err(errno) => Err(refused(errno.into())),
    }
}

fn receive_descriptor(socket: &UnixStream) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}
