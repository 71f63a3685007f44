//! The way to a device behind a session, for a blocking caller.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use farbus_host::{Port, PortError};
use farbus_io::link::Link;
use farbus_model::{BufferPool, Completions, Device, Done, Instant, Limits, Payload, Urb, UrbId};
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::End;

use crate::linked::Linked;

/// A port over a session. Whoever drives the device has it nearly all the time; a watcher sees to it while nobody asks anything, so
/// that a link which is lost then is replaced all the same.
#[derive(Clone)]
pub struct SessionPort(Arc<Mutex<Inner>>);

struct Inner {
    linked: Linked<RemoteUsb>,
    done: Completions,
}

/// What a watcher found.
pub enum Seen {
    /// Whoever drives the device is at it, and sees to it.
    Busy,
    /// There is this link, whose end is worth waiting for.
    Linked(Link),
    /// There is none, and another is on its way.
    Unlinked,
    /// It is over.
    Ended(End),
}

impl fmt::Debug for SessionPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionPort")
    }
}

impl SessionPort {
    /// Over a device that is open.
    pub fn new(linked: Linked<RemoteUsb>) -> Self {
        let done = Completions::new(BufferPool::new(Limits::DEFAULT.pool_bytes));
        Self(Arc::new(Mutex::new(Inner { linked, done })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks something of the device.
    pub fn ask<T>(&self, question: impl FnOnce(&Linked<RemoteUsb>) -> T) -> T {
        question(&self.inner().linked)
    }

    /// A watcher's look, which waits for nobody.
    pub fn look(&self) -> Seen {
        let mut inner = match self.0.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Seen::Busy,
        };
        let Inner { linked, done } = &mut *inner;
        linked.turn(done);
        match (linked.end(), linked.link()) {
            (Some(end), _) => Seen::Ended(end.clone()),
            (None, Ok(Some(link))) => Seen::Linked(link),
            // Without a descriptor for it: as if it were lost; it is looked at again soon.
            (None, Ok(None) | Err(_)) => Seen::Unlinked,
        }
    }

    /// Gives the device back.
    pub fn close(&self) {
        let Inner { linked, done } = &mut *self.inner();
        linked.close(done);
        while done.pop().is_some() {}
    }
}

impl Port for SessionPort {
    fn submit(&mut self, urb: Urb) {
        let Inner { linked, done } = &mut *self.inner();
        linked.submit(linked.clock().now(), urb.launch(), done);
    }

    fn cancel(&mut self, id: UrbId) {
        let Inner { linked, done } = &mut *self.inner();
        linked.cancel(linked.clock().now(), id, done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
        let Inner { linked, done } = &mut *self.inner();
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
        self.inner().done.pool.recycle(payload);
    }
}
