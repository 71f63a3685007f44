//! The URI by which an NBD client finds an export (the NBD project's `doc/uri.md`).

use std::fmt::Write as _;

use crate::common::socket_place::SocketLocation;

/// The URI of an export of a server at `place`. An empty name means the default export.
pub fn uri(location: &SocketLocation, export: &str) -> String {
    let export = escaped(export);
    match location {
        SocketLocation::Socket(path) => format!("nbd+unix:///{export}?socket={}", escaped(&path.display().to_string())),
        SocketLocation::Address(address) => format!("nbd://{address}/{export}"),
    }
}

/// Escapes text for a URI (RFC 3986) so that it is also safe between quotes of a shell and commas of QEMU.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut to, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            to.push(char::from(byte));
        } else {
            write!(to, "%{byte:02X}").expect("a string takes all");
        }
        to
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_escapes_any_socket_path() {
        let socket = |path: &str| uri(&SocketLocation::Socket(path.into()), "");
        assert_eq!(socket("/run/farbus/nbd-disk.sock"), "nbd+unix:///?socket=/run/farbus/nbd-disk.sock");
        assert_eq!(socket("a b,c&d'e\u{fc}"), "nbd+unix:///?socket=a%20b%2Cc%26d%27e%C3%BC");
        assert_eq!(
            uri(&SocketLocation::Address("[::1]:10809".parse().unwrap()), "boot disk"),
            "nbd://[::1]:10809/boot%20disk"
        );
    }
}
