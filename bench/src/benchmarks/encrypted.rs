//! Large URBs in flight on an encrypted link, compared with one bare TLS stream.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Until,
    peers::{
        Kind,
        stream::Stream,
        tls::{self, Hosts},
    },
    report::{Finding, Quantity},
    stats::Target,
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "encrypted";
const BYTES: usize = 128 * 1024;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    // Only farbus has such links, whichever subject was chosen.
    let hosts = Hosts::pair(lab.farbus_program()?)?;
    let subject = hosts.share("zero", lab.placement)?;
    let limit = lab.peer(Kind::Tls)?;
    let mut client = hosts.attach(&subject)?;
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        let transfer = Transfer::bulk(direction, BYTES);
        let mut stream = Stream::over(tls::connect(limit.address)?, direction, BYTES);
        let contest = Contest::hold(
            &lab.rules.with_long_slices(),
            &mut [
                Side::new(subject.pid(), |slice| client.run(&transfer, 32, Until::Elapsed(slice))),
                Side::new(limit.pid(), |slice| stream.run(slice)),
            ],
        )?;
        let [ours, bare] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            Finding::ratio(
                NAME,
                format!("{} 128 KiB × 32, TLS 1.3", direction.name()),
                Quantity::new(ours, "MB/s"),
                (limit.name, Quantity::new(bare, "MB/s")),
                Target::AtLeast(0.85),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
