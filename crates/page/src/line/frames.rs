//! Frames: how long the message is, four bytes with the highest first, and the message.

use std::fmt;
use std::io::{self, ErrorKind};

use serde::Serialize;
use tokio::net::UnixStream;

/// What is received at once, bytes.
const READ_BYTES: usize = 64 << 10;
const HEAD_BYTES: usize = 4;

/// A frame that is longer than may be sent this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OversizedFrame {
    /// How long it is, bytes.
    pub bytes: usize,
    /// How long it may be, bytes.
    pub bytes_max: usize,
}

impl fmt::Display for OversizedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a message of {} bytes, and {} are allowed", self.bytes, self.bytes_max)
    }
}

/// Finds the frames in what was received. It holds what has arrived of one frame, however long that is said to be.
#[derive(Debug)]
pub struct FrameDecoder {
    bytes_max: usize,
    held: Vec<u8>,
    /// Where in it the next frame begins.
    start: usize,
}

impl FrameDecoder {
    /// For frames of this length at most, without the head.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, held: Vec::new(), start: 0 }
    }

    /// These bytes came. Take all frames that are complete before the next ones.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.held.drain(..self.start);
        self.start = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// [`OversizedFrame`]: nothing after it can be read.
    pub fn poll_frame(&mut self) -> Result<Option<&[u8]>, OversizedFrame> {
        let Some((head, rest)) = self.held[self.start..].split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if bytes > self.bytes_max {
            return Err(OversizedFrame { bytes, bytes_max: self.bytes_max });
        }
        if rest.len() < bytes {
            return Ok(None);
        }
        let begin = self.start + HEAD_BYTES;
        self.start = begin + bytes;
        Ok(Some(&self.held[begin..self.start]))
    }
}

/// The message as a frame.
///
/// # Errors
/// [`OversizedFrame`].
pub fn encoded(message: &impl Serialize, bytes_max: usize) -> Result<Vec<u8>, OversizedFrame> {
    let mut bytes = vec![0; HEAD_BYTES];
    // The messages of a line have no map whose keys are no text, which alone cannot be JSON.
    serde_json::to_writer(&mut bytes, message).map_err(|_| OversizedFrame { bytes: usize::MAX, bytes_max })?;
    let length = bytes.len() - HEAD_BYTES;
    let too_long = OversizedFrame { bytes: length, bytes_max };
    let head = u32::try_from(length).ok().filter(|_| length <= bytes_max).ok_or(too_long)?;
    bytes[..HEAD_BYTES].copy_from_slice(&head.to_be_bytes());
    Ok(bytes)
}

/// Sends all of these bytes.
///
/// # Errors
/// The system's error: the other end is closed, for example.
pub async fn send(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives what has come, and gives it to the decoder. Returns false at the end.
///
/// # Errors
/// The system's error.
pub async fn receive(stream: &UnixStream, decoder: &mut FrameDecoder) -> io::Result<bool> {
    let mut bytes = vec![0; READ_BYTES];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut bytes) {
            Ok(received) => {
                decoder.handle_bytes(&bytes[..received]);
                return Ok(received > 0);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_length_in_four_bytes_before_it() {
        assert_eq!(encoded(&"hi", 4), Ok(b"\0\0\0\x04\"hi\"".to_vec()));
        assert_eq!(encoded(&"hi!", 4), Err(OversizedFrame { bytes: 5, bytes_max: 4 }));
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_comes_and_takes_no_memory() {
        let mut decoder = FrameDecoder::new(1 << 10);
        decoder.handle_bytes(&[0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.poll_frame(), Err(OversizedFrame { bytes: 0x7fff_ffff, bytes_max: 1 << 10 }));
        assert!(decoder.held.capacity() < 1 << 10);
    }

    /// Whatever arrives, in whatever pieces: the same frames as all of it at once, and never more held than came.
    #[test]
    fn fuzz_frames_of_a_page() {
        const MESSAGES: [&str; 4] = ["\0\0\0\x02{}", "\0\0\0\x04null", "\0\0\x04\x01", "\0\0\0\0"];
        const PIECES: [&str; 4] = ["\0", "\0\0\0", "\x7f", "\0\0\x04\0"];
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_frames_of_a_page", |input| {
            let bytes = input.text(&MESSAGES, &PIECES).into_bytes();
            let all = |pieces: Vec<&[u8]>| {
                let (mut decoder, mut frames) = (FrameDecoder::new(1 << 10), Vec::new());
                for piece in pieces {
                    decoder.handle_bytes(piece);
                    assert!(decoder.held.len() <= bytes.len());
                    loop {
                        match decoder.poll_frame() {
                            Ok(Some(frame)) => frames.push(Ok(frame.to_vec())),
                            Ok(None) => break,
                            Err(too_long) => {
                                frames.push(Err(too_long));
                                return frames;
                            }
                        }
                    }
                }
                frames
            };
            let whole = all(vec![&bytes]);
            assert_eq!(all(bytes.chunks(1).collect()), whole);
            assert_eq!(all(bytes.chunks(3).collect()), whole);
            assert!(whole.iter().flatten().all(|frame| frame.len() <= 1 << 10));
        });
    }
}
