//! A copy-on-write view of a device.

use std::collections::{BTreeMap, HashMap};

use farbus_model::limits::{SCRATCH_MAPPED_BYTES_MAX, SCRATCH_ZEROED_MAX};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockLayer, BlockOp, BlockStore, CompletionQueue,
    ExtentList, Instant, Payload, StoreError, StoreExtent,
};

use super::below::UnderlyingDevice;

/// Smallest unit of change, bytes: the smallest sector of any disk.
const SECTOR_BYTES_MIN: u32 = 512;
/// Sectors per grain, whose changes are stored together: one bit each of a mask.
const GRAIN_SECTORS: u64 = 8;

/// A copy-on-write view: what its user writes goes to a store of its own, the device below is only read.
///
/// | last operation on a sector | it reads as |
/// |---|---|
/// | written | what was written |
/// | discarded or zeroed | zeros |
/// | none | what the device below contains now |
///
/// The store is filled from its start in the order of the writes. When it is full, writes fail with
/// [`StoreError::NoSpace`] and everything else still works. Changes are as durable as the store, but no later process
/// can find them in it.
#[derive(Debug)]
pub struct CopyOnWriteView<D, S> {
    below: UnderlyingDevice<D>,
    changes: CopyOnWriteChanges<S>,
    info: BlockInfo,
}

/// What differs from the device below.
#[derive(Debug)]
struct CopyOnWriteChanges<S> {
    store: S,
    sector_bytes: u64,
    /// For each changed grain, its place in the store and which of its sectors were written.
    grains: HashMap<u64, ChangedGrain>,
    /// Places in the store that were used and are free again.
    free: Vec<u32>,
    /// Number of places used so far.
    used: u32,
    positions: u32,
    /// Ranges that read as zeros, from → to; they neither touch nor overlap.
    zeroed: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct ChangedGrain {
    position: u32,
    written: u8,
}

/// Where a sector's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectorSource {
    Store(u64),
    Zeros,
    Below,
}

impl<D: BlockDevice, S: BlockStore> CopyOnWriteView<D, S> {
    /// Wraps `device` and keeps changes in `store`, whose old content does not matter.
    pub fn new(device: D, store: S) -> Self {
        let whole = *device.info();
        let sector = whole.block_bytes.max(SECTOR_BYTES_MIN);
        let sector_bytes = u64::from(sector);
        let positions = (store.size_bytes() / (sector_bytes * GRAIN_SECTORS)).min(u64::from(u32::MAX)) as u32;
        let info = BlockInfo {
            size_bytes: whole.size_bytes / sector_bytes * sector_bytes,
            block_bytes: sector,
            preferred_bytes: whole.preferred_bytes.max(sector),
            request_bytes_max: (whole.request_bytes_max / sector).max(1) * sector,
            is_read_only: false,
            trims: true,
        };
        let changes = CopyOnWriteChanges {
            store,
            sector_bytes,
            grains: HashMap::new(),
            free: Vec::new(),
            used: 0,
            positions,
            zeroed: BTreeMap::new(),
        };
        Self { below: UnderlyingDevice::new(device), changes, info }
    }

    /// Bytes of the store in use.
    pub fn used_bytes(&self) -> u64 {
        self.changes.grains.len() as u64 * self.changes.sector_bytes * GRAIN_SECTORS
    }
}

impl<S: BlockStore> CopyOnWriteChanges<S> {
    fn source(&self, sector: u64) -> SectorSource {
        let (grain, within) = (sector / GRAIN_SECTORS, sector % GRAIN_SECTORS);
        if let Some(found) = self.grains.get(&grain)
            && found.written & 1 << within != 0
        {
            return SectorSource::Store(self.place_of(found.position, within));
        }
        let before = self.zeroed.range(..=sector).next_back();
        if before.is_some_and(|(_, end)| sector < *end) { SectorSource::Zeros } else { SectorSource::Below }
    }

    fn place_of(&self, position: u32, within: u64) -> u64 {
        (u64::from(position) * GRAIN_SECTORS + within) * self.sector_bytes
    }

    /// Splits a range into runs by where their bytes are: offset in the range, source, bytes.
    fn runs(&self, offset: u64, length: u64) -> impl Iterator<Item = (usize, SectorSource, usize)> {
        let (first, end) = (offset / self.sector_bytes, (offset + length) / self.sector_bytes);
        let mut sector = first;
        std::iter::from_fn(move || {
            if sector == end {
                return None;
            }
            let (start, source) = (sector, self.source(sector));
            sector += 1;
            while sector < end {
                let goes_on = match (source, self.source(sector)) {
                    (SectorSource::Store(at), SectorSource::Store(next)) => {
                        next == at + (sector - start) * self.sector_bytes
                    }
                    (source, next) => source == next,
                };
                if !goes_on {
                    break;
                }
                sector += 1;
            }
            let at = ((start - first) * self.sector_bytes) as usize;
            Some((at, source, ((sector - start) * self.sector_bytes) as usize))
        })
    }

    fn needs_below(&self, offset: u64, length: u64) -> bool {
        self.runs(offset, length).any(|(_, source, _)| source == SectorSource::Below)
    }

    /// Replaces the changed parts of what the device below returned.
    fn patch(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let runs: Vec<_> = self.runs(offset, bytes.len() as u64).collect();
        for (at, source, count) in runs {
            let piece = &mut bytes[at..at + count];
            match source {
                SectorSource::Store(from) => self.store.read_at(from, piece)?,
                SectorSource::Zeros => piece.fill(0),
                SectorSource::Below => {}
            }
        }
        Ok(())
    }

    /// Replaces what the device below told of the changed parts of a range, and may tell of less.
    fn patch_map(&self, offset: u64, below: &ExtentList) -> ExtentList {
        let (below, mut extents) = (below.aligned(self.sector_bytes), ExtentList::default());
        if self.grains.is_empty() && self.zeroed.is_empty() {
            return below;
        }
        for (at, source, count) in self.runs(offset, below.length().min(SCRATCH_MAPPED_BYTES_MAX)) {
            let (at, length) = (at as u64, count as u64);
            let is_told = match source {
                SectorSource::Store(_) => extents.push(StoreExtent { length, is_hole: false }),
                SectorSource::Zeros => extents.push(StoreExtent { length, is_hole: true }),
                SectorSource::Below => below.cut(at, length).iter().all(|extent| extents.push(extent)),
            };
            if !is_told {
                break;
            }
        }
        extents
    }

    fn write(&mut self, offset: u64, payload: &Payload) -> Result<(), StoreError> {
        let bytes = payload.contiguous();
        let grain_bytes = self.sector_bytes * GRAIN_SECTORS;
        let mut at = 0;
        while at < bytes.len() {
            let position = offset + at as u64;
            let into = position % grain_bytes;
            let count = ((grain_bytes - into) as usize).min(bytes.len() - at);
            let number = position / grain_bytes;
            let found = match self.grains.get(&number) {
                Some(grain) => *grain,
                None => ChangedGrain { position: self.take_place()?, written: 0 },
            };
            let (first, sectors) = (into / self.sector_bytes, count as u64 / self.sector_bytes);
            let written = (((1u16 << sectors) - 1) << first) as u8;
            if let Err(error) = self.store.write_at(self.place_of(found.position, first), &bytes[at..at + count]) {
                if found.written == 0 {
                    self.free.push(found.position);
                }
                return Err(error);
            }
            self.grains.insert(number, ChangedGrain { written: found.written | written, ..found });
            at += count;
        }
        Ok(())
    }

    fn take_place(&mut self) -> Result<u32, StoreError> {
        if let Some(position) = self.free.pop() {
            return Ok(position);
        }
        if self.used == self.positions {
            return Err(StoreError::NoSpace);
        }
        self.used += 1;
        Ok(self.used - 1)
    }

    /// Makes a range read as zeros and frees the places of its changes.
    fn zero(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        let (first, end) = (offset / self.sector_bytes, (offset + length) / self.sector_bytes);
        if first == end {
            return Ok(());
        }
        self.note_zeroed(first, end)?;
        let (first_grain, last_grain) = (first / GRAIN_SECTORS, (end - 1) / GRAIN_SECTORS);
        let forget = |number: u64, grain: &mut ChangedGrain, free: &mut Vec<u32>| {
            let from = first.saturating_sub(number * GRAIN_SECTORS).min(GRAIN_SECTORS);
            let to = end.saturating_sub(number * GRAIN_SECTORS).min(GRAIN_SECTORS);
            grain.written &= !((((1u16 << (to - from)) - 1) << from) as u8);
            if grain.written == 0 {
                free.push(grain.position);
            }
            grain.written != 0
        };
        // Iterates over whichever are fewer: the grains of the range, or all grains with changes.
        let free = &mut self.free;
        if last_grain - first_grain < self.grains.len() as u64 {
            for number in first_grain..=last_grain {
                if let Some(grain) = self.grains.get_mut(&number)
                    && !forget(number, grain, free)
                {
                    self.grains.remove(&number);
                }
            }
        } else {
            self.grains
                .retain(|&number, grain| !(first_grain..=last_grain).contains(&number) || forget(number, grain, free));
        }
        Ok(())
    }

    /// Adds a range, joined with those that it touches or overlaps.
    fn note_zeroed(&mut self, mut first: u64, mut end: u64) -> Result<(), StoreError> {
        if let Some((&before, &before_end)) = self.zeroed.range(..=first).next_back()
            && before_end >= first
        {
            (first, end) = (before, end.max(before_end));
        }
        while let Some((&next, &next_end)) = self.zeroed.range(first..=end).next() {
            end = end.max(next_end);
            self.zeroed.remove(&next);
        }
        if self.zeroed.len() == SCRATCH_ZEROED_MAX {
            return Err(StoreError::NoSpace);
        }
        self.zeroed.insert(first, end);
        Ok(())
    }
}

impl<D: BlockDevice, S: BlockStore> BlockLayer for CopyOnWriteView<D, S> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.below.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.below.device
    }

    fn with_inner<R>(
        &mut self,
        _now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        let changes = &mut self.changes;
        self.below.with(done, act, |answer| {
            if answer.op == BlockOp::Read && answer.result.is_ok() {
                let mut bytes = std::mem::take(&mut answer.payload).into_vec();
                answer.result = changes.patch(answer.offset, &mut bytes);
                if answer.result.is_ok() {
                    answer.payload = Payload::from(bytes);
                }
            }
            if answer.op == BlockOp::Map && answer.result.is_ok() {
                let extent_list = ExtentList::read(&answer.payload, answer.length);
                let below = extent_list.unwrap_or_else(|| ExtentList::data(answer.length.into()));
                answer.payload = changes.patch_map(answer.offset, &below).to_payload();
            }
        })
    }

    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let (offset, length) = (request.offset, u64::from(request.length));
        let mut result = self.info.check(&request);
        let mut bytes = Vec::new();
        if result.is_ok() {
            result = match request.op {
                BlockOp::Read if self.changes.needs_below(offset, length) => {
                    return self.with_inner(now, done, |device, done| device.submit(now, request, done));
                }
                BlockOp::Map => return self.with_inner(now, done, |device, done| device.submit(now, request, done)),
                BlockOp::Read => {
                    bytes = done.pool.take(length as usize);
                    self.changes.patch(offset, &mut bytes)
                }
                BlockOp::Write => self.changes.write(offset, &request.payload),
                BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => self.changes.zero(offset, length),
                BlockOp::Flush => Ok(()),
            };
        }
        if result.is_ok() && (request.is_durable && request.op != BlockOp::Read || request.op == BlockOp::Flush) {
            result = self.changes.store.flush();
        }
        done.push(match result {
            Ok(()) => request.answer(Payload::from(bytes)),
            Err(error) => request.fail(error),
        });
    }
    /// None: only this process knows where the changes are in their store.
    fn state(&self) -> Option<Vec<u8>> {
        None
    }

    fn go_on_from(&mut self, _state: &[u8]) -> bool {
        false
    }

    /// None, for the same reason as its state.
    fn save(&mut self, _now: Instant) -> Option<Vec<u8>> {
        None
    }
}
