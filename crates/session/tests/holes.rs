//! Where a remote disk has holes: what its exporter says, and what is assumed of one that does not say it.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, CompletionQueue,
    ExportIdentity, ExtentList, Instant, Payload, StoreExtent,
};
use farbus_session::native::control::{AttachmentClass, AttachmentCredit, AttachmentMode, OpenReply, OpenRequest};
use farbus_session::native::frame::FrameHeader;
use farbus_session::native::identity::IdentityStatement;
use farbus_session::native::{FrameKind, ImporterAttachment, ReceivedFrame, RemoteBlock};
use farbus_wire::native::block::{BlockDescription, decode_request};

const NOW: Instant = Instant::ZERO;
const INFO: BlockInfo = BlockInfo {
    size_bytes: 1 << 30,
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
        Self { remote: RemoteBlock::new(1, open), done: CompletionQueue::new(BufferPool::new(0)) }
    }

    fn hear(&mut self, head: FrameHeader, body: Payload) {
        self.remote.handle_arrived(NOW, ReceivedFrame { head, body }, &mut self.done).unwrap();
    }

    /// The exporter opens the disk, and says whether it knows where holes are.
    fn opened(&mut self, maps: bool) {
        let identity = IdentityStatement::Is(ExportIdentity { id: 1, generation: 0 });
        self.hear(FrameHeader::new(FrameKind::Identity, 1, 0), identity.encode().into());
        let info = BlockDescription { info: INFO, durability: 1, maps }.encode();
        let opened = OpenReply { epoch: 1, credit: AttachmentCredit { requests: 64, bytes: 1 << 20 }, info };
        self.hear(FrameHeader::new(FrameKind::Opened, 1, 0), opened.encode().into());
    }

    fn ask(&mut self) {
        self.remote.submit(NOW, BlockRequest::map(BlockId(1), 4096, 1 << 29).launch(), &mut self.done);
    }

    /// The request that was sent, if one was.
    fn sent(&mut self) -> Option<(FrameHeader, BlockRequest)> {
        let all = std::iter::from_fn(|| self.remote.poll_message());
        let message = all.filter(|message| message.head.kind == FrameKind::Request).last()?;
        Some((message.head, decode_request(BlockId(0), &message.part).unwrap()))
    }

    fn answer(&mut self, request: FrameHeader, data: Payload) {
        let mut head = FrameHeader::new(FrameKind::Reply, 1, request.tag);
        (head.flags.plain, head.flags.timed) = (true, request.flags.timed);
        // Three durations if the request was timed.
        let mut body = Payload::from(vec![0; if request.flags.timed { 12 } else { 0 }]);
        body.append(data);
        self.hear(head, body);
    }

    fn answered_extents(&mut self) -> ExtentList {
        let done = self.done.pop().expect("it is answered");
        assert_eq!((done.op, done.result), (BlockOp::Map, Ok(())));
        ExtentList::read(&done.payload, done.length).expect("an answer is valid, whatever the exporter says")
    }
}

#[test]
fn exporter_that_knows_holes_is_asked_and_believed_only_what_can_be() {
    let mut user = User::new();
    user.opened(true);
    let mut extent_list = ExtentList::data(8192);
    assert!(extent_list.push(StoreExtent { length: 1 << 20, is_hole: true }));
    let beyond = ExtentList::data((1 << 29) + 1).to_payload();
    for (payload, expected) in [
        (extent_list.to_payload(), extent_list),
        (beyond, ExtentList::data(1 << 29)),
        (vec![0; ExtentList::BYTES].into(), ExtentList::data(1 << 29)),
        (vec![0xff; ExtentList::BYTES].into(), ExtentList::data(1 << 29)),
    ] {
        user.ask();
        let (head, request) = user.sent().expect("it is asked");
        assert_eq!((request.op, request.offset, request.length), (BlockOp::Map, 4096, 1 << 29));
        user.answer(head, payload);
        assert_eq!(user.answered_extents(), expected);
    }
    user.remote.close();
}

#[test]
fn disk_of_an_exporter_that_does_not_know_holes_is_all_data() {
    let mut user = User::new();
    user.opened(false);
    user.ask();
    assert_eq!((user.answered_extents(), user.sent()).0, ExtentList::data(1 << 29), "it is not asked");
    assert_eq!(user.remote.in_flight(), 0);

    // What was asked for before the disk was open is sent as a request that every exporter knows.
    let mut user = User::new();
    user.ask();
    user.opened(false);
    let (head, request) = user.sent().expect("somebody has to answer it");
    assert_eq!((request.op, request.length), (BlockOp::Read, 0));
    user.answer(head, Payload::Empty);
    assert_eq!(user.answered_extents(), ExtentList::data(1 << 29));
}

#[test]
fn disk_behind_modules_is_all_data() {
    let mut user = User::new();
    user.remote.note_modules();
    user.opened(true);
    user.ask();
    assert_eq!(user.answered_extents(), ExtentList::data(1 << 29), "a module may make something else of zeros");
    assert!(user.sent().is_none());
}
