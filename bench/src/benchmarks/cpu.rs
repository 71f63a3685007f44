//! The CPU time per GB of the server, compared with a bare process that sends or receives it in 64 KiB pieces.
//!
//! The target names a size and no depth, so it is checked at a shallow and at a deep queue.

use anyhow::Result;

use crate::{
    contest::{Contest, Share, Side},
    lab::Lab,
    load::Until,
    peers::{Kind, stream::Stream},
    report::{Finding, Quantity},
    stats::Target,
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "cpu";
const BYTES: usize = 64 * 1024;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(Kind::Stream)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        for depth in [4, 32] {
            let transfer = Transfer::bulk(direction, BYTES);
            let mut stream = Stream::connect(limit.address, direction, BYTES)?;
            let contest = Contest::hold(
                &lab.rules.with_long_slices(),
                &mut [
                    Side::new(subject.pid(), |slice| client.run(&transfer, depth, Until::Elapsed(slice))),
                    Side::new(limit.pid(), |slice| stream.run(slice)),
                ],
            )?;
            let [ours, bare] = [0, 1].map(|side| contest.figures(side, Share::cpu_seconds_per_gb));
            let [our_rate, bare_rate] =
                [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6).median());
            let role = if direction == Direction::In { "bare sender" } else { "bare receiver" };
            findings.push(
                Finding::ratio(
                    NAME,
                    format!("{} 64 KiB × {depth}", direction.name()),
                    Quantity::new(ours, "s/GB"),
                    (role, Quantity::new(bare, "s/GB")),
                    Target::AtMost(1.3),
                )
                .with_detail(format!("at {our_rate:.0} MB/s, the {role} at {bare_rate:.0} MB/s"))
                .seen_in(&contest),
            );
        }
    }
    Ok(findings)
}
