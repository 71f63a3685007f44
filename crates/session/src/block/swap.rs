//! The work of a swap: copies the source, then moves the handles from one medium to the other (requirement N12).
//!
//! A state machine that its owner drives step by step. Each step copies or compares a piece, or moves the handles of
//! the [`MediumSwitch`] to their next mode. A [`MilestoneJournal`] records what has to survive a power cut.
//!
//! | phase | what a step does | the source is complete | the destination is complete |
//! |---|---|---|---|
//! | `Beginning` | waits until every handle records changes | yes | |
//! | `Copying` | copies what is recorded as changed, in rounds | yes | |
//! | `Verifying` | compares both media, if that is wanted; more is copied after it | yes | |
//! | `Flushing` | makes the copy durable while no request waits for it | yes | |
//! | `Joining` | waits until every handle writes to both media | yes | |
//! | `Draining` | copies, then verifies, the rest, with one piece locked at a time; nothing new is recorded as changed | yes | |
//! | `Deciding` | makes the rest durable; the journal says that the destination is the device | yes | yes |
//! | `Flipping`, `Releasing` | waits until no handle uses the source | | yes |
//!
//! A swap that fails or is cancelled up to and including `Deciding` leaves the source as it would be without the swap.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::limits::SWAP_RUN_BYTES_MAX;
use farbus_model::{BlockMedium, BlockStore, Instant, StoreError};

use super::granules::{GranuleRun, GranuleSet};
use super::rate::TokenBucket;
use super::switch::{MediumSwitch, MediumSwitchInner, SwapMediumPair, SwapStartError, SwitchMode};

/// Copy rounds before the swap compares, or writes to both media. From then on, what is left only shrinks.
pub(super) const ROUNDS_MAX: u32 = 8;
/// Rounds of comparing before both media are written.
const VERIFICATIONS_MAX: u32 = 4;
/// Bytes that may be left to copy at that point: some milliseconds of work.
pub(super) const LEFT_BYTES: u64 = 1 << 20;
/// Most bytes locked at a time; changes of a piece wait while it is copied.
const HELD_BYTES_MAX: u64 = 64 << 10;
/// Bytes copied before the destination is flushed. More would fill the page cache with dirty pages until the kernel
/// throttles every writer.
pub(super) const UNFLUSHED_BYTES_MAX: u64 = 32 << 20;
/// Interval for checking whether all handles have caught up.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// How long the handles may take to reach a mode before the swap is given up: twice what a failing disk takes for a
/// request.
const CATCH_UP_TIME_MAX: Duration = Duration::from_secs(60);
/// Granularity for locating an unreadable block, bytes.
const BAD_BLOCK_BYTES: usize = 4096;
/// The period over which the rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(1);

/// Records what has to survive a power cut. A note is durable when `note` returns.
pub trait MilestoneJournal: Send {
    /// Records the swap's milestone; the last note is the valid one.
    ///
    /// # Errors
    /// A sentence for a person. Whether the note was made is then unknown.
    fn note(&mut self, milestone: SwapMilestone) -> Result<(), String>;
}

/// Where a swap is, as far as that matters after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapMilestone {
    /// The source is the device; the destination holds part of a copy.
    Copying,
    /// The destination is the device; the source is out of date.
    Switched,
    /// The source is the device and remains it.
    Abandoned,
}

/// Options of a swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapOptions {
    /// Most bytes copied per second; `None`: no limit.
    pub rate: Option<u64>,
    /// Whether both media are read and compared before the switch.
    pub verify: bool,
    /// Whether the destination may hold most of the data already, from an interrupted swap. Its content is then read
    /// first, and equal data is not written again.
    pub resume: bool,
}

/// One of the two media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapSide {
    /// The medium that is replaced.
    Source,
    /// The medium that takes its place.
    Destination,
}

impl fmt::Display for SwapSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SwapSide::Source => "the source",
            SwapSide::Destination => "the destination",
        })
    }
}

/// Why a swap failed. The device continues with its source, and no data is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapError {
    /// Another swap is running.
    AnotherSwap,
    /// The destination is smaller than the device; sizes in bytes.
    TooSmall {
        /// Size of the device.
        needed: u64,
        /// Size of the destination.
        found: u64,
    },
    /// The destination is read-only.
    ReadOnly,
    /// A medium cannot be opened; with the reason as a sentence.
    Open(SwapSide, String),
    /// A medium failed.
    Medium {
        /// Which medium failed.
        side: SwapSide,
        /// Where it failed, bytes; exact to 4096 bytes.
        offset: u64,
        /// How it failed.
        error: StoreError,
    },
    /// The destination returns other data than was written.
    Differs {
        /// First byte that differs.
        offset: u64,
    },
    /// A request of the device's user does not complete.
    Stuck,
    /// The journal could not be written; with the reason as a sentence.
    Journal(String),
    /// The owner cancelled it.
    Cancelled,
}

impl fmt::Display for SwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwapError::AnotherSwap => f.write_str("it is being swapped already"),
            SwapError::TooSmall { needed, found } => {
                write!(f, "the destination is too small: the device has {needed} bytes, the destination {found}")
            }
            SwapError::ReadOnly => f.write_str("the destination cannot be written"),
            SwapError::Open(side, why) => write!(f, "{side}: {why}"),
            SwapError::Medium { side: SwapSide::Source, offset, error: StoreError::Medium } => {
                write!(f, "the source cannot be read at byte {offset}: a bad block, or it has become shorter")
            }
            SwapError::Medium { side, offset, error } => write!(f, "{side} failed at byte {offset}: {error}"),
            SwapError::Differs { offset } => {
                write!(f, "at byte {offset} the destination does not hold what was written there")
            }
            SwapError::Stuck => f.write_str("a request of the device's user does not end, so it cannot be taken along"),
            SwapError::Journal(why) => write!(f, "the journal cannot be written: {why}"),
            SwapError::Cancelled => f.write_str("it was cancelled"),
        }
    }
}

impl std::error::Error for SwapError {}

/// What a completed swap did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapReport {
    /// Bytes copied, including those copied more than once.
    pub copied_bytes: u64,
    /// Copy rounds; the first covers the whole device.
    pub rounds: u32,
    /// Duration of the swap.
    pub took: Duration,
}

/// What the owner of the swap does next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it says when to go on, or how it ended"]
pub enum SwapStep {
    /// Call `step` again at once.
    Again,
    /// Call `step` again at this moment, not before.
    At(Instant),
    /// The swap is over.
    Ended(Result<SwapReport, SwapError>),
}

/// Progress of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapProgress {
    /// The current phase.
    pub phase: SwapPhase,
    /// Size of the device, bytes.
    pub total_bytes: u64,
    /// Bytes copied so far, including those copied more than once.
    pub copied_bytes: u64,
    /// Bytes still to be copied, as far as is known.
    pub left_bytes: u64,
    /// Bytes that were copied and are still to be compared.
    pub unverified_bytes: u64,
    /// Current rate, bytes per second.
    pub rate: u64,
    /// The current round, from 1.
    pub round: u32,
    /// The longest time by which the swap has delayed a request so far; zero if the swap has no clock
    /// ([`MediumSwap::timed_by`]).
    pub delayed: Duration,
}

/// The phase of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapPhase {
    /// Waiting until every handle records changes.
    Beginning,
    /// Copying the medium while its user continues.
    Copying,
    /// Comparing what was copied with the medium.
    Verifying,
    /// Flushing the copy.
    Flushing,
    /// Waiting until every handle writes to both media.
    Joining,
    /// Copying and comparing the rest.
    Draining,
    /// Making the rest durable, then recording the switch.
    Deciding,
    /// Waiting until every handle reads the destination.
    Flipping,
    /// Waiting until no handle uses the source.
    Releasing,
}

impl SwapPhase {
    /// The phase as a word, for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            SwapPhase::Beginning => "beginning",
            SwapPhase::Copying => "copying",
            SwapPhase::Verifying => "verifying",
            SwapPhase::Flushing => "flushing",
            SwapPhase::Joining | SwapPhase::Draining | SwapPhase::Deciding => "switching",
            SwapPhase::Flipping | SwapPhase::Releasing => "releasing",
        }
    }

    /// Whether the destination is the device from now on.
    pub const fn is_decided(self) -> bool {
        matches!(self, SwapPhase::Flipping | SwapPhase::Releasing)
    }
}

/// A swap in progress. Dropping it cancels the swap, unless it is decided.
pub struct MediumSwap {
    shared: Arc<MediumSwitchInner>,
    tandem: Arc<SwapMediumPair>,
    source: Box<dyn BlockStore>,
    destination: Box<dyn BlockStore>,
    journal: Box<dyn MilestoneJournal>,
    options: SwapOptions,
    phase: SwapPhase,
    /// When it entered this phase.
    since: Instant,
    began: Instant,
    cursor: u64,
    round: u32,
    /// Rounds of comparing so far.
    verifications: u32,
    /// Bytes left to copy after the previous round.
    left_before: u64,
    unverified: GranuleSet,
    /// Bytes copied since the last flush of the destination.
    unflushed: u64,
    bucket: TokenBucket,
    meter: CopyRateMeter,
    is_cancelled: bool,
    is_over: bool,
    buffers: [Vec<u8>; 2],
}

/// Measures the rate in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRateMeter {
    copied: u64,
    since: Instant,
    copied_before: u64,
    rate: u64,
}

impl CopyRateMeter {
    pub fn new(now: Instant) -> Self {
        Self { copied: 0, since: now, copied_before: 0, rate: 0 }
    }

    /// All bytes so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    pub fn add(&mut self, now: Instant, bytes: u64) {
        self.copied += bytes;
        let span = now - self.since;
        if span >= RATE_SPAN {
            let ns = span.as_nanos();
            self.rate = (u128::from(self.copied - self.copied_before) * 1_000_000_000 / ns) as u64;
            (self.since, self.copied_before) = (now, self.copied);
        }
    }

    /// The rate over the last full period, or over the first one so far.
    pub fn rate(&self, now: Instant) -> u64 {
        let ns = (now - self.since).as_nanos().max(1);
        if self.copied_before > 0 { self.rate } else { (u128::from(self.copied) * 1_000_000_000 / ns) as u64 }
    }
}

impl fmt::Debug for MediumSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediumSwap").field("phase", &self.phase).field("round", &self.round).finish_non_exhaustive()
    }
}

impl MediumSwap {
    /// Begins to replace the medium of `switch` by `destination`.
    ///
    /// # Errors
    /// [`SwapError`]: nothing has been written to the destination.
    pub fn begin(
        switch: &MediumSwitch,
        destination: Arc<dyn BlockMedium>,
        mut journal: Box<dyn MilestoneJournal>,
        options: SwapOptions,
        now: Instant,
    ) -> Result<Self, SwapError> {
        let shared = Arc::clone(switch.shared());
        let store = destination.open().map_err(|why| SwapError::Open(SwapSide::Destination, why))?;
        let (needed, found) = (shared.size_bytes, store.size_bytes());
        if found < needed {
            return Err(SwapError::TooSmall { needed, found });
        }
        if store.is_read_only() {
            return Err(SwapError::ReadOnly);
        }
        let source = shared.open_current().map_err(|why| SwapError::Open(SwapSide::Source, why))?;
        let tandem = shared.begin(destination).map_err(|unready| match unready {
            SwapStartError::AnotherSwap => SwapError::AnotherSwap,
            SwapStartError::Destination(why) => SwapError::Open(SwapSide::Destination, why),
        })?;
        if let Err(why) = journal.note(SwapMilestone::Copying) {
            shared.end(false);
            return Err(SwapError::Journal(why));
        }
        let run_bytes = tandem.dirty.granule_bytes().max(SWAP_RUN_BYTES_MAX) as usize;
        Ok(Self {
            shared,
            source,
            destination: store,
            journal,
            options,
            phase: SwapPhase::Beginning,
            since: now,
            began: now,
            cursor: 0,
            round: 0,
            verifications: 0,
            left_before: u64::MAX,
            unverified: GranuleSet::none_of(needed),
            unflushed: 0,
            bucket: TokenBucket::new(options.rate, now),
            meter: CopyRateMeter::new(now),
            is_cancelled: false,
            is_over: false,
            buffers: [vec![0; run_bytes], vec![0; run_bytes]],
            tandem,
        })
    }

    /// How far the swap is at `now`: the phase, the bytes that are done and left, and the rate.
    pub fn progress(&self, now: Instant) -> SwapProgress {
        SwapProgress {
            phase: self.phase,
            total_bytes: self.shared.size_bytes,
            copied_bytes: self.meter.copied(),
            left_bytes: self.tandem.dirty.bytes(),
            unverified_bytes: self.unverified.bytes(),
            rate: self.meter.rate(now),
            round: self.round + 1,
            delayed: self.tandem.delayed(),
        }
    }

    /// Gives the swap the clock by which requests measure how long it delays them: requests run on other threads than
    /// the swap's steps. A later call changes nothing.
    #[must_use]
    pub fn timed_by(self, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        self.tandem.measure_by(Box::new(clock));
        self
    }

    /// Its current phase.
    pub fn phase(&self) -> SwapPhase {
        self.phase
    }

    /// Cancels the swap at the next step. Returns `false` if it is too late: the destination is the device.
    pub fn cancel(&mut self) -> bool {
        self.is_cancelled |= !self.phase.is_decided();
        self.is_cancelled
    }

    /// Does the next piece of work. Must not be called after [`SwapStep::Ended`].
    pub fn step(&mut self, now: Instant) -> SwapStep {
        match self.try_step(now) {
            Ok(step) => step,
            Err(error) => SwapStep::Ended(Err(self.give_up(error))),
        }
    }

    fn try_step(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        if self.is_cancelled {
            return Err(SwapError::Cancelled);
        }
        match self.phase {
            SwapPhase::Beginning | SwapPhase::Joining | SwapPhase::Flipping | SwapPhase::Releasing => {
                self.take_along(now)
            }
            SwapPhase::Copying => self.copy_round(now),
            SwapPhase::Verifying => self.verify_round(now),
            SwapPhase::Flushing => {
                self.flush_destination()?;
                self.shared.go_on(SwitchMode::Both);
                Ok(self.enter(SwapPhase::Joining, now))
            }
            SwapPhase::Draining => self.drain(now),
            SwapPhase::Deciding => self.decide(now),
        }
    }

    fn enter(&mut self, phase: SwapPhase, now: Instant) -> SwapStep {
        (self.phase, self.since, self.cursor) = (phase, now, 0);
        SwapStep::Again
    }

    /// Waits until every handle has reached the mode, then enters the next phase.
    fn take_along(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        if !self.shared.has_everybody() {
            // After the decision there is no way back: a handle with a stuck request follows when that completes.
            if !self.phase.is_decided() && now - self.since > CATCH_UP_TIME_MAX {
                return Err(SwapError::Stuck);
            }
            return Ok(SwapStep::At(now + LOOK_AGAIN));
        }
        Ok(match self.phase {
            SwapPhase::Beginning => self.enter(SwapPhase::Copying, now),
            SwapPhase::Joining => self.enter(SwapPhase::Draining, now),
            SwapPhase::Flipping => {
                self.shared.end(true);
                self.enter(SwapPhase::Releasing, now)
            }
            _ => {
                self.is_over = true;
                let (copied_bytes, rounds, took) = (self.meter.copied(), self.round, now - self.began);
                SwapStep::Ended(Ok(SwapReport { copied_bytes, rounds, took }))
            }
        })
    }

    /// Copies the next run, or ends the round.
    fn copy_round(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(SwapStep::At(until));
        }
        if let Some(run) = self.tandem.dirty.take(self.cursor, SWAP_RUN_BYTES_MAX) {
            self.cursor = run.end();
            self.copy(run, self.options.resume && self.round == 0)?;
            self.count(run, now)?;
            return Ok(SwapStep::Again);
        }
        let left = self.tandem.dirty.bytes();
        let is_little = left <= LEFT_BYTES;
        // The round shrank the rest by less than a quarter: further rounds would copy the same data again.
        let shrinks_no_more = left > self.left_before / 4 * 3;
        self.round += 1;
        if !is_little && !shrinks_no_more && !self.round.is_multiple_of(ROUNDS_MAX) {
            (self.left_before, self.cursor) = (left, 0);
            return Ok(SwapStep::Again);
        }
        // Verifying takes time, during which more changes: the data copied since is verified as well, up to the limit.
        let is_much = self.verifications == 0 || self.unverified.bytes() > LEFT_BYTES;
        if self.options.verify && is_much && self.verifications < VERIFICATIONS_MAX {
            self.verifications += 1;
            return Ok(self.enter(SwapPhase::Verifying, now));
        }
        Ok(self.enter(SwapPhase::Flushing, now))
    }

    /// Compares the next run. Data that differs was changed just now, or is wrong: it is copied again and compared
    /// again later, when nothing else changes it.
    fn verify_round(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(SwapStep::At(until));
        }
        let Some(run) = self.unverified.take(self.cursor, SWAP_RUN_BYTES_MAX) else {
            self.left_before = u64::MAX;
            return Ok(self.enter(SwapPhase::Copying, now));
        };
        self.cursor = run.end();
        self.bucket.take(now, run.bytes);
        if self.difference(run)?.is_some() {
            let granule = self.tandem.dirty.granule_bytes() as usize;
            let [bytes, there] = &self.buffers;
            let pieces = bytes[..run.bytes as usize].chunks(granule).zip(there.chunks(granule));
            for (at, _) in pieces.enumerate().filter(|(_, (one, other))| one != &&other[..one.len()]) {
                self.tandem.dirty.add(run.offset + (at * granule) as u64, 1);
            }
        }
        Ok(SwapStep::Again)
    }

    /// Every handle writes to both media now: each step reduces what is left.
    fn drain(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        self.check_destination()?;
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(SwapStep::At(until));
        }
        let tandem = Arc::clone(&self.tandem);
        // Only changes of this very piece wait for it.
        if let Some(run) =
            tandem.dirty.take(self.cursor, HELD_BYTES_MAX).or_else(|| tandem.dirty.take(0, HELD_BYTES_MAX))
        {
            self.cursor = run.end();
            let held = tandem.both.hold(run.offset, run.bytes);
            self.copy(run, false)?;
            drop(held);
            self.count(run, now)?;
            return Ok(SwapStep::Again);
        }
        let next =
            self.unverified.take(self.cursor, HELD_BYTES_MAX).or_else(|| self.unverified.take(0, HELD_BYTES_MAX));
        let Some(run) = next else { return Ok(self.enter(SwapPhase::Deciding, now)) };
        self.cursor = run.end();
        let held = tandem.both.hold(run.offset, run.bytes);
        let difference = self.difference(run)?;
        drop(held);
        match difference {
            // The source failed a change just now, so its content is unknown: the piece is copied and compared again.
            Some(offset) if tandem.dirty.has(offset) => {
                self.unverified.add(run.offset, run.bytes);
            }
            Some(offset) => return Err(SwapError::Differs { offset }),
            None => {}
        }
        self.bucket.take(now, run.bytes);
        Ok(SwapStep::Again)
    }

    fn decide(&mut self, now: Instant) -> Result<SwapStep, SwapError> {
        self.flush_destination()?;
        let failed = |(offset, error)| SwapError::Medium { side: SwapSide::Destination, offset, error };
        if !self.tandem.decide().map_err(failed)? {
            // The source failed a change after the rest was copied: that place must be copied again.
            return Ok(self.enter(SwapPhase::Draining, now));
        }
        self.journal.note(SwapMilestone::Switched).map_err(SwapError::Journal)?;
        self.shared.go_on(SwitchMode::Flipped);
        Ok(self.enter(SwapPhase::Flipping, now))
    }

    fn flush_destination(&mut self) -> Result<(), SwapError> {
        let failed = |error| SwapError::Medium { side: SwapSide::Destination, offset: 0, error };
        self.unflushed = 0;
        self.destination.flush().map_err(failed)
    }

    fn check_destination(&self) -> Result<(), SwapError> {
        let failed = |(offset, error)| SwapError::Medium { side: SwapSide::Destination, offset, error };
        self.tandem.trouble().map_or(Ok(()), |trouble| Err(failed(trouble)))
    }

    fn count(&mut self, run: GranuleRun, now: Instant) -> Result<(), SwapError> {
        self.meter.add(now, run.bytes);
        self.bucket.take(now, run.bytes);
        if self.options.verify {
            self.unverified.add(run.offset, run.bytes);
        }
        self.unflushed += run.bytes;
        if self.unflushed >= UNFLUSHED_BYTES_MAX { self.flush_destination() } else { Ok(()) }
    }

    /// Copies a run; with `looks_first`, equal data is not written again. Zeros are discarded instead of written, so
    /// holes stay holes.
    fn copy(&mut self, run: GranuleRun, looks_first: bool) -> Result<(), SwapError> {
        let [bytes, there] = &mut self.buffers;
        let (bytes, there) = (&mut bytes[..run.bytes as usize], &mut there[..run.bytes as usize]);
        read(&mut *self.source, SwapSide::Source, run.offset, bytes)?;
        if looks_first && self.destination.read_at(run.offset, there).is_ok() && there == bytes {
            return Ok(());
        }
        let written = if is_zero(bytes) {
            self.destination.discard(run.offset, run.bytes)
        } else {
            self.destination.write_at(run.offset, bytes)
        };
        written.map_err(|error| SwapError::Medium { side: SwapSide::Destination, offset: run.offset, error })
    }

    /// The first byte where the two media differ.
    fn difference(&mut self, run: GranuleRun) -> Result<Option<u64>, SwapError> {
        let [bytes, there] = &mut self.buffers;
        let (bytes, there) = (&mut bytes[..run.bytes as usize], &mut there[..run.bytes as usize]);
        read(&mut *self.source, SwapSide::Source, run.offset, bytes)?;
        read(&mut *self.destination, SwapSide::Destination, run.offset, there)?;
        if bytes == there {
            return Ok(None);
        }
        let at = bytes.iter().zip(&*there).position(|(one, other)| one != other).unwrap_or_default();
        Ok(Some(run.offset + at as u64))
    }

    /// Ends the swap with the source as the device.
    fn give_up(&mut self, error: SwapError) -> SwapError {
        self.is_over = true;
        // This note comes before any write to the source alone: the last note may say that the destination is the
        // device.
        let noted = self.journal.note(SwapMilestone::Abandoned);
        self.shared.end(false);
        // Idle handles drop the destination now, all others with their next request.
        let _ = self.shared.has_everybody();
        match noted {
            Ok(()) => error,
            Err(why) if matches!(error, SwapError::Journal(_)) => {
                SwapError::Journal(format!("{why}; it may say that the device was moved, and it was not"))
            }
            // The last note then says that a copy was begun, which is true as well.
            Err(_) => error,
        }
    }
}

impl Drop for MediumSwap {
    fn drop(&mut self) {
        // After the decision there is no way back: both media continue to be written, and either can be the device.
        if !self.is_over && !self.phase.is_decided() {
            let _ = self.give_up(SwapError::Cancelled);
        }
    }
}

/// Reads a range, block by block if it cannot be read as a whole; an error names the block that failed.
fn read(store: &mut dyn BlockStore, side: SwapSide, offset: u64, to: &mut [u8]) -> Result<(), SwapError> {
    if store.read_at(offset, to).is_ok() {
        return Ok(());
    }
    let mut at = offset;
    for piece in to.chunks_mut(BAD_BLOCK_BYTES) {
        if let Err(error) = store.read_at(at, piece) {
            return Err(SwapError::Medium { side, offset: at, error });
        }
        at += piece.len() as u64;
    }
    Ok(())
}

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // Without a branch per byte, the compiler uses wide instructions.
    let chunks = bytes.chunks_exact(64);
    let rest = chunks.remainder();
    chunks.into_iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}
