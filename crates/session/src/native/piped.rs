//! The importing end of an attachment of any class, with the modules between it and the link, if there are any.

use std::collections::VecDeque;

use farbus_model::Instant;
use farbus_model::module::{ModuleOffer, ModuleRole};
use farbus_modules::{ModuleRefusal, PendingPipeline, PipelineRecipe};
use farbus_wire::native::control::{AttachmentClass, AttachmentEndCause, AttachmentEndNotice, OpenRequest};
use farbus_wire::native::modules::{decode_answers, encode_offers};
use farbus_wire::native::{FrameKind, LaneSet, OutboundMessage, ReceivedFrame};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::attachment::AttachmentBase;
use super::importer::{ImporterAttachment, MovableAttachment};
use super::pipe::{ModulePipe, SavedPipe, context_of, end_of};
use super::timing::RequestTiming;
use crate::ProtocolViolation;

/// The modules that an attachment asks for, and where they get random bytes from.
pub struct RequestedModules {
    /// The modules, in the order in which a request passes them.
    pub recipe: PipelineRecipe,
    /// The source of random bytes.
    pub random: FillOwn,
}

/// Fills a buffer with random bytes that are fit for keys.
pub type FillOwn = Box<dyn FnMut(&mut [u8]) + Send>;

/// The importing end of any class, and the modules between it and the link.
pub struct PipedAttachment<A> {
    remote: A,
    modules: Option<Box<AttachmentModules>>,
    /// The modules of a snapshot, until [`PipedAttachment::resume`] restores them.
    saved: Option<SavedModules>,
}

/// Modules as a snapshot has them.
struct SavedModules {
    attachment: u16,
    class: AttachmentClass,
    pipe: SavedPipe,
}

struct AttachmentModules {
    through: RequestedModules,
    /// The attachment for which the modules were negotiated last.
    attachment: u16,
    class: AttachmentClass,
    /// The time of the current call.
    now: Instant,
    begun: Option<PendingPipeline>,
    answers: Vec<Vec<u8>>,
    /// Whether the device's description, or what follows it, is still arriving.
    is_opening: bool,
    pipe: Option<ModulePipe>,
    below: VecDeque<OutboundMessage>,
    /// Why the attachment must end, until the class is told.
    failed: Option<AttachmentEndNotice>,
    /// Whether the class was told.
    is_over: bool,
}

impl<A> From<A> for PipedAttachment<A> {
    fn from(remote: A) -> Self {
        Self { remote, modules: None, saved: None }
    }
}

impl<A: ImporterAttachment> PipedAttachment<A> {
    /// Puts modules between `remote` and the link, if `through` names any.
    pub fn new(mut remote: A, through: Option<RequestedModules>) -> Self {
        let through = through.filter(|through| !through.recipe.is_empty());
        let modules = through.map(|through| Box::new(AttachmentModules::new(through)));
        if modules.is_some() {
            remote.note_modules();
        }
        Self { remote, modules, saved: None }
    }

    /// The class's importing end.
    pub fn inner(&self) -> &A {
        &self.remote
    }

    /// The class's importing end, for calls that change it.
    pub fn inner_mut(&mut self) -> &mut A {
        &mut self.remote
    }

    /// Whether there are modules.
    pub fn has_modules(&self) -> bool {
        self.modules.is_some()
    }

    /// The modules; an empty recipe if there are none.
    pub fn recipe(&self) -> PipelineRecipe {
        self.modules.as_ref().map(|modules| modules.through.recipe.clone()).unwrap_or_default()
    }

    /// Whether all modules can be saved for another process.
    pub fn is_movable(&self) -> bool {
        self.modules.as_ref().is_none_or(|modules| modules.through.recipe.is_movable())
    }

    /// Whether the modules can be saved now: they hold no message, and the device is open.
    pub fn is_at_rest(&self) -> bool {
        let Some(modules) = &self.modules else { return true };
        let pipe = modules.pipe.as_ref().filter(|_| !modules.is_opening && modules.failed.is_none());
        pipe.is_some_and(ModulePipe::can_be_saved)
    }

    /// Restores the modules of a restored attachment from its snapshot.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: `through` names other modules than the snapshot has, or their saved states are not valid.
    pub fn resume(&mut self, through: Option<RequestedModules>) -> Result<(), ProtocolViolation> {
        let wrong = |rule| ProtocolViolation::new("modules", 0, rule);
        let (saved, mut through) = match (self.saved.take(), through.filter(|through| !through.recipe.is_empty())) {
            (None, None) => return Ok(()),
            (Some(saved), Some(through)) => (saved, through),
            _ => return Err(wrong("it goes through what it went through before")),
        };
        let context = context_of(ModuleRole::Importer, saved.class);
        let pipeline = through.recipe.restore(&context, saved.pipe.states(), &mut *through.random);
        let pipeline = pipeline.ok_or(wrong("its modules can have stood so"))?;
        let mut modules = Box::new(AttachmentModules::new(through));
        (modules.class, modules.attachment) = (saved.class, saved.attachment);
        modules.pipe = Some(ModulePipe::resumed(pipeline, ModuleRole::Importer, saved.attachment, saved.pipe));
        self.modules = Some(modules);
        self.remote.note_modules();
        Ok(())
    }

    /// Stops all messages in the modules (`is_paused`), or lets them continue.
    pub fn pause(&mut self, now: Instant, is_paused: bool) {
        if let Some(pipe) = self.modules.as_mut().and_then(|modules| modules.pipe.as_mut()) {
            pipe.pause(now, is_paused);
        }
    }

    /// Whether a module of this name is among them.
    pub fn goes_through(&self, name: &str) -> bool {
        self.modules.as_ref().is_some_and(|modules| modules.through.recipe.names().any(|known| known == name))
    }

    /// Sets the time of the messages that the class sends next.
    pub fn tell_time(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(modules) = &mut self.modules {
            modules.now = now();
        }
    }

    /// Passes to the class what came out of the modules, and ends the attachment if a module failed.
    fn settle(&mut self, done: &mut A::Done) {
        let Some(modules) = &mut self.modules else { return };
        while let Some(pipe) = modules.pipe.as_mut()
            && let Some(arrived) = pipe.poll_above()
        {
            if let Err(reject) = self.remote.handle_arrived(modules.now, arrived, done) {
                modules.failed.get_or_insert(pipe.rejected(&reject));
            }
        }
        if let Some(failure) = modules.pipe.as_mut().and_then(ModulePipe::poll_failure) {
            modules.failed.get_or_insert(end_of(&failure));
        }
        if let Some(AttachmentEndNotice { cause, message }) = modules.failed.take()
            && !std::mem::replace(&mut modules.is_over, true)
        {
            // Sent first: after this the attachment sends nothing more.
            self.remote.close();
            while let Some(outbound_message) = self.remote.poll_message() {
                if outbound_message.head.kind == FrameKind::Close {
                    modules.below.push_back(outbound_message);
                }
            }
            modules.pipe = None;
            self.remote.handle_over(cause, &message, done);
        }
    }
}

impl AttachmentModules {
    fn new(through: RequestedModules) -> Self {
        Self {
            through,
            attachment: 0,
            class: AttachmentClass::USB,
            now: Instant::ZERO,
            begun: None,
            answers: Vec::new(),
            is_opening: false,
            pipe: None,
            below: VecDeque::new(),
            failed: None,
            is_over: false,
        }
    }

    fn refuse(&mut self, refusal: &ModuleRefusal) {
        self.failed
            .get_or_insert(AttachmentEndNotice { cause: AttachmentEndCause::Module, message: refusal.to_string() });
    }

    /// Asks the exporter for the modules, before the device is opened.
    fn begin(&mut self, attachment: u16, class: AttachmentClass) {
        (self.pipe, self.attachment, self.class) = (None, attachment, class);
        self.answers.clear();
        let context = context_of(ModuleRole::Importer, class);
        match self.through.recipe.begin(&context, &mut *self.through.random) {
            Ok(begun) => {
                let offers: Vec<ModuleOffer> = begun.offers().cloned().collect();
                let part = encode_offers(&offers).into();
                self.below.push_back(OutboundMessage::control(FrameKind::Modules, attachment, 0, part));
                self.begun = Some(begun);
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// The device was opened: makes the pipeline on which both ends agreed.
    fn open(&mut self, attachment: u16) {
        let Some(begun) = &self.begun else { return };
        match begun.finish(&std::mem::take(&mut self.answers)) {
            Ok(pipeline) => self.pipe = Some(ModulePipe::new(pipeline, ModuleRole::Importer, attachment)),
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn say(&mut self, message: OutboundMessage) {
        match (message.head.kind, &mut self.pipe) {
            (FrameKind::Open | FrameKind::Inherit, _) => {
                // The request of a successor has its version first.
                let words: &[u8] = &message.part;
                let words =
                    if message.head.kind == FrameKind::Inherit { words.get(8..).unwrap_or_default() } else { words };
                let class = OpenRequest::decode(words).map(|open| open.class).expect("our own class says it so");
                self.begin(message.head.attachment, class);
                self.below.push_back(message);
            }
            (_, Some(pipe)) => pipe.say(self.now, message),
            (_, None) => self.below.push_back(message),
        }
    }
}

impl<A: ImporterAttachment> ImporterAttachment for PipedAttachment<A> {
    type Done = A::Done;

    fn unwritten_bytes(&self) -> u64 {
        self.remote.unwritten_bytes()
    }

    fn attachment(&self) -> &AttachmentBase {
        self.remote.attachment()
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        self.remote.attachment_mut()
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut Self::Done,
    ) -> Result<(), ProtocolViolation> {
        let Some(modules) = &mut self.modules else { return self.remote.handle_arrived(now, arrived, done) };
        modules.now = now;
        let ReceivedFrame { head, body } = &arrived;
        // The class knows already why the attachment ended.
        if modules.is_over {
            return Ok(());
        }
        match head.kind {
            FrameKind::Modules => modules.answers = decode_answers(&body.contiguous())?,
            FrameKind::Reply | FrameKind::Cancel | FrameKind::Event | FrameKind::Aside | FrameKind::Data
                if !modules.is_opening =>
            {
                let unknown = ProtocolViolation::new("kind", head.kind.code().into(), "a device is opened first");
                modules.pipe.as_mut().ok_or(unknown)?.handle_arrived(now, arrived)?;
            }
            FrameKind::Identity | FrameKind::Lease | FrameKind::Retire | FrameKind::Descriptors => {
                self.remote.handle_arrived(now, arrived, done)?
            }
            kind => {
                if kind == FrameKind::Opened {
                    modules.open(head.attachment);
                }
                modules.is_opening = head.flags.more;
                self.remote.handle_arrived(now, arrived, done)?;
            }
        }
        self.settle(done);
        Ok(())
    }

    fn handle_renewed(&mut self, now: Instant, done: &mut Self::Done) {
        if let Some(modules) = &mut self.modules {
            modules.now = now;
            (modules.pipe, modules.begun, modules.is_opening) = (None, None, false);
            modules.below.clear();
        }
        self.remote.handle_renewed(now, done);
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut Self::Done) {
        self.remote.handle_over(cause, message, done);
    }

    fn poll_message(&mut self) -> Option<OutboundMessage> {
        let Some(modules) = &mut self.modules else { return self.remote.poll_message() };
        loop {
            let made = modules.below.pop_front().or_else(|| modules.pipe.as_mut().and_then(ModulePipe::poll_below));
            if made.is_some() {
                return made;
            }
            modules.say(self.remote.poll_message()?);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let modules = self.modules.as_ref().filter(|modules| !modules.is_over)?;
        let has_heard = modules.pipe.as_ref().is_some_and(ModulePipe::has_above);
        if modules.failed.is_some() || has_heard {
            return Some(Instant::ZERO);
        }
        modules.pipe.as_ref().and_then(ModulePipe::poll_timeout)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut Self::Done) {
        let Some(modules) = &mut self.modules else { return };
        modules.now = now;
        if let Some(pipe) = &mut modules.pipe {
            pipe.handle_timeout(now);
        }
        self.settle(done);
    }

    fn poll_timed(&mut self) -> Option<RequestTiming> {
        self.remote.poll_timed()
    }

    /// Messages that pass modules keep one order, and therefore one lane.
    fn use_lanes(&mut self, usable: LaneSet) {
        if self.modules.is_none() && self.saved.is_none() {
            self.remote.use_lanes(usable);
        }
    }

    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        self.remote.hold_still(now, done);
    }

    fn discard(&mut self, now: Instant, done: &mut Self::Done) -> usize {
        self.remote.discard(now, done)
    }

    fn is_still(&self) -> bool {
        self.remote.is_still()
    }

    fn stores_data(&self) -> bool {
        self.remote.stores_data()
    }

    fn keeps_exporter_busy(&self) -> bool {
        self.remote.keeps_exporter_busy()
    }

    fn migrate(&mut self, successor: [u8; 32]) {
        self.remote.migrate(successor);
    }
}

impl<A: MovableAttachment> MovableAttachment for PipedAttachment<A> {
    fn come_to_rest(&mut self) {
        if let Some(modules) = &mut self.modules
            && let Some(pipe) = &mut modules.pipe
        {
            pipe.let_go(modules.now);
        }
    }

    /// Leaves out modules that cannot be saved now; the other process then refuses the snapshot.
    fn save(&self, to: &mut SnapshotWriter) {
        to.flag(self.modules.is_some());
        if let Some(modules) = &self.modules {
            let pipe = modules.pipe.as_ref().filter(|_| !modules.is_opening && modules.failed.is_none());
            let mut saved = SnapshotWriter::part();
            let is_saved = pipe.is_some_and(|pipe| pipe.save(&mut saved).is_some());
            to.flag(is_saved);
            if is_saved {
                to.u16(modules.attachment);
                to.u8(modules.class.0);
                to.bytes(&saved.into_bytes());
            }
        }
        self.remote.save(to);
    }

    fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut saved = None;
        if from.flag("modules")? {
            if !from.flag("modules at rest")? {
                return Err(ProtocolViolation::new("modules", 0, "they were at rest"));
            }
            let (attachment, class) = (from.u16("attachment")?, AttachmentClass(from.u8("class")?));
            let bytes = from.part("modules")?;
            let mut part = bytes.reader();
            let pipe = SavedPipe::restore(&mut part)?;
            part.end("modules")?;
            saved = Some(SavedModules { attachment, class, pipe });
        }
        Ok(Self { remote: A::restore(from)?, modules: None, saved })
    }

    fn hand_over(&mut self) {
        self.remote.hand_over();
    }
}
