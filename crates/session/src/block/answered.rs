//! A block device as a [`BlockStore`].

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, BlockStore, BufferPool, CompletionQueue, ExtentList,
    Instant, Payload, StoreError, StoreExtent,
};

/// Idle buffers that are kept, bytes: enough for one request.
const POOL_BYTES: usize = 1 << 20;

/// Flushes `device` and drops it. If the device does not answer at once, the result of the flush is not known and this
/// returns `Ok`.
///
/// # Errors
/// [`StoreError`]: the last writes may be lost.
pub fn make_durable(mut device: impl BlockDevice) -> Result<(), StoreError> {
    let mut done = CompletionQueue::new(BufferPool::new(0));
    device.submit(Instant::ZERO, BlockRequest::flush(BlockId(u64::MAX)).launch(), &mut done);
    done.pop().map_or(Ok(()), |answer: BlockCompletion| answer.result)
}

/// A store over a device that answers before [`BlockDevice::submit`] returns: a [`StoreDevice`](super::StoreDevice),
/// and views of one.
#[derive(Debug)]
pub struct ImmediateDeviceStore<D> {
    device: D,
    done: CompletionQueue<BlockCompletion>,
}

impl<D: BlockDevice> ImmediateDeviceStore<D> {
    /// Wraps `device`, which must answer at once.
    pub fn new(device: D) -> Self {
        Self { device, done: CompletionQueue::new(BufferPool::new(POOL_BYTES)) }
    }

    /// # Panics
    /// If the device does not answer at once.
    fn ask(&mut self, request: BlockRequest) -> Result<Payload, StoreError> {
        self.device.info().check(&request)?;
        self.device.submit(Instant::ZERO, request.launch(), &mut self.done);
        let answer = self.done.pop().expect("the device answers at once");
        self.done.pool.recycle(answer.spent);
        answer.result.map(|()| answer.payload)
    }

    /// Splits a range into pieces of at most `piece` bytes: offset and length of each.
    fn pieces(&self, offset: u64, length: u64, piece: u32) -> impl Iterator<Item = (u64, u32)> + use<D> {
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            let count = (end - at).min(piece.into()) as u32;
            let piece = (at, count);
            at += u64::from(count);
            (count > 0).then_some(piece)
        })
    }

    fn clear(&mut self, op: BlockOp, offset: u64, length: u64) -> Result<(), StoreError> {
        // A range without data has a length of 32 bits: pieces are whole blocks.
        let piece = u32::MAX / self.device.info().block_bytes * self.device.info().block_bytes;
        for (at, count) in self.pieces(offset, length, piece) {
            self.ask(BlockRequest::zero(BlockId(0), op, at, count))?;
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockStore for ImmediateDeviceStore<D> {
    fn size_bytes(&self) -> u64 {
        self.device.info().size_bytes
    }

    fn is_read_only(&self) -> bool {
        self.device.info().is_read_only
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        for (at, count) in self.pieces(offset, to.len() as u64, self.device.info().request_bytes_max) {
            let read = self.ask(BlockRequest::read(BlockId(0), at, count))?;
            let from = (at - offset) as usize;
            to[from..from + count as usize].copy_from_slice(&read.contiguous());
            self.done.pool.recycle(read);
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        for (at, count) in self.pieces(offset, from.len() as u64, self.device.info().request_bytes_max) {
            let start = (at - offset) as usize;
            let mut bytes = self.done.pool.take(count as usize);
            bytes.copy_from_slice(&from[start..start + count as usize]);
            self.ask(BlockRequest::write(BlockId(0), at, Payload::from(bytes)))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.ask(BlockRequest::flush(BlockId(0))).map(|_| ())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.clear(BlockOp::Discard, offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.clear(BlockOp::WriteZeroes, offset, len)
    }

    fn trims(&self) -> bool {
        self.device.info().trims
    }

    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.clear(BlockOp::Trim, offset, len)
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        let block = self.device.info().block_bytes;
        let count = len.min((u32::MAX / block * block).into()) as u32;
        let payload = self.ask(BlockRequest::map(BlockId(0), offset, count))?;
        let extents = ExtentList::read(&payload, count);
        self.done.pool.recycle(payload);
        Ok(extents
            .and_then(|extents| extents.iter().next())
            .unwrap_or(StoreExtent { length: count.into(), is_hole: false }))
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::block::MemoryStore;

    use super::*;
    use crate::block::{ReadOnlyView, StoreDevice};

    #[test]
    fn block_device_works_as_a_store() {
        let device = StoreDevice::new(MemoryStore::new(vec![1; 8192])).with_blocks(512);
        let mut store = ImmediateDeviceStore::new(device);
        store.write_at(512, &[2; 1024]).unwrap();
        store.discard(4096, 512).unwrap();
        store.write_zeroes(4608, 512).unwrap();
        store.flush().unwrap();
        let mut bytes = vec![9; 8192];
        store.read_at(0, &mut bytes).unwrap();
        let mut expected = vec![1; 8192];
        expected[512..1536].fill(2);
        expected[4096..5120].fill(0);
        assert_eq!(bytes, expected);
        assert_eq!(store.write_at(1, &[0; 3]), Err(StoreError::Invalid), "no whole blocks");
        let mut store = ImmediateDeviceStore::new(ReadOnlyView::new(StoreDevice::new(MemoryStore::new(vec![1; 512]))));
        assert_eq!(store.write_at(0, &[0; 3]), Err(StoreError::ReadOnly));
    }
}
