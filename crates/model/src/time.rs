//! A point in time that code can construct, so that a test or the simulator can pass any moment.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an epoch that the engine's owner chose (monotonic).
///
/// Unlike the standard library's type it can be constructed, which is what makes time an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// The epoch itself.
    pub const ZERO: Instant = Instant { ns: 0 };

    /// The point `ns` nanoseconds after the epoch.
    pub const fn from_nanos(ns: u64) -> Self {
        Self { ns }
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.ns
    }

    /// The span from `earlier` to `self`, zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, span: Duration) -> Instant {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Instant { ns: self.ns.saturating_add(ns) }
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_never_run_backwards() {
        let early = Instant::from_nanos(5);
        let late = early + Duration::from_nanos(7);
        assert_eq!(late - early, Duration::from_nanos(7));
        assert_eq!(early - late, Duration::ZERO);
    }
}
