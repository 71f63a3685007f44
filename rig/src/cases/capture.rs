//! The packet analyser's own USB/IP dissector reads the traffic.

use super::case::{RigCase, expect};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, disk, tool};
use std::path::Path;
use std::process::Command;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "capture",
    purpose: "tshark's USB/IP dissector reads a captured session of all devices without a malformed packet",
    run: session,
}];

fn session(lab: &CaseEnvironment) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, 4 << 20)?;
    let share = lab.share(&[format!("disk:{}", image.display()), "zero".into(), "keyboard".into()])?;
    let file = lab.log("pcap");
    lab.boot(&MachineBoot {
        script: include_str!("../../guest/capture.sh"),
        modules: &[
            "virtio_mmio",
            "virtio_net",
            "vhci_hcd",
            "usb_storage",
            "sd_mod",
            "usbhid",
            "hid_generic",
            "usbtest",
        ],
        client: AttachClient::Stock,
        port: Some(share.port()),
        capture: Some(file.clone()),
        ..MachineBoot::default()
    })?
    .finish()?;
    let messages = matching(&file, share.port(), "usbip")?;
    let malformed = matching(&file, share.port(), "_ws.malformed")?;
    expect(messages.len() >= 100, || format!("only {} packets of USB/IP in {}", messages.len(), file.display()))?;
    expect(malformed.is_empty(), || {
        format!("{} malformed packets in {}:\n{}", malformed.len(), file.display(), malformed.join("\n"))
    })?;
    Ok(format!("{} packets", messages.len()))
}

/// One line for each packet that passes the filter.
fn matching(file: &Path, port: u16, filter: &str) -> Result<Vec<String>> {
    let text = tool::text(Command::new("tshark").arg("-r").arg(file).args([
        "-d",
        &format!("tcp.port=={port},usbip"),
        "-Y",
        filter,
    ]))?;
    Ok(text.lines().map(str::to_owned).collect())
}
