//! A device that was exchanged, in the snapshot for a replacement process.

use farbus_model::{
    BlockDevice, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, CompletionQueue, Instant, Payload,
    PendingBlockRequests,
};
use farbus_wire::ProtocolViolation;
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::exchanging::SwapRequestTracker;
use super::job::{SwappableJob, SwappableJobKind};

/// Kind of the snapshots of a device that was exchanged.
pub const SWAPPED_KIND: u16 = 14;
/// Kind of the snapshots of a device that was exchanged for one whose requests are saved with it: a process of a
/// release that does not know such a snapshot refuses it.
pub const AWAY_KIND: u16 = 15;
/// The least bytes of a request in a snapshot.
const REQUEST_BYTES_MIN: usize = 26;
/// The least bytes of a request in a snapshot that is saved with its number (8 bytes) at the device below.
const NUMBERED_BYTES_MIN: usize = 8 + REQUEST_BYTES_MIN;

impl<D: BlockDevice> SwapRequestTracker<D> {
    /// A snapshot of the device after a swap. `None`: a swap is under way or was given up, or the device has requests
    /// that it has yet to carry out.
    ///
    /// A change that is to be durable has been written, and waits for the flush after it; so a replacement flushes
    /// again, and submits nothing else twice.
    pub(super) fn save_swapped(&mut self, now: Instant) -> Option<Vec<u8>> {
        let waits_for_flush = |job: &SwappableJob| {
            let SwappableJobKind::User { owed, .. } = &job.what else { return false };
            job.is_begun && (owed.op == BlockOp::Flush || (owed.op.is_change() && owed.is_durable))
        };
        if self.swap.is_some() || self.untracked > 0 || !self.is_exchanged || !self.jobs.values().all(waits_for_flush) {
            return None;
        }
        let mut to = SnapshotWriter::new(SWAPPED_KIND);
        save_info(&self.info, &mut to);
        to.bytes(&self.current.below.device.save(now)?);
        to.count(self.jobs.len());
        for job in self.jobs.values() {
            if let SwappableJobKind::User { owed, .. } = &job.what {
                to.block_request(&BlockRequest { payload: Payload::Empty, ..(**owed).clone() });
            }
        }
        Some(to.into_bytes())
    }

    /// Restores a device that was exchanged from a snapshot of [`SWAPPED_KIND`]. `device` restores the device below
    /// from its own bytes, for users of a device as described. Returns it with the requests that it has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore<E: From<ProtocolViolation>>(
        now: Instant,
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8], &BlockInfo) -> Result<D, E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        let info = restore_info(from)?;
        let bytes = from.bytes("device")?;
        let mut requests = Vec::new();
        for _ in 0..from.count("requests", REQUEST_BYTES_MIN)? {
            requests.push(from.block_request()?);
        }
        let pending: PendingBlockRequests = requests.iter().map(|it| (it.id, (it.op, it.offset, it.length))).collect();
        if pending.len() != requests.len() || !requests.iter().all(|request| may_wait(request, &info)) {
            return Err(ProtocolViolation::new(
                "requests",
                requests.len() as u64,
                "each has an id and waits to be durable",
            )
            .into());
        }
        let mut below = device(bytes, &info)?;
        if !is_fit(&info, below.info()) {
            below.leave();
            return Err(ProtocolViolation::new("size", info.size_bytes, "the medium is as large as the device").into());
        }
        let mut this = Self { info, ..Self::moved(below) };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        for request in requests {
            let range = request.offset..request.offset + u64::from(request.length);
            let (owed, data, answer) = (request.launch(), Payload::Empty, Payload::Empty);
            let what = SwappableJobKind::User { owed, data, is_both: false, result: Ok(()), there: Ok(()), answer };
            let number = this.next_number;
            this.next_number += 1;
            this.jobs.insert(
                number,
                SwappableJob { is_begun: true, at_current: true, ..SwappableJob::new(range, what, now) },
            );
            this.current.submit(now, BlockRequest::flush(BlockId(number)).launch(), &mut done);
        }
        Ok((this, pending))
    }
}

impl<D: BlockDevice> SwapRequestTracker<D> {
    /// A snapshot of the device after a swap, with its requests that the device below has and saves itself. `None`: a
    /// swap is under way, the device below cannot be saved, or a request waits here.
    pub fn save_away(&mut self, now: Instant) -> Option<Vec<u8>> {
        let is_below = |job: &SwappableJob| job.is_begun && job.at_current && !job.at_other;
        let is_at_rest = self.swap.is_none() && self.untracked == 0 && self.held.is_empty();
        if !is_at_rest || !self.is_exchanged || !self.jobs.values().all(is_below) {
            return None;
        }
        let mut to = SnapshotWriter::new(AWAY_KIND);
        save_info(&self.info, &mut to);
        to.bytes(&self.current.below.device.save(now)?);
        to.u64(self.next_number);
        to.count(self.jobs.len());
        for (number, job) in &self.jobs {
            if let SwappableJobKind::User { owed, .. } = &job.what {
                to.u64(*number);
                to.block_request(&BlockRequest { payload: Payload::Empty, ..(**owed).clone() });
            }
        }
        Some(to.into_bytes())
    }

    /// Restores a device from a snapshot of [`AWAY_KIND`]. `device` restores the device below from its own bytes, with
    /// the requests that it has. Returns it with those that it has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore_away<E: From<ProtocolViolation>>(
        now: Instant,
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8], &BlockInfo) -> Result<(D, PendingBlockRequests), E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        let info = restore_info(from)?;
        let bytes = from.bytes("device")?;
        let next_number = from.u64("next number")?;
        if next_number > u64::MAX / 2 {
            return Err(ProtocolViolation::new("next number", next_number, "nobody makes so many requests").into());
        }
        let mut numbered: Vec<(u64, BlockRequest)> = Vec::new();
        for _ in 0..from.count("requests", NUMBERED_BYTES_MIN)? {
            let number = from.u64("number")?;
            let is_next = number < next_number && numbered.last().is_none_or(|(before, _)| *before < number);
            if !is_next {
                return Err(ProtocolViolation::new("number", number, "requests are numbered in their order").into());
            }
            numbered.push((number, from.block_request()?));
        }
        let pending: PendingBlockRequests =
            numbered.iter().map(|(_, it)| (it.id, (it.op, it.offset, it.length))).collect();
        let is_whole = |request: &BlockRequest| request.payload.is_empty() && fits(request, &info);
        if pending.len() != numbered.len() || !numbered.iter().all(|(_, request)| is_whole(request)) {
            return Err(ProtocolViolation::new(
                "requests",
                numbered.len() as u64,
                "each has an id, and is one of the device's",
            )
            .into());
        }
        let pending_below: PendingBlockRequests =
            numbered.iter().map(|(number, it)| (BlockId(*number), (it.op, it.offset, it.length))).collect();
        let (mut below, theirs) = device(bytes, &info)?;
        if !is_fit(&info, below.info()) || theirs != pending_below {
            below.leave();
            return Err(ProtocolViolation::new(
                "requests",
                theirs.len() as u64,
                "the device below has them, and is as large",
            )
            .into());
        }
        let count = numbered.len();
        let mut this = Self { info, next_number, ..Self::moved(below) };
        this.current.in_flight = count;
        for (number, request) in numbered {
            let range = request.offset..request.offset + u64::from(request.length);
            let (owed, data, answer) = (request.launch(), Payload::Empty, Payload::Empty);
            let what = SwappableJobKind::User { owed, data, is_both: false, result: Ok(()), there: Ok(()), answer };
            this.jobs.insert(
                number,
                SwappableJob { is_begun: true, at_current: true, ..SwappableJob::new(range, what, now) },
            );
        }
        Ok((this, pending))
    }
}

fn save_info(info: &BlockInfo, to: &mut SnapshotWriter) {
    let BlockInfo { size_bytes, block_bytes, preferred_bytes, request_bytes_max, is_read_only, trims } = *info;
    to.u64(size_bytes);
    [block_bytes, preferred_bytes, request_bytes_max].into_iter().for_each(|bytes| to.u32(bytes));
    to.flag(is_read_only);
    to.flag(trims);
}

fn restore_info(from: &mut FieldReader<'_>) -> Result<BlockInfo, ProtocolViolation> {
    let info = BlockInfo {
        size_bytes: from.u64("size")?,
        block_bytes: from.u32("block")?,
        preferred_bytes: from.u32("preferred")?,
        request_bytes_max: from.u32("request")?,
        is_read_only: from.flag("read only")?,
        trims: from.flag("trims")?,
    };
    if !info.block_bytes.is_power_of_two() || !info.preferred_bytes.is_power_of_two() {
        return Err(ProtocolViolation::new("block", info.block_bytes.into(), "it is a power of two"));
    }
    Ok(info)
}

/// Whether a device below takes what the users of a device as described ask.
fn is_fit(info: &BlockInfo, theirs: &BlockInfo) -> bool {
    theirs.size_bytes >= info.size_bytes
        && theirs.block_bytes <= info.block_bytes
        && theirs.request_bytes_max >= info.request_bytes_max
        && (info.is_read_only || !theirs.is_read_only)
}

/// Whether a request without its data is one that such a device takes.
fn fits(request: &BlockRequest, info: &BlockInfo) -> bool {
    let length = if request.op == BlockOp::Write { request.length as usize } else { 0 };
    let whole = BlockRequest { payload: Payload::pattern(&[0], length), ..request.clone() };
    info.check(&whole).is_ok()
}

/// Whether a request of these users may wait for a flush.
fn may_wait(request: &BlockRequest, info: &BlockInfo) -> bool {
    let waits = request.op == BlockOp::Flush || (request.op.is_change() && request.is_durable);
    waits && request.payload.is_empty() && fits(request, info)
}
