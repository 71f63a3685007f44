//! Disks of another host that are attached here and moved to disks of further hosts, and back, while programs write and
//! check them (requirement N12). Each host has a state folder of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, Share, has, has_fuse, has_program, wait_until};
use super::restart::SetOnDrop;
use super::swap_attached::{Attached, DISK_BYTES, MIB, WORK_BYTES, assert_ended, file_target, fill, fio};
use super::trust::three;

/// A host that shares a disk.
struct Host {
    harness: Harness,
    image: PathBuf,
    share: Share,
}

impl Host {
    fn new() -> Self {
        Self::with(DISK_BYTES)
    }

    fn with(bytes: u64) -> Self {
        let harness = Harness::new();
        let image = harness.image("disk.img", bytes);
        let share = harness.share(&[&format!("disk:{}", image.display())]);
        Self { harness, image, share }
    }

    fn target(&self) -> String {
        self.share.target("disk")
    }

    /// Shares the disk again, in another process.
    fn share_again(&mut self) {
        self.share.process.kill();
        self.share = self.harness.share(&[&format!("disk:{}", self.image.display())]);
    }
}

/// The attached disk, as its host shows it.
fn shown(harness: &Harness) -> Value {
    let status = harness.run(&["status", "--json"]).stdout;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let all = status.as_array().into_iter().flatten().flat_map(|it| it["devices"].as_array().into_iter().flatten());
    all.into_iter().find(|it| it["bus_id"].is_null() && !it["medium"].is_null()).cloned().unwrap_or_default()
}

fn is_swapping(harness: &Harness) -> bool {
    shown(harness)["medium"]["is_swapping"] == true
}

fn attach(harness: &Harness, target: &str) -> super::harness::Outcome {
    harness.run(&["attach", target, "--via", "nbd", "--grace", "10"])
}

/// Moves an attached disk from host to host, to this machine and back to the second host, while fio works.
fn moves_between_hosts_under_load(via: &str) {
    if !has("fio", has_program("fio")) || (via == "fuse" && !has_fuse()) {
        return;
    }
    let here = Harness::new();
    let (mut first, mut second) = (Host::new(), Host::new());
    let filled = fill(&first.image);
    let mut attached = Attached::by(&here, &first.share, via);
    let is_done = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) || round < 2 {
                round += 1;
                let outcome = fio(&here, &attached.fio, round, false);
                assert_eq!(outcome.code, Some(0), "round {round}: {outcome:?}");
            }
            round
        });
        let swap = |to: &str, more: &[&str]| {
            let ended = here.json(&[&["swap", &attached.target, "--to", to, "--json"], more].concat());
            assert_eq!((&ended["state"], &ended["left_bytes"]), (&"done".into(), &0.into()), "{ended}");
            assert_eq!((&ended["to"], &ended["warning"]), (&to.into(), &Value::Null), "{ended}");
            let shown = shown(&here);
            assert_eq!((&shown["medium"]["at"], &shown["state"]), (&to.into(), &"attached".into()), "{shown}");
            (ended, shown)
        };
        let to = second.target();
        let (ended, device) = swap(&to, &["--verify"]);
        assert!(ended["copied_bytes"].as_u64().is_some_and(|bytes| bytes >= 8 * MIB), "{ended}");
        assert_eq!(device["user"], to.trim_end_matches("/disk"), "it is that host's disk now: {device}");
        assert!(device["medium"]["identity"]["id"].is_string() && device["links"].is_object(), "{device}");
        first.share_again();
        assert_ended(&attach(&here, &first.target()), 3, "farbus swap --forget disk");
        first.share.process.kill();
        let local = format!("block:{}", here.path("new.img").display());
        let (_, device) = swap(&local, &[]);
        assert_eq!(device["links"], Value::Null, "it is in no session: {device}");
        second.share_again();
        assert_ended(&attach(&second.harness, &second.target()), 3, "farbus swap --forget disk");
        assert_ended(&attach(&here, &second.target()), 3, "farbus swap --forget disk");
        let (_, device) = swap(&second.target(), &[]);
        assert_eq!(device["user"], second.target().trim_end_matches("/disk"), "{device}");
        is_done.store(true, Ordering::Release);
        worker.join().expect("not a byte is wrong, and nothing fails")
    });
    assert!(rounds >= 2);
    let outcome = fio(&here, &attached.fio, rounds + 1, false);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    attached.end();
    let outcome = fio(&here, &file_target(&second.image), rounds + 1, true);
    assert_eq!(outcome.code, Some(0), "what was written last is there: {outcome:?}");
    let bytes = std::fs::read(&second.image).unwrap();
    let [from, to] = [WORK_BYTES + MIB, DISK_BYTES - 4 * MIB].map(|at| at as usize);
    assert!(bytes[from..][..filled.len()] == filled && bytes[to..] == filled, "what was only copied is there, too");
    // It is a disk like any other, for every host.
    let mut other = Attached::by(&first.harness, &second.share, "nbd");
    other.end();
    assert_ended(&here.run(&["share", &format!("block:{}", here.path("new.img").display())]), 1, "is old");
}

#[test]
fn a_disk_attached_by_nbd_moves_from_host_to_host_to_this_machine_and_back_under_load() {
    moves_between_hosts_under_load("nbd");
}

#[test]
fn a_disk_attached_as_a_file_moves_from_host_to_host_to_this_machine_and_back_under_load() {
    moves_between_hosts_under_load("fuse");
}

#[test]
fn a_host_that_is_lost_during_the_move_ends_it_and_its_unfinished_copy_is_given_to_nobody_until_it_is_finished() {
    let here = Harness::new();
    let (first, mut second) = (Host::new(), Host::new());
    fill(&first.image);
    let mut attached = Attached::by(&here, &first.share, "nbd");
    let lost = second.target();
    let slowly = |to: &str| Running::start(here.command(&["swap", &attached.target, "--to", to, "--rate", "2M"]));
    let mut swapping = slowly(&lost);
    wait_until(PATIENCE, "it is being moved", || is_swapping(&here) && first_bytes_are_there(&second.image));
    second.share.process.kill();
    assert_eq!(swapping.wait_for_end(PATIENCE), Some(6), "{}", swapping.log());
    let device = shown(&here);
    assert_eq!((&device["medium"]["at"], &device["state"]), (&attached.target.as_str().into(), &"attached".into()));
    second.share_again();
    // Hosts without a key are one here, by their address. For any other it is not there.
    let kept = second.harness.json(&["status", "--json"]);
    assert_eq!(kept[0]["devices"][0]["moved"]["state"], "moving", "{kept}");
    assert_ended(&attach(&here, &second.target()), 3, "is an unfinished copy of");
    // Now the host that moves it crashes.
    let mut swapping = slowly(&second.target());
    wait_until(PATIENCE, "it is being moved again", || is_swapping(&here));
    attached.process.kill();
    assert_eq!(swapping.wait_for_end(PATIENCE), Some(4), "{}", swapping.log());
    // Its exporter keeps it for the crashed process until the grace is over.
    wait_until(PATIENCE, "it is refused because it is a part of a copy", || {
        let outcome = attach(&here, &second.target());
        outcome.code == Some(3) && outcome.stderr.contains("is an unfinished copy of")
    });
    let mut attached = Attached::by(&here, &first.share, "nbd");
    let to = second.target();
    let moved = here.run(&["swap", &attached.target, "--to", &to]);
    assert_ended(&moved, 0, "its host gives it to nobody any more");
    assert_ended(&moved, 0, &format!("farbus attach {to}"));
    assert!(std::fs::read(&first.image).unwrap() == std::fs::read(&second.image).unwrap(), "the copy is the original");
    attached.end();
    assert_ended(&attach(&here, &first.target()), 3, "farbus swap --forget");
    let now = second.harness.json(&["status", "--json"]);
    assert_eq!(now[0]["devices"][0]["moved"], Value::Null, "{now}");
    let mut other = Attached::by(&first.harness, &second.share, "nbd");
    other.end();
}

fn first_bytes_are_there(image: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(image).is_ok_and(|about| about.blocks() > 0)
}

#[test]
fn disks_that_cannot_take_the_data_are_refused_and_given_back_as_they_were() {
    let here = Harness::new();
    let (first, small, used) = (Host::new(), Host::with(DISK_BYTES - MIB), Host::new());
    let mut attached = Attached::by(&here, &first.share, "nbd");
    let mut other = Attached::by(&used.harness, &used.share, "nbd");
    let swap = |to: &str| here.run(&["swap", &attached.target, "--to", to]);
    assert_ended(&swap(&small.target()), 3, "the destination is too small");
    assert_ended(&swap(&used.target()), 3, "is in use");
    assert_ended(&swap(&first.target()), 3, "is in use");
    assert_ended(&swap(&first.target().replace("/disk", "/none")), 4, "");
    assert_ended(&swap("nobody.invalid/disk"), 5, "nobody.invalid");
    assert_ended(&here.run(&["swap", &attached.target, "--to", "disk"]), 2, "HOST/DEVICE");
    assert_ended(&first.harness.run(&["swap", "disk", "--to", &used.target()]), 3, "only a disk that is attached");
    assert_eq!(shown(&here)["medium"]["at"], attached.target.as_str());
    attached.end();
    other.end();
    // No host was kept from a disk that was not overwritten.
    let mut after = Attached::by(&first.harness, &small.share, "nbd");
    after.end();
}

/// A daemon is replaced while its disk is on a second host, on a third, on this machine and on the first again, and fio
/// works. Links are not passed on: each new process connects to the host that has the disk.
fn daemon_is_replaced_wherever_its_disk_is(via: &str, more: &str) {
    if !has("fio", has_program("fio")) || (via == "fuse" && !has_fuse()) {
        return;
    }
    let here = Harness::new();
    let (first, second, third) = (Host::new(), Host::new(), Host::new());
    let (target, config, at) = (first.target(), here.path("farbus.toml"), here.path(via));
    let (key, engine) = match via {
        "fuse" => ("at", file_target(&at.join("disk.img"))),
        _ => ("socket", vec!["--ioengine=nbd".to_owned(), format!("--uri=nbd+unix:///?socket={}", at.display())]),
    };
    let text =
        format!("[[attach]]\ntarget = '{target}'\ngrace = 10\nvia = '{via}'\n{key} = '{}'\n{more}", at.display());
    std::fs::write(&config, text).unwrap();
    let mut daemon = Running::start(here.command(&["daemon", "--config", config.to_str().unwrap()]));
    wait_until(PATIENCE, "it is attached", || shown(&here)["state"] == "attached");
    let local = format!("block:{}", here.path("new.img").display());
    let is_done = AtomicBool::new(false);
    let (rounds, later) = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) || round < 2 {
                round += 1;
                let outcome = fio(&here, &engine, round, false);
                assert_eq!(outcome.code, Some(0), "round {round}: {outcome:?}");
            }
            round
        });
        let mut later: Option<super::restart::Later> = None;
        for to in [second.target(), third.target(), local, target.clone()] {
            assert_ended(&here.run(&["swap", &target, "--to", &to]), 0, "lies on");
            for _ in 0..2 {
                let answer = here.json(&["daemon", "restart", "--json"]);
                assert_eq!(answer["kept"].as_array().map(Vec::len), Some(1), "{to}: {answer}\n{}", daemon.log());
                let before = later.replace(super::restart::Later::of(&answer));
                before.into_iter().for_each(super::restart::Later::has_ended);
                wait_until(PATIENCE, "the replacement has it", || shown(&here)["state"] == "attached");
                assert_eq!(shown(&here)["medium"]["at"], to.as_str(), "{}", daemon.log());
            }
        }
        assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
        is_done.store(true, Ordering::Release);
        (worker.join().expect("not a byte is wrong, and nothing fails"), later)
    });
    later.expect("it was replaced").end();
    let outcome = fio(&here, &file_target(&first.image), rounds, true);
    assert_eq!(outcome.code, Some(0), "what was written last is there: {outcome:?}");
}

#[test]
fn a_daemon_whose_nbd_disk_moved_to_other_hosts_is_replaced_under_load_and_the_new_one_continues_there() {
    daemon_is_replaced_wherever_its_disk_is("nbd", "");
}

#[test]
fn a_daemon_whose_cached_file_moved_to_other_hosts_is_replaced_under_load_and_the_new_one_continues_there() {
    daemon_is_replaced_wherever_its_disk_is("fuse", "cache = 'writeback'\n");
}

#[test]
fn paired_hosts_keep_an_unfinished_copy_from_others_and_a_confined_attachment_proves_its_key_to_the_second() {
    let harness = Harness::new();
    let [lab3, desk, rack] = three(&harness);
    ["desk", "lab3"].iter().for_each(|host| drop(rack.ok(&["allow", host, "all"])));
    let [old, new] = ["old.img", "new.img"].map(|name| harness.image(name, DISK_BYTES));
    fill(&old);
    let (_first, first_at) = lab3.share(&[&format!("disk:{},name=disk", old.display())]);
    let (_second, second_at) = rack.share(&[&format!("disk:{},name=spare", new.display())]);
    for (host, named, address) in [(&desk, "lab3", &first_at), (&desk, "rack", &second_at), (&lab3, "rack", &second_at)]
    {
        host.ok(&["list", named, "--address", address]);
    }
    let socket = harness.path("nbd");
    let attach = || {
        let at = socket.to_str().unwrap();
        let attached =
            desk.start(&["attach", "lab3/disk", "--via", "nbd", "--socket", at, "--grace", "5", "--wait=60"]);
        attached.wait_for_line("attached");
        attached
    };
    let mut attached = attach();
    let mut swapping = desk.start(&["swap", "lab3/disk", "--to", "rack/spare", "--rate", "1M"]);
    wait_until(PATIENCE, "it is being copied", || first_bytes_are_there(&new));
    attached.kill();
    assert_eq!(swapping.wait_for_end(PATIENCE), Some(4), "{}", swapping.log());
    wait_until(PATIENCE, "another host is refused because it is a part of a copy", || {
        let outcome = lab3.run(&["attach", "rack/spare", "--via", "nbd"]);
        outcome.code == Some(3) && outcome.stderr.contains("a part of a copy: desk ")
    });
    let mut attached = attach();
    assert_ended(
        &desk.run(&["swap", "lab3/disk", "--to", "rack/spare", "--verify"]),
        0,
        "farbus attach rack:3240/spare",
    );
    attached.signal(Signal::INT);
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    assert!(std::fs::read(&old).unwrap() == std::fs::read(&new).unwrap(), "the copy is the original");
    assert_ended(&rack.run(&["swap", "--forget", "spare"]), 4, "nothing is against");
    assert_ended(&lab3.run(&["swap", "--forget", "disk"]), 0, "as it is");
}

#[test]
fn a_link_to_the_host_that_has_the_disk_now_is_waited_for_and_its_loss_ends_the_attachment() {
    let here = Harness::new();
    let (mut first, mut second) = (Host::new(), Host::new());
    let mut attached = Attached::by(&here, &first.share, "nbd");
    assert_ended(&here.run(&["swap", &attached.target, "--to", &second.target()]), 0, "lies on");
    first.share.process.kill();
    second.share.process.kill();
    wait_until(PATIENCE, "the link is missed", || shown(&here)["state"] == "link lost");
    assert_eq!(attached.process.wait_for_end(PATIENCE), Some(5), "{}", attached.process.log());
    // And the same where its owner ends it.
    let (first, second) = (Host::new(), Host::new());
    let mut attached = Attached::by(&here, &first.share, "nbd");
    assert_ended(&here.run(&["swap", &attached.target, "--to", &second.target()]), 0, "lies on");
    assert_ended(&here.run(&["detach", &attached.target]), 0, "");
    assert_eq!(attached.process.wait_for_end(PATIENCE), Some(0), "{}", attached.process.log());
    let status = second.harness.json(&["status", "--json"]);
    assert_eq!(status[0]["devices"][0]["user"], Value::Null, "it was given back: {status}");
}
