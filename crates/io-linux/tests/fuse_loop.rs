//! A disk mounted through FUSE, used as people use it: through a loop device, by a file system, by `fio`, by programs
//! that keep it open, and after its store is gone.
//!
//! Needs root, FUSE, loop devices and a few programs. Without them every test says so and passes;
//! with `FARBUS_REQUIRE_RIG=1` it fails instead.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farbus_io_linux::frontend::fuse::{DiskMount, MountError, MountHealth, UnmountOutcome};
use farbus_io_linux::store::{FileStore, FileStoreProblem};
use farbus_model::block::MemoryStore;
use farbus_model::{BlockStore, StoreDevice, StoreError};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
/// How long an operation may take that should take no time, on a machine that is busy or stalls.
const PATIENCE: Duration = Duration::from_secs(60);
const CLEAN: UnmountOutcome = UnmountOutcome { in_use: false, flushed: Ok(()) };

// ---- ext4 over loop over FUSE over a store ----

#[test]
fn ext4_on_a_loop_device_keeps_every_file_buffered_and_direct() {
    let Some(scratch) = rig(&["losetup", "mkfs.ext4", "fsck.ext4", "mount", "umount"]) else { return };
    for direct in [false, true] {
        let image = scratch.file_of_size("image", 256 * MIB);
        let store = FileStore::open(&image, false).unwrap();
        let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();

        let device = Loop::over(disk.file(), direct);
        assert_eq!(device.is_direct(), direct, "the kernel agreed to the way of access");
        run("mkfs.ext4", &["-q", "-F", &device.0]);
        let written = {
            let tree = Mounted::new(&device.0, &scratch.path("tree"));
            let written = grow_tree(&tree.0);
            tree.unmount();
            written
        };
        {
            let tree = Mounted::new(&device.0, &scratch.path("tree"));
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            assert_eq!(checksums(&tree.0), written, "direct {direct}");
            fs::remove_dir_all(tree.0.join("d1")).unwrap();
            run("fstrim", &[&text(&tree.0)]);
            tree.unmount();
        }
        run("fsck.ext4", &["-f", "-n", &device.0]);
        drop(device);
        assert_eq!(disk.unmount().unwrap(), CLEAN);
        assert!(!scratch.path("at").exists(), "the folder was ours");

        // Check the image, not a cache.
        run("fsck.ext4", &["-f", "-n", &text(&image)]);
        fs::remove_file(image).unwrap();
    }
}

#[test]
fn trimming_the_file_system_gives_the_images_space_back() {
    let Some(scratch) = rig(&["losetup", "mkfs.ext4", "mount", "umount", "fstrim"]) else { return };
    let image = scratch.file_of_size("image", 256 * MIB);
    let allocated = || fs::metadata(&image).unwrap().blocks() * 512;
    let mut disk = mount(&scratch.path("at"), "disk", FileStore::open(&image, false).unwrap()).unwrap();
    let device = Loop::over(disk.file(), false);
    run("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", &device.0]);
    let tree = Mounted::new(&device.0, &scratch.path("tree"));
    fs::write(tree.0.join("big"), vec![0x5a; 100 << 20]).unwrap();
    rustix::fs::sync();
    let full = allocated();
    fs::remove_file(tree.0.join("big")).unwrap();
    // ext4 frees the blocks of a deleted file in its journal's commit, but just after it has answered those who wait
    // for that commit: a trim at once may be too early.
    let trimmed = || {
        rustix::fs::sync();
        run("fstrim", &[&text(&tree.0)]);
        allocated()
    };
    let until = Instant::now() + Duration::from_secs(20);
    let mut rest = trimmed();
    while rest > full - 90 * MIB && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        rest = trimmed();
    }
    assert!(full > 100 * MIB && rest < full - 90 * MIB, "{full} bytes, then {rest}");
    tree.unmount();
    drop(device);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn a_sparse_64_gib_disk_shows_its_size_and_takes_a_file_system() {
    let Some(scratch) = rig(&["losetup", "mkfs.ext4", "mount", "umount"]) else { return };
    let image = scratch.file_of_size("image", 64 << 30);
    let mut disk = mount(&scratch.path("at"), "disk", FileStore::open(&image, false).unwrap()).unwrap();
    assert_eq!(fs::metadata(disk.file()).unwrap().len(), 64 << 30);
    let device = Loop::over(disk.file(), false);
    run("mkfs.ext4", &["-q", "-F", &device.0]);
    let tree = Mounted::new(&device.0, &scratch.path("tree"));
    fs::write(tree.0.join("file"), b"far out").unwrap();
    tree.unmount();
    drop(device);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
    assert!(fs::metadata(&image).unwrap().blocks() * 512 < 2 << 30, "it stayed sparse");
}

#[test]
fn fio_reads_back_what_it_wrote_by_every_way_into_the_file() {
    let Some(scratch) = rig(&["fio"]) else { return };
    let mut disk = mount(&scratch.path("at"), "disk", MemoryStore::new(vec![0; 64 << 20])).unwrap();
    for way in
        ["--ioengine=psync --direct=0", "--ioengine=libaio --direct=1 --iodepth=16", "--ioengine=mmap --direct=0"]
    {
        let file = format!("--filename={}", disk.file().display());
        let work =
            "--name=verify --rw=randrw --bsrange=512-1m --blockalign=512 --size=64m --verify=crc32c --verify_fatal=1";
        let args = [&*file, "--fsync_on_close=1", "--verify_state_save=0", "--minimal"]
            .into_iter()
            .chain(work.split(' '))
            .chain(way.split(' '));
        run("fio", &args.collect::<Vec<_>>());
    }
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

// ---- the store goes away ----

#[test]
fn store_lost_during_a_write_ends_the_mount_and_reports_lost_data() {
    let Some(scratch) = rig(&["losetup", "mkfs.ext4", "mount", "umount"]) else { return };
    let (store, strings) = Fragile::of_size(128 * MIB);
    let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();
    let device = Loop::over(disk.file(), false);
    run("mkfs.ext4", &["-q", "-F", &device.0]);
    let tree = Mounted::new(&device.0, &scratch.path("tree"));
    let mut file = File::create(tree.0.join("file")).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    file.sync_all().unwrap();

    let started = Instant::now();
    strings.fail(Some(StoreError::Gone));
    let written = (0..64).try_for_each(|_| file.write_all(&[2; 1 << 20])).and_then(|()| file.sync_all());
    written.unwrap_err();
    assert_eq!(disk.wait_for(MountHealth::Lost, Some(PATIENCE)), MountHealth::Lost);
    assert!(is_readable(disk.event()));
    assert_eq!(errno(File::open(disk.file())), Errno::NODEV);
    drop(file);
    tree.unmount();
    drop(device);
    // Acknowledged data is lost, and that is reported.
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: false, flushed: Err(StoreError::Gone) });
    assert_eq!(disk.health(), MountHealth::Ended);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn a_store_that_never_answers_is_cut_off_from_its_users() {
    let Some(scratch) = rig(&["losetup"]) else { return };
    let (store, strings) = Fragile::of_size(MIB);
    let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();
    let device = Loop::over(disk.file(), false);
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let started = Instant::now();
    let stuck = strings.hold();
    std::thread::scope(|s| {
        let reader = s.spawn(|| errno(File::open(&device.0).unwrap().read_exact(&mut [0; 8192])));
        let writer = s.spawn(|| errno(file.write_all_at(&[2; 4096], 8192)));
        let cutter = disk.cutter();
        while strings.inside.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let owner = s.spawn(|| disk.unmount().unwrap());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!reader.is_finished() && !writer.is_finished() && !owner.is_finished());
        cutter.cut();
        assert_eq!(reader.join().unwrap(), Errno::IO);
        let error = writer.join().unwrap();
        assert!(matches!(error, Errno::CONNABORTED | Errno::NOTCONN), "{error}");
        assert!(!scratch.path("at").join("disk").exists());
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
        drop(stuck);
        // The request that was held may have been a flush, caused by a close: then the first write is safe.
        let unmounted = owner.join().unwrap();
        assert!(!unmounted.in_use && matches!(unmounted.flushed, Ok(()) | Err(StoreError::Gone)), "{unmounted:?}");
    });
    assert!(strings.store_is_dropped());
    assert!(!scratch.path("at").exists());
    assert_eq!(disk.health(), MountHealth::Ended);
}

#[test]
fn each_store_error_has_its_own_errno_and_fsync_reports_it() {
    let Some(scratch) = rig(&[]) else { return };
    for (error, expected) in
        [(StoreError::Medium, Errno::IO), (StoreError::NoSpace, Errno::NOSPC), (StoreError::ReadOnly, Errno::ROFS)]
    {
        let (store, strings) = Fragile::of_size(MIB);
        let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();
        let file = File::options().read(true).write(true).open(disk.file()).unwrap();
        file.write_all_at(&[1; 512], 0).unwrap();
        strings.fail(Some(error));
        assert_eq!(errno(file.write_at(&[1; 512], 0)), expected);
        assert_eq!(errno(file.read_at(&mut [0; 512], 65536)), expected);
        assert_eq!(errno(file.sync_all()), expected);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&file, punch, 0, 4096), Err(expected));
        // Not gone: the disk works again when its store does.
        strings.fail(None);
        // A process that another test started may have closed its copy of the file meanwhile: that flush failed, and
        // this program is told of it here.
        let _ = file.sync_all();
        file.write_all_at(&[3; 512], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(disk.unmount().unwrap(), CLEAN);
    }
}

// ---- coming and going ----

#[test]
fn unmount_by_another_program_is_reported_to_the_owner() {
    let Some(scratch) = rig(&["umount"]) else { return };
    let (store, strings) = Fragile::of_size(MIB);
    let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();
    assert!(!is_readable(disk.event()));
    File::options().write(true).open(disk.file()).unwrap().write_all(&[1; 512]).unwrap();
    assert_eq!(strings.flushes.load(Ordering::Relaxed), 1, "closing made it durable");
    unmount(disk.mountpoint());
    assert_eq!(disk.wait_for(MountHealth::Lost, Some(Duration::from_secs(5))), MountHealth::Ended);
    assert!(is_readable(disk.event()));
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn another_mount_at_the_same_place_is_left_alone() {
    let Some(scratch) = rig(&["umount", "mount"]) else { return };
    let at = scratch.path("at");
    fs::create_dir(&at).unwrap();
    let _below = Mounted::tmpfs(&at);
    let mut disk = mount(&at, "disk", MemoryStore::new(vec![0; 1 << 20])).unwrap();
    unmount(&at);
    assert_eq!(disk.wait_for(MountHealth::Ended, Some(Duration::from_secs(5))), MountHealth::Ended);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
    drop(disk);
    assert!(is_mountpoint(&at));
}

#[test]
fn a_disk_in_use_leaves_the_tree_and_serves_its_users_to_the_end() {
    let Some(scratch) = rig(&[]) else { return };
    let mut disk = mount(&scratch.path("at"), "disk", MemoryStore::new(vec![7; 1 << 20])).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    file.write_all_at(&[8; 512], 0).unwrap();
    assert_eq!(disk.unmount().unwrap(), UnmountOutcome { in_use: true, flushed: Ok(()) });
    assert!(!disk.file().exists());
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[0], bytes[1023]), (8, 7));
    file.write_all_at(&[9; 512], 0).unwrap();
    assert_eq!(disk.health(), MountHealth::Serving);
    drop(file);
    assert_eq!(disk.wait_for(MountHealth::Ended, Some(Duration::from_secs(5))), MountHealth::Ended);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn a_dropped_disk_refuses_the_users_that_are_left() {
    let Some(scratch) = rig(&[]) else { return };
    let (store, strings) = Fragile::of_size(MIB);
    let disk = mount(&scratch.path("at"), "disk", store).unwrap();
    let file = File::open(disk.file()).unwrap();
    drop(disk);
    assert!(!scratch.path("at").exists());
    assert_eq!(errno(file.read_at(&mut [0; 512], 0)), Errno::NODEV);
    assert!(strings.store_is_dropped(), "a wait for the link's end does not wait for the users");
}

/// Not a test by itself: what the next test does as an ordinary user.
#[test]
fn child_that_mounts_and_unmounts() {
    let Some(at) = std::env::var_os("FARBUS_TEST_CHILD_USES") else { return };
    assert!(!rustix::process::geteuid().is_root());
    for read_only in [false, true] {
        let store = MemoryStore::new(vec![5; 1 << 20]);
        let store = if read_only { store.read_only() } else { store };
        let mut disk = mount(Path::new(&at), "disk", store).unwrap();
        let file = File::options().read(true).write(!read_only).open(disk.file()).unwrap();
        assert_eq!(file.metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
        if !read_only {
            file.write_all_at(&[6; 4096], 4096).unwrap();
        }
        let mut bytes = [0; 8192];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((bytes[0], bytes[8191]), (5, if read_only { 5 } else { 6 }));
        assert_eq!(File::options().write(true).open(disk.file()).is_err(), read_only);
        drop(file);
        assert_eq!(disk.unmount().unwrap(), CLEAN);
        assert!(!Path::new(&at).exists());
    }
}

#[test]
fn an_ordinary_user_mounts_with_fuses_helper_or_is_told_to_install_it() {
    let Some(scratch) = rig(&["setpriv", "fusermount3"]) else { return };
    // The build folder may be inaccessible to other users. Copied by another process: a descriptor of ours that is open
    // for writing may be in another test's child, and then the copy cannot be run.
    let program = scratch.path("test");
    run("cp", &[&text(&std::env::current_exe().unwrap()), &text(&program)]);
    fs::create_dir(scratch.path("home")).unwrap();
    fs::set_permissions(scratch.path("home"), PermissionsExt::from_mode(0o777)).unwrap();
    let child = |search_path: &str| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "env"])
            .arg(format!("PATH={search_path}"))
            .arg(&program)
            .args(["--exact", "child_that_mounts_and_unmounts", "--nocapture"])
            .env("FARBUS_TEST_CHILD_USES", scratch.path("home/at"))
            .output()
            .unwrap()
    };
    let output = child(&std::env::var("PATH").unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = child("/nowhere");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("NoHelper"));
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn child_that_mounts_and_waits() {
    let Some(at) = std::env::var_os("FARBUS_TEST_CHILD_MOUNTS_AT") else { return };
    let disk = mount(Path::new(&at), "disk", MemoryStore::new(vec![0; 1 << 20])).unwrap();
    disk.wait_for(MountHealth::Ended, None);
}

#[test]
fn the_mount_of_a_killed_process_is_recognised_and_cleared_as_told() {
    let Some(scratch) = rig(&["umount", "fusermount3"]) else { return };
    let at = scratch.path("at");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_mounts_and_waits"])
        .env("FARBUS_TEST_CHILD_MOUNTS_AT", &at)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !at.join("disk").exists() {
        assert!(Instant::now() < deadline, "the child mounts");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let again = mount(&at, "disk", MemoryStore::new(vec![0; 512]));
    let _cleared = Mounted(at.clone());
    let error = again.err().unwrap();
    assert!(matches!(error, MountError::DeadMount { .. }), "{error}");
    let command = format!("fusermount3 -u {}", at.display());
    assert!(error.to_string().contains(&command), "{error}");
    run("fusermount3", &["-u", &text(&at)]);
    mount(&at, "disk", MemoryStore::new(vec![0; 512])).unwrap();
}

// ---- the file ----

#[test]
fn the_file_has_the_disks_size_whatever_is_done_to_it() {
    let Some(scratch) = rig(&[]) else { return };
    // Not a multiple of the kernel's page size.
    let size = 5 * MIB - 512;
    let mut disk = mount(&scratch.path("at"), "disk", MemoryStore::new(vec![0xaa; size as usize])).unwrap();
    let metadata = fs::metadata(disk.file()).unwrap();
    assert_eq!((metadata.len(), metadata.blocks() * 512, metadata.nlink()), (size, size, 1));
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    assert_eq!((metadata.uid(), metadata.gid()), (0, 0));
    let names: Vec<_> = fs::read_dir(disk.mountpoint()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk"]);

    let mut file = File::options().read(true).write(true).open(disk.file()).unwrap();
    file.set_len(size).unwrap();
    assert_eq!(errno(file.set_len(size - 512)), Errno::PERM);
    assert_eq!(errno(file.set_len(size + 512)), Errno::PERM);
    assert_eq!(errno(File::create(disk.file())), Errno::PERM);
    assert_eq!(errno(fs::set_permissions(disk.file(), PermissionsExt::from_mode(0o644))), Errno::PERM);
    assert_eq!(errno(fs::remove_file(disk.file())), Errno::PERM);
    assert_eq!(errno(fs::rename(disk.file(), disk.mountpoint().join("b"))), Errno::PERM);
    assert_eq!(errno(File::create(disk.mountpoint().join("b"))), Errno::PERM);
    assert_eq!(errno(fs::create_dir(disk.mountpoint().join("b"))), Errno::PERM);

    // Past the end: what fits is written, then there is no space.
    file.seek(SeekFrom::Start(size - 100)).unwrap();
    assert_eq!(file.write(&[1; 200]).unwrap(), 100);
    assert_eq!(errno(file.write(&[1; 200])), Errno::NOSPC);
    assert_eq!(errno(file.write_at(&[1], size + 4096)), Errno::NOSPC);
    assert_eq!(file.metadata().unwrap().len(), size);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(size - 101)).unwrap();
    file.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, [vec![0xaa], vec![1; 100]].concat());

    // Any offset, any length, across every boundary.
    for (offset, len) in [(0, 1), (4095, 2), (511, 70_001), (MIB - 1, 3 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
        file.write_all_at(&bytes, offset).unwrap();
        let mut back = vec![0; len];
        file.read_exact_at(&mut back, offset).unwrap();
        assert!(back == bytes, "{len} bytes at {offset}");
    }
    drop(file);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn holes_and_zeroes_reach_the_store() {
    let Some(scratch) = rig(&[]) else { return };
    let mut disk = mount(&scratch.path("at"), "disk", MemoryStore::new(vec![0xaa; 1 << 20])).unwrap();
    let file = File::options().read(true).write(true).open(disk.file()).unwrap();
    let allocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len);
    let keep = FallocateFlags::KEEP_SIZE;
    let mut expected = vec![0xaa; 1 << 20];
    allocate(FallocateFlags::PUNCH_HOLE | keep, 1000, 70_000).unwrap();
    expected[1000..71_000].fill(0);
    allocate(FallocateFlags::ZERO_RANGE | keep, 200_000, 4096).unwrap();
    allocate(FallocateFlags::ZERO_RANGE, 300_000, 1).unwrap();
    expected[200_000..204_096].fill(0);
    expected[300_000] = 0;
    // Beyond the end there is nothing to punch, and nothing to write.
    allocate(FallocateFlags::PUNCH_HOLE | keep, MIB - 512, 4096).unwrap();
    expected[MIB as usize - 512..].fill(0);
    assert_eq!(allocate(FallocateFlags::ZERO_RANGE, MIB - 512, 4096), Err(Errno::NOSPC));
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let mut bytes = vec![0; 1 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == expected);
    drop(file);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn a_read_only_disk_is_read_and_cannot_be_opened_for_writing() {
    let Some(scratch) = rig(&["losetup"]) else { return };
    let store = MemoryStore::new(vec![0x77; 1 << 20]).read_only();
    let mut disk = mount(&scratch.path("at"), "disk", store).unwrap();
    assert_eq!(fs::metadata(disk.file()).unwrap().permissions().mode() & 0o7777, 0o400);
    assert_eq!(errno(File::options().write(true).open(disk.file())), Errno::ROFS);
    let device = Loop::over(disk.file(), false);
    let mut bytes = [0; 512];
    File::open(&device.0).unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0x77; 512]);
    drop(device);
    assert_eq!(disk.unmount().unwrap(), CLEAN);
}

#[test]
fn unsuitable_mountpoints_and_file_names_are_refused() {
    let Some(scratch) = rig(&[]) else { return };
    let store = || MemoryStore::new(vec![0; 512]);
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert!(matches!(mount(&scratch.path("at"), name, store()), Err(MountError::BadName { .. })));
    }
    assert!(!scratch.path("at").exists());
    scratch.file_of_size("file", 0);
    assert!(matches!(mount(&scratch.0, "d", store()), Err(MountError::NotEmpty { .. })));
    assert!(matches!(mount(&scratch.path("file"), "d", store()), Err(MountError::NotAFolder { .. })));
}

// ---- a store over a block device ----

#[test]
fn a_block_device_is_a_store_and_is_refused_while_mounted() {
    let Some(scratch) = rig(&["losetup", "mkfs.ext4", "mount", "umount"]) else { return };
    let device = Loop::over(&scratch.file_of_size("image", 64 * MIB), false);
    {
        let mut store = FileStore::open(&device.0, false).unwrap();
        assert_eq!(store.size_bytes(), 64 * MIB);
        store.write_at(100, &vec![0xcd; 100_000]).unwrap();
        // Not on sector boundaries, which the device cannot punch; and on them.
        store.discard(1001, 50_001).unwrap();
        store.write_zeroes(65536, 4096).unwrap();
        store.flush().unwrap();
        let mut bytes = vec![0xee; 100_100];
        store.read_at(0, &mut bytes).unwrap();
        let mut expected = vec![0; 100_100];
        expected[100..].fill(0xcd);
        expected[1001..51_002].fill(0);
        expected[65536..69632].fill(0);
        assert!(bytes == expected);
        let second = FileStore::open(&device.0, true).unwrap_err();
        assert!(matches!(second.trouble, FileStoreProblem::InUse(_)), "{second}");
    }
    run("mkfs.ext4", &["-q", "-F", &device.0]);
    let tree = Mounted::new(&device.0, &scratch.path("tree"));
    let mounted = FileStore::open(&device.0, false).unwrap_err();
    assert!(matches!(mounted.trouble, FileStoreProblem::InUse(_)), "{mounted}");
    tree.unmount();
}

// ---- the tests' tools ----

fn mount(at: &Path, file_name: &str, store: impl BlockStore + 'static) -> Result<DiskMount, MountError> {
    DiskMount::mount(at, file_name, StoreDevice::new(store))
}

/// A store in memory that a test can make fail.
struct Fragile {
    inner: MemoryStore,
    strings: Arc<Strings>,
}

#[derive(Default)]
struct Strings {
    fails: Mutex<Option<StoreError>>,
    flushes: AtomicU32,
    /// Requests that are inside the store.
    inside: AtomicU32,
}

impl Strings {
    fn fail(&self, error: Option<StoreError>) {
        *self.fails.lock().unwrap() = error;
    }

    /// Keeps requests inside the store until the guard is dropped.
    fn hold(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.fails.lock().unwrap()
    }

    fn store_is_dropped(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }
}

impl Fragile {
    fn of_size(bytes: u64) -> (Self, Arc<Strings>) {
        let strings = Arc::<Strings>::default();
        (Self { inner: MemoryStore::new(vec![0; bytes as usize]), strings: strings.clone() }, strings)
    }

    fn check(&self) -> Result<(), StoreError> {
        self.strings.inside.fetch_add(1, Ordering::Relaxed);
        let answer = self.strings.fails.lock().unwrap().map_or(Ok(()), Err);
        self.strings.inside.fetch_sub(1, Ordering::Relaxed);
        answer
    }
}

impl BlockStore for Fragile {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.check()?;
        self.inner.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        self.inner.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.strings.flushes.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.check()?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.check()?;
        self.inner.write_zeroes(offset, len)
    }
}

/// A folder that is removed with its test.
struct Scratch(PathBuf);

/// Checks what the test needs of this machine; prints why it cannot run.
fn rig(programs: &[&str]) -> Option<Scratch> {
    let missing = |program: &&&str| !matches!(Command::new("which").arg(program).output(), Ok(o) if o.status.success());
    let lacks = if !rustix::process::geteuid().is_root() {
        Some("it is not run by root".to_owned())
    } else if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse; try `modprobe fuse`".to_owned())
    } else if programs.contains(&"losetup") && !Path::new("/dev/loop-control").exists() {
        Some("there are no loop devices; try `modprobe loop`".to_owned())
    } else {
        programs.iter().find(missing).map(|program| format!("the program {program} is not installed"))
    };
    let Some(lacks) = lacks else {
        // No program that takes a copy of this machine's mounts keeps in use what a test unmounts.
        farbus_io_linux::sys::own_mounts::enter().unwrap();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farbus-fuse-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let scratch = Scratch(std::env::temp_dir().join(name));
        fs::create_dir(&scratch.0).unwrap();
        return Some(scratch);
    };
    assert!(std::env::var_os("FARBUS_REQUIRE_RIG").is_none_or(|v| v != "1"), "cannot run here: {lacks}");
    // Bypasses the test harness, which would capture it.
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "SKIP {}: {lacks}", thread.name().unwrap_or("?"));
    None
}

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file_of_size(&self, name: &str, bytes: u64) -> PathBuf {
        File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A loop device that is detached when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path, direct: bool) -> Self {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        Self(run("losetup", &["--find", "--show", direct, &text(file)]).trim().to_owned())
    }

    fn is_direct(&self) -> bool {
        let name = self.0.trim_start_matches("/dev/");
        fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap().trim() == "1"
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
        // The detachment completes a moment later if another program, such as udev, has the device open.
        let backing = format!("/sys/block/{}/loop/backing_file", self.0.trim_start_matches("/dev/"));
        for _ in 0..250 {
            if !Path::new(&backing).exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is still there", self.0);
    }
}

/// A mounted file system that is unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &str, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &[device, &text(at)]);
        Self(at.to_owned())
    }

    fn tmpfs(at: &Path) -> Self {
        run("mount", &["-t", "tmpfs", "none", &text(at)]);
        Self(at.to_owned())
    }

    fn unmount(self) {
        unmount(&self.0);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mountpoint(&self.0) {
            let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
}

/// Unmounts as a user would, and once more if the first try was too early: another test's child may have our
/// descriptors between its fork and its exec.
fn unmount(at: &Path) {
    for _ in 0..50 {
        if Command::new("umount").arg(at).stderr(Stdio::null()).status().unwrap().success() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    run("umount", &[&text(at)]);
}

fn is_mountpoint(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == at.to_str())
}

/// Runs a program to its end, at most a minute; returns what it printed.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new("timeout").args(["-k", "5", "60", program]).args(args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn errno<T>(result: std::io::Result<T>) -> Errno {
    let error = result.err().expect("an error");
    Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error} comes from the kernel"))
}

fn is_readable(event: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
}

/// Creates some hundred files of all sizes in a few folders; returns their checksums.
fn grow_tree(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for folder in ["d1", "d2", "d2/d3"] {
        fs::create_dir(root.join(folder)).unwrap();
        for i in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (state >> 33) as usize % (if i % 20 == 0 { 2 << 20 } else { 40_000 });
            let bytes: Vec<u8> =
                (0..len as u64).map(|i| ((i ^ state).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
            fs::write(root.join(folder).join(format!("f{i}")), bytes).unwrap();
        }
    }
    checksums(root)
}

fn checksums(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut sums = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let mut hasher = DefaultHasher::new();
                hasher.write(&fs::read(entry.path()).unwrap());
                sums.insert(entry.path().strip_prefix(root).unwrap().to_owned(), hasher.finish());
            }
        }
    }
    sums
}
