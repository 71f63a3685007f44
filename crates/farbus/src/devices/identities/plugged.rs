//! The evidence of each USB device that was identified here and is plugged in. It stays the same, whatever is plugged
//! in later.
//!
//! A serial number is lasting evidence while no other device here has it. If a device with an equal one is plugged in
//! while the first is shared, the first keeps its evidence: its bus and device number identify it until it is
//! unplugged. This process's replacement inherits the list.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farbus_io_linux::evidence::DeviceEvidence;
use farbus_io_linux::usb::{PluggedDevice, UsbInventory};
use serde::{Deserialize, Serialize};

/// A USB device that was identified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownUsb {
    /// The number of its bus.
    pub bus: u32,
    /// The device's number on the bus, until it is unplugged.
    pub device: u32,
    /// The text of its evidence.
    pub evidence: String,
    /// Whether the evidence stays the same after a restart of this machine.
    pub is_stable: bool,
}

/// The USB devices that were identified, by bus and device number.
#[derive(Debug, Default)]
pub(super) struct PluggedUsbEvidence(Mutex<BTreeMap<(u32, u32), DeviceEvidence>>);

impl PluggedUsbEvidence {
    /// Begins with the devices that the process before this one had identified.
    pub fn inherited(known: &[KnownUsb]) -> Self {
        let evidence = |known: &KnownUsb| DeviceEvidence { text: known.evidence.clone(), is_stable: known.is_stable };
        Self(Mutex::new(known.iter().map(|known| ((known.bus, known.device), evidence(known))).collect()))
    }

    /// All identified devices, for this process's replacement.
    pub fn known(&self) -> Vec<KnownUsb> {
        let known = |(&(bus, device), evidence): (&(u32, u32), &DeviceEvidence)| KnownUsb {
            bus,
            device,
            evidence: evidence.text.clone(),
            is_stable: evidence.is_stable,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(known).collect()
    }

    /// The evidence of `found`, one of `all` devices that are plugged in now. A device that was identified before keeps
    /// its evidence.
    pub fn evidence_of(
        &self,
        found: &PluggedDevice,
        all: &[PluggedDevice],
        inventory: &UsbInventory,
    ) -> DeviceEvidence {
        // A device has no number while its port is reset.
        if found.is_being_reset() {
            return DeviceEvidence::of_usb(found, all, inventory);
        }
        let mut plugged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let location = (found.bus, found.number);
        if let Some(known) = plugged.get(&location).filter(|known| known.may_be_of_usb(found, inventory)) {
            return known.clone();
        }
        let is_plugged = |bus: u32, number: u32| {
            // The entry of a device in reset stays: the device gets its number back.
            all.iter().any(|other| other.bus == bus && (other.number == number || other.is_being_reset()))
        };
        plugged.retain(|&(bus, number), _| is_plugged(bus, number));
        let evidence = DeviceEvidence::of_usb(found, all, inventory);
        plugged.insert(location, evidence.clone());
        evidence
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use farbus_model::descriptor::DeviceDescriptor;

    use super::*;

    /// A system's root directory made of files.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("farbus-plugged-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("sys/bus/usb/devices")).unwrap();
            Self(root)
        }

        fn folder(&self, bus_id: &str) -> PathBuf {
            self.0.join("sys/bus/usb/devices").join(bus_id)
        }

        /// Plugs in a device.
        fn plug(&self, bus_id: &str, number: u32, serial: &str) {
            let folder = self.folder(bus_id);
            fs::create_dir_all(&folder).unwrap();
            let device = DeviceDescriptor {
                vendor: 0x46f4,
                product: 1,
                serial_string: 3,
                configurations: 1,
                ..DeviceDescriptor::default()
            };
            let configuration = [9, 2, 18, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 0, 255, 0, 0, 0];
            fs::write(folder.join("descriptors"), [&device.to_bytes()[..], &configuration].concat()).unwrap();
            let number = number.to_string();
            for (name, text) in [("busnum", "1"), ("devnum", &number), ("speed", "480"), ("serial", serial)] {
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
        }

        fn unplug(&self, bus_id: &str) {
            fs::remove_dir_all(self.folder(bus_id)).unwrap();
        }

        fn evidence(&self, plugged: &PluggedUsbEvidence, bus_id: &str) -> DeviceEvidence {
            let inventory = UsbInventory::at(&self.0);
            let all = inventory.devices().unwrap();
            let found = all.iter().find(|found| found.bus_id == bus_id).expect("it is plugged in");
            plugged.evidence_of(found, &all, &inventory)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The list of a replacement process, passed in the form that is used between releases.
    fn successor_of(plugged: &PluggedUsbEvidence) -> PluggedUsbEvidence {
        let passed: Vec<KnownUsb> = serde_json::from_str(&serde_json::to_string(&plugged.known()).unwrap()).unwrap();
        PluggedUsbEvidence::inherited(&passed)
    }

    #[test]
    fn device_keeps_its_evidence_beside_a_twin_and_across_a_handover() {
        let root = Root::new("twin");
        root.plug("1-1", 4, "A1");
        let plugged = PluggedUsbEvidence::default();
        let first = root.evidence(&plugged, "1-1");
        assert!(first.is_stable);
        root.plug("1-2", 5, "A1");
        assert_eq!(root.evidence(&plugged, "1-1"), first);
        let second = root.evidence(&plugged, "1-2");
        assert!(!second.is_stable && second != first, "the one that came later is told from it");
        let successor = successor_of(&plugged);
        assert_eq!(root.evidence(&successor, "1-1"), first);
        assert_eq!(root.evidence(&successor, "1-2"), second);
        assert!(
            !root.evidence(&PluggedUsbEvidence::default(), "1-1").is_stable,
            "who begins anew cannot tell which was first"
        );
        // The first device goes: the second keeps its evidence.
        root.unplug("1-1");
        assert_eq!(root.evidence(&successor_of(&successor), "1-2"), second);
    }

    #[test]
    fn evidence_of_an_unplugged_device_is_forgotten() {
        let root = Root::new("left");
        root.plug("1-1", 4, "A1");
        let plugged = PluggedUsbEvidence::default();
        let first = root.evidence(&plugged, "1-1");
        // Another device at its port, even with the same number, has other evidence.
        for (number, serial) in [(6, "A2"), (4, "A2")] {
            root.plug("1-1", number, serial);
            let other = root.evidence(&plugged, "1-1");
            assert!(other != first && other.is_stable);
        }
        assert_eq!(plugged.known().len(), 1, "what is gone is forgotten");
        // Both are plugged in anew: it is unknown which one was here before.
        root.plug("1-1", 7, "A1");
        root.plug("1-2", 8, "A1");
        assert!(!root.evidence(&plugged, "1-1").is_stable && !root.evidence(&plugged, "1-2").is_stable);
    }
}
