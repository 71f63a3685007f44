//! Both ends of a session in farbus's own protocol, and what is between them: memory.

use std::sync::Arc;
use std::time::Duration;

use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockLayer, BlockRequest, BufferPool, CompletionQueue, Device, EpAddr,
    Instant, Payload, SessionLimits, SetupPacket, StoreDevice, TransferType, Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::block::{ReadAheadLayer, SparseMemory, WriteBackLayer};
use farbus_session::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};
use farbus_session::native::hello::SessionId;
use farbus_session::native::{
    AttachmentState, ExporterServices, ExporterSession, FlowId, FrameHeader, FrameKind, GreetingOutcome,
    ImporterAttachment, ImporterSession, Lane, LaneLimits, MessageUrgency, OutboundMessage, ReceivedFrame, RemoteBlock,
    RemoteUsb, ServedBlock, ServedExport, ServedUsb, usb as usb_part,
};
use farbus_session::{DeviceRecord, SendSlices};
use farbus_sim::SimulationRng;

use crate::CountedScenario;

const GRACE: Duration = Duration::from_secs(20);
/// What a round takes by the clock of the sessions.
const ROUND: Duration = Duration::from_micros(100);
const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
const BULK_OUT: EpAddr = EpAddr::from_byte(0x01);
const DISK_BYTES: u64 = 256 << 20;
/// Bytes of idle buffers that are kept, as `farbus` keeps them.
const POOL_BYTES: usize = 8 << 20;
/// The attachment's number.
const ATTACHMENT: u16 = 1;

/// What the exporter offers: a USB device without end, and a disk of zeros.
struct TwoExports;

impl ExporterServices for TwoExports {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let served: Box<dyn ServedExport> = if open.class == AttachmentClass::BLOCK {
            let disk = StoreDevice::new(SparseMemory::new(DISK_BYTES, DISK_BYTES));
            Box::new(ServedBlock::new(number, disk, 1, |_, _| {}))
        } else {
            let device = SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, false);
            Box::new(ServedUsb::new(number, device, record(), SessionLimits::DEFAULT, |_, _| {}))
        };
        Ok((1, served))
    }
}

fn record() -> DeviceRecord {
    DeviceRecord {
        path: "/farbus/zero".into(),
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::High,
        vendor: 0x0525,
        product: 0xa4a0,
        device_bcd: 0,
        class: [0; 3],
        configuration: 1,
        configurations: 1,
        interfaces: vec![[0xff, 0, 0]],
        interface_count: 1,
    }
}

/// An attachment, alone or below layers.
trait SessionUser {
    type Remote: ImporterAttachment;

    fn remote(&mut self) -> &mut Self::Remote;

    fn hear(&mut self, now: Instant, arrived: ReceivedFrame);
}

/// A remote device and what it has completed.
struct BareUser<A: ImporterAttachment> {
    remote: A,
    done: A::Done,
}

impl<A: ImporterAttachment> SessionUser for BareUser<A> {
    type Remote = A;

    fn remote(&mut self) -> &mut A {
        &mut self.remote
    }

    fn hear(&mut self, now: Instant, arrived: ReceivedFrame) {
        self.remote.handle_arrived(now, arrived, &mut self.done).expect("an honest exporter");
    }
}

/// A remote disk below the layers that `--cache writeback` gives it.
struct CachedUser {
    disk: ReadAheadLayer<WriteBackLayer<RemoteBlock>>,
    done: CompletionQueue<BlockCompletion>,
}

impl SessionUser for CachedUser {
    type Remote = RemoteBlock;

    fn remote(&mut self) -> &mut RemoteBlock {
        self.disk.inner_mut().inner_mut()
    }

    fn hear(&mut self, now: Instant, arrived: ReceivedFrame) {
        self.disk.with_inner(now, &mut self.done, |behind, done| {
            behind.with_inner(now, done, |remote, done| {
                remote.handle_arrived(now, arrived, done).expect("an honest exporter");
            });
        });
    }
}

/// The two ends of a session with one link.
struct TwoEnds {
    importer: ImporterSession,
    exporter: ExporterSession,
    now: Instant,
}

impl TwoEnds {
    fn linked() -> Self {
        let (now, limits) = (Instant::ZERO, LaneLimits::DEFAULT);
        let mut importer = ImporterSession::new(now, 1, GRACE, limits);
        let begun = ExporterSession::begin(&importer.hello(0), SessionId([7; 16]), 2, GRACE, limits);
        let (exporter, welcome) = begun.unwrap_or_else(|refusal| panic!("refused: {:?}", refusal.outcome));
        assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
        Self { importer, exporter, now }
    }

    /// Opens the attachment.
    fn open<A: ImporterAttachment>(
        class: AttachmentClass,
        remote: fn(u16, OpenRequest) -> A,
        done: A::Done,
    ) -> (Self, BareUser<A>) {
        let (name, reason, mode) = ("device".to_owned(), String::new(), AttachmentMode::Exclusive);
        let mut ends = Self::linked();
        let mut user =
            BareUser { remote: remote(ATTACHMENT, OpenRequest { class, mode, epoch: 0, name, reason }), done };
        ends.exchange(&mut user);
        assert_eq!(*user.remote.state(), AttachmentState::Open);
        (ends, user)
    }

    /// Carries everything that waits, and what follows from it.
    fn exchange(&mut self, user: &mut impl SessionUser) {
        let Self { importer, exporter, now } = self;
        let now = *now;
        loop {
            while let Some(message) = user.remote().poll_message() {
                importer.send(message);
            }
            let mut is_quiet = true;
            while importer.lane_mut().has_transmit() {
                is_quiet = false;
                carry(now, importer.lane_mut(), exporter.lane_mut());
                while exporter.advance(now, &mut TwoExports).expect("an honest importer") {}
            }
            exporter.handle_ready(now);
            while exporter.lane_mut().has_transmit() {
                is_quiet = false;
                carry(now, exporter.lane_mut(), importer.lane_mut());
                while let Some(arrived) = importer.poll_arrived(0).expect("an honest exporter") {
                    user.hear(now, arrived);
                }
            }
            if is_quiet {
                break;
            }
        }
        self.now = now + ROUND;
    }
}

/// Moves what one call to the system would.
fn carry(now: Instant, from: &mut Lane, to: &mut Lane) {
    let space = to.receive_space();
    let mut count = 0;
    let mut runs = SendSlices::new();
    from.poll_transmit_into(now, &mut runs);
    for run in &runs {
        let bytes = run.len().min(space.len() - count);
        space[count..count + bytes].copy_from_slice(&run[..bytes]);
        count += bytes;
    }
    drop(runs);
    from.handle_transmitted(count);
    to.handle_received(count);
}

struct UsbScenario {
    ends: TwoEnds,
    user: BareUser<RemoteUsb>,
    /// The request that is made again and again.
    urb: Urb,
    depth: u32,
}

/// Reads of a bulk endpoint, `depth` at a time, each of `length` bytes.
pub fn usb(length: u32, depth: u32) -> Box<dyn CountedScenario> {
    usb_requests(Urb::data_in(UrbId(0), BULK_IN, length), depth)
}

/// As [`usb`], of writes.
pub fn usb_out(length: u32, depth: u32) -> Box<dyn CountedScenario> {
    usb_requests(Urb::data_out(UrbId(0), BULK_OUT, bytes(length)), depth)
}

/// Bytes in a buffer that others use, too: a program's data arrives so.
fn bytes(length: u32) -> Payload {
    Payload::shared(&Arc::from(vec![0x5a; length as usize]), 0..length as usize)
}

fn usb_requests(urb: Urb, depth: u32) -> Box<dyn CountedScenario> {
    let done = CompletionQueue::new(BufferPool::new(POOL_BYTES));
    let (ends, user) = TwoEnds::open(AttachmentClass::USB, RemoteUsb::new, done);
    let configure = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
    let configure = Urb::control(UrbId(0), configure, Payload::Empty);
    let mut scenario = UsbScenario { ends, user, urb: configure, depth: 1 };
    scenario.round();
    Box::new(UsbScenario { urb, depth, ..scenario })
}

impl CountedScenario for UsbScenario {
    fn round(&mut self) -> u32 {
        let BareUser { remote, done } = &mut self.user;
        for id in 0..self.depth {
            let urb = Urb { id: UrbId(id.into()), ..self.urb.clone() };
            remote.submit(self.ends.now, urb.launch(), done);
        }
        self.ends.exchange(&mut self.user);
        for _ in 0..self.depth {
            let answer = self.user.done.pop().expect("everything is answered");
            assert_eq!((answer.status, answer.actual), (UrbStatus::Ok, self.urb.length));
            self.user.done.pool.recycle(answer.payload);
        }
        self.depth
    }
}

struct DiskScenario<R> {
    ends: TwoEnds,
    user: CachedUser,
    /// The request with this number.
    request: R,
    number: u64,
    depth: u32,
    /// Whether each round ends with a flush, which is no request of its own here.
    flushes: bool,
}

fn disk<R: FnMut(u64) -> BlockRequest + 'static>(depth: u32, flushes: bool, request: R) -> Box<dyn CountedScenario> {
    let queue = || CompletionQueue::new(BufferPool::new(POOL_BYTES));
    let (ends, BareUser { remote, done }) = TwoEnds::open(AttachmentClass::BLOCK, RemoteBlock::new, queue());
    let user = CachedUser { disk: ReadAheadLayer::new(WriteBackLayer::new(remote)), done };
    Box::new(DiskScenario { ends, user, request, number: 0, depth, flushes })
}

/// Reads one after the other: the layer for reading ahead has most of them.
pub fn read_in_order(length: u32) -> Box<dyn CountedScenario> {
    disk(1, false, move |number| BlockRequest::read(BlockId(number), number * u64::from(length), length))
}

/// Reads anywhere, `depth` at a time.
pub fn read_at_random(length: u32, depth: u32) -> Box<dyn CountedScenario> {
    let mut random = SimulationRng::new(1);
    disk(depth, false, move |number| {
        let place = random.below(DISK_BYTES / u64::from(length));
        BlockRequest::read(BlockId(number), place * u64::from(length), length)
    })
}

/// Writes one after the other, and a flush after `depth` of them. All go to one part of the disk, which is in memory.
pub fn write_in_order(length: u32, depth: u32) -> Box<dyn CountedScenario> {
    let data = bytes(length);
    disk(depth, true, move |number| {
        let place = number % u64::from(depth);
        BlockRequest::write(BlockId(number), place * u64::from(length), data.clone())
    })
}

impl<R: FnMut(u64) -> BlockRequest> DiskScenario<R> {
    fn submit(&mut self, request: BlockRequest) {
        BlockDevice::submit(&mut self.user.disk, self.ends.now, request.launch(), &mut self.user.done);
    }
}

impl<R: FnMut(u64) -> BlockRequest> CountedScenario for DiskScenario<R> {
    fn round(&mut self) -> u32 {
        for _ in 0..self.depth {
            let request = (self.request)(self.number);
            self.number += 1;
            self.submit(request);
        }
        self.ends.exchange(&mut self.user);
        if self.flushes {
            self.submit(BlockRequest::flush(BlockId(u64::MAX)));
            self.ends.exchange(&mut self.user);
        }
        for _ in 0..self.depth + u32::from(self.flushes) {
            let answer = self.user.done.pop().expect("everything is answered");
            assert_eq!(answer.result, Ok(()));
            self.user.done.pool.recycle(answer.payload);
            self.user.done.pool.recycle(answer.spent);
        }
        self.depth
    }
}

/// Frames between two lanes: a request's class part is written, cut into a frame, carried, and read.
struct FramesScenario {
    from: Lane,
    to: Lane,
    pool: BufferPool,
    urb: Urb,
}

/// Requests with 64 bytes of data, one at a time.
pub fn frames() -> Box<dyn CountedScenario> {
    let mut pool = BufferPool::new(POOL_BYTES);
    let [from, to] = [(); 2].map(|()| {
        let mut lane = Lane::new(LaneLimits::DEFAULT);
        lane.handle_linked(0, &mut pool).expect("a new lane");
        lane
    });
    Box::new(FramesScenario { from, to, pool, urb: Urb::data_out(UrbId(0), BULK_OUT, bytes(64)) })
}

impl CountedScenario for FramesScenario {
    fn round(&mut self) -> u32 {
        let part = usb_part::request_part(&self.urb, TransferType::Bulk);
        let head = FrameHeader::new(FrameKind::Request, ATTACHMENT, 0);
        let (payload, urgency, flow) = (self.urb.payload.clone(), MessageUrgency::High, FlowId::default());
        self.from.send(OutboundMessage { head, part, payload, urgency, flow, done_at: None });
        carry(Instant::ZERO, &mut self.from, &mut self.to);
        let arrived = self.to.poll_arrived(&mut self.pool).expect("a frame that is right").expect("a frame");
        let bytes = arrived.body.contiguous();
        let (request, part_bytes) = usb_part::decode_request(UrbId(0), &bytes).expect("a part that is right");
        assert!(matches!(request, usb_part::UsbRequestPart::Transfer(urb) if urb.length == 64));
        assert_eq!(bytes.len() - part_bytes, 64);
        while self.to.has_transmit() {
            // What acknowledges.
            carry(Instant::ZERO, &mut self.to, &mut self.from);
            assert!(self.from.poll_arrived(&mut self.pool).expect("a frame that is right").is_none());
        }
        1
    }
}
