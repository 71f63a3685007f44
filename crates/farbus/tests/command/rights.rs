//! What a share may do while it hears strangers: nothing but share.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::harness::{House, PATIENCE, wait_until};

/// A line of a process's status.
fn of_process(pid: &Value, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("Linux says so");
    line.trim().to_owned()
}

fn sockets(house: &House) -> usize {
    fs::read_dir(house.path("run/farbus")).map_or(0, Iterator::count)
}

#[test]
fn a_share_gives_its_rights_away_before_it_hears_anybody() {
    let house = House::new();
    let _share = house.share(&["zero"]);
    let pid = &house.json(&["status", "--json"])[0]["pid"];
    assert_eq!((of_process(pid, "NoNewPrivs"), of_process(pid, "Seccomp")), ("1".into(), "2".into()));
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(of_process(pid, set), "0000000000000000", "{set}");
    }
    if rustix::process::geteuid().is_root() {
        let users = of_process(pid, "Uid");
        assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
        assert_eq!(of_process(pid, "Groups"), "");
    }
    // Every thread of it, not only the first.
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
    }
}

/// It reads whom it knows and writes its log, as whoever owns that folder; nothing else is left to it either.
#[test]
fn a_share_for_paired_hosts_keeps_its_folder_and_no_capability() {
    let house = House::new();
    let _share = house.share(&["zero", "--secure", "127.0.0.1:0"]);
    let pid = &house.json(&["status", "--json"])[0]["pid"];
    assert_eq!((of_process(pid, "NoNewPrivs"), of_process(pid, "Seccomp")), ("1".into(), "2".into()));
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(of_process(pid, set), "0000000000000000", "{set}");
    }
}

#[test]
fn a_share_that_is_killed_leaves_no_socket_behind() {
    let house = House::new();
    let mut share = house.share(&["zero"]);
    assert_eq!(sockets(&house), 1);
    share.process.kill();
    wait_until(Duration::from_secs(5), "the half that kept its rights cleans up", || sockets(&house) == 0);

    let mut unconfined = house.share(&["zero", "--no-sandbox"]);
    let pid = &house.json(&["status", "--json"])[0]["pid"];
    assert_eq!(of_process(pid, "Seccomp"), "0");
    unconfined.process.signal(rustix::process::Signal::TERM);
    assert_eq!(unconfined.process.wait_for_end(PATIENCE), Some(0));
    assert_eq!(sockets(&house), 0);
}
