//! A listening socket and the networks that may connect to it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use farbus_io_net::link::{Link, PollInterest, TcpLinkListener, ThreadWaker, wait};
use farbus_io_net::trust::QuicServer;

use crate::common::networks::IpNetwork;
use crate::common::ordered_mutex::{ALONE, OrderedGuard, OrderedMutex};
use crate::common::socket_place::{ConnectionOrigin, SocketListener, SocketLocation};

/// One listening socket.
pub struct ExporterListener {
    listener: SocketListener,
    location: SocketLocation,
    /// Networks that may connect; `None` allows all. A Unix socket is protected by its file mode instead.
    allowed: Mutex<Option<Vec<IpNetwork>>>,
    is_closed: AtomicBool,
    wake: ThreadWaker,
    /// The QUIC server at the same port, if there is one.
    beside: OnceLock<QuicServer>,
}

impl ExporterListener {
    /// Listens on a non-blocking socket, for the networks in `allowed` (`None`: all).
    ///
    /// # Errors
    /// The socket's address cannot be read, or the system has no more descriptors.
    pub fn new(listener: SocketListener, allowed: Option<Vec<IpNetwork>>) -> io::Result<Self> {
        let location = listener.location()?;
        let (allowed, is_closed, wake) = (Mutex::new(allowed), AtomicBool::new(false), ThreadWaker::new()?);
        Ok(Self { listener, location, allowed, is_closed, wake, beside: OnceLock::new() })
    }

    /// The address or path of the socket.
    pub fn location(&self) -> &SocketLocation {
        &self.location
    }

    /// Whether the socket accepts no more connections.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether a peer from this origin may connect.
    pub fn admits(&self, from: ConnectionOrigin) -> bool {
        // The file mode of a Unix socket has admitted the peer already.
        let ConnectionOrigin::Address(address) = from else { return true };
        let allowed = self.allowed.lock().expect("no listener panics");
        allowed.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(address.ip())))
    }

    /// Sets which networks may connect from now on.
    pub fn allow(&self, allowed: Option<Vec<IpNetwork>>) {
        *self.allowed.lock().expect("no listener panics") = allowed;
    }

    /// Waits until a peer connects or the listener is closed.
    ///
    /// # Errors
    /// The error of the system; [`io::ErrorKind::WouldBlock`] if there is no connection, or the listener was closed.
    pub fn accept(&self) -> io::Result<(Link, ConnectionOrigin)> {
        let mut interests =
            [PollInterest::new(self.listener.as_fd(), false), PollInterest::new(self.wake.as_fd(), false)];
        // The next call on the socket reports its error.
        let _ = wait(&mut interests, None);
        if self.is_closed() {
            // Connections from now on belong to the process that took over the socket.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.listener.accept()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Binds a QUIC server to this listener: it closes when the listener does.
    pub fn accompany(&self, server: QuicServer) {
        // A port has one such server.
        let _ = self.beside.set(server);
    }

    /// Stops accepting here without closing the socket, because another process accepts on it.
    pub fn hand_over(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.beside.get().inspect(|server| server.close());
        self.wake.wake();
    }

    /// Closes the socket and stops accepting.
    pub fn close(&self) {
        self.listener.shut_down();
        self.hand_over();
    }
}

/// All listening sockets.
#[derive(Default)]
pub struct ExporterListenerSet(OrderedMutex<Vec<Arc<ExporterListener>>, ALONE>);

impl ExporterListenerSet {
    #[track_caller]
    fn all(&self) -> OrderedGuard<'_, Vec<Arc<ExporterListener>>, ALONE> {
        self.0.lock().expect("no listener panics")
    }

    /// Adds a listening socket.
    pub(crate) fn add(&self, listening: Arc<ExporterListener>) {
        self.all().push(listening);
    }

    /// Sets which networks may connect to `place` (`None`: all). Existing connections stay.
    pub fn allow(&self, location: &SocketLocation, allowed: Option<Vec<IpNetwork>>) {
        for listening in self.all().iter().filter(|listening| listening.location() == location) {
            listening.allow(allowed.clone());
        }
    }

    /// Stops listening at `place`. Existing connections stay.
    pub fn close(&self, location: &SocketLocation) {
        let is_it = |listening: &mut Arc<ExporterListener>| listening.location() == location;
        self.all().extract_if(.., is_it).for_each(|listening| listening.close());
    }

    /// Closes all listening sockets.
    pub(crate) fn close_all(&self) {
        self.all().drain(..).for_each(|listening| listening.close());
    }

    /// Duplicates the listening socket at `place` for another process. Returns `None` for a Unix socket, which ends
    /// with its process.
    ///
    /// # Errors
    /// `NotFound` if there is no listener at `place`; otherwise the system has no more descriptors.
    pub fn listener(&self, location: &SocketLocation) -> io::Result<Option<TcpLinkListener>> {
        let all = self.all();
        let listening = all.iter().find(|listening| listening.location() == location);
        match &listening.ok_or(io::ErrorKind::NotFound)?.listener {
            SocketListener::Tcp(listener) => listener.try_clone().map(Some),
            SocketListener::Local(_) => Ok(None),
        }
    }

    /// Stops accepting on all sockets without closing them, because another process accepts on them.
    pub fn hand_over(&self) {
        self.all().drain(..).for_each(|listening| listening.hand_over());
    }
}
