//! A device of another machine that is kept attached: taken again, with growing pauses, whenever it is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus_io::sys::vhci::Port;
use tracing::{info, warn};

use super::super::Failure;
use super::super::attach::{Via, cut_off, explain, loss, over};
use super::spec::Attach;
use super::workshop::Workshop;
use crate::attach::{AttachmentStatus, Ended, Ender, FileAttachment, KernelAttachment, RestingFile};
use crate::broker::Hands;
use crate::client::{Attribute, Client, ClientError, FailureReport};
use crate::gate::Gate;
use crate::meters::Meters;
use crate::nbd::NbdAttachment;
use crate::opened_disk::DiskMode;
use crate::parting::{Parter, Saved};
use crate::place::Protocol;
use crate::redir::RedirAttachment;
use crate::standing::Standing;

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
    spec: Attach,
    shared: Arc<Shared>,
    /// What another process was attached to, until it has let go.
    inherited: Option<Inherited>,
    thread: Option<JoinHandle<()>>,
}

/// How it does when another process is to take over.
pub enum Going {
    /// It goes on there.
    Along(Parter<Saved>),
    /// It ends with this process, and is taken again by the next.
    Anew,
    /// It is held still for whoever uses it, or on its way to another host: this process sees that through.
    Moving,
    /// The same, and somebody may be using it: how it is attached.
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
    since: Option<Instant>,
    at: String,
    failure: Option<FailureReport>,
    ender: Option<Ender>,
    meters: Option<Arc<Meters>>,
    gate: Option<Gate>,
    port: Option<Port>,
    parter: Option<Parter<Saved>>,
    /// In a few words.
    how: &'static str,
    standing: Option<Standing>,
    mode: Option<DiskMode>,
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
    /// With this machine.
    Asleep,
}

impl Word {
    /// Whether it is not to be taken for now.
    fn is_let_go_of(self) -> bool {
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

/// What another process had, to be gone on with here.
enum Inherited {
    Kernel(Box<KernelAttachment>),
    File(Box<RestingFile>),
    Nbd(Box<NbdAttachment>),
    Guests(Box<RedirAttachment>),
}

/// What was had, ready to run.
enum Had {
    Kernel(Box<KernelAttachment>),
    File(Box<FileAttachment>),
    Nbd(Box<NbdAttachment>),
    Guests(Box<RedirAttachment>),
}

impl Inherited {
    fn restore(client: &Client, spec: &Attach, ports: &[u32], saved: Saved) -> Result<Self, ClientError> {
        let target = &spec.target;
        if spec.via.is_kernel(client.hands()) {
            let restored = match spec.via {
                Via::Uas => KernelAttachment::restore_disk(client, target, ports, saved),
                Via::Auto => KernelAttachment::restore_quickest(client, target, ports, saved),
                _ => KernelAttachment::restore(client, target, ports, saved),
            };
            return restored.map(|attachment| Inherited::Kernel(Box::new(attachment)));
        }
        match &spec.place {
            Some((Protocol::Nbd, place)) => {
                let restored = NbdAttachment::restore(client, target, place, saved);
                restored.map(|attachment| Inherited::Nbd(Box::new(attachment)))
            }
            Some((Protocol::Usbredir, place)) => {
                let restored = RedirAttachment::restore(client, target, place, saved);
                restored.map(|attachment| Inherited::Guests(Box::new(attachment)))
            }
            None => RestingFile::restore(client, target, saved).map(|file| Inherited::File(Box::new(file))),
        }
    }

    /// The other process has let go.
    fn go_on(self, client: &Client) -> Result<Had, ClientError> {
        match self {
            Inherited::Kernel(attachment) => Ok(Had::Kernel(attachment)),
            Inherited::File(file) => file.go_on(client.hands()).map(|attachment| Had::File(Box::new(attachment))),
            Inherited::Nbd(attachment) => attachment.go_on().map(|attachment| Had::Nbd(Box::new(attachment))),
            Inherited::Guests(attachment) => attachment.go_on().map(|attachment| Had::Guests(Box::new(attachment))),
        }
    }

    /// It does not run here after all: whoever had it keeps it.
    fn leave(self) {
        match self {
            Inherited::Kernel(attachment) => attachment.leave(),
            Inherited::File(file) => file.leave(),
            Inherited::Nbd(attachment) => attachment.leave(),
            Inherited::Guests(attachment) => attachment.leave(),
        }
    }
}

impl Kept {
    /// Begins to take the device.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(spec: Attach, workshop: &Workshop, hands: &Hands) -> std::io::Result<Self> {
        let mut kept = Self::new(spec, workshop, hands)?;
        kept.begin()?;
        Ok(kept)
    }

    fn new(spec: Attach, workshop: &Workshop, hands: &Hands) -> std::io::Result<Self> {
        // Whoever waits for one host does not keep the others waiting.
        let mut client = Client::through(hands.apart()?);
        client.travel(spec.over);
        client.take_links(spec.links);
        client.ask_ahead(spec.ahead);
        client.keep(spec.cache);
        client.reserve(spec.reservation.clone());
        client.go_through(workshop.recipe(&spec).map_err(std::io::Error::other)?);
        if let Some(grace) = spec.grace {
            client.outlive(grace);
        }
        let shared = Arc::new(Shared { client, state: Mutex::default(), changed: Condvar::new() });
        Ok(Self { spec, shared, inherited: None, thread: None })
    }

    /// One that stays detached until [`Kept::resume`], as it was in another process.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn detached(spec: Attach, workshop: &Workshop, hands: &Hands) -> std::io::Result<Self> {
        let mut kept = Self::new(spec, workshop, hands)?;
        kept.shared.state().word = Word::Detached;
        kept.begin()?;
        Ok(kept)
    }

    /// One that another process kept; the half with rights knows of these ports. Nothing happens before [`Kept::begin`].
    ///
    /// # Errors
    /// [`ClientError`]: nobody can go on with that.
    pub fn inherited(
        spec: Attach,
        workshop: &Workshop,
        hands: &Hands,
        ports: &[u32],
        saved: Saved,
    ) -> Result<Self, ClientError> {
        let local = |error: std::io::Error| ClientError::Local(error.to_string());
        let mut kept = Self::new(spec, workshop, hands).map_err(local)?;
        kept.inherited = Some(Inherited::restore(&kept.shared.client, &kept.spec, ports, saved)?);
        Ok(kept)
    }

    /// Begins to keep it attached.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn begin(&mut self) -> std::io::Result<()> {
        let (shared, spec, inherited) = (Arc::clone(&self.shared), self.spec.clone(), self.inherited.take());
        let keep = move || shared.keep_attached(&spec, inherited);
        self.thread = Some(thread::Builder::new().name("attachment".into()).spawn(keep)?);
        Ok(())
    }

    /// How it does when another process is to take over.
    pub fn going(&self) -> Going {
        let state = self.shared.state();
        let is_moving = state.gate.as_ref().is_some_and(Gate::is_shut)
            || state.standing.as_ref().is_some_and(|standing| !standing.is_ours());
        match (&state.parter, state.word) {
            (_, Word::Attached) if is_moving => Going::Moving,
            (Some(parter), Word::Attached) => Going::Along(parter.clone()),
            (None, Word::Attached) => Going::Torn(state.how),
            (_, Word::Connecting | Word::Waiting | Word::Detached | Word::Asleep) => Going::Anew,
        }
    }

    /// Whether its owner let go of it.
    pub fn is_detached(&self) -> bool {
        self.shared.state().word == Word::Detached
    }

    /// Whether it is attached.
    pub fn is_attached(&self) -> bool {
        self.shared.state().word == Word::Attached
    }

    /// What was asked for.
    pub fn spec(&self) -> &Attach {
        &self.spec
    }

    /// How it does.
    pub fn status(&self) -> (AttachmentStatus, Option<FailureReport>) {
        let state = self.shared.state();
        let target = &self.spec.target;
        let status = AttachmentStatus {
            name: target.device.clone(),
            title: target.to_string(),
            state: state.word.as_str(),
            user: target.address.clone(),
            at: state.at.clone(),
            used_s: state.since.map(|since| since.elapsed().as_secs_f64()).unwrap_or_default(),
            reason: self.spec.reason.clone(),
            mode: state.mode.map(DiskMode::as_str),
            link_lost_s: None,
            latency: None,
            reservation: None,
            counts: BTreeMap::new(),
            drift_us: None,
            links: None,
            meters: state.meters.as_ref().map(|meters| meters.read()),
        };
        let status = status.with_standing(state.standing.as_ref());
        (status, state.failure.clone())
    }

    /// What holds it still while its virtual machine moves, if it has one now.
    pub fn gate(&self) -> Option<Gate> {
        self.shared.state().gate.clone()
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        self.shared.state().standing.clone()
    }

    /// The port that it is plugged into, if it is.
    pub fn port(&self) -> Option<Port> {
        self.shared.state().port
    }

    /// Whether it is let go of while this machine sleeps.
    pub fn is_asleep(&self) -> bool {
        self.shared.state().word == Word::Asleep
    }

    /// Lets go of the device until [`Kept::resume`].
    pub fn detach(&self) {
        self.let_go(Word::Detached);
    }

    /// The same because this machine sleeps.
    pub fn sleep(&self) {
        self.let_go(Word::Asleep);
    }

    fn let_go(&self, word: Word) {
        let mut state = self.shared.state();
        state.word = word;
        if let Some(ender) = &state.ender {
            ender.end();
        }
        self.shared.changed.notify_all();
    }

    /// Takes it again if it was let go of.
    pub fn resume(&self) {
        let mut state = self.shared.state();
        if state.word.is_let_go_of() {
            state.word = Word::Connecting;
            self.shared.changed.notify_all();
        }
    }

    /// Begins to end it; dropping it waits for that.
    pub fn end(&self) {
        let mut state = self.shared.state();
        state.is_ending = true;
        if let Some(ender) = &state.ender {
            ender.end();
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(inherited) = self.inherited.take() {
            inherited.leave();
        }
        self.end();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no attachment panics with its state open")
    }

    fn keep_attached(&self, spec: &Attach, mut inherited: Option<Inherited>) {
        let mut pause = PAUSE;
        while self.may_try() {
            let is_inherited = inherited.is_some();
            let had = match inherited.take() {
                Some(inherited) => inherited.go_on(&self.client),
                None => take(&self.client, spec),
            };
            let failure = match had {
                Ok(had) => {
                    let started = Instant::now();
                    let failure = self.run(spec, had, is_inherited);
                    if started.elapsed() >= GOOD {
                        pause = PAUSE;
                    }
                    failure
                }
                Err(error) => Some((is_busy(&error), Failure::from(error))),
            };
            let Some((is_busy, failure)) = failure else { continue };
            self.fail(spec, &failure);
            let pause_max = if is_busy { PAUSE_BUSY_MAX } else { PAUSE_MAX };
            self.pause(pause.min(pause_max));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Waits while it is detached; says whether to go on.
    fn may_try(&self) -> bool {
        let state = self.state();
        let waited = self.changed.wait_while(state, |state| state.word.is_let_go_of() && !state.is_ending);
        let mut state = waited.expect("no attachment panics with its state open");
        state.word = Word::Connecting;
        !state.is_ending
    }

    /// Runs it to its end; why it ended if nobody here wanted that.
    fn run(&self, spec: &Attach, had: Had, is_inherited: bool) -> Option<(bool, Failure)> {
        let (at, ender, meters, address) = match &had {
            Had::Kernel(attachment) => {
                let at = format!("vhci port {}", attachment.port().0);
                (at, attachment.ender(), Some(attachment.meters()), attachment.local_address())
            }
            Had::File(attachment) => {
                (attachment.file().display().to_string(), attachment.ender(), None, attachment.local_address())
            }
            Had::Nbd(attachment) => {
                let meters = Some(attachment.meters());
                (attachment.uri().to_owned(), attachment.ender(), meters, attachment.local_address())
            }
            Had::Guests(attachment) => {
                let meters = Some(attachment.meters());
                (attachment.place().to_string(), attachment.ender(), meters, attachment.local_address())
            }
        };
        info!(target = %spec.target, %at, "attached");
        let (gate, parter, how) = match &had {
            Had::Kernel(attachment) => (None, attachment.parter(), attachment.how()),
            Had::File(attachment) => (None, attachment.parter(), "via fuse, as a USB disk"),
            Had::Nbd(attachment) => (attachment.gate(), attachment.parter(), "via nbd, as a USB disk"),
            Had::Guests(attachment) => (Some(attachment.gate()), attachment.parter(), "over a plain connection"),
        };
        let (standing, mode) = match &had {
            Had::Kernel(attachment) => (attachment.standing(), attachment.mode()),
            Had::File(attachment) => (attachment.standing(), Some(attachment.mode())),
            Had::Nbd(attachment) => (attachment.standing(), Some(attachment.mode())),
            Had::Guests(attachment) => (attachment.standing(), None),
        };
        let port = match &had {
            Had::Kernel(attachment) => Some(attachment.port()),
            Had::File(_) | Had::Nbd(_) | Had::Guests(_) => None,
        };
        {
            let mut state = self.state();
            state.port = port;
            if state.is_ending || state.word.is_let_go_of() {
                ender.end();
            } else {
                state.word = Word::Attached;
            }
            (state.since, state.failure, state.at) = (Some(Instant::now()), None, at);
            (state.ender, state.meters, state.gate) = (Some(ender), meters, gate);
            (state.parter, state.how) = (parter, how);
            (state.standing, state.mode) = (standing, mode);
        }
        if !is_inherited {
            // Its exporter was told before, and its user here waits already.
            explain(&self.client, &spec.target, spec.reason.as_ref(), address);
        }
        let ended = match had {
            Had::Kernel(attachment) => attachment.run(),
            Had::File(attachment) => attachment.run(),
            Had::Nbd(attachment) => attachment.run(),
            Had::Guests(attachment) => attachment.run(),
        };
        {
            let mut state = self.state();
            (state.since, state.ender, state.meters, state.gate, state.parter) = (None, None, None, None, None);
            (state.standing, state.mode, state.port) = (None, None, None);
            state.at.clear();
        }
        let target = &spec.target;
        match ended {
            Ended::Asked => None,
            Ended::Moved => {
                info!(%target, "handed over");
                self.state().word = Word::Detached;
                None
            }
            Ended::Released => {
                Some((false, Failure::new(Attribute::Local, format!("{target}: this machine let go of it"))))
            }
            Ended::Lost(why) => Some((false, loss(&self.client, target, &why))),
            Ended::Over(report) => Some((false, over(target, &report))),
            Ended::Broken(reject) => Some((false, cut_off(target, &reject))),
            Ended::HandedOver => {
                self.state().is_ending = true;
                None
            }
        }
    }

    fn fail(&self, spec: &Attach, failure: &Failure) {
        let report = failure.report();
        let mut state = self.state();
        if !state.word.is_let_go_of() {
            state.word = Word::Waiting;
        }
        // The same trouble again is no news.
        if state.failure.as_ref().map(|known| known.attribute) != Some(report.attribute) {
            warn!(target = %spec.target, attribute = report.attribute.as_str(), "{}; trying again", report.message);
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

fn take(client: &Client, spec: &Attach) -> Result<Had, ClientError> {
    if spec.via.is_kernel(client.hands()) {
        let taken = match spec.via {
            Via::Uas => KernelAttachment::disk(client, &spec.target, spec.mode),
            Via::Auto => KernelAttachment::quickest(client, &spec.target),
            _ => KernelAttachment::new(client, &spec.target),
        };
        return taken.map(|attachment| Had::Kernel(Box::new(attachment)));
    }
    match &spec.place {
        Some((Protocol::Nbd, place)) => {
            NbdAttachment::new(client, &spec.target, spec.mode, place).map(|attachment| Had::Nbd(Box::new(attachment)))
        }
        Some((Protocol::Usbredir, place)) => {
            RedirAttachment::new(client, &spec.target, place).map(|attachment| Had::Guests(Box::new(attachment)))
        }
        None => FileAttachment::new(client, &spec.target, spec.mode, &spec.folder())
            .map(|attachment| Had::File(Box::new(attachment))),
    }
}

fn is_busy(error: &ClientError) -> bool {
    error.attribute() == Attribute::Refused
}
