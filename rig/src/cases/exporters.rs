//! Other people's exporters: what the kernel's own `usbip-host` and `usbip-vudc` offer is used by farbus.
//!
//! Exporter and importer are one guest, over its loopback. The kernel's exporter is not unlinked at: it does not
//! survive that (tests 11 and 12 of `testusb` oops it). Now and then it does not survive a read of several pieces
//! either: `stub_rx` looks at a request that `stub_tx` has answered and freed meanwhile. A guest that dies of that, and
//! of nothing else, is booted again.

use super::case::Case;
use super::storage;
use super::usbfs::{STICK, medium, xhci};
use crate::lab::{Boot, Client, Lab};
use crate::{Error, Result};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "usbip-host-farbus",
        purpose: "an xHCI stick bound to usbip-host: ext4 trees check out both ways, eject; not bound, busy and unreachable are told apart",
        run: through_kernel,
    },
    Case {
        name: "usbip-host-fuse",
        purpose: "that stick as a file, no kernel USB on the importing side: a tree checks out, files are written; refusals as above",
        run: as_file,
    },
    Case {
        name: "vudc-farbus",
        purpose: "a configfs disk gadget on usbip-vudc and `usbipd --device`: ext4 trees check out both ways, eject",
        run: gadget,
    },
];

fn through_kernel(lab: &Lab) -> Result<String> {
    let script = concat!(
        include_str!("../../guest/usbip-host.sh"),
        include_str!("../../guest/usbip-host-busy.sh"),
        include_str!("../../guest/storage.sh"),
        include_str!("../../guest/usbip-host-after.sh")
    );
    stick(lab, script, 40)
}

fn as_file(lab: &Lab) -> Result<String> {
    let script = concat!(
        include_str!("../../guest/fuse.sh"),
        include_str!("../../guest/usbip-host.sh"),
        include_str!("../../guest/fuse-storage.sh"),
        include_str!("../../guest/usbip-host-after.sh")
    );
    stick(lab, script, 5)
}

/// Boots of one case, should `usbip_host` oops: it did so once in about ten, on a busy machine.
const BOOTS_MAX: u32 = 4;

fn stick(lab: &Lab, script: &str, files_min: usize) -> Result<String> {
    past_own_oopses(|| stick_once(lab, script, files_min))
}

/// Runs a case of the kernel's own exporter, again if that exporter took its kernel with it: its receiver races with
/// the end of a request that it splits (`stub_rx_loop`), which says nothing of farbus nor of the rig. The note says how
/// often that happened.
pub(super) fn past_own_oopses(once: impl Fn() -> Result<String>) -> Result<String> {
    let mut oopses = 0;
    loop {
        match once() {
            Err(Error::GuestDied { console, .. }) if is_own_oops(&console) && oopses + 1 < BOOTS_MAX => oopses += 1,
            Ok(note) if oopses > 0 => return Ok(format!("{note}; the kernel's exporter oopsed {oopses} times before")),
            result => return result,
        }
    }
}

/// Whether the kernel's exporter took its kernel with it.
fn is_own_oops(console: &str) -> bool {
    console.lines().any(|line| line.contains("RIP:") && line.contains("stub_rx") && line.contains("[usbip_host]"))
}

fn stick_once(lab: &Lab, script: &str, files_min: usize) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let modules = [storage::MODULES, &["xhci_pci", "usbip_host", "fuse", "loop"]].concat();
    let hardware = [xhci(&[STICK]), medium(&image).into()].concat();
    // Not preemptible: the race needs its receiver to be interrupted between two instructions.
    let is_preemptible = false;
    let boot = Boot { script, modules: &modules, client: Client::Farbus, hardware, is_preemptible, ..Boot::default() };
    let report = lab.boot(&boot)?.finish()?;
    storage::judge_guests_files(lab, &image, files_min)?;
    Ok(storage::note(&report.output))
}

fn gadget(lab: &Lab) -> Result<String> {
    lab.farbus()?;
    let script = concat!(
        include_str!("../../guest/disk-gadget.sh"),
        include_str!("../../guest/vudc.sh"),
        include_str!("../../guest/storage.sh")
    );
    let modules = [storage::MODULES, &["usbip_vudc", "usb_f_mass_storage"]].concat();
    let boot = Boot { script, modules: &modules, client: Client::Farbus, ..Boot::default() };
    let report = lab.boot(&boot)?.finish()?;
    Ok(storage::note(&report.output))
}
