//! A device's counters: incremented where it is served, and read by its owner meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Named counters that only grow. Clones share their counts.
#[derive(Clone, Debug)]
pub struct NamedCounters {
    names: &'static [&'static str],
    counts: Arc<[AtomicU64]>,
}

impl NamedCounters {
    /// All counters at zero.
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, counts: names.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds `more` to the counter with this index among the names.
    ///
    /// # Panics
    /// If there is none: an author's mistake.
    pub fn count(&self, at: usize, more: u64) {
        // People read the counters; no memory order depends on them.
        self.counts[at].fetch_add(more, Ordering::Relaxed);
    }

    /// Each name with its count, in their order.
    pub fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_count_together() {
        let tally = NamedCounters::new(&["frames", "late"]);
        tally.clone().count(1, 2);
        tally.count(1, 1);
        assert_eq!(tally.read().collect::<Vec<_>>(), [("frames", 0), ("late", 3)]);
    }
}
