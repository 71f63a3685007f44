//! Tuned pipes on this machine, with all of its processors busy: measurements for the real-time paper's Figures 13 to
//! 16 and Table 4.
//!
//! Beside the pipes run threads that only spin, and on each processor a canary: a thread of the highest fixed priority
//! that sleeps a millisecond and checks how late it woke. Where it was late by more than 5 ms, the processor was taken
//! from the whole machine, and that second says nothing about pipes: it is void, counted and shown.

mod buses;
mod canary;
mod far;
mod router;
mod words;

use anyhow::Result;

use crate::{lab::BenchmarkEnvironment, report::BenchmarkFinding};
pub use words::{FAR_NAME, NAME};

pub fn run(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    let mut findings = buses::run(lab)?;
    findings.extend(router::run(lab)?);
    Ok(findings)
}

/// Runs the pipes to another process, a host of its own.
pub fn run_far(lab: &BenchmarkEnvironment) -> Result<Vec<BenchmarkFinding>> {
    far::run(lab)
}
