//! Load, and threads that check whether the machine itself stood still.

use std::{
    hint::black_box,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use anyhow::{Result, bail};
use farbus_pipe::{
    STILL_NS_MAX,
    scheduling::{SchedulingGrant, SchedulingPolicy, now_ns, sleep_until},
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Spinning threads on each processor. With four, the kernel's fairness kept an ordinary thread in time, too, where
/// nothing else ran.
pub const SPINNERS: usize = 12;
const INTERVAL_NS: u64 = 1_000_000;
/// The effects of a gap are over after this time: twice the longest period of a pipe here.
const AFTERMATH_NS: u64 = 700_000_000;

/// When a processor was not available, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorGap {
    pub end_ns: u64,
    pub long_ns: u64,
}

/// Keeps the machine busy and watched until this is dropped.
pub struct WatchedLoad {
    is_over: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<ProcessorGap>>>,
    threads: Vec<JoinHandle<()>>,
}

impl WatchedLoad {
    pub fn begin() -> Result<Self> {
        let cpus = thread::available_parallelism()?.get();
        let (is_over, gaps) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::with_capacity(1 << 16))));
        let mut busy = Self { is_over, gaps, threads: Vec::new() };
        let (tell, policies) = mpsc::channel();
        for cpu in 0..cpus {
            let (is_over, gaps, tell) = (Arc::clone(&busy.is_over), Arc::clone(&busy.gaps), tell.clone());
            busy.threads.push(thread::spawn(move || watch(cpu, &is_over, &gaps, &tell)));
        }
        for _ in 0..cpus {
            if policies.recv()? == SchedulingPolicy::Ordinary {
                bail!("a canary needs the highest priority: run as root, or with CAP_SYS_NICE");
            }
        }
        for _ in 0..SPINNERS * cpus {
            let is_over = Arc::clone(&busy.is_over);
            busy.threads.push(thread::spawn(move || {
                let mut count = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    count = black_box(count.wrapping_add(1));
                }
            }));
        }
        Ok(busy)
    }

    pub fn gaps(&self) -> Vec<ProcessorGap> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether the time from `from_ns` to `to_ns` is void because of a gap.
pub fn is_void(gaps: &[ProcessorGap], from_ns: u64, to_ns: u64) -> bool {
    gaps_in(gaps, from_ns, to_ns).next().is_some()
}

/// The gaps that have an effect on the time from `from_ns` to `to_ns`.
pub fn gaps_in(gaps: &[ProcessorGap], from_ns: u64, to_ns: u64) -> impl Iterator<Item = &ProcessorGap> {
    gaps.iter().filter(move |gap| gap.end_ns + AFTERMATH_NS > from_ns && gap.end_ns.saturating_sub(gap.long_ns) < to_ns)
}

fn watch(cpu: usize, is_over: &AtomicBool, gaps: &Mutex<Vec<ProcessorGap>>, tell: &mpsc::Sender<SchedulingPolicy>) {
    let mut own = CpuSet::new();
    own.set(cpu);
    // An unpinned thread would see less.
    let pinned = sched_setaffinity(None, &own);
    let reservation = SchedulingGrant::take(&[SchedulingPolicy::Fifo { priority: 99 }]);
    let _ = tell.send(if pinned.is_ok() { reservation.policy() } else { SchedulingPolicy::Ordinary });
    while !is_over.load(Ordering::Relaxed) {
        let due_ns = now_ns() + INTERVAL_NS;
        sleep_until(due_ns);
        let end_ns = now_ns();
        let long_ns = end_ns.saturating_sub(due_ns);
        // Beyond what the pipes allow for.
        if long_ns > STILL_NS_MAX {
            gaps.lock().unwrap_or_else(PoisonError::into_inner).push(ProcessorGap { end_ns, long_ns });
        }
    }
}

impl Drop for WatchedLoad {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
