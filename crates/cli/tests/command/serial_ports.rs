//! Serial ports without a kernel driver: pyserial by RFC 2217, bare bytes over TCP, and who may connect.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::harness::{Harness, PATIENCE, Running, finish, has, wait_until};
use super::restart::{Later, SetOnDrop, config, exporter, restart};
use super::restart_attached::attached;
use super::trust::{Host, hosts, pair};

/// What a program does with a serial port that returns what is sent: sys.argv[1] is its URL.
const PYSERIAL: &str = r"
import sys, time, serial

def until(what, is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)

port = serial.serial_for_url(sys.argv[1], baudrate=115200, timeout=60)
until('opening raises DTR, which the plug joins to DSR and DCD', lambda: port.dsr and port.cd)
every_byte = bytes(range(256)) * 16
port.write(every_byte)
assert port.read(len(every_byte)) == every_byte
port.dtr = False
until('DTR is dropped', lambda: not port.dsr and not port.cd)
port.dtr = True
until('DTR is raised', lambda: port.dsr and port.cd)
# pyserial raises an error unless each of these is confirmed.
port.baudrate, port.bytesize, port.parity, port.stopbits = 921600, 7, 'E', 2
port.rtscts = True
port.rts = False
port.send_break(0.05)
port.write(b'abc')
until('in_waiting counts what has arrived', lambda: port.in_waiting == 3)
port.reset_input_buffer()
assert port.in_waiting == 0
port.write(b'done')
assert port.read(4) == b'done'
port.close()
print('all is well')
";

/// The address at which an attachment serves programs.
fn address_of(attached: &Running) -> String {
    let line = attached.wait_for_line("attached at");
    line.split("://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

fn run_pyserial(harness: &Harness, attached: &Running, address: &str) {
    let script = harness.path("port.py");
    std::fs::write(&script, PYSERIAL).unwrap();
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg(format!("rfc2217://{address}"));
    let ended = finish(command, PATIENCE);
    assert!(ended.code == Some(0) && ended.stdout.contains("all is well"), "{ended:?}\n{}", attached.log());
}

pub fn has_pyserial() -> bool {
    has("python3-serial", Path::new("/usr/lib/python3/dist-packages/serial").exists())
}

#[test]
fn pyserial_uses_a_port_of_a_paired_host_and_one_over_plain_usbip() {
    if !has_pyserial() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let (_share, at) = lab3.share(&["serial"]);
    lab3.ok(&["allow", "desk", "serial"]);
    desk.ok(&["list", "lab3", "--address", &at]);
    let mut port = desk.start(&["attach", "lab3/serial", "--via", "rfc2217", "--listen", "127.0.0.1:0"]);
    let address = address_of(&port);
    for _ in 0..2 {
        run_pyserial(&harness, &port, &address);
    }
    port.signal(rustix::process::Signal::INT);
    assert_eq!(port.wait_for_end(PATIENCE), Some(0));
    let share = harness.share(&["serial"]);
    let target = share.target("serial");
    let attached = Running::start(harness.command(&["attach", &target, "--via", "rfc2217", "--listen", "127.0.0.1:0"]));
    let address = address_of(&attached);
    run_pyserial(&harness, &attached, &address);
}

/// What a server offers a telnet first: three bytes of each of seven offers.
const OFFERS_BYTES: usize = 21;

/// The bytes of a stream that never repeats soon.
fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// What is sent: no byte that telnet would double.
fn stream_of_bytes() -> impl Iterator<Item = u8> {
    (0..).map(byte_at).filter(|byte| *byte != 255)
}

/// Sends until it is to end, never more than every end takes without a reader.
fn send(mut stream: &TcpStream, passed: &AtomicU64, is_done: &AtomicBool) {
    let mut bytes = stream_of_bytes();
    let mut sent = 0;
    while !is_done.load(Ordering::Acquire) {
        if sent < passed.load(Ordering::Acquire) + (8 << 10) {
            let chunk: Vec<u8> = bytes.by_ref().take(1024).collect();
            stream.write_all(&chunk).unwrap();
            sent += 1024;
        } else {
            thread::yield_now();
        }
    }
    stream.shutdown(Shutdown::Both).unwrap();
}

/// Compares what comes back behind `skipped` bytes, until the stream is shut down.
fn compare(mut stream: &TcpStream, mut skipped: usize, passed: &AtomicU64, is_done: &AtomicBool) {
    let mut expected = stream_of_bytes();
    let mut buffer = vec![0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap_or(0);
        if count == 0 {
            assert!(is_done.load(Ordering::Acquire), "the connection stays");
            return;
        }
        let offers = skipped.min(count);
        skipped -= offers;
        for byte in &buffer[offers..count] {
            assert_eq!(Some(*byte), expected.next(), "byte {}", passed.load(Ordering::Acquire));
            passed.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// A program stays connected while its host's daemon restarts, and misses no byte.
fn stays_connected(via: &str) {
    let harness = Harness::new();
    let (_share, _daemon, desk) = attached(&harness, "serial", &format!("via='{via}'\nlisten='127.0.0.1:0'"));
    let at = desk.json(&["status", "--json"])[0]["devices"][0]["at"].as_str().unwrap().to_owned();
    let stream = TcpStream::connect(at.split("://").nth(1).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let offers = if via == "rfc2217" { OFFERS_BYTES } else { 0 };
    let (passed, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut later = Vec::new();
    thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        scope.spawn(|| send(&stream, &passed, &is_done));
        scope.spawn(|| compare(&stream, offers, &passed, &is_done));
        for _ in 0..24 {
            let before = passed.load(Ordering::Acquire);
            later.push(restart(&desk, 0));
            wait_until(PATIENCE, "its program goes on", || passed.load(Ordering::Acquire) > before + (64 << 10));
        }
    });
    println!("{} bytes came back", passed.into_inner());
}

#[test]
fn a_program_at_a_tcp_address_misses_no_byte_while_the_daemon_restarts() {
    stays_connected("tcp");
}

#[test]
fn a_program_at_an_rfc2217_address_misses_no_byte_while_the_daemon_restarts() {
    stays_connected("rfc2217");
}

/// Ports that are attached while daemons restart.
const PORTS: usize = 24;

/// A daemon of `desk` that has attached all ports that are shared at `address`.
fn with_ports(harness: &Harness, desk: &Host<'_>, address: &str) -> Running {
    let attach = |port: usize| {
        let target = format!("{address}/1-{}", port + 1);
        format!("[[attach]]\ntarget='{target}'\ngrace=60\nvia='tcp'\nlisten='127.0.0.1:0'\n")
    };
    let attached: String = (0..PORTS).map(attach).collect();
    let file = config(harness.folder(), &format!("plain.listen = ['127.0.0.1:0']\n{attached}"));
    let daemon = desk.start(&["daemon", "--config", &file]);
    daemon.wait_for_line("listening on");
    wait_until(PATIENCE, "all are attached", || are_attached(desk));
    daemon
}

fn are_attached(desk: &Host<'_>) -> bool {
    let status = desk.json(&["status", "--json"]);
    let devices = status[0]["devices"].as_array();
    devices.is_some_and(|all| all.iter().filter(|device| device["state"] == "attached").count() == PORTS)
}

#[test]
fn a_restart_right_behind_another_passes_on_what_that_one_passed_on() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let share = lab3.start(&[&["share"], &["serial"; PORTS][..], &["--listen", "127.0.0.1:0"]].concat());
    let line = share.wait_for_line("listening on");
    let _daemon = with_ports(&harness, &desk, line.split_whitespace().nth(2).unwrap());
    let mut later = Vec::new();
    for round in 0..25 {
        let answer = desk.json(&["daemon", "restart", "--json"]);
        assert_eq!(answer["kept"].as_array().map(Vec::len), Some(PORTS), "restart {round}: {answer}");
        later.push(Later::of(&answer));
    }
}

#[test]
fn a_restart_of_an_exporter_right_behind_another_passes_on_its_sessions() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let (_exporter, address, _) = exporter(&harness, &lab3, &["{what='serial'}"; PORTS].join(","));
    let daemon = with_ports(&harness, &desk, &address);
    let mut later = Vec::new();
    for round in 0..25 {
        let answer = lab3.json(&["daemon", "restart", "--json"]);
        assert_eq!(answer["sessions"], PORTS, "restart {round}: {answer}");
        later.push(Later::of(&answer));
    }
    wait_until(PATIENCE, "all are attached still", || are_attached(&desk));
    assert!(!daemon.log().contains("trying again"), "{}", daemon.log());
}

#[test]
fn a_port_has_one_user_and_serves_its_owner_alone() {
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    let target = share.target("serial");
    let attached = Running::start(harness.command(&["attach", &target, "--via", "tcp", "--listen", "127.0.0.1:0"]));
    let address = address_of(&attached);
    let read_some = |stream: &mut TcpStream| {
        let mut buffer = [0; 64];
        let count = stream.read(&mut buffer).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut first = connect();
    first.write_all(b"mine").unwrap();
    assert_eq!(read_some(&mut first), "mine");
    assert_eq!(read_some(&mut connect()), "Port already in use\r\n");
    first.write_all(b"still").unwrap();
    assert_eq!(read_some(&mut first), "still");
    drop(first);
    attached.assert_logged("has left");
    let mut next = connect();
    next.write_all(b"next").unwrap();
    assert_eq!(read_some(&mut next), "next");
    drop(next);
    if has("a second user", rustix::process::geteuid().is_root()) {
        let (host, port) = address.split_once(':').unwrap();
        let text = format!("exec 3<>/dev/tcp/{host}/{port}; echo hello >&3; head -c 5 <&3 | wc -c");
        let mut command = Command::new("bash");
        command.args(["-c", &text]).uid(65534).gid(65534);
        let ended = finish(command, PATIENCE);
        assert_eq!(ended.stdout.trim(), "0", "{ended:?}");
        attached.assert_logged("user 65534 of this machine is neither its owner nor root");
    }
}

/// While its exporter is silent, a program sends half a million changes of DTR and leaves.
#[test]
fn changes_that_a_silent_device_does_not_take_cost_no_memory_and_hold_up_no_end() {
    const TOGGLE: [u8; 14] = [255, 250, 44, 5, 8, 255, 240, 255, 250, 44, 5, 9, 255, 240];
    let harness = Harness::new();
    let share = harness.share(&["serial"]);
    let target = share.target("serial");
    let words = ["attach", &target, "--via", "rfc2217", "--listen", "127.0.0.1:0"];
    let mut attached = Running::start(harness.command(&words));
    let stream = TcpStream::connect(address_of(&attached)).unwrap();
    (&stream).write_all(&[255, 253, 44]).unwrap();
    attached.assert_logged("a program uses the serial port");
    let before = attached.peak_kib();
    share.process.signal(rustix::process::Signal::STOP);
    stream.set_write_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let flood = TOGGLE.repeat(1000);
    let sent = (0..250).take_while(|_| (&stream).write_all(&flood).is_ok()).count();
    println!("{sent} thousand pairs of changes were taken");
    let grown = attached.peak_grown_kib(before);
    assert!(grown < 16 << 10, "{grown} KiB more");
    drop(stream);
    share.process.signal(rustix::process::Signal::CONT);
    attached.signal(rustix::process::Signal::INT);
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
}

#[test]
fn what_does_not_fit_a_serial_port_is_refused_with_what_does() {
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("image", 1 << 20).display());
    let share = harness.share(&[&disk, "serial"]);
    let refusal = |arguments: &[&str], code: i32| {
        let ended = harness.run(arguments);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        ended.stderr
    };
    let (disk, serial) = (share.target("disk"), share.target("serial"));
    let no_port = refusal(&["attach", &disk, "--via", "rfc2217", "--listen", "127.0.0.1:0"], 6);
    assert!(no_port.contains("it has no serial port") && no_port.contains("CP210x"), "{no_port}");
    let no_disk = refusal(&["attach", &serial, "--via", "nbd"], 6);
    assert!(no_disk.contains(&format!("farbus attach {serial} --via rfc2217")), "{no_disk}");
    let open = refusal(&["attach", &serial, "--via", "rfc2217", "--listen", "0.0.0.0:0"], 1);
    assert!(open.contains("--allow"), "{open}");
    let closed = ["attach", &serial, "--via", "tcp", "--listen", "127.0.0.1:0", "--allow", "10.0.0.7"];
    assert!(refusal(&closed, 1).contains("this machine alone"));
    let other = ["attach", &serial, "--via", "redir", "--listen", "127.0.0.1:0", "--allow", "10.0.0.7"];
    assert!(refusal(&other, 1).contains("rfc2217 and tcp"));
}

#[test]
fn a_port_whose_device_goes_ends_with_the_reason_and_its_program_hears_it() {
    let harness = Harness::new();
    let mut share = harness.share(&["serial"]);
    let target = share.target("serial");
    let mut attached = Running::start(harness.command(&[
        "attach",
        &target,
        "--via",
        "tcp",
        "--listen",
        "127.0.0.1:0",
        "--grace",
        "0",
    ]));
    let mut stream = TcpStream::connect(address_of(&attached)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 1);
    share.process.kill();
    assert_eq!(stream.read(&mut [0; 9]).unwrap_or(0), 0);
    assert!(matches!(attached.wait_for_end(PATIENCE), Some(4 | 5)), "{}", attached.log());
}
