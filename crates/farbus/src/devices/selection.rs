//! Which of this machine's devices to share, and under which names.

use farbus_io_linux::usb::{PluggedDevice, UsbDeviceSelector};
use farbus_session::rules::{DeviceProperties, SharingRule, SharingVerdict, decide};

use super::follow::FollowPolicy;

/// Devices to share: selected one by one, and by rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareSelection {
    named: Vec<SelectedDevice>,
    rules: Vec<SharingRule>,
    /// What each rule gives.
    given: Vec<NamingRuleResult>,
}

/// A rule for real devices, and what it gives those that match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamingRule {
    /// What a device has to match, and whether matching ones are shared or refused.
    pub rule: SharingRule,
    /// The name that it gives, if it gives one.
    pub name: Option<String>,
    /// Which other devices in a port that it names are followed.
    pub follow: FollowPolicy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamingRuleResult {
    name: Option<String>,
    follow: FollowPolicy,
}

/// A device that is selected itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SelectedDevice {
    selector: UsbDeviceSelector,
    name: Option<String>,
    /// Whether its owner chose that name.
    is_chosen: bool,
    follow: FollowPolicy,
}

/// How a device is shared that is selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingTerms {
    /// Its name; `None`: it is named after what it is.
    pub name: Option<String>,
    /// Whether its owner chose that name. Several devices may have a name that a rule gives.
    pub is_chosen: bool,
    /// Whether it is selected by its port, so that the share stands for the first device there; and which others are
    /// followed.
    pub by_port: Option<FollowPolicy>,
}

impl SharingTerms {
    /// The name of `found`, as it is selected so.
    pub fn name_of(&self, found: &PluggedDevice) -> String {
        self.name.clone().unwrap_or_else(|| name(found))
    }
}

impl ShareSelection {
    /// Selects by `rules`. Each gives a name, or leaves it to the device's description.
    pub fn by_rules(rules: &[NamingRule]) -> Self {
        let given = |NamingRule { rule, name, follow }| (rule, NamingRuleResult { name, follow });
        let (rules, given) = rules.iter().cloned().map(given).unzip();
        Self { named: Vec::new(), rules, given }
    }

    /// Selects a device regardless of the rules, even an input device.
    pub fn add(&mut self, selector: UsbDeviceSelector, name: Option<String>, follow: FollowPolicy) {
        self.named.push(SelectedDevice { selector, is_chosen: name.is_some(), name, follow });
    }

    /// Selects a device as [`ShareSelection::add`] does, under a name that farbus chose.
    pub fn add_unnamed(&mut self, selector: UsbDeviceSelector, name: String, follow: FollowPolicy) {
        self.named.push(SelectedDevice { selector, name: Some(name), is_chosen: false, follow });
    }

    /// Whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.rules.is_empty()
    }

    /// The devices that are selected themselves, with their names.
    pub fn named(&self) -> impl Iterator<Item = (&UsbDeviceSelector, Option<&str>)> {
        self.named.iter().map(|named| (&named.selector, named.name.as_deref()))
    }

    /// Whether a share stands for the first device in this port.
    pub fn selects_port(&self, bus_id: &str) -> bool {
        let is_it = |named: &SelectedDevice| matches!(&named.selector, UsbDeviceSelector::BusId(selected) if selected == bus_id);
        let is_in = |(rule, given): (&SharingRule, &NamingRuleResult)| {
            is_by_port(rule, given) && { rule.port.as_ref().is_some_and(|port| port.matches(bus_id)) }
        };
        self.named.iter().any(is_it) || self.rules.iter().zip(&self.given).any(is_in)
    }

    /// How a device is shared if it is selected. A selection of the device itself comes before the rules.
    pub fn selected(&self, found: &PluggedDevice) -> Option<SharingTerms> {
        if let Some(named) = self.named.iter().find(|named| named.selector.matches(found)) {
            let by_port = matches!(named.selector, UsbDeviceSelector::BusId(_)).then(|| named.follow.clone());
            return Some(SharingTerms { name: named.name.clone(), is_chosen: named.is_chosen, by_port });
        }
        let SharingVerdict::Shared(at) = decide(&self.rules, &properties_of(found)) else { return None };
        let is_by_port = is_by_port(&self.rules[at], &self.given[at]);
        let NamingRuleResult { name, follow } = self.given[at].clone();
        let by_port = is_by_port.then_some(follow);
        Some(SharingTerms { is_chosen: name.is_some(), name, by_port })
    }
}

/// Whether a rule stands for the first device in a port. One that means many ports shares whatever is in each, unless
/// it says what is followed there.
fn is_by_port(rule: &SharingRule, given: &NamingRuleResult) -> bool {
    !rule.is_refusal && rule.port.as_ref().is_some_and(|port| port.is_exact() || !given.follow.is_nothing())
}

fn properties_of(found: &PluggedDevice) -> DeviceProperties {
    let device = &found.descriptors.device;
    let configurations = found.descriptors.configurations.iter();
    let described =
        configurations.flat_map(|configuration| configuration.interfaces().map(|interface| interface.class));
    DeviceProperties {
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
pub fn name(found: &PluggedDevice) -> String {
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
    use farbus_model::{DescriptorSet, UsbSpeed};

    fn found(product: &str) -> PluggedDevice {
        let device =
            DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..DeviceDescriptor::default() };
        let strings = [(2, product.to_owned())].into();
        PluggedDevice {
            bus_id: "1-1".into(),
            bus: 1,
            number: 2,
            descriptors: DescriptorSet { device, strings, ..DescriptorSet::default() },
            repairs: Default::default(),
            serial: None,
            speed: UsbSpeed::High,
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
