//! What connections find: the devices, who uses them, and how a connection comes and goes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_io::link::{Clock, Link};
use farbus_io::trust::{Fingerprint, Grant, Protocol};
use farbus_model::{BufferPool, Command, Completions, Device, Instant, Limits};
use farbus_session::claims::Mode;
use farbus_session::leases::Leases;
use farbus_session::native::{Allowed, control as native, hello};
use farbus_session::registry::Entry;
use farbus_session::registry::name_of;
use farbus_session::reserve::Standing;
use farbus_session::reserve::gate::Behind;
use farbus_session::{Claimed, DeviceRecord, Ending, Exporter, Offers, OpStatus, Registry};
use tracing::{error, info, warn};

use crate::allow::Network;
use crate::crowd::{self, Complaint, Place, Visitor};
use crate::device_status::{Counted, DeviceStatus};
use crate::door::Household;
use crate::engine::{End, Engine, Mailbox};
use crate::greeting;
use crate::guest::Guest;
use crate::links::Links;
use crate::listening::{Addresses, Listening};
use crate::meters::{Calls, Meters};
use crate::place::Origin;
use crate::questions::{Answer, Lines, Question};
use crate::reserve::Reservations;
use crate::sessions::{Fate, Pending, Sessions, Tenant};
use crate::share_error::ShareError;
use crate::swap::Swaps;
use crate::trust::Trust;

/// An engine's stack: its frames are shallow, its buffers are on the heap.
pub const STACK_BYTES: usize = 256 << 10;
/// How long an owner waits for a device's answer to a command.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(5);
/// How long whoever connects may take to say the first byte.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long sessions may take to make their devices durable when sharing ends.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a paired host that may ask may say nothing.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);
/// How long what was handed over waits for its heir: below the 30 s after which Linux's usb-storage gives a command up.
const HEIR_TIME: Duration = Duration::from_secs(20);
/// How soon a session ends whose host was unpaired, or whose device was forbidden.
const RECHECK_EVERY: Duration = Duration::from_secs(1);

/// What all connections and their owner share.
pub struct Shared {
    registry: Mutex<Registry>,
    sessions: Mutex<BTreeMap<u64, Arc<Session>>>,
    /// Connections so far, of all listeners.
    session_numbers: AtomicU64,
    session_ended: Condvar,
    /// Sessions of farbus's own protocol.
    pub native: Sessions,
    /// The leases of what is shared, by bus id.
    leases: Mutex<Leases<Legacy>>,
    /// How long what was handed over waits for its heir, milliseconds.
    heir_time_ms: AtomicU64,
    /// Sessions of the process before this one, yet to go on.
    pub pending: Mutex<Vec<(u64, Pending<Shared>)>>,
    /// Names of what they use: nobody else gets that before.
    pub reserved: Mutex<Vec<String>>,
    pub swaps: Swaps,
    /// What is reserved for what is shared.
    pub reservations: Reservations,
    /// Who reserves with high criticality and proves no key: at these addresses. Programs of this machine always may.
    pub reserve_high: Mutex<Vec<Network>>,
    /// Buses of real devices, by bus id on the wire.
    pub buses: Mutex<BTreeMap<String, String>>,
    crowd: Complaint,
    pub listeners: Addresses,
    /// Whether who may use a device may look on while another does.
    pub is_observable: AtomicBool,
    /// Devices that are one host's alone, by name: whatever else others are allowed.
    lent: Mutex<BTreeMap<String, Lent>>,
    /// Whoever answers hosts that this one is joined with.
    pub neighbourhood: OnceLock<Arc<dyn Neighbourhood>>,
    /// Which modules may be asked for; none were named: those that need nothing of this host.
    pub modules: Mutex<Option<Arc<Allowed>>>,
    is_stopping: AtomicBool,
    pub clock: Clock,
    pub limits: Limits,
    pub trace: Mutex<Option<File>>,
}

/// Whose a device is that is one host's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// This one's.
    Own,
    /// A paired one's.
    To(Fingerprint),
    /// Nobody's, for now.
    Nobody,
}

impl Lent {
    /// Whether it is this visitor's.
    fn is_for(self, visitor: Visitor) -> bool {
        match (self, visitor) {
            (Lent::To(key), Visitor::Host(host)) => key == host,
            (Lent::Own, Visitor::User(_)) => true,
            (Lent::Own, Visitor::Address(address)) => address.to_canonical().is_loopback(),
            _ => false,
        }
    }
}

/// Hosts that this one is joined with, and what they say to each other about that.
pub trait Neighbourhood: Send + Sync {
    /// What is answered to a host that says this.
    ///
    /// # Errors
    /// Why it is not heard.
    fn hear(&self, host: Fingerprint, said: &str) -> Result<String, String>;
}

/// A device that was handed over, and waits for whoever goes on with it.
pub struct Legacy {
    /// It.
    pub bus_id: String,
    /// Who has the claim, in the registry's words.
    pub who: String,
    /// The USB device; none of a block device, which is opened anew.
    pub device: Option<Box<dyn Device>>,
    /// What whoever goes on with it is given along with it.
    pub luggage: Vec<u8>,
    /// Who handed it over, and his connection's number: it is his again if nobody comes.
    pub home: (Weak<Session>, u64),
}

impl Legacy {
    /// Tells who handed it over what became of it.
    pub fn settle(&self, cause: native::Cause, message: &str) {
        if let Some(home) = self.home.0.upgrade() {
            // If he is gone meanwhile nobody needs to know.
            let _ = home.leave_fate(Fate::Over(native::End { cause, message: message.to_owned() }));
        }
    }
}

/// The time of day: later after every restart, unless somebody puts the clock back.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// One connection.
pub struct Session {
    /// The link that it is, and ends with; none if it belongs to a session, or is one, whose thread is told.
    link: Mutex<Option<Link>>,
    is_told: AtomicBool,
    /// Another process serves it from now on.
    is_replaced: AtomicBool,
    /// Its peer, as people write it.
    pub peer: String,
    /// The paired host that it is, on an encrypted link.
    pub guest: Option<Guest>,
    pub visitor: Visitor,
    place: Place,
    mailbox: Mailbox,
    meters: Meters,
    /// Those of the session that it is, or belongs to.
    pub links: Links,
    pub bus_id: Mutex<Option<String>>,
    /// The device that it looks on at.
    pub observes: OnceLock<String>,
    pub is_taken_back: AtomicBool,
    /// What it uses was used by the process before this one.
    pub is_heir: AtomicBool,
    /// A session's: how it ended.
    pub ending: Mutex<Option<Ending>>,
    /// What became of a device that it has handed over.
    fate: Mutex<Waiting>,
    /// How what is reserved for its device stands, as it is yet to hear.
    reserved: Mutex<Option<Standing>>,
    has_news: AtomicBool,
    /// Its device, if that is behind a gate.
    behind: Mutex<Option<Behind>>,
}

/// Whether somebody wants to know what became of a device.
#[derive(Default)]
enum Waiting {
    #[default]
    Yes,
    Told(Fate),
    Gone,
}

impl Session {
    /// Tells it what became of the device that it has handed over; the fate again if it is gone.
    #[must_use]
    pub fn leave_fate(&self, fate: Fate) -> Option<Fate> {
        {
            let mut waiting = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*waiting, Waiting::Gone) {
                return Some(fate);
            }
            *waiting = Waiting::Told(fate);
        }
        self.mailbox.wake();
        None
    }

    /// It is told how what is reserved for its device stands.
    pub fn leave_reserved(&self, standing: Standing) {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Some(standing);
        self.has_news.store(true, Ordering::Release);
        self.mailbox.wake();
    }

    /// Its device is behind a gate from now on.
    pub fn keep_behind(&self, behind: Behind) {
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = Some(behind);
    }

    /// Its device, without the gate that it may be behind.
    pub fn without_gate(&self, device: Box<dyn Device>) -> Box<dyn Device> {
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(behind) = behind else { return device };
        drop(device);
        behind.take().expect("the gate is gone")
    }

    fn fate(&self, next: Waiting) -> Option<Fate> {
        match std::mem::replace(&mut *self.fate.lock().unwrap_or_else(PoisonError::into_inner), next) {
            Waiting::Told(fate) => Some(fate),
            Waiting::Yes | Waiting::Gone => None,
        }
    }

    fn end(&self) {
        self.is_told.store(true, Ordering::Release);
        match &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(link) => link.shut_down(),
            None => self.mailbox.wake(),
        }
    }

    /// Whether it goes on in another process.
    pub fn is_handed_over(&self) -> bool {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) == Some(Ending::HandedOver)
    }

    /// It goes on when its link ends.
    fn outlive_link(&self) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Tenant for Session {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn end(&self) -> Option<native::End> {
        self.is_told.load(Ordering::Acquire).then(|| {
            let message = match self.is_taken_back.load(Ordering::Acquire) {
                true => "taken back by its owner",
                false => "not shared with you any more",
            };
            native::End { cause: native::Cause::Refused, message: message.to_owned() }
        })
    }

    fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    fn note_ending(&self, ending: Ending) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
    }

    fn take_fate(&self) -> Option<Fate> {
        self.fate(Waiting::Yes)
    }

    fn leave(&self) -> Option<Fate> {
        self.fate(Waiting::Gone)
    }

    fn take_reserved(&self) -> Option<Standing> {
        if !self.has_news.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Shared {
    /// Nothing is shared yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            registry: Mutex::default(),
            sessions: Mutex::default(),
            session_numbers: AtomicU64::new(0),
            session_ended: Condvar::new(),
            native: Sessions::default(),
            leases: Mutex::new(Leases::after(unix_ms())),
            heir_time_ms: AtomicU64::new(HEIR_TIME.as_millis() as u64),
            pending: Mutex::default(),
            reserved: Mutex::default(),
            swaps: Swaps::default(),
            reservations: Reservations::default(),
            reserve_high: Mutex::default(),
            buses: Mutex::default(),
            crowd: Complaint::default(),
            listeners: Addresses::default(),
            is_observable: AtomicBool::new(false),
            lent: Mutex::default(),
            neighbourhood: OnceLock::new(),
            modules: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            clock: Clock::start(),
            limits,
            trace: Mutex::default(),
        }
    }

    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no claim panics")
    }

    pub fn leases(&self) -> MutexGuard<'_, Leases<Legacy>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody came for it: it is offered to everybody again.
    pub fn forget(&self, legacy: Legacy, ending: Ending) {
        let Legacy { bus_id, who, device, .. } = legacy;
        info!(device = bus_id, from = who, "what was handed over is offered again");
        let now = self.clock.now();
        let device = device.map(|mut device| {
            let mut done = Completions::new(BufferPool::new(0));
            device.reset(now, &mut done);
            // A device that cannot be made durable says so itself at the next command.
            let _ = device.command(now, &Command::Sync, &mut done);
            while done.pop().is_some() {}
            device
        });
        if device.as_ref().is_some_and(|device| device.is_gone()) {
            self.registry().withdraw(&bus_id);
        } else {
            self.registry().release(&bus_id, &who, device, ending, now);
        }
        self.unreserve_for(&bus_id);
    }

    pub fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Session>>> {
        self.sessions.lock().expect("no session panics while it is counted")
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub fn accept_all(self: &Arc<Self>, listening: &Listening) {
        while !self.is_stopping() && !listening.is_closed() {
            match listening.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok((_, from)) if !listening.admits(from) => {
                    warn!(%from, at = %listening.place(), "not on the list of those allowed here");
                }
                Ok((link, from)) => {
                    if let Err(error) = self.begin_session(link, from)
                        && self.crowd.is_due(self.clock.now())
                    {
                        warn!(%from, %error, "the connection was turned away; others for 10 s are not mentioned");
                    }
                }
                Err(_) if self.is_stopping() || listening.is_closed() => return,
                Err(error) => {
                    // Out of descriptors, most likely: what is open goes on, new ones wait.
                    warn!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn begin_session(self: &Arc<Self>, link: Link, from: Origin) -> io::Result<()> {
        let (of_its_own, peer) = (Some(link.try_clone()?), link.peer().to_owned());
        let (number, session) = self.enter_session(of_its_own, peer, None, Visitor::without_key(from))?;
        let shared = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name(format!("session-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || shared.serve_either(number, &session, link));
        if let Err(error) = spawned {
            self.end_session(number);
            return Err(error);
        }
        Ok(())
    }

    /// Counts a connection among the sessions; [`Shared::serve`] ends it.
    pub fn enter_session(
        &self,
        link: Option<Link>,
        peer: String,
        guest: Option<Guest>,
        visitor: Visitor,
    ) -> io::Result<(u64, Arc<Session>)> {
        self.enter_linked(link, peer, guest, visitor, Links::default())
    }

    /// The same for what belongs to a session with these links.
    pub fn enter_linked(
        &self,
        link: Option<Link>,
        peer: String,
        guest: Option<Guest>,
        visitor: Visitor,
        links: Links,
    ) -> io::Result<(u64, Arc<Session>)> {
        let mut sessions = self.sessions();
        let present = sessions.values().map(|session| (session.visitor, session.place));
        let place = crowd::place(visitor, present).map_err(io::Error::other)?;
        let session = Session {
            link: Mutex::new(link),
            is_told: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            peer,
            guest,
            visitor,
            place,
            mailbox: Mailbox::new()?,
            meters: Meters::default(),
            links,
            bus_id: Mutex::default(),
            observes: OnceLock::new(),
            is_taken_back: AtomicBool::new(false),
            is_heir: AtomicBool::new(false),
            ending: Mutex::default(),
            fate: Mutex::default(),
            reserved: Mutex::default(),
            has_news: AtomicBool::new(false),
            behind: Mutex::default(),
        };
        let (number, session) = (self.session_numbers.fetch_add(1, Ordering::Relaxed), Arc::new(session));
        sessions.insert(number, Arc::clone(&session));
        Ok((number, session))
    }

    /// How long what was handed over waits for its heir.
    pub fn heir_time(&self) -> Duration {
        Duration::from_millis(self.heir_time_ms.load(Ordering::Relaxed))
    }

    /// How long it will from now on.
    pub fn set_heir_time(&self, span: Duration) {
        self.heir_time_ms.store(span.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Something was handed over: whoever waits for it looks.
    pub fn wake_heirs(&self) {
        self.sessions().values().for_each(|session| session.mailbox.wake());
    }

    /// A session goes on that was not counted while its device was away.
    pub fn go_on_with(&self, number: u64, session: &Arc<Session>) {
        self.sessions().insert(number, Arc::clone(session));
    }

    pub fn end_session(&self, number: u64) {
        self.sessions().remove(&number);
        self.session_ended.notify_all();
    }

    /// The whole life of a connection without encryption, on its own thread: its first byte says which tongue it speaks.
    fn serve_either(self: Arc<Self>, number: u64, session: &Arc<Session>, link: Link) {
        let since = self.clock.now();
        let has_begun = greeting::await_first_byte(&link, GREETING_TIME_MAX);
        if matches!(has_begun, Ok(Some(first)) if first == hello::MAGIC[0]) {
            self.serve_session(number, session, link);
        } else {
            // Nothing at all, and every trouble of the link, are that protocol's to report.
            self.serve(number, session, &link, since);
        }
    }

    fn serve_session(self: Arc<Self>, number: u64, session: &Arc<Session>, link: Link) {
        session.outlive_link();
        if let Err(error) = self.native.serve(&self, link, session) {
            info!(peer = session.peer, %error, "a link of a session was lost in its greeting");
        }
        self.end_session(number);
    }

    /// The whole life of a connection that speaks USB/IP, on its own thread.
    fn serve(self: Arc<Self>, number: u64, session: &Session, link: &Link, since: Instant) {
        let mut engine = Engine {
            link,
            exporter: Exporter::new(since, self.limits),
            offers: Offer { shared: &self, session },
            clock: self.clock,
            mailbox: &session.mailbox,
            meters: &session.meters,
            calls: Calls::default(),
        };
        // A bug of ours in one session is not the others' trouble: the device is taken back if it
        // lets itself be reset, and withdrawn if it does not.
        let end = panic::catch_unwind(AssertUnwindSafe(|| engine.run())).unwrap_or(End::Bug);
        let (exporter, now) = (engine.exporter, self.clock.now());
        self.write_trace(session, &exporter);
        let device = panic::catch_unwind(AssertUnwindSafe(|| exporter.finish(now))).unwrap_or(None);
        let device = device.map(|device| session.without_gate(device));
        let bus_id = session.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take();
        link.shut_down();
        let ending = match session.is_taken_back.load(Ordering::Acquire) {
            true => Ending::TakenBack,
            false => ending_of(&end),
        };
        report_end(&end, ending, &session.peer, bus_id.as_deref());
        if let (Some(guest), Some(bus_id)) = (&session.guest, &bus_id) {
            guest.record_detached(self.device_name(bus_id).as_ref().unwrap_or(bus_id));
        }
        match (bus_id, device) {
            (Some(bus_id), Some(device)) if !device.is_gone() => {
                self.registry().release(&bus_id, &session.peer, Some(device), ending, now);
            }
            (Some(bus_id), _) => self.registry().withdraw(&bus_id),
            (None, _) => {}
        }
        self.end_session(number);
    }

    fn write_trace(&self, session: &Session, exporter: &Exporter<Box<dyn Device>>) {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = trace.as_mut() else { return };
        let mut out = io::BufWriter::new(file);
        let peer = &session.peer;
        for tap in exporter.trace().taps() {
            let (key, endpoint, stage, at) = (tap.key, tap.endpoint, tap.stage.name(), tap.at.as_nanos());
            let line = format_args!(
                r#"{{"peer":"{peer}","endpoint":{endpoint},"seqnum":{key},"stage":"{stage}","at_ns":{at}}}"#
            );
            if let Err(error) = writeln!(out, "{line}") {
                return warn!(%error, "the trace is not complete");
            }
        }
        if let Err(error) = out.flush() {
            warn!(%error, "the trace is not complete");
        }
    }

    /// The name of the device with this bus id.
    pub fn device_name(&self, bus_id: &str) -> Option<String> {
        let registry = self.registry();
        registry.entries().find(|entry| entry.record.bus_id == bus_id).map(|entry| entry.name.to_owned())
    }

    /// Answers questions, a line of JSON each, until the guest has no more.
    fn answer_questions(&self, session: &Session, link: &Link) -> io::Result<()> {
        let Some(guest) = &session.guest else { return Ok(()) };
        let mut lines = Lines::over(link, QUESTION_TIME_MAX)?;
        while let Some(line) = lines.receive()? {
            let answer = match serde_json::from_slice(&line) {
                _ if session.place == Place::Surplus => Answer::Refused(crowd::REFUSAL.to_owned()),
                Ok(Question::List) => {
                    let allowed = guest.allowed();
                    let mut devices = self.status();
                    devices.retain(|device| self.may_use(session.visitor, &allowed, &device.name));
                    // Whose links they are is nobody else's business.
                    devices.iter_mut().for_each(|device| device.links = None);
                    Answer::Devices(devices)
                }
                Ok(Question::Topology { said }) => match self.neighbourhood.get() {
                    Some(neighbourhood) => match neighbourhood.hear(guest.fingerprint(), &said) {
                        Ok(answer) => Answer::Topology(answer),
                        Err(why) => Answer::Refused(why),
                    },
                    None => {
                        Answer::Refused("no links between hosts are brought up here: that is a daemon's".to_owned())
                    }
                },
                Ok(Question::Explain { device, reason }) => match self.explain(guest, &device, &reason) {
                    true => Answer::Done,
                    false => Answer::Refused(format!("you do not use '{device}'")),
                },
                Err(error) => Answer::Refused(format!("not a question: {error}")),
            };
            lines.send(&answer)?;
        }
        Ok(())
    }

    /// These devices are one host's alone from now on, and no others.
    pub fn lend(&self, lent: BTreeMap<String, Lent>) {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) = lent;
    }

    /// Whether a device that is one host's alone is this visitor's; `None` if it is no such device.
    fn lent_to(&self, visitor: Visitor, device: &str) -> Option<bool> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.get(device).map(|lent| lent.is_for(visitor))
    }

    /// Whether a paired host may use a device.
    fn may_use(&self, visitor: Visitor, allowed: &Grant, device: &str) -> bool {
        self.lent_to(visitor, device).unwrap_or_else(|| allowed.allows(device))
    }

    /// A guest says what it needs the device for that one of its sessions holds. Says whether one does.
    fn explain(&self, guest: &Guest, device: &str, reason: &str) -> bool {
        let Ok(bus_id) = self.bus_id_of(device) else { return false };
        let mut holders = self.holders_of(&bus_id).into_iter();
        let is_its_own =
            |session: &Arc<Session>| session.guest.as_ref().is_some_and(|holder| holder.is_same_host(guest));
        holders.find(is_its_own).is_some_and(|session| self.registry().explain(&session.peer, reason))
    }

    /// Ends sessions of hosts that are not paired any more, or hold what they may not: whoever changed the list, and how.
    pub fn recheck(&self, trust: &Trust) {
        while !self.is_stopping() {
            thread::sleep(RECHECK_EVERY);
            // Nobody is trusted while the list cannot be read.
            let peers = trust.peers().inspect_err(|error| error!(%error, "who is paired cannot be read")).ok();
            let sessions: Vec<_> = self.sessions().values().cloned().collect();
            for session in sessions {
                let Some(guest) = &session.guest else { continue };
                let held = session.bus_id.lock().ok().and_then(|held| held.clone());
                let held = held.or_else(|| session.observes.get().cloned());
                let device = held.and_then(|bus_id| self.device_name(&bus_id));
                let is_lent =
                    device.as_deref().is_some_and(|device| self.lent_to(session.visitor, device) == Some(true));
                let device_asked = device.as_deref().filter(|_| !is_lent);
                if !peers.as_ref().is_some_and(|peers| guest.may_stay(peers, device_asked)) {
                    warn!(peer = session.peer, device, "cut off: its permission was taken back");
                    session.end();
                }
            }
        }
    }

    /// Whether somebody used it in the process before this one, and is about to go on.
    fn is_reserved(&self, bus_id: &str) -> bool {
        self.device_name(bus_id).is_some_and(|name| self.is_name_reserved(&name))
    }

    /// The same of what is called so, which may not be here yet.
    pub fn is_name_reserved(&self, name: &str) -> bool {
        let reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.iter().any(|reserved| reserved == name)
    }

    pub fn status(&self) -> Vec<DeviceStatus> {
        let sessions = self.sessions();
        let counted_of = |bus_id: &str| {
            let mut holders = sessions.values();
            let holder = holders.find(|s| s.bus_id.lock().is_ok_and(|held| held.as_deref() == Some(bus_id)));
            holder.map_or_else(Counted::default, |session| Counted {
                meters: Some(session.meters.read()),
                links: session.links.status(),
            })
        };
        let now = self.clock.now();
        let registry = self.registry();
        let entries = registry.entries();
        let status = |entry: Entry<'_>| DeviceStatus {
            reservation: self.reservations.status(entry.name),
            ..DeviceStatus::of(&entry, counted_of(&entry.record.bus_id), now)
        };
        entries.map(status).collect()
    }

    pub fn bus_id_of(&self, device: &str) -> Result<String, ShareError> {
        let registry = self.registry();
        let bus_id = registry.find(device).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        Ok(bus_id.to_owned())
    }

    pub fn remove(&self, device: &str) -> Result<(), ShareError> {
        let bus_id = self.bus_id_of(device)?;
        self.disown(&bus_id);
        if self.registry().retire(&bus_id) == Some(false) {
            self.end_users_of(&bus_id);
        }
        // Whoever was to inherit it never will.
        self.wake_heirs();
        Ok(())
    }

    pub fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
        let bus_id = self.bus_id_of(device)?;
        let now = self.clock.now();
        let until = (!keep_out.is_zero()).then(|| now + keep_out);
        let who = {
            let mut registry = self.registry();
            let claims = registry.claims_mut(&bus_id).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
            let who = claims.holder().map(|holder| holder.who.clone());
            claims.take_back(remark, until);
            who.ok_or_else(|| ShareError::NotInUse(device.to_owned()))?
        };
        self.end_users_of(&bus_id);
        Ok(who)
    }

    /// Ends the sessions that use a device and waits until the device is back, or long enough.
    fn end_users_of(&self, bus_id: &str) {
        let legacy = self.leases().take_back(bus_id);
        if let Some(legacy) = legacy {
            legacy.settle(native::Cause::Refused, "taken back by its owner");
            self.forget(legacy, Ending::TakenBack);
        }
        let users = self.holders_of(bus_id);
        for session in &users {
            session.is_taken_back.store(true, Ordering::Release);
            session.end();
        }
        let sessions = self.sessions();
        let is_there = |sessions: &mut BTreeMap<u64, Arc<Session>>| {
            sessions.values().any(|session| users.iter().any(|user| Arc::ptr_eq(user, session)))
        };
        // A device that does not become durable in time goes on trying in its session's thread.
        let _ = self.session_ended.wait_timeout_while(sessions, COMMAND_TIME_MAX, |sessions| is_there(sessions));
    }

    pub fn holders_of(&self, bus_id: &str) -> Vec<Arc<Session>> {
        let sessions = self.sessions();
        let holds = |session: &&Arc<Session>| session.bus_id.lock().is_ok_and(|held| held.as_deref() == Some(bus_id));
        sessions.values().filter(holds).cloned().collect()
    }

    pub fn command(&self, device: &str, command: Command) -> Result<(), ShareError> {
        let missing = || ShareError::NoDevice(device.to_owned());
        let bus_id = {
            if self.is_reserved(&self.bus_id_of(device)?) {
                // Its user goes on in a moment, and it is as it was then.
                return Err(ShareError::Silent);
            }
            let mut registry = self.registry();
            let bus_id = registry.find(device).ok_or_else(missing)?.to_owned();
            if let Some(idle) = registry.idle_device(&bus_id) {
                let mut done = Completions::new(BufferPool::new(0));
                return idle.command(self.clock.now(), &command, &mut done).map_err(ShareError::Command);
            }
            bus_id
        };
        let holder = self.holders_of(&bus_id).pop().ok_or(ShareError::Silent)?;
        let result = holder.mailbox.ask(command, COMMAND_TIME_MAX);
        result.ok_or(ShareError::Silent)?.map_err(ShareError::Command)
    }

    pub fn stop(&self, is_replaced: bool) -> bool {
        if self.is_stopping.swap(true, Ordering::AcqRel) {
            return true;
        }
        self.listeners.close_all();
        self.swaps.stop();
        let mut sessions = self.sessions();
        for session in sessions.values() {
            session.is_replaced.store(is_replaced, Ordering::Release);
            session.end();
        }
        while !sessions.is_empty() {
            let waited = self.session_ended.wait_timeout(sessions, SHUTDOWN_TIME_MAX);
            let (left, timeout) = waited.expect("no session panics while it is counted");
            if timeout.timed_out() {
                return left.is_empty();
            }
            sessions = left;
        }
        drop(sessions);
        let left = self.leases().clear();
        for legacy in left {
            self.forget(legacy, Ending::Detached);
        }
        // A real device goes back to this machine's drivers now, whoever else still holds this share.
        let devices = self.registry().close();
        drop(devices);
        true
    }
}

impl Household for Shared {
    fn clock(&self) -> Clock {
        self.clock
    }

    fn is_closing(&self) -> bool {
        self.is_stopping()
    }

    fn receive(self: Arc<Self>, link: Link, guest: Guest, protocol: Protocol) -> io::Result<()> {
        let of_its_own = match protocol {
            Protocol::Session => None,
            _ => Some(link.try_clone()?),
        };
        let (peer, visitor) = (link.peer().to_owned(), Visitor::Host(guest.fingerprint()));
        let (number, session) = self.enter_session(of_its_own, peer, Some(guest), visitor)?;
        match protocol {
            Protocol::UsbIp => {
                let since = self.clock.now();
                self.serve(number, &session, &link, since);
            }
            Protocol::Control => {
                if let Err(error) = self.answer_questions(&session, &link) {
                    info!(peer = session.peer, %error, "its questions ended");
                }
                link.shut_down();
                self.end_session(number);
            }
            Protocol::Session => self.serve_session(number, &session, link),
            // Not offered here: ALPN has refused it.
            Protocol::Pairing => self.end_session(number),
        }
        Ok(())
    }
}

/// What a connection is offered: the registry, on behalf of its peer.
pub struct Offer<'a> {
    /// Whose.
    pub shared: &'a Shared,
    /// The peer's.
    pub session: &'a Session,
}

impl Offers<Box<dyn Device>> for Offer<'_> {
    fn list(&mut self) -> Vec<DeviceRecord> {
        let mut records = self.shared.registry().records(self.shared.clock.now());
        let visitor = self.session.visitor;
        match &self.session.guest {
            Some(guest) => {
                let allowed = guest.allowed();
                records.retain(|record| self.shared.may_use(visitor, &allowed, name_of(record)));
            }
            None => records.retain(|record| self.shared.lent_to(visitor, name_of(record)) != Some(false)),
        }
        records
    }

    fn claim(&mut self, bus_id: &str) -> Result<(DeviceRecord, Box<dyn Device>), OpStatus> {
        let device = self.admit(bus_id)?;
        let (claimed, holder) = self.claim_for(bus_id, |registry, peer, now| registry.claim(bus_id, peer, now));
        self.note(
            bus_id,
            device.as_deref(),
            holder,
            claimed.as_ref().map(|_| Mode::Exclusive.as_str()).map_err(OpStatus::to_string),
        );
        claimed.map(|Claimed { record, device }| {
            let device = self.shared.behind_gate(self.session, bus_id, device);
            (record, device)
        })
    }
}

impl Offer<'_> {
    /// Whether the peer may ask for this device at all; for a paired host, what it is called.
    pub fn admit(&self, bus_id: &str) -> Result<Option<String>, OpStatus> {
        if self.shared.is_stopping() {
            return Err(OpStatus::NotAvailable);
        }
        let peer = &self.session.peer;
        let name = self.shared.device_name(bus_id);
        let lent = name.as_ref().and_then(|name| self.shared.lent_to(self.session.visitor, name));
        let guest = self.session.guest.as_ref().zip(name);
        match (lent, &guest) {
            (Some(true), _) => {}
            (Some(false), guest) => {
                info!(device = bus_id, peer, "refused: it is another host's alone");
                if let Some((guest, device)) = guest {
                    guest.record_refused(device, "another host's alone");
                }
                return Err(OpStatus::NoDevice);
            }
            (None, Some((guest, device))) if !guest.may_claim(device) => return Err(OpStatus::NoDevice),
            (None, _) => {}
        }
        if self.session.place == Place::Surplus {
            warn!(device = bus_id, peer, "refused: {}", crowd::REFUSAL);
            if let Some((guest, device)) = guest {
                guest.record_refused(&device, crowd::REFUSAL);
            }
            return Err(OpStatus::NotAvailable);
        }
        if !self.session.is_heir.load(Ordering::Acquire) && self.shared.is_reserved(bus_id) {
            return Err(OpStatus::Busy);
        }
        Ok(guest.map(|(_, device)| device))
    }

    /// Claims a device, and says who has it if it cannot be had.
    pub fn claim_for<T, E>(
        &self,
        bus_id: &str,
        claim: impl FnOnce(&mut Registry, &str, Instant) -> Result<T, E>,
    ) -> (Result<T, E>, String) {
        let mut registry = self.shared.registry();
        let claimed = claim(&mut registry, &self.session.peer, self.shared.clock.now());
        if claimed.is_ok() {
            // Before the registry is let go of: whoever takes the device back finds its session.
            *self.session.bus_id.lock().expect("no session panics") = Some(bus_id.to_owned());
        }
        let holder = registry.entries().find(|entry| entry.record.bus_id == bus_id).and_then(|entry| entry.holder);
        (claimed, holder.map_or("nobody", |holder| holder.who.as_str()).to_owned())
    }

    /// What came of a claim, for the log and a guest's record.
    pub fn note(&self, bus_id: &str, device: Option<&str>, holder: String, outcome: Result<&str, String>) {
        // What was noted in the process before this one is no news.
        let is_news = !self.session.is_heir.load(Ordering::Acquire);
        let (peer, guest) = (&self.session.peer, self.session.guest.as_ref().filter(|_| is_news).zip(device));
        match outcome {
            Ok(mode) => {
                info!(device = bus_id, peer, mode, "attached");
                if let Some((guest, device)) = guest {
                    guest.record_attached(device);
                }
            }
            Err(status) => {
                info!(device = bus_id, peer, status, holder, "refused");
                if let Some((guest, device)) = guest {
                    guest.record_refused(device, &status);
                }
            }
        }
    }
}

fn ending_of(end: &End) -> Ending {
    match end {
        End::Finished | End::Closed => Ending::Detached,
        End::Lost(_) => Ending::Lost,
        End::Bug => Ending::Bug,
        End::Gone => Ending::Gone,
        End::Fault(_) => Ending::CutOff,
    }
}

fn report_end(end: &End, ending: Ending, peer: &str, device: Option<&str>) {
    let device = device.unwrap_or("none");
    match end {
        _ if ending == Ending::TakenBack => info!(device, peer, "taken back by its owner"),
        End::Finished | End::Closed => info!(device, peer, "the peer ended the connection"),
        End::Gone => warn!(device, peer, "the device was unplugged"),
        End::Lost(error) => warn!(device, peer, %error, "the link was lost; the device is offered again"),
        End::Bug => error!(device, peer, "a bug in farbus ended the connection; please report the message above"),
        End::Fault(fault) => warn!(device, peer, %fault, "the connection was cut off"),
    }
}
