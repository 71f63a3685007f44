//! Three messages of USB/IP, encoded by hand: a check that shares no code with farbus.

use crate::{Result, RigError};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Asks an exporter for a device and closes at once; returns whether the exporter granted it.
///
/// A refused connection is an answer too: the exporter is gone.
pub fn grants(port: u16, bus_id: &str) -> Result<bool> {
    let doing = "ask the exporter for a device";
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(RigError::io(doing))?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(RigError::io(doing))?;
    stream.write_all(&import_request(bus_id)).map_err(RigError::io(doing))?;
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).map_err(RigError::io(doing))?;
    granted(&reply)
}

/// OP_REQ_IMPORT of protocol version 0x0111: version, code, status, 32 bytes of bus id.
fn import_request(bus_id: &str) -> [u8; 40] {
    let mut request = [0; 40];
    request[..8].copy_from_slice(&[0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0]);
    request[8..8 + bus_id.len()].copy_from_slice(bus_id.as_bytes());
    request
}

/// OP_REP_IMPORT begins with version, code and a status that is zero if the import succeeded.
fn granted(reply: &[u8; 8]) -> Result<bool> {
    if reply[..4] != [0x01, 0x11, 0x00, 0x03] {
        return Err(RigError::Expectation(format!("the exporter answered an import with {reply:02x?}")));
    }
    Ok(reply[4..] == [0; 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_as_the_protocol_has_them() {
        let request = import_request("1-1");
        assert_eq!(request[..12], [1, 0x11, 0x80, 3, 0, 0, 0, 0, b'1', b'-', b'1', 0]);
        assert!(granted(&[1, 0x11, 0, 3, 0, 0, 0, 0]).unwrap());
        assert!(!granted(&[1, 0x11, 0, 3, 0, 0, 0, 1]).unwrap());
        assert!(granted(&[1, 6, 0, 3, 0, 0, 0, 0]).is_err());
    }
}
