//! The kit as an importer of farbus's own protocol: what an exporter of sessions owes its importers.
//!
//! The clauses are those of `docs/protocol.md`.
//!
//! | file | what its checks are about |
//! |---|---|
//! | `greeting.rs` | hello and welcome: versions, options, what is refused |
//! | `frames.rs` | heads, pings, acknowledgements, kinds of later versions, what is no frame |
//! | `attaching.rs` | open and close, leases, who else has the device |
//! | `requests.rs` | requests, their ends, what is no request |
//! | `cancels.rs` | cancels and their races |
//! | `flow.rs` | credit, grants, unacknowledged bytes |
//! | `resuming.rs` | links that are cut, resumed, replayed; devices that wait for their importer |
//!
//! Each check has a session of its own. After one that breaks the protocol, another session has to go on.

mod asking;
mod attaching;
mod cancels;
mod entry;
mod flow;
mod frames;
mod greeting;
mod requests;
mod resuming;
mod subject;
mod talk;
mod wire;

use crate::check::{self, CheckResult as Line, ConformanceCheck, ConformanceReport};
pub use crate::settings::ConformanceSettings;
use crate::transport::{LinkLoss, PeerNetwork};
use entry::SessionCheck;
use subject::SessionSubject;

fn entries() -> impl Iterator<Item = &'static SessionCheck> {
    [
        greeting::CHECKS,
        frames::CHECKS,
        attaching::CHECKS,
        requests::CHECKS,
        cancels::CHECKS,
        flow::CHECKS,
        resuming::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// All checks of a session's exporter, in the order of their runs.
pub fn checks() -> Vec<ConformanceCheck> {
    entries().map(|entry| entry.check).collect()
}

/// Tries the checks; `tell` hears of each one as it ends. [`ConformanceSettings::bus_id`] is the name of the device to
/// use.
///
/// # Errors
/// [`LinkLoss`]: the exporter cannot be reached at all, or `settings` name a check that there is not.
pub fn run(
    network: &mut dyn PeerNetwork,
    settings: &ConformanceSettings,
    tell: &mut dyn FnMut(&Line),
) -> Result<ConformanceReport, LinkLoss> {
    if let Some(unknown) = settings.only.iter().find(|id| entries().all(|entry| entry.check.id != *id)) {
        return Err(LinkLoss(format!("there is no check '{unknown}'")));
    }
    drop(network.dial()?);
    let mut subject = SessionSubject::new(network, settings);
    let mut report = ConformanceReport::default();
    for entry in entries() {
        if !check::is_chosen(&settings.only, entry.check.id) {
            continue;
        }
        let line = check::line(entry.check, (entry.run)(&mut subject));
        tell(&line);
        report.results.push(line);
    }
    Ok(report)
}
