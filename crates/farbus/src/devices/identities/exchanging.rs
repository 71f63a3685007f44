//! Moves the identity of a USB device to the twin that replaces it.
//!
//! There is no journal of such a swap. So no device has the identity from before the exchange until its outcome is
//! known: if the process is killed in between, both devices get new identities when they are shared next.

use farbus_io_linux::evidence::DeviceEvidence;
use farbus_io_linux::usb::{PluggedDevice, UsbInventory};
use farbus_io_net::trust::{DeviceId, HostFolder, KnownDeviceList, StateError};

/// An identity that is about to move to another USB device.
#[derive(Debug)]
pub struct IdentityExchange {
    folder: HostFolder,
    id: DeviceId,
    generation: u64,
    from: String,
    to: DeviceEvidence,
}

impl IdentityExchange {
    /// Begins to move the device's identity to `twin`; `None` if the identity is not a lasting one.
    ///
    /// # Errors
    /// [`StateError`]: nothing has changed.
    pub fn begin(folder: HostFolder, id: DeviceId, twin: &PluggedDevice) -> Result<Option<Self>, StateError> {
        let inventory = UsbInventory::default();
        let to = DeviceEvidence::of_usb(twin, &inventory.devices().unwrap_or_default(), &inventory);
        Self::begin_with(folder, id, to)
    }

    fn begin_with(folder: HostFolder, id: DeviceId, to: DeviceEvidence) -> Result<Option<Self>, StateError> {
        let from = KnownDeviceList::change(&folder, |all| {
            let known = all.of_id_mut(id)?;
            Some((known.medium.take()?, known.generation))
        })?;
        Ok(from.map(|(from, generation)| Self { folder, id, generation, from, to }))
    }

    /// Gives the identity to the twin, which has replaced the device.
    ///
    /// # Errors
    /// [`StateError`]: no device has the identity then.
    pub fn done(self) -> Result<(), StateError> {
        let Self { folder, id, generation, to, .. } = self;
        KnownDeviceList::change(&folder, |all| {
            if to.is_stable {
                all.give(id, generation + 1, &to.text, "");
            } else if let Some(known) = all.of_id_mut(id) {
                known.generation = generation + 1;
            }
        })
    }

    /// Returns the identity to the device, which was not replaced.
    ///
    /// # Errors
    /// [`StateError`]: no device has the identity then.
    pub fn undone(self) -> Result<(), StateError> {
        let Self { folder, id, generation, from, .. } = self;
        KnownDeviceList::change(&folder, |all| {
            all.give(id, generation, &from, "");
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_net::trust::KnownDevice;
    use farbus_io_net::trust::random_device_id;
    use std::fs;

    #[test]
    fn identity_moves_to_the_twin_and_is_unassigned_during_the_swap() {
        let path = std::env::temp_dir().join(format!("farbus-exchange-{}", std::process::id()));
        let folder = || HostFolder::at(&path);
        let (first, twin) =
            ("usb id=1:2 serial=a", DeviceEvidence { text: "usb id=1:2 serial=b".into(), is_stable: true });
        let add = |medium: &str| {
            KnownDeviceList::change(&folder(), |all| all.add(KnownDevice::new(medium, "", "2026".into())))
        };
        let (id, other) = (DeviceId::of(add(first).unwrap()), DeviceId::of(add(&twin.text).unwrap()));
        let found = |medium: &str| {
            KnownDeviceList::load(&folder()).unwrap().find(medium, "").map(|known| (known.id, known.generation))
        };
        let begin = || IdentityExchange::begin_with(folder(), id, twin.clone()).unwrap().expect("it is known");
        let exchange = begin();
        assert_eq!((found(first), found(&twin.text)), (None, Some((other, 0))));
        exchange.undone().unwrap();
        assert_eq!(found(first), Some((id, 0)));
        begin().done().unwrap();
        assert_eq!((found(first), found(&twin.text)), (None, Some((id, 1))));
        assert!(IdentityExchange::begin_with(folder(), random_device_id(), twin.clone()).unwrap().is_none());
        fs::remove_dir_all(path).unwrap();
    }
}
