//! Which programs are told that data written to a disk mounted through FUSE is lost, and which count as its users.
//!
//! Needs root and FUSE. Without them every test says so and passes; with `FARBUS_REQUIRE_RIG=1` it fails instead.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farbus_io_linux::frontend::fuse::DiskMount;
use farbus_model::block::MemoryStore;
use farbus_model::{BlockStore, StoreDevice, StoreError};

#[test]
fn each_open_file_is_told_of_a_loss_once_even_after_another_closed() {
    let Some((mount, loses)) = mounted() else { return };
    let open = || File::options().read(true).write(true).open(mount.file()).unwrap();
    let [first, second, third] = [open(), open(), open()];
    third.write_all_at(&[1; 4096], 0).unwrap();
    loses.store(true, Ordering::Release);
    // Its close flushes, and finds the loss. The answer to RELEASE reaches no program, so it must not consume the
    // report.
    drop(third);
    for (file, who) in [(&first, "first"), (&second, "second")] {
        file.sync_all().expect_err(who);
        file.sync_all().expect(who);
    }
    let late = open();
    late.sync_all().expect("a program that opens it after the loss was told has lost nothing");
}

#[test]
fn unreported_loss_is_told_to_the_next_open_of_the_file() {
    let Some((mount, loses)) = mounted() else { return };
    let open = || File::options().read(true).write(true).open(mount.file()).unwrap();
    let writer = open();
    writer.write_all_at(&[1; 4096], 0).unwrap();
    loses.store(true, Ordering::Release);
    // Like a program that ignores the result of `close`.
    drop(writer);
    let next = open();
    assert!(next.sync_all().is_err());
    next.sync_all().unwrap();
}

#[test]
fn each_open_of_the_file_counts_until_its_last_descriptor_is_closed() {
    let Some((mount, _)) = mounted() else { return };
    assert_eq!(mount.open_count(), 0);
    let first = File::open(mount.file()).unwrap();
    let again = first.try_clone().unwrap();
    let second = File::options().write(true).open(mount.file()).unwrap();
    assert_eq!(mount.open_count(), 2);
    drop(first);
    assert_eq!(mount.open_count(), 2, "a descriptor of it is left");
    drop(again);
    drop(second);
    // RELEASE comes after `close` has returned.
    let until = Instant::now() + Duration::from_secs(5);
    while mount.open_count() > 0 {
        assert!(Instant::now() < until, "{} are open", mount.open_count());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A store whose next flush fails once.
struct Forgetful {
    inner: MemoryStore,
    loses: Arc<AtomicBool>,
}

impl BlockStore for Forgetful {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.inner.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.inner.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.loses.swap(false, Ordering::AcqRel) { Err(StoreError::Lost) } else { Ok(()) }
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.inner.write_zeroes(offset, len)
    }
}

/// A mounted disk, in a folder that is removed with it.
struct Mounted(Option<DiskMount>, PathBuf);

impl std::ops::Deref for Mounted {
    type Target = DiskMount;

    fn deref(&self) -> &DiskMount {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.0.take());
        let _ = fs::remove_dir_all(&self.1);
    }
}

/// A disk, and a switch that makes it lose written data.
fn mounted() -> Option<(Mounted, Arc<AtomicBool>)> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        assert!(std::env::var_os("FARBUS_REQUIRE_RIG").is_none_or(|v| v != "1"), "it needs root and /dev/fuse");
        let _ = writeln!(std::io::stderr(), "SKIP: it needs root and /dev/fuse");
        return None;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("farbus-fuse-handles-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).unwrap();
    let loses = Arc::<AtomicBool>::default();
    let store = Forgetful { inner: MemoryStore::new(vec![0; 1 << 20]), loses: Arc::clone(&loses) };
    let mount = DiskMount::mount(&folder.join("at"), "disk", StoreDevice::new(store)).unwrap();
    Some((Mounted(Some(mount), folder), loses))
}
