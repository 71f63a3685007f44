//! Programs inside `farbus run`, as an ordinary user: on libusb, by way of Python; on nusb; and one that speaks to
//! usbfs by itself, is statically linked and asks also as a 32-bit program.
//!
//! `FARBUS_SECONDS` says how long streams and garbage last (default 3), `FARBUS_KILLS` how many processes are killed
//! (default 6); `cargo xtask soak` says 60 and 200.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nusb::MaybeFuture;
use nusb::transfer::{Buffer, Bulk, In, Out, TransferError};
use rustix::process::Signal;

use super::cuts::share_through_a_cutter;
use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has, has_program, wait_until};
use super::run::{can_run, left_mounts, ordinary, pids_of, share, wait_until_free};

/// What the source sends and the sink wants: usbtest's pattern 1, checked at both ends.
const PATTERN: &str = "zero,fill=mod63,verify";

/// Debian's, which has the packages, whatever Python is first in the path.
const PYTHON: &str = "/usr/bin/python3";

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

fn seconds() -> u64 {
    number("FARBUS_SECONDS", 3)
}

fn has_package(debian: &str, package: &str) -> bool {
    has(debian, Path::new("/usr/lib/python3/dist-packages").join(package).exists())
}

/// Runs a program with a device until it ends, which may take a few seconds more than the tests' patience.
fn run_long(harness: &Harness, target: &str, program: &[&str]) -> Outcome {
    let within = 2 * PATIENCE + 3 * Duration::from_secs(seconds());
    finish(ordinary(harness, &[&["run", target, "--"], program].concat()), within)
}

#[test]
fn the_tests_of_python3_usb1_pass() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["zero"]);
    let ended = run_long(&harness, &share.target("zero"), &[PYTHON, "-m", "unittest", "usb1.testUSB1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("Ran ") && ended.stderr.contains("OK"), "{ended:?}");
}

const USES_PYUSB: &str = r#"
import usb.core, usb.util
device = usb.core.find(idVendor=0x0525, idProduct=0xa4a0)
device.set_configuration()
assert usb.util.get_string(device, device.iProduct) == "source/sink"
pattern = bytes(n % 63 for n in range(512)) * 8
assert device.write(1, pattern, 5000) == 4096
assert device.read(0x81, 4096, 5000).tobytes() == pattern
assert device.ctrl_transfer(0x80, 6, 0x0100, 0, 18)[8:12].tobytes() == b"\x25\x05\xa0\xa4"
# A reset shows nothing else than before at any time: the library reads the configuration as soon as it has ended.
for _ in range(25):
    device.reset()
    assert device.read(0x81, 4096, 5000).tobytes() == pattern
print(device.bus, device.address, device.port_numbers, device.speed)
"#;

#[test]
fn a_program_on_pyusb_configures_resets_and_moves_data() {
    if !can_run() || !has_package("python3-usb", "usb") {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let ended = run_long(&harness, &share.target("zero"), &[PYTHON, "-c", USES_PYUSB]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "1 2 (1,) 3"), "{ended:?}");
}

const MOVES_A_GIBIBYTE: &str = r#"
import hashlib, usb1
BYTES = 1 << 20
pattern = bytes(n % 63 for n in range(512)) * (BYTES // 512)
expected, sums = hashlib.sha1(), hashlib.sha1()
with usb1.USBContext() as context:
    handle = context.openByVendorIDAndProductID(0x0525, 0xa4a0)
    handle.claimInterface(0)
    moved = 0
    for _ in range(1024):
        moved += handle.bulkWrite(1, pattern, 10000)
        sums.update(handle.bulkRead(0x81, BYTES, 10000))
        expected.update(pattern)
assert sums.digest() == expected.digest()
print(moved)
"#;

#[test]
fn a_gibibyte_moves_each_way_with_equal_checksums() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let ended = run_long(&harness, &share.target("zero"), &[PYTHON, "-c", MOVES_A_GIBIBYTE]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "1073741824"), "{ended:?}");
}

/// Cancels transfers at once, or after some steps of the event loop; every second one would last a millisecond.
const CANCELS: &str = r#"
import usb1
ended = {}
def end(transfer):
    status = transfer.getStatus()
    ended[status] = ended.get(status, 0) + 1
pattern = bytes(n % 63 for n in range(512))
with usb1.USBContext() as context:
    handle = context.openByVendorIDAndProductID(0x0525, 0xa4a0)
    handle.claimInterface(0)
    bulk, stream = handle.getTransfer(), handle.getTransfer(8)
    for round in range(10000):
        transfer = bulk if round % 2 else stream
        if transfer is bulk:
            transfer.setBulk(0x81, 512, end, timeout=0)
        else:
            transfer.setIsochronous(0x83, 8 * 1024, end)
        transfer.submit()
        for _ in range(round % 7):
            context.handleEventsTimeout(0)
        try:
            transfer.cancel()
        except usb1.USBErrorNotFound:
            pass
        while transfer.isSubmitted():
            context.handleEventsTimeout(5)
        assert sum(ended.values()) == round + 1, "each ends once"
        if transfer is bulk and transfer.getStatus() == usb1.TRANSFER_COMPLETED:
            assert bytes(transfer.getBuffer()[:512]) == pattern
    assert bytes(handle.bulkRead(0x81, 512, 5000)) == pattern
print(sorted(ended))
"#;

#[test]
fn ten_thousand_transfers_that_are_cancelled_end_once_each() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let ended = run_long(&harness, &share.target("zero"), &[PYTHON, "-c", CANCELS]);
    // TRANSFER_COMPLETED and TRANSFER_CANCELLED, and nothing else.
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "[0, 3]"), "{ended:?}");
}

const STREAMS: &str = r#"
import sys, time, usb1
SECONDS, PACKETS, BYTES = float(sys.argv[1]), 32, 1024
pattern = bytes(n % 63 for n in range(BYTES))
moved = {0x83: 0, 0x03: 0}
with usb1.USBContext() as context:
    handle = context.openByVendorIDAndProductID(0x0525, 0xa4a0)
    handle.claimInterface(0)
    began = time.monotonic()
    def ended(transfer):
        assert transfer.getStatus() == usb1.TRANSFER_COMPLETED, transfer.getStatus()
        address = transfer.getEndpoint()
        for status, data in transfer.iterISO():
            assert status == usb1.TRANSFER_COMPLETED and len(data) == BYTES, (status, len(data))
            assert address < 0x80 or data == pattern
            moved[address] += 1
        if time.monotonic() < began + SECONDS:
            transfer.submit()
    transfers = []
    for address in moved:
        for _ in range(8):
            transfer = handle.getTransfer(PACKETS)
            transfer.setIsochronous(address, PACKETS * BYTES if address & 0x80 else pattern * PACKETS, ended)
            transfer.submit()
            transfers.append(transfer)
    while any(transfer.isSubmitted() for transfer in transfers):
        context.handleEventsTimeout(5)
    took = time.monotonic() - began
for count in moved.values():
    # One in each microframe; the first of them may have begun with the first transfer's arrival.
    assert count <= (took + 0.1) * 8000, (count, took)
    print(count)
"#;

#[test]
fn isochronous_packets_go_both_ways_at_once_and_each_arrives_whole() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let seconds = seconds();
    let ended = run_long(&harness, &share.target("zero"), &[PYTHON, "-c", STREAMS, &seconds.to_string()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let counts: Vec<u64> = ended.stdout.lines().map(|line| line.parse().unwrap()).collect();
    println!("{counts:?} packets of 8000/s in {seconds} s");
    // A quarter of what the bus carries: this machine may stall.
    assert!(counts.len() == 2 && counts.iter().all(|count| *count >= seconds * 2000), "{ended:?}");
}

/// A program on nusb, which is this one.
fn uses_nusb() {
    let within = Duration::from_secs(10);
    assert!(nusb::list_buses().wait().unwrap().next().is_some());
    let info = nusb::list_devices().wait().unwrap().find(|device| device.vendor_id() == 0x0525).unwrap();
    assert_eq!(info.product_string(), Some("source/sink"));
    assert_eq!((info.speed(), info.interfaces().count()), (Some(nusb::Speed::High), 1));
    let device = info.open().wait().unwrap();
    let interface = device.detach_and_claim_interface(0).wait().unwrap();
    let (mut out, mut back) =
        (interface.endpoint::<Bulk, Out>(0x01).unwrap(), interface.endpoint::<Bulk, In>(0x81).unwrap());
    for bytes in [512, 4096, 65_536, 1 << 20] {
        let pattern: Vec<u8> = (0..bytes).map(|at| (at % 512 % 63) as u8).collect();
        for _ in 0..8 {
            out.submit(pattern.clone().into());
            back.submit(Buffer::new(bytes));
        }
        for _ in 0..8 {
            let sent = out.wait_next_complete(within).unwrap();
            assert_eq!((sent.status, sent.actual_len), (Ok(()), bytes));
            let came = back.wait_next_complete(within).unwrap();
            assert!(came.status.is_ok() && came.buffer[..] == pattern);
        }
    }
    let mut ended = 0;
    for round in 0..2000 {
        back.submit(Buffer::new(512));
        if round % 2 == 0 {
            std::thread::yield_now();
        }
        back.cancel_all();
        let status = back.wait_next_complete(within).unwrap().status;
        assert!(matches!(status, Ok(()) | Err(TransferError::Cancelled)), "{status:?}");
        ended += 1;
    }
    println!("{ended} ended");
}

#[test]
fn a_program_on_nusb_lists_claims_moves_data_and_cancels() {
    const IS_INSIDE: &str = "FARBUS_TEST_INSIDE";
    if std::env::var_os(IS_INSIDE).is_some() {
        return uses_nusb();
    }
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let this = std::env::current_exe().unwrap();
    let name = "run_programs::a_program_on_nusb_lists_claims_moves_data_and_cancels";
    let words = ["run", &share.target("zero"), "--", this.to_str().unwrap(), name, "--exact", "--nocapture"];
    let mut command = ordinary(&harness, &words);
    command.env(IS_INSIDE, "1");
    let ended = finish(command, 2 * PATIENCE);
    assert!(ended.code == Some(0) && ended.stdout.contains("2000 ended"), "{ended:?}");
}

/// The statically linked program, where an ordinary user may start it.
pub(super) fn usbfs_program(harness: &Harness) -> PathBuf {
    let program = harness.path("usbfs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/usbfs.c");
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"]).arg(&program).arg(source);
    let compiled = finish(compile, PATIENCE);
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    program
}

pub(super) const NODE: &str = "/dev/bus/usb/001/002";

#[test]
fn a_32_bit_program_has_structures_of_its_own() {
    if !can_run() || !has("gcc", has_program("gcc")) {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let program = usbfs_program(&harness);
    let ended = run_long(&harness, &share.target("zero"), &[program.to_str().unwrap(), "narrow", NODE]);
    // SIGSEGV: the kernel was built without the calls of 32-bit programs.
    if has("32-bit system calls", ended.code != Some(139)) {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "narrow"), "{ended:?}");
    }
}

#[test]
fn commands_that_make_no_sense_are_refused_and_the_device_stays_usable() {
    if !can_run() || !has("gcc", has_program("gcc")) {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &[PATTERN]);
    let program = usbfs_program(&harness);
    let seed = number("FARBUS_FUZZ_SEED", 1).to_string();
    let words = [program.to_str().unwrap(), "garbage", NODE, &seed, &seconds().to_string()];
    let ended = run_long(&harness, &share.target("zero"), &words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("alive after "), "{ended:?}");
    println!("seed {seed}: {}", ended.stdout);
    wait_until_free(&harness, &share);
}

#[test]
fn a_run_in_a_run_sees_the_devices_of_the_outer_one_if_it_is_to() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let (share, outer) = (share(&harness, &[PATTERN]), share(&harness, &["keyboard"]));
    let (target, keyboard) = (share.target("zero"), outer.target("keyboard"));
    let run = |options: &[&str], program: &[&str]| {
        let inner = [&[env!("CARGO_BIN_EXE_farbus"), "run"], options, &[&target, "--"], program].concat();
        let ended = finish(ordinary(&harness, &[&["run", &keyboard, "--"], &*inner].concat()), PATIENCE);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    };
    // The kernel lets one process hear the system calls of another, and the outer run does already.
    let alone = run(&[], &["lsusb"]);
    assert!(alone.contains("0525:a4a0") && !alone.contains("0525:a4ac"), "{alone}");
    let both = run(&["--with-local"], &["lsusb"]);
    for part in
        ["Bus 001 Device 001: ID 1d6b:0002", "Bus 001 Device 002: ID 0525:a4ac", "Bus 002 Device 002: ID 0525:a4a0"]
    {
        assert!(both.contains(part), "{part}: {both}");
    }
    // Through both, with their own strings.
    let seen = run(&["--with-local"], &["lsusb", "-v"]);
    assert!(seen.contains("source/sink") && seen.contains("Human Interface Device"), "{seen}");
    if has_package("python3-usb", "usb") {
        assert_eq!(run(&["--with-local"], &[PYTHON, "-c", USES_PYUSB]), "2 2 (1,) 3");
    }
}

/// Writes and reads until a file is there; says how often. Every transfer has its whole time.
const WORKS_UNTIL_TOLD: &str = r#"
import os, sys, usb1
pattern = bytes(n % 63 for n in range(512)) * 128
with usb1.USBContext() as context:
    handle = context.openByVendorIDAndProductID(0x0525, 0xa4a0)
    handle.claimInterface(0)
    rounds = 0
    while not os.path.exists(sys.argv[1]):
        assert handle.bulkWrite(1, pattern, 0) == len(pattern)
        assert handle.bulkRead(0x81, len(pattern), 0) == pattern
        rounds += 1
        if rounds == 100:
            print("works", flush=True)
print("worked")
"#;

#[test]
fn a_network_that_fails_for_ten_seconds_is_not_seen_by_the_program() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let ([_lab, desk], _share, cutter) = share_through_a_cutter(&harness, PATTERN);
    let path = harness.path("told");
    let address = cutter.address().to_string();
    let words =
        ["run", "lab3/zero", "--address", &address, "--", PYTHON, "-c", WORKS_UNTIL_TOLD, path.to_str().unwrap()];
    let mut process = desk.start(&words);
    process.wait_for_line("works");
    let before = cutter.links();
    // A peer that closes its link has ended, and is waited for 4 s only: a network that fails does not close links.
    cutter.be_silent_for(Duration::from_secs(10));
    wait_until(PATIENCE, "another link", || cutter.links() > before);
    fs::write(&path, "").unwrap();
    process.wait_for_line("worked");
    assert_eq!(process.wait_for_end(PATIENCE), Some(0));
}

/// Moves data until it is killed.
const WORKS: &str = r#"
import sys, usb1
with usb1.USBContext() as context:
    handle = context.openByVendorIDAndProductID(0x0525, 0xa4a0)
    handle.claimInterface(0)
    print("works", flush=True)
    while True:
        try:
            handle.bulkRead(0x81, 65536, 1000)
        except usb1.USBError:
            sys.exit(3)
"#;

#[test]
fn no_mount_process_or_claim_is_left_after_program_command_and_exporter_were_killed_in_any_order() {
    if !can_run() || !has_package("python3-usb1", "usb1") {
        return;
    }
    let harness = Harness::new();
    let offer = |address: &str| {
        let words = ["share", "zero", "--local-users", "all", "--listen", address];
        Share::follow(Running::start(harness.command(&words)))
    };
    let mut exporter = offer("127.0.0.1:0");
    let address = exporter.address.clone();
    for kill in 0..number("FARBUS_KILLS", 6) {
        let marker = format!("killed-{}-{kill}", std::process::id());
        let target = exporter.target("zero");
        let words = ["run", &target, "--", PYTHON, "-c", WORKS, &marker];
        let mut command = ordinary(&harness, &words);
        command.stdin(Stdio::null());
        let mut process = Running::start(command);
        process.wait_for_line("works");
        let is_program = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(PYTHON.as_bytes())
        };
        let kill_program = || {
            for pid in pids_of(&marker).into_iter().filter(is_program) {
                let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        };
        // The six orders of two of the three; the third ends by itself, or is killed last.
        match kill % 6 {
            0 => {
                kill_program();
                process.kill();
            }
            1 => {
                process.kill();
                kill_program();
            }
            2 => {
                exporter.process.kill();
                kill_program();
            }
            3 => {
                exporter.process.kill();
                process.kill();
            }
            4 => {
                kill_program();
                exporter.process.kill();
            }
            _ => {
                process.kill();
                exporter.process.kill();
            }
        }
        wait_until(PATIENCE, "no process is left", || {
            kill_program();
            pids_of(&marker).is_empty()
        });
        assert_eq!(left_mounts(), Vec::<String>::new());
        if kill % 6 >= 2 {
            exporter = offer(&address);
        }
        wait_until_free(&harness, &exporter);
    }
}
