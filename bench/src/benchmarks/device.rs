//! A raw device, as the 2008 paper measured one (Table 2): 20 MB in requests of 4 KB, one after the other, read and
//! written, no file system. A row for each path to a disk in memory, from a gadget in this process to hosts 1 ms and 10
//! ms away; the paper's controllers beside.
//!
//! Nothing is kept here or asked ahead: every request goes the whole way. What an unmodified kernel gets through vhci
//! is the rig's case `device-raw`, because few machines that measure have that driver.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farbus::{
    client::{ClientConfig, DeviceTarget as FarbusTarget, ImporterClient},
    host::{HostPort, LocalPort, RemoteDevice, RemoteDisk, ScsiDiskOptions},
    model::{BlockStore, UsbSpeed},
};

use super::storage::TmpfsImage;
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    late::late,
    load::LoadTally,
    peers::{
        PeerServer, PeerServerKind,
        nbdkit::BlockVerb,
        session::{DISK, DRIVEN, RemoteSessionDisk, full_medium, usb_disk},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
};

pub const NAME: &str = "device";

/// Table 2 of Y. Hu, "Real Embedded USB Host Performance" (2008): host controller, raw reading and raw writing, KB/s. A
/// flash stick of its time, a Celeron of 300 MHz; the first and the last are high speed, the others full speed.
const PAPER: [(&str, u32, u32); 6] = [
    ("EHCI (NEC)", 12_684, 8_320),
    ("OHCI (NEC)", 891, 832),
    ("UHCI (VIA)", 639, 611),
    ("ISP116x (NXP/Philips)", 352, 334),
    ("ISP1362 (NXP/Philips)", 621, 493),
    ("ISP176x (NXP/Philips)", 7_425, 3_214),
];
/// What the paper moves, and how much at a time.
const TOTAL_BYTES: u64 = 20 << 20;
const QUICK_BYTES: u64 = 512 << 10;
const REQUEST_BYTES: usize = 4096;
const ROUND_TRIPS_MS: [u64; 3] = [0, 1, 10];
/// The local paths are fast: the median of this many passes.
const NEAR_PASSES: usize = 5;
/// The sessions' grace period; no second link comes here.
const GRACE: Duration = Duration::from_secs(1);
/// How long the previous user of the device may take to be gone.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// A raw disk, whatever the path to it.
trait RawDisk {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<()>;
    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<()>;
    fn flush(&mut self) -> Result<()>;
}

impl<P: HostPort + Send> RawDisk for RemoteDisk<P> {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        BlockStore::read_at(self, offset, to).map_err(|error| anyhow!("{error:?}"))
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        BlockStore::write_at(self, offset, from).map_err(|error| anyhow!("{error:?}"))
    }

    fn flush(&mut self) -> Result<()> {
        BlockStore::flush(self).map_err(|error| anyhow!("{error:?}"))
    }
}

impl RawDisk for RemoteSessionDisk {
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<()> {
        RemoteSessionDisk::read_at(self, offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        RemoteSessionDisk::write_at(self, offset, from)
    }

    fn flush(&mut self) -> Result<()> {
        RemoteSessionDisk::flush(self)
    }
}

/// The paths over a network.
const WAYS: [(&str, RawDiskPath); 4] = [
    ("USB disk by USB/IP", RawDiskPath::UsbIp),
    ("USB disk in a session", RawDiskPath::Session),
    ("USB disk, driven by its exporter", RawDiskPath::Driven),
    ("block device in a session", RawDiskPath::Block),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum RawDiskPath {
    UsbIp,
    Session,
    Driven,
    Block,
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has all these ways to a disk");
    }
    let total = if lab.quick { QUICK_BYTES } else { TOTAL_BYTES };
    let mut findings = measured("USB gadget in this process", &mut local()?, total, NEAR_PASSES)?;
    let image = TmpfsImage::create()?;
    let exporter = lab.farbus(&format!("disk:{}", image.0.display()))?;
    let sessions = lab.peer(PeerServerKind::Session)?;
    for ms in ROUND_TRIPS_MS {
        for (name, way) in WAYS {
            let what = if ms == 0 { format!("{name}, loopback") } else { format!("{name}, {ms} ms away") };
            let mut disk = way.open(&exporter, &sessions, ms).with_context(|| what.clone())?;
            let passes = if ms == 0 { NEAR_PASSES } else { 1 };
            let rows = measured(&what, &mut *disk, total, passes).with_context(|| what.clone())?;
            findings.extend(rows);
        }
    }
    findings.extend(PAPER.into_iter().flat_map(paper));
    Ok(findings)
}

/// Without network or protocol: farbus's driver over farbus's disk.
fn local() -> Result<RemoteDisk<impl HostPort + Send>> {
    let device = usb_disk(&full_medium()?).map_err(|error| anyhow!(error))?;
    let device = RemoteDevice::open(LocalPort::new(device), UsbSpeed::High).map_err(|error| anyhow!("{error:?}"))?;
    device.into_disk(ScsiDiskOptions::default()).map_err(|error| anyhow!("{error:?}"))
}

impl RawDiskPath {
    fn open(self, exporter: &PeerServer, sessions: &PeerServer, ms: u64) -> Result<Box<dyn RawDisk>> {
        let far = |address: SocketAddr| match ms {
            0 => Ok(address),
            _ => late(address, Duration::from_micros(ms * 500)),
        };
        Ok(match self {
            Self::UsbIp => Box::new(usb(far(exporter.address)?, Duration::ZERO)?),
            Self::Session => Box::new(usb(far(exporter.address)?, GRACE)?),
            Self::Driven => Box::new(RemoteSessionDisk::open_over(far(sessions.address)?, DRIVEN, 1)?),
            Self::Block => Box::new(RemoteSessionDisk::open_over(far(sessions.address)?, DISK, 1)?),
        })
    }
}

/// Through farbus's own host, with or without a session.
fn usb(address: SocketAddr, grace: Duration) -> Result<RemoteDisk<impl HostPort + Send>> {
    let target: FarbusTarget = format!("{address}/1-1").parse().map_err(|error: String| anyhow!(error))?;
    let config = ClientConfig { grace: Some(grace), ..ClientConfig::default() };
    let client = ImporterClient::new(config);
    // The exporter takes a moment to notice that the previous user has gone.
    let until = Instant::now() + RELEASE_MAX;
    loop {
        match client.open_disk(&target) {
            Ok(disk) => return Ok(disk),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Both rows of one path.
fn measured(
    what: &str,
    disk: &mut (impl RawDisk + ?Sized),
    total: u64,
    passes: usize,
) -> Result<Vec<BenchmarkFinding>> {
    let mut rows = Vec::new();
    for verb in [BlockVerb::Read, BlockVerb::Write] {
        let mut rates = Vec::new();
        let mut all = LoadTally::nothing();
        for _ in 0..passes {
            let tally = pass(disk, verb, total)?;
            rates.push(tally.bytes_per_second() / 1e3);
            all.add(&tally);
        }
        let detail = format!("p50 {:.1} µs, p99 {:.1} µs", all.latency_us(50.0), all.latency_us(99.0));
        let rate = MeasuredQuantity::new(SampleSpread::new(rates), "KB/s");
        let what = format!("{what}: raw {}", verb.name());
        rows.push(BenchmarkFinding::absolute(NAME, what, rate, SpeedTarget::Context).with_detail(detail));
    }
    Ok(rows)
}

/// Moves all of it once, from the first request to the last answer; writes are durable then.
fn pass(disk: &mut (impl RawDisk + ?Sized), verb: BlockVerb, total: u64) -> Result<LoadTally> {
    let mut tally = LoadTally::nothing();
    let mut block = vec![0; REQUEST_BYTES];
    let began = Instant::now();
    for offset in (0..total).step_by(REQUEST_BYTES) {
        let asked_at = Instant::now();
        match verb {
            BlockVerb::Read => disk.read_at(offset, &mut block)?,
            BlockVerb::Write => {
                // Each block holds its offset, so that a read can check it.
                block[..8].copy_from_slice(&offset.to_le_bytes());
                disk.write_at(offset, &block)?;
            }
        }
        tally.latency_ns.saturating_record(asked_at.elapsed().as_nanos() as u64);
        tally.urbs += 1;
        tally.bytes += REQUEST_BYTES as u64;
    }
    if verb == BlockVerb::Write {
        disk.flush()?;
    }
    tally.seconds = began.elapsed().as_secs_f64();
    if verb == BlockVerb::Write {
        for offset in [0, total / 2, total - REQUEST_BYTES as u64] {
            disk.read_at(offset, &mut block)?;
            ensure!(block[..8] == offset.to_le_bytes(), "at {offset} the disk does not have what was written");
        }
    }
    Ok(tally)
}

/// Both rows of one of the paper's controllers.
fn paper((controller, read, write): (&str, u32, u32)) -> [BenchmarkFinding; 2] {
    [(BlockVerb::Read, read), (BlockVerb::Write, write)].map(|(verb, rate)| {
        let what = format!("2008 paper, Table 2, {controller}: raw {}", verb.name());
        BenchmarkFinding::absolute(
            NAME,
            what,
            MeasuredQuantity::new(SampleSpread::once(f64::from(rate)), "KB/s"),
            SpeedTarget::Context,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_moves_all_of_it_and_finds_what_it_wrote() {
        let mut disk = local().unwrap();
        for verb in [BlockVerb::Write, BlockVerb::Read] {
            let tally = pass(&mut disk, verb, 64 << 10).unwrap();
            assert_eq!((tally.urbs, tally.bytes), (16, 64 << 10));
        }
        let mut block = [0; REQUEST_BYTES];
        RawDisk::read_at(&mut disk, 8192, &mut block).unwrap();
        assert_eq!(block[..8], 8192_u64.to_le_bytes());
    }

    #[test]
    fn the_paper_s_rows_stand_beside() {
        let rows: Vec<BenchmarkFinding> = PAPER.into_iter().flat_map(paper).collect();
        assert_eq!((rows.len(), rows[1].ours.spread.median()), (12, 8320.0));
    }
}
