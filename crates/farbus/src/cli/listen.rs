//! Where to listen.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Failure;
use crate::address::address_with_port;

/// `ADDR[:PORT]` to listen at.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let with_port = address_with_port(text, port);
    with_port.parse().map_err(|_| {
        Failure::local(format!("'{text}' is no address to listen at: try 127.0.0.1, 0.0.0.0:{port} or [::1]:{port}"))
    })
}

/// Every address of this host: of both families, or of the old one where the new one is switched off.
pub fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}
