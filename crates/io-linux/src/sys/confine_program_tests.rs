//! Tests the filter of a program that has no PID namespace of its own, in a process.

#![allow(unsafe_code, reason = "system calls as they are")]

use std::process::{Command, Stdio};

use super::*;

const CHILD: &str = "FARBUS_TEST_PROGRAM_CHILD";

fn call(number: u32, arguments: [u64; 3]) -> i64 {
    let [a, b, c] = arguments;
    // SAFETY: the arguments are numbers, and the address of a static text.
    let result = unsafe { libc::syscall(number.into(), a, b, c, 0, 0) };
    if result < 0 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { result }
}

/// Not a test by itself: the child process of the next test.
#[test]
fn child_that_may_not_fork() {
    let Ok(parent) = std::env::var(CHILD) else { return };
    let parent: u64 = parent.parse().unwrap();
    rustix::thread::set_no_new_privs(true).unwrap();
    for filter in [
        other_interfaces(),
        unknown_call(nr::__NR_clone3).unwrap(),
        forbidden_calls(false).and_then(forbidding).unwrap(),
    ] {
        seccompiler::apply_filter(&filter).unwrap();
    }
    let path = c"/proc/self/cmdline".as_ptr() as u64;
    for (what, result, expected) in [
        ("clone", call(nr::__NR_clone, [17, 0, 0]), -1),
        ("clone3", call(nr::__NR_clone3, [0, 0, 0]), -38),
        ("another process", call(nr::__NR_tgkill, [parent, parent, 0]), -1),
        ("another thread", call(nr::__NR_tkill, [parent, 0, 0]), -1),
        ("its leash", call(nr::__NR_prctl, [PR_SET_PDEATHSIG, 0, 0]), -1),
        ("who is told", call(nr::__NR_fcntl, [0, 8, parent]), -1),
        ("a mode", call(nr::__NR_fchmodat, [(-100i64) as u64, path, 0o600]), -1),
        ("x32", call(nr::__NR_getpid | X32, [0, 0, 0]), if cfg!(target_arch = "x86_64") { -1 } else { -38 }),
    ] {
        if result != expected {
            println!("\nWRONG {what}: {result}");
        }
    }
    std::thread::spawn(|| ()).join().unwrap();
    println!("\nTRIED all");
}

#[test]
fn program_without_a_namespace_starts_threads_and_no_process() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "sys::confine_program::tests::child_that_may_not_fork",
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    let output = command.env(CHILD, std::process::id().to_string()).stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("TRIED all") && !printed.contains("WRONG"), "{printed}");
}
