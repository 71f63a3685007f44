//! Finds out whether data sent on a Unix socket was read.

#![allow(unsafe_code, reason = "one ioctl that the standard library and rustix have no name for")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// Reads how many sent bytes the other end has not taken yet (`SIOCOUTQ`, linux/sockios.h).
const OUTQ: Opcode = 0x5411;

/// Whether the other end of this Unix socket has read everything that was sent to it. For a TCP socket: whether it has
/// arrived there, which means less.
///
/// # Errors
/// The system's error: it is no socket.
pub fn is_all_read(socket: impl AsFd) -> io::Result<bool> {
    // SAFETY: SIOCOUTQ writes one int, for which the getter has room (linux/sockios.h, unix(7)).
    let waiting = unsafe { ioctl(socket, Getter::<OUTQ, c_int>::new()) }?;
    Ok(waiting == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn sent_data_counts_as_unread_until_it_is_read() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(is_all_read(&ours).unwrap());
        ours.write_all(b"abc").unwrap();
        assert!(!is_all_read(&ours).unwrap());
        theirs.read_exact(&mut [0; 2]).unwrap();
        assert!(!is_all_read(&ours).unwrap(), "a byte is left");
        theirs.read_exact(&mut [0; 1]).unwrap();
        assert!(is_all_read(&ours).unwrap());
    }
}
