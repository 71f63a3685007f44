//! A device that answers requests, served to an importer: the part that is the same for all such classes.

use farbus_model::{Instant, Payload, PayloadAssembler};
use farbus_wire::native::control::AttachmentCredit;
use farbus_wire::native::frame::{FrameHeader, ResidenceTimes, span_ns};
use farbus_wire::native::{ClassPart, FrameKind};

use super::served::DeviceMigration;
use super::tagged::TagMap;
use super::timing::{CountRequest, ReadClock};
use crate::ProtocolViolation;

/// Takes a device that is handed over; returns whether it waits for its successor.
type MigrationSink<D> = Box<dyn FnOnce(D, Instant, DeviceMigration) -> bool + Send>;

/// A device and its importer's requests: each is an `R`, and `S` is what the class keeps of it.
pub(super) struct ServedDevice<D, R, S> {
    pub attachment: u16,
    pub device: D,
    /// What may be in flight.
    pub credit: AttachmentCredit,
    /// Requests by tag: those with the device, and those whose data is still arriving.
    pub flights: TagMap<ServedRequest<R, S>>,
    /// The credit that they take.
    pub bytes: u64,
    /// Takes the device at the end.
    give_back: Box<dyn FnOnce(D, Instant) + Send>,
    /// Takes it in place of `give_back` if it is handed over; `None`: no handover.
    pub pass_on: Option<MigrationSink<D>>,
    /// Measures requests that are timed.
    pub clock: Option<ReadClock>,
    /// Counts requests that are answered.
    pub count: Option<CountRequest>,
}

pub(super) struct ServedRequest<R, S> {
    /// The credit that it takes, in bytes.
    pub cost: u32,
    /// The request, until all of its data has arrived.
    pub arriving: Option<Box<ArrivingRequest<R>>>,
    pub times: RequestTimes,
    /// What the class keeps of it.
    pub state: S,
}

pub(super) struct ArrivingRequest<R> {
    pub request: R,
    pub data: PayloadAssembler,
    pub missing: usize,
}

/// The times of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestTimes {
    /// Whether the importer wants them.
    pub is_timed: bool,
    /// When its first byte arrived.
    pub arrived: Instant,
    /// When the device got it.
    pub begun: Instant,
}

impl<D, R, S> ServedDevice<D, R, S> {
    pub fn new(
        attachment: u16,
        device: D,
        credit: AttachmentCredit,
        give_back: impl FnOnce(D, Instant) + Send + 'static,
    ) -> Self {
        let (flights, give_back) = (TagMap::default(), Box::new(give_back));
        Self { attachment, device, credit, flights, bytes: 0, give_back, pass_on: None, clock: None, count: None }
    }

    /// Registers a request that begins to arrive, and the credit that it takes.
    #[inline]
    pub fn enter(
        &mut self,
        now: Instant,
        tag: u16,
        cost: u32,
        is_timed: bool,
        state: S,
    ) -> Result<(), ProtocolViolation> {
        match self.bytes > 0 && self.bytes + u64::from(cost) > self.credit.bytes.into() {
            true => Err(self.beyond_credit()),
            false => self.enter_again(now, tag, cost, is_timed, state),
        }
    }

    /// Registers a request that another process accepted, whose credit in bytes may have been different.
    #[inline]
    pub fn enter_again(
        &mut self,
        now: Instant,
        tag: u16,
        cost: u32,
        is_timed: bool,
        state: S,
    ) -> Result<(), ProtocolViolation> {
        if self.flights.len() >= self.credit.requests.into() {
            return Err(self.beyond_credit());
        }
        if self.flights.contains(tag) {
            return Err(ProtocolViolation::new("tag", tag.into(), "a request has a tag that is not in use"));
        }
        self.bytes += u64::from(cost);
        let times = RequestTimes { is_timed, arrived: now, begun: now };
        self.flights.insert(tag, ServedRequest { cost, arriving: None, times, state });
        Ok(())
    }

    fn beyond_credit(&self) -> ProtocolViolation {
        ProtocolViolation::new("credit", self.bytes, "no more is asked than the credit allows")
    }

    /// Takes more data of a request; returns the request and all data when it is complete.
    #[inline]
    pub fn go_on(
        &mut self,
        tag: u16,
        data: Payload,
        has_more: bool,
    ) -> Result<Option<(R, Payload)>, ProtocolViolation> {
        match self.flights.get_mut(tag).and_then(|flight| flight.arriving.take()) {
            Some(arriving) => self.take_in(tag, *arriving, data, has_more),
            None => Err(ProtocolViolation::new("tag", tag.into(), "data belongs to a request that waits for it")),
        }
    }

    /// As [`ServedDevice::go_on`], for a request whose data begins with this.
    #[inline]
    pub fn take_in(
        &mut self,
        tag: u16,
        mut arriving: ArrivingRequest<R>,
        data: Payload,
        has_more: bool,
    ) -> Result<Option<(R, Payload)>, ProtocolViolation> {
        let wrong = || ProtocolViolation::new("data", data.len() as u64, "a request brings as many bytes as it says");
        arriving.missing = arriving.missing.checked_sub(data.len()).ok_or_else(wrong)?;
        if has_more != (arriving.missing > 0) {
            return Err(wrong());
        }
        arriving.data.push(data);
        if has_more {
            self.flights.get_mut(tag).expect("it is in flight").arriving = Some(Box::new(arriving));
            return Ok(None);
        }
        Ok(Some((arriving.request, arriving.data.into_payload())))
    }

    /// Notes that the device gets a request.
    #[inline]
    pub fn begin(&mut self, now: Instant, tag: u16) -> &mut ServedRequest<R, S> {
        let flight = self.flights.get_mut(tag).expect("it is in flight");
        if flight.times.is_timed {
            flight.times.begun = self.clock.as_ref().map_or(now, |clock| clock());
        }
        flight
    }

    /// Counts a request that is answered.
    #[inline]
    pub fn count(&self, bytes_in: u64, bytes_out: u64) {
        if let Some(count) = &self.count {
            count(bytes_in, bytes_out);
        }
    }

    /// Removes a request; returns it with the head of its reply, the reply's part, and when it was done if it is timed.
    /// `outcome` is the class's part of the reply, if it is not the plain one.
    #[inline]
    pub fn answer(
        &mut self,
        now: Instant,
        tag: u16,
        outcome: Option<ClassPart>,
    ) -> (ServedRequest<R, S>, FrameHeader, ClassPart, Option<Instant>) {
        let flight = self.flights.remove(tag).expect("a device has what was in flight");
        self.bytes -= u64::from(flight.cost);
        let RequestTimes { is_timed, arrived, begun } = flight.times;
        let (mut head, mut part) = (FrameHeader::new(FrameKind::Reply, self.attachment, tag), ClassPart::empty());
        (head.flags.plain, head.flags.timed) = (outcome.is_none(), is_timed);
        let mut done_at = None;
        if is_timed {
            let now = self.clock.as_ref().map_or(now, |clock| clock());
            done_at = Some(now);
            let (queue_ns, device_ns) = (span_ns(begun - arrived), span_ns(now - begun));
            part.put(&ResidenceTimes { queue_ns, device_ns, reply_ns: 0 }.to_bytes());
        }
        if let Some(outcome) = outcome {
            part.put(&outcome);
        }
        (flight, head, part, done_at)
    }

    /// Gives the device to its successor, or back if it may not be handed over.
    pub fn hand_over(self, now: Instant, migration: DeviceMigration) -> bool {
        match self.pass_on {
            Some(pass_on) => pass_on(self.device, now, migration),
            None => {
                (self.give_back)(self.device, now);
                false
            }
        }
    }

    /// Gives the device back.
    pub fn give_back(self, now: Instant) {
        (self.give_back)(self.device, now);
    }
}
