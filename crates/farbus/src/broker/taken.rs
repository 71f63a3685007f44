//! Devices that were taken from this machine's drivers: the kernel takes them from a dead process, but looks for no driver.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
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

/// What was taken and not given back, by bus and number.
#[derive(Debug, Default)]
pub(super) struct Taken {
    interfaces: BTreeMap<(u32, u32), Vec<String>>,
}

impl Taken {
    /// This device is taken now. All of its interfaces: one that has just been plugged in has no driver yet.
    pub(super) fn take(&mut self, found: &Found) {
        let named = found.interfaces.iter().map(|i| format!("{}:{}.{}", found.bus_id, found.configuration, i.number));
        self.interfaces.insert((found.bus, found.number), named.collect());
    }

    /// This one was given back, or is gone.
    pub(super) fn give_back(&mut self, bus: u32, device: u32) {
        self.interfaces.remove(&(bus, device));
    }

    /// Hands what is left to the kernel's drivers.
    pub(super) fn end(self) {
        for interface in self.interfaces.into_values().flatten() {
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

    #[test]
    fn what_was_not_given_back_is_left_and_each_interface_is_told_alone() {
        let mut taken = Taken::default();
        taken.take(&found("1-1", 2));
        taken.take(&found("1-4", 3));
        taken.give_back(1, 2);
        taken.give_back(1, 9);
        let left: Vec<_> = taken.interfaces.into_values().flatten().collect();
        assert_eq!(left, ["1-4:1.0", "1-4:1.1"]);
        let file = std::env::temp_dir().join(format!("farbus-probe-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        left.iter().for_each(|interface| probe(interface, &file));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1-4:1.1");
        fs::remove_file(file).unwrap();
    }
}
