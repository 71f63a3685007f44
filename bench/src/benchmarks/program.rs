//! A device for a program without kernel USB (`farbus run`), compared with a client that speaks USB/IP itself.

use anyhow::Result;

use super::naming::{latencies, size};
use crate::{
    contest::{Contest, Side},
    lab::Lab,
    load::Until,
    peers::inside::{Inside, Work},
    report::{Finding, Quantity},
    stats::{Spread, Target},
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "program";
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
const DEEP: usize = 32;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    // A device has one user: each side has a server of its own.
    let (ours, theirs) = (lab.subject()?, lab.subject()?);
    let mut inside = Inside::start(lab.farbus_program()?, ours.address, ours.busid())?;
    let pid = inside.pid();
    let mut client = theirs.attach()?;
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        let small = Transfer::bulk(direction, SMALL);
        let inside = std::cell::RefCell::new(&mut inside);
        let contest = Contest::hold(
            &lab.rules,
            &mut [
                Side::new(pid, |slice| inside.borrow_mut().run(Work::Bulk(direction, SMALL, 1), slice)),
                Side::new(theirs.pid(), |slice| client.run(&small, 1, Until::Elapsed(slice))),
                Side::new(pid, |slice| inside.borrow_mut().run(Work::Ask, slice)),
            ],
        )?;
        let [program, own, ask] = [0, 1, 2].map(|side| contest.sum(side).latency_us(50.0));
        let added = Quantity::new(Spread::once((program - own) / ask), "bare requests");
        findings.push(
            Finding::absolute(
                NAME,
                format!("{} {} × 1 adds", direction.name(), size(SMALL)),
                added,
                Target::AtMost(5.0),
            )
            .with_detail(format!(
                "{program:.1} us, client {own:.1} us, a request that needs no device {ask:.1} us, all medians; {}",
                latencies(&contest, 0)
            ))
            .seen_in(&contest),
        );
        let large = Transfer::bulk(direction, LARGE);
        let contest = Contest::hold(
            &lab.rules.with_long_slices(),
            &mut [
                Side::new(pid, |slice| inside.borrow_mut().run(Work::Bulk(direction, LARGE, DEEP), slice)),
                Side::new(theirs.pid(), |slice| client.run(&large, DEEP, Until::Elapsed(slice))),
            ],
        )?;
        let [program, own] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            Finding::ratio(
                NAME,
                format!("{} {} × {DEEP}", direction.name(), size(LARGE)),
                Quantity::new(program, "MB/s"),
                ("client", Quantity::new(own, "MB/s")),
                Target::AtLeast(0.60),
            )
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
