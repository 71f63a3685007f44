//! The node of one device: what each command does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::limits::{URB_BYTES_MAX, USBFS_DEVICE_BYTES_MAX};
use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, Device, EpAddr, Instant, Payload, ReadinessSource,
    SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus, UsbSpeed,
};
use farbus_wire::usbfs::{
    ConnectInfo, ConnectInfoEx, DisconnectClaim, DriverIoctl, SetInterface, UrbFlag, UrbHead, UrbKind,
    UsbfsBulkTransfer, UsbfsControlTransfer, UsbfsError, UsbfsIoctl, UsbfsStreams, driver_name, endpoint_number,
};
use farbus_wire::usbip::message::speed_code;

use super::claims::{InterfaceClaimant, InterfaceClaims, InterfaceLayout};
use super::command::{CallId, OpenId, ProgramMemory, ReapWaiter, UsbfsAnswer, UsbfsCommand};
use super::opened::{OpenNode, UsbfsPollEvents};
use super::transfer::{ProgramUrb, SynchronousTransfer, read_data};

/// Buffers that are kept for the next transfer, bytes.
const POOL_BYTES_MAX: usize = 4 << 20;
/// Most streams of an endpoint (USB 3.2 §8.12.1.4.2).
const STREAMS_MAX: u32 = 65_533;
/// How long a device may take for a request of a command (`USB_CTRL_SET_TIMEOUT`), and for the end of one that was
/// cancelled. After that the program has its answer without the device's, so that no peer keeps it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How long it may take when the program that waits has got a signal: a far device has answered by then.
const INTERRUPTED_TIME_MAX: Duration = Duration::from_secs(1);
/// The driver of an interface that a program has claimed.
const DRIVER: &str = "usbfs";

/// USBDEVFS_CAP_*: zero packets, continued bulk transfers, no limit of a packet's size, reaping when the device is
/// gone, rights that can be dropped, USBDEVFS_CONNINFO_EX, suspending. And scattered memory, which says to libusb that
/// a long transfer may be one URB, not one for every 16 KiB. Not: mapped memory.
const CAPABILITIES: u32 = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80 | 0x100;

/// Where a device is, for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsbBusLocation {
    /// The bus number, from 1: the first part of the node's name, `/dev/bus/usb/001/002`.
    pub bus: u16,
    /// Its number on the bus. Never used again for another device.
    pub device: u16,
    /// The ports from the root hub to it, from 1.
    pub ports: Vec<u8>,
}

/// What a command did at once.
enum UsbfsOutcome {
    /// The command is answered: what the ioctl returns, and what is written to which addresses of the program.
    Now(u32, Vec<(u64, Payload)>),
    /// The program waits: [`UsbfsNode::poll_answer`] returns the answer later.
    Later,
}

const DONE: Result<UsbfsOutcome, UsbfsError> = Ok(UsbfsOutcome::Now(0, Vec::new()));

/// A request at the device.
#[derive(Debug)]
enum PendingRequest {
    Urb(ProgramUrb),
    Waiting(SynchronousTransfer),
    Steps(ControlSequence),
    /// Its open was closed, or it was given up. It holds so many bytes until the device answers.
    Forgotten(u64),
}

/// Control requests that a command sends, one after the other.
#[derive(Debug)]
struct ControlSequence {
    id: CallId,
    left: VecDeque<SetupPacket>,
    /// A stall is no failure: an interface with one setting need not know SET_INTERFACE (USB 2.0 §9.4.10).
    may_stall: bool,
    is_reset: bool,
}

/// A device, and all opens of its node. Before it is dropped, its opens are closed, and the device has given back what
/// it held.
pub struct UsbfsNode<D> {
    device: D,
    location: UsbBusLocation,
    opens: BTreeMap<OpenId, OpenNode>,
    claims: InterfaceClaims,
    /// In the order of their submission.
    pending: BTreeMap<UrbId, (OpenId, PendingRequest)>,
    /// When requests are given up that were cancelled or that a command sends.
    limits: BTreeMap<UrbId, Instant>,
    /// How many were given up.
    given_up: u64,
    numbers: u64,
    bytes: u64,
    bytes_max: u64,
    done: CompletionQueue,
    answers: VecDeque<UsbfsAnswer>,
    /// While the device is being reset: what was selected before, and will be again.
    before_reset: Option<ConfigurationSelection>,
    is_gone: bool,
}

impl<D: Device> UsbfsNode<D> {
    /// A node without opens.
    pub fn new(device: D, location: UsbBusLocation) -> Self {
        Self {
            device,
            location,
            opens: BTreeMap::new(),
            claims: InterfaceClaims::default(),
            pending: BTreeMap::new(),
            limits: BTreeMap::new(),
            given_up: 0,
            numbers: 0,
            bytes: 0,
            bytes_max: USBFS_DEVICE_BYTES_MAX,
            done: CompletionQueue::new(BufferPool::new(POOL_BYTES_MAX)),
            answers: VecDeque::new(),
            before_reset: None,
            is_gone: false,
        }
    }

    /// The device below this node, for reading its state; requests go through the node.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Lets a caller that is the device's world act on it, and passes on what has ended by that.
    pub fn with_device<R>(&mut self, now: Instant, act: impl FnOnce(&mut D, &mut CompletionQueue) -> R) -> R {
        let result = act(&mut self.device, &mut self.done);
        self.settle(now);
        result
    }

    /// What programs see as selected: a reset does not show, as in a kernel (`usb_reset_and_verify_device`).
    pub fn selection(&self) -> &ConfigurationSelection {
        self.before_reset.as_ref().unwrap_or(self.device.selection())
    }

    /// Where the device is.
    pub fn location(&self) -> &UsbBusLocation {
        &self.location
    }

    /// What reading the node gives: the device's descriptor and those of all configurations (`usbdev_read`).
    pub fn descriptors(&self) -> Vec<u8> {
        let all = self.device.descriptors();
        let mut bytes = all.device.to_bytes().to_vec();
        all.configurations.iter().for_each(|configuration| bytes.extend(&configuration.bytes));
        bytes
    }

    /// Opens the node, for reading only or for all commands.
    ///
    /// # Errors
    /// ENODEV: the device is gone.
    pub fn open(&mut self, is_writable: bool) -> Result<OpenId, UsbfsError> {
        if self.is_gone {
            return Err(UsbfsError::Gone);
        }
        self.numbers += 1;
        let open = OpenId(self.numbers);
        self.opens.insert(open, OpenNode::new(is_writable));
        Ok(open)
    }

    /// The program closed it, or died: its URBs are cancelled and its interfaces are free.
    pub fn close(&mut self, now: Instant, open: OpenId) {
        let Some(opened) = self.opens.remove(&open) else { return };
        self.bytes -= opened.finished_bytes();
        let interfaces = self.claims.release_all(open);
        let ids: Vec<UrbId> = self.pending.iter().filter(|(_, (of, _))| *of == open).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some((_, pending)) = self.pending.get_mut(&id) {
                let bytes = match pending {
                    PendingRequest::Urb(submitted) => submitted.bytes(),
                    PendingRequest::Waiting(waiting) => waiting.bytes,
                    PendingRequest::Steps(_) => 0,
                    PendingRequest::Forgotten(bytes) => *bytes,
                };
                *pending = PendingRequest::Forgotten(bytes);
                self.device.cancel(now, id, &mut self.done);
            }
        }
        for interface in interfaces {
            if let Some(setup) = self.first_setting(interface) {
                self.launch(now, open, Urb::control(UrbId(0), setup, Payload::Empty), PendingRequest::Forgotten(0));
            }
        }
        self.settle(now);
    }

    /// Whether nobody has it open.
    pub fn is_closed(&self) -> bool {
        self.opens.is_empty()
    }

    /// Bytes that its transfers hold, at most [`USBFS_DEVICE_BYTES_MAX`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// From now on its transfers may hold so many bytes, if that is less.
    pub fn limit_bytes(&mut self, most: u64) {
        self.bytes_max = most.min(USBFS_DEVICE_BYTES_MAX);
    }

    /// What `poll` says of an open; of one that is closed, that the device is gone.
    pub fn events(&self, open: OpenId) -> UsbfsPollEvents {
        let gone = UsbfsPollEvents { can_reap: false, is_gone: true };
        self.opens.get(&open).map_or(gone, |opened| opened.events(self.is_gone))
    }

    /// An open for which [`UsbfsNode::events`] says something new.
    pub fn poll_change(&mut self) -> Option<OpenId> {
        let is_gone = self.is_gone;
        self.opens.iter_mut().find_map(|(open, opened)| opened.take_change(is_gone).then_some(*open))
    }

    /// The next answer to a command that had to wait; `None` if none is ready.
    pub fn poll_answer(&mut self) -> Option<UsbfsAnswer> {
        self.answers.pop_front()
    }

    /// Carries out a command. Its answer comes from [`UsbfsNode::poll_answer`], now or later. After the last command of
    /// a turn call [`UsbfsNode::end_turn`].
    pub fn handle_command(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) {
        let id = command.id;
        match self.carry_out(now, open, command, memory) {
            Ok(UsbfsOutcome::Now(result, writes)) => {
                self.answers.push_back(UsbfsAnswer { id, result: Ok(result), writes })
            }
            Ok(UsbfsOutcome::Later) => {}
            Err(refusal) => self.answers.push_back(UsbfsAnswer { id, result: Err(refusal), writes: Vec::new() }),
        }
        self.settle(now);
    }

    /// A signal came to the program that waits for this answer. A command that can end, ends.
    pub fn handle_interrupt(&mut self, now: Instant, id: CallId) {
        if self.opens.values_mut().any(|opened| opened.stop_waiting(id)) {
            return self.answers.push_back(UsbfsAnswer {
                id,
                result: Err(UsbfsError::Interrupted),
                writes: Vec::new(),
            });
        }
        self.cancel_waiting(now, UsbfsError::Interrupted, |waiting| waiting.id == id);
        let sooner = now + INTERRUPTED_TIME_MAX;
        for (urb, limit) in &mut self.limits {
            if self.pending.get(urb).is_some_and(|(_, pending)| pending.keeps(id)) {
                *limit = sooner.min(*limit);
            }
        }
        self.settle(now);
    }

    /// How many requests the device did not answer in time, so that its programs no longer wait for them.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// After the last command of a turn: the device sends what it was given.
    pub fn end_turn(&mut self, now: Instant) {
        self.device.end_turn(now, &mut self.done);
        self.settle(now);
    }

    /// What to wait on for the device.
    pub fn readiness(&self) -> Option<&ReadinessSource> {
        self.device.readiness()
    }

    /// The device's readiness is there.
    pub fn handle_ready(&mut self, now: Instant) {
        self.device.handle_ready(now, &mut self.done);
        self.settle(now);
    }

    /// When [`UsbfsNode::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.pending.values().filter_map(|(_, pending)| match pending {
            PendingRequest::Waiting(waiting) if waiting.cancelled.is_none() => waiting.deadline,
            _ => None,
        });
        waiting.chain(self.limits.values().copied()).chain(self.device.poll_timeout()).min()
    }

    /// That moment has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.device.poll_timeout().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now, &mut self.done);
        }
        self.cancel_waiting(now, UsbfsError::TimedOut, |waiting| {
            waiting.deadline.is_some_and(|deadline| deadline <= now)
        });
        self.settle(now);
        let late: Vec<UrbId> = self.limits.iter().filter(|(_, limit)| **limit <= now).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.give_up(now, id));
    }

    /// Cancels a request, whose end is waited for until its limit.
    fn cancel(&mut self, now: Instant, id: UrbId) {
        self.limits.entry(id).or_insert(now + ANSWER_TIME_MAX);
        self.device.cancel(now, id, &mut self.done);
    }

    /// Ends a request for its program as if the device had answered. If it still does, that is dropped.
    fn give_up(&mut self, now: Instant, id: UrbId) {
        self.limits.remove(&id);
        let Some((open, pending)) = self.pending.remove(&id) else { return };
        let (bytes, status) = match &pending {
            PendingRequest::Urb(submitted) => (submitted.bytes(), UrbStatus::Cancelled),
            PendingRequest::Waiting(waiting) => (waiting.bytes, UrbStatus::Cancelled),
            PendingRequest::Steps(_) => (0, UrbStatus::TimedOut),
            PendingRequest::Forgotten(_) => {
                self.pending.insert(id, (open, pending));
                return;
            }
        };
        self.given_up += 1;
        // The device holds its memory as well as the program, until both are done with it.
        self.bytes += bytes;
        self.pending.insert(id, (open, PendingRequest::Forgotten(bytes)));
        if status == UrbStatus::TimedOut {
            self.device.cancel(now, id, &mut self.done);
        }
        self.finish(now, open, pending, Urb::data_in(id, EpAddr::CONTROL, 0).launch().fail(status));
        self.settle(now);
    }

    fn cancel_waiting(&mut self, now: Instant, why: UsbfsError, is_meant: impl Fn(&SynchronousTransfer) -> bool) {
        let mut ids = Vec::new();
        for (id, (_, pending)) in &mut self.pending {
            if let PendingRequest::Waiting(waiting) = pending
                && is_meant(waiting)
                && waiting.cancelled.is_none()
            {
                waiting.cancelled = Some(why);
                ids.push(*id);
            }
        }
        ids.into_iter().for_each(|id| self.cancel(now, id));
    }

    fn carry_out(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let is_gone = self.is_gone;
        let opened = self.opens.get_mut(&open).ok_or(UsbfsError::Gone)?;
        if !opened.is_writable {
            return Err(UsbfsError::ReadOnly);
        }
        let UsbfsCommand { id, call, width, argument } = *command;
        if let UsbfsIoctl::ReapUrb | UsbfsIoctl::ReapUrbNoDelay = call {
            return self.reap(open, call, ReapWaiter { id, address: argument, width });
        }
        if is_gone {
            return Err(UsbfsError::Gone);
        }
        match call {
            UsbfsIoctl::Control => self.control(now, open, command, memory),
            UsbfsIoctl::Bulk => self.bulk(now, open, command, memory),
            UsbfsIoctl::SubmitUrb => self.submit(now, open, command, memory),
            UsbfsIoctl::DiscardUrb => self.discard(now, open, id, argument),
            UsbfsIoctl::ClaimInterface => {
                let interface = number(argument, memory)?;
                self.claims.claim(self.claimant(open), interface, layout(&self.device))?;
                DONE
            }
            UsbfsIoctl::ReleaseInterface => {
                let interface = self.claims.release(open, number(argument, memory)?, layout(&self.device))?;
                self.shut_down(now, open, id, interface)
            }
            UsbfsIoctl::SetInterface => self.set_interface(now, open, command, memory),
            UsbfsIoctl::SetConfiguration => self.set_configuration(now, open, id, number(argument, memory)?),
            UsbfsIoctl::ResetEndpoint => self.endpoint_of(open, number(argument, memory)?).and(DONE),
            UsbfsIoctl::ClearHalt => {
                let endpoint = self.endpoint_of(open, number(argument, memory)?)?;
                self.start(now, open, ControlSequence::of(id, [SetupPacket::clear_halt(endpoint)]))
            }
            UsbfsIoctl::Reset => self.reset(now, open, id),
            UsbfsIoctl::GetDriver => {
                let holder = self.claims.holder(number(argument, memory)?);
                holder.ok_or(UsbfsError::NoDriver)?;
                Ok(UsbfsOutcome::Now(0, vec![(argument.wrapping_add(4), driver_name(DRIVER).into())]))
            }
            UsbfsIoctl::Ioctl => self.ask_driver(now, open, command, memory),
            UsbfsIoctl::DisconnectClaim => self.disconnect_claim(now, open, command, memory),
            UsbfsIoctl::AllocStreams => {
                self.streams(open, argument, memory).map(|count| UsbfsOutcome::Now(count, Vec::new()))
            }
            UsbfsIoctl::FreeStreams => self.streams(open, argument, memory).and(DONE),
            UsbfsIoctl::DropPrivileges => {
                let mask = u64::from(number(argument, memory)?);
                let opened = self.opens.get_mut(&open).ok_or(UsbfsError::Gone)?;
                opened.allowed = Some(opened.allowed.unwrap_or(u64::MAX) & mask);
                DONE
            }
            UsbfsIoctl::GetCapabilities => {
                Ok(UsbfsOutcome::Now(0, vec![(argument, CAPABILITIES.to_le_bytes().to_vec().into())]))
            }
            UsbfsIoctl::GetSpeed => Ok(UsbfsOutcome::Now(speed_code(self.device.speed()), Vec::new())),
            UsbfsIoctl::ConnectInfo => {
                let is_slow = self.device.speed() == UsbSpeed::Low;
                let info = ConnectInfo { device: self.location.device.into(), is_slow };
                Ok(UsbfsOutcome::Now(0, vec![(argument, info.to_bytes().into())]))
            }
            // The first number is the length.
            UsbfsIoctl::ConnectInfoEx(room) if room >= 4 => {
                let UsbBusLocation { bus, device, ports } = self.location.clone();
                let speed = self.device.speed();
                let info = ConnectInfoEx { bus: bus.into(), device: device.into(), speed, ports };
                Ok(UsbfsOutcome::Now(0, vec![(argument, info.to_bytes(room).into())]))
            }
            UsbfsIoctl::ForbidSuspend | UsbfsIoctl::AllowSuspend | UsbfsIoctl::WaitForResume => DONE,
            UsbfsIoctl::ConnectInfoEx(_) => Err(UsbfsError::Invalid),
            // Ports belong to their kernel (`find_port_owner`).
            UsbfsIoctl::ClaimPort | UsbfsIoctl::ReleasePort => number(argument, memory).and(Err(UsbfsError::Invalid)),
            // Signals are not sent: programs poll.
            UsbfsIoctl::DisconnectSignal => Err(UsbfsError::Unknown),
            UsbfsIoctl::ReapUrb | UsbfsIoctl::ReapUrbNoDelay => unreachable!("handled before"),
        }
    }

    fn claimant(&self, open: OpenId) -> InterfaceClaimant {
        InterfaceClaimant { open, allowed: self.opens.get(&open).and_then(|opened| opened.allowed) }
    }

    /// What gives an interface its first setting, if it has another one.
    fn first_setting(&self, interface: u8) -> Option<SetupPacket> {
        let is_other = self.device.selection().alternate(interface) != 0 && !self.is_gone;
        is_other.then(|| SetupPacket::set_interface(interface, 0))
    }

    /// An interface was taken from its holder: what is under way on it ends, and it has its first setting again
    /// (`usb_unbind_interface`).
    fn shut_down(&mut self, now: Instant, open: OpenId, id: CallId, interface: u8) -> Result<UsbfsOutcome, UsbfsError> {
        self.kill(now, UsbfsError::Shutdown, |_, submitted| submitted.interface == Some(interface));
        let steps = ControlSequence::of(id, self.first_setting(interface));
        self.start(now, open, ControlSequence { may_stall: true, ..steps })
    }

    /// Whether the open gave up its right to change the whole device.
    fn check_unrestricted(&self, open: OpenId) -> Result<(), UsbfsError> {
        let is_free = self.opens.get(&open).is_some_and(|opened| opened.allowed.is_none());
        if is_free { Ok(()) } else { Err(UsbfsError::RightDropped) }
    }

    /// Whether there is memory for a transfer of this length, which costs `bytes`.
    fn check_memory(&self, length: u32, bytes: u64) -> Result<(), UsbfsError> {
        let has_memory = length <= URB_BYTES_MAX && self.bytes + bytes <= self.bytes_max;
        if has_memory { Ok(()) } else { Err(UsbfsError::NoMemory) }
    }

    fn launch(&mut self, now: Instant, open: OpenId, mut urb: Urb, pending: PendingRequest) {
        self.numbers += 1;
        urb.id = UrbId(self.numbers);
        self.pending.insert(urb.id, (open, pending));
        self.device.submit(now, urb.launch(), &mut self.done);
    }

    fn control(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let mut bytes = vec![0; UsbfsControlTransfer::bytes(command.width)];
        memory.read(command.argument, &mut bytes)?;
        let UsbfsControlTransfer { setup, timeout_ms, data } = UsbfsControlTransfer::decode(&bytes, command.width)?;
        self.claims.check_control(self.claimant(open), setup, layout(&self.device))?;
        let length = u32::from(setup.length);
        let out = setup.direction() == TransferDirection::Out;
        let payload = if out { read_data(data, length, memory)? } else { Payload::Empty };
        self.wait_for(now, open, Urb::control(UrbId(0), setup, payload), (command.id, data, timeout_ms))
    }

    fn bulk(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let mut bytes = vec![0; UsbfsBulkTransfer::bytes(command.width)];
        memory.read(command.argument, &mut bytes)?;
        let UsbfsBulkTransfer { endpoint, length, timeout_ms, data } =
            UsbfsBulkTransfer::decode(&bytes, command.width)?;
        self.claims.check_endpoint(self.claimant(open), endpoint, layout(&self.device))?;
        self.device.selection().endpoint(endpoint).ok_or(UsbfsError::Invalid)?;
        self.check_memory(length, SynchronousTransfer::cost(length))?;
        let urb = match endpoint.direction() {
            TransferDirection::In => Urb::data_in(UrbId(0), endpoint, length),
            TransferDirection::Out => Urb::data_out(UrbId(0), endpoint, read_data(data, length, memory)?),
        };
        self.wait_for(now, open, urb, (command.id, data, timeout_ms))
    }

    fn wait_for(
        &mut self,
        now: Instant,
        open: OpenId,
        urb: Urb,
        (id, data_at, timeout_ms): (CallId, u64, u32),
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let bytes = SynchronousTransfer::cost(urb.length);
        self.check_memory(urb.length, bytes)?;
        self.bytes += bytes;
        let deadline = (timeout_ms > 0).then(|| now + std::time::Duration::from_millis(timeout_ms.into()));
        self.launch(
            now,
            open,
            urb,
            PendingRequest::Waiting(SynchronousTransfer { id, data_at, deadline, cancelled: None, bytes }),
        );
        Ok(UsbfsOutcome::Later)
    }

    fn submit(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let mut bytes = vec![0; UrbHead::bytes(command.width)];
        memory.read(command.argument, &mut bytes)?;
        let head = UrbHead::decode(&bytes, command.width)?;
        let (mut interface, mut endpoint) = (None, None);
        if !(head.kind == UrbKind::Control && head.endpoint.is_control()) {
            interface = Some(self.claims.check_endpoint(self.claimant(open), head.endpoint, layout(&self.device))?);
            let found = self.device.selection().endpoint(head.endpoint).ok_or(UsbfsError::NotFound)?;
            endpoint = Some((found, self.device.speed()));
        }
        let name = (command.argument, command.width);
        let (submitted, mut urb) = ProgramUrb::read(&head, name, (interface, endpoint), memory)?;
        if endpoint.is_none() {
            self.claims.check_control(self.claimant(open), urb.setup, layout(&self.device))?;
        }
        self.check_memory(urb.length, submitted.bytes())?;
        self.bytes += submitted.bytes();
        if let Err(refusal) =
            submitted.read_data(&mut urb, memory).and_then(|()| self.check_continued(open, &head, &submitted))
        {
            self.bytes -= submitted.bytes();
            return Err(refusal);
        }
        self.launch(now, open, urb, PendingRequest::Urb(submitted));
        DONE
    }

    /// A bulk transfer that continues a failed one is refused; one that begins anew may.
    fn check_continued(&mut self, open: OpenId, head: &UrbHead, submitted: &ProgramUrb) -> Result<(), UsbfsError> {
        let (Some(opened), Some(bulk)) = (self.opens.get_mut(&open), submitted.bulk) else { return Ok(()) };
        if !head.has(UrbFlag::BulkContinuation) {
            opened.failed_bulk &= !(1 << bulk);
        }
        if opened.failed_bulk & 1 << bulk == 0 { Ok(()) } else { Err(UsbfsError::Discontinued) }
    }

    fn discard(&mut self, now: Instant, open: OpenId, id: CallId, address: u64) -> Result<UsbfsOutcome, UsbfsError> {
        // The oldest, if a program submitted one address twice (`async_getpending` has no rule).
        let found = self.pending.iter_mut().find_map(|(urb, (of, pending))| match pending {
            PendingRequest::Urb(submitted)
                if *of == open && submitted.address == address && submitted.withdrawn.is_none() =>
            {
                (submitted.withdrawn, submitted.discard) = (Some(UsbfsError::Discarded), Some(id));
                Some(*urb)
            }
            _ => None,
        });
        self.cancel(now, found.ok_or(UsbfsError::Invalid)?);
        Ok(UsbfsOutcome::Later)
    }

    fn reap(&mut self, open: OpenId, call: UsbfsIoctl, reaper: ReapWaiter) -> Result<UsbfsOutcome, UsbfsError> {
        let is_gone = self.is_gone;
        let opened = self.opens.get_mut(&open).ok_or(UsbfsError::Gone)?;
        match opened.reap(reaper) {
            Some((answer, bytes)) => {
                self.bytes -= bytes;
                self.answers.push_back(answer);
            }
            None if is_gone => return Err(UsbfsError::Gone),
            None if call == UsbfsIoctl::ReapUrbNoDelay => return Err(UsbfsError::NotYet),
            None => opened.wait(reaper),
        }
        Ok(UsbfsOutcome::Later)
    }

    /// Cancels URBs, which fail so: nobody waits for the end.
    fn kill(&mut self, now: Instant, why: UsbfsError, is_meant: impl Fn(OpenId, &ProgramUrb) -> bool) {
        let mut ids = Vec::new();
        for (id, (open, pending)) in &mut self.pending {
            if let PendingRequest::Urb(submitted) = pending
                && is_meant(*open, submitted)
            {
                submitted.withdrawn = Some(why);
                ids.push(*id);
            }
        }
        ids.into_iter().for_each(|id| self.cancel(now, id));
    }

    fn endpoint_of(&mut self, open: OpenId, number: u32) -> Result<EpAddr, UsbfsError> {
        let endpoint = endpoint_number(number)?;
        self.claims.check_endpoint(self.claimant(open), endpoint, layout(&self.device)).map(|_| endpoint)
    }

    fn set_interface(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let mut bytes = [0; 8];
        memory.read(command.argument, &mut bytes)?;
        let SetInterface { interface, alternate } = SetInterface::decode(bytes);
        self.claims.check_interface(self.claimant(open), interface, layout(&self.device))?;
        let (Ok(number), Ok(setting)) = (u8::try_from(interface), u8::try_from(alternate)) else {
            return Err(UsbfsError::Invalid);
        };
        let active = self.device.descriptors().configuration(self.device.selection().configuration());
        let active = active.ok_or(UsbfsError::Invalid)?;
        active.setting(number, setting).ok_or(UsbfsError::Invalid)?;
        let may_stall = active.settings.iter().filter(|setting| setting.interface == number).count() == 1;
        self.kill(now, UsbfsError::Discarded, |of, submitted| of == open && submitted.interface == Some(number));
        let steps = ControlSequence {
            may_stall,
            ..ControlSequence::of(command.id, [SetupPacket::set_interface(number, setting)])
        };
        self.start(now, open, steps)
    }

    fn set_configuration(
        &mut self,
        now: Instant,
        open: OpenId,
        id: CallId,
        number: u32,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        // A device in use keeps its configuration, also if it is the same one.
        if !self.claims.is_empty() {
            return Err(UsbfsError::Busy);
        }
        // −1 is how programs say none.
        let value = if number == u32::MAX { 0 } else { u8::try_from(number).map_err(|_| UsbfsError::Invalid)? };
        if value != 0 && self.device.descriptors().configuration(value).is_none() {
            return Err(UsbfsError::Invalid);
        }
        self.start(now, open, ControlSequence::of(id, [SetupPacket::set_configuration(value)]))
    }

    fn reset(&mut self, now: Instant, open: OpenId, id: CallId) -> Result<UsbfsOutcome, UsbfsError> {
        if self.claims.others_hold(open) {
            self.check_unrestricted(open)?;
        }
        let before = self.selection().clone();
        let configuration = before.configuration();
        // usbfs is a driver that knows nothing of resets: it is taken from its interfaces (`usb_reset_device`).
        self.claims.clear();
        self.kill(now, UsbfsError::Shutdown, |_, submitted| submitted.interface.is_some());
        self.device.reset(now, &mut self.done);
        // By this, another reset that was under way has ended.
        self.settle(now);
        self.before_reset = Some(before);
        // By the first request an exporter without a word for it knows that there was a reset (`hub_port_init`). Then
        // the configuration is as before (`usb_reset_and_verify_device`).
        let first = SetupPacket::get_descriptor(farbus_model::descriptor::kind::DEVICE, 0, 0, 64);
        let configure = (configuration != 0).then(|| SetupPacket::set_configuration(configuration));
        self.start(
            now,
            open,
            ControlSequence { is_reset: true, ..ControlSequence::of(id, [first].into_iter().chain(configure)) },
        )
    }

    fn ask_driver(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        self.check_unrestricted(open)?;
        let mut bytes = vec![0; DriverIoctl::bytes(command.width)];
        memory.read(command.argument, &mut bytes)?;
        let DriverIoctl { interface, code } = DriverIoctl::decode(&bytes);
        if self.device.selection().configuration() == 0 {
            return Err(UsbfsError::NotReady);
        }
        let number = self.interface(interface)?;
        let is_held = self.claims.holder(interface).is_some();
        match code {
            DriverIoctl::DISCONNECT if is_held => {
                self.claims.detach(interface);
                self.shut_down(now, open, command.id, number)
            }
            DriverIoctl::DISCONNECT => Err(UsbfsError::NoDriver),
            DriverIoctl::CONNECT if is_held => Err(UsbfsError::Busy),
            // There is no driver that could attach.
            DriverIoctl::CONNECT => DONE,
            _ => Err(UsbfsError::Unknown),
        }
    }

    /// The interface of this number.
    fn interface(&self, number: u32) -> Result<u8, UsbfsError> {
        let is_there = layout(&self.device).has_interface(number);
        u8::try_from(number).ok().filter(|_| is_there).ok_or(UsbfsError::Invalid)
    }

    fn disconnect_claim(
        &mut self,
        now: Instant,
        open: OpenId,
        command: &UsbfsCommand,
        memory: &mut dyn ProgramMemory,
    ) -> Result<UsbfsOutcome, UsbfsError> {
        let mut bytes = vec![0; DisconnectClaim::BYTES];
        memory.read(command.argument, &mut bytes)?;
        let DisconnectClaim { interface, if_driver, except_driver } = DisconnectClaim::decode(&bytes);
        let number = self.interface(interface)?;
        let is_held = self.claims.holder(interface).is_some();
        if is_held {
            self.check_unrestricted(open)?;
            let is_other = if_driver.is_some_and(|name| name != DRIVER.as_bytes());
            if is_other || except_driver.is_some_and(|name| name == DRIVER.as_bytes()) {
                return Err(UsbfsError::Busy);
            }
            self.claims.detach(interface);
        }
        self.claims.claim(self.claimant(open), interface, layout(&self.device))?;
        if is_held { self.shut_down(now, open, command.id, number) } else { DONE }
    }

    /// Streams need no preparation here: each request names its stream. Returns how many each endpoint has.
    fn streams(&mut self, open: OpenId, argument: u64, memory: &mut dyn ProgramMemory) -> Result<u32, UsbfsError> {
        let mut head = [0; UsbfsStreams::BYTES];
        memory.read(argument, &mut head)?;
        let UsbfsStreams { streams, endpoints } = UsbfsStreams::decode(head)?;
        let mut addresses = vec![0; endpoints as usize];
        memory.read(argument.wrapping_add(UsbfsStreams::BYTES as u64), &mut addresses)?;
        for address in addresses {
            let named = endpoint_number(address.into())?;
            let kind = self.device.selection().endpoint(named).ok_or(UsbfsError::Invalid)?.kind;
            self.endpoint_of(open, address.into())?;
            if kind != farbus_model::TransferType::Bulk || self.device.speed() < UsbSpeed::Super {
                return Err(UsbfsError::Invalid);
            }
        }
        Ok(streams.min(STREAMS_MAX))
    }

    /// Sends the first of these requests; the command is answered after the last one.
    fn start(&mut self, now: Instant, open: OpenId, mut steps: ControlSequence) -> Result<UsbfsOutcome, UsbfsError> {
        let Some(setup) = steps.left.pop_front() else { return DONE };
        self.launch(now, open, Urb::control(UrbId(0), setup, Payload::Empty), PendingRequest::Steps(steps));
        self.limits.insert(UrbId(self.numbers), now + ANSWER_TIME_MAX);
        Ok(UsbfsOutcome::Later)
    }

    /// Passes on everything that has ended.
    fn settle(&mut self, now: Instant) {
        while let Some(done) = self.done.pop() {
            self.limits.remove(&done.id);
            if let Some((open, pending)) = self.pending.remove(&done.id) {
                self.finish(now, open, pending, done);
            }
        }
        if self.device.is_gone() && !self.is_gone {
            self.note_gone();
        }
    }

    /// A request has ended: its program hears of it.
    fn finish(&mut self, now: Instant, open: OpenId, pending: PendingRequest, done: UrbCompletion) {
        match pending {
            PendingRequest::Urb(mut submitted) => {
                if let Some(id) = submitted.discard.take() {
                    self.answers.push_back(UsbfsAnswer { id, result: Ok(0), writes: Vec::new() });
                }
                let status = submitted.status(&done);
                let bulk = submitted.bulk.filter(|_| !matches!(status, UrbStatus::Ok | UrbStatus::Cancelled));
                if let Some(bulk) = bulk {
                    self.fail_continued(now, open, bulk);
                }
                let Some(opened) = self.opens.get_mut(&open) else { return };
                if let Some((answer, bytes)) = opened.finish(submitted.finish(done)) {
                    self.bytes -= bytes;
                    self.answers.push_back(answer);
                }
            }
            PendingRequest::Waiting(waiting) => {
                self.bytes -= waiting.bytes;
                self.answers.push_back(waiting.finish(done));
            }
            PendingRequest::Steps(steps) => self.go_on(now, open, steps, done.status),
            PendingRequest::Forgotten(bytes) => self.bytes -= bytes,
        }
    }

    /// A bulk transfer failed: what continues it fails, too (`cancel_bulk_urbs`).
    fn fail_continued(&mut self, now: Instant, open: OpenId, bulk: usize) {
        let mut ids = Vec::new();
        let mut has_new = false;
        for (id, (of, pending)) in &mut self.pending {
            let PendingRequest::Urb(submitted) = pending else { continue };
            if *of != open || submitted.bulk != Some(bulk) {
                continue;
            }
            if !submitted.is_continuation {
                has_new = true;
                break;
            }
            submitted.bulk = None;
            ids.push(*id);
        }
        if !has_new && let Some(opened) = self.opens.get_mut(&open) {
            opened.failed_bulk |= 1 << bulk;
        }
        ids.into_iter().for_each(|id| self.cancel(now, id));
    }

    fn go_on(&mut self, now: Instant, open: OpenId, steps: ControlSequence, status: UrbStatus) {
        let (id, is_reset) = (steps.id, steps.is_reset);
        let failure = match status {
            UrbStatus::Stall if steps.may_stall => None,
            UrbStatus::Gone => Some(UsbfsError::Gone),
            UrbStatus::TimedOut => Some(UsbfsError::TimedOut),
            status => UsbfsError::of(status),
        };
        let result = match failure {
            Some(refusal) => Err(refusal),
            None => self.start(now, open, steps),
        };
        let is_over = is_reset && !matches!(result, Ok(UsbfsOutcome::Later));
        let resets =
            |(_, pending): &(OpenId, PendingRequest)| matches!(pending, PendingRequest::Steps(steps) if steps.is_reset);
        if is_over && !self.pending.values().any(resets) {
            self.before_reset = None;
        }
        match result {
            Ok(UsbfsOutcome::Later) => {}
            Ok(UsbfsOutcome::Now(result, writes)) => {
                self.answers.push_back(UsbfsAnswer { id, result: Ok(result), writes })
            }
            Err(refusal) => self.answers.push_back(UsbfsAnswer { id, result: Err(refusal), writes: Vec::new() }),
        }
    }

    /// The device is gone for good: nobody waits any longer.
    fn note_gone(&mut self) {
        self.is_gone = true;
        let waiting: Vec<CallId> = self.opens.values_mut().flat_map(OpenNode::take_reapers).collect();
        self.answers.extend(waiting.into_iter().map(|id| UsbfsAnswer {
            id,
            result: Err(UsbfsError::Gone),
            writes: Vec::new(),
        }));
    }
}

impl PendingRequest {
    /// Whether the command with this id waits for its end.
    fn keeps(&self, id: CallId) -> bool {
        match self {
            PendingRequest::Urb(submitted) => submitted.discard == Some(id),
            PendingRequest::Waiting(waiting) => waiting.id == id,
            PendingRequest::Steps(steps) => steps.id == id,
            PendingRequest::Forgotten(_) => false,
        }
    }
}

impl ControlSequence {
    fn of(id: CallId, steps: impl IntoIterator<Item = SetupPacket>) -> Self {
        Self { id, left: steps.into_iter().collect(), may_stall: false, is_reset: false }
    }
}

fn layout(device: &impl Device) -> InterfaceLayout<'_> {
    InterfaceLayout { descriptors: device.descriptors(), selection: device.selection() }
}

/// The 32 bits that an argument points to.
fn number(address: u64, memory: &mut dyn ProgramMemory) -> Result<u32, UsbfsError> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
