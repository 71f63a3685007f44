//! A device's descriptors as a tree: configurations, interfaces and their settings, endpoints.

use farbus_control::units::format_bytes;
use maud::{Markup, html};
use serde_json::Value;

use super::text::theirs;

/// Elements of one level of the tree. A device has at most 32 endpoints in a setting; a configuration of 64 KiB could
/// have thousands of settings.
const ENTRIES_MAX: usize = 64;

/// The tree; empty if nothing is known.
pub fn tree(descriptors: &Value) -> Markup {
    let text = |name: &str| descriptors[name].as_str().map(theirs);
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_default();
    html! {
        @if descriptors.is_object() {
            section id="descriptors" {
                h2 { "Descriptors" }
                ul class="tree" {
                    li {
                        "USB " (text("usb").unwrap_or_default()) ", device release "
                        (text("release").unwrap_or_default()) ", class " (text("class").unwrap_or_default()) ", "
                        (number(descriptors, "packet_bytes_max")) " bytes in a control packet"
                        @for (what, name) in
                            [("manufacturer", "manufacturer"), ("product", "product"), ("serial number", "serial")]
                        {
                            @if let Some(text) = text(name) { br; (what) ": " (text) }
                        }
                        ul {
                            @for configuration in entries(&descriptors["configurations"]) {
                                li {
                                    "Configuration " (number(configuration, "value")) ": up to "
                                    (number(configuration, "current_ma")) " mA"
                                    @if configuration["is_self_powered"] == true { ", self-powered" }
                                    ul {
                                        @for interface in entries(&configuration["interfaces"]) {
                                            (of_interface(interface))
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().take(ENTRIES_MAX)
}

fn of_interface(interface: &Value) -> Markup {
    let number = |name: &str| interface[name].as_u64().unwrap_or_default();
    let text = |name: &str| interface[name].as_str().map(theirs).unwrap_or_default();
    html! {
        li {
            "Interface " (number("number")) ", setting " (number("alternate")) ": " (text("words")) " ("
            (text("class")) ")"
            @if entries(&interface["endpoints"]).next().is_some() {
                ul { @for endpoint in entries(&interface["endpoints"]) { (of_endpoint(endpoint)) } }
            }
        }
    }
}

fn of_endpoint(endpoint: &Value) -> Markup {
    let text = |name: &str| endpoint[name].as_str().map(theirs).unwrap_or_default();
    let number = |name: &str| endpoint[name].as_u64();
    html! {
        li {
            "Endpoint " (text("address")) ": " (text("kind")) " " (text("direction")) ", packets of up to "
            (number("packet_bytes_max").unwrap_or_default()) " bytes"
            @if let Some(interval) = number("interval_us").filter(|us| *us > 0) {
                ", " (number("packets").unwrap_or(1)) " each " (interval as f64 / 1000.0) " ms"
            }
            @if let Some(rate) = number("bytes_per_s_max") { ": up to " (format_bytes(rate)) "/s" }
        }
    }
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
        let tree = tree(&told).into_string();
        let line = "Endpoint <bdi>0x81</bdi>: <bdi>interrupt</bdi> <bdi>in</bdi>, packets of up to 8 bytes, \
            1 each 8 ms: up to 1.00 kB/s</li>";
        assert_eq!(tree.matches(line).count(), ENTRIES_MAX, "{tree}");
        assert!(tree.contains("product: <bdi>&lt;b&gt;</bdi>") && tree.contains("up to 100 mA"), "{tree}");
        assert_eq!(tree.matches("<ul").count(), tree.matches("</ul>").count());
        assert_eq!(super::tree(&Value::Null).into_string(), "");
    }
}
