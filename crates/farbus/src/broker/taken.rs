//! Devices that were taken from this machine's drivers: the kernel takes them from a dead process, but looks for no
//! driver.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use farbus_io::usb::Found;

/// Where the kernel is told to look for a driver.
const PROBE: &str = "/sys/bus/usb/drivers_probe";
/// Where it says which driver an interface has.
const DEVICES: &str = "/sys/bus/usb/devices";
/// How long a dead process may be in the kernel's hands.
const FREE_TIME_MAX: Duration = Duration::from_secs(10);
const FREE_POLL: Duration = Duration::from_millis(20);
/// More real devices than a machine shares.
const INHERITED_MAX: usize = 1024;

/// What was taken and not given back, by bus and number.
#[derive(Debug, Default)]
pub(super) struct Taken {
    devices: BTreeMap<Number, Held>,
    /// Open files of the process before this one, which may hold interfaces.
    inherited: BTreeMap<Number, OwnedFd>,
}

/// Bus, and device on it.
type Number = (u32, u32);

/// A device that was taken. The open file is what holds its interfaces: whoever has it has them.
#[derive(Debug)]
struct Held {
    interfaces: Vec<String>,
    node: OwnedFd,
}

impl Taken {
    /// This device is taken now, by `node` or by what another process had open; that, for whoever uses it. All of its
    /// interfaces: one that has just been plugged in has no driver yet.
    pub(super) fn take(&mut self, found: &Found, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
        let number = (found.bus, found.number);
        let node = self.inherited.remove(&number).map_or_else(open, Ok)?;
        let named = found.interfaces.iter().map(|i| format!("{}:{}.{}", found.bus_id, found.configuration, i.number));
        let (interfaces, for_user) = (named.collect(), node.try_clone()?);
        self.devices.insert(number, Held { interfaces, node });
        Ok(for_user)
    }

    /// Another process had this device open. Says whether there is room for it.
    pub(super) fn inherit(&mut self, bus: u32, device: u32, node: OwnedFd) -> bool {
        let has_room = self.inherited.len() < INHERITED_MAX;
        if has_room {
            self.inherited.insert((bus, device), node);
        }
        has_room
    }

    /// What is open, for another process.
    pub(super) fn open(&self) -> impl Iterator<Item = (Number, BorrowedFd<'_>)> {
        self.devices.iter().map(|(&number, held)| (number, held.node.as_fd()))
    }

    /// This one was given back, or is gone, or another process has it.
    pub(super) fn give_back(&mut self, bus: u32, device: u32) {
        self.devices.remove(&(bus, device));
    }

    /// Hands what is left to the kernel's drivers.
    pub(super) fn end(self) {
        drop(self.inherited);
        let interfaces: Vec<String> =
            self.devices.into_values().flat_map(|Held { interfaces, .. }| interfaces).collect();
        // Whoever had them open has ended, and we have closed them.
        for interface in interfaces {
            wait_until_free(&interface);
            probe(&interface, Path::new(PROBE));
        }
    }
}

/// The end of the other half is heard while the kernel still takes it apart; what usbfs has until then is not probed.
fn wait_until_free(interface: &str) {
    let driver = Path::new(DEVICES).join(interface).join("driver");
    let until = Instant::now() + FREE_TIME_MAX;
    while fs::read_link(&driver).is_ok_and(|driver| driver.ends_with("usbfs")) && Instant::now() < until {
        thread::sleep(FREE_POLL);
    }
}

fn probe(interface: &str, file: &Path) {
    // Without the right to it, or after an unplugging, there is nothing to be done and nobody to be told.
    let _ = OpenOptions::new().write(true).open(file).and_then(|mut file| file.write_all(interface.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io::usb::Interface;
    use farbus_model::{Descriptors, Speed};

    fn found(bus_id: &str, number: u32) -> Found {
        let interface = |number| Interface { number, class: [8, 6, 80], driver: None };
        Found {
            bus_id: bus_id.into(),
            bus: 1,
            number,
            descriptors: Descriptors::default(),
            serial: None,
            speed: Speed::High,
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
    fn what_another_process_had_open_is_not_opened_again() {
        let mut taken = Taken::default();
        assert!(taken.inherit(1, 2, null().unwrap()));
        let never = || Err(io::Error::other("it is open already"));
        taken.take(&found("1-1", 2), never).unwrap();
        assert!(taken.take(&found("1-1", 2), never).is_err(), "it was inherited once");
        assert_eq!(taken.open().map(|(number, _)| number).collect::<Vec<_>>(), [(1, 2)]);
        taken.give_back(1, 2);
        assert_eq!(taken.open().count(), 0);
    }

    #[test]
    fn what_was_not_given_back_is_left_and_each_interface_is_told_alone() {
        let mut taken = Taken::default();
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
