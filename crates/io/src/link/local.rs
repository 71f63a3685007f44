//! Where programs of this machine arrive: a Unix socket with a path, for its owner alone.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use super::stream::Link;

/// Who may connect: its owner.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening Unix socket; its path is removed when it is dropped, where that is still allowed.
#[derive(Debug)]
pub struct LocalListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Whether another process removes the path.
    is_passed_on: bool,
}

/// Why nothing could be listened at.
#[derive(Debug)]
pub struct LocalError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen at {}: ", self.path.display())?;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => f.write_str("another program listens there; choose another path"),
            io::ErrorKind::AlreadyExists => f.write_str("there is a file that is no socket; choose another path"),
            io::ErrorKind::NotFound => f.write_str("its folder does not exist; make it first"),
            io::ErrorKind::InvalidInput => f.write_str("the path is too long for a socket (107 bytes)"),
            _ => write!(f, "{}", self.source),
        }
    }
}

impl std::error::Error for LocalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<LocalError> for io::Error {
    fn from(error: LocalError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

impl LocalListener {
    /// Listens at `path`, where its owner alone may connect. A socket there that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// [`LocalError`], which says what to do.
    pub fn bind(path: &Path) -> Result<Self, LocalError> {
        let failed = |source| LocalError { path: path.to_owned(), source };
        let socket = bind_socket(path).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned(), is_passed_on: false })
    }

    /// A socket that another process has bound to `path`.
    pub fn passed(socket: OwnedFd, path: &Path) -> Self {
        Self { socket, path: path.to_owned(), is_passed_on: false }
    }

    /// The descriptor, to be passed to another process, which removes the path.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn into_descriptor(mut self) -> io::Result<OwnedFd> {
        self.is_passed_on = true;
        self.socket.try_clone()
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next program that has connected; `None` if none waits.
    ///
    /// # Errors
    /// What the system says: running out of descriptors among it.
    pub fn try_accept(&self) -> io::Result<Option<Link>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(fd) => Ok(Some(Link::over_local(fd, &self.path.display().to_string()))),
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn bind_socket(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) if is_left_behind(&address) => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it has a name: at no moment may others connect (unix(7); Linux makes the file with this mode).
    rustix::fs::fchmod(&socket, MODE)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether nobody listens there any more. Only a refusal says so (unix(7)): who has no time for us, or no right, may well hear others.
fn is_left_behind(address: &SocketAddrUnix) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    probe.is_ok_and(|probe| connect(&probe, address) == Err(Errno::CONNREFUSED))
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if !self.is_passed_on {
            // A confined process may not; its other half does.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_is_its_owner_s_and_goes_with_its_listener() {
        let path = std::env::temp_dir().join(format!("farbus-local-{}.sock", std::process::id()));
        let listener = LocalListener::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listener.try_accept().unwrap().is_none());
        let stream = UnixStream::connect(&path).unwrap();
        assert!(listener.try_accept().unwrap().is_some());
        let refused = LocalListener::bind(&path).unwrap_err();
        assert!(refused.to_string().contains("another program listens there"), "{refused}");
        drop((listener, stream));
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_program_left_is_replaced_and_a_file_is_not() {
        let path = std::env::temp_dir().join(format!("farbus-stale-{}.sock", std::process::id()));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves it");
        let passed = LocalListener::bind(&path).unwrap().into_descriptor().unwrap();
        assert!(path.exists(), "who passes a socket on leaves its path");
        drop(LocalListener::passed(passed, &path));
        let busy = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&busy, 0).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        assert_eq!(io::Error::from(LocalListener::bind(&path).unwrap_err()).kind(), io::ErrorKind::AddrInUse);
        drop((busy, waiting));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let refused = LocalListener::bind(&path).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        let long = std::env::temp_dir().join("x".repeat(200));
        assert!(LocalListener::bind(&long).unwrap_err().to_string().contains("too long"));
    }
}
