//! Which writes a remote disk's next flush says are lost, when the exporter's machine has lost what was not durable.

use farbus_model::{
    BlockDevice, BlockDone, BlockId, BlockInfo, BlockRequest, BufferPool, Completions, Instant, Payload, StoreError,
};
use farbus_session::native::control::{Class, Credit, Mode, Open, Opened};
use farbus_session::native::frame::Head;
use farbus_session::native::{Arrived, Attached, Kind, RemoteBlock};
use farbus_wire::native::block::Description;

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
    done: Completions<BlockDone>,
}

impl User {
    fn new() -> Self {
        let open =
            Open { class: Class::BLOCK, mode: Mode::Exclusive, epoch: 0, name: "disk".into(), reason: String::new() };
        let mut user = Self { remote: RemoteBlock::new(1, open), done: Completions::new(BufferPool::new(0)) };
        user.opened(1);
        user
    }

    fn hear(&mut self, head: Head, body: Payload) {
        self.remote.handle_arrived(NOW, Arrived { head, body }, &mut self.done).unwrap();
    }

    /// Its exporter has it, and nothing of it was lost since this number was another.
    fn opened(&mut self, durability: u64) {
        let info = Description { info: INFO, durability }.encode();
        let opened = Opened { epoch: durability, credit: Credit { requests: 64, bytes: 1 << 20 }, info };
        self.hear(Head::new(Kind::Opened, 1, 0), opened.encode().into());
    }

    /// The exporter's machine was switched off and on.
    fn machine_restarts(&mut self, durability: u64) {
        self.remote.handle_renewed(NOW, &mut self.done);
        self.opened(durability);
    }

    /// What was said, by the block that it is about.
    fn said(&mut self) -> Vec<Head> {
        let all = std::iter::from_fn(|| self.remote.poll_message()).map(|message| message.head);
        all.filter(|head| head.kind == Kind::Request).collect()
    }

    fn write(&mut self, block: u64) {
        let request = BlockRequest::write(BlockId(block), block * 512, vec![1; 512].into());
        self.remote.submit(NOW, request.launch(), &mut self.done);
    }

    fn answer(&mut self, request: Head) {
        let mut head = Head::new(Kind::Reply, 1, request.tag);
        (head.flags.plain, head.flags.timed) = (true, request.flags.timed);
        // Three durations, if it was to be timed.
        let body = if request.flags.timed { vec![0; 12] } else { Vec::new() };
        self.hear(head, body.into());
    }

    fn answer_all(&mut self) {
        self.said().into_iter().for_each(|request| self.answer(request));
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.remote.submit(NOW, BlockRequest::flush(BlockId(99)).launch(), &mut self.done);
        self.answer_all();
        let all = std::iter::from_fn(|| self.done.pop());
        all.filter(|done| done.id == BlockId(99)).last().expect("it was answered").result
    }
}

#[test]
fn what_was_answered_while_an_earlier_write_was_not_is_missed() {
    let mut user = User::new();
    user.write(0);
    user.write(1);
    let asked = user.said();
    user.answer(asked[1]);
    user.machine_restarts(2);
    user.answer_all();
    assert_eq!(user.flush(), Err(StoreError::Lost), "the second was answered, and is lost");
    assert_eq!(user.flush(), Ok(()), "that is said once");
}

#[test]
fn what_is_asked_again_or_was_flushed_is_not() {
    let mut user = User::new();
    user.write(0);
    user.machine_restarts(2);
    user.answer_all();
    assert_eq!(user.flush(), Ok(()), "it was never answered before, and is there now");
    user.machine_restarts(3);
    user.write(1);
    user.said();
    user.machine_restarts(4);
    user.answer_all();
    assert_eq!(user.flush(), Ok(()));
}

#[test]
fn a_flush_covers_what_was_answered_before_it_was_asked_and_no_more() {
    let mut user = User::new();
    for block in 0..2 {
        user.write(block);
    }
    let asked = user.said();
    user.answer(asked[1]);
    user.remote.submit(NOW, BlockRequest::flush(BlockId(50)).launch(), &mut user.done);
    let flush = user.said();
    user.answer(asked[0]);
    user.answer(flush[0]);
    user.machine_restarts(2);
    assert_eq!(user.flush(), Err(StoreError::Lost), "the first was answered after the flush was asked");
}
