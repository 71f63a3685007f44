//! System calls per URB, counted from outside.

use std::time::Duration;

use anyhow::{Context, Result};

use super::naming::size;
use crate::{
    lab::{BenchmarkEnvironment, BenchmarkSubject},
    load::{LoadLimit, UsbipLoadClient},
    peers::PeerServer,
    probe::{OwnCounters, SyscallCounter, SyscallTotals},
    report::{BenchmarkFinding, MeasuredQuantity},
    stats::{SampleSpread, SpeedTarget},
    usbip::{TransferTemplate, UsbipDirection},
};

pub const NAME: &str = "syscalls";

/// Long enough that the calls of a second of idling do not matter.
const LOAD: Duration = Duration::from_millis(400);

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let subject = lab.subject()?;
    let mut client = subject.attach()?;
    let cells = [(64, 1, 2.1), (4096, 1, 2.1), (65536, 1, 2.1), (4096, 32, 0.5)];
    let mut findings = Vec::new();
    for direction in UsbipDirection::BOTH {
        for (bytes, depth, most) in cells {
            let transfer = TransferTemplate::bulk(direction, bytes);
            let own_before = own(lab, &subject);
            let mut samples = Vec::new();
            for _ in 0..lab.rules.rounds {
                let counter = SyscallCounter::perf(subject.pid()).or_else(|_| SyscallCounter::strace(subject.pid()))?;
                let (_, each) = count(counter, &mut client, &transfer, depth)?;
                samples.push(each);
            }
            let own = own_share(own_before, own(lab, &subject));
            // strace names the calls but slows the server, hence it does not count them.
            let by_name = SyscallCounter::strace(subject.pid())
                .and_then(|counter| count(counter, &mut client, &transfer, depth))
                .map_or_else(
                    |error| format!("calls by name unknown: {error:#}"),
                    |(calls, each)| by_name(&calls, each),
                );
            let what = format!("{} {} × {depth}", direction.name(), size(bytes));
            let each = MeasuredQuantity::new(SampleSpread::new(samples), "calls/URB");
            findings.push(
                BenchmarkFinding::absolute(NAME, what, each, SpeedTarget::AtMost(most))
                    .with_detail(format!("{by_name}{own}")),
            );
        }
    }
    Ok(findings)
}

fn own(lab: &BenchmarkEnvironment, subject: &PeerServer) -> Option<OwnCounters> {
    match lab.subject {
        BenchmarkSubject::Farbus => OwnCounters::read(&lab.farbus, subject.pid()).ok(),
        BenchmarkSubject::Ref | BenchmarkSubject::Crate => None,
    }
}

/// A second source: farbus's own counters of the same runs.
fn own_share(before: Option<OwnCounters>, after: Option<OwnCounters>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => {
            let each = (after.calls - before.calls) as f64 / (after.urbs - before.urbs) as f64;
            format!("; farbus itself counts {each:.3}")
        }
        _ => String::new(),
    }
}

/// The calls during a run, and the calls per URB.
fn count(
    counter: SyscallCounter,
    client: &mut UsbipLoadClient,
    transfer: &TransferTemplate,
    depth: usize,
) -> Result<(SyscallTotals, f64)> {
    let tally = client.run(transfer, depth, LoadLimit::Elapsed(LOAD)).context("under a tracer")?;
    let calls = counter.finish()?;
    let each = calls.total as f64 / tally.urbs as f64;
    Ok((calls, each))
}

fn by_name(calls: &SyscallTotals, each: f64) -> String {
    let urbs = calls.total as f64 / each;
    let mut names: Vec<_> = calls.by_name.iter().filter(|(_, count)| *count as f64 / urbs >= 0.001).collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let listed: Vec<_> = names.iter().map(|(name, count)| format!("{name} {:.3}", *count as f64 / urbs)).collect();
    format!("under strace {each:.3} a URB: {}", listed.join(", "))
}
