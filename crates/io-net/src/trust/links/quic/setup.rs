//! What connections of both ends have in common.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::Error;
use tokio::runtime::{self, Runtime};

use super::congestion::LossTolerantConfig;
use super::socket::JoiningUdpSocket;
use crate::trust::links::tls::HandshakeError;

/// After this silence a peer counts as lost, as over TCP: a session then tries for another link.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// How often an idle connection sends a keep-alive: two of them may be lost.
const KEEP_ALIVE: Duration = Duration::from_millis(1_200);
/// Bytes of a link that have arrived and that nobody has read, at least, as far as its connection's allow it.
const LINK_BYTES_MIN: u32 = 1_250_000;
/// The largest datagram that is tried: what an Ethernet of 9,000 bytes carries by IPv6. How large they may be on the
/// way to a peer is found by probes (RFC 8899); a peer of an earlier version takes 1,472 bytes.
const DATAGRAM_BYTES_MAX: u16 = 9000 - 48;

pub fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// The end of connections at this socket, and the socket.
///
/// # Errors
/// The socket's.
pub fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> io::Result<(Endpoint, Arc<JoiningUdpSocket>)> {
    let socket = Arc::new(JoiningUdpSocket::new(socket)?);
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(DATAGRAM_BYTES_MAX).expect("more than QUIC demands, and less than UDP carries");
    let carried = Arc::<JoiningUdpSocket>::clone(&socket);
    Ok((Endpoint::new_with_abstract_socket(config, server, carried, Arc::new(TokioRuntime))?, socket))
}

/// What an end says of itself on a stream of its own, which earlier versions leave empty or do not read: a byte of
/// flags, and what later versions add.
const SKILLS: [u8; 1] = [SKILL_JOINING];
/// It takes datagrams that were sent together.
const SKILL_JOINING: u8 = 1;
const SKILLS_BYTES_MAX: usize = 64;

/// Says what this end can do.
///
/// # Errors
/// The connection's.
pub async fn say_skills(connection: &Connection) -> Result<(), ConnectionError> {
    let mut stream = connection.open_uni().await?;
    // A peer that reads nothing has room for a byte; a stream that was just opened can be finished.
    let _ = stream.write_all(&SKILLS).await;
    let _ = stream.finish();
    Ok(())
}

/// Hears what the peer can do: whether it takes datagrams that were sent together.
///
/// # Errors
/// The connection's.
pub async fn hear_skills(connection: &Connection) -> Result<bool, ConnectionError> {
    let mut stream = connection.accept_uni().await?;
    let skills = stream.read_to_end(SKILLS_BYTES_MAX).await.unwrap_or_default();
    Ok(skills.first().is_some_and(|flags| flags & SKILL_JOINING != 0))
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
    // And one stream on which the other end says what it can do; an exporter accepts its importer by that.
    config.max_concurrent_bidi_streams(VarInt::from_u32(links_max)).max_concurrent_uni_streams(VarInt::from_u32(1));
    config.receive_window(VarInt::from_u32(unread_bytes_max));
    config.congestion_controller_factory(Arc::<LossTolerantConfig>::default());
    // Three links that nobody reads leave room for others.
    config.stream_receive_window(VarInt::from_u32((unread_bytes_max / 4).max(LINK_BYTES_MIN)));
    config.datagram_receive_buffer_size(None);
    let mut probes = MtuDiscoveryConfig::default();
    // As fine as that: each probe takes a processor's time while a device is being attached.
    probes.upper_bound(DATAGRAM_BYTES_MAX).minimum_change(128);
    config.mtu_discovery_config(Some(probes));
    config
}
