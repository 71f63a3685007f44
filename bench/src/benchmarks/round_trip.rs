//! One URB at a time, compared with the barest loop that moves the same bytes.

use anyhow::Result;

use super::naming::{latencies, size};
use crate::{
    contest::{ContestResult, ContestServer},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::{PeerServerKind, ping::PingClient},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "round-trip";
const SIZES: [usize; 5] = [64, 512, 4096, 16384, 65536];

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(PeerServerKind::Ping)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        for bytes in SIZES {
            let transfer = TransferTemplate::bulk(direction, bytes);
            let mut ping = PingClient::connect(limit.address, &transfer)?;
            let contest = ContestResult::hold(
                &lab.rules,
                &mut [
                    ContestServer::new(subject.pid(), |slice| client.run(&transfer, 1, LoadLimit::Elapsed(slice))),
                    ContestServer::new(limit.pid(), |slice| ping.run(slice)),
                ],
            )?;
            let [ours, ping] = [0, 1].map(|side| contest.figures(side, |share| share.tally.urbs_per_second() / 1000.0));
            // A preemption of milliseconds affects a rate, but not the median of round trips: on a busy machine this is
            // the reliable figure.
            let by_median = contest.sum(1).latency_us(50.0) / contest.sum(0).latency_us(50.0);
            findings.push(
                BenchmarkFinding::ratio(
                    NAME,
                    format!("{} {} × 1", direction.name(), size(bytes)),
                    MeasuredQuantity::new(ours, "k/s"),
                    ("ping", MeasuredQuantity::new(ping, "k/s")),
                    SpeedTarget::AtLeast(0.90),
                )
                .with_detail(format!(
                    "{}; ping: {}; {by_median:.2} by medians",
                    latencies(&contest, 0),
                    latencies(&contest, 1)
                ))
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
