//! Disks of another host that are attached here and moved to this machine while programs write and check them
//! (requirement N12).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has, has_fuse, has_program, wait_until};
use super::restart::{Later, SetOnDrop};

pub const MIB: u64 = 1 << 20;
pub const DISK_BYTES: u64 = 64 * MIB;
/// What fio writes and reads: the rest of the disk is only copied.
pub const WORK_BYTES: u64 = 8 * MIB;

/// An attached disk, and how fio reaches it.
pub struct Attached {
    pub process: Running,
    pub target: String,
    pub fio: Vec<String>,
}

impl Attached {
    pub fn by(harness: &Harness, share: &Share, via: &str) -> Self {
        let at = harness.path(via);
        let at = at.to_str().unwrap();
        let (option, fio) = match via {
            "fuse" => ("--at", file_target(&Path::new(at).join("disk.img"))),
            _ => ("--socket", vec!["--ioengine=nbd".to_owned(), format!("--uri=nbd+unix:///?socket={at}")]),
        };
        let target = share.target("disk");
        // A killed importer's disk is free after its grace.
        let arguments =
            ["attach", &target, "--via", via, option, at, "--grace", "10", "--wait=60", "--cache", "writeback"];
        let process = Running::start(harness.command(&arguments));
        process.wait_for_line("attached");
        Self { process, target, fio }
    }

    pub fn end(&mut self) {
        self.process.signal(Signal::INT);
        assert_eq!(self.process.wait_for_end(PATIENCE), Some(0), "{}", self.process.log());
    }
}

pub fn file_target(image: &Path) -> Vec<String> {
    vec!["--ioengine=libaio".to_owned(), "--direct=1".to_owned(), format!("--filename={}", image.display())]
}

/// Writes at random, syncs and reads again, or only reads what the round with this number wrote.
pub fn fio(harness: &Harness, target: &[String], round: u32, is_verify_only: bool) -> Outcome {
    let work = "--name=moved --rw=randwrite --bsrange=4k-128k --blockalign=4k --iodepth=16 --fsync=50 --end_fsync=1 \
                --verify=pattern --verify_interval=4096 --verify_fatal=1 --verify_state_save=0 --minimal \
                --allow_file_create=0";
    let mut arguments: Vec<String> = work.split_whitespace().map(str::to_owned).collect();
    arguments.extend(target.iter().cloned());
    arguments.push(format!("--size={WORK_BYTES}"));
    arguments.push(format!("--randseed={round}"));
    arguments.push(format!("--verify_pattern=0x{round:08x}%o"));
    arguments.extend(is_verify_only.then(|| "--verify_only=1".to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    finish(harness.command_of(Path::new("fio"), &arguments), PATIENCE)
}

/// Bytes that say where they are, behind those that fio uses.
pub fn fill(image: &Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let bytes: Vec<u8> = (0..4 * MIB).map(|byte| (byte * 31 + byte / 999) as u8).collect();
    let file = std::fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&bytes, WORK_BYTES + MIB).unwrap();
    file.write_all_at(&bytes, DISK_BYTES - 4 * MIB).unwrap();
    bytes
}

/// Shares the disk that is moved later. Returns what is written on it beside fio's part.
fn old_disk(harness: &Harness) -> (Vec<u8>, Share) {
    let image = harness.image("old.img", DISK_BYTES);
    let filled = fill(&image);
    (filled, harness.share(&[&format!("disk:{}", image.display())]))
}

pub fn assert_ended(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.contains(part) || outcome.stdout.contains(part), "no '{part}' in {outcome:?}");
}

/// Moves an attached disk to two files, one after the other, while fio works; its exporter is killed after the first.
fn moves_under_load(via: &str) {
    if !has("fio", has_program("fio")) || (via == "fuse" && !has_fuse()) {
        return;
    }
    let harness = Harness::new();
    let (filled, mut share) = old_disk(&harness);
    let mut attached = Attached::by(&harness, &share, via);
    let new: [PathBuf; 2] = ["new.img", "newer.img"].map(|name| harness.path(name));
    let is_done = AtomicBool::new(false);
    let rounds = thread::scope(|s| {
        let worker = s.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) || round < 2 {
                round += 1;
                let outcome = fio(&harness, &attached.fio, round, false);
                assert_eq!(outcome.code, Some(0), "round {round}: {outcome:?}");
            }
            round
        });
        let swap = |to: &Path, more: &[&str]| {
            let to = format!("block:{}", to.display());
            let ended = harness.json(&[&["swap", &attached.target, "--to", &to, "--json"], more].concat());
            assert_eq!((&ended["state"], &ended["left_bytes"]), (&"done".into(), &0.into()), "{ended}");
            assert!(ended["quiet_ms"].as_f64().is_some_and(|quiet_ms| quiet_ms < 5000.0), "{ended}");
            let status = harness.json(&["status", "--json"]);
            let devices: Vec<&Value> =
                status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap()).collect();
            assert!(devices.iter().any(|device| device["medium"]["at"] == to.as_str()), "{status}");
            ended
        };
        let first = swap(&new[0], &["--verify"]);
        // Its holes are not copied.
        assert!(first["copied_bytes"].as_u64().is_some_and(|bytes| bytes >= 8 * MIB), "{first}");
        share.process.kill();
        swap(&new[1], &[]);
        is_done.store(true, Ordering::Release);
        worker.join().expect("not a byte is wrong, and nothing fails")
    });
    attached.end();
    let outcome = fio(&harness, &file_target(&new[1]), rounds, true);
    assert_eq!(outcome.code, Some(0), "what was written last is there: {outcome:?}");
    let bytes = std::fs::read(&new[1]).unwrap();
    let [from, to] = [WORK_BYTES + MIB, DISK_BYTES - 4 * MIB].map(|at| at as usize);
    assert!(bytes[from..][..filled.len()] == filled && bytes[to..] == filled, "what was only copied is there, too");
    assert!(bytes[from + filled.len()..to].iter().all(|byte| *byte == 0));
}

#[test]
fn a_disk_attached_by_nbd_moves_to_this_machine_under_load_and_outlives_its_exporter() {
    moves_under_load("nbd");
}

#[test]
fn a_disk_attached_as_a_file_moves_to_this_machine_under_load_and_outlives_its_exporter() {
    moves_under_load("fuse");
}

#[test]
fn a_move_that_is_cut_off_continues_and_its_old_disk_is_not_attached_again() {
    let harness = Harness::new();
    let image = harness.image("old.img", DISK_BYTES);
    fill(&image);
    let share = harness.share(&[&format!("disk:{}", image.display()), "zero"]);
    let target = share.target("disk");
    let new = harness.path("new.img");
    let to = format!("block:{}", new.display());
    assert_ended(&harness.run(&["swap", &target, "--to", &to]), 4, "is not attached here");
    // It is cancelled, then its importer is killed, then it is done.
    let mut attached = Attached::by(&harness, &share, "nbd");
    let slowly = ["swap", &target, "--to", &to, "--rate", "1M"];
    let is_copying = || {
        let status = harness.run(&["status", "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        let all = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
        all.into_iter().any(|device| device["medium"]["is_swapping"] == true && device["bus_id"].is_null())
    };
    let mut swapping = Running::start(harness.command(&slowly));
    wait_until(PATIENCE, "it is being moved", is_copying);
    assert_ended(&harness.run(&["swap", &target, "--to", &to]), 3, "");
    assert_ended(&harness.run(&["swap", &target, "--cancel"]), 0, "");
    assert_eq!(swapping.wait_for_end(PATIENCE), Some(3), "{}", swapping.log());
    let mut swapping = Running::start(harness.command(&slowly));
    wait_until(PATIENCE, "it is being moved again", is_copying);
    // waits: more than nothing is copied; how much does not matter
    thread::sleep(Duration::from_millis(300));
    attached.process.kill();
    assert_eq!(swapping.wait_for_end(PATIENCE), Some(4), "{}", swapping.log());
    assert_ended(&harness.run(&["share", &to]), 1, "unfinished copy");
    let mut attached = Attached::by(&harness, &share, "nbd");
    assert_ended(&harness.run(&["swap", &target, "--to", &to]), 0, "lies on");
    attached.end();
    assert!(std::fs::read(&image).unwrap() == std::fs::read(&new).unwrap(), "the copy is the original");
    assert_ended(&harness.run(&["attach", &target, "--via", "nbd"]), 3, "farbus swap --forget");
    assert_ended(&harness.run(&["swap", "--forget", &target]), 0, "as it is");
    assert_ended(&harness.run(&["swap", "--forget", "disk"]), 0, "as it is");
    let mut attached = Attached::by(&harness, &share, "nbd");
    attached.end();
}

#[test]
fn a_disk_that_moved_is_retired_where_it_was_until_its_owner_forgets_that() {
    // The exporter, the host that moves its disk, and a third one.
    let [harness, mover, third] = [(); 3].map(|()| Harness::new());
    let image = harness.image("old.img", MIB);
    let what = format!("disk:{}", image.display());
    let share = harness.share(&[&what]);
    let attach = |harness: &Harness, share: &Share, grace: &str| {
        harness.run(&["attach", &share.target("disk"), "--via", "nbd", "--grace", grace])
    };
    let mut attached = Attached::by(&mover, &share, "nbd");
    let to = format!("block:{}", mover.path("new.img").display());
    assert_ended(&mover.run(&["swap", &attached.target, "--to", &to]), 0, "gives it to nobody any more");
    attached.end();
    let device = || {
        let status = harness.json(&["status", "--json"]);
        let mut devices = status.as_array().unwrap().iter().flat_map(|it| it["devices"].as_array().unwrap());
        devices.find(|device| device["name"] == "disk").cloned().expect("it is shared")
    };
    let mut shared = Some(share);
    // Before and after a restart of the exporter.
    for _ in 0..2 {
        let share = shared.take().unwrap_or_else(|| harness.share(&[&what]));
        assert_ended(&attach(&third, &share, "10"), 3, "farbus swap --forget disk");
        assert_ended(&attach(&mover, &share, "10"), 3, "has old data");
        assert_ne!(attach(&third, &share, "0").code, Some(0), "nor does a host without sessions get it");
        let device = device();
        assert_eq!((&device["state"], &device["moved"]["state"]), (&"moved away".into(), &"moved".into()), "{device}");
        drop(share);
    }
    let share = harness.share(&[&what]);
    let generation = || device()["identity"]["generation"].as_u64().expect("it has one");
    let before = generation();
    assert_ended(&harness.run(&["swap", "--forget", "disk"]), 0, "as it is");
    assert_ended(&harness.run(&["swap", "--forget", "disk"]), 4, "nothing is against");
    assert!(generation() >> 32 > before >> 32, "sessions of before do not continue with it");
    let mut attached = Attached::by(&third, &share, "nbd");
    assert_eq!((&device()["state"], &device()["moved"]), (&"in use".into(), &Value::Null));
    attached.end();
}

#[test]
fn an_owner_is_warned_of_a_moved_disk_that_its_exporter_cannot_retire() {
    let harness = Harness::new();
    let share = harness.share(&["memory:1M,name=disk"]);
    let mut attached = Attached::by(&harness, &share, "nbd");
    let to = format!("block:{}", harness.path("new.img").display());
    let outcome = harness.run(&["swap", &attached.target, "--to", &to]);
    assert_ended(&outcome, 0, "is free; what was attached goes on");
    assert_ended(&outcome, 0, "other hosts can still attach");
    attached.end();
}

#[test]
fn a_daemon_moves_the_disk_that_is_named_and_not_another_one_of_that_name() {
    let harness = Harness::new();
    let [far, own] = ["far.img", "own.img"].map(|name| harness.image(name, MIB));
    let [far_new, own_new] = ["far-new.img", "own-new.img"].map(|name| harness.path(name));
    let share = harness.share(&[&format!("disk:{}", far.display())]);
    let target = share.target("disk");
    let socket = harness.path("far.sock");
    let config = harness.path("farbus.toml");
    let text = format!(
        "plain.listen = ['127.0.0.1:0']\n[[share]]\nwhat = 'disk:{}'\n[[attach]]\ntarget = '{target}'\ngrace = 10\n\
         via = 'nbd'\nsocket = '{}'\n",
        own.display(),
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    daemon.wait_for_line("listening on");
    let devices = || {
        let status = harness.json(&["status", "--json"]);
        let daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon").cloned();
        let devices = daemon.expect("it runs")["devices"].as_array().unwrap().clone();
        let (shared, attached): (Vec<_>, Vec<_>) = devices.into_iter().partition(|device| !device["bus_id"].is_null());
        (shared[0].clone(), attached[0].clone())
    };
    wait_until(PATIENCE, "it is attached", || devices().1["state"] == "attached");
    let swap = |device: &str, to: &Path| harness.run(&["swap", device, "--to", &format!("block:{}", to.display())]);
    // The first is asked for by a bare name: two processes share a disk of that name.
    assert_ended(&swap("disk", &own_new), 3, "which is meant?");
    assert_ended(&swap(&target, &far_new), 0, "is free; what was attached goes on");
    let (shared, attached) = devices();
    assert_eq!(attached["medium"]["at"], format!("block:{}", far_new.display()));
    assert_eq!(shared["medium"]["at"], format!("block:{}", own.display()), "the daemon's own is where it was");
    assert_ended(&harness.run(&["swap", &target]), 0, "");
    drop(share);
    assert_ended(&swap("disk", &own_new), 0, "lies on");
    assert_eq!(devices().0["medium"]["at"], format!("block:{}", own_new.display()));
    assert_eq!(devices().1["state"], "attached");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
}

/// A daemon is replaced several times after its attached disk was moved to this machine, while fio works and when the
/// exporter is dead.
fn stays_moved_through_restarts(via: &str) {
    if !has("fio", has_program("fio")) || (via == "fuse" && !has_fuse()) {
        return;
    }
    let harness = Harness::new();
    let (filled, mut share) = old_disk(&harness);
    let (target, at, config) = (share.target("disk"), harness.path("far"), harness.path("farbus.toml"));
    let (key, user) = match via {
        "fuse" => ("at", file_target(&at.join("disk.img"))),
        _ => {
            ("socket", vec!["--ioengine=nbd".to_owned(), format!("--uri=nbd+unix:///?socket={}", at.to_str().unwrap())])
        }
    };
    let text = format!(
        "plain.listen = ['127.0.0.1:0']\n[[attach]]\ntarget = '{target}'\ngrace = 10\nvia = '{via}'\n\
         cache = 'writeback'\n{key} = '{}'\n",
        at.display()
    );
    std::fs::write(&config, text).unwrap();
    let daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    daemon.wait_for_line("listening on");
    let device = || {
        let status = harness.run(&["status", "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let mut daemons = status.as_array().into_iter().flatten().filter(|process| process["role"] == "daemon");
        daemons.next().map_or(Value::Null, |daemon| daemon["devices"][0].clone())
    };
    wait_until(PATIENCE, "it is attached", || device()["state"] == "attached");
    let paths = ["new.img", "newer.img"].map(|name| harness.path(name));
    let [to, further] = paths.each_ref().map(|path| format!("block:{}", path.display()));
    let is_done = AtomicBool::new(false);
    let (rounds, last) = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Acquire) || round < 2 {
                round += 1;
                let outcome = fio(&harness, &user, round, false);
                assert_eq!(outcome.code, Some(0), "round {round}: {outcome:?}");
            }
            round
        });
        let mut swapping = Running::start(harness.command(&["swap", &target, "--to", &to, "--rate", "1M"]));
        wait_until(PATIENCE, "it is being moved", || device()["medium"]["is_swapping"] == true);
        let refused = harness.run(&["daemon", "restart"]);
        assert_ended(&refused, 3, "is being moved");
        assert_ended(&refused, 3, &format!("farbus swap {target} --cancel"));
        assert_ended(&harness.run(&["swap", &target, "--cancel"]), 0, "");
        assert_eq!(swapping.wait_for_end(PATIENCE), Some(3), "{}", swapping.log());
        assert_ended(&harness.run(&["swap", &target, "--to", &to]), 0, "lies on");
        share.process.kill();
        let mut later = Vec::new();
        for medium in [&to, &to, &further, &further] {
            if device()["medium"]["at"] != medium.as_str() {
                assert_ended(&harness.run(&["swap", &target, "--to", medium]), 0, "lies on");
            }
            let answer = harness.json(&["daemon", "restart", "--json"]);
            assert_eq!(answer["kept"].as_array().map(Vec::len), Some(1), "{answer}\n{}", daemon.log());
            later.push(Later::of(&answer));
            wait_until(PATIENCE, "the replacement has it", || device()["state"] == "attached");
            assert_eq!(device()["medium"]["at"], medium.as_str(), "{}", daemon.log());
            assert!(!worker.is_finished(), "its user continues\n{}", daemon.log());
        }
        is_done.store(true, Ordering::Release);
        (worker.join().expect("not a byte is wrong, and no request failed"), later.pop().unwrap())
    });
    last.end();
    let outcome = fio(&harness, &file_target(&paths[1]), rounds, true);
    assert_eq!(outcome.code, Some(0), "what was written last is there: {outcome:?}");
    let bytes = std::fs::read(&paths[1]).unwrap();
    let [from, to] = [WORK_BYTES + MIB, DISK_BYTES - 4 * MIB].map(|at| at as usize);
    assert!(bytes[from..][..filled.len()] == filled && bytes[to..] == filled, "what was only copied is there, too");
}

#[test]
fn a_disk_attached_by_nbd_that_moved_here_stays_here_when_the_daemon_is_replaced() {
    stays_moved_through_restarts("nbd");
}

#[test]
fn a_disk_attached_as_a_file_that_moved_here_stays_here_when_the_daemon_is_replaced() {
    stays_moved_through_restarts("fuse");
}

#[test]
fn a_disk_that_moved_is_not_attached_under_another_name_nor_by_a_daemon_until_it_is_forgotten() {
    let harness = Harness::new();
    // Its exporter cannot keep for others that it is old.
    let share = harness.share(&["memory:1M,name=disk", "memory:1M,name=fresh"]);
    let mut attached = Attached::by(&harness, &share, "nbd");
    let to = format!("block:{}", harness.path("new.img").display());
    let medium = |title: &str| {
        let status = harness.json(&["status", "--json"]);
        let all = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
        all.into_iter().find(|device| device["title"] == title).expect("it is attached")["medium"].clone()
    };
    assert_eq!(medium(&attached.target)["identity"]["generation"], 0, "its exporter told which disk it is");
    assert_ended(&harness.run(&["swap", &attached.target, "--to", &to]), 0, "lies on");
    assert_eq!(medium(&attached.target)["identity"], Value::Null, "it is that disk no more");
    attached.end();
    let old_name = attached.target;
    // Another name of its host: the disk is the same.
    let (target, fresh) = (old_name.replace("127.0.0.1", "localhost"), share.target("fresh"));
    assert_ne!(target, old_name);
    let attach = |target: &str| harness.run(&["attach", target, "--via", "nbd", "--grace", "10"]);
    assert_ended(&attach(&target), 3, &format!("farbus swap --forget {old_name}"));
    let mut other = Running::start(harness.command(&["attach", &fresh, "--via", "nbd", "--grace", "10"]));
    other.wait_for_line("attached");
    other.signal(Signal::INT);
    assert_eq!(other.wait_for_end(PATIENCE), Some(0), "{}", other.log());
    let config = harness.path("farbus.toml");
    let socket = harness.path("far.sock");
    let text = format!("[[attach]]\ntarget = '{target}'\ngrace = 10\nvia = 'nbd'\nsocket = '{}'\n", socket.display());
    std::fs::write(&config, text).unwrap();
    let mut daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    let status = || harness.run(&["status", "--json"]).stdout;
    wait_until(PATIENCE, "it is refused", || status().contains(&format!("farbus swap --forget {old_name}")));
    let opened = || {
        let status: Value = serde_json::from_str(&status()).unwrap();
        let all = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
        let shared = all.into_iter().find(|device| device["name"] == "disk" && !device["bus_id"].is_null());
        shared.expect("it is shared")["history"].as_array().map_or(0, Vec::len)
    };
    // By the one that moved it, by the command above, and once by the daemon.
    wait_until(PATIENCE, "the daemon has given it back", || opened() == 3);
    assert_ended(&harness.run(&["swap", "--forget", &old_name]), 0, "as it is");
    wait_until(PATIENCE, "it is attached", || {
        let status: Value = serde_json::from_str(&status()).unwrap();
        let mut daemons = status.as_array().unwrap().iter().filter(|process| process["role"] == "daemon");
        daemons.any(|daemon| daemon["devices"][0]["state"] == "attached")
    });
    assert_eq!(opened(), 3, "it was not opened again to be refused again");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
}
