//! usbredir: golden vectors, refusals, and independence of how bytes are cut.
//!
//! The files in `golden_usbredir/` are written from the protocol's document, as those of `golden.rs` are.

mod fuzzing;
mod peer;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farbus_model::{BufferPool, EpAddr, Limits, Payload, Setup, Speed, TransferType};
use farbus_wire::usbip::Reject;
use farbus_wire::usbredir::info::{PLACES, endpoint_at, place_of};
use farbus_wire::usbredir::message::{ControlPacket, DataPacket};
use farbus_wire::usbredir::{
    Capability, Caps, Conn, DeviceConnect, EndpointInfo, EpInfo, InterfaceInfo, InterfaceKind, Message, Outcome,
    Packet, Side,
};
use fuzzing::{Input, fuzz};

const LIMITS: Limits = Limits { receive_bytes: 2048, ..Limits::DEFAULT };
const ALL: Caps = Caps::from_bits(0xff);
/// Ids of 32 bits, lengths of 16, nothing optional.
const OLD: Caps = Caps::NONE;

fn ep(byte: u8) -> EpAddr {
    EpAddr::from_byte(byte)
}

fn data(endpoint: u8, length: u32, payload: &[u8]) -> DataPacket {
    DataPacket { endpoint: ep(endpoint), outcome: Outcome::Success, length, stream: 0, payload: payload.into() }
}

fn control(request_type: u8, request: u8, value: u16, length: u16, payload: &[u8]) -> Message {
    let setup = Setup { request_type, request, value, index: 0, length };
    Message::Control(ControlPacket { number: 0, setup, outcome: Outcome::Success, payload: payload.into() })
}

fn endpoints() -> Box<EpInfo> {
    let mut info = EpInfo::default();
    for place in [0, 16] {
        info.0[place] =
            EndpointInfo { kind: Some(TransferType::Control), packet_bytes_max: 64, ..EndpointInfo::default() };
    }
    info.0[place_of(ep(2))] = EndpointInfo {
        kind: Some(TransferType::Bulk),
        packet_bytes_max: 512,
        streams_max: 16,
        ..EndpointInfo::default()
    };
    info.0[place_of(ep(0x81))] = EndpointInfo {
        kind: Some(TransferType::Interrupt),
        interval: 4,
        interface: 3,
        packet_bytes_max: 8,
        streams_max: 0,
    };
    Box::new(info)
}

fn connect(speed: Speed, class: [u8; 3], device_bcd: u16) -> Message {
    Message::DeviceConnect(DeviceConnect { speed: Some(speed), class, vendor: 0x0525, product: 0xa5a4, device_bcd })
}

/// Every golden file, its receiver, the common capabilities, and its message.
fn vectors() -> Vec<(&'static str, Side, Caps, Packet)> {
    let from_host = from_host().into_iter().map(|(name, caps, id, message)| (name, Side::Guest, caps, id, message));
    let from_guest = from_guest().into_iter().map(|(name, caps, id, message)| (name, Side::Host, caps, id, message));
    from_host.chain(from_guest).map(|(name, to, caps, id, message)| (name, to, caps, Packet { id, message })).collect()
}

fn from_host() -> Vec<(&'static str, Caps, u64, Message)> {
    use Outcome::{IoError, Success};
    let interface = |number, class| InterfaceKind { number, class };
    let disk_and_keyboard = InterfaceInfo(vec![interface(0, [8, 6, 0x50]), interface(3, [3, 1, 1])]);
    let timed_out = DataPacket { outcome: Outcome::TimedOut, ..data(1, 0, b"") };
    vec![
        ("hello", OLD, 0, Message::Hello { version: "farbus 0.1.0".into(), caps: Caps::from_bits(0xfa) }),
        ("device_connect", ALL, 0, connect(Speed::Super, [0; 3], 0x0409)),
        ("device_connect_short", OLD, 0, connect(Speed::Full, [0xef, 2, 1], 0)),
        ("device_disconnect", ALL, 0, Message::DeviceDisconnect),
        ("interface_info", ALL, 0, Message::InterfaceInfo(Box::new(disk_and_keyboard))),
        ("ep_info", ALL, 0, Message::EpInfo(endpoints())),
        ("configuration_status", ALL, 0xdead_beef, Message::ConfigurationStatus { outcome: Success, configuration: 2 }),
        (
            "alt_setting_status",
            ALL,
            7,
            Message::AltSettingStatus { outcome: Outcome::Invalid, interface: 1, alternate: 0 },
        ),
        ("iso_stream_status", ALL, 0, Message::IsoStreamStatus { outcome: Outcome::Stall, endpoint: ep(0x83) }),
        (
            "interrupt_receiving_status",
            ALL,
            0,
            Message::InterruptReceivingStatus { outcome: Success, endpoint: ep(0x81) },
        ),
        (
            "bulk_streams_status",
            ALL,
            0,
            Message::BulkStreamsStatus { endpoints: 1 << 17 | 1 << 2, streams: 16, outcome: IoError },
        ),
        (
            "bulk_receiving_status",
            ALL,
            0,
            Message::BulkReceivingStatus { stream: 0, endpoint: ep(0x81), outcome: Success },
        ),
        ("control_packet_in_answer", ALL, 16, control(0x80, 6, 0x0100, 4, &[0x12, 1, 0, 2])),
        ("bulk_packet_out_answer", ALL, 18, Message::Bulk(data(2, 3, b""))),
        ("iso_packet", ALL, 42, Message::Iso(data(0x83, 2, &[0xaa, 0xbb]))),
        ("interrupt_packet", ALL, 0, Message::Interrupt(data(0x81, 8, &[0, 0, 4, 0, 0, 0, 0, 0]))),
        ("interrupt_packet_out_answer", ALL, 9, Message::Interrupt(timed_out)),
        ("buffered_bulk_packet", ALL, 3, Message::BufferedBulk(data(0x81, 2, &[1, 0x60]))),
    ]
}

fn from_guest() -> Vec<(&'static str, Caps, u64, Message)> {
    let start_iso = Message::StartIsoStream { endpoint: ep(0x83), packets_per_urb: 32, urbs: 16 };
    let start_bulk =
        Message::StartBulkReceiving { stream: 0, bytes_per_transfer: 512, endpoint: ep(0x81), transfers: 5 };
    let on_a_stream = DataPacket { stream: 5, ..data(2, 3, b"abc") };
    vec![
        ("reset", ALL, 0, Message::Reset),
        ("set_configuration", ALL, 0xdead_beef, Message::SetConfiguration(2)),
        ("get_configuration", ALL, 0x1_0000_0001, Message::GetConfiguration),
        ("set_alt_setting", ALL, 7, Message::SetAltSetting { interface: 1, alternate: 2 }),
        ("get_alt_setting", ALL, 7, Message::GetAltSetting { interface: 1 }),
        ("start_iso_stream", ALL, 0, start_iso),
        ("stop_iso_stream", ALL, 0, Message::StopIsoStream(ep(0x83))),
        ("start_interrupt_receiving", ALL, 0, Message::StartInterruptReceiving(ep(0x81))),
        ("stop_interrupt_receiving", ALL, 0, Message::StopInterruptReceiving(ep(0x81))),
        ("alloc_bulk_streams", ALL, 0, Message::AllocBulkStreams { endpoints: 1 << 17 | 1 << 2, streams: 16 }),
        ("free_bulk_streams", ALL, 0, Message::FreeBulkStreams { endpoints: 1 << 17 | 1 << 2 }),
        ("cancel_data_packet", ALL, 0x1_dead_beef, Message::CancelDataPacket),
        ("filter_reject", ALL, 0, Message::FilterReject),
        ("filter_filter", ALL, 0, Message::FilterFilter("0x03,-1,-1,-1,0|-1,-1,-1,-1,1".into())),
        ("device_disconnect_ack", ALL, 0, Message::DeviceDisconnectAck),
        ("start_bulk_receiving", ALL, 0, start_bulk),
        ("stop_bulk_receiving", ALL, 0, Message::StopBulkReceiving { stream: 0, endpoint: ep(0x81) }),
        ("control_packet_in", ALL, 16, control(0x80, 6, 0x0100, 18, b"")),
        ("control_packet_out", OLD, 17, control(0x40, 0x5b, 0, 3, b"abc")),
        ("bulk_packet_in", ALL, 0x80_0000_0000, Message::Bulk(data(0x81, 0x12345, b""))),
        ("bulk_packet_out_short", OLD, 18, Message::Bulk(on_a_stream)),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden_usbredir")
}

/// The bytes of a golden file.
fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name).with_extension("hex");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().flat_map(|line| line_bytes(line).unwrap_or_else(|| panic!("{name}: {line}"))).collect()
}

fn line_bytes(line: &str) -> Option<Vec<u8>> {
    if let Some(quoted) = line.strip_prefix('"') {
        let (text, rest) = quoted.split_once("\"/")?;
        let bytes = rest.split_whitespace().next()?.parse().ok()?;
        return Some(peer::padded(text, bytes));
    }
    let digits: String = line.split('#').next()?.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
}

/// A connection past its hello.
fn conn(side: Side, caps: Caps) -> Conn {
    Conn::continued(side, caps, caps, &LIMITS)
}

fn sent(conn: &mut Conn) -> Vec<u8> {
    let mut all = Vec::new();
    while conn.backlog_bytes() > 0 {
        let bytes: Vec<u8> = conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        conn.handle_transmitted(bytes.len(), &mut BufferPool::new(0));
        all.extend(bytes);
    }
    all
}

fn encoded(to: Side, caps: Caps, packet: &Packet) -> Vec<u8> {
    if let Message::Hello { version, caps } = &packet.message {
        return sent(&mut Conn::new(to.other(), version, *caps, &LIMITS));
    }
    let mut conn = conn(to.other(), caps);
    conn.send(packet.clone(), &mut BufferPool::new(0));
    sent(&mut conn)
}

/// Feeds a connection in pieces; returns the packets read, and the field that stopped it.
fn understood(conn: &mut Conn, pieces: &[&[u8]]) -> (Vec<Packet>, Result<(), &'static str>) {
    let (mut packets, mut fed) = (Vec::new(), 0);
    let mut feed = |mut rest: &[u8]| -> Result<(), Reject> {
        while !rest.is_empty() {
            let space = conn.receive_space();
            let count = space.len().min(rest.len());
            assert!(count > 0, "there is always room");
            fed += count;
            assert!(space.len() <= LIMITS.receive_bytes.max(2 * fed), "nothing is reserved that has not arrived");
            space[..count].copy_from_slice(&rest[..count]);
            conn.handle_received(count);
            rest = &rest[count..];
            while let Some(packet) = conn.poll_packet()? {
                packets.push(packet);
            }
        }
        Ok(())
    };
    let end = pieces.iter().try_for_each(|piece| feed(piece)).map_err(|reject| reject.field);
    (packets, end)
}

#[test]
fn every_packet_is_on_the_wire_as_the_document_says() {
    let mut named = BTreeSet::new();
    for (name, to, caps, packet) in vectors() {
        let golden = read(name);
        assert_eq!(encoded(to, caps, &packet), golden, "{name} is written");
        let mut conn = match packet.message {
            Message::Hello { .. } => Conn::new(to, "", ALL, &LIMITS),
            _ => conn(to, caps),
        };
        assert_eq!(understood(&mut conn, &[&golden]), (vec![packet], Ok(())), "{name} is read");
        named.insert(format!("{name}.hex"));
    }
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.collect::<BTreeSet<_>>(), named, "every file is held against the code");
}

#[test]
fn a_hello_decides_how_headers_look_behind_it() {
    let (mut host, mut guest) = (Conn::new(Side::Host, "a", ALL, &LIMITS), Conn::new(Side::Guest, "b", ALL, &LIMITS));
    let (from_host, from_guest) = (sent(&mut host), sent(&mut guest));
    let (packets, end) = understood(&mut host, &[&from_guest]);
    assert_eq!((packets.len(), end, host.common()), (1, Ok(()), Some(ALL)));
    understood(&mut guest, &[&from_host]).1.unwrap();
    let packet = Packet { id: 1 << 40, message: Message::GetConfiguration };
    guest.send(packet.clone(), &mut BufferPool::new(0));
    let bytes = sent(&mut guest);
    assert_eq!((bytes.len(), understood(&mut host, &[&bytes])), (16, (vec![packet], Ok(()))));
    let mut old = Conn::new(Side::Host, "a", ALL, &LIMITS);
    let hello_of_32_bit_ids = encoded(
        Side::Host,
        OLD,
        &Packet {
            id: 0,
            message: Message::Hello { version: "old".into(), caps: Caps::from_bits(ALL.bits() & !(1 << 5)) },
        },
    );
    let question = [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0];
    let (packets, end) = understood(&mut old, &[&hello_of_32_bit_ids, &question]);
    assert_eq!((packets.last(), end), (Some(&Packet { id: 9, message: Message::GetConfiguration }), Ok(())));
    assert!(!old.common().unwrap().has(Capability::Ids64));
}

#[test]
fn invalid_guest_packet_is_refused_with_its_field() {
    let header = |kind: u32, length: u32| [&kind.to_le_bytes()[..], &length.to_le_bytes(), &[0; 8]].concat();
    let with = |kind: u32, body: &[u8]| [header(kind, body.len() as u32), body.to_vec()].concat();
    let cases: [(&str, Vec<u8>); 18] = [
        ("type", header(0, 68)),
        ("type", header(1, 10)),
        ("type", header(28, 0)),
        ("type", header(99, 0)),
        ("type", header(104, 10)),
        ("length", header(7, 1)),
        ("length", header(6, 0)),
        ("length", header(101, u32::MAX)),
        ("length", header(101, 10 + (16 << 20) + 1)),
        ("length", header(23, 1 << 20)),
        ("length", with(101, &[0x02, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3])),
        ("length", with(101, &[0x81, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])),
        ("length", with(101, &[0x81, 0, 0, 0, 0, 0, 0, 0, 1, 1])),
        ("endpoint", with(103, &[0x81, 0, 0, 0])),
        ("endpoint", with(102, &[0x83, 0, 0, 0])),
        ("endpoint", with(15, &[0x01])),
        ("endpoint", with(12, &[0x80, 1, 1])),
        ("endpoint", with(100, &[0x00, 6, 0x80, 0, 0, 1, 0, 0, 0, 0])),
    ];
    for (field, bytes) in cases {
        let (packets, end) = understood(&mut conn(Side::Host, ALL), &[&bytes]);
        assert_eq!((packets, end), (vec![], Err(field)), "{bytes:02x?}");
    }
    let (_, end) = understood(&mut conn(Side::Host, OLD), &[&[22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]);
    assert_eq!(end, Err("type"), "a filter where not both know what that is");
    let (_, end) = understood(&mut Conn::new(Side::Host, "", ALL, &LIMITS), &[&[7; 12]]);
    assert_eq!(end, Err("type"), "nothing comes before hello");
}

fn any_outcome(input: &mut Input<'_>) -> Outcome {
    Outcome::from_code(input.byte())
}

fn any_endpoint(input: &mut Input<'_>) -> EpAddr {
    let place = 1 + input.below(15) as usize + 16 * input.below(2) as usize;
    endpoint_at(place)
}

fn any_text(input: &mut Input<'_>, length_max: u32) -> String {
    (0..input.below(length_max)).map(|_| char::from(b' ' + input.below(95) as u8)).collect()
}

/// A transfer's packet that may be sent to `to`.
fn any_data(input: &mut Input<'_>, to: Side, length_max: u32, is_pushed: bool) -> DataPacket {
    let mut endpoint = any_endpoint(input);
    let carries = |endpoint: EpAddr| (endpoint.as_byte() & 0x80 == 0) == (to == Side::Host);
    if is_pushed && !carries(endpoint) {
        endpoint = EpAddr::from_byte(endpoint.as_byte() ^ 0x80);
    }
    let length = input.below(length_max + 1);
    let bytes = if carries(endpoint) { length as usize } else { 0 };
    let payload = Payload::from(vec![endpoint.as_byte(); bytes]);
    DataPacket { endpoint, outcome: any_outcome(input), length, stream: 0, payload }
}

fn any_control(input: &mut Input<'_>, to: Side) -> ControlPacket {
    let setup = Setup::from_bytes(std::array::from_fn(|_| input.byte()));
    let setup = Setup { length: setup.length % 600, ..setup };
    let carries = (setup.request_type & 0x80 == 0) == (to == Side::Host);
    let payload = vec![7; if carries { usize::from(setup.length) } else { 0 }].into();
    ControlPacket { number: input.below(16) as u8, setup, outcome: any_outcome(input), payload }
}

fn any_packet(input: &mut Input<'_>, to: Side) -> Packet {
    let mut message = match to {
        Side::Guest => any_from_host(input),
        Side::Host => any_from_guest(input),
    };
    if input.once_in(2) {
        message = match input.below(3) {
            0 => Message::Control(any_control(input, to)),
            1 => {
                let stream = input.word();
                Message::Bulk(DataPacket { stream, ..any_data(input, to, 3000, false) })
            }
            _ => Message::Iso(any_data(input, to, 1000, true)),
        };
    }
    Packet { id: u64::from(input.word()) << 32 | u64::from(input.word()), message }
}

fn any_from_host(input: &mut Input<'_>) -> Message {
    match input.below(12) {
        0 => Message::DeviceDisconnect,
        1 => {
            let count = input.below(PLACES as u32 + 1);
            let mut kind = || InterfaceKind { number: input.byte(), class: [input.byte(), input.byte(), input.byte()] };
            Message::InterfaceInfo(Box::new(InterfaceInfo((0..count).map(|_| kind()).collect())))
        }
        2 => {
            let kinds = [None, Some(TransferType::Control), Some(TransferType::Bulk), Some(TransferType::Interrupt)];
            let mut info = EpInfo::default();
            for endpoint in &mut info.0 {
                *endpoint = EndpointInfo {
                    kind: input.pick(&kinds),
                    interval: input.byte(),
                    interface: input.byte(),
                    packet_bytes_max: input.word() as u16,
                    streams_max: input.word(),
                };
            }
            Message::EpInfo(Box::new(info))
        }
        3 => Message::ConfigurationStatus { outcome: any_outcome(input), configuration: input.byte() },
        4 => {
            Message::AltSettingStatus { outcome: any_outcome(input), interface: input.byte(), alternate: input.byte() }
        }
        5 => Message::IsoStreamStatus { outcome: any_outcome(input), endpoint: any_endpoint(input) },
        6 => {
            let endpoint = EpAddr::from_byte(any_endpoint(input).as_byte() | 0x80);
            Message::InterruptReceivingStatus { outcome: any_outcome(input), endpoint }
        }
        7 => Message::BulkStreamsStatus { endpoints: input.word(), streams: input.word(), outcome: any_outcome(input) },
        8 => Message::FilterFilter(any_text(input, 200)),
        9 => Message::Interrupt(any_data(input, Side::Guest, 300, false)),
        10 => Message::BufferedBulk(any_data(input, Side::Guest, 3000, true)),
        _ => {
            let class = [input.byte(), input.byte(), input.byte()];
            connect(input.pick(&[Speed::Low, Speed::Full, Speed::High, Speed::Super]), class, input.word() as u16)
        }
    }
}

fn any_from_guest(input: &mut Input<'_>) -> Message {
    let endpoint_in = |input: &mut Input<'_>| EpAddr::from_byte(any_endpoint(input).as_byte() | 0x80);
    match input.below(15) {
        0 => Message::Reset,
        1 => Message::SetConfiguration(input.byte()),
        2 => Message::GetConfiguration,
        3 => Message::SetAltSetting { interface: input.byte(), alternate: input.byte() },
        4 => Message::GetAltSetting { interface: input.byte() },
        5 => {
            Message::StartIsoStream { endpoint: any_endpoint(input), packets_per_urb: input.byte(), urbs: input.byte() }
        }
        6 => Message::StopIsoStream(any_endpoint(input)),
        7 => Message::StartInterruptReceiving(endpoint_in(input)),
        8 => Message::AllocBulkStreams { endpoints: input.word(), streams: input.word() },
        9 => Message::FreeBulkStreams { endpoints: input.word() },
        10 => Message::CancelDataPacket,
        11 => Message::FilterFilter(any_text(input, 200)),
        12 => Message::StartBulkReceiving {
            stream: input.word(),
            bytes_per_transfer: input.below(16 << 20),
            endpoint: endpoint_in(input),
            transfers: input.byte(),
        },
        13 => Message::StopBulkReceiving { stream: input.word(), endpoint: endpoint_in(input) },
        _ => Message::Interrupt(any_data(input, Side::Host, 300, true)),
    }
}

/// Every valid packet is decoded as it was encoded, however the bytes are cut.
#[test]
fn fuzz_usbredir_packets() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_usbredir_packets", |input| {
        let to = input.pick(&[Side::Host, Side::Guest]);
        let packets: Vec<Packet> = (0..1 + input.below(12)).map(|_| any_packet(input, to)).collect();
        let mut from = conn(to.other(), ALL);
        packets.iter().for_each(|packet| from.send(packet.clone(), &mut BufferPool::new(0)));
        let bytes = sent(&mut from);
        let pieces = input.cut(&bytes);
        assert_eq!(understood(&mut conn(to, ALL), &pieces), (packets, Ok(())));
    });
}

/// Random bytes are refused or decoded, the same however they are cut, and what was decoded can be encoded again.
#[test]
fn fuzz_usbredir_bytes() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_usbredir_bytes", |input| {
        let to = input.pick(&[Side::Host, Side::Guest]);
        let caps = Caps::from_bits(u32::from(input.byte()));
        let fresh = || if caps.bits() == 0 { Conn::new(to, "", ALL, &LIMITS) } else { conn(to, caps) };
        let mut bytes = Vec::new();
        while !input.is_empty() && bytes.len() < 20_000 {
            let mut from = conn(to.other(), ALL);
            from.send(any_packet(input, to), &mut BufferPool::new(0));
            let mut packet = sent(&mut from);
            if input.once_in(2) {
                let at = input.below(packet.len() as u32) as usize;
                match input.below(3) {
                    0 => packet[at] = input.byte(),
                    1 => packet.truncate(at),
                    _ => packet.insert(at, input.byte()),
                }
            }
            bytes.extend(packet);
        }
        let whole = understood(&mut fresh(), &[&bytes]);
        let pieces = input.cut(&bytes);
        assert_eq!(understood(&mut fresh(), &pieces), whole, "cut otherwise");
        for packet in whole.0 {
            if !matches!(packet.message, Message::Hello { .. }) {
                let said = encoded(to, caps, &packet);
                assert_eq!(understood(&mut conn(to, caps), &[&said]).0, [packet]);
            }
        }
    });
}

/// The usbredir project's own parser, compiled here. `None` without a compiler or the library, with a message; a
/// failure where every test is required.
fn oracle() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/usbredir.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("usbredir-oracle");
    let output = Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-lusbredirparser").output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    let must = std::env::var_os("FARBUS_REQUIRE_RIG").is_some_and(|value| value == "1");
    let package = "install the packages gcc and libusbredirparser-dev";
    assert!(
        !must,
        "the usbredir project's parser is missing, and FARBUS_REQUIRE_RIG=1 lets nothing be skipped: {package}"
    );
    // The test harness shows what macros print of failed tests only.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: to have our packets read and said again by the usbredir project's parser, {package}"
    );
    None
}

#[test]
fn usbredir_projects_parser_reproduces_every_packet() {
    let Some(program) = oracle() else { return };
    for (to, name) in [(Side::Host, "host"), (Side::Guest, "guest")] {
        let mut conn = Conn::new(to.other(), "writer", ALL, &LIMITS);
        understood(
            &mut conn,
            &[&encoded(
                to.other(),
                OLD,
                &Packet { id: 0, message: Message::Hello { version: "reader".into(), caps: ALL } },
            )],
        )
        .1
        .unwrap();
        let all = vectors().into_iter().filter(|(_, side, caps, packet)| {
            let is_its_own_to_say = matches!(packet.message, Message::Hello { .. } | Message::DeviceDisconnectAck);
            *side == to && *caps == ALL && !is_its_own_to_say
        });
        all.for_each(|(.., packet)| conn.send(packet, &mut BufferPool::new(0)));
        let bytes = sent(&mut conn);
        let mut child = Command::new(&program);
        let mut child =
            child.arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
        assert_eq!(output.stdout, bytes, "to the {name}");
    }
}
