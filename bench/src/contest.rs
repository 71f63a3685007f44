//! Several servers measured against each other in turns.
//!
//! The machine changes during a benchmark: a neighbour compiles, the hypervisor throttles, the scheduler finds another
//! placement. So a round gives each side many short slices in turn, and rounds are compared pair by pair; a round
//! during which other load took the machine is repeated.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{load::LoadTally, probe, stats::SampleSpread};

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct ContestRules {
    pub rounds: usize,
    pub slices: usize,
    pub slice: Duration,
    /// The share of one CPU that other processes may use before a round is repeated.
    pub foreign_max: f64,
    /// How long to wait for a quiet machine, in all, before rounds count as they are.
    pub patience: Duration,
}

impl ContestRules {
    /// For rates of gigabytes a second: fewer, longer slices, so that filling and draining the queue and the CPU clock
    /// (which may lag by a tick) do not matter.
    pub fn with_long_slices(mut self) -> Self {
        self.slices = self.slices.div_ceil(4);
        self.slice *= 8;
        self
    }
}

/// The pause between a disturbed round and the next try; disturbances here (a compiler) take seconds.
const PAUSE: Duration = Duration::from_millis(250);

/// One server under load, of one process or several.
pub struct ContestServer<'a> {
    pub servers: Vec<u32>,
    pub run: Box<dyn FnMut(Duration) -> Result<LoadTally> + 'a>,
}

impl<'a> ContestServer<'a> {
    pub fn new(server: u32, run: impl FnMut(Duration) -> Result<LoadTally> + 'a) -> Self {
        Self::of_processes(vec![server], run)
    }

    pub fn of_processes(servers: Vec<u32>, run: impl FnMut(Duration) -> Result<LoadTally> + 'a) -> Self {
        Self { servers, run: Box::new(run) }
    }

    fn cpu_seconds(&self) -> Result<f64> {
        self.servers.iter().map(|&server| probe::cpu_seconds(server)).sum()
    }
}

/// What one side did in one round.
#[derive(Clone)]
pub struct RoundTally {
    pub tally: LoadTally,
    pub server_cpu_seconds: f64,
}

impl RoundTally {
    fn nothing() -> Self {
        Self { tally: LoadTally::nothing(), server_cpu_seconds: 0.0 }
    }

    pub fn cpu_seconds_per_gb(&self) -> f64 {
        self.server_cpu_seconds / (self.tally.bytes as f64 / 1e9)
    }
}

pub struct ContestResult {
    /// For each side, its share of each round.
    sides: Vec<Vec<RoundTally>>,
    /// Foreign load in the rounds that count.
    pub foreign: SampleSpread,
    pub redone: usize,
    /// The machine never became quiet: the figures are unreliable.
    pub disturbed: bool,
}

impl ContestResult {
    pub fn hold(rules: &ContestRules, sides: &mut [ContestServer<'_>]) -> Result<Self> {
        let servers: Vec<u32> = sides.iter().flat_map(|side| side.servers.clone()).collect();
        for side in &mut *sides {
            (side.run)(rules.slice)?;
        }
        let mut kept: Vec<Vec<RoundTally>> = vec![Vec::new(); sides.len()];
        let mut foreign = Vec::new();
        let mut redone = 0;
        let mut waited = Duration::ZERO;
        while foreign.len() < rules.rounds {
            let began = Instant::now();
            let others = probe::ForeignLoad::begin(&servers)?;
            let round = hold_round(rules, sides)?;
            let share = others.share(&servers)?;
            if share > rules.foreign_max && waited < rules.patience {
                redone += 1;
                waited += began.elapsed() + PAUSE;
                thread::sleep(PAUSE);
                continue;
            }
            foreign.push(share);
            for (kept, share) in kept.iter_mut().zip(round) {
                kept.push(share);
            }
        }
        let foreign = SampleSpread::new(foreign);
        let disturbed = foreign.median() > rules.foreign_max;
        Ok(Self { sides: kept, foreign, redone, disturbed })
    }

    /// One figure of one side, round by round.
    pub fn figures(&self, side: usize, figure: impl Fn(&RoundTally) -> f64) -> SampleSpread {
        SampleSpread::new(self.sides[side].iter().map(figure).collect())
    }

    /// All rounds of one side taken together, for its latencies.
    pub fn sum(&self, side: usize) -> LoadTally {
        let mut sum = LoadTally::nothing();
        for share in &self.sides[side] {
            sum.add(&share.tally);
        }
        sum
    }
}

fn hold_round(rules: &ContestRules, sides: &mut [ContestServer<'_>]) -> Result<Vec<RoundTally>> {
    let mut round = vec![RoundTally::nothing(); sides.len()];
    for slice in 0..rules.slices {
        // A B, B A, A B, …: so that a disturbance does not always hit the same side.
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if slice % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let cpu_before = sides[at].cpu_seconds()?;
            let tally = (sides[at].run)(rules.slice)?;
            round[at].server_cpu_seconds += sides[at].cpu_seconds()? - cpu_before;
            round[at].tally.add(&tally);
        }
    }
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_and_every_round_counts_once() {
        let order = std::cell::RefCell::new(String::new());
        let rules = ContestRules {
            rounds: 2,
            slices: 2,
            slice: Duration::ZERO,
            foreign_max: f64::INFINITY,
            patience: Duration::ZERO,
        };
        let side = |name: char, urbs: u64| {
            let order = &order;
            ContestServer::new(std::process::id(), move |_| {
                order.borrow_mut().push(name);
                Ok(LoadTally { urbs, seconds: 1.0, ..LoadTally::nothing() })
            })
        };
        let contest = ContestResult::hold(&rules, &mut [side('a', 3), side('b', 5)]).expect("held");
        // The first pair warms up.
        assert_eq!(*order.borrow(), "ab".to_owned() + "abba" + "abba");
        assert_eq!(contest.figures(1, |share| share.tally.urbs as f64).samples, [10.0, 10.0]);
        assert_eq!(contest.sum(0).urbs, 12);
    }
}
