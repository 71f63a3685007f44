//! The bytes of USB/IP 0x0111: checked parsing of untrusted bytes, and encoders that cannot fail.
//!
//! Big-endian throughout; the eight setup bytes are USB's little-endian and pass verbatim. Source: the kernel's
//! `Documentation/usb/usbip_protocol.rst` and what real peers do where it is silent.

use core::fmt;

use farbus_model::limits::{ISO_PACKETS_MAX, URB_BYTES_MAX};
use farbus_model::{EpAddr, IsoPacket, SetupPacket, TransferDirection, UrbFlags, UrbStatus, UsbSpeed};

use super::status;
pub use crate::reject::ProtocolViolation;

/// The one version that today's clients accept; they compare it strictly.
pub const VERSION: u16 = 0x0111;
/// Version, code, status.
pub const OP_HEADER_BYTES: usize = 8;
/// Bytes of a bus id field, NUL padded.
pub const BUS_ID_BYTES: usize = 32;
/// Bytes of a device record without interfaces.
pub const DEVICE_RECORD_BYTES: usize = 312;
/// Bytes of every URB message's header.
pub const HEADER_BYTES: usize = 48;
/// Bytes of an isochronous packet descriptor.
pub const ISO_PACKET_BYTES: usize = 16;
/// Devices in one list: ten times the largest lab known. A list is read before the peer is trusted.
pub const DEVICES_MAX: u32 = 4096;

/// Operation codes of the handshake.
pub mod op {
    /// Client: list the devices.
    pub const REQ_DEVLIST: u16 = 0x8005;
    /// Server: the list.
    pub const REP_DEVLIST: u16 = 0x0005;
    /// Client: import this device.
    pub const REQ_IMPORT: u16 = 0x8003;
    /// Server: the device, or a refusal.
    pub const REP_IMPORT: u16 = 0x0003;
}

/// Command codes of URB messages.
pub mod command {
    /// Client: submit a URB.
    pub const CMD_SUBMIT: u32 = 1;
    /// Client: cancel a URB.
    pub const CMD_UNLINK: u32 = 2;
    /// Server: a URB ended.
    pub const RET_SUBMIT: u32 = 3;
    /// Server: a cancellation ended.
    pub const RET_UNLINK: u32 = 4;
}

/// The stable USBIP_URB_* transfer flags that mean something to a device; the rest are masked.
mod flag {
    pub const SHORT_NOT_OK: u32 = 0x0001;
    pub const ISO_ASAP: u32 = 0x0002;
    pub const ZERO_PACKET: u32 = 0x0040;
    pub const DIR_IN: u32 = 0x0200;
}

/// The handshake's status field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpStatus {
    /// The operation succeeded (`ST_OK`, 0).
    Ok,
    /// The device is not on offer (`ST_NA`, 1).
    NotAvailable,
    /// In use by another client.
    Busy,
    /// The device failed.
    DeviceError,
    /// No such device.
    NoDevice,
    /// Anything else, a wrong version among them.
    Error,
}

impl OpStatus {
    /// The wire's number.
    pub const fn code(self) -> u32 {
        match self {
            OpStatus::Ok => 0,
            OpStatus::NotAvailable => 1,
            OpStatus::Busy => 2,
            OpStatus::DeviceError => 3,
            OpStatus::NoDevice => 4,
            OpStatus::Error => 5,
        }
    }

    /// From the wire's number; unknown ones are [`OpStatus::Error`].
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => OpStatus::Ok,
            1 => OpStatus::NotAvailable,
            2 => OpStatus::Busy,
            3 => OpStatus::DeviceError,
            4 => OpStatus::NoDevice,
            _ => OpStatus::Error,
        }
    }
}

impl fmt::Display for OpStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpStatus::Ok => "done",
            OpStatus::NotAvailable => "the device is not offered",
            OpStatus::Busy => "the device is in use",
            OpStatus::DeviceError => "the device failed",
            OpStatus::NoDevice => "there is no such device",
            OpStatus::Error => "the request failed",
        })
    }
}

/// A device as lists and import replies show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// A path for people (at most 255 bytes on the wire).
    pub path: String,
    /// The bus id by which it is imported (at most 31 bytes).
    pub bus_id: String,
    /// The number of the device's bus on the exporter; the upper 16 bits of the device id.
    pub bus: u32,
    /// Device number on the bus; with `bus` it makes the device id.
    pub device: u32,
    /// The speed at which the device runs.
    pub speed: UsbSpeed,
    /// `idVendor` of the device descriptor.
    pub vendor: u16,
    /// `idProduct` of the device descriptor.
    pub product: u16,
    /// `bcdDevice` of the device descriptor.
    pub device_bcd: u16,
    /// Class, subclass, protocol of the device.
    pub class: [u8; 3],
    /// The active configuration's value.
    pub configuration: u8,
    /// How many configurations there are.
    pub configurations: u8,
    /// Class, subclass, protocol of each interface; lists carry them, import replies do not.
    pub interfaces: Vec<[u8; 3]>,
    /// `bNumInterfaces` as the record says.
    pub interface_count: u8,
}

impl DeviceRecord {
    /// The id that URB messages carry.
    pub const fn device_id(&self) -> u32 {
        self.bus << 16 | self.device & 0xffff
    }

    /// Appends the record; with `interfaces` in a list, without in an import reply.
    pub fn encode(&self, interfaces: bool, to: &mut Vec<u8>) {
        put_text(to, &self.path, 256);
        put_text(to, &self.bus_id, BUS_ID_BYTES);
        for word in [self.bus, self.device, speed_code(self.speed)] {
            to.extend(word.to_be_bytes());
        }
        for half in [self.vendor, self.product, self.device_bcd] {
            to.extend(half.to_be_bytes());
        }
        to.extend(self.class);
        to.extend([self.configuration, self.configurations, self.interface_count]);
        if interfaces {
            for class in &self.interfaces {
                to.extend(class);
                to.push(0);
            }
        }
    }

    /// Reads the 312 bytes; interfaces follow apart, `interface_count` of them.
    ///
    /// # Errors
    /// If a text is not text, or a number has no meaning.
    pub fn decode(b: &[u8; DEVICE_RECORD_BYTES]) -> Result<Self, ProtocolViolation> {
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let (bus, device) = (word(288), word(292));
        if bus > 0xffff || device > 0xffff {
            return Err(ProtocolViolation::new(
                "busnum or devnum",
                u64::from(bus.max(device)),
                "it has 16 bits in a device id",
            ));
        }
        Ok(Self {
            path: get_text(&b[..256], "path")?,
            bus_id: get_text(&b[256..288], "busid")?,
            bus,
            device,
            speed: speed_from_code(word(296))?,
            vendor: half(300),
            product: half(302),
            device_bcd: half(304),
            class: [b[306], b[307], b[308]],
            configuration: b[309],
            configurations: b[310],
            interface_count: b[311],
            interfaces: Vec::new(),
        })
    }
}

/// Linux's `enum usb_device_speed`.
pub const fn speed_code(speed: UsbSpeed) -> u32 {
    match speed {
        UsbSpeed::Low => 1,
        UsbSpeed::Full => 2,
        UsbSpeed::High => 3,
        UsbSpeed::Super => 5,
        UsbSpeed::SuperPlus => 6,
    }
}

/// Linux's `enum usb_device_speed`; wireless (4) counts as high, unknown (0) as full.
///
/// # Errors
/// Numbers above 6.
pub const fn speed_from_code(code: u32) -> Result<UsbSpeed, ProtocolViolation> {
    Ok(match code {
        1 => UsbSpeed::Low,
        0 | 2 => UsbSpeed::Full,
        3 | 4 => UsbSpeed::High,
        5 => UsbSpeed::Super,
        6 => UsbSpeed::SuperPlus,
        _ => return Err(ProtocolViolation::new("speed", code as u64, "it is at most 6")),
    })
}

fn put_text(to: &mut Vec<u8>, text: &str, bytes: usize) {
    let mut end = text.len().min(bytes - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    to.extend_from_slice(&text.as_bytes()[..end]);
    to.resize(to.len() + bytes - end, 0);
}

fn get_text(bytes: &[u8], field: &'static str) -> Result<String, ProtocolViolation> {
    let end = bytes.iter().position(|&byte| byte == 0);
    let end = end.ok_or(ProtocolViolation::new(field, bytes.len() as u64, "a text ends with NUL"))?;
    let text = std::str::from_utf8(&bytes[..end]).ok().filter(|text| !text.chars().any(char::is_control));
    text.map(str::to_owned).ok_or(ProtocolViolation::new(field, end as u64, "a text is printable UTF-8"))
}

/// The handshake's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHeader {
    /// The protocol's version in BCD: 0x0111 is 1.1.1.
    pub version: u16,
    /// One of [`op`].
    pub code: u16,
    /// Status, meaningful in replies.
    pub status: u32,
}

impl OpHeader {
    /// Makes an operation's header of the supported version.
    pub const fn new(code: u16, status: OpStatus) -> Self {
        Self { version: VERSION, code, status: status.code() }
    }

    /// Encodes the header, big-endian.
    pub fn to_bytes(self) -> [u8; OP_HEADER_BYTES] {
        let (v, c, s) = (self.version.to_be_bytes(), self.code.to_be_bytes(), self.status.to_be_bytes());
        [v[0], v[1], c[0], c[1], s[0], s[1], s[2], s[3]]
    }

    /// From bytes; nothing is checked.
    pub const fn from_bytes(b: [u8; OP_HEADER_BYTES]) -> Self {
        Self {
            version: u16::from_be_bytes([b[0], b[1]]),
            code: u16::from_be_bytes([b[2], b[3]]),
            status: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        }
    }
}

/// The bus id that an import request names.
///
/// # Errors
/// If it is not valid text.
pub fn decode_bus_id(bytes: &[u8; BUS_ID_BYTES]) -> Result<String, ProtocolViolation> {
    get_text(bytes, "busid")
}

/// An import request's body.
pub fn encode_bus_id(bus_id: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BUS_ID_BYTES);
    put_text(&mut bytes, bus_id, BUS_ID_BYTES);
    bytes
}

/// A URB message's 48 bytes as numbers; their meaning depends on the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHeader {
    /// One of [`command`].
    pub command: u32,
    /// The sender's number for the exchange.
    pub seqnum: u32,
    /// The imported device: bus number << 16 | device number in a request, 0 in a reply.
    pub devid: u32,
    /// 0 OUT, 1 IN.
    pub direction: u32,
    /// The endpoint's number, 0 to 15 without its direction, in a request; 0 in a reply.
    pub ep: u32,
    /// The five words and eight bytes that follow.
    pub body: [u32; 5],
    /// The setup packet of CMD_SUBMIT, padding elsewhere.
    pub setup: [u8; 8],
}

impl RawHeader {
    /// From bytes; nothing is checked.
    pub fn from_bytes(b: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Self {
            command: word(0),
            seqnum: word(4),
            devid: word(8),
            direction: word(12),
            ep: word(16),
            body: [word(20), word(24), word(28), word(32), word(36)],
            setup: [b[40], b[41], b[42], b[43], b[44], b[45], b[46], b[47]],
        }
    }

    /// Encodes the header, big-endian.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        let [w5, w6, w7, w8, w9] = self.body;
        let words = [self.command, self.seqnum, self.devid, self.direction, self.ep, w5, w6, w7, w8, w9];
        for (to, word) in b.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        b[40..].copy_from_slice(&self.setup);
        b
    }
}

/// CMD_SUBMIT, checked: every length is inside its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitCommand {
    /// The client's number for it.
    pub seqnum: u32,
    /// The endpoint it goes to.
    pub endpoint: EpAddr,
    /// The header's direction.
    pub direction: TransferDirection,
    /// Bytes of the buffer: data to send (OUT), or space for what comes (IN).
    pub length: u32,
    /// The supported transfer flags.
    pub flags: UrbFlags,
    /// Isochronous: the frame to start in.
    pub start_frame: u32,
    /// As sent: the meaning depends on the endpoint.
    pub number_of_packets: u32,
    /// The polling interval as the client states it, in (micro)frames.
    pub interval: u32,
    /// The setup packet; it has a meaning for a control transfer only.
    pub setup: SetupPacket,
}

impl SubmitCommand {
    /// Checks a header whose command is CMD_SUBMIT.
    ///
    /// # Errors
    /// A field outside its rule.
    pub fn check(raw: &RawHeader) -> Result<Self, ProtocolViolation> {
        let submit = Self::check_address(raw)?;
        if submit.is_too_long() {
            let value = u64::from(submit.length);
            return Err(ProtocolViolation::new("transfer_buffer_length", value, "a URB has at most 16 MiB"));
        }
        Ok(submit)
    }

    /// Whether its buffer is longer than a URB's may be.
    pub fn is_too_long(&self) -> bool {
        self.length > URB_BYTES_MAX
    }

    /// Checks where a request goes, and not how long it is.
    ///
    /// # Errors
    /// The direction or the endpoint's number is outside its rule.
    pub fn check_address(raw: &RawHeader) -> Result<Self, ProtocolViolation> {
        let direction = match raw.direction {
            0 => TransferDirection::Out,
            1 => TransferDirection::In,
            other => return Err(ProtocolViolation::new("direction", u64::from(other), "it is 0 or 1")),
        };
        let endpoint = u8::try_from(raw.ep).ok().and_then(|number| EpAddr::new(number, direction));
        let endpoint =
            endpoint.ok_or(ProtocolViolation::new("ep", u64::from(raw.ep), "an endpoint number is at most 15"))?;
        let [flags, length, start_frame, number_of_packets, interval] = raw.body;
        Ok(Self {
            seqnum: raw.seqnum,
            endpoint,
            direction,
            length,
            flags: UrbFlags {
                short_not_ok: flags & flag::SHORT_NOT_OK != 0,
                iso_asap: flags & flag::ISO_ASAP != 0,
                zero_packet: flags & flag::ZERO_PACKET != 0,
            },
            start_frame,
            number_of_packets,
            interval,
            setup: SetupPacket::from_bytes(raw.setup),
        })
    }

    /// How many packet descriptors follow on an isochronous endpoint.
    ///
    /// # Errors
    /// More than the limit.
    pub fn iso_packets(&self) -> Result<usize, ProtocolViolation> {
        if self.number_of_packets > ISO_PACKETS_MAX {
            let value = u64::from(self.number_of_packets);
            return Err(ProtocolViolation::new(
                "number_of_packets",
                value,
                "a URB has at most 1024 isochronous packets",
            ));
        }
        Ok(self.number_of_packets as usize)
    }

    /// Whether the field says that there are no packets: Linux sends 0, the specification and usbip-win2 say
    /// 0xffffffff. On an endpoint that is not isochronous the field means nothing.
    pub const fn says_no_packets(&self) -> bool {
        matches!(self.number_of_packets, 0 | u32::MAX)
    }

    /// As bytes, for the device `devid`.
    pub fn to_bytes(self, devid: u32) -> [u8; HEADER_BYTES] {
        let wishes = [
            (self.flags.short_not_ok, flag::SHORT_NOT_OK),
            (self.flags.iso_asap, flag::ISO_ASAP),
            (self.flags.zero_packet, flag::ZERO_PACKET),
            (self.direction == TransferDirection::In, flag::DIR_IN),
        ];
        let flags = wishes.iter().filter(|(on, _)| *on).fold(0, |all, (_, bit)| all | bit);
        RawHeader {
            command: command::CMD_SUBMIT,
            seqnum: self.seqnum,
            devid,
            direction: u32::from(self.direction == TransferDirection::In),
            ep: u32::from(self.endpoint.number()),
            body: [flags, self.length, self.start_frame, self.number_of_packets, self.interval],
            setup: self.setup.to_bytes(),
        }
        .to_bytes()
    }
}

/// Reads a command's packet descriptors and checks them against the buffer: each lies inside it, and so does their sum.
/// Their outcome fields are ignored: Linux presets every status to EXDEV.
///
/// # Errors
/// A packet outside the buffer.
pub fn decode_iso_packets(bytes: &[u8], length: u32) -> Result<Vec<IsoPacket>, ProtocolViolation> {
    let mut packets = Vec::with_capacity(bytes.len() / ISO_PACKET_BYTES);
    let mut sum = 0u64;
    for b in bytes.chunks_exact(ISO_PACKET_BYTES) {
        let packet = decode_iso_packet(b);
        let end = u64::from(packet.offset) + u64::from(packet.length);
        sum += u64::from(packet.length);
        if end > u64::from(length) || sum > u64::from(length) {
            return Err(ProtocolViolation::new(
                "iso packet offset + length",
                end.max(sum),
                "packets lie inside the buffer",
            ));
        }
        packets.push(IsoPacket { actual: 0, status: UrbStatus::Ok, ..packet });
    }
    Ok(packets)
}

/// One packet descriptor, unchecked.
pub fn decode_iso_packet(b: &[u8]) -> IsoPacket {
    let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    IsoPacket { offset: word(0), length: word(4), actual: word(8), status: status::from_errno(word(12).cast_signed()) }
}

/// One packet descriptor as bytes. Commands carry zeros for unknown fields.
pub fn encode_iso_packet(packet: &IsoPacket) -> [u8; ISO_PACKET_BYTES] {
    let mut b = [0; ISO_PACKET_BYTES];
    let words = [packet.offset, packet.length, packet.actual, status::to_errno(packet.status).cast_unsigned()];
    for (to, word) in b.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    b
}

/// The answer to a CMD_SUBMIT: the fields of RET_SUBMIT, without its data and packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmitReply {
    /// The submit's number.
    pub seqnum: u32,
    /// How it ended.
    pub status: UrbStatus,
    /// Bytes that moved, IN or OUT; isochronous: the sum of its packets.
    pub actual: u32,
    /// Isochronous: the frame it started in.
    pub start_frame: u32,
    /// Isochronous: as many as were submitted; else what the client sent, echoed.
    pub number_of_packets: u32,
    /// Isochronous packets that failed.
    pub error_count: u32,
}

impl SubmitReply {
    /// As bytes. Device id, direction and endpoint are zero in replies, as Linux sends them.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let errno = status::to_errno(self.status).cast_unsigned();
        RawHeader {
            command: command::RET_SUBMIT,
            seqnum: self.seqnum,
            devid: 0,
            direction: 0,
            ep: 0,
            body: [errno, self.actual, self.start_frame, self.number_of_packets, self.error_count],
            setup: [0; 8],
        }
        .to_bytes()
    }

    /// Reads a header whose command is RET_SUBMIT. The connection checks whether it matches its request.
    pub fn from_raw(raw: &RawHeader) -> Self {
        let [errno, actual, start_frame, number_of_packets, error_count] = raw.body;
        Self {
            seqnum: raw.seqnum,
            status: status::from_errno(errno.cast_signed()),
            actual,
            start_frame,
            number_of_packets,
            error_count,
        }
    }
}

/// CMD_UNLINK as bytes: `seqnum` is its own, `victim` the submit's.
pub fn encode_unlink(seqnum: u32, devid: u32, victim: u32) -> [u8; HEADER_BYTES] {
    let body = [victim, 0, 0, 0, 0];
    RawHeader { command: command::CMD_UNLINK, seqnum, devid, direction: 0, ep: 0, body, setup: [0; 8] }.to_bytes()
}

/// RET_UNLINK as bytes.
pub fn encode_unlink_reply(seqnum: u32, status: UrbStatus) -> [u8; HEADER_BYTES] {
    let body = [status::to_errno(status).cast_unsigned(), 0, 0, 0, 0];
    RawHeader { command: command::RET_UNLINK, seqnum, devid: 0, direction: 0, ep: 0, body, setup: [0; 8] }.to_bytes()
}

// The wire's sizes, checked against each other at compile time.
const _: () = assert!(DEVICE_RECORD_BYTES == 256 + BUS_ID_BYTES + 3 * 4 + 3 * 2 + 6);
const _: () = assert!(HEADER_BYTES == 10 * 4 + 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_record_survives_the_wire() {
        let record = DeviceRecord {
            path: "/sys/devices/pci/usb1/1-1".into(),
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed: UsbSpeed::Super,
            vendor: 0x1234,
            product: 0x5678,
            device_bcd: 0x0100,
            class: [9, 8, 7],
            configuration: 1,
            configurations: 2,
            interfaces: vec![[8, 6, 80], [3, 1, 1]],
            interface_count: 2,
        };
        let mut bytes = Vec::new();
        record.encode(true, &mut bytes);
        assert_eq!(bytes.len(), DEVICE_RECORD_BYTES + 8);
        let decoded = DeviceRecord::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(decoded, DeviceRecord { interfaces: Vec::new(), ..record });
        assert_eq!(decoded.device_id(), 0x0001_0002);
    }

    #[test]
    fn texts_are_cut_at_a_character_and_always_end() {
        let mut bytes = Vec::new();
        put_text(&mut bytes, &"é".repeat(20), 32);
        assert_eq!((bytes.len(), bytes[31], bytes[30]), (32, 0, 0));
        assert_eq!(get_text(&bytes, "busid").unwrap(), "é".repeat(15));
        assert!(get_text(&[b'a'; 32], "busid").is_err());
        assert!(get_text(b"a\x1b[2J\0", "busid").is_err());
    }

    #[test]
    fn a_submit_outside_a_limit_names_its_field() {
        let good = SubmitCommand {
            seqnum: 1,
            endpoint: EpAddr::from_byte(0x81),
            direction: TransferDirection::In,
            length: 64,
            flags: UrbFlags { short_not_ok: true, ..UrbFlags::default() },
            start_frame: 0,
            number_of_packets: 0,
            interval: 0,
            setup: SetupPacket::default(),
        };
        let raw = RawHeader::from_bytes(&good.to_bytes(7));
        assert_eq!(SubmitCommand::check(&raw), Ok(good));
        let fields = [
            RawHeader { direction: 2, ..raw },
            RawHeader { ep: 16, ..raw },
            RawHeader { body: [0, URB_BYTES_MAX + 1, 0, 0, 0], ..raw },
        ];
        let names = fields.map(|raw| SubmitCommand::check(&raw).unwrap_err().field);
        assert_eq!(names, ["direction", "ep", "transfer_buffer_length"]);
    }
}
