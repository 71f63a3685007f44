//! A folder of farbus's own files, opened once and used by its descriptor.
//!
//! Root may work in a folder that another user owns, and that user could put a link, a pipe or another user's file
//! where farbus expects a file.
//!
//! | what could be there | what is done |
//! |---|---|
//! | a symbolic link as a file or a subfolder | refused: nothing below the folder is opened through one |
//! | a FIFO, device, socket or folder as a file | refused before it is opened |
//! | a hard link to another user's file | refused: a file has one link |
//! | a file of another user | refused: it must belong to the folder's owner, this user or root |
//! | another folder, by a change of a folder above it | refused to root: each folder on the path is root's or the owner's |
//! | a place where only root could write | not reached: root reads and writes with the owner's rights, so no file changes its owner afterwards |
//!
//! Names have one component, so `openat` with `O_NOFOLLOW` on the folder's descriptor does what `openat2` does with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`. It works also where a filter of system calls cannot allow `openat2`,
//! whose flags are in memory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use crate::sys::accounts::service_user;
use crate::sys::acting::as_user;

/// How many symbolic links on the path are followed: as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// How often a name may change between the check and the opening.
const ATTEMPTS_MAX: usize = 16;
/// The mode bits that let every user write, and that let only owners remove (inode(7)).
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// An open folder with an owner. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StateFolder {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    user: Uid,
    group: Gid,
}

/// Why a folder or a file in it is not used: which, and why.
#[derive(Debug)]
pub struct FolderError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: FolderTrouble,
}

/// Why a folder or a file in it is not used.
#[derive(Debug)]
pub enum FolderTrouble {
    /// Another user could have put it there.
    Refused(FolderRefusal),
    /// The system's error.
    System(io::Error),
}

/// What is there instead of a file or folder of farbus's own.
#[derive(Debug, PartialEq, Eq)]
pub enum FolderRefusal {
    /// A symbolic link.
    SymbolicLink,
    /// Not a regular file; holds what it is.
    NotAFile(&'static str),
    /// A file with so many hard links.
    ManyLinks(u64),
    /// A file of this user, in a folder of another user's.
    OwnerOfFile(u32),
    /// The folder belongs to this user, and the process runs neither as that user nor as root.
    OwnerOfFolder(u32),
    /// A folder or link on the path belongs to this user, who could replace it.
    OwnerOnTheWay(PathBuf, u32),
    /// Every user may replace what is in this folder.
    OpenToAll(PathBuf),
    /// Root may not work as the folder's owner; holds the user and the system's error.
    NotAsOwner(u32, String),
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl std::error::Error for FolderError {}

impl fmt::Display for FolderTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderTrouble::Refused(refusal) => refusal.fmt(f),
            FolderTrouble::System(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for FolderRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderRefusal::SymbolicLink => f.write_str(
                "it is a symbolic link, which farbus does not follow here: remove it, or put the file in its place",
            ),
            FolderRefusal::NotAFile(kind) => write!(f, "it is a {kind}, where farbus keeps a file: remove it"),
            FolderRefusal::ManyLinks(links) => {
                write!(f, "it has {links} names (hard links), and may be somebody else's file: remove it, or copy it")
            }
            FolderRefusal::OwnerOfFile(user) => {
                write!(f, "it belongs to user {user}, who does not own this folder: remove it, or type chown")
            }
            FolderRefusal::OwnerOfFolder(user) => {
                write!(
                    f,
                    "it belongs to user {user}: run farbus as that user, or set FARBUS_STATE to a folder of yours"
                )
            }
            FolderRefusal::OwnerOnTheWay(at, user) => write!(
                f,
                "{} belongs to user {user}, who could put another folder here: run farbus as that user, or name a folder that only \
                 root can move (FARBUS_STATE for farbus's own files)",
                at.display()
            ),
            FolderRefusal::OpenToAll(at) => write!(
                f,
                "everybody can move what is in {}: name another folder (FARBUS_STATE for farbus's own files), or type: chmod o-w {0}",
                at.display()
            ),
            FolderRefusal::NotAsOwner(user, error) => {
                write!(f, "root cannot work in it as its owner ({error})\n  type: sudo -u '#{user}' farbus …")
            }
        }
    }
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccessMode {
    /// For reading only.
    Read,
    /// For reading and appending.
    Append,
    /// For reading and writing.
    ReadWrite,
}

impl FileAccessMode {
    fn flags(self) -> OFlags {
        match self {
            FileAccessMode::Read => OFlags::RDONLY,
            FileAccessMode::Append => OFlags::RDWR | OFlags::APPEND,
            FileAccessMode::ReadWrite => OFlags::RDWR,
        }
    }
}

/// NONBLOCK: if the name has become a FIFO meanwhile, do not wait for its other end.
const FILE: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const FOLDER: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY);

impl StateFolder {
    /// Opens the folder at `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FolderError`]: it belongs to another user, or another user could replace it.
    pub fn open(path: &Path) -> Result<Option<Self>, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        match ResolvedFolder::to(path, false).map_err(at)? {
            Some(way) => Self::own(way.folder, path.to_owned(), &way.owners).map(Some).map_err(at),
            None => Ok(None),
        }
    }

    /// Opens the folder at `path`; creates it, accessible only to its owner, if it does not exist. Root gives it to the
    /// service user, if there is one.
    ///
    /// # Errors
    /// [`FolderError`]: it belongs to another user, another user could replace it, or it cannot be created.
    pub fn open_or_make(path: &Path) -> Result<Self, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        let way = ResolvedFolder::to(path, true).map_err(at)?;
        let way = way.ok_or_else(|| at(FolderTrouble::System(io::ErrorKind::NotFound.into())))?;
        Self::own(way.folder, path.to_owned(), &way.owners).map_err(at)
    }

    /// Opens the folder at `path`, of any owner, for a file that the user named; returns whether users other than this
    /// one and root can put files there. `None` if it does not exist.
    ///
    /// # Errors
    /// [`FolderError`]: another user could redirect root to another folder.
    pub(crate) fn open_shared(path: &Path) -> Result<Option<(Self, bool)>, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        let Some(way) = ResolvedFolder::to(path, false).map_err(at)? else { return Ok(None) };
        let about = rustix::fs::fstat(&way.folder).map_err(system).map_err(at)?;
        let (owner, me) = (Uid::from_raw(about.st_uid), rustix::process::geteuid());
        let is_others = (owner != me && !owner.is_root()) || about.st_mode & OTHERS_WRITE != 0;
        if me.is_root() {
            return Self::own(way.folder, path.to_owned(), &way.owners)
                .map(|folder| Some((folder, is_others)))
                .map_err(at);
        }
        let group = rustix::process::getegid();
        Ok(Some((Self { fd: Arc::new(way.folder), path: path.to_owned(), user: me, group }, is_others)))
    }

    /// Checks that no user other than its owner could have put the open folder there.
    fn own(fd: OwnedFd, path: PathBuf, owners: &[(PathBuf, Uid)]) -> Result<Self, FolderTrouble> {
        let about = rustix::fs::fstat(&fd).map_err(system)?;
        let (user, group) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
        let me = rustix::process::geteuid();
        if me.is_root() {
            let all = highest_owner()?;
            let stranger = owners.iter().find(|(_, owner)| !owner.is_root() && *owner != user && *owner != all);
            if let Some((at, owner)) = stranger {
                return Err(FolderTrouble::Refused(FolderRefusal::OwnerOnTheWay(at.clone(), owner.as_raw())));
            }
        } else if user != me && !user.is_root() {
            return Err(FolderTrouble::Refused(FolderRefusal::OwnerOfFolder(user.as_raw())));
        }
        Ok(Self { fd: Arc::new(fd), path, user, group })
    }

    /// The path where it was found. By now another folder may be there.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The user and group who owned the folder when it was opened.
    pub fn owner(&self) -> (Uid, Gid) {
        (self.user, self.group)
    }

    /// The folder's descriptor, for a process that may not open the path.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// This open folder, noted as owned by `user` and `group`, to whom the caller has given it.
    pub(in crate::trust) fn given_to(&self, (user, group): (Uid, Gid)) -> Self {
        Self { user, group, ..self.clone() }
    }

    /// Opens a subfolder; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FolderError`]: a symbolic link or a file is there, or the system's error.
    pub fn subfolder(&self, name: &str) -> Result<Option<Self>, FolderError> {
        checked(name).map_err(|why| self.error(name, why))?;
        // With our own rights: it may be root's in another user's folder, and opening a folder has no effect on it.
        let fd = match rustix::fs::openat(&*self.fd, name, FOLDER | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => {
                let is_link = |about: Stat| FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
                return Err(match self.look(name).map(|about| about.is_some_and(is_link)) {
                    Ok(true) => self.error(name, FolderTrouble::Refused(FolderRefusal::SymbolicLink)),
                    _ => self.error(name, system(errno)),
                });
            }
        };
        let about = rustix::fs::fstat(&fd).map_err(|errno| self.error(name, system(errno)))?;
        self.vet_owner(&about).map_err(|why| self.error(name, why))?;
        let (user, group) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
        Ok(Some(Self { fd: Arc::new(fd), path: self.path.join(name), user, group }))
    }

    /// Opens a subfolder; creates it if it does not exist.
    ///
    /// # Errors
    /// As [`StateFolder::subfolder`].
    pub fn subfolder_or_make(&self, name: &str) -> Result<Self, FolderError> {
        if let Some(found) = self.subfolder(name)? {
            return Ok(found);
        }
        self.act(name, || match rustix::fs::mkdirat(&*self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(system(errno)),
        })?;
        self.subfolder(name)?.ok_or_else(|| self.error(name, FolderTrouble::System(io::ErrorKind::NotFound.into())))
    }

    /// Opens a file; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FolderError`]: it is not exclusively the owner's file, or the system's error.
    pub fn file(&self, name: &str, access: FileAccessMode) -> Result<Option<File>, FolderError> {
        self.act(name, || self.open_file(name, access, false))
    }

    /// Opens a file; creates it, accessible only to its owner, if it does not exist.
    ///
    /// # Errors
    /// As [`StateFolder::file`].
    pub fn file_or_make(&self, name: &str, access: FileAccessMode) -> Result<File, FolderError> {
        let made = self.act(name, || self.open_file(name, access, true))?;
        made.ok_or_else(|| self.error(name, FolderTrouble::System(io::ErrorKind::NotFound.into())))
    }

    /// Creates a new file, accessible only to its owner; `None` if the name is taken.
    ///
    /// # Errors
    /// The system's error.
    pub fn make_file(&self, name: &str) -> Result<Option<File>, FolderError> {
        self.act(name, || match self.create(name, FileAccessMode::ReadWrite) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => Err(system(errno)),
        })
    }

    /// Renames `from` to `to`, replacing that. Does nothing if `from` does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), FolderError> {
        self.act(from, || {
            checked(to)?;
            match rustix::fs::renameat(&*self.fd, from, &*self.fd, to) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(system(errno)),
            }
        })
    }

    /// The files `one` and `other` change names, in one step. Where the file system cannot do that, `one` replaces
    /// `other`.
    ///
    /// # Errors
    /// The system's error.
    pub(in crate::trust) fn exchange(&self, one: &str, other: &str) -> Result<(), FolderError> {
        self.act(one, || {
            checked(other)?;
            match rustix::fs::renameat_with(&*self.fd, one, &*self.fd, other, RenameFlags::EXCHANGE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => {
                    rustix::fs::renameat(&*self.fd, one, &*self.fd, other).map_err(system)
                }
                exchanged => exchanged.map_err(system),
            }
        })
    }

    /// Removes a name that is not a folder's; returns whether it existed.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, name: &str) -> Result<bool, FolderError> {
        self.act(name, || match rustix::fs::unlinkat(&*self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(system(errno)),
        })
    }

    /// The names in it, in no particular order; names that are not UTF-8 are not farbus's.
    ///
    /// # Errors
    /// The system's error.
    pub fn names(&self) -> Result<Vec<String>, FolderError> {
        self.act("", || {
            let mut names = Vec::new();
            for entry in Dir::read_from(&*self.fd).map_err(system)? {
                let entry = entry.map_err(system)?;
                names.extend(
                    entry.file_name().to_str().ok().filter(|name| ![".", ".."].contains(name)).map(str::to_owned),
                );
            }
            Ok(names)
        })
    }

    /// Makes names durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> Result<(), FolderError> {
        rustix::fs::fsync(&*self.fd).map_err(|errno| self.error("", system(errno)))
    }

    fn open_file(&self, name: &str, access: FileAccessMode, makes: bool) -> Result<Option<File>, FolderTrouble> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(about) = self.look(name)? else {
                match makes.then(|| self.create(name, access)) {
                    None => return Ok(None),
                    Some(Ok(file)) => return Ok(Some(file)),
                    Some(Err(Errno::EXIST)) => continue,
                    Some(Err(errno)) => return Err(system(errno)),
                }
            };
            self.vet(&about)?;
            let fd = match rustix::fs::openat(&*self.fd, name, FILE | access.flags(), Mode::empty()) {
                Ok(fd) => fd,
                // Renamed or removed since the check.
                Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => continue,
                Err(Errno::ACCESS) if about.st_uid != self.user.as_raw() => {
                    return Err(FolderTrouble::Refused(FolderRefusal::OwnerOfFile(about.st_uid)));
                }
                Err(errno) => return Err(system(errno)),
            };
            // Check again: the opened file may differ from the one that was checked.
            self.vet(&rustix::fs::fstat(&fd).map_err(system)?)?;
            return Ok(Some(fd.into()));
        }
        Err(FolderTrouble::System(io::Error::other("it changes again and again")))
    }

    fn create(&self, name: &str, access: FileAccessMode) -> rustix::io::Result<File> {
        let flags = FILE | access.flags() | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::openat(&*self.fd, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// The file's status, without following a link.
    fn look(&self, name: &str) -> Result<Option<Stat>, FolderTrouble> {
        match rustix::fs::statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(about)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(system(errno)),
        }
    }

    fn vet(&self, about: &Stat) -> Result<(), FolderTrouble> {
        kind_of(about)?;
        // No link at all: the file was replaced while it was opened.
        #[allow(clippy::useless_conversion)] // It is 32 bits wide on some systems.
        let links = u64::from(about.st_nlink);
        if links > 1 {
            return Err(FolderTrouble::Refused(FolderRefusal::ManyLinks(links)));
        }
        self.vet_owner(about)
    }

    fn vet_owner(&self, about: &Stat) -> Result<(), FolderTrouble> {
        let own = [self.user, rustix::process::geteuid(), Uid::ROOT];
        match own.contains(&Uid::from_raw(about.st_uid)) {
            true => Ok(()),
            false => Err(FolderTrouble::Refused(FolderRefusal::OwnerOfFile(about.st_uid))),
        }
    }

    /// Runs `work` with the rights of the folder's owner if this process is root.
    fn act<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, FolderTrouble> + Send,
    ) -> Result<T, FolderError> {
        if !name.is_empty() {
            checked(name).map_err(|why| self.error(name, why))?;
        }
        let result = match rustix::process::geteuid().is_root() && !self.user.is_root() {
            false => work(),
            true => as_user(self.user, self.group, work).unwrap_or_else(|error| {
                Err(FolderTrouble::Refused(FolderRefusal::NotAsOwner(self.user.as_raw(), error.to_string())))
            }),
        };
        result.map_err(|why| self.error(name, why))
    }

    fn error(&self, name: &str, why: FolderTrouble) -> FolderError {
        FolderError { path: if name.is_empty() { self.path.clone() } else { self.path.join(name) }, why }
    }
}

fn system(errno: Errno) -> FolderTrouble {
    FolderTrouble::System(errno.into())
}

/// Checks that a name has one component and does not lead elsewhere.
fn checked(name: &str) -> Result<(), FolderTrouble> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == OsStr::new(name) => Ok(()),
        _ => Err(FolderTrouble::System(io::ErrorKind::InvalidInput.into())),
    }
}

fn kind_of(about: &Stat) -> Result<(), FolderTrouble> {
    let kind = match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => return Err(FolderTrouble::Refused(FolderRefusal::SymbolicLink)),
        FileType::Directory => "folder",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        _ => "device",
    };
    Err(FolderTrouble::Refused(FolderRefusal::NotAFile(kind)))
}

/// The owner of `/`: root, or inside a namespace the user that stands for those outside.
fn highest_owner() -> Result<Uid, FolderTrouble> {
    Ok(Uid::from_raw(rustix::fs::stat("/").map_err(system)?.st_uid))
}

/// The path to a folder, resolved step by step.
struct ResolvedFolder {
    folder: OwnedFd,
    /// The folders and links on the path with their owners, who could redirect it. Recorded only for root.
    owners: Vec<(PathBuf, Uid)>,
}

impl ResolvedFolder {
    /// Resolves `path`; `None` if it does not exist and is not to be created.
    fn to(path: &Path, makes: bool) -> Result<Option<Self>, FolderTrouble> {
        let path = std::path::absolute(path).map_err(FolderTrouble::System)?;
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            // No other user's rights are involved.
            if makes {
                make_all(&path).map_err(FolderTrouble::System)?;
            }
            let flags = OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::RDONLY;
            return match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
                Ok(folder) => Ok(Some(Self { folder, owners: Vec::new() })),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(system(errno)),
            };
        }
        Self::by_steps(&path, makes)
    }

    fn by_steps(path: &Path, makes: bool) -> Result<Option<Self>, FolderTrouble> {
        let root = || rustix::fs::openat(CWD, "/", FOLDER | OFlags::PATH, Mode::empty()).map_err(system);
        let (mut at, mut here, mut links) = (root()?, PathBuf::from("/"), 0);
        let mut steps: VecDeque<OsString> = steps_of(path).collect();
        let mut owners = Vec::new();
        while let Some(step) = steps.pop_front() {
            let above = rustix::fs::fstat(&at).map_err(system)?;
            if above.st_mode & OTHERS_WRITE != 0 && above.st_mode & STICKY == 0 {
                return Err(FolderTrouble::Refused(FolderRefusal::OpenToAll(here)));
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = match rustix::fs::openat(&at, &*step, flags, Mode::empty()) {
                Err(Errno::NOENT) if makes => {
                    make_in(&at, &here, &step, steps.is_empty(), &owners)?;
                    rustix::fs::openat(&at, &*step, flags, Mode::empty()).map_err(system)?
                }
                Err(Errno::NOENT) => return Ok(None),
                other => other.map_err(system)?,
            };
            let about = rustix::fs::fstat(&next).map_err(system)?;
            let kind = FileType::from_raw_mode(about.st_mode);
            // The folder itself is checked for its owner later.
            if kind == FileType::Symlink || !steps.is_empty() {
                owners.push((here.join(&step), Uid::from_raw(about.st_uid)));
            }
            if kind != FileType::Symlink {
                here = if step == ".." { here.parent().unwrap_or(Path::new("/")).to_owned() } else { here.join(&step) };
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(system(Errno::LOOP));
            }
            let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(system)?.into_bytes();
            let target = PathBuf::from(OsString::from_vec(target));
            if target.is_absolute() {
                (at, here) = (root()?, PathBuf::from("/"));
            }
            let rest = std::mem::take(&mut steps);
            steps = steps_of(&target).chain(rest).collect();
        }
        let folder = rustix::fs::openat(&at, ".", OFlags::RDONLY | FOLDER, Mode::empty()).map_err(system)?;
        Ok(Some(Self { folder, owners }))
    }
}

fn steps_of(path: &Path) -> impl Iterator<Item = OsString> {
    let steps: Vec<_> = path
        .components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect();
    steps.into_iter()
}

/// Creates a folder on the path for root, where no other user can replace it; the last one belongs to the service user.
fn make_in(
    at: &OwnedFd,
    here: &Path,
    name: &OsStr,
    is_last: bool,
    owners: &[(PathBuf, Uid)],
) -> Result<(), FolderTrouble> {
    let all = highest_owner()?;
    if let Some((at, owner)) = owners.iter().find(|(_, owner)| !owner.is_root() && *owner != all) {
        return Err(FolderTrouble::Refused(FolderRefusal::OwnerOnTheWay(at.clone(), owner.as_raw())));
    }
    debug_assert!(!name.as_bytes().contains(&b'/'), "a step is one name below {}", here.display());
    match rustix::fs::mkdirat(at, name, Mode::RWXU) {
        // Another process was faster.
        Err(Errno::EXIST) => return Ok(()),
        made => made.map_err(system)?,
    }
    if let Some((user, group)) = service_user().filter(|_| is_last) {
        let made = rustix::fs::openat(at, name, FOLDER | OFlags::RDONLY, Mode::empty()).map_err(system)?;
        rustix::fs::fchown(&made, Some(user), Some(group)).map_err(system)?;
    }
    Ok(())
}

fn make_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
#[path = "state_folder_tests.rs"]
mod tests;
