//! A device migrates from one importer to the next without a reset, to no other host, and its first importer can use it
//! no more.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farbus::importer::session::connection::{DialCallback, LinkedDevice};
use farbus::importer::session::status::DiscardedRequests;
use farbus::share::Share;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_io_net::link::Link;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Device, EpAddr, OwnerCommand,
    Payload, SetupPacket, Urb, UrbId, UrbStatus,
};
use farbus_session::block::{BlockExport, MediumView, MemoryMedium, SparseMemory};
use farbus_session::native::control::{AttachmentClass, AttachmentEndCause, AttachmentMode, OpenRequest};
use farbus_session::native::{AttachmentState, ImporterAttachment, RemoteBlock, RemoteUsb};
use farbus_session::registry::BlockClass;

const GRACE: Duration = Duration::from_secs(60);

struct Exporter {
    share: Share,
    address: SocketAddr,
}

impl Exporter {
    fn new() -> Self {
        let share = Share::default();
        share.add("keyboard", KeyboardGadget::device()).unwrap();
        let medium = Arc::new(MemoryMedium::new(SparseMemory::new(1 << 20, 1 << 20)));
        let export = Arc::new(BlockExport::new(medium, MediumView::default(), 1).unwrap());
        let renew = || Ok(Box::new(KeyboardGadget::device()) as Box<dyn Device>);
        let class = BlockClass { export, renew: Box::new(renew) };
        share.add_block("disk", Box::new(KeyboardGadget::device()), class).unwrap();
        let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { share, address }
    }

    fn open<A: ImporterAttachment>(
        &self,
        (name, class, epoch): (&str, AttachmentClass, u64),
        make: impl FnOnce(u16, OpenRequest) -> A,
        done: &mut A::Done,
    ) -> LinkedDevice<A> {
        let address = self.address.to_string();
        let connect = move |_| Link::connect(&address, GRACE).map_err(|error| io::Error::other(error.to_string()));
        let dial: DialCallback = Box::new(connect);
        let open =
            OpenRequest { class, mode: AttachmentMode::Exclusive, epoch, name: name.into(), reason: String::new() };
        LinkedDevice::open(dial, make(1, open), GRACE, done).unwrap()
    }

    fn keyboard(&self, epoch: u64) -> Typist {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked = self.open(("keyboard", AttachmentClass::USB, epoch), RemoteUsb::new, &mut done);
        Typist { linked, done, next: 0 }
    }

    fn disk(&self, epoch: u64) -> Scribe {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked = self.open(("disk", AttachmentClass::BLOCK, epoch), RemoteBlock::new, &mut done);
        Scribe { linked, done }
    }
}

fn cause<A: ImporterAttachment>(linked: &LinkedDevice<A>) -> Option<AttachmentEndCause> {
    linked.end().map(|end| end.cause)
}

/// Runs the session until the exporter has said that it is over.
fn settle<A: ImporterAttachment>(linked: &mut LinkedDevice<A>, done: &mut A::Done) {
    loop {
        linked.turn(done);
        if matches!(linked.remote().state(), AttachmentState::Ended(_)) {
            return;
        }
        linked.wait(None).unwrap();
    }
}

/// Tries until it is opened: the exporter may process a message on one link after the next message on another.
fn had<T>(mut open: impl FnMut() -> T, refused: impl Fn(&T) -> Option<AttachmentEndCause>) -> T {
    loop {
        let successor = open();
        match refused(&successor) {
            None => return successor,
            Some(cause) => assert_eq!(cause, AttachmentEndCause::Busy),
        }
        // waits: between two looks for an event
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Typist {
    linked: LinkedDevice<RemoteUsb>,
    done: CompletionQueue,
    next: u64,
}

impl Typist {
    fn ask(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> (UrbStatus, Vec<u8>) {
        self.next += 1;
        let now = self.linked.clock().now();
        self.linked.submit(now, urb(UrbId(self.next)).launch(), &mut self.done);
        loop {
            self.linked.turn(&mut self.done);
            if let Some(done) = self.done.pop() {
                return (done.status, done.payload.into_vec());
            }
            self.linked.wait(None).unwrap();
        }
    }

    fn key(&mut self) -> u8 {
        let mut read = || self.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 8)).1;
        let pressed = read()[2];
        assert_eq!(read(), [0; 8]);
        pressed
    }
}

struct Scribe {
    linked: LinkedDevice<RemoteBlock>,
    done: CompletionQueue<BlockCompletion>,
}

impl Scribe {
    fn ask(&mut self, request: BlockRequest) -> Vec<u8> {
        let now = self.linked.clock().now();
        self.linked.submit(now, request.launch(), &mut self.done);
        loop {
            self.linked.turn(&mut self.done);
            if let Some(done) = self.done.pop() {
                done.result.unwrap();
                return done.payload.into_vec();
            }
            self.linked.wait(None).unwrap();
        }
    }
}

#[test]
fn usb_device_migrates_without_a_reset() {
    let exporter = Exporter::new();
    let mut first = exporter.keyboard(0);
    let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
    assert_eq!(first.ask(|id| Urb::control(id, set_configuration, Payload::Empty)).0, UrbStatus::Ok);
    exporter.share.command("keyboard", OwnerCommand::Type("ab".into())).unwrap();
    assert_eq!(first.key(), 4);
    let lease = first.linked.remote().lease();
    assert_ne!(lease, 0);

    first.linked.remote_mut().migrate([0; 32]);
    first.linked.turn(&mut first.done);
    let status = &exporter.share.status()[0];
    assert_eq!(status.state, "in use", "it is kept for its successor");
    assert_eq!(cause(&exporter.keyboard(0).linked), Some(AttachmentEndCause::Busy), "and for nobody else");

    let mut successor = had(|| exporter.keyboard(lease), |successor| cause(&successor.linked));
    settle(&mut first.linked, &mut first.done);
    assert_eq!(first.linked.end().map(|end| end.message.as_str()), Some("handed over"));
    assert_eq!(successor.linked.selection().configuration(), 1, "it was not reset");
    assert_eq!(successor.key(), 5, "what was typed and not read is read by its successor");
    assert!(successor.linked.remote().lease() > lease);
    assert_eq!(cause(&exporter.keyboard(lease).linked), Some(AttachmentEndCause::Stale), "the former user is refused");
    let history = &exporter.share.status()[0].history;
    assert_eq!(history[0].ended, "handed over");

    // The owner can take back even a device that waits for its successor.
    successor.linked.remote_mut().migrate([0; 32]);
    successor.linked.turn(&mut successor.done);
    exporter.share.take_back("keyboard", None, Duration::ZERO).unwrap();
    settle(&mut successor.linked, &mut successor.done);
    assert_eq!(cause(&successor.linked), Some(AttachmentEndCause::Refused));
    assert_eq!(exporter.share.status()[0].state, "available");
}

#[test]
fn discarded_device_goes_at_once_reset_and_to_its_successor_alone() {
    let exporter = Exporter::new();
    let mut first = exporter.keyboard(0);
    let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
    assert_eq!(first.ask(|id| Urb::control(id, set_configuration, Payload::Empty)).0, UrbStatus::Ok);
    let lease = first.linked.remote().lease();
    // A read that waits for a key: nobody presses one.
    let read = Urb::data_in(UrbId(100), EpAddr::from_byte(0x81), 8);
    let now = first.linked.clock().now();
    first.linked.submit(now, read.launch(), &mut first.done);
    first.linked.turn(&mut first.done);
    let status = first.linked.status();
    let handle = std::thread::spawn(move || status.discard([0; 32], GRACE));
    settle(&mut first.linked, &mut first.done);
    assert_eq!(handle.join().unwrap(), Ok(DiscardedRequests { requests: 1, unwritten_bytes: 0 }));
    let failed = first.done.pop().expect("it is not waited for");
    assert_eq!((failed.id, failed.status), (UrbId(100), UrbStatus::Shutdown));
    assert_eq!(first.linked.end().map(|end| end.message.as_str()), Some("handed over"), "it is over here");
    drop(first);
    assert_eq!(exporter.share.status()[0].state, "in use", "it is kept for its successor");
    assert_eq!(cause(&exporter.keyboard(0).linked), Some(AttachmentEndCause::Busy), "and for nobody else");
    let mut successor = had(|| exporter.keyboard(lease), |successor| cause(&successor.linked));
    assert_eq!(successor.linked.selection().configuration(), 0, "it was reset");
    assert_eq!(successor.ask(|id| Urb::control(id, set_configuration, Payload::Empty)).0, UrbStatus::Ok);
    exporter.share.command("keyboard", OwnerCommand::Type("b".into())).unwrap();
    assert_eq!(successor.key(), 5, "what is typed goes to its successor, and not to the read that was thrown away");
}

#[test]
fn discarded_disk_has_what_was_answered_and_returns_to_all_when_nobody_comes() {
    let exporter = Exporter::new();
    exporter.share.wait_for_successors(Duration::from_millis(300));
    let mut scribe = exporter.disk(0);
    scribe.ask(BlockRequest::write(BlockId(1), 0, Payload::from(vec![7; 512])));
    let now = scribe.linked.clock().now();
    // It waits for an answer, and is not waited for.
    scribe.linked.submit(
        now,
        BlockRequest::write(BlockId(2), 512, Payload::from(vec![8; 512])).launch(),
        &mut scribe.done,
    );
    let status = scribe.linked.status();
    let handle = std::thread::spawn(move || status.discard([7; 32], GRACE));
    while scribe.linked.status().is_ours() {
        std::thread::yield_now();
    }
    settle(&mut scribe.linked, &mut scribe.done);
    assert_eq!(handle.join().unwrap(), Ok(DiscardedRequests { requests: 1, unwritten_bytes: 512 }));
    assert!(scribe.done.pop().is_some_and(|done| done.id == BlockId(2) && done.result.is_err()));
    assert_eq!(cause(&scribe.linked), Some(AttachmentEndCause::Requested));
    drop(scribe);
    let mut next = had(|| exporter.disk(0), |next| cause(&next.linked));
    assert_eq!(next.ask(BlockRequest::read(BlockId(1), 0, 512)), vec![7; 512], "what was answered is there");
}

#[test]
fn device_returns_to_its_importer_when_its_successor_never_comes() {
    let exporter = Exporter::new();
    exporter.share.wait_for_successors(Duration::from_millis(300));
    let mut typist = exporter.keyboard(0);
    let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
    assert_eq!(typist.ask(|id| Urb::control(id, set_configuration, Payload::Empty)).0, UrbStatus::Ok);
    let mut scribe = exporter.disk(0);
    let (typed_under, written_under) = (typist.linked.remote().lease(), scribe.linked.remote().lease());
    for round in 0..2 {
        // A read that waits for a key is under way; the migration does not answer it.
        let read = Urb::data_in(UrbId(100 + round), EpAddr::from_byte(0x81), 8);
        let now = typist.linked.clock().now();
        typist.linked.submit(now, read.launch(), &mut typist.done);
        typist.linked.turn(&mut typist.done);
        typist.linked.status().migrate([7; 32]).unwrap();
        assert_eq!(typist.linked.status().migrate([8; 32]), Err("it is being handed over already"));
        scribe.linked.status().migrate([7; 32]).unwrap();
        // A request made meanwhile waits.
        scribe.ask(BlockRequest::write(BlockId(1), 0, Payload::from(vec![round as u8; 512])));
        assert_eq!(scribe.ask(BlockRequest::read(BlockId(2), 0, 512)), vec![round as u8; 512]);
        while typist.linked.status().migrate([0; 32]).is_err() {
            typist.linked.wait(None).unwrap();
            typist.linked.turn(&mut typist.done);
        }
        // It migrates again at once: back to the first host.
        while typist.linked.remote().is_moving() || !typist.linked.status().is_ours() {
            typist.linked.wait(None).unwrap();
            typist.linked.turn(&mut typist.done);
        }
        assert!(typist.done.is_empty(), "nobody hears of it");
        exporter.share.command("keyboard", OwnerCommand::Type("a".into())).unwrap();
        let pressed = loop {
            typist.linked.turn(&mut typist.done);
            if let Some(done) = typist.done.pop() {
                break done;
            }
            typist.linked.wait(None).unwrap();
        };
        assert_eq!((pressed.id, pressed.status, pressed.payload.into_vec()[2]), (UrbId(100 + round), UrbStatus::Ok, 4));
        assert_eq!(typist.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 8)).0, UrbStatus::Ok);
    }
    assert!(typist.linked.remote().lease() > typed_under && scribe.linked.remote().lease() > written_under);
    assert_eq!(typist.linked.selection().configuration(), 1);
    assert_eq!(cause(&exporter.keyboard(typed_under).linked), Some(AttachmentEndCause::Stale));
}

#[test]
fn a_command_to_a_device_that_is_handed_over_reaches_its_successor() {
    let exporter = Exporter::new();
    let mut first = exporter.keyboard(0);
    let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
    assert_eq!(first.ask(|id| Urb::control(id, set_configuration, Payload::Empty)).0, UrbStatus::Ok);
    let lease = first.linked.remote().lease();
    first.linked.remote_mut().migrate([0; 32]);
    first.linked.turn(&mut first.done);
    while !first.linked.remote().is_moving() {
        first.linked.wait(None).unwrap();
        first.linked.turn(&mut first.done);
    }
    std::thread::scope(|scope| {
        let typed = scope.spawn(|| exporter.share.command("keyboard", OwnerCommand::Type("a".into())));
        // Nobody but its successor gets it meanwhile, and the command does not give up.
        for _ in 0..20 {
            assert_eq!(cause(&exporter.keyboard(0).linked), Some(AttachmentEndCause::Busy));
        }
        let mut successor = had(|| exporter.keyboard(lease), |successor| cause(&successor.linked));
        settle(&mut first.linked, &mut first.done);
        typed.join().unwrap().unwrap();
        let (status, keys) = successor.ask(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 8));
        assert_eq!((status, keys[2]), (UrbStatus::Ok, 4));
    });
}

#[test]
fn a_disk_goes_to_its_successor_with_all_that_was_written() {
    let exporter = Exporter::new();
    let mut first = exporter.disk(0);
    first.ask(BlockRequest::write(BlockId(1), 4096, Payload::from(b"written".to_vec())));
    let lease = first.linked.remote().lease();
    first.linked.remote_mut().migrate([0; 32]);
    first.linked.turn(&mut first.done);
    assert_eq!(cause(&exporter.disk(0).linked), Some(AttachmentEndCause::Busy));
    let mut successor = had(|| exporter.disk(lease), |successor| cause(&successor.linked));
    settle(&mut first.linked, &mut first.done);
    assert_eq!(successor.ask(BlockRequest::read(BlockId(1), 4096, 7)), b"written");
    assert_eq!(cause(&exporter.disk(lease).linked), Some(AttachmentEndCause::Stale));
    // Back again.
    let lease = successor.linked.remote().lease();
    successor.linked.remote_mut().migrate([0; 32]);
    successor.linked.turn(&mut successor.done);
    assert_eq!(
        had(|| exporter.disk(lease), |successor| cause(&successor.linked)).ask(BlockRequest::read(BlockId(1), 4096, 7)),
        b"written"
    );
}
