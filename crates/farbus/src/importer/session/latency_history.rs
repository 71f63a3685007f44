//! How long the stages of an attachment's requests took in each of the last seconds, in fixed memory.
//!
//! 14 KiB at most for each session. A timed request costs four counters; the end of a second reads them once.

use std::collections::VecDeque;
use std::time::Instant;

use farbus_control::session::{Percentiles, Second};
use farbus_session::native::RequestTiming;

/// Seconds that are kept, those without a timed request left out.
pub const SECONDS_MAX: usize = 180;
/// By how many seconds the room for them grows: an attachment that does little needs little.
const GROWTH: usize = 20;
/// Parts of each power of two: a percentile is exact to 1/16.
const PARTS: u64 = 16;
/// Shorter times count as this long: 2^8 ns.
const OCTAVE_MIN: u32 = 8;
/// Longer times count as this long: 2^36 ns, 69 s.
const OCTAVE_MAX: u32 = 36;
const BUCKETS: usize = ((OCTAVE_MAX - OCTAVE_MIN) as u64 * PARTS) as usize;
const STAGES: usize = 4;

#[derive(Debug)]
struct LatencySecond {
    second: u32,
    timed: u32,
    stages: [Percentiles; STAGES],
}

/// The seconds of one session.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistory {
    began: Option<Instant>,
    /// The second that runs, and what was timed in it.
    current: u64,
    timed: u32,
    counts: Option<Box<[[u16; BUCKETS]; STAGES]>>,
    kept: VecDeque<LatencySecond>,
}

fn bucket_of(span_ns: u64) -> usize {
    let span_ns = span_ns.clamp(1 << OCTAVE_MIN, (1 << OCTAVE_MAX) - 1);
    let octave = span_ns.ilog2();
    let part = (span_ns >> (octave - PARTS.ilog2())) - PARTS;
    (u64::from(octave - OCTAVE_MIN) * PARTS + part) as usize
}

/// The upper end of a bucket, microseconds.
fn end_of(bucket: usize) -> f32 {
    let (octave, part) = (OCTAVE_MIN + (bucket as u64 / PARTS) as u32, bucket as u64 % PARTS);
    ((PARTS + part + 1) << (octave - PARTS.ilog2())) as f32 / 1000.0
}

/// The percentiles of a second.
fn percentiles_of(counts: &[u16; BUCKETS], timed: u32) -> Percentiles {
    let at = |of_ten_thousand: u64| {
        // The first request that so many are not longer than: nearest rank.
        let rank = (u64::from(timed) * of_ten_thousand).div_ceil(10_000).max(1);
        let mut seen = 0;
        let found = counts.iter().position(|&count| {
            seen += u64::from(count);
            seen >= rank
        });
        found.map_or(0.0, end_of)
    };
    Percentiles { p50: at(5_000), p99: at(9_900), p999: at(9_990) }
}

impl LatencyHistory {
    /// Counts a request that was timed at `now`.
    pub fn note(&mut self, timed: &RequestTiming, now: Instant) {
        self.advance(now);
        // A count has 16 bits; one request in 64 is timed, so that is four million requests in this second.
        if self.timed == u32::from(u16::MAX) {
            return;
        }
        self.timed += 1;
        let counts = self.counts.get_or_insert_with(|| Box::new([[0; BUCKETS]; STAGES]));
        let spans = [timed.total_ns, timed.network_ns(), timed.bus_ns(), timed.device_ns()];
        for (stage, span_ns) in counts.iter_mut().zip(spans) {
            stage[bucket_of(span_ns)] += 1;
        }
    }

    /// Ends the seconds before the one that runs at `now`.
    fn advance(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let second = now.saturating_duration_since(began).as_secs();
        if second <= self.current {
            return;
        }
        let ended = std::mem::replace(&mut self.current, second);
        let timed = std::mem::take(&mut self.timed);
        let Some(counts) = self.counts.as_mut().filter(|_| timed > 0) else { return };
        let mut stages = [Percentiles::default(); STAGES];
        for (percentiles, counts) in stages.iter_mut().zip(counts.iter_mut()) {
            *percentiles = percentiles_of(counts, timed);
            counts.fill(0);
        }
        if self.kept.len() == SECONDS_MAX {
            self.kept.pop_front();
        }
        if self.kept.len() == self.kept.capacity() {
            self.kept.reserve_exact(GROWTH.min(SECONDS_MAX - self.kept.len()));
        }
        self.kept.push_back(LatencySecond { second: u32::try_from(ended).unwrap_or(u32::MAX), timed, stages });
    }

    /// The number of the last second that is over and had a timed request; it grows.
    pub fn latest(&mut self, now: Instant) -> Option<u64> {
        self.advance(now);
        self.kept.back().map(|kept| kept.second.into())
    }

    /// The seconds that are over and had a timed request, the oldest first; none is older than [`SECONDS_MAX`].
    pub fn seconds(&mut self, now: Instant) -> Vec<Second> {
        self.advance(now);
        let current = self.current;
        let ago = |second: u32| current.saturating_sub(u64::from(second) + 1);
        let is_shown = |kept: &&LatencySecond| ago(kept.second) < SECONDS_MAX as u64;
        let shown = |kept: &LatencySecond| {
            let [all_us, network_us, bus_us, back_end_us] = kept.stages;
            Second {
                number: kept.second.into(),
                ago_s: ago(kept.second),
                timed: kept.timed,
                all_us,
                network_us,
                bus_us,
                back_end_us,
            }
        };
        self.kept.iter().filter(is_shown).map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farbus_session::native::frame::ResidenceTimes;

    use super::*;

    fn timed(total_us: u32) -> RequestTiming {
        let residence = ResidenceTimes { queue_ns: 1_000, device_ns: total_us * 100, reply_ns: 2_000 };
        RequestTiming { total_ns: u64::from(total_us) * 1000, residence }
    }

    #[test]
    fn each_second_has_the_percentiles_of_its_own_requests_to_a_sixteenth() {
        let (mut history, began) = (LatencyHistory::default(), Instant::now());
        let at = |ms: u64| began + Duration::from_millis(ms);
        (1..=1000).for_each(|us| history.note(&timed(us), at(10)));
        assert_eq!(history.seconds(at(900)), [], "this second is not over");
        history.note(&timed(50_000), at(3500));
        let seconds = history.seconds(at(4100));
        assert_eq!(seconds.iter().map(|second| (second.ago_s, second.timed)).collect::<Vec<_>>(), [(3, 1000), (0, 1)]);
        assert_eq!((seconds[0].number, seconds[1].number), (0, 3));
        let near = |quantile: f32, us: f32| quantile >= us && quantile <= us * (1.0 + 1.0 / 16.0);
        let all = seconds[0].all_us;
        assert!(near(all.p50, 500.0) && near(all.p99, 990.0) && near(all.p999, 999.0), "{all:?}");
        let device = seconds[0].back_end_us;
        assert!(near(device.p50, 50.0) && near(device.p99, 99.0), "{device:?}");
        let last = seconds[1].all_us;
        assert!(near(last.p50, 50_000.0) && last.p50 == last.p999, "{last:?}");
        assert_eq!(history.latest(at(4100)), Some(3));
    }

    #[test]
    fn hours_of_requests_take_as_much_memory_as_minutes_and_old_seconds_are_not_shown() {
        let (mut history, began) = (LatencyHistory::default(), Instant::now());
        for second in 0..4 * SECONDS_MAX as u64 {
            (0..3).for_each(|_| history.note(&timed(u32::MAX / 200), began + Duration::from_secs(second)));
        }
        assert_eq!(history.kept.len(), SECONDS_MAX);
        assert!(
            history.kept.capacity() * size_of::<LatencySecond>() + size_of::<[[u16; BUCKETS]; STAGES]>() < 14 << 10
        );
        let seconds = history.seconds(began + Duration::from_secs(4 * SECONDS_MAX as u64));
        assert_eq!((seconds.len(), seconds[0].ago_s), (SECONDS_MAX, SECONDS_MAX as u64 - 1));
        let later = began + Duration::from_secs(5 * SECONDS_MAX as u64);
        assert_eq!(history.seconds(later), [], "nothing was asked of it for minutes");
    }

    #[test]
    fn every_time_has_a_bucket_that_ends_after_it() {
        for span_ns in [0, 1, 255, 256, 257, 4095, 4096, 1_000_000, u64::from(u32::MAX), (1 << 36) - 1] {
            let end_ns = f64::from(end_of(bucket_of(span_ns))) * 1000.0;
            assert!(end_ns >= span_ns as f64, "{span_ns}: {end_ns}");
            assert!(span_ns < 256 || end_ns <= span_ns as f64 * 1.07, "{span_ns}: {end_ns}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    /// What a timed request costs its session: printed, for the notes beside a benchmark.
    #[test]
    fn timed_requests_are_counted_without_an_allocation_each() {
        let (mut history, began) = (LatencyHistory::default(), Instant::now());
        history.note(&timed(1), began);
        let counts: *const _ = history.counts.as_deref().unwrap();
        let rounds = 100_000_u32;
        let since = Instant::now();
        for n in 0..rounds {
            history.note(&timed(n % 5000), began + Duration::from_millis(u64::from(n / 50)));
        }
        println!(
            "{} ns for each timed request, the ends of its seconds included",
            since.elapsed().as_nanos() / u128::from(rounds)
        );
        assert!(std::ptr::eq(counts, history.counts.as_deref().unwrap()), "the counters are those of the beginning");
        assert_eq!(history.kept.len(), 1);
    }
}
