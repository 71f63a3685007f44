//! `farbus conform`: our own exporter and importers pass, wrong ones fail, and exit codes tell which.

use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish};

/// The checks of this result.
fn with_result<'a>(report: &'a Value, result: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["result"] == result).map(|check| check["id"].as_str().unwrap()).collect()
}

fn conform(harness: &Harness, words: &[&str]) -> (Outcome, Value) {
    let outcome = harness.run(&[&["conform"], words, &["--json"]].concat());
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome, report)
}

#[test]
fn shared_source_sink_disk_and_keyboard_fail_no_check() {
    let harness = Harness::new();
    let image = harness.image("disk.img", 8 << 20);
    let share = harness.share(&["zero", &format!("disk:{}", image.display()), "keyboard"]);
    let mut passed = Vec::new();
    for bus_id in ["1-1", "1-2", "1-3"] {
        let (outcome, report) = conform(&harness, &["exporter", &share.address, "--busid", bus_id, "--timeout", "30"]);
        assert_eq!(outcome.code, Some(0), "{bus_id}: {outcome:?}");
        assert_eq!(with_result(&report, "fail"), [] as [&str; 0], "{bus_id}");
        assert_eq!(with_result(&report, "skipped"), [] as [&str; 0], "{bus_id}");
        assert_eq!(report["conforms"], true);
        passed.extend(with_result(&report, "pass").into_iter().map(str::to_owned));
    }
    let (_, list) = conform(&harness, &["exporter", "--list"]);
    let all = list.as_array().unwrap().iter().map(|check| check["id"].as_str().unwrap());
    let open: Vec<&str> = all.filter(|id| !passed.iter().any(|passed| passed == id)).collect();
    assert_eq!(open, [] as [&str; 0], "each check passes with one of the devices");
}

#[test]
fn importer_by_nbd_passes_and_one_that_never_attaches_is_skipped() {
    let harness = Harness::new();
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let socket = harness.path("nbd.sock");
    let with = format!("{farbus} attach {{address}}/{{busid}} --via nbd --socket {}", socket.display());
    let listen = ["importer", "--listen", "127.0.0.1:0", "--timeout", "30", "--work", "1"];
    let (outcome, report) = conform(&harness, &[&listen[..], &["--with", &with]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(with_result(&report, "fail"), [] as [&str; 0]);
    let passed = with_result(&report, "pass");
    for id in ["configures", "answers-in-pieces", "other-device", "answer-too-long", "half-answer", "device-id"] {
        assert!(passed.contains(&id), "{id}: {report:#}");
    }
    let listen = ["importer", "--listen", "127.0.0.1:0", "--timeout", "1", "--with", "true", "--only", "configures"];
    let (outcome, report) = conform(&harness, &listen);
    assert_eq!((outcome.code, with_result(&report, "skipped")), (Some(0), vec!["configures"]), "{outcome:?}");
}

#[test]
fn wrong_exporters_end_with_1_and_name_the_check() {
    let harness = Harness::new();
    // The exporters that the importer checks play are wrong on purpose; 1-1 is right.
    let kit = Running::start(harness.command(&["conform", "importer", "--listen", "127.0.0.1:0"]));
    let line = kit.wait_for_line("listening on ");
    let address = line.split(';').next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let only = ["--only", "control-short", "--only", "import-record", "--timeout", "2"];
    let run = |bus_id| conform(&harness, &[&["exporter", &address, "--busid", bus_id], &only[..]].concat());
    let (outcome, report) = run("1-1");
    assert_eq!((outcome.code, with_result(&report, "pass").len()), (Some(0), 2), "{outcome:?}");
    for bus_id in ["1-5", "1-6", "1-9"] {
        let (outcome, report) = run(bus_id);
        assert_eq!(outcome.code, Some(1), "{bus_id}: {outcome:?}");
        assert!(!with_result(&report, "fail").is_empty() && report["conforms"] == false, "{bus_id}: {report:#}");
        assert!(outcome.stderr.contains("of the claims that bind are false for this exporter"), "{outcome:?}");
    }
}

#[test]
fn what_could_not_run_ends_with_2() {
    let harness = Harness::new();
    for words in [
        &["conform", "exporter", "127.0.0.1:1"][..],
        &["conform", "exporter", "127.0.0.1:1", "--only", "no-such-check"],
        &["conform", "importer", "--list", "--only", "no-such-check"],
        &["conform", "importer", "--listen", "192.0.2.1:3240"],
    ] {
        let outcome = finish(harness.command(words), PATIENCE);
        assert_eq!(outcome.code, Some(2), "{words:?}: {outcome:?}");
        assert!(outcome.stderr.starts_with("farbus: could not run: "), "{words:?}: {outcome:?}");
    }
}

#[test]
fn table_has_a_line_for_each_check_and_counts() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    let words = ["conform", "exporter", &share.address, "--only", "list-framing", "--only", "iso-in"];
    let outcome = harness.run(&words);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with("CHECK") && lines[0].contains("SEEN"), "{outcome:?}");
    assert!(lines[1].starts_with("list-framing") && lines[1].contains("pass"), "{outcome:?}");
    assert!(lines[2].starts_with("iso-in") && lines[2].contains("not applicable"), "{outcome:?}");
    assert_eq!(lines[3], "must: 1 pass, 1 not applicable");
}
