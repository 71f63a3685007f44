//! The importer's end of a session.

use std::time::Duration;

use farbus_model::limits::LANES_MAX;
use farbus_model::{BufferPool, Identity, Instant};
use farbus_wire::native::control::Cause;
use farbus_wire::native::reserve;
use farbus_wire::native::{
    Arrived, Hello, Kind, Lane, LaneLimits, LanePosition, LaneSet, Lanes, Message, Options, Outcome, Part, SessionId,
    Welcome,
};

use farbus_wire::snapshot::{Reader, Writer};

use super::attachment::{Attachment, State};
use super::timing::Timed;
use crate::Reject;

/// What came of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The session goes on over this link, or begins.
    Linked,
    /// A new session has begun, and the one before is forgotten: what is attached has to be opened again.
    Renewed,
    /// The exporter knows no such session any more: greet again, over a new link, and a new one begins.
    Again,
    /// It will not have us: the session is over.
    Refused(Outcome),
    /// This further lane is not to be had now; what becomes of the session is heard on the first.
    Without,
}

/// One attachment, as its session's end here sees it. What it finished is left in its own `done`.
pub trait Attached {
    /// What it leaves there.
    type Done;

    /// The part of this class's importing end that all classes have.
    fn attachment(&self) -> &Attachment;

    /// As [`Attached::attachment`], to be changed.
    fn attachment_mut(&mut self) -> &mut Attachment;

    /// A frame for it arrived.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, done: &mut Self::Done) -> Result<(), Reject>;

    /// The exporter has forgotten the session: everything is to be said anew.
    fn handle_renewed(&mut self, now: Instant, done: &mut Self::Done);

    /// A link was made to the exporter's process with this incarnation, which changes whenever it has lost what it
    /// knew: said after [`Attached::handle_renewed`] if that was called.
    fn note_exporter(&mut self, incarnation: u64) {
        self.attachment_mut().note_exporter(incarnation);
    }

    /// The session is over, and why; nothing is asked of it any more.
    fn handle_over(&mut self, cause: Cause, message: &str, done: &mut Self::Done);

    /// What it has to say.
    #[inline]
    fn poll_message(&mut self) -> Option<Message> {
        self.attachment_mut().poll_message()
    }

    /// Where it stands.
    #[inline]
    fn state(&self) -> &State {
        self.attachment().state()
    }

    /// The lease under which it is used; 0 before it is open.
    fn lease(&self) -> u64 {
        self.attachment().lease()
    }

    /// The identity of its device; `None` before it is open, and if its exporter tells none.
    fn identity(&self) -> Option<Identity> {
        self.attachment().identity()
    }

    /// When [`Attached::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The moment of [`Attached::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// Where the time of the latest request went that was timed and has not been told yet. A class that times none has
    /// none.
    fn poll_timed(&mut self) -> Option<Timed> {
        None
    }

    /// How what is reserved for it stands, if anything is.
    fn reserved(&self) -> Option<reserve::ReservationReport> {
        self.attachment().reserved()
    }

    /// New requests may go on these lanes of the session. A class that uses the first alone need not know.
    fn use_lanes(&mut self, usable: LaneSet) {
        let _ = usable;
    }

    /// Gives the device back; its exporter answers with the end.
    fn close(&mut self) {
        self.attachment_mut().close();
    }

    /// Begins no new request and withdraws those that may never complete: the device is to be handed over.
    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// Whether nothing is under way.
    fn is_still(&self) -> bool {
        true
    }

    /// Hands the device over as it is to the host with this key. Its exporter answers with the end once that host has
    /// it, or opens it again if it does not come. What is under way is lost. A class that knows no such thing gives it
    /// back.
    fn migrate(&mut self, successor: [u8; 32]) {
        let _ = successor;
        self.close();
    }

    /// Whether it was handed over, and nobody has come for it yet.
    fn is_moving(&self) -> bool {
        self.attachment().is_moving()
    }

    /// Whether it is yet to be handed over to us.
    fn is_expected(&self) -> bool {
        self.attachment().is_expected()
    }
}

/// The importer's end: its lanes, and the state of the links below them.
#[derive(Debug)]
pub struct ImporterSession {
    lanes: Lanes,
    /// Lanes that are wished for, and that were granted; those of a session that is yet to begin are not known.
    lanes_wished: u16,
    lanes_granted: u16,
    session: SessionId,
    has_begun: bool,
    incarnation: u64,
    /// The exporter's, as it said last; `None` before it said one.
    their_incarnation: Option<u64>,
    grace: Duration,
    limits: LaneLimits,
    pool: BufferPool,
}

impl ImporterSession {
    /// A session that is yet to begin. `incarnation` changes whenever this host has lost what it knew; `grace` is how
    /// long the session is to outlive a link.
    pub fn new(now: Instant, incarnation: u64, grace: Duration, limits: LaneLimits) -> Self {
        let mut lanes = Lanes::new(limits);
        lanes.known_first_mut().lost_at = Some(now);
        Self {
            lanes,
            lanes_wished: 1,
            lanes_granted: 1,
            session: SessionId::NONE,
            has_begun: false,
            incarnation,
            their_incarnation: None,
            grace,
            limits,
            pool: BufferPool::new(limits.unacknowledged_bytes_max / 4),
        }
    }

    /// The same, over so many links.
    #[must_use]
    pub fn over_links(mut self, links: u16) -> Self {
        self.lanes_wished = links.clamp(1, LANES_MAX);
        self
    }

    /// What to say first on a new link of this lane.
    pub fn hello(&mut self, number: u16) -> Hello {
        let (session, incarnation) = (self.session, self.incarnation);
        let known = self.lanes.known_or_new(number, self.limits);
        known.link += 1;
        let (link, received) = (known.link, known.lane.received());
        let options = match number {
            0 => Options {
                grace_ms: Some(u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX)),
                lanes: (self.lanes_wished > 1).then_some(self.lanes_wished.into()),
                ..Options::default()
            },
            // What holds for the session is said on the first.
            _ => Options::default(),
        };
        Hello::new(LanePosition { session, lane: number, link, received, incarnation }, options)
    }

    /// The incarnation of the exporter that takes part in the session: see [`Attached::note_exporter`]. `None` before
    /// there was one.
    pub fn their_incarnation(&self) -> Option<u64> {
        self.their_incarnation
    }

    /// Further lanes that want a link.
    pub fn wanting_links(&self) -> impl Iterator<Item = u16> {
        let has_link = |number| {
            let mut further = self.lanes.further().iter();
            further.any(|further| further.number == number && further.lane.is_linked())
        };
        let count = if self.is_linked() { self.lanes_granted } else { 1 };
        (1..count).filter(move |&number| !has_link(number))
    }

    /// What the exporter answered.
    ///
    /// # Errors
    /// [`Reject`]: it cannot be the session's other end.
    pub fn handle_welcome(&mut self, welcome: &Welcome) -> Result<Progress, Reject> {
        let theirs = welcome.position;
        if theirs.lane != 0 {
            return self.handle_further(welcome);
        }
        let first = self.lanes.known_first_mut();
        // Dialling may have taken several attempts, each with a number of its own.
        first.link = first.link.max(theirs.link);
        if matches!(welcome.outcome, Outcome::Begun | Outcome::Resumed) {
            self.their_incarnation = Some(theirs.incarnation);
        }
        match welcome.outcome {
            Outcome::Begun => {
                let had_one = std::mem::replace(&mut self.has_begun, true);
                self.session = theirs.session;
                let link = first.link;
                self.lanes = Lanes::new(self.limits);
                let granted = welcome.options.lanes.unwrap_or(1).min(self.lanes_wished.into());
                self.lanes_granted = (granted as u16).max(1);
                if let Some(ms) = welcome.options.grace_ms {
                    self.grace = self.grace.min(Duration::from_millis(ms.into()));
                }
                let first = self.lanes.known_first_mut();
                first.link = link;
                first.lane.handle_linked(theirs.received, &mut self.pool)?;
                Ok(if had_one { Progress::Renewed } else { Progress::Linked })
            }
            Outcome::Resumed => {
                if theirs.session != self.session {
                    return Err(Reject::new("session", 0, "a session that goes on is the one that was asked for"));
                }
                first.lane.handle_linked(theirs.received, &mut self.pool)?;
                first.lost_at = None;
                Ok(Progress::Linked)
            }
            Outcome::Unknown if self.session != SessionId::NONE => {
                self.session = SessionId::NONE;
                Ok(Progress::Again)
            }
            outcome => Ok(Progress::Refused(outcome)),
        }
    }

    /// The same of a further lane.
    fn handle_further(&mut self, welcome: &Welcome) -> Result<Progress, Reject> {
        let theirs = welcome.position;
        let Some(further) = self.lanes.known_mut(theirs.lane).filter(|_| theirs.session == self.session) else {
            // It was said to a session that is no more.
            return Ok(Progress::Without);
        };
        further.link = further.link.max(theirs.link);
        match welcome.outcome {
            Outcome::Resumed => {
                further.lane.handle_linked(theirs.received, &mut self.pool)?;
                (further.has_begun, further.lost_at) = (true, None);
                Ok(Progress::Linked)
            }
            // The first lane hears the same, or knows better.
            Outcome::Unknown => Ok(Progress::Without),
            outcome if further.has_begun => Ok(Progress::Refused(outcome)),
            _ => {
                self.lanes_granted = self.lanes_granted.min(theirs.lane);
                self.lanes.forget_unbegun();
                Ok(Progress::Without)
            }
        }
    }

    /// The link of this lane is lost.
    pub fn handle_lost(&mut self, number: u16, now: Instant) {
        if let Some(known) = self.lanes.known_mut(number) {
            known.lane.handle_lost();
            known.lost_at.get_or_insert(now);
        }
    }

    /// Whether the first lane has a link.
    pub fn is_linked(&self) -> bool {
        self.lanes.known_first().lost_at.is_none()
    }

    /// Where new requests may go: see [`Attached::use_lanes`].
    pub fn usable_lanes(&self) -> LaneSet {
        self.lanes.usable()
    }

    /// When the grace is over, if a lane has no link.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let awaited = self.lanes.all().filter(|known| known.number == 0 || known.has_begun);
        awaited.filter_map(|known| known.lost_at).min().map(|at| at + self.grace)
    }

    /// Whether the grace is over.
    pub fn is_over(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Says something.
    pub fn send(&mut self, message: Message) {
        self.lanes.send(message);
    }

    /// Says that the session ends on purpose.
    pub fn goodbye(&mut self) {
        self.lanes.send(Message::control(Kind::Goodbye, 0, 0, Part::empty()));
    }

    /// What bytes of the first lane's link go into and come from.
    pub fn lane_mut(&mut self) -> &mut Lane {
        self.lanes.first_mut()
    }

    /// The same of all lanes.
    pub fn lanes_mut(&mut self) -> &mut Lanes {
        &mut self.lanes
    }

    /// The next frame of this lane.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    pub fn poll_arrived(&mut self, number: u16) -> Result<Option<Arrived>, Reject> {
        self.lanes.poll_arrived(number, &mut self.pool)
    }
}

/// Links that the other process leaves to this one: a dialer here may be at one, and each of its tries is counted. It
/// tries less often than ten times a second, for less than a minute.
const LINKS_BETWEEN: u64 = 1 << 10;

/// An attachment that can go on in another process.
pub trait Movable: Attached + Sized {
    /// It is about to be written down: what it keeps back only for a while is to be said.
    fn come_to_rest(&mut self) {}

    /// Writes it down, when it has nothing to say any more.
    fn save(&self, to: &mut Writer);

    /// As it was written down.
    ///
    /// # Errors
    /// [`Reject`]: none can have stood so.
    fn restore(from: &mut Reader<'_>) -> Result<Self, Reject>;

    /// Another process answers what is in flight: here it ends without a word.
    fn hand_over(&mut self);
}

impl ImporterSession {
    /// Writes the session and its attachment down. Both may go on all the same, if the other process does not.
    pub fn save(&mut self, now: Instant, remote: &mut impl Movable, to: &mut Writer) {
        // What is said may be kept back, and then said.
        loop {
            while let Some(message) = remote.poll_message() {
                self.send(message);
            }
            remote.come_to_rest();
            let Some(message) = remote.poll_message() else { break };
            self.send(message);
        }
        to.raw(&self.session.0);
        let first = self.lanes.known_first();
        to.u64(first.link + LINKS_BETWEEN);
        to.u64(self.incarnation);
        to.u64(self.grace.as_millis().try_into().unwrap_or(u64::MAX));
        let lost = first.lost_at.map_or(Duration::ZERO, |at| now - at);
        to.u64(lost.as_millis().try_into().unwrap_or(u64::MAX));
        to.u16(self.lanes_wished);
        to.u16(self.lanes_granted);
        self.lanes.save(now, LINKS_BETWEEN, to);
        remote.save(to);
    }

    /// A session that goes on where another was saved, over the next link. Its grace, if it was without a link already,
    /// goes on too, as far as the epoch of `now` reaches back.
    ///
    /// # Errors
    /// [`Reject`]: none can have stood so.
    pub fn restore<A: Movable>(now: Instant, limits: LaneLimits, from: &mut Reader<'_>) -> Result<(Self, A), Reject> {
        let session = SessionId(from.take(16, "session")?.try_into().expect("sixteen bytes"));
        let (link, incarnation) = (from.u64("link")?, from.u64("incarnation")?);
        if link > u64::MAX / 2 {
            return Err(Reject::new("link", link, "nobody has made so many"));
        }
        let grace = Duration::from_millis(from.u64("grace")?);
        let lost = Duration::from_millis(from.u64("time without a link")?);
        let lost_ns = u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX);
        let lost_at = Instant::from_nanos(now.as_nanos().saturating_sub(lost_ns));
        let (lanes_wished, lanes_granted) = (from.u16("lanes wished")?, from.u16("lanes granted")?);
        if lanes_granted == 0 || lanes_granted > lanes_wished || lanes_wished > LANES_MAX {
            return Err(Reject::new("lanes", lanes_granted.into(), "no more are granted than were wished for"));
        }
        let mut lanes = Lanes::restore(limits, Some(now), from)?;
        let first = lanes.known_first_mut();
        (first.link, first.lost_at) = (link, Some(lost_at));
        let session = Self {
            lanes,
            lanes_wished,
            lanes_granted,
            session,
            has_begun: true,
            incarnation,
            their_incarnation: None,
            grace,
            limits,
            pool: BufferPool::new(limits.unacknowledged_bytes_max / 4),
        };
        Ok((session, A::restore(from)?))
    }
}
