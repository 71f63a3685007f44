//! One simulated processor, and which task runs on it when: as on Quest ([`SimulatedProcessor::quest`]) and as on Linux
//! ([`SimulatedProcessor::linux`]). R4.
//!
//! The simulation gives tasks work, and lets time pass up to the next event that it knows of; the processor returns the
//! jobs that ended before.

mod linux;
mod quest;
mod role;

use std::collections::VecDeque;

pub use linux::LinuxSchedulerSettings;
pub use role::{TaskId, TaskRole};

use linux::LinuxScheduler;
use quest::QuestScheduler;
use role::TaskChoice;

/// A processor and its tasks.
#[derive(Clone, Debug)]
pub struct SimulatedProcessor {
    now_ns: u64,
    tasks: Vec<ProcessorTask>,
    policy: SimulatedScheduler,
}

#[derive(Clone, Debug)]
struct ProcessorTask {
    /// What is left of each job; the first is running.
    jobs: VecDeque<u64>,
    ran_ns: u64,
}

#[derive(Clone, Debug)]
enum SimulatedScheduler {
    Quest(QuestScheduler),
    Linux(LinuxScheduler),
}

impl SimulatedProcessor {
    /// Main VCPUs are sporadic servers, bottom halves run on I/O VCPUs that inherit the period of the task they work
    /// for; priorities are rate-monotonic. A task without a reserve runs when no other does.
    pub fn quest(roles: &[TaskRole]) -> Self {
        Self::new(roles, SimulatedScheduler::Quest(QuestScheduler::new(roles)))
    }

    /// Tasks with a reserve use `SCHED_DEADLINE`, bottom halves are soft interrupts.
    pub fn linux(roles: &[TaskRole], settings: LinuxSchedulerSettings) -> Self {
        Self::new(roles, SimulatedScheduler::Linux(LinuxScheduler::new(roles, settings)))
    }

    fn new(roles: &[TaskRole], policy: SimulatedScheduler) -> Self {
        let task = ProcessorTask { jobs: VecDeque::new(), ran_ns: 0 };
        Self { now_ns: 0, tasks: vec![task; roles.len()], policy }
    }

    /// The current time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How long `task` has run.
    pub fn ran_ns(&self, task: TaskId) -> u64 {
        self.tasks[task].ran_ns
    }

    /// How many jobs of `task` are not finished.
    pub fn jobs(&self, task: TaskId) -> usize {
        self.tasks[task].jobs.len()
    }

    /// Gives `task` a job of `work_ns` now.
    pub fn give(&mut self, task: TaskId, work_ns: u64) {
        self.give_for(task, work_ns, None);
    }

    /// Like [`SimulatedProcessor::give`]; a bottom half then works for a task of `period_ns` this time.
    pub fn give_for(&mut self, task: TaskId, work_ns: u64, period_ns: Option<u64>) {
        let jobs = &mut self.tasks[task].jobs;
        jobs.push_back(work_ns.max(1));
        let is_first = jobs.len() == 1;
        match &mut self.policy {
            SimulatedScheduler::Quest(quest) => quest.wake(self.now_ns, task, is_first, period_ns),
            SimulatedScheduler::Linux(linux) => linux.wake(self.now_ns, task, is_first),
        }
    }

    /// Lets time pass until a job is finished, and returns its task; `None` at `until_ns`.
    pub fn run(&mut self, until_ns: u64) -> Option<TaskId> {
        while self.now_ns < until_ns {
            let choice = self.choose();
            let until_ns = until_ns.min(choice.until_ns);
            let Some(task) = choice.task else {
                self.now_ns = until_ns;
                continue;
            };
            let Some(&left_ns) = self.tasks[task].jobs.front() else {
                debug_assert!(false, "who has no job is not chosen");
                return None;
            };
            let ran_ns = left_ns.min(until_ns - self.now_ns);
            self.now_ns += ran_ns;
            self.tasks[task].ran_ns += ran_ns;
            let is_finished = ran_ns == left_ns;
            let jobs = &mut self.tasks[task].jobs;
            if is_finished {
                jobs.pop_front();
            } else if let Some(first) = jobs.front_mut() {
                *first -= ran_ns;
            }
            let is_idle = jobs.is_empty();
            self.charge(task, ran_ns, is_finished, is_idle);
            if is_finished {
                return Some(task);
            }
        }
        None
    }

    /// The top half of an interrupt: it runs at once, at the cost of the task it interrupts.
    pub fn interrupt(&mut self, top_half_ns: u64) {
        let choice = self.choose();
        self.now_ns += top_half_ns;
        if let Some(task) = choice.task {
            self.charge(task, top_half_ns, false, false);
        }
    }

    fn choose(&mut self) -> TaskChoice {
        let has_job = |task: TaskId| !self.tasks[task].jobs.is_empty();
        match &mut self.policy {
            SimulatedScheduler::Quest(quest) => quest.choose(self.now_ns, has_job),
            SimulatedScheduler::Linux(linux) => linux.choose(self.now_ns, has_job),
        }
    }

    fn charge(&mut self, task: TaskId, ran_ns: u64, is_finished: bool, is_idle: bool) {
        let has_job = |task: TaskId| !self.tasks[task].jobs.is_empty();
        match &mut self.policy {
            SimulatedScheduler::Quest(quest) => quest.charge(self.now_ns, task, ran_ns, is_finished, is_idle),
            SimulatedScheduler::Linux(linux) => linux.charge(task, ran_ns, is_finished, has_job),
        }
    }
}
