//! Running steps in order: a banner before each, its time behind it, a table at the end, and nothing after a failure.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// One thing that must pass.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub run: Box<dyn FnOnce() -> Result<(), String>>,
}

impl Step {
    pub fn new(name: &'static str, about: &'static str, run: impl FnOnce() -> Result<(), String> + 'static) -> Step {
        Step { name, about, run: Box::new(run) }
    }
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    NotRun,
}

/// Runs the steps; the error is that of the one that failed.
pub fn run_all(steps: Vec<Step>) -> Result<(), String> {
    let count = steps.len();
    let mut results = Vec::new();
    let mut failure = None;
    for (at, step) in steps.into_iter().enumerate() {
        if failure.is_some() {
            results.push((step.name, Outcome::NotRun, Duration::ZERO));
            continue;
        }
        println!("\n=== {}/{count} {}: {}", at + 1, step.name, step.about);
        let start = Instant::now();
        let outcome = match (step.run)() {
            Ok(()) => Outcome::Passed,
            Err(trouble) => {
                println!("{trouble}");
                failure = Some(format!("step {} failed: {trouble}", step.name));
                Outcome::Failed
            }
        };
        let took = start.elapsed();
        println!("=== {} {} in {}", step.name, word(outcome), seconds(took));
        results.push((step.name, outcome, took));
    }
    println!("\n{}", summary(&results));
    failure.map_or(Ok(()), Err)
}

fn summary(results: &[(&str, Outcome, Duration)]) -> String {
    let width = results.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, outcome, took) in results {
        let time = if *outcome == Outcome::NotRun { String::new() } else { seconds(*took) };
        let _ = writeln!(text, "{name:width$}  {:7}  {time:>9}", word(*outcome));
    }
    let total: Duration = results.iter().map(|(.., took)| *took).sum();
    let _ = write!(text, "{:width$}  {:7}  {:>9}", "all", "", seconds(total));
    text
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "FAILED",
        Outcome::NotRun => "not run",
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
            Step::new(name, "", move || {
                ran.borrow_mut().push(name);
                result
            })
        };
        let outcome = run_all(vec![step("a", Ok(())), step("b", Err("broken".into())), step("c", Ok(()))]);
        assert_eq!(outcome.unwrap_err(), "step b failed: broken");
        assert_eq!(*ran.borrow(), ["a", "b"]);
    }

    #[test]
    fn the_summary_is_a_table() {
        let table = summary(&[
            ("format", Outcome::Passed, Duration::from_millis(1250)),
            ("rig", Outcome::Failed, Duration::from_secs(61)),
            ("demo", Outcome::NotRun, Duration::ZERO),
        ]);
        assert_eq!(
            table.lines().map(str::trim_end).collect::<Vec<_>>(),
            [
                "format  passed       1.2 s",
                "rig     FAILED      61.0 s",
                "demo    not run",
                "all                 62.2 s"
            ]
        );
    }
}
