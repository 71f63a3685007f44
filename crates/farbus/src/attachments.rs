//! What a session may open, and where it goes in the end.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;

use farbus_io::link::{Clock, Progress, Wake, Watched};
use farbus_model::{BlockDevice, Device, Instant, Limits, Readiness};
use farbus_session::block::{BlockExport, make_durable};
use farbus_session::claims::Mode;
use farbus_session::leases::{Key, Worth};
use farbus_session::native::{Allowed, Bequest, Left, control as native};
use farbus_session::registry::{ClaimedBlock, FaceRefusal};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Reservation, Standing};
use farbus_session::stream::{Policy, Stage};
use farbus_session::{DeviceRecord, Ending, Offers, OpStatus, Registry};
use tracing::{info, warn};

use crate::crowd::Visitor;
use crate::legacies::{Credentials, Owner};
use crate::modules::allowed;
use crate::sessions::{Face, Fate, House, Opened};
use crate::shared::{Legacy, Offer, STACK_BYTES, Session, Shared};

impl House for Shared {
    type Caller = Session;

    fn owner(caller: &Session) -> Option<Visitor> {
        Some(caller.visitor).filter(|visitor| visitor.is_known())
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn modules(&self) -> Option<Arc<Allowed>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if modules.is_none() {
            *modules = allowed(&[]).ok();
        }
        modules.clone()
    }

    fn open(self: &Arc<Self>, caller: &Session, peer: &str, open: &native::Open) -> Result<Opened, native::End> {
        let bus_id = self.known(open)?;
        if self.leases().legacy_of(&bus_id, key_of(caller), open.epoch).is_some_and(|legacy| !legacy.luggage.is_empty())
        {
            return Err(refusal(native::Cause::Refused, LUGGAGE.to_owned()));
        }
        let (number, session) = self.enter_tenant(caller, peer)?;
        let worth = self.leases().worth(&bus_id, key_of(&session), open.epoch);
        let face = match worth {
            Worth::Inherits(legacy) => self.take_over(number, &session, open, legacy),
            Worth::NotHis => Err(self.busy(&bus_id)),
            Worth::Stale => {
                Err(refusal(native::Cause::Stale, "it was moved: somebody has a later lease of it".to_owned()))
            }
            Worth::Nothing => self.open_anew(number, &session, &bus_id, open),
        };
        self.opened(number, session, &bus_id, open, face)
    }

    fn inherit(
        self: &Arc<Self>,
        caller: &Session,
        peer: &str,
        inherit: &native::Inherit,
    ) -> Option<Result<(Opened, Vec<u8>), native::End>> {
        let open = &inherit.open;
        let refused = |what: &str| Some(Err(refusal(native::Cause::Refused, what.to_owned())));
        let bus_id = match self.known(open) {
            Ok(bus_id) => bus_id,
            // It is yet to be here.
            Err(_) if self.is_name_reserved(&open.name) => return None,
            Err(end) => return Some(Err(end)),
        };
        let is_understood = {
            let leases = self.leases();
            let Legacy { luggage, .. } = leases.legacy_of(&bus_id, key_of(caller), open.epoch)?;
            luggage.is_empty() || luggage.starts_with(&inherit.luggage)
        };
        if let Err(end) = self.known_to_heir(caller, open) {
            return Some(Err(end));
        }
        if !is_understood {
            return refused("it moves with luggage of another version of farbus: install the same on both hosts");
        }
        let (number, session) = match self.enter_tenant(caller, peer) {
            Ok(entered) => entered,
            Err(end) => return Some(Err(end)),
        };
        let worth = self.leases().worth(&bus_id, key_of(&session), open.epoch);
        let Worth::Inherits(mut legacy) = worth else {
            self.end_session(number);
            return None;
        };
        let luggage = std::mem::take(&mut legacy.luggage);
        let face = self.take_over(number, &session, open, legacy);
        Some(self.opened(number, session, &bus_id, open, face).map(|opened| (opened, luggage)))
    }

    fn show(
        self: &Arc<Self>,
        caller: &Session,
        peer: &str,
        inherit: &native::Inherit,
    ) -> Option<Result<Opened, native::End>> {
        let bus_id = match self.known_to_heir(caller, &inherit.open) {
            Ok(_) if inherit.open.class != native::Class::BLOCK => return None,
            Ok(bus_id) => bus_id,
            Err(end) => return Some(Err(end)),
        };
        let Some(export) = self.registry().block_export(&bus_id) else {
            let message = "it is a USB device and no block device".to_owned();
            return Some(Err(refusal(native::Cause::Class, message)));
        };
        let shown = self.enter_tenant(caller, peer).and_then(|(number, session)| {
            let face = self.show_block(number, &session, &bus_id, &export);
            self.opened(number, session, &bus_id, &inherit.open, face.map(|face| (face, None)))
        });
        Some(shown)
    }

    fn identity(caller: &Session) -> Owner {
        let credentials = match (&caller.guest, caller.visitor) {
            (Some(guest), _) => {
                let (name, address) = guest.identity();
                Credentials::Host { fingerprint: guest.fingerprint(), name: name.into(), address: address.into() }
            }
            (None, Visitor::User(user)) => Credentials::User(user),
            (None, Visitor::Address(address)) => Credentials::Address(address),
            (None, Visitor::Host(_)) => unreachable!("a paired host is a guest"),
        };
        Owner { peer: caller.peer.clone(), credentials }
    }

    fn name_of(&self, opened_as: &str) -> String {
        let name = self.bus_id_of(opened_as).ok().and_then(|bus_id| self.device_name(&bus_id));
        name.unwrap_or_else(|| opened_as.to_owned())
    }

    fn reopen(self: &Arc<Self>, caller: &Session, left: &Left) -> Result<Opened, native::End> {
        let open = &left.open;
        let gone =
            |_| refusal(native::Cause::Gone, format!("no device called '{}' is shared here any more", open.name));
        let bus_id = self.bus_id_of(&open.name).map_err(gone)?;
        let (number, session) = self
            .enter_linked(None, caller.peer.clone(), caller.guest.clone(), caller.visitor, caller.links.clone())
            .map_err(|error| refusal(native::Cause::Refused, error.to_string()))?;
        session.is_heir.store(true, Ordering::Release);
        if let Err(end) = self.reserve_again(caller, &bus_id, open.class) {
            self.end_session(number);
            return Err(end);
        }
        match self.open_anew(number, &session, &bus_id, open) {
            Ok((face, mode)) => {
                self.registry().explain(&caller.peer, &open.reason);
                if mode == Some(Mode::Exclusive) {
                    self.leases().keep(&bus_id, left.lease);
                }
                Ok(Opened { face, tenant: session, lease: left.lease })
            }
            Err(end) => {
                self.end_session(number);
                Err(end)
            }
        }
    }

    fn recall(self: &Arc<Self>, open: &native::Open) -> Option<(Opened, Bequest)> {
        let bus_id = self.bus_id_of(&open.name).ok()?;
        let (lease, heir, until, legacy) = self.leases().recall(&bus_id)?;
        let luggage = legacy.luggage.clone();
        let (home, face) = match self.back_home(legacy) {
            Ok(back) => back,
            Err(end) => {
                warn!(device = bus_id, why = end.message, "what was handed over is lost");
                return None;
            }
        };
        let left = Some(until - self.clock.now());
        let bequest = Bequest { heir: heir.unwrap_or_default(), luggage, left };
        Some((Opened { face, tenant: home, lease }, bequest))
    }

    fn reserve(
        &self,
        caller: &Session,
        open: &native::Open,
        reservation: &Reservation,
        path: Path,
    ) -> Result<Standing, (Standing, native::End)> {
        self.reserve_for(caller, open, reservation, path)
    }

    fn unreserve(&self, open: &native::Open) {
        if let Ok(bus_id) = self.bus_id_of(&open.name) {
            self.unreserve_for(&bus_id);
        }
    }

    fn reserved(&self, open: &native::Open) -> Option<Standing> {
        let bus_id = self.bus_id_of(&open.name).ok()?;
        self.reservations.standing(&self.device_name(&bus_id)?)
    }

    fn note_progress(&self, open: &native::Open, progress: Progress) {
        if let Some(name) = self.bus_id_of(&open.name).ok().and_then(|bus_id| self.device_name(&bus_id)) {
            self.tell(self.reservations.note_progress(self.clock.now(), &name, progress));
        }
    }

    fn reservations(&self) -> Vec<u8> {
        self.reservations.save()
    }

    fn settle(&self, left: &Left) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = reserved.iter().position(|name| *name == left.open.name) {
            reserved.swap_remove(at);
        }
    }
}

/// Why who brings no room for luggage does not get the device.
const LUGGAGE: &str =
    "it moves with a virtual machine: 'farbus attach HOST/DEVICE --via redir --inherit' goes on with it";

fn key_of(session: &Session) -> Key {
    session.guest.as_ref().map(|guest| *guest.fingerprint().as_bytes())
}

fn refusal(cause: native::Cause, message: String) -> native::End {
    native::End { cause, message }
}

impl Shared {
    fn gone(&self, open: &native::Open) -> native::End {
        refusal(native::Cause::Gone, format!("no device called '{}' is shared here", open.name))
    }

    /// The bus id of what is asked for.
    fn known(&self, open: &native::Open) -> Result<String, native::End> {
        self.bus_id_of(&open.name).map_err(|_| self.gone(open))
    }

    /// The same for whoever is to inherit it, if he may.
    fn known_to_heir(&self, caller: &Session, open: &native::Open) -> Result<String, native::End> {
        let bus_id = self.known(open)?;
        let refused = |what: &str| refusal(native::Cause::Refused, what.to_owned());
        match (Offer { shared: self, session: caller }.admit(&bus_id)) {
            // Its user, who was that in the process before this one, is yet to go on.
            Ok(_) | Err(OpStatus::Busy) => {}
            Err(OpStatus::NoDevice) => return Err(self.gone(open)),
            Err(status) => return Err(refused(&status.to_string())),
        }
        match caller.guest {
            Some(_) => Ok(bus_id),
            None => Err(refused("an heir is known by its key: the two hosts have to be paired")),
        }
    }

    /// Counts an attachment among the sessions, on behalf of the session that it is of.
    fn enter_tenant(&self, caller: &Session, peer: &str) -> Result<(u64, Arc<Session>), native::End> {
        let (guest, links) = (caller.guest.clone(), caller.links.clone());
        let entered = self.enter_linked(None, peer.to_owned(), guest, caller.visitor, links);
        entered.map_err(|error| refusal(native::Cause::Refused, error.to_string()))
    }

    /// What came of opening a device: its user has a lease, or is none.
    fn opened(
        self: &Arc<Self>,
        number: u64,
        session: Arc<Session>,
        bus_id: &str,
        open: &native::Open,
        face: Result<(Face, Option<Mode>), native::End>,
    ) -> Result<Opened, native::End> {
        match face {
            Ok((face, mode)) => {
                if !open.reason.is_empty() {
                    self.registry().explain(&session.peer, &open.reason);
                }
                // Readers do not exclude each other, and nobody is fenced off by them.
                let lease = if mode == Some(Mode::Exclusive) { self.leases().give(bus_id) } else { 0 };
                Ok(Opened { face, tenant: session, lease })
            }
            Err(end) => {
                self.end_session(number);
                Err(if end.cause == native::Cause::Gone { self.gone(open) } else { end })
            }
        }
    }

    /// How a device is used that nobody handed over; `None`: looked on at.
    fn open_anew(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        open: &native::Open,
    ) -> Result<(Face, Option<Mode>), native::End> {
        match open.class {
            native::Class::USB if open.mode == native::Mode::Observe => {
                self.open_observer(number, session, bus_id).map(|face| (face, None))
            }
            native::Class::USB => {
                self.open_usb(number, session, bus_id, open.mode).map(|face| (face, Some(Mode::Exclusive)))
            }
            native::Class::BLOCK => {
                let claimed = Offer { shared: self, session }.claim_block(bus_id, open.mode);
                if matches!(&claimed, Err(end) if end.cause == native::Cause::Class)
                    && self.may_drive(bus_id, open.mode)?
                {
                    return self.open_driven(number, session, bus_id).map(|face| (face, Some(Mode::Exclusive)));
                }
                let claimed = claimed?;
                let mode = claimed.mode;
                self.open_block(number, session, bus_id, claimed).map(|face| (face, Some(mode)))
            }
            native::Class::STREAM => self.open_stream(number, session, bus_id, open.mode),
            _ => Err(refusal(native::Cause::Class, format!("'{}' is nothing of that kind", open.name))),
        }
    }

    /// The heir of a device, or who did not get rid of it.
    fn take_over(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        open: &native::Open,
        legacy: Legacy,
    ) -> Result<(Face, Option<Mode>), native::End> {
        let device = match (Offer { shared: self, session }.admit(&legacy.bus_id)) {
            Ok(device) => device,
            Err(status) => {
                self.give_home(legacy);
                return Err(refusal(native::Cause::Refused, status.to_string()));
            }
        };
        let is_fitting = (open.class == native::Class::USB) == legacy.device.is_some();
        if let (true, Some(name)) = (is_fitting, self.device_name(&legacy.bus_id))
            && let Err(end) = self.reserve_for_heir(session, &name)
        {
            self.give_home(legacy);
            return Err(end);
        }
        if !is_fitting {
            self.give_home(legacy);
            return Err(refusal(native::Cause::Class, "it was handed over as something else".to_owned()));
        }
        legacy.settle(native::Cause::Asked, native::HANDED_OVER);
        let Legacy { bus_id, who, device: usb, .. } = legacy;
        let now = self.clock.now();
        let found = {
            let mut registry = self.registry();
            if let Some(claims) = registry.claims_mut(&bus_id) {
                claims.hand_over(&who, &session.peer, now);
            }
            *session.bus_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(bus_id.clone());
            registry.record(&bus_id).zip(Some(registry.block_export(&bus_id)))
        };
        let Some((record, export)) = found else {
            return Err(refusal(native::Cause::Gone, OpStatus::NoDevice.to_string()));
        };
        info!(device = bus_id, from = who, peer = session.peer, "taken over");
        if let Some((guest, device)) = session.guest.as_ref().zip(device) {
            guest.record_attached(&device);
        }
        let face = match (open.class, usb, export) {
            (native::Class::USB, Some(device), _) => Ok(self.usb_face(number, session, record, device)),
            (native::Class::BLOCK, None, Some(export)) => {
                let mode = Mode::Exclusive;
                self.open_block(number, session, &bus_id, ClaimedBlock { record, export, mode })
            }
            _ => Err(refusal(native::Cause::Gone, OpStatus::NoDevice.to_string())),
        };
        face.map(|face| (face, Some(Mode::Exclusive)))
    }

    /// It waits for its heir, in nobody's thread. Says whether it does.
    fn bequeath(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        device: Option<Box<dyn Device>>,
        bequest: Bequest,
    ) -> bool {
        let bus_id = session.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.end_session(number);
        let Some(bus_id) = bus_id else { return false };
        let Bequest { heir, luggage, left } = bequest;
        let (from, heir) = (key_of(session), Some(heir).filter(|heir| *heir != [0; 32]));
        info!(device = bus_id, peer = session.peer, luggage = luggage.len(), "handed over: it waits for its heir");
        let (who, home) = (session.peer.clone(), (Arc::downgrade(session), number));
        let legacy = Legacy { bus_id: bus_id.clone(), who, device, luggage, home };
        let until = self.clock.now() + left.unwrap_or(self.heir_time());
        let before = self.leases().hand_over(&bus_id, from, heir, until, legacy);
        assert!(before.is_none(), "a device has one user who hands it over");
        self.wake_heirs();
        self.give_up_in_time(until);
        true
    }

    /// Nobody came for it: it is his again who handed it over, or everybody's if he is not there any more.
    fn give_home(self: &Arc<Self>, legacy: Legacy) {
        let Some(home) = legacy.home.0.upgrade() else { return self.forget(legacy, Ending::Lost) };
        let bus_id = legacy.bus_id.clone();
        warn!(device = bus_id, peer = home.peer, "it goes back to who handed it over");
        let fate = match self.back_home(legacy) {
            Ok((_, face)) => Fate::Back(face, self.leases().give(&bus_id)),
            Err(end) => Fate::Over(end),
        };
        let now = self.clock.now();
        match home.leave_fate(fate) {
            Some(Fate::Back(Face::Usb { device, give_back, .. }, _)) => give_back(device, now),
            Some(Fate::Back(Face::Block { device, give_back, .. }, _)) => give_back(device, now),
            Some(Fate::Back(Face::Observer { .. } | Face::Shown { .. } | Face::Disk { .. }, _) | Fate::Over(_))
            | None => {}
        }
    }

    /// It is in the hands of who handed it over again, and of his connection.
    fn back_home(self: &Arc<Self>, legacy: Legacy) -> Result<(Arc<Session>, Face), native::End> {
        let gone = || refusal(native::Cause::Gone, OpStatus::NoDevice.to_string());
        let (home, number) = (legacy.home.0.upgrade(), legacy.home.1);
        let Some(home) = home else {
            self.forget(legacy, Ending::Lost);
            return Err(gone());
        };
        let (record, export) = {
            let registry = self.registry();
            (registry.record(&legacy.bus_id), registry.block_export(&legacy.bus_id))
        };
        let Legacy { bus_id, device, .. } = legacy;
        let record = record.ok_or_else(gone)?;
        self.go_on_with(number, &home);
        *home.bus_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(bus_id.clone());
        let face = match (device, export) {
            (Some(device), _) => Ok(self.usb_face(number, &home, record, device)),
            (None, Some(export)) => {
                let mode = Mode::Exclusive;
                self.open_block(number, &home, &bus_id, ClaimedBlock { record, export, mode })
            }
            (None, None) => Err(gone()),
        };
        if face.is_err() {
            self.end_session(number);
        }
        face.map(|face| (home, face))
    }

    /// A thread that waits as long as an heir may take.
    fn give_up_in_time(self: &Arc<Self>, until: Instant) {
        let shared = Arc::downgrade(self);
        let wait = move || {
            let Some(now) = shared.upgrade().map(|shared| shared.clock.now()) else { return };
            thread::sleep(until - now);
            let Some(shared) = shared.upgrade() else { return };
            let late = shared.leases().expire(shared.clock.now());
            for legacy in late {
                warn!(device = legacy.bus_id, "nobody came for it in time");
                shared.give_home(legacy);
            }
        };
        if let Err(error) = thread::Builder::new().name("heir".into()).stack_size(STACK_BYTES).spawn(wait) {
            warn!(%error, "nobody can wait for an heir");
            let all = self.leases().clear();
            all.into_iter().for_each(|legacy| self.give_home(legacy));
        }
    }

    fn open_usb(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        mode: native::Mode,
    ) -> Result<Face, native::End> {
        if mode != native::Mode::Exclusive {
            return Err(refusal(
                native::Cause::Refused,
                "a USB device has one user at a time, who may change it".into(),
            ));
        }
        let claimed = Offer { shared: self, session }.claim(bus_id);
        let (record, device) = claimed.map_err(|status| self.why_not_claimed(bus_id, status))?;
        Ok(self.usb_face(number, session, record, device))
    }

    pub(crate) fn why_not_claimed(&self, bus_id: &str, status: OpStatus) -> native::End {
        match status {
            OpStatus::Busy => self.busy(bus_id),
            OpStatus::NoDevice => refusal(native::Cause::Gone, status.to_string()),
            OpStatus::DeviceError => refusal(native::Cause::Device, status.to_string()),
            _ => refusal(native::Cause::Refused, status.to_string()),
        }
    }

    fn usb_face(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        record: DeviceRecord,
        device: Box<dyn Device>,
    ) -> Face {
        let device = self.behind_gate(session, &record.bus_id, device);
        // Whoever has not asked for it himself hears what is reserved for him.
        if let Some(standing) = self.device_name(&record.bus_id).and_then(|name| self.reservations.standing(&name)) {
            session.leave_reserved(standing);
        }
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let give_back = move |device: Box<dyn Device>, now| {
            let device = tenant.without_gate(device);
            let is_gone = device.is_gone();
            shared.take_in(number, &tenant, (!is_gone).then_some(device), is_gone, now);
        };
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let pass_on = move |device: Box<dyn Device>, now, bequest: Bequest| {
            let device = tenant.without_gate(device);
            if device.is_gone() {
                shared.take_in(number, &tenant, None, true, now);
                return false;
            }
            shared.bequeath(number, &tenant, Some(device), bequest)
        };
        Face::Usb { record, device, give_back: Box::new(give_back), pass_on: Box::new(pass_on) }
    }

    /// Somebody looks on, whoever uses the device.
    fn open_observer(self: &Arc<Self>, number: u64, session: &Arc<Session>, bus_id: &str) -> Result<Face, native::End> {
        let refused = |what: &str| refusal(native::Cause::Refused, what.to_owned());
        let device = Offer { shared: self, session }.admit(bus_id).map_err(|status| match status {
            OpStatus::NoDevice => refusal(native::Cause::Gone, status.to_string()),
            _ => refused(&status.to_string()),
        })?;
        if !self.is_observable.load(Ordering::Acquire) {
            return Err(refused("its owner lets nobody look on: 'farbus share --observable' would"));
        }
        let observable = self.registry().observe(bus_id);
        let observable =
            observable.ok_or_else(|| refusal(native::Cause::Class, "it sends nothing that is shown".to_owned()))?;
        let Bell { wake, readiness, hush } = Bell::hang().map_err(|error| refused(&error.to_string()))?;
        let seat = observable.audience.sit(move || wake.wake());
        let seat = Box::new(seat.ok_or_else(|| refused("as many look on as may"))?);
        session.observes.get_or_init(|| bus_id.to_owned());
        info!(device = bus_id, peer = session.peer, "observed");
        let is_news = !session.is_heir.load(Ordering::Acquire);
        if let Some((guest, device)) = session.guest.as_ref().filter(|_| is_news).zip(device) {
            guest.record_observing(&device);
        }
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let leave = move |_| {
            info!(device = tenant.observes.get(), peer = tenant.peer, "observed no more");
            shared.end_session(number);
        };
        let (description, leave) = (observable.description, Box::new(leave));
        Ok(Face::Observer { seat, readiness, hush, description, leave, gate: None })
    }

    /// Somebody reads a stream: all of it, alone; or the latest of it, beside others.
    fn open_stream(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        asked: native::Mode,
    ) -> Result<(Face, Option<Mode>), native::End> {
        let (stage, mode) = Offer { shared: self, session }.claim_stream(bus_id, asked)?;
        let policy = if mode == Mode::Exclusive { Policy::All } else { Policy::Latest };
        let seat = Bell::hang().map_err(|error| error.to_string()).and_then(|bell| {
            let wake = Arc::clone(&bell.wake);
            let seat = stage.sit(policy, move || wake.wake());
            seat.map(|seat| (bell, seat)).ok_or_else(|| "its source has ended, or as many read it as may".to_owned())
        });
        let (Bell { readiness, hush, .. }, seat) = seat.map_err(|what| {
            self.registry().release(bus_id, &session.peer, None, Ending::Detached, self.clock.now());
            refusal(native::Cause::Device, what)
        })?;
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let leave = Box::new(move |now| shared.take_in(number, &tenant, None, false, now));
        let description = stage.description().encode();
        let gate = (mode == Mode::Exclusive).then(|| self.gate_of(session, bus_id)).flatten();
        Ok((Face::Observer { seat: Box::new(seat), readiness, hush, description, leave, gate }, Some(mode)))
    }

    fn open_block(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        ClaimedBlock { export, mode, .. }: ClaimedBlock,
    ) -> Result<Face, native::End> {
        let device = export.open(mode).map_err(|what| {
            let now = self.clock.now();
            self.registry().release(bus_id, &session.peer, None, Ending::Detached, now);
            refusal(native::Cause::Device, what)
        })?;
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let give_back = move |device: Box<dyn BlockDevice>, now| {
            let is_gone = device.is_gone();
            // Who goes on in another process has not asked for it, and finds there what was written.
            if !tenant.is_handed_over()
                && let Err(error) = make_durable(device)
            {
                warn!(peer = tenant.peer, %error, "the last writes may be lost");
            }
            shared.take_in(number, &tenant, None, is_gone, now);
        };
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let pass_on = move |device: Box<dyn BlockDevice>, now, bequest: Bequest| {
            let is_gone = device.is_gone();
            if let Err(error) = make_durable(device) {
                warn!(peer = tenant.peer, %error, "the last writes may be lost");
            }
            // Many may read beside each other, and need no permission of one who did.
            if is_gone || mode != Mode::Exclusive {
                shared.take_in(number, &tenant, None, is_gone, now);
                return false;
            }
            shared.bequeath(number, &tenant, None, bequest)
        };
        let (give_back, pass_on) = (Box::new(give_back), Box::new(pass_on));
        let gate = (mode == Mode::Exclusive).then(|| self.gate_of(session, bus_id)).flatten();
        Ok(Face::Block { device, durability: export.durability(), give_back, pass_on, gate })
    }

    /// Somebody reads what is to be his, whoever uses it.
    fn show_block(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        export: &BlockExport,
    ) -> Result<Face, native::End> {
        let refused = |what: &str| refusal(native::Cause::Refused, what.to_owned());
        if !export.may_be_inherited() {
            return Err(refused(
                "nobody can hand it over: it is read by many, or its changes are its user's own\n  \
                 try: --wait=20, or --mode read, without --inherit",
            ));
        }
        let device = export.open(Mode::Read).map_err(|what| refusal(native::Cause::Device, what))?;
        session.observes.get_or_init(|| bus_id.to_owned());
        info!(device = bus_id, peer = session.peer, "read by whoever is to inherit it");
        if let Some((guest, device)) = session.guest.as_ref().zip(self.device_name(bus_id)) {
            guest.record_observing(&device);
        }
        let shared = Arc::clone(self);
        let leave = Box::new(move |_| shared.end_session(number));
        Ok(Face::Shown { device, info: *export.info(), durability: export.durability(), leave })
    }

    /// Who has a device that somebody else wants.
    pub(crate) fn busy(&self, bus_id: &str) -> native::End {
        let registry = self.registry();
        let holder = registry.entries().find(|entry| entry.record.bus_id == bus_id).and_then(|entry| entry.holder);
        let message = match holder {
            Some(holder) => {
                let since_s = (self.clock.now() - holder.since).as_secs();
                format!("in use by {} ({}) since {since_s} s", holder.who, holder.mode.as_str())
            }
            None => "somebody who waits comes first".to_owned(),
        };
        refusal(native::Cause::Busy, message)
    }

    /// A session gives a device back, or what it had of it.
    pub(crate) fn take_in(
        &self,
        number: u64,
        session: &Session,
        device: Option<Box<dyn Device>>,
        is_gone: bool,
        now: Instant,
    ) {
        let bus_id = session.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take();
        let noted = *session.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = match (session.is_taken_back.load(Ordering::Acquire), is_gone) {
            (true, _) => Ending::TakenBack,
            (_, true) => Ending::Gone,
            _ => noted.unwrap_or(Ending::Detached),
        };
        if let Some(bus_id) = bus_id {
            info!(device = bus_id, peer = session.peer, ending = ending.as_str(), "detached");
            if let Some(guest) = session.guest.as_ref().filter(|_| ending != Ending::HandedOver) {
                guest.record_detached(self.device_name(&bus_id).as_ref().unwrap_or(&bus_id));
            }
            if is_gone {
                self.disown(&bus_id);
                self.registry().withdraw(&bus_id);
            } else {
                self.registry().release(&bus_id, &session.peer, device, ending, now);
            }
            // In another process it goes on with what is reserved for it.
            if ending != Ending::HandedOver {
                self.unreserve_for(&bus_id);
            }
        }
        self.end_session(number);
    }
}

const BLOCK_FACE: &str = "it is a USB device and no block device";
const STREAM_FACE: &str = "it is no stream of frames";

/// What whoever shows something rings, and what his onlooker's thread hears it by.
struct Bell {
    wake: Arc<Wake>,
    readiness: Readiness,
    hush: Box<dyn Fn() + Send>,
}

impl Bell {
    fn hang() -> io::Result<Self> {
        let wake = Arc::new(Wake::new()?);
        let (readiness, for_hush) = (Watched::woken(Arc::clone(&wake)), Arc::clone(&wake));
        Ok(Self { wake, readiness, hush: Box::new(move || for_hush.clear()) })
    }
}

impl Offer<'_> {
    /// Takes a block device.
    fn claim_block(&self, bus_id: &str, asked: native::Mode) -> Result<ClaimedBlock, native::End> {
        self.claim_by(bus_id, BLOCK_FACE, |registry, peer, now| {
            let claimed = registry.claim_block(bus_id, peer, asked, now)?;
            let mode = claimed.mode;
            Ok((claimed, mode))
        })
    }

    /// Takes a stream.
    fn claim_stream(&self, bus_id: &str, asked: native::Mode) -> Result<(Stage, Mode), native::End> {
        self.claim_by(bus_id, STREAM_FACE, |registry, peer, now| {
            let (stage, mode) = registry.claim_stream(bus_id, peer, asked, now)?;
            Ok(((stage, mode), mode))
        })
    }

    /// Takes a device by one of its faces; `lacking` says that it has none such.
    fn claim_by<T>(
        &self,
        bus_id: &str,
        lacking: &str,
        claim: impl FnOnce(&mut Registry, &str, Instant) -> Result<(T, Mode), FaceRefusal>,
    ) -> Result<T, native::End> {
        let device = self.admit(bus_id).map_err(|status| match status {
            OpStatus::NoDevice => refusal(native::Cause::Gone, status.to_string()),
            _ => refusal(native::Cause::Refused, status.to_string()),
        })?;
        let (claimed, holder) = self.claim_for(bus_id, claim);
        // Its importer asks for the USB device next: no word of it.
        if !matches!(claimed, Err(FaceRefusal::Class)) {
            let outcome = claimed.as_ref().map(|(_, mode)| mode.as_str()).map_err(|_| OpStatus::Busy.to_string());
            self.note(bus_id, device.as_deref(), holder, outcome);
        }
        claimed.map(|(what, _)| what).map_err(|refused| match refused {
            FaceRefusal::NoDevice => refusal(native::Cause::Gone, OpStatus::NoDevice.to_string()),
            FaceRefusal::Class => refusal(native::Cause::Class, lacking.to_owned()),
            FaceRefusal::Busy => self.shared.busy(bus_id),
        })
    }
}
