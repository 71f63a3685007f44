//! One benchmark for another program: what it found and what it drew.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};

use crate::{
    benchmarks,
    command::{QUICK, THOROUGH},
    contest::ContestRules,
    lab::{BenchmarkEnvironment, BenchmarkSubject, DrawnCharts},
    placement::CpuPlacement,
    report::BenchmarkFinding,
};

/// How benchmarks run.
#[derive(Clone, Debug)]
pub struct MeasurementPlan {
    /// The farbus command that is measured.
    pub farbus: PathBuf,
    /// Fewer sizes, repeats and seconds.
    pub quick: bool,
}

/// What one benchmark found.
#[derive(Default)]
pub struct Measurement {
    /// In the order in which they were measured.
    pub findings: Vec<BenchmarkFinding>,
    /// Each chart by its name, as SVG.
    pub charts: Vec<(String, String)>,
}

impl MeasurementPlan {
    /// Runs the benchmark of this name.
    ///
    /// # Errors
    /// There is no such benchmark, or it could not be measured here.
    pub fn measure(&self, name: &str) -> Result<Measurement> {
        let benchmark = benchmarks::ALL.iter().find(|benchmark| benchmark.name == name);
        let benchmark = benchmark.with_context(|| format!("there is no benchmark {name}"))?;
        let rules = if self.quick { QUICK } else { THOROUGH };
        let lab = BenchmarkEnvironment {
            subject: BenchmarkSubject::Farbus,
            farbus: self.farbus.clone(),
            placement: CpuPlacement::Free,
            plots: None,
            charts: DrawnCharts::default(),
            // A row of a paper is shown with the spread of its repeats, however busy the machine.
            rules: ContestRules { patience: Duration::ZERO, ..rules },
            quick: self.quick,
        };
        let findings = (benchmark.run)(&lab)?;
        Ok(Measurement { findings, charts: lab.charts.take() })
    }
}
