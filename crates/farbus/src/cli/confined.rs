//! Giving rights away: what a command does before it hears the first stranger.

use farbus_io::sys::confine::{Needs, confine};
use tracing::{debug, warn};

use super::Failure;
use crate::broker::{Broker, Mandate};

/// Starts the half that keeps the rights.
///
/// # Errors
/// If there is no room for it.
pub fn start_broker(mandate: &Mandate) -> Result<Broker, Failure> {
    Broker::start(mandate).map_err(|error| Failure::local(format!("cannot start a second half: {error}")))
}

/// Leaves this process without rights, but for what it needs. Before there is a second thread.
///
/// # Errors
/// If the system does not take them: then nothing should go on.
pub fn give_rights_away(needs: &Needs) -> Result<(), Failure> {
    let confinement =
        confine(needs).map_err(|error| Failure::local(format!("{error}\n  --no-sandbox goes on with all of them")))?;
    if confinement.files.is_ok() {
        debug!("{confinement}");
    } else {
        warn!("{confinement}");
    }
    Ok(())
}
