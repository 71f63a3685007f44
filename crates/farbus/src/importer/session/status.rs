//! The status of a session, for other threads than the one that owns its device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farbus_control::session::{Latency, LinksStatus, Second};
use farbus_io_net::link::ThreadWaker;
use farbus_model::ExportIdentity;
use farbus_session::native::control::AttachmentEndNotice;
use farbus_session::native::reserve::ReservationReport;
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{HoldLimits, RequestTiming};
use serde::Serialize;

use crate::importer::session::distance::DistanceCounters;
use crate::importer::session::latency::LatencySamples;
use crate::link::status::SessionLinks;

/// Why a device does not move at once whose exporter cannot be told.
const UNLINKED: &str = "it has no link now: its exporter cannot be told";

/// What other threads can see of a session, and ask of it. The status of an attachment follows its disk to another
/// session when the disk is exchanged.
#[derive(Clone, Debug)]
pub struct SessionStatus(SessionStatusSource);

#[derive(Clone, Debug)]
enum SessionStatusSource {
    /// The status of one session, whatever becomes of its attachment.
    Session(Arc<SessionStatusInner>),
    /// That of whichever session an attachment has now.
    Attachment(Arc<Mutex<Arc<SessionStatusInner>>>),
}

/// A session's status, for a moment.
enum SessionStatusRef<'a> {
    Its(&'a SessionStatusInner),
    Followed(Arc<SessionStatusInner>),
}

impl std::ops::Deref for SessionStatusRef<'_> {
    type Target = SessionStatusInner;

    fn deref(&self) -> &SessionStatusInner {
        match self {
            SessionStatusRef::Its(inner) => inner,
            SessionStatusRef::Followed(inner) => inner,
        }
    }
}

impl Default for SessionStatus {
    fn default() -> Self {
        Self(SessionStatusSource::Session(Arc::default()))
    }
}

#[derive(Debug, Default)]
struct SessionStatusInner {
    state: Mutex<SessionStatusState>,
    /// Notified when a step is answered, and at the end.
    answered: Condvar,
    /// Whether a step is to be said; read in every turn.
    has_step: AtomicBool,
    /// Whether a successor was named; read in every turn.
    has_successor: AtomicBool,
    /// Whether a pause or its end was ordered; read in every turn.
    has_pause: AtomicBool,
    /// Whether another host has yet to hand the device over.
    is_expected: AtomicBool,
    /// Whether its disk is to become the one of an attachment, and no program uses it yet.
    is_copy: AtomicBool,
    /// Wakes the thread that has the session.
    wake: Option<Arc<ThreadWaker>>,
    links: SessionLinks,
}

#[derive(Debug, Default)]
struct SessionStatusState {
    /// The key of the successor.
    successor: Option<[u8; 32]>,
    /// How often a successor has not come.
    untaken: u64,
    /// Since when there is no link.
    unlinked: Option<Instant>,
    end: Option<AttachmentEndNotice>,
    /// Whether there is no session: the disk is one of this machine.
    is_here: bool,
    /// The latest timed requests.
    latency: LatencySamples,
    distance: DistanceCounters,
    /// Whether it passes through the module `pause`.
    can_pause: bool,
    /// Whether its owner ordered a pause (`true`) or its end.
    pause: Option<bool>,
    /// The last reservation report.
    reserved: Option<ReservationReport>,
    /// What the exporter is to be told of the disk, which is moved to this machine.
    step: Option<DiskMoveStep>,
    /// The exporter's last answer to a step.
    step_answer: Option<(DiskMoveStep, Result<(), String>)>,
    /// Whether the device is to go to its successor without its user's requests.
    is_to_discard: bool,
    /// What was thrown away for a handover.
    discarded: Option<DiscardedRequests>,
    /// The identity of the device.
    identity: Option<ExportIdentity>,
    /// How long a device that migrates is held, as both ends say.
    hold: HoldLimits,
    is_storage: bool,
}

/// What was thrown away when a device went to another host at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiscardedRequests {
    /// Requests that were under way, or waited; all of them failed.
    pub requests: usize,
    /// Bytes of the writes among them, for a block device. Some of them may have been written.
    pub unwritten_bytes: u64,
}

/// What an exporter answered to a step of a disk's move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAnswer {
    /// It noted the step durably.
    Noted,
    /// It did not, for this reason.
    Unable(String),
    /// The session ended first.
    Ended,
    /// It did not answer in time. An exporter of an earlier version never does.
    Silent,
}

impl SessionStatus {
    /// The status of an attachment whose disk is in this session now.
    pub(crate) fn following(session: &Self) -> Self {
        Self(SessionStatusSource::Attachment(Arc::new(Mutex::new(session.shared()))))
    }

    /// The status of a disk of this machine, which is in no session.
    pub(crate) fn of_this_machine() -> Self {
        let status = Self::default();
        status.with(|state| state.is_here = true);
        status
    }

    /// From now on this status of an attachment is that of another session.
    pub(crate) fn follow(&self, session: &Self) {
        if let SessionStatusSource::Attachment(now) = &self.0 {
            *now.lock().unwrap_or_else(PoisonError::into_inner) = session.shared();
        }
    }

    fn shared(&self) -> Arc<SessionStatusInner> {
        match &self.0 {
            SessionStatusSource::Session(inner) => Arc::clone(inner),
            SessionStatusSource::Attachment(now) => Arc::clone(&now.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The status of the session that it is now, which it stays.
    fn settled(&self) -> Self {
        Self(SessionStatusSource::Session(self.shared()))
    }

    fn now(&self) -> SessionStatusRef<'_> {
        match &self.0 {
            SessionStatusSource::Session(inner) => SessionStatusRef::Its(inner),
            SessionStatusSource::Attachment(_) => SessionStatusRef::Followed(self.shared()),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut SessionStatusState) -> T) -> T {
        look(&mut self.now().state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A status whose changes wake the session's thread by `wake`; `links` shows the session's links.
    pub(crate) fn waking(wake: Arc<ThreadWaker>, links: SessionLinks) -> Self {
        Self(SessionStatusSource::Session(Arc::new(SessionStatusInner {
            wake: Some(wake),
            links,
            ..SessionStatusInner::default()
        })))
    }

    /// The status of its links.
    pub fn links(&self) -> Option<LinksStatus> {
        if self.with(|state| state.is_here) { None } else { self.now().links.status() }
    }

    /// Wakes the thread that has the session.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.now().wake {
            wake.wake();
        }
    }

    /// Orders the device to migrate to the host with this key as soon as no request is under way.
    ///
    /// # Errors
    /// Why it cannot migrate.
    pub fn migrate(&self, successor: [u8; 32]) -> Result<(), &'static str> {
        self.settled().name_successor(successor, false)
    }

    /// Orders the device to migrate to the host with this key at once: its user's requests fail, and a USB device is
    /// reset. The attachment ends here. Waits until it has begun, `time_max` at most.
    ///
    /// # Errors
    /// Why it cannot migrate.
    pub fn discard(&self, successor: [u8; 32], time_max: Duration) -> Result<DiscardedRequests, &'static str> {
        if self.unlinked().is_some() {
            return Err(UNLINKED);
        }
        let session = self.settled();
        session.name_successor(successor, true)?;
        let now = session.now();
        let state = now.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |state: &mut SessionStatusState| state.discarded.is_none() && state.end.is_none();
        let waited = now.answered.wait_timeout_while(state, time_max, is_open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.is_to_discard) {
            // It is not carried out later either: whose order it was is told that it was not.
            now.has_successor.store(false, Ordering::Release);
            state.successor = None;
        }
        state.discarded.ok_or("the attachment does not answer")
    }

    fn name_successor(&self, successor: [u8; 32], is_discarding: bool) -> Result<(), &'static str> {
        self.with(|state| {
            self.check_movable(state)?;
            (state.successor, state.is_to_discard) = (Some(successor), is_discarding);
            Ok(())
        })?;
        self.now().has_successor.store(true, Ordering::Release);
        self.wake();
        Ok(())
    }

    /// Whether [`SessionStatus::migrate`] would be accepted now, and begin at once.
    ///
    /// # Errors
    /// Why it would stay here.
    pub fn may_migrate(&self) -> Result<(), &'static str> {
        if self.unlinked().is_some() {
            return Err(UNLINKED);
        }
        self.with(|state| self.check_movable(state))
    }

    fn check_movable(&self, state: &SessionStatusState) -> Result<(), &'static str> {
        match state {
            SessionStatusState { end: Some(_), .. } => Err("it is over already"),
            SessionStatusState { is_here: true, .. } => Err("its disk was moved to this machine (farbus swap)"),
            _ if self.is_expected() => Err("it is yet to be handed over to this host"),
            SessionStatusState { successor: Some(_), .. } => Err("it is being handed over already"),
            SessionStatusState { successor: None, .. } => Ok(()),
        }
    }

    /// Whether the handover that was ordered waits for nothing; once for an order.
    pub(crate) fn take_discard(&self) -> bool {
        self.with(|state| std::mem::take(&mut state.is_to_discard))
    }

    /// Records what was thrown away.
    pub(crate) fn note_discarded(&self, discarded: DiscardedRequests) {
        self.with(|state| state.discarded = Some(discarded));
        self.now().answered.notify_all();
    }

    /// Orders that nothing passes, or that data flows again.
    ///
    /// # Errors
    /// Why it cannot pause.
    pub fn pause(&self, is_paused: bool) -> Result<(), &'static str> {
        let session = self.settled();
        session.with(|state| match state {
            SessionStatusState { end: Some(_), .. } => Err("it is over already"),
            SessionStatusState { can_pause: false, .. } => {
                Err("it does not go through the module 'pause' (farbus attach --module pause)")
            }
            SessionStatusState { pause, .. } => {
                *pause = Some(is_paused);
                Ok(())
            }
        })?;
        session.now().has_pause.store(true, Ordering::Release);
        session.wake();
        Ok(())
    }

    /// Takes the order to pause or continue, if there is one.
    pub(crate) fn take_pause(&self) -> Option<bool> {
        let is_wanted =
            self.now().has_pause.load(Ordering::Acquire) && self.now().has_pause.swap(false, Ordering::AcqRel);
        if is_wanted { self.with(|state| state.pause.take()) } else { None }
    }

    /// Records that the session passes through a module that can pause.
    pub(crate) fn note_pausable(&self) {
        self.with(|state| state.can_pause = true);
    }

    /// How long the device is held while it migrates: the shorter limit of both ends.
    pub fn hold(&self) -> Duration {
        self.with(|state| state.hold.both(state.is_storage))
    }

    /// Records the limits of both ends.
    pub(crate) fn note_hold(&self, hold: HoldLimits) {
        self.with(|state| state.hold = hold);
    }

    /// Records whether the device stores data.
    pub(crate) fn note_storage(&self, is_storage: bool) {
        self.with(|state| state.is_storage = is_storage);
    }

    /// Whether another host has yet to hand the device over.
    pub fn is_expected(&self) -> bool {
        self.now().is_expected.load(Ordering::Acquire)
    }

    /// Records whether another host has yet to hand the device over.
    pub(crate) fn note_expected(&self, is_expected: bool) {
        self.now().is_expected.store(is_expected, Ordering::Release);
    }

    /// Whether its disk is to become the one of an attachment, and no program uses it yet.
    pub(crate) fn is_copy(&self) -> bool {
        self.now().is_copy.load(Ordering::Acquire)
    }

    /// Records whether its disk is to become the one of an attachment.
    pub(crate) fn note_copy(&self, is_copy: bool) {
        self.now().is_copy.store(is_copy, Ordering::Release);
    }

    /// Whether no successor was named.
    pub fn is_ours(&self) -> bool {
        self.successor().is_none()
    }

    /// Removes the successor, which did not come.
    pub(crate) fn disinherit(&self) {
        self.now().has_successor.store(false, Ordering::Release);
        self.with(|state| (state.successor, state.untaken) = (None, state.untaken + 1));
    }

    /// How often a successor has not come.
    pub(crate) fn untaken(&self) -> u64 {
        self.with(|state| state.untaken)
    }

    /// The key of its successor, if one was named.
    pub(crate) fn successor(&self) -> Option<[u8; 32]> {
        if self.now().has_successor.load(Ordering::Acquire) { self.with(|state| state.successor) } else { None }
    }

    /// How long it has been waiting for a link, if it has none and has not ended.
    pub fn unlinked(&self) -> Option<Duration> {
        self.with(|state| state.unlinked.filter(|_| state.end.is_none()).map(|since| since.elapsed()))
    }

    /// Why it ended, if it has.
    pub fn end(&self) -> Option<AttachmentEndNotice> {
        self.with(|state| state.end.clone())
    }

    /// Records whether there is a link.
    pub(crate) fn note_link(&self, is_linked: bool) {
        self.with(|state| match (is_linked, state.unlinked) {
            (true, _) => state.unlinked = None,
            (false, None) => state.unlinked = Some(Instant::now()),
            (false, Some(_)) => {}
        });
    }

    /// Records a reservation report.
    pub(crate) fn note_reserved(&self, reserved: ReservationReport) {
        self.with(|state| state.reserved = Some(reserved));
    }

    /// The last reservation report; `None` if nothing is reserved at the exporter.
    pub fn reserved(&self) -> Option<ReservationReport> {
        self.with(|state| state.reserved)
    }

    /// Records the identity of the device.
    pub(crate) fn note_identity(&self, identity: ExportIdentity) {
        self.with(|state| state.identity = Some(identity));
    }

    /// The identity of the device; `None` before it is open, and if its exporter told none.
    pub fn identity(&self) -> Option<ExportIdentity> {
        self.with(|state| state.identity)
    }

    /// Records a timed request.
    pub(crate) fn note_timed(&self, timed: RequestTiming) {
        let now = Instant::now();
        self.with(|state| state.latency.note(timed, now));
    }

    /// How long the stages of its latest requests took; `None` before a request was timed.
    pub fn latency(&self) -> Option<Latency> {
        self.with(|state| state.latency.summary(Instant::now()))
    }

    /// How long the stages of its requests took in each of the last three minutes' seconds, the oldest first. Only
    /// requests that were timed count (one in 64, and one each second), and seconds without one are left out.
    pub fn latency_seconds(&self) -> Vec<Second> {
        self.with(|state| state.latency.seconds(Instant::now()))
    }

    /// Records what was done so far to hide the device's distance.
    pub(crate) fn note_distance(&self, distance: DistanceCounters) {
        self.with(|state| state.distance = distance);
    }

    /// What was done so far to hide the device's distance.
    pub(crate) fn distance(&self) -> DistanceCounters {
        self.with(|state| state.distance)
    }

    /// Takes the latest timed request, if it was not taken before.
    pub fn take_timed(&self) -> Option<RequestTiming> {
        self.with(|state| state.latency.take_latest())
    }

    /// Tells the exporter what becomes of the disk, and waits for the answer, `time_max` at most.
    pub(crate) fn tell(&self, step: DiskMoveStep, time_max: Duration) -> StepAnswer {
        self.tell_later(step);
        let now = self.now();
        let state = now.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |state: &mut SessionStatusState| {
            state.end.is_none() && state.step_answer.as_ref().is_none_or(|it| it.0 != step)
        };
        let waited = now.answered.wait_timeout_while(state, time_max, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (&state.step_answer, &state.end) {
            (Some((answered, Ok(()))), _) if *answered == step => StepAnswer::Noted,
            (Some((answered, Err(why))), _) if *answered == step => StepAnswer::Unable(why.clone()),
            (_, Some(_)) => StepAnswer::Ended,
            (_, None) => StepAnswer::Silent,
        }
    }

    /// Tells the exporter what becomes of the disk.
    pub(crate) fn tell_later(&self, step: DiskMoveStep) {
        self.with(|state| (state.step, state.step_answer) = (Some(step), None));
        self.now().has_step.store(true, Ordering::Release);
        self.wake();
    }

    /// Takes what the exporter is to be told, if there is something.
    pub(crate) fn take_step(&self) -> Option<DiskMoveStep> {
        let is_wanted =
            self.now().has_step.load(Ordering::Acquire) && self.now().has_step.swap(false, Ordering::AcqRel);
        if is_wanted { self.with(|state| state.step.take()) } else { None }
    }

    /// Takes the exporter's answer to this step, if there is one.
    pub(crate) fn take_step_answer(&self, step: DiskMoveStep) -> Option<(DiskMoveStep, Result<(), String>)> {
        self.with(|state| state.step_answer.take_if(|answer| answer.0 == step))
    }

    /// Records the exporter's answer to a step.
    pub(crate) fn note_step_answer(&self, answer: (DiskMoveStep, Result<(), String>)) {
        self.with(|state| state.step_answer = Some(answer));
        self.now().answered.notify_all();
    }

    /// Records the end. Returns whether it is new; the first one counts.
    pub(crate) fn note_end(&self, end: &AttachmentEndNotice) -> bool {
        let is_new = self.with(|state| {
            let is_new = state.end.is_none();
            state.end.get_or_insert_with(|| end.clone());
            is_new
        });
        self.now().answered.notify_all();
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::control::AttachmentEndCause;

    #[test]
    fn orders_are_taken_once_and_refused_if_impossible() {
        let status = SessionStatus::default();
        assert!(status.pause(true).unwrap_err().contains("--module pause"));
        status.note_pausable();
        assert_eq!((status.pause(true), status.pause(false)), (Ok(()), Ok(())));
        assert_eq!([status.take_pause(), status.take_pause()], [Some(false), None]);
        status.note_end(&AttachmentEndNotice { cause: AttachmentEndCause::Network, message: "no link".into() });
        assert_eq!(status.pause(true), Err("it is over already"));
    }

    #[test]
    fn discarding_that_nobody_began_in_time_is_not_done_later() {
        let status = SessionStatus::default();
        assert_eq!(status.discard([7; 32], Duration::from_millis(1)), Err("the attachment does not answer"));
        assert_eq!((status.successor(), status.take_discard(), status.may_migrate()), (None, false, Ok(())));
    }

    #[test]
    fn second_loss_of_a_link_keeps_the_time_of_the_first() {
        let status = SessionStatus::default();
        assert_eq!(status.unlinked(), None);
        status.note_link(false);
        let first = status.unlinked().expect("it waits");
        std::thread::sleep(Duration::from_millis(2));
        status.note_link(false);
        assert!(status.unlinked().is_some_and(|now| now > first));
        status.note_link(true);
        assert_eq!(status.unlinked(), None);
        status.note_link(false);
        let end = AttachmentEndNotice { cause: AttachmentEndCause::Network, message: "no link".into() };
        assert!(status.note_end(&end) && !status.note_end(&end));
        assert_eq!((status.unlinked(), status.end()), (None, Some(end)), "nothing is waited for any more");
    }

    #[test]
    fn status_of_an_attachment_follows_its_disk_from_a_session_to_another_and_to_this_machine() {
        let (first, second) = (SessionStatus::default(), SessionStatus::default());
        let attachment = SessionStatus::following(&first);
        let for_a_front_end = attachment.clone();
        first.note_link(false);
        assert!(for_a_front_end.unlinked().is_some());
        attachment.follow(&second);
        let end = AttachmentEndNotice { cause: AttachmentEndCause::Requested, message: "given back".into() };
        first.note_end(&end);
        assert_eq!((for_a_front_end.unlinked(), for_a_front_end.end()), (None, None), "it goes on with another disk");
        assert_eq!(for_a_front_end.migrate([7; 32]), Ok(()));
        assert_eq!((first.successor(), second.successor()), (None, Some([7; 32])));
        second.note_end(&end);
        assert_eq!(for_a_front_end.end(), Some(end));
        attachment.follow(&SessionStatus::of_this_machine());
        assert_eq!((for_a_front_end.end(), for_a_front_end.links().is_some()), (None, false));
        assert!(for_a_front_end.may_migrate().unwrap_err().contains("farbus swap"));
    }
}
