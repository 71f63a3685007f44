//! INQUIRY: the disk's identity, and its vital product data (SPC-4; SBC-3 for pages B0 to B2).

use super::limits::{PAGE_BYTES, TRANSFER_BLOCKS_MAX, UNMAP_BYTES_MAX, UNMAP_RANGES_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::storage::options::{StorageOptions, fnv1a};
use crate::storage::sense::SenseReport;

/// Peripheral device type: direct access block device.
const DIRECT_ACCESS: u8 = 0x00;
/// RMB of byte 1.
const REMOVABLE: u8 = 0x80;
/// Version: complies to SPC-4. Response data format: the only one left.
const VERSION_SPC_4: u8 = 0x06;
const RESPONSE_FORMAT: u8 = 0x02;
/// Bytes of standard data: what every host asks for first.
const STANDARD_BYTES: u8 = 36;

const VENDOR: &[u8; 8] = b"farbus  ";
const REVISION: &[u8; 4] = b"0001";
const PRODUCT_BYTES: usize = 16;

/// Vital product data pages, ascending as page 00 lists them.
const SUPPORTED_PAGES: u8 = 0x00;
const UNIT_SERIAL_NUMBER: u8 = 0x80;
const DEVICE_IDENTIFICATION: u8 = 0x83;
const BLOCK_LIMITS: u8 = 0xb0;
const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;

/// The disk's identity.
#[derive(Debug)]
pub(crate) struct InquiryIdentity {
    product: [u8; PRODUCT_BYTES],
    serial: String,
    removable: bool,
    sector_bytes: u32,
}

impl InquiryIdentity {
    pub fn new(options: &StorageOptions) -> Self {
        let mut product = [b' '; PRODUCT_BYTES];
        for (to, character) in product.iter_mut().zip(options.product.chars()) {
            // SPC-4, ASCII data field requirements: graphic codes only.
            *to = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
        }
        let serial = options.serial.clone();
        Self { product, serial, removable: options.removable, sector_bytes: options.sector_bytes }
    }

    pub fn is_removable(&self) -> bool {
        self.removable
    }

    /// Standard INQUIRY data.
    pub fn write_standard(&self, to: &mut Vec<u8>) {
        let removable = if self.removable { REMOVABLE } else { 0 };
        // The additional length counts what follows it.
        to.extend([DIRECT_ACCESS, removable, VERSION_SPC_4, RESPONSE_FORMAT, STANDARD_BYTES - 5, 0, 0, 0]);
        to.extend(VENDOR);
        to.extend(self.product);
        to.extend(REVISION);
    }

    /// Writes a vital product data page; `is_thin`: space can be given back.
    pub fn write_page(&self, page: u8, is_thin: bool, to: &mut Vec<u8>) -> Result<(), SenseReport> {
        to.extend([DIRECT_ACCESS, page, 0, 0]);
        match page {
            SUPPORTED_PAGES => {
                to.extend([SUPPORTED_PAGES, UNIT_SERIAL_NUMBER, DEVICE_IDENTIFICATION]);
                to.extend([BLOCK_LIMITS, BLOCK_DEVICE_CHARACTERISTICS, LOGICAL_BLOCK_PROVISIONING]);
            }
            UNIT_SERIAL_NUMBER => to.extend(self.serial.as_bytes()),
            DEVICE_IDENTIFICATION => self.write_designators(to),
            BLOCK_LIMITS => self.write_block_limits(is_thin, to),
            BLOCK_DEVICE_CHARACTERISTICS => write_characteristics(to),
            LOGICAL_BLOCK_PROVISIONING => write_provisioning(is_thin, to),
            _ => {
                to.clear();
                return Err(SenseReport::INVALID_FIELD_IN_CDB);
            }
        }
        let length = (to.len() - 4) as u16;
        to[2..4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Two designators: a readable one, and one in the form of a world-wide name that is marked as locally assigned
    /// (SPC-4, designation descriptors).
    fn write_designators(&self, to: &mut Vec<u8>) {
        const ASCII: u8 = 2;
        const BINARY: u8 = 1;
        const T10_VENDOR_ID: u8 = 1;
        const NAA: u8 = 3;
        /// NAA value 3h in the top four bits: locally assigned.
        const LOCALLY_ASSIGNED: u64 = 3 << 60;
        let name_bytes = VENDOR.len() + PRODUCT_BYTES + self.serial.len();
        to.extend([ASCII, T10_VENDOR_ID, 0, name_bytes as u8]);
        to.extend(VENDOR);
        to.extend(self.product);
        to.extend(self.serial.as_bytes());
        to.extend([BINARY, NAA, 0, 8]);
        to.extend((fnv1a(self.serial.as_bytes()) >> 4 | LOCALLY_ASSIGNED).to_be_bytes());
    }

    fn write_block_limits(&self, is_thin: bool, to: &mut Vec<u8>) {
        const LENGTH: usize = 0x3c;
        /// WSNZ: a WRITE SAME of zero blocks is refused.
        const WSNZ: u8 = 0x01;
        /// UGAVALID: the alignment of the unmap granularity, zero, is valid.
        const UGAVALID: u32 = 1 << 31;
        let end = to.len() + LENGTH;
        let page_blocks = PAGE_BYTES / self.sector_bytes;
        to.extend([WSNZ, 0]);
        to.extend((page_blocks as u16).to_be_bytes());
        to.extend(TRANSFER_BLOCKS_MAX.to_be_bytes());
        // Optimal and prefetch length: not reported.
        to.extend([0; 8]);
        let unmap = [UNMAP_BYTES_MAX / self.sector_bytes, UNMAP_RANGES_MAX, page_blocks, UGAVALID];
        unmap.into_iter().for_each(|field| to.extend(if is_thin { field } else { 0 }.to_be_bytes()));
        to.extend(u64::from(WRITE_SAME_BLOCKS_MAX).to_be_bytes());
        to.resize(end, 0);
    }
}

fn write_characteristics(to: &mut Vec<u8>) {
    const LENGTH: usize = 0x3c;
    /// Medium rotation rate: it does not rotate.
    const SOLID_STATE: u16 = 1;
    let end = to.len() + LENGTH;
    to.extend(SOLID_STATE.to_be_bytes());
    to.resize(end, 0);
}

fn write_provisioning(is_thin: bool, to: &mut Vec<u8>) {
    /// UNMAP works, so do both WRITE SAME with their UNMAP bit, and what is unmapped reads as zeros.
    const LBPU_LBPWS_LBPWS10: u8 = 0xe0;
    const LBPRZ: u8 = 0x04;
    /// Provisioning type: thin.
    const THIN: u8 = 2;
    // No threshold.
    to.extend(if is_thin { [0, LBPU_LBPWS_LBPWS10 | LBPRZ, THIN, 0] } else { [0; 4] });
}
