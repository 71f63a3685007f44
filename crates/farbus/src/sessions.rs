//! The exporter's sessions: each has a thread, which goes on without a link until the next one comes.
//!
//! Whoever connects says which session the link is for. A new one begins on the thread that met it; for one that is there the link is
//! handed over to its thread.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_host::DrivenDisk;
use farbus_io::link::{Clock, Gathering, Link, Progress, Wake, wait_exactly};
use farbus_model::{BlockDevice, BlockInfo, BufferPool, Completions, Device, Instant, Limits, Readiness};
use farbus_session::native::control::{Cause, End, Inherit, Open};
use farbus_session::native::hello::{Hello, Outcome, SessionId, Welcome};
use farbus_session::native::served_observer::Shown;
use farbus_session::native::{
    Allowed, Bequest, ExporterSession, GatedServed, Inherited, LaneLimits, Left, Recalled, Served, ServedBlock,
    ServedObserver, ServedUsb, Services, exporter,
};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Gate, Reservation, Standing};
use farbus_session::snapshot::Reader;
use farbus_session::{DeviceRecord, Ending, Reject};
use tracing::{debug, info, warn};

use crate::cable::Cable;
use crate::crowd::Visitor;
use crate::engine::{Mailbox, span_until};
use crate::favoured::{Favoured, LOOK_EVERY};
use crate::greeting;
use crate::legacies::{self, Owner};
use crate::links::Links;
use crate::parting::{Asked, Asker, Parter, Verdict};

/// How long a greeting may take.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest that a session outlives its link: what people call a short absence. An importer may ask for less.
pub const GRACE_MAX: Duration = Duration::from_secs(120);
/// How long what its devices do may take before what waits for ever is taken back, when another process is to go on.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);
/// How long it may take to come to rest then: less than whoever asks waits.
const REST_TIME_MAX: Duration = Duration::from_secs(4);
/// How long a device that another process had may take to be here.
const TAKE_UP_TIME_MAX: Duration = Duration::from_secs(10);
/// How often something is looked at that nobody tells of.
const GLANCE: Duration = Duration::from_millis(20);

/// What a session is for those who may end it or ask something of it.
pub trait Tenant: Send + Sync {
    /// Where its owner's orders are left; woken when [`Tenant::end`] has something to say.
    fn mailbox(&self) -> &Mailbox;

    /// Where the links of its session are shown.
    fn links(&self) -> &Links;

    /// Why it is to end, if it is.
    fn end(&self) -> Option<End>;

    /// Whether it ends here because another process goes on in this one's place: then its importer is told nothing, and comes back.
    fn is_replaced(&self) -> bool;

    /// It has ended, and how; said before its device is given back.
    fn note_ending(&self, ending: Ending);

    /// What became of its device, which was handed over; none so far, or it was not.
    fn take_fate(&self) -> Option<Fate>;

    /// How what is reserved for its device stands, if that is news.
    fn take_reserved(&self) -> Option<Standing>;

    /// The same for the last time: nobody waits for one any more.
    fn leave(&self) -> Option<Fate>;
}

/// What became of a device that was handed over.
pub enum Fate {
    /// It is somebody else's, and why.
    Over(End),
    /// Nobody came for it: it is its user's again, under this lease.
    Back(Face, u64),
}

/// A device that was opened for a session, and who may ask something of its attachment.
pub struct Opened {
    /// The device.
    pub face: Face,
    /// Whoever may end the attachment.
    pub tenant: Arc<dyn Tenant>,
    /// By which it may be handed over; 0 if it cannot be.
    pub lease: u64,
}

/// Takes a device back.
pub type GiveBack<D> = Box<dyn FnOnce(D, Instant) + Send>;

/// Takes a device that is handed over; says whether it waits for its heir.
pub type PassOn<D> = Box<dyn FnOnce(D, Instant, Bequest) -> bool + Send>;

/// As what a device was opened.
pub enum Face {
    /// A USB device.
    Usb {
        /// What it is called.
        record: DeviceRecord,
        /// It.
        device: Box<dyn Device>,
        /// Where it goes in the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// Or where if it is handed over.
        pass_on: PassOn<Box<dyn Device>>,
    },
    /// What shows itself: a USB device that somebody else may use, a stream of frames.
    Observer {
        /// Where it is looked at from.
        seat: Box<dyn Shown>,
        /// Ready when there is something to see.
        readiness: Readiness,
        /// Makes it unready.
        hush: Box<dyn Fn() + Send>,
        /// What it is.
        description: Vec<u8>,
        /// Told in the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
        /// What suspends it, if anything does.
        gate: Option<Gate>,
    },
    /// A block device that somebody else uses, for whoever is to inherit it.
    Shown {
        /// It, to be read.
        device: Box<dyn BlockDevice>,
        /// What it will be.
        info: BlockInfo,
        /// What to say of what is not flushed.
        durability: u64,
        /// Told in the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
    },
    /// A block device.
    Block {
        /// It.
        device: Box<dyn BlockDevice>,
        /// What to say of what is not flushed.
        durability: u64,
        /// Where it goes in the end.
        give_back: GiveBack<Box<dyn BlockDevice>>,
        /// Or where if it is handed over.
        pass_on: PassOn<Box<dyn BlockDevice>>,
        /// What suspends it, if anything does.
        gate: Option<Gate>,
    },
    /// A USB disk that is driven here, as a block device.
    Disk {
        /// It.
        disk: Box<DrivenDisk<Box<dyn Device>>>,
        /// What to say of what is not flushed.
        durability: u64,
        /// Where the USB device goes in the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// What suspends it, if anything does.
        gate: Option<Gate>,
    },
}

impl Face {
    fn served(self, number: u16, limits: Limits, clock: Clock) -> Box<dyn Served> {
        let clock = Box::new(move || clock.now());
        match self {
            Face::Usb { record, device, give_back, pass_on } => {
                let usb = ServedUsb::new(number, device, record, limits, give_back);
                Box::new(usb.inheritable(pass_on).timed_by(clock))
            }
            Face::Block { device, durability, give_back, pass_on, gate } => {
                let block = ServedBlock::new(number, device, durability, give_back);
                behind(gate, Box::new(block.inheritable(pass_on).timed_by(clock)))
            }
            Face::Shown { device, info, durability, leave } => {
                let block = ServedBlock::new(number, device, durability, move |_, now| leave(now));
                Box::new(block.promising(info).timed_by(clock))
            }
            Face::Disk { disk, durability, give_back, gate } => {
                let give_back = move |disk: Box<DrivenDisk<Box<dyn Device>>>, now| {
                    let mut unheard = Completions::new(BufferPool::new(0));
                    let device = disk.into_device(now, &mut unheard);
                    while unheard.pop().is_some() {}
                    give_back(device, now);
                };
                behind(gate, Box::new(ServedBlock::new(number, disk, durability, give_back).timed_by(clock)))
            }
            Face::Observer { seat, readiness, hush, description, leave, gate } => {
                let shown = Box::new(ServedObserver::new(number, seat, readiness, hush, description, leave));
                match gate {
                    None => shown,
                    Some(gate) => Box::new(GatedServed::new(shown, gate).quiet()),
                }
            }
        }
    }

    /// The same, where another process wrote down how it stood; what does not make sense is given back, after a reset.
    fn serve_again(self, clock: Clock, limits: Limits, left: &Left) -> Result<Box<dyn Served>, Reject> {
        let mut served = self.served(left.number, limits, clock);
        let missing = Reject::new("state", 0, "it is one that can go on in another process");
        let state = left.state.as_ref().ok_or(missing);
        match state.and_then(|state| served.restore(clock.now(), &mut Reader::new(state))) {
            Ok(()) => Ok(served),
            Err(reject) => {
                served.finish(clock.now());
                Err(reject)
            }
        }
    }
}

fn behind(gate: Option<Gate>, served: Box<dyn Served>) -> Box<dyn Served> {
    match gate {
        None => served,
        Some(gate) => Box::new(GatedServed::new(served, gate)),
    }
}

/// What sessions are offered.
pub trait House: Send + Sync + 'static {
    /// Whoever has a session, while it has one.
    type Caller: Tenant + 'static;

    /// The time there.
    fn clock(&self) -> Clock;

    /// What one session may hold.
    fn limits(&self) -> Limits;

    /// Whose a caller's session is; none where nobody knows who it is.
    fn owner(caller: &Self::Caller) -> Option<Visitor>;

    /// Which modules may be asked for.
    fn modules(&self) -> Option<Arc<Allowed>> {
        None
    }

    /// Opens a device for `caller`, who is called `peer` now.
    ///
    /// # Errors
    /// [`End`]: why not.
    fn open(self: &Arc<Self>, caller: &Self::Caller, peer: &str, open: &Open) -> Result<Opened, End>;

    /// The same for a device that is to be handed over to `caller`, and what came along with it; none: it was not yet.
    ///
    /// # Errors
    /// [`End`]: it never will.
    fn inherit(
        self: &Arc<Self>,
        caller: &Self::Caller,
        peer: &str,
        inherit: &Inherit,
    ) -> Option<Result<(Opened, Vec<u8>), End>>;

    /// What `caller` may see of a device before it is handed over to him; none: nothing, he just waits.
    ///
    /// # Errors
    /// [`End`]: it never will be; *gone* may pass by.
    fn show(self: &Arc<Self>, caller: &Self::Caller, peer: &str, inherit: &Inherit) -> Option<Result<Opened, End>>;

    /// Whose a session is, for another process.
    fn identity(caller: &Self::Caller) -> Owner;

    /// The name in the lists of a device that was opened by this one.
    fn name_of(&self, opened_as: &str) -> String;

    /// Opens what another process had opened for the same caller.
    ///
    /// # Errors
    /// [`End`]: why not; *gone* may pass by.
    fn reopen(self: &Arc<Self>, caller: &Self::Caller, left: &Left) -> Result<Opened, End>;

    /// What was opened so and handed over, if nobody knows yet what becomes of it: it goes on in another process.
    fn recall(self: &Arc<Self>, open: &Open) -> Option<(Opened, Bequest)>;

    /// Reserves what is asked for the device that `caller` opens next, over a path that was measured.
    ///
    /// # Errors
    /// How it stands, and why in words.
    fn reserve(
        &self,
        caller: &Self::Caller,
        open: &Open,
        reservation: &Reservation,
        path: Path,
    ) -> Result<Standing, (Standing, End)>;

    /// What was reserved so is not needed.
    fn unreserve(&self, open: &Open);

    /// How what is reserved for a device stands.
    fn reserved(&self, open: &Open) -> Option<Standing>;

    /// The link that carries a device for which something is reserved has come so far.
    fn note_progress(&self, open: &Open, progress: Progress);

    /// All that is reserved, for another process.
    fn reservations(&self) -> Vec<u8>;

    /// What another process had opened is opened here, or will not be.
    fn settle(&self, left: &Left);
}

/// A session of another process that is yet to go on here.
pub struct Pending<H: House> {
    caller: Arc<H::Caller>,
    inbox: Arc<Inbox>,
    session: ExporterSession,
    left: Vec<Left>,
}

/// The sessions that are there.
pub struct Sessions {
    table: Mutex<BTreeMap<SessionId, Arc<Inbox>>>,
    incarnation: u64,
}

/// Links on their way to a session's thread.
struct Inbox {
    /// None: whoever knows its name may have it, over a link without encryption.
    owner: Option<Visitor>,
    links: Mutex<Vec<(Link, Hello)>>,
    wake: Arc<Wake>,
    parter: Parter<Vec<u8>>,
}

impl Inbox {
    fn new(owner: Option<Visitor>) -> io::Result<Arc<Self>> {
        let wake = Arc::new(Wake::new()?);
        let (links, parter) = (Mutex::default(), Parter::new(Arc::clone(&wake)));
        Ok(Arc::new(Self { owner, links, wake, parter }))
    }
}

impl Default for Sessions {
    fn default() -> Self {
        Self { table: Mutex::default(), incarnation: u64::from_le_bytes(random()) }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    farbus_io::trust::fill_random(&mut bytes);
    bytes
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Inbox>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody is on the line who speaks it: a session begins and is served until it ends, or a link more is handed over.
    ///
    /// # Errors
    /// The link was lost before a session had it.
    pub fn serve<H: House>(&self, house: &Arc<H>, link: Link, caller: &Arc<H::Caller>) -> io::Result<()> {
        let hello = greeting::hear_hello(&link, GREETING_TIME_MAX)?;
        if hello.standing.session != SessionId::NONE {
            return self.hand_over(link, hello, H::owner(caller));
        }
        let id = SessionId(random());
        let limits = LaneLimits::DEFAULT;
        let begun = ExporterSession::begin(&hello, id, self.incarnation, GRACE_MAX, limits);
        let (mut session, welcome) = match begun {
            Ok(begun) => begun,
            Err(refusal) => return greeting::welcome(&link, &refusal, GREETING_TIME_MAX),
        };
        allow(&mut session, house);
        let inbox = Inbox::new(H::owner(caller))?;
        self.table().insert(id, Arc::clone(&inbox));
        let greeted = greeting::welcome(&link, &welcome, GREETING_TIME_MAX);
        let peer = link.peer().to_owned();
        let engine = Engine::new(house, session, Some(link), caller, peer, &inbox);
        let served = greeted.and(engine).map(Engine::run);
        self.table().remove(&id);
        served
    }

    /// Asks every session to be ready for another process.
    pub fn ask_all(&self) -> Vec<Asked<Vec<u8>>> {
        self.table().values().map(|inbox| inbox.parter.ask()).collect()
    }

    /// Links for a session of another process are kept for it from now on.
    ///
    /// # Errors
    /// If the system has no more descriptors, or there is such a session already.
    pub fn expect<H: House>(
        &self,
        caller: Arc<H::Caller>,
        session: ExporterSession,
        left: Vec<Left>,
    ) -> io::Result<Pending<H>> {
        let inbox = Inbox::new(H::owner(&caller))?;
        match self.table().entry(session.id()) {
            Entry::Vacant(entry) => drop(entry.insert(Arc::clone(&inbox))),
            Entry::Occupied(_) => return Err(io::Error::other("two sessions have one name")),
        }
        Ok(Pending { caller, inbox, session, left })
    }

    /// Goes on with it until it ends.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn go_on<H: House>(&self, house: &Arc<H>, pending: Pending<H>) -> io::Result<()> {
        let Pending { caller, inbox, mut session, left } = pending;
        allow(&mut session, house);
        let (id, peer) = (session.id(), H::identity(&caller).peer);
        let served = Engine::new(house, session, None, &caller, peer, &inbox).and_then(|mut engine| {
            engine.take_up(left)?;
            engine.run();
            Ok(())
        });
        self.table().remove(&id);
        served
    }

    /// The session's thread is told; one that is not there, or another host's, is not known.
    fn hand_over(&self, link: Link, hello: Hello, owner: Option<Visitor>) -> io::Result<()> {
        let inbox = self.table().get(&hello.standing.session).cloned();
        match inbox.filter(|inbox| inbox.owner == owner) {
            Some(inbox) => {
                inbox.links.lock().unwrap_or_else(PoisonError::into_inner).push((link, hello));
                inbox.wake.wake();
                Ok(())
            }
            None => {
                let refusal = exporter::refusal(&hello, self.incarnation, Outcome::Unknown);
                greeting::welcome(&link, &refusal, GREETING_TIME_MAX)
            }
        }
    }
}

/// One session's thread.
struct Engine<'a, H: House> {
    house: &'a Arc<H>,
    session: ExporterSession,
    cable: Cable,
    /// What the cable waits on for devices.
    watched: Vec<Readiness>,
    caller: &'a Arc<H::Caller>,
    peer: String,
    tenants: Tenants,
    /// Its devices for which something is reserved, and how the link stands because of that.
    favoured: Favoured,
    inbox: &'a Inbox,
    clock: Clock,
}

/// Whoever may end an attachment of a session or ask something of it.
#[derive(Default)]
struct Tenants {
    by_number: BTreeMap<u16, Arc<dyn Tenant>>,
    /// One moved in whose mailbox nobody waits on yet.
    has_news: bool,
}

/// Why a turn was the last.
enum Last {
    /// The importer said so, or the owner here.
    Ended,
    /// Nobody came back in time.
    Over,
    /// The importer broke the protocol.
    CutOff,
    /// Another process goes on with it.
    HandedOver,
}

impl<'a, H: House> Engine<'a, H> {
    fn new(
        house: &'a Arc<H>,
        session: ExporterSession,
        link: Option<Link>,
        caller: &'a Arc<H::Caller>,
        peer: String,
        inbox: &'a Inbox,
    ) -> io::Result<Self> {
        let clock = house.clock();
        let mut cable = Cable::shown_by(caller.links().clone())?;
        if let Some(link) = link {
            cable.put(link)?;
        }
        let (tenants, watched) = (Tenants::default(), Vec::new());
        let favoured = Favoured::default();
        let mut engine = Self { house, session, cable, watched, caller, peer, tenants, favoured, inbox, clock };
        engine.watch_all()?;
        Ok(engine)
    }

    fn run(mut self) {
        // Devices made of code have moments of their own.
        wait_exactly();
        let last = loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(last)) => break last,
                Err(error) => {
                    warn!(peer = self.peer, %error, "the session cannot wait");
                    break Last::Ended;
                }
            }
        };
        let now = self.clock.now();
        let ending = match last {
            Last::Ended => Ending::Detached,
            Last::Over => Ending::Lost,
            Last::CutOff => Ending::CutOff,
            Last::HandedOver => Ending::HandedOver,
        };
        for (&number, tenant) in &self.tenants.by_number {
            tenant.note_ending(ending);
            if let Some(Fate::Back(face, _)) = tenant.leave() {
                face.served(number, self.house.limits(), self.house.clock()).finish(now);
            }
        }
        match last {
            Last::Over => warn!(peer = self.peer, "nobody came back in time; its devices are offered again"),
            Last::Ended | Last::CutOff => debug!(peer = self.peer, "the session ended"),
            Last::HandedOver => debug!(peer = self.peer, "the session goes on in another process"),
        }
        match last {
            Last::HandedOver => self.session.leave(now),
            Last::Ended | Last::Over | Last::CutOff => self.session.finish(now),
        }
        self.cable.cut_all();
    }

    /// Does what can be done, sends what can be sent, waits for what comes next.
    fn turn(&mut self) -> io::Result<Option<Last>> {
        self.take_links()?;
        let now = self.clock.now();
        if let Some(end) = self.caller.end().filter(|_| self.session.may_close(now)) {
            for number in self.tenants.by_number.keys().filter(|_| !self.caller.is_replaced()) {
                self.session.close(now, *number, &end);
            }
            self.flush();
            return Ok(Some(Last::Ended));
        }
        if let Some(asker) = self.inbox.parter.asked() {
            return self.part(asker);
        }
        let before = self.session.attachments();
        self.carry_out_orders();
        if self.favoured.has_news {
            // What waited is to go at the pace of now.
            self.see_to_favour(self.clock.now());
        }
        if !self.receive() {
            return Ok(Some(Last::CutOff));
        }
        self.session.handle_ready(self.clock.now());
        if std::mem::take(&mut self.tenants.has_news) || self.session.attachments() != before {
            self.favoured.note_news();
            let session = &self.session;
            self.tenants.by_number.retain(|&number, _| session.is_attached(number));
            self.watch_all()?;
        }
        self.flush();
        let now = self.clock.now();
        self.see_to_favour(now);
        if self.session.is_ended() {
            return Ok(Some(Last::Ended));
        }
        if self.session.is_over(now) {
            return Ok(Some(Last::Over));
        }
        if !self.watches_devices() {
            self.watch_all()?;
        }
        let due = [self.session.poll_timeout(), self.favoured.poll_timeout()].into_iter().flatten().min();
        let span = due.map(|at| span_until(at, now));
        let only_talk = self.session.only_talks();
        self.cable.wait(self.session.lane_mut(), span, only_talk).map(|()| None)
    }

    /// The link goes before others, or behind them, as what is reserved for its devices says, and tells how far it has come. One whose
    /// devices have nothing reserved does neither.
    fn see_to_favour(&mut self, now: Instant) {
        if std::mem::take(&mut self.favoured.has_news) {
            let house = self.house;
            self.favoured.devices =
                self.session.opened().filter_map(|open| Some((open.clone(), house.reserved(open)?))).collect();
            if self.favoured.has_changed()
                && let Some(link) = self.cable.link()
            {
                link.favour(self.favoured.favour());
            }
        }
        if self.favoured.poll_timeout().is_some_and(|at| at <= now) {
            self.favoured.next_at = Some(now + LOOK_EVERY);
            let progress = self.cable.link().and_then(Link::progress);
            for (open, _) in &self.favoured.devices {
                progress.into_iter().for_each(|progress| self.house.note_progress(open, progress));
            }
        }
    }

    /// Another process is to go on: nothing more is heard, what devices do is ended, and the rest is written down.
    fn part(&mut self, asker: Asker<Vec<u8>>) -> io::Result<Option<Last>> {
        let (house, owner) = (self.house, H::identity(self.caller));
        self.carry_out_orders();
        let now = self.clock.now();
        let mut opening = Opening { house, caller: &**self.caller, peer: &self.peer, tenants: &mut self.tenants };
        self.session.recall(now, &mut opening);
        let verdict = match self.come_to_rest()? {
            // Whoever asked hears nothing, and gives up.
            false => Verdict::Stay,
            true => {
                let now = self.clock.now();
                let reservations = house.reservations();
                asker.part(legacies::save(&owner, &mut self.session, now, &reservations, |_, name| house.name_of(name)))
            }
        };
        if verdict == Verdict::Go {
            return Ok(Some(Last::HandedOver));
        }
        self.session.go_on(self.clock.now());
        Ok(None)
    }

    /// Whether it did, in time.
    fn come_to_rest(&mut self) -> io::Result<bool> {
        let devices = Gathering::new()?;
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
            let span = self.session.poll_timeout().map_or(GLANCE, |at| span_until(at, now));
            devices.wait(Some(span.min(GLANCE)))?;
        }
    }

    /// Opens what another process had open, as soon as it is here.
    fn take_up(&mut self, all: Vec<Left>) -> io::Result<()> {
        self.favoured.note_news();
        let until = self.clock.now() + TAKE_UP_TIME_MAX;
        for left in all {
            let opened = loop {
                match self.house.reopen(self.caller, &left) {
                    Err(end) if end.cause == Cause::Gone && self.clock.now() < until && self.caller.end().is_none() => {
                        thread::sleep(GLANCE);
                    }
                    result => break result,
                }
            };
            let (number, now, limits) = (left.number, self.clock.now(), self.house.limits());
            let served = opened.and_then(|Opened { face, tenant, .. }| {
                let served = face.serve_again(self.clock, limits, &left);
                self.tenants.by_number.insert(number, tenant);
                served.map_err(|reject| End { cause: Cause::Device, message: format!("it cannot go on: {reject}") })
            });
            self.house.settle(&left);
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
        self.watch_all()
    }

    /// Heirs see again what they saw in another process, as soon as it is here.
    fn show_again(&mut self, until: Instant) {
        loop {
            let now = self.clock.now();
            let mut opening =
                Opening { house: self.house, caller: &**self.caller, peer: &self.peer, tenants: &mut self.tenants };
            if self.session.show_again(now, &mut opening) {
                return;
            }
            if now >= until || self.caller.end().is_some() {
                let message = "no such device is shared here any more".to_owned();
                return self.session.give_up_heirs(now, &End { cause: Cause::Gone, message });
            }
            thread::sleep(GLANCE);
        }
    }

    fn watch_all(&mut self) -> io::Result<()> {
        self.cable.watch_anew()?;
        self.cable.watch(&self.inbox.wake)?;
        self.cable.watch(self.caller.mailbox())?;
        for tenant in self.tenants.by_number.values() {
            self.cable.watch(tenant.mailbox())?;
        }
        self.watched.clear();
        self.watched.extend(self.session.readiness().cloned());
        self.watched.iter().try_for_each(|readiness| self.cable.watch_device(readiness))
    }

    /// Whether each device is waited for where it says so now: one that is being reset says so elsewhere.
    fn watches_devices(&self) -> bool {
        let mut watched = self.watched.iter();
        self.session.readiness().all(|now| watched.next().is_some_and(|then| then.is(now))) && watched.next().is_none()
    }

    /// Links that were handed over: the latest is ours.
    fn take_links(&mut self) -> io::Result<()> {
        self.inbox.wake.clear();
        let links = std::mem::take(&mut *self.inbox.links.lock().unwrap_or_else(PoisonError::into_inner));
        for (link, hello) in links {
            let welcome = self.session.resume(&hello);
            if hello.standing.lane != 0 {
                self.take_further(link, &welcome)?;
                continue;
            }
            if welcome.outcome == Outcome::Resumed {
                // The old one, if it was not known to be lost, is.
                self.cable.cut();
                info!(peer = self.peer, link = hello.standing.link, "the session goes on over a new link");
            }
            match greeting::welcome(&link, &welcome, GREETING_TIME_MAX) {
                Ok(()) if welcome.outcome == Outcome::Resumed => {
                    self.cable.put(link)?;
                    self.favoured.note_link();
                }
                Ok(()) => {}
                Err(error) => {
                    debug!(peer = self.peer, %error, "a link was lost in its greeting");
                    self.session.handle_lost(self.clock.now());
                }
            }
        }
        Ok(())
    }

    /// The same for a further lane, whatever becomes of the first.
    fn take_further(&mut self, link: Link, welcome: &Welcome) -> io::Result<()> {
        let (number, is_ours) = (welcome.standing.lane, welcome.outcome == Outcome::Resumed);
        if is_ours {
            self.cable.cut_further(number);
            debug!(peer = self.peer, lane = number, "the session has a further link");
        }
        match greeting::welcome(&link, welcome, GREETING_TIME_MAX) {
            Ok(()) if is_ours => self.cable.put_further(number, link),
            Ok(()) => Ok(()),
            Err(error) => {
                debug!(peer = self.peer, lane = number, %error, "a link was lost in its greeting");
                if is_ours {
                    self.session.handle_lane_lost(number, self.clock.now());
                }
                Ok(())
            }
        }
    }

    /// Its importer makes another; how long that may take is his to say.
    fn lose_further(&mut self, number: u16, why: &str) {
        self.cable.cut_further(number);
        self.session.handle_lane_lost(number, self.clock.now());
        debug!(peer = self.peer, lane = number, why, "a further link was lost");
    }

    fn lose(&mut self, is_closed: bool, why: &str) {
        let now = self.clock.now();
        self.cable.cut();
        if is_closed {
            self.session.handle_closed(now);
        } else {
            self.session.handle_lost(now);
        }
        if !self.session.is_ended() && self.session.attachments() > 0 {
            warn!(peer = self.peer, why, "the link was lost; its session waits for another");
        }
    }

    /// Whether the importer kept to the protocol.
    fn receive(&mut self) -> bool {
        match self.cable.receive(self.session.lane_mut()) {
            Ok(None) => {}
            Ok(Some(0)) => self.lose(true, "the peer closed it"),
            Ok(Some(_)) => {
                if let Err(reject) = self.advance() {
                    warn!(peer = self.peer, %reject, "the session was cut off");
                    return false;
                }
            }
            Err(error) => {
                let is_closed = matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof);
                self.lose(is_closed, &error.to_string());
            }
        }
        self.cable.further().all(|number| self.receive_further(number))
    }

    fn receive_further(&mut self, number: u16) -> bool {
        let Some(lane) = self.session.lanes_mut().get_mut(number) else { return true };
        match self.cable.receive_further(number, lane) {
            Ok(None) => {}
            Ok(Some(0)) => self.lose_further(number, "the peer closed it"),
            Ok(Some(_)) => {
                if let Err(reject) = self.advance() {
                    warn!(peer = self.peer, lane = number, %reject, "the session was cut off");
                    return false;
                }
            }
            Err(error) => self.lose_further(number, &error.to_string()),
        }
        true
    }

    fn advance(&mut self) -> Result<(), Reject> {
        loop {
            let (now, house) = (self.clock.now(), self.house);
            let mut opening = Opening { house, caller: &**self.caller, peer: &self.peer, tenants: &mut self.tenants };
            if !self.session.advance(now, &mut opening)? {
                return Ok(());
            }
            if !self.cable.is_blocked() {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.cable.send(self.session.lane_mut(), self.clock) {
            self.lose(false, &error.to_string());
        }
        for number in self.cable.further() {
            let Some(lane) = self.session.lanes_mut().get_mut(number) else { continue };
            if let Err(error) = self.cable.send_further(number, lane, self.clock) {
                self.lose_further(number, &error.to_string());
            }
        }
    }

    fn carry_out_orders(&mut self) {
        self.caller.mailbox().clear();
        let now = self.clock.now();
        if self.session.has_heirs() {
            let mut opening =
                Opening { house: self.house, caller: &**self.caller, peer: &self.peer, tenants: &mut self.tenants };
            self.session.look_for_legacies(now, &mut opening);
        }
        let may_close = self.session.may_close(self.clock.now());
        let mut ended = Vec::new();
        for (&number, tenant) in &self.tenants.by_number {
            let session = &mut self.session;
            match tenant.take_fate() {
                None => {}
                Some(Fate::Over(end)) => session.let_go(number, &end),
                Some(Fate::Back(face, lease)) => {
                    session.take_back(now, number, lease, face.served(number, self.house.limits(), self.house.clock()));
                }
            }
            if let Some(standing) = tenant.take_reserved() {
                session.say_standing(number, standing);
                self.favoured.note_news();
            }
            tenant.mailbox().carry_out(|command| session.command(now, number, command));
            if let Some(end) = tenant.end().filter(|_| !tenant.is_replaced() && may_close) {
                ended.push((number, end));
            }
        }
        for (number, end) in ended {
            self.session.close(now, number, &end);
        }
    }
}

fn allow<H: House>(session: &mut ExporterSession, house: &Arc<H>) {
    if let Some(modules) = house.modules() {
        session.allow(modules);
    }
}

/// What a session's importer may open.
struct Opening<'a, H: House> {
    house: &'a Arc<H>,
    caller: &'a H::Caller,
    peer: &'a str,
    tenants: &'a mut Tenants,
}

impl<H: House> Services for Opening<'_, H> {
    fn reserve(&mut self, open: &Open, reservation: &Reservation, path: Path) -> Result<Standing, (Standing, End)> {
        self.house.reserve(self.caller, open, reservation, path)
    }

    fn unreserve(&mut self, open: &Open) {
        self.house.unreserve(open);
    }

    fn open(&mut self, _now: Instant, number: u16, open: &Open) -> Result<(u64, Box<dyn Served>), End> {
        let opened = self.house.open(self.caller, self.peer, open)?;
        Ok(self.move_in(number, opened))
    }

    fn inherit(&mut self, _now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Inherited, End>> {
        let inherited = self.house.inherit(self.caller, self.peer, inherit)?;
        Some(inherited.map(|(opened, luggage)| {
            let (lease, served) = self.move_in(number, opened);
            Inherited { lease, served, luggage }
        }))
    }

    fn recall(&mut self, _now: Instant, number: u16, open: &Open) -> Option<Recalled> {
        let (opened, bequest) = self.house.recall(open)?;
        let (lease, served) = self.move_in(number, opened);
        Some(Recalled { lease, served, bequest })
    }

    fn show(&mut self, _now: Instant, number: u16, inherit: &Inherit) -> Option<Result<Box<dyn Served>, End>> {
        let shown = self.house.show(self.caller, self.peer, inherit)?;
        Some(shown.map(|opened| self.move_in(number, opened).1))
    }
}

impl<H: House> Opening<'_, H> {
    fn move_in(&mut self, number: u16, Opened { face, tenant, lease }: Opened) -> (u64, Box<dyn Served>) {
        self.tenants.by_number.insert(number, tenant);
        self.tenants.has_news = true;
        (lease, face.served(number, self.house.limits(), self.house.clock()))
    }
}
