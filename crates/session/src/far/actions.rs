//! What a far device's layer wants of the device below it.

use std::collections::VecDeque;

use farbus_model::{InFlight, Urb, UrbId};

/// Ids of requests that the layer itself makes: beyond a user's, which have 32 bits, and an exporter's of its own, and
/// below those that a session's device makes.
pub const OWN_ID_FIRST: u64 = 1 << 62;
/// They end here.
pub const OWN_ID_END: u64 = 1 << 63;

/// Whether a request is one of the layer's.
pub fn is_own(id: UrbId) -> bool {
    (OWN_ID_FIRST..OWN_ID_END).contains(&id.0)
}

/// Something to be done with the device below.
#[derive(Debug)]
pub enum Action {
    /// Ask it something of our own.
    Ask(Urb),
    /// Withdraw something of our own.
    Withdraw(UrbId),
    /// Ask it what its user asked.
    PassOn(InFlight),
}

/// What is to be done, in order.
#[derive(Debug)]
pub struct Actions {
    queue: VecDeque<Action>,
    next_id: u64,
}

impl Default for Actions {
    fn default() -> Self {
        Self { queue: VecDeque::new(), next_id: OWN_ID_FIRST }
    }
}

impl Actions {
    /// None yet, of one whose next request has this id.
    pub fn going_on_at(next_id: u64) -> Self {
        Self { queue: VecDeque::new(), next_id }
    }

    /// The id of the next request.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Asks what `urb` says, under an id of its own, which is returned.
    pub fn ask(&mut self, mut urb: Urb) -> UrbId {
        urb.id = UrbId(self.next_id);
        self.next_id += 1;
        let id = urb.id;
        self.queue.push_back(Action::Ask(urb));
        id
    }

    /// Withdraws what was asked.
    pub fn withdraw(&mut self, id: UrbId) {
        self.queue.push_back(Action::Withdraw(id));
    }

    /// Passes a user's request on.
    pub fn pass_on(&mut self, urb: InFlight) {
        self.queue.push_back(Action::PassOn(urb));
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What comes next.
    pub fn pop(&mut self) -> Option<Action> {
        self.queue.pop_front()
    }
}
