//! Drops the rights of a process before it reads the first byte from the network.

use std::io;
use std::os::fd::OwnedFd;

use farbus_control::failure::CommandFailure;
use farbus_io_linux::sys::confine::{ConfinementNeeds, confine};
use farbus_io_linux::sys::writeback::WritebackProtection;
use farbus_io_net::store::boot_number;
use tracing::{debug, warn};

use super::{BrokerClient, BrokerPolicy};

/// Starts the broker.
///
/// # Errors
/// The system cannot start another process.
pub fn start_broker(broker_policy: &BrokerPolicy) -> Result<BrokerClient, CommandFailure> {
    BrokerClient::start(broker_policy).map_err(not_started)
}

/// Starts a broker that serves another process; returns the passage to it ([`BrokerClient::start_for_another`]).
///
/// # Errors
/// The system cannot start another process.
pub fn start_broker_for_another(broker_policy: &BrokerPolicy) -> Result<OwnedFd, CommandFailure> {
    BrokerClient::start_for_another(broker_policy).map_err(not_started)
}

fn not_started(error: io::Error) -> CommandFailure {
    CommandFailure::local(format!("cannot start a second half: {error}"))
}

/// Drops all rights of this process except `needs`. Call it before the process has a second thread.
///
/// # Errors
/// The system refuses to drop them. The process should not continue then.
pub fn give_rights_away(needs: &ConfinementNeeds) -> Result<(), CommandFailure> {
    // Read it while the process may: without the boot id every process would look like one of a restarted machine.
    let _known_from_now_on = boot_number();
    let confinement = confine(needs)
        .map_err(|error| CommandFailure::local(format!("{error}\n  --no-sandbox goes on with all of them")))?;
    if confinement.files.is_ok() {
        debug!("{confinement}");
    } else {
        warn!("{confinement}");
    }
    Ok(())
}

/// Logs a protection that the system refused: under memory pressure a disk may then wait for itself.
pub fn report_protection(protection: &WritebackProtection) {
    if !protection.is_complete() {
        debug!("{protection}");
    }
}
