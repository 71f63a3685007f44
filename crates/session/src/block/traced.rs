//! A layer that records the requests of a device.

use farbus_model::trace::{Ring, Stage};
use farbus_model::{BlockDevice, BlockDone, BlockInFlight, BlockLayer, BlockOp, Completions, Instant};

use super::below::Below;

/// The device below, with a ring of submissions and completions. The key of a tap is the request's id.
#[derive(Debug)]
pub struct Traced<D> {
    below: Below<D>,
    ring: Ring,
}

/// The code of an operation; in a tap it takes the place of a URB's endpoint.
pub const fn op_code(op: BlockOp) -> u8 {
    match op {
        BlockOp::Read => 0,
        BlockOp::Write => 1,
        BlockOp::Flush => 2,
        BlockOp::Discard => 3,
        BlockOp::WriteZeroes => 4,
        BlockOp::Trim => 5,
        BlockOp::Map => 6,
    }
}

impl<D: BlockDevice> Traced<D> {
    /// Wraps `device` and keeps the last `taps` taps.
    pub fn new(device: D, taps: usize) -> Self {
        Self { below: Below::new(device), ring: Ring::new(taps) }
    }

    /// The recorded taps.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }
}

impl<D: BlockDevice> BlockLayer for Traced<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.below.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.below.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut Completions<BlockDone>,
        act: impl FnOnce(&mut D, &mut Completions<BlockDone>) -> R,
    ) -> R {
        let ring = &mut self.ring;
        self.below.with(done, act, |answer| ring.tap(answer.id.0, op_code(answer.op), Stage::Completed, now))
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut Completions<BlockDone>) {
        self.ring.tap(request.id.0, op_code(request.op), Stage::Submitted, now);
        self.with_inner(now, done, |device, done| device.submit(now, request, done));
    }
}
