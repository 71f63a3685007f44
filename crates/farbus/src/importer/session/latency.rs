//! Where the time of an attachment's requests goes, told from those that its session timed.

use std::collections::VecDeque;

use farbus_session::native::Timed;
use serde::Serialize;

/// Requests that are remembered: of a device in use, those of the last seconds to minutes.
const SAMPLES_MAX: usize = 256;

/// The latest requests that were timed.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    latest: VecDeque<Timed>,
    is_told: bool,
}

/// Stages of requests, of as many as were timed lately. Their sum is what the session saw; what shows the device here
/// (FUSE, NBD, a kernel) adds its own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Requests.
    pub samples: usize,
    /// From the session's being asked to its having answered.
    pub all_us: Spread,
    /// Both ways over the network, this end's and the other's systems among it.
    pub network_us: Spread,
    /// With the exporter's end of the session: arriving, waiting for others, waiting for the link.
    pub bus_us: Spread,
    /// With the device.
    pub back_end_us: Spread,
}

/// Of many spans, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Samples {
    pub(crate) fn note(&mut self, timed: Timed) {
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

    pub(crate) fn summary(&self) -> Option<Latency> {
        let spread = |stage: fn(&Timed) -> u64| Spread::of(self.latest.iter().map(stage).collect());
        (!self.latest.is_empty()).then(|| Latency {
            samples: self.latest.len(),
            all_us: spread(|timed| timed.total_ns),
            network_us: spread(Timed::network_ns),
            bus_us: spread(Timed::bus_ns),
            back_end_us: spread(Timed::device_ns),
        })
    }
}

impl Spread {
    /// Of one span, ns, at least.
    fn of(mut spans_ns: Vec<u64>) -> Self {
        spans_ns.sort_unstable();
        let at = |percent: usize| spans_ns[(spans_ns.len() * percent / 100).min(spans_ns.len() - 1)] as f64 / 1000.0;
        Self { p50: at(50), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::frame::Residence;

    #[test]
    fn stages_are_told_of_the_latest_and_each_once() {
        let mut samples = Samples::default();
        assert_eq!((samples.summary(), samples.take_latest()), (None, None));
        let timed = |total_ns| {
            let residence = Residence { queue_ns: 1_000, device_ns: 20_000, reply_ns: 2_000 };
            Timed { total_ns, residence }
        };
        (0..SAMPLES_MAX as u64).for_each(|_| samples.note(timed(1 << 40)));
        (0..SAMPLES_MAX as u64).for_each(|number| samples.note(timed(100_000 + number * 1000)));
        let last = samples.take_latest();
        assert_eq!((last, samples.take_latest()), (Some(timed(355_000)), None));
        let told = samples.summary().unwrap();
        assert_eq!((told.samples, told.all_us), (256, Spread { p50: 228.0, p99: 353.0 }));
        assert_eq!((told.back_end_us, told.bus_us), (Spread { p50: 20.0, p99: 20.0 }, Spread { p50: 3.0, p99: 3.0 }));
        assert_eq!(told.network_us.p50, 205.0);
    }
}
