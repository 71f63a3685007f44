//! Access to a device in a session, for a blocking caller.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use farbus_host::{Port, PortError};
use farbus_io_net::link::Link;
use farbus_model::{BufferPool, Completions, Device, Done, Instant, Limits, Payload, Urb, UrbId};
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::End;

use crate::importer::session::connection::Linked;

/// A port over a session. The thread that drives the device owns it nearly all the time; a watcher looks after it while
/// no request is under way, so that a link which is lost then is replaced all the same.
pub struct SessionPort {
    inner: Arc<Mutex<Inner>>,
    /// Completed requests of this handle's user, to be taken without a lock.
    done: Completions,
}

struct Inner {
    linked: Linked<RemoteUsb>,
    /// Requests that completed while a watcher looked after the session: the user takes them before later ones.
    seen: Completions,
}

impl Clone for SessionPort {
    fn clone(&self) -> Self {
        Self::over(Arc::clone(&self.inner))
    }
}

/// What a watcher found.
pub enum Seen {
    /// A thread drives the device, and looks after the session.
    Busy,
    /// The session has this link; wait for its end.
    Linked(Link),
    /// It has no link, and a new one is being made.
    Unlinked,
    /// It ended.
    Ended(End),
}

impl fmt::Debug for SessionPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionPort")
    }
}

impl SessionPort {
    /// A port over an open device.
    pub fn new(linked: Linked<RemoteUsb>) -> Self {
        Self::over(Arc::new(Mutex::new(Inner { linked, seen: completions() })))
    }

    fn over(inner: Arc<Mutex<Inner>>) -> Self {
        Self { inner, done: completions() }
    }

    /// The device, for another way to use it.
    ///
    /// # Panics
    /// If there is another handle.
    pub fn into_linked(self) -> Linked<RemoteUsb> {
        let inner = Arc::into_inner(self.inner).expect("no other handle is left");
        inner.into_inner().unwrap_or_else(PoisonError::into_inner).linked
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The device, and where its completed requests go.
    fn parts(&mut self) -> (MutexGuard<'_, Inner>, &mut Completions) {
        let mut inner = lock(&self.inner);
        while let Some(seen) = inner.seen.pop() {
            self.done.push(seen);
        }
        (inner, &mut self.done)
    }

    /// Asks the device something.
    pub fn ask<T>(&self, question: impl FnOnce(&Linked<RemoteUsb>) -> T) -> T {
        question(&self.inner().linked)
    }

    /// Looks after the session if no thread drives the device; does not wait for one that does.
    pub fn look(&self) -> Seen {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Seen::Busy,
        };
        let Inner { linked, seen } = &mut *inner;
        linked.turn(seen);
        match (linked.end(), linked.link()) {
            (Some(end), _) => Seen::Ended(end.clone()),
            (None, Ok(Some(link))) => Seen::Linked(link),
            // No descriptor is left to watch the link: treat it as lost, since the session is looked at again soon.
            (None, Ok(None) | Err(_)) => Seen::Unlinked,
        }
    }

    /// Gives the device back.
    pub fn close(&self) {
        let Inner { linked, seen } = &mut *self.inner();
        linked.close(seen);
        while seen.pop().is_some() {}
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn completions() -> Completions {
    Completions::new(BufferPool::new(Limits::DEFAULT.pool_bytes))
}

impl Port for SessionPort {
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

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
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
                return Err(PortError::World(end.message.clone()));
            }
            if linked.remote().in_flight() == 0 && until.is_none() {
                linked.turn(done);
                return if done.is_empty() { Err(PortError::Idle) } else { Ok(done.pop()) };
            }
            linked.wait(until).map_err(|error| PortError::World(error.to_string()))?;
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
