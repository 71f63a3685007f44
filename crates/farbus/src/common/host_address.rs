//! Where hosts listen, as people write it.

/// The port that USB/IP's tools expect.
pub const DEFAULT_PORT: u16 = 3240;
/// The port on which paired hosts meet.
pub const SECURE_PORT: u16 = 3241;
/// The port on which two hosts pair, open only while somebody waits for it.
pub const PAIRING_PORT: u16 = 3242;

/// How a socket of this machine is written where a host may be: `unix:PATH`.
pub const LOCAL: &str = "unix:";

/// `HOST[:PORT]` with the port of USB/IP filled in; IPv6 addresses in brackets or bare.
pub fn address_of(host: &str) -> String {
    address_with_port(host, DEFAULT_PORT)
}

/// `HOST[:PORT]` with this port filled in.
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
