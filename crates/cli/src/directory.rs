//! `farbus directory`, and what `farbus list` and `farbus lease` ask of the directory.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use farbus::devices::query::DeviceQuery;
use farbus::hosts::trust::TrustStore;
use farbus_daemon::directory::sites::SiteLimit;
pub use farbus_daemon::directory::sites::{SiteCatalogue, SiteDevice};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use farbus_io_net::local::time_words::parse_span;
use serde_json::json;

use super::CommandFailure;
use super::migrate::key_of;
use super::output::{format_span, print_json, print_table, say, table};

/// Limit what hosts may have of all devices of a directory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The daemon here has to have a directory (directory = in its configuration). 'farbus list --directory' shows its devices, and 'farbus status' its state.\n\n\
    Examples:\n  farbus directory limit desk --devices 3 --for 4h\n  farbus directory limit"
)]
pub struct Args {
    #[command(subcommand)]
    verb: DirectoryVerb,
}

#[derive(Debug, Subcommand)]
enum DirectoryVerb {
    Limit(LimitArgs),
}

/// Show or set how many devices a host may have at a time, and for how long.
///
/// Each host that follows the directory keeps it for the devices that it shares: it counts what the other has leased or
/// attached of all of them. A limit of a host's own configuration (peer_leases, lease_span) holds, too: the directory
/// can only allow less. What a host has already it keeps.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    farbus directory limit                               all limits\n  \
    farbus directory limit desk --devices 3 --for 4h\n  \
    farbus directory limit desk --devices 0              nothing more\n  \
    farbus directory limit desk --none                   no limit any more")]
struct LimitArgs {
    /// The host: the name of a paired one, or its key.
    host: Option<String>,
    /// How many devices it may have at a time, leased or attached.
    #[arg(long, value_name = "NUMBER", requires = "host")]
    devices: Option<u32>,
    /// For how long from now on it may lease a device: 90s, 15m, 2h, 3d, 1h30m.
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span, requires = "host")]
    span: Option<Duration>,
    /// Take the limit away.
    #[arg(long, requires = "host", conflicts_with_all = ["devices", "span"])]
    none: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the output is for a program.
    pub fn is_for_programs(&self) -> bool {
        let DirectoryVerb::Limit(args) = &self.verb;
        args.json
    }
}

/// What to say if no daemon has a directory.
pub const NO_DIRECTORY: &str = "no daemon of yours here has a directory\n  \
    it has one with: directory = \"etcd://HOST:2379\" (see the book's chapter)";

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let DirectoryVerb::Limit(args) = &args.verb;
    let LimitArgs { host, devices, span, none, json } = args;
    let key = match host {
        Some(host) => Some(key_of(&TrustStore::open()?.peers().map_err(CommandFailure::local)?, host)?.to_string()),
        None => None,
    };
    match key.filter(|_| devices.is_some() || span.is_some() || *none) {
        Some(key) => {
            let for_s = span.map(|span| span.as_secs());
            let value = ask(&Question::DirectoryLimit { host: key, devices: *devices, for_s })?;
            if *json {
                return print_json(&value);
            }
            let host = host.as_deref().unwrap_or_default();
            let limit = match in_words(*devices, for_s) {
                words if words.is_empty() => "has no limit in the directory any more".to_owned(),
                words => format!("may have {words}"),
            };
            say(format!("{host} {limit}"));
            Ok(())
        }
        None => show(host.as_deref(), *json),
    }
}

fn show(host: Option<&str>, as_json: bool) -> Result<(), CommandFailure> {
    // No device is meant by that: only limits are wanted.
    let value = ask(&Question::Directory { query: Some(vec![NO_DEVICE.to_owned()]), known: None })?;
    let sites = SiteCatalogue::read(value, &paired()).map_err(CommandFailure::local)?;
    let limits: Vec<SiteLimit> = sites
        .limits
        .into_iter()
        .filter(|limit| host.is_none_or(|host| limit.host == host || limit.key == host))
        .collect();
    if as_json {
        return print_json(&json!(limits));
    }
    if limits.is_empty() {
        say("No limit stands in the directory. Set one: farbus directory limit HOST --devices NUMBER --for SPAN");
        return Ok(());
    }
    let mut table = table(&["HOST", "MAY HAVE", "BY", "SINCE"]);
    for SiteLimit { host, devices, for_s, by, at, .. } in limits {
        table.add_row([host, in_words(devices, for_s), by, at]);
    }
    print_table(&table);
    Ok(())
}

/// Means no device: names have no '/'.
const NO_DEVICE: &str = "name=/";

fn in_words(devices: Option<u32>, for_s: Option<u64>) -> String {
    let devices = devices.map(|devices| match devices {
        1 => "1 device".to_owned(),
        count => format!("{count} devices"),
    });
    let span = for_s.map(|for_s| format!("each lease for {}", format_span(Duration::from_secs(for_s))));
    devices.into_iter().chain(span).collect::<Vec<String>>().join(", ")
}

/// Asks this host's daemon.
fn ask(question: &Question) -> Result<serde_json::Value, CommandFailure> {
    let answers = ask_all(question).map_err(CommandFailure::local)?;
    let mut refused = None;
    for (_, answer) in answers {
        match answer {
            Answer::Ok(value) => return Ok(value),
            Answer::Failed(failure) => return Err(CommandFailure::new(failure.attribute, failure.message)),
            Answer::Refused(why) => refused = Some(why),
            Answer::Unknown => {}
        }
    }
    Err(CommandFailure::local(refused.unwrap_or_else(|| NO_DIRECTORY.to_owned())))
}

/// The names of the paired hosts by their keys.
pub fn paired() -> BTreeMap<String, String> {
    if !TrustStore::is_there() {
        return BTreeMap::new();
    }
    TrustStore::open().map(|trust| trust.names_by_key()).unwrap_or_default()
}

/// Asks this host's daemon for the devices that a query means; `None` if none runs, or if it has no directory. A daemon
/// of an earlier release answers all devices, so the caller looks at each.
pub fn sites(query: &DeviceQuery, paired: &BTreeMap<String, String>) -> Option<SiteCatalogue> {
    // A process of an earlier release refuses the question.
    let question = Question::Directory { query: Some(query.texts().to_vec()), known: None };
    let mut answers = ask_all(&question).ok()?.into_iter();
    let value = answers.find_map(|(_, answer)| if let Answer::Ok(value) = answer { Some(value) } else { None })?;
    SiteCatalogue::read(value, paired).ok()
}
