//! What a share and an attachment may do while they hear strangers: nothing but that.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::harness::{House, PATIENCE, has_fuse, wait_until};

/// A line of a process's status.
pub fn of_process(pid: &Value, field: &str) -> String {
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
    assert_without_rights(pid);
    if rustix::process::geteuid().is_root() {
        let users = of_process(pid, "Uid");
        assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
        assert_eq!(of_process(pid, "Groups"), "");
    }
}

/// No capability, no way to new ones, and system calls only from a list.
pub fn assert_without_rights(pid: &Value) {
    assert_eq!((of_process(pid, "NoNewPrivs"), of_process(pid, "Seccomp")), ("1".into(), "2".into()));
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(of_process(pid, set), "0000000000000000", "{set}");
    }
    // Every thread of it, not only the first.
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
    }
}

#[test]
fn an_attachment_gives_its_rights_away_before_it_connects() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let image = house.image("image", 1 << 20);
    let share = house.share(&[&format!("disk:{}", image.display())]);
    let at = house.path("at");
    let (mut attach, file) = house.attach(&share.target("disk"), &at);
    let status = house.json(&["status", "--json"]);
    let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").expect("it runs");
    assert_without_rights(&attached["pid"]);
    // The other half mounted it, and takes it away.
    assert_eq!(fs::metadata(file).unwrap().len(), 1 << 20);
    attach.signal(rustix::process::Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    assert!(!at.exists());
}

/// It reads whom it knows and writes its log, as whoever owns that folder; nothing else is left to it either.
#[test]
fn a_share_for_paired_hosts_keeps_its_folder_and_no_capability() {
    let house = House::new();
    let _share = house.share(&["zero", "--secure", "127.0.0.1:0"]);
    assert_without_rights(&house.json(&["status", "--json"])[0]["pid"]);
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
