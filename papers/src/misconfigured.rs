//! Every order in which hosts joined by debug links may act, and what networks come of it: Figure 6 and Algorithm 4 of
//! the 2023 paper. The states and moves are written from the paper, apart from the planner's own tests.

use std::collections::{BTreeSet, HashSet};

use anyhow::{Result, anyhow};
use farbus_realtime::topology::{
    HostTopology, NetworkPattern,
    bring_up::{BringUp, BringUpAction},
    plan,
};

use crate::result::{ItemResult, ItemRow};

/// Cables of Figures 5(a) to (c), with hosts from 0 on.
const NETWORKS: [(&str, &[(u32, u32)]); 3] =
    [("(a)", &[(0, 1), (0, 2)]), ("(b)", &[(2, 0), (2, 1), (3, 2)]), ("(c)", &[(0, 1), (1, 2), (2, 3), (3, 0)])];
/// A ring with a host beside its leader.
const BESIDE_A_RING: &[(u32, u32)] = &[(0, 1), (1, 2), (2, 0), (0, 3)];

/// What a host waits for before it acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BringUpOrder {
    Free,
    /// As the paper prints it: a leader enables its port at once.
    Printed,
    /// As farbus plans it: a leader waits for the hosts that lend it their ports.
    Planned,
}

/// How far each host is, and which host has which port.
#[derive(Clone, PartialEq, Eq, Hash)]
struct NetworkState {
    done: Vec<usize>,
    is_enabled: Vec<bool>,
    owner: Vec<Option<u32>>,
}

/// How many final states there are, and how many of them are not the planned network.
struct FinalStates {
    all: usize,
    wrong: usize,
}

fn steps(topology: &HostTopology, host: u32, order: BringUpOrder) -> Vec<(BringUpAction, BTreeSet<u32>)> {
    let mut steps = BringUp::of(topology, host).steps().to_vec();
    match order {
        BringUpOrder::Planned => {}
        BringUpOrder::Free => steps.iter_mut().for_each(|(_, waits)| waits.clear()),
        BringUpOrder::Printed if steps[0].0 == BringUpAction::Enable => steps[0].1.clear(),
        BringUpOrder::Printed => {}
    }
    steps
}

/// Tries every order; a host that waits for ever ends a run, too.
fn explore(topology: &HostTopology, order: BringUpOrder) -> FinalStates {
    let hosts = topology.hosts() as usize;
    let steps: Vec<_> = (0..topology.hosts()).map(|host| steps(topology, host, order)).collect();
    let cabled: HashSet<(u32, u32)> = topology.debug_links().flat_map(|(a, b)| [(a, b), (b, a)]).collect();
    let start = NetworkState { done: vec![0; hosts], is_enabled: vec![false; hosts], owner: vec![None; hosts] };
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    let (mut all, mut wrong) = (0, 0);
    while let Some(state) = open.pop() {
        let mut is_final = true;
        for host in 0..topology.hosts() {
            let Some((action, waits)) = steps[host as usize].get(state.done[host as usize]) else { continue };
            let senses = |other: u32| {
                let at = other as usize;
                cabled.contains(&(host, other)) && state.is_enabled[at] && state.owner[at].is_none_or(|by| by == host)
            };
            if !waits.iter().all(|&other| senses(other)) {
                continue;
            }
            is_final = false;
            let mut next = state.clone();
            next.done[host as usize] += 1;
            match action {
                BringUpAction::Enable => next.is_enabled[host as usize] = true,
                BringUpAction::Enumerate => {
                    (0..topology.hosts()).filter(|&other| senses(other)).for_each(|other| {
                        next.owner[other as usize] = Some(host);
                    });
                }
            }
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
        if is_final {
            all += 1;
            let is_planned = (0..topology.hosts()).all(|host| state.owner[host as usize] == topology.debug_host(host));
            wrong += usize::from(!is_planned);
        }
    }
    FinalStates { all, wrong }
}

fn planned(hosts: u32, cables: &[(u32, u32)]) -> Result<HostTopology> {
    plan(hosts, cables, &BTreeSet::new()).map_err(|why| anyhow!("{why}"))
}

fn row(what: String, states: &FinalStates, paper: &str) -> ItemRow {
    ItemRow::of(what, states.wrong as f64, "wrong", paper).with_detail(format!("of {} final networks", states.all))
}

pub fn figure_6(_is_quick: bool) -> Result<ItemResult> {
    let mut rows = Vec::new();
    for (name, cables) in NETWORKS {
        let hosts = cables.iter().map(|&(a, b)| a.max(b) + 1).max().unwrap_or(0);
        let topology = planned(hosts, cables)?;
        let free = explore(&topology, BringUpOrder::Free);
        rows.push(row(format!("{name} in any order"), &free, "some, one of them drawn"));
        rows.push(
            row(format!("{name} in farbus's order"), &explore(&topology, BringUpOrder::Planned), "0").at_most(0.0),
        );
    }
    Ok(rows.into())
}

pub fn algorithm_4(_is_quick: bool) -> Result<ItemResult> {
    let mut rows = Vec::new();
    let cases = [
        ("a ring of 4", planned(4, &NetworkPattern::Ring.cables(4).map_err(|why| anyhow!("{why}"))?)?),
        ("a tree of 7", planned(7, &NetworkPattern::Tree.cables(7).map_err(|why| anyhow!("{why}"))?)?),
        ("a ring of 3 with a host beside it", planned(4, BESIDE_A_RING)?),
    ];
    for (name, topology) in cases {
        rows.push(row(format!("{name}, as printed"), &explore(&topology, BringUpOrder::Printed), "0"));
        rows.push(row(format!("{name}, farbus"), &explore(&topology, BringUpOrder::Planned), "0").at_most(0.0));
    }
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_orders_misconfigure_each_network_of_figure_6_and_planned_ones_none() {
        let rows = figure_6(true).expect("planned").rows;
        assert_eq!(rows.len(), 6);
        for pair in rows.chunks(2) {
            assert!(pair[0].samples[0] > 0.0 && pair[1].samples[0] == 0.0, "{}", pair[0].what);
        }
    }

    #[test]
    fn printed_algorithm_fails_beside_a_ring_alone() {
        let wrong: Vec<f64> = algorithm_4(true).expect("planned").rows.iter().map(|row| row.samples[0]).collect();
        assert!(wrong[4] > 0.0 && wrong[..4].iter().chain(&wrong[5..]).all(|&count| count == 0.0), "{wrong:?}");
    }
}
