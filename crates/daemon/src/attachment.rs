//! An attachment that the daemon keeps: whenever it is lost, the daemon attaches the device again, with growing pauses.

use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus::broker::SystemAccess;
use farbus::common::turns::{KeyedPermit, KeyedSemaphore};
use farbus::frontend::drivers::tell_if_no_driver;
use farbus::frontend::open_users::DiskOwnerAction;
use farbus::frontend::{
    ANOTHER_DEVICE, AttachRequest, Attachment, AttachmentEnd, AttachmentHandle, AttachmentRefusal, FrontEndPreparation,
    RestoredAttachment, RunningAttachment, explain, tell_reason,
};
use farbus::frontend::{attachment_status, through};
use farbus::importer::client::{
    ClientError, DeviceReopener, FailureKind, FailureReport, ImporterClient, RememberedDevice,
};
use farbus_control::attachment::{AttachmentStatus, MigrationStatus};
use farbus_control::failure::CommandFailure;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::sys::vhci::VhciPort;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::saving::SavedAttachment;
use farbus_model::ExportIdentity;
use tracing::{info, warn};

use super::modules::ReadyModules;

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause: a host that comes back is used soon.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest pause while another host has the device. A host that asks less often loses its place in the queue
/// (`farbus_session::claims::PATIENCE`).
const PAUSE_BUSY_MAX: Duration = Duration::from_secs(1);
/// How long a disk that was moved to this machine is not asked for again, unless it is forgotten (`farbus swap
/// --forget`). Later its exporter may have another disk of its name.
const MOVED_TIME_MAX: Duration = Duration::from_secs(60);
/// Devices of one host that are opened at a time. An exporter stores each use of a device before it grants it, and has
/// room for some hundred sessions that have no device yet: a thousand at once would be late, and refused.
const OPENED_AT_A_TIME: usize = 8;
/// If none of these is open, or refused, in this time, one more is opened: longer than a lost request takes to be given
/// up ([`farbus::importer::session`]).
const OPENING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a handover waits for what an earlier one passed on: going on takes milliseconds.
const TAKING_OVER_TIME_MAX: Duration = Duration::from_secs(5);
/// After an attachment that lasted this long, pauses begin at [`PAUSE`] again.
const GOOD: Duration = Duration::from_secs(10);

/// What all attachments of a daemon are kept with.
#[derive(Clone, Copy)]
pub struct AttachmentContext<'a> {
    /// The absolute path of the configuration: the devices that its attachments have are remembered under it.
    pub config: &'a Path,
    /// The modules that it names.
    pub ready_modules: &'a ReadyModules,
    /// The rights that attachments act with.
    pub system: &'a SystemAccess,
}

/// A kept attachment and its thread.
pub struct ManagedAttachment {
    request: AttachRequest,
    shared: Arc<ManagedAttachmentInner>,
    /// The attachment of another process, until this one has restored it.
    restored: Option<Box<dyn RestoredAttachment>>,
    thread: Option<JoinHandle<()>>,
}

/// What happens to an attachment in a handover.
pub enum AttachmentHandover {
    /// The replacement continues it.
    Along(AttachmentHandle),
    /// It ends with this process, and the replacement attaches anew.
    Anew,
    /// It is held or migrating: this process has to complete that.
    Moving,
    /// Its disk is being moved: this process has to complete that.
    Swapping,
    /// It ends, and a program may be using it; the text says how it is attached.
    Torn(&'static str),
}

struct ManagedAttachmentInner {
    client: ImporterClient,
    /// Which device it is: another one is not attached in its place.
    remembered: RememberedDevice,
    state: Mutex<ManagedAttachmentState>,
    changed: Condvar,
}

#[derive(Default)]
struct ManagedAttachmentState {
    word: AttachmentPhase,
    running: Option<RunningAttachment>,
    /// The last migration of an attachment that has ended.
    migration: Option<MigrationStatus>,
    failure: Option<FailureReport>,
    /// The word of the last failure.
    waits_for: AttachmentPhase,
    /// Another process's attachment goes on in this one, and does not run yet.
    is_taking_over: bool,
    is_ending: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AttachmentPhase {
    #[default]
    Connecting,
    Attached,
    /// Waits for the next attempt.
    Waiting,
    /// As [`AttachmentPhase::Waiting`]: another device is where it was.
    Another,
    /// Detached by its owner, until the next reload.
    Detached,
    /// Detached while this machine sleeps.
    Asleep,
}

impl AttachmentPhase {
    /// Whether the device is not to be attached for now.
    fn is_stopped(self) -> bool {
        matches!(self, AttachmentPhase::Detached | AttachmentPhase::Asleep)
    }

    const fn as_str(self) -> &'static str {
        match self {
            AttachmentPhase::Connecting => "connecting",
            AttachmentPhase::Attached => "attached",
            AttachmentPhase::Waiting => "waiting",
            AttachmentPhase::Another => ANOTHER_DEVICE,
            AttachmentPhase::Detached => "detached",
            AttachmentPhase::Asleep => "asleep",
        }
    }
}

impl ManagedAttachment {
    /// Starts to attach the device.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(request: AttachRequest, keeping: &AttachmentContext<'_>) -> std::io::Result<Self> {
        let mut kept = Self::new(request, keeping)?;
        kept.begin()?;
        Ok(kept)
    }

    fn new(request: AttachRequest, keeping: &AttachmentContext<'_>) -> std::io::Result<Self> {
        // An own line to the broker: waiting for one host must not delay the others.
        let system = keeping.system.apart()?;
        let modules = keeping.ready_modules.recipe(&request).map_err(std::io::Error::other)?;
        let remembered = RememberedDevice::new(&request.target, DeviceReopener::Daemon(keeping.config.to_owned()));
        let remembered = remembered.following(&request.follow);
        let client = ImporterClient::through(system, request.client_config(modules)).remembering(remembered.clone());
        let shared =
            Arc::new(ManagedAttachmentInner { client, remembered, state: Mutex::default(), changed: Condvar::new() });
        Ok(Self { request, shared, restored: None, thread: None })
    }

    /// Creates an attachment that stays detached until [`ManagedAttachment::resume`], as it was in another process.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn detached(request: AttachRequest, keeping: &AttachmentContext<'_>) -> std::io::Result<Self> {
        let mut kept = Self::new(request, keeping)?;
        kept.shared.state().word = AttachmentPhase::Detached;
        kept.begin()?;
        Ok(kept)
    }

    /// Restores an attachment that another process kept. The broker knows `ports`. Nothing happens before
    /// [`ManagedAttachment::begin`].
    ///
    /// # Errors
    /// [`ClientError`]: this process cannot continue it.
    pub fn restored(
        request: AttachRequest,
        keeping: &AttachmentContext<'_>,
        ports: &[u32],
        saved: SavedAttachment,
    ) -> Result<Self, ClientError> {
        let local = |error: std::io::Error| ClientError::Local(error.to_string());
        let mut kept = Self::new(request, keeping).map_err(local)?;
        let (client, request) = (&kept.shared.client, &kept.request);
        let front_end = request.via.front_end(request, client.system());
        kept.restored = Some(front_end.restore(client, request, ports, saved)?);
        Ok(kept)
    }

    /// Starts the thread that keeps it attached.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn begin(&mut self) -> std::io::Result<()> {
        let (shared, request, restored) = (Arc::clone(&self.shared), self.request.clone(), self.restored.take());
        shared.state().is_taking_over = restored.is_some();
        let keep = move || shared.keep_attached(&request, restored);
        self.thread = Some(thread::Builder::new().name("attachment".into()).spawn(keep)?);
        Ok(())
    }

    /// What happens to it in a handover. One that was passed on to this process just now is waited for, so that it goes
    /// on in the next one, too.
    pub fn going(&self) -> AttachmentHandover {
        let state = self.shared.state();
        let is_early =
            |state: &mut ManagedAttachmentState| state.is_taking_over && !state.is_ending && !state.word.is_stopped();
        let waited = self.shared.changed.wait_timeout_while(state, TAKING_OVER_TIME_MAX, is_early);
        let (state, _) = waited.expect("no attachment panics with its state open");
        match (&state.running, state.word) {
            (Some(running), AttachmentPhase::Attached) if running.handle.is_moving() => AttachmentHandover::Moving,
            (Some(running), AttachmentPhase::Attached) if running.handle.is_swapping() => AttachmentHandover::Swapping,
            (Some(running), AttachmentPhase::Attached) if running.handle.replaced_by().is_some() => {
                AttachmentHandover::Torn("by its twin")
            }
            (Some(running), AttachmentPhase::Attached) if running.handle.can_save() => {
                AttachmentHandover::Along(running.handle.clone())
            }
            (Some(running), AttachmentPhase::Attached) => AttachmentHandover::Torn(running.status.how),
            _ => AttachmentHandover::Anew,
        }
    }

    /// Whether its owner detached it.
    pub fn is_detached(&self) -> bool {
        self.shared.state().word == AttachmentPhase::Detached
    }

    /// Whether it is attached.
    pub fn is_attached(&self) -> bool {
        self.shared.state().word == AttachmentPhase::Attached
    }

    pub fn request(&self) -> &AttachRequest {
        &self.request
    }

    /// Its status, and why it is not attached.
    pub fn status(&self) -> (AttachmentStatus, Option<FailureReport>) {
        let state = self.shared.state();
        let AttachRequest { target, reason, modules, .. } = &self.request;
        let status = attachment_status(target, state.word.as_str(), reason.as_ref(), state.running.as_ref());
        let mut status = through(status, modules);
        status.migration = status.migration.or_else(|| state.migration.clone());
        (status, state.failure.clone())
    }

    /// The handle that steers it, if it is attached now. Do not call the handle with a lock held: a virtual machine's
    /// device may take long.
    pub fn handle(&self) -> Option<AttachmentHandle> {
        self.shared.state().running.as_ref().map(|running| running.handle.clone())
    }

    /// Checks whether no program would lose data if it were detached now.
    ///
    /// # Errors
    /// [`AttachmentRefusal::InUse`].
    pub fn may_detach(&self) -> Result<(), AttachmentRefusal> {
        self.handle().map_or(Ok(()), |handle| handle.may(DiskOwnerAction::Detach))
    }

    /// The port of the kernel that it is plugged into, if it is.
    pub fn port(&self) -> Option<VhciPort> {
        self.shared.state().running.as_ref().and_then(|running| running.status.port)
    }

    /// Whether it is detached while this machine sleeps.
    pub fn is_asleep(&self) -> bool {
        self.shared.state().word == AttachmentPhase::Asleep
    }

    /// Detaches the device until [`ManagedAttachment::resume`].
    pub fn detach(&self) {
        self.stop(AttachmentPhase::Detached);
    }

    /// Detaches the device because this machine goes to sleep.
    pub fn sleep(&self) {
        self.stop(AttachmentPhase::Asleep);
    }

    fn stop(&self, word: AttachmentPhase) {
        let mut state = self.shared.state();
        state.word = word;
        state.end();
        self.shared.changed.notify_all();
    }

    /// Attaches the device again if it is detached.
    pub fn resume(&self) {
        let mut state = self.shared.state();
        if state.word.is_stopped() {
            state.word = AttachmentPhase::Connecting;
            self.shared.changed.notify_all();
        }
    }

    /// Attaches whichever device is there now, and keeps to that one from then on.
    ///
    /// # Errors
    /// Why that is not done, for a person.
    pub fn adopt(&self) -> Result<(), String> {
        let target = self.request.target.shown();
        if self.is_attached() {
            return Err(format!("{target} is attached, as the device that it was: there is no other one to adopt"));
        }
        let forgotten = self.shared.remembered.forget(self.shared.client.system());
        forgotten.map_err(|error| format!("{target}: the device that it was cannot be forgotten: {error}"))?;
        info!(%target, "whichever device is there now is attached, as its owner said");
        let mut state = self.shared.state();
        if !state.word.is_stopped() {
            state.word = AttachmentPhase::Connecting;
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Begins to end it. Dropping it waits for the end.
    pub fn end(&self) {
        let mut state = self.shared.state();
        state.is_ending = true;
        state.end();
        self.shared.changed.notify_all();
    }
}

impl Drop for ManagedAttachment {
    fn drop(&mut self) {
        if let Some(restored) = self.restored.take() {
            restored.leave();
        }
        self.end();
        if let Some(thread) = self.thread.take() {
            // The panic was reported by the thread.
            let _ = thread.join();
        }
    }
}

impl ManagedAttachmentState {
    /// Ends the running attachment, if there is one.
    fn end(&self) {
        if let Some(running) = &self.running {
            running.handle.end();
        }
    }
}

impl ManagedAttachmentInner {
    fn state(&self) -> MutexGuard<'_, ManagedAttachmentState> {
        self.state.lock().expect("no attachment panics with its state open")
    }

    fn keep_attached(&self, request: &AttachRequest, mut restored: Option<Box<dyn RestoredAttachment>>) {
        let mut pause = PAUSE;
        // The disk that was refused because it was moved to this machine, and when.
        let mut moved: Option<(Instant, Option<ExportIdentity>)> = None;
        while self.may_try() {
            // One that goes on needs no place at its exporter.
            let turn = match restored {
                Some(_) => None,
                None => match self.turn_to_open(request) {
                    Some(turn) => Some(turn),
                    None => continue,
                },
            };
            let is_restored = restored.is_some();
            moved = moved.filter(|(at, _)| at.elapsed() < MOVED_TIME_MAX);
            let taken = match restored.take() {
                Some(restored) => restored.go_on(self.client.system()),
                // Its exporter's other users are not disturbed by a disk that is opened to be refused again.
                None => moved
                    .map_or(Ok(()), |(_, identity)| self.client.check_has_not_moved(&request.target, identity))
                    .and_then(|()| self.remembered.recall(self.client.system()))
                    .and_then(|()| take(&self.client, request)),
            };
            drop(turn);
            moved = match &taken {
                Err(ClientError::Moved { identity, .. }) => moved.or(Some((Instant::now(), *identity))),
                _ => None,
            };
            let is_another = matches!(taken, Err(ClientError::AnotherDevice { .. }));
            let failure = match taken {
                Ok(attachment) => {
                    let started = Instant::now();
                    let failure = self.run(request, attachment, is_restored);
                    if started.elapsed() >= GOOD {
                        pause = PAUSE;
                    }
                    failure.map(|failure| (false, failure))
                }
                Err(error) => {
                    self.state().is_taking_over = false;
                    self.changed.notify_all();
                    Some((is_busy(&error), CommandFailure::from(error)))
                }
            };
            let Some((is_busy, failure)) = failure else { continue };
            self.fail(request, &failure, if is_another { AttachmentPhase::Another } else { AttachmentPhase::Waiting });
            let pause_max = if is_busy { PAUSE_BUSY_MAX } else { PAUSE_MAX };
            self.pause(pause.min(pause_max));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits while it is detached. Returns whether to attach.
    fn may_try(&self) -> bool {
        let state = self.state();
        let waited = self.changed.wait_while(state, |state| state.word.is_stopped() && !state.is_ending);
        let mut state = waited.expect("no attachment panics with its state open");
        state.word = AttachmentPhase::Connecting;
        !state.is_ending
    }

    /// Waits until few others open devices of the same host; `None` if this one is not to be attached any more.
    fn turn_to_open(&self, request: &AttachRequest) -> Option<KeyedPermit<'static, String>> {
        static TURNS: LazyLock<KeyedSemaphore<String>> =
            LazyLock::new(|| KeyedSemaphore::new(OPENED_AT_A_TIME, OPENING_TIME_MAX));
        let wants = || {
            let state = self.state();
            !state.word.is_stopped() && !state.is_ending
        };
        TURNS.take(request.target.address.clone(), Duration::MAX, wants)
    }

    /// Runs an attachment to its end. Returns why it ended, unless the owner here ended it.
    fn run(
        &self,
        request: &AttachRequest,
        attachment: Box<dyn Attachment>,
        is_restored: bool,
    ) -> Option<CommandFailure> {
        let (target, running) = (&request.target, RunningAttachment::of(&*attachment));
        info!(%target, at = %running.status.at, "attached");
        publish(Event::of(EventKind::Attached, target.to_string()).how(running.status.at.as_str()));
        startup_memory::give_back_soon();
        tell_if_no_driver(target, running.handle.drivers(), |what| warn!("{what}"));
        let local_address = running.status.local_address;
        {
            let mut state = self.state();
            if state.is_ending || state.word.is_stopped() {
                running.handle.end();
            } else {
                state.word = AttachmentPhase::Attached;
            }
            (state.running, state.failure) = (Some(running.clone()), None);
            state.is_taking_over = false;
            self.changed.notify_all();
        }
        if is_restored {
            self.recall_restored(&running);
        } else {
            // The former process told its exporter, and its user here waits already.
            tell_reason(&self.client, request, local_address);
        }
        let ended = attachment.run();
        publish(ended.event(target));
        let last = running.handle.session().and_then(|session| session.identity());
        self.remembered.note_generation(last, self.client.system());
        {
            let mut state = self.state();
            let migration = state.running.take().and_then(|running| running.handle.migration_at_end(&ended));
            state.migration = migration.or_else(|| state.migration.take());
        }
        match &ended {
            AttachmentEnd::Undurable(why) => warn!(%target, why, "detached, and something may be lost"),
            AttachmentEnd::Moved => {
                info!(%target, "handed over");
                self.state().word = AttachmentPhase::Detached;
            }
            AttachmentEnd::Released => {
                return Some(CommandFailure::local(format!("{target}: this machine let go of it")));
            }
            AttachmentEnd::HandedOver => self.state().is_ending = true,
            AttachmentEnd::Requested | AttachmentEnd::Lost(_) | AttachmentEnd::Over(_) | AttachmentEnd::Broken(_) => {}
        }
        ended.failure(&self.client, target)
    }

    /// Remembers the device of an attachment that goes on: the process before this one may not have.
    fn recall_restored(&self, running: &RunningAttachment) {
        let system = self.client.system();
        match self.remembered.recall(system) {
            Ok(()) => {
                let identity = running.handle.session().and_then(|session| session.identity());
                self.remembered.note_inherited(identity, running.status.mode.is_some(), system);
            }
            Err(error) => warn!("{error}"),
        }
    }

    /// Notes why it is not attached. `word` says what it waits for.
    fn fail(&self, request: &AttachRequest, failure: &CommandFailure, word: AttachmentPhase) {
        let report = failure.report();
        let mut state = self.state();
        let is_news = std::mem::replace(&mut state.waits_for, word) != word;
        if !state.word.is_stopped() {
            state.word = word;
        }
        // Each trouble is logged once.
        if is_news || state.failure.as_ref().map(|known| known.attribute) != Some(report.attribute) {
            let next = if word == AttachmentPhase::Another { "" } else { "; trying again" };
            warn!(target = %request.target, attribute = report.attribute.as_str(), "{}{next}", report.message);
            let event = Event::of(EventKind::Failed, request.target.to_string());
            publish(event.how(report.attribute.as_str()).why(report.message.as_str()));
        }
        state.failure = Some(report);
    }

    fn pause(&self, span: Duration) {
        let state = self.state();
        let goes_on = |state: &mut ManagedAttachmentState| {
            matches!(state.word, AttachmentPhase::Waiting | AttachmentPhase::Another) && !state.is_ending
        };
        // The caller checks the state, whether the pause ended or the state changed.
        let _ = self.changed.wait_timeout_while(state, span, goes_on);
    }
}

/// Attaches the device. Programs can connect to it only once it is there.
fn take(client: &ImporterClient, request: &AttachRequest) -> Result<Box<dyn Attachment>, ClientError> {
    let front_end = request.via.front_end(request, client.system());
    let taken = front_end.take(client, request, &mut FrontEndPreparation::default());
    taken.map_err(|error| {
        let lacks = request.via.lacks(request, client.system());
        explain(error, client, request, lacks.as_deref())
    })
}

fn is_busy(error: &ClientError) -> bool {
    error.attribute() == FailureKind::Refused
}
