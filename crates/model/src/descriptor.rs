//! Descriptors as hosts read them (USB 2.0 §9.6, USB 3.2 §9.6), and which endpoints are active.
//!
//! Bytes of a device are untrusted: every length is checked, and descriptors that are not known are skipped. Here
//! invalid ones are refused with their offset; [`repair`](crate::repair) reads them as Linux does.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;

use crate::usb::{EpAddr, TransferDirection, TransferType, UsbSpeed};

/// Descriptor types (USB 2.0 table 9-5, USB 3.2 table 9-6).
pub mod kind {
    #![allow(missing_docs, reason = "the names are the specification's own")]
    pub const DEVICE: u8 = 1;
    pub const CONFIGURATION: u8 = 2;
    pub const STRING: u8 = 3;
    pub const INTERFACE: u8 = 4;
    pub const ENDPOINT: u8 = 5;
    pub const DEVICE_QUALIFIER: u8 = 6;
    pub const OTHER_SPEED: u8 = 7;
    pub const INTERFACE_ASSOCIATION: u8 = 11;
    pub const BOS: u8 = 15;
    pub const SS_ENDPOINT_COMPANION: u8 = 48;
}

/// US English, the only language of farbus's own strings.
pub const LANGUAGE_EN_US: u16 = 0x0409;

/// Bytes of a configuration descriptor with all its parts. The field is 16 bits wide.
pub const CONFIGURATION_BYTES_MAX: usize = u16::MAX as usize;

/// All descriptors of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorSet {
    /// The device descriptor.
    pub device: DeviceDescriptor,
    /// Configurations, in index order.
    pub configurations: Vec<UsbConfiguration>,
    /// Strings by index, in [`LANGUAGE_EN_US`].
    pub strings: BTreeMap<u8, String>,
    /// The binary object store, or empty.
    pub bos: Vec<u8>,
    /// The other speed's configuration (USB 2.0 §9.6.4), as the bus carries it, or empty: the full-speed configuration
    /// of a high-speed device. A device that has it also has a qualifier.
    pub other_speed: Vec<u8>,
}

impl DescriptorSet {
    /// The configuration whose value is `value`.
    pub fn configuration(&self, value: u8) -> Option<&UsbConfiguration> {
        self.configurations.iter().find(|configuration| configuration.value == value)
    }

    /// The device qualifier (USB 2.0 §9.6.2) of a device that has another speed.
    pub fn qualifier(&self) -> Option<[u8; 10]> {
        if self.other_speed.is_empty() {
            return None;
        }
        let [low, high] = self.device.usb_bcd.to_le_bytes();
        let [class, subclass, protocol] = self.device.class;
        let (max_packet_0, configurations) = (self.device.max_packet_0, self.device.configurations);
        Some([10, kind::DEVICE_QUALIFIER, low, high, class, subclass, protocol, max_packet_0, configurations, 0])
    }

    /// The string that a descriptor's index field names.
    pub fn string(&self, index: u8) -> Option<&str> {
        self.strings.get(&index).map(String::as_str)
    }

    /// The indexes of the strings that the descriptors name, each once: the device's own first, then those of each
    /// configuration and its interfaces.
    pub fn string_indexes(&self) -> impl Iterator<Item = u8> {
        let own = [self.device.manufacturer_string, self.device.product_string, self.device.serial_string];
        let others = self.configurations.iter().flat_map(|configuration| {
            let interfaces = configuration.settings.iter().map(|setting| setting.name_string);
            std::iter::once(configuration.name_string()).chain(interfaces)
        });
        let mut seen = [false; 256];
        seen[0] = true;
        own.into_iter().chain(others).filter(move |&index| !std::mem::replace(&mut seen[usize::from(index)], true))
    }

    /// Whether one of its interfaces stores data (USB mass storage class, `bInterfaceClass` 8).
    pub fn stores_data(&self) -> bool {
        const MASS_STORAGE: u8 = 8;
        self.configurations.iter().flat_map(|each| &each.settings).any(|each| each.class[0] == MASS_STORAGE)
    }

    /// Manufacturer and product in one line, as far as they are known.
    pub fn title(&self) -> String {
        let parts = [self.device.manufacturer_string, self.device.product_string];
        let words: Vec<&str> = parts.iter().filter_map(|&index| self.string(index)).collect();
        words.join(" ")
    }
}

/// The device descriptor (USB 2.0 table 9-8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceDescriptor {
    /// `bcdUSB`: the USB version that the device follows, in BCD: 0x0210 is 2.1.
    pub usb_bcd: u16,
    /// Class, subclass, protocol.
    pub class: [u8; 3],
    /// `bMaxPacketSize0` as the field carries it (an exponent at SuperSpeed).
    pub max_packet_0: u8,
    /// `idVendor`: the vendor's number, assigned by the USB-IF.
    pub vendor: u16,
    /// `idProduct`: the product's number, assigned by the vendor.
    pub product: u16,
    /// `bcdDevice`: the vendor's number of the device's release, in BCD.
    pub device_bcd: u16,
    /// `iManufacturer`: the index of the manufacturer's name ([`DescriptorSet::string`]); 0 if there is none.
    pub manufacturer_string: u8,
    /// `iProduct`: the index of the product's name ([`DescriptorSet::string`]); 0 if there is none.
    pub product_string: u8,
    /// `iSerialNumber`: the index of the serial number ([`DescriptorSet::string`]); 0 if there is none.
    pub serial_string: u8,
    /// `bNumConfigurations`: how many configurations the device has at its current speed.
    pub configurations: u8,
}

impl DeviceDescriptor {
    /// Its length on the bus, bytes.
    pub const BYTES: usize = 18;

    /// Parses a device descriptor.
    ///
    /// # Errors
    /// If it is too short or not a device descriptor.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let b: &[u8; Self::BYTES] =
            bytes.first_chunk().ok_or(DescriptorError { offset: 0, rule: "a device descriptor has 18 bytes" })?;
        if b[0] != 18 || b[1] != kind::DEVICE {
            return Err(DescriptorError { offset: 0, rule: "it begins with 18, 1" });
        }
        let word = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        Ok(Self {
            usb_bcd: word(2),
            class: [b[4], b[5], b[6]],
            max_packet_0: b[7],
            vendor: word(8),
            product: word(10),
            device_bcd: word(12),
            manufacturer_string: b[14],
            product_string: b[15],
            serial_string: b[16],
            configurations: b[17],
        })
    }

    /// As the bus carries it.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0] = 18;
        b[1] = kind::DEVICE;
        b[2..4].copy_from_slice(&self.usb_bcd.to_le_bytes());
        b[4..7].copy_from_slice(&self.class);
        b[7] = self.max_packet_0;
        b[8..10].copy_from_slice(&self.vendor.to_le_bytes());
        b[10..12].copy_from_slice(&self.product.to_le_bytes());
        b[12..14].copy_from_slice(&self.device_bcd.to_le_bytes());
        b[14] = self.manufacturer_string;
        b[15] = self.product_string;
        b[16] = self.serial_string;
        b[17] = self.configurations;
        b
    }
}

/// One configuration: its bytes and their parsed form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsbConfiguration {
    /// The configuration descriptor and all its parts, `wTotalLength` bytes.
    pub bytes: Vec<u8>,
    /// `bConfigurationValue`: the value by which SET_CONFIGURATION selects it; 0 selects none.
    pub value: u8,
    /// Every alternate setting of every interface, in the order of the bytes.
    pub settings: Vec<AltSetting>,
}

/// One alternate setting of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AltSetting {
    /// `bInterfaceNumber`: the number of the interface in its configuration, from 0.
    pub interface: u8,
    /// `bAlternateSetting`: the value by which SET_INTERFACE selects it; 0 is active after SET_CONFIGURATION.
    pub alternate: u8,
    /// Class, subclass, protocol.
    pub class: [u8; 3],
    /// `iInterface`: the index of the interface's name ([`DescriptorSet::string`]); 0 if there is none.
    pub name_string: u8,
    /// Its endpoints, without the control pipe.
    pub endpoints: Vec<EndpointDescriptor>,
}

/// An endpoint descriptor and, at SuperSpeed, its companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointDescriptor {
    /// Number and direction.
    pub address: EpAddr,
    /// The endpoint's transfer type, bits 1..0 of `bmAttributes`.
    pub kind: TransferType,
    /// Largest packet, bytes.
    pub packet_bytes_max: u16,
    /// Packets per service interval: high-bandwidth transactions at high speed (1 to 3), burst times mult at
    /// SuperSpeed.
    pub packets_per_interval: u16,
    /// `bInterval`, as the speed counts it.
    pub interval: u8,
}

impl EndpointDescriptor {
    /// The service interval at `speed` (USB 2.0 §5.6.4, §5.7.4; table 9-13 for `bInterval`).
    /// Zero for control and bulk.
    pub fn service_interval(&self, speed: UsbSpeed) -> Duration {
        let periodic = matches!(self.kind, TransferType::Interrupt | TransferType::Isochronous);
        if !periodic {
            return Duration::ZERO;
        }
        let exponent = u32::from(self.interval.clamp(1, 16) - 1);
        match (speed.has_microframes(), self.kind) {
            (true, _) => Duration::from_micros(125) * (1 << exponent),
            (false, TransferType::Isochronous) => Duration::from_millis(1) * (1 << exponent),
            (false, _) => Duration::from_millis(u64::from(self.interval.max(1))),
        }
    }

    /// The interval that a request to it states ([`Urb::interval`](crate::Urb::interval)): the service interval in
    /// frames, or in microframes where the speed has them. At least 1 for interrupt and isochronous, as Linux's
    /// `usb_submit_urb` demands; 0 for control and bulk.
    pub fn urb_interval(&self, speed: UsbSpeed) -> u32 {
        let unit_us = if speed.has_microframes() { 125 } else { 1000 };
        (self.service_interval(speed).as_micros() / unit_us) as u32
    }

    /// Most bytes in one service interval.
    pub fn interval_bytes_max(&self) -> u32 {
        u32::from(self.packet_bytes_max) * u32::from(self.packets_per_interval)
    }
}

/// Why descriptor bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorError {
    /// Where, in bytes from the start.
    pub offset: usize,
    /// The rule that was broken.
    pub rule: &'static str,
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor byte {}: {}", self.offset, self.rule)
    }
}

impl std::error::Error for DescriptorError {}

impl UsbConfiguration {
    /// Length of the configuration descriptor proper.
    pub const HEADER_BYTES: usize = 9;

    /// `wTotalLength` of a configuration descriptor that starts with these nine bytes.
    ///
    /// # Errors
    /// If they are not a configuration descriptor.
    pub fn total_length(bytes: &[u8]) -> Result<usize, DescriptorError> {
        match *bytes {
            [length, kind::CONFIGURATION, low, high, ..] if length as usize >= Self::HEADER_BYTES => {
                let total = usize::from(u16::from_le_bytes([low, high]));
                if total < Self::HEADER_BYTES {
                    return Err(DescriptorError { offset: 2, rule: "wTotalLength covers its own descriptor" });
                }
                Ok(total)
            }
            _ => Err(DescriptorError { offset: 0, rule: "a configuration descriptor begins with 9, 2" }),
        }
    }

    /// Parses a whole configuration. Class descriptors are kept in `bytes` and skipped.
    ///
    /// # Errors
    /// If a length runs past the end or is zero, or an endpoint precedes every interface.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let total = Self::total_length(bytes)?;
        if bytes.len() < total || bytes.len() < Self::HEADER_BYTES {
            return Err(DescriptorError { offset: 2, rule: "wTotalLength bytes are there" });
        }
        let bytes = &bytes[..total];
        let mut settings: Vec<AltSetting> = Vec::new();
        // A longer descriptor is of a later specification, and Linux accepts it; a shorter one would have its own
        // fields parsed as descriptors.
        let mut at = usize::from(bytes[0]);
        if !(Self::HEADER_BYTES..=total).contains(&at) {
            return Err(DescriptorError {
                offset: 0,
                rule: "a configuration descriptor has 9 bytes or more, inside wTotalLength",
            });
        }
        while at < total {
            let length = usize::from(bytes[at]);
            if length < 2 || at + length > total {
                return Err(DescriptorError { offset: at, rule: "bLength is at least 2 and inside wTotalLength" });
            }
            Self::parse_one(&bytes[at..at + length], &mut settings)
                .map_err(|rule| DescriptorError { offset: at, rule })?;
            at += length;
        }
        Ok(Self { bytes: bytes.to_vec(), value: bytes[5], settings })
    }

    fn parse_one(d: &[u8], settings: &mut Vec<AltSetting>) -> Result<(), &'static str> {
        match d[1] {
            kind::INTERFACE => {
                let d: &[u8; 9] = d.first_chunk().ok_or("an interface descriptor has 9 bytes")?;
                let class = [d[5], d[6], d[7]];
                let (interface, alternate, name_string) = (d[2], d[3], d[8]);
                settings.push(AltSetting { interface, alternate, class, name_string, endpoints: Vec::new() });
            }
            kind::ENDPOINT => {
                let d: &[u8; 7] = d.first_chunk().ok_or("an endpoint descriptor has 7 bytes")?;
                let setting = settings.last_mut().ok_or("an endpoint belongs to an interface")?;
                let max = u16::from_le_bytes([d[4], d[5]]);
                setting.endpoints.push(EndpointDescriptor {
                    address: EpAddr::from_byte(d[2]),
                    kind: TransferType::from_attributes(d[3]),
                    packet_bytes_max: max & 0x7ff,
                    packets_per_interval: (max >> 11 & 3) + 1,
                    interval: d[6],
                });
            }
            kind::SS_ENDPOINT_COMPANION => {
                let d: &[u8; 6] = d.first_chunk().ok_or("an endpoint companion has 6 bytes")?;
                let endpoint = settings.last_mut().and_then(|setting| setting.endpoints.last_mut());
                let endpoint = endpoint.ok_or("a companion belongs to an endpoint")?;
                let mult = if endpoint.kind == TransferType::Isochronous { u16::from(d[3] & 3) + 1 } else { 1 };
                endpoint.packets_per_interval = (u16::from(d[2]) + 1) * mult;
            }
            _ => {}
        }
        Ok(())
    }

    /// `iConfiguration` (USB 2.0 table 9-10).
    pub fn name_string(&self) -> u8 {
        self.bytes.get(6).copied().unwrap_or(0)
    }

    /// The interfaces' setting 0, in order, as a device list shows them.
    pub fn interfaces(&self) -> impl Iterator<Item = &AltSetting> {
        self.settings.iter().filter(|setting| setting.alternate == 0)
    }

    /// One alternate setting.
    pub fn setting(&self, interface: u8, alternate: u8) -> Option<&AltSetting> {
        self.settings.iter().find(|s| s.interface == interface && s.alternate == alternate)
    }
}

/// A string descriptor (USB 2.0 §9.6.7): UTF-16LE, at most 126 units.
pub fn string_to_bytes(text: &str) -> Vec<u8> {
    let mut bytes = vec![0, kind::STRING];
    bytes.extend(text.encode_utf16().take(126).flat_map(u16::to_le_bytes));
    bytes[0] = bytes.len() as u8;
    bytes
}

/// The text of a string descriptor; invalid Unicode is replaced, missing bytes are left out.
pub fn string_from_bytes(bytes: &[u8]) -> String {
    let length = bytes.first().map_or(0, |&length| usize::from(length).min(bytes.len()));
    let units = bytes.get(2..length).unwrap_or(&[]).chunks_exact(2).map(|u| u16::from_le_bytes([u[0], u[1]]));
    char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Which endpoints are active: the state that SET_CONFIGURATION and SET_INTERFACE change.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationSelection {
    configuration: u8,
    /// (interface, alternate) where it is not 0.
    alternates: Vec<(u8, u8)>,
    endpoints: [Option<EndpointDescriptor>; 32],
}

impl ConfigurationSelection {
    /// The active configuration's value, 0 when unconfigured.
    pub fn configuration(&self) -> u8 {
        self.configuration
    }

    /// The active alternate setting of `interface`.
    pub fn alternate(&self, interface: u8) -> u8 {
        self.alternates.iter().find(|(i, _)| *i == interface).map_or(0, |(_, a)| *a)
    }

    /// The interfaces that are not in setting 0, with their setting.
    pub fn alternates(&self) -> &[(u8, u8)] {
        &self.alternates
    }

    /// The active endpoint at `address`.
    pub fn endpoint(&self, address: EpAddr) -> Option<&EndpointDescriptor> {
        self.endpoints[address.index()].as_ref()
    }

    /// All active endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &EndpointDescriptor> {
        self.endpoints.iter().flatten()
    }

    /// Carries out SET_CONFIGURATION; 0 unconfigures. `false` and no change if there is no such configuration.
    pub fn select_configuration(&mut self, all: &DescriptorSet, value: u8) -> bool {
        if value != 0 && all.configuration(value).is_none() {
            return false;
        }
        self.configuration = value;
        self.alternates.clear();
        self.rebuild(all);
        true
    }

    /// Carries out SET_INTERFACE. `false` and no change if there is no such setting.
    pub fn select_interface(&mut self, all: &DescriptorSet, interface: u8, alternate: u8) -> bool {
        let known = all.configuration(self.configuration).and_then(|c| c.setting(interface, alternate));
        if known.is_none() {
            return false;
        }
        self.alternates.retain(|(i, _)| *i != interface);
        if alternate != 0 {
            self.alternates.push((interface, alternate));
        }
        self.rebuild(all);
        true
    }

    /// Carries out a bus reset: no endpoint but the control pipe is active.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn rebuild(&mut self, all: &DescriptorSet) {
        self.endpoints = [None; 32];
        let Some(configuration) = all.configuration(self.configuration) else { return };
        for setting in &configuration.settings {
            if setting.alternate == self.alternate(setting.interface) {
                for endpoint in &setting.endpoints {
                    self.endpoints[endpoint.address.index()] = Some(*endpoint);
                }
            }
        }
    }
}

/// The endpoint address in `wIndex` of a control request to an endpoint.
pub fn endpoint_of_index(index: u16) -> EpAddr {
    EpAddr::from_byte(index as u8)
}

impl AltSetting {
    /// The first endpoint of `kind` in `direction`.
    pub fn find(&self, kind: TransferType, direction: TransferDirection) -> Option<&EndpointDescriptor> {
        self.endpoints.iter().find(|e| e.kind == kind && e.address.direction() == direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_refused_with_its_place() {
        let cases: [(&[u8], usize); 9] = [
            (&[], 0),
            (&[9, 4, 0, 0], 0),
            (&[0, 2, 9, 0, 1, 1, 0, 0x80, 50], 0),
            (&[4, 2, 9, 0, 5, 4, 0, 0x80, 50], 0),
            (&[10, 2, 9, 0, 1, 1, 0, 0x80, 50], 0),
            (&[9, 2, 8, 0, 1, 1, 0, 0x80, 50], 2),
            (&[9, 2, 20, 0, 1, 1, 0, 0x80, 50], 2),
            (&[9, 2, 11, 0, 1, 1, 0, 0x80, 50, 0, 4], 9),
            (&[9, 2, 16, 0, 1, 1, 0, 0x80, 50, 7, 5, 0x81, 2, 0, 2, 0], 9),
        ];
        for (bytes, offset) in cases {
            assert_eq!(UsbConfiguration::parse(bytes).unwrap_err().offset, offset, "{bytes:?}");
        }
        let longer = [10, 2, 19, 0, 1, 1, 0, 0x80, 50, 99, 9, 4, 3, 0, 0, 255, 0, 0, 0];
        assert_eq!(
            UsbConfiguration::parse(&longer).unwrap().settings[0].interface,
            3,
            "a later specification's header"
        );
    }

    #[test]
    fn strings_survive_and_broken_ones_do_not_panic() {
        assert_eq!(string_from_bytes(&string_to_bytes("Ünï 𝄞")), "Ünï 𝄞");
        assert_eq!(string_from_bytes(&[]), "");
        assert_eq!(string_from_bytes(&[200, 3, 0x00, 0xd8]), "\u{fffd}");
    }

    #[test]
    fn intervals_follow_the_speed() {
        let mut endpoint = EndpointDescriptor {
            address: EpAddr::from_byte(0x83),
            kind: TransferType::Isochronous,
            packet_bytes_max: 1024,
            packets_per_interval: 3,
            interval: 4,
        };
        assert_eq!(endpoint.service_interval(UsbSpeed::High), Duration::from_millis(1));
        assert_eq!(endpoint.service_interval(UsbSpeed::Full), Duration::from_millis(8));
        assert_eq!(endpoint.interval_bytes_max(), 3072);
        assert_eq!((endpoint.urb_interval(UsbSpeed::High), endpoint.urb_interval(UsbSpeed::Full)), (8, 8));
        endpoint.kind = TransferType::Interrupt;
        assert_eq!(endpoint.service_interval(UsbSpeed::Low), Duration::from_millis(4));
        endpoint.interval = 0;
        assert_eq!(endpoint.service_interval(UsbSpeed::High), Duration::from_micros(125));
        assert_eq!((endpoint.urb_interval(UsbSpeed::High), endpoint.urb_interval(UsbSpeed::Low)), (1, 1));
        endpoint.interval = 10;
        assert_eq!((endpoint.urb_interval(UsbSpeed::High), endpoint.urb_interval(UsbSpeed::Full)), (512, 10));
        endpoint.kind = TransferType::Bulk;
        assert_eq!(endpoint.urb_interval(UsbSpeed::High), 0);
    }
}
