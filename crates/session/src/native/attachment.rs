//! The importing end of an attachment, as far as it is the same for all classes: it opens a device, learns what the
//! device is, and learns that the attachment is over.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::{ExportIdentity, Instant, PayloadAssembler};
use farbus_wire::native::control::{
    AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, CloseRequest, MIGRATION_STATE_NAME_BYTES, OpenReply,
    OpenRequest, SuccessorOpenRequest,
};
use farbus_wire::native::descriptors::{self, NamedDescriptor};
use farbus_wire::native::lease::LeaseEndNotice;
use farbus_wire::native::reserve::{self, ReservationReport, ReservationTerms};
use farbus_wire::native::retire::{DiskMoveMessage, DiskMoveStep};
use farbus_wire::native::{ClassPart, FlowId, FrameHeader, FrameKind, MessageUrgency, OutboundMessage, ReceivedFrame};

use super::known_device::KnownDevice;
use super::reservation_request::ReservationRequest;
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The state of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    /// The exporter has not answered yet.
    Opening,
    /// It is open.
    Open,
    /// It is over, or was refused.
    Ended(AttachmentEndNotice),
}

/// The part of an [`Attached`](super::ImporterAttachment) that is the same for all classes.
#[derive(Debug)]
pub struct AttachmentBase {
    number: u16,
    open: OpenRequest,
    state: AttachmentState,
    /// What may be in flight; nothing before it is open.
    pub(super) credit: AttachmentCredit,
    /// It is to be handed over to this host, with migration state that begins with this.
    pub(super) inherits: Option<[u8; MIGRATION_STATE_NAME_BYTES]>,
    /// It was handed over, and the successor has not come.
    pub(super) is_moving: bool,
    /// The most bytes of an [`OpenReply`].
    opened_bytes_max: usize,
    /// The part of it that has arrived, if more follows.
    opened: PayloadAssembler,
    outbox: VecDeque<OutboundMessage>,
    /// What to reserve for it, and the state of that.
    reservation_request: ReservationRequest,
    /// In how long its lease ends, if that was told and not taken.
    lease_left: Option<Duration>,
    /// The exporter's answer to a step of a move, if it was not taken.
    step_answer: Option<(DiskMoveStep, Result<(), String>)>,
    /// The descriptors that were told of the device that is opened next; `None`: nothing was told.
    named_descriptors: Option<Vec<NamedDescriptor>>,
    /// Which device it is.
    known: KnownDevice,
    was_open: bool,
}

/// What a frame means to a class.
#[derive(Debug)]
pub enum FrameMeaning {
    /// The device is open, for the first time or again.
    Opened(OpenReply),
    /// It is over, or was refused: requests in flight get no answer.
    Ended(AttachmentEndNotice),
    /// A frame for the class: a reply, its data, an event, the end of a cancel.
    Own(ReceivedFrame),
    /// A part of a longer message, whose rest has yet to arrive.
    Part,
}

impl AttachmentBase {
    /// Opens a device as `number`, a number that the session does not use. A description of more than
    /// `opened_bytes_max` is refused.
    pub fn new(number: u16, open: OpenRequest, opened_bytes_max: usize) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::default(), None)
    }

    /// As `new`; the exporter reserves this first, or does not open the device.
    pub fn reserving(number: u16, open: OpenRequest, opened_bytes_max: usize, reservation: ReservationTerms) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::of(reservation), None)
    }

    /// Waits for a device that another host hands over to this one, with migration state that begins with this.
    pub fn inheriting(
        number: u16,
        open: OpenRequest,
        opened_bytes_max: usize,
        migration_state: [u8; MIGRATION_STATE_NAME_BYTES],
    ) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::default(), Some(migration_state))
    }

    fn asking(
        number: u16,
        open: OpenRequest,
        opened_bytes_max: usize,
        reservation_request: ReservationRequest,
        inherits: Option<[u8; MIGRATION_STATE_NAME_BYTES]>,
    ) -> Self {
        let mut attachment = Self {
            number,
            open,
            state: AttachmentState::Opening,
            credit: AttachmentCredit { requests: 0, bytes: 0 },
            inherits,
            is_moving: false,
            opened_bytes_max,
            opened: PayloadAssembler::default(),
            outbox: VecDeque::new(),
            reservation_request,
            lease_left: None,
            step_answer: None,
            named_descriptors: None,
            known: KnownDevice::default(),
            was_open: false,
        };
        attachment.ask_to_open();
        attachment
    }

    /// This attachment, whose first message tells the exporter that the disk will be overwritten.
    #[must_use]
    pub fn overwriting(mut self) -> Self {
        let word = DiskMoveMessage::Says(DiskMoveStep::Overwrites).encode().into();
        self.outbox.push_front(OutboundMessage::control(FrameKind::Retire, self.number, 0, word));
        self
    }

    /// Has it open this device and no other. Call it before its frames are taken.
    pub fn expect(&mut self, identity: ExportIdentity) {
        self.known = KnownDevice::expecting(identity);
        if let Some(statement) = self.known.expectation() {
            self.outbox.push_front(OutboundMessage::control(
                FrameKind::Identity,
                self.number,
                0,
                statement.encode().into(),
            ));
        }
    }

    /// In how long its lease ends, if its exporter has said so since the last call.
    pub fn take_lease_left(&mut self) -> Option<Duration> {
        self.lease_left.take()
    }

    /// Tells the exporter what becomes of the disk, which this host moves to its own machine.
    pub fn say_step(&mut self, step: DiskMoveStep) {
        self.say(OutboundMessage::control(
            FrameKind::Retire,
            self.number,
            0,
            DiskMoveMessage::Says(step).encode().into(),
        ));
    }

    /// The exporter's latest answer to [`AttachmentBase::say_step`] since the last call: the step was noted, or why
    /// not.
    pub fn take_step_answer(&mut self) -> Option<(DiskMoveStep, Result<(), String>)> {
        self.step_answer.take()
    }

    /// The descriptors that were told of the device since the last call; `None` if nothing was told, as by an exporter
    /// of an earlier version.
    pub(super) fn take_named_descriptors(&mut self) -> Option<Vec<NamedDescriptor>> {
        self.named_descriptors.take()
    }

    /// The state of its reservation.
    pub fn reserved(&self) -> Option<ReservationReport> {
        self.reservation_request.report()
    }

    /// The number of the attachment in its session; every frame of it carries this number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Whether it is opening, open or ended, and why it ended.
    pub fn state(&self) -> &AttachmentState {
        &self.state
    }

    /// Whether it is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.state, AttachmentState::Open)
    }

    /// Whether it is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.state, AttachmentState::Ended(_))
    }

    /// Whether it was handed over, and its successor has not come yet.
    pub fn is_moving(&self) -> bool {
        self.is_moving && self.is_open()
    }

    /// Whether it is still to be handed over to this host.
    #[inline]
    pub fn is_expected(&self) -> bool {
        self.inherits.is_some()
    }

    /// Whether the rest of its description is expected.
    #[inline]
    pub fn is_arriving(&self) -> bool {
        !self.opened.is_empty()
    }

    /// The lease under which it is used; 0 before it is open.
    pub fn lease(&self) -> u64 {
        self.open.epoch
    }

    /// The identity of its device; `None` before it is open, and if the exporter gives none.
    pub fn identity(&self) -> Option<ExportIdentity> {
        self.known.identity()
    }

    /// Whether the exporter said that it finds this identity again after it was started anew.
    pub fn is_lasting(&self) -> bool {
        self.known.is_lasting()
    }

    fn ask_to_open(&mut self) {
        if let Some(word) = self.reservation_request.ask() {
            self.say_of_reservation(&word);
        }
        if let Some(statement) = self.known.expectation() {
            self.say(OutboundMessage::control(FrameKind::Identity, self.number, 0, statement.encode().into()));
        }
        let (kind, bytes) = match self.inherits {
            Some(migration_state) => {
                (FrameKind::Inherit, SuccessorOpenRequest { migration_state, open: self.open.clone() }.encode())
            }
            None => (FrameKind::Open, self.open.encode()),
        };
        self.say(OutboundMessage::control(kind, self.number, 0, bytes.into()));
    }

    fn say_of_reservation(&mut self, word: &reserve::ReservationMessage) {
        self.say(OutboundMessage::control(FrameKind::Reserve, self.number, 0, word.encode().into()));
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol; the session is over.
    pub fn handle_arrived(&mut self, now: Instant, arrived: ReceivedFrame) -> Result<FrameMeaning, ProtocolViolation> {
        match arrived.head.kind {
            // The exporter may answer late to an attachment that ended here; and the first end is the one that counts.
            FrameKind::Opened | FrameKind::Data | FrameKind::Refused | FrameKind::Closed | FrameKind::Event
                if self.is_over() =>
            {
                Ok(FrameMeaning::Part)
            }
            FrameKind::Identity => {
                let end = self.known.hear(&self.open.name, &arrived.body.contiguous())?;
                Ok(end.filter(|_| !self.is_over()).map_or(FrameMeaning::Part, |end| self.refuse(end)))
            }
            FrameKind::Lease => {
                if let Some(LeaseEndNotice(left)) = LeaseEndNotice::decode(&arrived.body.contiguous())? {
                    self.lease_left = Some(left);
                }
                Ok(FrameMeaning::Part)
            }
            FrameKind::Retire => {
                match DiskMoveMessage::decode(&arrived.body.contiguous())? {
                    None => {}
                    Some(DiskMoveMessage::Noted(step)) => self.step_answer = Some((step, Ok(()))),
                    Some(DiskMoveMessage::Unable(step, why)) => self.step_answer = Some((step, Err(why))),
                    Some(DiskMoveMessage::Says(_)) => {
                        return Err(ProtocolViolation::new(
                            "step",
                            0,
                            "an importer says steps, and an exporter answers them",
                        ));
                    }
                }
                Ok(FrameMeaning::Part)
            }
            FrameKind::Descriptors => {
                self.named_descriptors = Some(descriptors::decode(&arrived.body.contiguous())?);
                Ok(FrameMeaning::Part)
            }
            FrameKind::Reserve => {
                if let Some(word) = self.reservation_request.hear(now, &arrived.body.contiguous())? {
                    self.say_of_reservation(&word);
                }
                Ok(FrameMeaning::Part)
            }
            FrameKind::Opened if !self.is_arriving() => self.take_in(arrived),
            FrameKind::Data if self.is_arriving() => self.take_in(arrived),
            FrameKind::Refused | FrameKind::Closed => {
                let end = AttachmentEndNotice::decode(&arrived.body.contiguous())?;
                self.end(end.clone());
                Ok(FrameMeaning::Ended(end))
            }
            FrameKind::Reply | FrameKind::Data | FrameKind::Cancel | FrameKind::Event => Ok(FrameMeaning::Own(arrived)),
            other => Err(ProtocolViolation::new("kind", other.code().into(), "an exporter does not say that")),
        }
    }

    fn take_in(&mut self, arrived: ReceivedFrame) -> Result<FrameMeaning, ProtocolViolation> {
        // A device that was read before the handover is opened again by it; so is one whose successor did not come.
        if self.is_open() && !self.is_expected() && !self.is_moving {
            return Err(ProtocolViolation::new(
                "kind",
                FrameKind::Opened.code().into(),
                "what is opened was asked for",
            ));
        }
        self.opened.push(arrived.body);
        if self.opened.len() > self.opened_bytes_max {
            let rule = "a description is as long as its class allows";
            return Err(ProtocolViolation::new("opened", self.opened.len() as u64, rule));
        }
        if arrived.head.flags.more {
            return Ok(FrameMeaning::Part);
        }
        let opened = OpenReply::decode(&std::mem::take(&mut self.opened).into_payload().contiguous())?;
        let unfit = self.reservation_request.unheard().or(self.known.opened(&self.open.name).err());
        if let Some(end) = unfit {
            return Ok(self.refuse(end));
        }
        // A handover to another host has failed; one that was asked for before it was open still lies ahead.
        self.is_moving &= !self.is_open();
        if opened.epoch != 0 {
            // Before the handover it has no lease.
            self.inherits = None;
        }
        (self.open.epoch, self.credit) = (opened.epoch, opened.credit);
        (self.state, self.was_open) = (AttachmentState::Open, true);
        Ok(FrameMeaning::Opened(opened))
    }

    /// Gives it back, because it cannot be used.
    fn refuse(&mut self, end: AttachmentEndNotice) -> FrameMeaning {
        self.close();
        self.end(end.clone());
        FrameMeaning::Ended(end)
    }

    /// Ends it, unless it is over.
    pub fn end(&mut self, end: AttachmentEndNotice) {
        if !self.is_over() {
            self.state = AttachmentState::Ended(end);
        }
    }

    /// A link exists to an exporter's process with this incarnation: see
    /// [`Attached::note_exporter`](super::ImporterAttachment::note_exporter).
    pub fn note_exporter(&mut self, incarnation: u64) {
        self.known.note_exporter(incarnation);
    }

    /// The exporter has forgotten the session: opens the device again, and drops the frames that were not sent.
    pub fn handle_renewed(&mut self) {
        self.unsay();
        (self.opened, self.is_moving, self.named_descriptors) = (PayloadAssembler::default(), false, None);
        self.known.forgotten(self.was_open);
        if !self.is_over() {
            self.state = AttachmentState::Opening;
            self.ask_to_open();
        }
    }

    /// The session is over for this reason.
    pub fn handle_over(&mut self, cause: AttachmentEndCause, message: &str) {
        self.end(AttachmentEndNotice { cause, message: message.to_owned() });
    }

    /// Queues a frame.
    #[inline]
    pub fn say(&mut self, message: OutboundMessage) {
        self.outbox.push_back(message);
    }

    /// Drops the queued frames.
    pub fn unsay(&mut self) {
        self.outbox.clear();
    }

    /// The queued frames.
    #[inline]
    pub fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.outbox.pop_front()
    }

    /// Gives the device back. The exporter answers with the end of the attachment.
    pub fn close(&mut self) {
        self.say(OutboundMessage::control(FrameKind::Close, self.number, 0, ClassPart::empty()));
    }

    /// Hands the device over in its state, with data for the successor: see
    /// [`Attached::migrate`](super::ImporterAttachment::migrate).
    pub fn migrate(&mut self, successor: [u8; 32], migration_state: Vec<u8>) {
        let (head, part) = (FrameHeader::new(FrameKind::Close, self.number, 0), ClassPart::empty());
        let payload = CloseRequest::to(successor, migration_state).encode().into();
        let flow = FlowId(u32::from(self.number) << 8);
        self.say(OutboundMessage { head, part, payload, urgency: MessageUrgency::High, flow, done_at: None });
        self.is_moving = true;
    }

    /// Saves how it was opened, for another process. A class saves the rest in the order of its snapshot:
    /// [`AttachmentBase::save_opening`], [`AttachmentBase::save_known`] and its own state.
    ///
    /// # Panics
    /// If it is over, or has frames to send: then it cannot be saved.
    pub fn save(&self, to: &mut SnapshotWriter) {
        assert!(self.outbox.is_empty(), "what was to be said is with the session");
        assert!(!self.is_over(), "what is over does not go on");
        to.u16(self.number);
        to.bytes(&self.open.encode());
        to.flag(self.is_open());
    }

    /// Restores what [`AttachmentBase::save`] wrote, of an attachment that was open before.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no attachment can have had this state.
    pub fn restore(opened_bytes_max: usize, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let number = from.u16("attachment")?;
        let mut attachment = Self::new(number, OpenRequest::decode(from.bytes("open")?)?, opened_bytes_max);
        attachment.unsay();
        attachment.was_open = true;
        if from.flag("state")? {
            attachment.state = AttachmentState::Open;
        }
        Ok(attachment)
    }

    /// Saves what may be in flight.
    pub fn save_credit(&self, to: &mut SnapshotWriter) {
        to.u16(self.credit.requests);
        to.u32(self.credit.bytes);
    }

    /// Restores what [`AttachmentBase::save_credit`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: it is not valid.
    pub fn restore_credit(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        self.credit = AttachmentCredit { requests: from.u16("requests")?, bytes: from.u32("bytes")? };
        Ok(())
    }

    /// Saves the part of its description that has arrived, and its reservation.
    pub fn save_opening(&self, to: &mut SnapshotWriter) {
        to.count(self.is_arriving().into());
        if self.is_arriving() {
            to.runs(self.opened.len(), self.opened.runs());
        }
        self.reservation_request.save(to);
    }

    /// Restores what [`AttachmentBase::save_opening`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no attachment can have had this state.
    pub fn restore_opening(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        for _ in 0..from.count("parts of a description", 4)? {
            self.opened.push(from.payload("part of a description")?);
        }
        self.reservation_request = ReservationRequest::restore(from)?;
        Ok(())
    }

    /// Saves which device it is.
    pub fn save_known(&self, to: &mut SnapshotWriter) {
        self.known.save(to);
    }

    /// Restores what [`AttachmentBase::save_known`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: it is not valid.
    pub fn restore_known(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        self.known = KnownDevice::restore(from)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farbus_wire::native::FrameHeader;
    use farbus_wire::native::control::{AttachmentClass, AttachmentCredit, AttachmentMode};

    use super::*;

    fn attachment() -> AttachmentBase {
        let (name, reason) = ("thing".into(), String::new());
        let open = OpenRequest {
            class: AttachmentClass::PRIVATE_FIRST,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name,
            reason,
        };
        AttachmentBase::new(3, open, 100)
    }

    fn arrived(kind: FrameKind, more: bool, body: &[u8]) -> ReceivedFrame {
        let mut head = FrameHeader::new(kind, 3, 0);
        head.flags.more = more;
        ReceivedFrame { head, body: body.into() }
    }

    fn opened() -> OpenReply {
        OpenReply { epoch: 5, credit: AttachmentCredit { requests: 1, bytes: 1 }, info: vec![7; 20] }
    }

    #[test]
    fn it_is_opened_in_pieces_and_again_with_its_lease_after_the_exporter_forgot() {
        let mut attachment = attachment();
        assert_eq!(attachment.poll_message().map(|outbound_message| outbound_message.head.kind), Some(FrameKind::Open));
        let bytes = opened().encode();
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Opened, true, &bytes[..9])).unwrap();
        assert!(matches!(heard, FrameMeaning::Part));
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Data, false, &bytes[9..])).unwrap();
        assert!(matches!(heard, FrameMeaning::Opened(got) if got == opened()));
        assert_eq!(attachment.state(), &AttachmentState::Open);
        assert_eq!(
            attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Opened, false, &bytes)).unwrap_err().field,
            "kind"
        );

        attachment.close();
        attachment.handle_renewed();
        let again = attachment.poll_message().unwrap();
        assert_eq!(OpenRequest::decode(&again.part).unwrap().epoch, 5);
        assert!(attachment.poll_message().is_none(), "what was said before is for nobody");
    }

    #[test]
    fn too_long_a_description_is_refused_and_an_end_is_the_last_word() {
        let mut attachment = attachment();
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Opened, true, &[0; 60])).unwrap();
        assert!(matches!(heard, FrameMeaning::Part));
        assert_eq!(
            attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Data, true, &[0; 60])).unwrap_err().field,
            "opened"
        );
        let end = AttachmentEndNotice { cause: AttachmentEndCause::Gone, message: "away".into() };
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Closed, false, &end.encode())).unwrap();
        assert!(matches!(heard, FrameMeaning::Ended(got) if got == end));
        attachment.handle_over(AttachmentEndCause::Network, "later");
        let later = AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: "later".into() };
        let heard =
            attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Refused, false, &later.encode())).unwrap();
        assert!(matches!(heard, FrameMeaning::Part));
        assert_eq!(attachment.state(), &AttachmentState::Ended(end));
    }

    #[test]
    fn what_is_handed_over_before_it_is_open_is_on_its_way_until_it_is_opened_once_more() {
        let mut attachment = attachment();
        attachment.migrate([1; 32], Vec::new());
        let mut open = || {
            let heard = attachment.handle_arrived(Instant::ZERO, arrived(FrameKind::Opened, false, &opened().encode()));
            heard.map(|_| attachment.is_moving()).map_err(|reject| reject.field)
        };
        assert_eq!([open(), open(), open()], [Ok(true), Ok(false), Err("kind")], "nobody came for it");
    }
}
