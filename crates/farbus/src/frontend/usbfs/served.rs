//! One device of the tree, with the clock by which it lives.

use std::io;

use farbus_io_net::link::{BoottimeClock, EpollSet};
use farbus_model::{ConfigurationSelection, Device, ReadinessSource};
use farbus_session::usbfs::{
    CallId, PointerWidth, ProgramMemory, SysfsDevice, UsbBusLocation, UsbfsCommand, UsbfsError, UsbfsIoctl, UsbfsNode,
};

use super::bus::BusMember;
use super::slow_start::SlowStart;

/// A device with its opens, and what the tree shows of it.
pub struct TreeDevice {
    pub node: UsbfsNode<BusMember>,
    pub clock: BoottimeClock,
    /// It was removed from the tree.
    was_gone: bool,
    /// It did not answer in time, and that was logged.
    was_silent: bool,
    /// The selection that the tree shows.
    shown: ConfigurationSelection,
    /// What is waited for: that of the device, or of its twin since it was exchanged.
    watched: Option<ReadinessSource>,
}

/// A number that a command of our own points to.
struct CommandArgument(u32);

impl ProgramMemory for CommandArgument {
    fn read(&mut self, _: u64, into: &mut [u8]) -> Result<(), UsbfsError> {
        into.copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

impl TreeDevice {
    /// A device at a place, with its first configuration, as a kernel gives it one. Waits until the device has it, for
    /// 5 s at most.
    ///
    /// # Errors
    /// The device does not take it.
    pub fn new(location: UsbBusLocation, member: BusMember) -> io::Result<Self> {
        let (clock, node) = (member.clock(), UsbfsNode::new(member, location));
        let mut served = Self {
            node,
            clock,
            was_gone: false,
            was_silent: false,
            shown: ConfigurationSelection::default(),
            watched: None,
        };
        let _slow = served.node.device().source().map(|source| SlowStart::of(format!("{source}: SET_CONFIGURATION")));
        served.configure()?;
        Ok(served)
    }

    /// Gives it back to its host, which may take a moment.
    pub fn give_back(&mut self) {
        let now = self.clock.now();
        self.node.with_device(now, |member, done| member.close(now, done));
    }

    /// Whether it did not answer in time for the first time.
    pub fn has_begun_to_be_silent(&mut self) -> bool {
        let is_silent = self.node.given_up() > 0;
        !std::mem::replace(&mut self.was_silent, is_silent) && is_silent
    }

    /// Selects the first configuration, and waits until the device has it.
    fn configure(&mut self) -> io::Result<()> {
        let first = self.node.device().descriptors().configurations.first();
        let Some(value) = first.map(|configuration| configuration.value) else { return Ok(()) };
        let refused = |refusal: UsbfsError| match refusal {
            UsbfsError::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                "the device has not answered SET_CONFIGURATION for 5 s\n  unplug it there, plug it in again, and try again",
            ),
            refusal => {
                let number = refusal.number();
                io::Error::other(format!("the device does not take its configuration (error number {number})"))
            }
        };
        let open = self.node.open(true).map_err(refused)?;
        let own = CallId(0);
        let command =
            UsbfsCommand { id: own, call: UsbfsIoctl::SetConfiguration, width: PointerWidth::Bits64, argument: 0 };
        self.node.handle_command(self.clock.now(), open, &command, &mut CommandArgument(value.into()));
        let alone = EpollSet::new()?;
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

    /// Has `all` wait for it is now: its twin has another descriptor.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch_in(&mut self, all: &EpollSet) -> io::Result<()> {
        let now = self.node.readiness();
        if matches!((now, &self.watched), (Some(now), Some(watched)) if now.is(watched)) {
            return Ok(());
        }
        // The device that was there before may be in use on another thread.
        self.watched.iter().for_each(|before| all.forget_device(before));
        self.watched = now.cloned();
        self.watched.as_ref().map_or(Ok(()), |readiness| all.watch_device(readiness))
    }

    /// Whether the tree shows it otherwise than it is.
    pub fn has_changed(&self) -> bool {
        let device = self.node.device();
        let (now, shown) = (self.node.selection(), &self.shown);
        device.is_gone() != self.was_gone
            || now.configuration() != shown.configuration()
            || now.alternates() != shown.alternates()
    }

    /// The tree shows it is from now on. Returns whether it is gone since the last time.
    pub fn note_shown(&mut self) -> bool {
        self.shown = self.node.selection().clone();
        let is_gone = self.node.device().is_gone();
        !std::mem::replace(&mut self.was_gone, is_gone) && is_gone
    }

    /// What the tree shows of it; `None` if it is gone.
    pub fn shown(&self) -> Option<SysfsDevice<'_>> {
        let device = self.node.device();
        (!self.was_gone).then(|| SysfsDevice {
            descriptors: device.descriptors(),
            selection: self.node.selection(),
            speed: device.speed(),
            location: self.node.location(),
            ports: device.ports(),
        })
    }

    /// Whether it is the device with this number.
    pub fn is_numbered(&self, bus: u16, number: u16) -> bool {
        let UsbBusLocation { bus: of, device, .. } = *self.node.location();
        (of, device) == (bus, number)
    }

    /// Whether it is gone and no program has it open: nothing is left of it.
    pub fn is_over(&self) -> bool {
        self.was_gone && self.node.is_closed()
    }
}
