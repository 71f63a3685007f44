//! Tells threads to stop, also while they pause.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether threads have to stop.
#[derive(Debug, Default)]
pub struct StopFlag {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Tells them to stop.
    pub fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether they have to stop.
    pub fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses; returns early, and true, if they have to stop.
    pub fn pause(&self, span: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_set, span, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
