//! Short reports: capacity and logical units.

use super::limits::PAGE_BYTES;
use crate::storage::medium::SectorGeometry;

/// READ CAPACITY(10) data (SBC-3). A last block beyond 32 bits is all ones: ask with (16).
pub(crate) fn write_capacity_10(disk: SectorGeometry, to: &mut Vec<u8>) {
    to.extend(u32::try_from(disk.sectors - 1).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(disk.sector_bytes.to_be_bytes());
}

/// READ CAPACITY(16) data (SBC-3).
pub(crate) fn write_capacity_16(disk: SectorGeometry, to: &mut Vec<u8>) {
    const BYTES: usize = 32;
    /// Thinly provisioned, and what is unmapped reads as zeros.
    const LBPME_LBPRZ: u8 = 0xc0;
    to.extend((disk.sectors - 1).to_be_bytes());
    to.extend(disk.sector_bytes.to_be_bytes());
    // No protection; two to this power of logical blocks are one physical block, which is a page.
    to.extend([0, (PAGE_BYTES / disk.sector_bytes).ilog2() as u8, if disk.is_thin { LBPME_LBPRZ } else { 0 }]);
    to.resize(BYTES, 0);
}

/// READ FORMAT CAPACITIES data (UFI command specification §4.10, MMC-6): the current one alone.
pub(crate) fn write_format_capacities(disk: SectorGeometry, present: bool, to: &mut Vec<u8>) {
    const DESCRIPTOR_BYTES: u8 = 8;
    const FORMATTED: u8 = 2;
    const NO_MEDIUM: u8 = 3;
    let [_, length @ ..] = disk.sector_bytes.to_be_bytes();
    to.extend([0, 0, 0, DESCRIPTOR_BYTES]);
    to.extend(u32::try_from(disk.sectors).unwrap_or(u32::MAX).to_be_bytes());
    to.push(if present { FORMATTED } else { NO_MEDIUM });
    to.extend(length);
}

/// REPORT LUNS data (SPC-4): unit 0, unless only well-known units are asked for, of which there are none.
pub(crate) fn write_luns(select: u8, to: &mut Vec<u8>) {
    const WELL_KNOWN_ONLY: u8 = 1;
    const LUN_BYTES: usize = 8;
    let list_bytes = if select == WELL_KNOWN_ONLY { 0 } else { LUN_BYTES };
    to.extend((list_bytes as u32).to_be_bytes());
    to.resize(to.len() + 4 + list_bytes, 0);
}
