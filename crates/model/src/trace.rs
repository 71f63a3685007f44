//! The taps of the request path: which request passed which stage when. A fixed ring, written without allocation.

use std::fmt;

use crate::time::Instant;

/// A stage of the request path, in the order in which a request passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TracePoint {
    /// The request's bytes came off the link.
    Received,
    /// The request was submitted to the device.
    Submitted,
    /// The device finished the request.
    Completed,
    /// The reply was handed to the link.
    Replied,
    /// The request was cancelled.
    Unlinked,
}

impl TracePoint {
    /// The name in a printed trace.
    pub const fn name(self) -> &'static str {
        match self {
            TracePoint::Received => "received",
            TracePoint::Submitted => "submitted",
            TracePoint::Completed => "completed",
            TracePoint::Replied => "replied",
            TracePoint::Unlinked => "unlinked",
        }
    }
}

/// One tap; a request has the same key at every stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The request, by the wire's sequence number.
    pub key: u64,
    /// The endpoint's address byte.
    pub endpoint: u8,
    /// Where on the request path the tap was.
    pub stage: TracePoint,
    /// When the request passed it.
    pub at: Instant,
}

/// The latest taps of one engine; older ones are overwritten.
#[derive(Debug)]
pub struct TraceRing {
    taps: Vec<TraceRecord>,
    capacity: usize,
    next: usize,
    written: u64,
    clock: Option<TraceClock>,
}

/// What tells the time of each tap.
struct TraceClock(Box<dyn Fn() -> Instant + Send>);

impl fmt::Debug for TraceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl TraceRing {
    /// A ring of `capacity` taps (rounded up to a power of two).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.next_power_of_two();
        Self { taps: Vec::with_capacity(capacity), capacity, next: 0, written: 0, clock: None }
    }

    /// Reads `clock` at each tap from now on. Without it, a tap has the time that its engine was given for a turn, in
    /// which a request may pass several stages.
    pub fn read_clock(&mut self, clock: impl Fn() -> Instant + Send + 'static) {
        self.clock = Some(TraceClock(Box::new(clock)));
    }

    /// Records one tap. `at` is its time unless the ring reads a clock.
    pub fn tap(&mut self, key: u64, endpoint: u8, stage: TracePoint, at: Instant) {
        let at = self.clock.as_ref().map_or(at, |TraceClock(now)| now());
        let tap = TraceRecord { key, endpoint, stage, at };
        if self.taps.len() < self.capacity {
            self.taps.push(tap);
        } else {
            self.taps[self.next] = tap;
        }
        self.next = (self.next + 1) & (self.capacity - 1);
        self.written += 1;
    }

    /// The taps it still holds, oldest first.
    pub fn taps(&self) -> impl Iterator<Item = &TraceRecord> {
        let start = if self.taps.len() < self.capacity { 0 } else { self.next };
        self.taps[start..].iter().chain(&self.taps[..start])
    }

    /// Taps written since the start, overwritten ones included.
    pub fn written(&self) -> u64 {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest() {
        let mut ring = TraceRing::new(4);
        for key in 0..6 {
            ring.tap(key, 0x81, TracePoint::Received, Instant::from_nanos(key));
        }
        assert_eq!(ring.taps().map(|tap| tap.key).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(ring.written(), 6);
    }

    #[test]
    fn taps_of_one_turn_have_their_own_times_if_the_ring_reads_a_clock() {
        let mut ring = TraceRing::new(4);
        let ticks = std::sync::atomic::AtomicU64::new(7);
        ring.read_clock(move || Instant::from_nanos(ticks.fetch_add(5, std::sync::atomic::Ordering::Relaxed)));
        for stage in [TracePoint::Received, TracePoint::Submitted, TracePoint::Completed] {
            ring.tap(1, 0x81, stage, Instant::from_nanos(2));
        }
        assert_eq!(ring.taps().map(|tap| tap.at.as_nanos()).collect::<Vec<_>>(), [7, 12, 17]);
    }
}
