//! What an importer knows of the writes that its exporter never answered, when the use of a disk ends.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInfo, BlockRequest, BufferPool, CompletionQueue, Instant,
};
use farbus_session::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenReply, OpenRequest,
};
use farbus_session::native::frame::FrameHeader;
use farbus_session::native::{FrameKind, ImporterAttachment, ReceivedFrame, RemoteBlock};
use farbus_wire::native::block::BlockDescription;

const NOW: Instant = Instant::ZERO;
const INFO: BlockInfo = BlockInfo {
    size_bytes: 1 << 30,
    block_bytes: 512,
    preferred_bytes: 4096,
    request_bytes_max: 1 << 20,
    is_read_only: false,
    trims: true,
};

#[test]
fn importer_knows_how_much_was_not_written_when_the_lease_of_its_disk_ends() {
    let mut done: CompletionQueue<BlockCompletion> = CompletionQueue::new(BufferPool::new(0));
    let open = OpenRequest {
        class: AttachmentClass::BLOCK,
        mode: AttachmentMode::Exclusive,
        epoch: 0,
        name: "disk".into(),
        reason: String::new(),
    };
    let mut disk = RemoteBlock::new(1, open);
    let hear = |disk: &mut RemoteBlock, done: &mut _, kind, body: Vec<u8>| {
        disk.handle_arrived(NOW, ReceivedFrame { head: FrameHeader::new(kind, 1, 0), body: body.into() }, done)
            .unwrap();
    };
    let info = BlockDescription { info: INFO, durability: 1, maps: false }.encode();
    // Credit for two requests: the third waits here.
    let opened = OpenReply { epoch: 1, credit: AttachmentCredit { requests: 2, bytes: 1 << 20 }, info };
    hear(&mut disk, &mut done, FrameKind::Opened, opened.encode());
    for (id, bytes) in [(1, 512), (2, 1024), (3, 4096)] {
        let write = BlockRequest::write(BlockId(id), id * 8192, vec![1; bytes].into());
        disk.submit(NOW, write.launch(), &mut done);
    }
    disk.submit(NOW, BlockRequest::read(BlockId(4), 0, 512).launch(), &mut done);
    assert_eq!(disk.unwritten_bytes(), 0, "it is not over");
    let end = AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: "lease expired".into() };
    hear(&mut disk, &mut done, FrameKind::Closed, end.encode());
    assert_eq!(disk.unwritten_bytes(), 512 + 1024 + 4096, "what was read is not missed");
    let failed = std::iter::from_fn(|| done.pop()).filter(|done| done.result != Ok(())).count();
    assert_eq!(failed, 4, "and each program that wrote is told");
}
