//! QUIC between hosts that know each other's keys: a second transport for sessions, for networks that lose many packets
//! or change their addresses, and for hosts that use hundreds of each other's devices.
//!
//! Keys, certificates and ALPN are those of TLS over TCP (`tls.rs`). A link is one stream, which the importer opens,
//! and a connection carries many ([`pool`]). Each stream has a flow of its own: a link that nobody reads, is cut
//! or breaks a protocol leaves the others as they are (requirement X9). A link is a descriptor, while QUIC runs in an
//! asynchronous runtime: a task carries bytes between the stream and one end of a socket pair, whose other end is the
//! link ([`bridge`]). That costs one more hop in each direction, so TCP is the first choice.
//!
//! An importer finishes its handshake before the exporter has checked its key (RFC 8446 §2). So an exporter that
//! accepts it confirms that by a stream of its own, on which it says what it can do; the importer does so, too
//! ([`setup`]).
//!
//! Datagrams leave and arrive many at a time ([`socket`]), as large as the path carries, and a datagram that is lost
//! where no queue can be seen slows nothing down ([`congestion`]).

mod bridge;
mod congestion;
mod ending;
mod pool;
mod room;
mod server;
mod setup;
mod socket;
#[cfg(test)]
mod tests;

pub use self::ending::end_quic;
pub use self::pool::{LinkTraffic, QuicPool};
pub use self::server::{QuicAcceptor, QuicServer};
