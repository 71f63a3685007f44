//! `farbus plan topology`: which cables between hosts are debug links, which need a bridge, and which host does what
//! when.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use farbus_daemon::planned::TopologyPlan;
use farbus_realtime::topology::TopologyLink;
use farbus_realtime::topology::bring_up::{BringUp, BringUpAction};
use serde_json::{Value, json};

use super::super::output::{CommandFailure, print_json, say};
use super::examples::{ExampleKind, PlanSource};
use super::file;

/// Plan how to join hosts by USB with the fewest bridges.
#[derive(Debug, clap::Args)]
#[command(after_help = "A network that has a name (line, star, tree, ring, hypercube):\n\n  \
    network = \"hypercube\"\n  hosts = 8\n\n\
    Any other network:\n\n  \
    hosts = [\"left\", \"right\", \"roof\"]\n  \
    cables = [[\"left\", \"right\"], [\"right\", \"roof\"]]\n  \
    without_debug = [\"roof\"]     # its controller has no debug capability\n\n\
    Examples:\n  farbus plan topology cube.toml      the links, and what each host does when\n  \
    farbus plan topology cube.toml --json\n  \
    farbus plan topology --example figure-5c")]
pub struct Args {
    #[command(flatten)]
    source: PlanSource,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Some((name, text)) = args.source.read(ExampleKind::Topology, args.json)? else { return Ok(()) };
    let planned = parse(&name, &text)?;
    if args.json {
        return print_json(&to_json(&planned));
    }
    say(to_text(&planned).trim_end());
    Ok(())
}

/// Reads a plan; returns the plan, and the text of its file.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read(path: &Path) -> Result<(String, TopologyPlan), CommandFailure> {
    let text = file::text(path)?;
    let planned = parse(&path.display().to_string(), &text)?;
    Ok((text, planned))
}

fn parse(name: &str, text: &str) -> Result<TopologyPlan, CommandFailure> {
    TopologyPlan::parse(text).map_err(|why| CommandFailure::local(format!("{name}: {why}")))
}

fn listed<'a>(planned: &'a TopologyPlan, hosts: &BTreeSet<u32>) -> Vec<&'a str> {
    hosts.iter().map(|&host| planned.name(host)).collect()
}

fn to_text(planned: &TopologyPlan) -> String {
    let (topology, mut text) = (&planned.topology, String::new());
    let links = topology.links().len();
    let bridges = topology.bridges();
    let _ = writeln!(text, "{links} links: {} over debug ports, {bridges} over bridges\n", links - bridges);
    for link in topology.links() {
        let _ = match *link {
            TopologyLink::Debug { target, host } => {
                writeln!(
                    text,
                    "{} -> {}   debug port of {0}, a device of {1}",
                    planned.name(target),
                    planned.name(host)
                )
            }
            TopologyLink::Bridge { a, b } => writeln!(text, "{} <> {}   bridge", planned.name(a), planned.name(b)),
        };
    }
    text.push_str("\nWho does what, in this order; hosts do not wait for each other otherwise:\n");
    for host in 0..topology.hosts() {
        let part = BringUp::of(topology, host);
        let steps = part.steps().iter().map(|(act, wanted)| match wanted.is_empty() {
            true => word(*act).to_owned(),
            false => format!("wait for {}, {}", listed(planned, wanted).join(" and "), word(*act)),
        });
        let leads = if topology.leaders().contains(&host) { " (leader)" } else { "" };
        let _ = writeln!(text, "{}{leads}: {}", planned.name(host), steps.collect::<Vec<_>>().join("; "));
    }
    text
}

fn to_json(planned: &TopologyPlan) -> Value {
    let topology = &planned.topology;
    let links = topology.links().iter().map(|link| match *link {
        TopologyLink::Debug { target, host } => {
            json!({"kind": "debug", "target": planned.name(target), "host": planned.name(host)})
        }
        TopologyLink::Bridge { a, b } => json!({"kind": "bridge", "hosts": [planned.name(a), planned.name(b)]}),
    });
    let hosts = (0..topology.hosts()).map(|host| {
        let part = BringUp::of(topology, host);
        let steps = part.steps().iter().map(|(act, wanted)| {
            json!({"do": if *act == BringUpAction::Enable { "enable" } else { "enumerate" }, "after": listed(planned, wanted)})
        });
        json!({
            "name": planned.name(host),
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

fn word(act: BringUpAction) -> &'static str {
    match act {
        BringUpAction::Enable => "enable the debug port",
        BringUpAction::Enumerate => "enumerate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> Result<TopologyPlan, String> {
        TopologyPlan::parse(text)
    }

    #[test]
    fn the_cube_of_the_paper_takes_four_bridges() {
        let cube = planned("network = \"hypercube\"\nhosts = 8").unwrap();
        assert!(to_text(&cube).starts_with("12 links: 8 over debug ports, 4 over bridges\n"), "{}", to_text(&cube));
        assert_eq!(to_json(&cube)["bridges"], 4);
    }

    /// Figures 4 and 5 of "Real-Time USB Networking and Device I/O" (2023), section 4.1.
    #[test]
    fn examples_are_the_topologies_of_the_paper() {
        let of = |name: &str| {
            let example = super::super::examples::find(ExampleKind::Topology, name, false).unwrap().unwrap();
            to_text(&planned(example.text).unwrap())
        };
        assert!(of("figure-4").starts_with("12 links: 8 over debug ports, 4 over bridges\n"), "{}", of("figure-4"));
        for (name, order) in [
            ("figure-5a", &["1: wait for 2 and 3, enumerate\n", "2: enumerate; enable", "3: enumerate; enable"][..]),
            ("figure-5b", &["3: wait for 1 and 2, enumerate; enable", "4: wait for 3, enumerate\n"]),
            // P_1 = {4}, P_2 = {1}, P_3 = {2}, P_4 = {3}.
            (
                "figure-5c",
                &[
                    "1 (leader): enable the debug port; wait for 4, enumerate\n",
                    "2: wait for 1, enumerate; enable",
                    "3: wait for 2, enumerate; enable",
                    "4: wait for 3, enumerate; enable",
                ],
            ),
        ] {
            let text = of(name);
            assert!(text.contains(" 0 over bridges") && order.iter().all(|order| text.contains(order)), "{text}");
        }
    }

    #[test]
    fn plan_of_a_star_says_which_host_waits_for_which() {
        let star = planned("hosts = [\"a\", \"b\", \"c\"]\ncables = [[\"a\", \"b\"], [\"a\", \"c\"]]").unwrap();
        let text = to_text(&star);
        assert!(text.contains("b -> a   debug port of b, a device of a\n"), "{text}");
        assert!(text.contains("a: wait for b and c, enumerate\n"), "{text}");
        assert!(text.contains("b: enumerate; enable the debug port\n"), "{text}");
        assert_eq!(to_json(&star)["hosts"][0]["steps"][0]["after"], json!(["b", "c"]));
        let ring = to_text(&planned("network = \"ring\"\nhosts = 4").unwrap());
        assert_eq!(ring.matches(" (leader): enable the debug port; wait for ").count(), 1, "{ring}");
    }

    #[test]
    fn error_of_an_invalid_plan_file_says_what_is_wrong() {
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
