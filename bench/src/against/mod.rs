//! `farbus-bench against`: two versions of farbus, measured in turns by what their users notice.
//!
//! Each round starts both programs anew, because where a process has its memory is part of what is measured; within a
//! round each row gives both programs short slices in turn. A row's figure is the ratio of each round, and its verdict
//! is the interval of their median.

mod comparison;
pub mod rows;
pub mod side;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::{
    comparison::{ComparisonReport, FigureComparison, ROUNDS_MIN, UnmeasuredRow},
    rows::{ComparisonRow, RowFigure, WayOfUse},
    side::{ComparedProgram, DeviceInUse},
};
use crate::{
    benchmarks::database::ScratchFolder, lab::BenchmarkEnvironment, load::LoadTally, probe, report, stats::SampleSpread,
};

/// Slices of each program for a row of a round, and how long each is.
const SLICES: usize = 8;
const SLICE: Duration = Duration::from_millis(100);

#[derive(Args)]
#[command(after_help = "Examples:
  farbus-bench against --before /usr/bin/farbus                       every row
  farbus-bench against --before old/farbus --only nbd --only memory   some of them
  farbus-bench against --before old/farbus --rounds 20 --json all.json")]
pub struct AgainstArgs {
    /// The farbus command to compare with
    #[arg(long, value_name = "PATH")]
    before: PathBuf,
    /// Measure this row only, or those whose names begin so; may be given several times
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// How often both programs are started and measured; 6 at least
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Write all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print a Markdown table instead of one for the terminal
    #[arg(long)]
    markdown: bool,
}

/// The samples of a row, and the value of each program in each round; or why a program has none.
struct RowSamples {
    row: &'static ComparisonRow,
    of: [Vec<f64>; 2],
    failures: ProgramFailures,
}

/// Why each of the two programs could not be measured, if it could not.
type ProgramFailures = [Option<String>; 2];

/// Compares the program of `now` with the one that the arguments name.
///
/// Ends with 1 when a row is lost, or when the program of `now` cannot do what the other one can.
///
/// # Errors
/// A word names no row, or the two hosts of a program could not be set up.
pub fn run(arguments: &AgainstArgs, now: &BenchmarkEnvironment) -> Result<ExitCode> {
    ensure!(arguments.rounds >= ROUNDS_MIN, "fewer than {ROUNDS_MIN} rounds say nothing; try: --rounds {ROUNDS_MIN}");
    let rows = rows::named(&arguments.only).map_err(anyhow::Error::msg)?;
    let before = now.of_program(arguments.before.clone());
    let now = now.of_program(now.farbus.clone());
    let folders = [ScratchFolder::new("before")?, ScratchFolder::new("now")?];
    let sides =
        [ComparedProgram::new(&before, &folders[0], "before")?, ComparedProgram::new(&now, &folders[1], "now")?];
    let found = compare(&sides, &rows, arguments.rounds)?;

    let machine = report::machine();
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&found.for_programs(&machine))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print!("{}", if arguments.markdown { found.for_markdown() } else { found.for_terminal() });
    Ok(ExitCode::from(u8::from(found.losses() + found.lost_abilities() > 0)))
}

fn compare(
    sides: &[ComparedProgram<'_>; 2],
    rows: &[&'static ComparisonRow],
    rounds: usize,
) -> Result<ComparisonReport> {
    let mut missing = Vec::new();
    let mut ways: Vec<(WayOfUse, Vec<RowSamples>)> = Vec::new();
    for way in WayOfUse::ALL {
        let of_way: Vec<&'static ComparisonRow> = rows.iter().copied().filter(|row| row.way == way).collect();
        match side::lacks(way) {
            Some(why) => missing.extend(of_way.iter().map(|row| UnmeasuredRow::of_machine(row.name, &why))),
            None => ways.push((way, of_way.into_iter().map(RowSamples::of_row).collect())),
        }
    }
    let mut foreign = Vec::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (way, samples) in &mut ways {
            one_round(sides, *way, samples, round % 2, &mut foreign)?;
        }
    }
    let mut all = Vec::new();
    for sample in ways.into_iter().flat_map(|(_, samples)| samples) {
        match sample.is_measured() {
            true => all.push(comparison(sample)),
            false => missing.push(UnmeasuredRow::of_programs(sample.row.name, &sample.failures)),
        }
    }
    let foreign = if foreign.is_empty() { 0.0 } else { SampleSpread::new(foreign).median() };
    Ok(ComparisonReport { all, missing, foreign })
}

impl RowSamples {
    fn of_row(row: &'static ComparisonRow) -> Self {
        Self { row, of: Default::default(), failures: Default::default() }
    }

    fn is_measured(&self) -> bool {
        self.failures.iter().all(Option::is_none)
    }
}

/// Starts both programs and takes a sample of each row that both can do. `foreign` gets what other processes used of a
/// processor meanwhile.
fn one_round(
    sides: &[ComparedProgram<'_>; 2],
    way: WayOfUse,
    samples: &mut [RowSamples],
    first: usize,
    foreign: &mut Vec<f64>,
) -> Result<()> {
    // A row that failed leaves its device in no known state: the rows after it have new ones.
    let mut rest = samples;
    while let Some(from) = rest.iter().position(RowSamples::is_measured) {
        rest = &mut rest[from..];
        let mut devices = match both(first, |at| sides[at].begin(way)) {
            Ok(devices) => devices,
            Err(failures) => {
                rest.iter_mut()
                    .filter(|sample| sample.is_measured())
                    .for_each(|sample| sample.failures.clone_from(&failures));
                return Ok(());
            }
        };
        let pids = devices.each_ref().map(DeviceInUse::pids).concat();
        let others = probe::ForeignLoad::begin(&pids)?;
        let mut taken = 0;
        for sample in rest.iter_mut() {
            taken += 1;
            if !sample.is_measured() {
                continue;
            }
            match one_row(&mut devices, sample.row, first) {
                Ok(values) => sample.of.iter_mut().zip(values).for_each(|(of, value)| of.push(value)),
                Err(failures) => {
                    sample.failures = failures;
                    break;
                }
            }
        }
        // Processes that have ended say nothing of others.
        foreign.extend(others.share(&pids).ok());
        rest = &mut rest[taken..];
    }
    Ok(())
}

/// Does the same with both programs, with the other one too if the `first` fails.
fn both<T>(first: usize, mut act: impl FnMut(usize) -> Result<T>) -> Result<[T; 2], ProgramFailures> {
    let mut results = [(first, act(first)), (1 - first, act(1 - first))];
    results.sort_by_key(|(at, _)| *at);
    match results.map(|(_, result)| result) {
        [Ok(before), Ok(now)] => Ok([before, now]),
        failed => Err(failed.map(|result| result.err().map(|error| format!("{error:#}")))),
    }
}

/// The row's value of each program.
fn one_row(devices: &mut [DeviceInUse; 2], row: &ComparisonRow, first: usize) -> Result<[f64; 2], ProgramFailures> {
    let load = match row.figure {
        RowFigure::Value(gauge) => return both(0, |at| devices[at].value(gauge)),
        RowFigure::Rate(load) => load,
    };
    let mut sums = [LoadTally::nothing(), LoadTally::nothing()];
    for slice in 0..=SLICES {
        // A B, B A, A B, …; the first pair warms up.
        let tallies = both((first + slice) % 2, |at| devices[at].run_past_lead_in(load, SLICE))?;
        if slice > 0 {
            sums.iter_mut().zip(&tallies).for_each(|(sum, tally)| sum.add(tally));
        }
    }
    Ok(sums.map(|sum| row.rate(&sum)))
}

fn comparison(samples: RowSamples) -> FigureComparison {
    let [before, now] = samples.of;
    FigureComparison { row: samples.row.name, unit: samples.row.unit(), better: samples.row.better(), before, now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named_and_the_other_one_is_tried() {
        let fails = |which: &'static [usize]| {
            move |at: usize| match which.contains(&at) {
                true => Err(anyhow::anyhow!("no {at}")),
                false => Ok(at),
            }
        };
        for first in [0, 1] {
            assert_eq!(both(first, fails(&[])), Ok([0, 1]));
            assert_eq!(both(first, fails(&[0])), Err([Some("no 0".to_owned()), None]));
            assert_eq!(both(first, fails(&[1])), Err([None, Some("no 1".to_owned())]));
            assert_eq!(both(first, fails(&[0, 1])), Err([0, 1].map(|at| Some(format!("no {at}")))));
        }
    }
}
