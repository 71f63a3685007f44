//! A device's descriptors as a tree: configurations, interfaces and their settings, endpoints.

use farbus_control::descriptors::{DescriptorTree, EndpointTree, InterfaceTree};
use farbus_control::units::format_bytes;
use maud::{Markup, html};

use crate::view::text::theirs;

/// Elements of one level of the tree. A device has at most 32 endpoints in a setting; a configuration of 64 KiB could
/// have thousands of settings.
const ENTRIES_MAX: usize = 64;

/// Draws a device's descriptors as nested lists of at most [`ENTRIES_MAX`] entries each.
pub fn tree(descriptors: &DescriptorTree) -> Markup {
    let DescriptorTree { manufacturer, product, serial, .. } = descriptors;
    html! {
        section id="descriptors" {
            h2 { "Descriptors" }
            ul class="tree" {
                li {
                    "USB " (theirs(&descriptors.usb)) ", device release " (theirs(&descriptors.release)) ", class "
                    (theirs(&descriptors.class)) ", " (descriptors.packet_bytes_max) " bytes in a control packet"
                    @for (what, text) in
                        [("manufacturer", manufacturer), ("product", product), ("serial number", serial)]
                    {
                        @if let Some(text) = text { br; (what) ": " (theirs(text)) }
                    }
                    ul {
                        @for configuration in descriptors.configurations.iter().take(ENTRIES_MAX) {
                            li {
                                "Configuration " (configuration.value) ": up to " (configuration.current_ma) " mA"
                                @if configuration.is_self_powered { ", self-powered" }
                                ul {
                                    @for interface in configuration.interfaces.iter().take(ENTRIES_MAX) {
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

fn of_interface(interface: &InterfaceTree) -> Markup {
    html! {
        li {
            "Interface " (interface.number) ", setting " (interface.alternate) ": " (theirs(&interface.words)) " ("
            (theirs(&interface.class)) ")"
            @if !interface.endpoints.is_empty() {
                ul { @for endpoint in interface.endpoints.iter().take(ENTRIES_MAX) { (of_endpoint(endpoint)) } }
            }
        }
    }
}

fn of_endpoint(endpoint: &EndpointTree) -> Markup {
    html! {
        li {
            "Endpoint " (theirs(&endpoint.address)) ": " (theirs(&endpoint.kind)) " " (theirs(&endpoint.direction))
            ", packets of up to " (endpoint.packet_bytes_max) " bytes"
            @if endpoint.interval_us > 0 {
                ", " (endpoint.packets.max(1)) " each " (endpoint.interval_us as f64 / 1000.0) " ms"
            }
            @if let Some(rate) = endpoint.bytes_per_s_max { ": up to " (format_bytes(rate)) "/s" }
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
        let answer = json!({
            "usb": "2.00", "release": "1.00", "class": "00/00/00", "packet_bytes_max": 64, "product": "<b>",
            "configurations": [{ "value": 1, "current_ma": 100, "interfaces": [interface] }],
        });
        let tree = tree(&serde_json::from_value(answer).unwrap()).into_string();
        let line = "Endpoint <bdi>0x81</bdi>: <bdi>interrupt</bdi> <bdi>in</bdi>, packets of up to 8 bytes, \
            1 each 8 ms: up to 1.00 kB/s</li>";
        assert_eq!(tree.matches(line).count(), ENTRIES_MAX, "{tree}");
        assert!(tree.contains("product: <bdi>&lt;b&gt;</bdi>") && tree.contains("up to 100 mA"), "{tree}");
        assert_eq!(tree.matches("<ul").count(), tree.matches("</ul>").count());
    }
}
