//! `farbus label`.

use farbus::devices::identities::shared_now::{SharedNow, shared_now};
use farbus::importer::client::FailureKind;
use farbus_io_net::local::control_socket::{Answer, Question, ask_one};
use farbus_io_net::trust::{DeviceNotes, HostFolder, KnownNotes, NoteChange, NotedDevice};
use serde_json::json;

use super::CommandFailure;
use super::output::{print_json, say};

/// Say what a shared device is for, and where it is.
///
/// Labels are words by which people and programs find a device: 'farbus list label:board=imx8'.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A device keeps its labels when it is renamed or plugged in elsewhere, and after a restart; a device that farbus does not know again keeps them under its name. They come before what the daemon's configuration says. Every host that may use the device sees them.\n\n\
    Examples:\n  \
    farbus label board board=imx8 rev=b\n  \
    farbus label board place='shelf 3' comment='fan is loud'\n  \
    farbus label board rev=         takes the label away\n  \
    farbus label board              shows them"
)]
pub struct Args {
    /// Name of a device that this machine shares now.
    device: String,
    /// What to say: NAME=VALUE, place=TEXT, comment=TEXT.
    ///
    /// At most 8 labels. A name has 32 letters, digits, '.', '_' and '-' at most, a value 64 bytes, a comment 256.
    /// Without a value, as in NAME=, it is taken away.
    #[arg(value_name = "WORD")]
    words: Vec<NoteChange>,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let folder = HostFolder::of_user()?;
    let called: Vec<SharedNow> = shared_now().into_iter().filter(|shared| shared.name == args.device).collect();
    let Some(first) = called.first() else {
        let next = "share it, then label it; see: farbus status";
        let message = format!("no device called '{}' is shared here\n  {next}", args.device);
        return Err(CommandFailure::new(FailureKind::Gone, message));
    };
    if let Some(other) = called.iter().find(|other| other.id() != first.id()) {
        let message = format!(
            "'{}' is the name of two devices, of processes {} and {}\n  give one another name: name=NAME",
            args.device, first.pid, other.pid
        );
        return Err(CommandFailure::new(FailureKind::Refused, message));
    }
    let lasting = first.identity.as_ref().filter(|identity| identity.is_lasting).map(|identity| identity.id);
    let device = NotedDevice::of(lasting, &first.name);
    let stored = match args.words.is_empty() {
        true => KnownNotes::of(&folder, &device)?,
        false => {
            let changed = KnownNotes::change(&folder, &device, &args.words)?;
            changed.map_err(|why| CommandFailure::new(FailureKind::Refused, why))?
        }
    };
    let mut shown = stored.clone();
    let mut outdated = Vec::new();
    for SharedNow { pid, name, .. } in &called {
        let question = Question::Label { device: name.clone(), notes: stored.clone() };
        match ask_one(*pid, &question, &[]) {
            Ok(Answer::Ok(value)) => shown = serde_json::from_value(value).unwrap_or(shown),
            _ => outdated.push(*pid),
        }
    }
    if args.json {
        let mut value = json!(shown);
        (value["device"], value["outdated_pids"]) = (json!(args.device), json!(outdated));
        return print_json(&value);
    }
    say(format!("{}: {}", args.device, in_words(&shown)));
    for pid in outdated {
        say(format!("  process {pid} is of an earlier release, and shows nothing of it: share it again"));
    }
    Ok(())
}

/// All that is said of a device, in a line.
pub fn in_words(notes: &DeviceNotes) -> String {
    match (notes.in_a_line(), &notes.comment) {
        (line, None) if line.is_empty() => "no label, no place, no comment".to_owned(),
        (line, None) => line,
        (line, Some(comment)) if line.is_empty() => format!("\"{comment}\""),
        (line, Some(comment)) => format!("{line} \"{comment}\""),
    }
}
