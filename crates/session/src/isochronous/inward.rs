//! A stream from a device: requested ahead, kept until it is due, handed over at the device's pace.
//!
//! Enough requests of our own are with the device that it never runs out (the rule of the 2005 paper: q > RTT/x + 1).
//! The packets that they bring are numbered by the device's intervals and have a moment at which they are due; the
//! driver's requests are answered at these moments. A packet that has not arrived by then counts as missed, as on a
//! bus, and is dropped if it arrives later.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::limits::ISO_PACKETS_MAX;
use farbus_model::{
    CompletionQueue, EndpointDescriptor, Instant, Payload, Urb, UrbCompletion, UrbId, UrbInFlight, UrbStatus,
};

use super::frames::IsoFramePosition;
use super::orders::{IsoActionQueue, IsoPacketCounts, is_own, repeated};
use super::pace::{DEPTH_MAX, IsoStreamClock, StreamDirection, ns_between, ns_of};
use super::reach::RoundTripHistory;
use super::saved::{restore_place, restore_span, restore_urb, save_span};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Most requests of ours with the device: 0.4 s in steps of a millisecond, and less than half of what an exporter
/// allows.
const ASKED_MAX: usize = 400;
/// Bytes of these requests: a high-speed camera for a third of a second, and a quarter of what an exporter allows.
const ASKED_BYTES_MAX: u64 = 8 << 20;
/// If packets are late for this long, the device has left out intervals: the packets are renumbered.
const RENUMBER_AFTER: Duration = Duration::from_millis(50);
/// A driver that has not asked for this long has stopped.
const STOP_AFTER: Duration = Duration::from_millis(500);

/// A stream from a device.
#[derive(Debug)]
pub struct InwardStream {
    interval: Duration,
    frames: IsoFramePosition,
    /// Template of our requests: the driver's first request.
    pattern: Urb,
    /// The driver's requests.
    waiting: VecDeque<UrbInFlight>,
    /// The layer's own requests that the device has, in order.
    urbs: VecDeque<InwardUrb>,
    /// Number of the first packet of our next request.
    next: u64,
    /// Number of the packet that is handed over next.
    head: u64,
    /// The packets from `head` on, as far as they have arrived.
    packets: VecDeque<Option<InwardPacket>>,
    /// `None` until the first packet arrives. Its clock is at the end of what was handed over.
    pace: Option<IsoStreamClock>,
    /// Initial depth of the buffer.
    depth: Duration,
    late_since: Option<Instant>,
    counts: IsoPacketCounts,
}

/// A request of ours.
#[derive(Debug)]
struct InwardUrb {
    id: UrbId,
    /// The number of its first packet.
    first: u64,
    at: Instant,
}

/// A packet that arrived.
#[derive(Debug)]
struct InwardPacket {
    status: UrbStatus,
    data: Payload,
}

impl InwardStream {
    /// A stream that begins with this request. A packet comes each `interval`; `depth` is the initial buffer depth,
    /// from the known jitter.
    pub fn new(first: &Urb, interval: Duration, frames: IsoFramePosition, depth: Duration) -> Self {
        let mut pattern = Urb::data_in(first.id, first.endpoint, first.length);
        pattern.iso.clone_from(&first.iso);
        (pattern.interval, pattern.flags) = (first.interval, first.flags);
        pattern.flags.iso_asap = true;
        Self {
            interval,
            frames,
            pattern,
            waiting: VecDeque::new(),
            urbs: VecDeque::new(),
            next: 0,
            head: 0,
            packets: VecDeque::new(),
            pace: None,
            depth,
            late_since: None,
            counts: IsoPacketCounts::default(),
        }
    }

    /// Takes a request of the driver.
    pub fn submit(&mut self, now: Instant, urb: UrbInFlight) {
        if self.waiting.is_empty()
            && let Some(pace) = &mut self.pace
        {
            // As on a bus, packets that the driver did not request in time are lost.
            let lost = (now - pace.now()).as_nanos() / self.interval.as_nanos().max(1);
            let lost = u64::try_from(lost).unwrap_or(u64::MAX);
            if lost > 0 {
                pace.leave_out(Duration::from_nanos(lost.saturating_mul(self.interval.as_nanos() as u64)));
                self.head += lost;
                self.packets.drain(..self.packets.len().min(usize::try_from(lost).unwrap_or(usize::MAX)));
                self.frames.pass(lost);
                self.counts.unclaimed += lost;
            }
        }
        self.waiting.push_back(urb);
    }

    /// Sends as many requests ahead as the round trip needs.
    pub fn ask_ahead(&mut self, now: Instant, reach: &RoundTripHistory, orders: &mut IsoActionQueue) {
        let span = self.span_of(self.pattern.iso.len()).as_nanos().max(1);
        let wanted = reach.ahead().as_nanos().div_ceil(span) + 2;
        let by_bytes = ASKED_BYTES_MAX / u64::from(self.pattern.length.max(1));
        let wanted = usize::try_from(wanted).unwrap_or(ASKED_MAX).min(ASKED_MAX).min(by_bytes.max(2) as usize);
        // Packets that wait for their moment are bounded as well, so that a device cannot fill memory.
        let kept_max = (DEPTH_MAX + reach.ahead()).as_nanos() / self.interval.as_nanos().max(1);
        if self.next == 0 {
            self.ask(now, self.first(), orders);
        }
        while self.urbs.len() < wanted && self.packets.len() as u128 <= kept_max {
            self.ask(now, self.pattern.clone(), orders);
        }
    }

    fn ask(&mut self, now: Instant, urb: Urb, orders: &mut IsoActionQueue) {
        let first = self.next;
        self.next += urb.iso.len() as u64;
        self.urbs.push_back(InwardUrb { id: orders.ask(urb), first, at: now });
    }

    /// The first request is as long as the buffer is deep: the second may then be late by that much without a gap at
    /// the device.
    fn first(&self) -> Urb {
        let depth = self.depth.as_nanos().div_ceil(self.interval.as_nanos().max(1));
        let count =
            usize::try_from(depth).unwrap_or(usize::MAX).clamp(self.pattern.iso.len(), ISO_PACKETS_MAX as usize);
        let mut urb = self.pattern.clone();
        (urb.iso, urb.length) = repeated(&self.pattern.iso, count, |packet| packet.length);
        urb
    }

    /// Handles the completion of a request of ours, if it belongs to this stream.
    ///
    /// # Errors
    /// The status with which the stream ended.
    pub fn handle_done(
        &mut self,
        now: Instant,
        done: UrbCompletion,
        reach: &mut RoundTripHistory,
    ) -> Result<(), UrbStatus> {
        let Some(at) = self.urbs.iter().position(|urb| urb.id == done.id) else { return Ok(()) };
        let InwardUrb { first, at, .. } = self.urbs.remove(at).expect("found just now");
        if let Some(residence) = done.residence {
            reach.note_longest((now - at).saturating_sub(residence));
        }
        match done.status {
            UrbStatus::Ok => {}
            // Something else cancelled it: its packets count as missed.
            UrbStatus::Cancelled => return Ok(()),
            status => return Err(status),
        }
        let count = done.iso.len() as u64;
        let (ahead_ns, next_ns) = (self.needed_ns(first), self.needed_ns(first + count));
        let whole_ns = ns_of(self.span_of(self.pattern.iso.len()));
        let depth = self.depth;
        // Starts the clock so that the following packets wait for the depth of the buffer.
        let pace = self.pace.get_or_insert_with(|| {
            let due = (now + depth).as_nanos().saturating_add_signed(whole_ns.saturating_sub(next_ns));
            IsoStreamClock::new(StreamDirection::In, Instant::from_nanos(due))
        });
        let slack_ns = ahead_ns.saturating_add(ns_between(now, pace.now()));
        pace.note(now, slack_ns, pace.shift_ns());
        if slack_ns >= 0 {
            self.late_since = None;
        } else if now - *self.late_since.get_or_insert(now) > RENUMBER_AFTER {
            self.renumber(slack_ns);
            return self.take_in(first + self.skipped(slack_ns), done);
        }
        self.take_in(first, done)
    }

    /// Time from the last handover to the handover of this packet. A packet is handed over with the whole request of
    /// the driver that contains it, whose boundaries need not be those of ours.
    fn needed_ns(&self, number: u64) -> i64 {
        let whole = i64::try_from(self.pattern.iso.len().max(1)).unwrap_or(i64::MAX);
        let requests = (number.cast_signed() - self.head.cast_signed()).div_euclid(whole) + 1;
        requests.saturating_mul(whole).saturating_mul(ns_of(self.interval))
    }

    /// The number of intervals by which late packets are renumbered.
    fn skipped(&self, slack_ns: i64) -> u64 {
        let late = Duration::from_nanos(slack_ns.unsigned_abs()) + self.depth;
        u64::try_from(late.as_nanos().div_ceil(self.interval.as_nanos().max(1))).unwrap_or(u64::MAX)
    }

    /// The device left out intervals: all open requests get later numbers.
    fn renumber(&mut self, slack_ns: i64) {
        let skipped = self.skipped(slack_ns);
        self.urbs.iter_mut().for_each(|inward_urb| inward_urb.first += skipped);
        self.next += skipped;
        self.late_since = None;
        if let Some(pace) = &mut self.pace {
            pace.forget();
        }
    }

    fn take_in(&mut self, first: u64, done: UrbCompletion) -> Result<(), UrbStatus> {
        let mut data = done.payload;
        for (number, packet) in (first..).zip(&done.iso) {
            let data = data.split_front(packet.actual as usize);
            let Some(position) = number.checked_sub(self.head) else {
                self.counts.late += 1;
                continue;
            };
            let position = usize::try_from(position).expect("what was asked for is bounded");
            if self.packets.len() <= position {
                self.packets.resize_with(position + 1, || None);
            }
            self.packets[position] = Some(InwardPacket { status: packet.status, data });
        }
        Ok(())
    }

    fn span_of(&self, packets: usize) -> Duration {
        self.interval * u32::try_from(packets).expect("a URB has 1024 packets at most")
    }

    /// When [`InwardStream::hand_over`] or a check of [`InwardStream::is_over`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pace = self.pace.as_ref()?;
        Some(match self.waiting.front() {
            Some(urb) => pace.after(self.span_of(urb.iso.len())),
            None => pace.now() + STOP_AFTER,
        })
    }

    /// Hands over the packets that are due.
    pub fn hand_over(&mut self, now: Instant, done: &mut CompletionQueue) {
        while let Some(pace) = &self.pace
            && let Some(urb) = self.waiting.front()
            && let span = self.interval * urb.iso.len() as u32
            && pace.after(span) <= now
        {
            self.pace.as_mut().expect("looked at just now").step(span);
            let urb = self.waiting.pop_front().expect("looked at just now");
            let answer = self.fill(urb, done);
            done.push(answer);
        }
    }

    fn fill(&mut self, urb: UrbInFlight, done: &mut CompletionQueue) -> UrbCompletion {
        let mut packets = urb.iso.clone();
        let mut buffer = done.pool.take(urb.length as usize);
        let mut at = 0;
        for packet in &mut packets {
            self.head += 1;
            self.counts.packets += 1;
            let Some(came) = self.packets.pop_front().flatten() else {
                (packet.actual, packet.status) = (0, UrbStatus::IsoMissed);
                self.counts.missed += 1;
                continue;
            };
            let room = packet.length as usize;
            let moved = came.data.copy_to(&mut buffer[at..at + room.min(came.data.len())]);
            let status = if came.data.len() > room { UrbStatus::Overflow } else { came.status };
            (packet.actual, packet.status) = (moved as u32, status);
            at += moved;
            done.pool.recycle(came.data);
        }
        buffer.truncate(at);
        let start_frame = self.frames.pass(packets.len() as u64);
        let mut answer = urb.done_iso(packets, buffer.into());
        answer.start_frame = start_frame;
        answer
    }

    /// Cancels a request of the driver, if it is one of these.
    pub fn cancel(&mut self, id: UrbId, done: &mut CompletionQueue) {
        if let Some(at) = self.waiting.iter().position(|urb| urb.id == id) {
            let urb = self.waiting.remove(at).expect("found just now");
            done.push(urb.fail(UrbStatus::Cancelled));
        }
    }

    /// Whether the driver has stopped using the stream.
    pub fn is_over(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.pace.as_ref().is_none_or(|pace| pace.now() + STOP_AFTER <= now)
    }

    /// Whether no request of the driver waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Withdraws all requests of ours.
    pub fn stop(&mut self, orders: &mut IsoActionQueue) {
        self.urbs.drain(..).for_each(|inward_urb| orders.withdraw(inward_urb.id));
    }

    /// Writes the stream to a snapshot: arrived packets and open requests.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.urb(&self.pattern);
        save_span(self.pace.as_ref().map_or(self.depth, IsoStreamClock::level), to);
        to.u32(self.frames.next());
        to.u64(self.next - self.head);
        to.count(self.waiting.len());
        self.waiting.iter().for_each(|urb| to.urb(urb));
        // Packets that are late already would be late in the other process, too.
        let open = || self.urbs.iter().filter(|urb| urb.first >= self.head);
        to.count(open().count());
        for urb in open() {
            to.u64(urb.id.0);
            to.u64(urb.first - self.head);
        }
        to.count(self.packets.len());
        for packet in &self.packets {
            // A packet that failed counts as missed after the handover.
            let data = packet.as_ref().filter(|packet| packet.status == UrbStatus::Ok).map(|packet| &packet.data);
            to.flag(data.is_some());
            data.into_iter().for_each(|data| to.payload(data));
        }
    }

    /// Restores a stream from a snapshot, together with the driver's requests, which are not launched yet. Its clock
    /// starts with the next packet.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(
        now: Instant,
        endpoint: &EndpointDescriptor,
        interval: Duration,
        frames: IsoFramePosition,
        from: &mut FieldReader<'_>,
    ) -> Result<(Self, Vec<Urb>), ProtocolViolation> {
        let pattern = restore_urb(endpoint, from)?;
        let depth = restore_span("depth", DEPTH_MAX, from)?;
        let frames = frames.going_on(from.u32("frame")?);
        let mut inward = Self::new(&pattern, interval, frames, depth);
        inward.next = restore_place("next packet", from)?;
        let count = from.count("requests", 8)?;
        let waiting = (0..count).map(|_| restore_urb(endpoint, from)).collect::<Result<_, _>>()?;
        for _ in 0..from.count("requests of ours", 16)? {
            let (id, first) = (UrbId(from.u64("request of ours")?), restore_place("packet", from)?);
            if !is_own(id) || first > inward.next {
                return Err(ProtocolViolation::new("packet", first, "what is asked for was asked for"));
            }
            inward.urbs.push_back(InwardUrb { id, first, at: now });
        }
        for _ in 0..from.count("packets", 1)? {
            let has_come = from.flag("packet")?;
            let data = if has_come { Some(from.payload("packet")?) } else { None };
            inward.packets.push_back(data.map(|data| InwardPacket { status: UrbStatus::Ok, data }));
        }
        Ok((inward, waiting))
    }

    /// Takes over the driver's requests from a snapshot.
    pub fn take_up(&mut self, waiting: Vec<Urb>) {
        self.waiting = waiting.into_iter().map(Urb::launch).collect();
    }

    /// The driver's requests.
    pub fn waiting(&self) -> impl Iterator<Item = &UrbInFlight> {
        self.waiting.iter()
    }

    /// Takes the driver's requests; the caller ends them.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = UrbInFlight> + '_ {
        self.waiting.drain(..)
    }

    /// By how much its clock was slewed, in nanoseconds; `None` before the first packet.
    pub fn drift_ns(&self) -> Option<i64> {
        self.pace.as_ref().map(IsoStreamClock::shift_ns)
    }

    /// Counts of packets, and of those lost.
    pub fn counts(&self) -> IsoPacketCounts {
        self.counts
    }

    /// The buffer depth that the observed jitter needs, for the next stream.
    pub fn depth(&self) -> Option<Duration> {
        self.pace.as_ref().filter(|pace| pace.slack_ns().is_some()).map(IsoStreamClock::depth)
    }
}
