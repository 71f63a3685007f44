//! Exporters that refuse, lie, stop within a message or fall silent, and what `farbus list` and `farbus attach` report.
//!
//! The bytes are written by hand from the protocol's document (Linux, `usbip_protocol.rst`).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Harness, PATIENCE, Share};

const OK: u32 = 0;

/// An exporter that answers its n-th connection with the n-th of these, and every later one with the last.
struct Liar {
    address: String,
}

/// What it does with one connection.
#[derive(Clone)]
enum Answer {
    /// Sends these bytes after the first message it receives, and closes.
    Say(Vec<u8>),
    /// Sends the first bytes after the handshake, the second after the next request, and closes.
    Then(Vec<u8>, Vec<u8>),
    /// Accepts and never answers.
    Silence,
    /// Sends these bytes after the first message, but only after so long, and closes.
    Late(Duration, Vec<u8>),
}

impl Liar {
    fn new(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = answers.to_vec();
        thread::spawn(move || {
            for (n, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let answer = answers[n.min(answers.len() - 1)].clone();
                // A peer that closes first is not this test's concern.
                thread::spawn(move || give(stream, answer).is_ok());
            }
        });
        Self { address }
    }
}

fn give(mut stream: TcpStream, answer: Answer) -> std::io::Result<()> {
    hear(&mut stream)?;
    match answer {
        Answer::Say(bytes) => stream.write_all(&bytes),
        Answer::Then(greeting, bytes) => {
            stream.write_all(&greeting)?;
            hear(&mut stream)?;
            stream.write_all(&bytes)
        }
        Answer::Late(after, bytes) => {
            // waits: the exporter is that slow; it is what the test is about
            thread::sleep(after);
            stream.write_all(&bytes)
        }
        Answer::Silence => loop {
            hear(&mut stream)?;
        },
    }
}

/// Reads something; the end of the stream is an error.
fn hear(stream: &mut TcpStream) -> std::io::Result<()> {
    match stream.read(&mut [0; 1 << 12])? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// An operation header: version, code, status.
fn op(version: u16, code: u16, status: u32) -> Vec<u8> {
    [&version.to_be_bytes()[..], &code.to_be_bytes(), &status.to_be_bytes()].concat()
}

/// The 312 bytes of a high-speed disk with one interface.
fn record(bus_id: &str) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    bytes[..4].copy_from_slice(b"/sys");
    bytes.extend(bus_id.bytes().chain(std::iter::repeat(0)).take(32));
    bytes.extend([1u32, 2, 3].iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend([0x1234u16, 0x5678, 0x0100].iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend([0, 0, 0, 1, 1, 1]);
    bytes
}

fn list(devices: &[&str]) -> Vec<u8> {
    let mut bytes = [op(0x0111, 5, OK), (devices.len() as u32).to_be_bytes().to_vec()].concat();
    for bus_id in devices {
        bytes.extend(record(bus_id));
        bytes.extend([8, 6, 0x50, 0]);
    }
    bytes
}

fn imported(bus_id: &str) -> Vec<u8> {
    [op(0x0111, 3, OK), record(bus_id)].concat()
}

/// USBIP_RET_SUBMIT, the answer to a submitted URB, without data.
fn answered(seqnum: u32, status: u32, actual_length: u32) -> Vec<u8> {
    let words = [3, seqnum, 0, 0, 0, status, actual_length, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

fn say(bytes: impl Into<Vec<u8>>) -> Answer {
    Answer::Say(bytes.into())
}

/// `farbus attach` of `1-1` there has to end with this code, and with this attribute before its message.
fn assert_refused(what: &str, answers: &[Answer], code: i32, word: &str) -> String {
    let harness = Harness::new();
    let liar = Liar::new(answers);
    let outcome = harness.run(&["attach", &format!("{}/1-1", liar.address), "--via", "fuse"]);
    let says_so = outcome.stderr.lines().any(|line| line.starts_with(&format!("farbus: {word}: ")));
    assert!(outcome.code == Some(code) && says_so, "{what}: not {word} ({code}): {outcome:?}");
    outcome.stderr
}

#[test]
fn each_usbip_refusal_status_has_its_own_failure_attribute() {
    let refusal = |status| [say(list(&["1-1"])), say(op(0x0111, 3, status))];
    assert_refused("not available", &refusal(1), 3, "refused");
    let busy = assert_refused("busy", &refusal(2), 3, "refused");
    assert!(busy.contains("in use"), "{busy}");
    assert_refused("device error", &refusal(3), 6, "device");
    assert_refused("no device", &refusal(4), 4, "gone");
    assert_refused("error", &refusal(5), 3, "refused");
    assert_refused("a word of the future", &refusal(77), 3, "refused");
}

/// Linux's usbipd does not list a device in use, and reports it only when it is asked for.
#[test]
fn device_that_an_exporter_does_not_list_is_reported_as_in_use_or_gone() {
    let unlisted = |status| [say(list(&["1-2"])), say(op(0x0111, 3, status))];
    let busy = assert_refused("busy and not listed", &unlisted(2), 3, "refused");
    assert!(busy.contains("in use"), "{busy}");
    let gone = assert_refused("no device and not listed", &unlisted(4), 4, "gone");
    assert!(gone.contains("shares no '1-1'; it shares: 1-2"), "{gone}");
    let nothing = assert_refused("nothing is bound", &[say(list(&[])), say(op(0x0111, 3, 4))], 4, "gone");
    assert!(nothing.contains("offers no device at all") && nothing.contains("usbip bind"), "{nothing}");
    let gone = assert_refused("not available and not listed", &unlisted(1), 4, "gone");
    assert!(gone.contains("shares no '1-1'; it shares: 1-2"), "{gone}");
}

#[test]
fn replies_that_break_the_protocol_are_device_failures() {
    let listed = || say(list(&["1-1"]));
    let other_device = [listed(), say(imported("1-2"))];
    let too_much = [listed(), Answer::Then(imported("1-1"), answered(1, 0, 4096))];
    let unknown = [listed(), Answer::Then(imported("1-1"), answered(4711, 0, 0))];
    for (what, answers) in [
        ("another version", &[say(op(0x0106, 5, OK))][..]),
        ("another operation", &[say(op(0x0111, 3, OK))]),
        ("a list without end", &[say([op(0x0111, 5, OK), vec![0xff; 4]].concat())]),
        ("a web server", &[say(*b"HTTP/1.1 400 Bad Request\r\n\r\n")]),
        ("another device", &other_device),
        ("more bytes than there is room for", &too_much),
        ("an answer to nothing", &unknown),
    ] {
        assert_refused(what, answers, 6, "device");
    }
}

#[test]
fn exporter_that_stops_within_a_message_is_a_network_failure() {
    let listed = || say(list(&["1-1"]));
    let half_a_list = [say(&list(&["1-1"])[..100])];
    let half_a_device = [listed(), say(&imported("1-1")[..200])];
    let half_an_answer = [listed(), Answer::Then(imported("1-1"), answered(1, 0, 18)[..20].to_vec())];
    let no_answer = [listed(), say(imported("1-1"))];
    for (what, answers) in [
        ("half a list", &half_a_list[..]),
        ("half a device", &half_a_device),
        ("no answer to a request", &no_answer),
        ("half an answer", &half_an_answer),
    ] {
        assert_refused(what, answers, 5, "network");
    }
    // A share of this machine hangs up on users that it does not serve.
    assert_refused("nothing", &[say([])], 3, "refused");
}

/// usbipd-win restarts a device, and claims it for up to 10 s, before it answers.
#[test]
fn exporter_may_take_longer_for_an_import_than_for_a_list() {
    let late = Answer::Late(Duration::from_secs(12), op(0x0111, 3, 2));
    let busy = assert_refused("busy, after 12 s", &[say(list(&["1-1"])), late], 3, "refused");
    assert!(busy.contains("in use"), "{busy}");
}

#[test]
fn attach_to_a_silent_exporter_times_out() {
    let harness = Harness::new();
    let liar = Liar::new(&[Answer::Silence]);
    let began = Instant::now();
    let outcome = harness.run(&["list", &liar.address]);
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn failed_attach_gives_its_device_back() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    // The device is no disk: it is attached, looked at and given back before the error is reported.
    for _ in 0..2 {
        let outcome = harness.run(&["attach", &share.target("zero"), "--via", "fuse"]);
        assert_eq!(outcome.code, Some(6), "{outcome:?}");
    }
}

/// A proxy before an exporter of plain USB/IP, whose device has the second of these interface descriptors in place of
/// the first, and this speed (`enum usb_device_speed`) if one is given. Returns the proxy's address.
pub fn as_another(share: &Share, interface: [[u8; 8]; 2], speed: Option<u32>) -> SocketAddr {
    let (listener, exporter) = (TcpListener::bind("127.0.0.1:0").unwrap(), share.address.clone());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for importer in listener.incoming().map_while(Result::ok) {
            let exporter = TcpStream::connect(&exporter).unwrap();
            let (mut from, mut to) = (importer.try_clone().unwrap(), exporter.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write)));
            thread::spawn(move || copy_as_another(exporter, importer, interface, speed));
        }
    });
    address
}

/// OP_REP_IMPORT, and where it has the speed.
const IMPORTED: [u8; 4] = [1, 0x11, 0, 3];
const SPEED_AT: usize = 8 + 256 + 32 + 2 * 4;

fn copy_as_another(
    mut from: TcpStream,
    mut to: TcpStream,
    [own, another]: [[u8; 8]; 2],
    speed: Option<u32>,
) -> std::io::Result<()> {
    let mut bytes = [0; 64 << 10];
    loop {
        // A device with so few descriptors sends each answer at once.
        let count = from.read(&mut bytes)?;
        if count == 0 {
            return to.shutdown(Shutdown::Write);
        }
        if let Some(at) = bytes[..count].windows(8).position(|part| part == own) {
            bytes[at..at + 8].copy_from_slice(&another);
        }
        if let Some(speed) = speed.filter(|_| bytes[..4] == IMPORTED && count >= SPEED_AT + 4) {
            bytes[SPEED_AT..SPEED_AT + 4].copy_from_slice(&speed.to_be_bytes());
        }
        to.write_all(&bytes[..count])?;
    }
}

#[test]
fn disk_that_speaks_uas_alone_is_sent_to_what_works_and_not_in_a_circle() {
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let interface = [[9, 4, 0, 0, 2, 8, 6, 0x50], [9, 4, 0, 0, 2, 8, 6, 0x62]];
    for (speed, part) in [(3, "--via fuse, nbd and uas need Bulk-Only"), (5, "a high-speed port of its host")] {
        let target = format!("{}/disk", as_another(&share, interface, Some(speed)));
        for via in ["nbd", "fuse"] {
            let refused = harness.run(&["attach", &target, "--via", via, "--grace", "0"]);
            assert!(refused.code == Some(6) && refused.stderr.contains(part), "{refused:?}");
            assert!(refused.stderr.contains("--via kernel") && !refused.stderr.contains("--via uas "), "{refused:?}");
        }
    }
}
