//! Tuned pipes on this machine, with all of its processors busy: what the real-time paper's Figures 13 to 16 and Table
//! 4 show, measured.
//!
//! Beside the pipes run threads that only spin, and on each processor a canary: of the highest fixed priority, it
//! sleeps a millisecond and looks how late it woke. Where it was late by more than 5 ms the processor was taken from
//! the whole machine, and nothing said of that second would be about pipes: it is void, counted and shown.

mod buses;
mod canary;
mod router;
mod words;

use anyhow::Result;

use crate::{lab::Lab, report::Finding};
pub use words::NAME;

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    let mut findings = buses::run(lab)?;
    findings.extend(router::run(lab)?);
    Ok(findings)
}
