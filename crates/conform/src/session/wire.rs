//! One link: bytes out as a check wants them, greetings and frames in.

use std::time::Duration;

use farbus_wire::native::frame::{FrameFlags, HEAD_BYTES};
use farbus_wire::native::{ExporterWelcome, FrameHeader, FrameKind};

use crate::conversation::ExchangeError;
use crate::transport::{PeerLink, ReceiveOutcome};

/// A link to an exporter.
pub(super) struct SessionFrameLink {
    link: Box<dyn PeerLink>,
    received: Vec<u8>,
    patience: Duration,
}

/// A frame, or a message that was put together from its frames.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SessionMessage {
    pub kind: FrameKind,
    pub flags: FrameFlags,
    pub attachment: u16,
    pub tag: u16,
    pub body: Vec<u8>,
}

impl SessionFrameLink {
    pub fn new(link: Box<dyn PeerLink>, patience: Duration) -> Self {
        Self { link, received: Vec::new(), patience }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        match self.link.send(bytes, self.patience) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(count) => {
                Err(ExchangeError::Broken(format!("the exporter took {count} of {} bytes in time", bytes.len())))
            }
            Err(_) => Err(ExchangeError::Closed),
        }
    }

    fn fill(&mut self, want: usize, within: Duration) -> Result<(), ExchangeError> {
        let mut chunk = [0; 16 << 10];
        while self.received.len() < want {
            match self.link.receive(&mut chunk, within) {
                ReceiveOutcome::Bytes(count) => self.received.extend_from_slice(&chunk[..count]),
                ReceiveOutcome::Closed => return Err(ExchangeError::Closed),
                ReceiveOutcome::Silence => return Err(ExchangeError::Silence { have: self.received.len(), want }),
            }
        }
        Ok(())
    }

    /// Reads the answer to a hello.
    pub fn welcome(&mut self) -> Result<ExporterWelcome, ExchangeError> {
        loop {
            match ExporterWelcome::decode(&self.received).map_err(|reject| ExchangeError::Broken(reject.to_string()))? {
                Some((welcome, count)) => {
                    self.received.drain(..count);
                    return Ok(welcome);
                }
                None => self.fill(self.received.len() + 1, self.patience)?,
            }
        }
    }

    /// Reads one frame; `within` is how long its first byte may take.
    pub fn frame(&mut self, within: Duration) -> Result<SessionMessage, ExchangeError> {
        self.fill(1, within)?;
        self.fill(HEAD_BYTES, self.patience)?;
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(&self.received[..HEAD_BYTES]);
        let head =
            FrameHeader::from_bytes(head).map_err(|reject| ExchangeError::Broken(format!("a frame's {reject}")))?;
        let bytes = HEAD_BYTES + usize::from(head.length);
        self.fill(bytes, self.patience)?;
        let body = self.received[HEAD_BYTES..bytes].to_vec();
        self.received.drain(..bytes);
        Ok(SessionMessage { kind: head.kind, flags: head.flags, attachment: head.attachment, tag: head.tag, body })
    }

    /// Waits for the end of the link, and ignores what comes before. `most`: bytes that may come.
    pub fn is_closed_within(&mut self, within: Duration, most: usize) -> bool {
        let mut chunk = [0; 16 << 10];
        let mut came = 0;
        while came < most {
            match self.link.receive(&mut chunk, within) {
                ReceiveOutcome::Bytes(count) => came += count,
                ReceiveOutcome::Closed => return true,
                ReceiveOutcome::Silence => return false,
            }
        }
        false
    }
}

/// The bytes of a frame, right or wrong.
pub(super) fn frame(kind: u8, flags: u8, attachment: u16, tag: u16, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![kind, flags];
    for field in [attachment, tag, length] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}
