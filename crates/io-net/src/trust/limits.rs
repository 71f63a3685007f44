//! The limits on what an unauthenticated peer may cost. Each constant says how its value was found.

use std::time::Duration;

use farbus_model::budget::CONNECTION_BYTES;

use crate::link::HandshakeLimits;

/// A handshake is two flights and two signatures: milliseconds of work and one round trip. This allows ten round trips
/// over the slowest mobile network; a peer that takes longer only occupies a place.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Our own handshakes take under 2 KiB a side; another implementation's may be longer.
pub const HANDSHAKE_BYTES_MAX: usize = 32 << 10;
/// The most connections that have not proved a key yet: each is a thread and its buffers (0.5 MiB).
pub const STRANGERS_MAX: usize = 32;
/// The most of these from one address: one host attaches a few devices at once.
pub const STRANGERS_OF_ADDRESS_MAX: usize = 8;
/// How many of [`STRANGERS_MAX`] are reserved for networks where a key was proved recently: enough for a host that
/// reconnects all lanes of a session or two.
pub const PROVED_PLACES: usize = 8;
/// How long a proved key counts: hosts that are used daily keep it.
pub const PROVED_FOR: Duration = Duration::from_secs(24 * 3600);
/// The most addresses for which that is remembered; beyond, the one that expires first is forgotten.
pub const PROVED_MAX: usize = 1024;
/// How long a handshake may take when no place is left: two round trips and two signatures, over any network but the
/// slowest.
pub const PRESSED_TIME: Duration = Duration::from_secs(1);
/// A network that has more places than this gives way at once to one that has fewer.
pub const NETWORK_PLACES: usize = 8;
/// How many failed handshakes an address may accumulate; each is forgiven after [`FORGIVEN_AFTER`]. A person who has
/// not paired tries two or three times; a program that guesses is limited to one try in that time.
pub const FAILURES_MAX: u32 = 10;
/// How long an address is remembered after a key was proved from it: links that are lost in a handshake then count as
/// its network's fault. As long as the longest grace period of a session, plus a pause in using it.
pub const TRUSTED_FOR: Duration = Duration::from_secs(600);
/// How long until one failed handshake of an address is forgiven; see [`FAILURES_MAX`].
pub const FORGIVEN_AFTER: Duration = Duration::from_secs(6);
/// How long until a failed handshake is forgiven to an address from which a key was proved recently: a paired host may
/// share its address with others, behind a router. Fifty failures a second are a few hundredths of a processor.
pub const FORGIVEN_AFTER_PROVED: Duration = Duration::from_millis(20);
/// The most addresses that are remembered; beyond, the one that has been quiet longest is forgotten.
pub const ADDRESSES_MAX: usize = 4096;
/// How long a refused peer may take to read why, and how much of what it still sends is discarded meanwhile: closing a
/// socket with unread bytes would discard what was sent last.
pub const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(500);
/// How many bytes of a refused peer are discarded while it reads why; see [`LAST_WORDS_TIME_MAX`].
pub const LAST_WORDS_BYTES_MAX: usize = 64 << 10;

/// Wrong guesses before a pairing code becomes invalid.
pub const TRIES_A_CODE: u32 = 3;
/// How many codes one `farbus pair` shows before it gives up: nine guesses at one of 10^8 codes in all.
pub const CODES_A_PAIRING: u32 = 3;
/// How long a pairing code is valid: the time to walk to the other machine and type it.
pub const CODE_TIME_MAX: Duration = Duration::from_secs(120);
/// How long the exchange may take once both keys are shown.
pub const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long before its creation a certificate is already valid: clocks differ, and one that is a month slow can still
/// pair.
pub const CERTIFICATE_BACKDATED: Duration = Duration::from_secs(30 * 86_400);
/// How long after its creation it is valid. It is renewed every day, so only a copied certificate reaches the end.
pub const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(90 * 86_400);
/// The age at which a certificate is renewed; see [`CERTIFICATE_LIFETIME`].
pub const CERTIFICATE_RENEWED_AFTER: Duration = Duration::from_secs(86_400);

/// The size at which a file of the audit log is renamed and a new one begins.
pub const AUDIT_BYTES_MAX: u64 = 4 << 20;
/// How many old files are kept.
pub const AUDIT_FILES_MAX: u32 = 4;
/// Lines for each peer, event and outcome in a minute; further events are counted. A host that attaches a hundred
/// devices at once gets a line for each.
pub const AUDIT_LINES_OF_PEER_MAX: u32 = 256;
/// Lines for each event and outcome in a minute, of all peers together.
pub const AUDIT_LINES_MAX: u32 = 1024;
/// Lines for each peer and event that was refused, in a minute: enough to see what a peer asks for.
pub const REFUSED_LINES_OF_PEER_MAX: u32 = 10;
/// Lines for refusals of all peers together, in a minute: at most 1.5 MiB an hour, whatever the flood.
pub const REFUSED_LINES_MAX: u32 = 100;
/// The largest file of peers that is read: 126 devices for a thousand hosts.
pub const PEERS_BYTES_MAX: u64 = 8 << 20;
/// The most devices that are recognised by their evidence: years of plugged-in USB sticks.
pub const DEVICES_MAX: usize = 2048;
/// The largest file of devices that is read: [`DEVICES_MAX`] with the longest evidence, each character escaped.
pub const DEVICES_BYTES_MAX: u64 = 16 << 20;

/// The most devices of which labels are kept: as many as a large laboratory has.
pub const NOTES_MAX: usize = 2048;
/// The largest file of labels that is read: [`NOTES_MAX`] with the longest labels, each character escaped.
pub const NOTES_BYTES_MAX: u64 = 16 << 20;

/// The most tokens of the page: one for each program and person of a laboratory.
pub const PAGE_TOKENS_MAX: usize = 256;
/// The largest file of tokens that is read: [`PAGE_TOKENS_MAX`] with the longest names, each character escaped.
pub const PAGE_TOKENS_BYTES_MAX: u64 = 1 << 20;

/// The longest time for which a token is made, ten years and some days; one without a time lasts until it is revoked.
pub const PAGE_TOKEN_TIME_MAX: Duration = Duration::from_secs(3660 * 86_400);

/// How long a code lets a browser in: the time to point a phone at the terminal.
pub const PAGE_CODE_TIME_MAX: Duration = Duration::from_secs(60);
/// The most codes that were made in the last ten minutes: a class of people that come at once.
pub const PAGE_INVITATIONS_MAX: usize = 128;
/// The largest file of them that is read: [`PAGE_INVITATIONS_MAX`] with the longest names, each character escaped.
pub const PAGE_INVITATIONS_BYTES_MAX: u64 = 256 << 10;
/// How long a page's certificate is valid. Browsers know it by its fingerprint alone: a new one has to be shown again.
pub const PAGE_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
/// How long before that a page that starts makes another one.
pub const PAGE_CERTIFICATE_RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// The limits of every handshake.
pub const HANDSHAKE: HandshakeLimits = HandshakeLimits { time_max: HANDSHAKE_TIME_MAX, bytes_max: HANDSHAKE_BYTES_MAX };

/// Links that an importer may have on one connection of QUIC.
pub const QUIC_LINKS_MAX: u32 = 512;
/// Bytes of all links of a connection that have arrived at its importer and that nobody has read, at most; of one link
/// a quarter.
pub const QUIC_BYTES_MAX: u32 = 16 << 20;
/// Bytes of all links of a connection that have arrived at its exporter and that nobody has read, at most, and as many
/// that its importer has not acknowledged: 40 MB/s at 100 ms, more than three links may fill. Both are
/// taken from the importer's account.
pub const QUIC_EXPORTER_BYTES_MAX: usize = 4 << 20;
/// As [`QUIC_EXPORTER_BYTES_MAX`], before the importer has proved a key and where its account has nothing left: each
/// connection takes these bytes anyway.
pub const QUIC_EXPORTER_BYTES_MIN: usize = CONNECTION_BYTES / 2;
