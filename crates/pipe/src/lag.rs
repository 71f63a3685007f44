//! How far a pipe is behind the rate that it was granted, while there was more to carry.

/// The lag of one direction of a channel. A source that has less than it was granted makes no lag: only what waited
/// because the pipe did not take it counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelLag {
    per_s: u64,
    last_ns: Option<u64>,
    behind_ns: u64,
    worst_ns: u64,
}

impl ChannelLag {
    /// Of a pipe that was granted `per_s` messages a second.
    pub const fn new(per_s: u64) -> Self {
        Self { per_s, last_ns: None, behind_ns: 0, worst_ns: 0 }
    }

    /// Notes that `messages` were carried since the last look; with `has_more`, there were more to carry all that time.
    pub fn note(&mut self, now_ns: u64, messages: u64, has_more: bool) {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        let worth_ns = u128::from(messages) * 1_000_000_000 / u128::from(self.per_s.max(1));
        let due_ns = self.behind_ns.saturating_add(now_ns.saturating_sub(last_ns));
        let behind_ns = due_ns.saturating_sub(u64::try_from(worth_ns).unwrap_or(u64::MAX));
        self.behind_ns = if has_more { behind_ns } else { 0 };
        self.worst_ns = self.worst_ns.max(self.behind_ns);
    }

    /// The longest lag, in nanoseconds: what was carried by then should have been carried that much earlier.
    pub const fn worst_ns(&self) -> u64 {
        self.worst_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pipe_that_carries_less_than_there_is_falls_behind() {
        let mut lag = ChannelLag::new(1000);
        lag.note(0, 0, true);
        // 4 messages each 10 ms are 4 ms' worth: 6 ms are missing each time.
        (1..=10).for_each(|at| lag.note(at * 10 * MS, 4, true));
        assert_eq!(lag.worst_ns(), 60 * MS);
        // A source without more data has taken back its claim; a late job that catches up is late once.
        let mut lag = ChannelLag::new(1000);
        lag.note(0, 0, true);
        (1..=10).for_each(|at| lag.note(at * 10 * MS, 4, false));
        assert_eq!(lag.worst_ns(), 0);
        lag.note(130 * MS, 10, true);
        (0..5).for_each(|at| lag.note(140 * MS + at * 10 * MS, 20, true));
        assert_eq!(lag.worst_ns(), 20 * MS);
    }
}
