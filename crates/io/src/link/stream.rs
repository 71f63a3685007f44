//! One connected stream socket, TCP or Unix, bare or encrypted.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, RecvFlags, sockopt};
use rustls::Connection;

use super::socket::{receive_from, send_to};
use super::tls::{HandshakeFailure, HandshakeLimits, Tls};
use crate::sys::tcp::{Progress, progress, round_trip, set_class, set_pacing, set_retransmission_min};

/// How long a peer may leave sent bytes unacknowledged before the link counts as lost (RFC 5482): longer than a
/// retransmission after 2 s of silence, short enough that a dead peer's device is free within 5 s (U11).
const UNACKNOWLEDGED_MS_MAX: u32 = 4_000;
/// An idle link is probed after this long, this often, and lost after so many silent probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
/// Beyond its usual round trip, what is unacknowledged for so long is sent again. Longer than a receiver of Linux's
/// puts an acknowledgement off (40 ms), and a quarter of Linux's default, which a key press lost in a crowd on the link
/// would wait.
const RETRANSMISSION_MIN: Duration = Duration::from_millis(50);
/// Within one machine there is no path to find out about. Where BBR is the default it paces what is sent even there, by
/// a timer: large transfers then have a third of their rate. Every kernel has this one.
const LOOPBACK_CONGESTION: &str = "reno";

/// A connected byte channel, bare or encrypted: one type to its users.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    peer: String,
    tls: Option<Arc<Tls>>,
    /// What really carries it, if a thread bridges it to that.
    carrier: Option<Arc<dyn Carrier>>,
}

/// What carries a link's bytes beyond the socket that it is here.
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Whether it was lost without a farewell.
    fn is_lost(&self) -> bool;

    /// The round trip to the peer, smoothed.
    fn round_trip(&self) -> Duration;
}

/// How a link stands among others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkPriority {
    /// As they do.
    #[default]
    None,
    /// Before them.
    First,
    /// Behind them.
    Last {
        /// And no faster than this.
        bytes_per_s: u64,
    },
}

/// Why there is no link.
#[derive(Debug)]
pub struct LinkError {
    /// To whom.
    pub address: String,
    /// What the system said.
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

impl Link {
    /// Connects to `address` (`HOST:PORT`), trying each of the host's addresses.
    ///
    /// # Errors
    /// [`LinkError`] with what the last address said.
    pub fn connect(address: &str, time_max: Duration) -> Result<Self, LinkError> {
        let (fd, peer) = Self::dial(address, time_max)?;
        Self::over_tcp(fd, peer).map_err(|source| LinkError { address: address.to_owned(), source })
    }

    /// A connection to `address` that is no link yet; [`Link::over_tcp`] makes it one, in another process perhaps.
    ///
    /// # Errors
    /// As [`Link::connect`].
    pub fn dial(address: &str, time_max: Duration) -> Result<(OwnedFd, SocketAddr), LinkError> {
        let fail = |source| LinkError { address: address.to_owned(), source };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs().map_err(fail)? {
            match TcpStream::connect_timeout(&candidate, time_max) {
                Ok(stream) => return Ok((stream.into(), candidate)),
                Err(error) => last = error,
            }
        }
        Err(fail(last))
    }

    /// A TCP connection, tuned: no Nagle (U3), and a dead peer is noticed in seconds.
    ///
    /// # Errors
    /// If the socket refuses an option.
    pub fn over_tcp(fd: OwnedFd, peer: SocketAddr) -> io::Result<Self> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&fd, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&fd, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&fd, UNACKNOWLEDGED_MS_MAX)?;
        // An older kernel has its own idea of it.
        let _ = set_retransmission_min(&fd, RETRANSMISSION_MIN);
        if peer.ip().to_canonical().is_loopback() {
            // A system may not let everybody choose; then it is slower.
            let _ = sockopt::set_tcp_congestion(&fd, LOOPBACK_CONGESTION);
        }
        Ok(Self { fd, peer: peer.to_string(), tls: None, carrier: None })
    }

    /// A connected Unix socket, whoever connected it.
    pub fn over_local(fd: OwnedFd, peer: &str) -> Self {
        Self { fd, peer: peer.to_owned(), tls: None, carrier: None }
    }

    /// A pair of connected Unix sockets: a link, and the other end for somebody else.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn pair(peer: &str) -> io::Result<(Self, OwnedFd)> {
        let flags = net::SocketFlags::CLOEXEC;
        let (ours, theirs) = net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
        Ok((Self { fd: ours, peer: peer.to_owned(), tls: None, carrier: None }, theirs))
    }

    /// One end of a pair, whose other end a thread carries to an encrypted peer and back. It is lost before that closes
    /// its end if the peer did not end it.
    pub fn bridged(fd: OwnedFd, peer: String, carrier: Arc<dyn Carrier>) -> Self {
        Self { fd, peer, tls: None, carrier: Some(carrier) }
    }

    /// The same link encrypted, once the handshake that `connection` begins has come to its end.
    ///
    /// # Errors
    /// [`HandshakeFailure`]; the peer has been told why, and the link is given back for whoever may yet wait until it has
    /// read that.
    pub fn encrypt(
        mut self,
        connection: Connection,
        limits: HandshakeLimits,
    ) -> Result<Self, (HandshakeFailure, Self)> {
        let tls = Tls::new(connection);
        match tls.shake_hands(&self.fd, limits) {
            Ok(()) => {
                self.tls = Some(Arc::new(tls));
                Ok(self)
            }
            Err(failure) => Err((failure, self)),
        }
    }

    /// Something of the TLS connection: who the peer is, which protocol was agreed. `None` on a bare link.
    pub fn ask_tls<T>(&self, question: impl FnOnce(&Connection) -> T) -> Option<T> {
        self.tls.as_ref().map(|tls| tls.ask(question))
    }

    /// Whether what is said on it can be read by others.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some() || self.carrier.is_some()
    }

    /// Gives the peer another name: who it is, once that is known.
    pub fn set_peer(&mut self, peer: String) {
        self.peer = peer;
    }

    /// The peer, as people write it.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The round trip to the peer, as far as the system has measured it; within one machine's sockets there is none.
    pub fn round_trip(&self) -> Option<Duration> {
        match &self.carrier {
            Some(carrier) => Some(carrier.round_trip()),
            None => round_trip(&self.fd),
        }
    }

    /// A second handle on the same link, for a thread that may end it.
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

    /// Receives what is there, waiting for it as the socket's timeout allows. 0: the peer has ended.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` when the timeout passed. On an encrypted link also `InvalidData` for bytes
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

    /// The end of a pair is what ended its carrier: one that fell silent was lost, however the pair's own end reads.
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

    /// The first byte that arrived, left where it is; `None` if there is none, or there never will be. Of a bare link
    /// only: what an encrypted one says first was agreed before.
    ///
    /// # Errors
    /// What the system says.
    pub fn peek(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let count = would_block_is_none(receive_from(&self.fd, &mut byte, flags))?;
        Ok(count.filter(|count| *count > 0).map(|_| byte[0]))
    }

    /// Whether received bytes may wait in here while the socket is quiet: then try to receive before waiting on the
    /// descriptor. Never so on a bare link.
    pub fn has_received(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_received())
    }

    /// Sends as much of `runs` as the link takes now; `None` if it takes nothing. An encrypted link may keep what it
    /// took until the socket has room: see [`Link::try_flush`].
    ///
    /// # Errors
    /// What the system says.
    pub fn try_send(&self, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &self.tls {
            None => would_block_is_none(self.held_to_its_end(send_to(&self.fd, runs))),
            Some(tls) => tls.try_send(&self.fd, runs),
        }
    }

    /// Sends what was taken and kept; whether everything is out. Always so on a bare link. While not, wait for room to
    /// write and try again.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_flush(&self) -> io::Result<bool> {
        match &self.tls {
            None => Ok(true),
            Some(tls) => tls.try_flush(&self.fd),
        }
    }

    /// Limits how long [`Link::receive`] waits.
    ///
    /// # Errors
    /// If the socket refuses.
    pub fn set_receive_timeout(&self, time_max: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, time_max)?)
    }

    /// How far it has come; none of what is no TCP connection of its own.
    pub fn progress(&self) -> Option<Progress> {
        progress(&self.fd).ok()
    }

    /// What is sent goes before all else in this host's queues and on the way, or behind all else and no faster than
    /// this, bytes a second. A link that knows no such thing goes on as it was.
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

    /// Ends the link in both directions; whoever waits on it wakes up.
    pub fn shut_down(&self) {
        self.say_farewell();
        // A link that is already down is what was asked for.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// Says that nothing more will be sent; what was sent still arrives.
    pub fn finish_sending(&self) {
        self.say_farewell();
        let _ = net::shutdown(&self.fd, net::Shutdown::Write);
    }

    fn say_farewell(&self) {
        if let Some(tls) = &self.tls {
            tls.say_farewell(&self.fd);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The last handle: the peer is to know this from a cut.
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
    fn what_stays_in_the_machine_is_not_paced() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::connect(&listener.local_addr().unwrap().to_string(), Duration::from_secs(5)).unwrap();
        assert_eq!(sockopt::tcp_congestion(&link.fd).unwrap(), LOOPBACK_CONGESTION);
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
