//! A block device of ours, served to an importer.

use farbus_model::block_device::take_lost;
use farbus_model::limits::CREDIT_BYTES_MAX;
use farbus_model::{
    BlockDevice, BlockDone, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, Command, CommandError, Completions,
    Instant, Payload, Pieces, Readiness, StoreError,
};
use farbus_wire::native::block::{self, Description, REQUEST_BYTES};
use farbus_wire::native::control::{Cause, Credit, End};
use farbus_wire::native::frame::{Flags, Head, Residence, span_ns};
use farbus_wire::native::{Arrived, Flow, Kind, Lanes, Message, Part, Urgency};

use super::exporter::{Migration, Served, Unmovable};
use super::tagged::Tagged;
use super::timing::ReadClock;
use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// Requests in flight: what a kernel's block layer keeps (Linux: `nr_requests` 128), doubled.
const REQUESTS_MAX: u16 = 256;
/// Idle buffers that are kept.
const POOL_BYTES: usize = 8 << 20;

/// A block device and the requests of its importer.
pub struct ServedBlock<D> {
    attachment: u16,
    device: D,
    durability: u64,
    done: Completions<BlockDone>,
    /// By tag. Those with the device, and those whose data is still arriving.
    flights: Tagged<Flight>,
    bytes: u64,
    /// Of them, so many are allowed.
    bytes_max: u32,
    give_back: Option<Box<dyn FnOnce(D, Instant) + Send>>,
    pass_on: Option<PassOn<D>>,
    clock: Option<ReadClock>,
    /// What it is said to be, if that is not what it is here.
    said: Option<BlockInfo>,
}

/// Takes a device that is handed over as it is; says whether it waits for its successor.
type PassOn<D> = Box<dyn FnOnce(D, Instant, Migration) -> bool + Send>;

struct Flight {
    cost: u32,
    arriving: Option<Box<Arriving>>,
    /// Whether its time is asked for.
    is_timed: bool,
    /// When its first byte was seen.
    arrived: Instant,
    /// When the device was given it.
    begun: Instant,
}

/// A write whose data is not all here.
struct Arriving {
    request: BlockRequest,
    data: Pieces,
    missing: u32,
}

impl<D: BlockDevice> ServedBlock<D> {
    /// Serves `device` as `attachment`; `durability` is as [`Description::durability`] says, and `give_back` is called
    /// with the device in the end.
    pub fn new(
        attachment: u16,
        device: D,
        durability: u64,
        give_back: impl FnOnce(D, Instant) + Send + 'static,
    ) -> Self {
        Self {
            attachment,
            device,
            durability,
            done: Completions::new(BufferPool::new(POOL_BYTES)),
            flights: Tagged::default(),
            bytes: 0,
            bytes_max: CREDIT_BYTES_MAX as u32,
            give_back: Some(Box::new(give_back)),
            pass_on: None,
            clock: None,
            said: None,
        }
    }

    /// The same with so many bytes of data in flight.
    #[must_use]
    pub fn with_credit(mut self, bytes: usize) -> Self {
        self.bytes_max = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// The same for its successor, who is told what it will be: `device` may only be read.
    #[must_use]
    pub fn promising(mut self, info: BlockInfo) -> Self {
        self.said = Some(info);
        self
    }

    /// The same, that may be handed over: `pass_on` is called instead then, and says whether it waits for its
    /// successor.
    #[must_use]
    pub fn inheritable(mut self, pass_on: impl FnOnce(D, Instant, Migration) -> bool + Send + 'static) -> Self {
        self.pass_on = Some(Box::new(pass_on));
        self
    }

    /// The same, whose stay with the device is measured with `clock`; without one all of a turn happens in the moment
    /// that it began at, and a device that answers before its call returns takes no time.
    #[must_use]
    pub fn timed_by(mut self, clock: ReadClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The moment, for a request that is timed.
    fn moment(&self, now: Instant, is_timed: bool) -> Instant {
        self.clock.as_ref().filter(|_| is_timed).map_or(now, |clock| clock())
    }

    fn begin(&mut self, now: Instant, arrived: Arrived, lanes: &mut Lanes) -> Result<(), Reject> {
        let Head { tag, flags, .. } = arrived.head;
        let mut body = arrived.body;
        let part = body.split_front(REQUEST_BYTES);
        let request = block::decode_request(BlockId(tag.into()), &part.contiguous())?;
        let data = if request.op == BlockOp::Write { request.length } else { 0 };
        let moves = matches!(request.op, BlockOp::Read | BlockOp::Write);
        // What is longer than a request may be is refused, and reserves nothing.
        let cost = if moves { request.length.min(self.device.info().request_bytes_max) } else { 0 };
        if self.flights.len() >= REQUESTS_MAX.into()
            || (self.bytes > 0 && self.bytes + u64::from(cost) > u64::from(self.bytes_max))
        {
            return Err(Reject::new("credit", self.bytes, "no more is asked than the credit allows"));
        }
        if self.flights.contains(tag) {
            return Err(Reject::new("tag", tag.into(), "a request has a tag that is not in use"));
        }
        self.bytes += u64::from(cost);
        let flight = Flight { cost, arriving: None, is_timed: flags.timed, arrived: now, begun: now };
        self.flights.insert(tag, flight);
        self.take_in(now, tag, Arriving { request, data: Pieces::default(), missing: data }, body, flags, lanes)
    }

    fn go_on(&mut self, now: Instant, tag: u16, data: Payload, flags: Flags, lanes: &mut Lanes) -> Result<(), Reject> {
        match self.flights.get_mut(tag).and_then(|flight| flight.arriving.take()) {
            Some(arriving) => self.take_in(now, tag, *arriving, data, flags, lanes),
            None => Err(Reject::new("tag", tag.into(), "data belongs to a request that waits for it")),
        }
    }

    fn take_in(
        &mut self,
        now: Instant,
        tag: u16,
        mut arriving: Arriving,
        data: Payload,
        flags: Flags,
        lanes: &mut Lanes,
    ) -> Result<(), Reject> {
        let left = (arriving.missing as usize).checked_sub(data.len());
        let wrong = || Reject::new("data", data.len() as u64, "a write has as many bytes as it says");
        arriving.missing = left.ok_or_else(wrong)? as u32;
        if flags.more != (arriving.missing > 0) {
            return Err(wrong());
        }
        let flight = self.flights.get_mut(tag).expect("it is in flight");
        if flags.more {
            arriving.data.push(data);
            flight.arriving = Some(Box::new(arriving));
            return Ok(());
        }
        let is_timed = flight.is_timed;
        let begun = self.moment(now, is_timed);
        self.flights.get_mut(tag).expect("looked at just now").begun = begun;
        let Arriving { mut request, data: mut all, .. } = arriving;
        all.push(data);
        request.payload = all.into_payload();
        match self.device.info().check(&request) {
            Ok(()) => self.device.submit(now, request.launch(), &mut self.done),
            Err(error) => self.done.push(request.launch().fail(error)),
        }
        self.collect(now, lanes);
        Ok(())
    }

    /// What the device has done is said.
    fn collect(&mut self, now: Instant, lanes: &mut Lanes) {
        for lost in take_lost() {
            self.reply(now, lost, Err(StoreError::Medium), Payload::Empty, lanes);
        }
        while let Some(done) = self.done.pop() {
            self.done.pool.recycle(done.spent);
            self.reply(now, done.id, done.result, done.payload, lanes);
        }
    }

    fn reply(
        &mut self,
        now: Instant,
        id: BlockId,
        result: Result<(), StoreError>,
        payload: Payload,
        lanes: &mut Lanes,
    ) {
        let tag = id.0 as u16;
        let flight = self.flights.remove(tag).expect("a device has what was in flight");
        self.bytes -= u64::from(flight.cost);
        let mut part = Part::empty();
        let now = self.moment(now, flight.is_timed);
        if flight.is_timed {
            let queue_ns = span_ns(flight.begun - flight.arrived);
            let residence = Residence { queue_ns, device_ns: span_ns(now - flight.begun), reply_ns: 0 };
            part.put(&residence.to_bytes());
        }
        if let Err(error) = result {
            part.put(&block::reply_part(error));
        }
        let mut head = Head::new(Kind::Reply, self.attachment, tag);
        head.flags.plain = result.is_ok();
        head.flags.timed = flight.is_timed;
        lanes.send(Message {
            head,
            part,
            payload,
            urgency: Urgency::Low,
            flow: Flow(u32::from(self.attachment) << 8),
            done_at: flight.is_timed.then_some(now),
        });
    }
}

impl<D: BlockDevice> Served for ServedBlock<D> {
    fn credit(&self) -> Credit {
        Credit { requests: REQUESTS_MAX, bytes: self.bytes_max }
    }

    fn asked_bytes(&self) -> usize {
        self.bytes as usize
    }

    fn description(&self) -> Vec<u8> {
        Description { info: self.said.unwrap_or(*self.device.info()), durability: self.durability }.encode()
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, lanes: &mut Lanes) -> Result<(), Reject> {
        match arrived.head.kind {
            Kind::Request => self.begin(now, arrived, lanes),
            Kind::Data => self.go_on(now, arrived.head.tag, arrived.body, arrived.head.flags, lanes),
            // A block request ends by itself, and soon.
            _ => Ok(()),
        }
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut Lanes) {
        self.device.handle_ready(now, &mut self.done);
        if self.device.poll_timeout().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now, &mut self.done);
        }
        self.collect(now, lanes);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }

    fn readiness(&self) -> Option<&Readiness> {
        self.device.readiness()
    }

    fn is_idle(&self) -> bool {
        self.is_at_rest() && self.device.readiness().is_none()
    }

    fn command(&mut self, now: Instant, command: &Command, lanes: &mut Lanes) -> Result<(), CommandError> {
        let result = self.device.command(now, command, &mut self.done);
        self.collect(now, lanes);
        result
    }

    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        Some(&mut self.done.pool)
    }

    fn poll_end(&mut self) -> Option<End> {
        if !self.device.is_gone() {
            return None;
        }
        // One that never was what it should have been is there all the same.
        let cause = if self.device.is_ready() { Cause::Gone } else { Cause::Device };
        Some(End { cause, message: self.device.why_gone().unwrap_or_else(|| "the disk is gone".to_owned()) })
    }

    fn is_ready(&self) -> bool {
        self.device.is_ready()
    }

    fn hand_over(mut self: Box<Self>, now: Instant, migration: Migration) -> bool {
        match self.pass_on.take() {
            Some(pass_on) => pass_on(self.device, now, migration),
            None => {
                self.finish(now);
                false
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        self.flights.iter().all(|(_, flight)| flight.arriving.is_some())
    }

    fn restore(&mut self, now: Instant, from: &mut Reader<'_>) -> Result<(), Reject> {
        if !self.device.go_on_from(from.bytes("device")?) {
            return Err(Reject::new("device", 0, "it is the one that was saved"));
        }
        for _ in 0..from.count("writes that arrive", REQUEST_BYTES)? {
            let (tag, is_timed) = (from.u16("tag")?, from.flag("timed")?);
            let request = block::decode_request(BlockId(tag.into()), from.take(REQUEST_BYTES, "request")?)?;
            let data = from.payload("data")?;
            let cost = request.length.min(self.device.info().request_bytes_max);
            let missing = request.length.checked_sub(data.len() as u32).filter(|missing| *missing > 0);
            let missing = missing.filter(|_| request.op == BlockOp::Write);
            let wrong = Reject::new("data", data.len() as u64, "a write that arrives is not all there");
            let missing = missing.ok_or(wrong)?;
            let arriving = Some(Box::new(Arriving { request, data: data.into(), missing }));
            self.bytes += u64::from(cost);
            let flight = Flight { cost, arriving, is_timed, arrived: now, begun: now };
            if self.flights.contains(tag) || self.flights.len() >= REQUESTS_MAX.into() {
                return Err(Reject::new("tag", tag.into(), "a request has a tag that is not in use"));
            }
            self.flights.insert(tag, flight);
        }
        from.end("state")
    }

    fn save(&self, to: &mut Writer) -> Result<(), Unmovable> {
        to.bytes(&self.device.state().ok_or(Unmovable)?);
        to.count(self.flights.len());
        for (tag, flight) in self.flights.iter() {
            let Arriving { request, data, .. } = &**flight.arriving.as_ref().expect("it is at rest");
            to.u16(tag);
            to.flag(flight.is_timed);
            to.raw(&block::request_part(request));
            to.runs(data.len(), data.runs());
        }
        Ok(())
    }

    fn leave(mut self: Box<Self>, now: Instant) {
        self.device.leave();
        self.finish(now);
    }

    /// Requests that are with the device are the device's to end; nobody hears of it.
    fn finish(mut self: Box<Self>, now: Instant) {
        if let Some(give_back) = self.give_back.take() {
            give_back(self.device, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use farbus_model::StoreDevice;
    use farbus_model::block::MemoryStore;
    use farbus_wire::native::LaneLimits;
    use farbus_wire::native::frame::{HEAD_BYTES, RESIDENCE_BYTES};

    use super::*;

    /// What the exporter says of one read's time, if it reads a clock that goes on by 10 us with each look, or none.
    fn told(has_clock: bool) -> Residence {
        let looks = AtomicU64::new(100);
        let clock = move || Instant::from_nanos(looks.fetch_add(10, Ordering::Relaxed) * 1000);
        let device = StoreDevice::new(MemoryStore::new(vec![7; 4096]));
        let mut served = ServedBlock::new(1, device, 0, |_, _| {});
        if has_clock {
            served = served.timed_by(Box::new(clock));
        }
        let mut lanes = Lanes::new(LaneLimits::DEFAULT);
        lanes.first_mut().handle_linked(0, &mut BufferPool::new(0)).unwrap();
        let mut head = Head::new(Kind::Request, 1, 3);
        head.flags.timed = true;
        let body = block::request_part(&BlockRequest::read(BlockId(3), 0, 512)).to_vec().into();
        served.handle_arrived(Instant::from_nanos(60_000), Arrived { head, body }, &mut lanes).unwrap();
        let sent: Vec<u8> =
            lanes.first_mut().poll_transmit(Instant::from_nanos(150_000)).iter().flat_map(|run| run.to_vec()).collect();
        assert_eq!(sent.len(), HEAD_BYTES + RESIDENCE_BYTES + 512);
        Residence::from_bytes(*sent[HEAD_BYTES..].first_chunk().unwrap())
    }

    #[test]
    fn a_device_that_answers_at_once_took_time_all_the_same() {
        let measured = Residence { queue_ns: 40_000, device_ns: 10_000, reply_ns: 40_000 };
        assert_eq!(told(true), measured);
        assert_eq!(told(false), Residence { queue_ns: 0, device_ns: 0, reply_ns: 90_000 });
    }
}
