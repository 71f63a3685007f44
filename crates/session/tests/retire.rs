//! A disk that its importer moves to its own machine: who may say so, and what both ends make of it.

use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::{BufferPool, CompletionQueue, Instant, StoreDevice};
use farbus_session::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};
use farbus_session::native::frame::FrameHeader;
use farbus_session::native::hello::SessionId;
use farbus_session::native::retire::{DiskMoveMessage, DiskMoveStep};
use farbus_session::native::{
    ExporterServices, ExporterSession, FrameKind, GreetingOutcome, ImporterAttachment, ImporterSession, Lane,
    LaneLimits, OutboundMessage, ReceivedFrame, RemoteBlock, ServedBlock, ServedExport,
};

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// Attachments: a disk that is had alone, one that is only read, and none.
const ALONE: u16 = 1;
const READ: u16 = 2;
const NOTHING: u16 = 3;

/// What was noted, and whether it can be.
#[derive(Default)]
struct Notes {
    steps: Vec<(String, u64, DiskMoveStep)>,
    overwritten: Vec<String>,
    is_full: bool,
}

impl ExporterServices for Notes {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = StoreDevice::new(MemoryStore::new(vec![0; 4096]));
        let lease = if open.mode == AttachmentMode::Exclusive { 7 } else { 0 };
        Ok((lease, Box::new(ServedBlock::new(number, device, 0, |_, _| ()))))
    }

    fn note_overwriting(&mut self, open: &OpenRequest) {
        self.overwritten.push(open.name.clone());
    }

    fn note_step(&mut self, open: &OpenRequest, lease: u64, step: DiskMoveStep) -> Result<(), String> {
        if self.is_full {
            return Err("no room".to_owned());
        }
        self.steps.push((open.name.clone(), lease, step));
        Ok(())
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
    notes: Notes,
}

impl World {
    fn new() -> Self {
        let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT);
        let hello = importer.hello(0);
        let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT);
        let (exporter, welcome) = begun.unwrap_or_else(|refused| panic!("{refused:?}"));
        assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
        let mut world = Self { importer, exporter, notes: Notes::default() };
        for (number, mode) in [(ALONE, AttachmentMode::Exclusive), (READ, AttachmentMode::Read)] {
            let answers = world
                .exchange(OutboundMessage::control(FrameKind::Open, number, 0, open(mode).encode().into()))
                .unwrap();
            assert_eq!(answers.last().map(|(kind, _)| *kind), Some(FrameKind::Opened));
        }
        world
    }

    /// Sends this to the exporter. Returns the kinds and bodies of its answers.
    fn exchange(
        &mut self,
        message: OutboundMessage,
    ) -> Result<Vec<(FrameKind, Vec<u8>)>, farbus_session::ProtocolViolation> {
        self.importer.send(message);
        carry(self.importer.lane_mut(), self.exporter.lane_mut());
        self.exporter.advance(NOW, &mut self.notes)?;
        carry(self.exporter.lane_mut(), self.importer.lane_mut());
        let mut answers = Vec::new();
        while let Some(ReceivedFrame { head, body }) = self.importer.poll_arrived(0)? {
            answers.push((head.kind, body.contiguous().to_vec()));
        }
        Ok(answers)
    }

    fn say(&mut self, number: u16, step: DiskMoveStep) -> Option<DiskMoveMessage> {
        let part = DiskMoveMessage::Says(step).encode().into();
        let answers = self
            .exchange(OutboundMessage::control(FrameKind::Retire, number, 0, part))
            .expect("it keeps to the protocol");
        let (kind, body) = answers.into_iter().next()?;
        assert_eq!(kind, FrameKind::Retire);
        DiskMoveMessage::decode(&body).unwrap()
    }
}

fn open(mode: AttachmentMode) -> OpenRequest {
    OpenRequest { class: AttachmentClass::BLOCK, mode, epoch: 0, name: "disk".into(), reason: String::new() }
}

#[test]
fn only_the_host_that_has_a_disk_alone_can_say_that_it_moves() {
    let mut world = World::new();
    for step in [DiskMoveStep::Moving, DiskMoveStep::Moved, DiskMoveStep::Stays] {
        assert_eq!(world.say(ALONE, step), Some(DiskMoveMessage::Noted(step)));
        assert_eq!(world.notes.steps.pop(), Some(("disk".to_owned(), 7, step)));
        let Some(DiskMoveMessage::Unable(answered, why)) = world.say(READ, step) else { panic!("a reader can") };
        assert!(answered == step && why.contains("alone"), "{why}");
        assert_eq!(world.say(NOTHING, step), None);
        assert_eq!(world.notes.steps, [], "nothing is noted for the others");
    }
    for stated in 4..100 {
        let answer = world.say(ALONE, DiskMoveStep::Moving);
        assert_eq!(
            answer == Some(DiskMoveMessage::Noted(DiskMoveStep::Moving)),
            stated <= 64,
            "each may be written to a disk"
        );
    }
    assert_eq!(world.notes.steps.len(), 61);
    let mut world = World::new();
    world.notes.is_full = true;
    assert_eq!(
        world.say(ALONE, DiskMoveStep::Moving),
        Some(DiskMoveMessage::Unable(DiskMoveStep::Moving, "no room".into()))
    );
    let later = world.exchange(OutboundMessage::control(FrameKind::Retire, ALONE, 0, vec![9, 9].into()));
    assert_eq!(later, Ok(Vec::new()), "a word of a later version is passed over");
    let answer = DiskMoveMessage::Noted(DiskMoveStep::Moved).encode().into();
    assert!(
        world.exchange(OutboundMessage::control(FrameKind::Retire, ALONE, 0, answer)).is_err(),
        "an importer answers nothing"
    );
}

#[test]
fn that_a_disk_is_overwritten_counts_for_the_device_that_is_opened_next_alone() {
    let mut world = World::new();
    world.say(ALONE, DiskMoveStep::Overwrites);
    assert!(world.notes.overwritten.is_empty(), "it is open already");
    assert_eq!(world.say(NOTHING, DiskMoveStep::Overwrites), None, "there is nothing to answer yet");
    assert!(world.notes.overwritten.is_empty());
    for number in [NOTHING, NOTHING + 1] {
        let outbound_message =
            OutboundMessage::control(FrameKind::Open, number, 0, open(AttachmentMode::Exclusive).encode().into());
        assert_eq!(world.exchange(outbound_message).unwrap().last().map(|(kind, _)| *kind), Some(FrameKind::Opened));
    }
    assert_eq!(world.notes.overwritten, ["disk"]);
    let mut remote = RemoteBlock::new(1, open(AttachmentMode::Exclusive)).overwriting();
    let frame_kinds: Vec<FrameKind> =
        std::iter::from_fn(|| remote.poll_message()).map(|message| message.head.kind).collect();
    assert_eq!(frame_kinds, [FrameKind::Retire, FrameKind::Open], "it is said first, and once");
}

#[test]
fn an_importer_takes_each_answer_once_and_cuts_off_an_exporter_that_says_steps() {
    let mut remote = RemoteBlock::new(1, open(AttachmentMode::Exclusive));
    let mut done = CompletionQueue::new(BufferPool::new(0));
    while remote.poll_message().is_some() {}
    remote.say_step(DiskMoveStep::Moving);
    let message = remote.poll_message().expect("it is said");
    assert_eq!(
        (message.head.kind, DiskMoveMessage::decode(&message.part)),
        (FrameKind::Retire, Ok(Some(DiskMoveMessage::Says(DiskMoveStep::Moving))))
    );
    let mut hear = |remote: &mut RemoteBlock, word: DiskMoveMessage| {
        let arrived = ReceivedFrame { head: FrameHeader::new(FrameKind::Retire, 1, 0), body: word.encode().into() };
        remote.handle_arrived(NOW, arrived, &mut done)
    };
    assert_eq!(remote.take_step_answer(), None);
    hear(&mut remote, DiskMoveMessage::Noted(DiskMoveStep::Moving)).unwrap();
    assert_eq!(remote.take_step_answer(), Some((DiskMoveStep::Moving, Ok(()))));
    hear(&mut remote, DiskMoveMessage::Unable(DiskMoveStep::Moved, "no room".into())).unwrap();
    assert_eq!(remote.take_step_answer(), Some((DiskMoveStep::Moved, Err("no room".into()))));
    assert_eq!(remote.take_step_answer(), None);
    assert!(hear(&mut remote, DiskMoveMessage::Says(DiskMoveStep::Moved)).is_err());
}
