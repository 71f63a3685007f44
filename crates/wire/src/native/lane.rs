//! One ordered stream of frames that outlives the links it runs over.
//!
//! Every counted frame has a number, its place in the stream; it is not written down, both ends count. A frame stays
//! with its sender until the receiver has said that it arrived. When a link is lost, whoever makes the next one says
//! how many frames it has, and the other goes on with the next: each frame is understood exactly once, whatever was cut
//! where.
//!
//! | at the moment of the cut the frame was | its receiver has counted it | what happens |
//! |---|---|---|
//! | waiting, or cut and unsent | no | it is sent over the next link |
//! | partly sent, or sent and lost | no | it is sent again, from its first byte |
//! | partly received | no | the part is forgotten; it is sent again |
//! | received, its acknowledgement unsent or lost | yes | the greeting acknowledges it |
//! | acknowledged | yes | its sender has forgotten it |

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use arrayvec::ArrayVec;
use farbus_model::{BufferPool, Instant, Payload};

use super::frame::{BODY_BYTES_MAX, FRAME_BYTES_MAX, HEAD_BYTES, Head, Kind};
use super::message::{Message, PART_BYTES_MAX};
use super::queue::{Carried, Cut, Queue};
use crate::buffer::{Incoming, RUNS_MAX, Runs};
use crate::reject::Reject;
use crate::snapshot::{Reader, Writer};

/// Bytes that may arrive before their arrival is acknowledged along with whatever is sent next: with one
/// acknowledgement for sixteen requests of 16 KiB a block request and its reply, all told, stay below the paper's 32
/// bytes (six would do).
const ACKNOWLEDGE_BYTES: usize = 256 << 10;
/// Bytes that may arrive before it is acknowledged even if there is nothing else to send. Four times what 32 requests
/// of 4 KiB bring: whoever was answered asks again soon, and an acknowledgement alone costs both ends a system call.
const ACKNOWLEDGE_BYTES_MAX: usize = 512 << 10;
/// Frames that may arrive before the same, be they ever so small: what was sent and is kept for the next link stays in
/// the caches, at a cost of an eighth of a byte a frame.
const ACKNOWLEDGE_FRAMES: u32 = 64;
/// Bytes that are cut ahead of the link: one system call's worth. What is cut cannot be passed any more, so that it is
/// little where the link takes little; where it takes all that it is given it is given twice as much each time, up to a
/// limit.
const CUT_AHEAD_BYTES_MIN: usize = 64 << 10;
/// See [`CUT_AHEAD_BYTES_MIN`].
const CUT_AHEAD_BYTES_MAX: usize = 1 << 20;

/// What a lane may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// Receive buffer.
    pub receive_bytes: usize,
    /// Bytes sent and not acknowledged, with what they take beside, beyond which nothing is cut any more.
    pub unacknowledged_bytes_max: usize,
}

impl LaneLimits {
    /// The default.
    pub const DEFAULT: LaneLimits = LaneLimits { receive_bytes: 256 << 10, unacknowledged_bytes_max: 16 << 20 };
}

/// A lane's two directions.
#[derive(Debug)]
pub struct Lane {
    limits: LaneLimits,
    is_linked: bool,
    incoming: Incoming,
    /// Counted frames that arrived.
    received: u64,
    /// Bytes that arrived since the last acknowledgement, and frames.
    unthanked_bytes: usize,
    unthanked_frames: u32,
    waiting: Queue,
    sent: Sent,
    /// Bytes to cut ahead.
    cut_ahead_bytes: usize,
    /// What a ping asked to be said back.
    pongs: VecDeque<u64>,
    /// What the other end said back.
    pong: Option<u64>,
}

/// Pings that are answered at a time; of more the oldest are forgotten.
const PONGS_MAX: usize = 4;
/// Frames that are not counted and wait for the link: answers to pings and acknowledgements, of which a later one says
/// all that an earlier one said.
const UNCOUNTED_MAX: usize = 8;
/// What a frame takes beside its bytes.
const FRAME_BYTES: usize = size_of::<Frame>();

/// A payload up to this size lies behind its head: one run of memory less for the kernel to walk.
const INLINE_PAYLOAD_BYTES: usize = 512;
/// Buffers of such payloads that wait for their pool.
const SPENT_MAX: usize = 64;

/// Frames that were cut: acknowledged ones are gone, the others may be needed again.
#[derive(Debug, Default)]
struct Sent {
    frames: VecDeque<Frame>,
    leads: Leads,
    spent: ArrayVec<Payload, SPENT_MAX>,
    /// Counted frames that the receiver has acknowledged.
    acknowledged: u64,
    /// Counted frames in `frames`, and others.
    counted: u64,
    uncounted: usize,
    /// The first frame that the link has not taken whole.
    next: usize,
    /// What of that frame it has taken, bytes.
    next_taken: usize,
    /// Counted frames that some link took whole: no more can have arrived.
    taken: u64,
    /// Bytes that the link has not taken.
    untaken_bytes: usize,
    /// Bytes of all counted frames.
    kept_bytes: usize,
}

#[derive(Debug)]
struct Frame {
    /// Head, part and small data, among the leads.
    lead: Range<u64>,
    is_counted: bool,
    carried: Carried,
}

impl Frame {
    fn len(&self) -> usize {
        span(&self.lead) + self.carried.len()
    }
}

fn span(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// How frames begin, one behind the other, at places that are counted from the first ever.
#[derive(Debug, Default)]
struct Leads {
    bytes: Vec<u8>,
    /// The place of the first byte that is kept.
    first: u64,
}

impl Leads {
    fn end(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }

    /// Bytes that are kept; none of an empty range, wherever it is.
    fn get(&self, range: Range<u64>) -> &[u8] {
        if range.is_empty() {
            return &[];
        }
        &self.bytes[(range.start - self.first) as usize..(range.end - self.first) as usize]
    }

    /// What is before `place` is needed no more.
    fn forget_before(&mut self, place: u64) {
        let gone = (place - self.first) as usize;
        // Moved seldom: what is moved is no more than what is gone.
        if gone == self.bytes.len() || gone > self.bytes.len().div_ceil(2).max(LEADS_GONE_MIN) {
            self.bytes.drain(..gone);
            self.first = place;
        }
    }
}

/// Fewer bytes that are needed no more are left where they are.
const LEADS_GONE_MIN: usize = 4 << 10;

/// A frame that arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Its head.
    pub head: Head,
    /// Its body: a window on the receive buffer.
    pub body: Payload,
}

impl Lane {
    /// A lane without a link.
    pub fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            is_linked: false,
            incoming: Incoming::new(limits.receive_bytes).ahead(FRAME_BYTES_MAX),
            received: 0,
            unthanked_bytes: 0,
            unthanked_frames: 0,
            waiting: Queue::default(),
            sent: Sent::default(),
            cut_ahead_bytes: CUT_AHEAD_BYTES_MIN,
            pongs: VecDeque::new(),
            pong: None,
        }
    }

    /// Counted frames that arrived: what a greeting says.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether there is a link.
    pub fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// There is a link, and a greeting on it said how many frames its other end has.
    ///
    /// # Errors
    /// [`Reject`]: it cannot have so many, or had more before. It is not the other end of this lane.
    pub fn handle_linked(&mut self, their_received: u64, pool: &mut BufferPool) -> Result<(), Reject> {
        self.handle_lost();
        self.sent.acknowledge(their_received, self.sent.taken, pool)?;
        self.is_linked = true;
        Ok(())
    }

    /// The link is lost. What arrived whole stays, what did not will be sent again.
    pub fn handle_lost(&mut self) {
        self.is_linked = false;
        self.incoming.release();
        (self.unthanked_bytes, self.unthanked_frames) = (0, 0);
        self.pongs.clear();
        self.pong = None;
        self.sent.rewind();
    }

    /// Where received bytes go.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(HEAD_BYTES)
    }

    /// `count` bytes arrived; ask [`Lane::poll_arrived`] until there is nothing.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// The next frame that arrived whole.
    ///
    /// # Errors
    /// [`Reject`]: the peer broke the protocol; the session is over.
    pub fn poll_arrived(&mut self, pool: &mut BufferPool) -> Result<Option<Arrived>, Reject> {
        loop {
            let Some(head) = self.incoming.bytes().first_chunk::<HEAD_BYTES>() else { return Ok(None) };
            let head = Head::from_bytes(*head)?;
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
                Kind::Ping => {
                    if self.pongs.len() == PONGS_MAX {
                        self.pongs.pop_front();
                    }
                    self.pongs.push_back(number(&body)?);
                }
                Kind::Pong => self.pong = Some(number(&body)?),
                Kind::Ack if body.is_empty() => {
                    let count = self.sent.acknowledged_by(head.acknowledged());
                    self.sent.acknowledge(count, self.sent.taken_here(), pool)?;
                }
                Kind::Ack => {
                    return Err(Reject::new("body length", body.len() as u64, "an acknowledgement has no body"));
                }
                Kind::Later(_) => {}
                _ => return Ok(Some(Arrived { head, body })),
            }
        }
    }

    /// Says something, as soon as its turn comes, over this link or the next.
    pub fn send(&mut self, message: Message) {
        // Nothing is before it, and it would be cut next: it goes through no queue.
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

    /// What waits, message by message, for whoever passes it on another way than a link.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.waiting.pop()
    }

    /// Takes a request back that no frame was cut of; its data, if there was one.
    pub fn recall(&mut self, attachment: u16, tag: u16) -> Option<Payload> {
        self.waiting.recall(attachment, tag)
    }

    /// Asks the other end to say a number back; for measuring, and to find out whether anybody is there.
    pub fn ping(&mut self, number: u64) {
        if self.is_linked && self.sent.uncounted < UNCOUNTED_MAX {
            self.sent.put_number(Kind::Ping, number);
        }
    }

    /// The number that the other end said back last.
    pub fn poll_pong(&mut self) -> Option<u64> {
        self.pong.take()
    }

    /// Bytes that wait to be cut, heads apart, or for the link to take them: what grows while it is slow.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes() + self.sent.untaken_bytes
    }

    /// The memory of what no link has taken yet: what its receiver cannot have.
    #[inline]
    pub fn untaken_bytes(&self) -> usize {
        let waiting = self.waiting.held_bytes();
        // What another link took may have arrived: the next greeting says.
        if self.is_linked { waiting + self.sent.untaken_held_bytes() } else { waiting }
    }

    /// The memory of all that was said and is not acknowledged.
    pub fn held_bytes(&self) -> usize {
        self.waiting.held_bytes() + self.sent.held_bytes()
    }

    /// So much may be sent and not acknowledged from now on.
    pub fn set_unacknowledged_bytes_max(&mut self, bytes: usize) {
        self.limits.unacknowledged_bytes_max = bytes;
    }

    /// Bytes sent and not acknowledged.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.sent.kept_bytes
    }

    /// Whether everything was said, and its arrival is known.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.sent.counted == 0
    }

    /// Whether anything waits to be sent that may be.
    pub fn has_transmit(&self) -> bool {
        self.is_linked
            && (self.sent.untaken_bytes > 0
                || !self.pongs.is_empty()
                || self.unthanked_bytes >= ACKNOWLEDGE_BYTES_MAX
                || (!self.waiting.is_empty() && self.may_cut()))
    }

    fn may_cut(&self) -> bool {
        self.sent.held_bytes() < self.limits.unacknowledged_bytes_max
    }

    /// Whether the next that is sent takes an acknowledgement along.
    fn owes_thanks(&self) -> bool {
        self.unthanked_bytes >= ACKNOWLEDGE_BYTES || self.unthanked_frames >= ACKNOWLEDGE_FRAMES
    }

    /// What to send next.
    pub fn poll_transmit(&mut self, now: Instant) -> Runs<'_> {
        if self.is_linked {
            self.cut_ahead(now);
        }
        self.sent.runs()
    }

    /// Cuts as much as a system call takes, most urgent first.
    fn cut_ahead(&mut self, now: Instant) {
        while self.sent.uncounted < UNCOUNTED_MAX
            && let Some(number) = self.pongs.pop_front()
        {
            self.sent.put_number(Kind::Pong, number);
        }
        if self.owes_thanks() && self.sent.uncounted < UNCOUNTED_MAX {
            (self.unthanked_bytes, self.unthanked_frames) = (0, 0);
            self.sent.put_uncounted(Head::acknowledgement(self.received), &[]);
        }
        while self.sent.untaken_bytes < self.cut_ahead_bytes && self.may_cut() {
            let Some(cut) = self.waiting.cut(now) else { break };
            self.sent.put(cut);
        }
    }

    /// `count` bytes were sent.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.sent.took(count);
        self.cut_ahead_bytes = match self.sent.untaken_bytes {
            0 if self.waiting.is_empty() => self.cut_ahead_bytes,
            0 => CUT_AHEAD_BYTES_MAX.min(self.cut_ahead_bytes * 2),
            _ => CUT_AHEAD_BYTES_MIN,
        };
    }
}

impl Sent {
    fn put(&mut self, Cut { head, part, carried }: Cut) {
        let at = self.put_lead(head, &part);
        let carried = match carried {
            Carried::Whole(payload) => Carried::Whole(self.put_small(payload)),
            carried => carried,
        };
        self.put_frame(at, carried);
    }

    /// A message of one frame, which is not timed; any other is given back.
    fn put_whole(&mut self, message: Message) -> Result<(), Message> {
        let bytes = message.part.len() + message.payload.len();
        if bytes > BODY_BYTES_MAX || message.done_at.is_some() {
            return Err(message);
        }
        assert!(message.part.len() <= PART_BYTES_MAX, "a part fits the first frame");
        let at = self.put_lead(Head { length: bytes as u16, ..message.head }, &message.part);
        let payload = self.put_small(message.payload);
        self.put_frame(at, Carried::Whole(payload));
        Ok(())
    }

    fn put_lead(&mut self, head: Head, part: &[u8]) -> u64 {
        let at = self.leads.end();
        self.leads.bytes.extend_from_slice(&head.to_bytes());
        self.leads.bytes.extend_from_slice(part);
        at
    }

    /// Little data lies behind its lead; what is not there already is left.
    fn put_small(&mut self, payload: Payload) -> Payload {
        if payload.is_empty() || payload.len() > INLINE_PAYLOAD_BYTES {
            return payload;
        }
        payload.runs().for_each(|run| self.leads.bytes.extend_from_slice(run));
        // One too many goes back to the allocator.
        let _ = self.spent.try_push(payload);
        Payload::Empty
    }

    /// A counted frame, whose lead lies from there on.
    fn put_frame(&mut self, at: u64, carried: Carried) {
        let frame = Frame { lead: at..self.leads.end(), is_counted: true, carried };
        self.counted += 1;
        self.kept_bytes += frame.len();
        self.untaken_bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn put_number(&mut self, kind: Kind, number: u64) {
        self.put_uncounted(Head { length: 8, ..Head::new(kind, 0, 0) }, &number.to_le_bytes());
    }

    /// It lies beside the leads, which stay until what is behind them is acknowledged: it goes as soon as it is sent.
    fn put_uncounted(&mut self, head: Head, body: &[u8]) {
        let at = self.leads.end();
        let carried = Carried::Whole([&head.to_bytes(), body].concat().into());
        let frame = Frame { lead: at..at, is_counted: false, carried };
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

    /// What to send next. Leads that lie one behind the other are one run.
    fn runs(&self) -> Runs<'_> {
        let mut runs = Runs::new();
        let mut leads = 0..0;
        let mut skip = self.next_taken;
        for frame in self.frames.range(self.next..) {
            let from = skip.min(span(&frame.lead));
            let start = frame.lead.start + from as u64;
            if start != leads.end {
                push(&mut runs, self.leads.get(leads));
                leads = start..start;
            }
            leads.end = frame.lead.end;
            skip -= from;
            if frame.carried.len() > skip {
                push(&mut runs, self.leads.get(leads));
                frame.carried.runs_from(skip).for_each(|run| push(&mut runs, run));
                leads = 0..0;
            }
            skip = 0;
            if runs.is_full() {
                return runs;
            }
        }
        push(&mut runs, self.leads.get(leads));
        runs
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
                // Near the front of what is kept, and rare.
                self.frames.remove(self.next);
                self.uncounted -= 1;
            }
        }
        self.next_taken = count;
    }

    /// Counted frames that this link took whole, or that had arrived before. What lies before the next one is counted.
    fn taken_here(&self) -> u64 {
        self.acknowledged + self.next as u64
    }

    /// The count that an acknowledgement means by its low 32 bits: the next one, from what is acknowledged on, that
    /// ends so.
    fn acknowledged_by(&self, low: u32) -> u64 {
        self.acknowledged + u64::from(low.wrapping_sub(self.acknowledged as u32))
    }

    /// The receiver has `count` frames, of `count_max` that it can have.
    fn acknowledge(&mut self, count: u64, count_max: u64, pool: &mut BufferPool) -> Result<(), Reject> {
        if count < self.acknowledged || count > count_max {
            return Err(Reject::new("received", count, "one end has what the other sent, and no less than before"));
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

    /// Everything that is kept is to be sent from the start.
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

fn number(body: &Payload) -> Result<u64, Reject> {
    let bytes: Result<[u8; 8], _> = body.contiguous().as_ref().try_into();
    bytes.map(u64::from_le_bytes).map_err(|_| Reject::new("body length", body.len() as u64, "a number has 8 bytes"))
}

impl Lane {
    /// Writes down what a lane in another process needs to go on, over the next link. What waits to be cut is cut,
    /// whatever is unacknowledged; this lane may go on all the same. What arrived and was not asked for counts as not
    /// arrived.
    pub fn save(&mut self, now: Instant, to: &mut Writer) {
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

    /// A lane without a link that goes on where another was saved.
    ///
    /// # Errors
    /// [`Reject`]: no lane can have stood so.
    pub fn restore(limits: LaneLimits, from: &mut Reader<'_>) -> Result<Self, Reject> {
        let mut lane = Self::new(limits);
        lane.received = from.u64("frames received")?;
        lane.sent.acknowledged = from.u64("frames acknowledged")?;
        let unthanked = from.u64("frames sent")?;
        for _ in 0..from.count("frames", HEAD_BYTES + 4)? {
            lane.sent.put_back(from)?;
        }
        if unthanked > lane.sent.counted {
            return Err(Reject::new("frames sent", unthanked, "what was sent and not acknowledged is kept"));
        }
        let taken = lane.sent.acknowledged.checked_add(unthanked);
        lane.sent.taken = taken.ok_or(Reject::new("frames acknowledged", lane.sent.acknowledged, "it is a count"))?;
        lane.sent.rewind();
        Ok(lane)
    }
}

impl Sent {
    fn put_back(&mut self, from: &mut Reader<'_>) -> Result<(), Reject> {
        let bytes = from.bytes("frame")?;
        let short = Reject::new("frame", bytes.len() as u64, "a frame has a head");
        let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(short)?;
        let decoded = Head::from_bytes(*head)?;
        if !decoded.kind.is_counted() || usize::from(decoded.length) != body.len() {
            return Err(Reject::new("frame", body.len() as u64, "what is kept is counted, and as long as it says"));
        }
        let at = self.leads.end();
        self.leads.bytes.extend_from_slice(head);
        self.put_frame(at, Carried::Whole(body.to_vec().into()));
        Ok(())
    }
}
