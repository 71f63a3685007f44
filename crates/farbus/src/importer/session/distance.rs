//! What was done to hide a device's distance, for the status.

use std::collections::BTreeMap;

use farbus_model::Device;
use farbus_session::far::{Far, Received};
use farbus_session::isochronous::{Counts, Isochronous};

/// Counters of data that was fetched before it was asked for, and of packets that were not on time, since this process
/// has had the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    received: Received,
    streams: Counts,
    drift_ns: Option<i64>,
}

impl Distance {
    /// The counters of a device behind both layers.
    pub fn of<D: Device>(far: &Far<Isochronous<D>>) -> Self {
        let streams = far.device();
        Self { received: far.received(), streams: streams.counts(), drift_ns: streams.drift_ns() }
    }

    /// All counters that are not zero, by name.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let Counts { packets, missed, late, unclaimed, dropped, underruns } = self.streams;
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
        assert!(Distance::default().counts().is_empty() && Distance::default().drift_us().is_none());
        let received = Received { ahead: 3, thrown_away: 0 };
        let distance =
            Distance { received, streams: Counts { missed: 1, ..Counts::default() }, drift_ns: Some(-2_500) };
        assert_eq!(distance.counts(), BTreeMap::from([("received_ahead", 3), ("concealed", 1)]));
        assert_eq!(distance.drift_us(), Some(-2));
    }
}
