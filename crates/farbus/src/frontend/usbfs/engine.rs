//! Answers the kernel's requests: one thread owns the tree, all devices and all that programs wait for.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farbus_io_linux::frontend::tree::{RequestId, TreeOperation, TreeRequest, TreeServer};
use farbus_io_linux::sys::process_memory;
use farbus_io_net::link::{EpollSet, ThreadWaker};
use farbus_model::limits::USBFS_BYTES_MAX;
use farbus_model::{Device, Instant, Payload, UsbSpeed};
use farbus_session::usbfs::{
    CallId, OpenId, PointerWidth, ProgramMemory, SysfsEntry, UsbBusLocation, UsbfsAnswer, UsbfsCommand, UsbfsError,
    UsbfsIoctl, UsbfsPollEvents as PollEvents,
};
use tracing::{debug, warn};

use super::bus::{DeviceNumberAllocator, FarDeviceSource, members};
use super::error::RunError;
use super::events::HotplugAnnouncer;
use super::follow::CallerAffinity;
use super::polls::PendingPolls;
use super::search::DeviceSearch;
use super::served::TreeDevice;
use super::tree::SysfsTree;
use crate::common::stop_signal::StopSignal;
use crate::frontend::usb_swap::SwapUsb;

/// ENOENT, EACCES, EISDIR, EBADF.
const NOT_THERE: u16 = 2;
const NOT_ALLOWED: u16 = 13;
const IS_FOLDER: u16 = 21;
const NOT_OPEN: u16 = 9;

/// How long a device that did not answer in time is waited for when it is given back.
const SILENT_TIME_MAX: Duration = Duration::from_millis(500);

/// A program that waits for the answer to a command.
struct CommandCaller {
    device: usize,
    thread: u32,
}

/// The server of a program's devices.
pub struct UsbfsEngine {
    server: TreeServer,
    tree: SysfsTree,
    devices: BTreeMap<usize, TreeDevice>,
    /// The next device's, which no device has had.
    next: usize,
    numbers: DeviceNumberAllocator,
    searches: Vec<DeviceSearch>,
    /// Rung by a search that has found its device, and by who stops this.
    wake: Arc<ThreadWaker>,
    /// `None` if programs cannot be told what comes and goes.
    events: Option<HotplugAnnouncer>,
    /// What is open, by the handle that the kernel names: device and open.
    opened: BTreeMap<u64, (usize, OpenId)>,
    handles: u64,
    callers: BTreeMap<CallId, CommandCaller>,
    polls: PendingPolls,
    follow: CallerAffinity,
    all: EpollSet,
}

/// The memory of the thread that asks.
struct CallerMemory(u32);

impl ProgramMemory for CallerMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), UsbfsError> {
        process_memory::read(self.0, address, into).map_err(|error| {
            debug!(%error, thread = self.0, "a program's memory cannot be read");
            UsbfsError::BadAddress
        })
    }
}

impl UsbfsEngine {
    /// Serves devices, which get their first configuration as a kernel would give it to them.
    ///
    /// # Errors
    /// The system's error; a device does not take its configuration, or does not answer.
    pub fn new(
        server: OwnedFd,
        wake: Arc<ThreadWaker>,
        events: Option<HotplugAnnouncer>,
        tree: SysfsTree,
        devices: Vec<(SwapUsb, Arc<FarDeviceSource>)>,
    ) -> Result<Self, RunError> {
        let mut engine = Self::empty(server, wake, events, tree).map_err(RunError::local)?;
        for (location, member) in members(devices, &mut engine.numbers).map_err(RunError::local)? {
            let source = member.source();
            let configured = TreeDevice::new(location, member);
            let served = configured.map_err(|error| RunError::of_device(source.as_deref(), &error))?;
            engine.insert(served).map_err(RunError::local)?;
        }
        engine.show();
        Ok(engine)
    }

    fn empty(
        server: OwnedFd,
        wake: Arc<ThreadWaker>,
        events: Option<HotplugAnnouncer>,
        tree: SysfsTree,
    ) -> io::Result<Self> {
        let engine = Self {
            server: TreeServer::new(server)?,
            tree,
            devices: BTreeMap::new(),
            next: 0,
            numbers: DeviceNumberAllocator::default(),
            searches: Vec::new(),
            wake,
            events,
            opened: BTreeMap::new(),
            handles: 0,
            callers: BTreeMap::new(),
            polls: PendingPolls::default(),
            follow: CallerAffinity::new()?,
            all: EpollSet::new()?,
        };
        engine.all.watch(engine.server.as_fd(), false)?;
        engine.all.watch(engine.wake.as_fd(), false)?;
        Ok(engine)
    }

    fn insert(&mut self, mut served: TreeDevice) -> io::Result<()> {
        served.watch_in(&self.all)?;
        let (location, speed) = (served.node.location().clone(), served.node.device().speed());
        self.devices.insert(self.next, served);
        self.next += 1;
        self.set_port(&location, Some(speed));
        Ok(())
    }

    /// The root hub of the place's bus says from now on that this is at its port.
    fn set_port(&mut self, location: &UsbBusLocation, device: Option<UsbSpeed>) {
        let [port] = location.ports[..] else { return };
        if let Some(hub) = self.devices.values_mut().find(|one| one.is_numbered(location.bus, 1)) {
            hub.node.with_device(hub.clock.now(), |member, _| member.set_port(port, device));
        }
    }

    /// Serves until it is stopped, or nobody has the tree any more; then the devices are given back.
    ///
    /// # Errors
    /// The system's error.
    pub fn serve(mut self, stop: &StopSignal) -> io::Result<()> {
        let result = loop {
            match self.turn() {
                Ok(()) if !stop.was_asked() => {}
                Err(error) if error.kind() != io::ErrorKind::NotConnected => break Err(error),
                _ => break Ok(()),
            }
        };
        self.close();
        result
    }

    /// Answers what was asked, and waits for the next event.
    fn turn(&mut self) -> io::Result<()> {
        while let Some(request) = self.server.receive()? {
            self.handle(request);
        }
        let mut timeout = self.polls.left();
        for index in self.indices() {
            let Some(one) = self.devices.get_mut(&index) else { continue };
            one.node.end_turn(one.clock.now());
            let left = one.node.poll_timeout().map(|at: Instant| at - one.clock.now());
            timeout = [timeout, left].into_iter().flatten().min();
            one.watch_in(&self.all)?;
            self.settle(index);
        }
        self.all.wait(timeout)?;
        self.polls.end(&self.server);
        for index in self.indices() {
            let Some(one) = self.devices.get_mut(&index) else { continue };
            one.node.handle_ready(one.clock.now());
            let now = one.clock.now();
            if one.node.poll_timeout().is_some_and(|at| at <= now) {
                one.node.handle_timeout(now);
            }
            self.settle(index);
        }
        if self.wake.take() {
            self.take_found()?;
            self.take_orders();
        }
        Ok(())
    }

    /// Begins to exchange the devices for which that was ordered.
    fn take_orders(&mut self) {
        for index in self.indices() {
            let Some(one) = self.devices.get_mut(&index) else { continue };
            if let Some(order) = one.node.device().take_order() {
                let now = one.clock.now();
                one.node.with_device(now, |member, done| member.exchange(now, order, done));
                self.settle(index);
            }
        }
    }

    fn indices(&self) -> Range<usize> {
        let first = self.devices.keys().next().copied();
        first.unwrap_or(self.next)..self.next
    }

    /// Shows the devices that are there again.
    fn take_found(&mut self) -> io::Result<()> {
        let mut found = Vec::new();
        self.searches.retain(|search| match search.result() {
            Some(served) => {
                found.push(served);
                false
            }
            None => true,
        });
        for served in found {
            self.insert(*served)?;
        }
        self.show();
        Ok(())
    }

    /// The program has ended: what it held is free. Gives all devices back at once. One that did not answer before is
    /// not waited for long: its exporter has been told by then, if anything reaches it.
    fn close(&mut self) {
        for (device, open) in std::mem::take(&mut self.opened).into_values() {
            if let Some(one) = self.devices.get_mut(&device) {
                one.node.close(one.clock.now(), open);
            }
        }
        let returning = std::mem::take(&mut self.devices).into_values().map(|mut one| {
            let is_silent = one.node.given_up() > 0;
            let (to, returned) = channel();
            thread::spawn(move || {
                one.give_back();
                drop(one);
                // This process may have ended.
                let _ = to.send(());
            });
            (is_silent, returned)
        });
        for (is_silent, returned) in returning.collect::<Vec<_>>() {
            // A thread that ends without a word has failed, and is not waited for.
            let _ =
                if is_silent { returned.recv_timeout(SILENT_TIME_MAX) } else { returned.recv().map_err(Into::into) };
        }
    }

    /// Makes the tree show the devices as they are; those that are gone are looked for.
    fn show(&mut self) {
        let mut gone = Vec::new();
        for one in self.devices.values_mut() {
            if one.note_shown()
                && let Some(source) = one.node.device().source()
            {
                gone.push((source, one.node.location().clone(), one.node.device().taken_away()));
                let now = one.clock.now();
                one.node.with_device(now, |member, _| member.note_gone());
            }
        }
        let news = self.tree.show(self.devices.iter().filter_map(|(index, one)| Some((*index, one.shown()?))));
        // They look at the tree when they hear of it.
        if let Some(events) = &mut self.events {
            news.iter().for_each(|event| events.send(event));
        }
        if !gone.is_empty() {
            // The searches may run anywhere.
            self.follow.release();
        }
        for (source, location, taken_away) in gone {
            self.set_port(&location, None);
            if let Some(report) = taken_away {
                warn!(device = %source, "the device was taken away: {}", report.message);
                source.note_taken_away(report);
                continue;
            }
            let UsbBusLocation { bus, ports, .. } = location;
            warn!(device = %source, "the device is gone, and is looked for");
            let device = self.numbers.next(bus, |number| self.devices.values().any(|one| one.is_numbered(bus, number)));
            self.searches.push(DeviceSearch::start(
                source,
                UsbBusLocation { bus, device, ports },
                Arc::clone(&self.wake),
            ));
        }
        self.devices.retain(|_, one| !one.is_over());
    }

    fn handle(&mut self, request: TreeRequest) {
        let TreeRequest { id, node, thread, op } = request;
        match op {
            TreeOperation::Lookup(name) => {
                let found = std::str::from_utf8(&name).ok().and_then(|name| self.tree.look_up(node, name));
                match found {
                    Some(attributes) => self.server.found(id, &attributes),
                    None => self.server.fail(id, NOT_THERE),
                }
            }
            TreeOperation::Attributes => match self.tree.attributes(node) {
                Some(attributes) => self.server.attributes(id, &attributes),
                None => self.server.fail(id, NOT_THERE),
            },
            TreeOperation::ReadLink => match self.tree.entry(node) {
                Some(SysfsEntry::Link(to)) => self.server.data(id, to.as_bytes()),
                _ => self.server.fail(id, NOT_THERE),
            },
            TreeOperation::Open { is_writable } => self.open(id, node, is_writable),
            TreeOperation::Read { offset, size } => self.read(id, node, offset, size),
            TreeOperation::List { offset, size } => match self.tree.list(node) {
                Some(entries) => {
                    let entries = entries.iter().map(|(name, attributes)| (name.as_str(), *attributes));
                    self.server.list(id, (offset, size), entries);
                }
                None => self.server.fail(id, NOT_THERE),
            },
            TreeOperation::Ioctl { handle, command, argument, is_narrow } => {
                let width = if is_narrow { PointerWidth::Bits32 } else { PointerWidth::Bits64 };
                self.ioctl(id, thread, handle, (command, argument, width));
            }
            TreeOperation::Poll { handle, waiter } => self.poll(id, handle, waiter),
            TreeOperation::Interrupt(of) => {
                self.polls.interrupt(&self.server, of);
                let call = CallId(of.0);
                if let Some(caller) = self.callers.get(&call) {
                    let index = caller.device;
                    if let Some(one) = self.devices.get_mut(&index) {
                        one.node.handle_interrupt(one.clock.now(), call);
                    }
                    self.settle(index);
                }
            }
            TreeOperation::Release { handle } => {
                if let Some((device, open)) = self.opened.remove(&handle) {
                    self.polls.close((device, open));
                    self.close_open(device, open);
                }
                self.server.done(id);
            }
            // The server answers or drops these itself.
            TreeOperation::Done
            | TreeOperation::OpenFolder
            | TreeOperation::Size
            | TreeOperation::Change
            | TreeOperation::Forget
            | TreeOperation::Unknown => self.server.done(id),
        }
    }

    fn open(&mut self, id: RequestId, number: u64, is_writable: bool) {
        let Some(device) = self.tree.device(number) else {
            return match self.tree.entry(number) {
                Some(SysfsEntry::File(_)) if is_writable => self.server.fail(id, NOT_ALLOWED),
                Some(SysfsEntry::File(_)) => drop(self.server.opened(id, 0)),
                _ => self.server.fail(id, NOT_THERE),
            };
        };
        let Some(one) = self.devices.get_mut(&device) else { return self.server.fail(id, UsbfsError::Gone.number()) };
        match one.node.open(is_writable) {
            Ok(open) => {
                self.handles += 1;
                self.opened.insert(self.handles, (device, open));
                if !self.server.opened(id, self.handles) {
                    self.opened.remove(&self.handles);
                    self.close_open(device, open);
                }
            }
            Err(refusal) => self.server.fail(id, refusal.number()),
        }
    }

    fn close_open(&mut self, device: usize, open: OpenId) {
        if let Some(one) = self.devices.get_mut(&device) {
            one.node.close(one.clock.now(), open);
        }
        self.settle(device);
        if self.devices.get(&device).is_some_and(TreeDevice::is_over) {
            self.devices.remove(&device);
        }
    }

    fn read(&mut self, id: RequestId, number: u64, offset: u64, size: u32) {
        let device = self.tree.device(number).and_then(|device| self.devices.get(&device));
        let of_device = device.map(|device| device.node.descriptors());
        let bytes = match (&of_device, self.tree.entry(number)) {
            (Some(bytes), _) => bytes,
            (None, Some(SysfsEntry::File(bytes))) => bytes,
            (None, Some(_)) => return self.server.fail(id, IS_FOLDER),
            (None, None) => return self.server.fail(id, NOT_THERE),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(size as usize).min(bytes.len());
        self.server.data(id, &bytes[from..to]);
    }

    fn ioctl(&mut self, id: RequestId, thread: u32, handle: u64, (command, argument, width): (u32, u64, PointerWidth)) {
        let Some(&(device, open)) = self.opened.get(&handle) else {
            return self.server.fail(id, UsbfsError::Unknown.number());
        };
        let held: u64 = self.devices.values().map(|one| one.node.bytes()).sum();
        let Some((call, one)) = UsbfsIoctl::decode(command, width).zip(self.devices.get_mut(&device)) else {
            return self.server.fail(id, UsbfsError::Unknown.number());
        };
        one.node.limit_bytes(USBFS_BYTES_MAX.saturating_sub(held - one.node.bytes()));
        let call_id = CallId(id.0);
        self.callers.insert(call_id, CommandCaller { device, thread });
        self.follow.note(thread, one.node.bytes());
        let command = UsbfsCommand { id: call_id, call, width, argument };
        let is_alone = one.node.bytes() == 0;
        one.node.handle_command(one.clock.now(), open, &command, &mut CallerMemory(thread));
        if is_alone {
            // On its way while the program asks for its end; what comes beside it goes at the end of the turn.
            one.node.end_turn(one.clock.now());
        }
        self.settle(device);
    }

    fn poll(&mut self, id: RequestId, handle: u64, waiter: Option<u64>) {
        let Some(&open) = self.opened.get(&handle) else { return self.server.fail(id, NOT_OPEN) };
        let gone = PollEvents { can_reap: false, is_gone: true };
        let events = self.devices.get(&open.0).map_or(gone, |one| one.node.events(open.1));
        self.polls.ask(&self.server, (id, waiter), open, events);
    }

    /// Passes on what a device's node has to say.
    fn settle(&mut self, device: usize) {
        if self.devices.get(&device).is_some_and(TreeDevice::has_changed) {
            // A program that hears of what has ended looks at the tree.
            self.show();
        }
        let Some(one) = self.devices.get_mut(&device) else { return };
        while let Some(UsbfsAnswer { id, result, writes }) = one.node.poll_answer() {
            // A command of our own has no caller.
            let Some(CommandCaller { thread, .. }) = self.callers.remove(&id) else { continue };
            let result = match process_memory::write(thread, &pieces(&writes)) {
                Ok(()) => result,
                Err(_) => Err(UsbfsError::BadAddress),
            };
            let number = match result {
                Ok(number) => i32::try_from(number).unwrap_or(i32::MAX),
                Err(refusal) => -i32::from(refusal.number()),
            };
            self.server.ioctl(RequestId(id.0), number);
        }
        if one.has_begun_to_be_silent() {
            let source = one.node.device().source();
            let device = source.map(|source| source.to_string()).unwrap_or_default();
            warn!(device, "a request was not answered for 5 s: the program has it as cancelled, or as timed out");
        }
        while let Some(open) = one.node.poll_change() {
            self.polls.change(&self.server, (device, open), one.node.events(open));
        }
    }
}

/// The runs of what is written, with their addresses.
fn pieces(writes: &[(u64, Payload)]) -> Vec<(u64, &[u8])> {
    let runs = writes.iter().flat_map(|(address, payload)| {
        payload.runs().scan(*address, |at, run| Some((std::mem::replace(at, at.wrapping_add(run.len() as u64)), run)))
    });
    runs.collect()
}
