//! Read-ahead: sequential reads of a far device are fetched before they are asked for.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use farbus_model::budget::MemoryAccount;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockLayer, BlockOp, BlockRequest, CompletionQueue, Instant,
    Payload, PendingBlockRequests, StoreError, limits,
};
use farbus_wire::snapshot::{FieldReader, SnapshotWriter};

use super::below::UnderlyingDevice;
use super::rising::RisingMap;
use super::window::{FlightWindow, PathPace};
use crate::ProtocolViolation;

/// Snapshot kind of [`ReadAheadLayer`].
pub const AHEAD_KIND: u16 = 8;

/// A layer over a far device that reads ahead: sequential reads are answered from data fetched earlier (requirement
/// U9).
///
/// It fetches only while nothing else can change the device, which [`BlockDevice::epoch`] reports: the device is used
/// exclusively, or by readers only. A read never returns data older than the last answered change: when a change
/// completes, the data fetched from that place is dropped. Before it completes, old and new data are both correct. A
/// read is never answered with data that was requested more than [`limits::FETCHED_TIME_MAX`] earlier: by then an
/// importer that hears nothing may have lost the device to another one, whose writes are not known here; a stream of
/// which all data is so old is forgotten. After a handover, the replacement keeps the requests and fetches the data
/// again.
///
/// A stream begins with [`RUNS_MIN`] consecutive reads, or two large ones. From then on, [`WINDOW_BYTES_MIN`] bytes are
/// fetched ahead. The window grows when a read has to wait, as far as the path carries more (`FlightWindow`). At most
/// [`STREAMS_MAX`] streams are followed at a time.
#[derive(Debug)]
pub struct ReadAheadLayer<D> {
    below: UnderlyingDevice<D>,
    /// Requests passed on unchanged, by their number below. Numbers that are not here belong to pieces.
    flights: RisingMap<BlockInFlight>,
    next_number: u64,
    /// Least recently used first.
    streams: VecDeque<ReadAheadStream>,
    /// How long pieces took.
    pace: PathPace,
    /// What windows take memory from that are larger than each may be.
    account: Option<Arc<MemoryAccount>>,
    /// The device's epoch when the data was fetched.
    epoch: Option<u64>,
    /// Reads taken over from a snapshot that were not yet submitted to the device.
    left: Vec<BlockInFlight>,
}

/// Number of sequential streams that are followed at a time.
pub const STREAMS_MAX: usize = 4;
/// Number of consecutive reads before anything is fetched ahead.
pub const RUNS_MIN: u32 = 3;
/// Bytes of two consecutive reads, or more, that are enough: at a distance each further one costs a round trip.
const RUN_BYTES_MIN: u64 = 256 << 10;
/// Initial number of bytes fetched ahead of one stream.
pub const WINDOW_BYTES_MIN: u64 = 512 << 10;
/// Initial number of bytes fetched ahead of a reader of large blocks, at most: it is four of its reads.
const WINDOW_BYTES_BEGUN_MAX: u64 = 4 << 20;
/// Size of one piece that is fetched ahead, bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// A sequence of consecutive reads.
#[derive(Debug)]
struct ReadAheadStream {
    /// Offset where the next read is expected.
    next: u64,
    runs: u32,
    /// Bytes of these reads.
    bytes: u64,
    /// When the last of them came.
    read_at: Instant,
    window: FlightWindow,
    /// Data that was fetched and is still of use, without gaps.
    pieces: VecDeque<ReadAheadPiece>,
    /// Reads that wait for pieces.
    waiting: VecDeque<BlockInFlight>,
}

#[derive(Debug)]
struct ReadAheadPiece {
    range: Range<u64>,
    number: u64,
    asked_at: Instant,
    data: Option<Payload>,
}

impl ReadAheadStream {
    fn starting_at(next: u64, now: Instant) -> Self {
        Self {
            next,
            runs: 1,
            bytes: 0,
            read_at: now,
            window: FlightWindow::new(WINDOW_BYTES_MIN),
            pieces: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    /// The range that was fetched or is being fetched.
    fn fetched(&self) -> Range<u64> {
        match (self.pieces.front(), self.pieces.back()) {
            (Some(first), Some(last)) => first.range.start..last.range.end,
            _ => self.next..self.next,
        }
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        let fetched = self.fetched();
        fetched.start <= range.start && range.end <= fetched.end && !self.pieces.is_empty()
    }

    /// Whether the fetched data that overlaps `range` is recent enough to answer a read.
    fn is_fresh(&self, now: Instant, range: &Range<u64>) -> bool {
        self.touched(range).all(|piece| now - piece.asked_at < limits::FETCHED_TIME_MAX)
    }

    /// The pieces that overlap `range`: they are in order.
    fn touched(&self, range: &Range<u64>) -> impl Iterator<Item = &ReadAheadPiece> {
        let first = self.pieces.partition_point(|piece| piece.range.end <= range.start);
        let end = range.end;
        self.pieces.range(first..).take_while(move |piece| piece.range.start < end)
    }

    /// When none of the fetched data can answer a read any more: its reader has stopped. `None` if the stream holds
    /// neither data nor memory that others may need, or reads wait for it.
    fn expiry(&self) -> Option<Instant> {
        let newest = self.pieces.back().map(|piece| piece.asked_at);
        let since = newest.or_else(|| self.window.has_taken().then_some(self.read_at));
        since.filter(|_| self.waiting.is_empty()).map(|since| since + limits::FETCHED_TIME_MAX)
    }

    /// The bytes of `range`, if all of them have arrived. They are not copied.
    fn bytes(&self, range: &Range<u64>) -> Option<Payload> {
        let parts = self.touched(range).map(|piece| {
            let mut data = piece.data.clone()?;
            data.split_front(range.start.saturating_sub(piece.range.start) as usize);
            data.truncate((range.end.min(piece.range.end) - range.start.max(piece.range.start)) as usize);
            Some(data)
        });
        parts.collect::<Option<Vec<_>>>().map(Payload::joined)
    }

    /// Drops pieces that no waiting or later read of the stream needs.
    fn forget_used(&mut self) {
        let waits_from = self.waiting.iter().map(|read| read.offset).min().unwrap_or(u64::MAX);
        let from = self.next.min(waits_from);
        while self.pieces.front().is_some_and(|piece| piece.range.end <= from) {
            self.pieces.pop_front();
        }
    }

    fn forget_all(&mut self) -> VecDeque<BlockInFlight> {
        self.pieces.clear();
        (self.runs, self.bytes, self.window) = (0, 0, FlightWindow::new(WINDOW_BYTES_MIN));
        std::mem::take(&mut self.waiting)
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn range_of(request: &BlockRequest) -> Range<u64> {
    request.offset..request.offset + u64::from(request.length)
}

impl<D: BlockDevice> ReadAheadLayer<D> {
    /// Wraps `device`, which must not be changed by other means.
    pub fn new(device: D) -> Self {
        let (epoch, below) = (device.epoch(), UnderlyingDevice::new(device));
        let (flights, streams, left) = (RisingMap::default(), VecDeque::new(), Vec::new());
        Self { below, flights, next_number: 0, streams, pace: PathPace::UNKNOWN, account: None, epoch, left }
    }

    /// As `new`: windows may be larger than [`WINDOW_BYTES_OWN`](super::WINDOW_BYTES_OWN), and take what is more from
    /// this account.
    #[must_use]
    pub fn within(self, account: Arc<MemoryAccount>) -> Self {
        Self { account: Some(account), ..self }
    }

    /// Bytes that are fetched or being fetched.
    pub fn fetched_bytes(&self) -> u64 {
        self.streams.iter().map(ReadAheadStream::fetched).map(|range| range.end - range.start).sum()
    }

    /// Drops fetched data if others may have changed the device, and submits the reads taken over from a snapshot.
    fn look_around(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        let epoch = self.below.device.epoch();
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            let streams = std::mem::take(&mut self.streams);
            for read in streams.into_iter().flat_map(|mut stream| stream.forget_all()) {
                self.pass_on(now, read, done);
            }
        }
        for read in std::mem::take(&mut self.left) {
            self.pass_on(now, read, done);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Submits the request to the device unchanged.
    fn pass_on(&mut self, now: Instant, mut request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let number = self.number();
        let payload = request.take_payload();
        let (op, offset, length, is_durable) = (request.op, request.offset, request.length, request.is_durable);
        self.flights.insert(number, request);
        let below = BlockRequest { op, offset, length, payload, is_durable, ..BlockRequest::flush(BlockId(number)) };
        self.below.act(done, |device, done| device.submit(now, below.launch(), done));
    }

    fn read(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let range = range_of(&request);
        let follows = |stream: &ReadAheadStream| stream.next == range.start || stream.holds(&range);
        let mut stream = match self.streams.iter().position(follows) {
            Some(at) => self.streams.remove(at).expect("it was found there"),
            None => {
                self.make_room(now, done);
                ReadAheadStream::starting_at(range.start, now)
            }
        };
        if !stream.is_fresh(now, &range) {
            for read in stream.forget_all() {
                self.pass_on(now, read, done);
            }
        }
        if stream.next == range.start {
            stream.runs = stream.runs.saturating_add(1);
        }
        stream.next = stream.next.max(range.end);
        (stream.bytes, stream.read_at) = (stream.bytes.saturating_add(request.length.into()), now);
        let begun_bytes = (4 * u64::from(request.length)).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_BEGUN_MAX);
        stream.window.begin_with(begun_bytes);
        if stream.runs > RUNS_MIN || stream.runs > 2 && stream.bytes >= RUN_BYTES_MIN {
            self.fetch(now, &mut stream, range.start, done);
        }
        if !stream.holds(&range) {
            self.streams.push_back(stream);
            return self.pass_on(now, request, done);
        }
        match stream.bytes(&range) {
            Some(data) => done.push(request.answer(data)),
            None => {
                if stream.window.grow(self.account.as_ref()) {
                    self.fetch(now, &mut stream, range.start, done);
                }
                if let Some(last) = stream.pieces.back() {
                    stream.window.note_full(last.number);
                }
                stream.waiting.push_back(request);
            }
        }
        stream.forget_used();
        self.streams.push_back(stream);
    }

    /// Requests pieces ahead of the stream, up to its window.
    fn fetch(
        &mut self,
        now: Instant,
        stream: &mut ReadAheadStream,
        from: u64,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let info = *self.below.device.info();
        let block = u64::from(info.block_bytes);
        let most = (PIECE_BYTES.min(info.request_bytes_max.into()) / block).max(1) * block;
        let until = stream.next.saturating_add(stream.window.bytes()).min(info.size_bytes);
        let mut at = if stream.pieces.is_empty() { from } else { stream.fetched().end };
        // Only whole pieces, so that a small advance does not cost a request each time. The end of the device is
        // shorter.
        while at < until && (at + most <= until || until == info.size_bytes || at < stream.next) {
            let range = at..(at + most).min(info.size_bytes);
            let number = self.number();
            stream.pieces.push_back(ReadAheadPiece { range: range.clone(), number, asked_at: now, data: None });
            let length = (range.end - range.start) as u32;
            self.below.act(done, |device, done| {
                device.submit(now, BlockRequest::read(BlockId(number), range.start, length).launch(), done);
            });
            at = range.end;
        }
    }

    /// Drops the least recently used stream if there are too many.
    fn make_room(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        if self.streams.len() < STREAMS_MAX {
            return;
        }
        if let Some(mut stream) = self.streams.pop_front() {
            for read in stream.forget_all() {
                self.pass_on(now, read, done);
            }
        }
    }

    /// A change of this place has completed: drops the streams that fetched from it.
    fn forget(&mut self, now: Instant, range: &Range<u64>, done: &mut CompletionQueue<BlockCompletion>) {
        let mut reads = VecDeque::new();
        for stream in self.streams.iter_mut().filter(|stream| overlap(&stream.fetched(), range)) {
            reads.append(&mut stream.forget_all());
        }
        for read in reads {
            self.pass_on(now, read, done);
        }
    }

    /// Handles what the device has completed.
    fn collect(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        while let Some(answer) = self.below.pop() {
            done.pool.recycle(answer.spent);
            match self.flights.remove(answer.id.0) {
                Some(request) => {
                    let is_change = request.op.is_change();
                    let range = range_of(&request);
                    if is_change {
                        self.forget(now, &range, done);
                    }
                    done.push(match answer.result {
                        Ok(()) => request.answer(answer.payload),
                        Err(error) => request.fail(error),
                    });
                }
                None => self.take_piece(now, answer.id.0, answer.result, answer.payload, done),
            }
        }
    }

    fn take_piece(
        &mut self,
        now: Instant,
        number: u64,
        result: Result<(), StoreError>,
        mut data: Payload,
        done: &mut CompletionQueue<BlockCompletion>,
    ) {
        let of = |stream: &ReadAheadStream| stream.pieces.binary_search_by_key(&number, |piece| piece.number).ok();
        let Some((stream, at)) = self.streams.iter_mut().find_map(|stream| of(stream).map(|at| (stream, at))) else {
            // The stream that it was fetched for has been dropped.
            return done.pool.recycle(data);
        };
        if result.is_err() {
            // Each read asks for its own place again and gets that place's error.
            for read in stream.forget_all() {
                self.pass_on(now, read, done);
            }
            return;
        }
        self.pace.note(stream.pieces[at].asked_at, now);
        stream.window.complete(number, self.pace);
        data.share();
        stream.pieces[at].data = Some(data);
        let mut still_waiting = VecDeque::new();
        for read in std::mem::take(&mut stream.waiting) {
            match stream.bytes(&range_of(&read)) {
                Some(data) => done.push(read.answer(data)),
                None => still_waiting.push_back(read),
            }
        }
        stream.waiting = still_waiting;
        stream.forget_used();
    }
}

impl<D: BlockDevice> BlockLayer for ReadAheadLayer<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.below.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.below.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut CompletionQueue<BlockCompletion>,
        act: impl FnOnce(&mut D, &mut CompletionQueue<BlockCompletion>) -> R,
    ) -> R {
        self.look_around(now, done);
        let result = self.below.act(done, act);
        self.collect(now, done);
        result
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let expiry = self.streams.iter().filter_map(ReadAheadStream::expiry).min();
        self.below.device.poll_timeout().into_iter().chain(expiry).min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue<BlockCompletion>) {
        self.streams.retain(|stream| stream.expiry().is_none_or(|at| at > now));
        if self.below.device.poll_timeout().is_some_and(|at| at <= now) {
            self.with_inner(now, done, |device, done| device.handle_timeout(now, done));
        }
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        self.look_around(now, done);
        match request.op {
            BlockOp::Read if request.length > 0 && self.epoch.is_some() => self.read(now, request, done),
            _ => self.pass_on(now, request, done),
        }
        self.collect(now, done);
    }

    fn save(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut to = SnapshotWriter::new(AHEAD_KIND);
        to.bytes(&self.below.device.save(now)?);
        to.u64(self.next_number);
        to.count(self.flights.len());
        for (number, request) in self.flights.iter() {
            to.u64(number);
            to.block_request(request);
        }
        // Reads that wait for pieces are submitted unchanged by the replacement.
        let waiting = || self.streams.iter().flat_map(|stream| &stream.waiting).chain(&self.left);
        to.count(waiting().count());
        waiting().for_each(|read| to.block_request(read));
        Some(to.into_bytes())
    }

    fn leave(&mut self) {
        self.below.device.leave();
        let waiting = std::mem::take(&mut self.streams).into_iter().flat_map(|stream| stream.waiting);
        let passed = std::mem::take(&mut self.flights).into_values();
        passed.chain(waiting).chain(self.left.drain(..)).for_each(|request| drop(request.recall()));
    }
}

impl<D: BlockDevice> ReadAheadLayer<D> {
    /// Restores the layer from a snapshot. `device` restores the device below from the first part of the bytes and
    /// returns the requests that it has in flight. Returns the layer with the requests that it has to answer.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent. The device below has been left ([`BlockDevice::leave`]).
    pub fn restore<E: From<ProtocolViolation>>(
        from: &mut FieldReader<'_>,
        device: impl FnOnce(&[u8]) -> Result<(D, PendingBlockRequests), E>,
    ) -> Result<(Self, PendingBlockRequests), E> {
        let bytes = from.bytes("device")?;
        let next_number = from.u64("next number")?;
        let (mut passed, mut left) = (Vec::new(), Vec::new());
        for _ in 0..from.count("requests", 34)? {
            passed.push((from.u64("number")?, from.block_request()?));
        }
        for _ in 0..from.count("reads", 26)? {
            left.push(from.block_request()?);
        }
        let (device, below) = device(bytes)?;
        let mut this = Self { next_number, ..Self::new(device) };
        match this.check_saved(&passed, &left, &below) {
            Ok(pending) => {
                passed.sort_unstable_by_key(|(number, _)| *number);
                passed.into_iter().for_each(|(number, request)| this.flights.insert(number, request.launch()));
                this.left = left.into_iter().map(BlockRequest::launch).collect();
                Ok((this, pending))
            }
            Err(reject) => {
                this.below.device.leave();
                Err(reject.into())
            }
        }
    }

    /// Checks the snapshot against the device's requests; returns the requests that this layer has to answer.
    fn check_saved(
        &self,
        passed: &[(u64, BlockRequest)],
        left: &[BlockRequest],
        below: &PendingBlockRequests,
    ) -> Result<PendingBlockRequests, ProtocolViolation> {
        let mut pending = PendingBlockRequests::new();
        let wrong = |request: &BlockRequest, rule| ProtocolViolation::new("request", request.id.0, rule);
        for request in passed.iter().map(|(_, request)| request).chain(left) {
            let what = (request.op, request.offset, request.length);
            if !request.payload.is_empty() || pending.insert(request.id, what).is_some() {
                return Err(wrong(request, "its data is with the device, and its id names it alone"));
            }
        }
        if let Some(change) =
            left.iter().find(|read| read.op != BlockOp::Read || self.below.device.info().check(read).is_err())
        {
            return Err(wrong(change, "reads wait, within the device"));
        }
        let mut known = BTreeMap::new();
        for (number, request) in passed {
            let what = (request.op, request.offset, request.length);
            if below.get(&BlockId(*number)) != Some(&what) || known.insert(*number, ()).is_some() {
                return Err(wrong(request, "the device below was asked for it, once"));
            }
        }
        // All other requests to the device must be reads ahead.
        let is_ahead = |(id, (op, ..)): (&BlockId, &(BlockOp, u64, u32))| {
            id.0 <= self.next_number && (known.contains_key(&id.0) || *op == BlockOp::Read)
        };
        match below.iter().all(is_ahead) {
            true => Ok(pending),
            false => {
                Err(ProtocolViolation::new("requests", below.len() as u64, "the device below was asked for these"))
            }
        }
    }
}
