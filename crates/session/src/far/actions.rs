//! What the layer of a far device asks of the device below.

use std::collections::VecDeque;

use farbus_model::{Urb, UrbId, UrbInFlight};

/// First id of the layer's own requests: beyond a user's (32 bits) and an exporter's own, and below those of a
/// session's device.
pub const OWN_ID_FIRST: u64 = 1 << 62;
/// End of the range of the layer's own ids.
pub const OWN_ID_END: u64 = 1 << 63;

/// Whether a request is the layer's own.
pub fn is_own(id: UrbId) -> bool {
    (OWN_ID_FIRST..OWN_ID_END).contains(&id.0)
}

/// An action on the device below.
#[derive(Debug)]
pub enum FarAction {
    /// Submit a request of the layer's own.
    Ask(Urb),
    /// Cancel a request of the layer's own.
    Withdraw(UrbId),
    /// Submit the user's request.
    PassOn(UrbInFlight),
}

/// A queue of actions.
#[derive(Debug)]
pub struct FarActionQueue {
    queue: VecDeque<FarAction>,
    next_id: u64,
}

impl Default for FarActionQueue {
    fn default() -> Self {
        Self { queue: VecDeque::new(), next_id: OWN_ID_FIRST }
    }
}

impl FarActionQueue {
    /// An empty queue whose next own request has this id.
    pub fn going_on_at(next_id: u64) -> Self {
        Self { queue: VecDeque::new(), next_id }
    }

    /// The id of the next own request.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Queues the submission of `urb` under a new id, which is returned.
    pub fn ask(&mut self, mut urb: Urb) -> UrbId {
        urb.id = UrbId(self.next_id);
        self.next_id += 1;
        let id = urb.id;
        self.queue.push_back(FarAction::Ask(urb));
        id
    }

    /// Queues the cancellation of an own request.
    pub fn withdraw(&mut self, id: UrbId) {
        self.queue.push_back(FarAction::Withdraw(id));
    }

    /// Queues the submission of a user's request.
    pub fn pass_on(&mut self, urb: UrbInFlight) {
        self.queue.push_back(FarAction::PassOn(urb));
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the next action.
    pub fn pop(&mut self) -> Option<FarAction> {
        self.queue.pop_front()
    }
}
