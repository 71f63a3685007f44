//! The kit as an exporter: what an importer owes it.
//!
//! A [`ProbeExporter`] offers a made-up device many times. One exporter behind them is right; the others are wrong in
//! one way each ([`PROBES`]), and the user attaches an importer to each of them. Whatever the importer sends to any of
//! them is held against the rules of requests as well.
//!
//! | file | what it holds |
//! |---|---|
//! | `judge.rs` | the checks of what an importer sends |
//! | `probe.rs` | the wrong exporters, and what an importer has to make of each |
//! | `stage.rs` | both together, over connections |

mod judge;
mod probe;
mod stage;

pub use probe::{ImporterProbe, PROBES};
pub use stage::{ProbeConnectionState, ProbeExporter};

use crate::check::ConformanceCheck;

/// All checks of an importer, in the order of the report.
pub fn checks() -> Vec<ConformanceCheck> {
    PROBES.iter().map(|probe| probe.check).chain(judge::RULES.iter().copied()).collect()
}
