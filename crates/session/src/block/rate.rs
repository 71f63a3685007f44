//! A rate limit.

use std::time::Duration;

use farbus_model::Instant;

/// A token bucket with one token per byte. It allows a burst of 100 ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// Bytes per second; `None`: no limit.
    rate: Option<u64>,
    /// When everything taken so far is paid for.
    full_at: Instant,
}

/// The largest burst after a pause, in time.
const BURST: Duration = Duration::from_millis(100);

impl TokenBucket {
    pub fn new(rate: Option<u64>, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// When more may be taken: `None` means now.
    pub fn wait_until(&self, now: Instant) -> Option<Instant> {
        let owed = self.full_at - now;
        (owed > BURST).then(|| now + (owed - BURST))
    }

    /// Takes `bytes`, even if that is more than the bucket holds; the rest is owed.
    pub fn take(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return };
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        self.full_at = self.full_at.max(now) + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_passes_its_rate_and_a_burst_of_a_tenth_of_a_second() {
        let mut now = Instant::ZERO;
        let mut bucket = TokenBucket::new(Some(1 << 20), now);
        let mut taken = 0;
        while taken < 10 << 20 {
            if let Some(until) = bucket.wait_until(now) {
                assert!(until > now);
                now = until;
            }
            bucket.take(now, 64 << 10);
            taken += 64 << 10;
        }
        let seconds = now.as_nanos() as f64 / 1e9;
        assert!((9.8..10.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn bucket_without_rate_never_waits_and_pauses_are_not_saved_up() {
        let mut free = TokenBucket::new(None, Instant::ZERO);
        free.take(Instant::ZERO, u64::MAX);
        assert_eq!(free.wait_until(Instant::ZERO), None);
        let mut bucket = TokenBucket::new(Some(1000), Instant::ZERO);
        let later = Instant::ZERO + Duration::from_secs(100);
        bucket.take(later, 1000);
        assert_eq!(bucket.wait_until(later), Some(later + Duration::from_millis(900)));
    }
}
