//! Write-back: a far device's writes are answered early and made durable by a flush.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::budget::MemoryAccount;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockLayer, BlockOp, BlockRequest,
    CompletionQueue, Instant, Payload, PendingBlockRequests, StoreError,
};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::below::UnderlyingDevice;
use super::rising::RisingMap;
use super::window::{FlightWindow, PathPace, WINDOW_BYTES_OWN};
use crate::ProtocolViolation;

/// Snapshot kind of [`WriteBackLayer`].
pub const BEHIND_KIND: u16 = 9;

/// Bytes that may be answered but not yet written at first: 160 MB/s over 100 ms. They become more where the path
/// carries more (`FlightWindow`).
pub const DIRTY_BYTES_MIN: u64 = WINDOW_BYTES_OWN;
/// Most writes that are answered but not yet written: half of what an exporter accepts at a time.
pub const DIRTY_WRITES_MAX: usize = 512;
/// After so long without anything dirty a window that took memory gives it back to those of other disks.
const IDLE_TIME_MAX: Duration = Duration::from_secs(4);
/// Lost ranges that are kept separately; beyond that, everything between the first and the last counts as lost.
const LOST_MAX: usize = 64;

/// A layer that gives a far device a volatile write cache, for users who flush what must be durable (requirement U9).
///
/// A write goes to the device at once and is answered at once: the layer hides the round trip and delays nothing.
///
/// | request | what happens |
/// |---|---|
/// | a write without FUA | goes to the device and is answered; beyond the window or [`DIRTY_WRITES_MAX`] answered when there is room; while others use the device ([`BlockDevice::epoch`]) answered when it completes |
/// | a write with FUA, zeros, a discard | goes to the device, answered when the device answers |
/// | a flush | waits until every earlier write has completed, then goes to the device, answered when the device answers |
/// | a read of data not yet written | answered with that data, or waits for the write |
/// | a change of a place not yet written, or the question where its holes are | waits for the write, so that writes take effect in the order of their answers |
///
/// A write that fails after it was answered is **lost**. The next flush fails, once
/// ([`Losses`](farbus_model::LossCounter) tells each user), unless everything lost has been rewritten by then. Every
/// read of that place fails until it has been rewritten, so no read returns the old content. Until then no write is
/// answered early.
#[derive(Debug)]
pub struct WriteBackLayer<D> {
    below: UnderlyingDevice<D>,
    /// Requests that are not complete, by their number, in the order of their submission.
    jobs: RisingMap<WriteBackJob>,
    next_number: u64,
    dirty_bytes: u64,
    dirty_writes: usize,
    /// How many bytes may be dirty, and how long writes take.
    window: FlightWindow,
    pace: PathPace,
    /// What a window takes memory from that is larger than it may always be.
    account: Option<Arc<MemoryAccount>>,
    /// When the window gives that memory back, because nothing has been dirty for so long.
    shrinks_at: Option<Instant>,
    /// The last write that was answered early.
    last_early: u64,
    /// No write with a smaller number is owed an answer that it may get early.
    owed_from: u64,
    /// Number of requests that wait for others.
    waiting: usize,
    /// Ranges whose writes were lost, disjoint and in order.
    lost: Vec<Range<u64>>,
    /// How many writes were lost.
    losses: u64,
    /// Whether no flush has reported the loss yet.
    is_untold: bool,
}

#[derive(Debug)]
struct WriteBackJob {
    /// The request without its data.
    request: BlockRequest,
    /// `None`: it was answered.
    owed: Option<BlockInFlight>,
    /// The data of a write until the device has it; reads are answered from it. A snapshot leaves it out for writes
    /// that the device below holds.
    data: Payload,
    is_below: bool,
    /// When it went to the device; `None`: not yet, or another process submitted it.
    begun_at: Option<Instant>,
}

impl WriteBackJob {
    fn range(&self) -> Range<u64> {
        self.request.offset..self.request.offset + u64::from(self.request.length)
    }

    /// Whether it may be answered before it completes.
    fn is_early(&self) -> bool {
        self.request.op == BlockOp::Write && !self.request.is_durable
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What a request can do now.
enum WriteBackAction {
    /// It goes to the device.
    Go,
    /// It waits for others.
    Wait,
    /// It is answered with these bytes.
    Read(Payload),
    /// It is about a place whose write was lost.
    Lost,
}

impl<D: BlockDevice> WriteBackLayer<D> {
    /// Wraps `device`. Its users must flush what is to be durable.
    pub fn new(device: D) -> Self {
        Self {
            below: UnderlyingDevice::new(device),
            jobs: RisingMap::default(),
            next_number: 0,
            dirty_bytes: 0,
            dirty_writes: 0,
            window: FlightWindow::new(DIRTY_BYTES_MIN),
            pace: PathPace::UNKNOWN,
            account: None,
            shrinks_at: None,
            last_early: 0,
            owed_from: 0,
            waiting: 0,
            lost: Vec::new(),
            losses: 0,
            is_untold: false,
        }
    }

    /// As `new`: the window may become larger than [`WINDOW_BYTES_OWN`], and takes what is more from this account.
    #[must_use]
    pub fn within(self, account: Arc<MemoryAccount>) -> Self {
        Self { account: Some(account), ..self }
    }

    /// Bytes that are answered but not yet written.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    fn turn_of(&self, number: u64) -> WriteBackAction {
        let job = self.jobs.get(number).expect("it is there");
        let range = job.range();
        let mut before = self.jobs.before(number).filter(|job| job.is_early());
        match job.request.op {
            BlockOp::Flush if before.next().is_some() => WriteBackAction::Wait,
            BlockOp::Flush => WriteBackAction::Go,
            BlockOp::Read | BlockOp::Map if self.lost.iter().any(|lost| overlap(lost, &range)) => WriteBackAction::Lost,
            BlockOp::Read => match before.find(|write| overlap(&write.range(), &range)) {
                None => WriteBackAction::Go,
                Some(write) => write.read(&range).map_or(WriteBackAction::Wait, WriteBackAction::Read),
            },
            BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim | BlockOp::Map => {
                if before.any(|write| overlap(&write.range(), &range)) {
                    WriteBackAction::Wait
                } else {
                    WriteBackAction::Go
                }
            }
        }
    }

    /// Does what can be done with a request now. Returns whether it no longer waits.
    fn advance(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        let turn = self.turn_of(number);
        match turn {
            WriteBackAction::Wait => return false,
            WriteBackAction::Go => self.begin(now, number, done),
            WriteBackAction::Read(_) | WriteBackAction::Lost => {
                let job = self.jobs.remove(number).expect("looked at just now");
                let request = job.owed.expect("a read is owed its answer");
                done.push(match turn {
                    WriteBackAction::Read(data) => request.answer(data),
                    // A read of it fails, so nobody may take it for a hole.
                    _ if request.op == BlockOp::Map => request.answer_all_data(),
                    _ => request.fail(StoreError::Medium),
                });
            }
        }
        true
    }

    fn begin(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) {
        let job = self.jobs.get_mut(number).expect("it is there");
        (job.is_below, job.begun_at) = (true, Some(now));
        let below = BlockRequest { id: BlockId(number), payload: job.data.clone(), ..job.request.clone() };
        self.below.act(done, |device, done| device.submit(now, below.launch(), done));
    }

    /// Answers writes that the device holds, as far as there is room.
    fn answer_early(&mut self, done: &mut CompletionQueue<BlockCompletion>) {
        // After a loss, or without exclusive use (no epoch), no write is answered early.
        if !self.lost.is_empty() || self.below.device.epoch().is_none() {
            return;
        }
        let mut first_owed = None;
        let owed = self.jobs.since_mut(self.owed_from).filter(|(_, job)| job.is_early() && job.owed.is_some());
        for (number, job) in owed {
            if !job.is_below {
                first_owed.get_or_insert(number);
                continue;
            }
            let all_bytes = self.dirty_bytes + u64::from(job.request.length);
            if all_bytes > self.window.bytes() && !self.window.grow(self.account.as_ref()) {
                self.window.note_full(self.last_early);
            }
            if self.dirty_writes >= DIRTY_WRITES_MAX || all_bytes > self.window.bytes() {
                first_owed.get_or_insert(number);
                break;
            }
            (self.dirty_writes, self.dirty_bytes, self.last_early) = (self.dirty_writes + 1, all_bytes, number);
            if let Some(request) = job.owed.take() {
                done.push(request.answer(Payload::Empty));
            }
        }
        self.owed_from = first_owed.unwrap_or(self.next_number);
    }

    /// Handles what the device has completed and continues waiting requests; returns whether any continued.
    fn collect(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        let mut has_begun = false;
        while let Some(answer) = self.below.pop() {
            done.pool.recycle(answer.spent);
            let job = self.jobs.remove(answer.id.0).expect("a device answers what it was asked, once");
            if let (true, Some(begun_at)) = (job.is_early(), job.begun_at) {
                self.pace.note(begun_at, now);
                self.window.complete(answer.id.0, self.pace);
            }
            self.note(&job, answer.result);
            if let Some(request) = job.owed {
                let is_untrue = request.op == BlockOp::Flush && std::mem::take(&mut self.is_untold);
                done.push(match answer.result {
                    Ok(()) if is_untrue => request.fail(StoreError::Medium),
                    Ok(()) => request.answer(answer.payload),
                    Err(error) => request.fail(error),
                });
            }
            has_begun |= self.advance_all(now, done);
        }
        // After the results, so that a write that failed at once is not answered early.
        self.answer_early(done);
        if self.dirty_writes > 0 || !self.window.has_taken() {
            self.shrinks_at = None;
        } else {
            self.shrinks_at.get_or_insert(now + IDLE_TIME_MAX);
        }
        has_begun
    }

    /// Updates the counters and the lost ranges after a request.
    fn note(&mut self, job: &WriteBackJob, result: Result<(), StoreError>) {
        let was_answered = job.owed.is_none();
        if was_answered {
            self.dirty_writes -= 1;
            self.dirty_bytes -= u64::from(job.request.length);
        }
        match (job.request.op, result) {
            (BlockOp::Read | BlockOp::Flush | BlockOp::Map, _) => {}
            (_, Ok(())) => self.found(&job.range()),
            (_, Err(_)) if was_answered => self.lose(job.range()),
            (_, Err(_)) => {}
        }
    }

    fn lose(&mut self, range: Range<u64>) {
        self.losses += 1;
        self.is_untold = true;
        let (mut start, mut end) = (range.start, range.end);
        self.lost.retain(|lost| {
            let joins = lost.start <= end && start <= lost.end;
            if joins {
                (start, end) = (start.min(lost.start), end.max(lost.end));
            }
            !joins
        });
        let at = self.lost.partition_point(|lost| lost.start < start);
        self.lost.insert(at, start..end);
        if self.lost.len() > LOST_MAX {
            let all = self.lost[0].start..self.lost[LOST_MAX].end;
            self.lost = vec![all];
        }
    }

    fn found(&mut self, range: &Range<u64>) {
        if self.lost.is_empty() {
            return;
        }
        let rest = self
            .lost
            .iter()
            .flat_map(|lost| [lost.start..lost.end.min(range.start), lost.start.max(range.end)..lost.end]);
        self.lost = rest.filter(|rest| rest.start < rest.end).collect();
        self.is_untold &= !self.lost.is_empty();
    }

    /// Continues each waiting request that can go on; returns whether one did.
    fn advance_all(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let waiting: Vec<u64> = self.jobs.iter().filter(|(_, job)| !job.is_below).map(|(number, _)| number).collect();
        let went: usize = waiting.into_iter().map(|number| usize::from(self.advance(now, number, done))).sum();
        self.waiting -= went;
        went > 0
    }
}

impl WriteBackJob {
    /// The bytes of `range`, if the write covers all of it.
    fn read(&self, range: &Range<u64>) -> Option<Payload> {
        let own = self.range();
        let is_whole =
            own.start <= range.start && range.end <= own.end && self.data.len() == self.request.length as usize;
        is_whole.then(|| {
            let mut data = self.data.clone();
            data.split_front((range.start - own.start) as usize);
            data.truncate((range.end - range.start) as usize);
            data
        })
    }
}

impl<D: BlockDevice> BlockLayer for WriteBackLayer<D> {
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
        let result = self.below.act(done, act);
        // Requests that became possible are submitted in the same turn.
        if self.collect(now, done) {
            self.below.act(done, |device, done| device.end_turn(now, done));
            self.collect(now, done);
        }
        result
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if let Err(error) = self.below.device.info().check(&request) {
            return done.push(request.fail(error));
        }
        // The data is used twice: for reads here, and by the device.
        request.share_payload();
        let data = request.take_payload();
        let block_request = BlockRequest { payload: Payload::Empty, ..(*request).clone() };
        let number = self.next_number;
        self.next_number += 1;
        let (owed, is_below, begun_at) = (Some(request), false, None);
        self.jobs.insert(number, WriteBackJob { request: block_request, owed, data, is_below, begun_at });
        if !self.advance(now, number, done) {
            self.waiting += 1;
        }
        self.collect(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.below.device.poll_timeout().into_iter().chain(self.shrinks_at).min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.shrinks_at.is_some_and(|at| at <= now) {
            (self.shrinks_at, self.window) = (None, FlightWindow::new(DIRTY_BYTES_MIN));
        }
        if self.below.device.poll_timeout().is_some_and(|at| at <= now) {
            self.with_inner(now, done, |device, done| device.handle_timeout(now, done));
        }
    }

    fn epoch(&self) -> Option<u64> {
        // A loss changes the content, and a read may have seen the written data in between.
        self.below.device.epoch().map(|epoch| epoch + self.losses)
    }

    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut to = SnapshotWriter::new(BEHIND_KIND);
        to.bytes(&self.below.device.save(now)?);
        to.u64(self.next_number);
        to.count(self.jobs.len());
        for (number, job) in self.jobs.iter() {
            to.u64(number);
            let data = if job.is_below { Payload::Empty } else { job.data.clone() };
            to.block_request(&BlockRequest { payload: data, ..job.request.clone() });
            to.flag(job.owed.is_some());
            to.flag(job.is_below);
        }
        to.count(self.lost.len());
        for lost in &self.lost {
            to.u64(lost.start);
            to.u64(lost.end);
        }
        Some(to.into_bytes())
    }

    fn leave(&mut self) {
        self.below.device.leave();
        std::mem::take(&mut self.jobs).into_values().filter_map(|job| job.owed).for_each(|owed| drop(owed.recall()));
    }
}

/// A job of a snapshot.
struct SavedWriteBackJob {
    number: u64,
    request: BlockRequest,
    is_owed: bool,
    is_below: bool,
}

impl SavedWriteBackJob {
    fn read(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (number, request) = (from.u64("number")?, from.block_request()?);
        Ok(Self { number, request, is_owed: from.flag("owed")?, is_below: from.flag("below")? })
    }

    fn check(&self, info: &BlockInfo, below: &PendingBlockRequests) -> Result<(), &'static str> {
        let Self { request, is_owed, is_below, .. } = self;
        let data = if request.op == BlockOp::Write && !is_below { request.length as usize } else { 0 };
        // The data of a write may be with the device already.
        let length = if request.op == BlockOp::Write { request.length as usize } else { 0 };
        let whole = BlockRequest { payload: Payload::pattern(&[0], length), ..request.clone() };
        if request.payload.len() != data || info.check(&whole).is_err() {
            return Err("it is one that this device can have");
        }
        if !is_owed && (request.op != BlockOp::Write || request.is_durable || !is_below) {
            return Err("a write is answered early, once it is on its way");
        }
        let known = below.get(&BlockId(self.number));
        let expected = is_below.then_some((request.op, request.offset, request.length));
        if known.copied() == expected { Ok(()) } else { Err("the device below was asked for it, or it waits") }
    }
}

impl<D: BlockDevice> WriteBackLayer<D> {
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
        let next_number = from.u64("next number")?;
        let mut jobs = Vec::new();
        for _ in 0..from.count("requests", 36)? {
            jobs.push(SavedWriteBackJob::read(from)?);
        }
        let mut lost = Vec::new();
        for _ in 0..from.count("places", 16)? {
            lost.push(from.u64("lost from")?..from.u64("lost to")?);
        }
        let (device, below) = device(bytes)?;
        // The snapshot does not say whether a flush reported the loss: it is reported again.
        let is_untold = !lost.is_empty();
        let mut this = Self { next_number, lost, is_untold, ..Self::new(device) };
        match this.check_saved(&jobs, &below) {
            Ok(pending) => {
                jobs.into_iter().for_each(|saved| this.take_up(saved));
                Ok((this, pending))
            }
            Err(reject) => {
                this.below.device.leave();
                Err(reject.into())
            }
        }
    }

    fn take_up(&mut self, SavedWriteBackJob { number, mut request, is_owed, is_below }: SavedWriteBackJob) {
        let data = std::mem::take(&mut request.payload);
        if !is_owed {
            self.dirty_writes += 1;
            self.dirty_bytes += u64::from(request.length);
        }
        self.waiting += usize::from(!is_below);
        let owed = is_owed.then(|| request.clone().launch());
        self.jobs.insert(number, WriteBackJob { request, owed, data, is_below, begun_at: None });
    }

    /// Checks the snapshot against the device's requests; returns the requests that this layer has to answer.
    fn check_saved(
        &self,
        jobs: &[SavedWriteBackJob],
        below: &PendingBlockRequests,
    ) -> Result<PendingBlockRequests, ProtocolViolation> {
        let mut pending = PendingBlockRequests::new();
        let mut last = None;
        for saved in jobs {
            let wrong = |rule| ProtocolViolation::new("request", saved.request.id.0, rule);
            if saved.number >= self.next_number || last.replace(saved.number) >= Some(saved.number) {
                return Err(wrong("numbers are in order, below the next"));
            }
            saved.check(self.below.device.info(), below).map_err(wrong)?;
            let BlockRequest { id, op, offset, length, .. } = saved.request;
            if saved.is_owed && pending.insert(id, (op, offset, length)).is_some() {
                return Err(wrong("an id names one request"));
            }
        }
        if jobs.iter().filter(|saved| saved.is_below).count() != below.len() {
            return Err(ProtocolViolation::new("requests", below.len() as u64, "the device below was asked for these"));
        }
        let size = self.below.device.info().size_bytes;
        let are_apart = self.lost.windows(2).all(|pair| pair[0].end <= pair[1].start);
        if !are_apart || self.lost.iter().any(|lost| lost.start >= lost.end || lost.end > size) {
            return Err(ProtocolViolation::new(
                "lost",
                self.lost.len() as u64,
                "places are in order, within the device",
            ));
        }
        Ok(pending)
    }
}
