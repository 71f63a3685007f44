//! A block device over a store.

use crate::block::{BlockStore, StoreError};
use crate::block_device::{BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp};
use crate::device::CompletionQueue;
use crate::extents::{ExtentList, StoreExtent};
use crate::limits::BLOCK_REQUEST_BYTES_MAX;
use crate::payload::Payload;
use crate::time::Instant;

/// The request size that suits files and most media, bytes: a page.
const PREFERRED_BYTES: u32 = 4096;

/// A block device over a store: every request is answered before [`BlockDevice::submit`] returns.
///
/// A read costs one copy, from the store to the buffer it is sent from; a write one, from the buffer it arrived in.
#[derive(Debug)]
pub struct StoreDevice<S> {
    store: S,
    info: BlockInfo,
    is_gone: bool,
}

impl<S: BlockStore> StoreDevice<S> {
    /// Makes a device of the store's size with blocks of one byte.
    pub fn new(store: S) -> Self {
        let info = BlockInfo {
            size_bytes: store.size_bytes(),
            block_bytes: 1,
            preferred_bytes: PREFERRED_BYTES,
            request_bytes_max: BLOCK_REQUEST_BYTES_MAX,
            is_read_only: store.is_read_only(),
            trims: store.trims(),
        };
        Self { store, info, is_gone: false }
    }

    /// Sets the block size.
    ///
    /// # Panics
    /// If `block_bytes` is no power of two.
    #[must_use]
    pub fn with_blocks(mut self, block_bytes: u32) -> Self {
        assert!(block_bytes.is_power_of_two(), "a block's size is a power of two");
        let block = u64::from(block_bytes);
        self.info.size_bytes = self.info.size_bytes / block * block;
        self.info.block_bytes = block_bytes;
        self.info.preferred_bytes = self.info.preferred_bytes.max(block_bytes);
        self
    }

    /// Sets the preferred request size.
    #[must_use]
    pub fn preferring(mut self, bytes: u32) -> Self {
        if bytes.is_power_of_two() {
            self.info.preferred_bytes = self.info.preferred_bytes.max(bytes);
        }
        self
    }

    /// The store, for its owner.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The store back.
    pub fn into_store(self) -> S {
        self.store
    }

    fn carry_out(&mut self, request: &BlockInFlight, to: &mut [u8]) -> Result<(), StoreError> {
        let (offset, length) = (request.offset, u64::from(request.length));
        match request.op {
            BlockOp::Read => return self.store.read_at(offset, to),
            BlockOp::Flush => return self.store.flush(),
            BlockOp::Map => return self.map(offset, length).map(|extents| extents.write(to)),
            BlockOp::Write => {
                let mut at = offset;
                for run in request.payload.runs() {
                    self.store.write_at(at, run)?;
                    at += run.len() as u64;
                }
            }
            BlockOp::Discard => self.store.discard(offset, length)?,
            BlockOp::WriteZeroes => self.store.write_zeroes(offset, length)?,
            BlockOp::Trim => self.store.trim(offset, length)?,
        }
        if request.is_durable { self.store.flush() } else { Ok(()) }
    }

    fn map(&mut self, offset: u64, length: u64) -> Result<ExtentList, StoreError> {
        let (mut extents, mut at, end) = (ExtentList::default(), offset, offset + length);
        while at < end {
            let StoreExtent { length, is_hole } = self.store.extent(at, end - at)?;
            if length == 0 || !extents.push(StoreExtent { length: length.min(end - at), is_hole }) {
                break;
            }
            at += length;
        }
        Ok(extents.aligned(self.info.block_bytes.into()))
    }
}

impl<S: BlockStore> BlockDevice for StoreDevice<S> {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, _now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        if let Err(error) = self.info.check(&request) {
            done.push(request.fail(error));
            return;
        }
        let room = match request.answer_bytes() {
            0 => Some(Vec::new()),
            bytes => done.pool.try_take(bytes),
        };
        let Some(mut bytes) = room else { return done.push(request.fail(StoreError::Medium)) };
        match self.carry_out(&request, &mut bytes) {
            Ok(()) => done.push(request.answer(Payload::from(bytes))),
            Err(error) => {
                self.is_gone |= error == StoreError::Gone;
                done.pool.put(bytes);
                done.push(request.fail(error));
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Empty: all state is in the store, which another process opens again.
    fn state(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn go_on_from(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}
