//! Two machines: one has the devices and shares them, the other uses them.
//!
//! A boot takes longer than most proofs, so one pair serves many: each device is a step of its own, with its own figure
//! or error, and the steps after a failed one still run.

use crate::lab::{CaseEnvironment, MachineBoot};
use crate::machine::{MachineNetwork, RunningMachine};
use crate::{Result, RigError};
use std::time::{Duration, Instant};

/// How long QEMU may take to make the socket of the cable.
const CABLE_WITHIN: Duration = Duration::from_secs(10);

/// A running pair.
pub struct MachinePair {
    /// The machine with the devices.
    pub exporter: RunningMachine,
    /// The machine whose drivers and programs use them.
    pub importer: RunningMachine,
    steps: StepResults,
}

/// The results of a case's steps.
#[derive(Default)]
struct StepResults {
    lines: Vec<String>,
    failed: Vec<&'static str>,
    machines_lost: bool,
}

impl MachinePair {
    /// Boots both. The scripts end with `guest/pair/serve.sh`: they run the functions they are asked for.
    pub fn boot(lab: &CaseEnvironment, exporter: MachineBoot, importer: MachineBoot) -> Result<Self> {
        let cable = lab.scratch("cable");
        let network = MachineNetwork::CableFrom(cable.clone());
        let mut exporter = lab.boot(&MachineBoot { role: "exporter", network, ..exporter })?;
        // Half a second after it started; if it has died, its error is reported and not the other machine's complaint
        // about the cable.
        let start = Instant::now();
        while !cable.exists() && start.elapsed() < CABLE_WITHIN {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !cable.exists() {
            exporter.await_word("serving")?;
        }
        let network = MachineNetwork::CableTo(cable);
        let mut importer = lab.boot(&MachineBoot { role: "importer", network, ..importer })?;
        exporter.await_word("serving")?;
        importer.await_word("serving")?;
        Ok(Self { exporter, importer, steps: StepResults::default() })
    }

    /// Tries one proof, which gets both machines and returns its figure.
    pub fn step(
        &mut self,
        name: &'static str,
        proof: impl FnOnce(&mut RunningMachine, &mut RunningMachine) -> Result<String>,
    ) {
        if self.steps.machines_lost {
            self.steps.note(name, "FAILED  not tried: a machine is lost".into(), true);
            return;
        }
        let start = Instant::now();
        let outcome = proof(&mut self.exporter, &mut self.importer);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(figure) => self.steps.note(name, format!("ok      {seconds:5.1} s  {figure}"), false),
            Err(error) => {
                self.steps.machines_lost = matches!(error, RigError::GuestDied { .. } | RigError::GuestTimeout { .. });
                // The exporter's complaints help; if it has none, that is no second failure.
                let beside = self.exporter.ask("complaints").unwrap_or_default();
                let message = format!("{error}\n{}", beside.trim_end()).replace('\n', "\n        ");
                self.steps.note(name, format!("FAILED  {seconds:5.1} s  {message}"), true);
            }
        }
    }

    /// Ends both scripts and reports how all steps went.
    pub fn verdict(mut self) -> Result<String> {
        if !self.steps.machines_lost {
            for machine in [&mut self.exporter, &mut self.importer] {
                machine.tell("end")?;
            }
            self.exporter.finish()?;
            self.importer.finish()?;
        }
        self.steps.verdict()
    }
}

impl StepResults {
    fn note(&mut self, name: &'static str, outcome: String, failed: bool) {
        self.lines.push(format!("  {name:<12} {outcome}"));
        if failed {
            self.failed.push(name);
        }
    }

    fn verdict(self) -> Result<String> {
        let lines = self.lines.join("\n");
        if self.failed.is_empty() && !self.lines.is_empty() {
            return Ok(format!("{} steps\n{lines}", self.lines.len()));
        }
        Err(RigError::Expectation(format!("failed steps: {}\n{lines}", self.failed.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_step_fails_the_case_and_is_reported() {
        let mut steps = StepResults::default();
        steps.note("disk", "ok".into(), false);
        steps.note("sound", "FAILED  silence".into(), true);
        let message = steps.verdict().unwrap_err().to_string();
        assert!(
            message.starts_with("failed steps: sound\n") && message.contains("silence") && message.contains("disk"),
            "{message}"
        );
        assert!(StepResults::default().verdict().is_err(), "no step is no proof");
    }
}
