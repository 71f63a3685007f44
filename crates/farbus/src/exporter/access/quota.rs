//! How many connections one peer may have, so that none can take them all.

use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use farbus_io::trust::{Fingerprint, subscriber};
use farbus_model::Instant;

use crate::common::socket_place::Origin;

/// Connections at once. One device takes one; the rest are lists and strangers.
const SESSIONS_MAX: usize = STRANGERS_MAX + KNOWN_PLACES;
/// Of these, those of all together who are known by their address alone: at the port without encryption.
const STRANGERS_MAX: usize = 512;
/// Those that are left for paired hosts and this machine's users, whatever others do.
const KNOWN_PLACES: usize = 64;
/// How long a connection by address alone may stay without a device, where another has no place.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// Of these, connections beyond their peer's share that are heard at once, to be told that they are refused. Others are
/// closed unread: a tool asks again, a flood is not answered.
const SURPLUS_MAX: usize = 8;
/// How often a log says that connections are closed unread.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// A paired host's, wherever it comes from.
    Host(Fingerprint),
    /// A program's of this machine, of the user with this number.
    User(u32),
    /// Somebody's at this address (of IPv6: in this network of 64 bits).
    Address(IpAddr),
    /// The same of this machine, where it is known whose program it is.
    Own(IpAddr, u32),
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All.
    Own,
    /// Ask, and be refused.
    Surplus,
    /// Nothing of its own: it is a device of a session that is counted.
    Within,
}

/// Why a connection is closed unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// There are [`SESSIONS_MAX`], or [`STRANGERS_MAX`] by address alone, and this is one more.
    Full,
    /// Its peer has as many as are left for all others.
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

/// What a surplus connection is told.
pub const REFUSAL: &str = "this peer has as many connections as are left for all others";

impl Visitor {
    /// From this address.
    pub fn from(address: IpAddr) -> Self {
        Visitor::Address(subscriber(address))
    }

    /// Somebody without a key, who came from there.
    pub fn without_key(from: Origin) -> Self {
        match from {
            Origin::Address(address) => Self::from(address.ip()),
            Origin::Own(address, user) => Visitor::Own(subscriber(address.ip()), user),
            Origin::User(user) => Visitor::User(user),
        }
    }

    /// Whether it is certain who it is, by its key or by the kernel's word.
    pub fn is_known(self) -> bool {
        !matches!(self, Visitor::Address(_) | Visitor::Own(..))
    }
}

/// Where a connection of `visitor`'s belongs among those that are `present`.
///
/// Who is known by an address alone is counted among [`STRANGERS_MAX`], everybody among [`SESSIONS_MAX`].
/// Nobody may have more connections than are left: the first peer may have half of all, a second one that does as much
/// half of the rest, and it takes nine that work together to leave nothing. One who needs a connection for each of 200
/// devices has them.
///
/// # Errors
/// [`QuotaError`].
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

/// Says now and then that somebody was turned away: a log is no place to write from outside.
#[derive(Debug, Default)]
pub struct Complaint(Mutex<Option<Instant>>);

impl Complaint {
    /// Whether it is time to say so.
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
    fn one_peer_has_half_and_many_leave_something_for_the_next() {
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
    fn devices_of_a_session_are_counted_with_it() {
        let mut present = vec![(from(1), Place::Own); 200];
        present.extend(vec![(from(1), Place::Within); 200]);
        assert_eq!(place(from(1), present.iter().copied()), Ok(Place::Own), "200 devices, a session each, are 200");
        assert_eq!(place(from(2), present.iter().copied()), Ok(Place::Own));
    }

    #[test]
    fn who_has_his_share_is_told_so_by_few_connections_at_a_time() {
        let mut present = vec![(from(1), Place::Own); 256];
        for _ in 0..SURPLUS_MAX {
            assert_eq!(place(from(1), present.iter().copied()), Ok(Place::Surplus));
            present.push((from(1), Place::Surplus));
        }
        assert_eq!(place(from(1), present.iter().copied()), Err(QuotaError::Share));
        assert_eq!(place(from(2), present.iter().copied()), Ok(Place::Own));
    }

    #[test]
    fn strangers_leave_places_for_those_who_are_known_however_many_addresses_they_have() {
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
    fn a_flood_is_one_line_in_ten_seconds() {
        let complaint = Complaint::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let said: Vec<_> = (0..25).filter(|&second| complaint.is_due(at(second))).collect();
        assert_eq!(said, [0, 10, 20]);
    }
}
