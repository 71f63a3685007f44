//! A stream to a device: the driver is answered at the device's pace, and its packets reach the device before they are
//! due.
//!
//! The buffer that absorbs the path's jitter is the device's own queue. A stream begins with a lead-in of our packets,
//! and the driver's packets queue up behind them, so the exporter needs to know nothing of it. How long a request was
//! in the device's queue (the residence time in a timed reply) tells how early it was. The driver is answered a little
//! sooner or later accordingly, so that in the long run its clock is the device's.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::limits::ISO_PACKETS_MAX;
use farbus_model::{
    CompletionQueue, EndpointDescriptor, Instant, Payload, Urb, UrbCompletion, UrbId, UrbInFlight, UrbStatus,
};

use super::frames::IsoFramePosition;
use super::orders::{IsoActionQueue, IsoPacketCounts, is_own, repeated};
use super::pace::{DEPTH_MAX, IsoStreamClock, StreamDirection, ns_of};
use super::reach::RoundTripHistory;
use super::saved::{restore_span, restore_urb, save_span};
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Most requests with the device: 0.5 s in steps of a millisecond, and half of what an exporter allows.
const SENT_MAX: usize = 500;
/// Most by which the device may be behind, so that a lost link does not leave a delay of its own length.
const BEHIND_MAX: Duration = Duration::from_millis(100);
/// A driver that has sent nothing for this long starts a new stream.
const STOP_AFTER: Duration = Duration::from_millis(500);
/// Most packet statuses that are kept for the driver: those of one request.
const TOLD_LATER_MAX: usize = 1024;
/// A gap between two requests that is longer than this is a frame counter that restarted.
const GAP_FRAMES_MAX: u32 = 8000;

/// What is sent to the device ahead of the driver's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadIn {
    /// Zeros of the length of the driver's packets: silence, at the rate that the device expects.
    Zeros,
    /// Packets without data.
    Nothing,
}

/// A stream to a device.
#[derive(Debug)]
pub struct OutwardStream {
    interval: Duration,
    frames: IsoFramePosition,
    lead_in: LeadIn,
    /// Template of our requests: the driver's first request.
    pattern: Urb,
    /// The driver's open requests, each with the id of its copy that was sent, if any.
    waiting: VecDeque<(UrbInFlight, Option<UrbId>)>,
    /// Requests that the device has not answered.
    sent: VecDeque<OutwardUrb>,
    sent_span: Duration,
    /// The clock, at the end of what the driver was answered.
    pace: IsoStreamClock,
    /// Depth of the lead-in when the device's queue is filled.
    depth: Duration,
    /// Frame at which the device's next request should begin.
    expected_frame: Option<u32>,
    /// The latest lead-in in flight: slack of requests sent before it is not used.
    filled_with: Option<UrbId>,
    /// Failed packets' statuses of requests that the driver was already answered.
    told_later: VecDeque<UrbStatus>,
    counts: IsoPacketCounts,
}

#[derive(Debug)]
struct OutwardUrb {
    id: UrbId,
    /// `None` if another process sent it.
    at: Option<Instant>,
    span: Duration,
    shift_ns: i64,
    is_ours: bool,
}

impl OutwardStream {
    /// A stream that begins now, with a request like this; `depth` is the lead-in, from the known jitter.
    pub fn new(
        now: Instant,
        like: &Urb,
        interval: Duration,
        frames: IsoFramePosition,
        lead_in: LeadIn,
        depth: Duration,
    ) -> Self {
        Self {
            interval,
            frames,
            lead_in,
            pattern: copy_of(like, Payload::Empty),
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            sent_span: Duration::ZERO,
            pace: IsoStreamClock::new(StreamDirection::Out, now),
            depth,
            expected_frame: None,
            filled_with: None,
            told_later: VecDeque::new(),
            counts: IsoPacketCounts::default(),
        }
    }

    /// Takes a request of the driver.
    pub fn submit(
        &mut self,
        now: Instant,
        mut urb: UrbInFlight,
        reach: &RoundTripHistory,
        orders: &mut IsoActionQueue,
    ) {
        if self.waiting.is_empty() {
            let late = (now - self.pace.now()).as_nanos() / self.interval.as_nanos().max(1);
            self.frames.pass(u64::try_from(late).unwrap_or(u64::MAX));
            self.pace.wait_until(now);
        }
        let payload = urb.take_payload();
        if self.sent.is_empty() {
            // The stream begins, or the device has played everything: a new lead-in is needed.
            self.pace.forget();
            self.expected_frame = None;
            self.fill_up(now, orders);
        }
        let is_stuck = self.sent_span > reach.longest() + DEPTH_MAX + BEHIND_MAX || self.sent.len() >= SENT_MAX;
        if is_stuck {
            self.counts.dropped += urb.iso.len() as u64;
            self.waiting.push_back((urb, None));
            return;
        }
        let id = self.send(now, copy_of(&urb, payload), false, orders);
        self.waiting.push_back((urb, Some(id)));
    }

    fn send(&mut self, now: Instant, urb: Urb, is_ours: bool, orders: &mut IsoActionQueue) -> UrbId {
        let span = self.span_of(urb.iso.len());
        let id = orders.ask(urb);
        self.sent.push_back(OutwardUrb { id, at: Some(now), span, shift_ns: self.pace.shift_ns(), is_ours });
        self.sent_span += span;
        id
    }

    /// Sends a lead-in: the longer it is, the longer the device can wait for the driver's packets. It is one request,
    /// so that its packets travel together.
    fn fill_up(&mut self, now: Instant, orders: &mut IsoActionQueue) {
        let count = self.depth.as_nanos().div_ceil(self.interval.as_nanos().max(1)).min(ISO_PACKETS_MAX.into());
        let mut ours = self.pattern.clone();
        (ours.iso, ours.length) = repeated(&self.pattern.iso, count as usize, |packet| match self.lead_in {
            LeadIn::Zeros => packet.length,
            LeadIn::Nothing => 0,
        });
        ours.payload = Payload::pattern(&ZEROS, ours.length as usize);
        self.filled_with = Some(self.send(now, ours, true, orders));
    }

    fn span_of(&self, packets: usize) -> Duration {
        self.interval * u32::try_from(packets).expect("a URB has 1024 packets at most")
    }

    /// Handles the completion of a request of ours, if it belongs to this stream.
    ///
    /// # Errors
    /// The status with which the stream ended.
    pub fn handle_done(
        &mut self,
        now: Instant,
        done: &UrbCompletion,
        reach: &mut RoundTripHistory,
        orders: &mut IsoActionQueue,
    ) -> Result<(), UrbStatus> {
        let Some(at) = self.sent.iter().position(|sent| sent.id == done.id) else { return Ok(()) };
        let sent = self.sent.remove(at).expect("found just now");
        self.sent_span -= sent.span;
        if let (Some(at), Some(residence)) = (sent.at, done.residence) {
            reach.note_longest((now - at).saturating_sub(residence));
        }
        match done.status {
            UrbStatus::Ok => {}
            // The driver cancelled it.
            UrbStatus::Cancelled => return Ok(()),
            status => return Err(status),
        }
        let has_gap = self.note_frame(done);
        if sent.is_ours {
            if self.filled_with == Some(sent.id) {
                self.filled_with = None;
            }
            return Ok(());
        }
        for packet in done.iso.iter().filter(|packet| packet.status != UrbStatus::Ok) {
            if self.told_later.len() < TOLD_LATER_MAX {
                self.told_later.push_back(packet.status);
            }
        }
        // A request sent before the latest lead-in says nothing about the next ones.
        if self.filled_with.is_some() {
            return Ok(());
        }
        // Without a residence time from the exporter, the clock is not adjusted.
        let Some(residence) = done.residence else { return Ok(()) };
        let slack_ns = ns_of(residence) - ns_of(sent.span);
        self.pace.note(now, slack_ns, sent.shift_ns);
        if has_gap && slack_ns < ns_of(self.pace.margin()) {
            self.counts.underruns += 1;
            self.pace.forget();
            self.depth = (self.depth.max(self.pace.depth()) * 3 / 2).min(DEPTH_MAX);
            self.fill_up(now, orders);
        }
        Ok(())
    }

    /// Whether the device had nothing to play before this request.
    fn note_frame(&mut self, done: &UrbCompletion) -> bool {
        let next = done.start_frame.wrapping_add(self.frames.of(done.iso.len()));
        let expected = self.expected_frame.replace(next);
        expected.is_some_and(|expected| (1..GAP_FRAMES_MAX).contains(&done.start_frame.wrapping_sub(expected)))
    }

    /// When the driver is answered next, or the stream may be over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.waiting.front() {
            Some((urb, _)) => Some(self.pace.after(self.span_of(urb.iso.len()))),
            // While requests are in flight, their completion triggers the check.
            None => self.sent.is_empty().then(|| self.pace.now() + STOP_AFTER),
        }
    }

    /// Answers the requests that are due.
    pub fn answer(&mut self, now: Instant, done: &mut CompletionQueue) {
        while let Some((urb, _)) = self.waiting.front()
            && let span = self.span_of(urb.iso.len())
            && self.pace.after(span) <= now
        {
            self.pace.step(span);
            let (urb, _) = self.waiting.pop_front().expect("looked at just now");
            let mut packets = urb.iso.clone();
            for packet in &mut packets {
                packet.actual = packet.length;
                packet.status = self.told_later.pop_front().unwrap_or_default();
            }
            self.counts.packets += packets.len() as u64;
            let start_frame = self.frames.pass(packets.len() as u64);
            let mut answer = urb.done_iso(packets, Payload::Empty);
            answer.start_frame = start_frame;
            done.push(answer);
        }
    }

    /// Cancels a request of the driver, if it is one of these.
    pub fn cancel(&mut self, id: UrbId, orders: &mut IsoActionQueue, done: &mut CompletionQueue) {
        if let Some(at) = self.waiting.iter().position(|(urb, _)| urb.id == id) {
            let (urb, sent) = self.waiting.remove(at).expect("found just now");
            sent.into_iter().for_each(|id| orders.withdraw(id));
            done.push(urb.fail(UrbStatus::Cancelled));
        }
    }

    /// Whether the driver has stopped, and everything was played.
    pub fn is_over(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && self.pace.now() + STOP_AFTER <= now
    }

    /// Whether the device still has packets that the driver was told are played.
    pub fn is_playing(&self) -> bool {
        self.sent.iter().any(|sent| !sent.is_ours)
    }

    /// Whether no request of the driver waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Withdraws all requests of ours.
    pub fn stop(&mut self, orders: &mut IsoActionQueue) {
        self.sent.drain(..).for_each(|sent| orders.withdraw(sent.id));
        self.sent_span = Duration::ZERO;
    }

    /// Writes the stream to a snapshot; the requests that were sent stay with the device.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.urb(&self.pattern);
        to.flag(self.lead_in == LeadIn::Zeros);
        save_span(self.depth.max(self.pace.depth()), to);
        to.u32(self.frames.next());
        to.count(self.waiting.len());
        self.waiting.iter().for_each(|(urb, _)| to.urb(urb));
        to.count(self.sent.len());
        for sent in &self.sent {
            to.u64(sent.id.0);
            save_span(sent.span, to);
            to.flag(sent.is_ours);
        }
    }

    /// Restores a stream from a snapshot, together with the driver's requests, which are not launched yet. Requests
    /// sent by the other process do not adjust the clock.
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
        let lead_in = if from.flag("lead-in")? { LeadIn::Zeros } else { LeadIn::Nothing };
        let depth = restore_span("depth", DEPTH_MAX, from)?;
        let frames = frames.going_on(from.u32("frame")?);
        let mut outward = Self::new(now, &pattern, interval, frames, lead_in, depth);
        let count = from.count("requests", 8)?;
        let waiting = (0..count).map(|_| restore_urb(endpoint, from)).collect::<Result<_, _>>()?;
        for _ in 0..from.count("requests sent", 17)? {
            let id = UrbId(from.u64("request of ours")?);
            let span = restore_span("span", interval * ISO_PACKETS_MAX, from)?;
            if !is_own(id) {
                return Err(ProtocolViolation::new("request of ours", id.0, "its name is one of ours"));
            }
            let is_ours = from.flag("lead-in")?;
            outward.sent.push_back(OutwardUrb { id, at: None, span, shift_ns: 0, is_ours });
            outward.sent_span += span;
        }
        Ok((outward, waiting))
    }

    /// Takes over the driver's requests from a snapshot; all of them were sent.
    pub fn take_up(&mut self, waiting: Vec<Urb>) {
        self.waiting = waiting.into_iter().map(|urb| (urb.launch(), None)).collect();
    }

    /// The driver's requests.
    pub fn waiting(&self) -> impl Iterator<Item = &UrbInFlight> {
        self.waiting.iter().map(|(urb, _)| urb)
    }

    /// Takes the driver's requests; the caller ends them.
    pub fn take_waiting(&mut self) -> impl Iterator<Item = UrbInFlight> + '_ {
        self.waiting.drain(..).map(|(urb, _)| urb)
    }

    /// By how much its clock was slewed, in nanoseconds.
    pub fn drift_ns(&self) -> i64 {
        self.pace.shift_ns()
    }

    /// Counts of its packets.
    pub fn counts(&self) -> IsoPacketCounts {
        self.counts
    }

    /// The depth that the observed jitter needs, for the next stream.
    pub fn depth(&self) -> Option<Duration> {
        self.pace.slack_ns().map(|_| self.pace.depth())
    }
}

/// Silence for the lead-in.
static ZEROS: [u8; 4096] = [0; 4096];

/// A copy of a request with another payload; the id is set when it is sent.
fn copy_of(urb: &Urb, payload: Payload) -> Urb {
    let mut copy = Urb::data_out(urb.id, urb.endpoint, payload);
    (copy.length, copy.interval, copy.flags) = (urb.length, urb.interval, urb.flags);
    copy.flags.iso_asap = true;
    copy.iso.clone_from(&urb.iso);
    copy
}
