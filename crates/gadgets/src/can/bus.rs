//! A CAN bus: one frame at a time, the most urgent of the waiting ones, each as long as its bits take. R7.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;

/// Bytes of data in a frame.
pub const DATA_BYTES_MAX: usize = 8;
/// Flag of an identifier, as SocketCAN has it: the identifier has 29 bits.
pub const EXTENDED: u32 = 1 << 31;
/// Flag of an identifier, as SocketCAN has it: the frame asks for data and has none.
const REMOTE: u32 = 1 << 30;
/// Bits of a base identifier.
const BASE_BITS: u32 = 11;
/// Additional bits of an extended identifier.
const EXTENSION_BITS: u32 = 18;

/// A classic CAN frame, as the simulated bus carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanFrame {
    /// Identifier and flags, as SocketCAN writes them.
    pub id: u32,
    /// Bytes of data, 8 at most.
    pub length: u8,
    /// The data, padded with zeros.
    pub data: [u8; DATA_BYTES_MAX],
}

impl CanFrame {
    /// Bits on the wire, with a stuffed one after every six: what the paper's oscilloscope saw (section 6.2.1).
    fn bits(&self) -> u64 {
        let head = if self.id & EXTENDED != 0 { 64 } else { 44 };
        let data = if self.id & REMOTE != 0 { 0 } else { 8 * u64::from(self.length) };
        (head + data) * 7 / 6
    }

    fn span(&self, bits_per_s: u32) -> Duration {
        Duration::from_nanos(self.bits() * 1_000_000_000 / u64::from(bits_per_s))
    }

    /// The lowest rank wins the bus: the base identifier, then the short format, then the rest.
    fn rank(&self) -> u32 {
        let base = |id: u32| (id & ((1 << BASE_BITS) - 1)) << (EXTENSION_BITS + 1);
        match self.id & EXTENDED {
            0 => base(self.id),
            _ => base(self.id >> EXTENSION_BITS) | 1 << EXTENSION_BITS | (self.id & ((1 << EXTENSION_BITS) - 1)),
        }
    }
}

/// A unit on the bus that sends by itself: frames of 8 bytes that hold a counter, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanNode {
    /// The percentage of the bus that it takes, 1 to 100.
    pub percent: u8,
    /// Whether its identifier has 29 bits.
    pub is_extended: bool,
}

impl CanNode {
    fn frame(self, count: u64) -> CanFrame {
        let id = if self.is_extended { EXTENDED | 0x18ff_0000 } else { 0x100 };
        CanFrame { id, length: DATA_BYTES_MAX as u8, data: count.to_le_bytes() }
    }

    fn period(self, bits_per_s: u32) -> Duration {
        let ns = self.frame(0).bits() * 100_000_000_000 / (u64::from(bits_per_s) * u64::from(self.percent));
        Duration::from_nanos(ns)
    }
}

/// An event on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanBusEvent {
    /// A frame of another unit.
    Heard(CanFrame),
    /// A frame of the adapter was sent; with the number that it was given.
    Sent(u32, CanFrame),
}

/// A bus with the adapter's controller on it, and perhaps a unit.
#[derive(Debug)]
pub struct CanBus {
    bits_per_s: u32,
    /// When the bus becomes free.
    free_at: Instant,
    unit: Option<CanNode>,
    /// Frames that the unit has sent.
    counted: u64,
    /// When the unit wants to send its next frame.
    due: Instant,
    sending: VecDeque<(Instant, u32, CanFrame)>,
}

/// Which frame is next.
enum NextCanFrame {
    Unit(CanFrame),
    Ours,
}

impl CanBus {
    /// A bus from `now` on; the unit has sent `counted` frames already.
    pub fn new(now: Instant, bits_per_s: u32, unit: Option<CanNode>, counted: u64) -> Self {
        let due = unit.map_or(now, |unit| now + unit.period(bits_per_s));
        Self { bits_per_s, free_at: now, unit, counted, due, sending: VecDeque::new() }
    }

    /// Queues a frame to be sent.
    pub fn send(&mut self, now: Instant, number: u32, frame: CanFrame) {
        self.sending.push_back((now, number, frame));
    }

    /// The queued frames.
    pub fn sending(&self) -> impl ExactSizeIterator<Item = (u32, CanFrame)> {
        self.sending.iter().map(|(_, number, frame)| (*number, *frame))
    }

    /// Frames that the unit has sent.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// When the next frame is complete, and which one it is. A frame that comes while another is being sent waits for
    /// its end.
    fn next(&self) -> Option<(Instant, NextCanFrame)> {
        let theirs = self.unit.map(|unit| (self.due, unit.frame(self.counted)));
        let ours = self.sending.front().map(|(since, _, frame)| (*since, *frame));
        let first = [theirs, ours].into_iter().flatten().map(|(since, _)| since).min()?;
        let start = first.max(self.free_at);
        let waits = |(since, _): &(Instant, CanFrame)| *since <= start;
        let (turn, frame) = match (theirs.filter(waits), ours.filter(waits)) {
            (Some((_, theirs)), Some((_, ours))) if theirs.rank() <= ours.rank() => {
                (NextCanFrame::Unit(theirs), theirs)
            }
            (Some((_, theirs)), None) => (NextCanFrame::Unit(theirs), theirs),
            (_, Some((_, ours))) => (NextCanFrame::Ours, ours),
            (None, None) => return None,
        };
        Some((start + frame.span(self.bits_per_s), turn))
    }

    /// When the next event happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next().map(|(end, _)| end)
    }

    /// The events up to `now`, one by one.
    pub fn poll(&mut self, now: Instant) -> Option<CanBusEvent> {
        let (end, turn) = self.next().filter(|(end, _)| *end <= now)?;
        self.free_at = end;
        match turn {
            NextCanFrame::Unit(frame) => {
                self.counted += 1;
                self.due = self.due + self.unit?.period(self.bits_per_s);
                Some(CanBusEvent::Heard(frame))
            }
            NextCanFrame::Ours => self.sending.pop_front().map(|(_, number, frame)| CanBusEvent::Sent(number, frame)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(us)
    }

    fn frame(id: u32) -> CanFrame {
        CanFrame { id, length: 8, data: [0; 8] }
    }

    #[test]
    fn a_unit_sends_as_many_frames_as_the_papers_oscilloscope_saw() {
        let unit = CanNode { percent: 69, is_extended: false };
        let mut bus = CanBus::new(Instant::ZERO, 500_000, Some(unit), 0);
        let heard = std::iter::from_fn(|| bus.poll(at(1_000_000))).count();
        assert_eq!(heard, 2737, "2,738 a second, the first after its period and its own length");
        assert_eq!(bus.counted(), 2737);
    }

    #[test]
    fn one_at_a_time_and_the_lowest_identifier_first() {
        let mut bus = CanBus::new(Instant::ZERO, 1_000_000, None, 0);
        bus.send(at(0), 1, frame(0x200));
        assert_eq!(bus.poll_timeout(), Some(at(126)), "126 bits");
        bus.send(at(10), 2, frame(0x7ff));
        assert_eq!(bus.poll(at(125)), None);
        assert_eq!(bus.poll(at(126)), Some(CanBusEvent::Sent(1, frame(0x200))));
        assert_eq!(bus.poll_timeout(), Some(at(252)), "it waited for the end of the other");
        assert!(frame(0x100).rank() < frame(EXTENDED | 0x100 << 18).rank(), "the short format wins");
        assert!(frame(EXTENDED | 0x0ff << 18 | 0x3ffff).rank() < frame(0x100).rank());

        for (id, outcome) in [(0x101, [false, false, false, false]), (0x0ff, [false, true, false, false])] {
            let unit = CanNode { percent: 100, is_extended: false };
            let mut bus = CanBus::new(Instant::ZERO, 1_000_000, Some(unit), 0);
            bus.send(at(130), 7, frame(id));
            let events = std::iter::from_fn(|| bus.poll(at(5 * 126)));
            let ours: Vec<bool> = events.map(|event| matches!(event, CanBusEvent::Sent(..))).collect();
            assert_eq!(ours, outcome, "a full bus leaves nothing to a unit of lower priority");
        }
    }

    #[test]
    fn a_frame_is_as_long_as_its_bits() {
        let remote = CanFrame { id: REMOTE | 1, length: 8, data: [0; 8] };
        let empty = CanFrame { id: EXTENDED, length: 0, data: [0; 8] };
        assert_eq!((frame(1).bits(), remote.bits(), empty.bits(), frame(EXTENDED).bits()), (126, 51, 74, 149));
    }
}
