//! The order in which debug links come up so that each port reaches its planned host: Algorithm 4 of West, Golchin and
//! Njavro (2023), corrected. Each host has a [`BringUp`]; the caller carries out its actions and reports sensed ports.
//!
//! An enabled debug port goes to the first neighbour that enumerates. A host therefore enumerates when it senses every
//! port planned for it, and enables its own port after that. In a circle one host, the leader, has to enable first.
//!
//! The printed algorithm is not enough: the leader enables at once. A host outside the circle that lends *its* port to
//! the leader and waits for no other host may enumerate at that moment and take the leader's port: the circle stays
//! open, as in the paper's Figure 6. Here a leader first waits for all hosts that lend it their ports, except the one
//! in the circle: they have enumerated by then, and do not wait for any host in the circle.

use std::collections::BTreeSet;

use super::links::HostTopology;

/// The next action of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BringUpAction {
    /// Enable the debug capability (`xDbC.Enable`).
    Enable,
    /// Enumerate what is attached to the controller (`xHCI.Enumerate`).
    Enumerate,
}

/// One host's part in the bring-up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BringUp {
    /// The actions, in order, and the neighbours whose ports must be sensed before each.
    steps: Vec<(BringUpAction, BTreeSet<u32>)>,
    done: usize,
    sensed: BTreeSet<u32>,
}

impl BringUp {
    /// The part of `host` in `topology`.
    pub fn of(topology: &HostTopology, host: u32) -> Self {
        let wanted: BTreeSet<_> = topology.debug_targets(host).collect();
        let enumerate = (BringUpAction::Enumerate, wanted.clone());
        let steps = match (topology.debug_host(host), topology.leaders().contains(&host)) {
            (None, _) => vec![enumerate],
            (Some(_), false) => vec![enumerate, (BringUpAction::Enable, BTreeSet::new())],
            (Some(_), true) => {
                let circle = topology.circle(host).unwrap_or_default();
                let outside = wanted.into_iter().filter(|target| !circle.contains(target)).collect();
                vec![(BringUpAction::Enable, outside), enumerate]
            }
        };
        Self { steps, done: 0, sensed: BTreeSet::new() }
    }

    /// The port of `neighbour` can be enumerated now.
    pub fn handle_attached(&mut self, neighbour: u32) {
        self.sensed.insert(neighbour);
    }

    /// The port is gone: its host started again, or another host has enumerated it.
    pub fn handle_detached(&mut self, neighbour: u32) {
        self.sensed.remove(&neighbour);
    }

    /// The action of [`BringUp::poll`] is complete.
    pub fn handle_done(&mut self) {
        self.done = (self.done + 1).min(self.steps.len());
    }

    /// The next action; `None` while waiting, or at the end.
    pub fn poll(&self) -> Option<BringUpAction> {
        let (act, wanted) = self.steps.get(self.done)?;
        wanted.is_subset(&self.sensed).then_some(*act)
    }

    /// The neighbours whose ports it waits for.
    pub fn waits_for(&self) -> impl Iterator<Item = u32> {
        let wanted = self.steps.get(self.done).map(|step| &step.1);
        wanted.into_iter().flatten().filter(|target| !self.sensed.contains(target)).copied()
    }

    /// All actions, each with the hosts whose ports it waits for.
    pub fn steps(&self) -> &[(BringUpAction, BTreeSet<u32>)] {
        &self.steps
    }

    /// Whether all actions are complete.
    pub fn is_complete(&self) -> bool {
        self.done == self.steps.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::links::{NetworkPattern, plan};
    use super::*;

    /// The progress of each host, and which host has enumerated each port.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        done: Vec<usize>,
        is_enabled: Vec<bool>,
        owner: Vec<Option<u32>>,
    }

    /// Tries every interleaving of `parts`; returns every final state.
    fn ends(topology: &HostTopology, parts: &[BringUp]) -> HashSet<World> {
        let hosts = topology.hosts() as usize;
        let start = World { done: vec![0; hosts], is_enabled: vec![false; hosts], owner: vec![None; hosts] };
        let (mut seen, mut open, mut ends) = (HashSet::from([start.clone()]), vec![start], HashSet::new());
        while let Some(world) = open.pop() {
            let mut is_end = true;
            for host in 0..topology.hosts() {
                let mut part = BringUp { done: world.done[host as usize], ..parts[host as usize].clone() };
                // A host senses the ports that are enabled, wired to it, and free or its own.
                for (target, debug_host) in topology.debug_links() {
                    for (me, other) in [(target, debug_host), (debug_host, target)] {
                        let at = other as usize;
                        if me == host && world.is_enabled[at] && world.owner[at].is_none_or(|owner| owner == me) {
                            part.handle_attached(other);
                        }
                    }
                }
                let Some(act) = part.poll() else { continue };
                is_end = false;
                let mut next = world.clone();
                next.done[host as usize] += 1;
                match act {
                    BringUpAction::Enable => next.is_enabled[host as usize] = true,
                    // It enumerates every port it senses, wanted or not.
                    BringUpAction::Enumerate => {
                        for &other in &part.sensed {
                            next.owner[other as usize] = Some(host);
                        }
                    }
                }
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            if is_end {
                ends.insert(world);
            }
        }
        ends
    }

    fn is_as_planned(topology: &HostTopology, world: &World) -> bool {
        (0..topology.hosts()).all(|host| world.owner[host as usize] == topology.debug_host(host))
    }

    fn parts(topology: &HostTopology) -> Vec<BringUp> {
        (0..topology.hosts()).map(|host| BringUp::of(topology, host)).collect()
    }

    fn planned(hosts: u32, cables: &[(u32, u32)]) -> HostTopology {
        plan(hosts, cables, &BTreeSet::new()).unwrap()
    }

    /// Every graph of up to five hosts, in every order in which they may come up.
    #[test]
    fn every_link_comes_up_as_planned_in_any_order() {
        let mut graphs = 0;
        for hosts in 2..=5u32 {
            let pairs: Vec<_> = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
            for graph in 0..1u32 << pairs.len() {
                let cables: Vec<_> = (0..pairs.len()).filter(|i| graph >> i & 1 == 1).map(|i| pairs[i]).collect();
                let topology = planned(hosts, &cables);
                let ends = ends(&topology, &parts(&topology));
                assert!(!ends.is_empty());
                assert!(ends.iter().all(|world| is_as_planned(&topology, world)), "{cables:?} {ends:?}");
                graphs += 1;
            }
        }
        assert_eq!(graphs, 2 + 8 + 64 + 1024);
    }

    #[test]
    fn rings_and_cubes_of_the_paper_come_up() {
        for (network, hosts) in [(NetworkPattern::Ring, 4), (NetworkPattern::Hypercube, 8), (NetworkPattern::Tree, 7)] {
            let topology = planned(hosts, &network.cables(hosts).unwrap());
            let ends = ends(&topology, &parts(&topology));
            assert!(ends.iter().all(|world| is_as_planned(&topology, world)), "{network:?}");
        }
    }

    /// Without an order the three misconfigurations of Figure 6 all occur, as drawn; with it none does.
    #[test]
    fn without_an_order_figure_6_is_reached_and_with_it_not() {
        let free = |topology: &HostTopology| -> Vec<BringUp> {
            let whatever = |mut part: BringUp| {
                part.steps.iter_mut().for_each(|step| step.1.clear());
                part
            };
            parts(topology).into_iter().map(whatever).collect()
        };
        // As printed, with hosts from 0 on, and the last one the other way round: (a) a star without its third host,
        // (b) two hosts into a third that the first takes instead of the fourth, (c) a ring in which two ports went the
        // wrong way.
        type Figure = (&'static [(u32, u32)], &'static [(usize, Option<u32>)]);
        let figures: [Figure; 3] = [
            (&[(0, 1), (0, 2)], &[(1, Some(0)), (2, None)]),
            (&[(2, 0), (2, 1), (3, 2)], &[(2, Some(0))]),
            (&[(0, 1), (1, 2), (2, 3), (3, 0)], &[(3, Some(0)), (2, Some(1))]),
        ];
        for (cables, figure) in figures {
            let topology = planned(4, cables);
            let is_drawn = |world: &World| figure.iter().all(|&(port, owner)| world.owner[port] == owner);
            let without = ends(&topology, &free(&topology));
            assert!(without.iter().any(is_drawn), "{cables:?}");
            assert!(without.iter().any(|world| is_as_planned(&topology, world)), "with luck it works");
            let with = ends(&topology, &parts(&topology));
            assert!(!with.iter().any(is_drawn) && with.iter().all(|world| is_as_planned(&topology, world)));
        }
    }

    /// A ring with a host beside its leader: Algorithm 4 to the letter lets that host take the leader's port.
    #[test]
    fn as_printed_a_host_beside_the_ring_may_break_it() {
        let topology = planned(4, &[(0, 1), (1, 2), (2, 0), (0, 3)]);
        assert_eq!((topology.bridges(), topology.leaders()), (0, BTreeSet::from([0])));
        assert_eq!(topology.debug_host(3), Some(0), "the host beside the ring lends its port to the leader");
        let mut printed = parts(&topology);
        printed[0].steps[0].1.clear();
        let strays = |parts: &[BringUp]| ends(&topology, parts).iter().any(|world| world.owner[0] == Some(3));
        assert!(strays(&printed));
        assert!(!strays(&parts(&topology)));
    }

    #[test]
    fn host_reports_the_neighbours_it_waits_for() {
        let topology = planned(3, &NetworkPattern::Star.cables(3).unwrap());
        let mut centre = BringUp::of(&topology, 0);
        assert_eq!((centre.poll(), centre.waits_for().collect::<Vec<_>>()), (None, vec![1, 2]));
        centre.handle_attached(1);
        centre.handle_attached(2);
        centre.handle_detached(1);
        assert_eq!((centre.poll(), centre.waits_for().collect::<Vec<_>>()), (None, vec![1]));
        centre.handle_attached(1);
        assert_eq!(centre.poll(), Some(BringUpAction::Enumerate));
        centre.handle_done();
        assert!(centre.is_complete() && centre.poll().is_none());
    }
}
