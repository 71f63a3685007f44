//! One device: what is known of it, what is done with it, and what can be.

use farbus_io::trust::Scope;
use maud::{Markup, Render, html};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::shell::{command, is_deceptive};
use super::super::status::Status;
use super::descriptors;
use super::devices::notes;
use super::drawing::{Drawing, List, Part, Piece};
use super::forms::Reader;
use super::rows::{icon, state_of};
use super::text::{encoded, span, table, theirs, value_in, whole};
use super::{forms, latency as over_time, operations, picture};
use crate::common::units::format_bytes;

/// The longest query that is read, bytes; the rest of a request is limited before.
pub const QUERY_BYTES_MAX: usize = 8 << 10;
/// Rows of a table of a device: uses, links, hosts that wait.
const ROWS_MAX: usize = 64;

/// Names a device: two processes may have one of the same name.
///
/// A daemon that is restarted is another process. So a device that the process has no more is found by its name: at the
/// daemon, if a link says that it was there, or where it is alone with that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Which {
    pid: u32,
    name: String,
    /// What the reader of its page may do.
    may: Scope,
    /// The role that its process had, if the link says it.
    role: Option<String>,
}

/// What does not change while the device's page is looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// What its process answers to the question for descriptors; null if it does not know them.
    #[serde(default)]
    pub descriptors: Value,
    /// The latest events of it, the latest first.
    #[serde(default)]
    pub events: Vec<Value>,
    /// What its process answers to the question for its latency over time; null if it does not time it.
    #[serde(default)]
    pub latency: Value,
    /// The hosts that can be chosen where one is named.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The USB devices of this machine that can be chosen to be shared, where one is.
    #[serde(default)]
    pub shareable: Vec<Value>,
}

impl Which {
    /// `/device/PID?name=NAME`, or `/device/PID?name=NAME&role=daemon`. A name in a path would be read as a way through
    /// folders.
    pub fn of(path: &str, query: &str) -> Option<Self> {
        Self::with_pid(path.strip_prefix("/device/")?.parse().ok()?, query)
    }

    /// The device of this process that a query names.
    pub fn with_pid(pid: u32, query: &str) -> Option<Self> {
        let query = Some(query).filter(|query| query.len() <= QUERY_BYTES_MAX)?;
        Some(Self { pid, name: value_in(query, "name")?, may: Scope::Own, role: value_in(query, "role") })
    }

    fn find<'s>(&self, status: &'s Status) -> Option<(&'s Value, &'s Value)> {
        let named = || status.devices().filter(|(_, device)| device["name"].as_str() == Some(&self.name));
        if let Some(found) = named().find(|(process, _)| process["pid"].as_u64() == Some(self.pid.into())) {
            return Some(found);
        }
        match &self.role {
            Some(role) => named().find(|(process, _)| process["role"].as_str() == Some(role)),
            None => {
                let mut all = named();
                all.next().filter(|_| all.next().is_none())
            }
        }
    }

    /// The same for somebody who may do no more than this.
    #[must_use]
    pub fn for_scope(self, may: Scope) -> Self {
        Self { may, ..self }
    }

    /// The device as the processes say it, if there is one.
    pub fn device_in<'s>(&self, status: &'s Status) -> Option<&'s Value> {
        self.find(status).map(|(_, device)| device)
    }

    /// The number of the process that has it now.
    pub fn pid_in(&self, status: &Status) -> u32 {
        let found = self.find(status).and_then(|(process, _)| process["pid"].as_u64());
        found.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(self.pid)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Draws the device; without `details`, the parts that change alone.
    pub fn draw(&self, status: &Status, details: Option<&Details>) -> Drawing {
        let found = self.find(status);
        let (process, device) = found.unwrap_or((&Value::Null, &Value::Null));
        let role = self.role.as_deref().map(|role| format!("&role={}", encoded(role))).unwrap_or_default();
        let address = format!("/device/{}?name={}{role}", self.pid, encoded(&self.name));
        let reader = Reader { back: &address, may: self.may };
        let mut parts = notes(status);
        let mut part = |key: &str, html: Markup| parts.push(Part { key: key.to_owned(), html: html.into_string() });
        match found {
            None => part(
                "gone",
                html! {
                    p id="gone" role="alert" {
                        "This process has no such device, or has it no more. " a href="/" { "All devices" }
                    }
                },
            ),
            Some(_) => {
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
            fixed(html! { h1 { (icon(device)) " " (theirs(&self.name)) } }),
            Piece::List(List { id: "device", element: "div", parts }),
        ];
        if let Some(details) = details {
            pieces.push(fixed(forms::hosts(&details.hosts)));
            pieces.push(fixed(plots("rates", "Rates over time")));
            pieces.push(fixed(plots("links", "Rates of its links over time")));
            pieces.push(fixed(self.latency(device, &details.latency)));
            pieces.push(fixed(descriptors::tree(&details.descriptors)));
            pieces.push(fixed(events(&details.events)));
        }
        Drawing { title, is_there: found.is_some(), pieces }
    }

    /// Its latency over time, which the script loads again when there is a further second.
    fn latency(&self, device: &Value, said: &Value) -> Markup {
        let second = device["latency"]["second"].as_u64().unwrap_or_default();
        let role = self.role.as_deref().map(|role| format!("&role={}", encoded(role))).unwrap_or_default();
        let at = format!("/device/{}/latency?name={}{role}", self.pid, encoded(&self.name));
        html! {
            @if said.is_object() {
                (plots("latency", "Latency over time"))
                div id="latency-history" data-live=(at) data-follows="latency" data-shown=(second) { (over_time(said)) }
            }
        }
    }
}

fn fixed(html: Markup) -> Piece {
    Piece::Fixed(html.into_string())
}

/// Where the script draws, once it has something: without it the tables say the same.
fn plots(what: &str, heading: &str) -> Markup {
    html! { section id={ (what) "-plots" } class="plots" hidden { h2 { (heading) } } }
}

/// A heading and what stands below it, as one element; empty without content.
fn section(id: &str, heading: &str, content: &Markup) -> Markup {
    numbered_section(id, heading, content, None, &[])
}

/// The same with what the script follows: a number, and the rates that it draws: of each line `NAME:IN:OUT`, bytes a
/// second.
fn numbered_section(id: &str, heading: &str, content: &Markup, number: Option<u64>, rates: &[String]) -> Markup {
    let is_empty = content.0.is_empty();
    html! {
        section id=(id) data-number=[number] data-rates=[(!rates.is_empty()).then(|| rates.join(" "))] hidden[is_empty] {
            @if !is_empty { h2 { (heading) } (content) }
        }
    }
}

fn facts(process: &Value, device: &Value) -> Markup {
    let mut facts: Vec<(&str, Markup)> = Vec::new();
    let mut text = |what: &'static str, value: &Value| {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            facts.push((what, theirs(text)));
        }
    };
    text("What", &device["title"]);
    text("State", &json!(state_of(device)));
    text("Why", &device["failure"]["message"]);
    text("Why", &device["trouble"]);
    text("Was", &device["another_in_port"]["was"]);
    text("Is", &device["another_in_port"]["is"]);
    text("To type", &device["another_in_port"]["next"]);
    text("User", &device["user"]);
    text("For", &device["reason"]);
    text("Mode", &device["mode"]);
    text("Goes to", &device["successor"]);
    text("Moved to", &device["moved"]["host"]);
    text("Leased by", &device["lease"]["host"]);
    text("Leased until", &device["lease"]["until"]);
    text("Replaced by", &device["replaced_by"]);
    text("Here as", &device["at"]);
    text("Medium", &device["medium"]["at"]);
    text("Place", &device["place"]);
    text("Comment", &device["comment"]);
    text("Ids", &device["ids"]);
    text("Vendor", &device["vendor_name"]);
    text("Product", &device["product_name"]);
    text("Speed", &device["speed"]);
    text("Frames", &device["stream"]);
    text("Bus id", &device["bus_id"]);
    text("Identity", &device["identity"]["id"]);
    text("Reservation", &device["reservation"]["state"]);
    text("Missing", &device["reservation"]["missing"]);
    let spans = [("Since", "used_s"), ("Link lost since", "link_lost_s")];
    facts.extend(spans.iter().filter_map(|(what, name)| Some((*what, plain(span(device[*name].as_f64()?))))));
    facts.extend(device["size_bytes"].as_u64().map(|bytes| ("Size", plain(format_bytes(bytes)))));
    let several = |list: &Value, name: &str| {
        let texts = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|of| if name.is_empty() { of } else { &of[name] }.as_str());
        in_a_row(texts.take(ROWS_MAX).map(theirs))
    };
    let lists = [("Interfaces", "interfaces", ""), ("Users", "users", "user"), ("Waiting", "waiting", "host")];
    for (what, list, name) in lists.into_iter().chain([("Modules", "modules", ""), ("Drivers", "drivers", "")]) {
        facts.push((what, several(&device[list], name)));
    }
    let label = |(name, value): (&String, &Value)| {
        html! { (theirs(name)) "=" (theirs(value.as_str().unwrap_or(""))) }
    };
    let labels = device["labels"].as_object().into_iter().flatten().take(ROWS_MAX).map(label);
    facts.push(("Labels", in_a_row(labels)));
    facts.extend(process["host"].as_str().map(|host| ("Host", theirs(host))));
    let (pid, role) = (process["pid"].as_u64().unwrap_or_default(), process["role"].as_str().unwrap_or_default());
    facts.push(("Process", html! { (pid) ", " (theirs(role)) }));
    html! {
        dl id="facts" {
            @for (what, value) in facts.iter().filter(|(_, value)| !value.0.is_empty()) {
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
fn traffic(status: &Status, process: &Value, device: &Value) -> Markup {
    let count = |name: &str| device["meters"][name].as_u64();
    let mut rows = Vec::new();
    let now = status.rate_of(process, device);
    for (what, name, rate) in [("From the device", "bytes_in", 0), ("To the device", "bytes_out", 1)] {
        if let Some(bytes) = count(name) {
            let rate = now.map(|rates| format!("{}/s", format_bytes(rates[rate]))).unwrap_or_default();
            rows.push(vec![plain(what), plain(format_bytes(bytes)), plain(rate)]);
        }
    }
    for (what, name) in [
        ("Requests", "urbs"),
        ("Cancelled requests", "unlinked"),
        ("Requests refused for lack of credit", "no_credit"),
        ("Port resets", "resets"),
        ("Requests that the device dropped", "lost"),
    ] {
        rows.extend(count(name).map(|count| vec![plain(what), plain(count), Markup::default()]));
    }
    let counts = device["counts"].as_object().into_iter().flatten().take(ROWS_MAX);
    rows.extend(counts.filter_map(|(name, count)| Some(vec![theirs(name), plain(count.as_u64()?), Markup::default()])));
    let table = table("What passed in the present use", &["What", "So far", "Now"], &rows);
    let drawn = now.map(|[from, to]| vec![format!("all:{from}:{to}")]).unwrap_or_default();
    numbered_section("traffic", "Traffic", &table, None, &drawn)
}

fn links(status: &Status, process: &Value, device: &Value) -> Markup {
    let links = device["links"]["each"].as_array().into_iter().flatten().take(ROWS_MAX);
    let mut drawn = Vec::new();
    let rows: Vec<_> = links
        .map(|link| {
            let lane = link["lane"].as_u64().unwrap_or_default();
            let rates = status.rate_of_link(process, device, lane);
            drawn.extend(rates.map(|[received, sent]| format!("{lane}:{received}:{sent}")));
            let bytes = |name: &str, at: usize| {
                let so_far = link[name].as_u64().map(format_bytes).unwrap_or_default();
                html! { (so_far) @if let Some(rates) = rates { ", " (format_bytes(rates[at])) "/s" } }
            };
            vec![
                plain(lane),
                plain(if link["is_up"] == true { "up" } else { "lost" }),
                plain(link["since_s"].as_f64().map(span).unwrap_or_default()),
                theirs(link["peer"].as_str().unwrap_or_default()),
                bytes("bytes_in", 0),
                bytes("bytes_out", 1),
                plain(link["round_trip_ms"].as_f64().map(|ms| format!("{ms:.2} ms")).unwrap_or_default()),
            ]
        })
        .collect();
    let headings = ["Lane", "State", "Since", "Other end", "Received", "Sent", "Round trip"];
    numbered_section("links", "Links", &table("The links of its session", &headings, &rows), None, &drawn)
}

fn latency(device: &Value) -> Markup {
    let latency = &device["latency"];
    let stages = [("All", "all_us"), ("Network", "network_us"), ("Exporter", "bus_us"), ("Device", "back_end_us")];
    let ms = |stage: &str, percentile: &str| {
        latency[stage][percentile].as_f64().map(|us| format!("{:.3} ms", us / 1000.0)).unwrap_or_default()
    };
    let rows = stages.iter().filter(|(_, stage)| latency[*stage].is_object());
    let rows: Vec<_> = rows
        .map(|(what, stage)| {
            let spread = ["p50", "p90", "p99"].map(|percentile| ms(stage, percentile));
            std::iter::once(plain(what)).chain(spread.into_iter().map(plain)).collect()
        })
        .collect();
    let caption = format!("The latest {} requests that were timed", latency["samples"].as_u64().unwrap_or_default());
    let table = table(&caption, &["Stage", "Median", "90th percentile", "99th percentile"], &rows);
    // What is loaded by itself follows this number.
    let second = latency["second"].as_u64().unwrap_or_default();
    numbered_section("latency", "Latency", &table, Some(second), &[])
}

fn history(device: &Value) -> Markup {
    let uses = device["history"].as_array().into_iter().flatten().take(ROWS_MAX);
    let rows: Vec<_> = uses
        .map(|past| {
            let text = |name: &str| past[name].as_str().map(theirs).unwrap_or_default();
            let time = |name: &str| past[name].as_f64().map(span).unwrap_or_default();
            let (used, ago) = (plain(time("used_s")), html! { (time("ago_s")) " ago" });
            vec![text("user"), used, ago, text("ended"), text("reason"), text("remark")]
        })
        .collect();
    let headings = ["User", "For", "Ended", "How", "Reason", "Remark"];
    section("history", "History", &table("Former users, the latest first", &headings, &rows))
}

fn events(events: &[Value]) -> Markup {
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            let text = |name: &str| event[name].as_str().map(theirs).unwrap_or_default();
            vec![text("at"), text("event"), text("host"), text("how"), text("why")]
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
    use serde_json::json;

    use super::super::super::status::tests::status;
    use super::*;

    #[test]
    fn a_device_of_a_process_that_was_restarted_is_found_by_its_name_and_no_other_one_is() {
        let process = |pid: u32, role: &str, names: &[&str]| {
            let devices: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "pid": pid, "role": role, "devices": devices })
        };
        let found = |path: &str, query: &str, processes: &Value| {
            let which = Which::of(path, query).unwrap();
            which.find(&status(processes.clone())).map(|(process, _)| process["pid"].as_u64().unwrap())
        };
        let before = json!([process(7, "daemon", &["disk"]), process(9, "attach", &["disk"])]);
        assert_eq!(found("/device/9", "name=disk", &before), Some(9), "its process has it");
        assert_eq!(found("/device/7", "name=disk&role=daemon", &before), Some(7));
        let after = json!([process(9, "attach", &["disk"]), process(8, "daemon", &["zero", "disk"])]);
        assert_eq!(found("/device/7", "name=disk&role=daemon", &after), Some(8));
        assert_eq!(found("/device/7", "name=zero", &after), Some(8), "an older link, to the only one of that name");
        assert_eq!(found("/device/7", "name=disk", &after), None, "it may be either");
        assert_eq!(found("/device/7", "name=disk&role=share", &after), None);
        assert_eq!(Which::of("/device/7", "name=tape").unwrap().pid_in(&status(after)), 7);
    }
}
