//! The program, before it runs: what can be known of it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};

/// Becomes the program. Returns only if that failed.
pub fn become_it(program: &[OsString]) -> io::Error {
    let mut command = Command::new(&program[0]);
    // libudev asks for a file system of the kernel's at /sys, and this one is in memory.
    command.args(&program[1..]).env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0");
    // adb's own way asks the node for a device number, which a file has not; that by libusb does not.
    if std::env::var_os("ADB_LIBUSB").is_none() {
        command.env("ADB_LIBUSB", "1");
    }
    command.exec()
}

/// Refuses a program into which the kernel would let nobody look. A program that loses its rights inside is warned of.
/// One that is not found is left to `exec`, which says so.
///
/// # Errors
/// Why it cannot be run: the exit code is [`NOT_RUN`](crate::common::child_program::NOT_RUN).
pub fn check(name: &OsStr) -> Result<(), String> {
    let Some(path) = find(name).filter(|_| !rustix::process::geteuid().is_root()) else { return Ok(()) };
    if access(&path, Access::READ_OK).is_err() {
        return Err(format!(
            "you may run {0} and may not read it: the kernel then lets nobody look into its memory, and no device can be \
             shown to it\n  a copy that you may read works, or: sudo chmod +r {0}",
            path.display()
        ));
    }
    let has_rights = fs::metadata(&path).is_ok_and(|found| found.permissions().mode() & 0o6000 != 0);
    if has_rights && io::stderr().is_terminal() {
        eprintln!("farbus: {} has its owner's rights elsewhere; inside it has yours alone", path.display());
    }
    Ok(())
}

/// The file that `exec` finds.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(Path::new(name).to_owned()).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(name));
    found.find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
}
