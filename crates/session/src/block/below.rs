//! The device under a layer that sees to its answers.

use farbus_model::{BlockDevice, BlockDone, BufferPool, Completions};

/// The device under a layer, and what it has answered.
#[derive(Debug)]
pub(super) struct Below<D> {
    pub device: D,
    /// Its pool is the asker's while the device does something.
    answers: Completions<BlockDone>,
}

impl<D: BlockDevice> Below<D> {
    pub fn new(device: D) -> Self {
        Self { device, answers: Completions::new(BufferPool::new(0)) }
    }

    /// Lets the device do something, in the asker's buffers; [`Below::pop`] has what it answers.
    pub fn act<R>(
        &mut self,
        done: &mut Completions<BlockDone>,
        act: impl FnOnce(&mut D, &mut Completions<BlockDone>) -> R,
    ) -> R {
        std::mem::swap(&mut self.answers.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.answers);
        std::mem::swap(&mut self.answers.pool, &mut done.pool);
        result
    }

    /// The next of its answers, oldest first.
    pub fn pop(&mut self) -> Option<BlockDone> {
        self.answers.pop()
    }

    /// Lets the device do something; what it answers goes to `done` by way of `see`.
    pub fn with<R>(
        &mut self,
        done: &mut Completions<BlockDone>,
        act: impl FnOnce(&mut D, &mut Completions<BlockDone>) -> R,
        mut see: impl FnMut(&mut BlockDone),
    ) -> R {
        let result = self.act(done, act);
        while let Some(mut answer) = self.pop() {
            see(&mut answer);
            done.push(answer);
        }
        result
    }
}
