//! Which of a machine's real devices are shared: rules about a device's descriptors and its port.
//!
//! Rules are checked in order, and the first that matches decides; a device that no rule matches is not shared. An
//! input device (keyboard, mouse) is matched only by a rule that *asks* for it: by its class, or by vendor and product
//! together. A hub is never shared; what is plugged into it can be.

use std::fmt;
use std::str::FromStr;

use crate::device_class::{self, DeviceClassName};

/// The properties of a device that rules look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Its port, as the kernel calls it: `1-1.4`.
    pub bus_id: String,
    /// `idVendor` of its device descriptor (USB 2.0 §9.6.1).
    pub vendor: u16,
    /// `idProduct` of its device descriptor (USB 2.0 §9.6.1).
    pub product: u16,
    /// Its serial number, if it has one.
    pub serial: Option<String>,
    /// Whether it belongs to another machine and is only attached here: then only a rule that names its port matches.
    pub is_imported: bool,
    /// Class, subclass and protocol of the device.
    pub class: [u8; 3],
    /// Class, subclass and protocol of each interface of its configurations.
    pub interfaces: Vec<[u8; 3]>,
}

/// A class of devices: by its name, or by the codes of USB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbClassPattern {
    /// By its name.
    Name(DeviceClassName),
    /// By class, subclass and protocol; a subclass or protocol that is not given matches anything.
    Codes(u8, Option<u8>, Option<u8>),
}

/// A text pattern in which `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WildcardPattern(String);

impl WildcardPattern {
    /// Whether it means one text alone.
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }
}

/// A rule. Everything that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharingRule {
    /// Whether matching devices are refused instead of shared.
    pub is_refusal: bool,
    /// The class of the device or of one of its interfaces.
    pub class: Option<UsbClassPattern>,
    /// The device's `idVendor`; `None` matches every vendor.
    pub vendor: Option<u16>,
    /// The device's `idProduct`; `None` matches every product.
    pub product: Option<u16>,
    /// A pattern of the device's serial number; `None` also matches a device without one.
    pub serial: Option<WildcardPattern>,
    /// A pattern of the device's port, as the kernel calls it (`1-1.4`); `None` matches every port.
    pub port: Option<WildcardPattern>,
}

/// The decision about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingVerdict {
    /// Shared, by the rule with this index.
    Shared(usize),
    /// Refused, by the rule with this index.
    Refused(usize),
    /// No rule matches.
    NoRule,
    /// A hub: what is plugged into it can be shared.
    Hub,
    /// A keyboard or mouse, and no rule asks for it.
    Input,
}

impl fmt::Display for SharingVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharingVerdict::Shared(at) => write!(f, "shared by rule {}", at + 1),
            SharingVerdict::Refused(at) => write!(f, "refused by rule {}", at + 1),
            SharingVerdict::NoRule => f.write_str("no rule matches"),
            SharingVerdict::Hub => f.write_str("a hub; share what is plugged into it"),
            SharingVerdict::Input => {
                f.write_str("an input device, and no rule asks for its class or its vendor and product")
            }
        }
    }
}

/// Decides whether `rules` share a device.
pub fn decide(rules: &[SharingRule], device: &DeviceProperties) -> SharingVerdict {
    if device.is_hub() {
        return SharingVerdict::Hub;
    }
    let found = rules.iter().position(|rule| rule.matches(device) && (rule.is_refusal || rule.may_have(device)));
    match found {
        Some(at) if rules[at].is_refusal => SharingVerdict::Refused(at),
        Some(at) => SharingVerdict::Shared(at),
        None if !rules.iter().any(|rule| rule.matches(device)) => SharingVerdict::NoRule,
        None => SharingVerdict::Input,
    }
}

impl SharingRule {
    /// Whether everything that the rule names is true of the device.
    fn matches(&self, device: &DeviceProperties) -> bool {
        let serial = device.serial.as_deref().unwrap_or_default();
        (!device.is_imported || self.port.is_some())
            && self.class.is_none_or(|class| class.matches(device))
            && self.vendor.is_none_or(|vendor| vendor == device.vendor)
            && self.product.is_none_or(|product| product == device.product)
            && self.serial.as_ref().is_none_or(|pattern| !serial.is_empty() && pattern.matches(serial))
            && self.port.as_ref().is_none_or(|pattern| pattern.matches(&device.bus_id))
    }

    /// Whether the rule asks for such a device, if that is necessary.
    fn may_have(&self, device: &DeviceProperties) -> bool {
        let by_ids = self.vendor.is_some() && self.product.is_some();
        let by_class = self.class.is_some_and(UsbClassPattern::is_input);
        !device.is_input() || by_ids || by_class
    }
}

/// The class of hubs (USB 2.0 §11.23.1).
const HUB: u8 = 9;

impl DeviceProperties {
    /// The codes of the device, and of each interface.
    fn codes(&self) -> impl Iterator<Item = [u8; 3]> {
        self.interfaces.iter().copied().chain([self.class])
    }

    fn is_hub(&self) -> bool {
        self.codes().any(|codes| codes[0] == HUB)
    }

    fn is_input(&self) -> bool {
        self.codes().any(device_class::is_input)
    }
}

impl UsbClassPattern {
    fn matches(self, device: &DeviceProperties) -> bool {
        match self {
            Self::Name(class) => class.is_of((device.vendor, device.product), device.codes()),
            Self::Codes(wanted, subclass, protocol) => device.codes().any(|codes| {
                codes[0] == wanted
                    && subclass.is_none_or(|wanted| wanted == codes[1])
                    && protocol.is_none_or(|wanted| wanted == codes[2])
            }),
        }
    }

    fn is_input(self) -> bool {
        match self {
            Self::Name(class) => class.is_input(),
            Self::Codes(class, ..) => device_class::is_input([class, 0, 0]),
        }
    }
}

impl FromStr for UsbClassPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unnamed = match text.parse() {
            Ok(class) => return Ok(Self::Name(class)),
            Err(unnamed) => unnamed,
        };
        let wrong = || format!("{unnamed}, or numbers such as 08 or 03/01/01");
        let mut numbers = text.split('/').map(|part| hex(part, 2).and_then(|n| u8::try_from(n).ok()).ok_or_else(wrong));
        let class = numbers.next().ok_or_else(wrong)??;
        let (subclass, protocol) = (numbers.next().transpose()?, numbers.next().transpose()?);
        match numbers.next() {
            None => Ok(Self::Codes(class, subclass, protocol)),
            Some(_) => Err(wrong()),
        }
    }
}

/// Reads four hexadecimal digits, as `lsusb` prints a vendor or product.
///
/// # Errors
/// A sentence for a person: the text is something else.
pub fn id_from(text: &str) -> Result<u16, String> {
    hex(text, 4).ok_or_else(|| format!("'{text}' is no id: it has four hexadecimal digits, such as 046d"))
}

fn hex(text: &str, digits: usize) -> Option<u16> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

impl WildcardPattern {
    /// A pattern from its text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether it matches the whole `text`. Takes time linear in the text for each `*`.
    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DeviceProperties {
        DeviceProperties {
            bus_id: "1-1.4".into(),
            vendor: 0x0781,
            product: 0x5567,
            serial: Some("4C5300".into()),
            is_imported: false,
            class: [0; 3],
            interfaces: vec![[8, 6, 0x50]],
        }
    }

    fn keyboard() -> DeviceProperties {
        DeviceProperties { bus_id: "1-2".into(), interfaces: vec![[3, 1, 1], [3, 0, 0]], serial: None, ..disk() }
    }

    fn hub() -> DeviceProperties {
        DeviceProperties { bus_id: "1-1".into(), class: [9, 0, 2], interfaces: vec![[9, 0, 0]], ..disk() }
    }

    fn class(text: &str) -> SharingRule {
        SharingRule { class: Some(text.parse().unwrap()), ..SharingRule::default() }
    }

    #[test]
    fn rule_matches_if_all_its_parts_match() {
        let pattern = |text| Some(WildcardPattern::new(text));
        let cases = [
            (class("storage"), true),
            (class("08/06/50"), true),
            (class("08/06"), true),
            (class("08/02"), false),
            (class("video"), false),
            (SharingRule { vendor: Some(0x0781), ..class("storage") }, true),
            (SharingRule { vendor: Some(0x0781), product: Some(1), ..SharingRule::default() }, false),
            (SharingRule { serial: pattern("4C*"), ..SharingRule::default() }, true),
            (SharingRule { serial: pattern("4C"), ..SharingRule::default() }, false),
            (SharingRule { port: pattern("1-1.*"), ..SharingRule::default() }, true),
            (SharingRule { port: pattern("1-1"), ..SharingRule::default() }, false),
            (SharingRule { port: pattern("1-1.4"), serial: pattern("*"), ..class("storage") }, true),
            (SharingRule::default(), true),
        ];
        for (rule, expected) in cases {
            assert_eq!(decide(std::slice::from_ref(&rule), &disk()) == SharingVerdict::Shared(0), expected, "{rule:?}");
        }
        let nameless = DeviceProperties { serial: None, ..disk() };
        let any_serial = SharingRule { serial: pattern("*"), ..SharingRule::default() };
        assert_eq!(decide(&[any_serial], &nameless), SharingVerdict::NoRule, "it has to have one");
    }

    #[test]
    fn first_matching_rule_decides() {
        let not_this =
            SharingRule { is_refusal: true, serial: Some(WildcardPattern::new("4C5300")), ..SharingRule::default() };
        let rules = [class("video"), not_this, class("storage")];
        assert_eq!(decide(&rules, &disk()), SharingVerdict::Refused(1));
        assert_eq!(decide(&rules, &DeviceProperties { serial: None, ..disk() }), SharingVerdict::Shared(2));
        assert_eq!(decide(&[], &disk()), SharingVerdict::NoRule);
    }

    #[test]
    fn hubs_are_never_shared_and_input_devices_only_by_a_rule_that_asks_for_them() {
        let everything = SharingRule::default();
        let here = SharingRule { port: Some(WildcardPattern::new("1-*")), ..SharingRule::default() };
        let ids = SharingRule { vendor: Some(0x0781), product: Some(0x5567), ..SharingRule::default() };
        let cases = [
            (&everything, keyboard(), SharingVerdict::Input),
            (&here, keyboard(), SharingVerdict::Input),
            (&class("input"), keyboard(), SharingVerdict::Shared(0)),
            (&class("keyboard"), keyboard(), SharingVerdict::Shared(0)),
            (&class("mouse"), keyboard(), SharingVerdict::NoRule),
            (&ids, keyboard(), SharingVerdict::Shared(0)),
            (&everything, hub(), SharingVerdict::Hub),
            (&ids, hub(), SharingVerdict::Hub),
            (&class("hub"), hub(), SharingVerdict::Hub),
            (&class("hub"), DeviceProperties { bus_id: "usb1".into(), ..hub() }, SharingVerdict::Hub),
        ];
        for (rule, device, expected) in cases {
            assert_eq!(decide(std::slice::from_ref(rule), &device), expected, "{rule:?} {device:?}");
        }
        assert_eq!(
            decide(&[everything, class("keyboard")], &keyboard()),
            SharingVerdict::Shared(1),
            "a later one may ask"
        );
    }

    #[test]
    fn patterns_match_whole_texts() {
        let cases = [
            ("", "", true),
            ("", "x", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("*b*", "abc", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "acb", false),
            ("é*", "éa", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(WildcardPattern::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn invalid_class_or_id_is_refused_with_the_valid_ones() {
        for wrong in ["", "disks", "8", "08/", "08/06/50/1", "zz", "+8", "008"] {
            assert!(wrong.parse::<UsbClassPattern>().unwrap_err().contains("storage"), "{wrong}");
        }
        assert_eq!(id_from("046D"), Ok(0x046d));
        for wrong in ["46d", "0x046d", "046g", "", "+46d"] {
            assert!(id_from(wrong).is_err(), "{wrong}");
        }
    }
}
