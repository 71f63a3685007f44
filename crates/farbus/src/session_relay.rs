//! The relay between a kernel and a USB device behind a session, which another process may go on with.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_io::link::{Interest, Link, Watched, wait};
use farbus_model::{Device, Limits};
use farbus_session::far::{Far, Plan};
use farbus_session::isochronous::Isochronous;
use farbus_session::native::RemoteUsb;
use farbus_session::snapshot::{Reader, Writer};
use farbus_session::{Exporter, OnReset, Reject};

use crate::ahead::Ahead;
use crate::distance::Distance;
use crate::engine::span_until;
use crate::kernel_side::{KernelSide, Stop, Turn, kernel_ended};
use crate::linked::{Linked, Redial};
use crate::meters::Meters;
use crate::standing::Standing;

/// How long what is on its way may take to be answered before the rest is passed on in flight: longer than a disk takes, shorter than
/// anybody at the kernel's end notices. An interrupt that waits for a key never ends.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);
/// What its link to the kernel is called.
const KERNEL: &str = "this kernel";

/// The relay, and what was told of its device's distance.
pub struct SessionRelay(KernelSide<Near>, Told);

/// What was told of a device's distance, and where.
#[derive(Default)]
struct Told {
    standing: Standing,
    distance: Distance,
}

/// A session's device, for a kernel that does not feel how far it is.
type Near = Far<Isochronous<Linked<RemoteUsb>>>;

impl SessionRelay {
    /// Between a kernel that calls the device `device_id`, and the device.
    pub fn new(kernel: Link, device: Linked<RemoteUsb>, device_id: u32, ahead: Ahead) -> Self {
        let clock = device.clock();
        let plan = plan_of(&device, ahead);
        let told = Told { standing: device.standing(), ..Told::default() };
        let device = Far::new(Isochronous::new(device, plan.is_on), plan);
        // A session has a word for a reset: what shows one is understood here, and said.
        let on_reset = OnReset::ResetDevice;
        let exporter = Exporter::imported(clock.now(), Limits::DEFAULT, device_id, device, on_reset);
        let mut side = KernelSide::new(kernel, exporter, clock);
        // What a kernel asks first is on its way before it asks.
        side.exporter.with_device(clock.now(), |device, done| device.begin(clock.now(), done));
        Self(side, told)
    }

    fn linked(&self) -> &Linked<RemoteUsb> {
        self.0.device().device().inner()
    }

    /// Whether it can go on in another process.
    pub fn is_movable(&self) -> bool {
        self.linked().is_movable()
    }

    /// How its session stands.
    pub fn standing(&self) -> Standing {
        self.linked().standing()
    }

    /// One turn: does what can be done, waits for what comes next, on `ender` too.
    ///
    /// # Errors
    /// [`Stop`]: it was the last.
    pub fn turn(&mut self, ender: Interest<'_>, meters: &Meters) -> Turn {
        self.0.turn(ender, meters, |device| device.device().inner().end().cloned().map(Stop::Ended))?;
        let (distance, told) = (Distance::of(self.0.device()), &mut self.1);
        // Most devices are not asked before their users ask.
        if distance != told.distance {
            told.distance = distance;
            told.standing.note_distance(distance);
        }
        Ok(())
    }

    /// Writes all of it down, for another process to go on with: the kernel is not heard meanwhile, and what is on its way is
    /// answered first, as far as that takes no time. This relay may go on all the same, if the other does not. With it our end of the
    /// kernel's socket.
    ///
    /// # Errors
    /// [`Stop`]: it is over instead.
    pub fn save(&mut self, to: &mut Writer) -> Result<OwnedFd, Stop> {
        self.quiesce()?;
        let socket = self.0.kernel.as_fd().try_clone_to_owned().map_err(kernel_ended)?;
        let now = self.0.clock.now();
        self.0.exporter.with_device(now, |device, done| {
            device.act(now, done, |streams, done| {
                streams.act(now, done, |linked, _| linked.save(to));
                streams.save(to);
            });
            device.save(to);
        });
        self.0.exporter.save(now, to);
        Ok(socket)
    }

    fn quiesce(&mut self) -> Turn {
        let side = &mut self.0;
        let until = side.clock.now() + QUIET_TIME_MAX;
        loop {
            let now = side.clock.now();
            let is_out = side.act()?;
            let device = side.device();
            let linked = device.device().inner();
            if let Some(end) = linked.end() {
                return Err(Stop::Ended(end.clone()));
            }
            if (side.exporter.in_flight() == 0 && is_out) || now >= until || !linked.is_linked() {
                return Ok(());
            }
            let at = Device::poll_timeout(device).map_or(until, |at| at.min(until));
            let on_device = Watched::interest(linked.readiness()).expect("a session is waited for on a descriptor");
            let mut interests = [on_device, Interest::room(side.kernel.as_fd())];
            let interests = if is_out { &mut interests[..1] } else { &mut interests[..] };
            wait(interests, Some(span_until(at, now))).map_err(kernel_ended)?;
            let now = side.clock.now();
            side.exporter.handle_ready(now);
            if at <= now {
                side.exporter.with_device(now, |device, done| device.handle_timeout(now, done));
            }
        }
    }

    /// As another process wrote it down, to the end; nothing happens before its first turn.
    ///
    /// # Errors
    /// No relay can have stood so, or the system has no more threads or descriptors.
    pub fn restore(mut reader: Reader<'_>, socket: OwnedFd, redial: Redial) -> io::Result<Self> {
        let wrong = |reject: Reject| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let device = Linked::<RemoteUsb>::restore(redial, &mut reader)?;
        // Whether anything is asked ahead was written down by both layers; this is how far, if so.
        let (clock, plan, asked) = (device.clock(), plan_of(&device, Ahead::Auto), device.remote().in_flight_of());
        let told = Told { standing: device.standing(), ..Told::default() };
        let streams = Isochronous::restore(clock.now(), device, &mut reader);
        let device = streams.map_err(|(device, reject)| {
            device.hand_over();
            wrong(reject)
        })?;
        let asked = device.in_flight_of(asked);
        let far = Far::restore(clock.now(), device, plan, asked, &mut reader);
        let device = far.map_err(|(device, reject)| {
            device.hand_over().hand_over();
            wrong(reject)
        })?;
        let requests = |device: &Near| {
            let streams = device.device();
            device.in_flight_of(streams.in_flight_of(streams.inner().remote().in_flight_of()))
        };
        let (limits, on_reset) = (Limits::DEFAULT, OnReset::ResetDevice);
        let restored = Exporter::restore(clock.now(), limits, on_reset, device, requests, &mut reader);
        let exporter = restored.map_err(|(device, reject)| {
            device.hand_over().hand_over().hand_over();
            wrong(reject)
        })?;
        let relay = Self(KernelSide::new(Link::over_local(socket, KERNEL), exporter, clock), told);
        match reader.end("snapshot") {
            Ok(()) => Ok(relay),
            Err(reject) => {
                relay.hand_over();
                Err(wrong(reject))
            }
        }
    }

    /// Another process goes on with it.
    pub fn hand_over(self) {
        if let Some(device) = self.0.exporter.hand_over() {
            device.hand_over().hand_over().hand_over();
        }
    }

    /// Gives the device back; what the kernel still waits for ends as gone, as far as its socket takes it.
    pub fn close(&mut self) {
        let now = self.0.clock.now();
        self.0.exporter.with_device(now, |device, done| {
            device.act(now, done, |streams, done| streams.act(now, done, |linked, done| linked.close(done)));
        });
        self.0.say_the_rest(now);
    }
}

/// What is done about a device's distance.
fn plan_of(device: &Linked<RemoteUsb>, ahead: Ahead) -> Plan {
    match ahead {
        Ahead::Auto => Plan::within(device.remote().credit().requests),
        Ahead::Off => Plan::OFF,
    }
}
