//! The eight bytes before every frame of a session.
//!
//! ```text
//!   0       1       2               4               6               8
//!   +-------+-------+---------------+---------------+---------------+----------
//!   | kind  | flags |  attachment   |      tag      |  body length  |  body …
//!   +-------+-------+---------------+---------------+---------------+----------
//! ```
//!
//! Little-endian. A message that is longer than a frame continues in [`Kind::Data`] frames of the same attachment and
//! tag. Frames of other messages may come in between, so that an interrupt overtakes a disk's data.

use core::time::Duration;

use crate::reject::Reject;

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 8;
/// Bytes of a frame, head included.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Bytes of a frame's body.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Link: asks for a pong. Not counted, like all kinds up to [`Kind::Ack`].
    Ping,
    /// Link: answers a ping.
    Pong,
    /// Link: how many counted frames have arrived ([`Head::acknowledgement`]).
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

/// A peer may ignore kinds from here on, and [`Kind::Reserve`], [`Kind::Identity`], [`Kind::Lease`], [`Kind::Retire`]
/// and [`Kind::Descriptors`], if it does not know them.
const LATER_FIRST: u8 = 0x85;

impl Kind {
    /// All kinds of this version.
    pub const ALL: [Kind; 24] = [
        Kind::Ping,
        Kind::Pong,
        Kind::Ack,
        Kind::Goodbye,
        Kind::Open,
        Kind::Opened,
        Kind::Refused,
        Kind::Close,
        Kind::Closed,
        Kind::Grant,
        Kind::Inherit,
        Kind::MigrationState,
        Kind::Modules,
        Kind::Request,
        Kind::Reply,
        Kind::Data,
        Kind::Cancel,
        Kind::Event,
        Kind::Aside,
        Kind::Reserve,
        Kind::Identity,
        Kind::Lease,
        Kind::Retire,
        Kind::Descriptors,
    ];

    /// The wire's number.
    pub const fn code(self) -> u8 {
        match self {
            Kind::Ping => 0,
            Kind::Pong => 1,
            Kind::Ack => 2,
            Kind::Goodbye => 8,
            Kind::Open => 16,
            Kind::Opened => 17,
            Kind::Refused => 18,
            Kind::Close => 19,
            Kind::Closed => 20,
            Kind::Grant => 21,
            Kind::Inherit => 22,
            Kind::MigrationState => 23,
            Kind::Modules => 24,
            Kind::Request => 32,
            Kind::Reply => 33,
            Kind::Data => 34,
            Kind::Cancel => 35,
            Kind::Event => 36,
            Kind::Aside => 37,
            Kind::Reserve => 128,
            Kind::Identity => 129,
            Kind::Lease => 130,
            Kind::Retire => 131,
            Kind::Descriptors => 132,
            Kind::Later(code) => code,
        }
    }

    /// Decodes the wire's number.
    ///
    /// # Errors
    /// [`Reject`]: an unknown number that may not be ignored.
    pub const fn from_code(code: u8) -> Result<Self, Reject> {
        Ok(match code {
            0 => Kind::Ping,
            1 => Kind::Pong,
            2 => Kind::Ack,
            8 => Kind::Goodbye,
            16 => Kind::Open,
            17 => Kind::Opened,
            18 => Kind::Refused,
            19 => Kind::Close,
            20 => Kind::Closed,
            21 => Kind::Grant,
            22 => Kind::Inherit,
            23 => Kind::MigrationState,
            24 => Kind::Modules,
            32 => Kind::Request,
            33 => Kind::Reply,
            34 => Kind::Data,
            35 => Kind::Cancel,
            36 => Kind::Event,
            37 => Kind::Aside,
            128 => Kind::Reserve,
            129 => Kind::Identity,
            130 => Kind::Lease,
            131 => Kind::Retire,
            132 => Kind::Descriptors,
            LATER_FIRST.. => Kind::Later(code),
            _ => return Err(Reject::new("kind", code as u64, "no frame is of that kind")),
        })
    }

    /// Whether such frames are counted, acknowledged and sent again over the next link.
    pub const fn is_counted(self) -> bool {
        !matches!(self, Kind::Ping | Kind::Pong | Kind::Ack)
    }
}

/// The flags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The message continues in a [`Kind::Data`] frame.
    pub more: bool,
    /// The class part is left out because it has its usual values, and the body is data.
    pub plain: bool,
    /// A request: report where the time was spent. A reply: the body begins with that ([`Residence`]).
    pub timed: bool,
}

impl Flags {
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
    /// [`Reject`]: an undefined bit.
    pub const fn from_bits(bits: u8) -> Result<Self, Reject> {
        if bits > Self::MORE + Self::PLAIN + Self::TIMED {
            return Err(Reject::new("flags", bits as u64, "no frame has such a flag"));
        }
        Ok(Self { more: bits & Self::MORE != 0, plain: bits & Self::PLAIN != 0, timed: bits & Self::TIMED != 0 })
    }
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind.
    pub kind: Kind,
    /// The flags.
    pub flags: Flags,
    /// The attachment within the session, chosen by the importer; 0 if none.
    pub attachment: u16,
    /// The request of the attachment, chosen by the importer among unused tags; 0 if none.
    pub tag: u16,
    /// Bytes of the body.
    pub length: u16,
}

impl Head {
    /// Makes a head without flags and without a body yet.
    pub const fn new(kind: Kind, attachment: u16, tag: u16) -> Self {
        Self { kind, flags: Flags { more: false, plain: false, timed: false }, attachment, tag, length: 0 }
    }

    /// Makes an acknowledgement of `count` frames: the low 32 bits of the count take the place of attachment and tag.
    /// No more than 2³² frames are under way.
    pub const fn acknowledgement(count: u64) -> Self {
        Self::new(Kind::Ack, count as u16, (count >> 16) as u16)
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
    /// [`Reject`]: no such frame exists.
    pub fn from_bytes([kind, flags, a0, a1, t0, t1, l0, l1]: [u8; HEAD_BYTES]) -> Result<Self, Reject> {
        let length = u16::from_le_bytes([l0, l1]);
        if usize::from(length) > BODY_BYTES_MAX {
            return Err(Reject::new("body length", length.into(), "a frame has 65536 bytes at most"));
        }
        Ok(Self {
            kind: Kind::from_code(kind)?,
            flags: Flags::from_bits(flags)?,
            attachment: u16::from_le_bytes([a0, a1]),
            tag: u16::from_le_bytes([t0, t1]),
            length,
        })
    }
}

/// Bytes of a [`Residence`].
pub const RESIDENCE_BYTES: usize = 12;

/// Where a request spent its time on the exporter, ns (4 s at most): latency by stage without comparing clocks
/// (requirement N13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residence {
    /// From its first byte's arrival to its submission to the device, including the wait for its data's frames.
    pub queue_ns: u32,
    /// In the device.
    pub device_ns: u32,
    /// From the device's answer to the link.
    pub reply_ns: u32,
}

impl Residence {
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

/// A duration as [`Residence`] counts it, at most the longest that fits.
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
                if let Ok(head) = Head::from_bytes(bytes) {
                    assert_eq!((head.attachment, head.tag, head.length), (0x201, 0x403, 0x605));
                    assert_eq!(head.to_bytes(), bytes);
                    understood += 1;
                }
            }
        }
        assert_eq!(understood, (19 + 128) * 8);
        assert!(Head::from_bytes([0, 0, 0, 0, 0, 0, 0xf8, 0xff]).is_ok());
        assert_eq!(Head::from_bytes([0, 0, 0, 0, 0, 0, 0xf9, 0xff]).unwrap_err().field, "body length");
    }

    #[test]
    fn all_kinds_that_are_known_are_listed() {
        let known = (0..=u8::MAX).filter_map(|code| Kind::from_code(code).ok());
        assert_eq!(known.filter(|kind| !matches!(kind, Kind::Later(_))).collect::<Vec<_>>(), Kind::ALL);
    }

    #[test]
    fn a_residence_survives_the_way() {
        let residence = Residence { queue_ns: 1, device_ns: u32::MAX, reply_ns: 0x01020304 };
        assert_eq!(Residence::from_bytes(residence.to_bytes()), residence);
    }
}
