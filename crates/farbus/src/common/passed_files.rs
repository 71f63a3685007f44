//! Open files that came along with a question on a control socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors that came with a question.
#[derive(Clone, Debug, Default)]
pub struct Files(Arc<Mutex<Vec<OwnedFd>>>);

impl Files {
    /// These came along.
    pub fn put(&self, files: Vec<OwnedFd>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = files;
    }

    /// As many as are needed: a disk and its journal, or a device's node.
    ///
    /// # Errors
    /// If they did not come along.
    pub fn take<const COUNT: usize>(&self) -> io::Result<[OwnedFd; COUNT]> {
        let files = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        files.try_into().map_err(|_| io::Error::other("descriptors have to come along: ask with the farbus command"))
    }
}

/// Two questions are the same whatever came with them.
impl PartialEq for Files {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Files {}
