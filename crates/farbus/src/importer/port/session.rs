//! Access to a device in a session, for a blocking caller.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use farbus_host::{HostPort, HostPortError};
use farbus_io_net::link::Link;
use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Payload, SessionLimits, Urb, UrbCompletion, UrbId};
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::AttachmentEndNotice;

use crate::importer::session::connection::LinkedDevice;

/// A port over a session. The thread that drives the device owns it nearly all the time; a watcher looks after it while
/// no request is under way, so that a link which is lost then is replaced all the same.
pub struct SessionPort {
    inner: Arc<Mutex<SessionPortInner>>,
    /// Completed requests of this handle's user, to be taken without a lock.
    done: CompletionQueue,
}

struct SessionPortInner {
    linked: LinkedDevice<RemoteUsb>,
    /// Requests that completed while a watcher looked after the session: the user takes them before later ones.
    seen: CompletionQueue,
}

impl Clone for SessionPort {
    fn clone(&self) -> Self {
        Self::over(Arc::clone(&self.inner))
    }
}

/// What a watcher found.
pub enum PortWatchOutcome {
    /// A thread drives the device, and looks after the session.
    Busy,
    /// The session has this link; wait for its end.
    Linked(Link),
    /// It has no link, and a new one is being made.
    Unlinked,
    /// The attachment ended, for this reason; the session is over.
    Ended(AttachmentEndNotice),
}

impl fmt::Debug for SessionPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionPort")
    }
}

impl SessionPort {
    /// A port over an open device.
    pub fn new(linked: LinkedDevice<RemoteUsb>) -> Self {
        Self::over(Arc::new(Mutex::new(SessionPortInner { linked, seen: completions() })))
    }

    fn over(inner: Arc<Mutex<SessionPortInner>>) -> Self {
        Self { inner, done: completions() }
    }

    /// The device, for another way to use it.
    ///
    /// # Panics
    /// If there is another handle.
    pub fn into_linked(self) -> LinkedDevice<RemoteUsb> {
        let inner = Arc::into_inner(self.inner).expect("no other handle is left");
        inner.into_inner().unwrap_or_else(PoisonError::into_inner).linked
    }

    fn inner(&self) -> MutexGuard<'_, SessionPortInner> {
        lock(&self.inner)
    }

    /// The device, and where its completed requests go.
    fn parts(&mut self) -> (MutexGuard<'_, SessionPortInner>, &mut CompletionQueue) {
        let mut inner = lock(&self.inner);
        while let Some(seen) = inner.seen.pop() {
            self.done.push(seen);
        }
        (inner, &mut self.done)
    }

    /// Asks the device something.
    pub fn ask<T>(&self, question: impl FnOnce(&LinkedDevice<RemoteUsb>) -> T) -> T {
        question(&self.inner().linked)
    }

    /// Looks after the session if no thread drives the device; does not wait for one that does.
    pub fn look(&self) -> PortWatchOutcome {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return PortWatchOutcome::Busy,
        };
        let SessionPortInner { linked, seen } = &mut *inner;
        linked.turn(seen);
        match (linked.end(), linked.link()) {
            (Some(end), _) => PortWatchOutcome::Ended(end.clone()),
            (None, Ok(Some(link))) => PortWatchOutcome::Linked(link),
            // No descriptor is left to watch the link: treat it as lost, since the session is looked at again soon.
            (None, Ok(None) | Err(_)) => PortWatchOutcome::Unlinked,
        }
    }

    /// Gives the device back.
    pub fn close(&self) {
        let SessionPortInner { linked, seen } = &mut *self.inner();
        linked.close(seen);
        while seen.pop().is_some() {}
    }
}

fn lock(inner: &Mutex<SessionPortInner>) -> MutexGuard<'_, SessionPortInner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn completions() -> CompletionQueue {
    CompletionQueue::new(BufferPool::new(SessionLimits::DEFAULT.pool_bytes))
}

impl HostPort for SessionPort {
    fn submit(&mut self, urb: Urb) {
        let (mut inner, done) = self.parts();
        let linked = &mut inner.linked;
        linked.submit(linked.clock().now(), urb.launch(), done);
    }

    fn cancel(&mut self, id: UrbId) {
        let (mut inner, done) = self.parts();
        let linked = &mut inner.linked;
        linked.cancel(linked.clock().now(), id, done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        if let Some(done) = self.done.pop() {
            return Ok(Some(done));
        }
        let (mut inner, done) = self.parts();
        let linked = &mut inner.linked;
        loop {
            if let Some(done) = done.pop() {
                return Ok(Some(done));
            }
            if let Some(end) = linked.end() {
                return Err(HostPortError::World(end.message.clone()));
            }
            if linked.remote().in_flight() == 0 && until.is_none() {
                linked.turn(done);
                return if done.is_empty() { Err(HostPortError::Idle) } else { Ok(done.pop()) };
            }
            linked.wait(until).map_err(|error| HostPortError::World(error.to_string()))?;
            linked.turn(done);
            if until.is_some_and(|until| linked.clock().now() >= until) {
                return Ok(done.pop());
            }
        }
    }

    fn now(&self) -> Instant {
        self.inner().linked.clock().now()
    }

    fn recycle(&mut self, payload: Payload) {
        self.done.pool.recycle(payload);
    }
}
