//! A socket that is listened at, and who may connect there.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use farbus_io::link::{Interest, Link, Listener, Wake, wait};
use farbus_io::trust::QuicServer;

use crate::common::socket_place::{Origin, Place, SocketListener};
use crate::exporter::access::networks::Network;

/// One place that is listened at.
pub struct Listening {
    listener: SocketListener,
    place: Place,
    /// From which addresses others may connect; `None` is everybody. Who may connect to a socket its mode says.
    allowed: Mutex<Option<Vec<Network>>>,
    is_closed: AtomicBool,
    wake: Wake,
    /// What serves datagrams at the same port.
    beside: OnceLock<QuicServer>,
}

impl Listening {
    /// Listens at an entrance that never waits, for those who are `allowed` (`None`: everybody).
    ///
    /// # Errors
    /// What the system says of the socket.
    pub fn new(listener: SocketListener, allowed: Option<Vec<Network>>) -> io::Result<Self> {
        let place = listener.place()?;
        let (allowed, is_closed, wake) = (Mutex::new(allowed), AtomicBool::new(false), Wake::new()?);
        Ok(Self { listener, place, allowed, is_closed, wake, beside: OnceLock::new() })
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether nobody is let in any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether who comes from there may connect.
    pub fn admits(&self, from: Origin) -> bool {
        // Whoever could connect to a socket has shown by that that it may.
        let Origin::Address(address) = from else { return true };
        let allowed = self.allowed.lock().expect("no listener panics");
        allowed.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(address.ip())))
    }

    /// Who may connect from now on.
    pub fn allow(&self, allowed: Option<Vec<Network>>) {
        *self.allowed.lock().expect("no listener panics") = allowed;
    }

    /// Waits until somebody connects, or it is closed.
    ///
    /// # Errors
    /// What the system says: [`io::ErrorKind::WouldBlock`] if it was for nothing.
    pub fn accept(&self) -> io::Result<(Link, Origin)> {
        let mut interests = [Interest::new(self.listener.as_fd(), false), Interest::new(self.wake.as_fd(), false)];
        // Whatever is wrong with the socket, the next call says.
        let _ = wait(&mut interests, None);
        if self.is_closed() {
            // What comes now is for whoever the socket was handed over to.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.listener.accept()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// What is served beside it ends with it.
    pub fn accompany(&self, server: QuicServer) {
        // One port has one.
        let _ = self.beside.set(server);
    }

    /// Lets nobody in any more here; another process does, at the same socket.
    pub fn hand_over(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.beside.get().inspect(|server| server.close());
        self.wake.wake();
    }

    /// Lets nobody in any more.
    pub fn close(&self) {
        self.listener.shut_down();
        self.hand_over();
    }
}

/// All places that are listened at.
#[derive(Default)]
pub struct Addresses(Mutex<Vec<Arc<Listening>>>);

impl Addresses {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Listening>>> {
        self.0.lock().expect("no listener panics")
    }

    /// One more.
    pub(crate) fn add(&self, listening: Arc<Listening>) {
        self.all().push(listening);
    }

    /// Who may connect to `place` from now on; connections that are there stay. `None`: everybody.
    pub fn allow(&self, place: &Place, allowed: Option<Vec<Network>>) {
        for listening in self.all().iter().filter(|listening| listening.place() == place) {
            listening.allow(allowed.clone());
        }
    }

    /// Listens at `place` no more; connections that came through it stay.
    pub fn close(&self, place: &Place) {
        let is_it = |listening: &mut Arc<Listening>| listening.place() == place;
        self.all().extract_if(.., is_it).for_each(|listening| listening.close());
    }

    /// Listens nowhere any more.
    pub(crate) fn close_all(&self) {
        self.all().drain(..).for_each(|listening| listening.close());
    }

    /// Another handle on the socket that is listened at, for another process. `None` of one with a path, which goes
    /// with its process.
    ///
    /// # Errors
    /// `NotFound` if nobody listens there; if the system has no more descriptors.
    pub fn listener(&self, place: &Place) -> io::Result<Option<Listener>> {
        let all = self.all();
        let listening = all.iter().find(|listening| listening.place() == place);
        match &listening.ok_or(io::ErrorKind::NotFound)?.listener {
            SocketListener::Tcp(listener) => listener.try_clone().map(Some),
            SocketListener::Local(_) => Ok(None),
        }
    }

    /// Lets nobody in any more, at sockets that another process has: whoever comes is its guest.
    pub fn hand_over(&self) {
        self.all().drain(..).for_each(|listening| listening.hand_over());
    }
}
