//! A device for a program without kernel USB (`farbus run`), compared with a client that speaks USB/IP itself.

use anyhow::Result;

use super::naming::{latencies, size};
use crate::{
    contest::{ContestResult, ContestServer},
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    peers::inside::{UsbfsProgram, UsbfsWorkload},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "program";
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
const DEEP: usize = 32;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    // A device has one user: each side has a server of its own.
    let (ours, theirs) = (lab.subject()?, lab.subject()?);
    let mut inside = UsbfsProgram::start(lab.farbus_program()?, ours.address, ours.busid())?;
    let pid = inside.pid();
    let mut client = theirs.attach()?;
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        let small = TransferTemplate::bulk(direction, SMALL);
        let inside = std::cell::RefCell::new(&mut inside);
        let contest = ContestResult::hold(
            &lab.rules,
            &mut [
                ContestServer::new(pid, |slice| {
                    inside.borrow_mut().run(UsbfsWorkload::Bulk(direction, SMALL, 1), slice)
                }),
                ContestServer::new(theirs.pid(), |slice| client.run(&small, 1, LoadLimit::Elapsed(slice))),
                ContestServer::new(pid, |slice| inside.borrow_mut().run(UsbfsWorkload::Ask, slice)),
            ],
        )?;
        let [program, own, ask] = [0, 1, 2].map(|side| contest.sum(side).latency_us(50.0));
        let added = MeasuredQuantity::new(SampleSpread::once((program - own) / ask), "bare requests");
        findings.push(
            BenchmarkFinding::absolute(
                NAME,
                format!("{} {} × 1 adds", direction.name(), size(SMALL)),
                added,
                SpeedTarget::AtMost(5.0),
            )
            .with_detail(format!(
                "{program:.1} us, client {own:.1} us, a request that needs no device {ask:.1} us, all medians; {}",
                latencies(&contest, 0)
            ))
            .seen_in(&contest),
        );
        let large = TransferTemplate::bulk(direction, LARGE);
        let contest = ContestResult::hold(
            &lab.rules.with_long_slices(),
            &mut [
                ContestServer::new(pid, |slice| {
                    inside.borrow_mut().run(UsbfsWorkload::Bulk(direction, LARGE, DEEP), slice)
                }),
                ContestServer::new(theirs.pid(), |slice| client.run(&large, DEEP, LoadLimit::Elapsed(slice))),
            ],
        )?;
        let [program, own] = [0, 1].map(|side| contest.figures(side, |share| share.tally.bytes_per_second() / 1e6));
        findings.push(
            BenchmarkFinding::ratio(
                NAME,
                format!("{} {} × {DEEP}", direction.name(), size(LARGE)),
                MeasuredQuantity::new(program, "MB/s"),
                ("client", MeasuredQuantity::new(own, "MB/s")),
                SpeedTarget::AtLeast(0.60),
            )
            .seen_in(&contest),
        );
    }
    Ok(findings)
}
