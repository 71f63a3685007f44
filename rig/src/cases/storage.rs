//! A disk image shared by farbus is a disk to an unmodified kernel.

use super::case::{RigCase, expect};
use crate::Result;
use crate::disk;
use crate::lab::{AttachClient, CaseEnvironment, HOST_SEEN_FROM_GUEST, MachineBoot};
use std::path::Path;
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "storage-stock",
        purpose: "usb-storage binds, ext4 mounts read-write, trees written on either side check out on the other, fsck is clean, eject works",
        run: |lab| tree(lab, AttachClient::Stock),
    },
    RigCase {
        name: "storage-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| tree(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "storage-local",
        purpose: "the same with exporter and importer in one guest, so that both run on a stock system",
        run: local,
    },
    RigCase {
        name: "storage-uas",
        purpose: "a shared disk attached with `--via uas` is one that the kernel's uas driver gives many commands at a time; the same trees",
        run: |lab| tree_by(lab, AttachClient::Farbus, UAS),
    },
    RigCase {
        name: "storage-auto",
        purpose: "the same when nobody says by what way: a disk in a session is taken by uas",
        run: |lab| tree_by(lab, AttachClient::Farbus, AUTO),
    },
    RigCase {
        name: "storage-swap",
        purpose: "a disk attached with `--via uas` moves to a disk of the user's machine while ext4 on it is written; its exporter ends, and nothing is lost",
        run: |lab| swap(lab, false),
    },
    RigCase {
        name: "storage-swap-hosts",
        purpose: "the same to another host's disk, from there to the user's machine, and back to that host",
        run: |lab| swap(lab, true),
    },
    RigCase {
        name: "storage-uas-ro",
        purpose: "the same disk, read-only: it says so, refuses writes, and its image stays untouched",
        run: |lab| read_only_by(lab, AttachClient::Farbus, UAS),
    },
    RigCase {
        name: "storage-64g-stock",
        purpose: "a 64 GiB sparse disk shows its size, and its last sector is written and read",
        run: |lab| large(lab, AttachClient::Stock),
    },
    RigCase {
        name: "storage-64g-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| large(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "storage-ro-stock",
        purpose: "a disk shared read-only says so, refuses writes, and its image stays untouched",
        run: |lab| read_only(lab, AttachClient::Stock),
    },
    RigCase {
        name: "storage-ro-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| read_only(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "storage-4k-stock",
        purpose: "an image with 4 KiB sectors is a disk with 4 KiB sectors, and ext4 works on it",
        run: |lab| sectors_4k(lab, AttachClient::Stock),
    },
    RigCase {
        name: "storage-4k-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| sectors_4k(lab, AttachClient::Farbus),
    },
];

/// The modules for a remote disk.
pub(super) const MODULES: &[&str] =
    &["virtio_mmio", "virtio_net", "vhci_hcd", "usb_storage", "sd_mod", "crc32c_generic", "ext4"];

/// Large enough for the host's tree, the guest's, and a journal.
const IMAGE_BYTES: u64 = 64 << 20;

/// Script variables for a disk attached by `--via uas`.
const UAS: &[(&str, &str)] = &[("ATTACH_OPTIONS", "--via uas --grace 20"), ("DRIVER", "uas"), ("KEEPS_MEDIUM", "yes")];
/// No front end is chosen; the rest is as with uas.
const AUTO: &[(&str, &str)] = &[("ATTACH_OPTIONS", "--grace 20"), UAS[1], UAS[2]];
/// The additional module.
pub(super) const UAS_MODULE: &str = "uas";

fn tree(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    tree_by(lab, client, &[])
}

fn tree_by(lab: &CaseEnvironment, client: AttachClient, variables: &[(&'static str, &str)]) -> Result<String> {
    let image = image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/storage.sh"),
            modules: &[MODULES, &[UAS_MODULE]].concat(),
            client,
            port: Some(share.port()),
            variables: &owned(variables),
            ..MachineBoot::default()
        })?
        .finish()?;
    // The exporter still runs: what eject made durable must be in the image before it ends.
    share.still_runs()?;
    judge_guests_tree(lab, &image)?;
    Ok(note(&report.output))
}

/// Moves an attached disk to the machine's own, or by way of another host and home to that host.
fn swap(lab: &CaseEnvironment, by_hosts: bool) -> Result<String> {
    const HERE: &str = "block:/dev/vda";
    let [image, local, far] = [image_with_tree(lab)?, lab.scratch("local"), lab.scratch("far")];
    disk::sparse(&local, IMAGE_BYTES)?;
    disk::sparse(&far, IMAGE_BYTES)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let other = lab.share_elsewhere("other", &[format!("disk:{}", far.display())])?;
    let there = format!("{HOST_SEEN_FROM_GUEST}:{}/disk", other.port());
    let hops: Vec<&str> = if by_hosts { vec![&there, HERE, &there] } else { vec![HERE] };
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/storage-swap.sh"),
        modules: &[MODULES, &[UAS_MODULE, "virtio_blk"]].concat(),
        client: AttachClient::Farbus,
        port: Some(share.port()),
        variables: &[owned(UAS), vec![("DESTINATIONS", hops.join(" "))]].concat(),
        hardware: vec![
            "-drive".into(),
            format!("file={},format=raw,if=none,id=local", local.display()),
            "-device".into(),
            "virtio-blk-device,drive=local".into(),
        ],
        ..MachineBoot::default()
    })?;
    for hop in 0..hops.len() {
        guest.await_word("moved")?;
        if hop == 0 {
            let ended = share.interrupt(Duration::from_secs(10))?;
            expect(ended.is_some_and(|status| status.success()), || format!("the exporter ended with {ended:?}"))?;
        }
        guest.tell("continue")?;
    }
    guest.await_word("swapped")?;
    guest.tell_wherever("gone")?;
    let report = guest.finish()?;
    judge_guests_tree(lab, if by_hosts { &far } else { &local })?;
    Ok(note(&report.output))
}

fn local(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/storage-local.sh"),
            modules: MODULES,
            client: AttachClient::Farbus,
            ..MachineBoot::default()
        })?
        .finish()?;
    Ok(note(&report.output))
}

fn large(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    const BYTES: u64 = 64 << 30;
    let image = lab.scratch("disk");
    disk::sparse(&image, BYTES)?;
    let share = lab.share(&[format!("disk:{}", image.display())])?;
    lab.boot(&MachineBoot {
        script: include_str!("../../guest/storage-large.sh"),
        modules: MODULES,
        client,
        port: Some(share.port()),
        variables: &[("SECTORS", (BYTES / 512).to_string())],
        ..MachineBoot::default()
    })?
    .finish()?;
    let written = last_bytes(&image, 512)?;
    expect(written.starts_with(b"the very end"), || "the image does not end in what the guest wrote there".into())?;
    Ok(String::new())
}

pub(super) fn owned(variables: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn read_only(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    read_only_by(lab, client, &[])
}

fn read_only_by(lab: &CaseEnvironment, client: AttachClient, variables: &[(&'static str, &str)]) -> Result<String> {
    let image = image_with_tree(lab)?;
    let before = disk::sha256(&image)?;
    let share = lab.share(&[format!("disk:{},ro", image.display())])?;
    lab.boot(&MachineBoot {
        script: include_str!("../../guest/storage-read-only.sh"),
        modules: &[MODULES, &[UAS_MODULE]].concat(),
        client,
        port: Some(share.port()),
        variables: &owned(variables),
        ..MachineBoot::default()
    })?
    .finish()?;
    drop(share);
    expect(disk::sha256(&image)? == before, || "the image of a read-only disk has changed".into())?;
    Ok(String::new())
}

fn sectors_4k(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let image = lab.scratch("disk");
    disk::sparse(&image, IMAGE_BYTES)?;
    let share = lab.share(&[format!("disk:{},sector=4096", image.display())])?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/storage-4k.sh"),
            modules: MODULES,
            client,
            port: Some(share.port()),
            ..MachineBoot::default()
        })?
        .finish()?;
    judge_guests_tree(lab, &image)?;
    Ok(note(&report.output))
}

/// An image that holds the host's tree.
pub(super) fn image_with_tree(lab: &CaseEnvironment) -> Result<std::path::PathBuf> {
    let (folder, image) = (lab.scratch("tree"), lab.scratch("disk"));
    disk::tree(&folder)?;
    disk::ext4(&image, IMAGE_BYTES, &folder)?;
    Ok(image)
}

/// Checks that the file system is whole and that the guest's tree in it matches its manifest.
pub(super) fn judge_guests_tree(lab: &CaseEnvironment, image: &Path) -> Result<()> {
    judge_guests_files(lab, image, 40)
}

/// Like [`judge_guests_tree`], for at least this many files.
pub(super) fn judge_guests_files(lab: &CaseEnvironment, image: &Path, files_min: usize) -> Result<()> {
    disk::fsck(image)?;
    let out = lab.scratch("extracted");
    disk::extract(image, "/guest", &out)?;
    let files = disk::verify_tree(&out.join("guest"))?;
    expect(files >= files_min, || format!("the guest's tree has only {files} files"))
}

/// The script's line of figures.
pub(super) fn note(output: &str) -> String {
    output.lines().find_map(|line| line.strip_prefix("note: ")).unwrap_or_default().to_owned()
}

fn last_bytes(path: &Path, count: i64) -> Result<Vec<u8>> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|mut file| {
            file.seek(SeekFrom::End(-count))?;
            file.read_to_end(&mut bytes)
        })
        .map_err(crate::RigError::io(format!("read the end of {}", path.display())))?;
    Ok(bytes)
}
