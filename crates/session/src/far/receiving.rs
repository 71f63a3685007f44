//! Receives interrupt and bulk data before the user asks for it.
//!
//! At an endpoint that sends by itself, the layer keeps enough requests of its own with the device to bridge the
//! distance. What arrives is handed to the user's requests in order. The user sees the same device with a longer queue:
//!
//! | what happens | result |
//! |---|---|
//! | data arrives and no request waits | it is kept for the next request; when the queue is full, the device is asked no further |
//! | a request is cancelled | it ends; its data goes to the next request |
//! | the last request is cancelled | after [`LINGER`] the device is asked no further; data that arrived by then is kept |
//! | a transfer fails | earlier data is delivered first, then the failure ends one request, once; then the device is asked again if a request still waits |
//! | a transfer fills our request completely | a longer request of the user is filled with what follows, as a device would do |
//! | a transfer is longer than the user's request | the rest goes to the next request; within a packet it is an overflow |
//! | CLEAR_FEATURE(halt) | our requests are withdrawn first; data is kept, an undelivered stall is dropped |
//! | SET_INTERFACE, SET_CONFIGURATION, SET_FEATURE(halt) | our requests are withdrawn first; data that arrived is dropped |
//! | a reset | the user's requests end, data that arrived is dropped |

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::limits::{AHEAD_BYTES_MAX, AHEAD_URBS_MAX};
use farbus_model::{
    CompletionQueue, EpAddr, Instant, Payload, TransferType, Urb, UrbCompletion, UrbId, UrbInFlight, UrbStatus,
};
use farbus_wire::native::usb::{status_code, status_of};

use super::actions::FarActionQueue;
use super::ways::PrefetchPlan;
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// How long an endpoint is still asked after its user cancelled the last request. A program that waits with a timeout
/// asks again at once; one that has ended does not.
pub const LINGER: Duration = Duration::from_millis(100);
/// A request that follows the previous completion this quickly shows that the user wants everything as fast as it
/// comes.
pub const PROMPT: Duration = Duration::from_millis(10);

/// Limits for all endpoints together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchBudget {
    /// Most requests with the device.
    pub requests: usize,
}

/// All endpoints that are received ahead.
#[derive(Debug, Default)]
pub struct EndpointPrefetch {
    streams: Vec<PrefetchStream>,
    /// Counts of this process.
    counts: PrefetchCounts,
}

/// Counts of what arrived before the user asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchCounts {
    /// Transfers that arrived before their request.
    pub ahead: u64,
    /// Those of them that were dropped because the user never asked for them.
    pub thrown_away: u64,
}

/// An endpoint that is received ahead.
#[derive(Debug)]
struct PrefetchStream {
    way: PrefetchPlan,
    /// Length of the user's latest request; ours have the same.
    length: u32,
    interval: u32,
    /// Target number of transfers with the device or waiting here.
    window: usize,
    /// The user's requests.
    waiting: VecDeque<UrbInFlight>,
    /// Our requests, with their lengths.
    requested: VecDeque<(UrbId, u32)>,
    arrived: VecDeque<PrefetchedTransfer>,
    bytes: usize,
    phase: PrefetchPhase,
    /// Whether a failure has come since the device was last asked: later failures have the same cause.
    has_failed: bool,
    /// The device is not asked before these requests of the user have ended.
    barred_by: Vec<UrbId>,
    left_at: Option<Instant>,
    delivered_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefetchPhase {
    /// The device is being asked.
    Running,
    /// Our requests are being withdrawn.
    Stopping,
    /// The device is not asked.
    Resting,
}

const PHASES: [PrefetchPhase; 3] = [PrefetchPhase::Running, PrefetchPhase::Stopping, PrefetchPhase::Resting];

/// What one of our requests returned.
#[derive(Debug)]
struct PrefetchedTransfer {
    status: UrbStatus,
    /// It ended with a short packet: what follows does not belong to it.
    ends: bool,
    data: Payload,
}

impl EndpointPrefetch {
    /// Counts of all endpoints.
    pub fn counts(&self) -> PrefetchCounts {
        self.counts
    }

    /// Whether this endpoint is received ahead.
    pub fn has(&self, endpoint: EpAddr) -> bool {
        self.streams.iter().any(|stream| stream.way.endpoint == endpoint)
    }

    /// Begins to receive this endpoint ahead, once these requests of the user have ended.
    pub fn begin(&mut self, way: PrefetchPlan, barred_by: Vec<UrbId>) {
        self.streams.push(PrefetchStream {
            way,
            length: 0,
            interval: 0,
            window: way.window_first,
            waiting: VecDeque::new(),
            requested: VecDeque::new(),
            arrived: VecDeque::new(),
            bytes: 0,
            phase: PrefetchPhase::Resting,
            has_failed: false,
            barred_by,
            left_at: None,
            delivered_at: None,
        });
    }

    fn requests(&self) -> usize {
        self.streams.iter().map(|stream| stream.requested.len()).sum()
    }

    fn fill(&mut self, at: usize, budget: PrefetchBudget, actions: &mut FarActionQueue) {
        let mut left = budget.requests.saturating_sub(self.requests());
        self.streams[at].fill(&mut left, actions);
    }

    /// Takes a request of the user for an endpoint that is received ahead.
    ///
    /// # Panics
    /// If the endpoint is not received ahead: see [`EndpointPrefetch::has`].
    pub fn submit(
        &mut self,
        now: Instant,
        urb: UrbInFlight,
        budget: PrefetchBudget,
        actions: &mut FarActionQueue,
        done: &mut CompletionQueue,
    ) {
        let at = self.streams.iter().position(|stream| stream.way.endpoint == urb.endpoint);
        let at = at.expect("its user knows that it is received ahead");
        self.streams[at].take_in(now, urb, done);
        self.fill(at, budget, actions);
    }

    /// Cancels a request of the user; returns whether it is one of these.
    pub fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) -> bool {
        self.streams.iter_mut().any(|stream| stream.cancel(now, id, done))
    }

    /// A request of the layer's own has completed; returns it if it is not one of these.
    pub fn handle_done(
        &mut self,
        now: Instant,
        answer: UrbCompletion,
        budget: PrefetchBudget,
        actions: &mut FarActionQueue,
        done: &mut CompletionQueue,
    ) -> Option<UrbCompletion> {
        let is_of = |stream: &PrefetchStream| stream.requested.iter().any(|(id, _)| *id == answer.id);
        let Some(at) = self.streams.iter().position(is_of) else { return Some(answer) };
        let stream = &mut self.streams[at];
        let (is_first, before) = (stream.waiting.is_empty(), stream.arrived.len());
        stream.note(answer, actions);
        self.counts.ahead += u64::from(is_first && stream.arrived.len() > before);
        stream.deliver(now, done);
        // Kept data must not pin a receive buffer.
        if let Some(last) = stream.arrived.back_mut() {
            last.data.own();
        }
        self.fill(at, budget, actions);
        None
    }

    /// Withdraws our requests at these endpoints. Returns whether the device has none of them any more.
    pub fn rest(&mut self, concerns: impl Fn(EpAddr) -> bool, actions: &mut FarActionQueue) -> bool {
        let mut is_at_rest = true;
        for stream in self.streams.iter_mut().filter(|stream| concerns(stream.way.endpoint)) {
            stream.stop(actions);
            is_at_rest &= stream.requested.is_empty();
        }
        is_at_rest
    }

    /// Stops asking these endpoints until this request of the user has ended.
    pub fn bar(&mut self, concerns: impl Fn(EpAddr) -> bool, by: UrbId) {
        let concerned = self.streams.iter_mut().filter(|stream| concerns(stream.way.endpoint));
        concerned.for_each(|stream| stream.barred_by.push(by));
    }

    /// The request `by` has ended: the endpoints that waited for it are asked again.
    pub fn unbar(&mut self, by: UrbId, budget: PrefetchBudget, actions: &mut FarActionQueue) {
        for at in 0..self.streams.len() {
            let before = self.streams[at].barred_by.len();
            self.streams[at].barred_by.retain(|id| *id != by);
            if self.streams[at].barred_by.len() < before {
                self.fill(at, budget, actions);
            }
        }
    }

    /// A halt is cleared: a stall that was not delivered yet is dropped.
    pub fn forgive(&mut self, endpoint: EpAddr) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.way.endpoint == endpoint) {
            let before = stream.arrived.len();
            stream.arrived.retain(|arrival| arrival.status != UrbStatus::Stall);
            self.counts.thrown_away += (before - stream.arrived.len()) as u64;
            stream.bytes = stream.bytes_here();
        }
    }

    /// Drops these endpoints with their data, and ends the requests that wait.
    pub fn forget(&mut self, concerns: impl Fn(EpAddr) -> bool, done: &mut CompletionQueue) {
        for stream in self.streams.extract_if(.., |stream| concerns(stream.way.endpoint)) {
            self.counts.thrown_away += stream.arrived.len() as u64;
            stream.waiting.into_iter().for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
        }
    }

    /// When [`EndpointPrefetch::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.streams.iter().filter_map(|stream| Some(stream.left_at? + LINGER)).min()
    }

    /// Stops asking endpoints that the user no longer asks.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut FarActionQueue) {
        for stream in &mut self.streams {
            if stream.left_at.take_if(|at| *at + LINGER <= now).is_some() {
                stream.stop(actions);
            }
        }
    }

    /// The user's requests that wait here.
    pub fn waiting(&self) -> impl Iterator<Item = &Urb> {
        self.streams.iter().flat_map(|stream| &stream.waiting).map(|urb| &**urb)
    }

    /// Transfers that have arrived and were not requested by the user yet.
    pub fn arrived(&self) -> usize {
        self.streams.iter().map(|stream| stream.arrived.len()).sum()
    }

    /// Lets go of the waiting requests: another process answers them.
    pub fn hand_over(&mut self) {
        self.streams.drain(..).flat_map(|stream| stream.waiting).for_each(|urb| drop(urb.recall()));
    }
}

impl PrefetchStream {
    fn take_in(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        (self.length, self.interval, self.left_at) = (urb.length, urb.interval, None);
        self.waiting.push_back(urb);
        let is_prompt = self.delivered_at.is_some_and(|at| now - at <= PROMPT);
        if is_prompt && self.window < self.way.window_max {
            // One more for each request: the window doubles with each round trip.
            self.window = (self.window.max(self.waiting.len()) + 1).min(self.way.window_max);
        }
        self.deliver(now, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) -> bool {
        let Some(at) = self.waiting.iter().position(|urb| urb.id == id) else { return false };
        let urb = self.waiting.remove(at).expect("found just now");
        done.push(urb.fail(UrbStatus::Cancelled));
        if self.waiting.is_empty() && self.phase == PrefetchPhase::Running {
            self.left_at = Some(now);
        }
        true
    }

    fn stop(&mut self, actions: &mut FarActionQueue) {
        if self.phase == PrefetchPhase::Running {
            // Newest first: data that comes meanwhile then belongs to the oldest.
            self.requested.iter().rev().for_each(|(id, _)| actions.withdraw(*id));
            self.phase = PrefetchPhase::Stopping;
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.phase == PrefetchPhase::Stopping && self.requested.is_empty() {
            (self.phase, self.has_failed) = (PrefetchPhase::Resting, false);
        }
    }

    fn note(&mut self, answer: UrbCompletion, actions: &mut FarActionQueue) {
        let at = self.requested.iter().position(|(id, _)| *id == answer.id).expect("looked for before");
        let (_, length) = self.requested.remove(at).expect("found just now");
        self.bytes -= length as usize;
        let UrbCompletion { status, actual, payload, .. } = answer;
        let is_news = match status {
            UrbStatus::Ok => true,
            // A cancelled request may have data.
            UrbStatus::Cancelled => actual > 0,
            _ => actual > 0 || !self.has_failed,
        };
        if is_news {
            let is_failure = !matches!(status, UrbStatus::Ok | UrbStatus::Cancelled);
            let ends = actual < length;
            self.bytes += payload.len();
            let status = if is_failure { status } else { UrbStatus::Ok };
            self.arrived.push_back(PrefetchedTransfer { status, ends, data: payload });
            if is_failure {
                self.stop(actions);
                self.has_failed = self.phase == PrefetchPhase::Stopping;
            }
        }
        self.settle();
    }

    /// Hands arrived data to the waiting requests.
    fn deliver(&mut self, now: Instant, done: &mut CompletionQueue) {
        while let Some(urb) = self.waiting.front()
            && let Some((status, data)) = self.take(urb.length)
        {
            let urb = self.waiting.pop_front().expect("looked at just now");
            let actual = data.len() as u32;
            let is_short = status == UrbStatus::Ok && actual < urb.length && urb.flags.short_not_ok;
            done.push(urb.done(if is_short { UrbStatus::Short } else { status }, actual, data));
            self.delivered_at = Some(now);
        }
    }

    /// The outcome of a request of this length, if enough has arrived.
    fn take(&mut self, length: u32) -> Option<(UrbStatus, Payload)> {
        let (mut total, mut count, mut is_over) = (0, 0, false);
        for arrival in &self.arrived {
            total += arrival.data.len();
            count += 1;
            is_over = total >= length as usize || arrival.ends || arrival.status != UrbStatus::Ok;
            if is_over {
                break;
            }
        }
        if !is_over {
            return None;
        }
        let mut last = self.arrived.remove(count - 1).expect("counted just now");
        let room = length as usize - (total - last.data.len()).min(length as usize);
        let (mut status, mut data) = (last.status, last.data.split_front(room));
        if count > 1 {
            let before = self.arrived.drain(..count - 1).map(|arrival| arrival.data);
            data = Payload::joined(before.chain([data]));
        }
        self.bytes -= data.len();
        if !last.data.is_empty() {
            // Devices send whole packets, so the user's request ends at a packet boundary or overflows.
            let begun = length as usize % usize::from(self.way.packet_bytes.max(1));
            status = UrbStatus::Ok;
            if begun > 0 {
                status = UrbStatus::Overflow;
                let lost = last.data.split_front(usize::from(self.way.packet_bytes) - begun);
                self.bytes -= lost.len();
            }
            if !last.data.is_empty() {
                self.arrived.push_front(last);
            }
        }
        Some((status, data))
    }

    fn bytes_here(&self) -> usize {
        let requested_bytes: usize = self.requested.iter().map(|(_, length)| *length as usize).sum();
        requested_bytes + self.arrived.iter().map(|arrival| arrival.data.len()).sum::<usize>()
    }

    /// Sends the device as many requests as the limits allow.
    fn fill(&mut self, left: &mut usize, actions: &mut FarActionQueue) {
        let is_failing = self.arrived.back().is_some_and(|arrival| arrival.status != UrbStatus::Ok);
        if self.phase == PrefetchPhase::Stopping || !self.barred_by.is_empty() || is_failing {
            return;
        }
        if self.phase == PrefetchPhase::Resting {
            if self.waiting.is_empty() {
                return;
            }
            self.phase = PrefetchPhase::Running;
        }
        let target = self.window.max(self.waiting.len()).min(AHEAD_URBS_MAX);
        loop {
            let has_room = self.requested.len() + self.arrived.len() < target
                && self.bytes + self.length as usize <= AHEAD_BYTES_MAX
                && *left > 0;
            // Exceeds the limits with one request if the user waits and none is with the device.
            if !has_room && (self.waiting.is_empty() || !self.requested.is_empty()) {
                return;
            }
            let mut urb = Urb::data_in(UrbId(0), self.way.endpoint, self.length);
            if self.way.kind == TransferType::Interrupt {
                urb.interval = self.interval;
            }
            self.requested.push_back((actions.ask(urb), self.length));
            self.bytes += self.length as usize;
            *left = left.saturating_sub(1);
        }
    }
}

impl EndpointPrefetch {
    /// Writes it to a snapshot; the device saves the requests that it has.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.streams.len());
        for stream in &self.streams {
            to.u8(stream.way.endpoint.as_byte());
            to.u32(stream.length);
            to.u32(stream.interval);
            to.count(stream.window);
            to.u8(PHASES.iter().position(|phase| *phase == stream.phase).expect("all are listed") as u8);
            to.flag(stream.has_failed);
            to.count(stream.barred_by.len());
            stream.barred_by.iter().for_each(|id| to.u64(id.0));
            to.flag(stream.left_at.is_some());
            to.count(stream.requested.len());
            for (id, length) in &stream.requested {
                to.u64(id.0);
                to.u32(*length);
            }
            to.count(stream.arrived.len());
            for PrefetchedTransfer { status, ends, data } in &stream.arrived {
                to.u8(status_code(*status));
                to.flag(*ends);
                to.payload(data);
            }
            to.count(stream.waiting.len());
            stream.waiting.iter().for_each(|urb| to.urb(urb));
        }
    }

    /// Restores it from a snapshot, together with the user's waiting requests, which [`EndpointPrefetch::launch`] takes
    /// once the whole snapshot is known to be valid. `way_of` says how an endpoint is received, `bars` whether a
    /// request is an open control request of the user, `take` whether the device has a request of ours with this id and
    /// length.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(
        now: Instant,
        from: &mut FieldReader<'_>,
        way_of: impl Fn(EpAddr) -> Option<PrefetchPlan>,
        bars: impl Fn(UrbId) -> bool,
        mut take: impl FnMut(UrbId, u32) -> bool,
    ) -> Result<(Self, Vec<Urb>), ProtocolViolation> {
        let (mut receiving, mut waiting) = (Self::default(), Vec::new());
        for _ in 0..from.count("endpoints", 2)? {
            let endpoint = from.u8("endpoint")?;
            let address = EpAddr::from_byte(endpoint & 0x8f);
            let way = way_of(address).filter(|_| !receiving.has(address));
            let way = way.ok_or(ProtocolViolation::new(
                "endpoint",
                endpoint.into(),
                "it is one that is received ahead, once",
            ))?;
            receiving.begin(way, Vec::new());
            let stream = receiving.streams.last_mut().expect("begun just now");
            (stream.length, stream.interval) = (from.u32("length")?, from.u32("interval")?);
            stream.window = (from.u32("window")? as usize).min(way.window_max);
            let phase = from.u8("phase")?;
            let known = PHASES.get(usize::from(phase)).copied();
            stream.phase = known.ok_or(ProtocolViolation::new("phase", phase.into(), "there is no such phase"))?;
            stream.has_failed = from.flag("failed")?;
            for _ in 0..from.count("barred", 8)? {
                let id = UrbId(from.u64("barred")?);
                if !bars(id) {
                    return Err(ProtocolViolation::new(
                        "barred",
                        id.0,
                        "it is a control request that was not answered",
                    ));
                }
                stream.barred_by.push(id);
            }
            stream.left_at = from.flag("left")?.then_some(now);
            for _ in 0..from.count("asked", 12)? {
                let (id, length) = (UrbId(from.u64("asked")?), from.u32("length")?);
                if !take(id, length) {
                    return Err(ProtocolViolation::new("asked", id.0, "what was asked is with the device, once"));
                }
                stream.requested.push_back((id, length));
            }
            for _ in 0..from.count("arrived", 6)? {
                let (status, ends, data) = (status_of(from.u8("status")?)?, from.flag("ends")?, from.payload("data")?);
                stream.arrived.push_back(PrefetchedTransfer { status, ends, data });
            }
            stream.bytes = stream.bytes_here();
            let is_resting = stream.phase == PrefetchPhase::Resting;
            let is_stopping = stream.phase == PrefetchPhase::Stopping;
            if (is_resting && !stream.requested.is_empty()) || (is_stopping && stream.requested.is_empty()) {
                return Err(ProtocolViolation::new(
                    "phase",
                    phase.into(),
                    "what is asked is with the device while it is waited for",
                ));
            }
            if stream.has_failed && !is_stopping {
                return Err(ProtocolViolation::new("failed", 1, "what is asked anew has not failed yet"));
            }
            for _ in 0..from.count("waiting", 8)? {
                let urb = from.urb()?;
                let is_plain = urb.direction == farbus_model::TransferDirection::In && urb.iso.is_empty();
                if urb.endpoint != address || !is_plain {
                    return Err(ProtocolViolation::new("waiting", urb.id.0, "it waits for this endpoint"));
                }
                waiting.push(urb);
            }
        }
        Ok((receiving, waiting))
    }

    /// Takes over the user's waiting requests.
    pub fn launch(&mut self, waiting: Vec<Urb>) {
        for urb in waiting {
            let stream = self.streams.iter_mut().find(|stream| stream.way.endpoint == urb.endpoint);
            stream.expect("it was read with its endpoint").waiting.push_back(urb.launch());
        }
    }
}
