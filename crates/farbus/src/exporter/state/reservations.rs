//! Reservations of importers and of the owner for the devices that are shared here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use farbus_io_linux::sys::scheduling::BUDGET_NS_MIN;
use farbus_io_net::link::TcpSendProgress;
use farbus_model::Device;
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve};
use farbus_session::leases::LeaseHostKey;
use farbus_session::native::{control as native, reserve};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{
    DeviceBusProfile, ReservationChange, ReservationCriticality, ReservationDenial, ReservationReport,
    ReservationState, ReservationTerms, SuspendableDevice, SuspensionSwitch,
};
use tracing::{info, warn};

use crate::broker::SystemAccess;
use crate::common::networks::IpNetwork;
use crate::common::ordered_mutex::OrderedMutex;
use crate::common::processor_leases::{ProcessorAdmission, ProcessorLedger};
use crate::devices::reservation::in_words;
use crate::exporter::access::local_users::LocalPeers;
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::error::ShareError;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::session::table::SessionTable;
use crate::exporter::state::ledger::ExporterReservations;
use crate::exporter::state::registry::DeviceRegistry;

/// The ledger's name of the path to a peer.
pub fn path_of(peer_identity: PeerIdentity) -> String {
    match peer_identity {
        PeerIdentity::Host(fingerprint) => format!("host {fingerprint}"),
        PeerIdentity::User(user) => format!("user {user}"),
        PeerIdentity::Address(address) | PeerIdentity::Own(address, _) => address.to_string(),
    }
}

/// The reservations of the shared devices, and who may reserve. Two locks besides the ledger's: that of the networks
/// and that of the buses; each is held alone.
pub struct DeviceReservations {
    ledger: ExporterReservations,
    /// Networks whose hosts may reserve with high criticality without proving a key. Served users of this machine
    /// always may.
    high_from: OrderedMutex<Vec<IpNetwork>, 3>,
    /// Buses of real devices, by bus id on the wire.
    buses: OrderedMutex<BTreeMap<String, String>, 3>,
    registry: Arc<DeviceRegistry>,
    sessions: Arc<SessionTable>,
    local_peers: Arc<LocalPeers>,
    /// Asks the kernel for processor time, directly or through the broker.
    system: Mutex<SystemAccess>,
}

impl DeviceReservations {
    pub(crate) fn new(
        registry: Arc<DeviceRegistry>,
        sessions: Arc<SessionTable>,
        local_peers: Arc<LocalPeers>,
    ) -> Self {
        let (high_from, buses) = (OrderedMutex::default(), OrderedMutex::default());
        let (ledger, system) = (ExporterReservations::default(), Mutex::default());
        Self { ledger, high_from, buses, registry, sessions, local_peers, system }
    }

    /// Asks the kernel through `system` from now on.
    pub fn ask_through(&self, system: SystemAccess) {
        *self.system.lock().unwrap_or_else(PoisonError::into_inner) = system;
    }

    /// Gives the calling thread processor time in each period, or takes it away (`None`).
    ///
    /// # Errors
    /// Why not, in words.
    pub fn schedule(&self, time: Option<VcpuReserve>) -> Result<(), String> {
        let system = self.system.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let time = time.map(|VcpuReserve { budget_ns, period_ns }| {
            (Duration::from_nanos(budget_ns.max(BUDGET_NS_MIN)), Duration::from_nanos(period_ns))
        });
        system.schedule(time).map_err(|error| error.to_string())
    }

    /// The ledger, which keeps the reservations and admits new ones.
    pub fn ledger(&self) -> &ExporterReservations {
        &self.ledger
    }

    /// Sets the networks whose hosts may reserve with high criticality without proving a key.
    pub fn allow_high(&self, from: Vec<IpNetwork>) {
        *self.high_from.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }

    /// Sets the bus of the device with this bus id.
    pub fn place_on(&self, bus_id: &str, bus: String) {
        self.buses.lock().unwrap_or_else(PoisonError::into_inner).insert(bus_id.to_owned(), bus);
    }

    /// Forgets the bus of this bus id, because another device gets the id.
    pub fn forget_bus(&self, bus_id: &str) {
        self.buses.lock().unwrap_or_else(PoisonError::into_inner).remove(bus_id);
    }

    fn bus_of(&self, bus_id: &str) -> Option<String> {
        self.buses.lock().unwrap_or_else(PoisonError::into_inner).get(bus_id).cloned()
    }

    /// The bus and descriptors of a device, used as this class (`None`: as its own class). `None` if the device is not
    /// here, or is in use as a USB device.
    pub fn carrier(&self, bus_id: &str, class: Option<native::AttachmentClass>) -> Option<DeviceBusProfile> {
        let bus = self.bus_of(bus_id);
        let mut registry = self.registry.lock();
        let entry = registry.entries().find(|entry| entry.record.bus_id == bus_id)?;
        let (is_block, is_stream) = (entry.block.is_some(), entry.stream.is_some());
        let is_without = match class {
            None => is_block || is_stream,
            Some(class) => {
                (class == native::AttachmentClass::BLOCK && is_block)
                    || (class == native::AttachmentClass::STREAM && is_stream)
            }
        };
        if is_without {
            return Some(DeviceBusProfile::without_bus());
        }
        let device = registry.idle_device(bus_id)?;
        // Each speed has a bus instance of its own, as in a real host.
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        Some(DeviceBusProfile::new(bus, device.descriptors(), device.speed()))
    }

    /// The bus and descriptors of a handed over device that waits for the host with this key.
    fn carrier_for_successor(
        &self,
        key: LeaseHostKey,
        bus_id: &str,
        open: &native::OpenRequest,
    ) -> Option<DeviceBusProfile> {
        let bus = self.bus_of(bus_id);
        let device = self.registry.key_of(bus_id);
        let leases = self.registry.leases();
        let handed_over = leases.handed_over_to(&device, key, open.epoch)?;
        let Some(device) = &handed_over.device else { return Some(DeviceBusProfile::without_bus()) };
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        Some(DeviceBusProfile::new(bus, device.descriptors(), device.speed()))
    }

    /// Makes the owner's reservation for every user of a device.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn own_reservation(&self, device: &str, reservation: ReservationTerms) -> Result<(), ShareError> {
        let bus_id = self.registry.bus_id_of(device)?;
        let carrier = self.carrier(&bus_id, None).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        let name = self.registry.device_name(&bus_id).unwrap_or_else(|| device.to_owned());
        let refused = |refusal: ReservationDenial| ShareError::Reservation { device: name.clone(), refusal };
        let news = self.ledger.own(&name, &carrier, reservation).map_err(refused)?;
        self.tell(news);
        Ok(())
    }

    /// Makes an importer's reservation for the device that it opens next. `key` is that of its host, if known.
    ///
    /// # Errors
    /// The report of the refusal, and its reason in words.
    pub fn reserve_for(
        &self,
        caller: &SessionEntry,
        key: LeaseHostKey,
        open: &native::OpenRequest,
        reservation: &ReservationTerms,
        measured: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, native::AttachmentEndNotice)> {
        let criticality = reservation.criticality;
        let refused = |refusal: &ReservationDenial| {
            let message = format!("it cannot be reserved: {refusal}");
            let end = native::AttachmentEndNotice { cause: native::AttachmentEndCause::Reservation, message };
            (refusal.report(criticality, ReservationState::Refused), end)
        };
        let named = self.registry.bus_id_of(&open.name).ok().and_then(|bus_id| self.registry.device_name(&bus_id));
        if criticality == ReservationCriticality::High
            && let Err(refusal) = self.may_reserve_high(caller, named.as_ref().unwrap_or(&open.name))
        {
            info!(device = open.name, peer = caller.peer, "may not reserve with high criticality");
            return Err(refused(&refusal));
        }
        if open.mode != native::AttachmentMode::Exclusive {
            return Err(refused(&ReservationDenial::Kind));
        }
        let bus_id = self.registry.bus_id_of(&open.name).map_err(|_| {
            let message = format!("no device called '{}' is shared here", open.name);
            (
                ReservationDenial::Kind.report(criticality, ReservationState::Refused),
                native::AttachmentEndNotice { cause: native::AttachmentEndCause::Gone, message },
            )
        })?;
        let busy = || {
            (
                ReservationDenial::Kind.report(criticality, ReservationState::Refused),
                self.registry.busy(&bus_id, self.sessions.now()),
            )
        };
        let carrier = self.carrier_for_successor(key, &bus_id, open);
        let carrier = carrier.or_else(|| self.carrier(&bus_id, Some(open.class))).ok_or_else(busy)?;
        let name = self.registry.device_name(&bus_id).unwrap_or_else(|| open.name.clone());
        let path = path_of(caller.peer_identity);
        let (rate, peer) = (measured.bits_per_s, &caller.peer);
        match self.ledger.admit(&name, &carrier, reservation.clone(), (&path, measured)) {
            Ok((report, news)) => {
                info!(device = name, peer, rate, "reserved");
                self.tell(news.into_iter().filter(|news| news.device != name).collect());
                Ok(report)
            }
            Err(refusal) => {
                info!(device = name, peer, rate, %refusal, "not reserved");
                Err(refused(&refusal))
            }
        }
    }

    /// Checks whether a caller may reserve with high criticality for a device.
    fn may_reserve_high(&self, caller: &SessionEntry, device: &str) -> Result<(), ReservationDenial> {
        let say = match (&caller.paired_peer, caller.peer_identity) {
            (Some(paired_peer), _)
                if paired_peer.may_reserve_high(
                    device,
                    self.registry.permitted_as(device),
                    self.registry.id_of(device),
                ) =>
            {
                return Ok(());
            }
            (Some(paired_peer), _) => format!("'farbus allow {} {device} --reserve-high'", paired_peer.identity().0),
            (None, PeerIdentity::User(user) | PeerIdentity::Own(_, user)) => {
                if self.local_peers.serves(user) {
                    return Ok(());
                }
                format!("'farbus share --local-users {user}', in a daemon's file local_users = [\"{user}\"] in [plain]")
            }
            (None, PeerIdentity::Address(address)) => {
                let may = self.high_from.lock().unwrap_or_else(PoisonError::into_inner);
                if may.iter().any(|network| network.contains(address)) {
                    return Ok(());
                }
                format!(
                    "'farbus share --reserve-high {address}', in a daemon's file reserve_high = [\"{address}\"] in [plain]"
                )
            }
            (None, PeerIdentity::Host(_)) => unreachable!("a paired host comes with its peer"),
        };
        Err(ReservationDenial::NotAllowed { say })
    }

    /// Makes the reservation again that the process before this one had for a device, before the device is opened.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn reserve_again(
        &self,
        caller: &SessionEntry,
        bus_id: &str,
        class: native::AttachmentClass,
    ) -> Result<(), native::AttachmentEndNotice> {
        let carrier = self.carrier(bus_id, Some(class));
        let (Some(carrier), Some(name)) = (carrier, self.registry.device_name(bus_id)) else { return Ok(()) };
        match self.ledger.admit_again(&name, &carrier, &path_of(caller.peer_identity)) {
            Ok(news) => {
                self.tell(news);
                Ok(())
            }
            Err(refusal) => {
                let message = format!("what was reserved for it is not to be had any more: {refusal}");
                Err(native::AttachmentEndNotice { cause: native::AttachmentEndCause::Reservation, message })
            }
        }
    }

    /// Moves a device's reservation to its successor.
    ///
    /// # Errors
    /// Why it cannot be moved; device and reservation stay where they are then.
    pub fn reserve_for_successor(
        &self,
        session: &SessionEntry,
        device: &str,
    ) -> Result<(), native::AttachmentEndNotice> {
        let Some(reservation) = self.ledger.reservation(device) else { return Ok(()) };
        let path = path_of(session.peer_identity);
        let moved = match reservation.criticality {
            ReservationCriticality::High => self.may_reserve_high(session, device),
            ReservationCriticality::Low => Ok(()),
        };
        match moved.and_then(|()| self.ledger.move_to(device, &path)) {
            Ok(news) => {
                self.tell(news);
                Ok(())
            }
            Err(refusal) => {
                info!(device, peer = session.peer, %refusal, "what is reserved for it does not go along, nor does it");
                let message = format!("what is reserved for it cannot go along: {refusal}");
                Err(native::AttachmentEndNotice { cause: native::AttachmentEndCause::Reservation, message })
            }
        }
    }

    /// Extends the owner's reservation to the path of the device's user, if that user made none.
    pub fn cover(&self, session: &SessionEntry, bus_id: &str, carrier: Option<&DeviceBusProfile>) {
        if let Some(name) = self.registry.device_name(bus_id) {
            self.tell(self.ledger.cover(&name, carrier, &path_of(session.peer_identity)));
        }
    }

    /// The suspension of a block device or stream that a session uses. The session gets its reservation report.
    pub fn gate_of(&self, session: &SessionEntry, bus_id: &str) -> Option<SuspensionSwitch> {
        self.cover(session, bus_id, self.carrier(bus_id, None).as_ref());
        let name = self.registry.device_name(bus_id)?;
        if let Some(report) = self.ledger.report(&name) {
            session.leave_reserved(report);
        }
        self.ledger.gate_of(&name)
    }

    /// Releases the reservation that a device's former user made.
    pub fn unreserve_for(&self, bus_id: &str) {
        if let Some(name) = self.registry.device_name(bus_id).filter(|name| self.ledger.is_a_users(name)) {
            self.tell(self.ledger.release(&name, self.carrier(bus_id, None).as_ref()));
        }
    }

    /// Takes the progress of a device's link.
    pub fn note_progress(&self, device: &str, progress: TcpSendProgress) {
        self.tell(self.ledger.note_progress(self.sessions.now(), device, progress));
    }

    /// Takes what the thread that serves a device needs each period, nanoseconds.
    pub fn note_need(&self, device: &str, needed_ns: u64) {
        self.tell(self.ledger.note_need(device, needed_ns));
    }

    /// Removes all reservations of a device that is no longer shared.
    pub fn disown(&self, bus_id: &str) {
        if let Some(name) = self.registry.device_name(bus_id) {
            self.tell(self.ledger.disown(&name));
        }
    }

    /// Logs changed reservations, and sends the reports to the sessions that use the devices.
    pub fn tell(&self, news: Vec<ReservationChange>) {
        for ReservationChange { device, report } in news {
            let Ok(bus_id) = self.registry.bus_id_of(&device) else { continue };
            match report.state {
                reserve::ReservationState::Suspended => {
                    let (lack, missing) = in_words(report.lack, report.missing).unwrap_or_default();
                    warn!(device, lack, missing, "suspended");
                }
                _ => info!(device, "admitted"),
            }
            self.sessions.holders_of(&bus_id).iter().for_each(|session| session.leave_reserved(report));
        }
    }

    /// Wraps a device that may be suspended.
    pub fn behind_suspension(&self, session: &SessionEntry, bus_id: &str, device: Box<dyn Device>) -> Box<dyn Device> {
        let Some(name) = self.registry.device_name(bus_id) else { return device };
        let bus = self.bus_of(bus_id);
        let bus = bus.unwrap_or_else(|| format!("gadgets, {} speed", device.speed()));
        self.cover(session, bus_id, Some(&DeviceBusProfile::new(bus, device.descriptors(), device.speed())));
        let carrier = DeviceBusProfile::new("", device.descriptors(), device.speed());
        let Some((suspension, endpoints)) = self.ledger.suspension(&name, &carrier) else { return device };
        let (suspendable, behind) = SuspendableDevice::new(device, suspension, endpoints);
        session.keep_behind(behind);
        Box::new(suspendable)
    }
}

/// Processor time for threads of other processes' tuned pipes. The owner has it until it releases it, or until nothing
/// is shared here any more.
impl ProcessorLedger for Weak<DeviceReservations> {
    fn enter(&self, owner: &str, reserves: &[VcpuReserve]) -> Result<Vec<usize>, VcpuOverload> {
        let Some(reservations) = self.upgrade() else { return Ok(Vec::new()) };
        let (processors, news) = reservations.ledger.enter_threads(owner, reserves)?;
        info!(owner, threads = reserves.len(), "has parts of the processors");
        reservations.tell(news);
        Ok(processors)
    }

    fn leave(&self, owner: &str) {
        let Some(reservations) = self.upgrade() else { return };
        info!(owner, "has no part of the processors any more");
        reservations.tell(reservations.ledger.leave_threads(owner));
    }
}

/// Processor time for tuned pipes of this process.
impl ProcessorAdmission for (Weak<DeviceReservations>, String) {
    fn admit(&self, all: &[VcpuReserve]) -> Result<(), String> {
        self.0.enter(&self.1, all).map(drop).map_err(|overload| overload.to_string())
    }
}
