//! `farbus console`: typed at in a terminal, fed from a file, killed, refused.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, finish, wait_until};
use super::trust::{Host, hosts, pair};

/// Types at a console in a terminal of its own: `sys.argv[1:]` is the command. The port returns what is sent.
const TYPIST: &str = r"
import os, pty, re, select, subprocess, sys, termios, time

ours, theirs = pty.openpty()
before = termios.tcgetattr(theirs)
console = subprocess.Popen(sys.argv[1:], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
seen = b''

def until(part):
    global seen
    end = time.monotonic() + 60
    while part not in seen:
        assert time.monotonic() < end and console.poll() is None, (part, seen)
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 4096)
    at = seen.index(part) + len(part)
    shown, seen = seen[:at], seen[at:]
    return shown

until(b'9600 7E2, RTS/CTS DTR RTS')
until(b'Ctrl-] ? helps')
os.write(ours, b'hello\r')
until(b'hello\r')
# The plug joins DTR to DSR and DCD.
os.write(ours, b'\x1dd\x1di')
until(b'9600 7E2, RTS/CTS RTS')
os.write(ours, b'\x1dd')
until(b'9600 7E2, RTS/CTS DTR RTS')
os.write(ours, b'\x1d\x1d\x1d?\x1dx')
until(b'sends a break')
until(b'no command has the key x')
# Titles and questions are left out, colours and movements stay; Ctrl-C is a byte as any other.
os.write(ours, b'\x03\x1b]0;title\x07\x1b[6n\x1b[c<\x1b[31m\x1b[2Ared\x1b[0m>')
shown = until(b'>')
assert shown.endswith(b'<\x1b[31m\x1b[2Ared\x1b[0m>') and b'title' not in shown and b'6n' not in shown, shown
os.write(ours, b'\x1dq')
end = time.monotonic() + 60
while console.poll() is None:
    assert time.monotonic() < end, seen
    if select.select([ours], [], [], 0.05)[0]:
        seen += os.read(ours, 4096)
assert termios.tcgetattr(theirs) == before, 'the terminal is as it was'
while select.select([ours], [], [], 0.2)[0]:
    seen += os.read(ours, 4096)
assert b'\x1b[0m\x1b[?7h\x1b[?25h' in seen, seen
sys.exit(console.returncode)
";

/// Two paired hosts, of which `lab3` shares a serial port.
fn lab<'h>(harness: &'h Harness) -> (Host<'h>, Host<'h>, Running) {
    let [lab3, desk] = hosts(harness);
    pair(&lab3, &desk);
    let (share, at) = lab3.share(&["serial"]);
    lab3.ok(&["allow", "desk", "serial"]);
    desk.ok(&["list", "lab3", "--address", &at]);
    (lab3, desk, share)
}

fn is_free(desk: &Host<'_>) -> bool {
    let list: Value = desk.json(&["list", "lab3", "--json"]);
    list["devices"]
        .as_array()
        .or(list.as_array())
        .is_some_and(|all| all.iter().all(|device| device["state"] == "available"))
}

#[test]
fn console_of_a_paired_host_is_typed_at_in_a_terminal_and_leaves_it_as_it_was() {
    let harness = Harness::new();
    let (_lab3, desk, _share) = lab(&harness);
    let (script, log) = (harness.path("typist.py"), harness.path("boot.log"));
    std::fs::write(&script, TYPIST).unwrap();
    let words = ["console", "lab3/serial", "--rate", "9600", "--format", "7e2", "--flow", "rtscts", "--log"];
    let console = desk.command(&words);
    let mut command = desk.equip(Command::new("/usr/bin/python3"));
    command.arg(&script).arg(console.get_program()).args(console.get_args()).arg(&log);
    let ended = finish(command, PATIENCE);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(logged.starts_with("hello\r") && logged.ends_with("<\x1b[31m\x1b[2Ared\x1b[0m>"), "{logged:?}");
    wait_until(PATIENCE, "the device is given back", || is_free(&desk));
}

/// Runs a console with this input.
fn fed(mut command: Command, input: &Path) -> super::harness::Outcome {
    command.stdin(std::fs::File::open(input).unwrap());
    finish(command, PATIENCE)
}

#[test]
fn lines_of_a_file_are_sent_at_their_pace_and_the_console_ends_behind_them() {
    let harness = Harness::new();
    let (_lab3, desk, _share) = lab(&harness);
    let input = harness.path("commands");
    let lines: String = (0..40).map(|line| format!("command {line} \x1d q\n")).collect();
    std::fs::write(&input, &lines).unwrap();
    let started = std::time::Instant::now();
    let ended = fed(desk.command(&["console", "lab3/serial", "--line-pace", "20", "--enter", "lf"]), &input);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), lines.replace('\x1d', "").trim_end()), "{ended:?}");
    assert!(started.elapsed() >= std::time::Duration::from_millis(39 * 20), "each line has its pause");
    let every_byte: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    std::fs::write(&input, &every_byte).unwrap();
    let mut raw = desk.command(&["console", "lab3/serial", "--raw"]);
    let output = harness.path("output");
    raw.stdin(std::fs::File::open(&input).unwrap()).stdout(std::fs::File::create(&output).unwrap());
    assert!(raw.status().unwrap().success());
    assert!(std::fs::read(&output).unwrap() == every_byte, "every byte passes, both ways");
}

#[test]
fn console_that_is_killed_gives_its_device_back_and_one_that_is_in_use_is_refused() {
    let harness = Harness::new();
    let (_lab3, desk, _share) = lab(&harness);
    let start = || {
        let mut command = desk.command(&["console", "lab3/serial"]);
        command.stdin(Stdio::piped());
        Running::start(command)
    };
    let mut first = start();
    wait_until(PATIENCE, "it has the device", || !is_free(&desk));
    let refused = desk.run(&["console", "lab3/serial"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("in use"), "{refused:?}");
    first.kill();
    wait_until(PATIENCE, "the device is given back", || is_free(&desk));
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut next = start();
        wait_until(PATIENCE, "it has the device", || !is_free(&desk));
        next.signal(signal);
        // It may come before the console has begun.
        assert_eq!(next.wait_for_shell_code(PATIENCE), code);
        wait_until(PATIENCE, "the device is given back", || is_free(&desk));
    }
}

#[test]
fn console_uses_a_port_that_is_attached_already_and_says_when_that_ends() {
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    let target = share.target("serial");
    let words = ["attach", &target, "--via", "rfc2217", "--listen", "127.0.0.1:0"];
    let mut attached = Running::start(harness.command(&words));
    let line = attached.wait_for_line("attached at");
    let url = line.split_whitespace().find(|word| word.starts_with("rfc2217://")).unwrap().to_owned();
    let input = harness.path("input");
    std::fs::write(&input, "once\n").unwrap();
    let ended = fed(harness.command(&["console", &url]), &input);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "once\r"), "{ended:?}");
    let mut console = harness.command(&["console", &url]);
    console.stdin(Stdio::piped());
    let mut console = Running::start(console);
    wait_until(PATIENCE, "it is connected", || attached.log().matches("a program uses the serial port").count() > 1);
    attached.signal(Signal::INT);
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0));
    assert_eq!(console.wait_for_end(PATIENCE), Some(0));
    assert!(console.log().contains("has ended the connection"), "{}", console.log());
    let gone = harness.run(&["console", &url]);
    assert!(gone.code == Some(5) && gone.stderr.contains(&url), "{gone:?}");
}
