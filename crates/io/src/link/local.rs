//! A listening socket for programs of this machine, a virtual machine's emulator among them: in a folder, or at an address.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{SocketFlags, accept_with, sockopt};

use super::stream::Link;

/// A listening stream socket that never waits: whoever waits puts it among its interests.
#[derive(Debug)]
pub struct LocalListener {
    socket: OwnedFd,
}

impl LocalListener {
    /// A Unix socket at `path`, for its owner alone. One that a process left behind when it ended is replaced.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if somebody listens there.
    pub fn at(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into() })
    }

    /// A TCP socket at `address`.
    ///
    /// # Errors
    /// What the system says.
    pub fn on(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: socket.into() })
    }

    /// One that another process made, in one of these ways.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The descriptor, for another process.
    pub fn into_descriptor(self) -> OwnedFd {
        self.socket
    }

    /// Where it really listens, if that is an address.
    pub fn address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(&self.socket).ok()?.try_into().ok()
    }

    /// Whoever has come, as `peer` where it has no address; `None` if nobody has.
    ///
    /// # Errors
    /// What the system says: running out of descriptors among it.
    pub fn try_accept(&self, peer: &str) -> io::Result<Option<Link>> {
        let fd = match accept_with(&self.socket, SocketFlags::CLOEXEC).map_err(io::Error::from) {
            Ok(fd) => fd,
            // Nobody is there, or is no more.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if sockopt::socket_domain(&fd)? == rustix::net::AddressFamily::UNIX {
            return Ok(Some(Link::over_unix(fd, peer)));
        }
        let Some(from) = rustix::net::getpeername(&fd)? else { return Ok(None) };
        Ok(Some(Link::over_tcp(fd, from.try_into()?)?))
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Removes a socket at which nobody listens any more; anything else is left where it is.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
        let path = std::env::temp_dir().join(format!("farbus-local-{}", std::process::id()));
        let first = LocalListener::at(&path).unwrap();
        assert_eq!(LocalListener::at(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(first);
        let second = LocalListener::at(&path).unwrap();
        assert!(second.try_accept("test").unwrap().is_none(), "nobody has come");
        let mut client = UnixStream::connect(&path).unwrap();
        let link = second.try_accept("test").unwrap().expect("somebody has");
        client.write_all(b"ab").unwrap();
        assert_eq!((link.receive(&mut [0; 8]).unwrap(), link.peer()), (2, "test"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(LocalListener::at(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_address_serves_as_well() {
        let listener = LocalListener::on("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = std::net::TcpStream::connect(listener.address().unwrap()).unwrap();
        let link = listener.try_accept("test").unwrap().expect("somebody has come");
        assert_eq!(link.peer(), client.local_addr().unwrap().to_string());
    }
}
