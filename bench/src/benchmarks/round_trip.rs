//! One URB at a time, compared with the barest loop that moves the same bytes.

use anyhow::Result;

use super::naming::{latencies, size};
use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Until,
    peers::{Kind, ping::Ping},
    report::{Finding, Quantity},
    stats::Target,
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "round-trip";
const SIZES: [usize; 5] = [64, 512, 4096, 16384, 65536];

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let subject = lab.subject()?;
    let limit = lab.peer(Kind::Ping)?;
    let mut client = subject.attach()?;
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        for bytes in SIZES {
            let transfer = Transfer::bulk(direction, bytes);
            let mut ping = Ping::connect(limit.address, &transfer)?;
            let contest = Contest::hold(
                &lab.rules,
                &mut [
                    Side::new(subject.pid(), |slice| client.run(&transfer, 1, Until::Elapsed(slice))),
                    Side::new(limit.pid(), |slice| ping.run(slice)),
                ],
            )?;
            let [ours, ping] = [0, 1].map(|side| contest.figures(side, |share| share.tally.urbs_per_second() / 1000.0));
            // A preemption of milliseconds affects a rate, but not the median of round trips: on a busy machine this is
            // the reliable figure.
            let by_median = contest.sum(1).latency_us(50.0) / contest.sum(0).latency_us(50.0);
            findings.push(
                Finding::ratio(
                    NAME,
                    format!("{} {} × 1", direction.name(), size(bytes)),
                    Quantity::new(ours, "k/s"),
                    ("ping", Quantity::new(ping, "k/s")),
                    Target::AtLeast(0.90),
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
