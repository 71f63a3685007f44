//! A remote device for a virtual machine: what QEMU's `usb-redir` connects to, and no kernel of this machine's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io::link::{Clock, Interest, Link, wait};
use farbus_model::Limits;
use farbus_session::{RedirHost, Reject, RemoteDevice};
use tracing::{debug, info, warn};

use crate::attach::{Ended, Ender, local, local_address};
use crate::client::{Client, ClientError, Target};
use crate::engine::span_until;
use crate::meters::{Calls, Meters};
use crate::place::{Entrance, Place};

/// How a guest without a name of its own is called.
const GUEST: &str = "a guest";
/// How long a guest may take to see that its device is gone, before the connection goes too.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// A device that waits for a virtual machine, serves it, and waits for the next.
pub struct RedirAttachment {
    relay: Relay,
    place: Place,
    ender: Ender,
    meters: Arc<Meters>,
}

impl RedirAttachment {
    /// Takes `target` and waits at `place` for who uses it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, place: &Place) -> Result<Self, ClientError> {
        // First what may be missing here: nothing is taken from anybody before.
        let entrance = client.hands().listen_at(place).map_err(local)?;
        Self::over(client.enumerate(target)?, entrance)
    }

    /// Lends a device that was taken before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over((remote, device): (Link, RemoteDevice), entrance: Entrance) -> Result<Self, ClientError> {
        let place = entrance.place().map_err(local)?;
        let host = RedirHost::new(device, Limits::DEFAULT);
        let ender = Ender::new().map_err(local)?;
        let relay = Relay { entrance, guest: None, remote, host, clock: Clock::start(), calls: Calls::default() };
        Ok(Self { relay, place, ender, meters: Arc::default() })
    }

    /// Where it waits.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Our end of the link, as the exporter sees its user.
    pub fn local_address(&self) -> Option<SocketAddr> {
        local_address(&self.relay.remote)
    }

    /// What passes through, for status.
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Serves whoever connects, one after the other, until it ends.
    pub fn run(mut self) -> Ended {
        self.relay.run(&self.ender, &self.meters)
    }
}

/// The engine between a guest and a remote exporter: one thread, two sockets, and one where the next guest arrives.
struct Relay {
    entrance: Entrance,
    guest: Option<Link>,
    remote: Link,
    host: RedirHost<RemoteDevice>,
    clock: Clock,
    calls: Calls,
}

/// Why a turn of the relay was the last.
enum Stop {
    Here(io::Error),
    Remote(io::Error),
    RemoteClosed,
    Reject(Reject),
}

impl Relay {
    fn run(&mut self, ender: &Ender, meters: &Meters) -> Ended {
        loop {
            match self.turn(ender) {
                Ok(()) if ender.was_asked() => return Ended::Asked,
                Ok(()) => meters.publish(self.host.counters(), self.calls),
                Err(stop) => {
                    self.say_farewell();
                    return match stop {
                        Stop::Here(error) | Stop::Remote(error) => Ended::Lost(error.to_string()),
                        Stop::RemoteClosed => Ended::Lost("the exporter closed the connection".into()),
                        Stop::Reject(reject) => Ended::Broken(reject),
                    };
                }
            }
        }
    }

    fn turn(&mut self, ender: &Ender) -> Result<(), Stop> {
        let guest_full = self.serve_guest();
        let remote_full = !self.flush_remote().map_err(Stop::Remote)?;
        let timeout = self.host.poll_timeout().map(|at| span_until(at, self.clock.now()));
        // What an encrypted link has decrypted already makes no socket readable.
        let has_received = self.remote.has_received();
        self.calls.wait += 1;
        let on_guest = match &self.guest {
            Some(guest) => Interest::new(guest.as_fd(), guest_full),
            None => Interest::new(self.entrance.as_fd(), false),
        };
        let on_ender = Interest::new(ender.wake().as_fd(), false);
        let mut interests = [on_guest, Interest::new(self.remote.as_fd(), remote_full), on_ender];
        wait(&mut interests, if has_received { Some(Duration::ZERO) } else { timeout }).map_err(Stop::Here)?;
        let [on_guest, on_remote, _] = interests.map(|interest| interest.readable);
        if on_guest {
            match self.guest {
                Some(_) => self.receive_from_guest(),
                None => self.welcome(),
            }
        }
        if on_remote || has_received {
            self.receive_from_remote()?;
        }
        let now = self.clock.now();
        if self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.host.handle_timeout(now);
        }
        Ok(())
    }

    /// Does what the guest asked and sends what it is to have; whether its socket takes no more. What the guest does wrong costs
    /// it the connection, and nobody else anything.
    fn serve_guest(&mut self) -> bool {
        loop {
            if let Err(fault) = self.host.advance(self.clock.now()) {
                warn!("{GUEST} was hung up on: {fault}");
                self.dismiss();
                return false;
            }
            match self.flush_guest() {
                Ok(true) if self.host.is_hungry() => {}
                Ok(is_flushed) => return !is_flushed,
                Err(error) => {
                    debug!(%error, "the guest's socket ended");
                    self.dismiss();
                }
            }
        }
    }

    fn welcome(&mut self) {
        match self.entrance.try_accept() {
            Ok(Some(link)) => {
                info!(guest = link.peer(), "a virtual machine has connected");
                self.guest = Some(link);
                self.host.connect();
            }
            Ok(None) => {}
            Err(error) => warn!(%error, "a virtual machine could not connect"),
        }
    }

    /// The guest is gone or has to go: the device is reset, and waits for the next.
    fn dismiss(&mut self) {
        if self.guest.take().is_some() {
            let dropped = self.host.session().dropped();
            info!(dropped, "the virtual machine has disconnected; the device waits for the next");
        }
        self.host.disconnect(self.clock.now());
    }

    fn receive_from_guest(&mut self) {
        let Some(guest) = &self.guest else { return };
        self.calls.receive += 1;
        let was_refused = self.host.session().is_refused();
        match guest.try_receive(self.host.receive_space()) {
            Ok(Some(0)) => self.dismiss(),
            Ok(Some(count)) => self.host.handle_received(count),
            Ok(None) => {}
            Err(error) => {
                debug!(%error, "the guest's socket ended");
                self.dismiss();
            }
        }
        if !was_refused && self.host.session().is_refused() {
            warn!("the virtual machine refuses this device: its own filter (filter= of usb-redir) takes none like it");
        }
    }

    fn receive_from_remote(&mut self) -> Result<(), Stop> {
        self.calls.receive += 1;
        let remote = &self.remote;
        self.host.with_device(|device, done| {
            match remote.try_receive(device.receive_space()).map_err(Stop::Remote)? {
                Some(0) => Err(Stop::RemoteClosed),
                Some(count) => device.handle_received(count, done).map_err(Stop::Reject),
                None => Ok(()),
            }
        })
    }

    fn flush_guest(&mut self) -> io::Result<bool> {
        let Some(guest) = &self.guest else { return Ok(true) };
        while self.host.has_transmit() {
            self.calls.send += 1;
            let sent = guest.try_send(&self.host.poll_transmit())?;
            match sent {
                Some(count) => self.host.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn flush_remote(&mut self) -> io::Result<bool> {
        loop {
            let device = self.host.session().device();
            if !device.has_transmit() {
                return self.remote.try_flush();
            }
            self.calls.send += 1;
            let sent = self.remote.try_send(&device.poll_transmit())?;
            match sent {
                Some(count) => self.host.with_device(|device, done| device.handle_transmitted(count, done)),
                None => return Ok(false),
            }
        }
    }

    /// The device is gone: its guest is told, and has a moment to say that it saw that.
    fn say_farewell(&mut self) {
        self.host.with_device(RemoteDevice::handle_lost);
        self.host.handle_gone(self.clock.now());
        let until = self.clock.now() + FAREWELL_TIME_MAX;
        while self.guest.is_some() {
            let is_full = self.serve_guest();
            let left = span_until(until, self.clock.now());
            let Some(guest) = self.guest.as_ref().filter(|_| !self.host.is_finished() && !left.is_zero()) else {
                return;
            };
            let mut interests = [Interest::new(guest.as_fd(), is_full)];
            if wait(&mut interests, Some(left)).is_err() {
                return;
            }
            if interests[0].readable {
                self.receive_from_guest();
            }
        }
    }
}
