//! The server's end of an NBD connection.
//!
//! A request for more than a device takes at once, or than [`NBD_PIECE_BYTES_MAX`], is asked of it in pieces, which
//! travel while the rest of a long write still arrives:
//!
//! | the request | its pieces come back |
//! |---|---|
//! | a read with structured replies | each as a chunk as soon as it is there, in any order |
//! | a read that must not be cut (DF), or without structured replies | held until all are there, then sent in order, uncopied |
//! | where the holes of a range are | it has one piece; the extents in one chunk |
//! | anything else | one answer after the last; the first failure is the one that is told |
//!
//! A connection that is out of credit ([`NBD_REQUESTS_MAX`], [`NBD_PAYLOAD_BYTES_MAX`]) parses and receives nothing
//! more: the client's bytes wait in its socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use farbus_model::limits::{
    NBD_OPTION_BYTES_MAX, NBD_OPTIONS_MAX, NBD_PAYLOAD_BYTES_MAX, NBD_PIECE_BYTES_MAX, NBD_REQUEST_BYTES_MAX,
    NBD_REQUESTS_MAX,
};
use farbus_model::{
    BlockCompletion, BlockId, BlockInfo, BlockOp, BlockRequest, BufferPool, ExtentList, Payload, PendingBlockRequests,
    SessionLimits, StoreError,
};

use super::export::NbdExportDescription;
use super::message::{
    self, NbdError, NbdOptionHeader, NbdRequest, OPTION_HEADER_BYTES, ProtocolViolation, REQUEST_BYTES, chunk, command,
    command_flag, handshake_flag, reply,
};
use super::negotiation::{self, OptionOutcome};
use crate::buffer::{ReceiveBuffer, SendBuffer, SendSlices};
use crate::native::block;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// A connection, the server's end.
#[derive(Debug)]
pub struct NbdServerConn {
    number: u16,
    exports: Arc<[NbdExportDescription]>,
    incoming: ReceiveBuffer,
    outgoing: SendBuffer,
    phase: NbdServerPhase,
    is_structured: bool,
    /// The export of which the client may ask where its holes are.
    mapped: Option<usize>,
    options: u32,
    /// Bytes still to be skipped: an option that is too long, the data of a refused write.
    skip: u64,
    /// The answer to send once they are skipped.
    after_skip: Option<NbdRefusal>,
    /// The request whose pieces are being submitted.
    issue: Option<RequestRemainder>,
    flights: Vec<Option<UnansweredNbdRequest>>,
    free: Vec<u32>,
    /// Payload bytes submitted to the device, or held until the rest is there.
    held_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NbdServerPhase {
    /// Waiting for the client's flags.
    Flags,
    /// In the handshake's options.
    Options { is_padded: bool },
    /// Requests to this export.
    Transmission { export: usize },
    /// Reads nothing more; still sends what it owes.
    Closing,
}

#[derive(Clone, Copy, Debug)]
enum NbdRefusal {
    Option(u32),
    Request(NbdRequest, NbdError),
}

/// An unanswered request.
#[derive(Debug)]
struct UnansweredNbdRequest {
    cookie: u64,
    command: u16,
    /// A read that is answered in chunks.
    is_chunked: bool,
    /// A read that is answered by one chunk.
    is_whole_chunk: bool,
    /// Whether only the first extent is told.
    is_one: bool,
    offset: u64,
    length: u32,
    /// Pieces that the device has.
    pieces_at_device: u32,
    /// Whether all pieces were submitted.
    is_issued: bool,
    failed: Option<StoreError>,
    /// The pieces of a read that is answered as a whole.
    parts: Vec<Payload>,
}

/// The rest of a request that is submitted piece by piece.
#[derive(Clone, Copy, Debug)]
struct RequestRemainder {
    slot: u32,
    op: BlockOp,
    piece: u32,
    offset: u64,
    left: u32,
    piece_bytes_max: u32,
    is_durable: bool,
}

/// The piece size for a device, bytes: whole blocks, and never 0, whatever the device announces.
fn piece_bytes_max(info: &BlockInfo) -> u32 {
    let block = info.block_bytes.max(1);
    let most = info.request_bytes_max.clamp(PIECE_BYTES_MIN, NBD_PIECE_BYTES_MAX);
    (most / block).max(1) * block
}

/// Payload bytes that the device holds or brings for a request.
fn held(op: BlockOp, length: u32) -> usize {
    match op {
        BlockOp::Read | BlockOp::Write => length as usize,
        BlockOp::Map => ExtentList::BYTES,
        BlockOp::Flush | BlockOp::Trim | BlockOp::Discard | BlockOp::WriteZeroes => 0,
    }
}

/// The smallest piece: a sector. The number of pieces has to fit the ids of requests.
const PIECE_BYTES_MIN: u32 = 512;
const SLOT_SHIFT: u32 = 24;
const NUMBER_SHIFT: u32 = 48;
const FIELD: u64 = (1 << SLOT_SHIFT) - 1;

impl NbdServerConn {
    /// Makes a connection to a client that may use `exports`. `number` distinguishes it among the connections of one
    /// device: the ids of its requests carry it.
    pub fn new(number: u16, exports: Arc<[NbdExportDescription]>, limits: &SessionLimits) -> Self {
        let mut outgoing = SendBuffer::default();
        outgoing.put(&message::greeting());
        Self {
            number,
            exports,
            incoming: ReceiveBuffer::new(limits.receive_bytes).keeping_many().copying_lone(limits.copied_bytes_max),
            outgoing,
            phase: NbdServerPhase::Flags,
            is_structured: false,
            mapped: None,
            options: 0,
            skip: 0,
            after_skip: None,
            issue: None,
            flights: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
        }
    }

    /// The number of the connection that a request belongs to.
    pub fn number_of(id: BlockId) -> u16 {
        (id.0 >> NUMBER_SHIFT) as u16
    }

    /// Its number among the connections of one device.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Which export is used, once the handshake has ended with one.
    pub fn export(&self) -> Option<usize> {
        match self.phase {
            NbdServerPhase::Transmission { export } => Some(export),
            _ => None,
        }
    }

    /// Whether the handshake is under way.
    pub fn is_haggling(&self) -> bool {
        matches!(self.phase, NbdServerPhase::Flags | NbdServerPhase::Options { .. })
    }

    /// The space for received bytes; never empty.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(REQUEST_BYTES)
    }

    /// `count` bytes arrived.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// Whether more should be received: not while the connection is out of credit.
    pub fn wants_input(&self) -> bool {
        match self.phase {
            NbdServerPhase::Flags | NbdServerPhase::Options { .. } | NbdServerPhase::Closing => true,
            NbdServerPhase::Transmission { .. } => self.skip > 0 || self.has_credit(),
        }
    }

    /// Bytes that it holds: received, submitted to the device, and waiting to be sent. A write's data counts twice: in
    /// the receive buffer and in the device's request.
    pub fn bytes(&self) -> usize {
        self.incoming.chunk_bytes() + self.held_bytes + self.outgoing.len()
    }

    /// What [`NbdServerConn::bytes`] will be after the next [`NbdServerConn::poll_request`] that returns a request, or
    /// once the data of the write that it waits for is there.
    pub fn bytes_with_next(&self) -> usize {
        self.bytes() + self.next_bytes()
    }

    /// Bytes that the next request or piece adds; all of a read that is answered as a whole.
    fn next_bytes(&self) -> usize {
        let (op, length, is_whole) = match (self.issue, self.phase) {
            (Some(issue), _) => {
                let flight = self.flights[issue.slot as usize].as_ref();
                (
                    issue.op,
                    issue.left.min(issue.piece_bytes_max),
                    flight.is_some_and(UnansweredNbdRequest::is_held_whole).then_some(issue.left),
                )
            }
            (None, NbdServerPhase::Transmission { export }) if self.skip == 0 => {
                let header = self.incoming.bytes().first_chunk::<REQUEST_BYTES>();
                let Some(request) = header.and_then(|bytes| NbdRequest::decode(bytes).ok()) else { return 0 };
                let Ok(op) = self.check(export, &request) else { return 0 };
                let is_whole = !self.is_structured || request.flags & command_flag::DF != 0;
                let piece = request.length.min(piece_bytes_max(&self.exports[export].info));
                (op, piece, (op == BlockOp::Read && is_whole).then_some(request.length))
            }
            (None, _) => return 0,
        };
        match op {
            BlockOp::Read => is_whole.unwrap_or(length) as usize,
            // The device gets the data, and the receive buffer may have to grow until all of it is there.
            BlockOp::Write => length as usize + self.incoming.growth_to(length as usize),
            BlockOp::Flush | BlockOp::Trim | BlockOp::Discard | BlockOp::WriteZeroes | BlockOp::Map => held(op, length),
        }
    }

    /// Whether part of a write has arrived.
    pub fn is_mid_write(&self) -> bool {
        self.skip > 0 || self.issue.is_some_and(|issue| issue.op == BlockOp::Write)
    }

    /// Frees memory that is only kept for reuse.
    pub fn trim(&mut self) {
        self.incoming.trim();
    }

    /// The next request for the device, if its bytes are there and there is credit for it.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the bytes are no message of this protocol, and the connection has to end.
    pub fn poll_request(&mut self) -> Result<Option<BlockRequest>, ProtocolViolation> {
        loop {
            if self.skip > 0 && !self.skip_on() {
                return Ok(None);
            }
            if let Some(refusal) = self.after_skip.take() {
                self.refuse(refusal);
            }
            if let Some(issue) = self.issue {
                return Ok(self.poll_piece(issue));
            }
            let has_moved = match self.phase {
                NbdServerPhase::Flags => self.poll_flags()?,
                NbdServerPhase::Options { is_padded } => self.poll_option(is_padded)?,
                NbdServerPhase::Transmission { export } => self.poll_header(export)?,
                NbdServerPhase::Closing => {
                    // Dropped without parsing, so that there is always space to receive.
                    self.incoming.consume(self.incoming.bytes().len());
                    false
                }
            };
            if !has_moved {
                return Ok(None);
            }
        }
    }

    /// Skips unwanted bytes; returns whether all are skipped.
    fn skip_on(&mut self) -> bool {
        let count = self.skip.min(self.incoming.bytes().len() as u64);
        self.incoming.consume(count as usize);
        self.skip -= count;
        self.skip == 0
    }

    fn poll_flags(&mut self) -> Result<bool, ProtocolViolation> {
        let Some(bytes) = self.incoming.bytes().first_chunk::<4>() else { return Ok(false) };
        let flags = u32::from_be_bytes(*bytes);
        if flags & !u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES) != 0 {
            return Err(ProtocolViolation::new(
                "client flags",
                u64::from(flags),
                "only fixed newstyle and no zeroes are known",
            ));
        }
        self.incoming.consume(4);
        self.phase = NbdServerPhase::Options { is_padded: flags & u32::from(handshake_flag::NO_ZEROES) == 0 };
        Ok(true)
    }

    fn poll_option(&mut self, is_padded: bool) -> Result<bool, ProtocolViolation> {
        let Some(bytes) = self.incoming.bytes().first_chunk::<OPTION_HEADER_BYTES>() else { return Ok(false) };
        let header = NbdOptionHeader::decode(bytes)?;
        if header.length > NBD_OPTION_BYTES_MAX {
            self.incoming.consume(OPTION_HEADER_BYTES);
            self.count_option()?;
            self.skip = u64::from(header.length);
            self.after_skip = Some(NbdRefusal::Option(header.option));
            return Ok(true);
        }
        let total = OPTION_HEADER_BYTES + header.length as usize;
        if self.incoming.bytes().len() < total {
            self.incoming.want(total);
            return Ok(false);
        }
        self.count_option()?;
        let data = &self.incoming.bytes()[OPTION_HEADER_BYTES..total];
        let (exports, to) = (&self.exports, &mut self.outgoing);
        let negotiated = negotiation::negotiate(header.option, data, exports, self.is_structured, is_padded, to);
        self.incoming.consume(total);
        match negotiated {
            OptionOutcome::On => {}
            OptionOutcome::Structured => self.is_structured = true,
            OptionOutcome::Selected(mapped) => self.mapped = mapped,
            OptionOutcome::Begin(export) => self.phase = NbdServerPhase::Transmission { export },
            OptionOutcome::End => self.phase = NbdServerPhase::Closing,
            OptionOutcome::HangUp => {
                return Err(ProtocolViolation::new(
                    "export name",
                    u64::from(header.length),
                    "it names an export that there is",
                ));
            }
        }
        Ok(true)
    }

    fn count_option(&mut self) -> Result<(), ProtocolViolation> {
        self.options += 1;
        if self.options > NBD_OPTIONS_MAX {
            return Err(ProtocolViolation::new(
                "options",
                u64::from(self.options),
                "a client comes to the point within 32",
            ));
        }
        Ok(())
    }

    fn has_credit(&self) -> bool {
        self.in_flight() < NBD_REQUESTS_MAX && self.held_bytes + self.outgoing.len() < NBD_PAYLOAD_BYTES_MAX
    }

    fn poll_header(&mut self, export: usize) -> Result<bool, ProtocolViolation> {
        if !self.has_credit() {
            return Ok(false);
        }
        let Some(bytes) = self.incoming.bytes().first_chunk::<REQUEST_BYTES>() else { return Ok(false) };
        let request = NbdRequest::decode(bytes)?;
        self.incoming.consume(REQUEST_BYTES);
        if request.command == command::DISC {
            self.phase = NbdServerPhase::Closing;
            return Ok(true);
        }
        match self.check(export, &request) {
            Ok(op) if request.length == 0 && op != BlockOp::Flush => self.answer_nothing(&request),
            Ok(op) => self.begin(export, &request, op),
            Err(failure) => {
                // The data of a write follows, whether the write is refused or not.
                self.skip = if request.command == command::WRITE { u64::from(request.length) } else { 0 };
                self.after_skip = Some(NbdRefusal::Request(request, failure));
            }
        }
        Ok(true)
    }

    /// The operation of a request, or its refusal ("Request types", "Error values", "Block size constraints").
    fn check(&self, export: usize, request: &NbdRequest) -> Result<BlockOp, NbdError> {
        let is_mapped = self.mapped == Some(export);
        let export = &self.exports[export];
        let (info, flags) = (&export.info, request.flags);
        let (op, known) = match request.command {
            command::READ if self.is_structured => (BlockOp::Read, command_flag::DF),
            command::READ => (BlockOp::Read, 0),
            command::WRITE => (BlockOp::Write, 0),
            command::FLUSH => (BlockOp::Flush, 0),
            command::TRIM => (BlockOp::Trim, 0),
            command::WRITE_ZEROES => {
                let op = if flags & command_flag::NO_HOLE == 0 { BlockOp::Discard } else { BlockOp::WriteZeroes };
                (op, command_flag::NO_HOLE | command_flag::FAST_ZERO)
            }
            command::BLOCK_STATUS if is_mapped && request.length > 0 => (BlockOp::Map, command_flag::REQ_ONE),
            _ => return Err(NbdError::Invalid),
        };
        if flags & !(known | command_flag::FUA) != 0 {
            return Err(NbdError::Invalid);
        }
        if op == BlockOp::Flush {
            return if (request.offset, request.length) == (0, 0) { Ok(op) } else { Err(NbdError::Invalid) };
        }
        if op.is_change() && info.is_read_only {
            return Err(NbdError::NotPermitted);
        }
        let end = request.offset.checked_add(u64::from(request.length));
        if end.is_none_or(|end| end > info.size_bytes) {
            let grows = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
            return Err(if grows { NbdError::NoSpace } else { NbdError::Invalid });
        }
        let block = u64::from(info.block_bytes);
        let is_aligned = request.offset.is_multiple_of(block) && u64::from(request.length).is_multiple_of(block);
        let moves = matches!(op, BlockOp::Read | BlockOp::Write);
        if !is_aligned || moves && request.length > NBD_REQUEST_BYTES_MAX {
            return Err(NbdError::Invalid);
        }
        if flags & command_flag::FAST_ZERO != 0 && !export.zeroes_fast {
            return Err(NbdError::NotSupported);
        }
        Ok(op)
    }

    fn begin(&mut self, export: usize, request: &NbdRequest, op: BlockOp) {
        let is_read = op == BlockOp::Read;
        let is_chunked = is_read && self.is_structured && request.flags & command_flag::DF == 0;
        let flight = UnansweredNbdRequest {
            cookie: request.cookie,
            command: request.command,
            is_chunked,
            is_whole_chunk: is_read && self.is_structured && !is_chunked,
            is_one: op == BlockOp::Map && request.flags & command_flag::REQ_ONE != 0,
            offset: request.offset,
            length: request.length,
            pieces_at_device: 0,
            is_issued: false,
            failed: None,
            parts: Vec::new(),
        };
        let slot = self.free.pop().unwrap_or(self.flights.len() as u32);
        match self.flights.get_mut(slot as usize) {
            Some(free_slot) => *free_slot = Some(flight),
            None => self.flights.push(Some(flight)),
        }
        let moves = matches!(op, BlockOp::Read | BlockOp::Write);
        self.issue = Some(RequestRemainder {
            slot,
            op,
            piece: 0,
            offset: request.offset,
            left: request.length,
            piece_bytes_max: if moves { piece_bytes_max(&self.exports[export].info) } else { request.length },
            is_durable: request.flags & command_flag::FUA != 0,
        });
    }

    /// The next piece of the request that is being submitted.
    fn poll_piece(&mut self, issue: RequestRemainder) -> Option<BlockRequest> {
        let length = issue.left.min(issue.piece_bytes_max);
        let flight = self.flights[issue.slot as usize].as_ref().expect("what is issued is in flight");
        // A read that is answered as a whole was admitted as a whole: its pieces release nothing before the last one.
        let is_let_in = issue.piece == 0 || issue.op == BlockOp::Read && !flight.is_chunked;
        if !is_let_in && !self.has_credit() {
            return None;
        }
        let mut payload = Payload::Empty;
        if issue.op == BlockOp::Write {
            let count = length as usize;
            if self.incoming.bytes().len() < count {
                self.incoming.want(count);
                return None;
            }
            payload = self.incoming.window(0..count);
            self.incoming.consume(count);
        }
        self.held_bytes += held(issue.op, length);
        let left = issue.left - length;
        let flight = self.flights[issue.slot as usize].as_mut().expect("what is issued is in flight");
        flight.pieces_at_device += 1;
        flight.is_issued = left == 0;
        let next = RequestRemainder { piece: issue.piece + 1, offset: issue.offset + u64::from(length), left, ..issue };
        self.issue = (left > 0).then_some(next);
        Some(BlockRequest {
            id: self.id(issue.slot, issue.piece),
            op: issue.op,
            offset: issue.offset,
            length,
            payload,
            is_durable: issue.is_durable,
        })
    }

    fn id(&self, slot: u32, piece: u32) -> BlockId {
        BlockId(u64::from(self.number) << NUMBER_SHIFT | u64::from(slot) << SLOT_SHIFT | u64::from(piece))
    }

    /// Processes the answer to a request of [`NbdServerConn::poll_request`].
    ///
    /// # Panics
    /// If that request is not in flight.
    pub fn complete(&mut self, done: BlockCompletion, pool: &mut BufferPool) {
        assert_eq!(Self::number_of(done.id), self.number, "an answer goes to the connection that asked");
        let (slot, piece) = (done.id.0 >> SLOT_SHIFT & FIELD, (done.id.0 & FIELD) as usize);
        let flight = self.flights[slot as usize].as_mut().expect("a request is answered once");
        flight.pieces_at_device -= 1;
        let is_last = flight.pieces_at_device == 0 && flight.is_issued;
        pool.recycle(done.spent);
        if !flight.is_held_whole() {
            self.held_bytes -= held(done.op, done.length);
        }
        match done.result {
            Err(error) => {
                flight.failed.get_or_insert(error);
                pool.recycle(done.payload);
            }
            Ok(()) if flight.is_chunked => {
                let flags = if is_last && flight.failed.is_none() { chunk::FLAG_DONE } else { 0 };
                let header = message::data_chunk(flight.cookie, flags, done.offset, done.payload.len());
                self.outgoing.put(&header);
                self.outgoing.put_payload(done.payload, pool);
                if is_last && flight.failed.is_none() {
                    return self.end(slot as u32);
                }
            }
            Ok(()) if flight.command == command::READ => {
                if flight.parts.len() <= piece {
                    flight.parts.resize(piece + 1, Payload::Empty);
                }
                flight.parts[piece] = done.payload;
            }
            Ok(()) if done.op == BlockOp::Map => flight.parts.push(done.payload),
            Ok(()) => {}
        }
        if is_last {
            self.answer(slot as u32, pool);
        }
    }

    /// Answers a request whose pieces are all back.
    fn answer(&mut self, slot: u32, pool: &mut BufferPool) {
        let flight = self.flights[slot as usize].take().expect("a request is answered once");
        self.free.push(slot);
        let is_read = flight.command == command::READ;
        if is_read && !flight.is_chunked {
            self.held_bytes -= flight.length as usize;
        }
        match flight.failed {
            Some(error) => {
                self.put_failure(flight.cookie, flight.command, NbdError::of(error), &error.to_string());
                flight.parts.into_iter().for_each(|part| pool.recycle(part));
            }
            None if flight.command == command::BLOCK_STATUS => {
                let extent_list = flight.parts.first().and_then(|payload| ExtentList::read(payload, flight.length));
                let extents = extent_list.unwrap_or_else(|| ExtentList::data(flight.length.into()));
                self.outgoing.put(&message::status_chunk(flight.cookie, &extents, flight.is_one));
                flight.parts.into_iter().for_each(|part| pool.recycle(part));
            }
            None => {
                if flight.is_whole_chunk {
                    let length = flight.length as usize;
                    self.outgoing.put(&message::data_chunk(flight.cookie, chunk::FLAG_DONE, flight.offset, length));
                } else {
                    self.outgoing.put(&message::simple_reply(flight.cookie, 0));
                }
                flight.parts.into_iter().for_each(|part| self.outgoing.put_payload(part, pool));
            }
        }
    }

    fn end(&mut self, slot: u32) {
        self.flights[slot as usize] = None;
        self.free.push(slot);
    }

    /// Answers a request for no bytes.
    fn answer_nothing(&mut self, request: &NbdRequest) {
        if request.command == command::READ && self.is_structured {
            self.outgoing.put(&message::chunk_header(request.cookie, chunk::FLAG_DONE, chunk::NONE, 0));
        } else {
            self.outgoing.put(&message::simple_reply(request.cookie, 0));
        }
    }

    fn refuse(&mut self, refusal: NbdRefusal) {
        match refusal {
            NbdRefusal::Option(option) => {
                negotiation::answer(&mut self.outgoing, option, reply::ERR_TOO_BIG, b"no option needs so much data");
            }
            NbdRefusal::Request(request, failure) => {
                let why = match failure {
                    NbdError::NotPermitted => "the export is read-only",
                    NbdError::NoSpace => "the range ends past the end",
                    NbdError::NotSupported => "zeros are not made fast here",
                    _ => "the request is unknown, out of range, unaligned or too long",
                };
                self.put_failure(request.cookie, request.command, failure, why);
            }
        }
    }

    fn put_failure(&mut self, cookie: u64, command: u16, failure: NbdError, why: &str) {
        if !self.is_structured || !matches!(command, command::READ | command::BLOCK_STATUS) {
            self.outgoing.put(&message::simple_reply(cookie, failure.code()));
            return;
        }
        let why = why.as_bytes();
        self.outgoing.put(&message::chunk_header(cookie, chunk::FLAG_DONE, chunk::ERROR, 6 + why.len()));
        self.outgoing.put(&failure.code().to_be_bytes());
        self.outgoing.put(&(why.len() as u16).to_be_bytes());
        self.outgoing.put(why);
    }

    /// Ends the connection from this side: nothing more is read, and pending answers are still sent.
    pub fn close(&mut self) {
        self.phase = NbdServerPhase::Closing;
        if let Some(issue) = self.issue.take() {
            // Its remaining pieces are not submitted; the submitted ones count as failed.
            let flight = self.flights[issue.slot as usize].as_mut().expect("what is issued is in flight");
            flight.is_issued = true;
            flight.failed.get_or_insert(StoreError::Gone);
            if flight.is_held_whole() {
                // Its answer releases what the whole request holds, and only the submitted part was counted.
                self.held_bytes += issue.left as usize;
            }
            if flight.pieces_at_device == 0 {
                self.answer(issue.slot, &mut BufferPool::new(0));
            }
        }
        (self.skip, self.after_skip) = (0, None);
    }

    /// How many requests were received and are not answered in full yet.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Bytes waiting to be sent.
    pub fn backlog_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// The runs of memory to send next, in order; empty when there is nothing.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.outgoing.runs()
    }

    /// `count` bytes of [`NbdServerConn::poll_transmit`] were sent.
    pub fn handle_transmitted(&mut self, count: usize, pool: &mut BufferPool) {
        self.outgoing.sent(count, pool);
    }

    /// Whether everything was answered and sent, and the connection is over.
    pub fn is_finished(&self) -> bool {
        self.phase == NbdServerPhase::Closing && self.in_flight() == 0 && self.outgoing.len() == 0
    }
}

/// Phases in a snapshot; [`TRANSMISSION`] and above include an export's number.
const FLAGS: u32 = 0;
const OPTIONS: u32 = 1;
const OPTIONS_PADDED: u32 = 2;
const CLOSING: u32 = 3;
const TRANSMISSION: u32 = 4;

impl NbdServerConn {
    /// Saves the connection. It may still continue.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.u16(self.number);
        to.u32(match self.phase {
            NbdServerPhase::Flags => FLAGS,
            NbdServerPhase::Options { is_padded: false } => OPTIONS,
            NbdServerPhase::Options { is_padded: true } => OPTIONS_PADDED,
            NbdServerPhase::Closing => CLOSING,
            NbdServerPhase::Transmission { export } => TRANSMISSION + export as u32,
        });
        to.flag(self.is_structured);
        to.u32(self.mapped.map_or(0, |export| export as u32 + 1));
        to.u32(self.options);
        to.bytes(self.incoming.bytes());
        self.outgoing.save(to);
        to.u64(self.skip);
        match self.after_skip {
            None => to.u8(0),
            Some(NbdRefusal::Option(option)) => {
                to.u8(1);
                to.u32(option);
            }
            Some(NbdRefusal::Request(request, _)) => {
                to.u8(2);
                to.raw(&request.to_bytes());
            }
        }
        to.count(self.in_flight());
        for (slot, flight) in self.flights.iter().enumerate() {
            if let Some(flight) = flight {
                to.u32(slot as u32);
                flight.save(to);
            }
        }
        to.flag(self.issue.is_some());
        if let Some(issue) = &self.issue {
            to.block_request(&BlockRequest {
                id: self.id(issue.slot, issue.piece),
                op: issue.op,
                offset: issue.offset,
                length: issue.left,
                payload: Payload::Empty,
                is_durable: issue.is_durable,
            });
        }
    }

    /// Makes a connection that continues from a saved one, and takes its requests out of `pending`.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no connection can have been in this state.
    pub fn restore(
        exports: Arc<[NbdExportDescription]>,
        limits: &SessionLimits,
        pending: &mut PendingBlockRequests,
        from: &mut FieldReader<'_>,
    ) -> Result<Self, ProtocolViolation> {
        let mut conn = Self::new(from.u16("number")?, exports, limits);
        conn.outgoing = SendBuffer::default();
        conn.phase = match from.u32("phase")? {
            FLAGS => NbdServerPhase::Flags,
            OPTIONS => NbdServerPhase::Options { is_padded: false },
            OPTIONS_PADDED => NbdServerPhase::Options { is_padded: true },
            CLOSING => NbdServerPhase::Closing,
            other if ((other - TRANSMISSION) as usize) < conn.exports.len() => {
                NbdServerPhase::Transmission { export: (other - TRANSMISSION) as usize }
            }
            other => return Err(ProtocolViolation::new("phase", other.into(), "a connection has such a phase")),
        };
        conn.is_structured = from.flag("structured")?;
        conn.mapped = conn.restore_mapped(from)?;
        conn.options = from.u32("options")?;
        conn.incoming.refill(from.bytes("bytes received")?);
        conn.outgoing.put(from.bytes("bytes to send")?);
        conn.skip = from.u64("bytes to skip")?;
        conn.after_skip = conn.restore_refusal(from)?;
        for _ in 0..from.count("requests", 26)? {
            let slot = from.u32("place")? as usize;
            if slot >= NBD_REQUESTS_MAX || conn.flights.get(slot).is_some_and(Option::is_some) {
                return Err(ProtocolViolation::new("place", slot as u64, "each request has one, below 256"));
            }
            conn.flights.resize_with(conn.flights.len().max(slot + 1), || None);
            conn.flights[slot] = Some(UnansweredNbdRequest::restore(conn.is_structured, from)?);
        }
        conn.free = (0..conn.flights.len() as u32).filter(|&slot| conn.flights[slot as usize].is_none()).collect();
        conn.issue = if from.flag("being asked")? { Some(conn.restore_issue(from)?) } else { None };
        conn.put_pending(pending)?;
        Ok(conn)
    }

    /// Nobody asks a connection of the previous release where holes are.
    fn restore_mapped(&self, from: &mut FieldReader<'_>) -> Result<Option<usize>, ProtocolViolation> {
        let number = if from.version() >= 13 { from.u32("export with holes")? } else { 0 };
        let mapped = (number as usize).checked_sub(1);
        if mapped.is_some_and(|export| !self.is_structured || export >= self.exports.len()) {
            return Err(ProtocolViolation::new(
                "export with holes",
                number.into(),
                "it is one, with structured replies",
            ));
        }
        Ok(mapped)
    }

    fn restore_refusal(&self, from: &mut FieldReader<'_>) -> Result<Option<NbdRefusal>, ProtocolViolation> {
        match from.u8("refusal")? {
            0 => Ok(None),
            1 => Ok(Some(NbdRefusal::Option(from.u32("option")?))),
            _ => {
                let bytes = from.take(REQUEST_BYTES, "request")?.try_into().expect("as many as were asked for");
                let request = NbdRequest::decode(bytes)?;
                match self.phase {
                    NbdServerPhase::Transmission { export } => {
                        // It is refused again.
                        Ok(self.check(export, &request).err().map(|failure| NbdRefusal::Request(request, failure)))
                    }
                    _ => Err(ProtocolViolation::new("refusal", request.cookie, "an export is used")),
                }
            }
        }
    }

    fn restore_issue(&self, from: &mut FieldReader<'_>) -> Result<RequestRemainder, ProtocolViolation> {
        let BlockRequest { id, op, offset, length: left, is_durable, .. } = from.block_request()?;
        let (slot, piece) = (id.0 >> SLOT_SHIFT & FIELD, id.0 & FIELD);
        let wrong = |rule| ProtocolViolation::new("request being asked", id.0, rule);
        let NbdServerPhase::Transmission { export } = self.phase else { return Err(wrong("an export is used")) };
        let flight = self.flights.get(slot as usize).and_then(Option::as_ref);
        let flight = flight.filter(|flight| flight.asks(op)).ok_or(wrong("it is in flight"))?;
        let moves = matches!(op, BlockOp::Read | BlockOp::Write);
        let piece_bytes_max = if moves { piece_bytes_max(&self.exports[export].info) } else { flight.length };
        let done = piece.checked_mul(piece_bytes_max.into()).filter(|done| *done <= flight.length.into());
        let rest = done.map(|done| (flight.offset + done, u64::from(flight.length) - done));
        let is_empty = left == 0 && op != BlockOp::Flush;
        if rest != Some((offset, left.into())) || is_empty {
            return Err(wrong("what is left of it is its end"));
        }
        Ok(RequestRemainder { slot: slot as u32, op, piece: piece as u32, offset, left, piece_bytes_max, is_durable })
    }

    /// Matches the pending pieces with their requests: a request lacks what the device has of it.
    fn put_pending(&mut self, pending: &mut PendingBlockRequests) -> Result<(), ProtocolViolation> {
        let own: Vec<BlockId> = pending.keys().copied().filter(|id| Self::number_of(*id) == self.number).collect();
        // For reads that are answered as a whole: the pieces that are there and those to come, by offset.
        let mut pieces: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        for id in own {
            let (op, offset, length) = pending.remove(&id).expect("it was there just now");
            let (slot, piece) = (id.0 >> SLOT_SHIFT & FIELD, id.0 & FIELD);
            let wrong = ProtocolViolation::new("request", id.0, "it is part of one that was asked here");
            let flight = self.flights.get_mut(slot as usize).and_then(Option::as_mut);
            let flight = flight.filter(|flight| flight.asks(op) && flight.covers(offset, length)).ok_or(wrong)?;
            flight.pieces_at_device += 1;
            if flight.is_held_whole() {
                pieces.insert((slot, piece), length);
            } else {
                self.held_bytes += held(op, length);
            }
        }
        for slot in 0..self.flights.len() {
            let issue = self.issue.filter(|issue| issue.slot as usize == slot);
            let Some(flight) = &mut self.flights[slot] else { continue };
            flight.is_issued = issue.is_none();
            let wrong = |rule| ProtocolViolation::new("request", flight.cookie, rule);
            if flight.is_issued && flight.pieces_at_device == 0 {
                return Err(wrong("somebody is to answer it"));
            }
            if flight.is_held_whole() {
                for (piece, part) in flight.parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
                    if pieces.insert((slot as u64, piece as u64), part.len() as u32).is_some() {
                        return Err(wrong("a piece is answered once"));
                    }
                }
                let own = pieces.range((slot as u64, 0)..(slot as u64 + 1, 0));
                let is_dense = own.clone().zip(0..).all(|((&(_, piece), _), at)| piece == at);
                let piece_bytes = own.clone().map(|(_, length)| u64::from(*length)).sum::<u64>();
                let left = issue.map_or(0, |issue| u64::from(issue.left));
                // A failed piece has no data.
                let is_whole = flight.failed.is_some() || (is_dense && piece_bytes + left == u64::from(flight.length));
                if !is_whole {
                    return Err(wrong("its pieces are all of it"));
                }
                self.held_bytes += (u64::from(flight.length) - left) as usize;
            }
        }
        Ok(())
    }
}

impl UnansweredNbdRequest {
    fn save(&self, to: &mut SnapshotWriter) {
        to.u64(self.cookie);
        to.u16(self.command);
        to.flag(self.is_chunked);
        if self.command == command::BLOCK_STATUS {
            to.flag(self.is_one);
        }
        to.u64(self.offset);
        to.u32(self.length);
        to.flag(self.failed.is_some());
        if let Some(error) = self.failed {
            to.bytes(&block::reply_part(error));
        }
        to.count(self.parts.len());
        self.parts.iter().for_each(|part| to.payload(part));
    }

    /// Restores a flight; its pieces in the device are added later.
    fn restore(is_structured: bool, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let (cookie, command) = (from.u64("cookie")?, from.u16("command")?);
        let is_read = command == command::READ;
        let is_chunked = from.flag("chunks")?;
        if is_chunked && !(is_read && is_structured) {
            return Err(ProtocolViolation::new(
                "chunks",
                command.into(),
                "reads are answered so, where that was agreed on",
            ));
        }
        let is_one = command == command::BLOCK_STATUS && from.flag("one extent")?;
        let (offset, length) = (from.u64("offset")?, from.u32("length")?);
        if offset.checked_add(length.into()).is_none() || (is_read && length > NBD_REQUEST_BYTES_MAX) {
            return Err(ProtocolViolation::new("length", length.into(), "a client may ask for so much"));
        }
        let mut failed = None;
        if from.flag("failed")? {
            failed = Some(block::decode_reply(from.bytes("failure")?)?);
        }
        let mut parts = Vec::new();
        for _ in 0..from.count("parts", 4)? {
            parts.push(from.payload("part")?);
        }
        if !parts.is_empty() && (!is_read || is_chunked) {
            return Err(ProtocolViolation::new(
                "parts",
                parts.len() as u64,
                "they are kept for what is answered whole",
            ));
        }
        let is_whole_chunk = is_read && is_structured && !is_chunked;
        let (pieces_at_device, is_issued) = (0, false);
        Ok(Self {
            cookie,
            command,
            is_chunked,
            is_whole_chunk,
            is_one,
            offset,
            length,
            pieces_at_device,
            is_issued,
            failed,
            parts,
        })
    }

    /// Whether this read is sent only when all of it is there.
    fn is_held_whole(&self) -> bool {
        self.command == command::READ && !self.is_chunked
    }

    /// Whether the device may get this operation for the request.
    fn asks(&self, op: BlockOp) -> bool {
        match op {
            BlockOp::Read => self.command == command::READ,
            BlockOp::Write => self.command == command::WRITE,
            BlockOp::Flush => self.command == command::FLUSH,
            BlockOp::Trim => self.command == command::TRIM,
            BlockOp::Discard | BlockOp::WriteZeroes => self.command == command::WRITE_ZEROES,
            BlockOp::Map => self.command == command::BLOCK_STATUS,
        }
    }

    /// Whether the range lies within the request.
    fn covers(&self, offset: u64, length: u32) -> bool {
        offset >= self.offset && offset + u64::from(length) <= self.offset + u64::from(self.length)
    }
}
