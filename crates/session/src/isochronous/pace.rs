//! When packets of a stream are due: a local clock that follows the device's clock without jumps (N14).
//!
//! Clocks are never compared. The clock watches the *slack*: how long before it was needed a packet was there (IN:
//! before it is handed to the driver; OUT: before the device plays it). The least slack of the last seconds contains
//! everything that matters: the path's jitter, the drift of the device's clock against ours, and scheduling delays at
//! both ends. The clock is slewed until that least slack equals a margin.
//!
//! ```text
//! IN   a later due moment is more slack
//! OUT  a later due moment is a later request of the driver, and less slack at the device
//! ```
//!
//! Slack is recorded as it would have been without the slewing so far, so that old observations count for today's
//! clock. The control loop therefore has no delay and does not oscillate.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;

/// Slack kept beyond all observed jitter: what the schedulers of two busy machines take.
const MARGIN: Duration = Duration::from_millis(2);
/// Length of the window for the least slack, in slots. Rarer events are counted and concealed instead of waited for.
const WINDOW_SLOTS: usize = 8;
/// Length of one slot of the window.
const SLOT: Duration = Duration::from_secs(1);
/// Missing slack is made up within this time, as far as the largest slew allows.
const GROW_OVER: Duration = Duration::from_millis(500);
/// Largest slew that increases slack, ppm: 5 ms per second. A sound card's rate control follows it.
const GROW_PPM_MAX: i64 = 5_000;
/// Excess slack is reduced over this time: slowly, because it only costs delay.
const SHRINK_OVER: Duration = Duration::from_secs(5);
/// Largest slew that reduces slack, ppm: the mean interval stays within 0.1 % of the device's.
const SHRINK_PPM_MAX: i64 = 500;
/// Largest correction of one step, whatever its length.
const STEP_CHANGE_NS_MAX: i64 = 100_000;
/// A packet later than this met a lost link, not jitter: it does not affect the clock.
const CUT: Duration = Duration::from_millis(60);
/// Deepest buffer. Beyond it the delay is worse than concealed losses.
pub const DEPTH_MAX: Duration = Duration::from_millis(250);

/// The direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// From the device.
    In,
    /// To the device.
    Out,
}

/// The local clock of one stream.
#[derive(Clone, Debug)]
pub struct IsoStreamClock {
    way: StreamDirection,
    due: Instant,
    /// By how much it was slewed since it began; positive is later.
    shift_ns: i64,
    window: VecDeque<SlackExtremes>,
}

/// The extremes of slack within one slot.
#[derive(Clone, Copy, Debug)]
struct SlackExtremes {
    begun: Instant,
    least_ns: i64,
    most_ns: i64,
}

impl IsoStreamClock {
    /// A clock whose first step begins at `start`.
    pub fn new(way: StreamDirection, start: Instant) -> Self {
        Self { way, due: start, shift_ns: 0, window: VecDeque::new() }
    }

    /// The end of the last step.
    pub fn now(&self) -> Instant {
        self.due
    }

    /// When a step of this length would end.
    pub fn after(&self, span: Duration) -> Instant {
        moved(self.due, ns_of(span) + self.correction(span))
    }

    /// Takes a step of this length; returns when it ends.
    pub fn step(&mut self, span: Duration) -> Instant {
        let correction = self.correction(span);
        self.shift_ns += correction;
        self.due = moved(self.due, ns_of(span) + correction);
        self.due
    }

    /// Skips this much of the stream, because the driver did not ask for it.
    pub fn leave_out(&mut self, span: Duration) {
        self.due = self.due + span;
    }

    /// The driver is late: the stream continues at `now`, and everything after is later by that.
    pub fn wait_until(&mut self, now: Instant) {
        self.shift_ns += ns_of(now - self.due);
        self.due = self.due.max(now);
    }

    /// By how much it was slewed so far; to be given back to [`IsoStreamClock::note`] with the packet that leaves now.
    pub fn shift_ns(&self) -> i64 {
        self.shift_ns
    }

    /// Records the slack of a packet, with the slew `shift_ns` at which it left.
    pub fn note(&mut self, now: Instant, slack_ns: i64, shift_ns: i64) {
        if slack_ns < -ns_of(CUT) {
            return;
        }
        let slack_ns = slack_ns - self.effect_of(shift_ns);
        match self.window.back_mut() {
            Some(slot) if now - slot.begun < SLOT => {
                slot.least_ns = slot.least_ns.min(slack_ns);
                slot.most_ns = slot.most_ns.max(slack_ns);
            }
            _ => {
                self.window.push_back(SlackExtremes { begun: now, least_ns: slack_ns, most_ns: slack_ns });
                while self.window.len() > WINDOW_SLOTS {
                    self.window.pop_front();
                }
            }
        }
    }

    /// Drops all observations, because the stream was refilled.
    pub fn forget(&mut self) {
        self.window.clear();
    }

    /// The least slack of the window; `None` before the first observation.
    pub fn slack_ns(&self) -> Option<i64> {
        let least = self.window.iter().map(|slot| slot.least_ns).min()?;
        Some(least + self.effect_of(self.shift_ns))
    }

    /// The difference between the largest and the least slack of the window.
    pub fn jitter(&self) -> Duration {
        let least = self.window.iter().map(|slot| slot.least_ns).min().unwrap_or_default();
        let most = self.window.iter().map(|slot| slot.most_ns).max().unwrap_or_default();
        Duration::from_nanos(u64::try_from(most - least).unwrap_or_default())
    }

    /// The target for the least slack: larger with more jitter, for jitter not yet observed.
    pub fn margin(&self) -> Duration {
        (MARGIN + self.jitter() / 4).min(DEPTH_MAX / 2)
    }

    /// The buffer depth with which a next stream should begin.
    pub fn depth(&self) -> Duration {
        (self.margin() + self.jitter()).min(DEPTH_MAX)
    }

    /// The current buffer depth of this stream. A replacement that keeps packets this long continues without a jump or
    /// a gap.
    pub fn level(&self) -> Duration {
        let slack = Duration::from_nanos(u64::try_from(self.slack_ns().unwrap_or_default()).unwrap_or_default());
        self.depth().max(slack + self.jitter() / 2).min(DEPTH_MAX)
    }

    /// The effect of a later clock on the slack.
    fn effect_of(&self, later_ns: i64) -> i64 {
        match self.way {
            StreamDirection::In => later_ns,
            StreamDirection::Out => -later_ns,
        }
    }

    fn correction(&self, span: Duration) -> i64 {
        let Some(slack_ns) = self.slack_ns() else { return 0 };
        let missing_ns = ns_of(self.margin()) - slack_ns;
        if missing_ns < 0 && self.window.len() < WINDOW_SLOTS {
            // Until the window is full, slack is not reduced: later jitter may need it.
            return 0;
        }
        let (over, ppm_max) = if missing_ns > 0 { (GROW_OVER, GROW_PPM_MAX) } else { (SHRINK_OVER, SHRINK_PPM_MAX) };
        let span_ns = ns_of(span);
        let most = (span_ns / 1000 * ppm_max / 1000).min(STEP_CHANGE_NS_MAX);
        // Slack is at most seconds and a step at most 1024 packets: the product cannot overflow.
        let change = i128::from(missing_ns) * i128::from(span_ns) / i128::from(ns_of(over));
        self.effect_of((change as i64).clamp(-most, most))
    }
}

/// A duration as signed nanoseconds.
pub fn ns_of(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// Nanoseconds from `earlier` to `later`; negative if `later` is earlier.
pub fn ns_between(earlier: Instant, later: Instant) -> i64 {
    ns_of(later - earlier) - ns_of(earlier - later)
}

fn moved(at: Instant, ns: i64) -> Instant {
    Instant::from_nanos(at.as_nanos().saturating_add_signed(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    fn start() -> Instant {
        Instant::from_nanos(1_000_000_000)
    }

    /// Simulates a stream whose slack follows the clock's own slewing, from a device whose clock drifts.
    fn run(way: StreamDirection, first_ns: i64, drift_ppm: i64, seconds: u64) -> (IsoStreamClock, Vec<i64>) {
        let mut pace = IsoStreamClock::new(way, start());
        let mut steps = Vec::new();
        for n in 0..seconds as i64 * 1000 {
            let before = pace.now();
            let drifted = n * drift_ppm;
            let slack = match way {
                StreamDirection::In => first_ns + pace.shift_ns() - drifted,
                StreamDirection::Out => first_ns - pace.shift_ns() + drifted,
            };
            pace.note(before, slack, pace.shift_ns());
            steps.push(ns_between(before, pace.step(STEP)));
        }
        (pace, steps)
    }

    #[test]
    fn clock_settles_at_the_margin_and_follows_drift_in_both_directions() {
        for way in [StreamDirection::In, StreamDirection::Out] {
            for (first_ms, drift_ppm) in [(1, 0), (20, 0), (5, 200), (5, -200), (0, 200)] {
                let (pace, steps) = run(way, first_ms * 1_000_000, drift_ppm, 60);
                let slack = pace.slack_ns().unwrap();
                let aim = ns_of(pace.margin());
                assert!(
                    (slack - aim).abs() < 3_000_000,
                    "{way:?} {first_ms} ms, {drift_ppm} ppm: {slack} and not {aim}"
                );
                let late: i64 = steps[50_000..].iter().sum();
                let device = 10_000 * (1_000_000 + drift_ppm);
                assert!((late - device).abs() < 1_000_000, "its rate is the device's: {late} and not {device}");
                assert!(steps.iter().all(|step| (step - 1_000_000).abs() <= 5_000), "no step jumps");
            }
        }
    }

    #[test]
    fn long_step_is_corrected_by_at_most_100_us() {
        let mut pace = IsoStreamClock::new(StreamDirection::In, start());
        pace.note(start(), -50_000_000, 0);
        assert_eq!(ns_between(start(), pace.step(Duration::from_millis(500))), 500_100_000);
    }

    #[test]
    fn packet_later_than_a_lost_link_does_not_affect_the_clock() {
        let mut pace = IsoStreamClock::new(StreamDirection::In, start());
        pace.note(start(), 2_000_000, 0);
        let before = pace.slack_ns();
        pace.note(start(), -200_000_000, 0);
        assert_eq!((pace.slack_ns(), pace.jitter()), (before, Duration::ZERO));
    }

    #[test]
    fn observations_older_than_the_window_are_dropped() {
        let mut pace = IsoStreamClock::new(StreamDirection::In, start());
        pace.note(start(), -10_000_000, 0);
        for second in 1..=8 {
            pace.note(start() + Duration::from_secs(second), 5_000_000, 0);
        }
        assert_eq!(pace.slack_ns(), Some(5_000_000));
    }

    #[test]
    fn lateness_of_the_driver_reduces_slack_at_the_device() {
        let mut pace = IsoStreamClock::new(StreamDirection::Out, start());
        pace.note(start(), 20_000_000, 0);
        pace.wait_until(start() + Duration::from_millis(5));
        assert_eq!((pace.slack_ns(), pace.now()), (Some(15_000_000), start() + Duration::from_millis(5)));
    }
}
