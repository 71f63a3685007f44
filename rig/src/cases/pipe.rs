//! A tuned pipe on a processor of its own, where control groups are of version 2.

use super::case::{RigCase, expect};
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "pipe-partition",
    purpose: "`farbus pipe --cpus` makes a partition of version 2 of one processor, has its deadlines in it, and leaves nothing behind",
    run: partition,
}];

fn partition(lab: &CaseEnvironment) -> Result<String> {
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/pipe.sh"),
            client: AttachClient::Farbus,
            processors: 2,
            ..MachineBoot::default()
        })?
        .finish()?;
    let printed =
        |word: &str| report.output.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_default().trim();
    for (word, expected) in [
        ("partition ", "root"),
        ("owns ", "1"),
        ("inside ", "1"),
        ("policies ", "6"),
        ("left ", "0"),
        ("effective ", "0-1"),
        ("after-kill ", "root"),
    ] {
        expect(printed(word) == expected, || {
            format!("{word}is '{}', not {expected}:\n{}", printed(word), report.output)
        })?;
    }
    let messages = printed("messages ").parse::<u64>().unwrap_or_default();
    expect(messages > 0, || format!("nothing came:\n{}", report.output))?;
    Ok(format!("{messages} messages, policy 6 (SCHED_DEADLINE) on processor 1 alone"))
}
