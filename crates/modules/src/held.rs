//! Messages that wait for their moment, in the order in which they came.

use std::collections::VecDeque;

use farbus_model::Instant;
use farbus_model::module::{Message, Turn};

#[derive(Debug, Default)]
pub struct Held {
    waiting: VecDeque<(Instant, Message)>,
}

impl Held {
    /// Adds one that leaves at `due`, and not before those that came before it.
    pub fn put(&mut self, due: Instant, message: Message) {
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.waiting.push_back((due, message));
    }

    /// Those whose moment has come leave for the link.
    pub fn release(&mut self, now: Instant, out: &mut Turn) {
        while let Some((_, message)) = self.waiting.pop_front_if(|(due, _)| *due <= now) {
            out.below(message);
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
