//! What the other end of a session accepts: unacknowledged bytes, and descriptors besides a description.

use farbus_model::budget::UNACKNOWLEDGED_BYTES_MIN;
use farbus_wire::native::{HelloOptions, LaneLimits};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// What the other end of a session accepts; without a word of it, any number of bytes on a lane, and no descriptors.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    unacknowledged_bytes_max: usize,
    /// Bytes of a message of descriptors; `None`: it is sent none.
    descriptors_bytes_max: Option<u32>,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self { unacknowledged_bytes_max: usize::MAX, descriptors_bytes_max: None }
    }
}

impl PeerLimits {
    /// Notes what a greeting of the first lane says, if it says anything. An end acknowledges after 512 KiB, so that
    /// less than [`UNACKNOWLEDGED_BYTES_MIN`] could stop its peer: it counts as that (docs/protocol.md, *A link
    /// begins*).
    pub fn hear(&mut self, options: &HelloOptions) {
        if let Some(bytes) = options.unacknowledged_bytes_max {
            self.unacknowledged_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX).max(UNACKNOWLEDGED_BYTES_MIN);
        }
        self.descriptors_bytes_max = options.descriptors_bytes_max.or(self.descriptors_bytes_max);
    }

    /// Bytes of descriptors that the other end takes of a device; `None`: it is sent none.
    pub fn descriptors_bytes_max(self) -> Option<usize> {
        self.descriptors_bytes_max.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Writes to a snapshot what has to be known before the next greeting.
    pub fn save(self, to: &mut SnapshotWriter) {
        to.flag(self.descriptors_bytes_max.is_some());
        to.u32(self.descriptors_bytes_max.unwrap_or_default());
    }

    /// Restores what [`PeerLimits::save`] wrote; a snapshot of version 12 has none.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is cut off.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        if from.version() < 13 {
            return Ok(Self::default());
        }
        let (is_said, bytes) = (from.flag("descriptors taken")?, from.u32("descriptors taken")?);
        Ok(Self { descriptors_bytes_max: is_said.then_some(bytes), ..Self::default() })
    }

    /// The limits of a lane to that end.
    pub fn of(self, limits: LaneLimits) -> LaneLimits {
        LaneLimits {
            unacknowledged_bytes_max: limits.unacknowledged_bytes_max.min(self.unacknowledged_bytes_max),
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_of_both_ends_counts_and_no_end_can_stop_the_other() {
        let limits = LaneLimits::DEFAULT;
        let of = |stated: &[Option<u32>]| {
            let mut accepted = PeerLimits::default();
            for &unacknowledged_bytes_max in stated {
                accepted.hear(&HelloOptions { unacknowledged_bytes_max, ..HelloOptions::default() });
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
