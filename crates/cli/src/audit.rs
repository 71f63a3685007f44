//! `farbus audit`: what other hosts did here, and what this host's owner allowed them, from the audit log.

use std::thread;
use std::time::{Duration, SystemTime};

use farbus_io_net::local::time_words::{parse_day, parse_past_time};
use farbus_io_net::trust::{AuditReader, HostFolder, RecordedEvent, timestamp};
use serde::Serialize;

use super::CommandFailure;
use super::ending::EndCondition;
use super::output::{print_table, say, table};

/// How often the log is read while it is followed.
const READ_EVERY: Duration = Duration::from_millis(500);

/// What `--on` covers.
const DAY: Duration = Duration::from_secs(86_400);

/// Show what hosts used or were refused here: the audit log.
///
/// The log is kept in the state folder, in files of limited size; the oldest lines are dropped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus audit\n  farbus audit --follow\n  farbus audit --refused --lines 20\n  \
    farbus audit --host lab3 --device disk\n  \
    farbus audit --holders --device board --on 2026-11-24   who had it that day\n  \
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
    /// Only from this time on: 2d (ago), 2026-11-24 or 2026-11-24T08:00Z (UTC).
    #[arg(long, value_name = "TIME", value_parser = parse_past_time)]
    since: Option<SystemTime>,
    /// Only before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_past_time)]
    until: Option<SystemTime>,
    /// Only this day: 2026-11-24 (UTC).
    #[arg(long, value_name = "DAY", value_parser = parse_day, conflicts_with_all = ["since", "until"])]
    on: Option<SystemTime>,
    /// Who had which device from when to when, used or leased, instead of the lines.
    #[arg(long, conflicts_with_all = ["follow", "refused", "grants"])]
    holders: bool,
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

    /// The times between which lines are wanted, as the log writes them.
    fn times(&self) -> (Option<String>, Option<String>) {
        match self.on {
            Some(day) => (Some(timestamp(day)), Some(timestamp(day + DAY))),
            None => (self.since.map(timestamp), self.until.map(timestamp)),
        }
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let mut ending = EndCondition::new()?;
    let folder = HostFolder::of_user()?;
    let mut reader = AuditReader::new(folder.clone());
    let kept = reader.read_all()?;
    let (since, until) = args.times();
    if args.holders {
        let all = held(kept.iter().filter(|event| args.is_wanted(event)));
        let all: Vec<_> = all.into_iter().filter(|held| held.overlaps(since.as_deref(), until.as_deref())).collect();
        print_holders(&all, args.json);
        return Ok(());
    }
    let is_then = |event: &RecordedEvent| {
        let at = event.text("at").unwrap_or_default();
        since.as_deref().is_none_or(|since| since <= at) && until.as_deref().is_none_or(|until| at < until)
    };
    let wanted: Vec<_> = kept.iter().filter(|event| args.is_wanted(event) && is_then(event)).collect();
    let first = if args.all { 0 } else { wanted.len().saturating_sub(args.lines) };
    if wanted.is_empty() && !args.json && !args.follow {
        say(format!("The audit log has no such line ({}).", folder.path().display()));
    }
    wanted[first..].iter().for_each(|event| show(event, args.json));
    if until.is_some() {
        return Ok(());
    }
    while args.follow && !ending.has_come() {
        thread::sleep(READ_EVERY);
        let added = reader.read_added()?;
        added.iter().filter(|event| args.is_wanted(event)).for_each(|event| show(event, args.json));
    }
    Ok(())
}

/// A time for which a host had a device.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct HeldTime {
    /// Its name when it was used.
    device: String,
    /// The host's name, or its address.
    host: String,
    /// `use` or `lease`.
    what: &'static str,
    /// From when: RFC 3339, UTC.
    from: String,
    /// Until when; absent if no end is in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// Of a lease: until when it was granted, and what for.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl HeldTime {
    fn overlaps(&self, since: Option<&str>, until: Option<&str>) -> bool {
        let ends_after = |since| self.until.as_deref().is_none_or(|end| end >= since);
        since.is_none_or(ends_after) && until.is_none_or(|until| self.from.as_str() < until)
    }
}

/// Who had which device from when to when, in the order of the beginnings.
fn held<'a>(events: impl Iterator<Item = &'a RecordedEvent>) -> Vec<HeldTime> {
    let mut all: Vec<HeldTime> = Vec::new();
    for event in events.filter(|event| event.text("outcome") == Some("ok")) {
        let (what, is_begin) = match event.text("event") {
            Some("attach") => ("use", true),
            Some("detach") => ("use", false),
            Some("lease") => ("lease", true),
            Some("lease-end") => ("lease", false),
            _ => continue,
        };
        let text = |name| event.text(name).unwrap_or_default().to_owned();
        let host = event.text("peer").or(event.text("address")).unwrap_or_default();
        let (at, device) = (text("at"), text("device"));
        let is_it = |held: &&mut HeldTime| {
            held.until.is_none() && held.what == what && held.device == device && held.host == host
        };
        match (all.iter_mut().rev().find(is_it), is_begin) {
            (Some(open), false) => open.until = Some(at),
            // Its end is not in the log: the exporter's machine has stopped meanwhile.
            (Some(open), true) if what == "lease" => open.why = event.text("why").map(str::to_owned),
            (_, true) => {
                let why = event.text("why").map(str::to_owned);
                all.push(HeldTime { device, host: host.to_owned(), what, from: at, until: None, why });
            }
            // It began before the oldest line.
            (None, false) => {}
        }
    }
    all
}

fn print_holders(all: &[HeldTime], as_json: bool) {
    if as_json {
        say(serde_json::to_string_pretty(all).unwrap_or_default());
        return;
    }
    if all.is_empty() {
        say("Nobody had such a device then, as far as the audit log says.");
        return;
    }
    let mut table = table(&["DEVICE", "HOST", "WHAT", "FROM", "UNTIL", "GRANTED"]);
    for held in all {
        let until = held.until.as_deref().unwrap_or("no end is logged");
        let why = held.why.as_deref().unwrap_or_default();
        table.add_row([&held.device, &held.host, held.what, &held.from, until, why].map(plain));
    }
    print_table(&table);
}

/// Other hosts choose their names: a terminal must not obey them.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
    plain(&format!("{}{why}", words.join("  ")))
}
