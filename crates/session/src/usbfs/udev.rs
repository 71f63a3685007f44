//! What udev's database has of a device, as libudev reads it below `/run/udev/data`.
//!
//! The properties are those of systemd 252's `usb_id` (`udev-builtin-usb_id.c`), which Debian's rules run for each USB
//! device: by `ID_SERIAL_SHORT` programs tell boards of one kind apart.

use std::fmt::Write as _;

use super::tree::SysfsDevice;

/// Bytes of a name of vendor or product without its NUL (`vendor_str`); a serial number has as many as a descriptor.
const NAME_BYTES_MAX: usize = 63;
/// Characters of a property besides letters and digits; what is beyond ASCII may stay, too.
const KEPT: &str = "#+-.:=@_";

impl SysfsDevice<'_> {
    /// The properties that udev adds to those of the kernel, a line each.
    pub fn udev_properties(&self) -> String {
        let device = &self.descriptors.device;
        let text = |index: u8| self.descriptors.string(index).filter(|text| index != 0 && !text.is_empty());
        let (vendor_id, model_id) = (format!("{:04x}", device.vendor), format!("{:04x}", device.product));
        let vendor = text(device.manufacturer_string).unwrap_or(&vendor_id);
        let model = text(device.product_string).unwrap_or(&model_id);
        // Microsoft's rule for serial numbers, by which `usb_id` goes: what breaks it is none.
        let serial = text(device.serial_string)
            .filter(|text| text.bytes().all(|byte| (0x20..=0x7f).contains(&byte) && byte != b','))
            .map(plain)
            .filter(|serial| !serial.is_empty());
        let (vendor_name, model_name) = (cut(&plain(vendor)).to_owned(), cut(&plain(model)).to_owned());
        let mut whole = format!("{vendor_name}_{model_name}");
        if let Some(serial) = &serial {
            let _ = write!(whole, "_{serial}");
        }
        let mut lines = "ID_BUS=usb\n".to_owned();
        // Both names of each: those of the bus stay where a disk or a tty behind it sets the others.
        for prefix in ["ID_", "ID_USB_"] {
            let mut line = |name: &str, value: &str| {
                let _ = writeln!(lines, "{prefix}{name}={value}");
            };
            line("MODEL", &model_name);
            line("MODEL_ENC", &encoded(model));
            line("MODEL_ID", &model_id);
            line("REVISION", &format!("{:04x}", device.device_bcd));
            line("SERIAL", &whole);
            if let Some(serial) = &serial {
                line("SERIAL_SHORT", serial);
            }
            line("VENDOR", &vendor_name);
            line("VENDOR_ENC", &encoded(vendor));
            line("VENDOR_ID", &vendor_id);
        }
        let _ = writeln!(lines, "ID_USB_INTERFACES={}", self.interface_classes());
        lines
    }

    /// Each class that its interfaces have, in any configuration: `:080650:`.
    fn interface_classes(&self) -> String {
        let mut classes = ":".to_owned();
        for setting in self.descriptors.configurations.iter().flat_map(|configuration| &configuration.settings) {
            let [class, subclass, protocol] = setting.class;
            let class = format!(":{class:02x}{subclass:02x}{protocol:02x}:");
            if !classes.contains(&class) {
                classes.push_str(&class[1..]);
            }
        }
        classes
    }

    /// The name of the device's file, and what is in it.
    pub fn udev_record(&self) -> (String, Vec<u8>) {
        (format!("c{}", self.number()), udev_record(&self.udev_properties()))
    }

    /// The name of an interface's file, and what is in it; `name` is that of the interface's folder.
    pub fn udev_record_of_interface(name: &str) -> (String, Vec<u8>) {
        (format!("+usb:{name}"), udev_record(""))
    }
}

/// A file of the database: when udev was done with the device, its properties, and the version of the form. By the file
/// libudev tells that the device is initialized.
fn udev_record(properties: &str) -> Vec<u8> {
    let mut text = "I:1\n".to_owned();
    for property in properties.lines() {
        let _ = writeln!(text, "E:{property}");
    }
    text.push_str("V:1\n");
    text.into_bytes()
}

fn is_kept(character: char) -> bool {
    character.is_ascii_alphanumeric() || KEPT.contains(character) || !character.is_ascii()
}

/// Without blanks around it; those in it, and what no name of a node has, are underscores.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    words.join("_").chars().map(|character| if is_kept(character) { character } else { '_' }).collect()
}

/// With `\x20` in the place of what no name of a node has.
fn encoded(text: &str) -> String {
    let mut to = String::new();
    for character in text.chars() {
        if is_kept(character) {
            to.push(character);
        } else {
            let _ = write!(to, "\\x{:02x}", u32::from(character));
        }
    }
    to
}

/// As much of it as fits.
fn cut(text: &str) -> &str {
    let end = (0..=NAME_BYTES_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use farbus_model::definition::InterfaceDefinition;
    use farbus_model::{ConfigurationSelection, DeviceDefinition, TransferDirection, UsbSpeed};

    use super::*;
    use crate::usbfs::UsbBusLocation;

    fn properties(vendor: &str, product: &str, serial: &str) -> String {
        let descriptors = DeviceDefinition::new(0x1209, 0x00a1)
            .names(vendor, product, serial)
            .interface(InterfaceDefinition::vendor().bulk(1, TransferDirection::In))
            .interface(InterfaceDefinition::vendor().bulk(2, TransferDirection::In))
            .build();
        let location = UsbBusLocation { bus: 3, device: 7, ports: vec![1, 4] };
        let selection = ConfigurationSelection::default();
        let shown = SysfsDevice {
            descriptors: &descriptors,
            selection: &selection,
            speed: UsbSpeed::High,
            location: &location,
            ports: 0,
        };
        assert_eq!(shown.udev_record().0, "c189:262");
        shown.udev_properties()
    }

    fn value<'a>(properties: &'a str, name: &str) -> Option<&'a str> {
        properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    #[test]
    fn board_has_the_properties_that_udev_gives_it() {
        let all = properties("Black Magic Debug", " a  probe (v2)", "F B-01");
        let expected = [
            ("ID_BUS", "usb"),
            ("ID_VENDOR", "Black_Magic_Debug"),
            ("ID_VENDOR_ENC", "Black\\x20Magic\\x20Debug"),
            ("ID_VENDOR_ID", "1209"),
            ("ID_MODEL", "a_probe__v2_"),
            ("ID_MODEL_ENC", "\\x20a\\x20\\x20probe\\x20\\x28v2\\x29"),
            ("ID_MODEL_ID", "00a1"),
            ("ID_SERIAL", "Black_Magic_Debug_a_probe__v2__F_B-01"),
            ("ID_SERIAL_SHORT", "F_B-01"),
            ("ID_USB_SERIAL_SHORT", "F_B-01"),
            ("ID_USB_INTERFACES", ":ff0000:"),
        ];
        for (name, expected) in expected {
            assert_eq!(value(&all, name), Some(expected), "{name} in {all}");
        }
    }

    #[test]
    fn serial_number_with_a_comma_is_none_and_names_are_bounded() {
        let all = properties(&"ä".repeat(100), "x", "1,2");
        assert_eq!(value(&all, "ID_SERIAL_SHORT"), None);
        assert_eq!(value(&all, "ID_VENDOR"), Some("ä".repeat(31).as_str()));
    }

    #[test]
    fn hostile_names_add_no_line() {
        let all = properties("a\nID_X=1", "b\u{7}\\c", "S\nE:ID_X=1");
        assert_eq!(value(&all, "ID_X"), None, "{all}");
        assert_eq!(value(&all, "ID_VENDOR"), Some("a_ID_X=1"));
        assert_eq!(value(&all, "ID_VENDOR_ENC"), Some("a\\x0aID_X=1"));
        assert_eq!(value(&all, "ID_MODEL_ENC"), Some("b\\x07\\x5cc"));
        assert_eq!(value(&all, "ID_SERIAL_SHORT"), None, "it has a control character");
        assert!(all.lines().all(|line| line.starts_with("ID_")), "{all}");
    }

    #[test]
    fn record_has_the_lines_that_libudev_reads() {
        let (name, bytes) = SysfsDevice::udev_record_of_interface("3-1.4:1.0");
        assert_eq!((name.as_str(), bytes.as_slice()), ("+usb:3-1.4:1.0", b"I:1\nV:1\n".as_slice()));
        assert_eq!(udev_record("ID_BUS=usb\n"), b"I:1\nE:ID_BUS=usb\nV:1\n");
    }
}
