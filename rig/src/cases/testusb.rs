//! The kernel's own test of USB devices and host controllers: `usbtest` in the kernel, `testusb` beside it.

use super::case::{RigCase, expect};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "testusb-stock",
        purpose: "all 30 tests of testusb pass on `zero`, unlink tests included, --times in a row, through stock usbip",
        run: |lab| over_network(lab, AttachClient::Stock),
    },
    RigCase {
        name: "testusb-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| over_network(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "testusb-local",
        purpose: "the same with exporter and importer in one guest: both ends at their fastest, where races are closest",
        run: |lab| run(lab, AttachClient::Farbus, None),
    },
];

/// Tests of testusb, numbered 0 to 29.
const TESTS: u32 = 30;

fn over_network(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let mut share = lab.share(&["zero".into()])?;
    let note = run(lab, client, Some(share.port()))?;
    share.still_runs()?;
    Ok(note)
}

fn run(lab: &CaseEnvironment, client: AttachClient, port: Option<u16>) -> Result<String> {
    lab.farbus()?;
    let capture = lab.log("pcap");
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/testusb.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usbtest"],
        client,
        port,
        variables: &[("TIMES", lab.times().to_string()), ("LOCAL", port.map_or("1", |_| "").into())],
        patience: Duration::from_secs(60 + 120 * u64::from(lab.times())),
        capture: port.map(|_| capture.clone()),
        ..MachineBoot::default()
    })?;
    let mut seconds = Vec::new();
    for pass in 1..=lab.times() {
        let message = guest.await_word("pass")?;
        judge(&guest.take_heard()).map_err(|error| RigError::Expectation(format!("pass {pass}: {error}")))?;
        seconds.push(message);
    }
    guest.finish()?;
    // Megabytes per pass, and only useful after a failure. One guest may have made none.
    let _ = std::fs::remove_file(capture);
    Ok(format!("{TESTS} tests, passes of {} s", seconds.join(", ")))
}

/// A test that the device does not support prints nothing at all, so silence is counted as failure.
fn judge(output: &str) -> Result<()> {
    let passed = passed(output);
    let silent: Vec<u32> = (0..TESTS).filter(|test| !passed.contains(test)).collect();
    expect(silent.is_empty(), || {
        // The log has the tests that passed; lines after a lost device only repeat that.
        let of_interest = |line: &&str| !["secs", "may see only", "can't open"].iter().any(|dull| line.contains(dull));
        let lines: Vec<&str> = output.lines().filter(of_interest).collect();
        format!("tests {silent:?} did not pass:\n{}", lines.join("\n"))
    })
}

/// The tests that report their time, which they do when they pass.
pub(super) fn passed(output: &str) -> BTreeSet<u32> {
    output.lines().filter(|line| line.contains("secs")).filter_map(number).collect()
}

/// The number in a line like "/dev/bus/usb/002/002 test 11,    0.123456 secs".
fn number(line: &str) -> Option<u32> {
    line.split_once(" test ")?.1.split(',').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_not_success() {
        let all: String = (0..TESTS).map(|n| format!("/dev/bus/usb/002/002 test {n},    0.000100 secs\n")).collect();
        judge(&all).unwrap();
        let error = judge(&all.replace("test 11,    0.000100 secs", "test 11 --> 110 (timed out)")).unwrap_err();
        assert!(error.to_string().contains("[11]"), "{error}");
        assert!(judge("").is_err());
    }
}
