//! Disks that hosts have moved to their own machines (`farbus swap HOST/DEVICE`): nobody opens what is old here.
//!
//! Each question is answered by what is stored, so all processes of this host that share a disk agree, and what its
//! owner forgets by a command holds at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farbus_io_net::trust::{DeviceId, DiskRetirement};

use crate::broker::SystemAccess;
use crate::devices::retirement::RetirementStep;

/// What is stored of moved disks. Before [`DiskRetirements::ask_through`], nothing is.
#[derive(Debug, Default)]
pub struct DiskRetirements {
    system: Mutex<Option<SystemAccess>>,
}

impl DiskRetirements {
    /// Reads and writes what is stored in this way from now on.
    pub fn ask_through(&self, system: SystemAccess) {
        *self.system.lock().unwrap_or_else(PoisonError::into_inner) = Some(system);
    }

    fn system(&self) -> Option<SystemAccess> {
        self.system.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is stored of a device.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(&self, device: DeviceId) -> Result<Option<DiskRetirement>, String> {
        let Some(system) = self.system() else { return Ok(None) };
        system.retirement(device, None).map_err(|error| error.to_string())
    }

    /// What is stored of many devices, or why that is not known; only those of which something is stored. A list of a
    /// thousand devices asks a few questions.
    pub fn of_all(&self, devices: &[DeviceId]) -> BTreeMap<DeviceId, Result<DiskRetirement, String>> {
        self.system().map_or_else(BTreeMap::new, |system| system.retirements(devices))
    }

    /// Notes durably what the host of a disk says of it. Returns what is stored then.
    ///
    /// # Errors
    /// It cannot be noted.
    pub fn note(&self, device: DeviceId, step: RetirementStep) -> Result<Option<DiskRetirement>, String> {
        let system = self.system().ok_or("this process keeps nothing about its disks")?;
        system.retirement(device, Some(step)).map_err(|error| error.to_string())
    }
}
