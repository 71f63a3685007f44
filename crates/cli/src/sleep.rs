//! `farbus daemon sleep` and `wake`: the kernel's `vhci_hcd` refuses to suspend while anything is plugged into it.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use farbus::importer::client::FailureKind;
use farbus_control::daemon::{SleepReport, WakeReport};
use farbus_io_linux::sys::vhci::{PortState, Vhci};
use farbus_io_linux::usb::{SharingObstacle, UsbInventory};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::CommandFailure;
use super::output::say;

/// How long the kernel may take to release what was unplugged.
const FREE_TIME_MAX: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(50);

/// The answers of all daemons on this machine.
fn ask<T: DeserializeOwned>(question: &Question) -> Result<Vec<T>, CommandFailure> {
    let mut answers = Vec::new();
    for (_, answer) in ask_all(question).map_err(CommandFailure::local)? {
        match answer {
            Answer::Ok(value) => answers.push(serde_json::from_value(value).map_err(CommandFailure::local)?),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(CommandFailure::new(FailureKind::Refused, why)),
            Answer::Failed(failure) => return Err(CommandFailure::new(failure.attribute, failure.message)),
        }
    }
    Ok(answers)
}

/// Each port in use, and the bus id of its device on this machine.
fn ports_in_use() -> BTreeMap<u32, Option<String>> {
    // Without the module nothing is plugged in.
    let ports = Vhci::open().and_then(|vhci| vhci.ports()).unwrap_or_default();
    ports
        .into_iter()
        .filter(|status| status.state != PortState::Free)
        .map(|status| (status.port.0, status.local_busid))
        .collect()
}

/// Remote devices that hold a file system or swap of this machine, by bus id, and what they hold.
fn held_by_this_machine() -> BTreeMap<String, String> {
    let all = UsbInventory::default().devices().unwrap_or_default();
    let held = all.into_iter().filter(|found| found.is_imported).filter_map(|found| match found.obstacle {
        Some(SharingObstacle::Mounted { device, at }) => Some((found.bus_id, format!("/dev/{device} is {at}"))),
        _ => None,
    });
    held.collect()
}

/// Detaches everything that keeps the kernel from suspending.
///
/// # Errors
/// [`CommandFailure`]: a device that stays, and why.
pub fn sleep(json: bool) -> Result<(), CommandFailure> {
    let held = held_by_this_machine();
    let is_held = |(port, bus_id): (u32, Option<String>)| Some((port, held.get(&bus_id?)?.clone()));
    let held: BTreeMap<u32, String> = ports_in_use().into_iter().filter_map(is_held).collect();
    let answers = ask(&Question::Sleep { held: held.keys().copied().collect() })?;
    let asleep: Vec<String> = answers.into_iter().flat_map(|SleepReport { asleep }| asleep).collect();
    let until = Instant::now() + FREE_TIME_MAX;
    while ports_in_use().keys().any(|port| !held.contains_key(port)) && Instant::now() < until && !asleep.is_empty() {
        thread::sleep(GLANCE);
    }
    let left = ports_in_use();
    let why = |port: &u32| {
        let by = held.get(port).map_or("another program plugged it in: detach it there", String::as_str);
        format!("vhci port {port}: {by}")
    };
    let stays: Vec<String> = left.keys().map(why).collect();
    if json {
        say(json!({ "asleep": asleep, "stays": stays }));
    } else {
        say(format!("let go of [{}] until 'farbus daemon wake'", asleep.join(", ")));
    }
    match stays.is_empty() {
        true => Ok(()),
        false => {
            let next =
                "unmount it, or 'farbus detach' it, before this machine sleeps; the kernel refuses to until then";
            Err(CommandFailure::new(FailureKind::Refused, format!("{}\n  {next}", stays.join(", "))))
        }
    }
}

/// Attaches again what [`sleep`] detached.
///
/// # Errors
/// [`CommandFailure`].
pub fn wake(json: bool) -> Result<(), CommandFailure> {
    let answers = ask(&Question::Wake)?;
    let awake: Vec<String> = answers.into_iter().flat_map(|WakeReport { awake }| awake).collect();
    if json {
        say(json!({ "awake": awake }));
        return Ok(());
    }
    say(format!("[{}] is attached again, as soon as its exporter answers", awake.join(", ")));
    Ok(())
}
