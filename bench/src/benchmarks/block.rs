//! A remote block device through a session, with both ends in farbus's library, compared with other NBD servers.
//!
//! All answer from memory over loopback TCP. The load generator uses the NBD servers, and takes replies apart and drops
//! them. The library's importer uses farbus's server; it keeps each request until it is answered and returns the
//! reply's bytes. Each is what a program gets that uses that server.

use anyhow::{Result, anyhow, bail};
use farbus::{client::DeviceTarget as FarbusTarget, model::BlockStore};

use super::{
    naming::{latencies, size},
    storage::{DISK_BYTES, TmpfsImage},
};
use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::LoadTally,
    peers::{
        PeerServer, PeerServerKind,
        nbdkit::{BlockVerb, NbdLoadClient, NbdPeer},
        session::{RemoteSessionDisk, splitmix},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
};

pub const NAME: &str = "block";
pub const PROXY: &str = "block-proxy";
pub const PARALLEL: &str = "block-parallel";
const DEPTH: usize = 32;
const LARGE: usize = 128 * 1024;
const SMALL: usize = 4096;
/// The loads: operation, bytes, whether at random.
const SHAPES: [(BlockVerb, usize, bool); 4] = [
    (BlockVerb::Read, LARGE, false),
    (BlockVerb::Write, LARGE, false),
    (BlockVerb::Read, SMALL, true),
    (BlockVerb::Write, SMALL, true),
];

fn only_farbus(lab: &BenchmarkEnvironment) -> Result<()> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus has sessions");
    }
    Ok(())
}

/// Fills an NBD server's disk: a hole would be answered without touching memory.
fn filled(mut client: NbdLoadClient) -> Result<NbdLoadClient> {
    let block = vec![0xa5; LARGE];
    for offset in (0..client.bytes).step_by(LARGE) {
        client.write_at(offset, &block)?;
    }
    Ok(client)
}

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    only_farbus(lab)?;
    let image = TmpfsImage::create()?;
    let server = lab.peer(PeerServerKind::Session)?;
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let qemu = NbdPeer::qemu(&image.0, lab.placement)?;
    let mut ours = RemoteSessionDisk::open(server.address)?;
    let mut theirs = filled(nbdkit.connect()?)?;
    let mut qemus = filled(qemu.connect()?)?;
    let mut findings = Vec::new();
    for (verb, bytes, is_random) in SHAPES {
        let rules = if is_random { lab.rules } else { lab.rules.with_long_slices() };
        let contest = ContestResult::hold(
            &rules,
            &mut [
                ContestServer::new(server.pid(), |slice| ours.run(verb, bytes, DEPTH, is_random, slice)),
                ContestServer::new(nbdkit.pid(), |slice| theirs.run(verb, bytes, DEPTH, is_random, slice)),
                ContestServer::new(qemu.pid(), |slice| qemus.run(verb, bytes, DEPTH, is_random, slice)),
            ],
        )?;
        for (side, peer, target) in
            [(1, "nbdkit memory", SpeedTarget::AtLeast(1.0)), (2, "qemu-nbd", SpeedTarget::Context)]
        {
            findings.push(versus(NAME, &contest, shape(verb, bytes, is_random, DEPTH), (side, peer), target));
        }
    }
    findings.push(against_bulk_only(lab, &image, &server, &mut ours)?);
    Ok(findings)
}

fn shape(verb: BlockVerb, bytes: usize, is_random: bool, depth: usize) -> String {
    format!("{} {}{} × {depth}", verb.name(), size(bytes), if is_random { " random" } else { "" })
}

/// Side 0 compared with another.
fn versus(
    benchmark: &'static str,
    contest: &ContestResult,
    what: String,
    (side, peer): (usize, &'static str),
    target: SpeedTarget,
) -> BenchmarkFinding {
    let figures = |side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6);
    let cpu = |side| contest.figures(side, RoundTally::cpu_seconds_per_gb).median();
    let detail = format!("{}, server CPU {:.2} s/GB against {:.2} s/GB", latencies(contest, 0), cpu(0), cpu(side));
    let (ours, theirs) = (MeasuredQuantity::new(figures(0), "MB/s"), MeasuredQuantity::new(figures(side), "MB/s"));
    BenchmarkFinding::ratio(benchmark, what, ours, (peer, theirs), target).with_detail(detail).seen_in(contest)
}

/// Compares the disk with itself as USB storage, Bulk-Only, through farbus's own host: one command at a time, as that
/// protocol requires.
fn against_bulk_only(
    lab: &BenchmarkEnvironment,
    image: &TmpfsImage,
    server: &PeerServer,
    ours: &mut RemoteSessionDisk,
) -> Result<BenchmarkFinding> {
    let usb = lab.farbus(&format!("disk:{}", image.0.display()))?;
    let target: FarbusTarget = format!("{}/1-1", usb.address).parse().map_err(|error: String| anyhow!(error))?;
    let mut stick = farbus::client::open_disk(&target)?;
    let mut block = vec![0; SMALL];
    let mut seed = 1;
    let contest = ContestResult::hold(
        &lab.rules,
        &mut [
            ContestServer::new(server.pid(), |slice| ours.run(BlockVerb::Read, SMALL, DEPTH, true, slice)),
            ContestServer::new(usb.pid(), |slice| {
                let mut tally = LoadTally::nothing();
                let began = std::time::Instant::now();
                while began.elapsed() < slice {
                    let offset = splitmix(&mut seed) % (DISK_BYTES / SMALL as u64) * SMALL as u64;
                    stick.read_at(offset, &mut block).map_err(|error| anyhow!("{error:?}"))?;
                    tally.urbs += 1;
                }
                tally.bytes = tally.urbs * SMALL as u64;
                tally.seconds = began.elapsed().as_secs_f64();
                Ok(tally)
            }),
        ],
    )?;
    let what = shape(BlockVerb::Read, SMALL, true, DEPTH);
    Ok(versus(NAME, &contest, what, (1, "USB Bulk-Only"), SpeedTarget::AtLeast(5.0)))
}

/// The importer's NBD server over a session, compared with nbdkit's `nbd` plugin over NBD; both are in front of a disk
/// in memory.
pub fn run_proxy(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    only_farbus(lab)?;
    let store = lab.peer(PeerServerKind::Session)?;
    let proxy = PeerServer::proxy(store.address, lab.placement)?;
    let their_store = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let their_proxy = NbdPeer::nbdkit_proxy(their_store.address(), lab.placement)?;
    let mut ours = NbdLoadClient::connect(proxy.address)?;
    let mut theirs = filled(their_proxy.connect()?)?;
    let mut findings = Vec::new();
    for (verb, bytes, is_random) in SHAPES {
        let rules = if is_random { lab.rules } else { lab.rules.with_long_slices() };
        let contest = ContestResult::hold(
            &rules,
            &mut [
                ContestServer::new(proxy.pid(), |slice| ours.run(verb, bytes, DEPTH, is_random, slice)),
                ContestServer::new(their_proxy.pid(), |slice| theirs.run(verb, bytes, DEPTH, is_random, slice)),
            ],
        )?;
        let what = shape(verb, bytes, is_random, DEPTH);
        findings.push(versus(PROXY, &contest, what, (1, "nbdkit nbd"), SpeedTarget::AtLeast(1.2)));
    }
    Ok(findings)
}

/// An increasing number of requests on one connection, and of importers of one shared disk (Netbus, Figure 5 and
/// section 7.4).
pub fn run_parallel(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    only_farbus(lab)?;
    let server = lab.peer(PeerServerKind::Session)?;
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let mut theirs = vec![filled(nbdkit.connect()?)?];
    let mut ours = vec![RemoteSessionDisk::open(server.address)?];
    let mut findings = Vec::new();
    for depth in [1, 2, 4, 8] {
        let contest = ContestResult::hold(
            &lab.rules,
            &mut [
                ContestServer::new(server.pid(), |slice| ours[0].run(BlockVerb::Read, LARGE, depth, false, slice)),
                ContestServer::new(nbdkit.pid(), |slice| theirs[0].run(BlockVerb::Read, LARGE, depth, false, slice)),
            ],
        )?;
        let what = format!("{depth} streams on one connection, read 128 KiB");
        findings.push(versus(PARALLEL, &contest, what, (1, "nbdkit memory"), SpeedTarget::Context));
    }
    for readers in [1, 2, 4, 8] {
        while ours.len() < readers {
            ours.push(RemoteSessionDisk::open(server.address)?);
            theirs.push(nbdkit.connect()?);
        }
        let contest = ContestResult::hold(
            &lab.rules.with_long_slices(),
            &mut [
                ContestServer::new(server.pid(), |slice| {
                    all_at_once(&mut ours, |disk| disk.run(BlockVerb::Read, LARGE, 4, false, slice))
                }),
                ContestServer::new(nbdkit.pid(), |slice| {
                    all_at_once(&mut theirs, |disk| disk.run(BlockVerb::Read, LARGE, 4, false, slice))
                }),
            ],
        )?;
        let what = format!("{readers} readers of one disk, read 128 KiB × 4 each");
        findings.push(versus(PARALLEL, &contest, what, (1, "nbdkit memory"), SpeedTarget::Context));
    }
    Ok(findings)
}

/// Runs each on a thread of its own; returns their bytes together, in the time of one.
fn all_at_once<T: Send>(clients: &mut [T], run: impl Fn(&mut T) -> Result<LoadTally> + Sync) -> Result<LoadTally> {
    let tallies: Vec<Result<LoadTally>> = std::thread::scope(|scope| {
        let running: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| run(client))).collect();
        running.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let mut sum = LoadTally::nothing();
    let mut longest = 0.0_f64;
    for tally in tallies {
        let tally = tally?;
        longest = longest.max(tally.seconds);
        sum.add(&tally);
    }
    sum.seconds = longest;
    Ok(sum)
}
