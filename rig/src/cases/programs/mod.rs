//! Programs inside `farbus run`: what they see there is what the kernel shows them.
//!
//! Exporter and importer are one guest, over its loopback. A program uses the device twice: through the guest's kernel
//! before farbus takes it, and inside `farbus run` while it is shared.

mod usbfs;

use super::case::{RigCase, expect};
use super::storage;
use super::usbfs::xhci;
use crate::lab::{CaseEnvironment, MachineBoot};
use crate::prerequisites::CARD_READER_DRIVER;
use crate::{Result, RigError, disk, smartcard};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "program-lsusb",
        purpose: "MTP, smart card reader, serial adapter, tablet and sound card: `lsusb -v` prints the same bytes as outside, \
                  but for bus and device number",
        run: lsusb,
    },
    RigCase {
        name: "program-mtp",
        purpose: "`mtp-detect` and `mtp-files` print what they print outside, `mtp-getfile` fetches every file with its content",
        run: mtp,
    },
    RigCase {
        name: "program-smartcard",
        purpose: "a PC/SC daemon in `farbus run` finds the reader, the card's answer to reset and its reply to a command",
        run: card,
    },
    RigCase {
        name: "program-usbfs",
        purpose: "a list of 350 commands of usbfs, right and wrong ones, has the results that the kernel's own usbfs gives for the same \
                  device behind vhci, but for known differences",
        run: |lab| usbfs::compare(lab, include_str!("../../../guest/program/usbfs.sh"), &["vhci_hcd"], usbfs::ALL),
    },
    RigCase {
        name: "program-usbfs-real",
        purpose: "that list for the kernel's own gadgets, which farbus shares through the usbfs that it is compared with",
        run: |lab| usbfs::compare(lab, include_str!("../../../guest/program/usbfs-real.sh"), REAL_MODULES, usbfs::ALL),
    },
];

/// No drivers: the device is the program's, inside as well as outside.
const MODULES: &[&str] = &["xhci_pci", "fuse"];

/// Modules of the C library that libmtp opens by name, for the strings of its protocol.
const UTF_16: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache", "/usr/lib/x86_64-linux-gnu/gconv/UTF-16.so"];

const REAL_MODULES: &[&str] = &["dummy_hcd", "usb_f_ss_lb"];

const TABLET: &str = "0627:0001";
const READER: &str = "08e6:4433";
const FILES: &str = "46f4:0004";

fn lsusb(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let folder = lab.scratch("files");
    disk::few_files(&folder)?;
    let folder = std::fs::canonicalize(&folder).map_err(RigError::io("find the folder of files"))?;
    let files = format!("usb-mtp,bus=hc.0,rootdir={}", folder.display());
    let devices = [
        &*files,
        "usb-ccid,bus=hc.0",
        "usb-serial,bus=hc.0,chardev=nobody",
        "usb-tablet,bus=hc.0",
        "usb-audio,bus=hc.0,audiodev=none",
    ];
    let ids = [FILES, READER, "0403:6001", TABLET, "46f4:0002"];
    let others = ["-audiodev", "none,id=none", "-chardev", "file,id=nobody,path=/dev/null"];
    let report = lab
        .boot(&MachineBoot {
            script: concat!(
                include_str!("../../../guest/program/common.sh"),
                include_str!("../../../guest/program/lsusb.sh")
            ),
            modules: MODULES,
            variables: &[("IDS", ids.join(" "))],
            hardware: [others.map(str::to_owned).into(), xhci(&devices)].concat(),
            ..MachineBoot::default()
        })?
        .finish()?;
    let same = report.output.lines().filter(|line| line.starts_with("same: ")).count();
    expect(same == devices.len(), || format!("only {same} devices were compared:\n{}", report.output))?;
    Ok(format!("{same} devices, {}", storage::note(&report.output)))
}

fn mtp(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let folder = lab.scratch("files");
    disk::few_files(&folder)?;
    // QEMU requires an absolute path here.
    let folder = std::fs::canonicalize(&folder).map_err(RigError::io("find the folder of files"))?;
    let report = lab
        .boot(&MachineBoot {
            script: concat!(
                include_str!("../../../guest/program/common.sh"),
                include_str!("../../../guest/program/mtp.sh")
            ),
            modules: MODULES,
            programs: &["mtp-detect", "mtp-files", "mtp-getfile", UTF_16[0], UTF_16[1]],
            variables: &[("ID", FILES.to_owned())],
            hardware: xhci(&[&format!("usb-mtp,bus=hc.0,rootdir={}", folder.display())]),
            ..MachineBoot::default()
        })?
        .finish()?;
    Ok(storage::note(&report.output))
}

fn card(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let socket = lab.scratch("card");
    smartcard::insert(&socket)?;
    let reader = xhci(&["usb-ccid,bus=hc.0,id=reader", "ccid-card-passthru,bus=reader.0,chardev=card"]);
    let chardev = ["-chardev".to_owned(), format!("socket,id=card,path={}", socket.display())];
    let atr: Vec<String> = smartcard::ATR.iter().map(|byte| format!("{byte:02x}")).collect();
    let report = lab
        .boot(&MachineBoot {
            script: concat!(
                include_str!("../../../guest/program/common.sh"),
                include_str!("../../../guest/program/smartcard.sh")
            ),
            modules: MODULES,
            programs: &[
                "pcscd",
                "opensc-tool",
                "/usr/lib/x86_64-linux-gnu/libpcsclite.so.1",
                "/usr/lib/pcsc/drivers/ifd-ccid.bundle/Contents/Info.plist",
                CARD_READER_DRIVER,
            ],
            variables: &[("ID", READER.to_owned()), ("ATR", atr.join(":")), ("REPLY", smartcard::REPLY.to_owned())],
            hardware: [chardev.into(), reader].concat(),
            ..MachineBoot::default()
        })?
        .finish()?;
    Ok(storage::note(&report.output))
}
