//! USB outcomes on the wire: negative Linux errno, whatever the host's own system is.

use farbus_model::Status;

/// The wire's number for an outcome.
pub const fn to_errno(status: Status) -> i32 {
    match status {
        Status::Ok => 0,
        Status::Stall => -32,      // EPIPE
        Status::Short => -121,     // EREMOTEIO
        Status::Overflow => -75,   // EOVERFLOW
        Status::Protocol => -71,   // EPROTO
        Status::Crc => -84,        // EILSEQ
        Status::DataRate => -63,   // ENOSR
        Status::TimedOut => -110,  // ETIMEDOUT
        Status::Cancelled => -104, // ECONNRESET
        Status::Shutdown => -108,  // ESHUTDOWN
        Status::Gone => -19,       // ENODEV
        Status::Invalid => -22,    // EINVAL
        Status::NoCredit => -12,   // ENOMEM
        Status::IsoMissed => -18,  // EXDEV
        Status::Other => -5,       // EIO
    }
}

/// The outcome that a wire's number means; an undefined number is [`Status::Other`].
pub const fn from_errno(errno: i32) -> Status {
    match errno {
        0 => Status::Ok,
        -32 => Status::Stall,
        -121 => Status::Short,
        -75 => Status::Overflow,
        -71 => Status::Protocol,
        -84 => Status::Crc,
        // ENOSR, ECOMM: the controller's memory was too slow, OUT or IN.
        -63 | -70 => Status::DataRate,
        // ETIME, ETIMEDOUT.
        -62 | -110 => Status::TimedOut,
        // ECONNRESET: unlinked. ENOENT: killed by teardown.
        -104 | -2 => Status::Cancelled,
        -108 => Status::Shutdown,
        -19 => Status::Gone,
        -22 => Status::Invalid,
        -12 => Status::NoCredit,
        -18 => Status::IsoMissed,
        _ => Status::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_survives_the_wire() {
        let all = [
            Status::Ok,
            Status::Stall,
            Status::Short,
            Status::Overflow,
            Status::Protocol,
            Status::Crc,
            Status::DataRate,
            Status::TimedOut,
            Status::Cancelled,
            Status::Shutdown,
            Status::Gone,
            Status::Invalid,
            Status::NoCredit,
            Status::IsoMissed,
            Status::Other,
        ];
        for status in all {
            assert_eq!(from_errno(to_errno(status)), status);
            assert!(to_errno(status) <= 0);
        }
        assert_eq!(from_errno(77), Status::Other);
    }
}
