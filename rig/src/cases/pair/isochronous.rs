//! Isochronous streams through usbfs, packet by packet: no packet may be lost.

use super::bench::DevicePairBench;
use crate::cases::case::{RigCase, expect};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "pair-isochronous",
    purpose: "isochronous streams through usbfs, 6 s for each of --times: QEMU's sound card, and both ways farbus's own `zero`, attached \
              by one guest and shared on to another: completion intervals, losses, jitter",
    run: streams,
}];

const EXPORTER: &str = concat!(
    include_str!("../../../guest/pair/common.sh"),
    include_str!("../../../guest/pair/exporter.sh"),
    include_str!("../../../guest/pair/isochronous.sh"),
    include_str!("../../../guest/pair/serve.sh")
);

/// With a soak's ten times this is the minute that is asked for.
const SECONDS_EACH_TIME: u32 = 6;
const SECONDS_MAX: u32 = 60;

fn streams(lab: &CaseEnvironment) -> Result<String> {
    let seconds = (SECONDS_EACH_TIME * lab.times()).min(SECONDS_MAX);
    let hardware =
        ["-device", "qemu-xhci", "-audiodev", "none,id=room", "-device", "usb-audio,audiodev=room,serial=rig-sound"];
    let exporter = MachineBoot {
        script: EXPORTER,
        modules: &["virtio_mmio", "virtio_net", "xhci_pci", "vhci_hcd", "snd_usb_audio"],
        hardware: hardware.map(str::to_owned).into(),
        ..MachineBoot::default()
    };
    let names = ["sound", "zero"];
    let mut bench = DevicePairBench::set_up(lab, exporter, AttachClient::Farbus, &[], "attach_zero;", &names)?;
    let judge = |printed: &str| judge(printed, f64::from(seconds));
    // 48 kHz, 16 bits, two channels are 192 bytes a frame; that is alternate setting 1 of interface 1.
    bench.device("sound", &format!("use_stream 1 1 0 01 192 16 1000 {seconds}"), |_, _| Ok(()), judge);
    bench.device("zero", &format!("use_stream 0 0 83 03 256 16 1000 {seconds}"), |_, _| Ok(()), judge);
    bench.step("zero's view", |exporter, _| exporter.ask("zero_is_content").map(|_| "nothing to complain of".into()));
    bench.verdict()
}

/// Checks that every stream's line reports no loss, and the duration that the bus takes.
fn judge(printed: &str, seconds: f64) -> Result<String> {
    let lines: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("stream ")).collect();
    expect(!lines.is_empty(), || format!("no stream was reported:\n{printed}"))?;
    for line in &lines {
        let lost = ["errors", "short", "wrong", "failed requests"].iter().map(|what| number_before(line, what));
        let lost: f64 =
            lost.sum::<Option<f64>>().ok_or_else(|| RigError::Expectation(format!("no figures: {line}")))?;
        let took = number_before(line, "s for").unwrap_or_default();
        // Never faster than the bus. How much slower depends on the machine, which emulates two others (seen: 0.2 %
        // when it does nothing else, 2.7 times beside several compilers); the figure is printed.
        expect(lost == 0.0 && (0.95 * seconds..=4.0 * seconds).contains(&took), || {
            format!("packets were lost, or it was not in real time: {line}")
        })?;
    }
    Ok(lines.join("; "))
}

/// The number in front of a word.
fn number_before(line: &str, what: &str) -> Option<f64> {
    line.split_once(&format!(" {what}"))?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "stream IN: 6000 packets of 256 bytes, 0 errors, 0 short, 0 wrong, 0 failed requests; completions every \
                        8.001 ms median, 9.000 p99, 12.000 max (bus: 8.000), 5.99 s for 5.99 s\n";

    #[test]
    fn a_lost_packet_and_a_wrong_pace_are_seen() {
        judge(LINE, 6.0).unwrap();
        assert!(judge(&LINE.replace("0 short", "1 short"), 6.0).is_err());
        assert!(judge(&LINE.replace("5.99 s for", "3.00 s for"), 6.0).is_err());
        assert!(judge(&LINE.replace("5.99 s for", "25.10 s for"), 6.0).is_err());
        assert!(judge("", 6.0).is_err());
    }
}
