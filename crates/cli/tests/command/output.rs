//! What a command prints, and who keeps it open. That no command leaves a process behind that does is checked wherever
//! a test runs one to its end ([`finish`]).

use std::fs::File;
use std::path::Path;

use super::harness::{Harness, PATIENCE, Running, finish, has_fuse};
use super::swap_attached::{Attached, MIB, fill};

/// A shell reads all that `farbus swap` prints, as `x=$(farbus swap … 2>&1)` does, and through a descriptor of its own.
#[test]
fn broker_that_outlives_swap_keeps_no_descriptor_of_it() {
    let here = Harness::new();
    let (first, second) = (Harness::new(), Harness::new());
    let shares = [&first, &second].map(|harness| {
        let image = harness.image("disk.img", 16 * MIB);
        fill(&image);
        harness.share(&[&format!("disk:{}", image.display())])
    });
    let mut attached = Attached::by(&here, &shares[0], "nbd");
    let to = shares[1].target("disk");
    let words = ["-c", "exec \"$@\" 5>&1 6>&2", "sh", env!("CARGO_BIN_EXE_farbus"), "swap", &attached.target];
    let ended = finish(here.command_of(Path::new("/bin/sh"), &[&words[..], &["--to", &to]].concat()), PATIENCE);
    assert!(ended.code == Some(0) && ended.stdout.contains("lies on"), "{ended:?}");
    assert!(attached.process.is_running(), "its broker lives on: the disk is on another host now");
    attached.end();
}

#[test]
fn broker_whose_mount_is_in_use_lets_go_of_the_output_of_its_killed_command() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("disk.img", MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (mut process, file) = harness.attach(&share.target("disk"), &harness.path("at"));
    let open = File::open(file).unwrap();
    process.kill();
    assert!(process.waits_for_closed_output(PATIENCE), "{}", process.log());
    drop(open);
}

#[test]
fn table_on_a_terminal_has_no_bold_letter_with_no_color() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let on_a_terminal = |no_color: &str| {
        let status = format!("{} status", env!("CARGO_BIN_EXE_farbus"));
        let mut script = harness.command_of(Path::new("script"), &["-qec", &status, "/dev/null"]);
        script.env("TERM", "xterm").env("NO_COLOR", no_color);
        let shown = Running::start(script);
        shown.wait_for_line("STATE")
    };
    assert!(on_a_terminal("").contains("\x1b[1m"), "an empty value is no value");
    let plain = on_a_terminal("1");
    assert!(!plain.contains('\x1b'), "{plain:?}");
}
