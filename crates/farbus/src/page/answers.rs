//! The answers to questions under `/api/v1`.

use serde_json::{Value, json};

use super::api::actions::Action;
use super::api::{offers, table};
use super::status::Status;

/// Devices in an answer; further ones are counted.
const DEVICES_MAX: usize = 5000;

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

/// The table of actions.
pub fn actions() -> Value {
    json!({ "actions": table::all().map(Action::described).collect::<Vec<_>>() })
}
