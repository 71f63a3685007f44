//! The CPU time per GB of the server, compared with a bare process that sends or receives it in 64 KiB pieces.
//!
//! The target names a size and no depth, so it is checked at a shallow and at a deep queue.

use anyhow::Result;

use crate::{
    contest::{ContestResult, ContestServer, RoundTally},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::{PeerServerKind, stream::StreamClient},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "cpu";
const BYTES: usize = 64 * 1024;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(PeerServerKind::Stream)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        for depth in [4, 32] {
            let transfer = TransferTemplate::bulk(direction, BYTES);
            let mut stream = StreamClient::connect(limit.address, direction, BYTES)?;
            let contest = ContestResult::hold(
                &lab.rules.with_long_slices(),
                &mut [
                    ContestServer::new(subject.pid(), |slice| client.run(&transfer, depth, LoadLimit::Elapsed(slice))),
                    ContestServer::new(limit.pid(), |slice| stream.run(slice)),
                ],
            )?;
            let [ours, bare] = [0, 1].map(|side| contest.figures(side, RoundTally::cpu_seconds_per_gb));
            let [our_rate, bare_rate] =
                [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6).median());
            let role = if direction == UsbipDirection::In { "bare sender" } else { "bare receiver" };
            findings.push(
                BenchmarkFinding::ratio(
                    NAME,
                    format!("{} 64 KiB × {depth}", direction.name()),
                    MeasuredQuantity::new(ours, "s/GB"),
                    (role, MeasuredQuantity::new(bare, "s/GB")),
                    SpeedTarget::AtMost(1.3),
                )
                .with_detail(format!("at {our_rate:.0} MB/s, the {role} at {bare_rate:.0} MB/s"))
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
