//! A row for each device of all hosts: of this user's processes first, then of other hosts.

use std::collections::BTreeSet;
use std::ptr;

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_session::device_class::DeviceClassName;
use maud::{Markup, html};
use serde_json::{Value, json};

use crate::api::offers::{self, Offer};
use crate::api::schemas::ProcessPlace;
use crate::known::lab::{LabDevice, LabHost, LabInventory, Source};
use crate::known::status::CombinedStatus;
use crate::shell::NAME_BYTES_MAX;
use crate::view::drawing::key_of;
use crate::view::forms::{ViewReader, attach_here};
use crate::view::text::{encoded, span, theirs, whole};

/// Hosts that wait for a device, as its row names them.
const WAITING_MAX: usize = 3;
/// The host of processes that do not say which one they are.
pub const HERE: &str = "this machine";

/// The class of a device that is of no other.
const OTHER_CLASS: &str = "device";
/// The classes that rows show, each with its sign: words of [`DeviceClassName`], and `device` for all others.
pub const CLASSES: [(&str, &str); 8] = [
    ("disk", "M2 4h12v8H2zM4 10h4M11 10h1"),
    ("audio", "M2 6h3l4-4v12l-4-4H2zM11 5q2 3 0 6"),
    ("camera", "M1 4h14v9H1zM5 8.500a3 3 0 1 0 6 0a3 3 0 1 0-6 0"),
    ("input", "M1 4h14v8H1zM3 6.500h1M6 6.500h1M9 6.500h1M12 6.500h1M4 9.500h8"),
    ("serial", "M2 6h11l-3-3M14 10H3l3 3"),
    ("communications", "M2 6h11l-3-3M14 10H3l3 3"),
    ("printer", "M4 6V2h8v4M2 6h12v6h-2M4 12H2V6M4 9h8v5H4z"),
    (OTHER_CLASS, "M8 14V3L6 5M8 3l2 2M8 10L5 8V6M8 11l3-2V7"),
];

/// What a row is about.
#[derive(Clone, Copy, Debug)]
pub enum DeviceRow<'a> {
    /// A device that a process of this user shares or has attached.
    Own {
        /// The process that shares the device or has attached it.
        process: &'a ProcessStatus,
        /// The device, as that says it.
        device: &'a ProcessDevice,
        /// What its own host says of it, if it is attached from another one.
        there: Option<(&'a LabHost, &'a LabDevice)>,
    },
    /// A device of another host that is not attached here.
    Other(&'a LabHost, &'a LabDevice),
}

/// The rows of all devices: those of this host, then those of other hosts.
pub fn rows(status: &CombinedStatus) -> Vec<DeviceRow<'_>> {
    let lab = &*status.lab;
    let own = status.devices().map(|(process, device)| {
        let target = Some(device.title()).filter(|_| is_attached(process, device));
        DeviceRow::Own { process, device, there: target.and_then(|target| lab.find(target)) }
    });
    let own: Vec<_> = own.collect();
    let here: BTreeSet<*const LabDevice> = own.iter().filter_map(DeviceRow::there).map(ptr::from_ref).collect();
    let others = lab.devices().filter(|(_, device)| !here.contains(&ptr::from_ref(*device)));
    let others: Vec<_> = others.map(|(host, device)| DeviceRow::Other(host, device)).collect();
    own.into_iter().chain(others).collect()
}

/// Whether a process has attached this device.
fn is_attached(process: &ProcessStatus, device: &ProcessDevice) -> bool {
    device.shared().is_none() && process.role != "nbd"
}

/// A time as people write it: the minute, of RFC 3339 in UTC.
fn moment(text: &str) -> String {
    match text.get(..16).filter(|_| text.is_ascii() && text.as_bytes().get(10) == Some(&b'T')) {
        Some(minute) => minute.replace('T', " "),
        None => text.to_owned(),
    }
}

/// The state of a device in a word, as `farbus status` says it.
pub fn state_of(device: &ProcessDevice) -> &str {
    match device.state() {
        "available" if device.lease().is_some() => "leased",
        _ if device.shared().is_some_and(|shared| shared.successor.is_some()) => "handed over",
        state => state,
    }
}

/// What says which class a device is of.
struct ClassSigns<'a> {
    is_disk: bool,
    /// `vendor:product`, hexadecimal; empty if they are not known.
    ids: &'a str,
    interfaces: &'a [String],
}

impl<'a> ClassSigns<'a> {
    fn of_own(device: &'a ProcessDevice) -> Self {
        let is_disk = match device.shared() {
            Some(shared) => shared.size_bytes.is_some(),
            None => device.mode().is_some(),
        };
        let ids = device.shared().map(|shared| shared.ids.as_str()).unwrap_or_default();
        Self { is_disk, ids, interfaces: device.interfaces() }
    }

    fn of_other(device: &'a LabDevice) -> Self {
        Self { is_disk: device.is_block, ids: &device.ids, interfaces: &device.interfaces }
    }

    fn is_one(&self, class: &str) -> bool {
        let id = |text: &str| u16::from_str_radix(text, 16).unwrap_or_default();
        let ids = self.ids.split_once(':').map_or((0, 0), |(vendor, product)| (id(vendor), id(product)));
        (self.is_disk && matches!(class, "disk" | "storage"))
            || class.parse::<DeviceClassName>().is_ok_and(|class| class.is_described(ids, self.interfaces))
    }

    /// Its class, in a word of [`CLASSES`].
    fn class(&self) -> &'static str {
        CLASSES.iter().map(|(class, _)| *class).find(|class| self.is_one(class)).unwrap_or(OTHER_CLASS)
    }
}

/// A sign for the device's class, and the class in words for those who do not see it.
pub fn icon(device: &ProcessDevice) -> Markup {
    icon_of(ClassSigns::of_own(device).class())
}

fn icon_of(class: &str) -> Markup {
    let (word, path) = CLASSES.iter().find(|(word, _)| *word == class).unwrap_or(&CLASSES[CLASSES.len() - 1]);
    html! { svg class="icon" viewBox="0 0 16 16" role="img" aria-label=(word) { path d=(path) {} } }
}

/// The link to a device's own page; its name alone if that is too long for an address.
fn link_to(process: &ProcessStatus, device: &ProcessDevice) -> Markup {
    let name = device.name();
    // A daemon that is restarted has another number.
    let role = if process.role == "daemon" { "&role=daemon" } else { "" };
    match name.len() <= NAME_BYTES_MAX {
        true => html! { a href={ "/device/" (process.pid) "?name=" (encoded(name)) (role) } { (theirs(name)) } },
        false => theirs(name),
    }
}

/// Who waits, each with its priority, and the first lease ahead of time.
fn waiting<'a>(
    count: usize,
    queue: impl Iterator<Item = (&'a str, u64)>,
    booked: Option<(&'a str, &'a str, &'a str)>,
) -> Markup {
    let named: Vec<_> = queue.take(WAITING_MAX).collect();
    let more = count.saturating_sub(named.len());
    html! {
        @for (at, (host, priority)) in named.iter().enumerate() {
            @if at > 0 { br; }
            (theirs(host))
            @if *priority > 0 { " (priority " (priority) ")" }
        }
        @match more {
            0 => {}
            more if named.is_empty() => { (more) " hosts" }
            more => { br; "and " (more) " more" }
        }
        @if let Some((host, from, until)) = booked {
            @if more > 0 || !named.is_empty() { br; }
            "booked by " (theirs(host)) ", " (theirs(&moment(from))) " to " (theirs(&moment(until))) " UTC"
        }
    }
}

impl<'a> DeviceRow<'a> {
    fn there(&self) -> Option<&'a LabDevice> {
        match self {
            DeviceRow::Own { there, .. } => there.map(|(_, device)| device),
            DeviceRow::Other(..) => None,
        }
    }

    /// Its id in the document.
    pub fn key(&self) -> String {
        match self {
            DeviceRow::Own { process, device, .. } => key_of("device", (process.pid, device.name())),
            DeviceRow::Other(host, device) => key_of("device", (&host.key, &host.name, &device.name)),
        }
    }

    fn own_host(process: &'a ProcessStatus) -> &'a str {
        process.host().unwrap_or(HERE)
    }

    /// The host that has the device.
    pub fn host(&self) -> &'a str {
        match self {
            DeviceRow::Own { there: Some((host, _)), .. } => &host.name,
            DeviceRow::Own { process, device, .. } if is_attached(process, device) => {
                device.title().rsplit_once('/').map_or(Self::own_host(process), |(host, _)| host)
            }
            DeviceRow::Own { process, .. } => Self::own_host(process),
            DeviceRow::Other(host, _) => &host.name,
        }
    }

    /// Its state, in a word.
    pub fn state(&self) -> &'a str {
        match self {
            DeviceRow::Own { device, .. } => state_of(device),
            DeviceRow::Other(_, device) => &device.state,
        }
    }

    /// What says its class: this host, and the one that it is attached from.
    fn class_signs(&self) -> impl Iterator<Item = ClassSigns<'a>> {
        let (own, other) = match *self {
            DeviceRow::Own { device, there, .. } => (Some(device), there.map(|(_, device)| device)),
            DeviceRow::Other(_, device) => (None, Some(device)),
        };
        own.map(ClassSigns::of_own).into_iter().chain(other.map(ClassSigns::of_other))
    }

    /// Its class, in a word of [`CLASSES`].
    pub fn class(&self) -> &'static str {
        self.class_signs().map(|signs| signs.class()).find(|class| *class != OTHER_CLASS).unwrap_or(OTHER_CLASS)
    }

    /// Whether it is of this class: of the one that its row shows, or of another one that its interfaces have.
    pub fn is_of_class(&self, class: &str) -> bool {
        self.class() == class || self.class_signs().any(|signs| signs.is_one(class))
    }

    /// Who uses it or has a lease of it.
    fn user(&self) -> Option<&'a str> {
        match self {
            DeviceRow::Own { process, device, .. } if is_attached(process, device) => {
                let has_none = ["failed", "waiting", "another device"].contains(&device.state());
                (!has_none).then(|| Self::own_host(process))
            }
            DeviceRow::Own { device, .. } => device.user().or(device.lease().map(|lease| lease.host.as_str())),
            DeviceRow::Other(_, device) => device.user.as_deref(),
        }
    }

    fn reason(&self) -> Option<&'a str> {
        match self {
            DeviceRow::Own { device, .. } => {
                device.reason().or(device.lease().and_then(|lease| lease.reason.as_deref()))
            }
            DeviceRow::Other(_, device) => device.reason.as_deref(),
        }
    }

    /// Whether a text, in lower case, is in what is seen of it.
    pub fn contains(&self, filter: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(filter);
        let has_some = has(self.host()) || has(self.state()) || self.user().is_some_and(has);
        has_some
            || match self {
                DeviceRow::Own { device, .. } => {
                    let texts = [device.name(), device.title(), device.state()].into_iter();
                    let some = [device.user(), device.reason()].into_iter().flatten();
                    let of_shared = device.shared().into_iter().flat_map(|shared| {
                        let notes = [&shared.notes.place, &shared.notes.comment].into_iter().flatten();
                        let labels = shared.notes.labels.iter().flat_map(|(name, value)| [name, value]);
                        notes.chain([&shared.ids, &shared.bus_id]).chain(labels)
                    });
                    let interfaces = device.interfaces().iter();
                    texts.chain(some).chain(of_shared.chain(interfaces).map(String::as_str)).any(has)
                }
                DeviceRow::Other(_, device) => {
                    let some = [&device.reason, &device.place, &device.comment];
                    [&device.name, &device.title, &device.ids].into_iter().any(|text| has(text))
                        || some.into_iter().flatten().any(|text| has(text))
                        || device.interfaces.iter().any(|text| has(text))
                        || device.labels.iter().any(|(name, value)| has(name) || has(value))
                }
            }
    }

    /// What can be done with it.
    fn offers(&self, lab: &LabInventory) -> Vec<Offer> {
        match self {
            DeviceRow::Own { process, device, .. } => offers::of(process, device),
            DeviceRow::Other(host, device) => offers::of_other(host, device, &lab.own_name),
        }
    }

    /// As JSON for programs.
    pub fn described(&self, lab: &LabInventory) -> Value {
        let mut described = match self {
            DeviceRow::Own { process, device, .. } => {
                json!({
                    "name": device.name(), "title": device.title(), "process": ProcessPlace::of(process),
                    "waiting": device.waiting().len(), "queue": device.waiting(), "booked": device.booked(),
                    "leased_until": device.lease().map(|lease| &lease.until), "from": "here",
                })
            }
            DeviceRow::Other(host, device) => device.described(host),
        };
        described["host"] = json!(self.host());
        described["state"] = json!(self.state());
        described["class"] = json!(self.class());
        described["user"] = json!(self.user());
        described["reason"] = json!(self.reason());
        described["actions"] = json!(self.offers(lab));
        described
    }

    /// As an element of the table.
    pub fn drawn(&self, key: &str, status: &CombinedStatus, reader: ViewReader<'_>) -> Markup {
        let (name, title, since, waits, notes) = match self {
            DeviceRow::Own { process, device, .. } => {
                let all = device.waiting();
                let queue = all.iter().map(|it| (it.host.as_str(), it.priority.unwrap_or_default().into()));
                let booked = device.booked().first();
                let booked = booked.map(|it| (it.host.as_str(), it.from.as_str(), it.until.as_str()));
                let notes = html! {
                    @if let Some(failure) = device.failure() { br; (theirs(&failure.message)) }
                    (self.leased(device.lease().map(|lease| lease.until.as_str())))
                };
                let since = device.used_s().map(span);
                (link_to(process, device), device.title(), since, waiting(all.len(), queue, booked), notes)
            }
            DeviceRow::Other(host, device) => {
                let queue = device.queue.iter().map(|it| (it.host.as_str(), it.priority.into()));
                let booked = device.booked.first().map(|it| (it.host.as_str(), it.from.as_str(), it.until.as_str()));
                let waits = waiting(usize::try_from(device.waiting).unwrap_or(usize::MAX), queue, booked);
                let since = device.since_s.map(|since_s| span(status.now_s.saturating_sub(since_s) as f64));
                let notes = html! { (self.leased(device.leased_until.as_deref())) (stale(host, status.now_s)) };
                (theirs(&device.name), device.title.as_str(), since, waits, notes)
            }
        };
        let (user, reason) = (self.user(), self.reason());
        html! {
            tr id=(key) {
                th scope="row" { (name) }
                td data-label="Host" { (theirs(self.host())) (self.source()) }
                td data-label="What" { (icon_of(self.class())) " " (theirs(title)) (self.place_and_labels()) }
                td data-label="State" { (theirs(self.state())) (notes) }
                td data-label="User" {
                    @if user.is_some() || reason.is_some() { (theirs(user.unwrap_or_default())) }
                    @if let Some(reason) = reason { br; q { (theirs(reason)) } }
                }
                td data-label="Since" { (since.unwrap_or_default()) }
                td data-label="Waiting" { (waits) }
                td data-label="Command" { (self.command(key, status, reader)) }
            }
        }
    }

    /// Until when it is leased, if that is its state.
    fn leased(&self, until: Option<&str>) -> Markup {
        match until.filter(|_| self.state() == "leased") {
            Some(until) => html! { br; small { "until " (theirs(&moment(until))) " UTC" } },
            None => Markup::default(),
        }
    }

    /// Who says so, if it is not its host.
    fn source(&self) -> Markup {
        let DeviceRow::Other(host, _) = self else { return Markup::default() };
        let is_said = host.from == Source::Directory;
        html! { @if is_said { " " small { "by the directory" @if host.paired.is_none() { "; not paired" } } } }
    }

    /// Where a device is, and its labels, as its owner gave them.
    fn place_and_labels(&self) -> Markup {
        let (place, labels) = match self {
            DeviceRow::Own { device, there: None, .. } => {
                let Some(shared) = device.shared() else { return Markup::default() };
                (&shared.notes.place, &shared.notes.labels)
            }
            DeviceRow::Own { there: Some((_, device)), .. } | DeviceRow::Other(_, device) => {
                (&device.place, &device.labels)
            }
        };
        let labels = labels.iter().map(|(name, value)| format!("{name}={value}"));
        let texts: Vec<String> = place.iter().cloned().chain(labels).collect();
        html! { @if !texts.is_empty() { " " small { (theirs(&texts.join(", "))) } } }
    }

    fn command(&self, key: &str, status: &CombinedStatus, reader: ViewReader<'_>) -> Markup {
        match self {
            DeviceRow::Own { process, device, .. } => {
                html! { @if let Some(line) = offers::first(process, device) { code { (whole(&line)) } } }
            }
            DeviceRow::Other(..) => {
                let offer = self.offers(&status.lab).into_iter().next();
                offer.map(|offer| attach_here(&offer, key, reader)).unwrap_or_default()
            }
        }
    }
}

/// How old what is shown is, if its host does not answer.
fn stale(host: &LabHost, now_s: u64) -> Markup {
    match host.heard_s.filter(|_| host.failure.is_some() && host.from == Source::Host) {
        Some(heard_s) => html! { br; small { (ago(now_s.saturating_sub(heard_s))) ", no answer since" } },
        None => Markup::default(),
    }
}

/// How long ago something was, not more exactly than a minute.
pub fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => "less than a minute ago".to_owned(),
        _ => format!("{} ago", span(seconds as f64)),
    }
}
