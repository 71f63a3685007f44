//! `farbus events`: a stream of what happens in all processes of this user.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use farbus_io_net::local::events::{Event, EventKind};
use farbus_io_net::local::happenings::{ProcessEvent, ProcessEventCursors};
use serde_json::{Value, json};

use super::CommandFailure;
use super::ending::EndCondition;
use super::output::say;

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

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let mut ending = EndCondition::new()?;
    let mut known = ProcessEventCursors::default();
    let mut earlier: VecDeque<ProcessEvent> = ask(&mut known, args)?.into();
    while earlier.len() > args.lines {
        earlier.pop_front();
    }
    earlier.iter().for_each(|happened| show(happened, args.json));
    while !args.no_follow && !ending.has_come() {
        thread::sleep(ASK_EVERY);
        ask(&mut known, args)?.iter().for_each(|happened| show(happened, args.json));
    }
    Ok(())
}

/// What has happened since the last time, as far as it is wanted.
fn ask(happenings: &mut ProcessEventCursors, args: &Args) -> Result<Vec<ProcessEvent>, CommandFailure> {
    let mut new = happenings.ask().map_err(CommandFailure::local)?;
    for (pid, missed) in new.missed {
        eprintln!("farbus: process {pid}: {missed} events came too fast to be shown");
    }
    new.happened.retain(|(event, _)| args.is_wanted(event));
    Ok(new.happened)
}

fn show((event, pid): &ProcessEvent, as_json: bool) {
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
        EventKind::LinkLost => "link lost",
        EventKind::LinkBack => "link back",
        EventKind::SwapBegun => "move begun",
        EventKind::SwapEnded => "move ended",
        kind => kind.as_str(),
    };
    let device = event.device.as_deref().map(|device| format!(" {device}")).unwrap_or_default();
    let host = event.host.as_deref().map_or(String::new(), |host| {
        let link = match event.event {
            EventKind::LinkLost | EventKind::LinkBack | EventKind::Suspended | EventKind::Admitted => "with",
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
        let line = in_a_line(&at(Event::of(EventKind::Released, "disk").host("lab3").how("link lost")));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  released disk by lab3 (link lost)");
        let line = in_a_line(&at(Event::new(EventKind::LinkLost).host("lab3:3241").why("reset")));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  link lost with lab3:3241: reset");
        let refused = Event { count: 9, ..Event::of(EventKind::Refused, "disk\x1b[2J").host("eve\r").why("a\nb") };
        let line = in_a_line(&at(refused));
        assert_eq!(line, "2026-11-24T10:00:00.000Z  refused disk?[2J by eve?: a b (and 9 more before)");
    }
}
