//! Large URBs in flight on an encrypted link, compared with one bare TLS stream.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{ContestResult, ContestServer},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::{
        PeerServerKind,
        stream::StreamClient,
        tls::{self, TlsHostPair},
    },
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::SpeedTarget,
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "encrypted";
const BYTES: usize = 128 * 1024;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    // Only farbus has such links, whichever subject was chosen.
    let hosts = TlsHostPair::pair(lab.farbus_program()?)?;
    let subject = hosts.share("zero", lab.placement)?;
    let limit = lab.peer(PeerServerKind::Tls)?;
    let mut client = hosts.attach(&subject)?;
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        let transfer = TransferTemplate::bulk(direction, BYTES);
        let mut stream = StreamClient::over(tls::connect(limit.address)?, direction, BYTES);
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
                format!("{} 128 KiB × 32, TLS 1.3", direction.name()),
                MeasuredQuantity::new(ours, "MB/s"),
                (limit.name, MeasuredQuantity::new(bare, "MB/s")),
                SpeedTarget::AtLeast(0.85),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
