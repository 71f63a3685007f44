//! How soon a far device has its driver.

use super::way::run;
use crate::cases::case::RigCase;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "far-attach",
    purpose: "100 ms away, in a session that stands, a disk, a keyboard and a serial line have their drivers within four round trips",
    run: |lab| run(lab, include_str!("../../../guest/far-attach.sh"), MODULES, &[]),
}];

const MODULES: &[&str] = &["usb_storage", "sd_mod", "usbhid", "hid_generic", "evdev", "cdc_acm", "snd_usb_audio"];
