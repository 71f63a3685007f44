//! The SCSI commands that drive a disk, and the parsing of their answers (SPC-4, SBC-3).
//!
//! Answers are untrusted bytes: missing bytes read as zero, and the caller checks every value.

/// A command descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
    len: u8,
}

/// SCSI operation codes (SPC-4, SBC-3).
mod op {
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const START_STOP_UNIT: u8 = 0x1b;
    pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
    pub const READ_CAPACITY_10: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const WRITE_10: u8 = 0x2a;
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const UNMAP: u8 = 0x42;
    pub const READ_16: u8 = 0x88;
    pub const WRITE_16: u8 = 0x8a;
    pub const WRITE_SAME_16: u8 = 0x93;
    pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
}

/// Bytes asked for by INQUIRY: the standard data that every device has (SPC-4 §6.4.2).
pub const INQUIRY_BYTES: u32 = 36;
/// Bytes asked for of a vital product data page: the longest one that is read here has 64.
pub const VPD_BYTES: u32 = 255;
/// Bytes asked for by REQUEST SENSE: fixed format (SPC-4 §4.5.3).
pub const SENSE_BYTES: u32 = 18;
/// Bytes asked for by MODE SENSE(6) for all pages: what Linux asks of USB disks, for some of them
/// answer no other length.
pub const MODE_BYTES: u32 = 192;
/// Bytes of READ CAPACITY(10)'s answer.
pub const CAPACITY_10_BYTES: u32 = 8;
/// Bytes of READ CAPACITY(16)'s answer.
pub const CAPACITY_16_BYTES: u32 = 32;
/// Mode page code: all pages.
pub const PAGE_ALL: u8 = 0x3f;
/// Mode page code: caching (SBC-3 §6.4.5).
pub const PAGE_CACHING: u8 = 0x08;
/// VPD page: which pages there are.
pub const VPD_SUPPORTED: u8 = 0x00;
/// VPD page: block limits.
pub const VPD_BLOCK_LIMITS: u8 = 0xb0;
/// VPD page: logical block provisioning.
pub const VPD_PROVISIONING: u8 = 0xb2;

impl Cdb {
    fn six(bytes: [u8; 6]) -> Self {
        Self::of(&bytes)
    }

    fn ten(op: u8, flags: u8, block: u32, count: u16) -> Self {
        let (b, c) = (block.to_be_bytes(), count.to_be_bytes());
        Self::of(&[op, flags, b[0], b[1], b[2], b[3], 0, c[0], c[1], 0])
    }

    fn sixteen(op: u8, flags: u8, block: u64, count: u32) -> Self {
        let mut bytes = [0; 16];
        bytes[0] = op;
        bytes[1] = flags;
        bytes[2..10].copy_from_slice(&block.to_be_bytes());
        bytes[10..14].copy_from_slice(&count.to_be_bytes());
        Self { bytes, len: 16 }
    }

    fn of(short: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes[..short.len()].copy_from_slice(short);
        Self { bytes, len: short.len() as u8 }
    }

    /// The command descriptor block as it is sent: 6, 10 or 16 bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// TEST UNIT READY.
    pub fn test_unit_ready() -> Self {
        Self::six([op::TEST_UNIT_READY, 0, 0, 0, 0, 0])
    }

    /// REQUEST SENSE, fixed format.
    pub fn request_sense() -> Self {
        Self::six([op::REQUEST_SENSE, 0, 0, 0, SENSE_BYTES as u8, 0])
    }

    /// INQUIRY, standard data.
    pub fn inquiry() -> Self {
        Self::six([op::INQUIRY, 0, 0, 0, INQUIRY_BYTES as u8, 0])
    }

    /// INQUIRY, a vital product data page.
    pub fn vital_product_data(page: u8) -> Self {
        Self::six([op::INQUIRY, 1, page, 0, VPD_BYTES as u8, 0])
    }

    /// MODE SENSE(6), current values.
    pub fn mode_sense(page: u8) -> Self {
        Self::six([op::MODE_SENSE_6, 0, page, 0, MODE_BYTES as u8, 0])
    }

    /// START STOP UNIT: start the medium.
    pub fn start() -> Self {
        Self::six([op::START_STOP_UNIT, 0, 0, 0, 1, 0])
    }

    /// START STOP UNIT: eject the medium (LOEJ, not START).
    pub fn eject() -> Self {
        Self::six([op::START_STOP_UNIT, 0, 0, 0, 2, 0])
    }

    /// PREVENT ALLOW MEDIUM REMOVAL: allow.
    pub fn allow_removal() -> Self {
        Self::six([op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0, 0])
    }

    /// READ CAPACITY(10), which answers with the last block's address and the block length.
    pub fn read_capacity_10() -> Self {
        Self::ten(op::READ_CAPACITY_10, 0, 0, 0)
    }

    /// READ CAPACITY(16), a service action of its own.
    pub fn read_capacity_16() -> Self {
        Self::sixteen(op::SERVICE_ACTION_IN_16, 0x10, 0, CAPACITY_16_BYTES)
    }

    /// READ of `count` blocks: 10 bytes as far as they reach, 16 beyond.
    pub fn read(block: u64, count: u32) -> Self {
        match reach_of_ten(block, count) {
            Some((block, count)) => Self::ten(op::READ_10, 0, block, count),
            None => Self::sixteen(op::READ_16, 0, block, count),
        }
    }

    /// WRITE of `count` blocks, likewise.
    pub fn write(block: u64, count: u32) -> Self {
        match reach_of_ten(block, count) {
            Some((block, count)) => Self::ten(op::WRITE_10, 0, block, count),
            None => Self::sixteen(op::WRITE_16, 0, block, count),
        }
    }

    /// SYNCHRONIZE CACHE of the whole medium; waits for the medium.
    pub fn synchronize_cache() -> Self {
        Self::ten(op::SYNCHRONIZE_CACHE_10, 0, 0, 0)
    }

    /// WRITE SAME(16): the one block of data, `count` times.
    pub fn write_same(block: u64, count: u32, may_unmap: bool) -> Self {
        Self::sixteen(op::WRITE_SAME_16, if may_unmap { 0x08 } else { 0 }, block, count)
    }

    /// UNMAP with a parameter list of one range.
    pub fn unmap() -> Self {
        Self::ten(op::UNMAP, 0, 0, UNMAP_LIST_BYTES as u16)
    }
}

/// Bytes of UNMAP's parameter list with one range.
const UNMAP_LIST_BYTES: usize = 24;

/// UNMAP's parameter list: one range (SBC-3 §5.28).
pub fn unmap_list(block: u64, count: u32) -> Vec<u8> {
    let mut list = vec![0; UNMAP_LIST_BYTES];
    list[1] = UNMAP_LIST_BYTES as u8 - 2;
    list[3] = 16;
    list[8..16].copy_from_slice(&block.to_be_bytes());
    list[16..20].copy_from_slice(&count.to_be_bytes());
    list
}

/// Whether ten bytes can name these blocks: the first 2^32 of them, 65535 at once.
fn reach_of_ten(block: u64, count: u32) -> Option<(u32, u16)> {
    let last = block.checked_add(u64::from(count.saturating_sub(1)))?;
    u32::try_from(last).ok()?;
    Some((block as u32, u16::try_from(count).ok()?))
}

/// Standard INQUIRY data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InquiryReply {
    /// Peripheral qualifier: 0 when there is a device behind the unit.
    pub qualifier: u8,
    /// Peripheral device type.
    pub kind: u8,
    /// Whether the medium can be taken out.
    pub removable: bool,
    /// The SPC version that it claims: 5 is SPC-3, which defined vital product data pages in their present form.
    pub version: u8,
    /// Vendor, product, revision.
    pub names: [String; 3],
}

impl InquiryReply {
    /// Parses it; `None` without even the first five bytes.
    pub fn parse(b: &[u8]) -> Option<Self> {
        if b.len() < 5 {
            return None;
        }
        let text = |range: std::ops::Range<usize>| {
            let bytes = b.get(range.start..range.end.min(b.len())).unwrap_or(&[]);
            let printable = |&byte: &u8| if (0x20..0x7f).contains(&byte) { byte as char } else { ' ' };
            bytes.iter().map(printable).collect::<String>().trim().to_owned()
        };
        Some(Self {
            qualifier: b[0] >> 5,
            kind: b[0] & 0x1f,
            removable: b[1] & 0x80 != 0,
            version: b[2],
            names: [text(8..16), text(16..32), text(32..36)],
        })
    }
}

/// The answer of READ CAPACITY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityReply {
    /// Address of the last block.
    pub last_block: u64,
    /// Bytes of one block.
    pub block_bytes: u32,
    /// LBPME: blocks may have no space allocated.
    pub thin: bool,
    /// LBPRZ: such blocks read as zeros.
    pub thin_reads_zeros: bool,
}

impl CapacityReply {
    /// Parses READ CAPACITY(10)'s answer. A last block of 2^32 - 1 means: use READ CAPACITY(16).
    pub fn parse_10(b: &[u8]) -> Option<Self> {
        let b: &[u8; 8] = b.first_chunk()?;
        Some(Self { last_block: u64::from(be32(b, 0)), block_bytes: be32(b, 4), ..Self::default() })
    }

    /// Reads READ CAPACITY(16)'s answer (SBC-3 §5.16.2); old devices stop after the block size.
    pub fn parse_16(b: &[u8]) -> Option<Self> {
        let head: &[u8; 12] = b.first_chunk()?;
        let flags = b.get(14).copied().unwrap_or(0);
        Some(Self {
            last_block: be64(head, 0),
            block_bytes: be32(head, 8),
            thin: flags & 0x80 != 0,
            thin_reads_zeros: flags & 0x40 != 0,
        })
    }
}

/// The answer of MODE SENSE(6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeSenseReply {
    /// The medium is write-protected.
    pub write_protected: bool,
    /// Whether there is a write cache; `None` if the caching page is missing.
    pub write_cache: Option<bool>,
}

impl ModeSenseReply {
    /// Reads it (SPC-4 §7.5).
    pub fn parse(b: &[u8]) -> Option<Self> {
        let header: &[u8; 4] = b.first_chunk()?;
        let end = (usize::from(header[0]) + 1).min(b.len());
        let mut pages = b.get(4 + usize::from(header[3])..end).unwrap_or(&[]);
        let mut mode = Self { write_protected: header[2] & 0x80 != 0, write_cache: None };
        while pages.len() >= 2 {
            let has_subpage = pages[0] & 0x40 != 0;
            let length = match (has_subpage, pages) {
                (false, [_, length, ..]) => 2 + usize::from(*length),
                (true, [_, _, high, low, ..]) => 4 + usize::from(u16::from_be_bytes([*high, *low])),
                _ => break,
            };
            if pages[0] & 0x7f == PAGE_CACHING {
                mode.write_cache = pages.get(2).map(|flags| flags & 0x04 != 0);
            }
            pages = pages.get(length..).unwrap_or(&[]);
        }
        Some(mode)
    }
}

/// The body of a vital product data page, if this is the one asked for.
pub fn vpd_body(b: &[u8], page: u8) -> Option<&[u8]> {
    let header: &[u8; 4] = b.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    (header[1] == page).then(|| &b[4..(4 + length).min(b.len())])
}

/// The block limits page; 0 is "not reported" throughout (SBC-3 §6.6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// Blocks of one READ or WRITE.
    pub transfer_max: u32,
    /// Blocks of one UNMAP.
    pub unmap_max: u32,
    /// Ranges of one UNMAP.
    pub unmap_ranges_max: u32,
    /// Blocks of one WRITE SAME.
    pub write_same_max: u64,
}

impl BlockLimits {
    /// Parses the page's body; fields that an older, shorter page lacks are "not reported".
    pub fn parse(body: &[u8]) -> Self {
        let word = |at: usize| body.get(at..at + 4).map_or(0, |b| be32(b, 0));
        Self {
            transfer_max: word(4),
            unmap_max: word(16),
            unmap_ranges_max: word(20),
            write_same_max: body.get(32..40).map_or(0, |b| be64(b, 0)),
        }
    }
}

/// The logical block provisioning page (SBC-3 §6.6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvisioningPage {
    /// LBPU: UNMAP is there.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) may unmap.
    pub write_same_unmaps: bool,
    /// LBPRZ: what was unmapped reads as zeros.
    pub reads_zeros: bool,
}

impl ProvisioningPage {
    /// Reads the page's body.
    pub fn parse(body: &[u8]) -> Self {
        let flags = body.get(1).copied().unwrap_or(0);
        Self { unmap: flags & 0x80 != 0, write_same_unmaps: flags & 0x40 != 0, reads_zeros: flags & 0x04 != 0 }
    }
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_bytes_reach_the_first_two_to_the_32_blocks() {
        assert_eq!(Cdb::read(0xffff_fff0, 16).bytes().len(), 10);
        assert_eq!(Cdb::read(0xffff_fff0, 17).bytes().len(), 16);
        assert_eq!(Cdb::write(0, 65536).bytes().len(), 16);
        let far = Cdb::write(0x1_0000_0002, 3);
        assert_eq!(far.bytes(), [0x8a, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0]);
    }

    #[test]
    fn mode_pages_are_found_wherever_they_are() {
        let page = [PAGE_CACHING, 2, 0x04, 0];
        let mut answer = vec![0, 0, 0x80, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x01, 1, 0, 0x4a, 1, 0, 2, 9, 9];
        answer.extend(page);
        answer[0] = answer.len() as u8 - 1;
        assert_eq!(
            ModeSenseReply::parse(&answer),
            Some(ModeSenseReply { write_protected: true, write_cache: Some(true) })
        );
        for cut in 4..answer.len() {
            assert!(ModeSenseReply::parse(&answer[..cut]).is_some(), "cut at {cut}");
        }
        assert_eq!(ModeSenseReply::parse(&[3, 0, 0, 0]), Some(ModeSenseReply::default()));
    }

    #[test]
    fn pages_of_vital_product_data_may_be_short_or_wrong() {
        assert_eq!(vpd_body(&[0, 0xb0, 0xff, 0xff, 1, 2], 0xb0), Some(&[1, 2][..]));
        assert_eq!(vpd_body(&[0, 0, 0, 2, 1, 2], 0xb0), None);
        assert_eq!(vpd_body(&[0, 0xb0], 0xb0), None);
        assert_eq!(BlockLimits::parse(&[0, 0, 0, 0, 0, 0, 1]), BlockLimits::default());
        assert_eq!(BlockLimits::parse(&[0, 0, 0, 0, 0, 0, 1, 0]).transfer_max, 256);
        let full = ProvisioningPage { unmap: true, write_same_unmaps: true, reads_zeros: true };
        assert_eq!(ProvisioningPage::parse(&[0, 0xc4, 2, 0]), full);
    }

    #[test]
    fn names_are_printable_whatever_was_sent() {
        let mut bytes = vec![0, 0x80, 2, 2, 31, 0, 0, 0];
        bytes.extend(b"farbus\x1b[");
        bytes.extend(b"disk");
        let inquiry = InquiryReply::parse(&bytes).unwrap();
        assert_eq!(inquiry.names, ["farbus [", "disk", ""]);
        assert!(inquiry.removable);
        assert_eq!(InquiryReply::parse(&bytes[..4]), None);
    }
}
