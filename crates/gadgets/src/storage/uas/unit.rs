//! The logical unit over a block device that answers later: commands begun, many at a time, each ended once.
//!
//! | a command | becomes |
//! |---|---|
//! | READ | reads of at most what the device takes; its data is told when all of it is there |
//! | WRITE | the host is told to send; then writes |
//! | SYNCHRONIZE CACHE, stop | a flush |
//! | UNMAP, WRITE SAME of zeros | requests that write zeros or give space back |
//! | WRITE SAME, VERIFY | writes, reads, a piece after the other |
//! | the rest | an answer at once |
//!
//! **Order.** Commands that are in flight together may be carried out in any order, as the host's simple task attribute
//! says (SAM-5). What was given up, by a reset or an abort, may still be on its way to the medium: nothing new is begun
//! before it has arrived there.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockOp, BlockRequest, BufferPool, CompletionQueue, Instant, Payload,
    PendingBlockRequests, ReadinessSource, StoreError,
};

use crate::saved::{SavedStateReader, SavedStateWriter};
use crate::storage::medium::{LbaRange, SectorGeometry, StoreSpan, sense_of};
use crate::storage::options::StorageOptions;
use crate::storage::scsi::command::{
    self, CommandPrecondition, ParameterList, ScsiCommand, ScsiReport, StartStopAction,
};
use crate::storage::scsi::{inquiry, mode, provisioning, reports};
use crate::storage::sense::SenseReport;

/// Commands at a time: twice what Linux's `uas` has.
pub const TASKS_MAX: usize = 64;
/// Bytes of data of all commands, beyond which no other begins: 64 times the megabyte that hosts ask for at most. One
/// command may have 32 MiB.
pub const DATA_BYTES_MAX: u64 = 64 << 20;
/// The pieces in which a medium is verified, or written with one pattern, bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Idle buffers that are kept, bytes.
const POOL_BYTES: usize = 4 << 20;

/// An event for the transport.
#[derive(Debug)]
pub enum UasUnitEvent {
    /// Send this to the host.
    Send(u16, Payload),
    /// Receive this many bytes from the host: never zero.
    Take(u16, u32),
    /// The command ended, with success or an error.
    Ended(u16, Result<(), SenseReport>),
}

/// Logical unit 0, the only one.
pub struct UasLogicalUnit {
    device: Box<dyn BlockDevice>,
    identity: inquiry::InquiryIdentity,
    geometry: SectorGeometry,
    is_stopped: bool,
    /// WCE. Off, every write is durable before its status.
    write_cache: bool,
    /// An event to be reported to the host once.
    attention: Option<SenseReport>,
    tasks: BTreeMap<u16, UasTask>,
    /// The command of each request of the device; `None`: of an aborted command.
    parts: BTreeMap<BlockId, Option<UasTaskPart>>,
    next_part: u64,
    /// Requests whose command was aborted.
    forsaken: usize,
    /// A failed flush that the host does not know of: reported at the next flush that the host asks for.
    untold: Option<StoreError>,
    done: CompletionQueue<BlockCompletion>,
    events: VecDeque<UasUnitEvent>,
}

/// A command in progress.
#[derive(Debug)]
struct UasTask {
    /// Its data, bytes.
    data_bytes: u64,
    parts_left: usize,
    /// The first error.
    trouble: Option<SenseReport>,
    stage: TaskContinuation,
}

/// What follows once the device has answered every request of the command.
#[derive(Debug)]
enum TaskContinuation {
    End,
    /// Collects the host's data, and what it is for.
    Gather(GatherPurpose),
    /// The pieces that were read, in order.
    Read(Vec<Payload>),
    /// The medium is flushed; then the span is read.
    ReadAfterFlush(StoreSpan),
    /// The rest is read and dropped.
    Verify(StoreSpan),
    /// The rest is written with this pattern.
    Fill {
        rest: StoreSpan,
        pattern: Vec<u8>,
    },
    SetCache(bool),
    Stop,
}

/// What the host's data is for.
#[derive(Clone, Copy, Debug)]
enum GatherPurpose {
    Write { span: StoreSpan, is_durable: bool },
    Apply(ParameterList),
    WriteSame { span: StoreSpan, unmap: bool },
}

#[derive(Clone, Copy, Debug)]
struct UasTaskPart {
    tag: u16,
    /// The index of the piece of a read.
    piece: usize,
}

impl UasLogicalUnit {
    /// Makes the unit over a device whose blocks fit the sectors.
    pub fn new(device: Box<dyn BlockDevice>, options: &StorageOptions) -> Self {
        let info = *device.info();
        let is_read_only = options.read_only || info.is_read_only;
        let geometry = SectorGeometry::new(info.size_bytes, options.sector_bytes, is_read_only);
        let geometry = SectorGeometry { is_thin: info.trims, ..geometry };
        Self {
            device,
            identity: inquiry::InquiryIdentity::new(options),
            geometry,
            is_stopped: false,
            write_cache: true,
            attention: Some(SenseReport::RESET_OCCURRED),
            tasks: BTreeMap::new(),
            parts: BTreeMap::new(),
            next_part: 0,
            forsaken: 0,
            untold: None,
            done: CompletionQueue::new(BufferPool::new(POOL_BYTES)),
            events: VecDeque::new(),
        }
    }

    /// Whether another command may begin.
    pub fn has_room(&self) -> bool {
        self.forsaken == 0 && self.tasks.len() < TASKS_MAX && self.data_bytes() < DATA_BYTES_MAX
    }

    fn data_bytes(&self) -> u64 {
        self.tasks.values().map(|task| task.data_bytes).sum()
    }

    /// Whether a command with this tag is in progress.
    pub fn knows(&self, tag: u16) -> bool {
        self.tasks.contains_key(&tag)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<UasUnitEvent> {
        self.events.pop_front()
    }

    /// Begins a command for unit `lun`.
    pub fn begin(&mut self, now: Instant, tag: u16, lun: u64, cdb: &[u8]) {
        let task = UasTask { data_bytes: 0, parts_left: 0, trouble: None, stage: TaskContinuation::End };
        self.tasks.insert(tag, task);
        let begun = command::decode(cdb).and_then(|command| {
            if lun != 0 {
                return Err(SenseReport::UNIT_NOT_SUPPORTED);
            }
            self.admit(command.demand())?;
            self.execute(now, tag, command)
        });
        if let Err(sense) = begun {
            self.note_trouble(tag, sense);
        }
        self.go_on(now, tag);
        self.settle(now);
    }

    fn admit(&mut self, demand: CommandPrecondition) -> Result<(), SenseReport> {
        if demand >= CommandPrecondition::Attention
            && let Some(news) = self.attention.take()
        {
            return Err(news);
        }
        if demand >= CommandPrecondition::Ready && self.is_stopped {
            return Err(SenseReport::STOPPED);
        }
        if demand >= CommandPrecondition::Writable && self.geometry.is_read_only {
            Err(SenseReport::WRITE_PROTECTED)
        } else {
            Ok(())
        }
    }

    fn execute(&mut self, now: Instant, tag: u16, command: ScsiCommand) -> Result<(), SenseReport> {
        match command {
            ScsiCommand::TestUnitReady | ScsiCommand::PreventRemoval(_) | ScsiCommand::Parameters(_, 0) => Ok(()),
            ScsiCommand::Report(report, allocation) => self.report(tag, report, allocation),
            ScsiCommand::Read { extent, fua } => {
                let span = self.span(tag, extent)?;
                if fua {
                    // The host must read what the medium holds (SBC-3): newer data is flushed first.
                    self.set_stage(tag, TaskContinuation::ReadAfterFlush(span));
                    self.flush(now, tag);
                } else {
                    self.read(now, tag, span);
                }
                Ok(())
            }
            ScsiCommand::Write { extent, fua } => {
                let span = self.span(tag, extent)?;
                self.gather(tag, span.len, GatherPurpose::Write { span, is_durable: fua });
                Ok(())
            }
            ScsiCommand::Verify { compare: true, .. } => Err(SenseReport::INVALID_FIELD_IN_CDB),
            ScsiCommand::Verify { extent, compare: false } => {
                let rest = self.geometry.span(extent)?;
                self.set_stage(tag, TaskContinuation::Verify(rest));
                Ok(())
            }
            ScsiCommand::SynchronizeCache(extent) => {
                self.geometry.span(extent)?;
                self.flush(now, tag);
                Ok(())
            }
            ScsiCommand::Parameters(list, bytes) => {
                self.gather(tag, bytes as u64, GatherPurpose::Apply(list));
                Ok(())
            }
            ScsiCommand::WriteSame { extent, unmap, has_data } => {
                let span = self.geometry.span(extent)?;
                if has_data {
                    self.gather(tag, self.geometry.sector_bytes.into(), GatherPurpose::WriteSame { span, unmap });
                } else {
                    self.write_zeros(now, tag, span, unmap);
                }
                Ok(())
            }
            ScsiCommand::Power(power) => self.power(now, tag, power),
        }
    }

    /// The place of a command's data; from here on its data counts as held in memory.
    fn span(&mut self, tag: u16, extent: LbaRange) -> Result<StoreSpan, SenseReport> {
        let span = self.geometry.span(extent)?;
        if let Some(task) = self.tasks.get_mut(&tag) {
            task.data_bytes = span.len;
        }
        Ok(span)
    }

    fn report(&mut self, tag: u16, report: ScsiReport, allocation: usize) -> Result<(), SenseReport> {
        let mut bytes = Vec::new();
        match report {
            // Sense data was sent with the status of its command.
            ScsiReport::Sense { descriptors } => {
                let news = self.attention.take().unwrap_or(SenseReport::NONE);
                if descriptors { news.write_descriptors(&mut bytes) } else { news.write_fixed(&mut bytes) }
            }
            ScsiReport::Inquiry => self.identity.write_standard(&mut bytes),
            ScsiReport::VitalProductData { page } => {
                self.identity.write_page(page, self.geometry.is_thin, &mut bytes)?
            }
            ScsiReport::Modes(ask) => self.mode_state().write(ask, &mut bytes),
            ScsiReport::Capacity10 => reports::write_capacity_10(self.geometry, &mut bytes),
            ScsiReport::Capacity16 => reports::write_capacity_16(self.geometry, &mut bytes),
            ScsiReport::FormatCapacities => reports::write_format_capacities(self.geometry, true, &mut bytes),
            ScsiReport::Luns { select } => reports::write_luns(select, &mut bytes),
        }
        // A host with less space gets the front of it (SPC-4, allocation length).
        bytes.truncate(allocation);
        if !bytes.is_empty() {
            self.set_stage(tag, TaskContinuation::Read(vec![bytes.into()]));
        }
        Ok(())
    }

    fn mode_state(&self) -> mode::ModePageValues {
        mode::ModePageValues {
            write_cache: self.write_cache,
            read_only: self.geometry.is_read_only,
            sectors: self.geometry.sectors,
            sector_bytes: self.geometry.sector_bytes,
        }
    }

    /// START STOP UNIT: flushes before the medium rests (SBC-3).
    fn power(&mut self, now: Instant, tag: u16, power: StartStopAction) -> Result<(), SenseReport> {
        match power {
            StartStopAction::Start => self.is_stopped = false,
            StartStopAction::Stop => {
                self.set_stage(tag, TaskContinuation::Stop);
                self.flush(now, tag);
            }
            StartStopAction::Rest => self.flush(now, tag),
            // Nothing here is removable.
            StartStopAction::Load | StartStopAction::Eject => return Err(SenseReport::INVALID_FIELD_IN_CDB),
        }
        Ok(())
    }

    fn set_stage(&mut self, tag: u16, stage: TaskContinuation) {
        if let Some(task) = self.tasks.get_mut(&tag) {
            task.stage = stage;
        }
    }

    fn note_trouble(&mut self, tag: u16, sense: SenseReport) {
        if let Some(task) = self.tasks.get_mut(&tag) {
            task.trouble.get_or_insert(sense);
        }
    }

    fn gather(&mut self, tag: u16, bytes: u64, intent: GatherPurpose) {
        let Ok(bytes) = u32::try_from(bytes) else { return self.note_trouble(tag, SenseReport::INVALID_FIELD_IN_CDB) };
        if bytes > 0 {
            self.set_stage(tag, TaskContinuation::Gather(intent));
            self.events.push_back(UasUnitEvent::Take(tag, bytes));
        }
    }

    /// The host has sent all data of the command.
    pub fn take(&mut self, now: Instant, tag: u16, data: Payload) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let TaskContinuation::Gather(intent) = std::mem::replace(&mut task.stage, TaskContinuation::End) else {
            return;
        };
        if let Err(sense) = self.use_data(now, tag, intent, data) {
            self.note_trouble(tag, sense);
        }
        self.go_on(now, tag);
        self.settle(now);
    }

    /// The host sent too much; the data is not used.
    pub fn refuse(&mut self, now: Instant, tag: u16) {
        self.set_stage(tag, TaskContinuation::End);
        self.note_trouble(tag, SenseReport::INVALID_FIELD_IN_PARAMETERS);
        self.go_on(now, tag);
    }

    fn use_data(&mut self, now: Instant, tag: u16, intent: GatherPurpose, data: Payload) -> Result<(), SenseReport> {
        match intent {
            GatherPurpose::Write { span, is_durable } => self.write(now, tag, span, data, is_durable),
            GatherPurpose::Apply(ParameterList::ModeSelect { long }) => {
                let write_cache = self.mode_state().parse(long, &data.contiguous())?;
                self.set_stage(tag, TaskContinuation::SetCache(write_cache));
                if !write_cache {
                    // Once the cache is off, the host would not ask to flush what it holds.
                    self.flush(now, tag);
                }
            }
            GatherPurpose::Apply(ParameterList::Unmap) => {
                for span in provisioning::unmapped(self.geometry, &data.contiguous())? {
                    self.clear(now, tag, span, BlockOp::Trim);
                }
            }
            GatherPurpose::WriteSame { span, unmap } if data.runs().flatten().all(|byte| *byte == 0) => {
                self.write_zeros(now, tag, span, unmap);
            }
            GatherPurpose::WriteSame { span, .. } => {
                self.set_stage(tag, TaskContinuation::Fill { rest: span, pattern: data.into_vec() })
            }
        }
        Ok(())
    }

    fn read(&mut self, now: Instant, tag: u16, span: StoreSpan) {
        let pieces = self.pieces(span);
        self.set_stage(tag, TaskContinuation::Read(pieces.clone().map(|_| Payload::Empty).collect()));
        for (piece, at) in pieces.enumerate() {
            self.ask(now, tag, piece, |id| BlockRequest::read(id, at.offset, at.len as u32));
        }
    }

    fn write(&mut self, now: Instant, tag: u16, span: StoreSpan, mut data: Payload, is_durable: bool) {
        let is_durable = is_durable || !self.write_cache;
        for at in self.pieces(span) {
            let piece = data.split_front(at.len as usize);
            self.ask(now, tag, 0, |id| BlockRequest { is_durable, ..BlockRequest::write(id, at.offset, piece) });
        }
    }

    fn write_zeros(&mut self, now: Instant, tag: u16, span: StoreSpan, unmap: bool) {
        self.clear(now, tag, span, if unmap { BlockOp::Discard } else { BlockOp::WriteZeroes });
    }

    fn clear(&mut self, now: Instant, tag: u16, span: StoreSpan, op: BlockOp) {
        let is_durable = !self.write_cache;
        // WRITE SAME and UNMAP are limited to less than 32 bits.
        self.ask(now, tag, 0, |id| BlockRequest {
            is_durable,
            ..BlockRequest::zero(id, op, span.offset, span.len as u32)
        });
    }

    fn flush(&mut self, now: Instant, tag: u16) {
        self.ask(now, tag, 0, BlockRequest::flush);
    }

    /// Splits a span into pieces that the device accepts.
    fn pieces(&self, span: StoreSpan) -> impl Iterator<Item = StoreSpan> + Clone + use<> {
        // A multiple of every sector size.
        let most = u64::from(self.device.info().request_bytes_max.max(4096) & !4095);
        let count = span.len.div_ceil(most);
        (0..count).map(move |n| StoreSpan { offset: span.offset + n * most, len: most.min(span.len - n * most) })
    }

    fn ask(&mut self, now: Instant, tag: u16, piece: usize, request: impl FnOnce(BlockId) -> BlockRequest) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let id = BlockId(self.next_part);
        self.next_part += 1;
        task.parts_left += 1;
        self.parts.insert(id, Some(UasTaskPart { tag, piece }));
        self.device.submit(now, request(id).launch(), &mut self.done);
    }

    /// Flushes without a command that waits for it: [`UasLogicalUnit::is_quiet`] tells when it is complete.
    pub fn sync(&mut self, now: Instant) {
        let id = BlockId(self.next_part);
        self.next_part += 1;
        self.parts.insert(id, None);
        self.forsaken += 1;
        self.device.submit(now, BlockRequest::flush(id).launch(), &mut self.done);
    }

    /// Whether the device has no pending request.
    pub fn is_quiet(&self) -> bool {
        self.parts.is_empty()
    }

    /// Why acknowledged data may be lost, if the host does not know.
    pub fn untold(&self) -> Option<StoreError> {
        self.untold
    }

    /// Processes the device's answers.
    fn settle(&mut self, now: Instant) {
        while let Some(mut answer) = self.done.pop() {
            self.done.pool.recycle(std::mem::take(&mut answer.spent));
            match self.parts.remove(&answer.id).flatten() {
                None => {
                    self.done.pool.recycle(answer.payload);
                    self.forsaken -= 1;
                    if answer.op == BlockOp::Flush {
                        self.untold = self.untold.or(answer.result.err());
                    }
                }
                Some(part) => {
                    if answer.op == BlockOp::Flush && answer.result.is_ok() {
                        answer.result = self.untold.take().map_or(Ok(()), Err);
                    }
                    let error = answer.result.err().map(|error| self.sense(error, answer.op, answer.offset));
                    let task = self.tasks.get_mut(&part.tag).expect("what is given up has no parts");
                    task.parts_left -= 1;
                    match (error, &mut task.stage) {
                        (Some(sense), _) => _ = task.trouble.get_or_insert(sense),
                        (None, TaskContinuation::Read(pieces)) => pieces[part.piece] = answer.payload,
                        (None, _) => self.done.pool.recycle(answer.payload),
                    }
                    self.go_on(now, part.tag);
                }
            }
        }
    }

    fn sense(&self, error: StoreError, op: BlockOp, offset: u64) -> SenseReport {
        match op {
            BlockOp::Read | BlockOp::Map => self.geometry.sense(error, SenseReport::READ_ERROR, offset),
            // No block can be named: it may be any of those written.
            BlockOp::Flush => sense_of(error, SenseReport::WRITE_ERROR),
            BlockOp::Write | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => {
                self.geometry.sense(error, SenseReport::WRITE_ERROR, offset)
            }
        }
    }

    /// Takes the command's next step, if the device has answered all of its requests.
    fn go_on(&mut self, now: Instant, tag: u16) {
        let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.parts_left == 0) else { return };
        if let Some(sense) = task.trouble {
            return self.end(tag, Err(sense));
        }
        match std::mem::replace(&mut task.stage, TaskContinuation::End) {
            TaskContinuation::End => self.end(tag, Ok(())),
            waits @ TaskContinuation::Gather(_) => task.stage = waits,
            TaskContinuation::Read(pieces) => {
                let data = Payload::joined(pieces);
                if data.is_empty() {
                    return self.end(tag, Ok(()));
                }
                self.events.push_back(UasUnitEvent::Send(tag, data));
            }
            TaskContinuation::ReadAfterFlush(span) => {
                self.read(now, tag, span);
                if span.len == 0 {
                    self.end(tag, Ok(()));
                }
            }
            TaskContinuation::Verify(rest) if rest.len == 0 => self.end(tag, Ok(())),
            TaskContinuation::Verify(rest) => {
                let (piece, rest) = cut(rest);
                self.set_stage(tag, TaskContinuation::Verify(rest));
                for at in self.pieces(piece) {
                    self.ask(now, tag, 0, |id| BlockRequest::read(id, at.offset, at.len as u32));
                }
            }
            TaskContinuation::Fill { rest, .. } if rest.len == 0 => self.end(tag, Ok(())),
            TaskContinuation::Fill { rest, pattern } => {
                let (piece, rest) = cut(rest);
                let data = pattern.repeat(piece.len as usize / pattern.len());
                self.set_stage(tag, TaskContinuation::Fill { rest, pattern });
                self.write(now, tag, piece, data.into(), false);
            }
            TaskContinuation::SetCache(write_cache) => {
                self.write_cache = write_cache;
                self.end(tag, Ok(()));
            }
            TaskContinuation::Stop => {
                self.is_stopped = true;
                self.end(tag, Ok(()));
            }
        }
    }

    /// All data of the command was sent to the host.
    pub fn sent(&mut self, tag: u16) {
        self.end(tag, Ok(()));
    }

    fn end(&mut self, tag: u16, result: Result<(), SenseReport>) {
        if self.tasks.remove(&tag).is_some() {
            self.events.push_back(UasUnitEvent::Ended(tag, result));
        }
    }

    /// Aborts a command: no event of it follows. Returns whether there was one.
    pub fn forsake(&mut self, tag: u16) -> bool {
        let Some(_) = self.tasks.remove(&tag) else { return false };
        for part in self.parts.values_mut().filter(|part| part.is_some_and(|part| part.tag == tag)) {
            *part = None;
            self.forsaken += 1;
        }
        self.events.retain(|event| {
            let (UasUnitEvent::Send(of, _) | UasUnitEvent::Take(of, _) | UasUnitEvent::Ended(of, _)) = event;
            *of != tag
        });
        true
    }

    /// Aborts all commands.
    pub fn forsake_all(&mut self) {
        while let Some(tag) = self.tasks.first_key_value().map(|(tag, _)| *tag) {
            self.forsake(tag);
        }
        self.events.clear();
    }

    /// The bus was reset: the host's settings are cleared, except the write cache, because a host that turned it off
    /// relies on that.
    pub fn reset(&mut self) {
        self.forsake_all();
        self.is_stopped = false;
    }

    pub fn readiness(&self) -> Option<&ReadinessSource> {
        self.device.readiness()
    }

    pub fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.device.poll_timeout()
    }

    /// Calls into the device and processes its answers; returns whether there were any.
    pub fn with_device(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut dyn BlockDevice, &mut CompletionQueue<BlockCompletion>),
    ) -> bool {
        act(&mut *self.device, &mut self.done);
        let is_news = !self.done.is_empty();
        self.settle(now);
        is_news
    }
}

/// Saving and restoring.
impl UasLogicalUnit {
    /// Saves the unit, beginning with its device. The caller has taken all events.
    pub fn save(&mut self, now: Instant, to: &mut SavedStateWriter) -> Option<()> {
        debug_assert!(self.events.is_empty() && self.done.is_empty(), "what happened was told");
        if self.untold.is_some() {
            // This cannot be saved: the host is told of it here first.
            return None;
        }
        to.bytes(&self.device.save(now)?);
        to.flag(self.is_stopped);
        to.flag(self.write_cache);
        save_sense(self.attention, to);
        to.u32(self.tasks.len() as u32);
        for (tag, task) in &self.tasks {
            to.u32((*tag).into());
            to.u64(task.data_bytes);
            save_sense(task.trouble, to);
            task.stage.save(to);
        }
        to.u64(self.next_part);
        to.u32(self.parts.len() as u32);
        for (id, part) in &self.parts {
            to.u64(id.0);
            to.flag(part.is_some());
            if let Some(UasTaskPart { tag, piece }) = part {
                to.u32((*tag).into());
                to.u32(*piece as u32);
            }
        }
        Some(())
    }

    /// Makes this new unit continue from a saved one whose device has the requests `pending`. `None`: no unit can have
    /// been in this state.
    pub fn load(&mut self, from: &mut SavedStateReader<'_>, pending: &PendingBlockRequests) -> Option<()> {
        (self.is_stopped, self.write_cache) = (from.flag()?, from.flag()?);
        self.attention = load_sense(from)?;
        for _ in 0..from.u32()? {
            let (tag, data_bytes) = (load_tag(from)?, from.u64()?);
            let (trouble, stage) = (load_sense(from)?, TaskContinuation::load(from, self.geometry)?);
            let task = UasTask { data_bytes, parts_left: 0, trouble, stage };
            let is_new = data_bytes <= self.geometry.bytes() && self.tasks.insert(tag, task).is_none();
            (is_new && self.tasks.len() <= TASKS_MAX).then_some(())?;
        }
        self.next_part = from.u64()?;
        for _ in 0..from.u32()? {
            let id = BlockId(from.u64()?);
            let part = if from.flag()? {
                Some(UasTaskPart { tag: load_tag(from)?, piece: from.u32()? as usize })
            } else {
                None
            };
            let (op, _, length) = *pending.get(&id)?;
            match part {
                None => self.forsaken += 1,
                Some(part) => self.tasks.get_mut(&part.tag)?.expect(part.piece, op, length)?,
            }
            (id.0 < self.next_part && self.parts.insert(id, part).is_none()).then_some(())?;
        }
        let are_all = self.parts.len() == pending.len() && self.tasks.values().all(UasTask::is_sound);
        are_all.then_some(())
    }

    /// Whether this command's data waits to be sent to the host.
    pub fn is_sending(&self, tag: u16) -> bool {
        self.tasks.get(&tag).is_some_and(|task| task.parts_left == 0 && matches!(task.stage, TaskContinuation::End))
    }

    /// Whether this command waits for this many bytes.
    pub fn is_gathering(&self, tag: u16, bytes: u64) -> bool {
        match self.tasks.get(&tag).map(|task| &task.stage) {
            Some(TaskContinuation::Gather(GatherPurpose::Write { span, .. })) => bytes == span.len,
            Some(TaskContinuation::Gather(GatherPurpose::WriteSame { .. })) => {
                bytes == self.geometry.sector_bytes.into()
            }
            // A list may have any length that a host may send.
            Some(TaskContinuation::Gather(GatherPurpose::Apply(_))) => bytes <= u16::MAX.into(),
            _ => false,
        }
    }

    /// Commands that wait for the host to send or receive their data.
    pub fn waits_for_host(&self) -> usize {
        self.tasks.values().filter(|task| task.parts_left == 0).count()
    }

    /// A replacement process continues.
    pub fn leave(&mut self) {
        self.device.leave();
        self.tasks.clear();
        self.parts.clear();
        self.forsaken = 0;
    }
}

impl UasTask {
    /// Adds a pending request to its command.
    fn expect(&mut self, piece: usize, op: BlockOp, length: u32) -> Option<()> {
        self.parts_left += 1;
        match &mut self.stage {
            TaskContinuation::Gather(_) => None,
            TaskContinuation::Read(pieces) => {
                let is_missing = op == BlockOp::Read && length > 0 && pieces.get(piece)?.is_empty();
                is_missing.then_some(())
            }
            _ => Some(()),
        }
    }

    /// Whether a command can be in this state between two events.
    fn is_sound(&self) -> bool {
        match &self.stage {
            TaskContinuation::Gather(_) => self.parts_left == 0 && self.trouble.is_none(),
            // It ends with its last request, unless the host still receives its data.
            TaskContinuation::End => self.parts_left > 0 || self.trouble.is_none(),
            // A failed piece is empty, and its command has an error.
            TaskContinuation::Read(pieces) => {
                let missing = pieces.iter().filter(|piece| piece.is_empty()).count();
                self.parts_left > 0 && (self.parts_left == missing || self.trouble.is_some())
            }
            _ => self.parts_left > 0,
        }
    }
}

impl TaskContinuation {
    fn save(&self, to: &mut SavedStateWriter) {
        match self {
            TaskContinuation::End => to.u8(0),
            TaskContinuation::Gather(GatherPurpose::Write { span, is_durable }) => {
                to.u8(1);
                save_span(*span, to);
                to.flag(*is_durable);
            }
            TaskContinuation::Gather(GatherPurpose::WriteSame { span, unmap }) => {
                to.u8(2);
                save_span(*span, to);
                to.flag(*unmap);
            }
            TaskContinuation::Gather(GatherPurpose::Apply(ParameterList::Unmap)) => to.u8(3),
            TaskContinuation::Gather(GatherPurpose::Apply(ParameterList::ModeSelect { long })) => {
                to.u8(4);
                to.flag(*long);
            }
            TaskContinuation::Read(pieces) => {
                to.u8(5);
                to.u32(pieces.len() as u32);
                pieces.iter().for_each(|piece| to.bytes(&piece.contiguous()));
            }
            TaskContinuation::ReadAfterFlush(span) => {
                to.u8(6);
                save_span(*span, to);
            }
            TaskContinuation::Verify(rest) => {
                to.u8(7);
                save_span(*rest, to);
            }
            TaskContinuation::Fill { rest, pattern } => {
                to.u8(8);
                save_span(*rest, to);
                to.bytes(pattern);
            }
            TaskContinuation::SetCache(write_cache) => {
                to.u8(9);
                to.flag(*write_cache);
            }
            TaskContinuation::Stop => to.u8(10),
        }
    }

    fn load(from: &mut SavedStateReader<'_>, geometry: SectorGeometry) -> Option<Self> {
        let span = |from: &mut SavedStateReader<'_>| {
            let span = StoreSpan { offset: from.u64()?, len: from.u64()? };
            let sector = u64::from(geometry.sector_bytes);
            let is_whole = span.offset.is_multiple_of(sector) && span.len.is_multiple_of(sector);
            let is_inside = span.offset.checked_add(span.len).is_some_and(|end| end <= geometry.bytes());
            (is_whole && is_inside).then_some(span)
        };
        Some(match from.u8()? {
            0 => TaskContinuation::End,
            1 => TaskContinuation::Gather(GatherPurpose::Write { span: span(from)?, is_durable: from.flag()? }),
            2 => TaskContinuation::Gather(GatherPurpose::WriteSame { span: span(from)?, unmap: from.flag()? }),
            3 => TaskContinuation::Gather(GatherPurpose::Apply(ParameterList::Unmap)),
            4 => TaskContinuation::Gather(GatherPurpose::Apply(ParameterList::ModeSelect { long: from.flag()? })),
            5 => {
                let mut pieces = Vec::new();
                for _ in 0..from.u32()? {
                    pieces.push(from.bytes()?.to_vec().into());
                }
                TaskContinuation::Read(pieces)
            }
            6 => TaskContinuation::ReadAfterFlush(span(from)?),
            7 => TaskContinuation::Verify(span(from)?),
            8 => {
                let (rest, pattern) = (span(from)?, from.bytes()?.to_vec());
                (pattern.len() == geometry.sector_bytes as usize).then_some(TaskContinuation::Fill { rest, pattern })?
            }
            9 => TaskContinuation::SetCache(from.flag()?),
            10 => TaskContinuation::Stop,
            _ => return None,
        })
    }
}

fn save_span(span: StoreSpan, to: &mut SavedStateWriter) {
    to.u64(span.offset);
    to.u64(span.len);
}

fn save_sense(sense: Option<SenseReport>, to: &mut SavedStateWriter) {
    to.flag(sense.is_some());
    sense.unwrap_or(SenseReport::NONE).save(to);
}

fn load_sense(from: &mut SavedStateReader<'_>) -> Option<Option<SenseReport>> {
    let (is_some, sense) = (from.flag()?, SenseReport::restore(from)?);
    Some(is_some.then_some(sense))
}

fn load_tag(from: &mut SavedStateReader<'_>) -> Option<u16> {
    u16::try_from(from.u32()?).ok()
}

/// The first piece, and the rest.
fn cut(span: StoreSpan) -> (StoreSpan, StoreSpan) {
    let len = span.len.min(PIECE_BYTES);
    (StoreSpan { offset: span.offset, len }, StoreSpan { offset: span.offset + len, len: span.len - len })
}
