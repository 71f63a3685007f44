//! Network transfer blocks of 16 bits (NCM 1.0 §3): many Ethernet frames in one transfer. Checks the untrusted bytes of
//! a host.
//!
//! A block is a header that names a table that names frames, all by their offsets; tables may follow each other. A
//! block with one wrong offset is refused as a whole.

use std::fmt;

/// The longest block, either way: what Linux asks for by itself.
pub const NTB_BYTES_MAX: usize = 16 << 10;
/// The smallest maximum block size that a host may set (NCM 1.0 §6.2.7).
pub const NTB_BYTES_MIN: usize = 2048;
/// Frames in one block: what Linux puts into one.
pub const FRAMES_MAX: usize = 40;
/// An Ethernet frame without its check sequence.
pub const FRAME_BYTES_MAX: usize = 1514;
const FRAME_BYTES_MIN: usize = 14;

/// §3.2.1: signature, its own length, sequence number, length of the block, offset of the first table.
const HEADER_BYTES: usize = 12;
const HEADER_SIGNATURE: [u8; 4] = *b"NCMH";
/// §3.3.1: signature, its own length, offset of the next table; then an offset and a length for each frame, and two
/// zeros. This is the shortest table.
const TABLE_BYTES_MIN: usize = 16;
const TABLE_HEAD_BYTES: usize = 8;
const ENTRY_BYTES: usize = 4;
/// Frames without a check sequence; with one they are `NCM1`, which no host has selected.
const TABLE_SIGNATURE: [u8; 4] = *b"NCM0";
/// The alignment of tables and frames, here and on hosts that follow the parameters of this device.
pub const ALIGNMENT: usize = 4;

/// Why a block is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NtbError {
    /// The field, by its name in the specification.
    pub field: &'static str,
    /// The field's offset in the block.
    pub at: usize,
    /// The rule that was broken.
    pub rule: &'static str,
}

impl fmt::Display for NtbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {} of a transfer block: {}", self.field, self.at, self.rule)
    }
}

/// The place of a frame in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramPointer {
    at: u16,
    length: u16,
}

impl DatagramPointer {
    /// The frame in the block that it was found in.
    pub fn of(self, block: &[u8]) -> &[u8] {
        &block[usize::from(self.at)..usize::from(self.at) + usize::from(self.length)]
    }
}

/// Finds the frames of `block`, in order, and puts their places into `frames`, which is empty if the block is refused.
///
/// # Errors
/// [`NtbError`]: the first rule that is broken.
pub fn read(block: &[u8], frames: &mut Vec<DatagramPointer>) -> Result<(), NtbError> {
    frames.clear();
    let result = find(block, frames);
    if result.is_err() {
        frames.clear();
    }
    result
}

fn find(block: &[u8], frames: &mut Vec<DatagramPointer>) -> Result<(), NtbError> {
    let word = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    let refuse = |field, at, rule| Err(NtbError { field, at, rule });
    if !(HEADER_BYTES..=NTB_BYTES_MAX).contains(&block.len()) {
        return refuse("transfer", 0, "it has the header's 12 bytes and no more than dwNtbOutMaxSize");
    }
    if block[..4] != HEADER_SIGNATURE {
        return refuse("dwSignature", 0, "it is NCMH");
    }
    if word(4) != HEADER_BYTES {
        return refuse("wHeaderLength", 4, "it is 12");
    }
    // Zero means as long as the transfer (§3.2.1); bytes after a shorter block fill the last packet.
    let end = match word(8) {
        0 => block.len(),
        length => length,
    };
    if !(HEADER_BYTES..=block.len()).contains(&end) {
        return refuse("wBlockLength", 8, "it ends within the transfer");
    }
    let (mut field, mut named_at, mut table) = ("wNdpIndex", 10, word(10));
    for _ in 0..FRAMES_MAX {
        if table < HEADER_BYTES || !table.is_multiple_of(ALIGNMENT) || table + TABLE_BYTES_MIN > end {
            return refuse(
                field,
                named_at,
                "a table starts behind the header, at a multiple of 4, and ends within the block",
            );
        }
        if block[table..table + 4] != TABLE_SIGNATURE {
            return refuse("dwSignature", table, "it is NCM0");
        }
        let length = word(table + 4);
        if length < TABLE_BYTES_MIN || !length.is_multiple_of(4) || table + length > end {
            return refuse("wLength", table + 4, "it is 16 or more, a multiple of 4, and ends within the block");
        }
        let mut entry = table + TABLE_HEAD_BYTES;
        loop {
            if entry + ENTRY_BYTES > table + length {
                return refuse("wDatagramIndex", entry, "a table ends with a zero");
            }
            let (at, length) = (word(entry), word(entry + 2));
            // Either one ends the list (§3.3.1).
            if at == 0 || length == 0 {
                break;
            }
            if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&length) {
                return refuse("wDatagramLength", entry + 2, "a frame has 14 bytes to wMaxSegmentSize");
            }
            if at < HEADER_BYTES || at + length > end {
                return refuse("wDatagramIndex", entry, "a frame lies behind the header and within the block");
            }
            if frames.len() == FRAMES_MAX {
                return refuse("wDatagramIndex", entry, "there are no more than wNtbOutMaxDatagrams");
            }
            frames.push(DatagramPointer { at: at as u16, length: length as u16 });
            entry += ENTRY_BYTES;
        }
        (field, named_at, table) = ("wNextNdpIndex", table + 6, word(table + 6));
        if table == 0 {
            return Ok(());
        }
    }
    refuse(field, named_at, "there are no more tables than frames")
}

/// Puts a block together: header, frames, table.
#[derive(Debug)]
pub struct NtbWriter {
    block: Vec<u8>,
    pointers: Vec<DatagramPointer>,
    bytes_max: usize,
}

impl NtbWriter {
    /// Begins a block of at most `bytes_max` bytes, which is at least [`NTB_BYTES_MIN`].
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.clamp(NTB_BYTES_MIN, NTB_BYTES_MAX);
        let mut block = Vec::with_capacity(bytes_max);
        block.resize(HEADER_BYTES, 0);
        Self { block, pointers: Vec::with_capacity(FRAMES_MAX), bytes_max }
    }

    /// Appends a frame. Returns whether there was space.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let at = self.block.len().next_multiple_of(ALIGNMENT);
        let table = (at + frame.len()).next_multiple_of(ALIGNMENT);
        let end = table + TABLE_HEAD_BYTES + (self.pointers.len() + 2) * ENTRY_BYTES;
        if end > self.bytes_max || self.pointers.len() == FRAMES_MAX {
            return false;
        }
        self.block.resize(at, 0);
        self.block.extend_from_slice(frame);
        self.pointers.push(DatagramPointer { at: at as u16, length: frame.len() as u16 });
        true
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.pointers.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// The block, the `sequence`th of its pipe.
    pub fn finish(self, sequence: u16) -> Vec<u8> {
        let Self { mut block, pointers, .. } = self;
        let table = block.len().next_multiple_of(ALIGNMENT);
        block.resize(table, 0);
        let length = TABLE_HEAD_BYTES + (pointers.len() + 1) * ENTRY_BYTES;
        block.extend(TABLE_SIGNATURE);
        let words = [length as u16, 0].into_iter();
        let words = words.chain(pointers.iter().flat_map(|pointer| [pointer.at, pointer.length])).chain([0, 0]);
        words.for_each(|word| block.extend(word.to_le_bytes()));
        let words = [HEADER_BYTES as u16, sequence, block.len() as u16, table as u16];
        block[..4].copy_from_slice(&HEADER_SIGNATURE);
        for (at, word) in (4..).step_by(2).zip(words) {
            block[at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block as §3.2 and §3.3 have it, byte by byte: one frame of 14 bytes behind the table, as Linux lays it out.
    const BLOCK: [u8; 42] = [
        b'N', b'C', b'M', b'H', 12, 0, 7, 0, 42, 0, 12, 0, // header: sequence 7, 42 bytes, table at 12
        b'N', b'C', b'M', b'0', 16, 0, 0, 0, 28, 0, 14, 0, 0, 0, 0, 0, // table: frame at 28 of 14 bytes, no more
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06, // to, from, ARP
    ];

    fn found(block: &[u8]) -> Result<Vec<Vec<u8>>, NtbError> {
        let mut frames = vec![DatagramPointer { at: 9, length: 9 }];
        let result = read(block, &mut frames);
        assert!(result.is_ok() || frames.is_empty(), "nothing is taken of a block that is refused");
        result.map(|()| frames.iter().map(|pointer| pointer.of(block).to_vec()).collect())
    }

    fn with(changes: &[(usize, u16)]) -> Vec<u8> {
        let mut block = BLOCK.to_vec();
        for (at, word) in changes {
            block[*at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        block
    }

    #[test]
    fn a_block_of_the_specification_is_read() {
        assert_eq!(found(&BLOCK), Ok(vec![BLOCK[28..].to_vec()]));
        assert_eq!(found(&with(&[(8, 0)])), Ok(vec![BLOCK[28..].to_vec()]), "as long as its transfer");
        let filled = [&BLOCK[..], &[0]].concat();
        assert_eq!(
            found(&filled).map(|frames| frames.len()),
            Ok(1),
            "a byte behind it ends the transfer with a short packet"
        );
        // A second table behind the first, with the same frame.
        let mut two = with(&[(18, 44), (8, 60)]);
        two.extend([0, 0]);
        two.extend_from_slice(&BLOCK[12..28]);
        assert_eq!(found(&two).map(|frames| frames.len()), Ok(2));
    }

    #[test]
    fn each_rule_that_is_broken_is_named() {
        let why = |changes: &[(usize, u16)]| {
            let refusal = found(&with(changes)).unwrap_err();
            (refusal.field, refusal.at)
        };
        assert_eq!(why(&[(0, 0)]), ("dwSignature", 0));
        assert_eq!(why(&[(4, 16)]), ("wHeaderLength", 4));
        assert_eq!(why(&[(8, 43)]), ("wBlockLength", 8));
        assert_eq!(why(&[(8, 8)]), ("wBlockLength", 8));
        for table in [0, 8, 13, 28, 0xfffc] {
            assert_eq!(why(&[(10, table)]), ("wNdpIndex", 10), "{table}");
        }
        assert_eq!(why(&[(14, u16::from_le_bytes(*b"M1"))]), ("dwSignature", 12), "with check sequences");
        for length in [0, 12, 17, 32, 0xfffc] {
            assert_eq!(why(&[(16, length)]), ("wLength", 16), "{length}");
        }
        assert_eq!(why(&[(18, 2)]), ("wNextNdpIndex", 18));
        assert_eq!(why(&[(18, 12)]), ("wNextNdpIndex", 18), "a circle of tables ends");
        for at in [4, 29, 0xffff] {
            assert_eq!(why(&[(20, at)]), ("wDatagramIndex", 20), "{at}");
        }
        for length in [13, 1515, 0xffff] {
            assert_eq!(why(&[(22, length)]), ("wDatagramLength", 22), "{length}");
        }
        assert_eq!(why(&[(24, 28), (26, 14)]), ("wDatagramIndex", 28), "a table without its end");
        for end in 0..BLOCK.len() {
            assert!(found(&BLOCK[..end]).is_err(), "{end} bytes");
        }
        let long = [&BLOCK[..], &[0; NTB_BYTES_MAX]].concat();
        assert_eq!(
            found(&long).unwrap_err().to_string(),
            "transfer at byte 0 of a transfer block: it has the header's 12 bytes and no more than dwNtbOutMaxSize"
        );
    }

    #[test]
    fn no_more_frames_are_taken_than_were_announced() {
        // All frames are the same one: the table has places, the block has space.
        let table = |count: usize| {
            let mut block = BLOCK[..12].to_vec();
            block.extend(*b"NCM0");
            block.extend((12 + 4 * count as u16).to_le_bytes());
            block.extend([0, 0]);
            let frame = 12 + 12 + 4 * count;
            (0..count).for_each(|_| block.extend([(frame as u16).to_le_bytes(), 14u16.to_le_bytes()].concat()));
            block.extend([0; 4]);
            block.extend_from_slice(&BLOCK[28..]);
            block[8..10].fill(0);
            found(&block).map(|frames| frames.len()).map_err(|refusal| refusal.rule)
        };
        assert_eq!(table(FRAMES_MAX), Ok(FRAMES_MAX));
        assert_eq!(table(FRAMES_MAX + 1), Err("there are no more than wNtbOutMaxDatagrams"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn written_block_is_read_back(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), FRAME_BYTES_MIN..=FRAME_BYTES_MAX), 0..60)) {
            let mut left = frames.as_slice();
            let mut sequence = 0;
            while !left.is_empty() {
                let mut writer = NtbWriter::new(4000);
                let count = left.iter().take_while(|frame| writer.push(frame)).count();
                prop_assert!(count > 0 && !writer.is_empty());
                let block = writer.finish(sequence);
                prop_assert!(block.len() <= 4000);
                prop_assert_eq!(found(&block).unwrap(), left[..count].to_vec());
                left = &left[count..];
                sequence += 1;
            }
        }
    }
}
