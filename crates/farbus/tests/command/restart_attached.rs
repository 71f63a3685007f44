//! `farbus daemon restart` where something is attached without a kernel: whoever uses it does not notice.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{House, PATIENCE, Running, finish, has, has_program, wait_until};
use super::restart::{Later, SetOnDrop, config};
use super::trust::{Host, hosts};

/// A share of this with anybody here, and a daemon that keeps it attached so.
fn attached<'h>(house: &'h House, what: &str, how: &str) -> (Running, Running, Host<'h>) {
    let [lab3, desk] = hosts(house);
    let share = lab3.start(&["share", what, "--listen", "127.0.0.1:0"]);
    let line = share.wait_for_line("listening on");
    let address = line.split_whitespace().nth(2).unwrap();
    let name = what.split(':').next().unwrap();
    let attach = format!("[[attach]]\ntarget='{address}/{name}'\ngrace=60\n{how}");
    let file = config(&house.path("tmp"), &format!("plain.listen = ['127.0.0.1:0']\n{attach}"));
    let daemon = desk.start(&["daemon", "--config", &file]);
    daemon.wait_for_line("listening on");
    wait_until(PATIENCE, "it is attached", || state_of(&desk) == "attached");
    (share, daemon, desk)
}

fn state_of(desk: &Host<'_>) -> String {
    let status = desk.run(&["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
    status[0]["devices"][0]["state"].as_str().unwrap_or_default().to_owned()
}

/// One process goes on after the other, some while the exporter is silent: then requests are in flight.
fn restart_often(desk: &Host<'_>, share: &Running, rounds: u32, mut is_at_work: impl FnMut() -> bool) -> Vec<Later> {
    let mut later = Vec::new();
    for round in 0..rounds {
        let is_silent = round % 2 == 1;
        if is_silent {
            share.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(50));
        }
        let answer = desk.json(&["daemon", "restart", "--json"]);
        if is_silent {
            share.signal(Signal::CONT);
        }
        println!("still for {} ms", answer["still_ms"]);
        assert_eq!(answer["kept"].as_array().map(Vec::len), Some(1), "{answer}");
        later.push(Later::of(&answer));
        wait_until(PATIENCE, "it has a link", || state_of(desk) == "attached");
        thread::sleep(Duration::from_millis(200));
        assert!(is_at_work(), "whoever uses it goes on");
    }
    later
}

fn run_fio(house: &House, arguments: &[&str]) {
    let work = "--name=restarts --rw=randwrite --bsrange=512-128k --blockalign=512 --size=16m --iodepth=16 --fsync=50 \
                --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal";
    let arguments: Vec<&str> = arguments.iter().copied().chain(work.split_whitespace()).collect();
    let outcome = finish(house.command_of(Path::new("fio"), &arguments), PATIENCE);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn programs_that_use_a_disk_by_nbd_stay_connected() {
    if !has("fio", has_program("fio")) {
        return;
    }
    let house = House::new();
    let socket = house.path("far.sock");
    let what = format!("block:{}", house.image("image", 16 << 20).display());
    let (share, mut daemon, desk) = attached(&house, &what, &format!("via='nbd'\nsocket='{}'", socket.display()));
    let is_done = AtomicBool::new(false);
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    let last = thread::scope(|scope| {
        let _end = SetOnDrop(&is_done);
        let worker = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Acquire) || rounds == 0 {
                // It does not connect again: a connection that ends fails it.
                run_fio(&house, &["--ioengine=nbd", &uri]);
                rounds += 1;
            }
            rounds
        });
        let mut later = restart_often(&desk, &share, 6, || !worker.is_finished());
        is_done.store(true, Ordering::Release);
        println!("{} rounds", worker.join().expect("not a byte is wrong, and no request failed"));
        later.pop().unwrap()
    });
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    assert!(!daemon.log().contains("was cut off"), "{}", daemon.log());
    last.end();
    wait_until(PATIENCE, "the socket goes with the last of them", || !socket.exists());
}
