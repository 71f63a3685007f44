//! The demo's disk image: a file system with known files, followed by spare space with a known pattern.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use farbus_control::units::format_bytes;

use super::super::CommandFailure;
use super::stage::{DemoFolder, DemoReporter};
use super::tool::{self, SystemTool};

/// The size of the file system; it has room for [`FILES`] and a journal.
const FILE_SYSTEM_BYTES: u64 = 48 << 20;
/// The size of the spare space behind it, which the demo overwrites.
pub const TAIL_BYTES: u64 = 16 << 20;
/// How much is compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The files on it, and their sizes: empty, less than a sector, odd, and too large for one command.
const FILES: [(&str, usize); 7] = [
    ("empty.txt", 0),
    ("letters/one-byte.txt", 1),
    ("letters/postcard.txt", 1_483),
    ("photos/lake.raw", 3_145_728),
    ("photos/mountain.raw", 5_000_001),
    ("photos/window.raw", 777_777),
    ("sound/rain.pcm", 10_584_000),
];

/// A disk image and its contents.
pub struct DemoImage {
    /// The image file.
    pub path: PathBuf,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Where its spare space begins, bytes.
    pub tail_offset: u64,
    /// Whether its file system already contains [`FILES`].
    pub is_populated: bool,
    file_system: FileSystem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystem {
    Ext4,
    Fat,
    /// No file system: a pattern instead.
    None,
}

impl DemoImage {
    /// Creates it, with the best file system for which this machine has a program.
    pub fn make(scratch: &DemoFolder, stage: &mut DemoReporter) -> Result<Self, CommandFailure> {
        stage.doing("make")?;
        let path = scratch.path("demo.img");
        let (tail_offset, size_bytes) = (FILE_SYSTEM_BYTES, FILE_SYSTEM_BYTES + TAIL_BYTES);
        let mut image = Self { path, size_bytes, tail_offset, is_populated: false, file_system: FileSystem::None };
        let file = File::create_new(&image.path).map_err(CommandFailure::local)?;
        file.set_len(size_bytes).map_err(CommandFailure::local)?;
        if let Some(mkfs) = SystemTool::find("mkfs.ext4") {
            image.make_ext4(&mkfs, scratch).map_err(CommandFailure::local)?;
        } else if let Some(mkfs) = SystemTool::find("mkfs.vfat") {
            image.make_fat(&mkfs).map_err(CommandFailure::local)?;
        } else {
            stage.reduce("there is no mkfs.ext4 or mkfs.vfat here: the disk holds a pattern, no files".into());
            write_pattern(&file, FILE_SYSTEM_BYTES).map_err(CommandFailure::local)?;
        }
        stage.done("make", image.sentence());
        Ok(image)
    }

    fn sentence(&self) -> String {
        let size = format_bytes(self.size_bytes);
        let files = || {
            let bytes: usize = FILES.iter().map(|(_, bytes)| bytes).sum();
            format!("{} files, {}", FILES.len(), format_bytes(bytes as u64))
        };
        match self.file_system {
            FileSystem::Ext4 => format!("a disk image of {size} with an ext4 file system: {}", files()),
            FileSystem::Fat => format!("a disk image of {size} with an empty FAT file system"),
            FileSystem::None => format!("a disk image of {size} with a known pattern"),
        }
    }

    /// `mkfs.ext4` fills the file system as it makes it, which needs no privilege.
    fn make_ext4(&mut self, mkfs: &SystemTool, scratch: &DemoFolder) -> Result<(), String> {
        let files = scratch.path("files");
        self.grow_tree(&files).map_err(|error| error.to_string())?;
        let (files, path) = (files.display().to_string(), self.path.display().to_string());
        let size = format!("{}k", FILE_SYSTEM_BYTES >> 10);
        // Complete at once: background work of the kernel would distort the demo.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        mkfs.run(["-q", "-F", "-b", "4096", "-E", options, "-L", "farbus-demo", "-d", &files, &path, &size])?;
        (self.file_system, self.is_populated) = (FileSystem::Ext4, true);
        Ok(())
    }

    fn make_fat(&mut self, mkfs: &SystemTool) -> Result<(), String> {
        let (path, size) = (self.path.display().to_string(), (FILE_SYSTEM_BYTES >> 10).to_string());
        mkfs.run(["-n", "FARBUS", &path, &size])?;
        self.file_system = FileSystem::Fat;
        Ok(())
    }

    /// Whether it has a file system to mount.
    pub fn has_file_system(&self) -> bool {
        self.file_system != FileSystem::None
    }

    /// Creates [`FILES`] in a folder.
    pub fn grow_tree(&self, folder: &Path) -> std::io::Result<()> {
        for (name, bytes) in FILES {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, content(name, bytes))?;
        }
        Ok(())
    }

    /// Compares [`FILES`] in a folder with their original content.
    pub fn compare_with_tree(
        &self,
        folder: &Path,
        step: &'static str,
        stage: &DemoReporter,
    ) -> Result<(), CommandFailure> {
        stage.doing(step)?;
        let mut total = 0;
        for (name, bytes) in FILES {
            stage.check()?;
            let found =
                fs::read(folder.join(name)).map_err(|error| CommandFailure::local(format!("{name}: {error}")))?;
            if found != content(name, bytes) {
                return Err(CommandFailure::local(format!("{name} came back different")));
            }
            total += bytes as u64;
        }
        let (count, total) = (FILES.len(), format_bytes(total));
        stage.done(step, format!("{count} files, {total}: every byte is right"));
        Ok(())
    }

    /// Copies [`FILES`] out of the disk's file without mounting it; `None` if no program can.
    pub fn extract(
        &self,
        disk: &Path,
        scratch: &DemoFolder,
        stage: &DemoReporter,
    ) -> Result<Option<PathBuf>, CommandFailure> {
        let Some(debugfs) = SystemTool::find("debugfs").filter(|_| self.file_system == FileSystem::Ext4) else {
            return Ok(None);
        };
        stage.doing("copy")?;
        let folder = scratch.path("extracted");
        for (name, _) in FILES {
            stage.check()?;
            let to = folder.join(name);
            fs::create_dir_all(to.parent().unwrap_or(&folder)).map_err(CommandFailure::local)?;
            let order = format!("dump \"/{name}\" \"{}\"", to.display());
            debugfs.run(["-R".as_ref(), order.as_ref(), disk.as_os_str()]).map_err(CommandFailure::local)?;
        }
        stage.done("copy", "debugfs took the files out of the disk's file");
        Ok(Some(folder))
    }

    /// Compares every byte of the disk, which `read` reads, with the image.
    pub fn compare(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), CommandFailure>,
        stage: &DemoReporter,
    ) -> Result<(), CommandFailure> {
        stage.doing("read")?;
        let image = File::open(&self.path).map_err(CommandFailure::local)?;
        self.compare_from(0, stage, |offset, expected, found| {
            image.read_exact_at(expected, offset).map_err(CommandFailure::local)?;
            read(offset, found)
        })
    }

    /// Compares the spare space of the image with the pattern.
    pub fn compare_tail(&self, stage: &DemoReporter) -> Result<(), CommandFailure> {
        let image = File::open(&self.path).map_err(CommandFailure::local)?;
        self.compare_from(self.tail_offset, stage, |offset, expected, found| {
            fill(offset, expected);
            image.read_exact_at(found, offset).map_err(CommandFailure::local)
        })
    }

    fn compare_from(
        &self,
        start: u64,
        stage: &DemoReporter,
        mut read_both: impl FnMut(u64, &mut [u8], &mut [u8]) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let (mut expected, mut found) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        for offset in (start..self.size_bytes).step_by(CHUNK_BYTES) {
            stage.check()?;
            read_both(offset, &mut expected, &mut found)?;
            if expected != found {
                return Err(CommandFailure::local(format!("the disk came back different behind byte {offset}")));
            }
        }
        Ok(())
    }

    /// Checks the file system; returns the program that did it, if there is one.
    pub fn fsck(&self) -> Result<Option<&'static str>, CommandFailure> {
        let (program, options) = match self.file_system {
            FileSystem::Ext4 => ("e2fsck", "-fn"),
            FileSystem::Fat => ("fsck.fat", "-n"),
            FileSystem::None => return Ok(None),
        };
        if SystemTool::find(program).is_none() {
            return Ok(None);
        }
        tool::run(program, [options.as_ref(), self.path.as_os_str()])
            .map_err(|why| CommandFailure::local(format!("the image's file system is damaged: {why}")))?;
        Ok(Some(program))
    }
}

/// The content of the file of this name.
fn content(name: &str, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    fill(name.len() as u64 * 0x1_0001 + bytes as u64, &mut content);
    content
}

fn write_pattern(file: &File, bytes: u64) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        fill(offset, &mut chunk);
        file.write_all_at(&chunk, offset)?;
    }
    Ok(())
}

/// Fills `to` with bytes that look random and depend only on their position, in steps of eight (SplitMix64).
pub fn fill(start: u64, to: &mut [u8]) {
    for (at, chunk) in to.chunks_mut(8).enumerate() {
        let mut z = (start.wrapping_add(at as u64 * 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(z ^ z >> 31).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_in_whatever_pieces_it_is_made() {
        let (mut whole, mut pieces) = (vec![0; 4096], vec![0; 4096]);
        fill(8192, &mut whole);
        for (at, piece) in pieces.chunks_mut(512).enumerate() {
            fill(8192 + at as u64 * 512, piece);
        }
        assert_eq!(whole, pieces);
        assert_ne!(content("a", 64), content("ab", 64));
    }
}
