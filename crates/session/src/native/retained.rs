//! Changes that a remote disk's exporter has answered and no flush has covered yet: kept, so that they can be written
//! again.
//!
//! An exporter whose machine was switched off has forgotten them. If all of them are here they are written again, in
//! the order in which they were asked, before anything else is asked of the disk, and nobody has to be told. The
//! exporter gives the disk back only under the lease that we had, so nobody else has written to it meanwhile
//! ([`Leases`](crate::leases::Leases)).
//!
//! What is kept is bounded, [`RETAINED_BYTES_MAX`] and [`RETAINED_MAX`]: of more, the oldest are forgotten. What is
//! forgotten and not flushed when the exporter's machine was switched off is lost, and the next flush says so.

use std::collections::VecDeque;

use farbus_model::{BlockInfo, BlockOp, BlockRequest};

use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// Bytes that are kept at most.
pub const RETAINED_BYTES_MAX: u64 = 8 << 20;
/// Changes that are kept at most.
pub const RETAINED_MAX: usize = 2048;
/// A payload of more bytes than this may be a window on a larger buffer, which is kept with it: it counts as
/// [`LARGE_BYTES_MIN`] at least.
const SMALL_BYTES_MAX: u64 = 64 << 10;
const LARGE_BYTES_MIN: u64 = 256 << 10;

/// A change that was answered.
#[derive(Debug)]
pub(super) struct Change {
    /// With its data.
    pub request: BlockRequest,
    /// Its place among all requests.
    pub order: u64,
    /// How many changes were answered when it was, itself among them: a flush that covers so many covers it.
    pub number: u64,
}

impl Change {
    fn cost(&self) -> u64 {
        match self.request.payload.len() as u64 {
            small @ 0..=SMALL_BYTES_MAX => small,
            large => large.max(LARGE_BYTES_MIN),
        }
    }

    /// Whether both change the same bytes.
    pub fn overlaps(&self, other: &BlockRequest) -> bool {
        let end = |request: &BlockRequest| request.offset.saturating_add(request.length.into());
        other.offset < end(&self.request) && self.request.offset < end(other)
    }
}

/// What is kept of a disk.
#[derive(Debug, Default)]
pub(super) struct Retained {
    /// As the exporter has them, or had.
    kept: VecDeque<Change>,
    bytes: u64,
    /// So many changes had been answered when the last one was that is not kept.
    forgotten: u64,
    /// The exporter has lost these: they are written again, the first first.
    again: VecDeque<Change>,
}

impl Retained {
    /// Of a disk of which so many changes were answered, none of which are here.
    pub fn without(answered: u64) -> Self {
        Self { forgotten: answered, ..Self::default() }
    }

    /// It was answered.
    pub fn keep(&mut self, change: Change) {
        // A durable one matters only behind others, which may not be written over it.
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

    /// Writes it down, while nothing is to be written again.
    pub fn save(&self, to: &mut Writer) {
        to.u64(self.forgotten);
        to.count(self.kept.len());
        for Change { request, order, number } in &self.kept {
            to.block_request(request);
            to.u64(*order);
            to.u64(*number);
        }
    }

    /// As another process saved it, of a disk that is `info` and of which so many changes were answered.
    ///
    /// # Errors
    /// [`Reject`]: none can have stood so.
    pub fn restore(from: &mut Reader<'_>, info: &BlockInfo, answered: u64) -> Result<Self, Reject> {
        let mut retained = Self::without(from.u64("changes forgotten")?.min(answered));
        for _ in 0..from.count("changes kept", 42)? {
            let request = from.block_request()?;
            let (order, number) = (from.u64("order")?, from.u64("number")?);
            let is_one = is_retained(request.op) && info.check(&request).is_ok() && number <= answered;
            if !is_one {
                return Err(Reject::new("change kept", number, "it was answered, and its device can have it"));
            }
            let mut change = Change { request, order, number };
            change.request.payload.share();
            retained.keep(change);
        }
        Ok(retained)
    }

    /// So many changes are durable.
    pub fn flushed(&mut self, flushed: u64) {
        let bytes = &mut self.bytes;
        self.kept.retain(|change| {
            let stays = change.number > flushed;
            *bytes -= if stays { 0 } else { change.cost() };
            stays
        });
    }

    /// The exporter has lost what was not durable. Whether something of that is not here.
    pub fn lose(&mut self, flushed: u64) -> bool {
        self.again.extend(self.kept.drain(..));
        self.bytes = 0;
        self.again.make_contiguous().sort_unstable_by_key(|change| change.order);
        self.forgotten > flushed
    }

    /// These were being written again when the exporter forgot us.
    pub fn put_back(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.again.extend(changes);
        self.again.make_contiguous().sort_unstable_by_key(|change| change.order);
    }

    /// What is to be written again next.
    pub fn next(&self) -> Option<&Change> {
        self.again.front()
    }

    /// The same, to be written.
    pub fn take_next(&mut self) -> Option<Change> {
        self.again.pop_front()
    }

    /// Whether something is to be written again.
    pub fn has_next(&self) -> bool {
        !self.again.is_empty()
    }
}

/// Whether it has to be written again if the exporter forgets it: what nobody needs has not.
pub(super) fn is_retained(op: BlockOp) -> bool {
    op.is_change() && op != BlockOp::Trim
}

#[cfg(test)]
mod tests {
    use farbus_model::BlockId;

    use super::*;

    fn change(number: u64, bytes: usize) -> Change {
        let request = BlockRequest::write(BlockId(number), number * 512, vec![1; bytes].into());
        Change { request, order: number, number }
    }

    fn orders(retained: &mut Retained) -> Vec<u64> {
        std::iter::from_fn(|| retained.take_next()).map(|change| change.order).collect()
    }

    #[test]
    fn changes_beyond_the_budget_are_forgotten_oldest_first() {
        let mut retained = Retained::default();
        let large = RETAINED_BYTES_MAX as usize / 4;
        (1..=6).for_each(|number| retained.keep(change(number, large)));
        assert!(retained.lose(1), "the second was not flushed, and is not here");
        assert_eq!(orders(&mut retained), [3, 4, 5, 6]);

        let mut retained = Retained::default();
        (1..=RETAINED_MAX as u64 + 1).for_each(|number| retained.keep(change(number, 512)));
        assert!(!retained.lose(1), "the first was flushed");
        assert_eq!(orders(&mut retained).len(), RETAINED_MAX);
    }

    #[test]
    fn a_window_on_a_large_buffer_counts_as_one() {
        let mut retained = Retained::default();
        let most = RETAINED_BYTES_MAX / LARGE_BYTES_MIN;
        (1..=most + 1).for_each(|number| retained.keep(change(number, SMALL_BYTES_MAX as usize + 1)));
        assert!(retained.lose(0) && orders(&mut retained).len() as u64 == most);
    }

    #[test]
    fn a_flush_forgets_what_it_covers_and_changes_are_repeated_in_the_order_of_asking() {
        let mut retained = Retained::default();
        for (order, number) in [(3, 1), (1, 2), (2, 3), (5, 4)] {
            retained.keep(Change { order, ..change(number, 512) });
        }
        retained.flushed(1);
        assert!(!retained.lose(1));
        let first = retained.take_next().unwrap();
        assert_eq!(first.order, 1);
        retained.put_back([first]);
        assert_eq!(orders(&mut retained), [1, 2, 5]);
    }

    #[test]
    fn a_durable_write_is_kept_behind_others_alone() {
        let durable = |number| {
            let mut durable = change(number, 512);
            durable.request.is_durable = true;
            durable
        };
        let mut retained = Retained::default();
        retained.keep(durable(0));
        retained.keep(change(1, 512));
        retained.keep(Change { order: 2, ..durable(1) });
        assert!(!retained.lose(0));
        assert_eq!(orders(&mut retained), [1, 2]);
    }
}
