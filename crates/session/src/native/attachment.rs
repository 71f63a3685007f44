//! The importing end of an attachment, as far as it is the same for all classes: it opens a device, learns what the
//! device is, and learns that the attachment is over.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::{Identity, Instant, Pieces};
use farbus_wire::native::control::{Cause, Close, Credit, End, Inherit, MIGRATION_STATE_NAME_BYTES, Open, Opened};
use farbus_wire::native::descriptors::{self, NamedDescriptor};
use farbus_wire::native::lease::Ends;
use farbus_wire::native::reserve::{self, Reservation, ReservationReport};
use farbus_wire::native::retire::{Step, Word};
use farbus_wire::native::{Arrived, Flow, Head, Kind, Message, Part, Urgency};

use super::known_device::KnownDevice;
use super::reservation_request::ReservationRequest;
use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// The state of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The exporter has not answered yet.
    Opening,
    /// It is open.
    Open,
    /// It is over, or was refused.
    Ended(End),
}

/// The part of an [`Attached`](super::Attached) that is the same for all classes.
#[derive(Debug)]
pub struct Attachment {
    number: u16,
    open: Open,
    state: State,
    /// What may be in flight; nothing before it is open.
    pub(super) credit: Credit,
    /// It is to be handed over to this host, with migration state that begins with this.
    pub(super) inherits: Option<[u8; MIGRATION_STATE_NAME_BYTES]>,
    /// It was handed over, and the successor has not come.
    pub(super) is_moving: bool,
    /// The most bytes of an [`Opened`].
    opened_bytes_max: usize,
    /// The part of it that has arrived, if more follows.
    opened: Pieces,
    outbox: VecDeque<Message>,
    /// What to reserve for it, and the state of that.
    reservation_request: ReservationRequest,
    /// In how long its lease ends, if that was told and not taken.
    lease_left: Option<Duration>,
    /// The exporter's answer to a step of a move, if it was not taken.
    step_answer: Option<(Step, Result<(), String>)>,
    /// The descriptors that were told of the device that is opened next; `None`: nothing was told.
    told_descriptors: Option<Vec<NamedDescriptor>>,
    /// Which device it is.
    known: KnownDevice,
    was_open: bool,
}

/// What a frame means to a class.
#[derive(Debug)]
pub enum Heard {
    /// The device is open, for the first time or again.
    Opened(Opened),
    /// It is over, or was refused: requests in flight get no answer.
    Ended(End),
    /// A frame for the class: a reply, its data, an event, the end of a cancel.
    Own(Arrived),
    /// Nothing so far.
    Part,
}

impl Attachment {
    /// Opens a device as `number`, a number that the session does not use. A description of more than
    /// `opened_bytes_max` is refused.
    pub fn new(number: u16, open: Open, opened_bytes_max: usize) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::default(), None)
    }

    /// As `new`; the exporter reserves this first, or does not open the device.
    pub fn reserving(number: u16, open: Open, opened_bytes_max: usize, reservation: Reservation) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::of(reservation), None)
    }

    /// Waits for a device that another host hands over to this one, with migration state that begins with this.
    pub fn inheriting(
        number: u16,
        open: Open,
        opened_bytes_max: usize,
        migration_state: [u8; MIGRATION_STATE_NAME_BYTES],
    ) -> Self {
        Self::asking(number, open, opened_bytes_max, ReservationRequest::default(), Some(migration_state))
    }

    fn asking(
        number: u16,
        open: Open,
        opened_bytes_max: usize,
        reservation_request: ReservationRequest,
        inherits: Option<[u8; MIGRATION_STATE_NAME_BYTES]>,
    ) -> Self {
        let mut attachment = Self {
            number,
            open,
            state: State::Opening,
            credit: Credit { requests: 0, bytes: 0 },
            inherits,
            is_moving: false,
            opened_bytes_max,
            opened: Pieces::default(),
            outbox: VecDeque::new(),
            reservation_request,
            lease_left: None,
            step_answer: None,
            told_descriptors: None,
            known: KnownDevice::default(),
            was_open: false,
        };
        attachment.ask_to_open();
        attachment
    }

    /// The same; its exporter is told first that the disk is overwritten.
    #[must_use]
    pub fn overwriting(mut self) -> Self {
        let word = Word::Says(Step::Overwrites).encode().into();
        self.outbox.push_front(Message::control(Kind::Retire, self.number, 0, word));
        self
    }

    /// Has it open this device and no other. Call it before its frames are taken.
    pub fn expect(&mut self, identity: Identity) {
        self.known = KnownDevice::expecting(identity);
        if let Some(statement) = self.known.expectation() {
            self.outbox.push_front(Message::control(Kind::Identity, self.number, 0, statement.encode().into()));
        }
    }

    /// In how long its lease ends, if its exporter has said so since the last call.
    pub fn take_lease_left(&mut self) -> Option<Duration> {
        self.lease_left.take()
    }

    /// Tells the exporter what becomes of the disk, which this host moves to its own machine.
    pub fn say_step(&mut self, step: Step) {
        self.say(Message::control(Kind::Retire, self.number, 0, Word::Says(step).encode().into()));
    }

    /// The exporter's latest answer to [`Attachment::say_step`] since the last call: the step was noted, or why not.
    pub fn take_step_answer(&mut self) -> Option<(Step, Result<(), String>)> {
        self.step_answer.take()
    }

    /// The descriptors that were told of the device since the last call; `None` if nothing was told, as by an exporter
    /// of an earlier version.
    pub(super) fn take_told_descriptors(&mut self) -> Option<Vec<NamedDescriptor>> {
        self.told_descriptors.take()
    }

    /// The state of its reservation.
    pub fn reserved(&self) -> Option<ReservationReport> {
        self.reservation_request.report()
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether it is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether it is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Ended(_))
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
    pub fn identity(&self) -> Option<Identity> {
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
            self.say(Message::control(Kind::Identity, self.number, 0, statement.encode().into()));
        }
        let (kind, bytes) = match self.inherits {
            Some(migration_state) => (Kind::Inherit, Inherit { migration_state, open: self.open.clone() }.encode()),
            None => (Kind::Open, self.open.encode()),
        };
        self.say(Message::control(kind, self.number, 0, bytes.into()));
    }

    fn say_of_reservation(&mut self, word: &reserve::Word) {
        self.say(Message::control(Kind::Reserve, self.number, 0, word.encode().into()));
    }

    /// Takes a frame.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    pub fn handle_arrived(&mut self, now: Instant, arrived: Arrived) -> Result<Heard, Reject> {
        match arrived.head.kind {
            // The exporter may answer late to an attachment that ended here; and the first end is the one that counts.
            Kind::Opened | Kind::Data | Kind::Refused | Kind::Closed | Kind::Event if self.is_over() => Ok(Heard::Part),
            Kind::Identity => {
                let end = self.known.hear(&self.open.name, &arrived.body.contiguous())?;
                Ok(end.filter(|_| !self.is_over()).map_or(Heard::Part, |end| self.refuse(end)))
            }
            Kind::Lease => {
                if let Some(Ends(left)) = Ends::decode(&arrived.body.contiguous())? {
                    self.lease_left = Some(left);
                }
                Ok(Heard::Part)
            }
            Kind::Retire => {
                match Word::decode(&arrived.body.contiguous())? {
                    None => {}
                    Some(Word::Noted(step)) => self.step_answer = Some((step, Ok(()))),
                    Some(Word::Unable(step, why)) => self.step_answer = Some((step, Err(why))),
                    Some(Word::Says(_)) => {
                        return Err(Reject::new("step", 0, "an importer says steps, and an exporter answers them"));
                    }
                }
                Ok(Heard::Part)
            }
            Kind::Descriptors => {
                self.told_descriptors = Some(descriptors::decode(&arrived.body.contiguous())?);
                Ok(Heard::Part)
            }
            Kind::Reserve => {
                if let Some(word) = self.reservation_request.hear(now, &arrived.body.contiguous())? {
                    self.say_of_reservation(&word);
                }
                Ok(Heard::Part)
            }
            Kind::Opened if !self.is_arriving() => self.take_in(arrived),
            Kind::Data if self.is_arriving() => self.take_in(arrived),
            Kind::Refused | Kind::Closed => {
                let end = End::decode(&arrived.body.contiguous())?;
                self.end(end.clone());
                Ok(Heard::Ended(end))
            }
            Kind::Reply | Kind::Data | Kind::Cancel | Kind::Event => Ok(Heard::Own(arrived)),
            other => Err(Reject::new("kind", other.code().into(), "an exporter does not say that")),
        }
    }

    fn take_in(&mut self, arrived: Arrived) -> Result<Heard, Reject> {
        // A device that was read before the handover is opened again by it; so is one whose successor did not come.
        if self.is_open() && !self.is_expected() && !self.is_moving {
            return Err(Reject::new("kind", Kind::Opened.code().into(), "what is opened was asked for"));
        }
        self.opened.push(arrived.body);
        if self.opened.len() > self.opened_bytes_max {
            let rule = "a description is as long as its class allows";
            return Err(Reject::new("opened", self.opened.len() as u64, rule));
        }
        if arrived.head.flags.more {
            return Ok(Heard::Part);
        }
        let opened = Opened::decode(&std::mem::take(&mut self.opened).into_payload().contiguous())?;
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
        (self.state, self.was_open) = (State::Open, true);
        Ok(Heard::Opened(opened))
    }

    /// Gives it back, because it cannot be used.
    fn refuse(&mut self, end: End) -> Heard {
        self.close();
        self.end(end.clone());
        Heard::Ended(end)
    }

    /// Ends it, unless it is over.
    pub fn end(&mut self, end: End) {
        if !self.is_over() {
            self.state = State::Ended(end);
        }
    }

    /// A link exists to an exporter's process with this incarnation: see
    /// [`Attached::note_exporter`](super::Attached::note_exporter).
    pub fn note_exporter(&mut self, incarnation: u64) {
        self.known.note_exporter(incarnation);
    }

    /// The exporter has forgotten the session: opens the device again, and drops the frames that were not sent.
    pub fn handle_renewed(&mut self) {
        self.unsay();
        (self.opened, self.is_moving, self.told_descriptors) = (Pieces::default(), false, None);
        self.known.forgotten(self.was_open);
        if !self.is_over() {
            self.state = State::Opening;
            self.ask_to_open();
        }
    }

    /// The session is over for this reason.
    pub fn handle_over(&mut self, cause: Cause, message: &str) {
        self.end(End { cause, message: message.to_owned() });
    }

    /// Queues a frame.
    #[inline]
    pub fn say(&mut self, message: Message) {
        self.outbox.push_back(message);
    }

    /// Drops the queued frames.
    pub fn unsay(&mut self) {
        self.outbox.clear();
    }

    /// The queued frames.
    #[inline]
    pub fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// Gives the device back. The exporter answers with the end of the attachment.
    pub fn close(&mut self) {
        self.say(Message::control(Kind::Close, self.number, 0, Part::empty()));
    }

    /// Hands the device over in its state, with data for the successor: see
    /// [`Attached::migrate`](super::Attached::migrate).
    pub fn migrate(&mut self, successor: [u8; 32], migration_state: Vec<u8>) {
        let (head, part) = (Head::new(Kind::Close, self.number, 0), Part::empty());
        let payload = Close::to(successor, migration_state).encode().into();
        let flow = Flow(u32::from(self.number) << 8);
        self.say(Message { head, part, payload, urgency: Urgency::High, flow, done_at: None });
        self.is_moving = true;
    }

    /// Saves how it was opened, for another process. A class saves the rest in the order of its snapshot:
    /// [`Attachment::save_opening`], [`Attachment::save_known`] and its own state.
    ///
    /// # Panics
    /// If it is over, or has frames to send: then it cannot be saved.
    pub fn save(&self, to: &mut Writer) {
        assert!(self.outbox.is_empty(), "what was to be said is with the session");
        assert!(!self.is_over(), "what is over does not go on");
        to.u16(self.number);
        to.bytes(&self.open.encode());
        to.flag(self.is_open());
    }

    /// Restores what [`Attachment::save`] wrote, of an attachment that was open before.
    ///
    /// # Errors
    /// [`Reject`]: no attachment can have had this state.
    pub fn restore(opened_bytes_max: usize, from: &mut Reader<'_>) -> Result<Self, Reject> {
        let number = from.u16("attachment")?;
        let mut attachment = Self::new(number, Open::decode(from.bytes("open")?)?, opened_bytes_max);
        attachment.unsay();
        attachment.was_open = true;
        if from.flag("state")? {
            attachment.state = State::Open;
        }
        Ok(attachment)
    }

    /// Saves what may be in flight.
    pub fn save_credit(&self, to: &mut Writer) {
        to.u16(self.credit.requests);
        to.u32(self.credit.bytes);
    }

    /// Restores what [`Attachment::save_credit`] wrote.
    ///
    /// # Errors
    /// [`Reject`]: it is not valid.
    pub fn restore_credit(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        self.credit = Credit { requests: from.u16("requests")?, bytes: from.u32("bytes")? };
        Ok(())
    }

    /// Saves the part of its description that has arrived, and its reservation.
    pub fn save_opening(&self, to: &mut Writer) {
        to.count(self.is_arriving().into());
        if self.is_arriving() {
            to.runs(self.opened.len(), self.opened.runs());
        }
        self.reservation_request.save(to);
    }

    /// Restores what [`Attachment::save_opening`] wrote.
    ///
    /// # Errors
    /// [`Reject`]: no attachment can have had this state.
    pub fn restore_opening(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        for _ in 0..from.count("parts of a description", 4)? {
            self.opened.push(from.payload("part of a description")?);
        }
        self.reservation_request = ReservationRequest::restore(from)?;
        Ok(())
    }

    /// Saves which device it is.
    pub fn save_known(&self, to: &mut Writer) {
        self.known.save(to);
    }

    /// Restores what [`Attachment::save_known`] wrote.
    ///
    /// # Errors
    /// [`Reject`]: it is not valid.
    pub fn restore_known(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        self.known = KnownDevice::restore(from)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farbus_wire::native::Head;
    use farbus_wire::native::control::{Class, Credit, Mode};

    use super::*;

    fn attachment() -> Attachment {
        let (name, reason) = ("thing".into(), String::new());
        let open = Open { class: Class::PRIVATE_FIRST, mode: Mode::Exclusive, epoch: 0, name, reason };
        Attachment::new(3, open, 100)
    }

    fn arrived(kind: Kind, more: bool, body: &[u8]) -> Arrived {
        let mut head = Head::new(kind, 3, 0);
        head.flags.more = more;
        Arrived { head, body: body.into() }
    }

    fn opened() -> Opened {
        Opened { epoch: 5, credit: Credit { requests: 1, bytes: 1 }, info: vec![7; 20] }
    }

    #[test]
    fn it_is_opened_in_pieces_and_again_with_its_lease_after_the_exporter_forgot() {
        let mut attachment = attachment();
        assert_eq!(attachment.poll_message().map(|said| said.head.kind), Some(Kind::Open));
        let bytes = opened().encode();
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Opened, true, &bytes[..9])).unwrap();
        assert!(matches!(heard, Heard::Part));
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Data, false, &bytes[9..])).unwrap();
        assert!(matches!(heard, Heard::Opened(got) if got == opened()));
        assert_eq!(attachment.state(), &State::Open);
        assert_eq!(
            attachment.handle_arrived(Instant::ZERO, arrived(Kind::Opened, false, &bytes)).unwrap_err().field,
            "kind"
        );

        attachment.close();
        attachment.handle_renewed();
        let again = attachment.poll_message().unwrap();
        assert_eq!(Open::decode(&again.part).unwrap().epoch, 5);
        assert!(attachment.poll_message().is_none(), "what was said before is for nobody");
    }

    #[test]
    fn too_long_a_description_is_refused_and_an_end_is_the_last_word() {
        let mut attachment = attachment();
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Opened, true, &[0; 60])).unwrap();
        assert!(matches!(heard, Heard::Part));
        assert_eq!(
            attachment.handle_arrived(Instant::ZERO, arrived(Kind::Data, true, &[0; 60])).unwrap_err().field,
            "opened"
        );
        let end = End { cause: Cause::Gone, message: "away".into() };
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Closed, false, &end.encode())).unwrap();
        assert!(matches!(heard, Heard::Ended(got) if got == end));
        attachment.handle_over(Cause::Network, "later");
        let later = End { cause: Cause::Refused, message: "later".into() };
        let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Refused, false, &later.encode())).unwrap();
        assert!(matches!(heard, Heard::Part));
        assert_eq!(attachment.state(), &State::Ended(end));
    }

    #[test]
    fn what_is_handed_over_before_it_is_open_is_on_its_way_until_it_is_opened_once_more() {
        let mut attachment = attachment();
        attachment.migrate([1; 32], Vec::new());
        let mut open = || {
            let heard = attachment.handle_arrived(Instant::ZERO, arrived(Kind::Opened, false, &opened().encode()));
            heard.map(|_| attachment.is_moving()).map_err(|reject| reject.field)
        };
        assert_eq!([open(), open(), open()], [Ok(true), Ok(false), Err("kind")], "nobody came for it");
    }
}
