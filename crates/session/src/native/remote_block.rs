//! A block device of another host, used in a session.

use std::collections::{BTreeSet, VecDeque};

use farbus_model::{
    BlockCompletion, BlockDevice, BlockInFlight, BlockInfo, BlockOp, BlockRequest, CompletionQueue, ExtentList,
    Instant, PayloadAssembler, StoreError,
};
use farbus_wire::native::block::{self, BlockDescription};
use farbus_wire::native::control::{
    AttachmentEndCause, AttachmentEndNotice, MIGRATION_STATE_NAME_BYTES, OpenReply, OpenRequest,
};
use farbus_wire::native::frame::{FrameHeader, ResidenceTimes};
use farbus_wire::native::lanes::{split_tag, tag_of};
use farbus_wire::native::reserve::ReservationTerms;
use farbus_wire::native::{FlowId, FrameKind, LaneSet, MessageUrgency, OutboundMessage, ReceivedFrame};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::attachment::{AttachmentBase, AttachmentState, FrameMeaning};
use super::importer::{ImporterAttachment, MovableAttachment};
use super::retained::{RetainedChange, RetainedChanges, is_retained};
use super::slots::TagSlots;
use super::spread::{LaneLoads, REQUESTS_MAX};
use super::timing::{RequestTiming, TimingSampler, split_residence};
use crate::ProtocolViolation;

/// A disk migrates without migration state.
const NO_MIGRATION_STATE: [u8; MIGRATION_STATE_NAME_BYTES] = [0; MIGRATION_STATE_NAME_BYTES];
/// The most bytes of an [`OpenReply`]: many more than a disk's description has.
const OPENED_BYTES_MAX: usize = 4096;

/// A block device on another host. Creating it opens it; requests wait until the exporter has answered.
#[derive(Debug)]
pub struct RemoteBlock {
    attachment: AttachmentBase,
    description: Option<BlockDescription>,
    slots: TagSlots<RemoteBlockRequest>,
    bytes: u64,
    /// Requests without credit, or from before the device was opened.
    held: VecDeque<BlockInFlight>,
    /// Whether no new request is sent.
    is_still: bool,
    /// How many of the held requests were sent before: their users may have been told that they are complete.
    owed: usize,
    /// How often it was opened here: data that was read before may have been changed by others in between.
    openings: u64,
    next_order: u64,
    /// The number of answered changes, which are durable after a flush.
    answered: u64,
    /// The number of those that are durable.
    flushed: u64,
    /// Answered writes may be lost: the next flush reports it.
    is_undurable: bool,
    /// Those changes whose data is still here.
    retained: RetainedChanges,
    /// Bytes of the writes that were not answered when it ended.
    unwritten_bytes: u64,
    /// How many of the requests in flight are retained changes that are written again.
    rewriting: usize,
    timing: TimingSampler,
    loads: LaneLoads,
    /// Whether modules may change what the exporter says.
    is_through_modules: bool,
}

#[derive(Debug)]
struct RemoteBlockRequest {
    request: BlockInFlight,
    /// The lane that it uses.
    lane: u8,
    /// Its place among all requests: they are sent again in the same order.
    order: u64,
    /// For a flush: so many answered changes are durable when it succeeds.
    covers: u64,
    /// Whether a part of its answer has arrived.
    has_begun: bool,
    /// For an answered write that is written again: its number among those.
    again: Option<u64>,
    data: PayloadAssembler,
    missing: u32,
    /// `None` if that was in another process, which had another clock.
    submitted: Option<Instant>,
    is_timed: bool,
    /// The beginning of its reply, whose data may be in further frames.
    residence: Option<ResidenceTimes>,
}

impl RemoteBlock {
    /// Opens a device as `number`, a number that the session does not use.
    pub fn new(number: u16, open: OpenRequest) -> Self {
        Self::over(AttachmentBase::new(number, open, OPENED_BYTES_MAX))
    }

    /// Waits for a device that another host hands over to this one. It is open when the exporter has described it:
    /// reads are answered; all other requests wait for the handover.
    pub fn successor(number: u16, open: OpenRequest) -> Self {
        Self::over(AttachmentBase::inheriting(number, open, OPENED_BYTES_MAX, NO_MIGRATION_STATE))
    }

    /// As [`RemoteBlock::new`]; the exporter reserves this first, or does not open the device.
    pub fn reserving(number: u16, open: OpenRequest, reservation: ReservationTerms) -> Self {
        Self::over(AttachmentBase::reserving(number, open, OPENED_BYTES_MAX, reservation))
    }

    /// This attachment, which first tells the exporter that the disk will be overwritten. The exporter then also opens
    /// a disk that this host moved away earlier.
    #[must_use]
    pub fn overwriting(self) -> Self {
        Self { attachment: self.attachment.overwriting(), ..self }
    }

    fn over(attachment: AttachmentBase) -> Self {
        Self {
            attachment,
            description: None,
            slots: TagSlots::default(),
            bytes: 0,
            held: VecDeque::new(),
            is_still: false,
            owed: 0,
            openings: 0,
            next_order: 0,
            answered: 0,
            flushed: 0,
            is_undurable: false,
            retained: RetainedChanges::default(),
            unwritten_bytes: 0,
            rewriting: 0,
            timing: TimingSampler::default(),
            loads: LaneLoads::default(),
            is_through_modules: false,
        }
    }

    /// The requests that are not answered, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &BlockRequest> {
        let flights = self.slots.iter().filter(|(_, flight)| flight.again.is_none());
        flights.map(|(_, flight)| &*flight.request).chain(self.held.iter().map(|held| &**held))
    }

    /// The number of requests in flight, including those that wait.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.rewriting + self.held.len()
    }

    /// Whether data that the exporter has lost is being written again. All other requests wait, and no other process
    /// can continue meanwhile.
    pub fn is_rewriting(&self) -> bool {
        self.rewriting > 0 || self.retained.has_next()
    }

    fn has_credit(&self, cost: u64) -> bool {
        let credit = self.attachment.credit;
        self.slots.len() < credit.requests.min(REQUESTS_MAX).into()
            && (self.bytes == 0 || self.bytes + cost <= u64::from(credit.bytes))
    }

    /// The first waiting request that may be sent, if there is credit.
    fn next_held(&self) -> Option<usize> {
        if self.is_rewriting() {
            return None;
        }
        match self.attachment.is_open() && (!self.is_still || self.owed > 0) {
            true if self.attachment.is_expected() => self.held.iter().position(|request| asks_only(request.op)),
            may_leave => (may_leave && !self.held.is_empty()).then_some(0),
        }
    }

    /// Sends waiting requests as far as there is credit.
    fn release(&mut self, now: Instant) {
        self.rewrite(now);
        while let Some(at) = self.next_held()
            && self.has_credit(cost(&self.held[at]))
            && let Some(lane) = self.lane_for(&self.held[at])
        {
            let request = self.held.remove(at).expect("looked at just now");
            self.owed = self.owed.saturating_sub(1);
            self.start(now, request, lane);
        }
    }

    /// Writes again what the exporter has lost, as far as there is credit. A write waits for an earlier one of the same
    /// bytes.
    fn rewrite(&mut self, now: Instant) {
        while self.attachment.is_open()
            && let Some(change) = self.retained.next()
            && self.has_credit(cost(&change.request))
            && !self.slots.iter().any(|(_, flight)| change.overlaps(&flight.request))
        {
            let Some(RetainedChange { request, order, number }) = self.retained.take_next() else { return };
            self.rewriting += 1;
            let lane = if self.loads.is_first_alone() { 0 } else { self.loads.least() };
            let tag = self.begin(now, request.launch(), lane);
            let flight = self.slots.get_mut(tag).expect("it was put there");
            (flight.order, flight.again) = (order, Some(number));
        }
    }

    fn start(&mut self, now: Instant, request: BlockInFlight, lane: u8) {
        self.begin(now, request, lane);
    }

    fn begin(&mut self, now: Instant, mut request: BlockInFlight, lane: u8) -> u16 {
        // It may have to be sent again: its data stays here, shared with the message.
        request.share_payload();
        self.bytes += cost(&request);
        self.loads.add(lane, cost(&request));
        let order = self.next_order;
        self.next_order += 1;
        let covers = if request.op == BlockOp::Flush { self.answered } else { 0 };
        let is_timed = self.timing.is_due(now);
        let missing = self.expected_bytes(&request);
        let flight = RemoteBlockRequest {
            request,
            lane,
            order,
            covers,
            has_begun: false,
            again: None,
            data: PayloadAssembler::default(),
            missing,
            submitted: Some(now),
            is_timed,
            residence: None,
        };
        let tag = self.slots.put(flight);
        self.say(tag);
        tag
    }

    /// Bytes that the exporter's answer brings. One that does not know where holes are is asked for nothing in place of
    /// that, and what it answers is ours to say.
    fn expected_bytes(&self, request: &BlockRequest) -> u32 {
        let is_unknown = request.op == BlockOp::Map && !self.maps();
        if is_unknown { 0 } else { request.answer_bytes() as u32 }
    }

    fn maps(&self) -> bool {
        self.description.is_some_and(|description| description.maps)
    }

    fn say(&mut self, tag: u16) {
        let flight = self.slots.get_mut(tag).expect("it was put there");
        let mut head = FrameHeader::new(FrameKind::Request, self.attachment.number(), tag_of(flight.lane, tag));
        head.flags.timed = flight.is_timed;
        // Reads do not wait behind writes.
        let line = if flight.request.payload.is_empty() { 0 } else { 1 };
        let trims = self.description.is_some_and(|description| description.info.trims);
        let part = match flight.request.op {
            // An exporter that does not know the operation treats it as one that does nothing.
            BlockOp::Trim if !trims => {
                let request = &flight.request;
                block::request_part(&BlockRequest::zero(request.id, BlockOp::Discard, request.offset, 0))
            }
            BlockOp::Map if flight.missing == 0 => {
                let request = &flight.request;
                block::request_part(&BlockRequest::read(request.id, request.offset, 0))
            }
            _ => block::request_part(&flight.request),
        };
        self.attachment.say(OutboundMessage {
            head,
            part,
            payload: flight.request.payload.clone(),
            urgency: MessageUrgency::Low,
            flow: FlowId(u32::from(self.attachment.number()) << 8 | line),
            done_at: None,
        });
    }

    /// Handles what is the same for all classes.
    fn hear(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), ProtocolViolation> {
        // After a handover to this host no earlier request is sent again: the exporter answers those first, or passes
        // them to the device.
        let was_shown = self.attachment.is_expected() && self.attachment.is_open();
        match self.attachment.handle_arrived(now, arrived)? {
            FrameMeaning::Opened(opened) => self.handle_opened(now, &opened, was_shown, done),
            FrameMeaning::Ended(end) => {
                self.fail_all(error_of(end.cause), done);
                Ok(())
            }
            FrameMeaning::Own(_) | FrameMeaning::Part => Ok(()),
        }
    }

    fn handle_opened(
        &mut self,
        now: Instant,
        opened: &OpenReply,
        is_ours_now: bool,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), ProtocolViolation> {
        // A handover to another host has failed.
        (self.is_still, self.owed) = (false, 0);
        self.openings += 1;
        let mut description = BlockDescription::decode(&opened.info)?;
        // What is a hole on the medium need not read as zeros after a module.
        description.maps &= !self.is_through_modules;
        if let Some(before) = &self.description {
            // Another process of the exporter may have another version; users here keep the first description.
            description.info.trims &= before.info.trims;
        }
        if let Some(before) = self.description.replace(description) {
            if (BlockInfo { trims: description.info.trims, ..before.info }) != description.info {
                self.end_as_another(before, description, done);
            } else if !is_ours_now {
                self.come_back(before, description);
            }
        }
        self.release(now);
        Ok(())
    }

    fn end_as_another(
        &mut self,
        before: BlockDescription,
        now: BlockDescription,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let (had, has) = (before.info.size_bytes, now.info.size_bytes);
        let message = format!("the disk is another one: it had {had} bytes and has {has}");
        self.attachment.end(AttachmentEndNotice { cause: AttachmentEndCause::Gone, message });
        self.fail_all(error_of(AttachmentEndCause::Gone), done);
    }

    /// The exporter had lost the session, and the device is open again: sends the requests in flight again. Before that
    /// it writes again what the exporter has lost, as far as the data is here.
    fn come_back(&mut self, before: BlockDescription, now: BlockDescription) {
        let flights = self.take_flights();
        // A kernel tells one process, once, that it could not write. If it told the process that is gone, the next
        // flush succeeds, and what is written again is what it covers.
        let may_have_failed = flights.iter().any(|request| request.op == BlockOp::Flush || request.is_durable);
        for request in flights.into_iter().rev() {
            self.held.push_front(request);
        }
        let has_lost = before.durability != now.durability;
        if (has_lost || may_have_failed) && self.answered > self.flushed {
            let is_forgotten = self.retained.lose(self.flushed);
            self.is_undurable |= has_lost && is_forgotten;
        }
    }

    /// Takes all requests in flight, in the order in which they were sent. Rewrites under way are repeated.
    fn take_flights(&mut self) -> Vec<BlockInFlight> {
        self.bytes = 0;
        self.loads.clear();
        self.rewriting = 0;
        let mut flights: Vec<RemoteBlockRequest> = self.slots.take_all().map(|(_, flight)| flight).collect();
        flights.sort_unstable_by_key(|flight| flight.order);
        let (again, flights): (Vec<RemoteBlockRequest>, Vec<RemoteBlockRequest>) =
            flights.into_iter().partition(|flight| flight.again.is_some());
        self.retained.put_back(again.into_iter().map(|RemoteBlockRequest { request, order, again, .. }| {
            let number = again.expect("these are written again");
            RetainedChange { request: request.recall(), order, number }
        }));
        flights.into_iter().map(|flight| flight.request).collect()
    }

    fn handle_reply(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut CompletionQueue<BlockCompletion>,
    ) -> Result<(), ProtocolViolation> {
        let FrameHeader { kind, flags, .. } = arrived.head;
        let (lane, tag) = split_tag(arrived.head.tag);
        let Some(flight) = self.slots.get_mut(tag).filter(|flight| flight.lane == lane) else {
            return Err(ProtocolViolation::new("tag", tag.into(), "a reply answers a request"));
        };
        let mut body = arrived.body;
        if kind == FrameKind::Reply {
            if flight.has_begun || flags.timed != flight.is_timed {
                return Err(ProtocolViolation::new(
                    "tag",
                    tag.into(),
                    "a request is answered once, and timed if it was to be",
                ));
            }
            if flags.timed {
                flight.residence = Some(split_residence(&mut body)?);
            }
            if !flags.plain {
                let error = block::decode_reply(&body.contiguous())?;
                self.end(now, tag, Err(error), done);
                return Ok(());
            }
        } else if !flight.has_begun {
            return Err(ProtocolViolation::new("tag", tag.into(), "data goes on with what was begun"));
        }
        let left = (flight.missing as usize).checked_sub(body.len());
        let wrong =
            || ProtocolViolation::new("data", body.len() as u64, "a read brings as many bytes as were asked for");
        flight.missing = left.ok_or_else(wrong)? as u32;
        if flags.more != (flight.missing > 0) {
            return Err(wrong());
        }
        flight.has_begun = true;
        flight.data.push(body);
        if !flags.more {
            self.end(now, tag, Ok(()), done);
        }
        Ok(())
    }

    fn end(
        &mut self,
        now: Instant,
        tag: u16,
        result: Result<(), StoreError>,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let RemoteBlockRequest { request, lane, order, data, submitted, covers, again, residence, .. } =
            self.slots.remove(tag).expect("it is in flight");
        self.bytes -= cost(&request);
        self.loads.remove(lane, cost(&request));
        if let (Some(residence), Some(submitted)) = (residence, submitted) {
            self.timing.note(now - submitted, residence);
        }
        if let Some(number) = again {
            self.rewriting -= 1;
            let request = request.recall();
            match result {
                Ok(()) => self.retained.keep(RetainedChange { request, order, number }),
                Err(_) => self.is_undurable = true,
            }
            return self.release(now);
        }
        done.push(match result {
            Ok(()) if request.op == BlockOp::Flush && std::mem::take(&mut self.is_undurable) => {
                request.fail(StoreError::Lost)
            }
            Ok(()) => {
                if is_retained(request.op) {
                    self.answered += u64::from(!request.is_durable);
                    self.retained.keep(RetainedChange { request: (*request).clone(), order, number: self.answered });
                } else if request.op == BlockOp::Flush {
                    self.flushed = self.flushed.max(covers);
                    self.retained.flushed(self.flushed);
                }
                let data = data.into_payload();
                match request.op {
                    BlockOp::Map if ExtentList::read(&data, request.length).is_none() => request.answer_all_data(),
                    _ => request.answer(data),
                }
            }
            Err(error) => request.fail(error),
        });
        self.release(now);
    }

    fn fail_all(&mut self, error: StoreError, done: &mut CompletionQueue<BlockCompletion>) {
        let flights = self.take_flights();
        let writes = |request: &&BlockInFlight| request.op == BlockOp::Write;
        let unwritten = flights.iter().chain(&self.held).filter(writes).map(|request| u64::from(request.length));
        self.unwritten_bytes += unwritten.sum::<u64>();
        flights.into_iter().chain(self.held.drain(..)).for_each(|request| done.push(request.fail(error)));
        self.retained = RetainedChanges::without(self.answered);
    }
}

/// Whether the operation reads only, which a host may do before the device is handed over to it.
fn asks_only(op: BlockOp) -> bool {
    matches!(op, BlockOp::Read | BlockOp::Map)
}

/// The credit that a request takes, in bytes.
fn cost(request: &BlockRequest) -> u64 {
    match request.op {
        BlockOp::Read | BlockOp::Write => request.length.into(),
        BlockOp::Map => ExtentList::BYTES as u64,
        BlockOp::Flush | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => 0,
    }
}

impl BlockDevice for RemoteBlock {
    /// # Panics
    /// If it was never open: its owner waits for that.
    fn info(&self) -> &BlockInfo {
        &self.description.as_ref().expect("a device is used once it is open").info
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        match self.attachment.state() {
            AttachmentState::Ended(end) => done.push(request.fail(error_of(end.cause))),
            AttachmentState::Open => match self.info().check(&request) {
                Err(error) => done.push(request.fail(error)),
                Ok(()) if request.op == BlockOp::Map && !self.maps() => done.push(request.answer_all_data()),
                Ok(()) => match self.lane_for(&request).filter(|_| self.may_start(&request)) {
                    Some(lane) => self.start(now, request, lane),
                    None => self.hold(request),
                },
            },
            AttachmentState::Opening => match self.description.as_ref().map_or(Ok(()), |it| it.info.check(&request)) {
                Err(error) => done.push(request.fail(error)),
                Ok(()) => self.hold(request),
            },
        }
    }

    fn epoch(&self) -> Option<u64> {
        // Before the handover to this host another host may write it, and so may the successor after one. While it is
        // opened again it is unknown who had it meanwhile, and what it is now.
        let is_ours = self.attachment.is_open() && !self.attachment.is_expected() && !self.attachment.is_moving;
        is_ours.then_some(self.openings)
    }

    fn is_gone(&self) -> bool {
        self.attachment.is_over()
    }
}

impl RemoteBlock {
    fn may_start(&self, request: &BlockInFlight) -> bool {
        // Requests that wait for the handover do not hold back reads.
        let is_next = match self.attachment.is_expected() {
            true => asks_only(request.op) && self.next_held().is_none(),
            false => self.held.is_empty(),
        };
        is_next && !self.is_still && !self.is_rewriting() && self.has_credit(cost(request))
    }

    /// The lane for a request now. A change must not overtake another one of the same bytes: behind several such
    /// changes on several lanes it waits.
    fn lane_for(&self, request: &BlockInFlight) -> Option<u8> {
        if self.loads.is_first_alone() {
            return Some(0);
        }
        if !request.op.is_change() {
            return Some(self.loads.least());
        }
        let overlaps = |other: &BlockRequest| {
            let end = |request: &BlockRequest| request.offset.saturating_add(request.length.into());
            other.offset < end(request) && request.offset < end(other)
        };
        let flights = self.slots.iter().map(|(_, flight)| flight);
        let mut before = flights.filter(|flight| flight.request.op.is_change() && overlaps(&flight.request));
        match before.next().map(|flight| flight.lane) {
            None => Some(self.loads.least()),
            Some(lane) => before.all(|flight| flight.lane == lane).then_some(lane),
        }
    }

    fn hold(&mut self, mut request: BlockInFlight) {
        request.share_payload();
        self.held.push_back(request);
    }
}

fn error_of(cause: AttachmentEndCause) -> StoreError {
    match cause {
        AttachmentEndCause::Network => StoreError::Lost,
        AttachmentEndCause::Device | AttachmentEndCause::Module => StoreError::Medium,
        AttachmentEndCause::Requested
        | AttachmentEndCause::Refused
        | AttachmentEndCause::Gone
        | AttachmentEndCause::Busy
        | AttachmentEndCause::Stale
        | AttachmentEndCause::Class
        | AttachmentEndCause::Reservation => StoreError::Gone,
    }
}

impl ImporterAttachment for RemoteBlock {
    type Done = CompletionQueue<BlockCompletion>;

    fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes
    }

    fn attachment(&self) -> &AttachmentBase {
        &self.attachment
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        &mut self.attachment
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut Self::Done,
    ) -> Result<(), ProtocolViolation> {
        let kind = arrived.head.kind;
        match kind {
            // An answer on another lane may arrive after the end.
            FrameKind::Reply | FrameKind::Data if self.is_gone() => Ok(()),
            // The description's further frames have no request of their own.
            FrameKind::Data if self.attachment.is_arriving() => self.hear(now, arrived, done),
            FrameKind::Reply | FrameKind::Data => self.handle_reply(now, arrived, done),
            FrameKind::Cancel => {
                Err(ProtocolViolation::new("kind", kind.code().into(), "an exporter does not say that of a disk"))
            }
            _ => self.hear(now, arrived, done),
        }
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Self::Done) {
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut Self::Done) {
        self.attachment.handle_over(cause, message);
        self.fail_all(error_of(cause), done);
    }

    fn poll_timed(&mut self) -> Option<RequestTiming> {
        self.timing.take()
    }

    fn note_modules(&mut self) {
        self.is_through_modules = true;
    }

    fn use_lanes(&mut self, usable: LaneSet) {
        self.loads.set_usable(usable);
    }

    fn hold_still(&mut self, now: Instant, done: &mut Self::Done) {
        let _ = (now, done);
        if !std::mem::replace(&mut self.is_still, true) {
            self.owed = self.held.len();
        }
    }

    fn discard(&mut self, _now: Instant, done: &mut Self::Done) -> usize {
        let before = done.len();
        self.fail_all(error_of(AttachmentEndCause::Requested), done);
        done.len() - before
    }

    fn is_still(&self) -> bool {
        self.slots.is_empty() && self.owed == 0 && !self.is_rewriting()
    }

    fn stores_data(&self) -> bool {
        true
    }

    fn keeps_exporter_busy(&self) -> bool {
        let waits_for_medium = |request: &BlockRequest| match request.op {
            BlockOp::Read | BlockOp::Map => false,
            BlockOp::Write => request.is_durable,
            BlockOp::Flush | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Trim => true,
        };
        self.slots.iter().any(|(_, flight)| waits_for_medium(&flight.request))
    }

    fn migrate(&mut self, successor: [u8; 32]) {
        self.attachment.migrate(successor, Vec::new());
        // The next user may overwrite what was written here, so none of it is written again.
        self.retained = RetainedChanges::without(self.answered);
    }
}

impl MovableAttachment for RemoteBlock {
    /// # Panics
    /// If it was never open, or is over: then there is nothing to save. If it is [being
    /// rewritten](RemoteBlock::is_rewriting).
    fn save(&self, to: &mut SnapshotWriter) {
        assert!(!self.is_rewriting(), "what is lost is written again first");
        let description = self.description.as_ref().expect("what goes on was open");
        self.attachment.save(to);
        for flag in [self.is_still, self.attachment.is_moving, self.is_expected(), self.is_undurable] {
            to.flag(flag);
        }
        to.bytes(&description.encode());
        self.attachment.save_credit(to);
        for number in [self.next_order, self.answered, self.flushed] {
            to.u64(number);
        }
        to.count(self.owed);
        self.attachment.save_opening(to);
        to.count(self.slots.len());
        for (tag, flight) in self.slots.iter() {
            to.u16(tag_of(flight.lane, tag));
            to.block_request(&flight.request);
            to.u64(flight.order);
            to.u64(flight.covers);
            to.flag(flight.is_timed);
            to.count(flight.has_begun.into());
            if flight.has_begun {
                to.runs(flight.data.len(), flight.data.runs());
            }
        }
        to.count(self.held.len());
        self.held.iter().for_each(|request| to.block_request(request));
        self.attachment.save_known(to);
        self.retained.save(to);
    }

    fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut remote = Self::over(AttachmentBase::restore(OPENED_BYTES_MAX, from)?);
        (remote.is_still, remote.attachment.is_moving) = (from.flag("still")?, from.flag("moving")?);
        remote.attachment.inherits = from.flag("expected")?.then_some(NO_MIGRATION_STATE);
        remote.is_undurable = from.flag("undurable")?;
        let description = BlockDescription::decode(from.bytes("description")?)?;
        remote.description = Some(description);
        remote.attachment.restore_credit(from)?;
        remote.next_order = from.u64("next order")?;
        (remote.answered, remote.flushed) = (from.u64("changes answered")?, from.u64("flushed")?);
        remote.owed = from.count("requests owed", 0)?;
        remote.attachment.restore_opening(from)?;
        // No request is begun before everything is valid: a request that is begun has to be answered.
        let mut names = BTreeSet::new();
        let mut request = |from: &mut FieldReader<'_>| {
            let request = from.block_request()?;
            let wrong = |rule| ProtocolViolation::new("request", request.id.0, rule);
            description.info.check(&request).map_err(|_| wrong("its device can have it"))?;
            if names.insert(request.id) { Ok(request) } else { Err(wrong("an id names one request")) }
        };
        let (mut saved, mut tags) = (Vec::new(), BTreeSet::new());
        for _ in 0..from.count("requests in flight", 2)? {
            let (lane, tag) = split_tag(from.u16("tag")?);
            if !tags.insert(tag) {
                return Err(ProtocolViolation::new("tag", tag.into(), "a tag names one request"));
            }
            saved.push((tag, request(from)?, SavedBlockProgress::restore(lane, from)?));
        }
        let mut held = Vec::new();
        for _ in 0..from.count("requests held", 8)? {
            held.push(request(from)?);
        }
        remote.attachment.restore_known(from)?;
        remote.retained = match from.version() {
            // The data of earlier writes is not here.
            ..13 => RetainedChanges::without(remote.answered),
            _ => RetainedChanges::restore(from, &description.info, remote.answered)?,
        };
        if remote.owed > held.len() {
            return Err(ProtocolViolation::new("requests owed", remote.owed as u64, "what is owed is held"));
        }
        for (_, request, begun) in &saved {
            let expected = remote.expected_bytes(request) as usize;
            let count = begun.data.len();
            if count > expected || (count == expected && !begun.data.is_empty()) {
                return Err(ProtocolViolation::new("data", count as u64, "what was read whole was answered"));
            }
        }
        let flights = saved.into_iter().map(|(tag, request, begun)| {
            let expected = remote.expected_bytes(&request);
            (tag, begun.into_flight(request, expected))
        });
        let flights = flights.collect();
        remote.slots = TagSlots::of(flights).expect("each tag was seen once");
        remote.bytes = remote.slots.iter().map(|(_, flight)| cost(&flight.request)).sum();
        for (_, flight) in remote.slots.iter() {
            remote.loads.add(flight.lane, cost(&flight.request));
        }
        remote.held = held.into_iter().map(BlockRequest::launch).collect();
        Ok(remote)
    }

    fn hand_over(&mut self) {
        self.slots.take_all().for_each(|(_, flight)| drop(flight.request.recall()));
        self.held.drain(..).for_each(|request| drop(request.recall()));
    }
}

/// The progress of a request, as another process saved it.
struct SavedBlockProgress {
    lane: u8,
    order: u64,
    covers: u64,
    is_timed: bool,
    has_begun: bool,
    data: PayloadAssembler,
}

impl SavedBlockProgress {
    fn restore(lane: u8, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (order, covers) = (from.u64("order")?, from.u64("covers")?);
        let is_timed = from.flag("timed")?;
        let (parts, mut data) = (from.count("parts of an answer", 4)?, PayloadAssembler::default());
        for _ in 0..parts {
            data.push(from.payload("part of an answer")?);
        }
        Ok(Self { lane, order, covers, is_timed, has_begun: parts > 0, data })
    }

    fn into_flight(self, request: BlockRequest, expected: u32) -> RemoteBlockRequest {
        let Self { lane, order, covers, is_timed, has_begun, data } = self;
        let missing = expected - data.len() as u32;
        let request = request.launch();
        let (again, submitted, residence) = (None, None, None);
        RemoteBlockRequest {
            request,
            lane,
            order,
            covers,
            has_begun,
            again,
            data,
            missing,
            submitted,
            is_timed,
            residence,
        }
    }
}
