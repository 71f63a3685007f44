//! `farbus events`: a stream of what happens in all processes of this user.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::thread;
use std::time::{Duration, SystemTime};

use farbus_io::trust::timestamp;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::output::say;
use crate::common::control::{Answer, Question, ask_all, running};
use crate::common::events::{Event, Kind, Latest};

/// How often the processes are asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Show what happens: who uses what, and which links are lost.
///
/// Begins with the latest events that the running shares, attachments and daemons of this user keep, and shows further
/// ones as they happen, until Ctrl-C. For what paired hosts did earlier see 'farbus audit'.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus events\n  farbus events --device disk\n  farbus events --lines 100 --no-follow\n  \
    farbus events --json | jq 'select(.event == \"link-lost\") | .host'"
)]
pub struct Args {
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Only events of this device: its name, or HOST[:PORT]/DEVICE. May be repeated.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    /// How many earlier events to begin with.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// End after the earlier events.
    #[arg(long)]
    no_follow: bool,
}

impl Args {
    fn is_wanted(&self, event: &Event) -> bool {
        let is_named = |wanted: &String| {
            event.device.as_ref().is_some_and(|device| device == wanted || device.ends_with(&format!("/{wanted}")))
        };
        self.device.is_empty() || self.device.iter().any(is_named)
    }
}

/// An event and its process.
type Happened = (Event, u32);

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let mut known = BTreeMap::new();
    let mut earlier: VecDeque<Happened> = ask(&mut known, args)?.into();
    while earlier.len() > args.lines {
        earlier.pop_front();
    }
    earlier.iter().for_each(|happened| show(happened, args.json));
    while !args.no_follow && signals.pending().next().is_none() {
        thread::sleep(ASK_EVERY);
        ask(&mut known, args)?.iter().for_each(|happened| show(happened, args.json));
    }
    Ok(())
}

/// Asks all processes what happened since they were asked last; the earliest event first. `known` is the number of the
/// last event of each process.
fn ask(known: &mut BTreeMap<u32, u64>, args: &Args) -> Result<Vec<Happened>, Failure> {
    let mut happened = Vec::new();
    // One question goes to all: what each has after the least number is sorted out here. A new process is asked for
    // everything that it keeps.
    let is_known = |pid: &u32| known.contains_key(pid);
    let all_known = running().map_err(Failure::local)?.iter().all(is_known);
    let after = known.values().copied().min().filter(|_| all_known).unwrap_or(0);
    let mut answered = BTreeSet::new();
    for (pid, answer) in ask_all(&Question::Events { after }).map_err(Failure::local)? {
        answered.insert(pid);
        // A process of an earlier release does not know the question.
        let Answer::Ok(value) = answer else { continue };
        let Ok(latest) = serde_json::from_value::<Latest>(value) else { continue };
        if after > 0 && !known.contains_key(&pid) {
            // It has begun meanwhile, and is asked for everything next time.
            continue;
        }
        let seen = known.insert(pid, latest.last);
        let of_process = latest.events.into_iter().filter(|event| event.number > seen.unwrap_or(0));
        let missed = seen.filter(|seen| latest.last > *seen).map_or(0, |_| latest.missed);
        if missed > 0 {
            eprintln!("farbus: process {pid}: {missed} events came too fast to be shown");
        }
        happened.extend(of_process.map(|event| (event, pid)));
    }
    // What a process published just before its end may not have been asked for in time.
    let ended: Vec<u32> = known.keys().copied().filter(|pid| !answered.contains(pid)).collect();
    for pid in ended {
        known.remove(&pid);
        let at = timestamp(SystemTime::now());
        happened.push((Event { at, ..Event::new(Kind::Ended).how(format!("process {pid}")) }, pid));
    }
    happened.retain(|(event, _)| args.is_wanted(event));
    happened.sort_by(|(a, _), (b, _)| a.at.cmp(&b.at));
    Ok(happened)
}

fn show((event, pid): &Happened, as_json: bool) {
    if !as_json {
        return say(in_a_line(event));
    }
    let mut value = serde_json::to_value(event).unwrap_or_else(|error| json!({ "error": error.to_string() }));
    if let Value::Object(fields) = &mut value {
        fields.insert("pid".to_owned(), (*pid).into());
    }
    say(value);
}

/// An event for people.
fn in_a_line(event: &Event) -> String {
    let words = match event.event {
        Kind::LinkLost => "link lost",
        Kind::LinkBack => "link back",
        Kind::SwapBegun => "move begun",
        Kind::SwapEnded => "move ended",
        kind => kind.as_str(),
    };
    let device = event.device.as_deref().map(|device| format!(" {device}")).unwrap_or_default();
    let host = event.host.as_deref().map_or(String::new(), |host| {
        let link = match event.event {
            Kind::LinkLost | Kind::LinkBack | Kind::Suspended | Kind::Admitted => "with",
            _ => "by",
        };
        format!(" {link} {host}")
    });
    let how = event.how.as_deref().map(|how| format!(" ({how})")).unwrap_or_default();
    let why = event.why.as_deref().map(|why| format!(": {}", why.replace('\n', " "))).unwrap_or_default();
    let count = if event.count > 0 { format!(" (and {} more before)", event.count) } else { String::new() };
    // Other hosts write some of these texts: a terminal must not obey them.
    let line = format!("{}  {words}{device}{host}{how}{why}{count}", event.at);
    line.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_shown_as_sentences_that_no_host_can_disguise() {
        let at = |event: Event| Event { at: "2026-11-24T10:00:00.000Z".into(), ..event };
        let line = in_a_line(&at(Event::of(Kind::Released, "disk").host("lab3").how("link lost")));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  released disk by lab3 (link lost)");
        let line = in_a_line(&at(Event::new(Kind::LinkLost).host("lab3:3241").why("reset")));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  link lost with lab3:3241: reset");
        let refused = Event { count: 9, ..Event::of(Kind::Refused, "disk\x1b[2J").host("eve\r").why("a\nb") };
        let line = in_a_line(&at(refused));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  refused disk?[2J by eve?: a b (and 9 more before)");
    }
}
