//! Where programs find a device that they are to use, without any kernel in between: a Unix socket, or an address.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

use farbus_io::link::{Connection, Link, Listener, LocalConnection, LocalListener, MODE_BITS, OWNER_ALONE};
use serde::{Deserialize, Serialize};

use crate::common::host_address::LOCAL;
use crate::common::runtime_folder::{self, path as folder};

/// What such programs speak. In none of these has anybody to prove who he is, and nothing is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// What it is called.
    pub name: &'static str,
    /// Its word in `--via` and in names of sockets.
    pub word: &'static str,
    /// Its port unless somebody says otherwise.
    pub port: u16,
}

impl Protocol {
    /// Where `device` is found unless somebody says otherwise: among the sockets of what runs, and told from them by
    /// its name.
    pub fn default_place(self, device: &str) -> Place {
        Place::Socket(folder().join(format!("{}-{}.sock", self.word, plain_name(device))))
    }

    /// What stands against `place`, if others than this machine's programs reach it.
    pub fn exposure(self, place: &Place) -> Option<String> {
        let Place::Address(address) = place else { return None };
        (!place.is_local()).then(|| {
            format!(
                "{address} is not this machine alone. {} has no password and no encryption here:\n  \
                 whoever reaches this address can use what is there, read all of it and change it.",
                self.name
            )
        })
    }
}

/// A device's name as a file, an option of QEMU's or an id of its may have it.
pub fn plain_name(device: &str) -> String {
    device.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect()
}

/// Where programs come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// At a Unix socket, which is its owner's alone.
    Socket(PathBuf),
    /// At a TCP address.
    Address(SocketAddr),
}

impl Place {
    /// The path of the socket, if it is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Place::Socket(path) => Some(path),
            Place::Address(_) => None,
        }
    }

    /// Listens there, with this process's own rights; [`crate::broker::SystemAccess::listen_at`] also without.
    ///
    /// # Errors
    /// What stands against it, with what to do.
    pub fn listen(&self) -> io::Result<SocketListener> {
        self.listen_for(SocketMode::default())
    }

    /// The same; at a socket those may connect whom a file of this mode would let write.
    ///
    /// # Errors
    /// As [`Place::listen`].
    pub fn listen_for(&self, mode: SocketMode) -> io::Result<SocketListener> {
        match self {
            Place::Socket(path) => Ok(SocketListener::Local(match runtime_folder::holding(path)? {
                Some((folder, name)) => LocalListener::bind_through(path, &folder.at(&name), mode.0)?,
                None => LocalListener::bind_for(path, mode.0)?,
            })),
            Place::Address(address) => SocketListener::tcp(*address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))),
        }
    }

    /// As a host is written that others use devices of: `unix:PATH`, or an address.
    pub fn as_host(&self) -> String {
        match self {
            Place::Socket(path) => format!("{LOCAL}{}", path.display()),
            Place::Address(address) => address.to_string(),
        }
    }

    /// Whether this machine alone reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Place::Socket(_) => true,
            Place::Address(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// A link over a connection to it, whoever made that.
    ///
    /// # Errors
    /// If the socket refuses an option.
    pub fn link_over(&self, connection: OwnedFd) -> io::Result<Link> {
        match self {
            Place::Socket(_) => Ok(Link::over_local(connection, &self.as_host())),
            Place::Address(address) => Link::over_tcp(connection, *address),
        }
    }

    /// The options of QEMU's `-chardev socket` that lead there. A comma in a path is doubled, as QEMU reads it.
    pub fn chardev_options(&self) -> String {
        match self {
            Place::Socket(path) => format!("path={}", path.display().to_string().replace(',', ",,")),
            Place::Address(address) => format!("host={},port={}", address.ip(), address.port()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => path.display().fmt(f),
            Place::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(LOCAL) {
            Some("") => Err(format!("'{text}' names no socket: {LOCAL}/PATH does")),
            // Absolute: whoever is told the path may be elsewhere.
            Some(path) => std::path::absolute(path).map(Place::Socket).map_err(|error| error.to_string()),
            None => text.parse().map(Place::Address).map_err(|_| format!("'{text}' is no address")),
        }
    }
}

/// Who may connect to a socket, as a file's mode says it: its owner unless somebody says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(OWNER_ALONE)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| mode & !MODE_BITS == 0 && mode & OWNER_ALONE == OWNER_ALONE);
        mode.map(Self).ok_or_else(|| {
            format!(
                "'{text}' is no mode of a socket: 600 is its owner, 660 its group too, 666 every user of this machine"
            )
        })
    }
}

/// Whence somebody came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From an address.
    Address(SocketAddr),
    /// From an address of this machine's, as a program of the user with this number.
    Own(SocketAddr, u32),
    /// From this machine, as a program of the user with this number.
    User(u32),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Address(address) => address.fmt(f),
            Origin::Own(address, user) => write!(f, "{address} (user {user})"),
            Origin::User(user) => write!(f, "user {user}"),
        }
    }
}

/// A place that is listened at. It never waits: whoever waits puts it among its interests.
#[derive(Debug)]
pub enum SocketListener {
    /// For its owner, on this machine; its path is removed with it, where that is still allowed.
    Local(LocalListener),
    /// For whoever reaches it.
    Tcp(Listener),
}

impl SocketListener {
    fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = Listener::bind(address)?;
        listener.never_wait()?;
        Ok(SocketListener::Tcp(listener))
    }

    /// One that another process made at `place`.
    pub(crate) fn passed(socket: OwnedFd, place: &Place) -> Self {
        match place {
            Place::Socket(path) => SocketListener::Local(LocalListener::passed(socket, path)),
            Place::Address(_) => SocketListener::Tcp(Listener::over(socket)),
        }
    }

    /// Its descriptor, to be passed to another process; a path is left for whoever removes it then.
    pub(crate) fn into_descriptor(self) -> io::Result<OwnedFd> {
        match self {
            SocketListener::Local(listener) => listener.into_descriptor(),
            SocketListener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// Where it really is: port 0 has become a free one.
    ///
    /// # Errors
    /// What the system says of the socket.
    pub fn place(&self) -> io::Result<Place> {
        Ok(match self {
            SocketListener::Local(listener) => Place::Socket(listener.path().to_owned()),
            SocketListener::Tcp(listener) => Place::Address(listener.address()?),
        })
    }

    /// Whoever waits for somebody waits elsewhere from now on. A place that we listen at ourselves is so already.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn never_wait(&self) -> io::Result<()> {
        match self {
            SocketListener::Local(_) => Ok(()),
            SocketListener::Tcp(listener) => listener.never_wait(),
        }
    }

    /// Lets nobody in any more; whoever waits for somebody wakes up. A socket that was passed is left as it is.
    pub(crate) fn shut_down(&self) {
        match self {
            SocketListener::Local(listener) => listener.shut_down(),
            SocketListener::Tcp(listener) => listener.shut_down(),
        }
    }

    /// Whoever has come; `None` if nobody has.
    pub(crate) fn try_accept(&self) -> io::Result<Option<Link>> {
        Ok(self.accept()?.map(|(link, _)| link))
    }

    /// Whoever has come, and whence; `None` if nobody has.
    pub(crate) fn accept(&self) -> io::Result<Option<(Link, Origin)>> {
        match self {
            SocketListener::Local(listener) => {
                let arrived = listener.try_accept()?;
                Ok(arrived.map(|LocalConnection { link, user }| (link, Origin::User(user))))
            }
            SocketListener::Tcp(listener) => match listener.accept() {
                Ok(Connection { link, from }) => Ok(Some((link, Origin::Address(from)))),
                // Nobody is there, or is no more.
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

    const NBD: Protocol = Protocol { name: "NBD", word: "nbd", port: 10809 };

    #[test]
    fn qemu_is_told_where() {
        let options = |place: Place| place.chardev_options();
        assert_eq!(options(Place::Socket("/run/a,b.sock".into())), "path=/run/a,,b.sock");
        assert_eq!(options(Place::Address("[::1]:4000".parse().unwrap())), "host=::1,port=4000");
    }

    #[test]
    fn each_protocol_has_sockets_of_its_own_in_one_folder() {
        let path = |word| Protocol { word, ..NBD }.default_place("hub/1,1").path().unwrap().clone();
        assert_eq!(path("nbd"), folder().join("nbd-hub_1_1.sock"));
        assert_eq!(path("redir"), folder().join("redir-hub_1_1.sock"));
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in ["unix:/run/farbus/share.sock", "[::1]:3240", "10.0.0.7:99"] {
            assert_eq!(text.parse::<Place>().map(|place| place.as_host()), Ok(text.to_owned()));
        }
        let relative: Place = "unix:share.sock".parse().unwrap();
        assert!(relative.path().unwrap().is_absolute(), "{relative}");
        assert!("unix:".parse::<Place>().is_err() && "lab3".parse::<Place>().is_err());
        assert_eq!("0660".parse(), Ok(SocketMode(0o660)));
        for wrong in ["", "777", "060", "8", "rw", "1660"] {
            assert!(wrong.parse::<SocketMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_this_machine_is_no_exposure() {
        let exposure = |address: &str| NBD.exposure(&Place::Address(address.parse().unwrap()));
        for own in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(exposure(own), None);
        }
        for everybody in ["0.0.0.0:1", "[::]:1", "10.0.0.7:1"] {
            assert!(exposure(everybody).is_some_and(|text| text.contains("NBD has no password")));
        }
        assert_eq!(NBD.exposure(&Place::Socket("/s".into())), None);
    }

    #[test]
    fn an_address_serves_whoever_reaches_it_also_from_another_process() {
        let place = Place::Address("127.0.0.1:0".parse().unwrap());
        let listener = SocketListener::passed(place.listen().unwrap().into_descriptor().unwrap(), &place);
        assert!(listener.try_accept().unwrap().is_none(), "nobody has come, and nobody waits");
        let Place::Address(address) = listener.place().unwrap() else { panic!("it is an address") };
        let client = std::net::TcpStream::connect(address).unwrap();
        let link = listener.try_accept().unwrap().expect("somebody has come");
        assert_eq!(link.peer(), client.local_addr().unwrap().to_string());
    }
}
