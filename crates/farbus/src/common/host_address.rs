//! Addresses of hosts, as people write them.

/// The port that USB/IP's tools expect.
pub const DEFAULT_PORT: u16 = 3240;
/// The port at which paired hosts are served.
pub const SECURE_PORT: u16 = 3241;
/// The port at which two hosts pair. It is open only while `farbus pair` waits there.
pub const PAIRING_PORT: u16 = 3242;

/// The prefix of a socket of this machine where an address of a host is expected: `unix:PATH`.
pub const LOCAL: &str = "unix:";

/// Adds the port of USB/IP to `HOST[:PORT]` if it has none. IPv6 addresses may be bracketed or bare.
pub fn address_of(host: &str) -> String {
    address_with_port(host, DEFAULT_PORT)
}

/// Adds `port` to `HOST[:PORT]` if it has none.
pub fn address_with_port(host: &str, port: u16) -> String {
    if host.starts_with(LOCAL) {
        return host.to_owned();
    }
    let is_bare_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    if is_bare_v6 {
        return format!("[{host}]:{port}");
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}
