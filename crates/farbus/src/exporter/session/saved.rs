//! The snapshot of an exporter's session: its owner and its state.

use std::net::IpAddr;

use farbus_io_net::trust::Fingerprint;
use farbus_model::Instant;
use farbus_session::ProtocolViolation;
use farbus_session::native::{ExporterSession, LaneLimits, UnservedAttachment};
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};

/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 2;
/// Kinds of [`SessionCredentials`].
const HOST: u8 = 0;
const USER: u8 = 1;
const ADDRESS: u8 = 2;

/// The owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOwner {
    /// The peer, as people write it.
    pub peer: String,
    /// How the peer was admitted.
    pub credentials: SessionCredentials,
}

/// How a peer was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionCredentials {
    /// As a paired host.
    Host {
        /// The fingerprint of the host's key, which it proved.
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
    pub owner: SessionOwner,
    /// All reservations of that process, this session's and others'.
    pub reservations: Vec<u8>,
    /// The session, which serves no device yet.
    pub session: ExporterSession,
    /// The devices that it served.
    pub left: Vec<UnservedAttachment>,
}

/// Saves a session whose requests have completed. `name_of` maps an attachment to its device's listed name.
pub fn save(
    owner: &SessionOwner,
    session: &mut ExporterSession,
    now: Instant,
    reservations: &[u8],
    name_of: impl FnMut(u16, &str) -> String,
) -> Vec<u8> {
    let mut to = SnapshotWriter::new(SNAPSHOT_KIND);
    to.bytes(owner.peer.as_bytes());
    match &owner.credentials {
        SessionCredentials::Host { fingerprint, name, address } => {
            to.u8(HOST);
            to.raw(fingerprint.as_bytes());
            to.bytes(name.as_bytes());
            to.bytes(address.as_bytes());
        }
        SessionCredentials::User(user) => {
            to.u8(USER);
            to.u32(*user);
        }
        SessionCredentials::Address(address) => {
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
/// [`ProtocolViolation`]: the bytes describe no possible session.
pub fn restore(now: Instant, bytes: &[u8]) -> Result<SavedSession, ProtocolViolation> {
    let mut from = snapshot::open(bytes, SNAPSHOT_KIND)?;
    let peer = text(&mut from, "peer")?;
    let credentials = match from.u8("credentials")? {
        HOST => {
            let key: [u8; 32] = from.take(32, "key")?.try_into().expect("32 bytes");
            let fingerprint = Fingerprint::from_bytes(key);
            SessionCredentials::Host {
                fingerprint,
                name: text(&mut from, "name")?,
                address: text(&mut from, "address")?,
            }
        }
        USER => SessionCredentials::User(from.u32("user")?),
        ADDRESS => {
            let address = text(&mut from, "address")?;
            let wrong = ProtocolViolation::new("address", address.len() as u64, "it is one");
            SessionCredentials::Address(address.parse().map_err(|_| wrong)?)
        }
        other => return Err(ProtocolViolation::new("credentials", other.into(), "a host, a user or an address")),
    };
    let reservations = from.bytes("reservations")?.to_vec();
    let (session, left) = ExporterSession::restore(now, LaneLimits::SPARING, &mut from)?;
    from.end("snapshot")?;
    Ok(SavedSession { owner: SessionOwner { peer, credentials }, reservations, session, left })
}

fn text(from: &mut FieldReader<'_>, field: &'static str) -> Result<String, ProtocolViolation> {
    let bytes = from.bytes(field)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtocolViolation::new(field, bytes.len() as u64, "it is text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_session::native::hello::{HelloOptions, ImporterHello, LanePosition, SessionId};
    use std::time::Duration;

    #[test]
    fn saved_session_keeps_its_owner_and_a_truncated_one_is_rejected() {
        let position = LanePosition { session: SessionId::NONE, lane: 0, link: 1, received: 0, incarnation: 7 };
        let hello = ImporterHello::new(position, HelloOptions::default());
        let grace = Duration::from_secs(20);
        let begun = ExporterSession::begin(&hello, SessionId([3; 16]), 9, grace, LaneLimits::DEFAULT);
        let (mut session, _) = begun.unwrap_or_else(|_| panic!("it begins"));
        let fingerprint = Fingerprint::from_bytes([5; 32]);
        let host = SessionCredentials::Host { fingerprint, name: "desk".into(), address: "192.0.2.7:9".into() };
        for credentials in [host, SessionCredentials::User(1000), SessionCredentials::Address("::1".parse().unwrap())] {
            let owner = SessionOwner { peer: "desk (192.0.2.7)".into(), credentials };
            let bytes = save(&owner, &mut session, Instant::ZERO, b"reserved", |_, name| name.to_owned());
            let saved_session = restore(Instant::ZERO, &bytes).unwrap();
            assert_eq!((saved_session.owner, saved_session.session.id()), (owner, SessionId([3; 16])));
            assert_eq!(saved_session.reservations, b"reserved");
            assert!(saved_session.left.is_empty() && !saved_session.session.is_linked());
            assert!((0..bytes.len()).all(|end| restore(Instant::ZERO, &bytes[..end]).is_err()));
        }
    }
}
