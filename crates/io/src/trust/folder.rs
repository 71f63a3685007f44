//! Where a host keeps what it knows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fmt};

use rustix::fs::{FlockOperation, Gid, Uid, flock};

use crate::sys::confine::service_user;

/// The folder of a host's key, its peers and its audit log.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// What is wrong with the host's own files.
#[derive(Debug)]
pub struct StateError {
    /// Which file.
    pub path: PathBuf,
    /// A sentence for a person.
    pub what: String,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for StateError {}

impl Folder {
    /// A folder of this name, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// `FARBUS_STATE`; else `/var/lib/farbus` for root, `farbus` in `XDG_STATE_HOME` (or `~/.local/state`) for others. A
    /// process that becomes another user keeps that of the first.
    ///
    /// # Errors
    /// If the user has no home either.
    pub fn of_user() -> Result<Self, StateError> {
        static FOUND: OnceLock<PathBuf> = OnceLock::new();
        match FOUND.get() {
            Some(path) => Ok(Self::at(path)),
            None => Self::find().map(|folder| Self::at(FOUND.get_or_init(|| folder.path))),
        }
    }

    fn find() -> Result<Self, StateError> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(told) = variable("FARBUS_STATE") {
            return Ok(Self::at(told));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self::at("/var/lib/farbus"));
        }
        let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
        let what = || "no folder to keep a key in: set FARBUS_STATE to a folder of yours".to_owned();
        let state = state.ok_or_else(|| StateError { path: PathBuf::from("farbus"), what: what() })?;
        Ok(Self::at(state.join("farbus")))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, for its owner's eyes only.
    ///
    /// # Errors
    /// If it is not there and cannot be made.
    pub fn make(&self) -> Result<(), StateError> {
        let make = || -> io::Result<()> {
            let is_new = !self.path.exists();
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
            match service_user().filter(|_| is_new && rustix::process::geteuid().is_root()) {
                Some((user, group)) => Ok(rustix::fs::chown(&self.path, Some(user), Some(group))?),
                None => Ok(()),
            }
        };
        make().map_err(|error| self.trouble("", &error))
    }

    /// A file that root makes in somebody's folder is that somebody's: whoever serves strangers from there is not root.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        if rustix::process::geteuid().is_root() {
            let owner = fs::metadata(&self.path)?;
            if file.metadata()?.uid() != owner.uid() {
                rustix::fs::fchown(file, Some(Uid::from_raw(owner.uid())), Some(Gid::from_raw(owner.gid())))?;
            }
        }
        Ok(())
    }

    /// What `name` holds; `None` if there is no such file.
    pub(super) fn read(&self, name: &str, bytes_max: u64, is_secret: bool) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.file(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.trouble(name, &error)),
        };
        let about = file.metadata().map_err(|error| self.trouble(name, &error))?;
        if is_secret && about.mode() & 0o077 != 0 {
            let what = format!(
                "others may read or change it (mode {:o})\n  type: chmod 600 {}",
                about.mode() & 0o777,
                path.display()
            );
            return Err(StateError { path, what });
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| self.trouble(name, &error))?;
        if bytes.len() as u64 > bytes_max {
            return Err(StateError { path, what: format!("it is larger than {bytes_max} bytes") });
        }
        Ok(Some(bytes))
    }

    /// Writes `name` anew: whole and durable, or not at all, as where the disk is full.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StateError> {
        self.make()?;
        let fresh = self.file(&format!("{name}.new"));
        let write = || -> io::Result<()> {
            match fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
            file.write_all(bytes)?;
            self.give(&file)?;
            file.sync_all()?;
            fs::rename(&fresh, self.file(name))?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| {
            // What a full disk took of it is given back.
            let _ = fs::remove_file(&fresh);
            self.trouble(name, &error)
        })
    }

    /// Keeps other processes of this host from changing its files until dropped.
    pub(super) fn lock(&self) -> Result<File, StateError> {
        self.make()?;
        let open = || -> io::Result<File> {
            let file =
                OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.file("lock"))?;
            self.give(&file)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        open().map_err(|error| self.trouble("lock", &error))
    }

    pub(super) fn trouble(&self, name: &str, what: &dyn fmt::Display) -> StateError {
        StateError { path: if name.is_empty() { self.path.clone() } else { self.file(name) }, what: what.to_string() }
    }
}
