//! Which requests are timed, and what came of it: where the time of a request went, without two clocks being compared.

use std::time::Duration;

use farbus_model::{Instant, Payload, TransferType};
use farbus_wire::native::frame::{RESIDENCE_BYTES, Residence};

use crate::Reject;

/// One request in so many is timed: often enough for a median within a second, too seldom to be seen in a throughput.
const TIMED_ONE_IN: u32 = 64;
/// And one in so long at least: who asks seldom is timed as well.
const TIMED_EVERY: Duration = Duration::from_secs(1);
/// Of isochronous requests one in so many: a stream's slack is the least of some, and a reply's twelve bytes stand
/// beside twenty of its own. No multiple of two or three, because two streams in step would share it unevenly.
const ISOCHRONOUS_ONE_IN: u32 = 5;

/// Reads a clock: the one whose moments are handed in elsewhere. For what has to be measured within a turn.
pub type ReadClock = Box<dyn Fn() -> Instant + Send>;

/// How long one request took, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// From its submission here to its end here, ns.
    pub total_ns: u64,
    /// What its exporter said.
    pub residence: Residence,
}

impl Timed {
    /// With the exporter's end of the session, ns: arriving, waiting for others, waiting for the link.
    pub fn bus_ns(&self) -> u64 {
        u64::from(self.residence.queue_ns) + u64::from(self.residence.reply_ns)
    }

    /// With the device, ns.
    pub fn device_ns(&self) -> u64 {
        self.residence.device_ns.into()
    }

    /// Both ways over the network, ns: what is left.
    pub fn network_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.bus_ns() + self.device_ns())
    }
}

/// Which of an importer's requests are timed.
#[derive(Debug, Default)]
pub(super) struct Timing {
    left: u32,
    again_at: Option<Instant>,
    isochronous_left: u32,
    latest: Option<Timed>,
}

impl Timing {
    /// Whether the request that leaves now is timed. What layers above measure distances by is timed more often.
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

    /// The same of a request of no such kind.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.left == 0 || self.again_at.is_none_or(|at| at <= now);
        if is_due {
            (self.left, self.again_at) = (TIMED_ONE_IN, Some(now + TIMED_EVERY));
        }
        self.left -= 1;
        is_due
    }

    /// One that left so long ago was answered.
    pub fn note(&mut self, span: Duration, residence: Residence) {
        let Residence { queue_ns, device_ns, reply_ns } = residence;
        // One that stayed longer than its field holds says nothing of the rest: a key press that was waited for.
        if [queue_ns, device_ns, reply_ns].iter().all(|ns| *ns < u32::MAX) {
            let total_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            self.latest = Some(Timed { total_ns, residence });
        }
    }

    /// The latest that was answered, once.
    pub fn take(&mut self) -> Option<Timed> {
        self.latest.take()
    }
}

/// What a timed reply begins with.
pub(super) fn split_residence(body: &mut Payload) -> Result<Residence, Reject> {
    let bytes = body.split_front(RESIDENCE_BYTES.min(body.len()));
    let bytes: Result<[u8; RESIDENCE_BYTES], _> = bytes.contiguous().as_ref().try_into();
    let short = |_| Reject::new("residence", 0, "a timed reply begins with one");
    Ok(Residence::from_bytes(bytes.map_err(short)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_many_is_timed_and_one_a_second() {
        let mut timing = Timing::default();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let quick: Vec<bool> = (0..130).map(|_| timing.is_due(at(1))).collect();
        let timed: Vec<usize> = (0..130).filter(|&number| quick[number]).collect();
        assert_eq!(timed, [0, 64, 128]);
        let slow: Vec<bool> = (0..5).map(|number| timing.is_due(at(500 * number + 900))).collect();
        assert_eq!(slow, [false, true, false, true, false]);
    }

    #[test]
    fn isochronous_requests_of_two_streams_are_timed_alike() {
        let mut timing = Timing::default();
        let at = Instant::from_nanos(1);
        let timed: Vec<usize> = (0..40).filter(|_| timing.is_due_of(TransferType::Isochronous, at)).collect();
        assert_eq!(timed, [0, 5, 10, 15, 20, 25, 30, 35], "and both streams' among them");
        assert!((0..8).all(|_| timing.is_due_of(TransferType::Control, at)));
    }

    #[test]
    fn what_is_left_is_the_network_s() {
        let mut timing = Timing::default();
        let residence = Residence { queue_ns: 1_000, device_ns: 20_000, reply_ns: 2_000 };
        timing.note(Duration::from_micros(100), residence);
        let timed = timing.take().unwrap();
        assert_eq!((timed.bus_ns(), timed.device_ns(), timed.network_ns()), (3_000, 20_000, 77_000));
        assert_eq!(timing.take(), None);
        timing.note(Duration::from_secs(60), Residence { device_ns: u32::MAX, ..residence });
        assert_eq!(timing.take(), None, "somebody waited for a key");
        assert_eq!(Timed { total_ns: 5, residence }.network_ns(), 0);
        assert!(split_residence(&mut vec![0; 11].into()).is_err());
    }
}
