//! Which message sends the next frame.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use farbus_model::{Instant, Payload};

use super::frame::{BODY_BYTES_MAX, FrameHeader, FrameKind, ResidenceTimes};
use super::message::{ClassPart, FlowId, MessageUrgency, OutboundMessage, PART_BYTES_MAX};

/// Frames of a long message are cut at multiples of this, so that a store finds whole pages in them.
const CUT_BYTES: usize = 4 << 10;

/// Messages that wait for the link, by urgency and flow.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    lines: [UrgencyQueue; MessageUrgency::COUNT],
    bytes: usize,
    messages: usize,
}

/// Bookkeeping bytes per message, including its place in a flow.
const MESSAGE_BYTES: usize = 256;

/// The flows of one urgency that have messages, in the order of their turns.
#[derive(Debug, Default)]
struct UrgencyQueue {
    flows: VecDeque<(FlowId, VecDeque<QueuedMessage>)>,
    /// Empty queues of flows, kept for their memory.
    spare: Vec<VecDeque<QueuedMessage>>,
}

/// Empty queues kept for their memory: about as many as flows take turns at a time.
const SPARE_MAX: usize = 16;

#[derive(Debug)]
struct QueuedMessage {
    head: FrameHeader,
    /// Empty once the first frame was cut.
    part: ClassPart,
    data: UncutPayload,
    done_at: Option<Instant>,
}

/// Data of a message, or the part of it that was not cut yet.
#[derive(Debug)]
enum UncutPayload {
    Whole(Payload),
    Rest(Arc<Payload>, Range<usize>),
}

/// What a frame carries behind its head and its part.
#[derive(Debug)]
pub(super) enum FramePayload {
    Whole(Payload),
    Cut(Arc<Payload>, Range<usize>),
}

impl FramePayload {
    pub fn len(&self) -> usize {
        match self {
            FramePayload::Whole(payload) => payload.len(),
            FramePayload::Cut(_, range) => range.len(),
        }
    }

    /// Its runs of memory, beginning at `from`.
    pub fn runs_from(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        let (payload, range) = match self {
            FramePayload::Whole(payload) => (payload, from..payload.len()),
            FramePayload::Cut(payload, range) => (&**payload, range.start + from..range.end),
        };
        payload.runs_within(range)
    }

    /// The payload, if no other frame carries a part of it.
    pub fn into_payload(self) -> Option<Payload> {
        match self {
            FramePayload::Whole(payload) => Some(payload),
            FramePayload::Cut(payload, _) => Arc::try_unwrap(payload).ok(),
        }
    }
}

/// A frame that was cut.
#[derive(Debug)]
pub(super) struct CutFrame {
    pub head: FrameHeader,
    pub part: ClassPart,
    pub carried: FramePayload,
}

impl SendQueue {
    /// Appends a message to its flow.
    ///
    /// # Panics
    /// If the class part is longer than a part may be: a bug of farbus.
    pub fn push(&mut self, message: OutboundMessage) {
        assert!(message.part.len() <= PART_BYTES_MAX, "a part fits the first frame");
        self.bytes += message.part.len() + message.payload.len();
        self.messages += 1;
        let OutboundMessage { head, part, payload, urgency, flow, done_at } = message;
        let line = &mut self.lines[urgency as usize];
        let waiting = QueuedMessage { head, part, data: UncutPayload::Whole(payload), done_at };
        match line.flows.iter_mut().find(|(other, _)| *other == flow) {
            Some((_, queue)) => queue.push_back(waiting),
            None => {
                let mut queue = line.spare.pop().unwrap_or_default();
                queue.push_back(waiting);
                line.flows.push_back((flow, queue));
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.flows.is_empty())
    }

    /// Bytes of waiting messages, without heads.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of waiting messages, with heads.
    pub fn held_bytes(&self) -> usize {
        self.bytes + self.messages * MESSAGE_BYTES
    }

    /// Cuts the next frame, from the most urgent flow whose turn it is.
    pub fn cut(&mut self, now: Instant) -> Option<CutFrame> {
        let line = self.lines.iter_mut().find(|line| !line.flows.is_empty())?;
        let (flow, mut queue) = line.flows.pop_front().expect("a line with a flow");
        let waiting = queue.front_mut().expect("no flow is empty");
        let cut = waiting.cut(now);
        self.bytes -= cut.part.len() + cut.carried.len();
        if !cut.head.flags.more {
            queue.pop_front();
            self.messages -= 1;
        }
        if !queue.is_empty() {
            line.flows.push_back((flow, queue));
        } else if line.spare.len() < SPARE_MAX {
            line.spare.push(queue);
        }
        Some(cut)
    }

    /// Takes the next whole message of the most urgent flow whose turn it is; skips those that were partly cut.
    pub fn pop(&mut self) -> Option<OutboundMessage> {
        let (index, line) = self.lines.iter_mut().enumerate().find(|(_, line)| !line.flows.is_empty())?;
        let (flow, mut queue) = line.flows.pop_front().expect("a line with a flow");
        let QueuedMessage { head, part, data, done_at } = queue.pop_front().expect("no flow is empty");
        if !queue.is_empty() {
            line.flows.push_back((flow, queue));
        }
        let UncutPayload::Whole(payload) = data else { unreachable!("who takes messages whole cuts none") };
        self.bytes -= part.len() + payload.len();
        self.messages -= 1;
        let urgency = if index == MessageUrgency::High as usize { MessageUrgency::High } else { MessageUrgency::Low };
        Some(OutboundMessage { head, part, payload, urgency, flow, done_at })
    }

    /// Removes a request that was not cut yet; returns its data, if it was there.
    pub fn recall(&mut self, attachment: u16, tag: u16) -> Option<Payload> {
        for line in &mut self.lines {
            for at in 0..line.flows.len() {
                let queue = &mut line.flows[at].1;
                let is_it = |waiting: &QueuedMessage| {
                    let FrameHeader { kind, attachment: of, tag: named, .. } = waiting.head;
                    (kind, of, named) == (FrameKind::Request, attachment, tag)
                };
                let Some(found) = queue.iter().position(is_it) else { continue };
                let waiting = queue.remove(found).expect("found just now");
                if queue.is_empty() {
                    line.flows.remove(at);
                }
                let UncutPayload::Whole(payload) = waiting.data else {
                    unreachable!("what was begun goes on as data and is no request any more")
                };
                self.bytes -= waiting.part.len() + payload.len();
                self.messages -= 1;
                return Some(payload);
            }
        }
        None
    }
}

impl QueuedMessage {
    fn cut(&mut self, now: Instant) -> CutFrame {
        let mut part = std::mem::take(&mut self.part);
        if let Some(done_at) = self.done_at.take() {
            ResidenceTimes::put_reply(part.bytes_mut(), now - done_at);
        }
        let mut head = self.head;
        let carried = match std::mem::replace(&mut self.data, UncutPayload::Whole(Payload::Empty)) {
            UncutPayload::Whole(payload) if part.len() + payload.len() <= BODY_BYTES_MAX => {
                FramePayload::Whole(payload)
            }
            UncutPayload::Whole(payload) => {
                let all = 0..payload.len();
                self.cut_long(Arc::new(payload), all, part.len())
            }
            UncutPayload::Rest(payload, range) => self.cut_long(payload, range, 0),
        };
        head.flags.more = matches!(self.data, UncutPayload::Rest(..));
        head.length = (part.len() + carried.len()) as u16;
        self.head = FrameHeader::new(FrameKind::Data, head.attachment, head.tag);
        CutFrame { head, part, carried }
    }

    /// Cuts as few frames as possible, of about equal length.
    fn cut_long(&mut self, payload: Arc<Payload>, range: Range<usize>, part_bytes: usize) -> FramePayload {
        let room = (BODY_BYTES_MAX - part_bytes) / CUT_BYTES * CUT_BYTES;
        let frames = range.len().div_ceil(room);
        let bytes = range.len().div_ceil(frames).next_multiple_of(CUT_BYTES).min(range.len());
        let end = range.start + bytes;
        if end < range.end {
            self.data = UncutPayload::Rest(Arc::clone(&payload), end..range.end);
        }
        FramePayload::Cut(payload, range.start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(urgency: MessageUrgency, flow: u32, tag: u16, bytes: usize) -> OutboundMessage {
        OutboundMessage {
            head: FrameHeader::new(FrameKind::Request, 1, tag),
            part: [1; 12].into(),
            payload: vec![tag as u8; bytes].into(),
            urgency,
            flow: FlowId(flow),
            done_at: None,
        }
    }

    #[test]
    fn messages_are_taken_whole_in_their_flows_order() {
        let mut queue = SendQueue::default();
        queue.push(message(MessageUrgency::Low, 1, 1, 200 << 10));
        queue.push(message(MessageUrgency::Low, 1, 2, 10));
        queue.push(message(MessageUrgency::High, 2, 3, 8));
        let taken: Vec<OutboundMessage> = std::iter::from_fn(|| queue.pop()).collect();
        let order: Vec<_> = taken.iter().map(|taken| (taken.head.tag, taken.urgency, taken.flow.0)).collect();
        assert_eq!(order, [(3, MessageUrgency::High, 2), (1, MessageUrgency::Low, 1), (2, MessageUrgency::Low, 1)]);
        assert_eq!((taken[1].payload.len(), taken[1].part.len(), queue.bytes()), (200 << 10, 12, 0));
        assert_eq!(queue.held_bytes(), 0);
        assert!(queue.is_empty());
    }

    fn tags(queue: &mut SendQueue) -> Vec<(u16, bool)> {
        std::iter::from_fn(|| queue.cut(Instant::ZERO)).map(|cut| (cut.head.tag, cut.head.flags.more)).collect()
    }

    #[test]
    fn urgent_message_overtakes_and_flows_take_turns() {
        let mut queue = SendQueue::default();
        queue.push(message(MessageUrgency::Low, 1, 1, 200 << 10));
        queue.push(message(MessageUrgency::Low, 1, 2, 10));
        queue.push(message(MessageUrgency::Low, 2, 3, 100 << 10));
        assert_eq!(queue.cut(Instant::ZERO).map(|cut| cut.head.tag), Some(1));
        queue.push(message(MessageUrgency::High, 3, 4, 8));
        let rest = tags(&mut queue);
        let expected = [(4, false), (3, true), (1, true), (3, false), (1, true), (1, false), (2, false)];
        assert_eq!(rest, expected);
        assert!(queue.is_empty());
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn frames_are_whole_pages_and_together_the_message() {
        for bytes in [0, 1, BODY_BYTES_MAX - 12, BODY_BYTES_MAX - 11, 128 << 10, (1 << 20) + 1] {
            let mut queue = SendQueue::default();
            let payload: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
            queue.push(OutboundMessage { payload: payload.clone().into(), ..message(MessageUrgency::Low, 1, 9, 0) });
            let mut got: Vec<u8> = Vec::new();
            let mut frames = 0;
            while let Some(cut) = queue.cut(Instant::ZERO) {
                assert_eq!(cut.head.kind, if frames == 0 { FrameKind::Request } else { FrameKind::Data });
                assert_eq!(cut.part.len(), if frames == 0 { 12 } else { 0 });
                assert_eq!(usize::from(cut.head.length), cut.part.len() + cut.carried.len());
                assert!(!cut.head.flags.more || cut.carried.len().is_multiple_of(CUT_BYTES));
                got.extend(cut.carried.runs_from(0).flatten());
                frames += 1;
            }
            assert_eq!(got, payload);
            assert!(frames <= 1 + bytes / (56 << 10), "{bytes} bytes in {frames} frames");
        }
    }

    #[test]
    fn request_that_was_not_cut_can_be_recalled() {
        let mut queue = SendQueue::default();
        queue.push(message(MessageUrgency::Low, 1, 1, 100 << 10));
        queue.push(message(MessageUrgency::Low, 1, 2, 10));
        queue.cut(Instant::ZERO);
        assert!(queue.recall(1, 1).is_none(), "it is on its way");
        assert_eq!(queue.recall(1, 2).map(|payload| payload.len()), Some(10));
        assert!(queue.recall(1, 2).is_none());
        assert_eq!(tags(&mut queue), [(1, false)]);
        assert_eq!((queue.bytes(), queue.held_bytes()), (0, 0));
    }
}
