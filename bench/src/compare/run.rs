//! A comparison under way: what all its parts have in common.

use std::time::Instant;

use anyhow::Result;

use super::{findings::PeerFindings, rivals::RivalProgram, roofline::MachineLimits};
use crate::{contest::ContestRules, lab::BenchmarkEnvironment};

/// What all parts have in common, and what they found.
pub struct ComparisonRun<'a> {
    pub lab: &'a BenchmarkEnvironment,
    pub rules: ContestRules,
    pub is_quick: bool,
    pub limits: MachineLimits,
    pub found: PeerFindings,
    pub left_out: Vec<(String, String)>,
    pub steps: [usize; 2],
    pub began: Instant,
}

impl ComparisonRun<'_> {
    /// Says which row is next.
    pub fn step(&mut self, what: &str) {
        self.steps[0] += 1;
        let [at, all] = self.steps;
        eprintln!("{at} of {all}, {} s: {what}", self.began.elapsed().as_secs());
    }

    pub fn leave_out(&mut self, what: &str, why: &str) {
        eprintln!("left out: {what}: {why}");
        self.left_out.push((what.to_owned(), why.to_owned()));
    }

    /// Whether the program is here; if not, it is left out.
    pub fn has(&mut self, program: RivalProgram) -> bool {
        let why = program.lacks();
        if let Some(why) = &why {
            self.leave_out(program.name, why);
        }
        why.is_none()
    }

    /// Notes why a part has no figures, or no more than it has.
    pub fn note<T>(&mut self, what: &str, done: Result<T>) -> Option<T> {
        done.inspect_err(|error| self.leave_out(what, &format!("{error:#}"))).ok()
    }
}
