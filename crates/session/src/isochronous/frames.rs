//! The frame numbers that a driver sees.

use std::time::Duration;

use farbus_model::{Instant, UsbSpeed};

/// A frame number has 31 bits, because the kernel's is signed.
const MASK: u32 = 0x7fff_ffff;

/// The position of a stream, in frames or microframes.
#[derive(Clone, Copy, Debug)]
pub struct IsoFramePosition {
    next: u32,
    /// Frames per interval.
    each: u32,
}

impl IsoFramePosition {
    /// A stream that begins now, with a packet each `interval`.
    pub fn new(now: Instant, speed: UsbSpeed, interval: Duration) -> Self {
        let unit = if speed.has_microframes() { Duration::from_micros(125) } else { Duration::from_millis(1) };
        let next = (now.as_nanos() / unit.as_nanos() as u64) as u32 & MASK;
        let each = u32::try_from(interval.as_nanos() / unit.as_nanos()).unwrap_or(1).max(1);
        Self { next, each }
    }

    /// The position of a stream that another process began.
    pub fn going_on(self, next: u32) -> Self {
        Self { next: next & MASK, ..self }
    }

    /// The frame of the next packet.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Advances by `packets`; returns the frame of the first of them.
    pub fn pass(&mut self, packets: u64) -> u32 {
        let frame = self.next;
        self.next = frame.wrapping_add(self.each.wrapping_mul(packets as u32)) & MASK;
        frame
    }

    /// The number of frames that `packets` take.
    pub fn of(&self, packets: usize) -> u32 {
        self.each.wrapping_mul(packets as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_numbers_are_consecutive_and_wrap() {
        let mut frames =
            IsoFramePosition::new(Instant::from_nanos(5_000_000), UsbSpeed::Full, Duration::from_millis(1));
        assert_eq!((frames.pass(8), frames.pass(8), frames.pass(1)), (5, 13, 21));
        let mut frames =
            IsoFramePosition::new(Instant::from_nanos(1_000_000), UsbSpeed::High, Duration::from_millis(1));
        assert_eq!((frames.pass(1), frames.pass(2), frames.of(3)), (8, 16, 24));
        frames.next = MASK;
        frames.pass(1);
        assert_eq!(frames.pass(1), 7);
    }
}
