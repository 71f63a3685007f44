//! A device's descriptors as a tree: configurations, interfaces and their settings, endpoints.

use std::fmt::Write;

use serde_json::Value;

use super::text::escaped;
use crate::common::units::format_bytes;

/// Elements of one level of the tree. A device has at most 32 endpoints in a setting; a configuration of 64 KiB could
/// have thousands of settings.
const ENTRIES_MAX: usize = 64;

/// The tree; empty if nothing is known.
pub fn tree(descriptors: &Value) -> String {
    if !descriptors.is_object() {
        return String::new();
    }
    let text = |name: &str| descriptors[name].as_str().map(escaped).unwrap_or_default();
    let mut out = format!(
        "<section id=\"descriptors\"><h2>Descriptors</h2>\n<ul class=\"tree\">\n<li>USB {}, device release {}, class {}, \
         {} bytes in a control packet",
        text("usb"),
        text("release"),
        text("class"),
        descriptors["packet_bytes_max"].as_u64().unwrap_or_default()
    );
    for (what, name) in [("manufacturer", "manufacturer"), ("product", "product"), ("serial number", "serial")] {
        if descriptors[name].is_string() {
            let _ = write!(out, "<br>{what}: {}", text(name));
        }
    }
    out.push_str("\n<ul>\n");
    for configuration in entries(&descriptors["configurations"]) {
        let number = configuration["value"].as_u64().unwrap_or_default();
        let _ =
            write!(out, "<li>Configuration {number}: up to {} mA", configuration["current_ma"].as_u64().unwrap_or(0));
        if configuration["is_self_powered"] == true {
            out.push_str(", self-powered");
        }
        out.push_str("\n<ul>\n");
        entries(&configuration["interfaces"]).for_each(|interface| write_interface(&mut out, interface));
        out.push_str("</ul></li>\n");
    }
    out.push_str("</ul></li>\n</ul></section>\n");
    out
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().take(ENTRIES_MAX)
}

fn write_interface(out: &mut String, interface: &Value) {
    let number = |name: &str| interface[name].as_u64().unwrap_or_default();
    let (words, class) = (&interface["words"], &interface["class"]);
    let _ = write!(
        out,
        "<li>Interface {}, setting {}: {} ({})",
        number("number"),
        number("alternate"),
        words.as_str().map(escaped).unwrap_or_default(),
        class.as_str().map(escaped).unwrap_or_default()
    );
    let endpoints: Vec<_> = entries(&interface["endpoints"]).collect();
    if !endpoints.is_empty() {
        out.push_str("\n<ul>\n");
        for endpoint in endpoints {
            let text = |name: &str| endpoint[name].as_str().map(escaped).unwrap_or_default();
            let number = |name: &str| endpoint[name].as_u64();
            let _ = write!(
                out,
                "<li>Endpoint {}: {} {}, packets of up to {} bytes",
                text("address"),
                text("kind"),
                text("direction"),
                number("packet_bytes_max").unwrap_or_default()
            );
            if let Some(interval) = number("interval_us").filter(|us| *us > 0) {
                let packets = number("packets").unwrap_or(1);
                let _ = write!(out, ", {packets} each {} ms", interval as f64 / 1000.0);
            }
            if let Some(rate) = number("bytes_per_s_max") {
                let _ = write!(out, ": up to {}/s", format_bytes(rate));
            }
            out.push_str("</li>\n");
        }
        out.push_str("</ul>");
    }
    out.push_str("</li>\n");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tree_shows_endpoints_with_their_rates_and_has_a_limit() {
        let endpoint = json!({
            "address": "0x81", "direction": "in", "kind": "interrupt", "packet_bytes_max": 8, "packets": 1,
            "interval_us": 8000, "bytes_per_s_max": 1000,
        });
        let interface = json!({
            "number": 0, "alternate": 0, "class": "03/01/01", "words": "keyboard", "endpoints": vec![endpoint; 500],
        });
        let told = json!({
            "usb": "2.00", "release": "1.00", "class": "00/00/00", "packet_bytes_max": 64, "product": "<b>",
            "configurations": [{ "value": 1, "current_ma": 100, "interfaces": [interface] }],
        });
        let tree = tree(&told);
        let line = "Endpoint <bdi>0x81</bdi>: <bdi>interrupt</bdi> <bdi>in</bdi>, packets of up to 8 bytes, \
            1 each 8 ms: up to 1.00 kB/s</li>";
        assert_eq!(tree.matches(line).count(), ENTRIES_MAX, "{tree}");
        assert!(tree.contains("product: <bdi>&lt;b&gt;</bdi>") && tree.contains("up to 100 mA"), "{tree}");
        assert_eq!(tree.matches("<ul").count(), tree.matches("</ul>").count());
        assert_eq!(super::tree(&Value::Null), "");
    }
}
