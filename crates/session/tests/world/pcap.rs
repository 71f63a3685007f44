//! A session as a packet capture, with as much Ethernet, IPv4 and TCP as a dissector needs.

use super::transcript::{Transcript, Who};

/// The port by which dissectors recognise USB/IP.
const PORT_SERVER: u16 = 3240;
const PORT_CLIENT: u16 = 50_000;
/// Payload of an Ethernet frame; larger messages are split, smaller ones are not combined.
const SEGMENT_BYTES_MAX: usize = 1460;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// A capture (libpcap's classic format, nanoseconds) of these sessions, one connection each.
pub fn capture(sessions: &[Transcript]) -> Vec<u8> {
    let mut file = Vec::new();
    // Magic of nanosecond captures, version 2.4, no time zone, no accuracy, frames whole, Ethernet.
    for word in [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (at, session) in sessions.iter().enumerate() {
        Connection { file: &mut file, client_port: PORT_CLIENT + at as u16, sent: [0; 2] }.play(session);
    }
    file
}

struct Connection<'a> {
    file: &'a mut Vec<u8>,
    client_port: u16,
    /// Sequence numbers used so far, of the client and of the server.
    sent: [u32; 2],
}

impl Connection<'_> {
    fn play(mut self, session: &Transcript) {
        self.segment(0, Who::Client, SYN, &[]);
        self.segment(0, Who::Server, SYN | ACK, &[]);
        self.segment(0, Who::Client, ACK, &[]);
        let mut last = 0;
        for turn in &session.turns {
            last = turn.at_ns;
            for part in turn.bytes.chunks(SEGMENT_BYTES_MAX) {
                self.segment(last, turn.who, PSH | ACK, part);
            }
        }
        self.segment(last, Who::Client, FIN | ACK, &[]);
        self.segment(last, Who::Server, FIN | ACK, &[]);
        self.segment(last, Who::Client, ACK, &[]);
    }

    fn segment(&mut self, at_ns: u64, who: Who, flags: u8, data: &[u8]) {
        let (from, to) = match who {
            Who::Client => (self.client_port, PORT_SERVER),
            Who::Server => (PORT_SERVER, self.client_port),
        };
        let (mine, other) = (who as usize, 1 - who as usize);
        let acknowledged = if flags & ACK != 0 { self.sent[other] } else { 0 };
        let mut tcp = [from.to_be_bytes(), to.to_be_bytes()].concat();
        tcp.extend([self.sent[mine], acknowledged].map(u32::to_be_bytes).concat());
        // Five words of header, the flags, a window, the checksum (filled in later), no urgent pointer.
        tcp.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(data);
        let (source, target) = (address(who), address(if who == Who::Client { Who::Server } else { Who::Client }));
        let pseudo = [&source[..], &target, &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
        let sum = checksum(&[&pseudo[..], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        self.frame(at_ns, &internet(source, target, &tcp));
        let counted = data.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.sent[mine] = self.sent[mine].wrapping_add(counted);
    }

    fn frame(&mut self, at_ns: u64, packet: &[u8]) {
        let ethernet = [&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 1], &[8, 0]].concat();
        let bytes = (ethernet.len() + packet.len()) as u32;
        let second = 1_000_000_000;
        for word in [(at_ns / second) as u32, (at_ns % second) as u32, bytes, bytes] {
            self.file.extend(word.to_le_bytes());
        }
        self.file.extend(ethernet);
        self.file.extend(packet);
    }
}

/// Addresses for documentation (RFC 5737).
fn address(who: Who) -> [u8; 4] {
    [192, 0, 2, 1 + who as u8]
}

fn internet(source: [u8; 4], target: [u8; 4], tcp: &[u8]) -> Vec<u8> {
    let total = (20 + tcp.len()) as u16;
    // Version 4, five words; do not fragment; 64 hops; TCP; the checksum (filled in later).
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(source);
    packet.extend(target);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(tcp);
    packet
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let halves = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = halves.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
