//! The network of hosts, drawn: who uses whose devices, and how fast data pass between them.

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::TAU;

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::units::format_bytes;
use maud::{Markup, html};

use crate::known::status::CombinedStatus;
use crate::view::devices::{notes, part};
use crate::view::drawing::{DrawingPiece, LiveList, ViewDrawing};
use crate::view::rows::HERE;
use crate::view::text::{table, theirs, whole};

/// Hosts and connections that are drawn and listed.
const HOSTS_MAX: usize = 40;
const CONNECTIONS_MAX: usize = 100;
/// Characters of a host's name in the picture, and of one at all.
const NAME_CHARS_MAX: usize = 18;
const HOST_CHARS_MAX: usize = 120;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;

/// What one host has of another.
#[derive(Clone, Debug, Default, PartialEq)]
struct HostConnection {
    /// As the process says that shares the devices.
    of_exporter: TrafficFlow,
    /// As the process says that has them attached.
    of_importer: TrafficFlow,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct TrafficFlow {
    devices: usize,
    bytes_per_s: Option<u64>,
    round_trip_ms: Option<f64>,
    lost: usize,
}

impl TrafficFlow {
    fn add(&mut self, status: &CombinedStatus, process: &ProcessStatus, device: &ProcessDevice) {
        self.devices += 1;
        if let Some([from, to]) = status.rate_of(process, device) {
            *self.bytes_per_s.get_or_insert(0) += from.saturating_add(to);
        }
        for link in device.links() {
            self.lost += usize::from(!link.is_up);
            self.round_trip_ms = match (self.round_trip_ms, link.round_trip_ms) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            };
        }
    }
}

impl HostConnection {
    /// Both ends may say it, if both are this user's: it is the same.
    fn seen(&self) -> &TrafficFlow {
        if self.of_importer.devices >= self.of_exporter.devices { &self.of_importer } else { &self.of_exporter }
    }
}

/// Connections by the host that has the devices and the host that uses them.
type ConnectionMap = BTreeMap<(String, String), HostConnection>;

fn connections(status: &CombinedStatus) -> ConnectionMap {
    let mut all = ConnectionMap::new();
    for (process, device) in status.devices() {
        let own = process.host().map_or(HERE.to_owned(), shortened);
        match device.state() {
            "in use" => {
                let users = device.shared().map(|shared| shared.users.as_slice()).unwrap_or_default();
                let only = device.user().filter(|_| users.is_empty());
                let users = users.iter().map(|user| user.user.as_str()).chain(only);
                for user in users.map(host_of).take(HOSTS_MAX) {
                    all.entry((own.clone(), user)).or_default().of_exporter.add(status, process, device);
                }
            }
            "attached" | "link lost" | "held" | "following" => {
                let target = device.title();
                let exporter = host_of(target.rsplit_once('/').map_or(target, |(host, _)| host));
                all.entry((exporter, own)).or_default().of_importer.add(status, process, device);
            }
            _ => {}
        }
    }
    let own = own_host(status);
    for (host, device) in status.lab.devices().filter(|(_, device)| device.state == "in use").take(CONNECTIONS_MAX) {
        let Some(user) = device.user.as_deref() else { continue };
        let user = if user == status.lab.own_name { own.clone() } else { host_of(user) };
        // What is attached here is known better by the process that has it.
        if user != own {
            all.entry((shortened(&host.name), user)).or_default().of_exporter.devices += 1;
        }
    }
    all
}

/// This host, as its daemon calls it.
fn own_host(status: &CombinedStatus) -> String {
    let named = status.processes.iter().find_map(ProcessStatus::host);
    named.map_or(HERE.to_owned(), shortened)
}

/// The hosts that are drawn: those that use something or are used, and those that are paired with this one.
fn hosts<'a>(all: &'a ConnectionMap, idle: &'a BTreeSet<String>) -> Vec<&'a str> {
    let connected = all.keys().flat_map(|(from, to)| [from.as_str(), to.as_str()]);
    let mut hosts: Vec<&str> = connected.collect::<BTreeSet<_>>().into_iter().collect();
    let more: Vec<&str> = idle.iter().map(String::as_str).filter(|host| !hosts.contains(host)).collect();
    hosts.extend(more);
    hosts.truncate(HOSTS_MAX);
    hosts.sort_unstable();
    hosts
}

/// The paired hosts, and this one if there are any.
fn idle(status: &CombinedStatus) -> BTreeSet<String> {
    let paired = status.lab.hosts.iter().filter(|host| host.paired.is_some());
    let mut idle: BTreeSet<String> = paired.map(|host| shortened(&host.name)).take(HOSTS_MAX).collect();
    if !idle.is_empty() {
        idle.insert(own_host(status));
    }
    idle
}

/// The host in `NAME (ADDRESS)`, `HOST:PORT` or `HOST`, as people call it.
fn host_of(title: &str) -> String {
    let name = title.split(" (").next().unwrap_or(title);
    let host = match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':') => host,
        Some((host, _)) if host.ends_with(']') => host,
        _ => name,
    };
    let is_here = matches!(host, "127.0.0.1" | "localhost" | "[::1]" | "::1" | "") || host.starts_with("unix");
    if is_here { HERE.to_owned() } else { shortened(host) }
}

fn shortened(host: &str) -> String {
    host.chars().take(HOST_CHARS_MAX).collect()
}

/// Draws the hosts and what passes between them.
pub fn draw(status: &CombinedStatus) -> ViewDrawing {
    let all = connections(status);
    let mut parts = notes(status);
    let idle = idle(status);
    let network = html! {
        @if all.is_empty() && idle.is_empty() {
            p id="network" {
                "No host uses a device here, and none is attached. Try: " code { "farbus attach HOST/DEVICE" }
            }
        } @else {
            div id="network" { (picture(&all, &idle)) (listed(&all)) }
        }
    };
    parts.push(part("network", network));
    let pieces = vec![
        DrawingPiece::Fixed("<h1>Network</h1>\n".into()),
        DrawingPiece::List(LiveList { id: "hosts", element: "div", parts }),
    ];
    ViewDrawing { title: "Network".into(), is_there: true, pieces }
}

fn rate_of(connection: &HostConnection) -> String {
    connection.seen().bytes_per_s.map(|rate| format!("{}/s", format_bytes(rate))).unwrap_or_default()
}

/// The hosts on an ellipse, in the order of their names, and a line for each connection.
fn picture(all: &ConnectionMap, idle: &BTreeSet<String>) -> Markup {
    let hosts = hosts(all, idle);
    let position = |host: &str| {
        let at = hosts.iter().position(|known| *known == host)?;
        let angle = TAU * (at as f64 / hosts.len() as f64 - 0.25);
        Some((WIDTH / 2.0 + 230.0 * angle.cos(), HEIGHT / 2.0 + 150.0 * angle.sin()))
    };
    html! {
        div class="picture" tabindex="0" role="group" aria-label="Picture of the network" {
            svg class="network" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img"
                aria-labelledby="network-title network-what" {
                title id="network-title" { "The network of hosts" }
                desc id="network-what" {
                    (hosts.len()) " hosts and " (all.len()) " connections. The table below has each connection."
                }
                @for ((from, to), connection) in all.iter().take(CONNECTIONS_MAX) {
                    @if let (Some(from), Some(to)) = (position(from), position(to)) { (line(from, to, connection)) }
                }
                @for host in &hosts {
                    @if let Some((x, y)) = position(host) {
                        rect class="host" x=(rounded(x - 72.0)) y=(rounded(y - 17.0)) width="144" height="34" rx="6" {}
                        text x=(rounded(x)) y=(rounded(y + 5.0)) text-anchor="middle" {
                            (whole(&host.chars().take(NAME_CHARS_MAX).collect::<String>()))
                        }
                    }
                }
            }
        }
    }
}

fn rounded(at: f64) -> String {
    format!("{at:.0}")
}

/// The line of a connection between two places, with its rate.
fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), connection: &HostConnection) -> Markup {
    let state = if connection.seen().lost > 0 { "lost" } else { "up" };
    // Lines of both directions between two hosts are apart, and so are their labels.
    let (dx, dy) = (y2 - y1, x1 - x2);
    let length = dx.hypot(dy).max(1.0);
    let (mx, my) = ((x1 + x2) / 2.0 + 26.0 * dx / length, (y1 + y2) / 2.0 + 26.0 * dy / length);
    let (bend_x, bend_y) = (2.0 * mx - (x1 + x2) / 2.0, 2.0 * my - (y1 + y2) / 2.0);
    html! {
        path class=(state) d=(format!("M{x1:.0} {y1:.0} Q{bend_x:.0} {bend_y:.0} {x2:.0} {y2:.0}")) {}
        text class="rate" x=(rounded(mx)) y=(rounded(my)) text-anchor="middle" { (rate_of(connection)) }
    }
}

fn listed(all: &ConnectionMap) -> Markup {
    let row = |((from, to), connection): (&(String, String), &HostConnection)| {
        let flow = connection.seen();
        vec![
            theirs(from),
            theirs(to),
            html! { (flow.devices) },
            html! { (rate_of(connection)) },
            html! { @if let Some(ms) = flow.round_trip_ms { (format!("{ms:.2} ms")) } },
            html! { @if flow.lost > 0 { (flow.lost) " links lost" } @else { "up" } },
        ]
    };
    let rows: Vec<_> = all.iter().take(CONNECTIONS_MAX).map(row).collect();
    let headings = ["Has the devices", "Uses them", "Devices", "Rate", "Round trip", "Links"];
    let left_out = all.len().saturating_sub(CONNECTIONS_MAX);
    html! {
        (table("Who uses whose devices", &headings, &rows))
        @if left_out > 0 { p { "Further connections: " (left_out) } }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::known::lab::tests::{host, lab_device};
    use crate::known::lab::{LabHost, LabInventory};
    use crate::known::status::tests::status;

    #[test]
    fn connection_that_both_ends_tell_is_drawn_once() {
        let links = json!({ "up": 1, "each": [{ "lane": 0, "is_up": true, "round_trip_ms": 0.5 }] });
        let shared = json!({ "name": "disk", "state": "in use", "user": "desk (127.0.0.1:5000)", "links": links });
        let attached = json!({ "name": "disk", "title": "lab3/disk", "state": "attached", "links": links });
        let all = connections(&status(json!([
            { "pid": 1, "role": "daemon", "host": "lab3", "config": "/c", "takes": [], "devices": [shared] },
            { "pid": 2, "role": "daemon", "host": "desk", "config": "/c", "takes": [], "devices": [attached] },
        ])));
        assert_eq!(all.len(), 1, "{all:?}");
        let connection = &all[&("lab3".to_owned(), "desk".to_owned())];
        assert_eq!((connection.seen().devices, connection.seen().round_trip_ms), (1, Some(0.5)));
        let html = html! { (picture(&all, &BTreeSet::new())) (listed(&all)) }.into_string();
        assert_eq!((html.matches("<path").count(), html.matches("<rect").count()), (1, 2), "{html}");
    }

    #[test]
    fn paired_hosts_are_drawn_that_use_nothing_and_so_is_what_others_use_of_each_other() {
        let paired = |name: &str, devices| LabHost { paired: Some("2026".into()), ..host(name, devices) };
        let board = lab_device(json!({ "name": "board", "state": "in use", "user": "rack" }));
        let mut status = status(json!([]));
        let hosts = vec![paired("lab3", vec![board]), paired("idle", Vec::new())];
        status.lab = Arc::new(LabInventory { hosts, ..LabInventory::default() });
        let all = connections(&status);
        assert_eq!(all.keys().collect::<Vec<_>>(), [&("lab3".to_owned(), "rack".to_owned())]);
        let html = picture(&all, &idle(&status)).into_string();
        assert_eq!((html.matches("<path").count(), html.matches("<rect").count()), (1, 4), "{html}");
        assert!(html.contains(">idle<") && html.contains(HERE));
    }

    #[test]
    fn hosts_are_called_as_people_call_them() {
        for (title, name) in [
            ("desk (10.0.0.7:40000)", "desk"),
            ("10.0.0.7:40000", "10.0.0.7"),
            ("[fe80::1]:3240", "[fe80::1]"),
            ("lab3", "lab3"),
            ("127.0.0.1:3240", HERE),
            ("unix:/run/x.sock", HERE),
        ] {
            assert_eq!(host_of(title), name, "{title}");
        }
    }

    #[test]
    fn thousand_hosts_with_hostile_names_make_a_picture_of_bounded_size() {
        let device = |n: usize| {
            let user = format!("<script>{n}{}", "x".repeat(5000));
            json!({ "name": "a", "state": "in use", "user": user })
        };
        let devices: Vec<_> = (0..1000).map(device).collect();
        let all = connections(&status(json!([{ "pid": 1, "role": "share", "devices": devices }])));
        let html = html! { (picture(&all, &BTreeSet::new())) (listed(&all)) }.into_string();
        assert!(html.len() < 128 << 10 && !html.contains("<script>"), "{}", html.len());
        assert!(html.contains("Further connections: 900"));
    }
}
