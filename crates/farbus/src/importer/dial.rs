//! Makes a link to a paired host: tries one address after the other, until a host there proves the key.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

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

/// Tries one address after the other. An address where no host or another host answers is left out of the next attempt.
/// Remembers the address where the host proved its key.
///
/// # Errors
/// What was wrong with the first address.
pub fn search(
    known: &KnownHost,
    system: &SystemAccess,
    way: ConnectionProof,
    mut attempt: impl FnMut(&AddressHints) -> PairedDialResult,
) -> Result<Link, PairedDialFailure> {
    static TURNS: LazyLock<KeyedSemaphore<[u8; 32]>> =
        LazyLock::new(|| KeyedSemaphore::new(LINKS_AT_A_TIME, Duration::MAX));
    let Some(_turn) = TURNS.take(*known.fingerprint().as_bytes(), TURN_TIME_MAX, || true) else {
        let source = io::Error::new(io::ErrorKind::TimedOut, "too many links to it are being made");
        return Err(PairedDialFailure::NoConnection(LinkError { address: known.address().to_owned(), source }));
    };
    let mut hints = AddressHints { proved: known.proved(), ..AddressHints::default() };
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
}
