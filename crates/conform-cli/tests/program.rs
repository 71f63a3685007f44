//! The program `farbus-conform`: what could not run, wrong exporters, importers that never come, tables, completions
//! and manual pages. farbus's own exporter and importers are held against the kit in the tests of its command
//! (`crates/cli/tests/command/conform.rs`, `conform_session.rs`).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// The limit for anything that ends by itself, on a machine that is busy compiling.
const PATIENCE: Duration = Duration::from_secs(120);

/// The exit code and the output of a run.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Marked as the tests of `farbus` mark what they start: `cargo xtask test` finds what outlives its test.
fn program(words: &[&str]) -> Command {
    let mark = std::env::temp_dir().join(format!("farbus-command-{}-kit/", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_farbus-conform"));
    command.args(words).env("FARBUS_TEST_FOLDER", mark).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
fn run(words: &[&str]) -> Outcome {
    let mut command = program(words);
    let (to_us, outcome) = channel();
    thread::spawn(move || to_us.send(command.output()));
    let output = outcome.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{words:?} has not ended")).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs it for programs, and reads what it printed.
fn run_json(words: &[&str]) -> (Outcome, Value) {
    let outcome = run(&[words, &["--json"]].concat());
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome, report)
}

/// The checks of this result.
fn with_result<'a>(report: &'a Value, result: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["result"] == result).map(|check| check["id"].as_str().unwrap()).collect()
}

/// The exporters that the importer checks play: that of 1-1 is right, the others are wrong on purpose.
struct PlayedExporters {
    child: Child,
    /// Read from as long as it prints.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl PlayedExporters {
    fn of(device: &str) -> Self {
        let mut command = program(&["importer", "--listen", "127.0.0.1:0", "--device", device]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next()).map(str::to_owned);
        Self { child, _stdout: stdout, address: address.unwrap_or_else(|| panic!("where does it listen? {line}")) }
    }
}

impl Drop for PlayedExporters {
    fn drop(&mut self) {
        // It ends by itself only once an importer was attached to each.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder of one test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn of(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farbus-conform-test-{}-{test}", std::process::id()));
        // An earlier process with this number may have left it.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_exporters_end_with_1_and_name_the_check() {
    let exporters = PlayedExporters::of("disk");
    let only = ["--only", "control-short", "--only", "import-record", "--timeout", "2"];
    let run = |bus_id| run_json(&[&["exporter", &exporters.address, "--busid", bus_id], &only[..]].concat());
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
fn importer_that_never_attaches_is_skipped() {
    let listen = ["importer", "--listen", "127.0.0.1:0", "--timeout", "1", "--with", "true", "--only", "configures"];
    let (outcome, report) = run_json(&listen);
    assert_eq!((outcome.code, with_result(&report, "skipped")), (Some(0), vec!["configures"]), "{outcome:?}");
}

#[test]
fn what_could_not_run_ends_with_2() {
    for words in [
        &["exporter", "127.0.0.1:1"][..],
        &["session", "127.0.0.1:1"],
        &["exporter", "127.0.0.1:1", "--only", "no-such-check"],
        &["importer", "--list", "--only", "no-such-check"],
        &["importer", "--listen", "192.0.2.1:3240"],
    ] {
        let (outcome, report) = run_json(words);
        assert_eq!(outcome.code, Some(2), "{words:?}: {outcome:?}");
        assert!(outcome.stderr.starts_with("farbus: could not run: "), "{words:?}: {outcome:?}");
        let message = report["failure"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("could not run: "), "{words:?}: {outcome:?}");
        assert_eq!(run(words).stdout, "", "{words:?}: without --json only the error is printed");
    }
}

#[test]
fn table_has_a_line_for_each_check_and_counts() {
    let exporters = PlayedExporters::of("keyboard");
    let only = ["--only", "list-framing", "--only", "iso-in"];
    let outcome = run(&[&["exporter", &exporters.address, "--busid", "1-1"], &only[..]].concat());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with("CHECK") && lines[0].contains("SEEN"), "{outcome:?}");
    assert!(lines[1].starts_with("list-framing") && lines[1].contains("pass"), "{outcome:?}");
    assert!(lines[2].starts_with("iso-in") && lines[2].contains("not applicable"), "{outcome:?}");
    assert_eq!(lines[3], "must: 1 pass, 1 not applicable");
}

#[test]
fn checks_that_are_listed_are_those_that_json_has() {
    for role in ["exporter", "importer", "session"] {
        let (outcome, list) = run_json(&[role, "--list"]);
        assert_eq!(outcome.code, Some(0), "{role}: {outcome:?}");
        let ids: Vec<&str> = list.as_array().unwrap().iter().map(|check| check["id"].as_str().unwrap()).collect();
        assert!(ids.len() > 10, "{role}: {ids:?}");
        let table = run(&[role, "--list"]).stdout;
        let shown: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(ids.iter().all(|id| shown.contains(id)), "{role}: {ids:?}\n{table}");
    }
}

#[test]
fn completions_and_manual_pages_have_each_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).stdout;
        assert!(
            ["farbus-conform", "exporter", "importer", "session"].iter().all(|word| script.contains(word)),
            "{shell}"
        );
    }
    let folder = Folder::of("man");
    let outcome = run(&["man", folder.0.to_str().unwrap()]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut pages: Vec<_> =
        fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    let names = ["-exporter", "-importer", "-session", ""].map(|part| format!("farbus-conform{part}.1"));
    assert_eq!(pages, names);
    let page = fs::read_to_string(folder.0.join("farbus-conform-importer.1")).unwrap();
    assert!(page.contains("farbus conform importer"), "{page}");
}
