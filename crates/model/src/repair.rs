//! Reading a configuration whose bytes break the specification, as Linux does: `usb_parse_configuration` and what it
//! calls in `drivers/usb/core/config.c` (6.1). Both ends read so, and see the same interfaces and endpoints as a kernel
//! in their place.
//!
//! | the bytes | what is made of them |
//! |---|---|
//! | fewer than `wTotalLength`, a byte left over, a `bLength` of 0, 1 or beyond the end | what comes before counts |
//! | an interface or endpoint descriptor that is too short, an endpoint 0, reserved bits in its address | left out, with what belongs to it |
//! | an alternate setting or an endpoint twice, endpoints above `bNumEndpoints` | the first ones count |
//! | `bInterval`, `wMaxPacketSize`, a companion's burst out of range | the nearest that Linux takes |
//! | a bulk endpoint at low speed | an interrupt endpoint |
//!
//! The bytes stay as they came where a strict reader ([`UsbConfiguration::parse`]) can follow them: peers of earlier
//! versions are strict, and programs look at them. What such a reader refuses is left out, and `wTotalLength` is what
//! is left.

use std::fmt;

use crate::descriptor::{
    AltSetting, CONFIGURATION_BYTES_MAX, DescriptorError, DeviceDescriptor, EndpointDescriptor, UsbConfiguration, kind,
};
use crate::usb::{EpAddr, TransferType, UsbSpeed};

/// Interfaces of a configuration (Linux's `USB_MAXINTERFACES`).
const INTERFACES_MAX: usize = 32;
/// Alternate settings of an interface (Linux's `USB_MAXALTSETTING`).
const ALTERNATES_MAX: usize = 128;
/// Endpoints of an alternate setting (Linux's `USB_MAXENDPOINTS`).
const ENDPOINTS_MAX: usize = 30;
/// Bits of `bEndpointAddress` that are zero (USB 2.0 §9.6.6).
const RESERVED_ADDRESS_BITS: u8 = 0x70;
/// Bytes of a SuperSpeed endpoint companion.
const COMPANION_BYTES: usize = 6;

/// Something that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorRepair {
    /// Where it was seen first, in bytes from the start of its descriptor set.
    pub offset: usize,
    /// What was broken, and what was made of it.
    pub rule: &'static str,
}

impl fmt::Display for DescriptorRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor byte {}: {}", self.offset, self.rule)
    }
}

/// What was repaired in a device's descriptors, each kind once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorRepairs(Vec<DescriptorRepair>);

impl DescriptorRepairs {
    /// Notes a repair, unless there was one of its kind.
    pub fn note(&mut self, offset: usize, rule: &'static str) {
        if self.0.iter().all(|known| known.rule != rule) {
            self.0.push(DescriptorRepair { offset, rule });
        }
    }

    /// The repairs, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &DescriptorRepair> {
        self.0.iter()
    }

    /// Whether nothing was repaired.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeviceDescriptor {
    /// Reads a device descriptor, whatever it says of its own length.
    ///
    /// # Errors
    /// Fewer than 18 bytes came, or they are no device descriptor.
    pub fn read(bytes: &[u8], repairs: &mut DescriptorRepairs) -> Result<Self, DescriptorError> {
        let mut whole: [u8; Self::BYTES] =
            *bytes.first_chunk().ok_or(DescriptorError { offset: 0, rule: "a device descriptor has 18 bytes" })?;
        if usize::from(whole[0]) != Self::BYTES {
            repairs.note(0, "bLength of a device descriptor is not 18: taken for that");
            whole[0] = Self::BYTES as u8;
        }
        Self::parse(&whole)
    }
}

impl UsbConfiguration {
    /// Reads the configuration of a device that runs at `speed` from what came of it, and notes what it repairs.
    ///
    /// # Errors
    /// The first nine bytes are not there or are no configuration descriptor.
    pub fn read(bytes: &[u8], speed: UsbSpeed, repairs: &mut DescriptorRepairs) -> Result<Self, DescriptorError> {
        let Some(&[length, kind::CONFIGURATION, low, high, interfaces, value, ..]) = bytes.first_chunk::<9>() else {
            return Err(DescriptorError { offset: 0, rule: "a configuration descriptor has 9 bytes, and type 2" });
        };
        let header = usize::from(length);
        if !(Self::HEADER_BYTES..=bytes.len()).contains(&header) {
            return Err(DescriptorError { offset: 0, rule: "bLength of a configuration is 9 or more, and comes" });
        }
        let total = usize::from(u16::from_le_bytes([low, high]));
        if bytes.len() < total {
            repairs.note(2, "fewer bytes come than wTotalLength says: what comes counts");
        }
        let parts = parts_of(bytes, header, repairs);
        let end = parts.last().map_or(header, |part| part.offset + part.bytes.len());
        let mut reader = ConfigurationReader::new(&bytes[..end], speed, repairs, &parts);
        reader.kept.extend_from_slice(&bytes[..header]);
        for part in parts {
            reader.read_part(part);
        }
        reader.end_setting();
        if reader.interfaces.len() != usize::from(interfaces) {
            reader.repairs.note(4, "bNumInterfaces is not how many interfaces there are: the descriptors count");
        }
        let ConfigurationReader { mut kept, settings, .. } = reader;
        let total = u16::try_from(kept.len()).unwrap_or(u16::MAX);
        kept[2..4].copy_from_slice(&total.to_le_bytes());
        Ok(Self { bytes: kept, value, settings })
    }
}

/// A descriptor inside a configuration.
#[derive(Clone, Copy)]
struct DescriptorAt<'a> {
    offset: usize,
    bytes: &'a [u8],
}

/// The descriptors behind a configuration's own, up to the first whose length is wrong.
fn parts_of<'a>(bytes: &'a [u8], header: usize, repairs: &mut DescriptorRepairs) -> Vec<DescriptorAt<'a>> {
    let mut parts = Vec::new();
    let mut offset = header;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let length = usize::from(rest[0]);
        if rest.len() < 2 {
            repairs.note(offset, "a byte is left over: ignored");
            break;
        }
        if !(2..=rest.len()).contains(&length) {
            repairs.note(offset, "bLength is below 2 or beyond the end: what is before it counts");
            break;
        }
        parts.push(DescriptorAt { offset, bytes: &rest[..length] });
        offset += length;
    }
    parts
}

/// What follows an interface or endpoint descriptor that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadingPosition {
    /// No interface yet, or one that is left out. `is_kept`: its bytes stay.
    Outside { is_kept: bool },
    /// In a setting. `endpoints_max`: what its descriptor says; `seen`: endpoint descriptors so far.
    Inside { endpoints_max: u8, seen: usize },
}

/// How many settings an interface has.
struct InterfaceSettings {
    number: u8,
    /// How many descriptors say so.
    there_are: usize,
    /// How many were read.
    read: usize,
}

struct ConfigurationReader<'a> {
    bytes: &'a [u8],
    speed: UsbSpeed,
    repairs: &'a mut DescriptorRepairs,
    interfaces: Vec<InterfaceSettings>,
    settings: Vec<AltSetting>,
    kept: Vec<u8>,
    position: ReadingPosition,
    /// Whether the last endpoint still awaits its companion.
    awaits_companion: bool,
    /// Whether the kept bytes have an endpoint in this setting.
    has_kept_endpoint: bool,
}

impl<'a> ConfigurationReader<'a> {
    fn new(bytes: &'a [u8], speed: UsbSpeed, repairs: &'a mut DescriptorRepairs, parts: &[DescriptorAt<'_>]) -> Self {
        let mut interfaces: Vec<InterfaceSettings> = Vec::new();
        for part in parts.iter().filter(|part| part.bytes[1] == kind::INTERFACE && part.bytes.len() >= 9) {
            let number = part.bytes[2];
            match interfaces.iter().position(|known| known.number == number) {
                Some(at) => interfaces[at].there_are = (interfaces[at].there_are + 1).min(ALTERNATES_MAX),
                None if interfaces.len() < INTERFACES_MAX => {
                    interfaces.push(InterfaceSettings { number, there_are: 1, read: 0 })
                }
                None => {}
            }
        }
        Self {
            bytes,
            speed,
            repairs,
            interfaces,
            settings: Vec::new(),
            kept: Vec::new(),
            position: ReadingPosition::Outside { is_kept: true },
            awaits_companion: false,
            has_kept_endpoint: false,
        }
    }

    fn read_part(&mut self, part: DescriptorAt<'_>) {
        if part.bytes[1] == kind::INTERFACE {
            self.end_setting();
            return self.read_interface(part);
        }
        match self.position {
            ReadingPosition::Outside { is_kept } => {
                if part.bytes[1] == kind::ENDPOINT && self.settings.is_empty() {
                    self.repairs.note(part.offset, "an endpoint precedes every interface: left out");
                }
                if is_kept {
                    self.keep(part);
                }
            }
            ReadingPosition::Inside { endpoints_max, seen } if part.bytes[1] == kind::ENDPOINT => {
                self.end_endpoint(part.offset);
                self.position = ReadingPosition::Inside { endpoints_max, seen: seen + 1 };
                self.read_endpoint(part, endpoints_max);
            }
            ReadingPosition::Inside { .. } if std::mem::take(&mut self.awaits_companion) => self.read_companion(part),
            ReadingPosition::Inside { .. } => self.keep(part),
        }
    }

    /// Keeps the bytes of a descriptor, unless a strict reader refuses it.
    fn keep(&mut self, part: DescriptorAt<'_>) {
        let can_be_read = match part.bytes[1] {
            kind::ENDPOINT => part.bytes.len() >= 7 && !self.settings.is_empty(),
            kind::SS_ENDPOINT_COMPANION => part.bytes.len() >= COMPANION_BYTES && self.has_kept_endpoint,
            _ => true,
        };
        if can_be_read {
            self.has_kept_endpoint |= part.bytes[1] == kind::ENDPOINT;
            self.keep_bytes(part.bytes);
        }
    }

    fn keep_bytes(&mut self, bytes: &[u8]) {
        // Companions that were longer than they said make more of a configuration that was full already.
        if self.kept.len() + bytes.len() <= CONFIGURATION_BYTES_MAX {
            self.kept.extend_from_slice(bytes);
        }
    }

    fn read_interface(&mut self, part: DescriptorAt<'_>) {
        self.has_kept_endpoint = false;
        let Some(&[_, _, interface, alternate, endpoints, class, subclass, protocol, name_string]) =
            part.bytes.first_chunk::<9>()
        else {
            self.repairs.note(part.offset, "an interface descriptor is below 9 bytes: left out with its endpoints");
            self.position = ReadingPosition::Outside { is_kept: false };
            return;
        };
        let is_twice = self.settings.iter().any(|known| (known.interface, known.alternate) == (interface, alternate));
        let known = self.interfaces.iter_mut().find(|known| known.number == interface);
        match known.filter(|known| known.read < known.there_are && !is_twice) {
            Some(known) => known.read += 1,
            None => {
                let rule = match is_twice {
                    true => "an alternate setting comes twice: the first counts",
                    false => "there are more than 32 interfaces, or 128 settings of one: left out",
                };
                self.repairs.note(part.offset, rule);
                self.position = ReadingPosition::Outside { is_kept: true };
                return self.keep(part);
            }
        }
        let class = [class, subclass, protocol];
        self.settings.push(AltSetting { interface, alternate, class, name_string, endpoints: Vec::new() });
        self.position = ReadingPosition::Inside { endpoints_max: endpoints, seen: 0 };
        self.keep(part);
    }

    /// What is due when a setting's descriptors are over.
    fn end_setting(&mut self) {
        let end = self.kept.len();
        self.end_endpoint(end);
        if let ReadingPosition::Inside { endpoints_max, seen } = self.position
            && seen != usize::from(endpoints_max)
        {
            let rule = "bNumEndpoints is not how many endpoints there are: at most so many count";
            self.repairs.note(end, rule);
        }
    }

    /// What is due when an endpoint's descriptors are over.
    fn end_endpoint(&mut self, offset: usize) {
        if std::mem::take(&mut self.awaits_companion) {
            self.repairs.note(offset, "a SuperSpeed endpoint has no companion: one packet in each interval");
        }
    }

    fn read_endpoint(&mut self, part: DescriptorAt<'_>, endpoints_max: u8) {
        let Some(&[_, _, address, attributes, low, high, interval]) = part.bytes.first_chunk::<7>() else {
            self.repairs.note(part.offset, "an endpoint descriptor is below 7 bytes: left out");
            return;
        };
        self.keep(part);
        if address & RESERVED_ADDRESS_BITS != 0 {
            return self.repairs.note(part.offset, "an endpoint address has reserved bits: left out");
        }
        let (address, kind) = (EpAddr::from_byte(address), TransferType::from_attributes(attributes));
        if address.is_control() {
            return self.repairs.note(part.offset, "an endpoint is number 0: left out");
        }
        let setting = self.settings.last().expect("an endpoint is read inside a setting");
        if setting.endpoints.len() >= usize::from(endpoints_max).min(ENDPOINTS_MAX) {
            return;
        }
        if self.is_twice(setting, address, kind) {
            return self.repairs.note(part.offset, "an endpoint address comes twice: the first counts");
        }
        let endpoint = self.repaired(part.offset, address, kind, u16::from_le_bytes([low, high]), interval);
        self.settings.last_mut().expect("looked at above").endpoints.push(endpoint);
        self.awaits_companion = self.speed >= UsbSpeed::Super;
    }

    /// Whether another interface, or this setting, has the endpoint. A control endpoint has both directions.
    fn is_twice(&self, own: &AltSetting, address: EpAddr, kind: TransferType) -> bool {
        let rivals =
            self.settings.iter().filter(|other| other.interface != own.interface || other.alternate == own.alternate);
        rivals.flat_map(|setting| &setting.endpoints).any(|other| {
            let is_control = kind == TransferType::Control || other.kind == TransferType::Control;
            other.address == address || (is_control && other.address.number() == address.number())
        })
    }

    fn repaired(
        &mut self,
        offset: usize,
        address: EpAddr,
        kind: TransferType,
        packet: u16,
        interval: u8,
    ) -> EndpointDescriptor {
        let mut interval = match usual_interval(interval, kind, self.speed) {
            Some(usual) => {
                self.repairs.note(offset, "bInterval is out of range: taken for what Linux takes it for");
                usual
            }
            None => interval,
        };
        let mut kind = kind;
        // The transactions of a periodic endpoint at high speed.
        let is_periodic = matches!(kind, TransferType::Interrupt | TransferType::Isochronous);
        let more = if self.speed == UsbSpeed::High && is_periodic { packet & 0x1800 } else { 0 };
        if self.speed == UsbSpeed::Low && kind == TransferType::Bulk {
            self.repairs.note(offset, "a bulk endpoint at low speed: taken for an interrupt endpoint");
            (kind, interval) = (TransferType::Interrupt, 1);
        }
        let (bytes, bytes_max) = (packet & !more, packet_bytes_max(kind, self.speed));
        if bytes > bytes_max {
            self.repairs.note(offset, "wMaxPacketSize is above the most of its kind: taken for that");
        }
        EndpointDescriptor {
            address,
            kind,
            packet_bytes_max: bytes.min(bytes_max),
            packets_per_interval: (more >> 11) + 1,
            interval,
        }
    }

    /// The descriptor behind an endpoint's at SuperSpeed: its companion, or none.
    fn read_companion(&mut self, part: DescriptorAt<'_>) {
        let six: Option<&[u8; COMPANION_BYTES]> = self.bytes[part.offset..].first_chunk();
        let Some(&[_, kind::SS_ENDPOINT_COMPANION, burst, attributes, low, high]) = six else {
            self.awaits_companion = true;
            self.end_endpoint(part.offset);
            return self.keep(part);
        };
        let endpoint = self.settings.last_mut().and_then(|setting| setting.endpoints.last_mut());
        let endpoint = endpoint.expect("a companion is awaited behind an endpoint");
        let burst_max = if endpoint.kind == TransferType::Control { 0 } else { 15 };
        let mult = if endpoint.kind == TransferType::Isochronous { u16::from(attributes & 3) + 1 } else { 1 };
        endpoint.packets_per_interval = (u16::from(burst.min(burst_max)) + 1) * mult.min(3);
        if burst > burst_max || mult > 3 {
            self.repairs.note(part.offset, "a companion's burst is out of range: taken for the most");
        }
        // Linux takes six bytes, whatever the companion says of its length.
        match part.bytes.len() >= COMPANION_BYTES {
            true => self.keep(part),
            false => self.keep_bytes(&[6, kind::SS_ENDPOINT_COMPANION, burst, attributes, low, high]),
        }
    }
}

/// What an interval that is out of range is taken for: many a high-speed device counts milliseconds.
fn usual_interval(interval: u8, kind: TransferType, speed: UsbSpeed) -> Option<u8> {
    let is_high = speed.has_microframes();
    match kind {
        TransferType::Interrupt if is_high && interval == 0 => Some(7),
        TransferType::Interrupt if is_high && interval > 16 => Some(interval.ilog2() as u8 + 4),
        TransferType::Interrupt if !is_high && interval == 0 => Some(10),
        TransferType::Isochronous if !(1..=16).contains(&interval) => Some(if speed == UsbSpeed::High { 7 } else { 4 }),
        _ => None,
    }
}

/// The largest packet that Linux accepts of an endpoint: 1024 for bulk at high speed, too, where 512 is right.
fn packet_bytes_max(kind: TransferType, speed: UsbSpeed) -> u16 {
    match (speed, kind) {
        (UsbSpeed::Low, TransferType::Control | TransferType::Interrupt) => 8,
        (UsbSpeed::Low, _) => 0,
        (UsbSpeed::Full, TransferType::Isochronous) => 1023,
        (UsbSpeed::Full, _) => 64,
        (UsbSpeed::High, TransferType::Control) => 64,
        (UsbSpeed::Super | UsbSpeed::SuperPlus, TransferType::Control) => 512,
        _ => 1024,
    }
}
