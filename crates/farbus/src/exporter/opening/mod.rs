//! The device provider of the exporter's sessions: decides what a session may open, and opens it.

pub mod claim;
pub mod device_use;
mod driven_disk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farbus_io_net::link::{Clock, Progress};
use farbus_model::budget::Allowance;
use farbus_model::{Identity, Limits};
use farbus_realtime::vcpu::Reserve;
use farbus_session::OpStatus;
use farbus_session::claims::Mode;
use farbus_session::leases::{DeviceKey, Worth};
use farbus_session::native::known_device::compare;
use farbus_session::native::retire::Step;
use farbus_session::native::{Allowed, Left, Migration, control as native};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Reservation, ReservationReport};
use tracing::{info, warn};

use crate::exporter::access::quota::Visitor;
use crate::exporter::opening::claim::Offer;
use crate::exporter::opening::device_use::{DeviceUse, back_home, gone, refusal};
use crate::exporter::session::entry::Session;
use crate::exporter::session::saved::{Credentials, Owner};
use crate::exporter::session::thread_time::Reserved;
use crate::exporter::session::threads::{DeviceProvider, Opened};
use crate::exporter::state::registry::{DeviceRegistry, HandedOver};
use crate::exporter::state::shared::Shared;

impl DeviceProvider for Shared {
    type Caller = Session;

    fn owner(caller: &Session) -> Option<Visitor> {
        Some(caller.visitor).filter(|visitor| visitor.is_known())
    }

    fn allowance(caller: &Session) -> Allowance {
        Allowance::of(Arc::clone(&caller.account))
    }

    fn clock(&self) -> Clock {
        self.serving.clock
    }

    fn limits(&self) -> Limits {
        self.serving.limits
    }

    fn hold(&self) -> Duration {
        self.registry.successor_time()
    }

    fn modules(&self) -> Option<Arc<Allowed>> {
        self.serving.modules()
    }

    fn open(
        self: &Arc<Self>,
        caller: &Session,
        peer: &str,
        open: &native::Open,
        is_compared: bool,
    ) -> Result<Opened, native::End> {
        let bus_id = known(&self.registry, open)?;
        let key = self.registry.key_of(&bus_id);
        if self
            .registry
            .leases()
            .handed_over_to(&key, self.permissions.key_of(caller), open.epoch)
            .is_some_and(|device| !device.migration_state.is_empty())
        {
            return Err(refusal(native::Cause::Refused, MIGRATION_STATE.to_owned()));
        }
        let used = DeviceUse::enter(self, caller, peer, open)?;
        let worth = self.registry.leases().worth(&key, self.permissions.key_of(caller), open.epoch, is_compared);
        let opened_device = match worth {
            Worth::Inherits(handed_over) => used.take_over(open, handed_over),
            Worth::NotHis => Err(self.registry.busy(&bus_id, self.serving.clock.now())),
            Worth::Stale => {
                Err(refusal(native::Cause::Stale, "it was moved: somebody has a later lease of it".to_owned()))
            }
            Worth::Other => Err(refusal(native::Cause::Gone, another(&open.name))),
            Worth::Nothing => used
                .open_anew(&bus_id, open)
                .and_then(|(opened_device, mode)| used.number(&bus_id, opened_device, mode)),
        };
        used.opened(open, opened_device)
    }

    fn inherit(
        self: &Arc<Self>,
        caller: &Session,
        peer: &str,
        inherit: &native::Inherit,
    ) -> Option<Result<(Opened, Vec<u8>), native::End>> {
        let open = &inherit.open;
        let refused = |what: &str| Some(Err(refusal(native::Cause::Refused, what.to_owned())));
        let bus_id = match known(&self.registry, open) {
            Ok(bus_id) => bus_id,
            // The device is still used in the process before this one and is not shared here yet.
            Err(_) if self.predecessor.uses(&open.name) => return None,
            Err(end) => return Some(Err(end)),
        };
        let key = self.registry.key_of(&bus_id);
        let is_understood = {
            let leases = self.registry.leases();
            let HandedOver { migration_state, .. } =
                leases.handed_over_to(&key, self.permissions.key_of(caller), open.epoch)?;
            migration_state.is_empty() || migration_state.starts_with(&inherit.migration_state)
        };
        if let Err(end) = known_to_successor(self, caller, open) {
            return Some(Err(end));
        }
        if !is_understood {
            return refused(
                "it moves with migration state of another version of farbus: install the same on both hosts",
            );
        }
        let used = match DeviceUse::enter(self, caller, peer, open) {
            Ok(used) => used,
            Err(end) => return Some(Err(end)),
        };
        let worth = self.registry.leases().worth(&key, self.permissions.key_of(caller), open.epoch, true);
        let Worth::Inherits(mut handed_over) = worth else {
            used.end();
            return None;
        };
        let migration_state = std::mem::take(&mut handed_over.migration_state);
        let opened_device = used.take_over(open, handed_over);
        Some(used.opened(open, opened_device).map(|opened| (opened, migration_state)))
    }

    fn show(
        self: &Arc<Self>,
        caller: &Session,
        peer: &str,
        inherit: &native::Inherit,
    ) -> Option<Result<Opened, native::End>> {
        let bus_id = match known_to_successor(self, caller, &inherit.open) {
            Ok(_) if inherit.open.class != native::Class::BLOCK => return None,
            Ok(bus_id) => bus_id,
            Err(end) => return Some(Err(end)),
        };
        let Some(export) = self.registry.lock().block_export(&bus_id) else {
            let message = "it is a USB device and no block device".to_owned();
            return Some(Err(refusal(native::Cause::Class, message)));
        };
        let shown = DeviceUse::enter(self, caller, peer, &inherit.open).and_then(|used| {
            let opened_device = used.show_block(&bus_id, &export);
            used.opened(&inherit.open, opened_device.map(|opened_device| (opened_device, 0)))
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
            (None, Visitor::Address(address) | Visitor::Own(address, _)) => Credentials::Address(address),
            (None, Visitor::Host(_)) => unreachable!("a paired host is a guest"),
        };
        Owner { peer: caller.peer.clone(), credentials }
    }

    fn name_of(&self, opened_as: &str) -> String {
        let name = self.registry.bus_id_of(opened_as).ok().and_then(|bus_id| self.registry.device_name(&bus_id));
        name.unwrap_or_else(|| opened_as.to_owned())
    }

    fn reopen(self: &Arc<Self>, caller: &Session, left: &Left) -> Result<Opened, native::End> {
        let open = &left.open;
        let gone =
            |_| refusal(native::Cause::Gone, format!("no device called '{}' is shared here any more", open.name));
        let bus_id = self.registry.bus_id_of(&open.name).map_err(gone)?;
        let actual = self.registry.lock().identity(&bus_id);
        if let Some(expected) = left.identity {
            compare(&open.name, expected, actual)?;
        }
        let used = DeviceUse::enter(self, caller, &caller.peer, open)?;
        used.session().is_successor.store(true, Ordering::Release);
        if let Err(end) = self.reservations.reserve_again(caller, &bus_id, open.class) {
            used.end();
            return Err(end);
        }
        match used.open_anew(&bus_id, open) {
            Ok((opened_device, mode)) => {
                self.registry.lock().explain(&caller.peer, &open.reason);
                if mode == Some(Mode::Exclusive) {
                    self.registry.leases().keep(&DeviceKey::of(&bus_id, actual), left.lease);
                }
                Ok(used.with_lease(opened_device, left.lease))
            }
            Err(end) => {
                used.end();
                Err(end)
            }
        }
    }

    fn recall(self: &Arc<Self>, open: &native::Open) -> Option<(Opened, Migration)> {
        let bus_id = self.registry.bus_id_of(&open.name).ok()?;
        let key = self.registry.key_of(&bus_id);
        let (lease, successor, until, handed_over) = self.registry.leases().recall(&key)?;
        let migration_state = handed_over.migration_state.clone();
        let (home, opened_device) = match back_home(self, handed_over) {
            Ok(back) => back,
            Err(end) => {
                warn!(device = bus_id, why = end.message, "what was handed over is lost");
                return None;
            }
        };
        let left = until - self.serving.clock.now();
        let migration = Migration { successor: successor.unwrap_or_default(), migration_state, left };
        Some((Opened { opened_device, session_handle: home, lease }, migration))
    }

    fn reserve(
        &self,
        caller: &Session,
        open: &native::Open,
        reservation: &Reservation,
        path: Path,
    ) -> Result<ReservationReport, (ReservationReport, native::End)> {
        self.reservations.reserve_for(caller, self.permissions.key_of(caller), open, reservation, path)
    }

    fn unreserve(&self, open: &native::Open) {
        if let Ok(bus_id) = self.registry.bus_id_of(&open.name) {
            self.reservations.unreserve_for(&bus_id);
        }
    }

    fn reserved(&self, open: &native::Open) -> Option<Reserved> {
        let bus_id = self.registry.bus_id_of(&open.name).ok()?;
        self.reservations.ledger().reserved(&self.registry.device_name(&bus_id)?)
    }

    fn schedule(&self, time: Option<Reserve>) -> Result<(), String> {
        self.reservations.schedule(time)
    }

    fn note_progress(&self, open: &native::Open, progress: Progress) {
        if let Some(name) =
            self.registry.bus_id_of(&open.name).ok().and_then(|bus_id| self.registry.device_name(&bus_id))
        {
            self.reservations.note_progress(&name, progress);
        }
    }

    fn reservations(&self) -> Vec<u8> {
        self.reservations.ledger().save()
    }

    fn device_identity(&self, open: &native::Open) -> Option<Identity> {
        let registry = self.registry.lock();
        registry.identity(registry.find(&open.name)?)
    }

    fn has_lasting_identity(&self, open: &native::Open) -> bool {
        self.registry.bus_id_of(&open.name).is_ok_and(|bus_id| self.registry.labels.of(&bus_id).is_lasting)
    }

    fn note_overwriting(&self, caller: &Session, open: &native::Open) {
        let Ok(bus_id) = self.registry.bus_id_of(&open.name) else { return };
        match self.registry.note_overwriting(&bus_id, caller.proof(), caller.peer.clone()) {
            Ok(true) => {
                info!(device = open.name, peer = caller.peer, "moved away, and overwritten by the host that moved it")
            }
            Ok(false) => {}
            // Then it is refused as moved away.
            Err(why) => warn!(device = open.name, why, "it is not noted that it is overwritten"),
        }
    }

    fn note_step(&self, caller: &Session, open: &native::Open, lease: u64, step: Step) -> Result<(), String> {
        let bus_id = self.registry.bus_id_of(&open.name).map_err(|error| error.to_string())?;
        let key = self.registry.key_of(&bus_id);
        let is_latest = self.registry.leases().latest(&key) == Some(lease);
        let export = self.registry.lock().block_export(&bus_id);
        if !is_latest || export.is_some_and(|export| export.mode(open.mode) != Mode::Exclusive) {
            return Err("only the host that has a disk alone, to write to it, can move it".to_owned());
        }
        self.registry.note_step(&bus_id, step, caller.proof(), caller.peer.clone())?;
        info!(device = open.name, peer = caller.peer, ?step, "what its user said of its move is noted");
        Ok(())
    }

    fn identity_changes(&self) -> u64 {
        self.registry.identity_changes()
    }

    fn settle(&self, left: &Left) {
        self.predecessor.settle(&left.open.name);
    }
}

/// The refusal to an importer that cannot take the migration state of a device.
const MIGRATION_STATE: &str =
    "it moves with a virtual machine: 'farbus attach HOST/DEVICE --via redir --inherit' goes on with it";

/// The refusal to an importer that reopens a device without naming its identity.
fn another(name: &str) -> String {
    format!(
        "nothing proves that '{name}' is the device that was used before: this exporter was started anew; attach it anew"
    )
}

/// The bus id of the device that `open` names.
fn known(devices: &DeviceRegistry, open: &native::Open) -> Result<String, native::End> {
    devices.bus_id_of(&open.name).map_err(|_| gone(open))
}

/// The bus id of the device that `open` names, if `caller` may become its successor.
fn known_to_successor(shared: &Shared, caller: &Session, open: &native::Open) -> Result<String, native::End> {
    let bus_id = known(&shared.registry, open)?;
    let refused = |what: &str| refusal(native::Cause::Refused, what.to_owned());
    match (Offer { shared, session: caller }.admit(&bus_id)) {
        // The session that used the device in the process before this one is yet to continue.
        Ok(()) | Err(OpStatus::Busy) => {}
        Err(OpStatus::NoDevice) => return Err(gone(open)),
        Err(status) => return Err(refused(&status.to_string())),
    }
    match shared.permissions.key_of(caller) {
        Some(_) => Ok(bus_id),
        None => Err(refused("a successor is known by its key: the two hosts have to be paired")),
    }
}
