//! Serial consoles of USB devices: which bulk endpoints an observer may be shown, and what of their transfers is what
//! the port sent (requirement N6).
//!
//! | device | interface | what of a transfer is shown |
//! |---|---|---|
//! | any | CDC data (class 10) that the union or call management descriptor of an ACM function (class 2, subclass 2, protocol 0 to 6) names | all |
//! | FTDI: 0403:6001, 6010, 6011, 6014, 6015 | vendor-specific, with a bulk IN and a bulk OUT endpoint | each packet without its first two bytes, the state of modem and line |
//! | CP210x: 10c4:ea60, ea61, ea63, ea70, ea71 | the same | all |
//! | CH340 and CH341: 1a86:5523, 7522, 7523 | the same | all |
//! | PL2303: 067b:2303, 2304, 23a3, 23b3, 23c3, 23d3, 23e3, 23f3 | the same | all |
//!
//! No other bulk endpoint is shown: no disk's, printer's, smart card reader's or network adapter's (RNDIS is class 2,
//! subclass 2, protocol 255; ECM and NCM have other subclasses). What the user of a port sends to it is not shown,
//! because it may contain passwords. What the device sends back of it (an echo) is.

use std::collections::VecDeque;

use farbus_model::descriptor::{AltSetting, ConfigurationSelection, UsbConfiguration};
use farbus_model::limits::{CONSOLE_BYTES_MAX, CONSOLE_EVENT_BYTES_MAX, CONSOLE_EVENTS_MAX, CONSOLE_PORTS_MAX};
use farbus_model::{DescriptorSet, EpAddr, Instant, TransferDirection, TransferType};
use farbus_wire::native::console::{self, ConsoleDescription, ConsoleOutput, PortKind};

/// Descriptor types (USB 2.0 table 9-5; CDC 1.2 table 12) and subtypes of CDC (table 13; PSTN 1.2 §5.3.1).
const INTERFACE: u8 = 4;
const CS_INTERFACE: u8 = 0x24;
const CALL_MANAGEMENT: u8 = 1;
const UNION: u8 = 6;
/// CDC 1.2 §4: class Communications, subclass Abstract Control Model, its last protocol; class Data.
const COMMUNICATIONS: u8 = 2;
const ACM: u8 = 2;
const ACM_PROTOCOL_MAX: u8 = 6;
const CDC_DATA: u8 = 10;
const VENDOR_SPECIFIC: u8 = 0xff;
/// Bytes at the front of each packet of an FTDI chip: the state of modem and line.
const FTDI_STATUS_BYTES: usize = 2;

/// The chips whose ports are known without a class: vendor, products, kind. The drivers `ftdi_sio`, `cp210x`, `ch341`
/// and `pl2303` of Linux list these, and others' products with the same chips.
const CHIPS: [(u16, &[u16], PortKind); 4] = [
    (0x0403, &[0x6001, 0x6010, 0x6011, 0x6014, 0x6015], PortKind::FTDI),
    (0x10c4, &[0xea60, 0xea61, 0xea63, 0xea70, 0xea71], PortKind::CP210X),
    (0x1a86, &[0x5523, 0x7522, 0x7523], PortKind::CH34X),
    (0x067b, &[0x2303, 0x2304, 0x23a3, 0x23b3, 0x23c3, 0x23d3, 0x23e3, 0x23f3], PortKind::PL2303),
];

/// A serial port, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSerialPort {
    /// The bulk IN endpoint that carries what it sends, and how.
    pub port: console::ConsolePort,
    configuration: u8,
    interface: u8,
    alternate: u8,
    packet_bytes: usize,
}

impl DeviceSerialPort {
    /// Whether this endpoint is the port while that is selected: in another configuration or setting it may be
    /// something else.
    pub fn is_at(&self, endpoint: EpAddr, selection: &ConfigurationSelection) -> bool {
        self.port.endpoint == endpoint
            && selection.configuration() == self.configuration
            && selection.alternate(self.interface) == self.alternate
    }

    /// What the port sent, of the bytes that a transfer moved.
    pub fn sent<'d>(&self, moved: &'d [u8]) -> impl Iterator<Item = &'d [u8]> {
        let (packet, skipped) = match self.port.kind {
            PortKind::FTDI => (self.packet_bytes, FTDI_STATUS_BYTES),
            _ => (moved.len(), 0),
        };
        moved.chunks(packet.max(1)).filter_map(move |packet| packet.get(skipped..)).filter(|sent| !sent.is_empty())
    }
}

/// Whether vendor and product id are those of a common serial adapter whose class is the vendor's own.
pub fn is_adapter(ids: (u16, u16)) -> bool {
    chip(ids).is_some()
}

fn chip((vendor, product): (u16, u16)) -> Option<PortKind> {
    let chip = CHIPS.iter().find(|(of, products, _)| *of == vendor && products.contains(&product));
    chip.map(|(.., kind)| *kind)
}

/// The serial ports of a device, at most [`CONSOLE_PORTS_MAX`] of each configuration.
pub fn ports(all: &DescriptorSet) -> Vec<DeviceSerialPort> {
    let chip = chip((all.device.vendor, all.device.product));
    let of = |configuration| ports_of(configuration, chip).take(CONSOLE_PORTS_MAX);
    all.configurations.iter().flat_map(of).collect()
}

fn ports_of(configuration: &UsbConfiguration, chip: Option<PortKind>) -> impl Iterator<Item = DeviceSerialPort> {
    let data = acm_data_interfaces(&configuration.bytes);
    let kind_of = move |setting: &AltSetting| match setting.class[0] {
        CDC_DATA if data.contains(&setting.interface) => Some(PortKind::CDC_ACM),
        VENDOR_SPECIFIC if bulk(setting, TransferDirection::Out).is_some() => chip,
        _ => None,
    };
    configuration.settings.iter().filter_map(move |setting| {
        let kind = kind_of(setting)?;
        let (endpoint, packet_bytes) = bulk(setting, TransferDirection::In)?;
        // Packets that hold nothing but their state have nothing to show.
        let is_empty = kind == PortKind::FTDI && packet_bytes <= FTDI_STATUS_BYTES;
        (!is_empty && endpoint.number() > 0).then_some(DeviceSerialPort {
            port: console::ConsolePort { endpoint, kind },
            configuration: configuration.value,
            interface: setting.interface,
            alternate: setting.alternate,
            packet_bytes,
        })
    })
}

fn bulk(setting: &AltSetting, direction: TransferDirection) -> Option<(EpAddr, usize)> {
    let mut endpoints = setting.endpoints.iter();
    let found = endpoints.find(|e| e.kind == TransferType::Bulk && e.address.direction() == direction)?;
    Some((found.address, found.packet_bytes_max.into()))
}

/// The interfaces that carry the data of ACM functions: what their union descriptors name; without one, what their call
/// management does.
fn acm_data_interfaces(bytes: &[u8]) -> Vec<u8> {
    let (mut united, mut managed) = (Vec::new(), Vec::new());
    let mut is_acm = false;
    let mut rest = bytes;
    while let Some(&length) = rest.first() {
        let Some((descriptor, behind)) = rest.split_at_checked(usize::from(length).max(2)) else { break };
        rest = behind;
        match *descriptor {
            [_, INTERFACE, _, _, _, class, subclass, protocol, ..] => {
                is_acm = class == COMMUNICATIONS && subclass == ACM && protocol <= ACM_PROTOCOL_MAX;
            }
            [_, CS_INTERFACE, UNION, _, ref data @ ..] if is_acm => united.extend_from_slice(data),
            [_, CS_INTERFACE, CALL_MANAGEMENT, _, data, ..] if is_acm => managed.push(data),
            _ => {}
        }
    }
    if united.is_empty() { managed } else { united }
}

/// What observers of a console are told first; `None`: the device has no port.
pub fn described(ports: &[DeviceSerialPort]) -> Option<ConsoleDescription> {
    let mut console_ports: Vec<console::ConsolePort> = Vec::new();
    for DeviceSerialPort { port, .. } in ports {
        // Another configuration or setting may have a port at the same endpoint.
        if console_ports.len() < CONSOLE_PORTS_MAX && console_ports.iter().all(|known| known.endpoint != port.endpoint)
        {
            console_ports.push(*port);
        }
    }
    (!console_ports.is_empty()).then_some(ConsoleDescription { ports: console_ports })
}

/// What waits for one observer of a console: at most [`CONSOLE_BYTES_MAX`] in [`CONSOLE_EVENTS_MAX`] pieces. What is
/// too much displaces the oldest.
#[derive(Debug, Default)]
pub struct ConsoleQueue {
    pieces: VecDeque<ConsoleChunk>,
    bytes: usize,
    lost: u32,
}

#[derive(Debug)]
struct ConsoleChunk {
    endpoint: EpAddr,
    moment_ns: u64,
    bytes: VecDeque<u8>,
}

impl ConsoleQueue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds what a port sent.
    pub fn add(&mut self, now: Instant, endpoint: EpAddr, sent: &[u8]) {
        // Of more than there is room for, the end is kept.
        let (early, late) = sent.split_at(sent.len().saturating_sub(CONSOLE_BYTES_MAX));
        if !early.is_empty() {
            self.lose_front(usize::MAX);
            self.lost = self.lost.saturating_add(u32::try_from(early.len()).unwrap_or(u32::MAX));
        }
        self.lose_front((self.bytes + late.len()).saturating_sub(CONSOLE_BYTES_MAX));
        let mut rest = late;
        while !rest.is_empty() {
            let last = self.pieces.back_mut();
            let room = last.as_ref().filter(|last| last.endpoint == endpoint);
            let room = room.map_or(0, |last| CONSOLE_EVENT_BYTES_MAX - last.bytes.len());
            match last {
                Some(last) if room > 0 => {
                    let (taken, left) = rest.split_at(rest.len().min(room));
                    last.bytes.extend(taken);
                    self.bytes += taken.len();
                    rest = left;
                }
                _ => {
                    if self.pieces.len() >= CONSOLE_EVENTS_MAX {
                        let oldest = self.pieces.front().map_or(0, |piece| piece.bytes.len());
                        self.lose_front(oldest);
                    }
                    self.pieces.push_back(ConsoleChunk { endpoint, moment_ns: now.as_nanos(), bytes: VecDeque::new() });
                }
            }
        }
    }

    /// Drops this many of the oldest bytes, or all.
    fn lose_front(&mut self, count: usize) {
        let mut left = count.min(self.bytes);
        self.bytes -= left;
        self.lost = self.lost.saturating_add(u32::try_from(left).unwrap_or(u32::MAX));
        while left > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let gone = left.min(front.bytes.len());
            front.bytes.drain(..gone);
            left -= gone;
            if front.bytes.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Takes the oldest piece.
    pub fn take(&mut self) -> Option<ConsoleOutput> {
        let ConsoleChunk { endpoint, moment_ns, bytes } = self.pieces.pop_front()?;
        self.bytes -= bytes.len();
        Some(ConsoleOutput { endpoint, lost: std::mem::take(&mut self.lost), moment_ns, data: Vec::from(bytes).into() })
    }
}
