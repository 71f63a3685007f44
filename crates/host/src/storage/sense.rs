//! Sense data: why a command failed, and whether it is worth repeating (SPC-4 §4.5).

use std::fmt;

use super::error::DiskError;

/// Sense key and additional sense code with its qualifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: u8,
    /// Additional sense code.
    pub code: u8,
    /// Additional sense code qualifier.
    pub qualifier: u8,
}

/// What to do with a command that ended so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It succeeded all the same.
    Passed,
    /// Again, at once.
    Again,
    /// Again, after a pause: the medium is becoming ready.
    Later,
    /// The medium may be another one now.
    MediumChanged,
    /// It failed.
    Failed(DiskError),
}

impl Sense {
    /// Reads sense data, fixed format or descriptor format; what is missing reads as "no sense".
    pub fn parse(b: &[u8]) -> Self {
        let at = |index: usize| b.get(index).copied().unwrap_or(0);
        match at(0) & 0x7f {
            0x70 | 0x71 => Self { key: at(2) & 0x0f, code: at(12), qualifier: at(13) },
            0x72 | 0x73 => Self { key: at(1) & 0x0f, code: at(2), qualifier: at(3) },
            _ => Self::default(),
        }
    }

    /// Keys of SPC-4 table 43, codes of SPC-4 annex F.
    pub(super) fn verdict(self) -> Verdict {
        let failed = match (self.key, self.code, self.qualifier) {
            // Recovered error: the data is there.
            (1, ..) => return Verdict::Passed,
            // Becoming ready; operations in progress (format, self-test, ...) take longer than anyone waits.
            (2, 0x04, 0x01) => return Verdict::Later,
            (2, 0x3a, _) => DiskError::NoMedium,
            (2, ..) => DiskError::NotReady(self),
            (3, ..) => DiskError::MediumError(self),
            (4, ..) => DiskError::HardwareError(self),
            (5, 0x21, _) => DiskError::OutOfRange,
            (5, ..) => DiskError::IllegalRequest(self),
            // Medium may have changed; capacity has changed.
            (6, 0x28, _) | (6, 0x2a, 0x09) => return Verdict::MediumChanged,
            // Any other attention (power on, reset, parameters) has been said now.
            (6, ..) => return Verdict::Again,
            // Space allocation failed: thin provisioning ran out.
            (7, 0x27, 0x07) => DiskError::NoSpace,
            (7, ..) => DiskError::WriteProtected,
            // Aborted command; and a failure without a reason.
            (0xb, ..) | (0, ..) => return Verdict::Again,
            _ => DiskError::Refused(self),
        };
        Verdict::Failed(failed)
    }

    /// Whether the medium only waits to be started (SPC-4: "initializing command required").
    pub(super) fn wants_start(self) -> bool {
        (self.key, self.code, self.qualifier) == (2, 0x04, 0x02)
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sense {:x}/{:02x}/{:02x}", self.key, self.code, self.qualifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read_and_rubbish_is_no_sense() {
        let sense = Sense { key: 6, code: 0x29, qualifier: 1 };
        assert_eq!(Sense::parse(&[0xf0, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 1]), sense);
        assert_eq!(Sense::parse(&[0x72, 6, 0x29, 1]), sense);
        assert_eq!(Sense::parse(&[]), Sense::default());
        assert_eq!(Sense::parse(&[0x70, 0, 3]), Sense { key: 3, ..Sense::default() });
    }
}
