//! What every class's importing end does alike: it asks for a device, hears what it is, and hears that it is over.

use std::collections::VecDeque;

use farbus_model::{Instant, Pieces};
use farbus_wire::native::control::{Cause, End, Open, Opened};
use farbus_wire::native::reserve::{Reservation, ReservationReport};
use farbus_wire::native::{Arrived, Kind, Message, Part};

use super::importer::State;
use super::known_device::KnownDevice;
use super::reservation_request::ReservationRequest;
use crate::Reject;

/// The part of an [`Attached`](super::Attached) that is no class's own.
#[derive(Debug)]
pub struct Attachment {
    number: u16,
    open: Open,
    state: State,
    /// Bytes of an [`Opened`] at most.
    opened_bytes_max: usize,
    /// What of it has arrived, if it goes on.
    opened: Option<Pieces>,
    outbox: VecDeque<Message>,
    /// What is to be reserved for it, and how that stands.
    reservation_request: ReservationRequest,
    /// Which device it is.
    known: KnownDevice,
    was_open: bool,
}

/// What arrived, seen from a class.
#[derive(Debug)]
pub enum Heard {
    /// The device is there, for the first time or again.
    Opened(Opened),
    /// It is not, or not any more: whatever is in flight will not be answered.
    Ended(End),
    /// Something of the class's own: a reply, its data, an event, the end of a cancel.
    Own(Arrived),
    /// Nothing yet.
    Part,
}

impl Attachment {
    /// Asks for a device as `number`, one of the session that is not in use; its description is refused if it is longer
    /// than `opened_bytes_max`.
    pub fn new(number: u16, open: Open, opened_bytes_max: usize) -> Self {
        Self::wishing(number, open, opened_bytes_max, ReservationRequest::default())
    }

    /// The same; this is reserved for it first, or it is not opened.
    pub fn reserving(number: u16, open: Open, opened_bytes_max: usize, reservation: Reservation) -> Self {
        Self::wishing(number, open, opened_bytes_max, ReservationRequest::of(reservation))
    }

    fn wishing(number: u16, open: Open, opened_bytes_max: usize, reservation_request: ReservationRequest) -> Self {
        let (state, outbox) = (State::Opening, VecDeque::new());
        let (known, was_open) = (KnownDevice::default(), false);
        let mut attachment =
            Self { number, open, state, opened_bytes_max, opened: None, outbox, reservation_request, known, was_open };
        attachment.ask_to_open();
        attachment
    }

    /// How what is reserved for it stands.
    pub fn reserved(&self) -> Option<ReservationReport> {
        self.reservation_request.report()
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Where it stands.
    pub fn state(&self) -> &State {
        &self.state
    }

    fn ask_to_open(&mut self) {
        if let Some(word) = self.reservation_request.ask() {
            self.say(Message::control(Kind::Reserve, self.number, 0, word.encode().into()));
        }
        if let Some(statement) = self.known.expectation() {
            self.say(Message::control(Kind::Identity, self.number, 0, statement.encode().into()));
        }
        let part = self.open.encode().into();
        self.say(Message::control(Kind::Open, self.number, 0, part));
    }

    /// Takes in a frame.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    pub fn handle_arrived(&mut self, now: Instant, arrived: Arrived) -> Result<Heard, Reject> {
        let is_ended = matches!(self.state, State::Ended(_));
        match arrived.head.kind {
            // What we ended its exporter may open or end later.
            Kind::Opened | Kind::Data | Kind::Closed | Kind::Event if is_ended => Ok(Heard::Part),
            Kind::Identity => {
                let end = self.known.hear(&self.open.name, &arrived.body.contiguous())?;
                Ok(end.filter(|_| !is_ended).map_or(Heard::Part, |end| self.refuse(end)))
            }
            Kind::Reserve => {
                if let Some(word) = self.reservation_request.hear(now, &arrived.body.contiguous())? {
                    self.say(Message::control(Kind::Reserve, self.number, 0, word.encode().into()));
                }
                Ok(Heard::Part)
            }
            Kind::Opened if self.opened.is_none() => {
                self.opened = Some(Pieces::default());
                self.take_in(arrived)
            }
            Kind::Data if self.opened.is_some() => self.take_in(arrived),
            Kind::Refused | Kind::Closed => {
                let end = End::decode(&arrived.body.contiguous())?;
                self.state = State::Ended(end.clone());
                Ok(Heard::Ended(end))
            }
            Kind::Reply | Kind::Data | Kind::Cancel | Kind::Event => Ok(Heard::Own(arrived)),
            other => Err(Reject::new("kind", other.code().into(), "an exporter does not say that")),
        }
    }

    fn take_in(&mut self, arrived: Arrived) -> Result<Heard, Reject> {
        if self.state != State::Opening {
            return Err(Reject::new("kind", Kind::Opened.code().into(), "what is opened was asked for"));
        }
        let mut body = self.opened.take().unwrap_or_default();
        body.push(arrived.body);
        if body.len() > self.opened_bytes_max {
            return Err(Reject::new("opened", body.len() as u64, "a description is as long as its class allows"));
        }
        if arrived.head.flags.more {
            self.opened = Some(body);
            return Ok(Heard::Part);
        }
        let opened = Opened::decode(&body.into_payload().contiguous())?;
        let unfit = self.reservation_request.unheard().or(self.known.opened(&self.open.name).err());
        if let Some(end) = unfit {
            return Ok(self.refuse(end));
        }
        self.open.epoch = opened.epoch;
        (self.state, self.was_open) = (State::Open, true);
        Ok(Heard::Opened(opened))
    }

    /// It is of no use, and given back.
    fn refuse(&mut self, end: End) -> Heard {
        self.close();
        self.state = State::Ended(end.clone());
        Heard::Ended(end)
    }

    /// A link was made to the exporter's process with this incarnation: see
    /// [`Attached::note_exporter`](super::Attached::note_exporter).
    pub fn note_exporter(&mut self, incarnation: u64) {
        self.known.note_exporter(incarnation);
    }

    /// The exporter has forgotten the session: the device is asked for again, and what was to be said is not.
    pub fn handle_renewed(&mut self) {
        self.outbox.clear();
        self.opened = None;
        self.known.forgotten(self.was_open);
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Opening;
            self.ask_to_open();
        }
    }

    /// The session is over, and why.
    pub fn handle_over(&mut self, cause: Cause, message: &str) {
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Ended(End { cause, message: message.to_owned() });
        }
    }

    /// Says something.
    pub fn say(&mut self, message: Message) {
        self.outbox.push_back(message);
    }

    /// What there is to say.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// Gives the device back; its exporter answers with the end.
    pub fn close(&mut self) {
        self.say(Message::control(Kind::Close, self.number, 0, Part::empty()));
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
        assert_eq!(attachment.state(), &State::Ended(end));
    }
}
