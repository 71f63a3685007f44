//! A comparison under way: what all its parts have in common.

use std::time::Instant;

use anyhow::Result;

use super::{findings::PeerFindings, rivals, roofline::MachineLimits};
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
        eprintln!("{at} of {all}, {} left, {} s: {what}", all.saturating_sub(at), self.began.elapsed().as_secs());
    }

    pub fn leave_out(&mut self, what: &str, why: &str) {
        let left_out = (what.to_owned(), why.to_owned());
        if !self.left_out.contains(&left_out) {
            eprintln!("left out: {what}: {why}");
            self.left_out.push(left_out);
        }
    }

    /// Whether the program is here; if not, it is left out.
    pub fn has(&mut self, program: &str) -> bool {
        let why = rivals::lacks(program);
        if let Some(why) = &why {
            self.leave_out(program, why);
        }
        why.is_none()
    }

    /// Notes why a part has no figures, or no more than it has.
    pub fn note<T>(&mut self, what: &str, done: Result<T>) -> Option<T> {
        done.inspect_err(|error| self.leave_out(what, &format!("{error:#}"))).ok()
    }
}
