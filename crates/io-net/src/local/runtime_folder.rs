//! The folder in which an owner's processes find each other's sockets.
//!
//! Messages at these sockets (text to type, open files) are for the owner only. So a folder is used only if no other
//! user could have put a socket there: it is a folder and no symbolic link, it belongs to the owner, and no other user
//! may write to it. It is opened once and checked, and sockets are created and connected through that descriptor. The
//! process that answers has to belong to the owner or root, as the kernel reports (`SO_PEERCRED`).

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags, fstat};
use tracing::warn;

use crate::sys::peer::PeerCredentials;
use crate::trust::HostFolder;

/// The mode bits of a folder that let other users create files there.
const OTHERS_WRITE: u32 = 0o022;
/// Root's folder, if `XDG_RUNTIME_DIR` names no other.
const OF_ROOT: &str = "/run/farbus";

/// A folder that was checked, and is open.
#[derive(Debug)]
pub struct RuntimeFolder {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// Why a folder is not used.
#[derive(Debug)]
pub enum RuntimeFolderError {
    /// It belongs to another user.
    Foreign {
        /// The path of the folder.
        path: PathBuf,
        /// The user who owns it.
        owner: u32,
    },
    /// Other users may create sockets there.
    Open {
        /// The path of the folder.
        path: PathBuf,
        /// The folder's mode, permission bits only.
        mode: u32,
    },
    /// It is a symbolic link, or no folder.
    NotFolder {
        /// The path that is no folder.
        path: PathBuf,
    },
    /// It cannot be opened or created.
    Unreachable {
        /// The path of the folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl fmt::Display for RuntimeFolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { path, owner } => {
                write!(f, "{} belongs to user {owner}, who could hear what is said there", path.display())
            }
            Self::Open { path, mode } => {
                let path = path.display();
                write!(f, "others may write to {path} (mode {:o})\n  chmod 700 {path}", mode & 0o7777)
            }
            Self::NotFolder { path } => write!(f, "{} is a symbolic link, or no folder", path.display()),
            Self::Unreachable { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for RuntimeFolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<RuntimeFolderError> for io::Error {
    fn from(error: RuntimeFolderError) -> Self {
        let kind = match &error {
            RuntimeFolderError::Unreachable { source, .. } => source.kind(),
            _ => io::ErrorKind::PermissionDenied,
        };
        Self::new(kind, error)
    }
}

impl RuntimeFolder {
    /// Opens the folder of this process's owner, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`RuntimeFolderError`].
    pub fn make() -> Result<Self, RuntimeFolderError> {
        let RuntimeFolderChoice { path, owner, .. } = chosen();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        match made {
            // What exists there, even a dangling symbolic link, is checked below.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|source| RuntimeFolderError::Unreachable { path: path.clone(), source })?,
        }
        let gone = || RuntimeFolderError::Unreachable { path: path.clone(), source: io::ErrorKind::NotFound.into() };
        Self::open(path, *owner)?.ok_or_else(gone)
    }

    /// Opens a folder that belongs to `owner`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`RuntimeFolderError`].
    pub fn open(path: &Path, owner: u32) -> Result<Option<Self>, RuntimeFolderError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let path = path.to_owned();
        let fd = match rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                // The kind of the file explains more than the error of opening it.
                return Err(match fs::symlink_metadata(&path) {
                    Ok(found) if !found.is_dir() => RuntimeFolderError::NotFolder { path },
                    Ok(found) if found.uid() != owner => RuntimeFolderError::Foreign { path, owner: found.uid() },
                    _ => RuntimeFolderError::Unreachable { path, source },
                });
            }
        };
        let found = match fstat(&fd) {
            Ok(found) => found,
            Err(errno) => return Err(RuntimeFolderError::Unreachable { path, source: errno.into() }),
        };
        match () {
            () if found.st_uid != owner => Err(RuntimeFolderError::Foreign { path, owner: found.st_uid }),
            () if found.st_mode & OTHERS_WRITE != 0 => Err(RuntimeFolderError::Open { path, mode: found.st_mode }),
            () => Ok(Some(Self { fd, path, owner })),
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path by which this process reaches a file in the open folder, whatever is at the folder's path by now. It is
    /// also short enough for the path of a socket (107 bytes).
    pub fn at(&self, name: &str) -> PathBuf {
        format!("/proc/thread-self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Listens at a socket of this name, for the owner only. An existing file is replaced.
    ///
    /// It has its name only once it listens: a command that asks in between would be refused, and take it for that of a
    /// process that has ended.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen(&self, name: &str) -> io::Result<UnixListener> {
        let unready = format!(".{name}");
        self.remove(&unready)?;
        let listener = UnixListener::bind(self.at(&unready))?;
        fs::set_permissions(self.at(&unready), fs::Permissions::from_mode(0o600))?;
        fs::rename(self.at(&unready), self.at(name))?;
        Ok(listener)
    }

    /// Connects to the socket of this name.
    ///
    /// # Errors
    /// `PermissionDenied` if the listening process belongs neither to the folder's owner nor to root; the error of the
    /// system.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.at(name))?;
        self.check_peer(&stream)?;
        Ok(stream)
    }

    /// Checks that the other end is a process of the folder's owner or of root.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not.
    pub fn check_peer(&self, socket: impl std::os::fd::AsFd) -> io::Result<()> {
        let user = PeerCredentials::of(socket)?.user();
        match user == self.owner || user == 0 {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("a process of user {user} listens there, and not of user {}", self.owner),
            )),
        }
    }

    /// The names of the files in the folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.at("."))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// When the socket of this name was made, by the clock of the file system; `None` if it is gone.
    pub fn made_at(&self, name: &str) -> Option<SystemTime> {
        fs::symlink_metadata(self.at(name)).and_then(|found| found.modified()).ok()
    }

    /// Removes the file of this name, if it exists.
    ///
    /// # Errors
    /// The error of the system.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.at(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The folders of this owner's processes.
#[derive(Debug, PartialEq, Eq)]
struct RuntimeFolderChoice {
    path: PathBuf,
    owner: u32,
    /// Folders of processes that began outside a login session, or before an upgrade.
    others: Vec<PathBuf>,
}

/// The path of the runtime folder of this process's owner. It stays the same if the process changes its user.
pub fn path() -> PathBuf {
    chosen().path.clone()
}

/// The owner (uid): the user who started this process, even if the process changes its user.
pub fn owner() -> u32 {
    chosen().owner
}

/// Opens the folders in which this owner's processes may answer, this process's own first. Folders that do not exist
/// are left out; unsafe ones are too, with a line in the log.
///
/// # Errors
/// [`RuntimeFolderError`]: this process's own folder is unsafe.
pub fn all() -> Result<Vec<RuntimeFolder>, RuntimeFolderError> {
    let RuntimeFolderChoice { path, owner, others } = chosen();
    let mut folders: Vec<RuntimeFolder> = RuntimeFolder::open(path, *owner)?.into_iter().collect();
    for other in others {
        match RuntimeFolder::open(other, *owner) {
            Ok(found) => folders.extend(found),
            Err(error) => warn!("nobody is asked there: {error}"),
        }
    }
    Ok(folders)
}

/// The folder of the user who started this process with `sudo`, if that is how it became root's.
pub fn of_sudo_user() -> Option<RuntimeFolder> {
    let (user, path) = sudo_user()?;
    let opened = RuntimeFolder::open(&path, user);
    opened.inspect_err(|error| warn!("nobody is asked there: {error}")).ok().flatten()
}

/// That user's number (uid) and folder.
fn sudo_user() -> Option<(u32, PathBuf)> {
    let user: u32 = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    (owner() == 0 && user != 0).then(|| (user, Path::new(OF_USERS).join(user.to_string()).join(NAME)))
}

/// Opens the runtime folder that contains the socket at this path, and returns it with the socket's file name; `None`
/// if the path is not in a runtime folder of this owner.
///
/// # Errors
/// [`RuntimeFolderError`].
pub fn holding(socket: &Path) -> Result<Option<(RuntimeFolder, String)>, RuntimeFolderError> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name().and_then(|name| name.to_str())) else {
        return Ok(None);
    };
    let RuntimeFolderChoice { path, owner, others } = chosen();
    let found = match () {
        () if folder == path || others.iter().any(|other| other == folder) => RuntimeFolder::open(folder, *owner)?,
        () => of_sudo_user().filter(|found| found.path == folder),
    };
    Ok(found.map(|found| (found, name.to_owned())))
}

/// Whether the path of a socket is in one of the owner's runtime folders. Looks at no file.
pub fn is_among(socket: &Path) -> bool {
    let RuntimeFolderChoice { path, others, .. } = chosen();
    let of_sudo_user = sudo_user().map(|(_, path)| path);
    socket.parent().is_some_and(|folder| folder == path || others.iter().chain(&of_sudo_user).any(|it| it == folder))
}

/// The name of the folder within a folder that other programs share.
const NAME: &str = "farbus";
/// Where the system keeps a folder for each user with a session.
const OF_USERS: &str = "/run/user";

fn chosen() -> &'static RuntimeFolderChoice {
    static CHOSEN: OnceLock<RuntimeFolderChoice> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let xdg_folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let state = HostFolder::of_user().ok().map(|state| state.path().to_owned());
        let owner_of = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
        choose(rustix::process::geteuid().as_raw(), xdg_folder, state, &std::env::temp_dir(), owner_of)
    })
}

/// `told` is `XDG_RUNTIME_DIR`; `state` is the owner's state folder; `owner_of` returns the owner of an existing
/// folder.
fn choose(
    owner: u32,
    xdg_folder: Option<PathBuf>,
    state: Option<PathBuf>,
    temporary: &Path,
    owner_of: impl Fn(&Path) -> Option<u32>,
) -> RuntimeFolderChoice {
    let session = Path::new(OF_USERS).join(owner.to_string());
    // A folder of another user, which `su` leaves in the environment, is not used (XDG Base Directory Specification).
    let xdg_folder = xdg_folder.filter(|path| owner_of(path).is_none_or(|found| found == owner));
    if let Some(xdg_folder) = xdg_folder.as_ref().filter(|xdg_folder| **xdg_folder != session) {
        return RuntimeFolderChoice { path: xdg_folder.join(NAME), owner, others: Vec::new() };
    }
    let mut all: Vec<PathBuf> = Vec::new();
    if owner == 0 {
        // Root's service has no session.
        all.extend(xdg_folder.map(|xdg_folder| xdg_folder.join(NAME)));
        all.push(OF_ROOT.into());
    } else {
        if owner_of(&session) == Some(owner) {
            all.push(session.join(NAME));
        }
        all.extend(state.map(|state| state.join("run")));
        if all.is_empty() {
            // The user has no folder. Opening this one will report what is wrong.
            all.push(session.join(NAME));
        }
        // Earlier versions used this folder, and their processes may still run. Any user may create a folder there, so
        // it is never created here.
        all.push(temporary.join(format!("{NAME}-{owner}")));
    }
    let path = all.remove(0);
    RuntimeFolderChoice { path, owner, others: all }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn chosen_for(owner: u32, xdg_folder: Option<&str>, session: Option<u32>) -> (String, Vec<String>) {
        let owner_of = |path: &Path| match path.to_str() {
            Some("/of/ann") => Some(1000),
            Some("/run/user/1000" | "/run/user/0") => session,
            _ => None,
        };
        let chosen = choose(owner, xdg_folder.map(PathBuf::from), Some("/state".into()), Path::new("/tmp"), owner_of);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        (text(&chosen.path), chosen.others.iter().map(|path| text(path)).collect())
    }

    #[test]
    fn runtime_folder_is_never_chosen_in_a_world_writable_place() {
        let ann = |xdg_folder, session| chosen_for(1000, xdg_folder, session);
        assert_eq!(ann(Some("/of/ann"), None), ("/of/ann/farbus".into(), vec![]));
        let others = vec!["/state/run".to_owned(), "/tmp/farbus-1000".to_owned()];
        assert_eq!(ann(None, Some(1000)), ("/run/user/1000/farbus".into(), others.clone()));
        assert_eq!(ann(Some("/run/user/1000"), Some(1000)), ("/run/user/1000/farbus".into(), others));
        let others = vec!["/tmp/farbus-1000".to_owned()];
        assert_eq!(ann(None, None), ("/state/run".into(), others.clone()));
        assert_eq!(ann(None, Some(1600)), ("/state/run".into(), others), "somebody else's session");
        let (path, others) = chosen_for(1600, Some("/of/ann"), None);
        assert_eq!((path.as_str(), others.len()), ("/state/run", 1), "su has left it in the environment");
        assert_eq!(chosen_for(0, None, Some(0)), ("/run/farbus".into(), vec![]));
        let of_login = ("/run/user/0/farbus".into(), vec!["/run/farbus".to_owned()]);
        assert_eq!(chosen_for(0, Some("/run/user/0"), Some(0)), of_login);
        let homeless = choose(7, None, None, Path::new("/tmp"), |_| None);
        assert_eq!(homeless.path, Path::new("/run/user/7/farbus"));
    }

    #[test]
    fn folder_that_other_users_own_or_may_write_is_refused() {
        let scratch = std::env::temp_dir().join(format!("farbus-runtime-{}", std::process::id()));
        let folder = scratch.join("folder");
        fs::create_dir_all(&folder).unwrap();
        let us = rustix::process::geteuid().as_raw();
        let open = |path: &Path, owner| RuntimeFolder::open(path, owner).map(|found| found.is_some());
        assert!(open(&folder, us).unwrap());
        assert!(!open(&scratch.join("none"), us).unwrap());
        let foreign = open(&folder, us + 1).unwrap_err();
        assert!(matches!(foreign, RuntimeFolderError::Foreign { owner, .. } if owner == us), "{foreign}");
        let link = scratch.join("link");
        symlink(&folder, &link).unwrap();
        assert!(matches!(open(&link, us), Err(RuntimeFolderError::NotFolder { .. })));
        fs::write(scratch.join("file"), "").unwrap();
        assert!(matches!(open(&scratch.join("file"), us), Err(RuntimeFolderError::NotFolder { .. })));
        for mode in [0o777, 0o1777, 0o720, 0o702] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let refused = open(&folder, us).unwrap_err();
            assert!(refused.to_string().contains("chmod 700"), "{refused}");
        }
        fs::remove_dir_all(&scratch).unwrap();
    }

    /// As a command does that asks everybody while a process begins.
    #[test]
    fn a_socket_that_is_being_made_is_not_taken_for_one_of_a_process_that_has_ended() {
        let scratch = std::env::temp_dir().join(format!("farbus-runtime-made-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let open = || RuntimeFolder::open(&scratch, rustix::process::geteuid().as_raw()).unwrap().unwrap();
        let (folder, is_over) = (open(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                let folder = open();
                while !is_over.load(Ordering::Acquire) {
                    for name in folder.names().unwrap().iter().filter(|name| !name.starts_with('.')) {
                        if let Err(error) = folder.connect(name)
                            && error.kind() == io::ErrorKind::ConnectionRefused
                        {
                            folder.remove(name).unwrap();
                        }
                    }
                }
            });
            for number in 0..500 {
                let name = format!("{number}.sock");
                let made = folder.listen(&name).and_then(|listener| folder.connect(&name).map(|_| listener));
                if made.is_err() {
                    is_over.store(true, Ordering::Release);
                }
                assert!(made.is_ok(), "{name}: {made:?}");
            }
            is_over.store(true, Ordering::Release);
            asker.join().unwrap();
        });
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn sockets_are_created_and_connected_in_the_checked_folder() {
        let scratch = std::env::temp_dir().join(format!("farbus-runtime-fd-{}", std::process::id()));
        // Longer than the path of a socket may be.
        let long = scratch.join("x".repeat(120));
        fs::create_dir_all(&long).unwrap();
        let folder = RuntimeFolder::open(&long, rustix::process::geteuid().as_raw()).unwrap().unwrap();
        let listener = folder.listen("1.sock").unwrap();
        let mode = fs::metadata(long.join("1.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A new folder at the path is not the one that was checked.
        fs::rename(&long, scratch.join("moved")).unwrap();
        fs::create_dir(&long).unwrap();
        assert_eq!(folder.names().unwrap(), ["1.sock"]);
        let stream = folder.connect("1.sock").unwrap();
        let stranger = RuntimeFolder { owner: folder.owner + 1, fd: folder.fd.try_clone().unwrap(), path: long };
        if !rustix::process::geteuid().is_root() {
            let refused = stranger.check_peer(&stream).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        drop((listener, stream));
        folder.remove("1.sock").unwrap();
        assert!(folder.names().unwrap().is_empty());
        fs::remove_dir_all(&scratch).unwrap();
    }
}
