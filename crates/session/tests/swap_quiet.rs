//! How long a user's requests wait while a disk is exchanged for another one: in simulated time, with devices that
//! answer after a round trip and carry out so many bytes a second.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, BufferPool,
    CompletionQueue, Instant, Payload, StoreError,
};
use farbus_session::block::swap::{SwapOptions, SwapPhase};
use farbus_session::block::{DeviceSwapAction, SwappableDevice};

const BLOCK: u32 = 4096;
const SIZE: u64 = 8 << 20;
/// Requests that are pending all the time.
const PENDING: usize = 30;

/// A disk that carries out one request after the other and answers it a round trip later.
#[derive(Debug)]
struct Far {
    bytes: Vec<u8>,
    info: BlockInfo,
    round_trip: Duration,
    bytes_per_s: u64,
    free: Instant,
    queue: VecDeque<(Instant, BlockInFlight)>,
}

impl Far {
    fn new(bytes: Vec<u8>, round_trip: Duration, bytes_per_s: u64) -> Self {
        let info = BlockInfo {
            size_bytes: SIZE,
            block_bytes: 512,
            preferred_bytes: BLOCK,
            request_bytes_max: 1 << 20,
            is_read_only: false,
            trims: false,
        };
        Self { bytes, info, round_trip, bytes_per_s, free: Instant::ZERO, queue: VecDeque::new() }
    }

    fn carry_out(&mut self, request: BlockInFlight) -> BlockCompletion {
        let range = request.offset as usize..request.offset as usize + request.length as usize;
        match request.op {
            BlockOp::Read => request.answer(Payload::from(self.bytes[range].to_vec())),
            BlockOp::Map => request.fail(StoreError::Medium),
            BlockOp::Flush => request.answer(Payload::Empty),
            BlockOp::Write => {
                self.bytes[range].copy_from_slice(&request.payload.contiguous());
                request.answer(Payload::Empty)
            }
            BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => {
                self.bytes[range].fill(0);
                request.answer(Payload::Empty)
            }
        }
    }
}

impl BlockDevice for Far {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, _: &mut CompletionQueue<BlockCompletion>) {
        request.own_payload();
        let bytes = u64::from(request.length) * u64::from(matches!(request.op, BlockOp::Read | BlockOp::Write));
        self.free = self.free.max(now) + Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_s);
        self.queue.push_back((self.free + self.round_trip, request));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.queue.front().map(|(at, _)| *at)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        while self.queue.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, request)) = self.queue.pop_front() else { return };
            done.push(self.carry_out(request));
        }
    }

    fn epoch(&self) -> Option<u64> {
        Some(0)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.queue.drain(..).for_each(|(_, request)| drop(request.recall()));
    }
}

/// What a user with [`PENDING`] requests sees from the moment when changes go to both disks.
#[derive(Debug, Default)]
struct Seen {
    /// The longest time between two answers.
    quiet: Duration,
    /// The longest that one request took.
    latency: Duration,
    answers: u64,
    /// Answers between that moment and the end of the swap.
    switching: u64,
}

/// Keeps so many requests pending until the swap has ended, if there is one, and at least so many answers came.
fn work(round_trip: Duration, swaps: bool, answers_min: u64) -> Seen {
    let content: Vec<u8> = (0..SIZE).map(|at| (at / 512) as u8 | 1).collect();
    let mut disk = SwappableDevice::new(Far::new(content, round_trip, 100_000_000));
    let mut done = CompletionQueue::new(BufferPool::new(1 << 20));
    let mut now = Instant::ZERO;
    if swaps {
        let near = Far::new(vec![0; SIZE as usize], Duration::from_micros(50), 400_000_000);
        disk.begin(now, near, None, SwapOptions::default()).map_err(|(error, _)| error).unwrap();
    }
    let (mut seen, mut since) = (Seen::default(), std::collections::BTreeMap::new());
    let (mut random, mut last, mut next, mut is_swapped) = (1u64, now, 0, !swaps);
    loop {
        let wants_more = !is_swapped || seen.answers < answers_min;
        while wants_more && since.len() < PENDING {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (random >> 33) % (SIZE / u64::from(BLOCK)) * u64::from(BLOCK);
            let request = match random >> 20 & 1 {
                0 => BlockRequest::read(BlockId(next), offset, BLOCK),
                _ => BlockRequest::write(BlockId(next), offset, Payload::from(vec![next as u8 | 1; BLOCK as usize])),
            };
            since.insert(next, now);
            next += 1;
            disk.submit(now, request.launch(), &mut done);
        }
        disk.end_turn(now, &mut done);
        while let Some(work) = disk.poll_work() {
            match work {
                DeviceSwapAction::Note(_) => disk.handle_noted(now, Ok(()), &mut done),
                DeviceSwapAction::Release(device) => drop(device),
                DeviceSwapAction::Ended(result) => {
                    result.unwrap();
                    is_swapped = true;
                }
            }
        }
        while let Some(answer) = done.pop() {
            answer.result.unwrap();
            let asked_at = since.remove(&answer.id.0).expect("each is answered once");
            let phase = disk.progress(now).map(|progress| progress.phase);
            // Before the switch, requests share the disk with what is copied, whose rate its owner chooses.
            if !matches!(phase, Some(SwapPhase::Beginning | SwapPhase::Copying | SwapPhase::Flushing)) {
                (seen.latency, seen.quiet) = (seen.latency.max(now - asked_at), seen.quiet.max(now - last));
                seen.switching += u64::from(phase.is_some());
            }
            (last, seen.answers) = (now, seen.answers + 1);
        }
        if since.is_empty() && !wants_more {
            return seen;
        }
        now = now.max(disk.poll_timeout().expect("something is pending"));
        disk.handle_timeout(now, &mut done);
    }
}

#[test]
fn a_user_with_30_pending_requests_is_quiet_for_at_most_1_2_times_draining_and_a_round_trip() {
    for round_trip in [Duration::from_micros(200), Duration::from_millis(5), Duration::from_millis(40)] {
        // What 30 pending requests take to be answered when nothing comes behind them.
        let draining = work(round_trip, false, 2000).latency;
        let Seen { quiet, latency, switching, .. } = work(round_trip, true, 2000);
        println!("round trip {round_trip:?}: draining {draining:?}, quiet {quiet:?}, longest request {latency:?}");
        assert!(switching > 0, "requests are pending during the switch");
        assert!(quiet <= draining * 6 / 5 + round_trip, "quiet {quiet:?}; draining {draining:?} + {round_trip:?}");
    }
}
