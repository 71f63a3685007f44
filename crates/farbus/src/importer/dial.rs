//! Makes a link to a paired host: tries one address after the other, until a host there proves the key.
//!
//! A process may have a thousand sessions with one host, and all of them lose their links at once. While the host is
//! away, they do not try a thousand times: a thread that has waited for its turn takes the failure of an attempt that
//! began after it asked ([`SharedFailures`]). A session that tries again anyway also takes that of one shortly before,
//! and one of these sessions at a time looks for the host nearby ([`DialUrgency`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use farbus_io_net::link::{Link, LinkError};
use tracing::debug;

use crate::broker::SystemAccess;
use crate::common::turns::KeyedSemaphore;
use crate::hosts::known_host::{KnownHost, KnownHostError};
use crate::hosts::reach::AddressHints;

/// Links to one host that this process makes at a time: an exporter refuses more handshakes of one address than eight
/// (`farbus_io_net::trust::limits::STRANGERS_OF_ADDRESS_MAX`), it ends one a little later than this end does, and other
/// processes of this machine make links, too.
const LINKS_AT_A_TIME: usize = 4;
/// How long a link may wait for its turn. Its maker then reports that, and tries again later.
const TURN_TIME_MAX: Duration = Duration::from_secs(10);

/// How many addresses may fail before the search makes its last attempt.
const PLACES_MAX: usize = 4;

/// Why there is no link.
#[derive(Debug)]
pub enum PairedDialFailure {
    /// No connection was made.
    NoConnection(LinkError),
    /// A host at this address accepted the connection, but is not the paired host.
    NotMet(KnownHostError, SocketAddr),
}

/// A link whose peer has proved its key, the address it was made to, and whether another address is remembered for the
/// host.
pub type PairedDialResult = Result<(Link, SocketAddr, bool), PairedDialFailure>;

/// What a connection that was made and then lost proves: over TCP, that a host answers at the address; over QUIC,
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionProof {
    /// Over TCP: a host accepted the connection.
    Connected,
    /// Over QUIC: there need not be a host at the address.
    Datagrams,
}

/// How long the failure of an attempt counts for sessions that try again anyway.
const FAILURE_COUNTS_FOR: Duration = Duration::from_millis(100);

/// What depends on an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialUrgency {
    /// Its user waits for its outcome. A host that is not found at its address is looked for nearby, which takes
    /// seconds.
    Awaited,
    /// It is repeated until it succeeds, as those of other sessions are: one of them looks for the host nearby.
    Repeated,
}

/// A host, and the address at which it is looked for first.
type HostPlace = ([u8; 32], String);

/// The last attempt to reach each host, if it failed.
#[derive(Default)]
struct SharedFailures(Mutex<BTreeMap<HostPlace, FailedAttempt>>);

struct FailedAttempt {
    by: ThreadId,
    began: Instant,
    kind: io::ErrorKind,
    what: String,
}

impl SharedFailures {
    fn all(&self) -> MutexGuard<'_, BTreeMap<HostPlace, FailedAttempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The failure of an attempt that began after `wanted_at`, or was another thread's and began at most `before` that:
    /// a thread that wants a link since then need not try, too.
    fn since(&self, place: &HostPlace, wanted_at: Instant, before: Duration) -> Option<LinkError> {
        let all = self.all();
        let failed = all.get(place).filter(|failed| {
            let before = if failed.by == thread::current().id() { Duration::ZERO } else { before };
            failed.began + before > wanted_at
        })?;
        let source = io::Error::new(failed.kind, failed.what.clone());
        Some(LinkError { address: place.1.clone(), source })
    }

    /// Notes how an attempt ended that began at `began`.
    fn note(&self, place: &HostPlace, began: Instant, failure: Option<&LinkError>) {
        let mut all = self.all();
        match failure {
            None => drop(all.remove(place)),
            Some(LinkError { source, .. }) => {
                let by = thread::current().id();
                let failed = FailedAttempt { by, began, kind: source.kind(), what: source.to_string() };
                if all.get(place).is_none_or(|other| other.began < began) {
                    all.insert(place.clone(), failed);
                }
            }
        }
    }
}

/// Reaches the host at `place` in a turn. Takes the failure of another thread if that tried after this one asked, or
/// shortly before if the attempt is repeated.
fn in_turn<T>(
    turns: &KeyedSemaphore<[u8; 32]>,
    failures: &SharedFailures,
    place: &HostPlace,
    urgency: DialUrgency,
    attempt: impl FnOnce() -> Result<T, PairedDialFailure>,
) -> Result<T, PairedDialFailure> {
    let wanted_at = Instant::now();
    let Some(_turn) = turns.take(place.0, TURN_TIME_MAX, || true) else {
        let source = io::Error::new(io::ErrorKind::TimedOut, "too many links to it are being made");
        return Err(PairedDialFailure::NoConnection(LinkError { address: place.1.clone(), source }));
    };
    let before = if urgency == DialUrgency::Repeated { FAILURE_COUNTS_FOR } else { Duration::ZERO };
    if let Some(failure) = failures.since(place, wanted_at, before) {
        return Err(PairedDialFailure::NoConnection(failure));
    }
    let began = Instant::now();
    let outcome = attempt();
    match &outcome {
        Ok(_) => failures.note(place, began, None),
        Err(PairedDialFailure::NoConnection(error)) => failures.note(place, began, Some(error)),
        // A host answers there: how it treats one attempt says nothing about others.
        Err(PairedDialFailure::NotMet(..)) => {}
    }
    outcome
}

/// The right to look for a host nearby, until dropped.
struct NearbySearchPermit(HostPlace);

impl NearbySearchPermit {
    fn under_way() -> MutexGuard<'static, BTreeSet<HostPlace>> {
        static UNDER_WAY: Mutex<BTreeSet<HostPlace>> = Mutex::new(BTreeSet::new());
        UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if another thread looks for the host.
    fn take(place: &HostPlace) -> Option<Self> {
        Self::under_way().insert(place.clone()).then(|| Self(place.clone()))
    }
}

impl Drop for NearbySearchPermit {
    fn drop(&mut self) {
        Self::under_way().remove(&self.0);
    }
}

/// Tries one address after the other. An address where no host or another host answers is left out of the next attempt.
/// Remembers the address where the host proved its key.
///
/// # Errors
/// What was wrong with the first address.
pub fn search(
    known: &KnownHost,
    system: &SystemAccess,
    way: ConnectionProof,
    urgency: DialUrgency,
    mut attempt: impl FnMut(&AddressHints) -> PairedDialResult,
) -> Result<Link, PairedDialFailure> {
    static TURNS: LazyLock<KeyedSemaphore<[u8; 32]>> =
        LazyLock::new(|| KeyedSemaphore::new(LINKS_AT_A_TIME, Duration::MAX));
    static FAILURES: LazyLock<SharedFailures> = LazyLock::new(SharedFailures::default);
    let place = (*known.fingerprint().as_bytes(), known.address().to_owned());
    in_turn(&TURNS, &FAILURES, &place, urgency, || {
        let permit = (urgency == DialUrgency::Repeated).then(|| NearbySearchPermit::take(&place));
        let is_looked_for = matches!(permit, Some(None));
        let mut hints = AddressHints { proved: known.proved(), is_there: is_looked_for, ..AddressHints::default() };
        let mut first_failure = None;
        loop {
            match attempt(&hints) {
                Ok((link, at, is_new)) => {
                    let is_news = known.proved() != Some(at);
                    known.note_proved(at);
                    if is_new
                        && is_news
                        && let Err(error) = system.remember(known, at)
                    {
                        debug!(host = known.given_address(), %at, %error, "where it is now is not remembered");
                    }
                    return Ok(link);
                }
                Err(PairedDialFailure::NotMet(
                    error @ (KnownHostError::Elsewhere { .. } | KnownHostError::Lost { .. }),
                    at,
                )) if hints.not.len() < PLACES_MAX => {
                    hints.not.push(at);
                    hints.is_there |= way == ConnectionProof::Connected && matches!(error, KnownHostError::Lost { .. });
                    first_failure.get_or_insert(PairedDialFailure::NotMet(error, at));
                }
                Err(failure) => return Err(first_failure.unwrap_or(failure)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SESSIONS: usize = 200;

    fn refused() -> PairedDialFailure {
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        PairedDialFailure::NoConnection(LinkError { address: "10.0.0.7:3241".into(), source })
    }

    #[test]
    fn sessions_that_wait_for_a_host_that_is_away_share_the_failure_of_one_attempt() {
        let turns = KeyedSemaphore::new(LINKS_AT_A_TIME, Duration::MAX);
        let (failures, place) = (SharedFailures::default(), ([7; 32], "10.0.0.7:3241".to_owned()));
        let (attempts, dialling) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let all_wait = || dialling.load(Ordering::SeqCst) == SESSIONS && turns.waiting(&place.0) >= SESSIONS - 8;
        let dial = || {
            dialling.fetch_add(1, Ordering::SeqCst);
            let outcome: Result<(), _> = in_turn(&turns, &failures, &place, DialUrgency::Awaited, || {
                attempts.fetch_add(1, Ordering::SeqCst);
                while attempts.load(Ordering::SeqCst) <= LINKS_AT_A_TIME && !all_wait() {
                    thread::yield_now();
                }
                Err(refused())
            });
            let Err(PairedDialFailure::NoConnection(error)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(error.source.kind(), io::ErrorKind::ConnectionRefused);
        };
        thread::scope(|scope| (0..SESSIONS).for_each(|_| drop(scope.spawn(dial))));
        let attempts = attempts.into_inner();
        assert!(attempts <= 3 * LINKS_AT_A_TIME, "{SESSIONS} sessions tried {attempts} times");
    }

    #[test]
    fn failure_of_before_counts_for_no_later_attempt() {
        let turns = KeyedSemaphore::new(1, Duration::MAX);
        let (failures, place) = (SharedFailures::default(), ([7; 32], "10.0.0.7:3241".to_owned()));
        let dial = |urgency, outcome: Result<u8, _>| in_turn(&turns, &failures, &place, urgency, || outcome);
        assert!(dial(DialUrgency::Awaited, Err(refused())).is_err());
        let failed = failures.all()[&place].began;
        let counts = |wanted_at, before| failures.since(&place, wanted_at, before).is_some();
        let counts_for_another =
            |wanted_at, before| thread::scope(|scope| scope.spawn(|| counts(wanted_at, before)).join().unwrap());
        assert!(counts_for_another(failed, FAILURE_COUNTS_FOR) && !counts_for_another(failed, Duration::ZERO));
        assert!(!counts_for_another(failed + FAILURE_COUNTS_FOR, FAILURE_COUNTS_FOR), "too long ago");
        assert!(!counts(failed, FAILURE_COUNTS_FOR), "a session alone keeps to its own pauses");
        assert_eq!(dial(DialUrgency::Awaited, Ok(1)).unwrap(), 1);
        assert!(failures.all().is_empty(), "nothing is kept of a host that is there");
        assert_eq!(dial(DialUrgency::Repeated, Ok(2)).unwrap(), 2);
    }

    #[test]
    fn one_thread_at_a_time_looks_for_a_host_nearby() {
        let [lab3, rack] = ["10.0.0.7:3241", "10.0.0.8:3241"].map(|address| ([9; 32], address.to_owned()));
        let permit = NearbySearchPermit::take(&lab3);
        assert!(permit.is_some() && NearbySearchPermit::take(&lab3).is_none());
        assert!(NearbySearchPermit::take(&rack).is_some(), "another address");
        drop(permit);
        assert!(NearbySearchPermit::take(&lab3).is_some());
    }
}
