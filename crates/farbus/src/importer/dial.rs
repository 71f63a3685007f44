//! Making a link to a paired host, wherever it is: one place after the other, until one proves its key.

use std::net::SocketAddr;

use farbus_io::link::{Link, LinkError};
use tracing::debug;

use crate::broker::SystemAccess;
use crate::hosts::known_host::{KnownHost, KnownHostError};
use crate::hosts::reach::Hints;

/// Places where a host is looked for at once.
const PLACES_MAX: usize = 4;

/// Why there is no link.
#[derive(Debug)]
pub enum Failure {
    /// No connection was made.
    NoConnection(LinkError),
    /// One was made to there, and not to that host.
    NotMet(KnownHostError, SocketAddr),
}

/// A link whose peer has proved its key, where it was made, and whether the host is remembered elsewhere.
pub type Attempt = Result<(Link, SocketAddr, bool), Failure>;

/// Whether a connection that was made and then lost says that somebody is there: over TCP; datagrams go anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over TCP: somebody accepted the connection.
    Connected,
    /// Over QUIC: nobody need be there.
    Datagrams,
}

/// Tries one place after the other: those at which somebody else, or nobody, turns out to be are left out of the next
/// attempt. Where the host proved its key is remembered.
///
/// # Errors
/// What was wrong with the first place.
pub fn search(
    known: &KnownHost,
    system: &SystemAccess,
    way: Way,
    mut attempt: impl FnMut(&Hints) -> Attempt,
) -> Result<Link, Failure> {
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
