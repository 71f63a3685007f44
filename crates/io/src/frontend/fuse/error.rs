//! Why a disk is not mounted, or still is; each with what to type next where there is something to type.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a disk could not be mounted.
#[derive(Debug)]
pub enum MountError {
    /// Not a name that a file can have.
    BadName {
        /// The name.
        name: String,
    },
    /// Something else is there.
    NotAFolder {
        /// Where.
        at: PathBuf,
    },
    /// The folder has contents, which the mount would hide.
    NotEmpty {
        /// Where.
        at: PathBuf,
    },
    /// An earlier mount lies there whose process was killed.
    DeadMount {
        /// Where.
        at: PathBuf,
    },
    /// The folder is missing and cannot be made.
    CannotMakeFolder {
        /// Where.
        at: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The folder is there and cannot be read.
    CannotReadFolder {
        /// Where.
        at: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// This kernel has no FUSE, or this user may not use it.
    NoFuse {
        /// What the kernel said.
        error: io::Error,
    },
    /// Only root mounts by itself; everybody else needs FUSE's helper program, which is missing.
    NoHelper,
    /// Whoever was asked to mount said this.
    Told(String),
    /// Something else.
    Refused {
        /// Where.
        at: PathBuf,
        /// What the kernel or the helper said.
        error: io::Error,
    },
}

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
                "cannot open /dev/fuse: {error}; load it with `modprobe fuse`, in a container pass it with `--device /dev/fuse`"
            ),
            MountError::NoHelper => {
                f.write_str("only root mounts without the program fusermount3; install it with `apt-get install fuse3`")
            }
            MountError::Told(what) => f.write_str(what),
            MountError::Refused { at, error } => write!(f, "cannot mount at {}: {error}", at.display()),
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
    /// Where.
    pub at: PathBuf,
    /// What the kernel said.
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
