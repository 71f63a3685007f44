//! How many strangers are listened to, and how often.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farbus_model::Instant;

use super::limits::{
    ADDRESSES_MAX, FAILURES_MAX, FORGIVEN_AFTER, STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX, TRUSTED_FOR,
};

/// Why a stranger is turned away before a byte of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many connections have not proved a key yet.
    Crowded,
    /// Too many of them from this address.
    CrowdedByAddress,
    /// Too many handshakes from this address have failed.
    Failures {
        /// This is the first refusal since the last success or pause: worth a line in a log.
        is_first: bool,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Crowded => write!(f, "{STRANGERS_MAX} connections are proving their keys already"),
            Refusal::CrowdedByAddress => {
                write!(f, "{STRANGERS_OF_ADDRESS_MAX} connections from its address are proving their keys already")
            }
            Refusal::Failures { .. } => write!(f, "{FAILURES_MAX} handshakes from its address have failed lately"),
        }
    }
}

/// What came of a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It has proved a key.
    Given,
    /// The link was lost before. Of an address that has proved one lately this is its network's failure and not its own.
    CutShort,
    /// It failed.
    Failed,
    /// It was never heard, by no fault of its own.
    Untried,
}

/// Counts connections that have not proved a key yet, and handshakes that failed, by address.
#[derive(Debug, Default)]
pub struct Admission {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    strangers: usize,
    addresses: HashMap<IpAddr, Record>,
}

/// One address (of IPv6: one network of 64 bits, which is what one subscriber has).
#[derive(Debug)]
struct Record {
    connected: usize,
    /// When its last failure will be forgiven: later by [`FORGIVEN_AFTER`] with each.
    clean_at: Instant,
    was_told: bool,
    /// Until when lost links are no failures: a paired host was there lately.
    trusted_until: Option<Instant>,
}

impl Admission {
    /// A connection arrives. If it is let in, [`Admission::leave`] has to follow.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn enter(&self, address: IpAddr, now: Instant) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.strangers >= STRANGERS_MAX {
            return Err(Refusal::Crowded);
        }
        let record = state.record(subscriber(address), now);
        if record.clean_at > now + FORGIVEN_AFTER * (FAILURES_MAX - 1) {
            let is_first = !std::mem::replace(&mut record.was_told, true);
            return Err(Refusal::Failures { is_first });
        }
        if record.connected >= STRANGERS_OF_ADDRESS_MAX {
            return Err(Refusal::CrowdedByAddress);
        }
        record.connected += 1;
        // It counts as failed until it has not: many that come at once are not let in on one another's credit.
        record.clean_at = record.clean_at.max(now) + FORGIVEN_AFTER;
        state.strangers += 1;
        Ok(())
    }

    /// It has proved a key, or not.
    pub fn leave(&self, address: IpAddr, now: Instant, proof: Proof) {
        let mut state = self.state();
        state.strangers -= 1;
        let record = state.record(subscriber(address), now);
        record.connected -= 1;
        if proof == Proof::Given {
            record.trusted_until = Some(now + TRUSTED_FOR);
        }
        let is_trusted = record.trusted_until.is_some_and(|until| now < until);
        if matches!(proof, Proof::Given | Proof::Untried) || (proof == Proof::CutShort && is_trusted) {
            let forgiven_ns = u64::try_from(FORGIVEN_AFTER.as_nanos()).unwrap_or(u64::MAX);
            record.clean_at = Instant::from_nanos(record.clean_at.as_nanos().saturating_sub(forgiven_ns));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn record(&mut self, address: IpAddr, now: Instant) -> &mut Record {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            self.make_room(now);
        }
        let record = self.addresses.entry(address).or_insert(Record {
            connected: 0,
            clean_at: now,
            was_told: false,
            trusted_until: None,
        });
        if record.clean_at <= now {
            record.was_told = false;
        }
        record
    }

    /// Forgets whoever is clean and gone; if nobody is, whoever will be soonest.
    fn make_room(&mut self, now: Instant) {
        self.addresses.retain(|_, record| record.connected > 0 || record.clean_at > now);
        if self.addresses.len() >= ADDRESSES_MAX {
            let gone = self.addresses.iter().filter(|(_, record)| record.connected == 0);
            if let Some(soonest) = gone.min_by_key(|(_, record)| record.clean_at).map(|(address, _)| *address) {
                self.addresses.remove(&soonest);
            }
        }
    }
}

/// One address; of IPv6 one network of 64 bits, which is what one subscriber has.
pub fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_thousand_failures_are_cut_to_one_in_six_seconds_and_others_are_unharmed() {
        let admission = Admission::default();
        let (guesser, other) = ("10.0.0.9".parse().unwrap(), "10.0.0.7".parse().unwrap());
        let (mut tried, mut told) = (0, 0);
        for n in 0..1000 {
            // Ten a second.
            let now = Instant::from_nanos(n * 100_000_000);
            match admission.enter(guesser, now) {
                Ok(()) => {
                    tried += 1;
                    admission.leave(guesser, now, Proof::Failed);
                }
                Err(Refusal::Failures { is_first }) => told += u32::from(is_first),
                Err(other) => panic!("{other}"),
            }
        }
        // 100 s: the first ten, and one for each six seconds.
        assert_eq!(tried, 10 + 16);
        assert_eq!(told, 1, "and the log says so once");
        assert_eq!(admission.enter(other, at(100)), Ok(()));
        assert_eq!(admission.enter(guesser, at(200)), Ok(()), "a pause is forgiven");
    }

    #[test]
    fn a_bad_network_does_not_lock_a_paired_host_out_and_a_stranger_gains_nothing_by_it() {
        let admission = Admission::default();
        let (paired, stranger) = ("10.0.0.7".parse().unwrap(), "10.0.0.9".parse().unwrap());
        admission.enter(paired, at(1)).unwrap();
        admission.leave(paired, at(1), Proof::Given);
        for _ in 0..1000 {
            admission.enter(paired, at(2)).unwrap();
            admission.leave(paired, at(2), Proof::CutShort);
        }
        let let_in = |address, proof| {
            let tries = (0..100).filter(|_| {
                let is_in = admission.enter(address, at(3)).is_ok();
                is_in.then(|| admission.leave(address, at(3), proof));
                is_in
            });
            tries.count()
        };
        assert_eq!(let_in(stranger, Proof::CutShort), 10);
        assert_eq!(let_in(paired, Proof::Failed), 10, "a wrong key is one wherever it comes from");
    }

    #[test]
    fn guesses_that_come_together_are_counted_together() {
        let admission = Admission::default();
        let guesser = "10.0.0.9".parse().unwrap();
        let mut tried = 0;
        for n in 0..100 {
            // Each of a crowd is still in its handshake when the next comes; all fail much later.
            let now = Instant::from_nanos(n * 100_000_000);
            let crowd = (0..20).filter(|_| admission.enter(guesser, now).is_ok()).count();
            (0..crowd).for_each(|_| admission.leave(guesser, now, Proof::Failed));
            tried += crowd;
        }
        assert_eq!(tried, 10 + 1);
    }

    #[test]
    fn success_is_free_and_crowds_are_bounded() {
        let admission = Admission::default();
        let address = |n: u8| IpAddr::from([10, 0, 0, n]);
        for _ in 0..1000 {
            admission.enter(address(1), at(1)).unwrap();
            admission.leave(address(1), at(1), Proof::Given);
        }
        for _ in 0..STRANGERS_OF_ADDRESS_MAX {
            admission.enter(address(1), at(1)).unwrap();
        }
        assert_eq!(admission.enter(address(1), at(1)), Err(Refusal::CrowdedByAddress));
        for n in STRANGERS_OF_ADDRESS_MAX..STRANGERS_MAX {
            admission.enter(address(n as u8), at(1)).unwrap();
        }
        assert_eq!(admission.enter(address(200), at(1)), Err(Refusal::Crowded));
        admission.leave(address(1), at(1), Proof::Given);
        assert_eq!(admission.enter(address(200), at(1)), Ok(()));
    }

    #[test]
    fn addresses_are_forgotten_and_a_network_of_ipv6_is_one() {
        let admission = Admission::default();
        for n in 0..2 * ADDRESSES_MAX as u32 {
            admission.enter(IpAddr::from(n.to_be_bytes()), at(1)).unwrap();
            admission.leave(IpAddr::from(n.to_be_bytes()), at(1), Proof::Failed);
        }
        assert!(admission.state().addresses.len() <= ADDRESSES_MAX);
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(subscriber(one), subscriber("2001:db8::ffff:2".parse().unwrap()));
        assert_ne!(subscriber(one), subscriber("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(subscriber("::ffff:10.0.0.1".parse().unwrap()), IpAddr::from([10, 0, 0, 1]));
    }
}
