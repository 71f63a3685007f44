//! Who asks the kernel to mount, and to let go again: this process, or another that may.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::MountError;
use super::mark::MountMark;

/// Mounts where it is told to.
pub trait Mounter {
    /// Mounts at `at`, a folder that is made if it is missing.
    ///
    /// # Errors
    /// [`MountError`].
    fn mount(&self, at: &Path, read_only: bool) -> Result<Mounted, MountError>;

    /// Whose its mounts are: user and group.
    fn owner(&self) -> (u32, u32);
}

/// A mount.
#[derive(Debug)]
pub struct Mounted {
    /// Where: absolute, without symbolic links.
    pub at: PathBuf,
    /// Through which the kernel asks.
    pub device: OwnedFd,
    /// Who takes it away again.
    pub keeper: Arc<dyn Keeper>,
}

/// What keeps a mount. A folder that was made for it goes when the last of its keepers is dropped, if nothing is
/// mounted there.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// How much the kernel reads ahead; best effort.
    fn set_read_ahead(&self, bytes: usize);

    /// Takes the mount out of the file tree, from under its users if need be.
    ///
    /// # Errors
    /// What the system says: then it is still mounted.
    fn leave(&self) -> io::Result<Left>;

    /// Which mount it is, for another process that is to keep it; none if this is not known here.
    fn mark(&self) -> Option<MountMark> {
        None
    }

    /// Makes the kernel answer every request itself, with an error, from now on. Does not wait for [`Keeper::leave`].
    fn abort(&self);
}

/// What became of the mount when it was to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nobody used it.
    Idle,
    /// It has left the file tree; programs that have its file open keep it.
    Busy,
    /// It had gone before.
    Already,
}
