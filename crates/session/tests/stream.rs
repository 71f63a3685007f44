//! The two ends of a stream, with peers that break its rules.

use std::sync::Arc;

use farbus_model::{BufferPool, Instant, Payload, ReadinessSource};
use farbus_session::ProtocolViolation;
use farbus_session::native::control::{AttachmentClass, AttachmentCredit, AttachmentMode, OpenReply, OpenRequest};
use farbus_session::native::stream::{StreamDescription, StreamFormat, StreamFrame};
use farbus_session::native::{
    FrameHeader, FrameKind, ImporterAttachment, LaneArray, LaneLimits, ReceivedFrame, RemoteStream, ServedExport,
    ServedObserver,
};
use farbus_session::stream::{FramePublisher, SlowReaderPolicy};

const FRAME_BYTES_MAX: u32 = 1000;

fn description() -> StreamDescription {
    StreamDescription { format: StreamFormat::Bytes, frame_bytes_max: FRAME_BYTES_MAX }
}

fn frame(sequence: u64, bytes: usize) -> StreamFrame {
    StreamFrame { sequence, moment_ns: 0, data: vec![7; bytes].into() }
}

/// A reader, and messages of an exporter that follows any rules.
struct Reader {
    remote: RemoteStream,
    frames: Vec<StreamFrame>,
}

impl Reader {
    fn new() -> Self {
        let open = OpenRequest {
            class: AttachmentClass::STREAM,
            mode: AttachmentMode::Read,
            epoch: 0,
            name: "cam".into(),
            reason: String::new(),
        };
        Self { remote: RemoteStream::new(1, open), frames: Vec::new() }
    }

    fn opened() -> Self {
        let mut reader = Self::new();
        let credit = AttachmentCredit { requests: 1, bytes: 1 };
        let opened = OpenReply { epoch: 1, credit, info: description().encode() };
        reader.hear(FrameHeader::new(FrameKind::Opened, 1, 0), opened.encode().into()).unwrap();
        reader
    }

    fn hear(&mut self, head: FrameHeader, body: Payload) -> Result<(), ProtocolViolation> {
        self.remote.handle_arrived(Instant::ZERO, ReceivedFrame { head, body }, &mut self.frames)
    }

    fn hear_frame(&mut self, frame: &StreamFrame) -> Result<(), ProtocolViolation> {
        let body = Payload::joined([frame.part().to_vec().into(), frame.data.clone()]);
        self.hear(FrameHeader::new(FrameKind::Event, 1, 0), body)
    }
}

#[test]
fn reader_accepts_only_granted_frames_of_the_described_size() {
    let mut reader = Reader::opened();
    let window = description().window();
    reader.remote.poll_message().expect("it asks to open");
    let grant = reader.remote.poll_message().expect("it grants");
    assert_eq!((grant.head.kind, &grant.part[..]), (FrameKind::Grant, &window.to_le_bytes()[..]));
    reader.hear_frame(&frame(0, FRAME_BYTES_MAX as usize)).unwrap();
    assert_eq!(reader.frames, [frame(0, FRAME_BYTES_MAX as usize)]);
    assert_eq!(reader.hear_frame(&frame(1, FRAME_BYTES_MAX as usize + 1)).unwrap_err().field, "event");

    assert_eq!(Reader::new().hear_frame(&frame(0, 1)).unwrap_err().field, "kind", "what it is comes first");

    let mut reader = Reader::opened();
    let mut more = FrameHeader::new(FrameKind::Event, 1, 3);
    more.flags.more = true;
    reader.hear(more, vec![0; 20].into()).unwrap();
    assert_eq!(reader.hear(FrameHeader::new(FrameKind::Data, 1, 4), vec![0; 4].into()).unwrap_err().field, "tag");

    let mut reader = Reader::opened();
    let half = FrameHeader::new(FrameKind::Event, 1, 0);
    assert_eq!(reader.hear(half, vec![0; 15].into()).unwrap_err().field, "moment");
}

#[test]
fn excess_grant_is_refused() {
    let serve = || {
        let stage = FramePublisher::new(description(), || ());
        let subscriber = stage.join(SlowReaderPolicy::All, || ()).unwrap();
        let readiness = ReadinessSource::new(Arc::new(()));
        let served = ServedObserver::new(1, Box::new(subscriber), readiness, || (), description().encode(), |_| ());
        let mut lanes = LaneArray::new(LaneLimits::DEFAULT);
        lanes.first_mut().handle_linked(0, &mut BufferPool::new(0)).unwrap();
        (stage, served, lanes)
    };
    let grant = |served: &mut ServedObserver, lanes: &mut LaneArray, body: Vec<u8>| {
        let arrived = ReceivedFrame { head: FrameHeader::new(FrameKind::Grant, 1, 0), body: body.into() };
        served.handle_arrived(Instant::ZERO, arrived, lanes)
    };
    let window = description().window();
    let (stage, mut served, mut lanes) = serve();
    stage.show(frame(0, 10)).unwrap();
    served.handle_ready(Instant::ZERO, &mut lanes);
    assert!(!lanes.first_mut().has_transmit(), "nothing is sent that was not asked for");
    grant(&mut served, &mut lanes, 1_u32.to_le_bytes().to_vec()).unwrap();
    assert!(lanes.first_mut().has_transmit());
    grant(&mut served, &mut lanes, window.to_le_bytes().to_vec()).unwrap();
    for most in [1, u32::MAX] {
        assert_eq!(grant(&mut served, &mut lanes, most.to_le_bytes().to_vec()).unwrap_err().field, "grant");
    }
    let (_stage, mut served, mut lanes) = serve();
    assert_eq!(grant(&mut served, &mut lanes, vec![1, 0, 0]).unwrap_err().field, "grant");
    let received_frame = ReceivedFrame { head: FrameHeader::new(FrameKind::Request, 1, 0), body: Payload::Empty };
    assert!(served.handle_arrived(Instant::ZERO, received_frame, &mut lanes).is_err(), "there is nothing to ask for");
}
