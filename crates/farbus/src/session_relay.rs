//! The engine between a kernel and a device behind a session: one thread, which waits on both and on whoever may end it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_io::link::{Clock, Interest, Link, Watched, wait};
use farbus_model::{Device, Limits};
use farbus_session::native::RemoteUsb;
use farbus_session::native::control::End;
use farbus_session::snapshot::{self, Writer};
use farbus_session::{DeviceRecord, Exporter, Fault, Offers, OnReset, OpStatus, Reject};
use tracing::debug;

use crate::engine::span_until;
use crate::linked::{Dial, Linked};
use crate::meters::{Calls, Meters};
use crate::standing::Standing;

/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 1;
/// How long what is on its way may take to be answered before the rest is passed on in flight: longer than a disk takes, shorter than
/// anybody at the kernel's end notices. An interrupt that waits for a key never ends.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);
/// What its link to the kernel is called.
const KERNEL: &str = "this kernel";

/// What another process goes on with.
#[derive(Debug)]
pub struct Saved {
    /// Where everything stands.
    pub snapshot: Vec<u8>,
    /// Our end of the kernel's socket.
    pub socket: OwnedFd,
}

/// Why a relay ended by itself.
#[derive(Debug)]
pub enum Stop {
    /// The kernel let go of the device.
    Released,
    /// The kernel said what it should not.
    Fault(Fault),
    /// The session is over, and why.
    Ended(End),
}

/// Whether and how a turn was the last.
type Turn = Result<(), Stop>;

/// The relay.
pub struct SessionRelay {
    kernel: Link,
    exporter: Exporter<Linked<RemoteUsb>>,
    clock: Clock,
    calls: Calls,
}

impl SessionRelay {
    /// Between a kernel that calls the device `device_id`, and the device.
    pub fn new(kernel: Link, device: Linked<RemoteUsb>, device_id: u32) -> Self {
        let clock = device.clock();
        // A session has a word for a reset: what shows one is understood here, and said.
        let on_reset = OnReset::ResetDevice;
        let exporter = Exporter::imported(clock.now(), Limits::DEFAULT, device_id, device, on_reset);
        Self { kernel, exporter, clock, calls: Calls::default() }
    }

    /// Whether it can go on in another process.
    pub fn is_movable(&self) -> bool {
        self.exporter.device().is_some_and(Linked::is_movable)
    }

    /// How its session stands.
    pub fn standing(&self) -> Option<Standing> {
        self.exporter.device().map(Linked::standing)
    }

    /// One turn: does what can be done, waits for what comes next, on `ender` too.
    ///
    /// # Errors
    /// [`Stop`]: it was the last.
    pub fn turn(&mut self, ender: Interest<'_>, meters: &Meters) -> Turn {
        let now = self.clock.now();
        self.exporter.advance(now, &mut Nothing).map_err(Stop::Fault)?;
        self.exporter.with_device(now, |device, done| device.end_turn(now, done));
        let is_full = !self.flush()?;
        meters.publish(self.exporter.counters(), self.calls);
        if let Some(end) = self.exporter.device().and_then(Linked::end) {
            return Err(Stop::Ended(end.clone()));
        }
        if self.exporter.has_held() && !is_full {
            return Ok(());
        }
        self.calls.wait += 1;
        let device = self.exporter.device().expect("a relay has its device from the start");
        let timeout = Device::poll_timeout(device);
        let readiness = device.readiness();
        let on_device = Watched::interest(readiness).expect("a session is waited for on a descriptor");
        let mut interests = [Interest::new(self.kernel.as_fd(), is_full), on_device, ender];
        wait(&mut interests, timeout.map(|at| span_until(at, now))).map_err(kernel_ended)?;
        let [on_kernel, on_device, _] = interests.map(|interest| interest.readable);
        let now = self.clock.now();
        if on_device || timeout.is_some_and(|at| at <= now) {
            self.exporter.handle_ready(now);
        }
        if on_kernel { self.receive() } else { Ok(()) }
    }

    /// Writes all of it down, for another process to go on with: the kernel is not heard meanwhile, and what is on its way is
    /// answered first, as far as that takes no time. This relay may go on all the same, if the other does not.
    ///
    /// # Errors
    /// [`Stop`]: it is over instead.
    pub fn save(&mut self) -> Result<Saved, Stop> {
        self.quiesce()?;
        let socket = self.kernel.as_fd().try_clone_to_owned().map_err(kernel_ended)?;
        let mut snapshot = Writer::new(SNAPSHOT_KIND);
        let now = self.clock.now();
        self.exporter.with_device(now, |device, _| device.save(&mut snapshot));
        self.exporter.save(now, &mut snapshot);
        Ok(Saved { snapshot: snapshot.into_bytes(), socket })
    }

    fn quiesce(&mut self) -> Turn {
        let until = self.clock.now() + QUIET_TIME_MAX;
        loop {
            let now = self.clock.now();
            self.exporter.advance(now, &mut Nothing).map_err(Stop::Fault)?;
            self.exporter.with_device(now, |device, done| device.end_turn(now, done));
            let is_out = self.flush()?;
            let device = self.exporter.device().expect("a relay has its device from the start");
            if let Some(end) = device.end() {
                return Err(Stop::Ended(end.clone()));
            }
            if (self.exporter.in_flight() == 0 && is_out) || now >= until || !device.is_linked() {
                return Ok(());
            }
            let at = Device::poll_timeout(device).map_or(until, |at| at.min(until));
            let on_device = Watched::interest(device.readiness()).expect("a session is waited for on a descriptor");
            let mut interests = [on_device, Interest::room(self.kernel.as_fd())];
            let interests = if is_out { &mut interests[..1] } else { &mut interests[..] };
            wait(interests, Some(span_until(at, now))).map_err(kernel_ended)?;
            self.exporter.handle_ready(self.clock.now());
        }
    }

    /// As another process wrote it down; nothing happens before [`SessionRelay::go_on`].
    ///
    /// # Errors
    /// No relay can have stood so, or the system has no more threads or descriptors.
    pub fn restore(saved: Saved, dial: Dial) -> io::Result<Self> {
        let wrong = |reject: Reject| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let mut reader = snapshot::open(&saved.snapshot, SNAPSHOT_KIND).map_err(wrong)?;
        let device = Linked::<RemoteUsb>::restore(dial, &mut reader)?;
        let clock = device.clock();
        let requests = |device: &Linked<RemoteUsb>| device.remote().in_flight_of();
        let (limits, on_reset) = (Limits::DEFAULT, OnReset::ResetDevice);
        let restored = Exporter::restore(clock.now(), limits, on_reset, device, requests, &mut reader);
        let exporter = restored.map_err(|(device, reject)| {
            device.hand_over();
            wrong(reject)
        })?;
        let relay = Self { kernel: Link::over_local(saved.socket, KERNEL), exporter, clock, calls: Calls::default() };
        match reader.end("snapshot") {
            Ok(()) => Ok(relay),
            Err(reject) => {
                relay.hand_over();
                Err(wrong(reject))
            }
        }
    }

    /// It begins, or the other process has let go.
    pub fn go_on(&mut self) {
        self.exporter.with_device(self.clock.now(), |device, _| device.go_on());
    }

    /// Another process goes on with it.
    pub fn hand_over(self) {
        if let Some(device) = self.exporter.hand_over() {
            device.hand_over();
        }
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

    /// Whether everything is out.
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

    /// Gives the device back; what the kernel still waits for ends as gone, as far as its socket takes it.
    pub fn close(&mut self) {
        let now = self.clock.now();
        self.exporter.with_device(now, |device, done| device.close(done));
        while let Ok(true) = self.flush()
            && self.exporter.has_held()
            && self.exporter.advance(now, &mut Nothing).is_ok()
        {}
    }
}

fn kernel_ended(error: io::Error) -> Stop {
    debug!(%error, "the kernel's socket ended");
    Stop::Released
}

/// A kernel asks for no list and no import.
struct Nothing;

impl<D> Offers<D> for Nothing {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NotAvailable)
    }
}
