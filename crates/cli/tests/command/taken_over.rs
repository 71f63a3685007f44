//! What a process can do that was taken over: a program has the running, confined half of a share do system calls, and
//! sees what the kernel answers (docs/security.md, attacker 5).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, finish, has, has_program};
use super::page::open_page;
use super::page_confined::http_process;
use super::trust::{Host, pair};

/// The calls that reach the kernel; all others are refused before.
const REACHED: &str = include_str!("../programs/reached.txt");
/// `uretprobe` and `uprobe`: return addresses of the kernel's own probes, which it lets pass by itself (Linux 6.11).
const OF_PROBES: [u32; 2] = [335, 336];
const EPERM: i64 = -1;
const EACCES: i64 = -13;
const ENOSYS: i64 = -38;

/// The program that makes another process do calls, made in the harness's folder; `None` if it cannot be used here.
fn injector(harness: &Harness) -> Option<PathBuf> {
    let can = cfg!(target_arch = "x86_64")
        && has("gcc", has_program("gcc"))
        && has("root, to trace another process", rustix::process::geteuid().is_root());
    if !can {
        return None;
    }
    let program = harness.path("inject");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/inject.c");
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"]).arg(&program).arg(source);
    let compiled = finish(compile, PATIENCE);
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    Some(program)
}

/// Has a process do calls; returns what `inject.c` printed of each.
fn inject(harness: &Harness, program: &Path, pid: u64, what: &str) -> Vec<(String, i64)> {
    let folder = harness.path("folder");
    fs::create_dir(&folder).unwrap();
    let mut inject = Command::new(program);
    inject.args([&pid.to_string(), what]).arg(&folder);
    let outcome = finish(inject, PATIENCE);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing was made there");
    let line = |line: &str| {
        let (name, answer) = line.split_once(' ').unwrap();
        (name.to_owned(), answer.parse().unwrap())
    };
    outcome.stdout.lines().map(line).collect()
}

/// The files of a folder, with what is in them.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_file());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// The files below `folder` that a process has open for writing.
fn open_for_writing(pid: u64, folder: &Path) -> Vec<PathBuf> {
    let is_for_writing = |number: &str| {
        let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        u32::from_str_radix(flags.trim(), 8).unwrap() & 3 != 0
    };
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let of_writing = all.filter(|entry| is_for_writing(entry.file_name().to_str().unwrap()));
    let files = of_writing.filter_map(|entry| fs::read_link(entry.path()).ok());
    files.filter(|file| file.starts_with(folder)).collect()
}

/// Who may do what, who has what and what was done is stored by the process that nobody on the network talks to.
#[test]
fn a_confined_half_that_was_taken_over_changes_no_file_of_its_state_and_nobody_may_do_more_after_a_restart() {
    for is_daemon in [false, true] {
        let harness = Harness::new();
        let Some(program) = injector(&harness) else { return };
        let [lab3, desk, rack] = ["lab3", "desk", "rack"].map(|name| Host { harness: &harness, name });
        pair(&lab3, &desk);
        pair(&lab3, &rack);
        lab3.ok(&["allow", "desk", "disk"]);
        let state = harness.path("lab3");
        let config = harness.path("lab3.toml");
        let what = format!("disk:{}", harness.image("disk.img", 1 << 20).display());
        let start = |address: &str| {
            let text = format!("[secure]\nlisten = ['{address}']\n[[share]]\nwhat = '{what}'\nname = 'disk'\n");
            fs::write(&config, text).unwrap();
            let process = match is_daemon {
                true => lab3.start(&["daemon", "--config", config.to_str().unwrap()]),
                false => lab3.start(&["share", &format!("{what},name=disk"), "--listen", "none", "--secure", address]),
            };
            let line = process.wait_for_line("for paired hosts");
            let address = line.split_whitespace().nth(2).unwrap().to_owned();
            (process, address)
        };
        let (mut process, address) = start("127.0.0.1:0");
        let port = address.rsplit_once(':').unwrap().1;
        let target = &format!("lab3:{port}/disk");
        desk.ok(&["lease", target, "--for", "10m", "--reason", "a test"]);
        let socket = harness.path("disk.sock");
        let attached = desk.start(&["attach", target, "--via", "nbd", "--socket", socket.to_str().unwrap()]);
        attached.wait_for_line("attached as ");

        let (status, before) = (lab3.ok(&["status", "--json"]), files(&state));
        for needed in ["peers.json", "key.pem", "audit.log", "grants.log", "devices.json", "lease-", "count-", "lock"] {
            assert!(before.keys().any(|name| name.starts_with(needed)), "{needed}: {:?}", before.keys());
        }
        let pid = serde_json::from_str::<Value>(&status).unwrap()[0]["pid"].as_u64().unwrap();
        assert_eq!(open_for_writing(pid, &state), Vec::<PathBuf>::new());
        let mut inject = Command::new(&program);
        inject.args([&pid.to_string(), "state"]).arg(&state).args(before.keys());
        let outcome = finish(inject, PATIENCE);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let answers: Vec<_> = outcome.stdout.lines().map(|line| line.rsplit_once(' ').unwrap()).collect();
        assert!(answers.len() > 20 * before.len(), "{answers:?}");
        for (what, answer) in answers {
            assert!([EPERM, EACCES].map(|error| error.to_string()).contains(&answer.to_owned()), "{what}: {answer}");
        }
        assert_eq!(files(&state), before);

        process.signal(Signal::KILL);
        process.wait_for_end(PATIENCE);
        let (_process, _) = start(&address);
        let leases: Value =
            serde_json::from_str(&desk.ok(&["lease", "list", &format!("lab3:{port}"), "--json"])).unwrap();
        assert!(leases.to_string().contains("desk") && !leases.to_string().contains("rack"), "{leases}");
        let refused =
            rack.run(&["attach", target, "--via", "nbd", "--socket", socket.with_extension("two").to_str().unwrap()]);
        assert!(refused.code != Some(0) && refused.stderr.contains("may use no device"), "{refused:?}");
        let peers = files(&state).remove("peers.json");
        assert_eq!(peers.as_ref(), before.get("peers.json"));
    }
}

/// Has the confined half of a share do calls; returns what `inject.c` printed of each.
fn injected(what: &str) -> Option<Vec<(String, i64)>> {
    let harness = Harness::new();
    let program = injector(&harness)?;
    let mut share = harness.share(&["zero"]);
    let pid = harness.json(&["status", "--json"])[0]["pid"].as_u64().unwrap();
    let results = inject(&harness, &program, pid, what);
    // It goes on as if nothing had been.
    let target = share.target("zero");
    let (address, name) = target.rsplit_once('/').unwrap();
    let listed = harness.run(&["list", address]);
    assert!(listed.code == Some(0) && listed.stdout.contains(name), "{listed:?}");
    share.process.signal(rustix::process::Signal::TERM);
    assert_eq!(share.process.wait_for_end(PATIENCE), Some(0), "{}", share.process.log());
    Some(results)
}

/// Has the process that speaks HTTP for a page do calls; returns what `inject.c` printed of each.
fn injected_into_page(what: &str) -> Option<Vec<(String, i64)>> {
    let harness = Harness::new();
    let program = injector(&harness)?;
    let page = open_page(&harness);
    let results = inject(&harness, &program, http_process(&page.process), what);
    // It goes on as if nothing had been.
    assert_eq!(page.get("/readyz", "").body, "ready\n", "{}", page.process.log());
    Some(results)
}

#[test]
fn the_process_of_a_page_that_was_taken_over_can_do_nothing_that_an_intruder_would_try() {
    let Some(answers) = injected_into_page("attempts") else { return };
    assert!(answers.len() >= 34, "{answers:?}");
    for (name, answer) in answers {
        assert!([EPERM, EACCES].contains(&answer), "{name}: {answer}");
    }
}

/// It needs no files: calls that open one do not reach the kernel's rules for files.
#[test]
fn the_process_of_a_page_that_was_taken_over_reaches_the_kernel_by_fewer_calls_than_a_share() {
    let Some(answers) = injected_into_page("all") else { return };
    let listed = listed(false);
    let more: Vec<_> = reached(&answers).difference(&listed).copied().collect();
    assert!(more.is_empty(), "calls by number that reach the kernel and are not listed: {more:?}");
}

/// The numbers of the calls that were not refused before the kernel looked at them.
fn reached(answers: &[(String, i64)]) -> BTreeSet<u32> {
    let reached = answers.iter().filter(|(_, answer)| ![EPERM, ENOSYS].contains(answer));
    reached.map(|(number, _)| number.parse().unwrap()).collect()
}

#[test]
fn a_confined_half_that_was_taken_over_can_do_nothing_that_an_intruder_would_try() {
    let Some(answers) = injected("attempts") else { return };
    assert!(answers.len() >= 34, "{answers:?}");
    for (name, answer) in answers {
        assert!([EPERM, EACCES].contains(&answer), "{name}: {answer}");
    }
}

#[test]
fn a_confined_half_that_was_taken_over_reaches_the_kernel_by_the_listed_calls_alone() {
    let Some(answers) = injected("all") else { return };
    let reached = reached(&answers);
    let more: Vec<_> = reached.difference(&listed(true)).copied().collect();
    assert!(more.is_empty(), "calls by number that reach the kernel and are not listed: {more:?}");
    assert!(reached.len() > 60, "the list is not what was tried: {reached:?}");
}

/// The numbers of the calls that may reach the kernel: all, or those of a process that needs no path.
fn listed(has_paths: bool) -> BTreeSet<u32> {
    let lines = REACHED.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| if has_paths { line.split(' ').next() } else { Some(line) });
    names.filter(|name| !name.contains(' ')).map(number_of).chain(OF_PROBES).collect()
}

/// The number of a call that has this name.
fn number_of(name: &str) -> u32 {
    let headers = fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").unwrap();
    let line =
        headers.lines().find_map(|line| line.strip_prefix("#define __NR_")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("Linux has no call {name}")).trim().parse().unwrap()
}
