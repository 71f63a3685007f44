//! A declarative description of a gadget, from which its descriptors are built.

use core::time::Duration;

use crate::descriptor::{DescriptorSet, DeviceDescriptor, UsbConfiguration, kind};
use crate::usb::{EpAddr, TransferDirection, TransferType, UsbSpeed};

/// A declared device with one configuration (of value 1).
#[derive(Clone, Debug)]
pub struct DeviceDefinition {
    speed: UsbSpeed,
    vendor: u16,
    product: u16,
    release_bcd: u16,
    class: [u8; 3],
    names: [String; 3],
    texts: Vec<String>,
    interfaces: Vec<InterfaceDefinition>,
}

/// A declared interface: one alternate setting of it.
#[derive(Clone, Debug, Default)]
pub struct InterfaceDefinition {
    class: [u8; 3],
    /// Set by [`InterfaceDefinition::alternate_of_previous`].
    alternate: bool,
    /// How many interfaces, from this one on, form one function.
    associated: u8,
    /// Its string; empty if it has none.
    name: String,
    class_descriptors: Vec<u8>,
    endpoints: Vec<EndpointDefinition>,
}

#[derive(Clone, Debug)]
struct EndpointDefinition {
    address: EpAddr,
    kind: TransferType,
    packet_bytes_max: u16,
    interval: Duration,
    synchronization: SynchronizationType,
    /// The class's bytes after the seven standard ones of the endpoint descriptor.
    tail: Vec<u8>,
    class_descriptors: Vec<u8>,
}

/// Which clock an isochronous endpoint follows (USB 2.0 §5.12.4.1); the value is bits 3..2 of `bmAttributes` (table
/// 9-13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SynchronizationType {
    /// The endpoint's own clock.
    #[default]
    Asynchronous = 1,
    /// A sink follows the data rate, a source follows feedback.
    Adaptive = 2,
    /// The bus's clock.
    Synchronous = 3,
}

impl DeviceDefinition {
    /// A high-speed device with these ids and no interface yet.
    pub fn new(vendor: u16, product: u16) -> Self {
        Self {
            speed: UsbSpeed::High,
            vendor,
            product,
            release_bcd: 0x0100,
            class: [0; 3],
            names: Default::default(),
            texts: Vec::new(),
            interfaces: Vec::new(),
        }
    }

    /// Runs at `speed`.
    #[must_use]
    pub fn speed(mut self, speed: UsbSpeed) -> Self {
        self.speed = speed;
        self
    }

    /// Manufacturer, product and serial number; an empty one is left out.
    #[must_use]
    pub fn names(mut self, manufacturer: &str, product: &str, serial: &str) -> Self {
        self.names = [manufacturer, product, serial].map(str::to_owned);
        self
    }

    /// Adds a string for class descriptors to name: the first has the index after those of [`DeviceDefinition::names`].
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.texts.push(text.to_owned());
        self
    }

    /// Sets class, subclass and protocol of the whole device; 0 leaves them to the interfaces.
    #[must_use]
    pub fn class(mut self, class: u8, subclass: u8, protocol: u8) -> Self {
        self.class = [class, subclass, protocol];
        self
    }

    /// Adds an interface.
    #[must_use]
    pub fn interface(mut self, interface: InterfaceDefinition) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// The speed it was declared with.
    pub fn declared_speed(&self) -> UsbSpeed {
        self.speed
    }

    /// Builds the descriptors.
    ///
    /// # Panics
    /// If they do not fit a configuration descriptor's 16-bit length, or the first interface is declared as an
    /// alternate: an author's mistake.
    pub fn build(&self) -> DescriptorSet {
        let mut strings = std::collections::BTreeMap::new();
        let mut index_of = |text: &str| {
            if text.is_empty() {
                return 0;
            }
            let index = strings.len() as u8 + 1;
            strings.insert(index, text.to_owned());
            index
        };
        let [manufacturer, product, serial] = [0, 1, 2].map(|at: usize| index_of(&self.names[at]));
        for text in &self.texts {
            index_of(text);
        }
        let interface_strings: Vec<u8> = self.interfaces.iter().map(|interface| index_of(&interface.name)).collect();
        let is_super = self.speed >= UsbSpeed::Super;
        let device = DeviceDescriptor {
            usb_bcd: if is_super { 0x0300 } else { 0x0200 },
            class: self.class,
            max_packet_0: match self.speed {
                UsbSpeed::Low => 8,
                UsbSpeed::Full | UsbSpeed::High => 64,
                // An exponent (USB 3.2 table 9-11): 512 bytes.
                UsbSpeed::Super | UsbSpeed::SuperPlus => 9,
            },
            vendor: self.vendor,
            product: self.product,
            device_bcd: self.release_bcd,
            manufacturer_string: manufacturer,
            product_string: product,
            serial_string: serial,
            configurations: 1,
        };
        let bytes = self.configuration_bytes(self.speed, &interface_strings);
        let configuration = UsbConfiguration::parse(&bytes).expect("what we declare parses");
        let bos = if is_super { bos_bytes() } else { Vec::new() };
        let other_speed = match self.speed {
            UsbSpeed::High => self.other_speed_bytes(&interface_strings),
            _ => Vec::new(),
        };
        DescriptorSet { device, configurations: vec![configuration], strings, bos, other_speed }
    }

    /// The device's full-speed configuration; hosts ask for it though the device never runs at full speed.
    fn other_speed_bytes(&self, interface_strings: &[u8]) -> Vec<u8> {
        let mut bytes = self.configuration_bytes(UsbSpeed::Full, interface_strings);
        bytes[1] = kind::OTHER_SPEED;
        bytes
    }

    /// `interface_strings`: the index of each interface's string, 0 if it has none.
    fn configuration_bytes(&self, speed: UsbSpeed, interface_strings: &[u8]) -> Vec<u8> {
        let count = self.interfaces.iter().filter(|interface| !interface.alternate).count() as u8;
        // Self-powered (bit 6; bit 7 is always one), 2 mA.
        let mut bytes = vec![9, kind::CONFIGURATION, 0, 0, count, 1, 0, 0xc0, 1];
        let (mut number, mut alternate) = (0u8, 0u8);
        for (at, (interface, string)) in self.interfaces.iter().zip(interface_strings).enumerate() {
            match (at, interface.alternate) {
                (0, true) => panic!("the first interface has none before it"),
                (0, false) => {}
                (_, true) => alternate += 1,
                (_, false) => (number, alternate) = (number + 1, 0),
            }
            interface.write(speed, number, alternate, *string, &mut bytes);
        }
        let total = u16::try_from(bytes.len()).expect("a configuration is at most 65535 bytes");
        bytes[2..4].copy_from_slice(&total.to_le_bytes());
        bytes
    }
}

impl InterfaceDefinition {
    /// An interface of this class, subclass and protocol.
    pub fn new(class: u8, subclass: u8, protocol: u8) -> Self {
        Self { class: [class, subclass, protocol], ..Self::default() }
    }

    /// A vendor's own interface (class 0xff).
    pub fn vendor() -> Self {
        Self::new(0xff, 0, 0)
    }

    /// Makes this the next alternate setting of the interface before it.
    #[must_use]
    pub fn alternate_of_previous(mut self) -> Self {
        self.alternate = true;
        self
    }

    /// Declares this interface and those after it, `count` in all, as one function of its class (interface association,
    /// USB 2.0 ECN). A device with another function besides needs this.
    #[must_use]
    pub fn associated(mut self, count: u8) -> Self {
        self.associated = count;
        self
    }

    /// Gives it a string (`iInterface`), by which programs know what their class does not say.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Class-specific descriptors, placed between the interface and its endpoints.
    #[must_use]
    pub fn class_descriptors(mut self, bytes: &[u8]) -> Self {
        self.class_descriptors.extend_from_slice(bytes);
        self
    }

    /// Bulk endpoints IN and OUT of the same number.
    #[must_use]
    pub fn bulk_pair(self, number: u8) -> Self {
        self.bulk(number, TransferDirection::In).bulk(number, TransferDirection::Out)
    }

    /// One bulk endpoint.
    #[must_use]
    pub fn bulk(self, number: u8, direction: TransferDirection) -> Self {
        self.endpoint(number, direction, TransferType::Bulk, 0, Duration::ZERO)
    }

    /// An interrupt endpoint with packets of at most `packet_bytes_max`, polled every `interval`.
    #[must_use]
    pub fn interrupt(
        self,
        number: u8,
        direction: TransferDirection,
        packet_bytes_max: u16,
        interval: Duration,
    ) -> Self {
        self.endpoint(number, direction, TransferType::Interrupt, packet_bytes_max, interval)
    }

    /// An isochronous endpoint with one packet of at most `packet_bytes_max` every `interval`.
    #[must_use]
    pub fn isochronous(
        self,
        number: u8,
        direction: TransferDirection,
        packet_bytes_max: u16,
        interval: Duration,
    ) -> Self {
        self.endpoint(number, direction, TransferType::Isochronous, packet_bytes_max, interval)
    }

    fn endpoint(
        mut self,
        number: u8,
        direction: TransferDirection,
        kind: TransferType,
        max: u16,
        interval: Duration,
    ) -> Self {
        assert!((1..=15).contains(&number), "endpoint numbers are 1 to 15");
        let address = EpAddr::new(number, direction).expect("checked just now");
        self.endpoints.push(EndpointDefinition {
            address,
            kind,
            packet_bytes_max: max,
            interval,
            synchronization: SynchronizationType::default(),
            tail: Vec::new(),
            class_descriptors: Vec::new(),
        });
        self
    }

    /// Details of the endpoint declared last: the clock it follows, if it is isochronous; the bytes that its class adds
    /// to the standard descriptor (audio 1.0 adds two); class-specific descriptors after it.
    ///
    /// # Panics
    /// If there is no endpoint yet: an author's mistake.
    #[must_use]
    pub fn of_endpoint(mut self, synchronization: SynchronizationType, tail: &[u8], class_descriptors: &[u8]) -> Self {
        let endpoint = self.endpoints.last_mut().expect("an endpoint is declared first");
        endpoint.synchronization = synchronization;
        endpoint.tail.extend_from_slice(tail);
        endpoint.class_descriptors.extend_from_slice(class_descriptors);
        self
    }

    fn write(&self, speed: UsbSpeed, number: u8, alternate: u8, string: u8, bytes: &mut Vec<u8>) {
        let [class, subclass, protocol] = self.class;
        let endpoints = self.endpoints.len() as u8;
        if self.associated > 0 {
            bytes.extend([8, kind::INTERFACE_ASSOCIATION, number, self.associated, class, subclass, protocol, 0]);
        }
        bytes.extend([9, kind::INTERFACE, number, alternate, endpoints, class, subclass, protocol, string]);
        bytes.extend(&self.class_descriptors);
        for endpoint in &self.endpoints {
            endpoint.write(speed, bytes);
        }
    }
}

impl EndpointDefinition {
    fn write(&self, speed: UsbSpeed, bytes: &mut Vec<u8>) {
        let max = match (self.kind, speed) {
            (TransferType::Bulk, _) => speed.bulk_packet_bytes_max(),
            // USB 2.0 §5.6.3, §5.7.3.
            (TransferType::Isochronous, UsbSpeed::Full) => self.packet_bytes_max.min(1023),
            (TransferType::Interrupt, UsbSpeed::Full) => self.packet_bytes_max.min(64),
            (TransferType::Interrupt, UsbSpeed::Low) => self.packet_bytes_max.min(8),
            _ => self.packet_bytes_max,
        };
        let attributes = match self.kind {
            // Data (USB 2.0 table 9-13): no feedback is implied.
            TransferType::Isochronous => 0x01 | (self.synchronization as u8) << 2,
            kind => kind.as_attributes(),
        };
        let [low, high] = max.to_le_bytes();
        let length = 7 + self.tail.len() as u8;
        let address = self.address.as_byte();
        bytes.extend([length, kind::ENDPOINT, address, attributes, low, high, self.interval_field(speed)]);
        bytes.extend(&self.tail);
        if speed >= UsbSpeed::Super {
            let interval_bytes = if self.interval.is_zero() { 0 } else { max };
            let [low, high] = interval_bytes.to_le_bytes();
            bytes.extend([6, kind::SS_ENDPOINT_COMPANION, 0, 0, low, high]);
        }
        bytes.extend(&self.class_descriptors);
    }

    /// `bInterval`, rounded down to a value that the speed can express: the endpoint is polled at least as often as
    /// declared.
    fn interval_field(&self, speed: UsbSpeed) -> u8 {
        if self.interval.is_zero() {
            return 0;
        }
        let linear = !speed.has_microframes() && self.kind == TransferType::Interrupt;
        let unit_us = if speed.has_microframes() { 125 } else { 1000 };
        let units = (self.interval.as_micros() / unit_us).max(1);
        if linear { units.min(255) as u8 } else { (units.ilog2() + 1).min(16) as u8 }
    }
}

/// The binary object store a SuperSpeed device must have (USB 3.2 §9.6.2): USB 2.0 extension and
/// SuperSpeed capability (full speed and up, no latency of link states claimed).
fn bos_bytes() -> Vec<u8> {
    let mut bytes = vec![5, kind::BOS, 22, 0, 2];
    bytes.extend([7, 16, 2, 0, 0, 0, 0]);
    bytes.extend([10, 16, 3, 0, 0x0e, 0, 1, 0, 0, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(speed: UsbSpeed) -> DescriptorSet {
        DeviceDefinition::new(0x0525, 0xa4a0)
            .speed(speed)
            .names("farbus", "sample", "")
            .interface(
                InterfaceDefinition::vendor()
                    .class_descriptors(&[3, 0x24, 7])
                    .bulk_pair(1)
                    .interrupt(2, TransferDirection::In, 8, Duration::from_millis(10))
                    .isochronous(3, TransferDirection::Out, 192, Duration::from_millis(1)),
            )
            .interface(InterfaceDefinition::vendor().alternate_of_previous())
            .interface(InterfaceDefinition::new(3, 1, 1))
            .build()
    }

    #[test]
    fn host_reads_the_descriptors_that_were_declared() {
        let all = sample(UsbSpeed::High);
        assert_eq!(DeviceDescriptor::parse(&all.device.to_bytes()).unwrap(), all.device);
        assert_eq!(all.title(), "farbus sample");
        assert_eq!(all.device.serial_string, 0);
        let configuration = &all.configurations[0];
        assert_eq!(configuration.bytes[4], 2, "two interfaces");
        let shape: Vec<_> = configuration.settings.iter().map(|s| (s.interface, s.alternate)).collect();
        assert_eq!(shape, [(0, 0), (0, 1), (1, 0)]);
        let endpoints = &configuration.settings[0].endpoints;
        assert_eq!(endpoints[0].packet_bytes_max, 512);
        assert_eq!(endpoints[2].service_interval(UsbSpeed::High), Duration::from_millis(8));
        assert_eq!(endpoints[3].service_interval(UsbSpeed::High), Duration::from_millis(1));
    }

    #[test]
    fn a_function_of_two_interfaces_says_so_and_may_name_a_text() {
        let all = DeviceDefinition::new(1, 2)
            .names("farbus", "sample", "")
            .text("02A0")
            .interface(InterfaceDefinition::new(2, 13, 0).associated(2))
            .interface(InterfaceDefinition::new(10, 0, 1))
            .build();
        assert_eq!(all.string(3), Some("02A0"));
        assert_eq!(all.configurations[0].bytes[9..17], [8, 11, 0, 2, 2, 13, 0, 0]);
        assert_eq!(all.configurations[0].bytes[18], kind::INTERFACE);
    }

    #[test]
    fn a_named_interface_has_a_string_after_all_others() {
        let all = DeviceDefinition::new(1, 2)
            .names("farbus", "sample", "")
            .text("02A0")
            .interface(InterfaceDefinition::vendor())
            .interface(InterfaceDefinition::vendor().name("second"))
            .build();
        let bytes = &all.configurations[0].bytes;
        assert_eq!([bytes[17], bytes[26], all.other_speed[26]], [0, 4, 4]);
        assert_eq!((all.string(3), all.string(4), all.string(5)), (Some("02A0"), Some("second"), None));
    }

    #[test]
    fn every_speed_has_its_own_numbers() {
        assert_eq!(sample(UsbSpeed::Full).configurations[0].settings[0].endpoints[0].packet_bytes_max, 64);
        let all = sample(UsbSpeed::Super);
        assert_eq!(all.configurations[0].settings[0].endpoints[0].packet_bytes_max, 1024);
        assert_eq!((all.device.max_packet_0, all.bos.len()), (9, usize::from(all.bos[2])));
        assert_eq!(
            sample(UsbSpeed::Full).configurations[0].settings[0].endpoints[2].service_interval(UsbSpeed::Full),
            Duration::from_millis(10)
        );
    }

    #[test]
    fn a_high_speed_device_tells_of_its_other_speed() {
        let all = sample(UsbSpeed::High);
        assert_eq!(all.qualifier().unwrap()[..4], [10, 6, 0x00, 0x02]);
        let mut other = all.other_speed.clone();
        assert_eq!(std::mem::replace(&mut other[1], kind::CONFIGURATION), kind::OTHER_SPEED);
        let other = UsbConfiguration::parse(&other).unwrap();
        assert_eq!(other.settings[0].endpoints[0].packet_bytes_max, 64);
        assert_eq!(sample(UsbSpeed::Full).qualifier(), None);
    }

    #[test]
    fn selecting_changes_which_endpoints_are_active() {
        let all = sample(UsbSpeed::High);
        let mut selection = crate::descriptor::ConfigurationSelection::default();
        let bulk = EpAddr::from_byte(0x81);
        assert!(selection.endpoint(bulk).is_none());
        assert!(!selection.select_configuration(&all, 2));
        assert!(selection.select_configuration(&all, 1));
        assert!(selection.endpoint(bulk).is_some());
        assert!(!selection.select_interface(&all, 0, 7));
        assert!(selection.select_interface(&all, 0, 1));
        assert_eq!((selection.endpoint(bulk), selection.alternate(0)), (None, 1));
        selection.clear();
        assert_eq!(selection.configuration(), 0);
    }
}
