//! Converts between a session's frames and a pipeline's messages, on either side.
//!
//! Modules see whole messages, so the frames of one message are joined. What a class does not show its modules
//! (urgency, flow, residence time) waits here and is added again to what comes out of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{
    self, ASIDE_BYTES_MAX, GROWTH_BYTES_MAX, ModuleDeviceClass, ModuleFailure, ModuleFailureCause, ModuleNeighbor,
    ModuleOutput, ModuleRole,
};
use farbus_model::{Instant, Payload, PayloadAssembler, StoreError, UrbStatus};
use farbus_modules::{ModuleContext, ModulePipeline};
use farbus_wire::native::control::{self, AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::frame::{FrameFlags, RESIDENCE_BYTES};
use farbus_wire::native::modules::{put_head, split_head};
use farbus_wire::native::{
    ClassPart, FlowId, FrameHeader, FrameKind, MessageUrgency, OutboundMessage, ReceivedFrame, block, usb,
};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Most bytes of a message whose frames are still arriving.
const MESSAGE_BYTES_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX;
/// Most bytes of all such messages of an attachment: the largest credit, plus the one message that may exceed it.
const ARRIVING_BYTES_MAX: usize = (32 << 20) + 2 * MESSAGE_BYTES_MAX;
/// Most bytes that the modules of an attachment hold back: the same, and what each message takes besides.
const HELD_BYTES_MAX: usize = ARRIVING_BYTES_MAX + (4 << 20);
/// Memory of an envelope: an entry of a tree.
const ENVELOPE_BYTES: usize = 2 * size_of::<MessageEnvelope>();
/// Most open requests of an attachment: the largest credit.
const REQUESTS_MAX: usize = 4096;

/// Most module timeouts that are waited for before a handover gives up: far more than the messages that may wait.
const LETTING_GO_MAX: usize = 1 << 16;

/// A pipe from a snapshot, without its modules.
pub struct SavedPipe {
    states: Vec<Vec<u8>>,
    /// Open requests, timed ones among them, and those that the class has.
    tags: [BTreeSet<u16>; 3],
    residences: BTreeMap<u16, Payload>,
    arriving: BTreeMap<u16, ArrivingMessage>,
}

impl SavedPipe {
    /// Reads what [`ModulePipe::save`] wrote.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let count = from.count("modules", 4)?;
        let states = (0..count).map(|_| from.bytes("module").map(<[u8]>::to_vec)).collect::<Result<_, _>>()?;
        let mut tags: [BTreeSet<u16>; 3] = Default::default();
        for tags in &mut tags {
            for _ in 0..from.count("tags", 2)? {
                tags.insert(from.u16("tag")?);
            }
        }
        let (mut residences, mut arriving) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..from.count("residences", 6)? {
            let tag = from.u16("tag")?;
            residences.insert(tag, from.payload("residence")?);
        }
        for _ in 0..from.count("arriving", 8)? {
            let (tag, code) = (from.u16("tag")?, from.u8("kind")?);
            let kinds = [FrameKind::Request, FrameKind::Reply, FrameKind::Event];
            let kind = kinds.into_iter().find(|kind| kind.code() == code);
            let kind =
                kind.ok_or(ProtocolViolation::new("kind", code.into(), "a message of more than a frame is arriving"))?;
            let residence = if from.flag("timed")? { Some(from.payload("residence")?) } else { None };
            arriving.insert(tag, ArrivingMessage { kind, residence, body: from.payload("data")?.into() });
        }
        let bytes: usize = arriving.values().map(|arriving| arriving.body.len()).sum();
        if tags[0].len() > REQUESTS_MAX || bytes > ARRIVING_BYTES_MAX {
            return Err(ProtocolViolation::new("requests", tags[0].len() as u64, "no more than the credit allows"));
        }
        Ok(Self { states, tags, residences, arriving })
    }

    /// The saved state of each module.
    pub fn states(&self) -> &[Vec<u8>] {
        &self.states
    }
}

/// What modules are told about an attachment's device.
pub fn context_of(role: ModuleRole, class: control::AttachmentClass) -> ModuleContext {
    let (class, failed) = match class {
        control::AttachmentClass::USB => {
            let reply = usb::UsbReplyPart { status: UrbStatus::Protocol, actual: 0, start_frame: 0, iso: Vec::new() };
            (ModuleDeviceClass::Usb, reply.encode())
        }
        control::AttachmentClass::BLOCK => (ModuleDeviceClass::Block, block::reply_part(StoreError::Medium)),
        control::AttachmentClass::STREAM => (ModuleDeviceClass::Stream, ClassPart::empty()),
        _ => (ModuleDeviceClass::Private, ClassPart::empty()),
    };
    ModuleContext { role, class, failed: failed.to_vec().into() }
}

/// The end of an attachment whose modules failed.
pub fn end_of(failure: &ModuleFailure) -> AttachmentEndNotice {
    let cause = match failure.trouble {
        ModuleFailureCause::Network => AttachmentEndCause::Network,
        ModuleFailureCause::Peer | ModuleFailureCause::Module => AttachmentEndCause::Module,
    };
    AttachmentEndNotice { cause, message: failure.why.clone() }
}

/// A message whose frames are still arriving.
struct ArrivingMessage {
    kind: FrameKind,
    residence: Option<Payload>,
    body: PayloadAssembler,
}

/// The parts of a message that modules do not see.
struct MessageEnvelope {
    urgency: MessageUrgency,
    flow: FlowId,
    residence: ClassPart,
    done_at: Option<Instant>,
}

/// The modules of an attachment on one side.
pub struct ModulePipe {
    pipeline: ModulePipeline,
    role: ModuleRole,
    attachment: u16,
    arriving: BTreeMap<u16, ArrivingMessage>,
    arriving_bytes: usize,
    /// Open requests. On the exporter, those that neither the class nor a module in its place has answered.
    open: BTreeSet<u16>,
    /// Those of them that are timed.
    timed: BTreeSet<u16>,
    /// Residence times of replies that are among the modules.
    residences: BTreeMap<u16, Payload>,
    /// Envelopes of messages among the modules, by kind and tag. A message that leaves inside another one leaves its
    /// envelope here, and the next message with its tag replaces it.
    envelopes: BTreeMap<(u8, u64), MessageEnvelope>,
    /// On the exporter: requests that the class has.
    with_class: BTreeSet<u16>,
    /// Events that the modules dropped, and whose grants have not been returned.
    lost: u32,
    turn: ModuleOutput,
    above: VecDeque<ReceivedFrame>,
    below: VecDeque<OutboundMessage>,
    failure: Option<ModuleFailure>,
    /// There was a failure, taken or not.
    has_failed: bool,
}

impl ModulePipe {
    /// A pipe of attachment `attachment`.
    pub fn new(pipeline: ModulePipeline, role: ModuleRole, attachment: u16) -> Self {
        Self {
            pipeline,
            role,
            attachment,
            arriving: BTreeMap::new(),
            arriving_bytes: 0,
            open: BTreeSet::new(),
            timed: BTreeSet::new(),
            residences: BTreeMap::new(),
            envelopes: BTreeMap::new(),
            with_class: BTreeSet::new(),
            lost: 0,
            turn: ModuleOutput::default(),
            above: VecDeque::new(),
            below: VecDeque::new(),
            failure: None,
            has_failed: false,
        }
    }

    /// A pipe that continues from a snapshot, with its restored modules.
    pub fn resumed(pipeline: ModulePipeline, role: ModuleRole, attachment: u16, saved: SavedPipe) -> Self {
        let SavedPipe { tags: [open, timed, with_class], residences, arriving, .. } = saved;
        let arriving_bytes = arriving.values().map(|arriving| arriving.body.len()).sum();
        let new = Self::new(pipeline, role, attachment);
        Self { open, timed, with_class, residences, arriving, arriving_bytes, ..new }
    }

    /// Sends a message of the class through the modules, if it is of a kind that passes them.
    pub fn say(&mut self, now: Instant, message: OutboundMessage) {
        let OutboundMessage { head, part, payload, urgency, flow, done_at } = message;
        let kind = match (head.kind, self.role) {
            (FrameKind::Request, ModuleRole::Importer) => module::ModuleMessageKind::Request,
            (FrameKind::Cancel, ModuleRole::Importer) => module::ModuleMessageKind::Cancel,
            (FrameKind::Reply, ModuleRole::Exporter) => module::ModuleMessageKind::Completion,
            (FrameKind::Cancel, ModuleRole::Exporter) => module::ModuleMessageKind::Cancelled,
            (FrameKind::Event, ModuleRole::Exporter) => module::ModuleMessageKind::Event,
            _ => return self.below.push_back(OutboundMessage { head, part, payload, urgency, flow, done_at }),
        };
        if kind == module::ModuleMessageKind::Request {
            self.open.insert(head.tag);
            if head.flags.timed {
                self.timed.insert(head.tag);
            }
        }
        let residence_bytes =
            if kind == module::ModuleMessageKind::Completion && head.flags.timed { RESIDENCE_BYTES } else { 0 };
        let (residence, words) = part.split_at(residence_bytes);
        let id = u64::from(head.tag);
        let mut kept = ClassPart::empty();
        kept.put(residence);
        let envelope = MessageEnvelope { urgency, flow, residence: kept, done_at };
        if kind == module::ModuleMessageKind::Completion {
            self.with_class.remove(&head.tag);
            self.open.remove(&head.tag);
        }
        self.envelopes.insert((kind.code(), id), envelope);
        let message = module::ModuleMessage { kind, id, head: words.into(), payload };
        self.pipeline.handle(now, ModuleNeighbor::Above, message, &mut self.turn);
        self.collect();
    }

    /// Handles a frame of a kind that passes the modules.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the other end broke the protocol; the session must end.
    pub fn handle_arrived(&mut self, now: Instant, arrived: ReceivedFrame) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, flags, tag, .. } = arrived.head;
        let mut arriving = match kind {
            FrameKind::Data => {
                let unknown = ProtocolViolation::new("tag", tag.into(), "data goes on with what was begun");
                let mut arriving = self.arriving.remove(&tag).ok_or(unknown)?;
                self.arriving_bytes -= arriving.body.len();
                arriving.body.push(arrived.body);
                arriving
            }
            _ => self.begin(kind, tag, flags, arrived.body)?,
        };
        let bytes = arriving.body.len();
        if bytes > MESSAGE_BYTES_MAX || self.arriving_bytes + bytes > ARRIVING_BYTES_MAX {
            return Err(ProtocolViolation::new("data", bytes as u64, "a message is no longer than a transfer"));
        }
        if flags.more {
            self.arriving_bytes += bytes;
            self.arriving.insert(tag, arriving);
            return Ok(());
        }
        if let Some(residence) = arriving.residence.take() {
            self.residences.insert(tag, residence);
        }
        let (head, payload) = split_head(arriving.body.into_payload())?;
        let (kind, id) = match arriving.kind {
            FrameKind::Request => (module::ModuleMessageKind::Request, tag),
            FrameKind::Reply => (module::ModuleMessageKind::Completion, tag),
            FrameKind::Cancel if self.role == ModuleRole::Exporter => (module::ModuleMessageKind::Cancel, tag),
            FrameKind::Cancel => (module::ModuleMessageKind::Cancelled, tag),
            FrameKind::Event => (module::ModuleMessageKind::Event, tag),
            _ => (module::ModuleMessageKind::Aside(tag as u8), 0),
        };
        let message = module::ModuleMessage { kind, id: id.into(), head, payload };
        self.pipeline.handle(now, ModuleNeighbor::Below, message, &mut self.turn);
        self.collect();
        Ok(())
    }

    fn begin(
        &mut self,
        kind: FrameKind,
        tag: u16,
        flags: FrameFlags,
        mut body: Payload,
    ) -> Result<ArrivingMessage, ProtocolViolation> {
        let mut residence = None;
        match (kind, self.role) {
            (FrameKind::Request, ModuleRole::Exporter) => {
                if self.open.len() >= REQUESTS_MAX {
                    return Err(ProtocolViolation::new(
                        "credit",
                        self.open.len() as u64,
                        "no more is asked than the credit allows",
                    ));
                }
                if !self.open.insert(tag) {
                    return Err(ProtocolViolation::new("tag", tag.into(), "a request has a tag that is not in use"));
                }
                self.timed.remove(&tag);
                if flags.timed {
                    self.timed.insert(tag);
                }
            }
            (FrameKind::Reply, ModuleRole::Importer) => {
                if !self.open.contains(&tag) || self.arriving.contains_key(&tag) || self.residences.contains_key(&tag) {
                    return Err(ProtocolViolation::new("tag", tag.into(), "a reply answers a request, once"));
                }
                // A request that travelled inside another message has no flag of its own.
                if flags.timed && !self.timed.contains(&tag) {
                    return Err(ProtocolViolation::new(
                        "tag",
                        tag.into(),
                        "a request is answered timed if it was to be",
                    ));
                }
                if flags.timed {
                    let bytes = body.split_front(RESIDENCE_BYTES);
                    if bytes.len() < RESIDENCE_BYTES {
                        return Err(ProtocolViolation::new(
                            "residence",
                            bytes.len() as u64,
                            "a timed reply begins with it",
                        ));
                    }
                    residence = Some(bytes);
                }
            }
            (FrameKind::Aside, _) if flags.more || body.len() > ASIDE_BYTES_MAX + GROWTH_BYTES_MAX || tag > 255 => {
                return Err(ProtocolViolation::new(
                    "aside",
                    body.len() as u64,
                    "a word to a module's other half has 16 KiB at most",
                ));
            }
            (FrameKind::Cancel, _) if flags.more => {
                return Err(ProtocolViolation::new("flags", flags.bits().into(), "a withdrawal is one frame"));
            }
            (FrameKind::Aside | FrameKind::Cancel, _) | (FrameKind::Event, ModuleRole::Importer) => {}
            _ => return Err(ProtocolViolation::new("kind", kind.code().into(), "the other end does not say that")),
        }
        if self.arriving.contains_key(&tag) && flags.more {
            return Err(ProtocolViolation::new("tag", tag.into(), "the message before it has its end first"));
        }
        Ok(ArrivingMessage { kind, residence, body: body.into() })
    }

    /// Bytes of messages whose frames are still arriving.
    pub fn arriving_bytes(&self) -> usize {
        self.arriving_bytes
    }

    /// Memory of what the modules hold back, and of what is noted of it, bytes.
    pub fn held_bytes(&self) -> usize {
        self.pipeline.held_bytes() + self.envelopes.len() * ENVELOPE_BYTES
    }

    /// Lets the modules act if their timeout has come, and fails if one has kept a message for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.pipeline.poll_deadline().is_some_and(|deadline| deadline <= now) {
            self.pipeline.check_deadlines(now, &mut self.turn);
            self.collect();
        }
        if self.pipeline.poll_timeout().is_some_and(|due| due <= now) {
            self.pipeline.handle_timeout(now, &mut self.turn);
            self.collect();
        }
    }

    /// When [`ModulePipe::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Once it failed, the deadline of what was kept no longer matters.
        let deadline = self.pipeline.poll_deadline().filter(|_| !self.has_failed);
        [self.pipeline.poll_timeout(), deadline].into_iter().flatten().min()
    }

    /// Whether a module asked for a timeout: [`ModulePipe::let_go`] has something to do.
    pub fn has_timeout(&self) -> bool {
        self.pipeline.poll_timeout().is_some()
    }

    /// The end of the attachment whose modules made a message that the class refused; it names them.
    pub fn rejected(&self, reject: &ProtocolViolation) -> AttachmentEndNotice {
        let names: Vec<_> = self.pipeline.names().map(|name| format!("'{name}'")).collect();
        let modules = if names.len() == 1 { "module" } else { "modules" };
        AttachmentEndNotice {
            cause: AttachmentEndCause::Module,
            message: format!("what came out of {modules} {}: {reject}", names.join(", ")),
        }
    }

    /// Stops all messages in the modules (`is_paused`), or lets them continue.
    pub fn pause(&mut self, now: Instant, is_paused: bool) {
        self.pipeline.pause(now, is_paused, &mut self.turn);
        self.collect();
    }

    /// Takes the number of dropped events since the last call: their grants must be returned.
    pub fn take_lost(&mut self) -> u32 {
        std::mem::take(&mut self.lost)
    }

    /// Runs the modules' timeouts early, so that messages that they delay leave now.
    pub fn let_go(&mut self, now: Instant) {
        for _ in 0..LETTING_GO_MAX {
            let Some(due) = self.pipeline.poll_timeout() else { return };
            // Not `handle_timeout`: `now` is before the modules' deadlines.
            self.pipeline.handle_timeout(due.max(now), &mut self.turn);
            self.collect();
        }
    }

    /// Whether no message is among the modules, or has come out and was not taken.
    pub fn can_be_saved(&self) -> bool {
        self.pipeline.is_at_rest() && !self.has_above()
    }

    /// Writes the pipe, at rest, to a snapshot; `None` if it is not at rest or a module cannot be saved.
    pub fn save(&self, to: &mut SnapshotWriter) -> Option<()> {
        if !self.can_be_saved() || !self.below.is_empty() {
            return None;
        }
        let states = self.pipeline.save()?;
        to.count(states.len());
        states.iter().for_each(|state| to.bytes(state));
        for tags in [&self.open, &self.timed, &self.with_class] {
            to.count(tags.len());
            tags.iter().for_each(|tag| to.u16(*tag));
        }
        to.count(self.residences.len());
        for (tag, residence) in &self.residences {
            to.u16(*tag);
            to.payload(residence);
        }
        to.count(self.arriving.len());
        for (tag, ArrivingMessage { kind, residence, body }) in &self.arriving {
            to.u16(*tag);
            to.u8(kind.code());
            to.flag(residence.is_some());
            residence.iter().for_each(|residence| to.payload(residence));
            to.runs(body.len(), body.runs());
        }
        Some(())
    }

    /// The next frame for the class.
    pub fn poll_above(&mut self) -> Option<ReceivedFrame> {
        self.above.pop_front()
    }

    /// Whether there is a frame or a failure for the class.
    pub fn has_above(&self) -> bool {
        !self.above.is_empty() || self.failure.is_some()
    }

    /// The next message to send.
    pub fn poll_below(&mut self) -> Option<OutboundMessage> {
        self.below.pop_front()
    }

    /// Takes the failure of the modules, if there is one.
    pub fn poll_failure(&mut self) -> Option<ModuleFailure> {
        self.failure.take()
    }

    /// Whether no message is among the modules or still arriving.
    pub fn is_at_rest(&self) -> bool {
        self.pipeline.is_at_rest() && self.arriving.is_empty()
    }

    fn collect(&mut self) {
        self.lost += self.turn.take_lost();
        while let Some((side, message, maker)) = self.turn.pop_made() {
            let outcome = match side {
                ModuleNeighbor::Above => self.rise(message),
                ModuleNeighbor::Below | ModuleNeighbor::Peer => self.sink(message),
            };
            if let Err(ModuleContractBreach(why)) = outcome {
                let who = match maker {
                    Some(at) => self.pipeline.title(at.into()),
                    None => "the modules of the other end".to_owned(),
                };
                self.fail(ModuleFailure { trouble: ModuleFailureCause::Module, why: format!("{who}: {why}") });
            }
        }
        if let Some(failure) = self.turn.failure() {
            self.fail(failure);
        }
        let held = self.held_bytes();
        if held > HELD_BYTES_MAX {
            let names: Vec<_> = self.pipeline.names().collect();
            let why = format!("{} bytes are held back by {}, more than a credit allows", held, names.join(", "));
            self.fail(ModuleFailure { trouble: ModuleFailureCause::Peer, why });
        }
    }

    /// Passes a message to the class: the head in one frame, the data in the next.
    fn rise(&mut self, message: module::ModuleMessage) -> Result<(), ModuleContractBreach> {
        let module::ModuleMessage { kind, id, head, payload } = message;
        let tag = id as u16;
        let kind = match (kind, self.role) {
            (module::ModuleMessageKind::Request, ModuleRole::Exporter) => FrameKind::Request,
            (module::ModuleMessageKind::Cancel, ModuleRole::Exporter)
            | (module::ModuleMessageKind::Cancelled, ModuleRole::Importer) => FrameKind::Cancel,
            (module::ModuleMessageKind::Completion, ModuleRole::Importer) => FrameKind::Reply,
            (module::ModuleMessageKind::Event, ModuleRole::Importer) => FrameKind::Event,
            _ => return Err(ModuleContractBreach("it said what its end of a pair does not say")),
        };
        let mut frame = FrameHeader::new(kind, self.attachment, tag);
        let mut residence = Payload::Empty;
        match kind {
            FrameKind::Reply => {
                if !self.open.remove(&tag) {
                    return Err(ModuleContractBreach("it answered what nobody asked"));
                }
                self.envelopes.remove(&(module::ModuleMessageKind::Request.code(), id));
                frame.flags.plain = head.is_empty();
                frame.flags.timed = self.timed.remove(&tag);
                residence = self.residences.remove(&tag).unwrap_or_default();
                if frame.flags.timed && residence.is_empty() {
                    residence = vec![0; RESIDENCE_BYTES].into();
                }
            }
            FrameKind::Request => {
                // A request that arrived inside another message, as with bundling, counts like one of its own.
                if !self.with_class.insert(tag) || self.open.len() > REQUESTS_MAX {
                    return Err(ModuleContractBreach("it asked the device twice"));
                }
                if self.open.insert(tag) {
                    self.timed.remove(&tag);
                }
                frame.flags.timed = self.timed.contains(&tag);
            }
            _ => {}
        }
        let first = Payload::joined([residence, head]);
        if first.is_empty() || payload.is_empty() {
            let body = if first.is_empty() { payload } else { first };
            self.above.push_back(ReceivedFrame { head: frame, body });
            return Ok(());
        }
        frame.flags.more = true;
        self.above.push_back(ReceivedFrame { head: frame, body: first });
        self.above
            .push_back(ReceivedFrame { head: FrameHeader::new(FrameKind::Data, self.attachment, tag), body: payload });
        Ok(())
    }

    fn sink(&mut self, message: module::ModuleMessage) -> Result<(), ModuleContractBreach> {
        let module::ModuleMessage { kind, id, head, payload } = message;
        let (frame_kind, tag) = match (kind, self.role) {
            (module::ModuleMessageKind::Request, ModuleRole::Importer) => (FrameKind::Request, id as u16),
            (module::ModuleMessageKind::Cancel, ModuleRole::Importer)
            | (module::ModuleMessageKind::Cancelled, ModuleRole::Exporter) => (FrameKind::Cancel, id as u16),
            (module::ModuleMessageKind::Completion, ModuleRole::Exporter) => (FrameKind::Reply, id as u16),
            (module::ModuleMessageKind::Event, ModuleRole::Exporter) => (FrameKind::Event, id as u16),
            (module::ModuleMessageKind::Aside(pair), _) => (FrameKind::Aside, pair.into()),
            _ => return Err(ModuleContractBreach("it said what its end of a pair does not say")),
        };
        let mut frame = FrameHeader::new(frame_kind, self.attachment, tag);
        let mut envelope = self.envelopes.remove(&(kind.code(), id));
        let mut part = ClassPart::empty();
        match frame_kind {
            FrameKind::Request if envelope.is_none() => return Err(ModuleContractBreach("it asked what nobody asked")),
            FrameKind::Request => frame.flags.timed = self.timed.contains(&tag),
            FrameKind::Reply => {
                if !self.open.remove(&tag) && envelope.is_none() {
                    return Err(ModuleContractBreach("it answered what nobody asked"));
                }
                frame.flags.timed = self.timed.remove(&tag);
                let residence = envelope.as_mut().map(|envelope| std::mem::take(&mut envelope.residence));
                if frame.flags.timed {
                    let residence = residence.filter(|residence| residence.len() == RESIDENCE_BYTES);
                    part = residence.unwrap_or_else(|| [0; RESIDENCE_BYTES].into());
                }
            }
            _ => {}
        }
        put_head(&mut part, &head, &payload);
        let flow = FlowId(u32::from(self.attachment) << 8);
        let (urgency, flow, done_at) = match envelope {
            Some(MessageEnvelope { urgency, flow, done_at, .. }) => {
                (urgency, flow, done_at.filter(|_| frame.flags.timed))
            }
            None => (MessageUrgency::High, flow, None),
        };
        self.below.push_back(OutboundMessage { head: frame, part, payload, urgency, flow, done_at });
        Ok(())
    }

    fn fail(&mut self, failure: ModuleFailure) {
        self.has_failed = true;
        self.failure.get_or_insert(failure);
    }
}

/// How a module's message breaks the contract.
struct ModuleContractBreach(&'static str);
