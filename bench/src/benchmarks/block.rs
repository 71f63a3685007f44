//! A remote block device through a session, with both ends in farbus's library, compared with other NBD servers.
//!
//! All answer from memory over loopback TCP. The load generator uses the NBD servers, and takes replies apart and drops
//! them. The library's importer uses farbus's server; it keeps each request until it is answered and returns the
//! reply's bytes. Each is what a program gets that uses that server.

use anyhow::{Result, anyhow, bail};
use farbus::{client::Target as FarbusTarget, model::BlockStore};

use super::{
    naming::{latencies, size},
    storage::{DISK_BYTES, Image},
};
use crate::{
    contest::{Contest, Share, Side},
    lab::{Lab, Subject},
    load::Tally,
    peers::{
        Kind, Server,
        nbdkit::{Nbd, NbdPeer, Verb},
        session::{Disk, splitmix},
    },
    report::{Finding, Quantity},
    stats::Target,
};

pub const NAME: &str = "block";
pub const PROXY: &str = "block-proxy";
pub const PARALLEL: &str = "block-parallel";
const DEPTH: usize = 32;
const LARGE: usize = 128 * 1024;
const SMALL: usize = 4096;
/// The loads: operation, bytes, whether at random.
const SHAPES: [(Verb, usize, bool); 4] =
    [(Verb::Read, LARGE, false), (Verb::Write, LARGE, false), (Verb::Read, SMALL, true), (Verb::Write, SMALL, true)];

fn only_farbus(lab: &Lab) -> Result<()> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus has sessions");
    }
    Ok(())
}

/// Fills an NBD server's disk: a hole would be answered without touching memory.
fn filled(mut client: Nbd) -> Result<Nbd> {
    let block = vec![0xa5; LARGE];
    for offset in (0..client.bytes).step_by(LARGE) {
        client.write_at(offset, &block)?;
    }
    Ok(client)
}

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    only_farbus(lab)?;
    let image = Image::create()?;
    let server = lab.peer(Kind::Session)?;
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let qemu = NbdPeer::qemu(&image.0, lab.placement)?;
    let mut ours = Disk::open(server.address)?;
    let mut theirs = filled(nbdkit.connect()?)?;
    let mut qemus = filled(qemu.connect()?)?;
    let mut findings = Vec::new();
    for (verb, bytes, is_random) in SHAPES {
        let rules = if is_random { lab.rules } else { lab.rules.with_long_slices() };
        let contest = Contest::hold(
            &rules,
            &mut [
                Side::new(server.pid(), |slice| ours.run(verb, bytes, DEPTH, is_random, slice)),
                Side::new(nbdkit.pid(), |slice| theirs.run(verb, bytes, DEPTH, is_random, slice)),
                Side::new(qemu.pid(), |slice| qemus.run(verb, bytes, DEPTH, is_random, slice)),
            ],
        )?;
        for (side, peer, target) in [(1, "nbdkit memory", Target::AtLeast(1.0)), (2, "qemu-nbd", Target::Context)] {
            findings.push(versus(NAME, &contest, shape(verb, bytes, is_random, DEPTH), (side, peer), target));
        }
    }
    findings.push(against_bulk_only(lab, &image, &server, &mut ours)?);
    Ok(findings)
}

fn shape(verb: Verb, bytes: usize, is_random: bool, depth: usize) -> String {
    format!("{} {}{} × {depth}", verb.name(), size(bytes), if is_random { " random" } else { "" })
}

/// Side 0 compared with another.
fn versus(
    benchmark: &'static str,
    contest: &Contest,
    what: String,
    (side, peer): (usize, &'static str),
    target: Target,
) -> Finding {
    let figures = |side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6);
    let cpu = |side| contest.figures(side, Share::cpu_seconds_per_gb).median();
    let detail = format!("{}, server CPU {:.2} s/GB against {:.2} s/GB", latencies(contest, 0), cpu(0), cpu(side));
    let (ours, theirs) = (Quantity::new(figures(0), "MB/s"), Quantity::new(figures(side), "MB/s"));
    Finding::ratio(benchmark, what, ours, (peer, theirs), target).with_detail(detail).seen_in(contest)
}

/// The same disk as USB storage, Bulk-Only, through farbus's own host: one command at a time, as that protocol
/// requires.
fn against_bulk_only(lab: &Lab, image: &Image, server: &Server, ours: &mut Disk) -> Result<Finding> {
    let usb = lab.farbus(&format!("disk:{}", image.0.display()))?;
    let target: FarbusTarget = format!("{}/1-1", usb.address).parse().map_err(|error: String| anyhow!(error))?;
    let mut stick = farbus::client::open_disk(&target)?;
    let mut block = vec![0; SMALL];
    let mut seed = 1;
    let contest = Contest::hold(
        &lab.rules,
        &mut [
            Side::new(server.pid(), |slice| ours.run(Verb::Read, SMALL, DEPTH, true, slice)),
            Side::new(usb.pid(), |slice| {
                let mut tally = Tally::nothing();
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
    let what = shape(Verb::Read, SMALL, true, DEPTH);
    Ok(versus(NAME, &contest, what, (1, "USB Bulk-Only"), Target::AtLeast(5.0)))
}

/// The importer's NBD server over a session, compared with nbdkit's `nbd` plugin over NBD; both are in front of a disk
/// in memory.
pub fn run_proxy(lab: &Lab) -> Result<Vec<Finding>> {
    only_farbus(lab)?;
    let store = lab.peer(Kind::Session)?;
    let proxy = Server::proxy(store.address, lab.placement)?;
    let their_store = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let their_proxy = NbdPeer::nbdkit_proxy(their_store.address(), lab.placement)?;
    let mut ours = Nbd::connect(proxy.address)?;
    let mut theirs = filled(their_proxy.connect()?)?;
    let mut findings = Vec::new();
    for (verb, bytes, is_random) in SHAPES {
        let rules = if is_random { lab.rules } else { lab.rules.with_long_slices() };
        let contest = Contest::hold(
            &rules,
            &mut [
                Side::new(proxy.pid(), |slice| ours.run(verb, bytes, DEPTH, is_random, slice)),
                Side::new(their_proxy.pid(), |slice| theirs.run(verb, bytes, DEPTH, is_random, slice)),
            ],
        )?;
        let what = shape(verb, bytes, is_random, DEPTH);
        findings.push(versus(PROXY, &contest, what, (1, "nbdkit nbd"), Target::AtLeast(1.2)));
    }
    Ok(findings)
}

/// An increasing number of requests on one connection, and of importers of one shared disk (Netbus, Figure 5 and
/// section 7.4).
pub fn run_parallel(lab: &Lab) -> Result<Vec<Finding>> {
    only_farbus(lab)?;
    let server = lab.peer(Kind::Session)?;
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let mut theirs = vec![filled(nbdkit.connect()?)?];
    let mut ours = vec![Disk::open(server.address)?];
    let mut findings = Vec::new();
    for depth in [1, 2, 4, 8] {
        let contest = Contest::hold(
            &lab.rules,
            &mut [
                Side::new(server.pid(), |slice| ours[0].run(Verb::Read, LARGE, depth, false, slice)),
                Side::new(nbdkit.pid(), |slice| theirs[0].run(Verb::Read, LARGE, depth, false, slice)),
            ],
        )?;
        let what = format!("{depth} streams on one connection, read 128 KiB");
        findings.push(versus(PARALLEL, &contest, what, (1, "nbdkit memory"), Target::Context));
    }
    for readers in [1, 2, 4, 8] {
        while ours.len() < readers {
            ours.push(Disk::open(server.address)?);
            theirs.push(nbdkit.connect()?);
        }
        let contest = Contest::hold(
            &lab.rules.with_long_slices(),
            &mut [
                Side::new(server.pid(), |slice| {
                    all_at_once(&mut ours, |disk| disk.run(Verb::Read, LARGE, 4, false, slice))
                }),
                Side::new(nbdkit.pid(), |slice| {
                    all_at_once(&mut theirs, |disk| disk.run(Verb::Read, LARGE, 4, false, slice))
                }),
            ],
        )?;
        let what = format!("{readers} readers of one disk, read 128 KiB × 4 each");
        findings.push(versus(PARALLEL, &contest, what, (1, "nbdkit memory"), Target::Context));
    }
    Ok(findings)
}

/// Runs each on a thread of its own; returns their bytes together, in the time of one.
fn all_at_once<T: Send>(clients: &mut [T], run: impl Fn(&mut T) -> Result<Tally> + Sync) -> Result<Tally> {
    let tallies: Vec<Result<Tally>> = std::thread::scope(|scope| {
        let running: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| run(client))).collect();
        running.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let mut sum = Tally::nothing();
    let mut longest = 0.0_f64;
    for tally in tallies {
        let tally = tally?;
        longest = longest.max(tally.seconds);
        sum.add(&tally);
    }
    sum.seconds = longest;
    Ok(sum)
}
