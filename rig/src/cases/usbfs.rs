//! Real devices: what QEMU plugs into the guest is taken by farbus through usbfs and used by way of it.
//!
//! Exporter and importer are one guest, over its loopback: the device's own driver sees it twice, once before farbus took it
//! and once behind vhci.

use super::case::Case;
use super::storage;
use crate::Result;
use crate::lab::{Boot, Client, Lab};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "usbfs-storage-stock",
        purpose: "an xHCI stick through usbfs: ext4 trees check out both ways, eject works, its driver gets it back",
        run: |lab| stick(lab, Client::Stock),
    },
    Case {
        name: "usbfs-storage-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| stick(lab, Client::Farbus),
    },
];

/// A SuperSpeed controller with one device on it.
fn xhci(device: &str) -> Vec<String> {
    ["-device", "qemu-xhci,id=hc", "-device", device].map(str::to_owned).into()
}

fn stick(lab: &Lab, client: Client) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let script = concat!(
        include_str!("../../guest/usbfs-storage.sh"),
        include_str!("../../guest/storage.sh"),
        include_str!("../../guest/usbfs-storage-after.sh")
    );
    let mut hardware = xhci("usb-storage,bus=hc.0,drive=stick,removable=on");
    hardware.extend(["-drive".to_owned(), format!("if=none,id=stick,format=raw,file={}", image.display())]);
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let report = lab.boot(&Boot { script, modules: &modules, client, hardware, ..Boot::default() })?.finish()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}
