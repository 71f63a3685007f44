//! Moves the identity of a USB device to the twin that replaces it.
//!
//! There is no journal of such a swap. So no device has the identity from before the exchange until its outcome is
//! known: if the process is killed in between, both devices get new identities when they are shared next.

use farbus_io_linux::evidence::Evidence;
use farbus_io_linux::usb::{Found, Inventory};
use farbus_io_net::trust::{DeviceId, Devices, Folder, StateError};

/// An identity that is about to move to another USB device.
#[derive(Debug)]
pub struct Exchange {
    folder: Folder,
    id: DeviceId,
    generation: u64,
    from: String,
    to: Evidence,
}

impl Exchange {
    /// Begins to move the device's identity to `twin`; `None` if the identity is not a lasting one.
    ///
    /// # Errors
    /// [`StateError`]: nothing has changed.
    pub fn begin(folder: Folder, id: DeviceId, twin: &Found) -> Result<Option<Self>, StateError> {
        let inventory = Inventory::default();
        let to = Evidence::of_usb(twin, &inventory.devices().unwrap_or_default(), &inventory);
        Self::begin_with(folder, id, to)
    }

    fn begin_with(folder: Folder, id: DeviceId, to: Evidence) -> Result<Option<Self>, StateError> {
        let from = Devices::change(&folder, |all| {
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
        Devices::change(&folder, |all| {
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
        Devices::change(&folder, |all| {
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
        let folder = || Folder::at(&path);
        let (first, twin) = ("usb id=1:2 serial=a", Evidence { text: "usb id=1:2 serial=b".into(), is_stable: true });
        let add = |medium: &str| Devices::change(&folder(), |all| all.add(KnownDevice::new(medium, "", "2026".into())));
        let (id, other) = (DeviceId::of(add(first).unwrap()), DeviceId::of(add(&twin.text).unwrap()));
        let found =
            |medium: &str| Devices::load(&folder()).unwrap().find(medium, "").map(|known| (known.id, known.generation));
        let begin = || Exchange::begin_with(folder(), id, twin.clone()).unwrap().expect("it is known");
        let exchange = begin();
        assert_eq!((found(first), found(&twin.text)), (None, Some((other, 0))));
        exchange.undone().unwrap();
        assert_eq!(found(first), Some((id, 0)));
        begin().done().unwrap();
        assert_eq!((found(first), found(&twin.text)), (None, Some((id, 1))));
        assert!(Exchange::begin_with(folder(), random_device_id(), twin.clone()).unwrap().is_none());
        fs::remove_dir_all(path).unwrap();
    }
}
