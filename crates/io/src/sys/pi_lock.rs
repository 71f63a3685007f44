//! A lock whose holder runs with the priority, or the deadline, of whoever waits for it (futex(2), `FUTEX_LOCK_PI`).
//!
//! What is ordinary in the standard library lets a thread that has no promise keep one that has from running, for as
//! long as others run. This is held for a copy and no longer.
#![allow(unsafe_code, reason = "a lock is shared memory and a proof that one thread has it")]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::thread::gettid;

/// The lock and what it keeps.
pub struct PiLock<T> {
    /// The number of the thread that has it, the kernel's bits besides; 0 if nobody has.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: as a mutex: the value is reached by the thread alone that holds the lock, and goes from thread to thread.
unsafe impl<T: Send> Send for PiLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PiLock<T> {}

/// The value, while this thread has the lock.
pub struct Guard<'a, T> {
    lock: &'a PiLock<T>,
    /// The kernel gives it up for the thread that took it.
    _here: std::marker::PhantomData<*const ()>,
}

impl<T> PiLock<T> {
    /// Nobody has it.
    pub const fn new(value: T) -> Self {
        Self { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for it; whoever has it runs as urgently as this thread meanwhile.
    ///
    /// # Panics
    /// If this thread has it already, or the kernel has no such lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let me = me();
        // Nobody to wait for, no call.
        if self.holder.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            loop {
                match futex::lock_pi(&self.holder, futex::Flags::PRIVATE, None) {
                    Ok(()) => break,
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    Err(error) => panic!("a lock that hands its holder its waiter's priority: {error}"),
                }
            }
        }
        Guard { lock: self, _here: std::marker::PhantomData }
    }
}

/// The kernel's number of this thread, asked for once.
fn me() -> u32 {
    thread_local!(static ME: u32 = gettid().as_raw_nonzero().get() as u32);
    ME.with(|me| *me)
}

impl<T: Default> Default for PiLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let holder = &self.lock.holder;
        let me = me();
        if holder.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            // Somebody waits: the kernel gives it to the most urgent, who sees what was written through the kernel's
            // own barriers.
            let given = futex::unlock_pi(holder, futex::Flags::PRIVATE);
            debug_assert!(given.is_ok(), "{given:?}");
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock, so nobody else reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed for it alone.
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

    use crate::sys::scheduling::{Policy, Reservation};

    #[test]
    fn one_at_a_time() {
        let count = PiLock::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }

    /// The kernel's own word for what a thread runs at: the last but one of the fields that `priority` is in.
    fn priority_of(thread: u32) -> i64 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let after = stat.rsplit(')').next().unwrap();
        after.split_whitespace().nth(15).unwrap().parse().unwrap()
    }

    #[test]
    fn whoever_has_it_runs_as_urgently_as_who_waits() {
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
                let reservation = Reservation::take(&[Policy::Fifo { priority: 5 }]);
                ready.send(reservation.policy()).unwrap();
                drop(lock.lock());
            });
            let has_priority = is_ready.recv().unwrap() != Policy::Ordinary;
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
