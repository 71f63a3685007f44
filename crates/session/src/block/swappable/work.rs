//! The swap's own work: what is asked of the two devices besides the users' requests, and what follows from the
//! answers.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, CompletionQueue, ExtentList, Instant, Payload,
    StoreError,
};

use super::exchanging::{DeviceSwapAction, DeviceSwapPhase, SwapRequestTracker};
use super::job::{SwapCopyPiece, SwapMemberRole, SwappableJob, SwappableJobKind};
use crate::block::granules::GranuleRun;
use crate::block::swap::{LEFT_BYTES, ROUNDS_MAX, SwapError, SwapMilestone, SwapSide, UNFLUSHED_BYTES_MAX, is_zero};

/// Bytes of which the source is asked at a time where its holes are.
const MAP_BYTES: u64 = 64 << 20;
/// Most such questions at a time.
const MAPS_MAX: usize = 8;
/// Bytes of a piece that is copied or compared while changes of it wait.
const PIECE_BYTES: u64 = 64 << 10;
/// Bytes of the last [`LEFT_BYTES`] that are copied at a time.
const LAST_FLIGHT_BYTES_MAX: u64 = PIECE_BYTES;
/// Bytes that are begun to be copied in one turn; the device's users have their turn after that.
const TURN_BYTES: u64 = 1 << 20;

impl<D: BlockDevice> SwapRequestTracker<D> {
    /// Holes are made in the destination, too; the rest is to be copied.
    pub(super) fn handle_map(
        &mut self,
        now: Instant,
        number: u64,
        answer: &BlockCompletion,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let Some(job) = self.jobs.remove(&number) else { return };
        let Some(swap) = &mut self.swap else { return };
        swap.has_more = true;
        let granule = swap.dirty.granule_bytes();
        let mut at = job.range.start;
        let mut holes = Vec::new();
        let extents = match answer.result {
            Ok(()) => ExtentList::read(&answer.payload, answer.length).unwrap_or_default(),
            Err(_) => ExtentList::default(),
        };
        for extent in extents.iter() {
            let end = (at + extent.length).min(job.range.end);
            // A hole is made of whole granules; the last one may be shorter.
            let from = at.next_multiple_of(granule).min(end);
            let to = if end == job.range.end { end } else { (end / granule * granule).max(from) };
            if extent.is_hole && to > from {
                holes.push(from..to);
                swap.dirty.add(at, from - at);
                swap.dirty.add(to, end - to);
            } else {
                swap.dirty.add(at, end - at);
            }
            at = end;
        }
        swap.dirty.add(at, job.range.end - at);
        for hole in holes {
            self.start(now, hole, SwappableJobKind::Clear, done);
        }
    }

    pub(super) fn handle_flushed(&mut self, now: Instant, number: u64) {
        self.jobs.remove(&number);
        let Some(swap) = &mut self.swap else { return };
        swap.has_more = true;
        match swap.stage {
            DeviceSwapPhase::Flushing => swap.enter(DeviceSwapPhase::Draining, now),
            // The source failed a change meanwhile: that place is copied again.
            DeviceSwapPhase::Deciding if swap.left_bytes() > 0 => swap.enter(DeviceSwapPhase::Draining, now),
            DeviceSwapPhase::Deciding => {
                swap.enter(DeviceSwapPhase::Noting, now);
                self.work.push_back(DeviceSwapAction::Note(SwapMilestone::Switched));
            }
            _ => {}
        }
    }

    /// A piece could not be copied. It is tried again in smaller ones, until the place is known.
    pub(super) fn handle_failed(&mut self, now: Instant, number: u64, side: SwapSide, error: StoreError) {
        let Some(job) = self.jobs.get(&number) else { return };
        let (run, is_over) = (job.run(), !job.at_current && !job.at_other);
        let Some(swap) = &mut self.swap else { return };
        let granule = swap.dirty.granule_bytes();
        if side == SwapSide::Destination || run.bytes <= granule || error != StoreError::Medium {
            return self.fail(now, side, run.offset, error);
        }
        swap.run_bytes = granule;
        swap.dirty.add(run.offset, run.bytes);
        if is_over {
            self.end_work(number);
        }
    }

    /// A device has done its part of a piece.
    pub(super) fn go_on_with(
        &mut self,
        now: Instant,
        number: u64,
        from: SwapMemberRole,
        payload: Payload,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let (is_over, offset) = (!job.at_current && !job.at_other, job.range.start);
        let SwappableJobKind::Piece(piece) = &mut job.what else { return self.end_work(number) };
        match from {
            SwapMemberRole::Current => (piece.read, job.answered) = (Some(payload), Some(now)),
            SwapMemberRole::Other if !piece.is_written => piece.there = Some(payload),
            SwapMemberRole::Other => {}
        }
        if !is_over {
            return;
        }
        // Without it, reading failed, and it was noted as to be copied again.
        let (Some(read), false) = (piece.read.take(), piece.is_written) else { return self.count(now, number) };
        let difference = piece.there.take().map(|there| {
            let difference = first_difference(&read, &there);
            done.pool.recycle(there);
            difference
        });
        match difference {
            Some(None) if piece.compares => self.end_work(number),
            Some(None) => self.count(now, number),
            Some(Some(at)) if piece.compares => self.handle_difference(now, number, offset + at),
            _ => {
                let write = match is_zero(&read.contiguous()) {
                    true => BlockRequest::zero(BlockId(number), BlockOp::Discard, offset, read.len() as u32),
                    false => BlockRequest::write(BlockId(number), offset, read),
                };
                (piece.is_written, job.at_other) = (true, true);
                if let Some(swap) = &mut self.swap {
                    swap.other.submit(now, write.launch(), done);
                }
            }
        }
    }

    /// The source was changed alone just now, or failed a change: the piece is copied again, and compared after that.
    /// Or the destination has other data than was written to it.
    fn handle_difference(&mut self, now: Instant, number: u64, offset: u64) {
        let Some(swap) = &mut self.swap else { return };
        let copies = |job: &SwappableJob| matches!(&job.what, SwappableJobKind::Piece(piece) if !piece.compares);
        let is_copied = self.jobs.values().any(|job| copies(job) && job.range.contains(&offset));
        if !is_copied && !swap.dirty.has(offset) {
            return self.give_up(now, SwapError::Differs { offset });
        }
        if let Some(job) = self.jobs.get(&number) {
            swap.unverified.add(job.range.start, job.bytes());
        }
        self.end_work(number);
    }

    /// A piece has been copied.
    fn count(&mut self, now: Instant, number: u64) {
        let (Some(job), Some(swap)) = (self.jobs.get(&number), &mut self.swap) else { return };
        let bytes = job.bytes();
        swap.meter.add(now, bytes);
        swap.unflushed += bytes;
        if swap.options.verify {
            swap.unverified.add(job.range.start, bytes);
        }
        self.end_work(number);
    }

    fn end_work(&mut self, number: u64) {
        let Some(job) = self.jobs.remove(&number) else { return };
        let Some(swap) = &mut self.swap else { return };
        if matches!(job.what, SwappableJobKind::Piece(_)) {
            swap.flying_bytes = swap.flying_bytes.saturating_sub(job.bytes());
        }
        (swap.has_more, self.has_waiting) = (true, true);
    }

    fn has_own_jobs(&self) -> bool {
        self.jobs.values().any(|job| !matches!(job.what, SwappableJobKind::User { .. }))
    }

    /// Begins what the swap can do now, as much as belongs in one turn.
    pub(super) fn pump(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if !self.swap.as_mut().is_some_and(|swap| std::mem::take(&mut swap.has_more)) {
            return;
        }
        let mut begun = 0;
        while let Some(bytes) = self.begin_some(now, done) {
            begun += bytes;
            if begun >= TURN_BYTES {
                if let Some(swap) = &mut self.swap {
                    swap.has_more = true;
                }
                return;
            }
        }
    }

    /// Begins one piece of work and returns its bytes; `None` if there is nothing to begin before something ends.
    fn begin_some(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> Option<u64> {
        let has_own_jobs = self.has_own_jobs();
        let is_idle = self.untracked == 0;
        let swap = self.swap.as_mut()?;
        let granule = swap.dirty.granule_bytes();
        match swap.stage {
            DeviceSwapPhase::Beginning => {
                let questions = self
                    .jobs
                    .values()
                    .filter(|job| matches!(job.what, SwappableJobKind::Map | SwappableJobKind::Clear))
                    .count();
                if !is_idle || questions >= MAPS_MAX {
                    return None;
                }
                if let Some(run) = swap.dirty.take(swap.cursor, MAP_BYTES) {
                    swap.cursor = run.end();
                    self.start(now, run.offset..run.end(), SwappableJobKind::Map, done);
                    return Some(PIECE_BYTES);
                }
                (!has_own_jobs).then(|| swap.enter(DeviceSwapPhase::Copying, now))?;
                Some(0)
            }
            DeviceSwapPhase::Copying => {
                if swap.unflushed >= UNFLUSHED_BYTES_MAX {
                    swap.unflushed = 0;
                    self.start(now, 0..0, SwappableJobKind::Flush, done);
                    return Some(0);
                }
                let run_bytes = swap.run_bytes;
                let looks = swap.options.resume && swap.round == 0;
                if !swap.may_copy(now) {
                    return None;
                }
                if let Some(run) = swap.dirty.take(swap.cursor, run_bytes) {
                    swap.cursor = run.end();
                    return Some(self.begin_piece(now, run, false, looks, done));
                }
                if has_own_jobs {
                    return None;
                }
                let left = swap.left_bytes();
                // By less than a quarter: further rounds would copy the same data again.
                let shrinks_no_more = left > swap.left_before / 4 * 3;
                swap.round += 1;
                (swap.left_before, swap.cursor) = (left, 0);
                if left <= LEFT_BYTES || shrinks_no_more || swap.round.is_multiple_of(ROUNDS_MAX) {
                    swap.enter(DeviceSwapPhase::Flushing, now);
                    self.start(now, 0..0, SwappableJobKind::Flush, done);
                }
                Some(0)
            }
            DeviceSwapPhase::Draining => {
                if !swap.may_copy(now) {
                    return None;
                }
                // Users' requests wait behind what is copied: of the last of it, little is on its way at a time.
                let is_last = swap.left_bytes() <= LEFT_BYTES && swap.left_bytes() > 0;
                if is_last && swap.flying_bytes >= LAST_FLIGHT_BYTES_MAX {
                    return None;
                }
                let piece = PIECE_BYTES.max(granule).min(swap.run_bytes);
                let copies = swap.dirty.take_around(swap.cursor, piece);
                let compares = copies.is_none();
                if let Some(run) = copies.or_else(|| swap.unverified.take_around(swap.cursor, piece)) {
                    swap.cursor = run.end();
                    return Some(self.begin_piece(now, run, compares, false, done));
                }
                // A change of the source alone is noted when it ends.
                let has_single = |job: &SwappableJob| {
                    let SwappableJobKind::User { is_both, .. } = job.what else { return false };
                    job.is_change() && job.is_begun && !is_both
                };
                if has_own_jobs || self.jobs.values().any(has_single) {
                    return None;
                }
                swap.enter(DeviceSwapPhase::Deciding, now);
                self.start(now, 0..0, SwappableJobKind::Flush, done);
                None
            }
            DeviceSwapPhase::Flushing | DeviceSwapPhase::Deciding | DeviceSwapPhase::Noting => None,
            DeviceSwapPhase::Releasing | DeviceSwapPhase::GivingUp | DeviceSwapPhase::GivenUp => None,
        }
    }

    fn begin_piece(
        &mut self,
        now: Instant,
        run: GranuleRun,
        compares: bool,
        looks: bool,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> u64 {
        if let Some(swap) = &mut self.swap {
            swap.flying_bytes += run.bytes;
            swap.bucket.take(now, run.bytes);
        }
        let piece = SwapCopyPiece { compares, looks, read: None, there: None, is_written: false };
        self.start(now, run.offset..run.end(), SwappableJobKind::Piece(piece), done);
        run.bytes
    }
}

/// The first byte that differs.
fn first_difference(one: &Payload, other: &Payload) -> Option<u64> {
    let (one, other) = (one.contiguous(), other.contiguous());
    (one != other).then(|| one.iter().zip(&*other).take_while(|(one, other)| one == other).count() as u64)
}
