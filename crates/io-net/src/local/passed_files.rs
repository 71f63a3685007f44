//! Open files that were passed with a question on a control socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// The descriptors that were passed with a question.
#[derive(Debug, Default)]
pub struct PassedFiles(Mutex<Vec<OwnedFd>>);

impl PassedFiles {
    /// The descriptors that were received.
    pub fn passed(files: Vec<OwnedFd>) -> Self {
        Self(Mutex::new(files))
    }

    /// Takes the descriptors, of which there must be `COUNT`: a disk and its journal, or a device's node.
    ///
    /// # Errors
    /// Another number of descriptors was passed.
    pub fn take<const COUNT: usize>(&self) -> io::Result<[OwnedFd; COUNT]> {
        self.take_all()
            .try_into()
            .map_err(|_| io::Error::other("descriptors have to come along: ask with the farbus command"))
    }

    /// Takes the descriptors, however many there are.
    pub fn take_all(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
