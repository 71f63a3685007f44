//! Converts between a session's frames and a pipeline's messages, on either side.
//!
//! Modules see whole messages, so the frames of one message are joined. What a class does not show its modules
//! (urgency, flow, residence time) waits here and is added again to what comes out of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{self, ASIDE_BYTES_MAX, Class, Failure, GROWTH_BYTES_MAX, Role, Side, Trouble, Turn};
use farbus_model::{Instant, Payload, Pieces, Status, StoreError};
use farbus_modules::{Pipeline, Place};
use farbus_wire::native::control::{self, Cause, End};
use farbus_wire::native::frame::{Flags, RESIDENCE_BYTES};
use farbus_wire::native::modules::{put_head, split_head};
use farbus_wire::native::{Arrived, Flow, Head, Kind, Message, Part, Urgency, block, usb};

use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// Most bytes of a message whose frames are still arriving.
const MESSAGE_BYTES_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX;
/// Most bytes of all such messages of an attachment: the largest credit, plus the one message that may exceed it.
const ARRIVING_BYTES_MAX: usize = (32 << 20) + 2 * MESSAGE_BYTES_MAX;
/// Most bytes that the modules of an attachment hold back: the same, and what each message takes besides.
const HELD_BYTES_MAX: usize = ARRIVING_BYTES_MAX + (4 << 20);
/// Memory of an envelope: an entry of a tree.
const ENVELOPE_BYTES: usize = 2 * size_of::<Envelope>();
/// Most open requests of an attachment: the largest credit.
const REQUESTS_MAX: usize = 4096;

/// Most module timeouts that are waited for before a handover gives up: far more than the messages that may wait.
const LETTING_GO_MAX: usize = 1 << 16;

/// A pipe from a snapshot, without its modules.
pub struct Saved {
    states: Vec<Vec<u8>>,
    /// Open requests, timed ones among them, and those that the class has.
    tags: [BTreeSet<u16>; 3],
    residences: BTreeMap<u16, Payload>,
    arriving: BTreeMap<u16, Arriving>,
}

impl Saved {
    /// Reads what [`Pipe::save`] wrote.
    ///
    /// # Errors
    /// [`Reject`]: the snapshot is inconsistent.
    pub fn restore(from: &mut Reader<'_>) -> Result<Self, Reject> {
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
            let kinds = [Kind::Request, Kind::Reply, Kind::Event];
            let kind = kinds.into_iter().find(|kind| kind.code() == code);
            let kind = kind.ok_or(Reject::new("kind", code.into(), "a message of more than a frame is arriving"))?;
            let residence = if from.flag("timed")? { Some(from.payload("residence")?) } else { None };
            arriving.insert(tag, Arriving { kind, residence, body: from.payload("data")?.into() });
        }
        let bytes: usize = arriving.values().map(|arriving| arriving.body.len()).sum();
        if tags[0].len() > REQUESTS_MAX || bytes > ARRIVING_BYTES_MAX {
            return Err(Reject::new("requests", tags[0].len() as u64, "no more than the credit allows"));
        }
        Ok(Self { states, tags, residences, arriving })
    }

    /// The saved state of each module.
    pub fn states(&self) -> &[Vec<u8>] {
        &self.states
    }
}

/// What modules are told about an attachment's device.
pub fn place_of(role: Role, class: control::Class) -> Place {
    let (class, failed) = match class {
        control::Class::USB => {
            let reply = usb::Reply { status: Status::Protocol, actual: 0, start_frame: 0, iso: Vec::new() };
            (Class::Usb, reply.encode())
        }
        control::Class::BLOCK => (Class::Block, block::reply_part(StoreError::Medium)),
        control::Class::STREAM => (Class::Stream, Part::empty()),
        _ => (Class::Private, Part::empty()),
    };
    Place { role, class, failed: failed.to_vec().into() }
}

/// The end of an attachment whose modules failed.
pub fn end_of(failure: &Failure) -> End {
    let cause = match failure.trouble {
        Trouble::Network => Cause::Network,
        Trouble::Peer | Trouble::Module => Cause::Module,
    };
    End { cause, message: failure.why.clone() }
}

/// A message whose frames are still arriving.
struct Arriving {
    kind: Kind,
    residence: Option<Payload>,
    body: Pieces,
}

/// The parts of a message that modules do not see.
struct Envelope {
    urgency: Urgency,
    flow: Flow,
    residence: Part,
    done_at: Option<Instant>,
}

/// The modules of an attachment on one side.
pub struct Pipe {
    pipeline: Pipeline,
    role: Role,
    attachment: u16,
    arriving: BTreeMap<u16, Arriving>,
    arriving_bytes: usize,
    /// Open requests. On the exporter, those that neither the class nor a module in its place has answered.
    open: BTreeSet<u16>,
    /// Those of them that are timed.
    timed: BTreeSet<u16>,
    /// Residence times of replies that are among the modules.
    residences: BTreeMap<u16, Payload>,
    /// Envelopes of messages among the modules, by kind and tag. A message that leaves inside another one leaves its
    /// envelope here, and the next message with its tag replaces it.
    envelopes: BTreeMap<(u8, u64), Envelope>,
    /// On the exporter: requests that the class has.
    with_class: BTreeSet<u16>,
    /// Events that the modules dropped, and whose grants have not been returned.
    lost: u32,
    turn: Turn,
    above: VecDeque<Arrived>,
    below: VecDeque<Message>,
    failure: Option<Failure>,
    /// There was a failure, taken or not.
    has_failed: bool,
}

impl Pipe {
    /// A pipe of attachment `attachment`.
    pub fn new(pipeline: Pipeline, role: Role, attachment: u16) -> Self {
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
            turn: Turn::default(),
            above: VecDeque::new(),
            below: VecDeque::new(),
            failure: None,
            has_failed: false,
        }
    }

    /// A pipe that continues from a snapshot, with its restored modules.
    pub fn resumed(pipeline: Pipeline, role: Role, attachment: u16, saved: Saved) -> Self {
        let Saved { tags: [open, timed, with_class], residences, arriving, .. } = saved;
        let arriving_bytes = arriving.values().map(|arriving| arriving.body.len()).sum();
        let new = Self::new(pipeline, role, attachment);
        Self { open, timed, with_class, residences, arriving, arriving_bytes, ..new }
    }

    /// Sends a message of the class through the modules, if it is of a kind that passes them.
    pub fn say(&mut self, now: Instant, message: Message) {
        let Message { head, part, payload, urgency, flow, done_at } = message;
        let kind = match (head.kind, self.role) {
            (Kind::Request, Role::Importer) => module::Kind::Request,
            (Kind::Cancel, Role::Importer) => module::Kind::Cancel,
            (Kind::Reply, Role::Exporter) => module::Kind::Completion,
            (Kind::Cancel, Role::Exporter) => module::Kind::Cancelled,
            (Kind::Event, Role::Exporter) => module::Kind::Event,
            _ => return self.below.push_back(Message { head, part, payload, urgency, flow, done_at }),
        };
        if kind == module::Kind::Request {
            self.open.insert(head.tag);
            if head.flags.timed {
                self.timed.insert(head.tag);
            }
        }
        let residence_bytes = if kind == module::Kind::Completion && head.flags.timed { RESIDENCE_BYTES } else { 0 };
        let (residence, words) = part.split_at(residence_bytes);
        let id = u64::from(head.tag);
        let mut kept = Part::empty();
        kept.put(residence);
        let envelope = Envelope { urgency, flow, residence: kept, done_at };
        if kind == module::Kind::Completion {
            self.with_class.remove(&head.tag);
            self.open.remove(&head.tag);
        }
        self.envelopes.insert((kind.code(), id), envelope);
        let message = module::Message { kind, id, head: words.into(), payload };
        self.pipeline.handle(now, Side::Above, message, &mut self.turn);
        self.collect();
    }

    /// Handles a frame of a kind that passes the modules.
    ///
    /// # Errors
    /// [`Reject`]: the other end broke the protocol; the session must end.
    pub fn handle_arrived(&mut self, now: Instant, arrived: Arrived) -> Result<(), Reject> {
        let Head { kind, flags, tag, .. } = arrived.head;
        let mut arriving = match kind {
            Kind::Data => {
                let unknown = Reject::new("tag", tag.into(), "data goes on with what was begun");
                let mut arriving = self.arriving.remove(&tag).ok_or(unknown)?;
                self.arriving_bytes -= arriving.body.len();
                arriving.body.push(arrived.body);
                arriving
            }
            _ => self.begin(kind, tag, flags, arrived.body)?,
        };
        let bytes = arriving.body.len();
        if bytes > MESSAGE_BYTES_MAX || self.arriving_bytes + bytes > ARRIVING_BYTES_MAX {
            return Err(Reject::new("data", bytes as u64, "a message is no longer than a transfer"));
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
            Kind::Request => (module::Kind::Request, tag),
            Kind::Reply => (module::Kind::Completion, tag),
            Kind::Cancel if self.role == Role::Exporter => (module::Kind::Cancel, tag),
            Kind::Cancel => (module::Kind::Cancelled, tag),
            Kind::Event => (module::Kind::Event, tag),
            _ => (module::Kind::Aside(tag as u8), 0),
        };
        let message = module::Message { kind, id: id.into(), head, payload };
        self.pipeline.handle(now, Side::Below, message, &mut self.turn);
        self.collect();
        Ok(())
    }

    fn begin(&mut self, kind: Kind, tag: u16, flags: Flags, mut body: Payload) -> Result<Arriving, Reject> {
        let mut residence = None;
        match (kind, self.role) {
            (Kind::Request, Role::Exporter) => {
                if self.open.len() >= REQUESTS_MAX {
                    return Err(Reject::new(
                        "credit",
                        self.open.len() as u64,
                        "no more is asked than the credit allows",
                    ));
                }
                if !self.open.insert(tag) {
                    return Err(Reject::new("tag", tag.into(), "a request has a tag that is not in use"));
                }
                self.timed.remove(&tag);
                if flags.timed {
                    self.timed.insert(tag);
                }
            }
            (Kind::Reply, Role::Importer) => {
                if !self.open.contains(&tag) || self.arriving.contains_key(&tag) || self.residences.contains_key(&tag) {
                    return Err(Reject::new("tag", tag.into(), "a reply answers a request, once"));
                }
                // A request that travelled inside another message has no flag of its own.
                if flags.timed && !self.timed.contains(&tag) {
                    return Err(Reject::new("tag", tag.into(), "a request is answered timed if it was to be"));
                }
                if flags.timed {
                    let bytes = body.split_front(RESIDENCE_BYTES);
                    if bytes.len() < RESIDENCE_BYTES {
                        return Err(Reject::new("residence", bytes.len() as u64, "a timed reply begins with it"));
                    }
                    residence = Some(bytes);
                }
            }
            (Kind::Aside, _) if flags.more || body.len() > ASIDE_BYTES_MAX + GROWTH_BYTES_MAX || tag > 255 => {
                return Err(Reject::new(
                    "aside",
                    body.len() as u64,
                    "a word to a module's other half has 16 KiB at most",
                ));
            }
            (Kind::Cancel, _) if flags.more => {
                return Err(Reject::new("flags", flags.bits().into(), "a withdrawal is one frame"));
            }
            (Kind::Aside | Kind::Cancel, _) | (Kind::Event, Role::Importer) => {}
            _ => return Err(Reject::new("kind", kind.code().into(), "the other end does not say that")),
        }
        if self.arriving.contains_key(&tag) && flags.more {
            return Err(Reject::new("tag", tag.into(), "the message before it has its end first"));
        }
        Ok(Arriving { kind, residence, body: body.into() })
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

    /// When [`Pipe::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Once it failed, the deadline of what was kept no longer matters.
        let deadline = self.pipeline.poll_deadline().filter(|_| !self.has_failed);
        [self.pipeline.poll_timeout(), deadline].into_iter().flatten().min()
    }

    /// Whether a module asked for a timeout: [`Pipe::let_go`] has something to do.
    pub fn has_timeout(&self) -> bool {
        self.pipeline.poll_timeout().is_some()
    }

    /// The end of the attachment whose modules made a message that the class refused; it names them.
    pub fn rejected(&self, reject: &Reject) -> End {
        let names: Vec<_> = self.pipeline.names().map(|name| format!("'{name}'")).collect();
        let modules = if names.len() == 1 { "module" } else { "modules" };
        End { cause: Cause::Module, message: format!("what came out of {modules} {}: {reject}", names.join(", ")) }
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
    pub fn save(&self, to: &mut Writer) -> Option<()> {
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
        for (tag, Arriving { kind, residence, body }) in &self.arriving {
            to.u16(*tag);
            to.u8(kind.code());
            to.flag(residence.is_some());
            residence.iter().for_each(|residence| to.payload(residence));
            to.runs(body.len(), body.runs());
        }
        Some(())
    }

    /// The next frame for the class.
    pub fn poll_above(&mut self) -> Option<Arrived> {
        self.above.pop_front()
    }

    /// Whether there is a frame or a failure for the class.
    pub fn has_above(&self) -> bool {
        !self.above.is_empty() || self.failure.is_some()
    }

    /// The next message to send.
    pub fn poll_below(&mut self) -> Option<Message> {
        self.below.pop_front()
    }

    /// Takes the failure of the modules, if there is one.
    pub fn poll_failure(&mut self) -> Option<Failure> {
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
                Side::Above => self.rise(message),
                Side::Below | Side::Peer => self.sink(message),
            };
            if let Err(Breach(why)) = outcome {
                let who = match maker {
                    Some(at) => self.pipeline.title(at.into()),
                    None => "the modules of the other end".to_owned(),
                };
                self.fail(Failure { trouble: Trouble::Module, why: format!("{who}: {why}") });
            }
        }
        if let Some(failure) = self.turn.failure() {
            self.fail(failure);
        }
        let held = self.held_bytes();
        if held > HELD_BYTES_MAX {
            let names: Vec<_> = self.pipeline.names().collect();
            let why = format!("{} bytes are held back by {}, more than a credit allows", held, names.join(", "));
            self.fail(Failure { trouble: Trouble::Peer, why });
        }
    }

    /// Passes a message to the class: the head in one frame, the data in the next.
    fn rise(&mut self, message: module::Message) -> Result<(), Breach> {
        let module::Message { kind, id, head, payload } = message;
        let tag = id as u16;
        let kind = match (kind, self.role) {
            (module::Kind::Request, Role::Exporter) => Kind::Request,
            (module::Kind::Cancel, Role::Exporter) | (module::Kind::Cancelled, Role::Importer) => Kind::Cancel,
            (module::Kind::Completion, Role::Importer) => Kind::Reply,
            (module::Kind::Event, Role::Importer) => Kind::Event,
            _ => return Err(Breach("it said what its end of a pair does not say")),
        };
        let mut frame = Head::new(kind, self.attachment, tag);
        let mut residence = Payload::Empty;
        match kind {
            Kind::Reply => {
                if !self.open.remove(&tag) {
                    return Err(Breach("it answered what nobody asked"));
                }
                self.envelopes.remove(&(module::Kind::Request.code(), id));
                frame.flags.plain = head.is_empty();
                frame.flags.timed = self.timed.remove(&tag);
                residence = self.residences.remove(&tag).unwrap_or_default();
                if frame.flags.timed && residence.is_empty() {
                    residence = vec![0; RESIDENCE_BYTES].into();
                }
            }
            Kind::Request => {
                // A request that arrived inside another message, as with bundling, counts like one of its own.
                if !self.with_class.insert(tag) || self.open.len() > REQUESTS_MAX {
                    return Err(Breach("it asked the device twice"));
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
            self.above.push_back(Arrived { head: frame, body });
            return Ok(());
        }
        frame.flags.more = true;
        self.above.push_back(Arrived { head: frame, body: first });
        self.above.push_back(Arrived { head: Head::new(Kind::Data, self.attachment, tag), body: payload });
        Ok(())
    }

    fn sink(&mut self, message: module::Message) -> Result<(), Breach> {
        let module::Message { kind, id, head, payload } = message;
        let (said, tag) = match (kind, self.role) {
            (module::Kind::Request, Role::Importer) => (Kind::Request, id as u16),
            (module::Kind::Cancel, Role::Importer) | (module::Kind::Cancelled, Role::Exporter) => {
                (Kind::Cancel, id as u16)
            }
            (module::Kind::Completion, Role::Exporter) => (Kind::Reply, id as u16),
            (module::Kind::Event, Role::Exporter) => (Kind::Event, id as u16),
            (module::Kind::Aside(pair), _) => (Kind::Aside, pair.into()),
            _ => return Err(Breach("it said what its end of a pair does not say")),
        };
        let mut frame = Head::new(said, self.attachment, tag);
        let mut envelope = self.envelopes.remove(&(kind.code(), id));
        let mut part = Part::empty();
        match said {
            Kind::Request if envelope.is_none() => return Err(Breach("it asked what nobody asked")),
            Kind::Request => frame.flags.timed = self.timed.contains(&tag),
            Kind::Reply => {
                if !self.open.remove(&tag) && envelope.is_none() {
                    return Err(Breach("it answered what nobody asked"));
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
        let flow = Flow(u32::from(self.attachment) << 8);
        let (urgency, flow, done_at) = match envelope {
            Some(Envelope { urgency, flow, done_at, .. }) => (urgency, flow, done_at.filter(|_| frame.flags.timed)),
            None => (Urgency::High, flow, None),
        };
        self.below.push_back(Message { head: frame, part, payload, urgency, flow, done_at });
        Ok(())
    }

    fn fail(&mut self, failure: Failure) {
        self.has_failed = true;
        self.failure.get_or_insert(failure);
    }
}

/// How a module's message breaks the contract.
struct Breach(&'static str);
