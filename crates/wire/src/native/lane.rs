//! One ordered stream of frames that survives the loss of its links.
//!
//! Every counted frame has a number, its place in the stream; it is not transmitted, both ends count. The sender keeps
//! a frame until the receiver has acknowledged it. When a link is lost, the greeting of the next one says how many
//! frames its sender has received, and the other end continues with the next frame: each frame is processed exactly
//! once, wherever the link was cut.
//!
//! | at the moment of the cut the frame was | its receiver has counted it | what happens |
//! |---|---|---|
//! | waiting, or cut and unsent | no | it is sent over the next link |
//! | partly sent, or sent and lost | no | it is sent again, from its first byte |
//! | partly received | no | the part is dropped; it is sent again |
//! | received, its acknowledgement unsent or lost | yes | the greeting acknowledges it |
//! | acknowledged | yes | its sender has dropped it |

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use arrayvec::ArrayVec;
use farbus_model::{BufferPool, Instant, Payload};

use super::frame::{BODY_BYTES_MAX, FRAME_BYTES_MAX, FrameHeader, FrameKind, HEAD_BYTES};
use super::message::{OutboundMessage, PART_BYTES_MAX};
use super::queue::{CutFrame, FramePayload, SendQueue};
use crate::buffer::{RUNS_MAX, ReceiveBuffer, SendSlices};
use crate::reject::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// After this many received bytes, the next frame that is sent carries an acknowledgement with it. With one
/// acknowledgement for sixteen requests of 16 KiB, a block request and its reply stay below the paper's 32 bytes in all
/// (six would do).
const ACKNOWLEDGE_BYTES: usize = 256 << 10;
/// After this many received bytes, an acknowledgement is sent even if there is nothing else to send. Four times what 32
/// requests of 4 KiB bring: an importer that was answered soon makes the next request, and an acknowledgement alone
/// costs both ends a system call.
const ACKNOWLEDGE_BYTES_MAX: usize = 512 << 10;
/// After this many received frames, an acknowledgement is sent, however small they are: the frames that the sender
/// keeps for the next link stay in its caches, at a cost of an eighth of a byte per frame.
const ACKNOWLEDGE_FRAMES: u32 = 64;
/// Bytes that are cut into frames ahead of the link: one system call's worth. A frame that is cut cannot be overtaken
/// any more, so this is little where the link takes little; each time the link takes all, it doubles, up to a limit.
const CUT_AHEAD_BYTES_MIN: usize = 64 << 10;
/// The limit to which the bytes that are cut ahead grow from [`CUT_AHEAD_BYTES_MIN`].
const CUT_AHEAD_BYTES_MAX: usize = 1 << 20;

/// What a lane may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Size of the receive buffer, bytes.
    pub receive_bytes: usize,
    /// Size of the receive buffer, bytes, until so many bytes arrive at once that they fill it.
    pub first_receive_bytes: usize,
    /// Unacknowledged bytes, including their overhead, beyond which no more frames are cut.
    pub unacknowledged_bytes_max: usize,
}

impl LaneLimits {
    /// Receives into 256 KiB from the start, and cuts frames until as much is unacknowledged as one device may have in
    /// flight.
    pub const DEFAULT: LaneLimits = LaneLimits {
        receive_bytes: 256 << 10,
        first_receive_bytes: 256 << 10,
        unacknowledged_bytes_max: farbus_model::limits::CREDIT_BYTES_MAX,
    };
    /// As the default, for a process with a thousand sessions, of which few are busy: a receive buffer is small until
    /// it is filled.
    pub const SPARING: LaneLimits = LaneLimits { first_receive_bytes: 16 << 10, ..LaneLimits::DEFAULT };

    /// Bytes of idle buffers that a session keeps for reuse: a sixteenth of what may be unacknowledged.
    pub fn pool_bytes_max(&self) -> usize {
        self.unacknowledged_bytes_max / 16
    }
}

/// A lane's two directions.
#[derive(Debug)]
pub struct Lane {
    limits: LaneLimits,
    is_linked: bool,
    incoming: ReceiveBuffer,
    /// Counted frames that arrived.
    received: u64,
    /// Bytes received since the last acknowledgement, and frames.
    unthanked_bytes: usize,
    unthanked_frames: u32,
    waiting: SendQueue,
    sent: RetransmitQueue,
    /// How many bytes to cut ahead.
    cut_ahead_bytes: usize,
    /// The numbers of pings to answer.
    pongs: VecDeque<u64>,
    /// The number of the last pong.
    pong: Option<u64>,
    /// Whether anything that waits, or is partly sent, must go out at once.
    has_urgent: bool,
}

/// Pings that are answered at a time; beyond, the oldest are dropped.
const PONGS_MAX: usize = 4;
/// Uncounted frames that wait for the link: pongs and acknowledgements. A later acknowledgement makes an earlier one
/// redundant.
const UNCOUNTED_MAX: usize = 8;
/// Bookkeeping bytes per frame.
const FRAME_BYTES: usize = size_of::<RetransmitFrame>();

/// A payload up to this size is copied behind its head, which saves the kernel one run of memory.
const INLINE_PAYLOAD_BYTES: usize = 512;
/// Buffers of such payloads that wait for their pool.
const SPENT_MAX: usize = 64;

/// Cut frames: acknowledged ones are gone, the others may be needed again.
#[derive(Debug, Default)]
struct RetransmitQueue {
    frames: VecDeque<RetransmitFrame>,
    leads: FrameLeadBuffer,
    spent: ArrayVec<Payload, SPENT_MAX>,
    /// Counted frames that the receiver has acknowledged.
    acknowledged: u64,
    /// How many frames in `frames` are counted.
    counted: u64,
    uncounted: usize,
    /// The first frame that the link has not taken in full.
    next: usize,
    /// Bytes of that frame that the link has taken.
    next_taken: usize,
    /// Counted frames that some link took in full: no more can have arrived.
    taken: u64,
    /// Bytes that the link has not taken.
    untaken_bytes: usize,
    /// Bytes of all counted frames.
    kept_bytes: usize,
}

#[derive(Debug)]
struct RetransmitFrame {
    /// The place of head, part and small data in `leads`.
    lead: Range<u64>,
    is_counted: bool,
    carried: FramePayload,
}

impl RetransmitFrame {
    fn len(&self) -> usize {
        span(&self.lead) + self.carried.len()
    }
}

fn span(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// The beginnings of frames, one after the other, at places counted from the first one ever.
#[derive(Debug, Default)]
struct FrameLeadBuffer {
    bytes: Vec<u8>,
    /// The place of the first byte that is kept.
    first: u64,
}

impl FrameLeadBuffer {
    fn end(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }

    /// The bytes of a range; empty for an empty range, wherever it is.
    fn get(&self, range: Range<u64>) -> &[u8] {
        if range.is_empty() {
            return &[];
        }
        &self.bytes[(range.start - self.first) as usize..(range.end - self.first) as usize]
    }

    /// Drops what is before `place`.
    fn forget_before(&mut self, position: u64) {
        let gone = (position - self.first) as usize;
        // Moves bytes seldom: never more than the bytes dropped.
        if gone == self.bytes.len() || gone > self.bytes.len().div_ceil(2).max(LEADS_GONE_MIN) {
            self.bytes.drain(..gone);
            self.first = position;
        }
    }
}

/// Up to this many dropped bytes are left in place.
const LEADS_GONE_MIN: usize = 4 << 10;

/// A received frame.
#[derive(Clone, Debug)]
pub struct ReceivedFrame {
    /// The frame's kind, flags, attachment and tag, and the length of the body.
    pub head: FrameHeader,
    /// Its body: a window on the receive buffer.
    pub body: Payload,
}

impl Lane {
    /// A lane without a link.
    pub fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            is_linked: false,
            incoming: ReceiveBuffer::new(limits.receive_bytes)
                .beginning_with(limits.first_receive_bytes)
                .ahead(FRAME_BYTES_MAX),
            received: 0,
            unthanked_bytes: 0,
            unthanked_frames: 0,
            waiting: SendQueue::default(),
            sent: RetransmitQueue::default(),
            cut_ahead_bytes: CUT_AHEAD_BYTES_MIN,
            pongs: VecDeque::new(),
            pong: None,
            has_urgent: false,
        }
    }

    /// Counted frames that arrived: what a greeting says.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether the lane has a link.
    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// A link was made, whose greeting says how many frames its other end has received.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: it cannot have received so many, or had received more before. It is not the other end of this lane.
    pub fn handle_linked(&mut self, their_received: u64, pool: &mut BufferPool) -> Result<(), ProtocolViolation> {
        self.handle_lost();
        self.sent.acknowledge(their_received, self.sent.taken, pool)?;
        (self.is_linked, self.has_urgent) = (true, true);
        Ok(())
    }

    /// The link is lost. Complete frames stay; the other end sends incomplete ones again.
    pub fn handle_lost(&mut self) {
        self.is_linked = false;
        self.incoming.release();
        (self.unthanked_bytes, self.unthanked_frames) = (0, 0);
        self.pongs.clear();
        self.pong = None;
        self.sent.rewind();
    }

    /// The space for received bytes.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(HEAD_BYTES)
    }

    /// `count` bytes arrived; ask [`Lane::poll_arrived`] until there is nothing.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// The next complete frame.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the peer broke the protocol; the session is over.
    pub fn poll_arrived(&mut self, pool: &mut BufferPool) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        loop {
            let Some(head) = self.incoming.bytes().first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let head = FrameHeader::from_bytes(*head)?;
            let bytes = HEAD_BYTES + usize::from(head.length);
            if self.incoming.bytes().len() < bytes {
                self.incoming.want(bytes);
                return Ok(None);
            }
            let body = self.incoming.window(HEAD_BYTES..bytes);
            self.incoming.consume(bytes);
            if head.kind.is_counted() {
                self.received += 1;
                self.unthanked_bytes += bytes;
                self.unthanked_frames += 1;
            }
            match head.kind {
                FrameKind::Ping => {
                    if self.pongs.len() == PONGS_MAX {
                        self.pongs.pop_front();
                    }
                    self.pongs.push_back(number(&body)?);
                }
                FrameKind::Pong => self.pong = Some(number(&body)?),
                FrameKind::Ack if body.is_empty() => {
                    let count = self.sent.acknowledged_by(head.acknowledged());
                    self.sent.acknowledge(count, self.sent.taken_here(), pool)?;
                }
                FrameKind::Ack => {
                    return Err(ProtocolViolation::new(
                        "body length",
                        body.len() as u64,
                        "an acknowledgement has no body",
                    ));
                }
                FrameKind::Later(_) => {}
                _ => return Ok(Some(ReceivedFrame { head, body })),
            }
        }
    }

    /// Sends a message when its turn comes, over this link or the next.
    pub fn send(&mut self, message: OutboundMessage) {
        self.has_urgent = true;
        self.put(message);
    }

    /// As [`Lane::send`], for a message that may wait a little for others, to share a segment with them. The caller of
    /// [`Lane::poll_transmit`] decides how long: see [`Lane::may_defer`].
    pub fn send_deferrable(&mut self, message: OutboundMessage) {
        self.put(message);
    }

    fn put(&mut self, message: OutboundMessage) {
        // No message is before it, and it would be cut next: it needs no queue.
        let is_next = self.is_linked
            && self.waiting.is_empty()
            && self.sent.untaken_bytes < CUT_AHEAD_BYTES_MIN
            && self.may_cut();
        match is_next {
            true => {
                if let Err(message) = self.sent.put_whole(message) {
                    self.waiting.push(message);
                }
            }
            false => self.waiting.push(message),
        }
    }

    /// Takes the next waiting message, for a caller that passes it on without a link.
    pub fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.waiting.pop()
    }

    /// Takes back a request of which no frame was cut; returns its data, if it was there.
    pub fn recall(&mut self, attachment: u16, tag: u16) -> Option<Payload> {
        self.waiting.recall(attachment, tag)
    }

    /// Sends a ping with this number, to measure the latency or to check that the peer is alive.
    pub fn ping(&mut self, number: u64) {
        if self.is_linked && self.sent.uncounted < UNCOUNTED_MAX {
            self.has_urgent = true;
            self.sent.put_number(FrameKind::Ping, number);
        }
    }

    /// The number of the last pong on this link that was not polled.
    pub fn pong(&self) -> Option<u64> {
        self.pong
    }

    /// How many counted frames have passed: those that arrived here, and those that the receiver has acknowledged.
    pub fn passed(&self) -> u64 {
        self.received + self.sent.acknowledged
    }

    /// The number of the last pong.
    pub fn poll_pong(&mut self) -> Option<u64> {
        self.pong.take()
    }

    /// Bytes that wait to be cut, without heads, or for the link to take them: these grow while the link is slow.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes() + self.sent.untaken_bytes
    }

    /// Memory of what no link has taken yet, and the receiver therefore cannot have.
    #[inline]
    pub fn untaken_bytes(&self) -> usize {
        let waiting = self.waiting.held_bytes();
        // What another link took may have arrived: the next greeting says so.
        if self.is_linked { waiting + self.sent.untaken_held_bytes() } else { waiting }
    }

    /// Memory of everything sent and not acknowledged.
    pub fn held_bytes(&self) -> usize {
        self.waiting.held_bytes() + self.sent.held_bytes()
    }

    /// Sets how many bytes may be unacknowledged.
    pub fn set_unacknowledged_bytes_max(&mut self, bytes: usize) {
        self.limits.unacknowledged_bytes_max = bytes;
    }

    /// Bytes sent and not acknowledged.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.sent.kept_bytes
    }

    /// Whether everything was sent and acknowledged.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.sent.counted == 0
    }

    /// Whether anything waits that may be sent now.
    pub fn has_transmit(&self) -> bool {
        self.is_linked
            && (self.sent.untaken_bytes > 0
                || !self.pongs.is_empty()
                || self.unthanked_bytes >= ACKNOWLEDGE_BYTES_MAX
                || (!self.waiting.is_empty() && self.may_cut()))
    }

    /// Whether everything that may be sent now came by [`Lane::send_deferrable`], so that sending may wait for more.
    pub fn may_defer(&self) -> bool {
        !self.has_urgent && self.pongs.is_empty() && self.unthanked_bytes < ACKNOWLEDGE_BYTES_MAX && self.has_transmit()
    }

    fn may_cut(&self) -> bool {
        self.sent.held_bytes() < self.limits.unacknowledged_bytes_max
    }

    /// Whether the next send has to include an acknowledgement.
    fn owes_thanks(&self) -> bool {
        self.unthanked_bytes >= ACKNOWLEDGE_BYTES || self.unthanked_frames >= ACKNOWLEDGE_FRAMES
    }

    /// The runs of memory to send next.
    pub fn poll_transmit(&mut self, now: Instant) -> SendSlices<'_> {
        let mut runs = SendSlices::new();
        self.poll_transmit_into(now, &mut runs);
        runs
    }

    /// As [`Lane::poll_transmit`], into an empty list: two kilobytes are not moved for each small request.
    pub fn poll_transmit_into<'a>(&'a mut self, now: Instant, runs: &mut SendSlices<'a>) {
        if self.is_linked {
            self.cut_ahead(now);
        }
        self.sent.runs_into(runs);
    }

    /// Cuts as much as one system call takes, most urgent first.
    fn cut_ahead(&mut self, now: Instant) {
        while self.sent.uncounted < UNCOUNTED_MAX
            && let Some(number) = self.pongs.pop_front()
        {
            self.sent.put_number(FrameKind::Pong, number);
        }
        if self.owes_thanks() && self.sent.uncounted < UNCOUNTED_MAX {
            (self.unthanked_bytes, self.unthanked_frames) = (0, 0);
            self.sent.put_uncounted(FrameHeader::acknowledgement(self.received), &[]);
        }
        while self.sent.untaken_bytes < self.cut_ahead_bytes && self.may_cut() {
            let Some(cut) = self.waiting.cut(now) else { break };
            self.sent.put(cut);
        }
    }

    /// Reports that `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.sent.took(count);
        self.cut_ahead_bytes = match self.sent.untaken_bytes {
            0 if self.waiting.is_empty() => self.cut_ahead_bytes,
            0 => CUT_AHEAD_BYTES_MAX.min(self.cut_ahead_bytes * 2),
            _ => CUT_AHEAD_BYTES_MIN,
        };
        self.has_urgent &= self.sent.untaken_bytes > 0 || !self.waiting.is_empty();
    }
}

impl RetransmitQueue {
    fn put(&mut self, CutFrame { head, part, carried }: CutFrame) {
        let at = self.put_lead(head, &part);
        let carried = match carried {
            FramePayload::Whole(payload) => FramePayload::Whole(self.put_small(payload)),
            carried => carried,
        };
        self.put_frame(at, carried);
    }

    /// Puts a message that fits one frame and is not timed; returns any other.
    fn put_whole(&mut self, message: OutboundMessage) -> Result<(), OutboundMessage> {
        let bytes = message.part.len() + message.payload.len();
        if bytes > BODY_BYTES_MAX || message.done_at.is_some() {
            return Err(message);
        }
        assert!(message.part.len() <= PART_BYTES_MAX, "a part fits the first frame");
        let at = self.put_lead(FrameHeader { length: bytes as u16, ..message.head }, &message.part);
        let payload = self.put_small(message.payload);
        self.put_frame(at, FramePayload::Whole(payload));
        Ok(())
    }

    fn put_lead(&mut self, head: FrameHeader, part: &[u8]) -> u64 {
        let at = self.leads.end();
        self.leads.bytes.extend_from_slice(&head.to_bytes());
        self.leads.bytes.extend_from_slice(part);
        at
    }

    /// Copies small data behind its lead; returns data that was not copied.
    fn put_small(&mut self, payload: Payload) -> Payload {
        if payload.is_empty() || payload.len() > INLINE_PAYLOAD_BYTES {
            return payload;
        }
        payload.runs().for_each(|run| self.leads.bytes.extend_from_slice(run));
        // One too many goes back to the allocator.
        let _ = self.spent.try_push(payload);
        Payload::Empty
    }

    /// Adds a counted frame whose lead begins at `at`.
    fn put_frame(&mut self, at: u64, carried: FramePayload) {
        let frame = RetransmitFrame { lead: at..self.leads.end(), is_counted: true, carried };
        self.counted += 1;
        self.kept_bytes += frame.len();
        self.untaken_bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn put_number(&mut self, kind: FrameKind, number: u64) {
        self.put_uncounted(FrameHeader { length: 8, ..FrameHeader::new(kind, 0, 0) }, &number.to_le_bytes());
    }

    /// Adds an uncounted frame. Its bytes do not count among the kept leads: it is dropped as soon as it is sent.
    fn put_uncounted(&mut self, head: FrameHeader, body: &[u8]) {
        let at = self.leads.end();
        let carried = FramePayload::Whole([&head.to_bytes(), body].concat().into());
        let frame = RetransmitFrame { lead: at..at, is_counted: false, carried };
        self.uncounted += 1;
        self.untaken_bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn held_bytes(&self) -> usize {
        self.kept_bytes + self.frames.len() * FRAME_BYTES
    }

    fn untaken_held_bytes(&self) -> usize {
        self.untaken_bytes + (self.frames.len() - self.next) * FRAME_BYTES
    }

    /// The runs of memory to send next. Adjacent leads are one run.
    fn runs_into<'a>(&'a self, runs: &mut SendSlices<'a>) {
        let mut leads = 0..0;
        let mut skip = self.next_taken;
        for frame in self.frames.range(self.next..) {
            let from = skip.min(span(&frame.lead));
            let start = frame.lead.start + from as u64;
            if start != leads.end {
                push(runs, self.leads.get(leads));
                leads = start..start;
            }
            leads.end = frame.lead.end;
            skip -= from;
            if frame.carried.len() > skip {
                push(runs, self.leads.get(leads));
                frame.carried.runs_from(skip).for_each(|run| push(runs, run));
                leads = 0..0;
            }
            skip = 0;
            if runs.is_full() {
                return;
            }
        }
        push(runs, self.leads.get(leads));
    }

    fn took(&mut self, mut count: usize) {
        assert!(count <= self.untaken_bytes, "no more was sent than was there");
        self.untaken_bytes -= count;
        count += self.next_taken;
        while let Some(frame) = self.frames.get(self.next)
            && frame.len() <= count
        {
            count -= frame.len();
            if frame.is_counted {
                self.next += 1;
                self.taken = self.taken.max(self.taken_here());
            } else {
                // Near the front of the list, and rare.
                self.frames.remove(self.next);
                self.uncounted -= 1;
            }
        }
        self.next_taken = count;
    }

    /// How many counted frames this link took in full, or had arrived before.
    fn taken_here(&self) -> u64 {
        self.acknowledged + self.next as u64
    }

    /// The count that an acknowledgement means by its low 32 bits: the first one, from the acknowledged count on, with
    /// these low bits.
    fn acknowledged_by(&self, low: u32) -> u64 {
        self.acknowledged + u64::from(low.wrapping_sub(self.acknowledged as u32))
    }

    /// Processes an acknowledgement of `count` frames; the receiver can have at most `count_max`.
    fn acknowledge(&mut self, count: u64, count_max: u64, pool: &mut BufferPool) -> Result<(), ProtocolViolation> {
        if count < self.acknowledged || count > count_max {
            return Err(ProtocolViolation::new(
                "received",
                count,
                "one end has what the other sent, and no less than before",
            ));
        }
        while self.acknowledged < count {
            let frame = self.frames.pop_front().expect("what was taken and not acknowledged is kept");
            let bytes = frame.len();
            if self.next > 0 {
                self.next -= 1;
            } else {
                // A new link has not taken it, an older one has.
                self.untaken_bytes -= bytes;
            }
            self.acknowledged += 1;
            self.counted -= 1;
            self.kept_bytes -= bytes;
            if let Some(payload) = frame.carried.into_payload() {
                pool.recycle(payload);
            }
        }
        self.spent.drain(..).for_each(|payload| pool.recycle(payload));
        let kept_from = self.frames.front().map_or(self.leads.end(), |frame| frame.lead.start);
        self.leads.forget_before(kept_from);
        Ok(())
    }

    /// Sends every kept frame again, from the first.
    fn rewind(&mut self) {
        self.frames.retain(|frame| frame.is_counted);
        (self.next, self.uncounted) = (0, 0);
        self.next_taken = 0;
        self.untaken_bytes = self.kept_bytes;
    }
}

fn push<'a>(runs: &mut ArrayVec<IoSlice<'a>, RUNS_MAX>, run: &'a [u8]) {
    if !run.is_empty() {
        let _ = runs.try_push(IoSlice::new(run));
    }
}

fn number(body: &Payload) -> Result<u64, ProtocolViolation> {
    let bytes: Result<[u8; 8], _> = body.contiguous().as_ref().try_into();
    bytes
        .map(u64::from_le_bytes)
        .map_err(|_| ProtocolViolation::new("body length", body.len() as u64, "a number has 8 bytes"))
}

impl Lane {
    /// Saves what a lane in another process needs to continue over the next link. Waiting messages are cut, whatever is
    /// unacknowledged; this lane may still continue. Received frames that were not polled count as not received.
    pub fn save(&mut self, now: Instant, to: &mut SnapshotWriter) {
        while let Some(cut) = self.waiting.cut(now) {
            self.sent.put(cut);
        }
        to.u64(self.received);
        to.u64(self.sent.acknowledged);
        to.u64(self.sent.taken - self.sent.acknowledged);
        let counted = || self.sent.frames.iter().filter(|frame| frame.is_counted);
        to.count(counted().count());
        for frame in counted() {
            let lead = self.sent.leads.get(frame.lead.clone());
            to.runs(frame.len(), std::iter::once(lead).chain(frame.carried.runs_from(0)));
        }
    }

    /// Makes a lane without a link that continues from a saved one.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no lane can have been in this state.
    pub fn restore(limits: LaneLimits, from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut lane = Self::new(limits);
        lane.received = from.u64("frames received")?;
        lane.sent.acknowledged = from.u64("frames acknowledged")?;
        let unthanked = from.u64("frames sent")?;
        for _ in 0..from.count("frames", HEAD_BYTES + 4)? {
            lane.sent.put_back(from)?;
        }
        if unthanked > lane.sent.counted {
            return Err(ProtocolViolation::new("frames sent", unthanked, "what was sent and not acknowledged is kept"));
        }
        let taken = lane.sent.acknowledged.checked_add(unthanked);
        lane.sent.taken =
            taken.ok_or(ProtocolViolation::new("frames acknowledged", lane.sent.acknowledged, "it is a count"))?;
        lane.sent.rewind();
        Ok(lane)
    }
}

impl RetransmitQueue {
    fn put_back(&mut self, from: &mut FieldReader<'_>) -> Result<(), ProtocolViolation> {
        let bytes = from.bytes("frame")?;
        let short = ProtocolViolation::new("frame", bytes.len() as u64, "a frame has a head");
        let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(short)?;
        let decoded = FrameHeader::from_bytes(*head)?;
        if !decoded.kind.is_counted() || usize::from(decoded.length) != body.len() {
            return Err(ProtocolViolation::new(
                "frame",
                body.len() as u64,
                "what is kept is counted, and as long as it says",
            ));
        }
        let at = self.leads.end();
        self.leads.bytes.extend_from_slice(head);
        self.put_frame(at, FramePayload::Whole(body.to_vec().into()));
        Ok(())
    }
}
