//! Between this machine's kernel and a device that lives outside: one thread, which waits on both and on whoever may
//! end it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_io::link::{Clock, Interest, Link, Watched, wait};
use farbus_model::{Device, Instant};
use farbus_session::native::control::End;
use farbus_session::snapshot::Writer;
use farbus_session::{DeviceRecord, Exporter, Fault, Offers, OpStatus, Reject};
use tracing::debug;

use crate::importer::disk::DiskMode;
use crate::importer::port::Cutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::{Calls, Meters};

/// Why it ended by itself.
#[derive(Debug)]
pub enum Stop {
    /// The kernel let go of the device.
    Released,
    /// The kernel said what it should not.
    Fault(Fault),
    /// The device's only link was lost, and why.
    Lost(String),
    /// The exporter broke the protocol.
    Broken(Reject),
    /// The device's session is over, and why.
    Ended(End),
    /// The device is gone, and says no more.
    Gone,
}

/// What its link to the kernel is called.
pub const KERNEL: &str = "this kernel";

/// Whether and how a turn was the last.
pub type Turn = Result<(), Stop>;

/// How long what is on its way may take to be answered before the rest is passed on in flight: longer than a disk
/// takes, shorter than anybody at the kernel's end notices. An interrupt that waits for a key never ends.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);

/// What does not change of a relay while it runs.
#[derive(Clone)]
pub struct Relayed {
    /// How the device is attached, in a few words.
    pub how: &'static str,
    /// How it is used, if it is a disk of ours.
    pub mode: Option<DiskMode>,
    /// Its session, if it is in one.
    pub session: Option<SessionStatus>,
    /// Our end of its link, as the exporter sees its user; none in a session.
    pub local_address: Option<SocketAddr>,
    /// Takes it from the kernel without waiting for anything, if the relay waits for anything when it closes.
    pub cutter: Option<Cutter>,
    /// Whether another process can go on with it.
    pub is_movable: bool,
}

impl Relayed {
    /// One of which no more is known.
    pub const fn how(how: &'static str) -> Self {
        Self { how, mode: None, session: None, local_address: None, cutter: None, is_movable: false }
    }
}

/// What stands between a kernel and a device, and may go on in another process.
pub trait Relaying: Send + Sized {
    /// What does not change of it.
    fn relayed(&self) -> Relayed;

    /// One turn: does what can be done, waits for what comes next, on `stop` too.
    ///
    /// # Errors
    /// [`Stop`]: it was the last.
    fn turn(&mut self, stop: Interest<'_>, meters: &Meters) -> Turn;

    /// Writes all of it down, for another process to go on with: the kernel is not heard meanwhile, and what is on its
    /// way is answered first, as far as that takes no time. It may go on here all the same, if the other does not. With
    /// it our end of the kernel's socket; without it nobody can go on with this.
    ///
    /// # Errors
    /// [`Stop`]: it is over instead.
    fn save(&mut self, to: &mut Writer) -> Result<Option<OwnedFd>, Stop>;

    /// Another process goes on with it.
    fn hand_over(self);

    /// Gives the device back; what the kernel still waits for ends as gone, as far as its socket takes it.
    /// Whether all that was written through it is known to be durable, as far as that is for us to see to.
    fn close(&mut self) -> bool;
}

/// The kernel's socket, and the device in front of it.
pub struct KernelSide<D> {
    /// Our end of the socket.
    pub kernel: Link,
    /// What speaks to the kernel.
    pub exporter: Exporter<D>,
    /// The device's clock.
    pub clock: Clock,
    calls: Calls,
}

impl<D: Device> KernelSide<D> {
    /// Between a kernel and a device that an exporter has from the start.
    pub fn new(kernel: Link, exporter: Exporter<D>, clock: Clock) -> Self {
        Self { kernel, exporter, clock, calls: Calls::default() }
    }

    /// The device.
    pub fn device(&self) -> &D {
        self.exporter.device().expect("a relay has its device from the start")
    }

    /// One turn: does what can be done, waits for what comes next, on `stop` too. `end` says whether the device is no
    /// more.
    ///
    /// # Errors
    /// [`Stop`]: it was the last.
    pub fn turn(&mut self, stop: Interest<'_>, meters: &Meters, end: impl FnOnce(&D) -> Option<Stop>) -> Turn {
        let is_full = !self.act()?;
        meters.publish(self.exporter.counters(), self.calls);
        if let Some(stop) = end(self.device()) {
            return Err(stop);
        }
        if self.exporter.has_held() && !is_full {
            return Ok(());
        }
        self.calls.wait += 1;
        let now = self.clock.now();
        let device = self.device();
        let timeout = device.poll_timeout();
        let on_device = Watched::interest(device.readiness().expect("what is behind a session lives outside"));
        let on_device = on_device.expect("a session is waited for on a descriptor");
        let mut interests = [Interest::new(self.kernel.as_fd(), is_full), on_device, stop];
        wait(&mut interests, timeout.map(|at| at - now)).map_err(kernel_ended)?;
        let [on_kernel, on_device, _] = interests.map(|interest| interest.readable);
        let now = self.clock.now();
        if on_device {
            self.exporter.handle_ready(now);
        }
        if timeout.is_some_and(|at| at <= now) {
            self.exporter.with_device(now, |device, done| device.handle_timeout(now, done));
        }
        if on_kernel { self.receive() } else { Ok(()) }
    }

    /// Does what can be done without waiting; says whether everything is out.
    ///
    /// # Errors
    /// [`Stop`]: the kernel ended it.
    pub fn act(&mut self) -> Result<bool, Stop> {
        let now = self.clock.now();
        self.exporter.advance(now, &mut Nothing).map_err(Stop::Fault)?;
        self.exporter.with_device(now, |device, done| device.end_turn(now, done));
        self.flush()
    }

    /// Lets what is on its way be answered, until `is_quiet`, or for as long as that takes no time. The kernel is not
    /// heard meanwhile.
    ///
    /// # Errors
    /// [`Stop`]: it is over instead.
    pub fn come_to_rest(&mut self, is_quiet: impl Fn(&Exporter<D>) -> Result<bool, Stop>) -> Turn {
        let until = self.clock.now() + QUIET_TIME_MAX;
        loop {
            let now = self.clock.now();
            let is_out = self.act()?;
            if (is_quiet(&self.exporter)? && is_out) || now >= until {
                return Ok(());
            }
            let device = self.device();
            let at = device.poll_timeout().map_or(until, |at| at.min(until));
            let on_device = Watched::interest(device.readiness().expect("what is behind a session lives outside"));
            let on_device = on_device.expect("a session is waited for on a descriptor");
            let mut interests = [on_device, Interest::room(self.kernel.as_fd())];
            let interests = if is_out { &mut interests[..1] } else { &mut interests[..] };
            wait(interests, Some(at - now)).map_err(kernel_ended)?;
            let now = self.clock.now();
            self.exporter.handle_ready(now);
            if at <= now {
                self.exporter.with_device(now, |device, done| device.handle_timeout(now, done));
            }
        }
    }

    /// Another handle on our end of the kernel's socket.
    ///
    /// # Errors
    /// [`Stop`]: the system has no more descriptors.
    pub fn socket(&self) -> Result<OwnedFd, Stop> {
        self.kernel.as_fd().try_clone_to_owned().map_err(kernel_ended)
    }

    fn receive(&mut self) -> Turn {
        self.calls.receive += 1;
        match self.kernel.try_receive(self.exporter.receive_space()).map_err(kernel_ended)? {
            Some(0) => Err(Stop::Released),
            Some(count) => {
                self.exporter.handle_received(count);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<bool, Stop> {
        while self.exporter.has_transmit() {
            self.calls.send += 1;
            let sent = self.kernel.try_send(&self.exporter.poll_transmit()).map_err(kernel_ended)?;
            match sent {
                Some(count) => self.exporter.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What the kernel still waits for has been answered: it is told, as far as its socket takes it.
    pub fn say_the_rest(&mut self, now: Instant) {
        while let Ok(true) = self.flush()
            && self.exporter.has_held()
            && self.exporter.advance(now, &mut Nothing).is_ok()
        {}
    }
}

/// The kernel's socket ended.
pub fn kernel_ended(error: io::Error) -> Stop {
    debug!(%error, "the kernel's socket ended");
    Stop::Released
}

/// A kernel asks for no list and no import.
pub struct Nothing;

impl<D> Offers<D> for Nothing {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NotAvailable)
    }
}
