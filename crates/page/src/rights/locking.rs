//! Locks of the process with the rights.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic elsewhere.
pub fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
