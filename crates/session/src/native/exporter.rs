//! The exporter's end of a session.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::{BufferPool, Command, CommandError, Instant, Readiness};
use farbus_wire::native::control::{Cause, Close, Credit, End, HANDED_OVER, Open, Opened};
use farbus_wire::native::frame::Head;
use farbus_wire::native::hello::VERSION;
use farbus_wire::native::{
    Arrived, Flow, Hello, Kind, Lane, LaneLimits, Message, Options, Outcome, Part, SessionId, Standing, Urgency,
    Welcome,
};

use crate::Reject;

/// Attachments of one session: as many devices as the largest lab has on one host, doubled.
const ATTACHMENTS_MAX: usize = 512;
/// Data moved, either way, that is worth a system call to say so, if it is of small requests: the importer works on the answers while the
/// rest is made, and they are still in the cache.
const ENOUGH_BYTES_MIN: usize = 64 << 10;
/// The same of large ones, of which it is two otherwise.
const ENOUGH_BYTES_MAX: usize = 256 << 10;
/// How long an importer is waited for that ended its link itself.
const CLOSED_GRACE_MAX: Duration = Duration::from_secs(4);

/// A device of ours that an attachment serves: the class's own half of an exporter (requirement N1: connect, receive, transmit,
/// disconnect). A new class is one more of these; nothing else changes.
pub trait Served: Send {
    /// What may be in flight.
    fn credit(&self) -> Credit;

    /// What the device is, in its class's words.
    fn description(&self) -> Vec<u8>;

    /// A request, more of its data, or its withdrawal arrived. What is to be said goes to `lane`.
    ///
    /// # Errors
    /// [`Reject`]: the importer broke the protocol; the session is over.
    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, lane: &mut Lane) -> Result<(), Reject>;

    /// Something may have happened to what [`Served::readiness`] stands for, or the moment of [`Served::poll_timeout`] come.
    fn handle_ready(&mut self, now: Instant, lane: &mut Lane);

    /// When [`Served::handle_ready`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant>;

    /// What to wait on besides the link.
    fn readiness(&self) -> Option<&Readiness>;

    /// Whether it has nothing to say before it is asked something, or its moment comes.
    fn is_idle(&self) -> bool {
        false
    }

    /// The owner asks something of the device.
    ///
    /// # Errors
    /// [`CommandError`] when the device does not know it or refuses.
    fn command(&mut self, now: Instant, command: &Command, lane: &mut Lane) -> Result<(), CommandError> {
        let _ = (now, lane);
        Err(CommandError::unknown(command))
    }

    /// Where it takes buffers from, if it does. The session lends it its own, to which what was sent comes back.
    fn pool_mut(&mut self) -> Option<&mut BufferPool> {
        None
    }

    /// Why it is of no use any more, if it is.
    fn poll_end(&mut self) -> Option<End>;

    /// The importer hands the device over as it is to the host with this key: nothing is reset. What is in flight is withdrawn; its
    /// importer has waited for what it wants answered. A class that knows no such thing ends.
    fn hand_over(self: Box<Self>, now: Instant, heir: [u8; 32]) {
        let _ = heir;
        self.finish(now);
    }

    /// The attachment is over: everything in flight is withdrawn, and the device given back.
    fn finish(self: Box<Self>, now: Instant);
}

/// What an exporter offers to sessions.
pub trait Services {
    /// Opens a device for attachment `number`, and says under which lease.
    ///
    /// # Errors
    /// [`End`]: why not.
    fn open(&mut self, now: Instant, number: u16, open: &Open) -> Result<(u64, Box<dyn Served>), End>;
}

/// The exporter's end: a lane, the state of the link below it, and what is attached.
pub struct ExporterSession {
    lane: Lane,
    session: SessionId,
    /// The last link's number.
    link: u64,
    /// The importer's.
    their_incarnation: u64,
    incarnation: u64,
    grace: Duration,
    /// Without a link: until when one is waited for.
    lost_until: Option<Instant>,
    attachments: BTreeMap<u16, Box<dyn Served>>,
    is_ended: bool,
    pool: BufferPool,
}

impl ExporterSession {
    /// A session that begins with this greeting, and what to answer. `session` is random; `grace_max` is the longest that a
    /// session outlives its link here.
    ///
    /// # Errors
    /// [`Welcome`]: what to answer instead, if none can begin.
    pub fn begin(
        hello: &Hello,
        session: SessionId,
        incarnation: u64,
        grace_max: Duration,
        limits: LaneLimits,
    ) -> Result<(Self, Welcome), Welcome> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Err(refusal(hello, incarnation, Outcome::Version));
        }
        if hello.standing.session != SessionId::NONE {
            return Err(refusal(hello, incarnation, Outcome::Unknown));
        }
        if hello.standing.lane != 0 {
            return Err(refusal(hello, incarnation, Outcome::Refused));
        }
        let wished = hello.options.grace_ms.map_or(grace_max, |ms| Duration::from_millis(ms.into()));
        let mut begun = Self {
            lane: Lane::new(limits),
            session,
            link: hello.standing.link,
            their_incarnation: hello.standing.incarnation,
            incarnation,
            grace: wished.min(grace_max),
            lost_until: None,
            attachments: BTreeMap::new(),
            is_ended: false,
            pool: BufferPool::new(limits.unacknowledged_bytes_max / 4),
        };
        begun.lane.handle_linked(0, &mut begun.pool).expect("a new lane has sent nothing, and nothing arrived");
        let welcome = begun.welcome(Outcome::Begun);
        Ok((begun, welcome))
    }

    /// The importer of this session has a new link; what to answer there. Unless it says [`Outcome::Resumed`] the link is none
    /// of ours, and the session goes on as it was.
    pub fn resume(&mut self, hello: &Hello) -> Welcome {
        let theirs = hello.standing;
        let is_same =
            theirs.session == self.session && theirs.incarnation == self.their_incarnation && theirs.lane == 0;
        if !is_same || theirs.link <= self.link || self.is_ended {
            // Whoever has a later link has the session: a straggler does not get it back.
            return refusal(hello, self.incarnation, Outcome::Refused);
        }
        // What it has cannot be checked before the old link is let go of; if it is not ours, neither has the session.
        self.link = theirs.link;
        match self.lane.handle_linked(theirs.received, &mut self.pool) {
            Ok(()) => {
                self.lost_until = None;
                self.welcome(Outcome::Resumed)
            }
            Err(_) => {
                self.is_ended = true;
                refusal(hello, self.incarnation, Outcome::Refused)
            }
        }
    }

    fn welcome(&self, outcome: Outcome) -> Welcome {
        let standing = Standing {
            session: self.session,
            lane: 0,
            link: self.link,
            received: self.lane.received(),
            incarnation: self.incarnation,
        };
        let grace_ms = Some(u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX));
        let options = Options { grace_ms, unacknowledged_bytes_max: None };
        Welcome { version: VERSION, outcome, standing, options }
    }

    /// Its name.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// The link is lost: its other end is waited for as long as was granted.
    pub fn handle_lost(&mut self, now: Instant) {
        self.lane.handle_lost();
        self.lost_until.get_or_insert(now + self.grace);
    }

    /// The link was ended by its other end, without a word: the importer is gone, or comes back at once (U13: a device is free
    /// within 5 s after its user was killed).
    pub fn handle_closed(&mut self, now: Instant) {
        self.lane.handle_lost();
        self.lost_until.get_or_insert(now + self.grace.min(CLOSED_GRACE_MAX));
    }

    /// Whether there is a link.
    pub fn is_linked(&self) -> bool {
        self.lost_until.is_none()
    }

    /// Whether this attachment is there.
    pub fn is_attached(&self, number: u16) -> bool {
        self.attachments.contains_key(&number)
    }

    /// The owner asks something of an attached device.
    ///
    /// # Errors
    /// [`CommandError`] when the device does not know it or refuses.
    pub fn command(&mut self, now: Instant, number: u16, command: &Command) -> Result<(), CommandError> {
        match self.attachments.get_mut(&number) {
            Some(served) => served.command(now, command, &mut self.lane),
            None => Err(CommandError("the device is not attached any more".into())),
        }
    }

    /// Whether the importer said that it is done, or cannot come back.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether the grace is over.
    pub fn is_over(&self, now: Instant) -> bool {
        self.lost_until.is_some_and(|until| until <= now)
    }

    /// When something wants to happen: the grace ends, or a device has its moment.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let devices = self.attachments.values().filter_map(|served| served.poll_timeout());
        devices.chain(self.lost_until).min()
    }

    /// What to wait on besides the link.
    pub fn readiness(&self) -> impl Iterator<Item = &Readiness> {
        self.attachments.values().filter_map(|served| served.readiness())
    }

    /// How many devices are attached.
    pub fn attachments(&self) -> usize {
        self.attachments.len()
    }

    /// Does what arrived, until there is enough to be sent: whether there may be more to do, once that is on its way.
    ///
    /// # Errors
    /// [`Reject`]: the importer broke the protocol; the session is over.
    pub fn advance(&mut self, now: Instant, services: &mut impl Services) -> Result<bool, Reject> {
        let mut moved = 0;
        while let Some(arrived) = self.lane.poll_arrived(&mut self.pool)? {
            let before = self.lane.waiting_bytes();
            let asked = arrived.body.len();
            self.handle_arrived(now, arrived, services)?;
            let by_this = asked + self.lane.waiting_bytes() - before;
            moved += by_this;
            if moved >= (2 * by_this).clamp(ENOUGH_BYTES_MIN, ENOUGH_BYTES_MAX) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, services: &mut impl Services) -> Result<(), Reject> {
        let Head { kind, attachment, .. } = arrived.head;
        match kind {
            Kind::Request | Kind::Data | Kind::Cancel | Kind::Grant => {
                // What was on its way while we closed the attachment is for nobody.
                let Some(served) = self.attachments.get_mut(&attachment) else { return Ok(()) };
                with_pool(served, &mut self.pool, |served| served.handle_arrived(now, arrived, &mut self.lane))
            }
            Kind::Open => self.open(now, attachment, &arrived, services),
            Kind::Close => {
                let close = Close::decode(&arrived.body.contiguous())?;
                if let Some(served) = self.attachments.remove(&attachment) {
                    match close.heir {
                        None => served.finish(now),
                        Some(heir) => served.hand_over(now, heir),
                    }
                    let message = close.heir.map_or(String::new(), |_| HANDED_OVER.to_owned());
                    let end = End { cause: Cause::Asked, message };
                    self.say_end(Kind::Closed, attachment, &end);
                }
                Ok(())
            }
            Kind::Goodbye => {
                self.is_ended = true;
                Ok(())
            }
            _ => Err(Reject::new("kind", kind.code().into(), "an importer does not say that")),
        }
    }

    fn open(
        &mut self,
        now: Instant,
        number: u16,
        arrived: &Arrived,
        services: &mut impl Services,
    ) -> Result<(), Reject> {
        if number == 0 || self.attachments.contains_key(&number) {
            return Err(Reject::new("attachment", number.into(), "a new one has a number that is not in use, from 1"));
        }
        let open = Open::decode(&arrived.body.contiguous())?;
        if self.attachments.len() >= ATTACHMENTS_MAX {
            let message = format!("a session has {ATTACHMENTS_MAX} attachments at most");
            self.say_end(Kind::Refused, number, &End { cause: Cause::Refused, message });
            return Ok(());
        }
        match services.open(now, number, &open) {
            Ok((epoch, served)) => {
                let opened = Opened { epoch, credit: served.credit(), info: served.description() };
                self.attachments.insert(number, served);
                let payload = opened.encode().into();
                let flow = Flow(u32::from(number) << 8);
                let head = Head::new(Kind::Opened, number, 0);
                let urgency = Urgency::High;
                self.lane.send(Message { head, part: Part::empty(), payload, urgency, flow, done_at: None });
            }
            Err(end) => self.say_end(Kind::Refused, number, &end),
        }
        Ok(())
    }

    fn say_end(&mut self, kind: Kind, attachment: u16, end: &End) {
        self.lane.send(Message::control(kind, attachment, 0, end.encode().into()));
    }

    /// Devices are looked after: whose moment has come, who is ready, who is gone.
    pub fn handle_ready(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (&number, served) in &mut self.attachments {
            with_pool(served, &mut self.pool, |served| served.handle_ready(now, &mut self.lane));
            if let Some(end) = served.poll_end() {
                ended.push((number, end));
            }
        }
        for (number, end) in ended {
            self.close(now, number, &end);
        }
    }

    /// Takes an attachment away: its device is unplugged, or somebody else may have it now.
    pub fn close(&mut self, now: Instant, number: u16, end: &End) {
        if let Some(served) = self.attachments.remove(&number) {
            served.finish(now);
            self.say_end(Kind::Closed, number, end);
        }
    }

    /// What bytes of a link go into and come from; call [`ExporterSession::advance`] when some arrived.
    pub fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }

    /// Whether nothing happens unless the importer speaks, or a moment comes: no device is at something, or waited for.
    pub fn only_talks(&self) -> bool {
        self.attachments.values().all(|served| served.is_idle())
    }

    /// The session is over: every device is given back.
    pub fn finish(self, now: Instant) {
        for served in self.attachments.into_values() {
            served.finish(now);
        }
    }
}

/// Lends a device the session's buffers for as long as it acts.
fn with_pool<T>(served: &mut Box<dyn Served>, pool: &mut BufferPool, act: impl FnOnce(&mut dyn Served) -> T) -> T {
    let mut lend = |served: &mut dyn Served| {
        if let Some(own) = served.pool_mut() {
            std::mem::swap(own, pool);
        }
    };
    lend(&mut **served);
    let acted = act(&mut **served);
    lend(&mut **served);
    acted
}

/// A welcome that is none.
pub fn refusal(hello: &Hello, incarnation: u64, outcome: Outcome) -> Welcome {
    let standing = Standing { received: 0, incarnation, ..hello.standing };
    Welcome { version: VERSION, outcome, standing, options: Options::default() }
}
