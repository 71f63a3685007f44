//! A device of another host, in a session: the device stays while links come and go.
//!
//! One thread owns it, for example a kernel's relay or a disk's driver. It waits on [`LinkedDevice::readiness`] and
//! calls [`LinkedDevice::turn`]. A second thread makes new links, because name lookups and handshakes take time; it is
//! there only while a link is wanted.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, Link, LinkEnd, SEGMENT_BYTES_MIN, SegmentSize};
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_model::{
    BlockCompletion, BlockLayer, CompletionQueue, DeviceLayer, ExportIdentity, Instant, OwnerCommand,
    OwnerCommandError, ReadinessSource,
};
use farbus_session::native::control::{AttachmentEndCause, AttachmentEndNotice, HANDED_OVER};
use farbus_session::native::hello::WelcomeOutcome;
use farbus_session::native::reserve::{self, ReservationReport};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{
    AttachmentState, GreetingOutcome, HOLD, ImporterAttachment, ImporterSession, LaneLimits, MovableAttachment,
    PipedAttachment, RemoteBlock, RemoteUsb, RequestedModules,
};
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use tracing::{debug, info, warn};

use crate::common::stop_signal::StopSignal;
use crate::common::write_out::WriteOut;
use crate::devices::reservation::in_words;
pub use crate::importer::session::dialer::DialCallback;
use crate::importer::session::dialer::{GREETING_TIME_MAX, PAUSE_MAX, SessionDialer};
use crate::importer::session::status::{DiscardedRequests, SessionStatus};
use crate::link::greeting;
use crate::link::link_set::{LinkSet, SILENT};

/// How long the exporter may take to end the requests of a device whose requests are thrown away.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the exporter may take to confirm that a device was given back.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(2);
/// A link that was there for so long and has not carried what waited for it does not carry large packets. A link that
/// is cut at once says nothing of that.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// The number of the ping whose pong says that the exporter has heard what was sent before.
const FAREWELL_PING: u64 = 1;

/// Why a session does not begin whose exporter has no place for it.
const FULL: &str = "this host has as many sessions there, or holds as much memory there, as its owner allows\n  \
                    there: 'farbus status' shows who uses what; peer_devices and peer_memory are the limits";

/// EventKind of the snapshots of a block device.
pub const BLOCK_KIND: u16 = 4;
/// How long ago a session in a snapshot may have lost its link.
const PAST_MAX: Duration = Duration::from_secs(600);

/// What a session from another process needs to continue: links, and its device's modules.
pub struct SessionResumption {
    /// Opens a new link to the exporter; called for each link that the session needs.
    pub dial: DialCallback,
    /// The modules, if there are any.
    pub through: Option<RequestedModules>,
    /// How long the device is held at most while it migrates; see [`SessionTerms::hold`].
    pub hold: Duration,
}

/// What an importer asks of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTerms {
    /// How many links, 1 to 8. The exporter may grant fewer; see [`LinkedDevice::links`].
    pub links: u16,
    /// How long the session outlives its links. The exporter may grant less.
    pub grace: Duration,
    /// How long the device is held at most while it migrates; the exporter may have a shorter limit.
    pub hold: Duration,
    /// The clock of what uses the device.
    pub clock: BoottimeClock,
}

impl SessionTerms {
    /// One link, this grace period, and devices that are held for [`HOLD`] at most.
    pub fn of(grace: Duration) -> Self {
        Self { links: 1, grace, hold: HOLD, clock: BoottimeClock::start() }
    }
}

/// A device in a session of its own.
pub struct LinkedDevice<A: ImporterAttachment> {
    session: ImporterSession,
    remote: PipedAttachment<A>,
    link_set: LinkSet,
    dialer: SessionDialer,
    readiness: ReadinessSource,
    clock: BoottimeClock,
    host: String,
    /// How many links of the first lane were made after its first.
    relinks: u32,
    stop_signal: StopSignal,
    status: SessionStatus,
    /// Whether it is migrating to another host.
    is_migrating: bool,
    /// Until when its requests may take to end that are thrown away for a handover.
    discard_until: Option<Instant>,
    /// Whether the status says what kind of device it is.
    is_described: bool,
    /// Whether it comes from another process and has had no turn here.
    is_new_here: bool,
    /// Further lanes for which a link is being made.
    dialling: Vec<u16>,
    /// The last reservation report.
    reserved: Option<ReservationReport>,
    /// The device's identity, as the status has it.
    identity: Option<ExportIdentity>,
    /// Whether the exporter was told that the session ends, or another process continues it.
    is_let_go: bool,
    /// Has file systems write out before a lease ends.
    write_out: WriteOut,
}

impl<A: ImporterAttachment> LinkedDevice<A> {
    /// Begins a session over a first link, and waits until `remote` is open or refused.
    ///
    /// # Errors
    /// The link was lost, or the exporter refuses the session.
    pub fn open(
        dial: DialCallback,
        remote: impl Into<PipedAttachment<A>>,
        grace: Duration,
        done: &mut A::Done,
    ) -> io::Result<Self> {
        Self::open_on(SessionTerms::of(grace), dial, remote, done)
    }

    /// Like [`LinkedDevice::open`], on other terms.
    ///
    /// # Errors
    /// As [`LinkedDevice::open`].
    pub fn open_on(
        terms: SessionTerms,
        dial: DialCallback,
        remote: impl Into<PipedAttachment<A>>,
        done: &mut A::Done,
    ) -> io::Result<Self> {
        let mut linked = Self::begin(terms, dial, remote)?;
        let until = linked.clock.now() + GREETING_TIME_MAX;
        loop {
            linked.turn(done);
            if *linked.remote.state() != AttachmentState::Opening {
                return Ok(linked);
            }
            if linked.clock.now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            linked.wait(Some(until))?;
        }
    }

    /// Tells the exporter what becomes of the disk, and waits for its answer, `time_max` at most. Returns whether it
    /// noted that.
    pub fn tell(&mut self, step: DiskMoveStep, time_max: Duration, done: &mut A::Done) -> bool {
        self.remote.say_step(step);
        let until = self.clock.now() + time_max;
        loop {
            self.turn(done);
            if let Some((_, noted)) = self.status.take_step_answer(step) {
                return noted.is_ok();
            }
            if self.end().is_some() || self.clock.now() >= until || self.wait(Some(until)).is_err() {
                return false;
            }
        }
    }

    /// Begins a session over a first link, and further ones if there are to be several. Does not wait until `remote`
    /// is open.
    ///
    /// # Errors
    /// The link was lost, or the exporter refuses the session.
    pub fn begin(
        terms: SessionTerms,
        mut dial: DialCallback,
        remote: impl Into<PipedAttachment<A>>,
    ) -> io::Result<Self> {
        let mut remote = remote.into();
        let clock = terms.clock;
        let mut incarnation = [0; 8];
        farbus_io_net::trust::fill_random(&mut incarnation);
        let mut session =
            ImporterSession::new(clock.now(), u64::from_le_bytes(incarnation), terms.grace, LaneLimits::SPARING);
        // Modules need the order of one lane.
        session = session.over_links(if remote.has_modules() { 1 } else { terms.links }).holding(terms.hold);
        let link = dial(SegmentSize::OfNetworks)?;
        let host = link.peer().to_owned();
        let welcome = greeting::greet(&link, &session.hello(0), GREETING_TIME_MAX)?;
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        match session.handle_welcome(&welcome).map_err(|reject| wrong(reject.to_string()))? {
            GreetingOutcome::Linked => {}
            GreetingOutcome::Refused(WelcomeOutcome::Full) => {
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, FULL));
            }
            other => return Err(wrong(format!("it begins no session: {other:?}"))),
        }
        session.their_incarnation().into_iter().for_each(|incarnation| remote.note_exporter(incarnation));
        debug!(host, "session began");
        let mut link_set = LinkSet::new()?;
        link_set.put(0, link)?;
        link_further(&mut session, &mut dial, &mut link_set)?;
        remote.use_lanes(session.usable_lanes());
        let dialer = SessionDialer::new(dial)?;
        link_set.watch(dialer.wake())?;
        link_set.watch_silence(clock)?;
        let readiness = link_set.readiness();
        let stop_signal = StopSignal::waking(Arc::clone(dialer.wake()));
        let status = SessionStatus::waking(Arc::clone(dialer.wake()), link_set.shown().clone());
        status.note_expected(remote.is_expected());
        status.note_hold(session.hold());
        if remote.goes_through("pause") {
            status.note_pausable();
        }
        let mut linked = Self {
            session,
            remote,
            link_set,
            dialer,
            readiness,
            clock,
            host,
            relinks: 0,
            stop_signal,
            status,
            is_migrating: false,
            discard_until: None,
            is_described: false,
            is_new_here: false,
            dialling: Vec::new(),
            reserved: None,
            identity: None,
            is_let_go: false,
            write_out: WriteOut::default(),
        };
        linked.dial_further(Duration::ZERO);
        Ok(linked)
    }

    /// The far device, to read its state.
    pub fn remote(&self) -> &A {
        self.remote.inner()
    }

    /// The device, for requests.
    pub fn remote_mut(&mut self) -> &mut A {
        self.remote.inner_mut()
    }

    /// Whether a replacement process can continue with it: some modules prevent that.
    pub fn is_movable(&self) -> bool {
        self.remote.is_movable()
    }

    /// The clock that the session's times are measured with.
    pub fn clock(&self) -> BoottimeClock {
        self.clock
    }

    /// Whether it has a link.
    pub fn is_linked(&self) -> bool {
        self.session.is_linked()
    }

    /// How many links it has now.
    pub fn links(&self) -> usize {
        self.link_set.lanes().count()
    }

    /// How many links of the first lane were made after its first.
    pub fn relinks(&self) -> u32 {
        self.relinks
    }

    /// A duplicate of the link, for a watcher; `None` while there is no link.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn link(&self) -> io::Result<Option<Link>> {
        self.link_set.link().map(Link::try_clone).transpose()
    }

    /// Ends it, from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop_signal.clone()
    }

    /// Its status, which any thread may read.
    pub fn status(&self) -> SessionStatus {
        self.status.clone()
    }

    /// Why it ended, if it has.
    pub fn end(&self) -> Option<&AttachmentEndNotice> {
        match self.remote.state() {
            AttachmentState::Ended(end) => Some(end),
            AttachmentState::Opening | AttachmentState::Open => None,
        }
    }

    /// Sends what waits, then waits for the next event, `until` at most; call [`LinkedDevice::turn`] next.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<()> {
        self.send();
        let own = [self.session.poll_timeout(), self.remote.poll_timeout(), self.discard_until];
        let at = own.into_iter().chain([until]).flatten().min();
        let span = at.map(|at| at - self.clock.now());
        self.link_set.wait(self.session.lane_mut(), span, true)
    }

    /// When [`LinkedDevice::turn`] must be called even without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.end().is_some() {
            return None;
        }
        if self.is_new_here {
            return Some(Instant::ZERO);
        }
        // Data that an encrypted link has already decrypted makes no socket readable.
        if self.link_set.has_received() {
            return Some(Instant::ZERO);
        }
        [self.session.poll_timeout(), self.remote.poll_timeout(), self.discard_until].into_iter().flatten().min()
    }

    /// What to wait on.
    pub fn readiness(&self) -> &ReadinessSource {
        &self.readiness
    }

    /// Handles what arrived, sends what can be sent, and replaces lost links.
    pub fn turn(&mut self, done: &mut A::Done) {
        if std::mem::take(&mut self.is_new_here) {
            self.dialer.dial(self.session.hello(0), Duration::ZERO);
        }
        self.take_new_link(done);
        // A peer that sends is not silent, and the clock need not be read.
        if !self.receive(done) {
            self.lose_silent_links();
        }
        self.see_to_modules(done);
        if let Some(step) = self.status.take_step().filter(|_| self.end().is_none()) {
            self.remote.say_step(step);
        }
        if let Some(answer) = self.remote.take_step_answer() {
            self.status.note_step_answer(answer);
        }
        self.send();
        if let Some(timed) = self.remote.poll_timed() {
            self.status.note_timed(timed);
        }
        if let Some(left) = self.remote.take_lease_left() {
            let status = self.status.clone();
            // An exporter that says it again and again is heard once.
            if self.write_out.before_the_end(left, move || status.end().is_some()) {
                let left_s = left.as_secs_f64().ceil();
                warn!(host = self.host, left_s, "the lease of the device ends soon: detach it, or extend the lease");
                publish(Event::new(EventKind::LeaseEnding).host(self.host.as_str()).how(format!("in {left_s} s")));
            }
        }
        if let Some(reserved) = self.remote.reserved() {
            self.note_reserved(reserved);
        }
        self.note_identity();
        if !self.is_described && *self.remote.state() == AttachmentState::Open {
            self.is_described = true;
            self.status.note_storage(self.remote.stores_data());
        }
        if self.status.is_expected() && !self.remote.is_expected() && self.end().is_none() {
            info!(host = self.host, "the device was handed over to this host");
            self.status.note_expected(false);
        }
        if self.is_migrating && self.end().is_none() && !self.remote.is_moving() {
            warn!(host = self.host, "nobody came for the device: it goes on here");
            self.is_migrating = false;
            self.status.disinherit();
        }
        if let Some(successor) = self.status.successor().filter(|_| self.end().is_none() && !self.is_migrating) {
            self.hand_over_to(successor, done);
        }
        if self.end().is_none() && self.stop_signal.was_asked() {
            self.remote.handle_over(AttachmentEndCause::Requested, "given up here", done);
        }
        // While it has a link there is no such moment, and the clock need not be read.
        let is_over = self.session.poll_timeout().is_some() && self.session.is_over(self.clock.now());
        if is_over && self.end().is_none() {
            let why = match self.session.is_linked() {
                true => "no link to its exporter carried what waited for it in time",
                false => "no link to its exporter in time",
            };
            warn!(host = self.host, why, "the device is given up");
            self.remote.handle_over(AttachmentEndCause::Network, why, done);
        }
        if let Some(end) = self.end() {
            let is_new = self.status.note_end(end);
            let bytes = self.remote.unwritten_bytes();
            if is_new && bytes > 0 && !self.status.is_copy() {
                warn!(host = self.host, bytes, "what programs wrote was not written at the exporter of the device");
                let why = format!("{bytes} bytes that programs wrote were not written");
                publish(Event::new(EventKind::Unwritten).host(self.host.as_str()).why(why));
            }
        }
    }

    /// Shows the device's identity in the status, if it is new.
    fn note_identity(&mut self) {
        let export_identity = self.remote.identity();
        if export_identity != self.identity {
            self.identity = export_identity;
            export_identity.into_iter().for_each(|identity| self.status.note_identity(identity));
        }
    }

    /// Logs a reservation report, if it is new.
    fn note_reserved(&mut self, reserved: ReservationReport) {
        if self.reserved.replace(reserved) == Some(reserved) {
            return;
        }
        match reserved.state {
            reserve::ReservationState::Suspended => {
                let (lack, missing) = in_words(reserved.lack, reserved.missing).unwrap_or_default();
                warn!(host = self.host, lack, missing, "suspended by its exporter");
                publish(Event::new(EventKind::Suspended).host(self.host.as_str()));
            }
            reserve::ReservationState::Admitted => {
                info!(host = self.host, bound_ns = reserved.bound_ns, "admitted by its exporter");
                publish(Event::new(EventKind::Admitted).host(self.host.as_str()));
            }
            reserve::ReservationState::Refused => {}
        }
        self.status.note_reserved(reserved);
    }

    /// Modules have timers of their own.
    fn see_to_modules(&mut self, done: &mut A::Done) {
        if let Some(is_paused) = self.status.take_pause() {
            self.remote.pause(self.clock.now(), is_paused);
        }
        if let Some(due) = self.remote.poll_timeout() {
            let now = self.clock.now();
            if due <= now {
                self.remote.handle_timeout(now, done);
            }
        }
    }

    /// Migrates the device to the host with this key, as soon as no request is under way.
    fn hand_over_to(&mut self, successor: [u8; 32], done: &mut A::Done) {
        let now = self.clock.now();
        if self.status.take_discard() {
            let before = self.remote.unwritten_bytes();
            let requests = self.remote.discard(now, done);
            let unwritten_bytes = self.remote.unwritten_bytes() - before;
            warn!(host = self.host, requests, unwritten_bytes, "thrown away: the device goes at once");
            self.status.note_discarded(DiscardedRequests { requests, unwritten_bytes });
            self.discard_until = Some(now + DISCARD_TIME_MAX);
        }
        self.remote.hold_still(now, done);
        let is_late = self.discard_until.is_some_and(|until| until <= now);
        self.is_migrating = self.remote.is_still() || is_late;
        if self.is_migrating {
            self.remote.migrate(successor);
        }
        self.send();
        if self.is_migrating && self.discard_until.take().is_some() {
            self.part_with_device(done);
        }
    }

    /// Ends here a device that was handed over without its user's requests: it does not come back. Waits a moment until
    /// the exporter has heard of it.
    fn part_with_device(&mut self, done: &mut A::Done) {
        self.remote.handle_over(AttachmentEndCause::Requested, HANDED_OVER, done);
        let (until, mut is_asked) = (self.clock.now() + FAREWELL_TIME_MAX, false);
        while self.session.is_linked() && self.clock.now() < until {
            let lane = self.session.lane_mut();
            // It overtakes what waits for the link.
            if !is_asked && lane.waiting_bytes() == 0 {
                lane.ping(FAREWELL_PING);
                is_asked = true;
            }
            if self.wait(Some(until)).is_err() {
                break;
            }
            self.receive(done);
            if self.session.lane_mut().poll_pong() == Some(FAREWELL_PING) {
                break;
            }
        }
    }

    /// Writes a snapshot for a replacement process. This session may continue if the replacement does not.
    pub fn save(&mut self, to: &mut SnapshotWriter)
    where
        A: MovableAttachment,
    {
        to.bytes(self.host.as_bytes());
        self.session.save(self.clock.now(), &mut self.remote, to);
    }

    /// Restores a session that another process saved: without a link, and without trying for one before its first turn
    /// here.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(redial: SessionResumption, from: &mut FieldReader<'_>) -> io::Result<Self>
    where
        A: MovableAttachment,
    {
        let wrong =
            |reject: farbus_session::ProtocolViolation| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let clock = BoottimeClock::started_ago(PAST_MAX);
        let host = String::from_utf8_lossy(from.bytes("host").map_err(wrong)?).into_owned();
        let SessionResumption { dial, through, hold } = redial;
        let dialer = SessionDialer::new(dial)?;
        let mut link_set = LinkSet::new()?;
        link_set.watch(dialer.wake())?;
        link_set.watch_silence(clock)?;
        let readiness = link_set.readiness();
        let stop_signal = StopSignal::waking(Arc::clone(dialer.wake()));
        let restored = ImporterSession::restore(clock.now(), LaneLimits::SPARING, from).map_err(wrong)?;
        let (session, mut remote): (ImporterSession, PipedAttachment<A>) = restored;
        let session = session.holding(hold);
        if let Err(reject) = remote.resume(through) {
            remote.hand_over();
            return Err(wrong(reject));
        }
        let (relinks, is_migrating, is_new_here) = (0, false, true);
        let status = SessionStatus::waking(Arc::clone(dialer.wake()), link_set.shown().clone());
        status.note_link(false);
        status.note_hold(session.hold());
        if remote.goes_through("pause") {
            status.note_pausable();
        }
        Ok(Self {
            session,
            remote,
            link_set,
            dialer,
            readiness,
            clock,
            host,
            relinks,
            stop_signal,
            status,
            is_migrating,
            discard_until: None,
            is_described: false,
            is_new_here,
            dialling: Vec::new(),
            reserved: None,
            identity: None,
            is_let_go: false,
            write_out: WriteOut::default(),
        })
    }

    /// Drops it for a replacement process: its link ends without a message, and open requests are answered to the
    /// replacement.
    pub fn hand_over(mut self)
    where
        A: MovableAttachment,
    {
        self.let_go();
    }

    /// As [`LinkedDevice::hand_over`], of a session that is dropped later.
    pub fn let_go(&mut self)
    where
        A: MovableAttachment,
    {
        self.remote.hand_over();
        self.is_let_go = true;
    }

    fn take_new_link(&mut self, done: &mut A::Done) {
        if !self.dialer.wake().take() {
            return;
        }
        while let Some(dialled) = self.dialer.poll_link() {
            let (link, welcome) = match dialled {
                Ok(linked) => linked,
                Err(refused) => {
                    self.remote.handle_over(AttachmentEndCause::Refused, &refused, done);
                    continue;
                }
            };
            let number = welcome.position.lane;
            self.dialling.retain(|&other| other != number);
            match self.session.handle_welcome(&welcome) {
                Ok(GreetingOutcome::Linked) => {
                    self.use_link(number, link);
                    if number == 0 {
                        self.note_exporter();
                    }
                }
                Ok(GreetingOutcome::Renewed) => {
                    warn!(host = self.host, "its exporter was started anew: the device is opened again");
                    self.link_set.cut_all();
                    self.use_link(number, link);
                    self.remote.handle_renewed(self.clock.now(), done);
                    self.note_exporter();
                }
                Ok(GreetingOutcome::Again) => self.dialer.dial(self.session.hello(0), Duration::ZERO),
                // The exporter may accept the lane later, if it still has the session.
                Ok(GreetingOutcome::Without) => self.dial_further(PAUSE_MAX),
                // Others may end before this session's grace does.
                Ok(GreetingOutcome::Refused(WelcomeOutcome::Full)) => {
                    self.dialer.dial(self.session.hello(0), PAUSE_MAX)
                }
                Ok(GreetingOutcome::Refused(outcome)) => {
                    let message = format!("its exporter does not take us back: {outcome:?}");
                    self.remote.handle_over(AttachmentEndCause::Refused, &message, done);
                }
                Err(reject) => {
                    self.remote.handle_over(AttachmentEndCause::Device, &reject.to_string(), done);
                }
            }
        }
    }

    /// Compares the device with the earlier one if the exporter has lost its state, and notes the exporter's limit.
    fn note_exporter(&mut self) {
        self.status.note_hold(self.session.hold());
        if let Some(incarnation) = self.session.their_incarnation() {
            self.remote.note_exporter(incarnation);
        }
    }

    fn use_link(&mut self, number: u16, link: Link) {
        if number == 0 {
            self.relinks += 1;
        }
        if let Err(error) = self.link_set.put(number, link) {
            return self.lose(number, LinkEnd::of(&error), &error.to_string());
        }
        self.remote.use_lanes(self.session.usable_lanes());
        if number != 0 {
            return info!(host = self.host, lane = number, "a further link is there");
        }
        info!(host = self.host, "linked again");
        publish(Event::new(EventKind::LinkBack).host(self.host.as_str()));
        self.status.note_link(true);
        self.dial_further(Duration::ZERO);
    }

    /// Makes links for further lanes that have none.
    fn dial_further(&mut self, pause: Duration) {
        let wanting: Vec<u16> = self.session.wanting_links().filter(|number| !self.dialling.contains(number)).collect();
        for number in wanting {
            self.link_set.shown().note_down(number);
            self.dialling.push(number);
            self.dialer.dial(self.session.hello(number), pause);
        }
    }

    /// Drops a lane's link. The lane's frames wait for its next one; new requests use the other lanes.
    fn lose(&mut self, number: u16, end: LinkEnd, why: &str) {
        let was_linked = self.session.is_linked();
        let is_stalled = self.link_set.age(number).is_some_and(|age| age >= STALLED_AFTER);
        if is_stalled && !self.session.has_proved_link(number) {
            self.bound_segments();
        }
        self.link_set.cut(number);
        self.session.handle_lost(number, self.clock.now());
        self.remote.use_lanes(self.session.usable_lanes());
        if self.end().is_some() {
            return;
        }
        if number != 0 {
            info!(host = self.host, lane = number, why, "a further link was lost; others go on");
            self.dial_further(Duration::ZERO);
        } else if was_linked {
            warn!(host = self.host, end = end.as_str(), why, "the link was lost; the device waits for another");
            publish(Event::new(EventKind::LinkLost).host(self.host.as_str()).how(end.as_str()).why(why));
            self.status.note_link(false);
            self.dialer.dial(self.session.hello(0), Duration::ZERO);
        }
    }

    /// The second link in turn ends while what waits cannot pass: the path may drop large packets without saying so.
    fn bound_segments(&mut self) {
        if self.dialer.bound_segments() {
            let segment_bytes_max = SEGMENT_BYTES_MIN;
            let why = "two links in turn carried small packets alone: the path seems to drop larger ones";
            warn!(host = self.host, segment_bytes_max, why, "the next links send smaller segments");
            self.link_set.shown().note_segments(segment_bytes_max);
        }
    }

    /// Receives what is there on all lanes. Returns whether anything was.
    fn receive(&mut self, done: &mut A::Done) -> bool {
        let mut has_received = false;
        for number in self.link_set.lanes() {
            let Some(lane) = self.session.lanes_mut().get_mut(number) else { continue };
            match self.link_set.receive(number, lane) {
                Ok(None) => continue,
                Ok(Some(0)) => self.lose(number, LinkEnd::Closed, "its exporter closed it"),
                Ok(Some(_)) => self.take_in(number, done),
                Err(error) => self.lose(number, LinkEnd::of(&error), &error.to_string()),
            }
            has_received = true;
        }
        has_received
    }

    fn lose_silent_links(&mut self) {
        let is_busy = self.remote.keeps_exporter_busy();
        match self.link_set.silent(self.clock.now(), self.session.lanes_mut(), is_busy) {
            Ok(silent) => silent.into_iter().for_each(|number| self.lose(number, LinkEnd::Lost, SILENT)),
            Err(error) => warn!(host = self.host, %error, "nobody looks whether the exporter is silent"),
        }
    }

    fn take_in(&mut self, lane: u16, done: &mut A::Done) {
        if let Err(reject) = self.hear(lane, done) {
            warn!(host = self.host, %reject, "the exporter does not speak our protocol as it should");
            self.remote.handle_over(AttachmentEndCause::Device, &reject.to_string(), done);
        }
    }

    fn hear(&mut self, lane: u16, done: &mut A::Done) -> Result<(), farbus_session::ProtocolViolation> {
        // Frames that were received together arrived together.
        let now = self.clock.now();
        while let Some(arrived) = self.session.poll_arrived(lane)? {
            self.remote.handle_arrived(now, arrived, done)?;
        }
        self.session.note_progress(lane, now);
        Ok(())
    }

    /// Sends what waits, as far as the link takes it.
    pub fn send(&mut self) {
        let clock = self.clock;
        self.remote.tell_time(|| clock.now());
        while let Some(message) = self.remote.poll_message() {
            self.session.send(message);
        }
        for number in self.link_set.lanes() {
            let Some(lane) = self.session.lanes_mut().get_mut(number) else { continue };
            if let Err(error) = self.link_set.send(number, lane, self.clock) {
                self.lose(number, LinkEnd::of(&error), &error.to_string());
            }
        }
    }

    /// Gives the device back, and waits a moment for the exporter to confirm it.
    pub fn close(&mut self, done: &mut A::Done) {
        if self.end().is_none() && self.session.is_linked() {
            self.remote.close();
            let until = self.clock.now() + FAREWELL_TIME_MAX;
            self.turn(done);
            while self.end().is_none() && self.session.is_linked() && self.clock.now() < until {
                if self.wait(Some(until)).is_err() {
                    break;
                }
                self.turn(done);
            }
        }
        self.say_goodbye();
    }

    fn say_goodbye(&mut self) {
        self.is_let_go = true;
        self.session.goodbye();
        self.send();
        if let Some(link) = self.link_set.link() {
            link.finish_sending();
        }
    }
}

impl<A: ImporterAttachment> Drop for LinkedDevice<A> {
    /// Ends the session of a device that could not be used, or was refused. Without that, its exporter would keep the
    /// device for a host that does not come back. Waits until the exporter ends the link: a socket that is closed while
    /// bytes for it are under way resets the connection, and the goodbye with it.
    fn drop(&mut self) {
        if self.is_let_go || !self.session.is_linked() || thread::panicking() {
            return;
        }
        self.say_goodbye();
        if let Some(link) = self.link_set.link() {
            link.close_in_order(FAREWELL_TIME_MAX);
        }
    }
}

/// Makes the links of further lanes before the device is opened, so that its first requests can use them. Links that
/// cannot be made now are made later.
fn link_further(session: &mut ImporterSession, dial: &mut DialCallback, link_set: &mut LinkSet) -> io::Result<()> {
    for number in session.wanting_links().collect::<Vec<_>>() {
        let Ok(link) = dial(SegmentSize::OfNetworks) else { return Ok(()) };
        let Ok(welcome) = greeting::greet(&link, &session.hello(number), GREETING_TIME_MAX) else {
            return Ok(());
        };
        match session.handle_welcome(&welcome) {
            Ok(GreetingOutcome::Linked) => link_set.put(number, link)?,
            // The first lane reports what is wrong with the exporter.
            _ => return Ok(()),
        }
    }
    Ok(())
}

impl DeviceLayer for LinkedDevice<RemoteUsb> {
    type Inner = RemoteUsb;

    fn inner(&self) -> &RemoteUsb {
        self.remote.inner()
    }

    fn inner_mut(&mut self) -> &mut RemoteUsb {
        self.remote.inner_mut()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        LinkedDevice::poll_timeout(self)
    }

    fn handle_timeout(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.turn(done);
    }

    fn end_turn(&mut self, _now: Instant, _done: &mut CompletionQueue) {
        self.send();
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.turn(done);
    }

    fn command(
        &mut self,
        _now: Instant,
        command: &OwnerCommand,
        _done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        // Commands to the device are its owner's, on the exporter.
        Err(OwnerCommandError::unknown(command))
    }

    fn leave(&mut self) {
        self.let_go();
    }
}

impl BlockLayer for LinkedDevice<RemoteBlock> {
    type Inner = RemoteBlock;

    fn inner(&self) -> &RemoteBlock {
        self.remote.inner()
    }

    fn inner_mut(&mut self) -> &mut RemoteBlock {
        self.remote.inner_mut()
    }

    fn end_turn(&mut self, _now: Instant, _done: &mut CompletionQueue<BlockCompletion>) {
        self.send();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        LinkedDevice::poll_timeout(self)
    }

    fn handle_timeout(&mut self, _now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.turn(done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.turn(done);
    }

    fn save(&mut self, _now: Instant) -> Option<Vec<u8>> {
        // A session that has ended, uses modules or is still replaying writes cannot be saved.
        let is_at_rest = !self.remote.inner().is_rewriting();
        (self.end().is_none() && self.is_movable() && is_at_rest).then(|| {
            let mut to = SnapshotWriter::new(BLOCK_KIND);
            LinkedDevice::save(self, &mut to);
            to.into_bytes()
        })
    }

    fn leave(&mut self) {
        self.let_go();
    }
}
