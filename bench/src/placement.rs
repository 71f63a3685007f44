//! Which CPU a server and its client run on.
//!
//! A wake-up on another CPU costs several microseconds, so one request at a time runs up to three
//! times faster on one CPU than across two. The default is what a user gets: nothing is pinned, and
//! the scheduler moves both sides of a comparison alike; interleaved samples let that average out.
//! Pinning makes quieter figures to look for causes with.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_setaffinity};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CpuPlacement {
    /// Nothing is pinned.
    #[default]
    Free,
    /// Client on the first CPU, servers on the second.
    Split,
    /// Client and servers on the first CPU.
    Same,
}

impl CpuPlacement {
    pub fn place_client(self) -> Result<()> {
        self.move_to(0)
    }

    /// Starts a server on the CPU for servers. A process starts where its parent is, and threads that it starts at once
    /// would stay there if it were moved afterwards; so the parent moves there and back.
    pub fn start_server(self, command: &mut Command) -> Result<Child> {
        self.move_to(usize::from(self == Self::Split))?;
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"));
        self.move_to(0)?;
        child
    }

    fn move_to(self, cpu: usize) -> Result<()> {
        if self == Self::Free {
            return Ok(());
        }
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        Ok(sched_setaffinity(None, &cpus)?)
    }
}

/// `SCHED_FIFO` for all threads of this process, at the priority for which `farbus doctor` asks (`LimitRTPRIO=50`),
/// until it is dropped; threads and processes that start meanwhile have it, too.
pub struct RealtimePriority {
    /// Whether this user may have it.
    pub is_granted: bool,
}

impl RealtimePriority {
    pub fn take() -> Self {
        Self { is_granted: Self::give(std::process::id()) }
    }

    /// Gives it to all threads of a process; whether that was permitted.
    pub fn give(pid: u32) -> bool {
        chrt(&["-a", "-f", "-p", "50", &pid.to_string()])
    }
}

impl Drop for RealtimePriority {
    fn drop(&mut self) {
        chrt(&["-a", "-o", "-p", "0", &std::process::id().to_string()]);
    }
}

fn chrt(words: &[&str]) -> bool {
    let mut command = Command::new("chrt");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
