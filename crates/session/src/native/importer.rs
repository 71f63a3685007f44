//! The importer's end of a session.

use std::time::Duration;

use farbus_model::{BufferPool, Instant};
use farbus_wire::native::control::{Cause, End};
use farbus_wire::native::{
    Arrived, Hello, Kind, Lane, LaneLimits, Message, Options, Outcome, Part, SessionId, Standing, Welcome,
};

use farbus_wire::snapshot::{Reader, Writer};

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
}

/// Where an attachment stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was asked for.
    Opening,
    /// It is there.
    Open,
    /// It is not, or not any more.
    Ended(End),
}

/// One attachment, as its session's end here sees it. What it finished is left in its own `done`.
pub trait Attached {
    /// What it leaves there.
    type Done;

    /// A frame for it arrived.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, done: &mut Self::Done) -> Result<(), Reject>;

    /// The exporter has forgotten the session: everything is to be said anew.
    fn handle_renewed(&mut self, now: Instant, done: &mut Self::Done);

    /// The session is over, and why; nothing is asked of it any more.
    fn handle_over(&mut self, cause: Cause, message: &str, done: &mut Self::Done);

    /// What it has to say.
    fn poll_message(&mut self) -> Option<Message>;

    /// Where it stands.
    fn state(&self) -> &State;

    /// When [`Attached::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The moment of [`Attached::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// Where the time of the latest request went that was timed and has not been told yet. A class that times none has none.
    fn poll_timed(&mut self) -> Option<Timed> {
        None
    }

    /// Gives the device back; its exporter answers with the end.
    fn close(&mut self);

    /// Nothing new is begun, and what would wait for ever is withdrawn: the device is to be handed over.
    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// Whether nothing is under way.
    fn is_still(&self) -> bool {
        true
    }

    /// Hands the device over as it is to the host with this key. Its exporter answers with the end once that host has it, or opens it
    /// again if it does not come. What is under way is lost. A class that knows no such thing gives it back.
    fn bequeath(&mut self, heir: [u8; 32]) {
        let _ = heir;
        self.close();
    }

    /// Whether it was handed over, and nobody has come for it yet.
    fn is_moving(&self) -> bool {
        false
    }

    /// Whether it is yet to be handed over to us.
    fn is_expected(&self) -> bool {
        false
    }
}

/// The importer's end: a lane, and the state of the link below it.
#[derive(Debug)]
pub struct ImporterSession {
    lane: Lane,
    session: SessionId,
    has_begun: bool,
    link: u64,
    incarnation: u64,
    grace: Duration,
    /// Since when there is no link.
    lost_at: Option<Instant>,
    limits: LaneLimits,
    pool: BufferPool,
}

impl ImporterSession {
    /// A session that is yet to begin. `incarnation` changes whenever this host has lost what it knew; `grace` is how long
    /// the session is to outlive a link.
    pub fn new(now: Instant, incarnation: u64, grace: Duration, limits: LaneLimits) -> Self {
        Self {
            lane: Lane::new(limits),
            session: SessionId::NONE,
            has_begun: false,
            link: 0,
            incarnation,
            grace,
            lost_at: Some(now),
            limits,
            pool: BufferPool::new(limits.unacknowledged_bytes_max / 4),
        }
    }

    /// What to say first on a new link.
    pub fn hello(&mut self) -> Hello {
        self.link += 1;
        let standing = Standing {
            session: self.session,
            lane: 0,
            link: self.link,
            received: self.lane.received(),
            incarnation: self.incarnation,
        };
        let grace_ms = Some(u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX));
        Hello::new(standing, Options { grace_ms, unacknowledged_bytes_max: None })
    }

    /// What the exporter answered.
    ///
    /// # Errors
    /// [`Reject`]: it cannot be the session's other end.
    pub fn handle_welcome(&mut self, welcome: &Welcome) -> Result<Progress, Reject> {
        let theirs = welcome.standing;
        // Whoever dials may have had to try more than once.
        self.link = self.link.max(theirs.link);
        match welcome.outcome {
            Outcome::Begun => {
                let had_one = std::mem::replace(&mut self.has_begun, true);
                self.session = theirs.session;
                self.lane = Lane::new(self.limits);
                if let Some(ms) = welcome.options.grace_ms {
                    self.grace = self.grace.min(Duration::from_millis(ms.into()));
                }
                self.lane.handle_linked(theirs.received, &mut self.pool)?;
                self.lost_at = None;
                Ok(if had_one { Progress::Renewed } else { Progress::Linked })
            }
            Outcome::Resumed => {
                if theirs.session != self.session {
                    return Err(Reject::new("session", 0, "a session that goes on is the one that was asked for"));
                }
                self.lane.handle_linked(theirs.received, &mut self.pool)?;
                self.lost_at = None;
                Ok(Progress::Linked)
            }
            Outcome::Unknown if self.session != SessionId::NONE => {
                self.session = SessionId::NONE;
                Ok(Progress::Again)
            }
            outcome => Ok(Progress::Refused(outcome)),
        }
    }

    /// The link is lost.
    pub fn handle_lost(&mut self, now: Instant) {
        self.lane.handle_lost();
        self.lost_at.get_or_insert(now);
    }

    /// Whether there is a link.
    pub fn is_linked(&self) -> bool {
        self.lost_at.is_none()
    }

    /// When the grace is over, if there is no link.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.lost_at.map(|at| at + self.grace)
    }

    /// Whether the grace is over.
    pub fn is_over(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Says something.
    pub fn send(&mut self, message: Message) {
        self.lane.send(message);
    }

    /// Says that the session ends on purpose.
    pub fn goodbye(&mut self) {
        self.lane.send(Message::control(Kind::Goodbye, 0, 0, Part::empty()));
    }

    /// What bytes of a link go into and come from.
    pub fn lane_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol; the session is over.
    pub fn poll_arrived(&mut self) -> Result<Option<Arrived>, Reject> {
        self.lane.poll_arrived(&mut self.pool)
    }
}

/// Links that the other process leaves to this one: a dialer here may be at one, and each of its tries is counted. It tries less
/// often than ten times a second, for less than a minute.
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
        to.u64(self.link + LINKS_BETWEEN);
        to.u64(self.incarnation);
        to.u64(self.grace.as_millis().try_into().unwrap_or(u64::MAX));
        let lost = self.lost_at.map_or(Duration::ZERO, |at| now - at);
        to.u64(lost.as_millis().try_into().unwrap_or(u64::MAX));
        self.lane.save(now, to);
        remote.save(to);
    }

    /// A session that goes on where another was saved, over the next link. Its grace, if it was without a link already, goes on too,
    /// as far as the epoch of `now` reaches back.
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
        let lane = Lane::restore(limits, from)?;
        let session = Self {
            lane,
            session,
            has_begun: true,
            link,
            incarnation,
            grace,
            lost_at: Some(Instant::from_nanos(now.as_nanos().saturating_sub(lost_ns))),
            limits,
            pool: BufferPool::new(limits.unacknowledged_bytes_max / 4),
        };
        Ok((session, A::restore(from)?))
    }
}
