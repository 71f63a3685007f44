//! Shares this machine's own USB devices.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus_control::device::AnotherInPortStatus;
use farbus_control::failure::FailureKind;
use farbus_io_linux::usb::{
    HotplugMonitor, PluggedDevice, SharingObstacle, UsbDevice, UsbDeviceSelector, UsbInventory, UsbOpenError,
};
use farbus_io_net::link::{PollInterest, ThreadWaker, wait};
use farbus_io_net::trust::AttachedDevice;
use farbus_session::DeviceRecord;
use farbus_session::registry::name_of;
use farbus_session::twin::TwinnedDevice;
use tracing::{info, warn};

use crate::broker::BrokerClient;
use crate::devices::follow::FollowPolicy;
use crate::devices::identities::labels::{DeviceClass, OfferIdentity};
use crate::devices::identities::naming::DeviceNaming;
use crate::devices::selection::{ShareSelection, SharingTerms};
use crate::exporter::share::{Share, ShareError};
pub use crate::exporter::sources::ports::PortKeeper;
use crate::exporter::sources::ports::{InPortOffer, PortDevices};
use crate::exporter::sources::what::UsbSpec;
use crate::exporter::swap::PlugLocation;

/// Why real devices cannot be shared.
#[derive(Debug)]
pub enum UsbError {
    /// No device that is plugged in matches.
    NoneFound(UsbDeviceSelector),
    /// Several devices match, but one name was given.
    Several {
        /// The selector that matches all of them.
        selector: UsbDeviceSelector,
        /// How many devices match.
        count: usize,
        /// The name that was given.
        name: String,
    },
    /// The device cannot be shared.
    Obstacle {
        /// The device's bus id.
        bus_id: String,
        /// Why it cannot be shared.
        obstacle: SharingObstacle,
    },
    /// The device could not be opened.
    Open {
        /// The device's bus id.
        bus_id: String,
        /// Why it could not be opened.
        error: UsbOpenError,
    },
    /// This process shares the device already.
    Shared {
        /// The device's bus id.
        bus_id: String,
        /// The name under which it is shared.
        name: String,
    },
    /// The device could not be offered.
    Share(ShareError),
    /// It is not known which device the share of this port stands for.
    Unknown {
        /// The device's bus id.
        bus_id: String,
        /// Why what is stored of the port could not be read.
        error: io::Error,
    },
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
            UsbError::Obstacle { bus_id, obstacle: obstacle @ SharingObstacle::NoPermission { .. } } => {
                write!(f, "usb:{bus_id}: {obstacle}\n  run as root, or let a udev rule give it to you: farbus doctor")
            }
            UsbError::Obstacle { bus_id, obstacle } => write!(f, "usb:{bus_id}: {obstacle}"),
            UsbError::Open { bus_id, error } => write!(f, "usb:{bus_id}: {error}"),
            UsbError::Shared { bus_id, name } => {
                write!(f, "usb:{bus_id} is shared by the daemon already, as '{name}'")
            }
            UsbError::Share(error) => error.fmt(f),
            UsbError::Unknown { bus_id, error } => {
                write!(f, "usb:{bus_id}: it is not known which device was in this port: {error}")
            }
            UsbError::System(error) => write!(f, "cannot read what USB devices there are: {error}"),
        }
    }
}

impl std::error::Error for UsbError {}

impl UsbError {
    /// The kind of the fault, for its report.
    pub fn attribute(&self) -> FailureKind {
        match self {
            UsbError::NoneFound(_) | UsbError::Open { error: UsbOpenError::Gone, .. } => FailureKind::Gone,
            UsbError::Obstacle { obstacle: SharingObstacle::Unreadable, .. } => FailureKind::Device,
            UsbError::Obstacle { obstacle: SharingObstacle::NoPermission { .. }, .. }
            | UsbError::Open { error: UsbOpenError::NotAllowed { .. }, .. } => FailureKind::Local,
            UsbError::Several { .. }
            | UsbError::Shared { .. }
            | UsbError::Obstacle { .. }
            | UsbError::Open { error: UsbOpenError::Busy { .. }, .. } => FailureKind::Refused,
            UsbError::Open { .. } | UsbError::Share(_) | UsbError::Unknown { .. } | UsbError::System(_) => {
                FailureKind::Local
            }
        }
    }
}

/// Checks that each selector matches at least one device that is plugged in.
///
/// # Errors
/// [`UsbError::NoneFound`] with the first selector that matches none, or [`UsbError::System`].
pub fn check_present<'a>(selectors: impl IntoIterator<Item = &'a UsbDeviceSelector>) -> Result<(), UsbError> {
    let mut selectors = selectors.into_iter().peekable();
    if selectors.peek().is_none() {
        return Ok(());
    }
    let all = UsbInventory::default().devices().map_err(UsbError::System)?;
    let missing = selectors.find(|selector| !all.iter().any(|found| selector.matches(found)));
    missing.map_or(Ok(()), |selector| Err(UsbError::NoneFound(selector.clone())))
}

/// The devices that are plugged in and that `selector` matches.
///
/// # Errors
/// There is none, or there are several but one name was given.
pub fn find(selector: &UsbDeviceSelector, name: Option<&str>) -> Result<Vec<PluggedDevice>, UsbError> {
    let all = UsbInventory::default().devices().map_err(UsbError::System)?;
    one_or_all(all.into_iter().filter(|found| selector.matches(found)).collect(), selector, name)
}

fn one_or_all(
    meant: Vec<PluggedDevice>,
    selector: &UsbDeviceSelector,
    name: Option<&str>,
) -> Result<Vec<PluggedDevice>, UsbError> {
    if meant.is_empty() {
        return Err(UsbError::NoneFound(selector.clone()));
    }
    if let Some(name) = name.filter(|_| meant.len() > 1) {
        let name = name.to_owned();
        return Err(UsbError::Several { selector: selector.clone(), count: meant.len(), name });
    }
    Ok(meant)
}

/// Opens the node of a device with the rights of this process, to pass it to a daemon.
///
/// # Errors
/// [`UsbError`].
pub fn open_node(found: &PluggedDevice) -> Result<OwnedFd, UsbError> {
    let opened = OpenOptions::new().read(true).write(true).open(&found.node);
    opened.map(OwnedFd::from).map_err(|error| not_opened(found, error))
}

fn not_opened(found: &PluggedDevice, error: io::Error) -> UsbError {
    let bus_id = found.bus_id.clone();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            UsbError::Obstacle { bus_id, obstacle: SharingObstacle::NoPermission { node: found.node.clone() } }
        }
        io::ErrorKind::NotFound => UsbError::Open { bus_id, error: UsbOpenError::Gone },
        _ => UsbError::Open { bus_id, error: UsbOpenError::Os { doing: "opening it", error } },
    }
}

/// The selectors of devices to share, and the devices that are shared.
#[derive(Debug)]
pub struct SharedUsbDevices {
    wanted: ShareSelection,
    devices: Vec<SharedUsbDevice>,
    /// Devices that cannot be shared, each with the trouble that was logged last.
    troubles: BTreeMap<UsbDeviceKey, UsbShareFailure>,
    /// Devices that another process had open, by bus and number.
    inherited: Vec<(u32, u32)>,
    /// Devices that a twin replaced. They stay with this machine until they are plugged in again.
    left: Vec<UsbDeviceKey>,
    /// The number of the device that was passed last.
    last_passed: u64,
    /// The devices that shares by port stand for.
    ports: PortDevices,
    /// Opens the devices, and gives them back if this process is killed.
    broker: Arc<BrokerClient>,
}

/// A device's bus id and number. Another device at the same port has another number.
type UsbDeviceKey = (String, u32);

/// A device that is shared.
#[derive(Debug)]
struct SharedUsbDevice {
    location: UsbDeviceKey,
    bus: u32,
    /// The bus id on the wire.
    export: String,
    /// Whether it is a twin that replaced another device: it is shared although no selector matches it.
    is_twin: bool,
    /// Its number, if a command passed its node: it is shared although no selector matches it.
    passed: Option<u64>,
    /// Whether it is another device than its share, which is by port, stands for.
    is_another: bool,
}

/// As what a device is offered.
struct UsbDeviceOffer<'a> {
    selected: &'a SharingTerms,
    /// The name, if it does not come from the selection.
    naming: Option<DeviceNaming<'a>>,
    is_passed: bool,
}

/// What became of a device that a command passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedState {
    /// It is shared.
    Shared,
    /// It was replaced by its twin (`farbus swap`), which is shared.
    Swapped,
    /// It is not plugged in any more, and not shared.
    Unplugged,
}

/// Why a wanted device is not shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbShareFailure {
    /// The device's name.
    pub name: String,
    /// The kind of the fault.
    pub attribute: FailureKind,
    /// A sentence for a person.
    pub message: String,
}

impl SharedUsbDevices {
    /// Shares nothing yet; `broker` opens the devices.
    pub fn new(broker: Arc<BrokerClient>) -> Self {
        let (wanted, devices, inherited, left) = (ShareSelection::default(), Vec::new(), Vec::new(), Vec::new());
        let (troubles, ports) = (BTreeMap::new(), PortDevices::default());
        Self { wanted, devices, troubles, inherited, left, last_passed: 0, ports, broker }
    }

    /// Remembers the devices of its ports in this way, over a restart.
    #[must_use]
    pub fn remembering(mut self, keeper: PortKeeper) -> Self {
        self.ports.keep_by(keeper);
        self
    }

    /// Adds the devices, by bus and number, that another process had open.
    #[must_use]
    pub fn inheriting(mut self, devices: &[(u32, u32)]) -> Self {
        self.inherited = devices.to_vec();
        self
    }

    /// Shares every device that `selector` matches, and remembers the selector. If one cannot be opened, shares none.
    ///
    /// # Errors
    /// [`UsbError`].
    pub fn add(
        &mut self,
        share: &Share,
        UsbSpec { selector, follow }: &UsbSpec,
        name: Option<&str>,
    ) -> Result<Vec<DeviceRecord>, UsbError> {
        let all = UsbInventory::default().devices().map_err(UsbError::System)?;
        let is_new = |found: &PluggedDevice| self.devices.iter().all(|tracked| tracked.location.0 != found.bus_id);
        let meant = all.into_iter().filter(|found| selector.matches(found) && is_new(found)).collect();
        let meant = one_or_all(meant, selector, name)?;
        let opened = meant.iter().map(|found| self.open(found)).collect::<Result<Vec<_>, UsbError>>()?;
        self.wanted.add(selector.clone(), name.map(str::to_owned), follow.clone());
        let by_port = matches!(selector, UsbDeviceSelector::BusId(_)).then(|| follow.clone());
        let selected = SharingTerms { name: name.map(str::to_owned), is_chosen: name.is_some(), by_port };
        let offer = |(found, device): (&PluggedDevice, UsbDevice)| {
            let naming = name.map(DeviceNaming::Given);
            self.offer(share, found, UsbDeviceOffer { selected: &selected, naming, is_passed: false }, device)
        };
        meant.iter().zip(opened).map(offer).collect()
    }

    /// Whether there are no selectors.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// How many devices are shared, without those that commands passed.
    pub fn count(&self) -> usize {
        self.devices.iter().filter(|device| device.passed.is_none()).count()
    }

    /// The wanted devices that are not shared: those that cannot be opened, and those that are not plugged in.
    pub fn troubles(&self) -> Vec<UsbShareFailure> {
        self.troubles.values().cloned().collect()
    }

    fn open(&self, found: &PluggedDevice) -> Result<UsbDevice, UsbError> {
        let bus_id = found.bus_id.clone();
        match &found.obstacle {
            // The broker may have the permission that this process lacks.
            None | Some(SharingObstacle::NoPermission { .. }) => {}
            // The user is this process's predecessor, or has ended.
            Some(SharingObstacle::InUse { .. }) if self.inherited.contains(&(found.bus, found.number)) => {}
            Some(obstacle) => return Err(UsbError::Obstacle { bus_id, obstacle: obstacle.clone() }),
        }
        let node = self.broker.open_usb(found.bus, found.number).map_err(|error| not_opened(found, error))?;
        UsbDevice::open_through(node, found).map_err(|error| UsbError::Open { bus_id, error })
    }

    /// Shares the device at `bus_id`, whose node a command opened and passed. It is shared until
    /// [`SharedUsbDevices::remove_passed`], or until it is unplugged. Returns its number among those that were passed. Without a
    /// name, farbus chooses one. `is_again`: the command passed a device in this port before.
    ///
    /// # Errors
    /// [`UsbError`].
    pub fn share_passed(
        &mut self,
        share: &Share,
        (bus_id, follow, is_again): (&str, &FollowPolicy, bool),
        name: Option<DeviceNaming<'_>>,
        node: BorrowedFd<'_>,
    ) -> Result<(u64, DeviceRecord), UsbError> {
        let found = UsbInventory::default().device_at(bus_id).map_err(UsbError::System)?;
        let found = found.ok_or_else(|| UsbError::NoneFound(UsbDeviceSelector::BusId(bus_id.to_owned())))?;
        if let Some(tracked) = self.devices.iter().find(|tracked| tracked.location.0 == bus_id) {
            let name = share.status().into_iter().find(|status| status.bus_id == tracked.export);
            let name = name.map_or_else(|| tracked.export.clone(), |status| status.name);
            return Err(UsbError::Shared { bus_id: bus_id.to_owned(), name });
        }
        let passed = self.broker.pass_usb(found.bus, found.number, node).map_err(|error| not_opened(&found, error));
        if !is_again {
            self.ports.forget_passed(bus_id);
        }
        let selected = SharingTerms { name: None, is_chosen: false, by_port: Some(follow.clone()) };
        let offering = UsbDeviceOffer { selected: &selected, naming: name, is_passed: true };
        let offered =
            passed.and_then(|()| self.open(&found)).and_then(|device| self.offer(share, &found, offering, device));
        let record = offered.inspect_err(|_| self.broker.given_back(found.bus, found.number))?;
        self.last_passed += 1;
        if let Some(tracked) = self.devices.last_mut() {
            tracked.passed = Some(self.last_passed);
        }
        Ok((self.last_passed, record))
    }

    /// The device for which the share of a port stands that a command passed: the first that was in it.
    pub fn first_of_passed(&self, bus_id: &str) -> Option<AttachedDevice> {
        self.ports.passed(bus_id).cloned()
    }

    /// Notes for which device the share of a port stands that [`SharedUsbDevices::share_passed`] is asked for next, as
    /// another process knew it.
    pub fn recall_passed(&mut self, bus_id: &str, first: AttachedDevice) {
        self.ports.recall_passed(bus_id, first);
    }

    /// Stops sharing a device that a command passed, if it is still shared.
    pub fn remove_passed(&mut self, share: &Share, number: u64) {
        self.follow_twins(share);
        for device in self.devices.extract_if(.., |device| device.passed == Some(number)) {
            let _ = share.remove(&device.export);
            self.broker.given_back(device.bus, device.location.1);
            info!(device = %device.export, usb = %device.location.0, "shared no more");
        }
    }

    /// What became of a device that a command passed.
    pub fn passed(&mut self, share: &Share, number: u64) -> PassedState {
        self.follow_twins(share);
        match self.devices.iter().find(|device| device.passed == Some(number)) {
            None => PassedState::Unplugged,
            Some(device) if device.is_twin => PassedState::Swapped,
            Some(_) => PassedState::Shared,
        }
    }

    /// Leaves the device that a command passed to the selectors, if one of them gives it the name that it has. Returns
    /// whether that is so.
    pub fn adopt_passed(&mut self, share: &Share, number: u64, wanted: &ShareSelection, name: &str) -> bool {
        self.follow_twins(share);
        let Ok(all) = UsbInventory::default().devices() else { return false };
        let Some(device) = self.devices.iter_mut().find(|device| device.passed == Some(number)) else { return false };
        let found = all.iter().find(|found| is_at(found, &device.location));
        let selected = found.and_then(|found| Some((found, wanted.selected(found)?)));
        let Some((_, selected)) = selected.filter(|(found, selected)| selected.name_of(found) == name) else {
            return false;
        };
        device.passed = None;
        share.set_named(name, selected.is_chosen);
        true
    }

    fn offer(
        &mut self,
        share: &Share,
        found: &PluggedDevice,
        UsbDeviceOffer { selected, naming, is_passed }: UsbDeviceOffer<'_>,
        device: UsbDevice,
    ) -> Result<DeviceRecord, UsbError> {
        let InPortOffer { known, another } = self.judge(found, selected, is_passed)?;
        let of_port = self.ports.name_of(&found.bus_id).filter(|_| selected.by_port.is_some());
        let own = of_port.unwrap_or_else(|| self.ports.free_name(&found.bus_id, selected.name_of(found)));
        let naming = naming.unwrap_or(match selected.is_chosen {
            true => DeviceNaming::ByRule(&own),
            false => DeviceNaming::Automatic(&own),
        });
        let is_another = another.is_some();
        if let Some(AnotherInPortStatus { was, is, next }) = &another {
            warn!(usb = found.bus_id, was, is, "another device in this port; {next}");
        }
        let another = another.map(Arc::new);
        let device = Box::new(<TwinnedDevice>::new(Box::new(device)));
        let which = match selected.by_port {
            Some(_) => OfferIdentity::InPort(known, another),
            None => OfferIdentity::Known(known),
        };
        let record = share.offer(naming, device, DeviceClass::Usb, which).map_err(UsbError::Share)?;
        for repair in found.repairs.iter() {
            warn!(usb = found.bus_id, %repair, "its descriptors were repaired, as Linux does");
        }
        if known.is_lasting {
            self.broker.note_name(known.id, name_of(&record), share.is_named(&record));
        }
        share.place_on(&record.bus_id, UsbInventory::default().bus_of(found));
        if selected.by_port.is_some() {
            self.ports.note(found, known, name_of(&record), is_passed);
        }
        let location = place_of(found);
        share.swaps().plugs().put(&record.bus_id, PlugLocation::of(found));
        let export = record.bus_id.clone();
        self.devices.push(SharedUsbDevice {
            location,
            bus: found.bus,
            export,
            is_twin: false,
            passed: None,
            is_another,
        });
        Ok(record)
    }

    /// As what the device is offered that is selected so.
    fn judge(
        &mut self,
        found: &PluggedDevice,
        selected: &SharingTerms,
        is_passed: bool,
    ) -> Result<InPortOffer, UsbError> {
        let known = self.broker.identify_usb(found.bus, found.number);
        let Some(follow) = &selected.by_port else { return Ok(InPortOffer { known, another: None }) };
        if !is_passed && let Err(error) = self.ports.recall(&found.bus_id) {
            return Err(UsbError::Unknown { bus_id: found.bus_id.clone(), error });
        }
        Ok(self.ports.judge(found, known, follow))
    }

    /// Takes devices off the list that are to be offered as something else than they are: the selectors were replaced,
    /// or the owner said which device a port is for. One that is in use stays as it is.
    fn review(&mut self, share: &Share, all: &[PluggedDevice]) {
        let mut devices = std::mem::take(&mut self.devices);
        devices.retain(|tracked| {
            let found = all.iter().find(|found| is_at(found, &tracked.location) && !found.is_being_reset());
            let Some(found) = found.filter(|_| !tracked.is_twin && tracked.passed.is_none()) else { return true };
            let Some(selected) = self.wanted.selected(found) else { return true };
            let is_as_offered =
                self.judge(found, &selected, false).is_ok_and(|now| now.another.is_some() == tracked.is_another);
            let stays = is_as_offered || !share.remove_gone(&tracked.export);
            if !stays {
                self.broker.given_back(tracked.bus, tracked.location.1);
            }
            stays
        });
        self.devices = devices;
    }

    /// From now on the share of a port, by its listed name or as `usb:BUSID`, stands for the device that is there.
    /// Returns its listed name; `None` if no selector names that port.
    ///
    /// # Errors
    /// Why not, for a person.
    pub fn adopt(&mut self, share: &Share, device: &str) -> Option<Result<String, String>> {
        let status = share.status();
        let tracked = self.devices.iter().find(|tracked| {
            let is_named = status.iter().any(|status| status.bus_id == tracked.export && status.name == device);
            is_named || device.strip_prefix("usb:") == Some(&tracked.location.0)
        })?;
        let listed = status.iter().find(|status| status.bus_id == tracked.export)?;
        if !self.wanted.selects_port(&tracked.location.0) {
            return None;
        }
        if let Some(user) = listed.user.as_ref().filter(|_| tracked.is_another) {
            let name = &listed.name;
            return Some(Err(format!(
                "'{name}' is used by {user}, as the device that it is\n  first: farbus release {name}"
            )));
        }
        if let Err(error) = self.ports.adopt(&tracked.location.0) {
            return Some(Err(format!("{device}: the device that it was cannot be forgotten: {error}")));
        }
        info!(device = listed.name, usb = tracked.location.0, "shared as the device that is there, as its owner said");
        let name = listed.name.clone();
        let reviewed = UsbInventory::default().devices().map(|all| self.review(share, &all));
        let offered = reviewed.and_then(|()| self.reconcile(share));
        Some(offered.map(|_| name).map_err(|error| format!("{device}: {error}")))
    }

    /// Notes the devices that a twin replaced.
    fn follow_twins(&mut self, share: &Share) {
        for tracked in &mut self.devices {
            let Some(PlugLocation { bus_id, bus, number }) = share.swaps().plugs().get(&tracked.export) else {
                continue;
            };
            let location = (bus_id, number);
            if location != tracked.location {
                self.broker.given_back(tracked.bus, tracked.location.1);
                self.left.push(std::mem::replace(&mut tracked.location, location));
                (tracked.bus, tracked.is_twin) = (bus, true);
            }
        }
    }

    /// Tells the broker that all devices were given back by the process that held them.
    fn dismiss(&mut self) {
        for device in self.devices.drain(..) {
            self.broker.given_back(device.bus, device.location.1);
        }
    }

    /// Replaces the selectors. Devices that no selector matches any more are removed, and their sessions end.
    fn want(&mut self, share: &Share, wanted: ShareSelection) -> io::Result<bool> {
        self.wanted = wanted;
        self.follow_twins(share);
        let all = UsbInventory::default().devices()?;
        let is_meant =
            |location: &UsbDeviceKey| all.iter().any(|f| is_at(f, location) && self.wanted.selected(f).is_some());
        let is_there = |location: &UsbDeviceKey| all.iter().any(|found| is_at(found, location));
        let is_unmeant = |device: &mut SharedUsbDevice| {
            let stays = device.is_twin || device.passed.is_some();
            is_there(&device.location) && !stays && !is_meant(&device.location)
        };
        for device in self.devices.extract_if(.., is_unmeant) {
            // A session that used the device may have removed it already.
            let _ = share.remove(&device.export);
            self.broker.given_back(device.bus, device.location.1);
            info!(device = %device.export, usb = %device.location.0, "shared no more");
        }
        self.ports.retain(|bus_id| self.wanted.selects_port(bus_id));
        self.review(share, &all);
        self.reconcile(share)
    }

    /// Shares devices that were plugged in and removes those that were unplugged. Returns whether a retry may succeed
    /// later: a session may not have noticed yet that its device is gone, or udev may not have set a node's permissions
    /// yet.
    fn reconcile(&mut self, share: &Share) -> io::Result<bool> {
        let all = match self.is_empty() && self.devices.is_empty() {
            true => Vec::new(),
            false => UsbInventory::default().devices()?,
        };
        let is_there = |location: &UsbDeviceKey| all.iter().any(|found| is_at(found, location));
        self.follow_twins(share);
        self.left.retain(is_there);
        self.devices.retain(|tracked| {
            let stays = is_there(&tracked.location) || !share.remove_gone(&tracked.export);
            if !stays {
                self.broker.given_back(tracked.bus, tracked.location.1);
                info!(device = %tracked.export, usb = %tracked.location.0, "unplugged");
            }
            stays
        });
        // A device in reset is still there, or was replaced; its number will show which.
        let mut is_waiting = self.devices.iter().any(|tracked| !is_there(&tracked.location))
            || all.iter().any(|found| found.is_being_reset() && self.wanted.selected(found).is_some());
        let mut troubles = BTreeMap::new();
        for found in &all {
            let Some(selected) = self.wanted.selected(found) else { continue };
            // A device waits while the former device at the same port is still being released.
            let is_left = self.left.iter().any(|location| is_at(found, location));
            if is_left || self.devices.iter().any(|tracked| tracked.location.0 == found.bus_id) {
                continue;
            }
            if found.configuration == 0 || found.is_being_reset() {
                // The kernel is about to choose a configuration and bind drivers. A device taken before then would have
                // no drivers to return to.
                is_waiting = true;
                continue;
            }
            let offering = UsbDeviceOffer { selected: &selected, naming: None, is_passed: false };
            match self.open(found).and_then(|device| self.offer(share, found, offering, device)) {
                Ok(record) => info!(device = %record.bus_id, usb = %found.bus_id, "plugged in"),
                Err(error) => {
                    is_waiting = true;
                    let name = selected.name_of(found);
                    let trouble = UsbShareFailure { name, attribute: error.attribute(), message: error.to_string() };
                    // Each trouble is logged once.
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
            let trouble = UsbShareFailure { name, attribute: FailureKind::Gone, message };
            troubles.insert((selector.to_string(), 0), trouble);
        }
        self.troubles = troubles;
        Ok(is_waiting)
    }
}

fn place_of(found: &PluggedDevice) -> UsbDeviceKey {
    (found.bus_id.clone(), found.number)
}

/// Whether it is the device at this place, as far as is known. A device that is being released is reset, and has no
/// number meanwhile.
fn is_at(found: &PluggedDevice, (bus_id, number): &UsbDeviceKey) -> bool {
    found.bus_id == *bus_id && (found.number == *number || found.is_being_reset())
}

/// Follows devices being plugged in and unplugged, on a thread of its own, until it is dropped.
pub struct HotplugFollower {
    share: Arc<Share>,
    shared: Arc<Mutex<SharedUsbDevices>>,
    stop: Arc<(AtomicBool, ThreadWaker)>,
    thread: Option<JoinHandle<()>>,
}

/// The pause between retries, how many retries follow at this pace, and the pause after those.
const RETRY: Duration = Duration::from_millis(100);
const RETRIES: u32 = 50;
const RETRY_SLOWLY: Duration = Duration::from_secs(2);

impl HotplugFollower {
    /// Follows devices for `share` with the selectors of `shared`. Without `hotplug` it polls.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(share: Arc<Share>, shared: SharedUsbDevices, hotplug: Option<HotplugMonitor>) -> io::Result<Self> {
        let stop = Arc::new((AtomicBool::new(false), ThreadWaker::new()?));
        let shared = Arc::new(Mutex::new(shared));
        let (stopped, for_thread, its_share) = (Arc::clone(&stop), Arc::clone(&shared), Arc::clone(&share));
        let thread = thread::Builder::new().name("hotplug".into()).spawn(move || {
            if let Err(error) = follow(&its_share, &for_thread, hotplug.as_ref(), &stopped) {
                warn!(%error, "devices that are plugged in from now on are not shared");
            }
        })?;
        Ok(Self { share, shared, stop, thread: Some(thread) })
    }

    /// Replaces the selectors. Devices that are plugged in and match are shared when this returns.
    pub fn want(&self, wanted: ShareSelection) {
        if let Err(error) = self.shared().want(&self.share, wanted) {
            warn!(%error, "cannot read what USB devices there are");
        }
        self.stop.1.wake();
    }

    /// The shared devices and the troubles.
    pub fn shared(&self) -> MutexGuard<'_, SharedUsbDevices> {
        self.shared.lock().expect("nothing panics with devices in hand")
    }

    /// A reference to the shared devices, for other threads that share devices.
    pub fn handle(&self) -> Arc<Mutex<SharedUsbDevices>> {
        Arc::clone(&self.shared)
    }

    /// Stops following. Shared devices stay shared.
    pub fn stop(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.wake();
        if let Some(thread) = self.thread.take() {
            // The panic was reported by the thread.
            let _ = thread.join();
        }
    }

    /// Notes that all devices were dropped and returned to their drivers.
    pub fn dismiss(mut self) {
        self.stop();
        self.shared().dismiss();
    }
}

impl Drop for HotplugFollower {
    fn drop(&mut self) {
        self.stop();
    }
}

fn follow(
    share: &Share,
    shared: &Mutex<SharedUsbDevices>,
    hotplug: Option<&HotplugMonitor>,
    stop: &(AtomicBool, ThreadWaker),
) -> io::Result<()> {
    // The first pass handles what happened before this thread listened.
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

/// Waits for a hotplug event, a wake-up or the end of the pause. Returns whether there was an event or a wake-up.
fn has_news(hotplug: Option<&HotplugMonitor>, word: &ThreadWaker, pause: Option<Duration>) -> io::Result<bool> {
    let until = pause.map(|pause| Instant::now() + pause);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut interests = vec![PollInterest::new(word.as_fd(), false)];
        interests.extend(hotplug.map(|hotplug| PollInterest::new(hotplug.as_fd(), false)));
        wait(&mut interests, left)?;
        if interests[0].readable {
            word.clear();
            return Ok(true);
        }
        if hotplug.map(HotplugMonitor::has_changed).transpose()? == Some(true) {
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
    use farbus_model::{DescriptorSet, UsbSpeed};

    #[test]
    fn usb_errors_say_what_to_do_next() {
        let obstacle = SharingObstacle::NoPermission { node: "/dev/bus/usb/001/002".into() };
        let message = UsbError::Obstacle { bus_id: "1-1".into(), obstacle }.to_string();
        assert!(message.starts_with("usb:1-1: no permission for /dev/bus/usb/001/002\n  run as root"), "{message}");
        let error = UsbError::NoneFound("046d:c52b".parse().unwrap());
        assert!(error.to_string().contains("usb:046d:c52b\n  'farbus share --list'"), "{error}");
    }

    #[test]
    fn device_in_reset_still_counts_as_the_one_at_its_port() {
        let found = |bus_id: &str, number| PluggedDevice {
            bus_id: bus_id.to_owned(),
            bus: 1,
            number,
            descriptors: DescriptorSet::default(),
            repairs: Default::default(),
            serial: None,
            speed: UsbSpeed::High,
            configuration: 1,
            interfaces: Vec::new(),
            is_imported: false,
            node: "/dev/bus/usb/001/002".into(),
            obstacle: None,
        };
        let location = place_of(&found("1-1", 2));
        assert!(is_at(&found("1-1", 2), &location) && is_at(&found("1-1", 0), &location));
        assert!(!is_at(&found("1-1", 3), &location) && !is_at(&found("1-2", 0), &location));
    }
}
