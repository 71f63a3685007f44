//! The evidence of a block device, from sysfs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, fstat, major, minor};

use super::file;
use super::text::{DeviceEvidence, hex};
use crate::sys::file_handle::loop_backing;

/// How many layers are followed: a partition's disk, a loop device's backing file, and so on.
const DEPTH_MAX: u32 = 4;
/// The attributes that identify a disk: WWN, serial number, a card's own id, an array's UUID. The first that exists is
/// used.
const NAMES: [(&str, &str); 7] = [
    ("wwid", "wwid"),
    ("device/wwid", "wwid"),
    ("md/uuid", "md"),
    ("device/cid", "cid"),
    ("serial", "serial"),
    ("device/serial", "serial"),
    ("device/nguid", "nguid"),
];

/// The evidence of the block device with this number, on the system whose root is `root`.
pub fn of(root: &Path, number: u64, open: Option<BorrowedFd<'_>>) -> io::Result<DeviceEvidence> {
    looked_at(root, number, open, DEPTH_MAX)
}

/// The kernel's number of the attachment of the block device with this number, or of the partition's disk (Linux 5.15:
/// `diskseq`). `None` if there is no such device, or the kernel does not number it.
pub fn sequence(root: &Path, number: u64) -> Option<u64> {
    let (major, minor) = (major(number), minor(number));
    let folder = fs::canonicalize(root.join(format!("sys/dev/block/{major}:{minor}"))).ok()?;
    let disk = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    text(disk, "diskseq")?.parse().ok()
}

fn looked_at(root: &Path, number: u64, open: Option<BorrowedFd<'_>>, depth: u32) -> io::Result<DeviceEvidence> {
    let (major, minor) = (major(number), minor(number));
    let folder = fs::canonicalize(root.join(format!("sys/dev/block/{major}:{minor}")));
    let stable = match &folder {
        Ok(folder) if depth > 0 => lasting(root, folder, open, depth),
        _ => None,
    };
    // Device numbers are reused while the machine runs; this one is not (Linux 5.15).
    let sequence = folder.ok().and_then(|folder| text(&folder, "diskseq")).unwrap_or_default();
    Ok(stable.unwrap_or_else(|| DeviceEvidence::passing(&format!("block device={major}:{minor} sequence={sequence}"))))
}

fn lasting(root: &Path, folder: &Path, open: Option<BorrowedFd<'_>>, depth: u32) -> Option<DeviceEvidence> {
    let sectors = text(folder, "size")?;
    if let Some(uuid) = text(folder, "dm/uuid") {
        return Some(DeviceEvidence::stable(&format!("dm uuid={uuid} sectors={sectors}")));
    }
    if folder.join("partition").exists() {
        return partition(root, folder, &sectors, depth);
    }
    if let Some(path) = text(folder, "loop/backing_file") {
        let part = ["offset", "sizelimit"].map(|name| text(folder, &format!("loop/{name}")).unwrap_or_default());
        let backing = backing_file(root, folder, Path::new(&path), open, depth)?;
        let description = format!("loop offset={} limit={} of {}", part[0], part[1], backing.text);
        return backing.is_stable.then(|| DeviceEvidence::stable(&description));
    }
    // A card reader has a serial number of its own, whatever card is in it; a card that is itself a device has one,
    // too.
    let is_removable = text(folder, "removable").is_some_and(|word| word == "1");
    let (name, value) = NAMES
        .iter()
        .filter(|(_, name)| !is_removable || *name == "cid")
        .find_map(|(file, name)| Some((name, text(folder, file).filter(|value| is_telling(value))?)))?;
    let words: Vec<_> = value.split_whitespace().collect();
    Some(DeviceEvidence::stable(&format!("disk {name}={} sectors={sectors}", words.join("_"))))
}

/// Whether a serial number identifies anything.
fn is_telling(value: &str) -> bool {
    value.bytes().any(|byte| !matches!(byte, b'0' | b' ' | b'-' | b'.'))
}

fn partition(root: &Path, folder: &Path, sectors: &str, depth: u32) -> Option<DeviceEvidence> {
    let disk = folder.parent()?;
    let start = text(folder, "start")?;
    let number = device_number(disk).map(|number| looked_at(root, number, None, depth - 1))?.ok()?;
    let of_disk = if number.is_stable { format!(" of {}", number.text) } else { String::new() };
    let guid = uevent(folder, "PARTUUID").or_else(|| {
        let table = open_node(root, disk)?;
        gpt_guid(table, text(folder, "partition")?.parse().ok()?, logical_block(disk))
    });
    if guid.is_none() && !number.is_stable {
        return None;
    }
    let guid = guid.unwrap_or_default().to_ascii_lowercase();
    Some(DeviceEvidence::stable(&format!("partition guid={guid} start={start} sectors={sectors}{of_disk}")))
}

fn logical_block(disk: &Path) -> u64 {
    text(disk, "queue/logical_block_size").and_then(|size| size.parse().ok()).unwrap_or(512)
}

/// The evidence of a loop device's backing file, if the path still leads to that file.
fn backing_file(
    root: &Path,
    folder: &Path,
    path: &Path,
    open: Option<BorrowedFd<'_>>,
    depth: u32,
) -> Option<DeviceEvidence> {
    let node;
    let device = match open {
        Some(device) => device,
        None => {
            node = open_node(root, folder)?;
            node.as_fd()
        }
    };
    let (device_number, inode) = loop_backing(device)?;
    let backing = OpenOptions::new().read(true).open(path).ok()?;
    let about = fstat(&backing).ok()?;
    if FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice {
        return looked_at(root, about.st_rdev, Some(backing.as_fd()), depth - 1).ok();
    }
    // The path may lead to another file by now.
    let is_it = about.st_ino == inode && is_same_device(&backing, about.st_dev, device_number);
    is_it.then(|| file::of(backing.as_fd()).ok()).flatten()
}

/// Compares device numbers: the kernel uses its own encoding (`huge_encode_dev`), stat that of the C library.
fn is_same_device(backing: &File, of_stat: u64, of_loop: u64) -> bool {
    let huge =
        u64::from(minor(of_stat) & 0xff) | u64::from(major(of_stat)) << 8 | u64::from(minor(of_stat) & !0xff) << 12;
    // btrfs gives stat another number than its super block's.
    of_loop == huge || backing.metadata().is_ok_and(|about| about.dev() == of_loop)
}

fn text(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn uevent(folder: &Path, key: &str) -> Option<String> {
    let lines = text(folder, "uevent")?;
    lines.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
}

/// The number of the device with this folder in sysfs.
fn device_number(folder: &Path) -> Option<u64> {
    let (major, minor) = text(folder, "dev").and_then(|dev| {
        let (major, minor) = dev.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })?;
    Some(rustix::fs::makedev(major, minor))
}

/// Opens a device by its folder in sysfs, for reading.
fn open_node(root: &Path, folder: &Path) -> Option<File> {
    let file = File::open(root.join("dev").join(uevent(folder, "DEVNAME")?)).ok()?;
    let about = fstat(&file).ok()?;
    let is_it =
        FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice && Some(about.st_rdev) == device_number(folder);
    is_it.then_some(file)
}

/// The unique GUID of partition `number` (from 1), from a disk's GUID partition table (UEFI 2.10 §5.3).
fn gpt_guid(mut disk: impl Read + Seek, number: u32, block_bytes: u64) -> Option<String> {
    const ENTRIES_MAX: u32 = 1024;
    let mut header = [0; 92];
    disk.seek(SeekFrom::Start(block_bytes)).ok()?;
    disk.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let entries_at = u64::from_le_bytes(header[72..80].try_into().expect("eight bytes"));
    let (count, entry_bytes) = (word(80), word(84));
    let is_table = &header[..8] == b"EFI PART" && (128..=4096).contains(&entry_bytes) && count <= ENTRIES_MAX;
    if !is_table || !(1..=count).contains(&number) {
        return None;
    }
    let at = entries_at.checked_mul(block_bytes)?.checked_add(u64::from(number - 1) * u64::from(entry_bytes))?;
    let mut entry = [0; 32];
    disk.seek(SeekFrom::Start(at)).ok()?;
    disk.read_exact(&mut entry).ok()?;
    let guid = &entry[16..];
    let swapped = |range: std::ops::Range<usize>| guid[range].iter().rev().copied().collect::<Vec<u8>>();
    let parts = [swapped(0..4), swapped(4..6), swapped(6..8), guid[8..10].to_vec(), guid[10..].to_vec()];
    (guid != [0; 16]).then(|| parts.map(|part| hex(&part)).join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A fake machine, removed when dropped.
    struct Machine(PathBuf);

    impl Machine {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-blocks-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let root = std::env::temp_dir().join(name);
            fs::create_dir_all(root.join("sys/dev/block")).unwrap();
            Self(root)
        }

        fn device(&self, folder: &str, dev: &str, files: &[(&str, &str)]) {
            let folder = self.0.join("sys/devices").join(folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files.iter().chain(&[("dev", dev), ("size", "2048")]) {
                fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
                fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
            symlink(&folder, self.0.join("sys/dev/block").join(dev)).unwrap();
        }

        fn sequence(&self, major: u32, minor: u32) -> Option<u64> {
            sequence(&self.0, rustix::fs::makedev(major, minor))
        }

        fn evidence(&self, major: u32, minor: u32) -> (String, bool) {
            let evidence = of(&self.0, rustix::fs::makedev(major, minor), None).unwrap();
            (evidence.text, evidence.is_stable)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn partition_has_the_attachment_number_of_its_disk_and_a_device_without_one_has_none() {
        let machine = Machine::new();
        machine.device("sda", "8:0", &[("diskseq", "12")]);
        machine.device("sda/sda1", "8:1", &[("partition", "1")]);
        machine.device("old", "8:16", &[]);
        let numbers = [(8, 0), (8, 1), (8, 16), (9, 9)].map(|(major, minor)| machine.sequence(major, minor));
        assert_eq!(numbers, [Some(12), Some(12), None, None]);
    }

    #[test]
    fn block_device_keeps_its_evidence_in_another_port() {
        let machine = Machine::new();
        let stable = |text: &str| (text.to_owned(), true);
        machine.device("dm-0", "253:0", &[("dm/uuid", "LVM-abc")]);
        assert_eq!(machine.evidence(253, 0), stable("dm uuid=LVM-abc sectors=2048"));
        machine.device("sda", "8:0", &[("device/wwid", "t10.ATA   DISK   42"), ("device/serial", "42")]);
        assert_eq!(machine.evidence(8, 0), stable("disk wwid=t10.ATA_DISK_42 sectors=2048"));
        machine.device(
            "sda/sda1",
            "8:1",
            &[("partition", "1"), ("start", "64"), ("uevent", "PARTN=1\nPARTUUID=AA-BB")],
        );
        let of_disk = "of disk wwid=t10.ATA_DISK_42 sectors=2048";
        assert_eq!(machine.evidence(8, 1), stable(&format!("partition guid=aa-bb start=64 sectors=2048 {of_disk}")));
        machine.device("vda", "254:0", &[("serial", "disk-7")]);
        assert_eq!(machine.evidence(254, 0), stable("disk serial=disk-7 sectors=2048"));
        machine.device("mmcblk0", "179:0", &[("device/cid", "0123"), ("removable", "1")]);
        assert_eq!(machine.evidence(179, 0), stable("disk cid=0123 sectors=2048"));
    }

    #[test]
    fn block_device_without_own_ids_has_no_lasting_evidence() {
        let machine = Machine::new();
        let passing = |dev: &str| (format!("block device={dev} sequence=9"), false);
        for (name, dev, minor, files) in [
            ("vdb", "254:16", 16, vec![]),
            ("vdc", "254:32", 32, vec![("serial", "0000-0000")]),
            ("vdd", "254:48", 48, vec![("serial", "reader"), ("removable", "1")]),
            ("vde", "254:64", 64, vec![("dm/uuid", "")]),
        ] {
            machine.device(name, dev, &[files, vec![("diskseq", "9")]].concat());
            assert_eq!(machine.evidence(254, minor), passing(dev), "{name}");
        }
        machine.device("vdb/vdb1", "254:17", &[("partition", "1"), ("start", "64"), ("diskseq", "9")]);
        assert_eq!(machine.evidence(254, 17), passing("254:17"));
        assert_eq!(of(&machine.0, rustix::fs::makedev(1, 1), None).unwrap().text, "block device=1:1 sequence=");
    }

    #[test]
    fn a_partitions_guid_is_read_from_the_table_and_a_broken_table_has_none() {
        let mut disk = vec![0; 4096];
        disk[512..520].copy_from_slice(b"EFI PART");
        disk[512 + 72..][..8].copy_from_slice(&2_u64.to_le_bytes());
        disk[512 + 80..][..4].copy_from_slice(&4_u32.to_le_bytes());
        disk[512 + 84..][..4].copy_from_slice(&128_u32.to_le_bytes());
        let guid: Vec<u8> = (1..=16).collect();
        disk[1024 + 128 + 16..][..16].copy_from_slice(&guid);
        let read = |disk: &[u8], number| gpt_guid(Cursor::new(disk.to_vec()), number, 512);
        assert_eq!(read(&disk, 2).as_deref(), Some("04030201-0605-0807-090a-0b0c0d0e0f10"));
        assert_eq!((read(&disk, 1), read(&disk, 0), read(&disk, 5)), (None, None, None));
        for (at, value) in [(512, 0), (512 + 84, 1), (512 + 82, 255), (512 + 79, 255)] {
            let mut broken = disk.clone();
            broken[at] = value;
            assert_eq!(read(&broken, 2), None, "byte {at}");
        }
        assert_eq!(read(&disk[..1030], 2), None);
    }

    #[test]
    fn loop_device_has_the_evidence_of_its_renamed_backing_file() {
        let folder = std::env::temp_dir().join(format!("farbus-loop-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.img");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let backing = file::of(File::open(&path).unwrap().as_fd()).unwrap();
        let attach = |path: &Path| {
            let output = Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
        };
        let Some(device) = attach(&path) else {
            eprintln!("skipped: no loop device to be had here");
            return;
        };
        let evidence = |device: &str| DeviceEvidence::of_open(File::open(device).unwrap().as_fd()).unwrap();
        let first = evidence(&device);
        fs::rename(&path, folder.join("b.img")).unwrap();
        let renamed = evidence(&device);
        Command::new("losetup").args(["-d", &device]).status().unwrap();
        let again = attach(&folder.join("b.img")).unwrap();
        let later = evidence(&again);
        Command::new("losetup").args(["-d", &again]).status().unwrap();
        fs::remove_dir_all(folder).unwrap();
        assert_eq!(first.text, format!("loop offset=0 limit=0 of {}", backing.text));
        assert_eq!((&renamed, &later, first.is_stable), (&first, &first, backing.is_stable));
    }
}
