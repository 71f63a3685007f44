//! The clock, for threads that may read it.

use std::time;

use farbus_model::Instant;
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock whose epoch is its creation. It advances while the machine sleeps, so that promises to other hosts
/// expire in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoottimeClock {
    epoch_ns: u64,
}

impl BoottimeClock {
    /// A clock that begins now. Its first reading is later than [`Instant::ZERO`].
    pub fn start() -> Self {
        Self { epoch_ns: since_boot_ns() }
    }

    /// A clock that began `span` ago: it can represent moments before its creation.
    pub fn started_ago(span: time::Duration) -> Self {
        let now_ns = since_boot_ns();
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(0);
        Self { epoch_ns: now_ns.checked_sub(span_ns).unwrap_or(now_ns) }
    }

    /// How much later than `later` this clock reads at any moment; zero if it began after it.
    pub fn ahead_of(&self, later: Self) -> time::Duration {
        time::Duration::from_nanos(later.epoch_ns.saturating_sub(self.epoch_ns))
    }

    /// The current moment.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(since_boot_ns().saturating_sub(self.epoch_ns).max(1))
    }
}

/// The time since the machine was started, including the time that it slept: processes compare it with each other.
pub fn since_boot() -> time::Duration {
    time::Duration::from_nanos(since_boot_ns())
}

/// Unix time by this machine's clock, milliseconds; 0 before 1970.
pub fn unix_ms() -> u64 {
    let since = time::SystemTime::now().duration_since(time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn since_boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
