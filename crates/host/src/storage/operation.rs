//! The operations on a disk: each issues one command after another.
//!
//! Callers see bytes. A range that does not begin or end at a sector is read as whole sectors and trimmed, or read,
//! changed and written back, one sector at each end.

use std::sync::Arc;

use farbus_model::Payload;

use super::bulk_only::Reply;
use super::command::Command;
use super::data::ReadData;
use super::error::DiskError;
use super::info::DiskInfo;
use super::scsi::{self, Cdb};
use super::step::{Answer, Step};

/// Zeros to write where the device has no command for it; shared by all operations.
static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

type Last = Option<Result<Reply, DiskError>>;

/// Reads bytes.
#[derive(Debug)]
pub(super) struct Read {
    block: u64,
    blocks_left: u64,
    data: ReadData,
}

impl Read {
    pub fn new(info: &DiskInfo, offset: u64, len: usize) -> Self {
        let block_bytes = u64::from(info.block_bytes);
        let (block, skip) = (offset / block_bytes, (offset % block_bytes) as usize);
        let blocks_left = if len == 0 { 0 } else { (skip as u64 + len as u64).div_ceil(block_bytes) };
        Self { block, blocks_left, data: ReadData::new(skip, len) }
    }

    pub fn next(&mut self, info: &DiskInfo, last: Last) -> Step {
        match last {
            Some(Err(error)) => return Step::Finish(Err(error)),
            Some(Ok(reply)) => self.data.push(reply.payload),
            None => {}
        }
        if self.blocks_left == 0 {
            return Step::Finish(Ok(Answer::Data(std::mem::take(&mut self.data))));
        }
        let count = self.blocks_left.min((info.transfer_bytes_max / info.block_bytes).into()) as u32;
        let cdb = Cdb::read(self.block, count);
        self.block += u64::from(count);
        self.blocks_left -= u64::from(count);
        Step::Run(Command::blocks_in(cdb, count * info.block_bytes))
    }
}

/// Writes bytes, the caller's or zeros.
#[derive(Debug)]
pub(super) struct Write {
    offset: u64,
    rest: Source,
    /// A sector that is being read to be changed.
    patch: Option<Patch>,
}

#[derive(Debug)]
enum Source {
    Bytes(Payload),
    Zeros(u64),
}

#[derive(Debug)]
struct Patch {
    block: u64,
    at: usize,
    bytes: Payload,
}

impl Write {
    pub fn new(offset: u64, payload: Payload) -> Self {
        // A repetition needs the bytes again: an owned vector becomes a window once, here.
        let payload = match payload {
            Payload::Bytes(bytes) => {
                let all: Arc<[u8]> = bytes.into();
                Payload::shared(&all, 0..all.len())
            }
            other => other,
        };
        Self { offset, rest: Source::Bytes(payload), patch: None }
    }

    pub fn zeros(offset: u64, len: u64) -> Self {
        Self { offset, rest: Source::Zeros(len), patch: None }
    }

    pub fn next(&mut self, info: &DiskInfo, last: Last) -> Step {
        let reply = match last {
            Some(Err(error)) => return Step::Finish(Err(error)),
            Some(Ok(reply)) => Some(reply),
            None => None,
        };
        if let (Some(patch), Some(reply)) = (self.patch.take(), reply) {
            let mut sector = reply.payload.into_vec();
            patch.bytes.copy_to(&mut sector[patch.at..]);
            return Step::Run(Command::out(Cdb::write(patch.block, 1), sector.into()));
        }
        let left = self.rest.len();
        if left == 0 {
            return Step::Finish(Ok(Answer::Done));
        }
        let block_bytes = u64::from(info.block_bytes);
        let (block, at) = (self.offset / block_bytes, self.offset % block_bytes);
        let is_partial = at != 0 || left < block_bytes;
        let most = if is_partial { block_bytes - at } else { left - left % block_bytes };
        let bytes = most.min(left).min(info.transfer_bytes_max.into());
        let piece = self.rest.take(bytes as usize);
        self.offset += bytes;
        if is_partial {
            self.patch = Some(Patch { block, at: at as usize, bytes: piece });
            return Step::Run(Command::blocks_in(Cdb::read(block, 1), info.block_bytes));
        }
        Step::Run(Command::out(Cdb::write(block, (bytes / block_bytes) as u32), piece))
    }
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Source::Bytes(payload) => payload.len() as u64,
            Source::Zeros(len) => *len,
        }
    }

    fn take(&mut self, n: usize) -> Payload {
        match self {
            Source::Bytes(payload) => payload.split_front(n),
            Source::Zeros(len) => {
                *len -= n as u64;
                Payload::pattern(&ZEROS, n)
            }
        }
    }
}

/// What happens to a cleared range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clear {
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
pub(super) struct Erase {
    what: Clear,
    offset: u64,
    end: u64,
    /// Zeros being written.
    write: Option<Write>,
    /// The range that the command in flight names, and by which command.
    asked: Option<(u64, How)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Unmap,
    WriteSame,
}

impl Erase {
    pub fn new(info: &DiskInfo, what: Clear, mut offset: u64, len: u64) -> Self {
        let mut end = offset + len;
        if what == Clear::Release {
            // A part of a sector cannot be given back.
            let block_bytes = u64::from(info.block_bytes);
            offset = offset.next_multiple_of(block_bytes);
            end = (end - end % block_bytes).max(offset);
        }
        Self { what, offset, end, write: None, asked: None }
    }

    pub fn next(&mut self, info: &mut DiskInfo, last: Last) -> Step {
        if let Some(write) = &mut self.write {
            match write.next(info, last) {
                Step::Finish(Ok(_)) => self.write = None,
                step => return step,
            }
        } else if let Some((bytes, how)) = self.asked.take() {
            match (last, how) {
                // The device announced the command but does not know it: it is not used again.
                (Some(Err(DiskError::IllegalRequest(_))), How::Unmap) => info.unmap_blocks_max = None,
                (Some(Err(DiskError::IllegalRequest(_))), How::WriteSame) => info.write_same_blocks_max = None,
                (Some(Err(error)), _) => return Step::Finish(Err(error)),
                _ => self.offset += bytes,
            }
        }
        self.go_on(info)
    }

    fn go_on(&mut self, info: &DiskInfo) -> Step {
        let block_bytes = u64::from(info.block_bytes);
        let whole_end = self.end - self.end % block_bytes;
        let Some((how, blocks_max)) = self.command_for(info) else {
            let end = if self.what == Clear::Release { self.offset } else { self.end };
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
        self.asked = Some((u64::from(count) * block_bytes, how));
        Step::Run(match how {
            How::Unmap => Command::out(Cdb::unmap(), scsi::unmap_list(block, count).into()),
            How::WriteSame => {
                let may_unmap = self.what != Clear::Zero && info.write_same_unmaps;
                let zeros = Payload::pattern(&ZEROS, block_bytes as usize);
                Command::out(Cdb::write_same(block, count, may_unmap), zeros)
            }
        })
    }

    /// The command that clears whole sectors, and its limit.
    fn command_for(&self, info: &DiskInfo) -> Option<(How, u32)> {
        let unmap = info.unmap_blocks_max.map(|max| (How::Unmap, max));
        let same = info.write_same_blocks_max.map(|max| (How::WriteSame, max));
        match self.what {
            Clear::Zero | Clear::ZeroAndRelease => same,
            Clear::Release => unmap.or(same.filter(|_| info.write_same_unmaps)),
        }
    }

    fn write_until(&mut self, info: &DiskInfo, end: u64) -> Step {
        if end <= self.offset {
            return Step::Finish(Ok(Answer::Done));
        }
        let mut write = Write::zeros(self.offset, end - self.offset);
        self.offset = end;
        let step = write.next(info, None);
        self.write = Some(write);
        step
    }
}

/// Makes every write durable.
#[derive(Debug, Default)]
pub(super) struct Flush {
    was_asked: bool,
}

impl Flush {
    pub fn next(&mut self, info: &mut DiskInfo, last: Last) -> Step {
        match last {
            None if !info.needs_no_flush && !self.was_asked => {
                self.was_asked = true;
                Step::Run(Command::plain(Cdb::synchronize_cache()).patient())
            }
            // A device that does not know the command has, as far as anyone can tell, nothing to flush.
            Some(Err(DiskError::IllegalRequest(_))) if info.write_cache != Some(true) => {
                info.needs_no_flush = true;
                Step::Finish(Ok(Answer::Done))
            }
            Some(Err(error)) => Step::Finish(Err(error)),
            _ => Step::Finish(Ok(Answer::Done)),
        }
    }
}

/// Flushes and ejects the medium.
#[derive(Debug)]
pub(super) enum Eject {
    Flushing(Flush),
    Allowing,
    Ejecting,
}

impl Eject {
    pub fn next(&mut self, info: &mut DiskInfo, last: Last) -> Step {
        match self {
            Eject::Flushing(flush) => match flush.next(info, last) {
                Step::Finish(Ok(_)) => {
                    *self = Eject::Allowing;
                    Step::Run(Command::plain(Cdb::allow_removal()))
                }
                step => step,
            },
            Eject::Allowing => match last {
                Some(Err(error @ (DiskError::Gone | DiskError::Port(_)))) => Step::Finish(Err(error)),
                // A device that cannot lock its medium need not know how to unlock it.
                _ => {
                    *self = Eject::Ejecting;
                    Step::Run(Command::plain(Cdb::eject()).patient())
                }
            },
            Eject::Ejecting => Step::Finish(last.unwrap_or_else(|| Ok(Reply::default())).map(|_| Answer::Done)),
        }
    }
}
