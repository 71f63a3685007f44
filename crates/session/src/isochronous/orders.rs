//! What streams want of the device behind them, and what they count.

use std::collections::VecDeque;

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::{IsoPacket, Urb, UrbId};

/// Our own requests begin here; a user's never do (a kernel's have 32 bits).
pub const OWN_ID_FIRST: u64 = 1 << 61;
/// And end before this.
pub const OWN_ID_END: u64 = 1 << 62;

/// Something to be done at the device.
#[derive(Debug)]
pub enum Order {
    /// A request of ours.
    Ask(Urb),
    /// One of them is of no use any more.
    Withdraw(UrbId),
}

/// What is to be done, in its order.
#[derive(Debug, Default)]
pub struct Orders {
    list: VecDeque<Order>,
    named: u64,
}

impl Orders {
    /// Asks for this, under a name of our own.
    pub fn ask(&mut self, mut urb: Urb) -> UrbId {
        urb.id = UrbId(OWN_ID_FIRST + self.named);
        self.named = (self.named + 1) % (OWN_ID_END - OWN_ID_FIRST);
        let id = urb.id;
        self.list.push_back(Order::Ask(urb));
        id
    }

    /// Withdraws a request.
    pub fn withdraw(&mut self, id: UrbId) {
        self.list.push_back(Order::Withdraw(id));
    }

    /// Nothing of it is wanted any more.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// How many names were given.
    pub fn named(&self) -> u64 {
        self.named
    }

    /// The names go on behind those of another process.
    pub fn name_after(&mut self, named: u64) {
        self.named = named % (OWN_ID_END - OWN_ID_FIRST);
    }

    /// What comes next.
    pub fn next(&mut self) -> Option<Order> {
        self.list.pop_front()
    }
}

/// Whether a request of this name is ours.
pub fn is_own(id: UrbId) -> bool {
    (OWN_ID_FIRST..OWN_ID_END).contains(&id.0)
}

/// A schedule that repeats another's, of so many packets or of as many bytes as a request may have, and its bytes;
/// `length` says how long each is.
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

/// What was not as it should be, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handed to the driver.
    pub packets: u64,
    /// IN: not here when they were due, and told the driver as missed.
    pub missed: u64,
    /// IN: here after that.
    pub late: u64,
    /// IN: here, and the driver did not ask for them in time.
    pub unclaimed: u64,
    /// OUT: not sent, because what was sent before is stuck.
    pub dropped: u64,
    /// OUT: times that the device had nothing to play.
    pub underruns: u64,
}

impl Counts {
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
