//! The device provider of the exporter's sessions: decides what a session may open, and opens it.

pub mod claim;
pub mod device_use;
mod driven_disk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, TcpSendProgress};
use farbus_model::budget::ConnectionAllowance;
use farbus_model::{ExportIdentity, SessionLimits};
use farbus_realtime::vcpu::VcpuReserve;
use farbus_session::OpStatus;
use farbus_session::claims::{UseEnding, UseMode, host_of};
use farbus_session::leases::{DeviceKey, LeaseEntitlement};
use farbus_session::native::known_device::compare;
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{AllowedModules, DeviceMigration, UnservedAttachment, control as native};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{ReservationReport, ReservationTerms};
use tracing::{debug, info, warn};

use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::opening::claim::PeerOffers;
use crate::exporter::opening::device_use::{DeviceUse, back_home, missing, refusal};
use crate::exporter::session::entry::{self, SessionEntry};
use crate::exporter::session::saved::{SessionCredentials, SessionOwner};
use crate::exporter::session::thread_time::SessionReservation;
use crate::exporter::session::threads::{DeviceProvider, OpenedAttachment};
use crate::exporter::state::registry::HandedOver;
use crate::exporter::state::shared::ExporterState;

impl DeviceProvider for ExporterState {
    type Caller = SessionEntry;

    fn owner(caller: &SessionEntry) -> Option<PeerIdentity> {
        Some(caller.peer_identity).filter(|peer_identity| peer_identity.is_known())
    }

    fn allowance(caller: &SessionEntry) -> ConnectionAllowance {
        ConnectionAllowance::of(Arc::clone(&caller.account))
    }

    fn clock(&self) -> BoottimeClock {
        self.serving.clock
    }

    fn limits(&self) -> SessionLimits {
        self.serving.limits
    }

    fn hold(&self) -> Duration {
        self.registry.successor_time()
    }

    fn modules(&self) -> Option<Arc<AllowedModules>> {
        self.serving.modules()
    }

    fn open(
        self: &Arc<Self>,
        caller: &SessionEntry,
        peer: &str,
        open: &native::OpenRequest,
        is_compared: bool,
    ) -> Result<OpenedAttachment, native::AttachmentEndNotice> {
        let bus_id = known(self, caller, open)?;
        let key = self.registry.key_of(&bus_id);
        if self
            .registry
            .leases()
            .handed_over_to(&key, self.permissions.key_of(caller), open.epoch)
            .is_some_and(|device| !device.migration_state.is_empty())
        {
            return Err(refusal(native::AttachmentEndCause::Refused, MIGRATION_STATE.to_owned()));
        }
        let used = DeviceUse::enter(self, caller, peer, open)?;
        let worth = self.registry.leases().worth(&key, self.permissions.key_of(caller), open.epoch, is_compared);
        let opened_device = match worth {
            LeaseEntitlement::Inherits(handed_over) => used.take_over(open, handed_over),
            LeaseEntitlement::NotHis => Err(self.registry.busy(&bus_id, self.serving.clock.now())),
            LeaseEntitlement::Stale => Err(refusal(
                native::AttachmentEndCause::Stale,
                match lease_ended(self, caller, &bus_id) {
                    Some(ending) => entry::lease_over(ending),
                    None => "it was moved: somebody has a later lease of it".to_owned(),
                },
            )),
            LeaseEntitlement::Other => Err(refusal(native::AttachmentEndCause::Gone, another(&open.name))),
            LeaseEntitlement::Nothing => used
                .open_anew(&bus_id, open)
                .and_then(|(opened_device, mode)| used.number(&bus_id, opened_device, mode)),
        };
        used.opened(open, opened_device)
    }

    fn inherit(
        self: &Arc<Self>,
        caller: &SessionEntry,
        peer: &str,
        inherit: &native::SuccessorOpenRequest,
    ) -> Option<Result<(OpenedAttachment, Vec<u8>), native::AttachmentEndNotice>> {
        let open = &inherit.open;
        let refused = |what: &str| Some(Err(refusal(native::AttachmentEndCause::Refused, what.to_owned())));
        let bus_id = match known(self, caller, open) {
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
        let LeaseEntitlement::Inherits(mut handed_over) = worth else {
            used.end();
            return None;
        };
        let migration_state = std::mem::take(&mut handed_over.migration_state);
        let opened_device = used.take_over(open, handed_over);
        Some(used.opened(open, opened_device).map(|opened| (opened, migration_state)))
    }

    fn show(
        self: &Arc<Self>,
        caller: &SessionEntry,
        peer: &str,
        inherit: &native::SuccessorOpenRequest,
    ) -> Option<Result<OpenedAttachment, native::AttachmentEndNotice>> {
        let bus_id = match known_to_successor(self, caller, &inherit.open) {
            Ok(_) if inherit.open.class != native::AttachmentClass::BLOCK => return None,
            Ok(bus_id) => bus_id,
            Err(end) => return Some(Err(end)),
        };
        let Some(export) = self.registry.lock().block_export(&bus_id) else {
            let message = "it is a USB device and no block device".to_owned();
            return Some(Err(refusal(native::AttachmentEndCause::Class, message)));
        };
        let shown = DeviceUse::enter(self, caller, peer, &inherit.open).and_then(|used| {
            let opened_device = used.show_block(&bus_id, &export);
            used.opened(&inherit.open, opened_device.map(|opened_device| (opened_device, 0)))
        });
        Some(shown)
    }

    fn identity(caller: &SessionEntry) -> SessionOwner {
        let credentials = match (&caller.paired_peer, caller.peer_identity) {
            (Some(paired_peer), _) => {
                let (name, address) = paired_peer.identity();
                SessionCredentials::Host {
                    fingerprint: paired_peer.fingerprint(),
                    name: name.into(),
                    address: address.into(),
                }
            }
            (None, PeerIdentity::User(user)) => SessionCredentials::User(user),
            (None, PeerIdentity::Address(address) | PeerIdentity::Own(address, _)) => {
                SessionCredentials::Address(address)
            }
            (None, PeerIdentity::Host(_)) => unreachable!("a paired host comes with its peer"),
        };
        SessionOwner { peer: caller.peer.clone(), credentials }
    }

    fn name_of(&self, opened_as: &str) -> String {
        let name = self.registry.bus_id_of(opened_as).ok().and_then(|bus_id| self.registry.device_name(&bus_id));
        name.unwrap_or_else(|| opened_as.to_owned())
    }

    fn reopen(
        self: &Arc<Self>,
        caller: &SessionEntry,
        left: &UnservedAttachment,
    ) -> Result<OpenedAttachment, native::AttachmentEndNotice> {
        let open = &left.open;
        let gone = |_| {
            refusal(
                native::AttachmentEndCause::Gone,
                format!("no device called '{}' is shared here any more", open.name),
            )
        };
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
                if mode == Some(UseMode::Exclusive) {
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

    fn recall(self: &Arc<Self>, open: &native::OpenRequest) -> Option<(OpenedAttachment, DeviceMigration)> {
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
        let migration = DeviceMigration { successor: successor.unwrap_or_default(), migration_state, left };
        Some((OpenedAttachment { opened_device, session_handle: home, lease }, migration))
    }

    fn reserve(
        &self,
        caller: &SessionEntry,
        open: &native::OpenRequest,
        reservation: &ReservationTerms,
        path: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, native::AttachmentEndNotice)> {
        self.reservations.reserve_for(caller, self.permissions.key_of(caller), open, reservation, path)
    }

    fn unreserve(&self, open: &native::OpenRequest) {
        if let Ok(bus_id) = self.registry.bus_id_of(&open.name) {
            self.reservations.unreserve_for(&bus_id);
        }
    }

    fn reserved(&self, open: &native::OpenRequest) -> Option<SessionReservation> {
        let bus_id = self.registry.bus_id_of(&open.name).ok()?;
        self.reservations.ledger().reserved(&self.registry.device_name(&bus_id)?)
    }

    fn schedule(&self, time: Option<VcpuReserve>) -> Result<(), String> {
        self.reservations.schedule(time)
    }

    fn note_progress(&self, open: &native::OpenRequest, progress: TcpSendProgress) {
        if let Some(name) = self.registry.name_of_opened(&open.name) {
            self.reservations.note_progress(&name, progress);
        }
    }

    fn note_need(&self, device: &str, needed_ns: u64) {
        if let Some(name) = self.registry.name_of_opened(device) {
            self.reservations.note_need(&name, needed_ns);
        }
    }

    fn reservations(&self) -> Vec<u8> {
        self.reservations.ledger().save()
    }

    fn device_identity(&self, open: &native::OpenRequest) -> Option<ExportIdentity> {
        let registry = self.registry.lock();
        registry.identity(registry.find(&open.name)?)
    }

    fn has_lasting_identity(&self, open: &native::OpenRequest) -> bool {
        self.registry.bus_id_of(&open.name).is_ok_and(|bus_id| self.registry.labels.of(&bus_id).is_lasting)
    }

    fn note_overwriting(&self, caller: &SessionEntry, open: &native::OpenRequest) {
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

    fn note_step(
        &self,
        caller: &SessionEntry,
        open: &native::OpenRequest,
        lease: u64,
        step: DiskMoveStep,
    ) -> Result<(), String> {
        let bus_id = self.registry.bus_id_of(&open.name).map_err(|error| error.to_string())?;
        let key = self.registry.key_of(&bus_id);
        let is_latest = self.registry.leases().latest(&key) == Some(lease);
        let export = self.registry.lock().block_export(&bus_id);
        if !is_latest || export.is_some_and(|export| export.mode(open.mode) != UseMode::Exclusive) {
            return Err("only the host that has a disk alone, to write to it, can move it".to_owned());
        }
        self.registry.note_step(&bus_id, step, caller.proof(), caller.peer.clone())?;
        debug!(device = open.name, peer = caller.peer, ?step, "how far its user's move of the disk is was stored");
        Ok(())
    }

    fn identity_changes(&self) -> u64 {
        self.registry.identity_changes()
    }

    fn settle(&self, left: &UnservedAttachment) {
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
fn known(
    shared: &ExporterState,
    caller: &SessionEntry,
    open: &native::OpenRequest,
) -> Result<String, native::AttachmentEndNotice> {
    shared.registry.bus_id_of(&open.name).map_err(|_| missing(shared, caller, open))
}

/// How the lease of the session's host ended, if that was what it last had of the device.
fn lease_ended(shared: &ExporterState, caller: &SessionEntry, bus_id: &str) -> Option<UseEnding> {
    let host = host_of(&caller.peer);
    let mut registry = shared.registry.lock();
    let last = registry.claims_mut(bus_id)?.history().rev().find(|past| host_of(&past.holder.who) == host)?;
    matches!(last.ending, UseEnding::Expired | UseEnding::Preempted | UseEnding::Released).then_some(last.ending)
}

/// The bus id of the device that `open` names, if `caller` may become its successor.
fn known_to_successor(
    shared: &ExporterState,
    caller: &SessionEntry,
    open: &native::OpenRequest,
) -> Result<String, native::AttachmentEndNotice> {
    let bus_id = known(shared, caller, open)?;
    let refused = |what: &str| refusal(native::AttachmentEndCause::Refused, what.to_owned());
    match (PeerOffers { shared, session: caller }.admit(&bus_id)) {
        // The session that used the device in the process before this one is yet to continue.
        Ok(()) | Err(OpStatus::Busy) => {}
        Err(OpStatus::NoDevice) => return Err(missing(shared, caller, open)),
        Err(status) => return Err(refused(&status.to_string())),
    }
    match shared.permissions.key_of(caller) {
        Some(_) => Ok(bus_id),
        None => Err(refused("a successor is known by its key: the two hosts have to be paired")),
    }
}
