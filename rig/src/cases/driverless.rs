//! A device that no driver of the importer's kernel takes.

use super::case::Case;
use crate::Result;
use crate::lab::{Boot, Client, Lab};

pub(super) const CASES: &[Case] = &[Case {
    name: "driverless",
    purpose: "`farbus attach` via kernel and auto says that no driver took a device, and `farbus status` does; of a keyboard neither does",
    run,
}];

fn run(lab: &Lab) -> Result<String> {
    let mut share = lab.share(&["zero".into(), "keyboard".into()])?;
    let boot = Boot {
        script: include_str!("../../guest/driverless.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usbhid", "hid_generic"],
        client: Client::Farbus,
        port: Some(share.port()),
        ..Boot::default()
    };
    lab.boot(&boot)?.finish()?;
    share.still_runs()?;
    Ok(String::new())
}
