//! Offers the registry's devices to the peer of one connection, and claims them for it.

use farbus_io_linux::sys::startup_memory;
use farbus_model::{Device, Instant};
use farbus_session::claims::lease::LeaseHost;
use farbus_session::claims::{DeviceClaims, UseMode};
use farbus_session::native::control as native;
use farbus_session::registry::{ClaimedBlock, ClassRefusal, name_of};
use farbus_session::stream::FramePublisher;
use farbus_session::{ClaimedUsb, DeviceRecord, ExportOffers, ExportRegistry, OpStatus};
use tracing::{info, warn};

use crate::exporter::access::quota::{self, ConnectionClass};
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::state::lease_limits::{ExceededLeaseLimit, held_by};
use crate::exporter::state::shared::ExporterState;
use crate::hosts::trust::AuditedUse;

const NOT_BLOCK: &str = "it is a USB device and no block device";
const NOT_STREAM: &str = "it is no stream of frames";

/// The shared devices, as the peer of one session may see and claim them.
pub struct PeerOffers<'a> {
    pub(crate) shared: &'a ExporterState,
    pub(crate) session: &'a SessionEntry,
}

impl ExportOffers<Box<dyn Device>> for PeerOffers<'_> {
    fn list(&mut self) -> Vec<DeviceRecord> {
        let ExporterState { registry, permissions, .. } = self.shared;
        let mut records = registry.lock().records(self.shared.serving.clock.now());
        let peer_identity = self.session.peer_identity;
        match &self.session.paired_peer {
            Some(paired_peer) => {
                let usable = permissions.usable_by(peer_identity, paired_peer.peer().as_ref());
                records.retain(|record| usable.contains(&record.bus_id));
            }
            None => records.retain(|record| permissions.lent_to(peer_identity, name_of(record)) != Some(false)),
        }
        records
    }

    fn claim(&mut self, bus_id: &str) -> Result<(DeviceRecord, Box<dyn Device>), OpStatus> {
        self.admit(bus_id)?;
        self.check_limits(bus_id).map_err(|_| OpStatus::NotAvailable)?;
        if let Err(why) = self.shared.registry.check_is_here(bus_id, &self.session.proof()) {
            why.note(bus_id, &self.session.peer);
            self.shared.permissions.record(self.session, AuditedUse::Attach, bus_id, Err(why.in_words()));
            return Err(OpStatus::NotAvailable);
        }
        let (claimed, holder) = self.claim_for(bus_id, |registry, peer, now| registry.claim(bus_id, peer, now));
        let outcome = claimed.as_ref().map(|_| UseMode::Exclusive.as_str()).map_err(OpStatus::to_string);
        self.note(bus_id, holder, outcome);
        claimed.map(|ClaimedUsb { record, device }| {
            let device = self.shared.reservations.behind_suspension(self.session, bus_id, device);
            (record, device)
        })
    }
}

impl PeerOffers<'_> {
    /// Checks whether the peer may ask for this device at all.
    ///
    /// # Errors
    /// The status that USB/IP answers if it may not.
    pub fn admit(&self, bus_id: &str) -> Result<(), OpStatus> {
        let ExporterState { registry, permissions, .. } = self.shared;
        if self.shared.sessions.is_stopping() {
            return Err(OpStatus::NotAvailable);
        }
        let peer = &self.session.peer;
        let name = registry.device_name(bus_id);
        let lent = name.as_ref().and_then(|name| permissions.lent_to(self.session.peer_identity, name));
        match (lent, self.session.paired_peer.as_ref().zip(name.as_ref())) {
            (Some(true), _) => {}
            (Some(false), _) => {
                info!(device = bus_id, peer, "refused: it is another host's alone");
                permissions.record(self.session, AuditedUse::Attach, bus_id, Err("another host's alone"));
                return Err(OpStatus::NoDevice);
            }
            (None, Some((paired_peer, device)))
                if !paired_peer.may_claim(device, registry.permitted_as(device), registry.id_of(device)) =>
            {
                return Err(OpStatus::NoDevice);
            }
            (None, _) => {}
        }
        if self.session.class == ConnectionClass::Surplus {
            let why = quota::refusal(self.session.peer_identity, self.shared.sessions.accounts.devices_max());
            warn!(device = bus_id, peer, "refused: {why}");
            permissions.record(self.session, AuditedUse::Attach, bus_id, Err(&why));
            return Err(OpStatus::NotAvailable);
        }
        if !self.session.is_successor() && name.is_some_and(|name| self.shared.predecessor.uses(&name)) {
            return Err(OpStatus::Busy);
        }
        Ok(())
    }

    /// Checks whether the peer may have one more device. A use that began in the process before this one is none.
    ///
    /// # Errors
    /// The limit that the peer has reached.
    pub fn check_limits(&self, bus_id: &str) -> Result<(), ExceededLeaseLimit> {
        let Some(paired_peer) = self.session.paired_peer.as_ref().filter(|_| !self.session.is_successor()) else {
            return Ok(());
        };
        let bounds = self.shared.lease_limits.of(Some(&paired_peer.fingerprint()));
        let who = LeaseHost::paired(paired_peer.identity().0);
        let now = self.shared.serving.clock.now();
        let mut registry = self.shared.registry.lock();
        // A host may attach what it has leased.
        let is_lessee = |claims: &mut DeviceClaims| claims.lease(now).is_some_and(|lease| lease.who == who);
        if registry.claims_mut(bus_id).is_some_and(is_lessee) {
            return Ok(());
        }
        let checked = bounds.check_devices(held_by(&registry, &who, bus_id, now));
        drop(registry);
        checked.inspect_err(|exceeded| {
            info!(device = bus_id, peer = self.session.peer, limit = exceeded.name, "refused: its limit is reached");
            self.shared.permissions.record(self.session, AuditedUse::Attach, bus_id, Err(exceeded.name));
        })
    }

    /// Claims a block device.
    ///
    /// # Errors
    /// Why the peer does not get it.
    pub fn claim_block(
        &self,
        bus_id: &str,
        mode: native::AttachmentMode,
    ) -> Result<ClaimedBlock, native::AttachmentEndNotice> {
        self.claim_by(bus_id, NOT_BLOCK, |registry, peer, now| {
            let claimed = registry.claim_block(bus_id, peer, mode, now)?;
            let mode = claimed.mode;
            Ok((claimed, mode))
        })
    }

    /// Claims a stream.
    ///
    /// # Errors
    /// Why the peer does not get it.
    pub fn claim_stream(
        &self,
        bus_id: &str,
        mode: native::AttachmentMode,
    ) -> Result<(FramePublisher, UseMode), native::AttachmentEndNotice> {
        self.claim_by(bus_id, NOT_STREAM, |registry, peer, now| {
            let (stage, mode) = registry.claim_stream(bus_id, peer, mode, now)?;
            Ok(((stage, mode), mode))
        })
    }

    /// Claims a device as one class; `lacking` is the message if the device does not have that class.
    fn claim_by<T>(
        &self,
        bus_id: &str,
        lacking: &str,
        claim: impl FnOnce(&mut ExportRegistry, &str, Instant) -> Result<(T, UseMode), ClassRefusal>,
    ) -> Result<T, native::AttachmentEndNotice> {
        let refusal = |cause, message: String| native::AttachmentEndNotice { cause, message };
        self.admit(bus_id).map_err(|status| match status {
            OpStatus::NoDevice => refusal(native::AttachmentEndCause::Gone, status.to_string()),
            _ => refusal(native::AttachmentEndCause::Refused, status.to_string()),
        })?;
        let (claimed, holder) = self.claim_for(bus_id, claim);
        // The importer asks for the USB device next, so this refusal is not recorded.
        if !matches!(claimed, Err(ClassRefusal::Class)) {
            let outcome = claimed.as_ref().map(|(_, mode)| mode.as_str()).map_err(|_| OpStatus::Busy.to_string());
            self.note(bus_id, holder, outcome);
        }
        claimed.map(|(what, _)| what).map_err(|refused| match refused {
            ClassRefusal::NoDevice => refusal(native::AttachmentEndCause::Gone, OpStatus::NoDevice.to_string()),
            ClassRefusal::Class => refusal(native::AttachmentEndCause::Class, lacking.to_owned()),
            ClassRefusal::Busy => {
                self.shared.registry.busy_for(bus_id, &self.session.peer, self.shared.serving.clock.now())
            }
        })
    }

    /// Claims a device. Also returns its holder, for the message if the claim fails.
    fn claim_for<T, E>(
        &self,
        bus_id: &str,
        claim: impl FnOnce(&mut ExportRegistry, &str, Instant) -> Result<T, E>,
    ) -> (Result<T, E>, String) {
        let mut registry = self.shared.registry.lock();
        let claimed = claim(&mut registry, &self.session.peer, self.shared.serving.clock.now());
        if claimed.is_ok() {
            // The registry is still locked, so a thread that takes the device back finds this session.
            self.session.hold(bus_id);
        }
        let holder = registry.entries().find(|entry| entry.record.bus_id == bus_id).and_then(|entry| entry.holder);
        (claimed, holder.map_or("nobody", |holder| holder.who.as_str()).to_owned())
    }

    /// Writes the outcome of a claim to the log and the audit log.
    fn note(&self, bus_id: &str, holder: String, outcome: Result<&str, String>) {
        let peer = &self.session.peer;
        match &outcome {
            Ok(mode) => {
                info!(device = bus_id, peer, mode, "attached");
                // The handshake and the opening are over.
                startup_memory::give_back_soon();
            }
            Err(status) => info!(device = bus_id, peer, status, holder, "refused"),
        }
        // The process before this one recorded the claim already.
        if !self.session.is_successor() {
            let allowed = outcome.as_ref().map(|_| ()).map_err(String::as_str);
            self.shared.permissions.record(self.session, AuditedUse::Attach, bus_id, allowed);
        }
    }
}
