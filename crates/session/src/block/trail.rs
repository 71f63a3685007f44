//! What was changed in one medium and is still to be changed in the other.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farbus_model::limits::SWAP_TRAIL_BYTES_MAX;
use farbus_model::{BlockStore, StoreError};

/// What a change takes besides its bytes.
const CHANGE_BYTES: usize = 64;
/// Bytes that may wait shortly before the end of it: more than thirty requests of a page, so that they do not wait for room.
const SHORT_BYTES: usize = 256 << 10;
/// Bytes beyond which whoever adds waits for his turn, be somebody else at it or not: what takes a millisecond to be made.
const WAIT_BYTES: usize = 1 << 20;
/// Changes that whoever adds to a long trail makes for each of his own: it becomes shorter.
const HELP: usize = 2;
/// Changes that are made in one turn, by somebody for whom nobody is to wait long.
const TURN: usize = 16;

/// A change of a medium.
#[derive(Debug)]
pub(super) enum Change<'a> {
    Write { offset: u64, bytes: Cow<'a, [u8]> },
    Discard { offset: u64, length: u64 },
    WriteZeroes { offset: u64, length: u64 },
}

impl Change<'_> {
    pub fn offset(&self) -> u64 {
        match self {
            Change::Write { offset, .. } | Change::Discard { offset, .. } | Change::WriteZeroes { offset, .. } => {
                *offset
            }
        }
    }

    pub fn length(&self) -> u64 {
        match self {
            Change::Write { bytes, .. } => bytes.len() as u64,
            Change::Discard { length, .. } | Change::WriteZeroes { length, .. } => *length,
        }
    }

    pub fn make(&self, store: &mut dyn BlockStore) -> Result<(), StoreError> {
        match self {
            Change::Write { offset, bytes } => store.write_at(*offset, bytes),
            Change::Discard { offset, length } => store.discard(*offset, *length),
            Change::WriteZeroes { offset, length } => store.write_zeroes(*offset, *length),
        }
    }

    fn into_owned(self) -> Change<'static> {
        match self {
            Change::Write { offset, bytes } => Change::Write { offset, bytes: Cow::Owned(bytes.into_owned()) },
            Change::Discard { offset, length } => Change::Discard { offset, length },
            Change::WriteZeroes { offset, length } => Change::WriteZeroes { offset, length },
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Change::Write { bytes, .. } => CHANGE_BYTES + bytes.len(),
            Change::Discard { .. } | Change::WriteZeroes { .. } => CHANGE_BYTES,
        }
    }
}

/// Changes in the order in which they were made.
#[derive(Debug)]
pub(super) struct Trail {
    waiting: Mutex<Waiting>,
    /// Bytes that may wait.
    bytes_max: AtomicUsize,
    /// Had by whoever changes the other medium.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    changes: VecDeque<Change<'static>>,
    bytes: usize,
}

/// As long as it lives nobody else changes the other medium.
#[must_use = "what is not held is not kept from others"]
pub(super) struct Turn<'a> {
    trail: &'a Trail,
    _guard: MutexGuard<'a, ()>,
}

impl Default for Trail {
    fn default() -> Self {
        let bytes_max = AtomicUsize::new(SWAP_TRAIL_BYTES_MAX);
        Self { waiting: Mutex::default(), bytes_max, turn: Mutex::default() }
    }
}

impl Trail {
    /// Adds a change that was made in the first medium. Says whether so much waits that whoever adds has to [`Trail::help`].
    pub fn add(&self, change: Change<'_>) -> bool {
        let change = change.into_owned();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.bytes += change.memory_bytes();
        waiting.changes.push_back(change);
        waiting.bytes > self.bytes_max.load(Ordering::Relaxed)
    }

    /// Waits until nobody else changes the other medium.
    pub fn turn(&self) -> Turn<'_> {
        Turn { trail: self, _guard: self.turn.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// It is to end soon: only a little may wait from now on.
    pub fn shorten(&self) {
        self.bytes_max.store(SHORT_BYTES, Ordering::Relaxed);
    }

    /// Makes a few changes, so that there is room for those of whoever does it. While somebody else does so nobody waits for a turn, unless
    /// far too much waits already.
    pub fn help(&self, other: &mut dyn BlockStore, failed: impl FnMut(u64, StoreError)) {
        let bytes = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).bytes;
        let turn = match self.turn.try_lock() {
            Ok(guard) => Turn { trail: self, _guard: guard },
            Err(_) if bytes > WAIT_BYTES => self.turn(),
            Err(_) => return,
        };
        turn.make(HELP, other, failed);
    }

    /// Makes all changes that wait now, a few at a time: nobody waits long for a turn. Says how many wait after it.
    pub fn follow(&self, other: &mut dyn BlockStore, mut failed: impl FnMut(u64, StoreError)) -> usize {
        let mut left = self.len();
        while left > 0 {
            self.turn().make(left.min(TURN), other, &mut failed);
            left = left.saturating_sub(TURN);
        }
        self.len()
    }

    fn len(&self) -> usize {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).changes.len()
    }

    fn take(&self) -> Option<Change<'static>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let change = waiting.changes.pop_front()?;
        waiting.bytes -= change.memory_bytes();
        Some(change)
    }
}

impl Turn<'_> {
    /// Makes all changes that wait now in `other`; `failed` is told of each that cannot be made.
    pub fn catch_up(&self, other: &mut dyn BlockStore, failed: impl FnMut(u64, StoreError)) {
        // Not those that come meanwhile: whoever adds faster than this makes them would never let it end.
        self.make(self.trail.len(), other, failed);
    }

    fn make(&self, count: usize, other: &mut dyn BlockStore, mut failed: impl FnMut(u64, StoreError)) {
        for _ in 0..count {
            let Some(change) = self.trail.take() else { return };
            if let Err(error) = change.make(other) {
                failed(change.offset(), error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::block::MemoryStore;

    use super::*;

    #[test]
    fn changes_are_made_in_their_order_and_what_fails_is_told() {
        let trail = Trail::default();
        let write = |offset, byte| Change::Write { offset, bytes: Cow::Owned(vec![byte; 512]) };
        assert!(!trail.add(write(0, 1)));
        trail.add(write(512, 2));
        trail.add(write(0, 3));
        trail.add(Change::WriteZeroes { offset: 600, length: 100 });
        let mut other = MemoryStore::new(vec![9; 1024]);
        trail.turn().catch_up(&mut other, |offset, error| panic!("{offset}: {error}"));
        let mut bytes = vec![0; 1024];
        other.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[511], bytes[512], bytes[600], bytes[700]), (3, 3, 2, 0, 2));
        let mut sealed = MemoryStore::new(vec![9; 1024]).read_only();
        trail.add(write(512, 2));
        let mut told = Vec::new();
        trail.turn().catch_up(&mut sealed, |offset, error| told.push((offset, error)));
        assert_eq!((told, trail.len()), (vec![(512, StoreError::ReadOnly)], 0));
    }

    #[test]
    fn whoever_adds_too_much_is_told_to_help() {
        let trail = Trail::default();
        let piece = 1 << 20;
        let pieces = SWAP_TRAIL_BYTES_MAX / piece;
        for added in 1..=pieces {
            let is_much = trail.add(Change::Write { offset: 0, bytes: Cow::Owned(vec![1; piece]) });
            assert_eq!(is_much, added == pieces, "{added}");
        }
        assert_eq!(trail.len(), pieces);
        let mut other = MemoryStore::new(vec![0; piece]);
        trail.help(&mut other, |offset, error| panic!("{offset}: {error}"));
        assert_eq!(trail.len(), pieces - HELP);
        trail.shorten();
        assert!(trail.add(Change::Discard { offset: 0, length: 512 }));
        assert_eq!(trail.follow(&mut other, |offset, error| panic!("{offset}: {error}")), 0);
        assert!(!trail.add(Change::Discard { offset: 0, length: 512 }));
    }
}
