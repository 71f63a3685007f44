//! Block requests over NBD, many in flight on one connection, compared with `nbdkit memory` and `qemu-nbd`.
//!
//! All three answer from memory over loopback TCP to the same client.

use anyhow::{Result, bail};

use super::{
    naming::{latencies, size},
    storage::{DISK_BYTES, TmpfsImage},
};
use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    peers::{
        PeerServer,
        nbdkit::{BlockVerb, NbdLoadClient, NbdPeer},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
};

pub const NAME: &str = "nbd";
const DEPTH: usize = 32;
const FILL_BYTES: usize = 128 * 1024;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus serves NBD");
    }
    let image = TmpfsImage::create()?;
    let server = PeerServer::farbus_nbd(lab.farbus_program()?, &format!("memory:{DISK_BYTES}"), lab.placement)?;
    let nbdkit = NbdPeer::nbdkit(DISK_BYTES, lab.placement)?;
    let qemu = NbdPeer::qemu(&image.0, lab.placement)?;
    let mut clients = [NbdLoadClient::connect(server.address)?, nbdkit.connect()?, qemu.connect()?];
    let block = vec![0xa5; FILL_BYTES];
    // A hole is answered without touching memory; a filled disk has none.
    for client in &mut clients {
        for offset in (0..client.bytes).step_by(FILL_BYTES) {
            client.write_at(offset, &block)?;
        }
    }
    let [ours, theirs, qemus] = &mut clients;
    let mut findings = Vec::new();
    for (verb, bytes, is_random) in [
        (BlockVerb::Read, 128 * 1024, false),
        (BlockVerb::Write, 128 * 1024, false),
        (BlockVerb::Read, 4096, true),
        (BlockVerb::Write, 4096, true),
    ] {
        let rules = if is_random { lab.rules } else { lab.rules.with_long_slices() };
        let contest = ContestResult::hold(
            &rules,
            &mut [
                ContestServer::new(server.pid(), |slice| ours.run(verb, bytes, DEPTH, is_random, slice)),
                ContestServer::new(nbdkit.pid(), |slice| theirs.run(verb, bytes, DEPTH, is_random, slice)),
                ContestServer::new(qemu.pid(), |slice| qemus.run(verb, bytes, DEPTH, is_random, slice)),
            ],
        )?;
        let figures = |side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6);
        let cpu = [0, 1, 2].map(|side| contest.figures(side, RoundTally::cpu_seconds_per_gb).median());
        let order = if is_random { " random" } else { "" };
        for (side, peer, target) in
            [(1, "nbdkit memory", SpeedTarget::AtLeast(1.0)), (2, "qemu-nbd", SpeedTarget::Context)]
        {
            let detail =
                format!("{}, server CPU {:.2} s/GB against {:.2} s/GB", latencies(&contest, 0), cpu[0], cpu[side]);
            findings.push(
                BenchmarkFinding::ratio(
                    NAME,
                    format!("{} {}{order} × {DEPTH}", verb.name(), size(bytes)),
                    MeasuredQuantity::new(figures(0), "MB/s"),
                    (peer, MeasuredQuantity::new(figures(side), "MB/s")),
                    target,
                )
                .with_detail(detail)
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
