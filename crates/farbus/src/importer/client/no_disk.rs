//! Devices that a front end for disks cannot show: why, and what can.

use farbus_host::serial::port::first_port;
use farbus_model::serial_port::SerialChip;
use farbus_model::{DescriptorSet, UsbSpeed};

use super::target::DeviceTarget;

/// The class of an interface that stores data (USB mass storage class, `bInterfaceClass`).
const MASS_STORAGE: u8 = 0x08;
/// SCSI by UAS, and by Bulk-Only (USB mass storage class overview 1.4, tables 1 to 3).
const UAS: [u8; 3] = [MASS_STORAGE, 0x06, 0x62];
const BULK_ONLY: u8 = 0x50;

/// Whether a device with these interfaces (class, subclass, protocol) is known to be no disk.
pub(super) fn is_no_disk(interfaces: &[[u8; 3]]) -> bool {
    !interfaces.is_empty() && interfaces.iter().all(|[class, ..]| *class != MASS_STORAGE)
}

/// Whether a device is a disk that speaks UAS and not Bulk-Only.
fn speaks_uas_alone(descriptors: &DescriptorSet) -> bool {
    let settings = descriptors.configurations.iter().flat_map(|configuration| &configuration.settings);
    let classes: Vec<[u8; 3]> = settings.map(|setting| setting.class).collect();
    classes.contains(&UAS) && !classes.iter().any(|class| class[0] == MASS_STORAGE && class[2] == BULK_ONLY)
}

/// Whether a device is a disk of which no kernel far away has any use: UAS at SuperSpeed needs bulk streams (USB
/// Attached SCSI §4.3), which USB/IP has no word for.
pub(crate) fn lacks_streams(descriptors: &DescriptorSet, speed: UsbSpeed) -> bool {
    speed >= UsbSpeed::Super && speaks_uas_alone(descriptors)
}

/// What is missing of a disk that [`lacks_streams`], and where it works.
pub(crate) fn why_without_streams(target: &DeviceTarget) -> String {
    format!(
        "this disk speaks UAS alone, which at SuperSpeed needs bulk streams; USB/IP carries none\n  \
         plug it into a high-speed port of its host (USB 2.0), or behind a hub of USB 2.0, and then: \
         farbus attach {} --via kernel",
        target.shown()
    )
}

/// What can show a device that farbus's own driver of disks does not drive. `device`: its descriptors and speed, if
/// they were read.
pub(super) fn no_disk(target: &DeviceTarget, device: Option<(&DescriptorSet, UsbSpeed)>) -> String {
    let shown = target.shown();
    match device {
        Some((descriptors, speed)) if lacks_streams(descriptors, speed) => why_without_streams(target),
        Some((descriptors, _)) if speaks_uas_alone(descriptors) => format!(
            "this disk speaks UAS alone, and --via fuse, nbd and uas need Bulk-Only\n  \
             try: farbus attach {shown} --via kernel (needs vhci-hcd), or --via redir for a virtual machine"
        ),
        Some((descriptors, _)) if first_port(descriptors).is_ok() => no_disk_but_serial(target),
        _ => format!(
            "it is no disk, and --via fuse, nbd and uas show disks only\n  \
             try: farbus attach {shown} --via kernel (needs vhci-hcd), or --via redir for a virtual machine,\n  \
             or for one program: farbus run {shown} -- PROGRAM"
        ),
    }
}

/// What can show a serial port.
pub(super) fn no_disk_but_serial(target: &DeviceTarget) -> String {
    format!(
        "it is a serial port, and --via fuse, nbd and uas show disks only\n  \
         try: farbus attach {shown} --via rfc2217 (pyserial, esptool), --via pty or --via tcp,\n  \
         --via kernel (needs vhci-hcd), or --via redir for a virtual machine",
        shown = target.shown()
    )
}

/// Whether a device with these ids and interfaces (class, subclass, protocol) has a serial port.
pub(super) fn is_serial(ids: (u16, u16), interfaces: &[[u8; 3]]) -> bool {
    SerialChip::of_ids(ids).is_some() || interfaces.iter().any(|[class, subclass, _]| (*class, *subclass) == (2, 2))
}

#[cfg(test)]
mod tests {
    use farbus_gadgets::storage::{AttachedScsi, StorageGadget, StorageOptions};
    use farbus_model::block::MemoryStore;
    use farbus_model::{Device, StoreDevice};

    use super::*;

    fn hint(device: &dyn Device, speed: UsbSpeed) -> String {
        no_disk(&"lab3/disk".parse().unwrap(), Some((device.descriptors(), speed)))
    }

    #[test]
    fn disk_that_speaks_uas_alone_is_sent_to_the_kernel_or_to_a_port_but_not_in_a_circle() {
        let store = || MemoryStore::new(vec![0; 1 << 20]);
        let options = StorageOptions::default;
        let uas = AttachedScsi::device(Box::new(StoreDevice::new(Box::new(store()))), options()).unwrap();
        let fast = hint(&uas, UsbSpeed::Super);
        assert!(fast.contains("needs bulk streams") && fast.contains("a high-speed port of its host"), "{fast}");
        assert!(fast.contains("and then: farbus attach lab3/disk --via kernel"), "{fast}");
        let slower = hint(&uas, UsbSpeed::High);
        assert!(slower.contains("speaks UAS alone") && slower.contains("lab3/disk --via kernel"), "{slower}");
        assert!(!slower.contains("streams"), "{slower}");
        let bulk_only = StorageGadget::device(Box::new(store()), options()).unwrap();
        assert!(!lacks_streams(bulk_only.descriptors(), UsbSpeed::Super));
    }
}
