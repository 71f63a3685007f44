//! Golden vectors of farbus's own protocol: what every message looks like, in `golden_native/*.hex`, and in
//! `docs/protocol.md`, which shows these files unchanged.
//!
//! The files are written by hand from the tables of that document and not by the encoder. In them `#` begins a comment,
//! `"text"` is the bytes of a text, `55*4096` a byte repeated, and the rest is hexadecimal.

mod vectors;

use std::path::Path;
use std::time::Duration;

use farbus_model::module::ModuleOffer;
use farbus_model::{
    BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, EpAddr, ExportIdentity, Instant, IsoPacket, Payload,
    SetupPacket, StoreError, TransferType, Urb, UrbCompletion, UrbFlags, UrbId, UrbStatus, UsbSpeed,
};
use farbus_wire::native::block;
use farbus_wire::native::console::{self, ConsoleOutput, ConsolePort, PortKind};
use farbus_wire::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, CloseRequest,
    OpenReply, OpenRequest, SuccessorOpenRequest,
};
use farbus_wire::native::descriptors::{self, NamedDescriptor};
use farbus_wire::native::frame::{FrameFlags, HEAD_BYTES, RESIDENCE_BYTES, ResidenceTimes};
use farbus_wire::native::identity::IdentityStatement;
use farbus_wire::native::modules::{
    decode_answers, decode_offers, encode_answers, encode_offers, put_head, split_head,
};
use farbus_wire::native::reserve::{
    CAR_BYTES, EndpointBandwidth, ReservationCriticality, ReservationMessage, ReservationReport, ReservationState,
    ReservationTerms, ScarceResource, ThreadTime,
};
use farbus_wire::native::stream::{self, PixelFormat, StreamFormat, StreamFrame};
use farbus_wire::native::usb::{self, UsbRequestPart};
use farbus_wire::native::{
    ClassPart, ExporterWelcome, FlowId, FrameHeader, FrameKind, HelloOptions, ImporterHello, Lane, LaneLimits,
    LanePosition, MessageUrgency, OutboundMessage, ReceivedFrame, SessionId, WelcomeOutcome, retire,
};
use vectors::{bytes_of, folder, text};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");
const SECTION: &str = "## Golden vectors\n";
/// If set, the section is written again: `FARBUS_WRITE=1 cargo test -p farbus-wire --test native_golden`.
const WRITE: &str = "FARBUS_WRITE";

/// The state of a virtual machine's stream: an interrupt stream runs, and no other request is pending.
const FROZEN: &[u8] = &[
    b'r', b'e', b'd', b'i', b'r', 0, 0, 1, // what it is, version 1
    0xfe, 0, 0, 0, // what the machine can do
    1, 1, 0, 1, // configuration, one alternate setting: interface 0, setting 1
    17, 0, 0, 0, // bytes of what it had asked
    15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, // start_interrupt_receiving
    0, 0, 0, 0, // bytes of answers
];

const DISK: u16 = 7;
const STICK: u16 = 1;
const CAMERA: u16 = 3;
const SERIAL: u16 = 4;
/// When the lanes here cut their frames.
const CUT_AT: Instant = Instant::from_nanos(5_002_000);
/// When the device had finished the answered request.
const DONE_AT: Instant = Instant::from_nanos(5_000_000);

/// Any message, typed.
enum GoldenMessage {
    Hello(ImporterHello),
    Welcome(ExporterWelcome),
    /// Ping, pong, acknowledgement.
    Number(FrameKind, u64),
    /// A message of a kind without a body.
    Bare(FrameKind, u16, u16),
    Open(OpenRequest),
    Inherit(SuccessorOpenRequest),
    Close(CloseRequest),
    Offers(Vec<ModuleOffer>),
    Answers(Vec<Vec<u8>>),
    /// A message that passed modules: head and payload.
    Piped(FrameKind, u16, &'static [u8], &'static [u8]),
    Reserve(ReservationMessage),
    Identity(IdentityStatement),
    Retire(retire::DiskMoveMessage),
    Descriptors(Vec<NamedDescriptor>),
    /// Bytes that no host on the way reads.
    MigrationState(&'static [u8]),
    Opened(u16, OpenReply, Description),
    End(FrameKind, AttachmentEndNotice),
    Grant(u32),
    Event(usb::ObservedTransfer),
    Frame(u16, StreamFrame),
    Console(u16, ConsoleOutput),
    UsbRequest(Urb, TransferType),
    UsbReset(u16),
    /// The transfer, and its outcome.
    UsbReply(Urb, Box<UrbCompletion>),
    BlockRequest(BlockRequest, bool),
    BlockReply(u16, Result<&'static [u8], StoreError>, Option<ResidenceTimes>),
}

/// The description of a device.
enum Description {
    Usb(usb::UsbDescription),
    Block(block::BlockDescription),
    Stream(stream::StreamDescription),
    Console(console::ConsoleDescription),
}

impl GoldenMessage {
    fn bytes(&self) -> Vec<u8> {
        let mut lane = linked();
        match self {
            GoldenMessage::Hello(hello) => return hello.encode(),
            GoldenMessage::Welcome(welcome) => return welcome.encode(),
            GoldenMessage::Number(FrameKind::Ping, number) => lane.ping(*number),
            GoldenMessage::Number(FrameKind::Pong, number) => {
                let mut other = linked();
                other.ping(*number);
                assert!(hear(&mut lane, &transmitted(&mut other)).is_empty());
            }
            GoldenMessage::Number(kind, count) => {
                assert_eq!(*kind, FrameKind::Ack);
                let mut other = linked();
                (0..*count)
                    .for_each(|_| other.send(message(FrameKind::Event, DISK, 0, [].into(), vec![1; 60_000].into())));
                hear(&mut lane, &transmitted(&mut other));
            }
            _ => lane.send(self.message()),
        }
        transmitted(&mut lane)
    }

    fn message(&self) -> OutboundMessage {
        match self {
            GoldenMessage::Hello(_) | GoldenMessage::Welcome(_) | GoldenMessage::Number(..) => {
                unreachable!("a lane or a link says these")
            }
            GoldenMessage::Bare(kind, attachment, tag) => {
                OutboundMessage::control(*kind, *attachment, *tag, ClassPart::empty())
            }
            GoldenMessage::Open(open) => OutboundMessage::control(FrameKind::Open, DISK, 0, open.encode().into()),
            GoldenMessage::Inherit(inherit) => {
                OutboundMessage::control(FrameKind::Inherit, STICK, 0, inherit.encode().into())
            }
            GoldenMessage::Offers(offers) => {
                OutboundMessage::control(FrameKind::Modules, DISK, 0, encode_offers(offers).into())
            }
            GoldenMessage::Reserve(word) => OutboundMessage {
                payload: if matches!(word, ReservationMessage::Train { .. }) {
                    vec![0; CAR_BYTES].into()
                } else {
                    Payload::Empty
                },
                ..OutboundMessage::control(FrameKind::Reserve, STICK, 0, word.encode().into())
            },
            GoldenMessage::Identity(statement) => {
                OutboundMessage::control(FrameKind::Identity, DISK, 0, statement.encode().into())
            }
            GoldenMessage::Retire(word) => OutboundMessage::control(FrameKind::Retire, DISK, 0, word.encode().into()),
            GoldenMessage::Descriptors(all) => {
                OutboundMessage::control(FrameKind::Descriptors, STICK, 0, descriptors::encode(all, usize::MAX).into())
            }
            GoldenMessage::Answers(answers) => {
                OutboundMessage::control(FrameKind::Modules, DISK, 0, encode_answers(answers).into())
            }
            GoldenMessage::Piped(kind, tag, head, payload) => {
                let (mut part, payload) = (ClassPart::empty(), Payload::from(*payload));
                put_head(&mut part, &Payload::from(*head), &payload);
                message(*kind, DISK, *tag, part, payload)
            }
            GoldenMessage::MigrationState(migration_state) => {
                OutboundMessage::control(FrameKind::MigrationState, STICK, 0, migration_state.to_vec().into())
            }
            GoldenMessage::Opened(attachment, opened, _) => {
                OutboundMessage::control(FrameKind::Opened, *attachment, 0, opened.encode().into())
            }
            GoldenMessage::End(kind, end) => OutboundMessage::control(*kind, DISK, 0, end.encode().into()),
            GoldenMessage::Close(close) => OutboundMessage::control(FrameKind::Close, DISK, 0, close.encode().into()),
            GoldenMessage::Grant(events) => {
                OutboundMessage::control(FrameKind::Grant, STICK, 0, events.to_le_bytes().to_vec().into())
            }
            GoldenMessage::Event(event) => message(FrameKind::Event, STICK, 0, event.part(), event.data.clone()),
            GoldenMessage::Frame(tag, frame) => {
                message(FrameKind::Event, CAMERA, *tag, frame.part(), frame.data.clone())
            }
            GoldenMessage::Console(tag, output) => {
                message(FrameKind::Event, SERIAL, *tag, output.part(), output.data.clone())
            }
            GoldenMessage::UsbRequest(urb, kind) => {
                message(FrameKind::Request, STICK, urb.id.0 as u16, usb::request_part(urb, *kind), urb.payload.clone())
            }
            GoldenMessage::UsbReset(tag) => message(FrameKind::Request, STICK, *tag, usb::reset_part(), Payload::Empty),
            GoldenMessage::UsbReply(_, done) => {
                let part = usb::reply_part(done);
                let plain = part.is_none();
                let part = part.unwrap_or_default();
                let mut message = message(FrameKind::Reply, STICK, done.id.0 as u16, part, done.payload.clone());
                message.head.flags.plain = plain;
                message
            }
            GoldenMessage::BlockRequest(request, timed) => {
                let part = block::request_part(request);
                let mut message = message(FrameKind::Request, DISK, request.id.0 as u16, part, request.payload.clone());
                message.head.flags.timed = *timed;
                message
            }
            GoldenMessage::BlockReply(tag, result, residence) => {
                let mut part = ClassPart::empty();
                if let Some(residence) = residence {
                    part.put(&ResidenceTimes { reply_ns: 0, ..*residence }.to_bytes());
                }
                if let Err(error) = result {
                    part.put(&block::reply_part(*error));
                }
                let mut message = message(FrameKind::Reply, DISK, *tag, part, result.unwrap_or_default().into());
                message.head.flags = FrameFlags { more: false, plain: result.is_ok(), timed: residence.is_some() };
                message.done_at = residence.map(|_| DONE_AT);
                message
            }
        }
    }

    /// Checks that these bytes decode to this message.
    fn check(&self, bytes: &[u8]) {
        match self {
            GoldenMessage::Hello(hello) => assert_eq!(ImporterHello::decode(bytes), Ok(Some((*hello, bytes.len())))),
            GoldenMessage::Welcome(welcome) => {
                assert_eq!(ExporterWelcome::decode(bytes), Ok(Some((*welcome, bytes.len()))))
            }
            GoldenMessage::Number(kind, number) => check_number(*kind, *number, bytes),
            _ => self.check_arrived(hear(&mut linked(), bytes)),
        }
    }

    fn check_arrived(&self, frames: Vec<ReceivedFrame>) {
        let head = frames.first().expect("a frame").head;
        let expected = self.message().head;
        assert_eq!((head.kind, head.attachment, head.tag), (expected.kind, expected.attachment, expected.tag));
        assert_eq!((head.flags.plain, head.flags.timed), (expected.flags.plain, expected.flags.timed));
        let body = Payload::joined(frames.into_iter().map(|frame| frame.body)).into_vec();
        match self {
            GoldenMessage::Hello(_) | GoldenMessage::Welcome(_) | GoldenMessage::Number(..) => {
                unreachable!("looked at already")
            }
            GoldenMessage::Bare(..) => assert!(body.is_empty()),
            GoldenMessage::Open(open) => {
                assert_eq!(OpenRequest::decode(&body).as_ref(), Ok(open));
                refused_short(&body, |bytes| OpenRequest::decode(bytes).is_err());
            }
            GoldenMessage::Inherit(inherit) => {
                assert_eq!(SuccessorOpenRequest::decode(&body).as_ref(), Ok(inherit));
                refused_short(&body, |bytes| SuccessorOpenRequest::decode(bytes).is_err());
            }
            GoldenMessage::Offers(offers) => {
                assert_eq!(decode_offers(&body).as_ref(), Ok(offers));
                refused_short(&body, |bytes| decode_offers(bytes).is_err());
            }
            GoldenMessage::Answers(answers) => {
                assert_eq!(decode_answers(&body).as_ref(), Ok(answers));
                refused_short(&body, |bytes| decode_answers(bytes).is_err());
            }
            GoldenMessage::Piped(_, _, head, payload) => {
                assert_eq!(split_head(body.into()), Ok(((*head).into(), (*payload).into())));
            }
            GoldenMessage::Reserve(word) => {
                assert_eq!(ReservationMessage::decode(&body).as_ref(), Ok(word));
                let is_whole = |bytes: &[u8]| match word {
                    // Without its last byte it is a report that does not say what the thread has.
                    ReservationMessage::Report(ReservationReport { thread: Some(_), .. }) => {
                        bytes.len() + 1 == body.len()
                    }
                    _ => false,
                };
                if !matches!(word, ReservationMessage::Train { .. }) {
                    refused_short(&body, |bytes| is_whole(bytes) || ReservationMessage::decode(bytes).is_err());
                }
            }
            GoldenMessage::Identity(statement) => {
                assert_eq!(IdentityStatement::decode(&body), Ok(Some(*statement)));
                refused_short(&body, |bytes| IdentityStatement::decode(bytes).is_err());
            }
            GoldenMessage::Retire(word) => {
                assert_eq!(retire::DiskMoveMessage::decode(&body), Ok(Some(word.clone())));
                refused_short(&body, |bytes| retire::DiskMoveMessage::decode(bytes).is_err());
            }
            GoldenMessage::Descriptors(all) => {
                assert_eq!(descriptors::decode(&body).as_ref(), Ok(all));
                refused_short(&body, |bytes| descriptors::decode(bytes).is_err());
            }
            GoldenMessage::MigrationState(migration_state) => assert_eq!(body, *migration_state),
            GoldenMessage::Opened(_, opened, device) => {
                assert_eq!(OpenReply::decode(&body).as_ref(), Ok(opened));
                match device {
                    Description::Usb(device) => {
                        assert_eq!(usb::UsbDescription::decode(&opened.info).as_ref(), Ok(device));
                        refused_short(&opened.info, |bytes| usb::UsbDescription::decode(bytes).is_err());
                    }
                    Description::Block(device) => {
                        assert_eq!(block::BlockDescription::decode(&opened.info).as_ref(), Ok(device));
                        refused_short(&opened.info, |bytes| block::BlockDescription::decode(bytes).is_err());
                    }
                    Description::Stream(device) => {
                        assert_eq!(stream::StreamDescription::decode(&opened.info).as_ref(), Ok(device));
                        refused_short(&opened.info, |bytes| stream::StreamDescription::decode(bytes).is_err());
                    }
                    Description::Console(device) => {
                        assert_eq!(console::ConsoleDescription::decode(&opened.info).as_ref(), Ok(device));
                        refused_short(&opened.info, |bytes| console::ConsoleDescription::decode(bytes).is_err());
                    }
                }
            }
            GoldenMessage::End(_, end) => {
                assert_eq!(AttachmentEndNotice::decode(&body).as_ref(), Ok(end));
                refused_short(&body, |bytes| AttachmentEndNotice::decode(bytes).is_err());
            }
            GoldenMessage::Close(close) => assert_eq!(CloseRequest::decode(&body).as_ref(), Ok(close)),
            GoldenMessage::Grant(events) => assert_eq!(body, events.to_le_bytes()),
            GoldenMessage::Event(event) => assert_eq!(usb::ObservedTransfer::decode(body.into()).as_ref(), Ok(event)),
            GoldenMessage::Frame(_, frame) => assert_eq!(StreamFrame::decode(body.into()).as_ref(), Ok(frame)),
            GoldenMessage::Console(_, output) => assert_eq!(ConsoleOutput::decode(body.into()).as_ref(), Ok(output)),
            GoldenMessage::UsbRequest(urb, _) => {
                let (UsbRequestPart::Transfer(mut again), part) = usb::decode_request(urb.id, &body).unwrap() else {
                    panic!("a transfer")
                };
                again.payload = body[part..].into();
                assert_eq!(format!("{again:?}"), format!("{urb:?}"));
                refused_short(&body[..part], |bytes| usb::decode_request(urb.id, bytes).is_err());
            }
            GoldenMessage::UsbReset(tag) => {
                assert!(matches!(usb::decode_request(UrbId((*tag).into()), &body), Ok((UsbRequestPart::Reset, 8))));
                refused_short(&body, |bytes| usb::decode_request(UrbId(0), bytes).is_err());
            }
            GoldenMessage::UsbReply(_, done) if head.flags.plain => assert_eq!(Payload::from(body), done.payload),
            GoldenMessage::UsbReply(urb, done) => {
                let (reply, part) = usb::decode_reply(urb, &body).unwrap();
                assert_eq!((reply.status, reply.actual), (done.status, done.actual));
                assert_eq!((reply.start_frame, &reply.iso), (done.start_frame, &done.iso));
                assert_eq!(Payload::from(&body[part..]), done.payload);
                assert_eq!(usb::check_data(urb, &reply, &done.payload), Ok(()));
                refused_short(&body[..part], |bytes| usb::decode_reply(urb, bytes).is_err());
            }
            GoldenMessage::BlockRequest(request, _) => {
                let mut again = block::decode_request(request.id, &body).unwrap();
                again.payload = body[block::REQUEST_BYTES..].into();
                assert_eq!(format!("{again:?}"), format!("{request:?}"));
                refused_short(&body[..block::REQUEST_BYTES], |bytes| block::decode_request(request.id, bytes).is_err());
            }
            GoldenMessage::BlockReply(_, result, residence) => {
                let (times, rest) = body.split_at(if head.flags.timed { RESIDENCE_BYTES } else { 0 });
                assert_eq!(times.try_into().ok().map(ResidenceTimes::from_bytes), *residence);
                match result {
                    Ok(data) => assert_eq!(rest, *data),
                    Err(error) => assert_eq!(block::decode_reply(rest), Ok(*error)),
                }
            }
        }
    }
}

fn refused_short(bytes: &[u8], is_refused: impl Fn(&[u8]) -> bool) {
    for end in 0..bytes.len() {
        assert!(is_refused(&bytes[..end]), "the first {end} bytes of {bytes:02x?}");
    }
}

fn check_number(kind: FrameKind, number: u64, bytes: &[u8]) {
    let mut lane = linked();
    match kind {
        FrameKind::Ping => {
            assert!(hear(&mut lane, bytes).is_empty());
            assert_eq!(transmitted(&mut lane)[HEAD_BYTES..], number.to_le_bytes());
        }
        FrameKind::Pong => {
            assert!(hear(&mut lane, bytes).is_empty());
            assert_eq!(lane.poll_pong(), Some(number));
        }
        _ => {
            (0..number).for_each(|_| lane.send(message(FrameKind::Close, DISK, 0, [].into(), Payload::Empty)));
            transmitted(&mut lane);
            assert!(!lane.is_settled());
            assert!(hear(&mut lane, bytes).is_empty());
            assert!(lane.is_settled(), "all of it arrived");
        }
    }
}

fn message(kind: FrameKind, attachment: u16, tag: u16, part: ClassPart, payload: Payload) -> OutboundMessage {
    let head = FrameHeader::new(kind, attachment, tag);
    OutboundMessage {
        head,
        part,
        payload,
        urgency: MessageUrgency::Low,
        flow: FlowId(attachment.into()),
        done_at: None,
    }
}

fn linked() -> Lane {
    let mut lane = Lane::new(LaneLimits::DEFAULT);
    lane.handle_linked(0, &mut BufferPool::new(0)).expect("a new lane has sent nothing");
    lane
}

fn transmitted(lane: &mut Lane) -> Vec<u8> {
    let mut bytes = Vec::new();
    while lane.has_transmit() {
        let runs: Vec<u8> = lane.poll_transmit(CUT_AT).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        lane.handle_transmitted(runs.len());
        bytes.extend(runs);
    }
    bytes
}

/// Receives the frames in these bytes, all of them valid.
fn hear(lane: &mut Lane, mut bytes: &[u8]) -> Vec<ReceivedFrame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let space = lane.receive_space();
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        lane.handle_received(count);
        bytes = &bytes[count..];
        while let Some(arrived) = lane.poll_arrived(&mut BufferPool::new(0)).expect("an honest peer") {
            frames.push(arrived);
        }
    }
    frames
}

const DEVICE: [u8; 18] = [0x12, 1, 0, 2, 0, 0, 0, 0x40, 0x09, 0x12, 1, 0, 0, 1, 0, 0, 0, 1];

/// Every golden file and its message, in the order of the document.
fn vectors() -> Vec<(&'static str, GoldenMessage)> {
    [greetings(), controls(), transfers(), blocks(), frames()].into_iter().flatten().collect()
}

fn greetings() -> Vec<(&'static str, GoldenMessage)> {
    let position = LanePosition { link: 1, incarnation: 0x0123_4567_89ab_cdef, ..LanePosition::default() };
    let options =
        HelloOptions { grace_ms: Some(20_000), unacknowledged_bytes_max: Some(16 << 20), ..HelloOptions::default() };
    let session = SessionId(std::array::from_fn(|at| 0xa0 + at as u8));
    let theirs = LanePosition { session, lane: 0, link: 3, received: 42, incarnation: 0xfedc_ba98_7654_3210 };
    let granted = HelloOptions { unacknowledged_bytes_max: None, ..options };
    let several = HelloOptions { lanes: Some(3), ..granted };
    let (holding, held) =
        (HelloOptions { hold_ms: Some(12_000), ..granted }, HelloOptions { hold_ms: Some(25_000), ..granted });
    let taking = HelloOptions { descriptors_bytes_max: Some(32 << 10), ..granted };
    let first = LanePosition { link: 1, received: 0, ..theirs };
    let further = LanePosition { session, lane: 1, ..position };
    let their_further = LanePosition { incarnation: theirs.incarnation, ..further };
    vec![
        ("hello", GoldenMessage::Hello(ImporterHello::new(position, options))),
        (
            "welcome",
            GoldenMessage::Welcome(ExporterWelcome {
                version: 1,
                outcome: WelcomeOutcome::Resumed,
                position: theirs,
                options: granted,
            }),
        ),
        ("hello_lanes", GoldenMessage::Hello(ImporterHello::new(position, several))),
        ("hello_further", GoldenMessage::Hello(ImporterHello::new(further, HelloOptions::default()))),
        (
            "welcome_further",
            GoldenMessage::Welcome(ExporterWelcome {
                version: 1,
                outcome: WelcomeOutcome::Resumed,
                position: their_further,
                options: several,
            }),
        ),
        ("hello_hold", GoldenMessage::Hello(ImporterHello::new(position, holding))),
        ("hello_descriptors", GoldenMessage::Hello(ImporterHello::new(position, taking))),
        (
            "welcome_hold",
            GoldenMessage::Welcome(ExporterWelcome {
                version: 1,
                outcome: WelcomeOutcome::Begun,
                position: first,
                options: held,
            }),
        ),
        ("ping", GoldenMessage::Number(FrameKind::Ping, 0x1122_3344_5566_7788)),
        ("pong", GoldenMessage::Number(FrameKind::Pong, 0x1122_3344_5566_7788)),
        ("acknowledgement", GoldenMessage::Number(FrameKind::Ack, 9)),
        ("goodbye", GoldenMessage::Bare(FrameKind::Goodbye, 0, 0)),
    ]
}

fn controls() -> Vec<(&'static str, GoldenMessage)> {
    let info = BlockInfo {
        size_bytes: 256 << 20,
        block_bytes: 512,
        preferred_bytes: 4096,
        request_bytes_max: 32 << 20,
        is_read_only: true,
        trims: false,
    };
    let trimming = BlockInfo { is_read_only: false, trims: true, ..info };
    let trimming = block::BlockDescription { info: trimming, durability: 0x0102_0304_0506_0708, maps: false };
    let mapping = block::BlockDescription { maps: true, ..trimming };
    let disk = block::BlockDescription { info, durability: 0x0102_0304_0506_0708, maps: false };
    let stick = usb::UsbDescription {
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::High,
        descriptor: DEVICE,
        configuration: 1,
        alternates: vec![(0, 1)],
        configurations: vec![vec![9, 2, 0x12, 0, 1, 1, 0, 0x80, 0x32, 9, 4, 0, 0, 0, 0xff, 0, 0, 0]],
    };
    let opened = |epoch, requests, bytes, info| OpenReply { epoch, credit: AttachmentCredit { requests, bytes }, info };
    let (name, reason) = ("stick".into(), String::new());
    let open = OpenRequest { class: AttachmentClass::USB, mode: AttachmentMode::Exclusive, epoch: 0, name, reason };
    let inherit = SuccessorOpenRequest { migration_state: *FROZEN.first_chunk().expect("it begins so"), open };
    let (name, reason) = ("disk".into(), "the backup".into());
    let busy = AttachmentEndNotice { cause: AttachmentEndCause::Busy, message: "'disk' is written by web".into() };
    let unplugged = AttachmentEndNotice { cause: AttachmentEndCause::Gone, message: "it was unplugged".into() };
    let format = StreamFormat::Video { pixels: PixelFormat::RGB24, width: 640, height: 480, rate_mhz: 30_000 };
    let camera = stream::StreamDescription { format, frame_bytes_max: 640 * 480 * 3 };
    let claims = vec![EndpointBandwidth { endpoint: 0x83, bytes: 1024, period: 8 }];
    let reservation = ReservationTerms {
        criticality: ReservationCriticality::High,
        latency_ns: 20_000_000,
        claims,
        ..ReservationTerms::default()
    };
    let admitted = ReservationReport {
        state: ReservationState::Admitted,
        lack: ScarceResource::None,
        criticality: ReservationCriticality::High,
        missing: 0,
        bound_ns: 3_000_000,
        path_bits_per_s: 8_400_000,
        bus_ppm: 17_000,
        thread: None,
        budget: None,
    };
    let with_thread = ReservationReport { thread: Some(ThreadTime::Reserved), ..admitted };
    let (state, lack, criticality) = (ReservationState::Suspended, ScarceResource::Rate, ReservationCriticality::Low);
    let claims = vec![EndpointBandwidth { endpoint: 0x81, bytes: 64, period: 1 }];
    let telling = ReservationTerms { criticality, latency_ns: 0, claims, wants_thread: true, wants_budget: false };
    let identity = ExportIdentity { id: 0xffee_ddcc_bbaa_9988_0011_2233_4455_6677, generation: 2 };
    let suspended = ReservationReport { state, lack, criticality, missing: 1_000_000, bound_ns: 0, ..admitted };
    let port = |endpoint| ConsolePort { endpoint: EpAddr::from_byte(endpoint), kind: PortKind::FTDI };
    let adapter = console::ConsoleDescription { ports: vec![port(0x81), port(0x82)] };
    vec![
        (
            "open",
            GoldenMessage::Open(OpenRequest {
                class: AttachmentClass::BLOCK,
                mode: AttachmentMode::Read,
                epoch: 0,
                name,
                reason,
            }),
        ),
        (
            "opened_block",
            GoldenMessage::Opened(DISK, opened(9, 256, 32 << 20, disk.encode()), Description::Block(disk)),
        ),
        (
            "opened_block_maps",
            GoldenMessage::Opened(DISK, opened(9, 256, 32 << 20, mapping.encode()), Description::Block(mapping)),
        ),
        (
            "opened_block_trims",
            GoldenMessage::Opened(DISK, opened(9, 256, 32 << 20, trimming.encode()), Description::Block(trimming)),
        ),
        ("opened_usb", GoldenMessage::Opened(STICK, opened(1, 1024, 4 << 20, stick.encode()), Description::Usb(stick))),
        ("opened_stream", GoldenMessage::Opened(CAMERA, opened(5, 1, 1, camera.encode()), Description::Stream(camera))),
        (
            "opened_console",
            GoldenMessage::Opened(SERIAL, opened(0, 1, 1, adapter.encode()), Description::Console(adapter)),
        ),
        ("refused", GoldenMessage::End(FrameKind::Refused, busy)),
        ("close", GoldenMessage::Bare(FrameKind::Close, DISK, 0)),
        (
            "close_with_successor",
            GoldenMessage::Close(CloseRequest::to(std::array::from_fn(|at| 0xc0 + at as u8), Vec::new())),
        ),
        ("hand_over", GoldenMessage::Close(CloseRequest::to([0xa5; 32], FROZEN.to_vec()))),
        ("inherit", GoldenMessage::Inherit(inherit)),
        ("migration_state", GoldenMessage::MigrationState(FROZEN)),
        ("closed", GoldenMessage::End(FrameKind::Closed, unplugged)),
        ("grant", GoldenMessage::Grant(256)),
        ("modules", GoldenMessage::Offers(vec![offer("zstd", "level=3", &[]), offer("seal", "", &[0x5a; 64])])),
        ("modules_answer", GoldenMessage::Answers(vec![Vec::new(), vec![0xa5; 64]])),
        (
            "modules_request",
            GoldenMessage::Piped(
                FrameKind::Request,
                3,
                &[1, 0, 16, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                b"zstd's",
            ),
        ),
        ("reserve", GoldenMessage::Reserve(ReservationMessage::Ask(reservation))),
        ("reserve_echo", GoldenMessage::Reserve(ReservationMessage::Echo)),
        ("reserve_train", GoldenMessage::Reserve(ReservationMessage::Train { position: 2, cars: 4 })),
        ("reserve_measured", GoldenMessage::Reserve(ReservationMessage::Measured(20_000_000))),
        ("reserve_admitted", GoldenMessage::Reserve(ReservationMessage::Report(admitted))),
        ("reserve_thread", GoldenMessage::Reserve(ReservationMessage::Ask(telling))),
        ("reserve_admitted_thread", GoldenMessage::Reserve(ReservationMessage::Report(with_thread))),
        ("reserve_suspended", GoldenMessage::Reserve(ReservationMessage::Report(suspended))),
        ("identity_is", GoldenMessage::Identity(IdentityStatement::Is(identity))),
        ("identity_expected", GoldenMessage::Identity(IdentityStatement::Expected(identity))),
        ("identity_lasting", GoldenMessage::Identity(IdentityStatement::Lasting(identity))),
        ("retire_moving", GoldenMessage::Retire(retire::DiskMoveMessage::Says(retire::DiskMoveStep::Moving))),
        ("retire_noted", GoldenMessage::Retire(retire::DiskMoveMessage::Noted(retire::DiskMoveStep::Moving))),
        (
            "retire_unable",
            GoldenMessage::Retire(retire::DiskMoveMessage::Unable(retire::DiskMoveStep::Moved, "no room".into())),
        ),
        (
            "descriptors",
            GoldenMessage::Descriptors(vec![
                NamedDescriptor { kind: 3, index: 2, language: 0x0409, bytes: vec![8, 3, b'K', 0, b'e', 0, b'y', 0] },
                NamedDescriptor { kind: 3, index: 3, language: 0, bytes: vec![6, 3, 0xfc, 0, 0xac, 0x20] },
                NamedDescriptor { kind: 15, index: 0, language: 0, bytes: vec![5, 15, 5, 0, 0] },
            ]),
        ),
        ("descriptors_none", GoldenMessage::Descriptors(Vec::new())),
        ("aside", GoldenMessage::Piped(FrameKind::Aside, 1, &[], b"rekey")),
        ("cancel", GoldenMessage::Bare(FrameKind::Cancel, STICK, 8)),
    ]
}

fn offer(name: &str, parameters: &str, opening: &[u8]) -> ModuleOffer {
    ModuleOffer { name: name.to_owned(), version: 1, parameters: parameters.to_owned(), opening: opening.to_vec() }
}

fn transfers() -> Vec<(&'static str, GoldenMessage)> {
    let endpoint = EpAddr::from_byte;
    let control = Urb::control(UrbId(5), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
    let mut out = Urb::data_out(UrbId(6), endpoint(0x02), b"hello".as_slice().into());
    out.flags.zero_packet = true;
    let mut bulk = Urb::data_in(UrbId(7), endpoint(0x81), 0x1_0000);
    (bulk.stream, bulk.flags.short_not_ok) = (3, true);
    let further = Urb { id: UrbId(0x4007), ..bulk.clone() };
    let mut interrupt = Urb::data_in(UrbId(8), endpoint(0x83), 8);
    interrupt.interval = 10;
    let packet = |offset, length| IsoPacket { offset, length, ..IsoPacket::default() };
    let mut iso_in = Urb::data_in(UrbId(9), endpoint(0x84), 3072);
    (iso_in.interval, iso_in.flags) = (1, UrbFlags { iso_asap: true, ..UrbFlags::default() });
    iso_in.iso = vec![packet(0, 1024), packet(1024, 1024), packet(2048, 1024)];
    let mut iso_out = Urb::data_out(UrbId(10), endpoint(0x05), [1, 2, 0, 0, 3, 4, 5].as_slice().into());
    (iso_out.interval, iso_out.start_frame) = (8, 1000);
    iso_out.iso = vec![packet(0, 2), packet(4, 3)];

    let described = control.clone().launch().answer(DEVICE.as_slice().into());
    let sent = out.clone().launch().accept();
    let stalled = bulk.clone().launch().done(UrbStatus::Stall, 3, vec![1, 2, 3].into());
    let mut came = iso_in.iso.clone();
    (came[0].actual, came[1].actual, came[2].status) = (1024, 2, UrbStatus::Crc);
    let pressed = usb::ObservedTransfer {
        endpoint: endpoint(0x81),
        kind: TransferType::Interrupt,
        status: UrbStatus::Ok,
        missed: 2,
        moment_ns: 100_000_000,
        packets: vec![],
        data: vec![2, 0, 4, 0, 0, 0, 0, 0].into(),
    };
    let heard = usb::ObservedTransfer {
        endpoint: endpoint(0x84),
        kind: TransferType::Isochronous,
        missed: 0,
        moment_ns: 100_000_001,
        packets: vec![(4, UrbStatus::Ok), (0, UrbStatus::Crc)],
        data: vec![0x77; 4].into(),
        ..pressed.clone()
    };
    let mut received = iso_in.clone().launch().done_iso(came, vec![0x77; 1026].into());
    received.start_frame = 298;
    vec![
        ("usb_control_in", GoldenMessage::UsbRequest(control.clone(), TransferType::Control)),
        ("usb_control_in_reply", GoldenMessage::UsbReply(control, Box::new(described))),
        ("usb_bulk_out", GoldenMessage::UsbRequest(out.clone(), TransferType::Bulk)),
        ("usb_bulk_out_reply", GoldenMessage::UsbReply(out, Box::new(sent))),
        ("usb_bulk_in", GoldenMessage::UsbRequest(bulk.clone(), TransferType::Bulk)),
        ("usb_bulk_in_further", GoldenMessage::UsbRequest(further, TransferType::Bulk)),
        ("usb_bulk_in_stalled", GoldenMessage::UsbReply(bulk, Box::new(stalled))),
        ("usb_interrupt_in", GoldenMessage::UsbRequest(interrupt, TransferType::Interrupt)),
        ("usb_isochronous_in", GoldenMessage::UsbRequest(iso_in.clone(), TransferType::Isochronous)),
        ("usb_isochronous_in_reply", GoldenMessage::UsbReply(iso_in, Box::new(received))),
        ("usb_isochronous_out", GoldenMessage::UsbRequest(iso_out, TransferType::Isochronous)),
        ("usb_reset", GoldenMessage::UsbReset(11)),
        ("usb_event", GoldenMessage::Event(pressed)),
        ("usb_event_isochronous", GoldenMessage::Event(heard)),
    ]
}

fn blocks() -> Vec<(&'static str, GoldenMessage)> {
    let write = |id, offset, bytes: Vec<u8>| BlockRequest::write(BlockId(id), offset, bytes.into());
    let durable = BlockRequest { is_durable: true, ..write(2, 4 << 30, vec![0xde, 0xad, 0xbe, 0xef]) };
    let discard = BlockRequest::zero(BlockId(4), BlockOp::Discard, 1 << 20, 1 << 20);
    let trim = BlockRequest::zero(BlockId(4), BlockOp::Trim, 1 << 20, 1 << 20);
    let residence = ResidenceTimes { queue_ns: 1000, device_ns: 1_000_000, reply_ns: 2000 };
    assert_eq!(CUT_AT - DONE_AT, Duration::from_nanos(residence.reply_ns.into()));
    vec![
        ("block_read", GoldenMessage::BlockRequest(BlockRequest::read(BlockId(1), 4096, 8), false)),
        ("block_read_reply", GoldenMessage::BlockReply(1, Ok(&[0, 1, 2, 3, 4, 5, 6, 7]), None)),
        ("block_write", GoldenMessage::BlockRequest(durable, false)),
        ("block_write_reply", GoldenMessage::BlockReply(2, Ok(&[]), None)),
        ("block_write_failed", GoldenMessage::BlockReply(2, Err(StoreError::NoSpace), None)),
        ("block_flush", GoldenMessage::BlockRequest(BlockRequest::flush(BlockId(3)), false)),
        ("block_discard", GoldenMessage::BlockRequest(discard, false)),
        ("block_map", GoldenMessage::BlockRequest(BlockRequest::map(BlockId(4), 1 << 20, 1 << 20), false)),
        ("block_trim", GoldenMessage::BlockRequest(trim, false)),
        ("block_write_long", GoldenMessage::BlockRequest(write(5, 0, vec![0x55; 100 << 10]), false)),
        ("block_read_timed", GoldenMessage::BlockRequest(BlockRequest::read(BlockId(6), 0, 4), true)),
        ("block_read_timed_reply", GoldenMessage::BlockReply(6, Ok(&[1, 2, 3, 4]), Some(residence))),
    ]
}

fn frames() -> Vec<(&'static str, GoldenMessage)> {
    let frame = StreamFrame { sequence: 42, moment_ns: 100_000_000, data: vec![1, 2, 3, 4].into() };
    let endpoint = EpAddr::from_byte(0x82);
    let data = b"login: ".as_slice().into();
    let output = ConsoleOutput { endpoint, lost: 300, moment_ns: 100_000_000, data };
    vec![("stream_frame", GoldenMessage::Frame(7, frame)), ("console_event", GoldenMessage::Console(3, output))]
}

#[test]
fn every_message_is_these_bytes_and_these_bytes_are_that_message() {
    for (name, message) in vectors() {
        let bytes = bytes_of(name);
        assert_eq!(hex(&message.bytes()), hex(&bytes), "{name}: what is said");
        message.check(&bytes);
    }
}

#[test]
fn no_part_of_a_message_passes_for_the_whole() {
    for (name, message) in vectors() {
        let bytes = bytes_of(name);
        // Every end near a frame's edge, and a sample of those within its data.
        for end in (0..bytes.len()).filter(|end| end % 997 < 64 || bytes.len() - end < 64) {
            let short = &bytes[..end];
            match &message {
                GoldenMessage::Hello(_) => assert_eq!(ImporterHello::decode(short), Ok(None), "{name}, {end} bytes"),
                GoldenMessage::Welcome(_) => {
                    assert_eq!(ExporterWelcome::decode(short), Ok(None), "{name}, {end} bytes")
                }
                _ => {
                    let frames = hear(&mut linked(), short);
                    let is_whole = frames.last().is_some_and(|frame| !frame.head.flags.more);
                    assert!(!is_whole, "{name}, {end} bytes");
                }
            }
        }
    }
}

#[test]
fn every_golden_file_is_checked() {
    let mut listed: Vec<String> = vectors().iter().map(|(name, _)| format!("{name}.hex")).collect();
    let files = std::fs::read_dir(folder()).unwrap();
    let mut files: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    listed.sort();
    files.sort();
    assert_eq!(files, listed);
}

#[test]
fn the_document_shows_the_vectors_as_they_are() {
    let (before, shown) = DOCUMENT.split_once(SECTION).expect("docs/protocol.md has a section of golden vectors");
    let introduction = "
What each message looks like. The files are `crates/wire/tests/golden_native/*.hex`, and a test holds encoder, decoder and this
section against them. `#` begins a comment, `\"text\"` is the bytes of a text, `55*4096` a byte repeated; the rest is hexadecimal.
";
    let vectors = vectors();
    let section = vectors.iter().map(|(name, _)| format!("\n`{name}`\n\n```\n{}```\n", text(name)));
    let section: String = [introduction.to_owned()].into_iter().chain(section).collect();
    if std::env::var_os(WRITE).is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
        std::fs::write(path, [before, SECTION, &section].concat()).unwrap();
    } else {
        assert!(
            shown == section,
            "docs/protocol.md has rotted: {WRITE}=1 cargo test -p farbus-wire --test native_golden"
        );
    }
}

fn hex(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(16).map(line).collect()
}
