//! Which of this machine's devices to share, and under which names.

use farbus_io::usb::{Found, Selector};
use farbus_session::rules::{Properties, Rule, Verdict, decide};

/// Devices to share: selected one by one, and by rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    named: Vec<Named>,
    rules: Vec<Rule>,
    /// The name that each rule gives, if it gives one.
    names: Vec<Option<String>>,
}

/// A device that is selected itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    selector: Selector,
    name: Option<String>,
    /// Whether its owner chose that name.
    is_chosen: bool,
}

impl Wanted {
    /// Selects by `rules`. Each gives a name, or leaves it to the device's description.
    pub fn by_rules(rules: &[(Rule, Option<String>)]) -> Self {
        let (rules, names) = rules.iter().cloned().unzip();
        Self { named: Vec::new(), rules, names }
    }

    /// Selects a device regardless of the rules, even an input device.
    pub fn add(&mut self, selector: Selector, name: Option<String>) {
        self.named.push(Named { selector, is_chosen: name.is_some(), name });
    }

    /// Selects a device as [`Wanted::add`] does, under a name that farbus chose.
    pub fn add_unnamed(&mut self, selector: Selector, name: String) {
        self.named.push(Named { selector, name: Some(name), is_chosen: false });
    }

    /// Whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.rules.is_empty()
    }

    /// The devices that are selected themselves, with their names.
    pub fn named(&self) -> impl Iterator<Item = (&Selector, Option<&str>)> {
        self.named.iter().map(|named| (&named.selector, named.name.as_deref()))
    }

    /// The name of a device if it is selected. A selection of the device itself comes before the rules.
    pub fn name_of(&self, found: &Found) -> Option<String> {
        self.naming_of(found).map(|(name, _)| name)
    }

    /// The name of a device if it is selected, and whether its owner chose it. Several devices may have a name that a
    /// rule gives.
    pub fn naming_of(&self, found: &Found) -> Option<(String, bool)> {
        let (called, is_chosen) = match self.named.iter().find(|named| named.selector.matches(found)) {
            Some(named) => (&named.name, named.is_chosen),
            None => match decide(&self.rules, &properties_of(found)) {
                Verdict::Shared(at) => (&self.names[at], self.names[at].is_some()),
                _ => return None,
            },
        };
        Some((called.clone().unwrap_or_else(|| name(found)), is_chosen))
    }
}

fn properties_of(found: &Found) -> Properties {
    let device = &found.descriptors.device;
    let configurations = found.descriptors.configurations.iter();
    let described =
        configurations.flat_map(|configuration| configuration.interfaces().map(|interface| interface.class));
    Properties {
        bus_id: found.bus_id.clone(),
        vendor: device.vendor,
        product: device.product,
        serial: found.serial.clone(),
        class: device.class,
        is_imported: found.is_imported,
        interfaces: described.chain(found.interfaces.iter().map(|interface| interface.class)).collect(),
    }
}

/// A name that can be typed: the product's own description, or else its ids.
pub fn name(found: &Found) -> String {
    let device = &found.descriptors.device;
    let product = found.descriptors.string(device.product_string).unwrap_or_default();
    let mut name = String::new();
    for word in product.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= NAME_BYTES_MAX {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&word.to_ascii_lowercase());
    }
    // A name without a letter would look like a bus id.
    if name.bytes().any(|b| b.is_ascii_alphabetic()) {
        name
    } else {
        format!("usb-{:04x}-{:04x}", device.vendor, device.product)
    }
}

/// A length that can be typed and fits a table.
const NAME_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::descriptor::DeviceDescriptor;
    use farbus_model::{Descriptors, Speed};

    fn found(product: &str) -> Found {
        let device =
            DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..DeviceDescriptor::default() };
        let strings = [(2, product.to_owned())].into();
        Found {
            bus_id: "1-1".into(),
            bus: 1,
            number: 2,
            descriptors: Descriptors { device, strings, ..Descriptors::default() },
            serial: None,
            speed: Speed::High,
            configuration: 1,
            interfaces: Vec::new(),
            is_imported: false,
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    #[test]
    fn default_name_is_derived_from_the_product_string() {
        assert_eq!(name(&found("QEMU USB HARDDRIVE")), "qemu-usb-harddrive");
        assert_eq!(name(&found("  HD Webcam (C270), v2.1\u{fffd}")), "hd-webcam-c270-v2-1");
        assert_eq!(
            name(&found("a very long name that somebody in marketing made up")),
            "a-very-long-name-that-somebody"
        );
        for nothing in ["", "---", "1-1", "2000"] {
            assert_eq!(name(&found(nothing)), "usb-046d-c52b", "{nothing}");
        }
    }
}
