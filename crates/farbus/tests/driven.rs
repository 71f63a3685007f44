//! A USB disk that its exporter drives, used as a block device over a session.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use farbus::importer::session::connection::{DialCallback, LinkedDevice};
use farbus::share::Share;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_io_net::link::Link;
use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Device, OwnerCommand, StoreError,
};
use farbus_session::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};
use farbus_session::native::{ImporterAttachment, RemoteBlock, RemoteUsb};

const GRACE: Duration = Duration::from_secs(60);
const SIZE: usize = 4 << 20;

/// A share with a USB stick, which is no block device, and a keyboard.
fn exporter(options: StorageOptions) -> (Share, SocketAddr) {
    let share = Share::default();
    let stick = StorageGadget::device(Box::new(MemoryStore::new(vec![0; SIZE])), options).unwrap();
    share.add("stick", stick).unwrap();
    share.add("keyboard", KeyboardGadget::device()).unwrap();
    let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    (share, address)
}

fn open<A: ImporterAttachment>(
    address: SocketAddr,
    (name, class, mode): (&str, AttachmentClass, AttachmentMode),
    make: impl FnOnce(u16, OpenRequest) -> A,
    done: &mut A::Done,
) -> Result<LinkedDevice<A>, AttachmentEndNotice> {
    let address = address.to_string();
    let connect = move |_| Link::connect(&address, GRACE).map_err(|error| io::Error::other(error.to_string()));
    let dial: DialCallback = Box::new(connect);
    let open = OpenRequest { class, mode, epoch: 0, name: name.into(), reason: String::new() };
    let linked = LinkedDevice::open(dial, make(1, open), GRACE, done).unwrap();
    match linked.end() {
        Some(end) => Err(end.clone()),
        None => Ok(linked),
    }
}

struct User {
    linked: LinkedDevice<RemoteBlock>,
    done: CompletionQueue<BlockCompletion>,
}

impl User {
    fn open(address: SocketAddr) -> Result<Self, AttachmentEndNotice> {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked =
            open(address, ("stick", AttachmentClass::BLOCK, AttachmentMode::Exclusive), RemoteBlock::new, &mut done)?;
        Ok(Self { linked, done })
    }

    fn submit(&mut self, request: BlockRequest) {
        let now = self.linked.clock().now();
        self.linked.submit(now, request.launch(), &mut self.done);
    }

    fn answer(&mut self) -> BlockCompletion {
        loop {
            self.linked.turn(&mut self.done);
            match self.done.pop() {
                Some(done) => return done,
                None => self.linked.wait(None).unwrap(),
            }
        }
    }

    fn ask(&mut self, request: BlockRequest) -> Result<Vec<u8>, StoreError> {
        self.submit(request);
        let answer = self.answer();
        answer.result.map(|()| answer.payload.into_vec())
    }
}

#[test]
fn usb_stick_is_a_block_device_with_one_user() {
    let (share, address) = exporter(StorageOptions::default());
    let mut user = User::open(address).unwrap();
    assert_eq!((user.linked.info().size_bytes, user.linked.info().block_bytes), (SIZE as u64, 512));
    for at in 0..32u64 {
        user.submit(BlockRequest::write(BlockId(at), at << 12, vec![at as u8; 4096].into()));
    }
    (0..32).for_each(|_| assert_eq!(user.answer().result, Ok(())));
    assert_eq!(user.ask(BlockRequest::flush(BlockId(0))), Ok(Vec::new()));
    assert_eq!(user.ask(BlockRequest::read(BlockId(0), 31 << 12, 4096)), Ok(vec![31; 4096]));

    // The claim is exclusive, as a driver's is.
    let second = User::open(address).err().unwrap();
    assert_eq!(second.cause, AttachmentEndCause::Busy);
    assert!(second.message.starts_with("in use by 127.0.0.1"), "{}", second.message);
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let second = open(address, ("stick", AttachmentClass::USB, AttachmentMode::Exclusive), RemoteUsb::new, &mut done);
    assert_eq!(second.err().map(|end| end.cause), Some(AttachmentEndCause::Busy));
    assert_eq!(share.status()[0].state, "in use");
    user.linked.close(&mut user.done);

    // It is a USB device again that has no user, and holds what was written.
    let mut user = User::open(address).unwrap();
    assert_eq!(user.ask(BlockRequest::read(BlockId(0), 5 << 12, 4096)), Ok(vec![5; 4096]));
    user.linked.close(&mut user.done);
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let usb =
        open(address, ("stick", AttachmentClass::USB, AttachmentMode::Exclusive), RemoteUsb::new, &mut done).unwrap();
    assert_eq!(usb.selection().configuration(), 0);
}

#[test]
fn non_disk_is_refused_by_class_and_disk_without_medium_with_the_reason() {
    let (share, address) = exporter(StorageOptions { removable: true, ..StorageOptions::default() });
    let refused = |name, mode| {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        open(address, (name, AttachmentClass::BLOCK, mode), RemoteBlock::new, &mut done).err().unwrap()
    };
    assert_eq!(refused("keyboard", AttachmentMode::Exclusive).cause, AttachmentEndCause::Class);
    assert_eq!(
        refused("stick", AttachmentMode::Read).cause,
        AttachmentEndCause::Class,
        "it has one user, who may change it"
    );
    share.command("stick", OwnerCommand::Eject).unwrap();
    let end = refused("stick", AttachmentMode::Exclusive);
    assert_eq!((end.cause, end.message.as_str()), (AttachmentEndCause::Device, "there is no medium in the device"));
    assert_eq!(share.status()[0].state, "available");
    share.command("stick", OwnerCommand::Insert).unwrap();

    let mut user = User::open(address).unwrap();
    assert_eq!(user.ask(BlockRequest::write(BlockId(1), 0, vec![1; 512].into())), Ok(Vec::new()));
    share.command("stick", OwnerCommand::Eject).unwrap();
    assert_eq!(user.ask(BlockRequest::read(BlockId(2), 0, 512)), Err(StoreError::Gone));
    loop {
        user.linked.turn(&mut user.done);
        if let Some(end) = user.linked.end() {
            assert_eq!(end.cause, AttachmentEndCause::Gone);
            break;
        }
        user.linked.wait(None).unwrap();
    }
    assert_eq!(share.status()[0].state, "available", "the device itself is there");
}
