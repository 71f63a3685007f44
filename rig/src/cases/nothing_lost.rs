//! Synced writes survive every cut and kill, with the kernel's own front end. The tests of the command do the same with
//! FUSE and NBD (`crates/cli/tests/command/cuts_and_kills.rs`).

use super::case::RigCase;
use super::storage;
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "nothing-lost-uas",
    purpose: "fio writes and verifies a disk attached `--via uas` while its link is cut, its exporter and its importer are killed: \
              nothing that was synced is lost",
    run: cuts_and_kills,
}];

/// A cut, a killed exporter and a killed importer in each pass.
fn cuts_and_kills(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let modules = [storage::MODULES, &[storage::UAS_MODULE]].concat();
    let boot = MachineBoot {
        script: include_str!("../../guest/nothing-lost.sh"),
        modules: &modules,
        client: AttachClient::Farbus,
        variables: &[("TIMES", lab.times().to_string())],
        programs: &["fio"],
        patience: Duration::from_secs(240 + 120 * u64::from(lab.times())),
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    Ok(storage::note(&report.output))
}
