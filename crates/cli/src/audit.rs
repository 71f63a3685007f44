//! `farbus audit`: what other hosts did here, and what this host's owner allowed them, from the audit log.

use std::thread;
use std::time::Duration;

use farbus_io_net::trust::{AuditReader, HostFolder, RecordedEvent};

use super::CommandFailure;
use super::ending::EndCondition;
use super::output::say;

/// How often the log is read while it is followed.
const READ_EVERY: Duration = Duration::from_millis(500);

/// Show what hosts used or were refused here: the audit log.
///
/// The log is kept in the state folder, in files of limited size; the oldest lines are dropped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus audit\n  farbus audit --follow\n  farbus audit --refused --lines 20\n  \
    farbus audit --host lab3 --device disk\n  \
    farbus audit --all --json | jq -r 'select(.event == \"pair\") | .peer'")]
pub struct Args {
    /// One JSON object a line, as in the log.
    #[arg(long)]
    pub json: bool,
    /// Show what is added to the log, too, until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// How many of the latest lines to show.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 50)]
    lines: usize,
    /// Show every line that is kept.
    #[arg(long, conflicts_with = "lines")]
    all: bool,
    /// Only what was refused or failed.
    #[arg(long)]
    refused: bool,
    /// Only what was granted or taken back: pair, unpair, allow, forbid.
    #[arg(long, conflicts_with = "refused")]
    grants: bool,
    /// Only this host: its name, its address, or the beginning of its key's fingerprint.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Only this device.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

impl Args {
    fn is_wanted(&self, event: &RecordedEvent) -> bool {
        let is_host = |host: &String| {
            let address = event.text("address").unwrap_or_default();
            event.text("peer").is_some_and(|peer| peer.eq_ignore_ascii_case(host))
                || address == host
                || address.rsplit_once(':').is_some_and(|(address, _)| address.trim_matches(['[', ']']) == host)
                || event.text("fingerprint").is_some_and(|key| host.len() >= 4 && key.starts_with(host.as_str()))
        };
        (!self.refused || event.text("outcome") != Some("ok"))
            && (!self.grants || event.is_grant())
            && self.host.as_ref().is_none_or(is_host)
            && self.device.as_ref().is_none_or(|device| event.text("device") == Some(device))
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let mut ending = EndCondition::new()?;
    let folder = HostFolder::of_user()?;
    let mut reader = AuditReader::new(folder.clone());
    let kept = reader.read_all()?;
    let wanted: Vec<_> = kept.iter().filter(|event| args.is_wanted(event)).collect();
    let first = if args.all { 0 } else { wanted.len().saturating_sub(args.lines) };
    if wanted.is_empty() && !args.json && !args.follow {
        say(format!("The audit log has no such line ({}).", folder.path().display()));
    }
    wanted[first..].iter().for_each(|event| show(event, args.json));
    while args.follow && !ending.has_come() {
        thread::sleep(READ_EVERY);
        let added = reader.read_added()?;
        added.iter().filter(|event| args.is_wanted(event)).for_each(|event| show(event, args.json));
    }
    Ok(())
}

fn show(event: &RecordedEvent, as_json: bool) {
    say(if as_json { event.to_string() } else { in_a_line(event) });
}

/// A line of the log for people.
fn in_a_line(event: &RecordedEvent) -> String {
    let text = |name: &str| event.text(name).unwrap_or_default();
    let who = match (event.text("peer"), event.text("address")) {
        (Some(peer), Some(address)) => format!("{peer} ({address})"),
        (Some(who), None) | (None, Some(who)) => who.to_owned(),
        (None, None) => String::new(),
    };
    let mut words = vec![text("at"), text("outcome"), text("event"), text("device"), &who];
    words.retain(|word| !word.is_empty());
    let why = event.text("why").map(|why| format!(": {why}")).unwrap_or_default();
    let line = format!("{}{why}", words.join("  "));
    // Other hosts choose their names: a terminal must not obey them.
    line.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
