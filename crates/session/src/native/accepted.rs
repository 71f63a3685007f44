//! How many unacknowledged bytes the other end accepts.

use farbus_model::budget::UNACKNOWLEDGED_BYTES_MIN;
use farbus_wire::native::{LaneLimits, Options};

/// What the other end of a session accepts on a lane; without a word of it, anything.
#[derive(Clone, Copy, Debug)]
pub struct Accepted(usize);

impl Default for Accepted {
    fn default() -> Self {
        Self(usize::MAX)
    }
}

impl Accepted {
    /// Notes what a greeting of the first lane says, if it says anything. An end acknowledges after 512 KiB, so that
    /// less than [`UNACKNOWLEDGED_BYTES_MIN`] could stop its peer: it counts as that (docs/protocol.md, *A link
    /// begins*).
    pub fn hear(&mut self, options: &Options) {
        if let Some(bytes) = options.unacknowledged_bytes_max {
            self.0 = usize::try_from(bytes).unwrap_or(usize::MAX).max(UNACKNOWLEDGED_BYTES_MIN);
        }
    }

    /// The limits of a lane to that end.
    pub fn of(self, limits: LaneLimits) -> LaneLimits {
        LaneLimits { unacknowledged_bytes_max: limits.unacknowledged_bytes_max.min(self.0), ..limits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_of_both_ends_counts_and_no_end_can_stop_the_other() {
        let limits = LaneLimits::DEFAULT;
        let of = |said: &[Option<u32>]| {
            let mut accepted = Accepted::default();
            for &unacknowledged_bytes_max in said {
                accepted.hear(&Options { unacknowledged_bytes_max, ..Options::default() });
            }
            accepted.of(limits).unacknowledged_bytes_max
        };
        assert_eq!(of(&[None]), limits.unacknowledged_bytes_max);
        assert_eq!(of(&[Some(u32::MAX)]), limits.unacknowledged_bytes_max);
        assert_eq!(of(&[Some(3 << 20)]), 3 << 20);
        assert_eq!(of(&[Some(3 << 20), None]), 3 << 20, "a greeting without the option changes nothing");
        assert_eq!(of(&[Some(0)]), UNACKNOWLEDGED_BYTES_MIN);
    }
}
