//! Limits how many connections one peer may have, so that no peer can take them all.

use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use farbus_io_net::trust::{Fingerprint, subscriber};
use farbus_model::Instant;
use farbus_session::native::control::LIMIT;

use crate::common::socket_place::ConnectionOrigin;

/// The most connections of all peers together that are known by address only, at the port without encryption.
const STRANGERS_MAX: usize = 512;
/// How many times as many connections as one paired host, or user of this machine, all of them together may have. The
/// connections of strangers are counted apart.
const KNOWN_PEERS_FULL: usize = 4;
/// Connections of one paired host at a time that ask questions alone. They are counted apart from all others: a host
/// that uses as many devices as it may can still list them.
const QUESTIONS_OF_HOST_MAX: usize = 16;
/// Connections of all paired hosts together that ask questions alone.
const QUESTIONS_MAX: usize = 256;
/// How long a connection known by address only may stay without a device when another connection has no place.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// How many connections beyond their peer's share are served at once, only to be told that they are refused. Further
/// ones are closed unread: a tool asks again, and a flood gets no answers.
const SURPLUS_MAX: usize = 8;
/// As many as [`SURPLUS_MAX`], for a paired host or a user of this machine: a daemon that asks for many devices is told
/// of each.
const KNOWN_SURPLUS_MAX: usize = 32;
/// How often the log reports that connections are closed unread.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The peer that a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// A paired host, wherever it connects from.
    Host(Fingerprint),
    /// A program of this machine, of the user with this number (uid).
    User(u32),
    /// An unknown peer at this address (of IPv6: in this /64 network).
    Address(IpAddr),
    /// A peer at an address of this machine, whose user (uid) is known.
    Own(IpAddr, u32),
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// Use a device, and all else that its peer may do. It counts against the peer's share.
    Own,
    /// Ask questions, and be refused devices.
    Surplus,
    /// The entry is a device of a session, which is counted instead.
    Within,
    /// Ask questions. Such connections are counted apart.
    Questions,
}

/// Why a connection is closed unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// There are as many connections as may be of its kind: of strangers, of known peers, or with questions.
    Full,
    /// The peer has as many connections as are left for all others.
    Share,
    /// The peer, whose identity is certain, uses as many devices as one such peer may.
    Devices(usize),
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaError::Full => f.write_str("there are as many connections as may be"),
            QuotaError::Share => f.write_str(REFUSAL),
            QuotaError::Devices(most) => write!(
                f,
                "{LIMIT}{PEER_DEVICES}: it uses {most} devices here already, as many as one host may\n  \
                 their owner may allow more: peer_devices = N in the daemon's file, 'farbus share --peer-devices N'"
            ),
        }
    }
}

impl std::error::Error for QuotaError {}

/// The name of the limit of devices that one peer may use, which is also the key of the configuration.
pub const PEER_DEVICES: &str = "peer_devices";

/// The message to a surplus connection of a stranger.
pub const REFUSAL: &str = "this peer has as many connections as are left for all others";

impl PeerIdentity {
    /// The peer at this address, known by nothing else.
    pub fn from(address: IpAddr) -> Self {
        PeerIdentity::Address(subscriber(address))
    }

    /// A peer that proved no key.
    pub fn without_key(from: ConnectionOrigin) -> Self {
        match from {
            ConnectionOrigin::Address(address) => Self::from(address.ip()),
            ConnectionOrigin::Own(address, user) => PeerIdentity::Own(subscriber(address.ip()), user),
            ConnectionOrigin::User(user) => PeerIdentity::User(user),
        }
    }

    /// Whether the peer's identity is certain, by its key or by the kernel.
    pub fn is_known(self) -> bool {
        !matches!(self, PeerIdentity::Address(_) | PeerIdentity::Own(..))
    }
}

/// Decides the class of a new connection of `peer_identity` among those that are `present`. A known peer may use
/// `devices_max` devices, and have as many connections.
///
/// Peers known by address only are counted against [`STRANGERS_MAX`], and known ones apart from them against
/// [`KNOWN_PEERS_FULL`] times `devices_max`. A peer may not have more connections than are left. So the first stranger
/// may have half of all, a second one that does the same half of the rest, and only nine that work together leave
/// nothing.
///
/// # Errors
/// [`QuotaError`] if the connection is to be closed unread, or told so by its protocol.
pub fn class_of_connection(
    peer_identity: PeerIdentity,
    devices_max: usize,
    present: impl IntoIterator<Item = (PeerIdentity, ConnectionClass)>,
) -> Result<ConnectionClass, QuotaError> {
    let is_known = peer_identity.is_known();
    let (mut all, mut own, mut surplus) = (0, 0, 0);
    let is_counted = |(who, class): &(PeerIdentity, ConnectionClass)| {
        who.is_known() == is_known && matches!(class, ConnectionClass::Own | ConnectionClass::Surplus)
    };
    for (who, class) in present.into_iter().filter(is_counted) {
        all += 1;
        own += usize::from(who == peer_identity && class == ConnectionClass::Own);
        surplus += usize::from(class == ConnectionClass::Surplus);
    }
    let (places, own_max, surplus_max) = match is_known {
        true => (devices_max.saturating_mul(KNOWN_PEERS_FULL), devices_max, KNOWN_SURPLUS_MAX),
        false => (STRANGERS_MAX, STRANGERS_MAX, SURPLUS_MAX),
    };
    let left = places.saturating_sub(all);
    match () {
        () if own < left.min(own_max) => Ok(ConnectionClass::Own),
        // The surplus of known peers has places of its own: their devices cannot take it.
        () if left == 0 && !is_known => Err(QuotaError::Full),
        () if surplus < surplus_max => Ok(ConnectionClass::Surplus),
        () if is_known => Err(QuotaError::Devices(devices_max)),
        () => Err(QuotaError::Share),
    }
}

/// Whether one more connection with questions of `peer_identity` has a place among those that are `present`.
///
/// # Errors
/// [`QuotaError::Full`]: there are as many of this peer, or of all.
pub fn place_of_questions(
    peer_identity: PeerIdentity,
    present: impl IntoIterator<Item = (PeerIdentity, ConnectionClass)>,
) -> Result<ConnectionClass, QuotaError> {
    let (mut all, mut own) = (0, 0);
    for (who, _) in present.into_iter().filter(|(_, class)| *class == ConnectionClass::Questions) {
        all += 1;
        own += usize::from(who == peer_identity);
    }
    if all < QUESTIONS_MAX && own < QUESTIONS_OF_HOST_MAX {
        Ok(ConnectionClass::Questions)
    } else {
        Err(QuotaError::Full)
    }
}

/// Whether `peer_identity` may use one more device, beside those that are `present`. For peers that are known by
/// address only, their connections and their memory are the limit.
///
/// # Errors
/// [`QuotaError::Devices`].
pub fn may_use_another(
    peer_identity: PeerIdentity,
    devices_max: usize,
    present: impl IntoIterator<Item = (PeerIdentity, ConnectionClass)>,
) -> Result<(), QuotaError> {
    let is_its_own =
        |(who, class): &(PeerIdentity, ConnectionClass)| *who == peer_identity && *class == ConnectionClass::Within;
    let used = present.into_iter().filter(is_its_own).count();
    if !peer_identity.is_known() || used < devices_max { Ok(()) } else { Err(QuotaError::Devices(devices_max)) }
}

/// The message to a surplus connection of `peer_identity`.
pub fn refusal(peer_identity: PeerIdentity, devices_max: usize) -> String {
    if peer_identity.is_known() { QuotaError::Devices(devices_max).to_string() } else { REFUSAL.to_owned() }
}

/// Limits how often the log reports refused connections, because outsiders must not be able to fill a log.
#[derive(Debug, Default)]
pub struct RefusalLogLimiter(Mutex<Option<Instant>>);

impl RefusalLogLimiter {
    /// Whether the log is to report a refusal now.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock().expect("nobody panics while it is looked at");
        let is_due = last.is_none_or(|last| now >= last + TOLD_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES_MAX: usize = 1024;

    fn from(last: u8) -> PeerIdentity {
        PeerIdentity::from(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn each_greedy_peer_gets_half_of_the_places_that_are_left() {
        let mut present = Vec::new();
        let mut shares = Vec::new();
        for greedy in 1..=9 {
            let before = present.len();
            while class_of_connection(from(greedy), DEVICES_MAX, present.iter().copied()) == Ok(ConnectionClass::Own) {
                present.push((from(greedy), ConnectionClass::Own));
            }
            shares.push(present.len() - before);
        }
        assert_eq!(shares, [256, 128, 64, 32, 16, 8, 4, 2, 1]);
        assert_eq!(
            class_of_connection(from(99), DEVICES_MAX, present.iter().copied()),
            Ok(ConnectionClass::Own),
            "the last place is anybody's"
        );
        present.push((from(99), ConnectionClass::Own));
        assert_eq!(class_of_connection(from(100), DEVICES_MAX, present.iter().copied()), Err(QuotaError::Full));
    }

    #[test]
    fn devices_of_a_session_take_no_places_of_their_own() {
        let mut present = vec![(from(1), ConnectionClass::Own); 200];
        present.extend(vec![(from(1), ConnectionClass::Within); 200]);
        assert_eq!(
            class_of_connection(from(1), DEVICES_MAX, present.iter().copied()),
            Ok(ConnectionClass::Own),
            "200 devices, a session each, are 200"
        );
        assert_eq!(class_of_connection(from(2), DEVICES_MAX, present.iter().copied()), Ok(ConnectionClass::Own));
    }

    #[test]
    fn peer_at_its_share_gets_a_few_surplus_connections_and_then_none() {
        let mut present = vec![(from(1), ConnectionClass::Own); 256];
        for _ in 0..SURPLUS_MAX {
            assert_eq!(
                class_of_connection(from(1), DEVICES_MAX, present.iter().copied()),
                Ok(ConnectionClass::Surplus)
            );
            present.push((from(1), ConnectionClass::Surplus));
        }
        assert_eq!(class_of_connection(from(1), DEVICES_MAX, present.iter().copied()), Err(QuotaError::Share));
        assert_eq!(class_of_connection(from(2), DEVICES_MAX, present.iter().copied()), Ok(ConnectionClass::Own));
    }

    fn host(number: u8) -> PeerIdentity {
        PeerIdentity::Host(Fingerprint::from_bytes([number; 32]))
    }

    /// Opens connections of `peer_identity` until it gets no place of its own. Returns how many it got.
    fn fill(
        peer_identity: PeerIdentity,
        devices_max: usize,
        present: &mut Vec<(PeerIdentity, ConnectionClass)>,
    ) -> usize {
        let before = present.len();
        while class_of_connection(peer_identity, devices_max, present.iter().copied()) == Ok(ConnectionClass::Own) {
            present.push((peer_identity, ConnectionClass::Own));
        }
        present.len() - before
    }

    #[test]
    fn paired_host_gets_as_many_connections_as_it_may_use_devices_and_is_told_of_those_beyond() {
        let mut present = Vec::new();
        assert_eq!(fill(host(1), 1000, &mut present), 1000);
        for _ in 0..KNOWN_SURPLUS_MAX {
            assert_eq!(class_of_connection(host(1), 1000, present.iter().copied()), Ok(ConnectionClass::Surplus));
            present.push((host(1), ConnectionClass::Surplus));
        }
        let refused = class_of_connection(host(1), 1000, present.iter().copied()).unwrap_err();
        assert_eq!(refused, QuotaError::Devices(1000));
        assert!(refused.to_string().starts_with("limit peer_devices: it uses 1000 devices here already"));
        assert!(fill(host(2), 1000, &mut present) == 1000 && fill(PeerIdentity::User(0), 1000, &mut present) > 900);
        assert_eq!(
            class_of_connection(from(1), 1000, present.iter().copied()),
            Ok(ConnectionClass::Own),
            "strangers are counted apart"
        );
    }

    #[test]
    fn paired_host_with_all_its_devices_may_still_ask_questions_but_not_without_end() {
        let mut present = Vec::new();
        fill(host(1), 8, &mut present);
        for _ in 0..QUESTIONS_OF_HOST_MAX {
            assert_eq!(place_of_questions(host(1), present.iter().copied()), Ok(ConnectionClass::Questions));
            present.push((host(1), ConnectionClass::Questions));
        }
        assert_eq!(place_of_questions(host(1), present.iter().copied()), Err(QuotaError::Full));
        assert_eq!(place_of_questions(host(2), present.iter().copied()), Ok(ConnectionClass::Questions));
    }

    #[test]
    fn devices_of_one_session_count_as_those_of_many_do() {
        let mut present = vec![(host(1), ConnectionClass::Own)];
        present.extend(vec![(host(1), ConnectionClass::Within); 7]);
        assert_eq!(may_use_another(host(1), 8, present.iter().copied()), Ok(()));
        present.push((host(1), ConnectionClass::Within));
        assert_eq!(may_use_another(host(1), 8, present.iter().copied()), Err(QuotaError::Devices(8)));
        assert_eq!(may_use_another(host(2), 8, present.iter().copied()), Ok(()));
    }

    #[test]
    fn unknown_addresses_cannot_take_the_places_of_known_peers() {
        let mut present = Vec::new();
        let address = |n: u32| PeerIdentity::from(IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        for n in 0..1000 {
            present.extend(
                class_of_connection(address(n), DEVICES_MAX, present.iter().copied()).map(|class| (address(n), class)),
            );
        }
        assert_eq!(present.len(), STRANGERS_MAX);
        assert_eq!(class_of_connection(address(2000), DEVICES_MAX, present.iter().copied()), Err(QuotaError::Full));
        for n in 0..12 {
            assert_eq!(class_of_connection(host(n), DEVICES_MAX, present.iter().copied()), Ok(ConnectionClass::Own));
            present.push((host(n), ConnectionClass::Own));
        }
        assert_eq!(
            class_of_connection(PeerIdentity::User(0), DEVICES_MAX, present.iter().copied()),
            Ok(ConnectionClass::Own)
        );
    }

    #[test]
    fn a_flood_of_connections_logs_one_line_in_ten_seconds() {
        let complaint = RefusalLogLimiter::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let logged_at: Vec<_> = (0..25).filter(|&second| complaint.is_due(at(second))).collect();
        assert_eq!(logged_at, [0, 10, 20]);
    }
}
