//! Where to listen.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::Failure;
use crate::address::{LOCAL, address_with_port};
use crate::place::{Place, Protocol};

/// `ADDR[:PORT]` to listen at.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let with_port = address_with_port(text, port);
    with_port.parse().map_err(|_| {
        Failure::local(format!("'{text}' is no address to listen at: try 127.0.0.1, 0.0.0.0:{port} or [::1]:{port}"))
    })
}

/// Where this machine's programs or others are to find what is shared: `ADDR[:PORT]`, or `unix:PATH`.
pub fn listen_place(text: &str, port: u16) -> Result<Place, Failure> {
    match text.starts_with(LOCAL) {
        true => text.parse().map_err(Failure::local),
        false => listen_address(text, port).map(Place::Address),
    }
}

/// Where programs that speak `protocol` are to find `device`: at `--socket`, or `--listen`, or where it is by default.
pub fn place_said(
    protocol: Protocol,
    socket: Option<&Path>,
    listen: Option<&str>,
    device: &str,
) -> Result<Place, Failure> {
    match (socket, listen) {
        // Absolute: whoever is told the path may be elsewhere.
        (Some(socket), _) => std::path::absolute(socket).map(Place::Socket).map_err(Failure::local),
        (None, Some(listen)) => Ok(Place::Address(listen_address(listen, protocol.port())?)),
        (None, None) => Ok(protocol.default_place(device)),
    }
}

/// The same for somebody who reads what is said of it: what an address beyond this machine exposes.
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

/// Every address of this host: of both families, or of the old one where the new one is switched off.
pub fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}
