//! Devices on a listening socket: the exporter's process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use farbus_io::link::{Clock, Connection, Link, Listener};
use farbus_io::trust::{Fingerprint, Protocol};
use farbus_model::{BlockDevice, BufferPool, Command, CommandError, Completions, Device, Instant, Limits};
use farbus_session::block::make_durable;
use farbus_session::native::{control as native, hello};
use farbus_session::registry::{BlockFace, BlockRefusal, ClaimedBlock, name_of};
use farbus_session::{Claimed, DeviceRecord, Ending, Exporter, Offers, OpStatus, Registry};
use tracing::{error, info, warn};

pub use crate::address::DEFAULT_PORT;
use crate::allow::Network;
use crate::crowd::{self, Complaint, Place, Visitor};
pub use crate::device_status::{DeviceStatus, PastStatus, UserStatus, WaitingStatus};
use crate::door::{Door, Household};
use crate::engine::{End, Engine, Mailbox};
use crate::greeting;
use crate::guest::Guest;
use crate::listening::Listening;
use crate::meters::{Calls, Meters};
use crate::questions::{Answer, Lines, Question};
use crate::sessions::{Face, House, Opened, Sessions, Tenant};
use crate::trust::Trust;

/// An engine's stack: its frames are shallow, its buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;
/// How long an owner waits for a device's answer to a command.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(5);
/// How long whoever connects may take to say the first byte.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long sessions may take to make their devices durable when sharing ends.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a paired host that may ask may say nothing.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(10);
/// How soon a session ends whose host was unpaired, or whose device was forbidden.
const RECHECK_EVERY: Duration = Duration::from_secs(1);

/// Devices that are being shared. Dropping it ends all sessions.
pub struct Share {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Mutex<Registry>,
    sessions: Mutex<BTreeMap<u64, Arc<Session>>>,
    /// Connections so far, of all listeners.
    session_numbers: AtomicU64,
    session_ended: Condvar,
    /// Sessions of farbus's own protocol.
    native: Sessions,
    crowd: Complaint,
    listeners: Mutex<Vec<Arc<Listening>>>,
    is_stopping: AtomicBool,
    clock: Clock,
    limits: Limits,
    trace: Mutex<Option<File>>,
}

/// One connection.
struct Session {
    /// The link that it is, and ends with; none if it belongs to a session, or is one, whose thread is told.
    link: Mutex<Option<Link>>,
    is_told: AtomicBool,
    /// Its peer, as people write it.
    peer: String,
    /// The paired host that it is, on an encrypted link.
    guest: Option<Guest>,
    visitor: Visitor,
    place: Place,
    mailbox: Mailbox,
    meters: Meters,
    bus_id: Mutex<Option<String>>,
    is_taken_back: AtomicBool,
    /// A session's: how it ended.
    ending: Mutex<Option<Ending>>,
}

impl Session {
    fn end(&self) {
        self.is_told.store(true, Ordering::Release);
        match &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(link) => link.shut_down(),
            None => self.mailbox.wake(),
        }
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

    fn end(&self) -> Option<native::End> {
        self.is_told.load(Ordering::Acquire).then(|| {
            let message = match self.is_taken_back.load(Ordering::Acquire) {
                true => "taken back by its owner",
                false => "not shared with you any more",
            };
            native::End { cause: native::Cause::Refused, message: message.to_owned() }
        })
    }

    fn note_ending(&self, ending: Ending) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
    }
}

/// Why a device cannot be shared or commanded.
#[derive(Debug)]
pub enum ShareError {
    /// There are as many devices as a list may have.
    BusFull,
    /// No device of that name.
    NoDevice(String),
    /// Nobody uses it.
    NotInUse(String),
    /// The device's own refusal.
    Command(CommandError),
    /// The session that holds it does not answer.
    Silent,
    /// The system has no more threads or descriptors.
    System(io::Error),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::BusFull => write!(f, "{} devices are shared already", farbus_session::registry::DEVICES_MAX),
            ShareError::NoDevice(name) => write!(f, "no device called '{name}' is shared here"),
            ShareError::NotInUse(name) => write!(f, "nobody uses '{name}'"),
            ShareError::Command(error) => error.fmt(f),
            ShareError::Silent => f.write_str("the session that uses the device does not answer"),
            ShareError::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ShareError {}

impl Default for Share {
    fn default() -> Self {
        Self::new(Limits::DEFAULT)
    }
}

impl Share {
    /// Nothing is shared yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            shared: Arc::new(Shared {
                registry: Mutex::default(),
                sessions: Mutex::default(),
                session_numbers: AtomicU64::new(0),
                session_ended: Condvar::new(),
                native: Sessions::default(),
                crowd: Complaint::default(),
                listeners: Mutex::default(),
                is_stopping: AtomicBool::new(false),
                clock: Clock::start(),
                limits,
                trace: Mutex::default(),
            }),
        }
    }

    /// Offers a device under a name that begins with `kind`; returns its record.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add(&self, kind: &str, device: impl Device + 'static) -> Result<DeviceRecord, ShareError> {
        let mut registry = self.shared.registry();
        registry.add(kind, Box::new(device)).cloned().ok_or(ShareError::BusFull)
    }

    /// The same of a device that is a block device, too: paired hosts see it as one, all others as the USB disk `device`.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add_block(&self, kind: &str, device: Box<dyn Device>, block: BlockFace) -> Result<DeviceRecord, ShareError> {
        let mut registry = self.shared.registry();
        registry.add_block(kind, device, block).cloned().ok_or(ShareError::BusFull)
    }

    /// Takes a device off the list that is gone, by its bus id on the wire. One that somebody uses goes with its session, which
    /// notices by itself. Says whether it is off the list.
    pub fn remove_gone(&self, bus_id: &str) -> bool {
        let mut registry = self.shared.registry();
        registry.remove_idle(bus_id);
        registry.find(bus_id).is_none()
    }

    /// Serves USB/IP at `address` from now on; says where (port 0 takes a free one).
    ///
    /// # Errors
    /// What the system says of the address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.listen_on(Listener::bind(address)?, None)
    }

    /// Serves USB/IP on a socket that listens already, to those who are `allowed` (`None`: everybody); says where.
    ///
    /// # Errors
    /// What the system says of the socket, or of a thread more.
    pub fn listen_on(&self, listener: Listener, allowed: Option<Vec<Network>>) -> io::Result<SocketAddr> {
        listener.never_wait()?;
        let listening = Arc::new(Listening::new(listener, allowed)?);
        let address = listening.address();
        let (shared, for_thread) = (Arc::clone(&self.shared), Arc::clone(&listening));
        thread::Builder::new()
            .name("listen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.accept_all(&for_thread))?;
        self.shared.listeners.lock().expect("no listener panics").push(listening);
        Ok(address)
    }

    /// Who may connect to `address` from now on; connections that are there stay. `None`: everybody.
    pub fn allow(&self, address: SocketAddr, allowed: Option<Vec<Network>>) {
        let listeners = self.shared.listeners.lock().expect("no listener panics");
        for listening in listeners.iter().filter(|listening| listening.address() == address) {
            listening.allow(allowed.clone());
        }
    }

    /// Listens at `address` no more; connections that came through it stay.
    pub fn close(&self, address: SocketAddr) {
        let mut listeners = self.shared.listeners.lock().expect("no listener panics");
        listeners.extract_if(.., |listening| listening.address() == address).for_each(|listening| listening.close());
    }

    /// Takes a device (by name or bus id) off the lists; a session that uses it is ended first.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn remove(&self, device: &str) -> Result<(), ShareError> {
        self.shared.remove(device)
    }

    /// Takes a device back from whoever uses it: the session is ended, the device is reset, made durable and offered
    /// again, but to its user's host only after `keep_out`. `remark` goes into the history. Says whom it was taken from.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::NotInUse`].
    pub fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
        self.shared.take_back(device, remark, keep_out)
    }

    /// The holder whose connection comes from `who` says what it needs its device for. Says whether there is one.
    pub fn explain(&self, who: &str, reason: &str) -> bool {
        self.shared.registry().explain(who, reason)
    }

    /// Serves paired hosts at `address` from now on, each what it is allowed; says where (port 0 takes a free one).
    ///
    /// # Errors
    /// What the system says of the address.
    pub fn listen_secure(&self, address: SocketAddr, trust: Trust) -> io::Result<SocketAddr> {
        let listener = Listener::bind(address)?;
        let address = listener.address()?;
        self.listen_secure_on(listener, trust)?;
        Ok(address)
    }

    /// Serves paired hosts on a socket that listens already.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn listen_secure_on(&self, listener: Listener, trust: Trust) -> io::Result<()> {
        let listening = Arc::new(Listening::new(listener, None)?);
        let for_shutdown = Arc::clone(&listening);
        let spawn = |name: &str| thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let (for_recheck, shared) = (trust.clone(), Arc::clone(&self.shared));
        spawn("recheck").spawn(move || shared.recheck(&for_recheck))?;
        let door = Arc::new(Door::new(trust, Arc::clone(&self.shared)));
        spawn("listen-secure").spawn(move || door.accept_all(listening.listener(), || listening.is_closed()))?;
        self.shared.listeners.lock().expect("no listener panics").push(for_shutdown);
        Ok(())
    }

    /// Writes each session's last taps to `file` when it ends, a line of JSON each: the same key
    /// (connection, endpoint, sequence number) at every hand-off, so that latency by stage falls out.
    pub fn trace_to(&self, file: File) {
        *self.shared.trace.lock().expect("no session panics while it writes") = Some(file);
    }

    /// Every shared device and its user.
    pub fn status(&self) -> Vec<DeviceStatus> {
        self.shared.status()
    }

    /// Asks something of a device by name or bus id, in use or not.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn command(&self, device: &str, command: Command) -> Result<(), ShareError> {
        self.shared.command(device, command)
    }

    /// Ends all sessions and makes their devices durable. Returns whether all did in time.
    pub fn stop(&self) -> bool {
        self.shared.stop()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no claim panics")
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Session>>> {
        self.sessions.lock().expect("no session panics while it is counted")
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn accept_all(self: &Arc<Self>, listening: &Listening) {
        while !self.is_stopping() && !listening.is_closed() {
            match listening.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(connection) if !listening.admits(connection.from.ip()) => {
                    warn!(from = %connection.from, at = %listening.address(), "not on the list of those allowed here");
                }
                Ok(connection) => {
                    let from = connection.from;
                    if let Err(error) = self.begin_session(connection)
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

    fn begin_session(self: &Arc<Self>, connection: Connection) -> io::Result<()> {
        let link = connection.link.try_clone()?;
        let (of_its_own, peer) = (Some(connection.link), link.peer().to_owned());
        let (number, session) = self.enter_session(of_its_own, peer, None, Visitor::from(connection.from.ip()))?;
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
    fn enter_session(
        &self,
        link: Option<Link>,
        peer: String,
        guest: Option<Guest>,
        visitor: Visitor,
    ) -> io::Result<(u64, Arc<Session>)> {
        let mut sessions = self.sessions();
        let present = sessions.values().map(|session| (session.visitor, session.place));
        let place = crowd::place(visitor, present).map_err(io::Error::other)?;
        let session = Session {
            link: Mutex::new(link),
            is_told: AtomicBool::new(false),
            peer,
            guest,
            visitor,
            place,
            mailbox: Mailbox::new()?,
            meters: Meters::default(),
            bus_id: Mutex::default(),
            is_taken_back: AtomicBool::new(false),
            ending: Mutex::default(),
        };
        let (number, session) = (self.session_numbers.fetch_add(1, Ordering::Relaxed), Arc::new(session));
        sessions.insert(number, Arc::clone(&session));
        Ok((number, session))
    }

    fn end_session(&self, number: u64) {
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
    fn device_name(&self, bus_id: &str) -> Option<String> {
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
                    devices.retain(|device| allowed.allows(&device.name));
                    Answer::Devices(devices)
                }
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

    /// A guest says what it needs the device for that one of its sessions holds. Says whether one does.
    fn explain(&self, guest: &Guest, device: &str, reason: &str) -> bool {
        let Ok(bus_id) = self.bus_id_of(device) else { return false };
        let mut holders = self.holders_of(&bus_id).into_iter();
        let is_its_own =
            |session: &Arc<Session>| session.guest.as_ref().is_some_and(|holder| holder.is_same_host(guest));
        holders.find(is_its_own).is_some_and(|session| self.registry().explain(&session.peer, reason))
    }

    /// Ends sessions of hosts that are not paired any more, or hold what they may not: whoever changed the list, and how.
    fn recheck(&self, trust: &Trust) {
        let mut last = trust.peers().ok();
        while !self.is_stopping() {
            thread::sleep(RECHECK_EVERY);
            let now = trust.peers().ok();
            if now == last {
                continue;
            }
            last = now;
            // Not under the lock: each is looked up in files.
            let sessions: Vec<_> = self.sessions().values().cloned().collect();
            for session in sessions {
                let Some(guest) = &session.guest else { continue };
                let held = session.bus_id.lock().ok().and_then(|held| held.clone());
                let device = held.and_then(|bus_id| self.device_name(&bus_id));
                if !guest.may_stay(device.as_deref()) {
                    warn!(peer = session.peer, device, "cut off: its permission was taken back");
                    session.end();
                }
            }
        }
    }

    fn status(&self) -> Vec<DeviceStatus> {
        let sessions = self.sessions();
        let meters_of = |bus_id: &str| {
            let mut holders = sessions.values();
            let holder = holders.find(|s| s.bus_id.lock().is_ok_and(|held| held.as_deref() == Some(bus_id)));
            holder.map(|session| session.meters.read())
        };
        let now = self.clock.now();
        let registry = self.registry();
        let entries = registry.entries();
        entries.map(|entry| DeviceStatus::of(&entry, meters_of(&entry.record.bus_id), now)).collect()
    }

    fn bus_id_of(&self, device: &str) -> Result<String, ShareError> {
        let registry = self.registry();
        let bus_id = registry.find(device).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        Ok(bus_id.to_owned())
    }

    fn remove(&self, device: &str) -> Result<(), ShareError> {
        let bus_id = self.bus_id_of(device)?;
        if self.registry().retire(&bus_id) == Some(false) {
            self.end_users_of(&bus_id);
        }
        Ok(())
    }

    fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
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

    fn holders_of(&self, bus_id: &str) -> Vec<Arc<Session>> {
        let sessions = self.sessions();
        let holds = |session: &&Arc<Session>| session.bus_id.lock().is_ok_and(|held| held.as_deref() == Some(bus_id));
        sessions.values().filter(holds).cloned().collect()
    }

    fn command(&self, device: &str, command: Command) -> Result<(), ShareError> {
        let missing = || ShareError::NoDevice(device.to_owned());
        let bus_id = {
            let mut registry = self.registry();
            let bus_id = registry.find(device).ok_or_else(missing)?.to_owned();
            if let Some(idle) = registry.idle_device(&bus_id) {
                let mut done = Completions::new(BufferPool::new(0));
                return idle.command(self.clock.now(), &command, &mut done).map_err(ShareError::Command);
            }
            bus_id
        };
        let holder = self.holders_of(&bus_id).pop().ok_or(ShareError::Silent)?;
        let (answer, answered) = mpsc::sync_channel(1);
        holder.mailbox.leave(command, answer);
        let result = answered.recv_timeout(COMMAND_TIME_MAX).map_err(|_| ShareError::Silent)?;
        result.map_err(ShareError::Command)
    }

    fn stop(&self) -> bool {
        if self.is_stopping.swap(true, Ordering::AcqRel) {
            return true;
        }
        for listening in self.listeners.lock().expect("no listener panics").drain(..) {
            listening.close();
        }
        let mut sessions = self.sessions();
        for session in sessions.values() {
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

impl House for Shared {
    type Caller = Session;

    fn key(caller: &Session) -> Option<Fingerprint> {
        caller.guest.as_ref().map(Guest::fingerprint)
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(self: &Arc<Self>, caller: &Session, peer: &str, open: &native::Open) -> Result<Opened, native::End> {
        let gone = || refusal(native::Cause::Gone, format!("no device called '{}' is shared here", open.name));
        let bus_id = self.bus_id_of(&open.name).map_err(|_| gone())?;
        let (number, session) = self
            .enter_session(None, peer.to_owned(), caller.guest.clone(), caller.visitor)
            .map_err(|error| refusal(native::Cause::Refused, error.to_string()))?;
        let face = match open.class {
            native::Class::USB => self.open_usb(number, &session, &bus_id, open.mode),
            native::Class::BLOCK => self.open_block(number, &session, &bus_id, open.mode),
            _ => Err(refusal(native::Cause::Class, format!("'{}' is nothing of that kind", open.name))),
        };
        match face {
            Ok(face) => {
                if !open.reason.is_empty() {
                    self.registry().explain(peer, &open.reason);
                }
                Ok(Opened { face, tenant: session })
            }
            Err(end) => {
                self.end_session(number);
                Err(if end.cause == native::Cause::Gone { gone() } else { end })
            }
        }
    }
}

fn refusal(cause: native::Cause, message: String) -> native::End {
    native::End { cause, message }
}

impl Shared {
    fn open_usb(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        mode: native::Mode,
    ) -> Result<Face, native::End> {
        if mode != native::Mode::Exclusive {
            return Err(refusal(
                native::Cause::Refused,
                "a USB device has one user at a time, who may change it".into(),
            ));
        }
        let (record, device) = Offer { shared: self, session }.claim(bus_id).map_err(|status| match status {
            OpStatus::Busy => self.busy(bus_id),
            OpStatus::NoDevice => refusal(native::Cause::Gone, status.to_string()),
            OpStatus::DeviceError => refusal(native::Cause::Device, status.to_string()),
            _ => refusal(native::Cause::Refused, status.to_string()),
        })?;
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let give_back = move |device: Box<dyn Device>, now| {
            let is_gone = device.is_gone();
            shared.take_in(number, &tenant, (!is_gone).then_some(device), is_gone, now);
        };
        Ok(Face::Usb { record, device, give_back: Box::new(give_back) })
    }

    fn open_block(
        self: &Arc<Self>,
        number: u64,
        session: &Arc<Session>,
        bus_id: &str,
        mode: native::Mode,
    ) -> Result<Face, native::End> {
        let ClaimedBlock { export, mode, .. } = Offer { shared: self, session }.claim_block(bus_id, mode)?;
        let device = export.open(mode).map_err(|what| {
            let now = self.clock.now();
            self.registry().release(bus_id, &session.peer, None, Ending::Detached, now);
            refusal(native::Cause::Device, what)
        })?;
        let (shared, tenant) = (Arc::clone(self), Arc::clone(session));
        let give_back = move |device: Box<dyn BlockDevice>, now| {
            let is_gone = device.is_gone();
            if let Err(error) = make_durable(device) {
                warn!(peer = tenant.peer, %error, "the last writes may be lost");
            }
            shared.take_in(number, &tenant, None, is_gone, now);
        };
        Ok(Face::Block { device, durability: export.durability(), give_back: Box::new(give_back) })
    }

    /// Who has a device that somebody else wants.
    fn busy(&self, bus_id: &str) -> native::End {
        let registry = self.registry();
        let holder = registry.entries().find(|entry| entry.record.bus_id == bus_id).and_then(|entry| entry.holder);
        let message = match holder {
            Some(holder) => {
                let since_s = (self.clock.now() - holder.since).as_secs();
                format!("in use by {} ({}) since {since_s} s", holder.who, holder.mode.as_str())
            }
            None => "somebody who waits comes first".to_owned(),
        };
        refusal(native::Cause::Busy, message)
    }

    /// A session gives a device back, or what it had of it.
    fn take_in(&self, number: u64, session: &Session, device: Option<Box<dyn Device>>, is_gone: bool, now: Instant) {
        let bus_id = session.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take();
        let noted = *session.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = match (session.is_taken_back.load(Ordering::Acquire), is_gone) {
            (true, _) => Ending::TakenBack,
            (_, true) => Ending::Gone,
            _ => noted.unwrap_or(Ending::Detached),
        };
        if let Some(bus_id) = bus_id {
            info!(device = bus_id, peer = session.peer, ending = ending.as_str(), "detached");
            if let Some(guest) = &session.guest {
                guest.record_detached(self.device_name(&bus_id).as_ref().unwrap_or(&bus_id));
            }
            if is_gone {
                self.registry().withdraw(&bus_id);
            } else {
                self.registry().release(&bus_id, &session.peer, device, ending, now);
            }
        }
        self.end_session(number);
    }
}

/// What a connection is offered: the registry, on behalf of its peer.
struct Offer<'a> {
    shared: &'a Shared,
    session: &'a Session,
}

impl Offers<Box<dyn Device>> for Offer<'_> {
    fn list(&mut self) -> Vec<DeviceRecord> {
        let mut records = self.shared.registry().records(self.shared.clock.now());
        if let Some(guest) = &self.session.guest {
            let allowed = guest.allowed();
            records.retain(|record| allowed.allows(name_of(record)));
        }
        records
    }

    fn claim(&mut self, bus_id: &str) -> Result<(DeviceRecord, Box<dyn Device>), OpStatus> {
        let device = self.admit(bus_id)?;
        let (claimed, holder) = self.claim_for(bus_id, |registry, peer, now| registry.claim(bus_id, peer, now));
        self.note(bus_id, device.as_deref(), holder, claimed.as_ref().map(|_| "").map_err(OpStatus::to_string));
        claimed.map(|Claimed { record, device }| (record, device))
    }
}

impl Offer<'_> {
    /// Takes a block device.
    fn claim_block(&self, bus_id: &str, asked: native::Mode) -> Result<ClaimedBlock, native::End> {
        let device = self.admit(bus_id).map_err(|status| match status {
            OpStatus::NoDevice => refusal(native::Cause::Gone, status.to_string()),
            _ => refusal(native::Cause::Refused, status.to_string()),
        })?;
        let (claimed, holder) =
            self.claim_for(bus_id, |registry, peer, now| registry.claim_block(bus_id, peer, asked, now));
        // Its importer asks for the USB device next: no word of it.
        if !matches!(claimed, Err(BlockRefusal::Class)) {
            let outcome = claimed.as_ref().map(|claimed| claimed.mode.as_str()).map_err(|_| OpStatus::Busy.to_string());
            self.note(bus_id, device.as_deref(), holder, outcome);
        }
        claimed.map_err(|refused| match refused {
            BlockRefusal::NoDevice => refusal(native::Cause::Gone, OpStatus::NoDevice.to_string()),
            BlockRefusal::Class => refusal(native::Cause::Class, "it is a USB device and no block device".to_owned()),
            BlockRefusal::Busy => self.shared.busy(bus_id),
        })
    }

    /// Whether the peer may ask for this device at all; for a paired host, what it is called.
    fn admit(&self, bus_id: &str) -> Result<Option<String>, OpStatus> {
        if self.shared.is_stopping() {
            return Err(OpStatus::NotAvailable);
        }
        let peer = &self.session.peer;
        let guest = self.session.guest.as_ref().zip(self.shared.device_name(bus_id));
        if guest.as_ref().is_some_and(|(guest, device)| !guest.may_claim(device)) {
            return Err(OpStatus::NoDevice);
        }
        if self.session.place == Place::Surplus {
            warn!(device = bus_id, peer, "refused: {}", crowd::REFUSAL);
            if let Some((guest, device)) = guest {
                guest.record_refused(&device, crowd::REFUSAL);
            }
            return Err(OpStatus::NotAvailable);
        }
        Ok(guest.map(|(_, device)| device))
    }

    /// Claims a device, and says who has it if it cannot be had.
    fn claim_for<T, E>(
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
    fn note(&self, bus_id: &str, device: Option<&str>, holder: String, outcome: Result<&str, String>) {
        let (peer, guest) = (&self.session.peer, self.session.guest.as_ref().zip(device));
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
