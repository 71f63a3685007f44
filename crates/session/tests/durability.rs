//! Writes that were answered but not flushed when the exporter's machine lost them: those that are kept here are
//! written again, and the next flush reports the others as lost.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, CompletionQueue,
    ExportIdentity, Instant, Payload, StoreError,
};
use farbus_session::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentMode, OpenReply, OpenRequest,
};
use farbus_session::native::frame::FrameHeader;
use farbus_session::native::identity::IdentityStatement;
use farbus_session::native::{FrameKind, ImporterAttachment, RETAINED_MAX, ReceivedFrame, RemoteBlock};
use farbus_wire::native::block::BlockDescription;

const NOW: Instant = Instant::ZERO;
const INFO: BlockInfo = BlockInfo {
    size_bytes: 1 << 20,
    block_bytes: 512,
    preferred_bytes: 4096,
    request_bytes_max: 1 << 20,
    is_read_only: false,
    trims: true,
};

struct User {
    remote: RemoteBlock,
    done: CompletionQueue<BlockCompletion>,
}

impl User {
    fn new() -> Self {
        let open = OpenRequest {
            class: AttachmentClass::BLOCK,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "disk".into(),
            reason: String::new(),
        };
        let mut user = Self { remote: RemoteBlock::new(1, open), done: CompletionQueue::new(BufferPool::new(0)) };
        user.opened(1);
        user
    }

    fn hear(&mut self, head: FrameHeader, body: Payload) {
        self.remote.handle_arrived(NOW, ReceivedFrame { head, body }, &mut self.done).unwrap();
    }

    /// The exporter opens the disk; it has lost nothing since `durability` last changed.
    fn opened(&mut self, durability: u64) {
        let identity = IdentityStatement::Is(ExportIdentity { id: 1, generation: 0 });
        self.hear(FrameHeader::new(FrameKind::Identity, 1, 0), identity.encode().into());
        let info = BlockDescription { info: INFO, durability, maps: true }.encode();
        let opened = OpenReply { epoch: durability, credit: AttachmentCredit { requests: 64, bytes: 1 << 20 }, info };
        self.hear(FrameHeader::new(FrameKind::Opened, 1, 0), opened.encode().into());
    }

    /// The exporter's machine was restarted.
    fn machine_restarts(&mut self, durability: u64) {
        self.remote.handle_renewed(NOW, &mut self.done);
        self.opened(durability);
    }

    /// The requests that were sent.
    fn sent(&mut self) -> Vec<FrameHeader> {
        let all = std::iter::from_fn(|| self.remote.poll_message()).map(|message| message.head);
        all.filter(|head| head.kind == FrameKind::Request).collect()
    }

    fn write(&mut self, block: u64) {
        let request = BlockRequest::write(BlockId(block), block * 512, vec![1; 512].into());
        self.remote.submit(NOW, request.launch(), &mut self.done);
    }

    fn answer(&mut self, request: FrameHeader) {
        let mut head = FrameHeader::new(FrameKind::Reply, 1, request.tag);
        (head.flags.plain, head.flags.timed) = (true, request.flags.timed);
        // Three durations if the request was timed.
        let body = if request.flags.timed { vec![0; 12] } else { Vec::new() };
        self.hear(head, body.into());
    }

    /// The exporter refuses the request.
    fn refuse(&mut self, request: FrameHeader) {
        let mut head = FrameHeader::new(FrameKind::Reply, 1, request.tag);
        head.flags.timed = request.flags.timed;
        let mut body = if request.flags.timed { vec![0; 12] } else { Vec::new() };
        body.extend_from_slice(&farbus_wire::native::block::reply_part(StoreError::Medium));
        self.hear(head, body.into());
    }

    /// Ends the attachment.
    fn end(mut self) {
        self.remote.handle_over(AttachmentEndCause::Requested, "it ends", &mut self.done);
    }

    fn answer_all(&mut self) {
        self.sent().into_iter().for_each(|request| self.answer(request));
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.remote.submit(NOW, BlockRequest::flush(BlockId(99)).launch(), &mut self.done);
        self.answer_all();
        let all = std::iter::from_fn(|| self.done.pop());
        all.filter(|done| done.id == BlockId(99)).last().expect("it was answered").result
    }
}

/// The subject of each request that was sent: the block that it writes, or `None` for a flush.
fn blocks(user: &mut User) -> Vec<(FrameHeader, Option<u64>)> {
    let all =
        std::iter::from_fn(|| user.remote.poll_message()).filter(|message| message.head.kind == FrameKind::Request);
    all.map(|message| {
        let request = farbus_wire::native::block::decode_request(BlockId(0), &message.part).unwrap();
        (message.head, (request.op == BlockOp::Write).then_some(request.offset / 512))
    })
    .collect()
}

#[test]
fn writes_that_the_exporter_lost_are_repeated_first_and_in_order() {
    let mut user = User::new();
    for block in [3, 1, 2] {
        user.write(block);
    }
    user.answer_all();
    user.write(9);
    user.sent();
    user.machine_restarts(2);
    let again = blocks(&mut user);
    assert_eq!(again.iter().map(|(_, block)| *block).collect::<Vec<_>>(), [Some(3), Some(1), Some(2)]);
    assert!(user.remote.is_rewriting());
    again[..2].iter().for_each(|(head, _)| user.answer(*head));
    assert!(user.sent().is_empty(), "what was asked later waits for all of them");
    user.answer(again[2].0);
    assert_eq!(blocks(&mut user).iter().map(|(_, block)| *block).collect::<Vec<_>>(), [Some(9)]);
    while user.done.pop().is_some() {}
    assert!(!user.remote.is_rewriting() && user.remote.in_flight() == 1);
    user.end();
}

#[test]
fn flush_waits_for_repeated_writes_and_then_succeeds() {
    let mut user = User::new();
    user.write(0);
    user.answer_all();
    user.remote.submit(NOW, BlockRequest::flush(BlockId(50)).launch(), &mut user.done);
    user.sent();
    user.machine_restarts(2);
    let again = blocks(&mut user);
    assert_eq!(again.iter().map(|(_, block)| *block).collect::<Vec<_>>(), [Some(0)], "not the flush");
    // The machine restarts again, during the repetition.
    user.machine_restarts(3);
    let again = blocks(&mut user);
    assert_eq!(again.len(), 1);
    user.answer(again[0].0);
    user.answer_all();
    let all: Vec<_> = std::iter::from_fn(|| user.done.pop()).map(|done| (done.id, done.result)).collect();
    assert_eq!(all, [(BlockId(0), Ok(())), (BlockId(50), Ok(()))], "each is answered once");
    user.machine_restarts(4);
    assert!(user.sent().is_empty(), "what was flushed is not repeated");
}

#[test]
fn writes_of_the_same_place_are_repeated_one_after_the_other() {
    let mut user = User::new();
    for _ in 0..2 {
        user.write(5);
        user.answer_all();
    }
    user.machine_restarts(2);
    for _ in 0..2 {
        let again = user.sent();
        assert_eq!(again.len(), 1);
        user.answer(again[0]);
    }
    assert_eq!((user.sent().len(), user.flush()), (0, Ok(())));
}

#[test]
fn write_that_cannot_be_repeated_is_lost_and_reported_once() {
    let mut user = User::new();
    user.write(0);
    user.answer_all();
    user.machine_restarts(2);
    let again = user.sent();
    user.refuse(again[0]);
    assert_eq!([user.flush(), user.flush()], [Err(StoreError::Lost), Ok(())]);
}

#[test]
fn writes_beyond_what_is_kept_are_lost_and_reported_once() {
    let mut user = User::new();
    for block in 0..=RETAINED_MAX as u64 {
        user.write(block % 2000);
        user.answer_all();
    }
    user.machine_restarts(2);
    while user.remote.is_rewriting() {
        user.answer_all();
    }
    assert_eq!([user.flush(), user.flush()], [Err(StoreError::Lost), Ok(())]);
}

#[test]
fn writes_are_not_repeated_after_the_disk_went_to_a_successor() {
    let mut user = User::new();
    user.write(0);
    user.answer_all();
    user.remote.hold_still(NOW, &mut user.done);
    user.remote.migrate([7; 32]);
    user.machine_restarts(2);
    assert!(user.sent().is_empty());
    assert_eq!(user.flush(), Err(StoreError::Lost), "it may be lost");
}

#[test]
fn exporter_whose_machine_keeps_running_has_lost_nothing() {
    let mut user = User::new();
    user.write(0);
    user.answer_all();
    user.machine_restarts(1);
    assert!(user.sent().is_empty());
    assert_eq!(user.flush(), Ok(()));
}

#[test]
fn writes_are_repeated_before_a_flush_that_a_killed_exporter_left_unanswered() {
    let mut user = User::new();
    user.write(0);
    user.answer_all();
    user.remote.submit(NOW, BlockRequest::flush(BlockId(50)).launch(), &mut user.done);
    user.sent();
    // The machine keeps running, but the kernel may have told the killed process that it could not write.
    user.machine_restarts(1);
    let again = blocks(&mut user);
    assert_eq!(again.iter().map(|(_, block)| *block).collect::<Vec<_>>(), [Some(0)], "before the flush");
    user.answer(again[0].0);
    assert_eq!(blocks(&mut user).iter().map(|(_, block)| *block).collect::<Vec<_>>(), [None], "and then the flush");
    user.end();
}

#[test]
fn writes_beyond_what_is_kept_fail_no_flush_that_a_killed_exporter_left_unanswered() {
    let mut user = User::new();
    for block in 0..=RETAINED_MAX as u64 {
        user.write(block % 2000);
        user.answer_all();
    }
    user.remote.submit(NOW, BlockRequest::flush(BlockId(50)).launch(), &mut user.done);
    user.sent();
    user.machine_restarts(1);
    while user.remote.is_rewriting() {
        user.answer_all();
    }
    user.answer_all();
    let flushed = std::iter::from_fn(|| user.done.pop()).find(|done| done.id == BlockId(50)).expect("it was answered");
    assert_eq!(flushed.result, Ok(()), "the machine keeps running: most probably they are there");
}

#[test]
fn writes_asked_again_or_flushed_are_not_lost() {
    let mut user = User::new();
    user.write(0);
    user.machine_restarts(2);
    user.answer_all();
    assert_eq!(user.flush(), Ok(()), "it was never answered before, and is there now");
    user.machine_restarts(3);
    user.write(1);
    user.sent();
    user.machine_restarts(4);
    user.answer_all();
    assert_eq!(user.flush(), Ok(()));
}

#[test]
fn flush_covers_writes_answered_before_it_was_submitted_and_no_others() {
    let mut user = User::new();
    for block in 0..2 {
        user.write(block);
    }
    let headers = user.sent();
    user.answer(headers[1]);
    user.remote.submit(NOW, BlockRequest::flush(BlockId(50)).launch(), &mut user.done);
    let flush = user.sent();
    user.answer(headers[0]);
    user.answer(flush[0]);
    user.machine_restarts(2);
    let again = blocks(&mut user);
    assert_eq!(
        again.iter().map(|(_, block)| *block).collect::<Vec<_>>(),
        [Some(0)],
        "answered after the flush was asked"
    );
    user.end();
}
