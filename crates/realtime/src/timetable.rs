//! When a periodic task runs next, which periods it missed, and how it handles a clock that jumps.

/// The release times of a periodic task on a given clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseTimetable {
    period_ns: u64,
    next_ns: u64,
    seen_ns: u64,
}

/// The result of a look at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimetableTick {
    /// No job is due yet.
    Early,
    /// A job begins.
    Due {
        /// When its period began.
        release_ns: u64,
        /// Periods before it that passed without a job.
        missed: u64,
    },
    /// The clock jumped: the task begins again from here, and the time in between is not counted.
    Jumped(ClockJump),
}

/// How a clock jumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockJump {
    /// It went back.
    Back {
        /// How far it went back, in nanoseconds.
        by_ns: u64,
    },
    /// It went ahead, by more than any scheduler is late.
    Ahead {
        /// How far it went ahead of the time when the job was due, in nanoseconds.
        by_ns: u64,
    },
}

/// A task that is later than this, and than [`LATE_PERIODS_MAX`] of its periods, was not merely delayed: the machine
/// slept, or its clock was set.
pub const LATE_NS_MAX: u64 = 2_000_000_000;
/// The limit in periods; see [`LATE_NS_MAX`].
pub const LATE_PERIODS_MAX: u64 = 16;

impl ReleaseTimetable {
    /// The first job is due at once.
    pub fn new(now_ns: u64, period_ns: u64) -> Self {
        Self { period_ns: period_ns.max(1), next_ns: now_ns, seen_ns: now_ns }
    }

    /// When the next job is due.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The time from one job to the next, in nanoseconds, at least 1.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Sets the period, from the last look at the clock on: a shorter one brings the next job forward.
    pub fn set_period(&mut self, period_ns: u64) {
        self.period_ns = period_ns.max(1);
        self.next_ns = self.next_ns.min(self.seen_ns.saturating_add(self.period_ns));
    }

    /// Evaluates the clock's time.
    pub fn look(&mut self, now_ns: u64) -> TimetableTick {
        let seen_ns = std::mem::replace(&mut self.seen_ns, now_ns);
        if now_ns < seen_ns {
            self.next_ns = now_ns.saturating_add(self.period_ns);
            return TimetableTick::Jumped(ClockJump::Back { by_ns: seen_ns - now_ns });
        }
        let Some(late_ns) = now_ns.checked_sub(self.next_ns) else { return TimetableTick::Early };
        if late_ns > LATE_NS_MAX.max(self.period_ns.saturating_mul(LATE_PERIODS_MAX)) {
            self.next_ns = now_ns.saturating_add(self.period_ns);
            return TimetableTick::Jumped(ClockJump::Ahead { by_ns: late_ns });
        }
        let missed = late_ns / self.period_ns;
        let release_ns = self.next_ns + missed * self.period_ns;
        self.next_ns = release_ns.saturating_add(self.period_ns);
        TimetableTick::Due { release_ns, missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_follow_without_drift_and_missed_periods_are_counted() {
        let mut table = ReleaseTimetable::new(1000, 100);
        assert_eq!(table.look(1003), TimetableTick::Due { release_ns: 1000, missed: 0 });
        assert_eq!((table.look(1099), table.next_ns()), (TimetableTick::Early, 1100));
        assert_eq!(table.look(1199), TimetableTick::Due { release_ns: 1100, missed: 0 });
        assert_eq!(table.look(1450), TimetableTick::Due { release_ns: 1400, missed: 2 });
        assert_eq!(table.next_ns(), 1500);
        table.set_period(10);
        assert_eq!(table.next_ns(), 1460, "it is not kept waiting for the end of a longer period");
        assert_eq!(table.look(1460), TimetableTick::Due { release_ns: 1460, missed: 0 });
        table.set_period(100);
        assert_eq!((table.next_ns(), table.look(1470)), (1470, TimetableTick::Due { release_ns: 1470, missed: 0 }));
        assert_eq!(table.next_ns(), 1570);
    }

    #[test]
    fn a_clock_that_jumps_is_told_apart_from_being_late() {
        let mut table = ReleaseTimetable::new(5000, 100);
        assert_eq!(table.look(4000), TimetableTick::Jumped(ClockJump::Back { by_ns: 1000 }));
        assert_eq!(table.look(4100), TimetableTick::Due { release_ns: 4100, missed: 0 });
        let late = TimetableTick::Due { release_ns: 4100 + LATE_NS_MAX, missed: LATE_NS_MAX / 100 - 1 };
        assert_eq!(table.look(4100 + LATE_NS_MAX), late, "late is not a jump");
        let by_ns = LATE_NS_MAX + 1;
        let now_ns = table.next_ns() + by_ns;
        assert_eq!(table.look(now_ns), TimetableTick::Jumped(ClockJump::Ahead { by_ns }));
        assert_eq!(table.next_ns(), now_ns + 100);
        assert_eq!(table.look(u64::MAX), TimetableTick::Jumped(ClockJump::Ahead { by_ns: u64::MAX - now_ns - 100 }));
    }

    #[test]
    fn timetable_survives_any_clock() {
        // A small generator that covers the whole range of 64 bits.
        let (mut state, mut table) = (1u64, ReleaseTimetable::new(0, 0));
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let now_ns = state >> (state % 60);
            match table.look(now_ns) {
                TimetableTick::Due { release_ns, .. } => assert!(release_ns <= now_ns && table.next_ns() > now_ns),
                TimetableTick::Early | TimetableTick::Jumped(_) => {
                    assert!(table.next_ns() > now_ns || now_ns == u64::MAX)
                }
            }
            table.set_period(state % 1_000_000);
        }
    }
}
