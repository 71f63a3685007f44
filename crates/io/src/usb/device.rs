//! A real USB device, through usbfs.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant as Clock};

use farbus_model::descriptor::endpoint_of_index;
use farbus_model::usb::{Recipient, request};
use farbus_model::{
    Completions, Descriptors, Device, Direction, EpAddr, InFlight, Instant, Payload, Readiness, Selection, Setup,
    Speed, Status, TransferType, UrbFlags, UrbId,
};
use tracing::warn;

use super::inventory::Found;
use super::iso::{self, Part};
use super::kernel::Kernel;
use super::slab::Slab;
use crate::link::Watched;
use crate::sys::usbfs::{Data, PacketResult, Reap, Reaped, Transfer, Usbfs};

/// How long the kernel may take to give up all transfers before a reset. It kills each within a frame or so; a host controller
/// that does not answer any more is declared dead by its own driver after five seconds.
const WITHDRAW_TIME_MAX: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(6) };
/// A setup packet's length, which a control transfer's buffer begins with.
const SETUP_BYTES: usize = 8;

/// A device that is taken from this machine's drivers for as long as this lives, and given back after.
///
/// | the client asks | the kernel is asked |
/// |---|---|
/// | a transfer | the same, in pieces if it is isochronous with more packets than usbfs takes |
/// | SET_CONFIGURATION of the active one | setting 0 where another is active, halts cleared; not sent again |
/// | SET_CONFIGURATION of another one | interfaces released, configuration set, interfaces claimed |
/// | SET_INTERFACE, CLEAR_FEATURE(ENDPOINT_HALT) | the call of that meaning, waited for: host and device stay of one mind |
/// | a reset | all transfers given up and answered; interfaces released, port reset, interfaces claimed |
///
/// None of these requests is sent raw as well.
pub struct UsbDevice<K: Kernel = Usbfs> {
    kernel: K,
    readiness: Option<Readiness>,
    descriptors: Descriptors,
    speed: Speed,
    /// What its user has made active. The kernel's alternate settings are the same, its configuration is `active`.
    selection: Selection,
    /// The kernel's active configuration, 0 if none.
    active: u8,
    /// The one it had when it was taken.
    original: u8,
    claimed: Vec<u8>,
    /// Endpoints that stalled and were not cleared, by [`EpAddr::index`].
    halted: u32,
    requests: Slab<Request>,
    /// What the kernel holds; the names are the slots it is lent in.
    pieces: Slab<Piece>,
    packet_results: Vec<PacketResult>,
    is_gone: bool,
}

/// A request of the client's.
struct Request {
    urb: InFlight,
    is_cancelled: bool,
    /// Pieces that the kernel still holds.
    outstanding: usize,
    /// How it will end, whatever else comes back.
    failure: Option<Status>,
    /// Isochronous: its pieces, in order.
    parts: Vec<Part>,
}

/// A transfer that the kernel holds.
struct Piece {
    request: usize,
    part: usize,
}

/// Why a device cannot be taken.
#[derive(Debug)]
pub enum OpenError {
    /// This user may not open its node.
    NotAllowed {
        /// The node.
        node: PathBuf,
    },
    /// Another program uses it through usbfs.
    Busy {
        /// The interface.
        interface: u8,
    },
    /// It is not there any more.
    Gone,
    /// Anything else.
    Os {
        /// In doing what.
        doing: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotAllowed { node } => write!(
                f,
                "no permission for {}: run as root, or let a udev rule give it to you (guide, \"Real devices\")",
                node.display()
            ),
            OpenError::Busy { interface } => {
                write!(f, "another program uses its interface {interface}: end that program first")
            }
            OpenError::Gone => f.write_str("it was unplugged"),
            OpenError::Os { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    fn of(doing: &'static str, error: io::Error) -> Self {
        use rustix::io::Errno;
        match Errno::from_io_error(&error) {
            Some(Errno::NODEV | Errno::NOENT | Errno::NXIO) => OpenError::Gone,
            _ => OpenError::Os { doing, error },
        }
    }
}

impl UsbDevice {
    /// Takes `found`: its drivers let go of it.
    ///
    /// # Errors
    /// [`OpenError`]; its drivers have it again then.
    pub fn open(found: &Found) -> Result<Self, OpenError> {
        let usbfs = Usbfs::open(&found.node).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => OpenError::NotAllowed { node: found.node.clone() },
            _ => OpenError::of("opening it", error),
        })?;
        Self::over(usbfs, found)
    }

    /// Takes `found`, whose node somebody else opened who may.
    ///
    /// # Errors
    /// [`OpenError`]; its drivers have it again then.
    pub fn open_through(node: OwnedFd, found: &Found) -> Result<Self, OpenError> {
        Self::over(Usbfs::over(node), found)
    }

    fn over(usbfs: Usbfs, found: &Found) -> Result<Self, OpenError> {
        let readiness = Watched::readiness(usbfs.descriptor());
        Self::take(usbfs, Some(readiness), found)
    }
}

impl<K: Kernel> UsbDevice<K> {
    /// Takes what `kernel` opened.
    pub(super) fn take(kernel: K, readiness: Option<Readiness>, found: &Found) -> Result<Self, OpenError> {
        // vhci knows no faster than SuperSpeed, and to a device's drivers the difference is none.
        let speed = found.speed.min(Speed::Super);
        let mut device = Self {
            kernel,
            readiness,
            descriptors: found.descriptors.clone(),
            speed,
            selection: Selection::default(),
            active: found.configuration,
            original: found.configuration,
            claimed: Vec::new(),
            halted: 0,
            requests: Slab::new(),
            pieces: Slab::new(),
            packet_results: Vec::new(),
            is_gone: false,
        };
        // On failure it is dropped, which gives back what was taken so far.
        device.claim_all()?;
        Ok(device)
    }

    fn interfaces(&self) -> Vec<u8> {
        let configuration = self.descriptors.configuration(self.active);
        let mut numbers: Vec<u8> =
            configuration.map(|c| c.settings.iter().map(|setting| setting.interface).collect()).unwrap_or_default();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn claim_all(&mut self) -> Result<(), OpenError> {
        for interface in self.interfaces() {
            self.kernel.claim(interface).map_err(|error| match error.kind() {
                io::ErrorKind::ResourceBusy => OpenError::Busy { interface },
                _ => OpenError::of("taking it from its driver", error),
            })?;
            self.claimed.push(interface);
        }
        Ok(())
    }

    fn release_all(&mut self) {
        for interface in std::mem::take(&mut self.claimed) {
            // What is not held any more was released already: a device that was unplugged, or configured by somebody else.
            let _ = self.kernel.release(interface);
        }
    }

    /// Claims again after a change that needed all interfaces released.
    fn claim_again(&mut self, done: &mut Completions) {
        match self.claim_all() {
            Ok(()) => {}
            Err(OpenError::Gone) => self.lose(done),
            Err(error) => warn!(%error, device = %self.descriptors.title(), "an interface could not be taken again"),
        }
    }

    // Requests to the device itself.

    fn control(&mut self, mut urb: InFlight, done: &mut Completions) {
        let setup = urb.setup;
        match self.call_for(setup, done) {
            Some(Ok(())) => {
                let accepted = match urb.direction {
                    Direction::Out => urb.accept(),
                    Direction::In => urb.answer(Payload::Empty),
                };
                return done.push(accepted);
            }
            Some(Err(status)) => return done.push(urb.fail(status)),
            None => {}
        }
        // Both ways in one buffer behind the setup packet, as usbfs has it.
        let mut buffer = done.pool.take(SETUP_BYTES + usize::from(setup.length));
        buffer[..SETUP_BYTES].copy_from_slice(&setup.to_bytes());
        let flags = UrbFlags { short_not_ok: urb.flags.short_not_ok && reads(setup), ..UrbFlags::default() };
        if !reads(setup) {
            let payload = urb.take_payload();
            let sent = payload.copy_to(&mut buffer[SETUP_BYTES..]);
            buffer[SETUP_BYTES + sent..].fill(0);
            done.pool.recycle(payload);
        }
        self.begin(urb, TransferType::Control, flags, Data::In(buffer), done);
    }

    /// The requests that become calls, done; `None` for all others.
    fn call_for(&mut self, setup: Setup, done: &mut Completions) -> Option<Result<(), Status>> {
        if setup.is_standard(request::SET_CONFIGURATION, Recipient::Device) {
            Some(self.configure(setup.value as u8, done))
        } else if setup.is_standard(request::SET_INTERFACE, Recipient::Interface) {
            Some(self.set_interface(setup.index as u8, setup.value as u8, done))
        } else if setup.is_standard(request::CLEAR_FEATURE, Recipient::Endpoint)
            && setup.value == request::ENDPOINT_HALT
            && !endpoint_of_index(setup.index).is_control()
        {
            Some(self.clear_halt(endpoint_of_index(setup.index)))
        } else if setup.is_standard(request::SET_ADDRESS, Recipient::Device) {
            // Its address is this machine's to give.
            Some(Err(Status::Stall))
        } else {
            None
        }
    }

    fn configure(&mut self, value: u8, done: &mut Completions) -> Result<(), Status> {
        if value != 0 && self.descriptors.configuration(value).is_none() {
            return Err(Status::Stall);
        }
        self.withdraw(done, |endpoint| !endpoint.is_control());
        if value == self.active {
            self.start_configuration_afresh()?;
        } else {
            self.release_all();
            let result = self.kernel.set_configuration(value);
            if result.is_ok() {
                self.active = value;
            }
            self.claim_again(done);
            result?;
        }
        self.selection.select_configuration(&self.descriptors, value);
        self.halted = 0;
        Ok(())
    }

    /// What SET_CONFIGURATION does to a device that has it already: default settings, no halts.
    fn start_configuration_afresh(&mut self) -> Result<(), Status> {
        for (interface, _) in self.selection.alternates().to_vec() {
            self.kernel.set_interface(interface, 0)?;
        }
        let halted = std::mem::take(&mut self.halted);
        let halted_endpoints: Vec<EpAddr> =
            self.selection.endpoints().map(|endpoint| endpoint.address).filter(|a| halted & bit(*a) != 0).collect();
        for endpoint in halted_endpoints {
            self.kernel.clear_halt(endpoint.as_byte())?;
        }
        Ok(())
    }

    fn set_interface(&mut self, interface: u8, alternate: u8, done: &mut Completions) -> Result<(), Status> {
        let configuration = self.descriptors.configuration(self.selection.configuration());
        let Some(configuration) = configuration.filter(|c| c.setting(interface, alternate).is_some()) else {
            return Err(Status::Stall);
        };
        let settings = configuration.settings.iter().filter(|setting| setting.interface == interface);
        let theirs =
            settings.flat_map(|setting| &setting.endpoints).fold(0, |all, endpoint| all | bit(endpoint.address));
        self.withdraw(done, |endpoint| theirs & bit(endpoint) != 0);
        self.kernel.set_interface(interface, alternate)?;
        self.selection.select_interface(&self.descriptors, interface, alternate);
        self.halted &= !theirs;
        Ok(())
    }

    fn clear_halt(&mut self, endpoint: EpAddr) -> Result<(), Status> {
        if self.selection.endpoint(endpoint).is_none() {
            return Err(Status::Stall);
        }
        self.kernel.clear_halt(endpoint.as_byte())?;
        self.halted &= !bit(endpoint);
        Ok(())
    }

    // Transfers.

    fn data(&mut self, mut urb: InFlight, kind: TransferType, done: &mut Completions) {
        let is_in = urb.direction == Direction::In;
        let flags = UrbFlags {
            short_not_ok: is_in && urb.flags.short_not_ok,
            zero_packet: !is_in && urb.flags.zero_packet,
            iso_asap: false,
        };
        if is_in {
            let room = done.pool.take(urb.length as usize);
            return self.begin(urb, kind, flags, Data::In(room), done);
        }
        let payload = urb.take_payload();
        // The kernel copies while it takes: not even a window on a receive buffer has to be kept.
        self.begin(urb, kind, flags, Data::Out(&payload.contiguous()), done);
        done.pool.recycle(payload);
    }

    fn begin(&mut self, urb: InFlight, kind: TransferType, flags: UrbFlags, data: Data<'_>, done: &mut Completions) {
        let endpoint = urb.endpoint.as_byte();
        let request = self.requests.insert(Request {
            urb,
            is_cancelled: false,
            outstanding: 1,
            failure: None,
            parts: Vec::new(),
        });
        let slot = self.pieces.insert(Piece { request, part: 0 });
        let transfer = Transfer { kind, endpoint, flags, data, packets: &[], start_frame: 0 };
        if let Err(status) = self.kernel.submit(slot, transfer) {
            self.pieces.remove(slot);
            let refused = self.requests.remove(request).expect("inserted just now");
            done.push(refused.urb.fail(status));
            self.note_loss(status, done);
        }
    }

    fn isochronous(&mut self, mut urb: InFlight, done: &mut Completions) {
        if urb.iso.is_empty() {
            return done.push(urb.done_iso(Vec::new(), Payload::Empty));
        }
        if iso::total(&urb.iso, urb.length).is_none() {
            return done.push(urb.fail(Status::Invalid));
        }
        let flags = UrbFlags { iso_asap: urb.flags.iso_asap, ..UrbFlags::default() };
        let (endpoint, start_frame, is_in) = (urb.endpoint.as_byte(), urb.start_frame, urb.direction == Direction::In);
        let payload = urb.take_payload();
        let packets = urb.iso.clone();
        let count = iso::split(&packets).count();
        let parts = (0..count).map(|_| Part::default()).collect();
        let request =
            self.requests.insert(Request { urb, is_cancelled: false, outstanding: count, failure: None, parts });
        let bytes = payload.contiguous();
        let mut failure = None;
        for (part, packets) in iso::split(&packets).enumerate() {
            let lengths = iso::lengths(packets);
            let gathered;
            let data = if is_in {
                Data::In(vec![0; lengths.iter().sum::<u32>() as usize])
            } else if iso::is_gapless(packets) {
                let (first, last) = (packets[0], packets[packets.len() - 1]);
                let range = first.offset as usize..(last.offset + last.length) as usize;
                Data::Out(bytes.get(range).unwrap_or_default())
            } else {
                gathered = iso::gather(packets, &bytes);
                Data::Out(&gathered)
            };
            let slot = self.pieces.insert(Piece { request, part });
            let kind = TransferType::Isochronous;
            let transfer = Transfer { kind, endpoint, flags, data, packets: &lengths, start_frame };
            if let Err(status) = self.kernel.submit(slot, transfer) {
                self.pieces.remove(slot);
                failure = Some((status, count - part));
                break;
            }
        }
        drop(bytes);
        done.pool.recycle(payload);
        if let Some((status, missing)) = failure {
            self.fail_as_a_set(request, status, missing, done);
        }
    }

    /// One of its pieces was not taken: those before it come back, and then it fails.
    fn fail_as_a_set(&mut self, request: usize, status: Status, missing: usize, done: &mut Completions) {
        let unfinished = self.requests.get_mut(request).expect("inserted just now");
        unfinished.failure = Some(status);
        unfinished.outstanding -= missing;
        if unfinished.outstanding == 0 {
            self.finish(request, done);
        } else {
            self.discard(request);
            self.reap(done);
        }
        self.note_loss(status, done);
    }

    fn discard(&mut self, request: usize) {
        let slots: Vec<usize> =
            self.pieces.iter().filter(|(_, piece)| piece.request == request).map(|(slot, _)| slot).collect();
        // The last first: an endpoint goes on with what is queued behind a piece that is taken out.
        for slot in slots.into_iter().rev() {
            self.kernel.discard(slot);
        }
    }

    /// Takes back what has ended.
    fn reap(&mut self, done: &mut Completions) {
        while !self.is_gone {
            match self.kernel.reap(&mut self.packet_results) {
                Reap::Done(reaped) => self.take_back(reaped, done),
                Reap::Nothing => return,
                Reap::Gone => return self.lose(done),
            }
            if self.pieces.is_empty() {
                return;
            }
        }
    }

    fn take_back(&mut self, reaped: Reaped, done: &mut Completions) {
        let piece = self.pieces.remove(reaped.slot).expect("the kernel gives back what it holds");
        let request = self.requests.get_mut(piece.request).expect("a request waits for its pieces");
        request.outstanding -= 1;
        let status = match reaped.status {
            Status::Cancelled if request.is_cancelled => Status::Cancelled,
            // Killed, and nobody asked: the device or its interface went away.
            Status::Cancelled | Status::Shutdown if self.kernel.is_connected() => Status::Shutdown,
            Status::Cancelled | Status::Shutdown => Status::Gone,
            status => status,
        };
        if request.parts.is_empty() {
            let request = self.requests.remove(piece.request).expect("looked up just now");
            if status == Status::Stall && !request.urb.endpoint.is_control() {
                self.halted |= bit(request.urb.endpoint);
            }
            return done.push(single_done(request.urb, status, reaped));
        }
        if matches!(status, Status::Cancelled | Status::Shutdown | Status::Gone) {
            request.failure.get_or_insert(status);
        }
        let part = &mut request.parts[piece.part];
        part.buffer = reaped.buffer;
        part.results.clone_from(&self.packet_results);
        if request.outstanding == 0 {
            self.finish(piece.request, done);
        }
    }

    /// All pieces of an isochronous request are back.
    fn finish(&mut self, request: usize, done: &mut Completions) {
        let Request { urb, failure, parts, .. } = self.requests.remove(request).expect("it waited for its pieces");
        match failure {
            Some(status) => done.push(urb.fail(status)),
            None => {
                let (packets, payload) = iso::join(&urb.iso, parts);
                done.push(urb.done_iso(packets, payload));
            }
        }
    }

    /// Gives up every transfer on the endpoints that `which` names and answers its request.
    fn withdraw(&mut self, done: &mut Completions, which: impl Fn(EpAddr) -> bool) {
        let hit: Vec<usize> =
            self.requests.iter().filter(|(_, r)| which(r.urb.endpoint)).map(|(name, _)| name).collect();
        if hit.is_empty() {
            return;
        }
        for &request in hit.iter().rev() {
            // Whatever was done of it, its answer is that it was withdrawn.
            self.requests.get_mut(request).expect("listed just now").is_cancelled = false;
            self.discard(request);
        }
        let until = Clock::now() + WITHDRAW_TIME_MAX;
        let is_held = |requests: &Slab<Request>| requests.iter().any(|(_, request)| which(request.urb.endpoint));
        loop {
            self.reap(done);
            if self.is_gone || !is_held(&self.requests) {
                return;
            }
            let left = until.saturating_duration_since(Clock::now());
            if left.is_zero() {
                warn!(device = %self.descriptors.title(), "the kernel does not give its transfers up; it counts as gone");
                return self.lose(done);
            }
            self.kernel.wait(left);
        }
    }

    fn note_loss(&mut self, status: Status, done: &mut Completions) {
        if status == Status::Gone {
            // What ended before it went is still there to be had.
            self.reap(done);
            self.lose(done);
        }
    }

    /// It was unplugged: whatever is asked of it ends so.
    fn lose(&mut self, done: &mut Completions) {
        self.is_gone = true;
        self.pieces.drain();
        for request in self.requests.drain() {
            done.push(request.urb.fail(Status::Gone));
        }
    }
}

/// Whether the data stage comes from the device. Without one, none does.
fn reads(setup: Setup) -> bool {
    setup.length > 0 && setup.direction() == Direction::In
}

fn bit(endpoint: EpAddr) -> u32 {
    1 << endpoint.index()
}

fn single_done(urb: InFlight, status: Status, reaped: Reaped) -> farbus_model::Done {
    let actual = reaped.actual.min(urb.length);
    if urb.direction == Direction::Out {
        return urb.done(status, actual, Payload::Empty);
    }
    let mut buffer = reaped.buffer;
    if urb.endpoint.is_control() {
        buffer.drain(..SETUP_BYTES.min(buffer.len()));
    }
    buffer.truncate(actual as usize);
    urb.done(status, actual, buffer.into())
}

impl<K: Kernel> Device for UsbDevice<K> {
    fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    fn speed(&self) -> Speed {
        self.speed
    }

    fn selection(&self) -> &Selection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, urb: InFlight, done: &mut Completions) {
        if self.is_gone {
            return done.push(urb.fail(Status::Gone));
        }
        if urb.endpoint.is_control() {
            return self.control(urb, done);
        }
        match self.selection.endpoint(urb.endpoint).map(|endpoint| endpoint.kind) {
            None | Some(TransferType::Control) => done.push(urb.fail(Status::Invalid)),
            Some(TransferType::Isochronous) => self.isochronous(urb, done),
            Some(kind) => self.data(urb, kind, done),
        }
    }

    /// The kernel waits until the transfer is given up, so its end comes back within this call.
    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut Completions) {
        let Some((request, _)) = self.requests.iter().find(|(_, request)| request.urb.id == id) else { return };
        self.requests.get_mut(request).expect("found just now").is_cancelled = true;
        self.discard(request);
        self.reap(done);
    }

    fn reset(&mut self, _now: Instant, done: &mut Completions) {
        self.withdraw(done, |_| true);
        self.selection.clear();
        self.halted = 0;
        if self.is_gone {
            return;
        }
        // The kernel sends usbfs away from claimed interfaces when it resets, and lets its own drivers in.
        self.release_all();
        match self.kernel.reset() {
            Ok(()) => {}
            Err(Status::Gone) => return self.lose(done),
            Err(status) => warn!(?status, device = %self.descriptors.title(), "the port could not be reset"),
        }
        self.claim_again(done);
    }

    fn readiness(&self) -> Option<&Readiness> {
        self.readiness.as_ref()
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut Completions) {
        self.reap(done);
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }
}

/// Gives it back: the configuration it had, and its drivers.
impl<K: Kernel> Drop for UsbDevice<K> {
    fn drop(&mut self) {
        if self.is_gone {
            return;
        }
        // Whoever drops a device that owes answers has a bug, which its requests report.
        let interfaces = self.claimed.clone();
        self.release_all();
        if self.active != self.original && self.kernel.set_configuration(self.original).is_ok() {
            // The kernel looks for drivers of a new configuration by itself.
            return;
        }
        // All of them: one that was taken as it was plugged in had no driver yet.
        for interface in interfaces {
            match self.kernel.connect(interface) {
                Ok(()) => {}
                // A driver of several interfaces has taken this one with another.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => {
                    warn!(%error, interface, device = %self.descriptors.title(), "its driver did not come back")
                }
            }
        }
    }
}
