//! Where NBD clients come in.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use farbus_io::link::{Link, Listener, LocalListener};

/// The port that is NBD's own (IANA).
pub const NBD_PORT: u16 = 10809;

/// A listening socket.
#[derive(Debug)]
pub enum Entrance {
    /// For its owner, on this machine.
    Local(LocalListener),
    /// For whoever reaches it.
    Tcp(Listener),
}

impl Entrance {
    /// Listens at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// What the system says.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = Listener::bind(address)?;
        listener.never_wait()?;
        Ok(Entrance::Tcp(listener))
    }

    /// What a client is given to find an export (the NBD project's `doc/uri.md`). An empty name is the default export's.
    ///
    /// # Errors
    /// What the system says of the socket.
    pub fn uri(&self, export: &str) -> io::Result<String> {
        let export = escaped(export);
        Ok(match self {
            Entrance::Local(listener) => {
                format!("nbd+unix:///{export}?socket={}", escaped(&listener.path().display().to_string()))
            }
            Entrance::Tcp(listener) => format!("nbd://{}/{export}", listener.address()?),
        })
    }

    /// The next client; `None` if none waits.
    pub(super) fn try_accept(&self) -> io::Result<Option<Link>> {
        match self {
            Entrance::Local(listener) => listener.try_accept(),
            Entrance::Tcp(listener) => match listener.accept() {
                Ok(connection) => Ok(Some(connection.link)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            },
        }
    }
}

impl AsFd for Entrance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Entrance::Local(listener) => listener.as_fd(),
            Entrance::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Text in a URI (RFC 3986), also safe between quotes of a shell and commas of QEMU.
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
    fn a_uri_says_where_whatever_the_path() {
        assert_eq!(escaped("/run/farbus/nbd-disk.sock"), "/run/farbus/nbd-disk.sock");
        assert_eq!(escaped("a b,c&d'e\u{fc}"), "a%20b%2Cc%26d%27e%C3%BC");
        let entrance = Entrance::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let uri = entrance.uri("boot").unwrap();
        assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/boot"), "{uri}");
        assert!(entrance.try_accept().unwrap().is_none());
    }
}
