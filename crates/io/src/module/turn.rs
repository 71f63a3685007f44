//! What a turn may take and say, whatever way it travels.

use std::time::{Duration, Instant as Moment};

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{GROWTH_BYTES_MAX, Side, Turn};
use farbus_model::module_abi::Said;
use farbus_model::{Instant, Payload};

/// Bytes of a frame: the longest message and what halves add.
pub const FRAME_BYTES_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX + (64 << 10);
/// Bytes that may be said in one turn: two messages of the longest.
pub const TURN_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// Frames that may be said in one turn: as many as a buffering module may hold back of a credit.
pub const TURN_FRAMES_MAX: usize = 4096;

/// How frames travel to a module and back. An error is a sentence: it is cut off, and asked nothing more.
pub trait Channel: Send {
    /// One turn. Says when the module wants to be called next.
    fn exchange(&mut self, told: &Told<'_>, reply_reader: &mut ReplyReader<'_>) -> Result<Option<Instant>, String>;
}

/// What a module is told: a frame, as on pipes, and the payload behind it.
pub struct Told<'a> {
    /// The frame, its length before it.
    pub frame: &'a [u8],
    /// The rest of it.
    pub payload: &'a Payload,
}

/// How much has been said in a turn.
#[derive(Default)]
pub struct Count {
    frames: usize,
    bytes: usize,
}

impl Count {
    /// So many bytes more.
    pub fn add_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.bytes += bytes;
        if self.bytes > TURN_BYTES_MAX { Err("it says more than anybody asked for".to_owned()) } else { Ok(()) }
    }

    /// One frame more, or what takes the place of one.
    pub fn add_frame(&mut self) -> Result<(), String> {
        self.frames += 1;
        if self.frames > TURN_FRAMES_MAX { Err("it says too much in one turn".to_owned()) } else { Ok(()) }
    }
}

/// What is heard during a turn, and for how long.
pub struct ReplyReader<'a> {
    out: &'a mut Turn,
    /// What the module was told, until it passes it on.
    told: Option<Payload>,
    count: Count,
    patience: Duration,
    until: Moment,
}

impl<'a> ReplyReader<'a> {
    /// From now on, of whoever was told a message with this payload, if it was one.
    pub fn new(patience: Duration, told: Option<Payload>, out: &'a mut Turn) -> Self {
        Self { out, told, count: Count::default(), patience, until: Moment::now() + patience }
    }

    /// So many bytes more have been said.
    pub fn count_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.count.add_bytes(bytes)
    }

    /// One frame more has been said, or what takes the place of one.
    pub fn count_frame(&mut self) -> Result<(), String> {
        self.count.add_frame()
    }

    /// Whether that was all; then when it wants to be called.
    pub fn hear(&mut self, said: Said) -> Result<Option<Option<Instant>>, String> {
        self.count_frame()?;
        match said {
            Said::Message(Side::Above, message) => self.out.above(message),
            Said::Message(Side::Below, message) => self.out.below(message),
            Said::Message(Side::Peer, message) => self.out.aside(message.payload),
            Said::Passed(to, mut message) => {
                message.payload = self.told.take().ok_or("it passes on what it was not told, or a second time")?;
                if to == Side::Above { self.out.above(message) } else { self.out.below(message) }
            }
            Said::Fail(why) => return Err(why),
            Said::Done(due) => return Ok(Some(due)),
        }
        Ok(None)
    }

    /// How long it may still take.
    pub fn left(&self) -> Result<Duration, String> {
        self.until
            .checked_duration_since(Moment::now())
            .ok_or_else(|| format!("it did not answer within {:?}", self.patience))
    }
}
