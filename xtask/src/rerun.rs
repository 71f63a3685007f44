//! Runs all tests. Tests that failed run once more, one at a time, as a diagnosis; the run stays failed whatever comes
//! of that.
//!
//! Whether a test passes alone tells its author where to look: one that does depends on what runs beside it, or on
//! time; one that does not is broken by itself. Tests that were skipped are counted; where the machine is to have
//! everything, only those may be that another step runs and that say so.

use crate::cargo::{self, cargo};
use crate::left;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus};

/// With more failed tests than this, the defect is not in a test: nothing is run again.
const DIAGNOSED_MAX: usize = 10;

/// The most that is repeated of what a test said when it gave up.
const PANIC_LINES_MAX: usize = 6;
const PANIC_LINE_CHARS_MAX: usize = 1000;

/// What a test says that is skipped here because another step runs it.
const LEFT_TO_ANOTHER_STEP: &str = "(cargo xtask test --only ";

/// Which tests may be skipped.
#[derive(Debug, Clone, Copy)]
pub enum SkipPolicy {
    /// Each, for the reason that it gives.
    Any,
    /// Those alone that say which other step runs them: this machine is to have everything.
    ThoseOfOtherSteps,
}

/// What a run of `cargo test` reported.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestRunReport {
    /// Full names of the tests that failed.
    failed: Vec<String>,
    /// Test binaries that ran to their end and had failed tests.
    failed_targets: usize,
    /// Test binaries that failed, as cargo counts them. A binary that was killed has no list of failed tests.
    counted_targets: usize,
    /// Lines that tell of a skipped test.
    skipped: Vec<String>,
    is_in_list: bool,
    /// Tests and what they said when they gave up.
    panics: Vec<(String, String)>,
    /// Lines of the last panic that are still read.
    lines_to_read: usize,
}

impl TestRunReport {
    fn read(&mut self, line: &str) {
        if line == "failures:" {
            self.is_in_list = true;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.is_in_list = false;
            self.failed_targets += usize::from(result.starts_with("FAILED"));
        } else if self.is_in_list
            && let Some(name) = line.strip_prefix("    ")
        {
            self.failed.push(name.trim_end().to_owned());
        } else if !line.is_empty() {
            // The first list holds what the failed tests printed, not their names.
            self.is_in_list = false;
        }
        self.read_panic(line);
        // Between "test NAME ..." and its result, if nothing else is printed at the same time.
        self.skipped.extend(line.find("SKIPPED").map(|at| line[at..].to_owned()));
        let counted = line.strip_prefix("error: ").and_then(|rest| rest.split_once(" target"));
        if let Some((count, rest)) = counted
            && rest.trim_start_matches('s').starts_with(" failed")
        {
            self.counted_targets = count.trim_matches('`').parse().unwrap_or(usize::MAX);
        }
    }

    /// Reads where a test gave up and what it said, from the list of what the failed tests printed.
    fn read_panic(&mut self, line: &str) {
        let of_test = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = of_test {
            self.panics.push((name.to_owned(), String::new()));
        } else if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.lines_to_read = PANIC_LINES_MAX;
        } else if line.starts_with("stack backtrace:") || line.is_empty() {
            self.lines_to_read = 0;
        }
        if let Some((_, message)) = self.panics.last_mut().filter(|_| self.lines_to_read > 0) {
            self.lines_to_read -= 1;
            message.push_str("\n    ");
            message.extend(line.chars().take(PANIC_LINE_CHARS_MAX));
        }
    }

    fn what_it_said(&self, name: &str) -> &str {
        self.panics.iter().find(|(of, _)| of == name).map_or("", |(_, printed)| printed)
    }

    /// Whether every failure is a test with a name, and there are few of them.
    fn can_be_diagnosed(&self) -> bool {
        !self.failed.is_empty() && self.failed_targets == self.counted_targets && self.failed.len() <= DIAGNOSED_MAX
    }

    fn skipped_list(&self) -> String {
        self.skipped.iter().map(|line| format!("\n  {line}")).collect()
    }

    /// # Errors
    /// Names the tests that were skipped and had to run.
    fn check_skipped(&self, may_be: SkipPolicy) -> Result<(), String> {
        let had_to_run = |line: &&String| match may_be {
            SkipPolicy::Any => false,
            SkipPolicy::ThoseOfOtherSteps => !line.contains(LEFT_TO_ANOTHER_STEP),
        };
        let lines: Vec<&str> = self.skipped.iter().filter(had_to_run).map(String::as_str).collect();
        match lines.len() {
            0 => Ok(()),
            count => Err(format!("{count} tests that had to run here were skipped: {}", lines.join("; "))),
        }
    }

    /// One line for each test of `self` that failed, by what became of it when it ran alone.
    fn diagnosis(&self, alone: &TestRunReport) -> String {
        let describe = |name: &String| {
            let result = match alone.failed.contains(name) {
                true => "fails alone, too",
                false => "passes alone: it depends on time, or on what runs beside it",
            };
            format!("  {name}: {result}{}", self.what_it_said(name))
        };
        self.failed.iter().map(describe).collect::<Vec<_>>().join("\n")
    }
}

/// Runs all tests with these variables set.
///
/// # Errors
/// Names the tests that failed, whether they pass alone or not; or names those that were skipped and had to run, or
/// the processes that were left behind.
pub fn run(variables: &[(&str, &str)], may_be_skipped: SkipPolicy) -> Result<(), String> {
    let tests = |arguments: &[&str]| {
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
        command.args(arguments).envs(variables.iter().copied());
        command
    };
    let (status, report) = listen(tests(&[]))?;
    println!("\n{} tests were skipped{}", report.skipped.len(), report.skipped_list());
    if status.success() {
        left::check()?;
        return report.check_skipped(may_be_skipped);
    }
    if report.can_be_diagnosed() {
        println!("\nthe run has failed; for a diagnosis, each failed test alone:");
        let mut arguments = vec!["--", "--exact", "--test-threads=1"];
        arguments.extend(report.failed.iter().map(String::as_str));
        match listen(tests(&arguments)) {
            Ok((_, alone)) => println!("\nDIAGNOSIS\n{}", report.diagnosis(&alone)),
            Err(error) => println!("\nno diagnosis: {error}"),
        }
    }
    Err(format!("cargo test failed ({status}): {}", listed(&report.failed)))
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "no test is named; see above".to_owned() } else { names.join(", ") }
}

/// Runs a command to its end, passes its output on and reads the report in it.
fn listen(mut command: Command) -> Result<(ExitStatus, TestRunReport), String> {
    println!("$ {}", cargo::display(&command));
    let failure = |error| format!("cannot read the output of cargo test: {error}");
    let (ours, theirs) = std::io::pipe().map_err(failure)?;
    command.stdout(theirs.try_clone().map_err(failure)?).stderr(theirs);
    let mut child = command.spawn().map_err(failure)?;
    // The command holds the writing end; the loop below ends only when nobody does.
    drop(command);
    let mut report = TestRunReport::default();
    for line in BufReader::new(ours).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(failure)?).into_owned();
        println!("{line}");
        report.read(&line);
    }
    Ok((child.wait().map_err(failure)?, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> TestRunReport {
        let mut report = TestRunReport::default();
        text.lines().for_each(|line| report.read(line));
        report
    }

    const TWO_FAILED: &str = "
     Running tests/command/main.rs (target/debug/deps/command-1)
test a::b ... FAILED
test a::c ... ok

failures:

---- a::b stdout ----
    indented words of its own
thread 'a::b' panicked at x.rs:1:1:
etcdctl fails
stack backtrace:
   0: somewhere

failures:
    a::b
    a::d

test result: FAILED. 230 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s

error: test failed, to rerun pass `-p farbus-cli --test command`
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
error: 1 target failed:
    `-p farbus-cli --test command`
";

    #[test]
    fn failed_tests_are_known_by_name() {
        let report = report(TWO_FAILED);
        assert_eq!(report.failed, ["a::b", "a::d"]);
        assert!(report.can_be_diagnosed());
    }

    #[test]
    fn a_killed_binary_and_a_failed_build_are_not_run_again() {
        let killed = TWO_FAILED.replace("error: 1 target failed", "error: 2 targets failed");
        assert!(!report(&killed).can_be_diagnosed());
        assert!(!report("error: could not compile `farbus`\n").can_be_diagnosed());
    }

    #[test]
    fn skipped_tests_are_counted_and_only_those_of_other_steps_may_be() {
        let mut report = report(
            "SKIPPED, no previous release (cargo xtask test --only upgrade): a::b\n\
             test a::c ... SKIPPED: tshark is missing\ntest a::d ... ok\n",
        );
        let expected =
            ["SKIPPED, no previous release (cargo xtask test --only upgrade): a::b", "SKIPPED: tshark is missing"];
        assert_eq!(report.skipped, expected);
        assert_eq!(report.check_skipped(SkipPolicy::Any), Ok(()));
        assert_eq!(
            report.check_skipped(SkipPolicy::ThoseOfOtherSteps),
            Err("1 tests that had to run here were skipped: SKIPPED: tshark is missing".into()),
        );
        report.skipped.pop();
        assert_eq!(report.check_skipped(SkipPolicy::ThoseOfOtherSteps), Ok(()));
    }

    #[test]
    fn more_failures_than_can_be_diagnosed_are_not_run_again() {
        let more: String = (0..DIAGNOSED_MAX).map(|number| format!("    a::more{number}\n")).collect();
        let many = TWO_FAILED.replace("    a::d\n", &more);
        assert_eq!(report(&many).failed.len(), DIAGNOSED_MAX + 1);
        assert!(!report(&many).can_be_diagnosed());
    }

    #[test]
    fn a_diagnosis_tells_tests_that_pass_alone_from_those_that_do_not() {
        let alone = report("failures:\n    a::d\n");
        let diagnosis = report(TWO_FAILED).diagnosis(&alone);
        assert!(
            diagnosis.contains("a::b: passes alone") && diagnosis.contains("a::d: fails alone, too"),
            "{diagnosis}"
        );
        let printed = "runs beside it\n    thread 'a::b' panicked at x.rs:1:1:\n    etcdctl fails\n  a::d";
        assert!(diagnosis.contains(printed), "what it said is repeated: {diagnosis}");
    }
}
