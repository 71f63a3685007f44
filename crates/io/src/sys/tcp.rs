//! How soon TCP takes what was not acknowledged for lost.

#![allow(unsafe_code, reason = "one option that the standard library and rustix have no name for")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// `TCP_RTO_MIN_US` (linux/tcp.h, since Linux 6.15).
const TCP_RTO_MIN_US: c_int = 45;

/// What is sent again was silent for its usual round trip and `span` at least; Linux has 200 ms unless it is told.
///
/// # Errors
/// What the system says; `ENOPROTOOPT` of a kernel before 6.15.
pub fn set_retransmission_min(socket: impl AsFd, span: Duration) -> io::Result<()> {
    let us = c_int::try_from(span.as_micros()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option is an int; the kernel reads `length` bytes at an address that lives as long as the call (setsockopt(2)).
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MIN_US, (&raw const us).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_takes_it_or_its_kernel_is_too_old() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        if let Err(error) = set_retransmission_min(&stream, Duration::from_millis(50)) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}");
        }
        assert!(set_retransmission_min(&stream, Duration::MAX).is_err());
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(set_retransmission_min(&unix, Duration::from_millis(50)).is_err());
    }
}
