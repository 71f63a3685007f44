//! `farbus lease DEVICE -- PROGRAM` and `farbus run --lease`: a lease that lasts as long as a program, and what becomes
//! of a program whose lease ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::lease::Lab;
use super::run::{can_run, ordinary};
use super::trust::{Host, three};

/// A shell that says `ready`, and then runs this.
fn shell(text: &str) -> [&str; 4] {
    ["--", "sh", "-c", text]
}

fn lease_of(lab: &Lab<'_>, device: &str) -> Value {
    let devices = lab.lab3.json(&["status", "--json"])[0]["devices"].clone();
    let found = devices.as_array().unwrap().iter().find(|found| found["name"] == device).unwrap();
    found["lease"].clone()
}

#[test]
fn lease_lasts_as_long_as_the_program_however_that_ends() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk", "zero,name=other"]);
    let target = lab.target.as_str();
    let ends = [("exit 0", 0), ("exit 9", 9), ("kill -KILL $$", 137), ("kill -TERM $$", 143)];
    for (end, code) in ends {
        let mut command = desk
            .start(&[&["lease", target, "--for", "1m"], &shell(&format!("echo ready; read x; {end}"))[..]].concat());
        // Standard input is empty: it goes on at once.
        command.wait_for_line("ready");
        assert_eq!(command.wait_for_shell_code(PATIENCE), code, "{}", command.log());
        assert!(lab.lease().is_null(), "{end}: {}", lab.lease());
    }
    for (program, code) in [("/nowhere/flash", 127), ("/etc/passwd", 126)] {
        let failed = desk.run(&["lease", target, "--", program]);
        assert!(failed.code == Some(code) && failed.stderr.contains("cannot run"), "{failed:?}");
        assert!(lab.lease().is_null());
    }
    // It has the lease, and knows of what; another host waits until it has ended.
    let gate = harness.path("gate");
    let text = format!("echo ready $FARBUS_LEASED; until [ -e {} ]; do sleep 0.05; done", gate.display());
    let mut both = desk.start(&[&["lease", target, "lab3/other"], &shell(&text)[..]].concat());
    let message = both.wait_for_line("ready");
    assert!(message.contains("lab3:3240/disk") && message.contains("lab3:3240/other"), "{message}");
    let next = rack.start(&["lease", target, "--for", "1m"]);
    next.wait_for_line("waiting for");
    assert_eq!([lease_of(&lab, "disk")["host"].clone(), lease_of(&lab, "other")["host"].clone()], ["desk", "desk"]);
    fs::write(&gate, "").unwrap();
    assert_eq!(both.wait_for_end(PATIENCE), Some(0), "{}", both.log());
    next.wait_for_line("is leased for");
    assert!(lease_of(&lab, "other").is_null());
    // What was leased before is not given back.
    let kept = rack.run(&["lease", target, "--", "true"]);
    assert!(kept.code == Some(0) && kept.stderr.contains("was before"), "{kept:?}");
    assert_eq!(lab.lease()["host"], "rack");
}

#[test]
fn signals_reach_the_program_of_a_lease_and_then_it_is_given_back() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, _] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        // One tidies up when it hears it, one dies of it.
        for (trap, code) in
            [(format!("trap 'echo heard {name}; exit 5' {name};"), 5), (String::new(), 128 + signal.as_raw())]
        {
            let text = format!("{trap} echo ready; while :; do sleep 0.05; done");
            let mut command = desk.start(&[&["lease", &lab.target], &shell(&text)[..]].concat());
            command.wait_for_line("ready");
            assert_eq!(lab.lease()["host"], "desk");
            command.signal(signal);
            assert_eq!(command.wait_for_shell_code(PATIENCE), code, "{name}: {}", command.log());
            assert!(lab.lease().is_null(), "{name}");
        }
    }
}

#[test]
fn lease_is_extended_while_its_program_runs_and_one_that_ends_before_it_is_no_success() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    let target = lab.target.as_str();
    let (gate, number) = (harness.path("gate"), |lease: &Value| lease["number"].as_u64());
    let text = format!("echo ready; until [ -e {} ]; do sleep 0.05; done", gate.display());
    let words = [&["lease", target, "--for", "4s"], &shell(&text)[..]].concat();
    let mut command = desk.start(&words);
    command.wait_for_line("ready");
    let first = lab.lease();
    wait_until(PATIENCE, "it has been held for longer than it was asked for", || {
        lab.lease()["since_s"].as_f64() > Some(6.0)
    });
    assert_eq!(number(&lab.lease()), number(&first), "it is the same lease");
    // Another host waits: it is not extended any more, and the program goes on without it.
    let mut next = rack.start(&["lease", target, "--for", "1m"]);
    next.wait_for_line("is leased for");
    command.assert_logged("the lease of lab3/disk is over");
    fs::write(&gate, "").unwrap();
    assert_eq!(command.wait_for_end(PATIENCE), Some(3), "{}", command.log());
    command.assert_logged("was over before");
    assert_eq!(next.wait_for_end(PATIENCE), Some(0));
    assert_eq!(lab.lease()["host"], "rack", "the next host's lease is left alone");
    // The owner takes it back: the exit code of a program that failed is its own.
    lab3.ok(&["release", "disk"]);
    fs::remove_file(&gate).unwrap();
    let text = format!("{text}; exit 9");
    let words = [&["lease", target, "--for", "1h"], &shell(&text)[..]].concat();
    let mut command = desk.start(&words);
    command.wait_for_line("ready");
    lab3.ok(&["release", "disk"]);
    fs::write(&gate, "").unwrap();
    assert_eq!(command.wait_for_end(PATIENCE), Some(9), "{}", command.log());
}

/// `farbus` as an ordinary user on this host, whose files that user has.
fn ordinary_at(host: &Host<'_>, arguments: &[&str]) -> Running {
    let state = host.harness.path(host.name);
    give_to_nobody(&state);
    let run = host.harness.path(&format!("run-{}", host.name));
    fs::create_dir_all(&run).unwrap();
    give_to_nobody(&run);
    Running::start(host.equip(ordinary(host.harness, arguments)))
}

fn give_to_nobody(folder: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let inside = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = inside.chain([folder.to_owned()]).collect();
    for path in all {
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        if path.is_dir() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

/// Holds the device open, and says what becomes of it.
const HOLDS: &str = "exec 3<>/dev/bus/usb/001/002; echo ready; while [ -e /dev/bus/usb/001/002 ]; do sleep 0.05; done; \
    echo gone; exec 3<&-; sleep 3; ls /dev/bus/usb/001; echo done";

#[test]
fn program_whose_lease_has_ended_has_lost_the_device_for_good() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, _] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    let target = lab.target.as_str();
    let ends: [(&[&str], &str); 2] =
        [(&["lease", target, "--for", "5s"], "lease expired"), (&["lease", target], "released by its owner")];
    for (words, why) in ends {
        give_back_files(desk);
        desk.ok(words);
        let mut program = ordinary_at(desk, &[&["run", target], &shell(HOLDS)[..]].concat());
        program.wait_for_line("ready");
        if why != "lease expired" {
            lab3.ok(&["release", "disk"]);
        }
        program.wait_for_line("gone");
        // In this time it would have been found again, as it was before: nobody else wants it.
        let listed = program.wait_for_line("00");
        assert_eq!(listed, "001", "the root hub is what is left");
        program.wait_for_line("done");
        assert_eq!(program.wait_for_end(PATIENCE), Some(3), "{}", program.log());
        program.assert_logged(why);
        let log = program.log();
        assert!(!log.contains("looked for"), "{log}");
        let device = lab3.json(&["status", "--json"])[0]["devices"][0].clone();
        assert!(device["state"] == "available" && device["lease"].is_null(), "{device}");
    }
}

/// Gives the host's folders back to root, so that the harness can remove them.
fn give_back_files(host: &Host<'_>) {
    if rustix::process::geteuid().is_root() {
        for folder in [host.harness.path(host.name), host.harness.path(&format!("run-{}", host.name))] {
            let inside = fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
            inside
                .chain(Some(folder.clone()).filter(|folder| folder.exists()))
                .for_each(|path| std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap());
        }
    }
}

#[test]
fn run_leases_or_waits_first_and_gives_back_after() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    let target = lab.target.as_str();
    let device = || lab3.json(&["status", "--json"])[0]["devices"][0].clone();
    for option in ["--lease=1m", "--lease", "--wait"] {
        rack.ok(&["lease", target]);
        let gate = harness.path("gate");
        let text = format!("lsusb; echo ready; until [ -e {} ]; do sleep 0.05; done; exit 6", gate.display());
        let mut program = ordinary_at(desk, &[&["run", option, target], &shell(&text)[..]].concat());
        program.assert_logged("waiting for lab3/disk");
        program.assert_logged("leased to rack");
        rack.ok(&["lease", "release", target]);
        assert!(program.wait_for_line("0525").contains("a4a0"), "it sees it");
        program.wait_for_line("ready");
        let leased = if option == "--wait" { Value::Null } else { json!("desk") };
        assert_eq!(device()["lease"]["host"], leased, "{option}");
        fs::write(&gate, "").unwrap();
        assert_eq!(program.wait_for_end(PATIENCE), Some(6), "{option}: {}", program.log());
        wait_until(PATIENCE, "it is free", || device()["state"] == "available" && device()["lease"].is_null());
        fs::remove_file(&gate).unwrap();
    }
    let wrong = desk.run(&["run", "--lease=soon", target, "--", "true"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("span of time"), "{wrong:?}");
}
