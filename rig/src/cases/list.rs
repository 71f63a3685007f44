//! The list of devices, as other clients see it.

use super::case::{RigCase, expect};
use crate::Result;
use crate::disk;
use crate::lab::{CaseEnvironment, MachineBoot};

pub(super) const CASES: &[RigCase] = &[
    RigCase { name: "list-stock", purpose: "stock `usbip list -r` shows all shared devices by bus id", run: stock },
    RigCase { name: "list-farbus", purpose: "`farbus list --json` shows the same devices", run: farbus },
];

fn wares(lab: &CaseEnvironment) -> Result<Vec<String>> {
    let image = lab.scratch("disk");
    disk::sparse(&image, 8 << 20)?;
    Ok(vec![format!("disk:{}", image.display()), "zero".into(), "keyboard".into()])
}

fn stock(lab: &CaseEnvironment) -> Result<String> {
    let mut share = lab.share(&wares(lab)?)?;
    let report = lab
        .boot(&MachineBoot {
            script: "usbip --tcp-port $PORT list -r $EXPORTER || fail 'usbip list'\n",
            port: Some(share.port()),
            modules: &["virtio_mmio", "virtio_net"],
            ..MachineBoot::default()
        })?
        .finish()?;
    for (bus_id, ids) in [("1-1", ""), ("1-2", "(0525:a4a0)"), ("1-3", "")] {
        let shown = report.output.lines().any(|line| line.trim_start().starts_with(bus_id) && line.contains(ids));
        expect(shown, || format!("usbip list does not show {bus_id} {ids}:\n{}", report.output))?;
    }
    // Interface classes follow each device: mass storage, SCSI, Bulk-Only; human interface, boot, keyboard.
    for class in ["(08/06/50)", "(03/01/01)"] {
        expect(report.output.contains(class), || format!("no interface of {class}:\n{}", report.output))?;
    }
    share.still_runs()?;
    Ok(String::new())
}

fn farbus(lab: &CaseEnvironment) -> Result<String> {
    let share = lab.share(&wares(lab)?)?;
    let list = share.list()?.to_string();
    for word in ["1-1", "1-2", "1-3", "disk", "zero", "keyboard"] {
        expect(list.contains(&format!("\"{word}\"")), || format!("\"{word}\" is not in {list}"))?;
    }
    Ok(String::new())
}
