//! The two wrappers of Bulk-Only transport, byte by byte (BOT 1.0 §5.1, §5.2).

use farbus_model::TransferDirection;

use super::scsi::Cdb;

/// Bytes of a command block wrapper: a valid one has exactly these (BOT §6.2.1).
pub const COMMAND_BYTES: usize = 31;
/// Bytes of a command status wrapper (BOT §6.3.1).
pub const STATUS_BYTES: usize = 13;

/// `dCBWSignature`, the bytes "USBC" (BOT §5.1).
const COMMAND_SIGNATURE: [u8; 4] = *b"USBC";
/// `dCSWSignature`, the bytes "USBS" (BOT §5.2).
const STATUS_SIGNATURE: [u8; 4] = *b"USBS";

/// Writes a command block wrapper.
pub fn write_command(to: &mut [u8], tag: u32, direction: TransferDirection, length: u32, lun: u8, cdb: &Cdb) {
    to[0..4].copy_from_slice(&COMMAND_SIGNATURE);
    to[4..8].copy_from_slice(&tag.to_le_bytes());
    to[8..12].copy_from_slice(&length.to_le_bytes());
    to[12] = if direction == TransferDirection::In { 0x80 } else { 0 };
    to[13] = lun & 0x0f;
    to[14] = cdb.bytes().len() as u8;
    to[15..31].fill(0);
    to[15..15 + cdb.bytes().len()].copy_from_slice(cdb.bytes());
}

/// The content of a command status wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandStatus {
    /// `bCSWStatus`: 0 passed, 1 failed, 2 phase error.
    pub status: u8,
    /// `dCSWDataResidue`: bytes of the data phase without content.
    pub residue: u32,
}

impl CommandStatus {
    /// Parses a status that is valid and meaningful as the answer to `tag` (BOT §6.3); `None` for anything else.
    pub fn parse(bytes: &[u8], tag: u32, length: u32) -> Option<Self> {
        let bytes: &[u8; STATUS_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (residue, status) = (word(8), bytes[12]);
        let valid = bytes[0..4] == STATUS_SIGNATURE && word(4) == tag;
        // After a phase error the residue means nothing (BOT §6.3.2).
        let meaningful = status == 2 || status < 2 && residue <= length;
        (valid && meaningful).then_some(Self { status, residue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_bytes_where_the_specification_puts_them() {
        let mut bytes = [0xee; COMMAND_BYTES];
        write_command(&mut bytes, 0x0403_0201, TransferDirection::In, 512, 3, &Cdb::read(8, 1));
        assert_eq!(bytes[..15], [0x55, 0x53, 0x42, 0x43, 1, 2, 3, 4, 0, 2, 0, 0, 0x80, 3, 10]);
        assert_eq!(bytes[15..], [0x28, 0, 0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn invalid_or_meaningless_status_is_refused() {
        let status = |tag: u8, residue: u8, code: u8| [b'U', b'S', b'B', b'S', tag, 0, 0, 0, residue, 0, 0, 0, code];
        let parse = |bytes: &[u8]| CommandStatus::parse(bytes, 7, 8);
        assert_eq!(parse(&status(7, 8, 1)), Some(CommandStatus { status: 1, residue: 8 }));
        assert_eq!(parse(&status(7, 9, 2)), Some(CommandStatus { status: 2, residue: 9 }));
        for wrong in [status(6, 0, 0), status(7, 9, 0), status(7, 0, 3)] {
            assert_eq!(parse(&wrong), None, "{wrong:?}");
        }
        assert_eq!(parse(&status(7, 0, 0)[..12]), None);
        let mut unsigned = status(7, 0, 0);
        unsigned[3] = b'C';
        assert_eq!(parse(&unsigned), None);
    }
}
