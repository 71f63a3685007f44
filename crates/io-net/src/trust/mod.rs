//! A host's identity and the hosts it trusts: keys, certificates, paired hosts, and TLS for the links between them.
//!
//! A host's identity is its Ed25519 key. Its certificate exists only because TLS needs one: it is created when needed,
//! and contains no name that an unknown peer could learn. A link is accepted if and only if the peer proves that it has
//! a key that a person paired with this host, and its certificate is in date; no name, address or authority can replace
//! that.

mod damage;
#[cfg(test)]
mod fuzz_tests;
mod keys;
pub mod limits;
mod links;
mod page;
mod records;
mod state;

pub use damage::damaged_files;
pub use farbus_control::fingerprint::{Fingerprint, NotAFingerprint};
pub use farbus_control::identity::{DeviceId, PREFIX_DIGITS_MIN};
pub use farbus_control::notes::{DeviceNotes, LABELS_MAX, NoteChange, check_label_name, is_shown};
pub use farbus_control::peer::{Grant, Peer};
pub use keys::identity::HostIdentity;
pub use keys::name::{HostNameFormatError, host_name, name_from};
pub use keys::pake::{PairingCode, PairingCodeFormatError, PairingExchange, PairingProofs, PairingRole};
pub use keys::random::fill_random;
pub use links::admission::{AdmissionRefusal, AdmissionTicket, KeyProofOutcome, PeerAdmission, subscriber};
pub use links::authority::{AuthorityError, CertificateAuthority};
pub use links::quic::{LinkTraffic, QuicAcceptor, QuicPool, QuicServer, end_quic};
pub use links::tls::{AcceptedKeys, HandshakeError, HandshakeTerms, LinkProtocol, SecureLink};
pub use page::invitations::{NoCode, NotRedeemed, PageInvitation};
pub use page::page_key::PageKey;
pub use page::remote_page::RemotePage;
pub use page::tokens::{NoToken, PageScope, PageToken, PageTokenList, TOKEN_NAME_CHARS_MAX};
pub use records::attached::{AttachedDevice, KnownAttachment};
pub use records::audit::{AuditEvent, AuditLog, AuditOutcome, AuditRecorder, timestamp};
pub use records::audit_reading::{AuditReader, RecordedEvent};
pub use records::devices::{DevicesReader, KnownDevice, KnownDeviceList, random_device_id};
pub use records::leases::{DiskRetirement, KnownLease, StoredBooking, StoredLease};
pub use records::notes::{KnownNotes, NotedDevice};
pub use records::peers::PairedHostList;
pub use state::folder::{HostFolder, StateError};
pub use state::state_folder::{FileAccessMode, FolderError, FolderRefusal, FolderTrouble, StateFolder};
