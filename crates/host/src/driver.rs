//! The interface of everything that uses a device, and the source of its requests' ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farbus_model::{Instant, Payload, Urb, UrbCompletion, UrbId};

/// A state machine that uses a device through requests.
///
/// Its caller passes on what it polls, tells it what happened, and polls again, in the order of [`run`](crate::run).
/// Cancellations are polled before new requests. Completions of requests that are not the driver's (any more) are
/// ignored.
pub trait DeviceDriver {
    /// The result of the driver's work.
    type Outcome;

    /// The next request for the device.
    fn poll_submit(&mut self) -> Option<Urb>;

    /// The next request to cancel. It has been submitted and has not come back yet.
    fn poll_cancel(&mut self) -> Option<UrbId>;

    /// Processes a request that came back.
    fn handle_done(&mut self, now: Instant, done: UrbCompletion);

    /// When [`DeviceDriver::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Called when the moment of [`DeviceDriver::poll_timeout`] has come. An early call does no harm.
    fn handle_timeout(&mut self, now: Instant);

    /// The result, once. No request of the driver is in flight then, unless the device left a cancellation unanswered.
    fn poll_outcome(&mut self) -> Option<Self::Outcome>;

    /// A buffer that the driver has read and no longer needs, for the owner of the buffers.
    fn poll_spent(&mut self) -> Payload {
        Payload::Empty
    }
}

/// Ids for requests. Clones share one counter, so that drivers on one device never use an id twice.
#[derive(Clone, Debug, Default)]
pub struct IdSource(Arc<AtomicU64>);

impl IdSource {
    /// Makes a new source; each device needs one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An id that was never given before.
    pub fn next_id(&self) -> UrbId {
        UrbId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
