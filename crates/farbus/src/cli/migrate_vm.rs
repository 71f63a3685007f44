//! `farbus migrate-vm`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farbus_io::trust::Fingerprint;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Failure;
use super::migrate::key_of;
use super::output::{print_json, say};
use crate::common::control::{Answer, Question, ask_all, ask_one};
use crate::common::failure::Attribute;
use crate::common::units::format_bytes;
use crate::frontend::machine::{
    ANSWER_TIME_MAX, Attached, Devices, Monitor, MoveError, Progress, Wanted, check, migrate,
};
use crate::hosts::trust::Trust;
use crate::importer::client::Target;

/// Migrate a virtual machine to another host, with its devices.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --check\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444",
    after_long_help = "MONITOR is the QMP socket of the machine's QEMU (-qmp unix:PATH,server=on,wait=off). On the other host, before anything else, attach each of its devices with the front end that it has here, and start a QEMU with the same options, connected to them:\n\n  \
        farbus attach lab3/keys --via redir --socket PATH --inherit\n  \
        qemu-system-x86_64 … -incoming tcp:0:4444\n\n\
        QEMU copies the machine while it runs, and its devices work meanwhile. They go to the other host when QEMU has stopped the machine here and ended: they pause no longer than the machine. All of them go, or none.\n\n\
        Before anything is begun farbus refuses what could not be moved: a device by usbredir that is not attached by this user's farbus, a machine that migrates already, a QEMU that says why it cannot. If anything fails before QEMU has completed, or on Ctrl-C, the migration is cancelled and the machine runs on here with its devices.\n\n\
        Examples:\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --check\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --downtime 50\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --json"
)]
pub struct Args {
    /// QMP socket of the machine's QEMU.
    monitor: PathBuf,
    /// The other host: the name of a paired one, or the key that 'farbus id' prints there.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Where the QEMU of the other host waits for the machine (tcp:HOST:PORT).
    #[arg(long, value_name = "URI")]
    uri: String,
    /// The longest that QEMU may stop the machine, in ms.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=2000))]
    downtime: Option<u32>,
    /// Say what would be moved, and begin nothing.
    #[arg(long)]
    check: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let peers = Trust::open()?.peers().map_err(Failure::local)?;
    let successor = key_of(&peers, &args.to)?;
    let named = |what: &dyn std::fmt::Display| format!("{}: {what}", args.monitor.display());
    let mut monitor =
        Monitor::connect(&args.monitor, ANSWER_TIME_MAX).map_err(|error| Failure::local(named(&error)))?;
    let owners = Owners::of_all(successor)?;
    let found = check(&mut monitor, &owners.attached()).map_err(|error| failure(&error, &named(&error)))?;
    let devices: Vec<String> = found.into_iter().map(|attached| attached.name).collect();
    if args.check {
        if args.json {
            return print_json(&json!({ "to": args.to, "devices": devices, "done": "check" }));
        }
        say(format!("the machine can migrate to {}, with {}", args.to, devices.join(", ")));
        return Ok(());
    }
    let is_cancelled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_cancelled)).map_err(Failure::local)?;
    }
    let bar = bar(args.json);
    let downtime = args.downtime.map(|ms| Duration::from_millis(ms.into()));
    let wanted = Wanted { uri: args.uri.clone(), downtime, devices: devices.clone() };
    let mut owners = owners;
    let moved = migrate(&mut monitor, &mut owners, &wanted, |progress| {
        show(&bar, progress);
        !is_cancelled.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    let moved = moved.map_err(|error| failure(&error, &named(&error)))?;
    if args.json {
        return print_json(&json!({
            "to": args.to, "devices": devices, "done": "migrate-vm", "downtime_ms": moved.downtime_ms,
            "total_ms": moved.total_ms, "ended_ms": moved.ended_ms,
        }));
    }
    say(format!(
        "the machine runs at {}: it stood still for {} ms; {} went with it",
        args.to,
        moved.downtime_ms,
        devices.join(", ")
    ));
    Ok(())
}

fn failure(error: &MoveError, message: &str) -> Failure {
    let attribute = match error {
        MoveError::Unfit(_) => Attribute::Refused,
        MoveError::Undone { .. } | MoveError::NotEnded(_) => Attribute::Local,
    };
    Failure::new(attribute, message)
}

fn bar(json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, Progress { sent_bytes, left_bytes }: Progress) {
    bar.set_length((sent_bytes + left_bytes).max(1));
    bar.set_position(sent_bytes);
    bar.set_message(format!("{} of memory sent, {} left", format_bytes(sent_bytes), format_bytes(left_bytes)));
}

/// The processes of this user that have attachments.
struct Owners {
    successor: Fingerprint,
    all: Vec<(u32, Attached)>,
}

impl Owners {
    fn of_all(successor: Fingerprint) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for (pid, answer) in ask_all(&Question::Status).map_err(Failure::local)? {
            let Answer::Ok(status) = answer else { continue };
            let devices = status["devices"].as_array().into_iter().flatten();
            all.extend(devices.filter_map(attached).map(|attached| (pid, attached)));
        }
        Ok(Self { successor, all })
    }

    fn attached(&self) -> Vec<Attached> {
        self.all.iter().map(|(_, attached)| attached.clone()).collect()
    }

    fn ask(&self, device: &str, question: &Question) -> Result<(), String> {
        let owner = self.all.iter().find(|(_, attached)| attached.name == device);
        let (pid, _) = owner.ok_or_else(|| "it is not attached here".to_owned())?;
        match ask_one(*pid, question, &[]) {
            Ok(Answer::Ok(_)) => Ok(()),
            Ok(Answer::Refused(why)) => Err(why),
            Ok(Answer::Failed(failure)) => Err(failure.message),
            Ok(Answer::Unknown) => Err("it is not attached here any more".to_owned()),
            Err(error) => Err(format!("process {pid}, which has attached it, does not answer: {error}")),
        }
    }
}

/// `HOST/DEVICE`, as a person names an attachment.
fn name_of(device: &Value) -> Option<String> {
    let title = device["title"].as_str()?;
    Some(title.parse::<Target>().map_or_else(|_| title.to_owned(), |target| target.shown().to_string()))
}

/// An attachment at a Unix socket, from its status.
fn attached(device: &Value) -> Option<Attached> {
    let processes = device["processes"].as_array()?.iter().filter_map(|pid| u32::try_from(pid.as_u64()?).ok());
    let at = device["at"].as_str()?.to_owned();
    // The place of an NBD export is a URI.
    let is_redir = !at.starts_with("nbd");
    Some(Attached { name: name_of(device)?, at, processes: processes.collect(), is_redir })
}

impl Devices for Owners {
    fn follow(&mut self, device: &str) -> Result<(), String> {
        let (device, successor) = (device.to_owned(), self.successor.to_string());
        self.ask(&device.clone(), &Question::Follow { device, successor })
    }

    fn stay(&mut self, device: &str) -> Result<(), String> {
        self.ask(device, &Question::Resume { device: device.to_owned() })
    }

    fn is_following(&mut self, device: &str) -> bool {
        let Some((pid, _)) = self.all.iter().find(|(_, attached)| attached.name == device) else { return false };
        let Ok(Answer::Ok(status)) = ask_one(*pid, &Question::Status, &[]) else { return false };
        let mut devices = status["devices"].as_array().into_iter().flatten();
        devices.any(|it| name_of(it).as_deref() == Some(device) && it["state"] == "following")
    }
}
