//! How the page for browsers of other machines is named, in the command and in the configuration.

use std::net::{IpAddr, SocketAddr};

/// The most names of a page.
pub const NAMES_MAX: usize = 16;
/// The longest name, bytes (RFC 1035, 2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// A name or an address under which browsers of other machines ask for the page.
///
/// # Errors
/// A sentence for a person.
pub fn site_name(text: &str) -> Result<String, String> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(if address.is_ipv6() { format!("[{address}]") } else { address.to_string() });
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    match !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.chars().all(is_name) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(format!("'{text}' is no name of a host and no address, without a port: say lab3.example")),
    }
}

/// An address for browsers of other machines.
///
/// # Errors
/// A sentence for a person.
pub fn tls_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no ADDRESS:PORT: say 0.0.0.0:7241, or one of this machine's addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_names_and_addresses_without_ports() {
        for (typed, name) in
            [("Lab3.Example", "lab3.example"), ("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "[2001:db8::7]")]
        {
            assert_eq!(site_name(typed).as_deref(), Ok(name));
        }
        for wrong in ["", "lab3:7241", "https://lab3", "a b", "*", &"x".repeat(254)] {
            assert!(site_name(wrong).is_err(), "{wrong}");
        }
    }
}
