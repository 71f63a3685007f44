//! The health of a mounted disk.

/// The health of a mounted disk. It only gets worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountHealth {
    /// Requests reach the store.
    Serving,
    /// The store is gone; requests fail at once.
    Lost,
    /// The last user is gone, and the mount too.
    Ended,
}
