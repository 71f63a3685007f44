//! The folder in which a host keeps its state.

use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use std::{env, fmt};

use farbus_control::failure::CommandFailure;
use rustix::fs::{FlockOperation, flock};

use super::spare_room;
use super::state_folder::{FileAccessMode, FolderError, StateFolder};

/// The folder of a host's key, its peers and its audit log.
#[derive(Clone, Debug)]
pub struct HostFolder {
    path: PathBuf,
    /// The folder, once it is kept open.
    held: Arc<OnceLock<StateFolder>>,
}

/// How long ago a file must have changed last for its [`FileStamp`] to tell it from a later version: file systems count
/// changes in steps, the longest of which is two seconds (FAT).
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// By what a version of a file is told from later ones: its number, size and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::trust) struct FileStamp {
    device: u64,
    number: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// `None` if the file has changed a moment ago, or in the future: a version after this one could have the same
    /// stamp.
    fn of(about: &Metadata) -> Option<Self> {
        let modified = about.modified().ok()?;
        let is_settled = SystemTime::now().duration_since(modified).is_ok_and(|since| since >= SETTLED_AFTER);
        is_settled.then(|| Self {
            device: about.dev(),
            number: about.ino(),
            bytes: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// What [`HostFolder::read_unless`] found.
pub(in crate::trust) enum ReadFile {
    /// The file does not exist.
    Missing,
    /// It is the version with the stamp that was given.
    Same,
    /// Its contents, and its stamp if that tells it from later versions.
    Read(Vec<u8>, Option<FileStamp>),
}

/// What is wrong with the host's own files.
#[derive(Debug)]
pub struct StateError {
    /// The file or folder that is wrong.
    pub path: PathBuf,
    /// A message for a person.
    pub what: String,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for StateError {}

impl From<StateError> for CommandFailure {
    fn from(error: StateError) -> Self {
        CommandFailure::local(error)
    }
}

impl From<FolderError> for StateError {
    fn from(FolderError { path, why }: FolderError) -> Self {
        Self { path, what: why.to_string() }
    }
}

impl HostFolder {
    /// The folder with this path, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), held: Arc::default() }
    }

    /// `FARBUS_STATE`; otherwise `/var/lib/farbus` for root, `farbus` in `XDG_STATE_HOME` (or `~/.local/state`) for
    /// other users. A process that changes its user keeps the folder of the first user.
    ///
    /// # Errors
    /// The user has no home folder either.
    pub fn of_user() -> Result<Self, StateError> {
        static FOUND: OnceLock<HostFolder> = OnceLock::new();
        match FOUND.get() {
            Some(found) => Ok(found.clone()),
            None => Self::find().map(|folder| FOUND.get_or_init(|| folder).clone()),
        }
    }

    fn find() -> Result<Self, StateError> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = variable("FARBUS_STATE") {
            return Ok(Self::at(path));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self::at("/var/lib/farbus"));
        }
        let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
        let what = || "no folder to keep a key in: set FARBUS_STATE to a folder of yours".to_owned();
        let state = state.ok_or_else(|| StateError { path: PathBuf::from("farbus"), what: what() })?;
        Ok(Self::at(state.join("farbus")))
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder, accessible only to its owner.
    ///
    /// # Errors
    /// It does not exist and cannot be created, or users other than its owner could replace it.
    pub fn make(&self) -> Result<(), StateError> {
        self.opened_or_made().map(drop)
    }

    /// Keeps the folder open: it is used from now on even if this process may not open the path, and whatever is at the
    /// path by then.
    pub(in crate::trust) fn keep(&self, folder: StateFolder) -> &StateFolder {
        self.held.get_or_init(|| folder)
    }

    /// The folder, opened once for what is done by the returned value, if it exists: opening checks each folder on the
    /// path, and somebody may wait for a device meanwhile.
    ///
    /// # Errors
    /// As [`HostFolder::opened`].
    pub fn opened_once(&self) -> Result<Self, StateError> {
        let folder = Self::at(self.path.clone());
        if let Some(opened) = self.opened()? {
            folder.keep(opened);
        }
        Ok(folder)
    }

    /// Opens the folder; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StateError`]: users other than its owner could have put it there, or the system's error.
    pub fn opened(&self) -> Result<Option<StateFolder>, StateError> {
        match self.held.get() {
            Some(held) => Ok(Some(held.clone())),
            None => Ok(StateFolder::open(&self.path)?),
        }
    }

    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// As [`HostFolder::make`].
    pub fn opened_or_made(&self) -> Result<StateFolder, StateError> {
        match self.held.get() {
            Some(held) => Ok(held.clone()),
            None => Ok(StateFolder::open_or_make(&self.path)?),
        }
    }

    /// The contents of the file `name`; `None` if it does not exist.
    pub(in crate::trust) fn read(
        &self,
        name: &str,
        bytes_max: u64,
        is_secret: bool,
    ) -> Result<Option<Vec<u8>>, StateError> {
        Ok(match self.read_unless(name, bytes_max, is_secret, None)? {
            ReadFile::Read(bytes, _) => Some(bytes),
            ReadFile::Missing | ReadFile::Same => None,
        })
    }

    /// As [`HostFolder::read`], unless the file is the version with the stamp `known`.
    pub(in crate::trust) fn read_unless(
        &self,
        name: &str,
        bytes_max: u64,
        is_secret: bool,
        known: Option<FileStamp>,
    ) -> Result<ReadFile, StateError> {
        let path = self.file(name);
        let Some(folder) = self.opened()? else { return Ok(ReadFile::Missing) };
        let Some(file) = folder.file(name, FileAccessMode::Read)? else { return Ok(ReadFile::Missing) };
        let about = file.metadata().map_err(|error| self.trouble(name, &error))?;
        if is_secret && about.mode() & 0o077 != 0 {
            let what = format!(
                "others may read or change it (mode {:o})\n  type: chmod 600 {}",
                about.mode() & 0o777,
                path.display()
            );
            return Err(StateError { path, what });
        }
        let stamp = FileStamp::of(&about);
        if stamp.is_some() && stamp == known {
            return Ok(ReadFile::Same);
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| self.trouble(name, &error))?;
        if bytes.len() as u64 > bytes_max {
            return Err(StateError { path, what: format!("it is larger than {bytes_max} bytes") });
        }
        Ok(ReadFile::Read(bytes, stamp))
    }

    /// Replaces the file `name` atomically and durably. If it does not get larger, that works on a full disk, too: what
    /// takes permissions away does. If it fails, the old file stays.
    pub(in crate::trust) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        let folder = self.opened_or_made()?;
        let fresh = format!("{name}.new");
        let write = || -> Result<(), StateError> {
            folder.remove(&fresh)?;
            let taken = || self.trouble(&fresh, &"another process writes it");
            let mut file = folder.make_file(&fresh)?.ok_or_else(taken)?;
            file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| self.trouble(name, &error))?;
            folder.rename(&fresh, name)?;
            Ok(folder.sync()?)
        };
        let Err(error) = write() else {
            spare_room::keep(&folder, bytes.len());
            return Ok(());
        };
        // Frees the space that it took on a full disk.
        let _ = folder.remove(&fresh);
        let before = folder.file(name, FileAccessMode::Read)?.and_then(|file| file.metadata().ok());
        match before.is_some_and(|before| before.len() >= bytes.len() as u64) {
            true => spare_room::replace(&folder, name, bytes).map_err(|_| error),
            false => Err(error),
        }
    }

    /// Opens the file `name` for reading and appending; creates it if it does not exist.
    pub(in crate::trust) fn append(&self, name: &str) -> Result<File, StateError> {
        Ok(self.opened_or_made()?.file_or_make(name, FileAccessMode::Append)?)
    }

    /// Renames the file `from` to `to`, replacing that. Does nothing if `from` does not exist.
    pub(in crate::trust) fn rename(&self, from: &str, to: &str) -> Result<(), StateError> {
        Ok(self.opened_or_made()?.rename(from, to)?)
    }

    /// Keeps other processes of this host from changing its files until dropped.
    pub(in crate::trust) fn lock(&self) -> Result<File, StateError> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// Keeps those from changing its files, until dropped, who use [`HostFolder::lock`]; others who share it may have
    /// locks of their own for what they change.
    pub(in crate::trust) fn lock_shared(&self) -> Result<File, StateError> {
        self.lock_as(FlockOperation::LockShared)
    }

    fn lock_as(&self, operation: FlockOperation) -> Result<File, StateError> {
        let file = self.opened_or_made()?.file_or_make("lock", FileAccessMode::ReadWrite)?;
        flock(&file, operation).map_err(|errno| self.trouble("lock", &errno))?;
        Ok(file)
    }

    pub(in crate::trust) fn trouble(&self, name: &str, what: &dyn fmt::Display) -> StateError {
        StateError { path: if name.is_empty() { self.path.clone() } else { self.file(name) }, what: what.to_string() }
    }
}
