//! The answers to questions under `/api/v1`.

use serde_json::{Value, json};

use super::api::actions::Action;
use super::api::{offers, table};
use super::lab::{Lab, LabHost};
use super::status::Status;
use super::view::{Found, Wanted};

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

/// The devices of all hosts that are wanted, a page of them.
pub fn lab(status: &Status, wanted: &Wanted) -> Value {
    let Found { all, matching, pages, page, rows } = wanted.find(status);
    let lab = &*status.lab;
    let devices: Vec<Value> = rows.iter().map(|row| row.described(lab)).collect();
    json!({
        "devices": devices, "page": page + 1, "pages": pages, "matching": matching, "all": all,
        "left_out": lab.left_out, "silent": status.silent, "looked_s": lab.looked_s, "trouble": lab.trouble,
    })
}

/// Adds every host that is known to what is said of this one and of those that are paired with it.
pub fn hosts(mut said: Value, lab: &Lab) -> Value {
    let host = |host: &LabHost| {
        let mut described = json!(host);
        let (devices, used) = host.counts();
        described["devices"] = json!(devices);
        described["used"] = json!(used);
        described
    };
    said["fingerprint"] = json!(lab.own_key);
    said["known"] = lab.hosts.iter().map(host).collect();
    said
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
