//! Many small URBs in flight, compared with the crate that the targets name.

use anyhow::Result;

use super::naming::latencies;
use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Until,
    peers::Kind,
    report::{Finding, Quantity},
    stats::Target,
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "deep";

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let subject = lab.subject()?;
    let peer = lab.peer(Kind::Crate)?;
    let mut client = subject.attach()?;
    let mut peer_client = peer.attach()?;
    let mut findings = Vec::new();
    for (direction, least) in [(Direction::In, 5.0), (Direction::Out, 3.0)] {
        let transfer = Transfer::bulk(direction, 4096);
        let contest = Contest::hold(
            &lab.rules,
            &mut [
                Side::new(subject.pid(), |slice| client.run(&transfer, 32, Until::Elapsed(slice))),
                Side::new(peer.pid(), |slice| peer_client.run(&transfer, 32, Until::Elapsed(slice))),
            ],
        )?;
        let [ours, theirs] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            Finding::ratio(
                NAME,
                format!("{} 4 KiB × 32", direction.name()),
                Quantity::new(ours, "MB/s"),
                (peer.name, Quantity::new(theirs, "MB/s")),
                Target::AtLeast(least),
            )
            .with_detail(latencies(&contest, 0))
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
