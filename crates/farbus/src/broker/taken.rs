//! USB devices that were taken from this machine's drivers. When a process dies, the kernel releases its devices but
//! does not bind drivers to them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farbus_io_linux::usb::PluggedDevice;

/// The file that makes the kernel look for a driver.
const PROBE: &str = "/sys/bus/usb/drivers_probe";
/// The folder that shows which driver an interface has.
const DEVICES: &str = "/sys/bus/usb/devices";
/// How long the kernel may take to clean up a dead process, and how often that is checked.
const FREE_TIME_MAX: Duration = Duration::from_secs(10);
const FREE_POLL: Duration = Duration::from_millis(20);
/// The most nodes that are kept from another process. No machine shares as many devices.
const INHERITED_MAX: usize = 1024;

/// Devices that are open, by bus and number.
#[derive(Debug, Default)]
pub(super) struct DetachedUsbDevices {
    devices: BTreeMap<UsbBusAddress, DetachedUsbNode>,
    /// Open nodes of the process before this one, which may hold interfaces.
    inherited: BTreeMap<UsbBusAddress, OwnedFd>,
    /// Devices whose nodes the owner opened and passed, until they are given back.
    passed: BTreeSet<UsbBusAddress>,
}

/// The bus, and the device on it.
type UsbBusAddress = (u32, u32);

/// A device that was taken. Its interfaces are held by the open node: the process that has the node has them.
#[derive(Debug)]
struct DetachedUsbNode {
    interfaces: Vec<String>,
    node: OwnedFd,
}

impl DetachedUsbDevices {
    /// Opens a device, or uses the node that another process had open, and returns a duplicate for the confined
    /// process. Notes all of the device's interfaces, because one that has just been plugged in has no driver yet.
    pub(super) fn take(
        &mut self,
        found: &PluggedDevice,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        let number = (found.bus, found.number);
        let node = self.inherited.remove(&number).map_or_else(open, Ok)?;
        let named = found.interfaces.iter().map(|i| format!("{}:{}.{}", found.bus_id, found.configuration, i.number));
        let (interfaces, for_user) = (named.collect(), node.try_clone()?);
        self.devices.insert(number, DetachedUsbNode { interfaces, node });
        Ok(for_user)
    }

    /// Keeps the node of a device that another process had open. Returns whether there was room for it.
    pub(super) fn inherit(&mut self, bus: u32, device: u32, node: OwnedFd) -> bool {
        let has_room = self.inherited.len() < INHERITED_MAX;
        if has_room {
            self.inherited.insert((bus, device), node);
        }
        has_room
    }

    /// Keeps the node of a device that the owner opened. Returns whether there was room for it.
    pub(super) fn pass(&mut self, bus: u32, device: u32, node: OwnedFd) -> bool {
        let has_room = self.inherit(bus, device, node);
        if has_room {
            self.passed.insert((bus, device));
        }
        has_room
    }

    /// Whether the owner has passed the node of this device.
    pub(super) fn is_passed(&self, bus: u32, device: u32) -> bool {
        self.passed.contains(&(bus, device))
    }

    /// The open nodes, for another process.
    pub(super) fn open(&self) -> impl Iterator<Item = (UsbBusAddress, BorrowedFd<'_>)> {
        self.devices.iter().map(|(&number, held)| (number, held.node.as_fd()))
    }

    /// Forgets a device that was given back, is gone, or is now open in another process.
    pub(super) fn give_back(&mut self, bus: u32, device: u32) {
        self.devices.remove(&(bus, device));
        if self.passed.remove(&(bus, device)) {
            self.inherited.remove(&(bus, device));
        }
    }

    /// Returns the remaining devices to the kernel's drivers.
    pub(super) fn end(self) {
        drop(self.inherited);
        let interfaces: Vec<String> =
            self.devices.into_values().flat_map(|DetachedUsbNode { interfaces, .. }| interfaces).collect();
        // Both processes have closed the nodes.
        for interface in interfaces {
            wait_until_free(&interface);
            probe(&interface, Path::new(PROBE));
        }
    }
}

/// Waits until usbfs has released the interface: the end of the confined process is seen before the kernel has cleaned
/// up.
fn wait_until_free(interface: &str) {
    let driver = Path::new(DEVICES).join(interface).join("driver");
    let until = Instant::now() + FREE_TIME_MAX;
    while fs::read_link(&driver).is_ok_and(|driver| driver.ends_with("usbfs")) && Instant::now() < until {
        thread::sleep(FREE_POLL);
    }
}

fn probe(interface: &str, file: &Path) {
    // Without the permission, or after an unplugging, nothing can be done.
    let _ = OpenOptions::new().write(true).open(file).and_then(|mut file| file.write_all(interface.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_linux::usb::ActiveInterface;
    use farbus_model::{DescriptorSet, UsbSpeed};

    fn found(bus_id: &str, number: u32) -> PluggedDevice {
        let interface = |number| ActiveInterface { number, class: [8, 6, 80], driver: None };
        PluggedDevice {
            bus_id: bus_id.into(),
            bus: 1,
            number,
            descriptors: DescriptorSet::default(),
            repairs: Default::default(),
            serial: None,
            speed: UsbSpeed::High,
            configuration: 1,
            interfaces: vec![interface(0), interface(1)],
            is_imported: false,
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    fn null() -> io::Result<OwnedFd> {
        Ok(fs::File::open("/dev/null")?.into())
    }

    #[test]
    fn inherited_node_is_used_once_in_place_of_opening() {
        let mut taken = DetachedUsbDevices::default();
        assert!(taken.inherit(1, 2, null().unwrap()));
        let never = || Err(io::Error::other("it is open already"));
        taken.take(&found("1-1", 2), never).unwrap();
        assert!(taken.take(&found("1-1", 2), never).is_err(), "it was inherited once");
        assert_eq!(taken.open().map(|(number, _)| number).collect::<Vec<_>>(), [(1, 2)]);
        taken.give_back(1, 2);
        assert_eq!(taken.open().count(), 0);
    }

    #[test]
    fn passed_node_is_used_in_place_of_opening_until_it_is_given_back() {
        let mut taken = DetachedUsbDevices::default();
        assert!(taken.pass(1, 2, null().unwrap()) && taken.is_passed(1, 2));
        let never = || Err(io::Error::other("it may not be opened"));
        taken.take(&found("1-1", 2), never).unwrap();
        assert!(taken.is_passed(1, 2) && taken.take(&found("1-1", 2), never).is_err());
        assert!(taken.pass(1, 2, null().unwrap()));
        taken.give_back(1, 2);
        assert!(!taken.is_passed(1, 2) && taken.take(&found("1-1", 2), never).is_err());
    }

    #[test]
    fn each_interface_of_a_device_not_given_back_is_probed() {
        let mut taken = DetachedUsbDevices::default();
        taken.take(&found("1-1", 2), null).unwrap();
        taken.take(&found("1-4", 3), null).unwrap();
        taken.give_back(1, 2);
        taken.give_back(1, 9);
        let left: Vec<_> = taken.devices.into_values().flat_map(|held| held.interfaces).collect();
        assert_eq!(left, ["1-4:1.0", "1-4:1.1"]);
        let file = std::env::temp_dir().join(format!("farbus-probe-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        left.iter().for_each(|interface| probe(interface, &file));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1-4:1.1");
        fs::remove_file(file).unwrap();
    }
}
