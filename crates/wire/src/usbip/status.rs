//! USB outcomes on the wire: negative Linux errno, whatever the host's own system is.

use farbus_model::UrbStatus;

/// The wire's number for an outcome.
pub const fn to_errno(status: UrbStatus) -> i32 {
    match status {
        UrbStatus::Ok => 0,
        UrbStatus::Stall => -32,      // EPIPE
        UrbStatus::Short => -121,     // EREMOTEIO
        UrbStatus::Overflow => -75,   // EOVERFLOW
        UrbStatus::Protocol => -71,   // EPROTO
        UrbStatus::Crc => -84,        // EILSEQ
        UrbStatus::DataRate => -63,   // ENOSR
        UrbStatus::TimedOut => -110,  // ETIMEDOUT
        UrbStatus::Cancelled => -104, // ECONNRESET
        UrbStatus::Shutdown => -108,  // ESHUTDOWN
        UrbStatus::Gone => -19,       // ENODEV
        UrbStatus::Invalid => -22,    // EINVAL
        UrbStatus::NoCredit => -12,   // ENOMEM
        UrbStatus::IsoMissed => -18,  // EXDEV
        UrbStatus::Other => -5,       // EIO
    }
}

/// The outcome that a wire's number means; an undefined number is [`UrbStatus::Other`].
pub const fn from_errno(errno: i32) -> UrbStatus {
    match errno {
        0 => UrbStatus::Ok,
        -32 => UrbStatus::Stall,
        -121 => UrbStatus::Short,
        -75 => UrbStatus::Overflow,
        -71 => UrbStatus::Protocol,
        -84 => UrbStatus::Crc,
        // ENOSR, ECOMM: the controller's memory was too slow, OUT or IN.
        -63 | -70 => UrbStatus::DataRate,
        // ETIME, ETIMEDOUT.
        -62 | -110 => UrbStatus::TimedOut,
        // ECONNRESET: unlinked. ENOENT: killed by teardown.
        -104 | -2 => UrbStatus::Cancelled,
        -108 => UrbStatus::Shutdown,
        -19 => UrbStatus::Gone,
        -22 => UrbStatus::Invalid,
        -12 => UrbStatus::NoCredit,
        -18 => UrbStatus::IsoMissed,
        _ => UrbStatus::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_survives_the_wire() {
        let all = [
            UrbStatus::Ok,
            UrbStatus::Stall,
            UrbStatus::Short,
            UrbStatus::Overflow,
            UrbStatus::Protocol,
            UrbStatus::Crc,
            UrbStatus::DataRate,
            UrbStatus::TimedOut,
            UrbStatus::Cancelled,
            UrbStatus::Shutdown,
            UrbStatus::Gone,
            UrbStatus::Invalid,
            UrbStatus::NoCredit,
            UrbStatus::IsoMissed,
            UrbStatus::Other,
        ];
        for status in all {
            assert_eq!(from_errno(to_errno(status)), status);
            assert!(to_errno(status) <= 0);
        }
        assert_eq!(from_errno(77), UrbStatus::Other);
    }
}
