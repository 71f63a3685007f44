//! This machine's own USB devices, shared.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::broker::Broker;
use crate::guardian::Guardian;
use farbus_io::link::{Interest, Wake, wait};
use farbus_io::usb::{Found, Hotplug, Interface, Inventory, Obstacle, OpenError, Selector, UsbDevice};
use farbus_session::DeviceRecord;
use tracing::{info, warn};

use crate::share::{Share, ShareError};

/// Why real devices are not shared.
#[derive(Debug)]
pub enum UsbError {
    /// Nothing that is plugged in is meant.
    NoneFound(Selector),
    /// Something stands against it.
    Obstacle {
        /// Its bus id.
        bus_id: String,
        /// What.
        obstacle: Obstacle,
    },
    /// It could not be taken.
    Open {
        /// Its bus id.
        bus_id: String,
        /// Why.
        error: OpenError,
    },
    /// It could not be offered.
    Share(ShareError),
    /// sysfs could not be read.
    System(io::Error),
}

impl fmt::Display for UsbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsbError::NoneFound(selector) => {
                write!(f, "no USB device is {selector}\n  'farbus share --list' shows what there is")
            }
            UsbError::Obstacle { bus_id, obstacle: obstacle @ Obstacle::NoPermission { .. } } => write!(
                f,
                "usb:{bus_id}: {obstacle}\n  run as root, or let a udev rule give it to you (guide, \"Real devices\")"
            ),
            UsbError::Obstacle { bus_id, obstacle } => write!(f, "usb:{bus_id}: {obstacle}"),
            UsbError::Open { bus_id, error } => write!(f, "usb:{bus_id}: {error}"),
            UsbError::Share(error) => error.fmt(f),
            UsbError::System(error) => write!(f, "cannot read what USB devices there are: {error}"),
        }
    }
}

impl std::error::Error for UsbError {}

/// Which of this machine's devices are meant, and which of them are shared.
#[derive(Debug, Default)]
pub struct Shared {
    selectors: Vec<Selector>,
    devices: Vec<Tracked>,
    /// What was said of one that cannot be had, so that it is said once.
    complaints: BTreeMap<String, String>,
    /// Who gives them back should we be killed.
    guardian: Option<Guardian>,
    /// Who opens those that come later, where we may not.
    broker: Option<Arc<Broker>>,
}

/// A device that is shared.
#[derive(Debug)]
struct Tracked {
    /// Where it is plugged in, and its number there, which another one at the same place has not.
    plugged: (String, u32),
    /// Its bus id on the wire.
    export: String,
    /// Its interfaces, as the kernel names them.
    interfaces: Vec<String>,
}

impl Shared {
    /// Shares every device that `selector` means, and remembers it. All or none: the first that cannot be had ends it.
    ///
    /// # Errors
    /// [`UsbError`].
    pub fn add(&mut self, share: &Share, selector: &Selector) -> Result<Vec<DeviceRecord>, UsbError> {
        let all = Inventory::default().devices().map_err(UsbError::System)?;
        let is_new = |found: &Found| self.devices.iter().all(|tracked| tracked.plugged.0 != found.bus_id);
        let meant: Vec<Found> = all.into_iter().filter(|found| selector.matches(found) && is_new(found)).collect();
        if meant.is_empty() {
            return Err(UsbError::NoneFound(selector.clone()));
        }
        let opened: Vec<UsbDevice> = meant.iter().map(open).collect::<Result<_, UsbError>>()?;
        self.selectors.push(selector.clone());
        meant.iter().zip(opened).map(|(found, device)| self.offer(share, found, device)).collect()
    }

    /// Which devices are meant, in the words of `farbus share`.
    pub fn meant(&self) -> Vec<String> {
        self.selectors.iter().map(Selector::to_string).collect()
    }

    /// From now on this process may open no node, and `broker` does.
    pub fn open_through(&mut self, broker: Arc<Broker>) {
        self.broker = Some(broker);
    }

    fn open(&self, found: &Found) -> Result<UsbDevice, UsbError> {
        let Some(broker) = &self.broker else { return open(found) };
        let bus_id = found.bus_id.clone();
        match &found.obstacle {
            // What this process may not, the broker may.
            None | Some(Obstacle::NoPermission { .. }) => {}
            Some(obstacle) => return Err(UsbError::Obstacle { bus_id, obstacle: obstacle.clone() }),
        }
        let node = broker.open_usb(found.bus, found.number);
        let opened = node.map_err(|error| OpenError::Os { doing: "opening it", error });
        opened.and_then(|node| UsbDevice::open_through(node, found)).map_err(|error| UsbError::Open { bus_id, error })
    }

    /// Whether any device is meant.
    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty()
    }

    fn offer(&mut self, share: &Share, found: &Found, device: UsbDevice) -> Result<DeviceRecord, UsbError> {
        let record = share.add(&name(found), device).map_err(UsbError::Share)?;
        let plugged = (found.bus_id.clone(), found.number);
        let interfaces = interfaces(found);
        self.guard(&interfaces);
        self.devices.push(Tracked { plugged, export: record.bus_id.clone(), interfaces });
        Ok(record)
    }

    fn guard(&mut self, interfaces: &[String]) {
        if self.guardian.is_none() {
            match Guardian::start() {
                Ok(guardian) => self.guardian = Some(guardian),
                Err(error) => warn!(%error, "should farbus be killed, nobody gives its devices back to their drivers"),
            }
        }
        if let Some(guardian) = &mut self.guardian {
            guardian.taken(interfaces);
        }
    }

    /// Everything was given back: the guardian may go.
    pub fn dismiss(&mut self) {
        if let Some(mut guardian) = self.guardian.take() {
            for device in &self.devices {
                guardian.given_back(&device.interfaces);
            }
        }
    }

    /// Makes what is shared what is plugged in. Says whether there is something that may become possible by waiting: a device
    /// whose session has not noticed yet that it is gone, a node that udev has not given to us yet.
    fn reconcile(&mut self, share: &Share) -> io::Result<bool> {
        let all = Inventory::default().devices()?;
        let is_there = |plugged: &(String, u32)| all.iter().any(|f| (&f.bus_id, f.number) == (&plugged.0, plugged.1));
        self.devices.retain(|tracked| {
            let stays = is_there(&tracked.plugged) || !share.remove_gone(&tracked.export);
            if !stays {
                if let Some(guardian) = &mut self.guardian {
                    guardian.given_back(&tracked.interfaces);
                }
                info!(device = %tracked.export, usb = %tracked.plugged.0, "unplugged");
            }
            stays
        });
        self.complaints.retain(|bus_id, _| all.iter().any(|found| found.bus_id == *bus_id));
        let mut is_waiting = self.devices.iter().any(|tracked| !is_there(&tracked.plugged));
        let meant = all.iter().filter(|found| self.selectors.iter().any(|selector| selector.matches(found)));
        // One at the same place as another that is still being let go of waits for it.
        let new = meant.filter(|found| self.devices.iter().all(|tracked| tracked.plugged.0 != found.bus_id));
        for found in new.collect::<Vec<_>>() {
            if found.configuration == 0 {
                // The kernel is about to choose one, and to look for drivers; what is taken before is taken from nobody.
                is_waiting = true;
                continue;
            }
            match self.open(found).and_then(|device| self.offer(share, found, device)) {
                Ok(record) => {
                    self.complaints.remove(&found.bus_id);
                    info!(device = %record.bus_id, usb = %found.bus_id, "plugged in");
                }
                Err(error) => {
                    is_waiting = true;
                    let said = error.to_string();
                    if self.complaints.get(&found.bus_id) != Some(&said) {
                        warn!("{said}");
                        self.complaints.insert(found.bus_id.clone(), said);
                    }
                }
            }
        }
        Ok(is_waiting)
    }
}

/// Follows what is plugged in and pulled out, on a thread of its own, until it is dropped.
pub struct Follower {
    stop: Arc<(AtomicBool, Wake)>,
    thread: Option<JoinHandle<Shared>>,
}

/// How often what may become possible is tried again, and how many times in a row.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES: u32 = 50;

impl Follower {
    /// Begins to follow for `share` what `shared` means.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(share: Arc<Share>, mut shared: Shared, hotplug: Hotplug) -> io::Result<Self> {
        let stop = Arc::new((AtomicBool::new(false), Wake::new()?));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("hotplug".into()).spawn(move || {
            if let Err(error) = follow(&share, &mut shared, &hotplug, &stopped) {
                warn!(%error, "devices that are plugged in from now on are not shared");
            }
            shared
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Follows no more; what is shared stays so. Says what that is, to be kept until all of it was given back.
    pub fn stop(mut self) -> Shared {
        self.join().unwrap_or_default()
    }

    fn join(&mut self) -> Option<Shared> {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.wake();
        // A panic was reported on its way.
        self.thread.take()?.join().ok()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.join();
    }
}

fn follow(share: &Share, shared: &mut Shared, hotplug: &Hotplug, stop: &(AtomicBool, Wake)) -> io::Result<()> {
    // What happened before we listened shows now.
    let mut retries = RETRIES;
    while !stop.0.load(Ordering::Acquire) {
        let is_waiting = shared.reconcile(share)?;
        retries = if is_waiting { retries } else { 0 };
        loop {
            let mut interests = [Interest::new(hotplug.as_fd(), false), Interest::new(stop.1.as_fd(), false)];
            wait(&mut interests, (retries > 0).then_some(RETRY))?;
            if stop.0.load(Ordering::Acquire) {
                return Ok(());
            }
            if hotplug.has_changed()? {
                retries = RETRIES;
                break;
            }
            if retries > 0 {
                retries -= 1;
                break;
            }
        }
    }
    Ok(())
}

/// Its interfaces, as the kernel names them. All of them: one that has just been plugged in has no driver yet.
fn interfaces(found: &Found) -> Vec<String> {
    let name = |interface: &Interface| format!("{}:{}.{}", found.bus_id, found.configuration, interface.number);
    found.interfaces.iter().map(name).collect()
}

/// Opens one, if nothing stands against it.
///
/// # Errors
/// [`UsbError`].
pub fn open(found: &Found) -> Result<UsbDevice, UsbError> {
    let bus_id = found.bus_id.clone();
    match &found.obstacle {
        Some(obstacle) => Err(UsbError::Obstacle { bus_id, obstacle: obstacle.clone() }),
        None => UsbDevice::open(found).map_err(|error| UsbError::Open { bus_id, error }),
    }
}

/// A name to type: the product's own words, or else its numbers.
pub fn name(found: &Found) -> String {
    let device = &found.descriptors.device;
    let product = found.descriptors.string(device.product_string).unwrap_or_default();
    let mut name = String::new();
    for word in product.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        if name.len() + word.len() >= NAME_BYTES_MAX {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&word.to_ascii_lowercase());
    }
    // A name that looks like a bus id would be one.
    if name.bytes().any(|b| b.is_ascii_alphabetic()) {
        name
    } else {
        format!("usb-{:04x}-{:04x}", device.vendor, device.product)
    }
}

/// What is still typed and fits a table.
const NAME_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::descriptor::DeviceDescriptor;
    use farbus_model::{Descriptors, Speed};

    fn found(product: &str) -> Found {
        let device =
            DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..DeviceDescriptor::default() };
        let strings = [(2, product.to_owned())].into();
        Found {
            bus_id: "1-1".into(),
            bus: 1,
            number: 2,
            descriptors: Descriptors { device, strings, ..Descriptors::default() },
            serial: None,
            speed: Speed::High,
            configuration: 1,
            interfaces: Vec::new(),
            is_imported: false,
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    #[test]
    fn a_device_is_called_what_it_calls_itself() {
        assert_eq!(name(&found("QEMU USB HARDDRIVE")), "qemu-usb-harddrive");
        assert_eq!(name(&found("  HD Webcam (C270), v2.1\u{fffd}")), "hd-webcam-c270-v2-1");
        assert_eq!(
            name(&found("a very long name that somebody in marketing made up")),
            "a-very-long-name-that-somebody"
        );
        for nothing in ["", "---", "1-1", "2000"] {
            assert_eq!(name(&found(nothing)), "usb-046d-c52b", "{nothing}");
        }
    }

    #[test]
    fn what_stands_against_it_is_said_with_what_to_do() {
        let obstacle = Obstacle::NoPermission { node: "/dev/bus/usb/001/002".into() };
        let hindered = Found { obstacle: Some(obstacle), ..found("Stick") };
        let said = open(&hindered).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("usb:1-1: no permission for /dev/bus/usb/001/002\n  run as root"), "{said}");
        let error = UsbError::NoneFound("046d:c52b".parse().unwrap());
        assert!(error.to_string().contains("usb:046d:c52b\n  'farbus share --list'"), "{error}");
    }
}
