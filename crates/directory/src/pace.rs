//! When to try again after a failure: later after each, and not when everybody does.

use std::time::Duration;

use farbus_model::Instant;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause, before its random part is added.
const LONGEST: Duration = Duration::from_secs(16);

/// The pauses between attempts. Each is up to twice as long as the last, with a random part, so that the hosts of a
/// directory that comes back do not all ask at once.
#[derive(Clone, Debug)]
pub struct RetryBackoff {
    failures: u32,
    dice: u64,
    not_before: Instant,
}

impl RetryBackoff {
    /// No failure yet. `seed` decides the random parts.
    pub fn new(seed: u64) -> Self {
        Self { failures: 0, dice: seed | 1, not_before: Instant::ZERO }
    }

    /// Notes a failure.
    pub fn fail(&mut self, now: Instant) {
        let span = FIRST.saturating_mul(1 << self.failures.min(8)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // xorshift64 (Marsaglia, 2003).
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.not_before = now + span / 2 + span.mul_f64((self.dice >> 11) as f64 / (1u64 << 53) as f64);
    }

    /// Notes a success.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// How many attempts have failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// When the next attempt may be made; `None`: now.
    pub fn pause(&self, now: Instant) -> Option<Instant> {
        (now < self.not_before).then_some(self.not_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ_between_hosts() {
        let pauses = |seed| {
            let mut pace = RetryBackoff::new(seed);
            let spans: Vec<Duration> = (0..12)
                .map(|_| {
                    pace.fail(Instant::ZERO);
                    pace.pause(Instant::ZERO).unwrap() - Instant::ZERO
                })
                .collect();
            spans
        };
        let (one, other) = (pauses(1), pauses(2));
        assert!(one[0] < Duration::from_millis(751) && one[11] > Duration::from_secs(7), "{one:?}");
        assert!(one.iter().chain(&other).all(|span| *span <= Duration::from_secs(24)), "{one:?} {other:?}");
        assert_ne!(one, other);
    }
}
