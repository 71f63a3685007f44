//! The stream class: frames from a source, each a message with its boundaries (requirements N1, I4).
//!
//! ```text
//!   event     0 sequence 8  8 moment 8   then the frame
//! ```
//!
//! Frames are sent as far as the importer has granted them. An importer that opened the stream exclusively gets every
//! frame, and the source waits for it. One that opened it to read, beside others, gets the latest frames, and sees by
//! the sequence numbers which ones it missed.

use std::fmt;

use farbus_model::Payload;
use farbus_model::limits::{FRAME_BYTES_MAX, FRAMES_BYTES_MAX, FRAMES_MAX};

use super::message::ClassPart;
use super::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// One frame of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamFrame {
    /// How many frames the source made before this one: a gap between two frames means that frames were not sent.
    pub sequence: u64,
    /// When the frame was made, ns of an exporter's clock: comparable with other frames of the stream.
    pub moment_ns: u64,
    /// The frame's bytes.
    pub data: Payload,
}

/// Bytes of an event before the frame.
pub const EVENT_BYTES: usize = 16;

impl StreamFrame {
    /// The class part of its message; the data follows.
    pub fn part(&self) -> ClassPart {
        let mut part = ClassPart::empty();
        part.put(&self.sequence.to_le_bytes());
        part.put(&self.moment_ns.to_le_bytes());
        part
    }

    /// Decodes a frame from its whole message.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no source sends this.
    pub fn decode(mut message: Payload) -> Result<Self, ProtocolViolation> {
        let part = message.split_front(EVENT_BYTES);
        let bytes = part.contiguous();
        let mut reader = FieldReader::new(&bytes);
        let (sequence, moment_ns) = (reader.u64("sequence")?, reader.u64("moment")?);
        Ok(Self { sequence, moment_ns, data: message })
    }
}

/// A picture's pixel format, as the four letters of Video4Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PixelFormat(pub [u8; 4]);

/// The named formats: format, name, bytes of a pixel.
const NAMED: [(PixelFormat, &str, u32); 3] =
    [(PixelFormat::RGB24, "rgb24", 3), (PixelFormat::GREY, "grey", 1), (PixelFormat::YUYV, "yuyv", 2)];

impl PixelFormat {
    /// Red, green and blue, 8 bits each.
    pub const RGB24: Self = Self(*b"RGB3");
    /// Brightness, 8 bits.
    pub const GREY: Self = Self(*b"GREY");
    /// Two pixels in four bytes: brightness 8, blue, brightness 8, red.
    pub const YUYV: Self = Self(*b"YUYV");

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        NAMED.iter().find(|(_, other, _)| *other == name).map(|(format, ..)| *format)
    }

    /// Bytes of a pixel, where that is known.
    pub fn bytes(self) -> Option<u32> {
        NAMED.iter().find(|(format, ..)| *format == self).map(|(.., bytes)| *bytes)
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED.iter().find(|(format, ..)| format == self) {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0.escape_ascii()),
        }
    }
}

/// The kind of a stream's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFormat {
    /// Frames of arbitrary bytes, of a format that farbus does not know.
    Bytes,
    /// One picture per frame.
    Video {
        /// The pixel format.
        pixels: PixelFormat,
        /// Pixels per line.
        width: u16,
        /// Lines per picture.
        height: u16,
        /// Pictures per thousand seconds; 0 if that is not known.
        rate_mhz: u32,
    },
}

impl fmt::Display for StreamFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes => f.write_str("bytes"),
            Self::Video { pixels, width, height, rate_mhz: 0 } => write!(f, "{pixels} {width}x{height}"),
            Self::Video { pixels, width, height, rate_mhz } => {
                write!(f, "{pixels} {width}x{height} at {}/s", f64::from(rate_mhz) / 1000.0)
            }
        }
    }
}

/// The description of a stream, as [`super::control::OpenReply`] carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamDescription {
    /// The kind of its frames.
    pub format: StreamFormat,
    /// Bytes of a frame at most.
    pub frame_bytes_max: u32,
}

const BYTES: u8 = 0;
const VIDEO: u8 = 1;

impl StreamDescription {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let kind = if self.format == StreamFormat::Bytes { BYTES } else { VIDEO };
        let mut bytes = vec![kind];
        bytes.extend(self.frame_bytes_max.to_le_bytes());
        if let StreamFormat::Video { pixels, width, height, rate_mhz } = self.format {
            bytes.extend(pixels.0);
            bytes.extend(width.to_le_bytes());
            bytes.extend(height.to_le_bytes());
            bytes.extend(rate_mhz.to_le_bytes());
        }
        bytes
    }

    /// Decodes a description.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no such stream can exist.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let kind = reader.u8("format")?;
        let frame_bytes_max = reader.u32("frame size")?;
        if !(1..=FRAME_BYTES_MAX).contains(&frame_bytes_max) {
            return Err(ProtocolViolation::new("frame size", frame_bytes_max.into(), "a frame has 1 byte to 16 MiB"));
        }
        let format = match kind {
            BYTES => StreamFormat::Bytes,
            VIDEO => {
                let pixels = PixelFormat(reader.u32("pixel format")?.to_le_bytes());
                let (width, height) = (reader.u16("width")?, reader.u16("height")?);
                let rate_mhz = reader.u32("rate")?;
                if width == 0 || height == 0 {
                    return Err(ProtocolViolation::new("width", width.into(), "a picture has points"));
                }
                StreamFormat::Video { pixels, width, height, rate_mhz }
            }
            _ => return Err(ProtocolViolation::new("format", kind.into(), "frames are bytes or pictures")),
        };
        // Fields of a later release may follow.
        Ok(Self { format, frame_bytes_max })
    }

    /// Frames that may be under way to one reader: at least two, so that one is sent while the other is used.
    pub fn window(&self) -> u32 {
        (FRAMES_BYTES_MAX / self.frame_bytes_max.max(1)).clamp(2, FRAMES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURES: StreamFormat =
        StreamFormat::Video { pixels: PixelFormat::RGB24, width: 640, height: 480, rate_mhz: 29_970 };

    #[test]
    fn a_stream_is_described_and_one_that_cannot_be_is_refused() {
        for format in [StreamFormat::Bytes, PICTURES] {
            let description = StreamDescription { format, frame_bytes_max: 640 * 480 * 3 };
            let bytes = description.encode();
            assert_eq!(StreamDescription::decode(&bytes), Ok(description));
            assert!((0..bytes.len()).all(|end| StreamDescription::decode(&bytes[..end]).is_err()));
            assert_eq!(
                StreamDescription::decode(&[&bytes[..], &[0]].concat()),
                Ok(description),
                "a later release may say more"
            );
        }
        let refused = |format, frame_bytes_max| {
            StreamDescription::decode(&StreamDescription { format, frame_bytes_max }.encode()).is_err()
        };
        assert!(refused(StreamFormat::Bytes, 0) && refused(StreamFormat::Bytes, FRAME_BYTES_MAX + 1));
        assert!(refused(StreamFormat::Video { pixels: PixelFormat::GREY, width: 0, height: 1, rate_mhz: 0 }, 1));
        assert_eq!(StreamDescription::decode(&[2, 1, 0, 0, 0]).unwrap_err().field, "format");
    }

    #[test]
    fn a_frame_survives_the_way_and_half_a_head_is_none() {
        let frame = StreamFrame { sequence: 7, moment_ns: 1 << 40, data: vec![1, 2, 3].into() };
        let message = Payload::joined([frame.part().to_vec().into(), frame.data.clone()]);
        assert_eq!(StreamFrame::decode(message), Ok(frame));
        assert!((0..EVENT_BYTES).all(|bytes| StreamFrame::decode(vec![0; bytes].into()).is_err()));
        assert_eq!(StreamFrame::decode(vec![0; EVENT_BYTES].into()).map(|frame| frame.data.len()), Ok(0));
    }

    #[test]
    fn frames_under_way_are_bounded_in_number_and_in_bytes() {
        let window = |frame_bytes_max| StreamDescription { format: StreamFormat::Bytes, frame_bytes_max }.window();
        assert_eq!([window(1), window(640 * 480 * 3), window(FRAME_BYTES_MAX)], [FRAMES_MAX, 18, 2]);
    }

    #[test]
    fn stream_description_is_readable() {
        assert_eq!(PICTURES.to_string(), "rgb24 640x480 at 29.97/s");
        let odd = StreamFormat::Video { pixels: PixelFormat(*b"MJ\x01G"), width: 1, height: 2, rate_mhz: 0 };
        assert_eq!((odd.to_string().as_str(), StreamFormat::Bytes.to_string().as_str()), ("MJ\\x01G 1x2", "bytes"));
        assert_eq!(PixelFormat::named("yuyv").and_then(PixelFormat::bytes), Some(2));
    }
}
