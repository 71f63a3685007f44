//! A message of a session, before it is cut into frames.

use arrayvec::ArrayVec;
use farbus_model::{Instant, Payload};

use super::frame::{FrameHeader, FrameKind};

/// Bytes of a class part that need no memory of their own: enough for all but isochronous schedules and descriptions.
const PART_INLINE_BYTES: usize = 32;
/// Bytes of a class part at most: it lies in the first frame of its message, whatever follows.
pub const PART_BYTES_MAX: usize = 32 << 10;

/// How urgent a message is. The more urgent one goes first, frame by frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageUrgency {
    /// The session's own messages, control transfers, interrupts, isochronous data.
    High,
    /// Bulk data and blocks.
    Low,
}

impl MessageUrgency {
    pub(super) const COUNT: usize = 2;
}

/// A flow keeps its order: its messages leave one after the other, and several flows take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowId(pub u32);

/// A message of a session.
#[derive(Clone, Debug)]
pub struct OutboundMessage {
    /// Its first frame's head; the length is filled in when it is cut.
    pub head: FrameHeader,
    /// The class part, or the whole of a message without data.
    pub part: ClassPart,
    /// The data behind the class part; empty for a message without data.
    pub payload: Payload,
    /// How urgent it is.
    pub urgency: MessageUrgency,
    /// The flow whose order it keeps.
    pub flow: FlowId,
    /// For a timed reply: when the device had finished. The part begins with a [`super::frame::ResidenceTimes`], whose
    /// last field is filled in when the message is cut.
    pub done_at: Option<Instant>,
}

impl OutboundMessage {
    /// Makes a message without data that goes ahead of all data.
    pub fn control(kind: FrameKind, attachment: u16, tag: u16, part: ClassPart) -> Self {
        Self {
            head: FrameHeader::new(kind, attachment, tag),
            part,
            payload: Payload::Empty,
            urgency: MessageUrgency::High,
            flow: FlowId::default(),
            done_at: None,
        }
    }
}

/// The class part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassPart(ClassPartBytes);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ClassPartBytes {
    Inline(ArrayVec<u8, PART_INLINE_BYTES>),
    Long(Vec<u8>),
}

impl ClassPart {
    /// An empty part.
    pub const fn empty() -> Self {
        Self(ClassPartBytes::Inline(ArrayVec::new_const()))
    }

    /// Its bytes, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            ClassPartBytes::Inline(bytes) => bytes,
            ClassPartBytes::Long(bytes) => bytes,
        }
    }

    /// Appends bytes; the part moves to the heap when they do not fit in its own memory.
    pub fn put(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            ClassPartBytes::Long(long) => long.extend_from_slice(bytes),
            ClassPartBytes::Inline(inline) => {
                if inline.try_extend_from_slice(bytes).is_err() {
                    self.0 = ClassPartBytes::Long([inline, bytes].concat());
                }
            }
        }
    }
}

impl Default for ClassPart {
    fn default() -> Self {
        Self::empty()
    }
}

impl core::ops::Deref for ClassPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ClassPartBytes::Inline(bytes) => bytes,
            ClassPartBytes::Long(bytes) => bytes,
        }
    }
}

impl<const N: usize> From<[u8; N]> for ClassPart {
    fn from(bytes: [u8; N]) -> Self {
        let mut part = Self::empty();
        part.put(&bytes);
        part
    }
}

impl From<Vec<u8>> for ClassPart {
    fn from(bytes: Vec<u8>) -> Self {
        Self(ClassPartBytes::Long(bytes))
    }
}
