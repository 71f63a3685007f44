//! Estimates what a path to an importer can carry, from what arrives of the reserved traffic.
//!
//! | observation | estimated rate of the path |
//! |---|---|
//! | a link delivers less than is reserved, and the rest queues up | the sum of what arrives over all links of the path, if that is less than was known |
//! | the same, just after more was tried | the rate before the attempt |
//! | none of this for a while, and a device is suspended | enough for one more device: then it shows whether the path carries it. More than was ever measured only if most of what is reserved is used, because an unused path shows nothing |
//!
//! Attempts become less frequent as long as they fail, because a path does not say when it has become faster.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::Instant;

/// A link whose queue takes longer than this is behind.
const QUEUE_MAX: Duration = Duration::from_millis(100);
/// Period over which arriving bytes are counted.
const WINDOW: Duration = Duration::from_millis(200);
/// How long a link must be behind, with less than was reserved arriving, before the path's rate is concluded. A machine
/// that was stalled for a moment catches up in this time.
const LATE_FOR: Duration = Duration::from_millis(700);
/// After a change, how long data that was queued before is still on its way.
const SETTLING: Duration = Duration::from_secs(1);
/// How long without a conclusion before one more device is tried; doubled with each failure.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_secs(15);
/// Less than this share of what is reserved counts as less.
const ENOUGH_PERCENT: u64 = 97;
/// If less than this share is used, nothing is known about what else the path may carry.
const USED_PERCENT: u64 = 80;
/// Most links of a path.
const LINKS_MAX: usize = 1024;

/// What a link reports about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSample {
    /// Bytes that have arrived since the link began.
    pub arrived_bytes: u64,
    /// Bytes that are not acknowledged, or not sent yet.
    pub queued_bytes: u64,
}

/// The links of a path, and what is known about it.
#[derive(Clone, Debug, Default)]
pub struct PathCongestion {
    links: BTreeMap<String, ReservedLink>,
    /// Nothing is concluded before this moment.
    settled_at: Option<Instant>,
    /// Since when nothing was concluded.
    calm_since: Option<Instant>,
    patience: Option<Duration>,
    is_trying: bool,
    /// The most that arrived in one window while a link was behind.
    best: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReservedLink {
    reserved_bits_per_s: u64,
    began: Instant,
    first: LinkSample,
    /// Rate in the last complete window.
    bits_per_s: Option<u64>,
    /// Until then, data that was queued before the link was admitted may still be on its way.
    settled_at: Instant,
    /// Since when the link is behind, and what had arrived by then.
    behind: Option<(Instant, u64)>,
    is_late: bool,
}

/// A conclusion about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathConclusion {
    /// It carries this rate, bits per second.
    Carries(u64),
    /// It may carry more: try one more device.
    MayCarryMore {
        /// Whether most of what is reserved is used.
        is_used: bool,
    },
    /// The attempt failed: it carries what it carried before.
    CarriesNoMore,
}

impl PathCongestion {
    /// Takes a report of a device's link, for which this rate is reserved and admitted.
    pub fn note(
        &mut self,
        now: Instant,
        device: &str,
        reserved_bits_per_s: u64,
        sample: LinkSample,
    ) -> Option<PathConclusion> {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(device) {
            return None;
        }
        let fresh = ReservedLink {
            reserved_bits_per_s,
            began: now,
            first: sample,
            bits_per_s: None,
            settled_at: now + SETTLING,
            behind: None,
            is_late: false,
        };
        let seen = self.links.entry(device.to_owned()).or_insert(fresh);
        // A new link of the device counts from its own beginning.
        let before = seen.behind.map_or(0, |(_, arrived)| arrived).max(seen.first.arrived_bytes);
        if sample.arrived_bytes < before {
            *seen = fresh;
            return None;
        }
        seen.reserved_bits_per_s = reserved_bits_per_s;
        seen.look(now, sample);
        if now - seen.began < WINDOW {
            return None;
        }
        seen.bits_per_s = Some(bits_per_s(sample.arrived_bytes - seen.first.arrived_bytes, now - seen.began));
        (seen.began, seen.first) = (now, sample);
        self.conclude(now)
    }

    /// A link has ended, or nothing on it is admitted any more.
    pub fn forget(&mut self, device: &str) {
        self.links.remove(device);
    }

    /// The path may carry more, but no device waits for that: ends the attempt.
    pub fn leave(&mut self) {
        (self.is_trying, self.settled_at) = (false, None);
    }

    /// Whether no link is known.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn conclude(&mut self, now: Instant) -> Option<PathConclusion> {
        if self.settled_at.is_some_and(|at| now < at) || self.links.values().any(|seen| seen.bits_per_s.is_none()) {
            return None;
        }
        let calm_since = *self.calm_since.get_or_insert(now);
        let arrived = self.links.values().filter_map(|seen| seen.bits_per_s).sum();
        if self.links.values().any(|seen| seen.behind.is_some()) {
            // A window with losses and retransmissions shows less than the path carries.
            self.best = self.best.max(arrived);
        } else {
            self.best = 0;
        }
        if self.links.values().any(|seen| seen.is_late) {
            let best = self.best;
            self.settle(now);
            if !std::mem::take(&mut self.is_trying) {
                return Some(PathConclusion::Carries(best));
            }
            self.patience = Some((self.patience.unwrap_or(PATIENCE) * 2).min(PATIENCE_MAX));
            return Some(PathConclusion::CarriesNoMore);
        }
        if self.is_trying && now >= calm_since + PATIENCE {
            // The attempt has succeeded.
            (self.is_trying, self.patience) = (false, None);
        }
        if now < calm_since + self.patience.unwrap_or(PATIENCE) {
            return None;
        }
        self.is_trying = true;
        self.settle(now);
        Some(PathConclusion::MayCarryMore { is_used: self.is_used() })
    }

    /// Whether most of what is reserved arrives.
    fn is_used(&self) -> bool {
        let reserved: u128 = self.links.values().map(|seen| u128::from(seen.reserved_bits_per_s)).sum();
        let arrives: u128 = self.links.values().filter_map(|seen| seen.bits_per_s).map(u128::from).sum();
        arrives * 100 >= reserved * u128::from(USED_PERCENT)
    }

    fn settle(&mut self, now: Instant) {
        self.settled_at = Some(now + SETTLING);
        (self.calm_since, self.best) = (None, 0);
        for seen in self.links.values_mut() {
            (seen.behind, seen.is_late) = (None, false);
        }
    }
}

impl ReservedLink {
    /// Updates whether the link is behind, and whether it is late because of that.
    fn look(&mut self, now: Instant, LinkSample { arrived_bytes, queued_bytes }: LinkSample) {
        let queued_ns = u128::from(queued_bytes) * 8 * 1_000_000_000 / u128::from(self.reserved_bits_per_s.max(1));
        if queued_ns <= QUEUE_MAX.as_nanos() || now < self.settled_at {
            (self.behind, self.is_late) = (None, false);
            return;
        }
        let (since, arrived_before) = *self.behind.get_or_insert((now, arrived_bytes));
        if now < since + LATE_FOR {
            return;
        }
        let enough = u128::from(self.reserved_bits_per_s) * u128::from(ENOUGH_PERCENT);
        self.is_late = u128::from(bits_per_s(arrived_bytes - arrived_before, now - since)) * 100 < enough;
        if !self.is_late {
            self.behind = Some((now, arrived_bytes));
        }
    }
}

fn bits_per_s(bytes: u64, span: Duration) -> u64 {
    let bits = u128::from(bytes) * 8;
    u64::try_from(bits * 1_000_000_000 / span.as_nanos().max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Links of 2 Mb/s each, with what has passed so far.
    #[derive(Default)]
    struct SimulatedLinks {
        congestion: PathCongestion,
        now_ms: u64,
        arrived: [u64; 4],
        queued: [u64; 4],
    }

    impl SimulatedLinks {
        /// Runs this many links over a path of this rate until something is concluded.
        fn run(&mut self, links: usize, carries: u64, span_ms: u64) -> Option<(u64, PathConclusion)> {
            let (began, step_ms) = (self.now_ms, 50);
            while self.now_ms < began + span_ms {
                self.now_ms += step_ms;
                for link in 0..4 {
                    let made = if link < links { 2 * MBIT / 8 * step_ms / 1000 } else { 0 };
                    let passes = (carries / links as u64 / 8 * step_ms / 1000).min(made + self.queued[link]);
                    self.arrived[link] += passes;
                    self.queued[link] = self.queued[link] + made - passes;
                    let sample = LinkSample { arrived_bytes: self.arrived[link], queued_bytes: self.queued[link] };
                    let name = format!("zero{link}");
                    if link >= links {
                        self.congestion.forget(&name);
                    } else if let Some(concluded) = self.congestion.note(at(self.now_ms), &name, 2 * MBIT, sample) {
                        return Some((self.now_ms - began, concluded));
                    }
                }
            }
            None
        }
    }

    #[test]
    fn path_slower_than_its_reservations_is_detected_soon() {
        let mut links = SimulatedLinks::default();
        let Some((ms, PathConclusion::Carries(rate))) = links.run(4, 6 * MBIT, 5000) else { panic!("it is full") };
        assert!(ms <= 2500 && (5_900_000..=6_100_000).contains(&rate), "{ms} ms, {rate} bit/s");
        assert_eq!(SimulatedLinks::default().run(4, 9 * MBIT, 2900), None, "and nothing where all arrives");
    }

    #[test]
    fn unused_path_is_not_assumed_to_be_faster() {
        let mut congestion = PathCongestion::default();
        for step in 0..1000 {
            let sample = LinkSample { arrived_bytes: step * 1000, queued_bytes: 0 };
            let concluded = congestion.note(at(50 * step), "disk", 2 * MBIT, sample);
            let is_unused = matches!(concluded, None | Some(PathConclusion::MayCarryMore { is_used: false }));
            assert!(is_unused, "160 kbit/s of two million: {concluded:?}");
        }
    }

    #[test]
    fn machine_that_stalls_at_times_is_not_taken_for_a_slow_path() {
        // From time to time, nothing arrives for a tenth of a second, then everything that the path can carry at once.
        let (mut links, mut tried) = (SimulatedLinks::default(), 0);
        for round in 0..200 {
            for (carries, span_ms) in [(8 * MBIT, 500 + round % 7 * 100), (0, 150 + round % 3 * 50), (40 * MBIT, 200)] {
                match links.run(4, carries, span_ms) {
                    None => {}
                    Some((_, PathConclusion::MayCarryMore { .. })) => tried += 1,
                    Some((ms, concluded)) => panic!("{concluded:?} {ms} ms after {carries} bit/s began, round {round}"),
                }
            }
        }
        assert!(tried > 20, "{tried}");
    }

    #[test]
    fn failing_attempts_become_less_frequent() {
        let (mut links, mut tries) = (SimulatedLinks::default(), Vec::new());
        for _ in 0..6 {
            let Some((ms, PathConclusion::MayCarryMore { is_used: true })) = links.run(2, 5 * MBIT, 100_000) else {
                panic!("it is calm")
            };
            tries.push(ms);
            let Some((_, PathConclusion::CarriesNoMore)) = links.run(3, 5 * MBIT, 100_000) else {
                panic!("it is full")
            };
        }
        assert!(tries.is_sorted() && tries[5] > 3 * tries[0] && tries[5] < 20_000, "{tries:?}");
        assert_eq!(
            links.run(3, 9 * MBIT, 100_000).map(|(_, concluded)| concluded),
            Some(PathConclusion::MayCarryMore { is_used: true })
        );
        let next = links.run(4, 9 * MBIT, 100_000);
        assert!(next.is_some_and(|(ms, _)| ms < 10_000), "what goes well is tried again soon: {next:?}");
    }
}
