//! An exporter that was started again, where a name now stands for another device.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::harness::{Harness, PATIENCE, Running, Share, has_fuse, wait_until};
use super::restart::{Later, config};

const SIZE: u64 = 1 << 20;

fn share_at(harness: &Harness, address: &str, disks: [&Path; 2]) -> Share {
    let disks = disks.map(|disk| format!("disk:{}", disk.display()));
    Share::follow(Running::start(harness.command(&["share", &disks[0], &disks[1], "--listen", address])))
}

/// Attaches the first disk of a share as a file, in a session that survives the exporter's death.
fn attach(harness: &Harness, share: &Share) -> (Running, PathBuf) {
    let at = harness.path("mnt");
    let arguments = ["attach", &share.target("disk"), "--via", "fuse", "--at", at.to_str().unwrap(), "--grace", "60"];
    let attach = Running::start(harness.command(&arguments));
    attach.wait_for_line("attached as ");
    (attach, at.join("disk.img"))
}

/// Writes a block through to the medium.
fn write(file: &Path, at: u64, byte: u8) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(file)?;
    file.write_all_at(&[byte; 4096], at)?;
    file.sync_all()
}

fn is_untouched(image: &Path) -> bool {
    fs::read(image).unwrap().iter().all(|&byte| byte == 0)
}

#[test]
fn session_never_continues_with_another_disk() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (a, b) = (harness.image("a.img", SIZE), harness.image("b.img", SIZE));
    let mut first = share_at(&harness, "127.0.0.1:0", [&a, &b]);
    let (mut attach, disk) = attach(&harness, &first);
    write(&disk, 0, 1).unwrap();
    first.process.kill();
    let _second = share_at(&harness, &first.address, [&b, &a]);
    // The write is meant for the first disk, and reaches no disk.
    let written = write(&disk, 8192, 2);
    assert!(is_untouched(&b), "a write meant for one disk landed in the other");
    assert!(written.is_err(), "nobody has it");
    assert_ne!(attach.wait_for_end(PATIENCE), Some(0), "the attachment is over");
    attach.assert_logged("is another device now");
    let bytes = fs::read(&a).unwrap();
    assert!(bytes[..4096].iter().all(|&byte| byte == 1) && bytes[4096..].iter().all(|&byte| byte == 0));
}

#[test]
fn session_continues_with_its_disk_after_its_exporter_is_killed() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (a, b) = (harness.image("a.img", SIZE), harness.image("b.img", SIZE));
    let mut first = share_at(&harness, "127.0.0.1:0", [&a, &b]);
    let (_attach, disk) = attach(&harness, &first);
    write(&disk, 0, 1).unwrap();
    first.process.kill();
    let _second = share_at(&harness, &first.address, [&a, &b]);
    write(&disk, 8192, 2).unwrap();
    let bytes = fs::read(&a).unwrap();
    assert!(bytes[..4096].iter().all(|&byte| byte == 1) && bytes[8192..12_288].iter().all(|&byte| byte == 2));
    assert!(is_untouched(&b));
}

#[test]
fn session_never_continues_with_an_adopted_medium() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (a, b) = (harness.image("a.img", SIZE), harness.image("b.img", SIZE));
    let mut first = share_at(&harness, "127.0.0.1:0", [&a, &b]);
    let status = harness.json(&["status", "--json"]);
    let id = status[0]["devices"][0]["identity"]["id"].as_str().expect("a shared disk has an id").to_owned();
    let (mut attach, disk) = attach(&harness, &first);
    write(&disk, 0, 1).unwrap();
    first.process.kill();
    // As if restored from a backup made before the write: same path, older content; the owner says that it is this
    // device.
    fs::rename(&a, harness.path("damaged.img")).unwrap();
    harness.image("a.img", SIZE);
    let adopted = harness.run(&["identity", "adopt", &format!("disk:{}", a.display()), &id]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    let _second = share_at(&harness, &first.address, [&a, &b]);
    let written = write(&disk, 8192, 2);
    assert!(is_untouched(&a), "a write meant for the medium of before landed in what was restored");
    assert!(written.is_err(), "nobody has it");
    assert_ne!(attach.wait_for_end(PATIENCE), Some(0), "the attachment is over");
}

#[test]
fn a_daemon_that_restarts_with_its_disks_in_another_order_serves_no_other_disk() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (a, b) = (harness.image("a.img", SIZE), harness.image("b.img", SIZE));
    let text = |disks: [&Path; 2]| {
        let [one, two] = disks.map(|disk| format!("{{what='disk:{}'}}", disk.display()));
        format!("plain.listen = ['127.0.0.1:0']\nshare = [{one}, {two}]")
    };
    let file = config(&harness.path("tmp"), &text([&a, &b]));
    let daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", &file])));
    let (mut attach, disk) = attach(&harness, &daemon);
    write(&disk, 0, 1).unwrap();
    config(&harness.path("tmp"), &text([&b, &a]));
    let _later = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    let written = write(&disk, 8192, 2);
    assert!(is_untouched(&b), "a write meant for one disk landed in the other");
    assert!(written.is_err(), "nobody has it");
    wait_until(PATIENCE, "the attachment is over", || attach.log().contains("is another device now"));
    assert_ne!(attach.wait_for_end(PATIENCE), Some(0));
}
