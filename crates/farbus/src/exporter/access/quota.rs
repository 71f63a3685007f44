//! Limits how many connections one peer may have, so that no peer can take them all.

use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use farbus_io::trust::{Fingerprint, subscriber};
use farbus_model::Instant;

use crate::common::socket_place::Origin;

/// Connections at once. One device takes one; the rest are device lists and unknown peers.
const SESSIONS_MAX: usize = STRANGERS_MAX + KNOWN_PLACES;
/// The most connections of all peers together that are known by address only, at the port without encryption.
const STRANGERS_MAX: usize = 512;
/// Connections that remain for paired hosts and this machine's users, whatever others do.
const KNOWN_PLACES: usize = 64;
/// How long a connection known by address only may stay without a device when another connection has no place.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// How many connections beyond their peer's share are served at once, only to be told that they are refused. Further
/// ones are closed unread: a tool asks again, and a flood gets no answers.
const SURPLUS_MAX: usize = 8;
/// How often the log reports that connections are closed unread.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The peer that a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
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
pub enum Place {
    /// Everything.
    Own,
    /// Ask questions, and be refused devices.
    Surplus,
    /// The entry is a device of a session, which is counted instead.
    Within,
}

/// Why a connection is closed unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// There are [`SESSIONS_MAX`] connections already, or [`STRANGERS_MAX`] known by address only.
    Full,
    /// The peer has as many connections as are left for all others.
    Share,
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaError::Full => f.write_str("there are as many connections as may be"),
            QuotaError::Share => f.write_str(REFUSAL),
        }
    }
}

impl std::error::Error for QuotaError {}

/// The message to a surplus connection.
pub const REFUSAL: &str = "this peer has as many connections as are left for all others";

impl Visitor {
    /// The peer at this address, known by nothing else.
    pub fn from(address: IpAddr) -> Self {
        Visitor::Address(subscriber(address))
    }

    /// A peer that proved no key.
    pub fn without_key(from: Origin) -> Self {
        match from {
            Origin::Address(address) => Self::from(address.ip()),
            Origin::Own(address, user) => Visitor::Own(subscriber(address.ip()), user),
            Origin::User(user) => Visitor::User(user),
        }
    }

    /// Whether the peer's identity is certain, by its key or by the kernel.
    pub fn is_known(self) -> bool {
        !matches!(self, Visitor::Address(_) | Visitor::Own(..))
    }
}

/// Decides the place of a new connection of `visitor` among those that are `present`.
///
/// Peers known by address only are counted against [`STRANGERS_MAX`], all peers against [`SESSIONS_MAX`]. A peer may
/// not have more connections than are left. So the first peer may have half of all, a second one that does the same
/// half of the rest, and only nine that work together leave nothing. A peer that needs a connection for each of 200
/// devices can have them.
///
/// # Errors
/// [`QuotaError`] if the connection is to be closed unread.
pub fn place(visitor: Visitor, present: impl IntoIterator<Item = (Visitor, Place)>) -> Result<Place, QuotaError> {
    let (mut all, mut strangers, mut own, mut surplus) = (0, 0, 0, 0);
    for (who, place) in present.into_iter().filter(|(_, place)| *place != Place::Within) {
        all += 1;
        strangers += usize::from(!who.is_known());
        own += usize::from(who == visitor && place == Place::Own);
        surplus += usize::from(place == Place::Surplus);
    }
    let left_of_all = SESSIONS_MAX.saturating_sub(all);
    let left = match visitor.is_known() {
        true => left_of_all,
        false => left_of_all.min(STRANGERS_MAX.saturating_sub(strangers)),
    };
    match () {
        () if left == 0 => Err(QuotaError::Full),
        () if own < left => Ok(Place::Own),
        () if surplus < SURPLUS_MAX => Ok(Place::Surplus),
        () => Err(QuotaError::Share),
    }
}

/// Limits how often the log reports refused connections, because outsiders must not be able to fill a log.
#[derive(Debug, Default)]
pub struct Complaint(Mutex<Option<Instant>>);

impl Complaint {
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

    fn from(last: u8) -> Visitor {
        Visitor::from(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn each_greedy_peer_gets_half_of_the_places_that_are_left() {
        let mut present = Vec::new();
        let mut shares = Vec::new();
        for greedy in 1..=9 {
            let before = present.len();
            while place(from(greedy), present.iter().copied()) == Ok(Place::Own) {
                present.push((from(greedy), Place::Own));
            }
            shares.push(present.len() - before);
        }
        assert_eq!(shares, [256, 128, 64, 32, 16, 8, 4, 2, 1]);
        assert_eq!(place(from(99), present.iter().copied()), Ok(Place::Own), "the last place is anybody's");
        present.push((from(99), Place::Own));
        assert_eq!(place(from(100), present.iter().copied()), Err(QuotaError::Full));
    }

    #[test]
    fn devices_of_a_session_take_no_places_of_their_own() {
        let mut present = vec![(from(1), Place::Own); 200];
        present.extend(vec![(from(1), Place::Within); 200]);
        assert_eq!(place(from(1), present.iter().copied()), Ok(Place::Own), "200 devices, a session each, are 200");
        assert_eq!(place(from(2), present.iter().copied()), Ok(Place::Own));
    }

    #[test]
    fn peer_at_its_share_gets_a_few_surplus_connections_and_then_none() {
        let mut present = vec![(from(1), Place::Own); 256];
        for _ in 0..SURPLUS_MAX {
            assert_eq!(place(from(1), present.iter().copied()), Ok(Place::Surplus));
            present.push((from(1), Place::Surplus));
        }
        assert_eq!(place(from(1), present.iter().copied()), Err(QuotaError::Share));
        assert_eq!(place(from(2), present.iter().copied()), Ok(Place::Own));
    }

    #[test]
    fn unknown_addresses_cannot_take_the_places_of_known_peers() {
        let mut present = Vec::new();
        let address = |n: u32| Visitor::from(IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        for n in 0..1000 {
            present.extend(place(address(n), present.iter().copied()).map(|place| (address(n), place)));
        }
        assert_eq!(present.len(), STRANGERS_MAX);
        assert_eq!(place(address(2000), present.iter().copied()), Err(QuotaError::Full));
        for n in 0..12 {
            let host = Visitor::Host(Fingerprint::from_bytes([n; 32]));
            assert_eq!(place(host, present.iter().copied()), Ok(Place::Own));
            present.push((host, Place::Own));
        }
        assert_eq!(place(Visitor::User(0), present.iter().copied()), Ok(Place::Own));
    }

    #[test]
    fn a_flood_of_connections_logs_one_line_in_ten_seconds() {
        let complaint = Complaint::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let said: Vec<_> = (0..25).filter(|&second| complaint.is_due(at(second))).collect();
        assert_eq!(said, [0, 10, 20]);
    }
}
