//! Large URBs in flight, compared with one bare TCP stream.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Until,
    peers::{Kind, stream::Stream},
    report::{Finding, Quantity},
    stats::Target,
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "throughput";
const BYTES: usize = 128 * 1024;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(Kind::Stream)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        let transfer = Transfer::bulk(direction, BYTES);
        let mut stream = Stream::connect(limit.address, direction, BYTES)?;
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
                format!("{} 128 KiB × 32", direction.name()),
                Quantity::new(ours, "MB/s"),
                (limit.name, Quantity::new(bare, "MB/s")),
                Target::AtLeast(0.80),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
