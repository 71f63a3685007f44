//! Common parts of the modules that delay messages to the link: [`crate::delay`], [`crate::jitter`] and
//! [`crate::rate`].

use std::collections::VecDeque;

use farbus_model::Instant;
use farbus_model::module::{Module, ModuleMessage, ModuleNeighbor, ModuleOutput};

/// Decides when a message leaves.
pub trait DelayPolicy: Send {
    /// When a message that came now leaves. Messages leave in the order of their arrival.
    fn due(&mut self, now: Instant, message: &ModuleMessage) -> Instant;

    /// The state with which another process can continue.
    fn state(&self) -> Vec<u8>;

    /// Continues from a saved state. Returns whether it can.
    fn restore(&mut self, state: &[u8]) -> bool;
}

/// A half that holds messages from above until they are due.
pub struct DelayQueue<P> {
    pace: P,
    waiting: VecDeque<(Instant, ModuleMessage)>,
    /// Memory of what waits.
    held_bytes: usize,
}

impl<P: DelayPolicy> DelayQueue<P> {
    /// Makes a half with this pace.
    pub fn new(pace: P) -> Self {
        Self { pace, waiting: VecDeque::new(), held_bytes: 0 }
    }
}

impl<P: DelayPolicy> Module for DelayQueue<P> {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        if from != ModuleNeighbor::Above {
            return out.pass(from, message);
        }
        let due = self.pace.due(now, &message);
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.held_bytes += message.memory_bytes();
        self.waiting.push_back((due, message));
        self.handle_timeout(now, out);
    }

    fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        while let Some((_, message)) = self.waiting.pop_front_if(|(due, _)| *due <= now) {
            self.held_bytes -= message.memory_bytes();
            out.below(message);
        }
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.pace.state())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.pace.restore(state)
    }
}
