//! A block device of another host, brought by a session.

use std::collections::VecDeque;

use farbus_model::{
    BlockDevice, BlockDone, BlockInFlight, BlockInfo, BlockOp, Completions, Instant, Payload, StoreError,
};
use farbus_wire::native::block::{self, Description};
use farbus_wire::native::control::{Cause, Close, Credit, End, Open, Opened};
use farbus_wire::native::frame::{Head, Residence};
use farbus_wire::native::{Arrived, Flow, Kind, Message, Part, Urgency};

use super::importer::{Attached, State};
use super::slots::Slots;
use super::timing::{Timed, Timing, split_residence};
use crate::Reject;

/// Bytes of an [`Opened`]: far more than a disk's description has.
const OPENED_BYTES_MAX: usize = 4096;

/// A block device on another host. It is opened when it is made; until that is answered requests wait.
#[derive(Debug)]
pub struct RemoteBlock {
    attachment: u16,
    open: Open,
    state: State,
    description: Option<Description>,
    credit: Credit,
    slots: Slots<Flight>,
    bytes: u64,
    /// Requests without credit, or from before the device was opened.
    held: VecDeque<BlockInFlight>,
    outbox: VecDeque<Message>,
    /// Nothing new is begun.
    is_still: bool,
    /// It was handed over, and nobody has come for it.
    is_moving: bool,
    opened: Vec<Payload>,
    next_order: u64,
    /// The order behind the last change.
    changed: u64,
    /// Changes of an order before this are durable.
    flushed: u64,
    /// Writes that were answered may be lost: the next flush says so.
    is_undurable: bool,
    timing: Timing,
}

#[derive(Debug)]
struct Flight {
    request: BlockInFlight,
    /// Its place among all requests: what is asked again is asked in the same order.
    order: u64,
    /// A flush: changes of an order before this are durable when it succeeds.
    covers: u64,
    data: Vec<Payload>,
    missing: u32,
    submitted: Instant,
    is_timed: bool,
    /// As its reply began, whose data may take further frames.
    residence: Option<Residence>,
}

impl RemoteBlock {
    /// Asks for a device as `attachment`, a number of the session that is not in use.
    pub fn new(attachment: u16, open: Open) -> Self {
        let mut remote = Self {
            attachment,
            open,
            state: State::Opening,
            description: None,
            credit: Credit { requests: 0, bytes: 0 },
            slots: Slots::default(),
            bytes: 0,
            held: VecDeque::new(),
            outbox: VecDeque::new(),
            is_still: false,
            is_moving: false,
            opened: Vec::new(),
            next_order: 0,
            changed: 0,
            flushed: 0,
            is_undurable: false,
            timing: Timing::default(),
        };
        remote.ask_to_open();
        remote
    }

    /// The lease under which it is used; 0 before it is open.
    pub fn lease(&self) -> u64 {
        self.open.epoch
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

    /// Requests that wait leave as far as there is credit.
    fn release(&mut self, now: Instant) {
        while self.state == State::Open
            && !self.is_still
            && let Some(request) = self.held.front()
            && self.has_credit(cost(request))
        {
            let request = self.held.pop_front().expect("looked at just now");
            self.start(now, request);
        }
    }

    fn start(&mut self, now: Instant, mut request: BlockInFlight) {
        // It may have to be asked again: its data stays here, shared with the message.
        request.share_payload();
        self.bytes += cost(&request);
        let order = self.next_order;
        self.next_order += 1;
        let mut covers = 0;
        match request.op {
            BlockOp::Read => {}
            // It covers what was answered before it was asked.
            BlockOp::Flush => covers = self.first_change_in_flight().unwrap_or(order),
            BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes => self.changed = self.next_order,
        }
        let is_timed = self.timing.is_due(now);
        let missing = if request.op == BlockOp::Read { request.length } else { 0 };
        let flight =
            Flight { request, order, covers, data: Vec::new(), missing, submitted: now, is_timed, residence: None };
        let tag = self.slots.put(flight);
        self.say(tag);
    }

    fn say(&mut self, tag: u16) {
        let flight = self.slots.get_mut(tag).expect("it was put there");
        let mut head = Head::new(Kind::Request, self.attachment, tag);
        head.flags.timed = flight.is_timed;
        // Reads do not wait behind what is written.
        let line = if flight.request.payload.is_empty() { 0 } else { 1 };
        self.outbox.push_back(Message {
            head,
            part: block::request_part(&flight.request),
            payload: flight.request.payload.clone(),
            urgency: Urgency::Low,
            flow: Flow(u32::from(self.attachment) << 8 | line),
            done_at: None,
        });
    }

    fn handle_opened(&mut self, now: Instant, arrived: Arrived) -> Result<(), Reject> {
        self.opened.push(arrived.body);
        if self.opened.iter().map(Payload::len).sum::<usize>() > OPENED_BYTES_MAX {
            return Err(Reject::new("opened", OPENED_BYTES_MAX as u64, "a disk's description is shorter"));
        }
        if arrived.head.flags.more {
            return Ok(());
        }
        if self.state != State::Opening && !std::mem::take(&mut self.is_moving) {
            return Err(Reject::new("kind", Kind::Opened.code().into(), "what is opened was asked for"));
        }
        // If it was to be another's, it is ours again.
        self.is_still = false;
        let body = Payload::joined(self.opened.drain(..));
        let opened = Opened::decode(&body.contiguous())?;
        let description = Description::decode(&opened.info)?;
        let before = self.description.replace(description);
        self.open.epoch = opened.epoch;
        self.credit = opened.credit;
        self.state = State::Open;
        if let Some(before) = before {
            self.come_back(before, description);
        }
        self.release(now);
        Ok(())
    }

    /// The exporter had forgotten us, and the device is open again: what was in flight is asked again.
    fn come_back(&mut self, before: Description, now: Description) {
        if before.info != now.info {
            let message = format!(
                "the disk is another one: it had {} bytes and has {}",
                before.info.size_bytes, now.info.size_bytes
            );
            self.state = State::Ended(End { cause: Cause::Gone, message });
            return;
        }
        // A change that is asked again needs no flush of before.
        let answered = self.first_change_in_flight().unwrap_or(self.changed);
        self.is_undurable |= before.durability != now.durability && answered > self.flushed;
        for request in self.take_flights().into_iter().rev() {
            self.held.push_front(request);
        }
    }

    fn first_change_in_flight(&mut self) -> Option<u64> {
        let changes = |op| matches!(op, BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes);
        let flights = self.slots.iter_mut();
        flights.filter(|(_, flight)| changes(flight.request.op)).map(|(_, flight)| flight.order).min()
    }

    /// Everything in flight, in the order in which it was asked.
    fn take_flights(&mut self) -> Vec<BlockInFlight> {
        self.bytes = 0;
        let mut flights: Vec<Flight> = self.slots.take_all().map(|(_, flight)| flight).collect();
        flights.sort_unstable_by_key(|flight| flight.order);
        flights.into_iter().map(|flight| flight.request).collect()
    }

    fn handle_reply(
        &mut self,
        now: Instant,
        arrived: Arrived,
        done: &mut Completions<BlockDone>,
    ) -> Result<(), Reject> {
        let Head { kind, tag, flags, .. } = arrived.head;
        let Some(flight) = self.slots.get_mut(tag) else {
            return Err(Reject::new("tag", tag.into(), "a reply answers a request"));
        };
        let mut body = arrived.body;
        if kind == Kind::Reply {
            if !flight.data.is_empty() || flags.timed != flight.is_timed {
                return Err(Reject::new("tag", tag.into(), "a request is answered once, and timed if it was to be"));
            }
            if flags.timed {
                flight.residence = Some(split_residence(&mut body)?);
            }
            if !flags.plain {
                let error = block::decode_reply(&body.contiguous())?;
                self.end(now, tag, Err(error), done);
                return Ok(());
            }
        } else if flight.data.is_empty() {
            return Err(Reject::new("tag", tag.into(), "data goes on with what was begun"));
        }
        let left = (flight.missing as usize).checked_sub(body.len());
        let wrong = || Reject::new("data", body.len() as u64, "a read brings as many bytes as were asked for");
        flight.missing = left.ok_or_else(wrong)? as u32;
        if flags.more != (flight.missing > 0) {
            return Err(wrong());
        }
        flight.data.push(body);
        if !flags.more {
            self.end(now, tag, Ok(()), done);
        }
        Ok(())
    }

    fn end(&mut self, now: Instant, tag: u16, result: Result<(), StoreError>, done: &mut Completions<BlockDone>) {
        let Flight { request, data, submitted, covers, residence, .. } =
            self.slots.remove(tag).expect("it is in flight");
        self.bytes -= cost(&request);
        if let Some(residence) = residence {
            self.timing.note(now - submitted, residence);
        }
        done.push(match result {
            Ok(()) if request.op == BlockOp::Flush && std::mem::take(&mut self.is_undurable) => {
                request.fail(StoreError::Lost)
            }
            Ok(()) => {
                self.flushed = self.flushed.max(covers);
                request.answer(Payload::joined(data))
            }
            Err(error) => request.fail(error),
        });
        self.release(now);
    }

    fn fail_all(&mut self, error: StoreError, done: &mut Completions<BlockDone>) {
        let flights = self.take_flights();
        flights.into_iter().chain(self.held.drain(..)).for_each(|request| done.push(request.fail(error)));
    }
}

/// What a request takes of a credit, bytes.
fn cost(request: &BlockInFlight) -> u64 {
    match request.op {
        BlockOp::Read | BlockOp::Write => request.length.into(),
        BlockOp::Flush | BlockOp::Discard | BlockOp::WriteZeroes => 0,
    }
}

impl BlockDevice for RemoteBlock {
    /// # Panics
    /// If it was not opened yet: its owner waits for that.
    fn info(&self) -> &BlockInfo {
        &self.description.as_ref().expect("a device is used once it is open").info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut Completions<BlockDone>) {
        match &self.state {
            State::Ended(end) => done.push(request.fail(error_of(end.cause))),
            State::Open => match self.info().check(&request) {
                Err(error) => done.push(request.fail(error)),
                Ok(()) if self.held.is_empty() && !self.is_still && self.has_credit(cost(&request)) => {
                    self.start(now, request)
                }
                Ok(()) => self.hold(request),
            },
            State::Opening => self.hold(request),
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }
}

impl RemoteBlock {
    fn hold(&mut self, mut request: BlockInFlight) {
        request.share_payload();
        self.held.push_back(request);
    }
}

fn error_of(cause: Cause) -> StoreError {
    match cause {
        Cause::Network => StoreError::Lost,
        Cause::Device | Cause::Module => StoreError::Medium,
        Cause::Asked | Cause::Refused | Cause::Gone | Cause::Busy | Cause::Stale | Cause::Class => StoreError::Gone,
    }
}

impl Attached for RemoteBlock {
    type Done = Completions<BlockDone>;

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, done: &mut Self::Done) -> Result<(), Reject> {
        let kind = arrived.head.kind;
        match kind {
            Kind::Opened => {
                self.handle_opened(now, arrived)?;
                if let State::Ended(end) = &self.state {
                    let error = error_of(end.cause);
                    self.fail_all(error, done);
                }
                Ok(())
            }
            // The description's further frames have no request of their own.
            Kind::Data if !self.opened.is_empty() => self.handle_opened(now, arrived),
            Kind::Reply | Kind::Data => self.handle_reply(now, arrived, done),
            Kind::Refused | Kind::Closed => {
                let end = End::decode(&arrived.body.contiguous())?;
                let error = error_of(end.cause);
                self.state = State::Ended(end);
                self.fail_all(error, done);
                Ok(())
            }
            Kind::Event => Ok(()),
            _ => Err(Reject::new("kind", kind.code().into(), "an exporter does not say that")),
        }
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Self::Done) {
        self.is_moving = false;
        self.outbox.clear();
        self.opened.clear();
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Opening;
            self.ask_to_open();
        }
    }

    fn handle_over(&mut self, cause: Cause, message: &str, done: &mut Self::Done) {
        if !matches!(self.state, State::Ended(_)) {
            self.state = State::Ended(End { cause, message: message.to_owned() });
        }
        self.fail_all(error_of(cause), done);
    }

    fn poll_message(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn poll_timed(&mut self) -> Option<Timed> {
        self.timing.take()
    }

    fn close(&mut self) {
        self.outbox.push_back(Message::control(Kind::Close, self.attachment, 0, Part::empty()));
    }

    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
        self.is_still = true;
    }

    fn is_still(&self) -> bool {
        self.slots.is_empty()
    }

    fn bequeath(&mut self, heir: [u8; 32]) {
        let part = Close::to(heir, Vec::new()).encode().into();
        self.outbox.push_back(Message::control(Kind::Close, self.attachment, 0, part));
        self.is_moving = true;
    }

    fn is_moving(&self) -> bool {
        self.is_moving && self.state == State::Open
    }
}
