//! usbredir: golden vectors, refusals, and independence of how bytes are cut.
//!
//! The files in `golden_usbredir/` are written from the protocol's document, as those of `golden.rs` are.

mod fuzzing;
mod peer;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use farbus_model::{BufferPool, EpAddr, Payload, SessionLimits, SetupPacket, TransferType, UsbSpeed};
use farbus_wire::usbip::ProtocolViolation;
use farbus_wire::usbredir::info::{PLACES, endpoint_at, place_of};
use farbus_wire::usbredir::message::{ControlPacket, DataPacket};
use farbus_wire::usbredir::{
    DeviceConnect, EndpointInfo, EpInfo, InterfaceInfo, InterfaceKind, RedirCapability, RedirCapabilitySet, RedirConn,
    RedirMessage, RedirPacket, RedirRole, RedirStatus,
};
use fuzzing::{Input, fuzz};

const LIMITS: SessionLimits = SessionLimits { receive_bytes: 2048, ..SessionLimits::DEFAULT };
const ALL: RedirCapabilitySet = RedirCapabilitySet::from_bits(0xff);
/// Ids of 32 bits, lengths of 16, nothing optional.
const OLD: RedirCapabilitySet = RedirCapabilitySet::NONE;

fn ep(byte: u8) -> EpAddr {
    EpAddr::from_byte(byte)
}

fn data(endpoint: u8, length: u32, payload: &[u8]) -> DataPacket {
    DataPacket { endpoint: ep(endpoint), outcome: RedirStatus::Success, length, stream: 0, payload: payload.into() }
}

fn control(request_type: u8, request: u8, value: u16, length: u16, payload: &[u8]) -> RedirMessage {
    let setup = SetupPacket { request_type, request, value, index: 0, length };
    RedirMessage::Control(ControlPacket { number: 0, setup, outcome: RedirStatus::Success, payload: payload.into() })
}

fn endpoints() -> Box<EpInfo> {
    let mut info = EpInfo::default();
    for position in [0, 16] {
        info.0[position] =
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

fn connect(speed: UsbSpeed, class: [u8; 3], device_bcd: u16) -> RedirMessage {
    RedirMessage::DeviceConnect(DeviceConnect {
        speed: Some(speed),
        class,
        vendor: 0x0525,
        product: 0xa5a4,
        device_bcd,
    })
}

/// Every golden file, its receiver, the common capabilities, and its message.
fn vectors() -> Vec<(&'static str, RedirRole, RedirCapabilitySet, RedirPacket)> {
    let from_host =
        from_host().into_iter().map(|(name, caps, id, message)| (name, RedirRole::Guest, caps, id, message));
    let from_guest =
        from_guest().into_iter().map(|(name, caps, id, message)| (name, RedirRole::Host, caps, id, message));
    from_host
        .chain(from_guest)
        .map(|(name, to, caps, id, message)| (name, to, caps, RedirPacket { id, message }))
        .collect()
}

fn from_host() -> Vec<(&'static str, RedirCapabilitySet, u64, RedirMessage)> {
    use RedirStatus::{IoError, Success};
    let interface = |number, class| InterfaceKind { number, class };
    let disk_and_keyboard = InterfaceInfo(vec![interface(0, [8, 6, 0x50]), interface(3, [3, 1, 1])]);
    let timed_out = DataPacket { outcome: RedirStatus::TimedOut, ..data(1, 0, b"") };
    vec![
        (
            "hello",
            OLD,
            0,
            RedirMessage::Hello { version: "farbus 0.1.0".into(), caps: RedirCapabilitySet::from_bits(0xfa) },
        ),
        ("device_connect", ALL, 0, connect(UsbSpeed::Super, [0; 3], 0x0409)),
        ("device_connect_short", OLD, 0, connect(UsbSpeed::Full, [0xef, 2, 1], 0)),
        ("device_disconnect", ALL, 0, RedirMessage::DeviceDisconnect),
        ("interface_info", ALL, 0, RedirMessage::InterfaceInfo(Box::new(disk_and_keyboard))),
        ("ep_info", ALL, 0, RedirMessage::EpInfo(endpoints())),
        (
            "configuration_status",
            ALL,
            0xdead_beef,
            RedirMessage::ConfigurationStatus { outcome: Success, configuration: 2 },
        ),
        (
            "alt_setting_status",
            ALL,
            7,
            RedirMessage::AltSettingStatus { outcome: RedirStatus::Invalid, interface: 1, alternate: 0 },
        ),
        (
            "iso_stream_status",
            ALL,
            0,
            RedirMessage::IsoStreamStatus { outcome: RedirStatus::Stall, endpoint: ep(0x83) },
        ),
        (
            "interrupt_receiving_status",
            ALL,
            0,
            RedirMessage::InterruptReceivingStatus { outcome: Success, endpoint: ep(0x81) },
        ),
        (
            "bulk_streams_status",
            ALL,
            0,
            RedirMessage::BulkStreamsStatus { endpoints: 1 << 17 | 1 << 2, streams: 16, outcome: IoError },
        ),
        (
            "bulk_receiving_status",
            ALL,
            0,
            RedirMessage::BulkReceivingStatus { stream: 0, endpoint: ep(0x81), outcome: Success },
        ),
        ("control_packet_in_answer", ALL, 16, control(0x80, 6, 0x0100, 4, &[0x12, 1, 0, 2])),
        ("bulk_packet_out_answer", ALL, 18, RedirMessage::Bulk(data(2, 3, b""))),
        ("iso_packet", ALL, 42, RedirMessage::Iso(data(0x83, 2, &[0xaa, 0xbb]))),
        ("interrupt_packet", ALL, 0, RedirMessage::Interrupt(data(0x81, 8, &[0, 0, 4, 0, 0, 0, 0, 0]))),
        ("interrupt_packet_out_answer", ALL, 9, RedirMessage::Interrupt(timed_out)),
        ("buffered_bulk_packet", ALL, 3, RedirMessage::BufferedBulk(data(0x81, 2, &[1, 0x60]))),
    ]
}

fn from_guest() -> Vec<(&'static str, RedirCapabilitySet, u64, RedirMessage)> {
    let start_iso = RedirMessage::StartIsoStream { endpoint: ep(0x83), packets_per_urb: 32, urbs: 16 };
    let start_bulk =
        RedirMessage::StartBulkReceiving { stream: 0, bytes_per_transfer: 512, endpoint: ep(0x81), transfers: 5 };
    let on_a_stream = DataPacket { stream: 5, ..data(2, 3, b"abc") };
    vec![
        ("reset", ALL, 0, RedirMessage::Reset),
        ("set_configuration", ALL, 0xdead_beef, RedirMessage::SetConfiguration(2)),
        ("get_configuration", ALL, 0x1_0000_0001, RedirMessage::GetConfiguration),
        ("set_alt_setting", ALL, 7, RedirMessage::SetAltSetting { interface: 1, alternate: 2 }),
        ("get_alt_setting", ALL, 7, RedirMessage::GetAltSetting { interface: 1 }),
        ("start_iso_stream", ALL, 0, start_iso),
        ("stop_iso_stream", ALL, 0, RedirMessage::StopIsoStream(ep(0x83))),
        ("start_interrupt_receiving", ALL, 0, RedirMessage::StartInterruptReceiving(ep(0x81))),
        ("stop_interrupt_receiving", ALL, 0, RedirMessage::StopInterruptReceiving(ep(0x81))),
        ("alloc_bulk_streams", ALL, 0, RedirMessage::AllocBulkStreams { endpoints: 1 << 17 | 1 << 2, streams: 16 }),
        ("free_bulk_streams", ALL, 0, RedirMessage::FreeBulkStreams { endpoints: 1 << 17 | 1 << 2 }),
        ("cancel_data_packet", ALL, 0x1_dead_beef, RedirMessage::CancelDataPacket),
        ("filter_reject", ALL, 0, RedirMessage::FilterReject),
        ("filter_filter", ALL, 0, RedirMessage::FilterFilter("0x03,-1,-1,-1,0|-1,-1,-1,-1,1".into())),
        ("device_disconnect_ack", ALL, 0, RedirMessage::DeviceDisconnectAck),
        ("start_bulk_receiving", ALL, 0, start_bulk),
        ("stop_bulk_receiving", ALL, 0, RedirMessage::StopBulkReceiving { stream: 0, endpoint: ep(0x81) }),
        ("control_packet_in", ALL, 16, control(0x80, 6, 0x0100, 18, b"")),
        ("control_packet_out", OLD, 17, control(0x40, 0x5b, 0, 3, b"abc")),
        ("bulk_packet_in", ALL, 0x80_0000_0000, RedirMessage::Bulk(data(0x81, 0x12345, b""))),
        ("bulk_packet_out_short", OLD, 18, RedirMessage::Bulk(on_a_stream)),
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
fn conn(side: RedirRole, caps: RedirCapabilitySet) -> RedirConn {
    RedirConn::continued(side, caps, caps, &LIMITS)
}

fn sent(conn: &mut RedirConn) -> Vec<u8> {
    let mut all = Vec::new();
    while conn.backlog_bytes() > 0 {
        let bytes: Vec<u8> = conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        conn.handle_transmitted(bytes.len(), &mut BufferPool::new(0));
        all.extend(bytes);
    }
    all
}

fn encoded(to: RedirRole, caps: RedirCapabilitySet, packet: &RedirPacket) -> Vec<u8> {
    if let RedirMessage::Hello { version, caps } = &packet.message {
        return sent(&mut RedirConn::new(to.other(), version, *caps, &LIMITS));
    }
    let mut conn = conn(to.other(), caps);
    conn.send(packet.clone(), &mut BufferPool::new(0));
    sent(&mut conn)
}

/// Feeds a connection in pieces; returns the packets read, and the field that stopped it.
fn understood(conn: &mut RedirConn, pieces: &[&[u8]]) -> (Vec<RedirPacket>, Result<(), &'static str>) {
    let (mut packets, mut fed) = (Vec::new(), 0);
    let mut feed = |mut rest: &[u8]| -> Result<(), ProtocolViolation> {
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
            RedirMessage::Hello { .. } => RedirConn::new(to, "", ALL, &LIMITS),
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
    let (mut host, mut guest) =
        (RedirConn::new(RedirRole::Host, "a", ALL, &LIMITS), RedirConn::new(RedirRole::Guest, "b", ALL, &LIMITS));
    let (from_host, from_guest) = (sent(&mut host), sent(&mut guest));
    let (packets, end) = understood(&mut host, &[&from_guest]);
    assert_eq!((packets.len(), end, host.common()), (1, Ok(()), Some(ALL)));
    understood(&mut guest, &[&from_host]).1.unwrap();
    let packet = RedirPacket { id: 1 << 40, message: RedirMessage::GetConfiguration };
    guest.send(packet.clone(), &mut BufferPool::new(0));
    let bytes = sent(&mut guest);
    assert_eq!((bytes.len(), understood(&mut host, &[&bytes])), (16, (vec![packet], Ok(()))));
    let mut old = RedirConn::new(RedirRole::Host, "a", ALL, &LIMITS);
    let hello_of_32_bit_ids = encoded(
        RedirRole::Host,
        OLD,
        &RedirPacket {
            id: 0,
            message: RedirMessage::Hello {
                version: "old".into(),
                caps: RedirCapabilitySet::from_bits(ALL.bits() & !(1 << 5)),
            },
        },
    );
    let question = [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0];
    let (packets, end) = understood(&mut old, &[&hello_of_32_bit_ids, &question]);
    assert_eq!((packets.last(), end), (Some(&RedirPacket { id: 9, message: RedirMessage::GetConfiguration }), Ok(())));
    assert!(!old.common().unwrap().has(RedirCapability::Ids64));
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
        let (packets, end) = understood(&mut conn(RedirRole::Host, ALL), &[&bytes]);
        assert_eq!((packets, end), (vec![], Err(field)), "{bytes:02x?}");
    }
    let (_, end) = understood(&mut conn(RedirRole::Host, OLD), &[&[22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]);
    assert_eq!(end, Err("type"), "a filter where not both know what that is");
    let (_, end) = understood(&mut RedirConn::new(RedirRole::Host, "", ALL, &LIMITS), &[&[7; 12]]);
    assert_eq!(end, Err("type"), "nothing comes before hello");
}

fn any_outcome(input: &mut Input<'_>) -> RedirStatus {
    RedirStatus::from_code(input.byte())
}

fn any_endpoint(input: &mut Input<'_>) -> EpAddr {
    let position = 1 + input.below(15) as usize + 16 * input.below(2) as usize;
    endpoint_at(position)
}

fn any_text(input: &mut Input<'_>, length_max: u32) -> String {
    (0..input.below(length_max)).map(|_| char::from(b' ' + input.below(95) as u8)).collect()
}

/// A transfer's packet that may be sent to `to`.
fn any_data(input: &mut Input<'_>, to: RedirRole, length_max: u32, is_pushed: bool) -> DataPacket {
    let mut endpoint = any_endpoint(input);
    let carries = |endpoint: EpAddr| (endpoint.as_byte() & 0x80 == 0) == (to == RedirRole::Host);
    if is_pushed && !carries(endpoint) {
        endpoint = EpAddr::from_byte(endpoint.as_byte() ^ 0x80);
    }
    let length = input.below(length_max + 1);
    let bytes = if carries(endpoint) { length as usize } else { 0 };
    let payload = Payload::from(vec![endpoint.as_byte(); bytes]);
    DataPacket { endpoint, outcome: any_outcome(input), length, stream: 0, payload }
}

fn any_control(input: &mut Input<'_>, to: RedirRole) -> ControlPacket {
    let setup = SetupPacket::from_bytes(std::array::from_fn(|_| input.byte()));
    let setup = SetupPacket { length: setup.length % 600, ..setup };
    let carries = (setup.request_type & 0x80 == 0) == (to == RedirRole::Host);
    let payload = vec![7; if carries { usize::from(setup.length) } else { 0 }].into();
    ControlPacket { number: input.below(16) as u8, setup, outcome: any_outcome(input), payload }
}

fn any_packet(input: &mut Input<'_>, to: RedirRole) -> RedirPacket {
    let mut message = match to {
        RedirRole::Guest => any_from_host(input),
        RedirRole::Host => any_from_guest(input),
    };
    if input.once_in(2) {
        message = match input.below(3) {
            0 => RedirMessage::Control(any_control(input, to)),
            1 => {
                let stream = input.word();
                RedirMessage::Bulk(DataPacket { stream, ..any_data(input, to, 3000, false) })
            }
            _ => RedirMessage::Iso(any_data(input, to, 1000, true)),
        };
    }
    RedirPacket { id: u64::from(input.word()) << 32 | u64::from(input.word()), message }
}

fn any_from_host(input: &mut Input<'_>) -> RedirMessage {
    match input.below(12) {
        0 => RedirMessage::DeviceDisconnect,
        1 => {
            let count = input.below(PLACES as u32 + 1);
            let mut kind = || InterfaceKind { number: input.byte(), class: [input.byte(), input.byte(), input.byte()] };
            RedirMessage::InterfaceInfo(Box::new(InterfaceInfo((0..count).map(|_| kind()).collect())))
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
            RedirMessage::EpInfo(Box::new(info))
        }
        3 => RedirMessage::ConfigurationStatus { outcome: any_outcome(input), configuration: input.byte() },
        4 => RedirMessage::AltSettingStatus {
            outcome: any_outcome(input),
            interface: input.byte(),
            alternate: input.byte(),
        },
        5 => RedirMessage::IsoStreamStatus { outcome: any_outcome(input), endpoint: any_endpoint(input) },
        6 => {
            let endpoint = EpAddr::from_byte(any_endpoint(input).as_byte() | 0x80);
            RedirMessage::InterruptReceivingStatus { outcome: any_outcome(input), endpoint }
        }
        7 => RedirMessage::BulkStreamsStatus {
            endpoints: input.word(),
            streams: input.word(),
            outcome: any_outcome(input),
        },
        8 => RedirMessage::FilterFilter(any_text(input, 200)),
        9 => RedirMessage::Interrupt(any_data(input, RedirRole::Guest, 300, false)),
        10 => RedirMessage::BufferedBulk(any_data(input, RedirRole::Guest, 3000, true)),
        _ => {
            let class = [input.byte(), input.byte(), input.byte()];
            connect(
                input.pick(&[UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super]),
                class,
                input.word() as u16,
            )
        }
    }
}

fn any_from_guest(input: &mut Input<'_>) -> RedirMessage {
    let endpoint_in = |input: &mut Input<'_>| EpAddr::from_byte(any_endpoint(input).as_byte() | 0x80);
    match input.below(15) {
        0 => RedirMessage::Reset,
        1 => RedirMessage::SetConfiguration(input.byte()),
        2 => RedirMessage::GetConfiguration,
        3 => RedirMessage::SetAltSetting { interface: input.byte(), alternate: input.byte() },
        4 => RedirMessage::GetAltSetting { interface: input.byte() },
        5 => RedirMessage::StartIsoStream {
            endpoint: any_endpoint(input),
            packets_per_urb: input.byte(),
            urbs: input.byte(),
        },
        6 => RedirMessage::StopIsoStream(any_endpoint(input)),
        7 => RedirMessage::StartInterruptReceiving(endpoint_in(input)),
        8 => RedirMessage::AllocBulkStreams { endpoints: input.word(), streams: input.word() },
        9 => RedirMessage::FreeBulkStreams { endpoints: input.word() },
        10 => RedirMessage::CancelDataPacket,
        11 => RedirMessage::FilterFilter(any_text(input, 200)),
        12 => RedirMessage::StartBulkReceiving {
            stream: input.word(),
            bytes_per_transfer: input.below(16 << 20),
            endpoint: endpoint_in(input),
            transfers: input.byte(),
        },
        13 => RedirMessage::StopBulkReceiving { stream: input.word(), endpoint: endpoint_in(input) },
        _ => RedirMessage::Interrupt(any_data(input, RedirRole::Host, 300, true)),
    }
}

/// Every valid packet is decoded as it was encoded, however the bytes are cut.
#[test]
fn fuzz_usbredir_packets() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_usbredir_packets", |input| {
        let to = input.pick(&[RedirRole::Host, RedirRole::Guest]);
        let packets: Vec<RedirPacket> = (0..1 + input.below(12)).map(|_| any_packet(input, to)).collect();
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
        let to = input.pick(&[RedirRole::Host, RedirRole::Guest]);
        let caps = RedirCapabilitySet::from_bits(u32::from(input.byte()));
        let fresh = || if caps.bits() == 0 { RedirConn::new(to, "", ALL, &LIMITS) } else { conn(to, caps) };
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
            if !matches!(packet.message, RedirMessage::Hello { .. }) {
                let bytes = encoded(to, caps, &packet);
                assert_eq!(understood(&mut conn(to, caps), &[&bytes]).0, [packet]);
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
    for (to, name) in [(RedirRole::Host, "host"), (RedirRole::Guest, "guest")] {
        let mut conn = RedirConn::new(to.other(), "writer", ALL, &LIMITS);
        understood(
            &mut conn,
            &[&encoded(
                to.other(),
                OLD,
                &RedirPacket { id: 0, message: RedirMessage::Hello { version: "reader".into(), caps: ALL } },
            )],
        )
        .1
        .unwrap();
        let all = vectors().into_iter().filter(|(_, side, caps, packet)| {
            let is_its_own_to_say =
                matches!(packet.message, RedirMessage::Hello { .. } | RedirMessage::DeviceDisconnectAck);
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
