//! What is said of an answer about a lease.

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::cli::output::format_span;
use crate::devices::lease::LeaseAnswer;
use crate::importer::client::Target;

/// The answer as JSON, with the target that was asked about.
///
/// # Errors
/// Never for farbus's own types.
pub fn json_of(target: &Target, answer: &LeaseAnswer) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(answer).map_err(Failure::local)?;
    value["target"] = json!(target.shown());
    Ok(value)
}

/// For how long and until when the device is leased, behind "is leased".
pub fn until(answer: &LeaseAnswer) -> String {
    let Some(lease) = &answer.lease else { return String::new() };
    format!(" for {}, until {}", format_span(lease.left()), lease.until)
}
