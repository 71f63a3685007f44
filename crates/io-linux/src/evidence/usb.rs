//! The evidence of a USB device.

use ring::digest;

use super::text::{DeviceEvidence, hex};
use crate::usb::{PluggedDevice, UsbInventory};

impl DeviceEvidence {
    /// The evidence of a USB device; `all` are the devices that are plugged in here.
    pub fn of_usb(found: &PluggedDevice, all: &[PluggedDevice], inventory: &UsbInventory) -> Self {
        let device = &found.descriptors.device;
        let ids = ids_of(found);
        let passing = passing(found);
        let serial = |found: &PluggedDevice| found.serial.clone().filter(|serial| !serial.trim().is_empty());
        if let Some(own) = serial(found) {
            // Some makers give one serial number to many devices. A device that this machine imports may be the very
            // device that it shares, and is no second one then.
            let is_twin = |other: &PluggedDevice| {
                let theirs = &other.descriptors.device;
                other.bus_id != found.bus_id
                    && (found.is_imported || !other.is_imported)
                    && (theirs.vendor, theirs.product) == (device.vendor, device.product)
                    && serial(other).as_ref() == Some(&own)
            };
            return match all.iter().any(is_twin) {
                true => Self::passing(&passing),
                false => Self::stable(&format!("usb id={ids} serial={own}")),
            };
        }
        match inventory.port_of(found) {
            // A port of vhci_hcd is any that was free.
            Some(port) if !found.is_imported => {
                Self::stable(&format!("usb id={ids} port={port} descriptors={}", digest_of(found)))
            }
            _ => Self::passing(&passing),
        }
    }

    /// Whether it is this device's evidence, or was before another device with the same serial number was plugged in or
    /// unplugged.
    pub fn may_be_of_usb(&self, found: &PluggedDevice, inventory: &UsbInventory) -> bool {
        *self == Self::of_usb(found, &[], inventory) || *self == Self::passing(&passing(found))
    }
}

fn ids_of(found: &PluggedDevice) -> String {
    let device = &found.descriptors.device;
    format!("{:04x}:{:04x}", device.vendor, device.product)
}

/// The evidence of a device for as long as it is plugged in.
fn passing(found: &PluggedDevice) -> String {
    format!("usb id={} at={} number={}", ids_of(found), found.bus_id, found.number)
}

/// A digest of a device's descriptors: enough to distinguish it from another device in its port, unless that is of the
/// same model.
fn digest_of(found: &PluggedDevice) -> String {
    let all = &found.descriptors;
    let device = &all.device;
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&device.usb_bcd.to_le_bytes());
    context.update(&device.device_bcd.to_le_bytes());
    context.update(&device.class);
    for index in [device.manufacturer_string, device.product_string] {
        // Blanks at the end were no part of it in earlier releases.
        context.update(all.string(index).unwrap_or_default().trim_end().as_bytes());
        context.update(&[0]);
    }
    all.configurations.iter().for_each(|configuration| context.update(&configuration.bytes));
    hex(&context.finish().as_ref()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::descriptor::DeviceDescriptor;
    use farbus_model::{DescriptorSet, UsbSpeed};
    use std::path::Path;

    fn found(bus_id: &str, product: u16, serial: Option<&str>) -> PluggedDevice {
        let device = DeviceDescriptor { vendor: 0x46d, product, ..DeviceDescriptor::default() };
        PluggedDevice {
            bus_id: bus_id.into(),
            bus: 1,
            number: 2,
            descriptors: DescriptorSet { device, ..DescriptorSet::default() },
            repairs: Default::default(),
            serial: serial.map(str::to_owned),
            speed: UsbSpeed::High,
            configuration: 1,
            interfaces: Vec::new(),
            is_imported: false,
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    #[test]
    fn unique_serial_number_identifies_a_device_in_any_port() {
        let inventory = UsbInventory::at(Path::new("/nowhere"));
        let of = |at: usize, all: &[PluggedDevice]| DeviceEvidence::of_usb(&all[at], all, &inventory);
        let here = of(0, &[found("1-1", 1, Some("A1"))]);
        assert_eq!((here.text.as_str(), here.is_stable), ("usb id=046d:0001 serial=A1", true));
        assert_eq!(of(0, &[found("2-4.1", 1, Some("A1"))]), here);
        assert_ne!(of(0, &[found("1-1", 1, Some("A2"))]), here);
        assert_ne!(of(0, &[found("1-1", 2, Some("A1"))]), here);
        let both = [found("1-1", 1, Some("A1")), found("1-2", 1, Some("A1"))];
        assert!(!of(0, &both).is_stable && !of(1, &both).is_stable && of(0, &both) != of(1, &both));
        assert!(here.may_be_of_usb(&both[0], &inventory) && of(0, &both).may_be_of_usb(&both[0], &inventory));
        assert!(!of(1, &both).may_be_of_usb(&both[0], &inventory));
        assert!(!here.may_be_of_usb(&found("1-1", 1, Some("A2")), &inventory));
        let back = PluggedDevice { is_imported: true, ..found("18-1", 1, Some("A1")) };
        let shared_to_itself = [found("1-1", 1, Some("A1")), back];
        assert_eq!(
            of(0, &shared_to_itself),
            here,
            "the device that this machine attached from itself is no second one"
        );
        assert!(!of(1, &shared_to_itself).is_stable);
    }

    #[test]
    fn device_without_serial_number_is_known_by_port_and_descriptors() {
        let root = std::env::temp_dir().join(format!("farbus-ports-{}", std::process::id()));
        let devices = root.join("sys/bus/usb/devices");
        std::fs::create_dir_all(&devices).unwrap();
        for (bus_id, path) in [("1-1", "pci0/0000:00:14.0/usb1/1-1"), ("2-1", "pci0/0000:00:14.0/usb2/2-1")] {
            let folder = root.join("sys/devices").join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(folder, devices.join(bus_id)).unwrap();
        }
        let inventory = UsbInventory::at(&root);
        let of = |found: PluggedDevice| DeviceEvidence::of_usb(&found, &[], &inventory);
        let here = of(found("1-1", 1, None));
        assert!(here.is_stable && here.text.contains("port=pci0/0000:00:14.0/1 "), "{}", here.text);
        assert_eq!(of(found("2-1", 1, None)), here, "numbers of buses are given in the order of their coming");
        let mut other = found("1-1", 1, None);
        other.descriptors.device.device_bcd = 0x200;
        assert_ne!(of(other), here);
        assert!(!of(PluggedDevice { is_imported: true, ..found("1-1", 1, None) }).is_stable);
        std::fs::remove_dir_all(root).unwrap();
    }
}
