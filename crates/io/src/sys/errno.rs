//! The kernel's error numbers in the model's words, and back.

use farbus_model::StoreError;
use rustix::io::Errno;

/// What a failed call on a store's file means to its user.
pub fn store_error(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => StoreError::NoSpace,
        Errno::ROFS | Errno::PERM => StoreError::ReadOnly,
        Errno::NODEV | Errno::NXIO => StoreError::Gone,
        _ => StoreError::Medium,
    }
}

/// What a program that uses a store through the kernel is told.
pub fn of_store(error: StoreError) -> Errno {
    match error {
        StoreError::Medium => Errno::IO,
        StoreError::NoSpace => Errno::NOSPC,
        StoreError::ReadOnly => Errno::ROFS,
        StoreError::Gone => Errno::NODEV,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_error_survives_a_trip_through_the_kernel() {
        for error in [StoreError::Medium, StoreError::NoSpace, StoreError::ReadOnly, StoreError::Gone] {
            assert_eq!(store_error(of_store(error)), error);
        }
    }
}
