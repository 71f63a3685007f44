//! The exporter's sessions: each has a thread, which keeps the session while it has no link.
//!
//! The hello on a new link says which session the link is for. A new session begins on the thread that accepted the
//! link; a link for an existing session goes to that session's thread.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, EpollSet, Link, LinkEnd, ThreadWaker, wait_exactly};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::saving::{PendingSaveReply, SaveDecision, SaveRequest, SaveRequester};
use farbus_model::limits::LANES_MAX;
use farbus_model::{ExportIdentity, Instant, ReadinessSource};
use farbus_session::native::control::{AttachmentEndCause, AttachmentEndNotice, OpenRequest, SuccessorOpenRequest};
use farbus_session::native::hello::{ImporterHello, SessionId, WelcomeOutcome};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{
    ExporterServices, ExporterSession, InheritedDevice, LaneLimits, RecalledDevice, ServedExport, UnservedAttachment,
    exporter,
};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{ReservationReport, ReservationTerms};
use farbus_session::{ProtocolViolation, UseEnding};
use tracing::{debug, info, warn};

use crate::common::ordered_mutex::{ALONE, OrderedGuard, OrderedMutex};
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::session::priority::{LOOK_EVERY, PrioritizedDevices};
use crate::exporter::session::provider::AttachmentLimits;
pub use crate::exporter::session::provider::{
    DeviceProvider, HandoverOutcome, OpenedAttachment, OpenedDevice, SessionHandle,
};
use crate::exporter::session::saved;
use crate::exporter::session::thread_time::SessionThread;
use crate::link::greeting;
use crate::link::link_set::{LinkSet, SILENT};

/// How long the hello and welcome of a link may take.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the greeting of a link that has no place may take.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);
/// The longest grace period. An importer may ask for a shorter one.
pub const GRACE_MAX: Duration = Duration::from_secs(120);
/// How long requests may take to complete before a handover, until those that wait without limit are taken back.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);
/// How long a session may take to come to rest before a handover: less than the process that asks waits.
const REST_TIME_MAX: Duration = Duration::from_secs(4);
/// How long a device that another process had open may take to appear here.
const TAKE_UP_TIME_MAX: Duration = Duration::from_secs(10);
/// New links that may wait for a session's thread: two for each lane.
const WAITING_LINKS_MAX: usize = 2 * LANES_MAX as usize;
/// Poll interval where no event can be waited for.
const GLANCE: Duration = Duration::from_millis(20);

/// A session of another process that is yet to continue here.
pub struct PendingSession<H: DeviceProvider> {
    caller: Arc<H::Caller>,
    inbox: Arc<SessionInbox>,
    session: ExporterSession,
    left: Vec<UnservedAttachment>,
}

/// The sessions of this exporter.
pub struct NativeSessions {
    table: OrderedMutex<BTreeMap<SessionId, Arc<SessionInbox>>, ALONE>,
    incarnation: u64,
}

/// Where other threads leave new links for a session's thread.
struct SessionInbox {
    /// The peer that may add links. `None`: any peer on a link without encryption that knows the session's id.
    owner: Option<PeerIdentity>,
    links: Mutex<Vec<(Link, ImporterHello)>>,
    wake: Arc<ThreadWaker>,
    save_requester: SaveRequester<Vec<u8>>,
}

impl SessionInbox {
    fn new(owner: Option<PeerIdentity>) -> io::Result<Arc<Self>> {
        let wake = Arc::new(ThreadWaker::new()?);
        let (links, save_requester) = (Mutex::default(), SaveRequester::new(Arc::clone(&wake)));
        Ok(Arc::new(Self { owner, links, wake, save_requester }))
    }
}

impl Default for NativeSessions {
    fn default() -> Self {
        Self { table: OrderedMutex::default(), incarnation: u64::from_le_bytes(random()) }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    farbus_io_net::trust::fill_random(&mut bytes);
    bytes
}

impl NativeSessions {
    #[track_caller]
    fn table(&self) -> OrderedGuard<'_, BTreeMap<SessionId, Arc<SessionInbox>>, ALONE> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a link of farbus's own protocol: begins a session and serves it until it ends, or passes the link to its
    /// session.
    ///
    /// # Errors
    /// The link was lost before a session had it.
    pub fn serve<H: DeviceProvider>(&self, provider: &Arc<H>, link: Link, caller: &Arc<H::Caller>) -> io::Result<()> {
        let hello = greeting::hear_hello(&link, GREETING_TIME_MAX)?;
        if hello.position.session != SessionId::NONE {
            return self.hand_over(link, hello, H::owner(caller));
        }
        let id = SessionId(random());
        let limits = LaneLimits::SPARING;
        let begun = ExporterSession::begin(&hello, id, self.incarnation, GRACE_MAX, limits);
        let (mut session, mut welcome) = match begun {
            Ok(begun) => begun,
            Err(refusal) => return greeting::welcome(&link, &refusal, GREETING_TIME_MAX),
        };
        welcome.options.hold_ms = allow(&mut session, provider);
        if !session.draw_on(H::allowance(caller)) {
            warn!(peer = link.peer(), "no session begins: its peer holds as much memory as it may");
            return greeting::welcome(
                &link,
                &exporter::refusal(&hello, self.incarnation, WelcomeOutcome::Full),
                GREETING_TIME_MAX,
            );
        }
        let inbox = SessionInbox::new(H::owner(caller))?;
        self.table().insert(id, Arc::clone(&inbox));
        let greeted = greeting::welcome(&link, &welcome, GREETING_TIME_MAX);
        let peer = link.peer().to_owned();
        let engine = NativeSessionEngine::new(provider, session, Some(link), caller, peer, &inbox);
        let served = greeted.and(engine).map(NativeSessionEngine::run);
        self.table().remove(&id);
        served
    }

    /// Answers the hello of a link that has no place: no new session begins. A link for a session that exists gets no
    /// answer: its importer tries again.
    ///
    /// # Errors
    /// The link was lost, or its peer is silent.
    pub fn refuse(&self, link: &Link) -> io::Result<()> {
        let hello = greeting::hear_hello(link, REFUSAL_TIME_MAX)?;
        if hello.position.session != SessionId::NONE {
            return Ok(());
        }
        greeting::welcome(link, &exporter::refusal(&hello, self.incarnation, WelcomeOutcome::Full), REFUSAL_TIME_MAX)
    }

    /// Asks every session to save itself for another process.
    pub fn ask_all(&self) -> Vec<PendingSaveReply<Vec<u8>>> {
        self.table().values().map(|inbox| inbox.save_requester.ask()).collect()
    }

    /// Enters a session of another process. New links for it are kept until [`NativeSessions::go_on`].
    ///
    /// # Errors
    /// The system has no more descriptors, or a session with this id exists already.
    pub fn expect<H: DeviceProvider>(
        &self,
        caller: Arc<H::Caller>,
        session: ExporterSession,
        left: Vec<UnservedAttachment>,
    ) -> io::Result<PendingSession<H>> {
        let inbox = SessionInbox::new(H::owner(&caller))?;
        match self.table().entry(session.id()) {
            Entry::Vacant(entry) => drop(entry.insert(Arc::clone(&inbox))),
            Entry::Occupied(_) => return Err(io::Error::other("two sessions have one name")),
        }
        Ok(PendingSession { caller, inbox, session, left })
    }

    /// Continues a session of another process, and serves it until it ends.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn go_on<H: DeviceProvider>(&self, provider: &Arc<H>, pending: PendingSession<H>) -> io::Result<()> {
        let PendingSession { caller, inbox, mut session, left } = pending;
        // Its importer is told with the next link.
        let _ = allow(&mut session, provider);
        // The session keeps what it held in the other process, even if its peer is beyond its limit.
        let _ = session.draw_on(H::allowance(&caller));
        let (id, peer) = (session.id(), H::identity(&caller).peer);
        let served = NativeSessionEngine::new(provider, session, None, &caller, peer, &inbox).and_then(|mut engine| {
            engine.take_up(left)?;
            engine.run();
            Ok(())
        });
        self.table().remove(&id);
        served
    }

    /// Passes a link to its session's thread. Refuses the link if the session is unknown here or belongs to another
    /// peer.
    fn hand_over(&self, link: Link, hello: ImporterHello, owner: Option<PeerIdentity>) -> io::Result<()> {
        let inbox = self.table().get(&hello.position.session).cloned();
        match inbox.filter(|inbox| inbox.owner == owner) {
            Some(inbox) => {
                let mut links = inbox.links.lock().unwrap_or_else(PoisonError::into_inner);
                if links.len() >= WAITING_LINKS_MAX {
                    return Err(io::Error::other("its session has more new links than it takes up"));
                }
                links.push((link, hello));
                drop(links);
                inbox.wake.wake();
                Ok(())
            }
            None => {
                let refusal = exporter::refusal(&hello, self.incarnation, WelcomeOutcome::Unknown);
                greeting::welcome(&link, &refusal, GREETING_TIME_MAX)
            }
        }
    }
}

/// The thread of one session.
struct NativeSessionEngine<'a, H: DeviceProvider> {
    provider: &'a Arc<H>,
    session: ExporterSession,
    link_set: LinkSet,
    /// The readiness of each device that the link set waits on.
    watched: Vec<ReadinessSource>,
    caller: &'a Arc<H::Caller>,
    peer: String,
    session_handles: SessionHandles,
    /// The devices with a reservation, and the link's priority that follows from them.
    prioritized: PrioritizedDevices,
    /// The processor time that this thread has for them.
    session_thread: SessionThread,
    inbox: &'a SessionInbox,
    clock: BoottimeClock,
    /// How many changes of identities the importer has been told.
    identity_changes: u64,
}

/// The handles of a session's attachments, by number.
#[derive(Default)]
struct SessionHandles {
    by_number: BTreeMap<u16, Arc<dyn SessionHandle>>,
    /// A new handle was added whose mailbox is not watched yet.
    has_news: bool,
}

/// Why the session's loop ended.
enum SessionLoopEnd {
    /// The importer or the owner ended the session.
    Ended,
    /// The importer did not reconnect within the grace period.
    Over,
    /// The importer broke the protocol.
    CutOff,
    /// Another process continues the session.
    HandedOver,
}

impl<'a, H: DeviceProvider> NativeSessionEngine<'a, H> {
    fn new(
        provider: &'a Arc<H>,
        session: ExporterSession,
        link: Option<Link>,
        caller: &'a Arc<H::Caller>,
        peer: String,
        inbox: &'a SessionInbox,
    ) -> io::Result<Self> {
        let clock = provider.clock();
        let mut link_set = LinkSet::shown_by(caller.links().clone())?;
        link_set.watch_silence(clock)?;
        if let Some(link) = link {
            link_set.put(0, link)?;
        }
        let (session_handles, watched) = (SessionHandles::default(), Vec::new());
        let (prioritized, identity_changes) = (PrioritizedDevices::default(), provider.identity_changes());
        let mut engine = Self {
            provider,
            session,
            link_set,
            watched,
            caller,
            peer,
            session_handles,
            prioritized,
            session_thread: SessionThread::default(),
            inbox,
            clock,
            identity_changes,
        };
        engine.watch_all()?;
        Ok(engine)
    }

    fn run(mut self) {
        // Gadgets have exact deadlines.
        wait_exactly();
        let last = loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(last)) => break last,
                Err(error) => {
                    warn!(peer = self.peer, %error, "the session cannot wait");
                    break SessionLoopEnd::Ended;
                }
            }
        };
        let now = self.clock.now();
        let ending = match last {
            SessionLoopEnd::Ended => UseEnding::Detached,
            SessionLoopEnd::Over => UseEnding::Lost,
            SessionLoopEnd::CutOff => UseEnding::CutOff,
            SessionLoopEnd::HandedOver => UseEnding::HandedOver,
        };
        for (&number, session_handle) in &self.session_handles.by_number {
            session_handle.note_ending(ending);
            if let Some(HandoverOutcome::Back(opened_device, _)) = session_handle.leave() {
                let limits = self.provider.limits().into();
                opened_device.served(number, limits, self.provider.clock(), None).finish(now);
            }
        }
        let is_used = self.session.attachments() > 0;
        match last {
            SessionLoopEnd::Over if !is_used => debug!(peer = self.peer, "the session ended; it had no device"),
            SessionLoopEnd::Over => warn!(peer = self.peer, "nobody came back in time; its devices are offered again"),
            SessionLoopEnd::Ended | SessionLoopEnd::CutOff => debug!(peer = self.peer, "the session ended"),
            SessionLoopEnd::HandedOver => debug!(peer = self.peer, "the session goes on in another process"),
        }
        match last {
            SessionLoopEnd::HandedOver => self.session.leave(now),
            SessionLoopEnd::Ended | SessionLoopEnd::Over | SessionLoopEnd::CutOff => self.session.finish(now),
        }
        self.session_thread.end(|time| self.provider.schedule(time));
        self.link_set.cut_all();
    }

    /// Advances the protocol, sends what is ready, and waits for the next event.
    fn turn(&mut self) -> io::Result<Option<SessionLoopEnd>> {
        self.take_links()?;
        let now = self.clock.now();
        self.session_thread.note_turn(now, self.session.measures_path());
        if let Some(end) = self.caller.end().filter(|_| self.session.may_close(now)) {
            for number in self.session_handles.by_number.keys().filter(|_| !self.caller.is_replaced()) {
                self.session.close(now, *number, &end);
            }
            self.flush();
            return Ok(Some(SessionLoopEnd::Ended));
        }
        if let Some(asker) = self.inbox.save_requester.requested() {
            return self.part(asker);
        }
        let before = self.session.attachments();
        self.carry_out_orders();
        if self.prioritized.has_news {
            // Data that waits in the queue must go out at the current pace.
            self.set_link_priority(self.clock.now());
        }
        if !self.receive() {
            return Ok(Some(SessionLoopEnd::CutOff));
        }
        let now = self.clock.now();
        for number in self.link_set.silent(now, self.session.lanes_mut(), false)? {
            self.lose(number, LinkEnd::Lost, SILENT);
        }
        self.session.handle_ready(now);
        if std::mem::take(&mut self.session_handles.has_news) || self.session.attachments() != before {
            self.prioritized.note_news();
            let session = &self.session;
            self.session_handles.by_number.retain(|&number, _| session.is_attached(number));
            self.watch_all()?;
        }
        self.flush();
        while self.session.has_waiting_work() {
            if let Err(reject) = self.advance() {
                warn!(peer = self.peer, %reject, "the session was cut off");
                return Ok(Some(SessionLoopEnd::CutOff));
            }
            self.flush();
        }
        let now = self.clock.now();
        self.set_link_priority(now);
        if self.session.is_ended() || (!self.session.is_linked() && self.session.is_needed_by_nobody()) {
            return Ok(Some(SessionLoopEnd::Ended));
        }
        if self.session.is_over(now) {
            return Ok(Some(SessionLoopEnd::Over));
        }
        if !self.watches_devices() {
            self.watch_all()?;
        }
        let send_at = self.link_set.poll_timeout();
        let due = [self.session.poll_timeout(), self.prioritized.poll_timeout(), send_at].into_iter().flatten().min();
        let span = due.map(|at| at - now);
        let only_talk = send_at.is_none() && self.session.only_talks();
        self.link_set.wait(self.session.lane_mut(), span, only_talk).map(|()| None)
    }

    /// Sets the link's priority from the reservations of the session's devices, and reports the link's progress. Does
    /// nothing if no device has a reservation.
    fn set_link_priority(&mut self, now: Instant) {
        if std::mem::take(&mut self.prioritized.has_news) {
            self.settle_reservations();
            if self.prioritized.has_changed()
                && let Some(link) = self.link_set.link()
            {
                link.priority(self.prioritized.priority());
            }
        }
        if self.prioritized.poll_timeout().is_some_and(|at| at <= now) {
            self.prioritized.next_at = Some(now + LOOK_EVERY);
            let progress = self.link_set.link().and_then(Link::progress);
            for (open, _) in &self.prioritized.devices {
                progress.into_iter().for_each(|progress| self.provider.note_progress(open, progress));
            }
            self.note_needs();
        }
    }

    /// Has the ledger follow what this thread takes.
    fn note_needs(&mut self) {
        let needs = self.session_thread.needs();
        if !needs.is_empty() || self.session_thread.has_overrun() {
            needs.iter().for_each(|(name, needed_ns)| self.provider.note_need(name, *needed_ns));
            self.settle_reservations();
        }
    }

    /// Reads the reservations of the session's devices, and gives this thread the processor time that they have.
    fn settle_reservations(&mut self) {
        let provider = self.provider;
        let opened = self.session.opened();
        let all: Vec<_> = opened.map(|(number, open)| (number, open.clone(), provider.reserved(open))).collect();
        let named = all.iter().map(|(_, open, reserved)| (open.name.as_str(), *reserved));
        if self.session_thread.set(named, |time| provider.schedule(time)) {
            let reserved = all.iter().filter_map(|(number, _, reserved)| Some((number, (*reserved)?)));
            for (&number, reserved) in reserved.filter(|(_, reserved)| reserved.wants_thread) {
                self.session.say_report(number, self.session_thread.in_report(reserved.report, Some(&reserved)));
            }
        }
        let reserved = all.into_iter().filter_map(|(_, open, reserved)| Some((open, reserved?.report)));
        self.prioritized.devices = reserved.collect();
    }

    /// Saves the session for another process: stops receiving, completes or takes back the requests, writes the
    /// snapshot.
    fn part(&mut self, asker: SaveRequest<Vec<u8>>) -> io::Result<Option<SessionLoopEnd>> {
        let (provider, owner) = (self.provider, H::identity(self.caller));
        self.carry_out_orders();
        let now = self.clock.now();
        let mut opening = SessionDeviceOpener {
            provider,
            caller: &**self.caller,
            peer: &self.peer,
            session_handles: &mut self.session_handles,
            session_thread: &mut self.session_thread,
        };
        self.session.recall(now, &mut opening);
        let verdict = match self.come_to_rest()? {
            // The asker gets no answer, and gives up.
            false => SaveDecision::Stay,
            true => {
                let now = self.clock.now();
                let reservations = provider.reservations();
                asker.part(saved::save(&owner, &mut self.session, now, &reservations, |_, name| provider.name_of(name)))
            }
        };
        if verdict == SaveDecision::Go {
            return Ok(Some(SessionLoopEnd::HandedOver));
        }
        self.session.go_on(self.clock.now());
        Ok(None)
    }

    /// Waits for the session to come to rest. Returns whether it did in time.
    fn come_to_rest(&mut self) -> io::Result<bool> {
        let devices = EpollSet::new()?;
        for readiness in self.session.readiness() {
            devices.watch_device(readiness)?;
        }
        let began = self.clock.now();
        let mut is_asked = false;
        loop {
            let now = self.clock.now();
            self.session.handle_ready(now);
            if self.session.is_at_rest() || now >= began + REST_TIME_MAX {
                return Ok(self.session.is_at_rest());
            }
            if !is_asked && now >= began + QUIET_TIME_MAX {
                is_asked = true;
                self.session.come_to_rest(now);
                continue;
            }
            let span = self.session.poll_timeout().map_or(GLANCE, |at| at - now);
            devices.wait(Some(span.min(GLANCE)))?;
        }
    }

    /// Opens the devices that another process had open, waiting for each to be shared here.
    fn take_up(&mut self, all: Vec<UnservedAttachment>) -> io::Result<()> {
        self.prioritized.note_news();
        let until = self.clock.now() + TAKE_UP_TIME_MAX;
        for left in all {
            let opened = loop {
                match self.provider.reopen(self.caller, &left) {
                    Err(end)
                        if end.cause == AttachmentEndCause::Gone
                            && self.clock.now() < until
                            && self.caller.end().is_none() =>
                    {
                        thread::sleep(GLANCE);
                    }
                    result => break result,
                }
            };
            let (number, now) = (left.number, self.clock.now());
            let served = opened.and_then(|OpenedAttachment { opened_device, session_handle, .. }| {
                let limits = AttachmentLimits::of(&**self.provider, &*session_handle);
                let served = opened_device.serve_again(self.clock, limits, &left, session_handle.meters());
                self.session_handles.by_number.insert(number, session_handle);
                served.map_err(|reject| AttachmentEndNotice {
                    cause: AttachmentEndCause::Device,
                    message: format!("it cannot go on: {reject}"),
                })
            });
            self.provider.settle(&left);
            match served {
                Ok(served) => {
                    info!(device = left.open.name, peer = self.peer, "goes on");
                    self.session.serve(now, left, served);
                }
                Err(end) => {
                    warn!(device = left.open.name, peer = self.peer, why = end.message, "does not go on");
                    self.session.give_up(number, &end);
                }
            }
        }
        self.show_again(until);
        self.tell_identities();
        self.watch_all()
    }

    fn tell_identities(&mut self) {
        let mut opening = SessionDeviceOpener {
            provider: self.provider,
            caller: &**self.caller,
            peer: &self.peer,
            session_handles: &mut self.session_handles,
            session_thread: &mut self.session_thread,
        };
        self.session.tell_identities(&mut opening);
    }

    /// Opens again what successors were shown in another process, waiting for the devices to be shared here.
    fn show_again(&mut self, until: Instant) {
        loop {
            let now = self.clock.now();
            let mut opening = SessionDeviceOpener {
                provider: self.provider,
                caller: &**self.caller,
                peer: &self.peer,
                session_handles: &mut self.session_handles,
                session_thread: &mut self.session_thread,
            };
            if self.session.show_again(now, &mut opening) {
                return;
            }
            if now >= until || self.caller.end().is_some() {
                let message = "no such device is shared here any more".to_owned();
                return self
                    .session
                    .give_up_successors(now, &AttachmentEndNotice { cause: AttachmentEndCause::Gone, message });
            }
            thread::sleep(GLANCE);
        }
    }

    fn watch_all(&mut self) -> io::Result<()> {
        self.link_set.watch_anew()?;
        self.link_set.watch(&self.inbox.wake)?;
        self.link_set.watch(self.caller.mailbox())?;
        for session_handle in self.session_handles.by_number.values() {
            self.link_set.watch(session_handle.mailbox())?;
        }
        self.watched.clear();
        self.watched.extend(self.session.readiness().cloned());
        self.watched.iter().try_for_each(|readiness| self.link_set.watch_device(readiness))
    }

    /// Whether each device is still watched at its current readiness, which changes when a device is reset.
    fn watches_devices(&self) -> bool {
        let mut watched = self.watched.iter();
        self.session.readiness().all(|now| watched.next().is_some_and(|then| then.is(now))) && watched.next().is_none()
    }

    /// Takes the links that other threads left. The latest one replaces the link of its lane.
    fn take_links(&mut self) -> io::Result<()> {
        self.inbox.wake.clear();
        let links = std::mem::take(&mut *self.inbox.links.lock().unwrap_or_else(PoisonError::into_inner));
        for (link, hello) in links {
            let welcome = self.session.resume(&hello);
            let number = welcome.position.lane;
            let is_ours = welcome.outcome == WelcomeOutcome::Resumed;
            if is_ours {
                // The old link is lost, even if no error has shown it yet.
                self.link_set.cut(number);
                self.tell_resumed(number, hello.position.link);
            }
            match greeting::welcome(&link, &welcome, GREETING_TIME_MAX) {
                Ok(()) if is_ours => self.use_link(number, link)?,
                Err(error) if is_ours => self.lose_to(number, &error),
                Ok(()) => {}
                Err(error) => debug!(peer = self.peer, %error, "a link that was refused ended in its greeting"),
            }
        }
        Ok(())
    }

    fn tell_resumed(&self, number: u16, link: u64) {
        if number != 0 {
            return debug!(peer = self.peer, lane = number, "the session has a further link");
        }
        info!(peer = self.peer, link, "the session goes on over a new link");
        publish(Event::new(EventKind::LinkBack).host(self.peer.as_str()));
    }

    fn use_link(&mut self, number: u16, link: Link) -> io::Result<()> {
        self.link_set.put(number, link)?;
        if number == 0 {
            self.prioritized.note_link();
        }
        Ok(())
    }

    /// Drops a lane's link after this error.
    fn lose_to(&mut self, number: u16, error: &io::Error) {
        self.lose(number, LinkEnd::of(error), &error.to_string());
    }

    /// Drops a lane's link. The importer replaces it within the time that it chose. Only the end of the first lane's
    /// link says whether the importer closed its session.
    fn lose(&mut self, number: u16, end: LinkEnd, why: &str) {
        let now = self.clock.now();
        self.link_set.cut(number);
        match end {
            LinkEnd::Closed if number == 0 => self.session.handle_closed(now),
            _ => self.session.handle_lost(number, now),
        }
        if number != 0 {
            return debug!(peer = self.peer, lane = number, why, "a further link was lost");
        }
        if !self.session.is_ended() && self.session.attachments() > 0 {
            warn!(peer = self.peer, end = end.as_str(), why, "the link was lost; its session waits for another");
            publish(Event::new(EventKind::LinkLost).host(self.peer.as_str()).how(end.as_str()).why(why));
        }
    }

    /// Receives on all lanes. Returns whether the importer kept to the protocol.
    fn receive(&mut self) -> bool {
        self.link_set.lanes().all(|number| self.receive_on(number))
    }

    fn receive_on(&mut self, number: u16) -> bool {
        let Some(lane) = self.session.lanes_mut().get_mut(number) else { return true };
        match self.link_set.receive(number, lane) {
            Ok(None) => {}
            Ok(Some(0)) => self.lose(number, LinkEnd::Closed, "the peer closed it"),
            Ok(Some(_)) => {
                if let Err(reject) = self.advance() {
                    warn!(peer = self.peer, lane = number, %reject, "the session was cut off");
                    return false;
                }
            }
            Err(error) => self.lose_to(number, &error),
        }
        true
    }

    fn advance(&mut self) -> Result<(), ProtocolViolation> {
        loop {
            let (now, provider) = (self.clock.now(), self.provider);
            let mut opening = SessionDeviceOpener {
                provider,
                caller: &**self.caller,
                peer: &self.peer,
                session_handles: &mut self.session_handles,
                session_thread: &mut self.session_thread,
            };
            let has_more = self.session.advance(now, &mut opening)?;
            if let Some((number, reject)) = self.session.take_cut_off() {
                warn!(peer = self.peer, number, %reject, "a device was cut off; the others of its session go on");
            }
            if !has_more {
                return Ok(());
            }
            if !self.link_set.is_blocked() {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        for number in self.link_set.lanes() {
            let Some(lane) = self.session.lanes_mut().get_mut(number) else { continue };
            if let Err(error) = self.link_set.send(number, lane, self.clock) {
                self.lose_to(number, &error);
            }
        }
    }

    fn carry_out_orders(&mut self) {
        self.caller.mailbox().clear();
        let now = self.clock.now();
        if self.session.has_successors() {
            let mut opening = SessionDeviceOpener {
                provider: self.provider,
                caller: &**self.caller,
                peer: &self.peer,
                session_handles: &mut self.session_handles,
                session_thread: &mut self.session_thread,
            };
            self.session.look_for_handed_over(now, &mut opening);
        }
        let changes = self.provider.identity_changes();
        if std::mem::replace(&mut self.identity_changes, changes) != changes {
            self.tell_identities();
        }
        let may_close = self.session.may_close(self.clock.now());
        let mut ended = Vec::new();
        for (&number, session_handle) in &self.session_handles.by_number {
            let session = &mut self.session;
            match session_handle.take_handover_outcome() {
                None => {}
                Some(HandoverOutcome::Over(end)) => session.let_go(number, &end),
                Some(HandoverOutcome::Back(opened_device, lease)) => {
                    let limits = AttachmentLimits::of(&**self.provider, &**session_handle);
                    session.take_back(
                        now,
                        number,
                        lease,
                        opened_device.served(number, limits, self.provider.clock(), session_handle.meters()),
                    );
                }
            }
            if let Some(report) = session_handle.take_reserved() {
                let open = session.opened().find(|(opened, _)| *opened == number).map(|(_, open)| open);
                let reserved = open.and_then(|open| self.provider.reserved(open));
                session.say_report(number, self.session_thread.in_report(report, reserved.as_ref()));
                self.prioritized.note_news();
            }
            if let Some(left) = session_handle.take_lease_left() {
                session.say_lease_ends(number, left);
            }
            session_handle.mailbox().carry_out(|command| session.command(now, number, command));
            if let Some(end) = session_handle.end().filter(|_| !session_handle.is_replaced() && may_close) {
                ended.push((number, end));
            }
        }
        for (number, end) in ended {
            self.session.close(now, number, &end);
        }
    }
}

/// Tells a session what its provider allows. Returns what the welcome has to say of holds.
fn allow<H: DeviceProvider>(session: &mut ExporterSession, provider: &Arc<H>) -> Option<u32> {
    if let Some(modules) = provider.modules() {
        session.allow(modules);
    }
    session.limit_hold(provider.hold())
}

/// Opens devices for the importer of one session.
struct SessionDeviceOpener<'a, H: DeviceProvider> {
    provider: &'a Arc<H>,
    caller: &'a H::Caller,
    peer: &'a str,
    session_handles: &'a mut SessionHandles,
    session_thread: &'a mut SessionThread,
}

impl<H: DeviceProvider> ExporterServices for SessionDeviceOpener<'_, H> {
    fn reserve(
        &mut self,
        open: &OpenRequest,
        reservation: &ReservationTerms,
        path: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, AttachmentEndNotice)> {
        let path = MeasuredPath { wake_up_ns: self.session_thread.wake_up_ns(), ..path };
        let report = self.provider.reserve(self.caller, open, reservation, path)?;
        Ok(match self.provider.reserved(open) {
            Some(reserved) => self.session_thread.add(&open.name, &reserved, |time| self.provider.schedule(time)),
            None => report,
        })
    }

    fn unreserve(&mut self, open: &OpenRequest) {
        self.session_handles.has_news = true;
        self.provider.unreserve(open);
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let opened = self.provider.open(self.caller, self.peer, open, false)?;
        Ok(self.move_in(number, opened))
    }

    fn open_again(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
        _identity: ExportIdentity,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let opened = self.provider.open(self.caller, self.peer, open, true)?;
        Ok(self.move_in(number, opened))
    }

    fn identity(&mut self, open: &OpenRequest) -> Option<ExportIdentity> {
        self.provider.device_identity(open)
    }

    fn is_lasting(&mut self, open: &OpenRequest) -> bool {
        self.provider.has_lasting_identity(open)
    }

    fn note_overwriting(&mut self, open: &OpenRequest) {
        self.provider.note_overwriting(self.caller, open);
    }

    fn note_step(&mut self, open: &OpenRequest, lease: u64, step: DiskMoveStep) -> Result<(), String> {
        self.provider.note_step(self.caller, open, lease, step)
    }

    fn inherit(
        &mut self,
        _now: Instant,
        number: u16,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<InheritedDevice, AttachmentEndNotice>> {
        let inherited = self.provider.inherit(self.caller, self.peer, inherit)?;
        Some(inherited.map(|(opened, migration_state)| {
            let (lease, served) = self.move_in(number, opened);
            InheritedDevice { lease, served, migration_state }
        }))
    }

    fn recall(&mut self, _now: Instant, number: u16, open: &OpenRequest) -> Option<RecalledDevice> {
        let (opened, migration) = self.provider.recall(open)?;
        let (lease, served) = self.move_in(number, opened);
        Some(RecalledDevice { lease, served, migration })
    }

    fn show(
        &mut self,
        _now: Instant,
        number: u16,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<Box<dyn ServedExport>, AttachmentEndNotice>> {
        let shown = self.provider.show(self.caller, self.peer, inherit)?;
        Some(shown.map(|opened| self.move_in(number, opened).1))
    }
}

impl<H: DeviceProvider> SessionDeviceOpener<'_, H> {
    fn move_in(
        &mut self,
        number: u16,
        OpenedAttachment { opened_device, session_handle, lease }: OpenedAttachment,
    ) -> (u64, Box<dyn ServedExport>) {
        let limits = AttachmentLimits::of(&**self.provider, &*session_handle);
        let meters = session_handle.meters();
        self.session_handles.by_number.insert(number, session_handle);
        self.session_handles.has_news = true;
        (lease, opened_device.served(number, limits, self.provider.clock(), meters))
    }
}
