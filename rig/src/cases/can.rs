//! A USB-CAN adapter gadget, used by the kernel's `gs_usb` and the can-utils.

use super::case::{RigCase, expect};
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "can-stock",
        purpose: "`gs_usb` drives a shared USB-CAN adapter: `candump` hears every frame of a unit on its bus, `cangen` sends as many",
        run: |lab| both_ways(lab, AttachClient::Stock),
    },
    RigCase {
        name: "can-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| both_ways(lab, AttachClient::Farbus),
    },
];

/// Frames each way.
const FRAMES: u64 = 400;

fn both_ways(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let share = lab.share(&["can,traffic=10/0".into()])?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/can.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "gs_usb", "can_raw"],
        programs: &["ip", "candump", "cangen"],
        client,
        port: Some(share.port()),
        variables: &[("FRAMES", FRAMES.to_string())],
        ..MachineBoot::default()
    })?;
    guest.await_word("sent")?;
    let out = share.count("can", "can1_out")?;
    let overruns = share.count("can", "can0_overruns")?;
    guest.tell("go on")?;
    let output = guest.finish()?.output;
    let (heard, sent) = (frames(&output, "heard "), frames(&output, "sent "));
    let breaks = heard.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1).count() as u64;
    // An emulated guest may be late; then frames are lost, and counted.
    expect(heard.len() as u64 == FRAMES && breaks <= overruns, || {
        format!("{} frames heard, {breaks} times not the next; {overruns} overruns", heard.len())
    })?;
    let is_ours = |(id, _): &(u32, u64)| *id == 0x123;
    expect(sent.len() as u64 == FRAMES && sent.iter().all(is_ours) && out == FRAMES, || {
        format!("of {FRAMES} frames {out} went out, {} came back as sent", sent.len())
    })?;
    Ok(format!("{FRAMES} frames each way, {overruns} overruns"))
}

/// Identifier and data, little-endian, of what `candump -L` printed: `(time) can0 100#0100000000000000`.
fn frames(output: &str, marked: &str) -> Vec<(u32, u64)> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(marked));
    let frame = |line: &str| {
        let (id, data) = line.split_whitespace().nth(2)?.split_once('#')?;
        Some((u32::from_str_radix(id, 16).ok()?, u64::from_str_radix(data, 16).ok()?.swap_bytes()))
    };
    lines.filter_map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candump_output_is_parsed() {
        let output = "heard (1.5) can0 100#0201000000000000\nnote: x\nsent (2.0) can1 123#0000000000000000\nheard (3) can0 100#zz\n";
        assert_eq!(frames(output, "heard "), [(0x100, 0x102)]);
        assert_eq!(frames(output, "sent "), [(0x123, 0)]);
    }
}
