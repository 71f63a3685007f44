//! Processor time that threads of the confined process have from the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::thread::available_parallelism;
use std::time::Duration;

use farbus_io_linux::sys::scheduling::{PERIOD_MIN, set_deadline};
use rustix::process::Pid;

/// The longest period that is asked for: no device is served less often.
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// The part of all processors that all threads may have together, in hundredths. A process that was taken over cannot
/// take the machine away from everybody else.
const PART_PERCENT_MAX: u64 = 70;
/// One whole processor, in the unit of [`ThreadTimeShares`].
const WHOLE_PPB: u64 = 1_000_000_000;

/// The threads that have processor time, and how much: billionths of one processor.
#[derive(Debug, Default)]
pub(super) struct ThreadTimeShares(BTreeMap<u32, u64>);

impl ThreadTimeShares {
    /// Gives `thread` of process `process` this budget of one processor in each period, or takes it away (a budget of
    /// 0). What threads had that have ended is free again.
    ///
    /// # Errors
    /// The thread is not of that process, the numbers are out of range or too much together, or the kernel denies it.
    /// The thread is scheduled as it was before.
    pub(super) fn set(&mut self, process: u32, thread: u32, budget: Duration, period: Duration) -> io::Result<()> {
        let is_its_own = |thread: &u32| fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false);
        self.0.retain(|thread, _| is_its_own(thread));
        let pid = i32::try_from(thread).ok().and_then(Pid::from_raw).filter(|_| is_its_own(&thread));
        let pid = pid.ok_or_else(|| io::Error::other(format!("{thread} is no thread of the confined half")))?;
        if budget.is_zero() {
            self.0.remove(&thread);
            return set_deadline(pid, None).map_err(io::Error::other);
        }
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) || budget > period {
            return Err(io::Error::other(format!("{budget:?} each {period:?} are no part of a processor")));
        }
        let part = (budget.as_nanos() * u128::from(WHOLE_PPB) / period.as_nanos()) as u64;
        let others: u64 = self.0.iter().filter(|(other, _)| **other != thread).map(|(_, part)| part).sum();
        let processors = available_parallelism().map_or(1, usize::from) as u64;
        let may = processors * WHOLE_PPB / 100 * PART_PERCENT_MAX;
        if others + part > may {
            return Err(io::Error::other(format!(
                "threads that serve devices have {PART_PERCENT_MAX} % of all processors at most"
            )));
        }
        set_deadline(pid, Some((budget, period))).map_err(io::Error::other)?;
        self.0.insert(thread, part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn refusal(schedules: &mut ThreadTimeShares, thread: u32, budget: Duration, period: Duration) -> String {
        schedules.set(std::process::id(), thread, budget, period).unwrap_err().to_string()
    }

    #[test]
    fn only_threads_of_the_confined_process_are_given_time_and_no_more_than_a_part_of_all() {
        let (mut schedules, own) = (ThreadTimeShares::default(), std::process::id());
        assert!(refusal(&mut schedules, 1, MS, 10 * MS).contains("no thread of the confined half"));
        assert!(refusal(&mut schedules, u32::MAX, MS, 10 * MS).contains("no thread of the confined half"));
        for (budget, period) in [(2 * MS, MS), (MS, Duration::from_secs(2)), (MS / 100, MS / 20)] {
            assert!(refusal(&mut schedules, own, budget, period).contains("no part of a processor"));
        }
        let processors = available_parallelism().unwrap().get() as u64;
        // All the others have all that there is for all.
        let task = fs::read_dir("/proc/self/task").unwrap().flatten();
        let threads = task.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let other = threads.into_iter().find(|thread: &u32| *thread != own).unwrap();
        schedules.0.insert(other, processors * WHOLE_PPB / 100 * PART_PERCENT_MAX);
        assert!(refusal(&mut schedules, own, MS, 100 * MS).contains("70 % of all processors"));
        // A thread that has ended has nothing.
        schedules.0 = BTreeMap::from([(u32::MAX, u64::MAX / 2)]);
        schedules.set(own, own, Duration::ZERO, Duration::ZERO).unwrap();
        assert!(schedules.0.is_empty());
    }
}
