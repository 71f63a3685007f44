//! A real USB device, through usbfs.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use farbus_io_net::link::{DeviceWaitSource, ThreadWaker};
use farbus_model::descriptor::endpoint_of_index;
use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, EpAddr, Instant, Payload,
    ReadinessSource, SetupPacket, TransferDirection, TransferType, UrbFlags, UrbId, UrbInFlight, UrbStatus, UsbSpeed,
};
use tracing::warn;

use super::calls::{self, RunningUsbfsCall, UsbfsCall, UsbfsCallResult};
use super::error::UsbOpenError;
use super::inventory::PluggedDevice;
use super::iso::{self, IsoFragment};
use super::kernel::{UsbfsBlockingCalls, UsbfsKernel};
use super::slab::Slab;
use crate::sys::usbfs::{PacketResult, ReapOutcome, ReapedUrb, UsbfsDevice, UsbfsPayload, UsbfsTransfer};

/// How long the kernel may take to cancel all transfers before a reset. It kills each within a frame or so; a host
/// controller that does not answer any more is declared dead by its own driver after five seconds.
const WITHDRAW_TIME_MAX: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(6) };
/// How long a device that is given back may take to end a call that is under way. The longest case is a reset: several
/// enumerations of a device that does not answer, five seconds each.
const CALL_TIME_MAX: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(30) };
/// The length of a setup packet, with which a control transfer's buffer begins.
const SETUP_BYTES: usize = 8;

/// A device that is taken from this machine's drivers for as long as this lives, and given back afterwards.
///
/// | the client asks | the kernel is asked |
/// |---|---|
/// | a transfer | the same, in pieces if it is isochronous with more packets than usbfs takes |
/// | SET_CONFIGURATION of the active one | setting 0 where another is active, halts cleared; not sent again |
/// | SET_CONFIGURATION of another one | interfaces released, configuration set, interfaces claimed |
/// | SET_INTERFACE, CLEAR_FEATURE(ENDPOINT_HALT) | the corresponding call, so that host and device agree |
/// | a reset | all transfers cancelled and answered; interfaces released, port reset, interfaces claimed |
///
/// None of these requests is also sent as a raw transfer. All but the first are calls that wait for the device, up to
/// five seconds and more. They run beside the engine ([`calls`]), and requests that arrive meanwhile wait for their
/// end, in order:
///
/// | while a call is under way | what happens |
/// |---|---|
/// | a request is submitted | it waits; if withdrawn, it is answered at once |
/// | a transfer that the kernel has is withdrawn | it is cancelled after the call, as the kernel requires |
/// | the request that became the call is withdrawn | too late: it ends as the call ends |
/// | a reset | everything is answered at once; the port is reset after the call |
/// | the device is given back | that waits for the call's end |
pub struct UsbDevice<K: UsbfsKernel = UsbfsDevice> {
    kernel: K,
    readiness: Option<ReadinessSource>,
    /// The readiness while a call is under way.
    call_ended: ReadinessSource,
    wake: Arc<ThreadWaker>,
    calling: Option<PendingUrbCall>,
    /// Requests that wait for the call's end; empty without a call.
    queue: VecDeque<DeferredRequest>,
    descriptors: DescriptorSet,
    speed: UsbSpeed,
    /// What the client has made active. The kernel's alternate settings are the same, its configuration is `active`.
    selection: ConfigurationSelection,
    /// The kernel's active configuration, 0 if none.
    active: u8,
    /// The configuration that was active when the device was taken.
    original: u8,
    claimed: Vec<u8>,
    /// Endpoints that stalled and were not cleared, by [`EpAddr::index`].
    halted: u32,
    requests: Slab<SubmittedUrb>,
    /// The transfers that the kernel has; their names are the slots.
    pieces: Slab<KernelTransfer>,
    packet_results: Vec<PacketResult>,
    is_gone: bool,
    /// Whether another process has the device.
    is_left: bool,
}

/// A request of the client.
struct SubmittedUrb {
    urb: UrbInFlight,
    is_cancelled: bool,
    /// How many pieces the kernel still has.
    outstanding: usize,
    /// The status with which it will end, whatever else comes back.
    failure: Option<UrbStatus>,
    /// For isochronous requests: the pieces, in order.
    parts: Vec<IsoFragment>,
}

/// A transfer that the kernel has.
struct KernelTransfer {
    /// `None`: it was answered already, by a reset that could not cancel it yet.
    request: Option<usize>,
    part: usize,
}

/// A call under way. Nothing else is asked of the kernel meanwhile, since it would wait there.
struct PendingUrbCall {
    running: RunningUsbfsCall,
    /// The request that became the call; `None` for a reset's call, or if a reset has answered the request.
    urb: Option<UrbInFlight>,
}

/// What waits for a call's end.
enum DeferredRequest {
    Request(UrbInFlight),
    Reset,
}

impl UsbDevice {
    /// Takes `found` from its drivers.
    ///
    /// # Errors
    /// [`UsbOpenError`]; its drivers get it back then.
    pub fn open(found: &PluggedDevice) -> Result<Self, UsbOpenError> {
        let usbfs = UsbfsDevice::open(&found.node).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => UsbOpenError::NotAllowed { node: found.node.clone() },
            _ => UsbOpenError::of("opening it", error),
        })?;
        Self::over(usbfs, found)
    }

    /// Takes `found`, whose node another process opened.
    ///
    /// # Errors
    /// [`UsbOpenError`]; its drivers get it back then.
    pub fn open_through(node: OwnedFd, found: &PluggedDevice) -> Result<Self, UsbOpenError> {
        Self::over(UsbfsDevice::over(node), found)
    }

    fn over(usbfs: UsbfsDevice, found: &PluggedDevice) -> Result<Self, UsbOpenError> {
        let readiness = DeviceWaitSource::readiness(usbfs.descriptor());
        Self::take(usbfs, Some(readiness), found)
    }
}

impl<K: UsbfsKernel> UsbDevice<K> {
    /// Takes the device that `kernel` opened.
    pub(super) fn take(
        kernel: K,
        readiness: Option<ReadinessSource>,
        found: &PluggedDevice,
    ) -> Result<Self, UsbOpenError> {
        // vhci knows nothing above SuperSpeed, and for a device's drivers it makes no difference.
        let speed = found.speed.min(UsbSpeed::Super);
        let wake = Arc::new(ThreadWaker::new().map_err(|error| UsbOpenError::of("watching it", error))?);
        let mut device = Self {
            kernel,
            readiness,
            call_ended: DeviceWaitSource::woken(Arc::clone(&wake)),
            wake,
            calling: None,
            queue: VecDeque::new(),
            descriptors: found.descriptors.clone(),
            speed,
            selection: ConfigurationSelection::default(),
            active: found.configuration,
            original: found.configuration,
            claimed: Vec::new(),
            halted: 0,
            requests: Slab::new(),
            pieces: Slab::new(),
            packet_results: Vec::new(),
            is_gone: false,
            is_left: false,
        };
        let (claimed, result) = calls::claim(&device.kernel.calls(), &device.interfaces(device.active));
        device.claimed = claimed;
        // On failure the device is dropped, which gives back what was taken so far.
        result?;
        Ok(device)
    }

    /// Allocates streams for bulk endpoints, `count` for each or fewer; returns how many.
    /// [`Urb::stream`](farbus_model::Urb::stream) is one of them from then on, and at these endpoints never 0. Another
    /// setting, another configuration or a reset frees them. For sessions that can name a stream: USB/IP cannot, and
    /// its clients do without (Linux drives such a disk by Bulk-Only).
    ///
    /// Waits for the host controller, not for the device.
    ///
    /// # Errors
    /// [`UrbStatus::Invalid`] for an endpoint that does not exist or supports none, or if the controller supports none;
    /// [`UrbStatus::NoCredit`] while requests wait there, or a call is under way.
    pub fn alloc_streams(&mut self, endpoints: &[EpAddr], count: u16) -> Result<u16, UrbStatus> {
        self.kernel.calls().alloc_streams(&self.idle_bulk(endpoints)?, count)
    }

    /// Frees the streams of these bulk endpoints, whose requests name stream 0 again. Waits for the host controller.
    ///
    /// # Errors
    /// As [`UsbDevice::alloc_streams`].
    pub fn free_streams(&mut self, endpoints: &[EpAddr]) -> Result<(), UrbStatus> {
        self.kernel.calls().free_streams(&self.idle_bulk(endpoints)?)
    }

    fn idle_bulk(&self, endpoints: &[EpAddr]) -> Result<Vec<u8>, UrbStatus> {
        let is_bulk =
            |address: &EpAddr| self.selection.endpoint(*address).is_some_and(|e| e.kind == TransferType::Bulk);
        let is_busy = self.requests.iter().any(|(_, request)| endpoints.contains(&request.urb.endpoint));
        match () {
            () if self.is_gone => Err(UrbStatus::Gone),
            () if !endpoints.iter().all(is_bulk) => Err(UrbStatus::Invalid),
            () if is_busy || self.calling.is_some() => Err(UrbStatus::NoCredit),
            () => Ok(endpoints.iter().map(|endpoint| endpoint.as_byte()).collect()),
        }
    }

    fn interfaces(&self, configuration: u8) -> Vec<u8> {
        let configuration = self.descriptors.configuration(configuration);
        let mut numbers: Vec<u8> =
            configuration.map(|c| c.settings.iter().map(|setting| setting.interface).collect()).unwrap_or_default();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    // Requests to the device itself.

    fn control(&mut self, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        let setup = urb.setup;
        match self.call_for(setup) {
            Some(Ok(Some(call))) => return self.call(call, Some(urb), done),
            Some(Ok(None)) => {
                // It has this configuration already.
                self.withdraw(done, |endpoint| !endpoint.is_control());
                self.selection.select_configuration(&self.descriptors, setup.value as u8);
                return done.push(if self.is_gone { urb.fail(UrbStatus::Gone) } else { accepted(urb) });
            }
            Some(Err(status)) => return done.push(urb.fail(status)),
            None => {}
        }
        // Both directions use one buffer behind the setup packet, as in usbfs.
        let mut buffer = done.pool.take(SETUP_BYTES + usize::from(setup.length));
        buffer[..SETUP_BYTES].copy_from_slice(&setup.to_bytes());
        let flags = UrbFlags { short_not_ok: urb.flags.short_not_ok && reads(setup), ..UrbFlags::default() };
        if !reads(setup) {
            let payload = urb.take_payload();
            let sent = payload.copy_to(&mut buffer[SETUP_BYTES..]);
            buffer[SETUP_BYTES + sent..].fill(0);
            done.pool.recycle(payload);
        }
        self.begin(urb, TransferType::Control, flags, UsbfsPayload::In(buffer), done);
    }

    /// The call that a request becomes, if one is needed; `None` for requests that are sent unchanged.
    fn call_for(&self, setup: SetupPacket) -> Option<Result<Option<UsbfsCall>, UrbStatus>> {
        if setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
            Some(self.configure(setup.value as u8))
        } else if setup.is_standard(request::SET_INTERFACE, RequestRecipient::Interface) {
            let (interface, alternate) = (setup.index as u8, setup.value as u8);
            let configuration = self.descriptors.configuration(self.selection.configuration());
            let is_there = configuration.is_some_and(|c| c.setting(interface, alternate).is_some());
            Some(is_there.then_some(Some(UsbfsCall::Interface { interface, alternate })).ok_or(UrbStatus::Stall))
        } else if setup.is_standard(request::CLEAR_FEATURE, RequestRecipient::Endpoint)
            && setup.value == request::ENDPOINT_HALT
            && !endpoint_of_index(setup.index).is_control()
        {
            let endpoint = endpoint_of_index(setup.index);
            let is_there = self.selection.endpoint(endpoint).is_some();
            Some(is_there.then_some(Some(UsbfsCall::ClearHalt(endpoint))).ok_or(UrbStatus::Stall))
        } else if setup.is_standard(request::SET_ADDRESS, RequestRecipient::Device) {
            // This machine's host controller assigns its address.
            Some(Err(UrbStatus::Stall))
        } else {
            None
        }
    }

    fn configure(&self, value: u8) -> Result<Option<UsbfsCall>, UrbStatus> {
        if value != 0 && self.descriptors.configuration(value).is_none() {
            return Err(UrbStatus::Stall);
        }
        if value != self.active {
            let (old, new) = (self.interfaces(self.active), self.interfaces(value));
            return Ok(Some(UsbfsCall::Configuration { value, claimed: self.claimed.clone(), old, new }));
        }
        let interfaces: Vec<u8> = self.selection.alternates().iter().map(|&(interface, _)| interface).collect();
        let endpoints = self.selection.endpoints().map(|endpoint| endpoint.address);
        let halted: Vec<EpAddr> = endpoints.filter(|endpoint| self.halted & bit(*endpoint) != 0).collect();
        let is_fresh = interfaces.is_empty() && halted.is_empty();
        Ok((!is_fresh).then_some(UsbfsCall::Afresh { interfaces, halted }))
    }

    // Calls that wait for the device.

    /// Begins a call. Requests that the call ends are cancelled and answered before.
    fn call(&mut self, call: UsbfsCall, urb: Option<UrbInFlight>, done: &mut CompletionQueue) {
        match &call {
            UsbfsCall::Interface { interface, .. } => {
                let theirs = self.endpoints_of(*interface);
                self.withdraw(done, |endpoint| theirs & bit(endpoint) != 0);
            }
            UsbfsCall::ClearHalt(_) => {}
            UsbfsCall::Afresh { .. } | UsbfsCall::Configuration { .. } => {
                self.withdraw(done, |endpoint| !endpoint.is_control())
            }
            UsbfsCall::Reset { .. } => self.withdraw(done, |_| true),
        }
        if self.is_gone {
            if let Some(urb) = urb {
                done.push(urb.fail(UrbStatus::Gone));
            }
            return;
        }
        let running = call.start(self.kernel.calls(), &self.wake);
        self.calling = Some(PendingUrbCall { running, urb });
    }

    fn end_call(
        &mut self,
        PendingUrbCall { running, urb }: PendingUrbCall,
        outcome: UsbfsCallResult,
        done: &mut CompletionQueue,
    ) {
        let UsbfsCallResult { result, claimed } = outcome;
        if let Some((claimed, why_not_all)) = claimed {
            self.claimed = claimed;
            match why_not_all {
                Ok(()) => {}
                Err(UsbOpenError::Gone) => self.lose(done),
                Err(error) => {
                    warn!(%error, device = %self.descriptors.title(), "an interface could not be taken again")
                }
            }
        }
        match (&running.call, result) {
            (UsbfsCall::Configuration { value, .. }, Ok(())) => self.active = *value,
            (UsbfsCall::Reset { .. }, Err(status)) if status != UrbStatus::Gone => {
                warn!(?status, device = %self.descriptors.title(), "the port could not be reset");
            }
            _ => {}
        }
        match (urb, result) {
            (Some(urb), Ok(())) => {
                self.select(&running.call);
                done.push(accepted(urb));
            }
            (Some(urb), Err(status)) => done.push(urb.fail(status)),
            // A reset has discarded the selection.
            (None, _) => {}
        }
        if let Err(status) = result {
            self.note_loss(status, done);
        }
    }

    /// Records the selection that a successful call has made.
    fn select(&mut self, call: &UsbfsCall) {
        match call {
            UsbfsCall::Interface { interface, alternate } => {
                self.halted &= !self.endpoints_of(*interface);
                self.selection.select_interface(&self.descriptors, *interface, *alternate);
            }
            UsbfsCall::ClearHalt(endpoint) => self.halted &= !bit(*endpoint),
            UsbfsCall::Afresh { .. } | UsbfsCall::Configuration { .. } => {
                self.halted = 0;
                self.selection.select_configuration(&self.descriptors, self.active);
            }
            UsbfsCall::Reset { .. } => {}
        }
    }

    /// The endpoints of all settings of an interface, by [`EpAddr::index`].
    fn endpoints_of(&self, interface: u8) -> u32 {
        let configuration = self.descriptors.configuration(self.selection.configuration());
        let settings = configuration.into_iter().flat_map(|c| &c.settings).filter(|s| s.interface == interface);
        settings.flat_map(|setting| &setting.endpoints).fold(0, |all, endpoint| all | bit(endpoint.address))
    }

    /// Continues with the requests that waited for a call's end, up to the next call.
    fn resume(&mut self, done: &mut CompletionQueue) {
        let withdrawn = self.requests.iter().filter(|(_, request)| request.is_cancelled).map(|(name, _)| name);
        for request in withdrawn.collect::<Vec<_>>() {
            self.discard(Some(request));
        }
        self.reap(done);
        while self.calling.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            match next {
                DeferredRequest::Request(urb) => self.request(urb, done),
                DeferredRequest::Reset => self.reset_port(done),
            }
        }
    }

    fn reset_port(&mut self, done: &mut CompletionQueue) {
        let interfaces = self.interfaces(self.active);
        self.call(UsbfsCall::Reset { claimed: self.claimed.clone(), interfaces }, None, done);
    }

    /// Answers everything while a call prevents the kernel from cancelling its transfers.
    fn abandon_all(&mut self, done: &mut CompletionQueue) {
        let asker = self.calling.as_mut().and_then(|calling| calling.urb.take());
        let waiting = std::mem::take(&mut self.queue).into_iter().filter_map(|queued| match queued {
            DeferredRequest::Request(urb) => Some(urb),
            DeferredRequest::Reset => None,
        });
        let held = self.requests.drain().into_iter().map(|request| request.urb);
        for urb in asker.into_iter().chain(held).chain(waiting) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        self.pieces.iter_mut().for_each(|(_, piece)| piece.request = None);
    }

    /// Waits for the end of a call and of the requests that waited for it; returns whether all have ended.
    fn wait_for_calls(&mut self) -> bool {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        while let Some(calling) = self.calling.take() {
            let Some(outcome) = calling.running.wait(CALL_TIME_MAX) else { return false };
            self.end_call(calling, outcome, &mut done);
            self.resume(&mut done);
        }
        true
    }

    // Transfers.

    fn data(&mut self, mut urb: UrbInFlight, kind: TransferType, done: &mut CompletionQueue) {
        let is_in = urb.direction == TransferDirection::In;
        let flags = UrbFlags {
            short_not_ok: is_in && urb.flags.short_not_ok,
            zero_packet: !is_in && urb.flags.zero_packet,
            iso_asap: false,
        };
        if is_in {
            let bytes = urb.length as usize;
            let room = match self.kernel.lease(bytes) {
                Some(lease) => UsbfsPayload::Into(lease, bytes),
                None => match done.pool.try_take(bytes) {
                    Some(room) => UsbfsPayload::In(room),
                    None => return done.push(urb.fail(UrbStatus::NoCredit)),
                },
            };
            return self.begin(urb, kind, flags, room, done);
        }
        let payload = urb.take_payload();
        // The kernel copies the data during the call: not even a window on a receive buffer has to be kept.
        self.begin(urb, kind, flags, UsbfsPayload::Out(&payload.contiguous()), done);
        done.pool.recycle(payload);
    }

    fn begin(
        &mut self,
        urb: UrbInFlight,
        kind: TransferType,
        flags: UrbFlags,
        data: UsbfsPayload<'_>,
        done: &mut CompletionQueue,
    ) {
        let (endpoint, stream) = (urb.endpoint.as_byte(), urb.stream);
        let request = self.requests.insert(SubmittedUrb {
            urb,
            is_cancelled: false,
            outstanding: 1,
            failure: None,
            parts: Vec::new(),
        });
        let slot = self.pieces.insert(KernelTransfer { request: Some(request), part: 0 });
        let transfer = UsbfsTransfer { kind, endpoint, flags, data, packets: &[], start_frame: 0, stream };
        if let Err(status) = self.kernel.submit(slot, transfer) {
            self.pieces.remove(slot);
            let refused = self.requests.remove(request).expect("inserted just now");
            done.push(refused.urb.fail(status));
            self.note_loss(status, done);
        }
    }

    fn isochronous(&mut self, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if urb.iso.is_empty() {
            return done.push(urb.done_iso(Vec::new(), Payload::Empty));
        }
        if iso::total(&urb.iso, urb.length).is_none() {
            return done.push(urb.fail(UrbStatus::Invalid));
        }
        let flags = UrbFlags { iso_asap: urb.flags.iso_asap, ..UrbFlags::default() };
        let (endpoint, start_frame, is_in) =
            (urb.endpoint.as_byte(), urb.start_frame, urb.direction == TransferDirection::In);
        let payload = urb.take_payload();
        let packets = urb.iso.clone();
        let count = iso::split(&packets).count();
        let parts = (0..count).map(|_| IsoFragment::default()).collect();
        let request =
            self.requests.insert(SubmittedUrb { urb, is_cancelled: false, outstanding: count, failure: None, parts });
        let bytes = payload.contiguous();
        let mut failure = None;
        for (part, packets) in iso::split(&packets).enumerate() {
            let lengths = iso::lengths(packets);
            let gathered;
            let data = if is_in {
                UsbfsPayload::In(vec![0; lengths.iter().sum::<u32>() as usize])
            } else if iso::is_gapless(packets) {
                let (first, last) = (packets[0], packets[packets.len() - 1]);
                let range = first.offset as usize..(last.offset + last.length) as usize;
                UsbfsPayload::Out(bytes.get(range).unwrap_or_default())
            } else {
                gathered = iso::gather(packets, &bytes);
                UsbfsPayload::Out(&gathered)
            };
            let slot = self.pieces.insert(KernelTransfer { request: Some(request), part });
            let kind = TransferType::Isochronous;
            let transfer = UsbfsTransfer { kind, endpoint, flags, data, packets: &lengths, start_frame, stream: 0 };
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

    /// The kernel refused one of its pieces: waits for those before it to come back, then fails.
    fn fail_as_a_set(&mut self, request: usize, status: UrbStatus, missing: usize, done: &mut CompletionQueue) {
        let unfinished = self.requests.get_mut(request).expect("inserted just now");
        unfinished.failure = Some(status);
        unfinished.outstanding -= missing;
        if unfinished.outstanding == 0 {
            self.finish(request, done);
        } else {
            self.discard(Some(request));
            self.reap(done);
        }
        self.note_loss(status, done);
    }

    /// Has the kernel cancel a request, or with `None` the transfers that were answered already.
    fn discard(&mut self, request: Option<usize>) {
        let slots: Vec<usize> =
            self.pieces.iter().filter(|(_, piece)| piece.request == request).map(|(slot, _)| slot).collect();
        // The last first: an endpoint continues with what is queued behind a piece that is removed.
        for slot in slots.into_iter().rev() {
            self.kernel.discard(slot);
        }
    }

    /// Takes back the transfers that have ended.
    fn reap(&mut self, done: &mut CompletionQueue) {
        while !self.is_gone {
            match self.kernel.reap(&mut self.packet_results) {
                ReapOutcome::Done(reaped) => self.take_back(reaped, done),
                ReapOutcome::Nothing => return,
                ReapOutcome::Gone => return self.lose(done),
            }
            if self.pieces.is_empty() {
                return;
            }
        }
    }

    fn take_back(&mut self, reaped: ReapedUrb, done: &mut CompletionQueue) {
        let piece = self.pieces.remove(reaped.slot).expect("the kernel gives back what it holds");
        let Some(name) = piece.request else { return done.pool.put(reaped.buffer) };
        let request = self.requests.get_mut(name).expect("a request waits for its pieces");
        request.outstanding -= 1;
        let status = match reaped.status {
            UrbStatus::Cancelled if request.is_cancelled => UrbStatus::Cancelled,
            // Killed without being asked for: the device or its interface went away.
            UrbStatus::Cancelled | UrbStatus::Shutdown if self.kernel.is_connected() => UrbStatus::Shutdown,
            UrbStatus::Cancelled | UrbStatus::Shutdown => UrbStatus::Gone,
            status => status,
        };
        if request.parts.is_empty() {
            let request = self.requests.remove(name).expect("looked up just now");
            if status == UrbStatus::Stall && !request.urb.endpoint.is_control() {
                self.halted |= bit(request.urb.endpoint);
            }
            return done.push(single_done(request.urb, status, reaped));
        }
        if matches!(status, UrbStatus::Cancelled | UrbStatus::Shutdown | UrbStatus::Gone) {
            request.failure.get_or_insert(status);
        }
        let part = &mut request.parts[piece.part];
        part.buffer = reaped.buffer;
        part.results.clone_from(&self.packet_results);
        if request.outstanding == 0 {
            self.finish(name, done);
        }
    }

    /// All pieces of an isochronous request are back: answers it.
    fn finish(&mut self, request: usize, done: &mut CompletionQueue) {
        let SubmittedUrb { urb, failure, parts, .. } = self.requests.remove(request).expect("it waited for its pieces");
        match failure {
            Some(status) => done.push(urb.fail(status)),
            None => {
                let (packets, payload) = iso::join(&urb.iso, parts);
                done.push(urb.done_iso(packets, payload));
            }
        }
    }

    /// Cancels every transfer on the endpoints that `which` selects, and answers their requests.
    fn withdraw(&mut self, done: &mut CompletionQueue, which: impl Fn(EpAddr) -> bool) {
        let hit: Vec<usize> =
            self.requests.iter().filter(|(_, r)| which(r.urb.endpoint)).map(|(name, _)| name).collect();
        let is_held = |device: &Self| {
            device.requests.iter().any(|(_, request)| which(request.urb.endpoint))
                || device.pieces.iter().any(|(_, piece)| piece.request.is_none())
        };
        if !is_held(self) {
            return;
        }
        for &request in hit.iter().rev() {
            // However far it got, its answer is that it was withdrawn.
            self.requests.get_mut(request).expect("listed just now").is_cancelled = false;
            self.discard(Some(request));
        }
        self.discard(None);
        let until = Clock::now() + WITHDRAW_TIME_MAX;
        loop {
            self.reap(done);
            if self.is_gone || !is_held(self) {
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

    fn note_loss(&mut self, status: UrbStatus, done: &mut CompletionQueue) {
        if status == UrbStatus::Gone {
            // What ended before the device went can still be reaped.
            self.reap(done);
            self.lose(done);
        }
    }

    /// The device was unplugged: every request ends with that.
    fn lose(&mut self, done: &mut CompletionQueue) {
        self.is_gone = true;
        self.pieces.drain();
        for request in self.requests.drain() {
            done.push(request.urb.fail(UrbStatus::Gone));
        }
        for queued in self.queue.drain(..) {
            if let DeferredRequest::Request(urb) = queued {
                done.push(urb.fail(UrbStatus::Gone));
            }
        }
    }

    fn request(&mut self, urb: UrbInFlight, done: &mut CompletionQueue) {
        if urb.endpoint.is_control() {
            return self.control(urb, done);
        }
        match self.selection.endpoint(urb.endpoint).map(|endpoint| endpoint.kind) {
            None | Some(TransferType::Control) => done.push(urb.fail(UrbStatus::Invalid)),
            Some(TransferType::Isochronous) => self.isochronous(urb, done),
            Some(kind) => self.data(urb, kind, done),
        }
    }
}

/// The answer to a successful request without data.
fn accepted(urb: UrbInFlight) -> farbus_model::UrbCompletion {
    match urb.direction {
        TransferDirection::Out => urb.accept(),
        TransferDirection::In => urb.answer(Payload::Empty),
    }
}

/// Whether the data stage comes from the device. False without a data stage.
fn reads(setup: SetupPacket) -> bool {
    setup.length > 0 && setup.direction() == TransferDirection::In
}

fn bit(endpoint: EpAddr) -> u32 {
    1 << endpoint.index()
}

fn single_done(urb: UrbInFlight, status: UrbStatus, reaped: ReapedUrb) -> farbus_model::UrbCompletion {
    let actual = reaped.actual.min(urb.length);
    if urb.direction == TransferDirection::Out {
        return urb.done(status, actual, Payload::Empty);
    }
    if let Some(filled) = reaped.filled {
        return urb.done(status, actual, Payload::lent(Arc::new(filled), actual as usize));
    }
    let mut buffer = reaped.buffer;
    if urb.endpoint.is_control() {
        buffer.drain(..SETUP_BYTES.min(buffer.len()));
    }
    buffer.truncate(actual as usize);
    urb.done(status, actual, buffer.into())
}

impl<K: UsbfsKernel> Device for UsbDevice<K> {
    fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    fn speed(&self) -> UsbSpeed {
        self.speed
    }

    fn selection(&self) -> &ConfigurationSelection {
        &self.selection
    }

    fn submit(&mut self, _now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        if self.is_gone {
            return done.push(urb.fail(UrbStatus::Gone));
        }
        if self.calling.is_some() {
            urb.own_payload();
            return self.queue.push_back(DeferredRequest::Request(urb));
        }
        self.request(urb, done);
    }

    /// The kernel waits until the transfer is cancelled, so its end comes back within this call, unless another call is
    /// under way.
    fn cancel(&mut self, _now: Instant, id: UrbId, done: &mut CompletionQueue) {
        let waits = |queued: &DeferredRequest| matches!(queued, DeferredRequest::Request(urb) if urb.id == id);
        if let Some(at) = self.queue.iter().position(waits)
            && let Some(DeferredRequest::Request(urb)) = self.queue.remove(at)
        {
            return done.push(urb.fail(UrbStatus::Cancelled));
        }
        let Some((request, _)) = self.requests.iter().find(|(_, request)| request.urb.id == id) else { return };
        self.requests.get_mut(request).expect("found just now").is_cancelled = true;
        if self.calling.is_none() {
            self.discard(Some(request));
            self.reap(done);
        }
    }

    fn reset(&mut self, _now: Instant, done: &mut CompletionQueue) {
        if self.calling.is_some() {
            self.abandon_all(done);
            self.queue.push_back(DeferredRequest::Reset);
        } else if !self.is_gone {
            self.reset_port(done);
        }
        self.selection.clear();
        self.halted = 0;
        // Memory whose data is on its way to the client is kept until it is sent.
        self.kernel.give_back_leases();
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        match self.calling {
            Some(_) => Some(&self.call_ended),
            None => self.readiness.as_ref(),
        }
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue) {
        if let Some(calling) = self.calling.take() {
            // Cleared before the check: a call that ends now wakes the engine again.
            self.wake.clear();
            let Some(outcome) = calling.running.poll() else {
                self.calling = Some(calling);
                return;
            };
            self.end_call(calling, outcome, done);
            return self.resume(done);
        }
        self.reap(done);
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The other process has the same open file, and therefore the interfaces. There must be no transfer under way: the
    /// kernel would write to memory of this process.
    fn save(&self) -> Option<Vec<u8>> {
        let is_at_rest =
            self.calling.is_none() && self.queue.is_empty() && self.requests.is_empty() && self.pieces.is_empty();
        let halted = self.halted.to_le_bytes();
        (is_at_rest && !self.is_gone).then(|| [&[self.active, self.original][..], &halted].concat())
    }

    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        let Some(([active, original], halted)) = state.split_first_chunk() else { return false };
        let Ok(halted) = halted.try_into().map(u32::from_le_bytes) else { return false };
        if *active != self.active || self.is_gone {
            return false;
        }
        (self.original, self.halted, self.selection) = (*original, halted, selection.clone());
        true
    }

    fn leave(&mut self) {
        self.is_left = true;
    }
}

/// Gives the device back: restores its configuration, and its drivers.
impl<K: UsbfsKernel> Drop for UsbDevice<K> {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        if !self.wait_for_calls() {
            warn!(device = %self.descriptors.title(), "the kernel does not end a call: the device is not given back");
            return;
        }
        if self.is_gone {
            return;
        }
        // Dropping a device with open requests is a bug, which the requests report.
        let calls = self.kernel.calls();
        let interfaces = std::mem::take(&mut self.claimed);
        calls::release(&calls, &interfaces);
        if self.active != self.original && calls.set_configuration(self.original).is_ok() {
            // The kernel looks for drivers of a new configuration by itself.
            return;
        }
        // All interfaces: one that was taken as it was plugged in had no driver yet.
        for interface in interfaces {
            match calls.connect(interface) {
                Ok(()) => {}
                // A driver of several interfaces has bound this one together with another.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => {
                    warn!(%error, interface, device = %self.descriptors.title(), "its driver did not come back")
                }
            }
        }
    }
}
