//! A mutex with a place in the order of locks. A program that is built with debug assertions, as all tests are, panics
//! where a thread takes one out of that order, whether or not another thread waits at that moment.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, LockResult, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The order of a lock that is taken and held alone.
pub const ALONE: u8 = 0;

/// A mutex that is taken only by a thread whose other locks have a lower `ORDER`; [`ALONE`]: by a thread that has no
/// other.
#[derive(Debug, Default)]
pub struct OrderedMutex<T, const ORDER: u8>(Mutex<T>);

/// The lock of an [`OrderedMutex`].
#[derive(Debug)]
pub struct OrderedGuard<'a, T, const ORDER: u8> {
    // Dropped in this order.
    guard: MutexGuard<'a, T>,
    held: HeldLock,
}

impl<T, const ORDER: u8> OrderedMutex<T, ORDER> {
    /// Makes an unlocked mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// A thread panicked with the lock.
    ///
    /// # Panics
    /// If the thread has a lock after which this one must not be taken (with debug assertions).
    #[track_caller]
    pub fn lock(&self) -> LockResult<OrderedGuard<'_, T, ORDER>> {
        let held = HeldLock::note(ORDER);
        match self.0.lock() {
            Ok(guard) => Ok(OrderedGuard { guard, held }),
            Err(poisoned) => Err(PoisonError::new(OrderedGuard { guard: poisoned.into_inner(), held })),
        }
    }
}

impl<T, const ORDER: u8> OrderedGuard<'_, T, ORDER> {
    /// As [`Condvar::wait_timeout`]: the lock, and whether the time was over.
    ///
    /// # Panics
    /// If a thread panicked with the lock.
    #[must_use]
    pub fn wait(self, condition: &Condvar, time_max: Duration) -> (Self, bool) {
        let Self { guard, held } = self;
        let (guard, timeout) = condition.wait_timeout(guard, time_max).expect("no thread panics with the lock");
        (Self { guard, held }, timeout.timed_out())
    }

    /// As [`Condvar::wait_timeout_while`], without the lock afterwards.
    pub fn wait_while(self, condition: &Condvar, time_max: Duration, is_so: impl FnMut(&mut T) -> bool) {
        let Self { guard, held } = self;
        drop(condition.wait_timeout_while(guard, time_max, is_so));
        drop(held);
    }
}

impl<T, const ORDER: u8> Deref for OrderedGuard<'_, T, ORDER> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, const ORDER: u8> DerefMut for OrderedGuard<'_, T, ORDER> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
use noted::HeldLock;
#[cfg(not(debug_assertions))]
use unnoted::HeldLock;

#[cfg(debug_assertions)]
mod noted {
    use std::cell::RefCell;
    use std::marker::PhantomData;
    use std::panic::Location;
    use std::thread;

    use super::ALONE;

    thread_local! {
        /// The locks of this thread, and where it took them.
        static HELD: RefCell<Vec<(u8, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
    }

    /// A lock that this thread has.
    #[derive(Debug)]
    pub struct HeldLock {
        order: u8,
        at: &'static Location<'static>,
        /// It stays with its thread.
        stays: PhantomData<*const ()>,
    }

    impl HeldLock {
        #[track_caller]
        pub fn note(order: u8) -> Self {
            let at = Location::caller();
            HELD.with_borrow_mut(|held| {
                let before = held.iter().find(|(before, _)| order == ALONE || *before == ALONE || *before >= order);
                if let Some((before, taken_at)) = before
                    && !thread::panicking()
                {
                    panic!("a lock of order {order} is taken at {at} with one of order {before}, taken at {taken_at}");
                }
                held.push((order, at));
            });
            Self { order, at, stays: PhantomData }
        }
    }

    impl Drop for HeldLock {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(last) = held.iter().rposition(|held| *held == (self.order, self.at)) {
                    held.remove(last);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod unnoted {
    /// A lock that this thread has: nothing is noted.
    #[derive(Debug)]
    pub struct HeldLock;

    impl HeldLock {
        pub fn note(_: u8) -> Self {
            Self
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Whether a thread may take the second lock with the first, whatever the second is.
    fn may_follow<const FIRST: u8, const SECOND: u8>() -> bool {
        let (first, second) = (OrderedMutex::<_, FIRST>::new(1), OrderedMutex::<_, SECOND>::new(2));
        let held = first.lock().unwrap();
        let may = catch_unwind(AssertUnwindSafe(|| drop(second.lock()))).is_ok();
        drop(held);
        // Nothing is left of it.
        assert_eq!(*OrderedMutex::<_, ALONE>::new(3).lock().unwrap(), 3);
        may
    }

    #[test]
    fn a_lock_is_taken_after_those_of_a_lower_order_only() {
        assert!(may_follow::<1, 2>() && may_follow::<1, 3>() && may_follow::<2, 3>());
        assert!(!may_follow::<2, 1>() && !may_follow::<3, 1>() && !may_follow::<2, 2>());
        assert!(!may_follow::<ALONE, 3>() && !may_follow::<1, ALONE>() && !may_follow::<ALONE, ALONE>());
    }

    #[test]
    fn locks_may_end_in_any_order() {
        let (first, second) = (OrderedMutex::<_, 1>::new(1), OrderedMutex::<_, 2>::new(2));
        let (one, two) = (first.lock().unwrap(), second.lock().unwrap());
        drop(one);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(first.lock()))).is_err(), "the second is still held");
        drop(two);
        drop(first.lock().unwrap());
    }
}
