//! Disk images on the host: made, filled, checked and read back without mounting, hence without privileges.

use crate::tool::which;
use crate::{Result, RigError, tool};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file in a tree's root that lists its files' checksums, in the format that `sha256sum -c` reads.
pub const MANIFEST: &str = "MANIFEST";

/// Makes a file of this length; no space is used until it is written to.
pub fn sparse(path: &Path, bytes: u64) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(bytes))
        .map_err(RigError::io(format!("create {} of {bytes} bytes", path.display())))
}

/// Makes a file in which every byte depends on its offset, so that a misplaced block is noticed.
pub fn noise(path: &Path, bytes: usize) -> Result<()> {
    fs::write(path, NoiseGenerator::new(bytes as u64).take(bytes))
        .map_err(RigError::io(format!("write {}", path.display())))
}

/// Makes a file tree in `folder`: sizes around the borders of blocks and pages, depth, many small files, and a manifest
/// of it all.
pub fn tree(folder: &Path) -> Result<()> {
    let mut noise = NoiseGenerator::new(20);
    let sizes = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65_536, 131_073, 1 << 20, (3 << 20) + 7];
    for (index, size) in sizes.into_iter().enumerate() {
        put(&folder.join(format!("sizes/{size}")), &noise.take(size))?;
        put(&folder.join(format!("deep/{}/leaf", vec![format!("d{index}"); index + 1].join("/"))), &noise.take(100))?;
    }
    for index in 0..60 {
        put(&folder.join(format!("many/file-{index:03}")), &noise.take(37 * index))?;
    }
    let list = tool::output(
        Command::new("sh").current_dir(folder).args(["-c", "find . -type f | sort | xargs -d '\\n' sha256sum"]),
    )?;
    put(&folder.join(MANIFEST), &list)
}

/// A tree for a device without folders: a few files.
pub fn few_files(folder: &Path) -> Result<()> {
    let mut noise = NoiseGenerator::new(21);
    for size in [1, 511, 512, 4097, 65_536, 1_000_000] {
        put(&folder.join(format!("of-{size}.bin")), &noise.take(size))?;
    }
    let list = tool::output(Command::new("sh").current_dir(folder).args(["-c", "sha256sum *.bin"]))?;
    put(&folder.join(MANIFEST), &list)
}

/// Checks a tree against its manifest; returns the number of files.
pub fn verify_tree(folder: &Path) -> Result<usize> {
    let manifest = folder.join(MANIFEST);
    let list = fs::read_to_string(&manifest).map_err(RigError::io(format!("read {}", manifest.display())))?;
    tool::output(Command::new("sha256sum").current_dir(folder).args(["--check", "--quiet", "--strict", MANIFEST]))?;
    Ok(list.lines().count())
}

/// Makes an image with an ext4 file system that holds the tree.
pub fn ext4(image: &Path, bytes: u64, tree: &Path) -> Result<()> {
    sparse(image, bytes)?;
    tool::output(host("mkfs.ext4").args(["-q", "-F", "-d"]).arg(tree).arg(image)).map(drop)
}

/// Makes the image of a disc (ISO 9660 with Rock Ridge names) that holds the tree.
pub fn disc(image: &Path, tree: &Path) -> Result<()> {
    tool::output(host("genisoimage").args(["-quiet", "-R", "-o"]).arg(image).arg(tree)).map(drop)
}

/// A full check that changes nothing; anything to repair is a failure.
pub fn fsck(image: &Path) -> Result<()> {
    tool::output(host("e2fsck").args(["-f", "-n"]).arg(image)).map(drop)
}

/// Copies one folder out of an image's file system.
pub fn extract(image: &Path, inside: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(RigError::io(format!("create {}", to.display())))?;
    tool::output(host("debugfs").args(["-R", &format!("rdump {inside} {}", to.display())]).arg(image)).map(drop)
}

/// The checksum of a whole file, as `sha256sum` writes it.
pub fn sha256(path: &Path) -> Result<String> {
    let line = tool::text(Command::new("sha256sum").arg(path))?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}

fn host(name: &str) -> Command {
    Command::new(which(name).unwrap_or_else(|| PathBuf::from(name)))
}

fn put(path: &Path, contents: &[u8]) -> Result<()> {
    let folder = path.parent().expect("a file is in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| File::create(path)?.write_all(contents))
        .map_err(RigError::io(format!("write {}", path.display())))
}

/// Bytes that look random and are the same every time (xorshift64*).
struct NoiseGenerator(u64);

impl NoiseGenerator {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes + 8);
        while out.len() < bytes {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            out.extend_from_slice(&self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
        out.truncate(bytes);
        out
    }
}

/// The first sectors of a disk of so many, with a partition from `first` to its end (UEFI 2.10, 5.3). Its copy at the
/// end of the disk is missing, which Linux permits.
pub fn partition_table(sectors: u64, first: u64) -> Vec<u8> {
    const SECTOR: usize = 512;
    const ENTRIES: usize = 128;
    const ENTRY_BYTES: usize = 128;
    let (header, entries) = (SECTOR, 2 * SECTOR);
    let usable_first = 2 + (ENTRIES * ENTRY_BYTES / SECTOR) as u64;
    let usable_last = sectors - usable_first;
    let mut table = vec![0; usable_first as usize * SECTOR];
    let mut put = |at: usize, bytes: &[u8]| table[at..at + bytes.len()].copy_from_slice(bytes);
    // The protective record: a partition of type 0xee from sector 1 to the end.
    put(0x1be + 4, &[0xee]);
    put(0x1be + 8, &1u32.to_le_bytes());
    put(0x1be + 12, &(sectors as u32 - 1).to_le_bytes());
    put(0x1fe, &[0x55, 0xaa]);
    // A Linux file system, with a number of its own.
    put(entries, &[0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]);
    put(entries + 16, b"a partition's id");
    put(entries + 32, &first.to_le_bytes());
    put(entries + 40, &usable_last.to_le_bytes());
    put(header, b"EFI PART");
    put(header + 8, &0x0001_0000u32.to_le_bytes());
    put(header + 12, &92u32.to_le_bytes());
    put(header + 24, &1u64.to_le_bytes());
    put(header + 32, &(sectors - 1).to_le_bytes());
    put(header + 40, &usable_first.to_le_bytes());
    put(header + 48, &usable_last.to_le_bytes());
    put(header + 56, b"this disk's guid");
    put(header + 72, &2u64.to_le_bytes());
    put(header + 80, &(ENTRIES as u32).to_le_bytes());
    put(header + 84, &(ENTRY_BYTES as u32).to_le_bytes());
    let of_entries = crc32(&table[entries..]);
    table[header + 88..header + 92].copy_from_slice(&of_entries.to_le_bytes());
    let of_header = crc32(&table[header..header + 92]);
    table[header + 16..header + 20].copy_from_slice(&of_header.to_le_bytes());
    table
}

/// The checksum of Ethernet and zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_into_an_image_and_comes_back() {
        let folder = std::env::temp_dir().join(format!("farbus-rig-tree-{}", std::process::id()));
        let (tree_in, image, out) = (folder.join("t"), folder.join("i"), folder.join("o"));
        tree(&tree_in).unwrap();
        assert_eq!(verify_tree(&tree_in).unwrap(), 12 + 12 + 60);
        if which("mkfs.ext4").is_some() && which("debugfs").is_some() {
            ext4(&image, 32 << 20, &tree_in).unwrap();
            fsck(&image).unwrap();
            extract(&image, "/", &out).unwrap();
            verify_tree(&out).unwrap();
        }
        fs::write(tree_in.join("many/file-007"), b"other").unwrap();
        assert!(verify_tree(&tree_in).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_partition_table_has_the_checksums_of_what_it_says() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let table = partition_table(16384, 2048);
        assert_eq!(table.len(), 34 * 512);
        assert_eq!(&table[512..520], b"EFI PART");
        assert_eq!(table[600..604], crc32(&table[1024..]).to_le_bytes());
        let mut header = table[512..604].to_vec();
        let bytes = header.splice(16..20, [0; 4]).collect::<Vec<u8>>();
        assert_eq!(bytes, crc32(&header).to_le_bytes());
    }
}
