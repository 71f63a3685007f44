//! The shape of everything that uses a device, and the names it gives its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farbus_model::{Done, Instant, Payload, Urb, UrbId};

/// A state machine that uses a device through requests.
///
/// Whoever pumps it hands on what it polls, tells it what happened, and polls again; the order of
/// calls is that of [`run`](crate::run). Withdrawals are polled before new requests. A completion
/// of a request that is not the driver's (any more) is ignored.
pub trait Driver {
    /// What it comes to.
    type Outcome;

    /// The next request for the device.
    fn poll_submit(&mut self) -> Option<Urb>;

    /// The next request to withdraw. It has been submitted and has not come back yet.
    fn poll_cancel(&mut self) -> Option<UrbId>;

    /// A request came back.
    fn handle_done(&mut self, now: Instant, done: Done);

    /// When [`Driver::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The moment of [`Driver::poll_timeout`] has come. Too early does no harm.
    fn handle_timeout(&mut self, now: Instant);

    /// What came of it, once. Nothing of the driver's is in flight then, unless the device left a
    /// withdrawal unanswered.
    fn poll_outcome(&mut self) -> Option<Self::Outcome>;

    /// Bytes the driver has read and needs no longer, for whoever owns the buffers.
    fn poll_spent(&mut self) -> Payload {
        Payload::Empty
    }
}

/// Names for requests. Clones count on together, so that drivers on one device never use a name twice.
#[derive(Clone, Debug, Default)]
pub struct IdSource(Arc<AtomicU64>);

impl IdSource {
    /// A source of its own; one per device.
    pub fn new() -> Self {
        Self::default()
    }

    /// A name never given before.
    pub fn next_id(&self) -> UrbId {
        UrbId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
