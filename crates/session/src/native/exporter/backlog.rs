//! Requests that wait at an exporter because the importer does not take its answers; `untaken` decides which.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::budget::ConnectionAllowance;
use farbus_wire::native::{FrameKind, ReceivedFrame};

/// What a waiting request takes besides its bytes.
const REQUEST_BYTES: usize = 128;
/// Requests that wait because answers are not taken, and the limits.
#[derive(Default)]
pub struct Backlog {
    /// Waiting requests, in order.
    pub held: VecDeque<ReceivedFrame>,
    pub held_bytes: usize,
    /// The received parts of incomplete close messages, by open attachment.
    pub closing: BTreeMap<u16, Vec<u8>>,
    /// Most bytes that the answers of all attachments may take.
    pub answers_bytes_max: usize,
    /// As `answers_bytes_max`, but each attachment counts with at least one request of the largest size.
    pub lone_bytes_max: usize,
    /// Whether the allowance was exhausted when the waiting requests were last considered.
    pub is_starved: bool,
    pub allowance: ConnectionAllowance,
}

impl Backlog {
    /// Whether a close of this attachment has been received in part.
    pub fn is_closing(&self, number: u16) -> bool {
        self.closing.contains_key(&number)
    }

    /// Whether no close has been received in part.
    pub fn is_at_rest(&self) -> bool {
        self.closing.is_empty()
    }

    /// Drops what waits for this attachment; returns whether a request to open it was among that.
    pub fn forget(&mut self, number: u16) -> bool {
        self.closing.remove(&number);
        let mut was_asked = false;
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|arrived| {
            let is_its = arrived.head.attachment == number;
            was_asked |= is_its && matches!(arrived.head.kind, FrameKind::Open | FrameKind::Inherit);
            *held_bytes -= if is_its { cost(arrived) } else { 0 };
            !is_its
        });
        was_asked
    }

    /// Memory that the backlog takes, bytes.
    pub fn bytes(&self) -> usize {
        self.held_bytes + self.closing.values().map(Vec::capacity).sum::<usize>()
    }
}

/// Memory that a waiting request takes, bytes.
pub fn cost(arrived: &ReceivedFrame) -> usize {
    arrived.body.len() + REQUEST_BYTES
}
