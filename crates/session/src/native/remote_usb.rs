//! A USB device of another host, brought by a session.

use std::collections::VecDeque;

use farbus_model::descriptor::{Configuration, DeviceDescriptor};
use farbus_model::{
    Completions, Descriptors, Device, Direction, EpAddr, InFlight, Instant, Payload, Selection, Setup, Speed, Status,
    TransferType, Urb, UrbId,
};
use farbus_wire::native::control::{Cause, Close, Credit, End, Open, Opened};
use farbus_wire::native::frame::{Head, RESIDENCE_BYTES};
use farbus_wire::native::usb::{self, Description, Reply};
use farbus_wire::native::{Arrived, Flow, Kind, Message, Part, Urgency};

use super::importer::{Attached, State};
use super::slots::Slots;
use crate::Reject;
use crate::importer::note_selection;

/// Bytes of an [`Opened`]: 16 configurations as long as a configuration may be.
const OPENED_BYTES_MAX: usize = 16 << 16;
/// Our own requests begin here; a user's never do (a kernel's have 32 bits).
const OWN_ID_FIRST: u64 = 1 << 63;

/// A USB device on another host. It is opened when it is made; until that is answered requests wait.
#[derive(Debug)]
pub struct RemoteUsb {
    attachment: u16,
    open: Open,
    state: State,
    description: Option<Description>,
    descriptors: Descriptors,
    selection: Selection,
    credit: Credit,
    slots: Slots<Flight>,
    bytes: u64,
    held: VecDeque<InFlight>,
    outbox: VecDeque<Message>,
    opened: Vec<Payload>,
    settling: Settling,
    next_own_id: u64,
}

/// What has to be over before a user's requests go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    No,
    /// A reset: what was withdrawn is waited for, then the reset is asked for.
    Withdrawing,
    /// The reset is waited for.
    Resetting,
    /// The device is set up as it was before its exporter forgot it; so many requests are waited for.
    Restoring(usize),
}

#[derive(Debug)]
struct Flight {
    /// `None` once its asker was answered without us: only its end is waited for.
    urb: Option<InFlight>,
    cost: u64,
    head: Option<Reply>,
    data: Vec<Payload>,
    missing: usize,
    has_begun: bool,
    /// Its withdrawal was asked for, and that was not answered: until then another request with its tag might be meant.
    is_withdrawing: bool,
    /// It was answered.
    is_answered: bool,
}

impl Flight {
    fn new(urb: Option<InFlight>) -> Self {
        let cost = urb.as_ref().map_or(0, |urb| urb.length.into());
        let (head, data, missing) = (None, Vec::new(), 0);
        Self { urb, cost, head, data, missing, has_begun: false, is_withdrawing: false, is_answered: false }
    }
}

impl RemoteUsb {
    /// Asks for a device as `attachment`, a number of the session that is not in use.
    pub fn new(attachment: u16, open: Open) -> Self {
        let mut remote = Self {
            attachment,
            open,
            state: State::Opening,
            description: None,
            descriptors: Descriptors::default(),
            selection: Selection::default(),
            credit: Credit { requests: 0, bytes: 0 },
            slots: Slots::default(),
            bytes: 0,
            held: VecDeque::new(),
            outbox: VecDeque::new(),
            opened: Vec::new(),
            settling: Settling::No,
            next_own_id: OWN_ID_FIRST,
        };
        remote.ask_to_open();
        remote
    }

    /// What its exporter says of it; none before it is open.
    pub fn description(&self) -> Option<&Description> {
        self.description.as_ref()
    }

    /// The lease under which it is used; 0 before it is open.
    pub fn lease(&self) -> u64 {
        self.open.epoch
    }

    /// Hands the device over as it is to the host with this key, who opens it by [`Self::lease`]; its exporter answers with the end.
    /// What is in flight is lost: it is for the caller to wait for it.
    pub fn hand_over(&mut self, heir: [u8; 32]) {
        let part = Close { heir: Some(heir) }.encode().into();
        self.outbox.push_back(Message::control(Kind::Close, self.attachment, 0, part));
    }

    /// Requests in flight, those that wait among them.
    pub fn in_flight(&self) -> usize {
        self.slots.len() + self.held.len()
    }

    fn ask_to_open(&mut self) {
        let part = self.open.encode().into();
        self.outbox.push_back(Message::control(Kind::Open, self.attachment, 0, part));
    }

    fn has_credit(&self, cost: u64) -> bool {
        self.slots.len() < self.credit.requests.into()
            && (self.bytes == 0 || self.bytes + cost <= u64::from(self.credit.bytes))
    }

    fn kind_of(&self, endpoint: EpAddr) -> Option<TransferType> {
        match endpoint.is_control() {
            true => Some(TransferType::Control),
            false => self.selection.endpoint(endpoint).map(|endpoint| endpoint.kind),
        }
    }

    fn way_of(&self, endpoint: EpAddr, kind: TransferType) -> (Urgency, Flow) {
        let urgency = if kind == TransferType::Bulk { Urgency::Low } else { Urgency::High };
        (urgency, Flow(u32::from(self.attachment) << 8 | u32::from(endpoint.as_byte())))
    }

    /// Requests that wait leave as far as there is credit, and nothing has to be over first.
    fn release(&mut self, done: &mut Completions) {
        while self.state == State::Open
            && self.settling == Settling::No
            && let Some(urb) = self.held.front()
            && self.has_credit(urb.length.into())
        {
            let urb = self.held.pop_front().expect("looked at just now");
            self.start(urb, done);
        }
    }

    fn start(&mut self, mut urb: InFlight, done: &mut Completions) {
        let Some(kind) = self.kind_of(urb.endpoint) else { return done.push(urb.fail(Status::Invalid)) };
        let payload = urb.take_payload();
        let (urgency, flow) = self.way_of(urb.endpoint, kind);
        let part = usb::request_part(&urb, kind);
        self.bytes += u64::from(urb.length);
        let tag = self.slots.put(Flight::new(Some(urb)));
        let head = Head::new(Kind::Request, self.attachment, tag);
        self.outbox.push_back(Message { head, part, payload, urgency, flow, done_at: None });
    }

    /// Withdraws the request of this tag: said behind the request itself.
    fn say_cancel(&mut self, tag: u16, endpoint: EpAddr) {
        let flight = self.slots.get_mut(tag).expect("it is in flight");
        if std::mem::replace(&mut flight.is_withdrawing, true) {
            return;
        }
        let kind = self.kind_of(endpoint).unwrap_or(TransferType::Bulk);
        let (urgency, flow) = self.way_of(endpoint, kind);
        let head = Head::new(Kind::Cancel, self.attachment, tag);
        let (part, payload) = (Part::empty(), Payload::Empty);
        self.outbox.push_back(Message { head, part, payload, urgency, flow, done_at: None });
    }

    /// What comes next of a reset or a restoration, if its last step is over.
    fn settle(&mut self, done: &mut Completions) {
        if self.settling == Settling::Withdrawing && self.slots.is_empty() {
            let tag = self.slots.put(Flight::new(None));
            self.settling = Settling::Resetting;
            let head = Head::new(Kind::Request, self.attachment, tag);
            let (part, payload) = (usb::reset_part(), Payload::Empty);
            let flow = Flow(u32::from(self.attachment) << 8);
            self.outbox.push_back(Message { head, part, payload, urgency: Urgency::High, flow, done_at: None });
        } else if self.settling == Settling::Resetting && self.slots.is_empty() {
            self.settling = Settling::No;
        }
        self.release(done);
    }

    fn handle_opened(&mut self, arrived: Arrived, done: &mut Completions) -> Result<(), Reject> {
        self.opened.push(arrived.body);
        if self.opened.iter().map(Payload::len).sum::<usize>() > OPENED_BYTES_MAX {
            return Err(Reject::new("opened", OPENED_BYTES_MAX as u64, "a device's description is shorter"));
        }
        if arrived.head.flags.more {
            return Ok(());
        }
        if self.state != State::Opening {
            return Err(Reject::new("kind", Kind::Opened.code().into(), "what is opened was asked for"));
        }
        let body = Payload::joined(self.opened.drain(..));
        let opened = Opened::decode(&body.contiguous())?;
        let description = Description::decode(&opened.info)?;
        let descriptors = descriptors_of(&description)?;
        self.open.epoch = opened.epoch;
        self.credit = opened.credit;
        self.state = State::Open;
        let before = self.description.replace(description);
        if before.is_some_and(|before| self.description.as_ref().is_some_and(|now| is_another(&before, now))) {
            let message = "the device is another one: its descriptors differ".to_owned();
            self.end(End { cause: Cause::Gone, message }, done);
            return Ok(());
        }
        let had = std::mem::replace(&mut self.descriptors, descriptors);
        if had.configurations.is_empty() {
            let description = self.description.as_ref().expect("put there just now");
            self.selection.select_configuration(&self.descriptors, description.configuration);
            for &(interface, setting) in &description.alternates {
                self.selection.select_interface(&self.descriptors, interface, setting);
            }
            self.release(done);
        } else {
            self.restore(done);
        }
        Ok(())
    }

    /// The exporter had forgotten us: its device is set up as its user here left it.
    fn restore(&mut self, done: &mut Completions) {
        let configuration = self.selection.configuration();
        let alternates = self.selection.alternates().to_vec();
        let setups = std::iter::once(Setup::set_configuration(configuration))
            .chain(alternates.into_iter().map(|(interface, setting)| Setup::set_interface(interface, setting)));
        let mut count = 0;
        for setup in setups.filter(|_| configuration != 0) {
            let urb = Urb::control(UrbId(self.next_own_id), setup, Payload::Empty);
            self.next_own_id += 1;
            count += 1;
            self.start(urb.launch(), done);
        }
        self.settling = if count > 0 { Settling::Restoring(count) } else { Settling::No };
        self.release(done);
    }

    fn handle_reply(&mut self, arrived: Arrived, done: &mut Completions) -> Result<(), Reject> {
        let Head { kind, tag, flags, .. } = arrived.head;
        let unknown = Reject::new("tag", tag.into(), "a reply answers a request, once");
        let Some(flight) = self.slots.get_mut(tag) else { return Err(unknown) };
        if flight.has_begun != (kind == Kind::Data) || flight.is_answered {
            return Err(unknown);
        }
        flight.has_begun = true;
        let mut body = arrived.body;
        if kind == Kind::Reply && flags.timed {
            body.split_front(RESIDENCE_BYTES);
        }
        if let Some(urb) = &flight.urb {
            if kind == Kind::Reply && !flags.plain {
                let (reply, count) = usb::decode_reply(urb, &body.contiguous())?;
                body.split_front(count);
                flight.missing = if urb.direction == Direction::In { reply.actual as usize } else { 0 };
                flight.head = Some(reply);
            } else if kind == Kind::Reply {
                // As much as was asked for at most; the last frame says how much it was.
                flight.missing = if urb.direction == Direction::In { urb.length as usize } else { 0 };
            }
            let wrong = || Reject::new("data", body.len() as u64, "no more comes in than was asked for or said");
            flight.missing = flight.missing.checked_sub(body.len()).ok_or_else(wrong)?;
            if !flags.more && flight.head.is_some() && flight.missing > 0 {
                return Err(wrong());
            }
            if !body.is_empty() {
                flight.data.push(body);
            }
        }
        if !flags.more {
            self.finish(tag, done);
        }
        Ok(())
    }

    /// A withdrawal was answered: whatever it met, nothing of it is on its way any more.
    fn handle_cancelled(&mut self, tag: u16, done: &mut Completions) -> Result<(), Reject> {
        let withdrawing = self.slots.get_mut(tag).filter(|flight| flight.is_withdrawing);
        let Some(flight) = withdrawing else {
            return Err(Reject::new("tag", tag.into(), "an answered withdrawal was asked for"));
        };
        flight.is_withdrawing = false;
        if flight.is_answered {
            self.slots.remove(tag);
            self.settle(done);
        }
        Ok(())
    }

    fn finish(&mut self, tag: u16, done: &mut Completions) {
        let flight = self.slots.get_mut(tag).expect("it is in flight");
        flight.is_answered = true;
        self.bytes -= flight.cost;
        let (urb, head, data) = (flight.urb.take(), flight.head.take(), std::mem::take(&mut flight.data));
        if !flight.is_withdrawing {
            self.slots.remove(tag);
        }
        if let Some(urb) = urb {
            let payload = Payload::joined(data);
            let finished = match head {
                None if urb.direction == Direction::Out => urb.accept(),
                None => urb.answer(payload),
                Some(reply) if reply.status == Status::Ok && !reply.iso.is_empty() => {
                    let mut finished = urb.done_iso(reply.iso, payload);
                    finished.start_frame = reply.start_frame;
                    finished
                }
                Some(reply) => {
                    let mut finished = urb.done(reply.status, reply.actual, payload);
                    finished.error_count = reply.iso.iter().filter(|packet| packet.status != Status::Ok).count() as u32;
                    if !reply.iso.is_empty() {
                        finished.iso = reply.iso;
                    }
                    finished
                }
            };
            note_selection(&mut self.selection, &self.descriptors, &finished);
            match &mut self.settling {
                Settling::Restoring(left) if finished.id.0 >= OWN_ID_FIRST => {
                    *left -= 1;
                    if *left == 0 {
                        self.settling = Settling::No;
                    }
                }
                _ if finished.id.0 >= OWN_ID_FIRST => {}
                _ => done.push(finished),
            }
        }
        self.settle(done);
    }

    /// It is over: everything ends, and whatever is still asked.
    fn end(&mut self, end: End, done: &mut Completions) {
        let status = status_of(end.cause);
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Ended(end);
        }
        self.fail_all(status, done);
    }

    fn fail_all(&mut self, status: Status, done: &mut Completions) {
        self.bytes = 0;
        self.outbox.clear();
        self.settling = Settling::No;
        let flights: Vec<InFlight> = self.slots.take_all().filter_map(|(_, flight)| flight.urb).collect();
        for urb in flights.into_iter().chain(self.held.drain(..)) {
            let finished = urb.fail(status);
            if finished.id.0 < OWN_ID_FIRST {
                done.push(finished);
            }
        }
    }
}

/// Whether the other is not the device of before (requirement N7: a name that survives, for the same device).
fn is_another(before: &Description, now: &Description) -> bool {
    (before.speed, &before.descriptor, &before.configurations) != (now.speed, &now.descriptor, &now.configurations)
}

fn descriptors_of(description: &Description) -> Result<Descriptors, Reject> {
    let wrong = |_| Reject::new("descriptors", 0, "a device's descriptors are well formed");
    let device = DeviceDescriptor::parse(&description.descriptor).map_err(wrong)?;
    let mut configurations = Vec::new();
    for bytes in &description.configurations {
        configurations.push(Configuration::parse(bytes).map_err(wrong)?);
    }
    Ok(Descriptors { device, configurations, ..Descriptors::default() })
}

fn status_of(cause: Cause) -> Status {
    match cause {
        Cause::Device => Status::Protocol,
        Cause::Asked | Cause::Network | Cause::Refused | Cause::Gone | Cause::Busy | Cause::Stale | Cause::Class => {
            Status::Gone
        }
    }
}

impl Device for RemoteUsb {
    fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    fn speed(&self) -> Speed {
        self.description.as_ref().map_or(Speed::High, |description| description.speed)
    }

    fn selection(&self) -> &Selection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, mut urb: InFlight, done: &mut Completions) {
        if let State::Ended(end) = &self.state {
            return done.push(urb.fail(status_of(end.cause)));
        }
        let may_go = self.state == State::Open && self.settling == Settling::No && self.held.is_empty();
        if may_go && self.has_credit(urb.length.into()) {
            self.start(urb, done);
        } else {
            urb.own_payload();
            self.held.push_back(urb);
        }
    }

    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut Completions) {
        if let Some(at) = self.held.iter().position(|urb| urb.id == id) {
            let urb = self.held.remove(at).expect("found just now");
            return done.push(urb.fail(Status::Cancelled));
        }
        let found = self.slots.iter_mut().find_map(|(tag, flight)| {
            let urb = flight.urb.as_ref().filter(|urb| urb.id == id)?;
            Some((tag, urb.endpoint))
        });
        if let Some((tag, endpoint)) = found {
            self.say_cancel(tag, endpoint);
        }
    }

    /// Everything in flight ends here at once; the device there is reset once all of it has ended there as well, and what is
    /// submitted meanwhile waits.
    fn reset(&mut self, _now: Instant, done: &mut Completions) {
        let mut withdrawn = Vec::new();
        for (tag, flight) in self.slots.iter_mut() {
            if let Some(urb) = flight.urb.take() {
                // What was answered and waits for its withdrawal's answer has no asker any more.
                withdrawn.push((tag, urb.endpoint));
                let finished = urb.fail(Status::Shutdown);
                if finished.id.0 < OWN_ID_FIRST {
                    done.push(finished);
                }
            }
        }
        for urb in self.held.drain(..) {
            done.push(urb.fail(Status::Shutdown));
        }
        for (tag, endpoint) in withdrawn {
            self.say_cancel(tag, endpoint);
        }
        self.selection.clear();
        if self.state == State::Open {
            self.settling = Settling::Withdrawing;
            self.settle(done);
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }
}

impl Attached for RemoteUsb {
    type Done = Completions;

    fn handle_arrived(&mut self, _now: Instant, arrived: Arrived, done: &mut Completions) -> Result<(), Reject> {
        let kind = arrived.head.kind;
        match kind {
            Kind::Opened => self.handle_opened(arrived, done),
            // The description's further frames have no request of their own.
            Kind::Data if self.state == State::Opening && !self.opened.is_empty() => self.handle_opened(arrived, done),
            Kind::Reply | Kind::Data => self.handle_reply(arrived, done),
            Kind::Cancel => self.handle_cancelled(arrived.head.tag, done),
            Kind::Refused | Kind::Closed => {
                let end = End::decode(&arrived.body.contiguous())?;
                self.end(end, done);
                Ok(())
            }
            Kind::Event => Ok(()),
            _ => Err(Reject::new("kind", kind.code().into(), "an exporter does not say that")),
        }
    }

    /// What became of requests is not known: they end as the device's trouble, and are not repeated.
    fn handle_renewed(&mut self, _now: Instant, done: &mut Completions) {
        let held = std::mem::take(&mut self.held);
        self.fail_all(Status::Protocol, done);
        self.held = held;
        self.opened.clear();
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Opening;
            self.ask_to_open();
        }
    }

    fn handle_over(&mut self, cause: Cause, message: &str, done: &mut Completions) {
        self.end(End { cause, message: message.to_owned() }, done);
    }

    fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn close(&mut self) {
        self.outbox.push_back(Message::control(Kind::Close, self.attachment, 0, Part::empty()));
    }
}
