//! A command that a signal ends while it waits says by its end that it has not got what it waited for: a shell goes on
//! neither behind `&&` nor, if it got the signal, too, with its next line. `docs/book/src/reference.md` has the table.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::lease::Lab;
use super::trust::{Host, three};

/// The signals, and how a shell says that a process ended by one.
const SIGNALS: [(Signal, i32); 2] = [(Signal::INT, 130), (Signal::TERM, 143)];

/// Waits until a command says that it waits, on either output.
fn wait_until_it_waits(command: &Running) {
    wait_until(PATIENCE, "it says for what it waits", || {
        command.log().contains("waiting for") || command.has_said("waiting for")
    });
}

#[test]
fn wait_for_a_device_that_is_interrupted_is_no_success() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk", "zero,name=other"]);
    let target = lab.target.as_str();
    desk.ok(&["lease", target]);
    let flashed = harness.path("flashed");
    let touch = ["--", "touch", flashed.to_str().unwrap()];
    let waits: [&[&str]; 7] = [
        &["lease", target],
        &["lease", target, "lab3/other"],
        &["lease", target, "--for", "1m", touch[0], touch[1], touch[2]],
        &["attach", target, "--via", "redir", "--wait"],
        &["run", "--wait", target, touch[0], touch[1], touch[2]],
        &["run", "--lease", target, touch[0], touch[1], touch[2]],
        &["run", "--lease=1m", target, "lab3/other", touch[0], touch[1], touch[2]],
    ];
    for (signal, code) in SIGNALS {
        for words in waits {
            let mut command = rack.start(words);
            wait_until_it_waits(&command);
            command.signal(signal);
            assert_eq!(command.wait_for_shell_code(PATIENCE), code, "{words:?}: {}", command.log());
            // Nothing is caught while `run` waits: nobody has anything to give back.
            if words[..2] != ["run", "--wait"] {
                command.assert_logged("interrupted");
            }
        }
    }
    assert!(!flashed.exists());
    let devices = lab.lab3.json(&["status", "--json"])[0]["devices"].clone();
    assert!(devices.as_array().unwrap().iter().all(|device| device["waiting"].is_null()), "{devices}");
    assert_eq!((&devices[0]["lease"]["host"], &devices[1]["lease"]), (&"desk".into(), &serde_json::Value::Null));
}

/// A script that is a process group of its own, as a terminal starts one.
fn script(host: &Host<'_>, shell: &str, text: &str) -> Running {
    let mut command = host.equip(host.harness.command_of(Path::new(shell), &["-c", text]));
    command.process_group(0);
    Running::start(command)
}

#[test]
fn script_whose_wait_is_interrupted_does_not_flash() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [_, desk, rack] = &hosts;
    let lab = Lab::new(&hosts, &["zero,name=disk"]);
    desk.ok(&["lease", &lab.target]);
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let lease = format!("{farbus} lease {}", lab.target);
    // Only the last has no '&&' and no '-e': bash goes on after an exit code, and not after a signal.
    for text in ["X && echo FLASHED; exit 7", "set -e; X; echo FLASHED", "X; echo FLASHED"] {
        for (signal, _) in SIGNALS {
            let mut shell = script(rack, "bash", &text.replace('X', &lease));
            shell.wait_for_line("waiting for");
            kill_process_group(Pid::from_raw(shell.id() as i32).unwrap(), signal).unwrap();
            let code = shell.wait_for_end(PATIENCE);
            let message = shell.rest();
            assert!(code != Some(0) && !message.contains("FLASHED"), "{text}: {code:?} {message}");
        }
    }
    // The signal is for farbus alone, as a runner of jobs sends it.
    for (signal, code) in SIGNALS {
        let mut shell = script(rack, "sh", &format!("{lease} && echo FLASHED; echo code $?"));
        shell.wait_for_line("waiting for");
        Command::new("pkill").args([&format!("-{}", signal.as_raw()), "-P", &shell.id().to_string()]).status().unwrap();
        assert_eq!(shell.wait_for_line("code"), format!("code {code}"), "{}", shell.log());
        assert_eq!(shell.wait_for_end(PATIENCE), Some(0));
    }
}

#[test]
fn pairing_that_is_interrupted_has_paired_nobody() {
    let harness = Harness::new();
    for (signal, code) in SIGNALS {
        let mut pair = Running::start(harness.command(&["pair", "--listen", "127.0.0.1:0"]));
        pair.wait_for_line("code ");
        pair.signal(signal);
        assert_eq!(pair.wait_for_shell_code(PATIENCE), code);
    }
}

#[test]
fn amount_that_was_asked_for_and_did_not_come_is_no_success() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard", "stream:pattern,size=64x48,rate=20", "--observable"]);
    let (keyboard, stream) = (share.target("keyboard"), share.target("stream"));
    let load = ["--rate", "100", "--buffer", "16", "--execution-us", "100", "--policy=none"];
    let pipe = [["pipe", "--here", "can,traffic=10", "--can", "500000"].as_slice(), &load].concat();
    // What each says once it has begun, and the amount.
    let all: [(&[&str], &str, [&str; 2]); 3] = [
        (&["observe", &keyboard], "Ctrl-C ends", ["--count", "1000"]),
        (&["stream", "read", &stream, "--observe", "--json"], "Ctrl-C ends", ["--count", "1000000"]),
        (&pipe, "pipe 0 in", ["--seconds", "600"]),
    ];
    for (signal, code) in SIGNALS {
        for (words, begun, amount) in all {
            for (words, code) in [(words.to_vec(), 0), ([words, &amount].concat(), code)] {
                let mut command = Running::start(harness.command(&words));
                wait_until(PATIENCE, "it has begun", || command.log().contains(begun) || command.has_said(begun));
                command.signal(signal);
                assert_eq!(command.wait_for_shell_code(PATIENCE), code, "{words:?}: {}", command.log());
            }
        }
    }
}

#[test]
fn served_devices_and_their_ends_are_a_success() {
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    let block = format!("block:{}", image.display());
    for (signal, _) in SIGNALS {
        let mut nbd = Running::start(harness.command(&["nbd", &block]));
        nbd.wait_for_line("nbd+unix");
        nbd.signal(signal);
        assert_eq!(nbd.wait_for_shell_code(PATIENCE), 0, "{}", nbd.log());
        let mut share = harness.share(&["zero"]);
        let mut attach = Running::start(harness.command(&["attach", &share.target("zero"), "--via", "redir"]));
        attach.wait_for_line("Ctrl-C");
        attach.signal(signal);
        assert_eq!(attach.wait_for_shell_code(PATIENCE), 0, "{}", attach.log());
        share.process.signal(signal);
        assert_eq!(share.process.wait_for_shell_code(PATIENCE), 0, "{}", share.process.log());
    }
}
