//! Changes of a remote disk that its exporter has answered and no flush has covered yet: kept here, so that they can be
//! written again.
//!
//! If the exporter's machine loses power, it forgets them. If all of them are here, they are written again, in the
//! order of their submission, before any other request, and no user notices. Nobody else can have written to the disk
//! meanwhile, because the exporter returns it only under the same lease ([`Leases`](crate::leases::DeviceLeases)).
//!
//! The kept data is bounded by [`RETAINED_BYTES_MAX`] and [`RETAINED_MAX`]; beyond that, the oldest changes are
//! dropped. A dropped change that was not flushed before the exporter lost power is lost, and the next flush fails.

use std::collections::VecDeque;

use farbus_model::{BlockInfo, BlockOp, BlockRequest};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Most bytes that are kept.
pub const RETAINED_BYTES_MAX: u64 = 8 << 20;
/// Most changes that are kept.
pub const RETAINED_MAX: usize = 2048;
/// Above this size a payload may be a window on a larger buffer that it keeps alive, so it counts as at least
/// [`LARGE_BYTES_MIN`].
const SMALL_BYTES_MAX: u64 = 64 << 10;
const LARGE_BYTES_MIN: u64 = 256 << 10;

/// A change that was answered.
#[derive(Debug)]
pub(super) struct RetainedChange {
    /// The request, with its data.
    pub request: BlockRequest,
    /// Its position among all requests.
    pub order: u64,
    /// Number of changes answered so far, this one included: a flush that covers this number covers the change.
    pub number: u64,
}

impl RetainedChange {
    fn cost(&self) -> u64 {
        match self.request.payload.len() as u64 {
            small @ 0..=SMALL_BYTES_MAX => small,
            large => large.max(LARGE_BYTES_MIN),
        }
    }

    /// Whether both change some of the same bytes.
    pub fn overlaps(&self, other: &BlockRequest) -> bool {
        let end = |request: &BlockRequest| request.offset.saturating_add(request.length.into());
        other.offset < end(&self.request) && self.request.offset < end(other)
    }
}

/// The changes kept of one disk.
#[derive(Debug, Default)]
pub(super) struct RetainedChanges {
    /// Changes that the exporter has answered.
    kept: VecDeque<RetainedChange>,
    bytes: u64,
    /// The number of the latest change that was dropped.
    forgotten: u64,
    /// Changes that the exporter has lost; they are written again in this order.
    again: VecDeque<RetainedChange>,
}

impl RetainedChanges {
    /// The state of a disk with this many answered changes, none of which are here.
    pub fn without(answered: u64) -> Self {
        Self { forgotten: answered, ..Self::default() }
    }

    /// Keeps a change that was answered.
    pub fn keep(&mut self, change: RetainedChange) {
        // A durable change is only kept behind others: if those are written again, it must be, too.
        if change.request.is_durable && self.kept.is_empty() && self.again.is_empty() {
            return;
        }
        self.bytes += change.cost();
        self.kept.push_back(change);
        while self.bytes > RETAINED_BYTES_MAX || self.kept.len() > RETAINED_MAX {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.bytes -= oldest.cost();
            self.forgotten = self.forgotten.max(oldest.number);
        }
    }

    /// Writes it to a snapshot. Must not be called while changes are being written again.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.u64(self.forgotten);
        to.count(self.kept.len());
        for RetainedChange { request, order, number } in &self.kept {
            to.block_request(request);
            to.u64(*order);
            to.u64(*number);
        }
    }

    /// Restores it from a snapshot, for a disk with this `info` and this many answered changes.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(from: &mut FieldReader<'_>, info: &BlockInfo, answered: u64) -> Result<Self, ProtocolViolation> {
        let mut retained = Self::without(from.u64("changes forgotten")?.min(answered));
        for _ in 0..from.count("changes kept", 42)? {
            let request = from.block_request()?;
            let (order, number) = (from.u64("order")?, from.u64("number")?);
            let is_one = is_retained(request.op) && info.check(&request).is_ok() && number <= answered;
            if !is_one {
                return Err(ProtocolViolation::new(
                    "change kept",
                    number,
                    "it was answered, and its device can have it",
                ));
            }
            let mut change = RetainedChange { request, order, number };
            change.request.payload.share();
            retained.keep(change);
        }
        Ok(retained)
    }

    /// The first `flushed` changes are durable now: drops them.
    pub fn flushed(&mut self, flushed: u64) {
        let bytes = &mut self.bytes;
        self.kept.retain(|change| {
            let stays = change.number > flushed;
            *bytes -= if stays { 0 } else { change.cost() };
            stays
        });
    }

    /// The exporter has lost everything that was not durable. Returns whether a lost change was dropped here.
    pub fn lose(&mut self, flushed: u64) -> bool {
        self.again.extend(self.kept.drain(..));
        self.bytes = 0;
        self.again.make_contiguous().sort_unstable_by_key(|change| change.order);
        self.forgotten > flushed
    }

    /// Puts changes back that were being written again when the exporter forgot the session.
    pub fn put_back(&mut self, changes: impl IntoIterator<Item = RetainedChange>) {
        self.again.extend(changes);
        self.again.make_contiguous().sort_unstable_by_key(|change| change.order);
    }

    /// The next change to write again.
    pub fn next(&self) -> Option<&RetainedChange> {
        self.again.front()
    }

    /// Takes the next change to write again.
    pub fn take_next(&mut self) -> Option<RetainedChange> {
        self.again.pop_front()
    }

    /// Whether a change must be written again.
    pub fn has_next(&self) -> bool {
        !self.again.is_empty()
    }
}

/// Whether an operation must be repeated if the exporter forgets it. A trim need not be.
pub(super) fn is_retained(op: BlockOp) -> bool {
    op.is_change() && op != BlockOp::Trim
}

#[cfg(test)]
mod tests {
    use farbus_model::BlockId;

    use super::*;

    fn change(number: u64, bytes: usize) -> RetainedChange {
        let request = BlockRequest::write(BlockId(number), number * 512, vec![1; bytes].into());
        RetainedChange { request, order: number, number }
    }

    fn orders(retained: &mut RetainedChanges) -> Vec<u64> {
        std::iter::from_fn(|| retained.take_next()).map(|change| change.order).collect()
    }

    #[test]
    fn changes_beyond_the_budget_are_dropped_oldest_first() {
        let mut retained = RetainedChanges::default();
        let large = RETAINED_BYTES_MAX as usize / 4;
        (1..=6).for_each(|number| retained.keep(change(number, large)));
        assert!(retained.lose(1), "the second was not flushed, and is not here");
        assert_eq!(orders(&mut retained), [3, 4, 5, 6]);

        let mut retained = RetainedChanges::default();
        (1..=RETAINED_MAX as u64 + 1).for_each(|number| retained.keep(change(number, 512)));
        assert!(!retained.lose(1), "the first was flushed");
        assert_eq!(orders(&mut retained).len(), RETAINED_MAX);
    }

    #[test]
    fn window_on_a_large_buffer_counts_as_the_buffer() {
        let mut retained = RetainedChanges::default();
        let most = RETAINED_BYTES_MAX / LARGE_BYTES_MIN;
        (1..=most + 1).for_each(|number| retained.keep(change(number, SMALL_BYTES_MAX as usize + 1)));
        assert!(retained.lose(0) && orders(&mut retained).len() as u64 == most);
    }

    #[test]
    fn flush_drops_what_it_covers_and_changes_repeat_in_submission_order() {
        let mut retained = RetainedChanges::default();
        for (order, number) in [(3, 1), (1, 2), (2, 3), (5, 4)] {
            retained.keep(RetainedChange { order, ..change(number, 512) });
        }
        retained.flushed(1);
        assert!(!retained.lose(1));
        let first = retained.take_next().unwrap();
        assert_eq!(first.order, 1);
        retained.put_back([first]);
        assert_eq!(orders(&mut retained), [1, 2, 5]);
    }

    #[test]
    fn durable_write_is_kept_only_behind_others() {
        let durable = |number| {
            let mut durable = change(number, 512);
            durable.request.is_durable = true;
            durable
        };
        let mut retained = RetainedChanges::default();
        retained.keep(durable(0));
        retained.keep(change(1, 512));
        retained.keep(RetainedChange { order: 2, ..durable(1) });
        assert!(!retained.lose(0));
        assert_eq!(orders(&mut retained), [1, 2]);
    }
}
