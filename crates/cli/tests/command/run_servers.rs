//! Servers beside `farbus run`: those that a program leaves behind, and those that run outside already.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::exporters::as_another;
use super::harness::{Harness, Outcome, PATIENCE, finish, has, has_program, wait_until};
use super::run::{Connection, Lab, can_run, ordinary, run, share, wait_until_free};

/// A program that makes a server as `daemon(3)` does: in a session of its own, and no child of the program's.
const LEAVES_A_SERVER: [&str; 3] = ["sh", "-c", "setsid -f sleep 4242 < /dev/null > /dev/null 2>&1; exit 7"];

/// The process that a line of the command names, after these words.
fn named(ended: &Outcome, words: &str) -> Pid {
    let (_, rest) = ended.stderr.split_once(words).unwrap_or_else(|| panic!("no '{words}': {ended:?}"));
    let (name, rest) = rest.split_once(" (").unwrap();
    assert_eq!(name.trim_start(), "sleep", "{ended:?}");
    Pid::from_raw(rest.split_once(')').unwrap().0.parse().unwrap()).unwrap()
}

fn server_is_ended_and_named(connection: Connection) {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["zero"]);
    let ended = lab.run("zero", &LEAVES_A_SERVER);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    let server = named(&ended, "ended what the program left running:");
    assert!(test_kill_process(server).is_err(), "it is no more: {ended:?}");
    assert!(ended.stderr.contains("--keep-servers"), "{ended:?}");
}

#[test]
fn server_that_a_program_leaves_is_ended_and_named() {
    server_is_ended_and_named(Connection::Plain);
}

#[test]
fn server_that_a_program_leaves_is_ended_and_named_between_paired_hosts() {
    server_is_ended_and_named(Connection::Paired);
}

#[test]
fn server_that_a_program_leaves_goes_on_if_that_is_wanted_and_its_device_is_free() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let words = ["run", "--keep-servers", &share.target("zero"), "--"];
    let ended = finish(ordinary(&harness, &[&words[..], &LEAVES_A_SERVER].concat()), PATIENCE);
    assert_eq!(ended.code, Some(7), "{ended:?}");
    let server = named(&ended, "left running, without its devices:");
    wait_until_free(&harness, &share);
    assert!(test_kill_process(server).is_ok(), "it runs: {ended:?}");
    kill_process(server, Signal::TERM).unwrap();
}

#[test]
fn program_that_leaves_nothing_hears_nothing_of_it() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let ended = run(&harness, &share.target("zero"), &["sh", "-c", "sleep 0.05 & env; exit 0"]);
    assert!(ended.code == Some(0) && ended.stdout.contains("ADB_LIBUSB=1"), "{ended:?}");
    assert!(!ended.stderr.contains("farbus:"), "{ended:?}");
}

#[test]
fn adbs_server_ends_with_its_run_and_the_next_run_has_one_of_its_own() {
    if !can_run() || !has("adb", has_program("adb")) {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    for _ in 0..2 {
        let mut command = ordinary(&harness, &["run", &share.target("zero"), "--", "adb", "devices"]);
        command.env("TMPDIR", harness.path("of-nobody"));
        let ended = finish(command, PATIENCE);
        assert!(ended.code == Some(0) && ended.stdout.contains("List of devices"), "{ended:?}");
        assert!(ended.stderr.contains("daemon started successfully"), "{ended:?}");
        assert!(ended.stderr.contains("ended what the program left running: adb ("), "{ended:?}");
    }
}

/// The interface of the keyboard, and others in its place.
const OF_KEYBOARD: [u8; 8] = [9, 4, 0, 0, 1, 3, 1, 1];
const OF_ADB: [u8; 8] = [9, 4, 0, 0, 1, 0xff, 0x42, 1];
const OF_CARD_READER: [u8; 8] = [9, 4, 0, 0, 1, 0x0b, 0, 0];

#[test]
fn server_that_runs_outside_is_named_before_the_program_starts() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["keyboard"]);
    let run = |interface| {
        let target = format!("{}/keyboard", as_another(&share, [OF_KEYBOARD, interface], None));
        let ended = finish(ordinary(&harness, &["run", "--grace", "0", &target, "--", "true"]), PATIENCE);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        wait_until(PATIENCE, "the device is free", || {
            harness.json(&["list", &share.address, "--json"])[0]["state"] == "available"
        });
        ended.stderr
    };
    assert!(!run(OF_ADB).contains("runs already"), "nobody listens");
    // Each test has ports of its own.
    let _adb = TcpListener::bind("127.0.0.1:5037").unwrap();
    let log = run(OF_ADB);
    assert!(log.contains("adb runs already") && log.contains("adb kill-server"), "{log}");
    let folder = harness.path("gnupg");
    std::fs::create_dir(&folder).unwrap();
    let _daemon = UnixListener::bind(folder.join("S.scdaemon")).unwrap();
    let log = run(OF_CARD_READER);
    assert!(log.contains("scdaemon runs already") && log.contains("gpgconf --kill scdaemon"), "{log}");
    assert!(!run(OF_KEYBOARD).contains("runs already"), "no keyboard is used by way of a server");
}
