//! Which programs have an attached disk open, and how to free it: `farbus detach` and `farbus migrate` begin with this.
//!
//! The disk's own process says whether it is in use. The programs' names are looked up here, with the rights of the
//! user who typed the command.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farbus_control::failure::{CommandFailure, FailureKind};
use farbus_io_linux::frontend::holders::{self, DiskHolder};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use serde_json::Value;

use crate::importer::client::{DeviceTarget, HOLD};

/// How long a disk may stay open after its file systems were unmounted: the kernel closes it a moment later.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long to wait for a disk to be closed before refusing: the kernel reports a program's `close` a moment later.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(500);
/// The time between two checks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Where a disk is on this machine.
enum DiskAttachPoint {
    File(PathBuf),
    Port(u32),
}

/// The status of each attachment with this name, from the processes that have them.
fn attached(name: &str) -> Result<Vec<Value>, CommandFailure> {
    let target = name.parse::<DeviceTarget>().ok().map(|target| target.to_string());
    let mut found = Vec::new();
    for (_, answer) in ask_all(&Question::Status).map_err(CommandFailure::local)? {
        let Answer::Ok(process) = answer else { continue };
        let devices = process["devices"].as_array().into_iter().flatten();
        let is_it = |device: &&Value| {
            let title = device["title"].as_str();
            device["bus_id"].is_null() && (device["name"] == name || title == Some(name) || title == target.as_deref())
        };
        found.extend(devices.filter(is_it).cloned());
    }
    Ok(found)
}

/// The host and device as which the device with this name was attached.
pub fn target_of(name: &str) -> Result<Option<DeviceTarget>, CommandFailure> {
    let titles = attached(name)?;
    Ok(titles.iter().find_map(|device| device["title"].as_str()?.parse().ok()))
}

fn place_of(device: &Value) -> Option<DiskAttachPoint> {
    let at = device["at"].as_str()?;
    match at.strip_prefix("vhci port ") {
        Some(port) => port.parse().ok().map(DiskAttachPoint::Port),
        None => at.starts_with('/').then(|| DiskAttachPoint::File(PathBuf::from(at))),
    }
}

fn holders_of(device: &Value) -> Vec<DiskHolder> {
    match place_of(device) {
        Some(DiskAttachPoint::File(file)) => holders::of_file(&file),
        Some(DiskAttachPoint::Port(port)) => holders::of_port(port),
        None => Vec::new(),
    }
}

/// Makes sure that detaching the disk with this name loses no data; `unmount` unmounts its file systems for that. A
/// kernel disk with mounted file systems is refused here, because its process cannot know of the mounts.
pub fn make_free(name: &str, unmount: bool) -> Result<(), CommandFailure> {
    for device in attached(name)? {
        let holders = holders_of(&device);
        let is_port = matches!(place_of(&device), Some(DiskAttachPoint::Port(_)));
        let is_elsewhere = |holder: &DiskHolder| matches!(holder, DiskHolder::MountElsewhere { .. });
        if unmount && holders.iter().any(is_elsewhere) {
            let failure =
                CommandFailure::new(FailureKind::Refused, "it is mounted where only another program can unmount it");
            return Err(explain(name, failure, "and try again"));
        }
        if unmount {
            let stays =
                |error: holders::ReleaseError| CommandFailure::new(FailureKind::Refused, format!("{name}: {error}"));
            holders::release(&holders).map_err(stays)?;
            if !is_closed_within(name, CLOSE_TIME_MAX)? {
                let failure = CommandFailure::new(
                    FailureKind::Refused,
                    "its file systems were unmounted, and it is still in use",
                );
                return Err(explain(name, failure, "and try again"));
            }
        } else if is_port && !holders.is_empty() {
            let failure =
                CommandFailure::new(FailureKind::Refused, "it is in use, and what was not written out would be lost");
            return Err(explain(name, failure, "and try again"));
        } else {
            // Its own process refuses if it is still open.
            is_closed_within(name, SETTLE_TIME_MAX)?;
        }
    }
    Ok(())
}

/// How many NBD clients are connected to the disk with this name: they keep it until they leave.
pub fn nbd_clients(name: &str) -> Result<u64, CommandFailure> {
    let is_nbd = |device: &&Value| device["at"].as_str().is_some_and(|at| at.starts_with("nbd"));
    Ok(attached(name)?.iter().filter(is_nbd).filter_map(|device| device["open"].as_u64()).sum())
}

/// Which programs have the disk with this name open, each in words.
pub fn holders(name: &str) -> Result<Vec<String>, CommandFailure> {
    Ok(attached(name)?.iter().flat_map(holders_of).map(|holder| holder.to_string()).collect())
}

/// How long the device with this name is held at most while it migrates.
pub fn longest_hold(name: &str) -> Result<Duration, CommandFailure> {
    // A process of an earlier release says nothing.
    let hold_ms = attached(name)?.iter().find_map(|device| device["hold_ms"].as_u64());
    Ok(hold_ms.map_or(HOLD, Duration::from_millis))
}

/// Waits until no program has it open, for this time at most; says whether that happened.
fn is_closed_within(name: &str, time_max: Duration) -> Result<bool, CommandFailure> {
    let until = Instant::now() + time_max;
    loop {
        let is_open = |device: &Value| device["open"].as_u64().is_some_and(|open| open > 0);
        if !attached(name)?.iter().any(is_open) {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Adds to a refusal which programs have the disk open, and what to type.
pub fn explain(name: &str, failure: CommandFailure, next: &str) -> CommandFailure {
    let report = failure.report();
    if report.attribute != FailureKind::Refused {
        return failure;
    }
    let holders: Vec<DiskHolder> =
        attached(name).into_iter().flatten().flat_map(|device| holders_of(&device)).collect();
    if holders.is_empty() && !report.message.contains("in use") {
        return failure;
    }
    let lines: String = holders.iter().map(|holder| format!("\n  {holder}")).collect();
    let is_elsewhere = |holder: &DiskHolder| matches!(holder, DiskHolder::MountElsewhere { .. });
    let how = match &holders[..] {
        all if all.iter().any(is_elsewhere) => {
            "\n  end that process, or unmount it there: nsenter --mount --target PID umount PATH;"
        }
        all if all.iter().any(|holder| matches!(holder, DiskHolder::Device { .. })) => {
            "\n  --unmount unmounts and releases them;"
        }
        _ => "\n  close what uses it",
    };
    CommandFailure::new(report.attribute, format!("{name}: {}{lines}{how} {next}", report.message))
}
