//! One end of a usbredir connection: splits the stream into packets, sends the hello, and knows the common
//! capabilities.
//!
//! | moment | what may be sent |
//! |---|---|
//! | at first | this end's hello; its header has a 32-bit id whatever the capabilities |
//! | before the other's hello | nothing else: the common capabilities, and so the form of a header, are unknown |
//! | after it | everything that both ends can do |
//!
//! A stream may move with its device to another connection, and continues there at the next byte: neither end says
//! hello, and the common capabilities stay the same ([`RedirConn::continued`]). QEMU's live migration is such a move.

use farbus_model::{BufferPool, SessionLimits};

use super::message::{RedirMessage, RedirPacket, RedirPacketSizes, kind};
use super::words::{RedirCapability, RedirCapabilitySet, RedirRole};
use crate::buffer::{ReceiveBuffer, SendBuffer, SendSlices};
use crate::usbip::ProtocolViolation;

/// A header with an id of 64 bits; one with 32 bits has four bytes less.
const HEADER_BYTES_MAX: usize = 16;

/// A connection, either end's.
#[derive(Debug)]
pub struct RedirConn {
    side: RedirRole,
    ours: RedirCapabilitySet,
    /// `None` until the other end has said hello.
    theirs: Option<RedirCapabilitySet>,
    incoming: ReceiveBuffer,
    outgoing: SendBuffer,
    /// Space in which a packet is assembled.
    scratch: Vec<u8>,
}

impl RedirConn {
    /// Makes a connection, and sends this end's hello on it.
    pub fn new(side: RedirRole, version: &str, ours: RedirCapabilitySet, limits: &SessionLimits) -> Self {
        let mut conn = Self::over(side, ours, None, limits);
        let hello = RedirMessage::Hello { version: version.to_owned(), caps: ours };
        conn.put(&RedirPacket { id: 0, message: hello });
        conn
    }

    /// Continues a stream on another connection: no hello in either direction.
    pub fn continued(
        side: RedirRole,
        ours: RedirCapabilitySet,
        theirs: RedirCapabilitySet,
        limits: &SessionLimits,
    ) -> Self {
        Self::over(side, ours, Some(theirs), limits)
    }

    fn over(
        side: RedirRole,
        ours: RedirCapabilitySet,
        theirs: Option<RedirCapabilitySet>,
        limits: &SessionLimits,
    ) -> Self {
        let (incoming, outgoing) =
            (ReceiveBuffer::new(limits.receive_bytes).copying(limits.copied_bytes_max), SendBuffer::default());
        Self { side, ours, theirs, incoming, outgoing, scratch: Vec::new() }
    }

    /// The common capabilities; `None` until the other end has said hello.
    pub fn common(&self) -> Option<RedirCapabilitySet> {
        self.theirs.map(|theirs| self.ours.common(theirs))
    }

    /// The other end's capabilities: part of the state of a stream that moves.
    pub fn theirs(&self) -> Option<RedirCapabilitySet> {
        self.theirs
    }

    fn caps(&self) -> RedirCapabilitySet {
        self.common().unwrap_or(RedirCapabilitySet::NONE)
    }

    fn header_bytes(&self) -> usize {
        if self.caps().has(RedirCapability::Ids64) { HEADER_BYTES_MAX } else { HEADER_BYTES_MAX - 4 }
    }

    /// The space for received bytes; never empty.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.incoming.space(HEADER_BYTES_MAX)
    }

    /// `count` bytes arrived.
    pub fn handle_received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// The other end's next packet, if its bytes are all there, including the hello. A transfer's data is a window on
    /// the received bytes.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the bytes are no packet of this protocol, and the connection has to end.
    pub fn poll_packet(&mut self) -> Result<Option<RedirPacket>, ProtocolViolation> {
        let header_bytes = self.header_bytes();
        let Some(header) = self.incoming.bytes().get(..header_bytes) else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (kind, length) = (word(0), word(4));
        let high = if header_bytes == HEADER_BYTES_MAX { word(12) } else { 0 };
        let id = u64::from(high) << 32 | u64::from(word(8));
        if (kind == kind::HELLO) != self.theirs.is_none() {
            return Err(ProtocolViolation::new("type", u64::from(kind), "a hello comes first, and once"));
        }
        let shape = RedirPacketSizes::of(kind, self.side, self.caps())?;
        let length = length as usize;
        if !(shape.fixed..=shape.fixed + shape.data_max).contains(&length) {
            return Err(ProtocolViolation::new(
                "length",
                length as u64,
                "it is that of its type, and within the type's limit",
            ));
        }
        let total = header_bytes + length;
        let Some(body) = self.incoming.bytes().get(header_bytes..total) else {
            self.incoming.want(total);
            return Ok(None);
        };
        let (fixed, data) = body.split_at(shape.fixed);
        let mut message = RedirMessage::decode(kind, fixed, data, self.side, self.caps())?;
        message.set_payload(self.incoming.window(header_bytes + shape.fixed..total));
        self.incoming.consume(total);
        if let RedirMessage::Hello { caps, .. } = &message {
            self.theirs = Some(*caps);
        }
        Ok(Some(RedirPacket { id, message }))
    }

    /// Received bytes of an incomplete packet: part of the state of a stream that moves.
    pub fn unread(&self) -> &[u8] {
        self.incoming.bytes()
    }

    /// Sends bytes that are whole packets already: those that a moved stream has brought along.
    pub fn send_again(&mut self, bytes: Vec<u8>, pool: &mut BufferPool) {
        self.outgoing.put_payload(bytes.into(), pool);
    }

    /// Sends a packet.
    ///
    /// # Panics
    /// Before the other end has said hello, or if the common capabilities exclude this packet: a bug of farbus.
    pub fn send(&mut self, mut packet: RedirPacket, pool: &mut BufferPool) {
        assert!(self.theirs.is_some(), "nothing is said before hello");
        let kind = packet.message.kind();
        assert!(RedirPacketSizes::of(kind, self.side.other(), self.caps()).is_ok(), "{kind} is ours to say");
        let payload = packet.message.take_payload();
        self.put_with(&packet, payload.len());
        self.outgoing.put_payload(payload, pool);
    }

    fn put(&mut self, packet: &RedirPacket) {
        self.put_with(packet, 0);
    }

    fn put_with(&mut self, packet: &RedirPacket, payload_bytes: usize) {
        let (caps, header_bytes) = (self.caps(), self.header_bytes());
        self.scratch.clear();
        self.scratch.resize(header_bytes, 0);
        packet.message.encode(caps, &mut self.scratch);
        let length = (self.scratch.len() - header_bytes + payload_bytes) as u32;
        self.scratch[..4].copy_from_slice(&packet.message.kind().to_le_bytes());
        self.scratch[4..8].copy_from_slice(&length.to_le_bytes());
        self.scratch[8..header_bytes].copy_from_slice(&packet.id.to_le_bytes()[..header_bytes - 8]);
        self.outgoing.put(&self.scratch);
    }

    /// Bytes waiting to be sent.
    pub fn backlog_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// Header bytes waiting to be sent, including small payloads: these grow when a peer sends and never reads.
    pub fn backlog_header_bytes(&self) -> usize {
        self.outgoing.header_bytes()
    }

    /// The runs of memory to send next, in order; empty when there is nothing.
    pub fn poll_transmit(&self) -> SendSlices<'_> {
        self.outgoing.runs()
    }

    /// `count` bytes of [`RedirConn::poll_transmit`] were sent.
    pub fn handle_transmitted(&mut self, count: usize, pool: &mut BufferPool) {
        self.outgoing.sent(count, pool);
    }
}
