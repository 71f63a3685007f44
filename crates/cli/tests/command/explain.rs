//! `farbus explain`, as one types it who has just got a message.

use std::fs::File;
use std::time::Duration;

use crate::harness::{Harness, finish};

/// How long the command may take.
const WITHIN: Duration = Duration::from_secs(10);

#[test]
fn message_that_a_command_has_just_printed_is_explained_from_standard_input() {
    let harness = Harness::new();
    let failed = harness.run(&["attach", "127.0.0.1:1/disk", "--via", "nbd"]);
    assert_eq!(failed.code, Some(5), "{failed:?}");
    let printed = harness.path("printed");
    std::fs::write(&printed, &failed.stderr).unwrap();
    let mut explain = harness.command(&["explain", "-"]);
    explain.stdin(File::open(&printed).unwrap());
    let outcome = finish(explain, WITHIN);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("Connection refused"), "{} of {}", outcome.stdout, failed.stderr);
    assert!(outcome.stdout.contains("about Reach a host"), "{}", outcome.stdout);
}

#[test]
fn words_exit_codes_and_subjects_are_explained_for_people_and_programs() {
    let harness = Harness::new();
    let outcome = harness.run(&["explain", "keeps", "this", "host", "out"]);
    assert!(outcome.code == Some(0) && outcome.stdout.contains("release --keep-out"), "{outcome:?}");
    let outcome = harness.run(&["explain", "5"]);
    assert!(outcome.code == Some(0) && outcome.stdout.starts_with("exit code 5 (network)"), "{outcome:?}");
    let code = harness.json(&["explain", "refused", "--json"]);
    assert_eq!(code["exit_code"], 3, "{code}");
    let of_swap = harness.json(&["explain", "swap", "--json"]);
    let of_swap = of_swap.as_array().unwrap();
    assert!(of_swap.len() > 20 && of_swap.iter().all(|one| one["subject"] == "Swap"), "{of_swap:?}");
    let known = harness.json(&["explain", "--json"]);
    assert!(known["subjects"].as_array().is_some_and(|all| all.len() > 20), "{known}");
}

#[test]
fn message_of_another_program_is_said_to_be_unknown() {
    let harness = Harness::new();
    let outcome = harness.run(&["explain", "xylophone quartet rehearsal"]);
    assert_eq!(outcome.code, Some(4), "{outcome:?}");
    assert!(outcome.stderr.contains("no message of farbus is like"), "{outcome:?}");
    assert!(outcome.stderr.contains("'farbus explain' lists the subjects"), "{outcome:?}");
}
