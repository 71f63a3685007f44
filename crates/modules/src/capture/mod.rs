//! Recordings in Wireshark's own format, pcapng (draft-ietf-opsawg-pcapng): blocks of a capture file, little-endian.
//!
//! | link type | what its packets are |
//! |---|---|
//! | 220 | USB transfers as Linux's usbmon has them ([`usbmon`]) |
//! | 228 | requests for blocks as NBD over TCP over IPv4 ([`nbd`]) |
//! | 147 | what neither can say: [`plain`] |

pub mod nbd;
mod seen;
pub mod usbmon;

use std::collections::BTreeMap;

use farbus_model::Payload;
use farbus_model::module::{ModuleDeviceClass, ModuleMessage, ModuleMessageKind};

pub use self::seen::SeenTransfer;
use crate::heads::{BlockRequestHead, IsoPacketHead, UsbRequest, word};

/// The link type of USB requests in usbmon's format: LINKTYPE_USB_LINUX_MMAPPED of the pcap link types.
pub const USB: u16 = 220;
/// The link type of IPv4 packets, which carry NBD: LINKTYPE_IPV4 of the pcap link types.
pub const IPV4: u16 = 228;
/// The link type of what farbus alone reads: LINKTYPE_USER0 of the pcap link types.
pub const USER: u16 = 147;
/// The interface of the class's own link type; the other interface has link type [`USER`].
pub const OWN: u32 = 0;
/// The interface with link type [`USER`], for what the class's own link type has no format for.
pub const BESIDE: u32 = 1;

/// Bytes of data in one packet: Wireshark accepts 256 KiB; the rest follows in packets of its own ([`REST`]).
pub const DATA_BYTES_MAX: usize = 192 << 10;
/// The first byte of a [`USER`] packet that continues the data of the packet before it.
pub const REST: u8 = 255;
const PLAIN_BYTES: usize = 16;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_LOST: u16 = 4;

/// A block: its type, its length before and behind it.
fn block(kind: u32, body: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = body.iter().map(|part| part.len()).sum();
    let length = (12 + bytes) as u32;
    let mut block = Vec::with_capacity(length as usize);
    block.extend(kind.to_le_bytes());
    block.extend(length.to_le_bytes());
    body.iter().for_each(|part| block.extend_from_slice(part));
    block.extend(length.to_le_bytes());
    block
}

/// A recording without packets: a section without interfaces, which Wireshark opens. Each attachment begins a section
/// of its own behind it.
pub fn empty() -> Vec<u8> {
    block(SECTION, &[&BYTE_ORDER.to_le_bytes(), &[1, 0, 0, 0], &[0xff; 8]])
}

/// The beginning of a section: its interfaces are those of a class.
pub fn section(class: ModuleDeviceClass) -> Vec<u8> {
    let own = match class {
        ModuleDeviceClass::Usb => USB,
        ModuleDeviceClass::Block => IPV4,
        ModuleDeviceClass::Stream | ModuleDeviceClass::Private => USER,
    };
    // Version 1.0, a section of unknown length.
    let mut bytes = empty();
    for link_type in [own, USER] {
        // No limit of length; moments in 10^-9 s; no more options.
        let options = [&OPTION_RESOLUTION.to_le_bytes()[..], &[1, 0, 9, 0, 0, 0], &[0; 4]].concat();
        bytes.extend(block(INTERFACE, &[&link_type.to_le_bytes(), &[0; 6], &options]));
    }
    bytes
}

/// A packet seen at `unix_ns`; `lost` packets before it could not be written.
pub fn packet(interface: u32, unix_ns: u64, lost: u64, parts: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut head = Vec::with_capacity(20);
    head.extend(interface.to_le_bytes());
    head.extend(((unix_ns >> 32) as u32).to_le_bytes());
    head.extend((unix_ns as u32).to_le_bytes());
    head.extend([bytes as u32; 2].map(u32::to_le_bytes).concat());
    let padding = &[0; 3][..bytes.next_multiple_of(4) - bytes];
    let mut options = Vec::new();
    if lost > 0 {
        options.extend([OPTION_LOST, 8].map(u16::to_le_bytes).concat());
        options.extend(lost.to_le_bytes());
        options.extend([0; 4]);
    }
    let body: Vec<&[u8]> = [&head[..]].into_iter().chain(parts.iter().copied()).chain([padding, &options]).collect();
    block(ENHANCED_PACKET, &body)
}

impl SeenTransfer<'_> {
    /// The packet of a recording that begins with [`usb_section`].
    pub fn recorded(&self) -> Vec<u8> {
        let data = &self.data[..self.data.len().min(DATA_BYTES_MAX)];
        packet(OWN, self.unix_ns, self.missed, &[&usbmon::seen(self, data.len()), data])
    }
}

/// The beginning of a recording of USB transfers.
pub fn usb_section() -> Vec<u8> {
    section(ModuleDeviceClass::Usb)
}

/// A message without a form of its own, as it passed: kind 1 (`docs/modules.md`), direction 1 (0 to the device), class
/// 1, zero, bytes of the head 4, id 8; then the head and the data.
pub fn plain(class: ModuleDeviceClass, message: &ModuleMessage) -> Vec<u8> {
    let is_up =
        matches!(message.kind, ModuleMessageKind::Completion | ModuleMessageKind::Cancelled | ModuleMessageKind::Event);
    let class = match class {
        ModuleDeviceClass::Usb => 1,
        ModuleDeviceClass::Block => 2,
        ModuleDeviceClass::Stream => 3,
        ModuleDeviceClass::Private => 128,
    };
    let mut bytes = vec![message.kind.code(), u8::from(is_up), class, 0];
    bytes.extend((message.head.len() as u32).to_le_bytes());
    bytes.extend(message.id.to_le_bytes());
    message.head.runs().for_each(|run| bytes.extend_from_slice(run));
    bytes
}

/// The rest of data that one packet cannot hold, in packets.
pub fn rest(unix_ns: u64, data: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut head = [0; PLAIN_BYTES];
    head[0] = REST;
    data.chunks(DATA_BYTES_MAX).map(move |part| packet(BESIDE, unix_ns, 0, &[&head, part]))
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedRequest {
    /// To a USB device.
    Usb(UsbRequest),
    /// To a block device.
    Block(BlockRequestHead),
}

impl RecordedRequest {
    /// Memory that it takes in a table, bytes.
    pub fn memory_bytes(&self) -> usize {
        let packets = if let RecordedRequest::Usb(request) = self { request.packets.capacity() } else { 0 };
        2 * size_of::<Self>() + packets * size_of::<IsoPacketHead>()
    }
}

/// A request and its answer in a recording.
#[derive(Clone, Debug)]
pub struct RecordedExchange {
    /// The request's head, parsed.
    pub request: RecordedRequest,
    /// The data that was sent with it.
    pub sent: Vec<u8>,
    /// When it was made, ns.
    pub asked_ns: u64,
    /// Its answer, if the recording has one: head, data, and time.
    pub answer: Option<(Payload, Vec<u8>, u64)>,
}

/// A parsed recording, in the order of its requests.
#[derive(Debug, Default)]
pub struct ParsedRecording {
    /// The requests, each with its answer if the recording has one.
    pub exchanges: Vec<RecordedExchange>,
    /// Requests without an answer yet, by their numbers in the recording.
    open: BTreeMap<u64, usize>,
    /// The request whose data continues in the next packet, and whether that is the answer's data.
    last: Option<(usize, bool)>,
}

impl ParsedRecording {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// A sentence: why it is no readable recording.
    pub fn read(file: &[u8]) -> Result<Self, String> {
        let mut tale = Self::default();
        let mut interfaces: Vec<(u16, u64)> = Vec::new();
        let mut stream = nbd::NbdStreamReassembly::default();
        let mut rest = file;
        while !rest.is_empty() {
            let at = file.len() - rest.len();
            let broken = || format!("it is no pcapng file, or damaged: byte {at}");
            let kind = word(rest, 0).ok_or_else(broken)?;
            if at == 0 && kind != SECTION {
                return Err("it is no pcapng file ('editcap -F pcapng' makes one of other captures)".to_owned());
            }
            if kind == SECTION {
                if word(rest, 8) != Some(BYTE_ORDER) {
                    return Err("it was written in big-endian order, which is not read here".to_owned());
                }
                interfaces.clear();
                (tale.open, tale.last, stream) = (BTreeMap::new(), None, nbd::NbdStreamReassembly::default());
            }
            let length = word(rest, 4).ok_or_else(broken)? as usize;
            // A file that is still being written may end within a block.
            if length < 12 || !length.is_multiple_of(4) {
                return Err(broken());
            }
            let Some((block, behind)) = rest.split_at_checked(length) else { break };
            rest = behind;
            let body = &block[8..length - 4];
            match kind {
                INTERFACE => interfaces.push(interface(body).ok_or_else(broken)?),
                ENHANCED_PACKET => {
                    let bytes = word(body, 12).ok_or_else(broken)? as usize;
                    let data = body.get(20..).and_then(|data| data.get(..bytes)).ok_or_else(broken)?;
                    let number = word(body, 0).ok_or_else(broken)? as usize;
                    let &(link_type, ticks_per_s) = interfaces.get(number).ok_or_else(broken)?;
                    let ticks = u64::from(word(body, 4).ok_or_else(broken)?) << 32
                        | u64::from(word(body, 8).ok_or_else(broken)?);
                    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(ticks_per_s);
                    tale.hear(link_type, ns as u64, data, &mut stream);
                }
                _ => {}
            }
        }
        Ok(tale)
    }

    fn hear(&mut self, link_type: u16, ns: u64, data: &[u8], stream: &mut nbd::NbdStreamReassembly) {
        match (link_type, data.first()) {
            (USB, _) => match usbmon::read(data, |id| self.usb_asked(id)) {
                Some(usbmon::UsbmonRecord::Request { id, request, sent }) => {
                    self.ask(id, RecordedRequest::Usb(request), sent, ns)
                }
                Some(usbmon::UsbmonRecord::Answered { id, head, data }) => self.answer(id, head, data, ns),
                None => {}
            },
            (IPV4, _) => stream.hear(data, |record| match record {
                nbd::NbdRecord::Request { id, head: block_request_head, sent } => {
                    self.ask(id, RecordedRequest::Block(block_request_head), sent, ns)
                }
                nbd::NbdRecord::Answered { id, head, data } => self.answer(id, head, data, ns),
            }),
            (USER, Some(&REST)) => {
                let Some(exchange) = self.last.and_then(|(at, _)| self.exchanges.get_mut(at)) else { return };
                let more = data.get(PLAIN_BYTES..).unwrap_or_default();
                match (&mut exchange.answer, self.last) {
                    (Some((_, data, _)), Some((_, true))) => data.extend_from_slice(more),
                    _ => exchange.sent.extend_from_slice(more),
                }
            }
            _ => {}
        }
    }

    fn usb_asked(&self, id: u64) -> Option<UsbRequest> {
        match &self.exchanges[*self.open.get(&id)?].request {
            RecordedRequest::Usb(request) => Some(request.clone()),
            RecordedRequest::Block(_) => None,
        }
    }

    fn ask(&mut self, id: u64, request: RecordedRequest, sent: Vec<u8>, asked_ns: u64) {
        self.open.insert(id, self.exchanges.len());
        self.last = Some((self.exchanges.len(), false));
        self.exchanges.push(RecordedExchange { request, sent, asked_ns, answer: None });
    }

    fn answer(&mut self, id: u64, head: Payload, data: Vec<u8>, ns: u64) {
        if let Some(at) = self.open.remove(&id) {
            self.exchanges[at].answer = Some((head, data, ns));
            self.last = Some((at, true));
        }
    }
}

/// An interface's link type, and in how many parts it divides a second.
fn interface(body: &[u8]) -> Option<(u16, u64)> {
    let link_type = u16::from_le_bytes(*body.first_chunk()?);
    let mut options = body.get(8..)?;
    let mut ticks_per_s = 1_000_000;
    while let Some((head, behind)) = options.split_first_chunk::<4>() {
        let (code, length) =
            (u16::from_le_bytes([head[0], head[1]]), usize::from(u16::from_le_bytes([head[2], head[3]])));
        if code == OPTION_RESOLUTION && length == 1 {
            let exponent = u32::from(behind.first()? & 0x7f);
            let base = if behind[0] & 0x80 != 0 { 2u64 } else { 10 };
            ticks_per_s = base.checked_pow(exponent)?;
        }
        options = behind.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some((link_type, ticks_per_s))
}
