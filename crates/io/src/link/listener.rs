//! Where peers arrive.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::stream::Link;

/// A listening TCP socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// Somebody else listens at it too, and goes on when we end.
    is_passed: bool,
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
        Ok(Self { socket: TcpListener::bind(address)?, is_passed: false })
    }

    /// A socket that listens already and is ours alone.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket: socket.into(), is_passed: false }
    }

    /// A socket that listens already and that whoever passed it keeps.
    pub fn passed(socket: TcpListener) -> Self {
        Self { socket, is_passed: true }
    }

    /// Whether whoever passed it keeps it.
    pub fn is_passed(&self) -> bool {
        self.is_passed
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
        Ok(Self { socket: self.socket.try_clone()?, is_passed: self.is_passed })
    }

    /// Listens no more; whoever waits in [`Listener::accept`] wakes up with an error. A socket that was passed is left
    /// as it is: its owner has it for whoever comes after us.
    pub fn shut_down(&self) {
        if !self.is_passed {
            // A socket that is down already is what was asked for.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Lets [`Listener::accept`] fail with `WouldBlock` instead of waiting, for whoever waits on more than this.
    ///
    /// # Errors
    /// What the system says.
    pub fn never_wait(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
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
