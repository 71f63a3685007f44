//! Steers an attachment from any thread, whichever front end it has.
//!
//! | operation | requires | otherwise |
//! |---|---|---|
//! | [`Handle::end`] | nothing | |
//! | [`Handle::cut`] | a cutter: something that its users may wait for | the same as `end`, which does not wait then |
//! | [`Handle::hold`], [`Handle::follow`], [`Handle::depart`], [`Handle::resume`] | a hold handle: a virtual machine or an NBD client may move | refused |
//! | [`Handle::migrate`], [`Handle::may_migrate`] | a hold handle or a session | refused |
//! | [`Handle::discard`] | a session | refused |
//! | [`Handle::pause`] | a session through the module `pause` | refused |
//! | [`Handle::swap`] | a disk of a session | `None` |
//! | [`Handle::usb_swap`] | a USB device that is attached as one: the kernel's, a virtual machine's | `None` |
//! | [`Handle::save`] | an engine that can be saved | refused |

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::frontend::hold::Granted;
use farbus_control::attachment::MigrationStatus;
use farbus_control::session::Readings;
use farbus_control::swap::SwapStatus;
use farbus_io_net::saving::{Asked, SaveRequester, Saved};
use farbus_io_net::trust::Fingerprint;

use super::StopSignal;
use super::migrations::{Migrations, Shown};
use crate::frontend::Ended;
use crate::frontend::drivers::Drivers;
use crate::frontend::hold::{HoldHandle, QUIET_WITHIN};
use crate::frontend::open_users::{Act, Connected, OpenUsers};
use crate::frontend::usb_swap::{IS_SWAPPING, TWIN_IS_HERE, UsbSwap};
use crate::importer::disk_swap::DiskSwap;
use crate::importer::port::Cutter;
use crate::importer::session::status::{Discarded, SessionStatus};
use crate::link::meters::Meters;

/// Why an attachment refuses what its owner asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
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

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::NoGate => "no virtual machine is lent this device (--via redir or nbd)",
            Refused::NoSession => "it has no session that could be handed over (a paired host, or --grace SECONDS)",
            Refused::NoModules => "it has no session, and so no modules (farbus attach --module pause)",
            Refused::NotSaved => "no other process can go on with it",
            Refused::InUse(why) => why,
            Refused::Engine(why) => why,
        })
    }
}

impl std::error::Error for Refused {}

/// When a device migrates to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// It is held, and migrates once its local user (a virtual machine, NBD clients) has left.
    AfterItsUser,
    /// At once: it has no local user.
    AtOnce,
    /// As soon as no request is under way; its local user is not asked.
    WhenQuiet,
}

/// Steers an attachment. Each attachment has one handle; its clones steer the same attachment.
#[derive(Clone)]
pub struct Handle {
    stop: StopSignal,
    cutter: Option<Cutter>,
    hold_handle: Option<HoldHandle>,
    session: Option<SessionStatus>,
    save_requester: Option<SaveRequester<Saved>>,
    meters: Option<Arc<Meters>>,
    users: Option<OpenUsers>,
    connected: Option<Connected>,
    drivers: Option<Drivers>,
    swap: Option<DiskSwap>,
    usb_swap: Option<UsbSwap>,
    migrations: Migrations,
}

impl Handle {
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
            migrations: Migrations::default(),
        }
    }

    /// Enables [`Handle::cut`], by `cutter`.
    #[must_use]
    pub fn cutting_by(self, cutter: Cutter) -> Self {
        Self { cutter: Some(cutter), ..self }
    }

    /// Enables [`Handle::hold`], by `hold_handle`, if there is one.
    #[must_use]
    pub fn holding_by(self, hold_handle: Option<HoldHandle>) -> Self {
        Self { hold_handle, ..self }
    }

    /// Enables what a session can do, if its device is in one.
    #[must_use]
    pub fn in_session(self, session: Option<SessionStatus>) -> Self {
        Self { session, ..self }
    }

    /// Enables [`Handle::save`], by `save_requester`, if a replacement process can continue with the attachment.
    #[must_use]
    pub fn saving_by(self, save_requester: Option<SaveRequester<Saved>>) -> Self {
        Self { save_requester, ..self }
    }

    /// Enables [`Handle::readings`], from `meters`.
    #[must_use]
    pub fn metered_by(self, meters: Arc<Meters>) -> Self {
        Self { meters: Some(meters), ..self }
    }

    /// Enables [`Handle::open_count`], from `users`.
    #[must_use]
    pub fn used_by(self, users: OpenUsers) -> Self {
        Self { users: Some(users), ..self }
    }

    /// Enables [`Handle::processes`], from `connected`.
    #[must_use]
    pub fn connected_to(self, connected: Connected) -> Self {
        Self { connected: Some(connected), ..self }
    }

    /// Enables [`Handle::drivers`], from `drivers`.
    #[must_use]
    pub fn driven_by(self, drivers: Drivers) -> Self {
        Self { drivers: Some(drivers), ..self }
    }

    /// Enables [`Handle::swap`], by `swap`, if there is one.
    #[must_use]
    pub fn swapping_by(self, swap: Option<DiskSwap>) -> Self {
        Self { swap, ..self }
    }

    /// Enables [`Handle::usb_swap`], by `swap`.
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
    fn check_own(&self) -> Result<(), Refused> {
        match &self.usb_swap {
            Some(swap) if swap.replaced_by().is_some() => Err(Refused::Engine(TWIN_IS_HERE)),
            Some(swap) if swap.is_running() => Err(Refused::Engine(IS_SWAPPING)),
            _ => Ok(()),
        }
    }

    /// Exchanges the disk for another one; `None` if it cannot be.
    pub fn swap(&self) -> Option<&DiskSwap> {
        self.swap.as_ref()
    }

    /// Tells which drivers of this machine's kernel took the device; `None` if it is not plugged into the kernel.
    pub fn drivers(&self) -> Option<&Drivers> {
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
    /// [`Refused`]: the device continues as before.
    pub fn hold(&self) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.hold().map(drop).map_err(Refused::Engine)
    }

    /// Lets the device serve its local user, a virtual machine or NBD clients, as before, and migrate to the host with
    /// this key as soon as that user has left, with its open requests. Returns once the user has read what it was sent
    /// before, at most [`QUIET_WITHIN`](crate::frontend::hold::QUIET_WITHIN) later.
    ///
    /// # Errors
    /// [`Refused`]: the device continues as before.
    pub fn follow(&self, successor: Fingerprint) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.follow(*successor.as_bytes()).map(drop).map_err(Refused::Engine)
    }

    /// Lets a device that follows the virtual machine of this process go now: the machine has stopped for good, though
    /// its process is still connected.
    ///
    /// # Errors
    /// [`Refused`]: it goes when its user's connection ends, if it follows one.
    pub fn depart(&self, process: u32) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.depart(process).map(drop).map_err(Refused::Engine)
    }

    /// Releases a device that is held or follows its user; its requests continue here.
    ///
    /// # Errors
    /// [`Refused`]: it is neither.
    pub fn resume(&self) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.go_on().map_err(Refused::Engine)?;
        self.migrations.resume();
        Ok(())
    }

    /// Migrates the device to the host with this key: after its local user has left if it has one that may move along,
    /// otherwise at once or when no request is under way.
    ///
    /// # Errors
    /// [`Refused`]: it stays here.
    pub fn migrate(&self, successor: Fingerprint) -> Result<Migration, Refused> {
        self.may(Act::Migrate)?;
        self.check_own()?;
        let successor = *successor.as_bytes();
        if let Some(hold_handle) = &self.hold_handle {
            return match hold_handle.hand_over(successor) {
                Ok(Granted::ToUser) => Ok(Migration::AfterItsUser),
                Ok(Granted::AtOnce) => Ok(Migration::AtOnce),
                Err(why) => Err(Refused::Engine(why)),
            };
        }
        let session = self.session().ok_or(Refused::NoSession)?;
        session.migrate(successor).map(|()| Migration::WhenQuiet).map_err(Refused::Engine)
    }

    /// Whether [`Handle::migrate`] would be accepted now; changes nothing. Returns whether the device would be held
    /// then until its local user has left, so that [`Handle::resume`] can take that back.
    ///
    /// # Errors
    /// [`Refused`]: it would stay here.
    pub fn may_migrate(&self) -> Result<bool, Refused> {
        self.may(Act::Migrate)?;
        self.check_own()?;
        let session = self.session().ok_or(Refused::NoSession)?;
        session.may_migrate().map_err(Refused::Engine)?;
        let Some(hold_handle) = &self.hold_handle else { return Ok(false) };
        if hold_handle.is_shut() {
            return Err(Refused::Engine(
                "it is held already, or follows its virtual machine (farbus resume ends that)",
            ));
        }
        Ok(self.open_count().is_some_and(|count| count > 0) || !self.processes().is_empty())
    }

    /// Migrates the device to the host with this key at once, also while it is open: its user's requests fail, a
    /// USB device is reset, and the attachment ends.
    ///
    /// # Errors
    /// [`Refused`]: it stays here.
    pub fn discard(&self, successor: Fingerprint) -> Result<Discarded, Refused> {
        self.check_own()?;
        let session = self.session().ok_or(Refused::NoSession)?;
        session.discard(*successor.as_bytes(), QUIET_WITHIN).map_err(Refused::Engine)
    }

    /// What the attachment shows of a migration.
    fn shown(&self) -> Shown {
        let session = self.session();
        Shown {
            is_moving: self.is_moving(),
            untaken: session.as_ref().map_or(0, SessionStatus::untaken),
            hold: session.map(|session| session.hold()).unwrap_or_default(),
        }
    }

    /// Orders the device, which its owner calls `device`, to migrate to the host that its owner calls `to`, by `order`:
    /// [`Handle::migrate`], [`Handle::follow`] or [`Handle::discard`]. The status shows what becomes of it.
    ///
    /// # Errors
    /// Those of `order`.
    pub(crate) fn noting<T>(
        &self,
        device: &str,
        to: &str,
        order: impl FnOnce(&Self) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
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
    pub fn migration_at_end(&self, ended: &Ended) -> Option<MigrationStatus> {
        self.migrations.status_at_end(ended)
    }

    /// The status of the running or last swap of its disk or device.
    pub(crate) fn swap_status(&self) -> Option<SwapStatus> {
        self.usb_swap.as_ref().and_then(UsbSwap::status).or_else(|| self.swap.as_ref().and_then(DiskSwap::status))
    }

    /// Stops the flow of data through the device's modules, or lets it continue.
    ///
    /// # Errors
    /// [`Refused`]: it does not go through the module `pause`.
    pub fn pause(&self, is_paused: bool) -> Result<(), Refused> {
        let session = self.session().ok_or(Refused::NoModules)?;
        session.pause(is_paused).map_err(Refused::Engine)
    }

    /// Asks the attachment for a snapshot for a replacement process. The attachment waits until `go` of the result is
    /// answered.
    ///
    /// # Errors
    /// [`Refused::NotSaved`].
    pub fn save(&self) -> Result<Asked<Saved>, Refused> {
        self.save_requester.as_ref().map(SaveRequester::ask).ok_or(Refused::NotSaved)
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

    /// Whether [`Handle::save`] can work.
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
    /// [`Refused::InUse`]: data that these programs have not written out would be lost.
    pub fn may(&self, act: Act) -> Result<(), Refused> {
        self.users.as_ref().and_then(|users| users.refusal(act)).map_or(Ok(()), |why| Err(Refused::InUse(why)))
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
        self.connected.as_ref().map(Connected::processes).unwrap_or_default()
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
        let handle = Handle::new(stop.clone());
        assert_eq!((handle.hold(), handle.resume()), (Err(Refused::NoGate), Err(Refused::NoGate)));
        assert_eq!(handle.follow(key()), Err(Refused::NoGate));
        assert_eq!(handle.depart(1), Err(Refused::NoGate));
        assert!(handle.processes().is_empty());
        assert_eq!(handle.migrate(key()), Err(Refused::NoSession));
        assert_eq!(handle.pause(true), Err(Refused::NoModules));
        assert_eq!(handle.save().err(), Some(Refused::NotSaved));
        assert!(!handle.can_save() && !handle.is_moving() && !stop.was_asked());
        handle.cut();
        assert!(stop.was_asked(), "where nothing is waited for, to cut is to end");
    }

    #[test]
    fn a_device_that_is_open_is_not_detached_and_migrates_only_if_its_users_are_waited_for() {
        let users = OpenUsers::new(|| 2, "a client is there", "clients are there");
        let handle = Handle::new(StopSignal::new().unwrap()).used_by(users.clone());
        assert!(matches!(handle.may(Act::Detach), Err(Refused::InUse(why)) if why.contains("2 clients are there")));
        assert!(handle.may(Act::Migrate).is_err());
        let handle = handle.used_by(users.waited_for());
        assert!(handle.may(Act::Detach).is_err());
        assert_eq!((handle.may(Act::Migrate), handle.open_count()), (Ok(()), Some(2)));
    }

    #[test]
    fn a_device_in_a_session_alone_migrates_when_it_is_quiet() {
        let handle = Handle::new(StopSignal::new().unwrap()).in_session(Some(SessionStatus::default()));
        assert_eq!((handle.may_migrate(), handle.is_moving()), (Ok(false), false));
        assert_eq!(handle.migrate(key()), Ok(Migration::WhenQuiet));
        assert!(handle.is_moving());
        assert_eq!(handle.may_migrate(), Err(Refused::Engine("it is being handed over already")));
        assert_eq!(handle.migrate(key()), Err(Refused::Engine("it is being handed over already")));
    }
}
