//! `farbus topology`: links between this host and others, brought up by their daemons as a plan says.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use farbus::importer::client::FailureKind;
use farbus_control::topology::TopologyStatus;
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

/// What a daemon answers: as it was sent, for programs, and as it is understood here.
struct TopologyAnswer {
    value: Value,
    status: TopologyStatus,
}

/// The answer of the daemon on this machine. If a daemon ends without an answer, asks its replacement.
fn ask(act: TopologyAct) -> Result<TopologyAnswer, CommandFailure> {
    match ask_in_turn(&Question::Topology { act }).map_err(CommandFailure::local)? {
        Answer::Ok(value) => {
            let status = serde_json::from_value(value.clone()).map_err(CommandFailure::local)?;
            Ok(TopologyAnswer { value, status })
        }
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
        install(file, &before.status)?;
    }
    let until = Instant::now() + patience;
    let mut answer = ask(TopologyAct::Up)?;
    while answer.status.state == "coming" && Instant::now() < until {
        thread::sleep(GLANCE);
        answer = ask(TopologyAct::Status)?;
    }
    show(&answer, json)?;
    let TopologyStatus { state, plan, links, .. } = &answer.status;
    match state.as_ref() {
        "up" => Ok(()),
        "no plan" => {
            let what = format!("there is no plan at {}", plan.display());
            Err(CommandFailure::new(FailureKind::Gone, format!("{what}\n  give it one: farbus topology up FILE")))
        }
        _ if patience.is_zero() => Ok(()),
        _ => {
            let late: Vec<_> = links.iter().filter(|link| !link.is_up).map(|link| link.to.as_str()).collect();
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
fn install(file: &Path, status: &TopologyStatus) -> Result<(), CommandFailure> {
    let (text, planned) = plan::read(file)?;
    let host = status.host.as_str();
    if planned.host(host).is_none() {
        let names = planned.names.join(", ");
        return Err(CommandFailure::local(format!(
            "{}: no host is called '{host}', as this one is\n  there are {names}: say host = \"NAME\" below [topology], or name it so in the plan",
            file.display()
        )));
    }
    let plan = status.plan.as_path();
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

fn show(answer: &TopologyAnswer, json: bool) -> Result<(), CommandFailure> {
    if json {
        return print_json(&answer.value);
    }
    let TopologyStatus { state, host, plan, links, part } = &answer.status;
    let leads = if part.as_ref().is_some_and(|part| part.is_leader) { ", a leader" } else { "" };
    say(format!("{host}{leads}: {state}   ({})", plan.display()));
    if links.is_empty() {
        return Ok(());
    }
    let mut rows = table(&["to", "link", "is", "end here", "state"]);
    for link in links {
        let is = if link.is_up { "up" } else { "coming" };
        let at = match link.at.as_deref() {
            None | Some("") => link.state.clone(),
            Some(at) => format!("{} at {at}", link.state),
        };
        rows.add_row([&link.to, link.role.as_ref(), is, &link.device, &at]);
    }
    print_table(&rows);
    let waits_for = part.as_ref().map(|part| part.waits_for.join(", ")).unwrap_or_default();
    if !waits_for.is_empty() {
        say(format!("waits for {waits_for}"));
    }
    for link in links {
        let failure = link.failure.as_ref().map(|failure| &failure.message);
        for trouble in link.trouble.iter().chain(failure).filter(|trouble| !trouble.is_empty()) {
            say(format!("{}: {trouble}", link.to));
        }
    }
    if let Some(stray) = part.as_ref().and_then(|part| part.stray.as_ref()) {
        say(format!("{stray} has this host's debug port and should not"));
    }
    Ok(())
}
