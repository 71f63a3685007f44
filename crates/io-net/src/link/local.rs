//! A Unix socket with a path, at which programs of this machine connect. By default only its owner may connect.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, shutdown,
    socket_with, sockopt,
};

use super::stream::{Link, LinkError};
use crate::sys::peer::PeerCredentials;

/// The default mode: only the owner may connect.
pub const OWNER_ALONE: u32 = 0o600;
/// The bits of a mode that say who may connect (unix(7)): the right to write is the right to connect.
pub const MODE_BITS: u32 = 0o666;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening Unix socket. Dropping it removes its path, if the process still may.
#[derive(Debug)]
pub struct LocalListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Whether another process removes the path.
    is_passed_on: bool,
}

/// Why it cannot listen.
#[derive(Debug)]
pub struct LocalError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen at {}: ", self.path.display())?;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                f.write_str("another program listens there: 'farbus status' shows yours; or choose another path")
            }
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

/// An accepted connection, and its user according to the kernel.
#[derive(Debug)]
pub struct LocalConnection {
    /// The link to it.
    pub link: Link,
    /// The id of its user when it connected (`SO_PEERCRED`, unix(7)).
    pub user: u32,
}

/// How many programs have connected at all sockets of this process: a process may connect twice, and each link has its
/// own name.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);

impl LocalListener {
    /// Listens at `path`, where only its owner may connect. Replaces a socket there at which no process listens any
    /// more.
    ///
    /// # Errors
    /// [`LocalError`], which says what to do.
    pub fn bind(path: &Path) -> Result<Self, LocalError> {
        Self::bind_for(path, OWNER_ALONE)
    }

    /// Listens at `path` for the users to whom the permission bits `mode` allow writing, as for a file.
    ///
    /// # Errors
    /// [`LocalError`], which says what to do.
    pub fn bind_for(path: &Path, mode: u32) -> Result<Self, LocalError> {
        Self::bind_through(path, path, mode, None)
    }

    /// Listens at `path` by a socket that is created through `name`, another path of the same file: for example one
    /// that goes through an open descriptor of its folder. The socket's group becomes `group` (gid), if there is one.
    /// No other user may connect before mode and group are set.
    ///
    /// # Errors
    /// [`LocalError`], which says what to do.
    pub fn bind_through(path: &Path, name: &Path, mode: u32, group: Option<u32>) -> Result<Self, LocalError> {
        let failed = |source| LocalError { path: path.to_owned(), source };
        // Programs connect by the path, which has to be short enough as well.
        SocketAddrUnix::new(path).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let socket = bind_socket(name, Mode::from_raw_mode(mode & MODE_BITS), group).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned(), is_passed_on: false })
    }

    /// Stops listening; a thread that waits for a connection wakes up.
    pub fn shut_down(&self) {
        // The socket is down already, as was asked for.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Wraps a socket that another process has bound to `path`.
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

    /// The path at which programs connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection; `None` if none waits.
    ///
    /// # Errors
    /// The system's error, for example that there are no more descriptors.
    pub fn try_accept(&self) -> io::Result<Option<LocalConnection>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(fd) => {
                let who = PeerCredentials::of(&fd)?;
                let (user, arrival) = (who.user(), ARRIVALS.fetch_add(1, Ordering::Relaxed) + 1);
                let process = who.process().map(|process| format!("process {process}, ")).unwrap_or_default();
                let peer = format!("user {user} ({process}connection {arrival})");
                Ok(Some(LocalConnection { link: Link::over_local(fd, &peer), user }))
            }
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Connects to the socket at `path`.
///
/// # Errors
/// [`LinkError`]: no process listens there, or this user may not connect.
pub fn dial(path: &Path, time_max: Duration) -> Result<OwnedFd, LinkError> {
    let connected = || -> io::Result<OwnedFd> {
        let address = SocketAddrUnix::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The listener's queue may be full for a moment: that is what is waited for.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(time_max))?;
        connect(&socket, &address)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
        Ok(socket)
    };
    connected().map_err(|source| LinkError { address: format!("unix:{}", path.display()), source })
}

fn bind_socket(path: &Path, mode: Mode, group: Option<u32>) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) if is_left_behind(&address) => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before the socket has a name, so that at no moment other users may connect (unix(7); Linux creates the file with
    // this mode, less the umask).
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNER_ALONE))?;
    bind(&socket, &address)?;
    if (mode, group) != (Mode::from_raw_mode(OWNER_ALONE), None) {
        // A socket that is not as asked is not left behind.
        admit(path, mode, group).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    }
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Sets the group and then the mode that were asked for, whatever the umask. Leaves alone what may have replaced the
/// socket meanwhile.
fn admit(path: &Path, mode: Mode, group: Option<u32>) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::Socket {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    if let Some(group) = group {
        let given = rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH);
        given.map_err(|errno| {
            let hint = match errno {
                Errno::PERM => "; its owner has to be a member of that group",
                _ => "",
            };
            let error = io::Error::from(errno);
            io::Error::new(error.kind(), format!("cannot give it to group {group}: {error}{hint}"))
        })?;
    }
    Ok(rustix::fs::chmod(format!("/proc/thread-self/fd/{}", file.as_raw_fd()), mode)?)
}

/// Whether no process listens there any more. Only a refusal proves that (unix(7)): a process that is busy, or does not
/// let this user connect, may well listen.
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
            // A confined process may not; its broker does it.
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
    fn socket_belongs_to_its_owner_and_is_removed_with_its_listener() {
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
    fn client_user_is_known_and_the_mode_admits_other_users() {
        let path = std::env::temp_dir().join(format!("farbus-mode-{}.sock", std::process::id()));
        let listener = LocalListener::bind_for(&path, 0o7660).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o660);
        let _streams = [dial(&path, Duration::from_secs(5)).unwrap(), dial(&path, Duration::from_secs(5)).unwrap()];
        let arrive = || listener.try_accept().unwrap().expect("somebody has come");
        let (one, two) = (arrive(), arrive());
        let user = rustix::process::getuid().as_raw();
        assert_eq!((one.user, two.user), (user, user));
        let begin = format!("user {user} (process {}, connection ", std::process::id());
        assert!(one.link.peer().starts_with(&begin) && one.link.peer() != two.link.peer(), "{}", one.link.peer());
        listener.shut_down();
        let late = dial(&path, Duration::from_secs(5)).unwrap_err();
        assert_eq!(late.source.kind(), io::ErrorKind::ConnectionRefused, "nobody is let in any more");
        assert!(listener.try_accept().unwrap().is_none());
        drop(listener);
        let error = dial(&path, Duration::from_secs(5)).unwrap_err();
        assert_eq!((error.source.kind(), error.address.starts_with("unix:/")), (io::ErrorKind::NotFound, true));
    }

    #[test]
    fn stale_socket_is_replaced_and_a_file_is_not() {
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
