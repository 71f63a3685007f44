//! How a mounted disk is.

/// How a mounted disk is. It only ever gets worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Requests reach the store.
    Serving,
    /// The store is gone; requests fail at once.
    Lost,
    /// The last user is gone and so is the mount.
    Ended,
}
