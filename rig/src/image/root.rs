//! The guest's root file system: a base that all cases share, plus the additions of one case.

use crate::image::cpio::CpioArchive;
use crate::image::modules::{ModuleIndex, without_signature};
use crate::image::{kernel::InstalledKernel, libraries};
use crate::tool::which;
use crate::{Result, RigError};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every module that some case loads; a case names the few that it needs.
const MODULES: &[&str] = &[
    // the machine
    "virtio_mmio",
    "virtio_net",
    "virtio_blk",
    "loop",
    "fuse",
    "nbd",
    "sch_netem",
    // USB/IP in both directions, and a USB device and controller made of nothing
    "vhci_hcd",
    "usbip_host",
    "usbip_vudc",
    "dummy_hcd",
    "null_blk",
    "usb_f_mass_storage",
    "usb_f_ss_lb",
    "usb_f_acm",
    "usb_f_ncm",
    "usb_f_hid",
    "usb_f_printer",
    "usb_f_midi",
    // the drivers that a farbus device must satisfy
    "usb_storage",
    "sd_mod",
    "ext4",
    "crc32c_generic",
    "usbtest",
    "usbhid",
    "hid_generic",
    "evdev",
    // real controllers, for devices that farbus exports through usbfs, and those devices' drivers
    "xhci_pci",
    "ehci_pci",
    "ohci_pci",
    "uas",
    "sr_mod",
    "isofs",
    "ftdi_sio",
    "cdc_acm",
    "cdc_ether",
    "cdc_ncm",
    "rndis_host",
    "cdc_subset",
    "usblp",
    "snd_usb_audio",
    "gs_usb",
    "can_raw",
];

/// Host programs to include, with their libraries.
const TOOLS: &[&str] = &["usbip", "usbipd", "usbreset", "eject", "e2fsck", "mkfs.ext4", "lsusb", "aplay", "amixer"];

/// The base of every root file system, built once in a run of the rig.
pub struct BaseRootFs {
    contents: RootFsContents,
    modules: ModuleIndex,
}

/// The contents of a file system so far.
#[derive(Clone)]
struct RootFsContents {
    archive: CpioArchive,
    libraries: BTreeSet<PathBuf>,
}

impl BaseRootFs {
    /// Collects busybox, the tools, the modules, the rig's own `programs`, and `farbus` if there is one.
    pub fn build(kernel: &InstalledKernel, programs: &[&Path], farbus: Option<&Path>) -> Result<Self> {
        let mut contents = RootFsContents { archive: CpioArchive::new(), libraries: BTreeSet::new() };
        let modules = ModuleIndex::read(&kernel.modules)?;
        contents.skeleton()?;
        for tool in TOOLS {
            contents.tool(tool)?;
        }
        for program in programs {
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            // A cached one has its version in its name.
            let name = name.split('-').next().unwrap_or_default();
            contents.program(program, &format!("/usr/bin/{name}"))?;
        }
        if let Some(farbus) = farbus {
            contents.program(farbus, "/usr/bin/farbus")?;
        }
        for module in modules.in_order(MODULES)? {
            let file = read(&module.file)?;
            contents.archive.file(&format!("/modules/{}.ko", module.name), 0o644, without_signature(&file));
        }
        Ok(Self { contents, modules })
    }

    /// The whole root file system for one case; `programs` are those that only this case needs.
    pub fn image(&self, script: &str, modules: &[&str], programs: &[&str]) -> Result<Vec<u8>> {
        let mut contents = self.contents.clone();
        for program in programs {
            contents.tool(program)?;
        }
        let order: String = self.modules.in_order(modules)?.into_iter().map(|module| module.name + "\n").collect();
        contents.archive.file("/rig/modules", 0o644, order.as_bytes());
        contents.archive.file("/rig/case", 0o644, script.as_bytes());
        Ok(contents.archive.finish())
    }
}

impl RootFsContents {
    fn skeleton(&mut self) -> Result<()> {
        for folder in ["/proc", "/sys", "/dev", "/run", "/tmp", "/mnt", "/root", "/etc", "/usr/sbin", "/sbin"] {
            self.archive.folder(folder);
        }
        // `usbip attach` reports failure without this folder although the device is attached.
        self.archive.symlink("/var/run", "/run");
        self.archive.character_device("/dev/console", 5, 1);
        self.archive.character_device("/dev/null", 1, 3);
        self.archive.file("/etc/mtab", 0o644, b"");
        // The stock tool needs a list of names; an empty one is enough for it.
        self.archive.file("/usr/share/misc/usb.ids", 0o644, b"# none\n");
        self.archive.file("/usr/share/hwdata/usb.ids", 0o644, b"# none\n");
        self.archive.file("/init", 0o755, include_bytes!("../../guest/init.sh"));
        self.archive.file("/rig/prelude", 0o644, include_bytes!("../../guest/prelude.sh"));
        let busybox = which("busybox").ok_or_else(|| RigError::Expectation("no busybox on this machine".into()))?;
        self.program(&busybox, "/bin/busybox")?;
        self.archive.symlink("/bin/sh", "busybox");
        // Without its main configuration file the sound library opens no device, not even one named by its number.
        let sound = "/usr/share/alsa/alsa.conf";
        self.archive.file(sound, 0o644, &read(Path::new(sound))?);
        Ok(())
    }

    /// Adds a program by its name, a file at the same path as on the host, or one at another path (`FILE=PATH`): what
    /// lies below `/tmp` on the host would be hidden by what a guest mounts there.
    fn tool(&mut self, name: &str) -> Result<()> {
        if name.starts_with('/') {
            let (file, path) = name.split_once('=').unwrap_or((name, name));
            return self.program(Path::new(file), path);
        }
        let file = which(name).ok_or_else(|| RigError::Expectation(format!("no {name} on this machine")))?;
        self.program(&file, &format!("/usr/bin/{name}"))
    }

    fn program(&mut self, file: &Path, path: &str) -> Result<()> {
        let contents = read(file)?;
        self.archive.file(path, 0o755, &contents);
        if !contents.starts_with(b"\x7fELF") {
            return Ok(());
        }
        for library in libraries::of(file)? {
            if self.libraries.insert(library.clone()) {
                self.archive.file(&library.to_string_lossy(), 0o755, &read(&library)?);
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(RigError::io(format!("read {}", path.display())))
}
