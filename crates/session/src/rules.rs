//! Which of a machine's real devices are shared: rules about a device's descriptors and its port.
//!
//! Rules are checked in order, and the first that matches decides; a device that no rule matches is not shared. An
//! input device (keyboard, mouse) is matched only by a rule that *asks* for it: by its class, or by vendor and product
//! together. A hub is never shared; what is plugged into it can be.

use std::fmt;
use std::str::FromStr;

/// The properties of a device that rules look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Its port, as the kernel calls it: `1-1.4`.
    pub bus_id: String,
    /// `idVendor`.
    pub vendor: u16,
    /// `idProduct`.
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

/// A USB class; a subclass or protocol that is not given matches anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    class: u8,
    subclass: Option<u8>,
    protocol: Option<u8>,
}

/// A text pattern in which `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Whether it means one text alone.
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }
}

/// A rule. Everything that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Whether matching devices are refused instead of shared.
    pub is_refusal: bool,
    /// The class of the device or of one of its interfaces.
    pub class: Option<Class>,
    /// `idVendor`.
    pub vendor: Option<u16>,
    /// `idProduct`.
    pub product: Option<u16>,
    /// Its serial number.
    pub serial: Option<Pattern>,
    /// Its port.
    pub port: Option<Pattern>,
}

/// The decision about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Shared(at) => write!(f, "shared by rule {}", at + 1),
            Verdict::Refused(at) => write!(f, "refused by rule {}", at + 1),
            Verdict::NoRule => f.write_str("no rule matches"),
            Verdict::Hub => f.write_str("a hub; share what is plugged into it"),
            Verdict::Input => f.write_str("an input device, and no rule asks for its class or its vendor and product"),
        }
    }
}

/// Decides whether `rules` share a device.
pub fn decide(rules: &[Rule], device: &Properties) -> Verdict {
    if device.is_hub() {
        return Verdict::Hub;
    }
    let found = rules.iter().position(|rule| rule.matches(device) && (rule.is_refusal || rule.may_have(device)));
    match found {
        Some(at) if rules[at].is_refusal => Verdict::Refused(at),
        Some(at) => Verdict::Shared(at),
        None if !rules.iter().any(|rule| rule.matches(device)) => Verdict::NoRule,
        None => Verdict::Input,
    }
}

impl Rule {
    /// Whether everything that the rule names is true of the device.
    fn matches(&self, device: &Properties) -> bool {
        let serial = device.serial.as_deref().unwrap_or_default();
        (!device.is_imported || self.port.is_some())
            && self.class.is_none_or(|class| device.has(class))
            && self.vendor.is_none_or(|vendor| vendor == device.vendor)
            && self.product.is_none_or(|product| product == device.product)
            && self.serial.as_ref().is_none_or(|pattern| !serial.is_empty() && pattern.matches(serial))
            && self.port.as_ref().is_none_or(|pattern| pattern.matches(&device.bus_id))
    }

    /// Whether the rule asks for such a device, if that is necessary.
    fn may_have(&self, device: &Properties) -> bool {
        let by_ids = self.vendor.is_some() && self.product.is_some();
        let by_class = self.class.is_some_and(|asked| asked.class == INPUT);
        !device.is_input() || by_ids || by_class
    }
}

/// USB class codes (usb.org, Defined Class Codes).
const INPUT: u8 = 3;
const HUB: u8 = 9;

impl Properties {
    fn has(&self, class: Class) -> bool {
        class.matches(self.class) || self.interfaces.iter().any(|&interface| class.matches(interface))
    }

    fn is_hub(&self) -> bool {
        self.class[0] == HUB || self.interfaces.iter().any(|interface| interface[0] == HUB)
    }

    fn is_input(&self) -> bool {
        self.class[0] == INPUT || self.interfaces.iter().any(|interface| interface[0] == INPUT)
    }
}

impl Class {
    fn matches(self, [class, subclass, protocol]: [u8; 3]) -> bool {
        self.class == class
            && self.subclass.is_none_or(|asked| asked == subclass)
            && self.protocol.is_none_or(|asked| asked == protocol)
    }
}

/// A class name, its class code, and subclass and protocol if it means only those.
type Word = (&'static str, u8, Option<(u8, u8)>);

/// The words for classes, as `farbus list` shows them.
const CLASSES: [Word; 14] = [
    ("audio", 1, None),
    ("communications", 2, None),
    ("input", INPUT, None),
    ("keyboard", INPUT, Some((1, 1))),
    ("mouse", INPUT, Some((1, 2))),
    ("image", 6, None),
    ("printer", 7, None),
    ("storage", 8, None),
    ("hub", HUB, None),
    ("smartcard", 11, None),
    ("video", 14, None),
    ("wireless", 0xe0, None),
    ("application", 0xfe, None),
    ("vendor", 0xff, None),
];

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(&(_, class, rest)) = CLASSES.iter().find(|(word, ..)| *word == text) {
            return Ok(Self { class, subclass: rest.map(|rest| rest.0), protocol: rest.map(|rest| rest.1) });
        }
        let words = CLASSES.map(|(word, ..)| word).join(", ");
        let wrong = || format!("'{text}' is no class: there are {words}, or numbers such as 08 or 03/01/01");
        let mut numbers = text.split('/').map(|part| hex(part, 2).and_then(|n| u8::try_from(n).ok()).ok_or_else(wrong));
        let class = numbers.next().ok_or_else(wrong)??;
        let (subclass, protocol) = (numbers.next().transpose()?, numbers.next().transpose()?);
        match numbers.next() {
            None => Ok(Self { class, subclass, protocol }),
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

impl Pattern {
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

    fn disk() -> Properties {
        Properties {
            bus_id: "1-1.4".into(),
            vendor: 0x0781,
            product: 0x5567,
            serial: Some("4C5300".into()),
            is_imported: false,
            class: [0; 3],
            interfaces: vec![[8, 6, 0x50]],
        }
    }

    fn keyboard() -> Properties {
        Properties { bus_id: "1-2".into(), interfaces: vec![[3, 1, 1], [3, 0, 0]], serial: None, ..disk() }
    }

    fn hub() -> Properties {
        Properties { bus_id: "1-1".into(), class: [9, 0, 2], interfaces: vec![[9, 0, 0]], ..disk() }
    }

    fn class(text: &str) -> Rule {
        Rule { class: Some(text.parse().unwrap()), ..Rule::default() }
    }

    #[test]
    fn rule_matches_if_all_its_parts_match() {
        let pattern = |text| Some(Pattern::new(text));
        let cases = [
            (class("storage"), true),
            (class("08/06/50"), true),
            (class("08/06"), true),
            (class("08/02"), false),
            (class("video"), false),
            (Rule { vendor: Some(0x0781), ..class("storage") }, true),
            (Rule { vendor: Some(0x0781), product: Some(1), ..Rule::default() }, false),
            (Rule { serial: pattern("4C*"), ..Rule::default() }, true),
            (Rule { serial: pattern("4C"), ..Rule::default() }, false),
            (Rule { port: pattern("1-1.*"), ..Rule::default() }, true),
            (Rule { port: pattern("1-1"), ..Rule::default() }, false),
            (Rule { port: pattern("1-1.4"), serial: pattern("*"), ..class("storage") }, true),
            (Rule::default(), true),
        ];
        for (rule, expected) in cases {
            assert_eq!(decide(std::slice::from_ref(&rule), &disk()) == Verdict::Shared(0), expected, "{rule:?}");
        }
        let nameless = Properties { serial: None, ..disk() };
        let any_serial = Rule { serial: pattern("*"), ..Rule::default() };
        assert_eq!(decide(&[any_serial], &nameless), Verdict::NoRule, "it has to have one");
    }

    #[test]
    fn first_matching_rule_decides() {
        let not_this = Rule { is_refusal: true, serial: Some(Pattern::new("4C5300")), ..Rule::default() };
        let rules = [class("video"), not_this, class("storage")];
        assert_eq!(decide(&rules, &disk()), Verdict::Refused(1));
        assert_eq!(decide(&rules, &Properties { serial: None, ..disk() }), Verdict::Shared(2));
        assert_eq!(decide(&[], &disk()), Verdict::NoRule);
    }

    #[test]
    fn hubs_are_never_shared_and_input_devices_only_by_a_rule_that_asks_for_them() {
        let everything = Rule::default();
        let here = Rule { port: Some(Pattern::new("1-*")), ..Rule::default() };
        let ids = Rule { vendor: Some(0x0781), product: Some(0x5567), ..Rule::default() };
        let cases = [
            (&everything, keyboard(), Verdict::Input),
            (&here, keyboard(), Verdict::Input),
            (&class("input"), keyboard(), Verdict::Shared(0)),
            (&class("keyboard"), keyboard(), Verdict::Shared(0)),
            (&class("mouse"), keyboard(), Verdict::NoRule),
            (&ids, keyboard(), Verdict::Shared(0)),
            (&everything, hub(), Verdict::Hub),
            (&ids, hub(), Verdict::Hub),
            (&class("hub"), hub(), Verdict::Hub),
            (&class("hub"), Properties { bus_id: "usb1".into(), ..hub() }, Verdict::Hub),
        ];
        for (rule, device, expected) in cases {
            assert_eq!(decide(std::slice::from_ref(rule), &device), expected, "{rule:?} {device:?}");
        }
        assert_eq!(decide(&[everything, class("keyboard")], &keyboard()), Verdict::Shared(1), "a later one may ask");
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
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn invalid_class_or_id_is_refused_with_the_valid_ones() {
        for wrong in ["", "disk", "8", "08/", "08/06/50/1", "zz", "+8", "008"] {
            assert!(wrong.parse::<Class>().unwrap_err().contains("storage"), "{wrong}");
        }
        assert_eq!(id_from("046D"), Ok(0x046d));
        for wrong in ["46d", "0x046d", "046g", "", "+46d"] {
            assert!(id_from(wrong).is_err(), "{wrong}");
        }
    }
}
