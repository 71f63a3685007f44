//! The process and user at the other end of a Unix socket.

#![allow(
    unsafe_code,
    reason = "rustix's own call takes the process for a number that is never 0, which it is in a container"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// `struct ucred` (unix(7)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCredentials {
    process: c_int,
    user: u32,
    group: u32,
}

/// asm-generic/socket.h; farbus supports no architecture with other values.
const SOL_SOCKET: c_int = 1;
const SO_PEERCRED: c_int = 17;

unsafe extern "C" {
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut u32) -> c_int;
}

impl PeerCredentials {
    /// The credentials of the process that connected this socket, at that moment.
    ///
    /// # Errors
    /// It is no Unix socket, or not connected.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = Self::default();
        let mut bytes = size_of::<Self>() as u32;
        let value = (&raw mut found).cast();
        // SAFETY: the kernel writes at most `bytes` bytes to a structure of plain numbers of that size.
        let result = unsafe { getsockopt(socket.as_fd().as_raw_fd(), SOL_SOCKET, SO_PEERCRED, value, &raw mut bytes) };
        match result {
            0 => Ok(found),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The id of its user here; 65534 if that user has no id here (user_namespaces(7)).
    pub fn user(&self) -> u32 {
        self.user
    }

    /// The id of its process here, if it is visible from here (pid_namespaces(7)).
    pub fn process(&self) -> Option<u32> {
        u32::try_from(self.process).ok().filter(|process| *process > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn credentials_of_the_connecting_process_are_read() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let found = PeerCredentials::of(&ours).unwrap();
        assert_eq!((found.user(), found.process()), (rustix::process::getuid().as_raw(), Some(std::process::id())));
        assert_eq!(PeerCredentials { process: 0, ..found }.process(), None, "in another container");
        let nobody = PeerCredentials::of(UnixDatagram::unbound().unwrap()).map(|found| found.process());
        assert!(!matches!(nobody, Ok(Some(_))), "nobody connected it: {nobody:?}");
    }
}
