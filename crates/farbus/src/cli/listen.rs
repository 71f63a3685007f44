//! Where programs are to find a device, from a command line.

use std::path::Path;

use super::Failure;
use crate::common::listen_words::place_said;
use crate::common::socket_place::{Place, Protocol};

/// Where programs that speak `protocol` are to find `device`: at `--socket`, at `--listen`, or at the default place.
/// Warns of an address that other machines can reach.
pub fn place_told(
    protocol: Protocol,
    socket: Option<&Path>,
    listen: Option<&str>,
    device: &str,
) -> Result<Place, Failure> {
    let place = place_said(protocol, socket, listen, device)?;
    if let Some(exposure) = protocol.exposure(&place) {
        eprintln!("farbus: warning: {exposure}");
    }
    Ok(place)
}
