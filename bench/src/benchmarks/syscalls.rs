//! System calls a URB, counted from outside.

use std::time::Duration;

use anyhow::{Context, Result};

use super::size;
use crate::{
    lab::Lab,
    load::{Client, Until},
    probe::{Calls, SyscallCounter},
    report::{Finding, Quantity},
    stats::{Spread, Target},
    usbip::{Direction, Transfer},
};

pub const NAME: &str = "syscalls";

/// Enough that the calls of a second of idling do not show.
const LOAD: Duration = Duration::from_millis(400);

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let subject = lab.subject()?;
    let mut client = subject.attach()?;
    let cells = [(64, 1, 2.1), (4096, 1, 2.1), (65536, 1, 2.1), (4096, 32, 0.5)];
    let mut findings = Vec::new();
    for direction in Direction::BOTH {
        for (bytes, depth, most) in cells {
            let transfer = Transfer::bulk(direction, bytes);
            let mut samples = Vec::new();
            for _ in 0..lab.rules.rounds {
                let counter = SyscallCounter::perf(subject.pid()).or_else(|_| SyscallCounter::strace(subject.pid()))?;
                let (_, each) = count(counter, &mut client, &transfer, depth)?;
                samples.push(each);
            }
            let what = format!("{} {} × {depth}", direction.name(), size(bytes));
            let finding =
                Finding::absolute(NAME, what, Quantity::new(Spread::new(samples), "calls/URB"), Target::AtMost(most));
            // Which calls they are is told by strace, which slows the server, hence not the count.
            let by_name = SyscallCounter::strace(subject.pid())
                .and_then(|counter| count(counter, &mut client, &transfer, depth))
                .map_or_else(
                    |error| format!("calls by name unknown: {error:#}"),
                    |(calls, each)| by_name(&calls, each),
                );
            findings.push(finding.with_detail(by_name));
        }
    }
    Ok(findings)
}

/// The calls during a run, and how many that is for each URB.
fn count(counter: SyscallCounter, client: &mut Client, transfer: &Transfer, depth: usize) -> Result<(Calls, f64)> {
    let tally = client.run(transfer, depth, Until::Elapsed(LOAD)).context("under a tracer")?;
    let calls = counter.finish()?;
    let each = calls.total as f64 / tally.urbs as f64;
    Ok((calls, each))
}

fn by_name(calls: &Calls, each: f64) -> String {
    let urbs = calls.total as f64 / each;
    let mut names: Vec<_> = calls.by_name.iter().filter(|(_, count)| *count as f64 / urbs >= 0.001).collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let listed: Vec<_> = names.iter().map(|(name, count)| format!("{name} {:.3}", *count as f64 / urbs)).collect();
    format!("under strace {each:.3} a URB: {}", listed.join(", "))
}
