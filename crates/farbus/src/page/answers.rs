//! The answers to questions under `/api/v1`.

use farbus_io::trust::{AuditReader, Folder, Peers, StateError, host_name};
use serde_json::{Value, json};

use super::api::actions::{ACTIONS, Action};
use super::api::offers;
use super::status::Status;

/// Devices in an answer; further ones are counted.
const DEVICES_MAX: usize = 5000;
/// Lines of the audit log in an answer.
const LINES_MAX: usize = 200;

/// The devices that are wanted, each with its process and what is offered for it.
pub fn devices(status: &Status, is_wanted: impl Fn(&Value, &Value) -> bool) -> Value {
    let wanted = || status.devices().filter(|(process, device)| is_wanted(process, device));
    let devices: Vec<Value> = wanted()
        .take(DEVICES_MAX)
        .map(|(process, device)| {
            let of = json!({ "pid": process["pid"], "role": process["role"], "address": process["address"] });
            json!({ "process": of, "device": device, "actions": offers::of(process, device) })
        })
        .collect();
    let left_out = wanted().count() - devices.len();
    json!({ "devices": devices, "left_out": left_out, "silent": status.silent })
}

/// Whether a device is shared here.
pub fn is_shared(_: &Value, device: &Value) -> bool {
    !device["bus_id"].is_null()
}

/// Whether a device is attached here.
pub fn is_attached(process: &Value, device: &Value) -> bool {
    !is_shared(process, device) && process["role"] != "nbd"
}

/// This host, and those that are paired with it.
///
/// # Errors
/// [`StateError`]: the list of paired hosts cannot be read.
pub fn hosts() -> Result<Value, StateError> {
    let peers = Peers::load(&Folder::of_user()?)?;
    let all: Vec<Value> = peers
        .iter()
        .map(|peer| {
            let (may_use, high): (Vec<&str>, Vec<&str>) =
                (peer.allow.words().collect(), peer.reserve_high.words().collect());
            json!({
                "name": peer.name, "fingerprint": peer.fingerprint, "address": peer.address, "paired": peer.paired,
                "may_use": may_use, "may_reserve_high": high,
            })
        })
        .collect();
    Ok(json!({ "name": host_name(), "farbus": env!("CARGO_PKG_VERSION"), "paired": all }))
}

/// The latest lines of the audit log, the latest last.
///
/// # Errors
/// [`StateError`]: it cannot be read.
pub fn audit() -> Result<Value, StateError> {
    let all = AuditReader::new(Folder::of_user()?).read_all()?;
    let lines = &all[all.len().saturating_sub(LINES_MAX)..];
    let lines: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(&line.to_string()).ok()).collect();
    Ok(json!({ "lines": lines, "earlier": all.len() - lines.len() }))
}

/// The table of actions.
pub fn actions() -> Value {
    json!({ "actions": ACTIONS.iter().map(Action::described).collect::<Vec<_>>() })
}
