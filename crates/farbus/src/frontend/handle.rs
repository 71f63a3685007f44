//! Steers an attachment from any thread, whichever front end it has.
//!
//! | operation | what has to be there | otherwise |
//! |---|---|---|
//! | [`Handle::end`] | nothing | |
//! | [`Handle::cut`] | something that its users may wait for | the same as `end`, which waits for nothing then |
//! | [`Handle::hold`], [`Handle::resume`] | a gate: a virtual machine or an NBD client may move | refused |
//! | [`Handle::migrate`] | a gate or a session | refused |
//! | [`Handle::pause`] | a session through the module `pause` | refused |
//! | [`Handle::save`] | an engine that can be written down | refused |

use std::fmt;
use std::sync::Arc;

use farbus_io::saving::{Asked, SaveRequester, Saved};
use farbus_io::trust::Fingerprint;

use super::StopSignal;
use crate::frontend::hold::{Granted, HoldHandle};
use crate::frontend::open_users::{Act, OpenUsers};
use crate::importer::port::Cutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::{Meters, Readings};

/// Why an attachment does not do what its owner asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing can hold it still: no virtual machine and no NBD client uses it.
    NoGate,
    /// It has no session, so no other host can go on with it.
    NoSession,
    /// It has no session, and so no modules that could pause it.
    NoModules,
    /// No other process can go on with it.
    NotSaved,
    /// Programs have it open.
    InUse(String),
    /// What its engine or its session says.
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

/// When a device leaves for another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// Held still, it leaves once whoever uses it here has left.
    AfterItsUser,
    /// Nobody uses it here: at once.
    AtOnce,
    /// As soon as nothing is under way; whoever uses it here is not asked.
    WhenQuiet,
}

/// Steers an attachment. Each attachment has one; clones steer the same attachment.
#[derive(Clone)]
pub struct Handle {
    stop: StopSignal,
    cutter: Option<Cutter>,
    hold_handle: Option<HoldHandle>,
    session: Option<SessionStatus>,
    save_requester: Option<SaveRequester<Saved>>,
    meters: Option<Arc<Meters>>,
    users: Option<OpenUsers>,
}

impl Handle {
    /// One that ends its attachment by `stop`, and refuses all else until told how.
    pub fn new(stop: StopSignal) -> Self {
        Self { stop, cutter: None, hold_handle: None, session: None, save_requester: None, meters: None, users: None }
    }

    /// Cuts by `cutter`.
    #[must_use]
    pub fn cutting_by(self, cutter: Cutter) -> Self {
        Self { cutter: Some(cutter), ..self }
    }

    /// Holds the device still by `hold_handle`, if there is one.
    #[must_use]
    pub fn holding_by(self, hold_handle: Option<HoldHandle>) -> Self {
        Self { hold_handle, ..self }
    }

    /// Its device is in this session, if it is in one.
    #[must_use]
    pub fn in_session(self, session: Option<SessionStatus>) -> Self {
        Self { session, ..self }
    }

    /// Saves the attachment by `save_requester`, if another process can go on with it.
    #[must_use]
    pub fn saving_by(self, save_requester: Option<SaveRequester<Saved>>) -> Self {
        Self { save_requester, ..self }
    }

    /// What passes through it is counted there.
    #[must_use]
    pub fn metered_by(self, meters: Arc<Meters>) -> Self {
        Self { meters: Some(meters), ..self }
    }

    /// Who has it open is counted there.
    #[must_use]
    pub fn used_by(self, users: OpenUsers) -> Self {
        Self { users: Some(users), ..self }
    }

    /// Ends the attachment in good order, soon: what was written becomes durable, the device is given back.
    pub fn end(&self) {
        self.stop.end();
    }

    /// Ends it without waiting for its device: whatever is asked of that fails, now and from now on.
    pub fn cut(&self) {
        match &self.cutter {
            Some(cutter) => cutter.cut(),
            None => self.end(),
        }
    }

    /// Holds the device still: returns when nothing is under way and its user has all answers, at most
    /// [`QUIET_WITHIN`](crate::frontend::hold::QUIET_WITHIN) later.
    ///
    /// # Errors
    /// [`Refused`]: it goes on as before.
    pub fn hold(&self) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.hold().map(drop).map_err(Refused::Engine)
    }

    /// Lets a device that is held still go on here.
    ///
    /// # Errors
    /// [`Refused`]: it is not held.
    pub fn resume(&self) -> Result<(), Refused> {
        let hold_handle = self.hold_handle.as_ref().ok_or(Refused::NoGate)?;
        hold_handle.go_on().map(drop).map_err(Refused::Engine)
    }

    /// Hands the device over to the host with this key: behind its user, where one may have to move along, else at
    /// once.
    ///
    /// # Errors
    /// [`Refused`]: it stays here.
    pub fn migrate(&self, successor: Fingerprint) -> Result<Migration, Refused> {
        self.may(Act::Migrate)?;
        let successor = *successor.as_bytes();
        if let Some(hold_handle) = &self.hold_handle {
            return match hold_handle.hand_over(successor) {
                Ok(Granted::ToUser) => Ok(Migration::AfterItsUser),
                Ok(Granted::AtOnce) => Ok(Migration::AtOnce),
                Err(why) => Err(Refused::Engine(why)),
            };
        }
        let session = self.session.as_ref().ok_or(Refused::NoSession)?;
        session.migrate(successor).map(|()| Migration::WhenQuiet).map_err(Refused::Engine)
    }

    /// Lets nothing pass the device's modules, or all again.
    ///
    /// # Errors
    /// [`Refused`]: it does not go through the module `pause`.
    pub fn pause(&self, is_paused: bool) -> Result<(), Refused> {
        let session = self.session.as_ref().ok_or(Refused::NoModules)?;
        session.pause(is_paused).map_err(Refused::Engine)
    }

    /// Asks the attachment to write itself down for another process. It stays as it is until the answer comes to `go`.
    ///
    /// # Errors
    /// [`Refused::NotSaved`].
    pub fn save(&self) -> Result<Asked<Saved>, Refused> {
        self.save_requester.as_ref().map(SaveRequester::ask).ok_or(Refused::NotSaved)
    }

    /// Whether [`Handle::save`] can work.
    pub fn can_save(&self) -> bool {
        self.save_requester.is_some()
    }

    /// Whether the device is held still, or on its way to another host.
    pub fn is_moving(&self) -> bool {
        self.hold_handle.as_ref().is_some_and(HoldHandle::is_shut)
            || self.session.as_ref().is_some_and(|session| !session.is_ours())
    }

    /// Whether nobody would lose anything by this.
    ///
    /// # Errors
    /// [`Refused::InUse`]: what programs that have it open have not written out would be lost.
    pub fn may(&self, act: Act) -> Result<(), Refused> {
        self.users.as_ref().and_then(|users| users.refusal(act)).map_or(Ok(()), |why| Err(Refused::InUse(why)))
    }

    /// How its session stands, if it is in one.
    pub fn session(&self) -> Option<&SessionStatus> {
        self.session.as_ref()
    }

    /// What passed through so far, where that is counted.
    pub fn readings(&self) -> Option<Readings> {
        self.meters.as_ref().map(|meters| meters.read())
    }

    /// How many programs have it open, where they are counted.
    pub fn open_count(&self) -> Option<usize> {
        self.users.as_ref().map(OpenUsers::count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Fingerprint {
        Fingerprint::from_bytes([7; 32])
    }

    #[test]
    fn what_an_attachment_cannot_do_is_refused_and_never_silently_done() {
        let stop = StopSignal::new().unwrap();
        let handle = Handle::new(stop.clone());
        assert_eq!((handle.hold(), handle.resume()), (Err(Refused::NoGate), Err(Refused::NoGate)));
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
        assert_eq!(handle.migrate(key()), Ok(Migration::WhenQuiet));
        assert!(handle.is_moving());
        assert_eq!(handle.migrate(key()), Err(Refused::Engine("it is being handed over already")));
    }
}
