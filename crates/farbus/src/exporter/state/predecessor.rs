//! What the process before this one left: sessions that are yet to continue here, and the devices that they use.

use std::sync::PoisonError;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};
use crate::exporter::session::threads::{DeviceProvider, PendingSession};

/// Sessions of the process before this one. Two locks: the sessions' and the names'; each is held alone.
pub struct PredecessorSessions<H: DeviceProvider> {
    /// The sessions, by their number in the table.
    pending: OrderedMutex<Vec<(u64, PendingSession<H>)>, ALONE>,
    /// Names of the devices that they use. No other peer gets these until the session has continued.
    devices: OrderedMutex<Vec<String>, ALONE>,
}

impl<H: DeviceProvider> Default for PredecessorSessions<H> {
    fn default() -> Self {
        Self { pending: OrderedMutex::default(), devices: OrderedMutex::default() }
    }
}

impl<H: DeviceProvider> PredecessorSessions<H> {
    /// Keeps a session, which uses these devices, until it continues here.
    pub fn keep(&self, number: u64, session: PendingSession<H>, devices: Vec<String>) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).extend(devices);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push((number, session));
    }

    /// Takes the sessions, which continue now.
    pub fn take(&self) -> Vec<(u64, PendingSession<H>)> {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a session that is yet to continue uses the device of this name. The device may not be shared yet.
    pub fn uses(&self, device: &str) -> bool {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().any(|reserved| reserved == device)
    }

    /// Notes that a session continues with the device of this name, or without it.
    pub fn settle(&self, device: &str) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = devices.iter().position(|name| *name == device) {
            devices.swap_remove(at);
        }
    }
}
