//! Our sessions in Wireshark's USB/IP dissector: it must find every message, and none malformed.

mod world;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use world::peer::word;
use world::talk;
use world::transcript::{Transcript, Turn, Who};

/// The path of a capture.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Whether tshark is installed. Prints a note if not, and fails where nothing may be skipped.
fn has_tshark() -> bool {
    let is_here = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_here {
        let must = std::env::var_os("FARBUS_REQUIRE_RIG").is_some_and(|value| value == "1");
        assert!(
            !must,
            "tshark is missing, and FARBUS_REQUIRE_RIG=1 lets nothing be skipped: install the package tshark"
        );
        // The test harness shows turns output only for failed tests.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: tshark is missing; install the package tshark to have our sessions read by Wireshark"
        );
    }
    is_here
}

/// The fields that the dissectors print.
const FIELDS: [&str; 8] = [
    "usbip.operation",
    "usbip.urb",
    "usbip.sequence_no",
    "usbip.status",
    "usbip.iso.num_of_packets",
    "usb.idVendor",
    "_ws.malformed",
    "_ws.expert.severity",
];

/// Expert information of this severity or above is a warning or an error; below are chats and notes.
const WARNING: u32 = 0x60_0000;

/// Every value of every field, in the order of the frames.
struct Seen(Vec<Vec<String>>);

impl Seen {
    fn of(capture: &Path) -> Self {
        let mut command = Command::new("tshark");
        // The dissector knows the port but must be told to use it; checksums are verified.
        command.args(["-d", "tcp.port==3240,usbip", "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
        command.arg("-r").arg(capture).args(["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,"]);
        FIELDS.iter().for_each(|field| _ = command.args(["-e", field]));
        let output = command.output().expect("tshark was here just now");
        assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
        let turns = String::from_utf8(output.stdout).expect("tshark prints text");
        let mut columns = vec![Vec::new(); FIELDS.len()];
        for line in turns.lines() {
            for (column, cell) in columns.iter_mut().zip(line.split('\t')) {
                column.extend(cell.split(',').filter(|value| !value.is_empty()).map(str::to_owned));
            }
        }
        Self(columns)
    }

    fn texts(&self, field: &str) -> &[String] {
        &self.0[FIELDS.iter().position(|known| *known == field).expect("a field that was asked for")]
    }

    fn numbers(&self, field: &str) -> Vec<u32> {
        self.texts(field).iter().map(|text| number(text)).collect()
    }
}

fn written(name: &str, sessions: &[Transcript]) -> PathBuf {
    let path = file(name);
    std::fs::write(&path, world::pcap::capture(sessions)).expect("the target folder can be written");
    path
}

/// Numbers as tshark prints them, decimal or hexadecimal.
fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).expect("a number"),
        None => text.parse::<i64>().expect("a number") as u32,
    }
}

/// The messages of the handshakes, or those of URBs.
fn messages(sessions: &[Transcript], is_urb: bool) -> Vec<&Turn> {
    let turns = sessions.iter().flat_map(|session| &session.turns);
    turns.filter(|turn| (word(&turn.bytes, 0) < 5) == is_urb).collect()
}

#[test]
fn wireshark_finds_every_message_and_none_malformed() {
    if !has_tshark() {
        return;
    }
    let sessions = [talk::list_session(), talk::refused_session(), talk::device_session()];
    let capture = written("sessions.pcap", &sessions);
    let seen = Seen::of(&capture);
    assert_eq!(seen.texts("_ws.malformed"), [""; 0]);
    let serious: Vec<u32> =
        seen.numbers("_ws.expert.severity").into_iter().filter(|&severity| severity >= WARNING).collect();
    assert_eq!(serious, [], "warnings and errors of any layer, checksums among them: {}", capture.display());

    let turns = messages(&sessions, false);
    assert_eq!(
        seen.numbers("usbip.operation"),
        turns.iter().map(|turn| word(&turn.bytes, 0) & 0xffff).collect::<Vec<_>>()
    );
    let turns = messages(&sessions, true);
    assert_eq!(seen.numbers("usbip.urb"), turns.iter().map(|turn| word(&turn.bytes, 0)).collect::<Vec<_>>());
    let seqnums = seen.numbers("usbip.sequence_no");
    for turn in turns {
        assert!(seqnums.contains(&word(&turn.bytes, 4)), "{} is not seen", turn.name());
    }
    // The device's descriptors, read by the USB dissector inside the USB/IP dissector.
    assert_eq!(seen.numbers("usb.idVendor").last(), Some(&0x0525), "the descriptors are read as such");
    assert!(seen.numbers("usbip.iso.num_of_packets").contains(&4));
    assert!(seen.numbers("usbip.status").contains(&(-104i32).cast_unsigned()));
}

#[test]
fn wireshark_reports_a_broken_message() {
    // Tests the test: with one byte of a length changed, the dissector must fail.
    if !has_tshark() {
        return;
    }
    let mut session = talk::device_session();
    let reply = session.turns.iter_mut().find(|turn| turn.who == Who::Server && turn.name().contains("700 bytes"));
    reply.expect("a bulk transfer is among them").bytes[26] ^= 0x01;
    let stated = messages(std::slice::from_ref(&session), true).len();
    let capture = written("broken.pcap", &[session]);
    assert_ne!(
        Seen::of(&capture).numbers("usbip.urb").len(),
        stated,
        "a message that is shorter than it says swallows the next"
    );
}
