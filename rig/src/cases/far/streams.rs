//! What a remote device sends by itself: reports, bytes, sound; and the kernel's own tests of cancellation.

use super::way::{is_thorough, run};
use crate::Result;
use crate::cases::case::RigCase;
use crate::lab::CaseEnvironment;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "far-reports",
        purpose: "a mouse 100 ms away says something every millisecond: its driver hears all of it, in order, half a round trip later",
        run: reports,
    },
    RigCase {
        name: "far-serial",
        purpose: "a serial line 100 ms away carries 3 Mbit/s both ways through cdc_acm, and loses nothing when its reader looks away",
        run: serial,
    },
    RigCase {
        name: "far-audio",
        purpose: "a sound card 100 ms away, with 10 ms of jitter: `arecord` and `aplay` without an underrun, the card hears every sample",
        run: audio,
    },
    RigCase {
        name: "far-testusb",
        purpose: "testusb's unlink and bulk tests on a device that is received ahead, near and 50 ms away",
        run: |lab| run(lab, include_str!("../../../guest/far-testusb.sh"), &["usbtest"], &[("RTTS", "0 50".into())]),
    },
];

const ROUND_TRIP_MS: u32 = 100;

fn reports(lab: &CaseEnvironment) -> Result<String> {
    let modules = ["usb_f_hid", "usbhid", "hid_generic", "evdev", "udc_core"];
    let count = if is_thorough(lab) { 60_000 } else { 3_000 };
    let variables = [("RTT", ROUND_TRIP_MS.to_string()), ("REPORTS", count.to_string())];
    run(lab, include_str!("../../../guest/far-reports.sh"), &modules, &variables)
}

fn serial(lab: &CaseEnvironment) -> Result<String> {
    let bytes = if is_thorough(lab) { 18_000_000 } else { 900_000 };
    let variables = [("RTT", ROUND_TRIP_MS.to_string()), ("BYTES", bytes.to_string())];
    run(lab, include_str!("../../../guest/far-serial.sh"), &["cdc_acm"], &variables)
}

fn audio(lab: &CaseEnvironment) -> Result<String> {
    let seconds = if is_thorough(lab) { 60 } else { 5 };
    let variables = [("SECONDS_OF_SOUND", seconds.to_string())];
    run(lab, include_str!("../../../guest/far-audio.sh"), &["snd_usb_audio"], &variables)
}
