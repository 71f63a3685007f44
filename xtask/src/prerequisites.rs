//! What a machine needs before the steps can run: Debian packages and two components of the toolchain.
//!
//! Missing packages are installed when that was asked for and can be done (as root, with `--install` or in CI, which
//! sets `CI=true`); otherwise the run ends before its first step with the line to type.

use crate::cargo;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Steps that need nothing but the toolchain do without any of these.
struct DebianPackage {
    name: &'static str,
    steps: &'static [&'static str],
}

/// The steps that build programs.
const BUILDING: &[&str] =
    &["clippy", "instructions", "test", "book", "examples", "fuzz", "machine", "upgrade", "rig", "demo", "package"];

/// The package of each program or file that a step uses.
const PACKAGES: &[DebianPackage] = &[
    // To link anything at all.
    DebianPackage { name: "gcc", steps: BUILDING },
    DebianPackage { name: "libc6-dev", steps: BUILDING },
    // Counts instructions.
    DebianPackage { name: "valgrind", steps: &["instructions"] },
    // Splits the release program into itself and its debug information.
    DebianPackage { name: "binutils", steps: &["rig", "demo", "package"] },
    // Brings the previous release out of the history. (Which parts of the gate run is asked of it too; without it all
    // do.)
    DebianPackage { name: "git", steps: &["upgrade"] },
    // Images with file systems in them, and mounting what farbus shows.
    DebianPackage { name: "e2fsprogs", steps: &["test", "examples", "machine", "rig", "demo", "package"] },
    DebianPackage { name: "dosfstools", steps: &["test", "machine", "rig", "demo"] },
    DebianPackage { name: "fuse3", steps: &["test", "examples", "machine", "upgrade", "demo"] },
    DebianPackage { name: "mount", steps: &["test", "machine", "demo"] },
    DebianPackage { name: "util-linux", steps: &["test", "machine", "demo", "package"] },
    DebianPackage { name: "fio", steps: &["machine", "upgrade"] },
    DebianPackage { name: "nbdkit", steps: &["machine"] },
    // Other people's NBD clients.
    DebianPackage { name: "libnbd-bin", steps: &["machine", "package"] },
    DebianPackage { name: "qemu-utils", steps: &["machine"] },
    DebianPackage { name: "strace", steps: &["machine"] },
    // A directory of all sites.
    DebianPackage { name: "etcd-server", steps: &["machine"] },
    DebianPackage { name: "etcd-client", steps: &["machine"] },
    // Reads our usbredir packets and says them again.
    DebianPackage { name: "libusbredirparser-dev", steps: &["test"] },
    // Networks that go silent.
    DebianPackage { name: "iproute2", steps: &["machine", "rig", "package"] },
    DebianPackage { name: "procps", steps: &["machine"] },
    // Real kernels in virtual machines, what their guests run, and what reads their traffic.
    DebianPackage { name: "qemu-system-x86", steps: &["rig", "package"] },
    DebianPackage { name: "linux-image-amd64", steps: &["rig", "package"] },
    DebianPackage { name: "linux-source-6.1", steps: &["rig"] },
    DebianPackage { name: "busybox-static", steps: &["rig"] },
    DebianPackage { name: "cpio", steps: &["rig"] },
    DebianPackage { name: "kmod", steps: &["rig", "package"] },
    DebianPackage { name: "usbip", steps: &["rig"] },
    DebianPackage { name: "udev", steps: &["machine"] },
    DebianPackage { name: "python3-usb", steps: &["machine"] },
    DebianPackage { name: "python3-usb1", steps: &["machine"] },
    DebianPackage { name: "python3-serial", steps: &["machine"] },
    // What looks at the page, and what scrapes it.
    DebianPackage { name: "chromium", steps: &["machine"] },
    DebianPackage { name: "chromium-driver", steps: &["machine"] },
    DebianPackage { name: "curl", steps: &["machine"] },
    DebianPackage { name: "prometheus", steps: &["machine"] },
    // Flash and debug what is made of code.
    DebianPackage { name: "adb", steps: &["machine"] },
    DebianPackage { name: "dfu-util", steps: &["machine"] },
    DebianPackage { name: "fastboot", steps: &["machine"] },
    DebianPackage { name: "openocd", steps: &["machine"] },
    DebianPackage { name: "python3-pyocd", steps: &["machine"] },
    DebianPackage { name: "usbutils", steps: &["machine", "rig"] },
    DebianPackage { name: "alsa-utils", steps: &["rig"] },
    DebianPackage { name: "can-utils", steps: &["rig"] },
    DebianPackage { name: "iperf3", steps: &["rig"] },
    DebianPackage { name: "nbd-client", steps: &["rig"] },
    DebianPackage { name: "genisoimage", steps: &["rig"] },
    DebianPackage { name: "mtp-tools", steps: &["rig"] },
    DebianPackage { name: "pcscd", steps: &["rig"] },
    DebianPackage { name: "libccid", steps: &["rig"] },
    DebianPackage { name: "opensc", steps: &["rig"] },
    DebianPackage { name: "eject", steps: &["rig"] },
    DebianPackage { name: "usb.ids", steps: &["rig"] },
    DebianPackage { name: "tshark", steps: &["test", "machine", "rig"] },
    // Fetches a client that is written in Python, and axe-core.
    DebianPackage { name: "python3-pip", steps: &["machine", "rig"] },
    DebianPackage { name: "xz-utils", steps: &["rig"] },
    // A Debian package, what Debian says of it, and a Debian to install it in.
    DebianPackage { name: "dpkg-dev", steps: &["package"] },
    DebianPackage { name: "lintian", steps: &["package"] },
    DebianPackage { name: "mmdebstrap", steps: &["package"] },
];

/// Checks, and if need be installs, what the named steps need.
pub fn check(steps: &[&str], install: bool) -> Result<(), String> {
    check_toolchain(steps)?;
    let needed = needed(steps);
    if needed.is_empty() {
        return Ok(());
    }
    let Some(installed) = installed(&needed) else {
        println!("this machine has no dpkg-query: a step that misses a program will say so");
        return Ok(());
    };
    let missing: Vec<_> = needed.into_iter().filter(|name| !installed.contains(*name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let is_wanted = install || std::env::var("CI").is_ok_and(|value| value == "true");
    if is_wanted && is_root() {
        return install_packages(&missing);
    }
    Err(refusal(&missing))
}

fn needed(steps: &[&str]) -> Vec<&'static str> {
    let wanted = PACKAGES.iter().filter(|package| package.steps.iter().any(|step| steps.contains(step)));
    wanted.map(|package| package.name).collect()
}

fn check_toolchain(steps: &[&str]) -> Result<(), String> {
    for (step, subcommand, component) in [("format", "fmt", "rustfmt"), ("clippy", "clippy", "clippy")] {
        if !steps.contains(&step) {
            continue;
        }
        let mut command = cargo::cargo(&[subcommand, "--version"]);
        let there = command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !there {
            return Err(format!("cargo {subcommand} is missing; type:\n  rustup component add {component}"));
        }
    }
    Ok(())
}

/// Those of `names` that are installed; nothing if this is no Debian.
fn installed(names: &[&str]) -> Option<BTreeSet<String>> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"])
        .args(names)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    Some(parse_installed(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_installed(printed: &str) -> BTreeSet<String> {
    printed.lines().filter_map(|line| line.strip_suffix(" installed")).map(str::to_owned).collect()
}

fn install_packages(missing: &[&str]) -> Result<(), String> {
    println!("installing {}", missing.join(" "));
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    };
    cargo::run(apt(&["update", "-q"]))?;
    let mut install = apt(&["install", "-q", "-y", "--no-install-recommends"]);
    install.args(missing);
    cargo::run(install)
}

fn refusal(missing: &[&str]) -> String {
    format!(
        "packages are missing; as root, type:\n  apt-get update && apt-get install -y --no-install-recommends {}\n\
         or let this do it: cargo xtask test --install",
        missing.join(" ")
    )
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_needs_no_package_asks_for_none() {
        assert_eq!(needed(&["format", "tidy"]), [""; 0]);
        assert!(needed(&["rig"]).contains(&"qemu-system-x86"));
        assert!(!needed(&["demo"]).contains(&"qemu-system-x86"));
    }

    #[test]
    fn half_installed_is_not_installed() {
        let installed = parse_installed("fio installed\nkmod config-files\nusbip not-installed\n");
        assert_eq!(installed, BTreeSet::from(["fio".to_owned()]));
    }

    #[test]
    fn the_refusal_can_be_typed() {
        let text = refusal(&["fio", "kmod"]);
        assert!(text.contains("\n  apt-get update && apt-get install -y --no-install-recommends fio kmod\n"), "{text}");
    }

    #[test]
    fn every_package_is_for_a_step_that_exists() {
        let steps = crate::test::STEPS;
        for package in PACKAGES {
            assert!(!package.steps.is_empty());
            assert!(package.steps.iter().all(|step| steps.contains(step)), "{}", package.name);
        }
    }
}
