//! `farbus identity`: which device is which.

use std::path::PathBuf;

use farbus::devices::identities::evidence_at;
use farbus::devices::identities::shared_now::{SharedNow, shared_now};
use farbus::exporter::sources::what::{DeviceSpec, UsbSpec};
use farbus::importer::client::FailureKind;
use farbus_io_linux::evidence::DeviceEvidence;
use farbus_io_linux::usb::UsbInventory;
use farbus_io_net::local::control_socket::{Answer, Question, ask_one};
use farbus_io_net::trust::{DeviceId, HostFolder, KnownDevice, KnownDeviceList, PREFIX_DIGITS_MIN};
use farbus_model::MediumNumber;
use serde::Serialize;

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};
use super::share::words::ShareSpec;

/// Show what this host has shared, or adopt an earlier identity.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A device keeps its identity when it is renamed, plugged into another port or shared in another order; a copy has an identity of its own. Permissions and sessions follow the identity.\n\n\
    Examples:\n  farbus identity list\n  \
    farbus identity list --json | jq '.[] | {id, name, medium}'\n  \
    farbus identity adopt disk 3f2a91c0    after a restore from a backup\n  \
    farbus identity adopt disk:/srv/new.img backup"
)]
pub struct Args {
    #[command(subcommand)]
    verb: IdentityVerb,
}

#[derive(Debug, clap::Subcommand)]
enum IdentityVerb {
    /// Show the devices that this host has shared, by identity.
    #[command(
        after_help = "Examples:\n  farbus identity list\n  farbus identity list --json | jq '.[] | {id, name, medium}'"
    )]
    List {
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Give a device the identity of one that was shared before.
    ///
    /// Use it after a disk was copied, restored, or moved to another file system.
    #[command(
        after_help = "Examples:\n  farbus identity adopt disk 3f2a91c0\n  farbus identity adopt disk:/srv/new.img backup"
    )]
    Adopt {
        /// A device that is shared now, by name; or disk:PATH, usb:BUSID.
        device: String,
        /// An id of 'farbus identity list', its first digits, or the last name.
        id: String,
        /// Print the result as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Whether a failure is to be reported as JSON, too.
    pub fn is_for_programs(&self) -> bool {
        matches!(self.verb, IdentityVerb::List { json: true } | IdentityVerb::Adopt { json: true, .. })
    }
}

/// A device, as `farbus identity list --json` shows it.
#[derive(Serialize)]
struct IdentityRow {
    id: DeviceId,
    generation: u64,
    name: String,
    is_named: bool,
    /// Its evidence; `None` if no shared device is this one now, or its evidence does not last.
    #[serde(skip_serializing_if = "Option::is_none")]
    medium: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    view: String,
    /// Whether it is recognised after a restart.
    is_lasting: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<String>,
    /// The process that shares it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let folder = HostFolder::of_user()?;
    match &args.verb {
        IdentityVerb::List { json } => list(&folder, *json),
        IdentityVerb::Adopt { device, id, json } => adopt(&folder, device, id, *json),
    }
}

fn list(folder: &HostFolder, json: bool) -> Result<(), CommandFailure> {
    let (all, now) = (KnownDeviceList::load(folder)?, shared_now());
    let pid_of = |id: DeviceId| now.iter().find(|shared| shared.id() == Some(id)).map(|shared| shared.pid);
    let mut lines: Vec<IdentityRow> = all.iter().map(|known| line_of(known, pid_of(known.id))).collect();
    for SharedNow { pid, name, is_named, identity, .. } in now {
        let Some(identity) = identity.filter(|identity| all.of_id(identity.id).is_none()) else { continue };
        lines.push(IdentityRow {
            id: identity.id,
            generation: identity.generation,
            name,
            is_named,
            medium: None,
            view: String::new(),
            is_lasting: identity.is_lasting,
            seen: None,
            pid: Some(pid),
        });
    }
    if json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        say("Nothing was shared here yet. Try: farbus share disk:PATH");
        return Ok(());
    }
    let mut table = table(&["ID", "MEDIUM NO.", "NAME", "PID", "LAST SHARED", "KNOWN BY"]);
    for line in lines {
        let known_by = match (&line.medium, line.is_lasting) {
            (Some(medium), _) if line.view.is_empty() => medium.clone(),
            (Some(medium), _) => format!("{medium} {}", line.view),
            (None, true) => "nothing now (farbus identity adopt)".to_owned(),
            (None, false) => "its process alone".to_owned(),
        };
        let pid = line.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let day = line.seen.as_deref().and_then(|seen| seen.split('T').next()).unwrap_or_default().to_owned();
        table.add_row([line.id.short(), MediumNumber(line.generation).to_string(), line.name, pid, day, known_by]);
    }
    print_table(&table);
    Ok(())
}

fn line_of(known: &KnownDevice, pid: Option<u32>) -> IdentityRow {
    IdentityRow {
        id: known.id,
        generation: known.generation,
        name: known.name.clone(),
        is_named: known.is_named,
        medium: known.medium.clone(),
        view: known.view.clone(),
        is_lasting: true,
        seen: Some(known.seen.clone()),
        pid,
    }
}

/// The device that is to be known as another one, and its evidence.
struct AdoptedDevice {
    medium: String,
    view: String,
}

fn adopt(folder: &HostFolder, device: &str, id: &str, json: bool) -> Result<(), CommandFailure> {
    let (all, now) = (KnownDeviceList::load(folder)?, shared_now());
    let subject = subject_of(device, &all, &now)?;
    let wanted = find(&all, id, &subject)?;
    let current = all.find(&subject.medium, &subject.view).map(|known| known.id);
    if current == Some(wanted.id) {
        if json {
            return print_adopted(device, wanted.id, &[]);
        }
        say(format!("{device} is {} already", wanted.id.short()));
        return Ok(());
    }
    if let Some(other) = now.iter().find(|shared| shared.id() == Some(wanted.id)) {
        let message = format!(
            "{} is shared now, as '{}' by process {}: it is not {device}\n  end that first, if it is to be {device}",
            wanted.id.short(),
            other.name,
            other.pid
        );
        return Err(CommandFailure::new(FailureKind::Refused, message));
    }
    let running: Vec<&SharedNow> = now.iter().filter(|shared| current.is_some() && shared.id() == current).collect();
    if let Some(SharedNow { name, user: Some(user), .. }) = running.iter().find(|shared| shared.user.is_some()) {
        let message =
            format!("'{name}' is used by {user}, as the device that it is now\n  first: farbus release {name}");
        return Err(CommandFailure::new(FailureKind::Refused, message));
    }
    // It may be another medium: without a new generation, an earlier session would continue with it.
    let generation = wanted.identity().adopted().generation;
    let id = wanted.id;
    KnownDeviceList::change(folder, |all| all.give(id, generation, &subject.medium, &subject.view))?;
    if !json {
        say(format!("{device} is {} from now on", id.short()));
    }
    let mut outdated = Vec::new();
    for SharedNow { pid, name, .. } in running {
        let question = Question::Adopt { device: name.clone(), id, generation };
        if !matches!(ask_one(*pid, &question, &[]), Ok(Answer::Ok(_))) {
            outdated.push(*pid);
        }
    }
    if json {
        return print_adopted(device, id, &outdated);
    }
    for pid in outdated {
        say(format!("  process {pid} shares it as what it was: share it again"));
    }
    Ok(())
}

/// Prints the result of an adoption as JSON. The processes in `outdated_pids` share the device as what it was.
fn print_adopted(device: &str, id: DeviceId, outdated_pids: &[u32]) -> Result<(), CommandFailure> {
    print_json(&serde_json::json!({ "device": device, "done": "adopt", "id": id, "outdated_pids": outdated_pids }))
}

fn subject_of(device: &str, all: &KnownDeviceList, now: &[SharedNow]) -> Result<AdoptedDevice, CommandFailure> {
    let called: Vec<&SharedNow> = now.iter().filter(|shared| shared.name == device).collect();
    match called[..] {
        [] if device.contains([':', '/']) => return subject_at(device),
        [] => {
            let next = "name it is shared, such as disk:PATH; see: farbus status";
            return Err(CommandFailure::new(
                FailureKind::Gone,
                format!("no device called '{device}' is shared here\n  {next}"),
            ));
        }
        [_] => {}
        _ => {
            let pids: Vec<_> = called.iter().map(|shared| shared.pid.to_string()).collect();
            let message = format!(
                "'{device}' is shared by processes {}\n  say which, as it is shared: farbus identity adopt disk:PATH ID",
                pids.join(", ")
            );
            return Err(CommandFailure::new(FailureKind::Refused, message));
        }
    }
    let known = called[0].id().and_then(|id| all.of_id(id));
    match known.and_then(|known| Some((known.medium.clone()?, known.view.clone()))) {
        Some((medium, view)) => Ok(AdoptedDevice { medium, view }),
        None => Err(unknowable(device)),
    }
}

/// Identifies a device that is named as `farbus share` names it.
fn subject_at(text: &str) -> Result<AdoptedDevice, CommandFailure> {
    let spec = if text.contains(':') { text.to_owned() } else { format!("disk:{text}") };
    let called: ShareSpec = spec.parse().map_err(CommandFailure::local)?;
    let (evidence, view) = match &called.what {
        DeviceSpec::Usb(UsbSpec { selector, .. }) => {
            let inventory = UsbInventory::default();
            let all = inventory.devices().map_err(CommandFailure::local)?;
            let found: Vec<_> = all.iter().filter(|found| selector.matches(found)).collect();
            let [found] = found[..] else {
                let message = format!(
                    "{} USB devices are {selector}\n  name one by its bus id: farbus share --list",
                    found.len()
                );
                return Err(CommandFailure::new(FailureKind::Refused, message));
            };
            (Some(DeviceEvidence::of_usb(found, &all, &inventory)), String::new())
        }
        DeviceSpec::Disk { spec, sector_bytes, .. } => {
            let path: Option<PathBuf> = spec.medium_path().map(Into::into);
            let path = path.ok_or_else(|| unknowable(text))?;
            if !path.exists() {
                return Err(CommandFailure::new(FailureKind::Gone, format!("there is nothing at {}", path.display())));
            }
            (evidence_at(&path), spec.view_with(*sector_bytes))
        }
        _ => return Err(unknowable(text)),
    };
    let evidence = evidence.filter(|evidence| evidence.is_stable).ok_or_else(|| unknowable(text))?;
    Ok(AdoptedDevice { medium: evidence.text, view })
}

fn unknowable(device: &str) -> CommandFailure {
    let why = "it has nothing by which it is known again after a restart: see docs/identity.md";
    CommandFailure::new(FailureKind::Refused, format!("{device} cannot be said to be a device of before\n  {why}"))
}

/// The known device that `text` means.
fn find<'a>(all: &'a KnownDeviceList, text: &str, subject: &AdoptedDevice) -> Result<&'a KnownDevice, CommandFailure> {
    let is_subject =
        |known: &&KnownDevice| known.medium.as_ref() == Some(&subject.medium) && known.view == subject.view;
    let mut meant: Vec<&KnownDevice> = all.iter().filter(|known| known.id.begins_with(text)).collect();
    if meant.is_empty() {
        meant = all.iter().filter(|known| known.name == text && !is_subject(known)).collect();
    }
    match meant[..] {
        [known] => Ok(known),
        [] => {
            let next = format!("an id has at least {PREFIX_DIGITS_MIN} digits; see: farbus identity list");
            Err(CommandFailure::new(FailureKind::Gone, format!("no device of before is '{text}'\n  {next}")))
        }
        _ => {
            let choices: Vec<_> = meant
                .iter()
                .map(|known| format!("{}  {} last shared {}", known.id.short(), known.name, known.seen))
                .collect();
            let message = format!("'{text}' is several devices: say which by its id\n  {}", choices.join("\n  "));
            Err(CommandFailure::new(FailureKind::Refused, message))
        }
    }
}
