//! The limits of a turn, however its frames travel.

use std::time::{Duration, Instant as Moment};

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{GROWTH_BYTES_MAX, ModuleNeighbor, ModuleOutput};
use farbus_model::module_abi::ModuleAbiFrame;
use farbus_model::{Instant, Payload};

/// Bytes of a frame: the longest message and what halves add.
pub const FRAME_BYTES_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX + (64 << 10);
/// The most bytes of answers in one turn: two of the longest messages.
pub const TURN_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// The most frames of answers in one turn: as many as a buffering module may hold back of a credit.
pub const TURN_FRAMES_MAX: usize = 4096;

/// Carries frames to a module and back. After an error (a sentence) the module is cut off and called no more.
pub trait ModuleChannel: Send {
    /// One turn. Returns when the module wants to be called next.
    fn exchange(
        &mut self,
        frame: &ModuleFrame<'_>,
        reply_reader: &mut ReplyReader<'_>,
    ) -> Result<Option<Instant>, String>;
}

/// What a module is sent: a frame, as on pipes, and the payload behind it.
pub struct ModuleFrame<'a> {
    /// The frame, preceded by its length.
    pub frame: &'a [u8],
    /// The frame's payload.
    pub payload: &'a Payload,
}

/// How much was answered in a turn.
#[derive(Default)]
pub struct ReplyCount {
    frames: usize,
    bytes: usize,
}

impl ReplyCount {
    /// Adds so many bytes.
    pub fn add_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        if self.bytes > TURN_BYTES_MAX { Err("it says more than anybody asked for".to_owned()) } else { Ok(()) }
    }

    /// Adds a frame, or what takes the place of one.
    pub fn add_frame(&mut self) -> Result<(), String> {
        self.frames += 1;
        if self.frames > TURN_FRAMES_MAX { Err("it says too much in one turn".to_owned()) } else { Ok(()) }
    }
}

/// Reads the answers during a turn, and limits its time.
pub struct ReplyReader<'a> {
    out: &'a mut ModuleOutput,
    /// The payload that the module was sent, until it passes it on.
    payload: Option<Payload>,
    count: ReplyCount,
    patience: Duration,
    until: Moment,
}

impl<'a> ReplyReader<'a> {
    /// Starts a turn of `patience` at most. `payload` is what the module may pass on unchanged: that of the message
    /// that it was sent; `None` if it was sent something else.
    pub fn new(patience: Duration, payload: Option<Payload>, out: &'a mut ModuleOutput) -> Self {
        Self { out, payload, count: ReplyCount::default(), patience, until: Moment::now() + patience }
    }

    /// Counts so many more bytes of answers.
    pub fn count_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.count.add_bytes(bytes)
    }

    /// Counts one more frame of answers, or what takes the place of one.
    pub fn count_frame(&mut self) -> Result<(), String> {
        self.count.add_frame()
    }

    /// Handles an answer. If it ends the turn, returns when the module wants to be called next.
    pub fn hear(&mut self, frame: ModuleAbiFrame) -> Result<Option<Option<Instant>>, String> {
        self.count_frame()?;
        match frame {
            ModuleAbiFrame::Message(ModuleNeighbor::Above, message) => self.out.above(message),
            ModuleAbiFrame::Message(ModuleNeighbor::Below, message) => self.out.below(message),
            ModuleAbiFrame::Message(ModuleNeighbor::Peer, message) => self.out.aside(message.payload),
            ModuleAbiFrame::Passed(to, mut message) => {
                message.payload = self.payload.take().ok_or("it passes on what it was not told, or a second time")?;
                if to == ModuleNeighbor::Above { self.out.above(message) } else { self.out.below(message) }
            }
            ModuleAbiFrame::Fail(why) => return Err(why),
            ModuleAbiFrame::Done(due) => return Ok(Some(due)),
        }
        Ok(None)
    }

    /// How much of the turn's time is left.
    pub fn left(&self) -> Result<Duration, String> {
        self.until
            .checked_duration_since(Moment::now())
            .ok_or_else(|| format!("it did not answer within {:?}", self.patience))
    }
}
