//! The moment, for the threads that may know it.

use std::time;

use farbus_model::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock whose epoch is its making. It goes on while the machine sleeps: what is promised to others for a
/// time is over then.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch_ns: u64,
}

impl Clock {
    /// A clock that begins now. Its first reading is later than [`Instant::ZERO`].
    pub fn start() -> Self {
        Self { epoch_ns: since_boot_ns() }
    }

    /// A clock that began so long ago: moments before it was made can be told.
    pub fn started_ago(span: time::Duration) -> Self {
        let now_ns = since_boot_ns();
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(0);
        Self { epoch_ns: now_ns.checked_sub(span_ns).unwrap_or(now_ns) }
    }

    /// Now.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(since_boot_ns().saturating_sub(self.epoch_ns).max(1))
    }
}

fn since_boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
