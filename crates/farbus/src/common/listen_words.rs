//! Where to listen, as people say it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::common::failure::Failure;
use crate::common::host_address::{LOCAL, address_with_port};
use crate::common::socket_place::{Place, Protocol};

/// The word for this machine alone, by TCP.
const LOOPBACK: &str = "loopback";

/// `ADDR[:PORT]` to listen at, or `loopback[:PORT]`.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let address = text.strip_prefix(LOOPBACK).filter(|rest| rest.is_empty() || rest.starts_with(':'));
    let address = address.map_or_else(|| text.to_owned(), |port| format!("{}{port}", Ipv4Addr::LOCALHOST));
    let with_port = address_with_port(&address, port);
    with_port.parse().map_err(|_| {
        Failure::local(format!("'{text}' is no address to listen at: try loopback, 0.0.0.0:{port} or [::1]:{port}"))
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
        (None, Some(listen)) => Ok(Place::Address(listen_address(listen, protocol.port)?)),
        (None, None) => Ok(protocol.default_place(device)),
    }
}

/// Every address of this host: of both families, or of the old one where the new one is switched off.
pub fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}

/// Why nothing can listen at `place`, and what to do.
pub fn listen_failure(place: &Place, error: &std::io::Error) -> Failure {
    let hint = match (place, error.kind()) {
        // What is wrong with a path says itself what to do.
        (Place::Socket(_), _) => return Failure::local(error),
        (Place::Address(_), std::io::ErrorKind::AddrInUse) => {
            "\n  another share or usbipd is there: see 'farbus status', or choose --listen (--secure) ADDR:PORT"
        }
        _ => "",
    };
    Failure::local(format!("cannot listen at {place}: {error}{hint}"))
}
