//! One connected stream socket, TCP or Unix.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

/// How long a peer may leave sent bytes unacknowledged before the link counts as lost (RFC 5482): longer than a
/// retransmission after 2 s of silence, short enough that a dead peer's device is free within 5 s (U11).
const UNACKNOWLEDGED_MS_MAX: u32 = 4_000;
/// An idle link is probed after this long, this often, and lost after so many silent probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;

/// A connected byte channel.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    peer: String,
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
        let fail = |source| LinkError { address: address.to_owned(), source };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for candidate in address.to_socket_addrs().map_err(fail)? {
            match TcpStream::connect_timeout(&candidate, time_max) {
                Ok(stream) => return Self::over_tcp(stream.into(), candidate).map_err(fail),
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
        Ok(Self { fd, peer: peer.to_string() })
    }

    /// A pair of connected Unix sockets: a link, and the other end for somebody else.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn pair(peer: &str) -> io::Result<(Self, OwnedFd)> {
        let flags = net::SocketFlags::CLOEXEC;
        let (ours, theirs) = net::socketpair(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None)?;
        Ok((Self { fd: ours, peer: peer.to_owned() }, theirs))
    }

    /// The peer, as people write it.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// A second handle on the same link, for a thread that may end it.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, peer: self.peer.clone() })
    }

    /// Receives what is there, waiting for it as the socket's timeout allows. 0: the peer has ended.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` when the timeout passed.
    pub fn receive(&self, to: &mut [u8]) -> io::Result<usize> {
        self.receive_with(to, RecvFlags::empty())
    }

    /// Receives what is there without waiting; `None` if nothing is.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_receive(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        would_block_is_none(self.receive_with(to, RecvFlags::DONTWAIT))
    }

    fn receive_with(&self, to: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        loop {
            match net::recv(&self.fd, &mut *to, flags) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends as much of `runs` as the socket takes now; `None` if it takes nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_send(&self, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let sent = match runs {
                // One run is what most small replies are, and the kernel has less to copy for it.
                [run] => net::send(&self.fd, run, flags),
                _ => net::sendmsg(&self.fd, runs, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(errno) => return would_block_is_none(Err(errno.into())),
            }
        }
    }

    /// Limits how long [`Link::receive`] waits.
    ///
    /// # Errors
    /// If the socket refuses.
    pub fn set_receive_timeout(&self, time_max: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, time_max)?)
    }

    /// Ends the link in both directions; whoever waits on it wakes up.
    pub fn shut_down(&self) {
        // A link that is already down is what was asked for.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// Says that nothing more will be sent; what was sent still arrives.
    pub fn finish_sending(&self) {
        let _ = net::shutdown(&self.fd, net::Shutdown::Write);
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
    fn an_end_and_an_empty_socket_are_told_apart() {
        let (ours, theirs) = Link::pair("test").unwrap();
        let mut space = [0; 8];
        assert_eq!(ours.try_receive(&mut space).unwrap(), None);
        let other = Link { fd: theirs, peer: String::new() };
        assert_eq!(other.try_send(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap(), Some(3));
        assert_eq!(ours.receive(&mut space).unwrap(), 3);
        other.shut_down();
        assert_eq!(ours.try_receive(&mut space).unwrap(), Some(0));
        assert!(ours.try_send(&[IoSlice::new(b"x")]).is_err(), "and no signal kills us");
    }
}
