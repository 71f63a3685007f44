//! How long the stages of an attachment's requests take, computed from the requests that its session timed.

use std::collections::VecDeque;
use std::time::Instant;

use farbus_control::session::{Latency, Second, Spread};
use farbus_session::native::RequestTiming;

use super::latency_history::LatencyHistory;

/// How many requests are remembered: for a device in use, those of the last seconds to minutes.
const SAMPLES_MAX: usize = 256;

/// The latest timed requests.
#[derive(Debug, Default)]
pub(crate) struct LatencySamples {
    latest: VecDeque<RequestTiming>,
    is_told: bool,
    history: LatencyHistory,
}

impl LatencySamples {
    pub(crate) fn note(&mut self, timed: RequestTiming, now: Instant) {
        self.history.note(&timed, now);
        if self.latest.len() == SAMPLES_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(timed);
        self.is_told = false;
    }

    pub(crate) fn take_latest(&mut self) -> Option<RequestTiming> {
        let is_told = std::mem::replace(&mut self.is_told, true);
        self.latest.back().filter(|_| !is_told).copied()
    }

    /// The seconds that are over at `now`.
    pub(crate) fn seconds(&mut self, now: Instant) -> Vec<Second> {
        self.history.seconds(now)
    }

    pub(crate) fn summary(&mut self, now: Instant) -> Option<Latency> {
        let second = self.history.latest(now).map_or(0, |second| second + 1);
        let spread = |stage: fn(&RequestTiming) -> u64| spread_of(self.latest.iter().map(stage).collect());
        (!self.latest.is_empty()).then(|| Latency {
            samples: self.latest.len(),
            second,
            all_us: spread(|timed| timed.total_ns),
            network_us: spread(RequestTiming::network_ns),
            bus_us: spread(RequestTiming::bus_ns),
            back_end_us: spread(RequestTiming::device_ns),
        })
    }
}

/// The distribution of at least one duration, in nanoseconds.
fn spread_of(mut spans_ns: Vec<u64>) -> Spread {
    spans_ns.sort_unstable();
    let at = |percent: usize| spans_ns[(spans_ns.len() * percent / 100).min(spans_ns.len() - 1)] as f64 / 1000.0;
    Spread { p50: at(50), p90: at(90), p99: at(99) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::frame::ResidenceTimes;

    #[test]
    fn latency_covers_the_latest_requests_and_each_is_taken_once() {
        let mut samples = LatencySamples::default();
        let now = Instant::now();
        assert_eq!((samples.summary(now), samples.take_latest()), (None, None));
        let timed = |total_ns| {
            let residence = ResidenceTimes { queue_ns: 1_000, device_ns: 20_000, reply_ns: 2_000 };
            RequestTiming { total_ns, residence }
        };
        (0..SAMPLES_MAX as u64).for_each(|_| samples.note(timed(1 << 40), now));
        (0..SAMPLES_MAX as u64).for_each(|number| samples.note(timed(100_000 + number * 1000), now));
        let last = samples.take_latest();
        assert_eq!((last, samples.take_latest()), (Some(timed(355_000)), None));
        let latency = samples.summary(now).unwrap();
        assert_eq!((latency.samples, latency.all_us), (256, Spread { p50: 228.0, p90: 330.0, p99: 353.0 }));
        assert_eq!(
            (latency.back_end_us, latency.bus_us),
            (Spread { p50: 20.0, p90: 20.0, p99: 20.0 }, Spread { p50: 3.0, p90: 3.0, p99: 3.0 })
        );
        assert_eq!(latency.network_us.p50, 205.0);
    }
}
