//! A remote disk by NBD is a disk to an unmodified kernel.

use super::case::Case;
use super::storage::{image_with_tree, judge_guests_tree, note};
use crate::Result;
use crate::lab::{Boot, Client, Lab};

pub(super) const CASES: &[Case] = &[Case {
    name: "nbd-kernel",
    purpose: "the kernel's nbd over two connections: FUA and discard are known, ext4 mounts, trees written on either side check out on the other, fsck is clean",
    run: kernel,
}];

const MODULES: &[&str] = &["virtio_mmio", "virtio_net", "nbd", "crc32c_generic", "ext4"];

fn kernel(lab: &Lab) -> Result<String> {
    let image = image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let report = lab
        .boot(&Boot {
            script: include_str!("../../guest/nbd.sh"),
            modules: MODULES,
            client: Client::Farbus,
            port: Some(share.port()),
            programs: &["nbd-client"],
            ..Boot::default()
        })?
        .finish()?;
    share.still_runs()?;
    judge_guests_tree(lab, &image)?;
    Ok(note(&report.output))
}
