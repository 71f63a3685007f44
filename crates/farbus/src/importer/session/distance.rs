//! What was done to hide a device's distance, for the status.

use std::collections::BTreeMap;

use farbus_model::Device;
use farbus_session::far::{FarLayer, PrefetchCounts};
use farbus_session::isochronous::{IsoPacketCounts, IsochronousLayer};

/// Counters of data that was fetched before it was asked for, and of packets that were not on time, since this process
/// has had the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DistanceCounters {
    received: PrefetchCounts,
    streams: IsoPacketCounts,
    drift_ns: Option<i64>,
}

impl DistanceCounters {
    /// The counters of a device behind both layers.
    pub fn of<D: Device>(far: &FarLayer<IsochronousLayer<D>>) -> Self {
        let streams = far.device();
        Self { received: far.received(), streams: streams.counts(), drift_ns: streams.drift_ns() }
    }

    /// All counters that are not zero, by name.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let IsoPacketCounts { packets, missed, late, unclaimed, dropped, underruns } = self.streams;
        let all = [
            ("received_ahead", self.received.ahead),
            ("thrown_away", self.received.thrown_away),
            ("packets", packets),
            ("concealed", missed),
            ("late", late),
            ("unclaimed", unclaimed),
            ("dropped", dropped),
            ("underruns", underruns),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// By how much the clock of a running stream was moved to follow the device's, microseconds; `None` without one.
    pub fn drift_us(&self) -> Option<i64> {
        self.drift_ns.map(|drift| drift / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_zero_are_left_out() {
        assert!(DistanceCounters::default().counts().is_empty() && DistanceCounters::default().drift_us().is_none());
        let received = PrefetchCounts { ahead: 3, thrown_away: 0 };
        let distance = DistanceCounters {
            received,
            streams: IsoPacketCounts { missed: 1, ..IsoPacketCounts::default() },
            drift_ns: Some(-2_500),
        };
        assert_eq!(distance.counts(), BTreeMap::from([("received_ahead", 3), ("concealed", 1)]));
        assert_eq!(distance.drift_us(), Some(-2));
    }
}
