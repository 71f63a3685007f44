//! One device: what is known of it, what is done with it, and what can be.

use farbus_control::attachment::AttachmentStatus;
use farbus_control::descriptors::DescriptorTree;
use farbus_control::device::{DeviceStatus, PastStatus};
use farbus_control::event::Event;
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::session::{Latency, Seconds};
use farbus_control::units::format_bytes;
use farbus_io_net::trust::PageScope;
use maud::{Markup, Render, html};
use serde::{Deserialize, Serialize};

use crate::known::status::CombinedStatus;
use crate::shell::{command, is_deceptive};
use crate::view::descriptors;
use crate::view::devices::notes;
use crate::view::drawing::{DrawingPiece, LiveElement, LiveList, ViewDrawing};
use crate::view::forms::{ShareableDevice, ViewReader};
use crate::view::rows::{icon, state_of};
use crate::view::text::{encoded, span, table, theirs, value_in, whole};
use crate::view::{forms, latency as over_time, operations, picture};

/// The longest query that is read, bytes; the rest of a request is limited before.
pub const QUERY_BYTES_MAX: usize = 8 << 10;
/// Rows of a table of a device: uses, links, hosts that wait.
const ROWS_MAX: usize = 64;

/// Names a device: two processes may have one of the same name.
///
/// A daemon that is restarted is another process. So a device that the process has no more is found by its name: at the
/// daemon, if a link says that it was there, or where it is alone with that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLocator {
    pid: u32,
    name: String,
    /// What the reader of its page may do.
    may: PageScope,
    /// The role that its process had, if the link says it.
    role: Option<String>,
}

/// What does not change while the device's page is looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceDetails {
    /// What its process answers to the question for descriptors; `None` if it does not know them.
    #[serde(default)]
    pub descriptors: Option<DescriptorTree>,
    /// The latest events of it, the latest first.
    #[serde(default)]
    pub events: Vec<Event>,
    /// What its process answers to the question for its latency over time; null if it does not time it.
    #[serde(default)]
    pub latency: Option<Seconds>,
    /// The hosts that can be chosen where one is named.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The USB devices of this machine that can be chosen to be shared, where one is.
    #[serde(default)]
    pub shareable: Vec<ShareableDevice>,
}

impl DeviceLocator {
    /// `/device/PID?name=NAME`, or `/device/PID?name=NAME&role=daemon`. A name in a path would be read as a way through
    /// folders.
    pub fn of(path: &str, query: &str) -> Option<Self> {
        Self::with_pid(path.strip_prefix("/device/")?.parse().ok()?, query)
    }

    /// The device of this process that a query names.
    pub fn with_pid(pid: u32, query: &str) -> Option<Self> {
        let query = Some(query).filter(|query| query.len() <= QUERY_BYTES_MAX)?;
        Some(Self { pid, name: value_in(query, "name")?, may: PageScope::Own, role: value_in(query, "role") })
    }

    fn find<'s>(&self, status: &'s CombinedStatus) -> Option<(&'s ProcessStatus, &'s ProcessDevice)> {
        let named = || status.devices().filter(|(_, device)| device.name() == self.name);
        if let Some(found) = named().find(|(process, _)| process.pid == self.pid) {
            return Some(found);
        }
        match &self.role {
            Some(role) => named().find(|(process, _)| process.role == *role),
            None => {
                let mut all = named();
                all.next().filter(|_| all.next().is_none())
            }
        }
    }

    /// Sets what the reader may do; the view leaves out the forms of what it may not.
    #[must_use]
    pub fn for_scope(self, may: PageScope) -> Self {
        Self { may, ..self }
    }

    /// The device as the processes say it, if there is one.
    pub fn device_in<'s>(&self, status: &'s CombinedStatus) -> Option<&'s ProcessDevice> {
        self.find(status).map(|(_, device)| device)
    }

    /// The number of the process that has it now.
    pub fn pid_in(&self, status: &CombinedStatus) -> u32 {
        self.find(status).map_or(self.pid, |(process, _)| process.pid)
    }

    /// The device's name at its process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Draws the device; without `details`, the parts that change alone.
    pub fn draw(&self, status: &CombinedStatus, details: Option<&DeviceDetails>) -> ViewDrawing {
        let found = self.find(status);
        let role = self.role.as_deref().map(|role| format!("&role={}", encoded(role))).unwrap_or_default();
        let address = format!("/device/{}?name={}{role}", self.pid, encoded(&self.name));
        let reader = ViewReader { back: &address, may: self.may };
        let mut parts = notes(status);
        let mut part =
            |key: &str, html: Markup| parts.push(LiveElement { key: key.to_owned(), html: html.into_string() });
        match found {
            None => part(
                "gone",
                html! {
                    p id="gone" role="alert" {
                        "This process has no such device, or has it no more. " a href="/" { "All devices" }
                    }
                },
            ),
            Some((process, device)) => {
                part("facts", facts(process, device));
                let commands = forms::commands(process, device, reader);
                part("commands", section("commands", "What you can do", &commands));
                part(
                    "moves",
                    section("moves", "Swap and migration", &operations::moves(status, process, device, reader)),
                );
                part("pictures", section("pictures", "Picture", &picture::pictures(status, process, device, reader)));
                for (key, image) in picture::images(status, process, device, reader) {
                    part(&key, image);
                }
                let recordings = operations::recordings(status, process, device, reader);
                part("recordings", section("recordings", "Recordings", &recordings));
                let consoles = operations::consoles(status, process, device, reader);
                part("consoles", section("consoles", "Consoles", &consoles));
                for (key, text) in operations::texts(status, process, device, reader) {
                    part(&key, text);
                }
                part("traffic", traffic(status, process, device));
                part("links", links(status, process, device));
                part("latency", latency(device));
                part("history", history(device));
            }
        }
        let title: String = self.name.chars().filter(|c| !is_deceptive(*c)).take(60).collect();
        let mut pieces = vec![
            fixed(html! { h1 { @if let Some((_, device)) = found { (icon(device)) } " " (theirs(&self.name)) } }),
            DrawingPiece::List(LiveList { id: "device", element: "div", parts }),
        ];
        if let Some(details) = details {
            pieces.push(fixed(forms::hosts(&details.hosts)));
            pieces.push(fixed(plots("rates", "Rates over time")));
            pieces.push(fixed(plots("links", "Rates of its links over time")));
            pieces.push(fixed(self.latency(found.map(|(_, device)| device), details.latency.as_ref())));
            pieces.push(fixed(details.descriptors.as_ref().map(descriptors::tree).unwrap_or_default()));
            pieces.push(fixed(events(&details.events)));
        }
        ViewDrawing { title, is_there: found.is_some(), pieces }
    }

    /// Its latency over time, which the script loads again when there is a further second.
    fn latency(&self, device: Option<&ProcessDevice>, seconds_kept: Option<&Seconds>) -> Markup {
        let second = device.and_then(ProcessDevice::latency).map(|latency| latency.second).unwrap_or_default();
        let role = self.role.as_deref().map(|role| format!("&role={}", encoded(role))).unwrap_or_default();
        let at = format!("/device/{}/latency?name={}{role}", self.pid, encoded(&self.name));
        html! {
            @if let Some(seconds) = seconds_kept {
                (plots("latency", "Latency over time"))
                div id="latency-history" data-live=(at) data-follows="latency" data-shown=(second) { (over_time(seconds)) }
            }
        }
    }
}

fn fixed(html: Markup) -> DrawingPiece {
    DrawingPiece::Fixed(html.into_string())
}

/// Where the script draws, once it has something: without it the tables say the same.
fn plots(what: &str, heading: &str) -> Markup {
    html! { section id={ (what) "-plots" } class="plots" hidden { h2 { (heading) } } }
}

/// A heading and what stands below it, as one element; empty without content.
fn section(id: &str, heading: &str, content: &Markup) -> Markup {
    numbered_section(id, heading, content, None, &[])
}

/// A [`section`] with a number and rates that the script follows. A rate is `NAME:IN:OUT`, bytes a second.
fn numbered_section(id: &str, heading: &str, content: &Markup, number: Option<u64>, rates: &[String]) -> Markup {
    let is_empty = content.0.is_empty();
    html! {
        section id=(id) data-number=[number] data-rates=[(!rates.is_empty()).then(|| rates.join(" "))] hidden[is_empty] {
            @if !is_empty { h2 { (heading) } (content) }
        }
    }
}

/// What is known of a device, each with what it means.
#[derive(Default)]
struct DeviceFacts(Vec<(&'static str, Markup)>);

impl DeviceFacts {
    fn text(&mut self, what: &'static str, text: &str) {
        self.0.extend(Some((what, theirs(text))).filter(|_| !text.is_empty()));
    }

    fn some(&mut self, what: &'static str, text: Option<&String>) {
        self.text(what, text.map_or("", String::as_str));
    }

    fn list<'t>(&mut self, what: &'static str, all: impl Iterator<Item = &'t String>) {
        self.0.push((what, in_a_row(all.take(ROWS_MAX).map(|text| theirs(text)))));
    }

    fn add_shared(&mut self, device: &DeviceStatus) {
        let DeviceStatus { another_in_port, moved, lease, identity, notes, .. } = device;
        self.some("Why", device.trouble.as_ref());
        self.some("Was", another_in_port.as_ref().map(|another| &another.was));
        self.some("Is", another_in_port.as_ref().map(|another| &another.is));
        self.some("To type", another_in_port.as_ref().map(|another| &another.next));
        self.some("Goes to", device.successor.as_ref());
        self.some("Moved to", moved.as_ref().map(|moved| &moved.host));
        self.some("Leased by", lease.as_ref().map(|lease| &lease.host));
        self.some("Leased until", lease.as_ref().map(|lease| &lease.until));
        self.some("Place", notes.place.as_ref());
        self.some("Comment", notes.comment.as_ref());
        self.text("Ids", &device.ids);
        self.some("Vendor", device.vendor_name.as_ref());
        self.some("Product", device.product_name.as_ref());
        self.text("Speed", &device.speed);
        self.some("Frames", device.stream.as_ref());
        self.text("Bus id", &device.bus_id);
        self.some("Identity", identity.as_ref().map(|identity| identity.id.to_string()).as_ref());
        self.0.extend(device.size_bytes.map(|bytes| ("Size", plain(format_bytes(bytes)))));
        self.list("Users", device.users.iter().map(|user| &user.user));
        self.list("Waiting", device.waiting.iter().map(|waiting| &waiting.host));
        let labels = notes.labels.iter().take(ROWS_MAX);
        self.0.push(("Labels", in_a_row(labels.map(|(name, value)| html! { (theirs(name)) "=" (theirs(value)) }))));
    }

    fn add_attached(&mut self, device: &AttachmentStatus) {
        self.some("Replaced by", device.replaced_by.as_ref());
        self.text("Here as", &device.at);
        self.0.extend(device.link_lost_s.map(|lost_s| ("Link lost since", plain(span(lost_s)))));
        self.list("Modules", device.modules.iter());
        self.list("Drivers", device.drivers.iter().flatten());
    }
}

fn facts(process: &ProcessStatus, device: &ProcessDevice) -> Markup {
    let mut facts = DeviceFacts::default();
    facts.text("What", device.title());
    facts.text("State", state_of(device));
    facts.some("Why", device.failure().map(|failure| &failure.message));
    facts.text("User", device.user().unwrap_or_default());
    facts.text("For", device.reason().unwrap_or_default());
    facts.text("Mode", device.mode().unwrap_or_default());
    facts.some("Medium", device.medium().map(|medium| &medium.at));
    facts.some("Reservation", device.reservation().map(|reservation| &reservation.state));
    facts.some("Missing", device.reservation().and_then(|reservation| reservation.missing.as_ref()));
    facts.0.extend(device.used_s().map(|used_s| ("Since", plain(span(used_s)))));
    facts.list("Interfaces", device.interfaces().iter());
    device.shared().into_iter().for_each(|shared| facts.add_shared(shared));
    device.attached().into_iter().for_each(|attached| facts.add_attached(attached));
    facts.text("Host", process.host().unwrap_or_default());
    facts.0.push(("Process", html! { (process.pid) ", " (theirs(&process.role)) }));
    html! {
        dl id="facts" {
            @for (what, value) in facts.0.iter().filter(|(_, value)| !value.0.is_empty()) {
                div { dt { (what) } dd { (value) } }
            }
        }
    }
}

/// These with commas between them.
fn in_a_row(all: impl Iterator<Item = Markup>) -> Markup {
    html! { @for (at, one) in all.enumerate() { @if at > 0 { ", " } (one) } }
}

/// A text of this program.
fn plain(text: impl Render) -> Markup {
    html! { (text) }
}

/// What passed, and how fast at present.
fn traffic(status: &CombinedStatus, process: &ProcessStatus, device: &ProcessDevice) -> Markup {
    let mut rows = Vec::new();
    let now = status.rate_of(process, device);
    if let Some(meters) = device.meters() {
        for (what, bytes, rate) in [("From the device", meters.bytes_in, 0), ("To the device", meters.bytes_out, 1)] {
            let rate = now.map(|rates| format!("{}/s", format_bytes(rates[rate]))).unwrap_or_default();
            rows.push(vec![plain(what), plain(format_bytes(bytes)), plain(rate)]);
        }
        for (what, count) in [
            ("Requests", meters.urbs),
            ("Cancelled requests", meters.unlinked),
            ("Requests refused for lack of credit", meters.no_credit),
            ("Port resets", meters.resets),
            ("Requests that the device dropped", meters.lost),
        ] {
            rows.push(vec![plain(what), plain(count), Markup::default()]);
        }
    }
    let counts = device.counts().take(ROWS_MAX);
    rows.extend(counts.map(|(name, count)| vec![theirs(name), plain(count), Markup::default()]));
    let table = table("What passed in the present use", &["What", "So far", "Now"], &rows);
    let drawn = now.map(|[from, to]| vec![format!("all:{from}:{to}")]).unwrap_or_default();
    numbered_section("traffic", "Traffic", &table, None, &drawn)
}

fn links(status: &CombinedStatus, process: &ProcessStatus, device: &ProcessDevice) -> Markup {
    let mut drawn = Vec::new();
    let rows: Vec<_> = device
        .links()
        .iter()
        .take(ROWS_MAX)
        .map(|link| {
            let rates = status.rate_of_link(process, device, link.lane);
            drawn.extend(rates.map(|[received, sent]| format!("{}:{received}:{sent}", link.lane)));
            let bytes = |so_far: u64, at: usize| {
                html! { (format_bytes(so_far)) @if let Some(rates) = rates { ", " (format_bytes(rates[at])) "/s" } }
            };
            vec![
                plain(link.lane),
                plain(if link.is_up { "up" } else { "lost" }),
                plain(span(link.since_s)),
                theirs(&link.peer),
                bytes(link.bytes_in, 0),
                bytes(link.bytes_out, 1),
                plain(link.round_trip_ms.map(|ms| format!("{ms:.2} ms")).unwrap_or_default()),
            ]
        })
        .collect();
    let headings = ["Lane", "State", "Since", "Other end", "Received", "Sent", "Round trip"];
    numbered_section("links", "Links", &table("The links of its session", &headings, &rows), None, &drawn)
}

fn latency(device: &ProcessDevice) -> Markup {
    let Some(latency) = device.latency() else { return numbered_section("latency", "", &html! {}, Some(0), &[]) };
    let Latency { samples, second, all_us, network_us, bus_us, back_end_us } = *latency;
    let stages = [("All", all_us), ("Network", network_us), ("Exporter", bus_us), ("Device", back_end_us)];
    let ms = |us: f64| plain(format!("{:.3} ms", us / 1000.0));
    let rows = stages.map(|(what, spread)| vec![plain(what), ms(spread.p50), ms(spread.p90), ms(spread.p99)]);
    let caption = format!("The latest {samples} requests that were timed");
    let table = table(&caption, &["Stage", "Median", "90th percentile", "99th percentile"], &rows);
    // What is loaded by itself follows this number.
    numbered_section("latency", "Latency", &table, Some(second), &[])
}

fn history(device: &ProcessDevice) -> Markup {
    let uses = device.shared().into_iter().flat_map(|shared| &shared.history).take(ROWS_MAX);
    let rows: Vec<_> = uses
        .map(|PastStatus { user, reason, used_s, ago_s, ended, remark }| {
            let some = |text: &Option<String>| text.as_deref().map(theirs).unwrap_or_default();
            let ago = html! { (span(*ago_s)) " ago" };
            vec![theirs(user), plain(span(*used_s)), ago, theirs(ended), some(reason), some(remark)]
        })
        .collect();
    let headings = ["User", "For", "Ended", "How", "Reason", "Remark"];
    section("history", "History", &table("Former users, the latest first", &headings, &rows))
}

fn events(events: &[Event]) -> Markup {
    let rows: Vec<_> = events
        .iter()
        .map(|Event { at, event, host, how, why, .. }| {
            let some = |text: &Option<String>| text.as_deref().map(theirs).unwrap_or_default();
            vec![theirs(at), theirs(event.as_str()), some(host), some(how), some(why)]
        })
        .collect();
    let headings = ["When", "Event", "Host", "How", "Why"];
    let content = html! {
        (table("As of when this page was loaded, the latest first", &headings, &rows))
        p { "More, of other hosts: " code { (whole(&command("audit", &[]))) } }
    };
    section("events", "What happened", &content)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::known::status::tests::status;

    #[test]
    fn a_device_of_a_process_that_was_restarted_is_found_by_its_name_and_no_other_one_is() {
        let process = |pid: u32, role: &str, names: &[&str]| {
            let devices: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "pid": pid, "role": role, "devices": devices })
        };
        let found = |path: &str, query: &str, processes: &Value| {
            let which = DeviceLocator::of(path, query).unwrap();
            which.find(&status(processes.clone())).map(|(process, _)| process.pid)
        };
        let before = json!([process(7, "daemon", &["disk"]), process(9, "attach", &["disk"])]);
        assert_eq!(found("/device/9", "name=disk", &before), Some(9), "its process has it");
        assert_eq!(found("/device/7", "name=disk&role=daemon", &before), Some(7));
        let after = json!([process(9, "attach", &["disk"]), process(8, "daemon", &["zero", "disk"])]);
        assert_eq!(found("/device/7", "name=disk&role=daemon", &after), Some(8));
        assert_eq!(found("/device/7", "name=zero", &after), Some(8), "an older link, to the only one of that name");
        assert_eq!(found("/device/7", "name=disk", &after), None, "it may be either");
        assert_eq!(found("/device/7", "name=disk&role=share", &after), None);
        assert_eq!(DeviceLocator::of("/device/7", "name=tape").unwrap().pid_in(&status(after)), 7);
    }
}
