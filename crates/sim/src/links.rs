//! Hosts that are joined by debug ports come up, with random starts and delays. R3.
//!
//! Enabling and enumerating take time, and so does noticing a port. An enumeration takes every port that is wired to
//! the host and free when it ends, wanted or not.

use farbus_realtime::topology::HostTopology;
use farbus_realtime::topology::bring_up::{BringUp, BringUpAction};

use crate::random::SimulationRng;

/// The state when nothing happens any more: each link, and the hosts that still wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BringUpOutcome {
    /// Which host has enumerated each host's port.
    pub owners: Vec<Option<u32>>,
    /// Hosts whose part is not complete.
    pub waiting: Vec<u32>,
    /// The time of the last event.
    pub at_ns: u64,
}

impl BringUpOutcome {
    /// Whether every link is the one that was planned.
    pub fn is_as_planned(&self, topology: &HostTopology) -> bool {
        let has_planned_owner = |host: u32| self.owners[host as usize] == topology.debug_host(host);
        self.waiting.is_empty() && (0..topology.hosts()).all(has_planned_owner)
    }
}

#[derive(Clone, Copy, Debug)]
enum BringUpEvent {
    Boots(u32),
    Ends(u32, BringUpAction),
    Notices { host: u32, port: u32 },
}

struct BringUpSimulation<'a> {
    topology: &'a HostTopology,
    parts: Vec<BringUp>,
    is_up: Vec<bool>,
    is_at_work: Vec<bool>,
    is_enabled: Vec<bool>,
    owners: Vec<Option<u32>>,
    /// Unordered; there are few.
    events: Vec<(u64, BringUpEvent)>,
    slowest_ns: u64,
    random: SimulationRng,
}

/// Brings `topology` up; every action takes up to `slowest_ns`.
pub fn bring_up(topology: &HostTopology, slowest_ns: u64, seed: u64) -> BringUpOutcome {
    let hosts = topology.hosts();
    let mut world = BringUpSimulation {
        topology,
        parts: (0..hosts).map(|host| BringUp::of(topology, host)).collect(),
        is_up: vec![false; hosts as usize],
        is_at_work: vec![false; hosts as usize],
        is_enabled: vec![false; hosts as usize],
        owners: vec![None; hosts as usize],
        events: Vec::new(),
        slowest_ns,
        random: SimulationRng::new(seed),
    };
    (0..hosts).for_each(|host| world.later(0, BringUpEvent::Boots(host)));
    let mut at_ns = 0;
    while let Some(next) = (0..world.events.len()).min_by_key(|&at| world.events[at].0) {
        let (now_ns, event) = world.events.swap_remove(next);
        at_ns = now_ns;
        world.happens(now_ns, event);
    }
    let waiting = (0..hosts).filter(|&host| !world.parts[host as usize].is_complete()).collect();
    BringUpOutcome { owners: world.owners, waiting, at_ns }
}

impl BringUpSimulation<'_> {
    fn later(&mut self, now_ns: u64, event: BringUpEvent) {
        let at_ns = now_ns + self.random.between(1, self.slowest_ns);
        self.events.push((at_ns, event));
    }

    fn happens(&mut self, now_ns: u64, event: BringUpEvent) {
        let host = match event {
            BringUpEvent::Boots(host) => {
                self.is_up[host as usize] = true;
                host
            }
            BringUpEvent::Notices { host, port } => {
                if self.is_free_for(host, port) {
                    self.parts[host as usize].handle_attached(port);
                }
                host
            }
            BringUpEvent::Ends(host, act) => {
                self.ends(now_ns, host, act);
                host
            }
        };
        let at = host as usize;
        if let (true, false, Some(act)) = (self.is_up[at], self.is_at_work[at], self.parts[at].poll()) {
            self.is_at_work[at] = true;
            self.later(now_ns, BringUpEvent::Ends(host, act));
        }
    }

    fn ends(&mut self, now_ns: u64, host: u32, act: BringUpAction) {
        let at = host as usize;
        self.is_at_work[at] = false;
        self.parts[at].handle_done();
        match act {
            BringUpAction::Enable => {
                self.is_enabled[at] = true;
                for neighbour in self.neighbours(host) {
                    self.later(now_ns, BringUpEvent::Notices { host: neighbour, port: host });
                }
            }
            BringUpAction::Enumerate => {
                for port in self.neighbours(host) {
                    if self.is_free_for(host, port) {
                        self.take(host, port);
                    }
                }
            }
        }
    }

    fn take(&mut self, host: u32, port: u32) {
        self.owners[port as usize] = Some(host);
        for other in self.neighbours(port) {
            if other != host {
                self.parts[other as usize].handle_detached(port);
            }
        }
    }

    fn is_free_for(&self, host: u32, port: u32) -> bool {
        let at = port as usize;
        self.is_enabled[at] && self.owners[at].is_none_or(|owner| owner == host)
    }

    /// Hosts that `host` is wired to, debug port to debug port.
    fn neighbours(&self, host: u32) -> Vec<u32> {
        let ends = self.topology.debug_links().flat_map(|(a, b)| [(a, b), (b, a)]);
        ends.filter(|(end, _)| *end == host).map(|(_, other)| other).collect()
    }
}
