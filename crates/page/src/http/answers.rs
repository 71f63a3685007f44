//! The answers to questions under `/api/v1`.

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::session::Seconds;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::actions::{ActionDescription, PageAction};
use crate::api::offers::Offer;
use crate::api::schemas::{LabRow, ProcessPlace};
use crate::api::{offers, openapi, table};
use crate::known::lab::{LabHost, LabInventory};
use crate::known::status::CombinedStatus;
use crate::rights::reading::{Audit, OwnHost};
use crate::view::{DeviceListPage, DeviceListQuery};

/// Devices in an answer; further ones are counted.
const DEVICES_MAX: usize = 5000;

/// The description of everything that is there.
pub fn description() -> Value {
    openapi::document(&[|generator| {
        generator.subschema_for::<ProcessStatus>();
        generator.subschema_for::<Seconds>();
        generator.subschema_for::<Devices<'_>>();
        generator.subschema_for::<Hosts<'_>>();
        generator.subschema_for::<LabDevices<'_>>();
        generator.subschema_for::<Actions>();
        generator.subschema_for::<Audit>();
    }])
}

/// A device of a process.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeviceLine<'a> {
    /// The process that shares it or has attached it.
    process: ProcessPlace<'a>,
    /// The device, as its process says it.
    device: &'a ProcessDevice,
    /// What can be done with it.
    actions: Vec<Offer>,
}

/// Devices of the processes of this user.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Devices<'a> {
    /// The devices, each with its process and the actions that are offered for it.
    devices: Vec<DeviceLine<'a>>,
    /// How many more there are.
    left_out: usize,
    /// How many processes gave no status.
    silent: usize,
}

/// A page of the devices of all hosts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LabDevices<'a> {
    /// The devices of this page of the list.
    #[schemars(with = "Vec<LabRow>")]
    devices: Vec<Value>,
    /// The number of the page, from 1.
    page: usize,
    /// How many pages there are.
    pages: usize,
    /// How many devices match.
    matching: usize,
    /// How many there are.
    all: usize,
    /// How many devices and hosts are not kept.
    left_out: usize,
    /// How many processes of this user gave no status.
    silent: usize,
    /// When other hosts were asked last, seconds since 1970; null: not yet.
    looked_s: Option<u64>,
    /// What is wrong with the directory, if something is.
    trouble: Option<&'a str>,
}

/// Another host that is known.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KnownHost {
    /// [`LabHost`] without its devices.
    #[serde(flatten)]
    #[schemars(with = "LabHost")]
    host: Value,
    /// How many devices it has.
    devices: usize,
    /// How many of them are used.
    used: usize,
}

/// This host, the hosts that are paired with it, and all that are known.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Hosts<'a> {
    #[serde(flatten)]
    #[schemars(with = "OwnHost")]
    own: Value,
    /// The fingerprint of this host's key, if it has one.
    fingerprint: Option<&'a str>,
    /// The other hosts.
    known: Vec<KnownHost>,
}

/// The table of actions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Actions {
    /// All actions of the page, each with its parameters.
    actions: Vec<ActionDescription>,
}

/// The devices that are wanted, each with its process and what is offered for it.
pub fn devices(status: &CombinedStatus, is_wanted: impl Fn(&ProcessStatus, &ProcessDevice) -> bool) -> Value {
    let wanted = || status.devices().filter(|(process, device)| is_wanted(process, device));
    let line = |(process, device)| DeviceLine {
        process: ProcessPlace::of(process),
        device,
        actions: offers::of(process, device),
    };
    let devices: Vec<DeviceLine<'_>> = wanted().take(DEVICES_MAX).map(line).collect();
    let left_out = wanted().count() - devices.len();
    json!(Devices { devices, left_out, silent: status.silent })
}

/// The devices of all hosts that are wanted, a page of them.
pub fn lab(status: &CombinedStatus, wanted: &DeviceListQuery) -> Value {
    let DeviceListPage { all, matching, pages, page, rows } = wanted.find(status);
    let lab = &*status.lab;
    let devices: Vec<Value> = rows.iter().map(|row| row.described(lab)).collect();
    json!(LabDevices {
        devices,
        page: page + 1,
        pages,
        matching,
        all,
        left_out: lab.left_out,
        silent: status.silent,
        looked_s: lab.looked_s,
        trouble: lab.trouble.as_deref(),
    })
}

/// Adds every host that is known to what is said of this one and of those that are paired with it.
pub fn hosts(own_status: Value, lab: &LabInventory) -> Value {
    let known = |host: &LabHost| {
        let (devices, used) = host.counts();
        let mut host = json!(host);
        // They are counted here, and named by the answer to another question.
        host.as_object_mut().map(|host| host.remove("devices"));
        KnownHost { host, devices, used }
    };
    json!(Hosts { own: own_status, fingerprint: lab.own_key.as_deref(), known: lab.hosts.iter().map(known).collect() })
}

/// Whether a device is shared here.
pub fn is_shared(_: &ProcessStatus, device: &ProcessDevice) -> bool {
    device.shared().is_some()
}

/// Whether a device is attached here.
pub fn is_attached(process: &ProcessStatus, device: &ProcessDevice) -> bool {
    !is_shared(process, device) && process.role != "nbd"
}

/// The table of actions.
pub fn actions() -> Value {
    json!(Actions { actions: table::all().map(PageAction::described).collect() })
}
