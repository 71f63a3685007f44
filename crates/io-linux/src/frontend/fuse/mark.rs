//! Identifies a mount.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A mount that one process keeps, described for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountMark {
    /// Where it is mounted.
    pub at: PathBuf,
    /// Whether the folder was created for it.
    pub(super) made: bool,
    pub(super) mount: Option<MountTableEntry>,
}

/// A line of the kernel's table of mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MountTableEntry {
    pub id: u64,
    /// Major and minor number of the file system, as `0:45`.
    pub device: String,
}
