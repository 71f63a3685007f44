//! `farbus migrate-vm`.

use std::path::PathBuf;

use farbus::hosts::trust::TrustStore;
use farbus_control::units::format_bytes;
use indicatif::{ProgressBar, ProgressStyle};

use super::CommandFailure;
use super::interruption::InterruptFlag;
use super::migrate::key_of;
use super::output::{print_json, say};
use crate::machine::{self, MovedMachine, UserAttachments, VmMigrationOrder};

/// The longest downtime limit that QEMU takes, milliseconds (`MAX_MIGRATE_DOWNTIME`, migration/options.c).
const DOWNTIME_MS_MAX: u64 = 2_000_000;

/// Migrate a virtual machine to another host, with its devices.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The other host waits with each device, and with a QEMU:\n  \
        farbus attach lab3/key --via redir --socket /run/key.sock --inherit\n  \
        qemu-system-x86_64 …same options… -incoming tcp:0.0.0.0:4444\n\n\
        Examples:\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --check",
    after_long_help = "It drives QEMU through its monitor (-qmp unix:PATH,server=on,wait=off). The devices serve the machine while its memory is copied, and go to the other host in the moment in which it does. The QEMU here ends when the machine runs there.\n\n\
        The other host waits with each device, and with a QEMU:\n  \
        farbus attach lab3/key --via redir --socket /run/key.sock --inherit\n  \
        qemu-system-x86_64 …same options… -incoming tcp:0.0.0.0:4444\n\n\
        What could not be moved is refused before anything begins: a usb-redir or NBD disk that is not attached by you here, a real USB device, what QEMU itself refuses. If it fails later, or at Ctrl-C, the machine and its devices go on here.\n\n\
        Examples:\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444\n  \
        farbus migrate-vm /run/vm/qmp.sock --to rack --uri tcp:rack:4444 --check\n  \
        farbus migrate-vm vm.qmp --to rack --uri tcp:rack:4444 --downtime 100\n  \
        farbus migrate-vm vm.qmp --to rack --uri tcp:rack:4444 --json | jq .\n\n\
        Exit codes: 3 refused, 4 no such device, 5 QEMU's migration failed, 1 anything else."
)]
pub struct Args {
    /// The Unix socket of QEMU's monitor (QMP).
    monitor: PathBuf,
    /// The other host: the name of a paired one, or the key that 'farbus id' prints there.
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Where the other QEMU waits, as its '-incoming' says, seen from here.
    #[arg(long, value_parser = uri_from)]
    uri: String,
    /// A device that the machine has; may be given several times.
    ///
    /// By default all that its process is connected to.
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The longest time that the machine may stand still, in ms (QEMU's own limit is 300).
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=DOWNTIME_MS_MAX))]
    downtime: Option<u64>,
    /// Only say what would move, or why nothing could.
    #[arg(long)]
    check: bool,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

fn uri_from(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((kind, location)) if !kind.is_empty() && !location.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is no place where a QEMU waits: try tcp:HOST:PORT, or unix:PATH")),
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Args { monitor, to, uri, device, downtime, check, json } = args;
    let peers = TrustStore::open()?.peers().map_err(CommandFailure::local)?;
    let owner = UserAttachments { successor: key_of(&peers, to)? };
    let order = VmMigrationOrder { downtime_ms: *downtime, ..VmMigrationOrder::new(monitor, uri, to, device) };
    if *check {
        let found = machine::check(&order, &owner)?;
        if *json {
            let process = found.process;
            return print_json(&serde_json::json!({ "process": process, "to": to, "devices": found.devices }));
        }
        say(format!("the machine can be moved to {to}, with"));
        found.devices.iter().for_each(|device| say(format!("  {} at {}", device.title, device.at)));
        return Ok(());
    }
    // From here on, Ctrl-C lets the machine stay.
    let interruption = InterruptFlag::new()?;
    let bar = if *json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let template = "{prefix:>14} [{bar:30}] {bytes} of {total_bytes}";
    bar.set_style(ProgressStyle::with_template(template).map_err(CommandFailure::local)?.progress_chars("=> "));
    let moved = machine::migrate(&order, &owner, &interruption.flag(), &mut |progress| {
        bar.set_prefix(progress.status.clone());
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.total_bytes.saturating_sub(progress.left_bytes));
    });
    bar.finish_and_clear();
    let moved = moved.map_err(|failure| interruption.explains(failure))?;
    if *json {
        let MovedMachine {
            devices,
            downtime_ms,
            total_ms,
            sent_bytes,
            completed_unix_us,
            ended_ms,
            departed,
            departed_ms,
        } = &moved;
        return print_json(&serde_json::json!({
            "to": to, "devices": devices, "downtime_ms": downtime_ms, "total_ms": total_ms, "sent_bytes": sent_bytes,
            "completed_unix_us": completed_unix_us,
            "ended_ms": ended_ms,
            "departed": departed,
            "departed_ms": departed_ms,
        }));
    }
    say(format!(
        "the machine runs at {to}: it stood still for {} ms, and was copied in {:.1} s ({})",
        moved.downtime_ms,
        moved.total_ms as f64 / 1000.0,
        format_bytes(moved.sent_bytes)
    ));
    moved.devices.iter().for_each(|device| say(format!("  {} goes with it", device.title)));
    Ok(())
}
