//! What a device of ours sends, served to somebody who looks on.

use std::fmt;

use farbus_model::limits::OBSERVED_GRANT_MAX;
use farbus_model::{Instant, Readiness};
use farbus_wire::native::control::{Cause, Credit, End};
use farbus_wire::native::{Arrived, Flow, Head, Kind, Lane, Message, Urgency};

use super::exporter::{Served, Unmovable};
use crate::Reject;
use crate::observe::Seat;
use crate::snapshot::{Reader, Writer};

/// A seat in a device's audience, and what its owner asked for.
pub struct ServedObserver {
    attachment: u16,
    seat: Seat,
    readiness: Readiness,
    /// Makes it unready: what it stood for is being seen to.
    hush: Box<dyn Fn() + Send>,
    /// The device's [`Description`](farbus_wire::native::usb::Description).
    description: Vec<u8>,
    /// Events that may yet be sent.
    granted: u32,
    /// The next event's.
    tag: u16,
    give_back: Option<Box<dyn FnOnce(Instant) + Send>>,
}

impl fmt::Debug for ServedObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedObserver").field("granted", &self.granted).finish_non_exhaustive()
    }
}

impl ServedObserver {
    /// Serves `seat` as `attachment`; `readiness` is what the seat's wake makes ready and `hush` unready, and `give_back` is called in the end.
    pub fn new(
        attachment: u16,
        seat: Seat,
        readiness: Readiness,
        hush: impl Fn() + Send + 'static,
        description: Vec<u8>,
        give_back: impl FnOnce(Instant) + Send + 'static,
    ) -> Self {
        let give_back: Option<Box<dyn FnOnce(Instant) + Send>> = Some(Box::new(give_back));
        Self { attachment, seat, readiness, hush: Box::new(hush), description, granted: 0, tag: 0, give_back }
    }

    fn send(&mut self, lane: &mut Lane) {
        while self.granted > 0
            && let Some(event) = self.seat.take()
        {
            self.granted -= 1;
            let head = Head::new(Kind::Event, self.attachment, self.tag);
            self.tag = self.tag.wrapping_add(1);
            let (part, flow) = (event.part(), Flow(u32::from(self.attachment) << 8));
            // Whoever only looks on waits for those who work.
            let urgency = Urgency::Low;
            lane.send(Message { head, part, payload: event.data, urgency, flow, done_at: None });
        }
    }
}

impl Served for ServedObserver {
    fn credit(&self) -> Credit {
        Credit { requests: 1, bytes: 1 }
    }

    fn description(&self) -> Vec<u8> {
        self.description.clone()
    }

    fn handle_arrived(&mut self, _now: Instant, arrived: Arrived, lane: &mut Lane) -> Result<(), Reject> {
        match arrived.head.kind {
            Kind::Grant => {
                let bytes = arrived.body.contiguous();
                let more = bytes.as_ref().try_into().map(u32::from_le_bytes);
                let more = more.map_err(|_| Reject::new("grant", bytes.len() as u64, "it has 4 bytes"))?;
                let granted = self.granted.checked_add(more).filter(|granted| *granted <= OBSERVED_GRANT_MAX);
                self.granted = granted.ok_or(Reject::new("grant", more.into(), "no more than a device may hold"))?;
                self.send(lane);
                Ok(())
            }
            kind => Err(Reject::new("kind", kind.code().into(), "who observes asks for nothing")),
        }
    }

    fn handle_ready(&mut self, _now: Instant, lane: &mut Lane) {
        (self.hush)();
        self.send(lane);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn restore(&mut self, _now: Instant, from: &mut Reader<'_>) -> Result<(), Reject> {
        let (granted, tag) = (from.u32("grant")?, from.u16("tag")?);
        if granted > OBSERVED_GRANT_MAX {
            return Err(Reject::new("grant", granted.into(), "no more than a device may hold"));
        }
        (self.granted, self.tag) = (granted, tag);
        from.end("state")
    }

    /// What nobody has sent by then is not seen.
    fn save(&self, to: &mut Writer) -> Result<(), Unmovable> {
        to.u32(self.granted);
        to.u16(self.tag);
        Ok(())
    }

    fn poll_end(&mut self) -> Option<End> {
        let message = "the device is not shared any more".to_owned();
        self.seat.is_over().then_some(End { cause: Cause::Gone, message })
    }

    fn finish(mut self: Box<Self>, now: Instant) {
        if let Some(give_back) = self.give_back.take() {
            give_back(now);
        }
    }
}
