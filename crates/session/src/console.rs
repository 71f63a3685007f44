//! Serial consoles of USB devices: which bulk endpoints an observer may be shown, and what of their transfers is what
//! the port sent (requirement N6).
//!
//! Shown is what a port of [`farbus_model::serial_port`] sent: of an FTDI chip's packets what follows their first two
//! bytes, the state of modem and line. No other bulk endpoint is shown. What the user of a port sends to it is not
//! shown, because it may contain passwords. What the device sends back of it (an echo) is.

use std::collections::VecDeque;

use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::limits::{CONSOLE_BYTES_MAX, CONSOLE_EVENT_BYTES_MAX, CONSOLE_EVENTS_MAX, CONSOLE_PORTS_MAX};
use farbus_model::serial_port::{SerialChip, SerialPortInterface, serial_ports_of};
use farbus_model::{DescriptorSet, EpAddr, Instant};
use farbus_wire::native::console::{self, ConsoleDescription, ConsoleOutput, PortKind};

/// Bytes at the front of each packet of an FTDI chip: the state of modem and line.
const FTDI_STATUS_BYTES: usize = 2;

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

/// The serial ports of a device, at most [`CONSOLE_PORTS_MAX`] of each configuration.
pub fn ports(all: &DescriptorSet) -> Vec<DeviceSerialPort> {
    let of = |configuration| serial_ports_of(all, configuration).into_iter().filter_map(shown).take(CONSOLE_PORTS_MAX);
    all.configurations.iter().flat_map(of).collect()
}

/// What observers may be shown of a port.
fn shown(port: SerialPortInterface) -> Option<DeviceSerialPort> {
    let packet_bytes = usize::from(port.data_in.packet_bytes_max);
    // Packets that hold nothing but their state have nothing to show.
    let is_empty = port.chip == SerialChip::Ftdi && packet_bytes <= FTDI_STATUS_BYTES;
    (!is_empty).then_some(DeviceSerialPort {
        port: console::ConsolePort { endpoint: port.data_in.address, kind: kind_of(port.chip) },
        configuration: port.configuration,
        interface: port.interface,
        alternate: port.alternate,
        packet_bytes,
    })
}

fn kind_of(chip: SerialChip) -> PortKind {
    match chip {
        SerialChip::CdcAcm => PortKind::CDC_ACM,
        SerialChip::Ftdi => PortKind::FTDI,
        SerialChip::Cp210x => PortKind::CP210X,
        SerialChip::Ch34x => PortKind::CH34X,
        SerialChip::Pl2303 => PortKind::PL2303,
    }
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
