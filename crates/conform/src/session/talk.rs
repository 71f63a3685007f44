//! The kit's end of one session. It keeps what a session keeps when its link is cut, and counts every frame.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_wire::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenReply, OpenRequest};
use farbus_wire::native::frame::{FrameFlags, HEAD_BYTES};
use farbus_wire::native::{FrameHeader, FrameKind, HelloOptions, ImporterHello, LanePosition};

use super::wire::{SessionFrameLink, SessionMessage, frame};
use crate::conversation::ExchangeError;

/// Frames that a check reads; an exporter that sends more is stopped.
const FRAMES_MAX: u64 = 1 << 18;
/// Frames after which the kit acknowledges what arrived (protocol.md, *Nothing is lost, nothing is doubled*).
const ACKNOWLEDGE_FRAMES: u64 = 64;
/// Bytes after which it does.
const ACKNOWLEDGE_BYTES: usize = 256 << 10;
/// The only flag of a request that the kit sets by its number: the message goes on in data frames.
pub(super) const MORE: u8 = 1;
pub(super) const TIMED: u8 = 4;

/// One end of a session: its link, if it has one, and what outlives that.
pub(super) struct SessionConversation {
    wire: Option<SessionFrameLink>,
    pub position: LanePosition,
    /// What the exporter granted.
    pub granted: HelloOptions,
    /// All counted frames that were sent, whole.
    sent: Vec<Vec<u8>>,
    /// How many of them the exporter acknowledged.
    acknowledged: u64,
    /// Bytes and counted frames that arrived since the last acknowledgement.
    unacknowledged: (usize, u64),
    /// Whether the kit acknowledges what arrives.
    pub is_acknowledging: bool,
    /// Messages whose end has not come.
    parts: BTreeMap<(u16, u16), SessionMessage>,
    /// Whole messages, in the order of their ends.
    pub inbox: Vec<SessionMessage>,
    /// Every counted frame that arrived, as it came.
    pub frames: Vec<SessionMessage>,
    patience: Duration,
}

impl SessionConversation {
    pub fn new(patience: Duration) -> Self {
        Self {
            wire: None,
            position: LanePosition::default(),
            granted: HelloOptions::default(),
            sent: Vec::new(),
            acknowledged: 0,
            unacknowledged: (0, 0),
            is_acknowledging: true,
            parts: BTreeMap::new(),
            inbox: Vec::new(),
            frames: Vec::new(),
            patience,
        }
    }

    /// The hello of this session's next link.
    pub fn hello(&self, options: HelloOptions) -> ImporterHello {
        ImporterHello::new(
            LanePosition { link: self.position.link + 1, received: self.received(), ..self.position },
            options,
        )
    }

    /// Counted frames that arrived.
    pub fn received(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Counted frames that were sent.
    pub fn sent(&self) -> u64 {
        self.sent.len() as u64
    }

    /// How many frames the exporter acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes that arrived and were not acknowledged.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacknowledged.0
    }

    /// Uses this link, on which the exporter said how many frames it has; sends what it has not.
    pub fn use_link(&mut self, wire: SessionFrameLink, their_received: u64) -> Result<(), ExchangeError> {
        if their_received > self.sent() || their_received < self.acknowledged {
            let (sent, had) = (self.sent(), self.acknowledged);
            return Err(ExchangeError::Broken(format!(
                "the welcome says that {their_received} frames arrived; {sent} were sent, {had} were acknowledged"
            )));
        }
        self.acknowledged = their_received;
        self.position.link += 1;
        self.unacknowledged = (0, 0);
        self.wire = Some(wire);
        let again: Vec<u8> = self.sent[their_received as usize..].concat();
        if again.is_empty() { Ok(()) } else { self.send_uncounted(&again) }
    }

    /// Cuts the link without a word. What arrived in part has not arrived.
    pub fn cut(&mut self) -> Option<SessionFrameLink> {
        self.wire.take()
    }

    fn wire(&mut self) -> Result<&mut SessionFrameLink, ExchangeError> {
        self.wire.as_mut().ok_or(ExchangeError::Closed)
    }

    /// Sends bytes that are not counted.
    pub fn send_uncounted(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        self.wire()?.send(bytes)
    }

    /// Sends counted frames in one piece, of whose bytes only `most` leave.
    pub fn send_part(&mut self, frames: &[Vec<u8>], most: usize) -> Result<(), ExchangeError> {
        self.sent.extend_from_slice(frames);
        let bytes = frames.concat();
        self.wire()?.send(&bytes[..bytes.len().min(most)])
    }

    /// Sends counted frames in one piece.
    pub fn send_all(&mut self, frames: &[Vec<u8>]) -> Result<(), ExchangeError> {
        self.send_part(frames, usize::MAX)
    }

    /// Sends a counted frame.
    pub fn send(&mut self, kind: u8, attachment: u16, tag: u16, body: &[u8]) -> Result<(), ExchangeError> {
        self.send_all(&[frame(kind, 0, attachment, tag, body)])
    }

    /// Acknowledges so many frames.
    pub fn acknowledge(&mut self, count: u64) -> Result<(), ExchangeError> {
        self.unacknowledged = (0, 0);
        self.send_uncounted(&FrameHeader::acknowledgement(count).to_bytes())
    }

    /// Reads one frame.
    pub fn read(&mut self, within: Duration) -> Result<(), ExchangeError> {
        if self.received() >= FRAMES_MAX {
            return Err(ExchangeError::Broken(format!("more than {FRAMES_MAX} frames came")));
        }
        let came = self.wire()?.frame(within)?;
        match came.kind {
            FrameKind::Ping if came.body.len() == 8 => {
                return self.send_uncounted(&frame(FrameKind::Pong.code(), 0, 0, 0, &came.body));
            }
            FrameKind::Ack if came.body.is_empty() => return self.note_acknowledgement(&came),
            FrameKind::Ping | FrameKind::Ack => {
                let (kind, bytes) = (came.kind, came.body.len());
                return Err(ExchangeError::Broken(format!("{kind:?} with a body of {bytes} bytes")));
            }
            FrameKind::Pong => {
                self.inbox.push(came);
                return Ok(());
            }
            FrameKind::Goodbye
            | FrameKind::Open
            | FrameKind::Close
            | FrameKind::Grant
            | FrameKind::Inherit
            | FrameKind::Request => {
                return Err(ExchangeError::Broken(format!("{:?}, which an exporter does not send", came.kind)));
            }
            _ => {}
        }
        self.frames.push(came.clone());
        self.unacknowledged.0 += HEAD_BYTES + came.body.len();
        self.unacknowledged.1 += 1;
        self.join(came)?;
        let (bytes, frames) = self.unacknowledged;
        if self.is_acknowledging && (bytes >= ACKNOWLEDGE_BYTES || frames >= ACKNOWLEDGE_FRAMES) {
            self.acknowledge(self.received())?;
        }
        Ok(())
    }

    fn note_acknowledgement(&mut self, came: &SessionMessage) -> Result<(), ExchangeError> {
        let low = u64::from(came.tag) << 16 | u64::from(came.attachment);
        if low < self.acknowledged || low > self.sent() {
            let (had, sent) = (self.acknowledged, self.sent());
            return Err(ExchangeError::Broken(format!(
                "it acknowledges {low} frames, having acknowledged {had} of {sent} that were sent"
            )));
        }
        self.acknowledged = low;
        Ok(())
    }

    /// Puts a message together.
    fn join(&mut self, came: SessionMessage) -> Result<(), ExchangeError> {
        let key = (came.attachment, came.tag);
        let is_last = !came.flags.more;
        let whole = match (came.kind, self.parts.remove(&key)) {
            (FrameKind::Data, Some(mut begun)) => {
                begun.body.extend(&came.body);
                begun
            }
            (FrameKind::Data, None) => {
                let (attachment, tag) = key;
                return Err(ExchangeError::Broken(format!(
                    "data of attachment {attachment}, tag {tag} continue no message"
                )));
            }
            // A cancel may come between the frames of a reply.
            (_, Some(begun)) if is_last => {
                self.parts.insert(key, begun);
                came
            }
            (_, Some(_)) => {
                return Err(ExchangeError::Broken(format!("{:?} begins within another message", came.kind)));
            }
            (_, None) => came,
        };
        if is_last {
            self.inbox.push(SessionMessage { flags: FrameFlags { more: false, ..whole.flags }, ..whole });
        } else {
            self.parts.insert(key, whole);
        }
        Ok(())
    }

    /// Waits for a message; earlier ones count.
    pub fn wait(&mut self, mut is_it: impl FnMut(&SessionMessage) -> bool) -> Result<SessionMessage, ExchangeError> {
        let mut seen = 0;
        loop {
            if let Some(found) = self.inbox[seen..].iter().find(|message| is_it(message)) {
                return Ok(found.clone());
            }
            seen = self.inbox.len();
            self.read(self.patience)?;
        }
    }

    /// Reads what comes until nothing has come for `quiet`.
    pub fn settle(&mut self, quiet: Duration) -> Result<(), ExchangeError> {
        loop {
            match self.read(quiet) {
                Ok(()) => {}
                Err(ExchangeError::Silence { have: 0, .. }) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
    }

    /// Sends a ping with this number and waits for its pong: the exporter has then heard all that was sent before.
    pub fn ping(&mut self, number: u64) -> Result<(), ExchangeError> {
        let body = number.to_le_bytes();
        self.inbox.retain(|message| message.kind != FrameKind::Pong);
        self.send_uncounted(&frame(FrameKind::Ping.code(), 0, 0, 0, &body))?;
        self.wait(|message| message.kind == FrameKind::Pong && message.body == body).map(drop)
    }

    /// Asks for a device; returns what the exporter says of it.
    pub fn open(
        &mut self,
        attachment: u16,
        ask: &OpenRequest,
    ) -> Result<Result<OpenReply, AttachmentEndNotice>, ExchangeError> {
        self.send(FrameKind::Open.code(), attachment, 0, &ask.encode())?;
        self.opened(attachment)
    }

    /// Waits for the answer to an open of this attachment.
    pub fn opened(&mut self, attachment: u16) -> Result<Result<OpenReply, AttachmentEndNotice>, ExchangeError> {
        // A number may be used again: what was said of its earlier use is no answer.
        let is_answer = |message: &SessionMessage| {
            message.attachment == attachment
                && matches!(message.kind, FrameKind::Opened | FrameKind::Refused | FrameKind::Closed)
        };
        let answer = self.wait(is_answer)?;
        self.inbox.retain(|message| !is_answer(message));
        let broken = |reject: farbus_wire::ProtocolViolation| ExchangeError::Broken(reject.to_string());
        match answer.kind {
            FrameKind::Opened => OpenReply::decode(&answer.body).map(Ok).map_err(broken),
            FrameKind::Refused => AttachmentEndNotice::decode(&answer.body).map(Err).map_err(broken),
            _ => Err(ExchangeError::Broken(format!("attachment {attachment}, which was not open, is closed"))),
        }
    }

    /// Waits for the end of an attachment.
    pub fn closed(&mut self, attachment: u16) -> Result<AttachmentEndNotice, ExchangeError> {
        let is_end = |message: &SessionMessage| message.attachment == attachment && message.kind == FrameKind::Closed;
        let answer = self.wait(is_end)?;
        self.inbox.retain(|message| !is_end(message));
        AttachmentEndNotice::decode(&answer.body).map_err(|reject| ExchangeError::Broken(reject.to_string()))
    }

    /// Closes an attachment and waits for its end.
    pub fn close(&mut self, attachment: u16) -> Result<AttachmentEndNotice, ExchangeError> {
        self.send(FrameKind::Close.code(), attachment, 0, &[])?;
        self.closed(attachment)
    }

    /// How many replies, and how many answers to cancels, a request has.
    pub fn answers(&self, attachment: u16, tag: u16) -> (usize, usize) {
        let of = |kind| {
            let is_it = |m: &&SessionMessage| m.kind == kind && (m.attachment, m.tag) == (attachment, tag);
            self.inbox.iter().filter(is_it).count()
        };
        (of(FrameKind::Reply), of(FrameKind::Cancel))
    }

    /// Ends the session and its link.
    pub fn leave(mut self) {
        // It may have ended it.
        let _ = self.send(FrameKind::Goodbye.code(), 0, 0, &[]);
        if let Some(wire) = &mut self.wire {
            wire.is_closed_within(self.patience, usize::MAX);
        }
    }
}

/// A request for a USB device of this name.
pub(super) fn usb(name: &str) -> OpenRequest {
    let reason = "farbus conform session".to_owned();
    OpenRequest {
        class: AttachmentClass::USB,
        mode: AttachmentMode::Exclusive,
        epoch: 0,
        name: name.to_owned(),
        reason,
    }
}
