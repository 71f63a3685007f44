//! Giving rights away: what a process does before it reads the first byte that a stranger sent.

use farbus_io::store::boot_number;
use farbus_io::sys::confine::{Needs, confine};
use farbus_io::sys::writeback::Protection;
use tracing::{debug, info, warn};

use super::{Broker, BrokerPolicy};
use crate::common::failure::Failure;

/// Starts the half that keeps the rights.
///
/// # Errors
/// If there is no room for it.
pub fn start_broker(broker_policy: &BrokerPolicy) -> Result<Broker, Failure> {
    Broker::start(broker_policy).map_err(|error| Failure::local(format!("cannot start a second half: {error}")))
}

/// Leaves this process without rights, but for what it needs. Before there is a second thread.
///
/// # Errors
/// If the system does not take them: then nothing should go on.
pub fn give_rights_away(needs: &Needs) -> Result<(), Failure> {
    // Read while it can be: without it every process would be taken for a machine that was started anew.
    let _known_from_now_on = boot_number();
    let confinement =
        confine(needs).map_err(|error| Failure::local(format!("{error}\n  --no-sandbox goes on with all of them")))?;
    if confinement.files.is_ok() {
        debug!("{confinement}");
    } else {
        warn!("{confinement}");
    }
    Ok(())
}

/// What the system refused is said once: a disk under memory pressure may then wait for itself.
pub fn report_protection(protection: &Protection) {
    if !protection.is_complete() {
        info!("{protection}");
    }
}
