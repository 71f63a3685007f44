//! The release before this one, built once and kept, and the tests of this tree against it.
//!
//! `xtask/releases.toml` names the release, the last one there. Its sources come out of this repository's history (`git
//! archive`) and are built with their own lock file in a target folder of their own: cargo tells two checkouts of one
//! workspace apart by modification times only, so in a shared folder it would take the libraries of the one for those
//! of the other. What stays is the program, `target/previous/farbus-COMMIT`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::{self, cargo};
use crate::dist;
use crate::git;
use crate::releases::{self, Release};
use crate::steps::StepSuccess;
use crate::workspace;

/// With this variable at 1 a missing history fails the step instead of skipping it.
const REQUIRE_VARIABLE: &str = "FARBUS_REQUIRE_PREVIOUS";
/// Tells the tests where the program of the release before is.
pub const PROGRAM_VARIABLE: &str = "FARBUS_PREVIOUS";

/// Runs the tests of the upgrade, with these variables; skips them, loudly, where the history lacks the previous
/// release.
pub fn run(variables: &[(&str, &str)]) -> Result<StepSuccess, String> {
    let is_required = std::env::var(REQUIRE_VARIABLE).as_deref() == Ok("1");
    let Some(program) = previous_program()? else {
        let Release { version, commit, .. } = releases::last(&workspace::root())?;
        let why = format!(
            "release {version} is not in this repository's history (commit {commit}): a shallow clone? No session between this \
             version and that one was tested. 'git fetch --unshallow' brings it"
        );
        return if is_required {
            Err(format!("{REQUIRE_VARIABLE}=1, but {why}"))
        } else {
            Ok(StepSuccess::Skipped(why))
        };
    };
    // Of all packages: with the features that the other steps build with, so that nothing is built again.
    let mut command = cargo(&["test", "--workspace", "--test", "upgrade"]);
    command.env(PROGRAM_VARIABLE, program).envs(variables.iter().copied());
    cargo::run(command)?;
    Ok(StepSuccess::All)
}

/// The program of the previous release, built if it is not there; `None` if the history lacks that release.
pub fn previous_program() -> Result<Option<PathBuf>, String> {
    let root = workspace::root();
    let previous = releases::last(&root)?;
    git::commit(&root, &previous.commit).map(|commit| program_of(&root, &previous, &commit)).transpose()
}

/// The commit of the previous release; `None` if the history lacks that release.
pub fn previous_commit() -> Result<Option<String>, String> {
    let root = workspace::root();
    Ok(git::commit(&root, &releases::last(&root)?.commit))
}

/// The program of that commit, built if it is not there.
fn program_of(root: &Path, previous: &Release, commit: &str) -> Result<PathBuf, String> {
    let folder = root.join("target/previous");
    let program = folder.join(format!("farbus-{commit}"));
    if program.is_file() {
        return Ok(program);
    }
    println!("building release {} from {commit}", previous.version);
    let trouble = |what: &str, trouble: std::io::Error| format!("{what}: {trouble}");
    let (sources, build) = (folder.join(commit), folder.join("build"));
    git::unpack(root, commit, &sources)?;
    let mut command = cargo(&["build", "--locked", "--package", dist::package_in(&sources), "--bin", "farbus"]);
    command.current_dir(&sources).env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "false");
    cargo::run(command)?;
    let fresh = folder.join("farbus.new");
    fs::copy(build.join("debug/farbus"), &fresh).map_err(|error| trouble("cannot keep the program", error))?;
    fs::rename(&fresh, &program).map_err(|error| trouble("cannot keep the program", error))?;
    // The program is all that is needed of it again.
    git::remove(&sources)?;
    git::remove(&build)?;
    Ok(program)
}
