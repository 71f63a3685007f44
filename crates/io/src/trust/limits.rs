//! What a stranger may cost, in one place. Constants say how the number was found.

use std::time::Duration;

use crate::link::HandshakeLimits;

/// A handshake is two flights and two signatures: milliseconds of work and one round trip. Ten round trips over the
/// slowest mobile network, and then it is somebody who holds the door open.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// Our own handshakes take under 2 KiB a side; a client of another make may greet at length.
pub const HANDSHAKE_BYTES_MAX: usize = 32 << 10;
/// Connections at once that have not proved a key yet: each is a thread and its buffers (0.5 MiB).
pub const STRANGERS_MAX: usize = 32;
/// And from one address: one host attaches a few devices at once.
pub const STRANGERS_OF_ADDRESS_MAX: usize = 8;
/// Of [`STRANGERS_MAX`], those that only who comes from a network where a key was proved lately may have: a host that
/// links again with all lanes of a session or two.
pub const PROVED_PLACES: usize = 8;
/// How long that counts: hosts that are used daily keep it.
pub const PROVED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Addresses of which that is known; beyond, the one whose time is over first is forgotten.
pub const PROVED_MAX: usize = 1024;
/// Where there is no place left, how long a handshake may take: two round trips and two signatures, over any network
/// but the slowest.
pub const PRESSED_TIME: Duration = Duration::from_secs(1);
/// A network that has more places than this gives way at once to one that has fewer.
pub const CROWDED_NETWORK: usize = 8;
/// Failed handshakes that an address may run up at once; each is forgiven after [`FORGIVEN_AFTER`]. A person who has
/// not paired tries twice or three times; a program that guesses is cut to one try in that time.
pub const FAILURES_MAX: u32 = 10;
/// How long an address is remembered for a key that was proved from it: then links that are lost in a handshake are its
/// network's fault. As long as the longest grace of a session, and a pause in using it.
pub const TRUSTED_FOR: Duration = Duration::from_secs(600);
/// See [`FAILURES_MAX`].
pub const FORGIVEN_AFTER: Duration = Duration::from_secs(6);
/// Addresses that are remembered; beyond, the one that has been quiet longest is forgotten.
pub const ADDRESSES_MAX: usize = 4096;
/// How long a peer that was refused may take to read why, and how much of what it still sends is thrown away meanwhile:
/// a socket closed with bytes unread takes its last words with it.
pub const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(500);
/// See [`LAST_WORDS_TIME_MAX`].
pub const LAST_WORDS_BYTES_MAX: usize = 64 << 10;

/// Wrong guesses before a pairing code is void.
pub const TRIES_A_CODE: u32 = 3;
/// Codes that one `farbus pair` shows before it gives up: nine guesses at one of 10^8, whoever tries.
pub const CODES_A_PAIRING: u32 = 3;
/// How long a pairing code holds: the time to walk to the other machine and type it.
pub const CODE_TIME_MAX: Duration = Duration::from_secs(120);
/// How long the exchange itself may take, once both keys are shown.
pub const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// A certificate is in date for so long before it is made: clocks differ, and one that is set back by a month still
/// pairs.
pub const CERTIFICATE_BACKDATED: Duration = Duration::from_secs(30 * 86_400);
/// And after. It is made afresh every day, so the end is only met by one that was copied away.
pub const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(90 * 86_400);
/// See [`CERTIFICATE_LIFETIME`].
pub const CERTIFICATE_RENEWED_AFTER: Duration = Duration::from_secs(86_400);

/// Bytes of one file of the audit log; then it is renamed and a new one begins.
pub const AUDIT_BYTES_MAX: u64 = 4 << 20;
/// Old files kept.
pub const AUDIT_FILES_MAX: u32 = 4;
/// Lines about one peer in a minute, of an event and an outcome; those beyond are counted. A host that attaches a
/// hundred devices at once has a line for each.
pub const AUDIT_LINES_OF_PEER_MAX: u32 = 256;
/// The same about all peers together.
pub const AUDIT_LINES_MAX: u32 = 1024;
/// The same of refusals: enough to see what a peer asks for.
pub const REFUSED_LINES_OF_PEER_MAX: u32 = 10;
/// The same about all peers together: 1.5 MiB an hour at most, whoever floods.
pub const REFUSED_LINES_MAX: u32 = 100;
/// The largest file of peers that is read: 126 devices for a thousand hosts.
pub const PEERS_BYTES_MAX: u64 = 8 << 20;
/// Devices that are found again by their evidence: years of sticks that were plugged in.
pub const DEVICES_MAX: usize = 2048;
/// The largest file of devices that is read: [`DEVICES_MAX`] with the longest evidence, each character escaped.
pub const DEVICES_BYTES_MAX: u64 = 16 << 20;

/// Of every handshake.
pub const HANDSHAKE: HandshakeLimits = HandshakeLimits { time_max: HANDSHAKE_TIME_MAX, bytes_max: HANDSHAKE_BYTES_MAX };
