//! Kernel modules: which files a set of names means, in the order in which they can be loaded.

use crate::{Result, RigError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The modules of one kernel and what each needs.
pub struct ModuleIndex {
    folder: PathBuf,
    /// By name: file and direct or indirect needs, as `modules.dep` states them.
    known: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

/// A module to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelModule {
    /// Its name, with underscores.
    pub name: String,
    /// Its file on the host.
    pub file: PathBuf,
}

impl ModuleIndex {
    /// Reads the lists that depmod left in a kernel's folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(RigError::io(format!("read {}", path.display())))
        };
        Ok(Self::parse(folder, &text("modules.dep")?, &text("modules.builtin")?))
    }

    fn parse(folder: &Path, dep: &str, builtin: &str) -> Self {
        let known = dep
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(file, needs)| {
                let needs = needs.split_whitespace().map(name_of).collect();
                (name_of(file), (file.to_owned(), needs))
            })
            .collect();
        Self { folder: folder.into(), known, builtin: builtin.lines().map(name_of).collect() }
    }

    /// The modules of `wanted` with their dependencies, in loading order, without those built into the kernel.
    pub fn in_order(&self, wanted: &[&str]) -> Result<Vec<KernelModule>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.visit(&name.replace('-', "_"), &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<KernelModule>) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let (file, needs) = self.known.get(name).ok_or_else(|| {
            RigError::Expectation(format!("the kernel in {} has no module {name}", self.folder.display()))
        })?;
        for need in needs {
            self.visit(need, seen, order)?;
        }
        order.push(KernelModule { name: name.to_owned(), file: self.folder.join(file) });
        Ok(())
    }
}

/// A module's name from its file: `kernel/drivers/usb/usbip/vhci-hcd.ko` is `vhci_hcd`.
fn name_of(file: &str) -> String {
    let stem = file.rsplit('/').next().unwrap_or(file);
    stem.split(".ko").next().unwrap_or(stem).replace('-', "_")
}

/// Drops the signature from a module's file. Stock kernels accept unsigned modules (and note a taint); checking three
/// dozen RSA signatures under emulation would take longer than the rest of the boot.
pub fn without_signature(file: &[u8]) -> &[u8] {
    const MAGIC: &[u8] = b"~Module signature appended~\n";
    /// `struct module_signature`, whose last four bytes are the signature's length, big endian.
    const TRAILER: usize = 12;
    let Some(rest) = file.strip_suffix(MAGIC) else { return file };
    let Some(length) = rest.last_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize) else { return file };
    match rest.len().checked_sub(TRAILER + length) {
        Some(end) => &rest[..end],
        None => file,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/usb/storage.ko: kernel/scsi/scsi-mod.ko kernel/usb/core.ko kernel/usb/common.ko\n\
                       kernel/scsi/scsi-mod.ko: kernel/scsi/scsi-common.ko\n\
                       kernel/scsi/scsi-common.ko:\nkernel/usb/core.ko: kernel/usb/common.ko\nkernel/usb/common.ko:\n";

    #[test]
    fn every_module_follows_its_needs() {
        let modules = ModuleIndex::parse(Path::new("/m"), DEP, "kernel/lib/crc.ko\n");
        let order: Vec<String> =
            modules.in_order(&["storage", "crc", "core"]).unwrap().into_iter().map(|module| module.name).collect();
        assert_eq!(order, ["scsi_common", "scsi_mod", "common", "core", "storage"]);
    }

    #[test]
    fn unknown_modules_are_named() {
        let modules = ModuleIndex::parse(Path::new("/m"), DEP, "");
        assert!(modules.in_order(&["nonesuch"]).unwrap_err().to_string().contains("nonesuch"));
    }

    #[test]
    fn signatures_come_off() {
        let mut file = b"ELF and so on".to_vec();
        assert_eq!(without_signature(&file), b"ELF and so on");
        file.extend_from_slice(&[0xaa; 5]);
        file.extend_from_slice(&[0; 8]);
        file.extend_from_slice(&5u32.to_be_bytes());
        file.extend_from_slice(b"~Module signature appended~\n");
        assert_eq!(without_signature(&file), b"ELF and so on");
    }
}
