//! Processes that a program leaves behind: servers that it started, such as adb's. One that went on would answer the
//! next program, without a device.
//!
//! This process is the parent of all whose parent has ended (`PR_SET_CHILD_SUBREAPER`), whatever session or process
//! group they are in, so it finds them without rights.

use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, waitpid,
};

/// How long they may take to end by themselves when the program has ended: what it was about to end.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(200);
/// How long they may take after SIGTERM; then they are killed.
const END_TIME_MAX: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A process that the program left running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingProcess {
    /// Its process id.
    pub pid: u32,
    /// The name of its program, at most 15 bytes (`/proc/PID/comm`).
    pub name: String,
}

/// Processes that are this process's children from the moment on when their own parent has ended.
#[derive(Debug)]
pub struct AdoptedProcesses {
    /// Children of this process that do not belong to the program.
    own: Vec<u32>,
}

impl AdoptedProcesses {
    /// Begins to adopt. Call it before the program starts.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { own: Vec::new() })
    }

    /// This child is not the program's.
    pub fn except(&mut self, child: u32) {
        self.own.push(child);
    }

    /// Reaps the adopted processes that have ended, as init would. `program` is the program's own process until it was
    /// waited for.
    pub fn reap(&self, program: Option<u32>) {
        let ourselves = getpid().as_raw_pid() as u32;
        let ended = table().into_iter().filter(|(_, process)| process.parent == ourselves && process.is_zombie);
        for (pid, _) in ended.filter(|(pid, _)| Some(*pid) != program && !self.own.contains(pid)) {
            // It is a child of this process that has ended.
            let _ = waitpid(Pid::from_raw(pid as i32), WaitOptions::NOHANG);
        }
    }

    /// The processes that the program has left, once it has ended and was waited for. Gives those a moment that are
    /// ending.
    pub fn remaining(&self) -> Vec<RemainingProcess> {
        self.wait_until_none(Instant::now() + SETTLE_TIME_MAX)
    }

    /// Ends them, in order first. Returns those that are left all the same.
    pub fn end(&self, remaining: &[RemainingProcess]) -> Vec<RemainingProcess> {
        signal(remaining, Signal::TERM);
        let left = self.wait_until_none(Instant::now() + END_TIME_MAX);
        signal(&left, Signal::KILL);
        if left.is_empty() { left } else { self.wait_until_none(Instant::now() + SETTLE_TIME_MAX) }
    }

    fn wait_until_none(&self, until: Instant) -> Vec<RemainingProcess> {
        loop {
            let now = self.now();
            self.reap(None);
            if now.is_empty() || Instant::now() >= until {
                return now;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// All that descend from this process, but for its own children and what these have started.
    fn now(&self) -> Vec<RemainingProcess> {
        let ourselves = getpid().as_raw_pid() as u32;
        descendants(&table(), ourselves, &self.own)
    }
}

#[derive(Debug)]
struct ListedProcess {
    parent: u32,
    is_zombie: bool,
    name: String,
}

/// All processes that this one sees.
fn table() -> BTreeMap<u32, ListedProcess> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = |pid: u32| Some((pid, listed(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?));
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Reads `/proc/PID/stat` (proc(5)); a name may hold any character.
fn listed(stat: &str) -> Option<ListedProcess> {
    let (front, back) = stat.rsplit_once(')')?;
    let mut fields = back.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(ListedProcess { parent, is_zombie: matches!(state, "Z" | "X"), name: front.split_once('(')?.1.to_owned() })
}

fn descendants(table: &BTreeMap<u32, ListedProcess>, of: u32, without: &[u32]) -> Vec<RemainingProcess> {
    let parent = |pid: &u32| table.get(pid).map(|process| process.parent);
    let is_meant = |pid: u32| {
        let mut line = std::iter::successors(Some(pid), parent).take(table.len());
        line.any(|pid| pid == of)
            && !std::iter::successors(Some(pid), parent).take(table.len()).any(|pid| without.contains(&pid))
    };
    let running = table.iter().filter(|(pid, process)| **pid != of && !process.is_zombie && is_meant(**pid));
    running.map(|(pid, process)| RemainingProcess { pid: *pid, name: process.name.clone() }).collect()
}

fn signal(processes: &[RemainingProcess], signal: Signal) {
    for process in processes {
        // It may have ended.
        let opened = Pid::from_raw(process.pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let _ = opened.map(|process| pidfd_send_signal(process, signal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_any_depth_and_own_children_are_left_out() {
        let lines = [
            "10 (farbus) S 1 10 10",
            "11 (a (server) S 1) S 10 11 11",
            "12 (worker) R 11 12 12",
            "13 (run-events) S 10 13 13",
            "14 (its child) S 13 13 13",
            "15 (ended) Z 10 15 15",
            "20 (another) S 1 20 20",
        ];
        let table = lines.iter().map(|line| (line.split_once(' ').unwrap().0.parse().unwrap(), listed(line).unwrap()));
        let table: BTreeMap<u32, ListedProcess> = table.collect();
        let found = |without: &[u32]| {
            descendants(&table, 10, without).into_iter().map(|process| process.name).collect::<Vec<_>>()
        };
        assert_eq!(found(&[13]), ["a (server) S 1", "worker"]);
        assert_eq!(found(&[]), ["a (server) S 1", "worker", "run-events", "its child"]);
        assert!(listed("nonsense").is_none());
    }
}
