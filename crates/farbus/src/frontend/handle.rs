//! Steers an attachment from any thread, whichever front end it has.
//!
//! | operation | requires | otherwise |
//! |---|---|---|
//! | [`AttachmentHandle::end`] | nothing | |
//! | [`AttachmentHandle::cut`] | a cutter: something that its users may wait for | the same as `end`, which does not wait then |
//! | [`AttachmentHandle::hold`], [`AttachmentHandle::follow`], [`AttachmentHandle::depart`], [`AttachmentHandle::resume`] | a hold handle: a virtual machine or an NBD client may move | refused |
//! | [`AttachmentHandle::migrate`], [`AttachmentHandle::may_migrate`] | a hold handle or a session | refused |
//! | [`AttachmentHandle::discard`] | a session | refused |
//! | [`AttachmentHandle::pause`] | a session through the module `pause` | refused |
//! | [`AttachmentHandle::swap`] | a disk of a session | `None` |
//! | [`AttachmentHandle::usb_swap`] | a USB device that is attached as one: the kernel's, a virtual machine's | `None` |
//! | [`AttachmentHandle::save`] | an engine that can be saved | refused |

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::frontend::hold::HoldGrant;
use farbus_control::attachment::MigrationStatus;
use farbus_control::session::Readings;
use farbus_control::swap::SwapStatus;
use farbus_io_net::saving::{PendingSaveReply, SaveRequester, SavedAttachment};
use farbus_io_net::trust::Fingerprint;

use super::StopSignal;
use super::migrations::{LastMigration, ObservedMigration};
use crate::frontend::AttachmentEnd;
use crate::frontend::drivers::PortDriverLookup;
use crate::frontend::hold::{HoldHandle, QUIET_WITHIN};
use crate::frontend::open_users::{ConnectedProcesses, DiskOwnerAction, OpenUsers};
use crate::frontend::usb_swap::{IS_SWAPPING, TWIN_IS_HERE, UsbSwap};
use crate::importer::disk_swap::DiskSwap;
use crate::importer::port::DeviceCutter;
use crate::importer::session::status::{DiscardedRequests, SessionStatus};
use crate::link::meters::EngineMeters;

/// Why an attachment refuses what its owner asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentRefusal {
    /// It cannot be held: no virtual machine and no NBD client uses it.
    NoGate,
    /// It has no session, so no other host can continue with it.
    NoSession,
    /// It has no session, and therefore no modules that could pause it.
    NoModules,
    /// A replacement process cannot continue with it.
    NotSaved,
    /// Programs have it open.
    InUse(String),
    /// The refusal of its engine or its session.
    Engine(&'static str),
}

impl fmt::Display for AttachmentRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttachmentRefusal::NoGate => "no virtual machine is lent this device (--via redir or nbd)",
            AttachmentRefusal::NoSession => {
                "it has no session that could be handed over (a paired host, or --grace SECONDS)"
            }
            AttachmentRefusal::NoModules => "it has no session, and so no modules (farbus attach --module pause)",
            AttachmentRefusal::NotSaved => "no other process can go on with it",
            AttachmentRefusal::InUse(why) => why,
            AttachmentRefusal::Engine(why) => why,
        })
    }
}

impl std::error::Error for AttachmentRefusal {}

/// When a device migrates to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationTiming {
    /// It is held, and migrates once its local user (a virtual machine, NBD clients) has left.
    AfterItsUser,
    /// At once: it has no local user.
    AtOnce,
    /// As soon as no request is under way; its local user is not asked.
    WhenQuiet,
}

/// Steers an attachment. Each attachment has one handle; its clones steer the same attachment.
#[derive(Clone)]
pub struct AttachmentHandle {
    stop: StopSignal,
    cutter: Option<DeviceCutter>,
    hold_handle: Option<HoldHandle>,
    session: Option<SessionStatus>,
    save_requester: Option<SaveRequester<SavedAttachment>>,
    meters: Option<Arc<EngineMeters>>,
    users: Option<OpenUsers>,
    connected: Option<ConnectedProcesses>,
    drivers: Option<PortDriverLookup>,
    swap: Option<DiskSwap>,
    usb_swap: Option<UsbSwap>,
    migrations: LastMigration,
}

impl AttachmentHandle {
    /// A handle that ends its attachment by `stop` and refuses every other operation that no `*_by` method enables.
    pub fn new(stop: StopSignal) -> Self {
        Self {
            stop,
            cutter: None,
            hold_handle: None,
            session: None,
            save_requester: None,
            meters: None,
            users: None,
            connected: None,
            drivers: None,
            swap: None,
            usb_swap: None,
            migrations: LastMigration::default(),
        }
    }

    /// Enables [`AttachmentHandle::cut`], by `cutter`.
    #[must_use]
    pub fn cutting_by(self, cutter: DeviceCutter) -> Self {
        Self { cutter: Some(cutter), ..self }
    }

    /// Enables [`AttachmentHandle::hold`], by `hold_handle`, if there is one.
    #[must_use]
    pub fn holding_by(self, hold_handle: Option<HoldHandle>) -> Self {
        Self { hold_handle, ..self }
    }

    /// Enables what a session can do, if its device is in one.
    #[must_use]
    pub fn in_session(self, session: Option<SessionStatus>) -> Self {
        Self { session, ..self }
    }

    /// Enables [`AttachmentHandle::save`], by `save_requester`, if a replacement process can continue with the
    /// attachment.
    #[must_use]
    pub fn saving_by(self, save_requester: Option<SaveRequester<SavedAttachment>>) -> Self {
        Self { save_requester, ..self }
    }

    /// Enables [`AttachmentHandle::readings`], from `meters`.
    #[must_use]
    pub fn metered_by(self, meters: Arc<EngineMeters>) -> Self {
        Self { meters: Some(meters), ..self }
    }

    /// Enables [`AttachmentHandle::open_count`], from `users`.
    #[must_use]
    pub fn used_by(self, users: OpenUsers) -> Self {
        Self { users: Some(users), ..self }
    }

    /// Enables [`AttachmentHandle::processes`], from `connected`.
    #[must_use]
    pub fn connected_to(self, connected: ConnectedProcesses) -> Self {
        Self { connected: Some(connected), ..self }
    }

    /// Enables [`AttachmentHandle::drivers`], from `drivers`.
    #[must_use]
    pub fn driven_by(self, drivers: PortDriverLookup) -> Self {
        Self { drivers: Some(drivers), ..self }
    }

    /// Enables [`AttachmentHandle::swap`], by `swap`, if there is one.
    #[must_use]
    pub fn swapping_by(self, swap: Option<DiskSwap>) -> Self {
        Self { swap, ..self }
    }

    /// Enables [`AttachmentHandle::usb_swap`], by `swap`.
    #[must_use]
    pub fn swapping_usb_by(self, swap: UsbSwap) -> Self {
        Self { usb_swap: Some(swap), ..self }
    }

    /// Exchanges the USB device for its twin; `None` if it cannot be.
    pub fn usb_swap(&self) -> Option<&UsbSwap> {
        self.usb_swap.as_ref()
    }

    /// The twin that has the place of the attachment's USB device.
    pub fn replaced_by(&self) -> Option<String> {
        self.usb_swap.as_ref().and_then(UsbSwap::replaced_by)
    }

    /// Refuses what only the attachment's own device can do, while a twin has its place or takes it.
    fn check_own(&self) -> Result<(), AttachmentRefusal> {
        match &self.usb_swap {
            Some(swap) if swap.replaced_by().is_some() => Err(AttachmentRefusal::Engine(TWIN_IS_HERE)),
            Some(swap) if swap.is_running() => Err(AttachmentRefusal::Engine(IS_SWAPPING)),
            _ => Ok(()),
        }
    }

    /// Exchanges the disk for another one; `None` if it cannot be.
    pub fn swap(&self) -> Option<&DiskSwap> {
        self.swap.as_ref()
    }

    /// Tells which drivers of this machine's kernel took the device; `None` if it is not plugged into the kernel.
    pub fn drivers(&self) -> Option<&PortDriverLookup> {
        self.drivers.as_ref()
    }

    /// Ends the attachment in good order, soon: written data becomes durable, the device is given back.
    pub fn end(&self) {
        self.stop.end();
    }

    /// Ends it without waiting for its device: every request to the device fails, now and from now on.
    pub fn cut(&self) {
        match &self.cutter {
            Some(cutter) => cutter.cut(),
            None => self.end(),
        }
    }

    /// Holds the device: returns when no request is under way and its user has received all answers, at most
    /// [`QUIET_WITHIN`](crate::frontend::hold::QUIET_WITHIN) later.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: the device continues as before.
    pub fn hold(&self) -> Result<(), AttachmentRefusal> {
        let hold_handle = self.hold_handle.as_ref().ok_or(AttachmentRefusal::NoGate)?;
        hold_handle.hold().map(drop).map_err(AttachmentRefusal::Engine)
    }

    /// Lets the device serve its local user, a virtual machine or NBD clients, as before, and migrate to the host with
    /// this key as soon as that user has left, with its open requests. Returns once the user has read what it was sent
    /// before, at most [`QUIET_WITHIN`](crate::frontend::hold::QUIET_WITHIN) later.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: the device continues as before.
    pub fn follow(&self, successor: Fingerprint) -> Result<(), AttachmentRefusal> {
        let hold_handle = self.hold_handle.as_ref().ok_or(AttachmentRefusal::NoGate)?;
        hold_handle.follow(*successor.as_bytes()).map(drop).map_err(AttachmentRefusal::Engine)
    }

    /// Lets a device that follows the virtual machine of this process go now: the machine has stopped for good, though
    /// its process is still connected.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it goes when its user's connection ends, if it follows one.
    pub fn depart(&self, process: u32) -> Result<(), AttachmentRefusal> {
        let hold_handle = self.hold_handle.as_ref().ok_or(AttachmentRefusal::NoGate)?;
        hold_handle.depart(process).map(drop).map_err(AttachmentRefusal::Engine)
    }

    /// Releases a device that is held or follows its user; its requests continue here.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it is neither.
    pub fn resume(&self) -> Result<(), AttachmentRefusal> {
        let hold_handle = self.hold_handle.as_ref().ok_or(AttachmentRefusal::NoGate)?;
        hold_handle.go_on().map_err(AttachmentRefusal::Engine)?;
        self.migrations.resume();
        Ok(())
    }

    /// Migrates the device to the host with this key: after its local user has left if it has one that may move along,
    /// otherwise at once or when no request is under way.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it stays here.
    pub fn migrate(&self, successor: Fingerprint) -> Result<MigrationTiming, AttachmentRefusal> {
        self.may(DiskOwnerAction::Migrate)?;
        self.check_own()?;
        let successor = *successor.as_bytes();
        if let Some(hold_handle) = &self.hold_handle {
            return match hold_handle.hand_over(successor) {
                Ok(HoldGrant::ToUser) => Ok(MigrationTiming::AfterItsUser),
                Ok(HoldGrant::AtOnce) => Ok(MigrationTiming::AtOnce),
                Err(why) => Err(AttachmentRefusal::Engine(why)),
            };
        }
        let session = self.session().ok_or(AttachmentRefusal::NoSession)?;
        session.migrate(successor).map(|()| MigrationTiming::WhenQuiet).map_err(AttachmentRefusal::Engine)
    }

    /// Whether [`AttachmentHandle::migrate`] would be accepted now; changes nothing. Returns whether the device would
    /// be held then until its local user has left, so that [`AttachmentHandle::resume`] can take that back.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it would stay here.
    pub fn may_migrate(&self) -> Result<bool, AttachmentRefusal> {
        self.may(DiskOwnerAction::Migrate)?;
        self.check_own()?;
        let session = self.session().ok_or(AttachmentRefusal::NoSession)?;
        session.may_migrate().map_err(AttachmentRefusal::Engine)?;
        let Some(hold_handle) = &self.hold_handle else { return Ok(false) };
        if hold_handle.is_shut() {
            return Err(AttachmentRefusal::Engine(
                "it is held already, or follows its virtual machine (farbus resume ends that)",
            ));
        }
        Ok(self.open_count().is_some_and(|count| count > 0) || !self.processes().is_empty())
    }

    /// Migrates the device to the host with this key at once, also while it is open: its user's requests fail, a
    /// USB device is reset, and the attachment ends.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it stays here.
    pub fn discard(&self, successor: Fingerprint) -> Result<DiscardedRequests, AttachmentRefusal> {
        self.check_own()?;
        let session = self.session().ok_or(AttachmentRefusal::NoSession)?;
        session.discard(*successor.as_bytes(), QUIET_WITHIN).map_err(AttachmentRefusal::Engine)
    }

    /// What the attachment shows of a migration.
    fn shown(&self) -> ObservedMigration {
        let session = self.session();
        ObservedMigration {
            is_moving: self.is_moving(),
            untaken: session.as_ref().map_or(0, SessionStatus::untaken),
            hold: session.map(|session| session.hold()).unwrap_or_default(),
        }
    }

    /// Orders the device, which its owner calls `device`, to migrate to the host that its owner calls `to`, by `order`:
    /// [`AttachmentHandle::migrate`], [`AttachmentHandle::follow`] or [`AttachmentHandle::discard`]. The status shows what becomes of it.
    ///
    /// # Errors
    /// Those of `order`.
    pub(crate) fn noting<T>(
        &self,
        device: &str,
        to: &str,
        order: impl FnOnce(&Self) -> Result<T, AttachmentRefusal>,
    ) -> Result<T, AttachmentRefusal> {
        let is_noted = self.migrations.begin(device, to, self.shown());
        let answer = order(self);
        if is_noted {
            self.migrations.answered(answer.as_ref().map(|_| ()).map_err(|why| why as &dyn fmt::Display));
        }
        answer
    }

    /// The last migration that its owner ordered.
    pub(crate) fn migration(&self) -> Option<MigrationStatus> {
        self.migrations.status(self.shown())
    }

    /// The last migration of an attachment that has ended.
    pub fn migration_at_end(&self, ended: &AttachmentEnd) -> Option<MigrationStatus> {
        self.migrations.status_at_end(ended)
    }

    /// The status of the running or last swap of its disk or device.
    pub(crate) fn swap_status(&self) -> Option<SwapStatus> {
        self.usb_swap.as_ref().and_then(UsbSwap::status).or_else(|| self.swap.as_ref().and_then(DiskSwap::status))
    }

    /// Stops the flow of data through the device's modules, or lets it continue.
    ///
    /// # Errors
    /// [`AttachmentRefusal`]: it does not go through the module `pause`.
    pub fn pause(&self, is_paused: bool) -> Result<(), AttachmentRefusal> {
        let session = self.session().ok_or(AttachmentRefusal::NoModules)?;
        session.pause(is_paused).map_err(AttachmentRefusal::Engine)
    }

    /// Asks the attachment for a snapshot for a replacement process. The attachment waits until `go` of the result is
    /// answered.
    ///
    /// # Errors
    /// [`AttachmentRefusal::NotSaved`].
    pub fn save(&self) -> Result<PendingSaveReply<SavedAttachment>, AttachmentRefusal> {
        self.save_requester.as_ref().map(SaveRequester::ask).ok_or(AttachmentRefusal::NotSaved)
    }

    /// The medium of this machine that its disk was moved to, or the passage to a broker that may connect to the other
    /// host, if it was moved: a snapshot needs it, too.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn medium(&self) -> std::io::Result<Option<OwnedFd>> {
        self.swap.as_ref().map_or(Ok(None), DiskSwap::descriptor)
    }

    /// Whether its disk or device is being exchanged.
    pub fn is_swapping(&self) -> bool {
        self.swap.as_ref().is_some_and(DiskSwap::is_running) || self.usb_swap.as_ref().is_some_and(UsbSwap::is_running)
    }

    /// Whether [`AttachmentHandle::save`] can work.
    pub fn can_save(&self) -> bool {
        self.save_requester.is_some() && self.replaced_by().is_none()
    }

    /// Whether the device is held, or migrating to another host, now or as soon as its user leaves.
    pub fn is_moving(&self) -> bool {
        self.hold_handle.as_ref().is_some_and(HoldHandle::is_shut)
            || self.session().is_some_and(|session| !session.is_ours())
    }

    /// How long the device is held while it migrates, if it is in a session.
    pub(crate) fn longest_hold(&self) -> Option<Duration> {
        self.session().map(|session| session.hold())
    }

    /// What the status says of a device that is held, or migrating to or from this host.
    pub(crate) fn move_state(&self) -> Option<&'static str> {
        let is_handed_over = self.session().is_some_and(|session| !session.is_ours());
        let is_expected = self.session().is_some_and(|session| session.is_expected());
        let is_following = self.hold_handle.as_ref().is_some_and(HoldHandle::is_following);
        match self.is_moving() {
            _ if is_following => Some("following"),
            _ if is_expected => Some("waiting"),
            _ if is_handed_over => Some("handed over"),
            true => Some("held"),
            false => None,
        }
    }

    /// Whether `act` loses no data of programs that have the disk open.
    ///
    /// # Errors
    /// [`AttachmentRefusal::InUse`]: data that these programs have not written out would be lost.
    pub fn may(&self, act: DiskOwnerAction) -> Result<(), AttachmentRefusal> {
        self.users
            .as_ref()
            .and_then(|users| users.refusal(act))
            .map_or(Ok(()), |why| Err(AttachmentRefusal::InUse(why)))
    }

    /// The status of the session that serves it now, if there is one.
    pub fn session(&self) -> Option<SessionStatus> {
        match &self.usb_swap {
            Some(swap) => swap.session(),
            None => self.session.clone(),
        }
    }

    /// What has passed through so far, if it is counted.
    pub fn readings(&self) -> Option<Readings> {
        self.meters.as_ref().map(|meters| meters.read())
    }

    /// How many programs have it open, if they are counted.
    pub fn open_count(&self) -> Option<usize> {
        self.users.as_ref().map(OpenUsers::count)
    }

    /// The processes that are connected to it, if it is a socket.
    pub fn processes(&self) -> Vec<u32> {
        self.connected.as_ref().map(ConnectedProcesses::processes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Fingerprint {
        Fingerprint::from_bytes([7; 32])
    }

    #[test]
    fn operations_that_an_attachment_lacks_are_refused() {
        let stop = StopSignal::new().unwrap();
        let handle = AttachmentHandle::new(stop.clone());
        assert_eq!((handle.hold(), handle.resume()), (Err(AttachmentRefusal::NoGate), Err(AttachmentRefusal::NoGate)));
        assert_eq!(handle.follow(key()), Err(AttachmentRefusal::NoGate));
        assert_eq!(handle.depart(1), Err(AttachmentRefusal::NoGate));
        assert!(handle.processes().is_empty());
        assert_eq!(handle.migrate(key()), Err(AttachmentRefusal::NoSession));
        assert_eq!(handle.pause(true), Err(AttachmentRefusal::NoModules));
        assert_eq!(handle.save().err(), Some(AttachmentRefusal::NotSaved));
        assert!(!handle.can_save() && !handle.is_moving() && !stop.was_asked());
        handle.cut();
        assert!(stop.was_asked(), "where nothing is waited for, to cut is to end");
    }

    #[test]
    fn a_device_that_is_open_is_not_detached_and_migrates_only_if_its_users_are_waited_for() {
        let users = OpenUsers::new(|| 2, "a client is there", "clients are there");
        let handle = AttachmentHandle::new(StopSignal::new().unwrap()).used_by(users.clone());
        assert!(
            matches!(handle.may(DiskOwnerAction::Detach), Err(AttachmentRefusal::InUse(why)) if why.contains("2 clients are there"))
        );
        assert!(handle.may(DiskOwnerAction::Migrate).is_err());
        let handle = handle.used_by(users.waited_for());
        assert!(handle.may(DiskOwnerAction::Detach).is_err());
        assert_eq!((handle.may(DiskOwnerAction::Migrate), handle.open_count()), (Ok(()), Some(2)));
    }

    #[test]
    fn a_device_in_a_session_alone_migrates_when_it_is_quiet() {
        let handle = AttachmentHandle::new(StopSignal::new().unwrap()).in_session(Some(SessionStatus::default()));
        assert_eq!((handle.may_migrate(), handle.is_moving()), (Ok(false), false));
        assert_eq!(handle.migrate(key()), Ok(MigrationTiming::WhenQuiet));
        assert!(handle.is_moving());
        assert_eq!(handle.may_migrate(), Err(AttachmentRefusal::Engine("it is being handed over already")));
        assert_eq!(handle.migrate(key()), Err(AttachmentRefusal::Engine("it is being handed over already")));
    }
}
