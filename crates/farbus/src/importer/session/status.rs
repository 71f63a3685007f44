//! How a session stands, for whoever shows it: its device is elsewhere, on the thread that uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farbus_io::link::Wake;
use farbus_session::native::Timed;
use farbus_session::native::control::End;
use farbus_session::native::reserve::ReservationReport;

use crate::importer::session::distance::Distance;
use crate::importer::session::latency::{Latency, Samples};
use crate::link::status::{Links, LinksStatus};

/// What a session's owner can see of it, and wish of it, from any thread.
#[derive(Clone, Debug, Default)]
pub struct SessionStatus(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Whether a successor was named: looked at in every turn.
    has_successor: AtomicBool,
    /// Whether it is to pause, or to go on: looked at in every turn.
    has_pause: AtomicBool,
    /// Whether it is yet to be handed over to us.
    is_expected: AtomicBool,
    /// Wakes whoever has the session.
    wake: Option<Arc<Wake>>,
    links: Links,
}

#[derive(Debug, Default)]
struct State {
    /// The key of whoever is to have it.
    successor: Option<[u8; 32]>,
    /// Since when there is no link.
    unlinked: Option<Instant>,
    end: Option<End>,
    /// Of its latest requests that were timed.
    latency: Samples,
    distance: Distance,
    /// Whether it goes through a module that can hold what passes.
    can_pause: bool,
    /// What its owner wants of that.
    pause: Option<bool>,
    /// How what is reserved for it stands.
    reserved: Option<ReservationReport>,
}

impl SessionStatus {
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// That of a session whose thread `wake` wakes, and whose links `links` shows.
    pub(crate) fn waking(wake: Arc<Wake>, links: Links) -> Self {
        Self(Arc::new(Inner { wake: Some(wake), links, ..Inner::default() }))
    }

    /// Its links.
    pub fn links(&self) -> Option<LinksStatus> {
        self.0.links.status()
    }

    /// Its device goes to the host with this key as soon as nothing is under way.
    ///
    /// # Errors
    /// Why it does not.
    pub fn migrate(&self, successor: [u8; 32]) -> Result<(), &'static str> {
        self.with(|state| match state {
            State { end: Some(_), .. } => Err("it is over already"),
            _ if self.is_expected() => Err("it is yet to be handed over to this host"),
            State { successor: Some(_), .. } => Err("it is being handed over already"),
            State { successor: named, .. } => {
                *named = Some(successor);
                Ok(())
            }
        })?;
        self.0.has_successor.store(true, Ordering::Release);
        if let Some(wake) = &self.0.wake {
            wake.wake();
        }
        Ok(())
    }

    /// Nothing is to pass, or all again.
    ///
    /// # Errors
    /// Why it cannot be so.
    pub fn pause(&self, is_paused: bool) -> Result<(), &'static str> {
        self.with(|state| match state {
            State { end: Some(_), .. } => Err("it is over already"),
            State { can_pause: false, .. } => {
                Err("it does not go through the module 'pause' (farbus attach --module pause)")
            }
            State { pause, .. } => {
                *pause = Some(is_paused);
                Ok(())
            }
        })?;
        self.0.has_pause.store(true, Ordering::Release);
        if let Some(wake) = &self.0.wake {
            wake.wake();
        }
        Ok(())
    }

    /// What its owner wants, once.
    pub(crate) fn take_pause(&self) -> Option<bool> {
        let is_wanted = self.0.has_pause.load(Ordering::Acquire) && self.0.has_pause.swap(false, Ordering::AcqRel);
        if is_wanted { self.with(|state| state.pause.take()) } else { None }
    }

    /// It goes through a module that can hold what passes.
    pub(crate) fn note_pausable(&self) {
        self.with(|state| state.can_pause = true);
    }

    /// Whether its device is yet to be handed over to us.
    pub fn is_expected(&self) -> bool {
        self.0.is_expected.load(Ordering::Acquire)
    }

    /// It is, or is not any more.
    pub(crate) fn note_expected(&self, is_expected: bool) {
        self.0.is_expected.store(is_expected, Ordering::Release);
    }

    /// Whether no successor is named.
    pub fn is_ours(&self) -> bool {
        self.successor().is_none()
    }

    /// Its successor did not come.
    pub(crate) fn disinherit(&self) {
        self.0.has_successor.store(false, Ordering::Release);
        self.with(|state| state.successor = None);
    }

    /// The key of its successor, if one was named.
    pub(crate) fn successor(&self) -> Option<[u8; 32]> {
        if self.0.has_successor.load(Ordering::Acquire) { self.with(|state| state.successor) } else { None }
    }

    /// For how long it has been waiting for a link, if it has none and is not over.
    pub fn unlinked(&self) -> Option<Duration> {
        self.with(|state| state.unlinked.filter(|_| state.end.is_none()).map(|since| since.elapsed()))
    }

    /// Why it is over, if it is.
    pub fn end(&self) -> Option<End> {
        self.with(|state| state.end.clone())
    }

    /// There is a link, or none any more.
    pub(crate) fn note_link(&self, is_linked: bool) {
        self.with(|state| match (is_linked, state.unlinked) {
            (true, _) => state.unlinked = None,
            (false, None) => state.unlinked = Some(Instant::now()),
            (false, Some(_)) => {}
        });
    }

    /// How what is reserved for it stands is known.
    pub(crate) fn note_reserved(&self, reserved: ReservationReport) {
        self.with(|state| state.reserved = Some(reserved));
    }

    /// How what is reserved for it at its exporter stands; none if nothing is.
    pub fn reserved(&self) -> Option<ReservationReport> {
        self.with(|state| state.reserved)
    }

    /// A request was timed.
    pub(crate) fn note_timed(&self, timed: Timed) {
        self.with(|state| state.latency.note(timed));
    }

    /// Where the time of its latest requests went; none before one was timed.
    pub fn latency(&self) -> Option<Latency> {
        self.with(|state| state.latency.summary())
    }

    /// What is done about its device's distance has come so far.
    pub(crate) fn note_distance(&self, distance: Distance) {
        self.with(|state| state.distance = distance);
    }

    /// What was done about its device's distance.
    pub(crate) fn distance(&self) -> Distance {
        self.with(|state| state.distance)
    }

    /// The latest request that was timed, once.
    pub fn take_timed(&self) -> Option<Timed> {
        self.with(|state| state.latency.take_latest())
    }

    /// It is over.
    pub(crate) fn note_end(&self, end: &End) {
        self.with(|state| {
            state.end.get_or_insert_with(|| end.clone());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::control::Cause;

    #[test]
    fn what_its_owner_wants_is_heard_once_and_only_where_it_can_be() {
        let status = SessionStatus::default();
        assert!(status.pause(true).unwrap_err().contains("--module pause"));
        status.note_pausable();
        assert_eq!((status.pause(true), status.pause(false)), (Ok(()), Ok(())));
        assert_eq!([status.take_pause(), status.take_pause()], [Some(false), None]);
        status.note_end(&End { cause: Cause::Network, message: "no link".into() });
        assert_eq!(status.pause(true), Err("it is over already"));
    }

    #[test]
    fn a_link_that_is_lost_twice_was_lost_once() {
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
        let end = End { cause: Cause::Network, message: "no link".into() };
        status.note_end(&end);
        assert_eq!((status.unlinked(), status.end()), (None, Some(end)), "nothing is waited for any more");
    }
}
