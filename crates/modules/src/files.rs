//! Files for modules: the process reads and creates them before it drops its rights.

use std::sync::Arc;

/// Reads and creates files for modules. A function that reads creates none.
pub trait ModuleFiles {
    /// The content of a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// A sentence.
    fn read(&mut self, path: &str, bytes_max: usize) -> Result<Vec<u8>, String>;

    /// Creates a file.
    ///
    /// # Errors
    /// A sentence.
    fn create(&mut self, path: &str) -> Result<Arc<dyn ModuleFileSink>, String>;
}

impl<F: FnMut(&str) -> Result<Vec<u8>, String>> ModuleFiles for F {
    fn read(&mut self, path: &str, _bytes_max: usize) -> Result<Vec<u8>, String> {
        self(path)
    }

    fn create(&mut self, _path: &str) -> Result<Arc<dyn ModuleFileSink>, String> {
        Err("no file is made here".to_owned())
    }
}

/// A file to write to. Writing does not block.
pub trait ModuleFileSink: Send + Sync {
    /// Appends all of `bytes` and returns true, or none of them and returns false.
    fn put(&self, bytes: Vec<u8>) -> bool;

    /// The time of day, in nanoseconds since 1970.
    fn unix_ns(&self) -> u64;
}
