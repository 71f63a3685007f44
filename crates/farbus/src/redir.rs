//! A remote device for a virtual machine: what QEMU's `usb-redir` connects to, and no kernel of this machine's.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io::link::{Clock, Interest, Link, Watched, wait};
use farbus_io::sys::unread::is_all_read;
use farbus_model::{Device, Instant, Limits};
use farbus_session::native::control::LUGGAGE_BYTES_MAX;
use farbus_session::redir::Frozen;
use farbus_session::{RedirHost, Reject};
use tracing::{debug, info, warn};

use crate::attach::{Ended, Ender};
use crate::client::{Client, ClientError, GRACE, Target, local};
use crate::engine::span_until;
use crate::far_device::FarDevice;
use crate::gate::{Answer, Arrival, Gate, Granted, LEAVE_WITHIN, Order, QUIET_WITHIN, Wish};
use crate::meters::{Calls, Meters};
use crate::place::{Entrance, Place};
use crate::standing::Standing;

/// How a guest without a name of its own is called.
const GUEST: &str = "a guest";
/// How long a guest may take to see that its device is gone, before the connection goes too.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the device may take to answer what is under way, before reads that have nothing are taken back.
const OWN_PACE: Duration = Duration::from_millis(100);
/// How often is looked whether it has: nothing tells.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A guest that is held still.
struct Held {
    since: Instant,
    /// Who waits to be told that it is.
    asker: Option<Answer>,
    has_taken_back: bool,
    /// Who goes on with its device when it has left.
    heir: Option<[u8; 32]>,
}

/// Whose the device is to be.
enum Stay {
    /// Its guest's, who is here or may come.
    Here,
    /// It is to be handed over to this host: whoever connects waits until it is.
    Inheriting,
    /// It goes to the host with this key, with this, as soon as nothing is under way.
    Leaving([u8; 32], Option<Frozen>),
    /// It waits for its heir. If none comes it is here, and this again.
    Gone(Option<Frozen>),
    /// Of the guest whose stream this is: it is who connects next.
    Expecting(Frozen),
}

/// A device that waits for a virtual machine, serves it, and waits for the next.
pub struct RedirAttachment {
    relay: Relay,
    place: Place,
    ender: Ender,
    gate: Gate,
    local_address: Option<SocketAddr>,
    standing: Option<Standing>,
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
        Self::over(Lent::take(client, target)?, entrance)
    }

    /// Lends a device that was taken before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(lent: Lent, entrance: Entrance) -> Result<Self, ClientError> {
        let place = entrance.place().map_err(local)?;
        let (clock, local_address, standing) = (lent.0.clock(), lent.0.local_address(), lent.0.standing());
        let host = RedirHost::new(lent.0, Limits::DEFAULT);
        let ender = Ender::new().map_err(local)?;
        let gate = Gate::new().map_err(local)?;
        let stay = if host.session().device().is_open() { Stay::Here } else { Stay::Inheriting };
        let relay = Relay {
            entrance,
            guest: None,
            held: None,
            stay,
            host,
            clock,
            calls: Calls::default(),
            arrival: Arrival::default(),
        };
        Ok(Self { relay, place, ender, gate, local_address, standing, meters: Arc::default() })
    }

    /// Where it waits.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// What holds its guest's device still.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Our end of the link, as the exporter sees its user.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        self.standing.clone()
    }

    /// What passes through, for status.
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Serves whoever connects, one after the other, until it ends.
    pub fn run(mut self) -> Ended {
        self.relay.run(&self.ender, &self.gate, &self.meters)
    }
}

/// A device that was taken to be lent.
pub struct Lent(FarDevice);

impl Lent {
    /// Takes it: from a paired host in a session, which outlives its links.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn take(client: &Client, target: &Target) -> Result<Self, ClientError> {
        FarDevice::open(client, target, GRACE).map(Self)
    }

    /// Takes it once it is handed over to this host, with the stream of the guest that had it: returns before that.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inherit(client: &Client, target: &Target) -> Result<Self, ClientError> {
        FarDevice::inherit(client, target, GRACE).map(Self)
    }
}

/// The engine between a guest and a remote exporter: one thread, the device, the guest's socket, or one where the next guest arrives.
struct Relay {
    entrance: Entrance,
    guest: Option<Link>,
    held: Option<Held>,
    stay: Stay,
    host: RedirHost<FarDevice>,
    clock: Clock,
    calls: Calls,
    arrival: Arrival,
}

impl Relay {
    fn run(&mut self, ender: &Ender, gate: &Gate, meters: &Meters) -> Ended {
        let ended = loop {
            if let Err(error) = self.turn(ender, gate) {
                break Ended::Lost(error.to_string());
            }
            meters.publish(self.host.counters(), self.calls);
            if let Err(reject) = self.look_after_stay() {
                break Ended::Broken(reject);
            }
            self.arrival.see(self.clock.now(), self.host.counters().urbs);
            gate.shut(self.held.is_some() || !matches!(self.stay, Stay::Here));
            if ender.was_asked() {
                break Ended::Asked;
            }
            if let Some(ended) = self.host.session().device().ended() {
                self.say_farewell();
                break ended;
            }
        };
        self.host.with_device(FarDevice::close);
        ended
    }

    fn turn(&mut self, ender: &Ender, gate: &Gate) -> io::Result<()> {
        let guest_full = self.serve_guest();
        self.look_after_held();
        let now = self.clock.now();
        self.host.with_device(|device, done| device.end_turn(now, done));
        let is_coming_to_rest = self.held.as_ref().is_some_and(|held| held.asker.is_some());
        let timeout = self.host.poll_timeout().map(|at| span_until(at, self.clock.now()));
        let again = match &self.held {
            _ if is_coming_to_rest => Some(LOOK_AGAIN),
            Some(Held { since, heir: Some(_), .. }) => Some(span_until(*since + LEAVE_WITHIN, now)),
            _ => None,
        };
        let timeout = [timeout, again].into_iter().flatten().min();
        self.calls.wait += 1;
        let on_guest = match &self.guest {
            Some(guest) => Interest::new(guest.as_fd(), guest_full),
            None => Interest::new(self.entrance.as_fd(), false),
        };
        let readiness = self.host.session().device().readiness();
        let on_device = readiness.and_then(Watched::interest).expect("a remote device is waited for on a descriptor");
        let (on_ender, on_gate) = (Interest::new(ender.wake().as_fd(), false), gate.interest());
        let mut interests = [on_device, on_ender, on_gate, on_guest];
        // Whoever comes while the device is elsewhere waits.
        let is_open = self.guest.is_some() || matches!(self.stay, Stay::Here | Stay::Expecting(_));
        wait(&mut interests[..if is_open { 4 } else { 3 }], timeout)?;
        let [on_device, _, on_gate, on_guest] = interests.map(|interest| interest.readable);
        if on_gate {
            gate.take().into_iter().for_each(|order| self.carry_out(order));
        }
        if on_guest {
            match self.guest {
                Some(_) => self.receive_from_guest(),
                None => self.welcome(),
            }
        }
        let now = self.clock.now();
        if on_device || self.host.poll_timeout().is_some_and(|at| at <= now) {
            self.calls.receive += 1;
            self.host.with_device(|device, done| device.handle_ready(now, done));
        }
        Ok(())
    }

    fn carry_out(&mut self, Order { wish, answer }: Order) {
        let now = self.clock.now();
        let result = match (wish, &mut self.held) {
            (Wish::Hold | Wish::Move(_), _) if !matches!(self.stay, Stay::Here) => {
                Err("it is being handed over already")
            }
            (Wish::Move(_), _) if !self.host.session().device().may_move() => {
                Err("it has no session that could be handed over (a paired host, or --grace SECONDS)")
            }
            (Wish::Move(_), Some(Held { heir: Some(_), .. })) => Err("it is being handed over already"),
            (Wish::Move(heir), Some(held)) if held.asker.is_none() => {
                (held.heir, held.since) = (Some(heir), now);
                if self.guest.is_none() {
                    self.part();
                }
                Ok(Granted::ToUser)
            }
            (Wish::Hold | Wish::Move(_), Some(_)) => Err("it is held already"),
            (Wish::Hold, None) if self.guest.is_none() => Err("no virtual machine has it"),
            (Wish::Move(heir), None) if self.guest.is_none() => {
                self.stay = Stay::Leaving(heir, None);
                Ok(Granted::AtOnce)
            }
            (Wish::Hold | Wish::Move(_), None) => {
                self.host.quiesce(now);
                let heir = if let Wish::Move(heir) = wish { Some(heir) } else { None };
                self.held = Some(Held { since: now, asker: Some(answer), has_taken_back: false, heir });
                return;
            }
            // Whoever was to go on with it does not come.
            (Wish::GoOn, None) if matches!(self.stay, Stay::Expecting(_)) => {
                self.dismiss();
                Ok(Granted::AtOnce)
            }
            (Wish::GoOn, None) => Err("it is not held"),
            // It ended and nobody came in its place: the next one is another.
            (Wish::GoOn, Some(_)) if self.guest.is_none() => {
                self.dismiss();
                Ok(Granted::AtOnce)
            }
            (Wish::GoOn, Some(_)) => {
                self.go_on();
                Ok(Granted::ToUser)
            }
        };
        answer.give(result);
    }

    /// What is held comes to rest, or does not.
    fn look_after_held(&mut self) {
        let now = self.clock.now();
        let Some(held) = &mut self.held else { return };
        if held.asker.is_none() {
            if held.heir.is_some() && now - held.since >= LEAVE_WITHIN {
                warn!("the virtual machine has not left: its device stays here");
                self.go_on();
            }
            return;
        }
        if !held.has_taken_back && now - held.since >= OWN_PACE {
            held.has_taken_back = true;
            self.host.take_back_reads(now);
        }
        let all_read = self.guest.as_ref().is_some_and(|guest| is_all_read(guest).unwrap_or(false));
        let is_at_rest = self.host.is_quiet() && !self.host.has_transmit() && all_read;
        let result = match is_at_rest {
            true => Ok(Granted::ToUser),
            false if now - held.since < QUIET_WITHIN => return,
            false => Err("what is under way does not come to its end"),
        };
        info!(held_us = (now - held.since).as_micros() as u64, ?result, "the virtual machine's device was held still");
        if let Some(asker) = held.asker.take() {
            asker.give(result);
        }
        if result.is_err() {
            self.go_on();
        }
    }

    /// The guest goes on, here or where it has come from now.
    fn go_on(&mut self) {
        if self.held.take().is_some()
            && let Err(fault) = self.host.resume(self.clock.now())
        {
            warn!("{GUEST} was hung up on: {fault}");
            self.dismiss();
        }
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

    /// Its guest has left: the device follows it, with all that it had asked.
    fn part(&mut self) {
        self.guest = None;
        if let Some(heir) = self.held.as_ref().and_then(|held| held.heir) {
            info!("the virtual machine has left: its device goes to its heir");
            self.held = None;
            self.stay = Stay::Leaving(heir, Some(self.host.freeze()));
        }
    }

    /// What comes next of a device that goes elsewhere, or comes from there.
    fn look_after_stay(&mut self) -> Result<(), Reject> {
        let device = self.host.session().device();
        if device.is_gone() {
            return Ok(());
        }
        let (is_open, is_still, is_moving) = (device.is_open(), device.is_still(), device.is_moving());
        let stay = std::mem::replace(&mut self.stay, Stay::Here);
        self.stay = match stay {
            Stay::Inheriting if is_open => {
                let luggage = self.host.with_device(|device, _| device.take_luggage());
                info!(luggage = luggage.len(), "a virtual machine's stream came with it");
                let frozen = if luggage.is_empty() { None } else { Some(Frozen::from_bytes(&luggage)?) };
                let is_awaited = frozen.as_ref().is_some_and(|frozen| !frozen.from_guest.is_empty());
                self.arrival.note(self.clock.now(), self.host.counters().urbs, is_awaited);
                frozen.map_or(Stay::Here, Stay::Expecting)
            }
            Stay::Leaving(heir, frozen) if is_still => {
                let luggage = frozen.as_ref().map(Frozen::to_bytes).unwrap_or_default();
                match (luggage.len() <= LUGGAGE_BYTES_MAX, frozen) {
                    (false, Some(frozen)) => {
                        warn!(
                            bytes = luggage.len(),
                            "the virtual machine had asked too much to be handed over: its device stays here"
                        );
                        Stay::Expecting(frozen)
                    }
                    (_, frozen) => {
                        let now = self.clock.now();
                        self.host.with_device(|device, done| {
                            device.bequeath(heir, luggage);
                            device.end_turn(now, done);
                        });
                        Stay::Gone(frozen)
                    }
                }
            }
            Stay::Gone(frozen) if !is_moving => {
                warn!("nobody came for the device: it is here again");
                frozen.map_or(Stay::Here, Stay::Expecting)
            }
            stay => stay,
        };
        Ok(())
    }

    /// Who has connected is the guest whose stream was handed over.
    fn thaw(&mut self, frozen: Frozen) {
        info!("the virtual machine goes on here");
        if let Err(fault) = self.host.thaw(self.clock.now(), frozen) {
            warn!("{GUEST} was hung up on: {fault}");
            self.dismiss();
        }
    }

    fn welcome(&mut self) {
        match self.entrance.try_accept() {
            Ok(Some(link)) => {
                self.guest = Some(link);
                if let Stay::Expecting(frozen) = std::mem::replace(&mut self.stay, Stay::Here) {
                    self.thaw(frozen);
                } else if self.held.is_some() {
                    info!("the virtual machine goes on where it has moved to");
                    self.go_on();
                } else {
                    info!("a virtual machine has connected");
                    self.host.connect();
                }
            }
            Ok(None) => {}
            Err(error) => warn!(%error, "a virtual machine could not connect"),
        }
    }

    /// The guest is gone or has to go: the device is reset, and waits for the next.
    fn dismiss(&mut self) {
        self.held = None;
        if matches!(self.stay, Stay::Expecting(_)) {
            self.stay = Stay::Here;
        }
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
            Ok(Some(0)) if self.is_on_its_way() => self.part(),
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

    /// Whether a guest that ends its connection now has moved.
    fn is_on_its_way(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.asker.is_none())
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

    /// The device is gone: its guest is told, and has a moment to say that it saw that.
    fn say_farewell(&mut self) {
        self.go_on();
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
