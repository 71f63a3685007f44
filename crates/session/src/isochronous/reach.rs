//! How far away a device is: what requests took that it answers at once, and what others take.

use std::collections::VecDeque;
use std::time::Duration;

use super::saved::{restore_span, save_span};
use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// The nearest of so many counts: one that a busy machine held up is no distance.
const COUNT: usize = 8;
/// A device that is nearer is left alone: drivers keep more than this with a device.
const FAR: Duration = Duration::from_millis(2);
/// Requests are kept with the device for so much longer at least: a busy machine's schedulers.
const SPARE: Duration = Duration::from_millis(8);
/// The longest way back is forgotten by one part in so many with each request.
const FORGET_ONE_IN: u32 = 256;

/// No way is longer that anybody waits for.
const WAY_MAX: Duration = Duration::from_secs(3600);

/// What is known of the way to a device and back.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    latest: VecDeque<Duration>,
    longest: Duration,
}

impl Reach {
    /// Something that nothing else was in the way of took so long on the way.
    pub fn note(&mut self, span: Duration) {
        if self.latest.len() == COUNT {
            self.latest.pop_front();
        }
        self.latest.push_back(span);
        self.note_longest(span);
    }

    /// Something else took so long on the way.
    pub fn note_longest(&mut self, span: Duration) {
        let forgotten = self.longest - self.longest.saturating_sub(self.nearest()) / FORGET_ONE_IN;
        self.longest = forgotten.max(span);
    }

    /// What another process is told.
    pub fn save(&self, to: &mut Writer) {
        save_span(self.nearest(), to);
        save_span(self.longest, to);
    }

    /// As it was written down.
    ///
    /// # Errors
    /// [`Reject`]: none can be so.
    pub fn restore(from: &mut Reader<'_>) -> Result<Self, Reject> {
        let (nearest, longest) = (restore_span("way", WAY_MAX, from)?, restore_span("way", WAY_MAX, from)?);
        let latest = if nearest.is_zero() { VecDeque::new() } else { VecDeque::from([nearest]) };
        Ok(Self { latest, longest })
    }

    /// There and back, when nothing is in the way.
    pub fn nearest(&self) -> Duration {
        self.latest.iter().min().copied().unwrap_or_default()
    }

    /// There and back, as it has been lately at the worst.
    pub fn longest(&self) -> Duration {
        self.longest.max(self.nearest())
    }

    /// For how long requests of ours are with the device ahead: a quarter more than the way was ever seen to take.
    pub fn ahead(&self) -> Duration {
        self.longest() + (self.longest() / 4).max(SPARE)
    }

    /// Whether streams have to be carried over the way.
    pub fn is_far(&self) -> bool {
        self.nearest() > FAR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_is_no_distance_and_a_far_device_is_far() {
        let mut reach = Reach::default();
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
