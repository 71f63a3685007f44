//! Two daemons: one shares plugged-in devices by rules, the other keeps them attached, over an encrypted link.

use super::case::RigCase;
use super::{storage, usbfs};
use crate::Result;
use crate::disk;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use std::path::PathBuf;
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "daemon-paired",
        purpose: "two paired daemons: a stick shared by a rule, attached through vhci over TLS, checked; a kill leaves nothing",
        run: paired,
    },
    RigCase {
        name: "daemon-cuts",
        purpose: "the link of two paired daemons goes down for 6 s in mid-write and mid-read: the kernel hears nothing, the trees check out",
        run: cuts,
    },
    RigCase {
        name: "daemon-upgrade",
        purpose: "the importer's daemon is restarted in mid-write and mid-read: the kernel hears nothing, the trees check out",
        run: upgrade,
    },
    RigCase {
        name: "daemon-upgrade-uas",
        purpose: "the same of a shared disk attached `--via uas` with a write cache: commands and data on their way go on, too",
        run: upgrade_uas,
    },
    RigCase {
        name: "daemon-exporter-upgrade",
        purpose: "the exporter's daemon is restarted in mid-write and mid-read: neither the importer's kernel nor the stick notices",
        run: exporter_upgrade,
    },
    RigCase {
        name: "daemon-sleep",
        purpose: "vhci keeps a machine awake; with the sleep hook it sleeps, and the disk is there again with its data",
        run: sleep,
    },
];

/// A case with two daemons of paired hosts.
macro_rules! before {
    () => {
        concat!(include_str!("../../guest/daemon-hosts.sh"), include_str!("../../guest/daemon-before.sh"))
    };
}

/// A case with a daemon that attaches what the rig's host shares.
macro_rules! desk {
    () => {
        concat!(include_str!("../../guest/daemon-hosts.sh"), include_str!("../../guest/daemon-desk.sh"))
    };
}

/// A case with two daemons of paired hosts, and variables for its script.
macro_rules! paired {
    () => {
        concat!(before!(), include_str!("../../guest/daemon-load.sh"))
    };
}

/// A case with two daemons of hosts that are not paired.
macro_rules! plain {
    () => {
        concat!(
            include_str!("../../guest/daemon-hosts.sh"),
            include_str!("../../guest/daemon-plain.sh"),
            include_str!("../../guest/daemon-load.sh")
        )
    };
}

fn paired(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let script =
        concat!(before!(), include_str!("../../guest/storage.sh"), include_str!("../../guest/daemon-after.sh"));
    let hardware = [usbfs::xhci(&[usbfs::STICK]), usbfs::medium(&image).into()].concat();
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let boot = MachineBoot {
        script,
        modules: &modules,
        client: AttachClient::Farbus,
        hardware,
        // Its importer waits that long for an exporter that was killed.
        variables: &[("KEEPS_MEDIUM", "yes".into()), ("GRACE", "5".into())],
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}

fn cuts(lab: &CaseEnvironment) -> Result<String> {
    let (note, _) = play_times(lab, concat!(paired!(), include_str!("../../guest/session-cuts.sh")))?;
    Ok(note)
}

fn upgrade(lab: &CaseEnvironment) -> Result<String> {
    checked(lab, concat!(paired!(), include_str!("../../guest/daemon-upgrade.sh")))
}

fn upgrade_uas(lab: &CaseEnvironment) -> Result<String> {
    const TOLD: &[(&str, &str)] =
        &[("ATTACH", "via = \"uas\"\ncache = \"writeback\""), ("FAR", "0525:a4a6"), ("DRIVER", "uas")];
    let image = storage::image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let modules = [storage::MODULES, &[storage::UAS_MODULE]].concat();
    let variables = [storage::owned(TOLD), vec![("TIMES", lab.times().to_string())]].concat();
    let boot = MachineBoot {
        script: concat!(
            desk!(),
            include_str!("../../guest/daemon-load.sh"),
            include_str!("../../guest/daemon-upgrade.sh")
        ),
        modules: &modules,
        client: AttachClient::Farbus,
        port: Some(share.port()),
        variables: &variables,
        patience: patience(lab),
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    share.still_runs()?;
    disk::fsck(&image)?;
    Ok(storage::note(&report.output))
}

fn sleep(lab: &CaseEnvironment) -> Result<String> {
    let image = storage::image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display()), "keyboard".into()])?;
    let modules = [storage::MODULES, &["usbhid"]].concat();
    let boot = MachineBoot {
        script: concat!(
            include_str!("../../guest/sleep-refused.sh"),
            "cat >/run/farbus-sleep <<'END'\n",
            include_str!("../../../packaging/systemd/farbus-sleep"),
            "END\n",
            desk!(),
            include_str!("../../guest/sleep.sh")
        ),
        modules: &modules,
        client: AttachClient::Farbus,
        port: Some(share.port()),
        variables: &[("ATTACH", "via = \"kernel\"".to_owned())],
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    share.still_runs()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}

/// The limit for a case that repeats its step.
fn patience(lab: &CaseEnvironment) -> Duration {
    Duration::from_secs(90 + 60 * u64::from(lab.times()))
}

fn exporter_upgrade(lab: &CaseEnvironment) -> Result<String> {
    checked(lab, concat!(plain!(), include_str!("../../guest/daemon-exporter-upgrade.sh")))
}

/// Like [`play_times`], and checks the file system at the end.
fn checked(lab: &CaseEnvironment, script: &str) -> Result<String> {
    let (note, image) = play_times(lab, script)?;
    disk::fsck(&image)?;
    Ok(note)
}

/// Runs two daemons with a stick between them, and a script that repeats its step as often as asked.
fn play_times(lab: &CaseEnvironment, script: &str) -> Result<(String, PathBuf)> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let hardware = [usbfs::xhci(&[usbfs::STICK]), usbfs::medium(&image).into()].concat();
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let boot = MachineBoot {
        script,
        modules: &modules,
        client: AttachClient::Farbus,
        hardware,
        variables: &[("TIMES", lab.times().to_string())],
        patience: patience(lab),
        ..MachineBoot::default()
    };
    let report = lab.boot(&boot)?.finish()?;
    Ok((storage::note(&report.output), image))
}
