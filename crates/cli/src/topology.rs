//! `farbus topology`: links between this host and others, brought up by their daemons as a plan says.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farbus::importer::client::FailureKind;
use farbus_io_net::local::control_socket::{Answer, Question, TopologyAct, ask_in_turn};
use serde_json::Value;

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};
use super::plan::topology as plan;

/// How often to ask for the state of the links.
const GLANCE: Duration = Duration::from_millis(100);

/// Join hosts by USB links, as a plan says.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every host of the plan runs 'farbus daemon', and is paired with the hosts that it is linked to. Its configuration says:\n\n  \
    [topology]\n  \
    plan = \"topology.toml\"    beside the configuration; 'up' puts it there\n  \
    host = \"left\"             which host of the plan this is; without it, its name\n  \
    via = \"kernel\"            or redir, for virtual machines\n  \
    at = {roof = \"lab3\"}      a host that is paired under another name\n\n\
    Bring the same plan up on each of them, in any order, at any time.\n\n\
    Examples:\n  \
    farbus topology plan cube.toml    what will be which link\n  \
    farbus topology up cube.toml      now, and every time the daemon starts\n  \
    farbus topology status\n  farbus topology down"
)]
pub struct Args {
    #[command(subcommand)]
    verb: TopologyVerb,
}

#[derive(Debug, clap::Subcommand)]
enum TopologyVerb {
    /// Show a plan: the same as 'farbus plan topology'.
    Plan(plan::Args),
    /// Bring this host's links up, and wait until they are.
    #[command(
        after_help = "Each host does its part as soon as its neighbours have done theirs, and waits for hosts that come late. Links that are up stay as they are. If a link is not up in time, the exit code is 3 and the message says what it waits for; the daemon continues to try.\n\n\
        Examples:\n  farbus topology up cube.toml\n  farbus topology up               the plan that the daemon has already\n  \
        farbus topology up cube.toml --wait 0"
    )]
    Up {
        /// The plan, the same on every host; it replaces the one of the configuration.
        file: Option<PathBuf>,
        /// How long to wait for the links.
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Show the state of this host's links, and what they wait for.
    #[command(after_help = "Examples:\n  farbus topology status\n  farbus topology status --json")]
    Status {
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Take this host's links down.
    #[command(
        after_help = "They stay down until 'up', 'farbus daemon reload' or the daemon's next start.\n\nExamples:\n  farbus topology down\n  farbus topology down && farbus topology up other.toml"
    )]
    Down {
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            TopologyVerb::Plan(args) => args.json,
            TopologyVerb::Up { json, .. } | TopologyVerb::Status { json } | TopologyVerb::Down { json } => *json,
        }
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.verb {
        TopologyVerb::Plan(args) => plan::run(args),
        TopologyVerb::Up { file, wait, json } => up(file.as_deref(), Duration::from_secs(*wait), *json),
        TopologyVerb::Status { json } => show(&ask(TopologyAct::Status)?, *json),
        TopologyVerb::Down { json } => show(&ask(TopologyAct::Down)?, *json),
    }
}

/// The answer of the daemon on this machine. If a daemon ends without an answer, asks its replacement.
fn ask(act: TopologyAct) -> Result<Value, CommandFailure> {
    match ask_in_turn(&Question::Topology { act }).map_err(CommandFailure::local)? {
        Answer::Ok(value) => Ok(value),
        Answer::Refused(why) => Err(CommandFailure::new(FailureKind::Refused, why)),
        Answer::Failed(failure) => Err(CommandFailure::new(failure.attribute, failure.message)),
        Answer::Unknown => Err(CommandFailure::new(
            FailureKind::Gone,
            "no daemon of yours runs here\n  start one: farbus daemon --config FILE",
        )),
    }
}

fn up(file: Option<&Path>, patience: Duration, json: bool) -> Result<(), CommandFailure> {
    let before = ask(TopologyAct::Status)?;
    if let Some(file) = file {
        install(file, &before)?;
    }
    let until = Instant::now() + patience;
    let mut status = ask(TopologyAct::Up)?;
    while status["state"] == "coming" && Instant::now() < until {
        thread::sleep(GLANCE);
        status = ask(TopologyAct::Status)?;
    }
    show(&status, json)?;
    match status["state"].as_str() {
        Some("up") => Ok(()),
        Some("no plan") => {
            let what = format!("there is no plan at {}", word(&status["plan"]));
            Err(CommandFailure::new(FailureKind::Gone, format!("{what}\n  give it one: farbus topology up FILE")))
        }
        _ if patience.is_zero() => Ok(()),
        _ => {
            let late: Vec<_> =
                links(&status).filter(|link| link["is_up"] != true).map(|link| word(&link["to"])).collect();
            let what = match late.is_empty() {
                true => "a neighbour has not said yet that it has this host's port".to_owned(),
                false => format!("no link yet to {}", late.join(", ")),
            };
            let next = "the daemon goes on; why is above, and in 'farbus topology status' there";
            Err(CommandFailure::new(FailureKind::Refused, format!("{what}\n  {next}")))
        }
    }
}

/// Writes the plan where the daemon looks for it, atomically.
fn install(file: &Path, status: &Value) -> Result<(), CommandFailure> {
    let (text, planned) = plan::read(file)?;
    let host = word(&status["host"]);
    if planned.host(host).is_none() {
        let names = planned.names.join(", ");
        return Err(CommandFailure::local(format!(
            "{}: no host is called '{host}', as this one is\n  there are {names}: say host = \"NAME\" below [topology], or name it so in the plan",
            file.display()
        )));
    }
    let plan = Path::new(word(&status["plan"]));
    if fs::read(plan).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    let cannot = |error: std::io::Error| CommandFailure::local(format!("cannot write {}: {error}", plan.display()));
    let fresh = plan.with_extension("new");
    let write = || {
        let mut out = fs::File::create(&fresh)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&fresh, plan)
    };
    write().map_err(cannot)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn listed(value: &Value) -> String {
    value.as_array().into_iter().flatten().map(word).collect::<Vec<_>>().join(", ")
}

fn links(status: &Value) -> impl Iterator<Item = &Value> {
    status["links"].as_array().into_iter().flatten()
}

fn show(status: &Value, json: bool) -> Result<(), CommandFailure> {
    if json {
        return print_json(status);
    }
    let leads = if status["is_leader"] == true { ", a leader" } else { "" };
    say(format!("{}{leads}: {}   ({})", word(&status["host"]), word(&status["state"]), word(&status["plan"])));
    if links(status).next().is_none() {
        return Ok(());
    }
    let mut rows = table(&["to", "link", "is", "end here", "state"]);
    for link in links(status) {
        let is = if link["is_up"] == true { "up" } else { "coming" };
        let at = match word(&link["at"]) {
            "" => word(&link["state"]).to_owned(),
            at => format!("{} at {at}", word(&link["state"])),
        };
        rows.add_row([word(&link["to"]), word(&link["role"]), is, word(&link["device"]), &at]);
    }
    print_table(&rows);
    let waits_for = listed(&status["waits_for"]);
    if !waits_for.is_empty() {
        say(format!("waits for {waits_for}"));
    }
    for link in links(status) {
        let troubles = [word(&link["trouble"]), word(&link["failure"]["message"])];
        for trouble in troubles.into_iter().filter(|trouble| !trouble.is_empty()) {
            say(format!("{}: {trouble}", word(&link["to"])));
        }
    }
    if let Some(stray) = status["stray"].as_str() {
        say(format!("{stray} has this host's debug port and should not"));
    }
    Ok(())
}
