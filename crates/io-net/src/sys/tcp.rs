//! TCP options without a safe wrapper: how soon unacknowledged data counts as lost, how fast to send, how much may wait
//! to be sent, how much was acknowledged, the round trip to the peer, and how much may be on its way.

#![allow(unsafe_code, reason = "options that the standard library and rustix have no name for")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// `TCP_RTO_MIN_US` (linux/tcp.h, since Linux 6.15).
const TCP_RTO_MIN_US: c_int = 45;

/// Sets the least time after which unacknowledged data is sent again, beyond the usual round trip; Linux's default is
/// 200 ms.
///
/// # Errors
/// The system's error; `ENOPROTOOPT` from a kernel before 6.15.
pub fn set_retransmission_min(socket: impl AsFd, span: Duration) -> io::Result<()> {
    let us = c_int::try_from(span.as_micros()).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, libc::IPPROTO_TCP, TCP_RTO_MIN_US, &us)
}

/// Limits the segments of a connection that is not made yet, in both directions (`TCP_MAXSEG`, tcp(7)).
///
/// # Errors
/// The system's error.
pub fn set_segment_max(socket: impl AsFd, bytes_max: u16) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &c_int::from(bytes_max))
}

/// Limits the bytes that the kernel holds of this connection and has not sent yet (`TCP_NOTSENT_LOWAT`, tcp(7)). What
/// is on its way comes on top. A peer that stops reading costs no more, whatever the socket's buffer may grow to.
///
/// # Errors
/// The system's error; an error if this is no TCP connection.
pub fn set_unsent_max(socket: impl AsFd, bytes_max: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes_max)
}

/// The kernel's smoothed round trip to the peer; `None` if this is no TCP connection, or it was not measured yet.
pub fn round_trip(socket: impl AsFd) -> Option<Duration> {
    let info = info(socket).ok()?;
    (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

/// Bytes of the largest segment that this end of a connection sends.
///
/// # Errors
/// The system's error; an error if this is no TCP connection.
#[cfg(test)]
pub fn segment_bytes(socket: impl AsFd) -> io::Result<u32> {
    Ok(info(socket)?.tcpi_snd_mss)
}

/// What a connection may have on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSendWindow {
    /// The kernel's smoothed round trip to the peer.
    pub round_trip: Duration,
    /// The congestion window: how many segments, of any size, may be unacknowledged.
    pub segments: u32,
}

/// The congestion window as it is now; after an idle time the kernel reduces it with the next bytes that it sends.
/// `None` if this is no TCP connection, or its round trip was not measured yet.
pub fn send_window(socket: impl AsFd) -> Option<TcpSendWindow> {
    let info = info(socket).ok().filter(|info| info.tcpi_rtt > 0)?;
    Some(TcpSendWindow { round_trip: Duration::from_micros(info.tcpi_rtt.into()), segments: info.tcpi_snd_cwnd })
}

/// What a connection has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSendProgress {
    /// Bytes that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes that wait to be sent or acknowledged.
    pub queued_bytes: u64,
}

/// What the connection has sent so far.
///
/// # Errors
/// The system's error; an error if this is no TCP connection.
pub fn progress(socket: impl AsFd) -> io::Result<TcpSendProgress> {
    let fd = socket.as_fd().as_raw_fd();
    let info = info(&socket)?;
    let mut queued: c_int = 0;
    // SAFETY: SIOCOUTQ writes an int, at an address that lives as long as the call (tcp(7)).
    if unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut queued) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let queued_bytes = u64::try_from(queued).unwrap_or_default();
    Ok(TcpSendProgress { acknowledged_bytes: info.tcpi_bytes_acked, queued_bytes })
}

/// Limits the sending rate, bytes a second; `None` removes the limit.
///
/// # Errors
/// The system's error.
pub fn set_pacing(socket: impl AsFd, bytes_per_s: Option<u64>) -> io::Result<()> {
    let rate = bytes_per_s.unwrap_or(u64::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate)
}

/// Sets the priority of what is sent in this host's queues (0 to 6), and its six bits on the way (RFC 2474).
///
/// # Errors
/// The system's error.
pub fn set_class(socket: impl AsFd, priority: u8, code_point: u8) -> io::Result<()> {
    let service = c_int::from(code_point) << 2;
    // The option of the other IP version fails as unknown. Marking sets a priority, so the priority comes after it.
    let four = set(&socket, libc::IPPROTO_IP, libc::IP_TOS, &service);
    set(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &service).or(four)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, &c_int::from(priority))
}

pub(super) fn set<T: Copy>(socket: impl AsFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes at an address that lives as long as the call (setsockopt(2)).
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Everything the kernel reports of a connection.
fn info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: a struct of integers, for which all zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to a struct of that size that lives as long as the call
    // (getsockopt(2)).
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length) };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn retransmission_minimum_is_set_unless_the_kernel_is_too_old() {
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
    fn a_connection_knows_its_round_trip_and_window_and_a_local_socket_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let span = round_trip(&stream).expect("the handshake was one");
        assert!(span > Duration::ZERO && span < Duration::from_secs(60), "{span:?}");
        let window = send_window(&stream).expect("the handshake measured the round trip");
        assert!(window.round_trip > Duration::ZERO && (1..1000).contains(&window.segments), "{window:?}");
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!((round_trip(&unix), send_window(&unix)), (None, None));
    }

    #[test]
    fn progress_is_reported_and_the_sending_rate_can_be_limited() {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        set_class(&stream, 6, 46).unwrap();
        set_pacing(&stream, Some(1 << 20)).unwrap();
        set_pacing(&stream, None).unwrap();
        let before = progress(&stream).unwrap();
        stream.write_all(&[7; 1000]).unwrap();
        other.read_exact(&mut [0; 1000]).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while progress(&stream).unwrap().acknowledged_bytes < before.acknowledged_bytes + 1000 {
            assert!(std::time::Instant::now() < until, "what arrived is acknowledged");
        }
        assert_eq!(progress(&stream).unwrap().queued_bytes, 0);
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(progress(&unix).is_err());
    }
}
