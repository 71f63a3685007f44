//! How long the stages of an attachment's requests take, computed from the requests that its session timed.

use std::collections::VecDeque;
use std::time::Instant;

use farbus_session::native::Timed;
use serde::Serialize;

use super::latency_history::{History, Second};

/// How many requests are remembered: for a device in use, those of the last seconds to minutes.
const SAMPLES_MAX: usize = 256;

/// The latest timed requests.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    latest: VecDeque<Timed>,
    is_told: bool,
    history: History,
}

/// The durations of the stages of the latest timed requests. Their sum is what the session saw; the front end (FUSE,
/// NBD, a kernel) adds its own time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "cli", schemars(rename = "LatencyStatus"))]
pub struct Latency {
    /// How many requests were timed.
    pub samples: usize,
    /// A number that is greater after each further second in which a request was timed and which is over: then
    /// [`SessionStatus::latency_seconds`](super::status::SessionStatus::latency_seconds) tells more. 0: there was none.
    pub second: u64,
    /// From the moment the session was asked until it answered.
    pub all_us: Spread,
    /// Both directions over the network, including both ends' operating systems.
    pub network_us: Spread,
    /// In the exporter's end of the session: arriving, waiting for other requests, waiting for the link.
    pub bus_us: Spread,
    /// In the device.
    pub back_end_us: Spread,
}

/// The distribution of many durations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
pub struct Spread {
    /// Median.
    #[cfg_attr(feature = "cli", schemars(range(min = 0)))]
    pub p50: f64,
    /// 90th percentile: nine of ten were not longer.
    #[cfg_attr(feature = "cli", schemars(range(min = 0)))]
    pub p90: f64,
    /// 99th percentile.
    #[cfg_attr(feature = "cli", schemars(range(min = 0)))]
    pub p99: f64,
}

impl Samples {
    pub(crate) fn note(&mut self, timed: Timed, now: Instant) {
        self.history.note(&timed, now);
        if self.latest.len() == SAMPLES_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(timed);
        self.is_told = false;
    }

    pub(crate) fn take_latest(&mut self) -> Option<Timed> {
        let is_told = std::mem::replace(&mut self.is_told, true);
        self.latest.back().filter(|_| !is_told).copied()
    }

    /// The seconds that are over at `now`.
    pub(crate) fn seconds(&mut self, now: Instant) -> Vec<Second> {
        self.history.seconds(now)
    }

    pub(crate) fn summary(&mut self, now: Instant) -> Option<Latency> {
        let second = self.history.latest(now).map_or(0, |second| second + 1);
        let spread = |stage: fn(&Timed) -> u64| Spread::of(self.latest.iter().map(stage).collect());
        (!self.latest.is_empty()).then(|| Latency {
            samples: self.latest.len(),
            second,
            all_us: spread(|timed| timed.total_ns),
            network_us: spread(Timed::network_ns),
            bus_us: spread(Timed::bus_ns),
            back_end_us: spread(Timed::device_ns),
        })
    }
}

impl Spread {
    /// The distribution of at least one duration, in nanoseconds.
    fn of(mut spans_ns: Vec<u64>) -> Self {
        spans_ns.sort_unstable();
        let at = |percent: usize| spans_ns[(spans_ns.len() * percent / 100).min(spans_ns.len() - 1)] as f64 / 1000.0;
        Self { p50: at(50), p90: at(90), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::frame::Residence;

    #[test]
    fn latency_covers_the_latest_requests_and_each_is_taken_once() {
        let mut samples = Samples::default();
        let now = Instant::now();
        assert_eq!((samples.summary(now), samples.take_latest()), (None, None));
        let timed = |total_ns| {
            let residence = Residence { queue_ns: 1_000, device_ns: 20_000, reply_ns: 2_000 };
            Timed { total_ns, residence }
        };
        (0..SAMPLES_MAX as u64).for_each(|_| samples.note(timed(1 << 40), now));
        (0..SAMPLES_MAX as u64).for_each(|number| samples.note(timed(100_000 + number * 1000), now));
        let last = samples.take_latest();
        assert_eq!((last, samples.take_latest()), (Some(timed(355_000)), None));
        let told = samples.summary(now).unwrap();
        assert_eq!((told.samples, told.all_us), (256, Spread { p50: 228.0, p90: 330.0, p99: 353.0 }));
        assert_eq!(
            (told.back_end_us, told.bus_us),
            (Spread { p50: 20.0, p90: 20.0, p99: 20.0 }, Spread { p50: 3.0, p90: 3.0, p99: 3.0 })
        );
        assert_eq!(told.network_us.p50, 205.0);
    }
}
