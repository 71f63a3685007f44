//! The Unix socket or TCP address at which programs find a device that they use without a kernel driver.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

use farbus_io_net::link::host_address::LOCAL;
use farbus_io_net::link::{AcceptedConnection, Link, LocalConnection, LocalListener, TcpLinkListener};
use farbus_io_net::local::runtime_folder::{self, path as folder};
use serde::{Deserialize, Serialize};

use crate::common::socket_access::SocketAccess;

/// A protocol of such programs. None of these authenticates or encrypts here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketProtocol {
    /// The name, for messages.
    pub name: &'static str,
    /// The word in `--via` and in the names of sockets.
    pub word: &'static str,
    /// The default TCP port.
    pub port: u16,
    /// Whether its programs connect by TCP unless a socket is named. Of this machine its owner's and root's are served
    /// then, and of others those of the hosts that are allowed.
    pub is_tcp: bool,
}

impl SocketProtocol {
    /// The default place of `device`: a socket in the runtime folder, named by protocol and device, or the default port
    /// at the loopback address.
    pub fn default_place(self, device: &str) -> SocketLocation {
        if self.is_tcp {
            return SocketLocation::Address((Ipv4Addr::LOCALHOST, self.port).into());
        }
        SocketLocation::Socket(folder().join(format!("{}-{}.sock", self.word, plain_name(device))))
    }

    /// A warning if hosts other than this machine can reach `place`.
    pub fn exposure(self, location: &SocketLocation) -> Option<String> {
        let SocketLocation::Address(address) = location else { return None };
        (!self.is_tcp && !location.is_local()).then(|| {
            format!(
                "{address} is not this machine alone. {} has no password and no encryption here:\n  \
                 every program that reaches this address can use what is there, read all of it and change it.",
                self.name
            )
        })
    }
}

/// The device's name with other characters replaced, for file names and QEMU's options and ids.
pub fn plain_name(device: &str) -> String {
    device.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}

/// Where programs connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketLocation {
    /// At a Unix socket, which is accessible to its owner only unless a [`SocketAccess`] says otherwise.
    Socket(PathBuf),
    /// At a TCP address.
    Address(SocketAddr),
}

impl SocketLocation {
    /// The path, if it is a socket.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            SocketLocation::Socket(path) => Some(path),
            SocketLocation::Address(_) => None,
        }
    }

    /// Listens there with this process's own rights. [`crate::broker::SystemAccess::listen_at`] also works without
    /// them.
    ///
    /// # Errors
    /// Why it cannot listen, with what to do.
    pub fn listen(&self) -> io::Result<SocketListener> {
        self.listen_for(&SocketAccess::default())
    }

    /// Listens there. If it is a socket, `access` says which users may connect.
    ///
    /// # Errors
    /// As [`SocketLocation::listen`]; and this machine has no such group, or the owner may not give the socket to it.
    pub fn listen_for(&self, access: &SocketAccess) -> io::Result<SocketListener> {
        match self {
            SocketLocation::Socket(path) => {
                let (mode, group) = (access.mode(), access.group_number()?);
                Ok(SocketListener::Local(match runtime_folder::holding(path)? {
                    Some((folder, name)) => LocalListener::bind_through(path, &folder.at(&name), mode, group)?,
                    None => LocalListener::bind_through(path, path, mode, group)?,
                }))
            }
            SocketLocation::Address(address) => SocketListener::tcp(*address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))),
        }
    }

    /// The place as the address of a host: `unix:PATH`, or `ADDR:PORT`.
    pub fn as_host(&self) -> String {
        match self {
            SocketLocation::Socket(path) => format!("{LOCAL}{}", path.display()),
            SocketLocation::Address(address) => address.to_string(),
        }
    }

    /// Whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            SocketLocation::Socket(_) => true,
            SocketLocation::Address(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// Makes a link over an open connection to this place.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn link_over(&self, connection: OwnedFd) -> io::Result<Link> {
        match self {
            SocketLocation::Socket(_) => Ok(Link::over_local(connection, &self.as_host())),
            SocketLocation::Address(address) => Link::over_tcp(connection, *address),
        }
    }

    /// The options of QEMU's `-chardev socket` for this place. A comma in the path is doubled, as QEMU requires.
    pub fn chardev_options(&self) -> String {
        match self {
            SocketLocation::Socket(path) => format!("path={}", path.display().to_string().replace(',', ",,")),
            SocketLocation::Address(address) => format!("host={},port={}", address.ip(), address.port()),
        }
    }
}

impl fmt::Display for SocketLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketLocation::Socket(path) => path.display().fmt(f),
            SocketLocation::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for SocketLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(LOCAL) {
            Some("") => Err(format!("'{text}' names no socket: {LOCAL}/PATH does")),
            // The path is made absolute, because its readers may have another working directory.
            Some(path) => std::path::absolute(path).map(SocketLocation::Socket).map_err(|error| error.to_string()),
            None => text.parse().map(SocketLocation::Address).map_err(|_| format!("'{text}' is no address")),
        }
    }
}

/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOrigin {
    /// From this address.
    Address(SocketAddr),
    /// From this address of this machine, made by a program of the user with this number (uid).
    Own(SocketAddr, u32),
    /// From a Unix socket, by a program of the user with this number (uid).
    User(u32),
}

impl fmt::Display for ConnectionOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionOrigin::Address(address) => address.fmt(f),
            ConnectionOrigin::Own(address, user) => write!(f, "{address} (user {user})"),
            ConnectionOrigin::User(user) => write!(f, "user {user}"),
        }
    }
}

/// A listening socket. It never blocks: its descriptor is watched by a poll.
#[derive(Debug)]
pub enum SocketListener {
    /// A Unix socket. Its path is removed with it, if the process still may.
    Local(LocalListener),
    /// A TCP socket.
    Tcp(TcpLinkListener),
}

impl SocketListener {
    fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpLinkListener::bind(address)?;
        listener.never_wait()?;
        Ok(SocketListener::Tcp(listener))
    }

    /// A socket that another process opened at `place`.
    pub(crate) fn passed(socket: OwnedFd, location: &SocketLocation) -> Self {
        match location {
            SocketLocation::Socket(path) => SocketListener::Local(LocalListener::passed(socket, path)),
            SocketLocation::Address(_) => SocketListener::Tcp(TcpLinkListener::over(socket)),
        }
    }

    /// The descriptor, for another process. A path is left for that process to remove.
    pub(crate) fn into_descriptor(self) -> io::Result<OwnedFd> {
        match self {
            SocketListener::Local(listener) => listener.into_descriptor(),
            SocketListener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// The actual place, in which port 0 is replaced by the chosen port.
    ///
    /// # Errors
    /// The error of the system.
    pub fn location(&self) -> io::Result<SocketLocation> {
        Ok(match self {
            SocketListener::Local(listener) => SocketLocation::Socket(listener.path().to_owned()),
            SocketListener::Tcp(listener) => SocketLocation::Address(listener.address()?),
        })
    }

    /// Makes the socket non-blocking. Sockets that this process opened are so already.
    ///
    /// # Errors
    /// The error of the system.
    pub fn never_wait(&self) -> io::Result<()> {
        match self {
            SocketListener::Local(_) => Ok(()),
            SocketListener::Tcp(listener) => listener.never_wait(),
        }
    }

    /// Stops accepting, and wakes the thread that waits. A socket that was passed by another process is left as it is.
    pub(crate) fn shut_down(&self) {
        match self {
            SocketListener::Local(listener) => listener.shut_down(),
            SocketListener::Tcp(listener) => listener.shut_down(),
        }
    }

    /// Accepts a connection; `None` if there is none.
    pub(crate) fn try_accept(&self) -> io::Result<Option<Link>> {
        Ok(self.accept()?.map(|(link, _)| link))
    }

    /// Accepts a connection and returns its origin; `None` if there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<(Link, ConnectionOrigin)>> {
        match self {
            SocketListener::Local(listener) => {
                let arrived = listener.try_accept()?;
                Ok(arrived.map(|LocalConnection { link, user }| (link, ConnectionOrigin::User(user))))
            }
            SocketListener::Tcp(listener) => match listener.accept() {
                Ok(AcceptedConnection { link, from }) => Ok(Some((link, ConnectionOrigin::Address(from)))),
                // There is no connection, or it was closed already.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            SocketListener::Local(listener) => listener.as_fd(),
            SocketListener::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NBD: SocketProtocol = SocketProtocol { name: "NBD", word: "nbd", port: 10809, is_tcp: false };

    #[test]
    fn chardev_options_name_the_place_as_qemu_reads_it() {
        let options = |location: SocketLocation| location.chardev_options();
        assert_eq!(options(SocketLocation::Socket("/run/a,b.sock".into())), "path=/run/a,,b.sock");
        assert_eq!(options(SocketLocation::Address("[::1]:4000".parse().unwrap())), "host=::1,port=4000");
    }

    #[test]
    fn default_sockets_are_named_by_protocol_and_device() {
        let path = |word| SocketProtocol { word, ..NBD }.default_place("hub/1,1").path().unwrap().clone();
        assert_eq!(path("nbd"), folder().join("nbd-hub_1_1.sock"));
        assert_eq!(path("redir"), folder().join("redir-hub_1_1.sock"));
    }

    #[test]
    fn place_parses_from_its_own_text() {
        for text in ["unix:/run/farbus/share.sock", "[::1]:3240", "10.0.0.7:99"] {
            assert_eq!(text.parse::<SocketLocation>().map(|location| location.as_host()), Ok(text.to_owned()));
        }
        let relative: SocketLocation = "unix:share.sock".parse().unwrap();
        assert!(relative.path().unwrap().is_absolute(), "{relative}");
        assert!("unix:".parse::<SocketLocation>().is_err() && "lab3".parse::<SocketLocation>().is_err());
    }

    #[test]
    fn address_beyond_this_machine_is_an_exposure() {
        let exposure = |address: &str| NBD.exposure(&SocketLocation::Address(address.parse().unwrap()));
        for own in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(exposure(own), None);
        }
        for everybody in ["0.0.0.0:1", "[::]:1", "10.0.0.7:1"] {
            assert!(exposure(everybody).is_some_and(|text| text.contains("NBD has no password")));
        }
        assert_eq!(NBD.exposure(&SocketLocation::Socket("/s".into())), None);
    }

    #[test]
    fn passed_tcp_listener_accepts_connections() {
        let location = SocketLocation::Address("127.0.0.1:0".parse().unwrap());
        let listener = SocketListener::passed(location.listen().unwrap().into_descriptor().unwrap(), &location);
        assert!(listener.try_accept().unwrap().is_none(), "nobody has come, and nobody waits");
        let SocketLocation::Address(address) = listener.location().unwrap() else { panic!("it is an address") };
        let client = std::net::TcpStream::connect(address).unwrap();
        let link = listener.try_accept().unwrap().expect("somebody has come");
        assert_eq!(link.peer(), client.local_addr().unwrap().to_string());
    }
}
