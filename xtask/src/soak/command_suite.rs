//! The command's tests, again and again: some passes beside nothing, and a quarter as often a pass of two suites at
//! once beside two processes that spin. No failure ends it: each is counted, so that one that comes by chance has a
//! rate.

use super::beside::{self, REQUIRE};
use crate::cargo::{self, CargoExecutable, cargo};
use crate::{axe, left, tidy, workspace};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

/// Passes beside nothing for each one beside others.
const ALONE_PER_BESIDE: u32 = 4;
/// How many of the slowest tests are listed.
const SLOWEST: usize = 20;
/// Characters of a message in the table; the log has all of it.
const MESSAGE_CHARACTERS_MAX: usize = 160;

/// Runs the command's tests so often beside nothing, and a quarter as often beside others.
///
/// # Errors
/// Says how many tests failed, or why the tests cannot be run.
pub fn run(passes: u32) -> Result<(), String> {
    cargo::build_for_command_tests()?;
    let built = cargo::executables(cargo(&["test", "--workspace", "--test", "command", "--no-run"]))?;
    let suite = CommandSuite::of(&built)?;
    fs::create_dir_all(&suite.logs).map_err(|error| format!("cannot make {}: {error}", suite.logs.display()))?;
    let mut tally = SuiteTally::default();
    for pass in 1..=passes {
        suite.pass(&format!("alone-{pass}"), &[SuiteSetting::Alone], &mut tally)?;
    }
    for pass in 1..=passes_beside(passes) {
        let _spinning = beside::spin()?;
        suite.pass(&format!("beside-{pass}"), &[SuiteSetting::Beside; 2], &mut tally)?;
    }
    println!("\n{}", tally.tables());
    println!("WAITS BY TIME that are left, by their reasons\n{}", tidy::waits_left()?);
    println!("the logs are in {}", suite.logs.display());
    tally.outcome()
}

const fn passes_beside(passes: u32) -> u32 {
    passes.div_ceil(ALONE_PER_BESIDE)
}

/// What else the machine did while a suite ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuiteSetting {
    Alone,
    Beside,
}

/// The tests' program, and what it is told.
struct CommandSuite {
    program: CargoExecutable,
    axe: Option<PathBuf>,
    logs: PathBuf,
}

impl CommandSuite {
    fn of(built: &[CargoExecutable]) -> Result<Self, String> {
        let is_command = |built: &&CargoExecutable| built.kind == "test" && built.name == "command";
        let program = built.iter().find(is_command).cloned().ok_or("cargo built no tests of the command")?;
        Ok(Self { program, axe: axe::find(), logs: workspace::root().join("target/soak-command") })
    }

    /// One pass: as many suites at the same time as there are settings.
    fn pass(&self, name: &str, settings: &[SuiteSetting], tally: &mut SuiteTally) -> Result<(), String> {
        let began = Instant::now();
        let log_of = |at: usize| self.logs.join(format!("{name}-{}.log", at + 1));
        let running = (0..settings.len()).map(|at| self.start(&log_of(at))).collect::<Result<Vec<_>, _>>()?;
        for (at, (mut child, setting)) in running.into_iter().zip(settings).enumerate() {
            let status = child.wait().map_err(|error| format!("the suite is lost: {error}"))?;
            let text =
                fs::read(log_of(at)).map_err(|error| format!("cannot read {}: {error}", log_of(at).display()))?;
            let mut report = SuiteReport::of(&String::from_utf8_lossy(&text));
            if !report.is_whole {
                report.failed.insert(THE_SUITE.to_owned(), format!("it did not run to its end ({status})"));
            }
            println!(
                "{name}, suite {}: {} tests, {} failed, after {} s",
                at + 1,
                report.seconds.len(),
                report.failed.len(),
                began.elapsed().as_secs()
            );
            tally.add(report, *setting);
        }
        if let Err(trouble) = left::check() {
            tally.add_failure(THE_SUITE, &trouble, settings[0]);
        }
        Ok(())
    }

    /// The pinned toolchain's test harness reports times only to those who say that they may change.
    fn start(&self, log: &Path) -> Result<Child, String> {
        let (out, errors) = beside::outputs(log)?;
        let mut command = Command::new(&self.program.path);
        command.args(["-Zunstable-options", "--report-time"]).current_dir(&self.program.folder);
        command.env("RUSTC_BOOTSTRAP", "1").env(REQUIRE.0, REQUIRE.1).env("RUST_BACKTRACE", "0");
        command.envs(self.axe.as_ref().map(|path| (axe::VARIABLE, path)));
        beside::spawn(command.stdout(out).stderr(errors))
    }
}

/// The name under which a failure is counted that is no test's.
const THE_SUITE: &str = "(the suite)";

/// What one run of the tests' program printed.
#[derive(Debug, Default, PartialEq)]
struct SuiteReport {
    /// How long each test took, by its name, in seconds.
    seconds: BTreeMap<String, f64>,
    /// The tests that failed, and with what message.
    failed: BTreeMap<String, String>,
    /// Whether there is a result of all.
    is_whole: bool,
}

impl SuiteReport {
    fn of(text: &str) -> Self {
        let mut report = Self::default();
        let mut messages = BTreeMap::new();
        let mut is_in_list = false;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some((name, seconds)) = timed(line) {
                report.seconds.insert(name.to_owned(), seconds);
            } else if line.starts_with("test result: ") {
                report.is_whole = true;
                is_in_list = false;
            } else if line == "failures:" {
                is_in_list = true;
            } else if let Some((name, location)) = panicked(line) {
                // What a thread says first is the reason; what follows from it comes later.
                let message = lines.next().unwrap_or_default();
                messages.entry(name.to_owned()).or_insert_with(|| format!("{} ({location})", shortened(message)));
            } else if let Some(name) = line.strip_prefix("    ").filter(|_| is_in_list) {
                report.failed.entry(name.trim_end().to_owned()).or_default();
            } else if !line.is_empty() {
                // The first list holds what the failed tests printed, not their names.
                is_in_list = false;
            }
        }
        for (name, message) in &mut report.failed {
            *message = messages.remove(name).unwrap_or_else(|| "it says nothing; see the log".to_owned());
        }
        report
    }
}

/// The name and the time of a test that has ended: `test NAME ... ok <1.234s>`. Between name and result there may be
/// what something else printed.
fn timed(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = rest.rsplit_once('<')?;
    Some((name, time.trim_end().strip_suffix("s>")?.parse().ok()?))
}

/// The name of the thread that panicked, which is that of its test, and where: `thread 'NAME' (7) panicked at PLACE:`.
fn panicked(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("thread '")?.split_once('\'')?;
    let (_, location) = rest.split_once("panicked at ")?;
    Some((name, location.trim_end_matches(':')))
}

fn shortened(message: &str) -> String {
    let mut shortened: String = message.chars().take(MESSAGE_CHARACTERS_MAX).collect();
    if shortened.len() < message.len() {
        shortened.push('…');
    }
    shortened
}

/// A test that failed.
#[derive(Debug, Default)]
struct CountedFailure {
    alone: u32,
    beside: u32,
    /// The message of the first time.
    message: String,
}

/// What all runs together say.
#[derive(Debug, Default)]
struct SuiteTally {
    suites_alone: u32,
    suites_beside: u32,
    failures: BTreeMap<String, CountedFailure>,
    seconds: BTreeMap<String, Vec<f64>>,
}

impl SuiteTally {
    fn add(&mut self, report: SuiteReport, setting: SuiteSetting) {
        match setting {
            SuiteSetting::Alone => self.suites_alone += 1,
            SuiteSetting::Beside => self.suites_beside += 1,
        }
        for (name, seconds) in report.seconds {
            self.seconds.entry(name).or_default().push(seconds);
        }
        for (name, message) in &report.failed {
            self.add_failure(name, message, setting);
        }
    }

    fn add_failure(&mut self, name: &str, message: &str, setting: SuiteSetting) {
        let failure = self.failures.entry(name.to_owned()).or_default();
        match setting {
            SuiteSetting::Alone => failure.alone += 1,
            SuiteSetting::Beside => failure.beside += 1,
        }
        if failure.message.is_empty() {
            failure.message = message.to_owned();
        }
    }

    /// Failures, the most frequent first, and the slowest tests by their longest time.
    fn tables(&self) -> String {
        let mut text =
            format!("FAILURES of {} suites alone and {} beside others\n", self.suites_alone, self.suites_beside);
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_by_key(|(_, failure)| std::cmp::Reverse(failure.alone + failure.beside));
        if failures.is_empty() {
            text.push_str("  none\n");
        }
        for (name, CountedFailure { alone, beside, message }) in failures {
            let _ = writeln!(text, "  {alone:>3} alone {beside:>3} beside  {name}\n        {message}");
        }
        let mut slowest: Vec<_> =
            self.seconds.iter().map(|(name, seconds)| (name, median_and_longest(seconds))).collect();
        slowest.sort_by(|(_, (_, one)), (_, (_, other))| other.total_cmp(one));
        text.push_str("SLOWEST tests, seconds\n  longest  median  test\n");
        for (name, (median, longest)) in slowest.into_iter().take(SLOWEST) {
            let _ = writeln!(text, "  {longest:>7.1} {median:>7.1}  {name}");
        }
        text
    }

    fn outcome(&self) -> Result<(), String> {
        match self.failures.len() {
            0 => Ok(()),
            count => Err(format!("{count} tests of the command failed at least once")),
        }
    }
}

fn median_and_longest(seconds: &[f64]) -> (f64, f64) {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted.get(sorted.len() / 2).copied().unwrap_or_default(), sorted.last().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "
running 4 tests
test a::quick ... ok <0.012s>
test a::slow has been running for over 60 seconds
test a::red ... FAILED <3.500s>
test a::slow ... SKIPPED, this machine has no fio: a::slow
ok <61.000s>
test b::also_red ... FAILED <0.100s>

failures:

---- a::red stdout ----
    a::quick

thread 'a::red' (77) panicked at crates/cli/tests/command/a.rs:3:5:
assertion failed: is_there
note: run with `RUST_BACKTRACE=1`

thread 'a::red' (77) panicked at crates/cli/tests/command/harness.rs:9:9:
a consequence

---- b::also_red stdout ----

failures:
    a::red
    b::also_red

test result: FAILED. 2 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 61.00s
";

    #[test]
    fn a_run_says_which_tests_failed_with_which_message_and_how_long_each_took() {
        let report = SuiteReport::of(RUN);
        assert!(report.is_whole);
        let seconds: Vec<_> = report.seconds.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        assert_eq!(seconds, [("a::quick", 0.012), ("a::red", 3.5), ("b::also_red", 0.1)]);
        assert_eq!(report.failed.keys().collect::<Vec<_>>(), ["a::red", "b::also_red"]);
        assert_eq!(report.failed["a::red"], "assertion failed: is_there (crates/cli/tests/command/a.rs:3:5)");
        assert_eq!(report.failed["b::also_red"], "it says nothing; see the log");
    }

    #[test]
    fn a_run_that_was_killed_is_not_whole() {
        let killed = RUN.split("failures:").next().unwrap();
        assert!(!SuiteReport::of(killed).is_whole);
        assert_eq!(SuiteReport::of(killed).seconds.len(), 3);
    }

    #[test]
    fn long_messages_are_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ü".repeat(500));
        assert_eq!(long.chars().count(), MESSAGE_CHARACTERS_MAX + 1);
    }

    #[test]
    fn failures_are_counted_by_what_ran_beside_them_and_fail_the_soak() {
        let mut tally = SuiteTally::default();
        assert_eq!(tally.outcome(), Ok(()));
        assert!(tally.tables().contains("  none"));
        tally.add(SuiteReport::of(RUN), SuiteSetting::Alone);
        tally.add(SuiteReport::of(&RUN.replace("    b::also_red\n", "")), SuiteSetting::Beside);
        let tables = tally.tables();
        assert!(
            tables.starts_with("FAILURES of 1 suites alone and 1 beside others\n    1 alone   1 beside  a::red\n"),
            "{tables}"
        );
        assert!(tables.contains("    1 alone   0 beside  b::also_red\n"), "{tables}");
        assert!(tables.contains("      3.5     3.5  a::red\n      0.1     0.1  b::also_red\n"), "{tables}");
        assert_eq!(tally.outcome(), Err("2 tests of the command failed at least once".into()));
    }

    #[test]
    fn a_quarter_as_many_passes_are_beside_others_and_one_at_least() {
        assert_eq!([1, 4, 20].map(passes_beside), [1, 1, 5]);
    }
}
