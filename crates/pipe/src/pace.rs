//! The pace at which a device that makes its source wait is read: that of its pipe, since no one else sets one.

const NS_PER_S: u128 = 1_000_000_000;
/// What a pipe missed it makes up with this much more than its rate, in hundredths.
const MAKES_UP_PERCENT: u128 = 1;
/// One message, in the unit of the credit.
const MESSAGE: i128 = (NS_PER_S * 100) as i128;

/// What a pipe may read: as many messages as its rate is worth by now, less those that it read. A read brings as many
/// as the device has, so the credit may become negative, and nothing is read until it is paid back.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadPace {
    per_s: u64,
    /// The most that is made up at once, in messages.
    burst: u64,
    /// In hundredths of billionths of a message.
    credit: i128,
    last_ns: Option<u64>,
    /// What the last read brought, in messages.
    per_read: u64,
}

impl ReadPace {
    /// Of a pipe that was granted `per_s` messages a second, and makes up `burst` messages at once. A read brings up to
    /// `per_read`.
    pub const fn new(per_s: u64, burst: u64, per_read: u64) -> Self {
        Self { per_s, burst, credit: MESSAGE, last_ns: None, per_read }
    }

    /// The reads that may be under way now.
    pub fn reads(&mut self, now_ns: u64) -> usize {
        let passed_ns = self.last_ns.replace(now_ns).map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        let earned = u128::from(passed_ns) * u128::from(self.per_s) * (100 + MAKES_UP_PERCENT);
        let most = i128::from(self.burst.max(1)) * MESSAGE;
        self.credit = self.credit.saturating_add(i128::try_from(earned).unwrap_or(most)).min(most);
        let messages = u128::try_from(self.credit).unwrap_or(0).div_ceil(MESSAGE.unsigned_abs());
        usize::try_from(messages.div_ceil(u128::from(self.per_read.max(1)))).unwrap_or(usize::MAX)
    }

    /// A read has ended with so many messages.
    pub fn note_read(&mut self, messages: u64) {
        self.credit = self.credit.saturating_sub(i128::from(messages) * MESSAGE);
        self.per_read = messages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What a source that always has more gives in a second, where each read brings `per_read` messages and the thread
    /// looks each `period_ns`; it stands still from 300 to 340 ms.
    fn read_in_a_second(mut pace: ReadPace, per_read: u64, period_ns: u64) -> u64 {
        let mut read = 0;
        for now_ns in (0..1000 * MS).step_by(period_ns as usize) {
            if (300 * MS..340 * MS).contains(&now_ns) {
                continue;
            }
            while pace.reads(now_ns) > 0 {
                pace.note_read(per_read);
                read += per_read;
            }
        }
        read
    }

    #[test]
    fn source_that_always_has_more_is_read_at_the_rate_of_the_pipe() {
        for (per_s, per_read, period_ns) in [(6153, 1, 100_000), (1000, 1, 10 * MS), (11_520, 512, MS), (50, 1, MS)] {
            let read = read_in_a_second(ReadPace::new(per_s, per_s / 20 + 1, per_read), per_read, period_ns);
            assert!((per_s..=per_s + per_s / 50 + 1 + per_read).contains(&read), "{read} of {per_s}");
        }
        // What was missed beyond the burst is not made up at once.
        let read = read_in_a_second(ReadPace::new(1000, 1, 1), 1, MS);
        assert!((950..975).contains(&read), "{read}");
    }

    #[test]
    fn reads_of_a_sparse_source_wait_at_the_device() {
        let mut pace = ReadPace::new(960, 64, 512);
        assert_eq!(pace.reads(0), 1);
        pace.note_read(4);
        // Reads that bring few messages may be many.
        assert_eq!((pace.reads(1), pace.reads(100 * MS)), (0, 16));
        pace.note_read(0);
        assert_eq!(pace.reads(100 * MS), 64);
    }
}
