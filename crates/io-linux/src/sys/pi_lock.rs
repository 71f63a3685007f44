//! A lock whose owner runs with the priority, or the deadline, of the most urgent thread that waits for it (futex(2),
//! `FUTEX_LOCK_PI`).
//!
//! With an ordinary lock, a thread without a promise could keep one with a promise from running for as long as other
//! threads run. This lock is held for a copy and no longer.
#![allow(unsafe_code, reason = "a lock is shared memory and a proof that one thread has it")]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::thread::gettid;

/// The lock and its value.
pub struct PiLock<T> {
    /// The id of the thread that has it, plus the kernel's bits; 0 if it is free.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: like a mutex: only the thread that has the lock accesses the value, which moves from thread to thread.
unsafe impl<T: Send> Send for PiLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PiLock<T> {}

/// The value, while this thread has the lock.
pub struct PiLockGuard<'a, T> {
    lock: &'a PiLock<T>,
    /// Not `Send`: the kernel unlocks only for the thread that locked.
    _here: std::marker::PhantomData<*const ()>,
}

impl<T> PiLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock; meanwhile its owner runs at least as urgently as this thread.
    ///
    /// # Panics
    /// If this thread has the lock already, or the kernel has no such lock.
    pub fn lock(&self) -> PiLockGuard<'_, T> {
        let me = me();
        // If it is free, no system call is needed.
        if self.holder.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            loop {
                match futex::lock_pi(&self.holder, futex::Flags::PRIVATE, None) {
                    Ok(()) => break,
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => panic!("a lock that hands its holder its waiter's priority: {error}"),
                }
            }
        }
        PiLockGuard { lock: self, _here: std::marker::PhantomData }
    }
}

/// The kernel's id of this thread, asked for once.
fn me() -> u32 {
    thread_local!(static ME: u32 = gettid().as_raw_nonzero().get() as u32);
    ME.with(|me| *me)
}

impl<T: Default> Default for PiLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for PiLockGuard<'_, T> {
    fn drop(&mut self) {
        let holder = &self.lock.holder;
        let me = me();
        if holder.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            // A thread waits: the kernel gives the lock to the most urgent one, which sees what was written because of
            // the kernel's own barriers.
            let given = futex::unlock_pi(holder, futex::Flags::PRIVATE);
            debug_assert!(given.is_ok(), "{given:?}");
        }
    }
}

impl<T> Deref for PiLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock, so no other thread accesses the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for PiLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> fmt::Debug for PiLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PiLock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use crate::sys::scheduling::{SchedulingGrant, SchedulingPolicy};

    #[test]
    fn lock_excludes_other_threads() {
        let count = PiLock::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }

    /// The priority at which the kernel runs a thread: field 18 of its `stat` (proc(5)).
    fn priority_of(thread: u32) -> i64 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let after = stat.rsplit(')').next().unwrap();
        after.split_whitespace().nth(15).unwrap().parse().unwrap()
    }

    #[test]
    fn lock_owner_inherits_the_priority_of_a_waiting_thread() {
        let lock = PiLock::new(());
        thread::scope(|scope| {
            let (lock, (taken, is_taken), (end, is_to_end)) = (&lock, mpsc::channel(), mpsc::channel::<()>());
            let holder = scope.spawn(move || {
                let guard = lock.lock();
                taken.send(gettid().as_raw_nonzero().get() as u32).unwrap();
                let _ = is_to_end.recv();
                drop(guard);
            });
            let thread = is_taken.recv().unwrap();
            let before = priority_of(thread);
            let (ready, is_ready) = mpsc::channel();
            let waiter = scope.spawn(move || {
                let reservation = SchedulingGrant::take(&[SchedulingPolicy::Fifo { priority: 5 }]);
                ready.send(reservation.policy()).unwrap();
                drop(lock.lock());
            });
            let has_priority = is_ready.recv().unwrap() != SchedulingPolicy::Ordinary;
            // -1 - 5 is how /proc writes it (proc(5)).
            let inherited = (0..500).any(|_| {
                thread::sleep(Duration::from_millis(10));
                !has_priority || priority_of(thread) == -6
            });
            drop(end);
            holder.join().unwrap();
            waiter.join().unwrap();
            assert!(before >= 0 && inherited);
        });
    }
}
