//! Makes a link to a paired host: tries one address after the other, until a host there proves the key.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus_io::link::{Link, LinkError};
use tracing::debug;

use crate::broker::SystemAccess;
use crate::hosts::known_host::{KnownHost, KnownHostError};
use crate::hosts::reach::Hints;

/// Links to one host that this process makes at a time: an exporter refuses more handshakes of one address than eight
/// (`farbus_io::trust::limits::STRANGERS_OF_ADDRESS_MAX`), it ends one a little later than this end does, and other
/// processes of this machine make links, too.
const LINKS_AT_A_TIME: usize = 4;
/// How long a link may wait for its turn. Its maker then reports that, and tries again later.
const TURN_TIME_MAX: Duration = Duration::from_secs(10);

/// Gives turns to those that make links to the same host.
#[derive(Default)]
struct Turns {
    /// How many links are being made now, for each host where it is more than none.
    making: Mutex<BTreeMap<[u8; 32], usize>>,
    ended: Condvar,
}

/// A turn; its end lets the next one begin.
struct Turn<'a> {
    turns: &'a Turns,
    host: [u8; 32],
}

impl Turns {
    fn making(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], usize>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, `time_max` at most; `None`: there was none in that time.
    fn take(&self, host: [u8; 32], time_max: Duration) -> Option<Turn<'_>> {
        let is_full = |making: &mut BTreeMap<_, _>| making.get(&host).is_some_and(|count| *count >= LINKS_AT_A_TIME);
        let waited = self.ended.wait_timeout_while(self.making(), time_max, is_full);
        let (mut making, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        *making.entry(host).or_insert(0) += 1;
        Some(Turn { turns: self, host })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut making = self.turns.making();
        if let Some(count) = making.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                making.remove(&self.host);
            }
        }
        drop(making);
        // Those that wait may wait for different hosts.
        self.turns.ended.notify_all();
    }
}

/// How many addresses may fail before the search makes its last attempt.
const PLACES_MAX: usize = 4;

/// Why there is no link.
#[derive(Debug)]
pub enum Failure {
    /// No connection was made.
    NoConnection(LinkError),
    /// A host at this address accepted the connection, but is not the paired host.
    NotMet(KnownHostError, SocketAddr),
}

/// A link whose peer has proved its key, the address it was made to, and whether another address is remembered for the
/// host.
pub type Attempt = Result<(Link, SocketAddr, bool), Failure>;

/// What a connection that was made and then lost proves: over TCP, that a host answers at the address; over QUIC,
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over TCP: a host accepted the connection.
    Connected,
    /// Over QUIC: there need not be a host at the address.
    Datagrams,
}

/// Tries one address after the other. An address where no host or another host answers is left out of the next attempt.
/// Remembers the address where the host proved its key.
///
/// # Errors
/// What was wrong with the first address.
pub fn search(
    known: &KnownHost,
    system: &SystemAccess,
    way: Way,
    mut attempt: impl FnMut(&Hints) -> Attempt,
) -> Result<Link, Failure> {
    static TURNS: LazyLock<Turns> = LazyLock::new(Turns::default);
    let Some(_turn) = TURNS.take(*known.fingerprint().as_bytes(), TURN_TIME_MAX) else {
        let source = io::Error::new(io::ErrorKind::TimedOut, "too many links to it are being made");
        return Err(Failure::NoConnection(LinkError { address: known.address().to_owned(), source }));
    };
    let mut hints = Hints { proved: known.proved(), ..Hints::default() };
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
                    debug!(host = known.asked(), %at, %error, "where it is now is not remembered");
                }
                return Ok(link);
            }
            Err(Failure::NotMet(error @ (KnownHostError::Elsewhere { .. } | KnownHostError::Lost { .. }), at))
                if hints.not.len() < PLACES_MAX =>
            {
                hints.not.push(at);
                hints.is_there |= way == Way::Connected && matches!(error, KnownHostError::Lost { .. });
                first_failure.get_or_insert(Failure::NotMet(error, at));
            }
            Err(failure) => return Err(first_failure.unwrap_or(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_a_host_are_made_a_few_at_a_time_and_those_to_others_do_not_wait() {
        let turns = Turns::default();
        let all: Vec<_> = (0..LINKS_AT_A_TIME).map(|_| turns.take([1; 32], Duration::ZERO)).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(turns.take([1; 32], Duration::ZERO).is_none());
        assert!(turns.take([2; 32], Duration::ZERO).is_some());
        drop(all);
        assert!(turns.making().is_empty());
        assert!(turns.take([1; 32], Duration::ZERO).is_some());
    }
}
