//! The operations on a disk: each issues one command after another.
//!
//! Callers see bytes. A range that does not begin or end at a sector is read as whole sectors and trimmed, or read,
//! changed and written back, one sector at each end.

use std::sync::Arc;

use farbus_model::Payload;

use super::bulk_only::CommandReply;
use super::command::DiskCommand;
use super::data::ReadData;
use super::error::DiskError;
use super::info::DiskInfo;
use super::scsi::{self, Cdb};
use super::step::{OperationResult, OperationStep};

/// Zeros to write where the device has no command for it; shared by all operations.
static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

type LastReply = Option<Result<CommandReply, DiskError>>;

/// Reads bytes of the medium, with one READ command after another.
#[derive(Debug)]
pub(super) struct ReadOperation {
    block: u64,
    blocks_left: u64,
    data: ReadData,
}

impl ReadOperation {
    pub fn new(info: &DiskInfo, offset: u64, len: usize) -> Self {
        let block_bytes = u64::from(info.block_bytes);
        let (block, skip) = (offset / block_bytes, (offset % block_bytes) as usize);
        let blocks_left = if len == 0 { 0 } else { (skip as u64 + len as u64).div_ceil(block_bytes) };
        Self { block, blocks_left, data: ReadData::new(skip, len) }
    }

    pub fn next(&mut self, info: &DiskInfo, last: LastReply) -> OperationStep {
        match last {
            Some(Err(error)) => return OperationStep::Finish(Err(error)),
            Some(Ok(reply)) => self.data.push(reply.payload),
            None => {}
        }
        if self.blocks_left == 0 {
            return OperationStep::Finish(Ok(OperationResult::Data(std::mem::take(&mut self.data))));
        }
        let count = self.blocks_left.min((info.transfer_bytes_max / info.block_bytes).into()) as u32;
        let cdb = Cdb::read(self.block, count);
        self.block += u64::from(count);
        self.blocks_left -= u64::from(count);
        OperationStep::Run(DiskCommand::blocks_in(cdb, count * info.block_bytes))
    }
}

/// Writes bytes, the caller's or zeros.
#[derive(Debug)]
pub(super) struct WriteOperation {
    offset: u64,
    rest: WriteSource,
    /// A sector that is being read to be changed.
    patch: Option<SectorPatch>,
}

#[derive(Debug)]
enum WriteSource {
    Bytes(Payload),
    Zeros(u64),
}

#[derive(Debug)]
struct SectorPatch {
    block: u64,
    at: usize,
    bytes: Payload,
}

impl WriteOperation {
    pub fn new(offset: u64, payload: Payload) -> Self {
        // A repetition needs the bytes again: an owned vector becomes a window once, here.
        let payload = match payload {
            Payload::Bytes(bytes) => {
                let all: Arc<[u8]> = bytes.into();
                Payload::shared(&all, 0..all.len())
            }
            other => other,
        };
        Self { offset, rest: WriteSource::Bytes(payload), patch: None }
    }

    pub fn zeros(offset: u64, len: u64) -> Self {
        Self { offset, rest: WriteSource::Zeros(len), patch: None }
    }

    pub fn next(&mut self, info: &DiskInfo, last: LastReply) -> OperationStep {
        let reply = match last {
            Some(Err(error)) => return OperationStep::Finish(Err(error)),
            Some(Ok(reply)) => Some(reply),
            None => None,
        };
        if let (Some(patch), Some(reply)) = (self.patch.take(), reply) {
            let mut sector = reply.payload.into_vec();
            patch.bytes.copy_to(&mut sector[patch.at..]);
            return OperationStep::Run(DiskCommand::out(Cdb::write(patch.block, 1), sector.into()));
        }
        let left = self.rest.len();
        if left == 0 {
            return OperationStep::Finish(Ok(OperationResult::Done));
        }
        let block_bytes = u64::from(info.block_bytes);
        let (block, at) = (self.offset / block_bytes, self.offset % block_bytes);
        let is_partial = at != 0 || left < block_bytes;
        let most = if is_partial { block_bytes - at } else { left - left % block_bytes };
        let bytes = most.min(left).min(info.transfer_bytes_max.into());
        let piece = self.rest.take(bytes as usize);
        self.offset += bytes;
        if is_partial {
            self.patch = Some(SectorPatch { block, at: at as usize, bytes: piece });
            return OperationStep::Run(DiskCommand::blocks_in(Cdb::read(block, 1), info.block_bytes));
        }
        OperationStep::Run(DiskCommand::out(Cdb::write(block, (bytes / block_bytes) as u32), piece))
    }
}

impl WriteSource {
    fn len(&self) -> u64 {
        match self {
            WriteSource::Bytes(payload) => payload.len() as u64,
            WriteSource::Zeros(len) => *len,
        }
    }

    fn take(&mut self, n: usize) -> Payload {
        match self {
            WriteSource::Bytes(payload) => payload.split_front(n),
            WriteSource::Zeros(len) => {
                *len -= n as u64;
                Payload::pattern(&ZEROS, n)
            }
        }
    }
}

/// What happens to a cleared range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EraseEffect {
    /// It reads as zeros and keeps its space.
    Zero,
    /// It reads as zeros and may lose its space.
    ZeroAndRelease,
    /// It may lose its space; its content is undefined.
    Release,
}

/// Clears a range: with the device's own commands in the middle, by writing zeros at the edges and
/// where there are no such commands.
#[derive(Debug)]
pub(super) struct EraseOperation {
    what: EraseEffect,
    offset: u64,
    end: u64,
    /// Zeros being written.
    write: Option<WriteOperation>,
    /// The range that the command in flight names, and by which command.
    in_flight: Option<(u64, EraseCommand)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum EraseCommand {
    Unmap,
    WriteSame,
}

impl EraseOperation {
    pub fn new(info: &DiskInfo, what: EraseEffect, mut offset: u64, len: u64) -> Self {
        let mut end = offset + len;
        if what == EraseEffect::Release {
            // A part of a sector cannot be given back.
            let block_bytes = u64::from(info.block_bytes);
            offset = offset.next_multiple_of(block_bytes);
            end = (end - end % block_bytes).max(offset);
        }
        Self { what, offset, end, write: None, in_flight: None }
    }

    pub fn next(&mut self, info: &mut DiskInfo, last: LastReply) -> OperationStep {
        if let Some(write) = &mut self.write {
            match write.next(info, last) {
                OperationStep::Finish(Ok(_)) => self.write = None,
                step => return step,
            }
        } else if let Some((bytes, how)) = self.in_flight.take() {
            match (last, how) {
                // The device announced the command but does not know it: it is not used again.
                (Some(Err(DiskError::IllegalRequest(_))), EraseCommand::Unmap) => info.unmap_blocks_max = None,
                (Some(Err(DiskError::IllegalRequest(_))), EraseCommand::WriteSame) => info.write_same_blocks_max = None,
                (Some(Err(error)), _) => return OperationStep::Finish(Err(error)),
                _ => self.offset += bytes,
            }
        }
        self.go_on(info)
    }

    fn go_on(&mut self, info: &DiskInfo) -> OperationStep {
        let block_bytes = u64::from(info.block_bytes);
        let whole_end = self.end - self.end % block_bytes;
        let Some((how, blocks_max)) = self.command_for(info) else {
            let end = if self.what == EraseEffect::Release { self.offset } else { self.end };
            return self.write_until(info, end);
        };
        if !self.offset.is_multiple_of(block_bytes) {
            return self.write_until(info, self.end.min(self.offset.next_multiple_of(block_bytes)));
        }
        if self.offset >= whole_end {
            return self.write_until(info, self.end);
        }
        let block = self.offset / block_bytes;
        let count = ((whole_end - self.offset) / block_bytes).min(blocks_max.into()) as u32;
        self.in_flight = Some((u64::from(count) * block_bytes, how));
        OperationStep::Run(match how {
            EraseCommand::Unmap => DiskCommand::out(Cdb::unmap(), scsi::unmap_list(block, count).into()),
            EraseCommand::WriteSame => {
                let may_unmap = self.what != EraseEffect::Zero && info.write_same_unmaps;
                let zeros = Payload::pattern(&ZEROS, block_bytes as usize);
                DiskCommand::out(Cdb::write_same(block, count, may_unmap), zeros)
            }
        })
    }

    /// The command that clears whole sectors, and its limit.
    fn command_for(&self, info: &DiskInfo) -> Option<(EraseCommand, u32)> {
        let unmap = info.unmap_blocks_max.map(|max| (EraseCommand::Unmap, max));
        let same = info.write_same_blocks_max.map(|max| (EraseCommand::WriteSame, max));
        match self.what {
            EraseEffect::Zero | EraseEffect::ZeroAndRelease => same,
            EraseEffect::Release => unmap.or(same.filter(|_| info.write_same_unmaps)),
        }
    }

    fn write_until(&mut self, info: &DiskInfo, end: u64) -> OperationStep {
        if end <= self.offset {
            return OperationStep::Finish(Ok(OperationResult::Done));
        }
        let mut write = WriteOperation::zeros(self.offset, end - self.offset);
        self.offset = end;
        let step = write.next(info, None);
        self.write = Some(write);
        step
    }
}

/// Makes every write durable.
#[derive(Debug, Default)]
pub(super) struct FlushOperation {
    was_asked: bool,
}

impl FlushOperation {
    pub fn next(&mut self, info: &mut DiskInfo, last: LastReply) -> OperationStep {
        match last {
            None if !info.needs_no_flush && !self.was_asked => {
                self.was_asked = true;
                OperationStep::Run(DiskCommand::plain(Cdb::synchronize_cache()).patient())
            }
            // A device that does not know the command has, as far as anyone can tell, nothing to flush.
            Some(Err(DiskError::IllegalRequest(_))) if info.write_cache != Some(true) => {
                info.needs_no_flush = true;
                OperationStep::Finish(Ok(OperationResult::Done))
            }
            Some(Err(error)) => OperationStep::Finish(Err(error)),
            _ => OperationStep::Finish(Ok(OperationResult::Done)),
        }
    }
}

/// Flushes and ejects the medium.
#[derive(Debug)]
pub(super) enum EjectOperation {
    Flushing(FlushOperation),
    Allowing,
    Ejecting,
}

impl EjectOperation {
    pub fn next(&mut self, info: &mut DiskInfo, last: LastReply) -> OperationStep {
        match self {
            EjectOperation::Flushing(flush) => match flush.next(info, last) {
                OperationStep::Finish(Ok(_)) => {
                    *self = EjectOperation::Allowing;
                    OperationStep::Run(DiskCommand::plain(Cdb::allow_removal()))
                }
                step => step,
            },
            EjectOperation::Allowing => match last {
                Some(Err(error @ (DiskError::Gone | DiskError::Port(_)))) => OperationStep::Finish(Err(error)),
                // A device that cannot lock its medium need not know how to unlock it.
                _ => {
                    *self = EjectOperation::Ejecting;
                    OperationStep::Run(DiskCommand::plain(Cdb::eject()).patient())
                }
            },
            EjectOperation::Ejecting => OperationStep::Finish(
                last.unwrap_or_else(|| Ok(CommandReply::default())).map(|_| OperationResult::Done),
            ),
        }
    }
}
