//! A disk of a paired host as a block device: its access modes, the disk as a file, and what is refused.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::Signal;

use super::harness::{Harness, PATIENCE, Running, Share, has, has_fuse, has_program, wait_until};
use super::trust::{Host, hosts, pair};

const MIB: u64 = 1 << 20;

/// Shares `what` on one host, which allows the other to use everything.
pub fn share<'h>(harness: &'h Harness, what: &[&str]) -> ([Host<'h>; 2], Running) {
    let [lab3, desk] = hosts(harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let share = lab3.start(&[&["share"], what, &["--listen", "none", "--secure", "127.0.0.1:0"]].concat());
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    // A list with an address makes the host remember the address.
    desk.ok(&["list", "lab3", "--address", &address]);
    ([lab3, desk], share)
}

fn attach(desk: &Host<'_>, target: &str, arguments: &[&str]) -> Running {
    let attach = desk.start(&[&["attach", target], arguments].concat());
    let line = attach.wait_for_line("attached");
    assert_eq!(line.contains("to be read"), arguments.contains(&"read"), "{line}");
    attach
}

pub fn end(mut attach: Running) {
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn block_device_has_many_readers_or_one_writer() {
    let harness = Harness::new();
    let image = harness.image("shared.img", MIB);
    File::options().write(true).open(&image).unwrap().write_all_at(b"read by many", 4096).unwrap();
    let ([lab3, desk], _share) = share(&harness, &[&format!("block:{}", image.display())]);
    let socket = |name: &str| harness.path(name).to_str().unwrap().to_owned();
    let by_nbd = |name: &str, mode: &str| {
        attach(&desk, "lab3/block", &["--via", "nbd", "--socket", &socket(name), "--mode", mode])
    };
    let device = || lab3.json(&["status", "--json"])[0]["devices"][0].clone();

    let readers = ["one.sock", "two.sock", "three.sock"].map(|name| by_nbd(name, "read"));
    assert_eq!(
        (&device()["mode"], device()["users"].as_array().map(Vec::len)),
        (&"read".into(), Some(3)),
        "{}",
        device()
    );
    let modes = desk.json(&["status", "--json"]);
    assert!(modes.as_array().unwrap().iter().all(|process| process["devices"][0]["mode"] == "read"), "{modes}");

    // A writer is refused and told who reads.
    let writer = desk.run(&["attach", "lab3/block", "--via", "nbd", "--socket", &socket("four.sock")]);
    assert_eq!(writer.code, Some(3), "{writer:?}");
    assert!(writer.stderr.contains("in use"), "{writer:?}");
    for reader in readers {
        end(reader);
    }

    wait_until(PATIENCE, "it is free", || device()["state"] == "available");
    let writer = by_nbd("one.sock", "exclusive");
    assert_eq!(device()["mode"], "exclusive");
    let reader = desk.run(&["attach", "lab3/block", "--via", "nbd", "--socket", &socket("two.sock"), "--mode", "read"]);
    assert_eq!(reader.code, Some(3), "{reader:?}");
    end(writer);
}

#[test]
fn a_reader_s_file_cannot_be_written() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("shared.img", MIB);
    File::options().write(true).open(&image).unwrap().write_all_at(b"read by many", 4095).unwrap();
    let (hosts, _share) = share(&harness, &[&format!("block:{}", image.display())]);
    let paths = ["one", "two"].map(|name| harness.path(name));
    let readers = paths
        .clone()
        .map(|at| attach(&hosts[1], "lab3/block", &["--via", "fuse", "--at", at.to_str().unwrap(), "--mode", "read"]));
    for at in &paths {
        let mut found = [0; 12];
        File::open(at.join("disk.img")).unwrap().read_exact_at(&mut found, 4095).unwrap();
        assert_eq!(&found, b"read by many");
        let refused = OpenOptions::new().write(true).open(at.join("disk.img")).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    for reader in readers {
        end(reader);
    }
}

#[test]
fn usb_only_device_cannot_be_attached_for_shared_reading() {
    let harness = Harness::new();
    let ([_lab3, desk], _share) = share(&harness, &["zero"]);
    let socket = harness.path("far.sock").to_str().unwrap().to_owned();
    let by_nbd =
        |more: &[&str]| desk.run(&[&["attach", "lab3/zero", "--via", "nbd", "--socket", &socket], more].concat());
    let refused = by_nbd(&["--mode", "read"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("USB disk alone, which has one user"), "{refused:?}");
    // Without a mode it is attached as a USB device, and only then found to be no disk.
    let refused = by_nbd(&[]);
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(!refused.stderr.contains("block"), "{refused:?}");
    for (arguments, word) in [
        (["--via", "kernel", "--mode", "read"], "--via nbd --mode read"),
        (["--via", "nbd", "--mode", "write"], "exclusive (one who may write)"),
    ] {
        let refused = desk.run(&[&["attach", "lab3/zero"], &arguments[..]].concat());
        assert!(refused.code != Some(0) && refused.stderr.contains(word), "{refused:?}");
    }
}

#[test]
fn plain_usb_ip_has_one_user() {
    let harness = Harness::new();
    let share: Share = harness.share(&[&format!("disk:{}", harness.image("image", MIB).display())]);
    let socket = harness.path("far.sock").to_str().unwrap().to_owned();
    let refused =
        harness.run(&["attach", &share.target("disk"), "--via", "nbd", "--socket", &socket, "--mode", "read"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("--grace SECONDS"), "{refused:?}");
    // With a session, it is a block device here too.
    let read = ["--via", "nbd", "--socket", &socket, "--mode", "read", "--grace", "5"];
    let target = share.target("disk");
    let attach = Running::start(harness.command(&[&["attach", &*target], &read[..]].concat()));
    attach.wait_for_line("attached");
    end(attach);
}

/// Scratch views have blocks of 512 bytes; their file can still be written at any byte.
#[test]
fn a_view_of_larger_blocks_is_a_file_of_any_byte() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("base.img", MIB);
    let (hosts, _share) = share(&harness, &[&format!("block:{},scratch", image.display())]);
    let at = harness.path("mnt");
    let attached = attach(&hosts[1], "lab3/block", &["--via", "fuse", "--at", at.to_str().unwrap()]);
    let file = OpenOptions::new().read(true).write(true).open(at.join("disk.img")).unwrap();
    let mut expected = vec![0; MIB as usize];
    for (offset, length) in [(0, 1), (511, 2), (4095, 70_001), (100_000, 1), (100_001, 1023)] {
        let bytes: Vec<u8> = (0..length).map(|at: u64| (at * 7 + offset + 3) as u8).collect();
        file.write_all_at(&bytes, offset).unwrap();
        expected[offset as usize..][..length as usize].copy_from_slice(&bytes);
    }
    file.sync_all().unwrap();
    // Bypasses the kernel's cache.
    drop(file);
    let copy = harness.path("copy");
    run(
        "dd",
        &[
            &format!("if={}", at.join("disk.img").display()),
            &format!("of={}", copy.display()),
            "bs=64k",
            "iflag=direct",
        ],
    );
    assert!(fs::read(&copy).unwrap() == expected);
    end(attached);
    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "the device below is as it was");
}

#[test]
fn ext4_lives_on_a_remote_block_device() {
    let programs = ["losetup", "mkfs.ext4", "fsck.ext4", "mount", "umount"];
    let loops = Path::new("/dev/loop-control").exists() && rustix::process::geteuid().is_root();
    if !has_fuse() || !has("loop devices and ext4", loops && programs.iter().all(|program| has_program(program))) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("ext4.img", 64 * MIB);
    let (hosts, _share) = share(&harness, &[&format!("block:{}", image.display())]);
    let at = harness.path("mnt");
    let how = ["--via", "fuse", "--cache", "writeback", "--at", at.to_str().unwrap()];
    let attached = attach(&hosts[1], "lab3/block", &how);
    let file = at.join("disk.img");
    let device = run("losetup", &["--direct-io=on", "--find", "--show", file.to_str().unwrap()]);
    let device = device.trim();
    run("mkfs.ext4", &["-q", "-F", device]);
    let tree = harness.path("tree");
    fs::create_dir(&tree).unwrap();
    run("mount", &[device, tree.to_str().unwrap()]);
    let write = |name: &str, seed: u8| {
        let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8 ^ seed).collect();
        fs::write(tree.join(name), &bytes).unwrap();
        bytes
    };
    let written: Vec<(String, Vec<u8>)> =
        (0..40u8).map(|at| (format!("f{at}"), write(&format!("f{at}"), at))).collect();
    run("umount", &[tree.to_str().unwrap()]);
    run("mount", &[device, tree.to_str().unwrap()]);
    let is_there = |(name, bytes): &(String, Vec<u8>)| fs::read(tree.join(name)).is_ok_and(|found| found == *bytes);
    let all_there = written.iter().all(is_there);
    run("umount", &[tree.to_str().unwrap()]);
    run("losetup", &["--detach", device]);
    assert!(all_there, "a file has other bytes");
    end(attached);
    run("fsck.ext4", &["-f", "-n", image.to_str().unwrap()]);
}

/// Runs a program for a minute at most; returns what it printed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        std::process::Command::new("timeout").args(["-k", "5", "60", program]).args(arguments).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}
