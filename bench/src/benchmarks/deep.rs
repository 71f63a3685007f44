//! Many small URBs in flight, compared with the crate that the targets name.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{ContestResult, ContestServer},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::PeerServerKind,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "deep";

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let peer = lab.peer(PeerServerKind::Crate)?;
    let mut client = subject.attach()?;
    let mut peer_client = peer.attach()?;
    let mut findings = Vec::new();
    for (direction, least) in [(UsbipDirection::In, 5.0), (UsbipDirection::Out, 3.0)] {
        let transfer = TransferTemplate::bulk(direction, 4096);
        let contest = ContestResult::hold(
            &lab.rules,
            &mut [
                ContestServer::new(subject.pid(), |slice| client.run(&transfer, 32, LoadLimit::Elapsed(slice))),
                ContestServer::new(peer.pid(), |slice| peer_client.run(&transfer, 32, LoadLimit::Elapsed(slice))),
            ],
        )?;
        let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            BenchmarkFinding::ratio(
                NAME,
                format!("{} 4 KiB × 32", direction.name()),
                MeasuredQuantity::new(ours, "MB/s"),
                (peer.name, MeasuredQuantity::new(theirs, "MB/s")),
                SpeedTarget::AtLeast(least),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
