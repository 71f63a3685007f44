//! The eight bytes before every frame of a session.
//!
//! ```text
//!   0       1       2               4               6               8
//!   +-------+-------+---------------+---------------+---------------+----------
//!   | kind  | flags |  attachment   |      tag      |  body length  |  body …
//!   +-------+-------+---------------+---------------+---------------+----------
//! ```
//!
//! Little-endian. A message that is longer than a frame continues in [`FrameKind::Data`] frames of the same attachment
//! and tag. Frames of other messages may come in between, so that an interrupt overtakes a disk's data.

use core::time::Duration;

use crate::reject::ProtocolViolation;

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 8;
/// Bytes of a frame, head included.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Bytes of a frame's body.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Link: asks for a pong. Not counted, like all kinds up to [`FrameKind::Ack`].
    Ping,
    /// Link: answers a ping.
    Pong,
    /// Link: how many counted frames have arrived ([`FrameHeader::acknowledgement`]).
    Ack,
    /// Session: ends on purpose, and every device is given back.
    Goodbye,
    /// Importer: open this device.
    Open,
    /// Exporter: the device is open.
    Opened,
    /// Exporter: the device was not opened.
    Refused,
    /// Importer: close the attachment.
    Close,
    /// Exporter: the attachment has ended, asked for or not.
    Closed,
    /// Importer: the exporter may send this many more events.
    Grant,
    /// Importer: open this device once it migrates to me.
    Inherit,
    /// Exporter: the migration state of the device that is opened next.
    MigrationState,
    /// Importer: the device that is opened next is used through these modules. Exporter: the answers of the modules'
    /// other halves.
    Modules,
    /// Importer: a request.
    Request,
    /// Exporter: the end of a request.
    Reply,
    /// More of the message with this tag.
    Data,
    /// Importer: cancel the request with this tag. Exporter: the cancellation was processed, whatever it found; the tag
    /// is free once the request is answered as well.
    Cancel,
    /// Exporter: an event without a request.
    Event,
    /// From one half of a module to the other.
    Aside,
    /// About a device's reservation; a peer that does not know reservations ignores it.
    Reserve,
    /// Which device an attachment uses ([`super::identity`]); a peer that does not know identities ignores it.
    Identity,
    /// About the lease of an attachment ([`super::lease`]); a peer that does not know leases for a time ignores it.
    Lease,
    /// What becomes of a disk that its importer moves to its own machine ([`super::retire`]); a peer that does not know
    /// it ignores it.
    Retire,
    /// Strings and other descriptors of the USB device that is opened next ([`super::descriptors`]); said to a peer
    /// that asked for it in its greeting.
    Descriptors,
    /// A counted kind of a later version, to be ignored.
    Later(u8),
}

/// A peer may ignore kinds from here on, and [`FrameKind::Reserve`], [`FrameKind::Identity`], [`FrameKind::Lease`],
/// [`FrameKind::Retire`] and [`FrameKind::Descriptors`], if it does not know them.
const LATER_FIRST: u8 = 0x85;

impl FrameKind {
    /// All kinds of this version.
    pub const ALL: [FrameKind; 24] = [
        FrameKind::Ping,
        FrameKind::Pong,
        FrameKind::Ack,
        FrameKind::Goodbye,
        FrameKind::Open,
        FrameKind::Opened,
        FrameKind::Refused,
        FrameKind::Close,
        FrameKind::Closed,
        FrameKind::Grant,
        FrameKind::Inherit,
        FrameKind::MigrationState,
        FrameKind::Modules,
        FrameKind::Request,
        FrameKind::Reply,
        FrameKind::Data,
        FrameKind::Cancel,
        FrameKind::Event,
        FrameKind::Aside,
        FrameKind::Reserve,
        FrameKind::Identity,
        FrameKind::Lease,
        FrameKind::Retire,
        FrameKind::Descriptors,
    ];

    /// The wire's number.
    pub const fn code(self) -> u8 {
        match self {
            FrameKind::Ping => 0,
            FrameKind::Pong => 1,
            FrameKind::Ack => 2,
            FrameKind::Goodbye => 8,
            FrameKind::Open => 16,
            FrameKind::Opened => 17,
            FrameKind::Refused => 18,
            FrameKind::Close => 19,
            FrameKind::Closed => 20,
            FrameKind::Grant => 21,
            FrameKind::Inherit => 22,
            FrameKind::MigrationState => 23,
            FrameKind::Modules => 24,
            FrameKind::Request => 32,
            FrameKind::Reply => 33,
            FrameKind::Data => 34,
            FrameKind::Cancel => 35,
            FrameKind::Event => 36,
            FrameKind::Aside => 37,
            FrameKind::Reserve => 128,
            FrameKind::Identity => 129,
            FrameKind::Lease => 130,
            FrameKind::Retire => 131,
            FrameKind::Descriptors => 132,
            FrameKind::Later(code) => code,
        }
    }

    /// Decodes the wire's number.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: an unknown number that may not be ignored.
    pub const fn from_code(code: u8) -> Result<Self, ProtocolViolation> {
        Ok(match code {
            0 => FrameKind::Ping,
            1 => FrameKind::Pong,
            2 => FrameKind::Ack,
            8 => FrameKind::Goodbye,
            16 => FrameKind::Open,
            17 => FrameKind::Opened,
            18 => FrameKind::Refused,
            19 => FrameKind::Close,
            20 => FrameKind::Closed,
            21 => FrameKind::Grant,
            22 => FrameKind::Inherit,
            23 => FrameKind::MigrationState,
            24 => FrameKind::Modules,
            32 => FrameKind::Request,
            33 => FrameKind::Reply,
            34 => FrameKind::Data,
            35 => FrameKind::Cancel,
            36 => FrameKind::Event,
            37 => FrameKind::Aside,
            128 => FrameKind::Reserve,
            129 => FrameKind::Identity,
            130 => FrameKind::Lease,
            131 => FrameKind::Retire,
            132 => FrameKind::Descriptors,
            LATER_FIRST.. => FrameKind::Later(code),
            _ => return Err(ProtocolViolation::new("kind", code as u64, "no frame is of that kind")),
        })
    }

    /// Whether such frames are counted, acknowledged and sent again over the next link.
    pub const fn is_counted(self) -> bool {
        !matches!(self, FrameKind::Ping | FrameKind::Pong | FrameKind::Ack)
    }
}

/// The flags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags {
    /// The message continues in a [`FrameKind::Data`] frame.
    pub more: bool,
    /// The class part is left out because it has its usual values, and the body is data.
    pub plain: bool,
    /// A request: report where the time was spent. A reply: the body begins with that ([`ResidenceTimes`]).
    pub timed: bool,
}

impl FrameFlags {
    const MORE: u8 = 1;
    const PLAIN: u8 = 2;
    const TIMED: u8 = 4;

    /// The wire's bits.
    pub const fn bits(self) -> u8 {
        self.more as u8 * Self::MORE + self.plain as u8 * Self::PLAIN + self.timed as u8 * Self::TIMED
    }

    /// Decodes the wire's bits.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: an undefined bit.
    pub const fn from_bits(bits: u8) -> Result<Self, ProtocolViolation> {
        if bits > Self::MORE + Self::PLAIN + Self::TIMED {
            return Err(ProtocolViolation::new("flags", bits as u64, "no frame has such a flag"));
        }
        Ok(Self { more: bits & Self::MORE != 0, plain: bits & Self::PLAIN != 0, timed: bits & Self::TIMED != 0 })
    }
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is for, which decides the format of its body.
    pub kind: FrameKind,
    /// How the body is to be read, and whether the message continues.
    pub flags: FrameFlags,
    /// The attachment within the session, chosen by the importer; 0 if none.
    pub attachment: u16,
    /// The request of the attachment, chosen by the importer among unused tags; 0 if none.
    pub tag: u16,
    /// Bytes of the body.
    pub length: u16,
}

impl FrameHeader {
    /// Makes a head without flags and without a body yet.
    pub const fn new(kind: FrameKind, attachment: u16, tag: u16) -> Self {
        Self { kind, flags: FrameFlags { more: false, plain: false, timed: false }, attachment, tag, length: 0 }
    }

    /// Makes an acknowledgement of `count` frames: the low 32 bits of the count take the place of attachment and tag.
    /// No more than 2³² frames are under way.
    pub const fn acknowledgement(count: u64) -> Self {
        Self::new(FrameKind::Ack, count as u16, (count >> 16) as u16)
    }

    /// The low 32 bits of an acknowledgement's count.
    pub const fn acknowledged(self) -> u32 {
        (self.tag as u32) << 16 | self.attachment as u32
    }

    /// Encodes the message.
    pub const fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let [a0, a1] = self.attachment.to_le_bytes();
        let [t0, t1] = self.tag.to_le_bytes();
        let [l0, l1] = self.length.to_le_bytes();
        [self.kind.code(), self.flags.bits(), a0, a1, t0, t1, l0, l1]
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no such frame exists.
    pub fn from_bytes([kind, flags, a0, a1, t0, t1, l0, l1]: [u8; HEAD_BYTES]) -> Result<Self, ProtocolViolation> {
        let length = u16::from_le_bytes([l0, l1]);
        if usize::from(length) > BODY_BYTES_MAX {
            return Err(ProtocolViolation::new("body length", length.into(), "a frame has 65536 bytes at most"));
        }
        Ok(Self {
            kind: FrameKind::from_code(kind)?,
            flags: FrameFlags::from_bits(flags)?,
            attachment: u16::from_le_bytes([a0, a1]),
            tag: u16::from_le_bytes([t0, t1]),
            length,
        })
    }
}

/// Bytes of a [`ResidenceTimes`].
pub const RESIDENCE_BYTES: usize = 12;

/// Where a request spent its time on the exporter, ns (4 s at most): latency by stage without comparing clocks
/// (requirement N13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidenceTimes {
    /// From its first byte's arrival to its submission to the device, including the wait for its data's frames.
    pub queue_ns: u32,
    /// In the device.
    pub device_ns: u32,
    /// From the device's answer to the link.
    pub reply_ns: u32,
}

impl ResidenceTimes {
    /// Encodes it for the front of a reply.
    pub fn to_bytes(self) -> [u8; RESIDENCE_BYTES] {
        let mut bytes = [0; RESIDENCE_BYTES];
        for (field, ns) in bytes.chunks_exact_mut(4).zip([self.queue_ns, self.device_ns, self.reply_ns]) {
            field.copy_from_slice(&ns.to_le_bytes());
        }
        bytes
    }

    /// Fills in the last field of a residence that is about to be sent.
    pub(super) fn put_reply(bytes: &mut [u8], span: Duration) {
        bytes[8..RESIDENCE_BYTES].copy_from_slice(&span_ns(span).to_le_bytes());
    }

    /// Decodes the message.
    pub fn from_bytes(bytes: [u8; RESIDENCE_BYTES]) -> Self {
        let ns = |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { queue_ns: ns(0), device_ns: ns(4), reply_ns: ns(8) }
    }
}

/// A duration as [`ResidenceTimes`] counts it, at most the longest that fits.
pub fn span_ns(span: Duration) -> u32 {
    u32::try_from(span.as_nanos()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_that_can_be_said_is_understood_and_no_other() {
        let mut understood = 0;
        for kind in 0..=u8::MAX {
            for flags in 0..=u8::MAX {
                let bytes = [kind, flags, 1, 2, 3, 4, 5, 6];
                if let Ok(head) = FrameHeader::from_bytes(bytes) {
                    assert_eq!((head.attachment, head.tag, head.length), (0x201, 0x403, 0x605));
                    assert_eq!(head.to_bytes(), bytes);
                    understood += 1;
                }
            }
        }
        assert_eq!(understood, (19 + 128) * 8);
        assert!(FrameHeader::from_bytes([0, 0, 0, 0, 0, 0, 0xf8, 0xff]).is_ok());
        assert_eq!(FrameHeader::from_bytes([0, 0, 0, 0, 0, 0, 0xf9, 0xff]).unwrap_err().field, "body length");
    }

    #[test]
    fn all_kinds_that_are_known_are_listed() {
        let known = (0..=u8::MAX).filter_map(|code| FrameKind::from_code(code).ok());
        assert_eq!(known.filter(|kind| !matches!(kind, FrameKind::Later(_))).collect::<Vec<_>>(), FrameKind::ALL);
    }

    #[test]
    fn a_residence_survives_the_way() {
        let residence = ResidenceTimes { queue_ns: 1, device_ns: u32::MAX, reply_ns: 0x01020304 };
        assert_eq!(ResidenceTimes::from_bytes(residence.to_bytes()), residence);
    }
}
