//! MODE SENSE and MODE SELECT (SPC-4 mode parameters, SBC-3 caching mode page).
//!
//! A host can change only WCE, the write cache.

use crate::storage::sense::SenseReport;

/// Pages, in the order in which "all pages" sends them.
const PAGE_CACHING: u8 = 0x08;
const PAGE_CONTROL: u8 = 0x0a;
const PAGE_INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
const PAGE_ALL: u8 = 0x3f;
const SUBPAGE_NONE: u8 = 0x00;
const SUBPAGE_ALL: u8 = 0xff;
/// Byte 2 of the caching page: the write cache is on.
const WCE: u8 = 0x04;
/// Byte 2 of the informational exceptions page: none are monitored.
const DEXCPT: u8 = 0x08;
/// Device-specific parameter of a disk (SBC-3): write-protected; DPO and FUA are supported.
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;
/// Byte 4 of the long header: block descriptors are long too.
const LONGLBA: u8 = 0x01;
/// Sizes of the headers and of the block descriptors.
const HEADER_6_BYTES: usize = 4;
const HEADER_10_BYTES: usize = 8;
const BLOCK_DESCRIPTOR_BYTES: usize = 8;
const LONG_BLOCK_DESCRIPTOR_BYTES: usize = 16;

/// A MODE SENSE request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeSenseRequest {
    /// MODE SENSE(10), whose header is longer.
    long: bool,
    descriptor: ModeBlockDescriptor,
    values: PageControl,
    page: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModeBlockDescriptor {
    None,
    Short,
    Long,
}

/// Which values of its mode pages the host asks for: the PC field of MODE SENSE (SPC-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageControl {
    Current,
    /// A one for every bit that MODE SELECT can change.
    Changeable,
    Default,
}

impl ModeSenseRequest {
    /// From a MODE SENSE(6) or (`long`) (10): DBD in bit 3 of byte 1, LLBAA in its bit 4.
    pub fn decode(b: &[u8; 16], long: bool) -> Result<Self, SenseReport> {
        const DBD: u8 = 0x08;
        const LLBAA: u8 = 0x10;
        const PAGE_MASK: u8 = 0x3f;
        let descriptor = match b[1] {
            flags if flags & DBD != 0 => ModeBlockDescriptor::None,
            flags if long && flags & LLBAA != 0 => ModeBlockDescriptor::Long,
            _ => ModeBlockDescriptor::Short,
        };
        let values = match b[2] >> 6 {
            0 => PageControl::Current,
            1 => PageControl::Changeable,
            2 => PageControl::Default,
            _ => return Err(SenseReport::SAVING_NOT_SUPPORTED),
        };
        let page = b[2] & PAGE_MASK;
        let known = matches!(
            (page, b[3]),
            (PAGE_CACHING | PAGE_CONTROL | PAGE_INFORMATIONAL_EXCEPTIONS | PAGE_ALL, SUBPAGE_NONE)
                | (PAGE_ALL, SUBPAGE_ALL)
        );
        if known { Ok(Self { long, descriptor, values, page }) } else { Err(SenseReport::INVALID_FIELD_IN_CDB) }
    }
}

/// The disk's state as the pages report it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModePageValues {
    pub write_cache: bool,
    pub read_only: bool,
    /// Zero while the medium is out.
    pub sectors: u64,
    pub sector_bytes: u32,
}

impl ModePageValues {
    /// MODE SENSE's data.
    pub fn write(self, ask: ModeSenseRequest, to: &mut Vec<u8>) {
        let header_bytes = if ask.long { HEADER_10_BYTES } else { HEADER_6_BYTES };
        to.resize(header_bytes, 0);
        self.write_descriptor(ask.descriptor, to);
        let descriptor_bytes = (to.len() - header_bytes) as u8;
        for page in [PAGE_CACHING, PAGE_CONTROL, PAGE_INFORMATIONAL_EXCEPTIONS] {
            if ask.page == page || ask.page == PAGE_ALL {
                self.write_page(page, ask.values, to);
            }
        }
        // Below 256 bytes in every case, so that the short header's one byte is enough.
        let all_bytes = to.len() as u8;
        let specific = if self.read_only { WP | DPOFUA } else { DPOFUA };
        if ask.long {
            let long_lba = if ask.descriptor == ModeBlockDescriptor::Long { LONGLBA } else { 0 };
            // The length does not count itself.
            to[..8].copy_from_slice(&[0, all_bytes - 2, 0, specific, long_lba, 0, 0, descriptor_bytes]);
        } else {
            to[..4].copy_from_slice(&[all_bytes - 1, 0, specific, descriptor_bytes]);
        }
    }

    /// Block descriptor (SBC-3): how many blocks, and their length.
    fn write_descriptor(self, kind: ModeBlockDescriptor, to: &mut Vec<u8>) {
        match kind {
            ModeBlockDescriptor::None => {}
            ModeBlockDescriptor::Short => {
                // Numbers beyond 32 bits are sent as all ones; the length has 24 bits.
                to.extend(u32::try_from(self.sectors).unwrap_or(u32::MAX).to_be_bytes());
                to.extend(self.sector_bytes.to_be_bytes());
            }
            ModeBlockDescriptor::Long => {
                to.extend(self.sectors.to_be_bytes());
                to.extend([0; 4]);
                to.extend(self.sector_bytes.to_be_bytes());
            }
        }
    }

    fn write_page(self, page: u8, values: PageControl, to: &mut Vec<u8>) {
        let first = match (page, values) {
            (PAGE_CACHING, PageControl::Current) if !self.write_cache => 0,
            (PAGE_CACHING, _) => WCE,
            (PAGE_INFORMATIONAL_EXCEPTIONS, PageControl::Current | PageControl::Default) => DEXCPT,
            _ => 0,
        };
        let rest = page_rest_bytes(page);
        to.extend([page, rest]);
        to.push(first);
        to.resize(to.len() + usize::from(rest) - 1, 0);
    }

    /// Parses MODE SELECT's list; returns the wanted state of the write cache. All else has to be as MODE SENSE reports
    /// it, and an empty list changes nothing.
    pub fn parse(self, long: bool, list: &[u8]) -> Result<bool, SenseReport> {
        if list.is_empty() {
            return Ok(self.write_cache);
        }
        let header_bytes = if long { HEADER_10_BYTES } else { HEADER_6_BYTES };
        let (header, rest) = list.split_at_checked(header_bytes).ok_or(SenseReport::PARAMETER_LIST_LENGTH)?;
        let (long_lba, descriptor_bytes) = match long {
            true => (header[4] & LONGLBA != 0, usize::from(u16::from_be_bytes([header[6], header[7]]))),
            false => (false, usize::from(header[3])),
        };
        let (descriptor, pages) = rest.split_at_checked(descriptor_bytes).ok_or(SenseReport::PARAMETER_LIST_LENGTH)?;
        self.check_descriptor(descriptor, long_lba)?;
        self.parse_pages(pages)
    }

    /// Checks a block descriptor: it may repeat the block length, and may not change it. The number of blocks is
    /// ignored.
    fn check_descriptor(self, descriptor: &[u8], long_lba: bool) -> Result<(), SenseReport> {
        let length_field = match (long_lba, descriptor.len()) {
            (_, 0) => return Ok(()),
            (false, BLOCK_DESCRIPTOR_BYTES) => &descriptor[5..],
            (true, LONG_BLOCK_DESCRIPTOR_BYTES) => &descriptor[13..],
            _ => return Err(SenseReport::INVALID_FIELD_IN_PARAMETERS),
        };
        match *length_field == self.sector_bytes.to_be_bytes()[1..] {
            true => Ok(()),
            false => Err(SenseReport::INVALID_FIELD_IN_PARAMETERS),
        }
    }

    fn parse_pages(self, mut pages: &[u8]) -> Result<bool, SenseReport> {
        let mut write_cache = self.write_cache;
        while !pages.is_empty() {
            let [code, rest_bytes, ..] = *pages else { return Err(SenseReport::PARAMETER_LIST_LENGTH) };
            // PS is reserved here and SPF would be a subpage (SPC-4): with either, the page is unknown.
            let known = [PAGE_CACHING, PAGE_CONTROL, PAGE_INFORMATIONAL_EXCEPTIONS].contains(&code);
            if !known || rest_bytes != page_rest_bytes(code) {
                return Err(SenseReport::INVALID_FIELD_IN_PARAMETERS);
            }
            let (page, behind) =
                pages.split_at_checked(2 + usize::from(rest_bytes)).ok_or(SenseReport::PARAMETER_LIST_LENGTH)?;
            write_cache = self.parse_page(page)?.unwrap_or(write_cache);
            pages = behind;
        }
        Ok(write_cache)
    }

    /// The wanted state of the write cache, if this is its page; every other bit has to be unchanged.
    fn parse_page(self, page: &[u8]) -> Result<Option<bool>, SenseReport> {
        let (code, first) = (page[0], page[2]);
        let (now, changed) = match code {
            PAGE_CACHING => (first & WCE, Some(first & WCE != 0)),
            PAGE_INFORMATIONAL_EXCEPTIONS => (DEXCPT, None),
            _ => (0, None),
        };
        match first == now && page[3..].iter().all(|byte| *byte == 0) {
            true => Ok(changed),
            false => Err(SenseReport::INVALID_FIELD_IN_PARAMETERS),
        }
    }
}

/// Bytes that follow a page's length field.
fn page_rest_bytes(page: u8) -> u8 {
    if page == PAGE_CACHING { 0x12 } else { 0x0a }
}
