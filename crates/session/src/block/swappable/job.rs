//! What a swappable device owes answers to, and a device with what it has to answer.

use std::ops::Range;

use farbus_model::{BlockCompletion, BlockDevice, BlockInFlight, CompletionQueue, Instant, Payload, StoreError};

use crate::block::below::UnderlyingDevice;
use crate::block::granules::GranuleRun;

/// A device with what it has to answer.
#[derive(Debug)]
pub(super) struct SwapMember<D> {
    pub below: UnderlyingDevice<D>,
    pub in_flight: usize,
    /// Whether it was asked since its last [`BlockDevice::end_turn`].
    pub was_asked: bool,
}

/// Which of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwapMemberRole {
    /// The one that is the device: the source, and the destination once it is.
    Current,
    /// The other one.
    Other,
}

/// A request of the device's user, or of the swap.
#[derive(Debug)]
pub(super) struct SwappableJob {
    pub range: Range<u64>,
    pub what: SwappableJobKind,
    pub since: Instant,
    /// When the current device answered it.
    pub answered: Option<Instant>,
    pub is_begun: bool,
    pub at_current: bool,
    pub at_other: bool,
}

#[derive(Debug)]
pub(super) enum SwappableJobKind {
    /// A request of the user, with the data of a write until it is begun. `result` is the current device's, `there` the
    /// other one's.
    User {
        owed: BlockInFlight,
        data: Payload,
        is_both: bool,
        result: Result<(), StoreError>,
        there: Result<(), StoreError>,
        answer: Payload,
    },
    /// Asks the source for its holes.
    Map,
    /// Copies or compares.
    Piece(SwapCopyPiece),
    /// Makes a hole read as zeros.
    Clear,
    /// Makes the destination durable, or both.
    Flush,
}

/// A piece that is read from the source, and compared with the destination or written to it.
#[derive(Debug)]
pub(super) struct SwapCopyPiece {
    pub compares: bool,
    /// The destination may have the data already.
    pub looks: bool,
    pub read: Option<Payload>,
    pub there: Option<Payload>,
    pub is_written: bool,
}

impl SwappableJob {
    pub fn new(range: Range<u64>, what: SwappableJobKind, since: Instant) -> Self {
        Self { range, what, since, answered: None, is_begun: false, at_current: false, at_other: false }
    }

    pub fn is_change(&self) -> bool {
        matches!(&self.what, SwappableJobKind::User { owed, .. } if owed.op.is_change())
    }

    pub fn is_work(&self) -> bool {
        matches!(self.what, SwappableJobKind::Piece(_) | SwappableJobKind::Clear)
    }

    /// The other device is the current one from now on. What the one before could not do, the new one did as well, or
    /// does now.
    pub fn change_places(&mut self) {
        std::mem::swap(&mut self.at_current, &mut self.at_other);
        let is_change = self.is_change();
        if let SwappableJobKind::User { is_both, result, there, .. } = &mut self.what {
            match (*is_both, *result) {
                (true, _) => (*result, *there) = (*there, Ok(())),
                (false, Err(_)) if !is_change => (self.is_begun, *result) = (false, Ok(())),
                _ => {}
            }
        }
    }

    /// Whether one of the two has to wait for the other.
    pub fn excludes(&self, other: &Self) -> bool {
        let overlap = self.range.start < other.range.end && other.range.start < self.range.end;
        let clash = self.is_change() || other.is_change() || (self.is_work() && other.is_work());
        overlap && clash
    }

    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub fn run(&self) -> GranuleRun {
        GranuleRun { offset: self.range.start, bytes: self.bytes() }
    }

    pub fn at(&mut self, role: SwapMemberRole) -> &mut bool {
        match role {
            SwapMemberRole::Current => &mut self.at_current,
            SwapMemberRole::Other => &mut self.at_other,
        }
    }
}

impl<D: BlockDevice> SwapMember<D> {
    pub fn new(device: D) -> Self {
        Self { below: UnderlyingDevice::new(device), in_flight: 0, was_asked: false }
    }

    pub fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        (self.in_flight, self.was_asked) = (self.in_flight + 1, true);
        self.below.act(done, |device, done| device.submit(now, request, done));
    }

    pub fn pop(&mut self) -> Option<BlockCompletion> {
        let answer = self.below.pop()?;
        self.in_flight -= 1;
        Some(answer)
    }

    pub fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.was_asked = false;
        self.below.act(done, |device, done| device.end_turn(now, done));
    }

    pub fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.below.act(done, |device, done| device.handle_ready(now, done));
    }

    pub fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.below.device.poll_timeout().is_some_and(|at| at <= now) {
            self.below.act(done, |device, done| device.handle_timeout(now, done));
        }
    }
}
