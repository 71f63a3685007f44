//! The snapshot of an exporter's session: its owner and its state.

use std::net::IpAddr;

use farbus_io_net::trust::Fingerprint;
use farbus_model::Instant;
use farbus_session::Reject;
use farbus_session::native::{ExporterSession, LaneLimits, Left};
use farbus_session::snapshot::{self, Reader, Writer};

/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 2;
/// Kinds of [`Credentials`].
const HOST: u8 = 0;
const USER: u8 = 1;
const ADDRESS: u8 = 2;

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The peer, as people write it.
    pub peer: String,
    /// How the peer was admitted.
    pub credentials: Credentials,
}

/// How a peer was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// As a paired host.
    Host {
        /// Its key.
        fingerprint: Fingerprint,
        /// Its name here.
        name: String,
        /// The address it connected from.
        address: String,
    },
    /// As a program of this machine, of the user with this number (uid).
    User(u32),
    /// By its address only.
    Address(IpAddr),
}

/// A session that another process began.
pub struct SavedSession {
    /// The owner of the session.
    pub owner: Owner,
    /// All reservations of that process, this session's and others'.
    pub reservations: Vec<u8>,
    /// The session, which serves no device yet.
    pub session: ExporterSession,
    /// The devices that it served.
    pub left: Vec<Left>,
}

/// Saves a session whose requests have completed. `name_of` maps an attachment to its device's listed name.
pub fn save(
    owner: &Owner,
    session: &mut ExporterSession,
    now: Instant,
    reservations: &[u8],
    name_of: impl FnMut(u16, &str) -> String,
) -> Vec<u8> {
    let mut to = Writer::new(SNAPSHOT_KIND);
    to.bytes(owner.peer.as_bytes());
    match &owner.credentials {
        Credentials::Host { fingerprint, name, address } => {
            to.u8(HOST);
            to.raw(fingerprint.as_bytes());
            to.bytes(name.as_bytes());
            to.bytes(address.as_bytes());
        }
        Credentials::User(user) => {
            to.u8(USER);
            to.u32(*user);
        }
        Credentials::Address(address) => {
            to.u8(ADDRESS);
            to.bytes(address.to_string().as_bytes());
        }
    }
    to.bytes(reservations);
    session.save(now, name_of, &mut to);
    to.into_bytes()
}

/// Restores a session that another process saved.
///
/// # Errors
/// [`Reject`]: the bytes describe no possible session.
pub fn restore(now: Instant, bytes: &[u8]) -> Result<SavedSession, Reject> {
    let mut from = snapshot::open(bytes, SNAPSHOT_KIND)?;
    let peer = text(&mut from, "peer")?;
    let credentials = match from.u8("credentials")? {
        HOST => {
            let key: [u8; 32] = from.take(32, "key")?.try_into().expect("32 bytes");
            let fingerprint = Fingerprint::from_bytes(key);
            Credentials::Host { fingerprint, name: text(&mut from, "name")?, address: text(&mut from, "address")? }
        }
        USER => Credentials::User(from.u32("user")?),
        ADDRESS => {
            let address = text(&mut from, "address")?;
            let wrong = Reject::new("address", address.len() as u64, "it is one");
            Credentials::Address(address.parse().map_err(|_| wrong)?)
        }
        other => return Err(Reject::new("credentials", other.into(), "a host, a user or an address")),
    };
    let reservations = from.bytes("reservations")?.to_vec();
    let (session, left) = ExporterSession::restore(now, LaneLimits::SPARING, &mut from)?;
    from.end("snapshot")?;
    Ok(SavedSession { owner: Owner { peer, credentials }, reservations, session, left })
}

fn text(from: &mut Reader<'_>, field: &'static str) -> Result<String, Reject> {
    let bytes = from.bytes(field)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| Reject::new(field, bytes.len() as u64, "it is text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::hello::{Hello, LanePosition, Options, SessionId};
    use std::time::Duration;

    #[test]
    fn saved_session_keeps_its_owner_and_a_truncated_one_is_rejected() {
        let position = LanePosition { session: SessionId::NONE, lane: 0, link: 1, received: 0, incarnation: 7 };
        let hello = Hello::new(position, Options::default());
        let grace = Duration::from_secs(20);
        let begun = ExporterSession::begin(&hello, SessionId([3; 16]), 9, grace, LaneLimits::DEFAULT);
        let (mut session, _) = begun.unwrap_or_else(|_| panic!("it begins"));
        let fingerprint = Fingerprint::from_bytes([5; 32]);
        let host = Credentials::Host { fingerprint, name: "desk".into(), address: "192.0.2.7:9".into() };
        for credentials in [host, Credentials::User(1000), Credentials::Address("::1".parse().unwrap())] {
            let owner = Owner { peer: "desk (192.0.2.7)".into(), credentials };
            let bytes = save(&owner, &mut session, Instant::ZERO, b"reserved", |_, name| name.to_owned());
            let saved_session = restore(Instant::ZERO, &bytes).unwrap();
            assert_eq!((saved_session.owner, saved_session.session.id()), (owner, SessionId([3; 16])));
            assert_eq!(saved_session.reservations, b"reserved");
            assert!(saved_session.left.is_empty() && !saved_session.session.is_linked());
            assert!((0..bytes.len()).all(|end| restore(Instant::ZERO, &bytes[..end]).is_err()));
        }
    }
}
