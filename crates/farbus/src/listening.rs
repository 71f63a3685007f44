//! A socket that is listened at, and who may connect there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use farbus_io::link::{Connection, Interest, Listener, Wake, wait};

use crate::allow::Network;

/// One address that is listened at.
pub struct Listening {
    listener: Listener,
    address: SocketAddr,
    /// Who may connect; `None` is everybody.
    allowed: Mutex<Option<Vec<Network>>>,
    is_closed: AtomicBool,
    wake: Wake,
}

impl Listening {
    /// Listens on a socket, for those who are `allowed` (`None`: everybody).
    ///
    /// # Errors
    /// What the system says of the socket.
    pub fn new(listener: Listener, allowed: Option<Vec<Network>>) -> io::Result<Self> {
        let address = listener.address()?;
        let (allowed, is_closed, wake) = (Mutex::new(allowed), AtomicBool::new(false), Wake::new()?);
        Ok(Self { listener, address, allowed, is_closed, wake })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Whether nobody is let in any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether this address may connect.
    pub fn admits(&self, address: IpAddr) -> bool {
        let allowed = self.allowed.lock().expect("no listener panics");
        allowed.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(address)))
    }

    /// Who may connect from now on.
    pub fn allow(&self, allowed: Option<Vec<Network>>) {
        *self.allowed.lock().expect("no listener panics") = allowed;
    }

    /// Waits until somebody connects, or it is closed.
    ///
    /// # Errors
    /// What the system says: [`io::ErrorKind::WouldBlock`] if it was for nothing.
    pub fn accept(&self) -> io::Result<Connection> {
        let mut interests = [Interest::new(self.listener.as_fd(), false), Interest::new(self.wake.as_fd(), false)];
        // Whatever is wrong with the socket, the next call says.
        let _ = wait(&mut interests, None);
        self.listener.accept()
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.listener.shut_down();
        self.wake.wake();
    }
}
