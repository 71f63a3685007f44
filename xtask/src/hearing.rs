//! Tests that failed beside others are tried once more alone: running side by side saves time, and decides nothing.
//!
//! What passes only then is unsteady: it is named at the end, and is a defect to be mended. More than a few of them are a failure.

use crate::cargo::{self, cargo};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus};

/// Unsteady tests with which a run is still believed: more is not the machine.
const UNSTEADY_MAX: usize = 3;

/// What a run of `cargo test` said of what did not pass.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    /// Tests that failed, by their full names.
    failed: Vec<String>,
    /// Targets that ran to their end and had such tests.
    failed_targets: usize,
    /// Targets that failed, by cargo's count. One that was killed has no list.
    counted_targets: usize,
    /// Tests that passed.
    passed: usize,
    is_in_list: bool,
}

impl Said {
    fn read(&mut self, line: &str) {
        if line == "failures:" {
            self.is_in_list = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.is_in_list = false;
            self.failed_targets += usize::from(result.starts_with("FAILED"));
            let count = result.split_once(". ").and_then(|(_, counts)| counts.split_once(" passed"));
            self.passed += count.and_then(|(count, _)| count.parse::<usize>().ok()).unwrap_or(0);
        } else if self.is_in_list
            && let Some(name) = line.strip_prefix("    ")
        {
            self.failed.push(name.trim_end().to_owned());
        } else if !line.is_empty() {
            // The first list is of what the tests printed.
            self.is_in_list = false;
        }
        let counted = line.strip_prefix("error: ").and_then(|rest| rest.split_once(" target"));
        if let Some((count, rest)) = counted
            && rest.trim_start_matches('s').starts_with(" failed")
        {
            self.counted_targets = count.trim_matches('`').parse().unwrap_or(usize::MAX);
        }
    }

    /// Whether all that went wrong are tests with names.
    fn can_be_heard_again(&self) -> bool {
        !self.failed.is_empty() && self.failed_targets == self.counted_targets && self.failed.len() <= UNSTEADY_MAX
    }
}

/// Runs all tests, and those that failed once more alone.
pub fn run(variables: &[(&str, &str)]) -> Result<(), String> {
    let tests = |arguments: &[&str]| {
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
        command.args(arguments).envs(variables.iter().copied());
        command
    };
    let (status, said) = listen(tests(&[]))?;
    if status.success() {
        return Ok(());
    }
    if !said.can_be_heard_again() {
        return Err(format!("cargo test failed ({status}): {}", listed(&said.failed)));
    }
    println!("\nfailed beside others, and tried again alone: {}", listed(&said.failed));
    let mut alone = vec!["--", "--exact", "--test-threads=1"];
    alone.extend(said.failed.iter().map(String::as_str));
    let (status, again) = listen(tests(&alone))?;
    if !status.success() || again.passed < said.failed.len() {
        return Err(format!("cargo test failed, alone too ({status}): {}", listed(&again.failed)));
    }
    println!("\nUNSTEADY, passed only alone: {}", listed(&said.failed));
    Ok(())
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no test is named; see above".to_owned() } else { names.join(", ") }
}

/// Runs a command to its end, passes on what it prints and remembers what it says.
fn listen(mut command: Command) -> Result<(ExitStatus, Said), String> {
    println!("$ {}", cargo::display(&command));
    let trouble = |trouble| format!("cannot hear {}: {trouble}", "cargo test");
    let (ours, theirs) = std::io::pipe().map_err(trouble)?;
    command.stdout(theirs.try_clone().map_err(trouble)?).stderr(theirs);
    let mut child = command.spawn().map_err(trouble)?;
    // It holds the other end, and this would wait for itself.
    drop(command);
    let mut said = Said::default();
    for line in BufReader::new(ours).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(trouble)?).into_owned();
        println!("{line}");
        said.read(&line);
    }
    Ok((child.wait().map_err(trouble)?, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Said {
        let mut said = Said::default();
        text.lines().for_each(|line| said.read(line));
        said
    }

    const ONE_FAILED: &str = "
     Running tests/command/main.rs (target/debug/deps/command-1)
test a::b ... FAILED
test a::c ... ok

failures:

---- a::b stdout ----
    indented words of its own
thread 'a::b' panicked at x.rs:1:1:

failures:
    a::b
    a::d

test result: FAILED. 230 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s

error: test failed, to rerun pass `-p farbus --test command`
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
error: 1 target failed:
    `-p farbus --test command`
";

    #[test]
    fn failed_tests_are_known_by_name() {
        let said = said(ONE_FAILED);
        assert_eq!((said.failed.as_slice(), said.passed), (["a::b".to_owned(), "a::d".to_owned()].as_slice(), 237));
        assert!(said.can_be_heard_again());
    }

    #[test]
    fn what_was_killed_or_never_built_is_not_heard_again() {
        let killed = ONE_FAILED.replace("error: 1 target failed", "error: 2 targets failed");
        assert!(!said(&killed).can_be_heard_again());
        assert!(!said("error: could not compile `farbus`\n").can_be_heard_again());
    }

    #[test]
    fn many_failures_are_not_the_machine() {
        let many = ONE_FAILED.replace("    a::d\n", "    a::d\n    a::e\n    a::f\n");
        assert_eq!((said(&many).failed.len(), said(&many).can_be_heard_again()), (4, false));
    }
}
