//! The work of a swap: copying, and going from one medium to the other (requirement N12).
//!
//! A machine that is driven step by step by whoever owns it; each step copies or compares a piece, or takes the handles
//! of the [`Switch`] to their next mode. What it needs to survive a power cut it says to a [`Journal`].
//!
//! | phase | what a step does | the source is complete | the destination is |
//! |---|---|---|---|
//! | `Beginning` | waits until everybody notes what is changed | yes | |
//! | `Copying` | copies what is noted, round by round | yes | |
//! | `Verifying` | reads both of what was copied, if that is wanted; more is copied after it | yes | |
//! | `Flushing` | makes the copy durable while nobody waits for it | yes | |
//! | `Joining` | waits until everybody writes both | yes | |
//! | `Draining` | copies, then verifies, what is left, holding a piece at a time: nothing is noted any more | yes | |
//! | `Deciding` | makes the last of it durable; the journal says that the destination is the device | yes | yes |
//! | `Flipping`, `Releasing` | waits until nobody uses the source | | yes |
//!
//! A swap that fails or is cancelled up to and including `Deciding` ends with the source as it would be without it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::limits::SWAP_RUN_BYTES_MAX;
use farbus_model::{BlockStore, Instant, Medium, StoreError};

use super::granules::{Granules, Run};
use super::rate::Bucket;
use super::switch::{Mode, Shared, Switch, Tandem, Unready};

/// Rounds over what has changed before both media are written, or compared: from then on it only becomes less.
const ROUNDS_MAX: u32 = 8;
/// Rounds of comparing before both media are written.
const VERIFICATIONS_MAX: u32 = 4;
/// What may be left for that, bytes: some milliseconds' work.
const LEFT_BYTES: u64 = 1 << 20;
/// What is held at a time, bytes: as long as a piece is copied, nobody changes it.
const HELD_BYTES_MAX: u64 = 64 << 10;
/// What is copied before it is made durable, bytes: more would fill the system's memory with what is not written yet,
/// until it makes everybody who writes wait.
const UNFLUSHED_BYTES_MAX: u64 = 32 << 20;
/// How soon to look again whether everybody has caught up.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// How long the handles may take for a mode before the swap is given up: what a sick disk takes for a request, twice.
const CATCH_UP_TIME_MAX: Duration = Duration::from_secs(60);
/// In which pieces a bad place is looked for, bytes.
const BAD_BLOCK_BYTES: usize = 4096;
/// Over how long the rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(1);

/// What has to outlive a power cut. A note is durable when it has been made.
pub trait Journal: Send {
    /// The swap is there now; the last note counts.
    ///
    /// # Errors
    /// A sentence for a person. Whether the note was made is then unknown.
    fn note(&mut self, milestone: Milestone) -> Result<(), String>;
}

/// Where a swap is, as far as it matters after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The source is the device; the destination is a part of a copy.
    Copying,
    /// The destination is the device; what the source has is old.
    Switched,
    /// The source is the device and stays it.
    Abandoned,
}

/// How to swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// At most so many bytes a second are copied; `None` is as many as can be.
    pub rate: Option<u64>,
    /// Both media are read and compared before the switch.
    pub verify: bool,
    /// The destination may have most of it already, from a swap that was interrupted: what it has is read and left
    /// alone.
    pub resume: bool,
}

/// One of the two media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that is left.
    Source,
    /// The one that takes its place.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "the source",
            Side::Destination => "the destination",
        })
    }
}

/// Why there was no swap. The device goes on with its source, and nothing of it is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapError {
    /// Another one is under way.
    AnotherSwap,
    /// The destination holds less than the device, bytes.
    TooSmall {
        /// What the device has.
        needed: u64,
        /// What there is.
        found: u64,
    },
    /// The destination cannot be written.
    ReadOnly,
    /// A medium cannot be opened; why, in a sentence.
    Open(Side, String),
    /// A medium failed.
    Medium {
        /// Which.
        side: Side,
        /// Where, bytes; to a page.
        offset: u64,
        /// How.
        error: StoreError,
    },
    /// The destination does not give back what was written there.
    Differs {
        /// Where, bytes.
        offset: u64,
    },
    /// A request of the device's user does not end.
    Stuck,
    /// What has to be durable could not be noted; why, in a sentence.
    Journal(String),
    /// Somebody cancelled it.
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
            SwapError::Medium { side: Side::Source, offset, error: StoreError::Medium } => {
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

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes copied, those that were copied again among them.
    pub copied_bytes: u64,
    /// Rounds over what had changed, the first over everything.
    pub rounds: u32,
    /// From beginning to end.
    pub took: Duration,
}

/// What the owner does next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it says when to go on, or how it ended"]
pub enum Step {
    /// Step again.
    Again,
    /// Step again then, not before.
    At(Instant),
    /// It is over.
    Ended(Result<Report, SwapError>),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it does.
    pub phase: Phase,
    /// Size of the device, bytes.
    pub total_bytes: u64,
    /// Bytes copied so far, those that were copied again among them.
    pub copied_bytes: u64,
    /// Bytes that are still to be copied as far as is known.
    pub left_bytes: u64,
    /// Bytes that were copied and are still to be compared.
    pub unverified_bytes: u64,
    /// Bytes a second, of late.
    pub rate: u64,
    /// Which round it is, from 1.
    pub round: u32,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting until everybody notes what is changed.
    Beginning,
    /// Copying.
    Copying,
    /// Comparing.
    Verifying,
    /// Making the copy durable.
    Flushing,
    /// Waiting until everybody writes both.
    Joining,
    /// Copying and comparing the rest.
    Draining,
    /// Making the last of it durable, and the switch.
    Deciding,
    /// Waiting until everybody reads the destination.
    Flipping,
    /// Waiting until nobody uses the source.
    Releasing,
}

impl Phase {
    /// A word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Beginning => "beginning",
            Phase::Copying => "copying",
            Phase::Verifying => "verifying",
            Phase::Flushing => "flushing",
            Phase::Joining | Phase::Draining | Phase::Deciding => "switching",
            Phase::Flipping | Phase::Releasing => "releasing",
        }
    }

    /// Whether the destination is the device by now.
    pub const fn is_decided(self) -> bool {
        matches!(self, Phase::Flipping | Phase::Releasing)
    }
}

/// A swap that is under way. Dropped before its end it is given up, if that can still be.
pub struct Swap {
    shared: Arc<Shared>,
    tandem: Arc<Tandem>,
    source: Box<dyn BlockStore>,
    destination: Box<dyn BlockStore>,
    journal: Box<dyn Journal>,
    options: Options,
    phase: Phase,
    /// Since when it is in this phase.
    since: Instant,
    began: Instant,
    cursor: u64,
    round: u32,
    /// Rounds of comparing.
    verifications: u32,
    /// What was left after the round before.
    left_before: u64,
    unverified: Granules,
    /// Bytes copied since the destination was last made durable.
    unflushed: u64,
    bucket: Bucket,
    meter: Meter,
    is_cancelled: bool,
    is_over: bool,
    buffers: [Vec<u8>; 2],
}

/// Bytes a second.
#[derive(Clone, Copy, Debug)]
struct Meter {
    copied: u64,
    since: Instant,
    copied_before: u64,
    rate: u64,
}

impl Meter {
    fn add(&mut self, now: Instant, bytes: u64) {
        self.copied += bytes;
        let span = now - self.since;
        if span >= RATE_SPAN {
            let ns = span.as_nanos();
            self.rate = (u128::from(self.copied - self.copied_before) * 1_000_000_000 / ns) as u64;
            (self.since, self.copied_before) = (now, self.copied);
        }
    }

    /// That of the last span, or of the first as far as it is.
    fn rate(&self, now: Instant) -> u64 {
        let ns = (now - self.since).as_nanos().max(1);
        if self.copied_before > 0 { self.rate } else { (u128::from(self.copied) * 1_000_000_000 / ns) as u64 }
    }
}

impl fmt::Debug for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swap").field("phase", &self.phase).field("round", &self.round).finish_non_exhaustive()
    }
}

impl Swap {
    /// Begins to put `destination` behind `switch`.
    ///
    /// # Errors
    /// [`SwapError`]: nothing has been written to the destination then.
    pub fn begin(
        switch: &Switch,
        destination: Arc<dyn Medium>,
        mut journal: Box<dyn Journal>,
        options: Options,
        now: Instant,
    ) -> Result<Self, SwapError> {
        let shared = Arc::clone(switch.shared());
        let store = destination.open().map_err(|why| SwapError::Open(Side::Destination, why))?;
        let (needed, found) = (shared.size_bytes, store.size_bytes());
        if found < needed {
            return Err(SwapError::TooSmall { needed, found });
        }
        if store.is_read_only() {
            return Err(SwapError::ReadOnly);
        }
        let source = shared.open_current().map_err(|why| SwapError::Open(Side::Source, why))?;
        let tandem = shared.begin(destination).map_err(|unready| match unready {
            Unready::AnotherSwap => SwapError::AnotherSwap,
            Unready::Destination(why) => SwapError::Open(Side::Destination, why),
        })?;
        if let Err(why) = journal.note(Milestone::Copying) {
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
            phase: Phase::Beginning,
            since: now,
            began: now,
            cursor: 0,
            round: 0,
            verifications: 0,
            left_before: u64::MAX,
            unverified: Granules::none_of(needed),
            unflushed: 0,
            bucket: Bucket::new(options.rate, now),
            meter: Meter { copied: 0, since: now, copied_before: 0, rate: 0 },
            is_cancelled: false,
            is_over: false,
            buffers: [vec![0; run_bytes], vec![0; run_bytes]],
            tandem,
        })
    }

    /// How far it is.
    pub fn progress(&self, now: Instant) -> Progress {
        Progress {
            phase: self.phase,
            total_bytes: self.shared.size_bytes,
            copied_bytes: self.meter.copied,
            left_bytes: self.tandem.dirty.bytes(),
            unverified_bytes: self.unverified.bytes(),
            rate: self.meter.rate(now),
            round: self.round + 1,
        }
    }

    /// What it does.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Gives it up with the next step; `false` if it is too late for that: the destination is the device.
    pub fn cancel(&mut self) -> bool {
        self.is_cancelled |= !self.phase.is_decided();
        self.is_cancelled
    }

    /// Does the next piece of work. Not to be called any more after it has ended.
    pub fn step(&mut self, now: Instant) -> Step {
        match self.try_step(now) {
            Ok(step) => step,
            Err(error) => Step::Ended(Err(self.give_up(error))),
        }
    }

    fn try_step(&mut self, now: Instant) -> Result<Step, SwapError> {
        if self.is_cancelled {
            return Err(SwapError::Cancelled);
        }
        match self.phase {
            Phase::Beginning | Phase::Joining | Phase::Flipping | Phase::Releasing => self.take_along(now),
            Phase::Copying => self.copy_round(now),
            Phase::Verifying => self.verify_round(now),
            Phase::Flushing => {
                self.flush_destination()?;
                self.shared.go_on(Mode::Both);
                Ok(self.enter(Phase::Joining, now))
            }
            Phase::Draining => self.drain(now),
            Phase::Deciding => self.decide(now),
        }
    }

    fn enter(&mut self, phase: Phase, now: Instant) -> Step {
        (self.phase, self.since, self.cursor) = (phase, now, 0);
        Step::Again
    }

    /// Waits until everybody has reached the mode, and says the next.
    fn take_along(&mut self, now: Instant) -> Result<Step, SwapError> {
        if !self.shared.has_everybody() {
            // Once it is decided there is no way back: whoever is stuck comes along when it is not any more.
            if !self.phase.is_decided() && now - self.since > CATCH_UP_TIME_MAX {
                return Err(SwapError::Stuck);
            }
            return Ok(Step::At(now + LOOK_AGAIN));
        }
        Ok(match self.phase {
            Phase::Beginning => self.enter(Phase::Copying, now),
            Phase::Joining => self.enter(Phase::Draining, now),
            Phase::Flipping => {
                self.shared.end(true);
                self.enter(Phase::Releasing, now)
            }
            _ => {
                self.is_over = true;
                let (copied_bytes, rounds, took) = (self.meter.copied, self.round, now - self.began);
                Step::Ended(Ok(Report { copied_bytes, rounds, took }))
            }
        })
    }

    /// Copies the next run, or ends the round.
    fn copy_round(&mut self, now: Instant) -> Result<Step, SwapError> {
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(Step::At(until));
        }
        if let Some(run) = self.tandem.dirty.take(self.cursor, SWAP_RUN_BYTES_MAX) {
            self.cursor = run.end();
            self.copy(run, self.options.resume && self.round == 0)?;
            self.count(run, now)?;
            return Ok(Step::Again);
        }
        let left = self.tandem.dirty.bytes();
        let is_little = left <= LEFT_BYTES;
        // Less than a quarter of it went away: more rounds would copy the same again and again.
        let shrinks_no_more = left > self.left_before / 4 * 3;
        self.round += 1;
        if !is_little && !shrinks_no_more && !self.round.is_multiple_of(ROUNDS_MAX) {
            (self.left_before, self.cursor) = (left, 0);
            return Ok(Step::Again);
        }
        // What is verified takes its time, in which more is changed: what was copied since is verified as well, and so
        // on.
        let is_much = self.verifications == 0 || self.unverified.bytes() > LEFT_BYTES;
        if self.options.verify && is_much && self.verifications < VERIFICATIONS_MAX {
            self.verifications += 1;
            return Ok(self.enter(Phase::Verifying, now));
        }
        Ok(self.enter(Phase::Flushing, now))
    }

    /// Compares the next run. What differs was changed a moment ago, or is wrong: it is copied again, and compared
    /// again when nothing else changes it.
    fn verify_round(&mut self, now: Instant) -> Result<Step, SwapError> {
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(Step::At(until));
        }
        let Some(run) = self.unverified.take(self.cursor, SWAP_RUN_BYTES_MAX) else {
            self.left_before = u64::MAX;
            return Ok(self.enter(Phase::Copying, now));
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
        Ok(Step::Again)
    }

    /// Everybody writes both now: what is left becomes less with each step.
    fn drain(&mut self, now: Instant) -> Result<Step, SwapError> {
        self.check_destination()?;
        if let Some(until) = self.bucket.wait_until(now) {
            return Ok(Step::At(until));
        }
        let tandem = Arc::clone(&self.tandem);
        // Whoever wants to change this very piece waits so long, and nobody else.
        if let Some(run) =
            tandem.dirty.take(self.cursor, HELD_BYTES_MAX).or_else(|| tandem.dirty.take(0, HELD_BYTES_MAX))
        {
            self.cursor = run.end();
            let held = tandem.both.hold(run.offset, run.bytes);
            self.copy(run, false)?;
            drop(held);
            self.count(run, now)?;
            return Ok(Step::Again);
        }
        let next =
            self.unverified.take(self.cursor, HELD_BYTES_MAX).or_else(|| self.unverified.take(0, HELD_BYTES_MAX));
        let Some(run) = next else { return Ok(self.enter(Phase::Deciding, now)) };
        self.cursor = run.end();
        let held = tandem.both.hold(run.offset, run.bytes);
        let difference = self.difference(run)?;
        drop(held);
        match difference {
            // The source refused a change just now, which made it something of its own.
            Some(offset) if tandem.dirty.has(offset) => self.unverified.add(run.offset, run.bytes),
            Some(offset) => return Err(SwapError::Differs { offset }),
            None => {}
        }
        self.bucket.take(now, run.bytes);
        Ok(Step::Again)
    }

    fn decide(&mut self, now: Instant) -> Result<Step, SwapError> {
        self.flush_destination()?;
        let failed = |(offset, error)| SwapError::Medium { side: Side::Destination, offset, error };
        if !self.tandem.decide().map_err(failed)? {
            // The source failed to take a change after the rest was copied.
            return Ok(self.enter(Phase::Draining, now));
        }
        self.journal.note(Milestone::Switched).map_err(SwapError::Journal)?;
        self.shared.go_on(Mode::Flipped);
        Ok(self.enter(Phase::Flipping, now))
    }

    fn flush_destination(&mut self) -> Result<(), SwapError> {
        let failed = |error| SwapError::Medium { side: Side::Destination, offset: 0, error };
        self.unflushed = 0;
        self.destination.flush().map_err(failed)
    }

    fn check_destination(&self) -> Result<(), SwapError> {
        let failed = |(offset, error)| SwapError::Medium { side: Side::Destination, offset, error };
        self.tandem.trouble().map_or(Ok(()), |trouble| Err(failed(trouble)))
    }

    fn count(&mut self, run: Run, now: Instant) -> Result<(), SwapError> {
        self.meter.add(now, run.bytes);
        self.bucket.take(now, run.bytes);
        if self.options.verify {
            self.unverified.add(run.offset, run.bytes);
        }
        self.unflushed += run.bytes;
        if self.unflushed >= UNFLUSHED_BYTES_MAX { self.flush_destination() } else { Ok(()) }
    }

    /// Copies a run; `looks_first` leaves alone what is there already. Zeros are made, not written: holes stay holes.
    fn copy(&mut self, run: Run, looks_first: bool) -> Result<(), SwapError> {
        let [bytes, there] = &mut self.buffers;
        let (bytes, there) = (&mut bytes[..run.bytes as usize], &mut there[..run.bytes as usize]);
        read(&mut *self.source, Side::Source, run.offset, bytes)?;
        if looks_first && self.destination.read_at(run.offset, there).is_ok() && there == bytes {
            return Ok(());
        }
        let written = if is_zero(bytes) {
            self.destination.discard(run.offset, run.bytes)
        } else {
            self.destination.write_at(run.offset, bytes)
        };
        written.map_err(|error| SwapError::Medium { side: Side::Destination, offset: run.offset, error })
    }

    /// Where the two differ first.
    fn difference(&mut self, run: Run) -> Result<Option<u64>, SwapError> {
        let [bytes, there] = &mut self.buffers;
        let (bytes, there) = (&mut bytes[..run.bytes as usize], &mut there[..run.bytes as usize]);
        read(&mut *self.source, Side::Source, run.offset, bytes)?;
        read(&mut *self.destination, Side::Destination, run.offset, there)?;
        if bytes == there {
            return Ok(None);
        }
        let at = bytes.iter().zip(&*there).position(|(one, other)| one != other).unwrap_or_default();
        Ok(Some(run.offset + at as u64))
    }

    /// Goes back to the source.
    fn give_up(&mut self, error: SwapError) -> SwapError {
        self.is_over = true;
        // Before anything is written to the source alone: the last line may say that the destination is the device.
        let noted = self.journal.note(Milestone::Abandoned);
        self.shared.end(false);
        // Whoever is idle lets go of the destination now, all others with their next request.
        let _ = self.shared.has_everybody();
        match noted {
            Ok(()) => error,
            Err(why) if matches!(error, SwapError::Journal(_)) => {
                SwapError::Journal(format!("{why}; it may say that the device was moved, and it was not"))
            }
            // The last word is that a copy was begun, which is right as well.
            Err(_) => error,
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // Once it is decided there is no way back: both go on being written, and either is the device.
        if !self.is_over && !self.phase.is_decided() {
            let _ = self.give_up(SwapError::Cancelled);
        }
    }
}

/// Reads, and says where exactly it could not.
fn read(store: &mut dyn BlockStore, side: Side, offset: u64, to: &mut [u8]) -> Result<(), SwapError> {
    let Err(error) = store.read_at(offset, to) else { return Ok(()) };
    let mut at = offset;
    for piece in to.chunks_mut(BAD_BLOCK_BYTES) {
        if let Err(error) = store.read_at(at, piece) {
            return Err(SwapError::Medium { side, offset: at, error });
        }
        at += piece.len() as u64;
    }
    // It can be read again: whatever it was, it was not nothing.
    Err(SwapError::Medium { side, offset, error })
}

/// Whether there is nothing but zeros.
fn is_zero(bytes: &[u8]) -> bool {
    // Without a branch for each byte the compiler makes wide words of it.
    let chunks = bytes.chunks_exact(64);
    let rest = chunks.remainder();
    chunks.into_iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}
