//! Runs the command lines of actions, and remembers the latest: how far they are, and how they ended.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::process::ProcessStatus;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all, ask_one};
use farbus_io_net::trust::{AuditEvent, AuditLog, AuditOutcome, HostFolder, timestamp};
use hyper::body::Bytes;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::actions::{CommandLifetime, CommandLine};
use crate::api::callers::PageCaller;
use crate::api::journal::{EventJournal, JournalEventKind};
use crate::api::kept::{OperationOutput, Scrollback};
use crate::api::picture::PictureBuffer;
use crate::api::remembered::{Operation, OperationTable, RememberedOperation};
use crate::api::subjects;
use crate::api::table::action;
use crate::api::transcript::RecordingTranscript;
use crate::known::operation::{DrawnOperation, OperationState};

/// What is kept of the output of a command, bytes.
pub const OUTPUT_BYTES_MAX: u64 = 256 << 10;
/// What is said in place of an answer of more.
const LONG: &str = "the answer is longer than 256 KiB and was left out: ask for less";
/// What is kept of its warnings, bytes.
const WARNINGS_BYTES_MAX: u64 = 4 << 10;
/// What is read of a recording at once, bytes.
const RECORDING_READ_BYTES: usize = 16 << 10;
/// The stack of a thread that reads the output of a command.
pub const STACK_BYTES: usize = 128 << 10;
/// How often the progress of a swap is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Characters of the log's fields.
const RECORDED_MAX: usize = 256;

/// Why an operation is not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationRefusal {
    /// Too many run.
    TooMany,
    /// All recordings that this caller may have run.
    TooManyRecordings,
    /// The system starts no process.
    System(String),
}

/// All operations, as the threads that run them share them.
#[derive(Clone, Debug)]
pub struct OperationRegistry {
    journal: EventJournal,
    audit: Option<Arc<AuditLog>>,
    has: Arc<Mutex<OperationTable>>,
}

impl OperationRegistry {
    /// None yet. They are told to the journal, and to the audit log of the user.
    pub fn new(journal: EventJournal) -> Self {
        let audit = HostFolder::of_user().ok().map(|folder| Arc::new(AuditLog::new(folder)));
        Self { journal, audit, has: Arc::default() }
    }

    fn has(&self) -> MutexGuard<'_, OperationTable> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that are remembered, the latest first.
    pub fn all(&self) -> Vec<Operation> {
        self.has().all.iter().rev().map(|remembered| remembered.operation.clone()).collect()
    }

    /// What a device's page draws of them, the latest first: those that tell how far they are, and how they ended.
    pub fn drawn(&self) -> Vec<DrawnOperation> {
        let has = self.has();
        let is_drawn = |remembered: &&RememberedOperation| {
            let runs = action(remembered.operation.action).map(|action| action.runs);
            matches!(
                runs,
                Some(
                    CommandLifetime::Swap
                        | CommandLifetime::Long
                        | CommandLifetime::Recording
                        | CommandLifetime::Console
                        | CommandLifetime::Picture
                )
            )
        };
        has.all.iter().rev().filter(is_drawn).map(drawn_of).collect()
    }

    /// The operation with this number.
    pub fn find(&self, id: u64) -> Option<Operation> {
        self.has().find(id).map(|found| found.operation.clone())
    }

    /// What an operation has recorded so far, for `by`; `None`: nothing, or it is forgotten. The audit log gets a line.
    pub fn recording(&self, id: u64, by: &str) -> Option<Vec<u8>> {
        let recording = {
            let has = self.has();
            has.find(id)?.kept.recording()?.clone()
        };
        let what = format!("operation {id}, {} bytes", recording.len());
        self.note("page-recording", by, "", Some(&what), AuditOutcome::Ok);
        Some(recording)
    }

    /// The latest of what an operation has recorded, as text, for `by`; `None`: nothing, or it is forgotten. The audit
    /// log gets a line of each who reads it.
    pub fn text(&self, id: u64, by: &str) -> Option<String> {
        let (text, is_first, action) = {
            let mut has = self.has();
            let found = has.find_mut(id)?;
            let text = found.kept.text()?;
            (text, found.is_first_look(by), found.operation.action)
        };
        if is_first {
            let event = if action == "console" { "page-console-text" } else { "page-recording-text" };
            self.note(event, by, "", Some(&format!("operation {id}")), AuditOutcome::Ok);
        }
        Some(text)
    }

    /// The newest picture that an operation shows, for `by`; `None`: it shows none now. The audit log gets a line of
    /// each who looks.
    pub fn picture(&self, id: u64, by: &str) -> Option<Bytes> {
        let (picture, is_first) = {
            let mut has = self.has();
            let found = has.find_mut(id)?;
            let picture = found.kept.screen()?.look(Instant::now())?;
            (picture, found.is_first_look(by))
        };
        if is_first {
            self.note("page-picture-seen", by, "", Some(&format!("operation {id}")), AuditOutcome::Ok);
        }
        Some(picture)
    }

    /// Notes how far an operation is that goes on several times a second: no follower of the events is told.
    fn note_progress(&self, id: u64, progress: Value) {
        if let Some(found) = self.has().find_mut(id) {
            found.operation.progress = Some(progress);
        }
    }

    /// Adds to what an operation has recorded. Returns whether there was room for all of it.
    fn record_more(&self, id: u64, bytes: &[u8]) -> bool {
        let mut has = self.has();
        let Some(found) = has.find_mut(id) else { return false };
        let has_room = found.kept.add(bytes);
        found.operation.progress = Some(json!({ "bytes": found.kept.bytes(), "is_full": !has_room }));
        has_room
    }

    /// Ends the command of an operation as Ctrl-C does, for `by`, which the audit log says, with `why`. `None`: there
    /// is no such operation, or its command has ended.
    pub fn stop(&self, id: u64, by: &str, why: Option<&str>) -> Option<Operation> {
        let (operation, is_first) = {
            let mut has = self.has();
            let found = has.find_mut(id)?;
            pidfd_send_signal(found.process.as_ref()?, Signal::TERM).ok()?;
            let is_first = found.stopped_by.as_deref() != Some(by);
            found.stopped_by = Some(by.to_owned());
            (found.operation.clone(), is_first)
        };
        if is_first {
            let what = format!("operation {id}, {} of {}", operation.action, operation.by);
            let what = why.map_or(what.clone(), |why| format!("{what}: {why}"));
            self.note("page-stop", by, &operation.subject, Some(&what), AuditOutcome::Ok);
        }
        Some(operation)
    }

    /// Ends the command of an operation that can do no more.
    fn end_command(&self, id: u64) {
        if let Some(process) = self.has().find(id).and_then(|found| found.process.as_ref()) {
            // It may have ended meanwhile.
            let _ = pidfd_send_signal(process, Signal::TERM);
        }
    }

    /// Writes a line of the audit log: a change, or somebody with a wrong token, was refused. A flood is counted there.
    pub fn refused(&self, by: &str, why: &str) {
        if let Some(audit) = &self.audit {
            let who: String = by.chars().take(RECORDED_MAX).collect();
            audit.record(&AuditEvent {
                address: Some(&who),
                why: Some(why),
                ..AuditEvent::new("page-change", AuditOutcome::Refused)
            });
        }
    }

    /// Writes a line of the audit log: a browser of another machine has shown a code.
    pub fn entered(&self, from: IpAddr, what: &str, outcome: AuditOutcome) {
        if let Some(audit) = &self.audit {
            let address = from.to_string();
            audit.record(&AuditEvent {
                address: Some(&address),
                why: Some(what),
                ..AuditEvent::new("page-enter", outcome)
            });
        }
    }

    /// Writes a line of the audit log: a browser of another machine has signed out, and its token was revoked.
    pub fn left(&self, by: &str) {
        self.note("page-leave", by, "", None, AuditOutcome::Ok);
    }

    /// Whose recordings run, and who began to look at streams.
    pub fn recorders(&self) -> Vec<(u64, String)> {
        let has = self.has();
        let runs = |remembered: &&RememberedOperation| remembered.kept.is_some() && remembered.process.is_some();
        has.all.iter().filter(runs).map(|found| (found.operation.id, found.operation.by.clone())).collect()
    }

    /// Begins what the command line says, for a caller. The receiver has true once it is done or has failed. `counts`:
    /// whether somebody who began an operation still has a token.
    ///
    /// # Errors
    /// [`OperationRefusal`].
    pub fn begin(
        &self,
        command: CommandLine,
        caller: &PageCaller,
        counts: &dyn Fn(&str) -> bool,
    ) -> Result<(u64, watch::Receiver<bool>), OperationRefusal> {
        let is_lasting = command.goes_on();
        let kept = match command.action.runs {
            CommandLifetime::Recording => OperationOutput::Recording(Vec::new(), RecordingTranscript::default()),
            CommandLifetime::Console => OperationOutput::Console(Scrollback::default()),
            CommandLifetime::Picture => OperationOutput::Picture(PictureBuffer::new(Instant::now())),
            _ => OperationOutput::Nothing,
        };
        let id = {
            let mut has = self.has();
            let id = has.take_place(is_lasting).ok_or(OperationRefusal::TooMany)?;
            if !has.has_room_for(&kept, caller, counts) {
                has.free_running();
                return Err(OperationRefusal::TooManyRecordings);
            }
            id
        };
        let begun = self.start(id, &command, caller, kept);
        if begun.is_err() {
            self.has().free_running();
            if is_lasting {
                self.has().free_lasting();
            }
        }
        begun.map(|ended| (id, ended)).map_err(|error| OperationRefusal::System(error.to_string()))
    }

    fn start(
        &self,
        id: u64,
        line: &CommandLine,
        caller: &PageCaller,
        kept: OperationOutput,
    ) -> std::io::Result<watch::Receiver<bool>> {
        let (by, is_lasting) = (&caller.called, line.goes_on());
        let is_json = line.prints_json();
        // The program that runs, even if another one was installed meanwhile; in a group of its own, so that Ctrl-C at
        // the page ends nothing else.
        let mut command = Command::new("/proc/self/exe");
        command.args(line.arguments()).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        // One that goes on says what happens to it where the page says it.
        command.stderr(if is_lasting { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        let pid = child.id();
        let process = Pid::from_raw(i32::try_from(pid).unwrap_or(0)).and_then(|pid| {
            // It was not waited for yet, so the number is its own.
            pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        let operation = Operation {
            id,
            action: line.action.name,
            subject: line.subject.clone(),
            on: None,
            command: line.line(),
            by: by.clone(),
            state: OperationState::Running,
            begun: timestamp(SystemTime::now()),
            pid: Some(pid),
            progress: None,
            answer: None,
            warnings: None,
            failure: None,
            is_misused: false,
        };
        let is_recording = kept.is_some();
        let screen = kept.screen().cloned();
        self.has().remember(RememberedOperation {
            operation,
            is_owners: caller.is_owner(),
            process,
            kept,
            has_read: BTreeSet::new(),
            stopped_by: None,
        });
        self.tell();
        if is_recording {
            self.note(&format!("page-{}", line.action.name), by, &line.subject, None, AuditOutcome::Ok);
        }
        let (tell_end, ended) = watch::channel(false);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let runner = OperationRunner {
            operations: self.clone(),
            id,
            runs: line.action.runs,
            is_json,
            is_lasting,
            subject: line.subject.clone(),
            screen,
            tell_end,
        };
        let named = thread::Builder::new().name(format!("action-{id}")).stack_size(STACK_BYTES);
        let spawned = named.spawn(move || runner.run(child, stdout, stderr));
        if let Err(error) = spawned {
            self.end_command(id);
            self.change(id, |operation| {
                operation.state = OperationState::Failed;
                operation.pid = None;
                operation.failure =
                    Some(FailureReport { attribute: FailureKind::Local, message: error.to_string(), limit: None });
            });
            return Err(error);
        }
        Ok(ended)
    }

    /// Changes an operation, and tells the followers.
    fn change(&self, id: u64, change: impl FnOnce(&mut Operation)) {
        let mut has = self.has();
        let Some(found) = has.find_mut(id) else { return };
        change(&mut found.operation);
        if found.operation.pid.is_none() {
            found.process = None;
            if found.kept.screen().is_some() {
                found.kept = OperationOutput::Nothing;
            }
        }
        let mut operation = found.operation.clone();
        drop(has);
        // What a command printed may be long.
        operation.answer = None;
        self.journal.publish(JournalEventKind::Operation, &serde_json::to_value(operation).unwrap_or_default());
    }

    fn tell(&self) {
        let latest = self.has().all.back().map(|remembered| remembered.operation.clone());
        self.journal.publish(JournalEventKind::Operation, &serde_json::to_value(latest).unwrap_or_default());
    }

    /// Writes the line of the audit log about an operation that is done or has failed, or, with `is_end`, about the end
    /// of what its beginning was recorded of. The line says who stopped it.
    fn record(&self, id: u64, subject: &str, is_end: bool) {
        let Some((operation, stopped_by)) =
            self.has().find(id).map(|found| (found.operation.clone(), found.stopped_by.clone()))
        else {
            return;
        };
        let outcome = match &operation.failure {
            None => AuditOutcome::Ok,
            Some(FailureReport { attribute: FailureKind::Refused, .. }) => AuditOutcome::Refused,
            Some(_) => AuditOutcome::Failed,
        };
        // The command itself records a permission under its own name. Of what goes on the beginning was recorded.
        let end = if is_end { "-end" } else { "" };
        let stopped = stopped_by.map(|by| format!("stopped by {by}"));
        let failure = operation.failure.map(|failure| failure.message);
        let why: Vec<String> = stopped.into_iter().chain(failure).collect();
        let why = Some(why.join(": ")).filter(|why| !why.is_empty());
        self.note(&format!("page-{}{end}", operation.action), &operation.by, subject, why.as_deref(), outcome);
    }

    /// Writes a line of the audit log.
    fn note(&self, event: &str, by: &str, device: &str, why: Option<&str>, outcome: AuditOutcome) {
        let Some(audit) = &self.audit else { return };
        let short = |text: &str| text.chars().take(RECORDED_MAX).collect::<String>();
        let (who, device, why) = (short(by), short(device), why.map(short));
        let device = Some(device.as_str()).filter(|device| !device.is_empty());
        audit.record(&AuditEvent {
            address: Some(&who),
            device,
            why: why.as_deref(),
            ..AuditEvent::new(event, outcome)
        });
    }
}

/// Runs one operation on a thread.
struct OperationRunner {
    operations: OperationRegistry,
    id: u64,
    runs: CommandLifetime,
    is_json: bool,
    is_lasting: bool,
    subject: String,
    screen: Option<PictureBuffer>,
    tell_end: watch::Sender<bool>,
}

impl OperationRunner {
    fn run(self, mut child: Child, stdout: Option<ChildStdout>, stderr: Option<ChildStderr>) {
        let is_over = Arc::new(AtomicBool::new(false));
        if matches!(
            self.runs,
            CommandLifetime::Swap
                | CommandLifetime::Long
                | CommandLifetime::Recording
                | CommandLifetime::Console
                | CommandLifetime::Picture
        ) {
            self.follow(&is_over);
        }
        // Both are read, so that the command never waits for its reader.
        let warnings = stderr.and_then(|stderr| {
            let read = move || {
                let mut text = Vec::new();
                let mut stderr = BufReader::new(stderr);
                let _ = stderr.by_ref().take(WARNINGS_BYTES_MAX).read_to_end(&mut text);
                let _ = std::io::copy(&mut stderr, &mut std::io::sink());
                String::from_utf8_lossy(&text).trim().to_owned()
            };
            thread::Builder::new().name(format!("warnings-{}", self.id)).stack_size(STACK_BYTES).spawn(read).ok()
        });
        let mut stdout = stdout.map(BufReader::new);
        let mut printed = None;
        let mut is_done_early = false;
        if let Some(stdout) = &mut stdout {
            printed = match (self.runs, self.is_json) {
                (CommandLifetime::Recording | CommandLifetime::Console, _) => {
                    self.record_all(stdout);
                    None
                }
                (CommandLifetime::Picture, _) => {
                    self.show_pictures(stdout);
                    None
                }
                (CommandLifetime::BrieflyInLines, true) => Some(read_values(stdout)),
                (_, true) => read_value(stdout),
                (_, false) => None,
            };
            is_done_early = self.is_lasting && printed.as_ref().is_some_and(|printed| printed["failure"].is_null());
        }
        if is_done_early {
            self.done(printed.take(), String::new(), true);
        }
        if let Some(stdout) = &mut stdout {
            let _ = std::io::copy(stdout, &mut std::io::sink());
        }
        let code = child.wait().ok().and_then(|status| status.code());
        is_over.store(true, Ordering::Release);
        let mut warnings = warnings.and_then(|thread| thread.join().ok()).unwrap_or_default();
        if self.runs == CommandLifetime::Picture {
            // What it said before is no news.
            warnings = warnings.lines().last().unwrap_or_default().to_owned();
        }
        match code {
            _ if is_done_early => {
                self.operations.change(self.id, |operation| operation.pid = None);
                self.operations.record(self.id, &self.subject, true);
            }
            Some(0) => {
                let is_lost = self.is_json && printed.is_none();
                let warnings = if is_lost { format!("{warnings}\n{LONG}").trim().to_owned() } else { warnings };
                self.done(printed, warnings, false);
            }
            code => self.failed(code, printed, warnings),
        }
        if self.is_lasting {
            self.operations.has().free_lasting();
        }
    }

    /// Keeps what the command prints, until it ends or there is no more room.
    fn record_all(&self, stdout: &mut BufReader<ChildStdout>) {
        let mut bytes = vec![0; RECORDING_READ_BYTES];
        while let Ok(read @ 1..) = stdout.read(&mut bytes) {
            if !self.operations.record_more(self.id, &bytes[..read]) {
                self.operations.end_command(self.id);
                return;
            }
        }
    }

    /// Shows what the command prints, until it ends or nobody looks.
    fn show_pictures(&self, stdout: &mut BufReader<ChildStdout>) {
        let tell = |progress| self.operations.note_progress(self.id, progress);
        // Nothing was read through the buffer yet.
        if self.screen.as_ref().is_some_and(|screen| screen.show_all(stdout.get_mut(), tell)) {
            self.operations.end_command(self.id);
        }
    }

    fn done(&self, printed: Option<Value>, warnings: String, goes_on: bool) {
        self.end(|operation| {
            operation.state = OperationState::Done;
            operation.pid = operation.pid.filter(|_| goes_on);
            operation.answer = printed;
            operation.warnings = Some(warnings).filter(|warnings| !warnings.is_empty());
        });
    }

    fn failed(&self, code: Option<i32>, mut printed: Option<Value>, warnings: String) {
        let answer = printed.as_mut().map(|printed| printed["failure"].take());
        let report = answer.and_then(|failure| serde_json::from_value::<FailureReport>(failure).ok());
        let attribute = match code {
            Some(3) => FailureKind::Refused,
            Some(4) => FailureKind::Gone,
            Some(5) => FailureKind::Network,
            Some(6) => FailureKind::Device,
            _ => FailureKind::Local,
        };
        let output = match (&warnings[..], code) {
            ("", Some(code)) => format!("the command ended with exit code {code}"),
            ("", None) => "the command was ended by a signal".to_owned(),
            (output, _) => output.to_owned(),
        };
        self.end(|operation| {
            operation.state = OperationState::Failed;
            operation.pid = None;
            operation.is_misused = code == Some(2);
            operation.failure = Some(report.unwrap_or(FailureReport { attribute, message: output, limit: None }));
        });
    }

    /// Tells how it ended: first the followers and the log, then the one who waits.
    fn end(&self, change: impl FnOnce(&mut Operation)) {
        self.operations.change(self.id, change);
        self.operations.has().free_running();
        self.operations.record(
            self.id,
            &self.subject,
            matches!(self.runs, CommandLifetime::Recording | CommandLifetime::Console | CommandLifetime::Picture),
        );
        self.tell_end.send_replace(true);
    }

    /// Finds out, on a thread, which device of which process the operation is about; of a swap it also asks how far
    /// that is, until it is over.
    fn follow(&self, is_over: &Arc<AtomicBool>) {
        let (operations, id, device, runs) = (self.operations.clone(), self.id, self.subject.clone(), self.runs);
        let is_over = Arc::clone(is_over);
        let follow = move || {
            let action = operations.find(id).map(|operation| operation.action).unwrap_or_default();
            let answers = ask_all(&Question::Status).unwrap_or_default();
            let read =
                |(_, answer)| if let Answer::Ok(answer) = answer { serde_json::from_value(answer).ok() } else { None };
            let processes: Vec<ProcessStatus> = answers.into_iter().filter_map(read).collect();
            let on = subjects::find(&processes, action, &device);
            let pid = on.as_ref().map(|on| on.pid);
            if on.is_some() {
                operations.change(id, |operation| operation.on = on);
            }
            // Without a process there is no swap, and the command says why.
            let Some(pid) = pid.filter(|_| runs == CommandLifetime::Swap) else { return };
            while !is_over.load(Ordering::Acquire) {
                let answer = ask_one(pid, &Question::SwapStatus { device: device.clone() }, &[]);
                // One that is not running is the swap before this one.
                if let Ok(Answer::Ok(progress)) = answer
                    && progress["state"] == "running"
                {
                    operations.change(id, |operation| operation.progress = Some(progress));
                }
                thread::sleep(LOOK_EVERY);
            }
        };
        // Without the thread it is not told what the operation is about, and how far a swap is.
        let _ = thread::Builder::new().name(format!("follow-{id}")).stack_size(STACK_BYTES).spawn(follow);
    }
}

/// The first value that the command prints.
fn read_value(stdout: &mut BufReader<ChildStdout>) -> Option<Value> {
    let limited = stdout.take(OUTPUT_BYTES_MAX);
    serde_json::Deserializer::from_reader(limited).into_iter::<Value>().next()?.ok()
}

/// All values that the command prints; those behind [`OUTPUT_BYTES_MAX`] are left out.
fn read_values(stdout: &mut BufReader<ChildStdout>) -> Value {
    let limited = stdout.take(OUTPUT_BYTES_MAX);
    serde_json::Deserializer::from_reader(limited).into_iter::<Value>().map_while(Result::ok).collect()
}

/// What is drawn of an operation.
fn drawn_of(RememberedOperation { operation, kept, .. }: &RememberedOperation) -> DrawnOperation {
    let read = || operation.progress.clone();
    DrawnOperation {
        id: operation.id,
        action: operation.action.to_owned(),
        on: operation.on.clone(),
        command: operation.command.clone(),
        by: operation.by.clone(),
        state: operation.state,
        begun: operation.begun.clone(),
        pid: operation.pid,
        swap: read().filter(|_| operation.action == "swap").and_then(|answer| serde_json::from_value(answer).ok()),
        progress: read().and_then(|answer| serde_json::from_value(answer).ok()).unwrap_or_default(),
        failure: operation.failure.clone(),
        is_recorded: kept.is_some(),
    }
}
