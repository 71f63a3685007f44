//! Every decoder and both connections with random and damaged bytes.
//!
//! Besides not panicking: the messages read do not depend on how the bytes were cut, requests come back exactly once,
//! and no memory is reserved for bytes that have not arrived.

mod fuzzing;
mod peer;

use farbus_model::descriptor::{
    ConfigurationSelection, DescriptorSet, DeviceDescriptor, EndpointDescriptor, UsbConfiguration, string_from_bytes,
    string_to_bytes,
};
use farbus_model::{
    BufferPool, DescriptorRepairs, EpAddr, IsoPacket, Payload, SessionLimits, TransferDirection, TransferType, Urb,
    UrbCompletion, UrbId, UrbStatus, UsbSpeed,
};
use farbus_wire::usbip::client::UsbipReply;
use farbus_wire::usbip::message::{self, OpHeader, RawHeader, SubmitCommand as Checked, SubmitReply};
use farbus_wire::usbip::{
    DeviceRecord, OpStatus, ProtocolViolation, UsbipClientConn, UsbipRequest, UsbipServerConn, status,
};
use fuzzing::{Input, fuzz};
use peer::{BUS_ID, DEVID, Packet, RetSubmit, Submit};

const LIMITS: SessionLimits = SessionLimits { receive_bytes: 2048, urbs_in_flight_max: 8, ..SessionLimits::DEFAULT };

fn target(name: &str, act: impl Fn(&mut Input<'_>)) {
    fuzz(env!("CARGO_MANIFEST_DIR"), name, act);
}

fn kind_of(endpoint: EpAddr) -> Option<TransferType> {
    match endpoint.number() {
        0 => Some(TransferType::Control),
        1 => Some(TransferType::Bulk),
        2 => Some(TransferType::Interrupt),
        3 => Some(TransferType::Isochronous),
        _ => None,
    }
}

/// The endpoint of that address, as [`kind_of`] says; `None` for the control pipe.
fn endpoint(address: EpAddr) -> Option<EndpointDescriptor> {
    let kind = kind_of(address).filter(|_| !address.is_control())?;
    Some(EndpointDescriptor { address, kind, packet_bytes_max: 64, packets_per_interval: 1, interval: 4 })
}

/// A number with a meaning in the protocol, or any number.
fn number(input: &mut Input<'_>) -> u32 {
    match input.below(4) {
        0 => input.below(16),
        1 => input.pick(&[0, 1, 1024, 1025, 0xffff, 16 << 20, (16 << 20) + 1, i32::MAX as u32, 1 << 31, u32::MAX]),
        2 => input.below(2000),
        _ => input.word(),
    }
}

/// Damages one message of sixteen.
fn damage(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    if input.once_in(16) && !bytes.is_empty() {
        let at = input.below(bytes.len() as u32) as usize;
        match input.below(3) {
            0 => bytes[at] = input.byte(),
            1 => bytes.truncate(at),
            _ => bytes.insert(at, input.byte()),
        }
    }
}

/// Mostly a message that a client could send.
fn client_frame(input: &mut Input<'_>) -> Vec<u8> {
    let (seqnum, ep) = (input.below(8), input.below(5));
    let size = input.below(700) as usize;
    let lengths: Vec<u32> = (0..input.below(4)).map(|_| input.below(40)).collect();
    let mut submit = match input.below(7) {
        0 => Submit::data_in(seqnum, ep, size as u32),
        1 => Submit::data_out(seqnum, ep, &vec![seqnum as u8; size]),
        2 => Submit::control(seqnum, std::array::from_fn(|_| input.byte())),
        3 => Submit::iso_in(seqnum, 3, &lengths),
        4 => Submit::iso_out(seqnum, 3, &lengths, &vec![3; lengths.iter().sum::<u32>() as usize]),
        5 => return peer::unlink(seqnum + 8, input.below(8)),
        _ => return input.bytes(size.min(60)),
    };
    if input.once_in(4) {
        let value = number(input);
        match input.below(8) {
            0 => submit.devid = value,
            1 => submit.direction = value,
            2 => submit.ep = value,
            3 => submit.length = value,
            4 => submit.number_of_packets = value,
            5 => submit.flags = value,
            6 => submit.start_frame = value,
            _ => submit.packets.push(Packet::new(value, number(input))),
        }
    }
    submit.bytes()
}

/// What a server read: its requests as text, and the field that stopped it.
#[derive(Debug, PartialEq)]
struct Understood {
    requests: Vec<String>,
    end: Result<(), &'static str>,
}

/// Feeds a server and answers its requests at once; every other URB waits until the end.
fn serve(mut conn: UsbipServerConn, pieces: &[&[u8]]) -> Understood {
    let record = DeviceRecord::decode(peer::device_record(BUS_ID, 1).first_chunk().unwrap()).unwrap();
    let mut pool = BufferPool::new(4096);
    let (mut requests, mut waiting, mut fed) = (Vec::new(), Vec::<Urb>::new(), 0);
    let mut serve_piece =
        |conn: &mut UsbipServerConn, waiting: &mut Vec<Urb>, requests: &mut Vec<String>, piece: &[u8]| {
            let mut rest = piece;
            while !rest.is_empty() {
                let space = conn.receive_space();
                assert!(!space.is_empty(), "there is always room");
                fed += space.len().min(rest.len());
                assert!(space.len() <= LIMITS.receive_bytes.max(2 * fed), "nothing is reserved that has not arrived");
                let count = space.len().min(rest.len());
                space[..count].copy_from_slice(&rest[..count]);
                conn.handle_received(count);
                rest = &rest[count..];
                while let Some(request) = conn.poll_request(kind_of)? {
                    match request {
                        UsbipRequest::DeviceList => {
                            requests.push("list".into());
                            conn.reply_device_list(std::slice::from_ref(&record));
                        }
                        UsbipRequest::Import(bus_id) => {
                            requests.push(format!("import {bus_id}"));
                            let answer = if bus_id == BUS_ID { Ok(&record) } else { Err(OpStatus::NoDevice) };
                            conn.reply_import(answer);
                        }
                        UsbipRequest::Submit(urb) => {
                            assert_urb(&urb);
                            let shape = Urb { payload: Payload::Empty, ..urb.clone() };
                            requests.push(format!("{shape:?} {:?}", urb.payload.contiguous()));
                            waiting.push(urb);
                            if waiting.len() > 2 {
                                conn.complete(answer(waiting.remove(0)), &mut pool);
                            }
                        }
                        UsbipRequest::Unlink(id) => {
                            requests.push(format!("{id:?} is withdrawn"));
                            let at =
                                waiting.iter().position(|urb| urb.id == id).expect("what is withdrawn is in flight");
                            conn.complete(waiting.remove(at).launch().fail(UrbStatus::Cancelled), &mut pool);
                        }
                    }
                }
            }
            Ok(())
        };
    let mut end = Ok(());
    for piece in pieces {
        end = serve_piece(&mut conn, &mut waiting, &mut requests, piece)
            .map_err(|reject: ProtocolViolation| reject.field);
        if end.is_err() {
            break;
        }
    }
    assert_eq!(conn.in_flight(), waiting.len(), "every request is answered once");
    for urb in waiting {
        conn.complete(answer(urb), &mut pool);
    }
    assert_eq!((conn.in_flight(), conn.out_bytes_held()), (0, 0));
    let sent: usize = conn.poll_transmit().iter().map(|run| run.len()).sum();
    conn.handle_transmitted(sent, &mut pool);
    Understood { requests, end }
}

/// A URB that the decoder let through needs no second check.
fn assert_urb(urb: &Urb) {
    assert!(urb.length <= 16 << 20 && urb.iso.len() <= 1024 && urb.endpoint.number() <= 15);
    let expected = if urb.direction == TransferDirection::Out { urb.length as usize } else { 0 };
    assert_eq!(urb.payload.len(), expected);
    let sum: u64 = urb.iso.iter().map(|packet| u64::from(packet.length)).sum();
    assert!(sum <= u64::from(urb.length));
    assert!(urb.iso.iter().all(|p| u64::from(p.offset) + u64::from(p.length) <= u64::from(urb.length)));
    assert!(urb.iso.iter().all(|packet| packet.actual == 0 && packet.status == UrbStatus::Ok));
}

fn answer(urb: Urb) -> UrbCompletion {
    let urb = urb.launch();
    match urb.direction {
        _ if !urb.iso.is_empty() => {
            let packets: Vec<IsoPacket> = urb.iso.iter().map(|p| IsoPacket { actual: p.length, ..*p }).collect();
            let bytes = packets.iter().map(|packet| packet.actual as usize).sum();
            let data = if urb.direction == TransferDirection::In { vec![1; bytes].into() } else { Payload::Empty };
            urb.done_iso(packets, data)
        }
        TransferDirection::Out => urb.accept(),
        TransferDirection::In => {
            let payload = Payload::pattern(&[1, 2, 3], urb.length as usize);
            urb.answer(payload)
        }
    }
}

#[test]
fn fuzz_server_urbs() {
    target("fuzz_server_urbs", |input| {
        let mut bytes = Vec::new();
        while !input.is_empty() && bytes.len() < 20_000 {
            let mut frame = client_frame(input);
            damage(input, &mut frame);
            bytes.extend(frame);
            if input.once_in(8) {
                break;
            }
        }
        let whole = serve(UsbipServerConn::imported(&LIMITS, DEVID), &[&bytes]);
        let pieces = input.cut(&bytes);
        assert_eq!(serve(UsbipServerConn::imported(&LIMITS, DEVID), &pieces), whole, "cut otherwise");
    });
}

#[test]
fn fuzz_server_handshake() {
    target("fuzz_server_handshake", |input| {
        let mut bytes = match input.below(4) {
            0 => peer::list_request(),
            1 => peer::import_request(BUS_ID),
            2 => [peer::op(0x0111, 0x8003, 0), input.bytes(32)].concat(),
            _ => Vec::new(),
        };
        damage(input, &mut bytes);
        while !input.is_empty() && bytes.len() < 5000 && !input.once_in(8) {
            bytes.extend(client_frame(input));
        }
        let whole = serve(UsbipServerConn::new(&LIMITS), &[&bytes]);
        let pieces = input.cut(&bytes);
        assert_eq!(serve(UsbipServerConn::new(&LIMITS), &pieces), whole, "cut otherwise");
    });
}

/// The answers that a client read, and the field that stopped it.
#[derive(Debug, PartialEq)]
struct Answered {
    answers: Vec<String>,
    end: Result<(), &'static str>,
}

fn listen(conn: &mut UsbipClientConn, pieces: &[&[u8]], mut check: impl FnMut(&UsbipReply)) -> Answered {
    let mut answers = Vec::new();
    let mut listen_all = || {
        for mut rest in pieces.iter().copied() {
            while !rest.is_empty() {
                let space = conn.receive_space();
                assert!(!space.is_empty(), "there is always room");
                let count = space.len().min(rest.len());
                space[..count].copy_from_slice(&rest[..count]);
                conn.handle_received(count);
                rest = &rest[count..];
                while let Some(answer) = conn.poll_answer()? {
                    check(&answer);
                    answers.push(match &answer {
                        UsbipReply::Done(done) => {
                            let shape = UrbCompletion { payload: Payload::Empty, ..done.clone() };
                            format!("{shape:?} {:?}", done.payload.contiguous())
                        }
                        other => format!("{other:?}"),
                    });
                }
            }
        }
        Ok(())
    };
    let end = listen_all().map_err(|reject: ProtocolViolation| reject.field);
    Answered { answers, end }
}

#[test]
fn fuzz_client_handshake() {
    target("fuzz_client_handshake", |input| {
        let is_list = input.once_in(2);
        let mut bytes = peer::op(0x0111, if is_list { 0x0005 } else { 0x0003 }, input.pick(&[0, 0, 0, 0, 1, 5, 99]));
        if is_list {
            let count = input.below(4);
            bytes.extend(input.pick(&[count, count, count, 4096, 4097, u32::MAX]).to_be_bytes());
            for _ in 0..count {
                let interfaces = input.byte();
                bytes.extend(peer::device_record(BUS_ID, interfaces));
                bytes.extend(vec![1; 4 * usize::from(interfaces)]);
            }
        } else {
            bytes.extend(peer::device_record(input.pick(&[BUS_ID, BUS_ID, "1-2"]), 1));
        }
        for _ in 0..input.below(4) {
            let at = input.below(bytes.len() as u32) as usize;
            bytes[at] = input.byte();
        }
        damage(input, &mut bytes);
        let pieces = input.cut(&bytes);
        let answered = |pieces: &[&[u8]]| {
            let mut conn = UsbipClientConn::new(&LIMITS);
            if is_list {
                conn.device_list();
            } else {
                conn.import(BUS_ID);
            }
            let answered = listen(&mut conn, pieces, |answer| match answer {
                UsbipReply::Imported(Ok(record)) => assert_eq!(record.bus_id, BUS_ID),
                UsbipReply::Imported(Err(status)) => assert_ne!(*status, OpStatus::Ok),
                UsbipReply::DeviceList(records) => assert!(records.iter().all(|record| record.bus_id.len() <= 31)),
                UsbipReply::Done(done) => panic!("nothing was submitted: {done:?}"),
            });
            conn.abandon(UrbStatus::Gone);
            answered
        };
        assert_eq!(answered(&pieces), answered(&[&bytes]), "cut otherwise");
    });
}

/// Requests of every kind, as a front end has them in flight.
fn requests(input: &mut Input<'_>) -> Vec<Urb> {
    let request = |id: u32, input: &mut Input<'_>| {
        let id = UrbId(u64::from(id));
        let (source, sink) = (EpAddr::from_byte(0x81), EpAddr::from_byte(0x01));
        match input.below(4) {
            0 => Urb::data_in(id, source, input.below(700)),
            1 => Urb::data_out(id, sink, vec![1; input.below(700) as usize].into()),
            kind => {
                let address = if kind == 2 { 0x83 } else { 0x03 };
                let mut urb = Urb::data_in(id, EpAddr::from_byte(address), 0);
                for _ in 0..input.below(4) {
                    let length = input.below(40);
                    urb.iso.push(IsoPacket { offset: urb.length, length, ..IsoPacket::default() });
                    urb.length += length;
                }
                if kind == 3 {
                    urb.direction = TransferDirection::Out;
                    urb.payload = vec![2; urb.length as usize].into();
                }
                urb
            }
        }
    };
    (0..input.below(6) + 1).map(|id| request(id, input)).collect()
}

/// Mostly a message that an exporter could send to these requests (sequence numbers from 1).
fn server_frame(input: &mut Input<'_>, urbs: &[Urb]) -> Vec<u8> {
    let at = input.below(urbs.len() as u32) as usize;
    let (urb, seqnum) = (&urbs[at], at as u32 + 1);
    let is_in = urb.direction == TransferDirection::In;
    let actual = if urb.length > 0 { input.below(urb.length + 1) } else { 0 };
    let mut reply = match input.below(6) {
        0 => return peer::ret_unlink(input.below(16), input.pick(&[0, 0, -104, -104, -2, -32])),
        1 => RetSubmit::failed(seqnum, input.pick(&[-32, -71, -104, -108, 5])),
        _ if kind_of(urb.endpoint) == Some(TransferType::Isochronous) => {
            let packet = |p: &IsoPacket| Packet { actual: p.length, ..Packet::new(p.offset, p.length) };
            let packets: Vec<Packet> = urb.iso.iter().map(packet).collect();
            let sum = packets.iter().map(|packet| packet.actual as usize).sum();
            RetSubmit::iso(seqnum, &packets, &if is_in { vec![9; sum] } else { vec![] })
        }
        _ if is_in => RetSubmit::data_in(seqnum, &vec![8; actual as usize]),
        _ => RetSubmit::taken(seqnum, actual),
    };
    if reply.status != 0 && kind_of(urb.endpoint) == Some(TransferType::Isochronous) {
        reply.packets = urb.iso.iter().map(|p| Packet::new(p.offset, p.length)).collect();
        reply.number_of_packets = urb.iso.len() as u32;
    }
    if input.once_in(4) {
        let value = number(input);
        match input.below(6) {
            0 => reply.seqnum = value,
            1 => reply.actual = value,
            2 => reply.number_of_packets = value,
            3 => reply.status = value.cast_signed(),
            4 => reply.packets.push(Packet::new(value, value)),
            _ => {
                if let Some(packet) = reply.packets.first_mut() {
                    match input.below(3) {
                        0 => packet.offset = value,
                        1 => packet.length = value,
                        _ => packet.actual = value,
                    }
                }
            }
        }
    }
    reply.bytes()
}

fn assert_done(done: &UrbCompletion, urbs: &[Urb]) {
    let urb = urbs.iter().find(|urb| urb.id == done.id).expect("what comes back was asked");
    assert!(done.actual <= urb.length);
    let expected = if urb.direction == TransferDirection::In { done.actual as usize } else { 0 };
    assert_eq!(done.payload.len(), expected);
    assert_eq!(done.iso.len(), urb.iso.len());
    for (moved, sent) in done.iso.iter().zip(&urb.iso) {
        assert_eq!((moved.offset, moved.length), (sent.offset, sent.length));
        assert!(moved.actual <= moved.length);
    }
    let sum: u64 = done.iso.iter().map(|packet| u64::from(packet.actual)).sum();
    assert!(done.iso.is_empty() || sum == u64::from(done.actual));
}

#[test]
fn fuzz_client_urbs() {
    target("fuzz_client_urbs", |input| {
        let urbs = requests(input);
        let unlinks: Vec<UrbId> = urbs.iter().map(|urb| urb.id).filter(|_| input.once_in(3)).collect();
        let is_reset = input.once_in(8);
        let mut bytes = Vec::new();
        while !input.is_empty() && bytes.len() < 10_000 && !input.once_in(16) {
            let mut frame = server_frame(input, &urbs);
            damage(input, &mut frame);
            bytes.extend(frame);
        }
        let pieces = input.cut(&bytes);
        let answered = |pieces: &[&[u8]]| {
            let mut pool = BufferPool::new(0);
            let mut conn = UsbipClientConn::new(&LIMITS);
            conn.import(BUS_ID);
            let import = listen(&mut conn, &[&peer::import_reply(BUS_ID)], |_| {});
            assert_eq!(import.end, Ok(()));
            for urb in &urbs {
                conn.submit(urb.clone().launch(), endpoint(urb.endpoint).as_ref(), &mut pool);
            }
            unlinks.iter().for_each(|&id| conn.unlink(id));
            let mut back: Vec<UrbId> = Vec::new();
            if is_reset {
                back.extend(conn.withdraw_all(UrbStatus::Shutdown).iter().map(|done| done.id));
            }
            let answered = listen(&mut conn, pieces, |answer| match answer {
                UsbipReply::Done(done) => {
                    assert_done(done, &urbs);
                    back.push(done.id);
                }
                other => panic!("nothing of the kind was asked: {other:?}"),
            });
            assert_eq!(conn.in_flight(), urbs.len() - back.len());
            back.extend(conn.abandon(UrbStatus::Gone).iter().map(|done| done.id));
            back.sort_unstable();
            assert_eq!(back, urbs.iter().map(|urb| urb.id).collect::<Vec<_>>(), "each comes back once");
            answered
        };
        assert_eq!(answered(&pieces), answered(&[&bytes]), "cut otherwise");
    });
}

#[test]
fn fuzz_messages() {
    target("fuzz_messages", |input| {
        let mut header: [u8; 48] = std::array::from_fn(|_| input.byte());
        if input.once_in(2) {
            // Small numbers, so that some are within the rules.
            header[8..24].fill(0);
            header[15] &= 1;
        }
        let raw = RawHeader::from_bytes(&header);
        assert_eq!(raw.to_bytes(), header);
        if let Ok(submit) = Checked::check(&raw) {
            let again = Checked::check(&RawHeader::from_bytes(&submit.to_bytes(raw.devid)));
            assert_eq!(again, Ok(submit), "what was understood survives the wire");
            assert_eq!(submit.iso_packets().is_ok(), submit.number_of_packets <= 1024);
        }
        let reply = SubmitReply::from_raw(&raw);
        assert_eq!(SubmitReply::from_raw(&RawHeader::from_bytes(&reply.to_bytes())), reply);
        let op: [u8; 8] = std::array::from_fn(|_| input.byte());
        assert_eq!(OpHeader::from_bytes(op).to_bytes(), op);
        let errno = input.word().cast_signed() >> input.below(32);
        assert_eq!(status::from_errno(status::to_errno(status::from_errno(errno))), status::from_errno(errno));
        let length = number(input);
        let count = input.below(5) as usize;
        let packets = input.bytes(16 * count);
        if let Ok(decoded) = message::decode_iso_packets(&packets, length) {
            assert_eq!(decoded.len(), packets.len() / 16);
            assert!(decoded.iter().map(|packet| u64::from(packet.length)).sum::<u64>() <= u64::from(length));
            assert!(decoded.iter().all(|p| u64::from(p.offset) + u64::from(p.length) <= u64::from(length)));
        }
        let mut record: [u8; 312] = peer::device_record(BUS_ID, 1).try_into().unwrap();
        for _ in 0..input.below(6) {
            record[input.below(312) as usize] = input.byte();
        }
        if let Ok(decoded) = DeviceRecord::decode(&record) {
            let mut encoded = Vec::new();
            decoded.encode(false, &mut encoded);
            assert_eq!(DeviceRecord::decode(encoded.first_chunk().unwrap()), Ok(decoded));
        }
    });
}

/// Mostly well-formed descriptors.
fn configuration_bytes(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = vec![9, 2, 0, 0, 1, input.below(3) as u8, 0, 0xc0, 1];
    while !input.is_empty() && bytes.len() < 400 && !input.once_in(12) {
        let (kind, length) = input.pick(&[(4u8, 9usize), (5, 7), (5, 9), (48, 6), (11, 8), (0x24, 5), (0x24, 2)]);
        bytes.extend([length as u8, kind]);
        bytes.extend((2..length).map(|_| input.byte() & input.pick(&[0x03, 0x8f, 0xff])));
    }
    let total = (bytes.len() as u16).to_le_bytes();
    bytes[2..4].copy_from_slice(&total);
    for _ in 0..input.below(3) {
        let at = input.below(bytes.len() as u32) as usize;
        bytes[at] = input.byte();
    }
    bytes
}

#[test]
fn fuzz_descriptors() {
    target("fuzz_descriptors", |input| {
        let bytes = if input.once_in(4) { input.bytes(40) } else { configuration_bytes(input) };
        if let Ok(device) = DeviceDescriptor::parse(&bytes) {
            assert_eq!(DeviceDescriptor::parse(&device.to_bytes()), Ok(device));
        }
        match (UsbConfiguration::parse(&bytes), UsbConfiguration::total_length(&bytes)) {
            (Ok(configuration), total) => {
                assert_eq!(configuration.bytes.len(), total.unwrap(), "what was parsed is what was there");
                assert_eq!(UsbConfiguration::parse(&configuration.bytes).unwrap(), configuration);
                assert_selection(configuration, input);
            }
            (Err(error), _) => assert!(error.offset <= bytes.len() && !error.rule.is_empty(), "{error}"),
        }
        let speed = input.pick(&[UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super]);
        if let Ok(configuration) = UsbConfiguration::read(&bytes, speed, &mut DescriptorRepairs::default()) {
            UsbConfiguration::parse(&configuration.bytes).expect("a strict reader can follow what is kept");
            let again = UsbConfiguration::read(&configuration.bytes, speed, &mut DescriptorRepairs::default());
            assert_eq!(again.unwrap(), configuration);
            assert_selection(configuration, input);
        }
        let text = string_from_bytes(input.rest());
        assert_eq!(string_from_bytes(&string_to_bytes(&text)), text);
    });
}

/// Whatever the descriptors contain, only endpoints of active settings are active.
fn assert_selection(configuration: UsbConfiguration, input: &mut Input<'_>) {
    let value = configuration.value;
    let all = DescriptorSet { configurations: vec![configuration], ..DescriptorSet::default() };
    let mut selection = ConfigurationSelection::default();
    assert!(selection.select_configuration(&all, value));
    for _ in 0..4 {
        let (interface, alternate) = (input.byte() & 3, input.byte() & 3);
        let is_known = all.configuration(value).unwrap().setting(interface, alternate).is_some();
        // Configuration 0 is none (USB 2.0 §9.4.7), even if a descriptor has this number.
        let is_selected = selection.select_interface(&all, interface, alternate);
        assert!(is_selected == is_known || value == 0);
        for endpoint in selection.endpoints() {
            assert_eq!(selection.endpoint(endpoint.address), Some(endpoint));
            assert!(endpoint.packet_bytes_max <= 2047 && endpoint.packets_per_interval >= 1);
        }
    }
    selection.clear();
    assert_eq!(selection.endpoints().count(), 0);
}
