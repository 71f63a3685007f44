//! Other exporters: farbus uses devices of the kernel's own `usbip-host` and `usbip-vudc`.
//!
//! Exporter and importer are one guest, over its loopback. These cases send the kernel's exporter no unlinks, because
//! it does not survive them (tests 11 and 12 of `testusb` oops it). Rarely it does not survive a read of several pieces
//! either: `stub_rx` looks at a request that `stub_tx` has answered and freed meanwhile. A guest that dies of that, and
//! of nothing else, is booted again.

use super::case::RigCase;
use super::storage;
use super::usbfs::{STICK, medium, xhci};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "usbip-host-farbus",
        purpose: "an xHCI stick bound to usbip-host: ext4 trees check out both ways, eject; not bound, busy and unreachable are told apart",
        run: through_kernel,
    },
    RigCase {
        name: "usbip-host-fuse",
        purpose: "that stick as a file, no kernel USB on the importing side: a tree checks out, files are written; refusals as above",
        run: as_file,
    },
    RigCase {
        name: "vudc-farbus",
        purpose: "a configfs disk gadget on usbip-vudc and `usbipd --device`: ext4 trees check out both ways, eject",
        run: gadget,
    },
];

fn through_kernel(lab: &CaseEnvironment) -> Result<String> {
    let script = concat!(
        include_str!("../../guest/usbip-host.sh"),
        include_str!("../../guest/usbip-host-busy.sh"),
        include_str!("../../guest/storage.sh"),
        include_str!("../../guest/usbip-host-after.sh")
    );
    stick(lab, script, 40)
}

fn as_file(lab: &CaseEnvironment) -> Result<String> {
    let script = concat!(
        include_str!("../../guest/fuse.sh"),
        include_str!("../../guest/usbip-host.sh"),
        include_str!("../../guest/fuse-storage.sh"),
        include_str!("../../guest/usbip-host-after.sh")
    );
    stick(lab, script, 5)
}

/// The most boots of one case if `usbip_host` oopses: it did so once in about ten, on a busy machine.
const BOOTS_MAX: u32 = 4;

fn stick(lab: &CaseEnvironment, script: &str, files_min: usize) -> Result<String> {
    past_own_oopses(|| stick_once(lab, script, files_min))
}

/// Runs a case of the kernel's own exporter, again if that exporter crashed its kernel: its receiver races with the end
/// of a request that it splits (`stub_rx_loop`), which is a fault of neither farbus nor the rig. The note says how
/// often that happened.
pub(super) fn past_own_oopses(once: impl Fn() -> Result<String>) -> Result<String> {
    let mut oopses = 0;
    loop {
        match once() {
            Err(RigError::GuestDied { console, .. }) if is_own_oops(&console) && oopses + 1 < BOOTS_MAX => oopses += 1,
            Ok(note) if oopses > 0 => return Ok(format!("{note}; the kernel's exporter oopsed {oopses} times before")),
            result => return result,
        }
    }
}

/// Whether the kernel's exporter crashed its kernel.
fn is_own_oops(console: &str) -> bool {
    console.lines().any(|line| line.contains("RIP:") && line.contains("stub_rx") && line.contains("[usbip_host]"))
}

fn stick_once(lab: &CaseEnvironment, script: &str, files_min: usize) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let modules = [storage::MODULES, &["xhci_pci", "usbip_host", "fuse", "loop"]].concat();
    let hardware = [xhci(&[STICK]), medium(&image).into()].concat();
    // Not preemptible: the race needs its receiver to be interrupted between two instructions.
    let is_preemptible = false;
    let boot = MachineBoot {
        script,
        modules: &modules,
        client: AttachClient::Farbus,
        hardware,
        is_preemptible,
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    storage::judge_guests_files(lab, &image, files_min)?;
    Ok(storage::note(&report.output))
}

fn gadget(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let script = concat!(
        include_str!("../../guest/disk-gadget.sh"),
        include_str!("../../guest/vudc.sh"),
        include_str!("../../guest/storage.sh")
    );
    let modules = [storage::MODULES, &["usbip_vudc", "usb_f_mass_storage"]].concat();
    let boot = MachineBoot { script, modules: &modules, client: AttachClient::Farbus, ..MachineBoot::default() };
    let report = lab.boot(&boot)?.finish()?;
    Ok(storage::note(&report.output))
}
