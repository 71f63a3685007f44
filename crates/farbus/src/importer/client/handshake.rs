//! The first messages on a link of USB/IP: a question and its answer.

use farbus_io_net::link::Link;
use farbus_session::ImportHandshake;
use farbus_session::importer::HandshakeAnswer;

use super::error::{ClientError, lost};

/// Sends a handshake's question and waits for its answer, for as long as the link's receive timeout.
///
/// # Errors
/// [`ClientError::Lost`], [`ClientError::Closed`], [`ClientError::Protocol`].
pub fn converse(link: &Link, handshake: &mut ImportHandshake) -> Result<HandshakeAnswer, ClientError> {
    let address = || link.peer().to_owned();
    let lost = |source| lost(link.peer(), source);
    loop {
        if handshake.has_transmit() {
            // A handshake is smaller than any socket's buffer.
            let sent = link.try_send(&handshake.poll_transmit()).map_err(lost)?.unwrap_or(0);
            handshake.handle_transmitted(sent);
        }
        let count = link.receive(handshake.receive_space()).map_err(lost)?;
        if count == 0 {
            return Err(ClientError::Closed { address: address() });
        }
        let greeting = handshake.handle_received(count);
        if let Some(greeting) = greeting.map_err(|reject| ClientError::Protocol { address: address(), reject })? {
            return Ok(greeting);
        }
    }
}
