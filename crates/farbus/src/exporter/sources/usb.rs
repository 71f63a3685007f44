//! This machine's own USB devices, shared.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus_io::link::{Interest, Wake, wait};
use farbus_io::usb::{Found, Hotplug, Inventory, Obstacle, OpenError, Selector, UsbDevice};
use farbus_session::DeviceRecord;
use farbus_session::registry::name_of;
use farbus_session::twin::Twinned;
use tracing::{info, warn};

use crate::broker::Broker;
use crate::common::failure::Attribute;
use crate::devices::identities::labels::{DeviceClass, Which};
use crate::devices::identities::naming::Naming;
use crate::devices::selection::{Wanted, name as own_name};
use crate::exporter::share::{Share, ShareError};
use crate::exporter::swap::Plug;

/// Why real devices are not shared.
#[derive(Debug)]
pub enum UsbError {
    /// Nothing that is plugged in is meant.
    NoneFound(Selector),
    /// Several are meant, and are to have one name.
    Several {
        /// Which are meant.
        selector: Selector,
        /// How many these are.
        count: usize,
        /// The name that all of them were to have.
        name: String,
    },
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
            UsbError::Several { selector, count, name } => write!(
                f,
                "{count} USB devices are {selector}, and '{name}' is the name of one\n  share each by its bus id: see 'farbus share --list'"
            ),
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

impl UsbError {
    /// Whose trouble it is.
    pub fn attribute(&self) -> Attribute {
        match self {
            UsbError::NoneFound(_) | UsbError::Open { error: OpenError::Gone, .. } => Attribute::Gone,
            UsbError::Obstacle { obstacle: Obstacle::Unreadable, .. } => Attribute::Device,
            UsbError::Obstacle { obstacle: Obstacle::NoPermission { .. }, .. }
            | UsbError::Open { error: OpenError::NotAllowed { .. }, .. } => Attribute::Local,
            UsbError::Several { .. }
            | UsbError::Obstacle { .. }
            | UsbError::Open { error: OpenError::Busy { .. }, .. } => Attribute::Refused,
            UsbError::Open { .. } | UsbError::Share(_) | UsbError::System(_) => Attribute::Local,
        }
    }
}

/// Checks that each selector means at least one device that is plugged in.
///
/// # Errors
/// [`UsbError::NoneFound`] with the first that means none, or [`UsbError::System`].
pub fn check_present<'a>(selectors: impl IntoIterator<Item = &'a Selector>) -> Result<(), UsbError> {
    let mut selectors = selectors.into_iter().peekable();
    if selectors.peek().is_none() {
        return Ok(());
    }
    let all = Inventory::default().devices().map_err(UsbError::System)?;
    let missing = selectors.find(|selector| !all.iter().any(|found| selector.matches(found)));
    missing.map_or(Ok(()), |selector| Err(UsbError::NoneFound(selector.clone())))
}

/// Which of this machine's devices are meant, and which of them are shared.
#[derive(Debug)]
pub struct Shared {
    wanted: Wanted,
    devices: Vec<Tracked>,
    /// Those that cannot be had: what was said of each is said once.
    troubles: BTreeMap<Place, Trouble>,
    /// Those that another process had, by bus and number.
    inherited: Vec<(u32, u32)>,
    /// Those whose place a twin took: this machine's, until they are plugged in again.
    left: Vec<Place>,
    /// Who opens them, and gives them back should we be killed.
    broker: Arc<Broker>,
}

/// Where a device is plugged in, and its number there, which another one at the same place has not.
type Place = (String, u32);

/// A device that is shared.
#[derive(Debug)]
struct Tracked {
    place: Place,
    bus: u32,
    /// Its bus id on the wire.
    export: String,
    /// Whether it took another's place: nobody said that it is meant, and it is.
    is_twin: bool,
}

/// Why a device is not shared that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub name: String,
    /// Whose trouble it is.
    pub attribute: Attribute,
    /// A sentence for a person.
    pub message: String,
}

impl Shared {
    /// Nothing yet; `broker` opens what will be.
    pub fn new(broker: Arc<Broker>) -> Self {
        let (wanted, devices, inherited, left) = (Wanted::default(), Vec::new(), Vec::new(), Vec::new());
        Self { wanted, devices, troubles: BTreeMap::new(), inherited, left, broker }
    }

    /// The same; another process had these open, by bus and number.
    #[must_use]
    pub fn inheriting(mut self, devices: &[(u32, u32)]) -> Self {
        self.inherited = devices.to_vec();
        self
    }

    /// Shares every device that `selector` means, and remembers it. All or none: the first that cannot be had ends it.
    ///
    /// # Errors
    /// [`UsbError`].
    pub fn add(
        &mut self,
        share: &Share,
        selector: &Selector,
        name: Option<&str>,
    ) -> Result<Vec<DeviceRecord>, UsbError> {
        let all = Inventory::default().devices().map_err(UsbError::System)?;
        let is_new = |found: &Found| self.devices.iter().all(|tracked| tracked.place.0 != found.bus_id);
        let meant: Vec<Found> = all.into_iter().filter(|found| selector.matches(found) && is_new(found)).collect();
        if meant.is_empty() {
            return Err(UsbError::NoneFound(selector.clone()));
        }
        if let Some(name) = name.filter(|_| meant.len() > 1) {
            let name = name.to_owned();
            return Err(UsbError::Several { selector: selector.clone(), count: meant.len(), name });
        }
        let opened = meant.iter().map(|found| self.open(found)).collect::<Result<Vec<_>, UsbError>>()?;
        self.wanted.add(selector.clone(), name.map(str::to_owned));
        let offer = |(found, device): (&Found, UsbDevice)| match name {
            Some(name) => self.offer(share, found, Naming::Given(name), device),
            None => self.offer(share, found, Naming::Automatic(&own_name(found)), device),
        };
        meant.iter().zip(opened).map(offer).collect()
    }

    /// Whether any device is meant.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// How many are shared.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// What is not shared and is to be: what cannot be had, and what is not there.
    pub fn troubles(&self) -> Vec<Trouble> {
        self.troubles.values().cloned().collect()
    }

    fn open(&self, found: &Found) -> Result<UsbDevice, UsbError> {
        let bus_id = found.bus_id.clone();
        match &found.obstacle {
            // What this process may not, the broker may.
            None | Some(Obstacle::NoPermission { .. }) => {}
            // By us, or by nobody any more.
            Some(Obstacle::InUse { .. }) if self.inherited.contains(&(found.bus, found.number)) => {}
            Some(obstacle) => return Err(UsbError::Obstacle { bus_id, obstacle: obstacle.clone() }),
        }
        let opened = match self.broker.open_usb(found.bus, found.number) {
            Ok(node) => UsbDevice::open_through(node, found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let obstacle = Obstacle::NoPermission { node: found.node.clone() };
                return Err(UsbError::Obstacle { bus_id, obstacle });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(OpenError::Gone),
            Err(error) => Err(OpenError::Os { doing: "opening it", error }),
        };
        opened.map_err(|error| UsbError::Open { bus_id, error })
    }

    fn offer(
        &mut self,
        share: &Share,
        found: &Found,
        naming: Naming<'_>,
        device: UsbDevice,
    ) -> Result<DeviceRecord, UsbError> {
        let known = self.broker.identify_usb(found.bus, found.number);
        let device = Box::new(Twinned::new(Box::new(device)));
        let record = share.offer(naming, device, DeviceClass::Usb, Which::Known(known)).map_err(UsbError::Share)?;
        if known.is_lasting {
            self.broker.note_name(known.id, name_of(&record), share.is_named(&record));
        }
        share.place_on(&record.bus_id, Inventory::default().bus_of(found));
        let place = place_of(found);
        share.swaps().plugs().put(&record.bus_id, Plug::of(found));
        self.devices.push(Tracked { place, bus: found.bus, export: record.bus_id.clone(), is_twin: false });
        Ok(record)
    }

    /// Takes note of those whose place a twin took.
    fn follow_twins(&mut self, share: &Share) {
        for tracked in &mut self.devices {
            let Some(Plug { bus_id, bus, number }) = share.swaps().plugs().get(&tracked.export) else { continue };
            let place = (bus_id, number);
            if place != tracked.place {
                self.broker.given_back(tracked.bus, tracked.place.1);
                self.left.push(std::mem::replace(&mut tracked.place, place));
                (tracked.bus, tracked.is_twin) = (bus, true);
            }
        }
    }

    /// Everything was given back, by whoever held it.
    fn dismiss(&mut self) {
        for device in self.devices.drain(..) {
            self.broker.given_back(device.bus, device.place.1);
        }
    }

    /// From now on `wanted` is meant and nothing else: what is not meant any more is taken off the lists, and its
    /// session ended.
    fn want(&mut self, share: &Share, wanted: Wanted) -> io::Result<bool> {
        self.wanted = wanted;
        self.follow_twins(share);
        let all = Inventory::default().devices()?;
        let is_meant = |place: &Place| all.iter().any(|f| is_at(f, place) && self.wanted.name_of(f).is_some());
        let is_there = |place: &Place| all.iter().any(|found| is_at(found, place));
        let is_unmeant = |device: &mut Tracked| is_there(&device.place) && !device.is_twin && !is_meant(&device.place);
        for device in self.devices.extract_if(.., is_unmeant) {
            // A session that used it may have taken it off the lists already.
            let _ = share.remove(&device.export);
            self.broker.given_back(device.bus, device.place.1);
            info!(device = %device.export, usb = %device.place.0, "shared no more");
        }
        self.reconcile(share)
    }

    /// Makes what is shared what is plugged in. Says whether there is something that may become possible by waiting: a
    /// device whose session has not noticed yet that it is gone, a node that udev has not given to us yet.
    fn reconcile(&mut self, share: &Share) -> io::Result<bool> {
        let all = match self.is_empty() && self.devices.is_empty() {
            true => Vec::new(),
            false => Inventory::default().devices()?,
        };
        let is_there = |place: &Place| all.iter().any(|found| is_at(found, place));
        self.follow_twins(share);
        self.left.retain(is_there);
        self.devices.retain(|tracked| {
            let stays = is_there(&tracked.place) || !share.remove_gone(&tracked.export);
            if !stays {
                self.broker.given_back(tracked.bus, tracked.place.1);
                info!(device = %tracked.export, usb = %tracked.place.0, "unplugged");
            }
            stays
        });
        // One that is being reset is there, or another that is plugged in since: its number will say.
        let mut is_waiting = self.devices.iter().any(|tracked| !is_there(&tracked.place))
            || all.iter().any(|found| found.is_being_reset() && self.wanted.name_of(found).is_some());
        let mut troubles = BTreeMap::new();
        for found in &all {
            let Some((name, is_named)) = self.wanted.naming_of(found) else { continue };
            let naming = if is_named { Naming::ByRule(&name) } else { Naming::Automatic(&name) };
            // One at the same place as another that is still being let go of waits for it.
            let is_left = self.left.iter().any(|place| is_at(found, place));
            if is_left || self.devices.iter().any(|tracked| tracked.place.0 == found.bus_id) {
                continue;
            }
            if found.configuration == 0 || found.is_being_reset() {
                // The kernel is about to choose one, and to look for drivers; what is taken before is taken from
                // nobody.
                is_waiting = true;
                continue;
            }
            match self.open(found).and_then(|device| self.offer(share, found, naming, device)) {
                Ok(record) => info!(device = %record.bus_id, usb = %found.bus_id, "plugged in"),
                Err(error) => {
                    is_waiting = true;
                    let trouble = Trouble { name, attribute: error.attribute(), message: error.to_string() };
                    // The same trouble again is no news.
                    if self.troubles.get(&place_of(found)) != Some(&trouble) {
                        warn!("{}", trouble.message);
                    }
                    troubles.insert(place_of(found), trouble);
                }
            }
        }
        for (selector, name) in self.wanted.named().filter(|(selector, _)| !all.iter().any(|f| selector.matches(f))) {
            let message = format!("nothing is plugged in that is {selector}");
            let name = name.map_or_else(|| selector.to_string(), str::to_owned);
            let trouble = Trouble { name, attribute: Attribute::Gone, message };
            troubles.insert((selector.to_string(), 0), trouble);
        }
        self.troubles = troubles;
        Ok(is_waiting)
    }
}

fn place_of(found: &Found) -> Place {
    (found.bus_id.clone(), found.number)
}

/// Whether it is the one at this place, as far as that is known: whoever gives a device back resets it, and it is not
/// gone meanwhile.
fn is_at(found: &Found, (bus_id, number): &Place) -> bool {
    found.bus_id == *bus_id && (found.number == *number || found.is_being_reset())
}

/// Follows what is plugged in and pulled out, on a thread of its own, until it is dropped.
pub struct Follower {
    share: Arc<Share>,
    shared: Arc<Mutex<Shared>>,
    stop: Arc<(AtomicBool, Wake)>,
    thread: Option<JoinHandle<()>>,
}

/// How often what may become possible is tried again, and how many times in a row; then more slowly.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES: u32 = 50;
const RETRY_SLOWLY: Duration = Duration::from_secs(2);

impl Follower {
    /// Begins to follow for `share` what `shared` means. Without `hotplug` it looks now and then.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(share: Arc<Share>, shared: Shared, hotplug: Option<Hotplug>) -> io::Result<Self> {
        let stop = Arc::new((AtomicBool::new(false), Wake::new()?));
        let shared = Arc::new(Mutex::new(shared));
        let (stopped, for_thread, its_share) = (Arc::clone(&stop), Arc::clone(&shared), Arc::clone(&share));
        let thread = thread::Builder::new().name("hotplug".into()).spawn(move || {
            if let Err(error) = follow(&its_share, &for_thread, hotplug.as_ref(), &stopped) {
                warn!(%error, "devices that are plugged in from now on are not shared");
            }
        })?;
        Ok(Self { share, shared, stop, thread: Some(thread) })
    }

    /// From now on `wanted` is meant and nothing else. What is plugged in already is shared when this returns.
    pub fn want(&self, wanted: Wanted) {
        if let Err(error) = self.shared().want(&self.share, wanted) {
            warn!(%error, "cannot read what USB devices there are");
        }
        self.stop.1.wake();
    }

    /// What is shared, and what is not.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("nothing panics with devices in hand")
    }

    /// Follows no more; what is shared stays so.
    pub fn stop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported on its way.
            let _ = thread.join();
        }
    }

    /// All devices were dropped, each given back to its drivers.
    pub fn dismiss(mut self) {
        self.stop();
        self.shared().dismiss();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop();
    }
}

fn follow(
    share: &Share,
    shared: &Mutex<Shared>,
    hotplug: Option<&Hotplug>,
    stop: &(AtomicBool, Wake),
) -> io::Result<()> {
    // What happened before we listened shows now.
    let mut retries = RETRIES;
    while !stop.0.load(Ordering::Acquire) {
        let is_waiting = shared.lock().expect("nothing panics with devices in hand").reconcile(share)?;
        let pause = match is_waiting || hotplug.is_none() {
            true if is_waiting && retries > 0 => Some(RETRY),
            true => Some(RETRY_SLOWLY),
            false => None,
        };
        retries = if is_waiting { retries.saturating_sub(1) } else { 0 };
        if has_news(hotplug, &stop.1, pause)? {
            retries = RETRIES;
        }
    }
    Ok(())
}

/// Waits for an event, somebody's word, or the end of a pause. Says whether it was one of the first two.
fn has_news(hotplug: Option<&Hotplug>, word: &Wake, pause: Option<Duration>) -> io::Result<bool> {
    let until = pause.map(|pause| Instant::now() + pause);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut interests = vec![Interest::new(word.as_fd(), false)];
        interests.extend(hotplug.map(|hotplug| Interest::new(hotplug.as_fd(), false)));
        wait(&mut interests, left)?;
        if interests[0].readable {
            word.clear();
            return Ok(true);
        }
        if hotplug.map(Hotplug::has_changed).transpose()? == Some(true) {
            return Ok(true);
        }
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_model::{Descriptors, Speed};

    #[test]
    fn what_stands_against_it_is_said_with_what_to_do() {
        let obstacle = Obstacle::NoPermission { node: "/dev/bus/usb/001/002".into() };
        let said = UsbError::Obstacle { bus_id: "1-1".into(), obstacle }.to_string();
        assert!(said.starts_with("usb:1-1: no permission for /dev/bus/usb/001/002\n  run as root"), "{said}");
        let error = UsbError::NoneFound("046d:c52b".parse().unwrap());
        assert!(error.to_string().contains("usb:046d:c52b\n  'farbus share --list'"), "{error}");
    }

    #[test]
    fn a_device_whose_port_is_reset_is_not_gone_and_no_other() {
        let found = |bus_id: &str, number| Found {
            bus_id: bus_id.to_owned(),
            bus: 1,
            number,
            descriptors: Descriptors::default(),
            serial: None,
            speed: Speed::High,
            configuration: 1,
            interfaces: Vec::new(),
            is_imported: false,
            node: "/dev/bus/usb/001/002".into(),
            obstacle: None,
        };
        let place = place_of(&found("1-1", 2));
        assert!(is_at(&found("1-1", 2), &place) && is_at(&found("1-1", 0), &place));
        assert!(!is_at(&found("1-1", 3), &place) && !is_at(&found("1-2", 0), &place));
    }
}
