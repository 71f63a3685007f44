//! A USB/IP client and server that share no code with farbus or Linux: Python's `usbip` package.
//!
//! Its version and checksum are pinned in `peers/requirements.txt`; the first run fetches it into the cargo target
//! folder with the machine's own `pip`, and installs nothing.

use crate::image::kernel::write_whole;
use crate::{Result, RigError, disk, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Its name in the table.
pub const NAME: &str = "`usbip` package of Python";

const REQUIREMENTS: &str = include_str!("../../peers/requirements.txt");

/// The package, ready to be imported.
pub struct PythonPackage {
    wheel: PathBuf,
    /// The version of the package, as PyPI has it.
    pub version: &'static str,
}

impl PythonPackage {
    /// From the cache, or fetched into it.
    ///
    /// # Errors
    /// If it cannot be fetched, with the line to type.
    pub fn ready(cache: &Path) -> Result<Self> {
        let (version, sha256) = pinned(REQUIREMENTS).expect("a line NAME==VERSION --hash=sha256:SUM");
        let folder = cache.join("python");
        let wheel = folder.join(format!("usbip-{version}-py3-none-any.whl"));
        // Cases may run at the same time.
        let fetching = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
        if !wheel.exists() {
            fetch(&folder)?;
        }
        drop(fetching);
        if disk::sha256(&wheel)? != sha256 {
            return Err(RigError::Format { path: wheel, rule: "its checksum is not the pinned one: remove it" });
        }
        Ok(Self { wheel, version })
    }

    /// Where the package is, for `PYTHONPATH`.
    pub fn path(&self) -> &Path {
        &self.wheel
    }

    /// A script with these arguments, which finds the package.
    pub fn command(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.args(["-u", "-c", script]).args(arguments).env("PYTHONPATH", &self.wheel);
        command
    }
}

static FETCHING: Mutex<()> = Mutex::new(());

fn fetch(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(RigError::io(format!("create {}", folder.display())))?;
    let requirements = folder.join("requirements.txt");
    write_whole(&requirements, REQUIREMENTS.as_bytes())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    pip.args(["--only-binary=:all:", "--dest"]).arg(folder).arg("--requirement").arg(&requirements);
    tool::output(&mut pip).map(drop).map_err(|error| {
        RigError::Expectation(format!(
            "{error}\nthe rig needs this package once; with a way to it, type:\n    {}",
            tool::show(&pip)
        ))
    })
}

/// Version and checksum out of the file of requirements.
fn pinned(requirements: &str) -> Option<(&str, &str)> {
    let line = requirements.lines().find(|line| !line.starts_with('#'))?;
    let (name, hash) = line.split_once(" --hash=sha256:")?;
    Some((name.split_once("==")?.1, hash.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requirement_is_pinned() {
        let (version, sha256) = pinned(REQUIREMENTS).unwrap();
        assert!(version.split('.').count() == 3, "{version}");
        assert!(sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit()), "{sha256}");
        assert_eq!(pinned("usbip\n"), None);
    }
}
