//! A plan of USB links between hosts, parsed from TOML. `farbus plan topology` shows it, and a daemon carries out its
//! host's part.

use std::collections::{BTreeMap, BTreeSet};

use farbus_realtime::topology::{HOSTS_MAX, HostTopology, NetworkPattern, plan};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyPlanFile {
    network: Option<NetworkShape>,
    hosts: PlannedHosts,
    cables: Option<Vec<(String, String)>>,
    #[serde(default)]
    without_debug: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PlannedHosts {
    Count(u32),
    Names(Vec<String>),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NetworkShape {
    Line,
    Star,
    Tree,
    Ring,
    Hypercube,
}

/// Hosts, and the links between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyPlan {
    /// The names of the hosts.
    pub names: Vec<String>,
    /// The links. A host's number is its position in `names`.
    pub topology: HostTopology,
}

impl TopologyPlan {
    /// Parses a plan.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of(toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?)
    }

    /// The number of the host with this name.
    pub fn host(&self, name: &str) -> Option<u32> {
        (0..).zip(&self.names).find(|(_, known)| *known == name).map(|(host, _)| host)
    }

    fn of(wanted: TopologyPlanFile) -> Result<Self, String> {
        let names = match wanted.hosts {
            PlannedHosts::Count(count) if count > HOSTS_MAX => {
                return Err(format!("{count} hosts: there are at most {HOSTS_MAX}"));
            }
            PlannedHosts::Count(count) => (1..=count).map(|number| format!("host{number}")).collect(),
            PlannedHosts::Names(names) => names,
        };
        let ids: BTreeMap<_, _> = names.iter().map(String::as_str).zip(0u32..).collect();
        if ids.len() != names.len() {
            return Err("hosts: a name is there twice".into());
        }
        let id = |name: &String| {
            let known = ids.get(name.as_str()).copied();
            known.ok_or_else(|| format!("no host is called '{name}': there are {}", names.join(", ")))
        };
        let count = names.len() as u32;
        let cables = match (wanted.network, wanted.cables) {
            (Some(word), None) => {
                let network = match word {
                    NetworkShape::Line => NetworkPattern::Line,
                    NetworkShape::Star => NetworkPattern::Star,
                    NetworkShape::Tree => NetworkPattern::Tree,
                    NetworkShape::Ring => NetworkPattern::Ring,
                    NetworkShape::Hypercube => NetworkPattern::Hypercube,
                };
                network.cables(count).map_err(|why| why.to_string())?
            }
            (None, Some(cables)) => {
                let both = |(a, b): &(String, String)| Ok::<_, String>((id(a)?, id(b)?));
                cables.iter().map(both).collect::<Result<_, _>>()?
            }
            _ => return Err("say either 'network = ' or 'cables = '".into()),
        };
        let without_debug = wanted.without_debug.iter().map(id).collect::<Result<BTreeSet<_>, _>>()?;
        let topology = plan(count, &cables, &without_debug).map_err(|why| why.to_string())?;
        Ok(Self { names, topology })
    }

    /// The name of `host`.
    pub fn name(&self, host: u32) -> &str {
        &self.names[host as usize]
    }
}
