//! The memory that a connection may make an exporter hold: bytes that arrived and that no link has read, and bytes that
//! were sent and that the importer has not acknowledged.

use std::sync::Arc;

use farbus_model::budget::{MemoryAccount, MemoryCharge};
use quinn::{Connection, VarInt};

use crate::trust::limits::{QUIC_EXPORTER_BYTES_MAX, QUIC_EXPORTER_BYTES_MIN};

/// What a connection has of its importer's account. Dropping it gives that back: the connection has ended then.
#[derive(Debug)]
pub struct ConnectionMemoryCharge {
    _taken: Option<MemoryCharge>,
}

impl ConnectionMemoryCharge {
    /// Widens the windows of a connection as far as the account of its importer goes.
    pub fn take(connection: &Connection, account: &Arc<MemoryAccount>) -> Self {
        let mut bytes = (account.left_for_speed() / 2).min(QUIC_EXPORTER_BYTES_MAX);
        while bytes > QUIC_EXPORTER_BYTES_MIN {
            // Another connection may have taken what was left.
            if let Ok(taken) = account.take(2 * bytes) {
                connection.set_receive_window(VarInt::from_u32(bytes as u32));
                connection.set_send_window(bytes as u64);
                return Self { _taken: Some(taken) };
            }
            bytes /= 2;
        }
        Self { _taken: None }
    }
}
