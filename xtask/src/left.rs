//! Processes that tests left behind: a test of the command ends what it started, and its guardian does so when the
//! tests' process was killed (`crates/cli/tests/command/processes.rs`). A run that leaves one fails.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The variable that names a test's folder in the environment of all that the test starts, and the beginning of the
/// name of such a folder, before the number of the tests' process.
const MARK: &str = "FARBUS_TEST_FOLDER=";
const FOLDER: &str = "farbus-command-";
/// What the guardian of a killed process may take.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// # Errors
/// Names the processes of tests whose own process has ended.
pub fn check() -> Result<(), String> {
    let until = Instant::now() + ENDS_WITHIN;
    loop {
        let left = left();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("tests left processes behind, which still run:\n  {}", left.join("\n  ")));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn left() -> Vec<String> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let describe = |number: u32| {
        let environment = fs::read(format!("/proc/{number}/environ")).ok()?;
        let tests = tests_of(&environment)?;
        if fs::exists(format!("/proc/{tests}")).unwrap_or(true) {
            return None;
        }
        let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        Some(format!("{number} {}", String::from_utf8_lossy(&line).replace('\0', " ")))
    };
    numbers.filter_map(describe).collect()
}

/// The number of the tests' process that started the process with this environment; `None`: no test did.
fn tests_of(environment: &[u8]) -> Option<u32> {
    let marked = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(MARK.as_bytes()))?;
    let marked = String::from_utf8_lossy(marked);
    let (_, named) = marked.rsplit_once(FOLDER)?;
    named.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn process_whose_test_has_ended_is_left_and_one_whose_test_runs_is_not() {
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let start = |tests: u32| {
            let folder = format!("/tmp/{FOLDER}{tests}-3/");
            let child = Command::new("sleep").arg("1000").env(MARK.trim_end_matches('='), &folder).spawn().unwrap();
            // Its program has begun; the kernel writes down its environment a moment later.
            let environment = || fs::read_to_string(format!("/proc/{}/environ", child.id())).unwrap();
            while !environment().contains(&folder) {
                thread::yield_now();
            }
            child
        };
        let (mut left_behind, mut used) = (start(ended.id()), start(std::process::id()));
        let found = left();
        for child in [&mut left_behind, &mut used] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let has = |id: u32| found.iter().any(|line| line.starts_with(&format!("{id} ")));
        assert!(has(left_behind.id()) && !has(used.id()), "{found:?}");
    }

    #[test]
    fn marks_of_others_are_no_tests() {
        for text in ["", "HOME=/root", "FARBUS_TEST_FOLDER=", "FARBUS_TEST_FOLDER=/tmp/farbus-command-x-1/"] {
            assert_eq!(tests_of(text.as_bytes()), None, "{text}");
        }
        assert_eq!(tests_of(b"A=1\0FARBUS_TEST_FOLDER=/tmp/farbus-command-77-1/\0B=2"), Some(77));
    }
}
