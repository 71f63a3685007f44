//! A share and an attachment keep no rights beyond their task while they read untrusted bytes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, Share, copy_program, has, has_fuse, has_program, wait_until};

/// A line of a process's status.
pub fn of_process(pid: &Value, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("Linux says so");
    line.trim().to_owned()
}

fn sockets(harness: &Harness) -> usize {
    fs::read_dir(harness.path("run/farbus")).map_or(0, Iterator::count)
}

#[test]
fn share_drops_its_rights_before_it_accepts_a_connection() {
    let harness = Harness::new();
    let _share = harness.share(&["zero"]);
    let pid = &harness.json(&["status", "--json"])[0]["pid"];
    assert_without_rights(pid);
    if rustix::process::geteuid().is_root() {
        let users = of_process(pid, "Uid");
        assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
        assert_eq!(of_process(pid, "Groups"), "");
    }
}

/// No capability, no way to gain one, and only listed system calls.
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
fn attach_drops_its_rights_before_it_connects() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let at = harness.path("at");
    let (mut attach, file) = harness.attach(&share.target("disk"), &at);
    let status = harness.json(&["status", "--json"]);
    let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").expect("it runs");
    assert_without_rights(&attached["pid"]);
    // The broker mounted it, and unmounts it.
    assert_eq!(fs::metadata(file).unwrap().len(), 1 << 20);
    attach.signal(rustix::process::Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    assert!(!at.exists());
}

/// Such a share reads its peers and writes its log as the folder's owner, and keeps no capability either.
#[test]
fn a_share_for_paired_hosts_keeps_its_folder_and_no_capability() {
    let harness = Harness::new();
    for _ in 0..2 {
        let mut share = harness.share(&["zero", "--secure", "127.0.0.1:0"]);
        let pid = &harness.json(&["status", "--json"])[0]["pid"];
        assert_without_rights(pid);
        let owner = fs::metadata(harness.path("state")).unwrap().uid();
        let users = of_process(pid, "Uid");
        assert!(users.split_whitespace().all(|user| user == owner.to_string()), "{users}: the folder is {owner}'s");
        assert!(
            owner != 0 || !rustix::process::geteuid().is_root(),
            "the process that reads from strangers is not root"
        );
        // A process that has its rights works in the folder as before.
        assert_eq!(harness.run(&["peers", "--json"]).code, Some(0));
        let refused = harness.run(&["unpair", "nobody"]);
        assert!(refused.stderr.contains("nobody") && !refused.stderr.contains("denied"), "{refused:?}");
        share.process.signal(rustix::process::Signal::TERM);
        assert_eq!(share.process.wait_for_end(PATIENCE), Some(0), "{}", share.process.log());
        assert!(!share.process.log().contains("cannot be"), "{}", share.process.log());
    }
}

/// A state folder that an earlier release made as root.
#[test]
fn state_folder_of_roots_goes_on_working_with_the_same_key() {
    if !has("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let id = harness.run(&["id"]);
    assert_eq!((id.code, fs::metadata(harness.path("state")).unwrap().uid()), (Some(0), 0), "{id:?}");
    drop(harness.share(&["zero", "--secure", "127.0.0.1:0"]));
    assert_ne!(fs::metadata(harness.path("state/key.pem")).unwrap().uid(), 0);
    let after = harness.run(&["id"]);
    assert_eq!((after.code, after.stdout), (Some(0), id.stdout));
}

/// A process and its descendants.
pub fn family(pid: u64) -> Vec<u64> {
    let parent = |pid: u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all: Vec<u64> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut family = vec![pid];
    while let Some(child) =
        all.iter().find(|pid| !family.contains(pid) && parent(**pid).is_some_and(|parent| family.contains(&parent)))
    {
        family.push(*child);
    }
    family
}

#[test]
fn descriptors_that_a_shell_left_open_are_closed_in_every_process() {
    let harness = Harness::new();
    let secret = harness.path("secret");
    fs::write(&secret, "nobody's business").unwrap();
    let module = harness.path("xor.py");
    copy_program(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/modules/xor.py")), &module);
    let script = format!("exec \"$0\" \"$@\" 7<{0} 33<{0}", secret.display());
    let arguments = ["-c", &script, env!("CARGO_BIN_EXE_farbus"), "share", "zero", "--listen", "127.0.0.1:0"];
    let modules = ["--allow-module", module.to_str().unwrap()];
    let arguments =
        if has("python3", has_program("python3")) { [&arguments[..], &modules].concat() } else { arguments.into() };
    let _share = Share::follow(Running::start(harness.command_of(Path::new("bash"), &arguments)));
    let family = family(harness.json(&["status", "--json"])[0]["pid"].as_u64().unwrap());
    assert!(family.len() >= 2, "there is another half");
    for pid in family {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let leads_there = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == secret);
        let found: Vec<_> = open.filter(leads_there).map(|entry| entry.path()).collect();
        assert!(found.is_empty(), "{found:?}: {:?}", fs::read_to_string(format!("/proc/{pid}/cmdline")));
    }
}

#[test]
fn a_share_that_is_killed_leaves_no_socket_behind() {
    let harness = Harness::new();
    let mut share = harness.share(&["zero"]);
    assert_eq!(sockets(&harness), 1);
    share.process.kill();
    wait_until(PATIENCE, "the half that kept its rights cleans up", || sockets(&harness) == 0);

    let mut unconfined = harness.share(&["zero", "--no-sandbox"]);
    let pid = &harness.json(&["status", "--json"])[0]["pid"];
    assert_eq!(of_process(pid, "Seccomp"), "0");
    unconfined.process.signal(rustix::process::Signal::TERM);
    assert_eq!(unconfined.process.wait_for_end(PATIENCE), Some(0));
    assert_eq!(sockets(&harness), 0);
}

/// What the half that keeps the rights gives back (processors, sockets, mounts, devices) is back when a command ends.
#[test]
fn a_command_ends_after_its_other_half_has_cleaned_up() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let pipe = ["pipe", "--here", "can,traffic=10", "--can", "500000", "--rate", "400", "--buffer", "40"];
    let pipe = Running::start(harness.command(&[&pipe[..], &["--execution-us", "5000", "--policy=none"]].concat()));
    assert!(pipe.has_line_before_its_end("pipe 0 in"), "{}", pipe.log());
    let status = harness.json(&["status", "--json"]);
    for (role, mut process) in [("pipe", pipe), ("share", share.process)] {
        let found = status.as_array().unwrap().iter().find(|process| process["role"] == role);
        let family = family(found.expect(role)["pid"].as_u64().unwrap());
        assert!(family.len() >= 2, "{role} has another half");
        process.signal(rustix::process::Signal::TERM);
        assert!(process.wait_for_end(PATIENCE).is_some(), "{role}");
        let left: Vec<_> = family.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        assert!(left.is_empty(), "{role} ended before {left:?}");
    }
}
