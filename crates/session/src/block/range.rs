//! A part of a device, as a device of its own.

use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockLayer, BlockOp, CompletionQueue, Instant, StoreError,
};

use super::below::UnderlyingDevice;

/// `size_bytes` of the device below from `offset` on: a partition, or one file system of several in an image.
#[derive(Debug)]
pub struct RangeView<D> {
    below: UnderlyingDevice<D>,
    offset: u64,
    info: BlockInfo,
}

impl<D: BlockDevice> RangeView<D> {
    /// A part of `device`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it does not lie in the device, or not on its blocks.
    pub fn new(device: D, offset: u64, size_bytes: u64) -> Result<Self, StoreError> {
        let whole = *device.info();
        let block = u64::from(whole.block_bytes);
        let is_inside = offset.checked_add(size_bytes).is_some_and(|end| end <= whole.size_bytes);
        if !is_inside || !offset.is_multiple_of(block) || !size_bytes.is_multiple_of(block) {
            return Err(StoreError::Invalid);
        }
        Ok(Self { below: UnderlyingDevice::new(device), offset, info: BlockInfo { size_bytes, ..whole } })
    }
}

impl<D: BlockDevice> BlockLayer for RangeView<D> {
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
        let offset = self.offset;
        self.below.with(done, act, |answer| {
            if answer.op != BlockOp::Flush {
                answer.offset -= offset;
            }
        })
    }

    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        // A request that leaves the part must not reach the rest of the device.
        if let Err(error) = self.info.check(&request) {
            done.push(request.fail(error));
            return;
        }
        let mut request = request.recall();
        if request.op != BlockOp::Flush {
            request.offset += self.offset;
        }
        self.with_inner(now, done, |device, done| device.submit(now, request.launch(), done));
    }
}
