//! The first messages on a link of USB/IP: a question and its answer.

use std::io;

use farbus_io_net::link::Link;
use farbus_session::ImportHandshake;
use farbus_session::importer::HandshakeAnswer;

use super::error::{ClientError, lost};
use crate::importer::local_error::hint;

/// Sends a handshake's question and waits for its answer, for as long as the link's receive timeout.
///
/// # Errors
/// [`ClientError::Lost`], [`ClientError::Closed`], [`ClientError::Protocol`]; [`ClientError::Untrusted`]: an exporter of
/// this machine hung up without a word, as it does to users that it does not serve.
pub fn converse(link: &Link, handshake: &mut ImportHandshake) -> Result<HandshakeAnswer, ClientError> {
    let address = || link.peer().to_owned();
    let mut has_answered = false;
    loop {
        let lost = |source: io::Error| match source.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => closed(link.peer(), has_answered),
            _ => lost(link.peer(), source),
        };
        if handshake.has_transmit() {
            // A handshake is smaller than any socket's buffer.
            let sent = link.try_send(&handshake.poll_transmit()).map_err(lost)?.unwrap_or(0);
            handshake.handle_transmitted(sent);
        }
        let count = link.receive(handshake.receive_space()).map_err(lost)?;
        if count == 0 {
            return Err(closed(link.peer(), has_answered));
        }
        has_answered = true;
        let greeting = handshake.handle_received(count);
        if let Some(greeting) = greeting.map_err(|reject| ClientError::Protocol { address: address(), reject })? {
            return Ok(greeting);
        }
    }
}

fn closed(peer: &str, has_answered: bool) -> ClientError {
    match hint(peer).filter(|_| !has_answered) {
        Some(hint) => {
            ClientError::Untrusted { address: peer.to_owned(), what: format!("it hung up without a word\n  {hint}") }
        }
        None => ClientError::Closed { address: peer.to_owned() },
    }
}
