//! `farbus conform` starts the program `farbus-conform`, and our own exporter and importers pass. What the program does
//! by itself is tested beside it (`crates/conform-cli/tests/program.rs`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use super::harness::{Harness, Outcome, copy_program, write_script};

/// Builds the program where the tests look for it.
const BUILD: &str = "cargo build --workspace --bin farbus-conform";

/// Checks that `farbus conform` starts the kit of these sources. Cargo builds it with the tests of the workspace, and
/// not with those of this package alone: an earlier one would be tested in its place.
pub fn expect_program() {
    let program = Path::new(env!("CARGO_BIN_EXE_farbus")).with_file_name("farbus-conform");
    let built = changed(&program).unwrap_or_else(|_| panic!("{} is not there; type: {BUILD}", program.display()));
    for kit in ["conform", "conform-cli"] {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(kit).join("src");
        let (newest, source) = newest(&sources).unwrap().expect("the kit has sources");
        let is_older = newest <= built;
        assert!(is_older, "{} is older than {}; type: {BUILD}", program.display(), source.display());
    }
}

fn changed(path: &Path) -> io::Result<SystemTime> {
    path.metadata()?.modified()
}

/// The file below a folder that was changed last, and when.
fn newest(folder: &Path) -> io::Result<Option<(SystemTime, PathBuf)>> {
    let mut found = None;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let this = if path.is_dir() { newest(&path)? } else { Some((changed(&path)?, path)) };
        found = found.max(this);
    }
    Ok(found)
}

/// The checks of this result.
fn with_result<'a>(report: &'a Value, result: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["result"] == result).map(|check| check["id"].as_str().unwrap()).collect()
}

fn conform(harness: &Harness, words: &[&str]) -> (Outcome, Value) {
    expect_program();
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
fn importer_by_nbd_passes() {
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
}

#[test]
fn conform_program_beside_farbus_or_in_path_gets_all_arguments_and_sets_exit_code() {
    let harness = Harness::new();
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| {
        let folder = harness.path(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    let farbus = here.join("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &farbus);
    let run = |words: &[&str]| {
        let output = harness.command_of(&farbus, words).env("PATH", &elsewhere).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for words in [&["conform"][..], &["conform", "--help"], &["conform", "exporter", "lab3"]] {
        let (code, printed, errors) = run(words);
        let why = format!("farbus: could not run: farbus-conform is neither beside {} nor in PATH\n", farbus.display());
        assert_eq!((code, printed.as_str()), (Some(2), ""), "{words:?}: {errors}");
        assert!(
            errors.starts_with(&why) && errors.contains("cargo install --path crates/conform-cli"),
            "{words:?}: {errors}"
        );
    }
    let (code, printed, _) = run(&["conform", "exporter", "lab3", "--json"]);
    let failure: Value = serde_json::from_str(&printed).unwrap();
    let message = failure["failure"]["message"].as_str().unwrap();
    assert!(code == Some(2) && message.starts_with("could not run: farbus-conform is neither beside "), "{printed}");

    let tells = "#!/bin/sh\nfor word do printf '[%s]' \"$word\"; done\nexit 7\n";
    write_script(&elsewhere.join("farbus-conform"), tells);
    for words in [
        &["conform"][..],
        &["conform", "--help"],
        &["conform", "-V"],
        &["conform", "exporter", "--help"],
        &["conform", "help", "session"],
        &["conform", "importer", "--with", "a b", "--json", "--work", "2"],
    ] {
        let expected: String = words[1..].iter().map(|word| format!("[{word}]")).collect();
        assert_eq!(run(words), (Some(7), expected, String::new()), "{words:?}");
    }
    write_script(&here.join("farbus-conform"), "#!/bin/sh\nexit 8\n");
    assert_eq!(run(&["conform", "exporter", "--list"]).0, Some(8), "the one beside farbus is preferred");

    // clap's fish script completes options only.
    for shell in ["bash", "zsh"] {
        let (_, script, _) = run(&["completions", shell]);
        assert!(["conform", "exporter", "importer"].iter().all(|name| script.contains(name)), "{shell}");
    }
    let (_, help, _) = run(&["--help"]);
    assert!(help.contains("\n  conform "), "{help}");
}
