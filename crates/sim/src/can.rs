//! Simulated CAN channels behind a USB device with a small buffer. R7.

use std::collections::VecDeque;

use crate::random::SimulationRng;

/// Channels of the paper's device.
pub const CHANNELS: usize = 5;

/// Bytes of a frame on USB in the paper's device (section 6.2.2).
pub const MESSAGE_BYTES: usize = 64;

/// Bytes of its buffer (section 6.2).
pub const BUFFER_BYTES: usize = 4096;

/// The identifier format, which determines the length of a frame with eight bytes of data (section 6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanIdentifierFormat {
    /// An identifier of 11 bits: 108 bits in all.
    Standard,
    /// An identifier of 29 bits: 128 bits in all.
    Extended,
}

/// The traffic on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanTraffic {
    /// A unit sends frames at random intervals.
    In {
        /// The shortest time between two frames.
        least_ns: u64,
        /// The longest time between two frames, in nanoseconds.
        most_ns: u64,
    },
    /// A unit receives frames, and takes a random time for each.
    Out {
        /// The shortest time for one frame.
        least_ns: u64,
        /// The longest time for one frame, in nanoseconds.
        most_ns: u64,
    },
}

impl CanIdentifierFormat {
    const fn bits(self) -> u64 {
        match self {
            Self::Standard => 108,
            Self::Extended => 128,
        }
    }
}

impl CanTraffic {
    /// Frames that take `percent` of a channel of `bits_per_s`. With a stuffed bit after every six, 69 % of 500 kb/s
    /// are the 2,738 standard frames a second that the paper measured with an oscilloscope.
    pub const fn share(bits_per_s: u64, percent: u64, format: CanIdentifierFormat) -> Self {
        let period_ns = format.bits() * 7 * 100 * 1_000_000_000 / (6 * bits_per_s * percent);
        Self::In { least_ns: period_ns, most_ns: period_ns }
    }

    /// How long the next frame takes.
    pub fn frame_ns(&self, random: &mut SimulationRng) -> u64 {
        let (Self::In { least_ns, most_ns } | Self::Out { least_ns, most_ns }) = *self;
        random.between(least_ns, most_ns)
    }

    /// Whether frames come from the channel.
    pub fn is_in(&self) -> bool {
        matches!(self, Self::In { .. })
    }

    /// The highest rate, frames a second.
    pub fn frames_per_s(&self) -> u64 {
        let (Self::In { least_ns, .. } | Self::Out { least_ns, .. }) = *self;
        1_000_000_000 / least_ns.max(1)
    }
}

/// The device. Received frames share its buffer; when it is full the oldest message is overwritten. Frames to be sent
/// have a buffer of the same size, in equal parts.
#[derive(Clone, Debug)]
pub struct SimulatedCanDevice {
    received: VecDeque<usize>,
    overruns: [u64; CHANNELS],
    sending: [usize; CHANNELS],
    sending_max: usize,
}

impl SimulatedCanDevice {
    /// A device with `outlets` channels that send.
    pub fn new(outlets: usize) -> Self {
        Self {
            received: VecDeque::with_capacity(MESSAGES),
            overruns: [0; CHANNELS],
            sending: [0; CHANNELS],
            sending_max: MESSAGES / outlets.max(1),
        }
    }

    /// A frame came on `channel`.
    pub fn receive(&mut self, channel: usize) {
        if self.received.len() == MESSAGES
            && let Some(oldest) = self.received.pop_front()
        {
            self.overruns[oldest] += 1;
        }
        self.received.push_back(channel);
    }

    /// Whether there is a message to read.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Reads all received messages; returns a count per channel.
    pub fn read(&mut self) -> [u64; CHANNELS] {
        let mut counts = [0; CHANNELS];
        self.received.drain(..).for_each(|channel| counts[channel] += 1);
        counts
    }

    /// Takes up to `messages` to be sent on `channel`; returns how many.
    pub fn write(&mut self, channel: usize, messages: usize) -> usize {
        let taken = messages.min(self.sending_max - self.sending[channel]);
        self.sending[channel] += taken;
        taken
    }

    /// A frame was sent on `channel`; returns whether there was one.
    pub fn send(&mut self, channel: usize) -> bool {
        let has_one = self.sending[channel] > 0;
        self.sending[channel] -= usize::from(has_one);
        has_one
    }

    /// Overwritten messages, a count per channel.
    pub fn overruns(&self) -> [u64; CHANNELS] {
        self.overruns
    }
}

const MESSAGES: usize = BUFFER_BYTES / MESSAGE_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_loses_the_oldest() {
        let mut device = SimulatedCanDevice::new(0);
        (0..64).for_each(|_| device.receive(1));
        assert_eq!(device.overruns(), [0; 5]);
        (0..3).for_each(|_| device.receive(2));
        assert_eq!(device.overruns(), [0, 3, 0, 0, 0]);
        assert_eq!(device.read(), [0, 61, 3, 0, 0]);
        assert!(!device.has_received());
    }

    #[test]
    fn outgoing_message_waits_for_space() {
        let mut device = SimulatedCanDevice::new(2);
        assert_eq!((device.write(3, 20), device.write(3, 20), device.write(4, 40)), (20, 12, 32));
        assert!(device.send(3));
        assert_eq!(device.write(3, 9), 1);
        assert!(!device.send(0));
    }

    #[test]
    fn shares_of_table_7_are_the_rates_that_were_seen() {
        let traffic = CanTraffic::share(500_000, 69, CanIdentifierFormat::Standard);
        assert!((2730..=2752).contains(&traffic.frames_per_s()), "{traffic:?}");
        let mut random = SimulationRng::new(1);
        assert!((363_400..=366_200).contains(&traffic.frame_ns(&mut random)), "{traffic:?}");
    }
}
