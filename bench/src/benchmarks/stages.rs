//! The time of one request by stage (Netbus, Tables 1 and 2), from the exporter's report of its own part: no clocks are
//! compared.

use anyhow::{Result, bail};

use super::naming::size;
use crate::{
    lab::{Lab, Subject},
    peers::{
        Kind,
        nbdkit::Verb,
        session::{Disk, Stages},
    },
    report::{Finding, Quantity},
    stats::{Spread, Target},
};

pub const NAME: &str = "stages";
/// As many samples as the paper averages.
const SAMPLES: usize = 100;

/// A stage and how to get it from a sample.
type Named = (&'static str, fn(&Stages) -> f64);

pub fn run(lab: &Lab) -> Result<Vec<Finding>> {
    if lab.subject != Subject::Farbus {
        bail!("only farbus has sessions");
    }
    let server = lab.peer(Kind::Session)?;
    let mut disk = Disk::open(server.address)?;
    let mut findings = Vec::new();
    for (verb, bytes) in [(Verb::Read, 4096), (Verb::Read, 16 * 1024), (Verb::Write, 4096), (Verb::Write, 16 * 1024)] {
        let samples = disk.stages(verb, bytes, SAMPLES)?;
        let stages: [Named; 5] = [
            ("front end", |at| at.front_us),
            ("bus", |at| at.bus_us),
            ("network", |at| at.network_us),
            ("back end", |at| at.back_us),
            ("all", |at| at.front_us + at.bus_us + at.network_us + at.back_us),
        ];
        for (name, stage) in stages {
            let spread = Spread::new(samples.iter().map(stage).collect());
            let what = format!("{} {} × 1: {name}", verb.name(), size(bytes));
            findings.push(Finding::absolute(NAME, what, Quantity::new(spread, "µs"), Target::Context));
        }
    }
    Ok(findings)
}
