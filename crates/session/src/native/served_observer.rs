//! Events of a device of this host, or frames of a stream, served to an observer or reader.

use std::fmt;

use farbus_model::limits::{
    CONSOLE_BYTES_MAX, CONSOLE_EVENT_BYTES_MAX, OBSERVED_BYTES_MAX, OBSERVED_GRANT_MAX, URB_BYTES_MAX,
};
use farbus_model::{Instant, Payload, ReadinessSource};
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::{
    ClassPart, FlowId, FrameHeader, FrameKind, LaneArray, MessageUrgency, OutboundMessage, ReceivedFrame,
};

use super::exporter::{ServedExport, UnmovableError};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};
use crate::{observe, stream};

/// A source of events for one observer.
pub trait ObserverFeed: Send {
    /// Takes the oldest event in the encoding of its class: the head, and data.
    fn take(&mut self) -> Option<(ClassPart, Payload)>;

    /// How many events may be requested in advance.
    fn grant_max(&self) -> u32;

    /// The next event is taken when at most so many bytes wait for the link.
    fn waiting_bytes_max(&self) -> usize;

    /// The most bytes of an event.
    fn event_bytes_max(&self) -> usize {
        URB_BYTES_MAX as usize
    }

    /// Whether another process can continue where this one stops.
    fn is_movable(&self) -> bool;

    /// Why no more events follow, if none do.
    fn over(&self) -> Option<&'static str>;
}

impl ObserverFeed for observe::EventObserver {
    fn take(&mut self) -> Option<(ClassPart, Payload)> {
        observe::EventObserver::take(self).map(|event| (event.part(), event.data))
    }

    fn grant_max(&self) -> u32 {
        OBSERVED_GRANT_MAX
    }

    /// What the link does not take waits in the source, which drops what is too much.
    fn waiting_bytes_max(&self) -> usize {
        OBSERVED_BYTES_MAX
    }

    /// Events that are not sent by then are lost.
    fn is_movable(&self) -> bool {
        true
    }

    fn over(&self) -> Option<&'static str> {
        self.is_over().then_some("the device is not shared any more")
    }
}

impl ObserverFeed for observe::ConsoleObserver {
    fn take(&mut self) -> Option<(ClassPart, Payload)> {
        observe::ConsoleObserver::take(self).map(|output| (output.part(), output.data))
    }

    fn grant_max(&self) -> u32 {
        OBSERVED_GRANT_MAX
    }

    /// What the link does not take waits in the source, which drops the oldest.
    fn waiting_bytes_max(&self) -> usize {
        CONSOLE_BYTES_MAX
    }

    fn event_bytes_max(&self) -> usize {
        CONSOLE_EVENT_BYTES_MAX
    }

    /// What is not sent by then is lost.
    fn is_movable(&self) -> bool {
        true
    }

    fn over(&self) -> Option<&'static str> {
        self.is_over().then_some("the device is not shared any more")
    }
}

impl ObserverFeed for stream::FrameSubscriber {
    fn take(&mut self) -> Option<(ClassPart, Payload)> {
        stream::FrameSubscriber::take(self).map(|frame| (frame.part(), frame.data))
    }

    fn grant_max(&self) -> u32 {
        self.description().window()
    }

    fn waiting_bytes_max(&self) -> usize {
        let description = self.description();
        description.window() as usize * description.frame_bytes_max as usize
    }

    /// A reader of all frames would miss those that wait here.
    fn is_movable(&self) -> bool {
        self.policy() == stream::SlowReaderPolicy::Latest
    }

    fn over(&self) -> Option<&'static str> {
        self.is_over().then_some("the source has ended")
    }
}

/// A source, and how much its observer has requested.
pub struct ServedObserver {
    attachment: u16,
    observer: Box<dyn ObserverFeed>,
    readiness: ReadinessSource,
    /// Makes the readiness unready again.
    hush: Box<dyn Fn() + Send>,
    /// The description, in the encoding of its class.
    description: Vec<u8>,
    /// How many events may still be sent.
    granted: u32,
    /// The number of the next event.
    tag: u16,
    /// Whether more events may be there, to be sent when the link has taken some.
    waits_for_room: bool,
    give_back: Option<Box<dyn FnOnce(Instant) + Send>>,
}

impl fmt::Debug for ServedObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedObserver").field("granted", &self.granted).finish_non_exhaustive()
    }
}

impl ServedObserver {
    /// Serves `observer` as `attachment`. The source's wake makes `readiness` ready, and `hush` makes it unready.
    /// `give_back` is called at the end.
    pub fn new(
        attachment: u16,
        observer: Box<dyn ObserverFeed>,
        readiness: ReadinessSource,
        hush: impl Fn() + Send + 'static,
        description: Vec<u8>,
        give_back: impl FnOnce(Instant) + Send + 'static,
    ) -> Self {
        let give_back: Option<Box<dyn FnOnce(Instant) + Send>> = Some(Box::new(give_back));
        let (granted, tag, waits_for_room) = (0, 0, false);
        Self {
            attachment,
            observer,
            readiness,
            hush: Box::new(hush),
            description,
            granted,
            tag,
            waits_for_room,
            give_back,
        }
    }

    fn send(&mut self, lanes: &mut LaneArray) {
        let most = self.observer.waiting_bytes_max();
        self.waits_for_room = false;
        while self.granted > 0 {
            if lanes.untaken_bytes() > most {
                self.waits_for_room = true;
                break;
            }
            let Some((part, payload)) = self.observer.take() else { break };
            self.granted -= 1;
            let head = FrameHeader::new(FrameKind::Event, self.attachment, self.tag);
            self.tag = self.tag.wrapping_add(1);
            let flow = FlowId(u32::from(self.attachment) << 8);
            // An observer's copies wait behind the requests of users.
            let urgency = MessageUrgency::Low;
            lanes.send(OutboundMessage { head, part, payload, urgency, flow, done_at: None });
        }
    }
}

impl ServedExport for ServedObserver {
    fn credit(&self) -> AttachmentCredit {
        AttachmentCredit { requests: 1, bytes: 1 }
    }

    fn answers_bytes_max(&self) -> usize {
        self.observer.waiting_bytes_max() + self.observer.event_bytes_max()
    }

    fn room_wanted(&self) -> Option<usize> {
        self.waits_for_room.then(|| self.observer.waiting_bytes_max())
    }

    fn description(&self) -> Vec<u8> {
        self.description.clone()
    }

    fn handle_arrived(
        &mut self,
        _now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        match arrived.head.kind {
            FrameKind::Grant => {
                let bytes = arrived.body.contiguous();
                let more = bytes.as_ref().try_into().map(u32::from_le_bytes);
                let more = more.map_err(|_| ProtocolViolation::new("grant", bytes.len() as u64, "it has 4 bytes"))?;
                let most = self.observer.grant_max();
                let granted = self.granted.checked_add(more).filter(|granted| *granted <= most);
                self.granted =
                    granted.ok_or(ProtocolViolation::new("grant", more.into(), "no more than a device may hold"))?;
                self.send(lanes);
                Ok(())
            }
            kind => Err(ProtocolViolation::new("kind", kind.code().into(), "who observes asks for nothing")),
        }
    }

    fn handle_ready(&mut self, _now: Instant, lanes: &mut LaneArray) {
        (self.hush)();
        self.send(lanes);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn restore(&mut self, _now: Instant, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let (granted, tag) = (from.u32("grant")?, from.u16("tag")?);
        if granted > self.observer.grant_max() {
            return Err(ProtocolViolation::new("grant", granted.into(), "no more than a device may hold"));
        }
        (self.granted, self.tag) = (granted, tag);
        from.end("state")
    }

    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        if !self.observer.is_movable() {
            return Err(UnmovableError);
        }
        to.u32(self.granted);
        to.u16(self.tag);
        Ok(())
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        self.observer.over().map(|why| AttachmentEndNotice { cause: AttachmentEndCause::Gone, message: why.to_owned() })
    }

    fn finish(mut self: Box<Self>, now: Instant) {
        if let Some(give_back) = self.give_back.take() {
            give_back(now);
        }
    }
}
