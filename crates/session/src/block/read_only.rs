//! A read-only view of a device.

use farbus_model::{BlockDevice, BlockDone, BlockInFlight, BlockInfo, BlockLayer, Completions, Instant};

/// The device below with every change refused. Other users of that device may still change it.
#[derive(Debug)]
pub struct ReadOnly<D> {
    device: D,
    info: BlockInfo,
}

impl<D: BlockDevice> ReadOnly<D> {
    /// Wraps `device`.
    pub fn new(device: D) -> Self {
        let info = BlockInfo { is_read_only: true, ..*device.info() };
        Self { device, info }
    }
}

impl<D: BlockDevice> BlockLayer for ReadOnly<D> {
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

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut Completions<BlockDone>) {
        match self.info.check(&request) {
            Ok(()) => self.device.submit(now, request, done),
            Err(error) => done.push(request.fail(error)),
        }
    }
}
