//! `farbus daemon restart` with attachments that need no kernel: their users do not notice.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farbus::model::{EpAddr, SetupPacket};
use farbus_session::redir::usbredir::RedirMessage;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, finish, has, has_fuse, has_program, is_mounted, wait_until};
use super::redir::Guest;
use super::restart::{Later, SetOnDrop, config};
use super::trust::{Host, hosts};

/// A share of `what` for any host of this machine, and a daemon that keeps it attached as `how` says.
pub fn attached<'h>(harness: &'h Harness, what: &str, how: &str) -> (Running, Running, Host<'h>) {
    let [lab3, desk] = hosts(harness);
    let share = lab3.start(&["share", what, "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let address = line.split_whitespace().nth(2).unwrap();
    let name = what.split(':').next().unwrap();
    let attach = format!("[[attach]]\ntarget='{address}/{name}'\ngrace=60\n{how}");
    let file = config(&harness.path("tmp"), &format!("plain.listen = ['127.0.0.1:0']\n{attach}"));
    let daemon = desk.start(&["daemon", "--config", &file]);
    daemon.wait_for_line("listening on");
    wait_until(PATIENCE, "it is attached", || state_of(&desk) == "attached");
    (share, daemon, desk)
}

pub fn state_of(desk: &Host<'_>) -> String {
    let status = desk.run(&["status", "--json"]).stdout;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    status[0]["devices"][0]["state"].as_str().unwrap_or_default().to_owned()
}

/// Restarts the daemon several times, sometimes while the exporter is silent, so that requests are in flight.
fn restart_often(
    desk: &Host<'_>,
    [share, daemon]: [&Running; 2],
    rounds: u32,
    mut is_at_work: impl FnMut() -> bool,
) -> Vec<Later> {
    let mut later = Vec::new();
    for round in 0..rounds {
        let is_silent = round % 2 == 1;
        if is_silent {
            share.signal(Signal::STOP);
            // waits: a stopped exporter is silent for a while; how long does not matter
            thread::sleep(Duration::from_millis(50));
        }
        let answer = desk.run(&["daemon", "restart", "--json"]);
        if is_silent {
            share.signal(Signal::CONT);
        }
        let answer: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        println!("still for {} ms", answer["still_ms"]);
        assert_eq!(answer["kept"].as_array().map(Vec::len), Some(1), "{answer}");
        later.push(Later::of(&answer));
        wait_until(PATIENCE, "it has a link", || state_of(desk) == "attached");
        // waits: what is under test is in use for a while, however little of it runs in that time
        thread::sleep(Duration::from_millis(200));
        assert!(is_at_work(), "its user continues\n{}", daemon.log());
    }
    later
}

fn run_fio(harness: &Harness, arguments: &[&str]) {
    let work = "--name=restarts --rw=randwrite --size=8m --iodepth=16 --fsync=50 \
                --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal";
    let arguments: Vec<&str> = arguments.iter().copied().chain(work.split_whitespace()).collect();
    let outcome = finish(harness.command_of(Path::new("fio"), &arguments), PATIENCE);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn what_was_detached_stays_detached_through_restarts_until_a_reload() {
    let harness = Harness::new();
    let image = format!("disk:{}", harness.image("image", 1 << 20).display());
    let (_share, _daemon, desk) = attached(&harness, &image, "via='nbd'");
    desk.ok(&["detach"]);
    wait_until(PATIENCE, "it is detached", || state_of(&desk) == "detached");
    let mut later = Vec::new();
    for _ in 0..2 {
        let answer = desk.run(&["daemon", "restart", "--json"]);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        later.push(Later::of(&serde_json::from_str(&answer.stdout).unwrap()));
        wait_until(PATIENCE, "the replacement answers", || !state_of(&desk).is_empty());
        // Attaching takes a few milliseconds.
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let state = state_of(&desk);
            assert!(state.is_empty() || state == "detached", "{state}");
            // waits: nothing must happen meanwhile; a slow machine only shows less
            thread::sleep(Duration::from_millis(20));
        }
    }
    desk.ok(&["daemon", "reload"]);
    wait_until(PATIENCE, "a reload attaches it again", || state_of(&desk) == "attached");
}

#[test]
fn programs_that_use_a_disk_by_nbd_stay_connected() {
    stay_connected("", 6);
}

#[test]
fn programs_whose_disk_goes_through_modules_stay_connected() {
    stay_connected("\nmodules=['zstd', 'bundle', 'delay:time=500us']", 4);
}

#[test]
fn programs_whose_disk_comes_over_several_links_stay_connected() {
    stay_connected("\nlinks=3", 4);
}

fn stay_connected(more: &str, restarts: u32) {
    if !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let socket = harness.path("far.sock");
    let what = format!("block:{}", harness.image("image", 16 << 20).display());
    let how = format!("via='nbd'\ncache='writeback'\nsocket='{}'{more}", socket.display());
    let (share, mut daemon, desk) = attached(&harness, &what, &how);
    let is_done = AtomicBool::new(false);
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    let last = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                // fio does not connect again: a connection that ends fails it.
                run_fio(&harness, &["--ioengine=nbd", &uri, "--blockalign=512", "--bsrange=512-128k"]);
                rounds += 1;
            }
            rounds
        });
        let mut later = restart_often(&desk, [&share, &daemon], restarts, || !worker.is_finished());
        is_done.store(true, Ordering::Release);
        println!("{} rounds", worker.join().expect("not a byte is wrong, and no request failed"));
        later.pop().unwrap()
    });
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    assert!(!daemon.log().contains("was cut off"), "{}", daemon.log());
    last.end();
    wait_until(PATIENCE, "the socket goes with the last of them", || !socket.exists());
}

#[test]
fn a_disk_as_a_file_stays_mounted_and_not_a_byte_is_wrong() {
    if !has_fuse() || !has("fio", has_program("fio")) {
        return;
    }
    let harness = Harness::new();
    let at = harness.path("mnt");
    let how = format!("via='fuse'\nat='{}'", at.display());
    let what = format!("disk:{}", harness.image("image", 32 << 20).display());
    let (share, mut daemon, desk) = attached(&harness, &what, &how);
    let file = format!("--filename={}", at.join("disk.img").display());
    let is_done = AtomicBool::new(false);
    let last = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        // Only these processes have the file open: a child of a process with an open copy could not start while the
        // exporter is silent.
        let work = |arguments: &'static [&'static str]| {
            let (harness, file, is_done) = (&harness, &file, &is_done);
            move || {
                let mut rounds = 0;
                while !is_done.load(Ordering::Acquire) || rounds == 0 {
                    run_fio(harness, &[&[&file[..]], arguments].concat());
                    rounds += 1;
                }
                rounds
            }
        };
        let whole = scope.spawn(work(&["--ioengine=libaio", "--direct=1", "--blockalign=512", "--bsrange=512-128k"]));
        // Requests that are not whole blocks are assembled by the importer.
        const ODD: [&str; 4] = ["--ioengine=psync", "--offset=16m", "--blockalign=1", "--bsrange=100-70000"];
        let odd = scope.spawn(work(&ODD));
        let is_at_work = || !whole.is_finished() && !odd.is_finished();
        let mut later = restart_often(&desk, [&share, &daemon], 6, is_at_work);
        is_done.store(true, Ordering::Release);
        let whole = whole.join().expect("not a byte is wrong, and no call failed");
        println!("{whole} rounds, {} odd ones", odd.join().expect("not a byte is wrong, and no call failed"));
        later.pop().unwrap()
    });
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    assert!(is_mounted(&at) && daemon.log().matches("linked again").count() >= 6, "{}", daemon.log());
    last.end();
    wait_until(PATIENCE, "the mount goes with the last of them, and the folder that was made", || !at.exists());
}

#[test]
fn restart_keeps_a_guests_device_and_its_pending_request_is_answered() {
    let harness = Harness::new();
    let socket = harness.path("redir.sock");
    let how = format!("via='redir'\nsocket='{}'", socket.display());
    let (share, mut daemon, desk) = attached(&harness, "keyboard", &how);
    let lab3 = Host { harness: &harness, name: "lab3" };
    let mut guest = Guest::connect(&socket);
    guest.configure();
    guest.say(0, RedirMessage::StartInterruptReceiving(EpAddr::from_byte(0x81)));
    guest.hear_kind(|message| matches!(message, RedirMessage::InterruptReceivingStatus { .. }));
    let mut later = Vec::new();
    for text in ["a", "b", "c"] {
        later.append(&mut restart_often(&desk, [&share, &daemon], 1, || true));
        lab3.ok(&["type", "keyboard", text]);
        let mut reports = || match guest.hear_kind(|message| matches!(message, RedirMessage::Interrupt(_))).message {
            RedirMessage::Interrupt(packet) => packet.payload.into_vec(),
            other => panic!("{other:?}"),
        };
        assert_eq!(reports()[2], text.as_bytes()[0] - b'a' + 4, "{}", daemon.log());
        assert_eq!(reports()[2], 0, "it is let go of");
        let descriptor = guest.control_in(7, SetupPacket::get_descriptor(1, 0, 0, 18));
        assert_eq!((descriptor.len(), descriptor[1]), (18, 1));
    }
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    drop(guest);
    // The device has no user now: it waits for the next guest, in another process.
    later.append(&mut restart_often(&desk, [&share, &daemon], 1, || true));
    Guest::connect(&socket).configure();
    later.pop().unwrap().end();
    wait_until(PATIENCE, "the socket goes with the last of them", || !socket.exists());
}

#[test]
fn restart_that_cannot_keep_every_attachment_changes_none() {
    if !has_fuse() || !has("nbdcopy", has_program("nbdcopy")) {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    let (first, second) = (harness.image("first", 1 << 20), harness.image("second", 1 << 20));
    fs::write(&second, vec![7; 1 << 20]).unwrap();
    let (file, disk) = (format!("disk:{}", first.display()), format!("block:{}", second.display()));
    let share = lab3.start(&["share", &file, &disk, "keyboard", "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let address = line.split_whitespace().nth(2).unwrap();
    let (at, nbd, redir) = (harness.path("mnt"), harness.path("far.sock"), harness.path("redir.sock"));
    let attachments = |mode: &str| {
        let text = format!(
            "plain.listen = ['127.0.0.1:0']\n[[attach]]\ntarget='{address}/disk'\ngrace=60\nvia='fuse'\nat='{}'\n\
             [[attach]]\ntarget='{address}/block'\ngrace=60\nvia='nbd'\nmode='{mode}'\nsocket='{}'\n\
             [[attach]]\ntarget='{address}/keyboard'\ngrace=60\nvia='redir'\nsocket='{}'",
            at.display(),
            nbd.display(),
            redir.display()
        );
        config(&harness.path("tmp"), &text)
    };
    let daemon = desk.start(&["daemon", "--config", &attachments("exclusive")]);
    let path = at.join("disk.img");
    wait_until(PATIENCE, "all of it is there", || path.exists() && nbd.exists() && redir.exists());
    let mut guest = Guest::connect(&redir);
    guest.configure();
    let mut check = |round: u8| {
        fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[round; 5000], 100).unwrap();
        assert_eq!(fs::read(&path).unwrap()[100..5100], [round; 5000]);
        let uri = format!("nbd+unix:///?socket={}", nbd.display());
        let (copy, to) = (harness.path("copy"), harness.path("copy"));
        let copied = finish(harness.command_of(Path::new("nbdcopy"), &[&uri, copy.to_str().unwrap()]), PATIENCE);
        assert_eq!(copied.code, Some(0), "{copied:?}\n{}", daemon.log());
        assert!(fs::read(to).unwrap() == vec![7; 1 << 20]);
        assert_eq!(guest.control_in(7, SetupPacket::get_descriptor(1, 0, 0, 18)).len(), 18);
    };
    check(1);
    // The configuration that the next process reads changes one of the attachments.
    attachments("read");
    for round in [2, 3] {
        let refused = desk.run(&["daemon", "restart"]);
        assert!(refused.code == Some(1) && refused.stderr.contains("cannot go on with"), "{refused:?}");
        check(round);
    }
    attachments("exclusive");
    let answer = desk.json(&["daemon", "restart", "--json"]);
    let later = Later::of(&answer);
    assert_eq!(answer["kept"].as_array().map(Vec::len), Some(3), "{answer}\n{}", daemon.log());
    check(4);
    drop(guest);
    later.end();
}
