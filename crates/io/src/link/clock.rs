//! The moment, for the threads that may know it.

use std::time;

use farbus_model::Instant;

/// A monotonic clock whose epoch is its making.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: time::Instant,
}

impl Clock {
    /// A clock that begins now. Its first reading is later than [`Instant::ZERO`].
    pub fn start() -> Self {
        Self { epoch: time::Instant::now() }
    }

    /// A clock that began so long ago: moments before it was made can be told.
    pub fn started_ago(span: time::Duration) -> Self {
        let now = time::Instant::now();
        Self { epoch: now.checked_sub(span).unwrap_or(now) }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1))
    }
}
