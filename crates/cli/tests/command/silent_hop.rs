//! A path that goes silent while something on it still acknowledges: `ssh -L`, a container's port proxy.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::cuts::Cutter;
use super::harness::{Harness, PATIENCE, Running, has_fuse, wait_until};
use super::trust::{Host, hosts, pair};

const MIB: u64 = 1 << 20;
/// A silent peer is noticed within 16 s, and the grace period of these sessions is 2 s. A machine that stalls adds its
/// own.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The states of all devices that a host shares.
fn states(lab3: &Host<'_>) -> Vec<String> {
    let status = lab3.json(&["status", "--json"]);
    let devices = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    devices.map(|device| device["state"].as_str().unwrap().to_owned()).collect()
}

fn is_logged_lost(process: &Running) -> bool {
    process.log().contains("answers no ping")
}

#[test]
fn both_ends_of_idle_sessions_notice_a_silent_path_that_acknowledges() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let disks = ["one", "two"].map(|name| format!("disk:{},name={name}", harness.image(name, MIB).display()));
    let (share, address) = lab3.share(&[&disks[0], &disks[1], "zero"]);
    let cutter = Cutter::before(address.parse().unwrap());
    let through = cutter.address().to_string();

    let socket = harness.path("one.sock");
    let attach = ["attach", "lab3/one", "--address", &through, "--grace", "2", "--via", "nbd"];
    let attach = [&attach[..], &["--socket", socket.to_str().unwrap()]].concat();
    let mut attach = desk.start(&attach);
    attach.wait_for_line("attached");
    let mut run = desk.start(&["run", "--grace", "2", "lab3/zero", "--", "sh", "-c", "echo begun; exec sleep 600"]);
    run.wait_for_line("begun");
    let config = harness.path("farbus.toml");
    let at_daemon = harness.path("two.sock");
    let words = "plain.listen = []\nsecure.listen = []\n[[attach]]\ntarget = 'lab3/two'\ngrace = 2\nvia = 'nbd'\n";
    fs::write(&config, format!("{words}socket = '{}'\n", at_daemon.display())).unwrap();
    let daemon = desk.start(&["daemon", "--config", config.to_str().unwrap()]);
    wait_until(PATIENCE, "all are in use", || states(&lab3).iter().all(|state| state == "in use"));
    // Idle sessions stay, however long nothing needs to be sent.
    // waits: longer than the silence after which a link counts as lost
    std::thread::sleep(Duration::from_secs(20));
    assert!(![&attach, &run, &daemon, &share].into_iter().any(is_logged_lost), "idle is not silent");

    cutter.stall();
    let silent = Instant::now();
    for process in [&attach, &run, &daemon, &share] {
        wait_until(SILENCE_MAX, "it is noticed", || is_logged_lost(process));
    }
    println!("all have noticed after {:?}", silent.elapsed());
    wait_until(SILENCE_MAX, "the exporter offers all again", || states(&lab3).iter().all(|state| state == "available"));
    println!("all are free after {:?}", silent.elapsed());
    assert_eq!(attach.wait_for_end(SILENCE_MAX), Some(5), "{}", attach.log());
    run.signal(Signal::TERM);
    run.wait_for_end(SILENCE_MAX);
    println!("both commands have ended after {:?}", silent.elapsed());
    let status = desk.json(&["status", "--json"]);
    let of_daemon = status.as_array().unwrap().iter().find(|process| process["role"] == "daemon");
    assert_ne!(of_daemon.expect("it runs")["devices"][0]["state"], Value::from("attached"), "{status:#}");
}
