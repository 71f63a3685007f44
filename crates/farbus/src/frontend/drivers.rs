//! Whether a driver of this machine's kernel took a device that is plugged into it. The kernel plugs in a device that
//! it has no driver for, and says so nowhere but in its log.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io_linux::sys::vhci::VhciPort;

use crate::broker::SystemAccess;
use crate::importer::client::DeviceTarget;
use crate::importer::client::no_disk::why_without_streams;

/// How often the kernel is asked.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often in a row there has to be no driver: udev loads a driver's module after the kernel announced the device.
const LOOKS_WITHOUT: u32 = 6;
/// How often it is asked at most: a device that takes longer than this half minute to be read is not reported.
const LOOKS_MAX: u32 = 60;

/// Asks which drivers took the device on a port of this machine's kernel.
#[derive(Clone)]
pub struct PortDriverLookup {
    look: Arc<dyn Fn() -> Option<Vec<String>> + Send + Sync>,
    /// Whether it is a disk that needs bulk streams.
    lacks_streams: bool,
}

impl PortDriverLookup {
    /// The drivers of the device on `port`, asked through `system`. `lacks_streams`: it is a disk that needs bulk
    /// streams.
    pub fn on(port: VhciPort, system: SystemAccess, lacks_streams: bool) -> Self {
        // A port that was taken away has no drivers to tell of.
        Self { look: Arc::new(move || system.drivers(port).ok().flatten()), lacks_streams }
    }

    /// Their names; none if no driver took the device. `None`: not known.
    pub fn names(&self) -> Option<Vec<String>> {
        (self.look)()
    }
}

/// Calls `tell` with what to tell the user of `target` if no driver takes the device, on a thread of its own.
///
/// Does nothing if the device is not plugged into the kernel (`None`), or if there are no more threads.
pub fn tell_if_no_driver(
    target: &DeviceTarget,
    drivers: Option<&PortDriverLookup>,
    tell: impl FnOnce(&str) + Send + 'static,
) {
    let Some(drivers) = drivers.cloned() else { return };
    let target = target.clone();
    // Without the thread, `farbus status` says it all the same.
    let _ = thread::Builder::new().name("drivers".into()).stack_size(256 << 10).spawn(move || {
        if has_no_driver(|| drivers.names(), || thread::sleep(LOOK_EVERY)) {
            tell(&no_driver(&target, drivers.lacks_streams));
        }
    });
}

/// Looks until a driver has taken the device, or it is certain that none does.
fn has_no_driver(mut look: impl FnMut() -> Option<Vec<String>>, mut pause: impl FnMut()) -> bool {
    let mut looks_without = 0;
    for _ in 0..LOOKS_MAX {
        match look() {
            Some(drivers) if !drivers.is_empty() => return false,
            Some(_) => looks_without += 1,
            None => looks_without = 0,
        }
        if looks_without == LOOKS_WITHOUT {
            return true;
        }
        pause();
    }
    false
}

/// The message about a device that no driver took.
fn no_driver(target: &DeviceTarget, lacks_streams: bool) -> String {
    if lacks_streams {
        let why = why_without_streams(target);
        return format!("{} is plugged in here, and no driver of this kernel took it: {why}", target.shown());
    }
    let target = target.shown();
    format!(
        "{target} is plugged in here, and no driver of this kernel took it: only programs that drive it themselves \
         (libusb) can use it\n  \
         why: 'dmesg'; a disk: farbus attach {target} --via uas; in a virtual machine: farbus attach {target} --via redir"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a device with these answers of the kernel, the last of them for ever, is reported, after how many looks.
    fn reported(answers: &[Option<&[&str]>]) -> (bool, usize) {
        let mut looks = 0;
        let look = || {
            let answer = answers[looks.min(answers.len() - 1)];
            looks += 1;
            answer.map(|names| names.iter().map(|name| (*name).to_owned()).collect())
        };
        (has_no_driver(look, || {}), looks)
    }

    #[test]
    fn device_without_a_driver_is_reported_and_one_whose_driver_comes_late_is_not() {
        assert_eq!(reported(&[None, Some(&[])]), (true, 1 + LOOKS_WITHOUT as usize));
        assert_eq!(reported(&[None, Some(&[]), Some(&["usb-storage"])]), (false, 3));
        assert_eq!(reported(&[Some(&["uas"])]), (false, 1));
        assert_eq!(reported(&[None]), (false, LOOKS_MAX as usize), "a device that was never read is not judged");
        let text = no_driver(&"lab3/disk".parse().unwrap(), false);
        assert!(text.contains("no driver of this kernel took it") && text.contains("lab3/disk --via uas"), "{text}");
        let text = no_driver(&"lab3/disk".parse().unwrap(), true);
        assert!(text.contains("USB/IP carries none") && text.contains("a high-speed port of its host"), "{text}");
        assert!(!text.contains("--via uas"), "that one sends it back to the kernel: {text}");
    }
}
