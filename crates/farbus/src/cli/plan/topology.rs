//! `farbus plan topology`: which cables between hosts are debug links, which need a bridge, and who does what when.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use farbus_realtime::topology::bring_up::{Act, BringUp};
use farbus_realtime::topology::{HOSTS_MAX, Link, Network, Topology, plan};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::output::{Failure, print_json, say};
use super::file;

/// Plan how hosts are joined by USB, with as few bridges as there can be.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus plan topology cube.toml             links, and what each host does in which order\n  \
    farbus plan topology cube.toml --json\n\n\
    cube.toml, a network that has a name (line, star, tree, ring, hypercube):\n  network = \"hypercube\"\n  hosts = 8\n\n\
    or any other:\n  hosts = [\"left\", \"right\", \"roof\"]\n  cables = [[\"left\", \"right\"], [\"right\", \"roof\"]]\n  \
    without_debug = [\"roof\"]     # its controller has no debug capability to lend"
)]
pub struct Args {
    /// Hosts and cables, as TOML.
    file: PathBuf,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    network: Option<NetworkWord>,
    hosts: Hosts,
    cables: Option<Vec<(String, String)>>,
    #[serde(default)]
    without_debug: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Hosts {
    Count(u32),
    Names(Vec<String>),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NetworkWord {
    Line,
    Star,
    Tree,
    Ring,
    Hypercube,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let (_, planned) = read(&args.file)?;
    if args.json {
        return print_json(&planned.to_json());
    }
    say(planned.to_text().trim_end());
    Ok(())
}

/// The plan in a file, and its text.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(path: &Path) -> Result<(String, Planned), Failure> {
    let text = file::text(path)?;
    let planned = Planned::parse(&text).map_err(|why| Failure::local(format!("{}: {why}", path.display())))?;
    Ok((text, planned))
}

/// Hosts, and how they are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What the hosts are called.
    pub names: Vec<String>,
    /// Its hosts are places among the names.
    pub topology: Topology,
}

impl Planned {
    /// Reads a plan.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of(toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?)
    }

    /// The host of this name.
    pub fn host(&self, name: &str) -> Option<u32> {
        (0..).zip(&self.names).find(|(_, known)| *known == name).map(|(host, _)| host)
    }

    fn of(wanted: Wanted) -> Result<Self, String> {
        let names = match wanted.hosts {
            Hosts::Count(count) if count > HOSTS_MAX => {
                return Err(format!("{count} hosts: there are at most {HOSTS_MAX}"));
            }
            Hosts::Count(count) => (1..=count).map(|number| format!("host{number}")).collect(),
            Hosts::Names(names) => names,
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
                    NetworkWord::Line => Network::Line,
                    NetworkWord::Star => Network::Star,
                    NetworkWord::Tree => Network::Tree,
                    NetworkWord::Ring => Network::Ring,
                    NetworkWord::Hypercube => Network::Hypercube,
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

    /// What `host` is called.
    pub fn name(&self, host: u32) -> &str {
        &self.names[host as usize]
    }

    fn listed(&self, hosts: &BTreeSet<u32>) -> Vec<&str> {
        hosts.iter().map(|&host| self.name(host)).collect()
    }

    fn to_text(&self) -> String {
        let (topology, mut text) = (&self.topology, String::new());
        let links = topology.links().len();
        let bridges = topology.bridges();
        let _ = writeln!(text, "{links} links: {} over debug ports, {bridges} over bridges\n", links - bridges);
        for link in topology.links() {
            let _ = match *link {
                Link::Debug { target, host } => {
                    writeln!(text, "{} -> {}   debug port of {0}, a device of {1}", self.name(target), self.name(host))
                }
                Link::Bridge { a, b } => writeln!(text, "{} <> {}   bridge", self.name(a), self.name(b)),
            };
        }
        text.push_str("\nWho does what, in this order; hosts do not wait for each other otherwise:\n");
        for host in 0..topology.hosts() {
            let part = BringUp::of(topology, host);
            let steps = part.steps().iter().map(|(act, wanted)| match wanted.is_empty() {
                true => word(*act).to_owned(),
                false => format!("wait for {}, {}", self.listed(wanted).join(" and "), word(*act)),
            });
            let leads = if topology.leaders().contains(&host) { " (leader)" } else { "" };
            let _ = writeln!(text, "{}{leads}: {}", self.name(host), steps.collect::<Vec<_>>().join("; "));
        }
        text
    }

    fn to_json(&self) -> Value {
        let topology = &self.topology;
        let links = topology.links().iter().map(|link| match *link {
            Link::Debug { target, host } => {
                json!({"kind": "debug", "target": self.name(target), "host": self.name(host)})
            }
            Link::Bridge { a, b } => json!({"kind": "bridge", "hosts": [self.name(a), self.name(b)]}),
        });
        let hosts = (0..topology.hosts()).map(|host| {
            let part = BringUp::of(topology, host);
            let steps = part.steps().iter().map(|(act, wanted)| {
                json!({"do": if *act == Act::Enable { "enable" } else { "enumerate" }, "after": self.listed(wanted)})
            });
            json!({
                "name": self.name(host),
                "is_leader": topology.leaders().contains(&host),
                "steps": steps.collect::<Vec<_>>(),
            })
        });
        json!({
            "links": links.collect::<Vec<_>>(),
            "bridges": topology.bridges(),
            "hosts": hosts.collect::<Vec<_>>(),
        })
    }
}

fn word(act: Act) -> &'static str {
    match act {
        Act::Enable => "enable the debug port",
        Act::Enumerate => "enumerate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Result<Planned, String> {
        Planned::of(toml::from_str(text).unwrap())
    }

    #[test]
    fn the_cube_of_the_paper_takes_four_bridges() {
        let cube = planned("network = \"hypercube\"\nhosts = 8").unwrap();
        assert!(cube.to_text().starts_with("12 links: 8 over debug ports, 4 over bridges\n"), "{}", cube.to_text());
        assert_eq!(cube.to_json()["bridges"], 4);
    }

    #[test]
    fn a_star_says_who_waits_for_whom() {
        let star = planned("hosts = [\"a\", \"b\", \"c\"]\ncables = [[\"a\", \"b\"], [\"a\", \"c\"]]").unwrap();
        let text = star.to_text();
        assert!(text.contains("b -> a   debug port of b, a device of a\n"), "{text}");
        assert!(text.contains("a: wait for b and c, enumerate\n"), "{text}");
        assert!(text.contains("b: enumerate; enable the debug port\n"), "{text}");
        assert_eq!(star.to_json()["hosts"][0]["steps"][0]["after"], json!(["b", "c"]));
        let ring = planned("network = \"ring\"\nhosts = 4").unwrap().to_text();
        assert_eq!(ring.matches(" (leader): enable the debug port; wait for ").count(), 1, "{ring}");
    }

    #[test]
    fn a_wrong_file_is_told_what_is_wrong() {
        let why = |text| planned(text).err().unwrap();
        assert_eq!(why("hosts = 3"), "say either 'network = ' or 'cables = '");
        assert!(
            why("hosts = [\"a\", \"b\"]\ncables = [[\"a\", \"x\"]]").contains("no host is called 'x': there are a, b")
        );
        assert!(why("network = \"hypercube\"\nhosts = 6").contains("2, 4, 8"));
        assert!(why("network = \"line\"\nhosts = 4000000000").contains("at most 256"));
        assert!(why("network = \"line\"\nhosts = [\"a\", \"a\"]").contains("twice"));
    }
}
