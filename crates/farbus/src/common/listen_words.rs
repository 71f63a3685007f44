//! Listening addresses, as people write them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use farbus_control::failure::CommandFailure;
use farbus_io_net::link::host_address::{LOCAL, address_with_port};
use farbus_io_net::link::resolve;

use crate::common::socket_place::{SocketLocation, SocketProtocol};

/// The word for the loopback address, which only this machine reaches.
const LOOPBACK: &str = "loopback";

/// Parses `ADDR[:PORT]` or `loopback[:PORT]`.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, CommandFailure> {
    let address = text.strip_prefix(LOOPBACK).filter(|rest| rest.is_empty() || rest.starts_with(':'));
    let address = address.map_or_else(|| text.to_owned(), |port| format!("{}{port}", Ipv4Addr::LOCALHOST));
    let with_port = address_with_port(&address, port);
    // An interface's name is the system's to know.
    let named = || resolve(&with_port).ok().filter(|_| with_port.contains('%'))?.first().copied();
    with_port.parse().ok().or_else(named).ok_or_else(|| {
        CommandFailure::local(format!(
            "'{text}' is no address to listen at: try loopback, 0.0.0.0:{port} or [::1]:{port}"
        ))
    })
}

/// Parses a listening place: `ADDR[:PORT]`, `loopback[:PORT]` or `unix:PATH`.
pub fn listen_place(text: &str, port: u16) -> Result<SocketLocation, CommandFailure> {
    match text.starts_with(LOCAL) {
        true => text.parse().map_err(CommandFailure::local),
        false => listen_address(text, port).map(SocketLocation::Address),
    }
}

/// The place at which programs that speak `protocol` find `device`: that of `--socket` or `--listen`, or the default.
pub fn place_said(
    protocol: SocketProtocol,
    socket: Option<&Path>,
    listen: Option<&str>,
    device: &str,
) -> Result<SocketLocation, CommandFailure> {
    match (socket, listen) {
        // The path is made absolute, because its readers may have another working directory.
        (Some(socket), _) => std::path::absolute(socket).map(SocketLocation::Socket).map_err(CommandFailure::local),
        (None, Some(listen)) => Ok(SocketLocation::Address(listen_address(listen, protocol.port)?)),
        (None, None) => Ok(protocol.default_place(device)),
    }
}

/// All addresses of this host: IPv6 and IPv4, or IPv4 only where IPv6 is switched off.
pub fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
}

/// The failure of listening at `place`, with what to do.
pub fn listen_failure(location: &SocketLocation, error: &std::io::Error) -> CommandFailure {
    let hint = match (location, error.kind()) {
        // An error of a path says itself what to do.
        (SocketLocation::Socket(_), _) => return CommandFailure::local(error),
        (SocketLocation::Address(_), std::io::ErrorKind::AddrInUse) => {
            "\n  another share or usbipd is there: see 'farbus status', or choose --listen (--secure) ADDR:PORT"
        }
        _ => "",
    };
    // An error of `SocketLocation::listen` names the place itself; one of the system does not.
    let message = error.to_string();
    let subject = format!("cannot listen at {location}: ");
    let subject = if message.starts_with(&subject) { "" } else { &subject };
    CommandFailure::local(format!("{subject}{message}{hint}"))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn address_to_listen_at_may_name_its_interface() {
        for typed in ["fe80::1%lo", "[fe80::1%lo]", "[fe80::1%lo]:99", "[fe80::1%1]:99"] {
            let SocketAddr::V6(address) = listen_address(typed, 99).unwrap() else { panic!("{typed}") };
            assert_eq!((address.scope_id(), address.port()), (1, 99), "{typed}");
        }
        for wrong in ["lab3", "localhost:99", "fe80::1%none7"] {
            assert!(listen_address(wrong, 99).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_listen_failure_names_the_place_once() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let location = SocketLocation::Address(taken.local_addr().unwrap());
        let of_place = listen_failure(&location, &location.listen().unwrap_err()).to_string();
        let of_system = listen_failure(&location, &ErrorKind::AddrInUse.into()).to_string();
        for text in [of_place, of_system] {
            assert_eq!(text.matches("cannot listen at").count(), 1, "{text}");
            assert!(text.contains("another share or usbipd is there"), "{text}");
        }
    }
}
