//! What a process of farbus can do that was taken over, on the kernel that the rig boots. The same on this machine's
//! kernel is `crates/cli/tests/command/taken_over.rs`.

use super::case::{RigCase, expect};
use super::storage;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "taken-over",
    purpose: "a share's, an attachment's and a page's confined process is made to do each system call, and what an intruder would try: only \
              the listed ones reach the kernel, and nothing succeeds",
    run: taken_over,
}];

/// The calls that may reach the kernel, and which of them take a path.
const REACHED: &str = include_str!("../../../crates/cli/tests/programs/reached.txt");
/// The numbers of all calls.
const NUMBERS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
/// `uretprobe` and `uprobe`: the kernel lets them pass by itself (Linux 6.11).
const OF_PROBES: [u32; 2] = [335, 336];
const EPERM: i64 = -1;
const EACCES: i64 = -13;
const ENOSYS: i64 = -38;
/// `inject.c` makes so many calls at least, and tries so much.
const CALLS_MIN: usize = 460;
const ATTEMPTS_MIN: usize = 34;

/// The process that needs no path, whether there is landlock or not.
const WITHOUT_PATHS: &str = "page-http";

fn taken_over(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let boot = MachineBoot {
        script: include_str!("../../guest/taken-over.sh"),
        modules: &[storage::MODULES, &[storage::UAS_MODULE]].concat(),
        client: AttachClient::Farbus,
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    let numbers = std::fs::read_to_string(NUMBERS).map_err(RigError::io(format!("read {NUMBERS}")))?;
    let judged = judge(&report.output, &names_in(&numbers))?;
    let table = lab.log("calls.txt");
    std::fs::write(&table, &judged.table).map_err(RigError::io(format!("write {}", table.display())))?;
    expect(judged.wrong.is_empty(), || format!("{}\n{}", judged.wrong.join("\n"), judged.table))?;
    Ok(format!("{}; table: {}", judged.note, table.display()))
}

/// The names of all calls, by number.
fn names_in(header: &str) -> BTreeMap<u32, &str> {
    let lines = header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
    lines.filter_map(|(name, number)| Some((number.trim().parse().ok()?, name))).collect()
}

/// What the guest's lines say.
struct TakeoverVerdict {
    /// For each process: what reached the kernel, and what each attempt was answered.
    table: String,
    /// What must not have been, a line each.
    wrong: Vec<String>,
    note: String,
}

fn judge(output: &str, names: &BTreeMap<u32, &str>) -> Result<TakeoverVerdict> {
    let fields = |kind: &'static str| {
        output.lines().filter_map(move |line| {
            let words: Vec<&str> = line.strip_prefix(kind)?.strip_prefix(' ')?.split(' ').collect();
            <[&str; 3]>::try_from(words).ok()
        })
    };
    let number = |text: &str| text.parse::<i64>().map_err(|_| RigError::Expectation(format!("'{text}' is no answer")));
    let processes: BTreeSet<&str> = fields("call").map(|[process, ..]| process).collect();
    expect(processes.len() == 3, || format!("three processes were to be tried, not {processes:?}"))?;
    let (mut table, mut wrong, mut notes) = (String::new(), Vec::new(), Vec::new());
    for process in processes {
        let (mut calls, mut reached) = (0, Vec::new());
        for [_, call, answer] in fields("call").filter(|[of, ..]| *of == process) {
            calls += 1;
            if [EPERM, ENOSYS].contains(&number(answer)?) {
                continue;
            }
            let call = u32::try_from(number(call)?).unwrap_or(u32::MAX);
            let name = names.get(&call).copied().unwrap_or("unknown");
            if !OF_PROBES.contains(&call) && !may_reach(name, process != WITHOUT_PATHS) {
                wrong.push(format!("{process}: call {call} ({name}) reaches the kernel, which answers {answer}"));
            }
            reached.push(name);
        }
        let attempts: Vec<[&str; 3]> = fields("attempt").filter(|[of, ..]| *of == process).collect();
        for [_, attempt, answer] in &attempts {
            if ![EPERM, EACCES].contains(&number(answer)?) {
                wrong.push(format!("{process}: {attempt} is answered by {answer}"));
            }
        }
        if calls < CALLS_MIN || attempts.len() < ATTEMPTS_MIN {
            wrong.push(format!("{process}: only {calls} calls and {} attempts were made", attempts.len()));
        }
        // Writing to a string does not fail.
        let _ = writeln!(table, "{process}: {calls} calls, of which reach the kernel: {}", reached.join(" "));
        let _ = writeln!(table, "| attempt | answer |\n|---|---|");
        for [_, attempt, answer] in &attempts {
            let _ = writeln!(table, "| {attempt} | {} |", if *answer == "-13" { "EACCES" } else { "EPERM" });
        }
        notes.push(format!("{process} {} of {calls} calls", reached.len()));
    }
    let note = format!("reach the kernel: {}; no attempt of an intruder succeeds", notes.join(", "));
    Ok(TakeoverVerdict { table, wrong, note })
}

/// Whether the kernel may see this call.
fn may_reach(name: &str, has_paths: bool) -> bool {
    REACHED.lines().any(|line| match line.split_once(' ') {
        Some((listed, "path")) => has_paths && listed == name,
        _ => line == name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guest prints of three processes, of which each has `answer` for call 90 and for one attempt.
    fn output(answer: i64) -> String {
        let mut text = String::new();
        for process in ["share", "attach", WITHOUT_PATHS] {
            for call in 0..470 {
                let answer = if call == 90 { answer } else { EPERM };
                text += &format!("call {process} {call} {answer}\n");
            }
            for attempt in 0..34 {
                let answer = if attempt == 7 { answer } else { EACCES };
                text += &format!("attempt {process} a{attempt} {answer}\n");
            }
        }
        text
    }

    #[test]
    fn a_call_that_is_not_listed_and_reaches_the_kernel_fails_the_case() {
        let names = names_in("#define __NR_read 0\n#define __NR_chmod 90\n");
        assert!(judge(&output(EPERM), &names).unwrap().wrong.is_empty());
        let judged = judge(&output(-14), &names).unwrap();
        assert_eq!(judged.wrong.len(), 6, "{:?}", judged.wrong);
        assert!(judged.wrong[0].contains("call 90 (chmod) reaches the kernel"), "{:?}", judged.wrong);
        assert!(judge("", &names).is_err(), "nothing was tried");
    }

    #[test]
    fn calls_with_paths_are_listed_for_those_alone_who_need_them() {
        assert!(may_reach("openat", true) && !may_reach("openat", false));
        assert!(may_reach("read", false) && !may_reach("chmod", true) && !may_reach("#", true));
    }
}
