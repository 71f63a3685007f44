//! The kit as a client: what an exporter owes its importers.
//!
//! | file | what its checks are about |
//! |---|---|
//! | `handshake.rs` | lists, imports, refusals, versions |
//! | `requests.rs` | control requests, data, answers and their fields |
//! | `unlink.rs` | cancellations and their races |
//! | `isochronous.rs` | packets |
//! | `limits.rs` | garbage, sizes, clients that do not read |
//!
//! Each check has a connection of its own. After one that breaks a rule, a new connection has to be served.

mod handshake;
mod isochronous;
mod limits;
mod requests;
mod subject;
mod unlink;

use std::time::Duration;

use crate::check::{self, Check, Report, Result as Line, Seen, Severity, Stop};
use crate::transport::{Lost, Network};
use subject::Subject;

/// What a run is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The device to use; without, the first of the exporter's list.
    pub bus_id: Option<String>,
    /// How long an answer may take.
    pub patience: Duration,
    /// How long nothing has to come until it counts as nothing.
    pub quiet: Duration,
    /// Run only these checks; empty: all.
    pub only: Vec<String>,
}

impl Settings {
    /// All checks, with a first device, and an answer in `patience`.
    pub fn new(patience: Duration) -> Self {
        let quiet = (patience / 10).clamp(Duration::from_millis(50), Duration::from_millis(500));
        Self { bus_id: None, patience, quiet, only: Vec::new() }
    }
}

/// A check and the function that tries it.
struct Entry {
    check: Check,
    run: fn(&mut Subject<'_>) -> Seen,
}

const fn must(id: &'static str, claim: &'static str, source: &'static str, run: Run) -> Entry {
    Entry { check: Check { id, claim, source, severity: Severity::Must }, run }
}

const fn should(id: &'static str, claim: &'static str, source: &'static str, run: Run) -> Entry {
    Entry { check: Check { id, claim, source, severity: Severity::Should }, run }
}

type Run = fn(&mut Subject<'_>) -> Seen;

fn entries() -> impl Iterator<Item = &'static Entry> {
    [handshake::CHECKS, requests::CHECKS, unlink::CHECKS, isochronous::CHECKS, limits::CHECKS].into_iter().flatten()
}

/// All checks of an exporter, in the order of their runs.
pub fn checks() -> Vec<Check> {
    entries().map(|entry| entry.check).collect()
}

/// Tries the checks; `tell` hears of each one as it ends.
///
/// # Errors
/// [`Lost`]: the exporter cannot be reached at all, or `settings` name a check that there is not.
pub fn run(network: &mut dyn Network, settings: &Settings, tell: &mut dyn FnMut(&Line)) -> Result<Report, Lost> {
    if let Some(unknown) = settings.only.iter().find(|id| entries().all(|entry| entry.check.id != *id)) {
        return Err(Lost(format!("there is no check '{unknown}'")));
    }
    drop(network.dial()?);
    let mut subject = Subject::new(network, settings);
    let mut report = Report::default();
    for entry in entries() {
        if !settings.only.is_empty() && !settings.only.iter().any(|id| id == entry.check.id) {
            continue;
        }
        let line = check::line(entry.check, (entry.run)(&mut subject));
        tell(&line);
        report.results.push(line);
    }
    Ok(report)
}

/// A check that needs what `present` lacks.
fn not_applicable(why: impl Into<String>) -> Stop {
    Stop::NotApplicable(why.into())
}
