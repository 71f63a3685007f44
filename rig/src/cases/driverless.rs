//! A device that no driver of the importer's kernel takes.

use super::case::RigCase;
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "driverless",
    purpose: "`farbus attach` via kernel and auto says that no driver took a device, and `farbus status` does; of a keyboard neither does",
    run,
}];

fn run(lab: &CaseEnvironment) -> Result<String> {
    let mut share = lab.share(&["zero".into(), "keyboard".into()])?;
    let boot = MachineBoot {
        script: include_str!("../../guest/driverless.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usbhid", "hid_generic"],
        client: AttachClient::Farbus,
        port: Some(share.port()),
        ..MachineBoot::default()
    };
    lab.boot(&boot)?.finish()?;
    share.still_runs()?;
    Ok(String::new())
}
