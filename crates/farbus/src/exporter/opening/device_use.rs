//! One session's use of a device: opens the device in the class that was asked for, and finally releases it or hands it
//! over to a successor.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;

use farbus_host::driven_disk::DrivenDisk;
use farbus_io_net::link::{DeviceWaitSource, ThreadWaker};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::HostFolder;
use farbus_model::{BlockDevice, BufferPool, CompletionQueue, Device, Instant, OwnerCommand, ReadinessSource};
use farbus_session::block::{BlockExport, make_durable};
use farbus_session::claims::UseMode;
use farbus_session::native::control::{LIMIT, PEER_MEMORY};
use farbus_session::native::served_observer::ObserverFeed;
use farbus_session::native::{DeviceMigration, HOLD_MAX, HOLD_STORAGE_MAX, control as native};
use farbus_session::registry::ClaimedBlock;
use farbus_session::stream::SlowReaderPolicy;
use farbus_session::{DeviceRecord, ExportOffers, OpStatus, UseEnding};
use tracing::{info, warn};

use crate::devices::identities::durability_of;
use crate::exporter::access::quota::{self, ConnectionClass};
use crate::exporter::opening::claim::PeerOffers;
use crate::exporter::opening::driven_disk::may_drive;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::session::threads::{HandoverOutcome, OpenedAttachment, OpenedDevice};
use crate::exporter::state::lease_limits::ExceededLeaseLimit;
use crate::exporter::state::registry::HandedOver;
use crate::exporter::state::shared::{ConnectionContext, ExporterState, STACK_BYTES};
use crate::hosts::trust::AuditedUse;

const SOURCE_OVER: &str = "its source has ended, or as many read it as may";

/// One session's use of one device. The table of sessions has an entry for it as long as it lasts.
#[derive(Clone)]
pub(crate) struct DeviceUse {
    shared: Arc<ExporterState>,
    /// Its number in the table of sessions.
    number: u64,
    session: Arc<SessionEntry>,
}

impl DeviceUse {
    /// Enters the use of a device in the table of sessions, for the session that opens it.
    ///
    /// # Errors
    /// The peer has as many connections or as much memory as it may.
    pub fn enter(
        shared: &Arc<ExporterState>,
        caller: &SessionEntry,
        peer: &str,
        open: &native::OpenRequest,
    ) -> Result<Self, native::AttachmentEndNotice> {
        let refused = |why: String| refusal(native::AttachmentEndCause::Refused, why);
        if caller.class == ConnectionClass::Surplus {
            let why = quota::refusal(caller.peer_identity, shared.sessions.accounts.devices_max());
            warn!(device = open.name, peer, "refused: {why}");
            caller.paired_peer.iter().for_each(|paired_peer| paired_peer.record_refused(&open.name, &why));
            return Err(refused(why));
        }
        if let Ok(bus_id) = shared.registry.bus_id_of(&open.name)
            && let Err(why) = shared.registry.check_is_here(&bus_id, &caller.proof())
        {
            why.note(&open.name, peer);
            shared.permissions.record(caller, AuditedUse::Attach, &bus_id, Err(why.in_words()));
            return Err(refused(why.into_message()));
        }
        let devices = shared.registry.lock().entries().count();
        let (number, session) =
            shared.sessions.enter_attachment(caller, peer.to_owned()).map_err(|error| refused(error.to_string()))?;
        let used = Self { shared: Arc::clone(shared), number, session };
        used.session.take_for(open, devices).map_err(|exhausted| {
            used.end();
            warn!(device = open.name, peer, "refused: {exhausted}");
            let next = "its owner may allow more ('farbus share --peer-memory MIB')";
            refused(format!("{LIMIT}{PEER_MEMORY}: {exhausted}: {next}"))
        })?;
        Ok(used)
    }

    /// The entry in the table of sessions.
    pub fn session(&self) -> &SessionEntry {
        &self.session
    }

    /// Removes the entry from the table of sessions.
    pub fn end(&self) {
        self.shared.sessions.end(self.number);
    }

    /// The opened device, under a lease that exists already.
    pub fn with_lease(self, opened_device: OpenedDevice, lease: u64) -> OpenedAttachment {
        OpenedAttachment { opened_device, session_handle: self.session, lease }
    }

    /// Gives the user of a device that was opened in this mode its lease; 0 if it has none. What cannot be numbered is
    /// released again.
    ///
    /// # Errors
    /// The number cannot be stored.
    pub fn number(
        &self,
        bus_id: &str,
        opened_device: OpenedDevice,
        mode: Option<UseMode>,
    ) -> Result<(OpenedDevice, u64), native::AttachmentEndNotice> {
        // Readers do not exclude each other, so they get no lease.
        if mode != Some(UseMode::Exclusive) {
            return Ok((opened_device, 0));
        }
        match self.shared.registry.next_lease(bus_id) {
            Ok(lease) => Ok((opened_device, lease)),
            Err(error) => {
                let ConnectionContext { clock, limits, .. } = &self.shared.serving;
                opened_device.served(0, (*limits).into(), *clock, None).finish(self.now());
                Err(self.unnumbered(bus_id, &error))
            }
        }
    }

    /// The refusal of a device whose user cannot be given a number that outlives this process: a host that had the
    /// device before could come back after a restart, and write over what this user wrote.
    fn unnumbered(&self, bus_id: &str, error: &io::Error) -> native::AttachmentEndNotice {
        warn!(device = bus_id, peer = self.session.peer, %error, "refused: the number of its use cannot be stored");
        let folder = self.shared.registry.store.folder().map_or(Path::new("."), HostFolder::path).display();
        let why = "the number that tells this use from earlier ones cannot be stored";
        let next = format!("where it is shared, make room, or make the folder writable: df -h {folder}");
        refusal(native::AttachmentEndCause::Refused, format!("{why}: {error}\n  {next}"))
    }

    /// Ends the use if the device was not opened.
    ///
    /// # Errors
    /// Why the device was not opened.
    pub fn opened(
        self,
        open: &native::OpenRequest,
        opened_device: Result<(OpenedDevice, u64), native::AttachmentEndNotice>,
    ) -> Result<OpenedAttachment, native::AttachmentEndNotice> {
        match opened_device {
            Ok((opened_device, lease)) => {
                if !open.reason.is_empty() {
                    self.shared.registry.lock().explain(&self.session.peer, &open.reason);
                }
                Ok(self.with_lease(opened_device, lease))
            }
            Err(end) => {
                self.end();
                Err(match end.cause {
                    native::AttachmentEndCause::Gone => missing(&self.shared, &self.session, open),
                    _ => end,
                })
            }
        }
    }

    fn offer(&self) -> PeerOffers<'_> {
        PeerOffers { shared: &self.shared, session: &self.session }
    }

    fn now(&self) -> Instant {
        self.shared.serving.clock.now()
    }

    /// Opens a device that was not handed over. The mode is `None` for an observer.
    pub fn open_anew(
        &self,
        bus_id: &str,
        open: &native::OpenRequest,
    ) -> Result<(OpenedDevice, Option<UseMode>), native::AttachmentEndNotice> {
        if open.mode != native::AttachmentMode::Observe {
            let refused = |exceeded: ExceededLeaseLimit| format!("{LIMIT}{}: {exceeded}", exceeded.name);
            let checked = self.offer().check_limits(bus_id).map_err(refused);
            checked.map_err(|message| refusal(native::AttachmentEndCause::Refused, message))?;
        }
        match open.class {
            native::AttachmentClass::USB if open.mode == native::AttachmentMode::Observe => {
                self.open_observer(bus_id).map(|opened_device| (opened_device, None))
            }
            native::AttachmentClass::USB => {
                self.open_usb(bus_id, open.mode).map(|opened_device| (opened_device, Some(UseMode::Exclusive)))
            }
            native::AttachmentClass::BLOCK => {
                let claimed = self.offer().claim_block(bus_id, open.mode);
                if matches!(&claimed, Err(end) if end.cause == native::AttachmentEndCause::Class)
                    && may_drive(&self.shared.registry, bus_id, open.mode, self.now())?
                {
                    return self.open_driven(bus_id).map(|opened_device| (opened_device, Some(UseMode::Exclusive)));
                }
                let claimed = claimed?;
                let mode = claimed.mode;
                self.open_block(bus_id, claimed).map(|opened_device| (opened_device, Some(mode)))
            }
            native::AttachmentClass::STREAM if open.mode == native::AttachmentMode::Observe => {
                self.open_stream_observer(bus_id).map(|opened_device| (opened_device, None))
            }
            native::AttachmentClass::STREAM => self.open_stream(bus_id, open.mode),
            native::AttachmentClass::CONSOLE => {
                self.open_console(bus_id, open.mode).map(|opened_device| (opened_device, None))
            }
            _ => Err(refusal(native::AttachmentEndCause::Class, format!("'{}' is nothing of that kind", open.name))),
        }
    }

    /// Opens a handed over device for its successor, under a later lease. On failure the device goes back to the
    /// importer that handed it over.
    pub fn take_over(
        &self,
        open: &native::OpenRequest,
        handed_over: HandedOver,
    ) -> Result<(OpenedDevice, u64), native::AttachmentEndNotice> {
        if let Err(status) = self.offer().admit(&handed_over.bus_id) {
            give_home(&self.shared, handed_over);
            return Err(refusal(native::AttachmentEndCause::Refused, status.to_string()));
        }
        let is_fitting = (open.class == native::AttachmentClass::USB) == handed_over.device.is_some();
        if let (true, Some(name)) = (is_fitting, self.shared.registry.device_name(&handed_over.bus_id))
            && let Err(end) = self.shared.reservations.reserve_for_successor(&self.session, &name)
        {
            give_home(&self.shared, handed_over);
            return Err(end);
        }
        if !is_fitting {
            give_home(&self.shared, handed_over);
            return Err(refusal(native::AttachmentEndCause::Class, "it was handed over as something else".to_owned()));
        }
        let lease = match self.shared.registry.next_lease(&handed_over.bus_id) {
            Ok(lease) => lease,
            Err(error) => {
                let refusal = self.unnumbered(&handed_over.bus_id, &error);
                give_home(&self.shared, handed_over);
                return Err(refusal);
            }
        };
        handed_over.settle(native::AttachmentEndCause::Requested, native::HANDED_OVER);
        let HandedOver { bus_id, who, device: usb, .. } = handed_over;
        let now = self.now();
        let found = {
            let mut registry = self.shared.registry.lock();
            if let Some(claims) = registry.claims_mut(&bus_id) {
                claims.hand_over(&who, &self.session.peer, now);
            }
            self.session.hold(&bus_id);
            registry.record(&bus_id).zip(Some(registry.block_export(&bus_id)))
        };
        let Some((record, export)) = found else {
            return Err(refusal(native::AttachmentEndCause::Gone, OpStatus::NoDevice.to_string()));
        };
        info!(device = bus_id, from = who, peer = self.session.peer, "taken over");
        self.shared.permissions.record(&self.session, AuditedUse::Attach, &bus_id, Ok(()));
        let opened_device = match (open.class, usb, export) {
            (native::AttachmentClass::USB, Some(device), _) => Ok(self.usb_class(record, device)),
            (native::AttachmentClass::BLOCK, None, Some(export)) => {
                let mode = UseMode::Exclusive;
                self.open_block(&bus_id, ClaimedBlock { record, export, mode })
            }
            _ => Err(refusal(native::AttachmentEndCause::Gone, OpStatus::NoDevice.to_string())),
        };
        opened_device.map(|opened_device| (opened_device, lease))
    }

    fn open_usb(
        &self,
        bus_id: &str,
        mode: native::AttachmentMode,
    ) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        if mode != native::AttachmentMode::Exclusive {
            return Err(refusal(
                native::AttachmentEndCause::Refused,
                "a USB device has one user at a time, who may change it".into(),
            ));
        }
        let claimed = self.offer().claim(bus_id);
        let (record, device) = claimed
            .map_err(|status| self.shared.registry.why_not_claimed(bus_id, &self.session.peer, status, self.now()))?;
        Ok(self.usb_class(record, device))
    }

    fn usb_class(&self, record: DeviceRecord, device: Box<dyn Device>) -> OpenedDevice {
        let reservations = &self.shared.reservations;
        let device = reservations.behind_suspension(&self.session, &record.bus_id, device);
        // An importer that made no reservation itself is told what the owner reserved.
        let name = self.shared.registry.device_name(&record.bus_id);
        if let Some(report) = name.and_then(|name| reservations.ledger().report(&name)) {
            self.session.leave_reserved(report);
        }
        let used = self.clone();
        let give_back = move |device: Box<dyn Device>, now| {
            let device = used.session.without_gate(device);
            let is_gone = device.is_gone();
            used.take_in((!is_gone).then_some(device), is_gone, now);
        };
        let used = self.clone();
        let pass_on = move |device: Box<dyn Device>, now, migration: DeviceMigration| {
            let device = used.session.without_gate(device);
            if device.is_gone() {
                used.take_in(None, true, now);
                return false;
            }
            used.migrate(Some(device), migration)
        };
        OpenedDevice::Usb { record, device, give_back: Box::new(give_back), pass_on: Box::new(pass_on) }
    }

    /// Opens a USB disk, driven by this exporter, for one importer.
    fn open_driven(&self, bus_id: &str) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        let reservations = &self.shared.reservations;
        let carrier = reservations.carrier(bus_id, Some(native::AttachmentClass::USB));
        let claimed = self.offer().claim(bus_id);
        let (_, device) = claimed
            .map_err(|status| self.shared.registry.why_not_claimed(bus_id, &self.session.peer, status, self.now()))?;
        let disk = match DrivenDisk::new(device) {
            Ok(disk) => disk,
            Err(device) => {
                let (peer, now) = (&self.session.peer, self.now());
                self.shared.registry.lock().release(bus_id, peer, Some(device), UseEnding::Detached, now);
                return Err(refusal(
                    native::AttachmentEndCause::Class,
                    "it has no disk that is driven here".to_owned(),
                ));
            }
        };
        let used = self.clone();
        let give_back = move |device: Box<dyn Device>, now| {
            let is_gone = device.is_gone();
            used.take_in((!is_gone).then_some(device), is_gone, now);
        };
        // What the disk has in its cache is as durable as its power: this host's, or until it is unplugged. A device
        // that is plugged in again has another number on its bus.
        let plug = self.shared.swaps.plugs().get(bus_id);
        let durability = durability_of(plug.map(|plug| u64::from(plug.bus) << 32 | u64::from(plug.number)));
        reservations.cover(&self.session, bus_id, carrier.as_ref());
        let (suspension, give_back) = (reservations.gate_of(&self.session, bus_id), Box::new(give_back));
        Ok(OpenedDevice::Disk { disk: Box::new(disk), durability, give_back, suspension })
    }

    /// Opens a device for an observer, whether or not another importer uses it.
    fn open_observer(&self, bus_id: &str) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        self.may_observe(bus_id)?;
        let (observable, console) = {
            let registry = self.shared.registry.lock();
            (registry.observe(bus_id), registry.console(bus_id))
        };
        let why = match console {
            Some(_) => "it sends nothing that is shown but a console: 'farbus observe … --console'",
            None => "it sends nothing that is shown",
        };
        let observable = observable.ok_or_else(|| refusal(native::AttachmentEndCause::Class, why.to_owned()))?;
        let ObserverWaker { wake, readiness, hush } = hang_bell()?;
        let observer = observable.audience.join(move || wake.wake());
        let observer = observer.map(|observer| Box::new(observer) as Box<dyn ObserverFeed>);
        self.observed(bus_id, observer, (readiness, hush), observable.description)
    }

    /// Opens what a device's serial ports send for an observer. An exporter of an earlier version refuses the class
    /// with its cause, so a device without such a port is refused with another one.
    fn open_console(
        &self,
        bus_id: &str,
        mode: native::AttachmentMode,
    ) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        let refused = |what: &str| refusal(native::AttachmentEndCause::Refused, what.to_owned());
        if mode != native::AttachmentMode::Observe {
            return Err(refused("a console is observed, and not used"));
        }
        self.may_observe(bus_id)?;
        let observable = self.shared.registry.lock().console(bus_id);
        let observable = observable.ok_or_else(|| refused("it has no serial port whose output is shown"))?;
        let ObserverWaker { wake, readiness, hush } = hang_bell()?;
        let observer = observable.audience.join_console(move || wake.wake());
        let observer = observer.map(|observer| Box::new(observer) as Box<dyn ObserverFeed>);
        self.observed(bus_id, observer, (readiness, hush), observable.description)
    }

    /// Whether the peer may look on while another importer uses a device.
    fn may_observe(&self, bus_id: &str) -> Result<(), native::AttachmentEndNotice> {
        self.offer().admit(bus_id).map_err(|status| match status {
            OpStatus::NoDevice => refusal(native::AttachmentEndCause::Gone, status.to_string()),
            _ => refusal(native::AttachmentEndCause::Refused, status.to_string()),
        })?;
        if !self.shared.permissions.is_observable() {
            let why = "its owner lets nobody look on: 'farbus share --observable' would";
            return Err(refusal(native::AttachmentEndCause::Refused, why.to_owned()));
        }
        Ok(())
    }

    /// Opens a stream for an observer, whether or not others read it: it gets the latest frames, and nobody waits for
    /// it.
    fn open_stream_observer(&self, bus_id: &str) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        self.may_observe(bus_id)?;
        let stage = self.shared.registry.lock().observe_stream(bus_id);
        let stage =
            stage.ok_or_else(|| refusal(native::AttachmentEndCause::Class, "it is no stream of frames".to_owned()))?;
        let ObserverWaker { wake, readiness, hush } = hang_bell()?;
        let observer = stage.join(SlowReaderPolicy::Latest, move || wake.wake());
        let over = || refusal(native::AttachmentEndCause::Device, SOURCE_OVER.to_owned());
        let observer = observer.map(|observer| Box::new(observer) as Box<dyn ObserverFeed>).ok_or_else(over)?;
        self.observed(bus_id, Some(observer), (readiness, hush), stage.description().encode())
    }

    /// Notes that an observer has begun, in the audit log too; `None` if there is no place for one.
    fn observed(
        &self,
        bus_id: &str,
        observer: Option<Box<dyn ObserverFeed>>,
        (readiness, hush): (ReadinessSource, Box<dyn Fn() + Send>),
        description: Vec<u8>,
    ) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        let no_place = || refusal(native::AttachmentEndCause::Refused, "as many look on as may".to_owned());
        let observer = observer.ok_or_else(no_place)?;
        self.session.observes.get_or_init(|| bus_id.to_owned());
        info!(device = bus_id, peer = self.session.peer, "observed");
        if !self.session.is_successor() {
            self.shared.permissions.record(&self.session, AuditedUse::Observe, bus_id, Ok(()));
        }
        let used = self.clone();
        let leave = move |_| {
            info!(device = used.session.observes.get(), peer = used.session.peer, "observed no more");
            used.end();
        };
        Ok(OpenedDevice::Observer { observer, readiness, hush, description, leave: Box::new(leave), suspension: None })
    }

    /// Opens a stream: every frame for an exclusive reader, the latest frames for one of several.
    fn open_stream(
        &self,
        bus_id: &str,
        attachment_mode: native::AttachmentMode,
    ) -> Result<(OpenedDevice, Option<UseMode>), native::AttachmentEndNotice> {
        let (stage, mode) = self.offer().claim_stream(bus_id, attachment_mode)?;
        let policy = if mode == UseMode::Exclusive { SlowReaderPolicy::All } else { SlowReaderPolicy::Latest };
        let observer = ObserverWaker::hang().map_err(|error| error.to_string()).and_then(|bell| {
            let wake = Arc::clone(&bell.wake);
            let observer = stage.join(policy, move || wake.wake());
            observer.map(|observer| (bell, observer)).ok_or_else(|| SOURCE_OVER.to_owned())
        });
        let (ObserverWaker { readiness, hush, .. }, observer) = observer.map_err(|what| {
            self.shared.registry.lock().release(bus_id, &self.session.peer, None, UseEnding::Detached, self.now());
            refusal(native::AttachmentEndCause::Device, what)
        })?;
        let used = self.clone();
        let leave = Box::new(move |now| used.take_in(None, false, now));
        let description = stage.description().encode();
        let suspension =
            (mode == UseMode::Exclusive).then(|| self.shared.reservations.gate_of(&self.session, bus_id)).flatten();
        Ok((
            OpenedDevice::Observer { observer: Box::new(observer), readiness, hush, description, leave, suspension },
            Some(mode),
        ))
    }

    fn open_block(
        &self,
        bus_id: &str,
        ClaimedBlock { export, mode, .. }: ClaimedBlock,
    ) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        let device = export.open(mode).map_err(|what| {
            let now = self.now();
            self.shared.registry.lock().release(bus_id, &self.session.peer, None, UseEnding::Detached, now);
            refusal(native::AttachmentEndCause::Device, what)
        })?;
        let used = self.clone();
        let give_back = move |device: Box<dyn BlockDevice>, now| {
            let is_gone = device.is_gone();
            // If the session continues in another process, the flush is not needed: that process finds the same data.
            if !used.session.is_handed_over()
                && let Err(error) = make_durable(device)
            {
                used.note_undurable(&error.to_string());
            }
            used.take_in(None, is_gone, now);
        };
        let used = self.clone();
        let pass_on = move |device: Box<dyn BlockDevice>, now, migration: DeviceMigration| {
            let is_gone = device.is_gone();
            if let Err(error) = make_durable(device) {
                warn!(peer = used.session.peer, %error, "the last writes may be lost");
            }
            // Shared readers need no handover: a new reader may open the disk beside them.
            if is_gone || mode != UseMode::Exclusive {
                used.take_in(None, is_gone, now);
                return false;
            }
            used.migrate(None, migration)
        };
        let (give_back, pass_on) = (Box::new(give_back), Box::new(pass_on));
        let suspension =
            (mode == UseMode::Exclusive).then(|| self.shared.reservations.gate_of(&self.session, bus_id)).flatten();
        Ok(OpenedDevice::Block { device, durability: export.durability(), give_back, pass_on, suspension })
    }

    /// Opens a block device for its future successor to read while the current importer uses it.
    pub fn show_block(&self, bus_id: &str, export: &BlockExport) -> Result<OpenedDevice, native::AttachmentEndNotice> {
        let refused = |what: &str| refusal(native::AttachmentEndCause::Refused, what.to_owned());
        if !export.may_be_inherited() {
            return Err(refused(
                "nobody can hand it over: it is read by many, or its changes are its user's own\n  \
                 try: --wait=20, or --mode read, without --inherit",
            ));
        }
        let device = export.open(UseMode::Read).map_err(|what| refusal(native::AttachmentEndCause::Device, what))?;
        self.session.observes.get_or_init(|| bus_id.to_owned());
        info!(device = bus_id, peer = self.session.peer, "read by the host that is to inherit it");
        self.shared.permissions.record(&self.session, AuditedUse::Observe, bus_id, Ok(()));
        let used = self.clone();
        let leave = Box::new(move |_| used.end());
        Ok(OpenedDevice::Preview { device, info: *export.info(), durability: export.durability(), leave })
    }

    /// Keeps the device for its successor without a session's thread. Returns whether the device waits.
    fn migrate(&self, device: Option<Box<dyn Device>>, migration: DeviceMigration) -> bool {
        let bus_id = self.session.take_device();
        self.end();
        let Some(bus_id) = bus_id else { return false };
        let DeviceMigration { successor, migration_state, left } = migration;
        let (from, successor) =
            (self.shared.permissions.key_of(&self.session), Some(successor).filter(|successor| *successor != [0; 32]));
        info!(
            device = bus_id,
            peer = self.session.peer,
            migration_state = migration_state.len(),
            "handed over: it waits for its successor"
        );
        let (who, home) = (self.session.peer.clone(), (Arc::downgrade(&self.session), self.number));
        let handed_over = HandedOver { bus_id: bus_id.clone(), who, device, migration_state, home };
        let is_storage = handed_over.device.as_ref().is_none_or(|device| device.descriptors().stores_data());
        let longest = if is_storage { HOLD_STORAGE_MAX } else { HOLD_MAX };
        let until = self.now() + left.min(self.shared.registry.successor_time()).min(longest);
        let key = self.shared.registry.key_of(&bus_id);
        self.shared.registry.prepare_next_lease(&bus_id);
        let before = self.shared.registry.leases().hand_over(&key, from, successor, until, handed_over);
        assert!(before.is_none(), "a device has one user who hands it over");
        self.shared.sessions.wake_all();
        give_up_in_time(&self.shared, until);
        true
    }

    /// Reports that what the user of a device has written may not be durable.
    fn note_undurable(&self, error: &str) {
        let peer = self.session.peer.as_str();
        warn!(peer, error, "the last writes may be lost");
        publish(Event::new(EventKind::Unwritten).host(peer).how("not durable").why(error));
    }

    /// Releases what a session returns: the device, or for a block device nothing.
    fn take_in(&self, device: Option<Box<dyn Device>>, is_gone: bool, now: Instant) {
        let DeviceUse { shared, session, .. } = self;
        let bus_id = session.take_device();
        let noted = *session.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = match (session.forced_ending(), is_gone) {
            (Some(ending), _) => ending,
            (_, true) => UseEnding::Gone,
            _ => noted.unwrap_or(UseEnding::Detached),
        };
        if let Some(bus_id) = bus_id {
            info!(device = bus_id, peer = session.peer, ending = ending.as_str(), "detached");
            let name = shared.registry.device_name(&bus_id).unwrap_or_else(|| bus_id.clone());
            publish(Event::of(EventKind::Released, name).host(session.peer.as_str()).how(ending.as_str()));
            if ending != UseEnding::HandedOver {
                shared.permissions.record(session, AuditedUse::Detach, &bus_id, Ok(()));
            }
            if is_gone {
                shared.reservations.disown(&bus_id);
                shared.registry.lock().withdraw_gone(&bus_id, now);
            } else {
                shared.registry.lock().release(&bus_id, &session.peer, device, ending, now);
            }
            // If the session continues in another process, the reservation stays.
            if ending != UseEnding::HandedOver {
                shared.reservations.unreserve_for(&bus_id);
            }
        }
        self.end();
    }
}

/// Returns a handed over device that no successor claimed to its first importer. If that one is gone, offers it to all.
fn give_home(shared: &Arc<ExporterState>, handed_over: HandedOver) {
    let Some(home) = handed_over.home.0.upgrade() else { return offer_again(shared, handed_over, UseEnding::Lost) };
    let bus_id = handed_over.bus_id.clone();
    warn!(device = bus_id, peer = home.peer, "it goes back to who handed it over");
    let handover_outcome = match back_home(shared, handed_over) {
        Ok((_, opened_device)) => {
            // Nobody has had it meanwhile: without a later number its user keeps the one that it has.
            let lease = shared.registry.next_lease(&bus_id).ok().or_else(|| shared.registry.latest_lease(&bus_id));
            HandoverOutcome::Back(opened_device, lease.unwrap_or_default())
        }
        Err(end) => HandoverOutcome::Over(end),
    };
    let now = shared.serving.clock.now();
    match home.leave_handover_outcome(handover_outcome) {
        Some(HandoverOutcome::Back(OpenedDevice::Usb { device, give_back, .. }, _)) => give_back(device, now),
        Some(HandoverOutcome::Back(OpenedDevice::Block { device, give_back, .. }, _)) => give_back(device, now),
        Some(
            HandoverOutcome::Back(
                OpenedDevice::Observer { .. } | OpenedDevice::Preview { .. } | OpenedDevice::Disk { .. },
                _,
            )
            | HandoverOutcome::Over(_),
        )
        | None => {}
    }
}

/// Opens a handed over device again for the session that handed it over.
pub(crate) fn back_home(
    shared: &Arc<ExporterState>,
    handed_over: HandedOver,
) -> Result<(Arc<SessionEntry>, OpenedDevice), native::AttachmentEndNotice> {
    let gone = || refusal(native::AttachmentEndCause::Gone, OpStatus::NoDevice.to_string());
    let (home, number) = (handed_over.home.0.upgrade(), handed_over.home.1);
    let Some(home) = home else {
        offer_again(shared, handed_over, UseEnding::Lost);
        return Err(gone());
    };
    let (record, export) = {
        let registry = shared.registry.lock();
        (registry.record(&handed_over.bus_id), registry.block_export(&handed_over.bus_id))
    };
    let HandedOver { bus_id, device, .. } = handed_over;
    let record = record.ok_or_else(gone)?;
    shared.sessions.go_on_with(number, &home);
    home.hold(&bus_id);
    let used = DeviceUse { shared: Arc::clone(shared), number, session: Arc::clone(&home) };
    let opened_device = match (device, export) {
        (Some(device), _) => Ok(used.usb_class(record, device)),
        (None, Some(export)) => {
            let mode = UseMode::Exclusive;
            used.open_block(&bus_id, ClaimedBlock { record, export, mode })
        }
        (None, None) => Err(gone()),
    };
    if opened_device.is_err() {
        used.end();
    }
    opened_device.map(|opened_device| (home, opened_device))
}

/// Starts a thread that returns handed over devices whose successor did not come by `until`.
fn give_up_in_time(shared: &Arc<ExporterState>, until: Instant) {
    let weak = Arc::downgrade(shared);
    let wait = move || {
        let Some(now) = weak.upgrade().map(|shared| shared.serving.clock.now()) else { return };
        thread::sleep(until - now);
        let Some(shared) = weak.upgrade() else { return };
        let late = shared.registry.leases().expire(shared.serving.clock.now());
        for handed_over in late {
            warn!(device = handed_over.bus_id, "nobody came for it in time");
            give_home(&shared, handed_over);
        }
    };
    if let Err(error) = thread::Builder::new().name("successor".into()).stack_size(STACK_BYTES).spawn(wait) {
        warn!(%error, "nobody can wait for a successor");
        let all = shared.registry.leases().clear();
        all.into_iter().for_each(|handed_over| give_home(shared, handed_over));
    }
}

/// Resets a handed over device that no importer claimed, and offers it to all again.
pub fn offer_again(shared: &ExporterState, handed_over: HandedOver, ending: UseEnding) {
    let HandedOver { bus_id, who, device, .. } = handed_over;
    info!(device = bus_id, from = who, "what was handed over is offered again");
    let now = shared.serving.clock.now();
    let device = device.map(|mut device| {
        let mut done = CompletionQueue::new(BufferPool::new(0));
        device.reset(now, &mut done);
        // A device that cannot be flushed reports that at the next command.
        let _ = device.command(now, &OwnerCommand::Sync, &mut done);
        while done.pop().is_some() {}
        device
    });
    if device.as_ref().is_some_and(|device| device.is_gone()) {
        shared.registry.lock().withdraw_gone(&bus_id, now);
    } else {
        shared.registry.lock().release(&bus_id, &who, device, ending, now);
    }
    shared.reservations.unreserve_for(&bus_id);
}

pub(crate) fn refusal(cause: native::AttachmentEndCause, message: String) -> native::AttachmentEndNotice {
    native::AttachmentEndNotice { cause, message }
}

/// The error for an importer whose device is not shared here, or not with it. A host that may use no device of this
/// name hears the same whether there is one or not.
pub(crate) fn missing(
    shared: &ExporterState,
    caller: &SessionEntry,
    open: &native::OpenRequest,
) -> native::AttachmentEndNotice {
    match caller.paired_peer.as_ref().and_then(|paired_peer| shared.permissions.forbids(paired_peer, &open.name)) {
        Some(why) => refusal(native::AttachmentEndCause::Refused, why),
        None => refusal(native::AttachmentEndCause::Gone, format!("no device called '{}' is shared here", open.name)),
    }
}

/// Wakes an observer's thread when there is something to show.
struct ObserverWaker {
    wake: Arc<ThreadWaker>,
    readiness: ReadinessSource,
    hush: Box<dyn Fn() + Send>,
}

fn hang_bell() -> Result<ObserverWaker, native::AttachmentEndNotice> {
    ObserverWaker::hang().map_err(|error| refusal(native::AttachmentEndCause::Refused, error.to_string()))
}

impl ObserverWaker {
    fn hang() -> io::Result<Self> {
        let wake = Arc::new(ThreadWaker::new()?);
        let (readiness, for_hush) = (DeviceWaitSource::woken(Arc::clone(&wake)), Arc::clone(&wake));
        Ok(Self { wake, readiness, hush: Box::new(move || for_hush.clear()) })
    }
}
