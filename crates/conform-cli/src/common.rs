//! What the commands have in common: options, and how results are shown.

use std::time::Duration;

use farbus_conform::{CheckResult, CheckSeverity, CheckVerdict, ConformanceCheck, ConformanceReport};
use farbus_control::failure::CommandFailure;
use serde_json::{Value, json};

use crate::output::{print_json, print_table, say, table};

/// Options of each command.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Run only the check of this name; may be given several times.
    #[arg(long, value_name = "ID")]
    pub only: Vec<String>,
    /// Show the checks and run none.
    #[arg(long)]
    pub list: bool,
    /// How long an answer may take, in s.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// The exit code of a run that could not take place.
const COULD_NOT_RUN: u8 = 2;

pub fn could_not_run(why: impl std::fmt::Display) -> CommandFailure {
    CommandFailure::local(format!("could not run: {why}")).with_exit_code(COULD_NOT_RUN)
}

impl CommonArgs {
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Checks that each name of `--only` is one.
    pub fn known(&self, checks: &[ConformanceCheck]) -> Result<(), CommandFailure> {
        match self.only.iter().find(|id| checks.iter().all(|check| check.id != *id)) {
            Some(unknown) => {
                Err(could_not_run(format!("there is no check '{unknown}'; 'farbus conform … --list' names all")))
            }
            None => Ok(()),
        }
    }

    /// Shows the checks that are chosen.
    pub fn show_checks(&self, checks: &[ConformanceCheck]) {
        let is_chosen = |check: &&ConformanceCheck| self.only.is_empty() || self.only.iter().any(|id| id == check.id);
        let chosen: Vec<&ConformanceCheck> = checks.iter().filter(is_chosen).collect();
        if self.json {
            return print_json(&chosen.into_iter().map(json_of).collect());
        }
        let mut table = table(&["CHECK", "", "CLAIM", "SOURCE"]);
        for check in chosen {
            table.add_row([check.id, check.severity.as_str(), check.claim, check.source]);
        }
        print_table(&table);
    }

    /// Shows the results, as JSON or as a table, and says whether the peer conforms.
    pub fn show(&self, role: &str, subject: &Value, report: &ConformanceReport) -> Result<(), CommandFailure> {
        match self.json {
            true => print_json(&json!({
                "role": role,
                "subject": subject,
                "conforms": report.conforms(),
                "counts": counts(report),
                "checks": report.results.iter().map(json_of_result).collect::<Vec<_>>(),
            })),
            false => show_table(report),
        }
        let failed = report.count(CheckSeverity::Must, CheckVerdict::Fail);
        let of = if role == "session" { "session's exporter" } else { role };
        if failed == 0 {
            return Ok(());
        }
        let failure = CommandFailure::local(format!("{failed} of the claims that bind are false for this {of}"));
        Err(if self.json { failure.already_printed() } else { failure })
    }
}

fn json_of(check: &ConformanceCheck) -> Value {
    json!({ "id": check.id, "severity": check.severity.as_str(), "claim": check.claim, "source": check.source })
}

fn json_of_result(line: &CheckResult) -> Value {
    let mut value = json_of(&line.check);
    (value["result"], value["seen"]) = (json!(line.verdict.as_str()), json!(line.seen));
    value
}

const VERDICTS: [CheckVerdict; 4] =
    [CheckVerdict::Pass, CheckVerdict::Fail, CheckVerdict::NotApplicable, CheckVerdict::Skipped];

fn counts(report: &ConformanceReport) -> Value {
    let of = |severity| -> Value {
        VERDICTS.iter().map(|&verdict| (verdict.as_str().to_owned(), json!(report.count(severity, verdict)))).collect()
    };
    json!({ "must": of(CheckSeverity::Must), "should": of(CheckSeverity::Should) })
}

fn show_table(report: &ConformanceReport) {
    let mut table = table(&["CHECK", "", "RESULT", "CLAIM", "SEEN"]);
    for line in &report.results {
        let result = line.verdict.as_str();
        table.add_row([line.check.id, line.check.severity.as_str(), result, line.check.claim, &line.seen]);
    }
    print_table(&table);
    for severity in [CheckSeverity::Must, CheckSeverity::Should] {
        let of = |verdict| report.count(severity, verdict);
        let words: Vec<String> = VERDICTS
            .iter()
            .filter(|&&v| of(v) > 0)
            .map(|&verdict| format!("{} {}", of(verdict), verdict.as_str()))
            .collect();
        if !words.is_empty() {
            say(format!("{}: {}", severity.as_str(), words.join(", ")));
        }
    }
}
