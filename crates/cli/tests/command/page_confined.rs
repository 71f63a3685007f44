//! The process of a page that reads what clients send: what is left to it, and what happens when it ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::harness::{Harness, PATIENCE, Running, has, has_program, wait_until};
use super::page::{Page, STRANGER, open_page};
use super::rights::{assert_without_rights, family, of_process};

/// The processes of a page that speak HTTP.
pub fn http_processes(page: &Running) -> Vec<u64> {
    let speaks_http = |pid: &u64| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"page-http")
    };
    family(page.id().into()).into_iter().filter(speaks_http).collect()
}

/// The process of a page that speaks HTTP to its owner's programs.
pub fn http_process(page: &Running) -> u64 {
    let all = http_processes(page);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

fn signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn has_ended(pid: u64) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn the_process_that_reads_what_browsers_send_has_no_rights_and_no_file() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let pid = http_process(&page.process);
    assert_eq!(page.get("/readyz", "").status, 200);
    assert_without_rights(&json!(pid));
    if rustix::process::geteuid().is_root() {
        let users = of_process(&json!(pid), "Uid");
        assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let Ok(to) = fs::read_link(entry.path()) else { continue };
        let (number, to) = (entry.file_name().to_str().unwrap().to_owned(), to.display().to_string());
        // Its output and its log are the terminal's or the service manager's.
        let is_known =
            ["0", "1", "2"].contains(&number.as_str()) || to.starts_with("socket:") || to.starts_with("anon_inode:");
        assert!(is_known, "{number}: {to}");
    }
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/1")).unwrap(), Path::new("/dev/null"));
}

#[test]
fn a_page_whose_process_for_http_is_killed_says_so_and_ends() {
    let harness = Harness::new();
    let mut page = open_page(&harness);
    signal(http_process(&page.process), Signal::KILL);
    assert_eq!(page.process.wait_for_end(PATIENCE), Some(1), "{}", page.process.log());
    page.process.assert_logged("the process that speaks HTTP for the page has ended: signal 9");
}

#[test]
fn no_process_of_a_page_that_is_killed_stays() {
    let harness = Harness::new();
    let mut page = open_page(&harness);
    let pid = http_process(&page.process);
    page.process.kill();
    wait_until(PATIENCE, "the other process has ended", || has_ended(pid));
}

#[test]
fn a_page_whose_process_for_http_is_stopped_ends_when_it_is_asked_to() {
    let harness = Harness::new();
    let mut page = open_page(&harness);
    let pid = http_process(&page.process);
    signal(pid, Signal::STOP);
    // More than it could be passed; those that are too many are closed.
    let _waiting: Vec<_> = (0..200).map(|_| page.connect()).collect();
    page.process.signal(Signal::TERM);
    assert_eq!(page.process.wait_for_end(PATIENCE), Some(0), "{}", page.process.log());
    wait_until(PATIENCE, "the stopped process has ended", || has_ended(pid));
}

#[test]
fn programs_of_other_users_have_a_process_of_their_own_that_the_page_outlives() {
    if !has("curl", has_program("curl")) || !has("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let page = open_page(&harness);
    let of_owner = http_process(&page.process);
    let by_stranger = |page: &Page| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "20", &format!("http://{}/healthz", page.address)]).uid(STRANGER).gid(STRANGER);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert_eq!(by_stranger(&page), "ok\n");
    let all = http_processes(&page.process);
    let of_others = *all.iter().find(|pid| **pid != of_owner).unwrap();
    assert_eq!(all.len(), 2, "{all:?}");
    assert_without_rights(&json!(of_others));
    signal(of_others, Signal::KILL);
    wait_until(PATIENCE, "another one is started", || by_stranger(&page) == "ok\n");
    assert_eq!(page.get("/readyz", "").body, "ready\n");
    assert!(http_processes(&page.process).contains(&of_owner));
    page.process.assert_logged("the process for programs of other users has ended");
}
