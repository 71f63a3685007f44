//! Finds and connects to a host by its name: a paired one, one in a name service, or one that announces itself nearby.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use farbus_io_net::discovery::{self, AnnouncedProtocol};
use farbus_io_net::link::host_address::{DEFAULT_PORT, LOCAL};
use farbus_io_net::link::{Link, LinkError, SegmentSize, dial_local, resolve};
use farbus_io_net::local::runtime_folder;
use serde::{Deserialize, Serialize};

use crate::common::socket_place::SocketLocation;
use crate::hosts::known_host::KnownHost;

/// How long an exporter may take to answer before it counts as unreachable.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How long to look for a host that announces itself.
const FIND_TIME_MAX: Duration = Duration::from_secs(3);

/// How long to try an address at which the host proved its key, but that is not the remembered one.
const ELSEWHERE_TIME_MAX: Duration = Duration::from_secs(3);

/// A host that is looked for nearby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NearbyHostQuery {
    /// The host of this name, which serves plain USB/IP.
    Plain(String),
    /// The paired host with this fingerprint.
    Key(String),
    /// The host of this name, which waits for a pairing.
    Pairing(String),
}

/// What a process that asks for a host knows about its address, and the path there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressHints {
    /// The address at which the host proved its key to the asking process. It is tried first.
    pub proved: Option<SocketAddr>,
    /// Addresses at which another host, or none, answered just now. They are not tried.
    pub not: Vec<SocketAddr>,
    /// Whether the host is there but was too busy to answer. Then it is not looked for nearby, which takes seconds.
    pub is_there: bool,
    /// How large segments may be that pass there.
    pub segments: SegmentSize,
}

/// The address or socket that a connection was made to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedAddress {
    /// The address or socket.
    pub place: SocketLocation,
    /// Whether a different address is remembered for a paired host.
    pub is_new: bool,
}

/// Connects to `host` (`HOST:PORT`, or `unix:PATH` on this machine), which is not a paired host. `nearby` finds the
/// address of a host that no name service knows.
///
/// # Errors
/// [`LinkError`].
pub fn dial(
    host: &str,
    time_max: Duration,
    segments: SegmentSize,
    nearby: fn(&NearbyHostQuery) -> Option<SocketAddr>,
) -> Result<(OwnedFd, ReachedAddress), LinkError> {
    if let Ok(SocketLocation::Socket(path)) = host.parse() {
        let location = SocketLocation::Socket(path.clone());
        return dial_socket(&path, time_max)
            .map(|connection| (connection, ReachedAddress { place: location, is_new: false }));
    }
    let instead = |error| {
        let at = announced_at(host, nearby);
        at.and_then(|at| Link::dial(&at.to_string(), time_max, segments).ok()).ok_or(error)
    };
    let (connection, at) = Link::dial(host, time_max, segments).or_else(instead)?;
    Ok((connection, ReachedAddress { place: SocketLocation::Address(at), is_new: false }))
}

/// Connects to a socket of this machine. In a runtime folder, the listening process has to belong to the owner or root.
/// Elsewhere, the person who named the path is responsible for it.
fn dial_socket(path: &Path, time_max: Duration) -> Result<OwnedFd, LinkError> {
    let failed = |source| LinkError { address: format!("{LOCAL}{}", path.display()), source };
    match runtime_folder::holding(path).map_err(|error| failed(error.into()))? {
        Some((folder, name)) => {
            let connection = dial_local(&folder.at(&name), time_max).map_err(|error| failed(error.source))?;
            folder.check_peer(&connection).map_err(failed)?;
            Ok(connection)
        }
        None => dial_local(path, time_max),
    }
}

/// Connects to a paired host where it is most likely: where it proved its key to the asking process, where it was seen
/// last, or where it announces itself now. The handshake checks its key later, so a false address leads nowhere.
///
/// # Errors
/// [`LinkError`]: the error at the address where it was seen last.
pub fn dial_known(
    known: &KnownHost,
    time_max: Duration,
    hints: &AddressHints,
    nearby: fn(&NearbyHostQuery) -> Option<SocketAddr>,
) -> Result<(OwnedFd, ReachedAddress), LinkError> {
    let remembered = remembered(known);
    let elsewhere = hints.proved.filter(|at| !remembered.as_ref().is_ok_and(|all| all.contains(at)));
    let try_at = |at: SocketAddr, time_max: Duration| {
        let (connection, at) = Link::dial(&at.to_string(), time_max, hints.segments)?;
        Ok((connection, found(known, &remembered, at)))
    };
    let mut failure = None;
    if let Some(at) = elsewhere.filter(|at| !hints.not.contains(at))
        && let Ok(connected) = try_at(at, time_max.min(ELSEWHERE_TIME_MAX))
    {
        return Ok(connected);
    }
    match &remembered {
        Ok(all) => {
            // The address at which the host proved its key comes first.
            let mut all: Vec<SocketAddr> = all.iter().copied().filter(|at| !hints.not.contains(at)).collect();
            all.sort_by_key(|at| Some(*at) != hints.proved);
            for at in all {
                match try_at(at, time_max) {
                    Ok(connected) => return Ok(connected),
                    Err(error) => failure = Some(error),
                }
            }
        }
        Err(error) => failure = Some(failed(known, io::Error::new(error.kind(), error.to_string()))),
    }
    let announced = announced(known, hints, nearby).and_then(|at| try_at(at, time_max).ok());
    announced.ok_or_else(|| failure.unwrap_or_else(|| failed(known, no_address())))
}

/// Opens a UDP socket for a paired host. Returns the host's likely address, and whether a different one is remembered.
/// The socket is bound to no address of this machine, so a change of its addresses does not matter. The handshake finds
/// out later whether the host is there.
///
/// # Errors
/// [`LinkError`].
pub fn datagrams(
    known: &KnownHost,
    hints: &AddressHints,
    nearby: fn(&NearbyHostQuery) -> Option<SocketAddr>,
) -> Result<(UdpSocket, SocketAddr, bool), LinkError> {
    let remembered = remembered(known);
    let candidates = hints.proved.into_iter().chain(remembered.iter().flatten().copied());
    let at = candidates.into_iter().find(|at| !hints.not.contains(at));
    let at = at.or_else(|| announced(known, hints, nearby)).ok_or_else(|| failed(known, no_address()))?;
    let any: IpAddr = if at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).map_err(|error| failed(known, error))?;
    let is_new = found(known, &remembered, at).is_new;
    Ok((socket, at, is_new))
}

/// The address at which the host announces itself now.
fn announced(
    known: &KnownHost,
    hints: &AddressHints,
    nearby: fn(&NearbyHostQuery) -> Option<SocketAddr>,
) -> Option<SocketAddr> {
    let may_ask = !hints.is_there;
    may_ask
        .then(|| nearby(&NearbyHostQuery::Key(known.fingerprint().to_string())))
        .flatten()
        .filter(|at| !hints.not.contains(at))
}

/// The addresses at which the host was seen last.
fn remembered(known: &KnownHost) -> io::Result<Vec<SocketAddr>> {
    resolve(known.address())
}

fn found(known: &KnownHost, remembered: &io::Result<Vec<SocketAddr>>, at: SocketAddr) -> ReachedAddress {
    let is_there = remembered.as_ref().is_ok_and(|all| all.contains(&at));
    ReachedAddress { place: SocketLocation::Address(at), is_new: !is_there || known.is_looked_for_elsewhere() }
}

fn failed(known: &KnownHost, source: io::Error) -> LinkError {
    LinkError { address: known.address().to_owned(), source }
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

/// The address of a host that no name service knows. Its own port is used, unless another was asked for.
fn announced_at(address: &str, nearby: fn(&NearbyHostQuery) -> Option<SocketAddr>) -> Option<SocketAddr> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    if host.starts_with('[') || host.parse::<IpAddr>().is_ok() || resolve(address).is_ok() {
        return None;
    }
    let mut at = nearby(&NearbyHostQuery::Plain(host.to_owned()))?;
    if port != DEFAULT_PORT {
        at.set_port(port);
    }
    Some(at)
}

/// Whether no address belongs to the name that was dialled.
pub fn is_unknown_name(error: &LinkError) -> bool {
    // A broker passes an error on as words.
    error.source.kind() == io::ErrorKind::NotFound || error.source.to_string().contains("failed to lookup address")
}

/// Finds a host that announces itself, by this process.
pub fn ask_around(sought: &NearbyHostQuery) -> Option<SocketAddr> {
    let found = match sought {
        NearbyHostQuery::Plain(name) => discovery::find(AnnouncedProtocol::Plain, name, FIND_TIME_MAX, discovery::PORT),
        NearbyHostQuery::Pairing(name) => {
            discovery::find(AnnouncedProtocol::Pairing, name, FIND_TIME_MAX, discovery::PORT)
        }
        NearbyHostQuery::Key(fingerprint) => discovery::find_key(fingerprint, FIND_TIME_MAX, discovery::PORT),
    };
    found.ok()??.addresses.first().copied()
}
