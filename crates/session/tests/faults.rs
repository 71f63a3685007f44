//! Several attachments of one session: a fault of one is its own, as long as the session's frames are sound.

use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::{BlockId, BlockRequest, Instant, StoreDevice};
use farbus_session::ProtocolViolation;
use farbus_session::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};
use farbus_session::native::hello::SessionId;
use farbus_session::native::{
    ExporterServices, ExporterSession, FrameKind, GreetingOutcome, ImporterSession, Lane, LaneLimits, OutboundMessage,
    ReceivedFrame, ServedBlock, ServedExport,
};
use farbus_wire::native::block;

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);

struct Disks;

impl ExporterServices for Disks {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = StoreDevice::new(MemoryStore::new(vec![number as u8; 4096]));
        Ok((1, Box::new(ServedBlock::new(number, device, 0, |_, _| ()))))
    }
}

fn carry(from: &mut Lane, to: &mut Lane) {
    let bytes: Vec<u8> = from.poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
    from.handle_transmitted(bytes.len());
    to.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    to.handle_received(bytes.len());
}

struct World {
    importer: ImporterSession,
    exporter: ExporterSession,
}

impl World {
    fn with(attachments: u16) -> Self {
        let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT);
        let hello = importer.hello(0);
        let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT);
        let (exporter, welcome) = begun.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
        let mut world = Self { importer, exporter };
        for number in 1..=attachments {
            let open = OpenRequest {
                class: AttachmentClass::BLOCK,
                mode: AttachmentMode::Exclusive,
                epoch: 0,
                name: "disk".into(),
                reason: String::new(),
            };
            let answers =
                world.exchange(OutboundMessage::control(FrameKind::Open, number, 0, open.encode().into())).unwrap();
            assert_eq!(answers.last().map(|(kind, ..)| *kind), Some(FrameKind::Opened));
        }
        world
    }

    /// Sends this to the exporter. Returns the kinds, attachments and bodies of its answers.
    fn exchange(&mut self, message: OutboundMessage) -> Result<Vec<(FrameKind, u16, Vec<u8>)>, ProtocolViolation> {
        self.importer.send(message);
        carry(self.importer.lane_mut(), self.exporter.lane_mut());
        self.exporter.advance(NOW, &mut Disks)?;
        carry(self.exporter.lane_mut(), self.importer.lane_mut());
        let mut answers = Vec::new();
        while let Some(ReceivedFrame { head, body }) = self.importer.poll_arrived(0)? {
            answers.push((head.kind, head.attachment, body.contiguous().to_vec()));
        }
        Ok(answers)
    }

    /// Reads the first bytes of an attachment's disk.
    fn read(&mut self, number: u16, tag: u16) -> Vec<u8> {
        let part = block::request_part(&BlockRequest::read(BlockId(tag.into()), 0, 512)).to_vec();
        let answers = self.exchange(OutboundMessage::control(FrameKind::Request, number, tag, part.into())).unwrap();
        let [(FrameKind::Reply, answered, body)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(*answered, number);
        body.clone()
    }
}

/// A request whose body is no block request.
fn malformed(number: u16) -> OutboundMessage {
    OutboundMessage::control(FrameKind::Request, number, 5, vec![0xff; 7].into())
}

#[test]
fn malformed_request_for_one_attachment_ends_that_one_and_the_other_goes_on() {
    let mut world = World::with(2);
    assert_eq!(world.read(1, 1).last(), Some(&1));
    let answers = world.exchange(malformed(2)).unwrap();
    let [(FrameKind::Closed, 2, body)] = &answers[..] else { panic!("{answers:?}") };
    let end = AttachmentEndNotice::decode(body).unwrap();
    assert!(end.cause == AttachmentEndCause::Refused && end.message.starts_with("cut off: "), "{end:?}");
    assert!(matches!(world.exporter.take_cut_off(), Some((2, _))));
    assert!(world.exporter.is_attached(1) && !world.exporter.is_attached(2));
    // What was on its way for it is dropped.
    assert_eq!(world.exchange(malformed(2)), Ok(Vec::new()));
    for tag in 2..10 {
        assert_eq!(world.read(1, tag).last(), Some(&1));
    }
}

#[test]
fn malformed_request_for_the_only_attachment_ends_the_session() {
    let mut world = World::with(1);
    assert!(world.exchange(malformed(1)).is_err());
}
