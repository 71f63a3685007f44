//! Asks the host of a device for something about its lease, and says what it answers.

use farbus::importer::client::{DeviceTarget, ImporterClient};
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use serde_json::{Value, json};

use crate::CommandFailure;
use crate::output::format_span;

/// The answer as JSON, with the target that was asked about.
///
/// # Errors
/// Never for farbus's own types.
pub fn json_of(target: &DeviceTarget, answer: &LeaseAnswer) -> Result<Value, CommandFailure> {
    let mut value = serde_json::to_value(answer).map_err(CommandFailure::local)?;
    value["target"] = json!(target.shown());
    Ok(value)
}

/// For how long and until when the device is leased, behind "is leased".
pub fn until(answer: &LeaseAnswer) -> String {
    let Some(lease) = &answer.lease else { return String::new() };
    format!(" for {}, until {}", format_span(lease.left()), lease.until)
}

/// Asks the host of a device.
///
/// # Errors
/// It is not reached, or refuses.
pub fn ask(target: &DeviceTarget, act: LeaseAct) -> Result<LeaseAnswer, CommandFailure> {
    let answer = ImporterClient::default().lease(target, act)?;
    answer.map_err(|failure| {
        CommandFailure::new(failure.attribute, format!("{}: {}", target.shown(), failure.message))
            .at_limit(failure.limit)
    })
}
