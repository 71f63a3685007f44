//! The heads of device classes (`docs/protocol.md`), for modules that read or change them. An unreadable head is no
//! error: a half above may have changed it.

use farbus_model::Payload;

/// The transfer type of control requests, as in `bmAttributes` (USB 2.0, table 9-13).
pub const CONTROL: u8 = 0;
/// The transfer type of isochronous requests (USB 2.0, table 9-13).
pub const ISOCHRONOUS: u8 = 1;
/// The transfer type of interrupt requests (USB 2.0, table 9-13).
pub const INTERRUPT: u8 = 3;

const RESET: u8 = 1 << 5;
const KINDS: u8 = 0b11;

/// The protocol's number of the status "ok".
pub const OK: u8 = 0;
/// The protocol's number of the status "stall".
pub const STALL: u8 = 1;
/// The protocol's number of the status "cancelled".
pub const CANCELLED: u8 = 8;

/// The head of a USB reply without packets and data.
pub fn usb_outcome(status: u8) -> Payload {
    vec![status, 0, 0, 0, 0, 0, 0, 0].into()
}

/// A little-endian word of 4 bytes.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

struct HeadFieldReader<'a>(&'a [u8]);

impl HeadFieldReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*word)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// One packet of an isochronous transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsoPacketHead {
    /// Its place in the transfer's data.
    pub offset: u32,
    /// Bytes asked for or sent; in a reply, bytes moved.
    pub length: u32,
    /// Its status, in a reply.
    pub status: u8,
}

/// A request to a USB device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbRequest {
    /// 0x00 and 0x80 are control transfers.
    pub endpoint: u8,
    /// As in `bmAttributes`.
    pub kind: u8,
    /// The option bits, as they are transmitted.
    pub bits: u8,
    /// Interrupt and isochronous: polling interval; bulk: stream.
    pub qualifier: u16,
    /// Bytes to send, or space.
    pub length: u32,
    /// The setup packet of a control transfer.
    pub setup: [u8; 8],
    /// Isochronous: the frame to start in.
    pub start_frame: u32,
    /// Isochronous: its packets.
    pub packets: Vec<IsoPacketHead>,
}

impl UsbRequest {
    /// Whether data comes in.
    pub fn is_in(&self) -> bool {
        self.endpoint & 0x80 != 0
    }

    /// Whether this is a device reset.
    pub fn is_reset(&self) -> bool {
        self.bits & RESET != 0
    }

    /// Parses a request's head.
    pub fn read(head: &Payload) -> Option<Self> {
        let head = head.contiguous();
        let mut words = HeadFieldReader(&head);
        let (endpoint, bits, qualifier, length) = (words.u8()?, words.u8()?, words.u16()?, words.u32()?);
        let kind = bits & KINDS;
        let mut request =
            Self { endpoint, kind, bits, qualifier, length, setup: [0; 8], start_frame: 0, packets: Vec::new() };
        if request.is_reset() {
            return words.end().map(|()| request);
        }
        match kind {
            CONTROL => request.setup = words.take()?,
            ISOCHRONOUS => {
                request.start_frame = words.u32()?;
                let (count, shape) = (words.u16()?, words.u16()?);
                let uniform = if shape == 0 { Some(words.u32()?) } else { None };
                let mut next = 0u32;
                for _ in 0..count {
                    let offset = if shape == 2 { words.u32()? } else { next };
                    let length = match uniform {
                        Some(length) => length,
                        None => words.u32()?,
                    };
                    next = offset.checked_add(length)?;
                    request.packets.push(IsoPacketHead { offset, length, status: OK });
                }
            }
            _ => {}
        }
        words.end().map(|()| request)
    }
}

/// The end of a USB request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbReply {
    /// The protocol's number of its status.
    pub status: u8,
    /// How many bytes the device sent or took; never more than the request's `length`.
    pub actual: u32,
    /// Isochronous: the frame it started in.
    pub start_frame: u32,
    /// Isochronous: its packets; received data has no gaps.
    pub packets: Vec<IsoPacketHead>,
}

impl UsbReply {
    /// Parses a reply's head; `data_bytes` of data came with it.
    pub fn read(request: &UsbRequest, head: &Payload, data_bytes: usize) -> Option<Self> {
        if head.is_empty() {
            let actual = if request.is_in() { data_bytes as u32 } else { request.length };
            return Some(Self { status: OK, actual, start_frame: 0, packets: Vec::new() });
        }
        let head = head.contiguous();
        let mut words = HeadFieldReader(&head);
        let (status, shape, count, actual) = (words.u8()?, words.u8()?, words.u16()?, words.u32()?);
        let start_frame = if shape == 0 { 0 } else { words.u32()? };
        let mut packets = Vec::new();
        let (mut offset, count) = (0, if shape == 0 { 0 } else { usize::from(count) });
        for packet in 0..count {
            let requested = request.packets.get(packet)?;
            let field = if shape == 2 { words.u32()? } else { requested.length };
            let (length, status) = (field & 0xff_ffff, (field >> 24) as u8);
            packets.push(IsoPacketHead {
                offset: if request.is_in() { offset } else { requested.offset },
                length,
                status,
            });
            offset += length;
        }
        words.end().map(|()| Self { status, actual, start_frame, packets })
    }

    /// The head of this reply to `request`.
    pub fn head(&self, request: &UsbRequest) -> Payload {
        let is_full = |(packet, requested): (&IsoPacketHead, &IsoPacketHead)| {
            packet.length == requested.length && packet.status == OK
        };
        let shape = match self.packets.is_empty() {
            true => 0,
            false if self.packets.iter().zip(&request.packets).all(is_full) => 1,
            false => 2,
        };
        let mut head = vec![self.status, shape];
        head.extend((self.packets.len() as u16).to_le_bytes());
        head.extend(self.actual.to_le_bytes());
        if shape != 0 {
            head.extend(self.start_frame.to_le_bytes());
        }
        for packet in self.packets.iter().filter(|_| shape == 2) {
            head.extend((packet.length & 0xff_ffff | u32::from(packet.status) << 24).to_le_bytes());
        }
        head.into()
    }
}

/// A request to a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequestHead {
    /// 0 read, 1 write, 2 flush, 3 discard, 4 write zeroes, 5 trim.
    pub op: u8,
    /// 1: durable before it is answered.
    pub flags: u8,
    /// The length of the range, bytes; 0 for a flush.
    pub length: u32,
    /// The start of the range, bytes.
    pub offset: u64,
}

impl BlockRequestHead {
    /// Parses a request's head.
    pub fn read(head: &Payload) -> Option<Self> {
        let head = head.contiguous();
        let mut words = HeadFieldReader(&head);
        let (op, flags, length) = (words.u8()?, words.u8()?, words.u32()?);
        let offset = u64::from_le_bytes(words.take()?);
        words.end().filter(|()| op <= 5)?;
        Some(Self { op, flags, length, offset })
    }

    /// The request's head.
    pub fn head(&self) -> Payload {
        let mut head = vec![self.op, self.flags];
        head.extend(self.length.to_le_bytes());
        head.extend(self.offset.to_le_bytes());
        head.into()
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::{EpAddr, IsoPacket, SetupPacket, TransferDirection, TransferType, Urb, UrbId, UrbStatus};
    use farbus_wire::native::usb;

    use super::*;

    fn read(urb: &Urb, kind: TransferType) -> UsbRequest {
        UsbRequest::read(&usb::request_part(urb, kind).to_vec().into()).expect("it is one")
    }

    #[test]
    fn heads_of_the_protocol_are_read() {
        let control = Urb::control(UrbId(1), SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
        let ask = read(&control, TransferType::Control);
        assert_eq!((ask.endpoint, ask.kind, ask.length, ask.setup), (0x80, CONTROL, 18, [0x80, 6, 0, 1, 0, 0, 18, 0]));
        let mut interrupt = Urb::data_in(UrbId(1), EpAddr::from_byte(0x84), 8);
        interrupt.interval = 4;
        let ask = read(&interrupt, TransferType::Interrupt);
        assert_eq!((ask.endpoint, ask.kind, ask.qualifier, ask.length), (0x84, INTERRUPT, 4, 8));
        assert!(UsbRequest::read(&usb::reset_part().to_vec().into()).unwrap().is_reset());
        assert_eq!(UsbRequest::read(&vec![0x81, 2, 0].into()), None);
        assert_eq!(UsbRequest::read(&vec![0x81, 2, 0, 0, 1, 0, 0, 0, 9].into()), None, "more than a head");
        for lengths in [[(0, 100), (100, 100)], [(0, 100), (100, 50)], [(0, 100), (128, 50)]] {
            let mut iso = Urb::data_in(UrbId(1), EpAddr::from_byte(0x05), 200);
            iso.direction = TransferDirection::Out;
            iso.start_frame = 77;
            iso.iso = lengths.map(|(offset, length)| IsoPacket { offset, length, ..IsoPacket::default() }).into();
            let ask = read(&iso, TransferType::Isochronous);
            let found: Vec<_> = ask.packets.iter().map(|packet| (packet.offset, packet.length)).collect();
            assert_eq!((ask.start_frame, found), (77, lengths.to_vec()));
        }
    }

    #[test]
    fn outcomes_are_read_and_written_as_the_protocol_does() {
        let mut iso = Urb::data_in(UrbId(1), EpAddr::from_byte(0x84), 300);
        iso.iso = (0..3).map(|at| IsoPacket { offset: at * 100, length: 100, ..IsoPacket::default() }).collect();
        let ask = read(&iso, TransferType::Isochronous);
        let packets = [(100, UrbStatus::Ok), (2, UrbStatus::Ok), (0, UrbStatus::IsoMissed)];
        let packets =
            iso.iso.iter().zip(packets).map(|(packet, (actual, status))| IsoPacket { actual, status, ..*packet });
        let reply = usb::UsbReplyPart { status: UrbStatus::Ok, actual: 102, start_frame: 9, iso: packets.collect() };
        let head: Payload = reply.encode().to_vec().into();
        let found = UsbReply::read(&ask, &head, 102).unwrap();
        let packets: Vec<_> =
            found.packets.iter().map(|packet| (packet.offset, packet.length, packet.status)).collect();
        assert_eq!(packets, [(0, 100, 0), (100, 2, 0), (102, 0, 13)]);
        assert_eq!((found.actual, found.start_frame, found.head(&ask)), (102, 9, head));
        let plain = UsbReply::read(&ask, &Payload::Empty, 5).unwrap();
        assert_eq!((plain.status, plain.actual), (OK, 5));
        let stalled = usb::UsbReplyPart { status: UrbStatus::Stall, actual: 0, start_frame: 0, iso: Vec::new() };
        assert_eq!(usb_outcome(STALL), stalled.encode().to_vec().into());
        let cancelled = usb::UsbReplyPart { status: UrbStatus::Cancelled, ..stalled };
        assert_eq!(usb_outcome(CANCELLED), cancelled.encode().to_vec().into());
        let write = BlockRequestHead { op: 1, flags: 1, length: 4096, offset: 1 << 40 };
        assert_eq!(BlockRequestHead::read(&write.head()), Some(write));
        assert_eq!(BlockRequestHead::read(&vec![1; 13].into()), None);
    }
}
