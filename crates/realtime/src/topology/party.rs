//! The bring-up as a protocol between hosts: each host tells its neighbours its progress, and carries out its
//! [`BringUp`]. R3.
//!
//! A cable does not tell a host whose port is at its other end, so hosts tell each other over another network. There is
//! one message with the host's whole state. It is sent on a new link and whenever it has changed; the last one counts,
//! so a link may be lost, and made again, at any time. No action begins before every neighbour was heard and has the
//! same plan: a neighbour with another plan might enumerate a port at any moment.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 3 | `fbup` |
//! | 4 | the version, 1 |
//! | 5 | 1: the sender's port is enabled; 2: it has the receiver's |
//! | 6, 7 | zero |
//! | 8 to 11 | the sender's number in the plan, little-endian |
//! | 12 to 19 | a digest of the plan, little-endian |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::bring_up::{BringUp, BringUpAction};
use super::links::{HostTopology, TopologyLink};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 20;
const MAGIC: [u8; 4] = *b"fbup";
const VERSION: u8 = 1;
const IS_ENABLED: u8 = 1;
const HAS_YOURS: u8 = 2;

/// Why a neighbour's message is invalid; its link is then of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BringUpMessageError {
    /// A wrong beginning, another version, or an undefined value.
    Tongue {
        /// The offset of the first wrong byte.
        at: usize,
    },
    /// It comes from another host than the link leads to, or from one that is no neighbour.
    Stranger {
        /// The host at the other end of the link.
        expected: u32,
        /// The host named in the message.
        stated: u32,
    },
    /// The sender has another plan.
    Plan {
        /// The host that sent the message.
        host: u32,
    },
}

impl fmt::Display for BringUpMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tongue { at } => write!(f, "byte {at} is none of this protocol's version {VERSION}"),
            Self::Stranger { expected, stated } => {
                write!(f, "host {stated} speaks where host {expected} is expected")
            }
            Self::Plan { host } => {
                write!(f, "host {host} follows another plan: give both the same file, see 'farbus plan topology'")
            }
        }
    }
}

impl std::error::Error for BringUpMessageError {}

/// One host's side of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BringUpProtocol {
    host: u32,
    plan: u64,
    part: BringUp,
    /// The host that should enumerate this host's port, and the host that says it has.
    debug_host: Option<u32>,
    holder: Option<u32>,
    is_enabled: bool,
    taken: BTreeSet<u32>,
    neighbours: BTreeMap<u32, BringUpNeighbour>,
    /// The hosts that a bridge joins it with.
    bridged: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct BringUpNeighbour {
    was_heard: bool,
    /// A message is due, and there is a link for it.
    is_owed: bool,
    is_linked: bool,
}

impl BringUpProtocol {
    /// Makes `host`'s side.
    pub fn new(topology: &HostTopology, host: u32) -> Self {
        let wired = topology.debug_links().flat_map(|(a, b)| [(a, b), (b, a)]);
        let bridged = topology.links().iter().filter_map(|link| match *link {
            TopologyLink::Bridge { a, b } if a == host => Some(b),
            TopologyLink::Bridge { a, b } if b == host => Some(a),
            _ => None,
        });
        Self {
            host,
            plan: digest(topology),
            part: BringUp::of(topology, host),
            debug_host: topology.debug_host(host),
            holder: None,
            is_enabled: false,
            taken: BTreeSet::new(),
            neighbours: wired
                .filter(|(end, _)| *end == host)
                .map(|(_, other)| (other, BringUpNeighbour::default()))
                .collect(),
            bridged: bridged.collect(),
        }
    }

    /// The hosts it is wired to, debug port to debug port: it needs a link to each.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> {
        self.neighbours.keys().copied()
    }

    /// There is a new link to `neighbour`.
    pub fn handle_linked(&mut self, neighbour: u32) {
        if let Some(known) = self.neighbours.get_mut(&neighbour) {
            (known.is_linked, known.is_owed) = (true, true);
        }
    }

    /// The link is lost; what was received on it is still valid.
    pub fn handle_link_lost(&mut self, neighbour: u32) {
        if let Some(known) = self.neighbours.get_mut(&neighbour) {
            (known.is_linked, known.is_owed) = (false, false);
        }
    }

    /// Processes a message from the link to `neighbour`. A host beyond a bridge only has to have the same plan.
    ///
    /// # Errors
    /// [`BringUpMessageError`]; the message has no effect.
    pub fn handle_received(
        &mut self,
        neighbour: u32,
        message: &[u8; MESSAGE_BYTES],
    ) -> Result<(), BringUpMessageError> {
        let frame = [MAGIC.as_slice(), &[VERSION, message[5] & (IS_ENABLED | HAS_YOURS), 0, 0]].concat();
        if let Some(at) = (0..frame.len()).find(|&at| message[at] != frame[at]) {
            return Err(BringUpMessageError::Tongue { at });
        }
        let stated = u32::from_le_bytes([message[8], message[9], message[10], message[11]]);
        let is_joined = self.neighbours.contains_key(&neighbour) || self.bridged.contains(&neighbour);
        if !is_joined || stated != neighbour {
            return Err(BringUpMessageError::Stranger { expected: neighbour, stated });
        }
        if message[12..] != self.plan.to_le_bytes() {
            return Err(BringUpMessageError::Plan { host: neighbour });
        }
        let Some(known) = self.neighbours.get_mut(&neighbour) else { return Ok(()) };
        known.was_heard = true;
        if message[5] & IS_ENABLED != 0 {
            self.part.handle_attached(neighbour);
        } else {
            self.part.handle_detached(neighbour);
        }
        if message[5] & HAS_YOURS != 0 {
            self.holder = Some(neighbour);
        } else if self.holder == Some(neighbour) {
            self.holder = None;
        }
        Ok(())
    }

    /// The next message, and its receiver.
    pub fn poll_transmit(&mut self) -> Option<(u32, [u8; MESSAGE_BYTES])> {
        let (&to, known) = self.neighbours.iter_mut().find(|(_, known)| known.is_owed)?;
        known.is_owed = false;
        Some((to, self.message_for(to)))
    }

    /// The current message for `neighbour`, for callers that send it repeatedly.
    pub fn message_for(&self, neighbour: u32) -> [u8; MESSAGE_BYTES] {
        let enabled = if self.is_enabled { IS_ENABLED } else { 0 };
        let has_yours = if self.taken.contains(&neighbour) { HAS_YOURS } else { 0 };
        let mut message = [0; MESSAGE_BYTES];
        message[..4].copy_from_slice(&MAGIC);
        (message[4], message[5]) = (VERSION, enabled | has_yours);
        message[8..12].copy_from_slice(&self.host.to_le_bytes());
        message[12..].copy_from_slice(&self.plan.to_le_bytes());
        message
    }

    /// The next action; `None` while waiting, or at the end.
    pub fn poll(&self) -> Option<BringUpAction> {
        let is_known = self.neighbours.values().all(|known| known.was_heard);
        self.part.poll().filter(|_| is_known)
    }

    /// The action of [`BringUpProtocol::poll`] is complete; an enumeration found the ports of `found`.
    pub fn handle_done(&mut self, act: BringUpAction, found: impl IntoIterator<Item = u32>) {
        self.part.handle_done();
        match act {
            BringUpAction::Enable => self.is_enabled = true,
            BringUpAction::Enumerate => self.taken.extend(found),
        }
        self.owe();
    }

    /// After the enumeration: whether this host has the port of `neighbour` now. It may lose it and get it again.
    pub fn handle_held(&mut self, neighbour: u32, is_held: bool) {
        let changed = match is_held {
            true => self.taken.insert(neighbour),
            false => self.taken.remove(&neighbour),
        };
        if changed {
            self.owe();
        }
    }

    fn owe(&mut self) {
        for known in self.neighbours.values_mut() {
            known.is_owed = known.is_linked;
        }
    }

    /// Whether its own port is enabled.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether its actions are complete, and the host that should have its port says that it has.
    pub fn is_complete(&self) -> bool {
        self.part.is_complete() && self.holder == self.debug_host
    }

    /// A host that has its port and should not: never happens unless a host enumerated out of turn.
    pub fn stray(&self) -> Option<u32> {
        self.holder.filter(|holder| Some(*holder) != self.debug_host)
    }

    /// The neighbours it waits for: those not heard yet, or else those whose ports are not enabled.
    pub fn waits_for(&self) -> Vec<u32> {
        let unheard: Vec<_> = self.neighbours.iter().filter(|(_, known)| !known.was_heard).map(|it| *it.0).collect();
        if unheard.is_empty() { self.part.waits_for().collect() } else { unheard }
    }
}

/// FNV-1a, 64 bits, of the links: plans that differ by accident have different digests.
fn digest(topology: &HostTopology) -> u64 {
    let words = topology.links().iter().flat_map(|link| match *link {
        TopologyLink::Debug { target, host } => [1, target, host],
        TopologyLink::Bridge { a, b } => [2, a, b],
    });
    let bytes = std::iter::once(topology.hosts()).chain(words).flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::links::{NetworkPattern, plan};
    use super::*;

    fn planned(hosts: u32, cables: &[(u32, u32)]) -> HostTopology {
        plan(hosts, cables, &BTreeSet::new()).unwrap()
    }

    /// All hosts, their debug ports, and each host's last message to each other host that has not arrived.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        parties: Vec<BringUpProtocol>,
        is_enabled: Vec<bool>,
        owners: Vec<Option<u32>>,
        unheard: BTreeMap<(u32, u32), [u8; MESSAGE_BYTES]>,
    }

    impl World {
        /// All links are up; no message has arrived, or all from hosts that are there.
        fn new(topology: &HostTopology, is_heard: bool) -> Self {
            let hosts = topology.hosts() as usize;
            let parties = (0..topology.hosts()).map(|host| BringUpProtocol::new(topology, host)).collect();
            let mut world =
                Self { parties, is_enabled: vec![false; hosts], owners: vec![None; hosts], unheard: BTreeMap::new() };
            for party in &mut world.parties {
                let neighbours: Vec<_> = party.neighbours().collect();
                neighbours.into_iter().for_each(|other| party.handle_linked(other));
            }
            world.post();
            if is_heard {
                world.unheard.keys().copied().collect::<Vec<_>>().into_iter().for_each(|way| world.deliver(way));
            }
            world
        }

        fn post(&mut self) {
            for (from, party) in (0..).zip(&mut self.parties) {
                while let Some((to, message)) = party.poll_transmit() {
                    self.unheard.insert((from, to), message);
                }
            }
        }

        fn deliver(&mut self, (from, to): (u32, u32)) {
            let message = self.unheard.remove(&(from, to)).unwrap();
            self.parties[to as usize].handle_received(from, &message).unwrap();
        }

        /// An enumeration takes every port that is there, wanted or not.
        fn act(&mut self, host: u32, act: BringUpAction) {
            let at = host as usize;
            let mut found = Vec::new();
            match act {
                BringUpAction::Enable => self.is_enabled[at] = true,
                BringUpAction::Enumerate => {
                    for other in self.parties[at].neighbours() {
                        if self.is_enabled[other as usize] && self.owners[other as usize].is_none() {
                            self.owners[other as usize] = Some(host);
                            found.push(other);
                        }
                    }
                }
            }
            self.parties[at].handle_done(act, found);
            self.post();
            // No host waits to learn that a port was taken: that message arrives at once, which leaves fewer states.
            let is_for_nobody = |(from, to): &(u32, u32)| self.parties[*to as usize].debug_host == Some(*from);
            let heard: Vec<_> = self.unheard.keys().copied().filter(is_for_nobody).collect();
            heard.into_iter().for_each(|way| self.deliver(way));
        }
    }

    /// Tries every order in which hosts act and messages arrive; returns every final state.
    fn ends(start: World) -> Vec<World> {
        let (mut seen, mut open, mut ends) = (HashSet::from([start.clone()]), vec![start], Vec::new());
        while let Some(world) = open.pop() {
            let acts = (0..).zip(&world.parties).filter_map(|(host, party): (u32, _)| Some((host, party.poll()?)));
            let mut nexts: Vec<World> = Vec::new();
            for (host, act) in acts {
                let mut next = world.clone();
                next.act(host, act);
                nexts.push(next);
            }
            for &way in world.unheard.keys() {
                let mut next = world.clone();
                next.deliver(way);
                nexts.push(next);
            }
            if nexts.is_empty() {
                ends.push(world);
            }
            open.extend(nexts.into_iter().filter(|next| seen.insert(next.clone())));
        }
        ends
    }

    fn assert_comes_up(topology: &HostTopology, is_heard: bool) {
        let ends = ends(World::new(topology, is_heard));
        assert!(!ends.is_empty());
        for end in ends {
            assert!(end.parties.iter().all(|party| party.is_complete() && party.stray().is_none()), "{topology:?}");
            assert!((0..topology.hosts()).all(|host| end.owners[host as usize] == topology.debug_host(host)));
        }
    }

    fn graphs(hosts: u32) -> impl Iterator<Item = HostTopology> {
        let pairs: Vec<_> = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
        (0..1u32 << pairs.len()).map(move |graph| {
            let cables: Vec<_> = (0..pairs.len()).filter(|i| graph >> i & 1 == 1).map(|i| pairs[i]).collect();
            planned(hosts, &cables)
        })
    }

    /// Every graph of up to five hosts, in every order of actions and of messages under way.
    #[test]
    fn every_link_comes_up_as_planned_with_late_messages() {
        let mut count = 0;
        for hosts in 2..=5 {
            graphs(hosts).for_each(|topology| {
                assert_comes_up(&topology, true);
                count += 1;
            });
        }
        assert_eq!(count, 2 + 8 + 64 + 1024);
    }

    /// Every link comes up although links begin while the first messages are under way: two to four hosts.
    #[test]
    fn every_link_comes_up_as_planned_with_late_links() {
        let mut count = 0;
        (2..=3).flat_map(graphs).for_each(|topology| {
            assert_comes_up(&topology, false);
            count += 1;
        });
        assert_comes_up(&planned(4, &NetworkPattern::Ring.cables(4).unwrap()), false);
        assert_eq!(count, 2 + 8);
    }

    #[test]
    fn a_link_may_be_lost_and_made_again() {
        let topology = planned(2, &[(0, 1)]);
        let [mut host, mut target] = [0, 1].map(|host| BringUpProtocol::new(&topology, host));
        assert_eq!(target.waits_for(), [0]);
        target.handle_linked(0);
        let (_, lost) = target.poll_transmit().unwrap();
        assert!(target.poll_transmit().is_none());
        target.handle_link_lost(0);
        host.handle_linked(1);
        target.handle_linked(0);
        assert_eq!(target.poll_transmit(), Some((0, lost)), "all there is to say, again");
        let (_, message) = host.poll_transmit().unwrap();
        target.handle_received(0, &message).unwrap();
        assert_eq!(target.poll(), Some(BringUpAction::Enumerate));
        target.handle_done(BringUpAction::Enumerate, []);
        target.handle_done(BringUpAction::Enable, []);
        let (_, message) = target.poll_transmit().unwrap();
        host.handle_received(1, &message).unwrap();
        assert_eq!(host.poll(), Some(BringUpAction::Enumerate));
        host.handle_done(BringUpAction::Enumerate, [1]);
        assert!(host.is_complete() && !target.is_complete(), "its port's new owner was not heard");
        let (_, message) = host.poll_transmit().unwrap();
        target.handle_received(0, &message).unwrap();
        assert!(target.is_complete());
    }

    #[test]
    fn a_port_that_is_lost_is_had_again_and_its_target_hears_of_both() {
        let topology = planned(2, &[(0, 1)]);
        let [mut host, mut target] = [0, 1].map(|host| BringUpProtocol::new(&topology, host));
        let tell = |from: &BringUpProtocol, to: &mut BringUpProtocol, of: u32, whom: u32| {
            to.handle_received(of, &from.message_for(whom)).unwrap();
        };
        tell(&host, &mut target, 0, 1);
        target.handle_done(BringUpAction::Enumerate, []);
        target.handle_done(BringUpAction::Enable, []);
        assert!(target.is_enabled() && !host.is_enabled());
        tell(&target, &mut host, 1, 0);
        host.handle_done(BringUpAction::Enumerate, [1]);
        for is_held in [true, false, true] {
            host.handle_held(1, is_held);
            tell(&host, &mut target, 0, 1);
            assert_eq!((target.is_complete(), target.stray()), (is_held, None));
        }
        host.handle_linked(1);
        assert_eq!(host.poll_transmit(), Some((1, host.message_for(1))));
        host.handle_held(1, true);
        assert_eq!(host.poll_transmit(), None, "nothing new");
        host.handle_held(1, false);
        assert_eq!(host.poll_transmit(), Some((1, host.message_for(1))));
    }

    #[test]
    fn host_beyond_a_bridge_only_needs_the_same_plan() {
        let none: BTreeSet<u32> = (0..2).collect();
        let bridged = |cables: &[(u32, u32)]| plan(3, cables, &none).unwrap();
        let topology = bridged(&[(0, 1)]);
        assert_eq!(topology.bridges(), 1);
        let mut party = BringUpProtocol::new(&topology, 0);
        assert_eq!(
            (party.neighbours().count(), party.poll()),
            (0, Some(BringUpAction::Enumerate)),
            "nobody is waited for"
        );
        let mut message = BringUpProtocol::new(&topology, 1).message_for(0);
        message[5] = HAS_YOURS | IS_ENABLED;
        assert_eq!(party.handle_received(1, &message), Ok(()));
        assert_eq!(party.stray(), None);
        let other = BringUpProtocol::new(&bridged(&[(0, 1), (1, 2)]), 1).message_for(0);
        assert_eq!(party.handle_received(1, &other), Err(BringUpMessageError::Plan { host: 1 }));
        assert_eq!(party.handle_received(2, &message), Err(BringUpMessageError::Stranger { expected: 2, stated: 1 }));
    }

    #[test]
    fn invalid_neighbour_message_is_refused_and_no_action_begins() {
        let topology = planned(3, &[(0, 1), (1, 2)]);
        let mut party = BringUpProtocol::new(&topology, 1);
        let mut other = BringUpProtocol::new(&topology, 0);
        other.handle_linked(1);
        let (_, right) = other.poll_transmit().unwrap();
        for (at, wrong) in [(0, b'x'), (4, 2), (5, 4), (7, 1)] {
            let mut message = right;
            message[at] = wrong;
            assert_eq!(party.handle_received(0, &message), Err(BringUpMessageError::Tongue { at }));
        }
        assert_eq!(party.handle_received(2, &right), Err(BringUpMessageError::Stranger { expected: 2, stated: 0 }));
        assert_eq!(party.handle_received(7, &right), Err(BringUpMessageError::Stranger { expected: 7, stated: 0 }));
        let mut message = right;
        message[19] ^= 1;
        let refusal = party.handle_received(0, &message).unwrap_err();
        assert_eq!(refusal, BringUpMessageError::Plan { host: 0 });
        assert!(refusal.to_string().contains("farbus plan topology"));
        assert_eq!((party.poll(), party.waits_for()), (None, vec![0, 2]));
        assert_ne!(digest(&topology), digest(&planned(3, &[(0, 1), (2, 0)])));
    }
}
