//! A block device of this host, served to an importer.

use farbus_model::block_device::take_lost;
use farbus_model::limits::CREDIT_BYTES_MAX;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, CompletionQueue, Instant,
    OwnerCommand, OwnerCommandError, Payload, PayloadAssembler, ReadinessSource, StoreError,
};
use farbus_wire::native::block::{self, BlockDescription, REQUEST_BYTES};
use farbus_wire::native::control::{AttachmentCredit, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::frame::FrameHeader;
use farbus_wire::native::{FlowId, FrameKind, LaneArray, MessageUrgency, OutboundMessage, ReceivedFrame};

use super::exporter::{DeviceMigration, ServedExport, UnmovableError};
use super::served_device::{ArrivingRequest, ServedDevice};
use super::timing::{CountRequest, ReadClock};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The most requests in flight: those of 64 KiB that fill the largest credit.
const REQUESTS_MAX: u16 = 1024;
/// The most bytes of idle buffers that are kept.
const POOL_BYTES: usize = 8 << 20;

/// A block device and the requests of its importer.
pub struct ServedBlock<D> {
    served: ServedDevice<D, BlockRequest, ()>,
    durability: u64,
    done: CompletionQueue<BlockCompletion>,
    /// The description for the importer, if it is not the device's own.
    info: Option<BlockInfo>,
}

impl<D: BlockDevice> ServedBlock<D> {
    /// Serves `device` as `attachment`; `durability` is as [`BlockDescription::durability`] says, and `give_back` is
    /// called with the device in the end.
    pub fn new(
        attachment: u16,
        device: D,
        durability: u64,
        give_back: impl FnOnce(D, Instant) + Send + 'static,
    ) -> Self {
        let credit = AttachmentCredit { requests: REQUESTS_MAX, bytes: CREDIT_BYTES_MAX as u32 };
        Self {
            served: ServedDevice::new(attachment, device, credit, give_back),
            durability,
            done: CompletionQueue::new(BufferPool::new(POOL_BYTES)),
            info: None,
        }
    }

    /// As `new`, with so many bytes of data in flight.
    #[must_use]
    pub fn with_credit(mut self, bytes: usize) -> Self {
        self.served.credit.bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// As `new`, for a successor, which gets the description of the later device: `device` may only be read.
    #[must_use]
    pub fn promising(mut self, info: BlockInfo) -> Self {
        self.info = Some(info);
        self
    }

    /// Permits a handover: `pass_on` is called then in place of `give_back`, and returns whether the device waits for
    /// its successor.
    #[must_use]
    pub fn inheritable(mut self, pass_on: impl FnOnce(D, Instant, DeviceMigration) -> bool + Send + 'static) -> Self {
        self.served.pass_on = Some(Box::new(pass_on));
        self
    }

    /// Measures the device's time with `clock`. Without a clock everything in a turn happens at its beginning, and a
    /// device that answers before its call returns takes no time.
    #[must_use]
    pub fn timed_by(mut self, clock: ReadClock) -> Self {
        self.served.clock = Some(clock);
        self
    }

    /// Reports each answered request to `count`.
    #[must_use]
    pub fn counted_by(mut self, count: CountRequest) -> Self {
        self.served.count = Some(count);
        self
    }

    fn begin(&mut self, now: Instant, arrived: ReceivedFrame, lanes: &mut LaneArray) -> Result<(), ProtocolViolation> {
        let FrameHeader { tag, flags, .. } = arrived.head;
        let mut body = arrived.body;
        let part = body.split_front(REQUEST_BYTES);
        let request = block::decode_request(BlockId(tag.into()), &part.contiguous())?;
        let missing = if request.op == BlockOp::Write { request.length as usize } else { 0 };
        let cost = match request.op {
            // A request that is too long is refused, and takes no credit.
            BlockOp::Read | BlockOp::Write => request.length.min(self.served.device.info().request_bytes_max),
            BlockOp::Map => request.answer_bytes() as u32,
            _ => 0,
        };
        self.served.enter(now, tag, cost, flags.timed, ())?;
        let arriving = ArrivingRequest { request, data: PayloadAssembler::default(), missing };
        if let Some((request, data)) = self.served.take_in(tag, arriving, body, flags.more)? {
            self.act(now, tag, request, data, lanes);
        }
        Ok(())
    }

    /// Begins a request of which all data has arrived.
    fn act(&mut self, now: Instant, tag: u16, mut request: BlockRequest, data: Payload, lanes: &mut LaneArray) {
        self.served.begin(now, tag);
        request.payload = data;
        match self.served.device.info().check(&request) {
            Ok(()) => self.served.device.submit(now, request.launch(), &mut self.done),
            Err(error) => self.done.push(request.launch().fail(error)),
        }
        self.collect(now, lanes);
    }

    /// Answers the requests that the device has completed.
    fn collect(&mut self, now: Instant, lanes: &mut LaneArray) {
        for lost in take_lost() {
            self.reply(now, lost, Err(StoreError::Medium), Payload::Empty, lanes);
        }
        while let Some(done) = self.done.pop() {
            let moved = if done.result.is_ok() { u64::from(done.length) } else { 0 };
            match done.op {
                BlockOp::Read => self.served.count(moved, 0),
                BlockOp::Write => self.served.count(0, moved),
                _ => self.served.count(0, 0),
            }
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
        lanes: &mut LaneArray,
    ) {
        let (_, head, part, done_at) = self.served.answer(now, id.0 as u16, result.err().map(block::reply_part));
        let flow = FlowId(u32::from(self.served.attachment) << 8);
        lanes.send(OutboundMessage { head, part, payload, urgency: MessageUrgency::Low, flow, done_at });
    }
}

impl<D: BlockDevice> ServedExport for ServedBlock<D> {
    fn credit(&self) -> AttachmentCredit {
        self.served.credit
    }

    fn asked_bytes(&self) -> usize {
        self.served.bytes as usize
    }

    fn description(&self) -> Vec<u8> {
        let info = self.info.unwrap_or(*self.served.device.info());
        BlockDescription { info, durability: self.durability, maps: true }.encode()
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, tag, flags, .. } = arrived.head;
        match kind {
            FrameKind::Request => self.begin(now, arrived, lanes),
            FrameKind::Data => {
                if let Some((request, data)) = self.served.go_on(tag, arrived.body, flags.more)? {
                    self.act(now, tag, request, data, lanes);
                }
                Ok(())
            }
            // A block request ends soon by itself.
            _ => Ok(()),
        }
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray) {
        self.served.device.handle_ready(now, &mut self.done);
        if self.served.device.poll_timeout().is_some_and(|at| at <= now) {
            self.served.device.handle_timeout(now, &mut self.done);
        }
        self.collect(now, lanes);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.served.device.poll_timeout()
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        self.served.device.readiness()
    }

    fn is_idle(&self) -> bool {
        self.is_at_rest() && self.served.device.readiness().is_none()
    }

    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        lanes: &mut LaneArray,
    ) -> Result<(), OwnerCommandError> {
        let result = self.served.device.command(now, command, &mut self.done);
        self.collect(now, lanes);
        result
    }

    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        Some(&mut self.done.pool)
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        if !self.served.device.is_gone() {
            return None;
        }
        // One that never was what it should have been is there all the same.
        let cause = if self.served.device.is_ready() { AttachmentEndCause::Gone } else { AttachmentEndCause::Device };
        Some(AttachmentEndNotice {
            cause,
            message: self.served.device.why_gone().unwrap_or_else(|| "the disk is gone".to_owned()),
        })
    }

    fn is_ready(&self) -> bool {
        self.served.device.is_ready()
    }

    fn hand_over(self: Box<Self>, now: Instant, migration: DeviceMigration) -> bool {
        self.served.hand_over(now, migration)
    }

    fn is_at_rest(&self) -> bool {
        self.served.flights.iter().all(|(_, flight)| flight.arriving.is_some())
    }

    fn restore(&mut self, now: Instant, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        if !self.served.device.go_on_from(from.bytes("device")?) {
            return Err(ProtocolViolation::new("device", 0, "it is the one that was saved"));
        }
        for _ in 0..from.count("writes that arrive", REQUEST_BYTES)? {
            let (tag, is_timed) = (from.u16("tag")?, from.flag("timed")?);
            let request = block::decode_request(BlockId(tag.into()), from.take(REQUEST_BYTES, "request")?)?;
            let data = from.payload("data")?;
            let cost = request.length.min(self.served.device.info().request_bytes_max);
            let missing = (request.length as usize).checked_sub(data.len()).filter(|missing| *missing > 0);
            let missing = missing.filter(|_| request.op == BlockOp::Write);
            let wrong = ProtocolViolation::new("data", data.len() as u64, "a write that arrives is not all there");
            let missing = missing.ok_or(wrong)?;
            self.served.enter_again(now, tag, cost, is_timed, ())?;
            let flight = self.served.flights.get_mut(tag).expect("put there just now");
            flight.arriving = Some(Box::new(ArrivingRequest { request, data: data.into(), missing }));
        }
        from.end("state")
    }

    fn save(&self, to: &mut SnapshotWriter) -> Result<(), UnmovableError> {
        to.bytes(&self.served.device.state().ok_or(UnmovableError)?);
        to.count(self.served.flights.len());
        for (tag, flight) in self.served.flights.iter() {
            let ArrivingRequest { request, data, .. } = &**flight.arriving.as_ref().expect("it is at rest");
            to.u16(tag);
            to.flag(flight.times.is_timed);
            to.raw(&block::request_part(request));
            to.runs(data.len(), data.runs());
        }
        Ok(())
    }

    fn leave(mut self: Box<Self>, now: Instant) {
        self.served.device.leave();
        self.finish(now);
    }

    /// The device ends its requests; their answers go nowhere.
    fn finish(self: Box<Self>, now: Instant) {
        self.served.give_back(now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use farbus_model::StoreDevice;
    use farbus_model::block::MemoryStore;
    use farbus_wire::native::LaneLimits;
    use farbus_wire::native::frame::{HEAD_BYTES, RESIDENCE_BYTES, ResidenceTimes};

    use super::*;

    /// What the exporter says of one read's time, if it reads a clock that goes on by 10 us with each look, or none.
    fn residence_of_a_read(has_clock: bool) -> ResidenceTimes {
        let looks = AtomicU64::new(100);
        let clock = move || Instant::from_nanos(looks.fetch_add(10, Ordering::Relaxed) * 1000);
        let device = StoreDevice::new(MemoryStore::new(vec![7; 4096]));
        let mut served = ServedBlock::new(1, device, 0, |_, _| {});
        if has_clock {
            served = served.timed_by(Box::new(clock));
        }
        let mut lanes = LaneArray::new(LaneLimits::DEFAULT);
        lanes.first_mut().handle_linked(0, &mut BufferPool::new(0)).unwrap();
        let mut head = FrameHeader::new(FrameKind::Request, 1, 3);
        head.flags.timed = true;
        let body = block::request_part(&BlockRequest::read(BlockId(3), 0, 512)).to_vec().into();
        served.handle_arrived(Instant::from_nanos(60_000), ReceivedFrame { head, body }, &mut lanes).unwrap();
        let sent: Vec<u8> =
            lanes.first_mut().poll_transmit(Instant::from_nanos(150_000)).iter().flat_map(|run| run.to_vec()).collect();
        assert_eq!(sent.len(), HEAD_BYTES + RESIDENCE_BYTES + 512);
        ResidenceTimes::from_bytes(*sent[HEAD_BYTES..].first_chunk().unwrap())
    }

    #[test]
    fn a_device_that_answers_at_once_took_time_all_the_same() {
        let measured = ResidenceTimes { queue_ns: 40_000, device_ns: 10_000, reply_ns: 40_000 };
        assert_eq!(residence_of_a_read(true), measured);
        assert_eq!(residence_of_a_read(false), ResidenceTimes { queue_ns: 0, device_ns: 0, reply_ns: 90_000 });
    }
}
