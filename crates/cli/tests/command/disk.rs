//! A shared disk image: attached as a file, made durable, and what happens to it when its exporter is killed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use farbus::client;
use farbus::model::BlockStore;
use rustix::fs::OFlags;
use rustix::process::Signal;

use super::harness::{
    Harness, PATIENCE, Running, Share, assert_quickest_is_noticed, has, has_fuse, has_program, is_mounted, wait_until,
};

const MIB: u64 = 1 << 20;

/// Bytes that differ from each other and from those of any other seed.
fn noise(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn bytes_written_to_the_file_are_in_the_image_and_read_back() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 64 * MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (mut attach, path) = harness.attach(&share.target("disk"), &harness.path("at"));
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 * MIB);

    let file = File::options().read(true).write(true).open(&path).unwrap();
    for at in [0, 511, 3 * MIB - 1, 60 * MIB] {
        let bytes = noise(at as u32, 777_777);
        file.write_all_at(&bytes, at).unwrap();
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, at).unwrap();
        assert!(back == bytes, "at {at}");
    }
    file.sync_all().unwrap();
    let mut in_image = vec![0; 777_777];
    File::open(&image).unwrap().read_exact_at(&mut in_image, 60 * MIB).unwrap();
    assert!(in_image == noise((60 * MIB) as u32, 777_777), "synced is in the image");
    drop(file);

    let status = harness.json(&["status", "--json"]);
    let roles: Vec<_> = status.as_array().unwrap().iter().map(|process| process["role"].as_str().unwrap()).collect();
    assert!(roles.contains(&"attach") && roles.contains(&"share"), "{status}");
    let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").unwrap();
    assert_eq!(attached["devices"][0]["title"], share.target("disk"));
    assert_eq!(attached["devices"][0]["at"], path.to_str().unwrap());

    assert_eq!(harness.run(&["detach", &share.target("other")]).code, Some(4));
    assert_eq!(harness.run(&["detach"]).code, Some(0));
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0));
    assert!(!is_mounted(&harness.path("at")) && !harness.path("at").exists());
    let again = client::open_disk(&share.library_target("disk"));
    assert!(again.is_ok(), "{:?}", again.err().map(|error| error.to_string()));
}

#[test]
fn exporter_killed_during_a_transfer_ends_the_attachment_without_a_timeout() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("image", 256 * MIB).display());
    let at = harness.path("at");
    let times = [(); 3].map(|()| {
        let mut share = harness.share(&[&disk]);
        let (mut attach, path) = harness.attach(&share.target("disk"), &at);
        let turns = Arc::<AtomicU64>::default();
        let for_reader = Arc::clone(&turns);
        let reader = thread::spawn(move || read_for_ever(&path, &for_reader));
        wait_until(PATIENCE, "bytes pass", || turns.load(Ordering::Relaxed) > 3);
        share.process.kill();
        let killed = Instant::now();
        assert_eq!(attach.wait_for_end(PATIENCE), Some(5), "{}", attach.log());
        let took = killed.elapsed();
        println!("the reader was told: {}", reader.join().unwrap());
        assert!(attach.log().contains("the link was lost"), "{}", attach.log());
        assert!(!is_mounted(&at) && !at.exists());
        took
    });
    assert_quickest_is_noticed(&times);
}

/// Reads past the kernel's cache, so that every read is a transfer, and counts the reads. Returns the last error.
fn read_for_ever(path: &Path, turns: &AtomicU64) -> io::Error {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).unwrap();
    let mut block = vec![0; MIB as usize];
    loop {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = file.read_exact_at(&mut block, turn % 256 * MIB) {
            return error;
        }
    }
}

#[test]
fn an_attachment_that_is_killed_leaves_the_disk_to_the_next() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let at = harness.path("at");
    let (mut attach, path) = harness.attach(&share.target("disk"), &at);
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&noise(1, 4096), 0).unwrap();
    attach.kill();
    let mut disk = None;
    wait_until(PATIENCE, "the disk is offered again", || {
        disk = client::open_disk(&share.library_target("disk")).ok();
        disk.is_some()
    });
    let (mut disk, mut found) = (disk.unwrap(), vec![0; 4096]);
    disk.read_at(0, &mut found).unwrap();
    assert!(found == noise(1, 4096), "what was written before is there");
    drop(disk);

    // The broker has removed the dead mount and the folder that was made for it.
    wait_until(PATIENCE, "nothing is left", || !is_mounted(&at) && !at.exists());

    // An attachment without a broker leaves its mount behind; the next one says how to remove it.
    let arguments = ["--via", "fuse", "--at", at.to_str().unwrap()];
    let command = harness.command(&[&["attach", &share.target("disk"), "--no-sandbox"], &arguments[..]].concat());
    let mut alone = Running::start(command);
    wait_until(PATIENCE, "it is attached", || is_mounted(&at));
    alone.kill();
    let target = share.target("disk");
    let again = || harness.run(&[&["attach", target.as_str()], &arguments[..]].concat());
    let mut second = again();
    wait_until(PATIENCE, "the disk is free", || {
        let is_busy = second.code == Some(3);
        if is_busy {
            second = again();
        }
        !is_busy
    });
    assert!(second.code == Some(1) && second.stderr.contains("fusermount3 -u"), "{second:?}");
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).or_else(|_| unmount_as_told(&at)).unwrap();
}

fn unmount_as_told(at: &Path) -> io::Result<()> {
    let status = std::process::Command::new("fusermount3").arg("-u").arg(at).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

#[test]
fn a_share_that_is_told_to_end_makes_its_disk_durable() {
    let harness = Harness::new();
    let image = harness.image("image", 16 * MIB);
    let disk = format!("disk:{}", image.display());
    let mut share = harness.share(&[&disk]);
    let mut remote = client::open_disk(&share.library_target("disk")).unwrap();
    remote.write_at(5 * MIB, &noise(2, 100_000)).unwrap();
    share.process.signal(Signal::TERM);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0), "{}", share.process.log());
    let mut found = vec![0; 100_000];
    File::open(&image).unwrap().read_exact_at(&mut found, 5 * MIB).unwrap();
    assert!(found == noise(2, 100_000));
    remote.read_at(0, &mut [0; 512]).unwrap_err();
}

/// Bytes in the image file need not be on the medium below it, so the test looks for the system call.
#[test]
fn a_share_that_is_told_to_end_syncs_what_was_written_and_not_flushed() {
    if !has("strace", has_program("strace")) {
        return;
    }
    let harness = Harness::new();
    let (image, record) = (harness.image("image", MIB), harness.path("calls"));
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let (record_text, disk) = (record.to_str().unwrap(), format!("disk:{}", image.display()));
    // -D: the process we started is farbus, and strace is beside it.
    let watch = ["-D", "-f", "-e", "trace=pwrite64,fdatasync,fsync", "-o", record_text, farbus];
    let arguments = [&watch[..], &["share", &disk, "--listen", "127.0.0.1:0"]].concat();
    let program = PathBuf::from("strace");
    let mut share = Share::follow(Running::start(harness.command_of(&program, &arguments)));
    let mut remote = client::open_disk(&share.library_target("disk")).unwrap();
    remote.write_at(0, &noise(3, 4096)).unwrap();
    let syncs = || {
        let calls = fs::read_to_string(&record).unwrap_or_default();
        let written = calls.rfind("pwrite64(").map(|at| calls[at..].to_owned());
        written.map(|after| after.matches("fdatasync(").count() + after.matches("fsync(").count())
    };
    wait_until(PATIENCE, "the write is seen", || syncs().is_some());
    assert_eq!(syncs(), Some(0), "nobody asked for it yet");
    share.process.signal(Signal::TERM);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0), "{}", share.process.log());
    wait_until(PATIENCE, "it was synced", || syncs().is_some_and(|count| count > 0));
}
