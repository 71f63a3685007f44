//! Block requests as NBD (simple replies) over TCP over IPv4, as an NBD client and server would exchange them, so that
//! Wireshark reads them.

use std::collections::BTreeMap;

use farbus_model::Payload;

use crate::heads::BlockRequestHead;

const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
/// NBD's commands for our operations: read, write, flush, discard, write zeroes.
const COMMANDS: [u16; 5] = [0, 1, 3, 4, 6];
const FUA: u16 = 1;
/// NBD's errors for ours: medium, no space, read-only, gone, lost, invalid.
const ERRORS: [u32; 6] = [5, 28, 1, 108, 5, 22];

const PORT_SERVER: u16 = 10809;
const PORT_CLIENT: u16 = 50_000;
/// Bytes of one segment.
const SEGMENT_BYTES_MAX: usize = 60_000;
const IP_BYTES: usize = 20;
const HEADS_BYTES: usize = 40;
/// Bytes of a message in a recording: a request's data and its head.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A request's head; what is written follows.
pub fn request(id: u64, head: &BlockRequestHead) -> Vec<u8> {
    let mut bytes = REQUEST.to_be_bytes().to_vec();
    bytes.extend((if head.flags & 1 != 0 { FUA } else { 0 }).to_be_bytes());
    bytes.extend(COMMANDS[usize::from(head.op.min(4))].to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(head.offset.to_be_bytes());
    bytes.extend(head.length.to_be_bytes());
    bytes
}

/// A reply's head; the data read follows.
pub fn reply(id: u64, head: &Payload) -> Vec<u8> {
    let error = head.contiguous().first().map_or(0, |error| ERRORS[usize::from(*error).min(5)]);
    let mut bytes = SIMPLE_REPLY.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes
}

/// The TCP sequence numbers of both ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpSequenceNumbers([u32; 2]);

impl TcpSequenceNumbers {
    /// The packets of a message to the server, or from it.
    pub fn packets(&mut self, is_reply: bool, message: &[u8]) -> Vec<Vec<u8>> {
        let packets = message.chunks(SEGMENT_BYTES_MAX).map(|part| self.packet(is_reply, part));
        packets.collect()
    }

    fn packet(&mut self, is_reply: bool, data: &[u8]) -> Vec<u8> {
        let [ports, hosts] = match is_reply {
            true => [[PORT_SERVER, PORT_CLIENT], [2, 1]],
            false => [[PORT_CLIENT, PORT_SERVER], [1, 2]],
        };
        let (sent, heard) = (self.0[usize::from(is_reply)], self.0[usize::from(!is_reply)]);
        self.0[usize::from(is_reply)] = sent.wrapping_add(data.len() as u32);
        // Version 4, five words; 64 hops; TCP. Addresses for documentation (RFC 5737).
        let mut packet = vec![0x45, 0];
        packet.extend(((HEADS_BYTES + data.len()) as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        hosts.iter().for_each(|host| packet.extend([192, 0, 2, *host as u8]));
        let sum: u32 = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        packet.extend(ports.map(u16::to_be_bytes).concat());
        packet.extend([sent, heard].map(|count| count.wrapping_add(1)).map(u32::to_be_bytes).concat());
        // Five words, PSH and ACK, a window, no checksum (a network card would fill it in later), no urgent data.
        packet.extend([5 << 4, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend_from_slice(data);
        packet
    }
}

/// An entry of a recording.
pub enum NbdRecord {
    /// A request that the front end made.
    Request {
        /// Its number in the recording.
        id: u64,
        /// Its operation and its range.
        head: BlockRequestHead,
        /// The data to write.
        sent: Vec<u8>,
    },
    /// The answer to an earlier request.
    Answered {
        /// The request's number in the recording.
        id: u64,
        /// Its outcome, in the format of the class.
        head: Payload,
        /// The data read.
        data: Vec<u8>,
    },
}

/// Both directions of the connection, reassembled. The recording has the segments in order.
#[derive(Debug, Default)]
pub struct NbdStreamReassembly {
    ways: [Vec<u8>; 2],
    /// Bytes that a read asks for, by the read's number.
    reads: BTreeMap<u64, usize>,
}

impl NbdStreamReassembly {
    /// Adds a packet, and passes on the entries that it completes.
    pub fn hear(&mut self, packet: &[u8], mut tell: impl FnMut(NbdRecord)) {
        let Some(data) = packet.get(HEADS_BYTES..) else { return };
        let is_reply = packet[IP_BYTES..IP_BYTES + 2] == PORT_SERVER.to_be_bytes();
        let way = &mut self.ways[usize::from(is_reply)];
        way.extend_from_slice(data);
        if way.len() > MESSAGE_BYTES_MAX {
            way.clear();
        }
        loop {
            let taken = match is_reply {
                false => self.take_request(&mut tell),
                true => self.take_reply(&mut tell),
            };
            match taken {
                Some(bytes) => _ = self.ways[usize::from(is_reply)].drain(..bytes),
                None => break,
            }
        }
    }

    fn take_request(&mut self, tell: &mut impl FnMut(NbdRecord)) -> Option<usize> {
        let bytes = &self.ways[0];
        let head: [u8; 28] = *bytes.first_chunk()?;
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let long = |at: usize| u64::from(u32_of(&head, at)) << 32 | u64::from(u32_of(&head, at + 4));
        let Some(op) = COMMANDS.iter().position(|known| *known == short(6)).filter(|_| u32_of(&head, 0) == REQUEST)
        else {
            // Another program's message, which is skipped.
            return Some(bytes.len()).filter(|bytes| *bytes > 0);
        };
        let length = u32_of(&head, 24);
        let data_bytes = if op == 1 { length as usize } else { 0 };
        let sent = bytes.get(28..28 + data_bytes)?.to_vec();
        let id = long(8);
        if op == 0 {
            self.reads.insert(id, length as usize);
        }
        let flags = u8::from(short(4) & FUA != 0);
        tell(NbdRecord::Request { id, head: BlockRequestHead { op: op as u8, flags, length, offset: long(16) }, sent });
        Some(28 + data_bytes)
    }

    fn take_reply(&mut self, tell: &mut impl FnMut(NbdRecord)) -> Option<usize> {
        let bytes = &self.ways[1];
        let head: [u8; 16] = *bytes.first_chunk()?;
        if u32_of(&head, 0) != SIMPLE_REPLY {
            return Some(bytes.len()).filter(|bytes| *bytes > 0);
        }
        let (error, id) = (u32_of(&head, 4), u64::from(u32_of(&head, 8)) << 32 | u64::from(u32_of(&head, 12)));
        let data_bytes = if error == 0 { self.reads.get(&id).copied().unwrap_or_default() } else { 0 };
        let data = bytes.get(16..16 + data_bytes)?.to_vec();
        self.reads.remove(&id);
        let head = match error {
            0 => Payload::Empty,
            _ => vec![ERRORS.iter().position(|known| *known == error).unwrap_or_default() as u8].into(),
        };
        tell(NbdRecord::Answered { id, head, data });
        Some(16 + data_bytes)
    }
}

fn u32_of(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}
