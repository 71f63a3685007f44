//! The role of a task for its kernel.

use farbus_realtime::vcpu::VcpuReserve;

/// A task's index among those that its processor was made with.
pub type TaskId = usize;

/// The role of a task for its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRole {
    /// A task with execution time each period: a Main VCPU, or a task of `SCHED_DEADLINE`.
    Reserved(VcpuReserve),
    /// The bottom half of an interrupt: an I/O VCPU, or a soft interrupt.
    BottomHalf {
        /// Its share of the processor in millionths; unused on Linux.
        utilization_ppm: u32,
        /// The default period of the task it works for, which Quest has it inherit.
        period_ns: u64,
    },
    /// A task without a reserve.
    Ordinary,
}

/// The task to run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskChoice {
    pub(super) task: Option<TaskId>,
    /// When to choose again at the latest.
    pub(super) until_ns: u64,
}

/// Tasks without a reserve, which take turns.
#[derive(Clone, Debug)]
pub(super) struct RoundRobinQueue {
    last: TaskId,
    used_ns: u64,
    slice_ns: u64,
}

impl RoundRobinQueue {
    pub(super) fn new(slice_ns: u64) -> Self {
        Self { last: 0, used_ns: 0, slice_ns }
    }

    /// Which of `count` tasks has its turn, and for how long.
    pub(super) fn choose(&mut self, count: usize, wants: impl Fn(TaskId) -> bool) -> Option<(TaskId, u64)> {
        if self.last < count && self.used_ns < self.slice_ns && wants(self.last) {
            return Some((self.last, self.slice_ns - self.used_ns));
        }
        let next = (1..=count).map(|after| (self.last + after) % count).find(|&task| wants(task))?;
        (self.last, self.used_ns) = (next, 0);
        Some((next, self.slice_ns))
    }

    pub(super) fn charge(&mut self, task: TaskId, ran_ns: u64) {
        if task == self.last {
            self.used_ns += ran_ns;
        }
    }
}
