//! Real devices that a command asked the daemon to share, and that are plugged in later or once more.
//!
//! The daemon shares such a device until it is unplugged. The command, which has the rights of its user, passes the
//! next one that matches, as long as it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use farbus_io_linux::usb::{HotplugMonitor, PluggedDevice, UsbInventory};
use tracing::{info, warn};

use super::words::ShareSpec;

/// How soon to look again, without an event: for a device that is not ready or cannot be shared yet, and where no
/// events are heard.
const PAUSE: Duration = Duration::from_secs(1);

/// A device's bus id, and its number, which is new each time it is plugged in.
type PlugInstance = (String, u32);

/// The selectors of devices to follow.
pub(super) struct ReplugFollower {
    called: Vec<ShareSpec>,
    /// Devices that were passed, until they are unplugged.
    passed: BTreeSet<PlugInstance>,
    /// Devices that could not be shared, each with the reason that was reported last.
    troubles: BTreeMap<PlugInstance, String>,
    hotplug: Option<HotplugMonitor>,
    is_waiting: bool,
}

impl ReplugFollower {
    /// Follows the real devices of `what`; those of `passed` are shared already.
    pub fn new(what: &[ShareSpec], passed: BTreeSet<PlugInstance>) -> Self {
        let called: Vec<ShareSpec> = what.iter().filter(|called| called.what.usb().is_some()).cloned().collect();
        let hotplug = (!called.is_empty()).then(HotplugMonitor::new).transpose();
        let hotplug = hotplug.inspect_err(|error| info!(%error, "what is plugged in is seen a little later"));
        Self { called, passed, troubles: BTreeMap::new(), hotplug: hotplug.unwrap_or_default(), is_waiting: true }
    }

    /// Where a device is.
    pub fn place_of(found: &PluggedDevice) -> PlugInstance {
        (found.bus_id.clone(), found.number)
    }

    /// Whether nothing is followed.
    pub fn is_empty(&self) -> bool {
        self.called.is_empty()
    }

    /// The descriptor that is readable when something is plugged in or unplugged.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.hotplug.as_ref().map(AsFd::as_fd)
    }

    /// After which time to look again at the latest.
    pub fn pause(&self) -> Option<Duration> {
        (!self.is_empty() && (self.is_waiting || self.hotplug.is_none())).then_some(PAUSE)
    }

    /// Does not follow any more what was typed so.
    pub fn leave(&mut self, text: &str) {
        self.called.retain(|called| called.text != text);
    }

    /// Passes by `share` what matches and was not passed yet.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn look<E: ToString>(
        &mut self,
        mut share: impl FnMut(&ShareSpec, &PluggedDevice) -> Result<(), E>,
    ) -> io::Result<()> {
        self.is_waiting = false;
        if self.is_empty() {
            return Ok(());
        }
        if let Some(hotplug) = &self.hotplug {
            hotplug.has_changed()?;
        }
        let all = UsbInventory::default().devices()?;
        // A device that is being reset has no number meanwhile, and has the same one afterwards.
        self.passed.retain(|(bus_id, number)| {
            all.iter().any(|found| found.bus_id == *bus_id && (found.number == *number || found.is_being_reset()))
        });
        for found in &all {
            let selects = |called: &&ShareSpec| called.what.usb().is_some_and(|selector| selector.matches(found));
            let Some(called) = self.called.iter().find(selects) else { continue };
            let location = Self::place_of(found);
            if self.passed.contains(&location) {
                continue;
            }
            if found.configuration == 0 || found.is_being_reset() {
                // The kernel is about to choose a configuration and bind drivers.
                self.is_waiting = true;
                continue;
            }
            match share(called, found) {
                Ok(()) => {
                    self.troubles.remove(&location);
                    self.passed.insert(location);
                }
                Err(error) => {
                    self.is_waiting = true;
                    let why = error.to_string();
                    // Each trouble is reported once.
                    if self.troubles.get(&location) != Some(&why) {
                        warn!(device = called.text, usb = found.bus_id, why, "not shared yet");
                    }
                    self.troubles.insert(location, why);
                }
            }
        }
        Ok(())
    }
}
