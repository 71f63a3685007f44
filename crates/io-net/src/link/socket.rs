//! Receives and sends on a stream socket.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags};

/// Receives what is there. 0: the peer has ended the link.
pub(super) fn receive_from(fd: &OwnedFd, to: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match net::recv(fd, &mut *to, flags) {
            Ok((count, _)) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends what the socket takes without waiting; `WouldBlock` if it takes nothing.
pub(super) fn send_to(fd: &OwnedFd, runs: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let sent = match runs {
            // Most small answers are one run, and the kernel has less to copy for it.
            [run] => net::send(fd, run, flags),
            _ => net::sendmsg(fd, runs, &mut SendAncillaryBuffer::default(), flags),
        };
        match sent {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
