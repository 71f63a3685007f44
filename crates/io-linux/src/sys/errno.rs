//! Converts the kernel's error numbers to the model's errors, and back.

use farbus_model::{StoreError, UrbStatus};
use rustix::io::Errno;

/// What a failed call on a store's file means for the store's user.
pub fn store_error(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => StoreError::NoSpace,
        Errno::ROFS | Errno::PERM => StoreError::ReadOnly,
        Errno::NODEV | Errno::NXIO => StoreError::Gone,
        Errno::NOLINK => StoreError::Lost,
        Errno::INVAL => StoreError::Invalid,
        _ => StoreError::Medium,
    }
}

/// The error number for a program that uses a store through the kernel.
pub fn of_store(error: StoreError) -> Errno {
    match error {
        StoreError::Medium => Errno::IO,
        StoreError::NoSpace => Errno::NOSPC,
        StoreError::ReadOnly => Errno::ROFS,
        StoreError::Gone => Errno::NODEV,
        StoreError::Lost => Errno::NOLINK,
        StoreError::Invalid => Errno::INVAL,
    }
}

/// How a transfer ended, from usbfs's error number (kernel: Documentation/driver-api/usb/error-codes.rst).
pub fn of_transfer(errno: Errno) -> UrbStatus {
    match errno {
        Errno::PIPE => UrbStatus::Stall,
        Errno::REMOTEIO => UrbStatus::Short,
        Errno::OVERFLOW => UrbStatus::Overflow,
        Errno::PROTO => UrbStatus::Protocol,
        Errno::ILSEQ => UrbStatus::Crc,
        Errno::NOSR | Errno::COMM => UrbStatus::DataRate,
        // ETIME: the device did not answer within the bus's own time.
        Errno::TIME | Errno::TIMEDOUT => UrbStatus::TimedOut,
        // Cancelled: by this process, by a process that set its interface, or because the device was unplugged.
        Errno::NOENT | Errno::CONNRESET => UrbStatus::Cancelled,
        Errno::SHUTDOWN => UrbStatus::Shutdown,
        Errno::NODEV => UrbStatus::Gone,
        Errno::INVAL => UrbStatus::Invalid,
        Errno::NOMEM => UrbStatus::NoCredit,
        Errno::XDEV => UrbStatus::IsoMissed,
        _ => UrbStatus::Other,
    }
}

/// Why usbfs refused a transfer or another call: the same numbers, some with another meaning.
pub fn of_call(errno: Errno) -> UrbStatus {
    match errno {
        // No such endpoint, interface or configuration; the device has none active.
        Errno::NOENT | Errno::SRCH | Errno::MSGSIZE => UrbStatus::Invalid,
        // Unconfigured, or suspended.
        Errno::HOSTUNREACH => UrbStatus::Shutdown,
        // Isochronous packets scheduled in the past or too far ahead.
        Errno::FBIG => UrbStatus::IsoMissed,
        Errno::ACCESS | Errno::BUSY => UrbStatus::Other,
        other => of_transfer(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_one_thing_of_a_transfer_and_another_of_a_call() {
        assert_eq!((of_transfer(Errno::NOENT), of_call(Errno::NOENT)), (UrbStatus::Cancelled, UrbStatus::Invalid));
        assert_eq!((of_transfer(Errno::PIPE), of_call(Errno::PIPE)), (UrbStatus::Stall, UrbStatus::Stall));
        assert_eq!((of_transfer(Errno::NOMEM), of_call(Errno::NODEV)), (UrbStatus::NoCredit, UrbStatus::Gone));
        assert_eq!(of_transfer(Errno::BADF), UrbStatus::Other);
    }

    #[test]
    fn every_store_error_survives_a_trip_through_the_kernel() {
        let all = [
            StoreError::Medium,
            StoreError::NoSpace,
            StoreError::ReadOnly,
            StoreError::Gone,
            StoreError::Lost,
            StoreError::Invalid,
        ];
        for error in all {
            assert_eq!(store_error(of_store(error)), error);
        }
    }
}
