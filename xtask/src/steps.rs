//! Running steps in order: a banner before each, its time behind it, a table at the end, and nothing after a failure.
//!
//! What a step left out is listed at the end, each with the line that runs it. A step that prints more than it may
//! fails, and so does one that hangs.

use crate::meter::OutputMeter;
use crate::watchdog::{RunLimits, RunWatchdog};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// One thing that must pass.
pub struct GateStep {
    pub name: &'static str,
    pub about: &'static str,
    pub run: Box<dyn FnOnce() -> Result<StepSuccess, String>>,
}

/// How a step ended that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepSuccess {
    /// All of it passed.
    All,
    /// It passed without these parts: what each is, why it was left out, and what runs it.
    Without(Vec<String>),
    /// It did not run because nothing that it tests changed: the same of the whole step.
    LeftOut(String),
    /// It could not run here: why not, and what would help.
    Skipped(String),
}

impl From<()> for StepSuccess {
    fn from((): ()) -> Self {
        StepSuccess::All
    }
}

impl GateStep {
    pub fn new<T: Into<StepSuccess>>(
        name: &'static str,
        about: &'static str,
        run: impl FnOnce() -> Result<T, String> + 'static,
    ) -> GateStep {
        GateStep { name, about, run: Box::new(|| run().map(Into::into)) }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOutcome {
    Passed,
    Failed,
    Skipped,
    LeftOut,
    NotRun,
}

/// What a run says at its end, how much it may say before, and when it has to be over.
#[derive(Debug, Default)]
pub struct RunLog {
    /// Bytes that each step may print. Empty where nobody counts.
    pub bytes_max: BTreeMap<String, u64>,
    /// How long the run may take, and be silent. Counts where bytes are counted.
    pub limits: Option<RunLimits>,
    /// What the caller left out, to be listed with what the steps leave out.
    pub left_out: Vec<String>,
}

/// Runs the steps; the error is that of the one that failed.
pub fn run_all(steps: Vec<GateStep>, log: RunLog) -> Result<(), String> {
    let count = steps.len();
    let meter = if log.bytes_max.is_empty() {
        None
    } else {
        OutputMeter::start().map_err(|error| format!("cannot count what is printed: {error}"))?
    };
    let watchdog = meter.as_ref().zip(log.limits).map(|(meter, limits)| RunWatchdog::start(limits, meter.clock()));
    let mut results = Vec::new();
    let (mut failure, mut skipped, mut left_out) = (None, Vec::new(), log.left_out);
    for (at, step) in steps.into_iter().enumerate() {
        if failure.is_some() {
            results.push((step.name, StepOutcome::NotRun, Duration::ZERO));
            continue;
        }
        println!("\n=== {}/{count} {}: {}", at + 1, step.name, step.about);
        let start = Instant::now();
        if let Some(watchdog) = &watchdog {
            watchdog.begins(step.name);
        }
        let mut done = (step.run)();
        if let Some(complaint) = watchdog.as_ref().and_then(RunWatchdog::complaint) {
            done = Err(complaint);
        }
        let printed = meter.as_ref().map(OutputMeter::take).unwrap_or_default();
        if done.is_ok()
            && let Some(complaint) = log.bytes_max.get(step.name).and_then(|&max| printed.complaint(max))
        {
            done = Err(complaint);
        }
        let outcome = match done {
            Ok(StepSuccess::All) => StepOutcome::Passed,
            Ok(StepSuccess::Without(parts)) => {
                left_out.extend(parts);
                StepOutcome::Passed
            }
            Ok(StepSuccess::LeftOut(why)) => {
                println!("LEFT OUT: {why}");
                left_out.push(why);
                StepOutcome::LeftOut
            }
            Ok(StepSuccess::Skipped(why)) => {
                println!("SKIPPED: {why}");
                skipped.push(format!("step {} was SKIPPED: {why}", step.name));
                StepOutcome::Skipped
            }
            Err(trouble) => {
                println!("{trouble}");
                failure = Some(format!("step {} failed: {trouble}", step.name));
                StepOutcome::Failed
            }
        };
        let took = start.elapsed();
        let bytes = if meter.is_some() { format!(", {} bytes printed", printed.bytes) } else { String::new() };
        println!("=== {} {} in {}{bytes}", step.name, word(outcome), seconds(took));
        results.push((step.name, outcome, took));
    }
    println!("\n{}", summary(&results));
    for why in skipped {
        println!("{why}");
    }
    if !left_out.is_empty() {
        println!("\nLEFT OUT, not tested by this run:");
        left_out.iter().for_each(|line| println!("  {line}"));
    }
    failure.map_or(Ok(()), Err)
}

fn summary(results: &[(&str, StepOutcome, Duration)]) -> String {
    let width = results.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, outcome, took) in results {
        let time =
            if matches!(outcome, StepOutcome::NotRun | StepOutcome::LeftOut) { String::new() } else { seconds(*took) };
        let _ = writeln!(text, "{name:width$}  {:8}  {time:>9}", word(*outcome));
    }
    let total: Duration = results.iter().map(|(.., took)| *took).sum();
    let _ = write!(text, "{:width$}  {:8}  {:>9}", "all", "", seconds(total));
    text
}

fn word(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Passed => "passed",
        StepOutcome::Failed => "FAILED",
        StepOutcome::Skipped => "SKIPPED",
        StepOutcome::LeftOut => "LEFT OUT",
        StepOutcome::NotRun => "not run",
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn nothing_runs_after_a_failure() {
        let ran = Rc::new(RefCell::new(Vec::new()));
        let step = |name, result: Result<(), String>| {
            let ran = Rc::clone(&ran);
            GateStep::new(name, "", move || {
                ran.borrow_mut().push(name);
                result
            })
        };
        let outcome =
            run_all(vec![step("a", Ok(())), step("b", Err("broken".into())), step("c", Ok(()))], RunLog::default());
        assert_eq!(outcome.unwrap_err(), "step b failed: broken");
        assert_eq!(*ran.borrow(), ["a", "b"]);
    }

    #[test]
    fn a_skipped_step_fails_nothing_and_is_not_called_passed() {
        let skipped = GateStep::new("upgrade", "", || Ok(StepSuccess::Skipped("no history".into())));
        let passed = GateStep::new("rig", "", || Ok(()));
        assert_eq!(run_all(vec![skipped, passed], RunLog::default()), Ok(()));
        assert_eq!(word(StepOutcome::Skipped), "SKIPPED");
    }

    #[test]
    fn a_step_that_is_left_out_fails_nothing_and_is_not_called_passed() {
        let left_out = GateStep::new("upgrade", "", || Ok(StepSuccess::LeftOut("upgrade: type this".into())));
        let without = GateStep::new("rig", "", || Ok(StepSuccess::Without(vec!["rig-peers: type that".into()])));
        assert_eq!(run_all(vec![left_out, without], RunLog::default()), Ok(()));
        assert_eq!(word(StepOutcome::LeftOut), "LEFT OUT");
    }

    #[test]
    fn the_summary_is_a_table() {
        let table = summary(&[
            ("format", StepOutcome::Passed, Duration::from_millis(1250)),
            ("rig", StepOutcome::Failed, Duration::from_secs(61)),
            ("demo", StepOutcome::NotRun, Duration::ZERO),
        ]);
        assert_eq!(
            table.lines().map(str::trim_end).collect::<Vec<_>>(),
            [
                "format  passed        1.2 s",
                "rig     FAILED       61.0 s",
                "demo    not run",
                "all                  62.2 s"
            ]
        );
    }
}
