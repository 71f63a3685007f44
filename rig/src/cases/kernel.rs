//! The rig proves itself: the machine boots, and the kernel's own USB/IP works in it without farbus.

use super::Case;
use crate::lab::{Boot, Lab};
use crate::{Error, Result};

pub(super) const CASES: &[Case] = &[
    Case { name: "smoke", purpose: "the stock kernel boots, loads modules, runs every tool of the rig", run: smoke },
    Case {
        name: "kernel-self",
        purpose: "without farbus: the kernel's own exporter and stock usbip carry a gadget disk over loopback",
        run: kernel_self,
    },
];

fn smoke(lab: &Lab) -> Result<String> {
    let report = lab
        .boot(&Boot {
            script: include_str!("../../guest/smoke.sh"),
            modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usb_storage", "sd_mod", "ext4", "usbtest"],
            ..Boot::default()
        })?
        .finish()?;
    for module in ["vhci_hcd", "usb_storage", "ext4", "usbtest", "virtio_net"] {
        if !report.output.lines().any(|line| line.starts_with(module)) {
            return Err(Error::Expectation(format!("{module} is not among the loaded modules:\n{}", report.output)));
        }
    }
    Ok(format!("script started {:.2} s after power-on", report.booted_in_s))
}

fn kernel_self(lab: &Lab) -> Result<String> {
    lab.boot(&Boot {
        script: include_str!("../../guest/kernel-self.sh"),
        modules: &["vhci_hcd", "usbip_host", "dummy_hcd", "usb_f_mass_storage", "usb_storage", "sd_mod"],
        ..Boot::default()
    })?
    .finish()?;
    Ok(String::new())
}
