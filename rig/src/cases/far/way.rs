//! The path between exporter and importer, and how a case runs over it.

use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::MachineClock;
use std::time::Duration;

/// Runs a script after the functions of `guest/far.sh`; the note is what it says of the distance.
pub(super) fn run(
    lab: &CaseEnvironment,
    script: &str,
    modules: &[&str],
    variables: &[(&str, String)],
) -> Result<String> {
    lab.farbus()?;
    let modules = [&["virtio_mmio", "virtio_net", "vhci_hcd", "sch_netem"], modules].concat();
    let report = lab
        .boot(&MachineBoot {
            script: &[include_str!("../../../guest/far.sh"), script].concat(),
            modules: &modules,
            programs: &["tc"],
            client: AttachClient::Farbus,
            variables,
            time: MachineClock::Counted,
            patience: Duration::from_secs(if is_thorough(lab) { 3600 } else { 420 }),
            ..MachineBoot::default()
        })?
        .finish()?;
    let printed: Vec<&str> = report.output.lines().filter_map(|line| line.strip_prefix("far: ")).collect();
    Ok(printed.join("\n"))
}

/// Whether more is asked for than CI has time for.
pub(super) fn is_thorough(lab: &CaseEnvironment) -> bool {
    lab.times() > 1
}
