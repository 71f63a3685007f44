//! The overhead of farbus's own protocol: computed, frame by frame, for the shapes of Netbus (section 7.1).
//!
//! The paper counts 56 bytes of network headers a packet, and a packet for each block, for each request and for an
//! isochronous schedule. In farbus the schedule is part of the request.

use anyhow::{Result, anyhow, ensure};
use farbus::{
    gadgets::zero::{SourcePattern, SourceSink},
    importer::session::bare::{
        blocks::{SparseMemory, StoreDevice},
        native::{
            AttachmentState, ExporterServices, ExporterSession, ImporterAttachment, ImporterSession, LaneLimits,
            RemoteBlock, RemoteUsb, ServedBlock, ServedExport, ServedUsb,
            control::{AttachmentClass, AttachmentEndNotice, OpenRequest},
            hello::SessionId,
        },
    },
    model::{
        BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Device, EpAddr, Instant, IsoPacket, Payload,
        SessionLimits, SetupPacket, Urb, UrbId, UsbSpeed,
    },
};

use crate::{
    lab::BenchmarkEnvironment,
    peers::session::{open, record},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "overhead";
/// Headers of one packet, as the paper counts them: TCP/IP 40, Ethernet 16.
const PACKET_BYTES: f64 = 56.0;
/// Protocol bytes of a request and its reply together, in the paper.
const PAPER_BYTES: f64 = 32.0;
/// Requests that are counted together: enough for occasional acknowledgements to have their proper share.
const REQUESTS: u32 = 64;

/// A request of the paper, and its rate.
struct RequestShape {
    what: &'static str,
    data_bytes: u32,
    /// Packets as the paper counts them, of the paper and of farbus.
    packets: [f64; 2],
    /// Bytes of the headers that are a schedule, which the paper does not count as headers.
    schedule_bytes: f64,
    /// The paper's percentage.
    paper_percent: f64,
}

pub fn run(_lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let shape = |what, data_bytes, packets, schedule_bytes, paper_percent| RequestShape {
        what,
        data_bytes,
        packets,
        schedule_bytes,
        paper_percent,
    };
    let block = |what| shape(what, 4 * 4096, [5.0, 5.0], 0.0, 1.904);
    let bulk = |what| shape(what, 3050, [2.0, 2.0], 0.0, 4.721);
    let iso = shape("isochronous IN, 8 packets of 550", 4400, [3.0, 2.0], 20.0, 4.545);
    let block_bytes = |is_write| {
        let request = move |id, bytes: u32| match is_write {
            true => BlockRequest::write(BlockId(id), 0, vec![1; bytes as usize].into()),
            false => BlockRequest::read(BlockId(id), 0, bytes),
        };
        let mut wire = CountedSession::new(RemoteBlock::new(1, open(AttachmentClass::BLOCK, "disk")))?;
        wire.overhead(16_384, |disk, now, id, done| disk.submit(now, request(id, 16_384).launch(), done))
    };
    let usb_bytes = |bytes: u32, make: &dyn Fn(UrbId) -> Urb| {
        let mut wire = CountedSession::new(RemoteUsb::new(1, open(AttachmentClass::USB, "zero")))?;
        let configure = Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty);
        wire.remote.submit(wire.now, configure.launch(), &mut wire.done);
        wire.exchange()?;
        // The setting that has the isochronous endpoints.
        let configure = Urb::control(UrbId(0), SetupPacket::set_interface(0, 1), Payload::Empty);
        wire.remote.submit(wire.now, configure.launch(), &mut wire.done);
        wire.exchange()?;
        while wire.done.pop().is_some() {}
        wire.overhead(bytes, |device, now, id, done| device.submit(now, make(UrbId(id)).launch(), done))
    };
    let bulk_in = |id| Urb::data_in(id, EpAddr::from_byte(0x81), 3050);
    let bulk_out = |id| Urb::data_out(id, EpAddr::from_byte(0x01), vec![0; 3050].into());
    let iso_in = |id| {
        let mut urb = Urb::data_in(id, EpAddr::from_byte(0x83), 4400);
        urb.flags.iso_asap = true;
        urb.interval = 1;
        urb.iso = (0..8).map(|at| IsoPacket { offset: at * 550, length: 550, ..IsoPacket::default() }).collect();
        urb
    };
    let counted = [
        (block("block read, 4 blocks of 4 KiB"), block_bytes(false)?),
        (block("block write, 4 blocks of 4 KiB"), block_bytes(true)?),
        (bulk("bulk IN, 3050 bytes"), usb_bytes(3050, &bulk_in)?),
        (bulk("bulk OUT, 3050 bytes"), usb_bytes(3050, &bulk_out)?),
        (iso, usb_bytes(4400, &iso_in)?),
    ];
    Ok(counted.into_iter().flat_map(|(shape, ours)| shape.findings(ours)).collect())
}

impl RequestShape {
    fn findings(&self, header_bytes: f64) -> [BenchmarkFinding; 2] {
        let [theirs, ours] = self.packets;
        let data = f64::from(self.data_bytes);
        let percent = (ours * PACKET_BYTES + header_bytes) / data * 100.0;
        let check = (theirs * PACKET_BYTES + PAPER_BYTES) / data * 100.0;
        debug_assert!((check - self.paper_percent).abs() < 0.002, "the paper's own sum: {check}");
        let detail = match self.schedule_bytes {
            0.0 => format!("{header_bytes:.1} bytes of ours a request and reply, acknowledgements included"),
            bytes => format!("{header_bytes:.1} bytes of ours, {bytes} of them the schedule and how it ended"),
        };
        let share = MeasuredQuantity::new(SampleSpread::once(percent), "%");
        let own = MeasuredQuantity::new(SampleSpread::once(header_bytes - self.schedule_bytes), "bytes");
        [
            BenchmarkFinding::absolute(NAME, self.what.to_owned(), share, SpeedTarget::AtMost(self.paper_percent))
                .with_detail(detail),
            BenchmarkFinding::absolute(NAME, format!("{}: headers", self.what), own, SpeedTarget::AtMost(PAPER_BYTES)),
        ]
    }
}

/// Both ends of a session, which counts the bytes between them.
struct CountedSession<A: ImporterAttachment> {
    importer: ImporterSession,
    exporter: ExporterSession,
    remote: A,
    done: A::Done,
    now: Instant,
    bytes: u64,
}

struct OverheadServices;

impl ExporterServices for OverheadServices {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        if open.class == AttachmentClass::BLOCK {
            let device = StoreDevice::new(SparseMemory::new(1 << 20, 1 << 20));
            return Ok((1, Box::new(ServedBlock::new(number, device, 1, |_, _| {}))));
        }
        let device = SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
        Ok((1, Box::new(ServedUsb::new(number, device, record(), SessionLimits::DEFAULT, |_, _| {}))))
    }
}

impl<D, A: ImporterAttachment<Done = CompletionQueue<D>>> CountedSession<A> {
    fn new(remote: A) -> Result<Self> {
        let (now, limits) = (Instant::ZERO, LaneLimits::DEFAULT);
        let grace = std::time::Duration::from_secs(1);
        let mut importer = ImporterSession::new(now, 1, grace, limits);
        let begun = ExporterSession::begin(&importer.hello(0), SessionId([1; 16]), 1, grace, limits);
        let (exporter, welcome) = begun.map_err(|refusal| anyhow!("{:?}", refusal.outcome))?;
        importer.handle_welcome(&welcome)?;
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut wire = Self { importer, exporter, remote, done, now, bytes: 0 };
        wire.exchange()?;
        ensure!(*wire.remote.state() == AttachmentState::Open, "the device was refused: {:?}", wire.remote.state());
        Ok(wire)
    }

    /// Bytes per request that are not data: makes many requests, which all have to succeed.
    fn overhead(
        &mut self,
        data_bytes: u32,
        mut ask: impl FnMut(&mut A, Instant, u64, &mut CompletionQueue<D>),
    ) -> Result<f64> {
        self.bytes = 0;
        let mut answered = 0;
        for id in 0..u64::from(REQUESTS) {
            ask(&mut self.remote, self.now, 1000 + id, &mut self.done);
            for _ in 0..100 {
                self.exchange()?;
                if let Some(_done) = self.done.pop() {
                    answered += 1;
                    break;
                }
                self.now = self.now + std::time::Duration::from_micros(125);
            }
        }
        ensure!(answered == REQUESTS, "{answered} of {REQUESTS} were answered");
        let all = self.bytes as f64 - f64::from(REQUESTS) * f64::from(data_bytes);
        Ok(all / f64::from(REQUESTS))
    }

    fn exchange(&mut self) -> Result<()> {
        self.exporter.handle_ready(self.now);
        loop {
            while let Some(message) = self.remote.poll_message() {
                self.importer.send(message);
            }
            let mut is_quiet = true;
            while self.importer.lane_mut().has_transmit() {
                let out: Vec<u8> =
                    self.importer.lane_mut().poll_transmit(self.now).iter().flat_map(|run| run.to_vec()).collect();
                self.importer.lane_mut().handle_transmitted(out.len());
                self.bytes += out.len() as u64;
                is_quiet = false;
                self.exporter.lane_mut().receive_space()[..out.len()].copy_from_slice(&out);
                self.exporter.lane_mut().handle_received(out.len());
                while self.exporter.advance(self.now, &mut OverheadServices)? {}
            }
            while self.exporter.lane_mut().has_transmit() {
                let back: Vec<u8> =
                    self.exporter.lane_mut().poll_transmit(self.now).iter().flat_map(|run| run.to_vec()).collect();
                self.exporter.lane_mut().handle_transmitted(back.len());
                self.bytes += back.len() as u64;
                is_quiet = false;
                self.importer.lane_mut().receive_space()[..back.len()].copy_from_slice(&back);
                self.importer.lane_mut().handle_received(back.len());
                while let Some(arrived) = self.importer.poll_arrived(0)? {
                    self.remote.handle_arrived(self.now, arrived, &mut self.done)?;
                }
            }
            if is_quiet {
                return Ok(());
            }
        }
    }
}
