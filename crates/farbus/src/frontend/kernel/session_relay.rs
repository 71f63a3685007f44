//! The relay between the kernel and a USB device in a session. A replacement process may continue it.

use std::io;
use std::os::fd::OwnedFd;

use farbus_io::link::{Interest, Link};
use farbus_model::Limits;
use farbus_session::far::{Far, Plan};
use farbus_session::isochronous::Isochronous;
use farbus_session::native::RemoteUsb;
use farbus_session::snapshot::{Reader, Writer};
use farbus_session::{Exporter, OnReset, Reject};

use crate::frontend::kernel::relay_loop::{KERNEL, KernelSide, Relayed, Relaying, Stop, Turn};
use crate::importer::options::ahead::Ahead;
use crate::importer::session::connection::{Linked, Redial};
use crate::importer::session::distance::Distance;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::Meters;

/// The relay, and what was last reported of its device's distance.
pub struct SessionRelay(KernelSide<Near>, Told);

/// What was last reported of a device's distance, and to which status.
#[derive(Default)]
struct Told {
    status: SessionStatus,
    distance: Distance,
}

/// A device in a session, with the layers that hide its distance from the kernel.
type Near = Far<Isochronous<Linked<RemoteUsb>>>;

impl SessionRelay {
    /// A relay to `device`, which the kernel calls `device_id`.
    pub fn new(kernel: Link, device: Linked<RemoteUsb>, device_id: u32, ahead: Ahead) -> Self {
        let clock = device.clock();
        let plan = plan_of(&device, ahead);
        let told = Told { status: device.status(), ..Told::default() };
        let device = Far::new(Isochronous::new(device, plan.is_on), plan);
        // A session has a message for a reset: the exporter half recognises requests that mean one, and sends it.
        let on_reset = OnReset::ResetDevice;
        let exporter = Exporter::imported(clock.now(), Limits::RELAYED, device_id, device, on_reset);
        let mut side = KernelSide::new(kernel, exporter, clock);
        // The kernel's first requests are sent before the kernel makes them.
        side.exporter.with_device(clock.now(), |device, done| device.begin(clock.now(), done));
        Self(side, told)
    }

    fn linked(&self) -> &Linked<RemoteUsb> {
        self.0.device().device().inner()
    }

    /// Restores a relay from the whole snapshot of another process; it does nothing before its first turn.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(mut reader: Reader<'_>, socket: OwnedFd, redial: Redial) -> io::Result<Self> {
        let wrong = |reject: Reject| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let device = Linked::<RemoteUsb>::restore(redial, &mut reader)?;
        // Both layers saved whether they fetch ahead; this plan says how far, if they do.
        let (clock, plan, asked) = (device.clock(), plan_of(&device, Ahead::Auto), device.remote().in_flight_of());
        let told = Told { status: device.status(), ..Told::default() };
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
        let (limits, on_reset) = (Limits::RELAYED, OnReset::ResetDevice);
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
}

impl Relaying for SessionRelay {
    fn relayed(&self) -> Relayed {
        let linked = self.linked();
        let (session, is_movable) = (Some(linked.status()), linked.is_movable());
        Relayed { session, is_movable, ..Relayed::how("in a session") }
    }

    fn turn(&mut self, stop: Interest<'_>, meters: &Meters) -> Turn {
        self.0.turn(stop, meters, |device| device.device().inner().end().cloned().map(Stop::Ended))?;
        let (distance, told) = (Distance::of(self.0.device()), &mut self.1);
        // Most devices are never asked ahead: their counts do not change.
        if distance != told.distance {
            told.distance = distance;
            told.status.note_distance(distance);
        }
        Ok(())
    }

    fn save(&mut self, to: &mut Writer) -> Result<Option<OwnedFd>, Stop> {
        self.0.come_to_rest(|exporter| {
            let linked = exporter.device().expect("a relay has its device from the start").device().inner();
            match linked.end() {
                Some(end) => Err(Stop::Ended(end.clone())),
                None => Ok(exporter.in_flight() == 0 || !linked.is_linked()),
            }
        })?;
        let socket = self.0.socket()?;
        let now = self.0.clock.now();
        self.0.exporter.with_device(now, |device, done| {
            device.act(now, done, |streams, done| {
                streams.act(now, done, |linked, _| linked.save(to));
                streams.save(to);
            });
            device.save(to);
        });
        self.0.exporter.save(now, to);
        Ok(Some(socket))
    }

    fn hand_over(self) {
        if let Some(device) = self.0.exporter.hand_over() {
            device.hand_over().hand_over().hand_over();
        }
    }

    fn close(&mut self) -> bool {
        let now = self.0.clock.now();
        self.0.exporter.with_device(now, |device, done| {
            device.act(now, done, |streams, done| streams.act(now, done, |linked, done| linked.close(done)));
        });
        self.0.say_the_rest(now);
        // The kernel flushes what it drives itself.
        true
    }
}

/// The plan for hiding a device's distance.
fn plan_of(device: &Linked<RemoteUsb>, ahead: Ahead) -> Plan {
    match ahead {
        Ahead::Auto => Plan::within(device.remote().credit().requests),
        Ahead::Off => Plan::OFF,
    }
}
