//! Which mount it is.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A mount that one process keeps, in another's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountMark {
    /// Where.
    pub at: PathBuf,
    /// Whether the folder was made for it.
    pub(super) made: bool,
    pub(super) mount: Option<Mount>,
}

/// A line of the kernel's table of mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mount {
    pub id: u64,
    /// Major and minor number of the file system, as `0:45`.
    pub device: String,
}
