//! Runs cases, several at a time where possible, and counts the results.

use crate::cases::{self, RigCase};
use crate::lab::Rig;
use crate::record::CaseRecord;
use crate::{Result, RigError};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The result of a run.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct CaseScore {
    /// Cases that passed.
    pub passed: u32,
    /// Cases that failed.
    pub failed: u32,
    /// Cases that were skipped.
    pub skipped: u32,
}

impl CaseScore {
    /// Whether the run as a whole passed: a skipped case counts against it, unless `allow_skip`.
    pub fn is_good(&self, allow_skip: bool) -> bool {
        self.failed == 0 && (self.skipped == 0 || allow_skip)
    }
}

impl std::fmt::Display for CaseScore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The cases that the names choose, without those that `except` names; all but [`cases::ONLY_NAMED`] if none is named.
/// A name that ends in `*` chooses all that begin with it.
///
/// # Errors
/// A name matches no case, or none is left.
pub fn select(names: &[String], except: &[String]) -> Result<Vec<&'static RigCase>> {
    let fits = |case: &RigCase, name: &String| match name.strip_suffix('*') {
        Some(start) => case.name.starts_with(start),
        None => case.name == name,
    };
    if let Some(unknown) = names.iter().chain(except).find(|name| !cases::all().any(|case| fits(case, name))) {
        return Err(RigError::Expectation(format!("no case is called {unknown}; `farbus-rig list` shows them all")));
    }
    let is_named = |case: &&RigCase| match names {
        [] => !cases::ONLY_NAMED.contains(&case.name),
        names => names.iter().any(|name| fits(case, name)),
    };
    let chosen = cases::all().filter(is_named).filter(|case| !except.iter().any(|name| fits(case, name)));
    let chosen: Vec<_> = chosen.collect();
    if chosen.is_empty() { Err(RigError::Expectation("all cases are left out".into())) } else { Ok(chosen) }
}

/// Runs the cases and prints a line as each ends: up to `jobs` at a time, and then, one by one, those that have to run
/// alone. Each result is final. When all have ended, the cases that failed are repeated alone, and what came of it is
/// printed: a diagnosis, which changes neither the score nor the records. Why they failed stands at the end once more.
pub fn run(rig: &Rig, cases: &[&'static RigCase], jobs: usize) -> CaseScore {
    run_with(cases, jobs, |case, purpose| try_case(rig, case, purpose))
}

fn run_with(
    cases: &[&'static RigCase],
    jobs: usize,
    run_one: impl Fn(&RigCase, RunPurpose) -> CaseVerdict + Sync,
) -> CaseScore {
    let (alone, together): (VecDeque<_>, VecDeque<_>) =
        cases.iter().copied().partition(|case| jobs == 1 || cases::runs_alone(case));
    let results = Mutex::new((CaseScore::default(), Vec::new()));
    let count = |case: &'static RigCase| {
        let verdict = run_one(case, RunPurpose::Result);
        let (score, failed) = &mut *results.lock().unwrap_or_else(PoisonError::into_inner);
        match verdict {
            CaseVerdict::Passed => score.passed += 1,
            CaseVerdict::Skipped => score.skipped += 1,
            CaseVerdict::Failed(why) => {
                score.failed += 1;
                failed.push((case, why));
            }
        }
    };
    let waiting = Mutex::new(together);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = next() {
                    count(case);
                }
            });
        }
    });
    alone.into_iter().for_each(count);
    let (score, failed) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if cases.len() > 1 {
        for (case, _) in failed.iter().take(DIAGNOSED_MAX) {
            run_one(case, RunPurpose::Diagnosis);
        }
        for (case, why) in &failed {
            println!("{} FAILED: {why}", case.name);
        }
    }
    score
}

/// Failed cases that are repeated. If more fail, the fault is hardly that they ran beside each other.
const DIAGNOSED_MAX: usize = 4;

/// Why a case runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunPurpose {
    /// Its result counts, and is recorded.
    Result,
    /// It failed, and runs again alone so that one reads whether it fails then, too.
    Diagnosis,
}

/// The result of one case.
#[derive(Clone, PartialEq, Eq)]
enum CaseVerdict {
    Passed,
    Skipped,
    /// For this reason.
    Failed(String),
}

fn try_case(rig: &Rig, case: &RigCase, purpose: RunPurpose) -> CaseVerdict {
    let start = Instant::now();
    // A file of the first try would be found as that left it, and its logs tell why it failed.
    let lab = match purpose {
        RunPurpose::Result => rig.lab(case.name),
        RunPurpose::Diagnosis => rig.lab(format!("{}-again", case.name)),
    };
    let outcome = (case.run)(&lab);
    let seconds = start.elapsed().as_secs_f64();
    if purpose == RunPurpose::Result {
        let record = match &outcome {
            Ok(note) => CaseRecord::passed(case.name, note, &lab.met()),
            Err(RigError::Skip(_)) => CaseRecord::skipped(case.name),
            Err(_) => CaseRecord::failed(case.name),
        };
        if let Err(error) = record.write(rig.records()) {
            eprintln!("rig: no record of {}: {error}", case.name);
        }
    }
    let (verdict, word, note) = match outcome {
        Ok(note) => (CaseVerdict::Passed, "ok", note),
        Err(RigError::Skip(why)) => (CaseVerdict::Skipped, "SKIPPED", why),
        Err(error) => {
            let why = error.to_string().replace('\n', "\n    ");
            (CaseVerdict::Failed(why.clone()), "FAILED", why)
        }
    };
    match purpose {
        RunPurpose::Result => println!("{:<24} {word:<7} {seconds:6.1} s  {note}", case.name),
        RunPurpose::Diagnosis => {
            println!("{:<24} again, alone: {word}, {seconds:.1} s (it failed all the same)  {note}", case.name)
        }
    }
    verdict
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
        let all = select(&[], &[]).unwrap();
        assert_eq!(all.len(), cases::all().count() - cases::ONLY_NAMED.len());
        assert!(all.iter().all(|case| !cases::ONLY_NAMED.contains(&case.name)));
        assert_eq!(select(&["durability-uas".into()], &[]).unwrap().len(), 1, "it runs when it is named");
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
        let score = CaseScore { passed: 3, failed: 0, skipped: 1 };
        assert!(!score.is_good(false));
        assert!(score.is_good(true));
        assert_eq!(score.to_string(), "3 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_failure_counts_even_if_the_case_passes_alone() {
        let cases = select(&["smoke".into(), "kernel-self".into(), "pair-xhci".into()], &[]).unwrap();
        for jobs in [1, 2] {
            let ran = Mutex::new(Vec::new());
            let score = run_with(&cases, jobs, |case, purpose| {
                ran.lock().unwrap().push((case.name, purpose == RunPurpose::Diagnosis));
                if case.name == "smoke" && purpose == RunPurpose::Result {
                    CaseVerdict::Failed("it".into())
                } else {
                    CaseVerdict::Passed
                }
            });
            assert_eq!(score, CaseScore { passed: 2, failed: 1, skipped: 0 });
            assert!(!score.is_good(true));
            let ran = ran.into_inner().unwrap();
            assert_eq!(ran.len(), 4, "{ran:?}");
            assert_eq!(ran.last(), Some(&("smoke", true)));
        }
    }

    #[test]
    fn one_case_is_not_repeated() {
        let ran = Mutex::new(0);
        let score = run_with(&select(&["smoke".into()], &[]).unwrap(), 2, |_, _| {
            *ran.lock().unwrap() += 1;
            CaseVerdict::Failed("it".into())
        });
        assert_eq!((score.failed, ran.into_inner().unwrap()), (1, 1));
    }
}
