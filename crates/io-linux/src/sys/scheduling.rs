//! Processor time that the kernel's scheduler promises: a budget each period, a priority, or nothing.
//!
//! | policy | what it is | who may ask for it |
//! |---|---|---|
//! | [`SchedulingPolicy::Deadline`] | `SCHED_DEADLINE`: a constant bandwidth server; the kernel adds up what it promised | `CAP_SYS_NICE` |
//! | [`SchedulingPolicy::Fifo`] | `SCHED_FIFO`: runs before all threads without a promise, however long | `CAP_SYS_NICE`, `RLIMIT_RTPRIO` |
//! | [`SchedulingPolicy::Ordinary`] | the ordinary share of every thread | everybody |
//!
//! A thread asks for itself ([`SchedulingGrant::take`]) and gets its former policy back when the reservation is
//! dropped. What the kernel denied is reported with its reason ([`SchedulingDenial`]), so that the user can be told.
//! For a thread of another process, [`set_deadline`] asks.
#![allow(unsafe_code, reason = "calls that neither the standard library nor rustix has")]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, ClockId, Pid, Timespec, clock_nanosleep_absolute};
use rustix::time::clock_gettime;

/// The kernel's least budget, in nanoseconds: `DL_SCALE` of kernel/sched/sched.h.
pub const BUDGET_NS_MIN: u64 = 1 << 10;

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// This budget of one processor in each period, finished within it.
    Deadline {
        /// Processor time that the thread may use in each period.
        budget: Duration,
        /// Period, which is also the deadline.
        period: Duration,
    },
    /// Before all threads with a lower priority, or none.
    Fifo {
        /// 1 to 99.
        priority: u8,
    },
    /// The ordinary policy.
    Ordinary,
}

impl fmt::Display for SchedulingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedulingPolicy::Deadline { budget, period } => write!(f, "deadline ({budget:?} each {period:?})"),
            SchedulingPolicy::Fifo { priority } => write!(f, "fifo (priority {priority})"),
            SchedulingPolicy::Ordinary => f.write_str("ordinary"),
        }
    }
}

/// A policy that a thread was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingDenial {
    /// The policy that was asked for.
    pub policy: SchedulingPolicy,
    /// Why the kernel denied it.
    pub why: SchedulingDenialReason,
}

/// Why the kernel denied a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingDenialReason {
    /// It needs `CAP_SYS_NICE`.
    NotAllowed,
    /// The kernel has promised too much already.
    Bandwidth,
    /// All processors together keep deadlines, and the thread may not run on some of them.
    Affinity,
    /// The kernel does not accept such numbers.
    Range,
    /// Any other error, as the system's number.
    System(i32),
}

impl fmt::Display for SchedulingDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was denied: ", self.policy)?;
        match self.why {
            SchedulingDenialReason::NotAllowed => {
                f.write_str("it takes CAP_SYS_NICE (run as root, or 'setcap cap_sys_nice+ep')")
            }
            SchedulingDenialReason::Bandwidth => {
                f.write_str("the kernel has promised the rest of the processors to others")
            }
            SchedulingDenialReason::Affinity => {
                f.write_str("the thread may not run on all processors of its scheduling domain")
            }
            SchedulingDenialReason::Range => {
                f.write_str("the kernel takes no such period (/proc/sys/kernel/sched_deadline_period_*_us)")
            }
            SchedulingDenialReason::System(code) => write!(f, "{}", io::Error::from_raw_os_error(code)),
        }
    }
}

impl std::error::Error for SchedulingDenial {}

/// The policy that the calling thread was granted, until this is dropped on the same thread.
#[derive(Debug)]
pub struct SchedulingGrant {
    before: SchedAttr,
    policy: SchedulingPolicy,
    denied: Vec<SchedulingDenial>,
    /// Not `Send`: it belongs to one thread.
    _here: PhantomData<*const ()>,
}

impl SchedulingGrant {
    /// Asks for these policies in order; the first that the kernel grants is used, and the ordinary one if it grants
    /// none.
    pub fn take(wishes: &[SchedulingPolicy]) -> Self {
        let before = SchedAttr::of_this_thread().unwrap_or(SchedAttr::ORDINARY);
        let mut this = Self { before, policy: SchedulingPolicy::Ordinary, denied: Vec::new(), _here: PhantomData };
        this.change(wishes);
        this
    }

    /// Asks again. If the kernel grants none of these, the former policy stays.
    pub fn change(&mut self, wishes: &[SchedulingPolicy]) {
        self.denied.clear();
        for &policy in wishes {
            match set(policy) {
                Ok(()) => {
                    self.policy = policy;
                    return;
                }
                Err(denied) => self.denied.push(denied),
            }
        }
    }

    /// The policy that was granted.
    pub fn policy(&self) -> SchedulingPolicy {
        self.policy
    }

    /// The policies that were denied before that, and why.
    pub fn denied(&self) -> &[SchedulingDenial] {
        &self.denied
    }
}

impl Drop for SchedulingGrant {
    fn drop(&mut self) {
        if self.policy != SchedulingPolicy::Ordinary {
            // The ordinary policy is never denied.
            let _ = self.before.apply(0);
        }
    }
}

/// `struct sched_attr` of linux/sched/types.h, as far as it is used.
#[derive(Clone, Copy, Debug)]
struct SchedAttr {
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl SchedAttr {
    const ORDINARY: Self =
        Self { policy: 0, flags: 0, nice: 0, priority: 0, runtime_ns: 0, deadline_ns: 0, period_ns: 0 };

    fn new(policy: SchedulingPolicy) -> Self {
        // Children have no promise: the kernel refuses them otherwise, and they are not part of the calculation.
        let flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
        match policy {
            SchedulingPolicy::Ordinary => Self::ORDINARY,
            SchedulingPolicy::Fifo { priority } => {
                Self { policy: libc::SCHED_FIFO as u32, flags, priority: priority.into(), ..Self::ORDINARY }
            }
            SchedulingPolicy::Deadline { budget, period } => {
                let [runtime_ns, period_ns] = [budget, period].map(|span| span.as_nanos().min(u64::MAX.into()) as u64);
                let policy = libc::SCHED_DEADLINE as u32;
                Self { policy, flags, runtime_ns, deadline_ns: period_ns, period_ns, ..Self::ORDINARY }
            }
        }
    }

    fn raw(&self) -> libc::sched_attr {
        libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32,
            sched_policy: self.policy,
            sched_flags: self.flags,
            sched_nice: self.nice,
            sched_priority: self.priority,
            sched_runtime: self.runtime_ns,
            sched_deadline: self.deadline_ns,
            sched_period: self.period_ns,
        }
    }

    fn of_this_thread() -> io::Result<Self> {
        let mut raw = Self::ORDINARY.raw();
        // SAFETY: the kernel writes at most `size` bytes to a structure of that size, which lives as long as the call
        // (sched_getattr(2)).
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut raw, raw.size, 0) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            policy: raw.sched_policy,
            flags: raw.sched_flags,
            nice: raw.sched_nice,
            priority: raw.sched_priority,
            runtime_ns: raw.sched_runtime,
            deadline_ns: raw.sched_deadline,
            period_ns: raw.sched_period,
        })
    }

    /// Applies them to a thread of this machine, 0 for the calling one.
    fn apply(&self, thread: i32) -> io::Result<()> {
        let raw = self.raw();
        // SAFETY: the kernel reads `size` bytes of a structure of that size, which lives as long as the call
        // (sched_setattr(2)).
        let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const raw, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The least period of a deadline that every kernel takes: `sched_deadline_period_min_us` is 100 unless the machine's
/// administrator changed it (Documentation/scheduler/sched-deadline.rst).
pub const PERIOD_MIN: Duration = Duration::from_micros(100);

/// Gives a thread, of this process or another, a budget of one processor in each period, or takes it away (`None`). A
/// thread that has used its budget gets processor time that other deadlines leave, too: it promises the least, not the
/// most.
///
/// The kernel forgets to give back what is taken away from a thread that sleeps (`switched_from_dl` of
/// kernel/sched/deadline.c, seen on 6.18), until it has nothing left to promise: a thread that may calls
/// [`give_deadline_back`] itself, before.
///
/// # Errors
/// [`SchedulingDenial`]: the thread is scheduled as it was before.
pub fn set_deadline(thread: Pid, time: Option<(Duration, Duration)>) -> Result<(), SchedulingDenial> {
    let policy =
        time.map_or(SchedulingPolicy::Ordinary, |(budget, period)| SchedulingPolicy::Deadline { budget, period });
    let mut attributes = SchedAttr::new(policy);
    if time.is_some() {
        attributes.flags |= libc::SCHED_FLAG_RECLAIM as u64;
    }
    attributes.apply(thread.as_raw_nonzero().get()).map_err(|error| denied(policy, &error))
}

/// Ends the deadline of the calling thread, if it has one. It needs no right.
///
/// # Errors
/// The system's error; the thread is scheduled as it was before.
pub fn give_deadline_back() -> io::Result<()> {
    let priority = 0_i32;
    // SAFETY: the kernel reads a structure of one number, which lives as long as the call (sched_setscheduler(2)). Not
    // every C library makes the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, ORDINARY_AGAIN, &raw const priority) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The ordinary policy, with the flag that only `CAP_SYS_NICE` may take back.
pub(super) const ORDINARY_AGAIN: i32 = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;

fn set(policy: SchedulingPolicy) -> Result<(), SchedulingDenial> {
    SchedAttr::new(policy).apply(0).map_err(|error| denied(policy, &error))
}

fn denied(policy: SchedulingPolicy, error: &io::Error) -> SchedulingDenial {
    let code = error.raw_os_error().unwrap_or(0);
    let is_deadline = matches!(policy, SchedulingPolicy::Deadline { .. });
    let why = match Errno::from_raw_os_error(code) {
        // The kernel has one number for two reasons.
        Errno::PERM if is_deadline && may_reserve() => SchedulingDenialReason::Affinity,
        Errno::PERM => SchedulingDenialReason::NotAllowed,
        Errno::BUSY => SchedulingDenialReason::Bandwidth,
        Errno::INVAL => SchedulingDenialReason::Range,
        _ => SchedulingDenialReason::System(code),
    };
    SchedulingDenial { policy, why }
}

fn may_reserve() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

/// Keeps this process's memory from being paged out until it is dropped.
#[derive(Debug)]
pub struct LockedMemory(());

impl LockedMemory {
    /// Locks present and future memory.
    ///
    /// # Errors
    /// The system's error; `Unsupported` if a limit would let later allocations fail instead.
    pub fn take() -> io::Result<Self> {
        let is_unlimited = getrlimit(Resource::Memlock).current.is_none();
        let may = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
        if !is_unlimited && !may {
            let why = "memory is locked up to a limit here: CAP_IPC_LOCK or 'ulimit -l unlimited' lifts it";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
        Ok(Self(()))
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        // Unlocking what is locked does not fail.
        let _ = munlockall();
    }
}

/// The system's monotonic clock, in nanoseconds.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(rustix::time::ClockId::Monotonic))
}

/// How long the calling thread has run, in nanoseconds.
pub fn ran_ns() -> u64 {
    nanoseconds(clock_gettime(rustix::time::ClockId::ThreadCPUTime))
}

/// Sleeps until this moment of [`now_ns`]; a signal may end it earlier.
pub fn sleep_until(at_ns: u64) {
    const SECOND: u64 = 1_000_000_000;
    let request = Timespec { tv_sec: (at_ns / SECOND) as i64, tv_nsec: (at_ns % SECOND) as _ };
    // The caller reads the clock afterwards.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
}

/// The kernel's id of the calling thread.
pub fn this_thread() -> Pid {
    rustix::thread::gettid()
}

fn nanoseconds(at: Timespec) -> u64 {
    u64::try_from(at.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(at.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const MS: Duration = Duration::from_millis(1);

    fn policy_now() -> i32 {
        SchedAttr::of_this_thread().unwrap().policy as i32
    }

    fn apart<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn deadline_of_another_thread_is_in_force_until_it_is_taken_away() {
        let (numbers, number) = std::sync::mpsc::channel();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let (given_back, is_given_back) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                numbers.send(this_thread()).unwrap();
                let _ = end.recv();
                give_deadline_back().unwrap();
                given_back.send(()).unwrap();
                let _ = end.recv();
            });
            let other = number.recv().unwrap();
            let policy = || {
                // SAFETY: the call has no memory of ours (sched_getscheduler(2)).
                unsafe { libc::sched_getscheduler(other.as_raw_nonzero().get()) & !libc::SCHED_RESET_ON_FORK }
            };
            match set_deadline(other, Some((MS / 10, 100 * MS))) {
                Ok(()) => assert_eq!(policy(), libc::SCHED_DEADLINE),
                Err(denied) => {
                    assert!(!may_reserve() || denied.why != SchedulingDenialReason::NotAllowed, "{denied}");
                    assert_eq!(policy(), libc::SCHED_OTHER);
                }
            }
            // It ends its deadline itself: the kernel would forget the time of a thread that sleeps.
            ends.send(()).unwrap();
            is_given_back.recv().unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER);
            set_deadline(other, None).unwrap();
            assert_eq!(policy(), libc::SCHED_OTHER);
            // A budget above its period is none.
            assert!(set_deadline(other, Some((2 * MS, MS))).is_err());
            drop(ends);
        });
        assert_eq!(
            set_deadline(Pid::from_raw(i32::MAX).unwrap(), None).unwrap_err().why,
            SchedulingDenialReason::System(3)
        );
    }

    #[test]
    fn granted_policy_is_in_force_until_the_reservation_is_dropped() {
        let wishes =
            [SchedulingPolicy::Deadline { budget: MS / 10, period: 100 * MS }, SchedulingPolicy::Fifo { priority: 1 }];
        apart(|| {
            let reservation = SchedulingGrant::take(&wishes);
            let expected = match reservation.policy() {
                SchedulingPolicy::Deadline { .. } => libc::SCHED_DEADLINE,
                SchedulingPolicy::Fifo { .. } => libc::SCHED_FIFO,
                SchedulingPolicy::Ordinary => libc::SCHED_OTHER,
            };
            assert_eq!(policy_now(), expected, "{:?}", reservation.denied());
            let denied = wishes.iter().position(|wish| *wish == reservation.policy()).unwrap_or(wishes.len());
            assert_eq!(reservation.denied().len(), denied);
            drop(reservation);
            assert_eq!(policy_now(), libc::SCHED_OTHER);
        });
    }

    #[test]
    fn without_the_capability_both_are_denied_with_what_to_do() {
        apart(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            sets.permitted.remove(CapabilitySet::SYS_NICE);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let wishes =
                [SchedulingPolicy::Deadline { budget: MS, period: 100 * MS }, SchedulingPolicy::Fifo { priority: 1 }];
            let reservation = SchedulingGrant::take(&wishes);
            // A limit may allow priorities to every user.
            assert_eq!(
                reservation.denied()[0],
                SchedulingDenial { policy: wishes[0], why: SchedulingDenialReason::NotAllowed }
            );
            assert!(reservation.denied()[0].to_string().contains("CAP_SYS_NICE"));
            assert!(reservation.policy() != wishes[0]);
        });
    }

    #[test]
    fn numbers_that_the_kernel_does_not_take_are_told_apart() {
        apart(|| {
            let deadline = |budget, period| SchedulingPolicy::Deadline { budget, period };
            let wishes = [deadline(Duration::from_nanos(BUDGET_NS_MIN - 1), 100 * MS), deadline(2 * MS, MS)];
            let reservation = SchedulingGrant::take(&wishes);
            let why: Vec<_> = reservation.denied().iter().map(|denied| denied.why).collect();
            assert_eq!(why, [SchedulingDenialReason::Range; 2]);
            assert_eq!(reservation.policy(), SchedulingPolicy::Ordinary);
        });
    }

    #[test]
    fn deadline_of_a_thread_bound_to_some_processors_is_denied_as_affinity() {
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        if !may_reserve() || cpus.count() < 2 {
            return assert_eq!(
                SchedulingGrant::take(&[]).policy(),
                SchedulingPolicy::Ordinary,
                "nothing to be had here"
            );
        }
        apart(|| {
            let first = (0..1024).find(|cpu| cpus.is_set(*cpu)).unwrap();
            let mut one = rustix::thread::CpuSet::new();
            one.set(first);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let wish = SchedulingPolicy::Deadline { budget: MS / 10, period: 100 * MS };
            let reservation = SchedulingGrant::take(&[wish]);
            // A domain may be split because a process has taken a processor exclusively.
            match reservation.denied() {
                [] => assert_eq!(reservation.policy(), wish),
                denied => {
                    assert_eq!(denied, [SchedulingDenial { policy: wish, why: SchedulingDenialReason::Affinity }])
                }
            }
        });
    }

    #[test]
    fn more_than_the_processors_have_is_denied() {
        if !may_reserve() {
            return assert_eq!(
                SchedulingGrant::take(&[]).policy(),
                SchedulingPolicy::Ordinary,
                "nothing to be had here"
            );
        }
        // Each thread asks for nearly a whole processor: the kernel keeps a twentieth for other threads.
        let cpus = thread::available_parallelism().unwrap().get();
        apart(|| {
            let wish = SchedulingPolicy::Deadline { budget: 99 * MS, period: 100 * MS };
            let mut held = Vec::new();
            let (tell, reasons) = std::sync::mpsc::channel();
            for _ in 0..=cpus {
                let (tell, (stop, stopped)) = (tell.clone(), std::sync::mpsc::channel::<()>());
                let thread = thread::spawn(move || {
                    let reservation = SchedulingGrant::take(&[wish]);
                    tell.send(reservation.denied().first().map(|denied| denied.why)).unwrap();
                    let _ = stopped.recv();
                });
                held.push((stop, thread));
            }
            let outcomes: Vec<_> = (0..=cpus).map(|_| reasons.recv().unwrap()).collect();
            assert!(outcomes.contains(&Some(SchedulingDenialReason::Bandwidth)), "{outcomes:?}");
            for (stop, thread) in held {
                drop(stop);
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn sleep_ends_at_its_moment_and_running_is_counted() {
        let (from, ran) = (now_ns(), ran_ns());
        sleep_until(from + 5_000_000);
        assert!(now_ns() >= from + 5_000_000);
        while ran_ns() < ran + 1_000_000 {}
        assert!(ran_ns() >= ran + 1_000_000);
    }
}
