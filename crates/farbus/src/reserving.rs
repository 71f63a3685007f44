//! What importers and the owner reserve, for the devices that are shared here.

use std::sync::{PoisonError, Weak};

use farbus_model::Device;
use farbus_realtime::vcpu::{Overload, Reserve};
use farbus_session::native::{control as native, reserve};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Carrier, Gated, News, Refusal, Reservation, Standing, State};
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
    /// A device as its bus sees it; none of one that is not here, or in use.
    fn carrier(&self, bus_id: &str) -> Option<Carrier> {
        let bus = self.buses.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned();
        let mut registry = self.registry();
        let device = registry.idle_device(bus_id)?;
        // Each speed has a bus instance of its own, as a real host has it.
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        Some(Carrier::new(bus, device.descriptors(), device.speed()))
    }

    /// The owner reserves something for whoever uses a device.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn own_reservation(&self, device: &str, reservation: Reservation) -> Result<(), ShareError> {
        let bus_id = self.bus_id_of(device)?;
        let carrier = self.carrier(&bus_id).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
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
        if open.class != native::Class::USB || open.mode != native::Mode::Exclusive {
            return Err(refused(&Refusal::Kind));
        }
        let bus_id = self.bus_id_of(&open.name).map_err(|_| {
            let message = format!("no device called '{}' is shared here", open.name);
            (Refusal::Kind.standing(criticality, State::Refused), native::End { cause: native::Cause::Gone, message })
        })?;
        let busy = || (Refusal::Kind.standing(criticality, State::Refused), self.busy(&bus_id));
        let carrier = self.carrier(&bus_id).ok_or_else(busy)?;
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

    /// What the process before this one had reserved for a device is reserved again, before it is opened.
    ///
    /// # Errors
    /// Why it is not.
    pub fn reserve_again(&self, caller: &Session, bus_id: &str) -> Result<(), native::End> {
        let (Some(carrier), Some(name)) = (self.carrier(bus_id), self.device_name(bus_id)) else { return Ok(()) };
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

    /// A device has no user any more: what he reserved is others'.
    pub fn unreserve_for(&self, bus_id: &str) {
        if let Some(name) = self.device_name(bus_id).filter(|name| self.reservations.is_a_users(name)) {
            self.tell(self.reservations.release(&name, self.carrier(bus_id).as_ref()));
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
