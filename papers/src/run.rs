//! Runs what items need: each benchmark once, however many items are made of it.

use std::{collections::HashMap, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};
use farbus_bench::{Measurement, MeasurementPlan};
use serde_json::{Value, json};

use crate::{
    item::{BenchmarkPart, ItemEvidence, ItemSource, PaperItem},
    result::{ItemResult, ItemRow},
};

pub struct ItemRunner {
    plan: MeasurementPlan,
    /// What each benchmark that ran has found, or why it could not.
    measured: HashMap<&'static str, Result<Measurement, String>>,
}

/// What came of an item.
pub struct ItemOutcome {
    pub item: &'static PaperItem,
    pub state: OutcomeState,
    /// Benchmarks that are left out because they take minutes.
    pub left_out: Vec<&'static str>,
}

pub enum OutcomeState {
    Ran(ItemResult),
    Failed(String),
    /// It takes what this machine lacks.
    Needs(&'static str),
}

impl ItemRunner {
    pub fn new(plan: MeasurementPlan) -> Self {
        Self { plan, measured: HashMap::new() }
    }

    pub fn run(&mut self, item: &'static PaperItem) -> ItemOutcome {
        let mut left_out = Vec::new();
        let state = match &item.source {
            ItemSource::Needs(what) => OutcomeState::Needs(what),
            ItemSource::Benchmarks(parts) => {
                let is_left_out = |part: &&BenchmarkPart| part.is_long && self.plan.quick;
                left_out.extend(parts.iter().filter(is_left_out).map(|part| part.name));
                let parts: Vec<_> = parts.iter().filter(|part| !is_left_out(part)).collect();
                state_of(self.benchmarks(&parts))
            }
            ItemSource::Command { runs, read } => state_of(self.commands(runs).and_then(|printed| read(&printed))),
            ItemSource::Function(function) => {
                eprintln!("{}: {}", item.name(), item.title);
                state_of(function(self.plan.quick))
            }
        };
        ItemOutcome { item, state, left_out }
    }

    fn benchmarks(&mut self, parts: &[&BenchmarkPart]) -> Result<ItemResult> {
        let mut result = ItemResult::default();
        for part in parts {
            let plan = &self.plan;
            let measured = self.measured.entry(part.name).or_insert_with(|| {
                eprint!("benchmark {}", part.name);
                let began = Instant::now();
                let measured = plan.measure(part.name).map_err(|error| format!("{error:#}"));
                eprintln!(": {:.0} s", began.elapsed().as_secs_f64());
                measured
            });
            let measured = measured.as_ref().map_err(|why| anyhow::anyhow!("{}: {why}", part.name))?;
            for rows in part.rows {
                let before = result.rows.len();
                let found = measured.findings.iter().filter(|finding| finding.what.starts_with(rows.begin));
                result.rows.extend(found.map(|finding| ItemRow::of_finding(finding, rows)));
                ensure!(result.rows.len() > before, "the benchmark {} has no row '{}…'", part.name, rows.begin);
            }
            for &name in part.charts {
                let chart = measured.charts.iter().find(|(other, _)| other == name);
                let (_, svg) = chart.with_context(|| format!("the benchmark {} draws no {name}", part.name))?;
                result.charts.push(svg.clone());
            }
        }
        Ok(result)
    }

    fn commands(&self, runs: &[&str]) -> Result<Vec<Value>> {
        let run = |words: &&str| {
            let words = words.split(' ').chain(["--json"]);
            let output = Command::new(&self.plan.farbus).args(words.clone()).output().context("cannot run farbus")?;
            // A plan with a refusal ends with 3 and prints the plan.
            let line = words.collect::<Vec<_>>().join(" ");
            serde_json::from_slice(&output.stdout)
                .with_context(|| format!("farbus {line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        };
        runs.iter().map(run).collect()
    }
}

fn state_of(result: Result<ItemResult>) -> OutcomeState {
    match result {
        Ok(result) => OutcomeState::Ran(result),
        Err(error) => OutcomeState::Failed(format!("{error:#}")),
    }
}

impl ItemOutcome {
    pub fn rows(&self) -> &[ItemRow] {
        match &self.state {
            OutcomeState::Ran(result) => &result.rows,
            _ => &[],
        }
    }

    pub fn charts(&self) -> &[String] {
        match &self.state {
            OutcomeState::Ran(result) => &result.charts,
            _ => &[],
        }
    }

    /// Why it could not be run.
    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            OutcomeState::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// Whether a row is beyond its bound.
    pub fn is_missed(&self) -> bool {
        self.rows().iter().any(|row| row.is_missed)
    }

    /// How sure a row's value is.
    pub fn certainty(&self, row: &ItemRow) -> String {
        match self.item.evidence {
            ItemEvidence::Computed => "exact".into(),
            _ => row.certainty(),
        }
    }

    /// In a few words, for an index.
    pub fn status(&self) -> String {
        match &self.state {
            OutcomeState::Ran(_) if self.is_missed() => "bound missed".into(),
            OutcomeState::Ran(result) => format!("{} rows", result.rows.len()),
            OutcomeState::Failed(_) => "could not be run".into(),
            OutcomeState::Needs(_) => "needs the rig".into(),
        }
    }

    pub fn json(&self) -> Value {
        let mut object = self.item.json();
        object["status"] = json!(self.status());
        object["rows"] = json!(self.rows().iter().map(ItemRow::json).collect::<Vec<_>>());
        object["left_out"] = json!(self.left_out);
        object["failure"] = json!(self.failure());
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items;

    fn item(name: &str) -> &'static PaperItem {
        items::all().into_iter().find(|item| item.name() == name).expect("an item")
    }

    #[test]
    fn row_that_a_benchmark_no_longer_has_is_a_failure_of_the_item() {
        let mut runner = ItemRunner::new(MeasurementPlan { farbus: "/nowhere".into(), quick: true });
        runner.measured.insert("timeline", Ok(Measurement::default()));
        let outcome = runner.run(item("2007 Figure 11"));
        let why = outcome.failure().expect("it has no rows");
        assert!(why.contains("has no row 'requests held by a swap…'"), "{why}");
        runner.measured.insert("camera", Err("no camera".into()));
        assert_eq!(runner.run(item("2007 Figure 7")).failure(), Some("camera: no camera"));
    }

    #[test]
    fn what_needs_the_rig_says_what_and_fails_nothing() {
        let mut runner = ItemRunner::new(MeasurementPlan { farbus: "/nowhere".into(), quick: true });
        let outcome = runner.run(item("2005 Figure 18"));
        assert!(matches!(outcome.state, OutcomeState::Needs(what) if what.contains("vhci-hcd")));
        assert!(outcome.failure().is_none() && !outcome.is_missed());
    }
}
