//! What happens to a module's processes when farbus is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Harness, PATIENCE, has, has_program, wait_until, write_script};
use super::rights::of_process;

/// A module program that does all it can to outlive the process that started it.
const CLINGING: &str = r#"#!/usr/bin/env python3
import ctypes, os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
ctypes.CDLL(None).prctl(1, 0)
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        os._exit(0)
except OSError:
    pass
time.sleep(600)
"#;

/// The processes that have this path among their arguments.
fn of(path: &Path) -> Vec<(u32, String)> {
    let name = path.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let number = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let words = |pid: u32| Some((pid, fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.replace('\0', " ")));
    number.filter_map(words).filter(|(_, words)| words.contains(name)).collect()
}

#[test]
fn module_that_forks_and_ignores_signals_is_dead_after_farbus_is_killed() {
    if !has("python3", has_program("python3")) {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    for all_at_once in [false, true] {
        let harness = Harness::new();
        let module = harness.path("clinging.py");
        write_script(&module, CLINGING);
        let mut share = harness.share(&["memory:1M", "--allow-module", module.to_str().unwrap()]);
        let is_program = |words: &str| words.contains("python3");
        // The program and its grandchild; without the right to make a namespace there is no grandchild.
        let expected = if is_root { 2 } else { 1 };
        wait_until(PATIENCE, "it has forked", || {
            let programs = of(&module).into_iter().filter(|(_, words)| is_program(words));
            programs.count() >= expected
        });
        // waits: the process between a program and its grandchild ends; what is looked at after that exists either way
        std::thread::sleep(Duration::from_millis(200));
        let all: Vec<_> = of(&module).into_iter().filter(|(_, words)| !words.contains(" share ")).collect();
        for (pid, _) in all.iter().filter(|(_, words)| is_program(words)) {
            let users = of_process(&(*pid).into(), "Uid");
            assert!(!is_root || users.split_whitespace().all(|user| user != "0"), "{users}");
            assert_eq!(of_process(&(*pid).into(), "CapEff"), "0000000000000000");
        }
        if all_at_once {
            // The processes that would kill the program go first: its module host, and then farbus.
            let hosts = all.iter().filter(|(_, words)| words.contains("module-host"));
            for (pid, _) in hosts {
                kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
            }
        }
        share.process.kill();
        wait_until(PATIENCE, "nothing of it is left", || of(&module).is_empty());
    }
}

#[test]
fn module_that_the_user_of_modules_cannot_run_is_refused_with_what_to_type() {
    if !has("root", rustix::process::geteuid().is_root()) {
        return;
    }
    let harness = Harness::new();
    let module = harness.path("closed.py");
    fs::write(&module, CLINGING).unwrap();
    fs::set_permissions(&module, fs::Permissions::from_mode(0o700)).unwrap();
    let refused = harness.run(&["share", "memory:1M", "--allow-module", module.to_str().unwrap()]);
    assert!(refused.code == Some(1) && refused.stderr.contains("chmod o+rx"), "{refused:?}");
}
