//! Which CPU a server and its client run on.
//!
//! A wake-up on another CPU costs several microseconds, so one request at a time runs up to three
//! times faster on one CPU than across two. The default is what a user gets: nothing is pinned, and
//! the scheduler moves both sides of a comparison alike; interleaved samples let that average out.
//! Pinning makes quieter figures to look for causes with.

use anyhow::Result;
use clap::ValueEnum;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Nothing is pinned.
    #[default]
    Free,
    /// Client on the first CPU, servers on the second.
    Split,
    /// Client and servers on the first CPU.
    Same,
}

impl Placement {
    pub fn place_client(self) -> Result<()> {
        self.place(None, 0)
    }

    /// To be called before the server starts threads, which inherit it.
    pub fn place_server(self, pid: u32) -> Result<()> {
        self.place(Pid::from_raw(pid.cast_signed()), usize::from(self == Self::Split))
    }

    fn place(self, pid: Option<Pid>, cpu: usize) -> Result<()> {
        if self == Self::Free {
            return Ok(());
        }
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        Ok(sched_setaffinity(pid, &cpus)?)
    }
}
