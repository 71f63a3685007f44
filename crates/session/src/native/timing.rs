//! Timed requests: which requests are timed, and where their time went, without comparing two clocks.

use std::time::Duration;

use farbus_model::{Instant, Payload, TransferType};
use farbus_wire::native::frame::{RESIDENCE_BYTES, ResidenceTimes};

use crate::ProtocolViolation;

/// One request in this many is timed: enough for a median within a second, too few to affect throughput.
const TIMED_ONE_IN: u32 = 64;
/// At least one request per this time is timed, so that slow users are timed as well.
const TIMED_EVERY: Duration = Duration::from_secs(1);
/// One isochronous request in this many is timed: a stream's slack is the least of several, and a reply's twelve bytes
/// come on top of twenty. Not a multiple of two or three, because two streams in step would share it unevenly.
const ISOCHRONOUS_ONE_IN: u32 = 5;

/// Reads the clock whose moments are arguments elsewhere, for measurements within one turn.
pub type ReadClock = Box<dyn Fn() -> Instant + Send>;

/// Counts one answered request: its bytes from the device, and its bytes to the device.
pub type CountRequest = Box<dyn Fn(u64, u64) + Send>;

/// How long one request took, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTiming {
    /// From its submission to its completion on the importer, ns.
    pub total_ns: u64,
    /// Where its time went on the exporter.
    pub residence: ResidenceTimes,
}

impl RequestTiming {
    /// Time in the exporter's session, ns: receiving, waiting for other requests, waiting for the link.
    pub fn bus_ns(&self) -> u64 {
        u64::from(self.residence.queue_ns) + u64::from(self.residence.reply_ns)
    }

    /// Time with the device, ns.
    pub fn device_ns(&self) -> u64 {
        self.residence.device_ns.into()
    }

    /// Time on the network in both directions, ns: the rest.
    pub fn network_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.bus_ns() + self.device_ns())
    }
}

/// Decides which of an importer's requests are timed.
#[derive(Debug, Default)]
pub(super) struct TimingSampler {
    left: u32,
    again_at: Option<Instant>,
    isochronous_left: u32,
    latest: Option<RequestTiming>,
}

impl TimingSampler {
    /// Whether the request that leaves now is timed. Kinds by which upper layers measure distances are timed more
    /// often.
    pub fn is_due_of(&mut self, kind: TransferType, now: Instant) -> bool {
        let is_due = self.is_due(now);
        match kind {
            TransferType::Control => true,
            TransferType::Isochronous => {
                let is_next = self.isochronous_left == 0;
                self.isochronous_left = self.isochronous_left.checked_sub(1).unwrap_or(ISOCHRONOUS_ONE_IN - 1);
                is_due || is_next
            }
            TransferType::Bulk | TransferType::Interrupt => is_due,
        }
    }

    /// Whether a request of a class without transfer types is timed.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.left == 0 || self.again_at.is_none_or(|at| at <= now);
        if is_due {
            (self.left, self.again_at) = (TIMED_ONE_IN, Some(now + TIMED_EVERY));
        }
        self.left -= 1;
        is_due
    }

    /// Records the reply of a timed request that left `span` ago.
    pub fn note(&mut self, span: Duration, residence: ResidenceTimes) {
        let ResidenceTimes { queue_ns, device_ns, reply_ns } = residence;
        // A field at its maximum says nothing about the rest, as when a keyboard waits for a key press.
        if [queue_ns, device_ns, reply_ns].iter().all(|ns| *ns < u32::MAX) {
            let total_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            self.latest = Some(RequestTiming { total_ns, residence });
        }
    }

    /// Takes the latest result.
    pub fn take(&mut self) -> Option<RequestTiming> {
        self.latest.take()
    }
}

/// Takes the residence from the beginning of a timed reply.
pub(super) fn split_residence(body: &mut Payload) -> Result<ResidenceTimes, ProtocolViolation> {
    let bytes = body.split_front(RESIDENCE_BYTES.min(body.len()));
    let bytes: Result<[u8; RESIDENCE_BYTES], _> = bytes.contiguous().as_ref().try_into();
    let short = |_| ProtocolViolation::new("residence", 0, "a timed reply begins with one");
    Ok(ResidenceTimes::from_bytes(bytes.map_err(short)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_64_and_one_a_second_is_timed() {
        let mut timing = TimingSampler::default();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let quick: Vec<bool> = (0..130).map(|_| timing.is_due(at(1))).collect();
        let timed: Vec<usize> = (0..130).filter(|&number| quick[number]).collect();
        assert_eq!(timed, [0, 64, 128]);
        let slow: Vec<bool> = (0..5).map(|number| timing.is_due(at(500 * number + 900))).collect();
        assert_eq!(slow, [false, true, false, true, false]);
    }

    #[test]
    fn two_isochronous_streams_are_timed_equally_often() {
        let mut timing = TimingSampler::default();
        let at = Instant::from_nanos(1);
        let timed: Vec<usize> = (0..40).filter(|_| timing.is_due_of(TransferType::Isochronous, at)).collect();
        assert_eq!(timed, [0, 5, 10, 15, 20, 25, 30, 35], "and both streams' among them");
        assert!((0..8).all(|_| timing.is_due_of(TransferType::Control, at)));
    }

    #[test]
    fn network_time_is_the_rest_of_the_total() {
        let mut timing = TimingSampler::default();
        let residence = ResidenceTimes { queue_ns: 1_000, device_ns: 20_000, reply_ns: 2_000 };
        timing.note(Duration::from_micros(100), residence);
        let timed = timing.take().unwrap();
        assert_eq!((timed.bus_ns(), timed.device_ns(), timed.network_ns()), (3_000, 20_000, 77_000));
        assert_eq!(timing.take(), None);
        timing.note(Duration::from_secs(60), ResidenceTimes { device_ns: u32::MAX, ..residence });
        assert_eq!(timing.take(), None, "somebody waited for a key");
        assert_eq!(RequestTiming { total_ns: 5, residence }.network_ns(), 0);
        assert!(split_residence(&mut vec![0; 11].into()).is_err());
    }
}
