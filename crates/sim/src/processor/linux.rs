//! Linux: bottom halves are soft interrupts, which run before all tasks until they take too long, and then after all
//! tasks with a reserve (section 6.2.1 of the paper). Their time is charged to no task (`CONFIG_IRQ_TIME_ACCOUNTING`).

use std::collections::VecDeque;

use super::role::{RoundRobinQueue, TaskChoice, TaskId, TaskRole};

/// Settings that the kernel leaves to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxSchedulerSettings {
    /// Soft interrupts that take longer at a time are left to `ksoftirqd`: `MAX_SOFTIRQ_TIME` of `kernel/softirq.c`, 2
    /// ms.
    pub softirq_ns_max: u64,
    /// Soft interrupts that are raised again more often at a time are left to `ksoftirqd` as well:
    /// `MAX_SOFTIRQ_RESTART`.
    pub softirq_restarts_max: u32,
    /// How long a task of the fair class runs before the next of them does.
    pub slice_ns: u64,
    /// Whether budget that blocked `SCHED_DEADLINE` tasks leave is shared among the running ones
    /// (`SCHED_FLAG_RECLAIM`).
    pub reclaims: bool,
}

impl Default for LinuxSchedulerSettings {
    /// The constants of `kernel/softirq.c`; the slice of `kernel/sched/fair.c` on two processors; and reclaiming, which
    /// the paper assumes.
    fn default() -> Self {
        Self { softirq_ns_max: 2_000_000, softirq_restarts_max: 10, slice_ns: 1_500_000, reclaims: true }
    }
}

#[derive(Clone, Debug)]
pub(super) struct LinuxScheduler {
    settings: LinuxSchedulerSettings,
    classes: Vec<SchedulingClass>,
    /// Raised soft interrupts, one entry per job, in the order in which they are served.
    raised: VecDeque<TaskId>,
    spent_ns: u64,
    restarts: u32,
    /// `ksoftirqd` serves them until none is left.
    is_demoted: bool,
    fair: RoundRobinQueue,
}

#[derive(Clone, Copy, Debug)]
enum SchedulingClass {
    Deadline(ConstantBandwidthServer),
    Soft,
    Fair,
}

/// A constant-bandwidth server (Abeni and Buttazzo 1998), as `kernel/sched/deadline.c` has it.
#[derive(Clone, Copy, Debug)]
struct ConstantBandwidthServer {
    budget_ns: u64,
    period_ns: u64,
    left_ns: u64,
    deadline_ns: u64,
}

impl LinuxScheduler {
    pub(super) fn new(roles: &[TaskRole], settings: LinuxSchedulerSettings) -> Self {
        let class = |role: &TaskRole| match *role {
            TaskRole::Reserved(reserve) => SchedulingClass::Deadline(ConstantBandwidthServer {
                budget_ns: reserve.budget_ns,
                period_ns: reserve.period_ns,
                left_ns: reserve.budget_ns,
                deadline_ns: 0,
            }),
            TaskRole::BottomHalf { .. } => SchedulingClass::Soft,
            TaskRole::Ordinary => SchedulingClass::Fair,
        };
        Self {
            settings,
            classes: roles.iter().map(class).collect(),
            raised: VecDeque::new(),
            spent_ns: 0,
            restarts: 0,
            is_demoted: false,
            fair: RoundRobinQueue::new(settings.slice_ns),
        }
    }

    /// `ksoftirqd` takes turns with the fair tasks, as the task after the last.
    fn ksoftirqd(&self) -> TaskId {
        self.classes.len()
    }

    pub(super) fn wake(&mut self, now_ns: u64, task: TaskId, is_first: bool) {
        match &mut self.classes[task] {
            SchedulingClass::Deadline(server) if is_first => server.wake(now_ns),
            SchedulingClass::Soft => {
                if self.raised.is_empty() {
                    (self.spent_ns, self.restarts, self.is_demoted) = (0, 0, false);
                } else {
                    self.restarts += 1;
                    self.is_demoted |= self.restarts > self.settings.softirq_restarts_max;
                }
                self.raised.push_back(task);
            }
            _ => {}
        }
    }

    pub(super) fn choose(&mut self, now_ns: u64, has_job: impl Fn(TaskId) -> bool) -> TaskChoice {
        if let (Some(&task), false) = (self.raised.front(), self.is_demoted) {
            let left_ns = self.settings.softirq_ns_max.saturating_sub(self.spent_ns).max(1);
            return TaskChoice { task: Some(task), until_ns: now_ns + left_ns };
        }
        let mut until_ns = u64::MAX;
        let first = self.earliest(now_ns, &has_job, &mut until_ns);
        if let Some(task) = first {
            let left_ns = match &self.classes[task] {
                // At the slowest rate of consumption the budget lasts longer; the scheduler then asks again.
                SchedulingClass::Deadline(server) => server.left_ns,
                _ => 1,
            };
            return TaskChoice { task: Some(task), until_ns: until_ns.min(now_ns + left_ns.max(1)) };
        }
        let (ksoftirqd, raised) = (self.ksoftirqd(), self.raised.front().copied());
        let classes = &self.classes;
        let wants = |task: TaskId| match classes.get(task) {
            Some(class) => matches!(class, SchedulingClass::Fair) && has_job(task),
            None => raised.is_some(),
        };
        match self.fair.choose(ksoftirqd + 1, wants) {
            Some((task, slice_ns)) => {
                let task = if task == ksoftirqd { raised } else { Some(task) };
                TaskChoice { task, until_ns: until_ns.min(now_ns + slice_ns) }
            }
            None => TaskChoice { task: None, until_ns },
        }
    }

    /// The `SCHED_DEADLINE` task to run, if any may. Lowers `until_ns` to when that may change.
    fn earliest(&mut self, now_ns: u64, has_job: impl Fn(TaskId) -> bool, until_ns: &mut u64) -> Option<TaskId> {
        let mut first: Option<(u64, TaskId)> = None;
        for (task, class) in self.classes.iter_mut().enumerate().filter(|(task, _)| has_job(*task)) {
            let SchedulingClass::Deadline(server) = class else { continue };
            if !server.may_run(now_ns) {
                *until_ns = (*until_ns).min(server.deadline_ns);
            } else if first.is_none_or(|other| (server.deadline_ns, task) < other) {
                first = Some((server.deadline_ns, task));
            }
        }
        first.map(|(_, task)| task)
    }

    pub(super) fn charge(&mut self, task: TaskId, ran_ns: u64, is_finished: bool, has_job: impl Fn(TaskId) -> bool) {
        match self.classes[task] {
            SchedulingClass::Soft => {
                if self.is_demoted {
                    self.fair.charge(self.ksoftirqd(), ran_ns);
                } else {
                    self.spent_ns += ran_ns;
                    self.is_demoted = self.spent_ns >= self.settings.softirq_ns_max;
                }
                if is_finished {
                    self.raised.pop_front();
                }
            }
            SchedulingClass::Deadline(_) => self.use_up(task, ran_ns, has_job),
            SchedulingClass::Fair => self.fair.charge(task, ran_ns),
        }
    }

    /// Takes `ran_ns` from a budget, or less if other tasks leave theirs.
    fn use_up(&mut self, task: TaskId, ran_ns: u64, has_job: impl Fn(TaskId) -> bool) {
        let share = |server: &ConstantBandwidthServer| server.budget_ns * PPM / server.period_ns.max(1);
        let blocked = |(other, class): (TaskId, &SchedulingClass)| match class {
            SchedulingClass::Deadline(server) if other != task && !has_job(other) => share(server),
            _ => 0,
        };
        let left_ppm = match self.settings.reclaims {
            true => PPM.saturating_sub(self.classes.iter().enumerate().map(blocked).sum()),
            false => PPM,
        };
        if let SchedulingClass::Deadline(server) = &mut self.classes[task] {
            server.left_ns = server.left_ns.saturating_sub((ran_ns * left_ppm).div_ceil(PPM));
        }
    }
}

const PPM: u64 = 1_000_000;

impl ConstantBandwidthServer {
    /// The rest of the budget is kept if it is within the task's share until the deadline.
    fn wake(&mut self, now_ns: u64) {
        let ahead_ns = u128::from(self.deadline_ns.saturating_sub(now_ns));
        let asks = u128::from(self.left_ns) * u128::from(self.period_ns);
        if self.left_ns > 0 && asks > ahead_ns * u128::from(self.budget_ns) {
            (self.left_ns, self.deadline_ns) = (self.budget_ns, now_ns + self.period_ns);
        }
    }

    /// A task that has used up its budget waits for its deadline.
    fn may_run(&mut self, now_ns: u64) -> bool {
        if self.left_ns == 0 && now_ns >= self.deadline_ns {
            (self.left_ns, self.deadline_ns) = (self.budget_ns, now_ns.max(self.deadline_ns) + self.period_ns);
        }
        self.left_ns > 0
    }
}
