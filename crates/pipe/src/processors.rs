//! Which processor carries which thread: Equation 1 decides for each, before the kernel is asked.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus::common::processor_leases::ProcessorAdmission;
use farbus_io_linux::sys::cpuset::{CpusetEntry, CpusetError, ExclusiveProcessor};
use farbus_io_linux::sys::scheduling::{LockedMemory, SchedulingGrant, SchedulingPolicy};
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve, admit};

use super::error::PipeError;

/// A whole processor.
const WHOLE: VcpuReserve = VcpuReserve { budget_ns: 1_000_000, period_ns: 1_000_000 };

/// Which scheduling a pipe's thread asks for, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingStrictness {
    /// A deadline, else a priority, else none and a warning.
    Deadline,
    /// A priority, else none and a warning.
    Fifo,
    /// None: to measure what promises are worth.
    None,
}

/// Processors, and the time that was promised on them. Threads of one set of processors are admitted together.
#[derive(Clone)]
pub struct ProcessorPool(Arc<ProcessorPoolInner>);

struct ProcessorPoolInner {
    strictness: SchedulingStrictness,
    placements: Vec<ThreadPlacement>,
    ledger: Mutex<ProcessorShareLedger>,
    beside: Option<Box<dyn ProcessorAdmission>>,
    /// Keeps memory from being paged out while any promise exists; or why that is not possible.
    memory: Result<LockedMemory, String>,
}

/// Where threads run.
enum ThreadPlacement {
    /// On any processor. All processors together keep deadlines then: a set that one processor would carry (its sum is
    /// at most 1) is carried by m under global earliest-deadline-first too, which takes a sum of m - (m - 1) times its
    /// largest part (Goossens, Funk and Baruah, 2003).
    Anywhere,
    /// On a processor that runs nothing else, for as long as it is kept.
    Own { cpuset_entry: CpusetEntry, _kept: Option<ExclusiveProcessor> },
}

#[derive(Default)]
struct ProcessorShareLedger {
    next: u64,
    /// What was promised: place, number of the share, reserve.
    shares: Vec<(usize, u64, VcpuReserve)>,
}

/// A promise that counts until it is dropped.
pub struct ProcessorShare {
    processors: ProcessorPool,
    position: usize,
    id: u64,
}

impl ProcessorPool {
    /// All processors, as the kernel divides them.
    pub fn anywhere(strictness: SchedulingStrictness) -> Self {
        Self::over(vec![ThreadPlacement::Anywhere], strictness)
    }

    /// These processors and no others, each taken away from all other threads.
    ///
    /// # Errors
    /// [`CpusetError`]; processors that were taken already are given back.
    pub fn exclusive(cpus: &[usize], strictness: SchedulingStrictness) -> Result<Self, CpusetError> {
        let take = |&cpu: &usize| {
            let kept = ExclusiveProcessor::take(cpu)?;
            Ok(ThreadPlacement::Own { cpuset_entry: kept.cpuset_entry()?, _kept: Some(kept) })
        };
        let own = cpus.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::over(own, strictness))
    }

    /// These processors, which another process has taken and keeps.
    pub fn kept_elsewhere(cpuset_entries: Vec<CpusetEntry>, strictness: SchedulingStrictness) -> Self {
        let own = cpuset_entries.into_iter().map(|cpuset_entry| ThreadPlacement::Own { cpuset_entry, _kept: None });
        Self::over(own.collect(), strictness)
    }

    /// These processors, while other processes promise time on them too. They get no time of exclusive processors; of
    /// all processors together they get what this process leaves.
    ///
    /// # Errors
    /// [`PipeError::Promised`] if they have promised time that is ours.
    pub fn beside(mut self, others: impl ProcessorAdmission) -> Result<Self, PipeError> {
        let own = self.0.placements.iter().filter(|placement| placement.own().is_some()).count();
        if own > 0 {
            others.admit(&vec![WHOLE; own]).map_err(PipeError::Promised)?;
        }
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.beside = Some(Box::new(others));
        }
        Ok(self)
    }

    fn over(placements: Vec<ThreadPlacement>, strictness: SchedulingStrictness) -> Self {
        let memory = match strictness {
            SchedulingStrictness::None => Err("nobody asked for it".to_owned()),
            _ => LockedMemory::take().map_err(|error| error.to_string()),
        };
        Self(Arc::new(ProcessorPoolInner { strictness, placements, ledger: Mutex::default(), beside: None, memory }))
    }

    /// Where threads run, for people.
    pub fn described(&self) -> String {
        let own: Vec<_> =
            self.0.placements.iter().filter_map(ThreadPlacement::own).map(|own| own.cpu().to_string()).collect();
        match own.as_slice() {
            [] => "all processors together".to_owned(),
            cpus => format!("processors {} alone", cpus.join(", ")),
        }
    }

    /// Why memory may be paged out, if it may.
    pub fn unlocked(&self) -> Option<&str> {
        self.0.memory.as_ref().err().map(String::as_str)
    }

    /// Promises `reserve` on the first processor that carries it by Equation 1.
    ///
    /// # Errors
    /// [`PipeError::Processor`] of the processor that lacks least, [`PipeError::Promised`].
    pub fn share(&self, reserve: VcpuReserve) -> Result<ProcessorShare, PipeError> {
        let mut ledger = self.ledger();
        let mut least = None;
        for position in 0..self.0.placements.len() {
            match admit(&ledger.with(position, None, reserve), &[]) {
                Ok(_) => {
                    self.admit_beside(position, ledger.with(position, None, reserve))?;
                    ledger.next += 1;
                    let id = ledger.next;
                    ledger.shares.push((position, id, reserve));
                    return Ok(ProcessorShare { processors: self.clone(), position, id });
                }
                Err(overload) => {
                    let missing = |overload: &VcpuOverload| match overload {
                        VcpuOverload::Demand(load) => load.missing_ppb(),
                        _ => u64::MAX,
                    };
                    if least.as_ref().is_none_or(|best| missing(&overload) < missing(best)) {
                        least = Some(overload);
                    }
                }
            }
        }
        Err(least.expect("there is a processor").into())
    }

    /// Asks the other processes; on exclusive processors they have no time in any case.
    fn admit_beside(&self, position: usize, all: Vec<VcpuReserve>) -> Result<(), PipeError> {
        match (&self.0.placements[position], &self.0.beside) {
            (ThreadPlacement::Anywhere, Some(beside)) => beside.admit(&all).map_err(PipeError::Promised),
            _ => Ok(()),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, ProcessorShareLedger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ProcessorPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Processors({})", self.described())
    }
}

impl ThreadPlacement {
    fn own(&self) -> Option<&CpusetEntry> {
        match self {
            ThreadPlacement::Anywhere => None,
            ThreadPlacement::Own { cpuset_entry, .. } => Some(cpuset_entry),
        }
    }
}

impl ProcessorShareLedger {
    /// What is promised at a place with `reserve` added, or in place of the share `instead_of`.
    fn with(&self, position: usize, instead_of: Option<u64>, reserve: VcpuReserve) -> Vec<VcpuReserve> {
        let others = self.shares.iter().filter(|(at, id, _)| *at == position && Some(*id) != instead_of);
        others.map(|(.., reserve)| *reserve).chain([reserve]).collect()
    }
}

impl ProcessorShare {
    /// Changes the promise to `reserve`.
    ///
    /// # Errors
    /// [`PipeError`] as [`ProcessorPool::share`]; the promise stays as it was.
    pub fn change(&self, reserve: VcpuReserve) -> Result<(), PipeError> {
        let mut ledger = self.processors.ledger();
        let all = ledger.with(self.position, Some(self.id), reserve);
        admit(&all, &[])?;
        self.processors.admit_beside(self.position, all)?;
        if let Some(share) = ledger.shares.iter_mut().find(|(_, id, _)| *id == self.id) {
            share.2 = reserve;
        }
        Ok(())
    }

    /// Moves the calling thread to its processor and asks the kernel for what was promised. The second value lists what
    /// was denied.
    pub fn reserve(&self, reserve: VcpuReserve) -> (SchedulingGrant, Vec<String>) {
        let mut warnings = Vec::new();
        if let Some(own) = self.processors.0.placements[self.position].own()
            && let Err(error) = own.enter()
        {
            warnings.push(error.to_string());
        }
        let reservation = SchedulingGrant::take(&self.wishes(reserve));
        warnings.extend(warnings_of(&reservation));
        (reservation, warnings)
    }

    /// The policies to ask for, best first.
    pub fn wishes(&self, reserve: VcpuReserve) -> Vec<SchedulingPolicy> {
        let [budget, period] = [reserve.budget_ns, reserve.period_ns].map(Duration::from_nanos);
        let fifo = SchedulingPolicy::Fifo { priority: priority_of(reserve.period_ns) };
        match self.processors.0.strictness {
            SchedulingStrictness::Deadline => vec![SchedulingPolicy::Deadline { budget, period }, fifo],
            SchedulingStrictness::Fifo => vec![fifo],
            SchedulingStrictness::None => Vec::new(),
        }
    }
}

/// What was denied, for people.
pub fn warnings_of(reservation: &SchedulingGrant) -> Vec<String> {
    let mut messages: Vec<_> = reservation.denied().iter().map(ToString::to_string).collect();
    if !messages.is_empty() && reservation.policy() == SchedulingPolicy::Ordinary {
        messages.push("nothing is promised: it runs as every thread does".to_owned());
    }
    messages
}

impl Drop for ProcessorShare {
    fn drop(&mut self) {
        let mut ledger = self.processors.ledger();
        ledger.shares.retain(|(_, id, _)| *id != self.id);
        let left = ledger.shares.iter().filter(|(at, ..)| *at == self.position).map(|(.., reserve)| *reserve).collect();
        // A smaller need is always admitted; other processes that do not answer any more need not be told.
        let _ = self.processors.admit_beside(self.position, left);
    }
}

/// Rate-monotonic, one step for each doubling of the period: below the priority of the kernel's own threads (50).
fn priority_of(period_ns: u64) -> u8 {
    49u8.saturating_sub(period_ns.max(1).ilog2() as u8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(budget_ns: u64, period_ns: u64) -> VcpuReserve {
        VcpuReserve { budget_ns, period_ns }
    }

    #[test]
    fn equation_1_decides_before_the_kernel_is_asked() {
        let processors = ProcessorPool::anywhere(SchedulingStrictness::None);
        let first = processors.share(reserve(40_000, 100_000)).unwrap();
        let second = processors.share(reserve(40_000, 100_000)).unwrap();
        let beyond = processors.share(reserve(1_000, 100_000));
        let Err(PipeError::Processor(VcpuOverload::Demand(load))) = beyond else { panic!("beyond the bound") };
        assert_eq!(load.demand_ppb, 810_000_000);
        assert!(second.change(reserve(60_000, 100_000)).is_err());
        drop(first);
        second.change(reserve(60_000, 100_000)).unwrap();
        assert!(processors.share(reserve(22_000, 100_000)).is_ok());
        assert!(matches!(processors.share(reserve(2, 1)), Err(PipeError::Processor(VcpuOverload::Reserve(_)))));
    }

    /// A fake of the other processes: what they leave, and what they were told last.
    #[derive(Clone, Default)]
    struct OtherProcesses(Arc<Mutex<Vec<VcpuReserve>>>);

    impl ProcessorAdmission for OtherProcesses {
        fn admit(&self, all: &[VcpuReserve]) -> Result<(), String> {
            admit(&[all, &[reserve(30, 100)]].concat(), &[]).map_err(|overload| overload.to_string())?;
            *self.0.lock().unwrap() = all.to_vec();
            Ok(())
        }
    }

    #[test]
    fn time_promised_by_other_processes_is_not_promised_again() {
        let others = OtherProcesses::default();
        let admitted = || others.0.lock().unwrap().clone();
        let processors = ProcessorPool::anywhere(SchedulingStrictness::None).beside(others.clone()).unwrap();
        let first = processors.share(reserve(30, 100)).unwrap();
        let Err(PipeError::Promised(why)) = processors.share(reserve(40, 100)) else { panic!("beyond what is left") };
        assert!(why.contains("missing"), "{why}");
        assert_eq!(admitted(), [reserve(30, 100)], "and who is refused has nothing");
        let second = processors.share(reserve(10, 100)).unwrap();
        assert!(matches!(second.change(reserve(40, 100)), Err(PipeError::Promised(_))));
        drop(first);
        assert_eq!(admitted(), [reserve(10, 100)]);
        second.change(reserve(40, 100)).unwrap();
        assert_eq!(admitted(), [reserve(40, 100)]);
    }

    #[test]
    fn shorter_periods_have_higher_priorities() {
        let of = [100_000, 1_000_000, 10_000_000, u64::MAX].map(priority_of);
        assert!(of.is_sorted_by(|a, b| a > b) && of[0] < 50 && of[3] == 1, "{of:?}");
    }
}
