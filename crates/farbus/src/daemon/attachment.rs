//! A device of another machine that is kept attached: taken again, with growing pauses, whenever it is lost.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus_io::sys::vhci::Port;
use tracing::{info, warn};

use super::modules::Workshop;
use crate::broker::SystemAccess;
use crate::common::failure::Failure;
use crate::frontend::open_users::Act;
use crate::frontend::{
    Attachment, AttachmentStatus, Ended, Handle, Prepared, Refused, Request, Restored, Running, tell_reason,
};
use crate::importer::client::{Attribute, Client, ClientError, FailureReport};
use crate::saving::Saved;

/// The first pause; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest, so that a host that comes back is used soon.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest while somebody else has the device: who asks less often loses its place in the queue
/// (`farbus_session::claims::PATIENCE`).
const PAUSE_BUSY_MAX: Duration = Duration::from_secs(1);
/// An attachment that lasted so long was a good one: pauses begin anew.
const GOOD: Duration = Duration::from_secs(10);

/// A kept attachment and its thread. It ends when it is told to.
pub struct Kept {
    request: Request,
    shared: Arc<Shared>,
    /// What another process was attached to, until it has let go.
    restored: Option<Box<dyn Restored>>,
    thread: Option<JoinHandle<()>>,
}

/// How it does when another process is to take over.
pub enum Going {
    /// It goes on there.
    Along(Handle),
    /// It ends with this process, and is taken again by the next.
    Anew,
    /// It is held still for whoever uses it, or on its way to another host: this process sees that through.
    Moving,
    /// It ends, and somebody may be using it: how it is attached.
    Torn(&'static str),
}

struct Shared {
    client: Client,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    word: Word,
    running: Option<Running>,
    failure: Option<FailureReport>,
    is_ending: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Word {
    #[default]
    Connecting,
    Attached,
    /// For the next try.
    Waiting,
    /// By its owner here, until the next reload.
    Detached,
    /// Until this machine has slept.
    Asleep,
}

impl Word {
    /// Whether it is not to be taken for now.
    fn is_stopped(self) -> bool {
        matches!(self, Word::Detached | Word::Asleep)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Word::Connecting => "connecting",
            Word::Attached => "attached",
            Word::Waiting => "waiting",
            Word::Detached => "detached",
            Word::Asleep => "asleep",
        }
    }
}

impl Kept {
    /// Begins to take the device.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(request: Request, workshop: &Workshop, system: &SystemAccess) -> std::io::Result<Self> {
        let mut kept = Self::new(request, workshop, system)?;
        kept.begin()?;
        Ok(kept)
    }

    fn new(request: Request, workshop: &Workshop, system: &SystemAccess) -> std::io::Result<Self> {
        // Whoever waits for one host does not keep the others waiting.
        let system = system.apart()?;
        let modules = workshop.recipe(&request).map_err(std::io::Error::other)?;
        let client = Client::through(system, request.client_config(modules));
        let shared = Arc::new(Shared { client, state: Mutex::default(), changed: Condvar::new() });
        Ok(Self { request, shared, restored: None, thread: None })
    }

    /// One that stays detached until [`Kept::resume`], as it was in another process.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn detached(request: Request, workshop: &Workshop, system: &SystemAccess) -> std::io::Result<Self> {
        let mut kept = Self::new(request, workshop, system)?;
        kept.shared.state().word = Word::Detached;
        kept.begin()?;
        Ok(kept)
    }

    /// One that another process kept; the half with rights knows of these ports. Nothing happens before
    /// [`Kept::begin`].
    ///
    /// # Errors
    /// [`ClientError`]: nobody can go on with that.
    pub fn restored(
        request: Request,
        workshop: &Workshop,
        system: &SystemAccess,
        ports: &[u32],
        saved: Saved,
    ) -> Result<Self, ClientError> {
        let local = |error: std::io::Error| ClientError::Local(error.to_string());
        let mut kept = Self::new(request, workshop, system).map_err(local)?;
        let (client, request) = (&kept.shared.client, &kept.request);
        let front_end = request.via.front_end(request, client.system());
        kept.restored = Some(front_end.restore(client, request, ports, saved)?);
        Ok(kept)
    }

    /// Begins to keep it attached.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn begin(&mut self) -> std::io::Result<()> {
        let (shared, request, restored) = (Arc::clone(&self.shared), self.request.clone(), self.restored.take());
        let keep = move || shared.keep_attached(&request, restored);
        self.thread = Some(thread::Builder::new().name("attachment".into()).spawn(keep)?);
        Ok(())
    }

    /// How it does when another process is to take over.
    pub fn going(&self) -> Going {
        let state = self.shared.state();
        match (&state.running, state.word) {
            (Some(running), Word::Attached) if running.handle.is_moving() => Going::Moving,
            (Some(running), Word::Attached) if running.handle.can_save() => Going::Along(running.handle.clone()),
            (Some(running), Word::Attached) => Going::Torn(running.status.how),
            _ => Going::Anew,
        }
    }

    /// Whether its owner detached it.
    pub fn is_detached(&self) -> bool {
        self.shared.state().word == Word::Detached
    }

    /// Whether it is attached.
    pub fn is_attached(&self) -> bool {
        self.shared.state().word == Word::Attached
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// How it does.
    pub fn status(&self) -> (AttachmentStatus, Option<FailureReport>) {
        let state = self.shared.state();
        let Request { target, reason, .. } = &self.request;
        let status = AttachmentStatus::of(target, state.word.as_str(), reason.as_ref(), state.running.as_ref());
        (status, state.failure.clone())
    }

    /// What steers it, if it is attached now. Not to be used with a lock held: a virtual machine's device may take its
    /// time.
    pub fn handle(&self) -> Option<Handle> {
        self.shared.state().running.as_ref().map(|running| running.handle.clone())
    }

    /// Whether nobody would lose anything if it were detached now.
    ///
    /// # Errors
    /// [`Refused::InUse`].
    pub fn may_detach(&self) -> Result<(), Refused> {
        self.handle().map_or(Ok(()), |handle| handle.may(Act::Detach))
    }

    /// The port that it is plugged into, if it is.
    pub fn port(&self) -> Option<Port> {
        self.shared.state().running.as_ref().and_then(|running| running.status.port)
    }

    /// Whether it is detached while this machine sleeps.
    pub fn is_asleep(&self) -> bool {
        self.shared.state().word == Word::Asleep
    }

    /// Gives the device back, and does not take it before [`Kept::resume`].
    pub fn detach(&self) {
        self.stop(Word::Detached);
    }

    /// The same because this machine sleeps.
    pub fn sleep(&self) {
        self.stop(Word::Asleep);
    }

    fn stop(&self, word: Word) {
        let mut state = self.shared.state();
        state.word = word;
        state.end();
        self.shared.changed.notify_all();
    }

    /// Takes the device again if it is detached.
    pub fn resume(&self) {
        let mut state = self.shared.state();
        if state.word.is_stopped() {
            state.word = Word::Connecting;
            self.shared.changed.notify_all();
        }
    }

    /// Begins to end it; dropping it waits for that.
    pub fn end(&self) {
        let mut state = self.shared.state();
        state.is_ending = true;
        state.end();
        self.shared.changed.notify_all();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(restored) = self.restored.take() {
            restored.leave();
        }
        self.end();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl State {
    /// What runs is to end.
    fn end(&self) {
        if let Some(running) = &self.running {
            running.handle.end();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no attachment panics with its state open")
    }

    fn keep_attached(&self, request: &Request, mut restored: Option<Box<dyn Restored>>) {
        let mut pause = PAUSE;
        while self.may_try() {
            let is_restored = restored.is_some();
            let taken = match restored.take() {
                Some(restored) => restored.go_on(self.client.system()),
                None => take(&self.client, request),
            };
            let failure = match taken {
                Ok(attachment) => {
                    let started = Instant::now();
                    let failure = self.run(request, attachment, is_restored);
                    if started.elapsed() >= GOOD {
                        pause = PAUSE;
                    }
                    failure.map(|failure| (false, failure))
                }
                Err(error) => Some((is_busy(&error), Failure::from(error))),
            };
            let Some((is_busy, failure)) = failure else { continue };
            self.fail(request, &failure);
            let pause_max = if is_busy { PAUSE_BUSY_MAX } else { PAUSE_MAX };
            self.pause(pause.min(pause_max));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits while it is detached; says whether to go on.
    fn may_try(&self) -> bool {
        let state = self.state();
        let waited = self.changed.wait_while(state, |state| state.word.is_stopped() && !state.is_ending);
        let mut state = waited.expect("no attachment panics with its state open");
        state.word = Word::Connecting;
        !state.is_ending
    }

    /// Runs it to its end; why it ended if nobody here wanted that.
    fn run(&self, request: &Request, attachment: Box<dyn Attachment>, is_restored: bool) -> Option<Failure> {
        let (target, running) = (&request.target, Running::of(&*attachment));
        info!(%target, at = %running.status.at, "attached");
        let local_address = running.status.local_address;
        {
            let mut state = self.state();
            if state.is_ending || state.word.is_stopped() {
                running.handle.end();
            } else {
                state.word = Word::Attached;
            }
            (state.running, state.failure) = (Some(running), None);
        }
        if !is_restored {
            // Its exporter was told before, and its user here waits already.
            tell_reason(&self.client, request, local_address);
        }
        let ended = attachment.run();
        self.state().running = None;
        match &ended {
            Ended::Undurable(why) => warn!(%target, why, "detached, and something may be lost"),
            Ended::Moved => {
                info!(%target, "handed over");
                self.state().word = Word::Detached;
            }
            Ended::Released => return Some(Failure::local(format!("{target}: this machine let go of it"))),
            Ended::HandedOver => self.state().is_ending = true,
            Ended::Asked | Ended::Lost(_) | Ended::Over(_) | Ended::Broken(_) => {}
        }
        ended.failure(&self.client, target)
    }

    fn fail(&self, request: &Request, failure: &Failure) {
        let report = failure.report();
        let mut state = self.state();
        if !state.word.is_stopped() {
            state.word = Word::Waiting;
        }
        // The same trouble again is no news.
        if state.failure.as_ref().map(|known| known.attribute) != Some(report.attribute) {
            warn!(target = %request.target, attribute = report.attribute.as_str(), "{}; trying again", report.message);
        }
        state.failure = Some(report);
    }

    fn pause(&self, span: Duration) {
        let state = self.state();
        let goes_on = |state: &mut State| state.word == Word::Waiting && !state.is_ending;
        // Whether the time was over or something changed is seen by whoever looks next.
        let _ = self.changed.wait_timeout_while(state, span, goes_on);
    }
}

/// Takes the device. Who connects to it finds it when it is there, and nothing before.
fn take(client: &Client, request: &Request) -> Result<Box<dyn Attachment>, ClientError> {
    let front_end = request.via.front_end(request, client.system());
    front_end.take(client, request, &mut Prepared::default())
}

fn is_busy(error: &ClientError) -> bool {
    error.attribute() == Attribute::Refused
}
