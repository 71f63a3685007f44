//! What waits at an exporter because its answers are not taken: `untaken` says what does, and when it goes on.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::budget::Allowance;
use farbus_wire::native::{Arrived, Kind};

/// What a request that waits takes beside its bytes.
const REQUEST_BYTES: usize = 128;
/// What waits because answers are not taken, and how much that may be.
#[derive(Default)]
pub struct Backlog {
    /// Requests that wait, in their order.
    pub held: VecDeque<Arrived>,
    pub held_bytes: usize,
    /// What has arrived of closes that go on, of open attachments.
    pub closing: BTreeMap<u16, Vec<u8>>,
    /// What the answers of all that is attached may take.
    pub answers_bytes_max: usize,
    /// The same where each has asked for one thing only, as large as any.
    pub lone_bytes_max: usize,
    /// The account had nothing left when what waits was looked at last.
    pub is_starved: bool,
    pub allowance: Allowance,
}

impl Backlog {
    /// Whether more of a close of this attachment is to come.
    pub fn is_closing(&self, number: u16) -> bool {
        self.closing.contains_key(&number)
    }

    /// Whether nothing has arrived in part.
    pub fn is_at_rest(&self) -> bool {
        self.closing.is_empty()
    }

    /// What was said of this attachment and waits is for nobody; whether it was asked for.
    pub fn forget(&mut self, number: u16) -> bool {
        self.closing.remove(&number);
        let mut was_asked = false;
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|arrived| {
            let is_its = arrived.head.attachment == number;
            was_asked |= is_its && matches!(arrived.head.kind, Kind::Open | Kind::Inherit);
            *held_bytes -= if is_its { cost(arrived) } else { 0 };
            !is_its
        });
        was_asked
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.held_bytes + self.closing.values().map(Vec::capacity).sum::<usize>()
    }
}

/// What a request that waits takes.
pub fn cost(arrived: &Arrived) -> usize {
    arrived.body.len() + REQUEST_BYTES
}
