//! What the process before this one left: sessions that are yet to go on here, and the devices that they use.

use std::sync::{Mutex, PoisonError};

use crate::exporter::session::threads::{DeviceProvider, Pending};

/// Sessions of the process before this one. Two locks: the sessions' and the names'; each is held alone.
pub struct Predecessor<H: DeviceProvider> {
    /// The sessions, by their number in the table.
    pending: Mutex<Vec<(u64, Pending<H>)>>,
    /// Names of the devices that they use: nobody else gets those before.
    devices: Mutex<Vec<String>>,
}

impl<H: DeviceProvider> Default for Predecessor<H> {
    fn default() -> Self {
        Self { pending: Mutex::default(), devices: Mutex::default() }
    }
}

impl<H: DeviceProvider> Predecessor<H> {
    /// A session that uses these devices goes on here later.
    pub fn keep(&self, number: u64, session: Pending<H>, devices: Vec<String>) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).extend(devices);
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push((number, session));
    }

    /// The sessions: they go on now.
    pub fn take(&self) -> Vec<(u64, Pending<H>)> {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a session that is yet to go on uses the device of this name, which may not be shared yet.
    pub fn uses(&self, device: &str) -> bool {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().any(|reserved| reserved == device)
    }

    /// A session goes on with the device of this name, or does without it.
    pub fn settle(&self, device: &str) {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = devices.iter().position(|name| *name == device) {
            devices.swap_remove(at);
        }
    }
}
