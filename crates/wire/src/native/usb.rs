//! The USB class: a request for a bulk or interrupt transfer has 16 bytes, a reply 8, frame heads included (requirement
//! N5; paper: 16 and 16).
//!
//! ```text
//!   request   0 endpoint 1   1 bits 1   2 stream, or polling interval 2   4 length 4
//!             control:      8 setup 8
//!             isochronous:  8 start frame 4  12 packets 2  14 shape 2, then as the shape says
//!             then the data to send
//!   reply     nothing if all went well and all bytes moved (IN: those that follow), or
//!             0 status 1   1 shape 1   2 packets 2   4 bytes moved 4
//!             isochronous:  8 start frame 4, then as the shape says
//!             then the data that came in
//! ```
//!
//! Bits: 0 and 1 the transfer type as in `bmAttributes`, 2 a short packet is an error, 3 end with a zero-length packet,
//! 4 as soon as possible, 5 reset the device instead (all else is 0). Endpoint 0x80 is a control transfer whose data
//! comes in.

use farbus_model::limits::{ISO_PACKETS_MAX, URB_BYTES_MAX};
use farbus_model::{
    EpAddr, IsoPacket, Payload, SetupPacket, TransferDirection, TransferType, Urb, UrbCompletion, UrbFlags, UrbId,
    UrbStatus, UsbSpeed,
};

use super::message::ClassPart;
use super::reader::{FieldReader, put_text};
use crate::reject::ProtocolViolation;

/// Bytes of a request's class part, except for control and isochronous transfers.
pub const REQUEST_BYTES: usize = 8;

mod bit {
    pub const TYPE: u8 = 0b11;
    pub const SHORT_NOT_OK: u8 = 1 << 2;
    pub const ZERO_PACKET: u8 = 1 << 3;
    pub const ISO_ASAP: u8 = 1 << 4;
    pub const RESET: u8 = 1 << 5;
}

/// The encodings of an isochronous schedule.
mod shape {
    /// All packets have one length and no gaps: one length of 4 bytes.
    pub const UNIFORM: u16 = 0;
    /// No gaps: a length of 4 bytes for each packet.
    pub const PACKED: u16 = 1;
    /// An offset of 4 bytes and a length of 4 bytes for each packet.
    pub const SCATTERED: u16 = 2;
}

/// A request of an importer.
#[derive(Clone, Debug)]
pub enum UsbRequestPart {
    /// A transfer, without its OUT data.
    Transfer(Urb),
    /// A port reset (USB 2.0 §7.1.7.5): ends every request, and clears configuration, settings and halts.
    Reset,
}

/// The class part of a reset.
pub fn reset_part() -> ClassPart {
    [0, bit::RESET, 0, 0, 0, 0, 0, 0].into()
}

/// The class part of a transfer.
pub fn request_part(urb: &Urb, kind: TransferType) -> ClassPart {
    let mut bits = kind.as_attributes();
    let wishes = [
        (urb.flags.short_not_ok, bit::SHORT_NOT_OK),
        (urb.flags.zero_packet, bit::ZERO_PACKET),
        (urb.flags.iso_asap, bit::ISO_ASAP),
    ];
    bits |= wishes.iter().map(|&(is_wished, bit)| if is_wished { bit } else { 0 }).sum::<u8>();
    let qualifier = match kind {
        TransferType::Bulk => urb.stream,
        TransferType::Interrupt | TransferType::Isochronous => u16::try_from(urb.interval).unwrap_or(u16::MAX),
        TransferType::Control => 0,
    };
    let endpoint = match (kind, urb.direction) {
        (TransferType::Control, TransferDirection::In) => 0x80,
        (TransferType::Control, TransferDirection::Out) => 0,
        _ => urb.endpoint.as_byte(),
    };
    let ([q0, q1], [l0, l1, l2, l3]) = (qualifier.to_le_bytes(), urb.length.to_le_bytes());
    let mut part = ClassPart::from([endpoint, bits, q0, q1, l0, l1, l2, l3]);
    match kind {
        TransferType::Control => part.put(&urb.setup.to_bytes()),
        TransferType::Isochronous => put_schedule(&mut part, urb),
        TransferType::Bulk | TransferType::Interrupt => {}
    }
    part
}

fn put_schedule(part: &mut ClassPart, urb: &Urb) {
    let packed = |(expected, all), packet: &IsoPacket| (expected + packet.length, all && packet.offset == expected);
    let (_, is_packed) = urb.iso.iter().fold((0u32, true), packed);
    let first = urb.iso.first().map_or(0, |packet| packet.length);
    let shape = match is_packed {
        true if urb.iso.iter().all(|packet| packet.length == first) => shape::UNIFORM,
        true => shape::PACKED,
        false => shape::SCATTERED,
    };
    part.put(&urb.start_frame.to_le_bytes());
    part.put(&(urb.iso.len() as u16).to_le_bytes());
    part.put(&shape.to_le_bytes());
    if shape == shape::UNIFORM {
        return part.put(&first.to_le_bytes());
    }
    for packet in &urb.iso {
        if shape == shape::SCATTERED {
            part.put(&packet.offset.to_le_bytes());
        }
        part.put(&packet.length.to_le_bytes());
    }
}

/// Decodes a request from the front of a message; also returns the bytes of its class part. Does not check the data.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn decode_request(id: UrbId, bytes: &[u8]) -> Result<(UsbRequestPart, usize), ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let endpoint = reader.u8("endpoint")?;
    let bits = reader.u8("bits")?;
    let qualifier = reader.u16("qualifier")?;
    let length = reader.u32("length")?;
    if bits & bit::RESET != 0 {
        if bits != bit::RESET || endpoint != 0 || qualifier != 0 || length != 0 {
            return Err(ProtocolViolation::new("bits", bits.into(), "a reset is nothing else"));
        }
        return Ok((UsbRequestPart::Reset, reader.read()));
    }
    if bits >= bit::RESET << 1 {
        return Err(ProtocolViolation::new("bits", bits.into(), "no request has such a bit"));
    }
    if length > URB_BYTES_MAX {
        return Err(ProtocolViolation::new("length", length.into(), "a transfer has 16 MiB at most"));
    }
    if endpoint & 0x70 != 0 {
        return Err(ProtocolViolation::new("endpoint", endpoint.into(), "an endpoint's number is below 16"));
    }
    let kind = TransferType::from_attributes(bits & bit::TYPE);
    if (kind == TransferType::Control) != (endpoint & 0x0f == 0) {
        return Err(ProtocolViolation::new(
            "endpoint",
            endpoint.into(),
            "endpoint 0 and no other carries control transfers",
        ));
    }
    let direction = if endpoint & 0x80 != 0 { TransferDirection::In } else { TransferDirection::Out };
    let mut urb = Urb::data_in(id, EpAddr::from_byte(endpoint), length);
    urb.direction = direction;
    urb.flags = UrbFlags {
        short_not_ok: bits & bit::SHORT_NOT_OK != 0,
        zero_packet: bits & bit::ZERO_PACKET != 0,
        iso_asap: bits & bit::ISO_ASAP != 0,
    };
    match kind {
        TransferType::Control => {
            let setup = reader.take(8, "setup")?;
            urb.setup = SetupPacket::from_bytes(setup.try_into().expect("eight bytes"));
            urb.endpoint = EpAddr::CONTROL;
            if u32::from(urb.setup.length) != length {
                return Err(ProtocolViolation::new(
                    "length",
                    length.into(),
                    "a control transfer's is that of its setup packet",
                ));
            }
        }
        TransferType::Bulk => urb.stream = qualifier,
        TransferType::Interrupt => urb.interval = qualifier.into(),
        TransferType::Isochronous => {
            urb.interval = qualifier.into();
            read_schedule(&mut reader, &mut urb)?;
        }
    }
    Ok((UsbRequestPart::Transfer(urb), reader.read()))
}

fn read_schedule(reader: &mut FieldReader<'_>, urb: &mut Urb) -> Result<(), ProtocolViolation> {
    urb.start_frame = reader.u32("start frame")?;
    let count = reader.u16("packets")?;
    if u32::from(count) > ISO_PACKETS_MAX || count == 0 {
        return Err(ProtocolViolation::new("packets", count.into(), "an isochronous transfer has 1 to 1024"));
    }
    let shape = reader.u16("shape")?;
    if shape > shape::SCATTERED {
        return Err(ProtocolViolation::new("shape", shape.into(), "no schedule has that shape"));
    }
    let uniform = if shape == shape::UNIFORM { Some(reader.u32("packet length")?) } else { None };
    let mut next = 0u32;
    for _ in 0..count {
        let offset = if shape == shape::SCATTERED { reader.u32("packet offset")? } else { next };
        let length = match uniform {
            Some(length) => length,
            None => reader.u32("packet length")?,
        };
        let end = offset.checked_add(length).filter(|&end| end <= urb.length);
        next = end.ok_or(ProtocolViolation::new("packet length", length.into(), "a packet lies in its transfer"))?;
        urb.iso.push(IsoPacket { offset, length, ..IsoPacket::default() });
    }
    Ok(())
}

/// The statuses in the order of their numbers on the wire.
const STATUSES: [UrbStatus; 15] = [
    UrbStatus::Ok,
    UrbStatus::Stall,
    UrbStatus::Short,
    UrbStatus::Overflow,
    UrbStatus::Protocol,
    UrbStatus::Crc,
    UrbStatus::DataRate,
    UrbStatus::TimedOut,
    UrbStatus::Cancelled,
    UrbStatus::Shutdown,
    UrbStatus::Gone,
    UrbStatus::Invalid,
    UrbStatus::NoCredit,
    UrbStatus::IsoMissed,
    UrbStatus::Other,
];

/// The number of a status on the wire.
///
/// # Panics
/// Never: all statuses have one.
pub fn status_code(status: UrbStatus) -> u8 {
    STATUSES.iter().position(|&other| other == status).expect("all are listed") as u8
}

/// The status with this number.
///
/// # Errors
/// [`ProtocolViolation`]: no status has it.
pub fn status_of(code: u8) -> Result<UrbStatus, ProtocolViolation> {
    STATUSES.get(usize::from(code)).copied().ok_or(ProtocolViolation::new("status", code.into(), "no transfer ends so"))
}

/// The encodings of an isochronous outcome.
mod outcome {
    /// The transfer is not isochronous: no packets follow.
    pub const NONE: u8 = 0;
    /// Every packet moved all its bytes.
    pub const FULL: u8 = 1;
    /// For each packet its bytes (3) and its status (1).
    pub const EACH: u8 = 2;
}

/// A reply's class part; `None` if it needs none.
pub fn reply_part(done: &UrbCompletion) -> Option<ClassPart> {
    let has_all = match done.direction {
        TransferDirection::In => true,
        TransferDirection::Out => done.actual == done.length,
    };
    if done.status == UrbStatus::Ok && has_all && done.iso.is_empty() {
        return None;
    }
    Some(outcome_part(done.status, done.actual, done.start_frame, &done.iso))
}

fn outcome_part(status: UrbStatus, actual: u32, start_frame: u32, iso: &[IsoPacket]) -> ClassPart {
    let is_full = |packet: &IsoPacket| packet.actual == packet.length && packet.status == UrbStatus::Ok;
    let shape = match iso.is_empty() {
        true => outcome::NONE,
        false if iso.iter().all(is_full) => outcome::FULL,
        false => outcome::EACH,
    };
    let mut part = ClassPart::empty();
    part.put(&[status_code(status), shape]);
    part.put(&(iso.len() as u16).to_le_bytes());
    part.put(&actual.to_le_bytes());
    if shape != outcome::NONE {
        part.put(&start_frame.to_le_bytes());
    }
    if shape == outcome::EACH {
        for packet in iso {
            let [a, b, c, _] = packet.actual.to_le_bytes();
            part.put(&[a, b, c, status_code(packet.status)]);
        }
    }
    part
}

/// The end of a transfer, decoded from a reply that has a class part.
#[derive(Clone, Debug, PartialEq)]
pub struct UsbReplyPart {
    /// How the transfer ended.
    pub status: UrbStatus,
    /// Bytes that moved, IN or OUT; isochronous: the sum of its packets.
    pub actual: u32,
    /// Isochronous: the frame it started in.
    pub start_frame: u32,
    /// Isochronous: its packets.
    pub iso: Vec<IsoPacket>,
}

impl UsbReplyPart {
    /// Encodes the reply, without checking its values.
    pub fn encode(&self) -> ClassPart {
        outcome_part(self.status, self.actual, self.start_frame, &self.iso)
    }
}

/// Decodes a reply's class part from the front of a message, and checks it against its transfer; also returns its
/// length.
///
/// # Errors
/// [`ProtocolViolation`]: that transfer cannot have ended this way.
pub fn decode_reply(urb: &Urb, bytes: &[u8]) -> Result<(UsbReplyPart, usize), ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let status = status_of(reader.u8("status")?)?;
    let shape = reader.u8("outcome")?;
    let count = reader.u16("packets")?;
    let actual = reader.u32("bytes moved")?;
    if actual > urb.length {
        return Err(ProtocolViolation::new("bytes moved", actual.into(), "no more moves than was asked for"));
    }
    let packets = if shape == outcome::NONE { 0 } else { urb.iso.len() };
    if usize::from(count) != packets || shape > outcome::EACH {
        return Err(ProtocolViolation::new("packets", count.into(), "as many come back as were sent"));
    }
    let mut reply = UsbReplyPart { status, actual, start_frame: 0, iso: Vec::new() };
    if shape != outcome::NONE {
        reply.start_frame = reader.u32("start frame")?;
    }
    for packet in &urb.iso[..packets] {
        let (actual, status) = match shape {
            outcome::FULL => (packet.length, UrbStatus::Ok),
            _ => {
                let field = reader.u32("packet")?;
                (field & 0xff_ffff, status_of((field >> 24) as u8)?)
            }
        };
        if actual > packet.length {
            return Err(ProtocolViolation::new("packet", actual.into(), "no more moves than was asked for"));
        }
        reply.iso.push(IsoPacket { actual, status, ..*packet });
    }
    let sum: u64 = reply.iso.iter().map(|packet| u64::from(packet.actual)).sum();
    if packets > 0 && sum != u64::from(actual) {
        return Err(ProtocolViolation::new("bytes moved", actual.into(), "it is the sum of the packets'"));
    }
    Ok((reply, reader.read()))
}

/// A copy of what a device sent to its user, for an observer.
///
/// ```text
///   0 endpoint 1   1 transfer type 1   2 status 1   3 shape 1   4 missed 4   8 moment 8   16 packets 2   18 zeros 2
///   isochronous, shape 2: for each packet its bytes 3 and its status 1
///   then the data
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedTransfer {
    /// The endpoint that the data came from.
    pub endpoint: EpAddr,
    /// The endpoint's transfer type.
    pub kind: TransferType,
    /// How the transfer ended.
    pub status: UrbStatus,
    /// Events that were not sent before this one because no grant was left.
    pub missed: u32,
    /// When the transfer ended, ns of an exporter's clock: comparable with other events of the attachment.
    pub moment_ns: u64,
    /// Isochronous: each packet's bytes and status.
    pub packets: Vec<(u32, UrbStatus)>,
    /// The data that was received.
    pub data: Payload,
}

/// Bytes of an event before its packets.
const EVENT_BYTES: usize = 20;

impl ObservedTransfer {
    /// The class part of its message; the data follows.
    pub fn part(&self) -> ClassPart {
        let mut part = ClassPart::empty();
        let shape = if self.packets.is_empty() { outcome::NONE } else { outcome::EACH };
        part.put(&[self.endpoint.as_byte(), self.kind.as_attributes(), status_code(self.status), shape]);
        part.put(&self.missed.to_le_bytes());
        part.put(&self.moment_ns.to_le_bytes());
        part.put(&(self.packets.len() as u16).to_le_bytes());
        part.put(&[0; 2]);
        for &(bytes, status) in &self.packets {
            let [a, b, c, _] = bytes.to_le_bytes();
            part.put(&[a, b, c, status_code(status)]);
        }
        part
    }

    /// Decodes an event from its whole message.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no device sends this.
    pub fn decode(mut message: Payload) -> Result<Self, ProtocolViolation> {
        let bytes = message.contiguous();
        let mut reader = FieldReader::new(&bytes);
        let endpoint = EpAddr::from_byte(reader.u8("endpoint")?);
        let kind = reader.u8("transfer type")?;
        let kind = match kind {
            1 => TransferType::Isochronous,
            3 => TransferType::Interrupt,
            _ => {
                return Err(ProtocolViolation::new(
                    "transfer type",
                    kind.into(),
                    "interrupts and isochronous data are observed",
                ));
            }
        };
        let status = status_of(reader.u8("status")?)?;
        let shape = reader.u8("outcome")?;
        let missed = reader.u32("missed")?;
        let moment_ns = reader.u64("moment")?;
        let count = reader.u16("packets")?;
        reader.u16("zeros")?;
        let is_schedule = kind == TransferType::Isochronous && shape == outcome::EACH;
        if u32::from(count) > ISO_PACKETS_MAX || is_schedule != (count > 0) {
            return Err(ProtocolViolation::new(
                "packets",
                count.into(),
                "an isochronous transfer has 1 to 1024, others none",
            ));
        }
        let mut packets = Vec::with_capacity(count.into());
        for _ in 0..count {
            let field = reader.u32("packet")?;
            packets.push((field & 0xff_ffff, status_of((field >> 24) as u8)?));
        }
        let data_bytes = (bytes.len() - reader.read()) as u64;
        if count > 0 && packets.iter().map(|&(bytes, _)| u64::from(bytes)).sum::<u64>() != data_bytes {
            return Err(ProtocolViolation::new("data", data_bytes, "it is the sum of the packets'"));
        }
        drop(bytes);
        message.split_front(EVENT_BYTES + 4 * usize::from(count));
        Ok(Self { endpoint, kind, status, missed, moment_ns, packets, data: message })
    }
}

/// The description of a USB device, as [`super::control::OpenReply`] carries it: enough to show the device without a
/// request to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbDescription {
    /// Its name on the exporter; its bus id on a plain connection.
    pub bus_id: String,
    /// Bus number on the exporter.
    pub bus: u32,
    /// Device number on the exporter.
    pub device: u32,
    /// The speed it runs at.
    pub speed: UsbSpeed,
    /// The device descriptor.
    pub descriptor: [u8; 18],
    /// The active configuration.
    pub configuration: u8,
    /// The alternate settings that are active and not 0: interface, setting.
    pub alternates: Vec<(u8, u8)>,
    /// All configuration descriptors, whole.
    pub configurations: Vec<Vec<u8>>,
}

/// Bytes of a bus id.
const BUS_ID_BYTES_MAX: usize = 31;
const SPEEDS: [UsbSpeed; 5] = [UsbSpeed::Low, UsbSpeed::Full, UsbSpeed::High, UsbSpeed::Super, UsbSpeed::SuperPlus];

impl UsbDescription {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, &self.bus_id, BUS_ID_BYTES_MAX);
        bytes.extend(self.bus.to_le_bytes());
        bytes.extend(self.device.to_le_bytes());
        bytes.push(SPEEDS.iter().position(|&speed| speed == self.speed).expect("all are listed") as u8);
        bytes.extend(self.descriptor);
        bytes.extend([self.configuration, self.alternates.len() as u8]);
        bytes.extend(self.alternates.iter().flat_map(|&(interface, setting)| [interface, setting]));
        bytes.push(self.configurations.len() as u8);
        for configuration in &self.configurations {
            bytes.extend((configuration.len() as u16).to_le_bytes());
            bytes.extend(configuration);
        }
        bytes
    }

    /// Decodes a description. Descriptors are passed on unchecked: their parser checks them.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let bus_id = reader.text("bus id", BUS_ID_BYTES_MAX)?;
        if bus_id.is_empty() || bus_id.len() > BUS_ID_BYTES_MAX || bus_id.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(ProtocolViolation::new("bus id", bus_id.len() as u64, "it has 1 to 31 visible characters"));
        }
        let (bus, device) = (reader.u32("bus")?, reader.u32("device")?);
        let code = reader.u8("speed")?;
        let speed = SPEEDS.get(usize::from(code)).copied();
        let speed = speed.ok_or(ProtocolViolation::new("speed", code.into(), "there is no such speed"))?;
        let descriptor = reader.take(18, "device descriptor")?.try_into().expect("eighteen bytes");
        let configuration = reader.u8("configuration")?;
        let alternates = reader.u8("alternate settings")?;
        let alternates = reader.take(2 * usize::from(alternates), "alternate settings")?;
        let alternates = alternates.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let mut configurations = Vec::new();
        for _ in 0..reader.u8("configurations")? {
            let length = reader.u16("configuration")?;
            configurations.push(reader.take(length.into(), "configuration")?.to_vec());
        }
        // Fields of a later release may follow.
        Ok(Self { bus_id, bus, device, speed, descriptor, configuration, alternates, configurations })
    }
}

/// Checks an IN transfer's data against its outcome.
///
/// # Errors
/// [`ProtocolViolation`]: other than `actual` bytes follow.
pub fn check_data(urb: &Urb, reply: &UsbReplyPart, data: &Payload) -> Result<(), ProtocolViolation> {
    let expected = if urb.direction == TransferDirection::In { reply.actual as usize } else { 0 };
    if data.len() != expected {
        return Err(ProtocolViolation::new("data", data.len() as u64, "as many bytes follow as moved in"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iso(packets: &[(u32, u32)]) -> Urb {
        let mut urb = Urb::data_in(UrbId(1), EpAddr::from_byte(0x83), 3000);
        urb.interval = 8;
        urb.start_frame = 77;
        urb.iso =
            packets.iter().map(|&(offset, length)| IsoPacket { offset, length, ..IsoPacket::default() }).collect();
        urb
    }

    #[test]
    fn an_event_survives_the_way_and_none_with_other_data_than_its_packets() {
        let event = ObservedTransfer {
            endpoint: EpAddr::from_byte(0x81),
            kind: TransferType::Interrupt,
            status: UrbStatus::Ok,
            missed: 7,
            moment_ns: 1 << 40,
            packets: Vec::new(),
            data: Payload::from(vec![1, 2, 3]),
        };
        let whole = |event: &ObservedTransfer| [&event.part()[..], &event.data.contiguous()].concat();
        assert_eq!(ObservedTransfer::decode(Payload::from(whole(&event))).unwrap(), event);
        let kind = TransferType::Isochronous;
        let packets = vec![(2, UrbStatus::Ok), (0, UrbStatus::IsoMissed), (1, UrbStatus::Ok)];
        let event = ObservedTransfer { kind, packets, ..event };
        assert_eq!(ObservedTransfer::decode(Payload::from(whole(&event))).unwrap(), event);
        let bytes = whole(&event);
        for end in 0..bytes.len() {
            assert!(ObservedTransfer::decode(Payload::from(bytes[..end].to_vec())).is_err(), "{end} bytes");
        }
        let bulk = ObservedTransfer { kind: TransferType::Bulk, ..event };
        assert_eq!(ObservedTransfer::decode(Payload::from(whole(&bulk))).unwrap_err().field, "transfer type");
    }

    fn survives(urb: &Urb, kind: TransferType) -> usize {
        let part = request_part(urb, kind);
        let more = [&part[..], b"data"].concat();
        let (UsbRequestPart::Transfer(again), count) = decode_request(urb.id, &more).unwrap() else {
            panic!("a transfer")
        };
        assert_eq!(count, part.len());
        assert_eq!(format!("{again:?}"), format!("{urb:?}"));
        for end in 0..part.len() {
            assert!(decode_request(urb.id, &part[..end]).is_err(), "{end} bytes");
        }
        count
    }

    #[test]
    fn every_transfer_survives_the_way() {
        let mut bulk = Urb::data_in(UrbId(1), EpAddr::from_byte(0x81), 1 << 20);
        bulk.stream = 3;
        bulk.flags.short_not_ok = true;
        assert_eq!(survives(&bulk, TransferType::Bulk), REQUEST_BYTES);
        let mut out = Urb::data_in(UrbId(1), EpAddr::from_byte(0x02), 512);
        out.direction = TransferDirection::Out;
        out.flags.zero_packet = true;
        survives(&out, TransferType::Bulk);
        let mut interrupt = Urb::data_in(UrbId(1), EpAddr::from_byte(0x84), 8);
        interrupt.interval = 4;
        survives(&interrupt, TransferType::Interrupt);
        for setup in [SetupPacket::set_configuration(1), SetupPacket::get_descriptor(1, 0, 0, 18)] {
            survives(&Urb::control(UrbId(1), setup, Payload::Empty), TransferType::Control);
        }
        assert_eq!(survives(&iso(&[(0, 1000), (1000, 1000), (2000, 1000)]), TransferType::Isochronous), 20);
        assert_eq!(survives(&iso(&[(0, 1000), (1000, 900)]), TransferType::Isochronous), 24);
        assert_eq!(survives(&iso(&[(0, 1000), (1024, 900)]), TransferType::Isochronous), 32);
    }

    #[test]
    fn invalid_usb_request_is_refused() {
        let refused = |bytes: &[u8]| decode_request(UrbId(1), bytes).unwrap_err().field;
        assert_eq!(refused(&[0x81, 0x42, 0, 0, 0, 0, 0, 0]), "bits");
        assert_eq!(refused(&[0x81, 0x22, 0, 0, 0, 0, 0, 0]), "bits");
        assert_eq!(refused(&[0x91, 2, 0, 0, 0, 0, 0, 0]), "endpoint");
        assert_eq!(refused(&[0x80, 2, 0, 0, 0, 0, 0, 0]), "endpoint");
        assert_eq!(refused(&[0x81, 0, 0, 0, 0, 0, 0, 0]), "endpoint");
        assert_eq!(refused(&[0x81, 2, 0, 0, 1, 0, 0, 1]), "length");
        assert_eq!(refused(&[0x80, 0, 0, 0, 9, 0, 0, 0, 0x80, 6, 0, 1, 0, 0, 8, 0]), "length");
        let schedule = |packets: u16, shape: u16, length: u32| {
            let mut bytes = vec![0x83, 1, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(packets.to_le_bytes());
            bytes.extend(shape.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes
        };
        assert!(decode_request(UrbId(1), &schedule(2, 0, 50)).is_ok());
        assert_eq!(refused(&schedule(2, 0, 51)), "packet length");
        assert_eq!(refused(&schedule(2, 0, u32::MAX)), "packet length");
        assert_eq!(refused(&schedule(1025, 0, 0)), "packets");
        assert_eq!(refused(&schedule(0, 0, 0)), "packets");
        assert_eq!(refused(&schedule(1, 3, 0)), "shape");
        assert!(matches!(decode_request(UrbId(1), &reset_part()), Ok((UsbRequestPart::Reset, 8))));
    }

    #[test]
    fn every_outcome_survives_the_way() {
        let bulk = Urb::data_in(UrbId(1), EpAddr::from_byte(0x81), 512);
        assert_eq!(reply_part(&bulk.clone().launch().answer(vec![1; 100].into())), None, "short is as usual");
        for status in STATUSES {
            let done = bulk.clone().launch().done(status, 0, Payload::Empty);
            let Some(part) = reply_part(&done) else {
                assert_eq!(status, UrbStatus::Ok);
                continue;
            };
            let (reply, count) = decode_reply(&bulk, &part).unwrap();
            assert_eq!((reply.status, reply.actual, count), (status, 0, 8));
        }
        let mut urb = iso(&[(0, 1000), (1000, 1000)]);
        urb.length = 2000;
        for actual in [[1000, 1000], [10, 1000]] {
            let packets: Vec<_> =
                urb.iso.iter().zip(actual).map(|(packet, actual)| IsoPacket { actual, ..*packet }).collect();
            let data = vec![0; actual.iter().sum::<u32>() as usize];
            let done = urb.clone().launch().done_iso(packets.clone(), data.into());
            let part = reply_part(&done).unwrap();
            assert_eq!(part.len(), if actual[0] == 1000 { 12 } else { 20 });
            let (reply, count) = decode_reply(&urb, &part).unwrap();
            assert_eq!((reply.iso.clone(), reply.start_frame, count), (packets, 77, part.len()));
            assert_eq!(check_data(&urb, &reply, &done.payload), Ok(()));
            assert_eq!(check_data(&urb, &reply, &Payload::Empty).unwrap_err().field, "data");
        }
        let refused = |bytes: &[u8]| decode_reply(&urb, bytes).unwrap_err().field;
        assert_eq!(refused(&[15, 0, 0, 0, 0, 0, 0, 0]), "status");
        assert_eq!(refused(&[0, 0, 0, 0, 0xd1, 7, 0, 0]), "bytes moved");
        assert_eq!(refused(&[0, 1, 1, 0, 0, 0, 0, 0]), "packets");
        assert_eq!(refused(&[0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "bytes moved");
        assert_eq!(refused(&[0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe9, 3, 0, 0]), "packet");
    }

    #[test]
    fn a_description_survives_the_way() {
        let description = UsbDescription {
            bus_id: "1-1.4".into(),
            bus: 1,
            device: 9,
            speed: UsbSpeed::SuperPlus,
            descriptor: [7; 18],
            configuration: 1,
            alternates: vec![(0, 1), (3, 2)],
            configurations: vec![vec![9; 300], vec![]],
        };
        let bytes = description.encode();
        assert_eq!(UsbDescription::decode(&bytes), Ok(description));
        for end in 0..bytes.len() {
            assert!(UsbDescription::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert_eq!(
            UsbDescription::decode(&[&bytes[..], &[1]].concat()),
            UsbDescription::decode(&bytes),
            "a later release may say more"
        );
    }
}
