//! What to do about a command that the device reports as failed.

use super::error::DiskError;
use super::sense::SenseCode;

/// What to do with a failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RetryVerdict {
    /// It succeeded nevertheless.
    Passed,
    /// Repeat it at once.
    Again,
    /// Repeat it after a pause: the medium is becoming ready.
    Later,
    /// The medium may have been exchanged.
    MediumChanged,
    /// Repeat it; an earlier command failed with this error after it had been reported as done.
    Deferred(DiskError),
    /// The command failed with this error; repeating it does not help.
    Failed(DiskError),
}

impl RetryVerdict {
    /// Keys of SPC-4 table 43, codes of SPC-4 annex F.
    pub fn of(sense: SenseCode) -> Self {
        let failed = match (sense.key, sense.code, sense.qualifier) {
            // Recovered error: the data is there.
            (1, ..) => return RetryVerdict::Passed,
            // Becoming ready; operations in progress (format, self-test, ...) take longer than anyone waits.
            (2, 0x04, 0x01) => return RetryVerdict::Later,
            (2, 0x3a, _) => DiskError::NoMedium,
            (2, ..) => DiskError::NotReady(sense),
            (3, ..) => DiskError::MediumError(sense),
            (4, ..) => DiskError::HardwareError(sense),
            (5, 0x21, _) => DiskError::OutOfRange,
            (5, ..) => DiskError::IllegalRequest(sense),
            // Medium may have changed; capacity has changed.
            (6, 0x28, _) | (6, 0x2a, 0x09) => return RetryVerdict::MediumChanged,
            // Any other attention (power on, reset, parameters) is cleared by this report.
            (6, ..) => return RetryVerdict::Again,
            // Space allocation failed: thin provisioning ran out.
            (7, 0x27, 0x07) => DiskError::NoSpace,
            (7, ..) => DiskError::WriteProtected,
            // Aborted command; and a failure without a reason.
            (0xb, ..) | (0, ..) => return RetryVerdict::Again,
            _ => DiskError::Refused(sense),
        };
        if sense.is_deferred { RetryVerdict::Deferred(failed) } else { RetryVerdict::Failed(failed) }
    }
}
