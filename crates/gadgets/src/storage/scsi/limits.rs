//! The limits of one command. The Block Limits page reports the same numbers.

/// Blocks of a READ, WRITE or VERIFY: the most that a ten-byte command can name. A VERIFY without a comparison reads
/// that much before the engine gets its next turn: 256 MiB at most.
pub const TRANSFER_BLOCKS_MAX: u32 = 0xffff;
/// Blocks of a WRITE SAME: a pattern other than zeros has to be written block by block.
pub const WRITE_SAME_BLOCKS_MAX: u32 = 0xffff;
/// Bytes of an UNMAP. A store that cannot punch holes writes zeros: a second of work.
pub const UNMAP_BYTES_MAX: u32 = 1 << 30;
/// Ranges of an UNMAP: the limit of the kernel's own target, and more than a kernel sends.
pub const UNMAP_RANGES_MAX: u32 = 256;
/// Bytes of a UNMAP parameter list's header, and of each range behind it (SBC-3, UNMAP parameter list).
pub const UNMAP_HEADER_BYTES: usize = 8;
pub const UNMAP_RANGE_BYTES: usize = 16;
/// The longest accepted parameter list: UNMAP's.
pub const PARAMETER_BYTES_MAX: usize = UNMAP_HEADER_BYTES + UNMAP_RANGES_MAX as usize * UNMAP_RANGE_BYTES;
/// The allocation unit of files, used as the size of a hole, an aligned transfer and a "physical" block.
pub const PAGE_BYTES: u32 = 4096;
/// A logical unit's only buffer, allocated once: replies, parameter lists, and the pieces in which
/// VERIFY reads and WRITE SAME writes.
pub const BUFFER_BYTES: usize = 64 << 10;

const _: () = assert!(PARAMETER_BYTES_MAX <= BUFFER_BYTES);
