//! `farbus migrate`.

use std::time::Duration;

use farbus::frontend::in_use;
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::{DeviceTarget, HOLD};
use farbus_control::units::format_bytes;
use farbus_io_net::local::asking::{ask_owner, hear_owner};
use farbus_io_net::local::control_socket::Question;
use farbus_io_net::trust::{Fingerprint, PairedHostList};
use serde_json::Value;

use super::CommandFailure;
use super::migrate_all::{MigrationStep, all_or_none};
use super::output::{print_json, say};

/// Hand attached devices over to another host, as they are.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        farbus migrate lab3/disk --to desk2\n  \
        farbus attach lab3/disk --wait=20       on desk2: before, or within 20 s\n  \
        farbus migrate lab3/disk --to desk2 --unmount",
    after_long_help = "Requests that are under way end first. Then the device keeps its state and waits 20 s for the other host, and for no other; 'farbus attach --hold' here and 'farbus share --hold' at the exporter say another time, and the shorter one counts. If that host does not attach it in time, the device continues here. Afterwards the exporter refuses requests of the host that had it before.\n\n\
        HOST may be the host that shares the device. There, 'farbus attach DEVICE --wait=20' takes it over without a network in between.\n\n\
        The device needs a session: a paired host, or 'farbus attach --grace SECONDS'. A disk whose file programs have open (--via fuse) is not handed over: close them, or use --unmount.\n\n\
        A device that a virtual machine has (--via redir) goes with the machine. On the other host, before anything else, type\n\n  \
        farbus attach lab3/disk --via redir --socket PATH --inherit\n\n\
        and start a QEMU with the same options and '-incoming', connected there. When 'farbus migrate' returns, the device is held: migrate the machine, and end the QEMU here. If that QEMU still runs after 20 s, or after 'farbus resume', the device continues here.\n\n\
        Its block disks (--via nbd, with --inherit there) go with it, too. Hand them over when QEMU has drained them: in its state 'pre-switchover' (capability pause-before-switchover).\n\n\
        With --discard nothing is waited for: requests under way fail, programs here lose the device, a USB device is reset, and the other host has as long as else to attach it. What programs wrote and did not write out is lost; the command says what that was.\n\n\
        With --with-machine the device serves its machine until that ends its connection here, and then goes to the other host at once: migrate the machine whenever you like. 'farbus resume' ends that.\n\n\
        Examples:\n  \
        farbus migrate lab3/disk --to desk2\n  \
        farbus attach lab3/disk --wait=20       on desk2: before, or within 20 s\n  \
        farbus migrate lab3/disk --to desk2 --unmount\n  \
        farbus migrate lab3/camera --to desk2 --discard\n  \
        farbus migrate lab3/disk lab3/key --to desk2   all or none"
)]
pub struct Args {
    /// Its name, or HOST[:PORT]/DEVICE as attached.
    ///
    /// Several go all or none: if one cannot go, the others are released and go on here.
    #[arg(required = true)]
    device: Vec<String>,
    /// The other host: the name of a paired one, or the key that 'farbus id' prints there.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// First write out and unmount its file systems, and release its loop devices.
    #[arg(long)]
    unmount: bool,
    /// Go on serving its virtual machine, and hand it over when the machine leaves.
    #[arg(long, conflicts_with = "unmount")]
    with_machine: bool,
    /// Wait for nothing: its user here loses it, and what is under way is lost.
    ///
    /// Requests under way fail, what programs have not written out is lost, and a USB device is reset. It does not come
    /// back here if the other host does not attach it in time: anybody may attach it then.
    #[arg(long, conflicts_with_all = ["unmount", "with_machine"])]
    discard: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> Result<(), CommandFailure> {
    let Args { device: mut devices, to, unmount, with_machine, discard, json } = args;
    let peers = TrustStore::open()?.peers().map_err(CommandFailure::local)?;
    let successor = key_of(&peers, &to)?;
    let device = match (devices.pop(), devices.is_empty()) {
        (Some(device), true) => device,
        (last, _) if discard => {
            drop(last);
            return Err(CommandFailure::local("--discard cannot be taken back, so it takes one device at a time"));
        }
        (last, _) => {
            devices.extend(last);
            return several(&devices, &to, &successor, (unmount, with_machine), json);
        }
    };
    if with_machine {
        return follow(&device, &to, &successor, json);
    }
    // Looked up first: what has it open has closed it afterwards.
    let holders = if discard { in_use::holders(&device)? } else { Vec::new() };
    if !discard {
        in_use::make_free(&device, unmount)?;
    }
    let (clients, hold) = (in_use::nbd_clients(&device)?, in_use::longest_hold(&device)?);
    if clients > 0 && !json && !discard {
        say(waits_for(&device, &to, clients, hold));
    }
    // Once it has been handed over, its process may have ended.
    let target = in_use::target_of(&device)?;
    let question =
        Question::Migrate { device: device.clone(), successor: successor.to_string(), discard, to: Some(to.clone()) };
    let answer = hear_owner(&device, question);
    let answer = answer.map_err(|failure| in_use::explain(&device, failure, "and try again"))?;
    // A process of an earlier release says none.
    let hold_ms = answer["hold_ms"].as_u64().unwrap_or(hold.as_millis() as u64);
    let hold_s = Duration::from_millis(hold_ms).as_secs_f64();
    if json {
        let is_machine = answer["machine"] == true;
        return print_json(&serde_json::json!({
            "device": device, "done": "migrate", "to": to, "machine": is_machine, "nbd_clients": clients,
            "hold_ms": hold_ms, "discarded": answer["discarded"],
        }));
    }
    if discard {
        say(thrown_away(&device, &answer["discarded"], clients, &holders));
    }
    if answer["machine"] == true && clients > 0 {
        say(format!("{device} is held still, for {hold_s} s at most"));
        return Ok(());
    }
    if answer["machine"] == true {
        say(format!(
            "{device} is held still: migrate its virtual machine to {to} now, and end it here within {hold_s} s"
        ));
        return Ok(());
    }
    let is_home = target.as_ref().is_some_and(|target| is_at(&peers, target, &successor));
    let name = target.map_or_else(|| device.clone(), |target| target.device);
    let host = if is_home { "" } else { "HOST/" };
    say(format!("{device} waits for {to}, {hold_s} s: there, 'farbus attach {host}{name} --wait={}'", hold_ms / 1000));
    Ok(())
}

/// Hands several devices over, all or none.
fn several(
    devices: &[String],
    to: &str,
    successor: &Fingerprint,
    (unmount, with_machine): (bool, bool),
    json: bool,
) -> Result<(), CommandFailure> {
    let migrate = |device: &str| match with_machine {
        true => {
            Question::Follow { device: device.to_owned(), successor: successor.to_string(), to: Some(to.to_owned()) }
        }
        false => Question::Migrate {
            device: device.to_owned(),
            successor: successor.to_string(),
            discard: false,
            to: Some(to.to_owned()),
        },
    };
    let answers = all_or_none(devices, |device, step| {
        let question = match step {
            MigrationStep::Look => {
                if !with_machine {
                    in_use::make_free(device, unmount)?;
                }
                Question::MayMigrate { device: device.to_owned() }
            }
            MigrationStep::Migrate => migrate(device),
            MigrationStep::Resume => Question::Resume { device: device.to_owned() },
        };
        hear_owner(device, question).map_err(|failure| in_use::explain(device, failure, "and try again"))
    })?;
    if json {
        let all: Vec<Value> = devices
            .iter()
            .zip(&answers)
            .map(|(device, answer)| {
                serde_json::json!({
                    "device": device, "machine": answer["machine"] == true, "hold_ms": answer["hold_ms"],
                })
            })
            .collect();
        let done = if with_machine { "follow" } else { "migrate" };
        return print_json(&serde_json::json!({ "devices": all, "done": done, "to": to }));
    }
    for (device, answer) in devices.iter().zip(&answers) {
        let hold_s = answer["hold_ms"].as_u64().map_or(HOLD, Duration::from_millis).as_secs_f64();
        say(match (with_machine, answer["machine"] == true) {
            (true, _) => format!("{device} goes to {to} when its machine leaves"),
            (false, true) => format!("{device} is held still, and goes to {to} when its user leaves within {hold_s} s"),
            (false, false) => format!("{device} waits for {to}, {hold_s} s"),
        });
    }
    Ok(())
}

/// What was thrown away of a device that went at once.
fn thrown_away(device: &str, discarded: &Value, clients: u64, holders: &[String]) -> String {
    let Some(requests) = discarded["requests"].as_u64() else {
        return format!("{device}: its process is of an earlier release, and waits for what is under way");
    };
    let unwritten = match discarded["unwritten_bytes"].as_u64() {
        None | Some(0) => String::new(),
        Some(bytes) => format!(", {} of writes among them", format_bytes(bytes)),
    };
    let mut message = format!("{device}: thrown away: {requests} requests under way{unwritten}");
    if clients > 0 {
        message += &format!("\n  NBD clients that lost it: {clients}");
    }
    holders.iter().for_each(|holder| message += &format!("\n  {holder}: what it had not written out is lost"));
    message
}

/// Lets the device follow its machine to the host with this key.
fn follow(device: &str, to: &str, successor: &Fingerprint, json: bool) -> Result<(), CommandFailure> {
    let to_named = Some(to.to_owned());
    let question = Question::Follow { device: device.to_owned(), successor: successor.to_string(), to: to_named };
    ask_owner(device, question)?;
    if json {
        return print_json(&serde_json::json!({ "device": device, "done": "follow", "to": to }));
    }
    say(format!(
        "{device} goes to {to} when its machine leaves: migrate the machine, and end it here once it runs there\n  \
         'farbus resume {device}' if it stays"
    ));
    Ok(())
}

/// Whether the host with this key is the one that has the device.
fn is_at(peers: &PairedHostList, target: &DeviceTarget, key: &Fingerprint) -> bool {
    let host = target.address.rsplit_once(':').map_or(target.address.as_str(), |(host, _)| host);
    peers.find(host).is_some_and(|peer| peer.fingerprint == *key)
}

/// What the owner of a disk that NBD clients keep open is told at once.
fn waits_for(device: &str, to: &str, clients: u64, hold: Duration) -> String {
    let hold_s = hold.as_secs_f64();
    let who = if clients == 1 { "an NBD client is".to_owned() } else { format!("{clients} NBD clients are") };
    format!(
        "{device}: {who} connected. What is under way is answered, what comes then waits, and the disk goes to {to} once all have left\n  \
         a virtual machine: migrate it to {to}, and end it here; another program: end it\n  \
         after {hold_s} s it stays here and goes on; 'farbus resume {device}' lets it go on at once"
    )
}

/// The key of the host that a person names by its name or key.
pub fn key_of(peers: &PairedHostList, to: &str) -> Result<Fingerprint, CommandFailure> {
    if let Ok(key) = to.parse() {
        return Ok(key);
    }
    let peer = peers.find(to).ok_or_else(|| {
        CommandFailure::local(format!("no paired host is called '{to}'\n  'farbus peers' lists them; the key that 'farbus id' says there will do, too"))
    })?;
    Ok(peer.fingerprint)
}
