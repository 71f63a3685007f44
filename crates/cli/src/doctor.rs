//! `farbus doctor`: what this machine can do, and what to type for each thing that it lacks.

mod checks;
mod finding;

use serde::Serialize;

use farbus::importer::client::{ImporterClient, PathFinding, address_of};
use farbus_io_net::link::host_address::{check_host, shown};

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};
use checks::CHECKS;
use finding::{CapabilityState, CheckFinding, DoctorCheck};

/// Show what this machine can do, and what to type for each lack.
///
/// Looks only: nothing is changed. With HOST it looks at the path there instead.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus doctor\n  farbus doctor lab3               whether large packets reach it\n  farbus doctor --require vhci,fuse && farbus attach lab3/disk\n  \
    farbus doctor --json | jq -r '.[] | select(.state == \"missing\") | .next'\n\n\
    Exit codes: 0 done; 1 something that --require names is missing; 5 HOST does not answer."
)]
pub struct Args {
    /// Look whether large packets reach this HOST[:PORT]: some paths drop them in silence.
    #[arg(value_parser = check_host, conflicts_with = "require")]
    host: Option<String>,
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
    if let Some(host) = &args.host {
        let line = DoctorRow { name: "path", needed_for: "moving data to and from it", finding: path_to(host)? };
        if args.json {
            return print_json(&[line]);
        }
        show(&[line]);
        return Ok(());
    }
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

/// Sends large packets to a host, and small ones if those do not arrive.
fn path_to(host: &str) -> Result<CheckFinding, CommandFailure> {
    let address = address_of(host);
    let found = ImporterClient::default().probe_path(&address)?;
    Ok(match found {
        PathFinding::Whole => CheckFinding::ok(format!("large packets reach {}", shown(&address))),
        PathFinding::Bounded(bytes) => CheckFinding::limited(
            format!("the path to {} drops large packets in silence; segments of {bytes} bytes pass", shown(&address)),
            "sessions send such segments by themselves after two lost links; plain USB/IP does not. Set the MTU of this\n  \
             machine's network to 1280, or let ICMP through where it is filtered",
        ),
    })
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
