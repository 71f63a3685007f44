//! A writer of newc cpio archives: the format that the kernel unpacks into its first root file system.
//!
//! Format: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's tree. Archives may be
//! concatenated, so a finished base can be followed by a small overlay; here one archive is grown instead.

use std::collections::BTreeSet;

/// An archive under construction. Parent folders appear by themselves.
#[derive(Clone, Default)]
pub struct CpioArchive {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

/// File kinds, as the upper bits of a Unix mode.
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

impl CpioArchive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder and its parents.
    pub fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        self.parents(path);
        self.entry(path, FOLDER | 0o755, (0, 0), &[]);
    }

    /// Adds a regular file.
    pub fn file(&mut self, path: &str, permissions: u32, contents: &[u8]) {
        self.leaf(path, REGULAR | permissions, (0, 0), contents);
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.leaf(path, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device node.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.leaf(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// Closes the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn leaf(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        let path = path.trim_matches('/');
        self.parents(path);
        self.entry(path, mode, device, contents);
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.inode += 1;
        let size = u32::try_from(contents.len()).expect("a file in a boot image is below 4 GiB");
        let links = if mode & FOLDER == FOLDER { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0, // owner
            0, // group
            links,
            0, // time of change: images of equal content are equal bytes
            size,
            0, // major and minor of the file system the file came from
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0, // checksum, unused in newc
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    /// Headers and contents start on multiples of four from the start of the archive.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads back names, modes and contents.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * index..14 + 8 * index]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = std::str::from_utf8(&bytes[110..110 + name_size - 1]).unwrap().to_owned();
            let start = (110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((name, mode, bytes[start..start + size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn parents_come_first_and_once() {
        let mut archive = CpioArchive::new();
        archive.file("/a/b/one", 0o644, b"1");
        archive.file("a/b/two", 0o755, b"22222");
        archive.symlink("a/three", "b/one");
        let read = entries(&archive.finish());
        let names: Vec<&str> = read.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/two", "a/three"]);
        assert_eq!(read[0].1, 0o040_755);
        assert_eq!((read[3].1, read[3].2.as_slice()), (0o100_755, b"22222".as_slice()));
        assert_eq!((read[4].1, read[4].2.as_slice()), (0o120_777, b"b/one".as_slice()));
    }
}
