//! A read-only view of a device.

use farbus_model::{BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockLayer, CompletionQueue, Instant};

/// The device below with every change refused. Other users of that device may still change it.
#[derive(Debug)]
pub struct ReadOnlyView<D> {
    device: D,
    info: BlockInfo,
}

impl<D: BlockDevice> ReadOnlyView<D> {
    /// A view of `device` that refuses writes, and describes itself as read-only.
    pub fn new(device: D) -> Self {
        let info = BlockInfo { is_read_only: true, ..*device.info() };
        Self { device, info }
    }
}

impl<D: BlockDevice> BlockLayer for ReadOnlyView<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        match self.info.check(&request) {
            Ok(()) => self.device.submit(now, request, done),
            Err(error) => done.push(request.fail(error)),
        }
    }
}
