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

mod entry;
mod handshake;
mod isochronous;
mod limits;
mod requests;
mod subject;
mod unlink;

use crate::check::{self, CheckResult as Line, ConformanceCheck, ConformanceReport};
pub use crate::settings::ConformanceSettings;
use crate::transport::{LinkLoss, PeerNetwork};
use entry::ExporterCheck;
use subject::ExporterSubject;

fn entries() -> impl Iterator<Item = &'static ExporterCheck> {
    [handshake::CHECKS, requests::CHECKS, unlink::CHECKS, isochronous::CHECKS, limits::CHECKS].into_iter().flatten()
}

/// All checks of an exporter, in the order of their runs.
pub fn checks() -> Vec<ConformanceCheck> {
    entries().map(|entry| entry.check).collect()
}

/// Tries the checks; `tell` hears of each one as it ends.
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
    let mut subject = ExporterSubject::new(network, settings);
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
