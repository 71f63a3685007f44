//! Limits how many unauthenticated peers are served, and how often each may try.
//!
//! A connection that has not proved a key occupies one of [`STRANGERS_MAX`] places. Connections from where a key was
//! proved recently have priority:
//!
//! | rank | the peer's address | places |
//! |---|---|---|
//! | 2 | an address from which a key was proved within [`PROVED_FOR`] | all |
//! | 1 | in the network of such an address: the first 24 bits of IPv4, 64 of IPv6 | all |
//! | 0 | any other | all but [`PROVED_PLACES`] |
//!
//! If no place is left, the oldest connection of a lower rank is cut at once; if there is none, the oldest of the same
//! rank that has had [`PRESSED_TIME`], or whose network has more than [`NETWORK_PLACES`] places while the newcomer's
//! has fewer. Only if there is no such connection is the newcomer refused. So idle connections do not keep a paired
//! host out, however many addresses they come from.
//!
//! An address whose handshakes fail is refused for a while. One of rank 2 may fail three hundred times as often: others
//! may share it with a paired host.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus_model::Instant;

use crate::trust::limits::{
    ADDRESSES_MAX, FAILURES_MAX, FORGIVEN_AFTER, FORGIVEN_AFTER_PROVED, NETWORK_PLACES, PRESSED_TIME, PROVED_FOR,
    PROVED_MAX, PROVED_PLACES, STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX, TRUSTED_FOR,
};

/// Why a connection is refused before a byte of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// Too many connections have not proved a key yet.
    TooMany,
    /// Too many of them from this address.
    TooManyOfAddress,
    /// Too many handshakes from this address failed.
    Failures {
        /// Whether this is the first refusal since the last success or pause, and so worth a line in a log.
        is_first: bool,
    },
}

impl fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmissionRefusal::TooMany => write!(f, "{STRANGERS_MAX} connections are proving their keys already"),
            AdmissionRefusal::TooManyOfAddress => {
                write!(f, "{STRANGERS_OF_ADDRESS_MAX} connections from its address are proving their keys already")
            }
            AdmissionRefusal::Failures { .. } => {
                write!(f, "{FAILURES_MAX} handshakes from its address have failed lately")
            }
        }
    }
}

/// How a connection's attempt to prove a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyProofOutcome {
    /// It proved a key.
    Given,
    /// The link was lost before. If the address has recently proved a key, this counts as a failure of its network and
    /// not of the peer.
    CutShort,
    /// The handshake failed, for example because the key is not accepted. This counts as a failure of its address.
    Failed,
    /// It was cut off before its handshake, through no fault of its own.
    Untried,
}

/// Counts connections that have not proved a key yet, and handshakes that failed, by address.
#[derive(Clone, Debug, Default)]
pub struct PeerAdmission {
    state: Arc<Mutex<AdmissionState>>,
}

#[derive(Debug, Default)]
struct AdmissionState {
    /// The connections that have not proved a key, in the order of arrival.
    waiting: BTreeMap<u64, UnprovedConnection>,
    numbers: u64,
    addresses: HashMap<IpAddr, AddressRecord>,
    /// Addresses from which a key was proved, and until when that counts.
    proved: HashMap<IpAddr, Instant>,
}

/// A connection that has not proved a key yet.
#[derive(Debug)]
struct UnprovedConnection {
    /// The peer's address (for IPv6, its /64 network).
    address: IpAddr,
    rank: u8,
    since: Instant,
    cut: Arc<ConnectionCut>,
}

/// The record of one address (for IPv6, of one /64 network, which is what one subscriber has).
#[derive(Debug)]
struct AddressRecord {
    connected: usize,
    /// When its last failure will be forgiven: each failure moves it by [`FORGIVEN_AFTER`].
    clean_at: Instant,
    was_told: bool,
    /// Until when lost links do not count as failures: a paired host was at this address recently.
    trusted_until: Option<Instant>,
}

/// Ends a connection that has to give way.
#[derive(Default)]
struct ConnectionCut(Mutex<CutState>);

#[derive(Default)]
enum CutState {
    #[default]
    Here,
    Ended(Box<dyn FnOnce() + Send>),
    Cut,
}

impl fmt::Debug for ConnectionCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionCut").field(&self.is_cut()).finish()
    }
}

impl ConnectionCut {
    fn state(&self) -> MutexGuard<'_, CutState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cut(&self) -> bool {
        matches!(*self.state(), CutState::Cut)
    }

    fn cut(&self) {
        let before = std::mem::replace(&mut *self.state(), CutState::Cut);
        if let CutState::Ended(end) = before {
            end();
        }
    }
}

/// A connection's place. Dropping it returns the place as [`KeyProofOutcome::Untried`].
#[derive(Debug)]
pub struct AdmissionTicket {
    state: Arc<Mutex<AdmissionState>>,
    number: u64,
    address: IpAddr,
    since: Instant,
    cut: Arc<ConnectionCut>,
    /// For how long it counts if it fails.
    cost: Duration,
    is_given_back: bool,
}

impl AdmissionTicket {
    /// Sets how to end the connection if it has to give way; ends it at once if it already has to.
    pub fn on_cut(&self, end: impl FnOnce() + Send + 'static) {
        let mut state = self.cut.state();
        match *state {
            CutState::Cut => {
                drop(state);
                end();
            }
            CutState::Here | CutState::Ended(_) => *state = CutState::Ended(Box::new(end)),
        }
    }

    /// Whether it had to give way.
    pub fn is_cut(&self) -> bool {
        self.cut.is_cut()
    }

    /// Returns the place, with the result of the attempt.
    pub fn leave(mut self, now: Instant, proof: KeyProofOutcome) {
        self.give_back(now, proof);
    }

    fn give_back(&mut self, now: Instant, proof: KeyProofOutcome) {
        if !std::mem::replace(&mut self.is_given_back, true) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).leave(self, now, proof);
        }
    }
}

impl Drop for AdmissionTicket {
    fn drop(&mut self) {
        self.give_back(self.since, KeyProofOutcome::Untried);
    }
}

impl PeerAdmission {
    /// Admits a connection, which has a place until its ticket is returned.
    ///
    /// # Errors
    /// [`AdmissionRefusal`].
    pub fn enter(&self, address: IpAddr, now: Instant) -> Result<AdmissionTicket, AdmissionRefusal> {
        let address = subscriber(address);
        let mut cut = Vec::new();
        let entered = self.state().enter(address, now, &mut cut);
        // Without the lock: ending a connection may take a while.
        cut.into_iter().for_each(|cut| cut.cut());
        let (number, cut, cost) = entered?;
        Ok(AdmissionTicket {
            state: Arc::clone(&self.state),
            number,
            address,
            since: now,
            cut,
            cost,
            is_given_back: false,
        })
    }

    /// Records that a key was proved from this address recently, from this host's files.
    pub fn note_proved(&self, address: IpAddr, now: Instant) {
        self.state().note_proved(subscriber(address), now);
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionState {
    /// Finds a place for a connection from this address; adds to `cut` the connections that must give way.
    fn enter(
        &mut self,
        address: IpAddr,
        now: Instant,
        cut: &mut Vec<Arc<ConnectionCut>>,
    ) -> Result<(u64, Arc<ConnectionCut>, Duration), AdmissionRefusal> {
        let rank = self.find_place(address, now, cut)?;
        let record = self.record(address, now);
        record.connected += 1;
        // It counts as failed until it succeeds: many that arrive at once are each counted.
        let cost = if rank == 2 { FORGIVEN_AFTER_PROVED } else { FORGIVEN_AFTER };
        record.clean_at = record.clean_at.max(now) + cost;
        self.numbers += 1;
        let own = Arc::<ConnectionCut>::default();
        self.waiting.insert(self.numbers, UnprovedConnection { address, rank, since: now, cut: Arc::clone(&own) });
        Ok((self.numbers, own, cost))
    }

    /// The rank of a connection from this address, if it may enter; adds to `cut` the connections that must give way.
    fn find_place(
        &mut self,
        address: IpAddr,
        now: Instant,
        cut: &mut Vec<Arc<ConnectionCut>>,
    ) -> Result<u8, AdmissionRefusal> {
        let rank = self.rank(address, now);
        let record = self.record(address, now);
        if record.clean_at > now + FORGIVEN_AFTER * (FAILURES_MAX - 1) {
            let is_first = !std::mem::replace(&mut record.was_told, true);
            return Err(AdmissionRefusal::Failures { is_first });
        }
        if record.connected >= STRANGERS_OF_ADDRESS_MAX {
            let mut own = self.waiting.iter().filter(|(_, other)| other.address == address);
            let oldest = own.next().filter(|(_, other)| now >= other.since + PRESSED_TIME).map(|(number, _)| *number);
            cut.push(self.cut(oldest.ok_or(AdmissionRefusal::TooManyOfAddress)?));
        }
        let of_strangers = self.waiting.values().filter(|other| other.rank == 0).count();
        let is_full = self.waiting.len() >= STRANGERS_MAX;
        if is_full || (rank == 0 && of_strangers >= STRANGERS_MAX - PROVED_PLACES) {
            let victim = self.victim(address, rank, now).ok_or(AdmissionRefusal::TooMany)?;
            cut.push(self.cut(victim));
        }
        Ok(rank)
    }

    /// The connection that gives way to a newcomer of this rank from this address.
    fn victim(&self, address: IpAddr, rank: u8, now: Instant) -> Option<u64> {
        let lower = self.waiting.iter().filter(|(_, other)| other.rank < rank);
        if let Some((number, _)) = lower.min_by_key(|(number, other)| (other.rank, **number)) {
            return Some(*number);
        }
        let peers = || self.waiting.iter().filter(|(_, other)| other.rank == rank);
        let mut of_networks = HashMap::<IpAddr, usize>::new();
        peers().for_each(|(_, other)| *of_networks.entry(network(other.address)).or_default() += 1);
        let own = of_networks.get(&network(address)).copied().unwrap_or(0);
        let has_too_many = |other: &UnprovedConnection| {
            let of_network = of_networks[&network(other.address)];
            of_network > NETWORK_PLACES && own < NETWORK_PLACES
        };
        let mut who_may = peers().filter(|(_, other)| now >= other.since + PRESSED_TIME || has_too_many(other));
        who_may.next().map(|(number, _)| *number)
    }

    fn cut(&mut self, number: u64) -> Arc<ConnectionCut> {
        let waiting = self.waiting.remove(&number).expect("it is waiting");
        if let Some(record) = self.addresses.get_mut(&waiting.address) {
            record.connected -= 1;
        }
        waiting.cut
    }

    fn rank(&self, address: IpAddr, now: Instant) -> u8 {
        let is_proved = |until: &Instant| now < *until;
        if self.proved.get(&address).is_some_and(is_proved) {
            return 2;
        }
        let mut others = self.proved.iter().filter(|(_, until)| is_proved(until));
        u8::from(others.any(|(other, _)| network(*other) == network(address)))
    }

    fn note_proved(&mut self, address: IpAddr, now: Instant) {
        if self.proved.len() >= PROVED_MAX
            && !self.proved.contains_key(&address)
            && let Some(oldest) = self.proved.iter().min_by_key(|(_, until)| **until).map(|(address, _)| *address)
        {
            self.proved.remove(&oldest);
        }
        self.proved.insert(address, now + PROVED_FOR);
    }

    fn leave(&mut self, ticket: &AdmissionTicket, now: Instant, proof: KeyProofOutcome) {
        let AdmissionTicket { number, address, cost, .. } = *ticket;
        let is_here = self.waiting.remove(&number).is_some();
        let record = self.record(address, now);
        record.connected -= usize::from(is_here);
        if proof == KeyProofOutcome::Given {
            record.trusted_until = Some(now + TRUSTED_FOR);
        }
        let is_trusted = record.trusted_until.is_some_and(|until| now < until);
        if matches!(proof, KeyProofOutcome::Given | KeyProofOutcome::Untried)
            || (proof == KeyProofOutcome::CutShort && is_trusted)
        {
            let forgiven_ns = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
            record.clean_at = Instant::from_nanos(record.clean_at.as_nanos().saturating_sub(forgiven_ns));
        }
        if proof == KeyProofOutcome::Given {
            self.note_proved(address, now);
        }
    }

    fn record(&mut self, address: IpAddr, now: Instant) -> &mut AddressRecord {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            self.make_room(now);
        }
        let record = self.addresses.entry(address).or_insert(AddressRecord {
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

    /// Forgets addresses without connections and failures; if there are none, the one whose failures are forgiven
    /// first.
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

/// The address of a subscriber: one IPv4 address, or one /64 network of IPv6, which is what one subscriber has.
pub fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// The network of a [`subscriber`]: the first 24 bits of IPv4; for IPv6 the subscriber's own network.
fn network(subscriber: IpAddr) -> IpAddr {
    match subscriber {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() >> 8 << 8)),
        v6 @ IpAddr::V6(_) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PeerAdmission {
        /// Enters and leaves at once with this result; an error if it was not admitted.
        fn visit(&self, address: IpAddr, now: Instant, proof: KeyProofOutcome) -> Result<(), AdmissionRefusal> {
            self.enter(address, now).map(|ticket| ticket.leave(now, proof))
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn failing_address_is_limited_to_one_try_in_six_seconds() {
        let admission = PeerAdmission::default();
        let (guesser, other) = ("10.0.0.9".parse().unwrap(), "10.0.0.7".parse().unwrap());
        let (mut tried, mut first_failures) = (0, 0);
        for n in 0..1000 {
            // Ten each second.
            let now = Instant::from_nanos(n * 100_000_000);
            match admission.visit(guesser, now, KeyProofOutcome::Failed) {
                Ok(()) => tried += 1,
                Err(AdmissionRefusal::Failures { is_first }) => first_failures += u32::from(is_first),
                Err(other) => panic!("{other}"),
            }
        }
        // In 100 s: the first ten, and one for each six seconds.
        assert_eq!(tried, 10 + 16);
        assert_eq!(first_failures, 1, "and the log says so once");
        assert_eq!(admission.visit(other, at(100), KeyProofOutcome::Failed), Ok(()));
        assert_eq!(admission.visit(guesser, at(200), KeyProofOutcome::Failed), Ok(()), "a pause is forgiven");
    }

    #[test]
    fn lost_links_do_not_lock_a_paired_host_out_nor_help_others() {
        let admission = PeerAdmission::default();
        let (paired, stranger) = ("10.0.0.7".parse().unwrap(), "10.0.0.9".parse().unwrap());
        admission.visit(paired, at(1), KeyProofOutcome::Given).unwrap();
        for _ in 0..1000 {
            admission.visit(paired, at(2), KeyProofOutcome::CutShort).unwrap();
        }
        let let_in = |address, proof| (0..5000).filter(|_| admission.visit(address, at(3), proof).is_ok()).count();
        assert_eq!(let_in(stranger, KeyProofOutcome::CutShort), 10);
        assert_eq!(let_in(paired, KeyProofOutcome::Failed), 2701, "a wrong key is one wherever it comes from");
    }

    #[test]
    fn paired_host_gets_in_beside_another_one_at_its_address_that_fails_all_the_time() {
        let admission = PeerAdmission::default();
        let router = "10.0.0.7".parse().unwrap();
        admission.visit(router, at(1), KeyProofOutcome::Given).unwrap();
        for n in 0..10_000 {
            // Forty failures a second, for four minutes; the paired host comes once in a second.
            let now = Instant::from_nanos(1_000_000_000 + n * 25_000_000);
            admission.visit(router, now, KeyProofOutcome::Failed).unwrap();
            if n % 40 == 0 {
                admission.visit(router, now, KeyProofOutcome::Given).unwrap();
            }
        }
    }

    #[test]
    fn guesses_that_come_together_are_counted_together() {
        let admission = PeerAdmission::default();
        let guesser = "10.0.0.9".parse().unwrap();
        let mut tried = 0;
        for n in 0..100 {
            // Each is still in its handshake when the next arrives; all fail much later.
            let now = Instant::from_nanos(n * 100_000_000);
            let tickets: Vec<AdmissionTicket> = (0..20).filter_map(|_| admission.enter(guesser, now).ok()).collect();
            tried += tickets.len();
            tickets.into_iter().for_each(|ticket| ticket.leave(now, KeyProofOutcome::Failed));
        }
        assert_eq!(tried, 10 + 1);
    }

    /// The nth address, each in a different network.
    fn elsewhere(n: usize) -> IpAddr {
        IpAddr::from([10, 1 + (n / 250) as u8, (n % 250) as u8, 1])
    }

    #[test]
    fn successes_do_not_count_and_places_are_bounded() {
        let admission = PeerAdmission::default();
        for _ in 0..1000 {
            admission.visit(elsewhere(1), at(1), KeyProofOutcome::Given).unwrap();
        }
        let own: Vec<_> =
            (0..STRANGERS_OF_ADDRESS_MAX).map(|_| admission.enter(elsewhere(1), at(1)).unwrap()).collect();
        assert_eq!(admission.enter(elsewhere(1), at(1)).unwrap_err(), AdmissionRefusal::TooManyOfAddress);
        let strangers: Vec<_> = (0..100).map_while(|n| admission.enter(elsewhere(10 + n), at(1)).ok()).collect();
        assert_eq!(strangers.len(), STRANGERS_MAX - PROVED_PLACES);
        assert_eq!(admission.enter(elsewhere(200), at(1)).unwrap_err(), AdmissionRefusal::TooMany);
        assert_eq!(admission.state().waiting.len(), STRANGERS_MAX);
        drop((own, strangers));
        assert_eq!(admission.state().waiting.len(), 0);
        assert!(admission.state().addresses.values().all(|record| record.connected == 0));
        assert!(admission.enter(elsewhere(200), at(1)).is_ok());
    }

    #[test]
    fn a_paired_host_enters_whatever_strangers_of_its_own_network_and_others_do() {
        let admission = PeerAdmission::default();
        let paired = IpAddr::from([10, 0, 0, 7]);
        admission.visit(paired, at(1), KeyProofOutcome::Given).unwrap();
        let mut tickets = Vec::new();
        for n in 0..60 {
            // Idle connections from its own network and from others, at the same moment.
            tickets.extend(admission.enter(IpAddr::from([10, 0, 0, 100 + n]), at(2)));
            tickets.extend(admission.enter(elsewhere(n.into()), at(2)));
        }
        assert_eq!(admission.state().waiting.len(), STRANGERS_MAX);
        for n in 0..12 {
            let ticket = admission.enter(paired, at(2)).unwrap_or_else(|refusal| panic!("{n}: {refusal}"));
            assert!(!ticket.is_cut());
            ticket.leave(at(2), KeyProofOutcome::Given);
            tickets.extend(admission.enter(elsewhere(100 + n), at(2)));
            tickets.extend(admission.enter(IpAddr::from([10, 0, 0, 200 + n as u8]), at(2)));
        }
        // After a day its priority has expired.
        tickets.clear();
        let later = at(2) + PROVED_FOR;
        assert_eq!(admission.state().rank(paired, later), 0);
    }

    #[test]
    fn oldest_connection_is_cut_after_a_second_if_all_places_are_taken() {
        let admission = PeerAdmission::default();
        let places = STRANGERS_MAX - PROVED_PLACES;
        let tickets: Vec<_> = (0..places).map(|n| admission.enter(elsewhere(n), at(1)).unwrap()).collect();
        let ended = Arc::new(Mutex::new(Vec::new()));
        for (n, ticket) in tickets.iter().enumerate() {
            let ended = Arc::clone(&ended);
            ticket.on_cut(move || ended.lock().unwrap().push(n));
        }
        assert_eq!(
            admission.enter(elsewhere(100), at(1)).unwrap_err(),
            AdmissionRefusal::TooMany,
            "each has its second"
        );
        let first = admission.enter(elsewhere(100), at(2)).unwrap();
        let second = admission.enter(elsewhere(101), at(2)).unwrap();
        assert_eq!(*ended.lock().unwrap(), [0, 1]);
        assert!(tickets[0].is_cut() && !tickets[2].is_cut());
        assert_eq!(admission.state().waiting.len(), places);
        // A connection that registers late is ended at once.
        tickets[0].on_cut({
            let ended = Arc::clone(&ended);
            move || ended.lock().unwrap().push(99)
        });
        assert_eq!(*ended.lock().unwrap(), [0, 1, 99]);
        drop((first, second, tickets));
        assert!(admission.state().waiting.is_empty());
    }

    #[test]
    fn a_network_that_fills_all_places_gives_way_at_once_to_another() {
        let admission = PeerAdmission::default();
        let mut tickets: Vec<_> =
            (0..60).filter_map(|n| admission.enter(IpAddr::from([10, 9, 9, n]), at(1)).ok()).collect();
        assert_eq!(tickets.len(), STRANGERS_MAX - PROVED_PLACES);
        tickets.push(admission.enter(elsewhere(1), at(1)).unwrap());
        assert!(tickets[0].is_cut());
        assert_eq!(admission.enter(IpAddr::from([10, 9, 9, 99]), at(1)).unwrap_err(), AdmissionRefusal::TooMany);
    }

    #[test]
    fn long_flood_stays_bounded_and_proved_addresses_keep_their_rank() {
        let admission = PeerAdmission::default();
        let paired = IpAddr::from([10, 0, 0, 7]);
        admission.note_proved(paired, at(1));
        let mut tickets = std::collections::VecDeque::new();
        for n in 0..100_000u32 {
            // A thousand each second, each from another address.
            let now = at(2) + std::time::Duration::from_millis(n.into());
            tickets.extend(admission.enter(IpAddr::from((0x0b00_0000 + n).to_be_bytes()), now));
            while tickets.front().is_some_and(AdmissionTicket::is_cut) {
                tickets.pop_front();
            }
            if n % 1000 == 0 {
                admission.visit(paired, now, KeyProofOutcome::Given).unwrap();
            }
        }
        let state = admission.state();
        assert!(state.waiting.len() <= STRANGERS_MAX && state.addresses.len() <= ADDRESSES_MAX);
        assert!(tickets.len() <= STRANGERS_MAX);
    }

    #[test]
    fn addresses_are_forgotten_and_a_network_of_ipv6_is_one() {
        let admission = PeerAdmission::default();
        for n in 0..2 * ADDRESSES_MAX as u32 {
            admission.visit(IpAddr::from(n.to_be_bytes()), at(1), KeyProofOutcome::Failed).unwrap();
        }
        assert!(admission.state().addresses.len() <= ADDRESSES_MAX);
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(subscriber(one), subscriber("2001:db8::ffff:2".parse().unwrap()));
        assert_ne!(subscriber(one), subscriber("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(subscriber("::ffff:10.0.0.1".parse().unwrap()), IpAddr::from([10, 0, 0, 1]));
    }
}
