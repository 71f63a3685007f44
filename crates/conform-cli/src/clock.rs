//! The clock that the kit's connections tell the time by.

use std::time;

use farbus_model::Instant;

/// A monotonic clock whose epoch is its creation.
#[derive(Clone, Copy, Debug)]
pub struct KitClock {
    epoch: time::Instant,
}

impl KitClock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self { epoch: time::Instant::now() }
    }

    /// The current moment, later than [`Instant::ZERO`].
    pub fn now(&self) -> Instant {
        let since_ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(since_ns.max(1))
    }
}
