//! The time of one request by stage (Netbus, Tables 1 and 2). A remote one's stages come from the exporter's report of
//! its own part: no clocks are compared. A local device is only its back end; of a request by NBD what a bare exchange
//! of as many bytes takes is its network, and the rest both ends together.
//!
//! Our copy of the paper has the titles of its tables, not their values. Its text has what they show (section 7.5): a
//! remote block device and NBD take about as long at each stage, and most of the time goes to device and network.

use anyhow::{Result, bail};
use farbus::{
    gadgets::zero::{SourcePattern, SourceSink},
    importer::{port::session::SessionPort, session::bare::blocks::StoreDevice},
    model::{BlockDevice, BlockId, BlockMedium, BlockRequest, BufferPool, CompletionQueue, Payload, UsbSpeed},
};

use super::naming::size;
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    peers::{
        PeerServerKind,
        local::LocalDevice,
        nbdkit::{BlockVerb, NbdLoadClient, NbdPeer},
        ping::PingClient,
        session::{LatencyBreakdown, RemoteSessionDisk, UsbLoad, full_medium, source_sink},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "stages";
/// As many samples as the paper averages.
const SAMPLES: usize = 100;
/// The paper's average USB bulk transfer (section 7.1).
const USB_BYTES: usize = 3050;
const BLOCK_LOADS: [(BlockVerb, usize); 4] =
    [(BlockVerb::Read, 4096), (BlockVerb::Read, 16 * 1024), (BlockVerb::Write, 4096), (BlockVerb::Write, 16 * 1024)];

/// A stage and how to get it from a sample.
type LatencyColumn = (&'static str, fn(&LatencyBreakdown) -> f64);

const STAGES: [LatencyColumn; 5] = [
    ("front end", |at| at.front_us),
    ("bus", |at| at.bus_us),
    ("network", |at| at.network_us),
    ("back end", |at| at.back_us),
    ("all", |at| at.front_us + at.bus_us + at.network_us + at.back_us),
];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has sessions");
    }
    let server = lab.peer(PeerServerKind::Session)?;
    let mut found = table_1(lab, &mut RemoteSessionDisk::open(server.address)?)?;
    found.extend(table_2(&mut source_sink(server.address)?)?);
    Ok(found)
}

/// A block request: local, in a session, by NBD.
fn table_1(lab: &BenchmarkEnvironment, remote: &mut RemoteSessionDisk) -> Result<Vec<BenchmarkFinding>> {
    let mut local = LocalMemoryDisk::new()?;
    let bare = lab.peer(PeerServerKind::Ping)?;
    let nbdkit = NbdPeer::nbdkit(64 << 20, lab.placement);
    if let Err(error) = &nbdkit {
        eprintln!("{NAME}: NBD is left out: {error:#}");
    }
    let mut nbd = nbdkit.as_ref().ok().map(NbdPeer::connect).transpose()?;
    let mut found = Vec::new();
    for (verb, bytes) in BLOCK_LOADS {
        let load = format!("{} {} × 1", verb.name(), size(bytes));
        let samples = (0..SAMPLES).map(|_| local.one_us(verb, bytes)).collect::<Result<_>>()?;
        found.push(finding(format!("Table 1, {load}, local: all, its back end"), samples));
        found.extend(by_stage(&format!("Table 1, {load}, farbus"), &remote.stages(verb, bytes, SAMPLES)?));
        if let Some(nbd) = &mut nbd {
            let all = (0..SAMPLES).map(|_| nbd_us(nbd, verb, bytes)).collect::<Result<Vec<_>>>()?;
            let direction = if verb == BlockVerb::Read { UsbipDirection::In } else { UsbipDirection::Out };
            let tally =
                PingClient::connect(bare.address, &TransferTemplate::bulk(direction, bytes))?.run(lab.rules.slice)?;
            let network = tally.latency_us(50.0);
            let ends = all.iter().map(|us| (us - network).max(0.0)).collect();
            found.push(finding(format!("Table 1, {load}, NBD: network, a bare exchange"), vec![network]));
            found.push(finding(format!("Table 1, {load}, NBD: front and back end"), ends));
            found.push(finding(format!("Table 1, {load}, NBD: all"), all));
        }
    }
    Ok(found)
}

/// A bulk transfer: local, in a session.
fn table_2(remote: &mut UsbLoad<SessionPort>) -> Result<Vec<BenchmarkFinding>> {
    let mut local = UsbLoad::over(LocalDevice::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)))?;
    let mut found = Vec::new();
    for direction in UsbipDirection::BOTH {
        let load = format!("bulk {} {USB_BYTES} B × 1", direction.name());
        let samples = (0..SAMPLES).map(|_| local.one(direction, USB_BYTES)).collect::<Result<_>>()?;
        found.push(finding(format!("Table 2, {load}, local: all, its back end"), samples));
        let stages = remote.stages(direction, USB_BYTES, SAMPLES)?;
        found.extend(by_stage(&format!("Table 2, {load}, farbus"), &stages));
    }
    Ok(found)
}

fn by_stage<'a>(what: &'a str, samples: &'a [LatencyBreakdown]) -> impl Iterator<Item = BenchmarkFinding> + 'a {
    STAGES.iter().map(move |(name, stage)| finding(format!("{what}: {name}"), samples.iter().map(stage).collect()))
}

fn finding(what: String, samples: Vec<f64>) -> BenchmarkFinding {
    BenchmarkFinding::absolute(
        NAME,
        what,
        MeasuredQuantity::new(SampleSpread::new(samples), "µs"),
        SpeedTarget::Context,
    )
}

/// A disk in memory, in this process.
struct LocalMemoryDisk {
    disk: Box<dyn BlockDevice>,
    done: CompletionQueue<farbus::model::BlockCompletion>,
    next: u64,
}

impl LocalMemoryDisk {
    fn new() -> Result<Self> {
        let disk = StoreDevice::new(full_medium()?.open().map_err(anyhow::Error::msg)?);
        Ok(Self { disk: Box::new(disk), done: CompletionQueue::new(BufferPool::new(8 << 20)), next: 0 })
    }

    fn one_us(&mut self, verb: BlockVerb, bytes: usize) -> Result<f64> {
        let (id, offset) = (BlockId(self.next), self.next * bytes as u64 % (64 << 20));
        self.next += 1;
        let request = match verb {
            BlockVerb::Read => BlockRequest::read(id, offset, bytes as u32),
            BlockVerb::Write => BlockRequest::write(id, offset, Payload::from(vec![0xa5; bytes])),
        };
        let began = std::time::Instant::now();
        self.disk.submit(farbus::model::Instant::ZERO, request.launch(), &mut self.done);
        let done = self.done.pop();
        let us = began.elapsed().as_nanos() as f64 / 1000.0;
        match done {
            Some(done) if done.result.is_ok() => self.done.pool.recycle(done.payload),
            other => bail!("a local request ended so: {other:?}"),
        }
        Ok(us)
    }
}

fn nbd_us(nbd: &mut NbdLoadClient, verb: BlockVerb, bytes: usize) -> Result<f64> {
    let mut block = vec![0xa5; bytes];
    let began = std::time::Instant::now();
    match verb {
        BlockVerb::Read => nbd.read_at(0, &mut block)?,
        BlockVerb::Write => nbd.write_at(0, &block)?,
    }
    Ok(began.elapsed().as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_a_remote_request_add_up_to_all_of_it() {
        let at = LatencyBreakdown { front_us: 1.0, bus_us: 2.0, network_us: 3.0, back_us: 4.0 };
        let found: Vec<_> = by_stage("Table 1, x", &[at]).collect();
        let of = |at: usize| found[at].ours.spread.median();
        assert_eq!((found[4].what.as_str(), of(4)), ("Table 1, x: all", of(0) + of(1) + of(2) + of(3)));
    }

    #[test]
    fn local_disk_and_local_usb_device_answer_every_load_of_the_tables() {
        let mut disk = LocalMemoryDisk::new().expect("a disk");
        for (verb, bytes) in BLOCK_LOADS {
            assert!(disk.one_us(verb, bytes).expect("answered") >= 0.0);
        }
        let device = LocalDevice::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false));
        let mut usb = UsbLoad::over(device).expect("configured");
        for direction in UsbipDirection::BOTH {
            assert!(usb.one(direction, USB_BYTES).expect("answered") >= 0.0);
        }
    }

    #[test]
    fn usb_table_has_every_stage_of_both_directions_and_the_local_device() {
        let mut remote = source_sink(crate::peers::session::serve_for_test()).expect("a device");
        let found = table_2(&mut remote).expect("answered");
        let whats: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!((whats.len(), whats[0]), (12, "Table 2, bulk IN 3050 B × 1, local: all, its back end"));
        assert_eq!(whats[11], "Table 2, bulk OUT 3050 B × 1, farbus: all");
        assert!(found.iter().all(|finding| finding.ours.spread.samples.len() == SAMPLES));
    }
}
