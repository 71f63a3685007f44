//! Whether the program for another architecture does what it should in a kernel of that architecture: a guest attaches
//! a disk that this machine shares.
//!
//! QEMU's processor runs Debian's kernel with a RAM disk of Debian's busybox and libraries, the kernel modules that are
//! needed, and the program from the Debian package. The guest's network is QEMU's own, which ends at this machine's
//! loopback.

use crate::package::architecture::DebianArchitecture;
use crate::package::{check, tree};
use crate::{cargo, dist};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const INIT: &str = include_str!("foreign.sh");
/// What of Debian is in the RAM disk, or becomes part of it.
const INCLUDED: &str = "busybox-static,libc6,libgcc-s1";
const LIBRARIES: [&str; 4] = ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"];
const MODULES: [&str; 5] = ["virtio_pci", "virtio_net", "sd_mod", "usb-storage", "vhci-hcd"];
const DISK_BYTES: u64 = 8 << 20;
const BLOCK_BYTES: u64 = 4096;
/// The block that the guest reads, and the one that it writes.
const READ_AT: u64 = 5 * BLOCK_BYTES;
const WRITTEN_AT: u64 = 7 * BLOCK_BYTES;

/// Ends a program when it is dropped.
struct KilledProgram(Child);

impl Drop for KilledProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attaches a disk of this machine in a guest with the program of `package`.
///
/// # Errors
/// The guest cannot be made, or something is not as it should be.
pub fn check(package: &Path, architecture: DebianArchitecture, work: &Path) -> Result<(), String> {
    if architecture != DebianArchitecture::Arm64 {
        return Err("a guest is booted for arm64 only".to_owned());
    }
    check_tools()?;
    let debian = work.join("foreign");
    let release = make_debian(&debian, architecture)?;
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--extract").arg(package).arg(&debian);
    cargo::run(unpack)?;

    let disk = work.join("foreign.img");
    let before: Vec<u8> = (0..DISK_BYTES).map(|at| (at % 251) as u8).collect();
    tree::put_text(&before, &disk, 0o600)?;
    let (_share, port) = share(&disk, work)?;
    let ram_disk = ram_disk(&debian, &release, port, work)?;

    let kernel = debian.join("boot").join(format!("vmlinuz-{release}"));
    let log = work.with_file_name("foreign.log");
    let message = check::run_guest(machine(&kernel, &ram_disk), &log)?;
    let answers: Vec<&str> = message.lines().filter_map(|line| line.strip_prefix("@check ")).map(str::trim).collect();
    answers.iter().for_each(|answer| println!("guest: {answer}"));
    judge(&answers, &disk, &before).map_err(|why| format!("{why}; see {}", log.display()))
}

fn check_tools() -> Result<(), String> {
    let tools = [("qemu-system-aarch64", "qemu-system-arm"), ("cpio", "cpio"), ("modprobe", "kmod")];
    let is_missing = |program: &str| Command::new(program).arg("--version").output().is_err();
    let missing: Vec<_> =
        tools.iter().filter(|(program, _)| is_missing(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "packages are missing; as root, type:\n  apt-get install -y --no-install-recommends {}",
        missing.join(" ")
    ))
}

/// Unpacks what is needed of Debian for an architecture. Returns its kernel's release.
fn make_debian(root: &Path, architecture: DebianArchitecture) -> Result<String, String> {
    let name = architecture.name();
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=extract", "--mode=root", "--arch", name, "--include"]);
    make.args([&format!("{INCLUDED},linux-image-{name}"), ""]).arg(root).args(check::sources()?);
    cargo::run(make)?;
    let kernels = tree::files(&root.join("boot"))?;
    let mut releases = kernels.iter().filter_map(|path| path.file_name()?.to_str()?.strip_prefix("vmlinuz-"));
    let release = releases.next().ok_or("Debian's kernel package has no kernel")?.to_owned();
    let mut depend = Command::new("depmod");
    depend.arg("--basedir").arg(root).arg(&release);
    tree::succeed(depend)?;
    Ok(release)
}

/// Shares a disk at a port of the loopback.
fn share(disk: &Path, work: &Path) -> Result<(KilledProgram, u16), String> {
    let (what, state) = (format!("disk:{}", disk.display()), work.join("state"));
    tree::folder_of_mode(&state, 0o700)?;
    let mut share = Command::new(dist::program()?);
    share.args(["share", &what, "--listen", "127.0.0.1:0"]).env("XDG_RUNTIME_DIR", &state).env("FARBUS_STATE", &state);
    let mut share =
        KilledProgram(share.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot share: {error}"))?);
    let stdout = share.0.stdout.take().ok_or("its output is a pipe")?;
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let port = line.strip_prefix("listening on 127.0.0.1:").and_then(|rest| rest.split(' ').next()?.parse().ok());
        if let Some(port) = port {
            return Ok((share, port));
        }
    }
    Err("the share ended before it listened".to_owned())
}

/// The guest's first file system, compressed.
fn ram_disk(debian: &Path, release: &str, port: u16, work: &Path) -> Result<PathBuf, String> {
    let root = work.join("ram-disk");
    for folder in ["proc", "sys", "dev", "run", "root", "tmp", "bin"] {
        tree::folder_of_mode(&root.join(folder), 0o755)?;
    }
    tree::put(&debian.join("bin/busybox"), &root.join("bin/busybox"), 0o755)?;
    tree::put(&debian.join("usr/bin/farbus"), &root.join("usr/bin/farbus"), 0o755)?;
    for library in LIBRARIES {
        tree::put(&debian.join("lib/aarch64-linux-gnu").join(library), &root.join("lib").join(library), 0o755)?;
    }
    let modules = modules(debian, release)?;
    for module in &modules {
        tree::put(module, &root.join("modules.d").join(module.file_name().ok_or("a module is a file")?), 0o644)?;
    }
    let names = modules.iter().filter_map(|module| Some(format!("/modules.d/{}\n", module.file_name()?.to_str()?)));
    tree::put_text(names.collect::<String>().as_bytes(), &root.join("modules"), 0o644)?;
    tree::put_text(format!("10.0.2.2:{port}/disk\n").as_bytes(), &root.join("target"), 0o644)?;
    tree::put_text(INIT.as_bytes(), &root.join("init"), 0o755)?;
    symlink("busybox", root.join("bin/sh")).map_err(|error| format!("cannot make a link: {error}"))?;
    let packed = work.join("ram-disk.gz");
    let mut pack = Command::new("sh");
    pack.args(["-ec", "cd \"$1\"; find . | cpio --quiet -o -H newc | gzip -1 >\"$2\"", "sh"]).arg(&root).arg(&packed);
    cargo::run(pack)?;
    Ok(packed)
}

/// The files of the modules that the guest loads, in that order.
fn modules(debian: &Path, release: &str) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for module in MODULES {
        let mut ask = Command::new("modprobe");
        ask.arg("--dirname").arg(debian).args(["--set-version", release, "--show-depends", module]);
        let message = String::from_utf8_lossy(&cargo::output(ask)?).into_owned();
        for file in message.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let file = PathBuf::from(file.trim());
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

fn machine(kernel: &Path, ram_disk: &Path) -> Command {
    let mut qemu = Command::new("qemu-system-aarch64");
    qemu.args(["-M", "virt", "-cpu", "max,pauth-impdef=on", "-accel", "tcg,thread=multi", "-smp", "2", "-m", "768"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="])
        .args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"])
        .args(["-append", "console=ttyAMA0 loglevel=3 panic=-1 rdinit=/init", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(ram_disk);
    qemu
}

/// Whether a guest that said this read and wrote the disk, which began with the bytes `before`.
fn judge(answers: &[&str], disk: &Path, before: &[u8]) -> Result<(), String> {
    if answers.last() != Some(&"exit 0") {
        return Err(format!("the guest did not end well: {:?}", answers.last()));
    }
    if !answers.iter().any(|answer| answer.starts_with("aarch64, farbus ")) {
        return Err("the guest was of another architecture".to_owned());
    }
    let sectors = format!("sectors: {}", DISK_BYTES / 512);
    let block = before.get(READ_AT as usize..(READ_AT + BLOCK_BYTES) as usize).ok_or("the disk has that block")?;
    for expected in [sectors, format!("read: {}", sha256(block)?)] {
        if !answers.contains(&expected.as_str()) {
            return Err(format!("the guest did not say '{expected}'"));
        }
    }
    let file = std::fs::File::open(disk).map_err(|error| format!("cannot read the disk: {error}"))?;
    let mut written = vec![0; BLOCK_BYTES as usize];
    file.read_exact_at(&mut written, WRITTEN_AT).map_err(|error| format!("cannot read the disk: {error}"))?;
    let expected: Vec<u8> = b"written\n".iter().copied().cycle().take(BLOCK_BYTES as usize).collect();
    if written == expected { Ok(()) } else { Err("what the guest wrote is not on the disk".to_owned()) }
}

fn sha256(bytes: &[u8]) -> Result<String, String> {
    use std::io::Write;
    let mut sum = Command::new("sha256sum");
    let mut sum = sum
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start sha256sum: {error}"))?;
    sum.stdin.take().ok_or("its input is a pipe")?.write_all(bytes).map_err(|error| error.to_string())?;
    let output = sum.wait_with_output().map_err(|error| error.to_string())?;
    let message = String::from_utf8_lossy(&output.stdout).into_owned();
    message.split_whitespace().next().map(str::to_owned).ok_or_else(|| "sha256sum said nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_passes_only_if_it_read_the_block_and_its_own_is_on_the_disk() {
        let folder = std::env::temp_dir().join(format!("farbus-foreign-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let disk = folder.join("disk.img");
        let before = vec![7; DISK_BYTES as usize];
        let mut after = before.clone();
        std::fs::write(&disk, &after).unwrap();
        let read = format!("read: {}", sha256(&[7; BLOCK_BYTES as usize]).unwrap());
        let printed = ["aarch64, farbus 0.1.0", "sectors: 16384", &read, "exit 0"];
        assert!(judge(&printed, &disk, &before).unwrap_err().contains("not on the disk"));
        let written = (0..BLOCK_BYTES as usize).map(|at| b"written\n"[at % 8]);
        after.splice(WRITTEN_AT as usize..(WRITTEN_AT + BLOCK_BYTES) as usize, written);
        std::fs::write(&disk, &after).unwrap();
        assert_eq!(judge(&printed, &disk, &before), Ok(()));
        assert!(judge(&["x86_64, farbus 0.1.0", "exit 0"], &disk, &before).unwrap_err().contains("architecture"));
        assert!(judge(&["aarch64, farbus 0.1.0", "exit 0"], &disk, &before).unwrap_err().contains("sectors"));
        assert!(judge(&["exit 1"], &disk, &before).unwrap_err().contains("exit 1"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
