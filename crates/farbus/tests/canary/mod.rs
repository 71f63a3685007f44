//! Threads of the highest priority that do nothing but wake up on time, one on each processor. Where they did not, the machine stood still,
//! and what was late meanwhile says nothing of farbus.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use farbus::tuned::scheduling::{Policy, Reservation, now_ns, sleep_until};
use rustix::thread::{CpuSet, sched_setaffinity};

const INTERVAL_NS: u64 = 500_000;
/// Who wakes up later than this was kept from running.
const LATE_NS_MIN: u64 = 1_000_000;
/// A machine that stood still for longer keeps nobody's promise.
const STILL_NS_MAX: u64 = 5_000_000;
/// How often something is tried on a machine that stands still again and again.
const TRIES: u32 = 5;

#[derive(Default)]
struct Seen {
    longest_ns: AtomicU64,
    stolen_ns: AtomicU64,
    is_over: AtomicBool,
}

struct Canary(Arc<Seen>);

impl Canary {
    fn start() -> Self {
        let seen = Arc::new(Seen::default());
        for cpu in 0..thread::available_parallelism().map_or(1, usize::from) {
            let seen = Arc::clone(&seen);
            thread::spawn(move || watch(cpu, &seen));
        }
        Self(seen)
    }

    /// The longest that a processor was not there, ns. `u64::MAX` where nobody may ask.
    fn longest_ns(&self) -> u64 {
        self.0.longest_ns.load(Ordering::Relaxed)
    }

    /// For how long processors were not there, ns.
    fn stolen_ns(&self) -> u64 {
        self.0.stolen_ns.load(Ordering::Relaxed)
    }

    fn was_in_time(&self) -> bool {
        self.longest_ns() <= STILL_NS_MAX
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

fn watch(cpu: usize, seen: &Seen) {
    let mut own = CpuSet::new();
    own.set(cpu);
    // One that may run elsewhere sees less, and one of low priority sees the load.
    let is_pinned = sched_setaffinity(None, &own).is_ok();
    let reservation = Reservation::take(&[Policy::Fifo { priority: 99 }]);
    if !is_pinned || reservation.policy() == Policy::Ordinary {
        seen.longest_ns.store(u64::MAX, Ordering::Relaxed);
    }
    while !seen.is_over.load(Ordering::Relaxed) {
        let due = now_ns() + INTERVAL_NS;
        sleep_until(due);
        let late = now_ns().saturating_sub(due);
        if late > LATE_NS_MIN {
            seen.longest_ns.fetch_max(late, Ordering::Relaxed);
            seen.stolen_ns.fetch_add(late, Ordering::Relaxed);
        }
    }
}

/// Tries something that needs the processors to be there, and again where they were not. What fails each time has failed.
pub fn where_processors_are_there(attempt: impl Fn()) {
    let this = thread::current();
    let what = this.name().unwrap_or("a test");
    for left in (0..TRIES).rev() {
        let canary = Canary::start();
        match catch_unwind(AssertUnwindSafe(&attempt)) {
            Ok(()) => return,
            Err(panic) if left == 0 || canary.was_in_time() => resume_unwind(panic),
            Err(_) => {
                let [longest_us, stolen_us] = [canary.longest_ns(), canary.stolen_ns()].map(|ns| ns / 1000);
                eprintln!("VOID, the machine stood still for {longest_us} us, {stolen_us} in all: {what}");
            }
        }
    }
}
