//! Write-back: how many writes are answered early, in which order they arrive, and what happens when one fails.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farbus_model::budget::{MemoryAccount, MemoryBudget};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, ExtentList, Instant, StoreDevice, StoreError,
};
use farbus_session::block::{ReadAheadLayer, SparseMemory, WriteBackLayer};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16 << 10;
/// Most bytes answered but not yet written.
const DIRTY_BYTES_MAX: u64 = 16 << 20;
const DIRTY_WRITES_MAX: usize = 512;

/// A device whose answers arrive when they are let through.
struct State {
    store: StoreDevice<SparseMemory>,
    waiting: Vec<BlockInFlight>,
    through: Vec<BlockInFlight>,
    fails: bool,
    epoch: Option<u64>,
}

#[derive(Clone)]
struct Far(Arc<Mutex<State>>, BlockInfo);

impl Far {
    fn new() -> Self {
        Self::with_blocks(BLOCKS)
    }

    fn with_blocks(blocks: u64) -> Self {
        let store = StoreDevice::new(SparseMemory::new(BLOCK * blocks, BLOCK * blocks)).with_blocks(BLOCK as u32);
        let info = *store.info();
        let state = State { store, waiting: Vec::new(), through: Vec::new(), fails: false, epoch: Some(0) };
        Self(Arc::new(Mutex::new(state)), info)
    }

    fn look(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Its open requests.
    fn open_requests(&self) -> Vec<(BlockOp, u64)> {
        self.look().waiting.iter().map(|request| (request.op, request.offset / BLOCK)).collect()
    }
}

impl BlockDevice for Far {
    fn info(&self) -> &BlockInfo {
        &self.1
    }

    fn submit(&mut self, _now: Instant, request: BlockInFlight, _done: &mut CompletionQueue<BlockCompletion>) {
        self.look().waiting.push(request);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
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
    done: CompletionQueue<BlockCompletion>,
    next: u64,
    now: Instant,
}

impl<D: BlockDevice> User<D> {
    fn new(over: impl FnOnce(Far) -> D) -> Self {
        let far = Far::new();
        Self {
            device: over(far.clone()),
            far,
            done: CompletionQueue::new(BufferPool::new(0)),
            next: 0,
            now: Instant::ZERO,
        }
    }

    fn submit(&mut self, request: impl FnOnce(BlockId) -> BlockRequest) {
        self.next += 1;
        self.device.submit(self.now, request(BlockId(self.next)).launch(), &mut self.done);
    }

    fn write(&mut self, block: u64, byte: u8) {
        self.submit(|id| BlockRequest::write(id, block * BLOCK, vec![byte; BLOCK as usize].into()));
    }

    fn read(&mut self, block: u64) {
        self.submit(|id| BlockRequest::read(id, block * BLOCK, BLOCK as u32));
    }

    /// The outcomes of the latest answers, with the first byte of each.
    fn answers(&mut self) -> Vec<Result<Option<u8>, StoreError>> {
        let first = |done: &BlockCompletion| done.payload.runs().next().map(|run| run[0]);
        std::iter::from_fn(|| self.done.pop()).map(|done| done.result.map(|()| first(&done))).collect()
    }

    fn answer(&mut self) -> Result<Option<u8>, StoreError> {
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers[0]
    }

    /// Delivers everything requested so far; requests that follow from it wait for the next call.
    fn round_trip(&mut self) {
        {
            let mut state = self.far.look();
            state.through = std::mem::take(&mut state.waiting);
        }
        self.device.handle_ready(self.now, &mut self.done);
    }

    fn flush(&mut self) -> Result<Option<u8>, StoreError> {
        self.submit(BlockRequest::flush);
        self.round_trip();
        self.round_trip();
        self.answer()
    }
}

#[test]
fn write_is_answered_at_once_and_flush_after_all_writes_have_arrived() {
    let mut user = User::new(WriteBackLayer::new);
    user.write(1, 7);
    assert_eq!((user.answer(), user.far.open_requests()), (Ok(None), vec![(BlockOp::Write, 1)]), "and is on its way");
    user.read(1);
    assert_eq!(user.answer(), Ok(Some(7)), "from here");
    user.submit(BlockRequest::flush);
    user.write(1, 8);
    assert!(user.answers().is_empty(), "what was written first is there first");
    assert_eq!(user.far.open_requests(), [(BlockOp::Write, 1)], "a flush is asked for when what it covers is there");
    user.round_trip();
    assert_eq!(user.answers(), [Ok(None)], "the second write");
    assert_eq!(user.far.open_requests(), [(BlockOp::Flush, 0), (BlockOp::Write, 1)]);
    user.round_trip();
    assert_eq!((user.answer(), user.device.dirty_bytes()), (Ok(None), 0));

    // FUA writes, and everything that is not a write, are answered when the device answers.
    user.submit(|id| BlockRequest { is_durable: true, ..BlockRequest::write(id, 0, vec![1; BLOCK as usize].into()) });
    user.submit(|id| BlockRequest::zero(id, BlockOp::Discard, 4 * BLOCK, BLOCK as u32));
    assert!(user.answers().is_empty());
    user.round_trip();
    assert_eq!(user.answers(), [Ok(None); 2]);
}

#[test]
fn early_answers_are_bounded_in_bytes_and_number() {
    let mut user = User::new(WriteBackLayer::new);
    (0..900).for_each(|block| user.write(block, 1));
    assert_eq!(user.answers().len(), DIRTY_WRITES_MAX);
    assert_eq!(user.far.open_requests().len(), 900, "all of them are on their way");
    user.round_trip();
    assert_eq!(user.answers().len(), 900 - DIRTY_WRITES_MAX);

    let mut user = User::new(WriteBackLayer::new);
    let length = 4 << 20;
    for at in 0..8 {
        user.submit(|id| BlockRequest::write(id, at * length, vec![1; length as usize].into()));
    }
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (4, DIRTY_BYTES_MAX));
    // Each write that arrives lets another one be answered.
    let first = user.far.look().waiting.remove(0);
    user.far.look().through.push(first);
    user.device.handle_ready(Instant::ZERO, &mut user.done);
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (1, DIRTY_BYTES_MAX));
    user.round_trip();
    assert_eq!((user.answers().len(), user.device.dirty_bytes()), (3, 0));
}

/// Most bytes that a user may have dirty who writes 4 MiB at a time over a round trip of 50 ms, on a link that carries
/// `carried` bytes in that time.
fn dirty_bytes_at_50_ms(device: WriteBackLayer<Far>, far: &Far, carried: u64) -> (u64, WriteBackLayer<Far>) {
    const LENGTH: u64 = 4 << 20;
    let (done, next, now) = (CompletionQueue::new(BufferPool::new(0)), 0, Instant::ZERO);
    let mut user = User { device, far: far.clone(), done, next, now };
    let (mut most, mut block) = (0, 0);
    for _ in 0..24 {
        loop {
            user.submit(|id| BlockRequest::write(id, block * LENGTH, vec![1; LENGTH as usize].into()));
            block = (block + 1) % (BLOCK * BLOCKS / LENGTH);
            if user.answers().is_empty() {
                break;
            }
        }
        most = most.max(user.device.dirty_bytes());
        // They arrive one after the other, as fast as the link carries them.
        let mut under_way = 0;
        let all = std::mem::take(&mut user.far.look().waiting);
        for request in all {
            under_way += LENGTH;
            let late = Duration::from_millis(50).mul_f64((under_way as f64 / carried as f64).max(1.0));
            user.far.look().through.push(request);
            let now = user.now + late;
            user.device.handle_ready(now, &mut user.done);
        }
        user.now = user.now + Duration::from_secs(60);
        user.round_trip();
        user.answers();
    }
    // Who writes nothing any more leaves the memory to others.
    while let Some(at) = user.device.poll_timeout() {
        user.now = user.now.max(at);
        user.device.handle_timeout(user.now, &mut user.done);
    }
    (most, user.device)
}

#[test]
fn more_is_dirty_where_the_path_carries_more_and_memory_is_left() {
    let account =
        |bytes: usize| MemoryAccount::of_process(MemoryBudget { process_bytes: bytes << 20, ..MemoryBudget::DEFAULT });
    let most = |bytes: usize, carried: u64| {
        let (far, account) = (Far::with_blocks(64 << 10), account(bytes));
        let device = WriteBackLayer::new(far.clone()).within(Arc::clone(&account));
        let (most, _idle) = dirty_bytes_at_50_ms(device, &far, carried);
        assert_eq!(account.used(), 0, "a disk without dirty data has none of it");
        most >> 20
    };
    assert_eq!([most(256, u64::MAX), most(40, u64::MAX), most(8, u64::MAX)], [64, 32, 16]);
    assert_eq!(most(256, 4 << 20), 16, "a full link gets no more");
    assert_eq!(most(256, 8 << 20), 64, "it is tried, and taken back");
    let far = Far::new();
    assert_eq!(dirty_bytes_at_50_ms(WriteBackLayer::new(far.clone()), &far, u64::MAX).0, DIRTY_BYTES_MAX);
}

#[test]
fn data_on_its_way_and_lost_data_are_no_hole() {
    let mut user = User::new(WriteBackLayer::new);
    let ask = |user: &mut User<WriteBackLayer<Far>>| user.submit(|id| BlockRequest::map(id, 0, 64 * BLOCK as u32));
    let is_hole = |user: &mut User<WriteBackLayer<Far>>| {
        let answer = user.done.pop().expect("it is answered");
        assert_eq!((answer.op, answer.result), (BlockOp::Map, Ok(())));
        ExtentList::read(&answer.payload, answer.length).unwrap().iter().next().unwrap().is_hole
    };
    ask(&mut user);
    user.round_trip();
    assert!(is_hole(&mut user));
    user.write(1, 7);
    assert_eq!(user.answer(), Ok(None));
    ask(&mut user);
    assert_eq!(user.far.open_requests(), [(BlockOp::Write, 1)], "the write comes first");
    user.round_trip();
    assert_eq!(user.far.open_requests(), [(BlockOp::Map, 0)]);
    user.round_trip();
    assert!(!is_hole(&mut user));

    let mut user = User::new(WriteBackLayer::new);
    user.far.look().fails = true;
    user.write(1, 7);
    user.round_trip();
    assert_eq!(user.answer(), Ok(None));
    ask(&mut user);
    assert!(!is_hole(&mut user) && user.far.open_requests().is_empty(), "a reader has to hear of the loss");
}

#[test]
fn lost_write_fails_one_flush_and_its_place_is_unreadable_until_rewritten() {
    let mut user = User::new(WriteBackLayer::new);
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
    // Until everything lost has been rewritten, no write is answered early.
    for block in [2, 4, 3, 5] {
        user.write(block, 10);
        assert!(user.answers().is_empty());
        user.round_trip();
        assert_eq!((user.answer(), user.flush()), (Ok(None), Ok(None)));
    }
    user.write(2, 11);
    assert_eq!(user.answer(), Ok(None), "at once again");
    // A loss that is rewritten before the next flush does not fail the flush.
    user.round_trip();
    user.far.look().fails = true;
    user.write(7, 1);
    user.round_trip();
    user.far.look().fails = false;
    user.write(7, 2);
    user.round_trip();
    assert_eq!((user.answers(), user.flush()), (vec![Ok(None); 2], Ok(None)));
    // A write that fails before it was answered fails only its own request.
    user.round_trip();
    user.far.look().fails = true;
    user.submit(|id| BlockRequest { is_durable: true, ..BlockRequest::write(id, 0, vec![1; BLOCK as usize].into()) });
    user.round_trip();
    assert_eq!(user.answer(), Err(StoreError::Medium));
}

#[test]
fn shared_device_gets_no_read_ahead_and_no_early_answers() {
    let mut user = User::new(ReadAheadLayer::new);
    let sequence = |user: &mut User<ReadAheadLayer<Far>>, from: u64| {
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
    // The device was reopened, and another user may have had it meanwhile. A read that waited for fetched data is
    // submitted again.
    user.read(1000);
    user.far.look().epoch = Some(2);
    user.device.handle_ready(Instant::ZERO, &mut user.done);
    assert_eq!(user.device.fetched_bytes(), 0);
    user.round_trip();
    user.round_trip();
    assert_eq!(user.answer(), Ok(Some(0)));
}
