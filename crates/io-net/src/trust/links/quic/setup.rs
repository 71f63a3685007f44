//! What connections of both ends have in common.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::Error;
use tokio::runtime::{self, Runtime};

use super::socket::JoiningUdpSocket;
use crate::trust::links::tls::HandshakeError;

/// After this silence a peer counts as lost, as over TCP: a session then tries for another link.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// How often an idle connection sends a keep-alive: two of them may be lost.
const KEEP_ALIVE: Duration = Duration::from_millis(1_200);
/// The largest datagram that is tried: what an Ethernet of 9,000 bytes carries by IPv6. How large they may be on the way
/// to a peer is found by probes (RFC 8899); a peer of an earlier version takes 1,472 bytes.
const DATAGRAM_BYTES_MAX: u16 = 9000 - 48;

pub fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// The end of connections at this socket.
///
/// # Errors
/// The socket's.
pub fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> io::Result<Endpoint> {
    let socket = Arc::new(JoiningUdpSocket::new(socket)?);
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(DATAGRAM_BYTES_MAX).expect("more than QUIC demands, and less than UDP carries");
    Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(TokioRuntime))
}

pub fn no_suite(error: impl std::fmt::Display) -> HandshakeError {
    HandshakeError::Rules(Error::General(error.to_string()))
}

/// How a connection behaves on which the peer may open so many links, and for which this end keeps so many bytes that
/// nobody has read.
pub fn transport(links_max: u32, unread_bytes_max: u32) -> TransportConfig {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(Some(IdleTimeout::try_from(IDLE_MAX).expect("a few seconds")));
    config.keep_alive_interval(Some(KEEP_ALIVE));
    // And one stream to confirm acceptance.
    config.max_concurrent_bidi_streams(VarInt::from_u32(links_max)).max_concurrent_uni_streams(VarInt::from_u32(1));
    config.receive_window(VarInt::from_u32(unread_bytes_max));
    config.datagram_receive_buffer_size(None);
    let mut probes = MtuDiscoveryConfig::default();
    probes.upper_bound(DATAGRAM_BYTES_MAX);
    config.mtu_discovery_config(Some(probes));
    config
}
