//! What a layer does with the device under it.

use farbus_model::{BlockDevice, BlockDone, BufferPool, Completions};

/// The device under a layer that wants to see its answers.
#[derive(Debug)]
pub(super) struct Below<D> {
    pub device: D,
    done: Completions<BlockDone>,
}

impl<D: BlockDevice> Below<D> {
    pub fn new(device: D) -> Self {
        // Its pool is the asker's while it works.
        Self { device, done: Completions::new(BufferPool::new(0)) }
    }

    /// Lets the device do something; what it answers goes to `done` by way of `see`, in the asker's buffers.
    pub fn with(
        &mut self,
        done: &mut Completions<BlockDone>,
        act: impl FnOnce(&mut D, &mut Completions<BlockDone>),
        mut see: impl FnMut(&mut BlockDone),
    ) {
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        act(&mut self.device, &mut self.done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        while let Some(mut answer) = self.done.pop() {
            see(&mut answer);
            done.push(answer);
        }
    }
}
