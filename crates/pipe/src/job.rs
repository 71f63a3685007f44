//! The jobs of a periodic thread: when they ran, how long they took, and which of them broke a promise.

use farbus_control::pipe::PipeJobs;
use farbus_io_linux::sys::scheduling::{now_ns, ran_ns, sleep_until};
use farbus_realtime::timetable::{ClockJump, ReleaseTimetable, TimetableTick};
use farbus_realtime::vcpu::VcpuReserve;

/// A job that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodicJob {
    /// The current time, in nanoseconds.
    pub now_ns: u64,
    /// When its period began, in nanoseconds.
    pub release_ns: u64,
    /// Periods without a job before it.
    pub missed: u64,
    /// How the clock jumped before it.
    pub jump: Option<ClockJump>,
    began_ns: u64,
}

/// The schedule of a periodic thread.
#[derive(Debug)]
pub struct JobSchedule {
    table: ReleaseTimetable,
    budget_ns: u64,
    jump: Option<ClockJump>,
    /// When the last job began, if the clock has not jumped since.
    last_ns: Option<u64>,
    counts: PipeJobs,
}

impl JobSchedule {
    /// A schedule whose first job is due at once.
    pub fn new(reserve: VcpuReserve) -> Self {
        let table = ReleaseTimetable::new(now_ns(), reserve.period_ns);
        Self { table, budget_ns: reserve.budget_ns, jump: None, last_ns: None, counts: PipeJobs::default() }
    }

    /// Changes budget and period from the next job on.
    pub fn change(&mut self, reserve: VcpuReserve) {
        self.table.set_period(reserve.period_ns);
        self.budget_ns = reserve.budget_ns;
    }

    /// Sleeps until a job is due.
    pub fn next_job(&mut self) -> PeriodicJob {
        loop {
            sleep_until(self.table.next_ns());
            if let Some(job) = self.look(now_ns()) {
                return job;
            }
        }
    }

    fn look(&mut self, now_ns: u64) -> Option<PeriodicJob> {
        match self.table.look(now_ns) {
            TimetableTick::Early => None,
            TimetableTick::Jumped(jump) => {
                self.counts.jumps += 1;
                self.jump = Some(jump);
                self.last_ns = None;
                None
            }
            TimetableTick::Due { release_ns, missed } => {
                self.counts.missed += missed;
                if let Some(last_ns) = self.last_ns.replace(now_ns) {
                    self.counts.apart_ns = self.counts.apart_ns.max(now_ns - last_ns);
                }
                let began_ns = ran_ns();
                Some(PeriodicJob { now_ns, release_ns, missed, jump: self.jump.take(), began_ns })
            }
        }
    }

    /// Records the end of a job; returns the counters.
    pub fn end(&mut self, job: PeriodicJob) -> PipeJobs {
        self.note(job, now_ns(), ran_ns().saturating_sub(job.began_ns))
    }

    fn note(&mut self, job: PeriodicJob, now_ns: u64, took_ns: u64) -> PipeJobs {
        self.counts.ran += 1;
        self.counts.late += u64::from(now_ns > job.release_ns.saturating_add(self.table.period_ns()));
        self.counts.longest_ns = self.counts.longest_ns.max(took_ns);
        self.counts.overruns += u64::from(took_ns > self.budget_ns);
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_break_a_promise_are_counted_by_kind() {
        let mut roster = JobSchedule::new(VcpuReserve { budget_ns: 10, period_ns: 100 });
        roster.table = ReleaseTimetable::new(1000, 100);
        let job = roster.look(1020).unwrap();
        assert_eq!((job.release_ns, job.missed), (1000, 0));
        assert_eq!(roster.note(job, 1100, 10), PipeJobs { ran: 1, longest_ns: 10, ..PipeJobs::default() });
        let job = roster.look(1350).unwrap();
        assert_eq!((job.release_ns, job.missed), (1300, 2));
        let counts = roster.note(job, 1401, 11);
        assert_eq!(
            counts,
            PipeJobs { ran: 2, missed: 2, late: 1, overruns: 1, longest_ns: 11, jumps: 0, apart_ns: 330 }
        );
        assert_eq!(roster.look(900), None, "the clock went back");
        let job = roster.look(1000).unwrap();
        assert_eq!((job.jump, roster.counts.jumps), (Some(ClockJump::Back { by_ns: 450 }), 1));
        assert_eq!(roster.look(1100).unwrap().jump, None, "said once");
        assert_eq!(roster.counts.apart_ns, 330, "a jump is no time between two jobs");
    }
}
