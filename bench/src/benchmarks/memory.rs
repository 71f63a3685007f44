//! The resident set of a server with one device, and whether it grows.

use anyhow::Result;

use crate::{
    lab::BenchmarkEnvironment,
    load::LoadLimit,
    probe::resident_kib,
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "memory";

const RESIDENT_MIB_MAX: f64 = 10.0;
/// "No growth" with room for a few pages that happen to be touched late; a leak of one byte a URB
/// would be a hundred and fifty times as much.
const GROWTH_KIB_MAX: f64 = 64.0;
/// Enough for every buffer to have been used and every pool to have filled.
const WARM_UP_URBS: u64 = 100_000;
const STEPS: u64 = 10;

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let pid = subject.pid();
    let resident = |what: &str, kib: u64| {
        let mib = MeasuredQuantity::new(SampleSpread::once(kib as f64 / 1024.0), "MiB");
        BenchmarkFinding::absolute(NAME, what.to_owned(), mib, SpeedTarget::AtMost(RESIDENT_MIB_MAX))
    };
    let mut findings = vec![resident("sharing one device", resident_kib(pid)?)];

    let urbs = if lab.quick { 200_000 } else { 10_000_000 };
    let transfers = UsbipDirection::BOTH.map(|direction| TransferTemplate::bulk(direction, 64));
    let mut client = subject.attach()?;
    for transfer in &transfers {
        client.run(transfer, 32, LoadLimit::Urbs(WARM_UP_URBS / 2))?;
    }
    let before = resident_kib(pid)?;
    let mut course = vec![before];
    for _ in 0..STEPS {
        for transfer in &transfers {
            client.run(transfer, 32, LoadLimit::Urbs(urbs / STEPS / 2))?;
        }
        course.push(resident_kib(pid)?);
    }
    let after = course[course.len() - 1];
    let growth = MeasuredQuantity::new(SampleSpread::once(after as f64 - before as f64), "KiB");
    let course: Vec<String> = course.iter().map(u64::to_string).collect();
    findings.push(
        BenchmarkFinding::absolute(
            NAME,
            format!("growth over {urbs} URBs of 64 B × 32"),
            growth,
            SpeedTarget::AtMost(GROWTH_KIB_MAX),
        )
        .with_detail(format!("resident KiB, start to end: {}", course.join(" "))),
    );

    for transfer in UsbipDirection::BOTH.map(|direction| TransferTemplate::bulk(direction, 128 * 1024)) {
        client.run(&transfer, 32, LoadLimit::Urbs(2_000))?;
    }
    findings.push(resident("after 128 KiB × 32 both ways", resident_kib(pid)?));

    drop(client);
    let connections = if lab.quick { 100 } else { 1000 };
    // A new thread for each: the allocator's memory for them levels off within some dozens.
    for _ in 0..100 {
        subject.attach()?;
    }
    let before = resident_kib(pid)?;
    for _ in 0..connections {
        subject.attach()?;
    }
    let growth = MeasuredQuantity::new(SampleSpread::once(resident_kib(pid)? as f64 - before as f64), "KiB");
    findings.push(BenchmarkFinding::absolute(
        NAME,
        format!("growth over {connections} attachments"),
        growth,
        SpeedTarget::Context,
    ));
    Ok(findings)
}
