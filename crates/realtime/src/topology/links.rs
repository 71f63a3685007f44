//! Which cable becomes which kind of link.

use std::collections::BTreeSet;
use std::fmt;

/// The most hosts of one plan.
pub const HOSTS_MAX: u32 = 256;

/// The most cables of one plan.
pub const CABLES_MAX: usize = 4096;

/// A named network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkPattern {
    /// Each host joined with the next.
    Line,
    /// The first host joined with all others.
    Star,
    /// Host `i` with hosts `2 i + 1` and `2 i + 2`.
    Tree,
    /// A line with joined ends, of three or more hosts.
    Ring,
    /// Hosts are joined whose numbers differ in one binary digit; 2, 4, 8, … hosts.
    Hypercube,
}

/// How a cable joins two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyLink {
    /// The target lends its debug port, and appears to the host as a device.
    Debug {
        /// The host that enables its debug capability.
        target: u32,
        /// The host that enumerates it.
        host: u32,
    },
    /// A bridge device between two hosts, with an end for each.
    Bridge {
        /// The host at the bridge's first end.
        a: u32,
        /// The host at the bridge's second end.
        b: u32,
    },
}

/// Which hosts are joined, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTopology {
    hosts: u32,
    links: Vec<TopologyLink>,
}

/// Why hosts cannot be joined as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// There is no such network with this many hosts.
    Hosts {
        /// The network, if it was named.
        network: Option<NetworkPattern>,
        /// How many hosts were requested.
        wanted: u32,
    },
    /// More cables than [`CABLES_MAX`].
    Cables {
        /// How many cables were requested.
        wanted: usize,
    },
    /// A cable names an unknown host, the same host twice, or the same two hosts as another cable.
    Cable {
        /// The host at the cable's first end.
        a: u32,
        /// The host at the cable's second end.
        b: u32,
    },
}

impl NetworkPattern {
    /// All named networks.
    pub const ALL: [NetworkPattern; 5] = [
        NetworkPattern::Line,
        NetworkPattern::Star,
        NetworkPattern::Tree,
        NetworkPattern::Ring,
        NetworkPattern::Hypercube,
    ];

    /// Its cables between hosts 0 to `hosts` - 1.
    pub fn cables(self, hosts: u32) -> Result<Vec<(u32, u32)>, TopologyError> {
        let least = if self == NetworkPattern::Ring { 3 } else { 2 };
        let is_whole = self != NetworkPattern::Hypercube || hosts.is_power_of_two();
        if !(least..=HOSTS_MAX).contains(&hosts) || !is_whole {
            return Err(TopologyError::Hosts { network: Some(self), wanted: hosts });
        }
        let cables = match self {
            NetworkPattern::Line => (1..hosts).map(|i| (i - 1, i)).collect(),
            NetworkPattern::Star => (1..hosts).map(|i| (0, i)).collect(),
            NetworkPattern::Tree => (1..hosts).map(|i| ((i - 1) / 2, i)).collect(),
            NetworkPattern::Ring => (0..hosts).map(|i| (i, (i + 1) % hosts)).collect(),
            NetworkPattern::Hypercube => {
                let dimensions = hosts.ilog2();
                let neighbours = |i: u32| (0..dimensions).map(move |d| (i, i ^ (1 << d)));
                (0..hosts).flat_map(neighbours).filter(|(a, b)| a < b).collect()
            }
        };
        Ok(cables)
    }
}

/// The links for `cables` between hosts 0 to `hosts` - 1, with the fewest possible bridges. Hosts in `without_debug`
/// have no debug capability.
pub fn plan(hosts: u32, cables: &[(u32, u32)], without_debug: &BTreeSet<u32>) -> Result<HostTopology, TopologyError> {
    if !(2..=HOSTS_MAX).contains(&hosts) {
        return Err(TopologyError::Hosts { network: None, wanted: hosts });
    }
    if cables.len() > CABLES_MAX {
        return Err(TopologyError::Cables { wanted: cables.len() });
    }
    let mut seen = BTreeSet::new();
    for &(a, b) in cables {
        if a == b || a.max(b) >= hosts || !seen.insert((a.min(b), a.max(b))) {
            return Err(TopologyError::Cable { a, b });
        }
    }
    // Each cable needs one of its two hosts as the target, and each host can be the target of one cable: a maximum
    // matching leaves the fewest cables to bridges.
    let mut lent = DebugPortMatching { cables, cable_of: vec![None; hosts as usize], without_debug };
    for cable in 0..cables.len() {
        lent.find(cable, &mut vec![false; hosts as usize]);
    }
    let link = |(cable, &(a, b)): (usize, &(u32, u32))| {
        let is_target = |host: u32| lent.cable_of[host as usize] == Some(cable);
        match (is_target(a), is_target(b)) {
            (true, _) => TopologyLink::Debug { target: a, host: b },
            (_, true) => TopologyLink::Debug { target: b, host: a },
            _ => TopologyLink::Bridge { a, b },
        }
    };
    Ok(HostTopology { hosts, links: cables.iter().enumerate().map(link).collect() })
}

/// Which host's debug port serves which cable.
struct DebugPortMatching<'a> {
    cables: &'a [(u32, u32)],
    cable_of: Vec<Option<usize>>,
    without_debug: &'a BTreeSet<u32>,
}

impl DebugPortMatching<'_> {
    /// Finds a port for `cable`, if necessary by giving another cable its other host's port. Recurses as deep as there
    /// are hosts.
    fn find(&mut self, cable: usize, tried: &mut [bool]) -> bool {
        let (a, b) = self.cables[cable];
        // The later host first: trees then point towards the first host, as the paper's star does.
        for host in [b, a] {
            let at = host as usize;
            if self.without_debug.contains(&host) || std::mem::replace(&mut tried[at], true) {
                continue;
            }
            let is_free = match self.cable_of[at] {
                None => true,
                Some(other) => self.find(other, tried),
            };
            if is_free {
                self.cable_of[at] = Some(cable);
                return true;
            }
        }
        false
    }
}

impl HostTopology {
    /// How many hosts there are.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The links, in the order of the cables.
    pub fn links(&self) -> &[TopologyLink] {
        &self.links
    }

    /// How many bridges are needed.
    pub fn bridges(&self) -> usize {
        self.links.iter().filter(|link| matches!(link, TopologyLink::Bridge { .. })).count()
    }

    /// The host that enumerates `target`'s debug port.
    pub fn debug_host(&self, target: u32) -> Option<u32> {
        self.debug_links().find(|link| link.0 == target).map(|link| link.1)
    }

    /// The hosts whose debug port `host` enumerates: the dependency list of Algorithm 4.
    pub fn debug_targets(&self, host: u32) -> impl Iterator<Item = u32> {
        self.debug_links().filter(move |link| link.1 == host).map(|link| link.0)
    }

    /// The lowest host of each circle of debug links, which begins (the leader of Algorithm 4).
    pub fn leaders(&self) -> BTreeSet<u32> {
        (0..self.hosts).filter_map(|host| self.circle(host)?.into_iter().min()).collect()
    }

    /// The circle of debug links on which `host` lies.
    pub(crate) fn circle(&self, host: u32) -> Option<Vec<u32>> {
        let mut circle = vec![host];
        while let Some(next) = self.debug_host(*circle.last()?) {
            if next == host {
                return Some(circle);
            }
            if circle.contains(&next) {
                return None;
            }
            circle.push(next);
        }
        None
    }

    /// Target and host of every debug link.
    pub fn debug_links(&self) -> impl Iterator<Item = (u32, u32)> {
        self.links.iter().filter_map(|link| match *link {
            TopologyLink::Debug { target, host } => Some((target, host)),
            TopologyLink::Bridge { .. } => None,
        })
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts { network: Some(NetworkPattern::Hypercube), wanted } => {
                write!(f, "a hypercube of {wanted} hosts: it has 2, 4, 8 and so on up to {HOSTS_MAX}")
            }
            Self::Hosts { network: Some(NetworkPattern::Ring), wanted } => {
                write!(f, "a ring of {wanted} hosts: it has 3 to {HOSTS_MAX}")
            }
            Self::Hosts { wanted, .. } => write!(f, "a network of {wanted} hosts: it has 2 to {HOSTS_MAX}"),
            Self::Cables { wanted } => write!(f, "{wanted} cables: there are at most {CABLES_MAX}"),
            Self::Cable { a, b } => {
                write!(
                    f,
                    "a cable from host {a} to host {b}: it joins two hosts of the plan, and no other cable the same two"
                )
            }
        }
    }
}

impl std::error::Error for TopologyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(network: NetworkPattern, hosts: u32) -> HostTopology {
        plan(hosts, &network.cables(hosts).unwrap(), &BTreeSet::new()).unwrap()
    }

    #[test]
    fn named_networks_take_the_bridges_of_the_paper() {
        for (network, hosts, links, bridges) in [
            (NetworkPattern::Line, 5, 4, 0),
            (NetworkPattern::Star, 5, 4, 0),
            (NetworkPattern::Tree, 7, 6, 0),
            (NetworkPattern::Ring, 4, 4, 0),
            // Figure 4: eight debug links and four bridges.
            (NetworkPattern::Hypercube, 8, 12, 4),
            (NetworkPattern::Hypercube, 16, 32, 16),
        ] {
            let topology = planned(network, hosts);
            assert_eq!((topology.links().len(), topology.bridges()), (links, bridges), "{network:?}");
            assert_eq!(
                topology.leaders().is_empty(),
                matches!(network, NetworkPattern::Line | NetworkPattern::Star | NetworkPattern::Tree)
            );
        }
        assert_eq!(planned(NetworkPattern::Star, 4).debug_targets(0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    /// Every graph of up to five hosts, with every choice of hosts without debug capability: no other orientation has
    /// fewer bridges.
    #[test]
    fn there_are_never_fewer_bridges() {
        for hosts in 2..=5u32 {
            let pairs: Vec<_> = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))).collect();
            for graph in 0..1u32 << pairs.len() {
                let cables: Vec<_> = (0..pairs.len()).filter(|i| graph >> i & 1 == 1).map(|i| pairs[i]).collect();
                for without in 0..1u32 << hosts {
                    let without_debug: BTreeSet<_> = (0..hosts).filter(|host| without >> host & 1 == 1).collect();
                    let topology = plan(hosts, &cables, &without_debug).unwrap();
                    let mut targets = topology.debug_links().map(|link| link.0).collect::<Vec<_>>();
                    targets.sort();
                    assert!(targets.windows(2).all(|two| two[0] < two[1]), "one port a host");
                    assert!(targets.iter().all(|target| !without_debug.contains(target)));
                    // Each connected part has as many debug links as it has ports, or cables.
                    assert_eq!(targets.len(), most_debug_links(&cables, hosts, &without_debug), "{cables:?}");
                }
            }
        }
    }

    /// By Hall's theorem: over all sets of cables, the ports that they touch.
    fn most_debug_links(cables: &[(u32, u32)], hosts: u32, without_debug: &BTreeSet<u32>) -> usize {
        let port = |host: u32| if without_debug.contains(&host) { 0 } else { 1u32 << host };
        // The cables within a set of ports that has too few: all that lie in `set` beyond its size need bridges.
        let lack = |set: u32| {
            let within = cables.iter().filter(|(a, b)| (port(*a) | port(*b)) & !set == 0).count();
            within.saturating_sub(set.count_ones() as usize)
        };
        cables.len() - (0..1u32 << hosts).map(lack).max().unwrap_or(0)
    }

    #[test]
    fn impossible_topology_is_refused() {
        assert!(matches!(NetworkPattern::Ring.cables(2), Err(TopologyError::Hosts { wanted: 2, .. })));
        assert!(NetworkPattern::Hypercube.cables(6).unwrap_err().to_string().contains("2, 4, 8"));
        assert!(NetworkPattern::Line.cables(HOSTS_MAX + 1).is_err() && NetworkPattern::Line.cables(1).is_err());
        let none = BTreeSet::new();
        assert_eq!(plan(3, &[(0, 3)], &none), Err(TopologyError::Cable { a: 0, b: 3 }));
        assert_eq!(plan(3, &[(1, 1)], &none), Err(TopologyError::Cable { a: 1, b: 1 }));
        assert_eq!(plan(3, &[(0, 1), (1, 0)], &none), Err(TopologyError::Cable { a: 1, b: 0 }));
        assert_eq!(planned(NetworkPattern::Hypercube, 256).links().len(), 1024);
    }
}
