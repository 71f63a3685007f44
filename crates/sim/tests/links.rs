//! Hosts joined by USB come up as planned, whichever host is slow. R3.

use std::collections::BTreeSet;

use farbus_realtime::topology::{HostTopology, NetworkPattern, plan};
use farbus_sim::SimulationRng;
use farbus_sim::links::bring_up;

const SLOWEST_NS: u64 = 1_000_000_000;

fn assert_comes_up(topology: &HostTopology, seed: u64) {
    let ending = bring_up(topology, SLOWEST_NS, seed);
    assert!(ending.is_as_planned(topology), "seed {seed}: {:?} {ending:?}", topology.links());
}

#[test]
fn named_networks_come_up_whatever_is_slow() {
    for (network, hosts) in [
        (NetworkPattern::Ring, 4),
        (NetworkPattern::Hypercube, 8),
        (NetworkPattern::Tree, 7),
        (NetworkPattern::Star, 5),
    ] {
        let topology = plan(hosts, &network.cables(hosts).unwrap(), &BTreeSet::new()).unwrap();
        (0..1000).for_each(|seed| assert_comes_up(&topology, seed));
        assert!(topology.debug_links().count() > 0);
    }
}

#[test]
fn any_network_comes_up_whatever_is_slow() {
    for seed in 0..2000 {
        let mut random = SimulationRng::new(seed);
        let hosts = random.between(2, 10) as u32;
        let one_in = random.between(1, 4);
        let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
        let cables: Vec<_> = pairs.filter(|_| random.once_in(one_in)).collect();
        let topology = plan(hosts, &cables, &BTreeSet::new()).unwrap();
        (0..5).for_each(|_| assert_comes_up(&topology, random.bits()));
        assert_eq!(topology.links().len(), cables.len());
    }
}
