//! Quest: every task and every bottom half runs on a virtual CPU (section 2.1 of the paper).

use std::collections::VecDeque;

use farbus_realtime::vcpu::{InheritingServer, SporadicServer};

use super::role::{RoundRobinQueue, TaskChoice, TaskId, TaskRole};

/// How long a task without a reserve runs before the next of them does.
const SLICE_NS: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct QuestScheduler {
    servers: Vec<QuestServer>,
    background: RoundRobinQueue,
}

#[derive(Clone, Debug)]
enum QuestServer {
    Main(SporadicServer),
    Io {
        server: InheritingServer,
        period_ns: u64,
        /// The periods of the tasks that its jobs are for.
        waiting: VecDeque<u64>,
    },
    Background,
}

impl QuestScheduler {
    pub(super) fn new(roles: &[TaskRole]) -> Self {
        let server = |role: &TaskRole| match *role {
            TaskRole::Reserved(reserve) => QuestServer::Main(SporadicServer::new(reserve, 0)),
            TaskRole::BottomHalf { utilization_ppm, period_ns } => {
                QuestServer::Io { server: InheritingServer::new(utilization_ppm), period_ns, waiting: VecDeque::new() }
            }
            TaskRole::Ordinary => QuestServer::Background,
        };
        Self { servers: roles.iter().map(server).collect(), background: RoundRobinQueue::new(SLICE_NS) }
    }

    pub(super) fn wake(&mut self, now_ns: u64, task: TaskId, is_first: bool, for_ns: Option<u64>) {
        match &mut self.servers[task] {
            QuestServer::Main(server) if is_first => server.wake(now_ns),
            QuestServer::Io { period_ns, waiting, .. } => waiting.push_back(for_ns.unwrap_or(*period_ns)),
            _ => {}
        }
    }

    pub(super) fn choose(&mut self, now_ns: u64, has_job: impl Fn(TaskId) -> bool) -> TaskChoice {
        let mut until_ns = u64::MAX;
        // The shorter period goes first; of two equal ones the bottom half, then the one that was made first.
        let mut best: Option<((u64, u8, TaskId), u64)> = None;
        for (task, server) in self.servers.iter_mut().enumerate().filter(|(task, _)| has_job(*task)) {
            let (rank, budget_ns) = match server {
                QuestServer::Main(server) => {
                    until_ns = until_ns.min(server.next_replenishment_ns(now_ns).unwrap_or(u64::MAX));
                    ((server.reserve().period_ns, 1, task), server.available_ns(now_ns))
                }
                QuestServer::Io { server, period_ns, waiting } => {
                    // The most urgent of the waiting tasks lends its priority.
                    let period_ns = waiting.iter().min().unwrap_or(period_ns);
                    if !server.begin(now_ns, *period_ns) {
                        until_ns = until_ns.min(server.eligible_ns().max(now_ns + 1));
                        continue;
                    }
                    ((server.inherited_period_ns().unwrap_or(*period_ns), 0, task), server.available_ns())
                }
                QuestServer::Background => continue,
            };
            if budget_ns > 0 && best.is_none_or(|(other, _)| rank < other) {
                best = Some((rank, budget_ns));
            }
        }
        if let Some(((_, _, task), budget_ns)) = best {
            return TaskChoice { task: Some(task), until_ns: until_ns.min(now_ns + budget_ns) };
        }
        let servers = &self.servers;
        let wants = |task: TaskId| matches!(servers[task], QuestServer::Background) && has_job(task);
        match self.background.choose(servers.len(), wants) {
            Some((task, slice_ns)) => TaskChoice { task: Some(task), until_ns: until_ns.min(now_ns + slice_ns) },
            None => TaskChoice { task: None, until_ns },
        }
    }

    pub(super) fn charge(&mut self, now_ns: u64, task: TaskId, ran_ns: u64, is_finished: bool, is_idle: bool) {
        // A task that is interrupted at the end of its budget overruns, and pays for it itself.
        match &mut self.servers[task] {
            QuestServer::Main(server) => _ = server.run(now_ns, ran_ns),
            QuestServer::Io { server, waiting, .. } => {
                if is_finished {
                    waiting.pop_front();
                }
                _ = server.run(now_ns, ran_ns);
                if is_idle {
                    server.block(now_ns);
                }
            }
            QuestServer::Background => self.background.charge(task, ran_ns),
        }
    }
}
