//! Ends a thread that serves something, from any other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farbus_io::link::Wake;

/// Asks what serves something to end: a flag, and what wakes the thread that looks at it. Clones ask the same thread.
#[derive(Clone, Debug)]
pub struct StopSignal {
    asked: Arc<AtomicBool>,
    wake: Arc<Wake>,
}

impl StopSignal {
    /// Nobody has asked yet.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { asked: Arc::default(), wake: Arc::new(Wake::new()?) })
    }

    /// What wakes the thread, for whoever has another reason to.
    pub(crate) fn shared_wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// What the thread waits on.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Asks it to end, soon.
    pub fn end(&self) {
        self.asked.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Whether it is to end. Whatever woke the thread until now wakes it no more: look after this at what that was for.
    pub(crate) fn hears(&self) -> bool {
        self.wake.clear();
        self.was_asked()
    }

    /// Whether it is to end; what woke the thread is left as it is.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
