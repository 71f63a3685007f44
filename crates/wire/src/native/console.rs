//! The console class: what the serial ports of a USB device send to their user, for an observer (requirement N6).
//!
//! ```text
//!   description   count 1   of each port: endpoint 1   kind 1
//!   event         0 endpoint 1   1 zeros 3   4 lost 4   8 moment 8   then the bytes
//! ```
//!
//! An exporter of an earlier version refuses the class ([`super::control::AttachmentEndCause::Class`]), so nobody gets
//! an event that it does not expect.

use std::fmt;

use farbus_model::limits::CONSOLE_PORTS_MAX;
use farbus_model::{EpAddr, Payload, TransferDirection};

use super::message::ClassPart;
use super::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// How a serial port sends its bytes. A later version may know further kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortKind(pub u8);

impl PortKind {
    /// The data interface of a CDC-ACM function (USB CDC PSTN 1.2 §3.6).
    pub const CDC_ACM: Self = Self(1);
    /// A chip of FTDI.
    pub const FTDI: Self = Self(2);
    /// CP210x of Silicon Labs.
    pub const CP210X: Self = Self(3);
    /// CH340 and CH341 of WCH.
    pub const CH34X: Self = Self(4);
    /// PL2303 of Prolific.
    pub const PL2303: Self = Self(5);
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::CDC_ACM => "CDC-ACM",
            Self::FTDI => "FTDI",
            Self::CP210X => "CP210x",
            Self::CH34X => "CH340/341",
            Self::PL2303 => "PL2303",
            _ => "serial port",
        })
    }
}

/// A serial port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsolePort {
    /// The bulk IN endpoint that carries what it sends.
    pub endpoint: EpAddr,
    /// How it sends it.
    pub kind: PortKind,
}

/// The description of a console, as [`super::control::OpenReply`] carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleDescription {
    /// Its ports, 1 to [`CONSOLE_PORTS_MAX`].
    pub ports: Vec<ConsolePort>,
}

impl ConsoleDescription {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let ports = &self.ports[..self.ports.len().min(CONSOLE_PORTS_MAX)];
        let mut bytes = vec![ports.len() as u8];
        bytes.extend(ports.iter().flat_map(|port| [port.endpoint.as_byte(), port.kind.0]));
        bytes
    }

    /// Decodes a description. Bytes behind it are of a later version.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no device has such ports.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let count = reader.u8("ports")?;
        if !(1..=CONSOLE_PORTS_MAX).contains(&usize::from(count)) {
            return Err(ProtocolViolation::new("ports", count.into(), "a device has 1 to 15 of them"));
        }
        let mut ports = Vec::with_capacity(count.into());
        for _ in 0..count {
            let endpoint = port_of(reader.u8("endpoint")?)?;
            ports.push(ConsolePort { endpoint, kind: PortKind(reader.u8("port kind")?) });
        }
        Ok(Self { ports })
    }
}

fn port_of(byte: u8) -> Result<EpAddr, ProtocolViolation> {
    let endpoint = EpAddr::from_byte(byte);
    if endpoint.direction() != TransferDirection::In || endpoint.number() == 0 || endpoint.as_byte() != byte {
        return Err(ProtocolViolation::new("endpoint", byte.into(), "a port sends by an IN endpoint, 1 to 15"));
    }
    Ok(endpoint)
}

/// Bytes of an event before what the port sent.
pub const EVENT_BYTES: usize = 16;

/// What a port sent.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsoleOutput {
    /// The endpoint of the port.
    pub endpoint: EpAddr,
    /// Bytes that ports of the device sent before and that were not sent on, because this observer read too slowly.
    pub lost: u32,
    /// When the first of the bytes arrived, ns of an exporter's clock: comparable with other events of the attachment.
    pub moment_ns: u64,
    /// The bytes, as the port's user reads them.
    pub data: Payload,
}

impl ConsoleOutput {
    /// The class part of its message; the data follows.
    pub fn part(&self) -> ClassPart {
        let mut part = ClassPart::empty();
        part.put(&[self.endpoint.as_byte(), 0, 0, 0]);
        part.put(&self.lost.to_le_bytes());
        part.put(&self.moment_ns.to_le_bytes());
        part
    }

    /// Decodes an event from its whole message.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no port sends this.
    pub fn decode(mut message: Payload) -> Result<Self, ProtocolViolation> {
        let part = message.split_front(EVENT_BYTES);
        let bytes = part.contiguous();
        let mut reader = FieldReader::new(&bytes);
        let endpoint = port_of(reader.u8("endpoint")?)?;
        // A later version may say something here.
        let _ = (reader.u8("zeros")?, reader.u16("zeros")?);
        let (lost, moment_ns) = (reader.u32("lost")?, reader.u64("moment")?);
        Ok(Self { endpoint, lost, moment_ns, data: message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(endpoint: u8, kind: PortKind) -> ConsolePort {
        ConsolePort { endpoint: EpAddr::from_byte(endpoint), kind }
    }

    #[test]
    fn a_description_survives_the_way_and_one_without_ports_or_with_too_many_is_refused() {
        let all = ConsoleDescription { ports: vec![port(0x81, PortKind::FTDI), port(0x83, PortKind(200))] };
        let bytes = all.encode();
        assert_eq!(ConsoleDescription::decode(&bytes), Ok(all.clone()));
        assert_eq!(ConsoleDescription::decode(&[&bytes[..], &[9]].concat()), Ok(all), "a later version may say more");
        assert!((0..bytes.len()).all(|end| ConsoleDescription::decode(&bytes[..end]).is_err()));
        assert_eq!(ConsoleDescription::decode(&[0]).unwrap_err().field, "ports");
        assert_eq!(ConsoleDescription::decode(&[16; 40]).unwrap_err().field, "ports");
        for byte in [0x01, 0x80, 0x91] {
            assert_eq!(ConsoleDescription::decode(&[1, byte, 1]).unwrap_err().field, "endpoint", "{byte:#x}");
        }
        let many = ConsoleDescription { ports: vec![port(0x81, PortKind::FTDI); 300] };
        assert_eq!(ConsoleDescription::decode(&many.encode()).map(|known| known.ports.len()), Ok(CONSOLE_PORTS_MAX));
    }

    #[test]
    fn an_event_survives_the_way_and_not_without_the_end_of_its_head() {
        let endpoint = EpAddr::from_byte(0x82);
        let event =
            ConsoleOutput { endpoint, lost: 70_000, moment_ns: 1 << 40, data: Payload::from(b"login: ".as_slice()) };
        let whole = [&event.part()[..], b"login: "].concat();
        assert_eq!(ConsoleOutput::decode(whole.clone().into()), Ok(event));
        assert!((0..EVENT_BYTES).all(|end| ConsoleOutput::decode(whole[..end].to_vec().into()).is_err()));
        let evil = [&[0x02][..], &whole[1..]].concat();
        assert_eq!(ConsoleOutput::decode(evil.into()).unwrap_err().field, "endpoint");
    }
}
