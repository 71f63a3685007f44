//! The guest's root file system: a base that all cases share, and what one case adds.

use crate::image::cpio::Archive;
use crate::image::modules::{Modules, without_signature};
use crate::image::{kernel::Kernel, libraries};
use crate::tool::which;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every module that some case loads; a case names the few of them that it wants loaded.
const MODULES: &[&str] = &[
    // the machine
    "virtio_mmio",
    "virtio_net",
    "loop",
    "fuse",
    // USB/IP in both directions, and a USB device and controller made of nothing
    "vhci_hcd",
    "usbip_host",
    "usbip_vudc",
    "dummy_hcd",
    "usb_f_mass_storage",
    "usb_f_ss_lb",
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
    "ftdi_sio",
    "cdc_acm",
    "cdc_ether",
    "rndis_host",
    "cdc_subset",
    "snd_usb_audio",
];

/// Host programs that go along, with their libraries.
const TOOLS: &[&str] = &["usbip", "usbipd", "usbreset", "eject", "e2fsck", "mkfs.ext4", "lsusb", "aplay", "amixer"];

/// The base of every root file system, built once in a run of the rig.
pub struct Base {
    archive: Archive,
    modules: Modules,
    libraries: BTreeSet<PathBuf>,
}

impl Base {
    /// Collects busybox, the tools, the modules, `testusb`, and `farbus` if there is one.
    pub fn build(kernel: &Kernel, testusb: &Path, farbus: Option<&Path>) -> Result<Self> {
        let mut base =
            Self { archive: Archive::new(), modules: Modules::read(&kernel.modules)?, libraries: BTreeSet::new() };
        base.skeleton()?;
        base.tool("busybox", "/bin")?;
        for tool in TOOLS {
            base.tool(tool, "/usr/bin")?;
        }
        base.program(testusb, "/usr/bin/testusb")?;
        if let Some(farbus) = farbus {
            base.program(farbus, "/usr/bin/farbus")?;
        }
        for module in base.modules.in_order(MODULES)? {
            let contents = read(&module.file)?;
            base.archive.file(&format!("/modules/{}.ko", module.name), 0o644, without_signature(&contents));
        }
        Ok(base)
    }

    /// The whole root file system for one case.
    pub fn image(&self, script: &str, modules: &[&str]) -> Result<Vec<u8>> {
        let mut archive = self.archive.clone();
        let order: String = self.modules.in_order(modules)?.into_iter().map(|module| module.name + "\n").collect();
        archive.file("/rig/modules", 0o644, order.as_bytes());
        archive.file("/rig/case", 0o644, script.as_bytes());
        Ok(archive.finish())
    }

    fn skeleton(&mut self) -> Result<()> {
        for folder in ["/proc", "/sys", "/dev", "/run", "/tmp", "/mnt", "/root", "/etc", "/usr/sbin", "/sbin"] {
            self.archive.folder(folder);
        }
        // `usbip attach` reports failure without this folder although the device is attached.
        self.archive.symlink("/var/run", "/run");
        self.archive.character_device("/dev/console", 5, 1);
        self.archive.character_device("/dev/null", 1, 3);
        self.archive.file("/etc/mtab", 0o644, b"");
        // The stock tool wants a list of names; an empty one is enough for it.
        self.archive.file("/usr/share/misc/usb.ids", 0o644, b"# none\n");
        self.archive.file("/usr/share/hwdata/usb.ids", 0o644, b"# none\n");
        self.archive.file("/init", 0o755, include_bytes!("../../guest/init.sh"));
        self.archive.file("/rig/prelude", 0o644, include_bytes!("../../guest/prelude.sh"));
        self.archive.symlink("/bin/sh", "busybox");
        // Without its first file of settings the sound library opens nothing, not even what is named by its number.
        let sound = "/usr/share/alsa/alsa.conf";
        self.archive.file(sound, 0o644, &read(Path::new(sound))?);
        Ok(())
    }

    fn tool(&mut self, name: &str, folder: &str) -> Result<()> {
        let file = which(name).ok_or_else(|| Error::Expectation(format!("no {name} on this machine")))?;
        self.program(&file, &format!("{folder}/{name}"))
    }

    fn program(&mut self, file: &Path, place: &str) -> Result<()> {
        self.archive.file(place, 0o755, &read(file)?);
        for library in libraries::of(file)? {
            if self.libraries.insert(library.clone()) {
                self.archive.file(&library.to_string_lossy(), 0o755, &read(&library)?);
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}
