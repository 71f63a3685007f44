//! The greeting, the first bytes of every link: the session it belongs to, and the state of that session.
//!
//! ```text
//!   0  magic "farbus\r\n"                              8 bytes
//!   8  hello: lowest version      welcome: version     1
//!   9  hello: highest version     welcome: outcome     1
//!  10  lane                                            2
//!  12  length of the options                           4
//!  16  session, 0: a new one                          16
//!  32  link: how many this lane has had, with this     8
//!  40  counted frames that arrived on this lane        8
//!  48  incarnation of the sender                       8
//!  56  options: (kind 2, length 2, bytes) …
//! ```
//!
//! Little-endian. The importer speaks first. An unknown option is ignored.

use crate::reject::ProtocolViolation;

/// The first bytes of a link. They reveal a link that changes line ends, or a peer with another protocol.
pub const MAGIC: [u8; 8] = *b"farbus\r\n";
/// The version described here.
pub const VERSION: u8 = 1;
/// Bytes before the options.
pub const GREETING_BYTES: usize = 56;
/// Bytes of all options: what is read of a peer before it is known.
pub const OPTIONS_BYTES_MAX: usize = 1024;

/// Names a session: random, 128 bits. On a link without encryption it alone protects a session from others.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// No session yet.
    pub const NONE: SessionId = SessionId([0; 16]);
}

impl core::fmt::Debug for SessionId {
    /// Shows the first bytes only: a reader of a log must not be able to take over a session.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, ..] = self.0;
        write!(f, "SessionId({a:02x}{b:02x}{c:02x}…)")
    }
}

/// The state of a session on one lane, as one of its ends sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LanePosition {
    /// The session that the link belongs to; [`SessionId::NONE`] asks for a new one.
    pub session: SessionId,
    /// The number of the lane in its session, from 0.
    pub lane: u16,
    /// How many links this lane has had, including this one: an older link is refused.
    pub link: u64,
    /// Counted frames that arrived.
    pub received: u64,
    /// Changes whenever the sender has lost its state.
    pub incarnation: u64,
}

/// What the ends agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelloOptions {
    /// The grace period, ms: requested, then granted.
    pub grace_ms: Option<u32>,
    /// Bytes that the sender of this option lets the other end have unacknowledged.
    pub unacknowledged_bytes_max: Option<u32>,
    /// Lanes of the session: requested, then granted. The default is one.
    pub lanes: Option<u32>,
    /// How long the sender holds a device that migrates at most, ms, 1 or more. The shorter time of both ends rules; an
    /// end that says none holds it for 20 s.
    pub hold_ms: Option<u32>,
    /// The importer takes messages of [`super::descriptors`] of so many bytes at most, one before each USB device that
    /// is opened. Without it none is sent.
    pub descriptors_bytes_max: Option<u32>,
}

mod option {
    pub const GRACE_MS: u16 = 1;
    pub const UNACKNOWLEDGED_BYTES_MAX: u16 = 2;
    pub const LANES: u16 = 3;
    pub const HOLD_MS: u16 = 4;
    pub const DESCRIPTORS_BYTES_MAX: u16 = 5;
}

impl HelloOptions {
    fn encode(self, to: &mut Vec<u8>) {
        let known = [
            (option::GRACE_MS, self.grace_ms),
            (option::UNACKNOWLEDGED_BYTES_MAX, self.unacknowledged_bytes_max),
            (option::LANES, self.lanes),
            (option::HOLD_MS, self.hold_ms),
            (option::DESCRIPTORS_BYTES_MAX, self.descriptors_bytes_max),
        ];
        for (kind, value) in known {
            if let Some(value) = value {
                to.extend(kind.to_le_bytes());
                to.extend(4u16.to_le_bytes());
                to.extend(value.to_le_bytes());
            }
        }
    }

    fn decode(mut bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut options = Self::default();
        while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
            let kind = u16::from_le_bytes([head[0], head[1]]);
            let length = u16::from_le_bytes([head[2], head[3]]);
            let Some((value, rest)) = rest.split_at_checked(length.into()) else {
                return Err(ProtocolViolation::new("option length", length.into(), "options end with the greeting"));
            };
            let field = match kind {
                option::GRACE_MS => Some(&mut options.grace_ms),
                option::UNACKNOWLEDGED_BYTES_MAX => Some(&mut options.unacknowledged_bytes_max),
                option::LANES => Some(&mut options.lanes),
                option::HOLD_MS => Some(&mut options.hold_ms),
                option::DESCRIPTORS_BYTES_MAX => Some(&mut options.descriptors_bytes_max),
                _ => None,
            };
            if let Some(field) = field {
                let value: [u8; 4] = value
                    .try_into()
                    .map_err(|_| ProtocolViolation::new("option length", length.into(), "this option has 4 bytes"))?;
                *field = Some(u32::from_le_bytes(value));
            }
            bytes = rest;
        }
        if !bytes.is_empty() {
            return Err(ProtocolViolation::new("options", bytes.len() as u64, "an option has 4 bytes and its value"));
        }
        if options.hold_ms == Some(0) {
            return Err(ProtocolViolation::new("hold", 0, "a device that migrates is held for 1 ms or longer"));
        }
        Ok(options)
    }
}

/// The importer's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImporterHello {
    /// The lowest version that the importer speaks.
    pub version_min: u8,
    /// The highest version that the importer speaks.
    pub version_max: u8,
    /// The session and lane, and their state.
    pub position: LanePosition,
    /// The requested options.
    pub options: HelloOptions,
}

/// The exporter's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExporterWelcome {
    /// The version of the session; if no version is shared, the highest that the exporter speaks.
    pub version: u8,
    /// What happens to the link.
    pub outcome: WelcomeOutcome,
    /// The session and lane, and their state.
    pub position: LanePosition,
    /// The granted options.
    pub options: HelloOptions,
}

/// What happens to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WelcomeOutcome {
    /// A new session begins.
    Begun,
    /// The session continues.
    Resumed,
    /// There is no such session (any more): begin a new one.
    Unknown,
    /// No version is shared.
    Version,
    /// The session belongs to another host, or a later link has it.
    Refused,
    /// There are too many sessions.
    Full,
}

impl WelcomeOutcome {
    const ALL: [WelcomeOutcome; 6] =
        [Self::Begun, Self::Resumed, Self::Unknown, Self::Version, Self::Refused, Self::Full];

    /// The wire's number.
    pub fn code(self) -> u8 {
        Self::ALL.iter().position(|&other| other == self).expect("all are listed") as u8
    }

    /// Decodes the wire's number.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: an unknown one.
    pub fn from_code(code: u8) -> Result<Self, ProtocolViolation> {
        let known = Self::ALL.get(usize::from(code)).copied();
        known.ok_or(ProtocolViolation::new("outcome", code.into(), "a link has no such outcome"))
    }
}

impl ImporterHello {
    /// Makes a hello of this version.
    pub fn new(position: LanePosition, options: HelloOptions) -> Self {
        Self { version_min: VERSION, version_max: VERSION, position, options }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        encode([self.version_min, self.version_max], self.position, self.options)
    }

    /// Decodes the bytes at the front, and returns how many they were; `None` while some are missing.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: this is no hello.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(([version_min, version_max], position, options, count)) = decode(bytes)? else { return Ok(None) };
        if version_min > version_max {
            return Err(ProtocolViolation::new("version", version_min.into(), "the lowest is not above the highest"));
        }
        Ok(Some((Self { version_min, version_max, position, options }, count)))
    }
}

impl ExporterWelcome {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        encode([self.version, self.outcome.code()], self.position, self.options)
    }

    /// Decodes the bytes at the front, and returns how many they were; `None` while some are missing.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: this is no welcome.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolViolation> {
        let Some(([version, outcome], position, options, count)) = decode(bytes)? else { return Ok(None) };
        Ok(Some((Self { version, outcome: WelcomeOutcome::from_code(outcome)?, position, options }, count)))
    }
}

fn encode(two: [u8; 2], position: LanePosition, options: HelloOptions) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(GREETING_BYTES + 24);
    bytes.extend(MAGIC);
    bytes.extend(two);
    bytes.extend(position.lane.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(position.session.0);
    bytes.extend(position.link.to_le_bytes());
    bytes.extend(position.received.to_le_bytes());
    bytes.extend(position.incarnation.to_le_bytes());
    options.encode(&mut bytes);
    let length = (bytes.len() - GREETING_BYTES) as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    bytes
}

type GreetingFields = ([u8; 2], LanePosition, HelloOptions, usize);

fn decode(bytes: &[u8]) -> Result<Option<GreetingFields>, ProtocolViolation> {
    let begun = bytes.len().min(MAGIC.len());
    if bytes[..begun] != MAGIC[..begun] {
        return Err(ProtocolViolation::new("magic", bytes[0].into(), "a session begins with farbus and a line's end"));
    }
    let Some((head, rest)) = bytes.split_first_chunk::<GREETING_BYTES>() else { return Ok(None) };
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    let length = u32::from_le_bytes(head[12..16].try_into().expect("four bytes")) as usize;
    if length > OPTIONS_BYTES_MAX {
        return Err(ProtocolViolation::new("options length", length as u64, "options have 1024 bytes at most"));
    }
    let Some(options) = rest.get(..length) else { return Ok(None) };
    let position = LanePosition {
        session: SessionId(head[16..32].try_into().expect("sixteen bytes")),
        lane: u16::from_le_bytes([head[10], head[11]]),
        link: u64_at(32),
        received: u64_at(40),
        incarnation: u64_at(48),
    };
    Ok(Some(([head[8], head[9]], position, HelloOptions::decode(options)?, GREETING_BYTES + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITION: LanePosition =
        LanePosition { session: SessionId([7; 16]), lane: 1, link: 2, received: 3 << 40, incarnation: u64::MAX };

    #[test]
    fn a_greeting_survives_the_way_in_whatever_pieces() {
        let options = HelloOptions { grace_ms: Some(20_000), hold_ms: Some(5_000), ..HelloOptions::default() };
        let hello = ImporterHello::new(POSITION, options);
        let bytes = hello.encode();
        assert_eq!(bytes.len(), GREETING_BYTES + 16);
        for end in 0..bytes.len() {
            assert_eq!(ImporterHello::decode(&bytes[..end]), Ok(None), "{end} bytes");
        }
        let more = [&bytes[..], b"next"].concat();
        assert_eq!(ImporterHello::decode(&more), Ok(Some((hello, bytes.len()))));
        for outcome in WelcomeOutcome::ALL {
            let options = HelloOptions { unacknowledged_bytes_max: Some(9), lanes: Some(4), ..HelloOptions::default() };
            let welcome = ExporterWelcome { version: 1, outcome, position: POSITION, options };
            let bytes = welcome.encode();
            assert_eq!(ExporterWelcome::decode(&bytes), Ok(Some((welcome, bytes.len()))));
        }
    }

    #[test]
    fn unknown_options_are_ignored_and_invalid_greetings_refused() {
        let mut bytes = ImporterHello::new(POSITION, HelloOptions::default()).encode();
        bytes.extend([0xff, 0xff, 3, 0, 1, 2, 3]);
        bytes[12] = 7;
        let (hello, count) = ImporterHello::decode(&bytes).unwrap().unwrap();
        assert_eq!((hello.options, count), (HelloOptions::default(), bytes.len()));
        let refused = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            ImporterHello::decode(&bytes).unwrap_err().field
        };
        assert_eq!(refused(6, b'\n'), "magic");
        assert_eq!(refused(8, 2), "version");
        assert_eq!(refused(13, 0xff), "options length");
        assert_eq!(refused(58, 9), "option length");
        (bytes[56], bytes[57]) = (1, 0);
        assert_eq!(ImporterHello::decode(&bytes).unwrap_err().field, "option length", "a grace has 4 bytes");
        let never = HelloOptions { hold_ms: Some(0), ..HelloOptions::default() };
        assert_eq!(ImporterHello::decode(&ImporterHello::new(POSITION, never).encode()).unwrap_err().field, "hold");
    }
}
