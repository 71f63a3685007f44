//! One connected stream socket, TCP or Unix, plain or encrypted.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, RecvFlags, sockopt};
use rustls::Connection;
use serde::{Deserialize, Serialize};

use super::BoottimeClock;
use super::resolve::resolve;
use super::socket::{receive_from, send_to};
use super::tls::{HandshakeFailure, HandshakeLimits, LinkTls};
use super::wait::{PollInterest, wait};
use crate::sys::tcp::{
    TcpSendProgress, TcpSendWindow, progress, round_trip, send_window, set_class, set_pacing, set_retransmission_min,
    set_segment_max,
};

/// How long a peer may leave sent bytes unacknowledged before the link counts as lost (RFC 5482): longer than a
/// retransmission after 2 s of silence, short enough that a dead peer's device is free within 5 s (U11).
const UNACKNOWLEDGED_MS_MAX: u32 = 4_000;
/// An idle link is probed after this time, at this interval, and lost after [`KEEPALIVE_PROBES`] silent probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
/// How long beyond the usual round trip unacknowledged data waits before it is sent again. Longer than a Linux receiver
/// delays an acknowledgement (40 ms), and a quarter of Linux's default, which a key press lost on a busy link would
/// have to wait.
const RETRANSMISSION_MIN: Duration = Duration::from_millis(50);
/// Within one machine there is no path to measure. Where BBR is the default, it paces even there, by a timer: large
/// transfers then get a third of their rate. Every kernel has this algorithm.
const LOOPBACK_CONGESTION: &str = "reno";

/// A connected byte channel, plain or encrypted: one type for its users.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    peer: String,
    tls: Option<Arc<LinkTls>>,
    /// What really carries the bytes, if a thread forwards them.
    carrier: Option<Arc<dyn LinkCarrier>>,
}

/// Carries a link's bytes beyond the link's own socket.
pub trait LinkCarrier: fmt::Debug + Send + Sync {
    /// Whether the connection was lost without being closed.
    fn is_lost(&self) -> bool;

    /// The smoothed round trip to the peer.
    fn round_trip(&self) -> Duration;
}

/// The priority of a link's traffic over other links'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkPriority {
    /// That of other links.
    #[default]
    None,
    /// Before other links: expedited forwarding (RFC 3246).
    First,
    /// After other links, at a limited rate: lower effort (RFC 8622).
    Last {
        /// The highest rate, bytes a second.
        bytes_per_s: u64,
    },
}

/// Why there is no link.
#[derive(Debug)]
pub struct LinkError {
    /// The address that was dialled.
    pub address: String,
    /// The system's error.
    pub source: io::Error,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot connect to {}: {}", self.address, self.source)
    }
}

impl std::error::Error for LinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// How large the segments of a TCP connection may be, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentSize {
    /// What the networks at both ends take; routers on the way say so if they take less.
    #[default]
    OfNetworks,
    /// [`SEGMENT_BYTES_MIN`] at most, for a path that drops larger packets without saying so.
    Bounded,
}

/// Segments of this size pass wherever IPv6 does, whose packets have 1280 bytes at least: 40 are its head, 20 TCP's,
/// and the rest is left for a tunnel within.
pub const SEGMENT_BYTES_MIN: u16 = 1200;

impl Link {
    /// Connects to `address` (`HOST:PORT`), trying each of the host's addresses.
    ///
    /// # Errors
    /// [`LinkError`] with the error of the last address.
    pub fn connect(address: &str, time_max: Duration) -> Result<Self, LinkError> {
        let (fd, peer) = Self::dial(address, time_max, SegmentSize::OfNetworks)?;
        Self::over_tcp(fd, peer).map_err(|source| LinkError { address: address.to_owned(), source })
    }

    /// Connects to `address` without making a link yet; [`Link::over_tcp`] makes it one, possibly in another process.
    ///
    /// # Errors
    /// As [`Link::connect`].
    pub fn dial(address: &str, time_max: Duration, segments: SegmentSize) -> Result<(OwnedFd, SocketAddr), LinkError> {
        let fail = |source| LinkError { address: address.to_owned(), source };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in resolve(address).map_err(fail)? {
            match connect(candidate, time_max, segments) {
                Ok(connection) => return Ok((connection, candidate)),
                Err(error) => last = error,
            }
        }
        Err(fail(last))
    }

    /// Makes a link of a TCP connection and tunes it: no Nagle (U3), and a dead peer is noticed in seconds.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn over_tcp(fd: OwnedFd, peer: SocketAddr) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&fd, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&fd, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&fd, UNACKNOWLEDGED_MS_MAX)?;
        // An older kernel keeps its default.
        let _ = set_retransmission_min(&fd, RETRANSMISSION_MIN);
        if peer.ip().to_canonical().is_loopback() {
            // The system may not allow this choice; then the link is slower.
            let _ = sockopt::set_tcp_congestion(&fd, LOOPBACK_CONGESTION);
        }
        Ok(Self { fd, peer: peer.to_string(), tls: None, carrier: None })
    }

    /// Makes a link of a connected Unix socket.
    pub fn over_local(fd: OwnedFd, peer: &str) -> Self {
        Self { fd, peer: peer.to_owned(), tls: None, carrier: None }
    }

    /// A pair of connected Unix sockets: a link, and the other end for another program or thread.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn pair(peer: &str) -> io::Result<(Self, OwnedFd)> {
        let flags = net::SocketFlags::CLOEXEC;
        let (ours, theirs) = net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
        Ok((Self { fd: ours, peer: peer.to_owned(), tls: None, carrier: None }, theirs))
    }

    /// One end of a pair, whose other end a thread forwards to an encrypted peer. If the connection ended without the
    /// peer closing it, `carrier` reports it lost before the thread closes its end.
    pub fn bridged(fd: OwnedFd, peer: String, carrier: Arc<dyn LinkCarrier>) -> Self {
        Self { fd, peer, tls: None, carrier: Some(carrier) }
    }

    /// Encrypts the link: completes the handshake that `connection` begins.
    ///
    /// # Errors
    /// [`HandshakeFailure`]; the peer has been told why. The link is returned so that the caller can wait until the
    /// peer has read that.
    pub fn encrypt(
        mut self,
        connection: Connection,
        limits: HandshakeLimits,
    ) -> Result<Self, (HandshakeFailure, Self)> {
        let tls = LinkTls::new(connection);
        match tls.shake_hands(&self.fd, limits) {
            Ok(()) => {
                self.tls = Some(Arc::new(tls));
                Ok(self)
            }
            Err(failure) => Err((failure, self)),
        }
    }

    /// Queries the TLS connection: who the peer is, which protocol was agreed. `None` on a plain link.
    pub fn ask_tls<T>(&self, question: impl FnOnce(&Connection) -> T) -> Option<T> {
        self.tls.as_ref().map(|tls| tls.ask(question))
    }

    /// Whether the link is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some() || self.carrier.is_some()
    }

    /// Renames the peer, once it is known who it is.
    pub fn set_peer(&mut self, peer: String) {
        self.peer = peer;
    }

    /// The peer, for people.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The round trip to the peer, as far as the system has measured it; `None` for Unix sockets.
    pub fn round_trip(&self) -> Option<Duration> {
        match &self.carrier {
            Some(carrier) => Some(carrier.round_trip()),
            None => round_trip(&self.fd),
        }
    }

    /// A duplicate of the link, for a thread that may end it.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            fd: self.fd.try_clone()?,
            peer: self.peer.clone(),
            tls: self.tls.clone(),
            carrier: self.carrier.clone(),
        })
    }

    /// Receives what is there, waiting as long as the socket's timeout allows. 0: the peer has ended the link.
    ///
    /// # Errors
    /// The system's error; `WouldBlock` when the timeout has passed. On an encrypted link also `InvalidData` for bytes
    /// that are not the peer's, and `UnexpectedEof` for an end that the peer did not announce.
    pub fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.held_to_its_end(receive_from(&self.fd, to, RecvFlags::empty())),
            Some(tls) => tls.receive(&self.fd, to, RecvFlags::empty()),
        }
    }

    /// Receives what is there without waiting; `None` if nothing is.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub fn try_receive(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(tls) = &self.tls else {
            return would_block_is_none(self.held_to_its_end(receive_from(&self.fd, to, RecvFlags::DONTWAIT)));
        };
        let received = would_block_is_none(tls.receive(&self.fd, to, RecvFlags::DONTWAIT))?;
        if received.is_none() {
            tls.is_drained();
        }
        Ok(received)
    }

    /// For one end of a pair, the carrier's end counts: if the connection went silent, the link is lost, however the
    /// pair's own end reads.
    fn held_to_its_end(&self, passed: io::Result<usize>) -> io::Result<usize> {
        let is_end = match &passed {
            Ok(count) => *count == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        match &self.carrier {
            Some(carrier) if is_end && carrier.is_lost() => Err(io::ErrorKind::TimedOut.into()),
            _ => passed,
        }
    }

    /// The first byte that has arrived, without consuming it; `None` if there is none, or never will be. For plain
    /// links only: on an encrypted link the first message was agreed in the handshake.
    ///
    /// # Errors
    /// The system's error.
    pub fn peek(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let count = would_block_is_none(receive_from(&self.fd, &mut byte, flags))?;
        Ok(count.filter(|count| *count > 0).map(|_| byte[0]))
    }

    /// Whether decrypted bytes may wait here while the socket has none: then try to receive before waiting on the
    /// descriptor. Always false on a plain link.
    pub fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_received())
    }

    /// Sends as much of `runs` as the link takes now; `None` if it takes nothing. An encrypted link may hold bytes that
    /// it took until the socket has room: see [`Link::try_flush`].
    ///
    /// # Errors
    /// The system's error.
    pub fn try_send(&self, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &self.tls {
            None => would_block_is_none(self.held_to_its_end(send_to(&self.fd, runs))),
            Some(tls) => tls.try_send(&self.fd, runs),
        }
    }

    /// Sends bytes that the link holds; returns whether all are sent, which is always so on a plain link. If not, wait
    /// for room to write and try again.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_flush(&self) -> io::Result<bool> {
        match &self.tls {
            None => Ok(true),
            Some(tls) => tls.try_flush(&self.fd),
        }
    }

    /// Limits how long [`Link::receive`] waits.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn set_receive_timeout(&self, time_max: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, time_max)?)
    }

    /// How many bytes have been acknowledged and are queued; `None` if the link is not a TCP connection.
    pub fn progress(&self) -> Option<TcpSendProgress> {
        progress(&self.fd).ok()
    }

    /// What may be on its way at a time; `None` if the link does not count segments: it is not a TCP connection.
    pub fn send_window(&self) -> Option<TcpSendWindow> {
        send_window(&self.fd)
    }

    /// Sets the priority of what is sent, in this host's queues and on the way. A link of another kind ignores it.
    pub fn priority(&self, priority: LinkPriority) {
        let (priority, code_point, pace) = match priority {
            LinkPriority::None => (0, 0, None),
            // Expedited forwarding (RFC 3246), lower effort (RFC 8622).
            LinkPriority::First => (6, 46, None),
            LinkPriority::Last { bytes_per_s } => (1, 1, Some(bytes_per_s)),
        };
        let set = set_class(&self.fd, priority, code_point).and_then(|()| set_pacing(&self.fd, pace));
        if let Err(error) = set {
            tracing::debug!(peer = self.peer, %error, "the link has no class of its own");
        }
    }

    /// Ends the link in both directions; threads that wait on it wake up.
    pub fn shut_down(&self) {
        self.say_farewell();
        // The link is down already, as was asked for.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// Announces that nothing more will be sent; what was sent still arrives.
    pub fn finish_sending(&self) {
        self.say_farewell();
        let _ = net::shutdown(&self.fd, net::Shutdown::Write);
    }

    /// Ends the link in order: sends nothing more, and discards what arrives until the peer has ended the link too, for
    /// `time_max` at most. A peer that ends a link only after it has released what the link held makes this the moment
    /// from which that is free.
    pub fn close_in_order(&self, time_max: Duration) {
        self.finish_sending();
        let clock = BoottimeClock::start();
        let until = clock.now() + time_max;
        let mut discarded = [0; 1 << 12];
        loop {
            let left = until - clock.now();
            if left.is_zero() || self.set_receive_timeout(Some(left)).is_err() {
                return;
            }
            if !matches!(self.receive(&mut discarded), Ok(1..)) {
                return;
            }
        }
    }

    fn say_farewell(&self) {
        if let Some(tls) = &self.tls {
            tls.say_farewell(&self.fd);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The last handle is dropped: the peer must be able to tell a close from a lost link.
        if self.tls.as_ref().is_some_and(|tls| Arc::strong_count(tls) == 1) {
            self.say_farewell();
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn connect(to: SocketAddr, time_max: Duration, segments: SegmentSize) -> io::Result<OwnedFd> {
    if segments == SegmentSize::OfNetworks {
        return Ok(TcpStream::connect_timeout(&to, time_max)?.into());
    }
    let family = if to.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, net::SocketType::STREAM, flags, None)?;
    set_segment_max(&socket, SEGMENT_BYTES_MIN)?;
    match net::connect(&socket, &to) {
        Err(rustix::io::Errno::INPROGRESS) => {
            let mut interests = [PollInterest::room(socket.as_fd())];
            wait(&mut interests, Some(time_max))?;
            if !interests[0].is_ready() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sockopt::socket_error(&socket)??;
        }
        connected => connected?,
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

fn would_block_is_none(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_within_one_machine_is_not_paced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::connect(&listener.local_addr().unwrap().to_string(), Duration::from_secs(5)).unwrap();
        assert_eq!(sockopt::tcp_congestion(&link.fd).unwrap(), LOOPBACK_CONGESTION);
    }

    #[test]
    fn bounded_connection_has_small_segments_in_both_directions_and_its_failure_is_the_systems() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let time_max = Duration::from_secs(60);
        let (near, peer) = Link::dial(&address, time_max, SegmentSize::Bounded).unwrap();
        let far = listener.accept().unwrap().0;
        for end in [near.as_fd(), far.as_fd()] {
            let bytes = crate::sys::tcp::segment_bytes(end).unwrap();
            assert!((500..=u32::from(SEGMENT_BYTES_MIN)).contains(&bytes), "{bytes}");
        }
        let near = Link::over_tcp(near, peer).unwrap();
        drop(far);
        assert_eq!(near.receive(&mut [0; 8]).unwrap(), 0, "it blocks, as any link");
        drop(listener);
        let refused = Link::dial(&address, time_max, SegmentSize::Bounded).unwrap_err();
        assert_eq!(refused.source.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn an_end_and_an_empty_socket_are_told_apart() {
        let (ours, theirs) = Link::pair("test").unwrap();
        let mut space = [0; 8];
        assert_eq!(ours.try_receive(&mut space).unwrap(), None);
        let other = Link { fd: theirs, peer: String::new(), tls: None, carrier: None };
        assert_eq!(other.try_send(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), Some(3));
        assert_eq!(ours.receive(&mut space).unwrap(), 3);
        other.shut_down();
        assert_eq!(ours.try_receive(&mut space).unwrap(), Some(0));
        assert!(ours.try_send(&[IoSlice::new(b"x")]).is_err(), "and no signal kills us");
    }
}
