//! What streams ask of the device below, and what they count.

use std::collections::VecDeque;

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::{IsoPacket, Urb, UrbId};

/// First id of our own requests; a user's ids are below (a kernel's have 32 bits).
pub const OWN_ID_FIRST: u64 = 1 << 61;
/// End of the range of our own ids.
pub const OWN_ID_END: u64 = 1 << 62;

/// An action on the device below.
#[derive(Debug)]
pub enum IsoAction {
    /// Submit a request of ours.
    Ask(Urb),
    /// Cancel a request of ours.
    Withdraw(UrbId),
}

/// A queue of orders.
#[derive(Debug, Default)]
pub struct IsoActionQueue {
    list: VecDeque<IsoAction>,
    named: u64,
}

impl IsoActionQueue {
    /// Queues a request under a new id, which is returned.
    pub fn ask(&mut self, mut urb: Urb) -> UrbId {
        urb.id = UrbId(OWN_ID_FIRST + self.named);
        self.named = (self.named + 1) % (OWN_ID_END - OWN_ID_FIRST);
        let id = urb.id;
        self.list.push_back(IsoAction::Ask(urb));
        id
    }

    /// Queues the cancellation of a request.
    pub fn withdraw(&mut self, id: UrbId) {
        self.list.push_back(IsoAction::Withdraw(id));
    }

    /// Drops all queued orders.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// How many ids were given out.
    pub fn named(&self) -> u64 {
        self.named
    }

    /// Continues the ids after those of another process.
    pub fn name_after(&mut self, named: u64) {
        self.named = named % (OWN_ID_END - OWN_ID_FIRST);
    }

    /// Takes the next order.
    pub fn next(&mut self) -> Option<IsoAction> {
        self.list.pop_front()
    }
}

/// Whether a request with this id is ours.
pub fn is_own(id: UrbId) -> bool {
    (OWN_ID_FIRST..OWN_ID_END).contains(&id.0)
}

/// A packet schedule that repeats `like` for `count` packets, limited by the bytes of one request, and its total length
/// in bytes. `length` gives the length of each packet.
pub fn repeated(like: &[IsoPacket], count: usize, length: impl Fn(&IsoPacket) -> u32) -> (Vec<IsoPacket>, u32) {
    let (mut packets, mut end) = (Vec::with_capacity(count), 0);
    for length in like.iter().cycle().take(count).map(length) {
        if length > URB_BYTES_MAX - end {
            break;
        }
        packets.push(IsoPacket { offset: end, length, ..IsoPacket::default() });
        end += length;
    }
    (packets, end)
}

/// Counts of a stream's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsoPacketCounts {
    /// Packets handed to the driver.
    pub packets: u64,
    /// IN: not here when they were due, and reported to the driver as missed.
    pub missed: u64,
    /// IN: arrived after they were due.
    pub late: u64,
    /// IN: arrived, but the driver did not ask for them in time.
    pub unclaimed: u64,
    /// OUT: not sent, because earlier packets are stuck.
    pub dropped: u64,
    /// OUT: how often the device had nothing to play.
    pub underruns: u64,
}

impl IsoPacketCounts {
    /// The sum of two.
    pub fn and(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            missed: self.missed + other.missed,
            late: self.late + other.late,
            unclaimed: self.unclaimed + other.unclaimed,
            dropped: self.dropped + other.dropped,
            underruns: self.underruns + other.underruns,
        }
    }
}
