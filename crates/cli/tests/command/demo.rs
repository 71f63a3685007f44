//! `farbus demo`: it works as root and as `nobody`, and leaves nothing behind, whatever happens.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::Signal;

use super::harness::{Harness, Outcome, PATIENCE, Running, copy_program, finish, is_mounted};

/// A user without any right of its own.
const NOBODY: u32 = 65534;

fn assert_nothing_is_left(harness: &Harness) {
    let left: Vec<_> = fs::read_dir(harness.path("tmp")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!is_mounted(&harness.path("tmp")));
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        assert!(!Path::new(&file).starts_with(harness.path("tmp")), "{entry:?} {file}");
    }
}

fn assert_it_told_its_story(outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for part in ["is on offer at 127.0.0.1:", "0525:a4a5", "every byte is right", "are in the image", "Next,"] {
        assert!(outcome.stdout.contains(part), "{part}: {outcome:?}");
    }
    assert!(outcome.stderr.is_empty(), "{outcome:?}");
}

#[test]
fn the_demo_works_and_leaves_nothing() {
    let harness = Harness::new();
    let outcome = harness.run(&["demo"]);
    assert_it_told_its_story(&outcome);
    assert_nothing_is_left(&harness);
}

#[test]
fn the_demo_is_one_json_object_for_programs() {
    let harness = Harness::new();
    let answer = harness.json(&["demo", "--json"]);
    let steps: Vec<&str> =
        answer["steps"].as_array().unwrap().iter().filter_map(|step| step["step"].as_str()).collect();
    assert!(answer["done"] == "demo" && steps.contains(&"attach") && steps.ends_with(&["check"]), "{answer}");
    assert_nothing_is_left(&harness);
}

#[test]
fn the_demo_works_without_any_rights() {
    if !rustix::process::geteuid().is_root() {
        // The test above has already covered this user.
        return;
    }
    let harness = Harness::new();
    // The build folder may be one that this user cannot read.
    let program = harness.path("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &program);
    std::os::unix::fs::chown(harness.path("tmp"), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = harness.command_of(&program, &["demo"]);
    command.uid(NOBODY).gid(NOBODY);
    let outcome = finish(command, PATIENCE);
    assert_it_told_its_story(&outcome);
    assert!(outcome.stdout.contains("Done in a lesser way"), "{outcome:?}");
    assert_nothing_is_left(&harness);
}

#[test]
fn ctrl_c_in_the_demo_leaves_nothing_at_any_step() {
    for step in ["make ", "attach ", "measure ", "show ", "mount ", "read "] {
        let harness = Harness::new();
        let mut demo = Running::start(harness.command(&["demo"]));
        if !demo.has_line_before_its_end(step) {
            // This machine does not have that step.
            assert_eq!(demo.wait_for_end(PATIENCE), Some(0), "{}", demo.log());
            continue;
        }
        demo.signal(Signal::INT);
        // After the last step's line it may be too late to stop.
        let code = demo.wait_for_shell_code(PATIENCE);
        println!("{step}: {code} {}", demo.log());
        assert!(code == 130 || (code == 0 && step == "read "), "{step}: {code} {}", demo.log());
        assert_nothing_is_left(&harness);
    }
}
