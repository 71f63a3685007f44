//! The environment of every benchmark: the servers, the rules and the client's placement.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    contest::ContestRules,
    peers::{PeerServer, PeerServerKind},
    placement::CpuPlacement,
};

/// The server that is compared with the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchmarkSubject {
    Farbus,
    /// The reference server: shows which targets are reachable on this machine.
    Ref,
    /// The `usbip` crate.
    Crate,
}

/// What was drawn since the last [`DrawnCharts::take`]: names, and their SVG.
#[derive(Default)]
pub struct DrawnCharts(Mutex<Vec<(String, String)>>);

impl DrawnCharts {
    fn push(&self, name: &str, svg: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), svg.to_owned()));
    }

    pub fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub struct BenchmarkEnvironment {
    pub subject: BenchmarkSubject,
    pub farbus: PathBuf,
    pub placement: CpuPlacement,
    /// Where plots go, if they are wanted.
    pub plots: Option<PathBuf>,
    pub charts: DrawnCharts,
    pub rules: ContestRules,
    pub quick: bool,
}

impl BenchmarkEnvironment {
    /// An environment that measures the farbus at this path, and draws into no folder.
    pub fn of_program(&self, farbus: PathBuf) -> Self {
        let Self { subject, placement, rules, quick, .. } = *self;
        Self { subject, farbus, placement, plots: None, charts: DrawnCharts::default(), rules, quick }
    }

    pub fn subject_name(&self) -> &'static str {
        match self.subject {
            BenchmarkSubject::Farbus => "farbus",
            BenchmarkSubject::Ref => "ref",
            BenchmarkSubject::Crate => "usbip crate",
        }
    }

    /// The subject, serving its source/sink device.
    pub fn subject(&self) -> Result<PeerServer> {
        match self.subject {
            BenchmarkSubject::Farbus => self.farbus("zero"),
            BenchmarkSubject::Ref => self.peer(PeerServerKind::Ref),
            BenchmarkSubject::Crate => self.peer(PeerServerKind::Crate),
        }
    }

    /// The farbus command, built.
    pub fn farbus_program(&self) -> Result<&Path> {
        if !self.farbus.exists() {
            bail!(
                "{} does not exist: build it (cargo build --release -p farbus-cli) or name it with --farbus",
                self.farbus.display()
            );
        }
        Ok(&self.farbus)
    }

    /// `farbus share WHAT`.
    pub fn farbus(&self, what: &str) -> Result<PeerServer> {
        PeerServer::farbus(self.farbus_program()?, what, self.placement)
    }

    /// A lab for a test, with the shortest rules; `None` where nothing was built that it could measure.
    #[cfg(test)]
    pub fn for_test() -> Option<Self> {
        use std::time::Duration;
        let beside = std::env::current_exe().ok()?.parent()?.with_file_name("farbus");
        if !beside.exists() {
            eprintln!("skipped: {} is not built", beside.display());
            return None;
        }
        let slice = Duration::from_millis(5);
        let rules = ContestRules { rounds: 1, slices: 1, slice, foreign_max: f64::INFINITY, patience: Duration::ZERO };
        let (subject, placement) = (BenchmarkSubject::Farbus, CpuPlacement::Free);
        Some(Self {
            subject,
            farbus: beside,
            placement,
            plots: None,
            charts: DrawnCharts::default(),
            rules,
            quick: true,
        })
    }

    /// Keeps a plot, and writes it if plots are wanted.
    pub fn plot(&self, name: &str, svg: &str) -> Result<()> {
        self.charts.push(name, svg);
        let Some(folder) = &self.plots else { return Ok(()) };
        let path = folder.join(name).with_extension("svg");
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn peer(&self, kind: PeerServerKind) -> Result<PeerServer> {
        PeerServer::of_this_binary(kind, self.placement)
    }
}
