//! The kernel: Debian's 6.1, unpacked once into the form that boots fast.

use crate::tool::{self, which};
use crate::{Result, RigError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's `linux-source-6.1` puts its archive.
pub const SOURCE_ARCHIVE: &str = "/usr/src/linux-source-6.1.tar.xz";

/// An installed kernel with its modules.
#[derive(Clone, Debug)]
pub struct InstalledKernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    /// The distribution's version of the package, which changes while the release stays.
    pub version: String,
    /// Its folder of modules.
    pub modules: PathBuf,
    image: PathBuf,
}

impl InstalledKernel {
    /// The newest installed 6.1 kernel for amd64 that has its modules.
    pub fn find() -> Result<Self> {
        let mut releases: Vec<String> = std::fs::read_dir("/boot")
            .map_err(RigError::io("read /boot"))?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
            .filter(|release| is_stock(release))
            .filter(|release| modules_of(release).join("modules.dep").exists())
            .collect();
        releases.sort_by_key(|release| numbers(release));
        let release = releases.pop().ok_or_else(|| RigError::Format {
            path: "/boot".into(),
            rule: "holds no vmlinuz-6.1.*-amd64 whose modules are in /lib/modules",
        })?;
        let image = PathBuf::from(format!("/boot/vmlinuz-{release}"));
        let version = version_in(&image)?;
        Ok(Self { modules: modules_of(&release), release, version, image })
    }

    /// The uncompressed kernel, from the cache or unpacked into it. Unpacking on the host takes half a
    /// second once; the kernel doing it for itself under emulation takes five at every boot.
    pub fn uncompressed(&self, cache: &Path) -> Result<PathBuf> {
        let target = cache.join(format!("vmlinux-{}-{}", self.release, self.version));
        if target.exists() {
            return Ok(target);
        }
        let image = read(&self.image)?;
        let xz = which("xz").unwrap_or_else(|| "xz".into());
        // The payload is followed by its unpacked size; --single-stream stops before it.
        let elf = tool::filter(Command::new(xz).args(["-dc", "--single-stream"]), payload(&self.image, &image)?)?;
        if !elf.starts_with(b"\x7fELF") {
            return Err(RigError::Format {
                path: self.image.clone(),
                rule: "its payload does not unpack to an ELF file",
            });
        }
        write_whole(&target, &elf)?;
        Ok(target)
    }
}

/// Writes a file so that a reader sees all of it or nothing: several rigs may fill one cache.
pub fn write_whole(target: &Path, contents: &[u8]) -> Result<()> {
    let draft = target.with_extension(format!("draft-{}", std::process::id()));
    std::fs::write(&draft, contents).map_err(RigError::io(format!("write {}", draft.display())))?;
    std::fs::rename(&draft, target).map_err(RigError::io(format!("put {} in place", target.display())))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(RigError::io(format!("read {}", path.display())))
}

fn is_stock(release: &str) -> bool {
    release.starts_with("6.1.")
        && release.ends_with("-amd64")
        && !release.ends_with("-rt-amd64")
        && !release.ends_with("-cloud-amd64")
}

fn modules_of(release: &str) -> PathBuf {
    Path::new("/lib/modules").join(release)
}

fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// Reads a field of the boot header (Documentation/x86/boot.rst).
fn header_u32(image: &[u8], offset: usize) -> Option<usize> {
    Some(u32::from_le_bytes(image.get(offset..offset + 4)?.try_into().ok()?) as usize)
}

/// The compressed kernel inside a bzImage: `payload_offset` is counted from the end of the real-mode part.
fn payload<'a>(path: &Path, image: &'a [u8]) -> Result<&'a [u8]> {
    let found = (|| {
        if image.get(0x202..0x206)? != b"HdrS" {
            return None;
        }
        let setup_sectors = match image[0x1f1] {
            0 => 4,
            sectors => usize::from(sectors),
        };
        let start = (setup_sectors + 1) * 512 + header_u32(image, 0x248)?;
        image.get(start..start + header_u32(image, 0x24c)?)
    })();
    found.ok_or(RigError::Format { path: path.into(), rule: "not a bzImage with a payload" })
}

/// The package version out of the kernel's banner, as in "... #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (date)".
fn version_in(path: &Path) -> Result<String> {
    let image = read(path)?;
    let found = (|| {
        let start = 0x200 + usize::from(u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?));
        let banner = image.get(start..)?.split(|byte| *byte == 0).next()?;
        let banner = String::from_utf8_lossy(banner).into_owned();
        let (_, after) = banner.rsplit_once(" Debian ")?;
        Some(after.split(' ').next()?.replace('/', "_"))
    })();
    found.ok_or(RigError::Format { path: path.into(), rule: "its banner names no Debian version" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_release_sorts_last() {
        let mut releases = ["6.1.0-9-amd64", "6.1.0-56-amd64", "6.1.0-10-amd64"];
        releases.sort_by_key(|release| numbers(release));
        assert_eq!(releases[2], "6.1.0-56-amd64");
    }

    #[test]
    fn only_the_stock_flavour_is_taken() {
        assert!(is_stock("6.1.0-56-amd64"));
        assert!(!is_stock("6.1.0-56-rt-amd64"));
        assert!(!is_stock("6.12.3-amd64"));
    }

    #[test]
    fn truncated_images_are_refused() {
        for length in [0, 0x203, 0x24c, 0x300] {
            let mut image = vec![0; length];
            if length > 0x206 {
                image[0x202..0x206].copy_from_slice(b"HdrS");
                image[0x248] = 0xff;
            }
            assert!(payload(Path::new("x"), &image).is_err());
        }
    }
}
