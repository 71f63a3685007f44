//! The NBD server's engine: one thread, one listener, its clients and the devices that they use.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, INTERESTS_MAX, Link, PollInterest, wait};
use farbus_io_net::saving::{SaveDecision, SaveRequest, SaveRequester, SavedAttachment};
use farbus_model::limits::NBD_CONNECTIONS_MAX;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, BufferPool, CompletionQueue, Instant, LossCounter,
    LossCursor, PendingBlockRequests, SessionLimits, StoreError,
};
use farbus_session::nbd::{NbdExportDescription, NbdServerConn};
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};
use farbus_session::{ExporterCounters, ProtocolViolation};
use tracing::{debug, info, warn};

use super::flush_watch::FlushWatch;
use super::memory::{ClientBudget, ClientMemory};
use super::moving::{NbdClientsSummary, NbdMigration};
use crate::common::socket_place::{SocketListener, SocketLocation};
use crate::frontend::hold::HoldHandle;
use crate::frontend::open_users::{ConnectedProcesses, OpenClients, process_of};
use crate::frontend::{AttachmentEnd, StopSignal};
use crate::importer::port::DeviceCutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::{EngineMeters, SyscallCounts};

/// A device that is offered under a name.
pub struct NbdExport {
    /// Its name; the first offer is also the default export.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// The block device that carries out the clients' requests.
    pub device: Box<dyn BlockDevice>,
    /// Whether a request for zeros is faster than writing them.
    pub zeroes_fast: bool,
}

/// The most devices of one server, so that one wait covers everything.
const OFFERS_MAX: usize = INTERESTS_MAX - NBD_CONNECTIONS_MAX - OTHERS;
/// What it waits on besides devices and clients: its stop signal, its hold handle, its listener, the link to a remote
/// device.
const OTHERS: usize = 4;
/// How long clients may take to read their last answers when the server ends.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the devices may take to become durable when the server ends.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a device that was cut off may take to fail its requests.
const CUT_TIME_MAX: Duration = Duration::from_secs(1);
/// Receives from one client before the others have their turn: some megabytes.
const RECEIVES_MAX: u32 = 16;
/// How long one client is served at a time while a device answers slowly: other clients and the stop signal wait no
/// longer.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);
const LOOK_EVERY: u32 = 4;
/// How long a client may take to choose an export: until then it occupies one of the limited places.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long no client is accepted after the system failed to accept one: it has run out of something.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// How often a client that waits for memory is checked: clients of other servers may give memory back.
const MEMORY_PAUSE: Duration = Duration::from_millis(10);
/// How often to check whether another client needs what a stuck client holds.
const STUCK_PAUSE: Duration = Duration::from_secs(1);
/// How long a client that asks for nothing keeps memory for its next requests.
const IDLE_TIME_MAX: Duration = Duration::from_secs(1);
/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 3;
/// The server's own number among the clients that ask its devices.
const SELF: u16 = u16::MAX;

/// An NBD server: its listener, its devices, its clients.
pub struct NbdServer {
    listener: SocketListener,
    devices: Vec<Box<dyn BlockDevice>>,
    exports: Arc<[NbdExportDescription]>,
    done: CompletionQueue<BlockCompletion>,
    clients: Vec<NbdConnection>,
    /// The link to a remote device; the server ends when it breaks.
    watched: Option<Link>,
    stop: StopSignal,
    clock: BoottimeClock,
    limits: SessionLimits,
    budget: ClientBudget,
    handshake_time_max: Duration,
    flush_time_max: Duration,
    /// Makes a device that does not become durable in time fail its requests.
    cutter: Option<DeviceCutter>,
    deaf_until: Option<Instant>,
    meters: Arc<EngineMeters>,
    counters: ExporterCounters,
    calls: SyscallCounts,
    /// Its own flushes that are not answered yet, and the error of one that failed.
    own_flushes: usize,
    unflushed: Option<String>,
    /// Which of the devices' flushes have failed; each client is told once.
    losses: Vec<LossCounter>,
    /// How many clients are connected, for its owner.
    open: OpenClients,
    /// The processes of its clients, and how many clients these were, and the number of the last.
    connected: (ConnectedProcesses, Option<(usize, u16)>),
    /// The state of its device's migration, if the device may migrate.
    moving: Option<NbdMigration>,
    save_requester: SaveRequester<SavedAttachment>,
    /// Open requests of clients that had left before a replacement process continued: their answers go nowhere.
    orphans: BTreeSet<BlockId>,
}

/// Why the engine stopped taking requests of one client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NbdStallCause {
    /// The client has no more complete requests.
    Drained,
    /// Answers wait for room in the client's socket.
    Full,
    /// Other clients have their turn first.
    Late,
    /// There is no memory for the client's next request.
    Short,
}

/// One client's connection, with its handshake, memory and unread losses.
struct NbdConnection {
    number: u16,
    link: Link,
    conn: NbdServerConn,
    memory: ClientMemory,
    /// When it last took an answer or sent something.
    moved_at: Instant,
    /// Which losses of each device it was told of.
    cursors: Vec<LossCursor>,
    /// When its handshake must be complete.
    choose_until: Instant,
    /// Its socket takes no more.
    is_full: bool,
    /// Its last receive filled all the room there was, so more may wait in the socket.
    has_more: bool,
    /// It has received requests that wait for its next turn.
    is_waiting: bool,
    /// It sends nothing more.
    is_deaf: bool,
    /// Its link is lost: no answer can be sent.
    is_gone: bool,
}

impl NbdConnection {
    fn new(link: Link, conn: NbdServerConn, memory: ClientMemory, now: Instant, losses: &[LossCounter]) -> Self {
        Self {
            number: conn.number(),
            link,
            conn,
            memory,
            moved_at: now,
            cursors: losses.iter().map(LossCounter::cursor).collect(),
            choose_until: now,
            is_full: false,
            has_more: false,
            is_waiting: false,
            is_deaf: false,
            is_gone: false,
        }
    }

    fn choosing_until(self, choose_until: Instant) -> Self {
        Self { choose_until, ..self }
    }

    /// Whether to receive from it. Not while received requests wait for their turn or the device is held: there may be
    /// no room for more.
    fn wants_input(&self, limits: &SessionLimits, is_held: bool) -> bool {
        !self.is_deaf
            && !self.is_waiting
            && !self.memory.is_short()
            && (!is_held || self.conn.is_haggling())
            && self.conn.wants_input()
            && self.conn.backlog_bytes() < limits.reply_bytes_backlog
    }

    /// When it is cut off unless it has chosen an export.
    fn deadline(&self) -> Option<Instant> {
        (self.conn.is_haggling() && !self.is_deaf && !self.is_gone).then_some(self.choose_until)
    }

    /// Whether it holds shared memory while it has no request under way.
    fn keeps_idle_memory(&self) -> bool {
        self.memory.extra_bytes() > 0
            && self.conn.in_flight() == 0
            && self.conn.backlog_bytes() == 0
            && !self.conn.is_mid_write()
    }

    /// Since when it has taken no answers, or sent nothing more of a write that it has begun.
    fn stuck_since(&self) -> Option<Instant> {
        let is_stuck = self.is_full || (self.conn.is_mid_write() && !self.is_waiting && !self.memory.is_short());
        (is_stuck && !self.is_gone).then_some(self.moved_at)
    }

    /// Whether no request of it is open and it has nothing more to receive.
    fn is_over(&self) -> bool {
        self.conn.in_flight() == 0 && (self.is_gone || self.conn.is_finished())
    }

    fn lose(&mut self) {
        (self.is_deaf, self.is_gone) = (true, true);
        self.memory.ask_no_more();
        self.conn.close();
    }
}

impl NbdServer {
    /// A server of `offers` at `listener`. It ends when `watched` breaks, if that is given.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    ///
    /// # Panics
    /// Without an offer, or with more than [`INTERESTS_MAX`] allows.
    pub fn new(listener: SocketListener, offers: Vec<NbdExport>, watched: Option<Link>) -> io::Result<Self> {
        assert!((1..=OFFERS_MAX).contains(&offers.len()), "a server has something to offer, and not too much");
        // A remote device keeps the written data in memory until it has arrived.
        let is_elsewhere = offers.iter().any(|offer| offer.device.readiness().is_some());
        let limits = if is_elsewhere { SessionLimits::RELAYED } else { SessionLimits::DEFAULT };
        let exports = offers
            .iter()
            .map(|offer| NbdExportDescription {
                name: offer.name.clone(),
                description: offer.description.clone(),
                info: *offer.device.info(),
                zeroes_fast: offer.zeroes_fast,
            })
            .collect();
        let stop = StopSignal::new()?;
        let save_requester = SaveRequester::new(stop.shared_wake());
        let losses = offers.iter().map(|_| LossCounter::default()).collect();
        Ok(Self {
            listener,
            devices: offers.into_iter().map(|offer| offer.device).collect(),
            exports,
            done: CompletionQueue::new(BufferPool::new(limits.pool_bytes)),
            clients: Vec::new(),
            watched,
            stop,
            clock: BoottimeClock::start(),
            limits,
            budget: ClientBudget::of_process(),
            handshake_time_max: HANDSHAKE_TIME_MAX,
            flush_time_max: FLUSH_TIME_MAX,
            cutter: None,
            deaf_until: None,
            meters: Arc::default(),
            counters: ExporterCounters::default(),
            calls: SyscallCounts::default(),
            own_flushes: 0,
            unflushed: None,
            losses,
            open: OpenClients::default(),
            connected: (ConnectedProcesses::default(), None),
            moving: None,
            save_requester,
            orphans: BTreeSet::new(),
        })
    }

    /// How many devices a server may offer.
    pub const fn offers_max() -> usize {
        OFFERS_MAX
    }

    /// Replaces the 10 s in which clients must choose an export.
    #[must_use]
    pub fn with_handshake_time(mut self, time_max: Duration) -> Self {
        self.handshake_time_max = time_max;
        self
    }

    /// Replaces the 30 s in which the devices must become durable when the server ends.
    #[must_use]
    pub fn with_flush_time(mut self, time_max: Duration) -> Self {
        self.flush_time_max = time_max;
        self
    }

    /// Lets it cut off its device when that does not become durable in time: otherwise the device keeps requests that
    /// nobody answers.
    #[must_use]
    pub fn cut_by(mut self, cutter: DeviceCutter) -> Self {
        self.cutter = Some(cutter);
        self
    }

    /// Gives its clients another memory budget than the process's.
    #[must_use]
    pub fn with_budget(mut self, budget: ClientBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Replaces the clock; a device with links has one of its own.
    #[must_use]
    pub fn with_clock(mut self, clock: BoottimeClock) -> Self {
        self.clock = clock;
        self
    }

    /// Allows its one remote device to be held, and to migrate when its clients have left.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn movable(mut self, status: SessionStatus) -> io::Result<Self> {
        self.moving = Some(NbdMigration::new(HoldHandle::new()?, status));
        Ok(self)
    }

    /// Holds its device, if that may migrate.
    pub fn hold_handle(&self) -> Option<HoldHandle> {
        self.moving.as_ref().map(|moving| moving.hold_handle.clone())
    }

    /// The socket on which the server accepts NBD clients.
    pub fn listener(&self) -> &SocketListener {
        &self.listener
    }

    /// Ends the server, from any thread.
    pub fn stop(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Counts its clients, from any thread.
    pub fn open_clients(&self) -> OpenClients {
        self.open.clone()
    }

    /// The processes of its clients, from any thread.
    pub fn connected(&self) -> ConnectedProcesses {
        self.connected.0.clone()
    }

    /// Asks for a snapshot for a replacement process. It succeeds if all its devices can be saved.
    pub fn save_requester(&self) -> SaveRequester<SavedAttachment> {
        self.save_requester.clone()
    }

    /// Counts what passes through, for the status.
    pub fn meters(&self) -> Arc<EngineMeters> {
        Arc::clone(&self.meters)
    }

    /// Serves until it ends; then makes all written data durable, as far as possible.
    pub fn run(mut self) -> AttachmentEnd {
        let ended = loop {
            if self.stop.hears() {
                break AttachmentEnd::Requested;
            }
            if let Some(asker) = self.save_requester.requested()
                && self.part(asker) == SaveDecision::Go
            {
                self.leave();
                return AttachmentEnd::HandedOver;
            }
            self.serve();
            self.meters.publish(self.counters, self.calls);
            self.look_after_moves();
            if self.devices.iter().any(BlockDevice::is_gone) {
                break AttachmentEnd::Lost("the medium is gone".into());
            }
            match self.wait(None) {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                Err(error) => break AttachmentEnd::Lost(error.to_string()),
            }
        };
        if let Some(moving) = &mut self.moving {
            moving.release();
        }
        self.say_farewell();
        if let Some(error) = self.losses.iter().find_map(LossCounter::told_to_nobody) {
            self.unflushed.get_or_insert(error.to_string());
        }
        match (ended, self.unflushed) {
            (AttachmentEnd::Requested | AttachmentEnd::Released, Some(why)) => {
                warn!("the last writes may not be durable: {why}");
                AttachmentEnd::Undurable(format!("the last writes may not be durable: {why}"))
            }
            (ended, Some(why)) => {
                warn!("the last writes may not be durable: {why}");
                ended
            }
            (ended, None) => ended,
        }
    }

    /// Whether no request may be passed to the device.
    fn is_held(&self) -> bool {
        self.moving.as_ref().is_some_and(NbdMigration::is_held)
    }

    /// Carries out its owner's orders to hold and migrate. Serves the waiting requests when the device is released.
    fn look_after_moves(&mut self) {
        let was_held = self.is_held();
        self.look_after_moving();
        if let Some(process) = self.moving.as_mut().and_then(NbdMigration::take_departed) {
            let is_its = |client: &&mut NbdConnection| process_of(&client.link) == Some(process);
            self.clients.iter_mut().filter(is_its).for_each(NbdConnection::lose);
            self.look_after_moving();
        }
        if was_held && !self.is_held() {
            self.serve();
        }
    }

    fn look_after_moving(&mut self) {
        let Some(moving) = &mut self.moving else { return };
        let are_gone = self.clients.iter().all(|client| client.is_gone);
        let is_answered = |client: &NbdConnection| client.conn.in_flight() == 0 && client.conn.backlog_bytes() == 0;
        let are_answered = self.clients.iter().all(is_answered);
        let clients = NbdClientsSummary { are_gone, are_answered, answered: self.counters.urbs };
        moving.look_after(self.clock.now(), clients);
    }

    /// Answers a request for a snapshot. Receives nothing until the replacement process has decided whether it
    /// continues.
    fn part(&mut self, asker: SaveRequest<SavedAttachment>) -> SaveDecision {
        match self.save() {
            Ok(Some(saved)) => asker.part(saved),
            // No answer tells the asking thread that it cannot be saved.
            Ok(None) => SaveDecision::Stay,
            Err(error) => {
                warn!(%error, "the NBD server cannot be passed on");
                SaveDecision::Stay
            }
        }
    }

    /// Writes a snapshot: its listener, the state of its devices, and the state of each client's connection.
    fn save(&mut self) -> io::Result<Option<SavedAttachment>> {
        // A hold or a migration must end in the process in which it began.
        if self.is_held() {
            return Ok(None);
        }
        // Finished requests belong to their clients before the snapshot.
        self.hand_out();
        let (mut to, now) = (SnapshotWriter::new(SNAPSHOT_KIND), self.clock.now());
        to.count(self.devices.len());
        for device in &mut self.devices {
            let Some(saved) = device.save(now) else { return Ok(None) };
            to.bytes(&saved);
        }
        let mut descriptors = vec![self.listener.as_fd().try_clone_to_owned()?];
        let here = |client: &&NbdConnection| !client.is_gone;
        to.count(self.clients.iter().filter(here).count());
        for client in self.clients.iter().filter(here) {
            to.bytes(client.link.peer().as_bytes());
            to.flag(client.is_deaf);
            client.conn.save(&mut to);
            descriptors.push(client.link.as_fd().try_clone_to_owned()?);
        }
        for losses in &self.losses {
            to.u64(losses.count());
            to.u8(losses.last().map_or(0, StoreError::code));
            to.flag(losses.told_to_nobody().is_none());
        }
        for cursor in self.clients.iter().filter(here).flat_map(|client| &client.cursors) {
            to.u64(cursor.told_count());
        }
        Ok(Some(SavedAttachment { snapshot: to.into_bytes(), descriptors, medium: None }))
    }

    /// Drops the server without ending anything: a replacement process continues it.
    pub fn leave(mut self) {
        self.devices.iter_mut().for_each(BlockDevice::leave);
        // The replacement removes the socket's path. This marks the path as passed on even if no copy can be made.
        let _ = self.listener.into_descriptor();
    }

    /// Restores a server that another process saved, with a listener at `place`. `restore` makes a device of the saved
    /// bytes, and returns its open requests and its clock. Nothing happens before [`NbdServer::run`].
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more descriptors.
    pub fn restore(
        saved: SavedAttachment,
        location: &SocketLocation,
        mut restore: impl FnMut(&[u8]) -> io::Result<(NbdExport, PendingBlockRequests, BoottimeClock)>,
    ) -> io::Result<Self> {
        let mut from = snapshot::open(&saved.snapshot, SNAPSHOT_KIND).map_err(wrong)?;
        let mut descriptors = saved.descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
        let listener = SocketListener::passed(next()?, location);
        let count = from.count("devices", 4).map_err(wrong)?;
        if count != 1 {
            return Err(wrong(ProtocolViolation::new("devices", count as u64, "an attachment has one")));
        }
        let (offer, pending, clock) = restore(from.bytes("device").map_err(wrong)?)?;
        let mut server = Self::new(listener, vec![offer], None)?.with_clock(clock);
        match server.restore_clients(&mut from, pending, next) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.leave();
                Err(error)
            }
        }
    }

    fn restore_clients(
        &mut self,
        from: &mut FieldReader<'_>,
        mut pending: PendingBlockRequests,
        mut next: impl FnMut() -> io::Result<OwnedFd>,
    ) -> io::Result<()> {
        for _ in 0..from.count("clients", 20).map_err(wrong)? {
            let peer = String::from_utf8_lossy(from.bytes("peer").map_err(wrong)?).into_owned();
            let is_deaf = from.flag("deaf").map_err(wrong)?;
            let conn =
                NbdServerConn::restore(Arc::clone(&self.exports), &self.limits, &mut pending, from).map_err(wrong)?;
            let number = conn.number();
            if number == SELF || self.clients.iter().any(|client| client.number == number) {
                return Err(wrong(ProtocolViolation::new("client", number.into(), "each has a number of its own")));
            }
            let socket = next()?;
            let link = match peer.parse() {
                Ok(address) => Link::over_tcp(socket, address)?,
                Err(_) => Link::over_local(socket, &peer),
            };
            let now = self.clock.now();
            let client = NbdConnection::new(link, conn, self.budget.go_on(), now, &self.losses);
            self.clients.push(NbdConnection { is_deaf, ..client.choosing_until(now + self.handshake_time_max) });
        }
        if self.clients.len() > NBD_CONNECTIONS_MAX {
            return Err(wrong(ProtocolViolation::new("clients", self.clients.len() as u64, "16 are let in")));
        }
        self.orphans = pending.into_keys().collect();
        if from.version() >= 13 {
            self.restore_losses(from).map_err(wrong)?;
        }
        from.end("snapshot").map_err(wrong)
    }

    fn restore_losses(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        for losses in &mut self.losses {
            let (count, last) = (from.u64("losses")?, StoreError::of_code(from.u8("last loss")?));
            *losses = LossCounter::restore(count, last.filter(|_| count > 0), from.flag("told")?);
        }
        for cursor in self.clients.iter_mut().flat_map(|client| &mut client.cursors) {
            *cursor = LossCursor::restore(from.u64("losses told")?);
        }
        Ok(())
    }

    /// Does everything that can be done without waiting.
    fn serve(&mut self) {
        loop {
            self.hand_out();
            for at in 0..self.clients.len() {
                self.serve_one(at);
            }
            if !self.end_turn() {
                break;
            }
        }
        self.clients.retain(|client| {
            let is_over = client.is_over();
            if is_over {
                debug!(number = client.number, peer = client.link.peer(), "an NBD client left");
            }
            !is_over
        });
        self.open.show(self.clients.iter().filter(|client| !client.is_gone && !client.conn.is_haggling()).count());
        let present = self.clients.last().map(|last| (self.clients.len(), last.number));
        if std::mem::replace(&mut self.connected.1, present) != present {
            self.connected.0.show(self.clients.iter().map(|client| &client.link));
        }
    }

    /// Lets devices send together what they were asked; returns whether that completed a request.
    fn end_turn(&mut self) -> bool {
        let now = self.clock.now();
        self.devices.iter_mut().for_each(|device| device.end_turn(now, &mut self.done));
        !self.done.is_empty()
    }

    /// Serves one client: parses its requests, passes them to the device, and sends answers that are there at once
    /// while they are still in the cache. If its socket takes no more, its next requests wait.
    fn serve_one(&mut self, at: usize) {
        let now = self.clock.now();
        let mut receives = 0;
        loop {
            let pace = self.ask(at, now);
            let is_sent = self.flush(at, now);
            let client = &mut self.clients[at];
            client.memory.settle(&client.conn);
            client.is_waiting = pace == NbdStallCause::Late;
            // A receive that filled all the room most likely left more: waiting in between would only cost time.
            let is_drained = pace == NbdStallCause::Drained;
            let is_held = self.moving.as_ref().is_some_and(NbdMigration::is_held);
            let has_more =
                is_drained && std::mem::take(&mut client.has_more) && client.wants_input(&self.limits, is_held);
            if has_more && receives < RECEIVES_MAX {
                receives += 1;
                self.receive(at, now);
            } else if !is_sent || pace != NbdStallCause::Full {
                return;
            }
        }
    }

    /// Passes the client's requests to the device, as long as there is room for the answers and the client has its
    /// turn.
    fn ask(&mut self, at: usize, now: Instant) -> NbdStallCause {
        let mut submitted = 0u32;
        let is_held = self.is_held();
        while self.clients[at].conn.backlog_bytes() < self.limits.reply_bytes_backlog {
            let client = &mut self.clients[at];
            if is_held && !client.conn.is_haggling() {
                return NbdStallCause::Drained;
            }
            if !client.is_gone && !client.memory.covers_next(&mut client.conn) {
                return NbdStallCause::Short;
            }
            match client.conn.poll_request() {
                Ok(Some(request)) => {
                    let export = client.conn.export().expect("requests come after the handshake");
                    self.devices[export].submit(now, request.launch(), &mut self.done);
                    self.hand_out();
                    submitted += 1;
                    if submitted.is_multiple_of(LOOK_EVERY) && self.clock.now() - now > TURN_TIME_MAX {
                        return NbdStallCause::Late;
                    }
                }
                Ok(None) => return NbdStallCause::Drained,
                Err(reject) => {
                    info!(peer = client.link.peer(), "an NBD client was cut off: {reject}");
                    client.lose();
                    return NbdStallCause::Drained;
                }
            }
        }
        NbdStallCause::Full
    }

    /// Gives completed requests to the clients that made them.
    fn hand_out(&mut self) {
        while let Some(mut answer) = self.done.pop() {
            let number = NbdServerConn::number_of(answer.id);
            if number == SELF {
                self.own_flushes -= 1;
                if let Err(error) = answer.result {
                    self.unflushed.get_or_insert(error.to_string());
                }
                continue;
            }
            self.counters.urbs += 1;
            match (answer.op, answer.result) {
                (BlockOp::Read, Ok(())) => self.counters.bytes_in += u64::from(answer.length),
                (BlockOp::Write, Ok(())) => self.counters.bytes_out += u64::from(answer.length),
                _ => {}
            }
            let is_orphan = self.orphans.remove(&answer.id);
            if answer.op == BlockOp::Flush {
                answer.result = self.hear(number, answer.result);
            }
            if is_orphan {
                self.done.pool.recycle(answer.payload);
                continue;
            }
            let asker = self.clients.iter_mut().find(|client| client.number == number);
            let asker = asker.expect("a client stays until it was answered");
            asker.conn.complete(answer, &mut self.done.pool);
        }
    }

    /// The result of a flush as this client is told: earlier losses that it does not know of included. A client that
    /// has left does not count as told.
    fn hear(&mut self, number: u16, flushed: Result<(), StoreError>) -> Result<(), StoreError> {
        let client = self.clients.iter_mut().find(|client| client.number == number);
        // Only a server of one device, after a handover, has flushes of clients that it does not know.
        let export = client.as_ref().and_then(|client| client.conn.export()).unwrap_or_default();
        if let Err(error) = flushed {
            self.losses[export].record(error);
        }
        match client.filter(|client| !client.is_gone) {
            Some(client) => self.losses[export].tell(&mut client.cursors[export]),
            None => flushed,
        }
    }

    /// Sends until nothing is left (`true`) or the socket takes no more (`false`).
    fn flush(&mut self, at: usize, now: Instant) -> bool {
        let client = &mut self.clients[at];
        client.is_full = false;
        while client.conn.backlog_bytes() > 0 && !client.is_gone {
            self.calls.send += 1;
            let sent = client.link.try_send(&client.conn.poll_transmit());
            match sent {
                Ok(Some(count)) => {
                    client.conn.handle_transmitted(count, &mut self.done.pool);
                    client.moved_at = now;
                }
                Ok(None) => {
                    client.is_full = true;
                    return false;
                }
                Err(error) => {
                    debug!(peer = client.link.peer(), %error, "an NBD client went without waiting for its answers");
                    client.lose();
                }
            }
        }
        !client.is_gone
    }

    /// Waits for the next event and handles it. With `farewell`, waits until then at most and accepts no new client.
    fn wait(&mut self, farewell: Option<Instant>) -> io::Result<Option<AttachmentEnd>> {
        self.calls.wait += 1;
        let timeouts = self.devices.iter().map(|device| device.poll_timeout());
        let deadlines = self.clients.iter().map(NbdConnection::deadline);
        let pressed = self.poll_pressed(self.clock.now());
        let held = self.moving.as_ref().and_then(NbdMigration::poll_timeout).filter(|_| farewell.is_none());
        let at = timeouts.chain([farewell, self.deaf_until, held, pressed]).chain(deadlines).flatten().min();
        let is_turn_due = self.clients.iter().any(|client| client.is_waiting && !client.is_gone);
        let span = if is_turn_due { Some(Duration::ZERO) } else { at.map(|at| at - self.clock.now()) };
        let is_held = self.is_held();
        // A client that connects while the device is elsewhere waits.
        let is_away = self.moving.as_ref().is_some_and(NbdMigration::is_away);
        let has_place = self.deaf_until.is_none() && self.clients.len() < NBD_CONNECTIONS_MAX;
        // If all places are taken, a stuck client has to make room for one that connects.
        let now = self.clock.now();
        let has_stuck = self.deaf_until.is_none() && self.are_all_places_taken() && self.longest_stuck(now).is_some();
        let lets_in = farewell.is_none() && (has_place || has_stuck) && !is_away;

        let mut interests = Vec::with_capacity(INTERESTS_MAX);
        interests.push(PollInterest::new(self.stop.wake().as_fd(), false));
        let watched = self.watched.as_ref().filter(|_| farewell.is_none());
        interests.extend(watched.map(|link| PollInterest::hangup(link.as_fd())));
        let at_watched = watched.map(|_| interests.len() - 1);
        interests
            .extend(self.moving.as_ref().filter(|_| farewell.is_none()).map(|moving| moving.hold_handle.interest()));
        interests.extend(lets_in.then(|| PollInterest::new(self.listener.as_fd(), false)));
        let at_listener = lets_in.then(|| interests.len() - 1);
        let at_devices = interests.len();
        let outside = |at: &usize| self.devices[*at].readiness().and_then(DeviceWaitSource::interest);
        let waited_on: Vec<usize> = (0..self.devices.len()).filter(|at| outside(at).is_some()).collect();
        interests.extend(waited_on.iter().filter_map(outside));
        let at_clients = interests.len();
        // A client that has left only waits for its answers.
        let heard: Vec<usize> = (0..self.clients.len()).filter(|&at| !self.clients[at].is_gone).collect();
        interests.extend(heard.iter().map(|&at| {
            let client = &self.clients[at];
            let fd = client.link.as_fd();
            match (client.wants_input(&self.limits, is_held), client.is_full) {
                (true, is_full) => PollInterest::new(fd, is_full),
                (false, true) => PollInterest::room(fd),
                (false, false) => PollInterest::end(fd),
            }
        }));
        if farewell.is_some() {
            // The stop signal has been seen: its descriptor would stay readable for ever.
            interests[0] = PollInterest::end(self.stop.wake().as_fd());
        }
        wait(&mut interests, span)?;
        let ready: Vec<bool> = interests.iter().map(PollInterest::is_ready).collect();
        let readable: Vec<bool> = interests[at_clients..].iter().map(|interest| interest.readable).collect();
        drop(interests);

        if farewell.is_none() && ready[0] && self.stop.was_asked() {
            return Ok(Some(AttachmentEnd::Requested));
        }
        if at_watched.is_some_and(|at| ready[at]) {
            return Ok(Some(AttachmentEnd::Lost("the exporter ended the connection, or the way to it broke".into())));
        }
        let now = self.clock.now();
        for (position, &at) in waited_on.iter().enumerate() {
            if ready[at_devices + position] {
                self.devices[at].handle_ready(now, &mut self.done);
            }
        }
        for device in &mut self.devices {
            if device.poll_timeout().is_some_and(|at| at <= now) {
                device.handle_timeout(now, &mut self.done);
            }
        }
        self.deaf_until = self.deaf_until.filter(|until| *until > now);
        for (at, _) in heard.into_iter().zip(readable).filter(|(_, readable)| *readable) {
            self.receive(at, now);
        }
        for client in self.clients.iter_mut().filter(|client| client.deadline().is_some_and(|until| until <= now)) {
            info!(peer = client.link.peer(), "an NBD client that chose nothing was cut off");
            client.lose();
        }
        let has_visitor = at_listener.is_some_and(|at| ready[at]);
        for client in self.clients.iter_mut().filter(|client| client.keeps_idle_memory()) {
            if now - client.moved_at >= IDLE_TIME_MAX {
                client.memory.rest(&mut client.conn);
            }
        }
        if !is_held {
            self.cut_off_stuck(now, has_visitor && !has_place);
        }
        if has_visitor {
            self.let_in();
        }
        Ok(None)
    }

    fn receive(&mut self, at: usize, now: Instant) {
        let is_held = self.is_held();
        let client = &mut self.clients[at];
        if !client.wants_input(&self.limits, is_held) {
            // Only the end of the link was waited for.
            client.lose();
            return;
        }
        self.calls.receive += 1;
        let space = client.conn.receive_space();
        let room = space.len();
        match client.link.try_receive(space) {
            Ok(Some(0)) => {
                // It may still receive: its open answers are sent.
                client.is_deaf = true;
                client.conn.close();
            }
            Ok(Some(count)) => {
                client.has_more = count == room;
                client.moved_at = now;
                client.conn.handle_received(count);
            }
            Ok(None) => {}
            Err(error) => {
                debug!(peer = client.link.peer(), %error, "an NBD client was lost");
                client.lose();
            }
        }
    }

    /// When to check again for memory, or for clients that keep it from others.
    fn poll_pressed(&self, now: Instant) -> Option<Instant> {
        let is_short = self.clients.iter().any(|client| client.memory.is_short());
        let patience = self.budget.stuck_time_max();
        let stuck = self.clients.iter().filter_map(NbdConnection::stuck_since).min();
        let look_at = stuck.map(|since| if now - since < patience { since + patience } else { now + STUCK_PAUSE });
        let idle = self.clients.iter().filter(|client| client.keeps_idle_memory()).map(|client| client.moved_at).min();
        let rest_at = idle.map(|since| since + IDLE_TIME_MAX);
        [is_short.then_some(now + MEMORY_PAUSE), look_at, rest_at].into_iter().flatten().min()
    }

    /// Whether all places are taken, not counting clients that have left and still have requests open.
    fn are_all_places_taken(&self) -> bool {
        self.clients.iter().filter(|client| !client.is_gone).count() >= NBD_CONNECTIONS_MAX
    }

    /// The client that has been stuck for the longest time, if that is too long.
    fn longest_stuck(&self, now: Instant) -> Option<usize> {
        let since = |at: &usize| self.clients[*at].stuck_since().filter(|at| now - *at >= self.budget.stuck_time_max());
        (0..self.clients.len()).filter(|at| since(at).is_some()).min_by_key(since)
    }

    /// Cuts off a stuck client if another client waits for its memory or its place.
    fn cut_off_stuck(&mut self, now: Instant, is_place_wanted: bool) {
        let is_memory_wanted = self.budget.is_wanted();
        if !is_place_wanted && !is_memory_wanted {
            return;
        }
        let patience = self.budget.stuck_time_max();
        for client in &mut self.clients {
            let is_stuck = client.stuck_since().is_some_and(|since| now - since >= patience);
            if is_memory_wanted && is_stuck && client.memory.extra_bytes() > 0 {
                let (peer, bytes) = (client.link.peer(), client.memory.extra_bytes());
                info!(peer, bytes, "an NBD client was cut off that takes no answers, while others wait for the memory");
                client.lose();
            }
        }
        if is_place_wanted
            && self.are_all_places_taken()
            && let Some(at) = self.longest_stuck(now)
        {
            let client = &mut self.clients[at];
            info!(
                peer = client.link.peer(),
                "an NBD client was cut off that takes no answers, while another waits for its place"
            );
            client.lose();
        }
    }

    fn let_in(&mut self) {
        while self.clients.len() < NBD_CONNECTIONS_MAX {
            match self.listener.try_accept() {
                Ok(Some(link)) => {
                    let is_free = |number: &u16| {
                        self.clients.iter().all(|client| client.number != *number)
                            && self.orphans.iter().all(|orphan| NbdServerConn::number_of(*orphan) != *number)
                    };
                    let number = (0..SELF).find(is_free).expect("there are more numbers than clients");
                    let memory = match self.budget.admit() {
                        Ok(memory) => memory,
                        Err(exhausted) => {
                            warn!(peer = link.peer(), "an NBD client was turned away: {exhausted}");
                            continue;
                        }
                    };
                    debug!(number, peer = link.peer(), "an NBD client came");
                    let conn = NbdServerConn::new(number, Arc::clone(&self.exports), &self.limits);
                    let now = self.clock.now();
                    let client = NbdConnection::new(link, conn, memory, now, &self.losses);
                    self.clients.push(client.choosing_until(now + self.handshake_time_max));
                }
                Ok(None) => return,
                Err(error) => {
                    warn!(%error, "an NBD client was not let in");
                    self.deaf_until = Some(self.clock.now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Sends all open answers, and makes written data durable.
    fn say_farewell(&mut self) {
        let until = self.clock.now() + FAREWELL_TIME_MAX;
        self.clients.iter_mut().for_each(|client| client.conn.close());
        loop {
            self.serve();
            if self.clients.is_empty() || !self.waits_on(until) {
                break;
            }
        }
        let was_ours = !self.moving.as_ref().is_some_and(NbdMigration::is_expected);
        // Not this thread: a device may block it.
        let watch = FlushWatch::begin(self.flush_time_max, self.cutter.take());
        for (at, device) in self.devices.iter_mut().enumerate() {
            if !device.is_gone() && !device.info().is_read_only && was_ours {
                self.own_flushes += 1;
                let id = BlockId(u64::from(SELF) << 48 | at as u64);
                device.submit(self.clock.now(), BlockRequest::flush(id).launch(), &mut self.done);
            }
        }
        self.end_turn();
        self.hand_out();
        let until = self.clock.now() + self.flush_time_max + CUT_TIME_MAX;
        while self.own_flushes > 0 && self.waits_on(until) {
            self.end_turn();
            self.hand_out();
        }
        if self.own_flushes > 0 || watch.has_cut() {
            self.unflushed = Some("the device did not answer in time".into());
        }
    }

    /// Waits for more, until `until` at most. Returns `false` once that moment has passed.
    fn waits_on(&mut self, until: Instant) -> bool {
        self.clock.now() < until && self.wait(Some(until)).is_ok()
    }
}

fn wrong(reject: ProtocolViolation) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reject.to_string())
}
