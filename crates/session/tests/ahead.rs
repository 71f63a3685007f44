//! Read-ahead: a read is never answered with data older than the last answered change, and sequential reads take few
//! round trips.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::budget::{MemoryAccount, MemoryBudget};
use farbus_model::limits::FETCHED_TIME_MAX;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, Instant, StoreDevice, StoreError,
};
use farbus_session::block::ReadAheadLayer;
use proptest::prelude::*;

const BLOCK: usize = 4096;

/// A device whose answers wait until they are let through.
#[derive(Clone)]
struct Far(Arc<Mutex<State>>);

struct State {
    store: StoreDevice<MemoryStore>,
    waiting: Vec<BlockInFlight>,
    arriving: Vec<BlockInFlight>,
    requests: usize,
    fails_from: u64,
}

struct Near(Far, BlockInfo);

impl Far {
    fn new(bytes: usize) -> (Self, ReadAheadLayer<Near>) {
        let store = StoreDevice::new(MemoryStore::new(vec![0; bytes])).with_blocks(BLOCK as u32);
        let info = *store.info();
        let state = State { store, waiting: Vec::new(), arriving: Vec::new(), requests: 0, fails_from: u64::MAX };
        let far = Self(Arc::new(Mutex::new(state)));
        (far.clone(), ReadAheadLayer::new(Near(far, info)))
    }

    fn look(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Carries out the request at this position; its answer arrives when the device is polled.
    fn carry_out(&self, at: usize) {
        let mut state = self.look();
        let request = state.waiting.remove(at);
        state.arriving.push(request);
    }
}

impl BlockDevice for Near {
    fn info(&self) -> &BlockInfo {
        &self.1
    }

    fn submit(&mut self, _: Instant, mut request: BlockInFlight, _: &mut CompletionQueue<BlockCompletion>) {
        assert_eq!(self.1.check(&request), Ok(()), "it is asked for what it has");
        request.own_payload();
        let mut state = self.0.look();
        state.requests += 1;
        state.waiting.push(request);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let mut state = self.0.look();
        for request in std::mem::take(&mut state.arriving) {
            let end = request.offset + u64::from(request.length);
            if end > state.fails_from {
                done.push(request.fail(StoreError::Medium));
            } else {
                state.store.submit(now, request, done);
            }
        }
    }

    fn epoch(&self) -> Option<u64> {
        Some(0)
    }
}

struct User {
    far: Far,
    device: ReadAheadLayer<Near>,
    done: CompletionQueue<BlockCompletion>,
    next: u64,
    now: Instant,
}

impl User {
    fn new(bytes: usize) -> Self {
        let (far, device) = Far::new(bytes);
        Self { far, device, done: CompletionQueue::new(BufferPool::new(1 << 20)), next: 0, now: Instant::ZERO }
    }

    fn submit(&mut self, request: impl FnOnce(BlockId) -> BlockRequest) -> BlockId {
        self.next += 1;
        // Ids may have any value, including the largest.
        let id = BlockId(self.next.wrapping_neg());
        self.device.submit(self.now, request(id).launch(), &mut self.done);
        id
    }

    fn read(&mut self, offset: usize, length: usize) -> BlockId {
        self.submit(|id| BlockRequest::read(id, offset as u64, length as u32))
    }

    /// Carries out everything requested so far, and delivers the answers: one round trip.
    fn round_trip(&mut self) {
        let waiting = self.far.look().waiting.len();
        (0..waiting).for_each(|_| self.far.carry_out(0));
        self.device.handle_ready(Instant::ZERO, &mut self.done);
    }

    fn answers(&mut self) -> Vec<BlockCompletion> {
        std::iter::from_fn(|| self.done.pop()).collect()
    }
}

#[test]
fn sequential_reads_take_few_round_trips() {
    const READ: usize = 128 << 10;
    let mut user = User::new(64 << 20);
    let (mut round_trips, mut reads) = (0, 0);
    for at in (0..64 << 20).step_by(READ) {
        let id = user.read(at, READ);
        let mut answers = user.answers();
        while answers.is_empty() {
            user.round_trip();
            round_trips += 1;
            answers = user.answers();
        }
        assert_eq!((answers.len(), answers[0].id, answers[0].payload.len()), (1, id, READ));
        reads += 1;
        assert!(user.device.fetched_bytes() <= (16 << 20) + 2 * (256 << 10), "bounded");
    }
    assert_eq!(reads, 512);
    assert!(round_trips < 12, "{round_trips} round trips for {reads} reads, one after the other");
}

/// Most bytes fetched ahead of a user who reads `bytes` in order.
fn most_fetched(user: &mut User, bytes: usize) -> usize {
    const READ: usize = 1 << 20;
    let mut most = 0;
    for at in (0..bytes).step_by(READ) {
        user.read(at, READ);
        while user.answers().is_empty() {
            user.round_trip();
        }
        most = most.max(user.device.fetched_bytes() as usize);
    }
    most
}

#[test]
fn window_grows_as_far_as_the_memory_of_all_windows_allows() {
    const SIZE: usize = 192 << 20;
    let read = |account: &Arc<MemoryAccount>| {
        let (far, device) = Far::new(SIZE);
        let device = device.within(Arc::clone(account));
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut user = User { far, device, done, next: 0, now: Instant::ZERO };
        let most = most_fetched(&mut user, SIZE);
        (user, most >> 20)
    };
    let account = MemoryAccount::of_process(MemoryBudget { process_bytes: 70 << 20, ..MemoryBudget::DEFAULT });
    let (mut first, most) = read(&account);
    assert_eq!((most, account.used()), (64, 48 << 20));
    assert_eq!(read(&account).1, 32, "there is less left");
    assert_eq!(account.used(), 48 << 20, "a layer gives back what it took");
    // A stream that nobody reads any more gives it back, too.
    first.now = first.now + 2 * FETCHED_TIME_MAX;
    first.device.handle_timeout(first.now, &mut first.done);
    assert_eq!(account.used(), 0);
}

#[test]
fn a_reader_of_large_blocks_begins_with_four_of_them_and_is_followed_from_the_second() {
    for (length, ahead) in [(128 << 10, 512 << 10), (1 << 20, 4 << 20), (8 << 20, 4 << 20)] {
        let mut user = User::new(64 << 20);
        for at in 0..2 {
            user.read(at * length, length);
            assert_eq!(user.device.fetched_bytes() > 0, at == 1);
            user.round_trip();
        }
        let fetched = user.device.fetched_bytes() as usize;
        assert!((ahead..=ahead + length + (512 << 10)).contains(&fetched), "{length}: {fetched}");
    }
}

#[test]
fn data_fetched_long_ago_is_fetched_again() {
    let mut user = User::new(1 << 20);
    let read = |user: &mut User, at: usize| {
        let id = user.read(at * BLOCK, BLOCK);
        let waiting = user.far.look().waiting.len();
        if waiting > 0 {
            user.round_trip();
        }
        assert_eq!(user.answers().iter().map(|answer| answer.id).collect::<Vec<_>>(), [id]);
        waiting
    };
    (0..3).for_each(|at| assert!(read(&mut user, at) > 0));
    (3..5).for_each(|at| assert_eq!(read(&mut user, at), 0, "it was here"));
    user.now = user.now + (FETCHED_TIME_MAX - Duration::from_nanos(1));
    assert_eq!(read(&mut user, 5), 0, "and it is still true");
    user.now = user.now + Duration::from_nanos(1);
    assert_eq!(read(&mut user, 6), 1, "others may have written since");
    user.now = user.now + FETCHED_TIME_MAX / 2;
    (7..10).for_each(|at| assert!(read(&mut user, at) > 0));
    (10..12).for_each(|at| assert_eq!(read(&mut user, at), 0, "it is fetched anew"));
}

#[test]
fn data_that_nobody_reads_any_more_is_dropped_when_it_is_too_old() {
    let mut user = User::new(1 << 20);
    for at in 0..5 {
        user.read(at * BLOCK, BLOCK);
        user.round_trip();
    }
    assert!(user.device.fetched_bytes() > 0);
    assert_eq!(user.device.poll_timeout(), Some(user.now + FETCHED_TIME_MAX));
    user.now = user.now + (FETCHED_TIME_MAX - Duration::from_nanos(1));
    user.device.handle_timeout(user.now, &mut user.done);
    assert!(user.device.fetched_bytes() > 0, "it can still answer a read");
    user.now = user.now + Duration::from_nanos(1);
    user.device.handle_timeout(user.now, &mut user.done);
    assert_eq!((user.device.fetched_bytes(), user.device.poll_timeout()), (0, None));
}

#[test]
fn a_path_without_delay_gets_a_small_window() {
    // 1 GB/s: a piece takes 0.25 ms alone, and behind all others of its window as many times longer.
    const READ: usize = 128 << 10;
    let mut user = User::new(64 << 20);
    let mut most = 0;
    for at in (0..64 << 20).step_by(READ) {
        user.read(at, READ);
        // Each time that the reader waits, one answer arrives.
        while user.answers().is_empty() {
            user.now = user.now + Duration::from_micros(250);
            user.far.carry_out(0);
            user.device.handle_ready(user.now, &mut user.done);
        }
        most = most.max(user.device.fetched_bytes());
    }
    assert!(most <= 8 << 20, "{most} bytes were fetched ahead, where the link carries 1 MB in 1 ms");
}

#[test]
fn four_sequential_readers_are_followed_and_random_reads_are_not() {
    let mut user = User::new(64 << 20);
    for step in 0..40 {
        for reader in 0..4 {
            user.read((reader << 24) + step * (64 << 10), 64 << 10);
            user.round_trip();
        }
    }
    let answers = user.answers().len();
    assert_eq!(answers, 160);
    let requests = user.far.look().requests;
    assert!(requests < 110, "{requests} requests for 160 reads: pieces are larger than they are");

    // Random reads: each is submitted unchanged, and nothing else is.
    let mut user = User::new(64 << 20);
    let mut at = 7;
    for _ in 0..300 {
        at = (at * 1_103_515_245 + 12345) % (16 << 10);
        user.read(at * BLOCK / BLOCK * BLOCK, BLOCK);
        user.round_trip();
    }
    assert_eq!((user.answers().len(), user.far.look().requests), (300, 300));
    assert_eq!(user.device.fetched_bytes(), 0);
}

#[test]
fn reads_reach_the_last_block_and_errors_belong_to_their_own_read() {
    let mut user = User::new((1 << 20) + 3 * BLOCK);
    for at in (0..1 << 20).step_by(64 << 10) {
        user.read(at, 64 << 10);
        user.round_trip();
    }
    user.read(1 << 20, 3 * BLOCK);
    user.round_trip();
    assert!(user.answers().iter().all(|answer| answer.result.is_ok()));

    let mut user = User::new(4 << 20);
    user.far.look().fails_from = 1 << 20;
    for at in (0..2 << 20).step_by(64 << 10) {
        user.read(at, 64 << 10);
        while !user.far.look().waiting.is_empty() {
            user.round_trip();
        }
    }
    let answers = user.answers();
    assert_eq!(answers.len(), 32);
    for answer in answers {
        let is_bad = answer.offset + u64::from(answer.length) > 1 << 20;
        assert_eq!(answer.result, if is_bad { Err(StoreError::Medium) } else { Ok(()) }, "at {}", answer.offset);
    }
}

/// An action of a user.
#[derive(Clone, Debug)]
enum Act {
    /// The next sequential read of one of a few readers.
    Next(usize, usize),
    Read(usize, usize),
    Change(usize, usize, bool),
    Flush,
    Arrive(prop::sample::Index),
    Hear,
}

const BLOCKS: usize = 512;

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..3usize, 1..9usize).prop_map(|(reader, blocks)| Act::Next(reader, blocks)),
        1 => (0..BLOCKS, 1..9usize).prop_map(|(at, blocks)| Act::Read(at, blocks)),
        4 => (0..BLOCKS, 1..33usize, prop::bool::weighted(0.2)).prop_map(|(at, blocks, zero)| Act::Change(at, blocks, zero)),
        1 => Just(Act::Flush),
        24 => any::<prop::sample::Index>().prop_map(Act::Arrive),
        12 => Just(Act::Hear),
    ]
}

/// Versions of a block: the latest requested and the latest answered.
#[derive(Clone, Copy, Default)]
struct Version {
    requested: u64,
    answered: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn reads_are_never_older_than_the_last_answered_change(acts in prop::collection::vec(acts(), 1..600)) {
        let mut user = User::new(BLOCKS * BLOCK);
        let mut versions = [Version::default(); BLOCKS];
        let mut readers = [0usize, 100, 101];
        // For each read, its place and the least version of each block; for each change, its place and version.
        let mut reads: BTreeMap<BlockId, (usize, Vec<u64>)> = BTreeMap::new();
        let mut changes: BTreeMap<BlockId, (usize, usize, u64)> = BTreeMap::new();
        let mut flushes = 0;
        let mut stamp = 0u64;
        for act in acts.into_iter().chain(std::iter::repeat_n(Act::Hear, 1)) {
            let read = match act {
                Act::Next(reader, blocks) => {
                    let at = readers[reader] % BLOCKS;
                    readers[reader] = at + blocks;
                    Some((at, blocks))
                }
                Act::Read(at, blocks) => Some((at, blocks)),
                Act::Change(at, blocks, is_zero) => {
                    let blocks = blocks.min(BLOCKS - at);
                    // Two concurrent changes of one place have no order.
                    if changes.values().all(|(from, many, _)| at + blocks <= *from || from + many <= at) {
                        stamp += 1;
                        let version = if is_zero { 0 } else { stamp };
                        let data: Vec<u8> = version.to_le_bytes().repeat(blocks * BLOCK / 8);
                        let id = match is_zero {
                            true => user.submit(|id| BlockRequest::zero(id, BlockOp::WriteZeroes, (at * BLOCK) as u64, (blocks * BLOCK) as u32)),
                            false => user.submit(|id| BlockRequest::write(id, (at * BLOCK) as u64, data.into())),
                        };
                        // Zeros carry no version in their data: they count by when they were submitted.
                        versions[at..at + blocks].iter_mut().for_each(|v| v.requested = stamp);
                        changes.insert(id, (at, blocks, stamp));
                    }
                    None
                }
                Act::Flush => {
                    flushes += 1;
                    user.submit(BlockRequest::flush);
                    None
                }
                Act::Arrive(which) => {
                    let waiting = user.far.look().waiting.len();
                    if waiting > 0 {
                        user.far.carry_out(which.index(waiting));
                    }
                    None
                }
                Act::Hear => {
                    user.device.handle_ready(Instant::ZERO, &mut user.done);
                    None
                }
            };
            if let Some((at, blocks)) = read {
                let blocks = blocks.min(BLOCKS - at);
                let answered = versions[at..at + blocks].iter().map(|v| v.answered).collect();
                let id = user.read(at * BLOCK, blocks * BLOCK);
                reads.insert(id, (at, answered));
            }
            while let Some(answer) = user.done.pop() {
                prop_assert_eq!(answer.result, Ok(()));
                if let Some((at, known)) = reads.remove(&answer.id) {
                    let data = answer.payload.contiguous();
                    prop_assert_eq!(data.len(), known.len() * BLOCK);
                    for (n, (block, not_older)) in data.chunks(BLOCK).zip(known).enumerate() {
                        let version = u64::from_le_bytes(block[..8].try_into().unwrap());
                        prop_assert!(block.chunks(8).all(|word| word == &block[..8]), "a block is of one version");
                        let is_old = version != 0 && version < not_older;
                        prop_assert!(!is_old, "block {} is {} and was {} before it was asked for", at + n, version, not_older);
                        prop_assert!(version <= versions[at + n].requested);
                    }
                } else if let Some((at, blocks, version)) = changes.remove(&answer.id) {
                    versions[at..at + blocks].iter_mut().for_each(|v| v.answered = version);
                } else {
                    prop_assert_eq!(answer.op, BlockOp::Flush);
                    flushes -= 1;
                }
            }
        }
        while !user.far.look().waiting.is_empty() {
            user.round_trip();
        }
        let rest = user.answers().len();
        prop_assert_eq!(rest, reads.len() + changes.len() + flushes, "each is answered, once");
    }
}
