//! What a lab sees while it runs: `farbus events`, `farbus audit`, `farbus doctor`, `farbus status --watch`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use farbus::client;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, has_fuse, wait_until};
use super::page_tokens::make;

fn events(harness: &Harness, arguments: &[&str]) -> Vec<Value> {
    let outcome = harness.run(&[&["events", "--json", "--no-follow"], arguments].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn words(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["event"].as_str()).collect()
}

#[test]
fn events_show_who_used_what_and_how_it_ended_as_it_happens() {
    let harness = Harness::new();
    let share = harness.share(&["zero", "keyboard"]);
    let follows = Running::start(harness.command(&["events", "--device", "zero"]));
    follows.wait_for_line("shared zero");
    let used = client::open(&share.library_target("zero")).unwrap();
    follows.wait_for_line("used zero by 127.0.0.1:");
    let refused = harness.run(&["attach", &share.target("zero"), "--via", "fuse"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    follows.wait_for_line("refused zero by ");
    drop(used);
    follows.wait_for_line("released zero by 127.0.0.1:");
    follows.signal(Signal::INT);
    let mut follows = follows;
    assert_eq!(follows.wait_for_end(PATIENCE), Some(0));

    let of_zero = events(&harness, &["--device", "zero", "--lines", "100"]);
    assert_eq!(words(&of_zero), ["shared", "used", "refused", "released"]);
    assert_eq!(of_zero[3]["how"], "detached");
    assert!(of_zero.iter().all(|event| event["pid"].is_u64() && event["at"].is_string()), "{of_zero:?}");
    assert_eq!(words(&events(&harness, &["--lines", "1"])), ["released"]);
    assert_eq!(events(&harness, &["--device", "tape"]), Vec::<Value>::new());
}

#[test]
fn what_follows_events_or_the_audit_log_ends_when_nobody_reads_it_any_more() {
    let harness = Harness::new();
    // The audit log lies beside what has to be kept; without that there is none.
    make(&harness, &["--scope", "read"]);
    let share = harness.share(&["keyboard", "--observable"]);
    let observer = Running::start(harness.command(&["observe", &share.target("keyboard")]));
    observer.wait_for_line("is observed");
    for follower in [&["events"][..], &["audit", "--follow"]] {
        let mut command = harness.command(follower);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut reader = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(!line.is_empty() && process.try_wait().unwrap().is_none(), "{follower:?}: {line}");
        drop(reader);
        let mut end = None;
        wait_until(PATIENCE, "it has ended", || {
            end = process.try_wait().unwrap();
            end.is_some()
        });
        assert_eq!(end.unwrap().code(), Some(0), "{follower:?}");
    }
}

#[test]
fn events_show_an_attachment_its_lost_link_and_its_end() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let share = harness.share(&[&format!("disk:{}", harness.image("image", 1 << 20).display())]);
    let follows = Running::start(harness.command(&["events"]));
    follows.wait_for_line("shared disk");
    let at = harness.path("at");
    let arguments = ["attach", &share.target("disk"), "--via", "fuse", "--grace", "30", "--at", at.to_str().unwrap()];
    let mut attach = Running::start(harness.command(&arguments));
    let attached = follows.wait_for_line(&format!("attached {}", share.target("disk")));
    assert!(attached.contains("disk.img"), "where it appears: {attached}");
    let mut share = share;
    share.process.kill();
    follows.wait_for_line("link lost with ");
    attach.signal(Signal::INT);
    attach.wait_for_end(PATIENCE);
    follows.wait_for_line("ended (process ");
}

#[test]
fn audit_shows_uses_and_refusals_of_one_host_and_follows() {
    let harness = Harness::new();
    // A key makes the folder in which the log is kept.
    assert_eq!(harness.run(&["id"]).code, Some(0));
    let share = harness.share(&["zero", "keyboard"]);
    let follows = Running::start(harness.command(&["audit", "--follow", "--device", "zero"]));
    let used = client::open(&share.library_target("zero")).unwrap();
    follows.wait_for_line("ok  attach  zero  127.0.0.1:");
    assert!(client::open(&share.library_target("zero")).is_err());
    follows.wait_for_line("refused  attach  zero  127.0.0.1:");
    drop(used);
    follows.wait_for_line("ok  detach  zero  127.0.0.1:");

    let lines = |arguments: &[&str]| {
        let outcome = harness.run(&[&["audit", "--json"], arguments].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let events = outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
        events.collect::<Vec<Value>>()
    };
    wait_until(PATIENCE, "all lines are there", || lines(&[]).len() >= 3);
    assert_eq!(words(&lines(&["--device", "zero"])), ["attach", "attach", "detach"]);
    assert_eq!(lines(&["--refused"]).len(), 1);
    assert_eq!(lines(&["--lines", "1"]).len(), 1);
    assert_eq!((lines(&["--host", "127.0.0.1"]).len(), lines(&["--host", "lab9"]).len()), (3, 0));
    assert_eq!(lines(&["--grants"]), Vec::<Value>::new());
    let nothing = harness.run(&["audit", "--host", "lab9"]);
    assert!(nothing.code == Some(0) && nothing.stdout.contains("no such line"), "{nothing:?}");
}

#[test]
fn doctor_says_what_this_machine_lacks_and_what_to_type() {
    let harness = Harness::new();
    let lines = harness.json(&["doctor", "--json"]);
    let lines = lines.as_array().unwrap();
    let of = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    for line in lines {
        assert_eq!(line["next"].is_string(), line["state"] != "ok", "{line}");
    }
    assert_eq!(of("daemon")["state"], "missing");
    assert_eq!(of("pairing")["state"], "missing");
    assert!(of("pairing")["next"].as_str().unwrap().contains("farbus pair"));

    let required = harness.run(&["doctor", "--require", "daemon,pairing"]);
    assert_eq!(required.code, Some(1), "{required:?}");
    assert!(required.stderr.contains("missing on this machine: pairing, daemon"), "{required:?}");
    assert!(required.stdout.contains("pairing: type: farbus pair"), "{required:?}");
    assert_eq!(harness.run(&["doctor", "--require", "clock"]).code, Some(0));
    assert_eq!(harness.run(&["doctor", "--require", "luck"]).code, Some(2));
    let share = harness.share(&["zero"]);
    let path = harness.run(&["doctor", &share.address]);
    assert!(path.code == Some(0) && path.stdout.contains("large packets reach"), "{path:?}");
    drop(share.process);
    assert_eq!(harness.run(&["doctor", &share.address]).code, Some(5));
}

#[test]
fn live_table_needs_a_terminal_and_names_what_programs_read() {
    let harness = Harness::new();
    let outcome = harness.run(&["status", "--watch"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("farbus status --json"), "{outcome:?}");
}
