//! A device while it is exchanged and once it was: its user's requests, and the stages of a swap.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use farbus_model::limits::{SWAP_FLIGHT_BYTES_MAX, SWAP_RUN_BYTES_MAX};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockLayer, BlockOp, BlockRequest,
    CompletionQueue, Instant, Payload, ReadinessSource, StoreError,
};

use super::job::{SwapMember, SwapMemberRole, SwappableJob, SwappableJobKind};
use crate::block::granules::CountedGranuleSet;
use crate::block::rate::TokenBucket;
use crate::block::swap::{
    CopyRateMeter, SwapError, SwapMilestone, SwapOptions, SwapPhase, SwapProgress, SwapReport, SwapSide,
};

/// How long the destination may take for a request that the source has answered. After that the swap is given up: a
/// user waits for both.
const LAG_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the device that is left may take to answer what it was asked. Nobody waits for it.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);

/// What the owner of a swap does next, on any thread.
#[derive(Debug)]
pub enum DeviceSwapAction<D> {
    /// Make this durable, then call [`Swappable::handle_noted`](super::SwappableDevice::handle_noted).
    Note(SwapMilestone),
    /// Give this device back: it is used no more.
    Release(D),
    /// The swap is over.
    Ended(Result<SwapReport, SwapError>),
}

/// A device from its first swap on: requests have numbers of our own at the devices. Its size, its blocks and its
/// limits stay as they are.
#[derive(Debug)]
pub(super) struct SwapRequestTracker<D> {
    pub(super) current: SwapMember<D>,
    pub(super) info: BlockInfo,
    /// Whether it is another device than at first.
    pub(super) is_exchanged: bool,
    /// Requests with their users' numbers at the device, from before the first swap.
    pub(super) untracked: usize,
    /// Requests that came meanwhile.
    pub(super) held: VecDeque<BlockInFlight>,
    /// Requests that are not complete, by their number at the devices, in the order of their submission.
    pub(super) jobs: BTreeMap<u64, SwappableJob>,
    pub(super) next_number: u64,
    /// Whether a job waits for others.
    pub(super) has_waiting: bool,
    /// Whether requests that waited for both devices wait for one.
    pub(super) may_finish: bool,
    pub(super) swap: Option<Box<DeviceSwap<D>>>,
    pub(super) work: VecDeque<DeviceSwapAction<D>>,
}

/// A swap under way.
#[derive(Debug)]
pub(super) struct DeviceSwap<D> {
    pub(super) other: SwapMember<D>,
    pub(super) readiness: Option<ReadinessSource>,
    pub(super) options: SwapOptions,
    pub(super) stage: DeviceSwapPhase,
    pub(super) since: Instant,
    pub(super) began: Instant,
    /// What the destination does not have yet.
    pub(super) dirty: CountedGranuleSet,
    pub(super) unverified: CountedGranuleSet,
    pub(super) cursor: u64,
    pub(super) round: u32,
    pub(super) left_before: u64,
    /// Bytes copied or compared at a time.
    pub(super) run_bytes: u64,
    /// Bytes being copied or compared.
    pub(super) flying_bytes: u64,
    pub(super) unflushed: u64,
    pub(super) bucket: TokenBucket,
    pub(super) meter: CopyRateMeter,
    pub(super) delayed: Duration,
    /// Whether more can be begun at once, in the next turn.
    pub(super) has_more: bool,
    /// When the rate allows more.
    pub(super) paid_at: Option<Instant>,
    pub(super) error: Option<SwapError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceSwapPhase {
    Beginning,
    Copying,
    Flushing,
    Draining,
    /// Both are being made durable.
    Deciding,
    /// The journal is told.
    Noting,
    Releasing,
    /// It failed, and the journal is told.
    GivingUp,
    /// It failed; the destination may still have to answer.
    GivenUp,
}

impl DeviceSwapPhase {
    /// Whether changes go to both devices.
    fn has_both(self) -> bool {
        matches!(self, DeviceSwapPhase::Draining | DeviceSwapPhase::Deciding | DeviceSwapPhase::Noting)
    }

    /// Whether requests to one place wait for each other.
    fn has_order(self) -> bool {
        self.has_both() || matches!(self, DeviceSwapPhase::Releasing | DeviceSwapPhase::GivingUp)
    }

    /// Whether it can still fail.
    fn is_open(self) -> bool {
        !matches!(self, DeviceSwapPhase::Releasing | DeviceSwapPhase::GivingUp | DeviceSwapPhase::GivenUp)
    }
}

impl<D> DeviceSwap<D> {
    pub(super) fn enter(&mut self, stage: DeviceSwapPhase, now: Instant) {
        (self.stage, self.since, self.cursor, self.has_more) = (stage, now, 0, true);
    }

    pub(super) fn left_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// Whether the journal may say that the destination is the device, although it is not known to: a failed note may
    /// have been made.
    fn may_be_switched(&self) -> bool {
        let was_noted = matches!(self.error, Some(SwapError::Journal(_)));
        self.stage == DeviceSwapPhase::Noting || (self.stage == DeviceSwapPhase::GivingUp && was_noted)
    }

    /// Whether users wait for both devices: the other one's answer counts as well.
    fn waits_for_both(&self) -> bool {
        self.stage.is_open() || self.may_be_switched()
    }

    /// Whether more may be copied now.
    pub(super) fn may_copy(&mut self, now: Instant) -> bool {
        self.paid_at = self.bucket.wait_until(now);
        self.paid_at.is_none() && self.flying_bytes < SWAP_FLIGHT_BYTES_MAX
    }
}

impl<D: BlockDevice> SwapRequestTracker<D> {
    /// Wraps `device`, which holds so many requests of its users: the next that is to happen is
    /// [`SwapRequestTracker::begin`].
    pub fn new(device: D, requests: usize) -> Self {
        Self {
            info: *device.info(),
            current: SwapMember { in_flight: requests, ..SwapMember::new(device) },
            is_exchanged: false,
            untracked: requests,
            held: VecDeque::new(),
            jobs: BTreeMap::new(),
            next_number: 0,
            has_waiting: false,
            may_finish: false,
            swap: None,
            work: VecDeque::new(),
        }
    }

    /// Wraps `device`, which another process made the device of these users.
    pub fn moved(device: D) -> Self {
        Self { is_exchanged: true, ..Self::new(device, 0) }
    }

    /// Whether nothing is left of a swap that was given up: the device is the one that it was at first, and none of its
    /// requests has a number of our own.
    pub fn is_as_at_first(&self) -> bool {
        let has_own = self.current.in_flight > self.untracked || !self.jobs.is_empty() || !self.held.is_empty();
        !self.is_exchanged && !has_own && self.swap.is_none() && self.work.is_empty()
    }

    /// The device, and how many requests it holds.
    pub fn into_device(self) -> (D, usize) {
        (self.current.below.device, self.current.in_flight)
    }

    /// Ends the requests that have no answer, whose users have gone: the device is dropped next, and the one below ends
    /// its own.
    pub fn abandon(&mut self) {
        let jobs = std::mem::take(&mut self.jobs).into_values().filter_map(|job| match job.what {
            SwappableJobKind::User { owed, .. } => Some(owed),
            SwappableJobKind::Map | SwappableJobKind::Piece(_) | SwappableJobKind::Clear | SwappableJobKind::Flush => {
                None
            }
        });
        jobs.chain(self.held.drain(..)).for_each(|request| drop(request.fail(StoreError::Lost)));
    }

    /// The device as it is now.
    pub fn current(&self) -> &D {
        &self.current.below.device
    }

    /// Begins to exchange the device for `destination`. While both are used, an engine waits on `readiness`, which
    /// covers both. The journal says already that a copy is begun.
    ///
    /// # Errors
    /// [`SwapError`], with the destination.
    pub fn begin(
        &mut self,
        now: Instant,
        destination: D,
        readiness: Option<ReadinessSource>,
        options: SwapOptions,
    ) -> Result<(), (SwapError, D)> {
        let error = if self.swap.is_some() {
            Err(SwapError::AnotherSwap)
        } else {
            check_destination(&self.info, destination.info())
        };
        if let Err(error) = error {
            return Err((error, destination));
        }
        let (ours, needed) = (&self.info, self.info.size_bytes);
        let run_bytes = SWAP_RUN_BYTES_MAX.min(ours.request_bytes_max.into());
        self.swap = Some(Box::new(DeviceSwap {
            other: SwapMember::new(destination),
            readiness,
            options,
            stage: DeviceSwapPhase::Beginning,
            since: now,
            began: now,
            dirty: CountedGranuleSet::all_of(needed),
            unverified: CountedGranuleSet::none_of(needed),
            cursor: 0,
            round: 0,
            left_before: u64::MAX,
            run_bytes,
            flying_bytes: 0,
            unflushed: 0,
            bucket: TokenBucket::new(options.rate, now),
            meter: CopyRateMeter::new(now),
            delayed: Duration::ZERO,
            has_more: true,
            paid_at: None,
            error: None,
        }));
        Ok(())
    }

    /// Cancels the swap. Returns `false` if there is none, or if it is too late: the destination is the device.
    pub fn cancel(&mut self, now: Instant) -> bool {
        let is_open =
            self.swap.as_ref().is_some_and(|swap| swap.stage.is_open() && swap.stage != DeviceSwapPhase::Noting);
        if is_open {
            self.give_up(now, SwapError::Cancelled);
        }
        is_open
    }

    /// How far the swap is; `None` if there is none.
    pub fn progress(&self, now: Instant) -> Option<SwapProgress> {
        let swap = self.swap.as_ref()?;
        Some(SwapProgress {
            phase: match swap.stage {
                DeviceSwapPhase::Beginning => SwapPhase::Beginning,
                DeviceSwapPhase::Copying => SwapPhase::Copying,
                DeviceSwapPhase::Flushing => SwapPhase::Flushing,
                DeviceSwapPhase::Draining if swap.left_bytes() == 0 && swap.unverified.bytes() > 0 => {
                    SwapPhase::Verifying
                }
                DeviceSwapPhase::Draining => SwapPhase::Draining,
                DeviceSwapPhase::Deciding | DeviceSwapPhase::Noting => SwapPhase::Deciding,
                DeviceSwapPhase::Releasing | DeviceSwapPhase::GivingUp | DeviceSwapPhase::GivenUp => {
                    SwapPhase::Releasing
                }
            },
            total_bytes: self.info.size_bytes,
            copied_bytes: swap.meter.copied(),
            left_bytes: swap.left_bytes() + swap.flying_bytes,
            unverified_bytes: swap.unverified.bytes(),
            rate: swap.meter.rate(now),
            round: swap.round + 1,
            delayed: swap.delayed,
        })
    }

    /// What its owner is to do next.
    pub fn poll_work(&mut self) -> Option<DeviceSwapAction<D>> {
        self.work.pop_front()
    }

    /// The journal was told what [`DeviceSwapAction::Note`] said, or it could not be.
    pub fn handle_noted(
        &mut self,
        now: Instant,
        result: Result<(), String>,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let Some(swap) = &mut self.swap else { return };
        match (swap.stage, result) {
            (DeviceSwapPhase::Noting, Ok(())) => {
                swap.enter(DeviceSwapPhase::Releasing, now);
                std::mem::swap(&mut self.current, &mut swap.other);
                self.is_exchanged = true;
                self.jobs.values_mut().for_each(SwappableJob::change_places);
                self.may_finish = true;
            }
            (DeviceSwapPhase::Noting, Err(why)) => self.give_up(now, SwapError::Journal(why)),
            (DeviceSwapPhase::GivingUp, result) => {
                if let (Err(why), Some(SwapError::Journal(before))) = (&result, &mut swap.error) {
                    *before = format!("{why}; it may say that the device was moved, and it was not");
                }
                // Otherwise the last note says that a copy was begun, which is true as well.
                swap.enter(DeviceSwapPhase::GivenUp, now);
                self.may_finish = true;
            }
            _ => {}
        }
        self.settle_turn(now, done);
    }

    /// Ends the swap with the source as the device.
    pub(super) fn give_up(&mut self, now: Instant, error: SwapError) {
        let Some(swap) = &mut self.swap else { return };
        if !swap.stage.is_open() {
            return;
        }
        // Changes go to both devices until the journal says again which is the device.
        swap.error = Some(error);
        swap.enter(DeviceSwapPhase::GivingUp, now);
        swap.flying_bytes = 0;
        self.jobs.retain(|_, job| matches!(job.what, SwappableJobKind::User { .. }));
        (self.has_waiting, self.may_finish) = (true, true);
        self.work.push_back(DeviceSwapAction::Note(SwapMilestone::Abandoned));
    }

    pub(super) fn fail(&mut self, now: Instant, side: SwapSide, offset: u64, error: StoreError) {
        self.give_up(now, SwapError::Medium { side, offset, error });
    }

    fn add(&mut self, job: SwappableJob) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.jobs.insert(number, job);
        number
    }

    /// Gives a job of the swap to the devices, if it need not wait.
    pub(super) fn start(
        &mut self,
        now: Instant,
        range: Range<u64>,
        what: SwappableJobKind,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let number = self.add(SwappableJob::new(range, what, now));
        self.advance(now, number, done);
    }

    fn take_in(&mut self, now: Instant, mut owed: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let data = owed.take_payload();
        let range = owed.offset..owed.offset + u64::from(owed.length);
        let what = SwappableJobKind::User {
            owed,
            data,
            is_both: false,
            result: Ok(()),
            there: Ok(()),
            answer: Payload::Empty,
        };
        let number = self.add(SwappableJob::new(range, what, now));
        if !self.advance(now, number, done)
            && let Some(SwappableJob { what: SwappableJobKind::User { data, .. }, .. }) = self.jobs.get_mut(&number)
        {
            // It outlives the call, and perhaps the buffer that it arrived in.
            data.own();
        }
    }

    fn stage(&self) -> Option<DeviceSwapPhase> {
        self.swap.as_ref().map(|swap| swap.stage)
    }

    /// Begins a job, if it need not wait. Returns whether it is begun.
    fn advance(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        let Some(job) = self.jobs.get(&number) else { return false };
        let has_order = self.stage().is_some_and(DeviceSwapPhase::has_order);
        let must_wait = has_order && self.jobs.range(..number).any(|(_, before)| before.excludes(job));
        match must_wait {
            true => self.has_waiting = true,
            false => self.begin_job(now, number, done),
        }
        !must_wait
    }

    fn begin_job(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        job.is_begun = true;
        let (offset, length) = (job.range.start, job.bytes() as u32);
        let id = BlockId(number);
        let waited = now - job.since;
        let is_change = job.is_change();
        let (current, other) = match &mut job.what {
            SwappableJobKind::User { owed, data, is_both, .. } => {
                let mut request = BlockRequest { id, payload: std::mem::take(data), ..(**owed).clone() };
                if let Some(swap) = &mut self.swap {
                    swap.delayed = swap.delayed.max(waited);
                    let goes_to_both =
                        owed.op == BlockOp::Flush || (is_change && !swap.dirty.has_all(offset, length.into()));
                    *is_both = goes_to_both && (swap.stage.has_both() || swap.stage == DeviceSwapPhase::GivingUp);
                }
                let second = is_both.then(|| {
                    request.payload.share();
                    request.clone()
                });
                (Some(request), second)
            }
            SwappableJobKind::Map => (Some(BlockRequest::map(id, offset, length)), None),
            SwappableJobKind::Piece(piece) => {
                let read = BlockRequest::read(id, offset, length);
                (Some(read.clone()), (piece.compares || piece.looks).then_some(read))
            }
            SwappableJobKind::Clear => (None, Some(BlockRequest::zero(id, BlockOp::Discard, offset, length))),
            SwappableJobKind::Flush => {
                let flush = BlockRequest::flush(id);
                let is_last = self.swap.as_ref().is_some_and(|swap| swap.stage == DeviceSwapPhase::Deciding);
                (is_last.then(|| flush.clone()), Some(flush))
            }
        };
        (job.at_current, job.at_other) = (current.is_some(), other.is_some());
        if let Some(request) = current {
            self.current.submit(now, request.launch(), done);
        }
        if let (Some(request), Some(swap)) = (other, &mut self.swap) {
            swap.other.submit(now, request.launch(), done);
        }
    }

    /// Takes what the devices have answered and continues what waited, until nothing more happens by itself.
    fn settle(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        loop {
            let has_any = self.collect(now, done);
            if std::mem::take(&mut self.may_finish) {
                let all: Vec<u64> = self.jobs.keys().copied().collect();
                all.into_iter().for_each(|number| self.finish(now, number, done));
                self.has_waiting = true;
            }
            self.see_whether_over(now);
            let has_begun = self.has_waiting && self.advance_all(now, done);
            if !has_any && !has_begun {
                return;
            }
        }
    }

    /// Begins what need not wait any longer; returns whether there was any.
    fn advance_all(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        self.has_waiting = false;
        let is_waiting = |(number, job): (&u64, &SwappableJob)| (!job.is_begun).then_some(*number);
        let waiting: Vec<u64> = self.jobs.iter().filter_map(is_waiting).collect();
        let mut has_begun = false;
        waiting.into_iter().for_each(|number| has_begun |= self.advance(now, number, done));
        has_begun
    }

    /// As [`SwappableDevice::settle`]; then the devices send what they were given.
    fn settle_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.settle(now, done);
        while self.current.was_asked || self.swap.as_ref().is_some_and(|swap| swap.other.was_asked) {
            if self.current.was_asked {
                self.current.end_turn(now, done);
            }
            if let Some(swap) = self.swap.as_mut().filter(|swap| swap.other.was_asked) {
                swap.other.end_turn(now, done);
            }
            self.settle(now, done);
        }
    }

    /// Returns whether there was an answer.
    fn collect(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) -> bool {
        let mut has_any = false;
        loop {
            if let Some(answer) = self.current.pop() {
                self.handle_answer(now, SwapMemberRole::Current, answer, done);
            } else if let Some(answer) = self.swap.as_mut().and_then(|swap| swap.other.pop()) {
                self.handle_answer(now, SwapMemberRole::Other, answer, done);
            } else {
                return has_any;
            }
            has_any = true;
        }
    }

    fn handle_answer(
        &mut self,
        now: Instant,
        from: SwapMemberRole,
        mut answer: BlockCompletion,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        if self.untracked > 0 && from == SwapMemberRole::Current {
            return self.pass_on(now, answer, done);
        }
        done.pool.recycle(std::mem::take(&mut answer.spent));
        // Nobody waits for it any more: its user has the other device's answer, or the swap was given up.
        let Some(job) = self.jobs.get_mut(&answer.id.0) else { return done.pool.recycle(answer.payload) };
        *job.at(from) = false;
        let number = answer.id.0;
        let (offset, length, is_change) = (job.range.start, job.bytes(), job.is_change());
        let side = if from == SwapMemberRole::Current { SwapSide::Source } else { SwapSide::Destination };
        let stage = self.swap.as_ref().map(|swap| swap.stage);
        match &mut job.what {
            // The source cannot read it any more: the destination can.
            SwappableJobKind::User { is_both: false, .. }
                if from == SwapMemberRole::Other
                    && answer.result.is_err()
                    && !is_change
                    && stage == Some(DeviceSwapPhase::Releasing) =>
            {
                (job.is_begun, self.has_waiting) = (false, true);
            }
            SwappableJobKind::User { is_both, result, there, answer: payload, .. } => {
                if from == SwapMemberRole::Current || !*is_both {
                    (job.answered, *result, *payload) = (Some(now), result.and(answer.result), answer.payload);
                    let is_elsewhere = is_change && (!*is_both || answer.result.is_err());
                    let is_copied_to = !matches!(stage, Some(DeviceSwapPhase::Noting | DeviceSwapPhase::Releasing));
                    if let Some(swap) = self.swap.as_mut().filter(|_| is_elsewhere && is_copied_to) {
                        swap.dirty.add(offset, length);
                        swap.has_more = true;
                    }
                } else if let (Err(error), Some(swap)) = (answer.result, &self.swap) {
                    if swap.may_be_switched() {
                        *there = Err(error);
                    } else if swap.stage.is_open() {
                        self.fail(now, SwapSide::Destination, offset, error);
                    }
                }
                self.finish(now, number, done);
            }
            SwappableJobKind::Map => self.handle_map(now, number, &answer, done),
            SwappableJobKind::Flush => {
                let is_over = !job.at_current && !job.at_other;
                match answer.result {
                    Err(error) => self.fail(now, side, 0, error),
                    Ok(()) if is_over => self.handle_flushed(now, number),
                    Ok(()) => {}
                }
            }
            SwappableJobKind::Piece(_) | SwappableJobKind::Clear => match answer.result {
                Err(error) => self.handle_failed(now, number, side, error),
                Ok(()) => self.go_on_with(now, number, from, answer.payload, done),
            },
        }
    }

    /// Answers a user's request, if it can be.
    fn finish(&mut self, now: Instant, number: u64, done: &mut CompletionQueue<BlockCompletion>) {
        let waits_for_other = self.swap.as_ref().is_some_and(|swap| swap.waits_for_both());
        let Some(job) = self.jobs.get(&number) else { return };
        let SwappableJobKind::User { is_both, result, .. } = job.what else { return };
        if !job.is_begun || job.at_current || (job.at_other && (waits_for_other || !is_both)) {
            return;
        }
        // Once the journal says that the other one is the device, that one's answer counts.
        if result.is_err() && self.stage() == Some(DeviceSwapPhase::Noting) {
            return;
        }
        let Some(job) = self.jobs.remove(&number) else { return };
        if let (Some(swap), Some(answered)) = (&mut self.swap, job.answered) {
            swap.delayed = swap.delayed.max(now - answered);
        }
        if let SwappableJobKind::User { owed, result, there, answer, .. } = job.what {
            done.push(match result.and(there) {
                Ok(()) => owed.answer(answer),
                Err(error) => owed.fail(error),
            });
        }
    }

    /// An answer to a request with its user's number.
    fn pass_on(&mut self, now: Instant, answer: BlockCompletion, done: &mut CompletionQueue<BlockCompletion>) {
        self.untracked -= 1;
        done.push(answer);
        if self.untracked == 0 {
            if let Some(swap) = &mut self.swap {
                swap.has_more = true;
                if !self.held.is_empty() {
                    swap.delayed = swap.delayed.max(now - swap.began);
                }
            }
            std::mem::take(&mut self.held).into_iter().for_each(|request| self.take_in(now, request, done));
        }
    }

    /// Ends the swap, if the device that is left has answered everything, or takes too long.
    fn see_whether_over(&mut self, now: Instant) {
        let Some(swap) = &self.swap else { return };
        let is_last = matches!(swap.stage, DeviceSwapPhase::Releasing | DeviceSwapPhase::GivenUp);
        let is_needed =
            |job: &SwappableJob| job.at_other && matches!(job.what, SwappableJobKind::User { is_both: false, .. });
        let is_late = now - swap.since >= RELEASE_TIME_MAX && !self.jobs.values().any(is_needed);
        if !is_last || (swap.other.in_flight > 0 && !is_late) {
            return;
        }
        let Some(swap) = self.swap.take() else { return };
        let DeviceSwap { other, error, meter, round, began, .. } = *swap;
        for job in self.jobs.values_mut() {
            job.at_other = false;
            // For the next swap, what is still at the device is a change of the source alone.
            if let SwappableJobKind::User { is_both, .. } = &mut job.what {
                *is_both = false;
            }
        }
        self.has_waiting = true;
        let report = SwapReport { copied_bytes: meter.copied(), rounds: round, took: now - began };
        self.work.push_back(DeviceSwapAction::Release(other.below.device));
        self.work.push_back(DeviceSwapAction::Ended(error.map_or(Ok(report), Err)));
    }

    /// Gives a swap up whose destination takes too long, while users wait for it.
    fn see_whether_late(&mut self, now: Instant) {
        let late = self.lagging().find(|(_, since)| now - *since >= LAG_TIME_MAX).map(|(offset, _)| offset);
        if let Some(offset) = late {
            self.fail(now, SwapSide::Destination, offset, StoreError::Lost);
        }
    }

    /// What the destination alone has yet to answer while users may wait for it, and since when.
    fn lagging(&self) -> impl Iterator<Item = (u64, Instant)> {
        let is_waited_for = self.stage().is_some_and(|stage| stage.has_both() && stage != DeviceSwapPhase::Noting);
        let jobs = self.jobs.values().filter(move |job| is_waited_for && job.at_other && !job.at_current);
        jobs.filter_map(|job| Some((job.range.start, job.answered?)))
    }

    /// Begins what can be begun, and has it sent.
    fn go_on(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if let Some(swap) = self.swap.as_mut().filter(|swap| swap.paid_at.is_some_and(|at| at <= now)) {
            (swap.paid_at, swap.has_more) = (None, true);
        }
        self.pump(now, done);
        self.settle_turn(now, done);
    }
}

/// Whether a device can take the place of one as described by `ours`.
pub(super) fn check_destination(ours: &BlockInfo, theirs: &BlockInfo) -> Result<(), SwapError> {
    let (needed, found) = (ours.size_bytes, theirs.size_bytes);
    if found < needed {
        return Err(SwapError::TooSmall { needed, found });
    }
    if theirs.is_read_only {
        return Err(SwapError::ReadOnly);
    }
    if theirs.block_bytes > ours.block_bytes || theirs.request_bytes_max < ours.request_bytes_max {
        let why = format!(
            "it takes requests of {} to {} bytes, and users of the device make ones of {} to {}",
            theirs.block_bytes, theirs.request_bytes_max, ours.block_bytes, ours.request_bytes_max
        );
        return Err(SwapError::Open(SwapSide::Destination, why));
    }
    Ok(())
}

impl<D: BlockDevice> BlockLayer for SwapRequestTracker<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.current.below.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.current.below.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        let result = self.current.below.act(done, act);
        self.settle_turn(now, done);
        result
    }

    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if let Err(error) = self.info.check(&request) {
            return done.push(request.fail(error));
        }
        if self.untracked > 0 {
            request.own_payload();
            return self.held.push_back(request);
        }
        self.take_in(now, request, done);
        self.settle(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let current = self.current.below.device.poll_timeout();
        let Some(swap) = &self.swap else { return current };
        let more = swap.has_more.then_some(Instant::ZERO);
        let late = self.lagging().map(|(_, since)| since + LAG_TIME_MAX).min();
        let is_last = matches!(swap.stage, DeviceSwapPhase::Releasing | DeviceSwapPhase::GivenUp);
        let over = is_last.then(|| swap.since + RELEASE_TIME_MAX);
        [current, swap.other.below.device.poll_timeout(), more, swap.paid_at, late, over].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.current.handle_timeout(now, done);
        if let Some(swap) = &mut self.swap {
            swap.other.handle_timeout(now, done);
        }
        self.settle(now, done);
        self.see_whether_late(now);
        self.go_on(now, done);
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.swap.is_some() {
            return self.settle_turn(now, done);
        }
        self.current.end_turn(now, done);
        self.settle(now, done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        match &self.swap {
            Some(swap) => swap.readiness.as_ref(),
            None => self.current.below.device.readiness(),
        }
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.current.handle_ready(now, done);
        if let Some(swap) = &mut self.swap {
            swap.other.handle_ready(now, done);
        }
        self.settle(now, done);
        self.go_on(now, done);
    }

    fn is_gone(&self) -> bool {
        // The journal may say any moment that the other one is the device.
        self.inner().is_gone() && self.stage() != Some(DeviceSwapPhase::Noting)
    }

    fn state(&self) -> Option<Vec<u8>> {
        // Another process would open the first device again.
        None
    }

    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.save_swapped(now)
    }

    fn leave(&mut self) {
        self.current.below.device.leave();
        self.current.in_flight = 0;
        if let Some(swap) = &mut self.swap {
            swap.other.below.device.leave();
        }
        self.held.drain(..).for_each(|request| drop(request.recall()));
        for job in std::mem::take(&mut self.jobs).into_values() {
            if let SwappableJobKind::User { owed, .. } = job.what {
                drop(owed.recall());
            }
        }
    }
}
