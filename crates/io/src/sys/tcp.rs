//! How soon TCP takes what was not acknowledged for lost, and how far away it has found its peer.

#![allow(unsafe_code, reason = "two options that the standard library and rustix have no name for")]

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

/// The round trip to the peer as the kernel has measured and smoothed it; none of what is no TCP connection, or was not measured yet.
pub fn round_trip(socket: impl AsFd) -> Option<Duration> {
    // SAFETY: a struct of integers, of which all zeroes is one.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most, of a struct that lives as long as the call (getsockopt(2)).
    let result = unsafe {
        let to = (&raw mut info).cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length)
    };
    (result == 0 && info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
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
    #[test]
    fn a_connection_knows_its_round_trip_and_a_local_socket_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let span = round_trip(&stream).expect("the handshake was one");
        assert!(span > Duration::ZERO && span < Duration::from_secs(60), "{span:?}");
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(round_trip(&unix), None);
    }
}
