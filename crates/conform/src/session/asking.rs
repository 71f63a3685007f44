//! Requests to a USB device as bytes, and their ends.

use farbus_model::descriptor::{EndpointDescriptor, kind};
use farbus_model::{EpAddr, SetupPacket, TransferDirection, TransferType};
use farbus_wire::native::FrameKind;
use farbus_wire::native::frame::{BODY_BYTES_MAX, RESIDENCE_BYTES};

use super::talk::{MORE, SessionConversation, TIMED};
use super::wire::{SessionMessage, frame};
use crate::conversation::ExchangeError;

/// The status of a reply whose transfer succeeded.
pub(super) const OK: u8 = 0;

/// The bit of an isochronous request that begins as soon as possible.
const ASAP: u8 = 1 << 4;
/// Bytes of a class part that is a reply's without packets.
const REPLY_BYTES: usize = 8;

/// A request to submit.
#[derive(Clone, Debug)]
pub(super) struct UsbTransferRequest {
    pub part: Vec<u8>,
    pub data: Vec<u8>,
    pub room: u32,
    pub is_in: bool,
    pub flags: u8,
}

/// How a request ended.
#[derive(Clone, Debug)]
pub(super) struct UsbTransferAnswer {
    pub status: u8,
    pub data: Vec<u8>,
    /// Bytes that moved.
    pub moved: u32,
}

impl UsbTransferRequest {
    /// A request with these fields and no data.
    pub fn new(endpoint: u8, bits: u8, qualifier: u16, length: u32) -> Self {
        let mut part = vec![endpoint, bits];
        part.extend(qualifier.to_le_bytes());
        part.extend(length.to_le_bytes());
        Self { part, data: Vec::new(), room: length, is_in: endpoint & 0x80 != 0, flags: 0 }
    }

    /// A control transfer with this OUT data.
    pub fn control(setup: SetupPacket, data: &[u8]) -> Self {
        let endpoint = if setup.direction() == TransferDirection::In { 0x80 } else { 0 };
        let mut ask = Self::new(endpoint, 0, 0, setup.length.into());
        ask.part.extend(setup.to_bytes());
        Self { data: data.to_vec(), ..ask }
    }

    /// GET_DESCRIPTOR of the device descriptor.
    pub fn descriptor() -> Self {
        Self::control(SetupPacket::get_descriptor(kind::DEVICE, 0, 0, 18), &[])
    }

    /// An interrupt or bulk IN transfer.
    pub fn data_in(endpoint: &EndpointDescriptor, length: u32) -> Self {
        let qualifier = if endpoint.kind == TransferType::Bulk { 0 } else { u16::from(endpoint.interval.max(1)) };
        Self::new(endpoint.address.as_byte(), endpoint.kind.as_attributes(), qualifier, length)
    }

    /// A bulk OUT transfer.
    pub fn bulk_out(endpoint: EpAddr, data: &[u8]) -> Self {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let ask = Self::new(endpoint.as_byte(), TransferType::Bulk.as_attributes(), 0, length);
        Self { data: data.to_vec(), ..ask }
    }

    /// An isochronous IN transfer of so many full packets, as soon as possible.
    pub fn isochronous(endpoint: &EndpointDescriptor, packets: u16) -> Self {
        let each = endpoint.interval_bytes_max();
        let bits = TransferType::Isochronous.as_attributes() | ASAP;
        let interval = u16::from(endpoint.interval.max(1));
        let mut ask = Self::new(endpoint.address.as_byte(), bits, interval, each * u32::from(packets));
        ask.part.extend([0; 4]);
        ask.part.extend(packets.to_le_bytes());
        ask.part.extend([0; 2]);
        ask.part.extend(each.to_le_bytes());
        ask
    }

    /// The frames of the request.
    pub fn frames(&self, attachment: u16, tag: u16) -> Vec<Vec<u8>> {
        let whole = [&self.part[..], &self.data].concat();
        let mut pieces = whole.chunks(BODY_BYTES_MAX / 2).peekable();
        let mut kind = FrameKind::Request.code();
        let mut flags = self.flags;
        let mut frames = Vec::new();
        while let Some(piece) = pieces.next() {
            let more = if pieces.peek().is_some() { MORE } else { 0 };
            frames.push(frame(kind, flags | more, attachment, tag, piece));
            (kind, flags) = (FrameKind::Data.code(), 0);
        }
        frames
    }

    /// Reads the end of this request out of a reply.
    fn end(&self, reply: &SessionMessage) -> Result<UsbTransferAnswer, ExchangeError> {
        let broken = |what: String| ExchangeError::Broken(format!("the reply of tag {}: {what}", reply.tag));
        if reply.flags.timed != (self.flags & TIMED != 0) {
            return Err(broken(format!("timed is {}", reply.flags.timed)));
        }
        let body = match reply.flags.timed {
            false => &reply.body[..],
            true => reply.body.get(RESIDENCE_BYTES..).ok_or_else(|| broken("it ends within its times".to_owned()))?,
        };
        let (status, moved, data) = if reply.flags.plain {
            let moved = if self.is_in { body.len() } else { self.room as usize };
            (OK, moved, body)
        } else {
            let part = body.get(..REPLY_BYTES).ok_or_else(|| broken("it ends within its own part".to_owned()))?;
            let packets = usize::from(u16::from_le_bytes([part[2], part[3]]));
            let moved = u32::from_le_bytes([part[4], part[5], part[6], part[7]]) as usize;
            let behind = match part[1] {
                0 => 0,
                1 => 4,
                2 => 4 + 4 * packets,
                other => return Err(broken(format!("the shape is {other}"))),
            };
            let data = body.get(REPLY_BYTES + behind..);
            (part[0], moved, data.ok_or_else(|| broken("it ends within its packets".to_owned()))?)
        };
        let follow = if self.is_in { moved } else { 0 };
        if moved > self.room as usize || data.len() != follow {
            return Err(broken(format!("{moved} bytes moved of {}, {} follow", self.room, data.len())));
        }
        Ok(UsbTransferAnswer { status, data: data.to_vec(), moved: moved as u32 })
    }
}

/// Waits for the reply to a request that was sent.
pub(super) fn reply(
    talk: &mut SessionConversation,
    attachment: u16,
    tag: u16,
    ask: &UsbTransferRequest,
) -> Result<UsbTransferAnswer, ExchangeError> {
    let is_end = |m: &SessionMessage| m.attachment == attachment && m.kind == FrameKind::Closed;
    let is_it = |m: &SessionMessage| m.kind == FrameKind::Reply && (m.attachment, m.tag) == (attachment, tag);
    let found = talk.wait(|message| is_it(message) || is_end(message))?;
    if is_end(&found) {
        return Err(ExchangeError::Broken(format!("attachment {attachment} was closed")));
    }
    ask.end(&found)
}

/// Submits a request and waits for its reply.
pub(super) fn answer(
    talk: &mut SessionConversation,
    attachment: u16,
    tag: u16,
    ask: &UsbTransferRequest,
) -> Result<UsbTransferAnswer, ExchangeError> {
    talk.send_all(&ask.frames(attachment, tag))?;
    reply(talk, attachment, tag, ask)
}
