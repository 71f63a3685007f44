//! axe-core, which the tests of the page run in a browser: one version with a known checksum, which `npm` fetches.
//!
//! No package of Debian has it. It is a test's tool alone: nothing of it is kept in the sources or shipped (MPL-2.0).

use crate::cargo;
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The variable that names the program for the tests.
pub const VARIABLE: &str = "FARBUS_AXE";
/// The version, and the SHA-512 of its package.
const VERSION: &str = "4.14.1";
const SHA512: &str = "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5";

/// What a run without it leaves out.
pub const LEFT_OUT: &str = "axe-core on the page's views: npm could not fetch it; to run it: \
    FARBUS_AXE=/PATH/axe.min.js cargo test -p farbus --test command -- page_";

/// The file of the program: the one that [`VARIABLE`] names, or one that was fetched before, or is now. `None`: it
/// cannot be had, as on a machine without `npm`; that was printed, and the run lists it as left out.
pub fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(named.into());
    }
    fetched().inspect_err(|why| println!("SKIPPED: axe-core: {why}")).ok()
}

/// The file of the program, fetched if it is not there yet. A package with another checksum is refused.
///
/// # Errors
/// There is no `npm`, it does not reach its registry, or the package is not the one that is known.
pub fn fetched() -> Result<PathBuf, String> {
    let folder = workspace::root().join("target/axe");
    let package = folder.join(format!("axe-core-{VERSION}.tgz"));
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(failed)?;
    if !package.exists() {
        let mut npm = Command::new("npm");
        // Where it reaches no registry it says so soon.
        npm.args(["pack", "--silent", "--fetch-retries=1", "--fetch-timeout=20000", "--pack-destination"])
            .arg(&folder)
            .arg(format!("axe-core@{VERSION}"));
        cargo::output(quiet(npm, &folder))?;
    }
    let mut sum = Command::new("sha512sum");
    sum.arg(&package);
    let said = cargo::output(quiet(sum, &folder))?;
    if !said.starts_with(SHA512.as_bytes()) {
        return Err(format!("{} is not the package that is known (SHA-512)", package.display()));
    }
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&package).arg("-C").arg(&folder).args(["package/axe.min.js", "package/LICENSE"]);
    cargo::output(quiet(tar, &folder))?;
    Ok(folder.join("package/axe.min.js"))
}

fn quiet(mut command: Command, folder: &Path) -> Command {
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Prints where the program is.
pub fn run() -> Result<(), String> {
    println!("{}", fetched()?.display());
    Ok(())
}
