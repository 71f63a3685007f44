//! What a path to an importer still carries, by what arrives of that which is reserved there.
//!
//! | seen | what is taken for the path's rate |
//! |---|---|
//! | a link delivers less than is reserved, and the rest queues up | the sum of what arrives over all links of the path, if that is less than was known |
//! | the same, just after more was tried | what it was before that |
//! | nothing of the kind for a while, and somebody is suspended | enough for one more: whether it is there is seen then. More than was ever measured only where most of what is reserved is used: a path that nobody uses shows nothing |
//!
//! The second is tried less and less often as long as it fails: a path does not say that it has become wider.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::Instant;

/// What queues up for longer than this is behind.
const QUEUE_MAX: Duration = Duration::from_millis(100);
/// Over so long what arrives is counted.
const WINDOW: Duration = Duration::from_millis(200);
/// A link is behind for so long, and less than was reserved has arrived meanwhile, before it is concluded what the path
/// carries. A machine that stood still for a while catches up in that time: then as much has arrived.
const LATE_FOR: Duration = Duration::from_millis(700);
/// After a change what was in queues is on its way for so long.
const SETTLING: Duration = Duration::from_secs(1);
/// For so long nothing is concluded before one more is tried; each time that fails, twice as long.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_secs(15);
/// Less than so much of what is reserved is less.
const ENOUGH_PERCENT: u64 = 97;
/// Less than so much used says nothing of what else the path may carry.
const USED_PERCENT: u64 = 80;
/// Links of a path.
const LINKS_MAX: usize = 1024;

/// What a link tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes that arrived, of all that was ever sent.
    pub arrived_bytes: u64,
    /// Bytes that were not acknowledged, or not even sent.
    pub queued_bytes: u64,
}

/// The links of a path, and what is thought of it.
#[derive(Clone, Debug, Default)]
pub struct Congestion {
    links: BTreeMap<String, Seen>,
    /// Nothing is concluded before.
    settled_at: Option<Instant>,
    /// Since when nothing was concluded.
    calm_since: Option<Instant>,
    patience: Option<Duration>,
    is_trying: bool,
    /// The most that arrived in a window while a link was behind.
    best: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    reserved_bits_per_s: u64,
    began: Instant,
    first: Sample,
    /// Of the last whole window.
    bits_per_s: Option<u64>,
    /// What waited before the link was admitted is on its way until then.
    settled_at: Instant,
    /// Since when more waits than may, and what had arrived by then.
    behind: Option<(Instant, u64)>,
    is_late: bool,
}

/// What is concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// It carries this, bits a second.
    Carries(u64),
    /// It may carry more: one more is tried.
    MayCarryMore {
        /// Whether most of what is reserved is used.
        is_used: bool,
    },
    /// It does not: it carries what it carried before that.
    CarriesNoMore,
}

impl Congestion {
    /// A link of a device, for which so many bits a second are reserved and admitted, tells of itself.
    pub fn note(&mut self, now: Instant, device: &str, reserved_bits_per_s: u64, sample: Sample) -> Option<Conclusion> {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(device) {
            return None;
        }
        let fresh = Seen {
            reserved_bits_per_s,
            began: now,
            first: sample,
            bits_per_s: None,
            settled_at: now + SETTLING,
            behind: None,
            is_late: false,
        };
        let seen = self.links.entry(device.to_owned()).or_insert(fresh);
        // Another link counts from its own beginning.
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

    /// A link is not there any more, or carries nothing that was admitted.
    pub fn forget(&mut self, device: &str) {
        self.links.remove(device);
    }

    /// It may carry more, but nobody waits for that: nothing is tried.
    pub fn leave(&mut self) {
        (self.is_trying, self.settled_at) = (false, None);
    }

    /// Whether no link is known.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn conclude(&mut self, now: Instant) -> Option<Conclusion> {
        if self.settled_at.is_some_and(|at| now < at) || self.links.values().any(|seen| seen.bits_per_s.is_none()) {
            return None;
        }
        let calm_since = *self.calm_since.get_or_insert(now);
        let arrived = self.links.values().filter_map(|seen| seen.bits_per_s).sum();
        if self.links.values().any(|seen| seen.behind.is_some()) {
            // A window in which something was lost and sent again tells less than the path carries.
            self.best = self.best.max(arrived);
        } else {
            self.best = 0;
        }
        if self.links.values().any(|seen| seen.is_late) {
            let best = self.best;
            self.settle(now);
            if !std::mem::take(&mut self.is_trying) {
                return Some(Conclusion::Carries(best));
            }
            self.patience = Some((self.patience.unwrap_or(PATIENCE) * 2).min(PATIENCE_MAX));
            return Some(Conclusion::CarriesNoMore);
        }
        if self.is_trying && now >= calm_since + PATIENCE {
            // What was tried has gone well.
            (self.is_trying, self.patience) = (false, None);
        }
        if now < calm_since + self.patience.unwrap_or(PATIENCE) {
            return None;
        }
        self.is_trying = true;
        self.settle(now);
        Some(Conclusion::MayCarryMore { is_used: self.is_used() })
    }

    /// Whether what arrives is most of what is reserved.
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

impl Seen {
    /// Whether the link is behind, and late because of that.
    fn look(&mut self, now: Instant, Sample { arrived_bytes, queued_bytes }: Sample) {
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

    /// Links of 2 Mb/s each, and what passed so far.
    #[derive(Default)]
    struct Road {
        congestion: Congestion,
        now_ms: u64,
        arrived: [u64; 4],
        queued: [u64; 4],
    }

    impl Road {
        /// So many of them over a path that carries so much, until something is concluded.
        fn run(&mut self, links: usize, carries: u64, span_ms: u64) -> Option<(u64, Conclusion)> {
            let (began, step_ms) = (self.now_ms, 50);
            while self.now_ms < began + span_ms {
                self.now_ms += step_ms;
                for link in 0..4 {
                    let made = if link < links { 2 * MBIT / 8 * step_ms / 1000 } else { 0 };
                    let passes = (carries / links as u64 / 8 * step_ms / 1000).min(made + self.queued[link]);
                    self.arrived[link] += passes;
                    self.queued[link] = self.queued[link] + made - passes;
                    let sample = Sample { arrived_bytes: self.arrived[link], queued_bytes: self.queued[link] };
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
    fn a_path_that_carries_less_than_is_reserved_is_known_soon() {
        let mut road = Road::default();
        let Some((ms, Conclusion::Carries(rate))) = road.run(4, 6 * MBIT, 5000) else { panic!("it is full") };
        assert!(ms <= 2500 && (5_900_000..=6_100_000).contains(&rate), "{ms} ms, {rate} bit/s");
        assert_eq!(Road::default().run(4, 9 * MBIT, 2900), None, "and nothing where all arrives");
    }

    #[test]
    fn a_path_that_nobody_uses_is_not_thought_to_be_wider() {
        let mut congestion = Congestion::default();
        for step in 0..1000 {
            let sample = Sample { arrived_bytes: step * 1000, queued_bytes: 0 };
            let concluded = congestion.note(at(50 * step), "disk", 2 * MBIT, sample);
            let is_unused = matches!(concluded, None | Some(Conclusion::MayCarryMore { is_used: false }));
            assert!(is_unused, "160 kbit/s of two million: {concluded:?}");
        }
    }

    #[test]
    fn a_machine_that_stands_still_at_times_is_no_narrow_path() {
        // Each tenth of a second or so is missing: nothing arrives, and then all at once that the path can carry.
        let (mut road, mut tried) = (Road::default(), 0);
        for round in 0..200 {
            for (carries, span_ms) in [(8 * MBIT, 500 + round % 7 * 100), (0, 150 + round % 3 * 50), (40 * MBIT, 200)] {
                match road.run(4, carries, span_ms) {
                    None => {}
                    Some((_, Conclusion::MayCarryMore { .. })) => tried += 1,
                    Some((ms, concluded)) => panic!("{concluded:?} {ms} ms after {carries} bit/s began, round {round}"),
                }
            }
        }
        assert!(tried > 20, "{tried}");
    }

    #[test]
    fn one_more_is_tried_less_and_less_often_while_it_fails() {
        let (mut road, mut tries) = (Road::default(), Vec::new());
        for _ in 0..6 {
            let Some((ms, Conclusion::MayCarryMore { is_used: true })) = road.run(2, 5 * MBIT, 100_000) else {
                panic!("it is calm")
            };
            tries.push(ms);
            let Some((_, Conclusion::CarriesNoMore)) = road.run(3, 5 * MBIT, 100_000) else { panic!("it is full") };
        }
        assert!(tries.is_sorted() && tries[5] > 3 * tries[0] && tries[5] < 20_000, "{tries:?}");
        assert_eq!(
            road.run(3, 9 * MBIT, 100_000).map(|(_, concluded)| concluded),
            Some(Conclusion::MayCarryMore { is_used: true })
        );
        let next = road.run(4, 9 * MBIT, 100_000);
        assert!(next.is_some_and(|(ms, _)| ms < 10_000), "what goes well is tried again soon: {next:?}");
    }
}
