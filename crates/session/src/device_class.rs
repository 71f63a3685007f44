//! What a device is, in words: one vocabulary for lists, queries, sharing rules and pages.

use std::fmt;
use std::str::FromStr;

use farbus_model::serial_port::SerialChip;

/// Class, subclass and protocol of an interface, or of a device.
type ClassCodes = [u8; 3];

/// USB class codes (usb.org, Defined Class Codes).
const COMMUNICATIONS: u8 = 2;
const INPUT: u8 = 3;

/// Interfaces of one kind.
struct InterfaceKind {
    /// As lists describe it.
    description: &'static str,
    class: u8,
    subclass: Option<u8>,
    protocol: Option<u8>,
    /// The names of the classes that such an interface makes a device one of.
    names: &'static [&'static str],
}

const fn kind(description: &'static str, class: u8, names: &'static [&'static str]) -> InterfaceKind {
    InterfaceKind { description, class, subclass: None, protocol: None, names }
}

const fn part(subclass: Option<u8>, protocol: Option<u8>, of: InterfaceKind) -> InterfaceKind {
    InterfaceKind { subclass, protocol, ..of }
}

/// All kinds that are known (usb.org, Defined Class Codes); the first that matches is meant.
const KINDS: [InterfaceKind; 18] = [
    kind("audio", 1, &["audio"]),
    // Abstract control model (USB CDC 1.2, 5.1.3). Its description does not tell it from Ethernet.
    part(Some(2), None, kind("communications", COMMUNICATIONS, &["communications", SERIAL])),
    kind("communications", COMMUNICATIONS, &["communications"]),
    part(Some(1), Some(1), kind("keyboard", INPUT, &["keyboard", "input"])),
    part(Some(1), Some(2), kind("mouse", INPUT, &["mouse", "input"])),
    kind("input", INPUT, &["input"]),
    kind("camera (still)", 6, &["image", "camera"]),
    kind("printer", 7, &["printer"]),
    part(None, Some(0x50), kind("storage", 8, &["storage", "disk"])),
    part(None, Some(0x62), kind("storage (UAS)", 8, &["storage", "disk"])),
    kind("storage (other)", 8, &["storage", "disk"]),
    kind("hub", 9, &["hub"]),
    kind("communications data", 10, &["communications"]),
    kind("smart card", 11, &["smartcard"]),
    kind("video", 14, &["video", "camera"]),
    kind("wireless", 0xe0, &["wireless"]),
    kind("application specific", 0xfe, &["application"]),
    kind("vendor specific", 0xff, &["vendor"]),
];

impl InterfaceKind {
    fn of([class, subclass, protocol]: ClassCodes) -> Option<&'static Self> {
        KINDS.iter().find(|kind| {
            kind.class == class
                && kind.subclass.is_none_or(|wanted| wanted == subclass)
                && kind.protocol.is_none_or(|wanted| wanted == protocol)
        })
    }
}

/// The words that describe an interface, or a device, with this class, subclass and protocol.
pub fn description(codes: [u8; 3]) -> String {
    let [class, subclass, protocol] = codes;
    match InterfaceKind::of(codes) {
        Some(kind) => kind.description.to_owned(),
        None => format!("class {class:02x}/{subclass:02x}/{protocol:02x}"),
    }
}

/// A class of devices, as people name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceClassName(&'static str);

/// The name of [`DeviceClassName::SERIAL`].
const SERIAL: &str = "serial";

impl DeviceClassName {
    /// Devices with serial ports: modems, and adapters whose class is the vendor's own.
    pub const SERIAL: Self = Self(SERIAL);

    /// All classes, sorted by name.
    pub fn all() -> Vec<Self> {
        let mut names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(Self).collect()
    }

    /// As people write it in queries and rules.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Whether a device with these ids (`idVendor`, `idProduct`), and these codes or those of its interfaces, is one.
    pub fn is_of(self, ids: (u16, u16), codes: impl IntoIterator<Item = [u8; 3]>) -> bool {
        self.is_any(ids, codes.into_iter().filter_map(InterfaceKind::of))
    }

    /// Whether a device with these ids, and interfaces of these descriptions, is one: where its codes are not known. A
    /// serial port is not told from Ethernet then.
    pub fn is_described(self, ids: (u16, u16), descriptions: &[String]) -> bool {
        let kind_of = |text: &String| KINDS.iter().find(|kind| kind.description == text);
        self.is_any(ids, descriptions.iter().filter_map(kind_of))
    }

    fn is_any(self, ids: (u16, u16), mut kinds: impl Iterator<Item = &'static InterfaceKind>) -> bool {
        (self == Self::SERIAL && SerialChip::of_ids(ids).is_some()) || kinds.any(|kind| kind.names.contains(&self.0))
    }

    /// Whether its devices are how a person commands a machine: a rule that names it asks for them.
    pub(crate) fn is_input(self) -> bool {
        KINDS.iter().any(|kind| kind.class == INPUT && kind.names.contains(&self.0))
    }
}

impl fmt::Display for DeviceClassName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for DeviceClassName {
    /// A sentence for a person: which classes there are.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::all();
        all.iter().find(|class| class.0 == text).copied().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|class| class.0).collect();
            format!("'{}' is no class: there are {}", text.escape_debug(), names.join(", "))
        })
    }
}

/// Whether these are the codes of an input device.
pub(crate) fn is_input([class, ..]: [u8; 3]) -> bool {
    class == INPUT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_means_the_same_by_codes_and_by_their_descriptions() {
        for class in DeviceClassName::all() {
            for (subclass, protocol) in [(0, 0), (1, 1), (1, 2), (6, 0x50), (6, 0x62), (2, 1)] {
                for code in 0..=u8::MAX {
                    let codes = [code, subclass, protocol];
                    if class == DeviceClassName::SERIAL && code == COMMUNICATIONS {
                        continue;
                    }
                    let by_codes = class.is_of((1, 2), [codes]);
                    assert_eq!(class.is_described((1, 2), &[description(codes)]), by_codes, "{class} {codes:?}");
                }
            }
        }
    }

    #[test]
    fn every_name_finds_what_it_names() {
        let of =
            |name: &str, ids: (u16, u16), codes: [u8; 3]| name.parse::<DeviceClassName>().unwrap().is_of(ids, [codes]);
        for (name, codes) in [
            ("disk", [8, 6, 0x62]),
            ("storage", [8, 2, 0]),
            ("camera", [14, 1, 0]),
            ("camera", [6, 1, 1]),
            ("image", [6, 1, 1]),
            ("input", [3, 1, 2]),
            ("mouse", [3, 1, 2]),
            ("serial", [2, 2, 1]),
            ("vendor", [255, 0, 0]),
        ] {
            assert!(of(name, (0, 0), codes), "{name} {codes:?}");
        }
        assert!(of("serial", (0x0403, 0x6001), [255, 255, 255]), "FTDI");
        assert!(
            !of("serial", (0, 0), [255, 0, 0])
                && !of("keyboard", (0, 0), [3, 1, 2])
                && !of("image", (0, 0), [14, 1, 0])
        );
        assert!(!of("serial", (0, 0), [2, 6, 0]), "Ethernet");
        let refused = "disks".parse::<DeviceClassName>().unwrap_err();
        assert!(refused.contains("application, audio, camera, communications, disk"), "{refused}");
    }
}
