//! Devices that the owner asked the running daemon to share (`farbus share` beside a daemon). The command opened their
//! files and passed them.
//!
//! | the device is shared | until |
//! |---|---|
//! | with a lease | the command that asked ends, however it ends: the other end of its lease closes |
//! | without one (`--keep`) | `farbus unshare`, or the end of the daemon |
//! | and named in the configuration (`--save`) | the configuration does not name it any more |
//!
//! A real device is shared until it is unplugged at the latest: then its command is told, which passes it once more
//! when it is plugged in again. The daemon does not open it itself: nothing but the open node shows that somebody may
//! use it.
//!
//! A reload does not touch them. A replacement gets their files and leases.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use farbus::broker::{BrokerClient, SystemAccess};
use farbus::devices::class_words::name_of;
use farbus::devices::follow::FollowPolicy;
use farbus::devices::identities::naming::{DeviceNaming, check_name};
use farbus::devices::selection::ShareSelection;
use farbus::exporter::share::Share;
use farbus::exporter::sources::making::{offer, offer_stream};
use farbus::exporter::sources::stream::StreamSpec;
use farbus::exporter::sources::usb::{self, PassedState};
use farbus::exporter::sources::what::{DeviceSpec, UsbSpec};
use farbus_io_linux::usb::UsbDeviceSelector;
use farbus_io_net::link::{ThreadWaker, wait_for_ends};
use farbus_io_net::local::control_socket::{HAS_ENDED, IS_UNPLUGGED};
use farbus_io_net::trust::AttachedDevice;
use farbus_session::DeviceRecord;
use tracing::{info, warn};

use super::spec::DaemonShare;

/// The most devices at once. Each keeps up to three descriptors open, and one thread watches all leases.
const SHARES_MAX: usize = 64;
/// How long the thread pauses when it cannot watch.
const PAUSE: Duration = Duration::from_millis(100);

/// The devices that the owner asked for, in that order. Its lock is taken before those of the share.
pub struct RequestedShares {
    share: Arc<Share>,
    /// The real devices of this process.
    real: Arc<Mutex<usb::SharedUsbDevices>>,
    broker: Arc<BrokerClient>,
    system: SystemAccess,
    all: Mutex<RequestedShareTable>,
    /// Wakes the thread that watches the leases.
    wake: Arc<ThreadWaker>,
    /// Whether a replacement has the devices.
    is_handed_over: AtomicBool,
}

#[derive(Default)]
struct RequestedShareTable {
    shares: BTreeMap<u64, RequestedShare>,
    last: u64,
}

/// A device, or both ends of a bridge.
struct RequestedShare {
    /// What a replacement needs.
    passed: PassedShare,
    what: DeviceSpec,
    /// The listed names; empty until a replacement has offered it.
    listed: Vec<String>,
    /// Where its first medium is, as it was when it was offered.
    medium: Option<String>,
    /// The number of a real device among those that were passed.
    usb: Option<u64>,
}

/// A device that is passed to a replacement.
#[derive(Clone)]
pub struct PassedShare {
    /// The device, as it was asked for.
    pub words: String,
    /// The name that it has; that of a bridge is without the `-a` of its first end. Empty: a real device is named after
    /// what it is.
    pub name: String,
    /// Whether its owner gave it that name.
    pub is_named: bool,
    /// Its files: the images in the order of [`DeviceSpec::images`], the source of its frames, or the node of a real
    /// device.
    pub files: Vec<Arc<OwnedFd>>,
    /// The lease; `None` if the daemon keeps the device.
    pub lease: Option<Arc<OwnedFd>>,
    /// For which device the share of a port stands, if another process knew it.
    pub first_in_port: Option<AttachedDevice>,
}

impl RequestedShares {
    /// Shares what is asked for in `share`; the broker checks the files.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn new(
        share: Arc<Share>,
        real: Arc<Mutex<usb::SharedUsbDevices>>,
        broker: Arc<BrokerClient>,
        system: SystemAccess,
    ) -> io::Result<Arc<Self>> {
        let (all, wake, is_handed_over) = (Mutex::default(), Arc::new(ThreadWaker::new()?), AtomicBool::new(false));
        let requested = Arc::new(Self { share, real, broker, system, all, wake, is_handed_over });
        let (weak, wake) = (Arc::downgrade(&requested), Arc::clone(&requested.wake));
        thread::Builder::new().name("leases".into()).spawn(move || watch(&weak, &wake))?;
        Ok(requested)
    }

    fn all(&self) -> MutexGuard<'_, RequestedShareTable> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares a device whose files, and then its lease unless it is kept, were passed along. `is_again`: the command
    /// passed a device in this port before.
    ///
    /// # Errors
    /// Why not, for a person.
    pub fn share(
        &self,
        (words, is_again): (&str, bool),
        name: Option<String>,
        is_kept: bool,
        mut files: Vec<OwnedFd>,
    ) -> Result<Vec<DeviceRecord>, String> {
        let what: DeviceSpec = words.parse()?;
        if !what.is_passable() {
            let rule = "its paths have to be absolute, and a real device is named by its bus id";
            return Err(format!("'{words}' is not to be passed: {rule}"));
        }
        if let Some(name) = &name {
            check_name(name)?;
            let taken = self.share.status().into_iter().find(|status| is_taken_by(name, &status.name));
            if let Some(taken) = taken {
                let at = taken.medium.map_or(taken.title, |medium| medium.at);
                return Err(format!(
                    "'{name}' is the name of another device already: {at}\n  choose another: name=NAME"
                ));
            }
        }
        if self.all().shares.len() >= SHARES_MAX {
            let next = "end one: farbus unshare DEVICE, or name it in the configuration";
            return Err(format!("this daemon shares {SHARES_MAX} devices for its owner already\n  {next}"));
        }
        let expected = what.files_count() + usize::from(!is_kept);
        if files.len() != expected {
            let came = files.len();
            return Err(format!("{expected} descriptors have to come along, not {came}: ask with the farbus command"));
        }
        let lease = if is_kept { None } else { files.pop().map(Arc::new) };
        let files = files.into_iter().map(Arc::new).collect();
        let is_named = name.is_some();
        let kind = if what.usb().is_some() { "" } else { what.kind() };
        let name = name.unwrap_or_else(|| kind.to_owned());
        let passed = PassedShare { words: words.to_owned(), name, is_named, files, lease, first_in_port: None };
        let mut requested = RequestedShare { passed, what, listed: Vec::new(), medium: None, usb: None };
        let records = self.offer(&mut requested, is_again)?;
        info!(names = ?requested.listed, is_kept, "shared for its owner");
        let mut all = self.all();
        all.last += 1;
        let number = all.last;
        all.shares.insert(number, requested);
        drop(all);
        self.wake.wake();
        Ok(records)
    }

    /// Offers the device, and notes how it is listed.
    fn offer(&self, requested: &mut RequestedShare, is_again: bool) -> Result<Vec<DeviceRecord>, String> {
        let records = match &requested.what {
            DeviceSpec::Stream(spec) => self.offer_stream(&requested.passed, spec),
            DeviceSpec::Usb(UsbSpec { selector: UsbDeviceSelector::BusId(bus_id), follow }) => {
                let (number, record) = self.offer_usb(&requested.passed, (bus_id, follow, is_again))?;
                requested.usb = Some(number);
                Ok(vec![record])
            }
            what => self.offer_images(&requested.passed, what),
        }?;
        requested.listed = records.iter().map(|record| name_of(record).to_owned()).collect();
        if let Some(first) = requested.listed.first() {
            requested.passed.name = base_of(&requested.what, first).to_owned();
        }
        requested.medium = self.medium_of(requested);
        Ok(records)
    }

    /// Offers a stream, whose source is the file that was passed.
    fn offer_stream(&self, passed: &PassedShare, spec: &StreamSpec) -> Result<Vec<DeviceRecord>, String> {
        let source =
            passed.files.first().map(|file| file.try_clone()).transpose().map_err(|error| error.to_string())?;
        offer_stream(&self.share, &self.system, passed.naming(), spec, source).map_err(|failure| failure.to_string())
    }

    /// Offers a real device, whose open node was passed.
    fn offer_usb(
        &self,
        passed: &PassedShare,
        port: (&str, &FollowPolicy, bool),
    ) -> Result<(u64, DeviceRecord), String> {
        let node = passed.files.first().ok_or("its node has to come along")?;
        let naming = (!passed.name.is_empty()).then(|| passed.naming());
        let mut real = self.real();
        let (bus_id, follow, mut is_again) = port;
        if let Some(first) = passed.first_in_port.clone() {
            real.recall_passed(bus_id, first);
            is_again = true;
        }
        let offered = real.share_passed(&self.share, (bus_id, follow, is_again), naming, node.as_fd());
        offered.map_err(|error| error.to_string())
    }

    fn real(&self) -> MutexGuard<'_, usb::SharedUsbDevices> {
        self.real.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers any other device, by way of the broker, which checks and identifies its images.
    fn offer_images(&self, passed: &PassedShare, what: &DeviceSpec) -> Result<Vec<DeviceRecord>, String> {
        let pass = |((path, read_only), file): ((&std::path::Path, bool), &Arc<OwnedFd>)| {
            self.broker.pass_image(path, read_only, what.is_forced(), file.as_fd())
        };
        let images = what.images().zip(&passed.files).try_for_each(pass);
        let offered = images.map_err(|error| error.to_string()).and_then(|()| {
            offer(&self.share, &mut None, &self.system, passed.naming(), what).map_err(|failure| failure.to_string())
        });
        self.broker.forget_images();
        offered
    }

    fn medium_of(&self, requested: &RequestedShare) -> Option<String> {
        let (_, export) = self.share.disk(requested.listed.first()?).ok()?;
        export?.location()
    }

    /// How many devices, or bridges, are shared.
    pub fn count(&self) -> usize {
        self.all().shares.len()
    }

    /// The listed names of the device that has this name: itself, or both ends of a bridge.
    pub fn names_with(&self, listed: &str) -> Option<Vec<String>> {
        let all = self.all();
        let found = all.shares.values().find(|requested| requested.listed.iter().any(|name| name == listed));
        found.map(|requested| requested.listed.clone())
    }

    /// Stops sharing the device that has this name; the command that asked for it is told.
    pub fn remove(&self, listed: &str) {
        let is_it = |requested: &RequestedShare| requested.listed.iter().any(|name| name == listed);
        let removed = self.take(|_, requested| is_it(requested));
        for requested in removed {
            self.stop(&requested);
            if let Some(lease) = &requested.passed.lease {
                tell(lease, HAS_ENDED);
            }
        }
    }

    fn take(&self, is_it: impl Fn(u64, &RequestedShare) -> bool) -> Vec<RequestedShare> {
        let mut all = self.all();
        let taken: Vec<RequestedShare> =
            all.shares.extract_if(.., |number, requested| is_it(*number, requested)).map(|(_, it)| it).collect();
        drop(all);
        if !taken.is_empty() {
            // The thread that watches the leases has to release theirs.
            self.wake.wake();
        }
        taken
    }

    /// Forgets the real devices that are not plugged in any more, and tells their commands.
    pub fn forget_unplugged(&self) {
        let is_gone = |usb| self.real().passed(&self.share, usb) == PassedState::Unplugged;
        for requested in self.take(|_, requested| requested.usb.is_some_and(is_gone)) {
            info!(name = requested.passed.name, "unplugged, so not shared any more");
            if let Some(lease) = &requested.passed.lease {
                tell(lease, IS_UNPLUGGED);
            }
        }
    }

    /// Leaves to the configuration the real devices that it now selects under their names.
    pub fn adopt_usb(&self, wanted: &ShareSelection) {
        let is_selected = |requested: &RequestedShare| {
            let name = requested.listed.first().map(String::as_str).unwrap_or_default();
            requested.usb.is_some_and(|usb| self.real().adopt_passed(&self.share, usb, wanted, name))
        };
        for adopted in self.take(|_, requested| is_selected(requested)) {
            if let Some(lease) = &adopted.passed.lease {
                tell(lease, HAS_ENDED);
            }
        }
    }

    fn stop(&self, requested: &RequestedShare) {
        if let Some(usb) = requested.usb {
            self.real().remove_passed(&self.share, usb);
            return;
        }
        for name in &requested.listed {
            match self.share.remove(name) {
                Ok(()) => info!(name, "not shared any more"),
                Err(error) => warn!(name, %error, "was not there to be removed"),
            }
        }
    }

    /// Leaves to the configuration what it now names in the same words: returns the listed names.
    pub fn adopt(&self, shared: &DaemonShare) -> Option<Vec<String>> {
        let is_it = |requested: &RequestedShare| {
            !requested.listed.is_empty()
                && shared.reservation.is_none()
                && (&requested.passed.name, &requested.what) == (&shared.name, &shared.what)
        };
        let adopted = self.take(|_, requested| is_it(requested)).pop()?;
        if let Some(lease) = &adopted.passed.lease {
            tell(lease, HAS_ENDED);
        }
        Some(adopted.listed)
    }

    /// Why a replacement cannot go on with a device: its disk has moved to another medium (`farbus swap`), so its files
    /// are not what was passed; or its frames are being read, so the next ones would begin within one.
    fn obstacle(&self, requested: &RequestedShare) -> Option<&'static str> {
        if self.medium_of(requested) != requested.medium {
            return Some("has moved to another medium");
        }
        if requested.usb.is_some_and(|usb| self.real().passed(&self.share, usb) == PassedState::Swapped) {
            return Some("another device has taken its place");
        }
        let is_read =
            requested.what.frames().is_some() && requested.listed.iter().any(|it| self.share.is_being_read(it));
        is_read.then_some("would not be shared any more")
    }

    /// What a replacement could not continue: one sentence for each device.
    pub fn unmovable(&self) -> Vec<String> {
        let all = self.all();
        let why = |requested: &RequestedShare| {
            let obstacle = self.obstacle(requested)?;
            Some(format!("{} was shared by a command, and {obstacle}", requested.passed.name))
        };
        all.shares.values().filter_map(why).collect()
    }

    /// Closes the files of disks that have moved to another medium: the old one is free.
    pub fn release_moved(&self) {
        let mut all = self.all();
        for requested in all.shares.values_mut().filter(|requested| !requested.passed.files.is_empty()) {
            if !requested.listed.is_empty() && self.medium_of(requested) != requested.medium {
                requested.passed.files.clear();
            }
        }
    }

    /// What a replacement gets: all that it can continue.
    pub fn leaving(&self) -> Vec<PassedShare> {
        let all = self.all();
        let leaves = |requested: &&RequestedShare| self.obstacle(requested).is_none();
        let passed = |requested: &RequestedShare| {
            let first_in_port = match requested.what.usb() {
                Some(UsbDeviceSelector::BusId(bus_id)) => self.real().first_of_passed(bus_id),
                _ => None,
            };
            PassedShare { first_in_port, ..requested.passed.clone() }
        };
        all.shares.values().filter(leaves).map(passed).collect()
    }

    /// Notes that a replacement has the devices: what happens to the leases is its concern.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
    }

    /// Takes the devices of the process before this one. [`RequestedShares::offer_inherited`] offers them.
    pub fn inherit(&self, passed: Vec<PassedShare>) {
        let mut all = self.all();
        for passed in passed {
            match passed.words.parse::<DeviceSpec>() {
                Ok(what) => {
                    all.last += 1;
                    let number = all.last;
                    let requested = RequestedShare { passed, what, listed: Vec::new(), medium: None, usb: None };
                    all.shares.insert(number, requested);
                }
                Err(error) => warn!(name = passed.name, error, "not shared any more"),
            }
        }
    }

    /// Offers the devices of the process before this one, once it has ended.
    pub fn offer_inherited(&self) {
        for mut requested in self.take(|_, requested| requested.listed.is_empty()) {
            match self.offer(&mut requested, false) {
                Ok(_) => {
                    let mut all = self.all();
                    all.last += 1;
                    let number = all.last;
                    all.shares.insert(number, requested);
                }
                Err(error) => {
                    warn!(name = requested.passed.name, error, "not shared any more");
                    // Most likely it was unplugged meanwhile.
                    if let Some(lease) = requested.passed.lease.as_ref().filter(|_| requested.what.usb().is_some()) {
                        tell(lease, IS_UNPLUGGED);
                    }
                }
            }
        }
        self.wake.wake();
    }

    fn leases(&self) -> Vec<(u64, Arc<OwnedFd>)> {
        let all = self.all();
        let offered = all.shares.iter().filter(|(_, requested)| !requested.listed.is_empty());
        offered
            .filter_map(|(number, requested)| Some((*number, Arc::clone(requested.passed.lease.as_ref()?))))
            .collect()
    }

    fn end(&self, number: u64) {
        if self.is_handed_over.load(Ordering::Acquire) {
            return;
        }
        for requested in self.take(|other, _| other == number) {
            info!(name = requested.passed.name, "the command that shared it has ended");
            self.stop(&requested);
        }
    }
}

impl PassedShare {
    fn naming(&self) -> DeviceNaming<'_> {
        DeviceNaming::of(&self.name, self.is_named)
    }
}

impl Drop for RequestedShares {
    fn drop(&mut self) {
        self.wake.wake();
    }
}

/// Ends the devices whose leases have ended, until the object is dropped.
fn watch(requested: &Weak<RequestedShares>, wake: &ThreadWaker) {
    loop {
        wake.clear();
        let Some(held) = requested.upgrade().map(|requested| requested.leases()) else { return };
        let fds: Vec<_> = held.iter().map(|(_, lease)| lease.as_fd()).collect();
        let Ok(ended) = wait_for_ends(wake, &fds) else {
            // Most likely there is no memory: the devices stay shared meanwhile.
            thread::sleep(PAUSE);
            continue;
        };
        let Some(requested) = requested.upgrade() else { return };
        for ((number, _), _) in held.iter().zip(ended).filter(|(_, has_ended)| *has_ended) {
            requested.end(*number);
        }
        if requested.is_handed_over.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Tells the command at the other end of a lease why its share ends.
fn tell(lease: &OwnedFd, why: &[u8]) {
    let sent = lease.try_clone().map(UnixStream::from).and_then(|mut stream| {
        stream.set_nonblocking(true)?;
        stream.write_all(why)
    });
    if let Err(error) = sent {
        info!(%error, "the command that shared it is not told");
    }
}

/// Whether a device that is to be called `name` cannot have that name because of one called `listed`.
fn is_taken_by(name: &str, listed: &str) -> bool {
    name == listed || listed.strip_suffix("-a").is_some_and(|bridge| bridge == name)
}

/// The name of a device without what tells the ends of a bridge apart.
fn base_of<'a>(what: &DeviceSpec, listed: &'a str) -> &'a str {
    match what {
        DeviceSpec::Bridge(_) => listed.strip_suffix("-a").unwrap_or(listed),
        _ => listed,
    }
}
