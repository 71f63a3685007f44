//! Writes that are answered before they have arrived: how many, in which order they arrive, and what becomes of one
//! that fails.

use std::sync::{Arc, Mutex, MutexGuard};

use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockDevice, BlockDone, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool, Completions, Instant,
    StoreDevice, StoreError,
};
use farbus_session::block::{Ahead, Behind};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16 << 10;
/// What is answered and has not arrived, at most.
const DIRTY_BYTES_MAX: u64 = 16 << 20;
const DIRTY_WRITES_MAX: usize = 128;

/// A device whose answers arrive when they are let through.
struct State {
    store: StoreDevice<MemoryStore>,
    waiting: Vec<BlockInFlight>,
    through: Vec<BlockInFlight>,
    fails: bool,
    epoch: Option<u64>,
}

#[derive(Clone)]
struct Far(Arc<Mutex<State>>, BlockInfo);

impl Far {
    fn new() -> Self {
        let store = StoreDevice::new(MemoryStore::new(vec![0; (BLOCK * BLOCKS) as usize])).with_blocks(BLOCK as u32);
        let info = *store.info();
        let state = State { store, waiting: Vec::new(), through: Vec::new(), fails: false, epoch: Some(0) };
        Self(Arc::new(Mutex::new(state)), info)
    }

    fn look(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// What it was asked and has not answered.
    fn asked(&self) -> Vec<(BlockOp, u64)> {
        self.look().waiting.iter().map(|request| (request.op, request.offset / BLOCK)).collect()
    }
}

impl BlockDevice for Far {
    fn info(&self) -> &BlockInfo {
        &self.1
    }

    fn submit(&mut self, _now: Instant, request: BlockInFlight, _done: &mut Completions<BlockDone>) {
        self.look().waiting.push(request);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut Completions<BlockDone>) {
        let mut state = self.look();
        for request in std::mem::take(&mut state.through) {
            match state.fails && request.op == BlockOp::Write {
                true => done.push(request.fail(StoreError::Medium)),
                false => state.store.submit(now, request, done),
            }
        }
    }

    fn epoch(&self) -> Option<u64> {
        self.look().epoch
    }
}

struct User<D> {
    far: Far,
    device: D,
    done: Completions<BlockDone>,
    next: u64,
}

impl<D: BlockDevice> User<D> {
    fn new(over: impl FnOnce(Far) -> D) -> Self {
        let far = Far::new();
        Self { device: over(far.clone()), far, done: Completions::new(BufferPool::new(0)), next: 0 }
    }

    fn submit(&mut self, request: impl FnOnce(BlockId) -> BlockRequest) {
        self.next += 1;
        self.device.submit(Instant::ZERO, request(BlockId(self.next)).launch(), &mut self.done);
    }

    fn write(&mut self, block: u64, byte: u8) {
        self.submit(|id| BlockRequest::write(id, block * BLOCK, vec![byte; BLOCK as usize].into()));
    }

    fn read(&mut self, block: u64) {
        self.submit(|id| BlockRequest::read(id, block * BLOCK, BLOCK as u32));
    }

    /// How the last answers ended, and what the first byte of each was.
    fn answers(&mut self) -> Vec<Result<Option<u8>, StoreError>> {
        let first = |done: &BlockDone| done.payload.runs().next().map(|run| run[0]);
        std::iter::from_fn(|| self.done.pop()).map(|done| done.result.map(|()| first(&done))).collect()
    }

    fn answer(&mut self) -> Result<Option<u8>, StoreError> {
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0]
    }

    /// All that was asked arrives, and what that lets be asked does not yet.
    fn round_trip(&mut self) {
        {
            let mut state = self.far.look();
            state.through = std::mem::take(&mut state.waiting);
        }
        self.device.handle_ready(Instant::ZERO, &mut self.done);
    }

    fn flush(&mut self) -> Result<Option<u8>, StoreError> {
        self.submit(BlockRequest::flush);
        self.round_trip();
        self.round_trip();
        self.answer()
    }
}

#[test]
fn a_write_is_answered_at_once_and_a_flush_when_all_is_there() {
    let mut user = User::new(Behind::new);
    user.write(1, 7);
    assert_eq!((user.answer(), user.far.asked()), (Ok(None), vec![(BlockOp::Write, 1)]), "and is on its way");
    user.read(1);
    assert_eq!(user.answer(), Ok(Some(7)), "from here");
    user.submit(BlockRequest::flush);
    user.write(1, 8);
    assert!(user.answers().is_empty(), "what was written first is there first");
    assert_eq!(user.far.asked(), [(BlockOp::Write, 1)], "a flush is asked for when what it covers is there");
    user.round_trip();
    assert_eq!(user.answers(), [Ok(None)], "the second write");
    assert_eq!(user.far.asked(), [(BlockOp::Flush, 0), (BlockOp::Write, 1)]);
    user.round_trip();
    assert_eq!((user.answer(), user.device.dirty_bytes()), (Ok(None), 0));

    // What is to be durable is answered when it is, and so is all that is no write.
    user.submit(|id| BlockRequest { is_durable: true, ..BlockRequest::write(id, 0, vec![1; BLOCK as usize].into()) });
    user.submit(|id| BlockRequest::zero(id, BlockOp::Discard, 4 * BLOCK, BLOCK as u32));
    assert!(user.answers().is_empty());
    user.round_trip();
    assert_eq!(user.answers(), [Ok(None); 2]);
}

#[test]
fn no_more_is_answered_early_than_may_be_lost() {
    let mut user = User::new(Behind::new);
    (0..300).for_each(|block| user.write(block, 1));
    assert_eq!(user.answers().len(), DIRTY_WRITES_MAX);
    assert_eq!(user.far.asked().len(), 300, "all of them are on their way");
    user.round_trip();
    assert_eq!(user.answers().len(), 300 - DIRTY_WRITES_MAX);

    let mut user = User::new(Behind::new);
    let length = 4 << 20;
    for at in 0..8 {
        user.submit(|id| BlockRequest::write(id, at * length, vec![1; length as usize].into()));
    }
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (4, DIRTY_BYTES_MAX));
    // Each that arrives lets another be answered.
    let first = user.far.look().waiting.remove(0);
    user.far.look().through.push(first);
    user.device.handle_ready(Instant::ZERO, &mut user.done);
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (1, DIRTY_BYTES_MAX));
    user.round_trip();
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (3, 0));
}

#[test]
fn a_lost_write_fails_one_flush_and_its_place_is_not_read_until_it_is_written_anew() {
    let mut user = User::new(Behind::new);
    user.far.look().fails = true;
    (2..6).for_each(|block| user.write(block, 9));
    user.round_trip();
    assert_eq!(user.answers(), [Ok(None); 4], "nobody knew");
    user.far.look().fails = false;
    assert_eq!([user.flush(), user.flush()], [Err(StoreError::Medium), Ok(None)], "once");
    user.read(5);
    assert_eq!(user.answer(), Err(StoreError::Medium), "not what was there before");
    user.read(6);
    user.round_trip();
    assert_eq!(user.answer(), Ok(Some(0)));
    // Until all of it is there again nothing more is promised.
    for block in [2, 4, 3, 5] {
        user.write(block, 10);
        assert!(user.answers().is_empty());
        user.round_trip();
        assert_eq!((user.answer(), user.flush()), (Ok(None), Ok(None)));
    }
    user.write(2, 11);
    assert_eq!(user.answer(), Ok(None), "at once again");
    // What is written anew before anybody flushes was lost to nobody.
    user.round_trip();
    user.far.look().fails = true;
    user.write(7, 1);
    user.round_trip();
    user.far.look().fails = false;
    user.write(7, 2);
    user.round_trip();
    assert_eq!((user.answers(), user.flush()), (vec![Ok(None); 2], Ok(None)));
    // One that fails before it was answered is lost to nobody but its writer.
    user.round_trip();
    user.far.look().fails = true;
    user.submit(|id| BlockRequest { is_durable: true, ..BlockRequest::write(id, 0, vec![1; BLOCK as usize].into()) });
    user.round_trip();
    assert_eq!(user.answer(), Err(StoreError::Medium));
}

#[test]
fn nothing_is_fetched_of_what_others_may_change() {
    let mut user = User::new(Ahead::new);
    let sequence = |user: &mut User<Ahead<Far>>, from: u64| {
        for block in from..from + 8 {
            user.read(block);
            user.round_trip();
            assert_eq!(user.answer(), Ok(Some(0)));
        }
        user.device.fetched_bytes()
    };
    user.far.look().epoch = None;
    assert_eq!(sequence(&mut user, 0), 0, "somebody else writes");
    user.far.look().epoch = Some(1);
    assert!(sequence(&mut user, 8) > 0);
    // It was opened anew, and somebody else may have had it meanwhile; a read that waits for what was fetched is asked
    // for again.
    user.read(1000);
    user.far.look().epoch = Some(2);
    user.device.handle_ready(Instant::ZERO, &mut user.done);
    assert_eq!(user.device.fetched_bytes(), 0);
    user.round_trip();
    user.round_trip();
    assert_eq!(user.answer(), Ok(Some(0)));
}
