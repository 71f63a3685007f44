//! Files that modules are told of: the shell reads and makes them, before it gives its rights away.

use std::sync::Arc;

/// Reads and makes files for modules. A function that reads makes none.
pub trait Files {
    /// What is in a file of `bytes_max` bytes at most.
    ///
    /// # Errors
    /// A sentence.
    fn read(&mut self, path: &str, bytes_max: usize) -> Result<Vec<u8>, String>;

    /// A file that is made anew.
    ///
    /// # Errors
    /// A sentence.
    fn create(&mut self, path: &str) -> Result<Arc<dyn Sink>, String>;
}

impl<F: FnMut(&str) -> Result<Vec<u8>, String>> Files for F {
    fn read(&mut self, path: &str, _bytes_max: usize) -> Result<Vec<u8>, String> {
        self(path)
    }

    fn create(&mut self, _path: &str) -> Result<Arc<dyn Sink>, String> {
        Err("no file is made here".to_owned())
    }
}

/// What is written. Nobody waits for it.
pub trait Sink: Send + Sync {
    /// Writes all of this behind what is there already, or nothing of it: then it says false.
    fn put(&self, bytes: Vec<u8>) -> bool;

    /// The time of day, in nanoseconds since 1970.
    fn unix_ns(&self) -> u64;
}
