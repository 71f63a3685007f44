//! Ends a serving thread from any other thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farbus_io_net::link::ThreadWaker;

/// Asks a serving thread to end: a flag, and an event that wakes the thread. Clones ask the same thread.
#[derive(Clone, Debug)]
pub struct StopSignal {
    is_given: Arc<AtomicBool>,
    wake: Arc<ThreadWaker>,
}

impl StopSignal {
    /// A signal that has not been given.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self::waking(Arc::new(ThreadWaker::new()?)))
    }

    /// A signal that has not been given, for a thread that waits on this event.
    pub(crate) fn waking(wake: Arc<ThreadWaker>) -> Self {
        Self { is_given: Arc::default(), wake }
    }

    /// The event that wakes the thread, for others that have a reason to wake it.
    pub(crate) fn shared_wake(&self) -> Arc<ThreadWaker> {
        Arc::clone(&self.wake)
    }

    /// The event that the thread waits on.
    pub fn wake(&self) -> &ThreadWaker {
        &self.wake
    }

    /// Asks the thread to end, soon.
    pub fn end(&self) {
        self.is_given.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Whether the thread is to end. Clears the event, so check afterwards every other reason for which the thread may
    /// have been woken.
    pub fn hears(&self) -> bool {
        self.wake.clear();
        self.was_asked()
    }

    /// Whether the thread is to end; leaves the event as it is.
    pub(crate) fn was_asked(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }
}
