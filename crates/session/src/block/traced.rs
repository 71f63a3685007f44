//! A layer that records the requests of a device.

use farbus_model::trace::{TracePoint, TraceRing};
use farbus_model::{BlockCompletion, BlockDevice, BlockInFlight, BlockLayer, BlockOp, CompletionQueue, Instant};

use super::below::UnderlyingDevice;

/// The device below, with a ring of submissions and completions. The key of a tap is the request's id.
#[derive(Debug)]
pub struct TracingLayer<D> {
    below: UnderlyingDevice<D>,
    ring: TraceRing,
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

impl<D: BlockDevice> TracingLayer<D> {
    /// Wraps `device` and keeps the last `taps` taps.
    pub fn new(device: D, taps: usize) -> Self {
        Self { below: UnderlyingDevice::new(device), ring: TraceRing::new(taps) }
    }

    /// The recorded taps.
    pub fn ring(&self) -> &TraceRing {
        &self.ring
    }
}

impl<D: BlockDevice> BlockLayer for TracingLayer<D> {
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
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        let ring = &mut self.ring;
        self.below.with(done, act, |answer| ring.tap(answer.id.0, op_code(answer.op), TracePoint::Completed, now))
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.ring.tap(request.id.0, op_code(request.op), TracePoint::Submitted, now);
        self.with_inner(now, done, |device, done| device.submit(now, request, done));
    }
}
