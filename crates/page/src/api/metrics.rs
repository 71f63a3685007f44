//! The figures for Prometheus, in its text format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::session::Latency;

use crate::known::status::CombinedStatus;

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Devices that have series of their own; further ones are only counted.
const DEVICES_MAX: usize = 1000;
/// Characters of a label's value.
const LABEL_CHARS_MAX: usize = 128;

/// Stages of a request, as a label names them.
const STAGES: [&str; 4] = ["all", "network", "exporter", "device"];
/// Percentiles of a stage, the same.
const PERCENTILES: [&str; 2] = ["50", "99"];

/// One device's figures. Devices of one name and role are one series: process ids come and go.
#[derive(Default)]
struct DeviceFigures {
    in_use: u64,
    waiting: u64,
    leased: u64,
    booked: u64,
    urbs: u64,
    bytes_in: u64,
    bytes_out: u64,
    resets: u64,
    lost: u64,
    links: Option<LinkFigures>,
    /// Microseconds, by stage and percentile; the longest, if there are several devices.
    latency_us: [[Option<f64>; PERCENTILES.len()]; STAGES.len()],
}

/// The figures of a device's links.
#[derive(Clone, Copy, Default)]
struct LinkFigures {
    up: u64,
    lost: u64,
    replaced: u64,
    round_trip_ms: Option<f64>,
}

impl DeviceFigures {
    fn add(&mut self, device: &ProcessDevice) {
        self.in_use |= u64::from(matches!(device.state(), "in use" | "attached"));
        self.waiting += device.waiting().len() as u64;
        self.leased |= u64::from(device.lease().is_some());
        self.booked += device.booked().len() as u64;
        let meters = device.meters().copied().unwrap_or_default();
        for (sum, more) in [
            (&mut self.urbs, meters.urbs),
            (&mut self.bytes_in, meters.bytes_in),
            (&mut self.bytes_out, meters.bytes_out),
            (&mut self.resets, meters.resets),
            (&mut self.lost, meters.lost),
        ] {
            *sum = sum.saturating_add(more);
        }
        for link in device.links() {
            let links = self.links.get_or_insert_default();
            links.up += u64::from(link.is_up);
            links.lost += u64::from(!link.is_up);
            links.replaced = links.replaced.saturating_add(link.replaced);
            links.round_trip_ms = longer(links.round_trip_ms, link.round_trip_ms);
        }
        let Some(&Latency { all_us, network_us, bus_us, back_end_us, .. }) = device.latency() else { return };
        for (stage, kept) in [all_us, network_us, bus_us, back_end_us].into_iter().zip(&mut self.latency_us) {
            for (percentile, kept) in [stage.p50, stage.p99].into_iter().zip(kept) {
                *kept = longer(*kept, Some(percentile));
            }
        }
    }
}

/// The longer of two times, of which neither may be known.
fn longer(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

/// The figures of all processes, and how many streams of events the process of the page has that answers.
pub fn metrics(status: &CombinedStatus, streams: usize) -> String {
    let mut roles: BTreeMap<&str, u64> = BTreeMap::new();
    for process in &status.processes {
        *roles.entry(role_of(process)).or_default() += 1;
    }
    let mut devices: BTreeMap<(&str, String), DeviceFigures> = BTreeMap::new();
    let mut left_out = 0;
    for (process, device) in status.devices() {
        let key = (role_of(process), label(device.name()));
        if devices.len() >= DEVICES_MAX && !devices.contains_key(&key) {
            left_out += 1;
            continue;
        }
        devices.entry(key).or_default().add(device);
    }
    let mut out = String::new();
    head(&mut out, "farbus_build_info", "gauge", "The version of farbus that serves this page.");
    let _ = writeln!(out, "farbus_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    head(&mut out, "farbus_processes", "gauge", "Processes of this user that said what they have.");
    for (role, count) in roles {
        let _ = writeln!(out, "farbus_processes{{role=\"{role}\"}} {count}");
    }
    head(&mut out, "farbus_processes_silent", "gauge", "Processes of this user that gave no status.");
    let _ = writeln!(out, "farbus_processes_silent {}", status.silent);
    head(&mut out, "farbus_ready", "gauge", "1 if the processes of this user can be asked, as /readyz says.");
    let _ = writeln!(out, "farbus_ready {}", u8::from(status.failure.is_none()));
    head(&mut out, "farbus_devices_left_out", "gauge", "Devices that have no series of their own here.");
    let _ = writeln!(out, "farbus_devices_left_out {left_out}");
    head(&mut out, "farbus_page_event_streams", "gauge", "Streams of events at the process of the page that answers.");
    let _ = writeln!(out, "farbus_page_event_streams {streams}");
    type Read = fn(&DeviceFigures) -> Option<f64>;
    #[allow(clippy::cast_precision_loss, reason = "Prometheus has numbers of this type alone")]
    fn count(count: u64) -> Option<f64> {
        Some(count as f64)
    }
    let series: [(&str, &str, &str, Read); 13] = [
        ("farbus_device_in_use", "gauge", "1 while the device is used.", |of| count(of.in_use)),
        ("farbus_device_waiting_hosts", "gauge", "Hosts that wait for the device.", |of| count(of.waiting)),
        ("farbus_device_leased", "gauge", "1 while a host has a lease of the device.", |of| count(of.leased)),
        ("farbus_device_booked_leases", "gauge", "Leases of the device ahead of time.", |of| count(of.booked)),
        // They begin again with each use: rate() sees that as a reset.
        ("farbus_device_urbs_total", "counter", "Requests answered in the present use.", |of| count(of.urbs)),
        ("farbus_device_in_bytes_total", "counter", "Bytes from the device in the present use.", |of| {
            count(of.bytes_in)
        }),
        ("farbus_device_out_bytes_total", "counter", "Bytes to the device in the present use.", |of| {
            count(of.bytes_out)
        }),
        ("farbus_device_resets_total", "counter", "Port resets in the present use.", |of| count(of.resets)),
        ("farbus_device_lost_urbs_total", "counter", "Requests that the device dropped in the present use.", |of| {
            count(of.lost)
        }),
        ("farbus_device_links_up", "gauge", "Links of the device's session that are up.", |of| count(of.links?.up)),
        ("farbus_device_links_lost", "gauge", "Links of the device's session that are lost.", |of| {
            count(of.links?.lost)
        }),
        ("farbus_device_links_replaced_total", "counter", "Links that were replaced in the device's session.", |of| {
            count(of.links?.replaced)
        }),
        ("farbus_device_link_round_trip_seconds", "gauge", "The longest round trip of the session's links.", |of| {
            Some(of.links?.round_trip_ms? / 1e3)
        }),
    ];
    for (name, kind, help, read) in series {
        head(&mut out, name, kind, help);
        for ((role, device), figures) in &devices {
            if let Some(number) = read(figures) {
                let _ = writeln!(out, "{name}{{role=\"{role}\",device=\"{device}\"}} {number}");
            }
        }
    }
    // A percentile of this size is none of a summary's: there is no count of all requests with their sum.
    let (name, help) = ("farbus_device_latency_seconds", "How long the latest requests took, by stage and percentile.");
    head(&mut out, name, "gauge", help);
    for ((role, device), figures) in &devices {
        for (stage, kept) in STAGES.iter().zip(&figures.latency_us) {
            for (percentile, us) in PERCENTILES.iter().zip(kept) {
                let Some(us) = us else { continue };
                let labels =
                    format!("role=\"{role}\",device=\"{device}\",stage=\"{stage}\",percentile=\"{percentile}\"");
                let _ = writeln!(out, "{name}{{{labels}}} {}", us / 1e6);
            }
        }
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The role, if it is one that this version knows: a label has few values.
fn role_of(process: &ProcessStatus) -> &'static str {
    let roles = ["share", "attach", "daemon", "nbd", "pipe", "run"];
    roles.into_iter().find(|role| *role == process.role).unwrap_or("other")
}

/// The value of a label, as the format writes it.
fn label(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(LABEL_CHARS_MAX) {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
pub mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use serde_json::{Value, json};

    use super::*;
    use crate::known::status::tests::status;

    #[test]
    fn names_of_devices_cannot_add_series() {
        let name = "a\"} 1\nevil 7\n\\";
        let text = metrics(&status(json!([{ "role": "share", "devices": [{ "name": name, "state": "in use" }] }])), 0);
        assert!(!text.lines().any(|line| line.starts_with("evil")), "{text}");
        assert!(text.contains(r#"farbus_device_in_use{role="share",device="a\"} 1\nevil 7\n\\"} 1"#), "{text}");
    }

    #[test]
    fn a_thousand_devices_have_series_and_the_rest_are_counted() {
        let many: Vec<_> = (0..1500).map(|n| json!({ "name": format!("{n}{}", "x".repeat(4000)) })).collect();
        let text = metrics(&status(json!([{ "role": "x\"y", "devices": many }])), 0);
        assert_eq!(text.matches("farbus_device_in_use{role=\"other\"").count(), DEVICES_MAX);
        assert!(text.contains("\nfarbus_devices_left_out 500\n"), "counted");
        assert!(text.len() < 2 << 20, "{}", text.len());
    }

    /// A device of this name with all figures that there are.
    fn whole(name: &str) -> Value {
        let times = json!({ "p50": 1234.5, "p90": 1.0, "p99": 98765.5 });
        json!({
            "name": name, "state": "attached",
            "meters": { "urbs": 7, "bytes_in": u64::MAX, "bytes_out": 1, "resets": 2, "lost": 3 },
            "links": { "up": 1, "each": [
                { "is_up": true, "replaced": 2, "round_trip_ms": 0.25 }, { "is_up": false, "replaced": 1 },
            ] },
            "latency": { "all_us": times, "network_us": times, "bus_us": times, "back_end_us": times },
        })
    }

    #[test]
    fn links_latency_and_leases_of_a_device_have_figures() {
        let leased = json!({ "name": "disk", "bus_id": "1-1", "waiting": [{}, {}], "lease": {}, "booked": [{}] });
        let devices = [whole("disk"), leased, json!({ "name": "zero" })];
        let text = metrics(&status(json!([{ "role": "attach", "devices": devices }])), 5);
        for line in [
            r#"farbus_device_leased{role="attach",device="disk"} 1"#,
            r#"farbus_device_booked_leases{role="attach",device="disk"} 1"#,
            r#"farbus_device_resets_total{role="attach",device="disk"} 2"#,
            r#"farbus_device_lost_urbs_total{role="attach",device="disk"} 3"#,
            r#"farbus_device_links_up{role="attach",device="disk"} 1"#,
            r#"farbus_device_links_lost{role="attach",device="disk"} 1"#,
            r#"farbus_device_links_replaced_total{role="attach",device="disk"} 3"#,
            r#"farbus_device_link_round_trip_seconds{role="attach",device="disk"} 0.00025"#,
            r#"farbus_device_latency_seconds{role="attach",device="disk",stage="all",percentile="50"} 0.0012345"#,
            r#"farbus_device_latency_seconds{role="attach",device="disk",stage="device",percentile="99"} 0.0987655"#,
            "farbus_page_event_streams 5",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
        }
        assert!(!text.contains("links_up{role=\"attach\",device=\"zero\""), "it has no session");
    }

    #[test]
    fn all_figures_of_a_thousand_devices_with_long_names_are_fewer_than_an_answer_has_bytes() {
        let many: Vec<Value> = (0..1500).map(|n| whole(&format!("{n:04}{}", "\"".repeat(4000)))).collect();
        let text = metrics(&status(json!([{ "role": "daemon", "devices": many }])), 0);
        assert!(text.len() < 8 << 20, "{}", text.len());
    }

    #[test]
    fn promtool_finds_nothing_wrong_with_figures_of_devices_with_hostile_names() {
        let hostile =
            ["a\"} 1\nevil 7\n\\", "\r\t\u{0}\u{1b}[2J", "\u{202e}\u{feff}\u{10ffff}", "", "{}", "# HELP x", " "];
        let devices: Vec<Value> = hostile.iter().map(|name| whole(name)).collect();
        let text = metrics(&status(json!([{ "role": "attach", "devices": devices }])), 1);
        assert_eq!(text.matches("\nfarbus_device_in_use{").count(), hostile.len(), "each has a line");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut promtool) = promtool.spawn() else {
            println!("skipped: there is no promtool");
            return;
        };
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}
