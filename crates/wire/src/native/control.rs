//! The messages that open and close an attachment.

use super::reader::{FieldReader, put_text};
use crate::reject::ProtocolViolation;

/// Bytes of a device's name, a reason, a refusal: a line or two for people.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Bytes at the front of migration state that name its format and version.
pub const MIGRATION_STATE_NAME_BYTES: usize = 8;
/// Bytes of migration state at most: for a virtual machine's device, its unanswered requests. A guest's controller
/// makes requests of half a mebibyte; a disk's queue of those, in both directions, fits.
pub const MIGRATION_STATE_BYTES_MAX: usize = 16 << 20;

/// The device class of an attachment: which requests there are, and their format (requirement N1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentClass(pub u8);

impl AttachmentClass {
    /// Requests are URBs ([`super::usb`]).
    pub const USB: AttachmentClass = AttachmentClass(1);
    /// Requests are block requests ([`super::block`]).
    pub const BLOCK: AttachmentClass = AttachmentClass(2);
    /// The exporter sends frames without requests ([`super::stream`]).
    pub const STREAM: AttachmentClass = AttachmentClass(3);
    /// The exporter sends what a device's serial ports send to their user, in mode [`AttachmentMode::Observe`] alone
    /// ([`super::console`]).
    pub const CONSOLE: AttachmentClass = AttachmentClass(4);
    /// The first class whose meaning only its users define.
    pub const PRIVATE_FIRST: AttachmentClass = AttachmentClass(128);
}

/// How a device is used (requirement N9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttachmentMode {
    /// One user, who may do everything.
    #[default]
    Exclusive,
    /// Many users, who change nothing.
    Read,
    /// An observer beside the user: gets copies of what the device sends.
    Observe,
}

impl AttachmentMode {
    const ALL: [AttachmentMode; 3] = [AttachmentMode::Exclusive, AttachmentMode::Read, AttachmentMode::Observe];

    fn from_code(code: u8) -> Result<Self, ProtocolViolation> {
        let known = Self::ALL.get(usize::from(code)).copied();
        known.ok_or(ProtocolViolation::new(
            "mode",
            code.into(),
            "a device is used exclusively, by readers, or observed",
        ))
    }
}

/// Importer: open this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The device class.
    pub class: AttachmentClass,
    /// The mode of use.
    pub mode: AttachmentMode,
    /// The lease that the importer had before, or 0: an older one than the device's last is refused.
    pub epoch: u64,
    /// The device's name on the exporter.
    pub name: String,
    /// The purpose, for people; may be empty.
    pub reason: String,
}

impl OpenRequest {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.class.0, self.mode as u8];
        bytes.extend(self.epoch.to_le_bytes());
        put_text(&mut bytes, &self.name, TEXT_BYTES_MAX);
        put_text(&mut bytes, &self.reason, TEXT_BYTES_MAX);
        bytes
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let open = Self {
            class: AttachmentClass(reader.u8("class")?),
            mode: AttachmentMode::from_code(reader.u8("mode")?)?,
            epoch: reader.u64("epoch")?,
            name: reader.text("name", TEXT_BYTES_MAX)?,
            reason: reader.text("reason", TEXT_BYTES_MAX)?,
        };
        // Fields of a later release may follow.
        Ok(open)
    }
}

/// Importer: open this device once it migrates to me. Names the migration state that the importer accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuccessorOpenRequest {
    /// The beginning of migration state that the importer accepts.
    pub migration_state: [u8; MIGRATION_STATE_NAME_BYTES],
    /// The device to open.
    pub open: OpenRequest,
}

impl SuccessorOpenRequest {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        [&self.migration_state[..], &self.open.encode()].concat()
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let Some((migration_state, open)) = bytes.split_first_chunk() else {
            return Err(ProtocolViolation::new(
                "migration state",
                bytes.len() as u64,
                "the name of a migration state has 8 bytes",
            ));
        };
        Ok(Self { migration_state: *migration_state, open: OpenRequest::decode(open)? })
    }
}

/// What an importer may have in flight on an attachment. A request takes credit, and its reply returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentCredit {
    /// How many requests may be in flight.
    pub requests: u16,
    /// Bytes of data: sent, or asked for. One request may exceed it if it is the only one.
    pub bytes: u32,
}

/// Exporter: the device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenReply {
    /// The fencing number of the lease; the importer names it as [`OpenRequest::epoch`] when it opens the device again.
    pub epoch: u64,
    /// What may be in flight.
    pub credit: AttachmentCredit,
    /// The device's description, in the format of its class.
    pub info: Vec<u8>,
}

impl OpenReply {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.epoch.to_le_bytes().to_vec();
        bytes.extend(self.credit.requests.to_le_bytes());
        bytes.extend(self.credit.bytes.to_le_bytes());
        bytes.extend(&self.info);
        bytes
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let epoch = reader.u64("epoch")?;
        let credit = AttachmentCredit { requests: reader.u16("requests")?, bytes: reader.u32("bytes")? };
        if credit.requests == 0 {
            return Err(ProtocolViolation::new("requests", 0, "who may ask nothing has not been given the device"));
        }
        Ok(Self { epoch, credit, info: reader.rest().to_vec() })
    }
}

/// What caused an end (requirement N10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachmentEndCause {
    /// The peer or the user asked for it.
    Requested,
    /// The device failed.
    Device,
    /// The link to the device failed.
    Network,
    /// The exporter refused it, or its owner took the device back.
    Refused,
    /// The device does not exist, or not any more.
    Gone,
    /// Another importer has the device.
    Busy,
    /// A later lease exists: the importer with that lease has the device.
    Stale,
    /// The device is not of the class that was asked for; it may be opened in another class.
    Class,
    /// The modules do not match, or cannot continue.
    Module,
    /// The reservation cannot be granted.
    Reservation,
}

impl AttachmentEndCause {
    const ALL: [AttachmentEndCause; 10] = [
        Self::Requested,
        Self::Device,
        Self::Network,
        Self::Refused,
        Self::Gone,
        Self::Busy,
        Self::Stale,
        Self::Class,
        Self::Module,
        Self::Reservation,
    ];
}

/// Begins an [`AttachmentEndNotice::message`] that says which limit of the exporter was reached: the limit's name
/// follows, and a colon. The cause is [`AttachmentEndCause::Refused`].
pub const LIMIT: &str = "limit ";
/// The name of the limit of a process's descriptors.
pub const DESCRIPTORS: &str = "descriptors";
/// The name of the limit of what a peer may make a process hold.
pub const PEER_MEMORY: &str = "peer_memory";

/// [`AttachmentEndNotice::message`] of a device that migrated to its successor.
pub const HANDED_OVER: &str = "handed over";

impl AttachmentEndNotice {
    /// The name of the exporter's limit that was reached, if that is the cause.
    pub fn limit(&self) -> Option<&str> {
        let (name, _) =
            self.message.strip_prefix(LIMIT).filter(|_| self.cause == AttachmentEndCause::Refused)?.split_once(": ")?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        (is_name && (1..=32).contains(&name.len())).then_some(name)
    }
}

/// Importer: close the attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseRequest {
    /// The key of the successor, which gets the device without a reset; `None`: the device is reset. Zeros stand for a
    /// host without a key.
    pub successor: Option<[u8; 32]>,
    /// The migration state for the successor; the exporter does not read it.
    pub migration_state: Vec<u8>,
}

impl CloseRequest {
    /// A migration to the host with this key.
    pub fn to(successor: [u8; 32], migration_state: Vec<u8>) -> Self {
        Self { successor: Some(successor), migration_state }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.successor.map(Vec::from).unwrap_or_default();
        bytes.extend(&self.migration_state);
        bytes
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        match bytes.split_first_chunk() {
            None => Err(ProtocolViolation::new("successor", bytes.len() as u64, "a key has 32 bytes")),
            Some((_, migration_state)) if migration_state.len() > MIGRATION_STATE_BYTES_MAX => {
                Err(ProtocolViolation::new(
                    "migration state",
                    migration_state.len() as u64,
                    "migration state has 16 MiB at most",
                ))
            }
            Some((successor, migration_state)) => Ok(Self::to(*successor, migration_state.to_vec())),
        }
    }
}

/// Exporter: the device was not opened, or the attachment has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentEndNotice {
    /// What caused it.
    pub cause: AttachmentEndCause,
    /// A sentence for a person.
    pub message: String,
}

impl AttachmentEndNotice {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let code = AttachmentEndCause::ALL.iter().position(|&cause| cause == self.cause).expect("all are listed");
        let mut bytes = vec![code as u8];
        put_text(&mut bytes, &self.message, TEXT_BYTES_MAX);
        bytes
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        // A later release may have other causes; the message says more.
        let cause = AttachmentEndCause::ALL
            .get(usize::from(reader.u8("cause")?))
            .copied()
            .unwrap_or(AttachmentEndCause::Refused);
        Ok(Self { cause, message: reader.text("message", TEXT_BYTES_MAX)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_way_and_none_without_its_end() {
        let open = OpenRequest {
            class: AttachmentClass::BLOCK,
            mode: AttachmentMode::Read,
            epoch: 7,
            name: "disk".into(),
            reason: "näh".into(),
        };
        let bytes = open.encode();
        assert_eq!(OpenRequest::decode(&bytes), Ok(open.clone()));
        for end in 0..bytes.len() {
            assert!(OpenRequest::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert_eq!(
            OpenRequest::decode(&[&bytes[..], &[0, 1]].concat()),
            Ok(open.clone()),
            "a later release may say more"
        );
        let credit = AttachmentCredit { requests: 64, bytes: 1 << 20 };
        let opened = OpenReply { epoch: 8, credit, info: vec![1, 2, 3] };
        assert_eq!(OpenReply::decode(&opened.encode()), Ok(opened.clone()));
        let nothing = OpenReply { credit: AttachmentCredit { requests: 0, bytes: 0 }, ..opened };
        assert_eq!(OpenReply::decode(&nothing.encode()).unwrap_err().field, "requests");
        let inherit = SuccessorOpenRequest { migration_state: *b"redir\0\0\x01", open };
        let bytes = inherit.encode();
        assert_eq!(SuccessorOpenRequest::decode(&bytes), Ok(inherit));
        for end in 0..bytes.len() {
            assert!(SuccessorOpenRequest::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        for close in
            [CloseRequest::default(), CloseRequest::to([7; 32], Vec::new()), CloseRequest::to([7; 32], vec![1, 2, 3])]
        {
            assert_eq!(CloseRequest::decode(&close.encode()), Ok(close));
        }
        assert_eq!(CloseRequest::decode(&[1]).unwrap_err().field, "successor");
        assert_eq!(
            CloseRequest::decode(&vec![0; 33 + MIGRATION_STATE_BYTES_MAX]).unwrap_err().field,
            "migration state"
        );
        for cause in AttachmentEndCause::ALL {
            let end = AttachmentEndNotice { cause, message: "because".into() };
            assert_eq!(AttachmentEndNotice::decode(&end.encode()), Ok(end));
        }
        let later = AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: "x".into() };
        assert_eq!(
            AttachmentEndNotice::decode(&[10, 1, 0, b'x', 7]),
            Ok(later),
            "a later release may have other causes, and say more"
        );
        assert_eq!(AttachmentEndNotice::decode(&[0, 1, 0, 0xff]).unwrap_err().rule, "a text is UTF-8");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let message = "ä".repeat(TEXT_BYTES_MAX);
        let end =
            AttachmentEndNotice::decode(&AttachmentEndNotice { cause: AttachmentEndCause::Busy, message }.encode())
                .unwrap();
        assert_eq!(end.message, "ä".repeat(TEXT_BYTES_MAX / 2));
    }
}
