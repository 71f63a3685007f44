//! Why a disk is not mounted, or still is; each error says what to type next if there is something to type.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a disk could not be mounted.
#[derive(Debug)]
pub enum MountError {
    /// It cannot be the name of a file.
    BadName {
        /// The file name that was asked for.
        name: String,
    },
    /// Something other than a folder is there.
    NotAFolder {
        /// The path that was to be the mount's folder.
        at: PathBuf,
    },
    /// The folder has contents, which the mount would hide.
    NotEmpty {
        /// The folder that was to be mounted over.
        at: PathBuf,
    },
    /// An earlier mount is there, whose process was killed.
    DeadMount {
        /// Where the dead mount is; `fusermount3 -u` removes it.
        at: PathBuf,
    },
    /// The folder is missing and cannot be created.
    CannotMakeFolder {
        /// The folder that could not be created.
        at: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The folder exists and cannot be read.
    CannotReadFolder {
        /// The folder that could not be read.
        at: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// This kernel has no FUSE, or this user may not use it.
    NoFuse {
        /// The kernel's error.
        error: io::Error,
    },
    /// Only root mounts by itself; other users need FUSE's helper program, which is missing.
    NoHelper,
    /// The broker's message: it could not mount.
    Broker(String),
    /// Any other error.
    Refused {
        /// The folder that was to be mounted over.
        at: PathBuf,
        /// The error of the kernel or the helper.
        error: io::Error,
    },
}

/// What works where this machine or container cannot mount.
const UNMOUNTED: &str = "\n  or attach it with --via nbd, which mounts nothing";

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::BadName { name } => write!(f, "{name:?} cannot be the name of a file"),
            MountError::NotAFolder { at } => write!(f, "{} is not a folder; name one, or nothing yet", at.display()),
            MountError::NotEmpty { at } => {
                write!(f, "{} is not empty and would be hidden; name an empty folder, or nothing yet", at.display())
            }
            MountError::DeadMount { at } => write!(
                f,
                "a disk whose process was killed is still mounted at {at}; clear it away with `fusermount3 -u {at}`",
                at = at.display()
            ),
            MountError::CannotMakeFolder { at, error } => {
                write!(f, "cannot make the folder {}: {error}; make the folders above it first", at.display())
            }
            MountError::CannotReadFolder { at, error } => write!(f, "cannot read the folder {}: {error}", at.display()),
            MountError::NoFuse { error } => write!(
                f,
                "cannot open /dev/fuse: {error}; load it with `modprobe fuse`, in a container pass it with `--device /dev/fuse`{UNMOUNTED}"
            ),
            MountError::NoHelper => write!(
                f,
                "only root mounts without the program fusermount3; install it with `apt-get install fuse3`{UNMOUNTED}"
            ),
            MountError::Broker(what) => f.write_str(what),
            MountError::Refused { at, error } => write!(f, "cannot mount at {}: {error}{UNMOUNTED}", at.display()),
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MountError::CannotMakeFolder { error, .. }
            | MountError::CannotReadFolder { error, .. }
            | MountError::NoFuse { error }
            | MountError::Refused { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Why a disk is still mounted.
#[derive(Debug)]
pub struct UnmountError {
    /// The folder at which the disk is still mounted.
    pub at: PathBuf,
    /// The kernel's error.
    pub error: io::Error,
}

impl fmt::Display for UnmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot unmount {at}: {}; try `fusermount3 -uz {at}`", self.error, at = self.at.display())
    }
}

impl std::error::Error for UnmountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
