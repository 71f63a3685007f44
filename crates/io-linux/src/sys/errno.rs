//! Converts the kernel's error numbers to the model's errors, and back.

use farbus_model::{Status, StoreError};
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
pub fn of_transfer(errno: Errno) -> Status {
    match errno {
        Errno::PIPE => Status::Stall,
        Errno::REMOTEIO => Status::Short,
        Errno::OVERFLOW => Status::Overflow,
        Errno::PROTO => Status::Protocol,
        Errno::ILSEQ => Status::Crc,
        Errno::NOSR | Errno::COMM => Status::DataRate,
        // ETIME: the device did not answer within the bus's own time.
        Errno::TIME | Errno::TIMEDOUT => Status::TimedOut,
        // Cancelled: by this process, by a process that set its interface, or because the device was unplugged.
        Errno::NOENT | Errno::CONNRESET => Status::Cancelled,
        Errno::SHUTDOWN => Status::Shutdown,
        Errno::NODEV => Status::Gone,
        Errno::INVAL => Status::Invalid,
        Errno::NOMEM => Status::NoCredit,
        Errno::XDEV => Status::IsoMissed,
        _ => Status::Other,
    }
}

/// Why usbfs refused a transfer or another call: the same numbers, some with another meaning.
pub fn of_call(errno: Errno) -> Status {
    match errno {
        // No such endpoint, interface or configuration; the device has none active.
        Errno::NOENT | Errno::SRCH | Errno::MSGSIZE => Status::Invalid,
        // Unconfigured, or suspended.
        Errno::HOSTUNREACH => Status::Shutdown,
        // Isochronous packets scheduled in the past or too far ahead.
        Errno::FBIG => Status::IsoMissed,
        Errno::ACCESS | Errno::BUSY => Status::Other,
        other => of_transfer(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_one_thing_of_a_transfer_and_another_of_a_call() {
        assert_eq!((of_transfer(Errno::NOENT), of_call(Errno::NOENT)), (Status::Cancelled, Status::Invalid));
        assert_eq!((of_transfer(Errno::PIPE), of_call(Errno::PIPE)), (Status::Stall, Status::Stall));
        assert_eq!((of_transfer(Errno::NOMEM), of_call(Errno::NODEV)), (Status::NoCredit, Status::Gone));
        assert_eq!(of_transfer(Errno::BADF), Status::Other);
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
