//! The folder in which an owner's processes find each other's sockets.
//!
//! What is said at these sockets (text to type, open files) is meant for the owner alone, so a folder is used only if
//! nobody else could have put a socket there: it is a folder and no symbolic link, it belongs to the owner, and nobody
//! else may write to it. It is opened once and checked, and sockets are made and reached through that descriptor. Who
//! answers has to be the owner's process, or root's, by the kernel's word (`SO_PEERCRED`).

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use farbus_io::sys::peer::Credentials;
use farbus_io::trust::Folder;
use rustix::fs::{Mode, OFlags, fstat};
use tracing::warn;

/// The bits of a folder's mode that let others put something there.
const OTHERS_WRITE: u32 = 0o022;
/// Root's, where nothing else is said.
const OF_ROOT: &str = "/run/farbus";

/// A folder that is safe to use, open.
#[derive(Debug)]
pub struct RuntimeFolder {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// Why a folder is not used.
#[derive(Debug)]
pub enum RuntimeFolderError {
    /// Another user made it.
    Foreign {
        /// Where it is.
        path: PathBuf,
        /// The user who owns it.
        owner: u32,
    },
    /// Others may put sockets there.
    Open {
        /// Where it is.
        path: PathBuf,
        /// The folder's mode, permission bits only.
        mode: u32,
    },
    /// It is a symbolic link, or no folder at all.
    NotFolder {
        /// Where it is.
        path: PathBuf,
    },
    /// It cannot be opened or made.
    Unreachable {
        /// Where it is.
        path: PathBuf,
        /// What the system said.
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
    /// This process's owner's, made if it is not there.
    ///
    /// # Errors
    /// [`RuntimeFolderError`].
    pub fn make() -> Result<Self, RuntimeFolderError> {
        let Chosen { path, owner, .. } = chosen();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        match made {
            // What is there is looked at below, a symbolic link to nowhere among it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|source| RuntimeFolderError::Unreachable { path: path.clone(), source })?,
        }
        let gone = || RuntimeFolderError::Unreachable { path: path.clone(), source: io::ErrorKind::NotFound.into() };
        Self::open(path, *owner)?.ok_or_else(gone)
    }

    /// One that `owner` made; `None` if it is not there.
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
                // What it is says more than why it was not opened.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name by which this process alone reaches a file in it, whatever stands at its path by now. It is short
    /// enough for a socket (107 bytes), too.
    pub fn at(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Listens at a socket of this name, for its owner alone; one that was left there is replaced.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen(&self, name: &str) -> io::Result<UnixListener> {
        self.remove(name)?;
        let listener = UnixListener::bind(self.at(name))?;
        fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Connects to the socket of this name.
    ///
    /// # Errors
    /// `PermissionDenied` if neither the folder's owner nor root listens there; what the system says.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(self.at(name))?;
        self.check_peer(&stream)?;
        Ok(stream)
    }

    /// Whether the other end is a process of the folder's owner, or of root.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not.
    pub fn check_peer(&self, socket: impl std::os::fd::AsFd) -> io::Result<()> {
        let user = Credentials::of(socket)?.user();
        match user == self.owner || user == 0 {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("a process of user {user} listens there, and not of user {}", self.owner),
            )),
        }
    }

    /// The names of what is there.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.at("."))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Removes what has this name, if it is there.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.at(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Where this owner's processes meet.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    path: PathBuf,
    owner: u32,
    /// Where processes meet that began outside a login session, or before an upgrade.
    others: Vec<PathBuf>,
}

/// The path of this process's owner's runtime folder. A process that becomes another user keeps that of the first.
pub fn path() -> PathBuf {
    chosen().path.clone()
}

/// The user whose processes meet here: who started this process, whoever it becomes.
pub fn owner() -> u32 {
    chosen().owner
}

/// The folders in which this owner's processes may answer, this process's own first. One that is not there is left out,
/// and so is one that is not safe, with a line in the log.
///
/// # Errors
/// [`RuntimeFolderError`]: the first is not safe.
pub fn all() -> Result<Vec<RuntimeFolder>, RuntimeFolderError> {
    let Chosen { path, owner, others } = chosen();
    let mut folders: Vec<RuntimeFolder> = RuntimeFolder::open(path, *owner)?.into_iter().collect();
    for other in others {
        match RuntimeFolder::open(other, *owner) {
            Ok(found) => folders.extend(found),
            Err(error) => warn!("nobody is asked there: {error}"),
        }
    }
    Ok(folders)
}

/// The folder of the user who became root by `sudo`, if that is who started this process.
pub fn of_sudo_user() -> Option<RuntimeFolder> {
    let (user, path) = sudo_user()?;
    let opened = RuntimeFolder::open(&path, user);
    opened.inspect_err(|error| warn!("nobody is asked there: {error}")).ok().flatten()
}

/// Who that is, and where.
fn sudo_user() -> Option<(u32, PathBuf)> {
    let user: u32 = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    (owner() == 0 && user != 0).then(|| (user, Path::new(OF_USERS).join(user.to_string()).join(NAME)))
}

/// The folder of ours in which a socket of this path is, checked and open, and the socket's name there; `None` if it is
/// elsewhere.
///
/// # Errors
/// [`RuntimeFolderError`].
pub fn holding(socket: &Path) -> Result<Option<(RuntimeFolder, String)>, RuntimeFolderError> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name().and_then(|name| name.to_str())) else {
        return Ok(None);
    };
    let Chosen { path, owner, others } = chosen();
    let found = match () {
        () if folder == path || others.iter().any(|other| other == folder) => RuntimeFolder::open(folder, *owner)?,
        () => of_sudo_user().filter(|found| found.path == folder),
    };
    Ok(found.map(|found| (found, name.to_owned())))
}

/// Whether a socket of this path is in a folder where an owner's processes meet, as far as its path says. No file is
/// looked at.
pub fn is_among(socket: &Path) -> bool {
    let Chosen { path, others, .. } = chosen();
    let of_sudo_user = sudo_user().map(|(_, path)| path);
    socket.parent().is_some_and(|folder| folder == path || others.iter().chain(&of_sudo_user).any(|it| it == folder))
}

/// What it is called in a folder that others have something in, too.
const NAME: &str = "farbus";
/// Where the system keeps a folder for each user who has a session.
const OF_USERS: &str = "/run/user";

fn chosen() -> &'static Chosen {
    static CHOSEN: OnceLock<Chosen> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let told = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let state = Folder::of_user().ok().map(|state| state.path().to_owned());
        let owner_of = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
        choose(rustix::process::geteuid().as_raw(), told, state, &std::env::temp_dir(), owner_of)
    })
}

/// `told` is what the environment says; `state` is the owner's folder for what lasts; `owner_of` says whose a folder is
/// that is there.
fn choose(
    owner: u32,
    told: Option<PathBuf>,
    state: Option<PathBuf>,
    temporary: &Path,
    owner_of: impl Fn(&Path) -> Option<u32>,
) -> Chosen {
    let session = Path::new(OF_USERS).join(owner.to_string());
    // Another user's, as `su` leaves it in the environment, is none of ours (XDG Base Directory Specification).
    let told = told.filter(|path| owner_of(path).is_none_or(|found| found == owner));
    if let Some(told) = told.as_ref().filter(|told| **told != session) {
        return Chosen { path: told.join(NAME), owner, others: Vec::new() };
    }
    let mut all: Vec<PathBuf> = Vec::new();
    if owner == 0 {
        // Root's service has no session.
        all.extend(told.map(|told| told.join(NAME)));
        all.push(OF_ROOT.into());
    } else {
        if owner_of(&session) == Some(owner) {
            all.push(session.join(NAME));
        }
        all.extend(state.map(|state| state.join("run")));
        if all.is_empty() {
            // Nothing of this user's is there: what is wrong is said when it is opened.
            all.push(session.join(NAME));
        }
        // Where earlier versions had it, for their running processes: anybody may make a folder there, so it is only
        // looked at.
        all.push(temporary.join(format!("{NAME}-{owner}")));
    }
    let path = all.remove(0);
    Chosen { path, owner, others: all }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn chosen_for(owner: u32, told: Option<&str>, session: Option<u32>) -> (String, Vec<String>) {
        let owner_of = |path: &Path| match path.to_str() {
            Some("/of/ann") => Some(1000),
            Some("/run/user/1000" | "/run/user/0") => session,
            _ => None,
        };
        let chosen = choose(owner, told.map(PathBuf::from), Some("/state".into()), Path::new("/tmp"), owner_of);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        (text(&chosen.path), chosen.others.iter().map(|path| text(path)).collect())
    }

    #[test]
    fn the_folder_is_never_made_where_anybody_may_make_one() {
        let ann = |told, session| chosen_for(1000, told, session);
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
    fn a_folder_that_others_made_or_may_write_to_is_refused() {
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

    #[test]
    fn sockets_are_made_and_reached_in_the_folder_that_was_checked() {
        let scratch = std::env::temp_dir().join(format!("farbus-runtime-fd-{}", std::process::id()));
        // Longer than a socket's path may be.
        let long = scratch.join("x".repeat(120));
        fs::create_dir_all(&long).unwrap();
        let folder = RuntimeFolder::open(&long, rustix::process::geteuid().as_raw()).unwrap().unwrap();
        let listener = folder.listen("1.sock").unwrap();
        let mode = fs::metadata(long.join("1.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Another folder in its place is not what was checked.
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
