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

use farbus_io::link::{Clock, Gathering, Link, LinkEnd, Wake, wait_exactly};
use farbus_model::limits::LANES_MAX;
use farbus_model::{Identity, Instant, Readiness};
use farbus_session::native::control::{Cause, End, Inherit, Open};
use farbus_session::native::hello::{Hello, Outcome, SessionId, Welcome};
use farbus_session::native::{ExporterSession, Inherited, LaneLimits, Left, Recalled, Served, Services, exporter};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Reservation, Standing};
use farbus_session::{Ending, Reject};
use tracing::{debug, info, warn};

use crate::exporter::access::quota::Visitor;
use crate::exporter::session::priority::{Favoured, LOOK_EVERY};
use crate::exporter::session::provider::limits_of;
pub use crate::exporter::session::provider::{Face, Fate, House, Opened, Tenant};
use crate::exporter::session::saved;
use crate::link::greeting;
use crate::link::link_set::Cable;
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
/// Links on their way to a session's thread: each lane's, twice.
const WAITING_LINKS_MAX: usize = 2 * LANES_MAX as usize;
/// How often something is looked at that nobody tells of.
const GLANCE: Duration = Duration::from_millis(20);

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
        if !session.draw_on(H::allowance(caller)) {
            warn!(peer = link.peer(), "no session begins: its peer holds as much memory as it may");
            return greeting::welcome(
                &link,
                &exporter::refusal(&hello, self.incarnation, Outcome::Refused),
                GREETING_TIME_MAX,
            );
        }
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
        // What another process held goes on, whatever its peer holds by now.
        let _ = session.draw_on(H::allowance(&caller));
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
    /// How many changes of identities its importer has been told.
    identity_changes: u64,
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
        let (favoured, identity_changes) = (Favoured::default(), house.identity_changes());
        let mut engine =
            Self { house, session, cable, watched, caller, peer, tenants, favoured, inbox, clock, identity_changes };
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
        while self.session.has_waiting_work() {
            if let Err(reject) = self.advance() {
                warn!(peer = self.peer, %reject, "the session was cut off");
                return Ok(Some(Last::CutOff));
            }
            self.flush();
        }
        let now = self.clock.now();
        self.see_to_favour(now);
        if self.session.is_ended() || (!self.session.is_linked() && self.session.is_needed_by_nobody()) {
            return Ok(Some(Last::Ended));
        }
        if self.session.is_over(now) {
            return Ok(Some(Last::Over));
        }
        if !self.watches_devices() {
            self.watch_all()?;
        }
        let due = [self.session.poll_timeout(), self.favoured.poll_timeout()].into_iter().flatten().min();
        let span = due.map(|at| at - now);
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
                asker.part(saved::save(&owner, &mut self.session, now, &reservations, |_, name| house.name_of(name)))
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
            let span = self.session.poll_timeout().map_or(GLANCE, |at| at - now);
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
            let (number, now) = (left.number, self.clock.now());
            let served = opened.and_then(|Opened { face, tenant, .. }| {
                let limits = limits_of(&**self.house, &*tenant);
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
        self.tell_identities();
        self.watch_all()
    }

    fn tell_identities(&mut self) {
        let mut opening =
            Opening { house: self.house, caller: &**self.caller, peer: &self.peer, tenants: &mut self.tenants };
        self.session.tell_identities(&mut opening);
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
                Err(error) if welcome.outcome == Outcome::Resumed => self.lose_to(&error),
                Ok(()) => {}
                Err(error) => debug!(peer = self.peer, %error, "a link that was refused ended in its greeting"),
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

    /// The first lane's link ended with this error, whatever was being done on it.
    fn lose_to(&mut self, error: &io::Error) {
        self.lose(LinkEnd::of(error), &error.to_string());
    }

    fn lose(&mut self, end: LinkEnd, why: &str) {
        let now = self.clock.now();
        self.cable.cut();
        match end {
            LinkEnd::Closed => self.session.handle_closed(now),
            LinkEnd::Lost => self.session.handle_lost(now),
        }
        if !self.session.is_ended() && self.session.attachments() > 0 {
            warn!(peer = self.peer, end = end.as_str(), why, "the link was lost; its session waits for another");
        }
    }

    /// Whether the importer kept to the protocol.
    fn receive(&mut self) -> bool {
        match self.cable.receive(self.session.lane_mut()) {
            Ok(None) => {}
            Ok(Some(0)) => self.lose(LinkEnd::Closed, "the peer closed it"),
            Ok(Some(_)) => {
                if let Err(reject) = self.advance() {
                    warn!(peer = self.peer, %reject, "the session was cut off");
                    return false;
                }
            }
            Err(error) => self.lose_to(&error),
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
            self.lose_to(&error);
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
        let changes = self.house.identity_changes();
        if std::mem::replace(&mut self.identity_changes, changes) != changes {
            self.tell_identities();
        }
        let may_close = self.session.may_close(self.clock.now());
        let mut ended = Vec::new();
        for (&number, tenant) in &self.tenants.by_number {
            let session = &mut self.session;
            match tenant.take_fate() {
                None => {}
                Some(Fate::Over(end)) => session.let_go(number, &end),
                Some(Fate::Back(face, lease)) => {
                    let limits = limits_of(&**self.house, &**tenant);
                    session.take_back(now, number, lease, face.served(number, limits, self.house.clock()));
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
        let opened = self.house.open(self.caller, self.peer, open, false)?;
        Ok(self.move_in(number, opened))
    }

    fn open_again(
        &mut self,
        _now: Instant,
        number: u16,
        open: &Open,
        _identity: Identity,
    ) -> Result<(u64, Box<dyn Served>), End> {
        let opened = self.house.open(self.caller, self.peer, open, true)?;
        Ok(self.move_in(number, opened))
    }

    fn identity(&mut self, open: &Open) -> Option<Identity> {
        self.house.device_identity(open)
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
        let limits = limits_of(&**self.house, &*tenant);
        self.tenants.by_number.insert(number, tenant);
        self.tenants.has_news = true;
        (lease, face.served(number, limits, self.house.clock()))
    }
}
