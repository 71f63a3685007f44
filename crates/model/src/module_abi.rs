//! The frames between a host and a module that is a program of its own (requirement I3). `docs/modules.md` describes
//! them for authors of modules.
//!
//! ```text
//!   every frame   0 what 1   1 …        little-endian
//!   start   1     1 version 1  2 role 1  3 class 1  4 failed: length 2, bytes  … options, to the end
//!   message 2     1 from or to 1  2 kind 1  3 pair 1  4 now 8 (to the host: zeros)  12 id 8  20 head length 2, head, payload
//!   time    3     1 now 8
//!   done    4     1 due 8, all ones: no moment
//!   fail    5     1 a sentence, to the end
//!   passed  6     a message without a payload: that of the message which this answers goes on with it, unsaid (since version 2)
//! ```
//!
//! On pipes each frame has its length before it, 4 bytes that do not count themselves; elsewhere the pointer to a frame
//! comes with its length.
//!
//! The host sends *start* at the beginning of every use, then *message* and *time*. The module answers each with any
//! number of *messages*, and ends the answer with *done* (or *fail*). *Passed* stands for one message, once: a module
//! that changes no data sends it instead of the data.

use crate::module::{ModuleDeviceClass, ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleRole};
use crate::payload::Payload;
use crate::time::Instant;

/// The version of these frames.
pub const VERSION: u8 = 2;
/// Bytes of a frame's length, where one travels.
pub const LENGTH_BYTES: usize = 4;
/// Bytes of a message before its head.
pub const MESSAGE_BYTES: usize = 22;

const START: u8 = 1;
const MESSAGE: u8 = 2;
const TIME: u8 = 3;
const DONE: u8 = 4;
const FAIL: u8 = 5;
const PASSED: u8 = 6;

/// The *start* frame that begins a use, with its length in front.
pub fn start(role: ModuleRole, class: ModuleDeviceClass, failed: &[u8], options: &str) -> Vec<u8> {
    let class = match class {
        ModuleDeviceClass::Usb => 1,
        ModuleDeviceClass::Block => 2,
        ModuleDeviceClass::Stream => 3,
        ModuleDeviceClass::Private => 128,
    };
    let mut bytes = vec![0, 0, 0, 0, START, VERSION, role as u8, class];
    bytes.extend((failed.len() as u16).to_le_bytes());
    bytes.extend(failed);
    bytes.extend(options.as_bytes());
    measured(bytes, 0)
}

/// Whether this frame was made by [`start`]: all earlier exchanges are over.
pub fn is_start(frame: &[u8]) -> bool {
    frame.get(LENGTH_BYTES) == Some(&START)
}

/// The *message* frame up to the payload, with the length of both in front.
pub fn message(now: Instant, from: ModuleNeighbor, message: &ModuleMessage) -> Vec<u8> {
    let pair = if let ModuleMessageKind::Aside(pair) = message.kind { pair } else { 0 };
    let from = match from {
        ModuleNeighbor::Above => 0,
        ModuleNeighbor::Below => 1,
        ModuleNeighbor::Peer => 2,
    };
    let mut bytes = vec![0, 0, 0, 0, MESSAGE, from, message.kind.code(), pair];
    bytes.extend(now.as_nanos().to_le_bytes());
    bytes.extend(message.id.to_le_bytes());
    bytes.extend((message.head.len() as u16).to_le_bytes());
    message.head.runs().for_each(|run| bytes.extend_from_slice(run));
    measured(bytes, message.payload.len())
}

/// The *time* frame, with its length in front.
pub fn time(now: Instant) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, TIME];
    bytes.extend(now.as_nanos().to_le_bytes());
    measured(bytes, 0)
}

fn measured(mut bytes: Vec<u8>, behind: usize) -> Vec<u8> {
    let length = (bytes.len() - 4 + behind) as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// A frame from a module.
#[derive(Clone, Debug, PartialEq)]
pub enum ModuleAbiFrame {
    /// A message, and where it goes.
    Message(ModuleNeighbor, ModuleMessage),
    /// A message, and where it goes; its payload is that of the message being answered.
    Passed(ModuleNeighbor, ModuleMessage),
    /// The end of the answer, and when the module wants to be called.
    Done(Option<Instant>),
    /// The module cannot continue, for this reason.
    Fail(String),
}

/// Why a module's bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleAbiError(pub &'static str);

/// Bytes of the frame at the front, once its length has arrived.
///
/// # Errors
/// [`ModuleAbiError`] if it is longer than `bytes_max`.
pub fn frame_bytes(bytes: &[u8], bytes_max: usize) -> Result<Option<usize>, ModuleAbiError> {
    let Some(length) = bytes.first_chunk().map(|length| u32::from_le_bytes(*length) as usize) else { return Ok(None) };
    match length {
        0 => Err(ModuleAbiError("a frame of no bytes")),
        _ if length > bytes_max => Err(ModuleAbiError("a frame that is longer than any message")),
        _ => Ok(Some(4 + length)),
    }
}

/// Decodes a whole frame of a module, without its length.
///
/// # Errors
/// [`ModuleAbiError`] if it is not a valid frame.
pub fn decode(frame: &[u8]) -> Result<ModuleAbiFrame, ModuleAbiError> {
    let (what, words) = frame.split_first().ok_or(ModuleAbiError("a frame of no bytes"))?;
    match *what {
        MESSAGE => {
            let (to, message, at) = decode_message(frame)?;
            Ok(ModuleAbiFrame::Message(to, ModuleMessage { payload: frame[at..].into(), ..message }))
        }
        PASSED => match decode_message(frame)? {
            (ModuleNeighbor::Peer, ..) => Err(ModuleAbiError("what it was told, to its other half")),
            (to, message, at) if at == frame.len() => Ok(ModuleAbiFrame::Passed(to, message)),
            _ => Err(ModuleAbiError("a payload with what it passes on as it was")),
        },
        DONE => {
            let due =
                words.try_into().map(u64::from_le_bytes).map_err(|_| ModuleAbiError("a done of another length"))?;
            Ok(ModuleAbiFrame::Done((due != u64::MAX).then(|| Instant::from_nanos(due))))
        }
        FAIL => Ok(ModuleAbiFrame::Fail(String::from_utf8_lossy(&words[..words.len().min(512)]).into_owned())),
        _ => Err(ModuleAbiError("a frame of another kind")),
    }
}

/// Where the payload of a message begins, from the first [`MESSAGE_BYTES`] of a frame; `None` if it is no message.
pub fn payload_at(frame: &[u8]) -> Option<usize> {
    frame.get(..MESSAGE_BYTES).filter(|words| words[0] == MESSAGE).map(behind_head)
}

fn behind_head(words: &[u8]) -> usize {
    MESSAGE_BYTES + usize::from(u16::from_le_bytes([words[20], words[21]]))
}

/// A message without its payload, where it goes, and where in the frame its payload begins.
fn decode_message(frame: &[u8]) -> Result<(ModuleNeighbor, ModuleMessage, usize), ModuleAbiError> {
    let short = ModuleAbiError("a message without all its fields");
    let words = frame.get(..MESSAGE_BYTES).ok_or(short)?;
    let to = match words[1] {
        0 => ModuleNeighbor::Above,
        1 => ModuleNeighbor::Below,
        2 => ModuleNeighbor::Peer,
        _ => return Err(ModuleAbiError("a message to nobody")),
    };
    let kind = match words[2] {
        0 => ModuleMessageKind::Request,
        1 => ModuleMessageKind::Completion,
        2 => ModuleMessageKind::Cancel,
        3 => ModuleMessageKind::Cancelled,
        4 => ModuleMessageKind::Event,
        5 => ModuleMessageKind::Aside(words[3]),
        _ => return Err(ModuleAbiError("a message of another kind")),
    };
    let id = u64::from_le_bytes(words[12..20].try_into().map_err(|_| short)?);
    let at = behind_head(words);
    let head = frame.get(MESSAGE_BYTES..at).ok_or(ModuleAbiError("a head that is longer than its message"))?;
    Ok((to, ModuleMessage { kind, id, head: Payload::from(head), payload: Payload::Empty }, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: ModuleMessageKind) -> ModuleMessage {
        ModuleMessage { kind, id: 0x0102_0304, head: vec![1, 2, 3].into(), payload: vec![4; 10].into() }
    }

    #[test]
    fn a_message_that_is_said_back_is_the_same() {
        let kinds = [
            ModuleMessageKind::Request,
            ModuleMessageKind::Completion,
            ModuleMessageKind::Cancel,
            ModuleMessageKind::Cancelled,
            ModuleMessageKind::Event,
            ModuleMessageKind::Aside(3),
        ];
        for kind in kinds {
            for side in [ModuleNeighbor::Above, ModuleNeighbor::Below, ModuleNeighbor::Peer] {
                let sample = sample(kind);
                let mut frame = message(Instant::from_nanos(7), side, &sample);
                frame.extend(sample.payload.contiguous().iter());
                assert_eq!(frame_bytes(&frame, 1000), Ok(Some(frame.len())));
                let frame = &frame[LENGTH_BYTES..];
                assert_eq!(decode(frame), Ok(ModuleAbiFrame::Message(side, sample)));
                assert_eq!(payload_at(frame), Some(MESSAGE_BYTES + 3));
                for end in 0..MESSAGE_BYTES + 3 {
                    assert!(decode(&frame[..end]).is_err(), "{end} bytes");
                }
            }
        }
    }

    #[test]
    fn passed_frame_has_no_payload_and_goes_above_or_below() {
        let bare = ModuleMessage { payload: Payload::Empty, ..sample(ModuleMessageKind::Event) };
        let decoded = |to: ModuleNeighbor, behind: &[u8]| {
            let mut frame = message(Instant::ZERO, to, &bare).split_off(LENGTH_BYTES);
            frame[0] = PASSED;
            frame.extend(behind);
            decode(&frame)
        };
        for to in [ModuleNeighbor::Above, ModuleNeighbor::Below] {
            assert_eq!(decoded(to, &[]), Ok(ModuleAbiFrame::Passed(to, bare.clone())));
            assert!(decoded(to, &[0]).is_err(), "with a payload");
        }
        assert!(decoded(ModuleNeighbor::Peer, &[]).is_err());
    }

    #[test]
    fn invalid_module_frame_is_refused() {
        assert_eq!(frame_bytes(&[1, 0, 0], 10), Ok(None));
        assert!(frame_bytes(&[0; 4], 10).is_err() && frame_bytes(&[11, 0, 0, 0], 10).is_err());
        let done = |due: u64| [&[DONE][..], &due.to_le_bytes()].concat();
        assert_eq!(decode(&done(u64::MAX)), Ok(ModuleAbiFrame::Done(None)));
        assert_eq!(decode(&done(5)), Ok(ModuleAbiFrame::Done(Some(Instant::from_nanos(5)))));
        assert!(decode(&done(5)[..8]).is_err());
        assert_eq!(decode(b"\x05no"), Ok(ModuleAbiFrame::Fail("no".to_owned())));
        for what in [0, START, TIME, 7, 255] {
            assert!(decode(&[what]).is_err(), "{what}");
        }
        let mut frame =
            message(Instant::ZERO, ModuleNeighbor::Above, &sample(ModuleMessageKind::Request)).split_off(LENGTH_BYTES);
        assert_eq!((payload_at(&frame[..21]), payload_at(&[0; 30])), (None, None));
        for (at, byte) in [(1, 3), (2, 6), (21, 1)] {
            let before = std::mem::replace(&mut frame[at], byte);
            assert!(decode(&frame).is_err(), "byte {at}");
            frame[at] = before;
        }
        assert_eq!(
            start(ModuleRole::Exporter, ModuleDeviceClass::Block, &[9], "x=1"),
            b"\x0a\0\0\0\x01\x02\x01\x02\x01\0\x09x=1"
        );
        assert!(
            is_start(&start(ModuleRole::Importer, ModuleDeviceClass::Usb, &[], "")) && !is_start(&time(Instant::ZERO))
        );
        assert_eq!(time(Instant::from_nanos(1)), b"\x09\0\0\0\x03\x01\0\0\0\0\0\0\0");
    }
}
