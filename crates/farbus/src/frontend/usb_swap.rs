//! The USB device of an attachment is exchanged for its twin while it is in use (requirement N12): for one of this
//! machine, or one of another host, and back.
//!
//! Every front end that passes on a USB device has it as a [`SwapUsb`]: the kernel's relay, a virtual machine's, and
//! the server of a program's devices. It is the lowest layer that belongs to the front end: layers that hide a device's
//! distance are above it, so that nothing that arrived ahead of its user is lost.
//!
//! Two threads take part. The engine of the front end owns the device ([`SwapUsb`], over
//! [`farbus_session::twin::TwinnedDevice`]) and exchanges it. A thread of the swap does what takes time: it opens the twin of
//! another host, waits for the outcome, and gives back the device that was replaced.
//!
//! | what ends | while the device is at its own host | while a twin has its place |
//! |---|---|---|
//! | the device, or its session | the attachment ends | the same: the twin was unplugged, or its session ended |
//! | the attachment | the device is given back | the twin is given back, to this machine's drivers or to its host |
//! | the process, for a replacement | the replacement continues | refused: the replacement knows only the device's own host |

use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant as WallInstant};

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_io_linux::usb::UsbDevice;
use farbus_io_net::link::{BoottimeClock, ThreadWaker};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_io_net::trust::Peer;
use farbus_model::{
    BufferPool, CompletionQueue, Device, DeviceLayer, DeviceSwapOutcome, DeviceSwapReport, Instant, OwnerCommandError,
    SwapCandidate, TransferDirection, Urb, UrbId, UrbInFlight,
};
use farbus_session::PortResetPolicy;
use farbus_session::native::RemoteUsb;
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use farbus_session::twin::TwinnedDevice;
use tracing::{info, warn};

use crate::devices::class_words::classes_of;
use crate::devices::local_twin::{self, EXCHANGE_TIME_MAX, not_begun};
use crate::devices::swap_run::{DONE, FAILED, SwapRun};
use crate::frontend::AttachmentEnd;
use crate::frontend::remote_usb::FarDevice;
use crate::importer::client::{DeviceTarget, GRACE, ImporterClient};
use crate::importer::discovery::local_shares::is_same;
use crate::importer::session::connection::{LinkedDevice, SessionResumption};
use crate::importer::session::status::SessionStatus;

/// Why a device is not held that is being exchanged.
pub const IS_SWAPPING: &str = "it is being swapped (farbus swap HOST/DEVICE watches it)";
/// Why a device is not exchanged that is on its way to another host.
pub const IS_MOVING: &str = "it is held, or on its way to another host (farbus resume ends that)";
/// How long a swap may take to end when its attachment has ended: a twin is given back meanwhile.
const END_TIME_MAX: Duration = Duration::from_secs(3);
/// The first version of a snapshot that says what the device's user has told it.
const VERSION_OF_SETTINGS: u16 = 13;
/// Why a device does not migrate whose twin serves its user.
pub const TWIN_IS_HERE: &str =
    "a twin has its place (farbus swap); to bring it back: farbus swap HOST/DEVICE --to HOST/DEVICE";

/// One of the two devices of an exchange.
pub struct AttachedUsb {
    device: LocatedUsbDevice,
    /// How much later the engine's clock reads than the device's own.
    lead: Duration,
}

enum LocatedUsbDevice {
    /// At another host: the attachment's own device, or a twin.
    Far(Box<FarDevice>),
    /// On this machine; the text says where it is plugged in.
    Here(Box<dyn Device>, String),
}

impl AttachedUsb {
    /// A device of another host, for an engine with this clock.
    fn far(device: FarDevice, engine: BoottimeClock) -> Self {
        let lead = engine.ahead_of(device.clock());
        Self { device: LocatedUsbDevice::Far(Box::new(device)), lead }
    }

    /// A device of this machine at `at`.
    fn here(device: UsbDevice, at: &str) -> Self {
        Self { device: LocatedUsbDevice::Here(Box::new(device), at.to_owned()), lead: Duration::ZERO }
    }

    /// The device's time at the engine's moment.
    fn its(&self, now: Instant) -> Instant {
        let lead = u64::try_from(self.lead.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(now.as_nanos().saturating_sub(lead).max(1))
    }

    fn session(&self) -> Option<SessionStatus> {
        match &self.device {
            LocatedUsbDevice::Far(device) => device.status(),
            LocatedUsbDevice::Here(..) => None,
        }
    }

    /// Gives it back, to its host or to this machine's drivers.
    fn give_back(mut self) {
        if let LocatedUsbDevice::Far(device) = &mut self.device {
            let mut done = CompletionQueue::new(BufferPool::new(0));
            device.close(&mut done);
            while done.pop().is_some() {}
        }
    }
}

impl DeviceLayer for AttachedUsb {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        match &self.device {
            LocatedUsbDevice::Far(device) => &**device,
            LocatedUsbDevice::Here(device, _) => &**device,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        match &mut self.device {
            LocatedUsbDevice::Far(device) => &mut **device,
            LocatedUsbDevice::Here(device, _) => &mut **device,
        }
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().cancel(now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner().poll_timeout().map(|at| at + self.lead)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().handle_timeout(now, done);
    }

    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().end_turn(now, done);
    }

    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        let now = self.its(now);
        self.inner_mut().handle_ready(now, done);
    }
}

/// The device of an attachment, which a twin may replace.
pub struct SwapUsb {
    device: TwinnedDevice<AttachedUsb>,
    swap: UsbSwap,
}

impl SwapUsb {
    /// Wraps an attachment's own device.
    pub fn new(device: FarDevice, swap: UsbSwap) -> Self {
        let clock = device.clock();
        swap.with(|state| (state.clock, state.session) = (Some(clock), device.status()));
        let device = Self { device: TwinnedDevice::new(Box::new(AttachedUsb::far(device, clock))), swap };
        device.note_interfaces();
        device
    }

    /// Shows in the status what it is. A device that another host has yet to hand over says so once it is open.
    fn note_interfaces(&self) {
        if self.is_open() {
            let interfaces = classes_of(Device::descriptors(&self.device));
            self.swap.with(|state| state.interfaces = interfaces);
        }
    }

    /// Continues with a device that another process saved ([`SwapUsb::save_to`]), which may have open requests.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(redial: SessionResumption, swap: UsbSwap, from: &mut FieldReader<'_>) -> io::Result<Self> {
        let linked = LinkedDevice::<RemoteUsb>::restore(redial, from)?;
        let mut requests: Vec<Urb> = linked.remote().requests().cloned().collect();
        // In the order of their submission.
        requests.sort_unstable_by_key(|urb| urb.id);
        let mut restored = Self::new(FarDevice::Session(Box::new(linked)), swap);
        requests.iter().for_each(|urb| restored.device.adopt(urb));
        // A process of an earlier release says nothing of that: its device's twin is not told what came before.
        if from.version() >= VERSION_OF_SETTINGS
            && let Err(reject) = restored.device.restore_settings(from)
        {
            restored.leave();
            return Err(io::Error::new(io::ErrorKind::InvalidData, reject.to_string()));
        }
        Ok(restored)
    }

    /// What an exporter to a kernel does when the kernel resets the device's port: an exporter at the other end of
    /// plain USB/IP sees that itself.
    pub fn on_reset(&self) -> PortResetPolicy {
        match self.far() {
            Some(FarDevice::Plain(_)) => PortResetPolicy::PassOn,
            Some(FarDevice::Session(_)) | None => PortResetPolicy::ResetDevice,
        }
    }

    /// The open requests of a device in a session: id, direction, length.
    pub fn in_flight_of(&self) -> Vec<(UrbId, TransferDirection, u32)> {
        self.far().map(FarDevice::in_flight_of).unwrap_or_default()
    }

    /// Whether it has a link, or is on this machine.
    pub fn is_linked(&self) -> bool {
        self.far().is_none_or(FarDevice::is_linked)
    }

    /// The clock of its engine.
    pub fn clock(&self) -> BoottimeClock {
        self.swap.with(|state| state.clock).unwrap_or_else(BoottimeClock::start)
    }

    /// The far device's [`FarDevice::local_address`]; `None` for a twin on this machine.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.far().and_then(FarDevice::local_address)
    }

    /// As [`FarDevice::device_id`]; 0 for a twin on this machine.
    pub fn device_id(&self) -> u32 {
        self.far().map_or(0, FarDevice::device_id)
    }

    /// How it is attached, in a few words; see [`FarDevice::how`].
    pub fn how(&self) -> &'static str {
        self.far().map_or("on this machine", FarDevice::how)
    }

    /// What exchanges it.
    pub fn handle(&self) -> UsbSwap {
        self.swap.clone()
    }

    /// The far device's [`FarDevice::requests_max`]; `None` for a twin on this machine.
    pub fn requests_max(&self) -> Option<u16> {
        self.far().and_then(FarDevice::requests_max)
    }

    /// Whether a replacement process can continue with it ([`FarDevice::is_movable`]); never true for a twin here.
    pub fn is_movable(&self) -> bool {
        self.far().is_some_and(FarDevice::is_movable)
    }

    fn far(&self) -> Option<&FarDevice> {
        match &DeviceLayer::inner(&self.device).device {
            LocatedUsbDevice::Far(device) => Some(device),
            LocatedUsbDevice::Here(..) => None,
        }
    }

    fn far_mut(&mut self) -> Option<&mut FarDevice> {
        match &mut DeviceLayer::inner_mut(&mut self.device).device {
            LocatedUsbDevice::Far(device) => Some(device),
            LocatedUsbDevice::Here(..) => None,
        }
    }

    /// Whether it is the attachment's own device, and is not being exchanged.
    pub fn is_own(&self) -> bool {
        !self.device.is_swapping() && self.swap.replaced_by().is_none()
    }

    /// Whether it is being exchanged.
    pub fn is_swapping(&self) -> bool {
        self.device.is_swapping()
    }

    /// The order to exchange it, if there is one.
    pub fn take_order(&self) -> Option<UsbSwapOrder> {
        self.swap.take_order()
    }

    /// Begins to exchange it as ordered, or refuses for the reason that is given.
    pub fn exchange(&mut self, now: Instant, order: UsbSwapOrder, refusal: Option<&str>, done: &mut CompletionQueue) {
        let UsbSwapOrder { twin, tell } = order;
        let is_disk = Device::descriptors(&self.device).stores_data();
        let refusal = match refusal {
            Some(why) => Some(why.to_owned()),
            None if self.device.is_swapping() => Some(IS_SWAPPING.to_owned()),
            None if is_disk => Some("it is a disk, and another one has other data on it".to_owned()),
            None => self.device.difference(&twin).map(|why| format!("it is not like the other device: {why}")),
        };
        if let Some(why) = refusal {
            return tell.tell(Err((FailureKind::Refused, why, Some(twin))));
        }
        let twin = SwapCandidate::new(twin, move |outcome| {
            tell.tell(match outcome {
                DeviceSwapOutcome::Done { left, report } => Ok((left, report)),
                DeviceSwapOutcome::Failed { twin, why } => Err((FailureKind::Device, why, twin)),
            });
        });
        if let Err(OwnerCommandError(why)) = self.device.swap(now, &twin, done) {
            twin.tell(DeviceSwapOutcome::Failed { twin: twin.take(), why });
        }
    }

    /// Whether it is here ([`FarDevice::is_open`]); a twin on this machine always is.
    pub fn is_open(&self) -> bool {
        self.far().is_none_or(FarDevice::is_open)
    }

    /// Takes the far device's migration state ([`FarDevice::take_migration_state`]); empty for a twin on this machine.
    pub fn take_migration_state(&mut self) -> Vec<u8> {
        self.note_interfaces();
        self.far_mut().map(FarDevice::take_migration_state).unwrap_or_default()
    }

    /// As [`FarDevice::may_move`].
    ///
    /// # Errors
    /// Why it cannot migrate.
    pub fn may_move(&self) -> Result<(), &'static str> {
        match self.far() {
            _ if self.device.is_swapping() => Err(IS_SWAPPING),
            _ if self.swap.replaced_by().is_some() => Err(TWIN_IS_HERE),
            Some(device) if device.may_move() => Ok(()),
            _ => Err("it has no session that could be handed over (a paired host, or --grace SECONDS)"),
        }
    }

    /// As [`FarDevice::save_to`], with what its user has told it.
    pub fn save_to(&mut self, to: &mut SnapshotWriter) -> bool {
        let is_saved = self.is_own() && self.far_mut().is_some_and(|device| device.save_to(to));
        if is_saved {
            self.device.save_settings(to);
        }
        is_saved
    }

    /// Leaves the far device to a replacement process ([`FarDevice::leave`]); a twin on this machine stays.
    pub fn leave(&mut self) {
        self.far_mut().into_iter().for_each(FarDevice::leave);
    }

    /// Whether no request is under way ([`FarDevice::is_still`]) and no exchange of the device runs.
    pub fn is_still(&self) -> bool {
        !self.device.is_swapping() && self.far().is_none_or(FarDevice::is_still)
    }

    /// Migrates the far device to the host with the key `successor` ([`FarDevice::migrate`]); a twin stays here.
    pub fn migrate(&mut self, successor: [u8; 32], migration_state: Vec<u8>) {
        if let Some(device) = self.far_mut() {
            device.migrate(successor, migration_state);
        }
    }

    /// Whether it waits for its successor ([`FarDevice::is_moving`]); never true for a twin on this machine.
    pub fn is_moving(&self) -> bool {
        self.far().is_some_and(FarDevice::is_moving)
    }

    /// The status of the session that it is in.
    pub fn status(&self) -> Option<SessionStatus> {
        self.far().and_then(FarDevice::status)
    }

    /// Why it ended, if it has. A device that ends while it is being exchanged is not missed.
    pub fn ended(&self) -> Option<AttachmentEnd> {
        if self.device.is_swapping() {
            return None;
        }
        match &DeviceLayer::inner(&self.device).device {
            LocatedUsbDevice::Far(device) => device.ended(),
            LocatedUsbDevice::Here(device, at) => Device::is_gone(&**device).then(|| {
                let message = format!("its twin at {at} on this machine was unplugged");
                AttachmentEnd::Over(FailureReport::new(FailureKind::Gone, message))
            }),
        }
    }

    /// Gives it back; open requests end. A swap that is under way fails.
    pub fn close(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.swap.end();
        self.device.give_up(now, "the attachment has ended".to_owned(), done);
        match self.far_mut() {
            Some(device) => device.close(done),
            None => Device::reset(&mut self.device, now, done),
        }
    }
}

impl DeviceLayer for SwapUsb {
    type Inner = TwinnedDevice<AttachedUsb>;

    fn inner(&self) -> &TwinnedDevice<AttachedUsb> {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut TwinnedDevice<AttachedUsb> {
        &mut self.device
    }
}

/// A device that is dropped takes no more orders.
impl Drop for SwapUsb {
    fn drop(&mut self) {
        self.swap.end();
    }
}

/// Exchanges the device of an attachment, from any thread.
#[derive(Clone)]
pub struct UsbSwap(Arc<UsbSwapInner>);

impl fmt::Debug for UsbSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsbSwap").field("target", &self.0.target).finish_non_exhaustive()
    }
}

struct UsbSwapInner {
    client: ImporterClient,
    target: DeviceTarget,
    /// Wakes the engine, which looks for an order then.
    wake: Arc<ThreadWaker>,
    has_order: AtomicBool,
    state: Mutex<UsbSwapState>,
}

#[derive(Default)]
struct UsbSwapState {
    order: Option<UsbSwapOrder>,
    /// The engine's clock, once it has the device.
    clock: Option<BoottimeClock>,
    /// The twin that has the device's place: `usb:BUSID` or `HOST:PORT/DEVICE`.
    replaced_by: Option<String>,
    /// The session of the device that serves the attachment, if it is in one.
    session: Option<SessionStatus>,
    /// The classes of the device's interfaces, in words. A twin has the same.
    interfaces: Vec<String>,
    /// The swap that runs, or the last one.
    run: Option<Arc<SwapRun>>,
    /// Whether the attachment has ended.
    is_over: bool,
}

/// Whether this is a device of the host that has `own`.
pub fn is_at(target: &DeviceTarget, own: &DeviceTarget) -> bool {
    is_same(&DeviceTarget { device: own.device.clone(), ..target.clone() }, own)
}

/// Whether both name the same device of a host.
fn same_target(one: &str, other: &str) -> bool {
    matches!((one.parse(), other.parse()), (Ok(one), Ok(other)) if is_same(&one, &other))
}

/// How an exchange ended: with the device that was replaced, or with the reason and the twin.
type UsbSwapOutcome = Result<(Box<AttachedUsb>, DeviceSwapReport), (FailureKind, String, Option<Box<AttachedUsb>>)>;

/// A twin for an engine, and where the outcome is awaited.
pub struct UsbSwapOrder {
    twin: Box<AttachedUsb>,
    tell: UsbSwapReply,
}

struct UsbSwapReply {
    swap: UsbSwap,
    /// What the status says if the twin takes the place.
    replaced_by: Option<String>,
    session: Option<SessionStatus>,
    waiting: SyncSender<UsbSwapOutcome>,
}

impl UsbSwapReply {
    fn tell(&self, outcome: UsbSwapOutcome) {
        if outcome.is_ok() {
            self.swap.with(|state| {
                (state.replaced_by, state.session) = (self.replaced_by.clone(), self.session.clone());
            });
        }
        // The waiting thread may have given up; then what is left is dropped here.
        let _ = self.waiting.try_send(outcome);
    }
}

/// What takes the device's place.
enum UsbSwapDestination {
    Opened(Box<AttachedUsb>),
    Host(Box<ImporterClient>, DeviceTarget),
}

impl UsbSwap {
    /// Exchanges the device of `target`, whose engine is woken by `wake`.
    pub fn new(client: &ImporterClient, target: &DeviceTarget, wake: Arc<ThreadWaker>) -> Self {
        let (has_order, state) = Default::default();
        Self(Arc::new(UsbSwapInner { client: client.clone(), target: target.clone(), wake, has_order, state }))
    }

    fn with<T>(&self, act: impl FnOnce(&mut UsbSwapState) -> T) -> T {
        let mut state: MutexGuard<'_, UsbSwapState> = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut state)
    }

    /// The twin that has the device's place: `usb:BUSID` or `HOST:PORT/DEVICE`; `None` if it is the device itself.
    pub fn replaced_by(&self) -> Option<String> {
        self.with(|state| state.replaced_by.clone())
    }

    /// The address of the host that has the device which serves the attachment: that of its twin, if it is at a host.
    pub fn host(&self) -> String {
        let at = self.replaced_by().filter(|at| !at.starts_with("usb:"));
        let there = at.and_then(|at| at.parse::<DeviceTarget>().ok());
        there.map_or_else(|| self.0.target.address.clone(), |there| there.address)
    }

    /// Whether the attachment has ended, or its device is gone.
    pub fn is_over(&self) -> bool {
        self.with(|state| state.is_over)
    }

    /// The status of the session that serves the attachment now.
    pub fn session(&self) -> Option<SessionStatus> {
        self.with(|state| state.session.clone())
    }

    /// The classes of the device's interfaces, in words, 32 at most; none while another host has yet to hand it over.
    pub fn interfaces(&self) -> Vec<String> {
        self.with(|state| state.interfaces.clone())
    }

    /// Whether a swap is under way.
    pub fn is_running(&self) -> bool {
        self.with(|state| state.run.as_ref().is_some_and(|run| !run.is_over()))
    }

    /// The status of the running or last swap.
    pub fn status(&self) -> Option<SwapStatus> {
        self.with(|state| state.run.as_ref().map(|run| run.status()))
    }

    /// Cancels the swap, as long as its twin is not open. Returns whether one runs.
    pub fn cancel(&self) -> bool {
        self.with(|state| state.run.as_ref().is_some_and(|run| run.cancel()))
    }

    /// Waits until a swap has ended that runs, for [`END_TIME_MAX`] at most. Call it after the attachment has ended and
    /// before its process ends, so that a twin is given back.
    pub fn finish(&self) {
        let run = self.with(|state| state.run.clone());
        run.into_iter().for_each(|run| run.wait(END_TIME_MAX));
    }

    /// Begins to exchange the device, which the user calls `device`, for the one at `to`: `usb:BUSID`, whose open node
    /// is among `files`, or `HOST/DEVICE`. Another host than the device's own is `peer`, if it is paired, and the
    /// passage to a broker that may connect to it is among `files`.
    ///
    /// # Errors
    /// [`FailureReport`]: nothing has changed.
    pub fn begin(&self, device: &str, to: &str, peer: Option<Peer>, files: &PassedFiles) -> Result<(), FailureReport> {
        let not = |attribute, why: &str, hint: &str| not_begun(device, to, attribute, &why, &hint);
        if self.is_running() {
            let hint = format!("watch it: farbus swap {device}");
            return Err(not(FailureKind::Refused, "it is being swapped already", &hint));
        }
        let own = &self.0.target;
        let now_at = self.replaced_by().unwrap_or_else(|| self.0.target.to_string());
        if now_at == to || same_target(&now_at, to) {
            return Err(not(FailureKind::Refused, "it is that one already", "see: farbus status"));
        }
        let destination = match to.parse::<DeviceTarget>() {
            _ if to.starts_with("usb:") => {
                let [node] = files.take().map_err(|error| not(FailureKind::Local, &error.to_string(), "try again"))?;
                let (opened, _) = local_twin::open(device, to, node)?;
                UsbSwapDestination::Opened(Box::new(AttachedUsb::here(opened, to)))
            }
            Ok(target) if is_at(&target, own) => {
                let address = own.address.clone();
                UsbSwapDestination::Host(Box::new(self.0.client.clone()), DeviceTarget { address, ..target })
            }
            Ok(target) if !to.starts_with("block:") => {
                let [broker] =
                    files.take().map_err(|error| not(FailureKind::Local, &error.to_string(), "try again"))?;
                let client = self.0.client.to_another(&target.address, Some(broker), peer);
                let hint = format!("{device} stays what it was");
                let client = client.map_err(|error| not(error.attribute(), &error.to_string(), &hint))?;
                UsbSwapDestination::Host(Box::new(client), target)
            }
            _ => {
                let why =
                    "it is attached as a USB device, and only a disk that is attached as a block device moves there";
                return Err(not(FailureKind::Refused, why, "try: --to usb:BUSID, or --to HOST/DEVICE"));
            }
        };
        let from = self.replaced_by().unwrap_or_else(|| device.to_owned());
        let run = Arc::new(SwapRun::new(local_twin::begun(device, from, to)));
        let is_entered = self.with(|state| {
            let is_free = !state.is_over && state.run.as_ref().is_none_or(|run| run.is_over());
            if is_free {
                state.run = Some(Arc::clone(&run));
            }
            is_free
        });
        if !is_entered {
            return Err(not(FailureKind::Refused, "it is being swapped already, or has ended", "see: farbus status"));
        }
        publish(Event::of(EventKind::SwapBegun, device).how(to));
        let (swap, for_thread) = (self.clone(), Arc::clone(&run));
        let carry_out = move || swap.carry_out(&for_thread, destination);
        thread::Builder::new().name("twin".into()).spawn(carry_out).map(drop).map_err(|error| {
            let report = not(FailureKind::Local, &format!("no thread for it: {error}"), "end some programs");
            run.end(FAILED, |status| status.failure = Some(report.clone()));
            report
        })
    }

    fn carry_out(&self, run: &SwapRun, destination: UsbSwapDestination) {
        let began = WallInstant::now();
        let SwapStatus { device, from, to, .. } = run.status();
        let result = self.open(destination).and_then(|twin| self.exchange(run, twin, &to));
        match result {
            Ok((left, report)) => {
                let quiet_ms = report.quiet.as_secs_f64() * 1e3;
                info!(device, from, to, quiet_ms, replayed = report.replayed, "swapped for its twin");
                // The device is free when the command that began this ends.
                left.give_back();
                run.end(DONE, |status| {
                    (status.quiet_ms, status.elapsed_s) = (quiet_ms, began.elapsed().as_secs_f64());
                    (status.replayed, status.asked_again) = (report.replayed, report.asked_again);
                });
            }
            Err((attribute, why)) => {
                warn!(device, to, why, "not swapped: it stays what it was");
                let hint = format!("{device} stays what it was");
                let report = not_begun(&device, &to, attribute, &why, &hint);
                run.end(FAILED, |status| status.failure = Some(report));
            }
        }
    }

    fn open(&self, destination: UsbSwapDestination) -> Result<AttachedUsb, (FailureKind, String)> {
        match destination {
            UsbSwapDestination::Opened(device) => Ok(*device),
            UsbSwapDestination::Host(client, target) => match FarDevice::open(&client, &target, GRACE) {
                Ok(device) => {
                    let clock = self.with(|state| state.clock).unwrap_or_else(|| device.clock());
                    Ok(AttachedUsb::far(device, clock))
                }
                Err(error) => Err((error.attribute(), error.to_string())),
            },
        }
    }

    /// Lets the engine exchange the device for `twin`, and returns the device that was replaced.
    fn exchange(
        &self,
        run: &SwapRun,
        twin: AttachedUsb,
        to: &str,
    ) -> Result<(AttachedUsb, DeviceSwapReport), (FailureKind, String)> {
        if run.is_cancelled() {
            twin.give_back();
            return Err((FailureKind::Refused, "it was cancelled".to_owned()));
        }
        let (waiting, outcome) = mpsc::sync_channel(1);
        let replaced_by = (!same_target(to, &self.0.target.to_string())).then(|| to.to_owned());
        let tell = UsbSwapReply { swap: self.clone(), replaced_by, session: twin.session(), waiting };
        let order = UsbSwapOrder { twin: Box::new(twin), tell };
        let refused = self.with(|state| {
            if state.is_over {
                return Some(order);
            }
            state.order = Some(order);
            None
        });
        if let Some(order) = refused {
            order.twin.give_back();
            return Err((FailureKind::Gone, "the attachment has ended".to_owned()));
        }
        self.0.has_order.store(true, Ordering::Release);
        self.0.wake.wake();
        match outcome.recv_timeout(EXCHANGE_TIME_MAX) {
            Ok(Ok((left, report))) => Ok((*left, report)),
            Ok(Err((attribute, why, twin))) => {
                twin.into_iter().for_each(|twin| twin.give_back());
                Err((attribute, why))
            }
            Err(_) => {
                // An order that was given up is not carried out later.
                self.take_order().into_iter().for_each(|order| order.twin.give_back());
                Err((FailureKind::Gone, "its attachment has ended, or does not answer".to_owned()))
            }
        }
    }

    /// Exchanges the device for this one, as if it were plugged in at `at`, on a thread of its own.
    #[cfg(test)]
    pub fn exchange_here(&self, device: Box<dyn Device>, at: &str) -> thread::JoinHandle<Result<(), String>> {
        let (swap, at) = (self.clone(), at.to_owned());
        thread::spawn(move || {
            let run = SwapRun::new(local_twin::begun("a device", String::new(), &at));
            let twin = AttachedUsb { device: LocatedUsbDevice::Here(device, at.clone()), lead: Duration::ZERO };
            let (left, _) = swap.exchange(&run, twin, &at).map_err(|(_, why)| why)?;
            left.give_back();
            Ok(())
        })
    }

    fn take_order(&self) -> Option<UsbSwapOrder> {
        let is_ordered = self.0.has_order.load(Ordering::Acquire) && self.0.has_order.swap(false, Ordering::AcqRel);
        if is_ordered { self.with(|state| state.order.take()) } else { None }
    }

    /// The attachment has ended: takes no more orders.
    pub fn end(&self) {
        let order = self.with(|state| {
            state.is_over = true;
            mem::take(&mut state.order)
        });
        if let Some(UsbSwapOrder { twin, tell }) = order {
            tell.tell(Err((FailureKind::Gone, "the attachment has ended".to_owned(), Some(twin))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use farbus_gadgets::EmulatedDevice;
    use farbus_gadgets::serial::SerialGadget;
    use farbus_model::{ConfigurationSelection, DescriptorSet, EpAddr, SetupPacket, Urb, UrbStatus, UsbSpeed};

    use super::*;

    const READ: EpAddr = EpAddr::from_byte(0x81);

    /// A serial port on a cable that may be unplugged.
    struct Plugged {
        device: EmulatedDevice<SerialGadget>,
        is_gone: Arc<AtomicBool>,
    }

    impl Device for Plugged {
        fn descriptors(&self) -> &DescriptorSet {
            self.device.descriptors()
        }
        fn speed(&self) -> UsbSpeed {
            self.device.speed()
        }
        fn selection(&self) -> &ConfigurationSelection {
            self.device.selection()
        }
        fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
            Device::submit(&mut self.device, now, urb, done);
        }
        fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
            Device::cancel(&mut self.device, now, id, done);
        }
        fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
            Device::reset(&mut self.device, now, done);
        }
        fn is_gone(&self) -> bool {
            self.is_gone.load(Ordering::Relaxed)
        }
    }

    fn plugged(at: &str, speed: UsbSpeed) -> (AttachedUsb, Arc<AtomicBool>) {
        let is_gone = Arc::new(AtomicBool::new(false));
        let device = Plugged { device: SerialGadget::device(speed), is_gone: Arc::clone(&is_gone) };
        (AttachedUsb { device: LocatedUsbDevice::Here(Box::new(device), at.to_owned()), lead: Duration::ZERO }, is_gone)
    }

    struct Bench {
        device: SwapUsb,
        swap: UsbSwap,
        now: Instant,
        done: CompletionQueue,
    }

    impl Bench {
        /// A configured serial port, from which a read waits.
        fn new() -> Self {
            let target = "lab3/serial".parse().unwrap();
            let swap = UsbSwap::new(&ImporterClient::default(), &target, Arc::new(ThreadWaker::new().unwrap()));
            let (first, _) = plugged("usb:1-1", UsbSpeed::High);
            let device = SwapUsb { device: TwinnedDevice::new(Box::new(first)), swap: swap.clone() };
            let done = CompletionQueue::new(BufferPool::new(1 << 16));
            let mut bench = Self { device, swap, now: Instant::ZERO + Duration::from_secs(1), done };
            bench.submit(Urb::control(UrbId(1), SetupPacket::set_configuration(1), farbus_model::Payload::Empty));
            assert_eq!(bench.done.pop().map(|done| done.status), Some(UrbStatus::Ok));
            bench.submit(Urb::data_in(UrbId(2), READ, 64));
            assert!(bench.done.is_empty(), "it waits for data");
            bench
        }

        fn submit(&mut self, urb: Urb) {
            Device::submit(&mut self.device, self.now, urb.launch(), &mut self.done);
        }

        /// Gives the device back, which ends the read.
        fn end(mut self) {
            self.device.close(self.now, &mut self.done);
            assert_eq!(self.done.pop().map(|done| (done.id, done.status)), Some((UrbId(2), UrbStatus::Shutdown)));
            assert!(self.done.is_empty());
        }

        fn exchange(&mut self, twin: AttachedUsb, refusal: Option<&str>) -> Receiver<UsbSwapOutcome> {
            let (waiting, outcome) = mpsc::sync_channel(1);
            let replaced_by = Some("usb:1-2".to_owned());
            let tell = UsbSwapReply { swap: self.swap.clone(), replaced_by, session: None, waiting };
            let order = UsbSwapOrder { twin: Box::new(twin), tell };
            self.device.exchange(self.now, order, refusal, &mut self.done);
            for _ in 0..10 {
                self.now = self.now + Duration::from_millis(1);
                Device::handle_timeout(&mut self.device, self.now, &mut self.done);
            }
            outcome
        }
    }

    #[test]
    fn device_that_a_twin_replaced_neither_moves_nor_is_saved_and_ends_with_its_twin() {
        let mut bench = Bench::new();
        assert!(bench.device.is_own());
        let (twin, is_gone) = plugged("usb:1-2", UsbSpeed::High);
        let Ok((left, report)) = bench.exchange(twin, None).try_recv().expect("an outcome") else {
            panic!("it is refused")
        };
        assert!(
            matches!(&left.device, LocatedUsbDevice::Here(_, at) if at == "usb:1-1"),
            "the first one is its owner's again"
        );
        assert_eq!((report.replayed, report.asked_again), (1, 1));
        assert_eq!(bench.swap.replaced_by().as_deref(), Some("usb:1-2"));
        assert!(!bench.device.is_own() && !bench.device.save_to(&mut SnapshotWriter::part()));
        assert_eq!(bench.device.may_move(), Err(TWIN_IS_HERE));
        assert!(bench.device.ended().is_none() && bench.done.is_empty());
        is_gone.store(true, Ordering::Relaxed);
        let Some(AttachmentEnd::Over(report)) = bench.device.ended() else { panic!("it ends as if it were unplugged") };
        assert_eq!(report.attribute, FailureKind::Gone);
        assert!(report.message.contains("usb:1-2"), "{}", report.message);
        bench.end();
    }

    #[test]
    fn refused_twin_returns_to_its_owner_and_changes_nothing() {
        let mut bench = Bench::new();
        for (speed, refusal, part) in [
            (UsbSpeed::Full, None, "high speed, the other at full speed"),
            (UsbSpeed::High, Some("it is held"), "it is held"),
        ] {
            let (twin, _) = plugged("usb:1-2", speed);
            let Err((attribute, why, twin)) = bench.exchange(twin, refusal).try_recv().expect("an outcome") else {
                panic!("{part}: it was exchanged")
            };
            assert!(attribute == FailureKind::Refused && why.contains(part), "{why}");
            assert!(twin.is_some() && bench.device.is_own() && bench.done.is_empty());
        }
        bench.end();
    }

    #[test]
    fn twin_that_is_unplugged_meanwhile_leaves_the_device_in_its_place() {
        let mut bench = Bench::new();
        let (twin, is_gone) = plugged("usb:1-2", UsbSpeed::High);
        is_gone.store(true, Ordering::Relaxed);
        let Err((attribute, why, _)) = bench.exchange(twin, None).try_recv().expect("an outcome") else {
            panic!("it is gone")
        };
        assert_eq!((attribute, why.as_str()), (FailureKind::Device, "the other device was unplugged"));
        assert!(bench.device.is_own() && bench.device.ended().is_none() && bench.done.is_empty());
        bench.end();
    }

    #[test]
    fn attachment_that_has_ended_takes_no_twin() {
        let bench = Bench::new();
        bench.swap.end();
        let failure = bench.swap.begin("lab3/serial", "lab3/other", None, &PassedFiles::default()).unwrap_err();
        assert!(failure.message.contains("has ended"), "{}", failure.message);
        let failure = bench.swap.begin("lab3/serial", "lab4/serial", None, &PassedFiles::default()).unwrap_err();
        assert_eq!(failure.attribute, FailureKind::Local, "no broker came along: {}", failure.message);
        let failure = bench.swap.begin("lab3/serial", "usb:1-2", None, &PassedFiles::default()).unwrap_err();
        assert_eq!(failure.attribute, FailureKind::Local, "its node did not come along: {}", failure.message);
        bench.end();
    }
}
