//! What is read for one answer: a device's process is asked, and the owner's files.

use farbus_control::event::{Event, LatestEvents};
use farbus_control::schema::moment;
use farbus_io_linux::usb::UsbInventory;
use farbus_io_net::local::control_socket::{Answer, Question, ask_one};
use farbus_io_net::trust::{AuditReader, HostFolder, PageTokenList, PairedHostList, StateError, host_name};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::view::{DeviceDetails, ShareableDevice};

/// Events of a device.
const EVENTS_MAX: usize = 50;
/// Lines of the audit log in an answer.
const LINES_MAX: usize = 200;

/// Asks a device's process. An earlier release does not know the device's descriptors. It blocks until the process has
/// answered.
pub fn details(pid: u32, name: String) -> DeviceDetails {
    let ask = |question: &Question| match ask_one(pid, question, &[]) {
        Ok(Answer::Ok(value)) => value,
        _ => Value::Null,
    };
    let events: LatestEvents = serde_json::from_value(ask(&Question::Events { after: 0 })).unwrap_or_default();
    let is_its = |event: &Event| {
        let device = event.device.as_deref().unwrap_or_default();
        device == name || device.rsplit_once('/').is_some_and(|(_, named)| named == name)
    };
    let events = events.events.into_iter().rev().filter(is_its).take(EVENTS_MAX).collect();
    let latency = serde_json::from_value(latency(pid, name.clone())).unwrap_or_default();
    let descriptors = serde_json::from_value(ask(&Question::Descriptors { device: name })).ok();
    DeviceDetails { descriptors, events, latency, hosts: host_names(), ..DeviceDetails::default() }
}

/// How long the requests of an attached device took in each of the last seconds, as its process says; null if that does
/// not time it. It blocks until the process has answered.
pub fn latency(pid: u32, device: String) -> Value {
    match ask_one(pid, &Question::Latency { device }, &[]) {
        Ok(Answer::Ok(value)) if value.is_object() => value,
        _ => Value::Null,
    }
}

/// USB devices that are listed where one is chosen to be shared, and paired hosts where one is chosen.
const CHOICES_MAX: usize = 256;

/// The names of the hosts that are paired with this one; none if the list cannot be read.
fn host_names() -> Vec<String> {
    let peers = HostFolder::of_user().and_then(|folder| PairedHostList::load(&folder)).unwrap_or_default();
    peers.iter().map(|peer| peer.name.clone()).take(CHOICES_MAX).collect()
}

/// What can be chosen in the forms that share and attach a device: `hosts` and `shareable`, which has what
/// `farbus share --list` shows of each USB device.
pub fn choices() -> Value {
    let found = UsbInventory::default().devices().unwrap_or_default();
    let shareable: Vec<ShareableDevice> = found
        .iter()
        .take(CHOICES_MAX)
        .map(|found| {
            let ids = &found.descriptors.device;
            ShareableDevice {
                share_as: format!("usb:{}", found.bus_id),
                title: found.descriptors.title(),
                ids: format!("{:04x}:{:04x}", ids.vendor, ids.product),
                why_not: found.obstacle.as_ref().map(ToString::to_string),
            }
        })
        .collect();
    json!({ "hosts": host_names(), "shareable": shareable })
}

/// The tokens of this user's page.
///
/// # Errors
/// [`StateError`]: they cannot be read.
pub fn tokens() -> Result<PageTokenList, StateError> {
    PageTokenList::load(&HostFolder::of_user()?)
}

/// This host, and those that are paired with it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OwnHost {
    /// The name of this host.
    name: String,
    /// The version of its farbus.
    farbus: &'static str,
    /// The hosts that are paired with it.
    paired: Vec<PairedHost>,
}

/// A host that is paired with this one.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PairedHost {
    /// Its name here.
    name: String,
    /// The fingerprint of its key.
    fingerprint: String,
    /// Where it was last, if that is known.
    address: Option<String>,
    /// Since when it is paired.
    paired: String,
    /// What it may use of this host, in words of `farbus allow`.
    may_use: Vec<String>,
    /// What it may reserve with high criticality, in the same words.
    may_reserve_high: Vec<String>,
}

/// This host, and those that are paired with it.
///
/// # Errors
/// [`StateError`]: the list of paired hosts cannot be read.
pub fn hosts() -> Result<Value, StateError> {
    let peers = PairedHostList::load(&HostFolder::of_user()?)?;
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    let paired = peers
        .iter()
        .map(|peer| {
            let (may_use, high): (Vec<&str>, Vec<&str>) =
                (peer.allow.words().collect(), peer.reserve_high.words().collect());
            PairedHost {
                name: peer.name.to_string(),
                fingerprint: peer.fingerprint.to_string(),
                address: peer.address.clone(),
                paired: peer.paired.to_string(),
                may_use: owned(may_use),
                may_reserve_high: owned(high),
            }
        })
        .collect();
    Ok(json!(OwnHost { name: host_name(), farbus: env!("CARGO_PKG_VERSION"), paired }))
}

/// A line of the audit log, as [`farbus_io_net::trust::AuditEvent`] is written.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct AuditLine {
    /// When it happened: RFC 3339, UTC.
    #[schemars(schema_with = "moment")]
    at: String,
    /// The event, in a word.
    event: String,
    /// `ok`, `refused` or `failed`.
    outcome: String,
    /// The peer's name, if it is paired.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// Its key, if it showed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// The peer's address, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// The device's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// The reason, if it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How many more of this event and outcome there were without a line of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// Over how many seconds these events were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

/// The latest lines of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Audit {
    /// The lines, the latest last.
    #[schemars(with = "Vec<AuditLine>")]
    lines: Vec<Value>,
    /// How many earlier ones there are.
    earlier: usize,
}

/// The latest lines of the audit log, the latest last.
///
/// # Errors
/// [`StateError`]: it cannot be read.
pub fn audit() -> Result<Value, StateError> {
    let all = AuditReader::new(HostFolder::of_user()?).read_all()?;
    let lines = &all[all.len().saturating_sub(LINES_MAX)..];
    let lines: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(&line.to_string()).ok()).collect();
    Ok(json!(Audit { earlier: all.len() - lines.len(), lines }))
}
