//! Whether the Debian package does what it should where nothing of farbus was: in a fresh Debian, and in one that is
//! booted with systemd.
//!
//! mmdebstrap makes the fresh Debian from this machine's own package sources. The guest boots this machine's Debian
//! kernel from an image of it, without a network card.

use crate::cargo;
use crate::package::tree::{self, InstalledPrograms};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is installed before farbus: what it recommends, and what the check itself uses.
const INCLUDED: &str = "systemd,systemd-sysv,udev,dbus,fuse3,kmod,e2fsprogs,mount";
/// In a chroot nothing speaks to systemd, and nothing reaches the network.
const FRESH: &str = include_str!("fresh.sh");
const GUEST: &str = include_str!("guest.sh");
const UNIT: &str = "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/bin/sh /root/guest.sh\n\
    StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n";
/// Kernel modules of the guest: real devices are not there.
const MODULES: [&str; 8] = ["arch", "block", "crypto", "fs", "lib", "drivers/block", "drivers/scsi", "drivers/usb"];
const IMAGE_BYTES: &str = "3G";
const GUEST_TIME_MAX: Duration = Duration::from_secs(600);
/// Above it, `systemd-analyze security` calls a service more exposed than the confined unit may be.
const EXPOSURE_MAX: f64 = 3.0;

/// Installs, uses and purges `package` in a fresh Debian; if there is a `later` one, also in a booted guest, which is
/// upgraded to it.
///
/// # Errors
/// Something is not as it should be.
pub fn check(package: &Path, later: Option<&Path>, work: &Path) -> Result<(), String> {
    lint(package)?;
    let root = work.join("debian");
    make_debian(&root)?;
    tree::put(package, &root.join("root/farbus.deb"), 0o644)?;
    install_in(&root)?;
    let Some(later) = later else { return Ok(()) };
    tree::put(later, &root.join("root/later.deb"), 0o644)?;
    boot(&root, work)
}

/// Tests a package for another architecture as far as this machine can: what Debian says of it, `farbus demo` and the
/// conformance kit with that architecture's programs, and the unit tests of the crates that decide what bytes mean.
///
/// # Errors
/// Something is not as it should be.
pub fn check_foreign(package: &Path, programs: &InstalledPrograms) -> Result<(), String> {
    lint(package)?;
    for (program, words) in [
        (&programs.farbus, &["--version"][..]),
        (&programs.farbus, &["demo"][..]),
        (&programs.conform, &["exporter", "--list"][..]),
    ] {
        let mut run = programs.architecture.command(program);
        run.args(words);
        cargo::run(run)?;
    }
    let tests =
        ["test", "--package", "farbus-model", "--package", "farbus-wire", "--package", "farbus-session", "--lib"];
    cargo::run(programs.architecture.cargo(&tests))
}

fn lint(package: &Path) -> Result<(), String> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"]).arg(package);
    cargo::run(lintian)
}

/// The package sources of this machine, as arguments of mmdebstrap.
pub(super) fn sources() -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<PathBuf> = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(more) = tree::files(Path::new("/etc/apt/sources.list.d")) {
        found.extend(more);
    }
    found.retain(|path| std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0));
    if found.is_empty() { Err("this machine has no package sources in /etc/apt".to_owned()) } else { Ok(found) }
}

fn make_debian(root: &Path) -> Result<(), String> {
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=minbase", "--mode=root", "--include", INCLUDED, ""]).arg(root).args(sources()?);
    cargo::run(make)
}

fn install_in(root: &Path) -> Result<(), String> {
    tree::put_text(FRESH.as_bytes(), &root.join("root/fresh.sh"), 0o644)?;
    let script = "ip link set lo up; mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; \
         exec chroot \"$1\" sh /root/fresh.sh";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", script, "sh"]).arg(root);
    cargo::run(unshare)
}

/// The newest Debian kernel of this machine: its release, the kernel and its initial RAM disk.
fn kernel() -> Result<(String, PathBuf, PathBuf), String> {
    let found = tree::files(Path::new("/boot"))?.into_iter().rev().find_map(|path| {
        let release = path.file_name()?.to_str()?.strip_prefix("vmlinuz-")?.to_owned();
        let initrd = path.with_file_name(format!("initrd.img-{release}"));
        initrd.is_file().then_some((release, path, initrd))
    });
    found.ok_or_else(|| {
        "no kernel with an initial RAM disk in /boot; type: apt-get install linux-image-amd64".to_owned()
    })
}

fn boot(root: &Path, work: &Path) -> Result<(), String> {
    let (release, kernel, initrd) = kernel()?;
    copy_modules(&release, root)?;
    tree::put_text(GUEST.as_bytes(), &root.join("root/guest.sh"), 0o644)?;
    tree::put_text(UNIT.as_bytes(), &root.join("etc/systemd/system/check.service"), 0o644)?;
    let wanted = root.join("etc/systemd/system/default.target.wants");
    tree::folder_of_mode(&wanted, 0o755)?;
    std::os::unix::fs::symlink("../check.service", wanted.join("check.service"))
        .map_err(|error| format!("cannot enable the check: {error}"))?;
    let image = work.join("guest.img");
    let mut format = Command::new("mkfs.ext4");
    format.args(["-q", "-F", "-d"]).arg(root).arg(&image).arg(IMAGE_BYTES);
    cargo::run(format)?;

    let log = work.with_file_name("guest.log");
    let message = run_guest(machine(&kernel, &initrd, &image), &log)?;
    let answers: Vec<&str> =
        // The shell's trace has these words, too, after a plus.
        message.lines().filter_map(|line| line.strip_prefix("@check ")).map(str::trim).collect();
    answers.iter().for_each(|answer| println!("guest: {answer}"));
    judge(&answers).map_err(|why| format!("{why}; see {}", log.display()))
}

/// Whether a guest that said this passed.
fn judge(answers: &[&str]) -> Result<(), String> {
    if answers.last() != Some(&"exit 0") {
        return Err(format!("the guest did not end well: {:?}", answers.last()));
    }
    let exposure = answers.iter().find_map(|answer| {
        let (_, level) = answer.split_once("farbus-confined.service: ")?;
        level.split_whitespace().next()?.parse::<f64>().ok()
    });
    match exposure {
        Some(level) if level < EXPOSURE_MAX => Ok(()),
        Some(level) => Err(format!("the confined unit's exposure is {level}, not below {EXPOSURE_MAX}")),
        None => Err("systemd-analyze named no exposure of the confined unit".to_owned()),
    }
}

fn copy_modules(release: &str, root: &Path) -> Result<(), String> {
    let from = Path::new("/lib/modules").join(release);
    let to = root.join("lib/modules").join(release);
    tree::folder_of_mode(&to.join("kernel/drivers"), 0o755)?;
    for name in MODULES {
        let folder = format!("kernel/{name}");
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(from.join(&folder)).arg(to.join(&folder));
        tree::succeed(copy)?;
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        tree::put(&from.join(list), &to.join(list), 0o644)?;
    }
    let mut depend = Command::new("depmod");
    depend.arg("--basedir").arg(root).arg(release);
    tree::succeed(depend)
}

fn machine(kernel: &Path, initrd: &Path, image: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"])
        .args(["-chardev", "stdio,id=console,signal=off", "-device", "isa-serial,chardev=console"])
        .args([
            "-append",
            "root=/dev/vda rw console=ttyS0 loglevel=3 systemd.show_status=no systemd.mask=serial-getty@ttyS0.service",
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .args(["-drive", &format!("if=virtio,format=raw,cache=unsafe,file={}", image.display())]);
    qemu
}

/// Runs a guest until it ends and returns what its console said, which goes to `log`.
///
/// # Errors
/// It does not start, or does not end in time.
pub(super) fn run_guest(mut qemu: Command, log: &Path) -> Result<String, String> {
    let console = std::fs::File::create(log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    qemu.stdin(Stdio::null()).stdout(console);
    println!("$ {}", cargo::display(&qemu));
    let mut guest = qemu.spawn().map_err(|error| format!("cannot start QEMU: {error}"))?;
    let start = Instant::now();
    let ended = loop {
        match guest.try_wait() {
            Ok(None) if start.elapsed() < GUEST_TIME_MAX => std::thread::sleep(Duration::from_millis(200)),
            Ok(None) => {
                let _ = guest.kill();
                break guest.wait().map(|_| false);
            }
            Ok(Some(_)) => break Ok(true),
            Err(error) => break Err(error),
        }
    };
    match ended {
        Ok(true) => {
            let bytes = std::fs::read(log).map_err(|error| format!("cannot read {}: {error}", log.display()))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Ok(false) => Err(format!("the guest did not end in {} s; see {}", GUEST_TIME_MAX.as_secs(), log.display())),
        Err(error) => Err(format!("cannot wait for QEMU: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_passes_only_with_its_last_line_and_a_confined_unit_that_is_not_exposed() {
        let judged = |exposure: &str, exit: &str| {
            let exposure = format!("→ Overall exposure level for farbus-confined.service: {exposure} OK");
            judge(&["from dpkg to a mounted disk: 5 s", &exposure, exit])
        };
        assert_eq!(judged("1.7", "exit 0"), Ok(()));
        assert!(judged("1.7", "exit 1").unwrap_err().contains("exit 1"));
        assert!(judged("3.1", "exit 0").unwrap_err().contains("3.1"));
        assert!(judge(&["exit 0"]).unwrap_err().contains("no exposure"));
        assert!(judge(&[]).is_err());
    }
}
