//! The current importer and the current exporter in one session, which is recorded.

use std::io::IoSlice;
use std::time::Duration;

use farbus_gadgets::EmulatedDevice;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::descriptor::{DescriptorSet, DeviceDescriptor, UsbConfiguration};
use farbus_model::{
    CompletionQueue, Device, EpAddr, Instant, IsoPacket, Payload, SessionLimits, SetupPacket, Urb, UrbCompletion,
    UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::{ImportHandshake, RemoteDevice};

use super::loopback::Loopback;
use super::peer::BUS_ID;
use super::relay::{completions, receive};
use super::transcript::{Transcript, Who};

/// Limits of a session in which no limit is reached.
pub const LIMITS: SessionLimits = SessionLimits { receive_bytes: 4096, ..SessionLimits::DEFAULT };

/// The device of the sessions: a source that counts and a sink that checks.
pub fn zero() -> EmulatedDevice<SourceSink> {
    SourceSink::device(UsbSpeed::High, SourcePattern::Mod63, true)
}

/// The bytes of runs of memory.
pub fn flat(runs: &[IoSlice<'_>]) -> Vec<u8> {
    runs.iter().flat_map(|run| run.iter().copied()).collect()
}

/// Delivers bytes to a handshake; returns its result.
pub fn greet(handshake: &mut ImportHandshake, mut bytes: &[u8]) -> Option<HandshakeAnswer> {
    let mut greeting = None;
    while !bytes.is_empty() {
        let space = handshake.receive_space();
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        greeting = handshake.handle_received(count).expect("an exporter breaks no rule");
    }
    greeting
}

/// What a handshake sends.
pub fn said_by(handshake: &mut ImportHandshake) -> Vec<u8> {
    let bytes = flat(&handshake.poll_transmit());
    handshake.handle_transmitted(bytes.len());
    bytes
}

/// The session of a client that lists the devices.
pub fn list_session() -> Transcript {
    let mut exporter = Recorded::new();
    let mut handshake = ImportHandshake::list(LIMITS);
    exporter.hears(&said_by(&mut handshake));
    let greeting = greet(&mut handshake, &exporter.says());
    assert!(matches!(greeting, Some(HandshakeAnswer::Devices(devices)) if devices.len() == 1));
    exporter.transcript
}

/// The session of a client that is refused an unknown device.
pub fn refused_session() -> Transcript {
    let mut exporter = Recorded::new();
    let mut handshake = ImportHandshake::import(LIMITS, "7-7");
    exporter.hears(&said_by(&mut handshake));
    let greeting = greet(&mut handshake, &exporter.says());
    assert!(matches!(greeting, Some(HandshakeAnswer::Refused(status)) if status.code() == 4));
    exporter.transcript
}

/// The session of a device: import, enumeration, transfers of every kind, a stall, and both outcomes of an unlink.
pub fn device_session() -> Transcript {
    let mut exporter = Recorded::new();
    let mut handshake = ImportHandshake::import(LIMITS, BUS_ID);
    exporter.hears(&said_by(&mut handshake));
    let Some(HandshakeAnswer::Imported(record)) = greet(&mut handshake, &exporter.says()) else {
        panic!("not imported")
    };
    let mut session = Session { exporter, remote: handshake.into_device(record), done: completions(), next_id: 1 };
    session.enumerate();
    session.transfer();
    session.transfer_isochronous();
    session.stall();
    session.withdraw();
    assert_eq!(session.remote.in_flight(), 0);
    session.exporter.transcript
}

/// An exporter with a record of its bytes and its client's.
struct Recorded {
    loopback: Loopback<EmulatedDevice<SourceSink>>,
    transcript: Transcript,
}

impl Recorded {
    fn new() -> Self {
        Self { loopback: Loopback::connected(zero(), LIMITS), transcript: Transcript::default() }
    }

    fn hears(&mut self, bytes: &[u8]) {
        self.transcript.record(Who::Client, self.loopback.now.as_nanos(), bytes);
        self.loopback.receive(bytes).expect("an importer breaks no rule");
    }

    fn says(&mut self) -> Vec<u8> {
        let bytes = self.loopback.read_bytes(usize::MAX);
        self.transcript.record(Who::Server, self.loopback.now.as_nanos(), &bytes);
        bytes
    }
}

struct Session {
    exporter: Recorded,
    remote: RemoteDevice,
    done: CompletionQueue,
    next_id: u64,
}

const ANY: Instant = Instant::ZERO;

impl Session {
    fn submit(&mut self, make: impl FnOnce(UrbId) -> Urb) -> UrbId {
        let id = UrbId(self.next_id);
        self.next_id += 1;
        self.remote.submit(ANY, make(id).launch(), &mut self.done);
        self.speak();
        id
    }

    fn speak(&mut self) {
        let bytes = flat(&self.remote.poll_transmit());
        self.remote.handle_transmitted(bytes.len(), &mut self.done);
        self.exporter.hears(&bytes);
    }

    fn listen(&mut self) -> Vec<UrbCompletion> {
        let bytes = self.exporter.says();
        receive(&mut self.remote, &bytes, &mut self.done).expect("an exporter breaks no rule");
        std::iter::from_fn(|| self.done.pop()).collect()
    }

    fn pass(&mut self, span: Duration) {
        self.exporter.loopback.pass(span);
    }

    fn ask(&mut self, make: impl FnOnce(UrbId) -> Urb) -> UrbCompletion {
        self.submit(make);
        self.pass(Duration::from_millis(1));
        self.listen().pop().expect("it is answered by now")
    }

    fn control(&mut self, setup: SetupPacket, data: &[u8]) -> UrbCompletion {
        self.ask(|id| Urb::control(id, setup, data.into()))
    }

    fn enumerate(&mut self) {
        let descriptor =
            |kind, index, length| SetupPacket::get_descriptor(kind, index, if kind == 3 { 0x0409 } else { 0 }, length);
        self.control(descriptor(1, 0, 8), &[]);
        let device = self.control(descriptor(1, 0, 18), &[]).payload.into_vec();
        self.control(descriptor(2, 0, 9), &[]);
        let configuration = self.control(descriptor(2, 0, 255), &[]).payload.into_vec();
        for index in 0..4 {
            self.control(descriptor(3, index, 255), &[]);
        }
        self.remote.set_descriptors(DescriptorSet {
            device: DeviceDescriptor::parse(&device).expect("a device descriptor"),
            configurations: vec![UsbConfiguration::parse(&configuration).expect("a configuration")],
            ..DescriptorSet::default()
        });
        assert_eq!(self.control(SetupPacket::set_configuration(1), &[]).status, UrbStatus::Ok);
    }

    fn transfer(&mut self) {
        let (source, sink) = (EpAddr::from_byte(0x81), EpAddr::from_byte(0x01));
        let came = self.ask(|id| Urb::data_in(id, source, 700)).payload;
        assert_eq!(came.len(), 700);
        assert_eq!(self.ask(|id| Urb::data_out(id, sink, came)).status, UrbStatus::Ok);
        let write = SetupPacket { request_type: 0x40, request: 0x5b, value: 0, index: 0, length: 5 };
        let read = SetupPacket { request_type: 0xc0, request: 0x5c, value: 0, index: 0, length: 64 };
        self.control(write, b"hello");
        assert_eq!(self.control(read, &[]).payload.into_vec(), b"hello", "a short answer");
        let endpoint = EpAddr::from_byte(0x82);
        assert_eq!(self.ask(|id| Urb::data_in(id, endpoint, 16)).payload.len(), 16);
    }

    fn transfer_isochronous(&mut self) {
        let packets = |lengths: &[u32]| {
            let packet =
                |(n, &length): (usize, &u32)| IsoPacket { offset: 64 * n as u32, length, ..IsoPacket::default() };
            lengths.iter().enumerate().map(packet).collect::<Vec<_>>()
        };
        let mut urb = Urb::data_in(UrbId(0), EpAddr::from_byte(0x83), 256);
        urb.iso = packets(&[64, 0, 10, 64]);
        urb.flags.iso_asap = true;
        let came = self.ask(|id| Urb { id, ..urb });
        assert_eq!((came.actual, came.error_count), (138, 0));
        let one: Vec<u8> = (0..64u8).map(|at| at % 63).collect();
        let mut urb = Urb::data_out(UrbId(0), EpAddr::from_byte(0x03), [one.clone(), one].concat().into());
        urb.iso = packets(&[64, 64]);
        assert_eq!(self.ask(|id| Urb { id, ..urb }).actual, 128);
    }

    fn stall(&mut self) {
        let sink = EpAddr::from_byte(0x01);
        assert_eq!(self.ask(|id| Urb::data_out(id, sink, Payload::from(vec![0xee; 9]))).status, UrbStatus::Stall);
        assert_eq!(self.control(SetupPacket::clear_halt(sink), &[]).status, UrbStatus::Ok);
        assert_eq!(self.control(SetupPacket::get_descriptor(0x77, 0, 0, 8), &[]).status, UrbStatus::Stall);
    }

    fn withdraw(&mut self) {
        // The second request waits for the endpoint's interval.
        let endpoint = EpAddr::from_byte(0x82);
        self.submit(|id| Urb::data_in(id, endpoint, 64));
        let waiting = self.submit(|id| Urb::data_in(id, endpoint, 64));
        assert_eq!(self.listen().len(), 1);
        self.remote.cancel(ANY, waiting, &mut self.done);
        self.speak();
        assert_eq!(self.listen()[0].status, UrbStatus::Cancelled);
        // The answer of this request is on its way when it is unlinked.
        let source = EpAddr::from_byte(0x81);
        let answered = self.submit(|id| Urb::data_in(id, source, 4));
        self.remote.cancel(ANY, answered, &mut self.done);
        self.speak();
        assert_eq!(self.listen()[0].status, UrbStatus::Ok);
    }
}
