//! The addresses that a `HOST:PORT` means.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::host_address::with_interface;

/// All addresses of `HOST:PORT`. HOST is a name, or an address; one of IPv6 is bracketed, and may name its interface:
/// `[fe80::1%eth0]:3240`.
///
/// # Errors
/// The system's error; of the kind `NotFound` if no name service knows the name, or the interface is not there.
pub fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let found = match with_interface(address) {
        Some(host_and_port) => host_and_port.to_socket_addrs(),
        None => address.to_socket_addrs(),
    };
    match found {
        Ok(all) => Ok(all.collect()),
        Err(error) if error.raw_os_error().is_none() => Err(io::Error::new(io::ErrorKind::NotFound, error.to_string())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_with_an_interface_is_found_by_the_interfaces_name_or_number() {
        for address in ["[fe80::1%lo]:3240", "[fe80::1%1]:3240"] {
            let [SocketAddr::V6(found)] = resolve(address).unwrap()[..] else { panic!("{address}") };
            assert_eq!((found.ip().to_string(), found.port(), found.scope_id()), ("fe80::1".into(), 3240, 1));
        }
        assert_eq!(resolve("[::1]:99").unwrap(), ["[::1]:99".parse().unwrap()]);
        assert_eq!(resolve("10.0.0.7:99").unwrap(), ["10.0.0.7:99".parse().unwrap()]);
    }

    #[test]
    fn what_has_no_address_is_not_found() {
        for address in ["nobody.invalid:3240", "[fe80::1%none7]:3240"] {
            assert_eq!(resolve(address).unwrap_err().kind(), io::ErrorKind::NotFound, "{address}");
        }
    }
}
