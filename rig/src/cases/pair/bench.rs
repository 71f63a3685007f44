//! Two machines with shared devices, and the proof that one of these devices works.

use crate::cases::case::expect;
use crate::cases::storage::note;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::RunningMachine;
use crate::pair::MachinePair;
use crate::{Result, RigError, disk};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The importing machine's script; all of them are alike.
const IMPORTER: &str = concat!(
    include_str!("../../../guest/pair/common.sh"),
    include_str!("../../../guest/pair/importer.sh"),
    include_str!("../../../guest/pair/serve.sh")
);

/// The modules of the importing machine: vhci, and every driver that a device needs.
const IMPORTER_MODULES: &[&str] = &[
    "virtio_mmio",
    "virtio_net",
    "vhci_hcd",
    "usb_storage",
    "uas",
    "sd_mod",
    "sr_mod",
    "crc32c_generic",
    "ext4",
    "isofs",
    "usbhid",
    "hid_generic",
    "evdev",
    "snd_usb_audio",
    "ftdi_sio",
    "cdc_acm",
    "cdc_ether",
    "cdc_ncm",
    "rndis_host",
    "cdc_subset",
    "usblp",
    "usbtest",
];

/// A pair of machines and how the exporter's side sees each device.
pub(super) struct DevicePairBench<'a> {
    lab: &'a CaseEnvironment<'a>,
    pair: MachinePair,
    /// In the order in which they are shared: the first is 1-1.
    names: Vec<&'static str>,
    near: BTreeMap<String, String>,
    /// How many devices look the same to lsusb on the other side.
    same: usize,
}

impl<'a> DevicePairBench<'a> {
    /// Boots both machines, runs `before` on the first, and shares these devices of it.
    pub(super) fn set_up(
        lab: &'a CaseEnvironment<'a>,
        exporter: MachineBoot,
        client: AttachClient,
        programs: &[&str],
        before: &str,
        names: &[&'static str],
    ) -> Result<Self> {
        Self::set_up_with(lab, exporter, MachineBoot { client, programs, ..MachineBoot::default() }, before, names)
    }

    /// As [`DevicePairBench::set_up`], with an importing machine that has hardware and modules of its own, too.
    pub(super) fn set_up_with(
        lab: &'a CaseEnvironment<'a>,
        exporter: MachineBoot,
        importer: MachineBoot,
        before: &str,
        names: &[&'static str],
    ) -> Result<Self> {
        lab.farbus()?;
        // Two minutes on a quiet machine, five beside compilers.
        let patience = Duration::from_secs(600);
        let modules: Vec<&str> = IMPORTER_MODULES.iter().chain(importer.modules).copied().collect();
        let importer = MachineBoot { script: IMPORTER, modules: &modules, patience, ..importer };
        let mut pair = MachinePair::boot(lab, MachineBoot { patience, ..exporter }, importer)?;
        let output = pair.exporter.ask(&format!("{before} offer {}", names.join(" ")))?;
        Ok(Self { lab, pair, names: names.to_vec(), near: by_device(&output), same: 0 })
    }

    /// One device's proof: the importing machine runs `words`, with the device's name and number after the first word;
    /// meanwhile the host runs `play`. `judge` checks the output.
    pub(super) fn device(
        &mut self,
        name: &'static str,
        words: &str,
        play: impl FnOnce(&mut RunningMachine, &mut RunningMachine) -> Result<()>,
        judge: impl FnOnce(&str) -> Result<String>,
    ) {
        if !self.lab.tries(name) {
            return;
        }
        let number = self.names.iter().position(|shared| *shared == name).map_or(0, |index| index + 1);
        let near = self.near.get(name).cloned().unwrap_or_default();
        let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
        let same = &mut self.same;
        self.pair.step(name, |exporter, importer| {
            importer.begin(&format!("{verb} {name} {number} {rest}"))?;
            play(exporter, importer)?;
            let output = importer.outcome()?;
            same_to_lsusb(&near, &lsusb(&output))?;
            *same += 1;
            let judged = judge(&output)?;
            let noted = output.lines().find_map(|line| line.strip_prefix("note: ")).unwrap_or_default();
            let parts: Vec<&str> = [noted, &judged].into_iter().filter(|part| !part.is_empty()).collect();
            Ok(parts.join("; "))
        });
    }

    /// A proof, or a part of one, that concerns more than one device.
    pub(super) fn step(
        &mut self,
        name: &'static str,
        proof: impl FnOnce(&mut RunningMachine, &mut RunningMachine) -> Result<String>,
    ) {
        self.pair.step(name, proof);
    }

    /// A proof that the importing machine judges by itself.
    pub(super) fn simple(&mut self, name: &'static str, words: &str) {
        self.device(name, words, |_, _| Ok(()), |_| Ok(String::new()));
    }

    /// Ends sharing, and reports how all steps went.
    pub(super) fn verdict(mut self) -> Result<String> {
        let (same, wanted) = (self.same, self.names.iter().filter(|name| self.lab.tries(name)).count());
        self.pair.step("lsusb", |_, _| {
            expect(same == wanted, || format!("{same} of {wanted} devices were the same on both sides"))?;
            Ok(format!("{same} devices were identical on both sides"))
        });
        self.pair.step("given back", |exporter, _| {
            let output = exporter.ask("withdraw")?;
            Ok(note(&output))
        });
        self.pair.step("kernels", |exporter, importer| {
            exporter.ask("kernel_is_content")?;
            importer.ask("kernel_is_content")?;
            Ok("neither warned of anything".into())
        });
        self.pair.verdict()
    }
}

/// lsusb's description of each device, by name.
fn by_device(printed: &str) -> BTreeMap<String, String> {
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut name = String::new();
    for line in printed.lines() {
        if let Some(next) = line.strip_prefix("device| ") {
            name = next.to_owned();
        } else if let Some(text) = line.strip_prefix("lsusb| ") {
            *seen.entry(name.clone()).or_default() += &format!("{text}\n");
        }
    }
    seen
}

fn lsusb(printed: &str) -> String {
    printed.lines().filter_map(|line| line.strip_prefix("lsusb| ")).map(|line| format!("{line}\n")).collect()
}

fn same_to_lsusb(near: &str, far: &str) -> Result<()> {
    if near == far && near.lines().count() > 20 {
        return Ok(());
    }
    let only = |these: &str, those: &str, sign: &str| -> String {
        let others: Vec<&str> = those.lines().collect();
        these.lines().filter(|line| !others.contains(line)).map(|line| format!("{sign} {line}\n")).collect()
    };
    let difference = only(near, far, "exporter:") + &only(far, near, "importer:");
    let (here, there) = (near.lines().count(), far.lines().count());
    Err(RigError::Expectation(format!(
        "lsusb -v has {here} lines at the exporter and {there} at the importer; what they do not share:\n{difference}"
    )))
}

/// Checks that the file system on an image is whole and that the guest's tree in it matches its manifest.
pub(super) fn judge_tree(lab: &CaseEnvironment, image: &Path, name: &str) -> Result<String> {
    disk::fsck(image)?;
    let out = lab.scratch(&format!("{name}.extracted"));
    disk::extract(image, "/guest", &out)?;
    let files = disk::verify_tree(&out.join("guest"))?;
    expect(files >= 40, || format!("the guest's tree has only {files} files"))?;
    Ok(format!("{files} of its files check out here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsusb_output_is_split_by_device() {
        let seen = by_device("device| a\nlsusb| x\nlsusb|  y\nwords\ndevice| b\nlsusb| z\n");
        assert_eq!(seen.get("a").map(String::as_str), Some("x\n y\n"));
        assert_eq!(seen.get("b").map(String::as_str), Some("z\n"));
        let long = "x\n".repeat(21);
        same_to_lsusb(&long, &long).unwrap();
        assert!(same_to_lsusb("", "").is_err(), "nothing seen is nothing shown");
        let message = same_to_lsusb("x\ny\n", "x\nz\n").unwrap_err().to_string();
        assert!(message.contains("exporter: y") && message.contains("importer: z"), "{message}");
        assert!(same_to_lsusb("x\n", "").is_err());
    }
}
