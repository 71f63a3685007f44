//! A remote disk by NBD is a disk to an unmodified kernel.

use super::case::{RigCase, expect};
use super::storage::{image_with_tree, judge_guests_tree, note};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError, disk, tool};
use std::path::Path;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "nbd-boot",
        purpose: "a guest's root file system is a remote disk that QEMU has by `farbus attach --via nbd`: programs run from it, what they write is durable at the exporter, fsck is clean",
        run: boot,
    },
    RigCase {
        name: "nbd-kernel",
        purpose: "the kernel's nbd over two connections: FUA and discard are known, ext4 mounts, trees written on either side check out on the other, fsck is clean",
        run: kernel,
    },
];

const MODULES: &[&str] = &["virtio_mmio", "virtio_net", "nbd", "crc32c_generic", "ext4"];

fn kernel(lab: &CaseEnvironment) -> Result<String> {
    let image = image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/nbd.sh"),
            modules: MODULES,
            client: AttachClient::Farbus,
            port: Some(share.port()),
            programs: &["nbd-client"],
            ..MachineBoot::default()
        })?
        .finish()?;
    share.still_runs()?;
    judge_guests_tree(lab, &image)?;
    Ok(note(&report.output))
}

fn boot(lab: &CaseEnvironment) -> Result<String> {
    let (folder, image) = (lab.scratch("root"), lab.scratch("disk"));
    let [bin, tree] = ["bin", "tree"].map(|part| folder.join(part));
    for part in [&bin, &tree] {
        std::fs::create_dir_all(part).map_err(RigError::io(format!("create {}", part.display())))?;
    }
    let busybox = tool::which("busybox").ok_or_else(|| RigError::Skip("no busybox".into()))?;
    std::fs::copy(&busybox, bin.join("busybox")).map_err(RigError::io("copy busybox"))?;
    disk::few_files(&tree)?;
    disk::ext4(&image, 64 << 20, &folder)?;
    let (exporter, host) = (lab.host("lab3")?, lab.host("desk")?);
    exporter.pair(&host)?;
    let mut share = exporter.share(&[format!("disk:{}", image.display())])?;
    let socket = lab.scratch("nbd.sock");
    let attached = host.attach(&["lab3/disk", "--address", &share.address, "--via", "nbd"], &socket, "attach")?;
    let drive = format!("file=nbd+unix:///?socket={},format=raw,if=none,id=far,discard=unmap", socket.display());
    let hardware = ["-drive", &drive, "-device", "virtio-blk-device,drive=far"].map(str::to_owned).to_vec();
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/nbd-boot.sh"),
        modules: &["virtio_mmio", "virtio_net", "virtio_blk", "crc32c_generic", "ext4"],
        client: AttachClient::Redir,
        hardware,
        ..MachineBoot::default()
    })?;
    let seconds = guest.await_word("ran")?;
    guest.finish()?;
    attached.detach()?;
    share.still_runs()?;
    judge_noise(lab, &image)?;
    Ok(format!("its programs took {seconds} s"))
}

/// Checks that the file system is whole, and that `guest/noise` in it has the guest's checksum.
pub(super) fn judge_noise(lab: &CaseEnvironment, image: &Path) -> Result<()> {
    disk::fsck(image)?;
    let out = lab.scratch("noise");
    disk::extract(image, "/guest", &out)?;
    let sum =
        std::fs::read_to_string(out.join("guest").join("SUM")).map_err(RigError::io("read what the guest wrote"))?;
    let holds = sum.starts_with(&disk::sha256(&out.join("guest").join("noise"))?);
    expect(holds, || format!("what the guest wrote is not what is on the disk: {sum}"))
}
