//! Byte-granular access to a device of blocks.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockLayer, BlockOp, BlockRequest,
    CompletionQueue, ExtentList, Instant, Payload, PendingBlockRequests, StoreError,
};
use farbus_wire::native::block::{decode_reply, reply_part};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::below::UnderlyingDevice;
use crate::ProtocolViolation;

/// Snapshot kind of [`AnyByteLayer`].
pub const ANY_BYTE_KIND: u16 = 5;

/// A layer that accepts requests at any byte offset. A read that is not aligned to blocks becomes a read of whole
/// blocks. A change that is not aligned reads the blocks at its ends first and writes them back.
///
/// | request | waits for |
/// |---|---|
/// | read, or the question where holes are | nothing |
/// | change of whole blocks | earlier changes of parts of the same blocks |
/// | change of parts of blocks | all earlier changes of the same blocks |
///
/// So a change of one half of a block never undoes a change of the other half, in either order.
#[derive(Debug)]
pub struct AnyByteLayer<D> {
    below: UnderlyingDevice<D>,
    info: BlockInfo,
    block: u64,
    /// Requests that are being carried out, by their job number.
    jobs: BTreeMap<u64, AnyByteJob>,
    /// Changes that wait for other changes.
    waiting: VecDeque<BlockInFlight>,
    next_job: u64,
}

/// A request and its progress.
#[derive(Debug)]
struct AnyByteJob {
    request: BlockInFlight,
    /// The blocks that it touches, as a range of bytes.
    blocks: Range<u64>,
    /// Whether it changes parts of blocks.
    is_partial: bool,
    /// Number of requests to the device below that are not answered yet.
    open: u32,
    /// The old content of the blocks at its two ends.
    ends: [Vec<u8>; 2],
    /// Whether the ends have been read, or need not be.
    is_changing: bool,
    error: Option<StoreError>,
}

/// Request ids below are `job * PARTS + part`.
const PARTS: u64 = 4;
/// Upper limit of job numbers in a snapshot: out of reach of a real count, and far from overflow.
const NUMBER_MAX: u64 = u64::MAX / PARTS / 2;
const FIRST: u64 = 0;
const LAST: u64 = 1;
const WHOLE: u64 = 2;

impl<D: BlockDevice> AnyByteLayer<D> {
    /// A view of `device` with blocks of 1 byte. Its longest request is two blocks shorter than the device's.
    pub fn new(device: D) -> Self {
        let whole = *device.info();
        let block = whole.block_bytes;
        // Alignment adds at most two blocks, less one byte each.
        let request_bytes_max = if block == 1 { whole.request_bytes_max } else { whole.request_bytes_max - 2 * block };
        let info = BlockInfo { block_bytes: 1, request_bytes_max, ..whole };
        let below = UnderlyingDevice::new(device);
        let (jobs, waiting) = (BTreeMap::new(), VecDeque::new());
        Self { info, block: block.into(), below, jobs, waiting, next_job: 0 }
    }

    fn widened(&self, request: &BlockRequest) -> Range<u64> {
        let end = request.offset + u64::from(request.length);
        request.offset / self.block * self.block..end.div_ceil(self.block) * self.block
    }

    fn is_change(request: &BlockRequest) -> bool {
        request.op.is_change()
    }

    fn is_partial(&self, request: &BlockRequest) -> bool {
        // Trimming may be skipped for parts of blocks: such a block keeps its content.
        if request.op == BlockOp::Trim {
            return false;
        }
        let ends_within = !(request.offset + u64::from(request.length)).is_multiple_of(self.block);
        Self::is_change(request) && (!request.offset.is_multiple_of(self.block) || ends_within)
    }

    /// Whether a change may begin, given the jobs that run and the first `before` waiting requests.
    fn may_begin(&self, request: &BlockRequest, before: usize) -> bool {
        let (blocks, is_partial) = (self.widened(request), self.is_partial(request));
        let overlaps = |other: &Range<u64>| other.start < blocks.end && blocks.start < other.end;
        let collides = |other: &BlockRequest, range: &Range<u64>, other_is_partial: bool| {
            Self::is_change(other) && (is_partial || other_is_partial) && overlaps(range)
        };
        !self.jobs.values().any(|job| collides(&job.request, &job.blocks, job.is_partial))
            && !self
                .waiting
                .iter()
                .take(before)
                .any(|other| collides(other, &self.widened(other), self.is_partial(other)))
    }

    fn begin(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let (blocks, is_partial) = (self.widened(&request), self.is_partial(&request));
        let number = self.next_job;
        self.next_job += 1;
        let (first, last) = (blocks.start, blocks.end.saturating_sub(self.block));
        let has_first = is_partial && request.offset != first;
        let end = request.offset + u64::from(request.length);
        // If both ends are in the same block, it is read once.
        let has_last = is_partial && end != blocks.end && !(has_first && first == last);
        let ends = [Vec::new(), Vec::new()];
        let job = AnyByteJob { request, blocks, is_partial, open: 0, ends, is_changing: false, error: None };
        self.jobs.insert(number, job);
        let block = u32::try_from(self.block).expect("a block is small");
        let read = |part, offset| BlockRequest::read(BlockId(number * PARTS + part), offset, block);
        let reads = [has_first.then(|| read(FIRST, first)), has_last.then(|| read(LAST, last))];
        if let Some(job) = self.jobs.get_mut(&number).filter(|_| is_partial) {
            job.open = reads.iter().flatten().count() as u32;
            // The payload waits until the ends have been read, so it must own its memory.
            job.request.own_payload();
            for read in reads.into_iter().flatten() {
                self.submit_below(now, read, done);
            }
        } else {
            self.carry_out(now, number, done);
        }
    }

    /// The ends are known: submits the request itself to the device.
    fn carry_out(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) {
        let job = self.jobs.get_mut(&number).expect("it is carried out");
        job.is_changing = true;
        let Range { start, end } = job.blocks;
        let (op, is_durable) = (job.request.op, job.request.is_durable);
        let id = |part| BlockId(number * PARTS + part);
        let length = |range: &Range<u64>| u32::try_from(range.end - range.start).expect("it is a request's");
        let requests = match op {
            BlockOp::Flush => vec![BlockRequest::flush(id(WHOLE))],
            BlockOp::Read => vec![BlockRequest::read(id(WHOLE), start, length(&(start..end)))],
            BlockOp::Map => {
                // Less than was asked for is told where whole blocks are more than 32 bits can count.
                let count = (end - start).min(u64::from(u32::MAX) / self.block * self.block);
                vec![BlockRequest::map(id(WHOLE), start, count as u32)]
            }
            BlockOp::Trim => {
                let (offset, until) = (job.request.offset, job.request.offset + u64::from(job.request.length));
                let start = offset.next_multiple_of(self.block);
                let whole = start..(until / self.block * self.block).max(start);
                vec![BlockRequest::zero(id(WHOLE), op, start.min(self.info.size_bytes), length(&whole))]
            }
            BlockOp::Write if !job.is_partial => {
                vec![BlockRequest::write(id(WHOLE), start, job.request.take_payload())]
            }
            BlockOp::Write => {
                let mut bytes = vec![0; (end - start) as usize];
                job.put_ends(&mut bytes);
                let from = (job.request.offset - start) as usize;
                job.request.take_payload().copy_to(&mut bytes[from..]);
                vec![BlockRequest::write(id(WHOLE), start, bytes.into())]
            }
            BlockOp::Discard | BlockOp::WriteZeroes => {
                // The partial blocks at the ends are written; the blocks between get the original operation.
                let [first, last] = std::mem::take(&mut job.ends);
                let block = first.len().max(last.len()) as u64;
                let (offset, until) = (job.request.offset, job.request.offset + u64::from(job.request.length));
                let mut requests = Vec::new();
                let mut middle = start..end;
                if !first.is_empty() {
                    requests.push(zeroed(id(FIRST), first, start, offset..until));
                    middle.start += block;
                }
                if !last.is_empty() {
                    requests.push(zeroed(id(LAST), last, end - block, offset..until));
                    middle.end -= block;
                }
                if middle.start < middle.end {
                    requests.push(BlockRequest::zero(id(WHOLE), op, middle.start, length(&middle)));
                }
                requests
            }
        };
        job.open = requests.len() as u32;
        for request in requests {
            self.submit_below(now, BlockRequest { is_durable, ..request }, done);
        }
    }

    fn submit_below(&mut self, now: Instant, request: BlockRequest, done: &mut CompletionQueue<BlockCompletion>) {
        self.below.act(done, |device, done| device.submit(now, request.launch(), done));
    }

    /// Handles what the device has completed and continues the jobs.
    fn collect(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        while let Some(answer) = self.below.pop() {
            let (number, part) = (answer.id.0 / PARTS, answer.id.0 % PARTS);
            let job = self.jobs.get_mut(&number).expect("a device answers what it was asked, once");
            job.open -= 1;
            job.error = job.error.or(answer.result.err());
            done.pool.recycle(answer.spent);
            let mut payload = answer.payload;
            if !job.is_changing {
                job.ends[part as usize] = payload.into_vec();
                if job.open == 0 && job.error.is_none() {
                    self.carry_out(now, number, done);
                    continue;
                }
                payload = Payload::Empty;
            }
            if job.open > 0 {
                continue;
            }
            let job = self.jobs.remove(&number).expect("looked at just now");
            if job.request.op == BlockOp::Read && payload.len() != job.request.length as usize && job.error.is_none() {
                payload.split_front((job.request.offset - job.blocks.start) as usize);
                payload.truncate(job.request.length as usize);
            }
            if job.request.op == BlockOp::Map && job.error.is_none() {
                payload = job.own_extents(&payload).to_payload();
            }
            done.push(match job.error {
                None => job.request.answer(payload),
                Some(error) => job.request.fail(error),
            });
            self.begin_waiting(now, done);
        }
    }

    fn begin_waiting(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let mut at = 0;
        while at < self.waiting.len() {
            if self.may_begin(&self.waiting[at], at) {
                let request = self.waiting.remove(at).expect("it is there");
                self.begin(now, request, done);
            } else {
                at += 1;
            }
        }
    }
}

impl AnyByteJob {
    /// What the device told of the blocks, for the bytes that were asked about.
    fn own_extents(&self, payload: &Payload) -> ExtentList {
        let length = u32::try_from(self.blocks.end - self.blocks.start).unwrap_or(u32::MAX);
        let asked_bytes = u64::from(self.request.length);
        let part = ExtentList::read(payload, length)
            .map(|extents| extents.cut(self.request.offset - self.blocks.start, asked_bytes))
            .filter(|part| part.length() > 0);
        part.unwrap_or_else(|| ExtentList::data(asked_bytes))
    }

    /// Copies the saved end blocks into `bytes`, which covers all blocks of the job.
    fn put_ends(&mut self, bytes: &mut [u8]) {
        let [first, last] = std::mem::take(&mut self.ends);
        bytes[..first.len()].copy_from_slice(&first);
        let from = bytes.len() - last.len();
        bytes[from..].copy_from_slice(&last);
    }
}

/// A write of the block `bytes`, read at `at`, with zeros inside `range`.
fn zeroed(id: BlockId, mut bytes: Vec<u8>, at: u64, range: Range<u64>) -> BlockRequest {
    let from = range.start.saturating_sub(at) as usize;
    let to = (range.end - at).min(bytes.len() as u64) as usize;
    bytes[from..to].fill(0);
    BlockRequest::write(id, at, bytes.into())
}

impl<D: BlockDevice> BlockLayer for AnyByteLayer<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.below.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.below.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        if self.block == 1 {
            return act(&mut self.below.device, done);
        }
        let result = self.below.act(done, act);
        self.collect(now, done);
        // Changes that an answer allowed to begin are sent in the same turn.
        self.below.act(done, |device, done| device.end_turn(now, done));
        self.collect(now, done);
        result
    }

    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if self.block == 1 {
            return self.below.device.submit(now, request, done);
        }
        if let Err(error) = self.info.check(&request) {
            done.push(request.fail(error));
        } else if request.length == 0 && request.op != BlockOp::Flush {
            done.push(request.answer(Payload::Empty));
        } else if Self::is_change(&request) && !self.may_begin(&request, self.waiting.len()) {
            request.own_payload();
            self.waiting.push_back(request);
        } else {
            self.begin(now, request, done);
            self.collect(now, done);
        }
    }

    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut to = SnapshotWriter::new(ANY_BYTE_KIND);
        to.bytes(&self.below.device.save(now)?);
        to.u64(self.next_job);
        to.count(self.jobs.len());
        for (number, job) in &self.jobs {
            to.u64(*number);
            to.block_request(&job.request);
            to.flag(job.is_changing);
            job.ends.iter().for_each(|end| to.bytes(end));
            to.flag(job.error.is_some());
            if let Some(error) = job.error {
                to.bytes(&reply_part(error));
            }
        }
        to.count(self.waiting.len());
        self.waiting.iter().for_each(|request| to.block_request(request));
        Some(to.into_bytes())
    }

    fn leave(&mut self) {
        self.below.device.leave();
        std::mem::take(&mut self.jobs).into_values().for_each(|job| drop(job.request.recall()));
        self.waiting.drain(..).for_each(|request| drop(request.recall()));
    }
}

/// The jobs and waiting requests of a snapshot.
struct AnyByteSnapshot {
    next_job: u64,
    jobs: Vec<SavedAnyByteJob>,
    waiting: Vec<BlockRequest>,
}

struct SavedAnyByteJob {
    number: u64,
    request: BlockRequest,
    is_changing: bool,
    ends: [Vec<u8>; 2],
    error: Option<StoreError>,
}

impl AnyByteSnapshot {
    fn read(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let next_job = from.u64("next number")?;
        if next_job > NUMBER_MAX {
            return Err(ProtocolViolation::new("next number", next_job, "it is beyond every number of a job"));
        }
        let mut saved = Self { next_job, jobs: Vec::new(), waiting: Vec::new() };
        for _ in 0..from.count("requests carried out", 40)? {
            let number = from.u64("number")?;
            if number >= saved.next_job || saved.jobs.last().is_some_and(|last: &SavedAnyByteJob| last.number >= number)
            {
                return Err(ProtocolViolation::new("number", number, "they are in order, below the next"));
            }
            let request = from.block_request()?;
            let is_changing = from.flag("changing")?;
            let ends = [from.bytes("first block")?.to_vec(), from.bytes("last block")?.to_vec()];
            let error = if from.flag("failed")? { Some(decode_reply(from.bytes("failure")?)?) } else { None };
            saved.jobs.push(SavedAnyByteJob { number, request, is_changing, ends, error });
        }
        for _ in 0..from.count("requests that wait", 26)? {
            saved.waiting.push(from.block_request()?);
        }
        Ok(saved)
    }
}

/// The rule that a job of a snapshot breaks, if any.
type SavedJobCheck = Result<(), &'static str>;

impl<D: BlockDevice> AnyByteLayer<D> {
    /// Restores the layer from a snapshot. `device` restores the device below from the first part of the bytes and
    /// returns the requests that it has in flight. Returns the layer with the requests that it has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore<E: From<ProtocolViolation>>(
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8]) -> Result<(D, PendingBlockRequests), E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        let bytes = from.bytes("device")?;
        let AnyByteSnapshot { next_job, jobs, waiting } = AnyByteSnapshot::read(from)?;
        let (device, below) = device(bytes)?;
        let mut this = Self { next_job, ..Self::new(device) };
        let mut pending = PendingBlockRequests::new();
        let checked = this.check_saved(&jobs, &waiting, &below, &mut pending);
        if let Err(reject) = checked {
            this.below.device.leave();
            return Err(reject.into());
        }
        for SavedAnyByteJob { number, request, is_changing, ends, error } in jobs {
            let (blocks, is_partial) = (this.widened(&request), this.is_partial(&request));
            let open = below.range(BlockId(number * PARTS)..BlockId((number + 1) * PARTS)).count() as u32;
            let request = request.launch();
            this.jobs.insert(number, AnyByteJob { request, blocks, is_partial, open, ends, is_changing, error });
        }
        this.waiting = waiting.into_iter().map(BlockRequest::launch).collect();
        Ok((this, pending))
    }

    fn check_saved(
        &self,
        jobs: &[SavedAnyByteJob],
        waiting: &[BlockRequest],
        below: &PendingBlockRequests,
        pending: &mut PendingBlockRequests,
    ) -> Result<(), ProtocolViolation> {
        for request in jobs.iter().map(|job| &job.request).chain(waiting) {
            let wrong = |rule| ProtocolViolation::new("request", request.id.0, rule);
            // The data of a write may be with the device already.
            let bare = BlockRequest { payload: vec![0; request.payload.len()].into(), ..request.clone() };
            let whole = BlockRequest { payload: Payload::Empty, op: BlockOp::Discard, ..bare };
            let is_writing = !matches!(request.op, BlockOp::Read | BlockOp::Flush | BlockOp::Map);
            let is_right = if is_writing { self.info.check(&whole).is_ok() } else { self.info.check(request).is_ok() };
            let is_empty = request.length == 0 && request.op != BlockOp::Flush;
            if !is_right || is_empty || pending.contains_key(&request.id) {
                return Err(wrong("it is one that this device can have, once"));
            }
            pending.insert(request.id, (request.op, request.offset, request.length));
        }
        let has_data =
            |request: &BlockRequest| request.op != BlockOp::Write || request.payload.len() == request.length as usize;
        if let Some(request) = waiting.iter().find(|request| !Self::is_change(request) || !has_data(request)) {
            return Err(ProtocolViolation::new("request", request.id.0, "changes wait, and have what they write"));
        }
        let mut known = 0;
        for job in jobs {
            let parts = below.range(BlockId(job.number * PARTS)..BlockId((job.number + 1) * PARTS));
            known += parts.clone().count();
            let is_right = self.check_job(job, parts.map(|(id, what)| (id.0 % PARTS, *what)).collect());
            is_right.map_err(|rule| ProtocolViolation::new("request", job.request.id.0, rule))?;
            if !job.is_changing && !has_data(&job.request) {
                return Err(ProtocolViolation::new("request", job.request.id.0, "it has what it is to write"));
            }
        }
        match known == below.len() {
            true => Ok(()),
            false => {
                Err(ProtocolViolation::new("requests", below.len() as u64, "the device below was asked for these"))
            }
        }
    }

    fn check_job(&self, job: &SavedAnyByteJob, parts: Vec<(u64, (BlockOp, u64, u32))>) -> SavedJobCheck {
        let (blocks, is_partial) = (self.widened(&job.request), self.is_partial(&job.request));
        if parts.is_empty() {
            return Err("somebody is to answer it");
        }
        if job.is_changing {
            // The change itself is with the device: the old content of the ends is not needed any more.
            let is_own = |op| op == job.request.op || (is_partial && op == BlockOp::Write);
            let is_read_whole =
                |offset, length| (offset, u64::from(length)) == (blocks.start, blocks.end - blocks.start);
            let is_right = parts.iter().all(|(_, (op, offset, length))| {
                is_own(*op) && (*op != BlockOp::Read || is_read_whole(*offset, *length))
            });
            return if is_right { Ok(()) } else { Err("what is below carries it out") };
        }
        let (first, last) = (blocks.start, blocks.end.saturating_sub(self.block));
        let is_end = |part, offset| (part == FIRST && offset == first) || (part == LAST && offset == last);
        let is_read = |(part, (op, offset, length)): &(u64, (BlockOp, u64, u32))| {
            *op == BlockOp::Read && u64::from(*length) == self.block && is_end(*part, *offset)
        };
        let are_blocks = job.ends.iter().all(|end| end.is_empty() || end.len() as u64 == self.block);
        if !is_partial || !parts.iter().all(is_read) || !are_blocks {
            return Err("its ends are being read");
        }
        // Each end that is needed has either been read or is being read, not both.
        let end = job.request.offset + u64::from(job.request.length);
        let has_first = job.request.offset != first;
        let has_last = end != blocks.end && !(has_first && first == last);
        let is_there = |at: usize, part| {
            usize::from(!job.ends[at].is_empty()) + parts.iter().filter(|(known, _)| *known == part).count()
        };
        let is_right = job.error.is_some()
            || (is_there(0, FIRST) == usize::from(has_first) && is_there(1, LAST) == usize::from(has_last));
        if is_right { Ok(()) } else { Err("each of its ends is read once") }
    }
}

impl<D: BlockDevice> AnyByteLayer<D> {}
