//! The same transfers to the same device over farbus's own protocol and over USB/IP, each with this library's importer
//! and exporter.

use anyhow::{Result, anyhow, bail};
use farbus::{client::ImporterClient, importer::port::usbip::RemotePort};

use super::naming::{latencies, size};
use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    peers::{
        PeerServerKind,
        session::{UsbLoad, source_sink},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::UsbipDirection,
};

pub const NAME: &str = "native";

/// From a key report to the requests of disks and cameras, at their usual depths.
const SIZES: [usize; 6] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 32];
/// Above this in flight, a queue that fills and drains counts in a short slice.
const LARGE_BYTES: usize = 128 << 10;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    if lab.subject != BenchmarkSubject::Farbus {
        bail!("only farbus speaks its own protocol");
    }
    let (server, usbip) = (lab.peer(PeerServerKind::Session)?, lab.farbus("zero")?);
    let mut ours = source_sink(server.address)?;
    let target = format!("{}/1-1", usbip.address).parse().map_err(|error: String| anyhow!(error))?;
    let (link, device) = ImporterClient::default().enumerate(&target)?;
    let mut theirs = UsbLoad::over(RemotePort::new(link, device)?)?;
    let mut findings = Vec::new();
    for (bytes, depth) in SIZES.into_iter().flat_map(|bytes| DEPTHS.map(|depth| (bytes, depth))) {
        for direction in UsbipDirection::BOTH {
            let rules = if bytes * depth > LARGE_BYTES { lab.rules.with_long_slices() } else { lab.rules };
            let contest = ContestResult::hold(
                &rules,
                &mut [
                    ContestServer::new(server.pid(), |slice| ours.run(direction, bytes, depth, slice)),
                    ContestServer::new(usbip.pid(), |slice| theirs.run(direction, bytes, depth, slice)),
                ],
            )?;
            let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.urbs_per_second() / 1e3));
            let cpu = [0, 1].map(|side| contest.figures(side, RoundTally::cpu_seconds_per_gb).median());
            findings.push(
                BenchmarkFinding::ratio(
                    NAME,
                    format!("{} {} × {depth}", direction.name(), size(bytes)),
                    MeasuredQuantity::new(ours, "k/s"),
                    ("USB/IP", MeasuredQuantity::new(theirs, "k/s")),
                    SpeedTarget::AtLeast(1.0),
                )
                .with_detail(format!(
                    "{}, server CPU {:.2} s/GB against {:.2} s/GB",
                    latencies(&contest, 0),
                    cpu[0],
                    cpu[1]
                ))
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
