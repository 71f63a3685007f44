//! Parses untrusted bytes: a command descriptor block becomes a typed [`ScsiCommand`] or sense data.
//!
//! Ranges of blocks are checked later, because that takes a medium
//! ([`Geometry::span`](super::super::medium::SectorGeometry::span)).

use super::limits::{PARAMETER_BYTES_MAX, TRANSFER_BLOCKS_MAX, WRITE_SAME_BLOCKS_MAX};
use super::mode;
use crate::storage::medium::LbaRange;
use crate::storage::sense::SenseReport;

/// Operation codes (SPC-4 and SBC-3, numeric order).
pub(crate) mod op {
    #![allow(missing_docs, reason = "the names are the specifications' own")]
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const READ_6: u8 = 0x08;
    pub const WRITE_6: u8 = 0x0a;
    pub const INQUIRY: u8 = 0x12;
    pub const MODE_SELECT_6: u8 = 0x15;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const START_STOP_UNIT: u8 = 0x1b;
    pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
    pub const READ_FORMAT_CAPACITIES: u8 = 0x23;
    pub const READ_CAPACITY_10: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const WRITE_10: u8 = 0x2a;
    pub const VERIFY_10: u8 = 0x2f;
    pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const WRITE_SAME_10: u8 = 0x41;
    pub const UNMAP: u8 = 0x42;
    pub const MODE_SELECT_10: u8 = 0x55;
    pub const MODE_SENSE_10: u8 = 0x5a;
    pub const READ_16: u8 = 0x88;
    pub const WRITE_16: u8 = 0x8a;
    pub const VERIFY_16: u8 = 0x8f;
    pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub const WRITE_SAME_16: u8 = 0x93;
    pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub const REPORT_LUNS: u8 = 0xa0;
    pub const READ_12: u8 = 0xa8;
    pub const WRITE_12: u8 = 0xaa;
    pub const VERIFY_12: u8 = 0xaf;
    /// Service action of [`SERVICE_ACTION_IN_16`], its only one here.
    pub const READ_CAPACITY_16: u8 = 0x10;
}

/// A host's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScsiCommand {
    TestUnitReady,
    /// Data about the disk, at most this many bytes.
    Report(ScsiReport, usize),
    /// `fua`: from the medium and not from a cache.
    Read {
        extent: LbaRange,
        fua: bool,
    },
    /// `fua`: durable before the status.
    Write {
        extent: LbaRange,
        fua: bool,
    },
    /// `compare`: with what the host sends; else only whether it can be read.
    Verify {
        extent: LbaRange,
        compare: bool,
    },
    SynchronizeCache(LbaRange),
    /// The host sends a list of this many bytes.
    Parameters(ParameterList, usize),
    /// `has_data`: one block of data follows; else zeros are written.
    WriteSame {
        extent: LbaRange,
        unmap: bool,
        has_data: bool,
    },
    Power(StartStopAction),
    PreventRemoval(bool),
}

/// Data about the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScsiReport {
    Sense { descriptors: bool },
    Inquiry,
    VitalProductData { page: u8 },
    Modes(mode::ModeSenseRequest),
    Capacity10,
    Capacity16,
    FormatCapacities,
    Luns { select: u8 },
}

/// Lists that a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterList {
    ModeSelect { long: bool },
    Unmap,
}

/// START STOP UNIT (SBC-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartStopAction {
    Start,
    Stop,
    Load,
    Eject,
    /// A power condition from which the disk returns by itself.
    Rest,
}

/// The condition for a command to run; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CommandPrecondition {
    Nothing,
    /// The host has been told of every event (SPC-4, unit attention condition).
    Attention,
    /// The medium is in and started.
    Ready,
    /// The medium takes writes.
    Writable,
}

impl ScsiCommand {
    pub fn demand(&self) -> CommandPrecondition {
        match self {
            ScsiCommand::Report(ScsiReport::Sense { .. } | ScsiReport::Inquiry, _)
            | ScsiCommand::Report(ScsiReport::VitalProductData { .. } | ScsiReport::Luns { .. }, _) => {
                CommandPrecondition::Nothing
            }
            ScsiCommand::Report(ScsiReport::Modes(_) | ScsiReport::FormatCapacities, _)
            | ScsiCommand::Parameters(ParameterList::ModeSelect { .. }, _)
            | ScsiCommand::Power(_)
            | ScsiCommand::PreventRemoval(_) => CommandPrecondition::Attention,
            ScsiCommand::Report(ScsiReport::Capacity10 | ScsiReport::Capacity16, _)
            | ScsiCommand::TestUnitReady
            | ScsiCommand::Read { .. }
            | ScsiCommand::Verify { .. }
            | ScsiCommand::SynchronizeCache(_) => CommandPrecondition::Ready,
            ScsiCommand::Write { .. }
            | ScsiCommand::WriteSame { .. }
            | ScsiCommand::Parameters(ParameterList::Unmap, _) => CommandPrecondition::Writable,
        }
    }
}

/// Parses a command descriptor block of any length.
pub(crate) fn decode(cdb: &[u8]) -> Result<ScsiCommand, SenseReport> {
    let opcode = *cdb.first().ok_or(SenseReport::INVALID_OPERATION_CODE)?;
    let needed = cdb_bytes(opcode).ok_or(SenseReport::INVALID_OPERATION_CODE)?;
    // A block that is too short is unknown if its code is, and otherwise invalid.
    let short = cdb.len() < needed;
    let mut b = [0; 16];
    let n = cdb.len().min(needed);
    b[..n].copy_from_slice(&cdb[..n]);
    let command = decode_block(&b)?;
    if short { Err(SenseReport::INVALID_FIELD_IN_CDB) } else { Ok(command) }
}

/// The length that the top three bits of a code stand for (SPC-4, group codes).
fn cdb_bytes(opcode: u8) -> Option<usize> {
    Some(match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        4 => 16,
        5 => 12,
        _ => return None,
    })
}

fn decode_block(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    Ok(match b[0] {
        op::TEST_UNIT_READY => ScsiCommand::TestUnitReady,
        op::REQUEST_SENSE => ScsiCommand::Report(ScsiReport::Sense { descriptors: bit(b[1], 0) }, b[4].into()),
        op::INQUIRY => inquiry(b)?,
        op::REPORT_LUNS => report_luns(b)?,
        op::MODE_SENSE_6 => {
            ScsiCommand::Report(ScsiReport::Modes(mode::ModeSenseRequest::decode(b, false)?), b[4].into())
        }
        op::MODE_SENSE_10 => {
            ScsiCommand::Report(ScsiReport::Modes(mode::ModeSenseRequest::decode(b, true)?), u16_at(b, 7).into())
        }
        op::MODE_SELECT_6 => mode_select(b, false, b[4].into())?,
        op::MODE_SELECT_10 => mode_select(b, true, u16_at(b, 7).into())?,
        op::READ_CAPACITY_10 => read_capacity_10(b)?,
        op::SERVICE_ACTION_IN_16 => read_capacity_16(b)?,
        op::READ_FORMAT_CAPACITIES => ScsiCommand::Report(ScsiReport::FormatCapacities, u16_at(b, 7).into()),
        op::READ_6 => ScsiCommand::Read { extent: extent_6(b), fua: false },
        op::READ_10 => ScsiCommand::Read { extent: transfer(b, extent_10(b))?, fua: fua(b) },
        op::READ_12 => ScsiCommand::Read { extent: transfer(b, extent_12(b))?, fua: fua(b) },
        op::READ_16 => ScsiCommand::Read { extent: transfer(b, extent_16(b))?, fua: fua(b) },
        op::WRITE_6 => ScsiCommand::Write { extent: extent_6(b), fua: false },
        op::WRITE_10 => ScsiCommand::Write { extent: transfer(b, extent_10(b))?, fua: fua(b) },
        op::WRITE_12 => ScsiCommand::Write { extent: transfer(b, extent_12(b))?, fua: fua(b) },
        op::WRITE_16 => ScsiCommand::Write { extent: transfer(b, extent_16(b))?, fua: fua(b) },
        op::VERIFY_10 => verify(b, extent_10(b))?,
        op::VERIFY_12 => verify(b, extent_12(b))?,
        op::VERIFY_16 => verify(b, extent_16(b))?,
        // IMMED may be ignored: the command is complete when the status comes.
        op::SYNCHRONIZE_CACHE_10 => ScsiCommand::SynchronizeCache(extent_10(b)),
        op::SYNCHRONIZE_CACHE_16 => ScsiCommand::SynchronizeCache(extent_16(b)),
        op::UNMAP => unmap(b)?,
        op::WRITE_SAME_10 => write_same(b, extent_10(b), true)?,
        op::WRITE_SAME_16 => write_same(b, extent_16(b), !bit(b[1], 0))?,
        op::START_STOP_UNIT => ScsiCommand::Power(power(b)?),
        op::PREVENT_ALLOW_MEDIUM_REMOVAL => prevent(b)?,
        _ => return Err(SenseReport::INVALID_OPERATION_CODE),
    })
}

/// INQUIRY: EVPD in bit 0 of byte 1; without it the page code has to be zero (SPC-4).
fn inquiry(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    let (page, allocation) = (b[2], u16_at(b, 3).into());
    match bit(b[1], 0) {
        true => Ok(ScsiCommand::Report(ScsiReport::VitalProductData { page }, allocation)),
        false => valid(page == 0).map(|()| ScsiCommand::Report(ScsiReport::Inquiry, allocation)),
    }
}

/// REPORT LUNS: SELECT REPORT 0 to 2, room for one unit at least (SPC-4).
fn report_luns(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    const ALLOCATION_MIN: u32 = 16;
    const SELECT_MAX: u8 = 2;
    let (select, allocation) = (b[2], u32_at(b, 6));
    valid(select <= SELECT_MAX && allocation >= ALLOCATION_MIN)?;
    Ok(ScsiCommand::Report(ScsiReport::Luns { select }, allocation as usize))
}

/// MODE SELECT: PF set, because the pages are the standard's; SP clear, because nothing is saved (SPC-4).
fn mode_select(b: &[u8; 16], long: bool, length: usize) -> Result<ScsiCommand, SenseReport> {
    valid(bit(b[1], 4) && !bit(b[1], 0))?;
    parameters(ParameterList::ModeSelect { long }, length)
}

/// UNMAP without ANCHOR, which Logical Block Provisioning reports as unsupported.
fn unmap(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    valid(!bit(b[1], 0))?;
    parameters(ParameterList::Unmap, u16_at(b, 7).into())
}

fn parameters(list: ParameterList, length: usize) -> Result<ScsiCommand, SenseReport> {
    match length {
        0..=PARAMETER_BYTES_MAX => Ok(ScsiCommand::Parameters(list, length)),
        _ => Err(SenseReport::PARAMETER_LIST_LENGTH),
    }
}

/// READ CAPACITY(10): PMI and its address are obsolete and have to be zero (SBC-3).
fn read_capacity_10(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    valid(u32_at(b, 2) == 0 && !bit(b[8], 0))?;
    Ok(ScsiCommand::Report(ScsiReport::Capacity10, usize::MAX))
}

fn read_capacity_16(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    const SERVICE_ACTION_MASK: u8 = 0x1f;
    valid(b[1] & SERVICE_ACTION_MASK == op::READ_CAPACITY_16)?;
    Ok(ScsiCommand::Report(ScsiReport::Capacity16, u32_at(b, 10) as usize))
}

/// VERIFY: BYTCHK 00b checks the medium, 01b compares; 11b, one block against all, is not supported.
fn verify(b: &[u8; 16], extent: LbaRange) -> Result<ScsiCommand, SenseReport> {
    let extent = transfer(b, extent)?;
    match b[1] >> 1 & 3 {
        0 => Ok(ScsiCommand::Verify { extent, compare: false }),
        1 => Ok(ScsiCommand::Verify { extent, compare: true }),
        _ => Err(SenseReport::INVALID_FIELD_IN_CDB),
    }
}

/// WRITE SAME: no protection, no ANCHOR (bit 4), none of the obsolete PBDATA and LBDATA (bits 2 and 1); a count of zero
/// would mean the rest of the medium, and WSNZ reports that it is refused (SBC-3).
fn write_same(b: &[u8; 16], extent: LbaRange, has_data: bool) -> Result<ScsiCommand, SenseReport> {
    const REFUSED: u8 = 0xf6;
    valid(b[1] & REFUSED == 0)?;
    valid((1..=u64::from(WRITE_SAME_BLOCKS_MAX)).contains(&extent.blocks))?;
    Ok(ScsiCommand::WriteSame { extent, unmap: bit(b[1], 3), has_data })
}

/// START STOP UNIT: a power condition other than zero makes START and LOEJ void (SBC-3).
fn power(b: &[u8; 16]) -> Result<StartStopAction, SenseReport> {
    const START_VALID: u8 = 0x0;
    /// Active, idle, standby.
    const CONDITIONS: std::ops::RangeInclusive<u8> = 0x1..=0x3;
    /// The disk decides; idle at once; standby at once.
    const TIMERS: [u8; 3] = [0x7, 0xa, 0xb];
    match b[4] >> 4 {
        START_VALID => Ok(match (bit(b[4], 1), bit(b[4], 0)) {
            (false, false) => StartStopAction::Stop,
            (false, true) => StartStopAction::Start,
            (true, false) => StartStopAction::Eject,
            (true, true) => StartStopAction::Load,
        }),
        condition if CONDITIONS.contains(&condition) || TIMERS.contains(&condition) => Ok(StartStopAction::Rest),
        _ => Err(SenseReport::INVALID_FIELD_IN_CDB),
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL: values 2 and 3 are obsolete (SPC-4).
fn prevent(b: &[u8; 16]) -> Result<ScsiCommand, SenseReport> {
    match b[4] & 3 {
        0 => Ok(ScsiCommand::PreventRemoval(false)),
        1 => Ok(ScsiCommand::PreventRemoval(true)),
        _ => Err(SenseReport::INVALID_FIELD_IN_CDB),
    }
}

/// A READ(6)'s or WRITE(6)'s: 21 bits of address, and zero stands for 256 blocks (SBC-3).
fn extent_6(b: &[u8; 16]) -> LbaRange {
    const LBA_MASK: u32 = 0x1f_ffff;
    let blocks = if b[4] == 0 { 256 } else { b[4].into() };
    LbaRange { lba: (u32_at(b, 0) & LBA_MASK).into(), blocks }
}

fn extent_10(b: &[u8; 16]) -> LbaRange {
    LbaRange { lba: u32_at(b, 2).into(), blocks: u16_at(b, 7).into() }
}

fn extent_12(b: &[u8; 16]) -> LbaRange {
    LbaRange { lba: u32_at(b, 2).into(), blocks: u32_at(b, 6).into() }
}

fn extent_16(b: &[u8; 16]) -> LbaRange {
    LbaRange { lba: u64::from(u32_at(b, 2)) << 32 | u64::from(u32_at(b, 6)), blocks: u32_at(b, 10).into() }
}

/// A transfer without protection information (bits 7..5; SBC-3: no PROTECT, no such field) and
/// within the Block Limits page's maximum.
fn transfer(b: &[u8; 16], extent: LbaRange) -> Result<LbaRange, SenseReport> {
    const PROTECTION: u8 = 0xe0;
    valid(b[1] & PROTECTION == 0 && extent.blocks <= u64::from(TRANSFER_BLOCKS_MAX))?;
    Ok(extent)
}

/// FUA of READ and WRITE. DPO, beside it, is advice that a page cache does not take.
fn fua(b: &[u8; 16]) -> bool {
    bit(b[1], 3)
}

fn valid(condition: bool) -> Result<(), SenseReport> {
    if condition { Ok(()) } else { Err(SenseReport::INVALID_FIELD_IN_CDB) }
}

fn bit(byte: u8, number: u8) -> bool {
    byte >> number & 1 != 0
}

fn u16_at(b: &[u8; 16], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8; 16], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_read_names_its_blocks() {
        let extent = |lba, blocks| LbaRange { lba, blocks };
        let read = |cdb: &[u8]| match decode(cdb) {
            Ok(ScsiCommand::Read { extent, fua }) => (extent, fua),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&[op::READ_6, 0xff, 0xff, 0xff, 0, 0]), (extent(0x1f_ffff, 256), false));
        assert_eq!(read(&[op::READ_6, 0, 0, 1, 2, 0]), (extent(1, 2), false));
        assert_eq!(read(&[op::READ_10, 8, 1, 2, 3, 4, 0, 5, 6, 0]), (extent(0x0102_0304, 0x0506), true));
        assert_eq!(read(&[op::READ_12, 0x10, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0]), (extent(0x0102_0304, 0x0506), false));
        assert_eq!(
            read(&[op::READ_16, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 9, 10, 0, 0]),
            (extent(0x0102_0304_0506_0708, 0x090a), true)
        );
    }

    #[test]
    fn unsupported_command_fields_are_refused() {
        let mut refused = vec![
            // A page code without EVPD, a saved page, an unknown service action.
            vec![op::INQUIRY, 0, 0x80, 0, 36, 0],
            vec![op::SERVICE_ACTION_IN_16, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
            // Protection information; more blocks than the limit; BYTCHK 11b.
            vec![op::READ_10, 0x20, 0, 0, 0, 0, 0, 0, 1, 0],
            vec![op::READ_12, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
            vec![op::VERIFY_10, 6, 0, 0, 0, 0, 0, 0, 1, 0],
            // ANCHOR, and a count of zero.
            vec![op::UNMAP, 1, 0, 0, 0, 0, 0, 0, 24, 0],
            vec![op::WRITE_SAME_10, 0x18, 0, 0, 0, 0, 0, 0, 1, 0],
            vec![op::WRITE_SAME_10, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            // No page format; an obsolete kind of prevention; an unknown power condition.
            vec![op::MODE_SELECT_6, 0, 0, 0, 24, 0],
            vec![op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 2, 0],
            vec![op::START_STOP_UNIT, 0, 0, 0, 0x50, 0],
            // Cut short.
            vec![op::READ_10, 0, 0, 0, 0, 0],
        ];
        refused.push(vec![op::REPORT_LUNS, 0, 3, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
        for cdb in refused {
            assert_eq!(decode(&cdb), Err(SenseReport::INVALID_FIELD_IN_CDB), "{cdb:02x?}");
        }
        for opcode in [0x04, 0x7f, 0xc0, 0xff] {
            assert_eq!(decode(&[opcode; 16]), Err(SenseReport::INVALID_OPERATION_CODE));
        }
        assert_eq!(decode(&[]), Err(SenseReport::INVALID_OPERATION_CODE));
        let long_list = [op::UNMAP, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
        assert_eq!(decode(&long_list), Err(SenseReport::PARAMETER_LIST_LENGTH));
    }
}
