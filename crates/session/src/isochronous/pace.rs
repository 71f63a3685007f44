//! When packets of a stream are due here: a local clock that follows the device's without jumps (issue *Distance*;
//! N14).
//!
//! Nobody compares clocks. What is watched is the *slack*: how long before it was needed a packet was there (IN: before
//! it is handed to the driver; OUT: before the device plays it). Its least over the last seconds has everything in it:
//! the way's jitter, the drift of the device's clock against ours, and the scheduling at both ends. The clock is slewed
//! until that least is a margin.
//!
//! ```text
//!   IN   a later due moment is more slack
//!   OUT  a later due moment is a later request of the driver, and less slack at the device
//! ```
//!
//! Slack is noted as it would have been without the slewing so far, so that an old observation counts for today's
//! clock: there is no delay in the loop, and nothing swings.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;

/// Slack that is kept beyond all jitter that was seen: what two schedulers of busy machines take.
const MARGIN: Duration = Duration::from_millis(2);
/// The least slack is that of so long ago at most: what comes more seldom is counted and concealed rather than waited
/// for.
const WINDOW_SLOTS: usize = 8;
/// A part of that window.
const SLOT: Duration = Duration::from_secs(1);
/// Missing slack is made up for within this time, as far as the greatest slew allows.
const GROW_OVER: Duration = Duration::from_millis(500);
/// The greatest slew that makes more of it, ppm: 5 ms in a second. A sound card's rate control follows it.
const GROW_PPM_MAX: i64 = 5_000;
/// Too much slack is given up slowly: nothing but delay is lost by having it.
const SHRINK_OVER: Duration = Duration::from_secs(5);
/// The greatest slew that makes less of it, ppm: the mean interval stays within 0.1 % of the device's.
const SHRINK_PPM_MAX: i64 = 500;
/// And no step is changed by more than this, however long it is.
const STEP_CHANGE_NS_MAX: i64 = 100_000;
/// A packet that is later than this met a cut and no jitter: the clock is not set by it.
const CUT: Duration = Duration::from_millis(60);
/// The deepest buffer: beyond, a stream has a delay that nobody wants, and is better concealed.
pub const DEPTH_MAX: Duration = Duration::from_millis(250);

/// Which way a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the device.
    In,
    /// To the device.
    Out,
}

/// The clock of one stream.
#[derive(Clone, Debug)]
pub struct Pace {
    way: Way,
    due: Instant,
    /// By how much it was slewed since it began: later is more.
    shift_ns: i64,
    window: VecDeque<Slot>,
}

/// The extremes of a second.
#[derive(Clone, Copy, Debug)]
struct Slot {
    begun: Instant,
    least_ns: i64,
    most_ns: i64,
}

impl Pace {
    /// A clock whose next step begins at `start`.
    pub fn new(way: Way, start: Instant) -> Self {
        Self { way, due: start, shift_ns: 0, window: VecDeque::new() }
    }

    /// When the last step ended.
    pub fn now(&self) -> Instant {
        self.due
    }

    /// When a step of this length ends that begins where the last one ended.
    pub fn after(&self, span: Duration) -> Instant {
        moved(self.due, ns_of(span) + self.correction(span))
    }

    /// Takes that step, and says when it ended.
    pub fn step(&mut self, span: Duration) -> Instant {
        let correction = self.correction(span);
        self.shift_ns += correction;
        self.due = moved(self.due, ns_of(span) + correction);
        self.due
    }

    /// Leaves out so much of the stream: nobody was there for it.
    pub fn leave_out(&mut self, span: Duration) {
        self.due = self.due + span;
    }

    /// The driver is late: the stream goes on at this moment, and what it sends is later by that.
    pub fn wait_until(&mut self, now: Instant) {
        self.shift_ns += ns_of(now - self.due);
        self.due = self.due.max(now);
    }

    /// By how much it was slewed so far: to be said with what is seen of a packet that leaves now.
    pub fn shift_ns(&self) -> i64 {
        self.shift_ns
    }

    /// A packet had so much slack, when the clock was slewed by `shift_ns`.
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
                self.window.push_back(Slot { begun: now, least_ns: slack_ns, most_ns: slack_ns });
                while self.window.len() > WINDOW_SLOTS {
                    self.window.pop_front();
                }
            }
        }
    }

    /// What was seen says nothing of what comes: the stream was filled up.
    pub fn forget(&mut self) {
        self.window.clear();
    }

    /// The least slack lately; `None` before anything was seen.
    pub fn slack_ns(&self) -> Option<i64> {
        let least = self.window.iter().map(|slot| slot.least_ns).min()?;
        Some(least + self.effect_of(self.shift_ns))
    }

    /// By how much packets came earlier or later than each other lately.
    pub fn jitter(&self) -> Duration {
        let least = self.window.iter().map(|slot| slot.least_ns).min().unwrap_or_default();
        let most = self.window.iter().map(|slot| slot.most_ns).max().unwrap_or_default();
        Duration::from_nanos(u64::try_from(most - least).unwrap_or_default())
    }

    /// How much slack the least is to be: more where the way shakes, for what is yet to be seen of it.
    pub fn margin(&self) -> Duration {
        (MARGIN + self.jitter() / 4).min(DEPTH_MAX / 2)
    }

    /// How deep a buffer is with which the next stream may begin.
    pub fn depth(&self) -> Duration {
        (self.margin() + self.jitter()).min(DEPTH_MAX)
    }

    /// How deep this one's is as it stands: who goes on with the stream keeps its packets that long, and it neither
    /// jumps nor stops.
    pub fn level(&self) -> Duration {
        let slack = Duration::from_nanos(u64::try_from(self.slack_ns().unwrap_or_default()).unwrap_or_default());
        self.depth().max(slack + self.jitter() / 2).min(DEPTH_MAX)
    }

    /// What a later clock does to the slack.
    fn effect_of(&self, later_ns: i64) -> i64 {
        match self.way {
            Way::In => later_ns,
            Way::Out => -later_ns,
        }
    }

    fn correction(&self, span: Duration) -> i64 {
        let Some(slack_ns) = self.slack_ns() else { return 0 };
        let missing_ns = ns_of(self.margin()) - slack_ns;
        if missing_ns < 0 && self.window.len() < WINDOW_SLOTS {
            // What is yet to be seen of the way may need it.
            return 0;
        }
        let (over, ppm_max) = if missing_ns > 0 { (GROW_OVER, GROW_PPM_MAX) } else { (SHRINK_OVER, SHRINK_PPM_MAX) };
        let span_ns = ns_of(span);
        let most = (span_ns / 1000 * ppm_max / 1000).min(STEP_CHANGE_NS_MAX);
        // Slack is at most seconds, and a step 1024 packets: neither product is near the type's end.
        let change = i128::from(missing_ns) * i128::from(span_ns) / i128::from(ns_of(over));
        self.effect_of((change as i64).clamp(-most, most))
    }
}

/// A span as a signed number of nanoseconds.
pub fn ns_of(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// From `earlier` to `later` in nanoseconds, negative if it is the other way round.
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

    /// A stream of packets whose slack the clock's own slewing changes, from a device whose clock is off by so much.
    fn run(way: Way, first_ns: i64, drift_ppm: i64, seconds: u64) -> (Pace, Vec<i64>) {
        let mut pace = Pace::new(way, start());
        let mut steps = Vec::new();
        for n in 0..seconds as i64 * 1000 {
            let before = pace.now();
            let drifted = n * drift_ppm;
            let slack = match way {
                Way::In => first_ns + pace.shift_ns() - drifted,
                Way::Out => first_ns - pace.shift_ns() + drifted,
            };
            pace.note(before, slack, pace.shift_ns());
            steps.push(ns_between(before, pace.step(STEP)));
        }
        (pace, steps)
    }

    #[test]
    fn both_ways_settle_at_the_margin_and_follow_a_clock_that_drifts() {
        for way in [Way::In, Way::Out] {
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
    fn a_long_step_changes_by_a_tenth_of_a_millisecond_at_most() {
        let mut pace = Pace::new(Way::In, start());
        pace.note(start(), -50_000_000, 0);
        assert_eq!(ns_between(start(), pace.step(Duration::from_millis(500))), 500_100_000);
    }

    #[test]
    fn a_cut_sets_no_clock() {
        let mut pace = Pace::new(Way::In, start());
        pace.note(start(), 2_000_000, 0);
        let before = pace.slack_ns();
        pace.note(start(), -200_000_000, 0);
        assert_eq!((pace.slack_ns(), pace.jitter()), (before, Duration::ZERO));
    }

    #[test]
    fn what_is_longer_ago_than_the_window_is_forgotten() {
        let mut pace = Pace::new(Way::In, start());
        pace.note(start(), -10_000_000, 0);
        for second in 1..=8 {
            pace.note(start() + Duration::from_secs(second), 5_000_000, 0);
        }
        assert_eq!(pace.slack_ns(), Some(5_000_000));
    }

    #[test]
    fn a_driver_that_is_late_takes_its_lateness_from_the_slack_at_the_device() {
        let mut pace = Pace::new(Way::Out, start());
        pace.note(start(), 20_000_000, 0);
        pace.wait_until(start() + Duration::from_millis(5));
        assert_eq!((pace.slack_ns(), pace.now()), (Some(15_000_000), start() + Duration::from_millis(5)));
    }
}
