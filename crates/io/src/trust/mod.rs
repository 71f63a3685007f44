//! A host's identity and the hosts it trusts: keys, certificates, paired hosts, and TLS for the links between them.
//!
//! A host's identity is its Ed25519 key. Its certificate exists only because TLS needs one: it is created when needed,
//! and contains no name that an unknown peer could learn. A link is accepted if and only if the peer proves that it has
//! a key that a person paired with this host, and its certificate is in date; no name, address or authority can replace
//! that.

mod admission;
mod attached;
mod audit;
mod audit_reading;
mod authority;
mod damage;
mod devices;
mod fingerprint;
mod folder;
#[cfg(test)]
mod fuzz_tests;
mod hand_over;
mod identity;
mod invitations;
mod lease_count;
mod leases;
pub mod limits;
mod name;
mod notes;
mod page_key;
mod pake;
mod peers;
mod provider;
mod quic;
mod random;
mod remote_page;
mod spare_room;
mod state_folder;
mod tls;
mod tokens;

pub use admission::{Admission, Proof, Refusal, Ticket, subscriber};
pub use attached::{AttachedDevice, KnownAttachment};
pub use audit::{Audit, AuditRecorder, Event, Outcome, timestamp};
pub use audit_reading::{AuditReader, RecordedEvent};
pub use authority::{Authority, AuthorityError};
pub use damage::damaged_files;
pub use devices::{Devices, DevicesReader, KnownDevice, random_device_id};
pub use farbus_control::fingerprint::{Fingerprint, NotAFingerprint};
pub use farbus_control::identity::{DeviceId, PREFIX_DIGITS_MIN};
pub use farbus_control::notes::{DeviceNotes, LABELS_MAX, NoteChange, check_label_name, is_shown};
pub use farbus_control::peer::{Grant, Peer};
pub use folder::{Folder, StateError};
pub use identity::Identity;
pub use invitations::{Invitation, NoCode, NotRedeemed};
pub use leases::{KnownLease, Retirement, StoredBooking, StoredLease};
pub use name::{NotAName, host_name, name_from};
pub use notes::{KnownNotes, NotedDevice};
pub use page_key::PageKey;
pub use pake::{Code, Exchange, NotACode, Proofs, Side};
pub use peers::Peers;
pub use quic::{QuicAcceptor, QuicPool, QuicServer, Traffic, end_quic};
pub use random::fill_random;
pub use remote_page::RemotePage;
pub use state_folder::{Access, FolderError, FolderTrouble, Refusal as FolderRefusal, StateFolder};
pub use tls::{Accepts, HandshakeError, Protocol, Secured, Terms};
pub use tokens::{NoToken, Scope, TOKEN_NAME_CHARS_MAX, Token, Tokens};
