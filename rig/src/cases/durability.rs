//! The durability campaign with the kernel's own front end. The one with FUSE and NBD is `cargo xtask durability`.

use super::case::RigCase;
use super::storage;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError, disk};
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "durability-uas",
    purpose: "four writers of a disk attached `--via uas` know what a flush has covered, while its medium loses power, \
              its link is cut, its exporter and importer are killed, stopped and restarted: no byte lost, no old read, no hang",
    run: campaign,
}];

/// The medium's size and its partition's first sector, as the guest's script makes them.
const SECTORS: u64 = (8 << 20) / 512;
const FIRST: u64 = 2048;

/// Where the guest has the table of partitions.
const PARTITIONS: &str = "/rig/partitions";

/// Each kind of fault once in each pass.
fn campaign(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let modules = [storage::MODULES, &[storage::UAS_MODULE, "configfs", "null_blk"]].concat();
    let partitions = lab.scratch("partitions");
    std::fs::write(&partitions, disk::partition_table(SECTORS, FIRST))
        .map_err(RigError::io(format!("write {}", partitions.display())))?;
    let placed = format!("{}={PARTITIONS}", partitions.display());
    let variables = [("TIMES", lab.times().to_string()), ("PARTITIONS", PARTITIONS.to_owned())];
    let boot = MachineBoot {
        script: include_str!("../../guest/durability.sh"),
        modules: &modules,
        client: AttachClient::Farbus,
        variables: &variables,
        programs: &[&placed],
        patience: Duration::from_secs(240 + 180 * u64::from(lab.times())),
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    Ok(storage::note(&report.output))
}
