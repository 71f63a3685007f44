//! `farbus doctor`: what this machine can do, and what to type for each thing that it lacks.

mod checks;
mod finding;

use serde::Serialize;

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};
use checks::CHECKS;
use finding::{CapabilityState, CheckFinding, DoctorCheck};

/// Show what this machine can do, and what to type for each lack.
///
/// Looks only: nothing is changed, and no other host is asked.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus doctor\n  farbus doctor --require vhci,fuse && farbus attach lab3/disk\n  \
    farbus doctor --json | jq -r '.[] | select(.state == \"missing\") | .next'\n\n\
    Exit codes: 0 done; 1 something that --require names is missing."
)]
pub struct Args {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Fail unless these are there, by their names in the first column; separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(CHECKS.iter().map(|check| check.name)))]
    require: Vec<String>,
}

#[derive(Serialize)]
struct DoctorRow {
    name: &'static str,
    needed_for: &'static str,
    #[serde(flatten)]
    finding: CheckFinding,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let look =
        |check: &DoctorCheck| DoctorRow { name: check.name, needed_for: check.needed_for, finding: (check.look)() };
    let lines: Vec<DoctorRow> = CHECKS.iter().map(look).collect();
    if args.json {
        print_json(&lines)?;
    } else {
        show(&lines);
    }
    let is_lacking = |line: &&DoctorRow| {
        line.finding.state == CapabilityState::Missing && args.require.iter().any(|name| name == line.name)
    };
    let missing: Vec<&str> = lines.iter().filter(is_lacking).map(|line| line.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let failure = CommandFailure::local(format!("missing on this machine: {}", missing.join(", ")));
    Err(if args.json { failure.already_printed() } else { failure })
}

fn show(lines: &[DoctorRow]) {
    let mut table = table(&["NAME", "STATE", "FOUND", "NEEDED FOR"]);
    for line in lines {
        let state = match line.finding.state {
            CapabilityState::Ok => "ok",
            CapabilityState::Limited => "limited",
            CapabilityState::Missing => "missing",
        };
        table.add_row([line.name, state, &line.finding.found, line.needed_for]);
    }
    print_table(&table);
    for line in lines {
        let Some(next) = &line.finding.next else { continue };
        say(format!("\n{}: {}", line.name, next));
    }
}
