//! The device below a layer that inspects its answers.

use farbus_model::{BlockCompletion, BlockDevice, BufferPool, CompletionQueue};

/// The device below a layer, with the answers that the layer has not taken yet.
#[derive(Debug)]
pub(super) struct UnderlyingDevice<D> {
    pub device: D,
    /// While the device acts, this holds the pool of the caller's completions.
    answers: CompletionQueue<BlockCompletion>,
}

impl<D: BlockDevice> UnderlyingDevice<D> {
    pub fn new(device: D) -> Self {
        Self { device, answers: CompletionQueue::new(BufferPool::new(0)) }
    }

    /// Lets the device act with the caller's buffer pool; [`UnderlyingDevice::pop`] returns what it completes.
    pub fn act<R>(
        &mut self,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        std::mem::swap(&mut self.answers.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.answers);
        std::mem::swap(&mut self.answers.pool, &mut done.pool);
        result
    }

    /// Its next answer, oldest first.
    pub fn pop(&mut self) -> Option<BlockCompletion> {
        self.answers.pop()
    }

    /// Lets the device act; each answer passes through `see` and then goes to `done`.
    pub fn with<R>(
        &mut self,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
        mut see: impl FnMut(&mut BlockCompletion),
    ) -> R {
        let result = self.act(done, act);
        while let Some(mut answer) = self.pop() {
            see(&mut answer);
            done.push(answer);
        }
        result
    }
}
