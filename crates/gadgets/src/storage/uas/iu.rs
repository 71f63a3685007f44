//! Information units: the content of command and status pipes (UAS §6.2), byte by byte.

use farbus_model::Payload;

use crate::storage::sense::SenseReport;

/// `IU ID` (§6.2.1, table of that name).
const COMMAND: u8 = 0x01;
const SENSE: u8 = 0x03;
const RESPONSE: u8 = 0x04;
const TASK_MANAGEMENT: u8 = 0x05;
const READ_READY: u8 = 0x06;
const WRITE_READY: u8 = 0x07;

/// Bytes of a command with a block of 16 bytes, and how long one can be.
const COMMAND_BYTES: usize = 32;
const CDB_BYTES: usize = 16;
const COMMAND_BYTES_MAX: usize = COMMAND_BYTES + 4 * 0x3f;
const TASK_MANAGEMENT_BYTES: usize = 16;

/// Status codes of a command (SAM-5 §5.3).
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;

/// A unit of the command pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandIu {
    Command {
        tag: u16,
        lun: u64,
        cdb: [u8; CDB_BYTES],
    },
    TaskManagement {
        tag: u16,
        function: u8,
        task: u16,
        lun: u64,
    },
    /// An unknown unit; its tag, if it has one.
    Invalid {
        tag: u16,
    },
}

/// Task management functions (§6.2.8).
pub mod function {
    pub const ABORT_TASK: u8 = 0x01;
    pub const ABORT_TASK_SET: u8 = 0x02;
    pub const CLEAR_TASK_SET: u8 = 0x04;
    pub const LOGICAL_UNIT_RESET: u8 = 0x08;
    pub const I_T_NEXUS_RESET: u8 = 0x10;
    pub const QUERY_TASK: u8 = 0x80;
}

/// `RESPONSE CODE` (§6.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UasResponseCode {
    Complete = 0x00,
    InvalidUnit = 0x02,
    NotSupported = 0x04,
    /// For a query: the task exists.
    Succeeded = 0x08,
    IncorrectLun = 0x09,
    OverlappedTag = 0x0a,
}

/// Parses a unit of the command pipe.
pub fn parse(payload: &Payload) -> CommandIu {
    let mut bytes = [0; COMMAND_BYTES_MAX];
    let len = payload.copy_to(&mut bytes);
    let tag = if len < 4 { 0 } else { u16::from_be_bytes([bytes[2], bytes[3]]) };
    let lun = u64::from_be_bytes([8, 9, 10, 11, 12, 13, 14, 15].map(|at: usize| bytes[at]));
    // ADDITIONAL CDB LENGTH counts words of four bytes, in bits 7..2.
    let additional = usize::from(bytes[6] & 0xfc);
    match bytes[0] {
        COMMAND if payload.len() == COMMAND_BYTES + additional => {
            let mut cdb = [0; CDB_BYTES];
            cdb.copy_from_slice(&bytes[16..32]);
            // No supported command is longer than 16 bytes: a longer one has an unknown code.
            CommandIu::Command { tag, lun, cdb }
        }
        TASK_MANAGEMENT if payload.len() == TASK_MANAGEMENT_BYTES => {
            CommandIu::TaskManagement { tag, function: bytes[4], task: u16::from_be_bytes([bytes[6], bytes[7]]), lun }
        }
        _ => CommandIu::Invalid { tag },
    }
}

/// A status, with its sense data (§6.2.5).
pub fn status(tag: u16, result: Result<(), SenseReport>) -> Vec<u8> {
    const STATUS: usize = 6;
    const LENGTH: usize = 15;
    const HEADER_BYTES: usize = 16;
    let mut unit = head(SENSE, tag);
    unit.resize(HEADER_BYTES, 0);
    unit[STATUS] = GOOD;
    if let Err(sense) = result {
        unit[STATUS] = CHECK_CONDITION;
        sense.write_fixed(&mut unit);
        unit[LENGTH] = (unit.len() - HEADER_BYTES) as u8;
    }
    unit
}

/// An answer to task management, or to an invalid unit (§6.2.7).
pub fn response(tag: u16, response: UasResponseCode) -> Vec<u8> {
    let mut unit = head(RESPONSE, tag);
    unit.extend([0, 0, 0, response as u8]);
    unit
}

/// Tells the host to receive data (§6.2.9).
pub fn read_ready(tag: u16) -> Vec<u8> {
    head(READ_READY, tag)
}

/// Tells the host to send data (§6.2.10).
pub fn write_ready(tag: u16) -> Vec<u8> {
    head(WRITE_READY, tag)
}

fn head(id: u8, tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    vec![id, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_as_linux_has_them() {
        // `struct command_iu`, `sense_iu`, `response_iu` and `task_mgmt_iu` of include/linux/usb/uas.h.
        let mut command = vec![1, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        command.extend([0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let mut cdb = [0; 16];
        cdb[..10].copy_from_slice(&[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0]);
        assert_eq!(parse(&command.clone().into()), CommandIu::Command { tag: 0x1234, lun: 0, cdb });
        command.push(0);
        assert_eq!(parse(&command.into()), CommandIu::Invalid { tag: 0x1234 });
        let manage = vec![5, 0, 0, 9, 1, 0, 0, 7, 0, 1, 0, 0, 0, 0, 0, 0];
        let expected = CommandIu::TaskManagement { tag: 9, function: function::ABORT_TASK, task: 7, lun: 1 << 48 };
        assert_eq!(parse(&manage.into()), expected);
        assert_eq!(parse(&Payload::Empty), CommandIu::Invalid { tag: 0 });
        assert_eq!(status(7, Ok(())), [3, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let failed = status(7, Err(SenseReport::WRITE_PROTECTED));
        assert_eq!(failed[..16], [3, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 18]);
        assert_eq!(failed.len(), 34);
        assert_eq!(response(7, UasResponseCode::OverlappedTag), [4, 0, 0, 7, 0, 0, 0, 10]);
        assert_eq!((read_ready(0x102), write_ready(3)), (vec![6, 0, 1, 2], vec![7, 0, 0, 3]));
    }
}
