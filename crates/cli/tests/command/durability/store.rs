//! A medium that fails on purpose: it forgets what was not flushed when its power is cut, refuses, tears writes, and
//! says that it cannot flush. The exporter meets it as a file, by FUSE: nothing of it is in the product.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus::model::{BlockStore, StoreDevice, StoreError};
use farbus_io_linux::frontend::fuse::DiskMount;

use super::super::harness::{Harness, PATIENCE, wait_until};
use super::model::SECTOR;
use super::random::Random;

/// The size of a medium, at least. A larger file is in one piece on one of four times its size.
const MEDIUM_BYTES: usize = 16 << 20;
/// The block size of the file system on it.
const BLOCK: usize = 4096;

/// How the medium fails now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    Nothing,
    /// Writes are refused with this error.
    Writes(StoreError),
    /// Some sectors of each write are stored, and the write is refused.
    Torn,
    /// Flushes fail, and some of what they cover is lost.
    Flushes,
    /// Writes of the shared file, not of the file system's own data, are refused; the first of them waits for
    /// [`Disk::go_on`].
    Data,
}

/// What the medium holds.
pub struct Medium {
    /// What reads return.
    now: Vec<u8>,
    /// What is left when the power fails.
    durable: Vec<u8>,
    /// The contents of each sector since it was last flushed, in the order of the writes.
    pending: BTreeMap<usize, Vec<Vec<u8>>>,
    failing: Failing,
    is_off: bool,
    random: Random,
    /// Requests that were refused since [`Disk::fail`].
    refused: u64,
    /// Whether a request that is to be refused waits.
    waits: bool,
    /// Where the shared file lies, bytes.
    file: std::ops::Range<usize>,
    /// Writes that a power cut made forgotten, in sectors.
    forgotten: u64,
}

impl Medium {
    fn bytes(sector: usize) -> std::ops::Range<usize> {
        sector * SECTOR..(sector + 1) * SECTOR
    }

    fn check(&mut self) -> Result<(), StoreError> {
        if self.is_off { Err(StoreError::Medium) } else { Ok(()) }
    }

    fn refuse(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.refused += 1;
        Err(error)
    }

    /// Stores bytes that lie in one sector.
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let sector = offset / SECTOR;
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        let content = self.now[Self::bytes(sector)].to_vec();
        self.pending.entry(sector).or_default().push(content);
    }

    /// Settles each sector that was not flushed on one of the contents that it has had since, or on the flushed one:
    /// the drive and the kernel write sectors in any order.
    fn settle(&mut self) {
        for (sector, contents) in std::mem::take(&mut self.pending) {
            let range = Self::bytes(sector);
            match self.random.below(contents.len() as u64 + 1) as usize {
                0 => self.forgotten += 1,
                chosen => self.durable[range.clone()].copy_from_slice(&contents[chosen - 1]),
            }
            let content = self.durable[range.clone()].to_vec();
            self.now[range].copy_from_slice(&content);
        }
    }
}

/// A handle on the medium, for its server and for the test.
#[derive(Clone)]
struct Handle(Arc<Mutex<Medium>>);

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Medium> {
        self.0.lock().unwrap()
    }
}

impl BlockStore for Handle {
    fn size_bytes(&self) -> u64 {
        self.lock().now.len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        let mut medium = self.lock();
        medium.check()?;
        to.copy_from_slice(&medium.now[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        let mut medium = self.lock();
        medium.check()?;
        if let Failing::Writes(error) = medium.failing {
            return medium.refuse(error);
        }
        if medium.failing == Failing::Data && medium.file.contains(&(offset as usize)) {
            let refused = medium.refuse(StoreError::Medium);
            while medium.waits && medium.failing == Failing::Data {
                drop(medium);
                // waits: between two looks whether the medium still fails
                thread::sleep(Duration::from_millis(1));
                medium = self.lock();
            }
            return refused;
        }
        let (mut offset, mut from) = (offset as usize, from);
        while !from.is_empty() {
            let (piece, rest) = from.split_at(from.len().min(SECTOR - offset % SECTOR));
            if medium.failing != Failing::Torn || medium.random.below(2) == 0 {
                medium.store(offset, piece);
            }
            (offset, from) = (offset + piece.len(), rest);
        }
        if medium.failing == Failing::Torn { medium.refuse(StoreError::Medium) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let mut medium = self.lock();
        medium.check()?;
        if medium.failing == Failing::Flushes && !medium.pending.is_empty() {
            medium.settle();
            return medium.refuse(StoreError::Medium);
        }
        for (sector, contents) in std::mem::take(&mut medium.pending) {
            let last = contents.last().expect("each entry has one");
            medium.durable[Medium::bytes(sector)].copy_from_slice(last);
        }
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write_zeroes(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write_at(offset, &vec![0; len as usize])
    }
}

/// The medium with an ext4 file system on it, and in that the file that an exporter shares. The kernel's cache and its
/// order of writes are real; what it has written and not flushed is the medium's to forget.
pub struct Disk {
    medium: Handle,
    mount: DiskMount,
    /// The loop device on the medium, while it is up.
    device: Option<String>,
    /// Where the file system is mounted.
    at: PathBuf,
    /// The medium's sector where the file begins.
    first: usize,
}

impl Disk {
    /// Makes a disk with a file of so many bytes.
    pub fn new(harness: &Harness, number: usize, bytes: usize, seed: u64) -> Self {
        let size = MEDIUM_BYTES.max(4 * bytes);
        let medium = Medium {
            now: vec![0; size],
            durable: vec![0; size],
            pending: BTreeMap::new(),
            failing: Failing::Nothing,
            is_off: false,
            random: Random::new(seed),
            refused: 0,
            waits: false,
            file: 0..0,
            forgotten: 0,
        };
        let medium = Handle(Arc::new(Mutex::new(medium)));
        let served = StoreDevice::new(medium.clone());
        let mount = DiskMount::mount(&harness.path(&format!("medium{number}")), "medium", served).unwrap();
        let at = harness.path(&format!("disk{number}"));
        fs::create_dir_all(&at).unwrap();
        let mut disk = Self { medium, mount, device: None, at, first: 0 };
        // Without checksums: the superblock has two sectors, of which one may be old, and this small one has no copy.
        let words = "-q -F -b 4096 -J size=4 -O ^metadata_csum".split_whitespace();
        let words: Vec<&str> = words.chain(disk.mount.file().to_str()).collect();
        run("mkfs.ext4", &words, &[0]);
        disk.bring_up();
        fs::write(disk.file(), vec![0; bytes]).unwrap();
        File::open(disk.file()).unwrap().sync_all().unwrap();
        disk.first = first_block(&disk.file(), bytes / BLOCK) * BLOCK / SECTOR;
        disk.medium.lock().file = disk.first * SECTOR..disk.first * SECTOR + bytes;
        disk
    }

    /// The file that is shared.
    pub fn file(&self) -> PathBuf {
        self.at.join("disk.img")
    }

    /// A view of the file from this sector on, for the checker.
    pub fn view_from(&self, first: usize) -> View {
        View { medium: self.medium.clone(), first: self.first + first }
    }

    /// Makes the medium fail so from now on.
    pub fn fail(&self, failing: Failing) {
        let mut medium = self.medium.lock();
        (medium.failing, medium.refused, medium.waits) = (failing, 0, failing == Failing::Data);
    }

    /// Refuses what waits to be refused.
    pub fn go_on(&self) {
        self.medium.lock().waits = false;
    }

    /// Requests that were refused since it began to fail.
    pub fn refused(&self) -> u64 {
        self.medium.lock().refused
    }

    /// Cuts the power. Each sector that was not flushed has one of its contents since the last flush, or that of the
    /// flush. Everything fails until [`Disk::power_on`].
    pub fn power_off(&self) {
        let mut medium = self.medium.lock();
        medium.settle();
        medium.is_off = true;
    }

    /// Powers the medium again.
    pub fn power_on(&self) {
        self.medium.lock().is_off = false;
    }

    /// Removes the file system, as far as the medium permits, and what the kernel has of it. No process may use it.
    pub fn take_down(&mut self) {
        let Some(device) = self.device.take() else { return };
        let file = file_of(&device);
        wait_until(PATIENCE, "it is unmounted", || is_done("umount", &[self.at.to_str().unwrap()]));
        // The device may be on another file by then: that of the database, which looks for a free one.
        let is_ours = || file_of(&device) == file;
        wait_until(PATIENCE, "its loop device is free", || !is_ours() || is_done("losetup", &["-d", &device]));
        wait_until(PATIENCE, "its loop device is free", || !is_ours());
        let file = File::open(self.mount.file()).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }

    /// Repairs the file system, as far as that is needed, and mounts it.
    pub fn bring_up(&mut self) {
        let medium = self.mount.file().to_str().unwrap().to_owned();
        let device = run("losetup", &["--find", "--show", "--direct-io=on", &medium], &[0]);
        // 1: errors were corrected.
        run("e2fsck", &["-fy", &device], &[0, 1]);
        run("mount", &["-t", "ext4", "-o", "noatime,errors=remount-ro", &device, self.at.to_str().unwrap()], &[0]);
        // While it is mounted this says that it goes with its mount: nothing of it is left if the test is killed.
        run("losetup", &["-d", &device], &[0]);
        self.device = Some(device);
    }

    /// Sectors with writes that power cuts and failed flushes made forgotten.
    pub fn forgotten(&self) -> u64 {
        self.medium.lock().forgotten
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            is_done("umount", &["-l", self.at.to_str().unwrap()]);
            is_done("losetup", &["-d", &device]);
        }
    }
}

/// Held by those who make a loop device over an attached disk, and by those who take its exporter away and make loop
/// devices for what that exporter shares.
///
/// Before a loop device is in use Linux flushes the file below it (6.14 and later, `loop_configure`). Until the
/// exporter of that file answers, the device counts as free: everything on this machine that asks for a free one is
/// given its number, and waits. An exporter whose own disk has to have one would never start.
pub fn while_no_loop_device_is_made() -> MutexGuard<'static, ()> {
    static MADE: Mutex<()> = Mutex::new(());
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program, which has to end with one of these codes; returns what it printed.
pub fn run(program: &str, arguments: &[&str], codes: &[i32]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let is_well = output.status.code().is_some_and(|code| codes.contains(&code));
    assert!(is_well, "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn is_done(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().unwrap().status.success()
}

/// The file that a loop device is on, by device and inode number; nothing if it is on none. A path changes when what it
/// is on is unmounted.
pub fn file_of(device: &str) -> String {
    let output =
        Command::new("losetup").args(["--noheadings", "-O", "BACK-MAJ:MIN,BACK-INO", device]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The block of the medium where a file begins, which has to be in one piece of `blocks` blocks.
fn first_block(file: &Path, blocks: usize) -> usize {
    let message = run("filefrag", &["-v", file.to_str().unwrap()], &[0]);
    let line = message.lines().find(|line| line.trim_start().starts_with("0:")).expect("it has a first extent");
    let numbers: Vec<usize> =
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    // The extent's number; its first and last block in the file; the same on the medium; its length.
    assert_eq!(numbers[2] + 1, blocks, "the file is in one piece: {message}");
    numbers[3]
}

/// Looks at what is durable on a part of a medium.
pub struct View {
    medium: Handle,
    first: usize,
}

impl View {
    pub fn durable(&self, sector: u64) -> Vec<u8> {
        self.medium.lock().durable[Medium::bytes(self.first + sector as usize)].to_vec()
    }
}
