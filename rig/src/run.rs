//! Runs cases, several at a time where possible, and counts the results.

use crate::cases::{self, Case};
use crate::lab::Workshop;
use crate::record::Record;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The result of a run.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Score {
    /// Cases that passed.
    pub passed: u32,
    /// Cases that failed.
    pub failed: u32,
    /// Cases that were skipped.
    pub skipped: u32,
}

impl Score {
    /// Whether the run as a whole passed: a skipped case counts against it, unless `allow_skip`.
    pub fn is_good(&self, allow_skip: bool) -> bool {
        self.failed == 0 && (self.skipped == 0 || allow_skip)
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The cases that the names choose (all if none is named), without those that `except` names. A name that ends in `*`
/// chooses all that begin with it.
///
/// # Errors
/// A name matches no case, or none is left.
pub fn select(names: &[String], except: &[String]) -> Result<Vec<&'static Case>> {
    let fits = |case: &Case, name: &String| match name.strip_suffix('*') {
        Some(start) => case.name.starts_with(start),
        None => case.name == name,
    };
    if let Some(unknown) = names.iter().chain(except).find(|name| !cases::all().any(|case| fits(case, name))) {
        return Err(Error::Expectation(format!("no case is called {unknown}; `farbus-rig list` shows them all")));
    }
    let is_named = |case: &&Case| names.is_empty() || names.iter().any(|name| fits(case, name));
    let chosen = cases::all().filter(is_named).filter(|case| !except.iter().any(|name| fits(case, name)));
    let chosen: Vec<_> = chosen.collect();
    if chosen.is_empty() { Err(Error::Expectation("all cases are left out".into())) } else { Ok(chosen) }
}

/// Runs the cases and prints a line as each ends: up to `jobs` at a time, and then, one by one, those that have to run
/// alone. A case that failed beside another is repeated alone: only that result counts. If there are many cases, one
/// that failed alone is repeated once more at the end, because a shared machine is never quite idle.
pub fn run(workshop: &Workshop, cases: &[&'static Case], jobs: usize) -> Score {
    let (alone, together): (VecDeque<_>, VecDeque<_>) =
        cases.iter().copied().partition(|case| jobs == 1 || cases::runs_alone(case));
    let score = Mutex::new(Score::default());
    let (waiting, again) = (Mutex::new(together), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = next() {
                    if try_case(workshop, case, &score, Attempt::First) == Verdict::Open {
                        again.lock().unwrap_or_else(PoisonError::into_inner).push(case);
                    }
                }
            });
        }
    });
    let mut again = again.into_inner().unwrap_or_else(PoisonError::into_inner);
    let attempt = if jobs == 1 || cases.len() == 1 { Attempt::Last } else { Attempt::First };
    again.extend(alone.into_iter().filter(|case| try_case(workshop, case, &score, attempt) == Verdict::Open));
    for case in again {
        try_case(workshop, case, &score, Attempt::Last);
    }
    score.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a failure is final.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Last,
}

/// Whether a case has a final result.
#[derive(PartialEq, Eq)]
enum Verdict {
    Given,
    /// It failed beside others, and is tried again.
    Open,
}

fn try_case(workshop: &Workshop, case: &Case, score: &Mutex<Score>, attempt: Attempt) -> Verdict {
    let start = Instant::now();
    let lab = workshop.lab(case.name);
    let outcome = (case.run)(&lab);
    let seconds = start.elapsed().as_secs_f64();
    if attempt == Attempt::First
        && let Err(error) = &outcome
        && !matches!(error, Error::Skip(_))
    {
        let note = error.to_string().replace('\n', "\n    ");
        println!("{:<24} failed, and is tried again alone: {seconds:6.1} s  {note}", case.name);
        return Verdict::Open;
    }
    let record = match &outcome {
        Ok(note) => Record::passed(case.name, note, &lab.met()),
        Err(Error::Skip(_)) => Record::skipped(case.name),
        Err(_) => Record::failed(case.name),
    };
    if let Err(error) = record.write(workshop.records()) {
        eprintln!("rig: no record of {}: {error}", case.name);
    }
    let mut score = score.lock().unwrap_or_else(PoisonError::into_inner);
    let (verdict, note) = match outcome {
        Ok(note) => {
            score.passed += 1;
            ("ok", note)
        }
        Err(Error::Skip(why)) => {
            score.skipped += 1;
            ("SKIPPED", why)
        }
        Err(error) => {
            score.failed += 1;
            ("FAILED", error.to_string().replace('\n', "\n    "))
        }
    };
    println!("{:<24} {verdict:<7} {seconds:6.1} s  {note}", case.name);
    Verdict::Given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose() {
        let chosen = select(&["smoke".into(), "kernel-s*".into()], &[]).unwrap();
        let names: Vec<&str> = chosen.iter().map(|case| case.name).collect();
        assert_eq!(names, ["smoke", "kernel-self"]);
        assert!(select(&["nonesuch".into()], &[]).is_err());
        assert_eq!(select(&[], &[]).unwrap().len(), cases::all().count());
    }

    #[test]
    fn cases_that_are_left_out_are_not_chosen() {
        let chosen = select(&["kernel-*".into()], &["kernel-s*".into()]).unwrap();
        assert_eq!(chosen.iter().map(|case| case.name).collect::<Vec<_>>(), ["kernel-testusb"]);
        assert!(select(&[], &["nonesuch".into()]).is_err());
        assert!(select(&["smoke".into()], &["smoke".into()]).is_err());
    }

    #[test]
    fn case_names_are_unique() {
        let names: std::collections::BTreeSet<_> = cases::all().map(|case| case.name).collect();
        assert_eq!(names.len(), cases::all().count());
    }

    #[test]
    fn cases_that_run_alone_exist() {
        for start in cases::ALONE {
            assert!(cases::all().any(|case| case.name.starts_with(start)), "no case begins with {start}");
        }
        assert!(cases::runs_alone(select(&["pair-xhci".into()], &[]).unwrap()[0]));
        assert!(!cases::runs_alone(select(&["smoke".into()], &[]).unwrap()[0]));
    }

    #[test]
    fn a_skip_is_not_a_pass() {
        let score = Score { passed: 3, failed: 0, skipped: 1 };
        assert!(!score.is_good(false));
        assert!(score.is_good(true));
        assert_eq!(score.to_string(), "3 passed, 0 failed, 1 skipped");
    }
}
