//! `farbus daemon restart`: another process goes on in the daemon's place, and who uses it hardly notices.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farbus::client;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use super::harness::{House, PATIENCE, Running, Share, has_fuse, wait_until};
use super::trust::{hosts, pair};

/// A process that another started, ended with the test.
struct Later(Pid);

impl Later {
    fn of(answer: &Value) -> Self {
        let pid = answer["pid"].as_i64().expect("a restart says which process goes on");
        Self(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap())
    }

    fn runs(&self) -> bool {
        // One that nobody waits for stays in the table.
        let status = fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_nonzero())).unwrap_or_default();
        test_kill_process(self.0).is_ok() && !status.contains(") Z ")
    }

    fn end(&self) {
        kill_process(self.0, Signal::TERM).unwrap();
        wait_until(PATIENCE, "it ends in good order", || !self.runs());
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

fn config(folder: &Path, text: &str) -> String {
    let path = folder.join("farbus.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn names(address: &str) -> Vec<String> {
    client::list(address).unwrap().iter().map(|record| client::name_of(record).to_owned()).collect()
}

/// A copy of the program, which a test may replace.
fn program(house: &House) -> PathBuf {
    let copy = house.path("farbus");
    fs::copy(env!("CARGO_BIN_EXE_farbus"), &copy).unwrap();
    copy
}

fn replace(program: &Path, text: &str) {
    // As a package manager does: what runs keeps its file.
    let new = program.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, program).unwrap();
}

#[test]
fn another_process_serves_the_same_devices_at_the_same_address() {
    let house = House::new();
    let text = "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero'}, {what='keyboard'}]";
    let file = config(&house.path("run"), text);
    let mut daemon = Share::follow(Running::start(house.command(&["daemon", "--config", &file])));
    let first = Later::of(&house.json(&["daemon", "restart", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0), "the old one ends well");
    // A port that was chosen by chance stays: nobody had to be told another.
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let second = Later::of(&house.json(&["daemon", "restart", "--json"]));
    assert_ne!(first.0, second.0);
    wait_until(PATIENCE, "the one before it ends", || !first.runs());
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let status = house.json(&["status", "--json"]);
    let [process] = &status.as_array().unwrap()[..] else { panic!("one process: {status}") };
    assert_eq!(process["pid"], second.0.as_raw_nonzero().get());
    // As an old hand does it.
    kill_process(second.0, Signal::USR2).unwrap();
    wait_until(PATIENCE, "a third goes on", || !second.runs());
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero", "keyboard"]);
    let status = house.json(&["status", "--json"]);
    let third = Later::of(&status[0]);
    third.end();
    assert!(client::list(&daemon.address).is_err(), "nobody is left");
    let nobody = house.run(&["daemon", "restart"]);
    assert!(nobody.code == Some(4) && nobody.stderr.contains("no daemon"), "{nobody:?}");
}

#[test]
fn a_program_that_does_not_come_up_leaves_everything_as_it_was() {
    let house = House::new();
    let file = config(&house.path("run"), "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero'}]");
    let program = program(&house);
    let daemon = Share::follow(Running::start(house.command_of(&program, &["daemon", "--config", &file])));
    for broken in ["#!/bin/sh\nexit 1\n", "no program at all"] {
        replace(&program, broken);
        let refused = house.run(&["daemon", "restart"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("this process goes on"), "{refused:?}");
        assert_eq!(names(&daemon.address), ["zero"]);
    }
    fs::remove_file(&program).unwrap();
    let refused = house.run(&["daemon", "restart"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("this process goes on"), "{refused:?}");
    // The next one is whole.
    fs::copy(env!("CARGO_BIN_EXE_farbus"), &program).unwrap();
    let next = Later::of(&house.json(&["daemon", "restart", "--json"]));
    wait_until(PATIENCE, "it shares", || names(&daemon.address) == ["zero"]);
    let running = fs::read_link(format!("/proc/{}/exe", next.0.as_raw_nonzero())).unwrap();
    assert_eq!(running, program, "the program that is there now");
}

#[test]
fn what_cannot_go_on_is_not_torn_away_unless_that_is_meant() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let image = house.image("image", 1 << 20);
    let share = house.share(&[&format!("disk:{}", image.display())]);
    let (target, at) = (share.target("disk"), house.path("mnt"));
    let attach = format!("[[attach]]\ntarget='{target}'\nvia='fuse'\nat='{}'", at.display());
    let file = config(&house.path("tmp"), &format!("plain.listen = ['127.0.0.1:0']\n{attach}"));
    let mut daemon = Share::follow(Running::start(house.command(&["daemon", "--config", &file])));
    let disk = at.join("disk.img");
    let is_there = || fs::metadata(&disk).is_ok_and(|file| file.len() == 1 << 20);
    wait_until(PATIENCE, "the disk", is_there);
    let refused = house.run(&["daemon", "restart"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("is attached via fuse"), "{refused:?}");
    assert!(refused.stderr.contains("--interrupt"), "{refused:?}");
    assert!(is_there(), "nothing happened");
    let next = Later::of(&house.json(&["daemon", "restart", "--interrupt", "--json"]));
    assert_eq!(daemon.process.wait_for_end(PATIENCE), Some(0), "{}", daemon.process.log());
    wait_until(PATIENCE, "the disk, again", is_there);
    next.end();
}

#[test]
fn an_importer_outlives_the_restart_of_its_exporter() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let [lab3, desk] = hosts(&house);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = house.image("image", 8 << 20);
    let text =
        format!("secure.listen = ['127.0.0.1:0']\nplain.listen = []\nshare = [{{what='disk:{}'}}]", image.display());
    let file = config(&house.path("tmp"), &text);
    let mut daemon = lab3.start(&["daemon", "--config", &file]);
    let line = daemon.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    let at = house.path("mnt");
    let attach =
        desk.start(&["attach", "lab3/disk", "--via", "fuse", "--at", at.to_str().unwrap(), "--address", &address]);
    attach.wait_for_line("attached as");
    let disk = OpenOptions::new().read(true).write(true).open(at.join("disk.img")).unwrap();
    let mut later: Vec<Later> = Vec::new();
    for round in 0..3u8 {
        let block = [round + 1; 64 << 10];
        disk.write_all_at(&block, u64::from(round) << 16).unwrap();
        later.push(Later::of(&lab3.json(&["daemon", "restart", "--json"])));
        thread::sleep(Duration::from_millis(100));
        disk.sync_all().unwrap();
        for at in 0..=round {
            let mut found = [0; 64 << 10];
            disk.read_exact_at(&mut found, u64::from(at) << 16).unwrap();
            assert!(found == [at + 1; 64 << 10], "block {at} in round {round}");
        }
    }
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0));
    drop(disk);
    desk.ok(&["detach"]);
}
