//! Serial ports as terminals (`--via pty`), for programs that know nothing of farbus.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_net::link::{PollInterest, wait};

use super::harness::{Harness, PATIENCE, Running, finish, has, wait_until};
use super::restart::{Later, SetOnDrop};
use super::restart_attached::{attached, state_of};
use super::serial_ports::has_pyserial;
use super::trust::{hosts, pair};

/// What a program does with a port that returns what is sent: sys.argv[1] is its path.
const PYSERIAL: &str = r"
import os, sys, threading, serial

SIZE = 8 << 20
port = serial.Serial(sys.argv[1], baudrate=115200, timeout=60)
sent = os.urandom(SIZE)
writer = threading.Thread(target=port.write, args=(sent,))
writer.start()
received = bytearray()
while len(received) < SIZE:
    data = port.read(min(65536, SIZE - len(received)))
    assert data, len(received)
    received += data
writer.join()
assert received == sent
for rate in (9600, 250000, 3000000):
    port.baudrate = rate
    every_byte = bytes(range(256))
    port.write(every_byte)
    assert port.read(256) == every_byte
port.write(b'left unread')
port.close()
port = serial.Serial(sys.argv[1], stopbits=2, rtscts=True, exclusive=True, timeout=60)
port.write(b'again')
# The plug may hold some of what the last program left.
assert port.read_until(b'again').endswith(b'again')
port.close()
print('all is well')
";

/// The path that an attachment names.
fn path_of(attached: &Running) -> PathBuf {
    let line = attached.wait_for_line("attached at");
    line.split("attached at ").nth(1).unwrap().split("   ").next().unwrap().into()
}

fn run_pyserial(harness: &Harness, attached: &Running, path: &Path) {
    let script = harness.path("port.py");
    std::fs::write(&script, PYSERIAL).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg(path);
    let ended = finish(command, PATIENCE);
    assert!(ended.code == Some(0) && ended.stdout.contains("all is well"), "{ended:?}\n{}", attached.log());
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

#[test]
fn pyserial_opens_a_port_of_a_paired_host_as_a_file_and_again_at_the_same_path() {
    if !has_pyserial() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let (_share, at) = lab3.share(&["serial"]);
    lab3.ok(&["allow", "desk", "serial"]);
    desk.ok(&["list", "lab3", "--address", &at]);
    let mut port = desk.start(&["attach", "lab3/serial", "--via", "pty"]);
    let path = path_of(&port);
    assert!(path.ends_with("pty-serial"), "{}", path.display());
    assert_eq!(desk.json(&["status", "--json"])[0]["devices"][0]["at"], path.display().to_string());
    for _ in 0..2 {
        run_pyserial(&harness, &port, &path);
    }
    let mut program = open(&path);
    port.signal(rustix::process::Signal::INT);
    assert_eq!(port.wait_for_end(PATIENCE), Some(0));
    assert_eq!(program.read(&mut [0; 9]).unwrap_or(0), 0, "the end hangs up");
    wait_until(PATIENCE, "the link goes with the attachment", || !is_there(&path));
}

#[test]
fn a_terminal_over_plain_usbip_has_a_path_of_its_owners_choice_and_serves_its_owner_alone() {
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    let (target, path) = (share.target("serial"), harness.path("port"));
    let words = ["attach", &target, "--via", "pty", "--at", path.to_str().unwrap()];
    std::fs::write(&path, "mine").unwrap();
    let refused = harness.run(&words);
    assert!(refused.code == Some(1) && refused.stderr.contains("not farbus's"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    std::fs::remove_file(&path).unwrap();
    let mut port = Running::start(harness.command(&words));
    assert_eq!(path_of(&port), path);
    let second = harness.run(&words);
    assert!(second.code == Some(1) && second.stderr.contains("farbus status"), "{second:?}");
    let terminal = std::fs::read_link(&path).unwrap();
    assert_eq!(std::fs::metadata(&terminal).unwrap().permissions().mode() & 0o777, 0o600);
    if has("a second user", rustix::process::geteuid().is_root()) {
        let mut command = Command::new("cat");
        command.arg(&terminal).uid(65534).gid(65534);
        let ended = finish(command, PATIENCE);
        assert!(ended.code == Some(1) && ended.stderr.contains("Permission denied"), "{ended:?}");
    }
    let mut program = open(&path);
    program.write_all(b"hello").unwrap();
    let mut read = [0; 5];
    program.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
    port.kill();
    assert_eq!(program.read(&mut [0; 9]).unwrap_or(0), 0, "a killed process hangs up");
    let again = Running::start(harness.command(&words));
    assert_eq!(path_of(&again), path, "a link that a killed process left is in nobody's way");
    let other = harness.run(&["attach", &target, "--via", "pty", "--listen", "127.0.0.1:0"]);
    assert!(other.stderr.contains("--socket and --listen go with"), "{other:?}");
}

#[test]
fn a_program_that_does_not_read_its_terminal_costs_no_memory() {
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    let path = harness.path("port");
    let words = ["attach", &share.target("serial"), "--via", "pty", "--at", path.to_str().unwrap()];
    let attached = Running::start(harness.command(&words));
    let program = open(&path_of(&attached));
    let before = attached.peak_kib();
    rustix::io::ioctl_fionbio(&program, true).unwrap();
    let (mut written, mut last) = (0, Instant::now());
    while last.elapsed().as_millis() < 500 {
        match (&program).write(&[7; 4096]) {
            Ok(count) => (written, last) = (written + count, Instant::now()),
            // waits: between two tries
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("{written} bytes were taken");
    assert!(written < 2 << 20, "{written} bytes are held");
    let grown = attached.peak_grown_kib(before);
    assert!(grown < 8 << 10, "{grown} KiB more");
}

/// Whether there is something to read soon.
fn has_input(program: &File) -> bool {
    let mut interests = [PollInterest::new(program.as_fd(), false)];
    wait(&mut interests, Some(Duration::from_millis(50))).unwrap();
    interests[0].readable
}

/// The bytes of a stream that never repeats soon.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[test]
fn a_program_at_a_terminal_misses_no_byte_while_the_daemon_restarts() {
    let harness = Harness::new();
    let (_share, daemon, desk) = attached(&harness, "serial", "via='pty'");
    let path = PathBuf::from(desk.json(&["status", "--json"])[0]["devices"][0]["at"].as_str().unwrap());
    let program = open(&path);
    let (passed, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut later = Vec::new();
    thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        scope.spawn(|| {
            let mut sent = 0;
            while !is_done.load(Ordering::Acquire) {
                if sent < passed.load(Ordering::Acquire) + (8 << 10) {
                    let chunk: Vec<u8> = (sent..sent + 1024).map(byte_at).collect();
                    (&program).write_all(&chunk).unwrap();
                    sent += 1024;
                } else {
                    thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            let mut buffer = vec![0; 4096];
            while !is_done.load(Ordering::Acquire) {
                if !has_input(&program) {
                    continue;
                }
                let count = (&program).read(&mut buffer).unwrap();
                assert!(count > 0, "the terminal stays");
                for byte in &buffer[..count] {
                    let at = passed.fetch_add(1, Ordering::AcqRel);
                    assert_eq!(*byte, byte_at(at), "byte {at}");
                }
            }
        });
        for _ in 0..6 {
            let answer = desk.json(&["daemon", "restart", "--json"]);
            assert_eq!(answer["kept"].as_array().map(Vec::len), Some(1), "{answer}\n{}", daemon.log());
            later.push(Later::of(&answer));
            // A restart before that would begin it anew.
            wait_until(PATIENCE, "the replacement has it", || state_of(&desk) == "attached");
            let before = passed.load(Ordering::Acquire);
            wait_until(PATIENCE, "its program goes on", || passed.load(Ordering::Acquire) > before + (64 << 10));
        }
        assert!(is_there(&path) && std::fs::read_link(&path).is_ok());
    });
    println!("{} bytes came back", passed.into_inner());
    desk.ok(&["detach"]);
    wait_until(PATIENCE, "the link goes with the attachment", || !is_there(&path));
    // What came before the end is read first.
    let hangs_up = (0..1000).any(|_| (&program).read(&mut [0; 4096]).unwrap_or(0) == 0);
    assert!(hangs_up, "{}", daemon.log());
}
