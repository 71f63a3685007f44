//! Answers the kernel's requests: one thread owns the tree, all devices and all that programs wait for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farbus_io::frontend::tree::{Op, Request, RequestId, Server};
use farbus_io::link::{Clock, Gathering};
use farbus_io::sys::process_memory;
use farbus_model::{Device, Instant, Selection};
use farbus_session::usbfs::{
    Answer, Call, CallId, Command, Entry, Events, Memory, Node, OpenId, Refusal, Shown, Width,
};
use tracing::debug;

use super::bus::{Member, members};
use super::tree::Tree;
use crate::frontend::remote_usb::FarDevice;

/// ENOENT, EACCES, EISDIR, EBADF.
const NOT_THERE: u16 = 2;
const NOT_ALLOWED: u16 = 13;
const IS_FOLDER: u16 = 21;
const NOT_OPEN: u16 = 9;

/// Events of `poll(2)`: POLLERR, POLLHUP, and POLLOUT with POLLWRNORM.
const POLL_GONE: u32 = 0x008 | 0x010;
const POLL_REAP: u32 = 0x004 | 0x100;

/// One device, and the clock by which it lives.
struct Served {
    node: Node<Member>,
    clock: Clock,
    /// It was removed from the tree.
    was_gone: bool,
    /// The selection that the tree shows.
    shown: Selection,
}

/// A program that waits for the answer to a command.
struct Caller {
    device: usize,
    thread: u32,
}

/// The server of a program's devices.
pub struct Engine {
    server: Server,
    tree: Tree,
    devices: Vec<Served>,
    /// What is open, by the handle that the kernel names: device and open.
    opened: BTreeMap<u64, (usize, OpenId)>,
    handles: u64,
    callers: BTreeMap<CallId, Caller>,
    /// Those that wait in `poll` for an open.
    waiters: BTreeMap<(usize, OpenId), Vec<u64>>,
    all: Gathering,
}

/// The memory of the thread that asks.
struct CallerMemory(u32);

impl Memory for CallerMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Refusal> {
        process_memory::read(self.0, address, into).map_err(|error| {
            debug!(%error, thread = self.0, "a program's memory cannot be read");
            Refusal::BadAddress
        })
    }
}

/// A number that a command of our own points to.
struct Number(u32);

impl Memory for Number {
    fn read(&mut self, _: u64, into: &mut [u8]) -> Result<(), Refusal> {
        into.copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

impl Engine {
    /// Serves devices, which get their first configuration as a kernel would give it to them.
    ///
    /// # Errors
    /// The system's error; a device does not take its configuration.
    pub fn new(server: OwnedFd, devices: Vec<FarDevice>) -> io::Result<Self> {
        let (server, all) = (Server::new(server)?, Gathering::new()?);
        all.watch(server.as_fd(), false)?;
        let mut served = Vec::new();
        for (place, member) in members(devices)? {
            let clock = member.clock();
            let node = Node::new(member, place);
            if let Some(readiness) = node.readiness() {
                all.watch_device(readiness)?;
            }
            let mut one = Served { node, clock, was_gone: false, shown: Selection::default() };
            one.configure()?;
            served.push(one);
        }
        let mut engine = Self {
            server,
            tree: Tree::new(),
            devices: served,
            opened: BTreeMap::new(),
            handles: 0,
            callers: BTreeMap::new(),
            waiters: BTreeMap::new(),
            all,
        };
        engine.show();
        Ok(engine)
    }

    /// Waits for this descriptor, too.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.all.watch(fd, false)
    }

    /// Waits for this descriptor no longer.
    pub fn forget(&self, fd: BorrowedFd<'_>) {
        self.all.forget(fd);
    }

    /// Answers what was asked, and waits for the next event.
    ///
    /// # Errors
    /// `NotConnected`: nobody has the tree any more.
    pub fn turn(&mut self) -> io::Result<()> {
        while let Some(request) = self.server.receive()? {
            self.handle(request);
        }
        let mut timeout = None;
        for index in 0..self.devices.len() {
            let one = &mut self.devices[index];
            one.node.end_turn(one.clock.now());
            self.settle(index);
            let one = &self.devices[index];
            let left = one.node.poll_timeout().map(|at: Instant| at - one.clock.now());
            timeout = [timeout, left].into_iter().flatten().min();
        }
        if self.devices.iter().any(Served::has_changed) {
            self.show();
        }
        self.all.wait(timeout)?;
        for index in 0..self.devices.len() {
            let one = &mut self.devices[index];
            one.node.handle_ready(one.clock.now());
            let now = one.clock.now();
            if one.node.poll_timeout().is_some_and(|at| at <= now) {
                one.node.handle_timeout(now);
            }
            self.settle(index);
        }
        Ok(())
    }

    /// The program has ended: what it held is free.
    pub fn close(mut self) {
        for (device, open) in std::mem::take(&mut self.opened).into_values() {
            let one = &mut self.devices[device];
            one.node.close(one.clock.now(), open);
        }
        for one in &mut self.devices {
            let now = one.clock.now();
            one.node.with_device(now, |member, done| member.close(done));
        }
    }

    /// Makes the tree show the devices as they are.
    fn show(&mut self) {
        for one in &mut self.devices {
            one.shown = one.node.device().selection().clone();
            one.was_gone = one.node.device().is_gone();
        }
        let there = self.devices.iter().enumerate().filter(|(_, one)| !one.was_gone);
        self.tree.show(there.map(|(index, one)| {
            let device = one.node.device();
            let shown = Shown {
                descriptors: device.descriptors(),
                selection: device.selection(),
                speed: device.speed(),
                place: one.node.place(),
                ports: device.ports(),
            };
            (index, shown)
        }));
    }

    fn handle(&mut self, request: Request) {
        let Request { id, node, thread, op } = request;
        match op {
            Op::Lookup(name) => {
                let found = std::str::from_utf8(&name).ok().and_then(|name| self.tree.look_up(node, name));
                match found {
                    Some(attributes) => self.server.found(id, &attributes),
                    None => self.server.fail(id, NOT_THERE),
                }
            }
            Op::Attributes => match self.tree.attributes(node) {
                Some(attributes) => self.server.attributes(id, &attributes),
                None => self.server.fail(id, NOT_THERE),
            },
            Op::ReadLink => match self.tree.entry(node) {
                Some(Entry::Link(to)) => self.server.data(id, to.as_bytes()),
                _ => self.server.fail(id, NOT_THERE),
            },
            Op::Open { is_writable } => self.open(id, node, is_writable),
            Op::Read { offset, size } => self.read(id, node, offset, size),
            Op::List { offset, size } => match self.tree.list(node) {
                Some(entries) => {
                    let entries = entries.iter().map(|(name, attributes)| (name.as_str(), *attributes));
                    self.server.list(id, (offset, size), entries);
                }
                None => self.server.fail(id, NOT_THERE),
            },
            Op::Ioctl { handle, command, argument, is_narrow } => {
                let width = if is_narrow { Width::Bits32 } else { Width::Bits64 };
                self.ioctl(id, thread, handle, (command, argument, width));
            }
            Op::Poll { handle, waiter } => self.poll(id, handle, waiter),
            Op::Interrupt(of) => {
                let call = CallId(of.0);
                if let Some(caller) = self.callers.get(&call) {
                    let index = caller.device;
                    let one = &mut self.devices[index];
                    one.node.handle_interrupt(one.clock.now(), call);
                    self.settle(index);
                }
            }
            Op::Release { handle } => {
                if let Some((device, open)) = self.opened.remove(&handle) {
                    self.waiters.remove(&(device, open));
                    let one = &mut self.devices[device];
                    one.node.close(one.clock.now(), open);
                    self.settle(device);
                }
                self.server.done(id);
            }
            // The server answers or drops these itself.
            Op::Done | Op::OpenFolder | Op::Size | Op::Change | Op::Forget | Op::Unknown => self.server.done(id),
        }
    }

    fn open(&mut self, id: RequestId, number: u64, is_writable: bool) {
        let Some(device) = self.tree.device(number) else {
            return match self.tree.entry(number) {
                Some(Entry::File(_)) if is_writable => self.server.fail(id, NOT_ALLOWED),
                Some(Entry::File(_)) => drop(self.server.opened(id, 0)),
                _ => self.server.fail(id, NOT_THERE),
            };
        };
        match self.devices[device].node.open(is_writable) {
            Ok(open) => {
                self.handles += 1;
                self.opened.insert(self.handles, (device, open));
                if !self.server.opened(id, self.handles) {
                    self.opened.remove(&self.handles);
                    let one = &mut self.devices[device];
                    one.node.close(one.clock.now(), open);
                }
            }
            Err(refusal) => self.server.fail(id, refusal.number()),
        }
    }

    fn read(&mut self, id: RequestId, number: u64, offset: u64, size: u32) {
        let of_device = self.tree.device(number).map(|device| self.devices[device].node.descriptors());
        let bytes = match (&of_device, self.tree.entry(number)) {
            (Some(bytes), _) => bytes,
            (None, Some(Entry::File(bytes))) => bytes,
            (None, Some(_)) => return self.server.fail(id, IS_FOLDER),
            (None, None) => return self.server.fail(id, NOT_THERE),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(size as usize).min(bytes.len());
        self.server.data(id, &bytes[from..to]);
    }

    fn ioctl(&mut self, id: RequestId, thread: u32, handle: u64, (command, argument, width): (u32, u64, Width)) {
        let Some(&(device, open)) = self.opened.get(&handle) else {
            return self.server.fail(id, Refusal::Unknown.number());
        };
        let Some(call) = Call::decode(command, width) else {
            return self.server.fail(id, Refusal::Unknown.number());
        };
        let (call_id, one) = (CallId(id.0), &mut self.devices[device]);
        self.callers.insert(call_id, Caller { device, thread });
        let command = Command { id: call_id, call, width, argument };
        one.node.handle_command(one.clock.now(), open, &command, &mut CallerMemory(thread));
        self.settle(device);
    }

    fn poll(&mut self, id: RequestId, handle: u64, waiter: Option<u64>) {
        let Some(&open) = self.opened.get(&handle) else { return self.server.fail(id, NOT_OPEN) };
        let events = self.devices[open.0].node.events(open.1);
        if let Some(waiter) = waiter {
            let waiters = self.waiters.entry(open).or_default();
            if !waiters.contains(&waiter) {
                waiters.push(waiter);
            }
        }
        self.server.polled(id, poll_bits(events));
    }

    /// Passes on what a device's node has to say.
    fn settle(&mut self, device: usize) {
        while let Some(Answer { id, result, writes }) = self.devices[device].node.poll_answer() {
            // A command of our own has no caller.
            let Some(Caller { thread, .. }) = self.callers.remove(&id) else { continue };
            let written = writes.iter().try_for_each(|(address, payload)| {
                payload.runs().try_fold(*address, |at, run| {
                    process_memory::write(thread, at, run).map(|()| at.wrapping_add(run.len() as u64))
                })?;
                Ok::<(), io::Error>(())
            });
            let result = match written {
                Ok(()) => result,
                Err(_) => Err(Refusal::BadAddress),
            };
            let number = match result {
                Ok(number) => i32::try_from(number).unwrap_or(i32::MAX),
                Err(refusal) => -i32::from(refusal.number()),
            };
            self.server.ioctl(RequestId(id.0), number);
        }
        while let Some(open) = self.devices[device].node.poll_change() {
            for waiter in self.waiters.remove(&(device, open)).into_iter().flatten() {
                self.server.wake(waiter);
            }
        }
    }
}

impl Served {
    /// Selects the first configuration, and waits until the device has it.
    fn configure(&mut self) -> io::Result<()> {
        let first = self.node.device().descriptors().configurations.first();
        let Some(value) = first.map(|configuration| configuration.value) else { return Ok(()) };
        let refused = |refusal: Refusal| {
            io::Error::other(format!("the device does not take its configuration (error number {})", refusal.number()))
        };
        let open = self.node.open(true).map_err(refused)?;
        let own = CallId(0);
        let command = Command { id: own, call: Call::SetConfiguration, width: Width::Bits64, argument: 0 };
        self.node.handle_command(self.clock.now(), open, &command, &mut Number(value.into()));
        let alone = Gathering::new()?;
        if let Some(readiness) = self.node.readiness() {
            alone.watch_device(readiness)?;
        }
        let answer = loop {
            if let Some(answer) = self.node.poll_answer() {
                break answer;
            }
            self.node.end_turn(self.clock.now());
            let left = self.node.poll_timeout().map(|at| at - self.clock.now());
            alone.wait(left)?;
            self.node.handle_ready(self.clock.now());
            let now = self.clock.now();
            if self.node.poll_timeout().is_some_and(|at| at <= now) {
                self.node.handle_timeout(now);
            }
        };
        self.node.close(self.clock.now(), open);
        answer.result.map(drop).map_err(refused)
    }

    /// Whether the tree shows it otherwise than it is.
    fn has_changed(&self) -> bool {
        let device = self.node.device();
        let (now, shown) = (device.selection(), &self.shown);
        device.is_gone() != self.was_gone
            || now.configuration() != shown.configuration()
            || now.alternates() != shown.alternates()
    }
}

fn poll_bits(Events { can_reap, is_gone }: Events) -> u32 {
    let reap = if can_reap { POLL_REAP } else { 0 };
    if is_gone { reap | POLL_GONE } else { reap }
}
