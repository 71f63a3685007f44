//! A TCP listener.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::stream::Link;

/// A listening TCP socket.
#[derive(Debug)]
pub struct TcpLinkListener {
    socket: TcpListener,
    /// Whether another process listens at the same socket, and continues when this one ends.
    is_passed: bool,
}

/// The address as people write it: a peer has its IPv4 address also at a socket that serves IPv4 and IPv6.
pub fn plain_address(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // The zone of a link-local address stays.
        IpAddr::V6(_) => address,
    }
}

/// An accepted connection.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The link to it.
    pub link: Link,
    /// The peer's address.
    pub from: SocketAddr,
}

impl TcpLinkListener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: TcpListener::bind(address)?, is_passed: false })
    }

    /// Wraps a listening socket that belongs to this process alone.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket: socket.into(), is_passed: false }
    }

    /// Wraps a listening socket that its original owner keeps, too.
    pub fn passed(socket: TcpListener) -> Self {
        Self { socket, is_passed: true }
    }

    /// Whether the socket's original owner keeps it.
    pub fn is_passed(&self) -> bool {
        self.is_passed
    }

    /// The address where it really listens.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// A duplicate, for a thread that may end it.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, is_passed: self.is_passed })
    }

    /// Stops listening; a thread that waits in [`TcpLinkListener::accept`] wakes up with an error. A socket whose
    /// original owner keeps it is left as it is, for that owner's next process.
    pub fn shut_down(&self) {
        if !self.is_passed {
            // The socket is down already, as was asked for.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Makes [`TcpLinkListener::accept`] fail with `WouldBlock` instead of waiting, for a thread that waits on more
    /// than this.
    ///
    /// # Errors
    /// The system's error.
    pub fn never_wait(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// Waits for the next peer.
    ///
    /// # Errors
    /// The system's error, for example that there are no more descriptors.
    pub fn accept(&self) -> io::Result<AcceptedConnection> {
        let (stream, from) = self.socket.accept()?;
        let from = plain_address(from);
        Ok(AcceptedConnection { link: Link::over_tcp(stream.into(), from)?, from })
    }
}

impl AsFd for TcpLinkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
