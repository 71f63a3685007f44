//! The exporter's end of a session: lanes, links, attachments, and the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farbus_model::limits::LANES_MAX;
use farbus_model::{BufferPool, Instant, OwnerCommand, OwnerCommandError, ReadinessSource};
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice, OpenReply, OpenRequest};
use farbus_wire::native::frame::FrameHeader;
use farbus_wire::native::hello::VERSION;
use farbus_wire::native::modules::{decode_offers, encode_answers, encode_offers};
use farbus_wire::native::{
    ClassPart, ExporterWelcome, FlowId, FrameKind, HelloOptions, ImporterHello, Lane, LaneArray, LaneLimits,
    LanePosition, MessageUrgency, OutboundMessage, ReceivedFrame, SessionId, WelcomeOutcome, descriptors,
};

use super::backlog::Backlog;
use super::handovers::SessionMigrations;
use super::identities::SessionIdentities;
use super::module_request::{AgreedModules, ModuleRequest};
use crate::ProtocolViolation;
use crate::native::absence::ImporterAbsence;
use crate::native::accepted::PeerLimits;
use crate::native::hold::HoldLimits;
use crate::native::piped_served::PipedServed;
use crate::native::reserving::PendingReservations;
pub use crate::native::served::{DeviceMigration, RecalledDevice, ServedExport, UnmovableError};
pub use crate::native::services::{AllowedModules, ExporterServices, InheritedDevice, UnservedAttachment};
use crate::snapshot::{FieldReader, SavedPart, SnapshotWriter};

/// Most attachments of one session: twice the devices of the largest lab on one host.
pub(super) const ATTACHMENTS_MAX: usize = 512;
/// With small requests, bytes moved in either direction before the data is sent: the importer then works on the first
/// answers while the rest are made, and they are still in the cache.
const ENOUGH_BYTES_MIN: usize = 64 << 10;
/// With large requests, the number of them that counts as enough to send.
const ENOUGH_REQUESTS: usize = 12;
/// Upper limit for [`ENOUGH_REQUESTS`] large requests, bytes.
const ENOUGH_BYTES_MAX: usize = 1 << 20;

/// The exporter's end of a session: its lanes, the state of their links, and the attachments.
pub struct ExporterSession {
    pub(super) lanes: LaneArray,
    /// How many lanes there may be.
    pub(super) lanes_granted: u16,
    pub(super) limits: LaneLimits,
    /// How many unacknowledged bytes the importer accepts on a lane.
    pub(super) accepted: PeerLimits,
    pub(super) session: SessionId,
    /// The importer's incarnation.
    pub(super) their_incarnation: u64,
    pub(super) incarnation: u64,
    /// The absence of the importer, while the first lane has no link.
    pub(super) absence: ImporterAbsence,
    /// How long a device that is handed over waits for its successor.
    pub(super) hold: HoldLimits,
    pub(super) attachments: BTreeMap<u16, ExporterAttachment>,
    pub(super) handovers: SessionMigrations,
    /// Requests that wait because answers are not taken.
    pub(super) backlog: Backlog,
    pub(super) is_ended: bool,
    pub(super) pool: BufferPool,
    pub(super) modules: Option<Arc<AllowedModules>>,
    /// Modules that the importer asked for, by attachment, before it opened the device.
    pub(super) offers: BTreeMap<u16, ModuleRequest>,
    /// Reservations for attachments that will be opened.
    pub(super) reserving: PendingReservations,
    /// The identities of the attachments' devices.
    pub(super) identities: SessionIdentities,
    /// The attachment that was cut off last, until it is told.
    cut_off: Option<(u16, ProtocolViolation)>,
}

/// A device that is served, and the request that opened it.
pub(super) struct ExporterAttachment {
    pub(super) open: OpenRequest,
    pub(super) lease: u64,
    pub(super) served: Box<dyn ServedExport>,
    /// Set if it was handed over and taken back for a handover to the replacement.
    pub(super) migration: Option<DeviceMigration>,
    /// Set while the device is not ready: the importer has not been told yet that it is open. Holds its modules.
    pub(super) unsaid: Option<DeferredOpening>,
    /// How often the importer said what becomes of the disk that it moves.
    pub(super) steps: u32,
}

pub(super) struct DeferredOpening(Option<AgreedModules>);

impl ExporterAttachment {
    pub(super) fn new(open: OpenRequest, lease: u64, served: Box<dyn ServedExport>) -> Self {
        Self { open, lease, served, migration: None, unsaid: None, steps: 0 }
    }
}

impl ExporterSession {
    /// Begins a session in answer to a greeting; returns it with the welcome to send. `session` is random; `grace_max`
    /// is the longest grace period that this exporter grants.
    ///
    /// # Errors
    /// [`ExporterWelcome`]: the refusal to send instead.
    pub fn begin(
        hello: &ImporterHello,
        session: SessionId,
        incarnation: u64,
        grace_max: Duration,
        limits: LaneLimits,
    ) -> Result<(Self, ExporterWelcome), ExporterWelcome> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            return Err(refusal(hello, incarnation, WelcomeOutcome::Version));
        }
        if hello.position.session != SessionId::NONE {
            return Err(refusal(hello, incarnation, WelcomeOutcome::Unknown));
        }
        if hello.position.lane != 0 {
            return Err(refusal(hello, incarnation, WelcomeOutcome::Refused));
        }
        let wished = hello.options.grace_ms.map_or(grace_max, |ms| Duration::from_millis(ms.into()));
        let mut begun = Self {
            lanes: LaneArray::new(limits),
            lanes_granted: hello.options.lanes.unwrap_or(1).clamp(1, LANES_MAX.into()) as u16,
            limits,
            accepted: PeerLimits::default(),
            session,
            their_incarnation: hello.position.incarnation,
            incarnation,
            absence: ImporterAbsence::none(wished.min(grace_max)),
            hold: HoldLimits::default(),
            attachments: BTreeMap::new(),
            handovers: SessionMigrations::default(),
            backlog: Backlog::default(),
            is_ended: false,
            pool: BufferPool::new(limits.pool_bytes_max()),
            modules: None,
            offers: BTreeMap::new(),
            reserving: PendingReservations::default(),
            identities: SessionIdentities::default(),
            cut_off: None,
        };
        begun.hold.hear(hello.options.hold_ms);
        begun.accepted.hear(&hello.options);
        let first = begun.lanes.known_first_mut();
        first.link = hello.position.link;
        first.lane.handle_linked(0, &mut begun.pool).expect("a new lane has sent nothing, and nothing arrived");
        begun.note_credit();
        let welcome = begun.welcome(WelcomeOutcome::Begun, 0);
        Ok((begun, welcome))
    }

    /// Keeps a device that was handed over for its successor for so long at most; without this call for
    /// [`HOLD`](crate::native::HOLD). Returns what the welcome has to say of it.
    pub fn limit_hold(&mut self, hold: Duration) -> Option<u32> {
        self.hold.set_own(hold);
        self.hold_ms()
    }

    /// What a welcome says of the limit: nothing to an importer that knows none.
    fn hold_ms(&self) -> Option<u32> {
        self.hold.is_heard().then(|| self.hold.own_ms())
    }

    /// Allows the importer these modules; without this call it may use none.
    pub fn allow(&mut self, modules: Arc<AllowedModules>) {
        self.modules = Some(modules);
    }

    /// Handles a new link of the importer; returns the welcome to send on it. Unless the outcome is
    /// [`WelcomeOutcome::Resumed`], the link does not belong to the session, which continues unchanged.
    pub fn resume(&mut self, hello: &ImporterHello) -> ExporterWelcome {
        let theirs = hello.position;
        let is_same = theirs.session == self.session
            && theirs.incarnation == self.their_incarnation
            && theirs.lane < self.lanes_granted;
        let link = self.lanes.known_mut(theirs.lane).map(|known| known.link);
        if !is_same || theirs.link <= link.unwrap_or(0) || self.is_ended {
            // The greeting came by an older link than the session has: it is late.
            return refusal(hello, self.incarnation, WelcomeOutcome::Refused);
        }
        if link.is_none() && !self.may_hold(256 << 10) {
            return refusal(hello, self.incarnation, WelcomeOutcome::Refused);
        }
        // The received position cannot be checked without releasing the old link. If it turns out wrong, the session
        // ends.
        let known = self.lanes.known_or_new(theirs.lane, self.limits);
        (known.link, known.has_begun) = (theirs.link, true);
        match known.lane.handle_linked(theirs.received, &mut self.pool) {
            Ok(()) => {
                if theirs.lane == 0 {
                    self.accepted.hear(&hello.options);
                }
                self.note_credit();
                if theirs.lane == 0 {
                    self.absence.end();
                    self.hold.hear(hello.options.hold_ms);
                }
                self.welcome(WelcomeOutcome::Resumed, theirs.lane)
            }
            Err(_) => {
                self.is_ended = true;
                refusal(hello, self.incarnation, WelcomeOutcome::Refused)
            }
        }
    }

    fn welcome(&self, outcome: WelcomeOutcome, lane: u16) -> ExporterWelcome {
        let known = self.lanes.all().find(|known| known.number == lane).unwrap_or(self.lanes.known_first());
        let (link, received) = (known.link, known.lane.received());
        let position = LanePosition { session: self.session, lane, link, received, incarnation: self.incarnation };
        let grace_ms = Some(u32::try_from(self.absence.grace().as_millis()).unwrap_or(u32::MAX));
        // An importer that asked for no further lanes is told nothing of them.
        let lanes = (self.lanes_granted > 1).then_some(self.lanes_granted.into());
        let hold_ms = self.hold_ms().filter(|_| lane == 0);
        let options = HelloOptions { grace_ms, lanes, hold_ms, ..HelloOptions::default() };
        ExporterWelcome { version: VERSION, outcome, position, options }
    }

    /// The id by which an importer resumes the session on another link.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// The link of this lane is lost or was ended. That of the first lane begins the grace period; a further lane has
    /// none of its own and waits as long as the first lane is linked.
    pub fn handle_lost(&mut self, number: u16, now: Instant) {
        self.lanes.get_mut(number).into_iter().for_each(Lane::handle_lost);
        if number == 0 {
            self.give_memory_back();
            self.absence.begin(now);
        }
    }

    /// The importer ended the link without a message: it is gone, or comes back at once (U13: a device is free within 5
    /// s after its user was killed).
    pub fn handle_closed(&mut self, now: Instant) {
        self.lanes.first_mut().handle_lost();
        self.give_memory_back();
        self.absence.begin_by_itself(now);
    }

    /// Whether it measures the path of a device that is opened next.
    pub fn measures_path(&self) -> bool {
        self.reserving.len() > 0
    }

    /// Whether the first lane has a link.
    pub fn is_linked(&self) -> bool {
        !self.absence.is_on()
    }

    /// Whether a device may be taken from the importer: the importer either hears of it, or can no longer show data
    /// that it fetched.
    pub fn may_close(&self, now: Instant) -> bool {
        self.absence.is_harmless(now)
    }

    /// Whether this attachment exists, including one whose device waits for its successor or is shown to it.
    pub fn is_attached(&self, number: u16) -> bool {
        self.attachments.contains_key(&number) || self.handovers.has(number)
    }

    /// Passes a command of the owner to an attached device.
    ///
    /// # Errors
    /// [`OwnerCommandError`]: the device does not know the command or refuses it.
    pub fn command(&mut self, now: Instant, number: u16, command: &OwnerCommand) -> Result<(), OwnerCommandError> {
        match self.attachments.get_mut(&number) {
            Some(attached) => attached.served.command(now, command, &mut self.lanes),
            None => Err(OwnerCommandError("the device is not attached any more".into())),
        }
    }

    /// Whether the importer said goodbye, or cannot come back.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether the grace period has ended.
    pub fn is_over(&self, now: Instant) -> bool {
        self.absence.is_over(now)
    }

    /// When time changes something: the grace period ends, or a device has a timeout.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.all_served().filter_map(|served| served.poll_timeout()).chain(self.absence.poll_timeout()).min()
    }

    /// What to wait on besides the link.
    pub fn readiness(&self) -> impl Iterator<Item = &ReadinessSource> {
        self.all_served().filter_map(|served| served.readiness())
    }

    /// Number of attachments, as counted by [`ExporterSession::is_attached`].
    pub fn attachments(&self) -> usize {
        self.attachments.len() + self.handovers.count()
    }

    /// The open requests of the attached devices.
    pub fn opened(&self) -> impl Iterator<Item = (u16, &OpenRequest)> {
        self.attachments.iter().map(|(&number, attached)| (number, &attached.open))
    }

    /// All devices that are attached or shown to a successor.
    pub(super) fn all_served(&self) -> impl Iterator<Item = &dyn ServedExport> {
        let attached = self.attachments.values().map(|attached| &*attached.served);
        attached.chain(self.handovers.shown())
    }

    /// Runs `act` for each of them.
    fn each_served(&mut self, mut act: impl FnMut(u16, &mut dyn ServedExport, &mut LaneArray)) {
        let attached = self.attachments.iter_mut().map(|(&number, attached)| (number, &mut attached.served));
        for (number, served) in attached.chain(self.handovers.shown_mut()) {
            with_pool(served, &mut self.pool, |served| act(number, served, &mut self.lanes));
        }
    }

    /// Handles what arrived until there is enough to send. Returns whether there may be more to do after that is sent.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the importer broke the protocol; the session must end.
    pub fn advance(&mut self, now: Instant, services: &mut impl ExporterServices) -> Result<bool, ProtocolViolation> {
        self.do_what_waited(now, services)?;
        if self.advance_lane(now, 0, services)? {
            return Ok(true);
        }
        for at in 0..self.lanes.further().len() {
            let number = self.lanes.further()[at].number;
            if self.advance_lane(now, number, services)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn advance_lane(
        &mut self,
        now: Instant,
        lane: u16,
        services: &mut impl ExporterServices,
    ) -> Result<bool, ProtocolViolation> {
        let mut moved = 0;
        while let Some(arrived) = self.lanes.poll_arrived(lane, &mut self.pool)? {
            let before = self.lanes.waiting_bytes();
            let body_bytes = arrived.body.len();
            self.handle_arrived(now, lane, arrived, services)?;
            let by_this = body_bytes + self.lanes.waiting_bytes() - before;
            moved += by_this;
            if moved >= (ENOUGH_REQUESTS * by_this).clamp(ENOUGH_BYTES_MIN, ENOUGH_BYTES_MAX) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        lane: u16,
        arrived: ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let Some(arrived) = self.admit(arrived)? else { return Ok(()) };
        let FrameHeader { kind, attachment, .. } = arrived.head;
        match kind {
            FrameKind::Data if lane == 0 && self.backlog.is_closing(attachment) => {
                self.hear_close(now, attachment, arrived)
            }
            FrameKind::Request | FrameKind::Data | FrameKind::Cancel | FrameKind::Grant | FrameKind::Aside => {
                let served = match self.attachments.get_mut(&attachment) {
                    Some(attached) => Some(&mut attached.served),
                    None => self.handovers.shown_to(attachment),
                };
                // It was on its way when this end closed the attachment: dropped.
                let Some(served) = served else { return Ok(()) };
                let heard =
                    with_pool(served, &mut self.pool, |served| served.handle_arrived(now, arrived, &mut self.lanes));
                let asked_bytes = served.asked_bytes();
                match heard {
                    Ok(()) => self.note_asked(asked_bytes),
                    Err(reject) => self.cut_off(now, attachment, reject),
                }
            }
            FrameKind::Modules | FrameKind::Reserve | FrameKind::Open | FrameKind::Inherit => {
                self.handle_control(now, arrived, services)
            }
            FrameKind::Identity => self.hear_identity(attachment, &arrived),
            FrameKind::Retire => self.hear_step(attachment, &arrived, services),
            FrameKind::Close => self.hear_close(now, attachment, arrived),
            FrameKind::Goodbye => {
                self.is_ended = true;
                Ok(())
            }
            _ => Err(ProtocolViolation::new("kind", kind.code().into(), "an importer does not say that")),
        }
    }

    /// Ends the attachment whose importer broke its class's protocol. The frames of the session are sound, so its other
    /// attachments go on; if it has none, the session ends.
    fn cut_off(&mut self, now: Instant, number: u16, reject: ProtocolViolation) -> Result<(), ProtocolViolation> {
        if self.attachments() == 1 {
            return Err(reject);
        }
        self.close(
            now,
            number,
            &AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: format!("cut off: {reject}") },
        );
        self.cut_off = Some((number, reject));
        Ok(())
    }

    /// The attachment that was cut off alone since the last call, and why; the latest, if there were several.
    pub fn take_cut_off(&mut self) -> Option<(u16, ProtocolViolation)> {
        self.cut_off.take()
    }

    pub(super) fn handle_control(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        services: &mut impl ExporterServices,
    ) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, attachment, .. } = arrived.head;
        match kind {
            FrameKind::Modules => self.hear_offers(attachment, &arrived),
            FrameKind::Reserve => self.hear_reservation(now, attachment, &arrived, services),
            FrameKind::Open => self.open(now, attachment, &arrived, services),
            _ => self.open_for_successor(now, attachment, &arrived, services),
        }
    }

    /// Whether an attachment of this number may begin; if there is no room, tells the importer.
    pub(super) fn may_begin(&mut self, number: u16) -> Result<bool, ProtocolViolation> {
        if number == 0 || self.is_attached(number) || self.handovers.successors.contains_key(&number) {
            return Err(ProtocolViolation::new(
                "attachment",
                number.into(),
                "a new one has a number that is not in use, from 1",
            ));
        }
        let has_room = self.attachments.len() + self.handovers.len() < ATTACHMENTS_MAX;
        if !has_room {
            let message = format!("a session has {ATTACHMENTS_MAX} attachments at most");
            self.say_end(
                FrameKind::Refused,
                number,
                &AttachmentEndNotice { cause: AttachmentEndCause::Refused, message },
            );
        }
        Ok(has_room)
    }

    pub(super) fn agree_and_say_opened(&mut self, now: Instant, number: u16, attached: ExporterAttachment) {
        match self.agree(number, &attached.open) {
            Ok(agreed) => self.say_opened(number, attached, agreed),
            Err(end) => {
                attached.served.finish(now);
                self.say_end(FrameKind::Closed, number, &end);
            }
        }
    }

    pub(super) fn say_opened(&mut self, number: u16, mut attached: ExporterAttachment, agreed: Option<AgreedModules>) {
        if !attached.served.is_ready() {
            attached.unsaid = Some(DeferredOpening(agreed));
            self.attachments.insert(number, attached);
            return;
        }
        if let Some((pipeline, answers)) = agreed {
            attached.served = Box::new(PipedServed::new(number, attached.served, pipeline));
            self.lanes.send(in_turn(OutboundMessage::control(
                FrameKind::Modules,
                number,
                0,
                encode_answers(&answers).into(),
            )));
        }
        self.say_identity(number);
        self.say_descriptors(number, &*attached.served);
        let ExporterAttachment { lease, served, .. } = &attached;
        let opened = OpenReply { epoch: *lease, credit: served.credit(), info: served.description() };
        self.attachments.insert(number, attached);
        self.note_credit();
        self.say_at_length(FrameKind::Opened, number, opened.encode());
    }

    /// Tells an importer that takes them the descriptors that the description does not have. One that is told nothing
    /// takes this for an exporter of an earlier version, so a device without any is told of, too.
    fn say_descriptors(&mut self, number: u16, served: &dyn ServedExport) {
        let described = self.accepted.descriptors_bytes_max().zip(served.named_descriptors());
        if let Some((bytes_max, all)) = described {
            let part = descriptors::encode(&all, bytes_max).into();
            self.lanes.send(in_turn(OutboundMessage::control(FrameKind::Descriptors, number, 0, part)));
        }
    }

    pub(super) fn say_at_length(&mut self, kind: FrameKind, number: u16, bytes: Vec<u8>) {
        let (head, part, payload) = (FrameHeader::new(kind, number, 0), ClassPart::empty(), bytes.into());
        let flow = FlowId(u32::from(number) << 8);
        self.lanes.send(OutboundMessage { head, part, payload, urgency: MessageUrgency::High, flow, done_at: None });
    }

    pub(super) fn say_end(&mut self, kind: FrameKind, attachment: u16, end: &AttachmentEndNotice) {
        self.offers.remove(&attachment);
        self.identities.forget(attachment);
        self.backlog.forget(attachment);
        self.note_credit();
        self.lanes.send(OutboundMessage::control(kind, attachment, 0, end.encode().into()));
    }

    /// Handles timeouts, readiness and ends of all devices.
    pub fn handle_ready(&mut self, now: Instant) {
        self.absence.handle_timeout(now);
        let mut ended = Vec::new();
        self.each_served(|number, served, lanes| {
            served.handle_ready(now, lanes);
            ended.extend(served.poll_end().map(|end| (number, end)));
        });
        for (number, end) in ended {
            self.close(now, number, &end);
        }
        self.end_what_holds_too_much(now);
        self.say_who_is_ready();
    }

    fn say_who_is_ready(&mut self) {
        let is_ready = |attached: &ExporterAttachment| attached.unsaid.is_some() && attached.served.is_ready();
        let ready: Vec<u16> =
            self.attachments.iter().filter(|(_, attached)| is_ready(attached)).map(|(&number, _)| number).collect();
        for number in ready {
            let Some(mut attached) = self.attachments.remove(&number) else { continue };
            let agreed = attached.unsaid.take().and_then(|DeferredOpening(agreed)| agreed);
            self.say_opened(number, attached, agreed);
        }
    }

    /// Ends an attachment, because its device is unplugged or taken from this importer.
    pub fn close(&mut self, now: Instant, number: u16, end: &AttachmentEndNotice) {
        match self.attachments.remove(&number) {
            Some(ExporterAttachment { served, unsaid, .. }) => {
                served.finish(now);
                let kind = if unsaid.is_some() { FrameKind::Refused } else { FrameKind::Closed };
                self.say_end(kind, number, end);
            }
            None if self.disinherit(now, number) => self.say_end(FrameKind::Closed, number, end),
            None => {}
        }
    }

    /// The first lane, which the caller connects with its link; call [`ExporterSession::advance`] when bytes arrived.
    pub fn lane_mut(&mut self) -> &mut Lane {
        self.lanes.first_mut()
    }

    /// All lanes, the first included; the caller connects each with its link.
    pub fn lanes_mut(&mut self) -> &mut LaneArray {
        &mut self.lanes
    }

    /// Whether only the importer and timeouts make something happen: no device has work of its own, and no migration is
    /// under way in which another session takes part.
    pub fn only_talks(&self) -> bool {
        self.handovers.successors.is_empty()
            && self.handovers.moving.is_empty()
            && self.all_served().all(<dyn ServedExport>::is_idle)
    }

    /// Ends the session: every device is given back.
    pub fn finish(self, now: Instant) {
        self.into_served().for_each(|served| served.finish(now));
    }

    fn into_served(self) -> impl Iterator<Item = Box<dyn ServedExport>> {
        let attached = self.attachments.into_values().map(|attached| attached.served);
        attached.chain(self.handovers.successors.into_values().filter_map(|successor| successor.shown))
    }
}

impl ExporterSession {
    /// Prepares a handover to the replacement: cancels what devices might keep waiting.
    pub fn come_to_rest(&mut self, now: Instant) {
        self.each_served(|_, served, lanes| served.come_to_rest(now, lanes));
    }

    /// Whether no device has a request of the importer, and none is on its way to a successor.
    pub fn is_at_rest(&self) -> bool {
        self.handovers.moving.is_empty()
            && self.backlog.is_at_rest()
            && self.all_served().all(<dyn ServedExport>::is_at_rest)
    }

    /// Writes the session, at rest, to a snapshot for the replacement; `name_of` gives the name of each attachment's
    /// device there. This process may continue if the replacement does not.
    ///
    /// # Panics
    /// If the session is not at rest.
    pub fn save(&mut self, now: Instant, mut name_of: impl FnMut(u16, &str) -> String, to: &mut SnapshotWriter) {
        assert!(self.is_at_rest(), "what a device has is nobody else's to end");
        self.refuse_what_waits();
        to.raw(&self.session.0);
        for number in [self.lanes.known_first().link, self.their_incarnation, self.incarnation] {
            to.u64(number);
        }
        self.absence.save(now, to);
        to.u16(self.lanes_granted);
        self.lanes.save(now, 0, to);
        to.count(self.attachments.len());
        for (&number, ExporterAttachment { open, lease, served, migration, .. }) in &self.attachments {
            to.u16(number);
            to.bytes(&OpenRequest { name: name_of(number, &open.name), ..open.clone() }.encode());
            to.u64(*lease);
            let (mut state, mut modules) = (SnapshotWriter::part(), SnapshotWriter::part());
            let is_movable = served.save(&mut state).and_then(|()| served.save_modules(&mut modules)).is_ok();
            to.flag(is_movable);
            if is_movable {
                to.bytes(&state.into_bytes());
                to.bytes(&modules.into_bytes());
            }
            to.flag(migration.is_some());
            if let Some(DeviceMigration { successor, migration_state, left }) = migration {
                to.raw(successor);
                to.bytes(migration_state);
                to.u64(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
            }
        }
        self.handovers.save(to);
        to.count(self.offers.len());
        for (&number, request) in &self.offers {
            to.u16(number);
            to.bytes(&encode_offers(&request.offers));
        }
        self.reserving.save(to);
        self.identities.save(to);
        self.accepted.save(to);
    }

    /// Restores a session without a link from a snapshot, together with what it served. For each of these call
    /// [`ExporterSession::serve`], or [`ExporterSession::give_up`] with the reason.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(
        now: Instant,
        limits: LaneLimits,
        from: &mut FieldReader<'_>,
    ) -> Result<(Self, Vec<UnservedAttachment>), ProtocolViolation> {
        let session = SessionId(from.take(16, "session")?.try_into().expect("sixteen bytes"));
        let (link, their_incarnation) = (from.u64("link")?, from.u64("incarnation")?);
        let incarnation = from.u64("incarnation")?;
        let absence = ImporterAbsence::restore(now, from)?;
        let lanes_granted = from.u16("lanes granted")?;
        if !(1..=LANES_MAX).contains(&lanes_granted) {
            return Err(ProtocolViolation::new("lanes granted", lanes_granted.into(), "a session has 1 to 8"));
        }
        let mut lanes = LaneArray::restore(limits, None, from)?;
        lanes.known_first_mut().link = link;
        let mut all: Vec<UnservedAttachment> = Vec::new();
        for _ in 0..from.count("attachments", 2)? {
            let number = from.u16("attachment")?;
            if number == 0 || all.iter().any(|left| left.number == number) {
                return Err(ProtocolViolation::new(
                    "attachment",
                    number.into(),
                    "each has a number of its own, from 1",
                ));
            }
            let (open, lease) = (OpenRequest::decode(from.bytes("open")?)?, from.u64("lease")?);
            let (mut state, mut modules) = (None, SavedPart::default());
            if from.flag("movable")? {
                state = Some(from.part("state")?);
                modules = from.part("modules")?;
            }
            let migration = if from.flag("handed over")? { Some(DeviceMigration::restore(from)?) } else { None };
            all.push(UnservedAttachment { number, open, lease, identity: None, state, modules, migration });
        }
        let handovers = SessionMigrations::restore(from, |number| all.iter().any(|left| left.number == number))?;
        let mut offers = BTreeMap::new();
        for _ in 0..from.count("offers", 2)? {
            let number = from.u16("offers")?;
            offers.insert(number, ModuleRequest::from(decode_offers(from.bytes("offers")?)?));
        }
        let reserving = PendingReservations::restore(from)?;
        let identities = SessionIdentities::restore(from)?;
        let accepted = PeerLimits::restore(from)?;
        all.iter_mut().for_each(|left| left.identity = identities.of(left.number));
        if session == SessionId::NONE || all.len() + handovers.len() > ATTACHMENTS_MAX || offers.len() > ATTACHMENTS_MAX
        {
            return Err(ProtocolViolation::new(
                "attachments",
                all.len() as u64,
                "a session has a name, and 512 attachments at most",
            ));
        }
        let session = Self {
            lanes,
            lanes_granted,
            limits,
            accepted,
            session,
            their_incarnation,
            incarnation,
            absence,
            hold: HoldLimits::default(),
            attachments: BTreeMap::new(),
            handovers,
            backlog: Backlog::default(),
            is_ended: false,
            pool: BufferPool::new(limits.pool_bytes_max()),
            modules: None,
            offers,
            reserving,
            identities,
            cut_off: None,
        };
        Ok((session, all))
    }

    /// Serves a device of a snapshot again, in its old state and behind its old modules. If the modules cannot
    /// continue, the attachment ends.
    pub fn serve(&mut self, now: Instant, left: UnservedAttachment, served: Box<dyn ServedExport>) {
        let UnservedAttachment { number, open, lease, migration, modules, .. } = left;
        let mut served = match self.behind_modules(number, &open, &modules, served) {
            Ok(served) => served,
            Err((served, reject)) => {
                served.finish(now);
                let message = format!("what it goes through cannot go on: {reject}");
                return self.say_end(
                    FrameKind::Closed,
                    number,
                    &AttachmentEndNotice { cause: AttachmentEndCause::Gone, message },
                );
            }
        };
        with_pool(&mut served, &mut self.pool, |served| served.go_on(now, &mut self.lanes));
        self.attachments
            .insert(number, ExporterAttachment { migration, ..ExporterAttachment::new(open, lease, served) });
        self.note_credit();
        self.hand_over_again(now);
    }

    /// Ends an attachment of a snapshot that cannot be served, with the reason.
    pub fn give_up(&mut self, number: u16, end: &AttachmentEndNotice) {
        self.say_end(FrameKind::Closed, number, end);
    }

    /// Continues here, because the replacement did not take over.
    pub fn go_on(&mut self, now: Instant) {
        self.each_served(|_, served, lanes| served.go_on(now, lanes));
        self.hand_over_again(now);
    }

    /// Lets go of all devices without ending anything, because the replacement continues.
    pub fn leave(self, now: Instant) {
        self.into_served().for_each(|served| served.leave(now));
    }
}

/// Puts a message into the flow of its attachment, so that everything said before an open arrives before it.
pub(super) fn in_turn(message: OutboundMessage) -> OutboundMessage {
    OutboundMessage { flow: FlowId(u32::from(message.head.attachment) << 8), ..message }
}

/// Lends the session's buffer pool to a device while it acts.
fn with_pool<T>(
    served: &mut Box<dyn ServedExport>,
    pool: &mut BufferPool,
    act: impl FnOnce(&mut dyn ServedExport) -> T,
) -> T {
    let mut lend = |served: &mut dyn ServedExport| {
        if let Some(own) = served.pool_mut() {
            std::mem::swap(own, pool);
        }
    };
    lend(&mut **served);
    let acted = act(&mut **served);
    lend(&mut **served);
    acted
}

/// A welcome that refuses the session or the link.
pub fn refusal(hello: &ImporterHello, incarnation: u64, outcome: WelcomeOutcome) -> ExporterWelcome {
    let position = LanePosition { received: 0, incarnation, ..hello.position };
    ExporterWelcome { version: VERSION, outcome, position, options: HelloOptions::default() }
}
