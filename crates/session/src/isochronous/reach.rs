//! The distance of a device: the round trip of requests that it answers at once, and the longest of any request.

use std::collections::VecDeque;
use std::time::Duration;

use super::saved::{restore_span, save_span};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// The distance is the least of this many measurements, so that one delayed by a busy machine does not count.
const COUNT: usize = 8;
/// A nearer device is left alone: drivers keep more than this in flight.
const FAR: Duration = Duration::from_millis(2);
/// Least extra time that requests are kept ahead: scheduling delays of a busy machine.
const SPARE: Duration = Duration::from_millis(8);
/// With each request, the longest round trip decays towards the shortest by one part in this many.
const FORGET_ONE_IN: u32 = 256;

/// Upper limit of a round trip in a snapshot.
const WAY_MAX: Duration = Duration::from_secs(3600);

/// Round trips measured to a device.
#[derive(Clone, Debug, Default)]
pub struct RoundTripHistory {
    latest: VecDeque<Duration>,
    longest: Duration,
}

impl RoundTripHistory {
    /// Records the round trip of a request that the device answers at once.
    pub fn note(&mut self, span: Duration) {
        if self.latest.len() == COUNT {
            self.latest.pop_front();
        }
        self.latest.push_back(span);
        self.note_longest(span);
    }

    /// Records the round trip of any other request.
    pub fn note_longest(&mut self, span: Duration) {
        let forgotten = self.longest - self.longest.saturating_sub(self.nearest()) / FORGET_ONE_IN;
        self.longest = forgotten.max(span);
    }

    /// Writes it to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        save_span(self.nearest(), to);
        save_span(self.longest, to);
    }

    /// Restores it from a snapshot.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: a value is out of range.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (nearest, longest) = (restore_span("way", WAY_MAX, from)?, restore_span("way", WAY_MAX, from)?);
        let latest = if nearest.is_zero() { VecDeque::new() } else { VecDeque::from([nearest]) };
        Ok(Self { latest, longest })
    }

    /// The round trip without delays.
    pub fn nearest(&self) -> Duration {
        self.latest.iter().min().copied().unwrap_or_default()
    }

    /// The longest recent round trip.
    pub fn longest(&self) -> Duration {
        self.longest.max(self.nearest())
    }

    /// For how long our requests are with the device ahead: a quarter more than the longest round trip.
    pub fn ahead(&self) -> Duration {
        self.longest() + (self.longest() / 4).max(SPARE)
    }

    /// Whether the device is so far that its streams need this layer.
    pub fn is_far(&self) -> bool {
        self.nearest() > FAR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_does_not_make_a_device_far() {
        let mut reach = RoundTripHistory::default();
        assert!(!reach.is_far(), "what is not known is near");
        reach.note(Duration::from_micros(200));
        reach.note(Duration::from_millis(40));
        assert!(!reach.is_far());
        (0..COUNT).for_each(|_| reach.note(Duration::from_millis(100)));
        assert!(reach.is_far() && reach.nearest() == Duration::from_millis(100));
        reach.note_longest(Duration::from_millis(130));
        assert_eq!(reach.longest(), Duration::from_millis(130));
        (0..2000).for_each(|_| reach.note_longest(Duration::from_millis(100)));
        assert!(reach.longest() < Duration::from_millis(101), "{:?}", reach.longest());
    }
}
