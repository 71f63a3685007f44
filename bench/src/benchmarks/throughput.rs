//! Large URBs in flight, compared with one bare TCP stream.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{ContestResult, ContestServer},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::{PeerServerKind, stream::StreamClient},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "throughput";
const BYTES: usize = 128 * 1024;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(PeerServerKind::Stream)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        let transfer = TransferTemplate::bulk(direction, BYTES);
        let mut stream = StreamClient::connect(limit.address, direction, BYTES)?;
        let contest = ContestResult::hold(
            &lab.rules.with_long_slices(),
            &mut [
                ContestServer::new(subject.pid(), |slice| client.run(&transfer, 32, LoadLimit::Elapsed(slice))),
                ContestServer::new(limit.pid(), |slice| stream.run(slice)),
            ],
        )?;
        let [ours, bare] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            BenchmarkFinding::ratio(
                NAME,
                format!("{} 128 KiB × 32", direction.name()),
                MeasuredQuantity::new(ours, "MB/s"),
                (limit.name, MeasuredQuantity::new(bare, "MB/s")),
                SpeedTarget::AtLeast(0.80),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
