//! Interoperability: the client and the exporter of each case, and the table of them in `docs/interop.md`.
//!
//! A case's name tells both, so that a new case needs no entry here: the beginning names the exporter (`usbfs-…` is
//! `farbus share usb:`), the end the client (`…-stock` is the distribution's `usbip`). Cases whose names say less are
//! in [`OTHERS`], and those without a peer of farbus in [`ALONE`]; a test checks that every case is found.

use crate::cases::{self, RigCase};
use crate::record::CaseRecord;
use crate::{Result, RigError, conform};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A client or an exporter, as the table names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InteropPeer(&'static str);

const STOCK: InteropPeer = InteropPeer("Linux `usbip` + `vhci_hcd`");
const FARBUS_KERNEL: InteropPeer = InteropPeer("`farbus attach --via kernel`");
const FARBUS_UAS: InteropPeer = InteropPeer("`farbus attach --via uas`");
const IN_PORT: InteropPeer =
    InteropPeer("`farbus run`; `farbus attach --via kernel`; QEMU `usb-redir`, by `farbus attach --via redir`");
const ROUTES: InteropPeer = InteropPeer("`farbus attach` and `farbus daemon`, via kernel and via uas");
const FARBUS_FUSE: InteropPeer = InteropPeer("`farbus attach --via fuse`");
const DAEMON: InteropPeer = InteropPeer("`farbus daemon`, `[[attach]]` via kernel");
const FARBUS_REDIR: InteropPeer = InteropPeer("QEMU `usb-redir`, by `farbus attach --via redir`");
const FARBUS_LIST: InteropPeer = InteropPeer("`farbus list`");

const SHARE: InteropPeer = InteropPeer("`farbus share`");
const FARBUS_NBD: InteropPeer = InteropPeer("`farbus nbd`");
const SHARE_USB: InteropPeer = InteropPeer("`farbus share usb:`");
const USBIP_HOST: InteropPeer = InteropPeer("Linux `usbip-host` + `usbipd`");
const PYTHON: InteropPeer = InteropPeer("`usbip` package of Python, host drivers");
const PYTHON_SERVER: InteropPeer = InteropPeer("`usbip` package of Python, devices");
const CRATE: InteropPeer = InteropPeer("`usbip` crate of Rust");
const KIT: InteropPeer = InteropPeer("`farbus conform`");
const VUDC: InteropPeer = InteropPeer("Linux `usbip-vudc` + `usbipd --device`");

/// Exporters by the beginnings of their cases' names; all other cases use `farbus share`.
const EXPORTERS: &[(&str, InteropPeer)] = &[
    ("usbfs-", SHARE_USB),
    ("usbip-host-", USBIP_HOST),
    ("vudc-", VUDC),
    ("python-server-", PYTHON_SERVER),
    ("crate-", CRATE),
];

/// Clients by the ends of their cases' names.
const CLIENTS: &[(&str, InteropPeer)] = &[("-stock", STOCK), ("-farbus", FARBUS_KERNEL), ("-fuse", FARBUS_FUSE)];

/// Cases whose names do not tell everything: name, client, exporter.
const OTHERS: &[(&str, InteropPeer, InteropPeer)] = &[
    ("list-stock", InteropPeer("Linux `usbip`"), SHARE),
    ("list-farbus", FARBUS_LIST, SHARE),
    ("storage-local", FARBUS_KERNEL, SHARE),
    ("storage-uas", FARBUS_UAS, SHARE),
    ("storage-uas-ro", FARBUS_UAS, SHARE),
    ("storage-auto", FARBUS_UAS, SHARE),
    ("storage-swap", FARBUS_UAS, SHARE),
    ("storage-swap-hosts", FARBUS_UAS, SHARE),
    ("driverless", FARBUS_KERNEL, SHARE),
    ("device-raw", FARBUS_KERNEL, SHARE),
    ("storage-far", FARBUS_UAS, SHARE),
    ("nothing-lost-uas", FARBUS_UAS, SHARE),
    ("durability-uas", FARBUS_UAS, InteropPeer("`farbus daemon`")),
    ("far-attach", FARBUS_KERNEL, SHARE),
    ("far-reports", FARBUS_KERNEL, SHARE_USB),
    ("far-serial", FARBUS_KERNEL, SHARE),
    ("far-audio", FARBUS_KERNEL, SHARE),
    ("far-testusb", FARBUS_KERNEL, SHARE),
    ("testusb-local", FARBUS_KERNEL, SHARE),
    ("odd-descriptors", STOCK, InteropPeer("a server of devices with broken descriptors")),
    ("python-disk", PYTHON, SHARE),
    ("python-zero", PYTHON, SHARE),
    ("python-keyboard", PYTHON, SHARE),
    ("daemon-paired", DAEMON, InteropPeer("`farbus daemon`, paired, by a rule for real devices")),
    ("pair-xhci", FARBUS_KERNEL, SHARE_USB),
    ("pair-ehci", STOCK, SHARE_USB),
    ("pair-gadgets", FARBUS_KERNEL, SHARE_USB),
    ("pair-isochronous", FARBUS_KERNEL, SHARE_USB),
    ("pair-twins", FARBUS_KERNEL, SHARE_USB),
    ("pair-twins-importer", FARBUS_KERNEL, SHARE_USB),
    ("pair-twins-session", FARBUS_KERNEL, SHARE_USB),
    ("daemon-cuts", DAEMON, InteropPeer("`farbus daemon`, paired, by a rule for real devices")),
    ("daemon-upgrade", DAEMON, InteropPeer("`farbus daemon`, paired, by a rule for real devices")),
    ("daemon-upgrade-uas", InteropPeer("`farbus daemon`, `[[attach]]` via uas"), SHARE),
    ("daemon-sleep", DAEMON, SHARE),
    ("daemon-exporter-upgrade", DAEMON, InteropPeer("`farbus daemon`, by a rule for real devices")),
    (
        "nbd-kernel",
        InteropPeer("Linux `nbd` + `nbd-client`"),
        InteropPeer("`farbus attach --via nbd` over `farbus share`"),
    ),
    (
        "nbd-boot",
        InteropPeer("QEMU `nbd` block driver"),
        InteropPeer("`farbus attach --via nbd` over `farbus share`, paired"),
    ),
    ("redir-storage", FARBUS_REDIR, SHARE),
    ("redir-keyboard", FARBUS_REDIR, SHARE),
    ("redir-zero", FARBUS_REDIR, SHARE),
    ("redir-lost-guest", FARBUS_REDIR, SHARE),
    ("redir-lost-server", FARBUS_REDIR, SHARE),
    ("redir-migrate", FARBUS_REDIR, SHARE),
    ("redir-twin", FARBUS_REDIR, SHARE_USB),
    ("redir-stub", FARBUS_REDIR, USBIP_HOST),
    ("redir-migrate-hosts", FARBUS_REDIR, SHARE),
    ("redir-migrate-fails", FARBUS_REDIR, SHARE),
    (
        "topology-hosts",
        InteropPeer("two `farbus daemon`, joined by `farbus topology up`, via kernel"),
        InteropPeer("each other"),
    ),
    ("usbfs-lsusb", STOCK, SHARE_USB),
    ("usbfs-serial-tcp", InteropPeer("`nc`, by `farbus attach --via tcp`"), SHARE_USB),
    ("usbfs-killed", STOCK, SHARE_USB),
    ("routes", ROUTES, SHARE),
    ("routes-all", ROUTES, SHARE),
    ("usbfs-in-port", IN_PORT, SHARE_USB),
    ("usbfs-in-port-often", IN_PORT, SHARE_USB),
    ("program-lsusb", InteropPeer("`lsusb` in `farbus run`"), SHARE_USB),
    ("program-mtp", InteropPeer("libmtp (`mtp-detect`, `mtp-files`, `mtp-getfile`) in `farbus run`"), SHARE_USB),
    ("program-smartcard", InteropPeer("`pcscd` with libccid, and `opensc-tool`, in `farbus run`"), SHARE_USB),
    ("program-usbfs", InteropPeer("a program on usbfs, in `farbus run`"), SHARE),
    ("program-usbfs-real", InteropPeer("a program on usbfs, in `farbus run`"), SHARE_USB),
    (
        "bridge-hosts",
        InteropPeer("Linux `usbip` + `vhci_hcd` at one end, `farbus attach --via kernel` at the other"),
        SHARE,
    ),
    (
        "bridge-hosts-super",
        InteropPeer("Linux `usbip` + `vhci_hcd` at one end, `farbus attach --via kernel` at the other"),
        SHARE,
    ),
    ("conform-python", KIT, InteropPeer("`usbip` package of Python, both roles")),
    ("conform-crate", KIT, CRATE),
    ("conform-kernel", KIT, VUDC),
    ("conform-usbip-host", KIT, USBIP_HOST),
    ("conform-session", KIT, SHARE),
    ("conform-vhci", STOCK, KIT),
    ("capture", InteropPeer("Linux `usbip` + `vhci_hcd`, Wireshark reading along"), SHARE),
];

/// Cases about the rig itself, about the kernel without farbus, or about a single process of farbus.
const ALONE: &[&str] = &["smoke", "verdicts", "kernel-self", "kernel-testusb", "pipe-partition", "taken-over"];

/// Combinations that ordinary tests cover: client, exporter, what was done, where.
const TESTS: &[(InteropPeer, InteropPeer, &str, &str)] = &[
    (FARBUS_FUSE, SHARE, "loop device, ext4, trees check out both ways", "crates/cli/tests/command/disk.rs"),
    (
        InteropPeer("`lsusb`, `usb-devices`, `script`, farbus itself as an exporter"),
        InteropPeer("`farbus run` over `farbus share`"),
        "unmodified programs of an ordinary user see a device without kernel USB; a whole disk through usbfs, read and written",
        "crates/cli/tests/command/run.rs",
    ),
    (
        InteropPeer("libusb by `python3-usb1` and `python3-usb`, nusb, a static program on usbfs"),
        InteropPeer("`farbus run` over `farbus share`"),
        "a gibibyte each way, ten thousand cancellations, isochronous packets both ways, 32-bit commands, commands without sense, the tests of python3-usb1",
        "crates/cli/tests/command/run_programs.rs",
    ),
    (
        InteropPeer("`dfu-util`, `fastboot`, OpenOCD, pyOCD of Debian"),
        InteropPeer("`farbus run` over `farbus share`, plain and paired"),
        "they flash a device and read it back; they halt a Cortex-M behind a debug probe, write its memory and read it back",
        "crates/cli/tests/command/run_tools.rs",
    ),
    (
        InteropPeer("libnbd (`nbdinfo`, `nbdcopy`)"),
        InteropPeer("`farbus attach --via nbd` over `farbus share`"),
        "copied in and out over one and four connections, compared with the image; a dead exporter ends the copy with an error",
        "crates/cli/tests/command/nbd.rs",
    ),
    (
        InteropPeer("libnbd (`nbdinfo --map`, `nbdcopy`), QEMU (`qemu-img map`)"),
        InteropPeer("`farbus nbd`, and `farbus attach --via nbd` between paired hosts"),
        "a sparse image of 1 GiB: both see its holes, and its copy is as sparse and equal",
        "crates/cli/tests/command/nbd.rs",
    ),
    (
        InteropPeer("QEMU (`qemu-img`, `qemu-io`)"),
        FARBUS_NBD,
        "converted, compared, written, zeroed, discarded, with patterns read back",
        "crates/cli/tests/command/nbd.rs",
    ),
    (
        InteropPeer("fio's nbd engine"),
        FARBUS_NBD,
        "random writes of all sizes over four connections, verified",
        "crates/cli/tests/command/nbd.rs",
    ),
    (
        InteropPeer("Wireshark's NBD dissector"),
        InteropPeer("our server's bytes"),
        "plain reads and writes dissected, none malformed (it knows no more of NBD)",
        "crates/session/tests/tshark_nbd.rs",
    ),
    (
        InteropPeer("Wireshark's USB/IP dissector"),
        InteropPeer("both ends' bytes"),
        "every message dissected, none malformed",
        "crates/session/tests/tshark.rs",
    ),
];

/// A client and an exporter, at least one of which is farbus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InteropPairing {
    /// The user of the device.
    pub client: InteropPeer,
    /// The exporter of the device.
    pub exporter: InteropPeer,
}

/// The client and exporter of a case with this name; `None` for a case without a peer, or an unknown name.
pub fn meeting(name: &str) -> Option<InteropPairing> {
    if ALONE.contains(&name) {
        return None;
    }
    if let Some((_, client, exporter)) = OTHERS.iter().find(|(other, ..)| *other == name) {
        return Some(InteropPairing { client: *client, exporter: *exporter });
    }
    let (_, client) = CLIENTS.iter().find(|(end, _)| name.ends_with(end))?;
    let exporter = EXPORTERS.iter().find(|(start, _)| name.starts_with(start)).map_or(SHARE, |(_, exporter)| *exporter);
    Some(InteropPairing { client: *client, exporter })
}

/// The name without its client, which all cases of one proof share.
fn stem(name: &str) -> &str {
    CLIENTS.iter().find_map(|(end, _)| name.strip_suffix(end)).unwrap_or(name)
}

/// A row of the table: one proof, with all its clients.
struct InteropRow {
    stem: &'static str,
    clients: Vec<InteropPeer>,
    exporter: InteropPeer,
    done: &'static str,
    cases: Vec<&'static str>,
}

fn rows() -> Vec<InteropRow> {
    let mut rows: Vec<InteropRow> = Vec::new();
    for (case, met) in cases::all().filter_map(|case| Some((case, meeting(case.name)?))) {
        let RigCase { name, purpose, .. } = case;
        let same = |row: &&mut InteropRow| row.stem == stem(name) && row.exporter == met.exporter;
        match rows.iter_mut().find(same).filter(|_| purpose.starts_with("the same ")) {
            Some(row) => {
                row.clients.push(met.client);
                row.cases.push(name);
            }
            None => rows.push(InteropRow {
                stem: stem(name),
                clients: vec![met.client],
                exporter: met.exporter,
                done: purpose,
                cases: vec![name],
            }),
        }
    }
    rows
}

/// The table's rows, made from the list of cases.
pub fn table() -> String {
    let mut text = String::from("| client | exporter | what was done | case |\n|---|---|---|---|\n");
    for InteropRow { clients, exporter, done, cases, .. } in rows() {
        let clients: Vec<&str> = clients.iter().map(|client| client.0).collect();
        let cases: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} | {} | {done} | {} |", clients.join("; "), exporter.0, cases.join(", "));
    }
    for (client, exporter, done, file) in TESTS {
        let _ = writeln!(text, "| {} | {} | {done} | `{file}` |", client.0, exporter.0);
    }
    text
}

const TABLE: DocumentSection = DocumentSection("meetings");
const SEEN: DocumentSection = DocumentSection("versions");
const CONFORMANCE: DocumentSection = DocumentSection("conformance");

/// A generated part of the document, between two comments.
#[derive(PartialEq, Eq)]
struct DocumentSection(&'static str);

impl DocumentSection {
    fn begin(&self) -> String {
        let command = if *self == CONFORMANCE { "conform" } else { "interop" };
        format!("<!-- {}: made by `cargo xtask {command}` -->\n", self.0)
    }

    fn end(&self) -> String {
        format!("<!-- end of {} -->\n", self.0)
    }

    /// The text before, within and after the section.
    fn split<'a>(&self, document: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
        let (before, rest) = document.split_once(&self.begin())?;
        let (inside, after) = rest.split_once(&self.end())?;
        Some((before, inside, after))
    }

    fn replaced(&self, document: &str, text: &str) -> Result<String> {
        let (before, _, after) = self.split(document).ok_or_else(|| {
            RigError::Expectation(format!("the document has no lines\n{}{}", self.begin(), self.end()))
        })?;
        Ok(format!("{before}{}\n{text}\n{}{after}", self.begin(), self.end()))
    }
}

/// The document with the tables of `farbus conform` generated from the results that are kept.
///
/// # Errors
/// If the document has no place for them.
pub fn with_conformance(document: &str, results: &BTreeMap<&str, serde_json::Value>) -> Result<String> {
    CONFORMANCE.replaced(document, &conform::tables(results))
}

/// The document with both tables generated: the cases, and the software versions of their runs.
///
/// # Errors
/// If a case has no record that it passed; the message has the line that would make one.
pub fn made(document: &str, records: &BTreeMap<String, CaseRecord>) -> Result<String> {
    let shown = |name: &str| records.get(name).is_some_and(CaseRecord::has_passed);
    let missing: Vec<&str> = rows().into_iter().flat_map(|row| row.cases).filter(|case| !shown(case)).collect();
    if !missing.is_empty() {
        return Err(RigError::Expectation(format!(
            "{} of the table's cases have not been seen to pass; type:\n  cargo xtask rig -- run {}",
            missing.len(),
            missing.join(" ")
        )));
    }
    let met: Vec<&CaseRecord> = records.iter().filter(|(name, _)| meeting(name).is_some()).map(|(_, r)| r).collect();
    SEEN.replaced(&TABLE.replaced(document, &table())?, &seen(&met))
}

/// The versions in the records; several where runs differed.
fn seen(records: &[&CaseRecord]) -> String {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (software, version) in records.iter().flat_map(|record| &record.with) {
        let known = versions.entry(software).or_default();
        if !known.contains(&version.as_str()) {
            known.push(version);
        }
    }
    let mut text = String::from("| software | version seen |\n|---|---|\n");
    for (software, versions) in versions {
        let _ = writeln!(text, "| {software} | {} |", versions.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const DOCUMENT: &str = include_str!("../../docs/interop.md");

    #[test]
    fn every_case_has_a_client_and_an_exporter() {
        let silent: Vec<&str> = cases::all()
            .map(|case| case.name)
            .filter(|name| meeting(name).is_none() && !ALONE.contains(name))
            .collect();
        assert!(
            silent.is_empty(),
            "whom does farbus meet in {silent:?}? End the name in -stock or -farbus, or give it a line in OTHERS or ALONE"
        );
    }

    #[test]
    fn every_line_here_is_about_a_case_or_a_test_that_exists() {
        for name in ALONE.iter().chain(OTHERS.iter().map(|(name, ..)| name)) {
            assert!(cases::all().any(|case| case.name == *name), "no case is called {name}");
        }
        for (.., file) in TESTS {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file).exists(), "there is no {file}");
        }
    }

    #[test]
    fn the_document_shows_the_cases_as_they_are() {
        let (_, inside, _) = TABLE.split(DOCUMENT).expect("docs/interop.md has the table's comments");
        assert_eq!(inside.trim(), table().trim(), "docs/interop.md has rotted: run the rig, then cargo xtask interop");
    }

    #[test]
    fn the_document_shows_the_results_of_the_kit_that_are_kept() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results/conform");
        let results = conform::read_all(&folder).unwrap();
        assert!(!results.is_empty(), "nothing is kept in {}", folder.display());
        let made = with_conformance(DOCUMENT, &results).unwrap();
        assert_eq!(made, DOCUMENT, "docs/interop.md has rotted: cargo xtask conform");
    }

    #[test]
    fn case_names_tell_client_and_exporter() {
        let met = |client, exporter| Some(InteropPairing { client, exporter });
        assert_eq!(meeting("anything-stock"), met(STOCK, SHARE));
        assert_eq!(meeting("usbfs-anything-farbus"), met(FARBUS_KERNEL, SHARE_USB));
        assert_eq!(meeting("smoke"), None);
        assert_eq!(meeting("mystery"), None);
        assert_eq!(stem("storage-64g-farbus"), "storage-64g");
    }

    #[test]
    fn a_case_that_was_not_seen_to_pass_is_named() {
        let refused = made(DOCUMENT, &BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains("cargo xtask rig -- run list-stock "), "{refused}");
        let failed = CaseRecord::failed("storage-stock");
        let refused = made(DOCUMENT, &all_passed().into_iter().chain([("storage-stock".into(), failed)]).collect());
        assert!(refused.unwrap_err().to_string().ends_with("cargo xtask rig -- run storage-stock"));
    }

    #[test]
    fn the_document_is_made_of_the_records() {
        let document = made(DOCUMENT, &all_passed()).unwrap();
        assert!(document.contains("| Linux | 6.1 |"), "{document}");
        assert_eq!(made(&document, &all_passed()).unwrap(), document);
        assert!(made("no comments in it", &all_passed()).is_err());
    }

    fn all_passed() -> BTreeMap<String, CaseRecord> {
        let with = BTreeMap::from([("Linux".to_owned(), "6.1".to_owned())]);
        let passed = |case: &RigCase| (case.name.to_owned(), CaseRecord::passed(case.name, "", &with));
        cases::all().map(passed).collect()
    }
}
