//! The processes of tests: all that a test starts has its folder in its environment, so that it is found and ended with
//! the test, whatever became of its parent.
//!
//! | what ends | what ends its processes |
//! |---|---|
//! | a test, well or by a panic | its harness, when it is dropped ([`end_all_of`]); what was left by mistake fails the test |
//! | the tests' process, by a signal that it cannot catch | its guardian, a process that waits for that ([`guard`]) |

use std::collections::BTreeMap;
use std::fs;
use std::io::{copy, sink, stdin};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Harness, PATIENCE, Running, wait_until};

/// The variable that names a test's folder in the environment of all that the test starts.
pub const MARK: &str = "FARBUS_TEST_FOLDER";
/// What this program does when the test at the end of this file runs in it by itself.
const ROLE: &str = "FARBUS_TEST_ROLE";
/// The guardian: the value is the beginning of the folders whose processes it ends.
const GUARDS: &str = "guards:";
/// The tests' process that is killed.
const IS_KILLED: &str = "is-killed";
/// The name of the test that plays the tests' process that is killed.
const TEST: &str = "processes::killed_tests_process_leaves_no_process";

/// What a process whose parent has ended may take to end by itself once its test has ended.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// The beginning of the names of the folders of this process's tests.
pub fn folders() -> String {
    format!("farbus-command-{}-", std::process::id())
}

/// Marks a command that belongs to no harness.
pub fn mark_if_unmarked(command: &mut Command) {
    if !command.get_envs().any(|(name, _)| name == MARK) {
        command.env(MARK, mark_of(&std::env::temp_dir().join(format!("{}none", folders()))));
    }
}

/// A process, and what it was started as.
#[derive(Debug)]
struct Found {
    pid: u32,
    is_orphan: bool,
    line: String,
}

/// The parents of all processes.
fn parents() -> BTreeMap<u32, u32> {
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    numbers.filter_map(|pid: u32| Some((pid, parent(&pid)?))).collect()
}

/// Whether a process or one that it descends from is so.
fn descends(pid: u32, parents: &BTreeMap<u32, u32>, is_so: impl Fn(u32) -> bool) -> bool {
    std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(100).any(is_so)
}

/// The processes whose mark begins so, and their descendants: some of these have an environment of their own. A process
/// that has ended and was not waited for has no environment.
fn marked(folders: &str) -> Vec<Found> {
    let parents = parents();
    let wanted = format!("{MARK}={folders}");
    let is_marked = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(wanted.as_bytes()))
    };
    let marked: Vec<u32> = parents.keys().copied().filter(|pid| is_marked(*pid)).collect();
    let own = std::process::id();
    let found = parents.keys().filter(|pid| **pid != own && descends(**pid, &parents, |pid| marked.contains(&pid)));
    let found = found.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        Some(Found { pid: *pid, is_orphan: !descends(*pid, &parents, |pid| pid == own), line })
    });
    found.collect()
}

/// Kills the processes whose mark begins so, and those that these start meanwhile.
fn kill_all(folders: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = marked(folders);
        if found.is_empty() || Instant::now() > until {
            return;
        }
        for pid in found.iter().filter_map(|found| Pid::from_raw(i32::try_from(found.pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(5));
    }
}

/// The mark of what a test with this folder starts. Its end keeps it from being the beginning of another one.
pub fn mark_of(folder: &Path) -> String {
    format!("{}/", folder.display())
}

/// Ends all processes of the test with this folder. Returns those that it would have left running: their parents have
/// ended, and they do not end by themselves.
pub fn end_all_of(folder: &Path) -> Vec<String> {
    end_all_within(folder, if thread::panicking() { Duration::ZERO } else { ENDS_WITHIN })
}

fn end_all_within(folder: &Path, time_max: Duration) -> Vec<String> {
    let (mark, until) = (mark_of(folder), Instant::now() + time_max);
    let left = loop {
        let orphans: Vec<Found> = marked(&mark).into_iter().filter(|found| found.is_orphan).collect();
        if orphans.is_empty() || Instant::now() >= until {
            break orphans;
        }
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(20));
    };
    kill_all(&mark);
    left.into_iter().map(|found| format!("{} {}", found.pid, found.line.trim_end())).collect()
}

/// Starts this process's guardian, once. Call it before the thread has open files of its own: the guardian notices the
/// end of this process because nobody else has the other end of its standard input.
pub fn be_guarded() {
    static GUARDIAN: OnceLock<Child> = OnceLock::new();
    GUARDIAN.get_or_init(|| {
        let folders = std::env::temp_dir().join(folders());
        let mut guardian = itself(&format!("{GUARDS}{}", folders.display()));
        // What ends the tests by their group or their terminal does not end it.
        guardian.env_remove(MARK).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        guardian.spawn().expect("this program can be run")
    });
}

/// This program, running the test below in a role.
fn itself(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// The guardian: waits for the end of the tests' process, and ends what that left.
fn guard(folders: &str) {
    let _ = copy(&mut stdin(), &mut sink());
    kill_all(folders);
}

/// The tests' process that is killed: it has a child, and a grandchild whose parent has ended.
fn be_killed() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let script = format!("{farbus} share keyboard --listen 127.0.0.1:0 & echo begun");
    let mut orphans = Running::start(harness.command_of(Path::new("sh"), &["-c", &script]));
    orphans.wait_for_line("listening on");
    assert_eq!(orphans.wait_for_end(PATIENCE), Some(0));
    println!("has begun");
    let never = share.process.has_line_before_its_end("nothing that a share says");
    assert!(!never, "it is killed before");
}

#[test]
fn killed_tests_process_leaves_no_process() {
    let role = std::env::var(ROLE).unwrap_or_default();
    if let Some(folders) = role.strip_prefix(GUARDS) {
        return guard(folders);
    }
    if role == IS_KILLED {
        return be_killed();
    }
    let mut tests = Running::start(itself(IS_KILLED));
    tests.wait_for_line("has begun");
    let folders = std::env::temp_dir().join(format!("farbus-command-{}-", tests.id())).display().to_string();
    let both = marked(&folders);
    for device in ["zero", "keyboard"] {
        let is_its = |found: &Found| found.line.contains("share") && found.line.contains(device);
        assert!(both.iter().any(is_its), "{device}: {both:?}");
    }
    tests.kill();
    wait_until(PATIENCE, "no process is left", || marked(&folders).is_empty());
}

#[test]
fn harness_ends_what_its_test_left_and_says_what_that_was() {
    let harness = Harness::new();
    let mut shell = Running::start(harness.command_of(Path::new("sh"), &["-c", "sleep 1000 >&2 & echo pid $!"]));
    let line = shell.wait_for_line("pid ");
    assert_eq!(shell.wait_for_end(PATIENCE), Some(0));
    let own = Running::start(harness.command_of(Path::new("sleep"), &["1001"]));
    let left = end_all_within(harness.folder(), Duration::ZERO);
    assert_eq!(left, [format!("{} sleep 1000", line.trim_start_matches("pid "))], "the other one ends with the test");
    assert!(marked(&mark_of(harness.folder())).is_empty());
    drop(own);
}
