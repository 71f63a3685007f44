//! Addresses of hosts, as people write them.

/// The port that USB/IP's tools expect.
pub const DEFAULT_PORT: u16 = 3240;
/// The port at which paired hosts are served.
pub const SECURE_PORT: u16 = 3241;
/// The port at which two hosts pair. It is open only while `farbus pair` waits there.
pub const PAIRING_PORT: u16 = 3242;

/// The prefix of a socket of this machine where an address of a host is expected: `unix:PATH`.
pub const LOCAL: &str = "unix:";

/// Checks that a text can be `HOST[:PORT]` or `unix:PATH`, and returns it.
///
/// # Errors
/// What is wrong with it.
pub fn check_host(text: &str) -> Result<String, String> {
    if text.starts_with(LOCAL) {
        return Ok(text.to_owned());
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!("'{text}' is no host: type '{rest}' without '{scheme}://'"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bare_v6(text) && !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if let Some(port) = port.filter(|port| port.parse::<u16>().is_err()) {
        return Err(format!("'{port}' in '{text}' is no port: 1 to 65535"));
    }
    let is_in_name = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    if host.is_empty() || !host.chars().all(is_in_name) {
        return Err(format!("'{text}' is no host: a name or an address, such as lab3, lab3:3241 or 10.0.0.7"));
    }
    Ok(text.to_owned())
}

/// Adds the port of USB/IP to `HOST[:PORT]` if it has none. IPv6 addresses may be bracketed or bare.
pub fn address_of(host: &str) -> String {
    address_with_port(host, DEFAULT_PORT)
}

/// Adds `port` to `HOST[:PORT]` if it has none.
pub fn address_with_port(host: &str, port: u16) -> String {
    if host.starts_with(LOCAL) {
        return host.to_owned();
    }
    if is_bare_v6(host) {
        return format!("[{host}]:{port}");
    }
    match host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        Some((bare, port)) if is_bare_v6(bare) && bare.contains('%') => format!("[{bare}]:{port}"),
        Some(_) => host.to_owned(),
        None => format!("{host}:{port}"),
    }
}

/// Whether this is an IPv6 address without brackets, with the name of its interface or without.
fn is_bare_v6(host: &str) -> bool {
    let (address, interface) = host.split_once('%').unwrap_or((host, "-"));
    address.parse::<core::net::Ipv6Addr>().is_ok() && !interface.is_empty() && !interface.contains([':', ']'])
}

/// `HOST:PORT` as messages show it: a name without the port of plain USB/IP, which is the default. The name may be a
/// paired host's, which is reached at another port.
pub fn shown(address: &str) -> &str {
    let is_name = |host: &str| !host.starts_with(['[', '/']) && host.parse::<core::net::IpAddr>().is_err();
    match address.rsplit_once(':') {
        Some((host, port)) if port.parse() == Ok(DEFAULT_PORT) && !address.starts_with(LOCAL) && is_name(host) => host,
        _ => address,
    }
}

/// Host and port of `[ADDRESS%INTERFACE]:PORT`: the system knows interfaces by name in a host, and not within brackets.
/// `None` for any other address, which it takes as it is.
pub fn with_interface(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.strip_prefix('[')?.rsplit_once("]:")?;
    Some((host, port.parse().ok()?)).filter(|(host, _)| host.contains('%'))
}

/// The port of `HOST:PORT`.
pub fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_port_is_not_shown_behind_a_name() {
        assert_eq!(shown("lab3:3240"), "lab3");
        for whole in ["lab3:3241", "10.0.0.7:3240", "[::1]:3240", "unix:/run/x:3240", "lab3 (10.0.0.7:3241)"] {
            assert_eq!(shown(whole), whole);
        }
    }

    #[test]
    fn address_has_brackets_and_a_port_however_it_was_typed() {
        for (typed, expected) in [
            ("lab3", "lab3:3240"),
            ("lab3:99", "lab3:99"),
            ("10.0.0.7", "10.0.0.7:3240"),
            ("::1", "[::1]:3240"),
            ("[::1]", "[::1]:3240"),
            ("[::1]:99", "[::1]:99"),
            ("fe80::1%eth0", "[fe80::1%eth0]:3240"),
            ("fe80::1%eth0:99", "[fe80::1%eth0]:99"),
            ("[fe80::1%eth0]", "[fe80::1%eth0]:3240"),
            ("[fe80::1%eth0]:99", "[fe80::1%eth0]:99"),
            ("fe80::1%2", "[fe80::1%2]:3240"),
        ] {
            assert_eq!(address_of(typed), expected, "{typed}");
            assert_eq!(port_of(&address_of(typed)), expected.rsplit_once(':').and_then(|(_, port)| port.parse().ok()));
        }
        assert_eq!(with_interface("[fe80::1%eth0]:99"), Some(("fe80::1%eth0", 99)));
        assert_eq!((with_interface("[::1]:99"), with_interface("lab3:99")), (None, None));
    }

    #[test]
    fn hosts_are_names_or_addresses_with_or_without_a_port() {
        for fine in [
            "lab3",
            "lab3:3241",
            "10.0.0.7",
            "10.0.0.7:99",
            "::1",
            "[::1]",
            "[::1]:3240",
            "fe80::1%eth0",
            "fe80::1%eth0:3241",
            "[fe80::1%eth0]",
            "[fe80::1%eth0]:3241",
            "unix:/run/x.sock",
        ] {
            assert_eq!(check_host(fine), Ok(fine.to_owned()));
        }
        for (wrong, expected) in [
            ("http://lab3", "type 'lab3' without 'http://'"),
            ("lab3:70000", "'70000' in 'lab3:70000' is no port"),
            ("lab3:usb", "'usb' in 'lab3:usb' is no port"),
            ("lab3:", "'' in 'lab3:' is no port"),
            (":3240", "is no host"),
            ("", "is no host"),
            ("lab 3", "is no host"),
            ("lab3/disk", "is no host"),
        ] {
            let error = check_host(wrong).expect_err(wrong);
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
