//! axe-core, which the tests of the page run in a browser: one version with a known checksum, which `pip` fetches, as
//! the client in Python of the rig.
//!
//! No package of Debian has it. It is a test's tool alone: nothing of it is kept in the sources or shipped (MPL-2.0).

use crate::cargo;
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable that names the program for the tests.
pub const VARIABLE: &str = "FARBUS_AXE";
/// A package of Python that has the program in it (axe-core 4.12.1), and its checksum.
const REQUIREMENT: &str = "axe-playwright-python==0.1.8 \
    --hash=sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8\n";
const PACKAGE: &str = "axe_playwright_python-0.1.8-py3-none-any.whl";
const FILE: &str = "axe_playwright_python/axe.min.js";

/// What a run without it leaves out.
pub const LEFT_OUT: &str = "axe-core on the page's views: pip could not fetch it; to run it: \
    FARBUS_AXE=/PATH/axe.min.js cargo test -p farbus-cli --test command -- page_";

/// The file of the program: the one that [`VARIABLE`] names, or one that was fetched before, or is now. `None`: it
/// cannot be had, as on a machine without `pip`; that was printed, and the run lists it as left out.
pub fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(named.into());
    }
    fetched().inspect_err(|why| println!("SKIPPED: axe-core: {why}")).ok()
}

/// The file of the program, fetched if it is not there yet. A package with another checksum is refused.
///
/// # Errors
/// There is no `pip`, it does not reach its index, or the package is not the one that is known.
pub fn fetched() -> Result<PathBuf, String> {
    let folder = workspace::root().join("target/axe");
    let requirements = folder.join("requirements.txt");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(failed)?;
    std::fs::write(&requirements, REQUIREMENT).map_err(failed)?;
    let mut pip = python(&folder);
    // It checks the package that is there already, too. Where it reaches no index it says so soon.
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"])
        .args(["--only-binary=:all:", "--retries=1", "--timeout=20", "--dest=.", "--find-links=.", "--requirement"])
        .arg(&requirements);
    cargo::output(pip)?;
    let mut unpack = python(&folder);
    unpack.args(["-m", "zipfile", "-e", PACKAGE, "."]);
    cargo::output(unpack)?;
    Ok(folder.join(FILE))
}

fn python(folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Prints where the program is.
pub fn run() -> Result<(), String> {
    println!("{}", fetched()?.display());
    Ok(())
}
