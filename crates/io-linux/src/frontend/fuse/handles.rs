//! The open handles of a mounted disk's file, and which losses each was told of.

use std::collections::BTreeMap;

use farbus_model::{LossCounter, LossCursor, StoreError};
use serde::{Deserialize, Serialize};

/// What a flush was asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FlushCause {
    /// `fsync` by this handle, which is told of each loss once.
    Sync(u64),
    /// `close` of one of its descriptors: many programs ignore its result, so it does not count as told.
    Close(u64),
    /// The last descriptor was closed. The kernel reports the result to no program.
    Release(u64),
}

/// The handles of a disk's file, by the number that the kernel has for each.
#[derive(Debug)]
pub(super) struct FuseHandles {
    losses: LossCounter,
    open: BTreeMap<u64, LossCursor>,
    next: u64,
}

impl Default for FuseHandles {
    fn default() -> Self {
        // An earlier release used 0 for every handle.
        Self { losses: LossCounter::default(), open: BTreeMap::new(), next: 1 }
    }
}

impl FuseHandles {
    /// How many handles there are.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A program opens the file: returns the number of its handle.
    pub fn open_next(&mut self) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.open.insert(handle, self.losses.cursor());
        handle
    }

    /// A flush failed: what was written before may be lost.
    pub fn lose(&mut self, error: StoreError) {
        self.losses.record(error);
    }

    /// The result of a flush as this handle is told; a failed flush is [recorded](FuseHandles::lose) before.
    pub fn hear(&mut self, ask: FlushCause, flushed: Result<(), StoreError>) -> Result<(), StoreError> {
        let (FlushCause::Sync(handle) | FlushCause::Close(handle) | FlushCause::Release(handle)) = ask;
        if matches!(ask, FlushCause::Release(_)) {
            self.open.remove(&handle);
            return flushed;
        }
        // A handle that an earlier release opened is known from its first request on.
        let cursor = self.open.entry(handle).or_insert_with(|| self.losses.cursor());
        match ask {
            FlushCause::Sync(_) => self.losses.tell(cursor).and(flushed),
            FlushCause::Close(_) | FlushCause::Release(_) => self.losses.untold(*cursor).map_or(flushed, Err),
        }
    }

    /// Fails if there was a loss that no program was told of.
    pub fn told_to_nobody(&self) -> Result<(), StoreError> {
        self.losses.told_to_nobody().map_or(Ok(()), Err)
    }

    /// A snapshot for a replacement process.
    pub fn save(&self) -> SavedHandles {
        SavedHandles {
            losses: self.losses.count(),
            last: self.losses.last().map(StoreError::code),
            is_told: self.losses.told_to_nobody().is_none(),
            open: self.open.iter().map(|(&handle, cursor)| (handle, cursor.told_count())).collect(),
            next: self.next,
        }
    }

    /// Restores them from a snapshot.
    pub fn restore(saved: &SavedHandles) -> Self {
        let last = saved.last.map(|code| StoreError::of_code(code).unwrap_or(StoreError::Medium));
        let highest = saved.open.last_key_value().map_or(0, |(&handle, _)| handle);
        Self {
            losses: LossCounter::restore(saved.losses, last, saved.is_told),
            open: saved.open.iter().map(|(&handle, &told_count)| (handle, LossCursor::restore(told_count))).collect(),
            next: saved.next.max(highest.saturating_add(1)),
        }
    }
}

/// The saved form of [`FuseHandles`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SavedHandles {
    pub losses: u64,
    pub last: Option<u8>,
    pub is_told: bool,
    pub open: BTreeMap<u64, u64>,
    pub next: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_and_close_do_not_take_a_loss_from_another_handle() {
        for first in [FlushCause::Release(1), FlushCause::Close(1), FlushCause::Sync(1)] {
            let mut handles = FuseHandles::default();
            assert_eq!([handles.open_next(), handles.open_next()], [1, 2]);
            handles.lose(StoreError::Lost);
            assert_eq!(handles.hear(first, Err(StoreError::Lost)), Err(StoreError::Lost));
            assert_eq!(handles.hear(FlushCause::Sync(2), Ok(())), Err(StoreError::Lost), "{first:?}");
            assert_eq!(handles.hear(FlushCause::Sync(2), Ok(())), Ok(()), "once");
            assert_eq!(handles.open(), if first == FlushCause::Release(1) { 1 } else { 2 });
        }
    }

    #[test]
    fn restored_handles_are_told_of_losses_they_do_not_know() {
        let mut handles = FuseHandles::default();
        (0..2).for_each(|_| _ = handles.open_next());
        handles.lose(StoreError::Medium);
        assert!(handles.hear(FlushCause::Sync(1), Err(StoreError::Medium)).is_err());
        let text = serde_json::to_string(&handles.save()).unwrap();
        let mut handles = FuseHandles::restore(&serde_json::from_str(&text).unwrap());
        assert_eq!((handles.open(), handles.next), (2, 3));
        assert_eq!(handles.hear(FlushCause::Sync(1), Ok(())), Ok(()));
        assert_eq!(handles.hear(FlushCause::Sync(2), Ok(())), Err(StoreError::Medium));
        // Saved by a release that had no handles.
        let mut handles = FuseHandles::restore(&SavedHandles::default());
        assert_eq!((handles.hear(FlushCause::Sync(0), Ok(())), handles.open_next()), (Ok(()), 1));
    }
}
