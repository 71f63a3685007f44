//! Migrates a QEMU with its farbus devices, so that a device pauses no longer than the machine does.
//!
//! | step | QEMU | its devices |
//! |---|---|---|
//! | check | runs, does not migrate, and has no usb-redir device that is not farbus's | are attached here |
//! | follow | runs | work, and go to the other host when QEMU ends its connections |
//! | copy | runs, and copies its memory | work |
//! | switch | has stopped, and has not said so to the other side (`pre-switchover`) | still follow: the last look |
//! | end | has completed, and is told to quit | go to the other host |
//!
//! Up to *switch* everything can be taken back: the migration is cancelled, the machine runs on, its devices follow it
//! no more. Once QEMU says *completed* the machine is on the other host, and only its devices are left to go.

mod monitor;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use monitor::{ANSWER_TIME_MAX, Monitor, MonitorError};

/// How often to look at the progress if QEMU says nothing.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long QEMU may take from its switch to its end: it sends the state of its devices.
const SWITCH_TIME_MAX: Duration = Duration::from_secs(60);
/// How long QEMU may take to cancel a migration.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(30);
/// How long QEMU may take to end after it was told to quit.
const QUIT_TIME_MAX: Duration = Duration::from_secs(15);
/// The capability by which QEMU waits before it switches.
const PAUSE: &str = "pause-before-switchover";

/// The devices of a machine, as their owner commands them.
pub trait Devices {
    /// Lets the device follow its machine to the other host.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn follow(&mut self, device: &str) -> Result<(), String>;

    /// Lets the device follow its machine no more.
    ///
    /// # Errors
    /// Why not, in words.
    fn stay(&mut self, device: &str) -> Result<(), String>;

    /// Whether the device still follows its machine.
    fn is_following(&mut self, device: &str) -> bool;
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where QEMU sends the machine: `tcp:HOST:PORT`, `unix:PATH`, `exec:COMMAND`.
    pub uri: String,
    /// The longest that QEMU may stop the machine; `None`: as QEMU has it.
    pub downtime: Option<Duration>,
    /// The machine's devices by the names under which their owner knows them.
    pub devices: Vec<String>,
}

/// How far the copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of memory that were sent.
    pub sent_bytes: u64,
    /// Bytes of memory that are left.
    pub left_bytes: u64,
}

/// What QEMU said of a migration that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How long the machine stood still, ms.
    pub downtime_ms: u64,
    /// How long all took, ms.
    pub total_ms: u64,
    /// How long its QEMU took to end after that, ms: its devices wait for it.
    pub ended_ms: u64,
}

/// Why a machine did not migrate, or not all of it.
#[derive(Debug, PartialEq, Eq)]
pub enum MoveError {
    /// Refused before anything was begun.
    Unfit(String),
    /// It failed, and everything is as before: the machine runs here with its devices.
    Undone {
        /// What failed.
        why: String,
        /// What could not be put back, in sentences; empty if nothing.
        left: Vec<String>,
    },
    /// The machine is on the other host, and its QEMU here did not end: its devices are still here.
    NotEnded(String),
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(why) => f.write_str(why),
            Self::Undone { why, left } => {
                write!(f, "{why}")?;
                match left.as_slice() {
                    [] => write!(f, "\n  the machine runs on here, with its devices"),
                    left => left.iter().try_for_each(|what| write!(f, "\n  {what}")),
                }
            }
            Self::NotEnded(why) => write!(
                f,
                "the machine is on the other host, and its QEMU here has not ended: {why}\n  \
                 end it: its devices go to the other host then"
            ),
        }
    }
}

impl std::error::Error for MoveError {}

/// A farbus attachment that the machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The name by which its owner commands it.
    pub name: String,
    /// The path of its Unix socket.
    pub at: String,
    /// The processes that are connected there.
    pub processes: Vec<u32>,
    /// Whether it speaks usbredir there.
    pub is_redir: bool,
}

/// Which of these attachments the machine has, if it can migrate with all of them.
///
/// # Errors
/// [`MoveError::Unfit`]: it migrates already or does not run, its QEMU is too old, something in it cannot migrate, it
/// has a device by usbredir that is none of these, or it has no device of farbus.
pub fn check(monitor: &mut Monitor, attached: &[Attached]) -> Result<Vec<Attached>, MoveError> {
    let unfit = |error: MonitorError| MoveError::Unfit(error.to_string());
    let status = monitor.execute("query-status", json!({})).map_err(unfit)?;
    let status = status["status"].as_str().unwrap_or_default().to_owned();
    if !["running", "paused"].contains(&status.as_str()) {
        return Err(MoveError::Unfit(format!(
            "its QEMU is in the state '{status}': only a machine that runs migrates"
        )));
    }
    let migration = monitor.execute("query-migrate", json!({})).map_err(unfit)?;
    if is_under_way(&migration) {
        return Err(MoveError::Unfit("the machine migrates already: 'migrate_cancel' in its monitor ends that".into()));
    }
    let reasons = migration["blocked-reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let reasons: Vec<&str> = reasons.collect();
    if !reasons.is_empty() {
        return Err(MoveError::Unfit(format!("QEMU cannot migrate it: {}", reasons.join("; "))));
    }
    let capabilities = monitor.execute("query-migrate-capabilities", json!({})).map_err(unfit)?;
    if capability(&capabilities, PAUSE).is_none() {
        return Err(MoveError::Unfit(format!("its QEMU has no '{PAUSE}': QEMU 2.11 and later have it")));
    }
    let process = monitor.process();
    let own: Vec<Attached> = attached
        .iter()
        .filter(|attached| process.is_some_and(|process| attached.processes.contains(&process)))
        .cloned()
        .collect();
    // A QEMU that connected to a socket names its own end of the connection, which has no path: such devices are
    // counted.
    let mut unnamed = own.iter().filter(|attached| attached.is_redir).count();
    for (device, channel) in usb_redirs(monitor).map_err(unfit)? {
        let is_own = if channel == "unix:" {
            let is_left = unnamed > 0;
            unnamed = unnamed.saturating_sub(1);
            is_left
        } else {
            own.iter().any(|attached| names_socket(&channel, &attached.at))
        };
        if !is_own {
            return Err(MoveError::Unfit(format!(
                "its device '{device}' (usb-redir at {channel}) is no attachment of yours: it would be lost\n  \
                 take it out first: device_del {device}"
            )));
        }
    }
    if own.is_empty() {
        let who = process.map_or_else(|| "QEMU".to_owned(), |process| format!("QEMU, process {process},"));
        return Err(MoveError::Unfit(format!(
            "{who} has no device of farbus: migrate it by its monitor\n  see: farbus status"
        )));
    }
    Ok(own)
}

/// Migrates a machine that was checked. `progress` is told how far the copy is, and returns whether to go on.
///
/// # Errors
/// [`MoveError`].
pub fn migrate(
    monitor: &mut Monitor,
    devices: &mut impl Devices,
    wanted: &Wanted,
    mut progress: impl FnMut(Progress) -> bool,
) -> Result<Moved, MoveError> {
    let mut before = Before::default();
    let done = move_all(monitor, devices, wanted, &mut before, &mut progress);
    let mut moved = match done {
        Ok(moved) => moved,
        Err(why) => match before.undo(monitor, devices) {
            // It completed while it was being cancelled.
            Undone::Completed(moved) => moved,
            Undone::Here(left) => return Err(MoveError::Undone { why, left }),
        },
    };
    let completed = Instant::now();
    // The end of QEMU's connections is what its devices wait for.
    match monitor.execute("quit", json!({})) {
        Ok(_) | Err(MonitorError::Closed(_)) => {}
        Err(error) => return Err(MoveError::NotEnded(error.to_string())),
    }
    if !monitor.wait_for_end(QUIT_TIME_MAX) {
        return Err(MoveError::NotEnded(format!("it was told to quit {} s ago", QUIT_TIME_MAX.as_secs())));
    }
    moved.ended_ms = u64::try_from(completed.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(moved)
}

/// What a migration has changed, to be put back if it fails.
#[derive(Debug, Default)]
struct Before {
    /// Former values of capabilities.
    capabilities: Vec<(String, bool)>,
    /// The former limit of the downtime, ms.
    downtime_ms: Option<u64>,
    is_running: bool,
    following: Vec<String>,
    is_begun: bool,
}

/// What became of a migration that was taken back.
enum Undone {
    /// Everything is here; what could not be put back, in sentences.
    Here(Vec<String>),
    Completed(Moved),
}

fn move_all(
    monitor: &mut Monitor,
    devices: &mut impl Devices,
    wanted: &Wanted,
    before: &mut Before,
    progress: &mut impl FnMut(Progress) -> bool,
) -> Result<Moved, String> {
    let said = |error: MonitorError| error.to_string();
    before.is_running = monitor.execute("query-status", json!({})).map_err(said)?["running"] == true;
    set_up(monitor, wanted, before).map_err(said)?;
    for device in &wanted.devices {
        // Even one that says no may have understood half of it.
        before.following.push(device.clone());
        devices.follow(device).map_err(|why| format!("{device} cannot go with its machine: {why}"))?;
    }
    before.is_begun = true;
    monitor.execute("migrate", json!({ "uri": wanted.uri })).map_err(said)?;
    let mut since_switch = None;
    loop {
        let migration = monitor.execute("query-migrate", json!({})).map_err(said)?;
        match migration["status"].as_str().unwrap_or_default() {
            "completed" => return Ok(moved(&migration)),
            "failed" | "cancelled" | "none" => return Err(failed(&migration)),
            "pre-switchover" if since_switch.is_none() => {
                since_switch = Some(Instant::now());
                if let Some(gone) = wanted.devices.iter().find(|device| !devices.is_following(device)) {
                    return Err(format!("{gone} does not follow its machine any more: see its log"));
                }
                monitor.execute("migrate-continue", json!({ "state": "pre-switchover" })).map_err(said)?;
                // What it said so far was said before.
                continue;
            }
            _ if since_switch.is_some_and(|since: Instant| since.elapsed() > SWITCH_TIME_MAX) => {
                return Err(format!("QEMU did not end its migration within {} s", SWITCH_TIME_MAX.as_secs()));
            }
            _ => {}
        }
        if !progress(progress_of(&migration)) {
            return Err("interrupted".to_owned());
        }
        monitor.wait_for_event(LOOK_EVERY).map_err(said)?;
    }
}

/// Sets what the migration needs, and notes what there was.
fn set_up(monitor: &mut Monitor, wanted: &Wanted, before: &mut Before) -> Result<(), MonitorError> {
    let all = monitor.execute("query-migrate-capabilities", json!({}))?;
    // Events save the time until the next look, during which the machine stands still.
    let needed = [PAUSE, "events"].into_iter().filter(|name| capability(&all, name) == Some(false));
    for name in needed {
        before.capabilities.push((name.to_owned(), false));
        set_capability(monitor, name, true)?;
    }
    if let Some(downtime) = wanted.downtime {
        let parameters = monitor.execute("query-migrate-parameters", json!({}))?;
        before.downtime_ms = parameters["downtime-limit"].as_u64();
        let limit = u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX);
        monitor.execute("migrate-set-parameters", json!({ "downtime-limit": limit }))?;
    }
    Ok(())
}

impl Before {
    /// Takes back what was begun: cancels the migration, lets the machine and its devices go on here.
    fn undo(self, monitor: &mut Monitor, devices: &mut impl Devices) -> Undone {
        let mut left = Vec::new();
        if self.is_begun {
            match cancel(monitor) {
                Ok(None) => {}
                Ok(Some(moved)) => return Undone::Completed(moved),
                Err(why) => left.push(why),
            }
        }
        for device in &self.following {
            // One that follows nobody says so, and stays.
            if devices.is_following(device)
                && let Err(why) = devices.stay(device)
            {
                left.push(format!("{device} still follows its machine ({why}): farbus resume {device}"));
            }
        }
        if left.is_empty() && self.is_running {
            left.extend(go_on(monitor));
        }
        for (name, value) in &self.capabilities {
            // QEMU keeps it until it ends; it changes nothing until somebody migrates the machine by hand.
            let _ = set_capability(monitor, name, *value);
        }
        if let Some(limit) = self.downtime_ms {
            let _ = monitor.execute("migrate-set-parameters", json!({ "downtime-limit": limit }));
        }
        Undone::Here(left)
    }
}

/// Lets a machine go on that ran before; what it says if it does not.
fn go_on(monitor: &mut Monitor) -> Option<String> {
    let result = match monitor.execute("query-status", json!({})) {
        Ok(status) if status["running"] == true => return None,
        Ok(_) => monitor.execute("cont", json!({})).map(drop),
        Err(error) => Err(error),
    };
    let why = result.err()?;
    Some(format!("the machine may stand still here ({why}): 'cont' in its monitor"))
}

/// Cancels the migration; returns what became of it if it completed all the same.
fn cancel(monitor: &mut Monitor) -> Result<Option<Moved>, String> {
    let unknown = |error: &dyn fmt::Display| format!("it is not known whether QEMU still migrates: {error}");
    monitor.execute("migrate_cancel", json!({})).map_err(|error| unknown(&error))?;
    let since = Instant::now();
    loop {
        let migration = monitor.execute("query-migrate", json!({})).map_err(|error| unknown(&error))?;
        match migration["status"].as_str() {
            Some("completed") => return Ok(Some(moved(&migration))),
            _ if !is_under_way(&migration) => return Ok(None),
            _ if since.elapsed() > CANCEL_TIME_MAX => return Err(unknown(&"it does not cancel")),
            _ => monitor.wait_for_event(LOOK_EVERY).map_err(|error| unknown(&error))?,
        };
    }
}

fn is_under_way(migration: &Value) -> bool {
    let idle = ["none", "completed", "failed", "cancelled"];
    migration["status"].as_str().is_some_and(|status| !idle.contains(&status))
}

fn moved(migration: &Value) -> Moved {
    let ms = |field: &str| migration[field].as_u64().unwrap_or_default();
    Moved { downtime_ms: ms("downtime"), total_ms: ms("total-time"), ended_ms: 0 }
}

fn failed(migration: &Value) -> String {
    match (migration["status"].as_str(), migration["error-desc"].as_str()) {
        (Some("cancelled"), _) => "somebody cancelled the migration".to_owned(),
        (_, Some(why)) => format!("QEMU's migration failed: {why}"),
        _ => "QEMU's migration failed: is a QEMU with the same options and '-incoming' at that address?".to_owned(),
    }
}

fn progress_of(migration: &Value) -> Progress {
    let bytes = |field: &str| migration["ram"][field].as_u64().unwrap_or_default();
    Progress { sent_bytes: bytes("transferred"), left_bytes: bytes("remaining") }
}

fn capability(all: &Value, name: &str) -> Option<bool> {
    all.as_array()?.iter().find(|one| one["capability"] == name)?["state"].as_bool()
}

fn set_capability(monitor: &mut Monitor, name: &str, state: bool) -> Result<(), MonitorError> {
    let one = json!({ "capability": name, "state": state });
    monitor.execute("migrate-set-capabilities", json!({ "capabilities": [one] })).map(drop)
}

/// The usb-redir devices of the machine, each with where its character device is connected.
fn usb_redirs(monitor: &mut Monitor) -> Result<Vec<(String, String)>, MonitorError> {
    let channels = monitor.execute("query-chardev", json!({}))?;
    let mut found = Vec::new();
    for folder in ["/machine/peripheral", "/machine/peripheral-anon"] {
        let children = monitor.execute("qom-list", json!({ "path": folder }))?;
        for child in children.as_array().into_iter().flatten().filter(|child| child["type"] == "child<usb-redir>") {
            let name = child["name"].as_str().unwrap_or_default();
            let path = format!("{folder}/{name}");
            let label = monitor.execute("qom-get", json!({ "path": path, "property": "chardev" }))?;
            let mut channels = channels.as_array().into_iter().flatten();
            let channel = channels.find(|channel| channel["label"] == label).map(|channel| &channel["filename"]);
            let channel = channel.and_then(Value::as_str).unwrap_or("an unknown character device");
            found.push((name.to_owned(), channel.to_owned()));
        }
    }
    Ok(found)
}

/// Whether QEMU's name of a character device (`unix:PATH`, `disconnected:unix:PATH,…`) means this socket.
fn names_socket(channel: &str, at: &str) -> bool {
    let path = channel.trim_start_matches("disconnected:").strip_prefix("unix:");
    let path = path.map(|path| path.split(",server").next().unwrap_or(path)).unwrap_or_default();
    let real = |path: &str| std::fs::canonicalize(Path::new(path)).ok();
    !path.is_empty() && (path == at || (real(path).is_some() && real(path) == real(at)))
}
