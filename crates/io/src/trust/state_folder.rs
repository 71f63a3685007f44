//! A folder of farbus's own files, opened once and used by its descriptor.
//!
//! Root may work in a folder that another user owns, who could put a link, a pipe or another's file wherever farbus
//! looks for a file.
//!
//! | what could stand there | what is done |
//! |---|---|
//! | a symbolic link as a file or a subfolder | refused: nothing below the folder is opened through one |
//! | a FIFO, device, socket or folder as a file | refused before it is opened |
//! | a hard link to somebody else's file | refused: a file has one link |
//! | a file of another user | refused: it is the folder's owner's, ours or root's |
//! | another folder, by a change of a folder above it | refused to root: each folder on the way is root's or the owner's |
//! | a place where only root could write | not reached: root reads and writes with the owner's rights, so nothing is given away afterwards |
//!
//! Names have one component, so `openat` with `O_NOFOLLOW` on the folder's descriptor does what `openat2` does with
//! `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, also where a filter of system calls cannot let `openat2` pass: its
//! flags lie in memory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::sys::accounts::service_user;
use crate::sys::acting::as_user;

/// Symbolic links on the way to the folder, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// How often a name may change between looking and opening.
const ATTEMPTS_MAX: usize = 16;
/// The bits of a mode that let everybody write, and that let only owners remove (inode(7)).
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
    /// Which file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: FolderTrouble,
}

/// Why a folder or a file in it is not used.
#[derive(Debug)]
pub enum FolderTrouble {
    /// Somebody else could have put it there.
    Refused(Refusal),
    /// What the system says.
    System(io::Error),
}

/// What stands where farbus expects a file or folder of its own.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A symbolic link.
    SymbolicLink,
    /// No regular file; holds what it is.
    NotAFile(&'static str),
    /// A file with so many names.
    ManyLinks(u64),
    /// A file of this user, in a folder of another's.
    OwnerOfFile(u32),
    /// The folder is this user's, and we are neither that user nor root.
    OwnerOfFolder(u32),
    /// A folder or link on the way belongs to this user, who could put another in its place.
    OwnerOnTheWay(PathBuf, u32),
    /// Everybody may put another folder in place of what is in this one.
    OpenToAll(PathBuf),
    /// Root may not work as the folder's owner; holds the user and the system's word.
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SymbolicLink => f.write_str(
                "it is a symbolic link, which farbus does not follow here: remove it, or put the file in its place",
            ),
            Refusal::NotAFile(kind) => write!(f, "it is a {kind}, where farbus keeps a file: remove it"),
            Refusal::ManyLinks(links) => {
                write!(f, "it has {links} names (hard links), and may be somebody else's file: remove it, or copy it")
            }
            Refusal::OwnerOfFile(user) => {
                write!(f, "it belongs to user {user}, who does not own this folder: remove it, or type chown")
            }
            Refusal::OwnerOfFolder(user) => {
                write!(
                    f,
                    "it belongs to user {user}: run farbus as that user, or set FARBUS_STATE to a folder of yours"
                )
            }
            Refusal::OwnerOnTheWay(at, user) => write!(
                f,
                "{} belongs to user {user}, who could put another folder here: run farbus as that user, or name a folder that only \
                 root can move (FARBUS_STATE for farbus's own files)",
                at.display()
            ),
            Refusal::OpenToAll(at) => write!(
                f,
                "everybody can move what is in {}: name another folder (FARBUS_STATE for farbus's own files), or type: chmod o-w {0}",
                at.display()
            ),
            Refusal::NotAsOwner(user, error) => {
                write!(f, "root cannot work in it as its owner ({error})\n  type: sudo -u '#{user}' farbus …")
            }
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read.
    Read,
    /// To be read, and written at its end.
    Append,
    /// To be read and written.
    ReadWrite,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::Append => OFlags::RDWR | OFlags::APPEND,
            Access::ReadWrite => OFlags::RDWR,
        }
    }
}

/// NONBLOCK: should the name become a FIFO meanwhile, nobody waits for its other end.
const FILE: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const FOLDER: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::DIRECTORY);

impl StateFolder {
    /// The folder at `path`; `None` if there is none.
    ///
    /// # Errors
    /// [`FolderError`]: it is somebody else's, or could be.
    pub fn open(path: &Path) -> Result<Option<Self>, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        match Way::to(path, false).map_err(at)? {
            Some(way) => Self::own(way.folder, path.to_owned(), &way.owners).map(Some).map_err(at),
            None => Ok(None),
        }
    }

    /// The folder at `path`, made for its owner's eyes only if there is none. Root makes it the service user's, if
    /// there is one.
    ///
    /// # Errors
    /// [`FolderError`]: it is somebody else's, or could be, or cannot be made.
    pub fn open_or_make(path: &Path) -> Result<Self, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        let way = Way::to(path, true).map_err(at)?;
        let way = way.ok_or_else(|| at(FolderTrouble::System(io::ErrorKind::NotFound.into())))?;
        Self::own(way.folder, path.to_owned(), &way.owners).map_err(at)
    }

    /// The folder at `path`, which may be anybody's, for a file that a person named; and whether others than this user
    /// and root can put things there. `None` if there is none.
    ///
    /// # Errors
    /// [`FolderError`]: another user could have root work elsewhere.
    pub(crate) fn open_shared(path: &Path) -> Result<Option<(Self, bool)>, FolderError> {
        let at = |error| FolderError { path: path.to_owned(), why: error };
        let Some(way) = Way::to(path, false).map_err(at)? else { return Ok(None) };
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

    /// The folder that is open, unless others than its owner could have put it there.
    fn own(fd: OwnedFd, path: PathBuf, owners: &[(PathBuf, Uid)]) -> Result<Self, FolderTrouble> {
        let about = rustix::fs::fstat(&fd).map_err(system)?;
        let (user, group) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
        let me = rustix::process::geteuid();
        if me.is_root() {
            let all = highest_owner()?;
            let stranger = owners.iter().find(|(_, owner)| !owner.is_root() && *owner != user && *owner != all);
            if let Some((at, owner)) = stranger {
                return Err(FolderTrouble::Refused(Refusal::OwnerOnTheWay(at.clone(), owner.as_raw())));
            }
        } else if user != me && !user.is_root() {
            return Err(FolderTrouble::Refused(Refusal::OwnerOfFolder(user.as_raw())));
        }
        Ok(Self { fd: Arc::new(fd), path, user, group })
    }

    /// Where it was found. Another may be there by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn owner(&self) -> (Uid, Gid) {
        (self.user, self.group)
    }

    /// Returns the open folder's descriptor, for a process that may not open the path.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The same, now that it is somebody else's.
    pub(super) fn given_to(&self, (user, group): (Uid, Gid)) -> Self {
        Self { user, group, ..self.clone() }
    }

    /// A folder in it; `None` if there is none.
    ///
    /// # Errors
    /// [`FolderError`]: a symbolic link or a file is there, or what the system says.
    pub fn subfolder(&self, name: &str) -> Result<Option<Self>, FolderError> {
        checked(name).map_err(|why| self.error(name, why))?;
        // With our own rights: it may be root's in somebody else's folder, and to open a folder does nothing to it.
        let fd = match rustix::fs::openat(&*self.fd, name, FOLDER | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => {
                let is_link = |about: Stat| FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
                return Err(match self.look(name).map(|about| about.is_some_and(is_link)) {
                    Ok(true) => self.error(name, FolderTrouble::Refused(Refusal::SymbolicLink)),
                    _ => self.error(name, system(errno)),
                });
            }
        };
        let about = rustix::fs::fstat(&fd).map_err(|errno| self.error(name, system(errno)))?;
        self.vet_owner(&about).map_err(|why| self.error(name, why))?;
        let (user, group) = (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid));
        Ok(Some(Self { fd: Arc::new(fd), path: self.path.join(name), user, group }))
    }

    /// A folder in it, made if there is none.
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

    /// A file in it; `None` if there is none.
    ///
    /// # Errors
    /// [`FolderError`]: what is there is no file of the owner's alone, or what the system says.
    pub fn file(&self, name: &str, access: Access) -> Result<Option<File>, FolderError> {
        self.act(name, || self.open_file(name, access, false))
    }

    /// A file in it, made for the owner's eyes only if there is none.
    ///
    /// # Errors
    /// As [`StateFolder::file`].
    pub fn file_or_make(&self, name: &str, access: Access) -> Result<File, FolderError> {
        let made = self.act(name, || self.open_file(name, access, true))?;
        made.ok_or_else(|| self.error(name, FolderTrouble::System(io::ErrorKind::NotFound.into())))
    }

    /// A new file in it, for the owner's eyes only; `None` if something has the name.
    ///
    /// # Errors
    /// What the system says.
    pub fn make_file(&self, name: &str) -> Result<Option<File>, FolderError> {
        self.act(name, || match self.create(name, Access::ReadWrite) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => Err(system(errno)),
        })
    }

    /// Gives what is called `from` the name `to`, in place of what has it. Nothing is done if there is none.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), FolderError> {
        self.act(from, || {
            checked(to)?;
            match rustix::fs::renameat(&*self.fd, from, &*self.fd, to) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(system(errno)),
            }
        })
    }

    /// Removes a name, whatever has it but a folder; says whether anything had.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, name: &str) -> Result<bool, FolderError> {
        self.act(name, || match rustix::fs::unlinkat(&*self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(system(errno)),
        })
    }

    /// The names in it, in no order; those that are not UTF-8 are not ours.
    ///
    /// # Errors
    /// What the system says.
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
    /// What the system says.
    pub fn sync(&self) -> Result<(), FolderError> {
        rustix::fs::fsync(&*self.fd).map_err(|errno| self.error("", system(errno)))
    }

    fn open_file(&self, name: &str, access: Access, makes: bool) -> Result<Option<File>, FolderTrouble> {
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
                // Renamed or removed since.
                Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => continue,
                Err(Errno::ACCESS) if about.st_uid != self.user.as_raw() => {
                    return Err(FolderTrouble::Refused(Refusal::OwnerOfFile(about.st_uid)));
                }
                Err(errno) => return Err(system(errno)),
            };
            // What was looked at need not be what was opened.
            self.vet(&rustix::fs::fstat(&fd).map_err(system)?)?;
            return Ok(Some(fd.into()));
        }
        Err(FolderTrouble::System(io::Error::other("it changes again and again")))
    }

    fn create(&self, name: &str, access: Access) -> rustix::io::Result<File> {
        let flags = FILE | access.flags() | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::openat(&*self.fd, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// What has the name, without following it.
    fn look(&self, name: &str) -> Result<Option<Stat>, FolderTrouble> {
        match rustix::fs::statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(about)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(system(errno)),
        }
    }

    fn vet(&self, about: &Stat) -> Result<(), FolderTrouble> {
        kind_of(about)?;
        // None is one that was replaced as it was opened.
        #[allow(clippy::useless_conversion)] // It is 32 bits wide on some systems.
        let links = u64::from(about.st_nlink);
        if links > 1 {
            return Err(FolderTrouble::Refused(Refusal::ManyLinks(links)));
        }
        self.vet_owner(about)
    }

    fn vet_owner(&self, about: &Stat) -> Result<(), FolderTrouble> {
        let own = [self.user, rustix::process::geteuid(), Uid::ROOT];
        match own.contains(&Uid::from_raw(about.st_uid)) {
            true => Ok(()),
            false => Err(FolderTrouble::Refused(Refusal::OwnerOfFile(about.st_uid))),
        }
    }

    /// Does something in the folder, as its owner if we are root.
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
                Err(FolderTrouble::Refused(Refusal::NotAsOwner(self.user.as_raw(), error.to_string())))
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

/// A name has one component and leads nowhere else.
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
        FileType::Symlink => return Err(FolderTrouble::Refused(Refusal::SymbolicLink)),
        FileType::Directory => "folder",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        _ => "device",
    };
    Err(FolderTrouble::Refused(Refusal::NotAFile(kind)))
}

/// Who owns `/`: root, or in a namespace whoever stands for those users that it does not have.
fn highest_owner() -> Result<Uid, FolderTrouble> {
    Ok(Uid::from_raw(rustix::fs::stat("/").map_err(system)?.st_uid))
}

/// The way that leads to a folder, gone step by step.
struct Way {
    folder: OwnedFd,
    /// Who could lead it elsewhere: each folder and link on it, and its owner. Root alone asks.
    owners: Vec<(PathBuf, Uid)>,
}

impl Way {
    /// To `path`; `None` if it leads nowhere and nothing is to be made.
    fn to(path: &Path, makes: bool) -> Result<Option<Self>, FolderTrouble> {
        let path = std::path::absolute(path).map_err(FolderTrouble::System)?;
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            // Nobody else's rights are at stake.
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
                return Err(FolderTrouble::Refused(Refusal::OpenToAll(here)));
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
            // The folder itself is asked for its owner later.
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

/// Root makes a folder on the way, where nobody else can put another in its place; the last is the service user's.
fn make_in(
    at: &OwnedFd,
    here: &Path,
    name: &OsStr,
    is_last: bool,
    owners: &[(PathBuf, Uid)],
) -> Result<(), FolderTrouble> {
    let all = highest_owner()?;
    if let Some((at, owner)) = owners.iter().find(|(_, owner)| !owner.is_root() && *owner != all) {
        return Err(FolderTrouble::Refused(Refusal::OwnerOnTheWay(at.clone(), owner.as_raw())));
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
