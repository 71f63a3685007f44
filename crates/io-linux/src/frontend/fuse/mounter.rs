//! Asks the kernel to mount and to unmount: this process, or another that has the rights.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MountError;
use super::mark::MountMark;

/// Mounts FUSE file systems.
pub trait FuseMounter {
    /// Mounts at `at`, a folder that is created if it is missing.
    ///
    /// # Errors
    /// [`MountError`].
    fn mount(&self, at: &Path, read_only: bool) -> Result<FuseMount, MountError>;

    /// The owner of its mounts: user and group.
    fn owner(&self) -> (u32, u32);
}

/// A mounted FUSE file system. The kernel sends the requests of programs on `device`.
#[derive(Debug)]
pub struct FuseMount {
    /// Where it is mounted: absolute, without symbolic links.
    pub at: PathBuf,
    /// The descriptor on which the kernel sends its requests.
    pub device: OwnedFd,
    /// Unmounts it, and sets how far the kernel reads ahead.
    pub keeper: Arc<dyn MountKeeper>,
}

/// Keeps a mount. A folder that was created for it is removed when the last of its keepers is dropped, if nothing is
/// mounted there.
pub trait MountKeeper: fmt::Debug + Send + Sync {
    /// Sets how far the kernel reads ahead; best effort.
    fn set_read_ahead(&self, bytes: usize);

    /// Takes the mount out of the file tree, even if it is in use.
    ///
    /// # Errors
    /// The system's error: then it is still mounted.
    fn leave(&self) -> io::Result<MountRemoval>;

    /// Identifies the mount for another process that is to keep it; `None` if this keeper cannot.
    fn mark(&self) -> Option<MountMark> {
        None
    }

    /// Makes the kernel answer every request itself, with an error, from now on. Does not wait for
    /// [`MountKeeper::leave`].
    fn abort(&self);
}

/// What became of the mount when it was taken out of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountRemoval {
    /// It was not in use.
    Idle,
    /// Programs that have its file open continue to use it.
    Busy,
    /// It had been unmounted before.
    Already,
}
