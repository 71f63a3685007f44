//! The connections of a confined process: whose they are, and what their clients have shown.
//!
//! Who is not the owner has a place of a pool: a browser of another machine until it shows a token, and a program of
//! another user. Who comes when all places of a pool are taken ends a connection of the network, or of the user, that
//! has the most: the longest-standing of those that have shown nothing, else of all. So nobody keeps others out alone,
//! and those who are let in lose nothing to strangers.
//!
//! | pool | places | of one | one more of who has the most |
//! |---|---|---|---|
//! | other machines' browsers, by network | [`STRANGERS_MAX`] | [`STRANGERS_OF_NETWORK_MAX`] | ends the oldest |
//! | other users' programs, by user | [`OTHERS_MAX`] | all, while nobody else comes | is refused |

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

use farbus_io_net::trust::PageScope;
use rustix::net::{Shutdown, shutdown};
use tokio::sync::OwnedSemaphorePermit;

use crate::api::callers::ClientKind;

/// Connections of the owner at a time, and of others; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 1152;
/// Places for programs of other users of this machine: theirs take nothing from the owner's.
const OTHERS_MAX: usize = 16;
/// Connections of other users of this machine, with those that were told to end and have not yet.
pub const OF_OTHERS_MAX: usize = 2 * OTHERS_MAX;
/// Strangers at a time: each has a handshake under way, or one request.
pub const STRANGERS_MAX: usize = 64;
/// Strangers at a time from one network.
const STRANGERS_OF_NETWORK_MAX: usize = 16;
/// Strangers that were told to end and have not yet.
const ENDING_MAX: usize = 32;
/// Connections of browsers that were let in: as many as the owner's programs have.
pub const LET_IN_MAX: usize = CONNECTIONS_MAX;
/// Connections at a time of browsers that one token let in.
const OF_TOKEN_MAX: usize = 64;
/// Connections of other machines at a time.
pub const REMOTE_MAX: usize = STRANGERS_MAX + ENDING_MAX + LET_IN_MAX;

/// The open connections, by their numbers.
#[derive(Debug)]
pub struct ClientConnections {
    /// Connections of browsers that were let in, at a time.
    let_in_max: usize,
    last: u64,
    open: BTreeMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    client: ClientKind,
    /// Held until it is closed; those that are not the owner's are counted here.
    _permit: Option<OwnedSemaphorePermit>,
    pooled: Option<PooledConnection>,
    shown: Option<ClientToken>,
    has_ended: bool,
}

/// A connection that has, or had, a place of a pool.
#[derive(Debug)]
struct PooledConnection {
    /// With it the connection is ended, whatever the confined process does.
    stream: OwnedFd,
    whose: PoolShareKey,
    is_let_in: bool,
}

/// Whose share of a pool a connection takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PoolShareKey {
    /// Another machine's network.
    Network(IpAddr),
    /// Another user of this machine; `None`: one that is not known.
    User(Option<u32>),
}

/// Places that many share.
struct ConnectionPoolLimits {
    places: usize,
    of_one_max: usize,
    /// Connections that were told to end and have not yet.
    ending_max: usize,
    /// Whether who has the most may have one more for an older one. Handshakes are short; what programs follow is not.
    replaces_own: bool,
}

const STRANGERS: ConnectionPoolLimits = ConnectionPoolLimits {
    places: STRANGERS_MAX,
    of_one_max: STRANGERS_OF_NETWORK_MAX,
    ending_max: ENDING_MAX,
    replaces_own: true,
};
const OTHERS: ConnectionPoolLimits = ConnectionPoolLimits {
    places: OTHERS_MAX,
    of_one_max: OTHERS_MAX,
    ending_max: OF_OTHERS_MAX - OTHERS_MAX,
    replaces_own: false,
};

/// A token that a client has shown last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientToken {
    /// As the header `Authorization` says it.
    pub authorization: String,
    /// What it allowed then.
    pub scope: Option<PageScope>,
}

/// The part of an address that one customer of a provider has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

impl OpenConnection {
    /// Whose place of a pool it has.
    fn pool_share(&self) -> Option<PoolShareKey> {
        self.pooled.as_ref().filter(|pooled| !pooled.is_let_in).map(|pooled| pooled.whose)
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Some(pooled) = &self.pooled {
            // One that its client has closed already is fine.
            let _ = shutdown(&pooled.stream, Shutdown::Both);
        }
    }
}

impl ClientConnections {
    /// None yet. This process may have so many descriptors; each connection of another machine takes one.
    pub fn with_descriptors(count: usize) -> Self {
        let left = count.saturating_sub(STRANGERS_MAX + ENDING_MAX);
        Self { let_in_max: left.clamp(1, LET_IN_MAX), last: 0, open: BTreeMap::new() }
    }

    fn add(&mut self, open: OpenConnection) -> u64 {
        self.last += 1;
        self.open.insert(self.last, open);
        self.last
    }

    /// Adds a connection of the owner. Returns its number.
    pub fn add_owner(&mut self, permit: OwnedSemaphorePermit) -> u64 {
        let client = ClientKind::Owner;
        self.add(OpenConnection { client, _permit: Some(permit), pooled: None, shown: None, has_ended: false })
    }

    /// Adds a connection of another user of this machine (`None`: one that is not known), if there is a place for it.
    /// Returns its number.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn add_other(&mut self, stream: &OwnedFd, user: Option<u32>) -> io::Result<Option<u64>> {
        self.add_pooled(&OTHERS, ClientKind::Other, PoolShareKey::User(user), stream)
    }

    /// Adds a connection of another machine, if there is a place for it. Returns its number.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn add_remote(&mut self, stream: &OwnedFd, from: IpAddr) -> io::Result<Option<u64>> {
        self.add_pooled(&STRANGERS, ClientKind::Remote, PoolShareKey::Network(network(from)), stream)
    }

    fn add_pooled(
        &mut self,
        pool: &ConnectionPoolLimits,
        client: ClientKind,
        whose: PoolShareKey,
        stream: &OwnedFd,
    ) -> io::Result<Option<u64>> {
        if self.open.values().filter(|open| open.pool_share().is_some()).count() >= pool.places + pool.ending_max {
            return Ok(None);
        }
        let mut counts: BTreeMap<PoolShareKey, usize> = BTreeMap::new();
        for of in self.open.values().filter(|open| !open.has_ended).filter_map(OpenConnection::pool_share) {
            *counts.entry(of).or_default() += 1;
        }
        let own = counts.get(&whose).copied().unwrap_or_default();
        if own >= pool.of_one_max {
            return Ok(None);
        }
        if counts.values().sum::<usize>() >= pool.places {
            let most = counts.values().copied().max().unwrap_or_default();
            if own >= most && !pool.replaces_own {
                return Ok(None);
            }
            self.end_one_of(|of| counts.get(&of) == Some(&most));
        }
        let pooled = PooledConnection { stream: stream.try_clone()?, whose, is_let_in: false };
        Ok(Some(self.add(OpenConnection {
            client,
            _permit: None,
            pooled: Some(pooled),
            shown: None,
            has_ended: false,
        })))
    }

    /// Ends the longest-standing of these connections: of those that have shown nothing, if there are any.
    fn end_one_of(&mut self, is_meant: impl Fn(PoolShareKey) -> bool) {
        let is_its = |open: &OpenConnection| !open.has_ended && open.pool_share().is_some_and(&is_meant);
        // Numbers grow: the first is the one that has been here longest.
        let candidates = self.open.iter().filter(|(_, open)| is_its(open));
        let number =
            candidates.min_by_key(|(number, open)| (open.shown.is_some(), **number)).map(|(number, _)| *number);
        if let Some(open) = number.and_then(|number| self.open.get_mut(&number)) {
            open.end();
        }
    }

    /// The connection was closed.
    pub fn remove(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Who has a connection; `None`: it is closed, or was ended.
    pub fn find(&self, number: u64) -> Option<ClientKind> {
        self.open.get(&number).filter(|open| !open.has_ended).map(|open| open.client)
    }

    /// The network that a connection of another machine comes from.
    pub fn network(&self, number: u64) -> Option<IpAddr> {
        match self.open.get(&number)?.pooled.as_ref()?.whose {
            PoolShareKey::Network(network) => Some(network),
            PoolShareKey::User(_) => None,
        }
    }

    /// What the client of a connection may do who shows this, or nothing, if it has shown that before.
    pub fn scope_of(&self, number: u64, authorization: Option<&str>) -> Option<PageScope> {
        let open = self.open.get(&number).filter(|open| !open.has_ended)?;
        match authorization {
            None => (open.client == ClientKind::Owner).then_some(PageScope::Own),
            Some(authorization) => open.shown.as_ref().filter(|shown| shown.authorization == authorization)?.scope,
        }
    }

    /// The client of a connection has shown a token that counts. Returns whether there is a place for it: one of
    /// another machine is no stranger from now on.
    pub fn show(&mut self, number: u64, shown: ClientToken) -> bool {
        let is_stranger = |open: &OpenConnection| open.client == ClientKind::Remote && open.pool_share().is_some();
        if self.open.get(&number).is_some_and(is_stranger) {
            let let_in = || self.open.values().filter(|open| open.pooled.as_ref().is_some_and(|of| of.is_let_in));
            let is_its =
                |open: &&OpenConnection| open.shown.as_ref().is_some_and(|of| of.authorization == shown.authorization);
            if let_in().count() >= self.let_in_max || let_in().filter(is_its).count() >= OF_TOKEN_MAX {
                return false;
            }
        }
        if let Some(open) = self.open.get_mut(&number) {
            open.shown = Some(shown);
            let is_remote = open.client == ClientKind::Remote;
            open.pooled.iter_mut().for_each(|pooled| pooled.is_let_in = is_remote);
        }
        true
    }

    /// The client of a connection signs out: it is as one that has shown nothing, so that the end of its token does
    /// not cut off the answer that says so.
    pub fn sign_out(&mut self, number: u64) {
        if let Some(open) = self.open.get_mut(&number) {
            open.shown = None;
            open.pooled.iter_mut().for_each(|pooled| pooled.is_let_in = false);
        }
    }

    /// The tokens that clients have shown, each once.
    pub fn shown(&self) -> Vec<ClientToken> {
        let mut all: Vec<ClientToken> =
            self.open.values().filter(|open| !open.has_ended).filter_map(|open| open.shown.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Ends the connections whose clients have shown this token. Returns their numbers.
    pub fn end_those_with(&mut self, shown: &ClientToken) -> Vec<u64> {
        let is_its = |open: &OpenConnection| !open.has_ended && open.shown.as_ref() == Some(shown);
        let ended = self.open.iter_mut().filter(|(_, open)| is_its(open));
        ended
            .map(|(number, open)| {
                open.end();
                *number
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A connection, and its client's end.
    fn connection() -> (OwnedFd, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours.into(), theirs)
    }

    fn is_open(mut client: &UnixStream) -> bool {
        client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    #[test]
    fn strangers_of_one_network_have_few_places_and_take_none_from_another() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let (stream, client) = connection();
        for _ in 0..STRANGERS_OF_NETWORK_MAX {
            assert!(clients.add_remote(&stream, from("192.0.2.7")).unwrap().is_some());
        }
        assert_eq!(clients.add_remote(&stream, from("192.0.2.7")).unwrap(), None);
        assert_eq!(clients.add_remote(&stream, from("::ffff:192.0.2.7")).unwrap(), None, "the same");
        for n in 0..STRANGERS_OF_NETWORK_MAX {
            assert!(clients.add_remote(&stream, from(&format!("2001:db8::{n}"))).unwrap().is_some());
        }
        assert_eq!(clients.add_remote(&stream, from("2001:db8::ffff")).unwrap(), None, "the same /64");
        assert!(clients.add_remote(&stream, from("192.0.2.8")).unwrap().is_some());
        assert!(is_open(&client));
    }

    #[test]
    fn a_stranger_that_comes_when_all_places_are_taken_ends_the_oldest_of_the_network_with_the_most() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let (first, first_client) = connection();
        let (owners, owners_client) = connection();
        let owner = clients.add_remote(&owners, from("198.51.100.1")).unwrap().unwrap();
        let token = ClientToken { authorization: "Bearer x".into(), scope: Some(PageScope::Own) };
        assert!(clients.show(owner, token));
        let oldest = clients.add_remote(&first, from("192.0.2.0")).unwrap().unwrap();
        let (others, _others_client) = connection();
        clients.add_remote(&others, from("192.0.2.0")).unwrap().unwrap();
        for n in 2..STRANGERS_MAX {
            clients.add_remote(&others, from(&format!("192.0.2.{n}"))).unwrap().unwrap();
        }
        assert!(is_open(&first_client));
        assert!(clients.add_remote(&others, from("203.0.113.9")).unwrap().is_some());
        assert!(!is_open(&first_client) && clients.find(oldest).is_none());
        assert!(is_open(&owners_client) && clients.find(owner) == Some(ClientKind::Remote), "it was let in");
        // Whatever becomes of those that end, there is an end to them.
        let more = (0..1000).filter(|n| {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
            clients.add_remote(&others, address).unwrap().is_some()
        });
        assert_eq!(more.count(), ENDING_MAX - 1);
    }

    #[test]
    fn a_user_that_has_taken_all_places_gives_those_way_who_have_fewer() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let (eve, ann) = (Some(1600), Some(1700));
        let (first, first_client) = connection();
        let (stream, _client) = connection();
        let oldest = clients.add_other(&first, eve).unwrap().unwrap();
        let shown = |n: u32| ClientToken { authorization: format!("Bearer {n}"), scope: Some(PageScope::Read) };
        assert!(clients.show(oldest, shown(0)));
        let silent = clients.add_other(&first, eve).unwrap().unwrap();
        for _ in 2..OTHERS_MAX {
            clients.add_other(&stream, eve).unwrap().unwrap();
        }
        assert_eq!(clients.add_other(&stream, eve).unwrap(), None, "nobody else has one to give way");
        assert!(is_open(&first_client));
        let ann_first = clients.add_other(&stream, ann).unwrap().unwrap();
        assert_eq!(
            (clients.find(silent), clients.find(oldest)),
            (None, Some(ClientKind::Other)),
            "the silent one first"
        );
        assert!(!is_open(&first_client));
        assert!(clients.show(ann_first, shown(1)));
        for _ in 1..OTHERS_MAX / 2 {
            assert!(clients.add_other(&stream, ann).unwrap().is_some());
        }
        assert_eq!(clients.add_other(&stream, ann).unwrap(), None, "half of them is its share");
        assert_eq!(clients.add_other(&stream, eve).unwrap(), None, "and the other half eve's");
        assert!(clients.find(ann_first).is_some());
        // Users without number: who has shown a token is the last to go.
        for user in 0..1000 {
            if let Some(number) = clients.add_other(&stream, Some(user)).unwrap() {
                clients.find(number).unwrap();
            }
            let ended: Vec<u64> = clients.open.iter().filter(|(_, open)| open.has_ended).map(|(n, _)| *n).collect();
            ended.into_iter().for_each(|number| clients.remove(number));
        }
        assert!(clients.find(ann_first).is_some() && clients.open.len() == OTHERS_MAX);
    }

    #[test]
    fn connections_end_with_the_token_that_they_have_shown() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let shown =
            |authorization: &str| ClientToken { authorization: authorization.into(), scope: Some(PageScope::Read) };
        let (stream, client) = connection();
        let numbers: Vec<u64> =
            (0..3).map(|n| clients.add_remote(&stream, from(&format!("192.0.2.{n}"))).unwrap().unwrap()).collect();
        assert!(clients.show(numbers[0], shown("a")) && clients.show(numbers[1], shown("b")));
        assert!(clients.show(numbers[2], shown("a")));
        assert_eq!(clients.shown(), [shown("a"), shown("b")]);
        assert_eq!(clients.end_those_with(&shown("a")), [numbers[0], numbers[2]]);
        assert!(!is_open(&client), "also if the confined process keeps it");
        assert_eq!((clients.find(numbers[0]), clients.find(numbers[1])), (None, Some(ClientKind::Remote)));
        assert_eq!(clients.shown(), [shown("b")]);
    }

    #[test]
    fn a_connection_that_signs_out_is_a_strangers_and_gets_its_answer() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let token = ClientToken { authorization: "a".into(), scope: Some(PageScope::Read) };
        let ((leaves, leaving), (follows, following)) = (connection(), connection());
        let numbers = [&leaves, &follows].map(|one| clients.add_remote(one, from("192.0.2.7")).unwrap().unwrap());
        assert!(numbers.iter().all(|number| clients.show(*number, token.clone())));
        clients.sign_out(numbers[0]);
        assert_eq!(clients.end_those_with(&token), [numbers[1]]);
        assert!(is_open(&leaving) && !is_open(&following));
        assert!(clients.open[&numbers[0]].pool_share().is_some(), "it makes way for others as a stranger does");
    }

    #[test]
    fn one_token_has_so_many_connections_and_all_together_have() {
        let mut clients = ClientConnections::with_descriptors(usize::MAX);
        let (stream, _client) = connection();
        let mut let_in = |token: &str| {
            let number = clients.add_remote(&stream, from("192.0.2.7")).unwrap().unwrap();
            let shown = ClientToken { authorization: token.into(), scope: Some(PageScope::Read) };
            let is_in = clients.show(number, shown);
            if !is_in {
                clients.remove(number);
            }
            is_in
        };
        assert_eq!((0..100).filter(|_| let_in("a")).count(), OF_TOKEN_MAX);
        assert_eq!((0..2000).filter(|n| let_in(&format!("of {n}"))).count(), LET_IN_MAX - OF_TOKEN_MAX);
    }

    #[test]
    fn browsers_of_other_machines_take_no_more_descriptors_than_the_process_may_have() {
        for (count, let_in_max) in [(0, 1), (STRANGERS_MAX + ENDING_MAX + 40, 40), (1 << 20, LET_IN_MAX)] {
            assert_eq!(ClientConnections::with_descriptors(count).let_in_max, let_in_max, "{count}");
        }
    }
}
