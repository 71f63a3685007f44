//! A daemon of the previous release whose program is replaced by this version's, and which is restarted in use.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::harness::{Harness, PATIENCE, has, has_fuse, has_program, is_mounted, wait_until};
use super::hosts::{Host, Previous, Release, This, address_in, end, has_previous, noise, pair, run_fio};

/// The process that continues after a restart; it ends with the test.
struct Later(Pid);

impl Later {
    fn of(answer: &Value) -> Self {
        let pid = i32::try_from(answer["pid"].as_i64().expect("a restart says which process goes on")).unwrap();
        Self(Pid::from_raw(pid).unwrap())
    }

    fn end(&self) {
        kill_process(self.0, Signal::TERM).unwrap();
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Sets the flag when it is dropped, so that a worker ends even if the waiting thread fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Replaces the file as a package manager does: the running program keeps the old one.
fn install(release: Release, program: &Path) {
    let new = program.with_extension("new");
    // Not by this process: another test's child would have the copy open for writing for a moment, and the copy could
    // not be run.
    assert!(Command::new("cp").arg(release.program()).arg(&new).status().unwrap().success());
    fs::rename(new, program).unwrap();
}

/// A host whose program can be replaced.
fn upgradable<'h>(harness: &'h Harness, name: &'static str) -> (Host<'h>, PathBuf) {
    let program = harness.path(&format!("farbus-{name}"));
    install(Previous, &program);
    (Host::new(harness, name, Previous).at(&program), program)
}

fn config(harness: &Harness, text: &str) -> String {
    let path = harness.path("tmp").join("farbus.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn states(host: &Host<'_>) -> Vec<String> {
    let status: Value = serde_json::from_str(&host.run(&["status", "--json"]).stdout).unwrap_or_default();
    let devices = status[0]["devices"].as_array().cloned().unwrap_or_default();
    devices.iter().map(|device| device["state"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn importer_upgraded_in_use_keeps_its_mount_and_its_nbd_clients() {
    if !has_previous() || !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    for exporter in [Previous, This] {
        let harness = Harness::new();
        let lab3 = Host::new(&harness, "lab3", exporter);
        let (desk, program) = upgradable(&harness, "desk");
        let images = ["disk", "block"].map(|name| harness.image(name, 8 << 20).display().to_string());
        let (_share, address) = lab3.share(&[&format!("disk:{}", images[0]), &format!("block:{}", images[1])]);
        let (at, socket) = (harness.path("mnt"), harness.path("far.sock"));
        let text = format!(
            "plain.listen = ['127.0.0.1:0']\n\
             [[attach]]\ntarget='{address}/disk'\ngrace=60\nvia='fuse'\nat='{}'\n\
             [[attach]]\ntarget='{address}/block'\ngrace=60\nvia='nbd'\ncache='writeback'\nsocket='{}'",
            at.display(),
            socket.display()
        );
        let mut daemon = desk.start(&["daemon", "--config", &config(&harness, &text)]);
        daemon.wait_for_line("listening on");
        wait_until(PATIENCE, "both are attached", || states(&desk) == ["attached", "attached"]);
        let is_done = AtomicBool::new(false);
        let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
        let file = File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
        let last = thread::scope(|scope| {
            let _end = SetOnDrop(&is_done);
            let clients = scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    // fio does not connect again: a connection that ends fails it.
                    run_fio(&harness, &["--ioengine=nbd", &uri]);
                }
            });
            let writer = scope.spawn(|| {
                let mut rounds = 0;
                while !is_done.load(Ordering::Acquire) || rounds == 0 {
                    rounds += 1;
                    let written = noise(rounds, 1 << 20);
                    file.write_all_at(&written, 512).expect("no write fails");
                    file.sync_all().expect("no flush fails");
                    let mut found = vec![0; 1 << 20];
                    file.read_exact_at(&mut found, 512).expect("no read fails");
                    assert!(found == written, "round {rounds}");
                }
                rounds
            });
            let mut later = Vec::new();
            // From the previous release to this version, and from this version to itself.
            for release in [This, This] {
                install(release, &program);
                let answer = desk.json(&["daemon", "restart", "--json"]);
                assert_eq!(
                    answer["kept"].as_array().map(Vec::len),
                    Some(2),
                    "{exporter:?}: {answer}\n{}",
                    daemon.log()
                );
                later.push(Later::of(&answer));
                wait_until(PATIENCE, "both have links", || states(&desk) == ["attached", "attached"]);
                // waits: what is under test is in use for a while, however little of it runs in that time
                thread::sleep(Duration::from_millis(300));
                assert!(!clients.is_finished() && !writer.is_finished(), "{}", daemon.log());
            }
            is_done.store(true, Ordering::Release);
            clients.join().expect("not a byte is wrong, and no request failed");
            println!("{} rounds", writer.join().expect("not a byte is wrong, and no call failed"));
            later
        });
        assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
        assert!(is_mounted(&at) && daemon.log().matches("linked again").count() >= 2, "{}", daemon.log());
        assert!(!daemon.log().contains("begun anew") && !daemon.log().contains("started anew"), "{}", daemon.log());
        drop(file);
        last.last().unwrap().end();
        wait_until(PATIENCE, "the mount goes with the last of them", || !is_mounted(&at));
    }
}

#[test]
fn exporter_upgraded_in_use_keeps_the_sessions_of_importers_of_both_releases() {
    if !has_previous() || !has_fuse() {
        return;
    }
    let ways: [&[&str]; 3] = [&[], &["--links", "3"], &["--module", "zstd", "--module", "bundle"]];
    for (importer, more) in [Previous, This].into_iter().flat_map(|importer| ways.map(|more| (importer, more))) {
        println!("{importer:?} {more:?}");
        let harness = Harness::new();
        let (lab3, program) = upgradable(&harness, "lab3");
        let desk = Host::new(&harness, "desk", importer);
        pair(&lab3, &desk);
        lab3.ok(&["allow", "desk", "all"]);
        let image = harness.image("image", 4 << 20);
        let what = format!("{{what='disk:{}'}}, {{what='keyboard'}}", image.display());
        let text = format!("plain.listen = ['127.0.0.1:0']\nsecure.listen = ['127.0.0.1:0']\nshare = [{what}]");
        let mut daemon = lab3.start(&["daemon", "--config", &config(&harness, &text)]);
        let lines = [daemon.wait_for_line("listening on"), daemon.wait_for_line("listening on")];
        let secure = lines.iter().find(|line| line.contains("for paired hosts")).expect("it listens for them");
        let (secure, at) = (address_in(secure), harness.path("mnt"));
        let words = ["attach", "lab3/disk", "--via", "fuse", "--at", at.to_str().unwrap(), "--address", &secure];
        let attach = desk.start(&[&words[..], more].concat());
        attach.wait_for_line("attached as");
        let file = File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
        let is_done = AtomicBool::new(false);
        let (_later, rounds) = thread::scope(|scope| {
            let _end = SetOnDrop(&is_done);
            let writer = scope.spawn(|| {
                let mut rounds = 0;
                while !is_done.load(Ordering::Acquire) || rounds == 0 {
                    rounds += 1;
                    let written = noise(rounds, 1 << 20);
                    file.write_all_at(&written, 0).expect("no write fails");
                    file.sync_all().expect("no flush fails");
                    let mut found = vec![0; 1 << 20];
                    file.read_exact_at(&mut found, 0).expect("no read fails");
                    assert!(found == written, "round {rounds}");
                }
                rounds
            });
            let mut later = Vec::new();
            // From the previous release to this version, and from this version to itself.
            for links in 1..=2 {
                install(This, &program);
                let answer = lab3.json(&["daemon", "restart", "--json"]);
                assert_eq!(answer["sessions"], 1, "{importer:?} {more:?}: {answer}\n{}", daemon.log());
                later.push(Later::of(&answer));
                let is_linked = || attach.log().matches("linked again").count() >= links;
                wait_until(PATIENCE, "a link to the next process", is_linked);
                // waits: what is under test is in use for a while, however little of it runs in that time
                thread::sleep(Duration::from_millis(200));
            }
            is_done.store(true, Ordering::Release);
            (later, writer.join().expect("not a byte is wrong, and no call failed"))
        });
        assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
        assert!(!attach.log().contains("started anew"), "{importer:?} {more:?}: {}", attach.log());
        drop(file);
        end(attach);
        assert!(fs::read(&image).unwrap()[..1 << 20] == noise(rounds, 1 << 20), "{importer:?} {more:?}");
    }
}

#[test]
fn daemon_of_this_version_that_is_replaced_by_the_previous_release_goes_on_serving() {
    if !has_previous() {
        return;
    }
    let harness = Harness::new();
    let (desk, program) = upgradable(&harness, "desk");
    install(This, &program);
    let text = "plain.listen = ['127.0.0.1:0']\nshare = [{what='zero'}, {what='keyboard'}]";
    let daemon = desk.start(&["daemon", "--config", &config(&harness, text)]);
    let address = address_in(&daemon.wait_for_line("listening on"));
    install(Previous, &program);
    // Whichever process continues, the share stays at the same address.
    let answer = desk.run(&["daemon", "restart", "--json"]);
    let _later = serde_json::from_str::<Value>(&answer.stdout)
        .ok()
        .filter(|process| process["pid"].is_number())
        .map(|answer| Later::of(&answer));
    println!("{answer:?}");
    let other = Host::new(&harness, "other", Previous);
    wait_until(PATIENCE, "it shares", || {
        let listed = other.run(&["list", &address, "--json"]);
        listed.code == Some(0) && listed.stdout.contains("keyboard")
    });
}
