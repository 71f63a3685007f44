//! How long a device that migrates may keep its user waiting: each end of a session has a limit, and the shorter one
//! rules at both ends.
//!
//! The importer holds the device until its user has left, for that long at most; the exporter keeps a device that was
//! handed over for its successor, for that long at most. The ends tell each other in the greeting of every first link.

use std::time::Duration;

/// The limit of an end that does not say one, as releases before limits were negotiated.
pub const HOLD: Duration = Duration::from_secs(20);
/// The longest limit for a device that stores data: Linux gives up a command to a disk after 30 s.
pub const HOLD_STORAGE_MAX: Duration = Duration::from_secs(25);
/// The longest limit for any device.
pub const HOLD_MAX: Duration = Duration::from_secs(120);

/// The limits of both ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    own: Duration,
    /// What the other end said; `None` if it said nothing.
    theirs: Option<Duration>,
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self::of(HOLD)
    }
}

impl HoldLimits {
    /// The limits of an end that holds a device for `own` at most, and has not heard the other end.
    pub fn of(own: Duration) -> Self {
        Self { own: own.min(HOLD_MAX), theirs: None }
    }

    /// Changes the own limit.
    pub fn set_own(&mut self, own: Duration) {
        self.own = own.min(HOLD_MAX);
    }

    /// What this end says, ms.
    pub fn own_ms(&self) -> u32 {
        u32::try_from(self.own.as_millis()).unwrap_or(u32::MAX)
    }

    /// Takes what the other end says, ms; `None` if it says nothing.
    pub fn hear(&mut self, ms: Option<u32>) {
        self.theirs = ms.map(|ms| Duration::from_millis(ms.into()));
    }

    /// Whether the other end has said its limit.
    pub fn is_heard(&self) -> bool {
        self.theirs.is_some()
    }

    /// The limit at both ends: the shorter one. One that stores data is held for [`HOLD_STORAGE_MAX`] at most.
    pub fn both(&self, is_storage: bool) -> Duration {
        let both = self.own.min(self.theirs.unwrap_or(HOLD));
        if is_storage { both.min(HOLD_STORAGE_MAX) } else { both }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn shorter_limit_rules_whichever_end_has_it_and_silence_means_twenty_seconds() {
        let both = |own: u64, theirs: Option<u32>| {
            let mut limits = HoldLimits::of(s(own));
            limits.hear(theirs.map(|theirs| theirs * 1000));
            (limits.both(false), limits.both(true))
        };
        assert_eq!(both(5, Some(24)), (s(5), s(5)));
        assert_eq!(both(24, Some(5)), (s(5), s(5)));
        assert_eq!((both(24, None), both(7, None)), ((s(20), s(20)), (s(7), s(7))));
        assert_eq!(both(60, Some(90)), (s(60), s(25)), "a disk is held 25 s at most");
        assert_eq!(both(1000, Some(1_000_000)), (HOLD_MAX, HOLD_STORAGE_MAX));
        assert_eq!(HoldLimits::default().both(true), HOLD);
    }
}
