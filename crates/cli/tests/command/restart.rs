//! `farbus daemon restart`: a replacement takes the daemon's place, and its users notice a short pause at most.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use farbus::client;
use farbus::model::{EpAddr, Urb, UrbStatus};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use super::driver::Driver;
use super::harness::{Harness, PATIENCE, Running, Share, copy_program, has_fuse, wait_until, write_script};
use super::trust::{Host, hosts, pair};

/// A process that another process started; it ends with the test.
pub struct Later(Pid);

impl Later {
    pub fn of(answer: &Value) -> Self {
        let pid = answer["pid"].as_i64().expect("a restart says which process goes on");
        Self(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap())
    }

    fn runs(&self) -> bool {
        // A process that has no waiting parent stays in the table as a zombie.
        let status = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero())).unwrap_or_default();
        test_kill_process(self.0).is_ok() && !status.contains(") Z ")
    }

    /// Waits until it has ended by itself, because another process goes on.
    pub fn has_ended(self) {
        wait_until(PATIENCE, "it ends by itself", || !self.runs());
        // The number may be another process's by now.
        std::mem::forget(self);
    }

    pub fn end(&self) {
        kill_process(self.0, Signal::TERM).unwrap();
        wait_until(PATIENCE, "it ends in good order", || !self.runs());
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

pub fn config(folder: &Path, text: &str) -> String {
    let path = folder.join("farbus.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn names(address: &str) -> Vec<String> {
    client::list(address).unwrap().iter().map(|record| client::name_of(record).to_owned()).collect()
}

/// A copy of the program, which a test may overwrite.
fn program(harness: &Harness) -> PathBuf {
    let copy = harness.path("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &copy);
    copy
}

fn replace(program: &Path, text: &str) {
    // Replaces the file as a package manager does: the running program keeps the old one.
    let new = program.with_extension("new");
    write_script(&new, text);
    fs::rename(new, program).unwrap();
}

#[test]
fn restarted_daemon_serves_the_same_devices_at_the_same_address() {
    let harness = Harness::new();
    let text = "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero'}, {what='keyboard'}]";
    let file = config(&harness.path("run"), text);
    let mut daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", &file])));
    let first = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0), "the old one ends well");
    daemon.process.assert_logged("another process goes on in this one's place");
    let log = daemon.process.log();
    let is_debug_text = |line: &&str| line.contains("another process goes on") && line.contains('{');
    assert_eq!(log.lines().find(is_debug_text), None, "a log line has fields");
    // A randomly chosen port stays the same: clients need not be told another one.
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let second = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    assert_ne!(first.0, second.0);
    wait_until(PATIENCE, "the one before it ends", || !first.runs());
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let status = harness.json(&["status", "--json"]);
    let [process] = &status.as_array().unwrap()[..] else { panic!("one process: {status}") };
    assert_eq!(process["pid"], second.0.as_raw_nonzero().get());
    // Restarts by signal, as an operator may do by hand.
    kill_process(second.0, Signal::USR2).unwrap();
    wait_until(PATIENCE, "a third goes on", || !second.runs());
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let status = harness.json(&["status", "--json"]);
    let third = Later::of(&status[0]);
    third.end();
    assert!(client::list(&daemon.address).is_err(), "nobody is left");
    // The old broker may still be cleaning up.
    let is_nobody = || {
        let nobody = harness.run(&["daemon", "restart"]);
        nobody.code == Some(4) && nobody.stderr.contains("no daemon")
    };
    wait_until(PATIENCE, "nobody is left to be asked", is_nobody);
}

#[test]
fn replacement_that_fails_to_start_leaves_everything_as_it_was() {
    let harness = Harness::new();
    let file = config(&harness.path("run"), "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero'}]");
    let program = program(&harness);
    let daemon = Share::follow(Running::start(harness.command_of(&program, &["daemon", "--config", &file])));
    for broken in ["#!/bin/sh\nexit 1\n", "no program at all"] {
        replace(&program, broken);
        let refused = harness.run(&["daemon", "restart"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("this process goes on"), "{refused:?}");
        assert_eq!(names(&daemon.address), ["zero"]);
    }
    fs::remove_file(&program).unwrap();
    let refused = harness.run(&["daemon", "restart"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("this process goes on"), "{refused:?}");
    // The next program file is complete.
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &program);
    let next = Later::of(&harness.json(&["daemon", "restart", "--json"]));
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero"]);
    let running = fs::read_link(format!("/proc/{}/exe", next.0.as_raw_nonzero())).unwrap();
    assert_eq!(running, program, "the program that is there now");
}

#[test]
fn restart_that_would_interrupt_an_attachment_needs_interrupt() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (target, at) = (share.target("disk"), harness.path("mnt"));
    let attach = format!("[[attach]]\ntarget='{target}'\nvia='fuse'\nat='{}'", at.display());
    let file = config(&harness.path("tmp"), &format!("plain.listen = ['127.0.0.1:0']\n{attach}"));
    let mut daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", &file])));
    let disk = at.join("disk.img");
    let is_there = || fs::metadata(&disk).is_ok_and(|file| file.len() == 1 << 20);
    wait_until(PATIENCE, "the disk", is_there);
    let refused = harness.run(&["daemon", "restart"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("is attached via fuse"), "{refused:?}");
    assert!(refused.stderr.contains("--interrupt"), "{refused:?}");
    assert!(is_there(), "nothing happened");
    let next = Later::of(&harness.json(&["daemon", "restart", "--interrupt", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0), "{}", daemon.process.log());
    wait_until(PATIENCE, "the disk, again", is_there);
    next.end();
}

/// A daemon of `lab3` that shares `what` with paired hosts and with any host of this machine; returns both addresses.
pub fn exporter<'h>(harness: &'h Harness, lab3: &Host<'h>, what: &str) -> (Running, String, String) {
    let text = format!("secure.listen = ['127.0.0.1:0']\nplain.listen = ['127.0.0.1:0']\nshare = [{what}]");
    let file = config(&harness.path("tmp"), &text);
    let daemon = lab3.start(&["daemon", "--config", &file]);
    let mut addresses = [String::new(), String::new()];
    for _ in 0..2 {
        let line = daemon.wait_for_line("listening on");
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        addresses[usize::from(line.contains("for paired hosts"))] = address;
    }
    let [plain, secure] = addresses;
    (daemon, plain, secure)
}

pub fn restart(lab3: &Host<'_>, sessions: u64) -> Later {
    let answer = lab3.json(&["daemon", "restart", "--json"]);
    let later = Later::of(&answer);
    assert_eq!(answer["sessions"], sessions, "{answer}");
    later
}

fn block(at: u64, round: u64) -> Vec<u8> {
    (0..64 << 10).map(|byte: u64| (byte + at * 31 + round * 7) as u8).collect()
}

#[test]
fn importer_notices_at_most_a_short_pause_when_its_exporter_restarts() {
    hardly_notices(&[]);
}

#[test]
fn importer_with_several_links_notices_at_most_a_short_pause_at_a_restart() {
    hardly_notices(&["--links", "3"]);
}

#[test]
fn importer_with_modules_notices_at_most_a_short_pause_at_a_restart() {
    hardly_notices(&["--module", "zstd", "--module", "bundle", "--module", "delay:time=500us"]);
}

fn hardly_notices(through: &[&str]) {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("image", 8 << 20);
    let (mut daemon, _, secure) = exporter(&harness, &lab3, &format!("{{what='disk:{}'}}", image.display()));
    let at = harness.path("mnt");
    let way = ["--via", "fuse", "--at", at.to_str().unwrap(), "--address", &secure];
    let attach = desk.start(&[&["attach", "lab3/disk"], &way[..], through].concat());
    attach.wait_for_line("attached as");
    let disk = OpenOptions::new().read(true).write(true).open(at.join("disk.img")).unwrap();
    let is_done = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                rounds += 1;
                for at in 0..32 {
                    let mut found = vec![0; 64 << 10];
                    disk.read_exact_at(&mut found, at << 16).expect("no read fails");
                    assert!(rounds == 1 || found == block(at, rounds - 1), "block {at} in round {rounds}");
                    disk.write_all_at(&block(at, rounds), at << 16).expect("no write fails");
                }
                disk.sync_all().expect("no flush fails");
            }
            rounds
        });
        let mut later: Vec<Later> = Vec::new();
        for links in 1..=4 {
            later.push(restart(&lab3, 1));
            let is_linked = || attach.log().matches("linked again").count() >= links;
            wait_until(PATIENCE, "a link to the next process", is_linked);
            // waits: what is under test is in use for a while, however little of it runs in that time
            thread::sleep(Duration::from_millis(100));
        }
        is_done.store(true, Ordering::Release);
        let rounds = worker.join().expect("not a byte is wrong, and no call failed");
        let status = lab3.json(&["status", "--json"]);
        assert_eq!(status[0]["devices"][0]["state"], "in use", "{status}");
        rounds
    });
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0));
    assert!(!attach.log().contains("started anew"), "its session went on\n{}", attach.log());
    drop(disk);
    desk.ok(&["detach"]);
    let stored = fs::read(image).unwrap();
    for at in 0..32 {
        assert!(stored[at as usize * (64 << 10)..][..64 << 10] == block(at, rounds), "block {at}");
    }
}

/// Sets the flag when it is dropped, so that a worker ends even if the waiting thread fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn restart_keeps_a_usb_device_and_the_replacement_answers_pending_requests() {
    let harness = Harness::new();
    let [lab3, _] = hosts(&harness);
    let (daemon, plain, _) = exporter(&harness, &lab3, "{what='keyboard'}, {what='zero,fill=mod63'}");
    let (mut keyboard, mut zero) = (Driver::new(&plain, "keyboard"), Driver::new(&plain, "zero"));
    let is_done = AtomicBool::new(false);
    let mut later = Vec::new();
    thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let reader = scope.spawn(|| {
            let (mut count, mut links) = (0, 0);
            while !is_done.load(Ordering::Acquire) {
                let done = zero.read(100_000);
                assert_eq!((done.status, done.actual), (UrbStatus::Ok, 100_000), "transfer {count}");
                let counts = (0..100_000).map(|at| (at % 512 % 63) as u8);
                assert!(done.payload.contiguous().iter().copied().eq(counts), "transfer {count}");
                (count, links) = (count + 1, zero.linked.relinks());
            }
            (count, links)
        });
        for text in ["a", "b", "c"] {
            // The request waits for a key, in one process after the other.
            keyboard.submit(|id| Urb::data_in(id, EpAddr::from_byte(0x81), 8));
            later.push(restart(&lab3, 2));
            wait_until(PATIENCE, "its devices are there", || lab3.run(&["type", "keyboard", text]).code == Some(0));
            let pressed = keyboard.wait();
            let usage = text.as_bytes()[0] - b'a' + 4;
            assert_eq!(pressed.status, UrbStatus::Ok, "{text}: {pressed:?}\n{}", daemon.log());
            assert_eq!(pressed.payload.into_vec()[2], usage, "{text}");
            assert_eq!(keyboard.read(8).payload.into_vec(), [0; 8], "it is let go of");
        }
        is_done.store(true, Ordering::Release);
        let (count, links) = reader.join().expect("not a byte is wrong, and no transfer failed");
        println!("{count} transfers over {links} links");
        assert!(count > 0 && links >= 3, "{count} transfers over {links} links");
    });
    assert!(keyboard.linked.relinks() >= 3);
    // No other importer has got the keyboard meanwhile.
    let refused = lab3.run(&["attach", &format!("{plain}/keyboard"), "--via", "redir", "--grace", "5"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
}

#[test]
fn restart_that_would_lose_a_memory_disk_needs_interrupt() {
    let harness = Harness::new();
    let file = config(&harness.path("run"), "plain.listen = ['127.0.0.1:0']\nshare = [{what='memory:1M'}]");
    let mut daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", &file])));
    let refused = harness.run(&["daemon", "restart"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("what is in memory of memory"), "{refused:?}");
    assert_eq!(names(&daemon.address), ["memory"]);
    let _next = Later::of(&harness.json(&["daemon", "restart", "--interrupt", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0));
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["memory"]);
}
