//! What the kernel makes of descriptors that break the specification: the record with which farbus's own reading is
//! compared (`crates/host/tests/odd_descriptors.rs`).

use super::case::{RigCase, expect};
use crate::lab::{CaseEnvironment, MachineBoot};
use crate::peers::odd;
use crate::{Result, RigError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "odd-descriptors",
    purpose: "devices with broken descriptors, 20 for each of --times: Linux has the interfaces and endpoints that are recorded, and that farbus reads",
    run: compare,
}];

/// Devices of one pass.
const DEVICES_OF_PASS: u64 = 20;
/// Set, the record is written from what the guest shows.
const WRITE: &str = "FARBUS_WRITE";

fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/host/tests/linux-6.1-descriptors.txt")
}

fn compare(lab: &CaseEnvironment) -> Result<String> {
    let count = (DEVICES_OF_PASS * u64::from(lab.times())).min(odd::ODD_DEVICES);
    let variables = &[("FIRST", "0".to_owned()), ("END", count.to_string())];
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/odd-descriptors.sh"),
            modules: &["virtio_mmio", "virtio_net", "vhci_hcd"],
            port: Some(odd::serve()?),
            variables,
            // A device that is refused is tried four times.
            patience: Duration::from_secs(120 + 3 * count),
            ..MachineBoot::default()
        })?
        .finish()?;
    let shown = devices_of(&report.output);
    expect(shown.len() as u64 == count, || format!("the guest shows {} of {count} devices", shown.len()))?;
    let lines: Vec<String> = shown.iter().map(|(seed, device)| format!("{seed}{device}")).collect();
    let path = record_path();
    if std::env::var_os(WRITE).is_some() {
        let text = lines.join("\n") + "\n";
        fs::write(&path, text).map_err(RigError::io(format!("write {}", path.display())))?;
    }
    let recorded = fs::read_to_string(&path).map_err(RigError::io(format!("read {}", path.display())))?;
    for (line, recorded) in lines.iter().zip(recorded.lines()) {
        expect(line == recorded, || format!("the kernel shows\n  {line}\nand the record has\n  {recorded}"))?;
    }
    let refused = lines.iter().filter(|line| line.ends_with("refused")).count();
    Ok(format!("{count} devices, {refused} of them refused"))
}

/// What the guest shows of each device, in a line: ` refused`, or of each configuration, interface and endpoint what
/// the kernel's table has (`drivers/usb/core/devices.c`).
fn devices_of(output: &str) -> BTreeMap<u64, String> {
    let mut all: BTreeMap<u64, String> = BTreeMap::new();
    for line in output.lines() {
        let Some((seed, rest)) = line.trim_end().strip_prefix("odd ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let Ok(seed) = seed.parse() else { continue };
        let device = all.entry(seed).or_default();
        let field = |name: &str| {
            let from = rest.find(name).map_or("", |at| rest[at + name.len()..].trim_start());
            from.split([' ', '(']).next().unwrap_or_default().to_owned()
        };
        match rest.get(..2) {
            Some("re") => *device += " refused",
            Some("C:") => *device += " C",
            Some("I:") => {
                let class = [field("Cls="), field("Sub="), field("Prot=")].concat();
                *device += &format!(" I{}.{}:{class}", field("If#="), field("Alt="));
            }
            Some("E:") => {
                let (address, attributes) = (field("Ad="), field("Atr="));
                *device += &format!(" E{address}:{attributes}:{}:{}", field("MxPS="), field("Ivl="));
            }
            _ => {}
        }
    }
    all
}
