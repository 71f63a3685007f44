//! The registry of shared devices: which there are, who uses each, who has it next, and their names and identities.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use farbus_control::device::{DeviceStatus, IdentityStatus};
use farbus_io_net::link::unix_ms;
use farbus_io_net::trust::DeviceId;
use farbus_model::{Device, ExportIdentity, Instant};
use farbus_session::claims::bookings::BookingCalendar;
use farbus_session::claims::lease::Lease;
use farbus_session::leases::{DeviceKey, DeviceLeases};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{HOLD, control as native};
use farbus_session::registry::ExportEntry;
use farbus_session::{ExportRegistry, OpStatus};
use tracing::{info, warn};

use crate::common::ordered_mutex::{OrderedGuard, OrderedMutex};
use crate::devices::follow::ANOTHER_IN_PORT;
use crate::devices::identities::labels::{OfferTraits, OfferTraitsMap};
use crate::devices::retirement::RetirementStep;
use crate::devices::retirement::retirement_status;
use crate::exporter::error::ShareError;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::session::threads::HandoverOutcome;
use crate::exporter::state::lease_store::LeaseStore;
use crate::exporter::state::note_book::NoteBook;
use crate::exporter::state::retirements::DiskRetirements;

/// The registry of shared devices and the leases of their users. Two locks: the registry's and the leases'; no caller
/// holds both.
pub struct DeviceRegistry {
    registry: OrderedMutex<ExportRegistry, 2>,
    leases: OrderedMutex<DeviceLeases<HandedOver>, 2>,
    /// How often the identity of a device has changed.
    identity_changes: AtomicU64,
    /// How long a device that was handed over waits for its successor at most, milliseconds.
    successor_time_ms: AtomicU64,
    /// Whether devices have names from their owner, and lasting identities.
    pub labels: OfferTraitsMap,
    /// What the owner says of devices.
    pub notes: NoteBook,
    /// Where leases are kept that outlive this process.
    pub store: LeaseStore,
    /// Disks that hosts have moved away.
    pub retirements: DiskRetirements,
    /// Whether a thread ends leases in time.
    is_watched: AtomicBool,
}

/// Why a host may not use a disk here, and what to type.
#[derive(Debug)]
pub enum PresenceRefusal {
    /// A host has moved the disk to another machine, or is doing so.
    MovedAway(String),
    /// What is stored of that cannot be read.
    Unknown(String),
}

impl PresenceRefusal {
    /// Why, in the audit log.
    pub fn in_words(&self) -> &'static str {
        match self {
            PresenceRefusal::MovedAway(_) => "moved away",
            PresenceRefusal::Unknown(_) => "not known whether it was moved away",
        }
    }

    /// A line in the log.
    pub fn note(&self, device: &str, peer: &str) {
        match self {
            PresenceRefusal::MovedAway(_) => info!(device, peer, "refused: it was moved away"),
            PresenceRefusal::Unknown(why) => warn!(device, peer, why, "refused"),
        }
    }

    /// Why, and what to type, for the importer.
    pub fn into_message(self) -> String {
        let (PresenceRefusal::MovedAway(why) | PresenceRefusal::Unknown(why)) = self;
        why
    }
}

/// A device that its user handed over and that waits for its successor.
pub struct HandedOver {
    pub(crate) bus_id: String,
    /// The holder of the claim, as the registry names it.
    pub who: String,
    /// The USB device; `None` for a block device, which is opened anew.
    pub device: Option<Box<dyn Device>>,
    /// The migration state for the successor.
    pub migration_state: Vec<u8>,
    /// The session that handed the device over, and its number: it gets the device back if no successor comes.
    pub home: (Weak<SessionEntry>, u64),
}

impl HandedOver {
    /// Tells the session that handed the device over what became of it.
    pub fn settle(&self, cause: native::AttachmentEndCause, message: &str) {
        if let Some(home) = self.home.0.upgrade() {
            // If that session has ended, the outcome is not needed.
            let _ = home.leave_handover_outcome(HandoverOutcome::Over(native::AttachmentEndNotice {
                cause,
                message: message.to_owned(),
            }));
        }
    }
}

impl Default for DeviceRegistry {
    /// A registry in which no device is shared yet.
    fn default() -> Self {
        Self {
            registry: OrderedMutex::default(),
            leases: OrderedMutex::new(DeviceLeases::after(unix_ms())),
            identity_changes: AtomicU64::new(0),
            successor_time_ms: AtomicU64::new(HOLD.as_millis() as u64),
            labels: OfferTraitsMap::default(),
            notes: NoteBook::default(),
            store: LeaseStore::default(),
            retirements: DiskRetirements::default(),
            is_watched: AtomicBool::new(false),
        }
    }
}

impl DeviceRegistry {
    /// The registry itself, locked.
    #[track_caller]
    pub fn lock(&self) -> OrderedGuard<'_, ExportRegistry, 2> {
        self.registry.lock().expect("no claim panics")
    }

    /// The leases, locked.
    #[track_caller]
    pub fn leases(&self) -> OrderedGuard<'_, DeviceLeases<HandedOver>, 2> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the identity of the device `bus_id`. Returns whether the device exists. The caller wakes the sessions.
    pub fn identify(&self, bus_id: &str, identity: ExportIdentity) -> bool {
        let is_there = self.lock().identify(bus_id, identity);
        self.identity_changes.fetch_add(1, Ordering::AcqRel);
        is_there
    }

    /// A number that changes whenever the identity of a device changes.
    pub fn identity_changes(&self) -> u64 {
        self.identity_changes.load(Ordering::Acquire)
    }

    /// How long a device that was handed over waits for its successor at most; its importer may have a shorter limit.
    pub fn successor_time(&self) -> Duration {
        Duration::from_millis(self.successor_time_ms.load(Ordering::Relaxed))
    }

    /// Sets how long a handed over device waits for its successor at most.
    pub fn set_successor_time(&self, span: Duration) {
        self.successor_time_ms.store(span.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The bus id of the device with this name or bus id.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn bus_id_of(&self, device: &str) -> Result<String, ShareError> {
        let registry = self.lock();
        let bus_id = registry.find(device).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        Ok(bus_id.to_owned())
    }

    /// The name of the device with this bus id.
    pub fn device_name(&self, bus_id: &str) -> Option<String> {
        let registry = self.lock();
        registry.entries().find(|entry| entry.record.bus_id == bus_id).map(|entry| entry.name.to_owned())
    }

    /// The name of a device that was opened by this name or bus id.
    pub fn name_of_opened(&self, opened: &str) -> Option<String> {
        self.device_name(&self.bus_id_of(opened).ok()?)
    }

    /// The names and ids of all devices, by their bus ids: for one who asks for many.
    pub fn names(&self) -> BTreeMap<String, (String, Option<DeviceId>)> {
        let registry = self.lock();
        let named = registry
            .entries()
            .map(|entry| (entry.record.bus_id.clone(), (entry.name.to_owned(), entry.identity.map(DeviceId::of))));
        named.collect()
    }

    /// The id of the device with this name.
    pub fn id_of(&self, name: &str) -> Option<DeviceId> {
        let registry = self.lock();
        let found = registry.entries().find(|entry| entry.name == name);
        found.and_then(|entry| entry.identity).map(DeviceId::of)
    }

    /// The name by which permissions mean the device of this name; empty if its share is by port and another device is
    /// there: that name means the one of before.
    pub fn permitted_as<'a>(&self, name: &'a str) -> &'a str {
        self.bus_id_of(name).map_or(name, |bus_id| self.permitted_at(&bus_id, name))
    }

    /// As [`DeviceRegistry::permitted_as`], of the device with this bus id.
    pub fn permitted_at<'a>(&self, bus_id: &str, name: &'a str) -> &'a str {
        if self.labels.of(bus_id).another.is_some() { "" } else { name }
    }

    /// The key under which the leases of the device with this bus id are kept.
    pub fn key_of(&self, bus_id: &str) -> DeviceKey {
        DeviceKey::of(bus_id, self.lock().identity(bus_id))
    }

    /// The id under which the leases of a device are stored; `None` if they end with this process.
    fn stored_as(&self, bus_id: &str) -> Option<DeviceId> {
        let identity = self.lock().identity(bus_id)?;
        self.labels.of(bus_id).is_lasting.then(|| DeviceId::of(identity))
    }

    /// Checks that the disk was not moved to another machine. While it is not known whether it was, only the host that
    /// is moving it, known by `by`, may use it.
    ///
    /// # Errors
    /// Why it is refused, and what to type.
    pub fn check_is_here(&self, bus_id: &str, by: &str) -> Result<(), PresenceRefusal> {
        let Some(id) = self.stored_as(bus_id) else { return Ok(()) };
        let name = self.device_name(bus_id).unwrap_or_else(|| bus_id.to_owned());
        match self.retirements.of(id) {
            Ok(retirement) => {
                let objection = retirement.and_then(|it| it.objection(&name, by));
                objection.map_or(Ok(()), |why| Err(PresenceRefusal::MovedAway(why)))
            }
            Err(why) => Err(PresenceRefusal::Unknown(format!("it is not known whether '{name}' has old data: {why}"))),
        }
    }

    /// Notes durably what the user of a disk, known by `by`, says of it: it moves the disk to its own machine, has
    /// moved it, or has not.
    ///
    /// # Errors
    /// Why that is not noted.
    pub fn note_step(&self, bus_id: &str, step: DiskMoveStep, by: String, host: String) -> Result<(), String> {
        if step == DiskMoveStep::Overwrites {
            return Err("that is said before a disk is opened".to_owned());
        }
        let lasting = "the disk has no identity that outlives the process that shares it".to_owned();
        let id = self.stored_as(bus_id).ok_or(lasting)?;
        let stored = self.retirements.note(id, RetirementStep::by(step, by, host))?;
        match (step, stored) {
            (DiskMoveStep::Stays, Some(_)) => Err("it was noted as moved away".to_owned()),
            _ => Ok(()),
        }
    }

    /// Notes durably that the host which moved a disk away, known by `by`, overwrites it: it may open it again, and
    /// still nobody else. Returns whether that host had moved it away.
    ///
    /// # Errors
    /// Why that is not noted.
    pub fn note_overwriting(&self, bus_id: &str, by: String, host: String) -> Result<bool, String> {
        let Some(id) = self.stored_as(bus_id) else { return Ok(false) };
        let is_its = self.retirements.of(id)?.is_some_and(|stored| stored.is_done && stored.by == by);
        if is_its {
            self.retirements.note(id, RetirementStep::Overwrites { by, host })?;
        }
        Ok(is_its)
    }

    /// Adds to the status of each device that a host has moved it away, if so, or that what is stored of that cannot
    /// be read.
    pub fn show_retirements(&self, all: &mut [DeviceStatus]) {
        let lasting_id = |status: &DeviceStatus| status.identity.as_ref().filter(|it| it.is_lasting).map(|it| it.id);
        let lasting: Vec<DeviceId> = all.iter().filter_map(lasting_id).collect();
        let found = self.retirements.of_all(&lasting);
        for status in all {
            let Some(found) = lasting_id(status).and_then(|id| found.get(&id).cloned()) else { continue };
            let is_idle = status.user.is_none();
            match found {
                Ok(retirement) => {
                    if is_idle && retirement.is_done {
                        "moved away".clone_into(&mut status.state);
                    }
                    status.moved = Some(retirement_status(retirement));
                }
                Err(why) => {
                    if is_idle {
                        "failed".clone_into(&mut status.state);
                    }
                    status.trouble = Some(why);
                }
            }
        }
    }

    /// Gives the next lease of a device: a number that is higher than every earlier one, and was stored as reserved
    /// before anybody learns of it. From now on earlier numbers are refused.
    ///
    /// # Errors
    /// the number cannot be stored.
    pub fn next_lease(&self, bus_id: &str) -> io::Result<u64> {
        let (key, id) = (self.key_of(bus_id), self.stored_as(bus_id));
        let (latest, above) = self.counts(&key);
        let count = id.map(|id| self.store.reserve(id, latest, above)).transpose()?.flatten();
        Ok(self.leases().give_reserved(&key, count.unwrap_or_default()))
    }

    /// Begins to store the number of the next lease of a device that is handed over, before its successor comes.
    pub fn prepare_next_lease(&self, bus_id: &str) {
        if let Some(id) = self.stored_as(bus_id) {
            let (latest, above) = self.counts(&self.key_of(bus_id));
            self.store.reserve_ahead(id, latest, above);
        }
    }

    /// The latest lease of a device; `None` if it had none.
    pub fn latest_lease(&self, bus_id: &str) -> Option<u64> {
        let key = self.key_of(bus_id);
        self.leases().latest(&key)
    }

    /// The count of the latest lease of a device, and that of the latest of any.
    fn counts(&self, key: &DeviceKey) -> (u64, u64) {
        let leases = self.leases();
        (leases.latest_count(key), leases.last_count())
    }

    /// From now on the numbers of all uses of a device until now are refused, in any case as long as this process
    /// lives.
    ///
    /// # Errors
    /// that is not stored, so the latest of them counts again after a restart, until another host has
    /// the device.
    pub fn fence_off(&self, bus_id: &str) -> io::Result<()> {
        let stored = self.next_lease(bus_id);
        if stored.is_err() {
            let key = self.key_of(bus_id);
            self.leases().fence_off(&key);
        }
        stored.map(drop)
    }

    /// Stores the lease of a device, or that it has none.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn keep_lease(&self, bus_id: &str, lease: Option<&Lease>, now: Instant) -> io::Result<()> {
        self.stored_as(bus_id).map_or(Ok(()), |id| self.store.keep(id, lease, now))
    }

    /// Stores the leases ahead of time of a device.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn keep_bookings(&self, bus_id: &str) -> io::Result<()> {
        let bookings = self.lock().claims_mut(bus_id).map(|claims| claims.bookings().clone());
        let known = self.stored_as(bus_id).zip(bookings);
        known.map_or(Ok(()), |(id, bookings)| self.store.keep_bookings(id, &bookings))
    }

    /// Takes over the numbers that were reserved for a device before this process, and returns its lease, and those
    /// ahead of time.
    ///
    /// # Errors
    /// It cannot be stored.
    pub fn load_lease(&self, bus_id: &str, now: Instant) -> io::Result<(Option<Lease>, BookingCalendar)> {
        let Some(id) = self.stored_as(bus_id) else { return Ok((None, BookingCalendar::default())) };
        let (reserved, lease, bookings) = self.store.load(id, now)?;
        if reserved > 0 {
            let key = self.key_of(bus_id);
            self.leases().note_reserved(&key, reserved);
        }
        Ok((lease, bookings))
    }

    /// Returns whether no thread ended leases in time before this call; the caller does from now on.
    pub fn begin_watching(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    /// The thread that ended leases in time ends.
    pub fn end_watching(&self) {
        self.is_watched.store(false, Ordering::Release);
    }

    /// Reads what the owner says of the device with this bus id.
    pub fn read_notes(&self, bus_id: &str) {
        if let Some(name) = self.device_name(bus_id) {
            self.notes.read(bus_id, self.stored_as(bus_id), &name);
        }
    }

    /// Adds the device's identity, whether its owner named it, and what its owner says of it, to its status.
    pub fn label(&self, entry: &ExportEntry<'_>, status: &mut DeviceStatus) {
        let OfferTraits { is_named, is_lasting, another } = self.labels.of(&entry.record.bus_id);
        status.is_named = is_named;
        if let Some(another) = another {
            if status.user.is_none() {
                ANOTHER_IN_PORT.clone_into(&mut status.state);
            }
            status.another_in_port = Some(Box::new((*another).clone()));
        }
        status.notes = self.notes.of(&entry.record.bus_id, entry.name);
        status.identity = entry.identity.map(|identity| IdentityStatus {
            id: DeviceId::of(identity),
            generation: identity.generation,
            is_lasting,
        });
    }

    /// The answer to an importer that wants a device in use.
    pub fn busy(&self, bus_id: &str, now: Instant) -> native::AttachmentEndNotice {
        let registry = self.lock();
        let entry = registry.entries().find(|entry| entry.record.bus_id == bus_id);
        let lease = entry.as_ref().and_then(|entry| entry.claims.lease(now));
        let message = match (entry.as_ref().and_then(|entry| entry.holder), lease) {
            (None, Some(lease)) => {
                let left_s = (lease.until - now).as_secs_f64().ceil();
                format!(
                    "leased to {} for another {left_s} s\n  get in line: farbus lease HOST/DEVICE",
                    lease.who.name()
                )
            }
            (Some(holder), _) => {
                let since_s = (now - holder.since).as_secs();
                format!("in use by {} ({}) since {since_s} s", holder.who, holder.mode.as_str())
            }
            (None, None) => "somebody who waits comes first".to_owned(),
        };
        native::AttachmentEndNotice { cause: native::AttachmentEndCause::Busy, message }
    }

    /// The answer to the importer `who`, which wants a device that is in use, or from which its owner keeps it out.
    pub fn busy_for(&self, bus_id: &str, who: &str, now: Instant) -> native::AttachmentEndNotice {
        let kept_out = {
            let registry = self.lock();
            let entry = registry.entries().find(|entry| entry.record.bus_id == bus_id && entry.holder.is_none());
            entry.and_then(|entry| entry.claims.kept_out_for(who, now))
        };
        let Some(span) = kept_out else { return self.busy(bus_id, now) };
        let message = format!("its owner keeps this host out for another {} s", span.as_secs_f64().ceil());
        native::AttachmentEndNotice { cause: native::AttachmentEndCause::Refused, message }
    }

    /// The answer to the importer `who`, which could not claim a device.
    pub fn why_not_claimed(
        &self,
        bus_id: &str,
        who: &str,
        status: OpStatus,
        now: Instant,
    ) -> native::AttachmentEndNotice {
        let cause = match status {
            OpStatus::Busy => return self.busy_for(bus_id, who, now),
            OpStatus::NoDevice => native::AttachmentEndCause::Gone,
            OpStatus::DeviceError => native::AttachmentEndCause::Device,
            _ => native::AttachmentEndCause::Refused,
        };
        native::AttachmentEndNotice { cause, message: status.to_string() }
    }
}
