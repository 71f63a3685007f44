//! The way to a host by its name: a paired one, one that a name service knows, or one that announces itself nearby.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use farbus_io::discovery::{self, Kind};
use farbus_io::link::{Link, LinkError, dial_local};
use serde::{Deserialize, Serialize};

use crate::address::DEFAULT_PORT;
use crate::known_host::KnownHost;
use crate::place::Place;

/// How long a host that announces itself is looked for.
const FIND_TIME_MAX: Duration = Duration::from_secs(3);

/// A host that is looked for nearby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sought {
    /// One that serves plain USB/IP, by its name.
    Plain(String),
    /// A paired one, by the fingerprint of its key.
    Key(String),
}

/// Connects to `host` (`HOST:PORT`, or `unix:PATH` on this machine): to a paired host where that was seen last or announces itself
/// now, to another where its name says. `nearby` finds the address of one that no name service knows. Whether a paired host is who it
/// says is found out later, in its handshake: a false address leads nowhere.
///
/// # Errors
/// [`LinkError`].
pub fn dial(
    host: &str,
    time_max: Duration,
    nearby: fn(&Sought) -> Option<SocketAddr>,
) -> Result<(OwnedFd, Place), LinkError> {
    if let Ok(Place::Socket(path)) = host.parse() {
        return dial_local(&path, time_max).map(|connection| (connection, Place::Socket(path)));
    }
    let (connection, peer) = dial_address(host, time_max, nearby)?;
    Ok((connection, Place::Address(peer)))
}

/// A socket for datagrams to a paired host, and where that may be. It is bound to no address of this machine: one that changes is of no
/// account. Whether anybody hears is found out later.
///
/// # Errors
/// [`LinkError`].
pub fn datagrams(host: &str, nearby: fn(&Sought) -> Option<SocketAddr>) -> Result<(UdpSocket, SocketAddr), LinkError> {
    let failed = |source| LinkError { address: host.to_owned(), source };
    let unknown = || failed(io::Error::new(io::ErrorKind::NotFound, "it is not a paired host"));
    let known = KnownHost::find(host).ok().flatten().ok_or_else(unknown)?;
    let resolved = known.address().to_socket_addrs().ok().and_then(|mut all| all.next());
    let to = resolved.or_else(|| nearby(&Sought::Key(known.fingerprint().to_string())));
    let to = to.ok_or_else(|| failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address")))?;
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Ok((UdpSocket::bind((any, 0)).map_err(failed)?, to))
}

fn dial_address(
    host: &str,
    time_max: Duration,
    nearby: fn(&Sought) -> Option<SocketAddr>,
) -> Result<(OwnedFd, SocketAddr), LinkError> {
    // A list of paired hosts that cannot be read was complained about by whoever needs it to trust somebody.
    if let Ok(Some(known)) = KnownHost::find(host) {
        let moved = || nearby(&Sought::Key(known.fingerprint().to_string()));
        return Link::dial(known.address(), time_max).or_else(|error| dial_instead(moved(), time_max, error));
    }
    Link::dial(host, time_max).or_else(|error| dial_instead(announced_at(host, nearby), time_max, error))
}

/// Another address, if there is one; what was wrong with the first, if that is no better.
fn dial_instead(
    at: Option<SocketAddr>,
    time_max: Duration,
    error: LinkError,
) -> Result<(OwnedFd, SocketAddr), LinkError> {
    at.and_then(|at| Link::dial(&at.to_string(), time_max).ok()).ok_or(error)
}

/// Where a host is that no name service knows. Its own port, unless another was asked for.
fn announced_at(address: &str, nearby: fn(&Sought) -> Option<SocketAddr>) -> Option<SocketAddr> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    if host.starts_with('[') || host.parse::<IpAddr>().is_ok() || address.to_socket_addrs().is_ok() {
        return None;
    }
    let mut at = nearby(&Sought::Plain(host.to_owned()))?;
    if port != DEFAULT_PORT {
        at.set_port(port);
    }
    Some(at)
}

/// Where a host is that announces itself, asked by this process.
pub fn announced(sought: &Sought) -> Option<SocketAddr> {
    let found = match sought {
        Sought::Plain(name) => discovery::find(Kind::Plain, name, FIND_TIME_MAX, discovery::PORT),
        Sought::Key(fingerprint) => discovery::find_key(fingerprint, FIND_TIME_MAX, discovery::PORT),
    };
    found.ok()??.addresses.first().copied()
}
