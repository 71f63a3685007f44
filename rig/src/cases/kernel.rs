//! Checks of the rig itself: the machine boots, and the kernel's own USB/IP works in it without farbus.

use super::case::{RigCase, expect};
use super::exporters::past_own_oopses;
use super::{storage, testusb};
use crate::lab::{CaseEnvironment, MachineBoot};
use crate::{Result, RigError};
use std::io::Write as _;
use std::net::TcpListener;
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "smoke",
        purpose: "the stock kernel boots, loads modules, reaches the host, runs every tool of the rig",
        run: smoke,
    },
    RigCase {
        name: "verdicts",
        purpose: "a panic, a failing script and a stuck one are each told apart, and leave no machine behind",
        run: verdicts,
    },
    RigCase {
        name: "kernel-self",
        purpose: "without farbus: the kernel's own exporter and stock usbip carry a gadget disk, with ext4 and eject",
        run: kernel_self,
    },
    RigCase {
        name: "kernel-testusb",
        purpose: "without farbus: the kernel's own source/sink gadget passes the bulk and control tests of testusb",
        run: kernel_testusb,
    },
];

fn smoke(lab: &CaseEnvironment) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(RigError::io("listen on the loopback"))?;
    let port = listener.local_addr().map_err(RigError::io("listen on the loopback"))?.port();
    // Sends one greeting; if the guest never connects, the thread ends with the rig.
    std::thread::spawn(move || listener.accept().and_then(|(mut caller, _)| caller.write_all(b"the host")));
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/smoke.sh"),
            modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usb_storage", "sd_mod", "ext4", "usbtest"],
            port: Some(port),
            ..MachineBoot::default()
        })?
        .finish()?;
    for module in ["vhci_hcd", "usb_storage", "ext4", "usbtest", "virtio_net"] {
        let loaded = report.output.lines().any(|line| line == module);
        expect(loaded, || format!("{module} is not among the loaded modules:\n{}", report.output))?;
    }
    Ok(format!("script started {:.2} s after power-on", report.booted_in_s))
}

/// Checks that a failing case fails: a test that cannot fail proves nothing.
fn verdicts(lab: &CaseEnvironment) -> Result<String> {
    let outcome = |script: &str, patience_s| {
        lab.boot(&MachineBoot { script, patience: Duration::from_secs(patience_s), ..MachineBoot::default() })?.finish()
    };
    match outcome("echo c >/proc/sysrq-trigger\n", 60) {
        Err(RigError::GuestDied { console, .. }) if console.contains("Kernel panic") => {}
        other => return Err(RigError::Expectation(format!("a panic was taken for {other:?}"))),
    }
    match outcome("echo the reason; exit 3\n", 60) {
        Err(RigError::GuestFailed { status: 3, tail }) if tail.contains("the reason") => {}
        other => return Err(RigError::Expectation(format!("a failing script was taken for {other:?}"))),
    }
    match outcome("sleep 100\n", 8) {
        Err(RigError::GuestTimeout { .. }) => {}
        other => return Err(RigError::Expectation(format!("a stuck script was taken for {other:?}"))),
    }
    Ok(String::new())
}

fn kernel_self(lab: &CaseEnvironment) -> Result<String> {
    // The script that judges farbus's disks: if it fails here, the fault is in the rig.
    let script = concat!(
        include_str!("../../guest/disk-gadget.sh"),
        include_str!("../../guest/kernel-self.sh"),
        include_str!("../../guest/storage.sh")
    );
    let modules = [storage::MODULES, &["usbip_host", "dummy_hcd", "usb_f_mass_storage"]].concat();
    past_own_oopses(|| {
        let report = lab
            .boot(&MachineBoot { script, modules: &modules, is_preemptible: false, ..MachineBoot::default() })?
            .finish()?;
        Ok(storage::note(&report.output))
    })
}

/// `dummy_hcd` has no isochronous endpoints and the gadget no interrupt ones, hence not all thirty.
fn kernel_testusb(lab: &CaseEnvironment) -> Result<String> {
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/kernel-testusb.sh"),
            modules: &["dummy_hcd", "usb_f_ss_lb", "usbtest"],
            ..MachineBoot::default()
        })?
        .finish()?;
    let passed = testusb::passed(&report.output);
    expect((0..=14).chain(17..=21).all(|test| passed.contains(&test)), || {
        format!("only {passed:?} passed:\n{}", report.output)
    })?;
    Ok(format!("{} tests", passed.len()))
}
