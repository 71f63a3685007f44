//! A USB transfer as Linux's usbmon tells it (LINKTYPE_USB_LINUX_MMAPPED; `Documentation/usb/usbmon.rst`,
//! `struct usbmon_packet`).
//!
//! ```text
//!   0 id 8   8 'S' or 'C' 1   9 type 1   10 endpoint 1   11 device 1   12 bus 2   14 '-' or 0: setup 1   15 0 or '<' '>': data 1
//!   16 seconds 8   24 microseconds 4   28 status 4   32 length 4   36 bytes of data that follow 4
//!   40 setup 8, or errors 4 and packets 4   48 interval 4   52 start frame 4   56 flags 4   60 packets 4
//!   then of each packet: status 4, offset 4, length 4, zeros 4; then the data
//! ```

use farbus_model::Payload;

use super::seen::SeenTransfer;
use crate::heads::{CANCELLED, CONTROL, INTERRUPT, ISOCHRONOUS, IsoPacketHead, OK, UsbReply, UsbRequest, word};

const HEADER_BYTES: usize = 64;
const PACKET_BYTES: usize = 16;
/// Packets of one transfer (`limits::ISO_PACKETS_MAX`).
const PACKETS_MAX: usize = 1024;

/// Linux's errno values of the protocol's statuses, in the order of their numbers (`wire::usbip::status` names them).
const ERRNOS: [i32; 15] = [0, -32, -121, -75, -71, -84, -63, -110, -104, -108, -19, -22, -12, -18, -5];
/// A request that was submitted, and an isochronous packet that was not transferred yet.
const IN_PROGRESS: i32 = -115;
const NOT_YET: i32 = -18;
/// A request that was cancelled and waited for (ENOENT).
const KILLED: i32 = -2;
const OTHER: u8 = 14;

fn errno(status: u8) -> i32 {
    ERRNOS[usize::from(status.min(OTHER))]
}

fn status(errno: i32) -> u8 {
    match errno {
        KILLED => CANCELLED,
        _ => ERRNOS.iter().position(|known| *known == errno).map_or(OTHER, |at| at as u8),
    }
}

/// usbmon's numbers of the transfer types (isochronous, interrupt, control, bulk), in the order of `bmAttributes`:
/// control, isochronous, bulk, interrupt.
const TYPES: [u8; 4] = [2, 0, 3, 1];

struct UsbmonHeader<'a> {
    id: u64,
    what: u8,
    request: &'a UsbRequest,
    unix_ns: u64,
    status: i32,
    length: u32,
    captured: usize,
    start_frame: u32,
    packets: &'a [(i32, IsoPacketHead)],
}

fn written(fields: &UsbmonHeader<'_>) -> Vec<u8> {
    let UsbmonHeader { request, packets, .. } = fields;
    let has_setup = fields.what == b'S' && request.kind == CONTROL;
    let no_data = if request.is_in() { b'<' } else { b'>' };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + PACKET_BYTES * packets.len());
    bytes.extend(fields.id.to_le_bytes());
    bytes.extend([fields.what, TYPES[usize::from(request.kind & 3)], request.endpoint, 1, 1, 0]);
    bytes.extend([if has_setup { 0 } else { b'-' }, if fields.captured > 0 { 0 } else { no_data }]);
    bytes.extend((fields.unix_ns / 1_000_000_000).to_le_bytes());
    bytes.extend(((fields.unix_ns % 1_000_000_000 / 1000) as u32).to_le_bytes());
    bytes.extend(fields.status.to_le_bytes());
    bytes.extend(fields.length.to_le_bytes());
    bytes.extend((fields.captured as u32).to_le_bytes());
    if request.kind == ISOCHRONOUS {
        let errors = packets.iter().filter(|(status, _)| *status != 0 && fields.what == b'C').count();
        bytes.extend([errors as u32, packets.len() as u32].map(u32::to_le_bytes).concat());
    } else {
        bytes.extend(if has_setup { request.setup } else { [0; 8] });
    }
    let is_periodic = matches!(request.kind, ISOCHRONOUS | INTERRUPT);
    bytes.extend(if is_periodic { u32::from(request.qualifier) } else { 0 }.to_le_bytes());
    bytes.extend(fields.start_frame.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((packets.len() as u32).to_le_bytes());
    for (status, IsoPacketHead { offset, length, .. }) in *packets {
        bytes.extend(status.to_le_bytes());
        bytes.extend([*offset, *length, 0].map(u32::to_le_bytes).concat());
    }
    bytes
}

/// The header of a request's packet, which `captured` bytes of data follow.
pub fn requested(id: u64, request: &UsbRequest, unix_ns: u64, captured: usize) -> Vec<u8> {
    let packets: Vec<_> = request.packets.iter().map(|packet| (NOT_YET, *packet)).collect();
    let (what, status, length) = (b'S', IN_PROGRESS, request.length);
    let start_frame = request.start_frame;
    written(&UsbmonHeader { id, what, request, unix_ns, status, length, captured, start_frame, packets: &packets })
}

/// The header of an answer's packet, which `captured` bytes of data follow.
pub fn answered(id: u64, request: &UsbRequest, reply: &UsbReply, unix_ns: u64, captured: usize) -> Vec<u8> {
    let packets: Vec<_> = reply.packets.iter().map(|packet| (errno(packet.status), *packet)).collect();
    let (what, status, length) = (b'C', errno(reply.status), reply.actual);
    let start_frame = reply.start_frame;
    written(&UsbmonHeader { id, what, request, unix_ns, status, length, captured, start_frame, packets: &packets })
}

/// The header of a transfer of which only the end was seen, which `captured` bytes of data follow.
pub fn seen(transfer: &SeenTransfer<'_>, captured: usize) -> Vec<u8> {
    let mut offset: u32 = 0;
    let placed = transfer.packets.iter().map(|&(length, status)| {
        let packet = IsoPacketHead { offset, length, status };
        offset = offset.saturating_add(length);
        packet
    });
    let packets: Vec<IsoPacketHead> = placed.collect();
    let &SeenTransfer { id, endpoint, kind, status, unix_ns, .. } = transfer;
    let length = u32::try_from(transfer.data.len()).unwrap_or(u32::MAX);
    let (bits, qualifier, setup, start_frame) = (0, 0, [0; 8], 0);
    let request = UsbRequest { endpoint, kind, bits, qualifier, length, setup, start_frame, packets: packets.clone() };
    answered(id, &request, &UsbReply { status, actual: length, start_frame, packets }, unix_ns, captured)
}

/// An entry of a recording.
pub enum UsbmonRecord {
    /// A request that the front end made.
    Request {
        /// Its number in the recording.
        id: u64,
        /// The request's head, parsed.
        request: UsbRequest,
        /// The data that is sent.
        sent: Vec<u8>,
    },
    /// The answer to an earlier request.
    Answered {
        /// The request's number in the recording.
        id: u64,
        /// Its outcome, in the format of the class.
        head: Payload,
        /// The data received.
        data: Vec<u8>,
    },
}

/// Reads a packet of a recording, farbus's own or usbmon's; `request_of` returns the request with a number.
pub fn read(bytes: &[u8], request_of: impl Fn(u64) -> Option<UsbRequest>) -> Option<UsbmonRecord> {
    let word = |at: usize| word(bytes, at);
    let id = u64::from(word(0)?) | u64::from(word(4)?) << 32;
    let head = bytes.get(..HEADER_BYTES)?;
    let count = word(60)? as usize;
    if count > PACKETS_MAX {
        return None;
    }
    let behind = HEADER_BYTES + PACKET_BYTES * count;
    let data = bytes.get(behind..)?.to_vec();
    let packets = (0..count).map(|packet| {
        let at = HEADER_BYTES + PACKET_BYTES * packet;
        let (errno, offset, length) = (word(at)? as i32, word(at + 4)?, word(at + 8)?);
        Some(IsoPacketHead { offset, length, status: if head[8] == b'S' { OK } else { status(errno) } })
    });
    let packets: Vec<IsoPacketHead> = packets.collect::<Option<_>>()?;
    let (length, start_frame) = (word(32)?, word(52)?);
    match head[8] {
        b'S' => {
            let kind = TYPES.iter().position(|known| *known == head[9])? as u8;
            let setup = if kind == CONTROL { *head[40..].first_chunk()? } else { [0; 8] };
            let endpoint = if kind == CONTROL { head[10] & 0x80 } else { head[10] };
            let qualifier = word(48)? as u16;
            Some(UsbmonRecord::Request {
                id,
                request: UsbRequest { endpoint, kind, bits: kind, qualifier, length, setup, start_frame, packets },
                sent: if endpoint & 0x80 == 0 { data } else { Vec::new() },
            })
        }
        b'C' => {
            let request = request_of(id)?;
            let reply = UsbReply { status: status(word(28)? as i32), actual: length, start_frame, packets };
            // usbmon leaves gaps where packets were not filled.
            let data = match () {
                () if !request.is_in() => Vec::new(),
                () if reply.packets.is_empty() => data,
                () => reply.packets.iter().flat_map(|packet| part(&data, packet)).copied().collect(),
            };
            let is_plain =
                reply.status == OK && reply.packets.is_empty() && (request.is_in() || length == request.length);
            Some(UsbmonRecord::Answered {
                id,
                head: if is_plain { Payload::Empty } else { reply.head(&request) },
                data,
            })
        }
        _ => None,
    }
}

fn part<'a>(data: &'a [u8], packet: &IsoPacketHead) -> &'a [u8] {
    let from = packet.offset as usize;
    data.get(from..from + packet.length as usize).unwrap_or_default()
}
