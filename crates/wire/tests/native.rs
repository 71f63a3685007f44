//! Two ends of a lane with cuts, delays and random bytes.
//!
//! Wherever the link is cut, each message arrives once, whole, in its flow's order, and neither end keeps what is
//! acknowledged.

mod fuzzing;
mod vectors;

use std::collections::{HashMap, VecDeque};

use farbus_model::{
    BlockId, BufferPool, EpAddr, Instant, IsoPacket, Payload, SetupPacket, TransferDirection, TransferType, Urb,
    UrbFlags, UrbId, UrbStatus,
};
use farbus_wire::SendSlices;
use farbus_wire::native::control::{self, OpenReply, OpenRequest};
use farbus_wire::native::frame::{FrameFlags, HEAD_BYTES};
use farbus_wire::native::{
    ClassPart, ExporterWelcome, FlowId, FrameHeader, FrameKind, ImporterHello, Lane, LaneLimits, MessageUrgency,
    OutboundMessage, block, console, descriptors, stream, usb,
};
use fuzzing::{Input, fuzz};
use vectors::all_bytes;

const LIMITS: LaneLimits =
    LaneLimits { receive_bytes: 4 << 10, first_receive_bytes: 1 << 10, unacknowledged_bytes_max: 1 << 20 };

fn target(name: &str, act: impl Fn(&mut Input<'_>)) {
    fuzz(env!("CARGO_MANIFEST_DIR"), name, act);
}

trait Concat {
    fn concat_at_most(&self, most: usize) -> Vec<u8>;
}

impl Concat for SendSlices<'_> {
    fn concat_at_most(&self, most: usize) -> Vec<u8> {
        self.iter().flat_map(|run| run.iter().copied()).take(most).collect()
    }
}

/// One end: its lane, the messages it sent that have not arrived, and those that arrived.
struct End {
    lane: Lane,
    pool: BufferPool,
    /// By flow, in order: what the other end has to receive.
    unreceived: HashMap<u32, VecDeque<(u16, Vec<u8>)>>,
    /// Partly received messages, by tag.
    partial: HashMap<u16, Payload>,
    next_tag: u16,
}

impl End {
    fn new() -> Self {
        Self {
            lane: Lane::new(LIMITS),
            pool: BufferPool::new(1 << 20),
            unreceived: HashMap::new(),
            partial: HashMap::new(),
            next_tag: 1,
        }
    }

    fn say(&mut self, flow: u32, bytes: usize) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let data: Vec<u8> = (0..bytes).map(|at| (at as u32 ^ flow ^ u32::from(tag)) as u8).collect();
        self.lane.send(OutboundMessage {
            head: FrameHeader::new(FrameKind::Request, flow as u16, tag),
            part: ClassPart::empty(),
            payload: data.clone().into(),
            urgency: if flow == 0 { MessageUrgency::High } else { MessageUrgency::Low },
            flow: FlowId(flow),
            done_at: None,
        });
        self.unreceived.entry(flow).or_default().push_back((tag, data));
    }

    /// Receives bytes; compares each complete message with what `other` sent.
    fn take_in(&mut self, mut bytes: &[u8], other: &mut End) {
        while !bytes.is_empty() {
            let space = self.lane.receive_space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.lane.handle_received(count);
            bytes = &bytes[count..];
            while let Some(arrived) = self.lane.poll_arrived(&mut self.pool).expect("an honest peer") {
                let FrameHeader { tag, attachment, flags, .. } = arrived.head;
                let whole = Payload::joined([self.partial.remove(&tag).unwrap_or_default(), arrived.body]);
                if flags.more {
                    self.partial.insert(tag, whole);
                } else {
                    let expected = other.unreceived.get_mut(&attachment.into()).and_then(VecDeque::pop_front);
                    assert_eq!(expected, Some((tag, whole.into_vec())), "once, whole, in order");
                }
            }
        }
    }

    fn transmit(&mut self, most: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while out.len() < most && self.lane.has_transmit() {
            let bytes = self.lane.poll_transmit(Instant::ZERO).concat_at_most(most - out.len());
            assert!(!bytes.is_empty(), "what has to be sent is there");
            self.lane.handle_transmitted(bytes.len());
            out.extend(bytes);
        }
        out
    }
}

/// Two ends and the bytes between them.
struct World {
    ends: [End; 2],
    /// Bytes under way to each end.
    wires: [Vec<u8>; 2],
}

impl World {
    fn new() -> Self {
        let mut world = Self { ends: [End::new(), End::new()], wires: [vec![], vec![]] };
        world.link();
        world
    }

    fn link(&mut self) {
        self.wires = [vec![], vec![]];
        let received = [0, 1].map(|end: usize| self.ends[end].lane.received());
        for (end, theirs) in [(0, received[1]), (1, received[0])] {
            let end: &mut End = &mut self.ends[end];
            end.lane.handle_linked(theirs, &mut end.pool).expect("an honest peer");
        }
    }

    fn cut(&mut self) {
        self.ends.iter_mut().for_each(|end| end.lane.handle_lost());
        self.wires = [vec![], vec![]];
    }

    fn send(&mut self, from: usize, most: usize) {
        let bytes = self.ends[from].transmit(most);
        self.wires[1 - from].extend(bytes);
    }

    fn arrive(&mut self, to: usize, most: usize) {
        let count = most.min(self.wires[to].len());
        let bytes: Vec<u8> = self.wires[to].drain(..count).collect();
        let [a, b] = &mut self.ends;
        if to == 0 { a.take_in(&bytes, b) } else { b.take_in(&bytes, a) }
    }

    /// Exchanges bytes until nothing waits at either end or on the way.
    fn settle(&mut self) {
        while self.ends.iter().any(|end| end.lane.has_transmit()) || self.wires.iter().any(|wire| !wire.is_empty()) {
            for end in [0, 1] {
                self.send(end, usize::MAX);
                self.arrive(1 - end, usize::MAX);
            }
        }
        for end in &self.ends {
            assert!(end.unreceived.values().all(VecDeque::is_empty), "nothing is lost");
            assert!(end.partial.is_empty());
            assert!(end.lane.unacknowledged_bytes() < 640 << 10, "little is kept");
            assert_eq!(end.lane.waiting_bytes(), 0);
        }
    }
}

#[test]
fn fuzz_lane_under_cuts() {
    target("lane_under_cuts", |input| {
        let mut world = World::new();
        while !input.is_empty() {
            let end = input.below(2) as usize;
            match input.below(8) {
                0..=2 => {
                    let bytes = input.pick(&[0, 1, 8, 500, 4096, 70_000, 200_000]);
                    world.ends[end].say(input.below(3), bytes);
                }
                3 | 4 => world.send(end, input.pick(&[1, 7, 8, 9, 100, 5000, 100_000, usize::MAX])),
                5 | 6 => world.arrive(end, input.pick(&[1, 7, 8, 9, 100, 5000, 100_000, usize::MAX])),
                _ => {
                    world.cut();
                    if !input.once_in(4) {
                        world.link();
                    }
                }
            }
        }
        world.cut();
        world.link();
        world.settle();
    });
}

/// A cut after every single byte of a conversation.
#[test]
fn cut_link_loses_and_repeats_no_message() {
    let talk = |world: &mut World| {
        world.ends[0].say(0, 8);
        world.ends[0].say(1, 3000);
        world.ends[1].say(1, 500);
        world.ends[0].say(2, 0);
    };
    let mut whole = World::new();
    talk(&mut whole);
    whole.send(0, usize::MAX);
    let bytes = whole.wires[1].len();
    assert_eq!(bytes, 3 * HEAD_BYTES + 3008);
    for sent in 0..=bytes {
        for arrived in [0, sent / 2, sent] {
            let mut world = World::new();
            talk(&mut world);
            world.send(0, sent);
            world.arrive(1, arrived);
            world.cut();
            world.link();
            world.settle();
        }
    }
}

#[test]
fn fuzz_lane_hears_anything() {
    target("lane_hears_anything", |input| {
        let mut lane = Lane::new(LIMITS);
        let mut pool = BufferPool::new(1 << 16);
        lane.handle_linked(0, &mut pool).expect("nothing was sent");
        for tag in 0..input.below(4) as u16 {
            let message = OutboundMessage::control(FrameKind::Open, 1, tag, ClassPart::from(vec![7; 100]));
            lane.send(message);
        }
        let _ = lane.poll_transmit(Instant::ZERO);
        let bytes = if input.once_in(2) {
            let mut bytes = Vec::new();
            while !input.is_empty() {
                let kind = input.pick(&[0, 1, 2, 8, 16, 32, 33, 34, 0x80, 0xff]);
                let length = input.below(12) as u16;
                bytes.extend([kind, input.pick(&[0, 1, 7]), 1, 0]);
                bytes.extend([input.byte(), 0]);
                bytes.extend(length.to_le_bytes());
                bytes.extend(input.bytes(length.into()));
            }
            bytes
        } else {
            input.rest().to_vec()
        };
        let mut rest = &bytes[..];
        let mut frames = 0u64;
        'all: while !rest.is_empty() {
            let space = lane.receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            lane.handle_received(count);
            rest = &rest[count..];
            loop {
                match lane.poll_arrived(&mut pool) {
                    Ok(None) => break,
                    Ok(Some(arrived)) => {
                        assert_eq!(arrived.body.len(), usize::from(arrived.head.length));
                        frames += 1;
                    }
                    Err(_) => break 'all,
                }
            }
            while lane.has_transmit() {
                let count = lane.poll_transmit(Instant::ZERO).iter().map(|run| run.len()).sum();
                lane.handle_transmitted(count);
            }
        }
        assert!(lane.received() >= frames);
    });
}

/// One of the vectors, mostly with some bytes changed.
fn changed(input: &mut Input<'_>, vectors: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vectors[input.below(vectors.len() as u32) as usize].clone();
    for _ in 0..input.below(5) {
        let at = input.below(bytes.len().max(1) as u32) as usize;
        match input.below(4) {
            0 if at < bytes.len() => bytes[at] = input.byte(),
            1 if at < bytes.len() => bytes[at] ^= 1 << input.below(8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            _ => bytes.insert(at, input.byte()),
        }
    }
    bytes
}

#[test]
fn fuzz_greeting() {
    let vectors = [all_bytes("hello"), all_bytes("welcome")].concat();
    target("greeting", |input| {
        let near = changed(input, &vectors);
        let bytes = input.rest();
        for whole in [near, bytes.to_vec(), [&b"farbus\r\n"[..], bytes].concat()] {
            if let Ok(Some((hello, count))) = ImporterHello::decode(&whole) {
                assert!(count <= whole.len());
                let again = ImporterHello { ..hello }.encode();
                assert_eq!(ImporterHello::decode(&again).map(|known| known.map(|(hello, _)| hello)), Ok(Some(hello)));
            }
            if let Ok(Some((welcome, _))) = ExporterWelcome::decode(&whole) {
                let again = welcome.encode();
                assert_eq!(
                    ExporterWelcome::decode(&again).map(|known| known.map(|(known, _)| known)),
                    Ok(Some(welcome))
                );
            }
        }
    });
}

#[test]
fn fuzz_native_parts() {
    /// Kind, flags, number and length come before a message's part.
    const HEAD_BYTES: usize = 8;
    let parts: Vec<Vec<u8>> =
        all_bytes("").into_iter().filter_map(|vector| Some(vector.get(HEAD_BYTES..)?.to_vec())).collect();
    target("native_parts", |input| {
        let near = changed(input, &parts);
        let bytes = if input.once_in(4) { input.rest() } else { &near };
        if let Ok(open) = OpenRequest::decode(bytes) {
            assert_eq!(OpenRequest::decode(&open.encode()), Ok(open));
        }
        if let Ok(opened) = OpenReply::decode(bytes) {
            assert_eq!(opened.encode(), bytes);
            let _ = usb::UsbDescription::decode(&opened.info)
                .map(|known| assert!(opened.info.starts_with(&known.encode())));
            let _ = block::BlockDescription::decode(&opened.info);
            let _ = stream::StreamDescription::decode(&opened.info)
                .map(|known| assert!(opened.info.starts_with(&known.encode())));
            let _ = console::ConsoleDescription::decode(&opened.info)
                .map(|known| assert!(opened.info.starts_with(&known.encode())));
        }
        if let Ok(end) = control::AttachmentEndNotice::decode(bytes) {
            assert_eq!(control::AttachmentEndNotice::decode(&end.encode()), Ok(end));
        }
        if let Ok(all) = descriptors::decode(bytes) {
            assert_eq!(descriptors::decode(&descriptors::encode(&all, usize::MAX)), Ok(all));
        }
        if let Ok(description) = usb::UsbDescription::decode(bytes) {
            assert!(bytes.starts_with(&description.encode()));
        }
        if let Ok(description) = stream::StreamDescription::decode(bytes) {
            assert!(bytes.starts_with(&description.encode()));
            assert!(u64::from(description.window() - 1) * u64::from(description.frame_bytes_max) <= 16 << 20);
        }
        if let Ok(frame) = stream::StreamFrame::decode(bytes.into()) {
            assert_eq!([&frame.part()[..], &frame.data.contiguous()].concat(), bytes);
        }
        if let Ok(description) = console::ConsoleDescription::decode(bytes) {
            assert!(bytes.starts_with(&description.encode()));
        }
        if let Ok(output) = console::ConsoleOutput::decode(bytes.into()) {
            let again = [&output.part()[..], &output.data.contiguous()].concat();
            assert_eq!(console::ConsoleOutput::decode(again.into()), Ok(output));
        }
        if let Ok(request) = block::decode_request(BlockId(1), bytes) {
            let again = block::decode_request(BlockId(1), &block::request_part(&request)).expect("as it was");
            assert_eq!((again.offset, again.length), (request.offset, request.length));
        }
        if let Ok((usb::UsbRequestPart::Transfer(urb), count)) = usb::decode_request(UrbId(1), bytes) {
            assert!(count <= bytes.len());
            assert!(urb.iso.iter().all(|packet| packet.offset + packet.length <= urb.length));
            if let Ok((reply, count)) = usb::decode_reply(&urb, &bytes[count..]) {
                assert!(count <= bytes.len() && reply.actual <= urb.length);
            }
        }
    });
}

/// A USB request of any kind and shape, and a reply that could be its own, each with a few bytes changed.
#[test]
fn fuzz_native_usb() {
    let kinds = [TransferType::Control, TransferType::Isochronous, TransferType::Bulk, TransferType::Interrupt];
    target("native_usb", |input| {
        let kind = input.pick(&kinds);
        let (sent, bytes) = any_urb(input, kind);
        let near = changed(input, &[bytes]);
        let Ok((request, count)) = usb::decode_request(UrbId(7), &near) else { return };
        assert!(count <= near.len());
        let urb = match request {
            usb::UsbRequestPart::Transfer(urb) => urb,
            usb::UsbRequestPart::Reset => sent,
        };
        assert!(urb.iso.iter().all(|packet| packet.offset + packet.length <= urb.length));
        let read = TransferType::from_attributes(near[1]);
        // What was understood is what is said again.
        if let Ok((usb::UsbRequestPart::Transfer(again), _)) =
            usb::decode_request(UrbId(7), &usb::request_part(&urb, read))
        {
            assert_eq!(format!("{:?}", again.iso), format!("{:?}", urb.iso));
            assert_eq!((again.length, again.setup, again.flags), (urb.length, urb.setup, urb.flags));
        }
        let status = usb::status_of(input.byte() % 17).unwrap_or(UrbStatus::Ok);
        let moved = |input: &mut Input<'_>, room: u32| if input.once_in(3) { input.below(room + 2) } else { room };
        let iso = urb.iso.iter().map(|packet| {
            let actual = moved(input, packet.length);
            IsoPacket { actual, status: usb::status_of(input.byte() % 4).unwrap_or_default(), ..*packet }
        });
        let iso: Vec<IsoPacket> = iso.collect();
        let actual = match iso.is_empty() {
            true => moved(input, urb.length.min(4096)),
            false => iso.iter().map(|packet| packet.actual).sum(),
        };
        let reply = usb::UsbReplyPart { status, actual, start_frame: input.word(), iso };
        let data = vec![0x5a; if urb.direction == TransferDirection::In { actual.min(1 << 16) as usize } else { 0 }];
        let whole = changed(input, &[[&reply.encode()[..], &data].concat()]);
        if let Ok((known, count)) = usb::decode_reply(&urb, &whole) {
            assert!(count <= whole.len() && known.actual <= urb.length);
            assert!(known.iso.iter().zip(&urb.iso).all(|(came, sent)| came.actual <= sent.length));
            let _ = usb::check_data(&urb, &known, &Payload::from(whole[count..].to_vec()));
            // A reply without packets has no start frame when it is said again.
            let (again, _) = usb::decode_reply(&urb, &known.encode()).expect("as it was");
            assert_eq!((again.status, again.actual, again.iso), (known.status, known.actual, known.iso));
        }
        let packets: Vec<(u32, UrbStatus)> = reply.iso.iter().map(|packet| (packet.actual, packet.status)).collect();
        let event = usb::ObservedTransfer {
            endpoint: urb.endpoint,
            kind: if packets.is_empty() { TransferType::Interrupt } else { TransferType::Isochronous },
            status,
            missed: input.word(),
            moment_ns: input.word().into(),
            packets,
            data: Payload::from(vec![0x5a; actual.min(1 << 16) as usize]),
        };
        let whole = changed(input, &[[&event.part()[..], &event.data.contiguous()].concat()]);
        if let Ok(event) = usb::ObservedTransfer::decode(Payload::from(whole)) {
            let again = Payload::from([&event.part()[..], &event.data.contiguous()].concat());
            assert_eq!(usb::ObservedTransfer::decode(again), Ok(event));
        }
    });
}

/// A request of this kind, and its bytes.
fn any_urb(input: &mut Input<'_>, kind: TransferType) -> (Urb, Vec<u8>) {
    let number = if kind == TransferType::Control { 0 } else { 1 + input.byte() % 15 };
    let is_in = input.once_in(2);
    let mut urb = Urb::data_in(UrbId(7), EpAddr::from_byte(number | if is_in { 0x80 } else { 0 }), 0);
    urb.direction = if is_in { TransferDirection::In } else { TransferDirection::Out };
    urb.length = input.pick(&[0, 1, 8, 512, 4096, 65535]);
    urb.flags = UrbFlags { short_not_ok: input.once_in(4), zero_packet: input.once_in(4), iso_asap: input.once_in(4) };
    urb.interval = input.byte().into();
    match kind {
        TransferType::Control => {
            let [request_type, request, value, index] = [0; 4].map(|_: u8| input.byte());
            let request_type = request_type & 0x7f | if is_in { 0x80 } else { 0 };
            let (value, index, length) = (value.into(), index.into(), urb.length as u16);
            urb.setup = SetupPacket { request_type, request, value, index, length };
            urb.endpoint = EpAddr::CONTROL;
        }
        TransferType::Isochronous => {
            let (gap, is_uniform) = (input.pick(&[0, 0, 3]), input.once_in(2));
            let each = input.pick(&[0, 1, 188, 1024]);
            let mut offset = 0;
            for _ in 0..1 + input.below(12) {
                let length = if is_uniform { each } else { input.below(each + 1) };
                urb.iso.push(IsoPacket { offset, length, ..IsoPacket::default() });
                offset += length + gap;
            }
            urb.length = offset;
            urb.start_frame = input.word();
        }
        TransferType::Bulk => urb.stream = input.byte().into(),
        TransferType::Interrupt => {}
    }
    let part = usb::request_part(&urb, kind);
    (urb, part.to_vec())
}

#[test]
fn acknowledgement_of_unsent_frames_is_refused() {
    let mut pool = BufferPool::new(0);
    let mut lane = Lane::new(LIMITS);
    assert_eq!(lane.handle_linked(1, &mut pool).unwrap_err().field, "received");
    lane.handle_linked(0, &mut pool).unwrap();
    lane.send(OutboundMessage::control(FrameKind::Open, 1, 0, ClassPart::from(vec![7; 100])));
    let half = lane.poll_transmit(Instant::ZERO)[0].len() / 2;
    lane.handle_transmitted(half);
    let ack = |count: u64| FrameHeader::acknowledgement(count).to_bytes();
    let hear = |lane: &mut Lane, bytes: &[u8]| {
        lane.receive_space()[..bytes.len()].copy_from_slice(bytes);
        lane.handle_received(bytes.len());
        lane.poll_arrived(&mut BufferPool::new(0)).map(|arrived| arrived.is_some())
    };
    assert_eq!(hear(&mut lane, &ack(1)).unwrap_err().field, "received", "only half of it was sent");
    lane.handle_lost();
    assert_eq!(lane.handle_linked(1, &mut pool).unwrap_err().field, "received", "and no more arrived than was sent");
    lane.handle_linked(0, &mut pool).unwrap();
    let count = lane.poll_transmit(Instant::ZERO).iter().map(|run| run.len()).sum();
    lane.handle_transmitted(count);
    assert_eq!(hear(&mut lane, &ack(1)), Ok(false));
    assert!(lane.is_settled());
    assert_eq!(hear(&mut lane, &ack(0)).unwrap_err().field, "received", "what arrived stays so");
}

#[test]
fn an_acknowledgement_has_no_body() {
    let mut lane = Lane::new(LIMITS);
    lane.handle_linked(0, &mut BufferPool::new(0)).unwrap();
    let bytes = [&FrameHeader { length: 8, ..FrameHeader::acknowledgement(0) }.to_bytes()[..], &[0; 8]].concat();
    lane.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    lane.handle_received(bytes.len());
    assert_eq!(lane.poll_arrived(&mut BufferPool::new(0)).unwrap_err().field, "body length");
}

#[test]
fn a_ping_is_said_back_and_counts_for_nothing() {
    let mut world = World::new();
    world.ends[0].lane.ping(77);
    world.send(0, usize::MAX);
    world.arrive(1, usize::MAX);
    world.send(1, usize::MAX);
    world.arrive(0, usize::MAX);
    assert_eq!(world.ends[0].lane.poll_pong(), Some(77));
    assert_eq!(world.ends.map(|end| end.lane.received()), [0, 0]);
}

#[test]
fn a_later_kind_is_counted_and_passed_over() {
    let mut lane = Lane::new(LIMITS);
    let later =
        FrameHeader { length: 3, flags: FrameFlags::default(), ..FrameHeader::new(FrameKind::Later(200), 0, 0) };
    let bytes = [&later.to_bytes()[..], b"abc", &FrameHeader::new(FrameKind::Goodbye, 0, 0).to_bytes()].concat();
    lane.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    lane.handle_received(bytes.len());
    let arrived = lane.poll_arrived(&mut BufferPool::new(0)).unwrap().unwrap();
    assert_eq!((arrived.head.kind, lane.received()), (FrameKind::Goodbye, 2));
}

/// A slow reader bounds what is kept: beyond it no frame is cut, and an acknowledgement lets the sender continue.
#[test]
fn unacknowledged_bytes_are_bounded() {
    let mut world = World::new();
    for _ in 0..64 {
        world.ends[0].say(1, 100_000);
    }
    world.send(0, usize::MAX);
    let kept = world.ends[0].lane.unacknowledged_bytes();
    assert!((1 << 20..(1 << 20) + 100_000).contains(&kept), "{kept}");
    assert!(!world.ends[0].lane.has_transmit());
    world.settle();
}
