//! The importer's end of a session.

use std::time::Duration;

use farbus_model::limits::LANES_MAX;
use farbus_model::{BufferPool, ExportIdentity, Instant};
use farbus_wire::native::control::AttachmentEndCause;
use farbus_wire::native::descriptors::DESCRIPTORS_BYTES_MAX;
use farbus_wire::native::reserve;
use farbus_wire::native::retire::DiskMoveStep;
use farbus_wire::native::{
    ClassPart, ExporterWelcome, FrameKind, HelloOptions, ImporterHello, Lane, LaneArray, LaneLimits, LanePosition,
    LaneSet, OutboundMessage, ReceivedFrame, SessionId, SessionLane, WelcomeOutcome,
};

use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::accepted::PeerLimits;
use super::attachment::{AttachmentBase, AttachmentState};
use super::hold::HoldLimits;
use super::timing::RequestTiming;
use crate::ProtocolViolation;

/// The outcome of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GreetingOutcome {
    /// The session continues over this link, or begins.
    Linked,
    /// A new session has begun in place of the former one: each attachment has to be opened again.
    Renewed,
    /// The exporter does not know the session any more. Greet again over a new link to begin a new session.
    Again,
    /// The exporter refuses this host: the session is over.
    Refused(WelcomeOutcome),
    /// The exporter refuses this further lane now; the first lane says what becomes of the session.
    Without,
}

/// One attachment, as the importer's end of its session sees it. It leaves completed requests in its own `done`.
pub trait ImporterAttachment {
    /// The kind of a completed request.
    type Done;

    /// The state that attachments of all classes have.
    fn attachment(&self) -> &AttachmentBase;

    /// Mutable access to the state that attachments of all classes have.
    fn attachment_mut(&mut self) -> &mut AttachmentBase;

    /// Takes a frame for this attachment.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol; the session is over.
    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut Self::Done,
    ) -> Result<(), ProtocolViolation>;

    /// The exporter has forgotten the session: the attachment asks for everything again.
    fn handle_renewed(&mut self, now: Instant, done: &mut Self::Done);

    /// A link exists to an exporter's process with this incarnation, which changes whenever the exporter has lost its
    /// state. Called after [`ImporterAttachment::handle_renewed`], if that is called.
    fn note_exporter(&mut self, incarnation: u64) {
        self.attachment_mut().note_exporter(incarnation);
    }

    /// The session is over for this reason; no further method but getters is called.
    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut Self::Done);

    /// The frames that it has to send.
    #[inline]
    fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.attachment_mut().poll_message()
    }

    /// Whether it is opening, open or ended, and why it ended.
    #[inline]
    fn state(&self) -> &AttachmentState {
        self.attachment().state()
    }

    /// The lease under which the device is used; 0 before it is open.
    fn lease(&self) -> u64 {
        self.attachment().lease()
    }

    /// The identity of its device; `None` before it is open, and if the exporter gives none.
    fn identity(&self) -> Option<ExportIdentity> {
        self.attachment().identity()
    }

    /// Whether the exporter said that it finds this identity again after it was started anew.
    fn is_lasting(&self) -> bool {
        self.attachment().is_lasting()
    }

    /// Has it open this device and no other. Call it before its frames are taken.
    fn expect(&mut self, identity: ExportIdentity) {
        self.attachment_mut().expect(identity);
    }

    /// When to call [`ImporterAttachment::handle_timeout`]; `None`: never.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The time of [`ImporterAttachment::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// The timing of the latest timed request that was not returned before. `None` for a class that times no requests.
    fn poll_timed(&mut self) -> Option<RequestTiming> {
        None
    }

    /// In how long the lease of the attachment ends, if its exporter has said so since the last call.
    fn take_lease_left(&mut self) -> Option<Duration> {
        self.attachment_mut().take_lease_left()
    }

    /// Tells the exporter what becomes of the disk, which this host moves to its own machine.
    fn say_step(&mut self, step: DiskMoveStep) {
        self.attachment_mut().say_step(step);
    }

    /// The exporter's latest answer to [`ImporterAttachment::say_step`] since the last call: the step was noted, or why
    /// not.
    fn take_step_answer(&mut self) -> Option<(DiskMoveStep, Result<(), String>)> {
        self.attachment_mut().take_step_answer()
    }

    /// Bytes of the writes that its exporter had not answered when it ended; 0 for a class that has no writes.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Whether its device, which is open, stores data: its users give a request up after some time.
    fn stores_data(&self) -> bool {
        false
    }

    /// Whether its exporter may hear nothing while it carries out one of the requests, because that waits for a medium.
    fn keeps_exporter_busy(&self) -> bool {
        false
    }

    /// The state of its reservation, if it has one.
    fn reserved(&self) -> Option<reserve::ReservationReport> {
        self.attachment().reserved()
    }

    /// Modules lie between it and the exporter, before it is opened. What an exporter says of a device's content does
    /// not hold for what they make of it.
    fn note_modules(&mut self) {}

    /// New requests may use these lanes of the session. A class that uses the first lane alone ignores this.
    fn use_lanes(&mut self, usable: LaneSet) {
        let _ = usable;
    }

    /// Gives the device back. The exporter answers with the end of the attachment.
    fn close(&mut self) {
        self.attachment_mut().close();
    }

    /// Prepares a handover: begins no new request, and withdraws those that may never complete.
    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
    }

    /// Prepares a handover for which nothing is waited: requests of its user end at once, as failed, and a USB device
    /// is reset. Returns how many requests that were.
    fn discard(&mut self, now: Instant, done: &mut Self::Done) -> usize {
        let _ = (now, done);
        0
    }

    /// Whether no request is in flight.
    fn is_still(&self) -> bool {
        true
    }

    /// Hands the device over, in its state, to the host with this key. The exporter answers with the end when that host
    /// has the device, or opens it again if that host does not come in time. Requests in flight are lost. A class
    /// without handover gives the device back.
    fn migrate(&mut self, successor: [u8; 32]) {
        let _ = successor;
        self.close();
    }

    /// Whether the device was handed over, and its successor has not come yet.
    fn is_moving(&self) -> bool {
        self.attachment().is_moving()
    }

    /// Whether the device is still to be handed over to this host.
    fn is_expected(&self) -> bool {
        self.attachment().is_expected()
    }
}

/// The importer's end: its lanes, and the state of the links below them.
#[derive(Debug)]
pub struct ImporterSession {
    lanes: LaneArray,
    /// The lanes that this host wants, and those that the exporter granted; unknown before the session begins.
    lanes_wished: u16,
    lanes_granted: u16,
    session: SessionId,
    has_begun: bool,
    incarnation: u64,
    /// The exporter's incarnation, as it said last; `None` before the first.
    their_incarnation: Option<u64>,
    grace: Duration,
    hold: HoldLimits,
    limits: LaneLimits,
    /// What the exporter accepts on a lane.
    accepted: PeerLimits,
    pool: BufferPool,
}

impl ImporterSession {
    /// A session that has not begun. `incarnation` changes whenever this host has lost its state; `grace` is how long
    /// the session outlives its links.
    pub fn new(now: Instant, incarnation: u64, grace: Duration, limits: LaneLimits) -> Self {
        let mut lanes = LaneArray::new(limits);
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
            hold: HoldLimits::default(),
            limits,
            accepted: PeerLimits::default(),
            pool: BufferPool::new(limits.pool_bytes_max()),
        }
    }

    /// Uses so many links.
    #[must_use]
    pub fn over_links(mut self, links: u16) -> Self {
        self.lanes_wished = links.clamp(1, LANES_MAX);
        self
    }

    /// Holds a device that migrates for so long at most; by default [`HOLD`](super::HOLD).
    #[must_use]
    pub fn holding(mut self, hold: Duration) -> Self {
        self.hold.set_own(hold);
        self
    }

    /// How long a device that migrates may keep its user waiting: the limits of both ends, as of the latest link.
    pub fn hold(&self) -> HoldLimits {
        self.hold
    }

    /// The first frame on a new link of this lane.
    pub fn hello(&mut self, number: u16) -> ImporterHello {
        let (session, incarnation) = (self.session, self.incarnation);
        let known = self.lanes.known_or_new(number, self.accepted.of(self.limits));
        known.link += 1;
        let (link, received) = (known.link, known.lane.received());
        let options = match number {
            0 => HelloOptions {
                grace_ms: Some(u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX)),
                lanes: (self.lanes_wished > 1).then_some(self.lanes_wished.into()),
                hold_ms: Some(self.hold.own_ms()),
                descriptors_bytes_max: Some(DESCRIPTORS_BYTES_MAX as u32),
                ..HelloOptions::default()
            },
            // The first lane says what holds for the session.
            _ => HelloOptions::default(),
        };
        ImporterHello::new(LanePosition { session, lane: number, link, received, incarnation }, options)
    }

    /// The incarnation of the session's exporter: see [`ImporterAttachment::note_exporter`]. `None` before the first
    /// link.
    pub fn their_incarnation(&self) -> Option<u64> {
        self.their_incarnation
    }

    /// The further lanes that have no link.
    pub fn wanting_links(&self) -> impl Iterator<Item = u16> {
        let has_link = |number| {
            let mut further = self.lanes.further().iter();
            further.any(|further| further.number == number && further.lane.is_linked())
        };
        let count = if self.is_linked() { self.lanes_granted } else { 1 };
        (1..count).filter(move |&number| !has_link(number))
    }

    /// Takes the exporter's answer to the greeting.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the answer is not one of this session's exporter.
    pub fn handle_welcome(&mut self, welcome: &ExporterWelcome) -> Result<GreetingOutcome, ProtocolViolation> {
        let theirs = welcome.position;
        if theirs.lane != 0 {
            return self.handle_further(welcome);
        }
        if welcome.outcome == WelcomeOutcome::Begun {
            self.accepted = PeerLimits::default();
        }
        if matches!(welcome.outcome, WelcomeOutcome::Begun | WelcomeOutcome::Resumed) {
            self.accepted.hear(&welcome.options);
            self.lanes.set_unacknowledged_bytes_max(self.accepted.of(self.limits).unacknowledged_bytes_max);
        }
        let first = self.lanes.known_first_mut();
        // Dialling may have taken several attempts, each with a number of its own.
        first.link = first.link.max(theirs.link);
        if matches!(welcome.outcome, WelcomeOutcome::Begun | WelcomeOutcome::Resumed) {
            self.their_incarnation = Some(theirs.incarnation);
            self.hold.hear(welcome.options.hold_ms);
        }
        match welcome.outcome {
            WelcomeOutcome::Begun => {
                let had_one = std::mem::replace(&mut self.has_begun, true);
                self.session = theirs.session;
                let link = first.link;
                self.lanes = LaneArray::new(self.accepted.of(self.limits));
                let granted = welcome.options.lanes.unwrap_or(1).min(self.lanes_wished.into());
                self.lanes_granted = (granted as u16).max(1);
                if let Some(ms) = welcome.options.grace_ms {
                    self.grace = self.grace.min(Duration::from_millis(ms.into()));
                }
                let first = self.lanes.known_first_mut();
                first.link = link;
                first.lane.handle_linked(theirs.received, &mut self.pool)?;
                Ok(if had_one { GreetingOutcome::Renewed } else { GreetingOutcome::Linked })
            }
            WelcomeOutcome::Resumed => {
                if theirs.session != self.session {
                    return Err(ProtocolViolation::new(
                        "session",
                        0,
                        "a session that goes on is the one that was asked for",
                    ));
                }
                first.lane.handle_linked(theirs.received, &mut self.pool)?;
                begin_proof(first);
                Ok(GreetingOutcome::Linked)
            }
            WelcomeOutcome::Unknown if self.session != SessionId::NONE => {
                self.session = SessionId::NONE;
                Ok(GreetingOutcome::Again)
            }
            outcome => Ok(GreetingOutcome::Refused(outcome)),
        }
    }

    /// Handles the welcome of a further lane.
    fn handle_further(&mut self, welcome: &ExporterWelcome) -> Result<GreetingOutcome, ProtocolViolation> {
        let theirs = welcome.position;
        let Some(further) = self.lanes.known_mut(theirs.lane).filter(|_| theirs.session == self.session) else {
            // The answer is for a session that has ended.
            return Ok(GreetingOutcome::Without);
        };
        further.link = further.link.max(theirs.link);
        match welcome.outcome {
            WelcomeOutcome::Resumed => {
                further.lane.handle_linked(theirs.received, &mut self.pool)?;
                match std::mem::replace(&mut further.has_begun, true) {
                    true => begin_proof(further),
                    false => further.lost_at = None,
                }
                Ok(GreetingOutcome::Linked)
            }
            // The first lane gets the same answer, or a newer one.
            WelcomeOutcome::Unknown => Ok(GreetingOutcome::Without),
            outcome if further.has_begun => Ok(GreetingOutcome::Refused(outcome)),
            _ => {
                self.lanes_granted = self.lanes_granted.min(theirs.lane);
                self.lanes.forget_unbegun();
                Ok(GreetingOutcome::Without)
            }
        }
    }

    /// Notes that this lane has lost its link.
    pub fn handle_lost(&mut self, number: u16, now: Instant) {
        if let Some(known) = self.lanes.known_mut(number) {
            known.lane.handle_lost();
            known.lost_at.get_or_insert(now);
        }
    }

    /// Whether the first lane has a link.
    pub fn is_linked(&self) -> bool {
        self.lanes.first().is_linked()
    }

    /// Whether this lane has a link that has carried, in both directions, what waited for it when it was made.
    pub fn has_proved_link(&self, number: u16) -> bool {
        self.lanes.all().any(|known| known.number == number && known.lost_at.is_none())
    }

    /// Frames may have arrived on this lane: if any passed, the grace period begins anew while the lane's link is not
    /// proved.
    pub fn note_progress(&mut self, number: u16, now: Instant) {
        let Some(known) = self.lanes.known_mut(number).filter(|known| known.lost_at.is_some()) else { return };
        let passed = known.lane.passed();
        if std::mem::replace(&mut known.passed, passed) != passed {
            known.lost_at = Some(now);
        }
    }

    /// The lanes for new requests: see [`ImporterAttachment::use_lanes`].
    pub fn usable_lanes(&self) -> LaneSet {
        self.lanes.usable()
    }

    /// When the grace period ends, if a lane has no link, or one that has not carried yet what waited for it: a link
    /// that carries nothing does not begin the period anew.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let awaited = self.lanes.all().filter(|known| known.number == 0 || known.has_begun);
        awaited.filter_map(|known| known.lost_at).min().map(|at| at + self.grace)
    }

    /// Whether the grace period has ended.
    pub fn is_over(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Sends a frame.
    pub fn send(&mut self, message: OutboundMessage) {
        self.lanes.send(message);
    }

    /// Tells the exporter that the session ends on purpose.
    pub fn goodbye(&mut self) {
        self.lanes.send(OutboundMessage::control(FrameKind::Goodbye, 0, 0, ClassPart::empty()));
    }

    /// The first lane, to which bytes of its link go and from which they come.
    pub fn lane_mut(&mut self) -> &mut Lane {
        self.lanes.first_mut()
    }

    /// All lanes, the first included; bytes of each lane's link go to that lane and come from it.
    pub fn lanes_mut(&mut self) -> &mut LaneArray {
        &mut self.lanes
    }

    /// The next frame of this lane.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol; the session is over.
    pub fn poll_arrived(&mut self, number: u16) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        let arrived = self.lanes.poll_arrived(number, &mut self.pool)?;
        if arrived.is_none()
            && let Some(known) = self.lanes.known_mut(number)
            && known.lost_at.is_some()
            && known.lane.pong().is_some()
        {
            known.lost_at = None;
        }
        Ok(arrived)
    }
}

/// The number of the ping that proves a link.
const PROOF_PING: u64 = 2;

/// A lane that lost its link has another. Its ping follows what this end has to send again, and the pong what the other
/// end has: small frames alone pass where large packets are dropped.
fn begin_proof(known: &mut SessionLane) {
    known.passed = known.lane.passed();
    known.lane.ping(PROOF_PING);
}

/// Numbers of links that the other process leaves to this one, because each attempt of a dialer here is counted. A
/// dialer makes fewer than ten attempts a second, for less than a minute.
const LINKS_BETWEEN: u64 = 1 << 10;

/// An attachment that can continue in another process.
pub trait MovableAttachment: ImporterAttachment + Sized {
    /// Prepares to be saved: what it holds back for a while is sent.
    fn come_to_rest(&mut self) {}

    /// Saves it. Called when it has nothing to send.
    fn save(&self, to: &mut SnapshotWriter);

    /// Restores it from what was saved.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no attachment can have had this state.
    fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation>;

    /// Drops it without answers: another process answers what is in flight.
    fn hand_over(&mut self);
}

impl ImporterSession {
    /// Saves the session and its attachment. Both can continue here, if the other process does not.
    pub fn save(&mut self, now: Instant, remote: &mut impl MovableAttachment, to: &mut SnapshotWriter) {
        self.bring_to_rest(remote);
        self.save_session(now, to);
        remote.save(to);
    }

    /// Takes all that an attachment has to send, so that the session holds it.
    fn bring_to_rest(&mut self, remote: &mut impl MovableAttachment) {
        // What is sent may be held back, and sent then.
        loop {
            while let Some(message) = remote.poll_message() {
                self.send(message);
            }
            remote.come_to_rest();
            let Some(message) = remote.poll_message() else { break };
            self.send(message);
        }
    }

    /// Saves the session without attachments, each of which is at rest.
    fn save_session(&mut self, now: Instant, to: &mut SnapshotWriter) {
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
    }

    /// Restores a saved session, which continues over the next link. If it had no link, its grace period continues as
    /// far as the epoch of `now` reaches back.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no attachment can have had this state.
    pub fn restore<A: MovableAttachment>(
        now: Instant,
        limits: LaneLimits,
        from: &mut FieldReader<'_>,
    ) -> Result<(Self, A), ProtocolViolation> {
        Ok((Self::restore_session(now, limits, from)?, A::restore(from)?))
    }

    /// Restores a session without attachments.
    fn restore_session(
        now: Instant,
        limits: LaneLimits,
        from: &mut FieldReader<'_>,
    ) -> Result<Self, ProtocolViolation> {
        let session = SessionId(from.take(16, "session")?.try_into().expect("sixteen bytes"));
        let (link, incarnation) = (from.u64("link")?, from.u64("incarnation")?);
        if link > u64::MAX / 2 {
            return Err(ProtocolViolation::new("link", link, "nobody has made so many"));
        }
        let grace = Duration::from_millis(from.u64("grace")?);
        let lost = Duration::from_millis(from.u64("time without a link")?);
        let lost_ns = u64::try_from(lost.as_nanos()).unwrap_or(u64::MAX);
        let lost_at = Instant::from_nanos(now.as_nanos().saturating_sub(lost_ns));
        let (lanes_wished, lanes_granted) = (from.u16("lanes wished")?, from.u16("lanes granted")?);
        if lanes_granted == 0 || lanes_granted > lanes_wished || lanes_wished > LANES_MAX {
            return Err(ProtocolViolation::new(
                "lanes",
                lanes_granted.into(),
                "no more are granted than were wished for",
            ));
        }
        let mut lanes = LaneArray::restore(limits, Some(now), from)?;
        let first = lanes.known_first_mut();
        (first.link, first.lost_at) = (link, Some(lost_at));
        Ok(Self {
            lanes,
            lanes_wished,
            lanes_granted,
            session,
            has_begun: true,
            incarnation,
            their_incarnation: None,
            grace,
            hold: HoldLimits::default(),
            limits,
            accepted: PeerLimits::default(),
            pool: BufferPool::new(limits.pool_bytes_max()),
        })
    }
}
