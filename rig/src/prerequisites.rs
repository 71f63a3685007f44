//! The prerequisites on the host, and how they get installed.

use crate::{Result, RigError, image::kernel, tool};
use std::path::Path;
use std::process::Command;

/// A Debian package and the path that shows that it is installed.
struct HostPackage {
    package: &'static str,
    present: fn() -> bool,
    shown_by: &'static str,
}

/// Where PC/SC looks for the driver of USB card readers.
pub const CARD_READER_DRIVER: &str = "/usr/lib/pcsc/drivers/ifd-ccid.bundle/Contents/Linux/libccid.so";

/// One entry for each thing that the rig runs or copies.
const NEEDS: &[HostPackage] = &[
    need("qemu-system-x86", "qemu-system-x86_64", || on_path("qemu-system-x86_64")),
    need("linux-image-amd64", "/boot/vmlinuz-6.1.*-amd64 with its modules", || kernel::InstalledKernel::find().is_ok()),
    need("linux-source-6.1", kernel::SOURCE_ARCHIVE, || exists(kernel::SOURCE_ARCHIVE)),
    need("busybox-static", "a static busybox", || exists("/usr/share/doc/busybox-static") && on_path("busybox")),
    need("usbip", "usbip", || on_path("usbip")),
    need("usbutils", "usbreset, lsusb", || on_path("usbreset") && on_path("lsusb")),
    need("alsa-utils", "aplay, amixer", || on_path("aplay") && on_path("amixer")),
    need("can-utils", "candump, cangen", || on_path("candump") && on_path("cangen")),
    need("iproute2", "ip", || on_path("ip")),
    need("iperf3", "iperf3", || on_path("iperf3")),
    need("libasound2-data", "/usr/share/alsa/alsa.conf", || exists("/usr/share/alsa/alsa.conf")),
    need("pcscd", "pcscd", || on_path("pcscd")),
    need("libccid", CARD_READER_DRIVER, || exists(CARD_READER_DRIVER)),
    need("opensc", "opensc-tool", || on_path("opensc-tool")),
    need("mtp-tools", "mtp-files, mtp-getfile", || on_path("mtp-files") && on_path("mtp-getfile")),
    need("nbd-client", "nbd-client", || on_path("nbd-client")),
    need("fio", "fio", || on_path("fio")),
    need("iproute2", "tc", || on_path("tc")),
    need("genisoimage", "genisoimage", || on_path("genisoimage")),
    need("eject", "eject", || on_path("eject")),
    need("e2fsprogs", "mkfs.ext4, e2fsck, debugfs", || on_path("mkfs.ext4") && on_path("e2fsck") && on_path("debugfs")),
    need("tshark", "tshark", || on_path("tshark")),
    need("python3-pip", "python3 -m pip", || {
        Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|output| output.status.success())
    }),
    need("xz-utils", "xz", || on_path("xz")),
    need("tar", "tar", || on_path("tar")),
    need("gcc", "gcc, strip", || on_path("gcc") && on_path("strip")),
    need("libc6-dev", "libc.a", || exists("/usr/lib/x86_64-linux-gnu/libc.a")),
];

const fn need(package: &'static str, shown_by: &'static str, present: fn() -> bool) -> HostPackage {
    HostPackage { package, present, shown_by }
}

/// Checks the prerequisites: installs what is missing if this is root and `CI=true` or `FARBUS_INSTALL=1`, and
/// otherwise fails with the line to type.
pub fn ensure() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    if !(rustix::process::geteuid().is_root() && told_to_install()) {
        return Err(refusal(&missing));
    }
    eprintln!("rig: installing {}", packages(&missing).join(" "));
    tool::output(Command::new("apt-get").args(["update", "-q"]))?;
    tool::output(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(packages(&missing)),
    )?;
    // The package manager's success is not enough: the files must be there now.
    let missing = self::missing();
    if missing.is_empty() { Ok(()) } else { Err(refusal(&missing)) }
}

fn missing() -> Vec<&'static HostPackage> {
    NEEDS.iter().filter(|need| !(need.present)()).collect()
}

fn packages(missing: &[&HostPackage]) -> Vec<&'static str> {
    missing.iter().map(|need| need.package).collect()
}

fn refusal(missing: &[&HostPackage]) -> RigError {
    RigError::Prerequisites {
        missing: missing.iter().map(|need| format!("{} ({})", need.package, need.shown_by)).collect(),
        line: format!("apt-get update && apt-get install -y --no-install-recommends {}", packages(missing).join(" ")),
    }
}

fn told_to_install() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
        || std::env::var("FARBUS_INSTALL").is_ok_and(|value| value == "1")
}

fn on_path(name: &str) -> bool {
    tool::which(name).is_some()
}

fn exists(path: &str) -> bool {
    Path::new(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_the_exact_line() {
        let error = refusal(&[&NEEDS[0], &NEEDS[4]]);
        assert!(
            error.to_string().contains("apt-get install -y --no-install-recommends qemu-system-x86 usbip"),
            "{error}"
        );
    }
}
