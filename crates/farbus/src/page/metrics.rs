//! The figures for Prometheus, in its text format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::status::Status;

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Devices that have series of their own; further ones are only counted.
const DEVICES_MAX: usize = 1000;
/// Characters of a label's value.
const LABEL_CHARS_MAX: usize = 128;

/// One device's figures. Devices of one name and role are one series: process ids come and go.
#[derive(Default)]
struct Figures {
    in_use: u64,
    waiting: u64,
    urbs: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// The figures of all processes.
pub fn metrics(status: &Status) -> String {
    let mut roles: BTreeMap<&str, u64> = BTreeMap::new();
    for process in &status.processes {
        *roles.entry(role_of(process)).or_default() += 1;
    }
    let mut devices: BTreeMap<(&str, String), Figures> = BTreeMap::new();
    let mut left_out = 0;
    for (process, device) in status.devices() {
        let key = (role_of(process), label(device["name"].as_str().unwrap_or_default()));
        if devices.len() >= DEVICES_MAX && !devices.contains_key(&key) {
            left_out += 1;
            continue;
        }
        let figures = devices.entry(key).or_default();
        figures.in_use |= u64::from(matches!(device["state"].as_str(), Some("in use" | "attached")));
        figures.waiting += device["waiting"].as_array().map_or(0, Vec::len) as u64;
        let meter = |name: &str| device["meters"][name].as_u64().unwrap_or(0);
        figures.urbs = figures.urbs.saturating_add(meter("urbs"));
        figures.bytes_in = figures.bytes_in.saturating_add(meter("bytes_in"));
        figures.bytes_out = figures.bytes_out.saturating_add(meter("bytes_out"));
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
    head(&mut out, "farbus_devices_left_out", "gauge", "Devices that have no series of their own here.");
    let _ = writeln!(out, "farbus_devices_left_out {left_out}");
    type Read = fn(&Figures) -> u64;
    let series: [(&str, &str, &str, Read); 5] = [
        ("farbus_device_in_use", "gauge", "1 while the device is used.", |of| of.in_use),
        ("farbus_device_waiting_hosts", "gauge", "Hosts that wait for the device.", |of| of.waiting),
        // They begin again with each use: rate() sees that as a reset.
        ("farbus_device_urbs_total", "counter", "Requests answered in the present use.", |of| of.urbs),
        ("farbus_device_in_bytes_total", "counter", "Bytes from the device in the present use.", |of| of.bytes_in),
        ("farbus_device_out_bytes_total", "counter", "Bytes to the device in the present use.", |of| of.bytes_out),
    ];
    for (name, kind, help, read) in series {
        head(&mut out, name, kind, help);
        for ((role, device), figures) in &devices {
            let _ = writeln!(out, "{name}{{role=\"{role}\",device=\"{device}\"}} {}", read(figures));
        }
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The role, if it is one that this version knows: a label has few values.
fn role_of(process: &Value) -> &'static str {
    let said = process["role"].as_str().unwrap_or_default();
    ["share", "attach", "daemon", "nbd", "pipe", "run"].into_iter().find(|role| *role == said).unwrap_or("other")
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
    use serde_json::json;

    use super::super::status::tests::status;
    use super::*;

    #[test]
    fn names_of_devices_cannot_add_series() {
        let name = "a\"} 1\nevil 7\n\\";
        let text = metrics(&status(json!([{ "role": "share", "devices": [{ "name": name, "state": "in use" }] }])));
        assert!(!text.lines().any(|line| line.starts_with("evil")), "{text}");
        assert!(text.contains(r#"farbus_device_in_use{role="share",device="a\"} 1\nevil 7\n\\"} 1"#), "{text}");
    }

    #[test]
    fn a_thousand_devices_have_series_and_the_rest_are_counted() {
        let many: Vec<_> = (0..1500).map(|n| json!({ "name": format!("{n}{}", "x".repeat(4000)) })).collect();
        let text = metrics(&status(json!([{ "role": "x\"y", "devices": many }])));
        assert_eq!(text.matches("farbus_device_in_use{role=\"other\"").count(), DEVICES_MAX);
        assert!(text.contains("\nfarbus_devices_left_out 500\n"), "counted");
        assert!(text.len() < 2 << 20, "{}", text.len());
    }
}
