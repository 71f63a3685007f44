//! The connections of a confined process: whose they are, and what their clients have shown.
//!
//! A browser of another machine is a stranger until it shows a token. Strangers have places of their own, few from one
//! network, and one that comes when all are taken ends the longest-standing of the network that has the most: so those
//! who are let in lose nothing to strangers, and a stranger alone cannot keep others out.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

use farbus_io::trust::Scope;
use rustix::net::{Shutdown, shutdown};
use tokio::sync::OwnedSemaphorePermit;

use super::super::api::callers::Client;

/// Connections of the owner at a time, and of others; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 1152;
/// Connections of other users of this machine: theirs take nothing from the owner's.
pub const OTHERS_MAX: usize = 16;
/// Strangers at a time: each has a handshake under way, or one request.
pub const STRANGERS_MAX: usize = 64;
/// The same from one network.
const STRANGERS_OF_NETWORK_MAX: usize = 16;
/// Strangers that were told to end and have not yet.
const ENDING_MAX: usize = 32;
/// Connections of browsers that were let in: as many as the owner's programs have.
pub const LET_IN_MAX: usize = CONNECTIONS_MAX;
/// The same of one token.
const OF_TOKEN_MAX: usize = 64;
/// Connections of other machines at a time.
pub const REMOTE_MAX: usize = STRANGERS_MAX + ENDING_MAX + LET_IN_MAX;

/// The open connections, by their numbers.
#[derive(Debug)]
pub struct Clients {
    /// Connections of browsers that were let in, at a time.
    let_in_max: usize,
    last: u64,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    client: Client,
    /// Held until it is closed; those of other machines are counted here.
    _permit: Option<OwnedSemaphorePermit>,
    remote: Option<Remote>,
    shown: Option<Shown>,
    has_ended: bool,
}

/// A connection of another machine.
#[derive(Debug)]
struct Remote {
    /// With it the connection is ended, whatever the confined process does.
    stream: OwnedFd,
    from: IpAddr,
    is_let_in: bool,
}

/// A token that a client has shown last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// As the header `Authorization` says it.
    pub authorization: String,
    /// What it allowed then.
    pub scope: Option<Scope>,
}

/// The part of an address that one customer of a provider has.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

impl Open {
    /// The address of a stranger.
    fn stranger(&self) -> Option<IpAddr> {
        self.remote.as_ref().filter(|remote| !remote.is_let_in).map(|remote| remote.from)
    }

    fn end(&mut self) {
        self.has_ended = true;
        if let Some(remote) = &self.remote {
            // One that its client has closed already is fine.
            let _ = shutdown(&remote.stream, Shutdown::Both);
        }
    }
}

impl Clients {
    /// None yet. This process may have so many descriptors; each connection of another machine takes one.
    pub fn with_descriptors(count: usize) -> Self {
        let left = count.saturating_sub(STRANGERS_MAX + ENDING_MAX);
        Self { let_in_max: left.clamp(1, LET_IN_MAX), last: 0, open: BTreeMap::new() }
    }

    fn add(&mut self, open: Open) -> u64 {
        self.last += 1;
        self.open.insert(self.last, open);
        self.last
    }

    /// Adds a connection of this machine. Returns its number.
    pub fn add_local(&mut self, client: Client, permit: OwnedSemaphorePermit) -> u64 {
        self.add(Open { client, _permit: Some(permit), remote: None, shown: None, has_ended: false })
    }

    /// Adds a connection of another machine, if there is a place for it. Returns its number.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn add_remote(&mut self, stream: &OwnedFd, from: IpAddr) -> io::Result<Option<u64>> {
        let from = network(from);
        if self.open.values().filter(|open| open.stranger().is_some()).count() >= STRANGERS_MAX + ENDING_MAX {
            return Ok(None);
        }
        let mut of_networks: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for of in self.open.values().filter(|open| !open.has_ended).filter_map(Open::stranger) {
            *of_networks.entry(of).or_default() += 1;
        }
        if of_networks.get(&from).is_some_and(|count| *count >= STRANGERS_OF_NETWORK_MAX) {
            return Ok(None);
        }
        if of_networks.values().sum::<usize>() >= STRANGERS_MAX {
            let most = of_networks.iter().max_by_key(|(_, count)| **count).map(|(network, _)| *network);
            let is_of_most = |open: &&mut Open| !open.has_ended && open.stranger() == most;
            // Numbers grow: the first is the one that has been here longest.
            if let Some(oldest) = self.open.values_mut().find(is_of_most) {
                oldest.end();
            }
        }
        let remote = Remote { stream: stream.try_clone()?, from, is_let_in: false };
        let client = Client::Remote;
        Ok(Some(self.add(Open { client, _permit: None, remote: Some(remote), shown: None, has_ended: false })))
    }

    /// The connection was closed.
    pub fn remove(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Who has a connection; `None`: it is closed, or was ended.
    pub fn find(&self, number: u64) -> Option<Client> {
        self.open.get(&number).filter(|open| !open.has_ended).map(|open| open.client)
    }

    /// The network that a connection of another machine comes from.
    pub fn network(&self, number: u64) -> Option<IpAddr> {
        self.open.get(&number).and_then(|open| open.remote.as_ref()).map(|remote| remote.from)
    }

    /// What the client of a connection may do who shows this, or nothing, if it has shown that before.
    pub fn scope_of(&self, number: u64, authorization: Option<&str>) -> Option<Scope> {
        let open = self.open.get(&number).filter(|open| !open.has_ended)?;
        match authorization {
            None => (open.client == Client::Owner).then_some(Scope::Own),
            Some(said) => open.shown.as_ref().filter(|shown| shown.authorization == said)?.scope,
        }
    }

    /// The client of a connection has shown a token that counts. Returns whether there is a place for it: one of
    /// another machine is no stranger from now on.
    pub fn show(&mut self, number: u64, shown: Shown) -> bool {
        let is_stranger = self.open.get(&number).is_some_and(|open| open.stranger().is_some());
        if is_stranger {
            let let_in = || self.open.values().filter(|open| open.remote.as_ref().is_some_and(|of| of.is_let_in));
            let is_its = |open: &&Open| open.shown.as_ref().is_some_and(|of| of.authorization == shown.authorization);
            if let_in().count() >= self.let_in_max || let_in().filter(is_its).count() >= OF_TOKEN_MAX {
                return false;
            }
        }
        if let Some(open) = self.open.get_mut(&number) {
            open.shown = Some(shown);
            open.remote.iter_mut().for_each(|remote| remote.is_let_in = true);
        }
        true
    }

    /// The tokens that clients have shown, each once.
    pub fn shown(&self) -> Vec<Shown> {
        let mut all: Vec<Shown> =
            self.open.values().filter(|open| !open.has_ended).filter_map(|open| open.shown.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Ends the connections whose clients have shown this token. Returns their numbers.
    pub fn end_those_with(&mut self, shown: &Shown) -> Vec<u64> {
        let is_its = |open: &Open| !open.has_ended && open.shown.as_ref() == Some(shown);
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
        let mut clients = Clients::with_descriptors(usize::MAX);
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
        let mut clients = Clients::with_descriptors(usize::MAX);
        let (first, first_client) = connection();
        let (owners, owners_client) = connection();
        let owner = clients.add_remote(&owners, from("198.51.100.1")).unwrap().unwrap();
        let token = Shown { authorization: "Bearer x".into(), scope: Some(Scope::Own) };
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
        assert!(is_open(&owners_client) && clients.find(owner) == Some(Client::Remote), "it was let in");
        // Whatever becomes of those that end, there is an end to them.
        let more = (0..1000).filter(|n| {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
            clients.add_remote(&others, address).unwrap().is_some()
        });
        assert_eq!(more.count(), ENDING_MAX - 1);
    }

    #[test]
    fn connections_end_with_the_token_that_they_have_shown() {
        let mut clients = Clients::with_descriptors(usize::MAX);
        let shown = |authorization: &str| Shown { authorization: authorization.into(), scope: Some(Scope::Read) };
        let (stream, client) = connection();
        let numbers: Vec<u64> =
            (0..3).map(|n| clients.add_remote(&stream, from(&format!("192.0.2.{n}"))).unwrap().unwrap()).collect();
        assert!(clients.show(numbers[0], shown("a")) && clients.show(numbers[1], shown("b")));
        assert!(clients.show(numbers[2], shown("a")));
        assert_eq!(clients.shown(), [shown("a"), shown("b")]);
        assert_eq!(clients.end_those_with(&shown("a")), [numbers[0], numbers[2]]);
        assert!(!is_open(&client), "also if the confined process keeps it");
        assert_eq!((clients.find(numbers[0]), clients.find(numbers[1])), (None, Some(Client::Remote)));
        assert_eq!(clients.shown(), [shown("b")]);
    }

    #[test]
    fn one_token_has_so_many_connections_and_all_together_have() {
        let mut clients = Clients::with_descriptors(usize::MAX);
        let (stream, _client) = connection();
        let mut let_in = |token: &str| {
            let number = clients.add_remote(&stream, from("192.0.2.7")).unwrap().unwrap();
            let shown = Shown { authorization: token.into(), scope: Some(Scope::Read) };
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
            assert_eq!(Clients::with_descriptors(count).let_in_max, let_in_max, "{count}");
        }
    }
}
