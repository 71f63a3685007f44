//! Where peers arrive.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use super::stream::Link;

/// A listening TCP socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

/// A peer that has arrived.
#[derive(Debug)]
pub struct Connection {
    /// The link to it.
    pub link: Link,
    /// Whence.
    pub from: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: TcpListener::bind(address)? })
    }

    /// A socket that listens already.
    pub fn over(socket: TcpListener) -> Self {
        Self { socket }
    }

    /// Where it really listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// A second handle on the same socket, for a thread that may end it.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()? })
    }

    /// Listens no more; whoever waits in [`Listener::accept`] wakes up with an error.
    pub fn shut_down(&self) {
        // A socket that is down already is what was asked for.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Waits for the next peer.
    ///
    /// # Errors
    /// What the system says: running out of descriptors among it.
    pub fn accept(&self) -> io::Result<Connection> {
        let (stream, from) = self.socket.accept()?;
        Ok(Connection { link: Link::over_tcp(stream.into(), from)?, from })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
