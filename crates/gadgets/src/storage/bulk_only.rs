//! The Bulk-Only Transport 1.0: command wrapper, data, status wrapper.
//!
//! ```text
//!            CBW                    all moved, or it failed            CSW collected
//! Command ────────► DataIn/DataOut ────────────────────────► Status ────────────────► Command
//!    │                                                          ▲
//!    │ a CBW whose command moves nothing, fails, or disagrees ──┘
//!    └ not a CBW ──► Wedged ── Bulk-Only Mass Storage Reset ──► Command
//! ```
//!
//! The host may have everything queued before the device has seen the command: data and status
//! leave in order, each in its turn, and data that comes too early is not taken.
//!
//! **Host and device disagree** (§6.7, the thirteen cases). Where the host expects more than the
//! device does, the endpoint of the missing data halts, so that every data request that the host queued
//! ends, and the status follows once the halt is cleared. Where the device would move more, or the
//! other way, nothing is done and the status is a phase error.

use farbus_model::{EpAddr, Payload, TransferDirection};

use super::scsi::{CheckCondition, ScsiLogicalUnit, TransferPlan};
use crate::emulated::{FunctionContext, InTransferAnswer, OutTransferAnswer};
use crate::saved::{SavedStateReader, SavedStateWriter};

pub(super) const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
pub(super) const BULK_OUT: EpAddr = EpAddr::from_byte(0x01);

/// A command block wrapper (§5.1) that is valid (§6.2.1): its size and signature are right.
struct Cbw {
    tag: u32,
    /// Bytes that the host expects to move.
    length: u32,
    direction: TransferDirection,
    lun: u8,
    /// The first `bCBWCBLength` bytes are the command; the rest is ignored.
    cdb: [u8; CDB_BYTES_MAX],
    cdb_bytes: u8,
    /// Whether no reserved bit is set and the block's length is possible (§6.2.2).
    is_meaningful: bool,
}

const CBW_BYTES: usize = 31;
const CBW_SIGNATURE: &[u8; 4] = b"USBC";
const CSW_BYTES: usize = 13;
const CSW_SIGNATURE: &[u8; 4] = b"USBS";
const CDB_BYTES_MAX: usize = 16;

impl Cbw {
    fn parse(payload: &Payload) -> Option<Self> {
        const DIRECTION_IN: u8 = 0x80;
        const LUN_MASK: u8 = 0x0f;
        if payload.len() != CBW_BYTES {
            return None;
        }
        let mut b = [0; CBW_BYTES];
        payload.copy_to(&mut b);
        let [s0, s1, s2, s3, t0, t1, t2, t3, l0, l1, l2, l3, flags, lun, cdb_bytes, cdb @ ..] = b;
        if [s0, s1, s2, s3] != *CBW_SIGNATURE {
            return None;
        }
        let is_meaningful =
            flags & !DIRECTION_IN == 0 && lun & !LUN_MASK == 0 && (1..=CDB_BYTES_MAX).contains(&usize::from(cdb_bytes));
        Some(Self {
            tag: u32::from_le_bytes([t0, t1, t2, t3]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            direction: if flags & DIRECTION_IN == 0 { TransferDirection::Out } else { TransferDirection::In },
            lun,
            cdb,
            cdb_bytes,
            is_meaningful,
        })
    }

    fn command(&self) -> &[u8] {
        &self.cdb[..usize::from(self.cdb_bytes)]
    }
}

/// How a command ended, as a command status wrapper reports it (`bCSWStatus`, §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum CswStatus {
    Passed = 0,
    Failed = 1,
    PhaseError = 2,
}

impl From<Result<(), CheckCondition>> for CswStatus {
    fn from(result: Result<(), CheckCondition>) -> Self {
        if result.is_ok() { CswStatus::Passed } else { CswStatus::Failed }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkOnlyTargetPhase {
    /// Waits for a CBW.
    Command,
    /// Has this many bytes still to send.
    DataIn(u32),
    /// Has this many bytes still to receive.
    DataOut(u32),
    /// Waits for the host to collect the CSW.
    Status(CswStatus),
    /// Received something that is no CBW: both endpoints stall until Reset Recovery (§6.6.1).
    Wedged,
}

/// One command at a time, in its phases.
#[derive(Debug)]
pub(super) struct BulkOnlyTarget {
    phase: BulkOnlyTargetPhase,
    /// The current command's tag and direction, and the bytes that the host still expects to move: at the end, the
    /// residue.
    tag: u32,
    direction: TransferDirection,
    expected: u32,
}

impl BulkOnlyTarget {
    pub fn new() -> Self {
        Self { phase: BulkOnlyTargetPhase::Command, tag: 0, direction: TransferDirection::Out, expected: 0 }
    }

    pub fn save(&self, to: &mut SavedStateWriter) {
        let (phase, left) = match self.phase {
            BulkOnlyTargetPhase::Command => (0, 0),
            BulkOnlyTargetPhase::DataIn(left) => (1, left),
            BulkOnlyTargetPhase::DataOut(left) => (2, left),
            BulkOnlyTargetPhase::Status(status) => (3, status as u32),
            BulkOnlyTargetPhase::Wedged => (4, 0),
        };
        to.u8(phase);
        [left, self.tag, self.expected].into_iter().for_each(|number| to.u32(number));
        to.flag(self.direction == TransferDirection::In);
    }

    pub fn restore(&mut self, from: &mut SavedStateReader<'_>) -> Option<()> {
        let (phase, left) = (from.u8()?, from.u32()?);
        (self.tag, self.expected) = (from.u32()?, from.u32()?);
        self.direction = if from.flag()? { TransferDirection::In } else { TransferDirection::Out };
        let statuses = [CswStatus::Passed, CswStatus::Failed, CswStatus::PhaseError];
        self.phase = match phase {
            0 => BulkOnlyTargetPhase::Command,
            1 | 2 if left == 0 || left > self.expected => return None,
            1 => BulkOnlyTargetPhase::DataIn(left),
            2 => BulkOnlyTargetPhase::DataOut(left),
            3 => BulkOnlyTargetPhase::Status(*statuses.get(left as usize)?),
            4 => BulkOnlyTargetPhase::Wedged,
            _ => return None,
        };
        Some(())
    }

    /// The data that the command still has to move.
    pub fn plan(&self) -> TransferPlan {
        match self.phase {
            BulkOnlyTargetPhase::DataIn(left) => TransferPlan::Send(left.into()),
            BulkOnlyTargetPhase::DataOut(left) => TransferPlan::Take(left.into()),
            BulkOnlyTargetPhase::Command | BulkOnlyTargetPhase::Status(_) | BulkOnlyTargetPhase::Wedged => {
                TransferPlan::Done
            }
        }
    }

    /// Waits for a CBW, whatever came before.
    pub fn restart(&mut self) {
        self.phase = BulkOnlyTargetPhase::Command;
    }

    /// Whether a halt may be cleared: not before a Bulk-Only Reset if no CBW could be understood.
    pub fn may_clear_halt(&self) -> bool {
        self.phase != BulkOnlyTargetPhase::Wedged
    }

    /// The host sent something to the OUT endpoint.
    pub fn receive(
        &mut self,
        payload: &Payload,
        unit: &mut ScsiLogicalUnit,
        cx: &mut FunctionContext<'_>,
    ) -> OutTransferAnswer {
        match self.phase {
            BulkOnlyTargetPhase::Command => self.receive_command(payload, unit, cx),
            BulkOnlyTargetPhase::DataOut(left) => self.receive_data(left, payload, unit, cx),
            BulkOnlyTargetPhase::DataIn(_) | BulkOnlyTargetPhase::Status(_) => OutTransferAnswer::Nak,
            BulkOnlyTargetPhase::Wedged => OutTransferAnswer::Stall,
        }
    }

    /// The host asks for up to `room` bytes from the IN endpoint.
    pub fn send(&mut self, room: usize, unit: &mut ScsiLogicalUnit, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        match self.phase {
            BulkOnlyTargetPhase::Command | BulkOnlyTargetPhase::DataOut(_) => InTransferAnswer::Nak,
            BulkOnlyTargetPhase::DataIn(left) => self.send_data(left, room, unit, cx),
            BulkOnlyTargetPhase::Status(status) => self.send_status(status, room, cx),
            BulkOnlyTargetPhase::Wedged => InTransferAnswer::Stall,
        }
    }

    fn receive_command(
        &mut self,
        payload: &Payload,
        unit: &mut ScsiLogicalUnit,
        cx: &mut FunctionContext<'_>,
    ) -> OutTransferAnswer {
        let Some(cbw) = Cbw::parse(payload) else {
            self.phase = BulkOnlyTargetPhase::Wedged;
            cx.halt(BULK_IN);
            return OutTransferAnswer::Stall;
        };
        self.tag = cbw.tag;
        self.direction = cbw.direction;
        self.expected = cbw.length;
        if !cbw.is_meaningful {
            // §6.4 leaves the answer open; a phase error makes the host start over.
            self.end(CswStatus::PhaseError, cx);
            return OutTransferAnswer::Accepted;
        }
        // The number tells which of the thirteen cases it is; without data the direction has no meaning.
        let room = u64::from(cbw.length);
        match (unit.begin(cbw.lun, cbw.command()), cbw.direction) {
            // 1, 4, 9
            (Ok(TransferPlan::Done), _) => self.end(CswStatus::Passed, cx),
            (Err(CheckCondition), _) => self.end(CswStatus::Failed, cx),
            // 5, 6
            (Ok(TransferPlan::Send(bytes)), TransferDirection::In) if bytes <= room => {
                self.phase = BulkOnlyTargetPhase::DataIn(bytes as u32)
            }
            // 11, 12
            (Ok(TransferPlan::Take(bytes)), TransferDirection::Out) if bytes <= room => {
                self.phase = BulkOnlyTargetPhase::DataOut(bytes as u32)
            }
            // 2, 3, 7, 8, 10, 13
            (Ok(TransferPlan::Send(_) | TransferPlan::Take(_)), _) => self.end(CswStatus::PhaseError, cx),
        }
        OutTransferAnswer::Accepted
    }

    fn receive_data(
        &mut self,
        left: u32,
        payload: &Payload,
        unit: &mut ScsiLogicalUnit,
        cx: &mut FunctionContext<'_>,
    ) -> OutTransferAnswer {
        if payload.len() > self.expected as usize {
            // More than the host itself announced: none of it is credible.
            self.end(CswStatus::PhaseError, cx);
            return OutTransferAnswer::Stall;
        }
        let mut left_bytes = left as usize;
        for run in payload.runs() {
            let piece = &run[..run.len().min(left_bytes)];
            if unit.take(piece).is_err() {
                self.end(CswStatus::Failed, cx);
                return OutTransferAnswer::Stall;
            }
            left_bytes -= piece.len();
            self.expected -= piece.len() as u32;
            if left_bytes == 0 {
                let status = unit.finish().into();
                self.end(status, cx);
                // The excess bytes are not taken: the host expected case 12 and has case 11.
                return if payload.len() > left as usize {
                    OutTransferAnswer::Stall
                } else {
                    OutTransferAnswer::Accepted
                };
            }
        }
        self.phase = BulkOnlyTargetPhase::DataOut(left_bytes as u32);
        OutTransferAnswer::Accepted
    }

    fn send_data(
        &mut self,
        left: u32,
        room: usize,
        unit: &mut ScsiLogicalUnit,
        cx: &mut FunctionContext<'_>,
    ) -> InTransferAnswer {
        let bytes = room.min(left as usize);
        if bytes == 0 {
            return InTransferAnswer::Data(Payload::Empty);
        }
        let mut buffer = cx.pool.take(bytes);
        if unit.fill(&mut buffer).is_err() {
            cx.pool.put(buffer);
            self.end(CswStatus::Failed, cx);
            return InTransferAnswer::Stall;
        }
        self.expected -= bytes as u32;
        self.phase = BulkOnlyTargetPhase::DataIn(left - bytes as u32);
        if bytes == left as usize {
            let status = unit.finish().into();
            self.end(status, cx);
        }
        InTransferAnswer::Data(buffer.into())
    }

    /// Ends the data phase, or skips it. If the host still expects data, its endpoint halts, which ends every request
    /// that the host has queued for it (§6.7.2, §6.7.3).
    fn end(&mut self, status: CswStatus, cx: &mut FunctionContext<'_>) {
        if self.expected > 0 {
            cx.halt(match self.direction {
                TransferDirection::In => BULK_IN,
                TransferDirection::Out => BULK_OUT,
            });
        }
        self.phase = BulkOnlyTargetPhase::Status(status);
    }

    /// Sends the CSW in one packet. A host with less space than that would see babble on a bus; here it sees an invalid
    /// status wrapper, and in either case recovers by reset (§6.3).
    fn send_status(&mut self, status: CswStatus, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let mut buffer = cx.pool.take(CSW_BYTES);
        buffer[..4].copy_from_slice(CSW_SIGNATURE);
        buffer[4..8].copy_from_slice(&self.tag.to_le_bytes());
        buffer[8..12].copy_from_slice(&self.expected.to_le_bytes());
        buffer[12] = status as u8;
        buffer.truncate(room);
        self.phase = BulkOnlyTargetPhase::Command;
        InTransferAnswer::Data(buffer.into())
    }
}
