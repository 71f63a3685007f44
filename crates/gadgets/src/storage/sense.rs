//! Why a command failed, as SCSI sense data (SPC-4).

use crate::saved::{SavedStateReader, SavedStateWriter};

/// Sense keys (SPC-4, sense key descriptions) that farbus's disks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum SenseKey {
    NoSense = 0x0,
    NotReady = 0x2,
    MediumError = 0x3,
    IllegalRequest = 0x5,
    UnitAttention = 0x6,
    DataProtect = 0x7,
    Miscompare = 0xe,
}

impl SenseKey {
    const ALL: [Self; 7] = [
        SenseKey::NoSense,
        SenseKey::NotReady,
        SenseKey::MediumError,
        SenseKey::IllegalRequest,
        SenseKey::UnitAttention,
        SenseKey::DataProtect,
        SenseKey::Miscompare,
    ];
}

/// Response codes: which format, and whether an earlier command is meant (SPC-4, response codes).
const FIXED: u8 = 0x70;
const DESCRIPTOR: u8 = 0x72;
const DEFERRED: u8 = 0x01;
/// VALID of both formats: the information field holds something.
const INFORMATION_VALID: u8 = 0x80;
/// Bytes behind byte 7 of fixed sense data of 18 bytes.
const FIXED_ADDITIONAL_BYTES: u8 = 10;
/// The information descriptor: type, and bytes that follow its length.
const INFORMATION_TYPE: u8 = 0x00;
const INFORMATION_BYTES: u8 = 0x0a;

/// One error report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenseReport {
    key: SenseKey,
    /// Additional sense code and its qualifier.
    code: u8,
    qualifier: u8,
    /// The block that it concerns.
    lba: Option<u64>,
    /// It concerns an earlier command, whose status was good.
    deferred: bool,
}

impl SenseReport {
    pub const NONE: SenseReport = SenseReport::new(SenseKey::NoSense, 0x00, 0x00);
    /// Initializing command required: it was stopped.
    pub const STOPPED: SenseReport = SenseReport::new(SenseKey::NotReady, 0x04, 0x02);
    pub const MEDIUM_NOT_PRESENT: SenseReport = SenseReport::new(SenseKey::NotReady, 0x3a, 0x00);
    pub const WRITE_ERROR: SenseReport = SenseReport::new(SenseKey::MediumError, 0x0c, 0x00);
    /// Unrecovered read error.
    pub const READ_ERROR: SenseReport = SenseReport::new(SenseKey::MediumError, 0x11, 0x00);
    pub const PARAMETER_LIST_LENGTH: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x1a, 0x00);
    pub const INVALID_OPERATION_CODE: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x20, 0x00);
    pub const LBA_OUT_OF_RANGE: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x21, 0x00);
    pub const INVALID_FIELD_IN_CDB: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x24, 0x00);
    pub const UNIT_NOT_SUPPORTED: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x25, 0x00);
    pub const INVALID_FIELD_IN_PARAMETERS: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x26, 0x00);
    pub const SAVING_NOT_SUPPORTED: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x39, 0x00);
    pub const REMOVAL_PREVENTED: SenseReport = SenseReport::new(SenseKey::IllegalRequest, 0x53, 0x02);
    /// Not ready to ready change, medium may have changed.
    pub const MEDIUM_CHANGED: SenseReport = SenseReport::new(SenseKey::UnitAttention, 0x28, 0x00);
    /// Power on, reset, or bus device reset occurred.
    pub const RESET_OCCURRED: SenseReport = SenseReport::new(SenseKey::UnitAttention, 0x29, 0x00);
    pub const WRITE_PROTECTED: SenseReport = SenseReport::new(SenseKey::DataProtect, 0x27, 0x00);
    /// Space allocation failed write protect: a thin store is full.
    pub const SPACE_ALLOCATION_FAILED: SenseReport = SenseReport::new(SenseKey::DataProtect, 0x27, 0x07);
    pub const MISCOMPARE: SenseReport = SenseReport::new(SenseKey::Miscompare, 0x1d, 0x00);

    pub fn save(self, to: &mut SavedStateWriter) {
        [self.key as u8, self.code, self.qualifier].into_iter().for_each(|byte| to.u8(byte));
        to.flag(self.deferred);
        to.flag(self.lba.is_some());
        to.u64(self.lba.unwrap_or(0));
    }

    pub fn restore(from: &mut SavedStateReader<'_>) -> Option<Self> {
        let key = from.u8()?;
        let key = SenseKey::ALL.into_iter().find(|known| *known as u8 == key)?;
        let (code, qualifier, deferred) = (from.u8()?, from.u8()?, from.flag()?);
        let (has_lba, lba) = (from.flag()?, from.u64()?);
        Some(Self { key, code, qualifier, lba: has_lba.then_some(lba), deferred })
    }

    const fn new(key: SenseKey, code: u8, qualifier: u8) -> Self {
        Self { key, code, qualifier, lba: None, deferred: false }
    }

    /// Adds the block.
    pub fn at(self, lba: u64) -> Self {
        Self { lba: Some(lba), ..self }
    }

    /// Marks it as an error of a command that had ended with good status.
    pub fn deferred(self) -> Self {
        Self { deferred: true, ..self }
    }

    /// As fixed format sense data (SPC-4, table of that name), 18 bytes.
    pub fn write_fixed(self, to: &mut Vec<u8>) {
        // A block beyond 32 bits cannot be told in this format.
        let information = self.lba.and_then(|lba| u32::try_from(lba).ok());
        let valid = if information.is_some() { INFORMATION_VALID } else { 0 };
        to.extend([valid | self.response_code(FIXED), 0, self.key as u8]);
        to.extend(information.unwrap_or(0).to_be_bytes());
        to.push(FIXED_ADDITIONAL_BYTES);
        // Command-specific information.
        to.extend([0; 4]);
        to.extend([self.code, self.qualifier]);
        // No field replaceable unit, nothing specific to the key.
        to.extend([0; 4]);
    }

    /// As descriptor format sense data, 8 bytes and perhaps an information descriptor.
    pub fn write_descriptors(self, to: &mut Vec<u8>) {
        let additional = if self.lba.is_some() { INFORMATION_BYTES + 2 } else { 0 };
        to.extend([self.response_code(DESCRIPTOR), self.key as u8, self.code, self.qualifier]);
        to.extend([0, 0, 0, additional]);
        if let Some(lba) = self.lba {
            to.extend([INFORMATION_TYPE, INFORMATION_BYTES, INFORMATION_VALID, 0]);
            to.extend(lba.to_be_bytes());
        }
    }

    fn response_code(self, format: u8) -> u8 {
        if self.deferred { format | DEFERRED } else { format }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_sense_names_a_block_that_fits_32_bits() {
        let mut bytes = Vec::new();
        SenseReport::READ_ERROR.at(0x0102_0304).write_fixed(&mut bytes);
        assert_eq!(bytes, [0xf0, 0, 3, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
        bytes.clear();
        SenseReport::WRITE_ERROR.at(1 << 32).deferred().write_fixed(&mut bytes);
        assert_eq!(bytes, [0x71, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptor_sense_names_any_block() {
        let mut bytes = Vec::new();
        SenseReport::READ_ERROR.at(1 << 32).write_descriptors(&mut bytes);
        assert_eq!(bytes, [0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        bytes.clear();
        SenseReport::WRITE_PROTECTED.deferred().write_descriptors(&mut bytes);
        assert_eq!(bytes, [0x73, 7, 0x27, 0, 0, 0, 0, 0]);
    }
}
