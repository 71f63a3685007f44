//! The release before this one, built once and kept, and the tests of this tree against it.
//!
//! `xtask/previous.toml` names the release. Its sources come out of this repository's history (`git archive`) and are
//! built with their own lock file in a target folder of their own: cargo tells two checkouts of one workspace apart by
//! modification times only, so in a shared folder it would take the libraries of the one for those of the other. What
//! stays is the program, `target/previous/farbus-COMMIT`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cargo::{self, cargo};
use crate::dist;
use crate::git;
use crate::steps::Done;
use crate::workspace;

/// Where the release before this one is named.
const NAMED: &str = "xtask/previous.toml";
/// With this variable at 1 a missing history fails the step instead of skipping it.
const REQUIRE_VARIABLE: &str = "FARBUS_REQUIRE_PREVIOUS";
/// Tells the tests where the program of the release before is.
pub const PROGRAM_VARIABLE: &str = "FARBUS_PREVIOUS";

/// The release before this one.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Previous {
    release: String,
    /// Preferred where it exists.
    tag: String,
    commit: String,
}

/// Runs the tests of the upgrade, with these variables; skips them, loudly, where the history lacks the previous
/// release.
pub fn run(variables: &[(&str, &str)]) -> Result<Done, String> {
    let is_required = std::env::var(REQUIRE_VARIABLE).as_deref() == Ok("1");
    let previous = previous()?;
    let Some(program) = previous_program()? else {
        let why = format!(
            "release {} is not in this repository's history (neither tag {} nor commit {}): a shallow clone? No session between \
             this version and that one was tested. 'git fetch --unshallow --tags' brings it",
            previous.release, previous.tag, previous.commit
        );
        return if is_required { Err(format!("{REQUIRE_VARIABLE}=1, but {why}")) } else { Ok(Done::Skipped(why)) };
    };
    // Of all packages: with the features that the other steps build with, so that nothing is built again.
    let mut command = cargo(&["test", "--workspace", "--test", "upgrade"]);
    command.env(PROGRAM_VARIABLE, program).envs(variables.iter().copied());
    cargo::run(command)?;
    Ok(Done::All)
}

/// The program of the previous release, built if it is not there; `None` if the history lacks that release.
pub fn previous_program() -> Result<Option<PathBuf>, String> {
    let (root, previous) = (workspace::root(), previous()?);
    commit_of(&root, &previous).map(|commit| program_of(&root, &previous, &commit)).transpose()
}

/// The commit of the previous release; `None` if the history lacks that release.
pub fn previous_commit() -> Result<Option<String>, String> {
    Ok(commit_of(&workspace::root(), &previous()?))
}

/// What [`NAMED`] says.
fn previous() -> Result<Previous, String> {
    let text = fs::read_to_string(workspace::root().join(NAMED))
        .map_err(|trouble| format!("cannot read {NAMED}: {trouble}"))?;
    toml::from_str(&text).map_err(|trouble| format!("{NAMED}: {trouble}"))
}

/// The commit of the previous release, if the history has it.
fn commit_of(root: &Path, previous: &Previous) -> Option<String> {
    [format!("refs/tags/{}", previous.tag), previous.commit.clone()].iter().find_map(|name| git::commit(root, name))
}

/// The program of that commit, built if it is not there.
fn program_of(root: &Path, previous: &Previous, commit: &str) -> Result<PathBuf, String> {
    let folder = root.join("target/previous");
    let program = folder.join(format!("farbus-{commit}"));
    if program.is_file() {
        return Ok(program);
    }
    println!("building release {} from {commit}", previous.release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_release_is_named_by_a_whole_commit() {
        let text = fs::read_to_string(workspace::root().join(NAMED)).unwrap();
        let previous: Previous = toml::from_str(&text).unwrap();
        assert!(previous.commit.len() == 40 && previous.commit.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(previous.tag.ends_with(&previous.release), "{previous:?}");
    }

    #[test]
    fn a_release_that_the_history_does_not_have_is_not_found() {
        let previous = Previous { release: "9.9.9".into(), tag: "no-such-tag".into(), commit: "0123456789".repeat(4) };
        assert_eq!(commit_of(&workspace::root(), &previous), None);
    }
}
