//! `farbus demo --lab`: all of it is there at once, and gone afterwards, however it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::browser::{Browser, has_browser};
use super::harness::{Harness, PATIENCE, Running, copy_program, finish, wait_until};

/// A user without any right of its own.
const NOBODY: u32 = 65534;

fn start(harness: &Harness, more: &[&str]) -> (Running, String) {
    let lab = Running::start(harness.command(&[&["demo", "--lab", "--listen", "127.0.0.1:0"], more].concat()));
    let address = address_in(&lab.wait_for_line("page at http://"));
    (lab, address)
}

/// The host and port in the line that says where the page is.
fn address_in(line: &str) -> String {
    let url = line.split_whitespace().nth(2).unwrap();
    url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The processes of a harness's labs: their environment names its folder. Zombies have none.
fn processes(harness: &Harness) -> Vec<u32> {
    let folder = harness.path("tmp").display().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&folder)
    };
    pids.filter(is_its).collect()
}

fn assert_nothing_is_left(harness: &Harness) {
    wait_until(PATIENCE, "no process is left", || processes(harness).is_empty());
    wait_until(PATIENCE, "no file is left", || fs::read_dir(harness.path("tmp")).unwrap().next().is_none());
}

/// All devices of the lab, each with its state.
fn states(address: &str) -> Vec<String> {
    let status: Value = serde_json::from_str(&get(address, "/api/v1/status")).unwrap();
    let devices = status.as_array().unwrap().iter().flat_map(|process| process["devices"].as_array().unwrap());
    devices.map(|device| device["state"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn lab_has_three_daemons_twenty_devices_traffic_and_a_page_and_ctrl_c_ends_all_of_it() {
    let harness = Harness::new();
    let (mut lab, address) = start(&harness, &[]);
    let status: Value = serde_json::from_str(&get(&address, "/api/v1/status")).unwrap();
    let daemons = status.as_array().unwrap().iter().filter(|process| process["role"] == "daemon").count();
    assert_eq!(daemons, 3, "{status}");
    let count = |wanted: &[&str]| states(&address).iter().filter(|state| wanted.contains(&state.as_str())).count();
    wait_until(PATIENCE, "four disks are used", || count(&["attached"]) == 4 && count(&["in use"]) == 4);
    assert_eq!(count(&["available", "in use"]), 20, "{:?}", states(&address));
    wait_until(PATIENCE, "data pass between the hosts", || {
        let network = get(&address, "/network");
        ["lab1", "lab2", "lab3"].iter().all(|host| network.contains(host)) && network.matches(" MB/s").count() >= 4
    });
    assert!(get(&address, "/buses").contains("<svg class=\"bus\""), "something is reserved");
    if has_browser() {
        let browser = Browser::start(&harness, &[]);
        browser.resize(1200, 640);
        for view in ["", "network", "buses"] {
            browser.open(&format!("http://{address}/{view}"));
            browser.wait_for("document.querySelector('#live').textContent === 'live'");
            browser.keep_picture(&format!("lab-{view}"));
        }
    }
    lab.signal(Signal::INT);
    assert_eq!(lab.wait_for_end(PATIENCE), Some(0), "{}", lab.log());
    assert_nothing_is_left(&harness);
}

#[test]
fn lab_ends_by_itself_after_the_seconds_that_it_was_given() {
    let harness = Harness::new();
    let mut lab = Running::start(harness.command(&["demo", "--lab", "--listen", "127.0.0.1:0", "--seconds", "1"]));
    assert_eq!(lab.wait_for_end(PATIENCE), Some(0), "{}", lab.log());
    assert_nothing_is_left(&harness);
}

#[test]
fn lab_works_without_any_rights() {
    if !rustix::process::geteuid().is_root() {
        // The tests around this one have already covered this user.
        return;
    }
    let harness = Harness::new();
    // The build folder may be one that this user cannot read.
    let program = harness.path("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &program);
    std::os::unix::fs::chown(harness.path("tmp"), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = harness.command_of(&program, &["demo", "--lab", "--listen", "127.0.0.1:0"]);
    command.uid(NOBODY).gid(NOBODY);
    let mut lab = Running::start(command);
    let address = address_in(&lab.wait_for_line("page at http://"));
    wait_until(PATIENCE, "four disks are attached", || {
        states(&address).iter().filter(|state| *state == "attached").count() == 4
    });
    lab.signal(Signal::TERM);
    assert_eq!(lab.wait_for_end(PATIENCE), Some(0), "{}", lab.log());
    assert_nothing_is_left(&harness);
}

#[test]
fn lab_that_is_interrupted_while_it_begins_leaves_nothing() {
    let harness = Harness::new();
    let mut lab = Running::start(harness.command(&["demo", "--lab", "--listen", "127.0.0.1:0"]));
    lab.wait_for_line("three daemons");
    lab.signal(Signal::INT);
    assert_eq!(lab.wait_for_shell_code(PATIENCE), 130, "{}", lab.log());
    assert_nothing_is_left(&harness);
}

#[test]
fn lab_whose_page_has_no_port_says_why_and_leaves_nothing() {
    let harness = Harness::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let outcome = harness.run(&["demo", "--lab", "--listen", &address]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("Address already in use"), "{outcome:?}");
    assert_nothing_is_left(&harness);
}

#[test]
fn lab_whose_command_or_keeper_is_killed_leaves_nothing() {
    for victim in ["command", "keeper"] {
        let harness = Harness::new();
        let (mut lab, address) = start(&harness, &[]);
        assert!(states(&address).len() >= 20);
        if victim == "command" {
            lab.kill();
        } else {
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", lab.id())).unwrap();
            let keeper = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap();
            kill_process(keeper, Signal::KILL).unwrap();
            assert_eq!(lab.wait_for_end(PATIENCE), Some(1), "{}", lab.log());
        }
        assert_nothing_is_left(&harness);
    }
}

/// The commands of the chapter *A lab*: what is typed, and the remark behind it.
fn commands_of_chapter() -> Vec<(Vec<String>, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/lab.md");
    let text = fs::read_to_string(path).unwrap();
    let typed = text.lines().filter_map(|line| line.strip_prefix("    $ farbus "));
    let words = |line: &str| {
        let (command, remark) = line.split_once('#').unwrap_or((line, ""));
        (command.split_whitespace().map(str::to_owned).collect(), remark.trim().to_owned())
    };
    typed.map(words).collect()
}

#[test]
fn commands_of_the_chapter_do_what_it_says() {
    let harness = Harness::new();
    let commands = commands_of_chapter();
    assert!(commands.len() >= 9, "{commands:?}");
    assert_eq!(commands[0].0, ["demo", "--lab"]);
    let lab = Running::start(harness.command(&["demo", "--lab", "--listen", "127.0.0.1:0"]));
    let line = lab.wait_for_line("export XDG_RUNTIME_DIR=");
    let run = line.split_once("XDG_RUNTIME_DIR=").unwrap().1.to_owned();
    let address = address_in(&lab.wait_for_line("page at http://"));
    let attached = || states(&address).iter().filter(|state| *state == "attached").count();
    for (words, remark) in &commands[1..] {
        // What was taken away by the command before comes back.
        wait_until(PATIENCE, "four disks are attached", || attached() == 4);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = harness.command(&words);
        command.env("XDG_RUNTIME_DIR", &run);
        let outcome = finish(command, PATIENCE);
        let wanted = if remark.starts_with("refused") { 3 } else { 0 };
        assert_eq!(outcome.code, Some(wanted), "{words:?}: {outcome:?}");
    }
    wait_until(PATIENCE, "the last one is not attached again", || attached() == 3);
    assert_eq!(states(&address).iter().filter(|state| ["available", "in use"].contains(&state.as_str())).count(), 19);
}
