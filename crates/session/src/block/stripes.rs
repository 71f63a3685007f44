//! Striped locks for ranges of a disk.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of locks. With thirty requests in flight, about one in thirty meets a lock that is taken.
const STRIPES: u64 = 1024;

/// Serializes threads that change the same granule on two media, or copy it from one to the other.
#[derive(Debug)]
pub(super) struct StripedLocks {
    granule_bytes: u64,
    locks: Box<[Mutex<()>]>,
}

/// The locks of a range, released on drop.
#[must_use = "what is not held is not kept from others"]
pub(super) struct RangeLock<'a> {
    _guards: StripeGuards<'a>,
}

#[allow(dead_code, reason = "held, never looked at")]
enum StripeGuards<'a> {
    One(MutexGuard<'a, ()>),
    Many(Vec<MutexGuard<'a, ()>>),
}

impl StripedLocks {
    /// Locks for granules of this size.
    pub fn new(granule_bytes: u64) -> Self {
        Self { granule_bytes, locks: (0..STRIPES).map(|_| Mutex::default()).collect() }
    }

    /// Waits until no other thread holds any part of the range, and locks it.
    pub fn hold(&self, offset: u64, length: u64) -> RangeLock<'_> {
        let (first, last) = (offset / self.granule_bytes, (offset + length.max(1) - 1) / self.granule_bytes);
        if first == last {
            return RangeLock { _guards: StripeGuards::One(self.lock(first % STRIPES)) };
        }
        let count = (last - first + 1).min(STRIPES);
        let mut stripes: Vec<u64> = (first..first + count).map(|granule| granule % STRIPES).collect();
        // Every thread takes the locks in ascending order, which excludes deadlock.
        stripes.sort_unstable();
        RangeLock { _guards: StripeGuards::Many(stripes.into_iter().map(|stripe| self.lock(stripe)).collect()) }
    }

    fn lock(&self, stripe: u64) -> MutexGuard<'_, ()> {
        self.locks[stripe as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_range_blocks_its_granules_and_no_others() {
        let stripes = StripedLocks::new(100);
        let is_free = |granule: u64| stripes.locks[(granule % STRIPES) as usize].try_lock().is_ok();
        for (offset, length, held) in
            [(0, 1, 0..1), (199, 2, 1..3), (100, 100, 1..2), (STRIPES * 100 - 1, 2, STRIPES - 1..STRIPES + 1)]
        {
            let guard = stripes.hold(offset, length);
            for granule in 0..STRIPES {
                let is_held = held.contains(&granule) || held.contains(&(granule + STRIPES));
                assert_eq!(is_free(granule), !is_held, "{granule} with {length} at {offset}");
            }
            drop(guard);
        }
        drop(stripes.hold(0, 0));
        let _all = stripes.hold(55, 100 * STRIPES * 3);
        assert!((0..STRIPES).all(|granule| !is_free(granule)));
    }
}
