//! Our server in Wireshark's NBD dissector: it must find every request and reply, and none malformed. It supports only
//! replies without structure (as Linux's own client requests) and only reads and writes, and recognises the protocol by
//! its magic once the handshake is over.

mod world;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use farbus_model::block::MemoryStore;
use farbus_model::{BlockDevice, BufferPool, CompletionQueue, Instant, SessionLimits};
use farbus_session::block::StoreDevice;
use farbus_session::nbd::message::{NbdRequest, command};
use farbus_session::nbd::{NbdExportDescription, NbdServerConn};
use world::transcript::{Transcript, Turn, Who};

/// Our server over a store, and the messages of both sides.
struct Session {
    conn: NbdServerConn,
    device: StoreDevice<MemoryStore>,
    transcript: Transcript,
}

impl Session {
    fn new() -> Self {
        let device = StoreDevice::new(MemoryStore::new(vec![0x5a; 1 << 20]));
        let exports: Arc<[NbdExportDescription]> = [NbdExportDescription {
            name: String::new(),
            description: "a disk".into(),
            info: *device.info(),
            zeroes_fast: true,
        }]
        .into();
        let mut session = Self {
            conn: NbdServerConn::new(0, exports, &SessionLimits::DEFAULT),
            device,
            transcript: Transcript::default(),
        };
        session.answer();
        session
    }

    fn note(&mut self, who: Who, bytes: Vec<u8>) {
        let at_ns = 1000 * (self.transcript.turns.len() as u64 + 1);
        self.transcript.turns.push(Turn { at_ns, who, bytes });
    }

    fn say(&mut self, bytes: &[u8]) {
        self.note(Who::Client, bytes.to_vec());
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.conn.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            self.conn.handle_received(count);
            rest = &rest[count..];
        }
        self.answer();
    }

    fn answer(&mut self) {
        let mut done = CompletionQueue::new(BufferPool::new(1 << 20));
        while let Some(request) = self.conn.poll_request().expect("we keep to the rules") {
            self.device.submit(Instant::ZERO, request.launch(), &mut done);
            let answer = done.pop().expect("a store answers at once");
            self.conn.complete(answer, &mut done.pool);
        }
        while self.conn.backlog_bytes() > 0 {
            let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
            self.conn.handle_transmitted(bytes.len(), &mut done.pool);
            self.note(Who::Server, bytes);
        }
    }

    fn ask(&mut self, command: u16, cookie: u64, offset: u64, length: u32) {
        let request = NbdRequest { flags: 0, command, cookie, offset, length };
        let data = if command == command::WRITE { vec![0xa5; length as usize] } else { Vec::new() };
        self.say(&[&request.to_bytes()[..], &data].concat());
    }
}

#[test]
fn wireshark_finds_every_request_and_its_reply_and_none_malformed() {
    if !Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success()) {
        assert_ne!(
            std::env::var("FARBUS_REQUIRE_RIG").as_deref(),
            Ok("1"),
            "tshark is missing: install the package tshark"
        );
        // The test harness shows printed output only for failed tests.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: tshark is missing; install the package tshark to have NBD read by Wireshark"
        );
        return;
    }
    let mut session = Session::new();
    session.say(&3u32.to_be_bytes());
    session.say(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
    let requests = [
        (command::READ, 0, 512),
        (command::WRITE, 4096, 8192),
        (command::READ, 4096, 100_000),
        (command::WRITE, 1_000_000, 700),
        (command::WRITE, (1 << 20) - 100, 512),
    ];
    for (at, (command, offset, length)) in requests.into_iter().enumerate() {
        session.ask(command, 0x1111 * (at as u64 + 1), offset, length);
    }
    let capture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nbd.pcap");
    std::fs::write(&capture, world::pcap::capture(&[session.transcript])).expect("the target folder can be written");

    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&capture).args(["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,"]);
    for field in ["nbd.len", "nbd.error", "nbd.response_to", "_ws.malformed"] {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().expect("tshark was here just now");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let mut columns = vec![Vec::new(); 4];
    for line in String::from_utf8(output.stdout).expect("tshark prints text").lines() {
        for (column, cell) in columns.iter_mut().zip(line.split('\t')) {
            column.extend(cell.split(',').filter(|value| !value.is_empty()).map(str::to_owned));
        }
    }
    let [lengths, errors, answered, malformed] = columns.try_into().expect("four columns");
    let number = |text: &String| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).expect("a number"),
        None => text.parse().expect("a number"),
    };
    let numbers = |texts: &[String]| texts.iter().map(number).collect::<Vec<_>>();
    assert_eq!(numbers(&lengths), requests.map(|(_, _, length)| length), "{}", capture.display());
    assert_eq!(numbers(&errors), [0, 0, 0, 0, 28]);
    assert_eq!(answered.len(), requests.len(), "each reply finds its request");
    assert_eq!(malformed, [""; 0]);
}
