//! A device that its user cannot change.

use farbus_model::{BlockDevice, BlockDone, BlockInFlight, BlockInfo, Completions, Instant, Readiness};

/// The device below, refusing every change, whoever else may change it.
#[derive(Debug)]
pub struct ReadOnly<D> {
    device: D,
    info: BlockInfo,
}

impl<D: BlockDevice> ReadOnly<D> {
    /// Over `device`.
    pub fn new(device: D) -> Self {
        let info = BlockInfo { is_read_only: true, ..*device.info() };
        Self { device, info }
    }
}

impl<D: BlockDevice> BlockDevice for ReadOnly<D> {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut Completions<BlockDone>) {
        match self.info.check(&request) {
            Ok(()) => self.device.submit(now, request, done),
            Err(error) => done.push(request.fail(error)),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut Completions<BlockDone>) {
        self.device.handle_timeout(now, done);
    }

    fn readiness(&self) -> Option<&Readiness> {
        self.device.readiness()
    }

    fn handle_ready(&mut self, now: Instant, done: &mut Completions<BlockDone>) {
        self.device.handle_ready(now, done);
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }
}
