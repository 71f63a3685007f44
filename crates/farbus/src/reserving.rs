//! What importers and the owner reserve, for the devices that are shared here.

use std::sync::{PoisonError, Weak};

use farbus_model::Device;
use farbus_realtime::vcpu::{Overload, Reserve};
use farbus_session::native::{control as native, reserve};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Carrier, Criticality, Gate, Gated, News, Refusal, Reservation, Standing, State};
use tracing::{info, warn};

use crate::crowd::Visitor;
use crate::promises::Books;
use crate::share_error::ShareError;
use crate::shared::{Session, Shared};
use crate::tuned::Beside;

/// What the way to somebody is called.
pub fn path_of(visitor: Visitor) -> String {
    match visitor {
        Visitor::Host(fingerprint) => format!("host {fingerprint}"),
        Visitor::User(user) => format!("user {user}"),
        Visitor::Address(address) => address.to_string(),
    }
}

impl Shared {
    /// A device as its bus sees it, used as this class, or as what it is; none of one that is not here, or in use as a USB device.
    pub fn carrier(&self, bus_id: &str, class: Option<native::Class>) -> Option<Carrier> {
        let bus = self.buses.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned();
        let mut registry = self.registry();
        let entry = registry.entries().find(|entry| entry.record.bus_id == bus_id)?;
        let (is_block, is_stream) = (entry.block.is_some(), entry.is_stream);
        let is_without = match class {
            None => is_block || is_stream,
            Some(class) => (class == native::Class::BLOCK && is_block) || (class == native::Class::STREAM && is_stream),
        };
        if is_without {
            return Some(Carrier::without_bus());
        }
        let device = registry.idle_device(bus_id)?;
        // Each speed has a bus instance of its own, as a real host has it.
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        Some(Carrier::new(bus, device.descriptors(), device.speed()))
    }

    /// The same of one that somebody handed over and this caller may fetch.
    fn carrier_for_heir(&self, caller: &Session, bus_id: &str, open: &native::Open) -> Option<Carrier> {
        let bus = self.buses.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned();
        let key = caller.guest.as_ref().map(|guest| *guest.fingerprint().as_bytes());
        let leases = self.leases();
        let legacy = leases.legacy_of(bus_id, key, open.epoch)?;
        let Some(device) = &legacy.device else { return Some(Carrier::without_bus()) };
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        Some(Carrier::new(bus, device.descriptors(), device.speed()))
    }

    /// The owner reserves something for whoever uses a device.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn own_reservation(&self, device: &str, reservation: Reservation) -> Result<(), ShareError> {
        let bus_id = self.bus_id_of(device)?;
        let carrier = self.carrier(&bus_id, None).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        let name = self.device_name(&bus_id).unwrap_or_else(|| device.to_owned());
        let refused = |refusal: Refusal| ShareError::Reservation { device: name.clone(), refusal };
        let news = self.reservations.own(&name, &carrier, reservation).map_err(refused)?;
        self.tell(news);
        Ok(())
    }

    /// An importer reserves something for the device that he opens next.
    ///
    /// # Errors
    /// How it stands, and why in words.
    pub fn reserve_for(
        &self,
        caller: &Session,
        open: &native::Open,
        reservation: &Reservation,
        measured: Path,
    ) -> Result<Standing, (Standing, native::End)> {
        let criticality = reservation.criticality;
        let refused = |refusal: &Refusal| {
            let message = format!("it cannot be reserved: {refusal}");
            let end = native::End { cause: native::Cause::Reservation, message };
            (refusal.standing(criticality, State::Refused), end)
        };
        let named = self.bus_id_of(&open.name).ok().and_then(|bus_id| self.device_name(&bus_id));
        if criticality == Criticality::High
            && let Err(refusal) = self.may_reserve_high(caller, named.as_ref().unwrap_or(&open.name))
        {
            info!(device = open.name, peer = caller.peer, "may not reserve with high criticality");
            return Err(refused(&refusal));
        }
        if open.mode != native::Mode::Exclusive {
            return Err(refused(&Refusal::Kind));
        }
        let bus_id = self.bus_id_of(&open.name).map_err(|_| {
            let message = format!("no device called '{}' is shared here", open.name);
            (Refusal::Kind.standing(criticality, State::Refused), native::End { cause: native::Cause::Gone, message })
        })?;
        let busy = || (Refusal::Kind.standing(criticality, State::Refused), self.busy(&bus_id));
        let carrier = self.carrier_for_heir(caller, &bus_id, open);
        let carrier = carrier.or_else(|| self.carrier(&bus_id, Some(open.class))).ok_or_else(busy)?;
        let name = self.device_name(&bus_id).unwrap_or_else(|| open.name.clone());
        let path = path_of(caller.visitor);
        let (rate, peer) = (measured.bits_per_s, &caller.peer);
        match self.reservations.admit(&name, &carrier, reservation.clone(), (&path, measured)) {
            Ok((standing, news)) => {
                info!(device = name, peer, rate, "reserved");
                self.tell(news.into_iter().filter(|news| news.device != name).collect());
                Ok(standing)
            }
            Err(refusal) => {
                info!(device = name, peer, rate, %refusal, "not reserved");
                Err(refused(&refusal))
            }
        }
    }

    /// Whether what somebody reserves for a device may be what others give way to.
    fn may_reserve_high(&self, caller: &Session, device: &str) -> Result<(), Refusal> {
        let say = match (&caller.guest, caller.visitor) {
            (Some(guest), _) if guest.may_reserve_high(device) => return Ok(()),
            (Some(guest), _) => format!("'farbus allow {} {device} --reserve-high'", guest.identity().0),
            (None, Visitor::User(_)) => return Ok(()),
            (None, Visitor::Address(address)) => {
                let may = self.reserve_high.lock().unwrap_or_else(PoisonError::into_inner);
                if address.to_canonical().is_loopback() || may.iter().any(|network| network.contains(address)) {
                    return Ok(());
                }
                format!(
                    "'farbus share --reserve-high {address}', in a daemon's file reserve_high = [\"{address}\"] in [plain]"
                )
            }
            (None, Visitor::Host(_)) => unreachable!("a paired host is a guest"),
        };
        Err(Refusal::NotAllowed { say })
    }

    /// What the process before this one had reserved for a device is reserved again, before it is opened.
    ///
    /// # Errors
    /// Why it is not.
    pub fn reserve_again(&self, caller: &Session, bus_id: &str, class: native::Class) -> Result<(), native::End> {
        let carrier = self.carrier(bus_id, Some(class));
        let (Some(carrier), Some(name)) = (carrier, self.device_name(bus_id)) else { return Ok(()) };
        match self.reservations.admit_again(&name, &carrier, &path_of(caller.visitor)) {
            Ok(news) => {
                self.tell(news);
                Ok(())
            }
            Err(refusal) => {
                let message = format!("what was reserved for it is not to be had any more: {refusal}");
                Err(native::End { cause: native::Cause::Reservation, message })
            }
        }
    }

    /// A device goes on with an heir, and what is reserved for it.
    ///
    /// # Errors
    /// Why it does not; then it stays where it is.
    pub fn reserve_for_heir(&self, session: &Session, device: &str) -> Result<(), native::End> {
        let Some(reservation) = self.reservations.reservation(device) else { return Ok(()) };
        let path = path_of(session.visitor);
        let moved = match reservation.criticality {
            Criticality::High => self.may_reserve_high(session, device),
            Criticality::Low => Ok(()),
        };
        match moved.and_then(|()| self.reservations.move_to(device, &path)) {
            Ok(news) => {
                self.tell(news);
                Ok(())
            }
            Err(refusal) => {
                info!(device, peer = session.peer, %refusal, "what is reserved for it does not go along, nor does it");
                let message = format!("what is reserved for it cannot go along: {refusal}");
                Err(native::End { cause: native::Cause::Reservation, message })
            }
        }
    }

    /// What its owner reserved for a device reaches as far as to its user, who has asked for nothing himself.
    pub fn cover(&self, session: &Session, bus_id: &str, carrier: Option<&Carrier>) {
        if let Some(name) = self.device_name(bus_id) {
            self.tell(self.reservations.cover(&name, carrier, &path_of(session.visitor)));
        }
    }

    /// What suspends what a session uses otherwise than as a USB device, and how that stands.
    pub fn gate_of(&self, session: &Session, bus_id: &str) -> Option<Gate> {
        self.cover(session, bus_id, self.carrier(bus_id, None).as_ref());
        let name = self.device_name(bus_id)?;
        if let Some(standing) = self.reservations.standing(&name) {
            session.leave_reserved(standing);
        }
        self.reservations.gate_of(&name)
    }

    /// A device has no user any more: what he reserved is others'.
    pub fn unreserve_for(&self, bus_id: &str) {
        if let Some(name) = self.device_name(bus_id).filter(|name| self.reservations.is_a_users(name)) {
            self.tell(self.reservations.release(&name, self.carrier(bus_id, None).as_ref()));
        }
    }

    /// A device goes, and all that is reserved for it.
    pub fn disown(&self, bus_id: &str) {
        if let Some(name) = self.device_name(bus_id) {
            self.tell(self.reservations.disown(&name));
        }
    }

    /// Whom it concerns hears it.
    pub fn tell(&self, news: Vec<News>) {
        for News { device, standing } in news {
            let Ok(bus_id) = self.bus_id_of(&device) else { continue };
            match standing.state {
                reserve::State::Suspended => {
                    warn!(device, lack = ?standing.lack, missing = standing.missing, "suspended");
                }
                _ => info!(device, "admitted"),
            }
            self.holders_of(&bus_id).iter().for_each(|session| session.leave_reserved(standing));
        }
    }

    /// A device that may be suspended is used through a gate.
    pub fn behind_gate(&self, session: &Session, bus_id: &str, device: Box<dyn Device>) -> Box<dyn Device> {
        let Some(name) = self.device_name(bus_id) else { return device };
        let bus = self.buses.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned();
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        self.cover(session, bus_id, Some(&Carrier::new(bus, device.descriptors(), device.speed())));
        let carrier = Carrier::new("", device.descriptors(), device.speed());
        let Some((gate, endpoints)) = self.reservations.gate(&name, &carrier) else { return device };
        let (gated, behind) = Gated::new(device, gate, endpoints);
        session.keep_behind(behind);
        Box::new(gated)
    }
}

/// Whoever has a part of a processor for threads of his own has it until he lets go of it, or nothing is shared here any more.
impl Books for Weak<Shared> {
    fn enter(&self, owner: &str, reserves: &[Reserve]) -> Result<Vec<usize>, Overload> {
        let Some(shared) = self.upgrade() else { return Ok(Vec::new()) };
        let (processors, news) = shared.reservations.enter_threads(owner, reserves)?;
        info!(owner, threads = reserves.len(), "has parts of the processors");
        shared.tell(news);
        Ok(processors)
    }

    fn leave(&self, owner: &str) {
        let Some(shared) = self.upgrade() else { return };
        info!(owner, "has no part of the processors any more");
        shared.tell(shared.reservations.leave_threads(owner));
    }
}

/// Tuned pipes of this process.
impl Beside for (Weak<Shared>, String) {
    fn admit(&self, all: &[Reserve]) -> Result<(), String> {
        self.0.enter(&self.1, all).map(drop).map_err(|overload| overload.to_string())
    }
}
