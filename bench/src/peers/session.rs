//! farbus's own protocol over plain TCP, both ends in farbus's library: an exporter of a disk in memory, of the same
//! disk as a USB disk that it drives itself, and of a source/sink device; an importer that uses them, and one that
//! serves the disk by NBD.
//!
//! The product speaks this protocol between paired hosts, over TLS; [`farbus::importer::session::bare`] has the same
//! sessions with the same calls over a bare socket, as the peers for comparison use.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use farbus::{
    common::socket_place::SocketLocation,
    frontend::nbd::{NbdExport, NbdServer},
    gadgets::{
        storage::{StorageGadget, StorageOptions},
        zero::{SourcePattern, SourceSink},
    },
    host::{DrivenDisk, HostPort},
    importer::port::session::SessionPort,
    importer::session::bare::{
        self, BoottimeClock, DeviceRecord,
        blocks::{MemoryMedium, SparseMemory, StoreDevice},
        native::{
            ExporterServices, RemoteBlock, RemoteUsb, RequestTiming, ServedBlock, ServedExport, ServedUsb,
            control::{AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest},
        },
    },
    importer::session::connection::{LinkedDevice, SessionTerms},
    model::{
        BlockCompletion, BlockDevice, BlockId, BlockMedium, BlockRequest, BlockStore, BufferPool, CompletionQueue,
        Device, EpAddr, IsoPacket, Payload, SessionLimits, SetupPacket, Urb, UrbId, UrbStatus, UsbSpeed,
    },
};

use super::{listen::ANY_LOOPBACK_PORT, nbdkit::BlockVerb};
use crate::{load::LoadTally, usbip::UsbipDirection};

/// Bytes of a disk: as many as the disks have that it is compared with.
const DISK_BYTES: u64 = 256 << 20;
/// The sessions' grace period; no second link comes here.
const GRACE: Duration = Duration::from_secs(1);
/// Idle buffers that an importer keeps.
const POOL_BYTES: usize = 8 << 20;
/// The content of a fully written disk: a hole would cost no memory traffic.
const FILL: u8 = 0xa5;

/// The disk's name on the exporter, and the USB disk over the same medium that its exporter drives.
pub const DISK: &str = "disk";
pub const DRIVEN: &str = "driven";

/// A fully written medium in memory.
pub fn full_medium() -> Result<MemoryMedium> {
    let mut memory = SparseMemory::new(DISK_BYTES, DISK_BYTES);
    for offset in (0..DISK_BYTES).step_by(1 << 20) {
        memory.write_at(offset, &[FILL; 1 << 20]).map_err(|error| anyhow!("{error:?}"))?;
    }
    Ok(MemoryMedium::new(memory))
}

/// A USB disk over it.
pub fn usb_disk(medium: &MemoryMedium) -> Result<Box<dyn Device>, String> {
    let disk = StorageGadget::device(Box::new(medium.open()?), StorageOptions::default());
    disk.map(|disk| Box::new(disk) as Box<dyn Device>).map_err(|error| error.to_string())
}

/// Serves the devices to every client, each on a thread of its own; they share one medium.
pub fn serve(listener: &TcpListener) -> Result<()> {
    let medium = full_medium()?;
    loop {
        let (stream, _) = listener.accept()?;
        let clock = BoottimeClock::start();
        let mut shelf = MemoryDiskServices { medium: medium.clone(), clock };
        thread::spawn(move || {
            if let Err(error) = bare::link(stream).and_then(|link| bare::serve(&link, clock, &mut shelf)) {
                eprintln!("session ended: {error}");
            }
        });
    }
}

/// Serves them on a thread of a test.
#[cfg(test)]
pub fn serve_for_test() -> SocketAddr {
    let listener = TcpListener::bind(ANY_LOOPBACK_PORT).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || serve(&listener));
    address
}

/// Serves the disk of the exporter at `address` by NBD, as `farbus attach --via nbd` does.
pub fn serve_proxy(address: &str) -> Result<()> {
    let (disk, _) = open_disk(address)?;
    let listener = SocketLocation::Address(ANY_LOOPBACK_PORT).listen()?;
    println!("listening on {}", listener.location()?);
    let device = Box::new(disk);
    let offer = NbdExport { name: String::new(), description: "a disk".into(), device, zeroes_fast: false };
    let ended = NbdServer::new(listener, vec![offer], None)?.run();
    Err(anyhow!("the proxy ended: {ended:?}"))
}

struct MemoryDiskServices {
    medium: MemoryMedium,
    clock: BoottimeClock,
}

impl ExporterServices for MemoryDiskServices {
    fn open(
        &mut self,
        _now: farbus::model::Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let gone = |message: String| AttachmentEndNotice { cause: AttachmentEndCause::Gone, message };
        let clock = self.clock;
        let clock = Box::new(move || clock.now());
        match open.class {
            AttachmentClass::BLOCK if open.name == DRIVEN => {
                let disk = DrivenDisk::new(usb_disk(&self.medium).map_err(gone)?);
                let disk = Box::new(disk.map_err(|_| gone("it has no disk that is driven".to_owned()))?);
                Ok((1, Box::new(ServedBlock::new(number, disk, 1, |_, _| {}).timed_by(clock))))
            }
            AttachmentClass::BLOCK => {
                let device = StoreDevice::new(self.medium.open().map_err(gone)?);
                Ok((1, Box::new(ServedBlock::new(number, device, 1, |_, _| {}).timed_by(clock))))
            }
            AttachmentClass::USB => {
                let device = SourceSink::device(UsbSpeed::Super, SourcePattern::Zeros, false);
                let served = ServedUsb::new(number, device, record(), SessionLimits::DEFAULT, |_, _| {});
                Ok((1, Box::new(served.timed_by(clock))))
            }
            _ => Err(gone(format!("there is no '{}' here", open.name))),
        }
    }
}

pub fn record() -> DeviceRecord {
    DeviceRecord {
        path: "/farbus/zero".into(),
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::Super,
        vendor: 0x0525,
        product: 0xa4a0,
        device_bcd: 0,
        class: [0xff, 0, 0],
        configuration: 0,
        configurations: 1,
        interfaces: vec![[0xff, 0, 0]],
        interface_count: 1,
    }
}

pub fn open(class: AttachmentClass, name: &str) -> OpenRequest {
    OpenRequest { class, mode: AttachmentMode::Exclusive, epoch: 0, name: name.into(), reason: "to measure it".into() }
}

fn open_disk(address: &str) -> Result<(LinkedDevice<RemoteBlock>, CompletionQueue<BlockCompletion>)> {
    open_named(address, DISK, 1)
}

fn open_named(
    address: &str,
    name: &str,
    links: u16,
) -> Result<(LinkedDevice<RemoteBlock>, CompletionQueue<BlockCompletion>)> {
    let mut done = CompletionQueue::new(BufferPool::new(POOL_BYTES));
    let remote = RemoteBlock::new(1, open(AttachmentClass::BLOCK, name));
    let terms = SessionTerms { links, ..SessionTerms::of(GRACE) };
    let disk = LinkedDevice::open_on(terms, bare::dial(address.to_owned()), remote, &mut done)?;
    ensure!(disk.end().is_none(), "the disk was refused: {:?}", disk.end());
    Ok((disk, done))
}

/// The exporter's disk, as a program uses it through this library.
pub struct RemoteSessionDisk {
    linked: LinkedDevice<RemoteBlock>,
    done: CompletionQueue<BlockCompletion>,
    seed: u64,
    next: u64,
}

impl RemoteSessionDisk {
    pub fn open(address: SocketAddr) -> Result<Self> {
        let (linked, done) = open_disk(&address.to_string())?;
        Ok(Self { linked, done, seed: 1, next: 0 })
    }

    /// Opens the disk of this name over `links` links, and waits for all of them.
    pub fn open_over(address: SocketAddr, name: &str, links: u16) -> Result<Self> {
        let (linked, done) = open_named(&address.to_string(), name, links)?;
        ensure!(linked.links() == usize::from(links), "{} of {links} links are there", linked.links());
        Ok(Self { linked, done, seed: 1, next: 0 })
    }

    /// Gives the disk back, so that the next user may have it at once.
    pub fn close(mut self) {
        self.linked.close(&mut self.done);
    }

    /// Makes one request and returns its answer.
    fn ask(&mut self, request: BlockRequest) -> Result<BlockCompletion> {
        let at = self.linked.clock().now();
        self.linked.submit(at, request.launch(), &mut self.done);
        self.linked.end_turn(at, &mut self.done);
        while self.done.is_empty() {
            self.linked.wait(None)?;
            self.linked.turn(&mut self.done);
            ensure!(self.linked.end().is_none(), "the disk is gone: {:?}", self.linked.end());
        }
        let done = self.done.pop().context("a request that was answered")?;
        done.result.map_err(|error| anyhow!("{error:?}"))?;
        Ok(done)
    }

    /// Reads `to.len()` bytes at `offset`, and waits for them.
    pub fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        let done = self.ask(BlockRequest::read(BlockId(0), offset, to.len() as u32))?;
        to.copy_from_slice(&done.payload.contiguous());
        self.done.pool.recycle(done.payload);
        Ok(())
    }

    /// Writes `from` at `offset`, and waits for the answer; not durable until [`Self::flush`].
    pub fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        self.ask(BlockRequest::write(BlockId(0), offset, from.to_vec().into())).map(drop)
    }

    /// Makes every write durable.
    pub fn flush(&mut self) -> Result<()> {
        self.ask(BlockRequest::flush(BlockId(0))).map(drop)
    }

    /// Keeps `depth` requests of `bytes` in flight until the time is over, at offsets one after the other or at random.
    pub fn run(
        &mut self,
        verb: BlockVerb,
        bytes: usize,
        depth: usize,
        random: bool,
        limit: Duration,
    ) -> Result<LoadTally> {
        let blocks = DISK_BYTES / bytes as u64;
        let block: Arc<[u8]> = vec![FILL; bytes].into();
        let mut tally = LoadTally::nothing();
        let mut asked_at_of = vec![Instant::now(); depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let began = Instant::now();
        let mut now = began;
        while now - began < limit || free.len() < depth {
            let at = self.linked.clock().now();
            if now - began < limit {
                for slot in free.drain(..) {
                    self.next += 1;
                    let position = if random { splitmix(&mut self.seed) } else { self.next };
                    let offset = position % blocks * bytes as u64;
                    let id = BlockId(slot as u64);
                    let request = match verb {
                        BlockVerb::Read => BlockRequest::read(id, offset, bytes as u32),
                        BlockVerb::Write => BlockRequest::write(id, offset, Payload::shared(&block, 0..bytes)),
                    };
                    asked_at_of[slot] = now;
                    self.linked.submit(at, request.launch(), &mut self.done);
                }
            }
            self.linked.end_turn(at, &mut self.done);
            if self.done.is_empty() {
                self.linked.wait(None)?;
                self.linked.turn(&mut self.done);
                ensure!(self.linked.end().is_none(), "the disk is gone: {:?}", self.linked.end());
            }
            now = Instant::now();
            while let Some(done) = self.done.pop() {
                let slot = done.id.0 as usize;
                done.result.map_err(|error| anyhow!("{verb:?}: {error:?}"))?;
                tally.latency_ns.saturating_record((now - asked_at_of[slot]).as_nanos() as u64);
                tally.urbs += 1;
                tally.bytes += bytes as u64;
                self.done.pool.recycle(done.payload);
                free.push(slot);
            }
        }
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }
}

/// The time of one request by stage, µs.
pub struct LatencyBreakdown {
    /// In the requester, in this process.
    pub front_us: f64,
    /// In the exporter's end of the session: arriving, waiting for its data, waiting for the link.
    pub bus_us: f64,
    /// Both ways over the network, including system calls and this end of the session.
    pub network_us: f64,
    /// In the device.
    pub back_us: f64,
}

impl LatencyBreakdown {
    /// Of a request that took `whole_us` for its user, and was timed.
    fn of(whole_us: f64, timed: RequestTiming) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let (bus_us, network_us, back_us) = (us(timed.bus_ns()), us(timed.network_ns()), us(timed.device_ns()));
        Self { front_us: whole_us - us(timed.total_ns), bus_us, network_us, back_us }
    }
}

impl RemoteSessionDisk {
    /// The stages of `count` requests, one at a time: of those that the session measures.
    pub fn stages(&mut self, verb: BlockVerb, bytes: usize, count: usize) -> Result<Vec<LatencyBreakdown>> {
        let block: Arc<[u8]> = vec![FILL; bytes].into();
        let mut stages = Vec::with_capacity(count);
        while stages.len() < count {
            self.next += 1;
            let offset = self.next * bytes as u64 % DISK_BYTES;
            let began = Instant::now();
            let request = match verb {
                BlockVerb::Read => BlockRequest::read(BlockId(0), offset, bytes as u32),
                BlockVerb::Write => BlockRequest::write(BlockId(0), offset, Payload::shared(&block, 0..bytes)),
            };
            let done = self.ask(request).with_context(|| format!("{verb:?}"))?;
            let whole_us = began.elapsed().as_nanos() as f64 / 1000.0;
            self.done.pool.recycle(done.payload);
            if let Some(timed) = self.linked.status().take_timed() {
                stages.push(LatencyBreakdown::of(whole_us, timed));
            }
        }
        Ok(stages)
    }
}

impl UsbLoad<SessionPort> {
    /// The stages of `count` bulk transfers, one at a time: of those that the session measures.
    pub fn stages(&mut self, direction: UsbipDirection, bytes: usize, count: usize) -> Result<Vec<LatencyBreakdown>> {
        let mut stages = Vec::with_capacity(count);
        // What was timed before is not of these.
        let _ = self.port.ask(|linked| linked.status().take_timed());
        while stages.len() < count {
            let whole_us = self.one(direction, bytes)?;
            if let Some(timed) = self.port.ask(|linked| linked.status().take_timed()) {
                stages.push(LatencyBreakdown::of(whole_us, timed));
            }
        }
        Ok(stages)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub fn splitmix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The exporter's source/sink device, behind its session.
pub fn source_sink(address: SocketAddr) -> Result<UsbLoad<SessionPort>> {
    let mut done = CompletionQueue::new(BufferPool::new(POOL_BYTES));
    let remote = RemoteUsb::new(1, open(AttachmentClass::USB, "zero"));
    let linked = LinkedDevice::open(bare::dial(address.to_string()), remote, GRACE, &mut done)?;
    ensure!(linked.end().is_none(), "the device was refused: {:?}", linked.end());
    UsbLoad::over(SessionPort::new(linked))
}

/// A small transfer whose latency matters.
#[derive(Clone, Copy, Debug)]
pub enum ProbeTransfer {
    /// A report of an interrupt endpoint.
    Interrupt,
    /// A descriptor, read over the control pipe.
    Control,
}

/// What came of an isochronous endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct IsochronousResult {
    pub bytes: u64,
    pub seconds: f64,
    pub packets: u64,
    /// Packets without all of their data.
    pub packets_lost: u64,
}

/// A load on a source/sink device, over any port.
pub struct UsbLoad<P> {
    port: P,
    next: u64,
}

impl<P: HostPort> UsbLoad<P> {
    /// Configures the device.
    pub fn over(mut port: P) -> Result<Self> {
        port.submit(Urb::control(UrbId(0), SetupPacket::set_configuration(1), Payload::Empty));
        let done = port.wait(None)?.context("the device did not answer")?;
        ensure!(done.status == UrbStatus::Ok, "the device did not take its configuration: {:?}", done.status);
        Ok(Self { port, next: 1 })
    }

    /// One small transfer after the other, with a pause between them.
    pub fn pulse(&mut self, pulse: ProbeTransfer, pause: Duration, limit: Duration) -> Result<LoadTally> {
        let mut tally = LoadTally::nothing();
        let began = Instant::now();
        while began.elapsed() < limit {
            let id = UrbId(self.next);
            self.next += 1;
            let asked_at = Instant::now();
            self.port.submit(match pulse {
                ProbeTransfer::Interrupt => Urb::data_in(id, EpAddr::from_byte(0x82), 64),
                ProbeTransfer::Control => Urb::control(id, SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty),
            });
            let done = self.port.wait(None)?.context("nothing was answered")?;
            ensure!(done.status == UrbStatus::Ok, "a transfer ended so: {done:?}");
            tally.latency_ns.saturating_record(asked_at.elapsed().as_nanos() as u64);
            tally.urbs += 1;
            tally.bytes += u64::from(done.actual);
            self.port.recycle(done.payload);
            thread::sleep(pause);
        }
        tally.seconds = began.elapsed().as_secs_f64();
        Ok(tally)
    }

    /// Makes one bulk transfer; returns how long it took, µs.
    pub fn one(&mut self, direction: UsbipDirection, bytes: usize) -> Result<f64> {
        let id = UrbId(self.next);
        self.next += 1;
        let urb = match direction {
            UsbipDirection::In => Urb::data_in(id, EpAddr::from_byte(0x81), bytes as u32),
            UsbipDirection::Out => Urb::data_out(id, EpAddr::from_byte(0x01), vec![0; bytes].into()),
        };
        let asked_at = Instant::now();
        self.port.submit(urb);
        let done = self.port.wait(None)?.context("nothing was answered")?;
        let us = asked_at.elapsed().as_nanos() as f64 / 1000.0;
        ensure!(done.status == UrbStatus::Ok && done.actual as usize == bytes, "a transfer ended so: {done:?}");
        self.port.recycle(done.payload);
        Ok(us)
    }

    /// Keeps `depth` isochronous IN transfers of `packets` packets in flight until the time is over. Bytes are those of
    /// packets that came; the time is from the first completion to the last.
    pub fn stream(
        &mut self,
        packets: usize,
        packet_bytes: usize,
        depth: usize,
        limit: Duration,
    ) -> Result<IsochronousResult> {
        self.stream_seen(packets, packet_bytes, depth, limit, |_| ())
    }

    /// Like [`UsbLoad::stream`]; `seen_at` gets the moment of each completion.
    pub fn stream_seen(
        &mut self,
        packets: usize,
        packet_bytes: usize,
        depth: usize,
        limit: Duration,
        mut seen_at: impl FnMut(Instant),
    ) -> Result<IsochronousResult> {
        // The setting that has the isochronous endpoints.
        self.port.submit(Urb::control(UrbId(0), SetupPacket::set_interface(0, 1), Payload::Empty));
        self.port.wait(None)?.context("the device did not answer")?;
        let urb = |id| {
            let mut urb = Urb::data_in(id, EpAddr::from_byte(0x83), (packets * packet_bytes) as u32);
            urb.flags.iso_asap = true;
            urb.interval = 1;
            let packet = |at| IsoPacket { offset: at, length: packet_bytes as u32, ..IsoPacket::default() };
            urb.iso = (0..packets).map(|at| packet((at * packet_bytes) as u32)).collect();
            urb
        };
        let (mut seen, mut in_flight, began) = (IsochronousResult::default(), 0, Instant::now());
        let mut first = None;
        while began.elapsed() < limit || in_flight > 0 {
            while in_flight < depth && began.elapsed() < limit {
                self.port.submit(urb(UrbId(self.next)));
                self.next += 1;
                in_flight += 1;
            }
            let done = self.port.wait(None)?.context("nothing was answered")?;
            in_flight -= 1;
            seen_at(Instant::now());
            ensure!(done.status == UrbStatus::Ok, "a transfer ended so: {done:?}");
            let first = *first.get_or_insert_with(Instant::now);
            seen.seconds = first.elapsed().as_secs_f64();
            let came = done.iso.iter().filter(|packet| packet.status == UrbStatus::Ok);
            let bytes = came.map(|packet| u64::from(packet.actual)).sum::<u64>();
            seen.packets += packets as u64;
            seen.packets_lost += (packets as u64).saturating_sub(bytes / packet_bytes as u64);
            // The first transfer only starts the clock.
            seen.bytes += if seen.seconds > 0.0 && seen.packets > packets as u64 { bytes } else { 0 };
            self.port.recycle(done.payload);
        }
        Ok(seen)
    }

    /// Keeps `depth` transfers in flight until the time is over.
    pub fn run(&mut self, direction: UsbipDirection, bytes: usize, depth: usize, limit: Duration) -> Result<LoadTally> {
        let block: Arc<[u8]> = vec![0; bytes].into();
        let mut tally = LoadTally::nothing();
        let mut asked_at_of = vec![Instant::now(); depth];
        let began = Instant::now();
        let mut now = began;
        let mut in_flight = 0;
        while now - began < limit || in_flight > 0 {
            while in_flight < depth && now - began < limit {
                let id = UrbId(self.next);
                asked_at_of[(self.next % depth as u64) as usize] = now;
                self.next += 1;
                in_flight += 1;
                self.port.submit(match direction {
                    UsbipDirection::In => Urb::data_in(id, EpAddr::from_byte(0x81), bytes as u32),
                    UsbipDirection::Out => {
                        Urb::data_out(id, EpAddr::from_byte(0x01), Payload::shared(&block, 0..bytes))
                    }
                });
            }
            let done = self.port.wait(None)?.context("nothing was answered")?;
            now = Instant::now();
            ensure!(done.status == UrbStatus::Ok && done.actual as usize == bytes, "a transfer ended so: {done:?}");
            let since = asked_at_of[(done.id.0 % depth as u64) as usize];
            tally.latency_ns.saturating_record((now - since).as_nanos() as u64);
            tally.urbs += 1;
            tally.bytes += bytes as u64;
            in_flight -= 1;
            self.port.recycle(done.payload);
        }
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }
}
