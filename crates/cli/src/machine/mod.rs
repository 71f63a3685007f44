//! Moves a virtual machine of QEMU to another host, with the devices that it has of farbus: `farbus migrate-vm`.
//!
//! | step | if it fails |
//! |---|---|
//! | connect to the monitor, and look at what the machine has ([`inventory`]) | nothing was changed |
//! | set QEMU's migration capabilities and downtime limit | they are set back |
//! | let each device follow the machine | each is told to stay |
//! | `migrate`, until the machine has stopped (*pre-switchover*) | `migrate_cancel`; the machine runs on here |
//! | see that each device still follows, `migrate-continue`, until it is *completed* | the same, if it has not left |
//! | let the devices go: QEMU has stopped for good, and reads nothing more of them | they go when QEMU has ended |
//! | `quit` | the machine runs there: QEMU is to be ended by hand |
//!
//! Where the monitor no longer says whether the machine has left, the devices go on following it: they serve it here if
//! it is here, and go with it if it is not.

mod inventory;
mod monitor;
mod owner;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farbus_control::failure::{CommandFailure, FailureKind};
use serde::Serialize;
use serde_json::{Value, json};

pub use inventory::VirtualMachine;
use inventory::strange;
use monitor::{MonitorError, QmpMonitor, plain};
pub use owner::{AttachmentOwner, OwnedAttachment, UserAttachments};

/// How long QEMU's monitor may take for an answer. `migrate` may look up the name of a host meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for an event of QEMU before it is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long to wait for an event while the virtual machine runs on neither host.
const LOOK_OFTEN: Duration = Duration::from_millis(10);

/// What is to be done.
#[derive(Clone, Debug)]
pub struct VmMigrationOrder<'a> {
    /// The path of QEMU's monitor.
    pub monitor: &'a Path,
    /// Where the other QEMU waits, as its `-incoming` says.
    pub uri: &'a str,
    /// The name of the other host, for messages.
    pub to: &'a str,
    /// The devices that a person names; none for all that the machine has.
    pub named: &'a [String],
    /// The longest time, milliseconds, that the machine may run on neither host; QEMU's own limit if there is none.
    pub downtime_ms: Option<u64>,
    /// How long QEMU's monitor may take for an answer.
    pub answer_within: Duration,
}

impl<'a> VmMigrationOrder<'a> {
    /// To move the machine with this monitor to the QEMU at `uri` on the host `to`.
    pub fn new(monitor: &'a Path, uri: &'a str, to: &'a str, named: &'a [String]) -> Self {
        Self { monitor, uri, to, named, downtime_ms: None, answer_within: ANSWER_WITHIN }
    }
}

/// How far a migration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmMigrationProgress {
    /// QEMU's word for what it does.
    pub status: String,
    /// The machine's memory, bytes.
    pub total_bytes: u64,
    /// What is left to copy of it, bytes.
    pub left_bytes: u64,
}

/// A machine that has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedMachine {
    /// The devices that went with it.
    pub devices: Vec<OwnedAttachment>,
    /// How long it ran on neither host, as QEMU says, milliseconds.
    pub downtime_ms: u64,
    /// How long the whole migration took, as QEMU says, milliseconds.
    pub total_ms: u64,
    /// What was sent of its memory, bytes.
    pub sent_bytes: u64,
    /// When QEMU here said that it had completed, microseconds of Unix time.
    pub completed_unix_us: u64,
    /// How long QEMU took to end here after it had completed, milliseconds. Devices that did not depart before waited
    /// for that.
    pub ended_ms: u64,
    /// How many of the devices went as soon as the machine had left, before QEMU ended here. The others were attached
    /// by an earlier farbus, or QEMU's process is not visible here.
    pub departed: usize,
    /// How long that took after QEMU had completed, milliseconds.
    pub departed_ms: u64,
}

/// Looks whether the machine could be moved, and changes nothing.
///
/// # Errors
/// Why it could not.
pub fn check(order: &VmMigrationOrder, owner: &dyn AttachmentOwner) -> Result<VirtualMachine, CommandFailure> {
    let mut monitor = QmpMonitor::connect(order.monitor, order.answer_within).map_err(CommandFailure::local)?;
    inventory::take(&mut monitor, owner, order.named)
}

/// Moves the machine and its devices. Once `is_cancelled` is set, it stays, unless it has left.
///
/// # Errors
/// Why it stays here, or what is left to do. The message says which.
pub fn migrate(
    order: &VmMigrationOrder,
    owner: &dyn AttachmentOwner,
    is_cancelled: &AtomicBool,
    show: &mut dyn FnMut(&VmMigrationProgress),
) -> Result<MovedMachine, CommandFailure> {
    let mut monitor = QmpMonitor::connect(order.monitor, order.answer_within).map_err(CommandFailure::local)?;
    let machine = inventory::take(&mut monitor, owner, order.named)?;
    let is_running = machine.is_running;
    let migration = VmMigration {
        order,
        owner,
        is_cancelled,
        monitor,
        machine,
        following: Vec::new(),
        before: Vec::new(),
        is_running,
        is_switching: false,
    };
    migration.run(show)
}

/// A migration under way.
struct VmMigration<'a> {
    order: &'a VmMigrationOrder<'a>,
    owner: &'a dyn AttachmentOwner,
    is_cancelled: &'a AtomicBool,
    monitor: QmpMonitor,
    machine: VirtualMachine,
    /// The devices that follow the machine, so far.
    following: Vec<OwnedAttachment>,
    /// What sets QEMU's settings back.
    before: Vec<(&'static str, Value)>,
    /// Whether the machine has to run here in the end, if it stays.
    is_running: bool,
    /// Whether QEMU was told to switch over: before that, the machine has not left.
    is_switching: bool,
}

/// How QEMU's part of it ended.
enum VmMigrationEnd {
    /// The machine runs there.
    Completed(Value),
    /// It is here, for this reason.
    Stayed(CommandFailure),
    /// The monitor failed first, so it is not known on which host the machine runs.
    Unknown(MonitorError),
}

impl VmMigration<'_> {
    fn run(mut self, show: &mut dyn FnMut(&VmMigrationProgress)) -> Result<MovedMachine, CommandFailure> {
        if let Err(failure) = self.prepare() {
            return Err(self.stay(failure));
        }
        let end = match self.monitor.execute("migrate", json!({ "uri": self.order.uri })) {
            Ok(_) => self.watch(show),
            Err(error @ MonitorError::Refused(..)) => VmMigrationEnd::Stayed(CommandFailure::local(error)),
            Err(error) => VmMigrationEnd::Unknown(error),
        };
        let end = match end {
            VmMigrationEnd::Unknown(error) => self.look_again(error),
            end => end,
        };
        match end {
            VmMigrationEnd::Completed(answer) => self.part(&answer),
            VmMigrationEnd::Stayed(failure) => Err(self.stay(failure)),
            VmMigrationEnd::Unknown(error) => Err(self.unknown(&error)),
        }
    }

    fn check_cancelled(&self) -> Result<(), CommandFailure> {
        match self.is_cancelled.load(Ordering::Relaxed) {
            true => Err(CommandFailure::new(FailureKind::Refused, "it was cancelled")),
            false => Ok(()),
        }
    }

    /// Sets QEMU up, and lets the devices follow.
    fn prepare(&mut self) -> Result<(), CommandFailure> {
        let capabilities =
            self.monitor.execute("query-migrate-capabilities", json!({})).map_err(CommandFailure::local)?;
        let wanted = ["pause-before-switchover", "events"];
        let mut before = Vec::new();
        for name in wanted {
            let mut all = capabilities.as_array().into_iter().flatten();
            let state = all.find(|it| it["capability"] == name).and_then(|it| it["state"].as_bool());
            match state {
                Some(state) => before.push(json!({ "capability": name, "state": state })),
                None => {
                    let why = format!("its QEMU has no '{name}': it is older than 2.12, or does not say so");
                    return Err(CommandFailure::new(
                        FailureKind::Refused,
                        format!("the machine cannot be moved: {why}"),
                    ));
                }
            }
        }
        self.before.push(("migrate-set-capabilities", json!({ "capabilities": before })));
        let set = wanted.map(|name| json!({ "capability": name, "state": true }));
        let set = json!({ "capabilities": set });
        self.monitor.execute("migrate-set-capabilities", set).map_err(CommandFailure::local)?;
        if let Some(limit) = self.order.downtime_ms {
            let parameters =
                self.monitor.execute("query-migrate-parameters", json!({})).map_err(CommandFailure::local)?;
            if let Some(old) = parameters["downtime-limit"].as_u64() {
                self.before.push(("migrate-set-parameters", json!({ "downtime-limit": old })));
            }
            let set = json!({ "downtime-limit": limit });
            self.monitor.execute("migrate-set-parameters", set).map_err(CommandFailure::local)?;
        }
        for device in &self.machine.devices {
            self.check_cancelled()?;
            if let Err(failure) = self.owner.follow(device) {
                // One that did not answer in time may follow all the same. One that does not refuses, which is as well.
                let _ = self.owner.resume(device);
                return Err(failure);
            }
            self.following.push(device.clone());
        }
        self.check_cancelled()
    }

    /// Whether each device still follows the machine.
    fn check_following(&self) -> Result<(), CommandFailure> {
        let now = self.owner.attached()?;
        for device in &self.following {
            let found = now.iter().find(|found| (found.pid, &found.title) == (device.pid, &device.title));
            let state = found.map_or("not attached any more", |found| &found.state);
            if state != "following" {
                let why = format!("{} is {state}, and would not go with the machine", device.title);
                return Err(CommandFailure::new(FailureKind::Gone, why));
            }
        }
        Ok(())
    }

    /// Accompanies a migration that has begun.
    fn watch(&mut self, show: &mut dyn FnMut(&VmMigrationProgress)) -> VmMigrationEnd {
        loop {
            if let (false, Err(failure)) = (self.is_switching, self.check_cancelled()) {
                return self.cancel(failure);
            }
            let answer = match self.monitor.execute("query-migrate", json!({})) {
                Ok(answer) => answer,
                Err(error) => return VmMigrationEnd::Unknown(error),
            };
            match answer["status"].as_str() {
                Some("pre-switchover") if !self.is_switching => {
                    if let Err(failure) = self.check_following() {
                        return self.cancel(failure);
                    }
                    self.is_switching = true;
                    match self.monitor.execute("migrate-continue", json!({ "state": "pre-switchover" })) {
                        Ok(_) => {}
                        Err(error @ MonitorError::Refused(..)) => return self.cancel(CommandFailure::local(error)),
                        Err(error) => return VmMigrationEnd::Unknown(error),
                    }
                }
                Some("completed") => return self.completed(answer),
                Some("failed" | "cancelled" | "none") => return VmMigrationEnd::Stayed(not_migrated(&answer)),
                Some(status) => show(&progress(status, &answer)),
                None => return VmMigrationEnd::Unknown(strange("query-migrate", &answer)),
            }
            let time = if self.is_switching { LOOK_OFTEN } else { LOOK_EVERY };
            if let Err(error) = self.monitor.await_event(time) {
                return VmMigrationEnd::Unknown(error);
            }
        }
    }

    /// QEMU says that the machine has left. A machine that runs here must never be ended.
    fn completed(&mut self, answer: Value) -> VmMigrationEnd {
        match self.monitor.execute("query-status", json!({})) {
            Ok(status) if self.is_switching && status["status"].is_string() && status["status"] != "running" => {
                VmMigrationEnd::Completed(answer)
            }
            Ok(_) => VmMigrationEnd::Unknown(strange("query-migrate", &answer)),
            Err(error) => VmMigrationEnd::Unknown(error),
        }
    }

    /// Has QEMU give the migration up; it may be too late for that.
    fn cancel(&mut self, failure: CommandFailure) -> VmMigrationEnd {
        if let Err(error) = self.monitor.execute("migrate_cancel", json!({})) {
            return VmMigrationEnd::Unknown(error);
        }
        let until = Instant::now() + self.order.answer_within;
        loop {
            let answer = match self.monitor.execute("query-migrate", json!({})) {
                Ok(answer) => answer,
                Err(error) => return VmMigrationEnd::Unknown(error),
            };
            match answer["status"].as_str() {
                Some("completed") => return self.completed(answer),
                Some("failed" | "cancelled" | "none") => return VmMigrationEnd::Stayed(failure),
                _ if Instant::now() >= until => {
                    return VmMigrationEnd::Unknown(MonitorError::Silent("migrate_cancel", self.order.answer_within));
                }
                _ => {}
            }
            if let Err(error) = self.monitor.await_event(LOOK_OFTEN) {
                return VmMigrationEnd::Unknown(error);
            }
        }
    }

    fn reconnect(&mut self) -> Result<(), MonitorError> {
        self.monitor.hang_up();
        self.monitor = QmpMonitor::connect(self.order.monitor, self.order.answer_within)?;
        Ok(())
    }

    /// The connection to the monitor is of no use any more: asks on another one whether the machine is here, and has
    /// the migration given up.
    fn look_again(&mut self, error: MonitorError) -> VmMigrationEnd {
        if self.reconnect().is_err() {
            return VmMigrationEnd::Unknown(error);
        }
        match self.cancel(CommandFailure::local(&error)) {
            VmMigrationEnd::Unknown(_) => VmMigrationEnd::Unknown(error),
            end => end,
        }
    }

    /// The machine stays: so do its devices, and QEMU is set as it was. Returns why, and what did not come back.
    fn stay(mut self, failure: CommandFailure) -> CommandFailure {
        let mut left = Vec::new();
        for device in &self.following {
            if let Err(error) = self.owner.resume(device) {
                left.push(error.to_string());
            }
        }
        if let Err(error) = self.restore() {
            left.push(error.to_string());
        }
        let mut message = format!("{failure}\n  the machine stays here, with its devices");
        for line in left {
            message.push_str(&format!("\n  but: {line}"));
        }
        CommandFailure::new(failure.attribute(), message)
    }

    /// Sets QEMU's settings back, and lets the machine run if it ran before.
    fn restore(&mut self) -> Result<(), MonitorError> {
        let Some((command, arguments)) = self.before.first().cloned() else { return Ok(()) };
        if let Err(error) = self.monitor.execute(command, arguments.clone()) {
            if matches!(error, MonitorError::Refused(..)) {
                return Err(error);
            }
            // The monitor failed at something that changed nothing else.
            self.reconnect()?;
            self.monitor.execute(command, arguments)?;
        }
        for (command, arguments) in self.before.iter().skip(1) {
            self.monitor.execute(command, arguments.clone())?;
        }
        // QEMU lets a machine run again a moment after it has given a migration up.
        let until = Instant::now() + self.order.answer_within / 2;
        let mut is_told = !self.is_running;
        while self.is_running {
            let answer = self.monitor.execute("query-status", json!({}))?;
            if answer["running"] == true || answer["status"] == "running" {
                break;
            }
            if Instant::now() < until {
                thread::sleep(LOOK_OFTEN);
            } else if !is_told {
                is_told = true;
                self.monitor.execute("cont", json!({}))?;
            } else {
                return Err(MonitorError::Refused(
                    "cont",
                    format!("its status is {}", plain(&answer["status"].to_string())),
                ));
            }
        }
        Ok(())
    }

    /// The machine runs there: its devices go, and QEMU ends here. Devices that could not be let go go with that.
    fn part(mut self, answer: &Value) -> Result<MovedMachine, CommandFailure> {
        let completed = Instant::now();
        let completed_unix_us =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let process = self.machine.process;
        let departed = process.map_or(0, |process| self.owner.depart(&self.machine.devices, process));
        let departed_ms = completed.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        let quit = match self.monitor.execute("quit", json!({})) {
            Ok(_) | Err(MonitorError::Closed(_)) if self.monitor.await_end(self.order.answer_within) => Ok(()),
            Ok(_) | Err(MonitorError::Closed(_)) => Err(MonitorError::Silent("quit", self.order.answer_within)),
            Err(error) => Err(error),
        };
        if let Err(error) = quit {
            let which = self.machine.process.map_or_else(|| "it".to_owned(), |process| format!("process {process}"));
            let then = if departed == self.machine.devices.len() {
                "its devices have gone there".to_owned()
            } else {
                format!("its devices go to {} then", self.order.to)
            };
            return Err(CommandFailure::local(format!(
                "the machine runs at {}, but its QEMU did not end here: {error}\n  end {which}: {then}",
                self.order.to
            )));
        }
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(MovedMachine {
            devices: self.machine.devices,
            downtime_ms: number(&answer["downtime"]),
            total_ms: number(&answer["total-time"]),
            sent_bytes: number(&answer["ram"]["transferred"]),
            completed_unix_us,
            ended_ms: completed.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            departed,
            departed_ms,
        })
    }

    /// Nobody knows where the machine is.
    fn unknown(&self, error: &MonitorError) -> CommandFailure {
        let names: Vec<&str> = self.following.iter().map(|device| &*device.title).collect();
        CommandFailure::local(format!(
            "{error}\n  so it is not known whether the machine has left. Its devices serve it here, and go to {} when \
             its QEMU ends here\n  if it stays: farbus resume {}",
            self.order.to,
            names.join("; farbus resume ")
        ))
    }
}

fn not_migrated(answer: &Value) -> CommandFailure {
    let why = answer["error-desc"].as_str().or(answer["status"].as_str()).unwrap_or_default();
    CommandFailure::new(FailureKind::Network, format!("QEMU did not migrate the machine: {}", plain(why)))
}

fn progress(status: &str, answer: &Value) -> VmMigrationProgress {
    let number = |name: &str| answer["ram"][name].as_u64().unwrap_or_default();
    VmMigrationProgress { status: plain(status), total_bytes: number("total"), left_bytes: number("remaining") }
}
