//! A whole session as text, with sides and times. People read it, tests replay it, captures are made from it.
//!
//! ```text
//! @ 125001                                   nanoseconds on the exporter's clock
//! > 00000001 00000005 …   # CMD_SUBMIT 5     the client's message; what is indented goes on with it
//! < 00000003 00000005 …   # RET_SUBMIT 5     the server's
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::peer::word;

/// A side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Client,
    Server,
}

/// What one side sent at once, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub at_ns: u64,
    pub who: Who,
    pub bytes: Vec<u8>,
}

/// A session of one connection.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    pub turns: Vec<Turn>,
    /// Bytes of each side that are not a whole message yet.
    rest: [Vec<u8>; 2],
    /// What the size of a reply depends on: its request's direction and number of packets.
    requests: BTreeMap<u32, (bool, u32)>,
    is_imported: bool,
}

/// The isochronous endpoint of the recorded devices; it is not visible on the wire.
const ISO_ENDPOINT: u32 = 3;

impl Transcript {
    /// Records bytes of one side, which must end with a whole message.
    pub fn record(&mut self, who: Who, at_ns: u64, bytes: &[u8]) {
        let mut rest = std::mem::take(&mut self.rest[who as usize]);
        rest.extend_from_slice(bytes);
        while let Some(size) = self.message_bytes(who, &rest) {
            let left = rest.split_off(size);
            self.turns.push(Turn { at_ns, who, bytes: rest });
            rest = left;
        }
        assert!(rest.is_empty(), "a side says whole messages");
    }

    /// The size of the message at the front; `None` if it is incomplete.
    fn message_bytes(&mut self, who: Who, bytes: &[u8]) -> Option<usize> {
        if bytes.len() < 8 {
            return None;
        }
        let size = match (self.is_imported, who) {
            (false, Who::Client) => {
                if word(bytes, 0) == 0x0111_8003 {
                    40
                } else {
                    8
                }
            }
            (false, Who::Server) if word(bytes, 0) == 0x0111_0003 => {
                self.is_imported = word(bytes, 4) == 0;
                if self.is_imported { 320 } else { 8 }
            }
            (false, Who::Server) => self.list_bytes(bytes)?,
            (true, _) if bytes.len() < 48 => return None,
            (true, _) => self.urb_message_bytes(bytes),
        };
        (bytes.len() >= size).then_some(size)
    }

    fn list_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let mut size = 12;
        for _ in 0..word(bytes.get(..12)?, 8) {
            size += 312 + 4 * usize::from(*bytes.get(size + 311)?);
        }
        Some(size)
    }

    fn urb_message_bytes(&mut self, bytes: &[u8]) -> usize {
        let seqnum = word(bytes, 4);
        match word(bytes, 0) {
            1 => {
                let (is_in, length) = (word(bytes, 12) == 1, word(bytes, 24));
                let packets = if word(bytes, 16) == ISO_ENDPOINT { word(bytes, 32) } else { 0 };
                self.requests.insert(seqnum, (is_in, packets));
                48 + if is_in { 0 } else { length as usize } + 16 * packets as usize
            }
            3 => {
                let (is_in, packets) = self.requests[&seqnum];
                48 + if is_in { word(bytes, 24) as usize } else { 0 } + 16 * packets as usize
            }
            2 | 4 => 48,
            other => panic!("command {other}"),
        }
    }

    /// All bytes of one side.
    pub fn bytes_of(&self, who: Who) -> Vec<u8> {
        self.turns.iter().filter(|turn| turn.who == who).flat_map(|turn| turn.bytes.iter().copied()).collect()
    }

    /// The transcript as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut at_ns = None;
        for turn in &self.turns {
            if at_ns.replace(turn.at_ns) != Some(turn.at_ns) {
                writeln!(text, "@ {}", turn.at_ns).expect("a string takes all");
            }
            let mark = if turn.who == Who::Client { '>' } else { '<' };
            for (line, bytes) in turn.bytes.chunks(32).enumerate() {
                let mark = if line == 0 { mark } else { ' ' };
                let words: Vec<String> =
                    bytes.chunks(4).map(|word| word.iter().map(|b| format!("{b:02x}")).collect()).collect();
                let comment = if line == 0 { format!("  # {}", turn.name()) } else { String::new() };
                writeln!(text, "{mark} {}{comment}", words.join(" ")).expect("a string takes all");
            }
        }
        text
    }

    /// Reads a transcript from text.
    pub fn from_text(text: &str) -> Self {
        let mut turns: Vec<Turn> = Vec::new();
        let mut at_ns = 0;
        for line in text.lines().map(|line| line.split('#').next().expect("a first part")) {
            let Some((mark, rest)) = line.split_at_checked(1) else { continue };
            let digits: Vec<u32> = rest.chars().filter_map(|c| c.to_digit(16)).collect();
            let bytes = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8);
            match mark {
                "@" => at_ns = rest.trim().parse().expect("a time is a number"),
                ">" => turns.push(Turn { at_ns, who: Who::Client, bytes: bytes.collect() }),
                "<" => turns.push(Turn { at_ns, who: Who::Server, bytes: bytes.collect() }),
                " " => turns.last_mut().expect("something goes on").bytes.extend(bytes),
                _ => panic!("no line of a session: {line}"),
            }
        }
        Self { turns, ..Self::default() }
    }
}

impl Turn {
    /// The message's name, for people.
    pub fn name(&self) -> String {
        let code = word(&self.bytes, 0);
        let name = match code {
            1 => "CMD_SUBMIT",
            2 => "CMD_UNLINK",
            3 => "RET_SUBMIT",
            4 => "RET_UNLINK",
            0x0111_8005 => return "OP_REQ_DEVLIST".into(),
            0x0111_0005 => return "OP_REP_DEVLIST".into(),
            0x0111_8003 => return "OP_REQ_IMPORT".into(),
            0x0111_0003 => return "OP_REP_IMPORT".into(),
            other => panic!("message {other:#x}"),
        };
        let seqnum = word(&self.bytes, 4);
        match code {
            1 => {
                let direction = if word(&self.bytes, 12) == 1 { "IN" } else { "OUT" };
                format!("{name} {seqnum} ep {} {direction} {} bytes", word(&self.bytes, 16), word(&self.bytes, 24))
            }
            2 => format!("{name} {seqnum} of {}", word(&self.bytes, 20)),
            3 => format!(
                "{name} {seqnum} status {} {} bytes",
                word(&self.bytes, 20).cast_signed(),
                word(&self.bytes, 24)
            ),
            _ => format!("{name} {seqnum} status {}", word(&self.bytes, 20).cast_signed()),
        }
    }
}
