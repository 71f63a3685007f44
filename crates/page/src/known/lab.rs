//! What is known of other hosts and their devices: by the directory of this host's daemon, and by what paired hosts and
//! those nearby answer. Others wrote all of it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::shell::NAME_BYTES_MAX;

/// The hidden verb that starts the process that asks other hosts.
pub const HOSTS_VERB: &str = "page-hosts";
/// Hosts that are kept.
pub const HOSTS_MAX: usize = 1000;
/// Devices that are kept, of all hosts together.
pub const DEVICES_MAX: usize = 20_000;
/// Bytes of all their texts together, with what each entry of a list takes besides.
pub const TEXT_BYTES_MAX: usize = 8 << 20;
/// Characters of a text. A name is left out rather than cut off: it would be another device's.
const TEXT_CHARS_MAX: usize = 200;
/// Interfaces, labels, waiting hosts and bookings of a device.
const LIST_MAX: usize = 16;
/// What an entry of a list takes besides its texts, bytes.
const ENTRY_BYTES: usize = 96;
/// What all of it takes, bytes. Hosts without devices are few beside devices.
pub const LAB_BYTES_MAX: usize = DEVICES_MAX * size_of::<LabDevice>() + TEXT_BYTES_MAX + HOSTS_MAX * 4096;

/// All that is known of other hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LabInventory {
    /// Greater with each change; 0: nothing is known yet.
    pub version: u64,
    /// Another number when a host or a device is, or its state, its user or who waits; not when all are heard again.
    pub mark: u64,
    /// This host's name.
    pub own_name: String,
    /// The fingerprint of its key, if it has one.
    pub own_key: Option<String>,
    /// The other hosts, in the order of their names.
    pub hosts: Vec<LabHost>,
    /// Devices and hosts that were not kept.
    pub left_out: usize,
    /// What is wrong with the directory, if something is.
    pub trouble: Option<String>,
    /// When hosts were asked last, seconds since 1970; `None`: not yet.
    pub looked_s: Option<u64>,
}

/// Who says what a host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Nobody: its devices are not known.
    #[default]
    Nobody,
    /// The host itself.
    Host,
    /// The directory, which may be wrong.
    Directory,
}

/// A host other than this one, with what it or the directory says of its devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OtherHost")]
#[serde(default)]
pub struct LabHost {
    /// Its name: as it is paired here, or else as it calls itself.
    pub name: String,
    /// The fingerprint of its key, if it said one. It has proved that it has the key only if it is paired.
    pub key: Option<String>,
    /// Where it is.
    pub address: Option<String>,
    /// The version of its farbus.
    pub farbus: Option<String>,
    /// Since when it is paired with this host; `None`: it is not.
    pub paired: Option<String>,
    /// What it may use of this host, in words of `farbus allow`.
    pub may_use: Vec<String>,
    /// Whether it announces itself nearby.
    pub is_found: bool,
    /// Whether it is in the directory.
    pub is_in_directory: bool,
    /// When it, or the directory about it, was heard last: seconds since 1970 by this host's clock.
    pub heard_s: Option<u64>,
    /// Why it did not answer the last time, if it did not.
    pub failure: Option<String>,
    /// Who says what it has.
    pub from: Source,
    /// How a command names it; `None`: it cannot be used from here.
    pub called: Option<String>,
    /// What it has, in the order of the names.
    #[schemars(skip)]
    pub devices: Vec<LabDevice>,
}

/// A device of another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OtherDevice")]
#[serde(default)]
pub struct LabDevice {
    /// Its name there.
    pub name: String,
    /// What it is, in words.
    pub title: String,
    /// `vendor:product`, hexadecimal, as its host says it.
    pub ids: String,
    /// The classes of its interfaces, in words.
    pub interfaces: Vec<String>,
    /// Whether it is a disk that is shared as one.
    pub is_block: bool,
    /// `available`, `leased`, `in use` or `moved away`, as far as its host says.
    pub state: String,
    /// Who uses it or has a lease of it.
    pub user: Option<String>,
    /// Since when it is used: seconds since 1970.
    pub since_s: Option<u64>,
    /// What its user has it for, in the user's words.
    pub reason: Option<String>,
    /// When the lease of it ends: RFC 3339, UTC.
    pub leased_until: Option<String>,
    /// How many hosts wait for it.
    pub waiting: u32,
    /// Those of them that are known by name, in the order in which they are served.
    pub queue: Vec<LabQueued>,
    /// Leases of it ahead of time.
    pub booked: Vec<LabBooked>,
    /// The labels that its owner gave it, by name.
    pub labels: BTreeMap<String, String>,
    /// Where it is.
    pub place: Option<String>,
    /// What else its owner says of it.
    pub comment: Option<String>,
}

/// A host that waits for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Queued")]
#[serde(default)]
pub struct LabQueued {
    /// The name of the host that waits.
    pub host: String,
    /// The priority of its request, 0 to 9.
    pub priority: u8,
}

/// A lease ahead of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Booked")]
#[serde(default)]
pub struct LabBooked {
    /// The name of the host that booked the device.
    pub host: String,
    /// When it begins: RFC 3339, UTC.
    pub from: String,
    /// When it ends.
    pub until: String,
}

/// A device as the directory or its host says it: fields of a record, or of a line of `farbus list --json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceReport {
    /// The key of its host, in the directory.
    pub host_key: String,
    name: String,
    title: String,
    ids: String,
    vendor: String,
    product: String,
    vendor_name: Option<String>,
    product_name: Option<String>,
    interfaces: Vec<String>,
    size_bytes: Option<u64>,
    state: Option<String>,
    user: Option<String>,
    since: Option<String>,
    used_s: Option<f64>,
    reason: Option<String>,
    lease: Option<LeaseReport>,
    waiting: u64,
    queue: Vec<LabQueued>,
    booked: Vec<LabBooked>,
    labels: BTreeMap<String, String>,
    place: Option<String>,
    comment: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LeaseReport {
    host: String,
    until: String,
    reason: Option<String>,
}

/// Room for as many devices as are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabBudget {
    devices: usize,
    bytes: usize,
}

impl LabBudget {
    /// Takes a device, if there is room for it.
    pub fn takes(&mut self, device: &LabDevice) -> bool {
        let (devices, bytes) = (self.devices + 1, self.bytes + device.text_bytes());
        let has_room = devices <= DEVICES_MAX && bytes <= TEXT_BYTES_MAX;
        if has_room {
            *self = Self { devices, bytes };
        }
        has_room
    }
}

/// A text that is not too long, without what a terminal would obey: as JSON it is twice as long at most.
pub fn short(text: &str) -> String {
    let readable = |c: char| match c {
        c if c.is_control() && c.is_whitespace() => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().take(TEXT_CHARS_MAX).map(readable).collect()
}

impl DeviceReport {
    /// What is kept of it; `None` if no command could name it. `now_s` and `time` read the clock and a time that was
    /// written, both in seconds since 1970.
    pub fn kept(self, now_s: u64, time: impl Fn(&str) -> Option<u64>) -> Option<LabDevice> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return None;
        }
        let some = |text: Option<String>| text.map(|text| short(&text));
        let named = || [self.vendor_name.as_deref(), self.product_name.as_deref()].into_iter().flatten();
        let title = if self.title.trim().is_empty() { named().collect::<Vec<_>>().join(" ") } else { self.title };
        let ids = if self.ids.is_empty() { format!("{}:{}", self.vendor, self.product) } else { self.ids };
        let host_state = self.state.unwrap_or_default();
        let state =
            if host_state == "available" && self.lease.is_some() { "leased".to_owned() } else { short(&host_state) };
        let lease = self.lease.unwrap_or_default();
        let lessee = Some(lease.host).filter(|host| !host.is_empty());
        let queued = |of: LabQueued| LabQueued { host: short(&of.host), ..of };
        let booked =
            |of: LabBooked| LabBooked { host: short(&of.host), from: short(&of.from), until: short(&of.until) };
        // The cast of a float saturates.
        let began = self.used_s.map(|used_s| now_s.saturating_sub(used_s.max(0.0) as u64));
        Some(LabDevice {
            name: self.name,
            title: short(&title),
            ids: short(&ids),
            interfaces: self.interfaces.iter().take(LIST_MAX).map(|text| short(text)).collect(),
            is_block: self.size_bytes.is_some(),
            state,
            user: some(self.user.or(lessee)),
            since_s: began.or(self.since.as_deref().and_then(time)),
            reason: some(self.reason.or(lease.reason)),
            leased_until: Some(short(&lease.until)).filter(|until| !until.is_empty()),
            waiting: u32::try_from(self.waiting).unwrap_or(u32::MAX),
            queue: self.queue.into_iter().take(LIST_MAX).map(queued).collect(),
            booked: self.booked.into_iter().take(LIST_MAX).map(booked).collect(),
            labels: self.labels.iter().take(LIST_MAX).map(|(name, value)| (short(name), short(value))).collect(),
            place: some(self.place),
            comment: some(self.comment),
        })
    }
}

impl LabDevice {
    /// The bytes of its texts and lists.
    fn text_bytes(&self) -> usize {
        let some = [&self.user, &self.reason, &self.leased_until, &self.place, &self.comment];
        let of = |text: &String| text.len();
        [&self.name, &self.title, &self.ids, &self.state].into_iter().map(of).sum::<usize>()
            + some.into_iter().flatten().map(of).sum::<usize>()
            + self.interfaces.iter().map(of).sum::<usize>()
            + ENTRY_BYTES * (self.interfaces.len() + self.queue.len() + self.booked.len() + self.labels.len())
            + self.queue.iter().map(|queued| queued.host.len()).sum::<usize>()
            + self.booked.iter().map(|it| it.host.len() + it.from.len() + it.until.len()).sum::<usize>()
            + self.labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    /// Takes what the other says besides, of the same device in the same state.
    pub fn add(&mut self, other: LabDevice) {
        if self.state == other.state && self.user == other.user {
            self.reason = self.reason.take().or(other.reason);
            self.since_s = self.since_s.or(other.since_s);
        }
        if self.booked.is_empty() {
            self.booked = other.booked;
        }
        if self.title.is_empty() {
            self.title = other.title;
        }
    }

    /// As JSON for programs, of this host.
    pub fn described(&self, host: &LabHost) -> Value {
        let mut described = json!(self);
        described["host"] = json!(host.name);
        described["from"] = json!(host.from);
        described["heard_s"] = json!(host.heard_s);
        described["target"] = json!(host.target(self));
        described
    }
}

impl LabHost {
    /// What a command attaches to use a device of it; `None` if no command can.
    pub fn target(&self, device: &LabDevice) -> Option<String> {
        let called = self.called.as_ref().filter(|_| !device.name.contains('/'))?;
        Some(format!("{called}/{}", device.name))
    }

    /// How many devices it has, and how many of them are used.
    pub fn counts(&self) -> (usize, usize) {
        (self.devices.len(), self.devices.iter().filter(|device| device.state == "in use").count())
    }
}

impl LabInventory {
    /// All devices of other hosts, with their hosts.
    pub fn devices(&self) -> impl Iterator<Item = (&LabHost, &LabDevice)> {
        self.hosts.iter().flat_map(|host| host.devices.iter().map(move |device| (host, device)))
    }

    /// The device that a command or an attachment calls so, and its host.
    pub fn find(&self, target: &str) -> Option<(&LabHost, &LabDevice)> {
        let (host, name) = target.rsplit_once('/')?;
        // A paired host is called by its name, with a port that stands for none.
        let without_port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map(|(name, _)| name);
        let is_meant = |known: &&LabHost| {
            let called = known.called.as_deref();
            called == Some(host) || (called.is_some() && called == without_port)
        };
        let host = self.hosts.iter().find(is_meant)?;
        Some((host, host.devices.iter().find(|device| device.name == name)?))
    }

    /// Puts all in order, and keeps no more than the limits allow.
    pub fn settle(&mut self) {
        self.hosts.sort_by(|one, other| (&one.name, &one.key).cmp(&(&other.name, &other.key)));
        let hosts = self.hosts.len().saturating_sub(HOSTS_MAX);
        self.left_out += self.hosts.drain(self.hosts.len() - hosts..).map(|host| host.devices.len()).sum::<usize>();
        let mut room = LabBudget::default();
        for host in &mut self.hosts {
            host.devices.sort_by(|one, other| one.name.cmp(&other.name));
            let all = host.devices.len();
            host.devices.retain(|device| room.takes(device));
            self.left_out += all - host.devices.len();
        }
        let mut hasher = DefaultHasher::new();
        (&self.trouble, self.left_out).hash(&mut hasher);
        for host in &self.hosts {
            (&host.name, &host.key, &host.may_use, host.failure.is_some()).hash(&mut hasher);
        }
        for (_, device) in self.devices() {
            let LabDevice { name, title, state, user, reason, leased_until, waiting, queue, booked, .. } = device;
            (name, title, state, user, reason, leased_until, waiting, queue, booked).hash(&mut hasher);
        }
        self.mark = hasher.finish();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A device as a host says it.
    pub fn lab_device(value: Value) -> LabDevice {
        let report: DeviceReport = serde_json::from_value(value).unwrap();
        report.kept(1000, |_| Some(400)).unwrap()
    }

    /// A paired host with these devices.
    pub fn host(name: &str, devices: Vec<LabDevice>) -> LabHost {
        let called = Some(name.to_owned());
        LabHost { name: name.to_owned(), called, from: Source::Host, devices, ..LabHost::default() }
    }

    #[test]
    fn a_leased_device_has_its_lessee_as_its_user_and_is_not_available() {
        let device = lab_device(json!({
            "name": "board", "vendor": "0403", "product": "6001", "vendor_name": "FTDI", "state": "available",
            "lease": { "host": "rack", "until": "2026-11-27T08:00Z", "reason": "nightly" }, "waiting": 2,
            "queue": [{ "host": "desk", "priority": 5 }],
        }));
        assert_eq!((device.state.as_str(), device.user.as_deref()), ("leased", Some("rack")));
        assert_eq!((device.title.as_str(), device.ids.as_str()), ("FTDI", "0403:6001"));
        assert_eq!((device.reason.as_deref(), device.waiting, device.queue[0].priority), (Some("nightly"), 2, 5));
        let used = lab_device(json!({ "name": "board", "state": "in use", "user": "desk", "used_s": 60 }));
        assert_eq!(used.since_s, Some(940));
        let by_directory = lab_device(json!({ "name": "board", "state": "in use", "since": "x" }));
        assert_eq!(by_directory.since_s, Some(400));
    }

    #[test]
    fn an_attachment_is_found_by_the_name_or_the_address_of_its_host() {
        let found = LabHost {
            called: Some("10.0.0.9:3240".into()),
            ..host("lab9", vec![lab_device(json!({ "name": "cam" }))])
        };
        let unpaired = LabHost { called: None, ..host("lab8", vec![lab_device(json!({ "name": "cam" }))]) };
        let lab3 = host("lab3", vec![lab_device(json!({ "name": "board" }))]);
        let lab = LabInventory { hosts: vec![lab3, unpaired, found], ..LabInventory::default() };
        let name = |target: &str| lab.find(target).map(|(host, _)| host.name.as_str());
        assert_eq!((name("lab3/board"), name("lab3:3240/board")), (Some("lab3"), Some("lab3")));
        assert_eq!(name("10.0.0.9:3240/cam"), Some("lab9"));
        for other in ["lab3/cam", "lab8/cam", "lab8:3240/cam", "lab3:x/board", "board", "10.0.0.9:3241/cam"] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn more_than_is_kept_of_others_is_counted_and_a_name_is_never_cut_off() {
        let long: DeviceReport = serde_json::from_value(json!({ "name": "x".repeat(256) })).unwrap();
        assert!(long.kept(0, |_| None).is_none());
        let device = |n: usize| LabDevice {
            name: n.to_string(),
            comment: Some("c".repeat(200)),
            ..lab_device(json!({ "name": "a" }))
        };
        let hosts = (0..HOSTS_MAX + 5).map(|n| host(&format!("{n:05}"), (0..100).map(device).collect())).collect();
        let mut lab = LabInventory { hosts, ..LabInventory::default() };
        lab.settle();
        assert_eq!(lab.hosts.len(), HOSTS_MAX);
        assert_eq!(lab.devices().count(), DEVICES_MAX);
        assert_eq!(lab.left_out, (HOSTS_MAX + 5) * 100 - DEVICES_MAX);
        let huge = |n: usize| LabDevice {
            name: n.to_string(),
            labels: (0..16).map(|n| (n.to_string(), "l".repeat(200))).collect(),
            ..LabDevice::default()
        };
        let mut lab = LabInventory { hosts: vec![host("a", (0..5000).map(huge).collect())], ..LabInventory::default() };
        lab.settle();
        assert!(lab.devices().map(|(_, device)| device.text_bytes()).sum::<usize>() <= TEXT_BYTES_MAX);
        assert!(lab.left_out > 2000 && serde_json::to_string(&lab).unwrap().len() < 24 << 20);
    }
}
